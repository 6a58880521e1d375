"""Where a topic's records are and which of them live: segments, tail, and what is in memory only (06 §9).

    seq        1 ─────────────── ckpt_seq ─────────── log end ──────── head
    log        segments                   tail
    overlays              [ephemeral run]                [ephemeral run]

The log holds every seq that was logged; a run of `ephemeral` records is an *overlay* over the silent gap that stands
for it there, or ahead of the log's end, and is served as long as the process lives [S-102]. Copies that a router made
stand in the tail like logged records; their frames are in memory until they are logged or in a segment [S-196].

Marks are known here, floors are not: callers ask from the first seq that floors leave. Answers are copies. Owner only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from topics.codec import frame, project
from topics.codec.frame import Frame
from topics.codec.project import Projection
from topics.codec.segment import DELETED, HOPS_SHIFT, LOST, DataFrame, ovh
from topics.engine.recent import RecentFrames
from topics.model import Selector
from topics.storage.descriptor import Segment
from topics.storage.reindex import live_of, stats
from topics.storage.segments import TopicSegments
from topics.storage.segread import Absent, Stretch
from topics.storage.tags import SeqArray, TagIndex
from topics.storage.tail import (
    IN_MEMORY,
    OFFSET_BITS,
    DeadRun,
    Entries,
    EntryRun,
    Eviction,
    GapRun,
    Live,
    Locations,
    Tail,
    wal_lengths,
)
from topics.storage.tiers.blocks import ColdRead
from topics.storage.walread import Place, WalReader

CHUNK = 1024
NO_SEQS: SeqArray = np.empty(0, np.uint64)

Stored = Frame | DataFrame
"""A record's frame, from wherever it is kept: `seq`, `ts`, `node`, `tag`, `data`."""


class RamFrames:
    """Encoded frames in memory, addressed by an offset that only grows."""

    __slots__ = ("_chunks", "_starts", "end", "nbytes")

    def __init__(self, start: int = 0) -> None:
        self._chunks: list[bytes] = []
        self._starts: list[int] = []
        self.end = start
        self.nbytes = 0

    def copy(self) -> RamFrames:
        """What is here now, for another thread; the frames themselves are shared."""
        copied = RamFrames(self.end)
        copied._chunks, copied._starts, copied.nbytes = list(self._chunks), list(self._starts), self.nbytes
        return copied

    def append(self, frames: bytes) -> int:
        """Keep frames; the offset of the first."""
        start = self.end
        self._chunks.append(frames)
        self._starts.append(start)
        self.end += len(frames)
        self.nbytes += len(frames)
        return start

    def at(self, offset: int) -> tuple[bytes, int]:
        """The chunk that holds an offset, and where in it."""
        index = bisect_right(self._starts, offset) - 1
        return self._chunks[index], offset - self._starts[index]

    def drop_before(self, offset: int) -> None:
        """Forget chunks that end at or before an offset."""
        index = len(self._chunks) if offset >= self.end else bisect_right(self._starts, offset) - 1
        if index > 0:
            self.nbytes -= sum(map(len, self._chunks[:index]))
            del self._chunks[:index], self._starts[:index]


class Overlay:
    """A run of records that are in memory only."""

    __slots__ = ("frames", "is_hole", "tags", "tail")

    def __init__(self, first_seq: int, *, is_hole: bool = False) -> None:
        self.tail = Tail(first_seq)
        self.frames = RamFrames()
        self.tags = TagIndex()
        self.is_hole = is_hole
        """It is all that is left of a longer one."""

    def trim(self, below: int) -> None:
        """Forget everything below a seq."""
        tail = self.tail
        tail.drop_through(min(below - 1, tail.end))
        self.tags.drop_through(below - 1)
        if tail.end < tail.first:
            self.frames.drop_before(self.frames.end)
        for run in tail.runs(tail.first, tail.first):
            if isinstance(run, EntryRun):
                self.frames.drop_before(int(run.locations[0]))


def _holes(tail: Tail, lo: int, hi: int) -> Iterator[Overlay]:
    """The holes of [lo, hi], each run for itself."""
    for run in tail.runs(lo, hi):
        if isinstance(run, GapRun):
            if run.reason:
                yield _hole(run.first, run.seqs, run.ts, run.reason, run.hops)
            continue
        words = run.entries["flags_ovh"]
        starts = np.flatnonzero(np.diff(words, prepend=~words[:1]))
        for at, behind in zip(starts.tolist(), [*starts[1:].tolist(), len(words)], strict=True):
            flags = int(run.entries["flags"][at])
            if flags & LOST:
                ts, reason = int(run.entries["ts"][at]), int(words[at]) >> 8
                yield _hole(run.first + at, behind - at, ts, reason, flags >> HOPS_SHIFT)


def _hole(first: int, count: int, ts: int, reason: int, hops: int) -> Overlay:
    overlay = Overlay(first, is_hole=True)
    overlay.tail.append_gap(count, ts, reason, hops)
    return overlay


class Run(NamedTuple):
    """Entries of consecutive seqs and where their frames are."""

    first: int
    entries: Entries
    source: Segment | Overlay | None
    """None is the tail."""
    locations: Locations | None


class Ahead(NamedTuple):
    """A live record as retention sees it."""

    seq: int
    size: int
    ts: int


class Removed(NamedTuple):
    """Records that a mark turned from live to dead, and their accounted bytes."""

    records: int
    bytes: int


class Index:
    """The records of one topic. Invariant: tail and segments meet at `ckpt_seq`; overlays ascend and do not overlap."""

    def __init__(
        self,
        topic_id: int,
        first_seq: int,
        segments: TopicSegments | None,
        wal: WalReader | None,
        recent: RecentFrames | None = None,
    ) -> None:
        self.topic_id = topic_id
        self.segments = segments
        self.tail = Tail(first_seq)
        self.overlays: list[Overlay] = []
        self._wal = wal
        self._recent = recent
        self._tags = TagIndex()
        """Of the tail, and of the active segment once it was asked for."""
        self._active_tagged = segments is None or segments.active is None
        self.derived = RamFrames(IN_MEMORY)
        """Frames of the tail that are in no log."""
        self._derived_runs: list[tuple[int, int]] = []
        """The last seq of each batch of them, and where it begins."""

    @property
    def ckpt_seq(self) -> int:
        """Highest seq that segments hold durably."""
        return self.tail.first - 1

    @property
    def end(self) -> int:
        """The highest seq there is anything about."""
        return max(self.tail.end, self.overlays[-1].tail.end if self.overlays else 0)

    @property
    def is_logged(self) -> bool:
        """Whether the log or segments hold anything of this topic."""
        segments = self.segments is not None and bool(self.segments.segments)
        return segments or self.tail.records > 0

    @property
    def is_partly_in_memory(self) -> bool:
        """Whether there are records that no restart finds again."""
        return any(overlay.tail.first <= overlay.tail.end for overlay in self.overlays)

    @property
    def is_miscounted(self) -> bool:
        """Whether an index was found damaged since everything was counted: other records live than one thought."""
        return self.segments is not None and self.segments.reader.miscounted

    def note_counted(self) -> None:
        """Everything was counted just now."""
        if self.segments is not None:
            self.segments.reader.miscounted = False

    # -- adding ------------------------------------------------------------------------------------------------------

    def extend(self, entries: bytes, locations: Sequence[int] | Locations, tags: Sequence[bytes | str | None]) -> None:
        """Add logged records behind the log's end."""
        first = self.tail.end + 1
        self.tail.extend(entries, locations)
        self._tags.add(first, tags)

    def take(self, ready: Tail, base: int, tags: Iterable[tuple[int, Sequence[bytes | None]]]) -> None:
        """Add logged records behind the log's end that were made ready before; their tags follow with `tag_some`."""
        self.tail.take(ready, base)
        for first, some in tags:
            self._tags.add_later(first, some)

    def tag_some(self, most: int) -> bool:
        """Find a few more records by tag; whether others are due. Who asks by tag finds all of them anyhow."""
        return self._tags.catch_up(most)

    def extend_in_memory(
        self, first: int, entries: bytes, offsets: Sequence[int], tags: Sequence[str | None], frames: bytes
    ) -> None:
        """Add records that are in memory only; offsets count within `frames`."""
        overlay = self._overlay(first)
        base = overlay.frames.append(frames)
        overlay.tail.extend(entries, [base + offset for offset in offsets])
        overlay.tags.add(first, tags)

    def extend_derived(
        self, entries: bytes, offsets: Sequence[int], tags: Sequence[bytes | str | None], frames: bytes
    ) -> None:
        """Add records to the tail whose frames are in memory only; offsets count within `frames`."""
        base = self.derived.append(frames)
        self.extend(entries, [base + offset for offset in offsets], tags)
        self._derived_runs.append((self.tail.end, base))

    def derived_frame(self, location: int) -> bytes:
        """The bytes of a frame that is in memory only."""
        frames, at = self.derived.at(location)
        return frames[at : at + 4 + int.from_bytes(frames[at : at + 4], "little")]

    def forget_derived(self, through: int) -> None:
        """The log or segments have everything up to `through` now."""
        gone = bisect_right(self._derived_runs, (through, 1 << 63))
        del self._derived_runs[:gone]
        if self._derived_runs:
            self.derived.drop_before(self._derived_runs[0][1])
        elif gone:
            self.derived = RamFrames(IN_MEMORY)

    def append_gap_in_memory(self, first: int, count: int, ts: int, reason: int, hops: int) -> None:
        """Add seqs without records where records are in memory only."""
        overlay = self._overlay(first)
        overlay.tail.append_gap(count, ts, reason, hops)

    def _overlay(self, first: int) -> Overlay:
        """The overlay whose next seq is `first`, a new one if there is none."""
        overlay = self.overlays[-1] if self.overlays else None
        if overlay is None or overlay.tail.end + 1 != first or overlay.tail.end <= self.tail.end:
            overlay = Overlay(first)
            self.overlays.append(overlay)
        return overlay

    def trim_overlays(self, below: int, told_from: int) -> None:
        """Let go of what is dead in front of every overlay: nothing below `below` is live.

        Holes from `told_from` on stay, for readers are still told of them [TRM-2].
        """
        kept: list[Overlay] = []
        for overlay in self.overlays:
            if overlay.tail.first < below and not overlay.is_hole:
                kept += _holes(overlay.tail, max(overlay.tail.first, told_from), below - 1)
                overlay.trim(below)
            # The newest stays, empty or not: its end is where the topic is.
            dead_below = told_from if overlay.is_hole else below
            if overlay.tail.end >= dead_below or overlay is self.overlays[-1]:
                kept.append(overlay)
        self.overlays = kept

    # -- looking -----------------------------------------------------------------------------------------------------

    def walk(self, lo: int, hi: int, most: int = CHUNK) -> Iterator[Run | DeadRun]:
        """Everything known of [lo, hi], ascending, in pieces; `most`: of how many entries."""
        most = min(most, CHUNK)
        for part, low, high in self._parts(lo, hi):
            if isinstance(part, Segment):
                yield from self._walk_segment(part, low, high, most)
            else:
                tail = part.tail
                for run in tail.runs(low, high, most):
                    if isinstance(run, GapRun):
                        yield DeadRun(run.first, run.first + run.seqs - 1, run.reason, run.hops)
                    else:
                        source = part if isinstance(part, Overlay) else None
                        yield Run(run.first, run.entries, source, run.locations)

    def _walk_segment(self, segment: Segment, low: int, high: int, most: int = CHUNK) -> Iterator[Run | DeadRun]:
        assert self.segments is not None
        if segment.gap is not None:
            yield DeadRun(low, high, segment.gap.reason, segment.gap.hops)
            return
        for first in range(low, high + 1, most):
            last = min(first + most - 1, high)
            with self.segments.entries(segment) as entries:
                copied = entries[first - segment.first : last + 1 - segment.first].copy()
            yield Run(first, copied, segment, None)

    def _parts(self, lo: int, hi: int) -> Iterator[tuple[Segment | Overlay | Index, int, int]]:
        for overlay in self.overlays:
            first, end = overlay.tail.first, overlay.tail.end
            if end < lo or end < first:
                continue
            if first > hi:
                break
            if lo < first:
                yield from self._logged(lo, first - 1)
            yield overlay, max(lo, first), min(hi, end)
            lo = end + 1
            if lo > hi:
                return
        yield from self._logged(lo, hi)

    def _logged(self, lo: int, hi: int) -> Iterator[tuple[Segment | Index, int, int]]:
        if self.segments is not None and lo <= min(hi, self.ckpt_seq):
            for segment in self.segments.between(lo, min(hi, self.ckpt_seq)):
                yield segment, max(lo, segment.first), min(hi, segment.last)
        low, high = max(lo, self.tail.first), min(hi, self.tail.end)
        if low <= high:
            yield self, low, high

    def live(self, lo: int, hi: int) -> Live:
        """Live records in [lo, hi] and their accounted bytes [S-157]."""
        records = size = 0
        for part, low, high in self._parts(lo, hi):
            if isinstance(part, Segment):
                found = self._live_in(part, low, high)
            else:
                found = part.tail.live(low, high)
            records += found.records
            size += found.bytes
        return Live(records, size)

    def _live_in(self, segment: Segment, low: int, high: int) -> Live:
        assert self.segments is not None
        if segment.gap is not None or not segment.live:
            return Live(0, 0)
        if low == segment.first and high == segment.last:
            return Live(segment.live, segment.live_bytes)
        with self.segments.entries(segment) as entries:
            found = stats(entries[low - segment.first : high + 1 - segment.first])
        return Live(found.live, found.live_bytes)

    def ahead(self, from_seq: int, hi: int, count: int) -> list[Ahead]:
        """The lowest live records at or above `from_seq`, at most `count` of them, all if there are fewer."""
        found: list[Ahead] = []
        for run in self._runs_with_live(from_seq, hi, count):
            found += _live_ahead(run)
            if len(found) >= count:
                return found
        return found

    def lowest(self, from_seq: int, hi: int, records: int, nbytes: int) -> Eviction:
        """The lowest live records: at least so many, with at least so many bytes; all if there are fewer.

        A sealed segment that goes as a whole costs nothing, other entries next to nothing.
        """
        taken = freed = 0
        last: int | Segment = from_seq - 1
        for part, low, high in self._parts(from_seq, hi):
            if taken >= records and freed >= nbytes:
                break
            if isinstance(part, Segment):
                whole = self._live_in(part, low, high)
                if records - taken > whole.records or nbytes - freed > whole.bytes:
                    taken, freed, last = taken + whole.records, freed + whole.bytes, part if whole.records else last
                    continue
            for run in self._runs_with_live(low, high, CHUNK):
                live = np.flatnonzero(live_of(run.entries))
                sizes = np.cumsum(run.entries["len"][live].astype(np.int64) - ovh(run.entries[live]))
                need = max(records - taken, int(np.searchsorted(sizes, nbytes - freed)) + 1 if nbytes > freed else 0)
                if need <= 0:
                    break
                if not len(live):
                    continue
                at = min(need, len(live)) - 1
                taken, freed, last = taken + at + 1, freed + int(sizes[at]), run.first + int(live[at])
                if taken >= records and freed >= nbytes:
                    break
        return Eviction(self._last_live(last) + 1, taken, freed)

    def _last_live(self, at: int | Segment) -> int:
        """A seq, or that of the last live record of a segment."""
        if isinstance(at, int):
            return at
        assert self.segments is not None
        with self.segments.entries(at) as entries:
            return at.first + int(np.flatnonzero(live_of(entries))[-1])

    def live_from(self, from_seq: int, hi: int, count: int) -> list[int]:
        """The lowest live seqs at or above `from_seq`: at least `count` of them, all if there are fewer."""
        found: list[int] = []
        for run in self._runs_with_live(from_seq, hi, count):
            found += (np.flatnonzero(live_of(run.entries)) + run.first).tolist()
            if len(found) >= count:
                return found
        return found

    def _runs_with_live(self, from_seq: int, hi: int, most: int) -> Iterator[Run]:
        """Entries in which something may live, in pieces of `most`; what is known to be dead is jumped over."""
        most = min(most, CHUNK)
        for part, low, high in self._parts(from_seq, hi):
            if isinstance(part, Segment):
                if not part.live or part.gap is not None:
                    continue
                runs: Iterator[Run | DeadRun] = self._walk_segment(part, low, high, most)
            else:
                start = part.tail.lowest_live(low)
                if start is None or start > high:
                    continue
                runs = self._runs_of(part.tail, start, high, most)
            yield from (run for run in runs if isinstance(run, Run))

    def _runs_of(self, tail: Tail, low: int, high: int, most: int = CHUNK) -> Iterator[Run | DeadRun]:
        for run in tail.runs(low, high, most):
            if isinstance(run, EntryRun):
                yield Run(run.first, run.entries, None, run.locations)

    def expired_through(self, ts_limit: int, from_seq: int, hi: int) -> int | None:
        """The highest live seq in [from_seq, hi] with a `ts` below the limit [S-263]."""
        found = [overlay.tail.expired_through(ts_limit, from_seq) for overlay in self.overlays]
        found.append(self.tail.expired_through(ts_limit, from_seq))
        if self.segments is not None:
            found.append(self._expired_in_segments(ts_limit, from_seq))
        return max((seq for seq in found if seq is not None and seq <= hi), default=None)

    def _expired_in_segments(self, ts_limit: int, from_seq: int) -> int | None:
        assert self.segments is not None
        segments = self.segments
        chosen = [one for one in segments.between(from_seq, self.ckpt_seq) if one.gap is None and one.live]
        at = bisect_left(chosen, ts_limit, key=lambda one: segments.ts_range(one)[0]) - 1
        for one in reversed(chosen[: at + 1]):
            with segments.entries(one) as entries:
                end = int(np.searchsorted(entries["ts"], np.uint64(ts_limit)))
                low = max(from_seq - one.first, 0)
                live = np.flatnonzero(live_of(entries[low:end])) if end > low else NO_SEQS
                if len(live):
                    return one.first + low + int(live[-1])
        return None

    def first_at(self, ts: int, from_seq: int, hi: int) -> int:
        """The first seq in [from_seq, hi] with a `ts` at or above `ts`, `hi + 1` if there is none."""
        for part, low, high in self._parts(from_seq, hi):
            if isinstance(part, Segment) and self.segments is not None:
                if part.gap is not None or self.segments.ts_range(part)[1] < ts:
                    continue
                runs: Iterator[Run | DeadRun] = self._walk_segment(part, low, high)
            else:
                assert not isinstance(part, Segment)
                runs = self._runs_of(part.tail, low, high)
            for run in runs:
                if isinstance(run, Run) and int(run.entries["ts"][-1]) >= ts:
                    return run.first + int(np.searchsorted(run.entries["ts"], np.uint64(ts)))
        return hi + 1

    def last_ts(self) -> int:
        """`ts` of the newest seq, 0 if nothing is known of any."""
        best = 0
        if self.overlays and self.overlays[-1].tail.end >= self.overlays[-1].tail.first:
            best = _tail_ts(self.overlays[-1].tail)
        if self.tail.end >= self.tail.first:
            best = max(best, _tail_ts(self.tail))
        if not best and self.segments is not None and self.segments.segments:
            last = self.segments.segments[-1]
            best = last.gap.ts if last.gap is not None else self.segments.ts_range(last)[1]
        return best

    # -- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, run: Run, positions: Sequence[int], cold: ColdRead) -> list[Stored | Absent]:
        """The frames of live records at ascending positions of a run [S-173]; `NeedsBlocks` if they are too far away.

        `cold` is what the caller has of the cold tier already; it tries again with the same.
        """
        if isinstance(run.source, Segment):
            assert self.segments is not None
            seqs = np.asarray(positions, np.uint64) + np.uint64(run.first)
            return list(self.segments.read(run.source, seqs, cold))
        assert run.locations is not None
        if isinstance(run.source, Overlay):
            frames = run.source.frames
            return [frame.fields(*frames.at(int(run.locations[at]))) for at in positions]
        return self._fetch_logged(run, run.locations, positions)

    def frames(self, seqs: Sequence[int], cold: ColdRead) -> list[Stored | Absent]:
        """The frames of records by their ascending seqs; what is not there any more is `GONE`. See `fetch`."""
        found: list[Stored | Absent] = []
        at = 0
        while at < len(seqs):
            behind = at + 1
            while behind < len(seqs) and seqs[behind] == seqs[behind - 1] + 1:
                behind += 1
            found += self._frames_in(seqs[at], seqs[behind - 1], cold)
            at = behind
        return found

    def places_in_memory(self, seqs: Sequence[int]) -> list[tuple[bytes, int]] | None:
        """Buffers and offsets of the frames of records by their ascending seqs; None unless all of them are here."""
        if self._recent is None or not seqs:
            return None
        found = self._recent.find_all(self.topic_id, seqs)
        return None if None in found else cast("list[tuple[bytes, int]]", found)

    def run_in_memory(self, first: int, count: int) -> list[tuple[bytes, bytes]] | None:
        """Buffers of records in a row and where in each their frames begin; None unless all of them are here."""
        return None if self._recent is None else self._recent.run(self.topic_id, first, count)

    def is_cold(self, seq: int) -> bool:
        """Whether the frame of a record is in the cold tier."""
        found = None if self.segments is None or seq > self.ckpt_seq else self.segments.find(seq)
        return found is not None and found.cold

    def _frames_in(self, first: int, last: int, cold: ColdRead) -> list[Stored | Absent]:
        found: list[Stored | Absent] = [Absent.GONE] * (last - first + 1)
        for run in self.walk(first, last):
            if isinstance(run, Run):
                positions = np.flatnonzero(live_of(run.entries)).tolist()
                fetched = self.fetch(run, positions, cold) if positions else ()
                for position, stored in zip(positions, fetched, strict=True):
                    found[run.first - first + position] = stored
        return found

    def project(self, run: Run, low: int, high: int, wanted: Projection, cold: ColdRead) -> list[bytes] | None:
        """Live records at the positions from `low` to below `high` as JSON; None: fetch them one by one."""
        if isinstance(run.source, Segment):
            assert self.segments is not None
            return self.segments.reader.project(run.source, run.first + low, run.entries[low:high], wanted, cold)
        if run.source is not None or self._recent is None:
            return None
        return _rendered(self._recent.run(self.topic_id, run.first + low, high - low), wanted)

    def page(
        self, first: int, most: int, max_bytes: int, wanted: Projection, cold: ColdRead
    ) -> tuple[bytes, int, int] | None:
        """Live records in a row of one sealed segment as JSON, how many, their accounted bytes; None: walk."""
        segment = self._sealed_at(first)
        if segment is None:
            return None
        assert self.segments is not None
        return self.segments.reader.page(segment, first, most, max_bytes, wanted, cold)

    def stretch(self, first: int, most: int) -> tuple[Segment, Stretch] | None:
        """Live records in a row from `first` on, of one sealed segment, and which it is; None: walk."""
        segment = self._sealed_at(first)
        if segment is None:
            return None
        assert self.segments is not None
        found = self.segments.reader.stretch(segment, first, most)
        return None if found is None else (segment, found)

    def _sealed_at(self, seq: int) -> Segment | None:
        """The segment that holds a seq, if nothing but segments has to be looked at."""
        if self.segments is None or self.overlays or seq > self.ckpt_seq:
            return None
        return self.segments.find(seq)

    def newest(self, first: int, last: int, wanted: Projection, max_bytes: int) -> list[bytes] | None:
        """Live records in a row up to the end of the log as JSON, if they are in memory and few enough [A-13]."""
        if self._recent is None or self.overlays or last != self.tail.end:
            return None
        found = self._recent.run(self.topic_id, first, last - first + 1)
        if found is None or (len(found[0][0]) if len(found) == 1 else sum(len(one[0]) for one in found)) > max_bytes:
            return None
        return _rendered(found, wanted)

    def _fetch_logged(self, run: Run, locations: Locations, positions: Sequence[int]) -> list[Stored | Absent]:
        """Frames of the tail: from memory where they are recent, else from the WAL."""
        assert self._wal is not None
        seqs = [run.first + at for at in positions]
        recent = self._recent.find_all(self.topic_id, seqs) if self._recent is not None else [None] * len(seqs)
        found: list[Stored | Absent] = [Absent.UNREADABLE if one is None else frame.fields(*one) for one in recent]
        missing = [number for number, one in enumerate(recent) if one is None]
        for number in missing:
            location = int(locations[positions[number]])
            if IN_MEMORY <= location < 1 << OFFSET_BITS:
                found[number] = frame.fields(*self.derived.at(location))
        missing = [number for number in missing if found[number] is Absent.UNREADABLE]
        if missing:
            chosen = np.asarray(positions)[missing]
            places = (locations[chosen].tolist(), wal_lengths(run.entries[chosen]).tolist())
            lost = map(Place, [seqs[number] for number in missing], *places)
            read = iter(self._wal.frames(self.topic_id, list(lost)))
            for at, one in enumerate(found):
                if one is Absent.UNREADABLE:
                    found[at] = next(read) or Absent.UNREADABLE
        return found

    # -- deleting ----------------------------------------------------------------------------------------------------

    def tagged(self, match: Selector, lo: int, hi: int, *, again: bool = False) -> SeqArray:
        """Seqs in [lo, hi] of records with a matching tag, ascending; dead ones may be among them [S-188].

        `again` looks into segments without a live record too.
        """
        found = [_matching(self._log_tags(), match)]
        if self.segments is not None:
            for segment in self.segments.between(lo, min(hi, self.ckpt_seq)):
                if segment.sealed and segment.gap is None and (segment.live or segment.unindexed or again):
                    look = self.segments.tagged if match.kind == "Eq" else self.segments.tagged_prefix
                    found.append(look(segment, match.value))
        found += [_matching(overlay.tags, match) for overlay in self.overlays]
        seqs = np.unique(np.concatenate(found))
        begin, end = np.searchsorted(seqs, np.array([lo, hi + 1], np.uint64)).tolist()
        return seqs[begin:end]

    def _log_tags(self) -> TagIndex:
        if not self._active_tagged and self.segments is not None:
            tags = TagIndex()
            tags.update(self.segments.active_tags())
            tags.update(self._tags.between(self.tail.first, 2**64 - 1))
            self._tags, self._active_tagged = tags, True
        return self._tags

    def live_among(self, seqs: SeqArray) -> Live:
        """How many of ascending seqs are live."""
        records = size = 0
        if not len(seqs):
            return Live(0, 0)
        for run in self.walk(int(seqs[0]), int(seqs[-1])):
            if isinstance(run, Run):
                bounds = np.array([run.first, run.first + len(run.entries)], np.uint64)
                begin, end = np.searchsorted(seqs, bounds).tolist()
                if begin < end:
                    found = stats(run.entries[(seqs[begin:end] - np.uint64(run.first)).astype(np.int64)])
                    records += found.live
                    size += found.live_bytes
        return Live(records, size)

    def live_of(self, seqs: SeqArray) -> set[int]:
        """Those of ascending seqs that are live."""
        found: set[int] = set()
        if not len(seqs):
            return found
        for run in self.walk(int(seqs[0]), int(seqs[-1])):
            if isinstance(run, Run):
                bounds = np.array([run.first, run.first + len(run.entries)], np.uint64)
                begin, end = np.searchsorted(seqs, bounds).tolist()
                chosen = seqs[begin:end]
                live = live_of(run.entries[(chosen - np.uint64(run.first)).astype(np.int64)])
                found.update(chosen[live].tolist())
        return found

    def mark_deleted(self, seqs: SeqArray, *, again: bool = False) -> Removed:
        """Mark ascending seqs deleted; those that are not live stay as they are [S-158].

        `again` is for replay: marks found on disk are written once more.
        """
        records = size = 0
        for overlay in self.overlays:
            marked = overlay.tail.mark_deleted(seqs)
            records += marked.records
            size += marked.bytes
        marked = self.tail.mark_deleted(seqs)
        records += marked.records
        size += marked.bytes
        below = seqs[: int(np.searchsorted(seqs, np.uint64(self.tail.first)))]
        if self.segments is not None and len(below):
            removed = self.segments.mark_deleted(below, again=again)
            records += removed.records
            size += removed.bytes
        return Removed(records, size)

    def mark_few(self, seqs: list[int], *, again: bool = False) -> Removed:
        """The same of a few."""
        records = size = 0
        for tail in (*(overlay.tail for overlay in self.overlays), self.tail):
            marked, freed = tail.mark_few(seqs)
            records += marked
            size += freed
        if self.segments is not None and seqs and seqs[0] < self.tail.first:
            below = np.array([seq for seq in seqs if seq < self.tail.first], np.uint64)
            removed = self.segments.mark_deleted(below, again=again)
            records += removed.records
            size += removed.bytes
        return Removed(records, size)

    def attach(self, segments: Sequence[Segment]) -> None:
        """Take over sealed segments behind everything there is [S-288]."""
        assert self.segments is not None
        assert not self.tail.records, "what is in the tail comes first"
        self.segments.attach(segments)
        self.tail.drop_through(segments[-1].last)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpointed(self, upper: int) -> None:
        """Segments hold everything up to `upper` now: the tail begins behind it."""
        self.tail.drop_through(upper)
        self.forget_derived(upper)
        assert self.segments is not None
        active = self.segments.active
        sealed_end = active.first - 1 if active is not None else self.segments.end - 1
        if self._active_tagged:
            self._tags.drop_through(min(sealed_end, upper))
        else:
            self._tags.drop_through(upper)


def _rendered(found: list[tuple[bytes, bytes]] | None, wanted: Projection) -> list[bytes] | None:
    """Frames in memory as JSON; None where that takes a closer look, or there are none."""
    if found is None:
        return None
    pieces: list[bytes] = []
    for frames, offsets in found:
        made = project.run_of_wal(frames, offsets, wanted)
        if made is None:
            return None
        pieces += made
    return pieces


def _matching(tags: TagIndex, match: Selector) -> SeqArray:
    return tags.eq(match.value) if match.kind == "Eq" else tags.prefix(match.value)


def _live_ahead(run: Run) -> list[Ahead]:
    entries = run.entries
    positions = np.flatnonzero(entries["flags"] & np.uint8(DELETED | LOST) == 0)
    chosen = entries[positions]
    sizes = chosen["len"].astype(np.int64) - ovh(chosen)
    rows = zip((positions + run.first).tolist(), sizes.tolist(), chosen["ts"].tolist(), strict=True)
    return [Ahead(seq, size, ts) for seq, size, ts in rows]


def _tail_ts(tail: Tail) -> int:
    for run in tail.runs(tail.end, tail.end):
        return run.ts if isinstance(run, GapRun) else int(run.entries["ts"][0])
    return 0
