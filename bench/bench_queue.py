"""B8: what do jobs cost, from being produced to being acked, beside one-record writes and beside lists of Redis?

Measured: eight workers, a connection each and one request in flight: produce 16 jobs of 100 bytes, claim 16, ack what
was claimed with its tokens; a queue of class `disk`. CPU is the server's alone, per job. The baseline is one-record
writes over 64 connections (B1): what a job may cost is measured in such requests. Redis, where it is installed, with
`appendfsync everysec`: RPUSH of 16 values, then for each job BLMOVE to a list of the worker's own and LREM when it is
done. That is the pattern its users know, and a blocking call is good for one job. Beside it, without a bound, what
nobody does but Redis can: sixteen BLMOVE pipelined, then sixteen LREM. Leases, fences, counters and redelivery it does
not have either way.

Not measured: the network, TLS, keys, streams of jobs, durable leases. The load comes from one process of Python.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable, Generator
from pathlib import Path

import uvloop

from bench import served
from bench.measure import Arm, Figure, Group, Sample, percentiles_us
from bench.served import DATA, Target
from topics.testing.httpconn import HttpConn

QUEUE = "jobs"
WORKERS = 8
BATCH = 16
_SEQ = re.compile(rb'"\$seq":(\d+),"lease_id":("[^"]+")')

Step = tuple[bytes, Callable[[bytes], int]]
"""A request, and how long the answer will be that begins like this."""
Cycle = Generator[Step, bytes, None]
"""Asks, and is sent each answer."""


def groups(quick: bool) -> list[Group]:
    """One comparison."""
    cycles, writes = (100, 1_000) if quick else (1_500, 20_000)

    def ours(dir: Path) -> Sample:
        with served.served(dir) as target:
            with HttpConn("127.0.0.1", target.port) as http:
                assert http.call("PUT", f"/v0/topics/{QUEUE}", {"type": "queue"}).status == 201
            work(target, http_cycle, WORKERS)
            return work(target, http_cycle, cycles)

    def baseline(dir: Path) -> Sample:
        with served.served(dir) as target:
            return served.load(target, served.write_request(1), served.http_answer, connections=64, count=writes)

    def redis(cycle: Callable[[int, int], Cycle]) -> Callable[[Path], Sample]:
        def measure(dir: Path) -> Sample:
            with served.redis(dir, "everysec") as target:
                return work(target, cycle, cycles)

        return measure

    arms = [Arm("one-record writes", baseline), Arm("jobs", ours)]
    figures = [
        Figure("jobs beside one-record writes", "jobs", "one-record writes", "rate", 0.5),
        Figure("CPU of a job beside a one-record write", "jobs", "one-record writes", "time", None, "cpu_us"),
    ]
    if served.has_redis():
        arms += [Arm("Redis", redis(redis_cycle)), Arm("Redis, pipelined", redis(pipelined_cycle))]
        figures += [
            Figure("rate beside Redis", "jobs", "Redis", "rate", 1.0),
            Figure("CPU beside Redis", "jobs", "Redis", "time", None, "cpu_us"),
            Figure("rate beside Redis, pipelined", "jobs", "Redis, pipelined", "rate", None),
        ]
    missing = [] if served.has_redis() else ["Redis is not installed: not compared."]
    return [Group("produce, claim 16, ack; 8 workers", "job", arms, figures, explain=lambda arms: missing)]


# -- cycles ----------------------------------------------------------------------------------------------------------


def http_cycle(worker: int, number: int) -> Cycle:
    """Sixteen jobs through our server."""
    path, node = f"/v0/topics/{QUEUE}", b'"node":"w%d"' % worker
    record = b'{"data":%b}' % DATA
    yield served.post(path, b'{"records":[%b]}' % b",".join([record] * BATCH)), served.http_answer
    claimed = yield served.post(f"{path}/claim", b'{%b,"max":%d}' % (node, BATCH)), served.http_answer
    found = _SEQ.findall(claimed)
    # Everybody claims as many as they have produced just before: there is always enough.
    assert len(found) == BATCH, claimed
    seqs, ids = (b",".join(one) for one in zip(*found, strict=True))
    body = b'{%b,"seqs":[%b],"lease_ids":[%b]}' % (node, seqs, ids)
    told = yield served.post(f"{path}/ack", body), served.http_answer
    assert b'"acked":%d,' % BATCH in told, told


def redis_cycle(worker: int, number: int) -> Cycle:
    """Sixteen jobs through two lists, one after the other."""
    queue, own = QUEUE.encode(), b"own:%d" % worker
    yield _command(b"RPUSH", queue, *_values(worker, number)), _lines(1)
    for _ in range(BATCH):
        moved = yield _command(b"BLMOVE", queue, own, b"LEFT", b"RIGHT", b"0"), _lines(2)
        told = yield _command(b"LREM", own, b"1", moved.split(b"\r\n")[1]), _lines(1)
        assert told == b":1\r\n", told


def pipelined_cycle(worker: int, number: int) -> Cycle:
    """The same, sixteen commands at a time."""
    queue, own = QUEUE.encode(), b"own:%d" % worker
    yield _command(b"RPUSH", queue, *_values(worker, number)), _lines(1)
    moved = yield _command(b"BLMOVE", queue, own, b"LEFT", b"RIGHT", b"0") * BATCH, _lines(2 * BATCH)
    values = moved.split(b"\r\n")[1:-1:2]
    told = yield b"".join([_command(b"LREM", own, b"1", value) for value in values]), _lines(BATCH)
    assert told == b":1\r\n" * BATCH, told


def _values(worker: int, number: int) -> list[bytes]:
    return [b"%d.%d.%d %b" % (worker, number, n, DATA) for n in range(BATCH)]


def _command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _lines(count: int) -> Callable[[bytes], int]:
    def answer(data: bytes) -> int:
        assert data[:1] in b":$", data[:200]
        return len(data) if data.count(b"\r\n") == count else 0

    return answer


# -- workers ---------------------------------------------------------------------------------------------------------


def work(target: Target, make: Callable[[int, int], Cycle], cycles: int) -> Sample:
    """So many cycles, shared out over the workers."""
    return uvloop.run(_work(target, make, cycles))


async def _work(target: Target, make: Callable[[int, int], Cycle], cycles: int) -> Sample:
    loop = asyncio.get_running_loop()
    run = _Run(make, cycles)
    workers = [
        (await loop.create_connection(lambda n=n: _Worker(run, n), "127.0.0.1", target.port))[1]  # type: ignore[misc]
        for n in range(WORKERS)
    ]
    gc.collect()
    cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
    for worker in workers:
        worker.begin()
    await run.done
    wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
    return Sample(cycles * BATCH, wall_s, cpu_s, percentiles_us(run.latencies))


class _Run:
    """What is left to do."""

    def __init__(self, make: Callable[[int, int], Cycle], cycles: int) -> None:
        self.make = make
        self.left = self.open = cycles
        self.latencies: list[int] = []
        self.done = asyncio.get_running_loop().create_future()


class _Worker(asyncio.Protocol):
    """One connection that runs cycles."""

    def __init__(self, run: _Run, number: int) -> None:
        self._run = run
        self._number = number
        self._buffer = b""
        self._length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def begin(self) -> None:
        """The next cycle, if there is one."""
        run = self._run
        if run.left:
            run.left -= 1
            self._since_ns = time.perf_counter_ns()
            self._cycle = run.make(self._number, run.left)
            self._send(next(self._cycle))

    def _send(self, step: Step) -> None:
        request, self._answer = step
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            if not self._length:
                self._length = self._answer(self._buffer)
            if self._length and len(self._buffer) >= self._length:
                assert len(self._buffer) == self._length, "an answer of another length than it says"
                self._answered()
        except Exception as error:  # noqa: BLE001 - any failure ends the run
            if not self._run.done.done():
                self._run.done.set_exception(error)

    def _answered(self) -> None:
        answer, self._buffer, self._length = self._buffer, b"", 0
        try:
            self._send(self._cycle.send(answer))
        except StopIteration:
            run = self._run
            run.latencies.append(time.perf_counter_ns() - self._since_ns)
            run.open -= 1
            if not run.open:
                run.done.set_result(None)
            self.begin()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._run.done.done():
            self._run.done.set_exception(error or ConnectionResetError("the server closed a connection"))
