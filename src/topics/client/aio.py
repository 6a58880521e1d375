"""`AsyncClient`: a server over an event loop, with the surface of `Client` as coroutines [U-20, U-24].

Calls may run at the same time: each takes a connection that is kept, or opens one, `connections` at most. What a call
asks and how it is retried is decided by `protocol`; this module sends, receives and waits. One event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from topics import telemetry
from topics.client.events import HEARTBEAT_MS, Watching
from topics.client.http1 import ANSWER_S, Address, Answer, NotHttp, Reading, Request
from topics.client.protocol import WRITES, Call, Heard, Opening, Pause, Protocol
from topics.client.retry import BUDGET_S, Fault
from topics.clock import SystemClock
from topics.errors import EngineClosed
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
from topics.surface.base import AsyncSurface, AttachMode, Part, keywords
from topics.surface.watch import AsyncWatch, From

T = TypeVar("T")
CONNECT_S: Final = 10.0
KEEP_S: Final = 60.0
CONNECTIONS: Final = 100
PIECE_BYTES: Final = 1 << 16


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_used = False
        self.idle_since_ns = 0

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None, connect_s: float) -> Connection:
        """Connect; `OSError` if that fails."""
        async with asyncio.timeout(connect_s):
            return cls(*await asyncio.open_connection(address.host, address.port, ssl=tls))

    @property
    def is_stale(self) -> bool:
        """Whether the server has ended it."""
        return self._writer.is_closing() or self._reader.at_eof()

    async def send(self, head: bytes, body: bytes | None) -> None:
        """Send a request. A server that refuses early may end the connection meanwhile, with an answer on the way."""
        self.is_used = True
        try:
            self._writer.write(head if body is None else head + body)
            await self._writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            return

    async def receive(self, reading: Reading) -> None:
        """Take what comes next of an answer."""
        data = await self._reader.read(PIECE_BYTES)
        if data:
            reading.feed(data)
        else:
            reading.ended()

    def close(self) -> None:
        """At once."""
        self._writer.transport.abort()


class Pool:
    """Connections that are kept, the last used first; their number is bounded. One event loop."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, most: int) -> None:
        self._address = address
        self._tls = tls
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(most)
        self._clock = SystemClock()

    async def take(self, answer_s: float = CONNECT_S) -> Connection:
        """One that is open, when there is a slot for it; `OSError` if none can be opened, or not by then."""
        await self._slots.acquire()
        try:
            while self._idle:
                found = self._idle.pop()
                age_ns = self._clock.monotonic_ns() - found.idle_since_ns
                if age_ns < KEEP_S * 1e9 and not found.is_stale:
                    return found
                found.close()
            return await self.fresh(answer_s)
        except BaseException:
            self._slots.release()
            raise

    async def fresh(self, answer_s: float = CONNECT_S) -> Connection:
        """A new one, beyond the bound."""
        return await Connection.open(self._address, self._tls, min(answer_s, CONNECT_S))

    def give(self, connection: Connection, *, keep: bool) -> None:
        """Its slot is free; it is kept for the next, or ended."""
        if keep:
            connection.idle_since_ns = self._clock.monotonic_ns()
            self._idle.append(connection)
        else:
            connection.close()
        self._slots.release()

    def close(self) -> None:
        """End those that are kept."""
        while self._idle:
            self._idle.pop().close()


class Stream:
    """The body of an answer, piece by piece."""

    def __init__(self, connection: Connection, reading: Reading, silent_s: float) -> None:
        self._connection = connection
        self._reading = reading
        self._silent_s = silent_s

    async def read(self) -> bytes:
        """What came next; nothing at its end."""
        while True:
            data = self._reading.taken()
            if data or self._reading.is_complete:
                return data
            async with asyncio.timeout(self._silent_s):
                await self._connection.receive(self._reading)

    def close(self) -> None:
        self._connection.close()


class AsyncClient(AsyncSurface):
    """A server, for an event loop. Use it with `async with`, or close it.

    `connections` bounds those that are open at the same time, streams of watches apart; see `Client` for the rest.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        retry_s: float = BUDGET_S,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        self.protocol = Protocol(url, api_key, retry_s=retry_s)
        """What is asked and how answers are read; without I/O."""
        secure = self.protocol.address.secure
        self._pool = Pool(
            self.protocol.address, (tls or ssl.create_default_context()) if secure else None, max(connections, 1)
        )
        self._clock = SystemClock()
        self._closed = False
        self._watches: weakref.WeakSet[AsyncClientWatch] = weakref.WeakSet()

    @property
    def url(self) -> str:
        """The server's."""
        return self.protocol.address.url

    # -- carrying calls out ------------------------------------------------------------------------------------------

    async def _run(self, call: Call[T]) -> T:
        name = str(getattr(call, "__name__", "call"))  # of the generator
        with telemetry.call(name, self.protocol.address.url, writes=name in WRITES):
            return await self._carry_out(call)

    async def _carry_out(self, call: Call[T]) -> T:
        heard: Heard | None = None
        try:
            while True:
                step = call.send(heard)
                if self._closed:
                    raise EngineClosed("the client is closed")
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    heard = None
                else:
                    assert isinstance(step, Request)
                    asked_s = self._now_s()
                    outcome = await self.exchange(step)
                    now_s = self._now_s()
                    heard = Heard(outcome, now_s, now_s - asked_s)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    async def exchange(self, request: Request) -> Answer | Fault:
        """One request, once: what was answered, or why nothing was."""
        try:
            connection = await self._pool.take(request.answer_s)
        except OSError as error:
            return Fault(_why(error), sent=False)
        is_used = connection.is_used
        reading = Reading()
        keep = False
        try:
            async with asyncio.timeout(request.answer_s):
                await self._send(connection, request)
                while not reading.is_complete:
                    await connection.receive(reading)
            keep = reading.keeps_alive and not self._closed
        except (OSError, NotHttp) as error:
            is_stale = is_used and not reading.status and not isinstance(error, TimeoutError)
            return Fault(_why(error), sent=True, stale=is_stale)
        finally:
            self._pool.give(connection, keep=keep)
        return reading.answer()

    async def _send(self, connection: Connection, request: Request) -> None:
        await connection.send(self.protocol.address.head(request, self.protocol.token), request.body)

    async def open_stream(self, request: Request) -> Stream | Answer | Fault:
        """A stream, or why there is none."""
        try:
            connection = await self._pool.fresh()
        except OSError as error:
            return Fault(_why(error), sent=False)
        reading = Reading()
        is_stream = False
        try:
            async with asyncio.timeout(request.answer_s):
                await self._send(connection, request)
                while not reading.is_head_complete or (reading.status != 200 and not reading.is_complete):
                    await connection.receive(reading)
            is_stream = reading.status == 200
        except (OSError, NotHttp) as error:
            return Fault(_why(error), sent=True)
        finally:
            if not is_stream:
                connection.close()
        return Stream(connection, reading, request.answer_s) if is_stream else reading.answer()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        repeatable: bool | None = None,
        answer_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """See `Client.call`."""
        call = self.protocol.call(method, path, body, query=query, repeatable=repeatable, answer_s=answer_s)
        return await self._run(call)

    # -- the surface -------------------------------------------------------------------------------------------------

    async def create(self, name: str, **config: Any) -> TopicConfig:
        return await self._run(self.protocol.create(name, keywords("create", config, TopicConfig.__struct_fields__)))

    async def state(self, name: str) -> TopicState:
        return await self._run(self.protocol.state(name))

    async def topics(self, prefix: str = "") -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._run(self.protocol.topics(prefix, cursor))
            found += [one.topic for one in page.topics]
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def drop(self, name: str) -> bool:
        return await self._run(self.protocol.drop(name))

    async def append(
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
        return await self._run(
            self.protocol.append(name, records, idempotency_key=idempotency_key, producer=producer)
        )  # fmt: skip

    async def append_many(
        self,
        name: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        records = telemetry.carried([as_record(row) for row in rows])
        return await self._run(
            self.protocol.append(name, records, node=node, idempotency_key=idempotency_key, producer=producer)
        )

    async def page(
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
        return await self._run(
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
    ) -> AsyncClientWatch:
        """See `Client.watch`."""
        watching = Watching(self.protocol, topics, node=node, consistency=consistency, heartbeat_ms=heartbeat_ms)
        watch = AsyncClientWatch(self, watching)
        self._watches.add(watch)
        return watch

    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        return await self._run(
            self.protocol.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)
        )  # fmt: skip

    async def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        return await self._run(self.protocol.claim(name, node, max, lease_ms))

    async def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        return await self._run(self.protocol.ack(name, node, seqs, lease_ids))

    async def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        return await self._run(self.protocol.nack(name, node, seqs, lease_ids, delay_ms=delay_ms))

    async def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        return await self._run(self.protocol.extend(name, node, seqs, lease_ids, lease_ms=lease_ms))

    async def leases(self, name: str) -> LeasePage:
        return await self._run(self.protocol.leases(name))

    async def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        given = keywords("route", options, RouterConfig.__struct_fields__)
        return await self._run(self.protocol.route(name, {**given, "source": source, "dest": dest}))

    async def router(self, name: str) -> RouterState:
        return await self._run(self.protocol.router(name))

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        return await self._run(self.protocol.routers(prefix, source=source, dest=dest))

    async def unroute(self, name: str) -> bool:
        return await self._run(self.protocol.unroute(name))

    async def stage(
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
        return await self._run(self.protocol.stage(id, version, part, chunk, topic, records, node=node))

    async def commit_staged(
        self,
        id: str,
        version: int,
        parts: Iterable[Part],
        *,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        attach: AttachMode = "auto",
    ) -> CommitResult:
        return await self._run(
            self.protocol.commit_staged(id, version, parts, create=create, config=config, attach=attach)
        )

    async def abort_staged(self, id: str, version: int) -> AbortResult:
        return await self._run(self.protocol.abort_staged(id, version))

    async def writer(self, id: str) -> WriterState:
        return await self._run(self.protocol.writer(id))

    async def checkpoint(self) -> Checkpointed:
        return await self._run(self.protocol.checkpoint())

    async def close(self) -> None:
        """See `Client.close`."""
        self._closed = True
        self._pool.close()
        for watch in list(self._watches):
            await watch.close()
        await asyncio.sleep(0)  # transports say goodbye in the loop's next pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClientWatch(AsyncWatch):
    """A watch over a server; see `AsyncWatch`."""

    def __init__(self, client: AsyncClient, watching: Watching) -> None:
        self._client = client
        self._watching = watching
        self._stream: Stream | None = None
        self._begun = False
        self._closed = False

    @property
    def cursors(self) -> Mapping[str, int]:
        return dict(self._watching.cursors)

    async def begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._client._run(self._watching.begin())

    async def __anext__(self) -> Event:
        await self.begin()
        watching = self._watching
        while not self._closed:
            event = watching.next()
            if event is not None:
                return event
            if watching.is_over:
                break
            await self._more()
        await self.close()
        raise StopAsyncIteration

    async def _more(self) -> None:
        """Wait for what comes next; a stream that breaks is opened again by the next call."""
        if self._stream is None:
            await self._connect(self._watching.connect())
            return
        try:
            data = await self._stream.read()
        except (OSError, NotHttp):
            data = b""
        if data:
            self._watching.take(data)
        else:
            self._let_go()

    async def _connect(self, call: Generator[Any, Heard | None, None]) -> None:
        client = self._client
        heard: Heard | None = None
        try:
            while not self._closed:
                step = call.send(heard)
                heard = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Opening):
                    found = await client.open_stream(step.request)
                    if isinstance(found, Stream):
                        self._stream, found = found, Answer(200, {}, b"")
                    heard = Heard(found, client._now_s())
                else:
                    heard = Heard(await client.exchange(step), client._now_s())
        except StopIteration:
            return

    def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    async def close(self) -> None:
        self._closed = True
        self._let_go()
        await asyncio.sleep(0)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
