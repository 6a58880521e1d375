"""One request and its answer, whatever carried it: HTTP/1.1 or a stream of HTTP/2.

    carrier  ──Head──▶ App.begin ──▶ Exchange ◀──feed, end, abandon── carrier
    handler  ──reply, fail──▶ Exchange ──send──▶ carrier

The carrier parses and frames; everything about the request is decided here and in `App`, in the order of [API-20]. A
body is checked as it arrives: size, gzip, UTF-8, and the server-wide bound of buffered bytes. Event loop only.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

from topics.server import failure
from topics.server.failure import Failure

if TYPE_CHECKING:
    from topics.engine.core import Core
    from topics.server.app import App
    from topics.server.keys import Key
    from topics.server.routes import Match

Headers = tuple[tuple[bytes, bytes], ...]

KEPT_OPEN_BYTES: Final = 64 << 10
"""A refused request whose body is at most this long is read to its end, so that the connection can be kept."""
GZIP_FROM_BYTES: Final = 1024
GZIP_ASIDE_BYTES: Final = 64 << 10
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


class Carrier(Protocol):
    """What an exchange needs of the connection or stream it came by."""

    def send(self, status: int, headers: Headers, content_type: bytes, body: bytes) -> bool | None:
        """The whole answer; called once.

        False: a part of it waits for the client. The carrier calls `release` of the exchange when it has gone.
        """
        ...


class Exchange:
    """One request. Handlers read it and answer with `reply` or `fail`, at once or later, exactly once."""

    __slots__ = (
        "_bad_utf8",
        "_carrier",
        "_chunks",
        "_counted",
        "_inflate",
        "_refusal",
        "_slot",
        "_utf8",
        "abandoned",
        "answered",
        "app",
        "body",
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
        self.body = b""
        self.size = 0
        """Of the body as far as it was inflated."""
        self.received = False
        self.answered = False
        self.abandoned = False
        self.cancel: Callable[[], None] | None = None
        """What to do when the client is gone before the answer."""
        self._carrier = carrier
        self._chunks: list[bytes] = []
        self._counted = 0
        self._inflate: _Inflate | None = None
        self._utf8: codecs.IncrementalDecoder | None = None
        self._bad_utf8 = False
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

    def inflate(self) -> None:
        """The body is gzipped."""
        self._inflate = _Inflate(self.app.settings.max_body_bytes)

    def feed(self, data: bytes) -> None:
        """Bytes of the body."""
        if self.answered or self._refusal is not None:
            return
        self._counted += len(data)
        if self._counted > self.app.settings.max_body_bytes:
            self._too_much(failure.TOO_LARGE)
            return
        if self._inflate is not None:
            try:
                data = self._inflate.feed(data)
            except OverflowError:
                self._too_much(failure.TOO_LARGE)
                return
            except ValueError as error:
                # Of a body without a declared length the media type was not looked at yet [API-20].
                unfit = self.match.unfit_type(self.headers.get(b"content-type"), empty=False)
                self._too_much(unfit or Failure(400, "invalid_request", f"the body is not gzip: {error}"))
                return
        if data:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        if not self.match.takes_body:
            return
        if not self.app.buffered.take(len(data)):
            self._too_much(self.app.buffered.refusal())
            return
        self.size += len(data)
        self._chunks.append(data)
        if self._utf8 is not None or not data.isascii():
            self._check_utf8(data, final=False)

    def _check_utf8(self, data: bytes, *, final: bool) -> None:
        if self._utf8 is None:
            self._utf8 = codecs.getincrementaldecoder("utf-8")()
        try:
            self._utf8.decode(data, final)
        except UnicodeDecodeError:
            self._bad_utf8 = True

    def _too_much(self, why: Failure) -> None:
        self._drop_body()
        self._refusal = why
        self._answer(why)

    def _drop_body(self) -> None:
        self.app.buffered.give_back(self.size)
        self.size = 0
        self._chunks.clear()

    def end(self) -> None:
        """The body is complete: execute."""
        self.received = True
        if self.answered:
            return
        if self._refusal is None:
            self._refusal = self._unfit()
        if self._refusal is not None:
            self._answer(self._refusal)
            return
        chunks = self._chunks
        self.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.app.execute(self)

    def _unfit(self) -> Failure | None:
        if self._inflate is not None and not self._inflate.is_complete:
            return Failure(400, "invalid_request", "the gzip body ends early")
        if self._utf8 is not None:
            self._check_utf8(b"", final=True)
        why = self.match.unfit_type(self.headers.get(b"content-type"), empty=not self.size)
        if why is not None:
            return why
        if self._bad_utf8:
            return Failure(400, "invalid_request", "the body is not valid UTF-8")
        return None

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

    def body_done(self) -> None:
        """The body is not needed any more: it is staged, or refused."""
        self.app.buffered.give_back(self.size)
        self.size = 0
        self.body = b""

    def reply(self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()) -> None:
        """Answer with a complete body."""
        if self.answered:
            return
        if len(body) >= GZIP_FROM_BYTES and content_type is JSON and self._wants_gzip():
            headers = (*headers, (b"vary", b"Accept-Encoding"))
            if len(body) > GZIP_ASIDE_BYTES:
                self.app.aside(lambda: _gzip(body), lambda packed: self._send_packed(status, packed, headers))
                return
            self._send_packed(status, _gzip(body), headers)
            return
        self._send(status, headers, content_type, body)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        if not self.answered:
            self._answer(failure.of(error))

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
        headers = why.headers
        if why.retry_after_s is not None:
            headers = (*headers, (b"retry-after", b"%d" % why.retry_after_s))
        self._send(why.status, headers, JSON, why.body())

    def _wants_gzip(self) -> bool:
        accepted = self.headers.get(b"accept-encoding")
        return accepted is not None and _allows_gzip(accepted)

    def _send_packed(self, status: int, packed: bytes, headers: Headers) -> None:
        if not self.answered:
            self._send(status, (*headers, (b"content-encoding", b"gzip")), JSON, packed)

    def _send(self, status: int, headers: Headers, content_type: bytes, body: bytes) -> None:
        self.answered = True
        if self.cors:
            headers = _merged(headers, self.cors)
        self._finish()
        if self.abandoned or self._carrier.send(status, headers, content_type, body) is not False:
            self.release()

    def _finish(self) -> None:
        self.cancel = None
        if self.size:
            self._drop_body()


class _Inflate:
    """Gzip members, one after another, as one stream [API-16]."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._member = zlib.decompressobj(31)
        self._fresh = True

    @property
    def is_complete(self) -> bool:
        return self._fresh

    def feed(self, data: bytes) -> bytes:
        """`OverflowError` above the limit, `ValueError` for what is no gzip."""
        parts: list[bytes] = []
        while data:
            self._fresh = False
            try:
                part = self._member.decompress(data, self._most - self._size + 1)
            except zlib.error as error:
                raise ValueError(str(error)) from None
            self._size += len(part)
            parts.append(part)
            if self._size > self._most:
                raise OverflowError
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                self._member = zlib.decompressobj(31)
                self._fresh = True
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, 1, wbits=31)


def _allows_gzip(accepted: bytes) -> bool:
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


def _merged(headers: Headers, more: Headers) -> Headers:
    """Both; two `Vary` become one."""
    vary = b", ".join(value for name, value in (*headers, *more) if name == b"vary")
    rest = tuple(pair for pair in (*headers, *more) if pair[0] != b"vary")
    return (*rest, (b"vary", vary)) if vary else rest
