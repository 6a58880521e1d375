"""The lease log: what happened to leases, where they survive restarts (04 §7).

    Events     gathers what one stretch of a call changes: one submission, in the order in which it happened [QRC-1]
    write      the same of events that are known already

Synced before anybody is answered; if that fails they are not logged, and nothing else changes [QRC-5]. Of other queues
nothing is logged [QRC-2]. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from topics.codec import control, frame
from topics.engine import copies
from topics.engine.core import Core
from topics.engine.topic import Topic
from topics.errors import TopicsError

log = logging.getLogger("topics.engine")

SLICE: Final = 96
"""Leases handed out, given back or kept longer in one stretch: about a millisecond [P-10]."""


def write(core: Core, topic: Topic, events: Iterable[tuple[int, control.Lease]], then: Callable[[], None]) -> None:
    """Log lease events, and go on when they are synced, or cannot be."""
    gathered = Events(core, topic)
    for seq, event in events:
        gathered.add(seq, event)
    gathered.commit(then)


class Events:
    """What happened to jobs in one call: one submission, where leases survive restarts [QRC-3]."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self._core = core
        self._topic = topic
        self.kept = core.wal is not None and topic.keeps_leases
        self._now = core.clock.now_ms()
        self._frames: list[bytes] = []
        self._last: tuple[int, control.Lease] | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    def add(self, seq: int, event: control.Lease) -> None:
        """One event more."""
        if self.kept:
            if self._last is not None:
                self._encode(*self._last, more=True)
            self._last = (seq, event)

    def _encode(self, seq: int, event: control.Lease, *, more: bool) -> None:
        self._frames.append(frame.encode_control(event, self._topic.id, self._now, seq=seq, durable=True, more=more))

    def commit(self, then: Callable[[], None]) -> None:
        """Log them, and go on when they are synced, or cannot be [QRC-5]."""
        if self._last is None:
            then()
            return
        self._encode(*self._last, more=False)

        def logged(outcome: object) -> None:
            if isinstance(outcome, TopicsError):
                log.warning("topic %r: leases will not survive a restart: %s", self._topic.name, outcome)
            then()

        try:
            copies.keep_into(self._core, self._topic)
            self._core.submit(self._topic.id, b"".join(self._frames), len(self._frames), logged, durable=True)
        except TopicsError as error:
            logged(error)
