"""Stopping: what waits is answered, what is slow is cut off, what is asked meanwhile is told so [API-5]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import uvloop

from topics import settings
from topics.server.keys import KeyRing
from topics.server.server import Server

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(path: str, body: object) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
    return head.encode() + b"\r\n\r\n" + raw


def run(test: Callable[[Server, Callable[[], Awaitable[Client]]], Awaitable[None]]) -> None:
    """On a loop of its own, with a server that keeps everything in memory."""

    async def serve() -> None:
        server = Server(settings.parse({"TOPICS_PORT": "0"}), KeyRing())
        host, port = await server.listen()
        await server.recover(None)
        opened: list[Client] = []

        async def connect() -> Client:
            opened.append(await asyncio.open_connection(host, port))
            return opened[-1]

        try:
            await test(server, connect)
        finally:
            for _, writer in opened:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)

    uvloop.run(asyncio.wait_for(serve(), 60))


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and everything else, until the server closes."""
    raw = await reader.read()
    return int(raw.split()[1]), raw


def test_who_is_too_slow_is_cut_off_at_the_deadline() -> None:
    """[API-5]"""

    async def test(server: Server, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        writer.write(request("/v0/topics/a", {"records": [{"data": 1}]})[:-5])
        expecting, idle = await connect()
        idle.write(b"GET /v0/ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await expecting.readline()).startswith(b"HTTP/1.1 200")
        await server.drain(within_s=0.05)
        assert server.app.engine is None
        assert server.app.buffered.used == 0
        assert await reader.read() == b""
        assert server.connections.open == set()

    run(test)


def test_a_waiting_read_is_answered_at_once() -> None:
    """[API-5, DIF-4]"""

    async def test(server: Server, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        writer.write(request("/v0/topics/a", {"records": [{"data": 1}]}))
        await reader.readuntil(b"}}")
        writer.write(request("/v0/topics/a/diff", {"from_seq": 1, "wait_ms": 30000}))
        assert server.app.engine is not None
        while not server.app.engine.core.polls:
            await asyncio.sleep(0)
        await server.drain()
        status, raw = await answered(reader)
        assert status == 200
        assert b'"records":[]' in raw
        assert b"connection: close" in raw

    run(test)


def test_while_it_drains_it_says_so_on_connections_that_are_open() -> None:
    """[API-5, HLT-4]"""

    async def test(server: Server, connect: Callable[[], Awaitable[Client]]) -> None:
        pairs = [await connect() for _ in range(2)]
        while len(server.connections.open) < 2:
            await asyncio.sleep(0)
        server.stop_listening()
        for (_, writer), path in zip(pairs, ("/v0/ready", "/v0/topics"), strict=True):
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        for reader, _ in pairs:
            status, raw = await answered(reader)
            assert status == 503
            assert b'"code":"shutting_down"' in raw
            assert b"retry-after: 1" in raw
        await server.drain()

    run(test)
