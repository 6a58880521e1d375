"""B1, B2: what does a write over HTTP cost beside decoding its body and answering, and beside Redis Streams?

Measured: one-record writes over 64 connections to one topic of class `disk` (B1), and 100-record writes over 16 (B2),
100 bytes per record, one request in flight per connection. CPU is the server's alone, per request and per record. The
baseline is the same HTTP layer with a handler that decodes the body and answers with as many bytes: what is on top is
the log. Redis, where it is installed: XADD one by one, or pipelined by a hundred, `appendfsync everysec`, the same
client over the same number of connections.

Not measured: the network, TLS, keys, several topics. The load comes from one process of Python, which is about as
quick as what it measures; above some 60 000 requests per second it is the client that is measured.
"""

from __future__ import annotations

from pathlib import Path

from bench import served
from bench.measure import Arm, Figure, Group, Sample
from topics.codec import kernel

CPU_BOUNDS: tuple[float, float | None] = (2.0, None) if kernel.name() == "pure" else (1.6, 1.5)
"""Beside decoding and answering, of one record and of a hundred; the server runs the same kernel as the benchmark."""


def groups(quick: bool) -> list[Group]:
    """One comparison for each size of write."""
    return [
        writes("one record, 64 connections", 1, 64, 1_000 if quick else 20_000, CPU_BOUNDS[0], 0.9),
        writes("100 records, 16 connections", 100, 16, 100 if quick else 1_500, CPU_BOUNDS[1], 3.0),
    ]


def writes(name: str, size: int, connections: int, count: int, cpu_bound: float | None, rate_bound: float) -> Group:
    """Writes of one size."""
    request, commands = served.write_request(size), served.xadd(size)

    def ours(dir: Path, kind: str) -> Sample:
        with served.served(dir, kind) as target:
            served.load(target, request, served.http_answer, connections=1, count=5)
            return served.load(target, request, served.http_answer, connections=connections, count=count, units=size)

    def redis(dir: Path) -> Sample:
        with served.redis(dir, "everysec") as target:
            answer = served.redis_answer(size)
            return served.load(target, commands, answer, connections=connections, count=count, units=size)

    arms = [Arm("decode and answer", lambda dir: ours(dir, "decode")), Arm("write", lambda dir: ours(dir, "write"))]
    figures = [
        Figure("CPU of a write", "write", "decode and answer", "time", cpu_bound, "cpu_us"),
        Figure("rate of writes beside decoding", "write", "decode and answer", "rate"),
    ]
    if served.has_redis():
        arms.append(Arm("Redis", redis))
        figures += [
            Figure("rate beside Redis", "write", "Redis", "rate", rate_bound),
            Figure("CPU beside Redis", "write", "Redis", "time", None, "cpu_us"),
        ]
    return Group(name, "record", arms, figures, explain=lambda arms: [] if served.has_redis() else [MISSING])


MISSING = "Redis is not installed: not compared."
