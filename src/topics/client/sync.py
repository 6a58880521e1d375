"""`Client`: a server over blocking sockets, with the surface of an embedded log [U-20, U-24].

>>> import topics
>>> with topics.open(None) as log:                      # a `Client` has the same operations
...     log.append("orders", {"sku": "B-12"}).last_seq
1

Calls may come from any number of threads: each takes a connection that is kept, or opens one. What a call asks and how
it is retried is decided by `protocol`; this module sends, receives and waits.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from topics import telemetry
from topics.client.events import HEARTBEAT_MS, Watching
from topics.client.http1 import ANSWER_S, Address, Answer, NotHttp, Reading, Request
from topics.client.protocol import WRITES, Call, Heard, Opening, Pause, Protocol
from topics.client.retry import BUDGET_S, Fault
from topics.clock import SystemClock
from topics.errors import EngineClosed
from topics.fs import process_id
from topics.interrupts import Flag
from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    Checkpointed,
    ClaimResult,
    CommitResult,
    DeleteResult,
    Event,
    ExtendResult,
    LeasePage,
    NackResult,
    Producer,
    ReadResult,
    RouterConfig,
    RouterState,
    StageResult,
    TopicConfig,
    TopicState,
    WriterState,
    as_record,
)
from topics.surface.base import AttachMode, Part, Surface, keywords
from topics.surface.watch import From, Watch

log = logging.getLogger("topics.client")

T = TypeVar("T")
CONNECT_S: Final = 10.0
KEEP_S: Final = 60.0
"""How long an idle connection is kept; a server closes it after 120 s [API-25]."""
KEEP_MAX: Final = 16
PIECE_BYTES: Final = 1 << 16


class Connection:
    """One socket, one request at a time."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, connect_s: float) -> None:
        self._sock: socket.socket = socket.create_connection((address.host, address.port), connect_s)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._sock = tls.wrap_socket(self._sock, server_hostname=address.host)
        except BaseException:
            self._sock.close()
            raise
        self.is_used = False
        """Whether it has carried a request."""
        self.idle_since_ns = 0

    def is_stale(self) -> bool:
        """Whether the server has ended it: nothing else can have come."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, head: bytes, body: bytes | None, answer_s: float) -> None:
        """Send a request. A server that refuses early may end the connection meanwhile, with an answer on the way."""
        self.is_used = True
        self._sock.settimeout(answer_s)
        try:
            if body is None or len(body) < PIECE_BYTES:
                self._sock.sendall(head if body is None else head + body)
            else:
                self._sock.sendall(head)
                self._sock.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self, reading: Reading) -> None:
        """Take what comes next of an answer."""
        data = self._sock.recv(PIECE_BYTES)
        if data:
            reading.feed(data)
        else:
            reading.ended()

    def shut(self) -> None:
        """From another thread: whoever waits for it gets its end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("it had ended already: %s", error)

    def close(self) -> None:
        self._sock.close()


class Pool:
    """Connections that are kept, the last used first. Any thread."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False
        self._clock = SystemClock()
        self._pid = process_id()

    def take(self, answer_s: float = CONNECT_S) -> Connection:
        """One that is open; `OSError` if none can be opened, or not by then."""
        while True:
            with self._lock:
                if self._pid != process_id():  # those of a parent process are its own
                    self._idle, self._pid = [], process_id()
                found = self._idle.pop() if self._idle else None
            if found is None:
                return self.fresh(answer_s)
            age_ns = self._clock.monotonic_ns() - found.idle_since_ns
            if age_ns < KEEP_S * 1e9 and not found.is_stale():
                return found
            found.close()

    def fresh(self, answer_s: float = CONNECT_S) -> Connection:
        """A new one."""
        return Connection(self._address, self._tls, min(answer_s, CONNECT_S))

    def give(self, connection: Connection) -> None:
        """Keep it for the next, if there may be one."""
        connection.idle_since_ns = self._clock.monotonic_ns()
        with self._lock:
            if len(self._idle) < KEEP_MAX and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """End those that are kept; those that are given back later end then."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for one in idle:
            one.close()


class Stream:
    """The body of an answer, piece by piece."""

    def __init__(self, connection: Connection, reading: Reading) -> None:
        self._connection = connection
        self._reading = reading

    def read(self) -> bytes:
        """What came next; nothing at its end."""
        while True:
            data = self._reading.taken()
            if data or self._reading.is_complete:
                return data
            self._connection.receive(self._reading)

    def shut(self) -> None:
        self._connection.shut()

    def close(self) -> None:
        self._connection.close()


class Client(Surface):
    """A server. Use it as a context manager, or close it; any number of threads.

    `retry_s` is how long after its first failure a request is made again; the very first connection is not retried
    [U-21]. `tls` replaces the system's certificates for `https://`.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        retry_s: float = BUDGET_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.protocol = Protocol(url, api_key, retry_s=retry_s)
        """What is asked and how answers are read; without I/O."""
        secure = self.protocol.address.secure
        self._pool = Pool(self.protocol.address, (tls or ssl.create_default_context()) if secure else None)
        self._clock = SystemClock()
        self._closed = Flag()
        self._watches: weakref.WeakSet[ClientWatch] = weakref.WeakSet()
        self._watches_lock = threading.Lock()

    @property
    def url(self) -> str:
        """The server's."""
        return self.protocol.address.url

    # -- carrying calls out ------------------------------------------------------------------------------------------

    def _run(self, call: Call[T]) -> T:
        name = str(getattr(call, "__name__", "call"))  # of the generator
        with telemetry.call(name, self.protocol.address.url, writes=name in WRITES):
            return self._carry_out(call)

    def _carry_out(self, call: Call[T]) -> T:
        heard: Heard | None = None
        try:
            while True:
                step = call.send(heard)
                if self._closed.is_set():
                    raise EngineClosed("the client is closed")
                if isinstance(step, Pause):
                    self._closed.wait(step.seconds)
                    heard = None
                else:
                    assert isinstance(step, Request)
                    asked_s = self._now_s()
                    outcome = self.exchange(step)
                    now_s = self._now_s()
                    heard = Heard(outcome, now_s, now_s - asked_s)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def exchange(self, request: Request) -> Answer | Fault:
        """One request, once: what was answered, or why nothing was."""
        try:
            connection = self._pool.take(request.answer_s)
        except OSError as error:
            return Fault(_why(error), sent=False)
        is_used = connection.is_used
        reading = Reading()
        try:
            self._send(connection, request)
            while not reading.is_complete:
                connection.receive(reading)
        except (OSError, NotHttp) as error:
            connection.close()
            is_stale = is_used and not reading.status and not isinstance(error, TimeoutError)
            return Fault(_why(error), sent=True, stale=is_stale)
        except BaseException:
            connection.close()
            raise
        if reading.keeps_alive:
            self._pool.give(connection)
        else:
            connection.close()
        return reading.answer()

    def _send(self, connection: Connection, request: Request) -> None:
        head = self.protocol.address.head(request, self.protocol.token)
        connection.send(head, request.body, request.answer_s)

    def open_stream(self, request: Request) -> Stream | Answer | Fault:
        """A stream, or why there is none."""
        try:
            connection = self._pool.fresh()
        except OSError as error:
            return Fault(_why(error), sent=False)
        reading = Reading()
        try:
            self._send(connection, request)
            while not reading.is_head_complete:
                connection.receive(reading)
            if reading.status == 200:
                return Stream(connection, reading)
            while not reading.is_complete:
                connection.receive(reading)
        except (OSError, NotHttp) as error:
            connection.close()
            return Fault(_why(error), sent=True)
        except BaseException:
            connection.close()
            raise
        connection.close()
        return reading.answer()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        repeatable: bool | None = None,
        answer_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """Any call of the HTTP API; the object that it is answered with. `repeatable`: asking twice does no harm."""
        call = self.protocol.call(method, path, body, query=query, repeatable=repeatable, answer_s=answer_s)
        return self._run(call)

    # -- the surface -------------------------------------------------------------------------------------------------

    def create(self, name: str, **config: Any) -> TopicConfig:
        return self._run(self.protocol.create(name, keywords("create", config, TopicConfig.__struct_fields__)))

    def state(self, name: str) -> TopicState:
        return self._run(self.protocol.state(name))

    def topics(self, prefix: str = "") -> Iterator[str]:
        cursor: str | None = None
        while True:
            page = self._run(self.protocol.topics(prefix, cursor))
            for one in page.topics:
                yield one.topic
            cursor = page.next_cursor
            if cursor is None:
                return

    def drop(self, name: str) -> bool:
        return self._run(self.protocol.drop(name))

    def append(
        self,
        name: str,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: object = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        records = telemetry.carried([as_record(data, tag, node, meta)])
        return self._run(
            self.protocol.append(name, records, idempotency_key=idempotency_key, producer=producer)
        )  # fmt: skip

    def append_many(
        self,
        name: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        records = telemetry.carried([as_record(row) for row in rows])
        return self._run(
            self.protocol.append(name, records, node=node, idempotency_key=idempotency_key, producer=producer)
        )

    def page(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        node: str | Iterable[str] | None = None,
        wait_ms: int = 0,
    ) -> ReadResult:
        return self._run(
            self.protocol.page(
                name, from_seq, from_ts=from_ts, limit=limit, max_bytes=max_bytes, node=node, wait_ms=wait_ms
            )
        )

    def watch(
        self,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: Literal["eventual", "strong"] = "eventual",
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> ClientWatch:
        """See `Surface.watch`. It survives its connections, and restarts of the server, for `retry_s` each."""
        watching = Watching(self.protocol, topics, node=node, consistency=consistency, heartbeat_ms=heartbeat_ms)
        self._run(watching.begin())
        watch = ClientWatch(self, watching)
        with self._watches_lock:
            self._watches.add(watch)
        if self._closed.is_set():  # meanwhile, and perhaps before there was anything to close
            watch.close()
        return watch

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        return self._run(
            self.protocol.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)
        )  # fmt: skip

    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        return self._run(self.protocol.claim(name, node, max, lease_ms))

    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        return self._run(self.protocol.ack(name, node, seqs, lease_ids))

    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        return self._run(self.protocol.nack(name, node, seqs, lease_ids, delay_ms=delay_ms))

    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        return self._run(self.protocol.extend(name, node, seqs, lease_ids, lease_ms=lease_ms))

    def leases(self, name: str) -> LeasePage:
        return self._run(self.protocol.leases(name))

    def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        given = keywords("route", options, RouterConfig.__struct_fields__)
        return self._run(self.protocol.route(name, {**given, "source": source, "dest": dest}))

    def router(self, name: str) -> RouterState:
        return self._run(self.protocol.router(name))

    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        return self._run(self.protocol.routers(prefix, source=source, dest=dest))

    def unroute(self, name: str) -> bool:
        return self._run(self.protocol.unroute(name))

    def stage(
        self,
        id: str,
        version: int,
        part: str,
        chunk: int,
        topic: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
    ) -> StageResult:
        records = [as_record(row) for row in rows]
        return self._run(self.protocol.stage(id, version, part, chunk, topic, records, node=node))

    def commit_staged(
        self,
        id: str,
        version: int,
        parts: Iterable[Part],
        *,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        attach: AttachMode = "auto",
    ) -> CommitResult:
        return self._run(
            self.protocol.commit_staged(id, version, parts, create=create, config=config, attach=attach)
        )  # fmt: skip

    def abort_staged(self, id: str, version: int) -> AbortResult:
        return self._run(self.protocol.abort_staged(id, version))

    def writer(self, id: str) -> WriterState:
        return self._run(self.protocol.writer(id))

    def checkpoint(self) -> Checkpointed:
        return self._run(self.protocol.checkpoint())

    def close(self) -> None:
        """End the connections and the watches; calls that wait to be retried end with `EngineClosed`."""
        self._closed.set()
        self._pool.close()
        with self._watches_lock:
            watches = list(self._watches)
        for watch in watches:
            watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ClientWatch(Watch):
    """A watch over a server; see `Watch`."""

    def __init__(self, client: Client, watching: Watching) -> None:
        self._client = client
        self._watching = watching
        self._stream: Stream | None = None
        self._closed = Flag()

    @property
    def cursors(self) -> Mapping[str, int]:
        return dict(self._watching.cursors)

    def __next__(self) -> Event:
        watching = self._watching
        while not self._closed.is_set():
            event = watching.next()
            if event is not None:
                return event
            if watching.is_over:
                break
            self._more()
        self.close()
        raise StopIteration

    def _more(self) -> None:
        """Wait for what comes next; a stream that breaks is opened again by the next call."""
        if self._stream is None:
            self._connect(self._watching.connect())
            return
        data, is_taken = b"", False
        try:
            with suppress(OSError, NotHttp):
                data = self._stream.read()
            if data:
                self._watching.take(data)
                is_taken = True
        finally:
            if not is_taken:  # whatever a signal took comes again with the next stream
                self._let_go()

    def _connect(self, call: Generator[Any, Heard | None, None]) -> None:
        client = self._client
        heard: Heard | None = None
        try:
            while not self._closed.is_set():
                step = call.send(heard)
                heard = None
                if isinstance(step, Pause):
                    self._closed.wait(step.seconds)
                elif isinstance(step, Opening):
                    found = client.open_stream(step.request)
                    if isinstance(found, Stream):
                        self._stream, found = found, Answer(200, {}, b"")
                    heard = Heard(found, client._now_s())
                else:
                    heard = Heard(client.exchange(step), client._now_s())
        except StopIteration:
            return

    def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self) -> None:
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.shut()  # a reader on another thread wakes up and lets go of it
            stream.close()


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
