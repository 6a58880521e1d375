"""Server-sent events: the stream that carries them, and the frames of a watch (03 §3 to §5).

    EventStream     what watches and work streams share: the connection, heartbeats, the last frame, the end
    SseStream       a watch: the sink of a feed

    id: <composite cursor>          the connection's own [RSM-1]
    event: record                   shared by all connections with the same view [A-12]
    data: {"topic":…,"records":[…]}

Event loop only.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.codec import kernel
from topics.engine.alarms import Alarm
from topics.engine.core import Core
from topics.engine.scheduler import Item
from topics.engine.topic import Topic
from topics.engine.watch import Batch, Feed, Framing
from topics.model import Gap
from topics.server import wire
from topics.server.exchange import Exchange, Outlet
from topics.server.failure import Failure, Refused
from topics.server.lines import NO_LINE, Lines

if TYPE_CHECKING:
    from topics.server.app import App

log = logging.getLogger("topics.server")

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
HEADERS: Final = ((b"x-accel-buffering", b"no"),)
RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": hb\n\n"
NS_PER_MS: Final = 1_000_000
NOT_ACCEPTABLE: Final = Failure(406, "not_acceptable", "this is a stream: Accept must allow text/event-stream")
STOPPING: Final = "the server is shutting down; connect again"
SLOW: Final = "nothing was read for 30 s"
_U64_MAX: Final = 2**64 - 1
SUSPENDED: Final = "the server is under load: records of these topics are pushed later; they can be read meanwhile"
_SHARED: Final = "sse"


class SseFraming:
    """Everything of a frame but its `id` [STR-4]."""

    names_first_gap = True

    def record(self, batch: Batch) -> bytes:
        head = b'event: record\ndata: {"topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[' % (
            batch.name.encode(), batch.from_seq, batch.to_seq, batch.head,
        )  # fmt: skip
        return b"%b%b]}\n\n" % (head, b",".join(batch.records))

    def caught_up(self, name: str, head: int) -> bytes:
        return b'event: caught-up\ndata: {"topic":"%b","head_seq":%d}\n\n' % (name.encode(), head)

    def tombstone(self, name: str, gap: Gap, reason: str) -> bytes:
        said = {
            "topic": name,
            "reason": reason,
            "gap_from": gap.gap_from,
            "gap_to": gap.gap_to,
            "earliest_seq": gap.earliest_seq,
            "head_seq": gap.head_seq,
        }
        return b"event: tombstone\ndata: %b\n\n" % wire.encode(said)

    def deleted(self, name: str) -> bytes:
        said = b'{"topic":"%b","head_seq":0,"reason":"deleted"}' % name.encode()
        return b"event: topic-deleted\ndata: %b\n\n" % said


FRAMING: Final = SseFraming()


def check_accept(exchange: Exchange) -> None:
    """406 unless the client takes server-sent events [STR-1]."""
    accept = exchange.headers.get(b"accept")
    if accept is not None and b"text/event-stream" not in accept.lower() and b"*/*" not in accept:
        raise Refused(NOT_ACCEPTABLE)


def error(code: str | int, message: str, **more: Any) -> bytes:
    """An `error` frame [FRM-9]."""
    return b"event: error\ndata: %b\n\n" % wire.encode({"code": code, "message": message, **more})


def tell_suspended(core: Core, items: Sequence[Item]) -> None:
    """Tell every stream which of its topics wait for the end of a suspension [D-45]."""
    affected: dict[SseStream, list[str]] = {}
    for item in items:
        topic = item.topic
        if isinstance(topic, Topic) and not item.forward:
            for follower in topic.followers:
                if isinstance(follower.sink, SseStream):
                    affected.setdefault(follower.sink, []).append(topic.name)
    retry_after_ms = core.load.governor.retry_after_ms()
    for stream, names in affected.items():
        stream.suspended(core.pump.scheduler.suspensions, names, retry_after_ms)


def cursor_id(cursors: Mapping[str, int]) -> bytes:
    """The composite cursor [RSM-1]."""
    return base64.urlsafe_b64encode(wire.encode(dict(sorted(cursors.items())))).rstrip(b"=")


def cursors_of(id: bytes) -> dict[str, int]:
    """What a composite cursor says; nothing if it is none [RSM-4]."""
    try:
        raw = base64.b64decode(id + b"=" * (-len(id) % 4), altchars=b"-_", validate=True)
        value = msgspec.json.decode(raw)
    except (binascii.Error, ValueError, RecursionError):
        return {}
    if not isinstance(value, dict) or not all(type(seq) is int and 0 <= seq <= _U64_MAX for seq in value.values()):
        return {}
    return value


class EventStream:
    """One open stream of events: the listener of its connection. Subclasses say what is sent, and what ends with it."""

    is_full = False

    def __init__(self, app: App, heartbeat_ms: int) -> None:
        assert app.engine is not None
        self._app = app
        self._alarms = app.engine.core.alarms
        self._heartbeat_ns = heartbeat_ms * NS_PER_MS
        self._last_ns = app.clock.monotonic_ns()
        self._alarm: Alarm | None = None
        self._outlet: Outlet | None = None
        self._is_open = True

    def open(self, exchange: Exchange) -> None:
        """Begin the answer; then frames may be sent."""
        outlet = exchange.stream(self, CONTENT_TYPE, HEADERS)
        if self._is_open:
            self._outlet = outlet
            self._write(RETRY)
            self._arm(self._last_ns)

    def _write(self, data: bytes) -> None:
        if self._outlet is not None:
            self._last_ns = self._app.clock.monotonic_ns()
            self._outlet.write(data)

    def _arm(self, since_ns: int) -> None:
        self._alarm = self._alarms.at(since_ns + self._heartbeat_ns, self._beat)

    def _beat(self) -> None:
        """Nothing was written for a while, or just now [FRM-7]."""
        now_ns = self._app.clock.monotonic_ns()
        # A client that reads nothing is not sent more of it.
        if now_ns - self._last_ns >= self._heartbeat_ns and not self.is_full:
            self._write(HEARTBEAT)
        self._arm(self._last_ns if now_ns - self._last_ns < self._heartbeat_ns else now_ns)

    # -- ending ------------------------------------------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        """Send a frame."""
        self._write(frame)

    def say(self, frame: bytes) -> None:
        """A frame that is the last one, and the end of the stream."""
        self.put(frame)
        self._end()

    def drain(self) -> None:
        """The server stops."""
        self.say(self._error("server_shutting_down", STOPPING))

    def stuck(self) -> None:
        """Best effort: it will hardly arrive [FRM-12]."""
        self._app.streams.closed_slow += 1
        self.put(self._error("slow_consumer", SLOW))

    def broken(self, error: Exception) -> None:
        """The client may try again; nothing of it says that this was all."""
        outlet = self._let_go()
        if outlet is not None:
            outlet.abort()

    def room(self) -> None:
        """Output is below its mark again."""
        raise NotImplementedError

    def lost(self) -> None:
        """The client is gone."""
        self._outlet = None
        self._let_go()

    def _error(self, code: str | int, message: str) -> bytes:
        return error(code, message)

    def _over(self) -> None:
        """It has ended, for whatever reason; called once."""
        raise NotImplementedError

    def _end(self) -> None:
        outlet = self._let_go()
        if outlet is not None:
            outlet.end()

    def _let_go(self) -> Outlet | None:
        """Nothing is followed and nothing is written any more."""
        outlet, self._outlet = self._outlet, None
        if self._alarm is not None:
            self._alarm.cancel()
        if self._is_open:
            self._is_open = False
            self._over()
        return outlet


class SseStream(EventStream):
    """The stream of a watch: the sink of its feed."""

    framing: Framing = FRAMING

    def __init__(self, app: App, heartbeat_ms: int, ended: Callable[[SseStream], None]) -> None:
        super().__init__(app, heartbeat_ms)
        assert app.engine is not None
        self.feed = Feed(app.engine.core, self)
        self.is_full = False  # of its own: it is asked for each delivery
        self._ended = ended
        self.kind: object = None
        self._line = NO_LINE
        """Its number among those of `_home`, where the kernel has the connection."""
        self._home: Lines | None = None
        self._suspension = 0

    def open(self, exchange: Exchange) -> None:
        super().open(exchange)
        if self._outlet is not None and self._outlet.line is not None:
            self._line, self._home = self._outlet.line.number, self._outlet.line.home
        if self._outlet is not None and len(self.feed.past) == 1:
            # Whoever follows a topic alone has the same cursor behind a batch, so even the id is shared.
            self.kind = ("sse", self._outlet.kind)

    # -- frames ------------------------------------------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        self._write(b"id: %b\n%b" % (cursor_id(self.feed.cursors()), frame))

    def render(self, batch: Batch) -> bytes:
        outlet, native = self._outlet, kernel.native
        if self.kind is not None and native is not None and outlet is not None:
            is_chunked = outlet.kind == "chunked"
            return native.events(batch.name, batch.from_seq, batch.to_seq, batch.head, batch.records, is_chunked)
        id = cursor_id(self.feed.cursors())
        shared: tuple[bytes, bytes] | None = batch.made.get(_SHARED)
        if shared is None:
            reached = self.framing.caught_up(batch.name, batch.head) if batch.is_last else b""
            shared = batch.made[_SHARED] = (self.framing.record(batch), reached)
        record, reached = shared
        whole = b"id: %b\n%bid: %b\n%b" % (id, record, id, reached) if reached else b"id: %b\n%b" % (id, record)
        return whole if outlet is None else outlet.wrap(whole)

    def send(self, rendered: bytes, now_ns: int) -> None:
        self._last_ns = now_ns
        if self._outlet is not None:
            self._outlet.send(rendered)

    @staticmethod
    def send_all(sinks: Sequence[SseStream], rendered: bytes, now_ns: int) -> bool:
        lines = [stream._line for stream in sinks]
        home = sinks[0]._home
        if home is None or NO_LINE in lines:
            return False
        for stream in sinks:
            stream._last_ns = now_ns
        home.spread(lines, rendered)
        return True

    def warn(self, frame: bytes) -> None:
        """A frame that is not the last one."""
        if not self.is_full:
            self.put(frame)

    def suspended(self, number: int, names: Sequence[str], retry_after_ms: int) -> None:
        """Pushes of some of its topics wait for the end of a suspension; told once for each [D-45]."""
        if number != self._suspension:
            self._suspension = number
            self.warn(error(429, SUSPENDED, retry_after_ms=retry_after_ms, topics=list(names)))

    # -- ending ------------------------------------------------------------------------------------------------------

    def over(self) -> None:
        """All topics are gone [FRM-5]."""
        self._end()

    def room(self) -> None:
        self.feed.room()

    def _over(self) -> None:
        self._line = NO_LINE
        self.feed.close()
        self._ended(self)
