"""Time moved by hand: the only clock of the tests (13 §2).

    call          wall time     monotonic time
    advance(ms)   + ms          + ms            time passes
    jump(ms)      + ms, any sign  unchanged     someone set the clock

Monotonic time never goes back. Any thread may call any method; a reader sees either side of a move, never half of it.
"""

from __future__ import annotations

import threading

TEN_YEARS_MS = 10 * 365 * 24 * 3600 * 1000
START_MS = 1_700_000_000_000


class ManualClock:
    """A `topics.clock.Clock` that stands still until the test moves it."""

    __slots__ = ("_lock", "_monotonic_ns", "_now_ms")

    def __init__(self, start_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._now_ms = start_ms
        # Not zero and not related to wall time, so that code mixing the two up is noticed.
        self._monotonic_ns = 5_000_000_000

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        if ms < 0:
            raise ValueError("time does not pass backwards; use jump() for the wall clock")
        with self._lock:
            self._now_ms += ms
            self._monotonic_ns += ms * 1_000_000

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back by `ms`, at most ten years; no time passes."""
        if abs(ms) > TEN_YEARS_MS:
            raise ValueError("a jump is at most ten years")
        with self._lock:
            self._now_ms += ms
