"""B3: what does a durable write over HTTP cost beside the bare write and sync, our own `disk`, Redis and NATS?

Three comparisons of 100-byte records, one record per request, one request in flight per connection; every server has
the first core to itself, the load has the others.

64 writers     class `fsync` and class `disk`; Redis Streams with `appendfsync always`; NATS JetStream with
               `sync_interval: always`, where the installed one can (from 2.10 on). Records per sync are told as a
               share of the writers.
lone writer    class `fsync`, one connection, beside `os.pwrite` + `os.fdatasync` of the same WAL
               frames: its median latency may be 1.6 times the raw loop's and 0.5 ms; Redis and NATS told beside it.
shards         class `fsync`, 64 connections over 8 topics that are spread evenly over 1, 2, 4 and 8 shards, beside as
               many raw loops in parallel, each with its own file. The default, one shard, has to keep up with the best.

Checked: no more batches than requests, no more syncs than batches, every answer has the length it says. Not measured:
writes of several records, the network, TLS, keys. The same without HTTP is `engine_commit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import served
from bench.bench_engine_commit import SHARDS, TOPICS, WRITERS, raw
from bench.bench_http_write import missing
from bench.measure import Arm, Figure, Group, Sample, curve_us
from topics.cli import peers
from topics.cli.load import Wire, drive, drive_all
from topics.codec.place import shard_of
from topics.engine.config import EngineConfig

RAW = "pwrite + fdatasync"
NO_SYNC_ALWAYS = "NATS {version} cannot sync every write (2.10 can): not compared."


def groups(quick: bool) -> list[Group]:
    """The comparisons of this file."""
    return [
        many_writers(640 if quick else 10_000),
        lone_writer(100 if quick else 2_000),
        shards(640 if quick else 10_000),
    ]


def many_writers(count: int) -> Group:
    """Writers that share syncs."""
    fsync, disk = "fsync", "disk"
    arms = [
        Arm(RAW, partial(raw, count=count // 10, loops=1)),
        Arm(fsync, partial(written, durability="fsync", connections=WRITERS, count=count)),
        Arm(disk, partial(written, durability="disk", connections=WRITERS, count=count)),
    ]
    figures = [
        Figure("fsync beside disk", fsync, disk, "rate", 0.6),
        Figure("records per sync and writer", fsync, None, "rate", 0.5, "sharing"),
        Figure("fsync beside the raw loop", fsync, RAW, "rate"),
        Figure("CPU of fsync beside disk", fsync, disk, "time", None, "cpu_us"),
    ]
    for name, arm in _peers(WRITERS, count).items():
        arms.append(arm)
        figures += [
            Figure(f"rate beside {name}", fsync, arm.name, "rate", 1.0),
            Figure(f"CPU beside {name}", fsync, arm.name, "time", None, "cpu_us"),
        ]
    return Group(f"{WRITERS} writers over HTTP", "record", arms, figures, explain=_explain)


def lone_writer(count: int) -> Group:
    """One writer that waits for every record."""
    arms = [
        Arm(RAW, partial(raw, count=count, loops=1)),
        Arm("fsync", partial(written, durability="fsync", connections=1, count=count)),
    ]
    figures = [
        Figure("p50 less 0.5 ms", "fsync", RAW, "time", 1.6, "p50_us", 500.0),
        Figure("p50", "fsync", RAW, "time", None, "p50_us"),
    ]
    for name, arm in _peers(1, count).items():
        arms.append(arm)
        figures.append(Figure(f"p50 beside {name}", "fsync", arm.name, "time", None, "p50_us"))
    return Group("lone writer over HTTP", "record", arms, figures)


def _peers(connections: int, count: int) -> dict[str, Arm]:
    def redis(dir: Path) -> Sample:
        with peers.redis(dir, "always") as target:
            return served.driven(target, peers.xadd(served.DATA, 1), connections=connections, count=count)

    def nats(dir: Path) -> Sample:
        with peers.nats(dir, sync_always=True) as target:
            return served.driven(target, peers.publish(served.DATA, 1), connections=connections, count=count)

    found = {}
    if peers.installed("redis"):
        found["Redis"] = Arm("Redis, always", redis)
    if peers.can_sync_always():
        found["NATS"] = Arm("NATS, sync always", nats)
    return found


def written(dir: Path, *, durability: str, connections: int, count: int) -> Sample:
    """One-record writes of a class."""
    with served.served(dir / "store") as target:
        served.create(target, served.TOPIC, {"durability": durability})
        _settle(target, [served.writes(1)])
        with served.checked(target, count) as grown:
            sample = served.driven(target, served.writes(1), connections=connections, count=count)
    return _with_syncs(sample, grown, count, connections) if durability == "fsync" else sample


def _with_syncs(sample: Sample, grown: Mapping[str, float], count: int, writers: int) -> Sample:
    assert grown["fsyncs"] > 0, grown
    extra = {"records_per_sync": count / grown["fsyncs"], "records_per_batch": count / grown["batches"]}
    return sample._replace(extra={**sample.extra, **extra, "sharing": extra["records_per_sync"] / writers})


def _settle(target: served.Target, wires: list[Wire]) -> None:
    """Leave the run's first WAL files, which are opened by the first writes, and begin the next ones."""
    for wire in wires:
        drive(target, wire, connections=1, count=2)
    drive(target, Wire(served.post("/v0/checkpoint", b""), served.http_answer), connections=1, count=1)
    for wire in wires:
        drive(target, wire, connections=1, count=2)


def shards(count: int) -> Group:
    """The curve over the number of shards."""
    arms = [Arm(f"{n} raw", partial(raw, count=count // 10, loops=n)) for n in SHARDS]
    arms += [Arm(f"{n} shards", partial(spread, shards=n, count=count)) for n in SHARDS]
    default = EngineConfig().wal_shards
    figures = [
        Figure(f"{default} (the default) beside {n}", f"{default} shards", f"{n} shards", "rate", 0.9)
        for n in SHARDS
        if n != default
    ]
    figures += [Figure(f"{n} raw loops beside one", f"{n} raw", "1 raw", "rate") for n in SHARDS[1:]]
    return Group(f"shards over HTTP, {TOPICS} topics, {WRITERS} writers", "record", arms, figures, explain=_explain)


def spread(dir: Path, *, shards: int, count: int) -> Sample:
    """One-record writes to topics that lie evenly over the shards."""
    with served.served(dir / "store", wal_shards=shards) as target:
        names: dict[int, str] = {}
        id = 0
        while len(names) < TOPICS:
            id += 1
            served.create(target, f"topic-{id}", {"durability": "fsync"})
            names.setdefault(shard_of(id, TOPICS), f"topic-{id}")
        wires = [Wire(served.write_request(1, name), served.http_answer) for name in names.values()]
        _settle(target, wires)
        with served.checked(target, count) as grown:
            found = drive_all(target, wires, connections=WRITERS // TOPICS, count=count // TOPICS)
    sample = Sample(count // TOPICS * TOPICS, found.wall_s, found.cpu_s, curve_us(found.latencies_ns))
    return _with_syncs(sample, grown, sample.units, WRITERS)


def _explain(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    told = ("records_per_sync", "records_per_batch")
    rows = [(name, *(row[one]["median"] for one in told)) for name, row in arms.items() if told[0] in row]
    said = [f"{name}: {sync:.1f} records per sync, {batch:.1f} per write." for name, sync, batch in rows]
    if peers.installed("nats") and not peers.can_sync_always():
        said.append(NO_SYNC_ALWAYS.format(version=peers.version("nats")))
    return said + missing()
