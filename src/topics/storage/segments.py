"""The segments of one topic (06 §8, §9): which there are, what is marked deleted in them, what jobs do to them.

    sealed   `.idx` in memory through `MapCache` [S-150]
    active   the newest; its entries are one `bytearray` [S-151]; only checkpoints make it grow
    gap      a long run of dead seqs with nothing on disk but a 40-byte `.idx` [S-129]

**Deletes** change the index at once and enter the segment's *pending* array until they are on disk. A job (`Cycle`,
`Rewrite`) takes what is pending when it begins; only that is settled when it is done [S-158]. Because pending marks are
applied again to every buffer that is brought in, no switch of files can lose one.

**Threads.** Everything here belongs to the topic's owner. Jobs copy what they need when they are begun, do their file
work anywhere, and come back with `commit` or `abandon`. At most one cycle runs per topic; a segment in the hands of a
job is `busy` and no other job begins on it. A cold segment has its index here, its frames elsewhere.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from topics.codec import segment as codec
from topics.codec import snapshot
from topics.codec.segment import DataFrame
from topics.codec.snapshot import SegmentRow
from topics.fs import Fs
from topics.storage import tags
from topics.storage.cycle import Cycle, CycleInput
from topics.storage.descriptor import Claim, Limits, MarkedSegment, Marks, OpenSegment, Segment
from topics.storage.maps import MapCache
from topics.storage.reindex import Entries, Range, live_of, stats
from topics.storage.segfile import SegmentFiles, entries_in
from topics.storage.segread import Absent, SegmentReader, Seqs
from topics.storage.tiers.blocks import ColdRead


class Removed(NamedTuple):
    """What a delete took away: records that were live until then, and their accounted bytes."""

    records: int
    bytes: int


class TopicSegments:
    """All segments of a topic, ascending. Invariant: only the last may be active, and no two overlap."""

    def __init__(self, fs: Fs, dir: str, topic_id: int, maps: MapCache, limits: Limits, *, told: bool = True) -> None:
        self.files = SegmentFiles(fs, dir, topic_id)
        self.reader = SegmentReader(self.files, maps, told)
        self.limits = limits
        self.segments: list[Segment] = []
        self._next_seq = 1
        self._cycle: Cycle | None = None
        self._strays: set[int] = set()
        self._reset = False
        self._untrusted = False
        self._names_unsure = True

    @property
    def told(self) -> bool:
        """Whether the topic's class tells of loss (`fsync`, `disk`); the engine sets it when the class changes."""
        return self.reader.told

    @told.setter
    def told(self, value: bool) -> None:
        self.reader.told = value

    @property
    def active(self) -> Segment | None:
        """The segment that grows."""
        return self.segments[-1] if self.segments and not self.segments[-1].sealed else None

    @property
    def end(self) -> int:
        """The seq behind all that segments hold or held."""
        return max(self._next_seq, self.segments[-1].last + 1 if self.segments else 1)

    @property
    def has_pending(self) -> bool:
        """Whether a Delete frame is still needed for this topic [S-158, S-192]."""
        return any(len(segment.pending) for segment in self.segments)

    def adopt(self, segments: list[Segment], next_seq: int) -> None:
        """Take over what a start-up found (`rebuild`)."""
        assert not self.segments
        self.segments, self._next_seq = segments, next_seq
        self._check()

    def mend_active(self) -> None:
        """The active segment's files are not what is known of it: the next cycle writes all of them again."""
        self._reset = True

    def find(self, seq: int) -> Segment | None:
        """The segment that holds `seq`."""
        at = bisect_right(self.segments, seq, key=_first) - 1
        return self.segments[at] if at >= 0 and seq <= self.segments[at].last else None

    def between(self, first: int, last: int) -> list[Segment]:
        """The segments that hold any seq from `first` to `last`."""
        low = max(bisect_right(self.segments, first, key=_first) - 1, 0)
        high = bisect_right(self.segments, last, key=_first)
        return [one for one in self.segments[low:high] if one.last >= first]

    def missing(self, first: int, last: int) -> tuple[Range, ...]:
        """The ranges from `first` to `last` that no segment holds [S-250]."""
        found: list[Range] = []
        for one in self.between(first, last):
            if one.first > first:
                found.append(Range(first, one.first - 1))
            first = one.last + 1
        return (*found, Range(first, last)) if first <= last else tuple(found)

    def entries(self, segment: Segment) -> AbstractContextManager[Entries]:
        """The entries of a segment as `codec.IDX`, to be used inside the block only."""
        return self.reader.entries(segment)

    def ts_range(self, segment: Segment) -> tuple[int, int]:
        """Lowest and highest `ts`, from verified entries."""
        if segment.min_ts is None or segment.max_ts is None:
            self.reader.learn(segment, counts=False)
        assert segment.min_ts is not None
        assert segment.max_ts is not None
        return segment.min_ts, segment.max_ts

    def recount(self, segment: Segment) -> None:
        """Count a segment's entries again (06 §14 step 6)."""
        self.reader.learn(segment, counts=True)

    def read(self, segment: Segment, seqs: Seqs, cold: ColdRead | None = None) -> list[DataFrame | Absent]:
        """The frames of ascending `seqs` of a segment, each verified [S-173].

        `FileNotFoundError`: the files changed under the caller, who takes a fresh view and tries again [S-172].
        `NeedsBlocks`: the same, once the blocks are there.
        """
        return self.reader.frames(segment, seqs, cold)

    def tagged(self, segment: Segment, tag: bytes | str) -> tags.SeqArray:
        """Seqs of a sealed segment's records with this tag, deleted ones included [S-187]."""
        with self.reader.sidecar(segment) as sidecar:
            return np.empty(0, np.uint64) if sidecar is None else sidecar.eq(tag)

    def tagged_prefix(self, segment: Segment, literal: bytes | str) -> tags.SeqArray:
        """Seqs of a sealed segment's records whose tag begins with `literal`, deleted ones included."""
        with self.reader.sidecar(segment) as sidecar:
            return np.empty(0, np.uint64) if sidecar is None else sidecar.prefix(literal)

    def active_tags(self) -> dict[bytes, array[int]]:
        """Tags and seqs of the active segment, for the topic's `TagIndex` (06 §14 step 6)."""
        return {} if self.active is None else self.reader.active_tags(self.active)

    def mark_deleted(self, seqs: Seqs, *, again: bool = False) -> Removed:
        """Mark seqs deleted; those no segment holds are passed over. On disk with the next cycle.

        An `OSError` may leave a part of them marked: to be repeated. `again` is for replay: a mark found in the index
        may not be on the medium, so it becomes pending too.
        """
        wanted = np.unique(np.asarray(seqs, np.uint64))
        records = accounted = at = 0
        while at < len(wanted):
            segment = self.find(int(wanted[at]))
            if segment is None:
                at += 1
                continue
            end = int(np.searchsorted(wanted, np.uint64(segment.last), side="right"))
            if segment.gap is None:
                removed = self._mark(segment, (wanted[at:end] - np.uint64(segment.first)).astype(np.uint32), again)
                records += removed.records
                accounted += removed.bytes
            at = end
        return Removed(records, accounted)

    def _mark(self, segment: Segment, rel: Marks, again: bool) -> Removed:
        chosen = None if segment.unindexed else self._flag(segment, rel)
        if chosen is None:
            # Nobody knows which of them live: they are marked when the index is back.
            segment.pending = np.union1d(segment.pending, rel).astype(np.uint32)
            return Removed(0, 0)
        live = live_of(chosen)
        removed = stats(chosen[live])
        targets = rel[chosen["len"] != 0] if again else rel[live]
        segment.pending = np.union1d(segment.pending, targets).astype(np.uint32)
        if again:
            self.recount(segment)  # a snapshot's row may have counted this mark already (06 §14 step 6)
        else:
            segment.live -= removed.live
            segment.live_bytes -= removed.live_bytes
        return Removed(removed.live, removed.live_bytes)

    def _flag(self, segment: Segment, rel: Marks) -> Entries | None:
        """Mark what lives of them; these entries as they were, None if the index is found to be lost just now."""
        with self.reader.entries(segment, writable=True) as entries:
            if segment.unindexed:
                return None
            chosen = entries[rel]
            entries["flags"][rel[live_of(chosen)]] |= np.uint8(codec.DELETED)
        return chosen

    def give_up(self, segment: Segment) -> None:
        """A lost segment cannot be refilled: the next cycle marks its live entries lost on disk [S-250]."""
        assert segment.lost
        segment.given_up = True

    def claim(self) -> Claim:
        """What a mark or snapshot may claim of the active segment now [S-44]."""
        active = self.active
        if active is None:
            return Claim.of(self.end, 0, b"")
        image = OpenSegment.copied(active)
        return Claim.of(image.first, image.data_len, image.entries)

    def rows(self) -> tuple[SegmentRow, ...]:
        """The `segs` rows of a snapshot item (06 §13)."""
        return tuple(map(self._row, self.segments))

    def _row(self, segment: Segment) -> SegmentRow:
        flags = snapshot.SEALED if segment.sealed else 0
        flags |= (snapshot.COLD if segment.cold else 0) | (snapshot.GAP if segment.gap else 0)
        digest = segment.idx_xxh3 if segment.sealed else self.claim().idx_xxh3
        if segment.sealed and len(segment.pending) and not segment.unindexed:
            # The counts have marks that the file has not. Should a power loss take the deletes, nothing would replay
            # them: no hash matches this row, so a start counts for itself. One without its index is known in the tier
            # by its hash [S-316], and of a cold one in which nothing lives no start believes the counts.
            digest = 0
        counts = (segment.live, segment.live_bytes)
        return SegmentRow(segment.first, segment.n, segment.data_len, flags, *counts, digest)

    def begin(self) -> Cycle:
        """Begin a checkpoint cycle: take what is pending, hand out the active segment; an `OSError` changes nothing."""
        assert self._cycle is None, "a cycle of this topic is running"
        active = self.active
        taken = [(one, self._marked(one)) for one in self.segments if self._is_marked(one)]
        marked = [(one, copy) for one, copy in taken if copy is not None]
        cycle = Cycle(
            CycleInput(
                files=self.files,
                limits=self.limits,
                next_seq=self.end,
                active=None if active is None else OpenSegment.copied(active),
                marked=[copy for _, copy in marked],
                strays=frozenset(self._strays),
                reset=self._reset,
                untrusted=self._untrusted,
                names_unsure=self._names_unsure,
                told=self.told,
            )
        )
        for one, _ in marked:
            one.busy = True
        if active is not None:
            active.busy = True
        self._cycle = cycle
        return cycle

    def _is_marked(self, one: Segment) -> bool:
        if not one.sealed or one.gap is not None or one.busy or one.unindexed:
            return False
        return bool(len(one.pending)) or one.given_up or one.first in self.reader.damaged

    def _marked(self, one: Segment) -> MarkedSegment | None:
        """A cold segment's entries are handed over: nothing on disk could stand in for them [S-316].

        None if they are found to be lost just now: what stands for them must not be taken for them.
        """
        if not one.cold:
            return MarkedSegment.copied(one)
        with self.reader.entries(one) as entries:
            return None if one.unindexed else MarkedSegment.copied(one, entries.copy())

    def commit(self, cycle: Cycle) -> None:
        """The cycle's mark is durable: its segments are the copy of record (06 §12 step 6)."""
        assert cycle.complete, "only what was synced may be claimed"
        self._end(cycle)
        self._strays.clear()
        self._reset = self._untrusted = self._names_unsure = False
        for one in cycle.input.marked:
            self._switch_marked(one, cycle.replaced[one.first])
        given = cycle.input.active
        new = {made.first: made for made in cycle.made}
        for segment in self.segments:
            if given is not None and segment.first == given.first:
                self._switch_active(segment, new.pop(given.first), given)
        for segment in self.segments:
            if segment.first in new:
                self.reader.forget(segment)
        kept = [segment for segment in self.segments if segment.first not in new]
        self.segments = sorted([*kept, *(made.described() for made in new.values())], key=_first)
        self._next_seq = max(self._next_seq, cycle.next_seq)
        self._check()

    def _switch_marked(self, one: MarkedSegment, idx_xxh3: int) -> None:
        segment = self.find(one.first)
        assert segment is not None
        segment.idx_xxh3 = idx_xxh3
        segment.settle(one.marks)
        segment.behind = segment.cold
        self.reader.damaged.discard(one.first)
        self.reader.forget(segment)
        if one.given_up:
            segment.lost = segment.given_up = False
            segment.stub, segment.has_tags = True, False
            segment.live = segment.live_bytes = 0

    def _switch_active(self, segment: Segment, made: OpenSegment, given: OpenSegment) -> None:
        """Grow or seal the active segment; marks that came meanwhile stay pending and in the index."""
        live, live_bytes = segment.live - given.live, segment.live_bytes - given.live_bytes
        segment.settle(given.marks)
        segment.n, segment.data_len = made.n, made.data_len
        segment.learn(made.counted())
        segment.live += live
        segment.live_bytes += live_bytes
        if made.sealed:
            segment.sealed, segment.entries, segment.idx_xxh3 = True, None, made.idx_xxh3
            self.reader.forget(segment)
        else:
            segment.entries = bytearray(made.entries)
            entries_in(segment.entries, made.n)["flags"][segment.pending] |= np.uint8(codec.DELETED)

    def abandon(self, cycle: Cycle) -> None:
        """The cycle failed, or its mark did: nothing of it counts, the next one writes over it [S-195]."""
        self._end(cycle)
        self._strays |= cycle.created - {segment.first for segment in self.segments}
        self._reset = True
        self._untrusted = self._untrusted or cycle.untrusted

    def _end(self, cycle: Cycle) -> None:
        assert cycle is self._cycle
        cycle.close()
        self._cycle = None
        firsts = {one.first for one in cycle.input.marked}
        for segment in self.segments:
            if segment.first in firsts or not segment.sealed:
                segment.busy = False

    @property
    def is_sealed(self) -> bool:
        """Whether all of it is in sealed segments and no cycle left anything behind: others may follow."""
        return self.active is None and self._cycle is None and not self._strays and not self._reset

    def attach(self, made: Sequence[Segment]) -> None:
        """Take over sealed segments that are in the directory by now, behind all others [S-288]."""
        assert self.is_sealed, "what is written next would follow the active segment"
        assert made[0].first >= self.end, f"segment {made[0].first} begins below {self.end}"
        self.segments += made
        self._next_seq = self.end
        self._check()

    def forget(self, segment: Segment) -> None:
        """Take a dropped segment out of the topic."""
        assert segment.sealed
        assert not segment.busy
        self._next_seq = self.end
        self.segments.remove(segment)
        self.reader.forget(segment)

    def _check(self) -> None:
        """Assert the invariant of the class."""
        for one, other in zip(self.segments, self.segments[1:], strict=False):
            assert one.last < other.first, f"segments {one.first} and {other.first} overlap"
            assert one.sealed, f"segment {one.first} is active and not the last"


def _first(segment: Segment) -> int:
    return segment.first
