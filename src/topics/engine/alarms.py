"""What is due at an instant of the monotonic clock: long polls, heartbeats, sessions.

A heap: arming costs O(log n), cancelling O(1), looking at the next one O(1). Owner only.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count

log = logging.getLogger("topics.engine")


class Alarm:
    """One call at one instant, unless it is cancelled before."""

    __slots__ = ("_alarms", "call", "due_ns")

    def __init__(self, alarms: Alarms, due_ns: int, call: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.call: Callable[[], None] | None = call
        self._alarms = alarms

    def cancel(self) -> None:
        """Not any more; again is fine, also when it has rung."""
        if self.call is not None:
            self.call = None
            self._alarms.note_cancelled()


class Alarms:
    """All of them. `armed` is called when the next one is earlier than it was."""

    def __init__(self) -> None:
        self.armed: Callable[[], None] = lambda: None
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = count()
        self._cancelled = 0

    def at(self, due_ns: int, call: Callable[[], None]) -> Alarm:
        """Have something called then, or soon after."""
        alarm = Alarm(self, due_ns, call)
        before = self.next_ns()
        heapq.heappush(self._heap, (due_ns, next(self._numbers), alarm))
        if before is None or due_ns < before:
            self.armed()
        return alarm

    def next_ns(self) -> int | None:
        """When the next one rings."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def ring(self, now_ns: int) -> None:
        """Call what is due; what that arms anew has to wait for the next time."""
        anew = next(self._numbers)
        armed: list[tuple[int, int, Alarm]] = []
        while (when := self.next_ns()) is not None and when <= now_ns:
            entry = heapq.heappop(self._heap)
            alarm = entry[2]
            if entry[1] > anew:
                armed.append(entry)
                continue
            call, alarm.call = alarm.call, None
            assert call is not None
            try:
                call()
            except Exception:  # the others are due all the same
                log.exception("what was due failed")
        for entry in armed:
            heapq.heappush(self._heap, entry)

    def note_cancelled(self) -> None:
        """One of the heap will not ring; they are cleared away before they are many."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [one for one in self._heap if one[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
