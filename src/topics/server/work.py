"""The stream of jobs: a worker keeps one connection open and is handed jobs as its slots become free (04 §8).

    GET /v0/topics/{topic}/work ─▶ WorkStream ◀── jobs ── engine's Worker, which claims for it

    id: 23
    event: job
    data: {"topic":"bake-orders","$seq":23,"lease_id":"lease_30",…}

What is leased on a connection is released when it ends, for whatever reason [WRK-6]. Event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from topics.engine import queue
from topics.engine.queue import Claim, Worker
from topics.errors import TopicsError
from topics.model import Job, check_not_system
from topics.server import sse, wire
from topics.server.exchange import Exchange
from topics.server.failure import Refused
from topics.server.queues import members
from topics.server.sse import EventStream
from topics.server.topics import name_of

if TYPE_CHECKING:
    from topics.server.app import App

HEARTBEAT_MS: Final = 15_000
_U64_MAX: Final = 2**64 - 1


def stream(exchange: Exchange) -> None:
    """`GET /v0/topics/{topic}/work`; what can be refused is refused before the stream opens [WRK-1]."""
    sse.check_accept(exchange)
    name, core, query = name_of(exchange), exchange.core, exchange.params()
    check_not_system(name)
    most = min(max(wire.number(query, "max", 1), 1), core.limits.max_claim)
    asked = Claim.parse(query.get("node", ""), most, _lease_ms(query), core.limits)
    opening = WorkStream(exchange.app, name)

    def done(outcome: Worker | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            opening.begin(exchange, outcome)

    queue.work(core, name, asked, opening.deliver, opening.topic_gone, done)


def _lease_ms(query: Mapping[str, str]) -> int | None:
    """What cannot be parsed is the topic's."""
    value = wire.number(query, "lease_ms", -1)
    return value if 0 <= value <= _U64_MAX else None


class WorkStream(EventStream):
    """One open stream of jobs, and its slot."""

    def __init__(self, app: App, topic: str) -> None:
        super().__init__(app, HEARTBEAT_MS)
        self._topic = topic
        self._worker: Worker | None = None
        self._is_full = False

    def begin(self, exchange: Exchange, worker: Worker) -> None:
        """Take a slot and send the head; jobs come from then on."""
        self._worker = worker
        refusal = self._app.streams.enter(self, exchange.key)
        if refusal is not None:
            self._let_go()
            exchange.fail(Refused(refusal))
        elif exchange.abandoned:
            self._let_go()
            exchange.reply(200, b"")  # to nobody: its slot is free
        else:
            self._open_or_nothing(exchange)

    def _open_or_nothing(self, exchange: Exchange) -> None:
        try:
            self.open(exchange)
        except BaseException:
            self._let_go()  # nothing of it stays [RES-6]
            raise

    # -- jobs --------------------------------------------------------------------------------------------------------

    def deliver(self, jobs: Sequence[Job]) -> None:
        """Push jobs that are leased to this connection by now [WRK-4]."""
        topic = self._topic.encode()
        self._write(
            b"".join(
                [b'id: %d\nevent: job\ndata: {"topic":"%b",%b}\n\n' % (job.seq, topic, members(job)) for job in jobs]
            )
        )

    @property
    def is_full(self) -> bool:
        """Output is above its mark: nothing is claimed for a client that does not read."""
        return self._is_full

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self._is_full = value
        if value and self._worker is not None:
            self._worker.pause()

    def room(self) -> None:
        if self._worker is not None:
            self._worker.resume()

    # -- ending ------------------------------------------------------------------------------------------------------

    def topic_gone(self, error: TopicsError) -> None:
        """It was deleted, or is another one by now [WRK-8]."""
        self.say(self._error(409, f"there is no such queue any more: {error}"))

    def key_removed(self) -> None:
        """The key it was opened with is gone [KEY-4]."""
        self.say(self._error("unauthorized", "the key of this stream was removed"))

    def _error(self, code: str | int, message: str) -> bytes:
        return sse.error(code, message, topic=self._topic)

    def _over(self) -> None:
        self._app.streams.leave(self)
        if self._worker is not None:
            self._worker.close()
