"""How long the event loop does not get round to things: `topics_loop_stall_ms` [P-10].

A beat is due every 50 ms. The time by which it comes late is how long the loop was held up by one stretch of code, less
at most one beat. That costs twenty short calls a second and nothing per request. Event loop only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from topics.engine.metrics import Timings

if TYPE_CHECKING:
    from topics.server.app import App

BEAT_S: Final = 0.05
WARN_MS: Final = 200.0
WARN_EVERY_MS: Final = 60_000.0
BUCKETS_MS: Final = (0.5, 1, 2, 5, 10, 50, 100, 500)


class Stalls:
    """How often the loop was held up how long."""

    def __init__(self) -> None:
        self.last_ms = 0.0
        """By how much the last beat was late."""
        self._counts = [0] * (len(BUCKETS_MS) + 1)
        self._sum_ms = 0.0

    def note(self, ms: float) -> None:
        """One beat that came so late."""
        self.last_ms = ms
        self._counts[bisect_left(BUCKETS_MS, ms)] += 1
        self._sum_ms += ms

    def timings(self) -> Timings:
        """As a histogram (08 §11)."""
        return Timings(BUCKETS_MS, tuple(self._counts), round(self._sum_ms, 3))


class Watchdog:
    """Tells `app.stalls` of every beat, and warns, rarely."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._due_ns = 0
        self._handle: asyncio.TimerHandle | None = None
        self._warned_ns: int | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat until `stop`."""
        self._due_ns = self._app.clock.monotonic_ns() + int(BEAT_S * 1e9)
        self._handle = loop.call_later(BEAT_S, self._beat, loop)

    def stop(self) -> None:
        """No more beats."""
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._app.clock.monotonic_ns()
        self._note(max(now - self._due_ns, 0) / 1e6, now)
        self._due_ns = now + int(BEAT_S * 1e9)
        self._handle = loop.call_later(BEAT_S, self._beat, loop)

    def _note(self, late_ms: float, now_ns: int) -> None:
        self._app.stalls.note(late_ms)
        if self._app.engine is not None:
            self._app.engine.core.load.loop_lag_ms = late_ms
        due = self._warned_ns is None or (now_ns - self._warned_ns) / 1e6 >= WARN_EVERY_MS
        if late_ms >= WARN_MS and due:
            self._warned_ns = now_ns
            self._app.warn(f"the event loop stood still for {late_ms:.0f} ms; requests waited that long")
