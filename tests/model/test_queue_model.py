"""A queue against a model of it: workers that claim, ack, nack and extend, leases that expire, and every way to stop.

The oracle (`Model`) is 04 in a few lines over plain dictionaries. Queues here are of class `fsync`, so what a stop
leaves is certain: with durable leases everything, without them the jobs alone. So every answer of the engine must be
exactly the model's: no job lost, none acked twice, none with two holders, none delivered after its ack, dead letters
exactly when due.

`TOPICS_TEST_MACHINES` is how many machines run, 100 by default; each takes 50 steps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.model import new
from topics.testing import ManualClock, SimFs

MACHINES = int(os.environ.get("TOPICS_TEST_MACHINES", "100"))
STEPS = 50
PATH = "store"
QUEUE, DEAD = "jobs", "dead"
NODES = ("a", "b", "c")


class Held(NamedTuple):
    """A lease."""

    node: str
    id: str
    deadline: int


@dataclass
class Job:
    """A live job."""

    deliveries: int = 0
    held: Held | None = None
    ready_at: int = 0


@dataclass
class Model:
    """A queue as 04 describes it."""

    max_deliveries: int
    jobs: dict[int, Job] = field(default_factory=dict)
    under: dict[int, Held] = field(default_factory=dict)
    """Leases of jobs that were deleted [QOB-3]."""
    head: int = 0
    dead: list[tuple[int, int]] = field(default_factory=list)
    """Seq and deliveries of moved jobs."""

    def pass_to(self, now: int) -> None:
        """What is over by then can be had again [LSE-2, NAK-1]."""
        for job in self.jobs.values():
            if job.held is not None and job.held.deadline < now:
                job.held = None
            if job.ready_at <= now:
                job.ready_at = 0
        self.under = {seq: held for seq, held in self.under.items() if held.deadline >= now}

    def ready(self) -> list[int]:
        """Claimable jobs in the order of [CLM-2]."""
        free = [seq for seq, job in sorted(self.jobs.items()) if job.held is None and not job.ready_at]
        return sorted(free, key=lambda seq: (self.jobs[seq].deliveries == 0, seq))

    def choose(self, count: int) -> tuple[list[int], list[int]]:
        """What a claim gets, and what it moves instead [DLQ-2]."""
        chosen: list[int] = []
        moved: list[int] = []
        for seq in self.ready():
            if len(chosen) == count:
                break
            is_due = self.max_deliveries and self.jobs[seq].deliveries >= self.max_deliveries
            (moved if is_due else chosen).append(seq)
        return sorted(chosen), moved

    def lease(self, seq: int) -> Held | None:
        job = self.jobs.get(seq)
        return self.under.get(seq) if job is None else job.held

    def split(self, node: str, seqs: list[int], ids: list[str]) -> tuple[list[int], list[int]]:
        """What a call is about, and what it skips [ACK-3, LSE-7, LSE-8]."""
        held: list[int] = []
        skipped: list[int] = []
        for at, seq in enumerate(seqs):
            lease = None if seq in held else self.lease(seq)
            fits = lease is not None and lease.node == node and (not ids or ids[at] in ("", lease.id))
            (held if fits else skipped).append(seq)
        return held, skipped

    def delete(self, seqs: list[int]) -> None:
        for seq in seqs:
            job = self.jobs.pop(seq, None)
            if job is not None and job.held is not None:
                self.under[seq] = job.held

    def restart(self, *, kept: bool) -> None:
        """What a stop leaves [QRC-2, QRC-3]."""
        if not kept:
            self.under = {}
            self.jobs = {seq: Job() for seq in self.jobs}


class QueueMachine(RuleBasedStateMachine):
    """The engine and the model, side by side."""

    engine: Engine

    @initialize(kept=st.booleans(), most=st.sampled_from((0, 1, 2, 3)), segment=st.sampled_from((1, 3, 100)))
    def begin(self, kept: bool, most: int, segment: int) -> None:
        self.kept = kept
        self.clock = ManualClock()
        self.sim = SimFs(1)
        self.boots = 0
        self.tokens: list[tuple[int, str]] = []
        self.config = EngineConfig(
            wal_file_bytes=8192, wal_init_zero=False, segment_max_events=segment, checkpoint_records=2
        )
        self.model = Model(most)
        self.open()
        self.engine.put_topic(DEAD, {"durability": "fsync"})
        config: dict[str, Any] = {"type": "queue", "durability": "fsync", "leases_durable": kept}
        self.engine.put_topic(QUEUE, config | {"max_deliveries": most, "dead_letter": DEAD})

    def open(self) -> None:
        self.engine = Engine.open(PATH, self.config, clock=self.clock, fs=self.sim, boot_id=f"boot-{self.boots}")

    def call(self) -> Model:
        """Every call sees the leases as they are now."""
        self.model.pass_to(self.clock.now_ms())
        return self.model

    @rule(count=st.integers(1, 4))
    def produce(self, count: int) -> None:
        self.engine.append(QUEUE, [new(self.model.head + n) for n in range(1, count + 1)])
        for _ in range(count):
            self.model.head += 1
            self.model.jobs[self.model.head] = Job()

    @rule(node=st.sampled_from(NODES), max=st.integers(1, 5), lease_ms=st.sampled_from((100, 1000, 60_000)))
    def claim(self, node: str, max: int, lease_ms: int) -> None:
        model = self.call()
        chosen, moved = model.choose(max)
        result = self.engine.claim(QUEUE, node, max, lease_ms)
        assert [job.seq for job in result.jobs] == chosen
        known = {token for _, token in self.tokens}
        for job in result.jobs:
            mine = model.jobs[job.seq]
            mine.deliveries += 1
            mine.held = Held(node, job.lease_id, self.clock.now_ms() + lease_ms)
            assert (job.deliveries, job.deadline, job.data) == (mine.deliveries, mine.held.deadline, job.seq)
            assert job.lease_id not in known, "an id never occurs twice [LSE-4]"
            self.tokens.append((job.seq, job.lease_id))
        for seq in moved:
            model.dead.append((seq, model.jobs.pop(seq).deliveries))
        assert result.ready == len(model.ready())

    def some(self, data: st.DataObject) -> tuple[list[int], list[str]]:
        """Seqs of a call, and perhaps tokens, current and stale ones."""
        if data.draw(st.booleans()) and self.tokens:
            pairs = data.draw(st.lists(st.sampled_from(self.tokens[-12:]), max_size=4))
            blank = data.draw(st.booleans())
            return [seq for seq, _ in pairs], ["" if blank and seq % 3 == 0 else token for seq, token in pairs]
        return data.draw(st.lists(st.integers(1, max(self.model.head, 1)), max_size=4)), []

    @rule(node=st.sampled_from(NODES), data=st.data())
    def ack(self, node: str, data: st.DataObject) -> None:
        model = self.call()
        seqs, ids = self.some(data)
        held, skipped = model.split(node, seqs, ids)
        result = self.engine.ack(QUEUE, node, seqs, ids)
        for seq in held:
            model.jobs.pop(seq, None)
            model.under.pop(seq, None)
        assert (result.acked, result.skipped) == (len(held), skipped)
        assert (result.ready, result.in_flight) == (len(model.ready()), self.in_flight())

    @rule(node=st.sampled_from(NODES), delay_ms=st.sampled_from((0, 0, 500, 5000)), data=st.data())
    def nack(self, node: str, delay_ms: int, data: st.DataObject) -> None:
        model = self.call()
        seqs, ids = self.some(data)
        held, skipped = model.split(node, seqs, ids)
        result = self.engine.nack(QUEUE, node, seqs, ids, delay_ms=delay_ms)
        for seq in held:
            model.under.pop(seq, None)
            if seq in model.jobs:
                model.jobs[seq].held = None
                model.jobs[seq].ready_at = self.clock.now_ms() + delay_ms if delay_ms else 0
        assert (result.nacked, result.skipped) == (len(held), skipped)
        assert (result.ready, result.in_flight) == (len(model.ready()), self.in_flight())

    @rule(node=st.sampled_from(NODES), lease_ms=st.sampled_from((100, 3000)), data=st.data())
    def extend(self, node: str, lease_ms: int, data: st.DataObject) -> None:
        model = self.call()
        seqs, ids = self.some(data)
        held, skipped = model.split(node, seqs, ids)
        result = self.engine.extend(QUEUE, node, seqs, ids, lease_ms=lease_ms)
        until = self.clock.now_ms() + lease_ms
        for seq in held:
            lease = model.lease(seq)
            assert lease is not None
            if seq in model.jobs:
                model.jobs[seq].held = lease._replace(deadline=until)
            else:
                model.under[seq] = lease._replace(deadline=until)
        assert (result.extended, result.skipped, result.deadlines) == (len(held), skipped, dict.fromkeys(held, until))

    @rule(data=st.data(), before=st.booleans())
    def delete(self, data: st.DataObject, before: bool) -> None:
        model = self.call()
        seqs = data.draw(st.lists(st.integers(1, max(model.head, 1)), min_size=1, max_size=3))
        if before:
            self.engine.delete(QUEUE, before_seq=seqs[0])
            model.delete([seq for seq in model.jobs if seq < seqs[0]])
        else:
            self.engine.delete(QUEUE, seqs=seqs)
            model.delete(seqs)

    @rule(ms=st.sampled_from((1, 99, 100, 101, 1000, 5000, 60_001)), ticks=st.booleans())
    def wait(self, ms: int, ticks: bool) -> None:
        self.clock.advance(ms)
        if ticks:
            self.engine.tick()

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        if full:
            self.engine.checkpoint(full=True)
        else:
            self.engine.snapshot()

    @rule(how=st.sampled_from(("close", "kill", "crash")), seed=st.integers(0, 99))
    def stop(self, how: str, seed: int) -> None:
        note(how)
        if how == "close":
            self.engine.close()
        elif how == "kill":
            self.sim = self.sim.kill_image()
        else:
            self.sim = self.sim.crash_image(seed)
            self.boots += 1
        self.call().restart(kept=self.kept)
        self.open()

    def in_flight(self) -> int:
        return sum(job.held is not None for job in self.model.jobs.values())

    @invariant()
    def shows_what_the_model_says(self) -> None:
        model = self.call()
        state = self.engine.state(QUEUE)
        assert state.queue is not None
        delayed = {seq: job.ready_at for seq, job in sorted(model.jobs.items()) if job.ready_at}
        shown = state.queue["ready"], state.queue["in_flight"], state.queue["delayed"], state.head_seq
        assert shown == (len(model.ready()), self.in_flight(), len(delayed), model.head)
        page = self.engine.leases(QUEUE, page_size=1000)
        held = {seq: (*job.held, job.deliveries) for seq, job in sorted(model.jobs.items()) if job.held is not None}
        assert {one.seq: (one.node, one.lease_id, one.deadline, one.deliveries) for one in page.leases} == held
        assert {one.seq: one.ready_at for one in page.delayed} == delayed
        assert [record.seq for record in self.engine.read(QUEUE, limit=1000).records] == sorted(model.jobs)

    @invariant()
    def dead_letters_are_those_that_were_due(self) -> None:
        records = self.engine.read(DEAD, limit=1000).records
        told = [(record.meta or {}) for record in records]
        found = [(int(meta["$dead_letter_src_seq"]), int(meta["$dead_letter_deliveries"])) for meta in told]
        assert found == self.model.dead
        assert [record.data for record in records] == [seq for seq, _ in self.model.dead]


# The full size takes longer than one test may otherwise.
pytestmark = pytest.mark.timeout(max(300, 2 * MACHINES))

QueueMachine.TestCase.settings = settings(
    max_examples=MACHINES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
test_a_queue_behaves_like_its_model = QueueMachine.TestCase
