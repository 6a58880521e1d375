"""Plain connections in the kernel's hands: one pass for all of them, and writes that never become requests [HOTPATH].

    listener ─▶ Line, a transport like those of the loop ─▶ its protocol
    pass     ─▶ kernel: reads every line that has something
                  ├─ writes that are nothing but records, behind a head that was judged before ─▶ `gather`, in runs
                  └─ everything else, byte for byte ─▶ `data_received`
             ─▶ kernel: sends what was written meanwhile

Which heads are taken is decided by `known`, and only of lines whose last request was such a write: between them the
kernel knows as much of a connection as its `Http1`. What it cannot take, or the engine refuses, goes the ordinary way,
which is the specification. Used where the kernel is installed and can poll (Linux), without TLS; elsewhere connections
are the loop's own.

A pass that takes long goes on behind the others' turn. Event loop only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from topics.codec import kernel
from topics.server.exchange import GZIP_FROM_BYTES

if TYPE_CHECKING:
    from topics.model import Limits
    from topics.server.app import App
    from topics.server.http1 import Http1
    from topics.server.known import Known

log = logging.getLogger("topics.server")

BODY_BYTES_MAX: Final = 32 << 10
"""What is read at once; a larger body comes in pieces."""
SLICE_NS: Final = 1_500_000
"""What a pass may take before others have their turn [P-10]."""
ACCEPTS_PER_TURN: Final = 64
REST_S: Final = 1.0
"""Nothing is accepted for so long when the process has no descriptors left."""
_USED_UP: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOST_RECORDS: Final = 1 << 20
_SEQ_BYTES: Final = 21
_ANSWER_BYTES: Final = 420
"""An answer without its seqs and name, at most."""

_DATA, _ENDED, _LOST, _SENT = range(4)

HIGH: Final = 64 << 10
NO_LINE: Final = -1
"""No number of a line."""


class Line(asyncio.Transport):
    """One connection. Its protocol is handed bytes as they come."""

    def __init__(self, home: Lines, sock: socket.socket, peer: Any, protocol: Any) -> None:
        super().__init__({"peername": peer})
        self.home = home
        self._kernel = home.kernel
        self._protocol = protocol
        self._high, self._low = HIGH, HIGH // 4
        self._is_closing = False
        self._is_gone = False
        self._is_paused = False
        self._ends = False
        """Our side ends once everything is sent."""
        self.number = self._kernel.add(sock.detach(), self)
        self.carrier: Http1 | None = None
        """Who answers what the kernel took, if it cannot."""

    # -- what the kernel tells ---------------------------------------------------------------------------------------

    def happened(self, kind: int, data: Any) -> None:
        """Something came, or went."""
        if self._is_gone:
            return
        try:
            if kind == _DATA:
                if not self._is_closing:
                    self._protocol.data_received(data)
            elif kind == _SENT:
                self._sent()
            elif kind == _LOST:
                self._go(OSError(data, "the connection is lost"))
            elif not self._is_closing and not self._protocol.eof_received():
                self.close()
        except Exception as error:  # noqa: BLE001 - one connection is no other's trouble
            what = {"message": "Fatal error on a connection", "exception": error, "transport": self}
            self.home.loop.call_exception_handler(what)
            self.abort()

    def _sent(self) -> None:
        waits = self._kernel.unsent(self.number)
        if self._is_paused and waits <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
            waits = self._kernel.unsent(self.number)
        if not waits and not self._is_gone:
            self._all_sent()
        if not self._is_gone:
            self._kernel.tell(self.number, self._is_paused or self._is_closing or self._ends)

    def _all_sent(self) -> None:
        if self._is_closing:
            self._go(None)
        elif self._ends:
            self._kernel.shutdown(self.number)

    def _go(self, error: Exception | None) -> None:
        if not self._is_gone:
            self._is_gone = self._is_closing = True
            self._kernel.close(self.number)
            self.home.loop.call_soon(self._protocol.connection_lost, error)

    # -- as of any transport -----------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._kernel.unsent(self.number)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not (self._is_closing or self._ends):
            self._queued(self._kernel.write(self.number, data if type(data) is bytes else bytes(data)))

    def writelines(self, list_of_data: Any) -> None:
        if not (self._is_closing or self._ends):
            waits = [self._kernel.write(self.number, bytes(data)) for data in list_of_data]
            self._queued(waits[-1] if waits else 0)

    def _queued(self, waits: int) -> None:
        if not self.home.will_flush:
            self.home.flush_soon()
        if waits > self._high:
            self._over()

    @property
    def gone(self) -> int:
        """How many bytes went out."""
        return self._kernel.gone(self.number)

    def left_over(self) -> None:
        """Something of what was sent on many lines waits on this one."""
        if self._kernel.unsent(self.number) > self._high:
            self._over()

    def _over(self) -> None:
        """More waits than should: what can go goes at once."""
        if self._kernel.send(self.number) > self._high and not self._is_paused and not self._is_gone:
            self._is_paused = True
            self._kernel.tell(self.number, True)
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ends and not self._is_closing:
            self._ends = True
            self._finish()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._kernel.pause(self.number)
            self._finish()

    def _finish(self) -> None:
        """Send what waits; once all of it went, it is the end."""
        self._kernel.mute(self.number)
        if self._kernel.send(self.number):
            self._kernel.tell(self.number, True)
        else:
            self._all_sent()
        self.home.look_again()

    def abort(self) -> None:
        self._go(None)

    def pause_reading(self) -> None:
        self._kernel.pause(self.number)

    def resume_reading(self) -> None:
        if not self._is_closing and self._kernel.resume(self.number):
            self.home.pass_soon()

    # -- writes that are taken ---------------------------------------------------------------------------------------

    def gather(self, carrier: Http1) -> None:
        """What comes next may be taken: nothing is under way, and what came before was such a write.

        Not while something waits to be looked at: it may be this line's, and comes before what is read next.
        """
        self.carrier = carrier
        if not self.home.has_events:
            self._kernel.plain(self.number)

    def served(self) -> tuple[bool, int]:
        """Whether a write that was taken is under way, and how many were answered."""
        return self._kernel.served(self.number)


class Lines:
    """All of them."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop, ok_prefix: Callable[[], bytes]) -> None:
        assert kernel.native is not None
        self.kernel = kernel.native.Lines(BODY_BYTES_MAX)
        self.loop = loop
        self.ok_prefix = ok_prefix
        """The head of a plain 200 up to its length."""
        self._app = app
        self._events: deque[tuple[Line, int, Any]] = deque()
        """Told by the kernel, not looked at yet."""
        self._is_due = False
        self.will_flush = False
        self._heads: list[Known] = []
        self._topics: dict[str, int] = {}
        self._names: list[str] = []
        app.heads.lines = self
        loop.add_reader(self.kernel.fileno(), self._pass)

    def stop(self) -> None:
        """No more passes; all lines are closed."""
        self.loop.remove_reader(self.kernel.fileno())
        self._app.heads.lines = None

    # -- heads -------------------------------------------------------------------------------------------------------

    def limit(self, limits: Limits) -> None:
        """What a write may hold; before that none is taken."""
        self.kernel.limit(limits)

    def know(self, raw: bytes, known: Known) -> None:
        """Take plain writes with this head from now on."""
        name = known.match.name
        assert name is not None
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = len(self._names)
            self._names.append(name)
        most = (GZIP_FROM_BYTES - _ANSWER_BYTES - len(name)) // _SEQ_BYTES if known.wants_gzip else _MOST_RECORDS
        declared = known.head.declared
        if most > 0 and declared is not None:
            self.kernel.know(raw, declared, most, topic, len(self._heads))
            self._heads.append(known)

    def forget(self) -> None:
        """Take none any more."""
        self.kernel.forget()
        self._heads = []  # writes that are under way have the old ones
        self._topics.clear()
        self._names.clear()

    # -- passes ------------------------------------------------------------------------------------------------------

    def spread(self, numbers: list[int], data: bytes) -> None:
        """Send the same on many lines, at once."""
        waiting, more = self.kernel.spread(numbers, data)
        for line in waiting:
            line.left_over()
        if more:
            self.pass_soon()

    @property
    def has_events(self) -> bool:
        """Whether the kernel told something that was not looked at yet."""
        return bool(self._events)

    def pass_soon(self) -> None:
        """There is something to look at that is no event of a socket."""
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._due)

    def look_again(self) -> None:
        """The same, if there is."""
        if self.kernel.flush():
            self.pass_soon()

    def flush_soon(self) -> None:
        """Something waits to be sent."""
        self.will_flush = True
        self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.will_flush = False
        self.look_again()

    def _due(self) -> None:
        self._is_due = False
        self._pass()

    def _pass(self) -> None:
        was_due, self.will_flush = self.will_flush, True
        try:
            more = self._look()
        finally:
            self.will_flush = was_due
            if self.kernel.flush():
                self.pass_soon()
        if more:
            self.pass_soon()

    def _look(self) -> bool:
        """Whether there is more to look at."""
        app, events, more = self._app, self._events, False
        now_ns = app.clock.monotonic_ns()
        if not events:
            runs, told, more = self.kernel.receive()
            events.extend(told)
            for run in runs:
                taken = Taken(self, run, self._names[run.topic], self._heads, now_ns)
                try:
                    app.gathering.take_run(taken)
                except Exception:  # the others are not to wait for it
                    log.exception("writes to topic %r that came at once", taken.name)
                    taken.abort()
        until_ns = now_ns + SLICE_NS
        while events:
            line, kind, data = events.popleft()
            line.happened(kind, data)
            if app.clock.monotonic_ns() > until_ns:
                return True
        return more


class Taken:
    """Writes to one topic that the kernel took in one pass."""

    def __init__(self, home: Lines, run: kernel.Run, name: str, heads: list[Known], since_ns: int) -> None:
        self._home = home
        self.ready = run
        self.name = name
        self.since_ns = since_ns
        self._heads = heads
        """All that were known then."""

    def answer(self, first: int, head: int, performance: bytes) -> None:
        """All of them, with 200; the kernel goes on with their lines."""
        home = self._home
        if home.kernel.answer(self.ready, home.ok_prefix(), self.name, first, head, performance):
            home.pass_soon()

    def abort(self) -> None:
        """There will be no answer."""
        for line in self._home.kernel.give_up(self.ready):
            if line is not None:
                cast(Line, line).abort()

    def given_up(self) -> Iterator[tuple[Http1 | None, Known, bytes, int]]:
        """Who is to answer instead, if the connection is still there, and what: head, body, how many records."""
        lines = self._home.kernel.give_up(self.ready)
        self._home.pass_soon()
        for line, at, (body, count) in zip(lines, self.ready.heads, self.ready.each(), strict=True):
            known = self._heads[at]
            carrier = None if line is None else cast(Line, line).carrier
            yield carrier if carrier is not None and carrier.adopt(known) else None, known, body, count


class Listener:
    """A socket that takes connections in."""

    def __init__(self, lines: Lines, sock: socket.socket, protocol: Callable[[], Any]) -> None:
        self._lines = lines
        self._sock = sock
        self._protocol = protocol
        self._waits: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Take none in any more."""
        if self._waits is not None:
            self._waits.cancel()
        self._lines.loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _listen(self) -> None:
        self._waits = None
        self._lines.loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _USED_UP:
                    raise
                log.error("no connection can be taken in for %d s: %s", REST_S, error)
                self._lines.loop.remove_reader(self._sock.fileno())
                self._waits = self._lines.loop.call_later(REST_S, self._listen)
                return
            sock.setblocking(False)
            tune(sock)
            protocol = self._protocol()
            protocol.connection_made(Line(self._lines, sock, peer, protocol))


USER_TIMEOUT_MS: Final = 60_000


def tune(sock: socket.socket) -> None:
    """What is small goes at once; who is gone is noticed."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
