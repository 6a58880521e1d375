"""What calls `tick` when something is due: a thread, or a loop's timer; neither where the clock is injected [S-355]."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from typing import Protocol

from topics.errors import EngineClosed
from topics.interrupts import Flag

log = logging.getLogger("topics.engine")

LONGEST_S = 1.0


class Ticking(Protocol):
    """What the timer asks of its engine."""

    def tick(self) -> None: ...

    def idle_s(self) -> float | None:
        """How long nothing is due; None: as things stand, nothing ever."""
        ...


class Timer:
    """One daemon thread per engine. It holds the engine weakly."""

    def __init__(self, engine: Ticking) -> None:
        self._engine = weakref.ref(engine)
        self._wake = Flag()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="topics-timer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Something became due earlier than known."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller."""
        self._stopped = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause: float | None = 0.0
        while not self._stopped:
            self._wake.wait(LONGEST_S if pause is None else min(pause, LONGEST_S))
            self._wake.clear()
            engine = self._engine()
            if engine is None or self._stopped:
                return
            try:
                pause = engine.idle_s()
                if pause is not None and pause <= 0:
                    engine.tick()
                    pause = engine.idle_s()
            except EngineClosed:
                return
            except Exception:  # whatever went wrong once must not end the syncing
                log.exception("the timer met an error")
                pause = LONGEST_S
            del engine


class LoopTimer:
    """The same on the event loop that owns the engine."""

    def __init__(self, engine: Ticking, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self._woken = False
        self._stopped = False

    def wake(self) -> None:
        """Something became due earlier than known; looked at in the loop's next pass."""
        if not self._woken and not self._stopped:
            self._woken = True
            self._loop.call_soon(self._run)

    def stop(self) -> None:
        """Nothing is due any more."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> None:
        self._woken = False
        if self._stopped:
            return
        if self._handle is not None:
            self._handle.cancel()
        pause: float | None = LONGEST_S
        try:
            pause = self._engine.idle_s()
            if pause is not None and pause <= 0:
                self._engine.tick()
                pause = self._engine.idle_s()
        except EngineClosed:
            return
        except Exception:
            log.exception("the timer met an error")
        wait_s = LONGEST_S if pause is None else min(max(pause, 0.0), LONGEST_S)
        self._handle = self._loop.call_later(wait_s, self._run)
