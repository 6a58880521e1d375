"""One WebSocket connection: bytes, bounds and deadlines (03 §8.1) [WS-1 … WS-8, WS-19].

    data_received ─▶ messages ─▶ commands ─▶ replies ─┐
                       engine.watch ─▶ deliveries ────┴▶ transport.write

    state      means                                              leaves it by
    open       commands are taken, frames are sent                the client's close, or a reason of ours
    parting    no further command; those taken are answered       the last answer, or ten seconds
    closing    our close frame is out                             the client's, its end, or a second without either
    over       nothing more is said or heard                      what is unsent has gone, or a second has

Output is bounded by the transport's marks and the one frame that crossed them; above the mark no command is read
[WS-5]. Input that waits for its turn is bounded as well, counts as buffered, and pauses the socket [RES-3]. Deadlines
are looked at once a second by `Connections`. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topics.engine.watch import Batch, Feed, Framing
from topics.server import failure, messages
from topics.server.commands import Commands, error_frame
from topics.server.exchange import Exchange
from topics.server.failure import Refused
from topics.server.http1 import READ_BYTES
from topics.server.lines import NO_LINE, Line
from topics.server.messages import BINARY, CLOSE, PING, TEXT, MessageReader, Violation
from topics.server.subscriptions import FRAMING

if TYPE_CHECKING:
    from topics.server.app import App
    from topics.server.connections import Connections
    from topics.server.keys import Key

OUTPUT_HIGH: Final = 64 << 10
OUTPUT_LOW: Final = 16 << 10
INPUT_HIGH: Final = 64 << 10
"""Reading stops while more than this waits for its turn."""
TURN: Final = 256
"""Frames of one connection that are looked at in a row; a command counts for several."""
COMMAND_TURN: Final = 8
NS_PER_S: Final = 1_000_000_000
PING_NS: Final = 20 * NS_PER_S
PONG_NS: Final = 20 * NS_PER_S
OUTPUT_NS: Final = 30 * NS_PER_S
PARTING_NS: Final = 10 * NS_PER_S
CLOSING_NS: Final = 1 * NS_PER_S

_OPEN: Final = "open"
_PARTING: Final = "parting"
_CLOSING: Final = "closing"
_OVER: Final = "over"


def upgrade(exchange: Exchange) -> None:
    """`GET /v0/ws` (03 §8)."""
    found = messages.handshake(exchange.headers)
    if found.failure is not None:
        raise Refused(found.failure)
    socket = WebSocket(exchange.app, exchange.key)
    refusal = exchange.app.streams.enter(socket, exchange.key)
    if refusal is not None:
        raise Refused(refusal)
    fields = ((b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", found.accept))
    exchange.switch(fields, socket.begin)


class WebSocket:
    """One connection. It holds a slot of its key until it is over [WS-3]."""

    framing: Framing = FRAMING
    kind: object = "websocket"
    _transport: asyncio.Transport

    def __init__(self, app: App, key: Key | None) -> None:
        assert app.engine is not None
        self.is_full = False
        """Output is above the mark."""
        self._feed = Feed(app.engine.core, self, resumes=False)
        self._app = app
        self._state = _OPEN
        self._reader = MessageReader(app.settings.max_body_bytes)
        self._commands = Commands(app, key, self._feed, self._tell, self._go_on)
        self._input = b""
        """Received, waiting for its turn."""
        self._counted = 0
        """How much of what is held counts as buffered."""
        self._is_scheduled = False
        self._is_paused = False
        self._is_resting = False
        """Reading stops for the rest of a pass."""
        self._farewell: tuple[bytes, bytes] = b"", b""
        """What is said at the end: a last message, and the close frame."""
        self._is_heard_out = False
        """The client has sent its close frame."""
        self._is_deaf = False
        """What it sends cannot be understood; only its end is waited for."""
        self._deadline_ns = 0
        """Of parting and closing, and of what is unsent when it is over."""
        self._heard_ns = self._sent_at_ns = app.clock.monotonic_ns()
        self._pinged_ns: int | None = None
        self._written = self._sent = 0
        self._line: Line | None = None
        """The transport, where the kernel has the connection."""

    def begin(self, home: Connections, transport: asyncio.Transport) -> WebSocket:
        """The handshake is answered: this is the connection from now on."""
        self._transport = transport
        self._line = transport if isinstance(transport, Line) else None
        transport.set_write_buffer_limits(high=OUTPUT_HIGH, low=OUTPUT_LOW)
        self._written = transport.get_write_buffer_size()
        self.is_full = self._written > OUTPUT_HIGH
        return self

    # -- the connection's events -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._heard_ns = self._app.clock.monotonic_ns()
        self._pinged_ns = None
        if self._state is _OPEN:
            if self._input or not self._may_read():
                self._put_by(data)
            else:
                self._pump(data)
            if len(data) >= READ_BYTES:
                self._rest()
        elif self._state is not _OVER:
            self._listen_for_close(data)

    def _rest(self) -> None:
        """There is more where that came from: the others have their turn first [P-10]."""
        self._is_resting = True
        self._read_or_not()
        asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self._read_or_not()

    def eof_received(self) -> bool:
        """The client sends no more: that is the end [API-23]."""
        self._end()
        return False

    def connection_lost(self) -> None:
        """The connection is gone; what is staged goes on without it."""
        self._end()

    def pause_writing(self) -> None:
        """More than 64 KiB are unsent: no command is read, no delivery is built [WS-5]."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The client has read on."""
        self.is_full = False
        self._feed.room()
        self._go_on()

    def drain(self) -> None:
        """The server stops [API-5, WS-7]."""
        self._part("server_shutting_down", "the server is shutting down", messages.GOING_AWAY)

    def key_removed(self) -> None:
        """What it was opened with is gone [KEY-4, WS-7]."""
        self._part("unauthorized", "the key of this connection was removed", messages.POLICY)

    def sweep(self, now_ns: int) -> None:
        """Look at the deadlines; once a second."""
        if self._is_stuck(now_ns):
            return
        if self._state is _OPEN:
            self._check_pulse(now_ns)
        elif now_ns >= self._deadline_ns:
            if self._state is _PARTING:
                self._say_farewell()
            else:
                self._transport.abort()

    def _is_stuck(self, now_ns: int) -> bool:
        """Whether output made no progress for 30 s [D-62]; then the connection is closed."""
        unsent = self._transport.get_write_buffer_size()
        sent = self._written - unsent if self._line is None else self._line.gone
        if not unsent or sent > self._sent:
            self._sent, self._sent_at_ns = sent, now_ns
            return False
        if now_ns - self._sent_at_ns < OUTPUT_NS:
            return False
        self._app.streams.closed_slow += 1
        self._transport.abort()
        return True

    def _check_pulse(self, now_ns: int) -> None:
        """Ping after 20 s of silence, close after 20 more [WS-19]. Whatever comes is a sign of life."""
        if self._is_paused or self._transport.get_write_buffer_size():
            # The silence is ours, or a ping would have to wait: then there is the deadline of output.
            self._heard_ns, self._pinged_ns = now_ns, None
        elif self._pinged_ns is not None:
            if now_ns - self._pinged_ns >= PONG_NS:
                self._close(messages.UNEXPECTED, "no pong came within 20 s")
        elif now_ns - self._heard_ns >= PING_NS:
            self._pinged_ns = now_ns
            self._write(messages.framed(b"", PING))

    # -- input, one message after another ----------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return not self.is_full and self._commands.is_ready

    def _put_by(self, data: bytes) -> None:
        self._input += data
        self._account()

    def _go_on(self) -> None:
        """Something has made room, or is done: look at what waits, in a turn of its own."""
        if self._state is not _OPEN:
            self._give_back()
        if self._is_scheduled:
            return
        if self._state is _PARTING or (self._state is _OPEN and (self._input or self._counted)):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._state is _PARTING:
            if self._commands.is_idle:
                self._say_farewell()
        elif self._state is _OPEN and self._may_read():
            data, self._input = self._input, b""
            self._pump(data)

    def _pump(self, data: bytes) -> None:
        """Go through the input until something has to be waited for, or the others are to have their turn."""
        at, size, turns = 0, len(data), TURN
        try:
            while at < size and turns > 0 and self._state is _OPEN and self._may_read():
                at, kind, payload = self._reader.read(data, at)
                turns -= 1
                if kind:
                    turns -= COMMAND_TURN
                    self._take(kind, payload)
        except Violation as bad:
            self._close(bad.status, bad.reason)
        if self._state is not _OPEN:
            return
        self._input = data[at:] if at else data
        self._account()
        if self._input and self._may_read():
            self._go_on()

    def _take(self, kind: int, payload: bytes | bytearray) -> None:
        if kind == TEXT:
            self._commands.take(payload)
        elif kind == BINARY:
            self._commands.take_binary()
        elif kind == PING:
            self._write(messages.framed(bytes(payload), messages.PONG))
        elif kind == CLOSE:
            self._is_heard_out = True
            self._leave(b"", messages.framed(bytes(payload), CLOSE))

    def _account(self) -> None:
        """Count what is held as buffered [RES-3]; stop reading while much waits."""
        more = self._held() - self._counted
        if more <= 0:
            self._give_back()
        elif self._app.buffered.take(more):
            self._counted += more
        else:
            why = self._app.buffered.refusal()
            self._part(why.code, why.message, messages.TRY_AGAIN)
            return
        self._read_or_not()

    def _held(self) -> int:
        return len(self._input) + self._reader.held + self._commands.held

    def _give_back(self) -> None:
        held = self._held()
        self._app.buffered.give_back(self._counted - held)
        self._counted = held

    def _read_or_not(self) -> None:
        wanted = self._state is not _OPEN or not (self._is_resting or len(self._input) > INPUT_HIGH)
        if wanted == self._is_paused and not self._transport.is_closing():
            self._is_paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # -- output ------------------------------------------------------------------------------------------------------

    def _tell(self, message: bytes) -> None:
        """A message of ours, if there is still somebody to tell."""
        if self._state is _OPEN or self._state is _PARTING:
            self._write(messages.framed(message))

    def put(self, frame: bytes) -> None:
        """A delivery frame [WS-15]."""
        if self._state is _OPEN:
            self._write(frame)

    def render(self, batch: Batch) -> bytes:
        """Records that others get as well: all of their bytes are shared [A-12]."""
        reached = FRAMING.caught_up(batch.name, batch.head) if batch.is_last else b""
        return FRAMING.record(batch) + reached

    def send(self, rendered: bytes, now_ns: int) -> None:
        """A batch as it was rendered for all."""
        self._write(rendered)

    @staticmethod
    def send_all(sinks: Sequence[WebSocket], rendered: bytes, now_ns: int) -> bool:
        """The same to many, where the kernel has them all."""
        first = sinks[0]._line
        lines = [NO_LINE if socket._line is None else socket._line.number for socket in sinks]
        if first is None or NO_LINE in lines:
            return False
        first.home.spread(lines, rendered)
        return True

    def over(self) -> None:
        """The last subscription ended; there may be more to come."""

    def broken(self, error: Exception) -> None:
        """What comes next cannot be read: the client may try again from where it is."""
        why = failure.of(error)
        self._part(why.code, why.message, messages.UNEXPECTED)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    # -- ending ------------------------------------------------------------------------------------------------------

    def _part(self, code: str, why: str, status: int) -> None:
        """End with an error frame, once what was begun is answered."""
        if self._state is _OPEN:
            self._leave(messages.framed(error_frame(code, why)), messages.closing(status, why))

    def _leave(self, last: bytes, close: bytes) -> None:
        self._feed.close()
        self._state = _PARTING
        self._farewell = last, close
        self._deadline_ns = self._app.clock.monotonic_ns() + PARTING_NS
        self._drop_input()
        if self._commands.is_idle:
            self._say_farewell()

    def _close(self, status: int, reason: str) -> None:
        """End at once: what the client sends cannot be understood, or nobody listens."""
        self._farewell = b"", messages.closing(status, reason)
        self._is_deaf = True
        self._drop_input()
        self._say_farewell()

    def _say_farewell(self) -> None:
        """The last frames; then the client has a second to answer, or ten to take them if it has closed already."""
        self._feed.close()
        self._state = _CLOSING
        self._deadline_ns = self._app.clock.monotonic_ns() + (PARTING_NS if self._is_heard_out else CLOSING_NS)
        for one in self._farewell:
            if one:
                self._write(one)
        if self._is_heard_out:
            self._transport.close()
        elif self._is_deaf and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()  # with input unread a close would be a reset, and take the frames with it

    def _listen_for_close(self, data: bytes) -> None:
        """Nothing but the client's close frame matters any more."""
        at = 0
        try:
            while at < len(data) and not self._is_heard_out and not self._is_deaf:
                at, kind, _ = self._reader.read(data, at)
                self._is_heard_out = kind == CLOSE
        except Violation:
            self._is_deaf = True
        if self._is_heard_out and self._state is _CLOSING:
            self._transport.close()

    def _drop_input(self) -> None:
        """But for a command that is being decoded: it counts until it is."""
        self._reader.keep_nothing()
        self._input = b""
        self._give_back()
        self._read_or_not()

    def _end(self) -> None:
        """Nothing is said or heard any more; again is fine."""
        if self._state is not _OVER:
            if self._state is not _CLOSING:
                self._deadline_ns = self._app.clock.monotonic_ns() + CLOSING_NS
            self._state = _OVER
            self._feed.close()
            self._drop_input()
            self._app.streams.leave(self)
