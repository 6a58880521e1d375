"""Commands of a WebSocket connection: decoded, executed and answered in order (03 §8.2) [WS-9 … WS-14, WS-19].

    message ─▶ understood (decoded, prepared; in slices if it is large) ─▶ executed ─▶ its place in line ─▶ reply

A publish is staged when its turn comes and takes a place in the line of replies; several may wait for their commit
together, and each is answered when those in front of it are. What changes subscriptions waits until the line is empty,
so that its reply stands before the frames that follow from it. While much is in line no further command is taken.

    what is wrong                                       reply
    not a command of the right types [WS-14]            error `invalid_json`, `request_id` null
    anything that is decided later                      error with its code and the command's `request_id`

Event loop only, but for `_understood`, which may run aside.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Raw

from topics.engine import read as reading
from topics.engine.append import Write, is_last_staged
from topics.engine.core import Core
from topics.engine.records import IllTyped
from topics.engine.topic import Topic
from topics.engine.watch import Feed, Instance
from topics.errors import UNEXPECTED, CallerError, TopicsError
from topics.model import AppendResult, Limits
from topics.server import failure, pieces, records, wire
from topics.server.failure import Failure, Refused
from topics.server.keys import ADMIN, WRITE
from topics.server.records import ASIDE_BYTES, WriteBody
from topics.server.subscriptions import NULL, Subscribe, Unsubscribe, Wanted, followed, wanted
from topics.server.watch import WatchedTopic

if TYPE_CHECKING:
    from topics.server.app import App
    from topics.server.keys import Key

log = logging.getLogger("topics.server")

LINE: Final = 256
"""Replies that may wait."""
LINE_BYTES: Final = 4 << 20
"""Of the commands they are for."""
INVALID: Final = "invalid_json"


class Publish(WriteBody, tag_field="op", tag="publish", kw_only=True):
    """Append records, as `POST /v0/topics/{topic}` does [WS-12]."""

    topic: str
    request_id: Raw = NULL
    return_seqs: bool = True


class Ping(msgspec.Struct, tag_field="op", tag="ping"):
    """Is anybody there?"""

    request_id: Raw = NULL


Command = Subscribe | Unsubscribe | Publish | Ping
_COMMAND: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)


class Understood(NamedTuple):
    """A message on its way to being executed."""

    id: bytes
    command: Command | None = None
    ready: Write | Wanted | None = None
    """What a publish or a subscribe comes to."""
    refusal: Failure | None = None


class _Place:
    """In the line of replies."""

    __slots__ = ("reply", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.reply: bytes | None = None


class Commands:
    """Those of one connection. `send` takes a reply, `go_on` is told when there is room for more commands."""

    def __init__(
        self, app: App, key: Key | None, feed: Feed, send: Callable[[bytes], None], go_on: Callable[[], None]
    ) -> None:
        self._key = key
        self._feed = feed
        self._ring = app.keys
        self.held = 0
        """Bytes of a command that is not staged yet."""
        self._app = app
        self._send = send
        self._go_on = go_on
        self._line: deque[_Place] = deque()
        self._line_bytes = 0
        self._is_busy = False
        """A command is being decoded, or waits for the line to be empty: none behind it may begin."""
        self._alone: Callable[[], None] | None = None
        """What waits for the line to be empty."""

    @property
    def is_ready(self) -> bool:
        """Whether the next command may begin."""
        return not self._is_busy and len(self._line) < LINE and self._line_bytes < LINE_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken is answered."""
        return not self._is_busy and not self._line

    # -- taking a message --------------------------------------------------------------------------------------------

    def take(self, message: bytes | bytearray) -> None:
        """A text message; only while `is_ready`."""
        core, key = self._core(), self._rights()
        started_ns = self._app.clock.monotonic_ns()
        if len(message) <= ASIDE_BYTES:
            try:
                asked = _understood(message, key, core.limits)
            except Exception as error:  # noqa: BLE001 - whatever a command meets, the connection goes on
                asked = Understood(b"null", refusal=_unexpected(error))
            self._carry_out(asked, len(message), started_ns)
            return
        self._is_busy = True
        self.held = size = len(message)

        def then(asked: Understood) -> None:
            self._is_busy = False
            self.held = 0
            self._carry_out(asked, size, started_ns)
            self._go_on()

        _understand_large(core, message, key, then)

    def _rights(self) -> Key | None:
        """The connection's key as it is now: its scopes and prefixes may have changed [KEY-4]."""
        if self._ring is not self._app.keys:
            self._ring = self._app.keys
            if self._key is not None:
                # One that is gone ends the connection; until it has, nothing is permitted that was not.
                self._key = self._ring.by_digest(self._key.digest) or self._key
        return self._key

    def take_binary(self) -> None:
        """A message that is no text [WS-4]."""
        self._answer(error_frame("unsupported_message", "messages are JSON texts; this one is binary"), 0)

    def _core(self) -> Core:
        assert self._app.engine is not None
        return self._app.engine.core

    def _carry_out(self, asked: Understood, size: int, started_ns: int) -> None:
        try:
            self._execute(asked, size, started_ns)
        except Exception as error:  # noqa: BLE001 - whatever a command meets, the connection goes on
            self._answer(self._refusal(asked.id, _unexpected(error)), size)

    def _execute(self, asked: Understood, size: int, started_ns: int) -> None:
        if asked.refusal is not None:
            self._answer(self._refusal(asked.id, asked.refusal), size)
        elif self._app.engine is None:
            self._answer(self._refusal(asked.id, failure.SHUTTING_DOWN), size)
        elif isinstance(asked.command, Publish):
            assert isinstance(asked.ready, Write)
            self._publish(asked.id, asked.ready, asked.command.return_seqs, size, started_ns)
        elif isinstance(asked.command, Ping):
            self._answer(b'{"op":"pong","request_id":%b}' % asked.id, size)
        elif isinstance(asked.ready, Wanted):
            self._when_alone(partial(self._subscribe, asked.id, asked.ready))
        else:
            assert isinstance(asked.command, Unsubscribe)
            self._when_alone(partial(self._unsubscribe, asked.id, asked.command.names()))

    def _refusal(self, id: bytes, why: Failure) -> bytes:
        return error_frame(why.code, why.message, id)

    # -- publish -----------------------------------------------------------------------------------------------------

    def _publish(self, id: bytes, write: Write, return_seqs: bool, size: int, started_ns: int) -> None:
        place = self._place(size)
        core, clock = self._core(), self._app.clock
        holds_up = False

        def done(outcome: AppendResult | Exception, timing: bytes) -> None:
            if holds_up:
                self._is_busy = False
                self.held = 0
            if place.reply is not None:
                return  # something went wrong behind it, and that was told
            if isinstance(outcome, Exception):
                self._settle(place, self._refusal(id, _of(outcome)))
                return
            seqs = records.listed(outcome) if return_seqs else b"null"
            body = b'{"op":"ack","request_id":%b,%b}' % (id, records.told(write.name, outcome, b'"seqs":%b,' % seqs))
            total_ms = (clock.monotonic_ns() - started_ns) / 1e6
            self._settle(place, wire.timed(body, total_ms, timing))

        try:
            records.append(core, clock, write, done)
            if place.reply is None and not is_last_staged(core, write):
                # It waits for its topic, for room in the log, or to be framed, and must not be overtaken [WS-19].
                holds_up = self._is_busy = True
                self.held = size
        except Exception as error:  # noqa: BLE001 - whatever a command meets, the connection goes on
            why = _unexpected(error)
            if place.reply is None:
                self._settle(place, self._refusal(id, why))

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _when_alone(self, call: Callable[[], None]) -> None:
        """Do it when all that came before is answered; nothing behind it begins meanwhile."""
        if self._line:
            self._is_busy = True
            self._alone = call
        else:
            call()

    def _subscribe(self, id: bytes, asked: Wanted) -> None:
        """Look the topics up, and again when their retention is applied [TTL-3]."""
        core, most = self._core(), self._app.settings.max_watch_topics
        self._is_busy = True

        def refuse(error: BaseException) -> None:
            self._is_busy = False
            self._send(self._refusal(id, _of(error)))
            self._go_on()

        def look(then: Callable[[dict[str, Topic]], None]) -> None:
            try:
                then(followed(core, asked, self._feed.followers, most))
            except Exception as error:  # noqa: BLE001 - whatever a command meets, the connection goes on
                refuse(error)

        def refresh(found: dict[str, Topic]) -> None:
            reading.refresh(core, list(found.values()), lambda: look(partial(self._follow, id, asked)), refuse)

        look(refresh)

    def _follow(self, id: bytes, asked: Wanted, found: dict[str, Topic]) -> None:
        """Reply, then begin: what is delivered comes behind the reply [WS-11]."""
        told = {}
        for name, topic in found.items():
            start = asked.starts[name]
            told[name] = WatchedTopic(topic.head if start.tail else start.from_seq, topic.head, topic.earliest_seq)
        self._is_busy = False
        self._send(b'{"op":"subscribed","request_id":%b,"topics":%b}' % (id, wire.encode(told)))
        for name, topic in found.items():
            self._feed.follow(name, told[name].from_seq, asked.view, Instance(topic.id, topic.epoch))
        self._go_on()

    def _unsubscribe(self, id: bytes, names: list[str]) -> None:
        self._is_busy = False
        self._feed.leave(names)
        self._send(b'{"op":"unsubscribed","request_id":%b,"topics":%b}' % (id, wire.encode(names)))

    # -- replies, in order -------------------------------------------------------------------------------------------

    def _answer(self, reply: bytes, size: int) -> None:
        """Reply as soon as those in front have been replied to."""
        if self._line:
            self._settle(self._place(size), reply)
        else:
            self._send(reply)

    def _place(self, size: int) -> _Place:
        place = _Place(size)
        self._line.append(place)
        self._line_bytes += size
        return place

    def _settle(self, place: _Place, reply: bytes) -> None:
        place.reply = reply
        line = self._line
        while line and line[0].reply is not None:
            first = line.popleft()
            assert first.reply is not None
            self._line_bytes -= first.size
            self._send(first.reply)
        if not line and self._alone is not None:
            alone, self._alone = self._alone, None
            alone()
        self._go_on()


def error_frame(code: str, message: str, id: bytes | None = None) -> bytes:
    """`error`; `id` for replies only (03 §8.3)."""
    told = b"" if id is None else b'"request_id":%b,' % id
    return b'{"op":"error",%b"code":%b,"message":%b}' % (told, wire.encode(code), wire.encode(message))


# -- understanding ---------------------------------------------------------------------------------------------------


def _understood(message: bytes | bytearray, key: Key | None, limits: Limits) -> Understood:
    """Decode a message and prepare what it asks for, as far as that needs no state; any thread."""
    try:
        command = wire.decode(_COMMAND, message)
        id = _compact(command.request_id)
        given = _typed(command)
    except (Refused, CallerError) as error:
        return Understood(b"null", refusal=failure.of(error)._replace(code=INVALID))
    try:
        if isinstance(command, Subscribe):
            return Understood(id, command, wanted(command, key, limits))
        if given is None:
            return Understood(id, command)
        _may_publish(key, given)
        return Understood(id, command, records.prepared(given, limits, given.body.idempotency_key, configures=True))
    except (Refused, TopicsError) as error:
        return _refused(id, error)


def _refused(id: bytes, error: BaseException) -> Understood:
    """What was decoded, and then refused; a payload is looked at late, and belongs to decoding [WS-14]."""
    if isinstance(error, IllTyped):
        return Understood(b"null", refusal=failure.of(error)._replace(code=INVALID))
    return Understood(id, refusal=failure.of(error))


def _understand_large(
    core: Core, message: bytes | bytearray, key: Key | None, then: Callable[[Understood], None]
) -> None:
    """The same in slices, as a large body is taken; what is out of the ordinary in one call, aside [P-10]."""
    found: list[Understood] = []

    def in_slices() -> Iterator[None]:
        asked = yield from _in_steps(message, key, core.limits)
        if asked is not None:
            found.append(asked)

    def at_once() -> None:
        found.append(_understood(message, key, core.limits))

    def done(error: BaseException | None) -> None:
        if error is not None:
            then(Understood(b"null", refusal=_unexpected(error)))
        elif found:
            then(found[0])
        else:
            core.owner.aside("decode", at_once, done)

    core.owner.sliced(in_slices(), done)


def _in_steps(message: bytes | bytearray, key: Key | None, limits: Limits) -> Generator[None, None, Understood | None]:
    """A large publish, step by step; None for what has to be decoded in one call."""
    found = yield from pieces.decoded((message,))
    if found is None:
        return None
    try:
        command = wire.decode(_COMMAND, found.around)
        id, given = _compact(command.request_id), _typed(command)
    except (Refused, CallerError):
        return None
    if given is None:
        return None
    try:
        _may_publish(key, given)
        key_of_retry = given.body.idempotency_key
        write = yield from records.prepared_in_steps(given, found.runs, limits, key_of_retry, configures=True)
    except (Refused, TopicsError) as error:
        return _refused(id, error)
    return Understood(id, command, write)


def _typed(command: Command) -> records.Typed | None:
    """Look at the types and ranges that decoding left open; of a publish, what it says."""
    if isinstance(command, Subscribe):
        command.check()
    return records.typed(command.topic, command) if isinstance(command, Publish) else None


def _compact(id: Raw) -> bytes:
    """As it goes back: in frames nothing stands between tokens [API-14]."""
    text = bytes(id)
    if b" " in text or b"\n" in text or b"\t" in text or b"\r" in text:
        return msgspec.json.format(text, indent=-1)
    return text


def _may_publish(key: Key | None, given: records.Typed) -> None:
    """Scope, prefix, and admin for a configuration, whether or not the topic exists [WS-12]."""
    if key is not None:
        if WRITE not in key.scopes:
            raise failure.forbidden("publish needs a key with the scope write")
        if not key.permits(given.name):
            raise failure.forbidden("the key does not permit this name")
        if given.config is not None and ADMIN not in key.scopes:
            raise failure.forbidden("publishing with a configuration needs the scope admin")
    records.check_writable_by(key, given.name)


def _of(error: BaseException) -> Failure:
    return failure.of(error) if isinstance(error, (Refused, TopicsError)) else _unexpected(error)


def _unexpected(error: BaseException) -> Failure:
    log.error("WebSocket: %s", UNEXPECTED, exc_info=error)
    return failure.of(error)
