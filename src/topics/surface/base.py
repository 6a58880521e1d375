"""The surface: which operations there are, and those that are made of others [U-24].

`Surface` blocks, `AsyncSurface` has the same as coroutines. Subclasses carry the primitive ones out: over a server
(`Client`, `AsyncClient`) or in this process (`Log`, `AsyncLog`). Their names, arguments and defaults are equal; a
test compares them. Any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    Checkpointed,
    ClaimResult,
    CommitResult,
    DeleteResult,
    ExtendResult,
    Gap,
    LeasePage,
    NackResult,
    Producer,
    ReadResult,
    Record,
    RouterState,
    StageResult,
    TopicConfig,
    TopicState,
    WriterState,
)
from topics.surface.queue import AsyncQueue, Queue
from topics.surface.topic import AsyncTopic, Topic
from topics.surface.transaction import AsyncTransaction, Transaction
from topics.surface.watch import AsyncWatch, From, Watch

PAGE: Final = 1000
PAGE_BYTES: Final = 8 << 20
AttachMode = Literal["auto", "never", "always"]
Part = Mapping[str, object] | tuple[str, int, int]


def keywords(call: str, given: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """What a call was given by name, if all of it is known.

    Over the wire members may come from another version, and are passed over [CFG-8]; a keyword is mistyped.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    return given


class Surface(ABC):
    """Topics, whoever keeps them. Use it as a context manager, or close it."""

    # -- topics ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def create(self, name: str, **config: Any) -> TopicConfig:
        """Create a topic, or replace the configuration of one; omitted members take their defaults."""

    @abstractmethod
    def state(self, name: str) -> TopicState:
        """A topic at this instant."""

    @abstractmethod
    def topics(self, prefix: str = "") -> Iterator[str]:
        """Names of topics, sorted."""

    @abstractmethod
    def drop(self, name: str) -> bool:
        """Delete a topic with everything in it; whether there was one."""

    def topic(self, name: str) -> Topic:
        """The operations of one topic."""
        return Topic(self, name)

    # -- records -----------------------------------------------------------------------------------------------------

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    def watch(
        self,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: Literal["eventual", "strong"] = "eventual",
    ) -> Watch:
        """Everything behind the cursors of several topics, as it comes: an iterator that does not end by itself.

        It yields `TopicRecord`, `TopicGap`, `CaughtUp` and `TopicDeleted`, each with its `topic`. A topic begins
        behind a seq (0: everything) or at `"tail"`. `strong` yields only what no power failure can take back.
        """

    @abstractmethod
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

    # -- queues ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease jobs of a queue to a node; fewer than asked for, also none, is normal."""

    @abstractmethod
    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """Jobs are done: they are deleted. `lease_ids` keep one whose lease is over from doing that."""

    @abstractmethod
    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """Give jobs back, to be claimed again at once or after a delay."""

    @abstractmethod
    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """Have leases end so many milliseconds from now."""

    @abstractmethod
    def leases(self, name: str) -> LeasePage:
        """What of a queue is leased and what is delayed, by seq: all of it."""

    def queue(self, name: str) -> Queue:
        """The operations of one queue, and workers for it."""
        return Queue(self, name)

    # -- routers -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        """Copy what is written to one topic into another, or replace such a router; both topics are made if missing."""

    @abstractmethod
    def router(self, name: str) -> RouterState:
        """A router, once it has handled what its source had."""

    @abstractmethod
    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        """Routers as they are now, by name."""

    @abstractmethod
    def unroute(self, name: str) -> bool:
        """Delete a router; copies it made stay. Whether there was one."""

    # -- transactions ------------------------------------------------------------------------------------------------

    def transaction(self, id: str, version: int) -> Transaction:
        """Records that appear all at once when its block is left, or not at all; once per version of a writer."""
        return Transaction(self, id, version)

    @abstractmethod
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
        """Put records where nobody sees them, until `commit_staged` names their part."""

    @abstractmethod
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
        """Publish what is staged under the parts, all or none, once per version of the writer."""

    @abstractmethod
    def abort_staged(self, id: str, version: int) -> AbortResult:
        """Drop what is staged for a version; one that is committed is left alone."""

    @abstractmethod
    def writer(self, id: str) -> WriterState:
        """A writer of transactions: its committed version, and what it has staged."""

    # -- the store ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def checkpoint(self) -> Checkpointed:
        """Bring everything acknowledged into segment files, for readers of the directory [A-15]."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; again is fine."""


class AsyncSurface(ABC):
    """The operations of a `Surface` as coroutines. Use it with `async with`, or close it."""

    @abstractmethod
    async def create(self, name: str, **config: Any) -> TopicConfig:
        """See `Surface.create`."""

    @abstractmethod
    async def state(self, name: str) -> TopicState:
        """See `Surface.state`."""

    @abstractmethod
    async def topics(self, prefix: str = "") -> list[str]:
        """See `Surface.topics`."""

    @abstractmethod
    async def drop(self, name: str) -> bool:
        """See `Surface.drop`."""

    def topic(self, name: str) -> AsyncTopic:
        """See `Surface.topic`."""
        return AsyncTopic(self, name)

    @abstractmethod
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
        """See `Surface.append`."""

    @abstractmethod
    async def append_many(
        self,
        name: str,
        rows: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> AppendResult:
        """See `Surface.append_many`."""

    @abstractmethod
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
        """See `Surface.page`."""

    async def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        node: str | Iterable[str] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """See `Surface.read`."""
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

    @abstractmethod
    def watch(
        self,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: Literal["eventual", "strong"] = "eventual",
    ) -> AsyncWatch:
        """See `Surface.watch`; it begins with the first event that is asked for, or with `async with`."""

    @abstractmethod
    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """See `Surface.delete`."""

    @abstractmethod
    async def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """See `Surface.claim`."""

    @abstractmethod
    async def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """See `Surface.ack`."""

    @abstractmethod
    async def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """See `Surface.nack`."""

    @abstractmethod
    async def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """See `Surface.extend`."""

    @abstractmethod
    async def leases(self, name: str) -> LeasePage:
        """See `Surface.leases`."""

    def queue(self, name: str) -> AsyncQueue:
        """See `Surface.queue`."""
        return AsyncQueue(self, name)

    @abstractmethod
    async def route(self, name: str, source: str, dest: str, **options: Any) -> RouterState:
        """See `Surface.route`."""

    @abstractmethod
    async def router(self, name: str) -> RouterState:
        """See `Surface.router`."""

    @abstractmethod
    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        """See `Surface.routers`."""

    @abstractmethod
    async def unroute(self, name: str) -> bool:
        """See `Surface.unroute`."""

    def transaction(self, id: str, version: int) -> AsyncTransaction:
        """See `Surface.transaction`."""
        return AsyncTransaction(self, id, version)

    @abstractmethod
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
        """See `Surface.stage`."""

    @abstractmethod
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
        """See `Surface.commit_staged`."""

    @abstractmethod
    async def abort_staged(self, id: str, version: int) -> AbortResult:
        """See `Surface.abort_staged`."""

    @abstractmethod
    async def writer(self, id: str) -> WriterState:
        """See `Surface.writer`."""

    @abstractmethod
    async def checkpoint(self) -> Checkpointed:
        """See `Surface.checkpoint`."""

    @abstractmethod
    async def close(self) -> None:
        """See `Surface.close`."""
