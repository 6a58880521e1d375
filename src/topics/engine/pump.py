"""What makes the scheduler's items happen: a callback that serves them in slices (08 §4).

    publication ─▶ mark ─▶ Scheduler ─▶ last: pop, serve, pop, serve … for 2 ms, then everybody else

Owner only. Nothing is polled: the callback is scheduled when there is something to pop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from topics.clock import Clock
from topics.engine.scheduler import Item, Scheduler
from topics.storage.owner import Owner

log = logging.getLogger("topics.engine")

SLICE_NS: Final = 2_000_000


class Pump:
    """One per engine [D-2]."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self.scheduler = Scheduler(clock)
        self.scheduler.on_work = self._schedule
        self.woken: Callable[[], None] = lambda: None
        """Called when there is something to serve."""
        self.armed: Callable[[], None] = lambda: None
        """Called when the clock is needed for what is left: `next_due_ns` is nearer now."""
        self._owner = owner
        self._clock = clock
        self._due_ns: int | None = None
        self._scheduled = False
        self._serving: Item | None = None
        """What wants another slice before anything else is popped."""

    def mark(self, item: Item) -> None:
        """There is something to serve; it never waits for that [D-33]."""
        self.scheduler.mark(item)
        if self.scheduler.suspended:
            self._arm()

    def forget(self, item: Item) -> None:
        """There is nothing to serve any more, for good."""
        if self._serving is item:
            self._serving = None
        self.scheduler.forget(item)

    def next_due_ns(self) -> int | None:
        """From when on `tick` has something to do; None: as things stand, nothing."""
        return self.scheduler.next_due_ns()

    def tick(self) -> None:
        """Age what waits, and let what was held back return."""
        self.scheduler.tick()

    def _schedule(self) -> None:
        """Behind what is published now: not a pass later, where nothing else waits for its turn."""
        if not self._scheduled:
            self._scheduled = True
            self._owner.last(self._work)
            self.woken()

    def _arm(self) -> None:
        """What is left waits for others, for its window or for the end of a suspension: it ages meanwhile."""
        due_ns = self.scheduler.next_due_ns()
        if due_ns is not None and due_ns != self._due_ns:
            self._due_ns = due_ns
            self.armed()

    def _work(self) -> None:
        """Serve until nothing waits or the slice is over."""
        self._scheduled = False
        scheduler, monotonic_ns = self.scheduler, self._clock.monotonic_ns
        until_ns = monotonic_ns() + SLICE_NS
        while (item := self._serving or scheduler.pop()) is not None:
            try:
                self._serving = item if item.serve() else None
            except Exception:  # whatever one topic met, the others are served [D-74]
                log.exception("a service failed")
                self._serving = None
            if self._serving is None:
                scheduler.done(item)
                if scheduler.idle:
                    return
            if self._serving is not None or monotonic_ns() >= until_ns:
                if not self._scheduled:
                    self._scheduled = True
                    self._owner.soon(self._work)
                    self.woken()
                break
        self._arm()
