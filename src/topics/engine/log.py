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

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from topics.engine.checkpoint import CheckpointResult
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.model import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    Gap,
    NackResult,
    NewRecord,
    Producer,
    ReadResult,
    Record,
    RouterState,
    TopicConfig,
    TopicState,
)
from topics.settings import Settings

PAGE = 1000
PAGE_BYTES = 8 << 20


def open_log(path: str | None, config: EngineConfig | Settings | None = None, **settings: Any) -> Log:
    """Open the store in a directory, made if missing; `None` keeps everything in memory.

    Settings may be given by name: `topics.open("./data", wal_shards=4)`.
    """
    if config is not None and settings:
        raise TypeError("give a config or settings by name, not both")
    return Log(Engine.open(path, config or EngineConfig(**settings)))


def as_record(row: object, tag: str | None = None, node: str | None = None, meta: object = None) -> NewRecord:
    """A value, or what `topics.new` made, as a record to write."""
    return row if isinstance(row, NewRecord) else NewRecord(row, tag, node, meta)


class Log:
    """A store opened in this process. Use it as a context manager, or close it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """What does the work; it has a few operations more."""
        self.aio = AsyncLog(engine)
        """The same operations as coroutines."""

    def create(self, name: str, **config: Any) -> TopicConfig:
        """Create a topic, or replace the configuration of one; omitted members take their defaults."""
        return self.engine.put_topic(name, config)[1]

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
        """Append one record; an absent topic is created with defaults."""
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
        """Append records as one write, all or none; rows are values, or made with `topics.new`."""
        records = [as_record(row) for row in rows]
        return self.engine.append(name, records, node=node, idempotency_key=idempotency_key, producer=producer)

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        node: str | Iterable[str] | None = None,
    ) -> Iterator[Record | Gap]:
        """Everything behind a cursor up to the head; what was lost is a `Gap` in its place."""
        nodes = node if node is None or isinstance(node, str) else tuple(node)
        while True:
            page = self.page(name, from_seq, from_ts=from_ts, limit=PAGE, max_bytes=PAGE_BYTES, node=nodes)
            if page.tombstone is not None:
                yield page.tombstone
            yield from page.records
            if page.caught_up:
                return
            from_seq, from_ts = page.next_from_seq, None

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
        """One read behind a cursor; `next_from_seq` is the cursor of the next."""
        return self.engine.read(
            name, from_seq, from_ts=from_ts, limit=limit, max_bytes=max_bytes, node=node, wait_ms=wait_ms
        )

    def state(self, name: str) -> TopicState:
        """A topic at this instant."""
        return self.engine.state(name)

    def topics(self, prefix: str = "") -> Iterator[str]:
        """Names of topics, sorted."""
        return self.engine.topics(prefix)

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """Delete the records that exist now and are selected."""
        return self.engine.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)

    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease jobs of a queue to a node; fewer than asked for, also none, is normal."""
        return self.engine.claim(name, node, max, lease_ms)

    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """Jobs are done: they are deleted. `lease_ids` keep one whose lease is over from doing that."""
        return self.engine.ack(name, node, seqs, lease_ids)

    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """Give jobs back, to be claimed again at once or after a delay."""
        return self.engine.nack(name, node, seqs, lease_ids, delay_ms=delay_ms)

    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """Have leases end so many milliseconds from now."""
        return self.engine.extend(name, node, seqs, lease_ids, lease_ms=lease_ms)

    def drop(self, name: str) -> bool:
        """Delete a topic with everything in it; whether there was one."""
        return self.engine.delete_topic(name)

    def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        """Copy what is written to one topic into another, or replace such a router; both topics are made if missing."""
        return self.engine.put_router(name, {**options, "source": source, "dest": dest})[1]

    def router(self, name: str) -> RouterState:
        """A router, once it has handled what its source had."""
        return self.engine.router(name)

    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        """Routers as they are now, by name."""
        return self.engine.routers(prefix, source=source, dest=dest)

    def unroute(self, name: str) -> bool:
        """Delete a router; copies it made stay. Whether there was one."""
        return self.engine.delete_router(name)

    def checkpoint(self) -> CheckpointResult:
        """Bring everything acknowledged into segment files, for readers of the directory [A-15]."""
        return self.engine.checkpoint(full=True)

    def topic(self, name: str) -> Topic:
        """The operations of one topic."""
        return Topic(self, name)

    def close(self) -> None:
        """Finish what was accepted and let go of the directory; again is fine."""
        self.engine.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Topic:
    """The operations of a `Log` with the name of a topic filled in."""

    def __init__(self, log: Log, name: str) -> None:
        self.log = log
        self.name = name

    def create(self, **config: Any) -> TopicConfig:
        """See `Log.create`."""
        return self.log.create(self.name, **config)

    def append(self, data: object, **more: Any) -> AppendResult:
        """See `Log.append`."""
        return self.log.append(self.name, data, **more)

    def append_many(self, rows: Iterable[object], **more: Any) -> AppendResult:
        """See `Log.append_many`."""
        return self.log.append_many(self.name, rows, **more)

    def read(self, from_seq: int = 0, **more: Any) -> Iterator[Record | Gap]:
        """See `Log.read`."""
        return self.log.read(self.name, from_seq, **more)

    def page(self, from_seq: int = 0, **more: Any) -> ReadResult:
        """See `Log.page`."""
        return self.log.page(self.name, from_seq, **more)

    def state(self) -> TopicState:
        """See `Log.state`."""
        return self.log.state(self.name)

    def delete(self, **selectors: Any) -> DeleteResult:
        """See `Log.delete`."""
        return self.log.delete(self.name, **selectors)

    def drop(self) -> bool:
        """See `Log.drop`."""
        return self.log.drop(self.name)


class AsyncLog:
    """The operations of a `Log` as coroutines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self, name: str, **config: Any) -> TopicConfig:
        """See `Log.create`."""
        return (await self.engine.aio.put_topic(name, config))[1]

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
        """See `Log.append`."""
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
        """See `Log.append_many`."""
        records = [as_record(row) for row in rows]
        return await self.engine.aio.append(
            name, records, node=node, idempotency_key=idempotency_key, producer=producer
        )

    async def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        node: str | Iterable[str] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """See `Log.read`."""
        nodes = node if node is None or isinstance(node, str) else tuple(node)
        while True:
            page = await self.page(name, from_seq, from_ts=from_ts, limit=PAGE, max_bytes=PAGE_BYTES, node=nodes)
            if page.tombstone is not None:
                yield page.tombstone
            for record in page.records:
                yield record
            if page.caught_up:
                return
            from_seq, from_ts = page.next_from_seq, None

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
        """See `Log.page`."""
        return await self.engine.aio.read(
            name, from_seq, from_ts=from_ts, limit=limit, max_bytes=max_bytes, node=node, wait_ms=wait_ms
        )

    async def state(self, name: str) -> TopicState:
        """See `Log.state`."""
        return await self.engine.aio.state(name)

    async def topics(self, prefix: str = "") -> list[str]:
        """See `Log.topics`."""
        return await self.engine.aio.topics(prefix)

    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """See `Log.delete`."""
        return await self.engine.aio.delete(name, before_seq=before_seq, match=match, seqs=seqs, dry_run=dry_run)

    async def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """See `Log.claim`."""
        return await self.engine.aio.claim(name, node, max, lease_ms)

    async def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """See `Log.ack`."""
        return await self.engine.aio.ack(name, node, seqs, lease_ids)

    async def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """See `Log.nack`."""
        return await self.engine.aio.nack(name, node, seqs, lease_ids, delay_ms=delay_ms)

    async def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """See `Log.extend`."""
        return await self.engine.aio.extend(name, node, seqs, lease_ids, lease_ms=lease_ms)

    async def drop(self, name: str) -> bool:
        """See `Log.drop`."""
        return await self.engine.aio.delete_topic(name)

    async def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        """See `Log.route`."""
        return (await self.engine.aio.put_router(name, {**options, "source": source, "dest": dest}))[1]

    async def router(self, name: str) -> RouterState:
        """See `Log.router`."""
        return await self.engine.aio.router(name)

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        """See `Log.routers`."""
        return await self.engine.aio.routers(prefix, source=source, dest=dest)

    async def unroute(self, name: str) -> bool:
        """See `Log.unroute`."""
        return await self.engine.aio.delete_router(name)

    async def checkpoint(self) -> CheckpointResult:
        """See `Log.checkpoint`."""
        return await self.engine.aio.checkpoint(full=True)

    async def close(self) -> None:
        """See `Log.close`."""
        await self.engine.aio.close()
