"""What a watch is to whoever reads it: an iterator with cursors, which can be closed [U-21].

    with log.watch({"orders": 0, "alerts": "tail"}) as events:
        for event in events: …

`Watch` blocks, `AsyncWatch` is for `async for`. Their implementations are in `client` and `engine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self

from topics.errors import CallerError
from topics.model import Event, check_u64

From = int | Literal["tail"]
"""The last seq that is known, or `tail` for what comes from now on."""


def starts(topics: Mapping[str, From]) -> dict[str, From]:
    """Where a watch begins, checked as far as that goes without its topics."""
    if not isinstance(topics, Mapping) or not topics:
        raise CallerError("name what to watch: {topic: seq or 'tail'}")
    for name, start in topics.items():
        if not isinstance(name, str):
            raise CallerError("a name must be a string")
        if start != "tail":
            check_u64(start, f"the start of {name!r}, if it is not 'tail',")
    return dict(topics)


class Watch(ABC, Iterator[Event]):
    """Events of several topics, in order within each. One thread at a time; `close` may come from another.

    Behind Ctrl-C another `for` loop over it goes on where the last one was.
    """

    @property
    @abstractmethod
    def cursors(self) -> Mapping[str, int]:
        """Up to where each topic has been taken: a watch that begins there goes on."""

    @abstractmethod
    def __next__(self) -> Event: ...

    @abstractmethod
    def close(self) -> None:
        """End it; whoever waits for an event gets none. Again is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncWatch(ABC, AsyncIterator[Event]):
    """The same for an event loop; one task at a time."""

    @property
    @abstractmethod
    def cursors(self) -> Mapping[str, int]:
        """See `Watch.cursors`."""

    @abstractmethod
    async def __anext__(self) -> Event: ...

    @abstractmethod
    async def begin(self) -> None:
        """Begin now: what is written from here on is behind `tail`; without it, with the first event."""

    @abstractmethod
    async def close(self) -> None:
        """See `Watch.close`."""

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
