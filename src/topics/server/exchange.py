"""One request and its answer, whatever carried it: HTTP/1.1 or a stream of HTTP/2.

    carrier  ──Head──▶ App.begin ──▶ Exchange ◀──feed, end, abandon── carrier
    handler  ──reply, fail──▶ Exchange ──send──▶ carrier

The carrier parses and frames; everything about the request is decided here and in `App`, in the order of [API-20]. A
body is checked as it arrives: size, gzip, UTF-8, and the server-wide bound of buffered bytes. Event loop only.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

from topics.errors import UNEXPECTED, TopicsError
from topics.server import failure
from topics.server.failure import Failure
from topics.server.inbound import AnyBytes, Unpacking, Utf8

if TYPE_CHECKING:
    import asyncio

    from topics.engine.core import Core
    from topics.server.app import App
    from topics.server.connections import Connections, Spoken
    from topics.server.keys import Key
    from topics.server.lines import Line
    from topics.server.routes import Match

log = logging.getLogger("topics.server")

T = TypeVar("T")
P = ParamSpec("P")
Headers = tuple[tuple[bytes, bytes], ...]
Successor = Callable[["Connections", "asyncio.Transport"], "Spoken"]
"""Makes the protocol that follows HTTP on a connection."""

KEPT_OPEN_BYTES: Final = 64 << 10
"""A refused request whose body is at most this long is read to its end, so that the connection can be kept."""
GZIP_FROM_BYTES: Final = 1024
GZIP_ASIDE_BYTES: Final = 64 << 10
UNPACKED_AT_ONCE_BYTES: Final = 16 << 10
"""A gzipped body up to this size is inflated on the loop, as far as `UNPACK_FIRST_BYTES`."""
UNPACK_FIRST_BYTES: Final = 256 << 10
UNPACK_STEP_BYTES: Final = 1 << 20
JSON: Final = b"application/json"


class Head(NamedTuple):
    """A request before its body."""

    method: str
    target: bytes
    """Path and query as sent."""
    headers: dict[bytes, bytes]
    """By lower-case name; repeated ones joined by `, `."""
    declared: int | None
    """Length of the body; 0 without one, None when it is not known yet."""
    expects: bool = False
    """The client waits for `100 Continue`."""


Body = bytes | list[bytes]
"""Of an answer: as it is, or in pieces, which are not put together where they can go out one by one."""


def body_bytes(body: Body) -> int:
    """How long a body is."""
    return len(body) if body.__class__ is bytes else sum(map(len, body))  # type: ignore[arg-type]


def joined(body: Body) -> bytes:
    """A body in one piece."""
    return body if isinstance(body, bytes) else b"".join(body)


class Carrier(Protocol):
    """What an exchange needs of the connection or stream it came by."""

    def send(self, status: int, headers: Headers, content_type: bytes, body: Body) -> bool | None:
        """The whole answer; called once.

        False: a part of it waits for the client. The carrier calls `release` of the exchange when it has gone.
        """
        ...

    def give_up(self) -> None:
        """An answer was begun and cannot be ended: the client is to see that it is not whole."""
        ...

    def switch(self, headers: Headers, make: Successor) -> None:
        """Instead of `send`: 101, and the connection is another protocol's from its next byte on."""
        ...

    def stream(self, headers: Headers, content_type: bytes, listener: Listener) -> Outlet:
        """The head of an answer that goes on; instead of `send`."""
        ...


class Listener(Protocol):
    """A stream, as far as the connection it runs on is concerned."""

    is_full: bool
    """Output is above its mark; set by the carrier."""

    def room(self) -> None:
        """Output is below its mark again."""
        ...

    def lost(self) -> None:
        """The client is gone: nothing can be sent any more. Called once, also after `Outlet.abort`."""
        ...

    def stuck(self) -> None:
        """The client took nothing for 30 s; the connection is closed right after this [FRM-12]."""
        ...

    def drain(self) -> None:
        """The server stops: say so, and end."""
        ...


class Outlet(Protocol):
    """The body of an answer that goes on. Bounded by whoever writes: not while `is_full` [A-12]."""

    kind: str
    """Whoever has the same wraps bytes in the same way."""
    line: Line | None
    """Where `send` writes them as they are, if the kernel has that connection."""

    def wrap(self, data: bytes) -> bytes:
        """Bytes as they go over this kind of connection; may be shared."""
        ...

    def send(self, wrapped: bytes) -> None:
        """Send what is wrapped at once; nothing happens when the client is gone."""
        ...

    def write(self, data: bytes) -> None:
        """Wrap and send."""
        ...

    def end(self) -> None:
        """The answer is complete. Its listener hears nothing any more."""
        ...

    def abort(self) -> None:
        """End without completing it, so that the client knows."""
        ...


class Exchange:
    """One request. Handlers read it and answer with `reply` or `fail`, at once or later, exactly once."""

    __slots__ = (
        "_carrier",
        "_chunks",
        "_gzipped",
        "_refusal",
        "_slot",
        "_utf8",
        "abandoned",
        "answered",
        "app",
        "cancel",
        "cors",
        "declared",
        "expects",
        "headers",
        "key",
        "match",
        "method",
        "query",
        "received",
        "size",
        "started_ns",
    )  # fmt: skip

    def __init__(self, app: App, carrier: Carrier, head: Head, match: Match, query: bytes, started_ns: int) -> None:
        self.app = app
        self.method = head.method
        self.headers = head.headers
        self.declared = head.declared
        self.expects = head.expects
        self.match = match
        self.query = query
        self.started_ns = started_ns
        self.key: Key | None = None
        self.cors: Headers = ()
        self.size = 0
        """Of the body: as it came, and in the end as it is."""
        self.received = False
        self.answered = False
        self.abandoned = False
        self.cancel: Callable[[], None] | None = None
        """What to do when the client is gone before the answer."""
        self._carrier = carrier
        self._chunks: list[bytes] = []
        self._gzipped = False
        self._utf8: Utf8 = Utf8()
        self._refusal: Failure | None = None
        self._slot = False

    # -- from the carrier --------------------------------------------------------------------------------------------

    def hold_slot(self, key: Key) -> None:
        """An in-flight slot of the key is this exchange's until its answer is handed over [RES-7]."""
        self.key = key
        self._slot = True
        key.usage.inflight += 1

    def release(self) -> None:
        """The last byte of the answer is with the transport, or nobody wants it; again is fine."""
        if self._slot:
            self._slot = False
            assert self.key is not None
            self.key.usage.inflight -= 1

    def refuse(self, why: Failure) -> None:
        """Nothing will be executed. Answered at once, or when a short body has been read to its end."""
        self._refusal = why
        self._drop_body()
        if self.received or self.expects or self.declared is None or self.declared > KEPT_OPEN_BYTES:
            self._answer(why)

    @property
    def is_refused(self) -> bool:
        """Whether its head, or what came of its body, is answered with a refusal."""
        return self._refusal is not None

    def inflate(self) -> None:
        """The body is gzipped."""
        self._gzipped = True

    def take_bytes(self) -> None:
        """The body is no text."""
        self._utf8 = AnyBytes()

    def feed(self, data: bytes) -> None:
        """Bytes of the body."""
        if self.answered or self._refusal is not None:
            return
        size = self.size + len(data)
        if size > self.app.settings.max_body_bytes:
            self._too_much(failure.TOO_LARGE)
        elif not self.match.takes_body:
            self.size = size  # read within the limit and ignored [API-10]
        elif not self.app.buffered.take(len(data)):
            self._too_much(self.app.buffered.refusal())
        else:
            self.size = size
            self._chunks.append(data)
            if not self._gzipped:
                self._utf8.feed(data)

    def _too_much(self, why: Failure) -> None:
        self._drop_body()
        self._refusal = why
        self._answer(why)

    def _drop_body(self) -> None:
        if self.match.takes_body:
            self.app.buffered.give_back(self.size)
        self.size = 0
        self._chunks.clear()

    def end(self) -> None:
        """The body is complete: execute."""
        self.received = True
        if self.answered:
            return
        try:
            if self._refusal is None and self._gzipped and self.size:
                # Of a body without a declared length the media type was not looked at yet [API-20].
                self._refusal = self.match.unfit_type(self.headers.get(b"content-type"), empty=False)
                if self._refusal is None:
                    self._unpack()
                    return
            self._execute(self._refusal)
        except Exception as error:  # noqa: BLE001 - whatever a request meets, it is answered
            self.fail(error)

    def _execute(self, refusal: Failure | None) -> None:
        refusal = refusal or self._unfit()
        if refusal is not None:
            self._answer(refusal)
        else:
            self.app.execute(self)

    def _unfit(self) -> Failure | None:
        why = self.match.unfit_type(self.headers.get(b"content-type"), empty=not self.size)
        if why is None and not self._utf8.is_valid():
            why = Failure(400, "invalid_request", "the body is not valid UTF-8")
        return why

    # -- gzip in -----------------------------------------------------------------------------------------------------

    def _unpack(self) -> None:
        """Inflate the body: at once when that is quick for certain, else aside, in steps [P-10]."""
        unpacking = Unpacking(self._chunks, self._utf8, self.app.settings.max_body_bytes)
        if self.size <= UNPACKED_AT_ONCE_BYTES:
            self._unpacked(unpacking, unpacking.step(UNPACK_FIRST_BYTES))
        else:
            self._unpack_aside(unpacking)

    def _unpack_aside(self, unpacking: Unpacking) -> None:
        self.apart(lambda: unpacking.step(UNPACK_STEP_BYTES), lambda why: self._unpacked(unpacking, why))

    def _unpacked(self, unpacking: Unpacking, why: Failure | None) -> None:
        """A step is done: count what it made, then the next, or the request itself."""
        packed = self.size - unpacking.counted
        fresh = unpacking.size - unpacking.counted
        if why is None and not self.app.buffered.take(fresh):
            why = self.app.buffered.refusal()
        elif why is None:
            unpacking.counted += fresh
            self.size += fresh
        if self.abandoned or why is not None:
            self._drop_body()
            self._end_unpacking(why)
        elif not unpacking.is_complete:
            self._unpack_aside(unpacking)
        else:
            self.app.buffered.give_back(packed)
            self._chunks, self.size = unpacking.parts, unpacking.size
            self._execute(None)

    def _end_unpacking(self, why: Failure | None) -> None:
        if why is not None:
            self._answer(why)
        elif not self.answered:
            self.answered = True
            self._finish()
            self.release()

    def abandon(self) -> None:
        """The client is gone. What was staged stays staged; what only waits, ends [API-23, R-6]."""
        self.abandoned = True
        if self.answered:
            self.release()
            return
        if self.cancel is not None:
            self.cancel()
        elif self.received:
            return
        self.answered = True
        self._finish()
        self.release()

    # -- from handlers -----------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> list[bytes]:
        """The body as it came. Whoever needs it no more may take it out, a little at a time."""
        return self._chunks

    @property
    def body(self) -> bytes:
        """All of it. Putting a large one together takes its time: do that aside [P-10]."""
        chunks = self._chunks
        if len(chunks) == 1:
            return chunks[0]
        if chunks:
            chunks[:] = [b"".join(chunks)]
            return chunks[0]
        return b""

    def aside(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Make something of a large body off the loop, then go on with it; what is raised is answered."""
        found: list[T] = []

        def done(error: BaseException | None) -> None:
            try:
                if error is not None:
                    self.fail(error)
                elif self.app.engine is None:
                    self._answer(failure.SHUTTING_DOWN)
                else:
                    then(found[0])
            except Exception as error:  # noqa: BLE001 - whatever a request meets, it is answered
                self.fail(error)

        self.core.owner.aside("decode", lambda: found.append(work()), done)

    def apart(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """The same on the I/O pool, for what needs no engine."""
        self.app.aside(work, self.answers(then), self.fail)

    def body_done(self) -> None:
        """The body is not needed any more: it is staged, or refused."""
        self._drop_body()

    def reply(self, status: int, body: Body, content_type: bytes = JSON, headers: Headers = ()) -> None:
        """Answer with a complete body."""
        if self.answered:
            return
        if body_bytes(body) >= GZIP_FROM_BYTES and content_type is JSON and self._wants_gzip():
            whole = joined(body)
            headers = (*headers, (b"vary", b"Accept-Encoding"))
            if len(whole) > GZIP_ASIDE_BYTES:
                self.apart(lambda: _gzip(whole), lambda packed: self._send_packed(status, packed, headers))
                return
            self._send_packed(status, _gzip(whole), headers)
            return
        self._send(status, headers, content_type, body)

    def stream(self, listener: Listener, content_type: bytes, headers: Headers = ()) -> Outlet:
        """Answer with 200 and a body that goes on. The in-flight slot is free again [RES-7]."""
        assert not self.answered
        self.answered = True
        self._finish()
        outlet = self._carrier.stream(merged(headers, self.cors), content_type, listener)
        self.release()
        return outlet

    def switch(self, headers: Headers, make: Successor) -> None:
        """Leave HTTP; the route has seen that the request may [WS-1]."""
        assert not self.answered
        self.answered = True
        self._finish()
        self._carrier.switch(merged(headers, self.cors), make)
        self.release()

    def fail(self, error: BaseException) -> None:
        """Answer with an error; one that nobody foresaw is logged."""
        why = failure.of(error)
        if why.status == 500 and not isinstance(error, TopicsError):
            log.error("%s: %s", self.method, UNEXPECTED, exc_info=error)
        if not self.answered:
            self._answer(why)

    def answers(self, done: Callable[P, None]) -> Callable[P, None]:
        """For what is called with an outcome, later, by somebody who knows no requests: what it meets is answered."""

        def told(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                done(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever a request meets, it is answered
                self.fail(error)

        return told

    def params(self) -> dict[str, str]:
        """Query parameters, form-urlencoded; the first of several equal names counts [API-27]."""
        found: dict[str, str] = {}
        if self.query:
            for name, value in parse_qsl(self.query.decode("latin-1"), keep_blank_values=True):
                found.setdefault(name, value)
        return found

    @property
    def core(self) -> Core:
        """The engine's state; there is one once handlers run."""
        assert self.app.engine is not None
        return self.app.engine.core

    def elapsed_ms(self) -> float:
        """Since the request was complete enough to be looked at."""
        return (self.app.clock.monotonic_ns() - self.started_ns) / 1e6

    def _answer(self, why: Failure) -> None:
        if why.is_limit:
            self.app.note_limit()
        self.reply(why.status, why.body(), JSON, why.fields())

    def _wants_gzip(self) -> bool:
        accepted = self.headers.get(b"accept-encoding")
        return accepted is not None and allows_gzip(accepted)

    def _send_packed(self, status: int, packed: bytes, headers: Headers) -> None:
        if not self.answered:
            self._send(status, (*headers, (b"content-encoding", b"gzip")), JSON, packed)

    def _send(self, status: int, headers: Headers, content_type: bytes, body: Body) -> None:
        self.answered = True
        if self.cors:
            headers = merged(headers, self.cors)
        self._finish()
        try:
            if self.abandoned or self._carrier.send(status, headers, content_type, body) is not False:
                self.release()
        except Exception:  # a part of it may be on its way: there is no other answer now
            log.exception("%s: an answer cannot be sent", self.method)
            self.release()
            self._carrier.give_up()

    def _finish(self) -> None:
        self.cancel = None
        if self.size:
            self._drop_body()


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, 1, wbits=31)


def allows_gzip(accepted: bytes) -> bool:
    """Whether `Accept-Encoding` has gzip with q > 0; `*` stands for what is not named."""
    other = False
    for item in accepted.lower().split(b","):
        name, _, parameters = item.partition(b";")
        name = name.strip()
        if name in (b"gzip", b"x-gzip", b"*"):
            allowed = _quality(parameters) > 0
            if name != b"*":
                return allowed
            other = allowed
    return other


def _quality(parameters: bytes) -> float:
    for one in parameters.split(b";"):
        name, _, value = one.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def merged(headers: Headers, more: Headers) -> Headers:
    """Both; two `Vary` become one."""
    vary = b", ".join(value for name, value in (*headers, *more) if name == b"vary")
    rest = tuple(pair for pair in (*headers, *more) if pair[0] != b"vary")
    return (*rest, (b"vary", vary)) if vary else rest
