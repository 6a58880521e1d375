"""Looking at the files of one topic (06 §8, §11): every entry, every frame, every tag, and what should be there.

What must be there follows from the newest snapshot and the marks behind it: segments without a space from the highest
floor to `ckpt_seq` [S-129, S-250], the active one as its claim says [S-44]. For each segment:

    .idx     footer or claim, sizes, order of times, form of fillers; the counts and hash of its snapshot row
    .data    every frame the entries point to, dead ones included: checksum, seq, length, and the entry made from it
    deletes  the byte of each frame against the bit of its entry [S-120]
    .tag     verified, and every tag of a frame in it [S-187]

An `.idx` that cannot be believed is made anew in memory, to see what would be lost. Memory: one `.idx`, one batch of
frames and the tags of one segment. Nothing is changed. One thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import segment as codec
from topics.codec import sidecar, snapshot
from topics.codec.frame import NotAFrame, Why
from topics.codec.segment import Footer
from topics.codec.snapshot import SegmentRow
from topics.errors import UnsupportedFormat
from topics.fs import File, Fs, close_quietly, pread_all
from topics.storage.descriptor import Claim
from topics.storage.findings import Area, Collector
from topics.storage.inspect_wal import note_other, read_if_there
from topics.storage.reindex import (
    Entries,
    Frames,
    Range,
    Reindexed,
    data_end,
    find_frames,
    live_of,
    ranges_of,
    reindex,
    stats,
)
from topics.storage.segfile import Present, SegmentFiles, entries_in, footer_hash, verified
from topics.storage.tags import tags_at, tags_of
from topics.storage.tiers.reading import ColdTier, ColdUnavailable
from topics.storage.view import BATCH_BYTES, COLD_BATCH_BYTES, chunks

SHOWN_MAX = 8
"""Seq ranges named in one finding."""


class Expected(NamedTuple):
    """What a topic's directory must hold, by snapshot and log."""

    id: int
    name: str
    epoch: int | None
    promised: bool
    """Its class tells of loss; else damage is no broken promise."""
    floor: int
    ckpt_seq: int
    claim: Claim | None
    """Of the active segment; None where it is not known."""
    rows: dict[int, SegmentRow]
    waiting: tuple[Range, ...]
    """Seqs of attached segments that the next start moves in [S-289]."""
    in_log: Callable[[Range], bool]
    """Whether the log has records of all these seqs."""
    cold: ColdTier


ALL = Range(0, paths.U64_MAX)


def spans(expected: Expected, span_bytes: int) -> list[Range]:
    """All seqs of a topic in stretches of about so many bytes of data, cut where segments begin."""
    edges, size = [ALL.first], 0
    for _, row in sorted(expected.rows.items()):
        if size >= span_bytes:
            edges.append(row.first)
            size = 0
        size += row.data_len
    return [Range(first, behind - 1) for first, behind in pairwise([*edges, ALL.last + 1])]


def check_topic(
    fs: Fs, path: str, expected: Expected, *, in_use: bool, looked: Callable[[int], None], span: Range = ALL
) -> Area:
    """Everything in the directory of one topic, or the segments that begin in one of its spans.

    What is no segment is looked at with the first span.
    """
    name = f"{paths.TOPICS_DIR}/{paths.topic_dir(expected.id)}"
    found = Collector(name, expected.name, in_use=in_use, lenient=not expected.promised)
    check = _Topic(SegmentFiles(fs, f"{path}/{name}", expected.id), expected, found, looked, span)
    try:
        check.run()
    except FileNotFoundError as error:
        found.add("topic_dir_missing", name, str(error))
    return found.area()


class _Topic:
    """One examination."""

    def __init__(
        self, files: SegmentFiles, expected: Expected, found: Collector, looked: Callable[[int], None], span: Range
    ) -> None:
        self._span = span
        self._files = files
        self._expected = expected
        self._found = found
        self._looked = looked
        self._held: list[Range] = []

    def run(self) -> None:
        expected, found, is_first = self._expected, self._found, self._span.first == ALL.first
        if expected.waiting and is_first:
            found.add("attach_unfinished", found.name, _shown(list(expected.waiting)))
        if not self._files.fs.exists(self._files.dir):
            if expected.ckpt_seq >= expected.floor and not expected.waiting and is_first:
                found.add("topic_dir_missing", found.name, f"seqs {expected.floor} to {expected.ckpt_seq}")
            return
        if is_first:
            self._others()
        listing = self._files.listing()
        for row in expected.rows.values():
            if row.flags & snapshot.COLD and row.first + row.count > expected.floor:
                listing.setdefault(row.first, Present([], False, False))
        listing = dict(sorted(listing.items()))
        firsts = list(listing)
        for at, first in enumerate(firsts):
            if not self._span.first <= first <= self._span.last:
                continue
            behind = firsts[at + 1] if at + 1 < len(firsts) else expected.ckpt_seq + 1
            try:
                self._segment(first, listing[first], behind)
            except OSError as error:
                found.add("unreadable", self._where(first, "idx"), str(error))
                self._held.append(Range(first, behind - 1))
        self._held = sorted([*self._held, *expected.waiting])
        self._missing()

    def _where(self, first: int, kind: paths.SegmentKind, generation: int = 0) -> str:
        return f"{self._found.name}/{paths.segment(first, kind, generation)}"

    def _others(self) -> None:
        for name in sorted(self._files.fs.listdir(self._files.dir)):
            if name == paths.TOPIC_FILE:
                self._description()
            elif paths.parse_segment(name) is None:
                note_other(self._found, f"{self._found.name}/{name}", name)

    def _description(self) -> None:
        raw = read_if_there(self._files.fs, f"{self._files.dir}/{paths.TOPIC_FILE}") or b""
        self._found.file(len(raw))
        try:
            said: Any = msgspec.json.decode(raw)
            right = said["id"] == self._expected.id and said["name"] == self._expected.name
        except (ValueError, TypeError, KeyError):
            right = False
        if not right:
            self._found.add("topic_json", f"{self._found.name}/{paths.TOPIC_FILE}")

    def _segment(self, first: int, present: Present, behind: int) -> None:
        expected, found = self._expected, self._found
        self._sizes(first, present)
        if any(first == one.first for one in expected.waiting):
            return
        if first > expected.ckpt_seq:
            found.add("unclaimed", self._where(first, "idx" if present.idx else "data"))
            return
        claim = expected.claim
        if self._held and first <= self._held[-1].last:
            found.add("overlap", self._where(first, "idx"))
        elif claim is not None and claim.entries and first == claim.first:
            self._active(first, present, claim)
        else:
            self._sealed(first, present, behind)

    def _sizes(self, first: int, present: Present) -> None:
        kinds: list[tuple[paths.SegmentKind, int]] = [("data", generation) for generation in present.generations]
        kinds += [("idx", 0)] if present.idx else []
        kinds += [("tag", 0)] if present.tag else []
        for kind, generation in kinds:
            size = self._files.size(self._files.path(first, kind, generation)) or 0
            self._found.file(size)
            self._looked(size)

    def _active(self, first: int, present: Present, claim: Claim) -> None:
        """The claimed part of the active segment; what lies behind it does not count yet."""
        found, files = self._found, self._files
        raw = files.read(files.path(first, "idx")) or b""
        old = entries_in(raw, min(claim.entries, len(raw) // codec.ENTRY_BYTES))
        if len(old) < claim.entries or codec.claim_xxh3(old) != claim.idx_xxh3:
            found.add("claim_mismatch", self._where(first, "idx"), f"{claim.entries} entries are claimed")
            self._rebuilt(first, present, claim.entries, old, limit=claim.data_len)
            return
        behind = (files.size(files.path(first, "data")) or 0) - claim.data_len
        if behind > 0 or len(raw) > (claim.entries + 1) * codec.ENTRY_BYTES:
            found.add("unclaimed", self._where(first, "data"), f"{max(behind, 0)} bytes behind the claimed part")
        self._entries(first, old, 0, present)

    def _sealed(self, first: int, present: Present, behind: int) -> None:
        found, files, where = self._found, self._files, self._where(first, "idx")
        row = self._expected.rows.get(first)
        n = row.count if row is not None and row.flags & snapshot.SEALED else behind - first
        raw = files.read(files.path(first, "idx"))
        if row is not None and row.flags & snapshot.COLD and not present.generations:
            try:
                self._cold_copies(row)
                raw = self._stub(row, raw)
            except ColdUnavailable as error:
                found.add("cold_unchecked", where, f"{row.live} records: {error}")
                self._held.append(Range(first, first + n - 1))
                return
        if raw is None:
            found.add("idx_damaged", where, "is missing")
            self._rebuilt(first, present, n, None)
            return
        try:
            footer = codec.read_footer(raw, files.segment_mask(first))
            if footer is not None and footer.magic == codec.GAP:
                gap = codec.read_gap(raw, files.segment_mask(first))
                self._held.append(Range(first, first + gap.seqs - 1))
                return
        except NotAFrame as error:
            self._unbelieved(first, present, n, raw, str(error))
            return
        if footer is None and row is not None and row.flags & snapshot.SEALED:
            self._unbelieved(first, present, n, raw, "the footer of a sealed segment is gone")
            return
        if footer is None and len(raw) // codec.ENTRY_BYTES < n:
            self._unbelieved(first, present, n, raw, "ends early")
            return
        if footer is None:
            found.add("unsealed", where)
        entries = entries_in(raw, footer.n if footer is not None else min(len(raw) // codec.ENTRY_BYTES, n))
        self._against_row(row, entries, raw, footer)
        self._generations(first, present, footer)
        self._entries(first, entries, 0 if footer is None else footer.generation, present, footer)

    def _cold_copies(self, row: SegmentRow) -> None:
        """The `.idx` and `.tag` that lie beside a cold segment's data, for whoever has only those."""
        first, mask = row.first, self._files.segment_mask(row.first)
        kinds: tuple[Literal["idx", "tag"], ...] = ("idx", "tag")
        for kind in kinds:
            try:
                raw = self._expected.cold.part(self._expected.id, first, 0, kind)  # every generation has the same
                if raw is not None and kind == "idx" and codec.read_footer(raw, mask) is None:
                    raise NotAFrame(Why.BAD, 0, "its footer is gone")
                if raw is not None and kind == "tag":
                    sidecar.read(raw, mask, row.count)
            except (NotAFrame, sidecar.NotASidecar, UnsupportedFormat) as error:
                self._found.add("cold_copy_damaged", f"cold/{self._where(first, kind)}", str(error))

    def _stub(self, row: SegmentRow, raw: bytes | None) -> bytes | None:
        """The `.idx` of a cold segment: the one here if it verifies, else the one that a start fetches [S-316]."""
        if verified(self._files, row.first, raw or b"") is not None:
            return raw
        fetched = self._expected.cold.stub(self._files, row)
        if fetched is not None:
            self._found.add("stub_lost", self._where(row.first, "idx"))
        return fetched or raw

    def _unbelieved(self, first: int, present: Present, n: int, raw: bytes, why: str) -> None:
        """An `.idx` that does not verify: of a segment, or of a gap segment, which has no data to go by."""
        where = self._where(first, "idx")
        row = self._expected.rows.get(first)
        if not present.generations and (row is None or row.flags & snapshot.GAP):
            self._found.add("gap_damaged", where, f"seqs {first} to {first + n - 1}: {why}")
            self._held.append(Range(first, first + n - 1))
            return
        self._found.add("idx_damaged", where, why)
        self._rebuilt(first, present, n, entries_in(raw, min(n, len(raw) // codec.ENTRY_BYTES)))

    def _rebuilt(self, first: int, present: Present, n: int, old: Entries | None, limit: int | None = None) -> None:
        """What a start makes of a segment whose index cannot be believed [S-130]."""
        files, found = self._files, self._found
        self._held.append(Range(first, first + n - 1))
        generation = present.generations[-1] if present.generations else 0
        here = files.read(files.path(first, "data", generation), limit)
        data = self._cold_data(first, generation) if here is None else here
        frames = find_frames(data, files.mask, first, first + n - 1)
        made = reindex(data, frames, first, n, old)
        self._unindexed(first, generation, data, frames, made)
        if limit is None:
            self._tags(first, n, present, tags_of(data, frames.rows))
        floor = self._expected.floor
        # A start makes no index of data in the cold tier: without one they are not found [S-316].
        given_up = (Range(first, first + n - 1),) if here is None and data else made.given_up
        gone = [Range(max(one.first, floor), one.last) for one in given_up if one.last >= floor]
        if gone:
            found.add("idx_lost", self._where(first, "idx"), _shown(gone))
        if here is not None or not data:
            found.records += stats(made.entries[max(floor - first, 0) :]).live

    def _cold_data(self, first: int, generation: int) -> bytes:
        """The data of a cold segment whose index is lost here and there; nothing if it cannot be had."""
        row = self._expected.rows.get(first)
        if row is None or not row.flags & snapshot.COLD:
            return b""
        try:
            file = self._expected.cold.open(self._expected.id, first, generation)
        except ColdUnavailable:
            return b""
        if file is None:
            return b""
        try:
            return pread_all(file, file.size(), 0)
        finally:
            close_quietly(file)

    def _unindexed(self, first: int, generation: int, data: bytes, frames: Frames, made: Reindexed) -> None:
        """What is wrong with frames that no index vouches for."""
        where = self._where(first, "data", generation)
        if not frames.whole:
            what = _shown(made.given_up) if made.given_up else "bytes that are no record"
            self._found.add("frame_damaged", where, what)
        rows = frames.rows
        witness = np.frombuffer(data, np.uint8)[(rows["offset"] + rows["len"]).astype(np.int64) - 1]
        odd = (witness != 0) & (witness != codec.DELETE_BYTE)
        if odd.any():
            self._found.add("delete_byte_odd", where, _shown(ranges_of(rows["seq"][odd].astype(np.int64))))

    def _against_row(self, row: SegmentRow | None, entries: Entries, raw: bytes, footer: Footer | None) -> None:
        """The counts of a snapshot row, which hold as long as its hash is the file's (06 §13)."""
        if row is None or footer is None or row.idx_xxh3 != footer_hash(raw):
            return
        if row.flags & snapshot.COLD and not row.live:
            return  # its index was lost when it was counted, as a start knows
        counted = stats(entries)
        said, real = (row.count, row.live, row.live_bytes), (len(entries), counted.live, counted.live_bytes)
        if said != real:
            what = f"snapshot: {said[0]} seqs, {said[1]} live, {said[2]} bytes; file: {real[0]}, {real[1]}, {real[2]}"
            self._found.add("count_wrong", self._where(row.first, "idx"), what)

    def _generations(self, first: int, present: Present, footer: Footer | None) -> None:
        named = 0 if footer is None else footer.generation
        for other in present.generations:
            if other != named:
                self._found.add("old_generation", self._where(first, "data", other))

    def _entries(
        self, first: int, entries: Entries, generation: int, present: Present, footer: Footer | None = None
    ) -> None:
        """Entries that verified as a whole, and the frames they point to."""
        self._held.append(Range(first, first + len(entries) - 1))
        self._form(first, entries)
        live = live_of(entries)
        live[: max(self._expected.floor - first, 0)] = False
        self._found.records += int(live.sum())
        file = self._data(first, generation, footer, entries, live)
        if file is None:
            return
        try:
            frames = _Frames(self._files, self._found, first, self._where(first, "data", generation))
            is_cold = generation not in present.generations
            frames.check(file, entries, live, self._in_log(live, first), is_cold=is_cold)
            size = file.size()
        finally:
            close_quietly(file)
        if footer is not None and size > data_end(entries):
            what = f"{size - data_end(entries)} bytes"
            self._found.add("extra_bytes", self._where(first, "data", generation), what)
        if footer is not None:
            self._tags(first, len(entries), present, frames.tags)

    def _form(self, first: int, entries: Entries) -> None:
        where = self._where(first, "idx")
        bare = (entries["len"] == 0) & (entries["flags"] & (codec.DELETED | codec.LOST) == 0)
        if bare.any():
            self._found.add("entry_wrong", where, f"neither a record nor a reason: {_seqs(bare, first)}")
        if len(entries) and bool((entries["ts"][1:] < entries["ts"][:-1]).any()):
            self._found.add("ts_order", where, "times go back")

    def _data(
        self, first: int, generation: int, footer: Footer | None, entries: Entries, live: npt.NDArray[np.bool_]
    ) -> File | None:
        """The data file, hot or cold; None if it is not there, which is told where it matters [S-250]."""
        files, found = self._files, self._found
        where = self._where(first, "data", generation)
        if not (entries["len"] != 0).any():
            return None
        try:
            return files.fs.open(files.path(first, "data", generation), "r")
        except FileNotFoundError:
            if not live.any():
                return None  # a dead stub [S-274]
        if footer is None or footer.magic != codec.COLD:
            code = "segment_refillable" if self._in_log(live, first) else "data_missing"
            found.add(code, where, _seqs(live, first))
            return None
        try:
            data = self._expected.cold.open(self._expected.id, first, generation)
        except ColdUnavailable as error:
            found.add("cold_unchecked", where, f"{int(live.sum())} records: {error}")
            return None
        if data is None:
            found.add("cold_missing", where, _seqs(live, first))
        return data

    def _in_log(self, live: npt.NDArray[np.bool_], first: int) -> bool:
        """Whether the log still has every live record of a segment that is lost as a whole [S-250]."""
        return all(map(self._expected.in_log, ranges_of(np.flatnonzero(live), first)))

    def _tags(self, first: int, n: int, present: Present, expected: dict[bytes, array[int]]) -> None:
        """The sidecar against the tags of the frames; it may list more: tags that a rewrite erased."""
        where = self._where(first, "tag")
        if not expected:
            return
        raw = self._files.read(self._files.path(first, "tag")) if present.tag else None
        if raw is None:
            self._found.add("tag_damaged", where, "is missing")
            return
        try:
            read = sidecar.read(raw, self._files.segment_mask(first), n)
        except sidecar.NotASidecar as error:
            self._found.add("tag_damaged", where, str(error))
            return
        except UnsupportedFormat as error:
            self._found.add("tag_damaged", where, str(error))
            return
        for tag, seqs in expected.items():
            listed = sidecar.eq(read, tag).astype(np.uint64) + np.uint64(first)
            lacking = np.setdiff1d(np.frombuffer(seqs, np.uint64), listed)
            if len(lacking):
                what = (
                    f"{tag.decode('utf-8', 'backslashreplace')!r} lacks {_shown(ranges_of(lacking.astype(np.int64)))}"
                )
                self._found.add("tag_wrong", where, what)
                return

    def _missing(self) -> None:
        """Seqs from the floor to `ckpt_seq` that no segment holds [S-250]."""
        at = max(self._expected.floor, self._span.first)
        end = min(self._expected.ckpt_seq, self._span.last) + 1
        missing = []
        for one in [*self._held, Range(end, end)]:
            if one.first > at:
                missing.append(Range(at, one.first - 1))
            at = max(at, one.last + 1)
        lost = [one for one in missing if not self._expected.in_log(one)]
        if lost:
            self._found.add("segment_missing", self._found.name, _shown(lost))
        if len(lost) < len(missing):
            refilled = [one for one in missing if one not in lost]
            self._found.add("segment_refillable", self._found.name, _shown(refilled))


class _Frames:
    """The frames of one data file against the entries of its `.idx`."""

    def __init__(self, files: SegmentFiles, found: Collector, first: int, where: str) -> None:
        self._files = files
        self._found = found
        self._first = first
        self._where = where
        self.tags: dict[bytes, array[int]] = {}
        """Of the frames that verify."""

    def check(self, file: File, entries: Entries, live: npt.NDArray[np.bool_], in_log: bool, *, is_cold: bool) -> None:
        """`in_log` says that the log has all live records: should not one frame verify, they are refilled from it.

        A cold copy may lag behind the deletes of its `.idx` here, which is the one that counts [S-315].
        """
        n = len(entries)
        bad, wrong, unmarked, undone, odd = (np.zeros(n, np.bool_) for _ in range(5))
        most = COLD_BATCH_BYTES if is_cold else BATCH_BYTES
        for at in chunks(entries, np.flatnonzero(entries["len"]), most):
            chosen = entries[at]
            base = int(chosen["offset"][0])
            end = int((chosen["offset"].astype(np.int64) + chosen["len"]).max())
            data = pread_all(file, end - base, base)
            seqs = at.astype(np.uint64) + np.uint64(self._first)
            valid, rows = codec.check_entries(data, chosen, seqs, self._files.mask, base)
            bad[at] = ~valid
            good, rows = at[valid], rows[valid]
            wrong[good] = _differ(entries[good], codec.entries_of(data, rows), base)
            witness = np.frombuffer(data, np.uint8)[(rows["offset"] + rows["len"]).astype(np.int64) - 1]
            marked = entries["flags"][good] & codec.DELETED != 0
            unmarked[good] = (witness == codec.DELETE_BYTE) & ~marked
            undone[good] = (witness == 0) & marked & (not is_cold)
            odd[good] = (witness != 0) & (witness != codec.DELETE_BYTE)
            self._learn_tags(data, rows)
        lost = "segment_refillable" if in_log and bad[entries["len"] != 0].all() else "frame_damaged"
        told = (
            (lost, bad & live), ("dead_frame_damaged", bad & ~live), ("entry_wrong", wrong),
            ("delete_mismatch", unmarked), ("delete_undone", undone), ("delete_byte_odd", odd),
        )  # fmt: skip
        for code, which in told:
            if which.any():
                self._found.add(code, self._where, _seqs(which, self._first))

    def _learn_tags(self, data: bytes, rows: npt.NDArray[np.void]) -> None:
        tagged = rows[rows["flags"] & codec.HAS_TAG != 0]
        for tag, seqs in tags_at(data, tagged["offset"], tagged["seq"]).items():
            self.tags.setdefault(tag, array("Q")).extend(seqs)


def _differ(entries: Entries, made: Entries, base: int) -> npt.NDArray[np.bool_]:
    """Which entries say something else than their frames, delete and loss marks apart."""
    ours = ~np.uint32(codec.DELETED | codec.LOST)
    same: npt.NDArray[np.bool_] = (entries["flags_ovh"] ^ made["flags_ovh"]) & ours == 0
    same &= (entries["ts"] == made["ts"]) & (entries["len"] == made["len"])
    same &= entries["offset"].astype(np.int64) == made["offset"].astype(np.int64) + base
    return ~same


def _seqs(which: npt.NDArray[np.bool_], first: int) -> str:
    return _shown(ranges_of(np.flatnonzero(which), first))


def _shown(ranges: Iterable[Range]) -> str:
    """`3 seqs: 5, 7-8`, shortened."""
    listed = list(ranges)
    total = sum(one.last - one.first + 1 for one in listed)
    texts = [str(one.first) if one.first == one.last else f"{one.first}-{one.last}" for one in listed[:SHOWN_MAX]]
    more = f" and {len(listed) - SHOWN_MAX} more ranges" if len(listed) > SHOWN_MAX else ""
    return f"{total} seq{'' if total == 1 else 's'}: {', '.join(texts)}{more}"
