"""B3: what does group commit of the engine cost and gain beside the bare write and sync?

Three comparisons of 100-byte records, one record per append, each beside `os.pwrite` + `os.fdatasync` of the same WAL
frames into a file that is allocated, written with zeros and synced.

lone writer   class `fsync`, one thread and one asyncio task; its latency may be 1.6 times the raw loop's and 0.5 ms.
64 writers    classes `fsync` and `disk`, 64 asyncio tasks on one loop through `engine.aio` and 64 threads. Writers
              have to share syncs: records per sync is told as a share of the writers. The tasks carry the bounds:
              they share one event loop, as the writers of a server do. Threads, which miss them, are told beside
              them without a bound: each record has to hand the interpreter from thread to thread, which costs more
              than its share of a sync (decision 0004).
shards        class `fsync`, 64 tasks over 8 topics that are spread evenly over 1, 2, 4 and 8 shards, beside as many
              raw loops in parallel, each with its own file. The default, one shard, has to keep up with the best.

Checked: seqs and counts are complete, no more syncs than written batches. Latencies (p50, p99) are of single calls and
contain the wait for others. Not measured: batches of several records, rotation under load, HTTP, and other servers:
Redis and NATS belong to the benchmark of the server.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Arm, Figure, Group, Sample, each, percentiles_us, stopwatch
from bench.store import NEVER_MS, records
from topics.codec import envelope, frame
from topics.codec.place import shard_of
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFile

WRITERS = 64
SHARDS = (1, 2, 4, 8)
TOPICS = 8
WAL_FILE_BYTES = 16 << 20
"""Room for everything in one file that is less than half full: none is prepared or begun while time is taken."""


class Writers(NamedTuple):
    """So many writers; `run` lets them append all records, each one by one to its own of the topics."""

    number: int
    run: Callable[[Engine, Sequence[str], Sequence[Any]], Sample]


def groups(quick: bool) -> list[Group]:
    """The comparisons of this file."""
    return [
        lone_writer(200 if quick else 2_000),
        many_writers(1_000 if quick else 10_000),
        shards(1_000 if quick else 10_000),
    ]


def lone_writer(count: int) -> Group:
    """The latency of one writer that waits for every record."""
    arms = [
        Arm("pwrite + fdatasync", partial(raw, count=count, loops=1)),
        Arm("fsync, 1 thread", partial(appended, count=count, durability="fsync", writers=in_threads(1))),
        Arm("fsync, 1 task", partial(appended, count=count, durability="fsync", writers=in_tasks(1))),
    ]
    bare, *ours = (arm.name for arm in arms)
    figures = [Figure(f"p50 less 0.5 ms, {name}", name, bare, "time", 1.6, "p50_us", 500.0) for name in ours]
    figures += [Figure(f"p50, {name}", name, bare, "time", None, "p50_us") for name in ours]
    return Group("lone writer", "record", arms, figures)


def many_writers(count: int) -> Group:
    """Writers that share syncs, and the same ones where none has to wait for a sync."""
    bare = "pwrite + fdatasync"
    arms = [Arm(bare, partial(raw, count=count // 10, loops=1))]
    figures = []
    kinds = (("tasks", in_tasks(WRITERS), 0.6, 0.5), ("threads", in_threads(WRITERS), None, None))
    for kind, writers, of_disk, of_writers in kinds:
        fsync, disk = f"fsync, {WRITERS} {kind}", f"disk, {WRITERS} {kind}"
        arms += [
            Arm(fsync, partial(appended, count=count, durability="fsync", writers=writers)),
            Arm(disk, partial(appended, count=count, durability="disk", writers=writers)),
        ]
        figures += [
            Figure(f"{fsync} beside disk", fsync, disk, "rate", of_disk),
            Figure(f"{kind}: records per sync and writer", fsync, None, "rate", of_writers, "sharing"),
            Figure(f"{fsync} beside the raw loop", fsync, bare, "rate"),
        ]
    return Group(f"{WRITERS} writers", "record", arms, figures, explain=_explain_sharing)


def _explain_sharing(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    told = ("records_per_sync", "records_per_batch")
    rows = [(name, *(row[one]["median"] for one in told)) for name, row in arms.items() if told[0] in row]
    return [f"{name}: {sync:.1f} records per sync, {batch:.1f} per write." for name, sync, batch in rows]


def shards(count: int) -> Group:
    """The curve over the number of shards."""
    fsync = partial(appended, count=count, durability="fsync", writers=in_tasks(WRITERS), topics=TOPICS)
    arms = [Arm(f"{n} raw", partial(raw, count=count // 10, loops=n)) for n in SHARDS]
    arms += [Arm(f"{n} shards", partial(fsync, shards=n)) for n in SHARDS]
    default = EngineConfig().wal_shards
    figures = [
        Figure(f"{default} (the default) beside {n}", f"{default} shards", f"{n} shards", "rate", 0.9)
        for n in SHARDS
        if n != default
    ]
    figures += [Figure(f"{n} raw loops beside one", f"{n} raw", "1 raw", "rate") for n in SHARDS[1:]]
    return Group(f"shards, {TOPICS} topics, {WRITERS} tasks", "record", arms, figures, explain=_explain_sharing)


def raw(dir: Path, *, count: int, loops: int) -> Sample:
    """Write and sync the frames of single records, shared out over threads with a file each."""
    size, frames = _frames(count)

    def write(fd: int, n: int) -> None:
        os.pwrite(fd, frames[n], n * size)
        os.fdatasync(fd)

    with ExitStack() as files:
        fds = [files.enter_context(_prepared(dir / f"raw-{n}", count * size)) for n in range(loops)]
        return each([partial(write, fd) for fd in fds], count)


def _frames(count: int) -> tuple[int, list[bytes]]:
    ts = time.time_ns() // 1_000_000
    rows = [(None, None, envelope.build(one["data"])) for one in records(count)]
    frames = [frame.encode_appends([row], 1, n + 1, ts, durable=True) for n, row in enumerate(rows)]
    return len(frames[0]), frames


@contextmanager
def _prepared(path: Path, size: int) -> Iterator[int]:
    file = OsFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        file.allocate(size)
        file.pwrite(bytes(size), 0)
        file.fsync()
        yield file.fd
    finally:
        file.close()


def appended(dir: Path, *, count: int, durability: str, writers: Writers, topics: int = 1, shards: int = 1) -> Sample:
    """Append records to a fresh store and check what came out [P-4]."""
    given = [[one] for one in records(count)]
    config = EngineConfig(wal_shards=shards, wal_file_bytes=WAL_FILE_BYTES, checkpoint_ms=NEVER_MS)
    with Engine.open(str(dir / "store"), config) as engine:
        names = _spread(engine, durability, topics)
        _warm_up(engine, names, given[0])
        before = engine.metrics()
        sample = writers.run(engine, names, given)
        after = engine.metrics()
        assert sum(engine.state(name).count for name in names) == count + 2 * topics
    syncs, batches, frames = (
        int(after[key] - before[key])
        for key in (f"topics_wal_{what}_total" for what in ("fsyncs", "batches", "frames"))
    )
    assert count <= frames
    assert batches <= frames
    if durability != "fsync":
        return sample
    # What was not synced before it began, and a mark that says so, may bring one more each.
    assert 0 < syncs <= batches + 2 * shards, f"{syncs} syncs, {batches} batches"
    extra = {"records_per_sync": count / syncs, "records_per_batch": count / batches}
    return sample._replace(extra={**sample.extra, **extra, "sharing": count / syncs / writers.number})


def _warm_up(engine: Engine, names: Sequence[str], given: Sequence[Any]) -> None:
    """Leave the run's first WAL file, which is opened by the first write, and begin the next one in every shard."""
    for name in names:
        engine.append(name, given)
    engine.checkpoint(full=True)
    for name in names:
        engine.append(name, given)


def _spread(engine: Engine, durability: str, topics: int) -> list[str]:
    """Names of as many topics as asked for, no two of them in one of eight shards."""
    names: dict[int, str] = {}
    id = 0
    while len(names) < topics:
        id += 1
        name = f"topic-{id}"
        engine.put_topic(name, {"durability": durability})
        names.setdefault(shard_of(id, TOPICS), name)
    return list(names.values())


def in_threads(writers: int) -> Writers:
    """Blocking appends by so many threads."""

    def run(engine: Engine, names: Sequence[str], given: Sequence[Any]) -> Sample:
        def call(name: str, n: int) -> None:
            engine.append(name, given[n])

        return each([partial(call, names[which % len(names)]) for which in range(writers)], len(given))

    return Writers(writers, run)


def in_tasks(writers: int) -> Writers:
    """Appends by so many tasks on one event loop."""

    async def work(engine: Engine, names: Sequence[str], given: Sequence[Any]) -> Sample:
        latencies: list[int] = []

        async def task(which: int) -> None:
            name = names[which % len(names)]
            for n in range(which, len(given), writers):
                start = time.perf_counter_ns()
                await engine.aio.append(name, given[n])
                latencies.append(time.perf_counter_ns() - start)

        with stopwatch() as watch:
            await asyncio.gather(*(task(which) for which in range(writers)))
        assert len(latencies) == len(given)
        return watch.sample(len(given), **percentiles_us(latencies))

    return Writers(writers, lambda engine, names, given: asyncio.run(work(engine, names, given)))
