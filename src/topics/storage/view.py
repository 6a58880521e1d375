"""A data directory as somebody else's reader sees it (06 §17): no lock, nothing created or renamed, files may vanish.

    StoreView     the newest valid snapshot: names, floors, how far segments reach
    TopicView     one topic of it; `segments()` lists its files, `scan()` reads its records
    Batch, Gap    what a scan gives, in ascending order; `Deleted` between them for those who ask

What is shown is the state of the snapshot, less what was deleted since [S-345]: a scan ends at `ckpt_seq`, whatever
more the files hold. A record is given iff its frame verifies, its delete byte is not 0xD5, its entry is not deleted
and its seq is at or above every floor [S-342].

    sealed segment      a frame that does not verify is damage, and told as a `Gap` with a `detail`
    the unsealed one    it is the end for now, no error [S-341]
    holes               a `Gap` with the stored reason, from the evict floor on, also below `delete_below` [S-125]
    no segment at all   damage; before the first segment there is, a drop since the snapshot (reason 0) may explain it:
                        then a mark in the log does (`dropped`)
    file gone           the `.idx` is read again, then the directory listed again [S-340, S-343]

Batches and gaps cover the seqs from the start to where the scan ends without a space, dead records included, so the end
of the last one is where to go on. Memory: one `.idx` and one batch at a time; a segment whose `.idx` does not verify is
read whole. One thread per object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import segment as codec
from topics.codec import sidecar
from topics.codec.frame import NotAFrame, Why
from topics.codec.segment import DataFrame, Footer
from topics.codec.snapshot import Header, Snapshot, TopicItem
from topics.errors import UnsupportedFormat
from topics.fs import File, Fs, close_quietly, pread_all
from topics.storage.reindex import DAMAGE, Entries, data_end, find_frames, live_of, reindex, stats
from topics.storage.segfile import SegmentFiles, entries_in
from topics.storage.snapshot import LISTINGS_MAX, SnapshotStore
from topics.storage.tiers.reading import ColdTier

BATCH_BYTES: Final = 1 << 20
"""Bytes of `.data` that one batch spans, unless a single frame is larger: more do not stay in a processor's cache."""
COLD_BATCH_BYTES: Final = 4 << 20
"""The same of a segment in the cold tier, where a read may be a request."""
SPACE_BYTES: Final = 256 << 10
"""Dead bytes between two records that end a batch: they are not worth reading."""
PICKED_SPACE_BYTES: Final = 1 << 10
"""Bytes between two records picked by tag that are read along with them: less costs a call, more costs bytes."""
DELETED_ROWS: Final = 1 << 16
"""Seqs that one `Deleted` tells at most of a silent gap segment."""
_HEX: Final = frozenset("0123456789abcdef")
DROPPED: Final = 0
"""Reason of a `Gap` before the first segment: dropped since the snapshot, as far as can be told."""


class SegmentView(NamedTuple):
    """One segment as its `.idx` describes it."""

    first: int
    last: int
    sealed: bool
    tier: str
    """`hot`, `cold`, `gap`, or `damaged` where no valid `.idx` says."""
    generation: int
    entries: int
    live: int
    """Records by marks and floors; 0 where nothing is known."""
    live_bytes: int
    min_ts: int
    max_ts: int


class Batch(NamedTuple):
    """The live records of the seqs `first` to `last`, which may be none."""

    first: int
    last: int
    seqs: npt.NDArray[np.uint64]
    entries: Entries
    """Of the live records; offsets are those of the file."""
    offsets: npt.NDArray[np.int64]
    """Where the frames begin in `data`."""
    data: bytes
    mask: int

    def frames(self) -> Iterator[DataFrame]:
        """The records one by one, decoded; for those who do not work on whole batches."""
        for seq, offset in zip(self.seqs.tolist(), self.offsets.tolist(), strict=True):
            yield codec.decode(self.data, offset, seq, self.mask)


class Gap(NamedTuple):
    """Seqs that are not there: reason 1 source_trim, 2 damage, 3 crash, as stored; 0 dropped since the snapshot."""

    first: int
    last: int
    reason: int
    detail: str = ""
    """What is wrong with the files, where this is not what they say themselves."""
    absent: bool = False
    """It is files that are missing: a drop may be under way."""


class Deleted(NamedTuple):
    """Seqs that were removed on request, and the instants of what they held."""

    seqs: npt.NDArray[np.uint64]
    ts: npt.NDArray[np.uint64]


Told = Batch | Gap | Deleted


class Tags(NamedTuple):
    """Tags that a reader wants: these, and all that begin with one of those."""

    equal: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """What a scan gives of its range."""

    min_ts: int = 0
    verify: bool = True
    """Compute checksums; without them frames are only held against their entries [S-348]."""
    tags: Tags | None = None
    """A hint: records without these tags are left out where that spares reading them."""
    pending: Sequence[tuple[int, int]] = ()
    """Ranges of seqs that are deleted although no mark on disk says so [A-8]."""
    deleted: bool = False
    """Tell deleted seqs, too."""
    max_ts: int = paths.U64_MAX

    def dated(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Which entries lie between the instants."""
        if self.min_ts == 0 and self.max_ts == paths.U64_MAX:
            return np.ones(len(entries), np.bool_)
        inside: npt.NDArray[np.bool_] = (entries["ts"] >= self.min_ts) & (entries["ts"] <= self.max_ts)
        return inside


class Directory(Protocol):
    """Where the files of a topic are."""

    @property
    def fs(self) -> Fs: ...

    @property
    def path(self) -> str: ...

    @property
    def cold(self) -> ColdTier: ...


class StoreView:
    """A data directory, read-only. `cold` is the folder of the cold tier where the snapshot's is not the one to use."""

    def __init__(self, fs: Fs, path: str, *, cold: str | None = None) -> None:
        self.fs = fs
        self.path = path
        self._cold = cold
        self.snapshot = self._load()

    def refresh(self) -> None:
        """Take the newest snapshot there is now."""
        if self.header is None or newest_snapshot(self.fs, self.path) != self.header.id:
            self.snapshot = self._load()

    @property
    def header(self) -> Header | None:
        """Of the snapshot; None where the store has none yet, and so nothing to show."""
        return None if self.snapshot is None else self.snapshot.header

    def topics(self) -> list[TopicView]:
        """All topics, by id."""
        items = [] if self.snapshot is None else self.snapshot.topics
        return [TopicView(self, item) for item in sorted(items, key=lambda item: item.id)]

    def topic(self, name: str) -> TopicView | None:
        """The topic of this name."""
        return next((topic for topic in self.topics() if topic.name == name), None)

    @property
    def cold(self) -> ColdTier:
        """The cold tier: where the snapshot says, or where the caller does [S-346]."""
        header = self.header
        root = self._cold if self._cold is not None else header.cold if header is not None else None
        return ColdTier(self.fs, root, None if header is None else header.store)

    def _load(self) -> Snapshot | None:
        return SnapshotStore(self.fs, f"{self.path}/{paths.META_DIR}").load(read_store_id(self.fs, self.path))


def newest_snapshot(fs: Fs, path: str) -> int:
    """The number of the newest snapshot in a data directory, as its name says; 0 if there is none."""
    return next(iter(SnapshotStore(fs, f"{path}/{paths.META_DIR}").numbers()), 0)


def read_store_id(fs: Fs, path: str) -> str | None:
    """The id in `meta/STORE`; None where it is missing or damaged: a snapshot has it too (06 §14 step 1)."""
    raw = _read(fs, f"{path}/{paths.META_DIR}/{paths.STORE_FILE}")
    text = (raw or b"").decode("ascii", "replace")
    return text[:-1] if len(text) == 33 and text[-1] == "\n" and _HEX.issuperset(text[:-1]) else None


class _Pair(NamedTuple):
    """An `.idx` and the data file it names, opened together; `entries` are those of `first` on."""

    first: int
    entries: Entries
    footer: Footer | None
    gap: codec.GapSegment | None
    file: File | None
    detail: str
    """What is wrong with the pair as a whole."""
    path: str = ""
    """Of the data."""

    @property
    def last(self) -> int:
        return self.first + (self.gap.seqs if self.gap is not None else len(self.entries)) - 1


class TopicView:
    """One topic of a directory, as an item of its snapshot describes it."""

    def __init__(self, store: Directory, item: TopicItem, listed: list[int] | None = None) -> None:
        self.store = store
        self.item = item
        self._rows = {row.first: row for row in item.segments}
        self.listed = listed
        """Where segments begin, as it was found last. One that vanished since is noticed where it is opened."""
        self.files = SegmentFiles(store.fs, f"{store.path}/{paths.TOPICS_DIR}/{paths.topic_dir(item.id)}", item.id)

    @property
    def id(self) -> int:
        return self.item.id

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def epoch(self) -> int:
        return self.item.epoch

    @property
    def config(self) -> dict[str, Any]:
        """The complete configuration."""
        return self.item.cfg

    @property
    def head_seq(self) -> int:
        return self.item.head_seq

    @property
    def ckpt_seq(self) -> int:
        """The last seq a scan may give [S-345]."""
        return self.item.ckpt_seq

    @property
    def evict_floor(self) -> int:
        """What lies below was given up to a cap or to age."""
        return max(self.item.cap_floor, self.item.ttl_floor)

    @property
    def floor(self) -> int:
        """No record below it is live."""
        return max(self.evict_floor, self.item.delete_below, self.item.base)

    def expiry_ts(self, now_ms: int) -> int:
        """Records with a lower `ts` are expired at `now_ms`: the `min_ts` of a scan planned then; 0 without a TTL."""
        ttl_ms = self.config.get("ttl_ms") or 0
        return max(now_ms - ttl_ms, 0) if ttl_ms else 0

    def segments(self) -> list[SegmentView]:
        """The segments at or below `ckpt_seq`, ascending; one `.idx` is read at a time."""
        found = []
        for _ in range(LISTINGS_MAX):
            firsts = self._firsts()
            found = [self._described(first, behind) for first, behind in self._spans(firsts)]
            if all(one is not None for one in found):
                break
        return [one for one in found if one is not None]

    def dead_bytes(self) -> Iterator[tuple[int, int, int]]:
        """Of each sealed segment with data: its first seq, the bytes of its data, and those a rewrite gives back."""
        for first, behind in self._spans(self._firsts()):
            raw = self.files.read(self.files.path(first, "idx"))
            try:
                footer, gap, entries = self._index(first, behind, raw or b"")
            except NotAFrame:
                continue
            size = data_end(entries)
            if footer is not None and gap is None and size:
                yield first, size, size - int(entries["len"][live_of(entries)].astype(np.int64).sum())

    def scan(
        self, from_seq: int = 1, to_seq: int | None = None, *, min_ts: int = 0, verify: bool = True
    ) -> Iterator[Batch | Gap]:
        """The records of [from_seq, to_seq] that can be read now, and the gaps between them.

        With `verify=False` frames are held against their entries but their checksums are not computed [S-348].
        """
        for told in self.tell(from_seq, to_seq, Wanted(min_ts, verify)):
            assert not isinstance(told, Deleted)
            yield told

    def tell(self, from_seq: int, to_seq: int | None, wanted: Wanted) -> Iterator[Told]:
        """`scan` with everything that can be wanted."""
        high = self.ckpt_seq if to_seq is None else min(to_seq, self.ckpt_seq)
        at = max(from_seq, self.evict_floor, self.item.base)
        return _Scan(self, high, wanted).run(at)

    def tagged(self, first: int, n: int, tags: Tags) -> npt.NDArray[np.bool_] | None:
        """Which seqs of a sealed segment have had one of these tags; None where its sidecar cannot tell [S-187]."""
        raw = self.files.read(self.files.path(first, "tag"))
        if raw is None:
            return None
        try:
            found = sidecar.read(raw, self.files.segment_mask(first), n, whole=False)
        except (sidecar.NotASidecar, UnsupportedFormat):
            return None
        mask = np.zeros(n, np.bool_)
        for tag in tags.equal:
            mask[sidecar.eq(found, tag.encode())] = True
        for literal in tags.prefixes:
            mask[sidecar.prefix(found, literal.encode())] = True
        return mask

    def open_pair(self, first: int, behind: int) -> _Pair | None:
        """The `.idx` at `first` and its data, `behind` being where the next segment begins; None if it vanished."""
        before = None
        for _ in range(LISTINGS_MAX):
            raw = self.files.read(self.files.path(first, "idx"))
            if raw is None and before is not None:
                return None
            pair, vanished = self._pair(first, behind, raw, final=before is not None and raw == before)
            if not vanished:
                return pair
            before = raw if raw is not None else b""
        return None

    def _pair(self, first: int, behind: int, raw: bytes | None, *, final: bool) -> tuple[_Pair | None, bool]:
        """The pair, and whether its data vanished: the `.idx` is to be read again then [S-343]."""
        if raw is None:
            rebuilt = self._rebuilt(first, behind, f"{self.files.path(first, 'idx')} is missing")
            return rebuilt, rebuilt is None and not final
        try:
            footer, gap, entries = self._index(first, behind, raw)
        except NotAFrame as error:
            return self._rebuilt(first, behind, f"{self.files.path(first, 'idx')} does not verify: {error}"), False
        if gap is not None:
            return _Pair(first, entries, footer, gap, None, ""), False
        if not live_of(entries).any():
            return _Pair(first, entries, footer, None, None, ""), False
        file = self._open_data(first, footer)
        if file is None and not final:
            return None, True
        path = self.files.path(first, "data", 0 if footer is None else footer.generation)
        return _Pair(first, entries, footer, None, file, "" if file else f"{path} is missing", path), False

    def _index(self, first: int, behind: int, raw: bytes) -> tuple[Footer | None, codec.GapSegment | None, Entries]:
        """What an `.idx` says; `NotAFrame` if it does not verify, by its footer or by the snapshot's row."""
        mask = self.files.segment_mask(first)
        footer = codec.read_footer(raw, mask)
        if footer is not None and footer.magic == codec.GAP:
            return footer, codec.read_gap(raw, mask), entries_in(b"", 0)
        if footer is not None:
            return footer, None, entries_in(raw, footer.n)
        row = self._rows.get(first)
        entries = entries_in(raw, min(len(raw) // codec.ENTRY_BYTES, behind - first))
        # The row of a sealed segment has the hash of its footer: without one nothing can match it.
        if row is not None and codec.claim_xxh3(entries[: row.count]) != row.idx_xxh3:
            raise NotAFrame(Why.BAD, 0, "not the entries that the snapshot knows")
        return None, None, entries

    def _open_data(self, first: int, footer: Footer | None) -> File | None:
        """The data file, hot if it is there [S-303]; None if it is not."""
        generation = 0 if footer is None else footer.generation
        hot = self.files.path(first, "data", generation)
        try:
            return self.files.fs.open(hot, "r")
        except FileNotFoundError:
            if footer is None or footer.magic != codec.COLD:
                return None
        return self.store.cold.open(self.id, first, generation)

    def _rebuilt(self, first: int, behind: int, detail: str) -> _Pair | None:
        """Entries made from `.data` alone [S-342]; what has neither frame nor entry is damage."""
        present = self.files.listing().get(first)
        n = behind - first
        if present is None or not present.generations or n < 1:
            return None if present is None else _Pair(first, _holes(n), None, None, None, detail)
        path = self.files.path(first, "data", present.generations[-1])
        data = self.files.read(path)
        if data is None:
            return None
        made = reindex(data, find_frames(data, self.files.mask, first, behind - 1), first, n, None)
        footer = Footer(codec.HOT, present.generations[-1], n)
        try:
            return _Pair(first, made.entries, footer, None, self.files.fs.open(path, "r"), detail, path)
        except FileNotFoundError:
            return None

    def first_at(self, ts: int) -> int:
        """A seq such that no record before it is as late as `ts`, and the next one is, unless files are damaged."""
        spans = list(self._spans(self._firsts()))
        low, high = 0, len(spans)
        while low < high:
            middle = (low + high) // 2
            times = self._times(*spans[middle])
            if times is None:  # it cannot tell, so nothing is left out because of it
                high = middle
            elif int(times[-1]) < ts:
                low = middle + 1
            else:
                high = middle
        if low == len(spans):
            return self.ckpt_seq + 1
        times = self._times(*spans[low])
        return spans[low][0] + (0 if times is None else int(np.searchsorted(times, np.uint64(ts))))

    def misses_prefix(self) -> bool:
        """Whether the snapshot knows live records in front of all segments there are: dropped since, or lost."""
        return self._missed(self._firsts(), self.floor) is not None

    def _missed(self, firsts: list[int], floor: int) -> int | None:
        """The first of them, about; None if there are none."""
        end = firsts[0] if firsts else self.ckpt_seq + 1
        known = (row for row in self.item.segments if row.live and row.first < end and row.first + row.count > floor)
        return next((max(row.first, floor) for row in known), None)

    def first_live(self, from_seq: int, min_ts: int = 0) -> int:
        """The first live record from a seq on, or where damage before it begins; `ckpt_seq + 1` if there is neither."""
        firsts = self._firsts()
        missed = self._missed(firsts, max(from_seq, self.floor))
        if missed is not None:
            return missed
        for first, behind in self._spans(firsts):
            if behind <= max(from_seq, self.floor):
                continue
            at = max(from_seq, self.floor, first)
            found = self._looked_up(first, behind)
            if found is None:
                return at
            entries = found[1][at - first : behind - first]
            live = np.flatnonzero(live_of(entries) & (entries["ts"] >= min_ts))
            if len(live):
                return at + int(live[0])
        return self.ckpt_seq + 1

    def _times(self, first: int, behind: int) -> npt.NDArray[np.uint64] | None:
        """The instants of a segment's entries, ascending; None where no valid `.idx` tells."""
        found = self._looked_up(first, behind)
        if found is None:
            return None
        gap, entries = found
        if gap is not None:
            return np.array([gap.ts], np.uint64)
        times: npt.NDArray[np.uint64] = entries["ts"][: behind - first].astype(np.uint64)
        return times if len(times) and bool((times[1:] >= times[:-1]).all()) else None

    def _looked_up(self, first: int, behind: int) -> tuple[codec.GapSegment | None, Entries] | None:
        """The entries of a segment without its data; None where no valid `.idx` tells."""
        raw = self.files.read(self.files.path(first, "idx"))
        if raw is None:
            return None
        try:
            _, gap, entries = self._index(first, behind, raw)
        except NotAFrame:
            return None
        return gap, entries

    def reaches_beyond(self) -> bool:
        """Whether there are segments behind `ckpt_seq`: then those before it may have been dropped."""
        try:
            return any(first > self.ckpt_seq for first in self.files.listing())
        except FileNotFoundError:
            return False

    def _firsts(self) -> list[int]:
        try:
            self.listed = [first for first in self.files.listing() if first <= self.ckpt_seq]
        except FileNotFoundError:
            self.listed = []
        return self.listed

    def _spans(self, firsts: list[int]) -> Iterator[tuple[int, int]]:
        return zip(firsts, [*firsts[1:], self.ckpt_seq + 1], strict=False)

    def _described(self, first: int, behind: int) -> SegmentView | None:
        raw = self.files.read(self.files.path(first, "idx"))
        if raw is None and first not in self.files.listing():
            return None
        damaged = SegmentView(first, behind - 1, True, "damaged", 0, 0, 0, 0, 0, 0)
        if raw is None:
            return damaged
        try:
            footer, gap, entries = self._index(first, behind, raw)
        except NotAFrame:
            return damaged
        if gap is not None:
            return SegmentView(first, first + gap.seqs - 1, True, "gap", 0, 1, 0, 0, gap.ts, gap.ts)
        n = len(entries)
        found, above = stats(entries), stats(entries[max(self.floor - first, 0) :])
        tier = "cold" if footer is not None and footer.magic == codec.COLD else "hot"
        generation = 0 if footer is None else footer.generation
        counts = (n, above.live, above.live_bytes, found.min_ts, found.max_ts)
        return SegmentView(first, first + n - 1, footer is not None, tier, generation, *counts)


class _Scan:
    """One pass over a topic; `at` is the next seq to tell about."""

    def __init__(self, topic: TopicView, high: int, wanted: Wanted) -> None:
        self._topic = topic
        self._high = high
        self._wanted = wanted
        self._firsts: list[int] = []
        self._ended = False

    def run(self, at: int) -> Iterator[Told]:
        listed = self._topic.listed
        self._firsts = self._topic._firsts() if listed is None else listed
        listings = 1 if listed is None else 0
        while at <= self._high and not self._ended:
            first, behind = self._around(at)
            pair = None if first is None else self._topic.open_pair(first, behind)
            if (pair is None or pair.last < at) and listings < LISTINGS_MAX:
                before, self._firsts = self._firsts, self._topic._firsts()
                listings += 1
                if self._firsts != before or (pair is None and first is not None):
                    _close(pair)
                    continue
            if pair is None or pair.last < at:
                unsealed = (
                    pair is not None and pair.footer is None and not pair.detail and behind > self._topic.ckpt_seq
                )
                _close(pair)
                if unsealed:
                    return
                yield from self._missing(at, min(behind - 1, self._high), prefix=first is None)
                at = behind
                continue
            try:
                last = min(pair.last, behind - 1, self._high)
                yield from self._pair(pair, at, last, final=behind > self._topic.ckpt_seq)
            finally:
                _close(pair)
            at, listings = last + 1, 1

    def _around(self, at: int) -> tuple[int | None, int]:
        """The segment that may hold a seq, None if all begin above it, and where the next one begins."""
        index = int(np.searchsorted(np.array(self._firsts, np.uint64), np.uint64(at), side="right"))
        behind = self._firsts[index] if index < len(self._firsts) else self._topic.ckpt_seq + 1
        return (self._firsts[index - 1] if index else None), behind

    def _missing(self, first: int, last: int, *, prefix: bool) -> Iterator[Gap]:
        """No file holds these seqs; records below the floor are not missed."""
        first = max(first, self._topic.floor)
        if first > last:
            return
        if prefix and (self._firsts or self._topic.reaches_beyond()):
            yield Gap(first, last, DROPPED, "no segment; dropped since the snapshot, or lost")
        else:
            yield Gap(first, last, DAMAGE, "no segment holds these seqs", absent=True)

    def _pair(self, pair: _Pair, low: int, high: int, *, final: bool) -> Iterator[Told]:
        if pair.gap is not None:
            if pair.gap.reason:
                yield Gap(low, high, pair.gap.reason)
            else:
                yield from self._silent(pair.gap, low, high)
            return
        entries = self._marked(pair.entries[low - pair.first : high + 1 - pair.first], low)
        # An unsealed segment below another one does not grow any more: what is wrong in it is damage [S-134].
        open_ended = pair.footer is None and final and not pair.detail
        picked = self._picked(pair)
        lost = entries["flags"] & codec.LOST != 0
        for start, end, reason in _runs(np.where(lost, codec.ovh(entries), 0)):
            if reason:
                told = DAMAGE if reason > 3 else reason
                yield Gap(low + start, low + end - 1, told, pair.detail if told == DAMAGE else "")
            else:
                at = low + start - pair.first
                part = None if picked is None else picked[at : at + end - start]
                yield from self._records(pair, low + start, entries[start:end], part, open_ended)
                if self._ended:
                    return

    def _silent(self, gap: codec.GapSegment, low: int, high: int) -> Iterator[Told]:
        """A gap segment of deleted seqs."""
        if self._wanted.deleted:
            for first in range(low, high + 1, DELETED_ROWS):
                seqs = np.arange(first, min(first + DELETED_ROWS, high + 1), dtype=np.uint64)
                yield Deleted(seqs, np.full(len(seqs), gap.ts, np.uint64))
        yield self._empty(low, high)

    def _marked(self, entries: Entries, low: int) -> Entries:
        """Entries with the delete marks that are not on disk."""
        inside = [(first, last) for first, last in self._wanted.pending if last >= low and first < low + len(entries)]
        if not inside:
            return entries
        entries = entries.copy()
        for first, last in inside:
            entries["flags"][max(first - low, 0) : last + 1 - low] |= np.uint8(codec.DELETED)
        return entries

    def _picked(self, pair: _Pair) -> npt.NDArray[np.bool_] | None:
        """Which entries of a segment may have a wanted tag; None for all of them."""
        if self._wanted.tags is None:
            return None
        if pair.footer is not None and not pair.detail:
            picked = self._topic.tagged(pair.first, len(pair.entries), self._wanted.tags)
            if picked is not None:
                return picked
        has_tag: npt.NDArray[np.bool_] = pair.entries["flags"] & codec.HAS_TAG != 0
        return has_tag

    def _records(
        self, pair: _Pair, first: int, entries: Entries, picked: npt.NDArray[np.bool_] | None, open_ended: bool
    ) -> Iterator[Told]:
        """Consecutive entries without holes."""
        end = first + len(entries)
        dated = self._wanted.dated(entries)
        wanted = live_of(entries) & dated
        below = max(self._topic.floor - first, 0)
        if self._wanted.deleted:
            dead = entries["flags"] & codec.DELETED != 0
            dead[:below] = True
            yield from _deleted(first, np.flatnonzero(dead & dated), entries)
        wanted[:below] = False
        if picked is not None:
            wanted &= picked
        at = np.flatnonzero(wanted)
        if pair.file is None:
            if len(at):
                yield from self._without_data(first, wanted, pair.detail)
            else:
                yield self._empty(first, end - 1)
            return
        low, is_cold = first, pair.footer is not None and pair.footer.magic == codec.COLD
        most = COLD_BATCH_BYTES if is_cold else BATCH_BYTES
        for chunk in chunks(entries, at, most) if picked is None else sparse_chunks(entries, at, most):
            last = first + int(chunk[-1]) if chunk[-1] != at[-1] else end - 1
            seqs = chunk.astype(np.uint64) + np.uint64(first)
            yield from self._chunk(pair, low, last, entries[taken(chunk)], seqs, open_ended)
            if self._ended:
                return
            low = last + 1
        if low < end:
            yield self._empty(low, end - 1)

    def _without_data(self, first: int, wanted: npt.NDArray[np.bool_], detail: str) -> Iterator[Told]:
        for start, end, live in _runs(wanted.astype(np.int64)):
            if live:
                yield Gap(first + start, first + end - 1, DAMAGE, detail, absent=True)
            else:
                yield self._empty(first + start, first + end - 1)

    def _chunk(
        self, pair: _Pair, low: int, high: int, entries: Entries, seqs: npt.NDArray[np.uint64], open_ended: bool
    ) -> Iterator[Told]:
        """The records of [low, high], whose entries are given: verified, and split where one is not."""
        assert pair.file is not None
        space = SPACE_BYTES if self._wanted.tags is None else PICKED_SPACE_BYTES
        for _ in range(2):  # what fails twice is damage [S-176]
            data, offsets = fetch(pair.file, entries, space)
            valid, gone = self._check(data, entries, offsets, seqs)
            if valid.all():
                break
        for start, end, bad in _runs((~valid).astype(np.int64)):
            first = low if start == 0 else int(seqs[start])
            last = high if end == len(seqs) else int(seqs[end]) - 1
            if bad and open_ended:
                self._ended = True
                if first < int(seqs[start]):
                    yield self._empty(first, int(seqs[start]) - 1)
                return
            if bad:
                detail = f"{pair.path} at {int(entries['offset'][start])}: the frame does not verify"
                yield from self._bad(first, last, seqs[start:end], detail)
                continue
            kept = taken(np.flatnonzero(~gone[start:end]) + start)
            if self._wanted.deleted and gone[start:end].any():
                dead = np.flatnonzero(gone[start:end]) + start
                yield Deleted(seqs[dead], entries["ts"][dead])
            yield Batch(first, last, seqs[kept], entries[kept], offsets[kept], data, self._topic.files.mask)

    def _bad(self, first: int, last: int, seqs: npt.NDArray[np.uint64], detail: str) -> Iterator[Told]:
        """Gaps over exactly the records that do not verify, and the dead ones around them."""
        damaged = np.zeros(last + 1 - first, np.int64)
        damaged[(seqs - np.uint64(first)).astype(np.int64)] = 1
        for start, end, bad in _runs(damaged):
            if bad:
                yield Gap(first + start, first + end - 1, DAMAGE, detail)
            else:
                yield self._empty(first + start, first + end - 1)

    def _check(
        self, data: bytes, entries: Entries, offsets: npt.NDArray[np.int64], seqs: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which entries have their frame at `offsets` of the data, and which of those are deleted by their byte."""
        sizes = entries["len"].astype(np.int64)
        if self._wanted.verify:
            valid = codec.frames_agree(data, offsets, sizes, seqs, self._topic.files.mask)
        else:
            valid = codec.heads_agree(data, offsets, sizes, seqs)
        if valid.all():
            return valid, codec.deleted_at(data, offsets, sizes)
        gone = np.zeros(len(entries), np.bool_)
        gone[valid] = codec.deleted_at(data, offsets[valid], sizes[valid])
        return valid, gone

    def _empty(self, first: int, last: int) -> Batch:
        none = np.empty(0, np.uint64)
        return Batch(first, last, none, np.empty(0, codec.IDX), none.astype(np.int64), b"", self._topic.files.mask)


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Maximal runs of one value: start, end, value."""
    if not len(values):
        return
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        yield start, end, int(values[start])


def chunks(entries: Entries, at: npt.NDArray[np.int64], most: int) -> Iterator[npt.NDArray[np.int64]]:
    """The positions `at` in stretches of at most so many bytes that one read fetches."""
    if not len(at):
        return
    starts = entries["offset"][at].astype(np.int64)
    ends = starts + entries["len"][at]
    breaks = np.flatnonzero(starts[1:] - ends[:-1] > SPACE_BYTES) + 1
    low = 0
    while low < len(at):
        fit = low + max(int(np.searchsorted(ends[low:], starts[low] + most, side="right")), 1)
        split = int(np.searchsorted(breaks, low, side="right"))
        high = min(fit, int(breaks[split])) if split < len(breaks) else fit
        yield at[low:high]
        low = high


def taken(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | slice:
    """Ascending positions to index with; a slice, which copies nothing, where they are all there."""
    if len(at) and int(at[-1]) - int(at[0]) + 1 == len(at):
        return slice(int(at[0]), int(at[-1]) + 1)
    return at


def sparse_chunks(entries: Entries, at: npt.NDArray[np.int64], most: int) -> Iterator[npt.NDArray[np.int64]]:
    """The positions `at` in stretches of at most so many bytes of records, however far apart they lie."""
    ends = entries["len"][at].astype(np.int64).cumsum()
    low, before = 0, 0
    while low < len(at):
        high = max(int(np.searchsorted(ends, before + most, side="right")), low + 1)
        yield at[low:high]
        low, before = high, int(ends[high - 1])


def fetch(file: File, entries: Entries, space: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The frames of entries in ascending order, and where each begins; not what lies between them if it is much."""
    starts = entries["offset"].astype(np.int64)
    ends = starts + entries["len"]
    if bool((starts[1:] == ends[:-1]).all()):  # mostly: one behind the other
        low, high = int(starts[0]), min(int(ends[-1]), file.size())
        return pread_all(file, high - low, low) if high > low else b"", starts - low
    ends = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(starts[1:] - ends[:-1] > space) + 1
    lows, highs = np.concatenate(([0], breaks)), np.concatenate((breaks - 1, [len(starts) - 1]))
    size = file.size()
    spans = zip(starts[lows].tolist(), ends[highs].clip(max=size).tolist(), strict=True)
    parts = [pread_all(file, high - low, low) if high > low else b"" for low, high in spans]
    places = np.concatenate(([0], np.cumsum([len(part) for part in parts])))[:-1]
    moves = np.repeat(places - starts[lows], np.diff(np.concatenate((lows, [len(starts)]))))
    return parts[0] if len(parts) == 1 else b"".join(parts), starts + moves


def _deleted(first: int, at: npt.NDArray[np.int64], entries: Entries) -> Iterator[Deleted]:
    if len(at):
        yield Deleted(at.astype(np.uint64) + np.uint64(first), entries["ts"][at])


def _holes(n: int) -> Entries:
    return np.frombuffer(codec.fillers(max(n, 0), 0, DAMAGE), codec.IDX)


def _read(fs: Fs, path: str) -> bytes | None:
    """A small file, None if it is not there."""
    try:
        file = fs.open(path, "r")
    except FileNotFoundError:
        return None
    try:
        return pread_all(file, file.size(), 0)
    finally:
        close_quietly(file)


def _close(pair: _Pair | None) -> None:
    if pair is not None and pair.file is not None:
        close_quietly(pair.file)
