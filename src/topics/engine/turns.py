"""A line for what nobody else may wait for: one at a time, and not while somebody's write or delivery is due [S-320].

    put ──▶ line ──a pass of the owner with nothing else to do──▶ one call ──▶ everybody else ──▶ the next one …

While writes are under way the line stands still; whoever finishes them stirs it. It never stands for long: some calls
are made every `PATIENCE_NS` whatever is due, so readers get on beside a writer that never rests. Nothing is polled.
Owner only. Embedded, where whoever calls the engine is the owner, nothing is ever due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from topics.clock import Clock
from topics.engine.alarms import Alarms
from topics.storage.owner import Owner

PATIENCE_NS: Final = 5_000_000
AT_ONCE: Final = 3
AT_ONCE_NS: Final = 1_000_000
"""So many calls are made when patience has run out; the next one only if they have not taken so long."""


def _never() -> bool:
    return False


class Turns:
    """One per engine. Invariant: while somebody is in line, a look at it is scheduled, an alarm is set, or both."""

    def __init__(self, owner: Owner, clock: Clock, alarms: Alarms) -> None:
        self._owner = owner
        self._clock = clock
        self._alarms = alarms
        self._is_busy = self._has_more = _never
        self._line: deque[Callable[[], None]] = deque()
        self._due_ns = 0
        """When the first one goes on, whatever else is due."""
        self._looking = False
        self._armed = False

    def give_way(self, is_busy: Callable[[], bool] = _never, has_more: Callable[[], bool] = _never) -> None:
        """From now on the line stands while something is under way that ends with `stir`, or more is to do at once."""
        self._is_busy, self._has_more = is_busy, has_more
        self.stir()

    def put(self, call: Callable[[], None]) -> None:
        """Have it called, behind all that were put before."""
        self._line.append(call)
        if len(self._line) == 1:
            self._due_ns = self._clock.monotonic_ns() + PATIENCE_NS
            self._look_soon()

    def stir(self) -> None:
        """Something that others waited for has ended."""
        if self._line:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._owner.soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._line:
            return
        calls, began_ns = AT_ONCE, self._clock.monotonic_ns()
        if began_ns < self._due_ns:
            calls = 1
            if self._is_busy():
                self._arm()
                return
            if self._has_more():
                self._look_soon()
                return
        try:
            while self._line and calls:
                self._line.popleft()()
                calls = calls - 1 if self._clock.monotonic_ns() - began_ns < AT_ONCE_NS else 0
        finally:
            self._due_ns = self._clock.monotonic_ns() + PATIENCE_NS
            self.stir()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._alarms.at(self._due_ns, self._ring)

    def _ring(self) -> None:
        self._armed = False
        self.stir()
