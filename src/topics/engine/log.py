"""`topics.open`: a store in this process, with the surface that the clients of a server have too [U-20, U-24].

>>> import topics
>>> with topics.open(None) as log:
...     log.append("orders", {"sku": "B-12", "qty": 3}, tag="order:991").first_seq
...     [record.data["sku"] for record in log.read("orders")]
1
['B-12']

`Log` blocks, `AsyncLog` is the same with `await`; both are thin over `Engine`, which does the work. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import Any, Literal, Self

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.follow import AsyncLogWatch, LogWatch
from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    Checkpointed,
    ClaimResult,
    CommitResult,
    DelayedJob,
    DeleteResult,
    ExtendResult,
    HeldLease,
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
from topics.settings import Settings
from topics.surface.base import AsyncSurface, AttachMode, Part, Surface, keywords
from topics.surface.watch import From

LEASES_PAGE = 1000


def open_log(path: str | None, config: EngineConfig | Settings | None = None, **settings: Any) -> Log:
    """Open the store in a directory, made if missing; `None` keeps everything in memory.

    Settings may be given by name: `topics.open("./data", wal_shards=4)`.
    """
    if config is not None and settings:
        raise TypeError("give a config or settings by name, not both")
    known = {one.name for one in fields(EngineConfig)}
    return Log(Engine.open(path, config or EngineConfig(**keywords("open", settings, known))))


class Log(Surface):
    """A store opened in this process. Use it as a context manager, or close it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """What does the work; it has a few operations more."""
        self.aio = AsyncLog(engine)
        """The same operations as coroutines."""

    def create(self, name: str, **config: Any) -> TopicConfig:
        return self.engine.put_topic(name, keywords("create", config, TopicConfig.__struct_fields__))[1]

    def state(self, name: str) -> TopicState:
        return self.engine.state(name)

    def topics(self, prefix: str = "") -> Iterator[str]:
        return self.engine.topics(prefix)

    def drop(self, name: str) -> bool:
        return self.engine.delete_topic(name)

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
        records = [as_record(data, tag, node, meta)]
        return self.engine.append(name, records, idempotency_key=idempotency_key, producer=producer)

    def append_many(
        self,
        name: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        records = [as_record(row) for row in rows]
        return self.engine.append(name, records, node=node, idempotency_key=idempotency_key, producer=producer)

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
        return self.engine.read(
            name, from_seq, from_ts=from_ts, limit=limit, max_bytes=max_bytes, node=node, wait_ms=wait_ms
        )

    def watch(
        self,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: Literal["eventual", "strong"] = "eventual",
    ) -> LogWatch:
        return LogWatch(self.engine, topics, node, consistency)

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        return self.engine.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)

    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        return self.engine.claim(name, node, max, lease_ms)

    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        return self.engine.ack(name, node, seqs, lease_ids)

    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        return self.engine.nack(name, node, seqs, lease_ids, delay_ms=delay_ms)

    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        return self.engine.extend(name, node, seqs, lease_ids, lease_ms=lease_ms)

    def leases(self, name: str) -> LeasePage:
        leases: list[HeldLease] = []
        delayed: list[DelayedJob] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self.engine.leases(name, cursor, page_size=LEASES_PAGE)
            leases += page.leases
            delayed += page.delayed
            cursor = page.next_cursor
        return LeasePage(leases, delayed, None)

    def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        given = keywords("route", options, RouterConfig.__struct_fields__)
        return self.engine.put_router(name, {**given, "source": source, "dest": dest})[1]

    def router(self, name: str) -> RouterState:
        return self.engine.router(name)

    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        return self.engine.routers(prefix, source=source, dest=dest)

    def unroute(self, name: str) -> bool:
        return self.engine.delete_router(name)

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
        return self.engine.stage(id, version, part, chunk, topic, [as_record(row) for row in rows], node=node)

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
        return self.engine.commit_staged(id, version, parts, create=create, config=config, attach=attach)

    def abort_staged(self, id: str, version: int) -> AbortResult:
        return self.engine.abort_staged(id, version)

    def writer(self, id: str) -> WriterState:
        return self.engine.writer(id)

    def checkpoint(self) -> Checkpointed:
        result = self.engine.checkpoint(full=True)
        return Checkpointed(sum(1 for _ in self.topics()), result.sealed)

    def close(self) -> None:
        """Finish what was accepted and let go of the directory; again is fine."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncLog(AsyncSurface):
    """The operations of a `Log` as coroutines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self, name: str, **config: Any) -> TopicConfig:
        return (await self.engine.aio.put_topic(name, keywords("create", config, TopicConfig.__struct_fields__)))[1]

    async def state(self, name: str) -> TopicState:
        return await self.engine.aio.state(name)

    async def topics(self, prefix: str = "") -> list[str]:
        return await self.engine.aio.topics(prefix)

    async def drop(self, name: str) -> bool:
        return await self.engine.aio.delete_topic(name)

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
        records = [as_record(data, tag, node, meta)]
        return await self.engine.aio.append(name, records, idempotency_key=idempotency_key, producer=producer)

    async def append_many(
        self,
        name: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        records = [as_record(row) for row in rows]
        return await self.engine.aio.append(
            name, records, node=node, idempotency_key=idempotency_key, producer=producer
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
        return await self.engine.aio.read(
            name, from_seq, from_ts=from_ts, limit=limit, max_bytes=max_bytes, node=node, wait_ms=wait_ms
        )

    def watch(
        self,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: Literal["eventual", "strong"] = "eventual",
    ) -> AsyncLogWatch:
        return AsyncLogWatch(self.engine, topics, node, consistency)

    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        return await self.engine.aio.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)

    async def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        return await self.engine.aio.claim(name, node, max, lease_ms)

    async def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        return await self.engine.aio.ack(name, node, seqs, lease_ids)

    async def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        return await self.engine.aio.nack(name, node, seqs, lease_ids, delay_ms=delay_ms)

    async def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        return await self.engine.aio.extend(name, node, seqs, lease_ids, lease_ms=lease_ms)

    async def leases(self, name: str) -> LeasePage:
        leases: list[HeldLease] = []
        delayed: list[DelayedJob] = []
        cursor: int | None = 0
        while cursor is not None:
            page = await self.engine.aio.leases(name, cursor, page_size=LEASES_PAGE)
            leases += page.leases
            delayed += page.delayed
            cursor = page.next_cursor
        return LeasePage(leases, delayed, None)

    async def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        given = keywords("route", options, RouterConfig.__struct_fields__)
        return (await self.engine.aio.put_router(name, {**given, "source": source, "dest": dest}))[1]

    async def router(self, name: str) -> RouterState:
        return await self.engine.aio.router(name)

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        return await self.engine.aio.routers(prefix, source=source, dest=dest)

    async def unroute(self, name: str) -> bool:
        return await self.engine.aio.delete_router(name)

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
        return await self.engine.aio.stage(id, version, part, chunk, topic, records, node=node)

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
        return await self.engine.aio.commit_staged(id, version, parts, create=create, config=config, attach=attach)

    async def abort_staged(self, id: str, version: int) -> AbortResult:
        return await self.engine.aio.abort_staged(id, version)

    async def writer(self, id: str) -> WriterState:
        return await self.engine.aio.writer(id)

    async def checkpoint(self) -> Checkpointed:
        result = await self.engine.aio.checkpoint(full=True)
        return Checkpointed(len(await self.topics()), result.sealed)

    async def close(self) -> None:
        """See `Log.close`."""
        await self.engine.aio.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
