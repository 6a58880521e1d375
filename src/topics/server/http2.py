"""HTTP/2 on one connection, by h2 [API-2, API-26].

    data_received ─▶ frames, one at a time ─▶ h2 ─▶ a stream per request ─▶ Exchange
    answers ─▶ ready streams, in turn ─▶ h2, as windows and transport allow ─▶ one transport.write per tick

Frames are cut here, so that a flood or an overlong frame is seen before it is stored or worked on. What h2 treats too
harshly or not at all is decided here: a malformed request and a stream too many are stream errors, a GOAWAY leaves the
running streams alone, and a body must be as long as it was declared, also when trailers end it.

    waiting   the head is here, and too much output is unsent: nothing is executed, no window is given back [API-24]
    begun     the exchange takes the body as it arrives; window is given back for what it took
    answered  the body of the answer leaves as the stream's window, the connection's and the transport allow; that of a
              watch goes on until its listener ends it
    lingering answered before the end of its body: that is taken and dropped for a second, for the many clients that
              look at an answer only when they have sent everything, then the stream is reset without an error
    gone      answered completely, or reset by either side

A request that was reset while it was being executed counts as a stream until it is done: resetting makes no room.

Deadlines are looked at once a second by `Connections`; there is no timer per stream. Event loop only.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import InvalidBodyLengthError, ProtocolError
from h2.settings import SettingCodes, Settings
from hpack.exceptions import HPACKError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, WindowUpdateFrame

from topics.server import browser
from topics.server.exchange import JSON, Body, Exchange, Head, Headers, Listener, Outlet, Successor, joined, merged
from topics.server.failure import Failure, Refused
from topics.server.framing import FIELDS, HEAD_BYTES, HEAD_TOO_LARGE, HOST, METHOD, length_of
from topics.server.http1 import (
    BODY_NS,
    HEAD_NS,
    LINGER_NS,
    NS_PER_S,
    OUTPUT_HIGH,
    OUTPUT_NS,
    STREAM_HIGH,
    STREAM_LOW,
    TIMEOUT,
)

if TYPE_CHECKING:
    from topics.server.connections import Connections
    from topics.server.lines import Line

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS: Final = 1024
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 4 << 20
FRAME_BYTES: Final = 16 << 10
PING_NS: Final = 20 * NS_PER_S
FLOOD_FRAMES: Final = 1000
FLOOD_NS: Final = 10 * NS_PER_S

TRANSPORT_HIGH: Final = 128 << 10
WRITE_BYTES: Final = 64 << 10
TICK_BYTES: Final = 256 << 10
"""More than this of one connection's output is not framed in one go: others want the loop too."""
UNSENT_HIGH: Final = OUTPUT_HIGH - TRANSPORT_HIGH - WRITE_BYTES
"""Answers that wait for a window; with what the transport may hold they are 1 MiB [API-24]."""
WAITING_BYTES: Final = 1 << 20
"""Heads that may wait while too much output is unsent; further ones are refused and may be sent again."""

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 9
_END_STREAM, _END_HEADERS, _PADDED = 0x1, 0x4, 0x8
_COUNTED = frozenset({_PRIORITY, _RST_STREAM, _SETTINGS, _PING})

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z")
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
_OF_CONNECTIONS = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)  # fmt: skip


class _Malformed(Exception):
    """Not a request [API-26]."""


class _Stream:
    """One request, and the carrier of its exchange."""

    __slots__ = (
        "_connection", "began_ns", "chunks", "ended", "exchange", "head", "head_bytes", "held", "id", "is_ending",
        "is_ready", "lingers_until_ns", "listener", "moved_ns", "out", "received", "status",
    )  # fmt: skip

    def __init__(self, connection: Http2, id: int, head: Head, head_bytes: int, now_ns: int) -> None:
        self._connection = connection
        self.id = id
        self.head = head
        self.head_bytes = head_bytes
        self.exchange: Exchange | None = None
        """None while it waits."""
        self.began_ns = now_ns
        self.ended = False
        """The request is complete."""
        self.received = 0
        self.chunks: list[bytes] = []
        self.held = 0
        """Bytes of `chunks` with their padding, for which no window was given back."""
        self.out = memoryview(b"")
        """What of the answer's body has not been framed."""
        self.status = 0
        """Of the answer, once its head is on its way."""
        self.lingers_until_ns: int | None = None
        self.is_ready = False
        self.moved_ns = now_ns
        self.listener: Listener | None = None
        """While the answer goes on."""
        self.is_ending = False
        """It has gone on, and what is in `out` is the last of it."""

    def send(self, status: int, headers: Headers, content_type: bytes, body: Body) -> bool:
        """The exchange answers; False while a part of that waits for the client's window [RES-7]."""
        return self._connection.send(self, status, headers, content_type, joined(body))

    def give_up(self) -> None:
        """Of the answer a part may be out; the connection's other streams go on."""
        self._connection.give_up_stream(self)

    def stream(self, headers: Headers, content_type: bytes, listener: Listener) -> Outlet:
        """The exchange answers with a body that goes on."""
        self._connection.begin_stream(self, headers, content_type, listener)
        return _Body(self._connection, self)

    def switch(self, headers: Headers, make: Successor) -> None:
        """There is no way from here [API-26]; fields that would ask for one are refused long before."""
        raise AssertionError("a stream cannot be upgraded")

    def takes_more(self) -> bool:
        """Whether more of the body is welcome; it is not when there is no room for it."""
        if self.lingers_until_ns is not None:
            return self.status != 429
        return self.exchange is not None and not self.exchange.answered

    def body_deadline_ns(self) -> int:
        """60 s, and one more per MiB [API-3]."""
        size = max(self.head.declared or 0, self.received)
        return self.began_ns + BODY_NS + (size >> 20) * NS_PER_S


class _Body:
    """The body of an answer that goes on; it is cut into frames later, as windows allow."""

    kind = "plain"
    line: Line | None = None

    def __init__(self, connection: Http2, stream: _Stream) -> None:
        self._connection = connection
        self._stream = stream

    def wrap(self, data: bytes) -> bytes:
        return data

    def send(self, wrapped: bytes) -> None:
        self._connection.write_stream(self._stream, wrapped)

    def write(self, data: bytes) -> None:
        self._connection.write_stream(self._stream, data)

    def end(self) -> None:
        self._connection.end_stream(self._stream)

    def abort(self) -> None:
        self._connection.abort_stream(self._stream)


class _Wire(H2Connection):
    """h2, with the errors of one request kept to its stream."""

    MAX_CLOSED_STREAMS = 4 * STREAMS

    def __init__(self) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # Ours are well-formed, and the client's are looked at in `_head_of`, as an error of the stream.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_BYTES,
            },
        )
        self._forget_above = 64

    @property
    def open_inbound_streams(self) -> int:
        """None, for h2: `Http2` bounds them, and refuses the stream instead of the connection."""
        if len(self.streams) > self._forget_above:
            # Counting is what makes h2 forget closed streams. Now and then is enough.
            self._forget_above = 64 + 2 * super().open_inbound_streams
        return 0

    def _receive_frame(self, frame: Frame) -> list[events.Event]:
        try:
            return super()._receive_frame(frame)
        except ProtocolError as error:
            if not self._is_of_stream(frame, error):
                raise
        self.reset_stream(frame.stream_id, ErrorCodes.PROTOCOL_ERROR)
        if isinstance(frame, DataFrame) and frame.flow_controlled_length:
            self.increment_flow_control_window(frame.flow_controlled_length)
        reset = events.StreamReset(
            stream_id=frame.stream_id, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False
        )  # fmt: skip
        return [reset]

    def _is_of_stream(self, frame: Frame, error: ProtocolError) -> bool:
        """A wrong length or wrong trailers; what shook the header compression or the windows is not."""
        stream = self.streams.get(frame.stream_id)
        return (
            isinstance(frame, (HeadersFrame, DataFrame))
            and type(error) in (ProtocolError, InvalidBodyLengthError)
            and not isinstance(error.__cause__, HPACKError)
            and stream is not None
            and stream.open
        )


class Http2:
    """One connection."""

    def __init__(self, home: Connections, transport: asyncio.Transport) -> None:
        self._home = home
        self._app = home.app
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._wire = _Wire()
        self._streams: dict[int, _Stream] = {}
        self._given_up: dict[int, None] = {}
        """Streams that were reset here, the last ones; what is under way on them is dropped."""
        self._dropped = 0
        """Bytes of it whose window has not been given back."""
        self._orphans: list[Exchange] = []
        """Reset while they were executed; looked through when room is needed."""
        self._line: deque[_Stream] = deque()
        self._line_bytes = 0
        self._ready: deque[_Stream] = deque()
        """Streams with output, whose window was open when last looked at."""
        self._unsent = 0
        """Bytes of answers that are not framed yet."""
        self._floods: deque[int] = deque(maxlen=FLOOD_FRAMES)
        """When the last counted frames came."""
        self._rest = b""
        self._preface = len(PREFACE)
        self._block = 0
        """Bytes of the header block that is being received."""
        self._is_first = True
        self._now_ns = self._heard_ns = self._moved_ns = home.now_ns()
        self._partial_ns: int | None = self._now_ns
        """Since when a head, or the preface, is half received."""
        self._pinged_ns = 0
        self._written = 0
        self._gone_out = 0
        self._full = False
        self._paused = False
        self._parting = False
        self._eof = False
        """No new streams are awaited: the connection ends with the last one."""
        self._closing = False
        self._linger_until_ns: int | None = None
        self._streams_until_ns: int | None = None
        """When streams that were told of the server's end have to have taken it."""
        self._ticking = False
        """A flush is due anyway."""
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._on_request,
            events.DataReceived: self._on_data,
            events.StreamEnded: self._on_end,
            events.StreamReset: self._on_reset,
            events.TrailersReceived: self._on_trailers,
            events.WindowUpdated: self._on_window,
            events.RemoteSettingsChanged: self._on_settings,
        }
        transport.set_write_buffer_limits(high=TRANSPORT_HIGH, low=TRANSPORT_HIGH // 4)
        self._wire.initiate_connection()
        self._wire.increment_flow_control_window(CONNECTION_WINDOW - self._wire.inbound_flow_control_window)
        self._write()

    # -- the connection's events -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._closing:
            return
        self._now_ns = self._heard_ns = self._home.now_ns()
        ticking, self._ticking = self._ticking, True
        try:
            self._cut(data)
        finally:
            self._ticking = ticking
        if not self._closing:
            self._flush()

    def eof_received(self) -> bool:
        """The client sends no more: what it sent completely is answered, what waits ends [API-23]."""
        if self._closing:
            return False
        self._parting = self._eof = True
        for stream in list(self._streams.values()):
            exchange = stream.exchange
            if stream.listener is not None:
                self._streams_until_ns = self._home.now_ns() + LINGER_NS
            if not stream.ended or stream.listener or (exchange is not None and exchange.cancel is not None):
                self._reset(stream, ErrorCodes.CANCEL)
        self._flush()
        return not self._closing

    def connection_lost(self) -> None:
        """The connection is gone; what is being executed learns of it."""
        self._closing = True
        self._abandon_all()

    def pause_writing(self) -> None:
        """The transport has enough."""
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._read_again()
        self._schedule()

    def drain(self) -> None:
        """The server stops: no new streams, and the end when the running ones are answered [API-5]."""
        if self._closing or self._parting:
            return
        # h2 sends nothing after its GOAWAY, so this one is not h2's.
        frame = GoAwayFrame(0, last_stream_id=self._wire.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        # What is answered goes first: there are clients that hear nothing behind it.
        for stream in list(self._streams.values()):
            if stream.listener is not None:
                self._streams_until_ns = self._home.now_ns() + LINGER_NS
                stream.listener.drain()
        self._flush()
        self._put(frame.serialize())
        self._parting = True
        self._flush()

    def sweep(self, now_ns: int) -> None:
        """Look at the deadlines; once a second."""
        self._now_ns = now_ns
        if self._linger_until_ns is not None:
            if now_ns >= self._linger_until_ns:
                self._transport.abort()
            return
        if self._streams_until_ns is not None and now_ns >= self._streams_until_ns:
            self._give_up_streams()
        if self._is_stuck(now_ns) or self._closing:
            return
        if self._partial_ns is not None and now_ns - self._partial_ns >= HEAD_NS:
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM)
            return
        for stream in list(self._streams.values()):
            self._sweep_stream(stream, now_ns)
        self._orphans = [one for one in self._orphans if not one.answered]
        self._ping(now_ns)
        self._flush()

    def _give_up_streams(self) -> None:
        """It ends, and streams had a second for their last frame; other answers have longer [API-5, API-23]."""
        for stream in list(self._streams.values()):
            if stream.is_ending:
                self._reset(stream, ErrorCodes.CANCEL)
        unsent = self._transport.get_write_buffer_size()
        gone_out, self._gone_out = self._gone_out, self._written - unsent
        if unsent and not self._streams and gone_out == self._gone_out:
            self._transport.abort()

    def _is_stuck(self, now_ns: int) -> bool:
        """Whether output made no progress for 30 s [API-24]; then the connection is closed."""
        unsent = self._transport.get_write_buffer_size()
        gone_out = self._written - unsent
        if not unsent or gone_out != self._gone_out:
            self._gone_out = gone_out
            self._moved_ns = now_ns
        if now_ns - self._moved_ns < OUTPUT_NS:
            return False
        for stream in self._streams.values():
            if stream.listener is not None:
                stream.listener.stuck()
        self._transport.abort()
        return True

    def _sweep_stream(self, stream: _Stream, now_ns: int) -> None:
        exchange = stream.exchange
        if stream.lingers_until_ns is not None:
            if now_ns >= stream.lingers_until_ns:
                # Clients were seen that notice a reset only when they try to send: a byte of window wakes them.
                self._wire.increment_flow_control_window(1, stream.id)
                self._reset(stream, ErrorCodes.NO_ERROR)
        elif stream.out:
            if self._wire.local_flow_control_window(stream.id) > 0:
                stream.moved_ns = now_ns  # it is the transport that is slow
            elif now_ns - stream.moved_ns >= (LINGER_NS if stream.is_ending else OUTPUT_NS):
                if stream.listener is not None:
                    stream.listener.stuck()
                self._reset(stream, ErrorCodes.CANCEL)
        elif exchange is not None and not exchange.answered and not stream.ended:
            if now_ns >= stream.body_deadline_ns():
                exchange.fail(Refused(TIMEOUT))

    def _ping(self, now_ns: int) -> None:
        if self._paused or now_ns - self._heard_ns < PING_NS:
            return
        if self._pinged_ns <= self._heard_ns:
            self._pinged_ns = now_ns
            self._wire.ping(bytes(8))
        elif now_ns - self._pinged_ns >= PING_NS:
            self._transport.abort()

    # -- frames ------------------------------------------------------------------------------------------------------

    def _cut(self, data: bytes) -> None:
        """Hand whole frames over, keep the rest."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, size = 0, len(data)
        if self._preface:
            at = min(self._preface, size)
            if not self._feed(data[:at]):
                return
            self._preface -= at
        while size - at >= 9:
            length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            refusal = self._unfit(kind, length)
            if refusal is not None:
                self._go_away(refusal)
                return
            end = at + 9 + length
            if size < end:
                break
            self._frame(kind, flags, data[at:end])
            if self._closing:
                return
            at = end
        self._rest = data[at:]
        self._note_partial(progressed=at > 0)

    def _note_partial(self, *, progressed: bool) -> None:
        """A half-received head has 30 s; what is half received of a body is its stream's matter [API-3]."""
        if self._preface or self._block:
            return  # since the first of it
        rest = self._rest
        if not rest or (len(rest) > 3 and rest[3] == _DATA):
            self._partial_ns = None
        elif progressed or self._partial_ns is None:
            self._partial_ns = self._now_ns

    def _unfit(self, kind: int, length: int) -> ErrorCodes | None:
        """What is refused by its first nine bytes."""
        if length > FRAME_BYTES:
            return ErrorCodes.FRAME_SIZE_ERROR
        if kind in (_HEADERS, _CONTINUATION) and self._block + length > HEAD_BYTES:
            return ErrorCodes.ENHANCE_YOUR_CALM
        if self._is_first and kind != _SETTINGS:
            return ErrorCodes.PROTOCOL_ERROR
        return None

    def _frame(self, kind: int, flags: int, frame: bytes) -> None:
        self._is_first = False
        if kind in _COUNTED or (kind == _DATA and _is_empty(flags, frame)):
            self._count()
            if self._closing:
                return
        if kind == _GOAWAY:
            # h2 would not let the running streams be answered.
            self._parting = True
            return
        if kind == _DATA and self._is_dropped(flags, frame):
            return
        if kind in (_HEADERS, _CONTINUATION):
            is_whole = bool(flags & _END_HEADERS)
            if not self._block and not is_whole:
                self._partial_ns = self._now_ns
            self._block = 0 if is_whole else self._block + len(frame)
        self._feed(frame)

    def _is_dropped(self, flags: int, frame: bytes) -> bool:
        """Whether it belongs to a stream that was reset here. h2 would answer each such frame with one more reset."""
        id = int.from_bytes(frame[5:9], "big") & 0x7FFF_FFFF
        if id not in self._given_up:
            return False
        if flags & _END_STREAM:
            del self._given_up[id]
        self._dropped += len(frame) - 9
        return True

    def _feed(self, data: bytes) -> bool:
        """One frame to h2, and what it means to the streams; False when it was the last."""
        try:
            happened = self._wire.receive_data(data)
        except ProtocolError:
            # h2 has its GOAWAY ready.
            self._end()
            return False
        for event in happened:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
            if self._closing:
                return False
        return True

    def _count(self) -> None:
        """One more of the frames that cost us and not the client [API-26]."""
        floods, now_ns = self._floods, self._now_ns
        if len(floods) == FLOOD_FRAMES and now_ns - floods[0] < FLOOD_NS:
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM)
        floods.append(now_ns)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _on_request(self, event: events.RequestReceived) -> None:
        id = event.stream_id
        if not self._has_room():
            self._give_up(id, ErrorCodes.REFUSED_STREAM)
            return
        fields = event.headers
        try:
            head = _head_of(fields, whole=event.stream_ended is not None)
        except _Malformed:
            self._give_up(id, ErrorCodes.PROTOCOL_ERROR)
            self._count()
            return
        size = sum(len(name) + len(value) for name, value in fields)
        stream = _Stream(self, id, head, size, self._now_ns)
        if len(fields) > FIELDS and sum(name[:1] != b":" for name, _ in fields) > FIELDS:
            self._streams[id] = stream
            self._refuse(stream, HEAD_TOO_LARGE)
        elif not self._line and not self._is_held():
            self._streams[id] = stream
            self._begin(stream)
        elif self._line_bytes + size > WAITING_BYTES:
            self._give_up(id, ErrorCodes.REFUSED_STREAM)
        else:
            self._streams[id] = stream
            self._line.append(stream)
            self._line_bytes += size

    def _has_room(self) -> bool:
        if len(self._streams) + len(self._orphans) >= STREAMS:
            self._orphans = [one for one in self._orphans if not one.answered]
        return len(self._streams) + len(self._orphans) < STREAMS

    def _is_held(self) -> bool:
        """More than 1 MiB is unsent: no further request is started [API-24]."""
        return self._unsent > UNSENT_HIGH or self._paused

    def _begin(self, stream: _Stream) -> None:
        """Execute, as far as it has arrived."""
        exchange = stream.exchange = self._app.begin(stream, stream.head)
        if stream.head.expects and not stream.ended and not stream.chunks and not exchange.answered:
            self._wire.send_headers(stream.id, [(b":status", b"100")])
        chunks, held = stream.chunks, stream.held
        stream.chunks, stream.held = [], 0
        for chunk in chunks:
            exchange.feed(chunk)
        self._give_back(stream, held)
        if stream.ended:
            exchange.end()

    def _advance(self) -> None:
        """Start what waits, as far as output allows."""
        while self._line and not self._is_held():
            stream = self._line.popleft()
            self._line_bytes -= stream.head_bytes
            self._begin(stream)

    def _refuse(self, stream: _Stream, why: Failure) -> None:
        """An answer to what is not executed."""
        cors = browser.cors(self._app.policy, stream.head.headers.get(b"origin"))
        self.send(stream, why.status, merged(why.fields(), cors), JSON, why.body())

    def _on_data(self, event: events.DataReceived) -> None:
        size = event.flow_controlled_length
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._give_back(None, size)
            return
        stream.received += len(event.data)
        exchange = stream.exchange
        if exchange is None and not stream.status:
            stream.chunks.append(event.data)
            stream.held += size
            return
        if exchange is not None and event.data:
            exchange.feed(event.data)
        self._give_back(stream, size)

    def _give_back(self, stream: _Stream | None, size: int) -> None:
        """Window for bytes that were taken; for those of a stream that gets no more, only the connection's [API-26]."""
        if not size:
            return
        if stream is not None and stream.takes_more():
            self._wire.acknowledge_received_data(size, stream.id)
        else:
            self._wire.increment_flow_control_window(size)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None and not all(_is_field(name, value) for name, value in event.headers):
            self._malformed(stream)

    def _on_end(self, event: events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        declared = stream.head.declared
        if declared is not None and stream.received != declared:
            self._malformed(stream)
            return
        stream.ended = True
        if stream.lingers_until_ns is not None:
            del self._streams[stream.id]
        elif stream.exchange is not None:
            stream.exchange.end()

    def _on_reset(self, event: events.StreamReset) -> None:
        if not event.remote_reset:
            # The client made us reset it: as good as if it had done so itself.
            self._note_given_up(event.stream_id)
            self._count()
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            self._forget(stream)

    def _malformed(self, stream: _Stream) -> None:
        self._reset(stream, ErrorCodes.PROTOCOL_ERROR)
        self._count()

    def _reset(self, stream: _Stream, code: ErrorCodes) -> None:
        """End one stream; the others go on."""
        held = self._wire.streams.get(stream.id)
        if held is not None and held.open:
            self._give_up(stream.id, code)
        self._forget(stream)

    def _give_up(self, id: int, code: ErrorCodes) -> None:
        self._wire.reset_stream(id, code)
        self._note_given_up(id)

    def _note_given_up(self, id: int) -> None:
        self._given_up[id] = None
        if len(self._given_up) > STREAMS:
            del self._given_up[next(iter(self._given_up))]

    def _forget(self, stream: _Stream) -> None:
        """The stream is no more, whether it was answered or not."""
        del self._streams[stream.id]
        self._unsent -= len(stream.out)
        stream.out = memoryview(b"")
        if stream.exchange is None and not stream.status:
            self._line.remove(stream)
            self._line_bytes -= stream.head_bytes
        if stream.held:
            self._wire.increment_flow_control_window(stream.held)
            stream.held = 0
        stream.chunks.clear()
        exchange = stream.exchange
        if exchange is not None:
            exchange.abandon()
            if not exchange.answered:
                self._orphans.append(exchange)
        _tell_lost(stream)

    # -- answers -----------------------------------------------------------------------------------------------------

    def send(self, stream: _Stream, status: int, headers: Headers, content_type: bytes, body: bytes) -> bool:
        """A stream is answered; whether all of it is framed."""
        if self._closing or stream.id not in self._streams:
            return True
        fields: list[tuple[bytes, bytes]] = [(b":status", b"%d" % status)]
        if content_type:
            fields.append((b"content-type", content_type))
        fields += self._home.common_fields(headers)
        fields += headers
        if status not in (204, 304):
            fields.append((b"content-length", b"%d" % len(body)))
        is_bare = not body or stream.head.method == "HEAD" or status in (204, 304)
        self._wire.send_headers(stream.id, fields, end_stream=is_bare)
        stream.status = status
        stream.moved_ns = self._home.now_ns()
        if is_bare:
            self._answered(stream)
        else:
            stream.out = memoryview(body)
            self._unsent += len(body)
            self._make_ready(stream)
        self._schedule()
        return is_bare

    def begin_stream(self, stream: _Stream, headers: Headers, content_type: bytes, listener: Listener) -> None:
        """A stream is answered with a body that goes on."""
        stream.listener = listener
        if self._closing or stream.id not in self._streams:
            _tell_lost(stream)
            return
        fields = [(b":status", b"200"), (b"content-type", content_type), *self._home.common_fields(), *headers]
        self._wire.send_headers(stream.id, fields)
        stream.status = 200
        self._schedule()

    def write_stream(self, stream: _Stream, data: bytes) -> None:
        """Goes out with the end of this tick, as far as windows allow."""
        if stream.listener is None or self._closing:
            return
        if not stream.out:
            stream.moved_ns = self._home.now_ns()
            stream.out = memoryview(data)
        else:
            stream.out = memoryview(bytes(stream.out) + data)
        self._unsent += len(data)
        if len(stream.out) >= STREAM_HIGH:
            stream.listener.is_full = True
        self._make_ready(stream)
        self._schedule()

    def end_stream(self, stream: _Stream) -> None:
        """What is unsent is the last of it; a client that takes nothing has a second."""
        if stream.listener is None or self._closing:
            return
        stream.listener = None
        if stream.out:
            stream.is_ending = True
            return
        self._wire.end_stream(stream.id)
        self._answered(stream)
        self._schedule()

    def abort_stream(self, stream: _Stream) -> None:
        """The client is told that this is not all of it."""
        if stream.listener is not None and not self._closing:
            self._reset(stream, ErrorCodes.INTERNAL_ERROR)
            self._schedule()

    def give_up_stream(self, stream: _Stream) -> None:
        """The same of an answer that was to be whole."""
        if not self._closing and stream.id in self._streams:
            self._reset(stream, ErrorCodes.INTERNAL_ERROR)
            self._schedule()

    def _make_room(self, stream: _Stream) -> None:
        listener = stream.listener
        if listener is not None and listener.is_full and len(stream.out) <= STREAM_LOW:
            listener.is_full = False
            listener.room()

    def _make_ready(self, stream: _Stream) -> None:
        if not stream.is_ready:
            stream.is_ready = True
            self._ready.append(stream)

    def _on_window(self, event: events.WindowUpdated) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None and stream.out:
            self._make_ready(stream)

    def _on_settings(self, event: events.RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            for stream in self._streams.values():
                if stream.out:
                    self._make_ready(stream)

    def _pump(self) -> None:
        """Frame answers, a frame of each ready stream in turn, while the client and the transport take them."""
        wire, ready = self._wire, self._ready
        framed = unwritten = 0
        while ready and not self._full and framed < TICK_BYTES:
            stream = ready[0]
            size = self._frame_of(stream)
            if size < 0:
                return  # the connection's window: all of them wait
            ready.popleft()
            stream.is_ready = False
            if not size:
                continue
            part, stream.out = stream.out[:size], stream.out[size:]
            goes_on = stream.listener is not None
            wire.send_data(stream.id, part, end_stream=not stream.out and not goes_on)
            stream.moved_ns = self._now_ns
            self._unsent -= size
            framed += size
            unwritten += size
            if stream.out:
                self._make_ready(stream)
            elif not goes_on:
                self._answered(stream)
            if goes_on:
                self._make_room(stream)
            if unwritten >= WRITE_BYTES:
                unwritten = 0
                self._write()
        if ready and not self._full:
            self._schedule()

    def _give_up_stuck(self) -> None:
        """The client sends no more, so that no window will come for what waits for one."""
        closed = self._wire.outbound_flow_control_window <= 0
        for stream in list(self._streams.values()):
            if stream.out and (closed or not stream.is_ready):
                self._reset(stream, ErrorCodes.CANCEL)

    def _frame_of(self, stream: _Stream) -> int:
        """Bytes of its next frame; 0 when there is none now, below 0 when there is none of any stream."""
        if stream.id not in self._streams:
            return 0
        wire = self._wire
        if wire.outbound_flow_control_window <= 0:
            return -1
        room = min(wire.local_flow_control_window(stream.id), wire.max_outbound_frame_size, WRITE_BYTES)
        return max(0, min(room, len(stream.out)))

    def _answered(self, stream: _Stream) -> None:
        """The whole answer is framed; if it came before the end of the body, a reset follows [API-26]."""
        if stream.exchange is not None:
            stream.exchange.release()
        if stream.ended:
            del self._streams[stream.id]
        else:
            stream.lingers_until_ns = stream.moved_ns + LINGER_NS

    # -- writing and ending ------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Flush at the end of this tick, with whatever else is answered in it."""
        if not self._ticking and not self._closing:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if not self._closing:
            self._now_ns = self._home.now_ns()
            self._flush()

    def _flush(self) -> None:
        self._pump()
        if self._eof and not self._full:
            self._give_up_stuck()
        if self._line and not self._is_held():
            ticking, self._ticking = self._ticking, True
            self._advance()
            self._ticking = ticking
            self._schedule()
        self._write()
        if self._parting and not self._streams:
            if self._eof:
                self._closing = True
                self._transport.close()
            else:
                self._end()  # with input unread a close would be a reset, and take the last frames with it

    def _write(self) -> None:
        data = self._wire.data_to_send()
        if self._dropped:
            data += WindowUpdateFrame(0, window_increment=self._dropped).serialize()
            self._dropped = 0
        if data:
            self._put(data)

    def _put(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._written += len(data)
        self._transport.write(data)
        if self._full and not self._paused and self._transport.get_write_buffer_size() > OUTPUT_HIGH:
            # Only heads and acknowledgements are written to a full transport; whoever reads none of them waits.
            self._paused = True
            self._transport.pause_reading()

    def _read_again(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._transport.resume_reading()
        self._paused = False

    def _go_away(self, code: ErrorCodes) -> None:
        """End the connection because of the client."""
        self._wire.close_connection(code)
        self._end()

    def _end(self) -> None:
        """Write what there is, then discard input for up to a second, so that the client can read why."""
        if self._closing:
            return
        self._write()
        self._closing = True
        self._abandon_all()
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._read_again()
        self._transport.write_eof()
        self._linger_until_ns = self._home.now_ns() + LINGER_NS

    def _abandon_all(self) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        self._line.clear()
        self._ready.clear()
        self._unsent = 0
        for stream in streams:
            if stream.exchange is not None:
                stream.exchange.abandon()
            _tell_lost(stream)


def _tell_lost(stream: _Stream) -> None:
    listener, stream.listener = stream.listener, None
    if listener is not None:
        listener.lost()


def _is_empty(flags: int, frame: bytes) -> bool:
    """DATA that neither carries nor ends anything."""
    if flags & _END_STREAM:
        return False
    size = len(frame) - 9
    return size == 0 or bool(flags & _PADDED and frame[9] == size - 1)


def _is_field(name: bytes, value: bytes) -> bool:
    """A regular field, as RFC 9113 §8.2 allows it."""
    if not _NAME.fullmatch(name) or (value and _BAD_VALUE.search(value)) or name in _OF_CONNECTIONS:
        return False
    return name != b"te" or value.lower() == b"trailers"


def _head_of(fields: Iterable[tuple[bytes, bytes]], *, whole: bool) -> Head:
    """The head of a request, or `_Malformed` (RFC 9113 §8). `whole`: there is no body."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            if headers or name not in _PSEUDO or name in pseudo or _BAD_VALUE.search(value):
                raise _Malformed
            pseudo[name] = value
        elif not _is_field(name, value):
            raise _Malformed
        elif name in headers:
            if name in (b"host", b"content-length"):
                raise _Malformed
            headers[name] += b", " + value
        else:
            headers[name] = value
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not METHOD.fullmatch(method) or method == b"CONNECT" or b":scheme" not in pseudo:
        raise _Malformed
    if path[:1] != b"/" and (path != b"*" or method != b"OPTIONS"):
        raise _Malformed
    authority = pseudo.get(b":authority")
    host = headers.setdefault(b"host", authority) if authority is not None else headers.get(b"host")
    if host is None or authority not in (None, host) or not HOST.fullmatch(host):
        raise _Malformed
    declared = _declared(headers, whole=whole)
    expects = not whole and headers.get(b"expect", b"").lower() == b"100-continue"
    return Head(method.decode("ascii"), path, headers, declared, expects)


def _declared(headers: dict[bytes, bytes], *, whole: bool) -> int | None:
    length = headers.get(b"content-length")
    if length is None:
        return 0 if whole else None
    size = length_of(length)
    if size is None or (whole and size != 0):
        raise _Malformed
    return size
