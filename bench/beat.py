"""How long an event loop is kept, and how late it comes to what is due.

    TimedLoop   notes the stretch of every callback: of what was put off, of timers, of bytes that arrive
    Beat        a call every millisecond: late by the rest of the pass that was under way, all of its stretches together

What other threads and the machine take away meanwhile is in both; the same on an idle server tells how much that is.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.measure import percentiles_us
from topics.server.connections import _Front

EVERY_S = 0.001
SHARES = (50, 99, 99.9, 100)


class TimedLoop(uvloop.Loop):
    """The product's loop; `stretches` are nanoseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.stretches = array("Q")
        for name in ("connection_made", "buffer_updated", "eof_received", "resume_writing"):
            setattr(_Front, name, _noted(getattr(_Front, name), self.stretches))
        for name, place in (
            ("call_soon", 0),
            ("call_soon_threadsafe", 0),
            ("call_later", 1),
            ("call_at", 1),
            ("add_reader", 1),
        ):
            setattr(self, name, self._noting(getattr(self, name), place))

    def _noting(self, schedule: Callable[..., Any], place: int) -> Callable[..., Any]:
        """What schedules a callback, which is its argument at `place`."""

        def noting(*args: Any, **options: Any) -> Any:
            callback = _noted(args[place], self.stretches)
            return schedule(*args[:place], callback, *args[place + 1 :], **options)

        return noting


def _noted(callback: Callable[..., Any], stretches: array[int]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return callback(*args)
        finally:
            stretches.append(time.perf_counter_ns() - began)

    return noted


class Beat:
    """Runs from when it is made until it is told."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedLoop)
        self._loop = loop
        self._lags_ns: list[int] = []
        self._due_ns = 0
        self._next()

    def _next(self) -> None:
        self._due_ns = time.perf_counter_ns() + int(EVERY_S * 1e9)
        self._loop.call_later(EVERY_S, self._call)

    def _call(self) -> None:
        if self._due_ns:
            self._lags_ns.append(max(time.perf_counter_ns() - self._due_ns, 0))
        self._next()

    def again(self) -> None:
        """Forget what was, and the call that is under way."""
        self._lags_ns.clear()
        del self._loop.stretches[:]
        self._due_ns = 0

    def tell(self, path: Path) -> None:
        """Write down how late the calls were, how many there were, and how long all stretches."""
        stretches = percentiles_us(self._loop.stretches.tolist(), SHARES)
        told = {
            **percentiles_us(self._lags_ns, SHARES),
            **{f"stretch_{name}": value for name, value in stretches.items()},
            "beats": len(self._lags_ns),
        }
        path.write_text(json.dumps(told), encoding="ascii")
