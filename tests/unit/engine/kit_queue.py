"""Queues on a simulated disk with a clock moved by hand: workers that claim, and calls that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.unit.engine.kit import Store
from topics.engine import queue
from topics.engine.engine import Engine
from topics.model import ClaimResult, Job, new

QUEUE = "jobs"


class Queue(Store):
    """A store with one queue in it."""

    def __init__(self, place: str = "tail", *, config: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(place, **options)
        self.put_queue(**(config or {}))

    def put_queue(self, **config: Any) -> Engine:
        return self.put(QUEUE, type="queue", **config)

    def produce(self, count: int, *, start: int = 1, **more: Any) -> None:
        """Jobs with the values `start`, `start + 1` …, in one write."""
        self.engine.append(QUEUE, [new(n, **more) for n in range(start, start + count)])

    def claim(self, max: int = 1, node: str = "w", lease_ms: int | None = None) -> list[int]:
        """The seqs of claimed jobs."""
        return seqs(self.engine.claim(QUEUE, node, max, lease_ms))

    def jobs(self, max: int = 1, node: str = "w", lease_ms: int | None = None) -> Sequence[Job]:
        return self.engine.claim(QUEUE, node, max, lease_ms).jobs

    def counts(self) -> tuple[int, int, int]:
        """`ready`, `in_flight` and `delayed`; their sum is the number of live jobs [QOB-1]."""
        state = self.engine.state(QUEUE)
        assert state.queue is not None
        counts = state.queue["ready"], state.queue["in_flight"], state.queue["delayed"]
        assert sum(counts) == state.count
        return counts

    def live(self) -> list[int]:
        return [record.seq for record in self.engine.read(QUEUE, limit=1000).records]

    def begin_claim(self, node: str = "w", max: int = 1, lease_ms: int | None = None) -> Waiting:
        """A claim that may wait for its window."""
        return Waiting(self.engine, queue.Claim(node, max, lease_ms))

    def work(self, node: str = "w", max: int = 1, lease_ms: int | None = None) -> Stream:
        return Stream(self.engine, queue.Claim(node, max, lease_ms))


class Waiting:
    """A claim under way, and what it was answered with."""

    def __init__(self, engine: Engine, asked: queue.Claim) -> None:
        self.outcomes: list[Any] = []
        with engine._owner:
            self.claimer = queue.claim(engine.core, QUEUE, asked, self.outcomes.append)

    @property
    def is_waiting(self) -> bool:
        return not self.outcomes

    @property
    def seqs(self) -> list[int]:
        (outcome,) = self.outcomes
        return seqs(outcome)


class Stream:
    """A work stream, without a socket."""

    def __init__(self, engine: Engine, asked: queue.Claim) -> None:
        self.jobs: list[Job] = []
        self.ended: list[Exception] = []
        self.opened: list[Any] = []
        self._engine = engine
        with engine._owner:
            queue.work(engine.core, QUEUE, asked, self.jobs.extend, self.ended.append, self.opened.append)

    @property
    def worker(self) -> queue.Worker:
        (worker,) = self.opened
        assert isinstance(worker, queue.Worker)
        return worker

    def take(self) -> list[int]:
        """The seqs of jobs that came since."""
        found = [job.seq for job in self.jobs]
        self.jobs.clear()
        return found

    def do(self, what: str) -> None:
        """`pause`, `resume` or `close`."""
        with self._engine._owner:
            getattr(self.worker, what)()


def seqs(result: ClaimResult) -> list[int]:
    return [job.seq for job in result.jobs]
