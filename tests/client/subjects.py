"""The four ways to the same operations, all called in the same way: a store, a server, each blocking and not."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.api.kit import running
from topics.client.aio import AsyncClient
from topics.client.sync import Client
from topics.clock import Clock
from topics.engine.engine import Engine
from topics.engine.log import Log

WAIT_S = 60.0
CLIENTS = ("client", "async-client")
KINDS = ("log", "aio", *CLIENTS)


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


class Blocking:
    """Something with coroutines, async iterators and async blocks, used without `await`."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            async def made() -> Any:
                # Called on the loop: what it makes may belong to it.
                result = found(*args, **named)
                return await result if inspect.isawaitable(result) else result

            return self._wrapped(self._loop.run(made()))

        return call

    def _wrapped(self, result: Any) -> Any:
        is_ours = type(result).__module__.startswith("topics.") and not type(result).__module__.endswith(".model")
        if inspect.isasyncgen(result) or (is_ours and hasattr(result, "__dict__")):
            return Blocking(self._loop, result)
        return result

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def step() -> Any:
            return await anext(self._inner)

        try:
            return self._wrapped(self._loop.run(step()))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        async def enter() -> Any:
            return await self._inner.__aenter__()

        self._loop.run(enter())
        return self

    def __exit__(self, *exception: Any) -> Any:
        async def leave() -> Any:
            return await self._inner.__aexit__(*exception)

        return self._loop.run(leave())


@contextmanager
def client_of(kind: str, url: str, key: str | None = None, **options: Any) -> Iterator[Any]:
    """A client of a server, `client` or `async-client`."""
    if kind == "client":
        with Client(url, key, **options) as one:
            yield one
        return
    loop = Loop()

    async def made() -> AsyncClient:
        return AsyncClient(url, key, **options)

    other = Blocking(loop, loop.run(made()))
    try:
        yield other
    finally:
        other.close()
        loop.close()


@contextmanager
def subject(kind: str, path: Path | str | None, clock: Clock | None = None) -> Iterator[Any]:
    """One of `KINDS` over a store in a directory, `None` for one in memory."""
    with ExitStack() as stack:
        if kind in CLIENTS:
            server = stack.enter_context(running(path, clock=clock))
            yield stack.enter_context(client_of(kind, server.url))
            return
        log = Log(Engine.open(None if path is None else str(path), clock=clock))
        stack.callback(log.close)
        if kind == "log":
            yield log
            return
        loop = Loop()
        stack.callback(loop.close)
        yield Blocking(loop, log.aio)
