"""B4: what does reading over HTTP cost beside reading the same bytes and sending them?

Measured: diffs of 1, 256 and 1000 records from a sealed segment of class `disk`, 100 bytes per record, one after
another over 4 connections; CPU of the server per record. The baseline is a server of its own that answers each request
with as many bytes, read from a file with `os.pread`: what is on top is finding, verifying and rendering records.

Not measured: cold segments, gzip, filters.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import uvloop

from bench import served
from bench.measure import Arm, Figure, Group, Sample
from topics.codec import kernel
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine

RECORDS = 20_000
US_PER_RECORD = 1.2
"""The bound of the pure kernel."""
TIMES_RAW = 4.0
"""That of the compiled one."""


def groups(quick: bool) -> list[Group]:
    """One comparison for each size of page."""
    return [reads(limit, count // 10 if quick else count) for limit, count in ((1, 5_000), (256, 800), (1000, 400))]


def reads(limit: int, count: int) -> Group:
    """Pages of one size."""
    request = served.post(
        f"/v0/topics/{served.TOPIC}/diff",
        json.dumps({"from_seq": 3_000, "limit": limit, "max_batch_bytes": 1 << 22}).encode(),
    )

    def ours(dir: Path) -> Sample:
        _fill(dir)
        with served.served(dir) as target:
            return _load(target, request)

    def raw(dir: Path) -> Sample:
        page = dir / "page"
        page.write_bytes(os.urandom(limit * 145 + 200))
        with served.started("bench.bench_http_read", str(page)) as target:
            return _load(target, request)

    def _load(target: served.Target, request: bytes) -> Sample:
        served.load(target, request, served.http_answer, connections=1, count=2)
        return served.load(target, request, served.http_answer, connections=4, count=count, units=limit)

    arms = [Arm("pread and send", raw), Arm("diff", ours)]
    is_pure, is_large = kernel.name() == "pure", limit == 1000
    ratio, each = (None if is_pure else TIMES_RAW), (US_PER_RECORD if is_pure else None)
    figures = [
        Figure("CPU beside pread and send", "diff", "pread and send", "time", ratio if is_large else None, "cpu_us"),
        Figure("CPU µs per record", "diff", None, "time", each if is_large else None, "cpu_us"),
    ]
    return Group(f"diff, limit {limit}", "record", arms, figures)


def _fill(dir: Path) -> None:
    with Engine.open(str(dir), EngineConfig(min_free_bytes=0)) as engine:
        for _ in range(RECORDS // 1000):
            engine.append(served.TOPIC, [{"data": served.DATA}] * 1000)
        engine.checkpoint(full=True)


class _Sender(asyncio.Protocol):
    """Whatever arrives is answered with the page."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % self._size
        self._transport.write(head + os.pread(self._fd, self._size, 0))


async def _send(path: str) -> None:
    loop = asyncio.get_running_loop()
    fd, size = os.open(path, os.O_RDONLY), os.path.getsize(path)
    server = await loop.create_server(lambda: _Sender(fd, size), "127.0.0.1", 0)
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopping.wait()
    server.close()
    os.close(fd)


if __name__ == "__main__":
    uvloop.run(_send(sys.argv[1]))
