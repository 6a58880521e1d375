"""HTTP/1.1 (and 1.0) on one connection, by httptools [API-25].

    data_received ─▶ parser ─▶ line of requests ─▶ one Exchange at a time ─▶ transport.write

Requests of one connection are executed one after another, in order. Heads and bodies that arrive while one is being
executed wait in `_line`, and reading pauses, so that at most one read's worth waits. What httptools lets through and
must not pass (0.9, no or several `Host`, other transfer codings, endless chunk framing) is refused here.

Deadlines are looked at once a second by `Connections`; there is no timer per request. Event loop only.
"""

from __future__ import annotations

import re
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import httptools

from topics.server.exchange import JSON, Exchange, Head, Headers
from topics.server.failure import Failure

if TYPE_CHECKING:
    import asyncio

    from topics.server.connections import Connections

HEAD_BYTES: Final = 64 << 10
FIELDS: Final = 128
FRAMING_BYTES: Final = 16 << 10
"""Chunk framing may be that much and as many bytes as the body (13 §5)."""
OUTPUT_HIGH: Final = 1 << 20
NS_PER_S: Final = 1_000_000_000
HEAD_NS: Final = 30 * NS_PER_S
BODY_NS: Final = 60 * NS_PER_S
IDLE_NS: Final = 120 * NS_PER_S
OUTPUT_NS: Final = 30 * NS_PER_S
LINGER_NS: Final = 1 * NS_PER_S

_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BAD_REQUEST = Failure(400, "invalid_request", "this is not an HTTP/1.1 request")
HEAD_TOO_LARGE = Failure(431, "headers_too_large", "the request head is larger than the server accepts")
TIMEOUT = Failure(408, "request_timeout", "the request did not arrive in time")


class _Incoming:
    """A request as far as it was parsed."""

    __slots__ = (
        "chunks", "complete", "exchange", "fields", "head_bytes", "headers", "hosts", "keep_alive", "method", "refusal",
        "target", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = 0
        self.fields = 0
        self.hosts = 0
        self.chunks: list[bytes] = []
        self.complete = False
        self.keep_alive = False
        self.exchange: Exchange | None = None
        self.refusal: Failure | None = None
        """Not a request at all: answered and closed."""


class Http1:
    """One connection. It is its own httptools protocol and the carrier of its exchanges."""

    def __init__(self, home: Connections, transport: asyncio.Transport) -> None:
        self._home = home
        self._app = home.app
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._line: deque[_Incoming] = deque()
        self._parsing: _Incoming | None = None
        self._current: _Incoming | None = None
        """Its exchange is being executed."""
        self._advancing = False
        self._raw = 0
        """Bytes fed since the head of the request being parsed; for the bounds of heads and chunk framing."""
        self._body = 0
        self._chunked = False
        self._closing = False
        self._lingering = False
        self._eof = False
        self._paused = False
        self._full = False
        self._deadline_ns = home.now_ns() + HEAD_NS
        self._waits_for = "head"
        self._unsent = 0
        self._unsent_since_ns = 0

    # -- the connection's events -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._closing:
            return
        if self._waits_for == "idle":
            self._wait_for("head", HEAD_NS)
        self._parse(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more [API-23]; True keeps our side open for answers."""
        self._eof = True
        current = self._current
        if current is not None:
            exchange = current.exchange
            assert exchange is not None
            if exchange.cancel is not None:
                exchange.abandon()
                return False
            return True
        if any(one.complete for one in self._line):
            return True
        return bool(self._transport.get_write_buffer_size())

    def connection_lost(self) -> None:
        """The connection is gone; what is being executed learns of it."""
        self._closing = True
        for one in (self._current, *self._line):
            if one is not None and one.exchange is not None:
                one.exchange.abandon()
        self._current = None
        self._line.clear()

    def pause_writing(self) -> None:
        """More than 1 MiB is unsent: no further request is started [API-24]."""
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._advance()

    def drain(self) -> None:
        """The server stops: close when nothing is being executed or received."""
        if (self._current is None and not self._line and self._parsing is None) or (
            self._current is None and self._waits_for in ("idle", "head")
        ):
            self._close()

    def sweep(self, now_ns: int) -> None:
        """Look at the deadlines; once a second."""
        unsent = self._transport.get_write_buffer_size()
        if unsent and unsent >= self._unsent and self._unsent:
            if now_ns - self._unsent_since_ns >= OUTPUT_NS:
                self._transport.abort()
                return
        else:
            self._unsent_since_ns = now_ns
        self._unsent = unsent
        if self._waits_for and now_ns >= self._deadline_ns:
            if self._lingering or self._waits_for == "idle":
                self._transport.abort() if self._lingering else self._close()
            else:
                self._refuse_connection(TIMEOUT)

    # -- parsing -----------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        self._raw += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An upgrade that is not offered is ignored: what follows is parsed as ever.
            self._parser = httptools.HttpRequestParser(self)
            rest = data[cast(int, upgrade.args[0]) :]
            if rest:
                self._parse(rest)
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _TooLarge):
                self._malformed(HEAD_TOO_LARGE)
            else:
                self._malformed(BAD_REQUEST)
            return
        parsing = self._parsing
        if parsing is None:
            return
        if not parsing.method:
            if self._raw > HEAD_BYTES:
                self._malformed(HEAD_TOO_LARGE)
        elif self._chunked and self._raw - self._body > FRAMING_BYTES + self._body + parsing.head_bytes:
            self._malformed(BAD_REQUEST)

    def _malformed(self, why: Failure) -> None:
        """Whatever was parsed before it is answered; then this, and the connection ends."""
        parsing, self._parsing = self._parsing, None
        if parsing is None or parsing not in self._line:
            parsing = _Incoming()
            self._line.append(parsing)
        parsing.refusal = why
        self._closing = True

    def on_message_begin(self) -> None:
        self._parsing = _Incoming()
        self._chunked = False
        self._body = 0

    def on_url(self, url: bytes) -> None:
        parsing = self._parsing
        assert parsing is not None
        parsing.target += url
        self._count(parsing, len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        parsing = self._parsing
        assert parsing is not None
        if parsing.method:
            return  # a trailer
        name = name.lower()
        parsing.fields += 1
        self._count(parsing, len(name) + len(value) + 4)
        headers = parsing.headers
        if name == b"host":
            parsing.hosts += 1
        if name in headers:
            value = headers[name] + b", " + value
        headers[name] = value

    def _count(self, parsing: _Incoming, size: int) -> None:
        parsing.head_bytes += size
        if parsing.head_bytes > HEAD_BYTES or parsing.fields > FIELDS:
            raise _TooLarge

    def on_headers_complete(self) -> None:
        parsing, parser = self._parsing, self._parser
        assert parsing is not None
        parsing.method = parser.get_method().decode("ascii")
        parsing.version = parser.get_http_version()
        self._chunked = b"transfer-encoding" in parsing.headers
        if self._chunked:
            self._raw = 0
        parsing.refusal = _refusal_of(parsing)
        self._line.append(parsing)

    def on_body(self, body: bytes) -> None:
        assert self._parsing is not None
        self._body += len(body)
        self._parsing.chunks.append(body)

    def on_message_complete(self) -> None:
        parsing = self._parsing
        assert parsing is not None
        parsing.complete = True
        parsing.keep_alive = self._parser.should_keep_alive() and parsing.version == "1.1"
        self._parsing = None
        self._raw = 0

    # -- executing, one after another --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on with the first request of the line, as far as it has arrived."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._line and self._current is None and not self._full:
                if not self._step(self._line[0]):
                    break
        finally:
            self._advancing = False
        self._read_or_not()

    def _step(self, one: _Incoming) -> bool:
        """One step of a request; False when more of it has to arrive."""
        if one.refusal is not None:
            self._refuse_connection(one.refusal)
            return False
        exchange = one.exchange
        if exchange is None:
            exchange = one.exchange = self._begin(one)
        if one.chunks and one.exchange is not None:
            for chunk in one.chunks:
                exchange.feed(chunk)
            one.chunks.clear()
        if one not in self._line:
            return False  # answered before its body was read: the connection lingers
        if not one.complete:
            return False
        self._line.popleft()
        if exchange.answered:
            self._answered(one)
            return True
        self._current = one
        self._waits_for = ""
        exchange.end()
        return True

    def _begin(self, one: _Incoming) -> Exchange:
        headers = one.headers
        if self._chunked_of(one):
            declared: int | None = None
        else:
            declared = int(headers.get(b"content-length", b"0"))
        expects = one.version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue"
        expects = expects and not one.complete
        if not one.complete:
            size = declared or 0
            self._wait_for("body", BODY_NS + (size >> 20) * NS_PER_S)
        head = Head(one.method, _origin_form(one.target), headers, declared, expects)
        carrier = _Turn(self, one)
        exchange = self._app.begin(carrier, head)
        if expects and not exchange.answered and not one.chunks:
            self._transport.write(_CONTINUE)
        return exchange

    def _chunked_of(self, one: _Incoming) -> bool:
        return b"transfer-encoding" in one.headers

    def send(self, one: _Incoming, status: int, headers: Headers, content_type: bytes, body: bytes) -> None:
        """An exchange answers."""
        if self._transport.is_closing():
            return
        early = not one.complete
        keep = one.keep_alive and not early and not self._eof and not self._app.draining
        self._transport.write(self._rendered(one, status, headers, content_type, body, keep=keep))
        if early:
            # Its body is still on the way: the connection ends, gently [API-25].
            self._line.clear()
            self._current = None
            self._linger()
        elif self._current is one:
            self._current = None
            if one.exchange is not None:
                one.exchange.release()  # before the next request of this connection asks for the slot
            self._answered(one, keep=keep)
            self._advance()

    def _answered(self, one: _Incoming, *, keep: bool | None = None) -> None:
        if keep is None:
            keep = one.keep_alive and not self._eof and not self._app.draining
        if not keep:
            self._line.clear()
            self._close()
        elif not self._line:
            self._wait_for("head" if self._parsing is not None else "idle", IDLE_NS)

    def _rendered(
        self, one: _Incoming, status: int, headers: Headers, content_type: bytes, body: bytes, *, keep: bool
    ) -> bytes:
        size = len(body)
        if content_type is JSON and status == 200 and not headers and keep and one.method != "HEAD":
            return b"%b%d\r\n\r\n%b" % (self._home.ok_prefix(), size, body)
        lines = [b"HTTP/1.1 %d %b" % (status, _REASONS[status])]
        if content_type:
            lines.append(b"content-type: " + content_type)
        lines.append(self._home.common_lines())
        lines += [b"%b: %b" % pair for pair in headers]
        if not keep:
            lines.append(b"connection: close")
        if status not in (204, 304):
            lines.append(b"content-length: %d" % size)
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        return head if one.method == "HEAD" else head + body

    # -- ending ------------------------------------------------------------------------------------------------------

    def _refuse_connection(self, why: Failure) -> None:
        """An answer to what is no request, then the end."""
        one = self._line.popleft() if self._line else _Incoming()
        if one.exchange is not None:
            one.exchange.abandon()
        self._line.clear()
        self._current = None
        if not self._transport.is_closing():
            self._transport.write(self._rendered(one, why.status, why.headers, JSON, why.body(), keep=False))
        self._linger()

    def _linger(self) -> None:
        """Shut our side down and discard input for up to a second, so that the client can read the answer."""
        self._closing = self._lingering = True
        if self._eof or not self._transport.can_write_eof():
            self._close()
            return
        self._transport.write_eof()
        self._wait_for("linger", LINGER_NS)
        self._read_or_not()

    def _close(self) -> None:
        self._closing = True
        self._transport.close()

    def _wait_for(self, what: str, ns: int) -> None:
        self._waits_for = what
        self._deadline_ns = self._home.now_ns() + ns

    def _read_or_not(self) -> None:
        """Stop reading while complete requests wait, or output does."""
        wanted = self._lingering or not (self._full or (self._current is not None and self._line))
        if wanted == self._paused and not self._transport.is_closing():
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
            self._paused = not wanted


class _Turn:
    """The carrier of one exchange: its place on the connection."""

    __slots__ = ("_connection", "_one")

    def __init__(self, connection: Http1, one: _Incoming) -> None:
        self._connection = connection
        self._one = one

    def send(self, status: int, headers: Headers, content_type: bytes, body: bytes) -> None:
        self._connection.send(self._one, status, headers, content_type, body)


class _TooLarge(Exception):
    """The head is over its bound; carried through the parser."""


def _refusal_of(one: _Incoming) -> Failure | None:
    """What httptools lets through and HTTP does not."""
    headers = one.headers
    if one.version not in ("1.0", "1.1") or one.method == "CONNECT":
        return BAD_REQUEST
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (coding.strip().lower() != b"chunked" or one.version != "1.1"):
        return BAD_REQUEST
    if coding is not None and b"content-length" in headers:
        return BAD_REQUEST
    length = headers.get(b"content-length")
    if length is not None and not length.isdigit():
        return BAD_REQUEST
    if one.hosts > 1 or (one.hosts == 0 and one.version == "1.1"):
        return BAD_REQUEST
    if one.hosts and not _HOST.fullmatch(headers[b"host"].strip()):
        return BAD_REQUEST
    if not one.target.startswith((b"/", b"http://", b"https://")) and one.target != b"*":
        return BAD_REQUEST
    return None


def _origin_form(target: bytes) -> bytes:
    """The absolute form's authority is ignored [API-25]; a fragment is none of a request's."""
    if not target.startswith(b"/"):
        _, separator, rest = target.partition(b"://")
        if separator:
            slash = rest.find(b"/")
            mark = rest.find(b"?")
            if slash < 0 or 0 <= mark < slash:
                return b"/" + rest[mark:] if mark >= 0 else b"/"
            return rest[slash:]
    return target
