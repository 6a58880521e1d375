"""Servers for benchmarks, each in a process of its own; and the load that drives them.

    Served    our server, or the same HTTP layer with a handler that only decodes the body and answers
    Redis     a peer with the same durability, where it is installed [P-3]
    load      so many connections, one request in flight on each; every answer is checked for its length

CPU is that of the server's process, all threads, from the kernel's own count [P-2].
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.measure import Sample, percentiles_us
from bench.slowdisk import LateFs
from topics import settings
from topics.server import app, gather, records, wire
from topics.server.exchange import Exchange
from topics.server.keys import KeyRing
from topics.server.main import SWITCH_S, spare_the_collector
from topics.server.server import Server

TOPIC = "hot"
DATA = b'{"kg":412.5,"from":"dock-7","to":"yard-3","note":"%b"}' % (b"0123456789" * 5)
WAIT_S = 20.0


class Target(NamedTuple):
    """Where a load goes, and whose CPU counts."""

    port: int
    pid: int


@contextmanager
def served(dir: Path, kind: str = "write") -> Iterator[Target]:
    """Our server in a process of its own: `write`, `decode` for the baseline, `cold` with a tier that answers late."""
    with started("bench.served", kind, str(dir)) as target:
        yield target


@contextmanager
def started(module: str, *words: str) -> Iterator[Target]:
    """A module as a process of its own; its first line is its port, and SIGTERM ends it."""
    command = [sys.executable, "-m", module, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield Target(int(child.stdout.readline()), child.pid)
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate()


@contextmanager
def redis(dir: Path, appendfsync: str) -> Iterator[Target]:
    """Redis with an append-only file in the same directory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (
        "--port",
        str(port),
        "--dir",
        str(dir),
        "--appendonly",
        "yes",
        "--appendfsync",
        appendfsync,
        "--save",
        "",
    )
    child = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield Target(port, child.pid)
    finally:
        child.kill()
        child.wait()


def has_redis() -> bool:
    """Whether the peer is installed."""
    return shutil.which("redis-server") is not None


def _wait_for(port: int) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until, "the peer did not start"
        else:
            return


# -- load ------------------------------------------------------------------------------------------------------------


def post(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


def write_request(count: int) -> bytes:
    """A write of so many records."""
    return post(f"/v0/topics/{TOPIC}", b'{"records":[%b]}' % b",".join([b'{"data":%b}' % DATA] * count))


def xadd(count: int) -> bytes:
    """The same for Redis, pipelined."""
    parts = (b"XADD", TOPIC.encode(), b"*", b"d", DATA)
    one = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return one * count


def http_answer(data: bytes) -> int:
    """How long the answer will be that begins like this; 0: not known yet. Anything but 200 and 201 is a failure."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    assert data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), data[:200]
    at = data.index(b"content-length: ") + 16
    return end + 4 + int(data[at : data.index(b"\r\n", at)])


def redis_answer(count: int) -> Callable[[bytes], int]:
    """The same for so many ids: `$15` and the id, a line each."""

    def answer(data: bytes) -> int:
        assert data.startswith(b"$"), data[:200]
        return len(data) if data.count(b"\r\n") == 2 * count else 0

    return answer


class _Client(asyncio.Protocol):
    """One connection, one request in flight."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._buffer = b""
        self._length = 0
        self._since_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def begin(self) -> None:
        """Send the next request, if there is one."""
        if self._run.left:
            self._run.left -= 1
            self._since_ns = time.perf_counter_ns()
            self._transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self._length:
            self._length = self._run.answer(self._buffer)
        if self._length and len(self._buffer) >= self._length:
            assert len(self._buffer) == self._length, "an answer of another length than it says"
            self._buffer, self._length = b"", 0
            self._run.answered(time.perf_counter_ns() - self._since_ns)
            self.begin()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost(error)


class _Run:
    """What is left to do."""

    def __init__(self, request: bytes, answer: Callable[[bytes], int], count: int) -> None:
        self.request = request
        self.answer = answer
        self.left = self._open = count
        self.latencies: list[int] = []
        self.done = asyncio.get_running_loop().create_future()

    def answered(self, took_ns: int) -> None:
        self.latencies.append(took_ns)
        self._open -= 1
        if not self._open:
            self.done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("the server closed a connection"))


def load(
    target: Target, request: bytes, answer: Callable[[bytes], int], *, connections: int, count: int, units: int = 1
) -> Sample:
    """So many requests over so many connections; `units` pieces of work in each."""
    return uvloop.run(_load(target, request, answer, connections, count, units))


async def _load(
    target: Target, request: bytes, answer: Callable[[bytes], int], connections: int, count: int, units: int
) -> Sample:
    loop = asyncio.get_running_loop()
    run = _Run(request, answer, count)
    clients = [
        (await loop.create_connection(lambda: _Client(run), "127.0.0.1", target.port))[1] for _ in range(connections)
    ]
    gc.collect()
    cpu_s, began = cpu_of(target.pid), time.perf_counter()
    for client in clients:
        client.begin()
    await run.done
    wall_s, cpu_s = time.perf_counter() - began, cpu_of(target.pid) - cpu_s
    return Sample(count * units, wall_s, cpu_s, percentiles_us(run.latencies))


def cpu_of(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


# -- in the child ----------------------------------------------------------------------------------------------------


def _decode_and_answer(self: app.App, exchange: Exchange) -> None:
    """The baseline: the same HTTP layer, the body decoded, an answer of the same size."""
    wire.decode(records._WRITE, exchange.body)
    exchange.body_done()
    body = (
        b'{"topic":"hot","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1,"created":false,"deduped":false}'
    )
    exchange.reply(200, wire.timed(body, exchange.elapsed_ms(), b',"wal_append_ms":0.010,"fsync_ms":0.000'))


LATE_S = 0.1
"""What a ranged read of the cold tier takes [B10]."""


def _server(kind: str, dir: str) -> Server:
    if kind != "cold":
        return Server(settings.parse({"TOPICS_PORT": "0"}), KeyRing())
    cold = f"{dir}-cold"
    tier = {"TOPICS_COLD_DIR": cold, "TOPICS_HOT_RETAIN_SEGMENTS": "0", "TOPICS_COLD_CACHE_BYTES": "0"}
    small = {"TOPICS_SEGMENT_MAX_EVENTS": "200", "TOPICS_CHECKPOINT_MS": "1000"}
    return Server(settings.parse({"TOPICS_PORT": "0", **tier, **small}), KeyRing(), fs=LateFs(cold, LATE_S))


async def _serve(kind: str, dir: str) -> None:
    server = _server(kind, dir)
    _, port = await server.listen()
    await server.recover(dir)
    # As the product's own process does.
    sys.setswitchinterval(SWITCH_S)
    spare_the_collector()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(port, flush=True)
    await stopping.wait()
    await server.drain()


def main(kind: str, dir: str) -> None:
    """Serve until SIGTERM."""
    if kind == "decode":
        app.App.execute = _decode_and_answer  # type: ignore[method-assign]
        gather.Gathering.take = lambda *write: False  # type: ignore[method-assign]
    uvloop.run(_serve(kind, dir))


if __name__ == "__main__":
    main(*sys.argv[1:])
