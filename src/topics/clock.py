"""Time: the only module that reads it [W-4, GEN-1].

Wall time dates things; monotonic time measures them. Both come from one injected object, so tests
move time by hand (`topics.testing.ManualClock`) and never sleep.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the product asks of time. Any thread may call it."""

    def now_ms(self) -> int:
        """Integer milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Called several times for each request: one call less.
    monotonic_ns = staticmethod(time.monotonic_ns)


def pause(ns: int) -> None:
    """Leave the processor to others for a while; nothing may depend on how long that is."""
    time.sleep(ns / 1e9)
