"""Watchers for benchmarks, and what they are measured against: a loop of `transport.write` of the same frame.

    Watch      so many open connections that count what they receive; one writer that waits for all of them
    spreader   a process that sends whatever its writer sends, as it is, to every other connection

Both servers are driven by the same client, in the bench's own process.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from contextlib import AbstractContextManager

import uvloop

from bench import served

WATCHER = b"watch!\n"


def spreader() -> AbstractContextManager[served.Target]:
    """The baseline."""
    return served.started("bench.fanout")


class Watcher(asyncio.Protocol):
    """One connection that receives; it says when a frame of the expected length is here."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.received = 0
        self.last = b""
        self.keep: bytearray | None = None
        """Everything that came, if somebody wants to look at it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.last = data
        if self.keep is not None:
            self.keep += data
        self._watch.note(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.lost()


class Watch:
    """Watchers, and a writer whose every write they wait for."""

    def __init__(self, target: served.Target) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self.watchers: list[Watcher] = []
        self.latencies: list[int] = []
        self._expected = 0
        self._missing = 0
        self._since_ns = 0
        self._all: asyncio.Future[None] | None = None
        self._closing = False

    async def open(self, hello: bytes, count: int, quiet_s: float = 0.2) -> None:
        """Connect, and wait until nothing comes any more."""
        for _ in range(count):
            _, one = await self._loop.create_connection(lambda: Watcher(self), "127.0.0.1", self._target.port)
            one.transport.write(hello)
            self.watchers.append(one)
        before = -1
        while (now := sum(one.received for one in self.watchers)) != before or not all(
            one.received for one in self.watchers
        ):
            before = now
            await asyncio.sleep(quiet_s)

    def begin(self, size: int) -> asyncio.Future[None]:
        """From now on every watcher is to receive so many bytes."""
        self._expected = size
        self._missing = len(self.watchers)
        for one in self.watchers:
            one.received = 0
        self._since_ns = time.perf_counter_ns()
        self._all = self._loop.create_future()
        return self._all

    def note(self, one: Watcher) -> None:
        """A watcher has received something."""
        if self._all is None:
            return
        assert one.received <= self._expected, f"{one.received} bytes instead of {self._expected}: {one.last!r}"
        if one.received == self._expected:
            self.latencies.append(time.perf_counter_ns() - self._since_ns)
            self._missing -= 1
            if not self._missing:
                done, self._all = self._all, None
                done.set_result(None)

    def lost(self) -> None:
        """A connection ended: a failure, unless that is wanted."""
        if not self._closing and self._all is not None and not self._all.done():
            self._all.set_exception(ConnectionResetError("a watcher was closed"))

    async def leave(self) -> None:
        """End all of them, before the loop is left: a server that drains waits for those that do not go."""
        self._closing = True
        for one in self.watchers:
            one.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)


class Writer(asyncio.Protocol):
    """One connection, one request in flight."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answered: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def write(self, request: bytes) -> asyncio.Future[bytes]:
        """Send; the future is the whole answer."""
        self._answered = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self.transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._answered is None or self._answered.done():
            return
        try:
            length = served.http_answer(self._buffer)
            if length and len(self._buffer) >= length:
                assert len(self._buffer) == length, "an answer of another length than it says"
                self._answered.set_result(self._buffer)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer has to know
            self._answered.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionResetError("the server closed the connection"))


async def writer(target: served.Target) -> Writer:
    """Connect a writer."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Writer, "127.0.0.1", target.port))[1]


async def watch_topic(target: served.Target, one: Writer, count: int) -> Watch:
    """So many streams, each of a session of its own, at the head of the topic."""
    watch = Watch(target)
    for _ in range(count):
        body = json.dumps({"topics": {served.TOPIC: {"tail": True}}, "heartbeat_ms": 60_000}).encode()
        answer = await one.write(served.post("/v0/watch", body))
        url = json.loads(answer[answer.index(b"\r\n\r\n") :])["stream_url"]
        await watch.open(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), 1, 0.0)
    await watch.open(b"", 0)
    return watch


async def subscribe_topic(target: served.Target, one: Writer, count: int) -> Watch:
    """So many WebSockets, each with one subscription at the head of the topic."""
    watch = Watch(target)
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = (
        "GET /v0/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    await watch.open(upgrade.encode(), count)
    assert all(watcher.last.startswith(b"HTTP/1.1 101") for watcher in watch.watchers)
    command = json.dumps({"op": "subscribe", "topic": served.TOPIC, "tail": True}).encode()
    for watcher in watch.watchers:
        watcher.received = 0
        # Masked with zeros, which change nothing.
        watcher.transport.write(bytes((0x81, 0x80 | len(command), 0, 0, 0, 0)) + command)
    await watch.open(b"", 0)
    return watch


# -- in the child ----------------------------------------------------------------------------------------------------


class _Spread(asyncio.Protocol):
    """A connection of the baseline: a watcher, or the writer whose bytes they all get."""

    watchers: list[asyncio.Transport] = []  # noqa: RUF012 - of the process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if data == WATCHER:
            self.watchers.append(self._transport)
            self._transport.write(b"ok")
        else:
            for one in self.watchers:
                one.write(data)


async def _spread() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Spread, "127.0.0.1", 0, backlog=2048)
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopping.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(_spread())
