"""An owner whose helpers move step by step: every order of work, reports and calls that threads could produce.

    soon     what the owner put off; `run` does it
    lane     work waits in its lane; `work` does the next piece, and its report waits
    report   tells the owner of a piece that is done

Reports of one lane come in order; a lane may do its next piece before the owner has heard of the last one, as helpers
of an event loop do. One thread, no time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from topics.storage.owner import Done, Steps, Synced, Work


class SteppedOwner:
    """A `topics.storage.owner.Owner` that moves only when it is told."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self._last: deque[Callable[[], None]] | None = None
        """What comes at the end of the pass, while there is one."""
        self.lanes: dict[str, deque[tuple[Work, Done]]] = {}
        self._reports: dict[str, deque[Callable[[], None]]] = {}

    def __enter__(self) -> SteppedOwner:
        return self

    def __exit__(self, *exception: object) -> None:
        """There is one thread, and it is the owner."""

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def last(self, call: Callable[[], None]) -> None:
        (self._soon if self._last is None else self._last).append(call)

    def aside(self, lane: str, work: Work, done: Done) -> None:
        self.lanes.setdefault(lane, deque()).append((work, done))

    def can_sync(self, lane: str) -> bool:
        return False

    def sync(self, lane: str, descriptor: int, done: Synced) -> None:
        raise NotImplementedError

    def apart(self, lane: str, work: Work, done: Done) -> None:
        self.aside(lane, work, done)

    def sliced(self, work: Steps, done: Done) -> None:
        self.aside("slices", lambda: deque(work, maxlen=0), done)

    def give_way(self) -> None:
        """There is one thread."""

    def run(self) -> None:
        """What was put off, but nothing of the helpers."""
        while self._soon:
            self.turn()

    def turn(self) -> None:
        """One pass: what was put off by now, and not what that puts off."""
        last = self._last = deque()
        for calls in (self._soon, last):
            for _ in range(len(calls)):
                calls.popleft()()
        self._last = None
        for call in last:
            call()

    def waiting(self, lane: str) -> int:
        return len(self.lanes.get(lane, ()))

    def work(self, lane: str) -> Callable[[], None]:
        """Let a helper do its next piece; the caller says when the owner hears of it."""
        work, done = self.lanes[lane].popleft()
        outcome: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - an outcome like any other
            outcome = error
        return lambda: done(outcome)

    def step(self, lane: str) -> None:
        """One piece of work, its report, and what the report put off."""
        self.work(lane)()
        self.run()

    def settle(self) -> None:
        """Everything, until nothing is left."""
        self.run()
        while self._step_any():
            self.run()

    def _step_any(self) -> bool:
        for reports in self._reports.values():
            if reports:
                _hear(reports)
                return True
        for lane, queue in self.lanes.items():
            if queue:
                self.work(lane)()
                return True
        return False

    def move(self, rng: random.Random) -> None:
        """One random thing that could happen now: a pass of the owner, a piece of work, or a report."""
        moves: list[Callable[[], None]] = [self.run] if self._soon else []
        moves += [partial(self._work_unheard, lane) for lane, queue in self.lanes.items() if queue]
        moves += [partial(_hear, reports) for reports in self._reports.values() if reports]
        if moves:
            rng.choice(moves)()

    def _work_unheard(self, lane: str) -> None:
        self._reports.setdefault(lane, deque()).append(self.work(lane))


def _hear(reports: deque[Callable[[], None]]) -> None:
    reports.popleft()()
