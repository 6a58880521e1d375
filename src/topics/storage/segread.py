"""Reading the segments of one topic (06 §10, §11): entries, frames and tags, each verified before it is believed.

    entries   a sealed segment's `.idx` through `MapCache`, its footer verified when it is brought in [S-150]; one that
              fails is made from `.data` in memory, and noted in `damaged` for the next cycle to bring to disk
    frames    mapped where possible, else by pread; checksum, seq and length must be right, twice wrong is unreadable
    tags      the sidecar, made anew where it is missing or damaged [S-187]

Frames of a cold segment come from blocks in memory; `NeedsBlocks` where they are not there yet (06 §16.3). Its index is
here; one that is damaged cannot be made anew from here: the segment is *unindexed*, and everything in it reads as
damage until the tier gives the index back [S-316].

Pending marks are applied to every buffer that is brought in. Used by the topic's owner.
"""

from __future__ import annotations

import errno
import logging
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics.codec import project
from topics.codec import segment as codec
from topics.codec.frame import Buffer, NotAFrame
from topics.codec.project import Projection
from topics.codec.segment import DataFrame
from topics.codec.sidecar import NotASidecar
from topics.errors import UnsupportedFormat
from topics.fs import File, close_quietly, pread_all
from topics.storage import tags
from topics.storage.descriptor import Segment
from topics.storage.maps import Lease, MapCache, WrongSize
from topics.storage.reindex import DAMAGE, Entries, find_frames, live_of, stats
from topics.storage.segfile import SegmentFiles, entries_in, load_entries, verified
from topics.storage.tiers.blocks import ColdRead, NeedsBlocks, Place, Wanted

log = logging.getLogger("topics.storage")

_PLACE = struct.Struct("<II")
"""Offset and length, which an entry begins with."""
_DEAD = codec.DELETED | codec.LOST
_LIVE_FLAGS = bytes(flags for flags in range(256) if not flags & _DEAD)
PAGE_RECORDS_MIN = 64
"""Fewer than that in front of a dead one are walked: where many are dead, one is never far."""

Seqs = Sequence[int] | npt.NDArray[np.unsignedinteger] | npt.NDArray[np.signedinteger]

SPAN_GAP_BYTES = 64 << 10
"""Frames at most so far apart are fetched by one read (06 §10)."""
SPAN_BYTES_MAX = 1 << 20
SLICE_BYTES = 64 << 10
"""Of the cold tier so much becomes JSON at once; it takes about as long as serving a write [S-320]."""
UNREADABLE_MAX = 10_000


LostTags = Callable[[SegmentFiles, Segment], bytes | None]


class Absent(Enum):
    """Why a seq has no frame to give."""

    GONE = "gone"
    """Deleted, by any witness [S-174], or a hole or filler."""
    UNREADABLE = "unreadable"
    """Its bytes failed verification twice [S-176]: to be told as a hole, reason `corrupt`."""


class Stretch(NamedTuple):
    """Live records in a row of a sealed segment."""

    entries: bytes
    """As they are on disk."""
    start: int
    """Of their frames in `.data`; what lies in between may be dead."""
    end: int

    @property
    def records(self) -> int:
        """How many."""
        return len(self.entries) // codec.ENTRY_BYTES

    def within(self, max_bytes: int) -> Stretch:
        """The first of them, whose frames lie within so many bytes; one at least."""
        most = self.start + max_bytes
        if self.end <= most:
            return self
        count = max(bisect_right(range(self.records), most, key=self._end_of), 1)
        return Stretch(self.entries[: count * codec.ENTRY_BYTES], self.start, self._end_of(count - 1))

    def _end_of(self, number: int) -> int:
        offset, size = _PLACE.unpack_from(self.entries, number * codec.ENTRY_BYTES)
        return int(offset + size)


class SegmentReader:
    """Everything that is read from a topic's segments."""

    def __init__(self, files: SegmentFiles, maps: MapCache, told: bool) -> None:
        self.files = files
        self.told = told
        self.corrupt = 0
        """Frames and index files that failed verification (`topics_segment_corrupt_total`)."""
        self.damaged: set[int] = set()
        """Sealed segments whose `.idx` on disk has to be replaced."""
        self.lost_tags: LostTags | None = None
        """While a store is opened: asks the cold tier for tags that are not here; later the owner waits for nobody."""
        self.unreadable: dict[int, bool] = {}
        """Seqs that failed verification, at most `UNREADABLE_MAX`, and whether `$loss` was told of them."""
        self.miscounted = False
        """An index that was made anew counts otherwise than before: so do the sums that its segment is part of."""
        self._maps = maps

    @contextmanager
    def entries(self, segment: Segment, *, writable: bool = False) -> Iterator[Entries]:
        """The entries of a segment, shared; not to be kept behind the block. Not of a gap segment.

        `writable` is for marks: a sealed segment's buffer is pinned.
        """
        assert segment.gap is None, "a gap segment has no entries"
        if not segment.sealed:
            assert segment.entries is not None
            yield entries_in(segment.entries, segment.n)
            return
        with self._lease_idx(segment) as lease:
            if writable:
                lease.pin()
            yield entries_in(lease.buffer, segment.n)

    def hold(self, segment: Segment) -> Lease:
        """Keep a sealed segment's entries in memory until the lease is released, whatever is renamed meanwhile."""
        assert segment.sealed
        return self._lease_idx(segment)

    def learn(self, segment: Segment, *, counts: bool) -> None:
        """Let the descriptor know what its entries say; with `counts` also how many are live."""
        if segment.gap is None:
            with self.entries(segment) as entries:
                segment.learn(stats(entries), counts=counts)

    def frames(self, segment: Segment, seqs: Seqs, cold: ColdRead | None = None) -> list[DataFrame | Absent]:
        """The frames of ascending `seqs` of a segment, each verified [S-173, S-176]."""
        wanted = np.asarray(seqs, np.uint64)
        if segment.cold:
            assert cold is not None, "cold frames are read through their store"
            return self._cold_frames(segment, wanted, cold)
        found = self._fetch(segment, wanted, mapped=True)
        failed = [at for at, one in enumerate(found) if one is Absent.UNREADABLE]
        if not failed or not segment.has_data:
            return found
        if segment.sealed:
            self._maps.forget(self.files.path(segment.first, "idx"))  # its pages may have rotted: verify them again
        for at, one in zip(failed, self._fetch(segment, wanted[failed], mapped=False), strict=True):
            found[at] = one
        unreadable = [int(wanted[at]) for at in failed if found[at] is Absent.UNREADABLE]
        self._note_unreadable(unreadable)
        return found

    def _note_unreadable(self, seqs: list[int]) -> None:
        if seqs:
            self.corrupt += len(seqs)
            for seq in seqs[: UNREADABLE_MAX - len(self.unreadable)]:
                self.unreadable.setdefault(seq, False)
            log.error("topic %d: unreadable seqs %s", self.files.topic_id, seqs)

    def _cold_frames(self, segment: Segment, seqs: npt.NDArray[np.uint64], cold: ColdRead) -> list[DataFrame | Absent]:
        """Frames out of blocks in memory; what does not verify is fetched once more before it is given up."""
        found: list[DataFrame | Absent] = [Absent.GONE] * len(seqs)
        live, places = self._live_places(segment, seqs)
        if not places:
            return found
        place = Place(self.files.topic_id, segment.first, segment.generation)
        if place in cold.absent:
            frames: list[DataFrame | Absent] = [Absent.UNREADABLE] * len(places)
        else:
            frames = _cold_spans(cold, place, segment.data_len, places, self.files.mask)
        for at, frame in zip(live.tolist(), frames, strict=True):
            found[at] = frame
        unreadable = {one[0] for one, frame in zip(places, frames, strict=True) if frame is Absent.UNREADABLE}
        self._note_unreadable(sorted(unreadable - cold.unreadable))  # a call may come here several times
        cold.unreadable |= unreadable
        return found

    def _live_places(
        self, segment: Segment, seqs: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
        """Which of the seqs live, and where: seq, offset and size of each."""
        with self.entries(segment) as entries:
            chosen = entries[(seqs - np.uint64(segment.first)).astype(np.int64)]
        live = np.flatnonzero(live_of(chosen))
        offsets, sizes = chosen["offset"][live].tolist(), chosen["len"][live].tolist()
        return live, list(zip(seqs[live].tolist(), offsets, sizes, strict=True))

    def page(
        self, segment: Segment, first: int, most: int, max_bytes: int, wanted: Projection, cold: ColdRead
    ) -> tuple[bytes, int, int] | None:
        """Live records in a row from `first` on as JSON, how many, and their accounted bytes.

        None: it takes a closer look, unless they are intact, within `max_bytes`, not only a few of many, and the kernel
        is there.
        """
        if max_bytes <= 0 or not self._is_readable(segment):
            return None
        if segment.cold:
            return self._cold_page(segment, first, most, max_bytes, wanted, cold)
        data = self._lease_data(self.files.path(segment.first, "data", segment.generation), segment)
        if data is None:
            return None
        limits = (min(most, segment.last + 1 - first), max_bytes, PAGE_RECORDS_MIN)
        with data, self._lease_idx(segment) as index:
            return project.page_of_segment(
                data.buffer, index.buffer, first - segment.first, limits, first, self.files.mask, wanted
            )

    def _is_readable(self, segment: Segment) -> bool:
        """Whether it is sealed and there are records to be had of it."""
        return segment.gap is None and segment.sealed and (segment.cold or segment.has_data)

    def stretch(self, segment: Segment, first: int, most: int) -> Stretch | None:
        """Live records in a row from `first` on, at most so many; None if they are only a few of many."""
        if not self._is_readable(segment):
            return None
        at = (first - segment.first) * codec.ENTRY_BYTES
        behind = at + min(most, segment.last + 1 - first) * codec.ENTRY_BYTES
        with self._lease_idx(segment) as lease:
            entries = bytes(lease.buffer[at:behind])
        flags = entries[codec.FLAGS_AT :: codec.ENTRY_BYTES]
        if flags.translate(None, _LIVE_FLAGS):
            live = next(number for number, one in enumerate(flags) if one & _DEAD)
            if live < PAGE_RECORDS_MIN:
                return None
            entries = entries[: live * codec.ENTRY_BYTES]
        start, _ = _PLACE.unpack_from(entries)
        last, size = _PLACE.unpack_from(entries, len(entries) - codec.ENTRY_BYTES)
        return Stretch(entries, start, last + size)

    def _cold_page(
        self, segment: Segment, first: int, most: int, max_bytes: int, wanted: Projection, cold: ColdRead
    ) -> tuple[bytes, int, int] | None:
        """A page out of blocks in memory; `NeedsBlocks` where they are not."""
        found = self.stretch(segment, first, most)
        found = None if found is None else found.within(SLICE_BYTES)
        if found is None or not 0 < found.end - found.start <= max_bytes:
            return None
        place = Place(self.files.topic_id, segment.first, segment.generation)
        if place in cold.absent or found.end - found.start > SPAN_BYTES_MAX:
            return None
        piece = cold.span(place, segment.data_len, found.start, found.end)
        if isinstance(piece, list):
            raise NeedsBlocks(piece)
        data, base = piece
        entries = found.entries
        if base:
            moved = np.frombuffer(entries, codec.IDX).copy()
            moved["offset"] -= np.uint32(base)
            entries = moved.tobytes()
        made = project.packed_of_segment(data, entries, first, self.files.mask, wanted)
        if made is None:
            return None
        rows = np.frombuffer(found.entries, codec.IDX)
        cold.records += cold.count_fetched(place, rows)
        return made, len(rows), stats(rows).live_bytes

    def project(
        self, segment: Segment, first: int, entries: Entries, wanted: Projection, cold: ColdRead
    ) -> list[bytes] | None:
        """Live records in a row as JSON, each verified; None: `frames` has to look closer [S-173]."""
        if segment.cold:
            return self._cold_project(segment, first, entries, wanted, cold)
        if not segment.sealed or not segment.has_data:
            return None
        lease = self._lease_data(self.files.path(segment.first, "data", segment.generation), segment)
        if lease is None:
            return None
        with lease:
            return project.run_of_segment(lease.buffer, entries, first, self.files.mask, wanted)

    def _cold_project(
        self, segment: Segment, first: int, entries: Entries, wanted: Projection, cold: ColdRead
    ) -> list[bytes] | None:
        """The same out of blocks in memory."""
        place = Place(self.files.topic_id, segment.first, segment.generation)
        start, end = int(entries["offset"][0]), int(entries["offset"][-1]) + int(entries["len"][-1])
        if place in cold.absent or end <= start or end - start > SPAN_BYTES_MAX:
            return None
        piece = cold.span(place, segment.data_len, start, end)
        if isinstance(piece, list):
            raise NeedsBlocks(piece)
        data, base = piece
        moved = entries.copy()
        moved["offset"] -= np.uint32(base)
        made = project.run_of_segment(data, moved, first, self.files.mask, wanted)
        if made is not None:
            cold.records += cold.count_fetched(place, entries)
        return made

    def active_tags(self, active: Segment) -> dict[bytes, array[int]]:
        """Tags and seqs of the active segment."""
        if not active.has_tags:
            return {}
        data = self.files.read(self.files.path(active.first, "data"), active.data_len) or b""
        return tags.tags_of(data, find_frames(data, self.files.mask, active.first, active.last).rows)

    @contextmanager
    def sidecar(self, segment: Segment) -> Iterator[tags.TagSidecar | None]:
        """The tags of a sealed segment, None if it has none; not to be kept behind the block."""
        assert segment.sealed
        if segment.has_tags is None and not segment.unindexed:
            self.learn(segment, counts=False)
        if not segment.has_tags and not segment.unindexed:
            yield None
            return
        path = self.files.path(segment.first, "tag")
        size = self.files.size(path)
        lease = self._lease_tag(path, size, segment) if size else None
        if lease is None:
            self._maps.forget(path)
            raw = self._new_sidecar(segment)
            yield None if raw is None else tags.TagSidecar(raw, self.files.topic_id, segment.first, segment.n)
            return
        with lease:
            assert isinstance(lease.attachment, tags.TagSidecar)
            yield lease.attachment

    def forget(self, segment: Segment) -> None:
        """A segment's files were replaced or removed: bring them in anew."""
        self._maps.forget(self.files.path(segment.first, "idx"))
        self._maps.forget(self.files.path(segment.first, "tag"))
        self._maps.forget(self.files.path(segment.first, "data", segment.generation))

    def _lease_idx(self, segment: Segment) -> Lease:
        path = self.files.path(segment.first, "idx")
        lease = self._verified_lease(path, segment)
        repaired = lease is None
        if lease is None:
            self._maps.put(path, self._repaired(segment))
            lease = self._maps.lease(path, (segment.n + 1) * codec.ENTRY_BYTES)
        if repaired or lease.fresh:
            entries = entries_in(lease.buffer, segment.n)
            if len(segment.pending):
                entries["flags"][segment.pending] |= np.uint8(codec.DELETED)
                lease.pin()
            if repaired or segment.min_ts is None:
                counted = (segment.live, segment.live_bytes)
                segment.learn(stats(entries), counts=repaired)
                self.miscounted |= (segment.live, segment.live_bytes) != counted
        return lease

    def _verified_lease(self, path: str, segment: Segment) -> Lease | None:
        """A lease on a file that is this segment's, or None if it is not."""
        try:
            lease = self._maps.lease(path, (segment.n + 1) * codec.ENTRY_BYTES)
        except (WrongSize, FileNotFoundError) as error:
            log.error("%s: %s", path, error)
            return None
        if not lease.fresh:
            return lease
        footer = verified(self.files, segment.first, lease.buffer)
        if footer is not None and (footer.n, footer.generation) == (segment.n, segment.generation):
            return lease
        self._maps.forget(path)
        lease.release()
        return None

    def _repaired(self, segment: Segment) -> bytearray:
        """The `.idx` of a sealed segment made from its `.data`, in memory; the next cycle brings it to disk.

        That of a cold one is not made up: what stands for it says that everything is damaged, and stays in memory.
        """
        self.corrupt += 1
        if segment.cold:
            segment.unindexed = True
            ts = segment.min_ts or 0
            return bytearray(codec.fillers(segment.n, ts, DAMAGE if self.told else 0) + bytes(codec.ENTRY_BYTES))
        self.damaged.add(segment.first)
        known = (segment.first, segment.n, segment.generation)
        entries = load_entries(self.files, *known, has_data=segment.has_data, told=self.told)
        return bytearray(entries.tobytes() + bytes(codec.ENTRY_BYTES))

    def _fetch(self, segment: Segment, seqs: npt.NDArray[np.uint64], mapped: bool) -> list[DataFrame | Absent]:
        found: list[DataFrame | Absent] = [Absent.GONE] * len(seqs)
        if segment.gap is not None:
            return found
        live, places = self._live_places(segment, seqs)
        if not places:
            return found
        frames: list[DataFrame | Absent] = [Absent.UNREADABLE] * len(places)
        if segment.has_data:
            frames = self._decoded(segment, places, mapped)
        for at, frame in zip(live.tolist(), frames, strict=True):
            found[at] = frame
        return found

    def _decoded(self, segment: Segment, places: list[tuple[int, int, int]], mapped: bool) -> list[DataFrame | Absent]:
        path = self.files.path(segment.first, "data", segment.generation)
        lease = self._lease_data(path, segment) if mapped and segment.sealed else None
        if lease is not None:
            with lease:
                return _decode_all(lease.buffer, places, self.files.mask)
        file = self.files.fs.open(path, "r")
        try:
            return _read_spans(file, places, self.files.mask)
        finally:
            close_quietly(file)

    def _lease_data(self, path: str, segment: Segment) -> Lease | None:
        try:
            return self._maps.lease_mapped(path, segment.data_len)
        except WrongSize as error:
            log.error("%s", error)
            return None

    def _lease_tag(self, path: str, size: int, segment: Segment) -> Lease | None:
        """A lease with the verified sidecar attached; None if the file is none."""
        try:
            lease = self._maps.lease(path, size)
        except (WrongSize, FileNotFoundError):
            return None
        try:
            if lease.attachment is None:
                lease.attachment = tags.TagSidecar(lease.buffer, self.files.topic_id, segment.first, segment.n)
        except NotASidecar as error:
            log.warning("%s is made anew: %s", path, error)
            lease.release()
            return None
        except UnsupportedFormat:
            lease.release()
            raise
        return lease

    def _new_sidecar(self, segment: Segment) -> bytes | None:
        """From `.data`; written for the next time where that works, because nothing depends on it."""
        if segment.cold:
            return self._cold_sidecar(segment)
        if not segment.has_data:
            return None
        data = self.files.read(self.files.path(segment.first, "data", segment.generation)) or b""
        rows = find_frames(data, self.files.mask, segment.first, segment.last).rows
        raw = tags.build_sidecar(data, rows, self.files.topic_id, segment.first)
        try:
            self.files.write_tag(segment.first, raw)
        except OSError as error:
            log.warning("no sidecar for segment %d: %s", segment.first, error)
        return raw

    def _cold_sidecar(self, segment: Segment) -> bytes | None:
        """Nothing here can make them anew; without them nobody knows what a delete by tag is about."""
        raw = self.lost_tags(self.files, segment) if self.lost_tags is not None else None
        if raw is not None:
            self.files.write_tag(segment.first, raw, durable=True)
            self.files.sync_dir()
            return raw
        segment.untagged = True
        self.corrupt += 1
        told = (
            f"topic {self.files.topic_id}: the tags of segment {segment.first} are lost; its data is in the cold tier"
        )
        if self.lost_tags is None:
            raise OSError(errno.EIO, told)
        log.error("%s", told)
        return None


def is_sidecar(raw: bytes, files: SegmentFiles, first: int, n: int) -> bool:
    """Whether these bytes are the tags of a segment."""
    try:
        tags.TagSidecar(raw, files.topic_id, first, n)
    except (NotASidecar, UnsupportedFormat):
        return False
    return True


def _cold_spans(
    cold: ColdRead, place: Place, data_len: int, places: list[tuple[int, int, int]], mask: int
) -> list[DataFrame | Absent]:
    """Frames of a cold segment, neighbours together; `NeedsBlocks` while one of them is not in memory."""
    spans: list[tuple[int, int, tuple[bytes, int]]] = []
    missing: dict[Wanted, None] = {}
    at = 0
    while at < len(places):
        behind, start, end = _span(places, at)
        piece = cold.span(place, data_len, start, end)
        if isinstance(piece, list):
            missing.update(dict.fromkeys(piece))
        else:
            spans.append((at, behind, piece))
        at = behind
    if missing:
        raise NeedsBlocks(list(missing))
    found: list[DataFrame | Absent] = []
    for at, behind, (data, base) in spans:
        found += _decode_all(data, [(seq, offset - base, n) for seq, offset, n in places[at:behind]], mask)
    failed = [one for one, frame in zip(places, found, strict=True) if frame is Absent.UNREADABLE]
    again = cold.distrust(place, data_len, [(offset, offset + n) for _, offset, n in failed])
    if again:
        raise NeedsBlocks(again)
    cold.records += sum(cold.is_fetched(place, offset, offset + n) for _, offset, n in places)
    return found


def _decode_all(buffer: Buffer, places: list[tuple[int, int, int]], mask: int) -> list[DataFrame | Absent]:
    found: list[DataFrame | Absent] = []
    for one in codec.decode_sized(buffer, places, mask):
        if not isinstance(one, DataFrame):
            found.append(_decode(buffer, one[1], one[2], one[0], mask))
        else:
            found.append(Absent.GONE if one.deleted else one)
    return found


def _decode(buffer: Buffer, offset: int, n: int, seq: int, mask: int) -> DataFrame | Absent:
    try:
        frame = codec.decode(buffer, offset, seq, mask)
    except NotAFrame as error:
        log.warning("seq %d: %s", seq, error)
        return Absent.UNREADABLE
    if frame.end - offset != n:
        return Absent.UNREADABLE
    return Absent.GONE if frame.deleted else frame


def _read_spans(file: File, places: list[tuple[int, int, int]], mask: int) -> list[DataFrame | Absent]:
    """Frames by pread, neighbours by one."""
    found: list[DataFrame | Absent] = []
    at = 0
    while at < len(places):
        behind, start, end = _span(places, at)
        data = pread_all(file, end - start, start)
        found += _decode_all(data, [(seq, offset - start, n) for seq, offset, n in places[at:behind]], mask)
        at = behind
    return found


def _span(places: list[tuple[int, int, int]], at: int) -> tuple[int, int, int]:
    """The places from `at` that one read fetches: index behind the last, and the byte range."""
    _, start, n = places[at]
    end = start + n
    for behind in range(at + 1, len(places)):
        _, offset, n = places[behind]
        if not 0 <= offset - end <= SPAN_GAP_BYTES or offset + n - start > SPAN_BYTES_MAX:
            return behind, start, end
        end = offset + n
    return len(places), start, end
