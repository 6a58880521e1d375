"""How late the event loop comes to what is due: a call every millisecond, on the loop that is looked at.

A stretch of work between two calls makes the second one late by what is left of it. What the machine takes away from
the process is in it too; the same beat on an idle server tells how much that is.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from bench.measure import percentiles_us

EVERY_S = 0.001
SHARES = (50, 99, 99.9, 100)


class Beat:
    """Runs from when it is made until it is told."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
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
        self._due_ns = 0

    def tell(self, path: Path) -> None:
        """Write down how late the calls were, and how many there were."""
        told = {**percentiles_us(self._lags_ns, SHARES), "beats": len(self._lags_ns)}
        path.write_text(json.dumps(told), encoding="ascii")
