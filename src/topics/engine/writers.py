"""Writers of staged commits: whose turn it is, and what their newest version brought where [A-19, TXN-7].

Commits and aborts of one writer are carried out one after another, so that of concurrent commits of one version one
appends and the others find it done. The committed version itself is the writer's pair under topic 0 of `Producers`.
Owner only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from topics.errors import TopicsError
from topics.model import CommittedTopic

FORGET_FROM: Final = 1024


class Newest:
    """The newest version of a writer."""

    __slots__ = ("topics", "version")

    def __init__(self, version: int, topics: dict[int, CommittedTopic]) -> None:
        self.version = version
        self.topics = topics
        """By id of the topic."""


class Writers:
    """Who is at it."""

    def __init__(self) -> None:
        self.newest: dict[str, Newest] = {}
        """Of writers that have a committed version, and of some that were forgotten since."""
        self._most = FORGET_FROM
        self.stuck: dict[str, TopicsError] = {}
        """Writers whose commit is durable and cannot be shown yet, and why [S-290]."""
        self._lines: dict[str, deque[Callable[[], None]]] = {}

    def begin(self, id: str, call: Callable[[], None]) -> None:
        """Carry out `call` when nothing else of the writer is under way; it is over with `end`."""
        line = self._lines.get(id)
        if line is None:
            self._lines[id] = deque()
            call()
        else:
            line.append(call)

    def end(self, id: str) -> Callable[[], None] | None:
        """What a writer had under way is over; what is to be called next, if anything waits."""
        line = self._lines[id]
        if line:
            return line.popleft()
        del self._lines[id]
        return None

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Let go of what is kept of writers that are no more, once there may be as many of them as of others."""
        if len(self.newest) > self._most:
            self.newest = {id: one for id, one in self.newest.items() if not is_forgotten(id)}
            self._most = max(2 * len(self.newest), FORGET_FROM)

    def is_busy(self, id: str) -> bool:
        """Whether something of the writer is under way."""
        return id in self._lines
