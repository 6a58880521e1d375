"""The unsealed tail of a topic: its published records above `ckpt_seq`, located in WAL bytes [S-152].

    Tail       consecutive seqs as blocks of at most 4096 entries, and one item for each long gap
    WalFiles   which WAL file a location means, for all tails of an engine

Of each seq a block keeps 28 bytes: the 20-byte entry that the `.idx` will have (codec.segment), and where its WAL frame
is. `offset` is 0 until a checkpoint knows it; `len` is the size of the future `.data` frame, 8 bytes less than the WAL
frame. A deleted record keeps its `len` and `ovh` here: only the checkpoint that writes it makes it a filler [S-124],
and one that is under way when the delete comes has written its frame already [S-158].

    location, u64     bits 40-63  reference of a WAL file, 0 = in no WAL file
                      bits  0-39  offset of the frame in it; for reference 0 whatever the caller wants it to mean

A gap of more than 1024 seqs is one item, a shorter one is filler entries, each at the location of its Gap frame
[S-129, S-192]. `ts` does not decrease from seq to seq [S-104, S-123].

Floors are not known here: a caller asks from the first seq that they leave.

Answers are copies and stay what they are. No I/O, no clock; owner thread only.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.codec import frame, kernel, segment
from topics.codec.envelope import accounted_sizes
from topics.codec.frame import Buffer
from topics.codec.segment import DELETED, ENTRY_BYTES, HOPS_SHIFT, IDX, LOST

Entries = npt.NDArray[np.void]
SeqArray = npt.NDArray[np.uint64]
Locations = npt.NDArray[np.uint64]

OFFSET_BITS: Final = 40
REFERENCE_MAX: Final = 2**24 - 1
NOWHERE: Final = 0
"""Location of what lies in no WAL file."""
IN_MEMORY: Final = 1
"""The same of what a restart has to derive again; frames in memory are at this offset or above it."""

GAP_ENTRIES_MAX: Final = 1024
"""Longest gap that is kept, and written, as entries [S-129]."""
BLOCK_RECORDS: Final = 4096
INDEX_ROWS: Final = 16_384
"""Frames whose entries are made at once."""

WAL_FRAME_EXTRA: Final = frame.FRAME_BYTES_MIN - segment.FRAME_BYTES_MIN
"""Bytes that a record's WAL frame has more than its `.data` frame."""

_DEAD: Final = np.uint8(DELETED | LOST)
_LOST: Final = np.uint8(LOST)
_LIVE: Final = -1
_FEW: Final = 16
_ENTRY = struct.Struct("<IIQI")
_FLAGS_AT: Final = 16
_TS = struct.Struct("<Q")
_TEXT_LENGTHS = np.dtype("<u8")
"""node_len, tag_len and data_len of a WAL frame (u16, u16, u32), as one number."""
_TEXT_LENGTHS_AT: Final = 30


class WalFile(NamedTuple):
    """A WAL file of an engine: the key of its group and its number there."""

    group: str
    file_no: int


class EntryRun(NamedTuple):
    """Entries of consecutive seqs and where their frames are."""

    first: int
    entries: Entries
    locations: Locations


class GapRun(NamedTuple):
    """A long run of seqs without records: deleted for reason 0, else holes of that reason."""

    first: int
    seqs: int
    ts: int
    reason: int
    hops: int
    location: int = NOWHERE


class DeadRun(NamedTuple):
    """Consecutive dead seqs of one kind: deleted for reason 0, else holes of that reason."""

    first: int
    last: int
    reason: int
    hops: int = 0
    """Where they are known to be the same for all of them."""


class Live(NamedTuple):
    """How many live records there are, and their accounted bytes."""

    records: int
    bytes: int


class Eviction(NamedTuple):
    """What giving up the lowest live records frees: all of them lie below `floor`, the highest directly."""

    floor: int
    records: int
    bytes: int


class Marked(NamedTuple):
    """The records that a mark turned from live to dead, and their accounted bytes."""

    records: int
    bytes: int
    seqs: SeqArray


class WalFiles:
    """References of 24 bits to WAL files, so that a location fits 8 bytes.

    A released reference is given out again only when no unused one is left, the longest released first: a reader that
    still holds a location of a file that is gone does not find another file there.
    """

    __slots__ = ("_files", "_next", "_references", "_released")

    def __init__(self) -> None:
        self._references: dict[tuple[str, int], int] = {}
        self._files: dict[int, WalFile] = {}
        self._released: deque[int] = deque()
        self._next = 1

    def __len__(self) -> int:
        """How many files have a reference."""
        return len(self._files)

    def reference(self, group: str, file_no: int) -> int:
        """The reference of a file, a new one if it has none."""
        found = self._references.get((group, file_no))
        return self._give(WalFile(group, file_no)) if found is None else found

    def find(self, group: str, file_no: int) -> int | None:
        """The reference of a file, if it has one."""
        return self._references.get(WalFile(group, file_no))

    def file(self, reference: int) -> WalFile:
        """The file of a reference; `KeyError` when it was released: the file is gone."""
        return self._files[reference]

    def release(self, reference: int) -> None:
        """Forget a file that is gone, or about to be, and that no tail refers to."""
        del self._references[self._files.pop(reference)]
        self._released.append(reference)

    def _give(self, file: WalFile) -> int:
        if self._next <= REFERENCE_MAX:
            reference = self._next
            self._next += 1
        else:
            reference = self._released.popleft()
        self._references[file] = reference
        self._files[reference] = file
        return reference


def pack(reference: int, offset: int) -> int:
    """The location of an offset in a WAL file. Of scanned frames: `rows["offset"] + np.uint64(pack(reference, 0))`."""
    assert 0 <= reference <= REFERENCE_MAX
    assert 0 <= offset < 1 << OFFSET_BITS
    return reference << OFFSET_BITS | offset


def unpack(location: int) -> tuple[int, int]:
    """Reference and offset of a location."""
    return location >> OFFSET_BITS, location & (1 << OFFSET_BITS) - 1


def entries_from_frames(buffer: Buffer, rows: npt.NDArray[np.void]) -> tuple[bytes, int]:
    """Entries of the Append frames at `rows` (frame.ROW: one topic, consecutive seqs), and their accounted bytes.

    The frames are valid: they come from `frame.scan_frames`, or were encoded here.
    """
    assert bool((rows["type"] == frame.APPEND).all())
    assert bool((rows["topic_id"] == rows["topic_id"][:1]).all())
    assert bool((rows["seq"][1:] == rows["seq"][:-1] + np.uint64(1)).all())
    entries, accounted = entries_of_rows(buffer, rows)
    return entries.tobytes(), int(accounted.sum())


def entries_of_rows(buffer: Buffer, rows: npt.NDArray[np.void]) -> tuple[Entries, npt.NDArray[np.int64]]:
    """The same for each of the frames at ascending places, of any topics; what is no Append gets what means nothing.

    A whole file at once: a call costs as much as a few hundred frames.
    """
    if kernel.native is not None:
        made = _indexed(buffer, rows, kernel.native)
        if made is not None:
            return made
    offsets = rows["offset"].astype(np.int64)
    lengths = frame.gather(memoryview(buffer), offsets + _TEXT_LENGTHS_AT, _TEXT_LENGTHS)
    text = ((lengths & 0xFFFF) + (lengths >> 16 & 0xFFFF)).astype(np.int64)
    accounted = accounted_sizes(buffer, offsets + frame.HEADER_BYTES + text, (lengths >> 32).astype(np.int64))
    flags = rows["flags"].astype(np.int64)
    kept = flags & (frame.HAS_TAG | frame.HAS_NODE) | flags >> frame.HOPS_SHIFT << HOPS_SHIFT
    entries = np.zeros(len(rows), IDX)
    entries["len"] = rows["len"] - np.uint32(WAL_FRAME_EXTRA)
    entries["ts"] = rows["ts"]
    entries["flags_ovh"] = kept | entries["len"] - accounted << 8
    return entries, accounted


def _indexed(
    buffer: Buffer, rows: npt.NDArray[np.void], native: kernel.Native
) -> tuple[Entries, npt.NDArray[np.int64]] | None:
    """By the kernel, in pieces: bytes are copied while no other thread of the process runs."""
    entries, accounted = np.empty(len(rows), IDX), np.empty(len(rows), np.int64)
    for low in range(0, len(rows), INDEX_ROWS):
        high = min(low + INDEX_ROWS, len(rows))
        made = native.index_rows(buffer, rows[low:high].tobytes())
        if made is None:
            return None
        entries[low:high] = np.frombuffer(made[0], IDX)
        accounted[low:high] = np.frombuffer(made[1], np.int64)
    return entries, accounted


def wal_lengths(entries: Entries) -> npt.NDArray[np.uint32]:
    """Sizes of the WAL frames of entries, 0 for one without a frame."""
    sizes: npt.NDArray[np.uint32] = entries["len"]
    lengths: npt.NDArray[np.uint32] = sizes + (sizes != 0) * np.uint32(WAL_FRAME_EXTRA)
    return lengths


class Tail:
    """Consecutive seqs from `first` to `end` and what is known of each.

    Invariant: items follow each other without a space, none is empty, blocks hold at most `BLOCK_RECORDS`. Owner only.
    """

    __slots__ = ("_firsts", "_items", "_ts_before", "end", "first", "nbytes", "records")

    def __init__(self, first_seq: int) -> None:
        assert first_seq >= 1
        self.first = first_seq
        self.end = first_seq - 1
        """Highest seq held; `first - 1` when there is none."""
        self.records = 0
        """What is kept: entries, and one for each long gap [S-153]."""
        self.nbytes = 0
        """Bytes of the WAL frames of all records held, deleted ones too [S-153]."""
        self._items: list[_Block | GapRun] = []
        self._firsts: list[int] = []
        self._ts_before = 0
        """`ts` of the seq before `first`, 0 when not known."""

    def extend(self, entries: Buffer, locations: Sequence[int] | Locations) -> None:
        """Add the entries of the next seqs and the locations of their frames."""
        count = len(locations)
        assert len(entries) == count * ENTRY_BYTES
        if not count:
            return
        self.nbytes += _checked_frame_bytes(entries, self._last_ts())
        self.records += count
        added = _as_array(locations)
        block = self._items[-1] if self._items else None
        done = 0
        while done < count:
            if not isinstance(block, _Block) or len(block.locations) >= BLOCK_RECORDS:
                block = _Block(self.end + 1)
                self._items.append(block)
                self._firsts.append(block.first)
            taken = min(count - done, BLOCK_RECORDS - len(block.locations))
            whole = taken == count
            block.entries += entries if whole else entries[done * ENTRY_BYTES : (done + taken) * ENTRY_BYTES]
            block.locations += added if whole else added[done : done + taken]
            block.counted = None
            self.end += taken
            done += taken

    def take(self, other: Tail, base: int) -> None:
        """Take in the entries of the next seqs, made ahead in a tail of their own, whose locations count from `base`.

        It costs next to nothing per record. `other` is used up.
        """
        assert other.first == self.end + 1
        assert not other._items or _first_ts(other._items[0]) >= self._last_ts()
        for item in other._items:
            assert isinstance(item, _Block)
            item.own()
            locations = np.frombuffer(item.locations, np.uint64)
            locations += np.uint64(base)
        self._items += other._items
        self._firsts += other._firsts
        self.end = other.end
        self.records += other.records
        self.nbytes += other.nbytes
        other._items, other._firsts = [], []

    def append_gap(self, count: int, ts: int, reason: int, hops: int = 0, location: int = NOWHERE) -> None:
        """Add seqs without records: deleted for reason 0, else holes. `location` is that of the Gap frame [S-192].

        `ts` is that of the entry before the gap [S-123]; a tail that knows it takes its own.
        """
        assert count >= 1
        assert 0 <= reason <= 3
        assert 0 <= hops <= 8
        ts = self._last_ts() or ts
        if count <= GAP_ENTRIES_MAX:
            self.extend(segment.fillers(count, ts, reason, hops), [location] * count)
            return
        self._items.append(GapRun(self.end + 1, count, ts, reason, hops, location))
        self._firsts.append(self.end + 1)
        self.end += count
        self.records += 1

    def runs(self, lo: int, hi: int, most: int = BLOCK_RECORDS) -> Iterator[EntryRun | GapRun]:
        """What is held of [lo, hi], ascending, at most a block, or `most` entries, at a time.

        Marks set meanwhile show in what is still to come; the range itself has to stay in the tail.
        """
        lo, hi = max(lo, self.first), min(hi, self.end)
        while lo <= hi:
            assert self.first <= lo
            assert hi <= self.end
            item = self._items[self._index(lo)]
            low, high = lo - item.first, min(hi, _end(item)) + 1 - item.first
            if isinstance(item, _Block):
                high = min(high, low + most)
                yield item.copy(low, high)
            else:
                yield _part(item, low, high)
            lo = item.first + high

    def frozen(self) -> Tail:
        """A tail that stays what this one is now, for another thread too; what is long is shared until it changes."""
        copy = Tail(self.first)
        copy.end, copy.records, copy.nbytes, copy._ts_before = self.end, self.records, self.nbytes, self._ts_before
        copy._items = [item.twin() if isinstance(item, _Block) else item for item in self._items]
        copy._firsts = list(self._firsts)
        return copy

    def deleted_since(self, frozen: Tail) -> SeqArray:
        """Seqs that were marked as deleted after all that an earlier `frozen` of this tail holds."""
        found = [np.empty(0, np.uint64)]
        for then, now in zip(frozen._items, self._items, strict=False):
            if isinstance(then, _Block) and isinstance(now, _Block) and now.entries is not then.entries:
                assert then.first == now.first
                count = len(then.locations)
                marked = now.view(0, count)["flags"] & np.uint8(DELETED) & ~then.view(0, count)["flags"]
                found.append(np.flatnonzero(marked).astype(np.uint64) + np.uint64(now.first))
        return np.concatenate(found)

    def kept_through(self, is_kept: Callable[[int], bool]) -> int:
        """The highest seq whose location, and those of all before it, are kept; `first - 1` if not even the first is.

        Seqs lie in the log in their order, so what is kept comes first.
        """
        seqs = range(self.first, self.end + 1)
        return self.first - 1 + bisect_left(seqs, True, key=lambda seq: not is_kept(self._location(seq)))

    def _location(self, seq: int) -> int:
        item = self._items[self._index(seq)]
        return item.locations[seq - item.first] if isinstance(item, _Block) else item.location

    def live(self, lo: int, hi: int) -> Live:
        """Live records in [lo, hi] and their accounted bytes [S-157]."""
        records = size = 0
        for block, low, high in self._blocks(lo, hi):
            found = block.live(low, high)
            records += found.records
            size += found.bytes
        return Live(records, size)

    def lowest_live(self, from_seq: int) -> int | None:
        """The lowest live seq at or above `from_seq`."""
        for block, low, high in self._blocks(from_seq, self.end):
            if block.is_all_dead():
                continue
            for start, stop in _windows(low, high):
                found = np.flatnonzero(_live(block.view(start, stop)))
                if len(found):
                    return block.first + start + int(found[0])
        return None

    def evict(self, from_seq: int, need_records: int, need_bytes: int) -> Eviction:
        """How far the lowest live records from `from_seq` on must go to free both; all of them if that is not enough.

        Floors move over live records only [S-260, FLR-4]: without one, `floor` is `from_seq`.
        """
        floor, records, size = from_seq, 0, 0
        for block, low, high in self._blocks(from_seq, self.end):
            if low == 0 and len(block.locations) == BLOCK_RECORDS:
                whole = block.live(low, high)
                if whole.records < need_records - records or whole.bytes < need_bytes - size:
                    records += whole.records
                    size += whole.bytes
                    last = block.last_live(low, high)
                    floor = floor if last is None else last + 1
                    continue
            for start, stop in _windows(low, high):
                if records >= need_records and size >= need_bytes:
                    return Eviction(floor, records, size)
                taken, freed, last = block.lowest(start, stop, need_records - records, need_bytes - size)
                records += taken
                size += freed
                floor = last + 1 if taken else floor
        return Eviction(floor, records, size)

    def expired_through(self, ts_limit: int, from_seq: int = 0) -> int | None:
        """The highest live seq at or above `from_seq` with a `ts` below the limit [S-263]."""
        index = bisect_left(self._items, ts_limit, key=_first_ts) - 1
        while index >= 0 and _end(self._items[index]) >= from_seq:
            item = self._items[index]
            if isinstance(item, _Block):
                last = item.last_live(max(from_seq - item.first, 0), item.position_of_ts(ts_limit))
                if last is not None:
                    return last
            index -= 1
        return None

    def holes(self, lo: int, hi: int) -> list[DeadRun]:
        """Maximal runs of holes of one reason in [lo, hi] [S-125]."""
        return self._dead_runs(lo, hi, 1, 1)

    def dead_runs(self, lo: int, hi: int, at_least: int = 1) -> list[DeadRun]:
        """Maximal runs of dead seqs of one kind in [lo, hi], of that length: they may become gap segments [S-129]."""
        return self._dead_runs(lo, hi, at_least, 0)

    def mark_deleted(self, seqs: SeqArray) -> Marked:
        """Mark records as deleted; what is no live record of the tail stays as it is [S-124]. `seqs` are ascending."""
        assert seqs.dtype == np.uint64
        assert bool((seqs[1:] > seqs[:-1]).all())
        begin, end = np.searchsorted(seqs, np.array([self.first, self.end + 1], np.uint64)).tolist()
        size = 0
        changed = []
        while begin < end:
            item = self._items[self._index(int(seqs[begin]))]
            behind = int(np.searchsorted(seqs, np.uint64(_end(item)), side="right"))
            if isinstance(item, _Block):
                positions = (seqs[begin:behind] - np.uint64(item.first)).astype(np.int64)
                positions, freed = item.mark_deleted(positions)
                changed.append(positions.astype(np.uint64) + np.uint64(item.first))
                size += freed
            begin = behind
        return _marked(changed, size)

    def mark_few(self, seqs: list[int]) -> tuple[int, int]:
        """The same of a few, for which numpy would cost more than the work: how many were live, and their bytes."""
        records = size = 0
        begin, end = bisect_left(seqs, self.first), bisect_right(seqs, self.end)
        while begin < end:
            item = self._items[self._index(seqs[begin])]
            behind = bisect_right(seqs, _end(item), begin, end)
            if isinstance(item, _Block):
                marked, freed = item.mark_few(seqs[begin:behind])
                records += marked
                size += freed
            begin = behind
        return records, size

    def mark_lost(self, lo: int, hi: int, reason: int) -> Marked:
        """Make holes of the live records in [lo, hi]: their frames cannot be used [S-124, S-132]."""
        assert 1 <= reason <= 3
        size = 0
        changed = []
        for block, low, high in self._blocks(lo, hi):
            positions, freed, frame_bytes = block.mark_lost(low, high, reason)
            changed.append(positions.astype(np.uint64) + np.uint64(block.first))
            size += freed
            self.nbytes -= frame_bytes
        return _marked(changed, size)

    def drop_through(self, seq: int) -> None:
        """Forget every seq up to `seq`: segments hold them now. Above `end`, the tail starts anew behind `seq`."""
        if seq < self.first:
            return
        if seq >= self.end:
            self._restart(seq + 1, self._last_ts() if seq == self.end else 0)
            return
        index = self._index(seq)
        self._forget_first(index)
        item = self._items[index]
        low = seq + 1 - item.first
        self._forget(item, 0, low)
        self._ts_before = item.ts_at(low - 1) if isinstance(item, _Block) else item.ts
        if low == _size(item):
            index += 1
        elif isinstance(item, _Block):
            item.drop(low)
        else:
            self.records += 1
            self._items[index] = _part(item, low, item.seqs)
        del self._items[:index], self._firsts[:index]
        self.first = self._firsts[0] = seq + 1

    def cut_after(self, seq: int) -> Live:
        """Forget every seq above `seq`, and return what was live of them. Below `first`, the tail starts anew there."""
        live = self.live(seq + 1, self.end)
        if seq >= self.end:
            return live
        if seq < self.first:
            self._restart(seq + 1, self._ts_before if seq == self.first - 1 else 0)
            return live
        index = self._index(seq)
        for item in self._items[index + 1 :]:
            self._forget(item, 0, _size(item))
        del self._items[index + 1 :], self._firsts[index + 1 :]
        item = self._items[index]
        high = seq + 1 - item.first
        if high < _size(item):
            self._forget(item, high, _size(item))
            if isinstance(item, _Block):
                item.cut(high)
            else:
                self.records += 1
                self._items[index] = _part(item, 0, high)
        self.end = seq
        return live

    def relocate(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Frames are in the log now: first and last seq, and location, ascending; what is not held is passed over."""
        for first, last, location in places:
            first = max(first, self.first)
            while first <= min(last, self.end):
                index = self._index(first)
                item = self._items[index]
                high = min(last, _end(item)) + 1 - item.first
                if isinstance(item, _Block):
                    low = first - item.first
                    item.own()
                    item.locations[low:high] = array("Q", [location]) * (high - low)
                else:
                    self._items[index] = item._replace(location=location)
                first = item.first + high

    def oldest_location(self) -> int | None:
        """Location of the first frame or Gap that is in a WAL file [S-192]; it may lie inside its submission."""
        return next((location for location in self._file_starts() if location >> OFFSET_BITS), None)

    def oldest_locations(self) -> dict[int, int]:
        """The same for each WAL file that holds any, by reference, in the order of seqs.

        Files of several groups hold a tail that was recovered after the number of shards changed.
        """
        found: dict[int, int] = {}
        for location in self._file_starts():
            if location >> OFFSET_BITS:
                found.setdefault(location >> OFFSET_BITS, location)
        return found

    def _file_starts(self) -> Iterator[int]:
        """Locations, among them the first one in each WAL file."""
        for item in self._items:
            if isinstance(item, _Block):
                yield from item.file_starts()
            else:
                yield item.location

    def _index(self, seq: int) -> int:
        return bisect_right(self._firsts, seq) - 1

    def _last_ts(self) -> int:
        if not self._items:
            return self._ts_before
        item = self._items[-1]
        return item.ts_at(len(item.locations) - 1) if isinstance(item, _Block) else item.ts

    def _spans(self, lo: int, hi: int) -> Iterator[tuple[_Block | GapRun, int, int]]:
        """The items that hold a part of [lo, hi], and which positions in them: from the second to before the third."""
        lo, hi = max(lo, self.first), min(hi, self.end)
        index = self._index(lo)
        while lo <= hi:
            item = self._items[index]
            high = min(hi + 1 - item.first, _size(item))
            yield item, lo - item.first, high
            lo = item.first + high
            index += 1

    def _blocks(self, lo: int, hi: int) -> Iterator[tuple[_Block, int, int]]:
        return ((item, low, high) for item, low, high in self._spans(lo, hi) if isinstance(item, _Block))

    def _dead_runs(self, lo: int, hi: int, at_least: int, reason_min: int) -> list[DeadRun]:
        runs: list[DeadRun] = []
        last: DeadRun | None = None
        for item, low, high in self._spans(lo, hi):
            if isinstance(item, _Block):
                pieces = item.dead(low, high, at_least, reason_min)
            else:
                pieces = [(low, high, item.reason)]
            for start, stop, reason in pieces:
                if reason < reason_min:
                    continue
                run = DeadRun(item.first + start, item.first + stop - 1, reason)
                if last is not None and last.reason == reason and last.last + 1 == run.first:
                    last = run._replace(first=last.first)
                    continue
                if last is not None:
                    runs.append(last)
                last = run
        if last is not None:
            runs.append(last)
        return [run for run in runs if run.last - run.first + 1 >= at_least]

    def _forget(self, item: _Block | GapRun, low: int, high: int) -> None:
        """Take a part of an item out of the sums; any part of a gap is all of it."""
        if isinstance(item, _Block):
            self.records -= high - low
            self.nbytes -= _frame_bytes(item.view(low, high))
        else:
            self.records -= 1

    def _forget_first(self, count: int) -> None:
        """Take the first items out of the sums; what is left is summed up where that is less."""
        gone, left = self._items[:count], self._items[count:]
        if len(gone) <= len(left):
            for item in gone:
                self._forget(item, 0, _size(item))
            return
        blocks = [item for item in left if isinstance(item, _Block)]
        self.records = sum(len(block.locations) for block in blocks) + len(left) - len(blocks)
        self.nbytes = sum(_frame_bytes(block.view(0, len(block.locations))) for block in blocks)

    def _restart(self, first_seq: int, ts_before: int) -> None:
        self._items.clear()
        self._firsts.clear()
        self.first, self.end = first_seq, first_seq - 1
        self.records = self.nbytes = 0
        self._ts_before = ts_before


class _Block:
    """Entries and locations of consecutive seqs; positions count from `first`.

    Both arrays grow in place, so no numpy view of them may outlive a call: a growing array refuses to move then. A full
    block may share its arrays with that of a frozen tail; they are copied before they are changed.
    """

    __slots__ = ("counted", "entries", "first", "locations", "shared", "starts")

    def __init__(self, first: int) -> None:
        self.first = first
        self.entries = bytearray()
        self.locations = array("Q")
        self.counted: Live | None = None
        """Live records of the whole block, once counted."""
        self.shared = False
        self.starts: list[int] | None = None
        """What `file_starts` found in a full block, until it changes."""

    def twin(self) -> _Block:
        """A block that stays what this one is now."""
        twin = _Block(self.first)
        twin.counted = self.counted
        twin.shared = self.shared = len(self.locations) == BLOCK_RECORDS
        twin.entries = self.entries if self.shared else self.entries[:]
        twin.locations = self.locations if self.shared else self.locations[:]
        return twin

    def own(self) -> None:
        """Called before anything is changed but by adding to it, which no full block is."""
        self.starts = None
        if self.shared:
            self.entries, self.locations, self.shared = self.entries[:], self.locations[:], False

    def view(self, low: int, high: int) -> Entries:
        return np.frombuffer(self.entries, IDX, high - low, low * ENTRY_BYTES)

    def copy(self, low: int, high: int) -> EntryRun:
        locations = np.frombuffer(self.locations, np.uint64, high - low, low * 8)
        return EntryRun(self.first + low, self.view(low, high).copy(), locations.copy())

    def ts_at(self, position: int) -> int:
        ts: int = _TS.unpack_from(self.entries, position * ENTRY_BYTES + 8)[0]
        return ts

    def position_of_ts(self, ts_limit: int) -> int:
        """How many entries have a `ts` below the limit."""
        count = len(self.locations)
        if self.ts_at(count - 1) < ts_limit:
            return count
        return int(np.searchsorted(self.view(0, count)["ts"], np.uint64(ts_limit)))

    def live(self, low: int, high: int) -> Live:
        if high - low < len(self.locations):
            return _count(self.view(low, high))
        if self.counted is None:
            self.counted = _count(self.view(low, high))
        return self.counted

    def is_all_dead(self) -> bool:
        """Whether it is known that nothing is live: counted only when full, so that it stays known for long."""
        count = len(self.locations)
        return count == BLOCK_RECORDS and not self.live(0, count).records

    def last_live(self, low: int, high: int) -> int | None:
        """The highest live seq at the positions."""
        for start, stop in _windows(low, high):
            # The same windows, counted from the end.
            start, stop = low + high - stop, low + high - start
            found = np.flatnonzero(_live(self.view(start, stop)))
            if len(found):
                return self.first + start + int(found[-1])
        return None

    def lowest(self, low: int, high: int, need_records: int, need_bytes: int) -> tuple[int, int, int]:
        """As many of the live records at the positions, from the lowest, as free both: how many, bytes, the last."""
        if high - low <= _FEW:
            return self._lowest_of_few(low, high, need_records, need_bytes)
        view = self.view(low, high)
        positions = np.flatnonzero(_live(view))
        freed = np.cumsum(_accounted(view[positions]), dtype=np.int64)
        taken = max(need_records, int(np.searchsorted(freed, need_bytes)) + 1 if need_bytes > 0 else 0)
        taken = min(taken, len(positions))
        if not taken:
            return 0, 0, 0
        return taken, int(freed[taken - 1]), self.first + low + int(positions[taken - 1])

    def _lowest_of_few(self, low: int, high: int, need_records: int, need_bytes: int) -> tuple[int, int, int]:
        """The same, one by one: a full topic evicts about one record with every one that is written."""
        taken = freed = last = 0
        for position in range(low, high):
            if taken >= need_records and freed >= need_bytes:
                break
            _, size, _, word = _ENTRY.unpack_from(self.entries, position * ENTRY_BYTES)
            if not word & (DELETED | LOST):
                taken += 1
                freed += size - (word >> 8)
                last = self.first + position
        return taken, freed, last

    def dead(self, low: int, high: int, at_least: int, reason_min: int) -> list[tuple[int, int, int]]:
        """Runs of one kind of dead entries; shorter ones than asked for only where a neighbour may prolong them."""
        view = self.view(low, high)
        flags = view["flags"]
        if not (flags & (_LOST if reason_min else _DEAD)).any():
            return []
        kinds = np.where(flags & _LOST != 0, segment.ovh(view).astype(np.int64), 0)
        kinds[flags & _DEAD == 0] = _LIVE
        kinds[kinds < reason_min] = _LIVE
        starts = np.concatenate(([0], np.flatnonzero(kinds[1:] != kinds[:-1]) + 1))
        stops = np.append(starts[1:], high - low)
        wanted = (stops - starts >= at_least) | (starts == 0) | (stops == high - low)
        wanted &= kinds[starts] != _LIVE
        starts, stops = starts[wanted], stops[wanted]
        return list(zip((starts + low).tolist(), (stops + low).tolist(), kinds[starts].tolist(), strict=True))

    def file_starts(self) -> list[int]:
        """Locations whose WAL file is another one than that of the entry before."""
        if self.starts is not None:
            return self.starts
        locations = np.frombuffer(self.locations, np.uint64)
        references = locations >> np.uint64(OFFSET_BITS)
        starts = np.concatenate(([0], np.flatnonzero(references[1:] != references[:-1]) + 1))
        found: list[int] = locations[starts].tolist()
        self.starts = found if len(locations) == BLOCK_RECORDS else None
        return found

    def mark_deleted(self, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
        """Mark the live ones; which they are, and their accounted bytes."""
        self.own()
        view = self.view(0, len(self.locations))
        positions = positions[_live(view[positions])]
        view["flags"][positions] |= np.uint8(DELETED)
        freed = int(_accounted(view[positions]).sum(dtype=np.int64))
        self._uncount(len(positions), freed)
        return positions, freed

    def mark_few(self, seqs: list[int]) -> tuple[int, int]:
        """Mark the live ones of some seqs that are all here: how many they are, and their accounted bytes."""
        if self.shared:
            self.own()
        if kernel.native is not None:
            records, freed = kernel.native.mark(self.entries, self.first, seqs)
        else:
            records = freed = 0
            for seq in seqs:
                at = (seq - self.first) * ENTRY_BYTES
                _, size, _, word = _ENTRY.unpack_from(self.entries, at)
                if not word & (DELETED | LOST):
                    self.entries[at + _FLAGS_AT] |= DELETED
                    records += 1
                    freed += size - (word >> 8)
        self._uncount(records, freed)
        return records, freed

    def mark_lost(self, low: int, high: int, reason: int) -> tuple[npt.NDArray[np.int64], int, int]:
        """Make the live ones at the positions holes; which they are, their accounted bytes and WAL frame bytes."""
        self.own()
        view = self.view(low, high)
        positions = np.flatnonzero(_live(view))
        marked = view[positions]
        freed, frame_bytes = int(_accounted(marked).sum(dtype=np.int64)), _frame_bytes(marked)
        marked["len"] = 0
        marked["flags_ovh"] = marked["flags"] & np.uint8(0xF0) | np.uint32(LOST | reason << 8)
        view[positions] = marked
        self._uncount(len(positions), freed)
        return positions + low, freed, frame_bytes

    def drop(self, count: int) -> None:
        """Forget the first positions."""
        self.own()
        del self.entries[: count * ENTRY_BYTES]
        del self.locations[:count]
        self.first += count
        self.counted = None

    def cut(self, count: int) -> None:
        """Forget all but the first positions."""
        self.own()
        del self.entries[count * ENTRY_BYTES :]
        del self.locations[count:]
        self.counted = None

    def _uncount(self, records: int, size: int) -> None:
        if self.counted is not None:
            self.counted = Live(self.counted.records - records, self.counted.bytes - size)


def _size(item: _Block | GapRun) -> int:
    return len(item.locations) if isinstance(item, _Block) else item.seqs


def _end(item: _Block | GapRun) -> int:
    return item.first + _size(item) - 1


def _first_ts(item: _Block | GapRun) -> int:
    return item.ts_at(0) if isinstance(item, _Block) else item.ts


def _part(gap: GapRun, low: int, high: int) -> GapRun:
    return gap._replace(first=gap.first + low, seqs=high - low)


def _windows(low: int, high: int) -> Iterator[tuple[int, int]]:
    """[low, high) in growing pieces: what is looked for is mostly near, and may be far."""
    width = _FEW
    while low < high:
        stop = min(low + width, high)
        yield low, stop
        low = stop
        width *= 8


def _live(entries: Entries) -> npt.NDArray[np.bool_]:
    live: npt.NDArray[np.bool_] = entries["flags"] & _DEAD == 0
    return live


def _accounted(entries: Entries) -> npt.NDArray[np.uint32]:
    """Accounted sizes of entries with a frame."""
    sizes: npt.NDArray[np.uint32] = entries["len"] - segment.ovh(entries)
    return sizes


def _count(entries: Entries) -> Live:
    found = entries[_live(entries)]
    return Live(len(found), int(_accounted(found).sum(dtype=np.int64)))


def _frame_bytes(entries: Entries) -> int:
    sizes = np.ascontiguousarray(entries["len"])
    return int(sizes.sum(dtype=np.int64)) + WAL_FRAME_EXTRA * int(np.count_nonzero(sizes))


def _checked_frame_bytes(entries: Buffer, ts_before: int) -> int:
    """WAL frame bytes of new entries, which must be what a tail may hold [S-104, S-123]."""
    if len(entries) == ENTRY_BYTES:
        # A write of one record is the most frequent one; numpy would cost more than all the rest.
        offset, size, ts, word = _ENTRY.unpack_from(entries)
        assert ts >= ts_before
        assert not offset
        assert size or word & (DELETED | LOST)
        return size + WAL_FRAME_EXTRA if size else 0
    if kernel.native is not None:
        size = kernel.native.tail_bytes(entries, ts_before)
        assert size is not None, "entries of new records"
        return size
    view = np.frombuffer(entries, IDX)
    ts = view["ts"]
    assert int(ts[0]) >= ts_before
    assert bool((ts[1:] >= ts[:-1]).all())
    assert not view["offset"].any()
    assert bool((view["len"] != 0).all()) or not _live(view[view["len"] == 0]).any()
    return _frame_bytes(view)


def _as_array(locations: Sequence[int] | Locations) -> array[int]:
    if isinstance(locations, array):
        return locations
    if not isinstance(locations, np.ndarray):
        return array("Q", locations)
    found = array("Q")
    found.frombytes(np.ascontiguousarray(locations, np.uint64).tobytes())
    return found


def _marked(changed: list[SeqArray], size: int) -> Marked:
    seqs = np.concatenate(changed) if changed else np.empty(0, np.uint64)
    return Marked(len(seqs), size, seqs)
