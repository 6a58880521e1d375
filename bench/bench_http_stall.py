"""B16: does a large body, or a crowd of idle connections, make others wait?

One client writes single small records over one kept connection, one after another, and takes the time of each: first
alone, then beside 2,000 kept connections that say nothing, then beside these and one body of 64 MiB (10,000 records)
that another process sends as fast as the server takes it. The last arm writes until the large body is answered. The
p99 of the small writes may at most double from arm to arm (13 §5).

Beside the ratios: the longest single wait, and how many small writes were answered while the large one was taken in.
The server, the small client and the large one are three processes, the server on a core of its own where there are two.
The large client takes the other one only while the small one waits for an answer (`SCHED_IDLE`, sends of 64 KiB): else
what the two take from each other would be measured. Checked: every answer is 200 or 201, counts are complete.
Not measured: many large bodies at once, gzip, HTTP/2, streams.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.measure import Arm, Figure, Group, Sample, percentiles_us, stopwatch
from bench.served import served

CONNECTIONS = 2_000
LARGE_BYTES = 64 << 20
LARGE_RECORDS = 10_000
SEND_BYTES = 64 << 10
"""Of one call: within it the system may not let anybody else run."""
SMALL = b'{"records":[{"data":{"kg":412.5,"line":"dock-7"},"tag":"pallet:A19"}]}'


def groups(quick: bool) -> list[Group]:
    """The comparison of this file."""
    writes = 300 if quick else 3_000
    crowd = 100 if quick else CONNECTIONS
    size = (8 << 20) if quick else LARGE_BYTES
    alone, beside, during = "alone", f"beside {crowd} connections", f"and {size >> 20} MiB"
    arms = [
        Arm(alone, partial(small_writes, writes=writes, crowd=0, large=0)),
        Arm(beside, partial(small_writes, writes=writes, crowd=crowd, large=0)),
        Arm(during, partial(small_writes, writes=0, crowd=crowd, large=size)),
    ]
    figures = [
        Figure(f"p99, {beside}", beside, alone, "time", 2.0, "p99_us"),
        Figure(f"p99, {during}", during, beside, "time", 2.0, "p99_us"),
        Figure(f"p50, {during}", during, beside, "time", None, "p50_us"),
        Figure("longest wait in ms", during, None, "time", None, "max_ms"),
    ]
    return [Group("small writes", "write", arms, figures)]


def small_writes(dir: Path, *, writes: int, crowd: int, large: int) -> Sample:
    """So many small writes, or as many as fit beside one large body."""
    with served(dir / "store") as (port, *_), ExitStack() as others:
        for _ in range(crowd):
            others.enter_context(_connected(port))
        with _connected(port) as client:
            post = partial(_post, client, _request("small", SMALL))
            for _ in range(200):
                post()
            if not large:
                return _timed(post, _counted(writes))
            with _uploading(port, large) as is_done:
                return _timed(post, is_done)


def _timed(post: Callable[[], None], is_done: Callable[[], bool]) -> Sample:
    latencies: list[int] = []
    with stopwatch() as watch:
        while not is_done():
            start = time.perf_counter_ns()
            post()
            latencies.append(time.perf_counter_ns() - start)
    return watch.sample(len(latencies), **percentiles_us(latencies), max_ms=max(latencies) / 1e6)


def _counted(number: int) -> Callable[[], bool]:
    left = iter(range(number))
    return lambda: next(left, None) is None


@contextmanager
def _uploading(port: int, size: int) -> Iterator[Callable[[], bool]]:
    """A process that sends one large body; it begins when told to and ends with the answer."""
    command = [sys.executable, "-m", "bench.bench_http_stall", str(port), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"prepared\n"
        process.stdin.write(b"go\n")
        process.stdin.flush()
        yield lambda: process.poll() is not None
        assert process.wait() == 0


def upload(port: int, size: int) -> None:
    """Send one large body when a line comes; runs as a process."""
    # A little of it is blanks between records, so that its frames fit the log's queue beside others (S-71).
    each = size // LARGE_RECORDS - 13
    record = b'{"data":"%b"}' % (b"x" * (each * 15 // 16))
    body = b'{"records":[%b]}' % b",".join([record.ljust(each + 11)] * LARGE_RECORDS)
    whole = _request("large?return_seqs=false", body)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("prepared", flush=True)
    sys.stdin.readline()
    with _connected(port) as client:
        _post(client, whole)


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def _request(topic: str, body: bytes) -> bytes:
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _post(client: socket.socket, whole: bytes) -> None:
    for at in range(0, len(whole), SEND_BYTES):
        client.sendall(memoryview(whole)[at : at + SEND_BYTES])
    answer = client.recv(65536)
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), answer


if __name__ == "__main__":
    upload(int(sys.argv[1]), int(sys.argv[2]))
