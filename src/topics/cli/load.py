"""Load for measurements: so many connections with one request in flight on each, and a server on a core of its own.

    Wire       what a kind of server is sent, and where its answers end
    drive      so many requests over so many connections; every answer is checked for its length, a socket error ends it
    apart      a process on the first core; whoever started it has the others until it ends [P-3]
    cpu_of     what a process has used, all threads, from the kernel's own count [P-2]

The benchmarks of the repository and `topics bench` share this, so that all servers meet the same client: bytes that
were made before, sockets that are read as something comes, no parsing beyond the length. It is as little of Python as
can be, since a client that needs longer than a server measures itself. Runs on the main thread.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import select
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, Final, NamedTuple

from topics.clock import SystemClock
from topics.errors import TopicsError

WAIT_S: Final = 60.0
"""Within which a server takes a connection in, and says something while requests are in flight."""
RECEIVE_BYTES: Final = 64 << 10
READABLE: Final = 1
"""As `select.EPOLLIN` and `select.POLLIN`, of which not every system has both."""
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
    try:
        return _driven(target, [_Run(wire, count) for wire in wires], min(connections, count))
    except OSError as error:
        raise Unexpected(f"{target.host}:{target.port}: {error}") from error


def _driven(target: Target, runs: Sequence[_Run], connections: int) -> Driven:
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(_Client(target, run))) for run in runs for _ in range(connections)]
        poll, reads = _poll(clients), {client.fileno(): client.read for client in clients}
        gc.collect()
        cpu_s, began_ns = cpu_of(target.pid), _now_ns()
        for client in clients:
            client.begin(_now_ns())
        while any(run.open for run in runs):
            for number, _ in poll():
                reads[number]()
        wall_s, cpu_s = (_now_ns() - began_ns) / 1e9, cpu_of(target.pid) - cpu_s
    return Driven(wall_s, cpu_s, [one for run in runs for one in run.latencies])


def _poll(clients: Sequence[_Client]) -> Callable[[], list[tuple[int, int]]]:
    """Waits for those on which something has come."""
    has_epoll = hasattr(select, "epoll")
    poller = select.epoll() if has_epoll else select.poll()
    for client in clients:
        poller.register(client.fileno(), READABLE)
    wait, most = poller.poll, WAIT_S if has_epoll else WAIT_S * 1000

    def poll() -> list[tuple[int, int]]:
        found = wait(most)
        if not found:
            raise TimeoutError(f"nothing came for {WAIT_S:.0f} s")
        return found

    return poll


class _Run:
    """What is left to do."""

    def __init__(self, wire: Wire, count: int) -> None:
        self.wire = wire
        self.left = self.open = count
        """What was not sent yet, and not answered yet."""
        self.number = itertools.count().__next__
        self.latencies: list[int] = []


class _Client:
    """One connection, one request in flight. Its socket blocks: it is read when something has come, and a request is
    sent when nothing else is under way.
    """

    def __init__(self, target: Target, run: _Run) -> None:
        self._run = run
        self._answer, self._ping = run.wire.answer, run.wire.ping
        hello, self._request = run.wire.hello, run.wire.request
        if own := run.wire.own:
            number = b"%0*d" % (len(own), run.number())
            hello, self._request = hello.replace(own, number), self._request.replace(own, number)
        plain = socket.create_connection((target.host, target.port), WAIT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = plain if target.tls is None else target.tls.wrap_socket(plain, server_hostname=target.host)
        except BaseException:
            plain.close()
            raise
        self._receive, self._send = self._sock.recv, self._sock.sendall
        self._buffer = b""
        self._length = 0
        self._since_ns = 0
        """When the request was sent that is in flight; 0: there is none."""
        try:
            if hello:
                self._greet(hello)
            self._sock.settimeout(None)
        except BaseException:
            self.close()
            raise

    def _greet(self, hello: bytes) -> None:
        said = b""
        self._send(hello)
        while self._run.wire.ready not in said:
            said += self._came()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def begin(self, now_ns: int) -> None:
        """Send the next request, if there is one."""
        run = self._run
        if run.left:
            run.left -= 1
            self._since_ns = now_ns
            self._send(self._request)

    def read(self) -> None:
        """Take what has come."""
        data = self._came()
        if isinstance(self._sock, ssl.SSLSocket):
            while self._sock.pending():  # of which no poll tells
                data += self._came()
        if self._ping and self._ping in data:
            data = data.replace(self._ping, b"")
            self._send(self._run.wire.pong)
            if not data:
                return
        if not self._since_ns:
            raise Unexpected(f"something came that nobody asked for: {data[:200]!r}")
        if self._buffer:
            data = self._buffer + data
        length = self._length or self._answer(data)
        if not length or len(data) < length:
            self._buffer, self._length = data, length
        elif len(data) == length:
            now_ns, run = _now_ns(), self._run
            run.latencies.append(now_ns - self._since_ns)
            run.open -= 1
            self._buffer, self._length, self._since_ns = b"", 0, 0
            self.begin(now_ns)
        else:
            raise Unexpected("an answer has another length than it says")

    def _came(self) -> bytes:
        data = self._receive(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the server closed a connection")
        return data


def new_loop_run(work: Any) -> Any:
    """Run a coroutine on the quickest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


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
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return 0.0
    for task in tasks:
        # One that has ended meanwhile took little, and others go on.
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9
