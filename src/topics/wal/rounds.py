"""Rounds: how concurrent callers share one sync [W-52].

While a sync runs, callers gather for the next. The first of them leads it; the others wait, each on a
lock of its own, so that waking them costs one hand-over each. A leader first waits until as many have
come as shared the last sync, at most half as long as that sync took: those just answered are about to
come back, and syncing without them would halve every round. A lone caller waits for nobody.
"""

from __future__ import annotations

import threading


class Rounds:
    """Any thread may join; the rest is for the leader, under the log's sync lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathering: list[threading.Lock] | None = None
        self._running: list[threading.Lock] = []
        self._wanted = 0
        self._full: threading.Lock | None = None

    def join(self) -> threading.Lock | None:
        """`None` makes the caller the leader of the next sync; else a lock that it acquires to wait."""
        with self._lock:
            if self._gathering is None:
                self._gathering = []
                return None
            done = threading.Lock()
            done.acquire()
            self._gathering.append(done)
            if self._full is not None and len(self._gathering) >= self._wanted:
                self._full.release()
                self._full = None
            return done

    def gather(self, last_sync_ns: int) -> None:
        """Close the round: who has joined is served by the sync that follows, who comes later by the next."""
        full: threading.Lock | None = None
        with self._lock:
            assert self._gathering is not None
            if len(self._gathering) < self._wanted:
                full = self._full = threading.Lock()
                full.acquire()
        if full is not None:
            full.acquire(timeout=last_sync_ns / 2e9)
        with self._lock:
            self._full = None
            self._running, self._gathering = self._gathering, None
            self._wanted = len(self._running)

    def end(self) -> None:
        """The sync is over, well or badly: whoever waited looks for itself."""
        for done in self._running:
            done.release()
        self._running = []
