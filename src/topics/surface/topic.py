"""A topic with its name filled in [U-24]. Any thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from topics.model import AppendResult, DeleteResult, Gap, ReadResult, Record, TopicConfig, TopicState
from topics.surface.watch import AsyncWatch, From, Watch

if TYPE_CHECKING:
    from topics.surface.base import AsyncSurface, Surface


class Topic:
    """The operations of one topic: those of `Surface` without its name."""

    def __init__(self, surface: Surface, name: str) -> None:
        self.name = name
        self._surface = surface

    def create(self, **config: Any) -> TopicConfig:
        """See `Surface.create`."""
        return self._surface.create(self.name, **config)

    def append(self, data: object, **more: Any) -> AppendResult:
        """See `Surface.append`."""
        return self._surface.append(self.name, data, **more)

    def append_many(self, rows: Iterable[object], **more: Any) -> AppendResult:
        """See `Surface.append_many`."""
        return self._surface.append_many(self.name, rows, **more)

    def read(self, from_seq: int = 0, **more: Any) -> Iterator[Record | Gap]:
        """See `Surface.read`."""
        return self._surface.read(self.name, from_seq, **more)

    def page(self, from_seq: int = 0, **more: Any) -> ReadResult:
        """See `Surface.page`."""
        return self._surface.page(self.name, from_seq, **more)

    def watch(self, start: From = 0, **more: Any) -> Watch:
        """See `Surface.watch`."""
        return self._surface.watch({self.name: start}, **more)

    def state(self) -> TopicState:
        """See `Surface.state`."""
        return self._surface.state(self.name)

    def delete(self, **selectors: Any) -> DeleteResult:
        """See `Surface.delete`."""
        return self._surface.delete(self.name, **selectors)

    def drop(self) -> bool:
        """See `Surface.drop`."""
        return self._surface.drop(self.name)


class AsyncTopic:
    """The same as coroutines."""

    def __init__(self, surface: AsyncSurface, name: str) -> None:
        self.name = name
        self._surface = surface

    async def create(self, **config: Any) -> TopicConfig:
        """See `Surface.create`."""
        return await self._surface.create(self.name, **config)

    async def append(self, data: object, **more: Any) -> AppendResult:
        """See `Surface.append`."""
        return await self._surface.append(self.name, data, **more)

    async def append_many(self, rows: Iterable[object], **more: Any) -> AppendResult:
        """See `Surface.append_many`."""
        return await self._surface.append_many(self.name, rows, **more)

    def read(self, from_seq: int = 0, **more: Any) -> AsyncIterator[Record | Gap]:
        """See `Surface.read`."""
        return self._surface.read(self.name, from_seq, **more)

    async def page(self, from_seq: int = 0, **more: Any) -> ReadResult:
        """See `Surface.page`."""
        return await self._surface.page(self.name, from_seq, **more)

    def watch(self, start: From = 0, **more: Any) -> AsyncWatch:
        """See `Surface.watch`."""
        return self._surface.watch({self.name: start}, **more)

    async def state(self) -> TopicState:
        """See `Surface.state`."""
        return await self._surface.state(self.name)

    async def delete(self, **selectors: Any) -> DeleteResult:
        """See `Surface.delete`."""
        return await self._surface.delete(self.name, **selectors)

    async def drop(self) -> bool:
        """See `Surface.drop`."""
        return await self._surface.drop(self.name)
