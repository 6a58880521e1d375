"""B1, B2: what does a write over HTTP cost beside decoding its body and answering, and beside Redis and NATS?

Measured: one-record writes over 64 connections to one topic of class `disk` (B1), and 100-record writes over 16 (B2),
100 bytes per record, one request in flight per connection, long enough that checkpoints and syncs of every second are
in it. CPU is the server's alone, per request and per record. The
baseline is the same HTTP layer with a handler that decodes the body and answers with as many bytes, a request at a
time; where the kernel has the connections it takes plain writes past that handler, so that a write may cost less than
it. Peers, where they are installed, each with the same client over the same number of connections: Redis Streams, XADD
one by one or pipelined by a hundred, `appendfsync everysec`; NATS JetStream, PUB with an acknowledgement for each
record, one by one or pipelined by a hundred, a file store that syncs as it does by default. Every server has the first
core to itself, the load has the others.

Checked: the log was written at most once per tick, in no more batches than requests, with no more syncs than batches;
every answer has the length it says. Not measured: the network, TLS, keys, several topics, more cores than one for the
server: NATS could use them, Redis and we hardly. The load comes from one process of Python, which was seen to drive
Redis at 130 000 one-record requests per second and is then as busy as the server; a quicker one would not look it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bench import served
from bench.measure import Arm, Figure, Group, Sample
from topics.cli import peers
from topics.cli.load import Target, Wire
from topics.codec import kernel

CPU_BOUNDS: tuple[float, float | None] = (2.0, None) if kernel.name() == "pure" else (1.6, 1.5)
"""Beside decoding and answering, of one record and of a hundred; the server runs the same kernel as the benchmark."""


def groups(quick: bool) -> list[Group]:
    """One comparison for each size of write."""
    return [
        writes("one record, 64 connections", 1, 64, 1_000 if quick else 200_000, CPU_BOUNDS[0], 0.9),
        writes("100 records, 16 connections", 100, 16, 100 if quick else 20_000, CPU_BOUNDS[1], 3.0),
    ]


def writes(name: str, size: int, connections: int, count: int, cpu_bound: float | None, rate_bound: float) -> Group:
    """Writes of one size."""
    looked_at: list[Path] = []

    def decoded(dir: Path) -> Sample:
        with served.served(dir / "store", "decode") as target:
            served.driven(target, served.writes(size), connections=1, count=5)
            return served.driven(target, served.writes(size), connections=connections, count=count, units=size)

    def ours(dir: Path) -> Sample:
        if not looked_at:
            served.one_write_per_tick(dir, size, connections)
            looked_at.append(dir)
        with served.served(dir / "store") as target:
            served.driven(target, served.writes(size), connections=1, count=5)
            with served.checked(target, count):
                return served.driven(target, served.writes(size), connections=connections, count=count, units=size)

    def peer(start: Callable[[Path], AbstractContextManager[Target]], wire: Wire) -> Callable[[Path], Sample]:
        def run(dir: Path) -> Sample:
            with start(dir) as target:
                return served.driven(target, wire, connections=connections, count=count, units=size)

        return run

    arms = [Arm("decode and answer", decoded), Arm("write", ours)]
    figures = [
        Figure("CPU of a write", "write", "decode and answer", "time", cpu_bound, "cpu_us"),
        Figure("rate of writes beside decoding", "write", "decode and answer", "rate"),
    ]
    if peers.installed("redis"):
        arms.append(Arm("Redis", peer(lambda dir: peers.redis(dir, "everysec"), peers.xadd(served.DATA, size))))
        figures += beside("Redis", "write", rate_bound)
    if peers.installed("nats"):
        arms.append(Arm("NATS", peer(peers.nats, peers.publish(served.DATA, size))))
        figures += beside("NATS", "write", None)
    return Group(name, "record", arms, figures, explain=lambda arms: missing())


def beside(peer: str, arm: str, rate_bound: float | None) -> list[Figure]:
    """The figures that set an arm beside a peer."""
    return [
        Figure(f"rate beside {peer}", arm, peer, "rate", rate_bound),
        Figure(f"CPU beside {peer}", arm, peer, "time", None, "cpu_us"),
    ]


def missing() -> list[str]:
    """A sentence for each peer that is not here."""
    names = {"redis": "Redis", "nats": "NATS"}
    return [f"{names[name]} is not installed: not compared." for name in peers.NAMES if not peers.installed(name)]
