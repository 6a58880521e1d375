"""A queue with its name filled in, and workers for it [U-24]. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from topics.model import (
    AckResult,
    AppendResult,
    ClaimResult,
    ExtendResult,
    LeasePage,
    NackResult,
    TopicConfig,
    TopicState,
)
from topics.surface.worker import Worker

if TYPE_CHECKING:
    from topics.surface.async_worker import AsyncWorker
    from topics.surface.base import AsyncSurface, Surface


class Queue:
    """The operations of one queue: those of `Surface` without its name."""

    def __init__(self, surface: Surface, name: str) -> None:
        self.name = name
        self._surface = surface

    def create(self, **config: Any) -> TopicConfig:
        """Create it, or replace its configuration."""
        return self._surface.create(self.name, **{**config, "type": "queue"})

    def put(self, data: object, **more: Any) -> AppendResult:
        """A new job; see `Surface.append`."""
        return self._surface.append(self.name, data, **more)

    def put_many(self, rows: Iterable[object], **more: Any) -> AppendResult:
        """New jobs, all or none; see `Surface.append_many`."""
        return self._surface.append_many(self.name, rows, **more)

    def claim(self, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """See `Surface.claim`."""
        return self._surface.claim(self.name, node, max, lease_ms)

    def ack(self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """See `Surface.ack`."""
        return self._surface.ack(self.name, node, seqs, lease_ids)

    def nack(self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0) -> NackResult:
        """See `Surface.nack`."""
        return self._surface.nack(self.name, node, seqs, lease_ids, delay_ms=delay_ms)

    def extend(self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int) -> ExtendResult:
        """See `Surface.extend`."""
        return self._surface.extend(self.name, node, seqs, lease_ids, lease_ms=lease_ms)

    def leases(self) -> LeasePage:
        """See `Surface.leases`."""
        return self._surface.leases(self.name)

    def state(self) -> TopicState:
        """See `Surface.state`."""
        return self._surface.state(self.name)

    def worker(self, node: str, max: int = 1, *, lease_ms: int | None = None, **more: Any) -> Worker:
        """Jobs one after another, with up to `max` of them in hand; see `Worker`."""
        return Worker(self._surface, self.name, node, max, lease_ms=lease_ms, **more)


class AsyncQueue:
    """The same as coroutines."""

    def __init__(self, surface: AsyncSurface, name: str) -> None:
        self.name = name
        self._surface = surface

    async def create(self, **config: Any) -> TopicConfig:
        """See `Queue.create`."""
        return await self._surface.create(self.name, **{**config, "type": "queue"})

    async def put(self, data: object, **more: Any) -> AppendResult:
        """See `Queue.put`."""
        return await self._surface.append(self.name, data, **more)

    async def put_many(self, rows: Iterable[object], **more: Any) -> AppendResult:
        """See `Queue.put_many`."""
        return await self._surface.append_many(self.name, rows, **more)

    async def claim(self, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """See `Surface.claim`."""
        return await self._surface.claim(self.name, node, max, lease_ms)

    async def ack(self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """See `Surface.ack`."""
        return await self._surface.ack(self.name, node, seqs, lease_ids)

    async def nack(
        self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """See `Surface.nack`."""
        return await self._surface.nack(self.name, node, seqs, lease_ids, delay_ms=delay_ms)

    async def extend(
        self, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """See `Surface.extend`."""
        return await self._surface.extend(self.name, node, seqs, lease_ids, lease_ms=lease_ms)

    async def leases(self) -> LeasePage:
        """See `Surface.leases`."""
        return await self._surface.leases(self.name)

    async def state(self) -> TopicState:
        """See `Surface.state`."""
        return await self._surface.state(self.name)

    def worker(self, node: str, max: int = 1, *, lease_ms: int | None = None, **more: Any) -> AsyncWorker:
        """See `Queue.worker`."""
        from topics.surface.async_worker import AsyncWorker

        return AsyncWorker(self._surface, self.name, node, max, lease_ms=lease_ms, **more)
