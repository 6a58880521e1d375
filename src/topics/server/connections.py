"""All connections: taking them in, telling their protocol, sweeping their deadlines [API-2, API-24].

A connection is a `_Front`, which hands its events to the protocol that is spoken on it:

    TLS, and the client chose      h2 or http/1.1, by ALPN
    otherwise                      HTTP/2 once its preface is here, HTTP/1.1 from the first byte that differs from it
    after an upgrade               WebSocket

Event loop only.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Final, Protocol, cast

from topics.server import failure
from topics.server.app import App
from topics.server.exchange import Headers
from topics.server.http1 import OUTPUT_HIGH, READ_BYTES, Http1
from topics.server.http2 import PREFACE, Http2
from topics.server.lines import Lines, tune

SWEEP_S: Final = 1.0
ABORT_S: Final = 1.0
TURNED_AWAY_MAX: Final = 64
"""So many are told at a time; what comes beyond is closed without a word."""
_KEPT: Final = b"cache-control"
_COMMON: Final = ((_KEPT, b"no-store"), (b"x-content-type-options", b"nosniff"))


_ZEROS: Final = bytes(READ_BYTES)


class Spoken(Protocol):
    """One connection's protocol, once it is known."""

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def drain(self) -> None: ...

    def sweep(self, now_ns: int) -> None: ...


class Connections:
    """Every open connection. Bounded by `max_connections`."""

    def __init__(self, app: App, most: int) -> None:
        self.app = app
        self.most = most
        self.open: set[_Front] = set()
        self.read_into = memoryview(bytearray(READ_BYTES))
        """What is read is taken out at once, so that one is enough for all."""
        self.turned_away = 0
        """How many of them are only being told that they are too many."""
        self._second = -1
        self._common = b""
        self._fields: Headers = ()
        self._date = b""
        self._ok = b""
        self._sweeper: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        """Set when a drain is to look again whether anything is busy."""
        self.lines: Lines | None = None
        """Those that the kernel has, if it has any."""

    def protocol(self) -> asyncio.BaseProtocol:
        """For `create_server`."""
        return _Front(self)

    def now_ns(self) -> int:
        """Monotonic."""
        return self.app.clock.monotonic_ns()

    # -- what every answer begins with -------------------------------------------------------------------------------

    def common_lines(self, own: Headers = ()) -> bytes:
        """Header lines of every answer; `own` are those it has besides [API-28]."""
        self._refresh()
        if _may_be_kept(own):
            return b"\r\n".join(b"%b: %b" % pair for pair in self._fields[1:])
        return self._common

    def common_fields(self, own: Headers = ()) -> Headers:
        """The same, in pairs."""
        self._refresh()
        return self._fields[1:] if _may_be_kept(own) else self._fields

    def ok_prefix(self) -> bytes:
        """The head of a plain 200 up to its length."""
        self._refresh()
        return self._ok

    def date(self) -> bytes:
        """Of now, to the second."""
        self._refresh()
        return self._date

    def _refresh(self) -> None:
        second = self.app.clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
            self._fields = (*_COMMON, (b"date", self._date))
            self._common = b"\r\n".join(b"%b: %b" % pair for pair in self._fields)
            self._ok = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + self._common + b"\r\ncontent-length: "

    # -- time --------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sweep once a second from now on."""
        self._sweeper = loop.call_later(SWEEP_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep()
        self.start(loop)

    def sweep(self) -> None:
        """Look at the deadlines of all connections."""
        now = self.now_ns()
        for one in list(self.open):
            one.sweep(now)

    def stop(self) -> None:
        """No more sweeps."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self.lines is not None:
            self.lines.stop()
            self.lines = None

    async def drain(self, within_s: float) -> None:
        """What is busy closes when it is done; what is idle when nothing is busy; all of it when the time is over.

        Until then who asks on an idle connection is told that the server stops [API-5, HLT-4].
        """
        for one in list(self.open):
            one.drain()
        try:
            await asyncio.wait_for(self._leave(), within_s)
        except TimeoutError:
            for one in list(self.open):
                one.abort()
            # What was running should know that its client is gone before the engine is closed elsewhere.
            await asyncio.wait({asyncio.ensure_future(self._leave())}, timeout=ABORT_S)

    async def _leave(self) -> None:
        """Until no connection is left."""
        busy: list[_Front] = []
        while self.open:
            self._ended.clear()
            while busy and (busy[-1] not in self.open or busy[-1].is_idle):
                busy.pop()
            busy = busy or [one for one in self.open if not one.is_idle]
            if not busy:
                for one in list(self.open):
                    one.part()
            if self.open:
                await self._ended.wait()

    def ended(self) -> None:
        """A connection has given its last answer, or is gone."""
        self._ended.set()

    def forget(self, one: _Front) -> None:
        """A connection is gone."""
        self.open.discard(one)
        self.ended()


class _Front(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, home: Connections) -> None:
        self._home = home
        self._transport: asyncio.Transport | None = None
        self._spoken: Spoken | None = None
        self._is_turned_away = False
        self._is_encrypted = False
        self._opening: bytes | None = None
        """What has come, while it may become the preface of HTTP/2."""

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the class.
        transport = self._transport = cast(asyncio.Transport, made)
        home = self._home
        transport.set_write_buffer_limits(high=OUTPUT_HIGH, low=OUTPUT_HIGH // 4)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            tune(sock)
        home.open.add(self)
        encryption = transport.get_extra_info("ssl_object")
        self._is_encrypted = encryption is not None
        chosen = None if encryption is None else encryption.selected_alpn_protocol()
        # Until the protocol is known it is HTTP/1.1 whose deadline runs.
        spoken = Http2(home, transport) if chosen == "h2" else Http1(home, transport, self._hand_over)
        self._spoken = spoken
        self._opening = b"" if chosen is None else None
        if home.most and len(home.open) - home.turned_away > home.most:
            self._turn_away(transport, spoken)

    def _turn_away(self, transport: asyncio.Transport, spoken: Http1 | Http2) -> None:
        """One too many: 429 and close (09 §5)."""
        home = self._home
        home.turned_away += 1
        self._is_turned_away = True
        if home.turned_away > TURNED_AWAY_MAX or not isinstance(spoken, Http1):
            transport.abort()
        else:
            spoken.refuse(failure.limit("max_connections", home.most))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._home.read_into

    def buffer_updated(self, nbytes: int) -> None:
        buffer = self._home.read_into
        data = bytes(buffer[:nbytes])
        buffer[:nbytes] = _ZEROS[:nbytes]  # there may be a key in it, which nothing is to keep [KEY-5]
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            data = self._tell(data)
        if self._spoken is not None and data:
            self._spoken.data_received(data)

    def _tell(self, data: bytes) -> bytes:
        """Find out what is spoken; nothing to hand on while that is open."""
        assert self._opening is not None
        assert self._transport is not None
        seen = self._opening + data
        if isinstance(self._spoken, Http1) and self._spoken.is_over:
            return b""
        if not PREFACE.startswith(seen[: len(PREFACE)]):
            self._opening = None
        elif len(seen) < len(PREFACE):
            self._opening = seen
            return b""
        else:
            self._opening = None
            self._spoken = Http2(self._home, self._transport)
        return seen

    def _hand_over(self, successor: Spoken) -> None:
        """Another protocol is spoken from now on."""
        self._spoken = successor

    def eof_received(self) -> bool:
        keep = self._spoken is not None and self._spoken.eof_received()
        # TLS has no half-closed connections here: what is unanswered stays so.
        return keep and not self._is_encrypted

    def connection_lost(self, error: Exception | None) -> None:
        self._home.forget(self)
        self._home.turned_away -= self._is_turned_away
        if self._spoken is not None:
            self._spoken.connection_lost()

    def pause_writing(self) -> None:
        if self._spoken is not None:
            self._spoken.pause_writing()

    def resume_writing(self) -> None:
        if self._spoken is not None:
            self._spoken.resume_writing()

    def sweep(self, now_ns: int) -> None:
        """Look at the connection's deadlines."""
        if self._spoken is not None:
            self._spoken.sweep(now_ns)

    def drain(self) -> None:
        """The server stops."""
        if self._spoken is not None:
            self._spoken.drain()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is received or executed; what is not HTTP/1.1 ends by itself when the server stops."""
        return not self._opening and isinstance(self._spoken, Http1) and self._spoken.is_idle

    def part(self) -> None:
        """It is idle, and the server has done what it had to do."""
        if isinstance(self._spoken, Http1):
            self._spoken.part()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()


def _may_be_kept(own: Headers) -> bool:
    """Whether an answer says itself how long it may be kept."""
    return bool(own) and any(name == _KEPT for name, _ in own)
