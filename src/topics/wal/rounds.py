"""Rounds: how concurrent callers share one sync [W-52].

While a sync runs, callers gather for the next. The first of them leads it; the others wait, each on a lock of its own,
so that waking them costs one hand-over each. A leader first waits until as many have come as shared the last sync, at
most half as long as that sync took: those just answered are about to come back, and syncing without them would halve
every round. A lone caller waits for nobody.

A leader may be interrupted anywhere, by a signal for instance. Its round is ended all the same, and a follower that
has waited long looks for itself: a round without a leader is given up, never waited for.
"""

from __future__ import annotations

import threading

LOOK_AGAIN_S = 1.0


class Round:
    """Callers that one sync will serve."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[threading.Lock] = []


class Rounds:
    """Any thread may join; `gather` is for the leader, under the log's sync lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathering: Round | None = None
        self._wanted = 0
        self._full: threading.Lock | None = None

    def idle(self) -> bool:
        """Whether nobody gathers at this moment."""
        return self._gathering is None

    def join(self) -> Round | None:
        """A round makes the caller its leader, who must `end` it; `None` says that it has been waited for."""
        done = threading.Lock()
        with self._lock:
            round = self._gathering
            if round is None:
                self._gathering = round = Round()
                return round
            done.acquire()
            round.waiting.append(done)
            if self._full is not None and len(round.waiting) >= self._wanted:
                self._full.release()
                self._full = None
        if not done.acquire(timeout=LOOK_AGAIN_S):
            self.end(round)
        return None

    def gather(self, round: Round, last_sync_ns: int) -> None:
        """Close the round: who has joined is served by the sync that follows, who comes later by the next."""
        full: threading.Lock | None = None
        with self._lock:
            if self._gathering is round and len(round.waiting) < self._wanted:
                full = self._full = threading.Lock()
                full.acquire()
        if full is not None:
            full.acquire(timeout=last_sync_ns / 2e9)
        with self._lock:
            self._full = None
            if self._gathering is round:
                self._gathering = None
            self._wanted = len(round.waiting)

    def end(self, round: Round) -> None:
        """The sync is over, well or badly, or never came: whoever waited looks for itself."""
        with self._lock:
            if self._gathering is round:
                self._gathering = None
            waiting, round.waiting = round.waiting, []
        for done in waiting:
            if done.locked():
                done.release()
