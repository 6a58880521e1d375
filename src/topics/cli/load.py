"""Load for measurements: so many connections with one request in flight on each, and a server on a core of its own.

    Wire       what a kind of server is sent, and where its answers end
    drive      so many requests over so many connections; every answer is checked for its length, a socket error ends it
    apart      a process on the first core; whoever started it has the others until it ends [P-3]
    cpu_of     what a process has used, all threads, from the kernel's own count [P-2]

The benchmarks of the repository and `topics bench` share this, so that all servers meet the same client: bytes that
were made before, an event loop, no parsing beyond the length. Runs on the main thread.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from topics.clock import SystemClock
from topics.errors import TopicsError

AWAY_S: Final = 10.0
"""Within which a process that was asked to end is gone."""
_now_ns = SystemClock().monotonic_ns


class Unexpected(TopicsError):
    """An answer that is none: a refusal, or one of another length."""

    code = "unexpected_answer"
    hint = "nothing that was measured counts; the server's log may say more"


class Target(NamedTuple):
    """Where a load goes, and whose CPU counts; 0 where it is not known."""

    port: int
    pid: int = 0
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None


class Wire(NamedTuple):
    """One request, and how its answers are told apart."""

    request: bytes
    answer: Callable[[bytes], int]
    """How long the answer will be that begins like this; 0: not known yet. Raises where it is a refusal."""
    hello: bytes = b""
    """What a connection says first."""
    ready: bytes = b""
    """What ends the greeting of the other side."""
    ping: bytes = b""
    """What may come at any time, and is answered with `pong`."""
    pong: bytes = b""
    own: bytes = b""
    """A word of request and hello that stands for the connection's number, as many bytes long."""


class Driven(NamedTuple):
    """What a load came to."""

    wall_s: float
    cpu_s: float
    latencies_ns: list[int]


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def http_answer(data: bytes) -> int:
    """The length of an answer over HTTP. Anything but 200 and 201 is a failure."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    if not data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
        raise Unexpected(f"a request was not carried out: {data[:300]!r}")
    at = data.index(b"content-length: ") + 16
    return end + 4 + int(data[at : data.index(b"\r\n", at)])


def drive(target: Target, wire: Wire, *, connections: int, count: int) -> Driven:
    """So many requests over so many connections."""
    return drive_all(target, [wire], connections=connections, count=count)


def drive_all(target: Target, wires: Sequence[Wire], *, connections: int, count: int) -> Driven:
    """Several loads at once; so many connections and requests of each."""
    driven: Driven = new_loop_run(_drive(target, wires, connections, count))
    return driven


def new_loop_run(work: Any) -> Any:
    """Run a coroutine on the quickest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def _drive(target: Target, wires: Sequence[Wire], connections: int, count: int) -> Driven:
    runs = [_Run(wire, count) for wire in wires]
    clients = [await _connected(target, run) for run in runs for _ in range(connections)]
    gc.collect()
    cpu_s, began_ns = cpu_of(target.pid), _now_ns()
    for client in clients:
        client.begin()
    await asyncio.gather(*(run.done for run in runs))
    wall_s, cpu_s = (_now_ns() - began_ns) / 1e9, cpu_of(target.pid) - cpu_s
    for client in clients:
        client.transport.abort()
    return Driven(wall_s, cpu_s, [one for run in runs for one in run.latencies])


async def _connected(target: Target, run: _Run) -> _Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: _Client(run), target.host, target.port, ssl=target.tls)
    await client.greeted
    return client


class _Client(asyncio.Protocol):
    """One connection, one request in flight."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._buffer = b""
        self._length = 0
        self._since_ns = 0
        self._hello, self._request = run.wire.hello, run.wire.request
        if own := run.wire.own:
            number = b"%0*d" % (len(own), run.number())
            self._hello, self._request = self._hello.replace(own, number), self._request.replace(own, number)
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        if self._hello:
            self.transport.write(self._hello)
        else:
            self.greeted.set_result(None)

    def begin(self) -> None:
        """Send the next request, if there is one."""
        run = self._run
        if run.left:
            run.left -= 1
            self._since_ns = _now_ns()
            self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        run = self._run
        if run.wire.ping and run.wire.ping in data:
            data = data.replace(run.wire.ping, b"")
            self.transport.write(run.wire.pong)
        self._buffer = self._buffer + data if self._buffer else data
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with an answer ends the run
            run.fail(error)

    def _look(self) -> None:
        if not self.greeted.done():
            if self._run.wire.ready in self._buffer:
                self._buffer = b""
                self.greeted.set_result(None)
            return
        if not self._length:
            self._length = self._run.wire.answer(self._buffer)
        if self._length and len(self._buffer) >= self._length:
            if len(self._buffer) != self._length:
                raise Unexpected("an answer has another length than it says")
            self._buffer, self._length = b"", 0
            self._run.answered(_now_ns() - self._since_ns)
            self.begin()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.fail(error or ConnectionResetError("the server closed a connection"))
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("the server closed a connection"))


class _Run:
    """What is left to do."""

    def __init__(self, wire: Wire, count: int) -> None:
        self.wire = wire
        self.left = self._open = count
        self.number = itertools.count().__next__
        self.latencies: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, took_ns: int) -> None:
        self.latencies.append(took_ns)
        self._open -= 1
        if not self._open:
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


# -- processes -------------------------------------------------------------------------------------------------------


CORES: Final = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def apart(command: Sequence[str], *, pinned: bool = True, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process on the first core, as long as the body runs on the others; it is ended behind it, if it still runs."""
    pinned = pinned and len(CORES) > 1
    with on_cores(CORES[:1] if pinned else CORES):
        child = subprocess.Popen(command, **options)
    try:
        with on_cores(CORES[1:] if pinned else CORES):
            yield child
    finally:
        if child.poll() is None:
            child.terminate()
        try:
            child.communicate(timeout=AWAY_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """The calling thread, and what it starts, on these cores."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_of(pid: int) -> float:
    """Seconds that all threads of a process have run; 0 where the kernel does not tell."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    except FileNotFoundError:
        return 0.0
    return total / 1e9
