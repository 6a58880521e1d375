"""Checkpoints: the tail into segments, then marks, then perhaps a snapshot, then the WAL behind it goes (06 §12).

    capture   on the owner: which topics, up to which seq, copies of their tails; what of each Delete is settled by it
    write     aside: frames, delete flags, syncs, `.idx` files (`storage.cycle`)
    mark      one durable chain per shard that can log; only then anything of the cycle counts
    commit    on the owner: tails shrink, segments switch; due drops and the snapshot follow

One run at a time; whoever asks while one is under way gets the next. A topic whose files fail keeps its tail, and the
WAL keeps it too [S-195]. Owner only, but for `_Job.write`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from topics.codec import control, frame, kernel
from topics.codec.frame import NotAFrame
from topics.codec.place import topic_mask
from topics.codec.segment import DELETED, ENTRY_BYTES, HOPS_SHIFT, LOST, fillers, ovh, reframe
from topics.engine import reclaim
from topics.engine.alarms import Alarm
from topics.engine.core import Core
from topics.engine.dedupe import Pair
from topics.engine.pins import Everything, Pin
from topics.engine.router import ROWS_MAX, Position, Router
from topics.engine.snapshot import Snapshots
from topics.engine.topic import Topic
from topics.errors import EngineClosed, TopicNotFound, TopicsError, WalIo
from topics.fs import Fs, ensure_dir
from topics.storage.cycle import Cycle
from topics.storage.descriptor import Segment, room
from topics.storage.shard import Shard
from topics.storage.tail import OFFSET_BITS, DeadRun, Entries, EntryRun, GapRun, unpack, wal_lengths
from topics.storage.walread import WalReader

log = logging.getLogger("topics.engine")

MARK_ROWS = 1000
MARK_ROOM = 16 << 10
"""Bytes that must be left in the active file of a full shard, where its marks take no more."""
ROW_BYTES, POSITION_BYTES = 64, 128
"""What a topic and a router take in a mark, more or less."""
CHUNK = 256
"""Records between two chances for other threads [S-193]."""
KERNEL_CHUNK = 512
"""The same with the kernel, which takes a quarter of the time."""
_PACKED = np.dtype((np.void, ENTRY_BYTES))
"""An entry as it is on disk."""

PIN_RUNS: Final = 16
"""Runs at once for a pinned checkpoint; then there is a pause before each, and an end."""
PIN_PAUSE_NS: Final = 100_000_000
PIN_WAIT_NS: Final = 60_000_000_000


class CheckpointResult:
    """What a checkpoint did: topics written, segments sealed by it."""

    __slots__ = ("held", "pins", "sealed", "snapshot", "topics", "trouble", "writers")

    def __init__(self) -> None:
        self.topics = 0
        self.sealed = 0
        self.snapshot: int | None = None
        self.trouble: list[str] = []
        """What could not be written, and why."""
        self.held: Topic | None = None
        """One that was left out, because a commit is being attached to it."""
        self.pins: list[Everything] = []
        """What its snapshot names is held by them."""
        self.writers: dict[str, Pair] = {}
        """Versions that were committed when its topics were captured, if there are pins."""


class _Held(WalIo):
    """Everything lies in segment files but what a topic has that a commit is being attached to."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(OSError(f"topic {topic.name!r}: a commit is being attached to it"), "topics stay in the log")
        self.topic = topic


Asked = Callable[[CheckpointResult | TopicsError], None]


class Pinned(NamedTuple):
    """A checkpoint whose snapshot is held."""

    result: CheckpointResult
    pin: Pin


class _Job:
    """One topic of a run: what was captured, and the cycle that writes it."""

    def __init__(self, topic: Topic, now_ms: int, floor: int, *, seal: bool = False) -> None:
        index = topic.index
        assert index.segments is not None
        self.topic = topic
        self.before = index.ckpt_seq
        self.upper = index.tail.end
        self.first = max(self.before + 1, min(floor, self.upper + 1))
        self.tail = index.tail.frozen()
        self.gap_min = index.segments.limits.max_run + 1
        """Longer runs of dead seqs become gap segments."""
        self.derived = index.derived.copy()
        self.settles = len(topic.needed)
        """Delete frames that the cycle makes unnecessary."""
        self.unsettled = any(_holds_deletes(one) for one in index.segments.segments)
        """A segment in other hands keeps its marks: they are not on disk behind this cycle."""
        self.sealed_before = sum(one.sealed for one in index.segments.segments)
        self.cycle: Cycle = index.segments.begin()
        # It may have found an index damaged.
        self.unsettled |= any(one.unindexed and len(one.pending) > 0 for one in index.segments.segments)
        if self.unsettled:
            self.settles = 0
        self.now_ms = now_ms
        self.seal = seal
        """Nothing stays active [S-288]."""
        self.error: Exception | None = None
        self.lost: list[int] = []
        """Seqs whose frames in the WAL are damaged: holes from now on [S-176]."""
        topic.checkpointing = True

    def write(self, fs: Fs, dir: str, wal: WalReader, give_way: Callable[[], None]) -> None:
        """Steps 2 to 4, on the I/O lane; an error is kept for the owner."""
        if self.error is not None:
            return
        try:
            ensure_dir(fs, dir)
            self.cycle.prepare(give_way)
            self._fill(wal)
            if self.cycle.due(self.now_ms) or (self.seal and self.cycle.entries):
                self.cycle.seal()
            self.cycle.sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, the cycle does not count and the tail stays
            self.error = error

    def _fill(self, wal: WalReader) -> None:
        """Everything captured, ascending; leading entries below durable floors are not written [S-133]."""
        if self.first <= self.upper and self.cycle.entries and self.cycle.next_seq < self.first:
            self.cycle.seal()
        gaps = iter(self.tail.dead_runs(self.first, self.upper, self.gap_min))
        gap = next(gaps, None)
        for run in self.tail.runs(self.before + 1, self.upper):
            low = max(run.first, self.first)
            end = run.first + (run.seqs if isinstance(run, GapRun) else len(run.entries))
            while low < end:
                if gap is not None and gap.last < low:
                    gap = next(gaps, None)
                    continue
                if gap is not None and gap.first <= low:
                    if low == gap.first or low == self.first:
                        self._gap(run, gap, low)
                    low = min(gap.last + 1, end)
                    continue
                high = end if gap is None else min(end, gap.first)
                if isinstance(run, GapRun):
                    self.cycle.append_run(low, high - low, run.ts, run.reason, run.hops)
                else:
                    self._entries(run, low - run.first, high - run.first, wal)
                low = high

    def _gap(self, run: EntryRun | GapRun, gap: DeadRun, first: int) -> None:
        if isinstance(run, GapRun):
            ts, hops = run.ts, run.hops
        else:
            entry = run.entries[first - run.first]
            ts, hops = int(entry["ts"]), int(entry["flags"]) >> 4
        self.cycle.append_run(first, gap.last - first + 1, ts, gap.reason, hops)

    def _entries(self, run: EntryRun, low: int, high: int, wal: WalReader) -> None:
        limits = self.cycle.input.limits
        most = CHUNK if kernel.native is None else KERNEL_CHUNK
        while low < high:
            if self.cycle.due(self.now_ms):
                self.cycle.seal()
            chosen = run.entries[low : min(low + most, high)]
            dead = chosen["flags"] & np.uint8(DELETED | LOST) != 0
            sizes = np.where(dead, 0, chosen["len"]).astype(np.int64)
            n = room(self.cycle.entries, self.cycle.data_len, sizes, limits)
            if not n:
                self.cycle.seal()
                continue
            self._chunk(run, low, low + n, dead[:n], wal)
            low += n
            self.cycle.give_way()

    def _chunk(self, run: EntryRun, low: int, high: int, dead: np.ndarray, wal: WalReader) -> None:
        """Frames of live records, fillers for the rest, in one write."""
        entries, locations = run.entries[low:high], run.locations[low:high]
        idx = np.frombuffer(bytearray(_fillers(entries)), _PACKED) if dead.any() else np.empty(high - low, _PACKED)
        data: list[bytes] = []
        positions = np.flatnonzero(~dead)
        done = 0
        at = self.cycle.data_len
        mask = topic_mask(self.topic.id)

        def put(frames: bytes, offsets: np.ndarray, chosen: np.ndarray) -> None:
            nonlocal at
            framed, rows = reframe(frames, offsets, mask, at, entries["flags"][chosen] >> np.uint8(HOPS_SHIFT))
            data.append(framed)
            at += len(framed)
            idx[chosen] = np.frombuffer(rows, _PACKED)

        def take(frames: bytes, offsets: np.ndarray) -> None:
            nonlocal done
            chosen = positions[done : done + len(offsets)]
            done += len(offsets)
            try:
                put(frames, offsets, chosen)
            except NotAFrame:
                for number, (offset, position) in enumerate(zip(offsets.tolist(), chosen.tolist(), strict=True)):
                    one = chosen[number : number + 1]
                    if not attempt(frames, offset, one) and not again(position, one):
                        self.lost.append(run.first + low + position)
                        log.error("topic %r: seq %d is damaged in the WAL", self.topic.name, self.lost[-1])
                        hole = fillers(1, int(entries["ts"][position]), 2 if self.topic.told else 0)
                        idx[position : position + 1] = np.frombuffer(hole, _PACKED)

        def attempt(frames: bytes, offset: int, one: np.ndarray) -> bool:
            try:
                put(frames, np.array([offset]), one)
            except NotAFrame:
                return False
            return True

        def again(position: int, one: np.ndarray) -> bool:
            """Damage is believed only when it is read twice [S-176]."""
            size = int(wal_lengths(entries[position : position + 1])[0])
            return any(attempt(wal.one(int(locations[position]), size), 0, one) for _ in range(2))

        if len(positions):
            for low_at, high_at, in_memory in _stretches(locations[positions]):
                chosen = positions[low_at:high_at]
                if in_memory:
                    self._derived(locations[chosen].tolist(), take)
                else:
                    wal.raw_at(locations[chosen], wal_lengths(entries)[chosen], take)
        self.cycle.append(run.first + low, b"".join(data), idx.tobytes())

    def _derived(self, locations: list[int], take: Callable[[bytes, np.ndarray], None]) -> None:
        """Frames of copies that are in memory only [S-196]."""
        at = 0
        while at < len(locations):
            frames, offset = self.derived.at(locations[at])
            start = locations[at] - offset
            behind = at + 1
            while behind < len(locations) and locations[behind] - start < len(frames):
                behind += 1
            take(frames, np.array(locations[at:behind], np.int64) - start)
            at = behind

    def commit(self) -> int:
        """On the owner, once the mark is durable; how many segments it sealed."""
        topic, index = self.topic, self.topic.index
        assert index.segments is not None
        late = self._deleted_since()
        index.segments.commit(self.cycle)
        index.checkpointed(self.upper)
        if len(late):
            try:
                index.segments.mark_deleted(late)
            except OSError as error:
                topic.retry.append(late)
                log.error("topic %r: marks made during a checkpoint: %s", topic.name, error)
        del topic.needed[: self.settles]
        topic.claim = self.cycle.claim()
        topic.checkpointing = False
        topic.forget_ahead()
        if self.lost:
            topic.recount()
            topic.check_leases()
        return sum(one.sealed for one in index.segments.segments) - self.sealed_before

    def _deleted_since(self) -> np.ndarray:
        """Seqs that were live when they were captured and are deleted now [S-158]."""
        seqs = self.topic.index.tail.deleted_since(self.tail)
        return seqs[seqs >= np.uint64(self.first)]

    def abandon(self) -> None:
        """On the owner: nothing of the cycle counts."""
        assert self.topic.index.segments is not None
        self.topic.index.segments.abandon(self.cycle)
        self.topic.checkpointing = False


def _holds_deletes(one: Segment) -> bool:
    """Whether deletes are to reach a segment that this cycle does not write: their frames are still needed [S-158]."""
    return one.untagged or ((one.busy or one.unindexed) and bool(len(one.pending)))


def _stretches(locations: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Positions in a row whose frames are in memory, or are not."""
    in_memory = locations >> np.uint64(OFFSET_BITS) == 0
    starts = [0, *(np.flatnonzero(in_memory[1:] != in_memory[:-1]) + 1).tolist(), len(locations)]
    for low, high in pairwise(starts):
        yield low, high, bool(in_memory[low])


def _fillers(entries: Entries) -> bytes:
    """Each entry as one without a frame, with its own `ts`, kind and hops [S-123]."""
    fillers = entries.copy()
    lost = entries["flags"] & np.uint8(LOST) != 0
    hops = (entries["flags"] & np.uint8(0xF0)).astype(np.uint32)
    fillers["offset"] = 0
    fillers["len"] = 0
    fillers["flags_ovh"] = hops | np.where(lost, np.uint32(LOST) | ovh(entries) << np.uint32(8), np.uint32(DELETED))
    return fillers.tobytes()


class Checkpointer:
    """Runs checkpoints, one after another."""

    def __init__(self, core: Core, snapshots: Snapshots, number: int) -> None:
        self.number = number
        """Of the newest checkpoint."""
        self.total = 0
        self.last_ms = 0.0
        self._core = core
        self._snapshots = snapshots
        self._running = False
        self._asked: list[tuple[Asked, bool, bool, bool]] = []
        self._pins: list[Everything] = []
        """To be held by the next run's snapshot."""
        self._wanted: set[int] = set()
        """Topics that the next run takes whether or not they are due."""
        self._sealing: set[int] = set()
        """Topics that the next run leaves without an active segment."""
        self._positions: list[tuple[Router, control.RouterRow]] = []
        """Of routers, as captured by this run [S-212 d]."""
        self._began_ns = 0
        self._make_room()

    def _make_room(self) -> None:
        """Have every shard leave room for the marks of a run that takes all topics [S-80]."""
        core = self._core
        assert core.wal is not None
        for shard in core.wal.shards:
            shard.mark_bytes = MARK_ROOM + ROW_BYTES * len(core.topics) + POSITION_BYTES * len(core.routers.by_name)

    def ask(
        self, done: Asked, *, full: bool, snapshot: bool, final: bool = False, pin: Everything | None = None
    ) -> None:
        """Run a checkpoint that holds everything acknowledged before this call [A-15].

        `pin` holds everything already; from the snapshot on, what that names. `final` takes every topic, like a full
        one; file and snapshot are the business of whoever closes the engine.
        """

        def over(outcome: CheckpointResult | TopicsError) -> None:
            if not isinstance(outcome, _Held) or self._core.closing:
                done(outcome)
                return
            # In line behind the commit: it takes long, and has nothing to do with what was acknowledged before.
            self._core.in_line(outcome.topic, again, lambda error: late(outcome, error))

        def again() -> None:
            self.ask(done, full=full, snapshot=snapshot, pin=pin)

        def late(outcome: TopicsError, error: object) -> None:
            again() if isinstance(error, TopicNotFound) and not self._core.closing else done(outcome)

        self._asked.append((over if full else done, full, snapshot, final))
        if pin is not None:
            self._pins.append(pin)
        if not self._running:
            self._core.owner.soon(self._begin_asked)

    def ask_pinned(self, ms: int, done: Callable[[Pinned | TopicsError], None]) -> None:
        """Run a full checkpoint and hold what its snapshot names; files and snapshot are one state of the store [A-15].

        Marks of a segment that is being rewritten wait for the rewrite, so the run is repeated until none were left,
        and until no commit came in between.
        Those of a cold one may wait for a tier that is away: then nobody waits with them for ever.
        """
        core, pins, files = self._core, self._core.pins, Everything()
        pin = pins.make(files)
        began_ns, runs = core.clock.monotonic_ns(), 0

        def over(outcome: CheckpointResult | TopicsError) -> None:
            now_ns = core.clock.monotonic_ns()
            if isinstance(outcome, TopicsError) or core.closing:
                pins.give_up(pin)
                done(outcome if isinstance(outcome, TopicsError) else EngineClosed("the engine is closing"))
            elif files.snapshot is not None:
                pins.start(pin, ms)
                done(Pinned(outcome, pin))
            elif now_ns - began_ns > PIN_WAIT_NS:
                pins.give_up(pin)
                why = "deletes wait for a segment whose index is away, or versions are committed all the time"
                done(WalIo(OSError(why), "nothing is held"))
            elif runs < PIN_RUNS:
                ask()
            else:
                core.polls[files] = partial(closing, core.alarms.at(now_ns + PIN_PAUSE_NS, ask))

        def closing(alarm: Alarm) -> None:
            del core.polls[files]
            alarm.cancel()
            pins.give_up(pin)
            done(EngineClosed("the engine is closing"))

        def ask() -> None:
            nonlocal runs
            runs += 1
            core.polls.pop(files, None)
            self.ask(over, full=True, snapshot=True, pin=files)

        ask()

    def bring_in(self, topic_id: int, done: Asked) -> None:
        """Run a checkpoint that takes this topic: what is marked deleted in its segments is so on disk, too."""
        self._wanted.add(topic_id)
        self.ask(done, full=False, snapshot=False)

    def seal(self, topic_ids: Iterable[int], done: Asked) -> None:
        """Run a checkpoint behind which all that these topics have now lies in sealed segments [S-288]."""
        self._sealing.update(topic_ids)
        self.ask(done, full=False, snapshot=False)

    def tick(self) -> None:
        """The regular run, if none is under way."""
        if not self._running and not self._asked:
            self._run(full=False, snapshot=False, asked=[])

    def _begin_asked(self) -> None:
        if self._running or not self._asked:
            return
        asked, self._asked = self._asked, []
        full, snapshot, final = (any(one[kind] for one in asked) for kind in (1, 2, 3))
        self._run(full=full, snapshot=snapshot, asked=[one[0] for one in asked], final=final)

    # -- one run -----------------------------------------------------------------------------------------------------

    def _run(self, *, full: bool, snapshot: bool, asked: list[Asked], final: bool = False) -> None:
        core = self._core
        assert core.wal is not None
        self._running = True
        self._began_ns = core.clock.monotonic_ns()
        self._make_room()
        result = CheckpointResult()
        result.pins, self._pins = self._pins, []
        finish = partial(self._finished, result, asked)
        if result.pins:
            result.writers = dict(core.producers.writers())
        jobs = self._capture(full or final, result)
        if full:
            for shard in core.wal.shards:
                if shard.key in core.unrotated:
                    core.unrotated.discard(shard.key)
                    core.unmarked.add(shard.key)
                    shard.rotate_soon()
        reader = core.wal.reader

        def write() -> None:
            for job in jobs:
                job.write(core.fs, core.topic_dir(job.topic.id), reader, core.owner.give_way)

        def written(error: BaseException | None) -> None:
            self._mark(jobs, partial(self._marked, jobs, result, snapshot or full, not final, finish))

        def synced() -> None:
            for job in jobs:
                if job.topic.removed:
                    job.error = TopicNotFound(job.topic.name)
            if jobs:
                core.owner.aside("files", write, written)
            else:
                written(None)

        self._sync_deletes(jobs, synced)

    def _capture(self, full: bool, result: CheckpointResult) -> list[_Job]:
        """Step 1: the topics of this run and what each of them has now."""
        core, now = self._core, self._core.clock.now_ms()
        assert core.wal is not None
        jobs = []
        ids = list(core.topics) if full else list(core.unsealed)
        wanted, self._wanted = self._wanted, set()
        sealing, self._sealing = self._sealing, set()
        ids += sealing.difference(ids)
        totals = core.totals
        totals.tail_records = sum(topic.index.tail.records for topic in core.topics.values())
        totals.tail_bytes = sum(topic.index.tail.nbytes for topic in core.topics.values())
        full = full or self.is_tail_full
        for id in ids:
            topic = core.topics.get(id)
            if topic is None:
                core.unsealed.discard(id)
                continue
            if not can_log(core.wal.of(id)):
                if full and (topic.index.tail.records or topic.needed):
                    result.trouble.append(f"topic {topic.name!r}: its shard takes no marks")
                continue
            try:
                topic.mark_again()
                reclaim.explain_dead_prefix(topic)
                if full and topic.attaching and (topic.needed or topic.index.tail.records):
                    result.held = topic
                if self._selected(topic, now, full or id in wanted, id in sealing):
                    jobs.append(_Job(topic, now, self._durable_floor(topic), seal=id in sealing))
            except OSError as error:
                result.trouble.append(f"topic {topic.name!r}: {error}")
                log.error("topic %r is left out of this checkpoint: %s", topic.name, error)
        self._capture_positions(jobs)
        return jobs

    def _capture_positions(self, jobs: list[_Job]) -> None:
        """Positions in the same stretch as the tails they belong to: neither can be durable without the other [RRC-2].

        A destination with copies in memory that are left out of this run keeps its old position.
        """
        routers = self._core.routers
        taken = {job.topic.id for job in jobs}
        self._positions = [
            (router, router.row(edge.dest.head))
            for edge in routers.moved
            if edge.dest.id in taken or not edge.has_pending
            for router in edge.routers
        ]

    def _rows_of(self, jobs: list[_Job]) -> dict[str, list[tuple[Router, control.RouterRow]]]:
        """Captured positions by the group of their destination, those of destinations whose files failed left out."""
        wal, failed = self._core.wal, {job.topic.id for job in jobs if job.error is not None}
        assert wal is not None
        found: dict[str, list[tuple[Router, control.RouterRow]]] = {}
        for router, row in self._positions:
            dest = router.edge.dest
            if dest.id not in failed and not dest.removed and router in router.edge.routers:
                found.setdefault(wal.of(dest.id).key, []).append((router, row))
        return found

    def _sync_deletes(self, jobs: list[_Job], then: Callable[[], None]) -> None:
        """Delete frames are synced before a flag of theirs is written: no flag outlives its frame.

        A power loss that kept a flag and took the frame would leave a record that is neither there nor deleted.
        """
        core = self._core
        assert core.wal is not None
        shards: dict[str, Shard] = {}
        for job in jobs:
            shard = core.wal.of(job.topic.id)
            if any(lsn.group == shard.key and lsn[1:] >= shard.log.synced() for lsn in job.topic.needed):
                shards[shard.key] = shard
        left = len(shards)

        def logged(shard: Shard, outcome: object) -> None:
            nonlocal left
            left -= 1
            if isinstance(outcome, TopicsError):
                for job in jobs:
                    if core.wal is not None and core.wal.of(job.topic.id) is shard:
                        job.error = outcome
            if not left:
                then()

        for shard in shards.values():
            frames, count = self._chain([])
            try:
                core.submit_mark(shard, frames, count, partial(logged, shard))
            except TopicsError as error:
                logged(shard, error)
        if not shards:
            then()

    def _durable_floor(self, topic: Topic) -> int:
        """Everything below it is dead for good, by a synced mark, EvictWatermark or Delete [S-133]; no hole is [S-125].

        Deletes are synced before anything of the run is written.
        """
        evicted = max(topic.ttl_floor, *(topic.marked[1:3] if topic.marked is not None else (1,)))
        below = topic.delete_below
        holes = topic.index.tail.holes(evicted, below - 1) if below > evicted else []
        return holes[0].first if holes else max(evicted, below)

    def _selected(self, topic: Topic, now: int, full: bool, seal: bool) -> bool:
        config, index = self._core.config, topic.index
        segments = index.segments
        assert segments is not None
        if topic.checkpointing or (topic.attaching and not seal):
            return False
        tail = index.tail
        if seal:
            return bool(tail.records) or not segments.is_sealed
        active = segments.active
        if not tail.records and not topic.needed and not segments.has_pending and active is None:
            return False
        if full:
            return bool(tail.records or topic.needed or segments.has_pending or segments.reader.damaged)
        edge = self._core.routers.feeding.get(topic.id)
        if edge is not None and edge.has_pending:
            return True
        if tail.records >= min(config.checkpoint_records, config.segment_max_events):
            return True
        if tail.nbytes >= min(config.checkpoint_bytes, config.segment_max_bytes):
            return True
        if self._is_old(topic):
            return True
        return self._is_aged(topic, now)

    def _is_old(self, topic: Topic) -> bool:
        """Whether a WAL file that is far behind is kept for this topic (selection 2 and 3)."""
        core = self._core
        assert core.wal is not None
        retain = core.config.wal_retain_files
        for location in topic.index.tail.oldest_locations().values():
            file = core.wal.files.file(unpack(location)[0])
            if core.wal.active_file(file.group) - file.file_no >= retain:
                return True
        return any(core.wal.active_file(lsn.group) - lsn.file_no >= retain for lsn in topic.needed)

    def _is_aged(self, topic: Topic, now: int) -> bool:
        age = self._core.config.segment_max_age_ms
        if not age:
            return False
        segments = topic.index.segments
        assert segments is not None
        active = segments.active
        if active is not None and active.n and now - segments.ts_range(active)[0] >= age:
            return True
        tail = topic.index.tail
        for run in tail.runs(tail.first, tail.first):
            first = run.ts if isinstance(run, GapRun) else int(run.entries["ts"][0])
            return now - first >= age
        return False

    def _mark(self, jobs: list[_Job], then: Callable[[set[str]], None]) -> None:
        """Step 5: a durable chain of marks on every shard that can log; `then` gets the groups that have theirs."""
        core = self._core
        assert core.wal is not None
        written = {job.topic.id: job for job in jobs if job.error is None}
        ids = sorted(core.changed | {id for id, job in written.items()})
        rows: dict[str, list[control.MarkRow]] = {}
        for id in ids:
            topic = core.topics.get(id)
            if topic is None:
                core.changed.discard(id)
            else:
                shard = core.wal.of(id)
                rows.setdefault(shard.key, []).append(_row(topic, written.get(id)))
        marked: set[str] = set()
        positions = self._rows_of(jobs)
        wanted = core.unmarked | set(rows) | set(positions)
        waiting = [shard for shard in core.wal.shards if can_log(shard) and shard.key in wanted]
        left = len(waiting)
        if not left:
            then(marked)
            return
        self.number += 1

        def logged(shard: Shard, outcome: object) -> None:
            nonlocal left
            left -= 1
            if not isinstance(outcome, TopicsError):
                marked.add(shard.key)
                core.unmarked.discard(shard.key)
                for row in rows.get(shard.key, ()):
                    topic = core.topics.get(row.topic_id)
                    if topic is not None:
                        topic.marked = (row.head_seq, row.cap_floor, row.ttl_floor, row.delete_below)
                        if topic.marked == topic.marks():
                            core.changed.discard(row.topic_id)
                self._saved(positions.get(shard.key, ()))
            if not left:
                then(marked)

        core.fs.point("ckpt.before_mark")
        for shard in waiting:
            chosen = [row for _, row in positions.get(shard.key, ())]
            frames, count = self._chain(rows.get(shard.key, []), chosen)
            try:
                core.submit_mark(shard, frames, count, partial(logged, shard))
            except TopicsError as error:
                logged(shard, error)

    def _saved(self, positions: Iterable[tuple[Router, control.RouterRow]]) -> None:
        """Positions are durable: snapshots may tell them."""
        core = self._core
        for router, row in positions:
            router.saved = Position(core.run, row.cursor, row.dest_head, row.total)
            edge = router.edge
            if all((one.saved.cursor, one.saved.dest_head) == (one.cursor, edge.dest.head) for one in edge.routers):
                core.routers.moved.discard(edge)

    def _chain(
        self, rows: list[control.MarkRow], positions: list[control.RouterRow] | None = None
    ) -> tuple[bytes, int]:
        """One submission, so that a destination's segments and the positions that belong to them count together."""
        parts = [rows[at : at + MARK_ROWS] for at in range(0, len(rows), MARK_ROWS)] or [[]]
        now = self._core.clock.now_ms()
        frames = []
        for at in range(0, len(positions or ()), ROWS_MAX):
            mark = control.RouterMark(routers=tuple((positions or [])[at : at + ROWS_MAX]))
            frames.append(frame.encode_control(mark, 0, now, durable=True, more=True))
        for part, some in enumerate(parts):
            mark_of_topics = control.TopicsMark(n=self.number, part=part, parts=len(parts), topics=tuple(some))
            frames.append(frame.encode_control(mark_of_topics, 0, now, durable=True, more=part + 1 < len(parts)))
        return b"".join(frames), len(frames)

    def _marked(
        self,
        jobs: list[_Job],
        result: CheckpointResult,
        forced: bool,
        may_snapshot: bool,
        finish: Callable[[TopicsError | None], None],
        groups: set[str],
    ) -> None:
        """Step 6, then 7."""
        core = self._core
        assert core.wal is not None
        core.fs.point("ckpt.after_mark")
        for job in jobs:
            if core.topics.get(job.topic.id) is not job.topic:
                job.abandon()
            elif job.error is None and core.wal.of(job.topic.id).key in groups:
                result.topics += 1
                core.totals.tail_records -= job.tail.records
                core.totals.tail_bytes -= job.tail.nbytes
                core.logged = True
                result.sealed += job.commit()
                core.tag_soon(job.topic)
                if job.lost and job.topic.told:
                    core.holes[2] += len(job.lost)
                    core.losses.note(job.topic, "corrupt", min(job.lost), max(job.lost), len(job.lost))
                core.producers.checkpointed(job.topic.id, job.topic.index.ckpt_seq)
            else:
                why = job.error or "its mark could not be logged"
                result.trouble.append(f"topic {job.topic.name!r}: {why}")
                log.error("topic %r stays in the WAL: %s", job.topic.name, why)
                job.abandon()
        reclaim.drop_dead(core)
        if forced or (may_snapshot and self._snapshots.due()):
            snapped = partial(self._snapped, result, finish)
            self._snapshots.take(
                self.number, force=forced, clean=False, done=snapped, pins=self._settled_pins(jobs, result)
            )
        else:
            finish(_trouble(result))

    def _settled_pins(self, jobs: list[_Job], result: CheckpointResult) -> Sequence[Everything]:
        """The pins, if files and snapshot are one state: no mark is missing, and no version was committed behind it."""
        if not result.pins or result.held is not None or any(job.unsettled for job in jobs):
            return ()
        return result.pins if result.writers == dict(self._core.producers.writers()) else ()

    def _snapped(
        self,
        result: CheckpointResult,
        finish: Callable[[TopicsError | None], None],
        outcome: int | TopicsError | None,
    ) -> None:
        if isinstance(outcome, TopicsError):
            finish(outcome)
            return
        result.snapshot = outcome
        finish(_trouble(result))

    def _finished(self, result: CheckpointResult, asked: list[Asked], error: TopicsError | None) -> None:
        self._running = False
        self.total += 1
        self.last_ms = (self._core.clock.monotonic_ns() - self._began_ns) / 1e6
        for done in asked:
            done(error or result)
        if self._asked:
            self._core.owner.soon(self._begin_asked)

    @property
    def is_tail_full(self) -> bool:
        """Whether tails hold so much that all of them have to be written now [S-153]."""
        totals, config = self._core.totals, self._core.config
        return totals.tail_records >= config.tail_records_max or totals.tail_bytes >= config.tail_bytes_max

    @property
    def is_early(self) -> bool:
        """Whether a run is due before its time: for memory, or for space on the disk."""
        return self.is_tail_full or (not self._running and self._snapshots.due_for_space())

    @property
    def running(self) -> bool:
        """Whether a run is under way or asked for."""
        return self._running or bool(self._asked)


def _trouble(result: CheckpointResult) -> TopicsError | None:
    """Not everything lies in segment files [A-15]; the log keeps what does not."""
    if not result.trouble:
        return None if result.held is None else _Held(result.held)
    return WalIo(OSError("; ".join(result.trouble[:3])), f"{len(result.trouble)} topics stay in the log")


def _row(topic: Topic, job: _Job | None) -> control.MarkRow:
    upper, claim = topic.index.ckpt_seq, topic.claim
    if job is not None:
        upper, claim = job.upper, job.cycle.claim()
    return control.MarkRow(topic.id, upper, *topic.marks(), *claim)


def can_log(shard: Shard) -> bool:
    """Whether a shard takes marks: also while it is full, as long as they fit, so that space comes back [S-80]."""
    return shard.state == "ok" or (shard.state == "full" and shard.has_room(min(MARK_ROOM, shard.mark_room)))
