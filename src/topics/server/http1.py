"""HTTP/1.1 (and 1.0) on one connection [API-23, API-24, API-25].

    state     means                                        leaves it by
    head      between requests, or in the middle of a head   a complete head
    body      a request began, its body is coming            its last byte, or an answer given early
    busy      a request is being executed                    its answer
    stream    the answer goes on; input is discarded         its end, or the client's
    ending    the last answer is out; input is discarded     the client's end, or a second without one
    leaving   101 is out                                     what follows is another protocol's

    data_received ─▶ framing ─▶ one Exchange at a time ─▶ transport.write

Bytes behind a request that is being executed are not even looked at before it is answered: requests are executed one
after another, answers leave in order, and nothing behind a refusal counts. A connection with many requests at hand
takes its turns with the others.

Deadlines are looked at once a second by `Connections`; there is no timer per request. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from topics.server import browser
from topics.server.exchange import (
    GZIP_FROM_BYTES,
    JSON,
    Body,
    Exchange,
    Head,
    Headers,
    Listener,
    Outlet,
    Successor,
    body_bytes,
    joined,
    merged,
)
from topics.server.failure import Failure
from topics.server.framing import ChunkReader, HeadReader, Malformed
from topics.server.lines import Line

if TYPE_CHECKING:
    from topics.server.connections import Connections, Spoken
    from topics.server.known import Known

OUTPUT_HIGH: Final = 1 << 20
INPUT_HIGH: Final = 64 << 10
"""Reading stops while more than this waits for its turn."""
REQUESTS_PER_TURN: Final = 16
READ_BYTES: Final = 32 << 10
"""At most so much is read at once. So much of a body says that there is more: the others have their turn first, for the
transport would read on as long as it finds something [P-10]."""
LINES_PER_TURN: Final = 1024
"""Of chunk framing."""
NS_PER_S: Final = 1_000_000_000
HEAD_NS: Final = 30 * NS_PER_S
BODY_NS: Final = 60 * NS_PER_S
IDLE_NS: Final = 120 * NS_PER_S
OUTPUT_NS: Final = 30 * NS_PER_S
LINGER_NS: Final = 1 * NS_PER_S
APART_BYTES: Final = 16 << 10
"""A body from this size on is handed over as it is: copying it behind its head would take too long [P-10]."""
STREAM_HIGH: Final = 64 << 10
STREAM_LOW: Final = 16 << 10
"""Output of a stream: nothing is built above the first mark, until it is below the second [A-12]."""

_CR: Final = 13
_HEAD: Final = "head"
_BODY: Final = "body"
_BUSY: Final = "busy"
_STREAM: Final = "stream"
_ENDING: Final = "ending"
_LEAVING: Final = "leaving"

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

TIMEOUT = Failure(408, "request_timeout", "the request did not arrive in time")


class _Body:
    """The body of an answer that goes on: in chunks, or up to the end of the connection in HTTP/1.0 [API-25]."""

    def __init__(self, connection: Http1, transport: asyncio.Transport, *, chunked: bool) -> None:
        self._connection = connection
        self._transport = transport
        self._chunked = chunked
        self.kind = "chunked" if chunked else "plain"
        self.line = transport if isinstance(transport, Line) else None
        self.written = 0

    def wrap(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def send(self, wrapped: bytes) -> None:
        self.written += len(wrapped)
        self._transport.write(wrapped)

    def write(self, data: bytes) -> None:
        self.send(self.wrap(data))

    def end(self) -> None:
        if self._chunked and not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")
        self._connection.end_stream()

    def abort(self) -> None:
        self._transport.abort()


class Http1:
    """One connection, and the carrier of its exchanges, of which there is at most one."""

    def __init__(self, home: Connections, transport: asyncio.Transport, hand_over: Callable[[Spoken], None]) -> None:
        self._home = home
        self._app = home.app
        self._known = home.app.heads.by_bytes
        self._keyed = home.app.heads.by_digest
        self._transport = transport
        self._line = transport if isinstance(transport, Line) else None
        """The same, where the kernel has it: it takes plain writes by itself."""
        self._answered = 0
        """How many it had answered when that was last looked at."""
        self._hand_over = hand_over
        """Of the connection: another protocol takes it on."""
        self._successor: Successor | None = None
        self._state = _HEAD
        self._heads = HeadReader()
        self._head: Head | None = None
        """Of the request that is received or executed."""
        self._exchange: Exchange | None = None
        self._stream: Listener | None = None
        self._body: _Body | None = None
        """Of the stream."""
        self._left = 0
        """Of a body of known length."""
        self._chunks: ChunkReader | None = None
        self._input = b""
        """Received, waiting for its turn; counted as buffered."""
        self._overrun: Failure | None = None
        """Why what was received behind the request being executed could not be kept."""
        self._is_pumping = False
        self._is_scheduled = False
        self._eof = False
        self._paused = False
        self._resting = False
        """Reading stops for the rest of a pass."""
        self._full = False
        self._awaits = _HEAD
        """What the deadline is for: head, body, idle, ending, or nothing."""
        self._deadline_ns = home.now_ns() + HEAD_NS
        self._written = 0
        self._sent = 0
        self._sent_at_ns = home.now_ns()

    @property
    def is_over(self) -> bool:
        """No further input is looked at."""
        return self._state is _ENDING

    # -- the connection's events -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        state = self._state
        if state is _HEAD and not self._full and not self._input and self._overrun is None and self._heads.is_fresh:
            end = data.find(b"\r\n\r\n") + 4
            known = self._known.get(data[:end])
            if known is None and self._keyed:
                known = self._keyed.get(self._app.heads.digest(data[:end]))
            if known is not None and len(data) - end == known.head.declared:
                self._take_known(known, data[end:])
                return
        if state is _ENDING or state is _STREAM:
            return
        if state is _BUSY or self._full or self._input or self._overrun is not None:
            self._put_by(data)
        else:
            self._pump(data)
            if len(data) >= READ_BYTES and self._state is _BODY:
                self._rest()

    def _take_known(self, known: Known, body: bytes) -> None:
        """A whole request, and nothing else, whose head was seen before."""
        if self.adopt(known):
            now_ns = self._home.now_ns()
            if not known.gathers or not self._app.gathering.take(self, known, body, now_ns):
                self.execute_known(known, body, now_ns)

    def adopt(self, known: Known) -> bool:
        """Go on with a request that the kernel took; False: the connection has ended meanwhile."""
        if self._state is not _HEAD or self._transport.is_closing():
            return False
        self._head = known.head
        self._heads.keep_alive, self._heads.is_11 = known.keep_alive, True
        self._state = _BUSY
        self._awaits = ""
        return True

    def execute_known(self, known: Known, body: bytes, since_ns: int) -> None:
        """Execute such a request by itself."""
        if self._state is not _BUSY:
            return  # the client is gone
        exchange = self._app.begin_known(self, known, since_ns)
        if exchange.answered:
            return
        self._exchange = exchange
        if body:
            exchange.feed(body)
        if not exchange.answered:
            exchange.end()

    def answer_known(self, known: Known, since_ns: int, status: int, body: bytes) -> None:
        """Answer a request that was not executed by itself."""
        if known.wants_gzip and len(body) >= GZIP_FROM_BYTES:
            self._lone(known, since_ns, lambda exchange: exchange.reply(status, body))
        elif self._state is _BUSY:
            self.send(status, (), JSON, body)
            self._let_gather()

    def _let_gather(self) -> None:
        """Between two requests, with nothing at hand, the kernel may take what comes."""
        is_clear = self._state is _HEAD and not self._input and not self._eof and self._overrun is None
        if self._line is not None and is_clear:
            self._line.gather(self)

    def fail_known(self, known: Known, since_ns: int, error: Exception) -> None:
        """The same with what went wrong."""
        self._lone(known, since_ns, lambda exchange: exchange.fail(error))

    def abort(self) -> None:
        """There will be no answer."""
        self._transport.abort()

    def _lone(self, known: Known, since_ns: int, end: Callable[[Exchange], None]) -> None:
        if self._state is _BUSY:
            self._exchange = Exchange(self._app, self, known.head, known.match, known.query, since_ns)
            end(self._exchange)

    def _rest(self) -> None:
        self._resting = True
        self._read_or_not()
        asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._read_or_not()

    def eof_received(self) -> bool:
        """The client sends no more [API-23]; True keeps our side open for answers."""
        self._eof = True
        exchange = self._exchange
        is_waiting = exchange is not None and exchange.cancel is not None
        if (self._state is _BUSY and not is_waiting) or (self._state is not _BUSY and self._input):
            return self._transport.can_write_eof()  # without it (TLS) there is no half of a connection
        was_stream = self._state is _STREAM
        self._drop()
        if was_stream:
            self._await(_ENDING, LINGER_NS)  # what it does not take by then it does not want
        return False

    def connection_lost(self) -> None:
        """The connection is gone; what is being executed learns of it."""
        self._drop()
        self._heads.close()

    def pause_writing(self) -> None:
        """More than 1 MiB is unsent: no further request is started [API-24]; of a stream, more than 64 KiB."""
        self._full = True
        if self._stream is not None:
            self._stream.is_full = True

    def resume_writing(self) -> None:
        """The client has read on."""
        self._full = False
        if self._stream is not None:
            self._stream.is_full = False
            self._stream.room()
            return
        self._read_or_not()
        self._go_on()

    def drain(self) -> None:
        """The server stops: a stream ends, and every answer is the last of its connection [API-5]."""
        if self._stream is not None:
            self._stream.drain()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is received or executed, and nobody but the client has something left to do."""
        if self._state is _ENDING:
            return True
        is_taken = self._line is not None and self._line.served()[0]  # a write of which only the kernel knows
        return self._state is _HEAD and not self._input and not self._heads.has_begun and not is_taken

    def part(self) -> None:
        """Close an idle connection; one whose last answer is out has its second."""
        if self._state is not _ENDING:
            self._drop()
            self._transport.close()

    def sweep(self, now_ns: int) -> None:
        """Look at the deadlines; once a second."""
        if self._line is not None:
            self._note_served(self._line, now_ns)
        unsent = self._transport.get_write_buffer_size()
        if self._line is not None:
            sent = self._line.gone
        else:
            sent = self._written + (0 if self._body is None else self._body.written) - unsent
        if not unsent or sent > self._sent:
            self._sent, self._sent_at_ns = sent, now_ns
        elif now_ns - self._sent_at_ns >= OUTPUT_NS:
            if self._stream is not None:
                self._stream.stuck()
            self._transport.abort()
            return
        awaits = self._awaits
        if unsent and awaits in (_ENDING, "idle") and self._body is None:
            # It is not the client's turn yet.
            self._deadline_ns = now_ns + (LINGER_NS if awaits is _ENDING else IDLE_NS)
        elif awaits and now_ns >= self._deadline_ns:
            self._expired(awaits, now_ns)

    def _note_served(self, line: Line, now_ns: int) -> None:
        """What the kernel took and answered is seen here only now."""
        is_busy, answered = line.served()
        if is_busy or answered != self._answered:
            self._answered = answered
            self._sent_at_ns = now_ns
            if self._awaits == "idle":
                self._deadline_ns = now_ns + IDLE_NS

    def _expired(self, awaits: str, now_ns: int) -> None:
        if awaits is _ENDING:
            self._transport.abort()
        elif awaits == "idle":
            self._drop()
            self._transport.close()
        elif self._chunks is None or now_ns >= self._deadline_ns + (self._chunks.size * NS_PER_S >> 20):
            self.refuse(TIMEOUT)

    # -- input, one request after another ----------------------------------------------------------------------------

    def _put_by(self, data: bytes) -> None:
        """Keep bytes for later; they count as buffered [RES-3]."""
        if self._overrun is not None:
            return
        if not self._app.buffered.take(len(data)):
            self._overrun = self._app.buffered.refusal()
            self._take_up()
            return
        self._input += data
        self._read_or_not()

    def _take_up(self) -> bytes:
        data, self._input = self._input, b""
        self._app.buffered.give_back(len(data))
        return data

    def _go_on(self) -> None:
        """Look at what waits, in a turn of its own."""
        if not self._is_scheduled and (self._input or self._eof or self._overrun is not None):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._full and (self._state is _HEAD or self._state is _BODY):
            self._pump(self._take_up())

    def _pump(self, data: bytes) -> None:
        """Go through the input until a request has to be waited for, or the others are to have their turn."""
        self._is_pumping = True
        at, size, turns = 0, len(data), REQUESTS_PER_TURN
        try:
            while at < size and turns and not self._full:
                if self._state is _HEAD:
                    turns -= 1
                    at = self._read_head(data, at)
                if self._state is _BODY:
                    at = self._read_body(data, at)
                if self._state is not _HEAD:
                    break
        finally:
            self._is_pumping = False
        if self._state is _ENDING or self._state is _STREAM:
            return
        if self._state is _LEAVING:
            self._leave(data[at:])
            return
        if at < size:
            self._put_by(data[at:] if at else data)
        if self._state is not _BUSY and not self._full:
            self._await_more()
        if self._paused:
            self._read_or_not()

    def _await_more(self) -> None:
        """All that can be done now is done."""
        if self._input:
            self._go_on()
        elif self._overrun is not None:
            self.refuse(self._overrun)
        elif self._eof:
            self._drop()
            self._transport.close()
        elif self._state is _BODY:
            if self._awaits is not _BODY:
                assert self._head is not None
                self._await(_BODY, BODY_NS + ((self._head.declared or 0) * NS_PER_S >> 20))
        elif self._awaits == "idle" and self._heads.has_begun:
            self._await(_HEAD, HEAD_NS)

    def _read_head(self, data: bytes, at: int) -> int:
        heads, begin = self._heads, at
        is_fresh = heads.is_fresh and data[at] > _CR
        try:
            at, head = heads.read(data, at)
        except Malformed as bad:
            self.refuse(bad.failure)
            return at
        if head is not None:
            exchange = self._begin(head, has_more=at < len(data))
            if is_fresh and heads.is_11 and not exchange.is_refused:
                self._app.heads.remember(data[begin:at], head, heads.keep_alive, exchange.key)
        return at

    def _begin(self, head: Head, *, has_more: bool) -> Exchange:
        length = head.declared
        if head.expects and has_more:
            head = head._replace(expects=False)
        self._head = head
        self._left = length or 0
        self._chunks = ChunkReader() if length is None else None
        self._state = _BODY
        exchange = self._app.begin(self, head)
        if not exchange.answered:
            self._exchange = exchange
            if length == 0:
                self._execute(exchange)
            elif head.expects:
                self._write(_CONTINUE)
        return exchange

    def _read_body(self, data: bytes, at: int) -> int:
        exchange = self._exchange
        assert exchange is not None
        if self._chunks is None:
            end = at + self._left
            part = data if not at and end >= len(data) else data[at:end]
            at += len(part)
            self._left -= len(part)
            is_complete = not self._left
        else:
            parts: list[bytes] = []
            try:
                at = self._chunks.read(data, at, parts, LINES_PER_TURN)
            except Malformed as bad:
                self.refuse(bad.failure)
                return at
            part = parts[0] if len(parts) == 1 else b"".join(parts)
            is_complete = self._chunks.is_complete
            if is_complete:
                self._chunks = None
        if part:
            exchange.feed(part)
        if is_complete and not exchange.answered:
            self._execute(exchange)
        return at

    def _execute(self, exchange: Exchange) -> None:
        self._state = _BUSY
        self._awaits = ""
        exchange.end()
        is_waiting = self._state is _BUSY and exchange.cancel is not None
        if self._eof and (is_waiting or self._state is _STREAM):
            self._drop()  # it waits, and there is nobody to wait for
            self._transport.close()

    # -- output ------------------------------------------------------------------------------------------------------

    def send(self, status: int, headers: Headers, content_type: bytes, body: Body) -> None:
        """The exchange answers."""
        head = self._head
        assert head is not None
        self._exchange = None
        if self._transport.is_closing():
            self._drop()  # nobody gets it, and nothing behind it counts
            return
        # An answer before the end of the body is the connection's last [API-25].
        is_early = self._state is _BODY and (self._left > 0 or self._chunks is not None)
        keep = self._heads.keep_alive and not is_early and not self._app.draining and self._may_go_on()
        size = body_bytes(body)
        rendered = self._rendered(status, headers, content_type, size, keep=keep)
        if head.method == "HEAD":
            self._write(rendered)
        elif size < APART_BYTES:
            self._write(rendered + joined(body))
        else:
            self._written += len(rendered) + size
            self._transport.writelines((rendered, body) if isinstance(body, bytes) else (rendered, *body))
        if not keep:
            self._end()
            return
        self._state = _HEAD
        self._await("idle", IDLE_NS)
        if not self._is_pumping:
            self._go_on()

    def give_up(self) -> None:
        """Of the answer a part may be out."""
        self.abort()

    def stream(self, headers: Headers, content_type: bytes, listener: Listener) -> Outlet:
        """The exchange answers with a body that goes on; it is the connection's last."""
        self._exchange = None
        self._state = _STREAM
        self._take_up()
        self._awaits = ""
        self._stream = listener
        chunked = self._heads.is_11
        body = self._body = _Body(self, self._transport, chunked=chunked)
        self._transport.set_write_buffer_limits(high=STREAM_HIGH, low=STREAM_LOW)
        lines = [b"HTTP/1.1 200 OK", b"content-type: " + content_type, self._home.common_lines()]
        lines += [b"%b: %b" % pair for pair in headers]
        lines.append(b"transfer-encoding: chunked" if chunked else b"connection: close")
        self._write(b"\r\n".join(lines) + b"\r\n\r\n")
        if self._paused:
            # What was put by is of no interest any more; the client's end is.
            self._paused = False
            self._transport.resume_reading()
        return body

    def end_stream(self) -> None:
        """The last chunk is written: close, with a second for the client to take it [API-5, API-25]."""
        self._stream = None
        if self._state is _STREAM:
            self._end()

    def switch(self, headers: Headers, make: Successor) -> None:
        """The exchange leaves HTTP: this is the last thing said in it."""
        self._exchange = None
        lines = [b"HTTP/1.1 101 Switching Protocols", self._home.common_lines()]
        lines += [b"%b: %b" % pair for pair in headers]
        if not self._transport.is_closing():
            self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
        self._state = _LEAVING
        self._successor = make

    def _leave(self, rest: bytes) -> None:
        """What came behind the request is the successor's [WS-1], the client's end as well."""
        assert self._successor is not None
        self._heads.close()
        if self._paused and not self._transport.is_closing():
            self._transport.resume_reading()
        successor = self._successor(self._home, self._transport)
        self._hand_over(successor)
        if rest:
            successor.data_received(rest)
        if self._eof and not successor.eof_received():
            self._transport.close()

    def _may_go_on(self) -> bool:
        """Whether more requests can come."""
        return not self._eof or self._is_pumping or bool(self._input)

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def _rendered(self, status: int, headers: Headers, content_type: bytes, size: int, *, keep: bool) -> bytes:
        """The head of an answer."""
        if content_type is JSON and status == 200 and not headers and keep:
            return b"%b%d\r\n\r\n" % (self._home.ok_prefix(), size)
        lines = [b"HTTP/1.1 %d %b" % (status, _REASONS[status])]
        if content_type:
            lines.append(b"content-type: " + content_type)
        lines.append(self._home.common_lines(headers))
        lines += [b"%b: %b" % pair for pair in headers]
        if not keep:
            lines.append(b"connection: close")
        if status not in (204, 304):
            lines.append(b"content-length: %d" % size)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # -- ending ------------------------------------------------------------------------------------------------------

    def refuse(self, why: Failure) -> None:
        """An answer to what is no request, or is not let become one, then the end."""
        method = self._head.method if self._state is _BODY and self._head is not None else ""
        exchange, policy = self._exchange, self._app.policy
        cors = exchange.cors if exchange is not None else browser.cors(policy, self._heads.origin)
        if not self._transport.is_closing():
            headers, body = merged(why.fields(), cors), why.body()
            rendered = self._rendered(why.status, headers, JSON, len(body), keep=False)
            self._write(rendered if method == "HEAD" else rendered + body)
        self._end()

    def _end(self) -> None:
        """Shut our side down and discard input for up to a second, so that the client can read the answer."""
        self._drop()
        self._home.ended()
        if self._eof:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._await(_ENDING, LINGER_NS)
        self._read_or_not()

    def _drop(self) -> None:
        """Nothing more is read or executed; a half-received request never was one."""
        self._state = _ENDING
        self._awaits = ""
        self._take_up()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.lost()

    def _await(self, what: str, ns: int) -> None:
        self._awaits = what
        self._deadline_ns = self._home.now_ns() + ns

    def _read_or_not(self) -> None:
        """Reading stops while much waits for its turn; else the client's end must be seen."""
        waits = self._resting or len(self._input) > INPUT_HIGH or (self._full and self._input)
        wanted = self._state is _ENDING or not waits
        if wanted == self._paused and not self._transport.is_closing():
            self._paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
