"""Workers: jobs of a queue one after another, their leases kept alive meanwhile (04) [U-24].

    with log.queue("jobs").worker("w1", max=8) as jobs:
        for job in jobs:            # the job before is acked
            handle(job.data)        # leaving with an exception nacks this one, and gives back what was not begun

`Hands` is what a worker has in hand, without I/O. Jobs are claimed, up to `max` at a time; when there are none, a long
poll tells of new ones and every second one looks for those that came back. A second line of work, a thread or a task,
has the leases extended three times before they would end. A job whose lease is lost all the same, because the server
was away for longer, is not begun; one that is being done goes on, and its ack counts for nothing: somebody else has it
by then, which is what "at least once" means.

Every ack carries the lease's id, so it never touches another delivery. One thread or task drives a worker; `stop` may
come from another.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from topics import telemetry
from topics.clock import SystemClock
from topics.errors import Unreachable
from topics.interrupts import Flag
from topics.model import LEASE_MS_MAX, LEASE_MS_MIN, Job

if TYPE_CHECKING:
    from topics.surface.base import Surface

log = logging.getLogger("topics.worker")

POLL_MS: Final = 1000
"""How often jobs that came back are looked for while nothing new comes."""
BEATS: Final = 3
"""Extensions within the length of a lease."""
BACKOFF_MS: Final = 1000
BACKOFF_MAX_MS: Final = 300_000
MOST: Final = 1000
"""As many as one call may extend, however many are wanted (02 §1.9)."""
OUTAGE_S: Final = 60.0
PAUSE_MAX_S: Final = 2.0


class Settled(NamedTuple):
    """How jobs of a worker ended."""

    acked: int = 0
    nacked: int = 0
    lost: int = 0
    """Their lease was over: others have them."""


class Hands:
    """Jobs that a worker has claimed. No I/O; the worker's lock, if it has threads."""

    def __init__(self, most: int) -> None:
        self.most = min(max(most, 1), MOST)
        self.doing: dict[int, Job] = {}
        self._waiting: deque[Job] = deque()
        self.settled = Settled()

    @property
    def room(self) -> int:
        """How many more may be claimed."""
        return self.most - len(self._waiting) - len(self.doing)

    def take(self, jobs: Iterable[Job]) -> None:
        """These were claimed."""
        self._waiting.extend(jobs)

    def begin(self) -> Job | None:
        """The next one to be done."""
        if not self._waiting:
            return None
        job = self._waiting.popleft()
        self.doing[job.seq] = job
        return job

    def is_doing(self, job: Job) -> bool:
        """Whether it is neither acked nor given back yet."""
        return self.doing.get(job.seq) is job

    def held(self) -> list[Job]:
        """All of them, by seq."""
        return sorted((*self.doing.values(), *self._waiting), key=lambda job: job.seq)

    def give_back(self) -> list[Job]:
        """Those that are not settled, by seq; they are let go of."""
        jobs = self.held()
        self.doing.clear()
        self._waiting.clear()
        return jobs

    def lost(self, asked: Iterable[Job], seqs: Iterable[int]) -> list[Job]:
        """Of the leases that were asked for these are over: what was not begun is forgotten."""
        skipped = set(seqs)
        gone = {(job.seq, job.lease_id) for job in asked if job.seq in skipped}
        forgotten = [job for job in self._waiting if (job.seq, job.lease_id) in gone]
        self._waiting = deque(job for job in self._waiting if (job.seq, job.lease_id) not in gone)
        self.settled = self.settled._replace(lost=self.settled.lost + len(forgotten))
        return forgotten

    def done(self, job: Job, kind: str, count: int) -> None:
        """A job ended; `count` 0: its lease was over."""
        self.doing.pop(job.seq, None)
        kind = kind if count else "lost"
        self.settled = self.settled._replace(**{kind: getattr(self.settled, kind) + 1})
        if not count:
            log.warning("job %d: its lease was over before it was settled; it may be delivered again", job.seq)


def backoff_ms(job: Job, first_ms: int) -> int:
    """How long a job that failed rests, the longer the more often it was delivered."""
    return min(first_ms << min(job.deliveries - 1, 20), BACKOFF_MAX_MS)


def beat_s(lease_ms: int) -> float:
    """How long to wait between extensions of a lease, which is as long as a queue makes it [LSE-2]."""
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX) / 1000 / BEATS


class Outage:
    """How long a claim is tried again that the server may have carried out: what it leased comes back."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._began_ns: int | None = None
        self._pause_s = 0.05

    def pause_s(self, error: Unreachable) -> float:
        """Until the next attempt; raises when it has lasted too long."""
        now_ns = self._clock.monotonic_ns()
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        if now_ns - self._began_ns > OUTAGE_S * 1e9:
            raise error
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return self._pause_s


class Worker:
    """Iterate over it within its `with` block. `max` jobs are in hand at most; their leases are kept alive.

    A job is acked when the next one is asked for, or the block is left. An exception in the block nacks it: it comes
    back after `backoff_ms`, twice as long each time. `wait=False` ends the iteration when there is nothing to claim.
    """

    def __init__(
        self,
        surface: Surface,
        name: str,
        node: str,
        max: int = 1,
        *,
        lease_ms: int | None = None,
        backoff_ms: int = BACKOFF_MS,
        wait: bool = True,
    ) -> None:
        self._surface = surface
        self._name = name
        self._node = node
        self._lease_ms = lease_ms
        self._backoff_ms = backoff_ms
        self._wait = wait
        self._hands = Hands(max)
        self._lock = threading.Lock()
        self._stopped = Flag()
        self._ended = Flag()
        self._heart: threading.Thread | None = None
        self._head = 0
        self._current: Job | None = None

    @property
    def settled(self) -> Settled:
        """How its jobs have ended so far."""
        return self._hands.settled

    def stop(self) -> None:
        """End the iteration when the job in hand is done; any thread, a signal's handler too."""
        self._stopped.set()

    # -- the block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        state = self._surface.state(self._name)
        self._head = state.head_seq
        self._lease_ms = state.config.lease_ms if self._lease_ms is None else self._lease_ms
        self._heart = threading.Thread(target=self._beat, name="topics-worker", daemon=True)
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._heart is not None:
            self._heart.join()
        job = self._current
        if job is not None and self._hands.is_doing(job):
            if kind is None:
                self.ack(job)
            else:
                # Whoever interrupts a program says nothing about its job.
                fails = issubclass(kind, Exception)
                self.nack(job, delay_ms=backoff_ms(job, self._backoff_ms) if fails else 0)
        rest = self._hands.give_back()
        if rest:
            self._surface.nack(self._name, self._node, [one.seq for one in rest], [one.lease_id for one in rest])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job:
        if self._current is not None and self._hands.is_doing(self._current):
            self.ack(self._current)
        self._current = None
        while not self._stopped.is_set():
            with self._lock:
                job = self._hands.begin()
            if job is not None:
                self._current = job
                return job
            if not self._claim():
                if not self._wait:
                    break
                self._await_jobs()
        raise StopIteration

    def run(self, handle: Callable[[Job], object]) -> Settled:
        """Do jobs until `stop`, or with `wait=False` until there are none: one that fails is nacked, and it goes on."""
        for job in self:
            try:
                with telemetry.handling(self._name, job):
                    handle(job)
            except Exception as error:
                log.warning("job %d failed: %s", job.seq, error, exc_info=True)
                self.nack(job, delay_ms=backoff_ms(job, self._backoff_ms))
        return self.settled

    def ack(self, job: Job) -> None:
        """It is done; at the end of its turn that happens by itself."""
        result = self._surface.ack(self._name, self._node, [job.seq], [job.lease_id])
        with self._lock:
            self._hands.done(job, "acked", result.acked)

    def nack(self, job: Job, *, delay_ms: int = 0) -> None:
        """Give it back, to be claimed again after a delay."""
        result = self._surface.nack(self._name, self._node, [job.seq], [job.lease_id], delay_ms=delay_ms)
        with self._lock:
            self._hands.done(job, "nacked", result.nacked)

    # -- claiming ----------------------------------------------------------------------------------------------------

    def _claim(self) -> bool:
        outage = Outage()
        while not self._stopped.is_set():
            try:
                jobs = self._surface.claim(self._name, self._node, self._hands.room, self._lease_ms).jobs
            except Unreachable as error:
                self._stopped.wait(outage.pause_s(error))
                continue
            with self._lock:
                self._hands.take(jobs)
            return bool(jobs)
        return False

    def _await_jobs(self) -> None:
        page = self._surface.page(self._name, self._head, limit=1, wait_ms=POLL_MS)
        self._head = page.head_seq

    def _beat(self) -> None:
        """On its own thread: extend what is held."""
        assert self._lease_ms is not None
        while not self._ended.wait(beat_s(self._lease_ms)):
            with self._lock:
                held = self._hands.held()
            if held:
                self._extend(held, self._lease_ms)

    def _extend(self, held: list[Job], lease_ms: int) -> None:
        seqs, ids = [job.seq for job in held], [job.lease_id for job in held]
        try:
            skipped = self._surface.extend(self._name, self._node, seqs, ids, lease_ms=lease_ms).skipped
        except Exception as error:  # noqa: BLE001 - whatever it is: the next beat tries again, and acks tell the rest
            log.warning("leases of %r are not extended now: %s", self._name, error)
            return
        with self._lock:
            self._hands.lost(held, skipped)
