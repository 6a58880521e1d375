"""Following a topic in this process: records and gaps are handed over one by one (06 §18).

A thread of its own reads, hands over, and waits for the next publication. So what a slow receiver does not take stays
in the topic, and a receiver may call the engine: it never runs on the owner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from topics.engine import read as reading
from topics.errors import EngineClosed, StoreUnavailable, TopicsError
from topics.interrupts import Flag
from topics.model import Gap, ReadResult, Record

if TYPE_CHECKING:
    from topics.engine.engine import Engine

log = logging.getLogger("topics.engine")

RETRY_S = 1.0
"""How long it waits before it asks a cold tier again that fails."""


class Takes(Protocol):
    """A queue, as far as it matters here."""

    def put(self, item: Record | Gap, /) -> object: ...


Receiver = Callable[[Record | Gap], object] | Takes


class Subscription:
    """One topic, followed until `close`, or until the topic or the engine is gone: then `error` says why."""

    def __init__(self, engine: Engine, query: reading.Query, receiver: Receiver) -> None:
        """For `Engine.subscribe`."""
        self.cursor = query.from_seq
        """The last seq that was looked at."""
        self.error: Exception | None = None
        self._engine = engine
        self._query = query
        self._give: Callable[[Record | Gap], object] = receiver if callable(receiver) else receiver.put
        self._closed = Flag()
        self._interrupt: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="topics-subscription", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand nothing over any more; on return nothing is being handed over, unless the receiver calls it."""
        self._closed.set()
        self._interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    result = self._engine.poll(self._query._replace(from_seq=self.cursor), self._until)
                except StoreUnavailable as error:
                    log.warning("a subscription of %r waits for the cold tier: %s", self._query.name, error)
                    self._closed.wait(RETRY_S)
                    continue
                if result is not None:
                    self._hand_over(result)
        except (TopicsError, OSError) as error:
            self.error = error
            if not isinstance(error, EngineClosed):
                log.info("a subscription of %r ends: %s", self._query.name, error)
        except Exception as error:
            self.error = error
            log.exception("whoever subscribed to %r failed", self._query.name)

    def _until(self, interrupt: Callable[[], None]) -> None:
        """The read that begins can be called off like this."""
        self._interrupt = interrupt
        if self._closed.is_set():
            interrupt()

    def _hand_over(self, result: ReadResult) -> None:
        if result.tombstone is not None:
            self._give(result.tombstone)
        for record in result.records:
            if self._closed.is_set():
                return
            self._give(record)
            self.cursor = record.seq
        self.cursor = result.next_from_seq
