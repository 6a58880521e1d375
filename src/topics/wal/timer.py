"""The thread behind `batch(window)`: syncs what no further call would [W-52, W-82].

And what one would, a little before it: a call that finds the window passed has to wait for the disk.

It holds the log weakly, so a log that nobody keeps is collected and closed like any other object.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from topics.errors import WalClosed, WalError
from topics.interrupts import Flag

log = logging.getLogger("topics.wal")


EARLY = 0.8
"""Of a window, after which the oldest record that waits is synced."""


class SyncTimer:
    """One daemon thread per log, started at the first append and stopped at close."""

    def __init__(self, tick: Callable[[], float], window_ms: float) -> None:
        """`tick` says in how many seconds to come back; 0: not before it is armed."""
        self._tick = weakref.WeakMethod(tick)
        self._wait_s = EARLY * window_ms / 1000
        self._armed = Flag()
        self._stopped = Flag()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        """Known once it runs: one that does not yet cannot be waited for."""
        self._refused = False
        """Whether it was told that the system has no thread to give."""

    def start(self) -> bool:
        """Start the thread, once; `False` if there is none to be had now."""
        if self._thread is not None:
            return True
        with self._starting:
            if self._thread is None and not self._stopped.is_set():
                thread = threading.Thread(target=self._run, name="topics-wal-timer", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    self._warn(error)
                    return False
                self._thread = thread
        return True

    def _warn(self, error: RuntimeError) -> None:
        """Once: every append tries again."""
        if not self._refused:
            self._refused = True
            log.warning("the timer is not running, appends sync by themselves: %s", error)

    def arm(self) -> bool:
        """Something unsynced is waiting: look at it before its window has passed; `False` if nobody will."""
        if not self.start():
            return False
        self._armed.set()
        return True

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller."""
        self._stopped.set()
        self._armed.set()
        with self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            if not wait_s:
                self._armed.wait()
                self._armed.clear()
                wait_s = self._wait_s
            if self._stopped.wait(wait_s):
                return
            wait_s = 0.0
            tick = self._tick()
            if tick is None:
                return
            try:
                wait_s = tick()
            except WalClosed:
                return
            except WalError as error:
                log.error("the background sync failed: %s", error)
                return
            except Exception:  # a meter that raises must not end the syncing
                log.exception("the background sync met an error that is not the log's")
            del tick
