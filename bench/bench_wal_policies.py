"""B15: what do the sync policies, the reading paths and segment creation of the WAL library cost?

Four comparisons of 1 KiB records, each beside bare system calls on the same bytes:

buffered appends   `os` and `batch(5)`, one thread, beside `os.pwrite`. `batch(5)` syncs about every 5 ms.
durable appends    `always` with one thread and with eight, and 64 asyncio tasks through `topics.wal.aio`,
                   beside `os.pwrite` + `os.fdatasync` by one thread. The raw loop writes into a freshly
                   allocated, not yet written file. The log starts with such a file too, and writes zeros
                   ahead: syncing blocks that were written before is cheaper. What of its advantage is
                   due to that shows the same loop over a file of written zeros. With eight threads each
                   record still has to wake the thread that waits for it, so the cost of one hand-over
                   between two threads is measured beside it: where a sync takes a few hand-overs only,
                   that and not the disk is the limit. Where the threads may run decides what one costs: waking
                   another core, above all a virtual one, takes several times as long as changing threads on one.
                   So everything is done twice, on all cores and, as servers are measured, on one.
reads              a whole log in order, and 10 000 times `read_from` a random position and one record,
                   beside `os.pread` of 1 KiB.
descriptors        a log of 1 MiB segments read in order, 100 records per visit, the visits going round the
                   segments, so that with `fd_cache_size=1` every visit opens its file anew and with the
                   cache large enough none does. The same with one record per visit shows the bare cost
                   of opening; it is no sequential read and has no bound.
segment creation   from nothing to a durable directory entry, with and without preallocation of 128 MiB,
                   beside open, fallocate, fsync and directory fsync.

Latencies (p50, p99) are of single calls, timed alike on both sides; with threads or tasks they contain the
wait for others. Not measured: cold reads (everything read is in the page cache), rotation, building `Record`
objects.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import Aim, Arm, Figure, Group, Sample, each, percentiles_us, stopwatch
from bench.workload import RECORD_BYTES, SEED, check_length, encoded, open_wal, raw_file, records
from topics.cli.load import CORES, on_cores
from topics.clock import SystemClock
from topics.fs import File, OsFs
from topics.wal import FsyncPolicy, NoopMeter, Position, Record, Wal, WalConfig, WalEvent, aio
from topics.wal.core import SegmentedLog
from topics.wal.events import MeterObserver
from topics.wal.naming import LibraryNaming
from topics.wal.record import RecordCodec

MIB = 1 << 20
SEGMENT_BYTES = 128 * MIB
THREADS = 8
TASKS = 64
VISIT = 100
Call = Callable[[int], object]


def groups(quick: bool) -> list[Group]:
    """The comparisons of this file."""
    places = [CORES, CORES[-1:]] if len(CORES) > 1 else [CORES]
    return [
        buffered_appends(5_000 if quick else 20_000),
        *(durable_appends(400 if quick else 2_000, cores) for cores in places),
        reads(10_000 if quick else 20_000),
        descriptors(4 if quick else 20),
        segment_creation(5 if quick else 30),
    ]


def alternate(count: int, create: Call, use: Call) -> Sample:
    """Run both for every n and time only the first."""
    wall_ns, cpu_ns = [], 0
    for n in range(count):
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        create(n)
        wall_ns.append(time.perf_counter_ns() - wall)
        cpu_ns += time.process_time_ns() - cpu
        use(n)
    return Sample(count, sum(wall_ns) / 1e9, cpu_ns / 1e9, percentiles_us(wall_ns))


class SyncCount(NoopMeter):
    """A meter that only counts syncs."""

    __slots__ = ("syncs",)

    def __init__(self) -> None:
        self.syncs = 0

    def emit(self, event: WalEvent) -> None:
        self.syncs += event.kind == "fsync"


def buffered_appends(count: int) -> Group:
    """Appends that do not wait for the disk, or seldom."""
    given, data = records(count), encoded(count)

    def raw(dir: Path) -> Sample:
        with raw_file(dir, SEGMENT_BYTES) as fd:
            return each([lambda n: os.pwrite(fd, data[n], n * RECORD_BYTES)], count)

    def append(dir: Path, policy: FsyncPolicy) -> Sample:
        with open_wal(dir, policy) as wal:
            sample = each([lambda n: wal.append(given[n])], count)
            check_length(wal, count)
        return sample

    arms = [
        Arm("os.pwrite", raw),
        Arm("os", lambda dir: append(dir, FsyncPolicy.os())),
        Arm("batch(5)", lambda dir: append(dir, FsyncPolicy.batch(5))),
    ]
    figures = [
        Figure("batch(5) beside os", "batch(5)", "os", "rate", 0.75),
        Figure("os beside raw pwrite", "os", "os.pwrite", "rate"),
    ]
    return Group("buffered appends", "record", arms, figures)


def durable_appends(count: int, cores: Sequence[int] = CORES) -> Group:
    """Appends that are on the medium when they return, by threads that may run on these cores."""
    given, data = records(count), encoded(count)
    size = 16 * MIB

    def raw(dir: Path, zeros: bool = False) -> Sample:
        with raw_file(dir, size) as fd:
            if zeros:
                os.pwrite(fd, bytes(size), 0)
                os.fsync(fd)

            def write(n: int) -> None:
                os.pwrite(fd, data[n], n * RECORD_BYTES)
                os.fdatasync(fd)

            return each([write], count)

    def always(dir: Path, threads: int) -> Sample:
        meter = SyncCount()
        config = WalConfig(dir=str(dir / "wal"), fsync_policy=FsyncPolicy.always(), max_segment_size=size)
        wal, _ = Wal.open(config, meter=meter)
        with wal:
            sample = each([lambda n: wal.append(given[n])] * threads, count)
            check_length(wal, count)
            return with_syncs(sample, meter)

    def tasks(dir: Path) -> Sample:
        meter = SyncCount()
        config = WalConfig(dir=str(dir / "wal"), fsync_policy=FsyncPolicy.always(), max_segment_size=size)
        return with_syncs(asyncio.run(_append_in_tasks(config, meter, given)), meter)

    arms = [
        Arm("pwrite + fdatasync", raw),
        Arm("always, 1 thread", lambda dir: always(dir, 1)),
        Arm(f"always, {THREADS} threads", lambda dir: always(dir, THREADS)),
        Arm(f"always, {TASKS} tasks", tasks),
        Arm("hand-over", lambda dir: hand_over(count)),
        Arm("pwrite + fdatasync, zeros", lambda dir: raw(dir, zeros=True)),
    ]
    raw_name = arms[0].name
    figures = [
        Figure("always, 1 thread", arms[1].name, raw_name, "rate", 0.8),
        Figure(f"always, {THREADS} threads", arms[2].name, raw_name, "rate", 4.0),
        Figure(f"always, {TASKS} asyncio tasks", arms[3].name, raw_name, "rate"),
        Figure("limit by hand-overs, one per record", "hand-over", raw_name, "rate"),
        Figure("the raw loop over zeros", arms[5].name, raw_name, "rate"),
    ]
    name = "durable appends" if cores == CORES else "durable appends on one core"
    return Group(name, "record", [_only_on(cores, arm) for arm in arms], figures, explain=_explain_durable)


def _only_on(cores: Sequence[int], arm: Arm) -> Arm:
    """The same work, its threads kept to these cores."""

    def run(dir: Path) -> Sample:
        with on_cores(cores):
            return arm.run(dir)

    return Arm(arm.name, run)


def with_syncs(sample: Sample, meter: SyncCount) -> Sample:
    """The sample, and how many records shared a sync."""
    assert 0 < meter.syncs <= sample.units, "more syncs than appends"
    return sample._replace(extra={**sample.extra, "records_per_sync": sample.units / meter.syncs})


async def _append_in_tasks(config: WalConfig, meter: SyncCount, given: Sequence[Record]) -> Sample:
    latencies: list[int] = []
    wal, _ = await aio.Wal.open(config, meter=meter)
    async with wal:

        async def task(first: int) -> None:
            for n in range(first, len(given), TASKS):
                start = time.perf_counter_ns()
                await wal.append(given[n])
                latencies.append(time.perf_counter_ns() - start)

        with stopwatch() as watch:
            await asyncio.gather(*(task(first) for first in range(TASKS)))
        total = sum(segment.size for segment in await wal.segments())
        assert total == len(given) * RECORD_BYTES
    return watch.sample(len(given), **percentiles_us(latencies))


def hand_over(count: int) -> Sample:
    """Two threads pass one turn to and fro by locks; the unit is one hand-over."""
    mine, other = threading.Lock(), threading.Lock()
    mine.acquire()
    other.acquire()

    def answer() -> None:
        for _ in range(count):
            other.acquire()
            mine.release()

    thread = threading.Thread(target=answer)
    thread.start()
    with stopwatch() as watch:
        for _ in range(count):
            other.release()
            mine.acquire()
    thread.join()
    return watch.sample(2 * count)


def _explain_durable(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    sync, one = (arms[name]["wall_us"]["median"] for name in ("pwrite + fdatasync", "hand-over"))
    shared = [
        f"{arms[name]['records_per_sync']['median']:.1f} with {name.removeprefix('always, ')}"
        for name in (f"always, {THREADS} threads", f"always, {TASKS} tasks")
    ]
    limit = (
        f"A raw write and sync takes {sync:.0f} µs, handing over between two threads {one:.1f} µs: "
        f"with one hand-over per record, threads cannot exceed {sync / one:.1f}× the raw loop."
    )
    return [f"Records per sync: {', '.join(shared)}.", limit]


def reads(count: int) -> Group:
    """In order and at random, page cache warm."""
    given = records(count)
    wanted = [random.Random(SEED).randrange(count) for _ in range(10_000)]

    def filled(dir: Path) -> tuple[Wal, list[Position]]:
        wal = open_wal(dir, FsyncPolicy.os())
        return wal, [position for at in range(0, count, 1000) for position in wal.append_batch(given[at : at + 1000])]

    def raw(dir: Path, order: Sequence[int]) -> Sample:
        wal, _ = filled(dir)
        fd = os.open(dir / "wal" / "000000.wal", os.O_RDONLY)
        try:
            with wal, stopwatch() as watch:
                for n in order:
                    os.pread(fd, RECORD_BYTES, n * RECORD_BYTES)
        finally:
            os.close(fd)
        return watch.sample(len(order))

    def sequential(dir: Path) -> Sample:
        wal, positions = filled(dir)
        with wal:
            found = 0
            with stopwatch() as watch:
                for record, _ in wal.read_from(positions[0]):
                    found += len(record.value)
            assert found == sum(len(record.value) for record in given)
        return watch.sample(count)

    def at_random(dir: Path) -> Sample:
        wal, positions = filled(dir)

        def read(n: int) -> None:
            with wal.read_from(positions[wanted[n]]) as reader:
                item = reader.next_record()
            assert item is not None
            assert item[0].key == given[wanted[n]].key

        with wal:
            return each([read], len(wanted))

    arms = [
        Arm("os.pread in order", lambda dir: raw(dir, range(count))),
        Arm("os.pread at random", lambda dir: raw(dir, wanted)),
        Arm("sequential", sequential),
        Arm("random read_from", at_random),
    ]
    figures = [
        Figure("random read_from beside sequential", "random read_from", "sequential", "rate", 0.2),
        Figure("sequential beside raw pread", "sequential", "os.pread in order", "rate"),
        Figure("random read_from beside raw pread", "random read_from", "os.pread at random", "rate"),
    ]
    return Group("reads", "record", arms, figures, [Aim("sequential", 150_000, "records/s")])


def descriptors(segments: int) -> Group:
    """Reading with descriptors at hand and with opening anew."""
    each_has = MIB // RECORD_BYTES
    given = records(each_has)

    def visits(dir: Path, cache: int, take: int) -> Sample:
        options = {"max_segment_size": MIB, "fd_cache_size": cache, "preallocate": False}
        with open_wal(dir, FsyncPolicy.os(), **options) as wal:
            for _ in range(segments):
                wal.append_batch(given)
            _read_round(wal, segments, 0, 1)
            starts = range(0, each_has - take, take if take > 1 else VISIT)
            with stopwatch() as watch:
                for start in starts:
                    _read_round(wal, segments, start, take)
        return watch.sample(len(starts) * segments * take)

    arms = [
        Arm("cached", lambda dir: visits(dir, segments + 1, VISIT)),
        Arm("uncached", lambda dir: visits(dir, 1, VISIT)),
        Arm("cached, 1 per visit", lambda dir: visits(dir, segments + 1, 1)),
        Arm("uncached, 1 per visit", lambda dir: visits(dir, 1, 1)),
    ]
    figures = [
        Figure(f"uncached beside cached, {VISIT} records per visit", "uncached", "cached", "rate", 0.85),
        Figure("uncached beside cached, 1 record per visit", "uncached, 1 per visit", "cached, 1 per visit", "rate"),
    ]
    return Group("descriptors", "record", arms, figures, [Aim("cached", 150_000, "records/s")])


def _read_round(wal: Wal, segments: int, start: int, take: int) -> None:
    """Visit every segment once and read `take` records from the one numbered `start` on."""
    for id in range(segments):
        with wal.read_from(Position(id, start * RECORD_BYTES)) as reader:
            for _ in range(take):
                assert reader.next_record() is not None


def segment_creation(count: int) -> Group:
    """From nothing to a segment that may take writes. Between two, on both sides, the last one is written and ended."""

    def raw(dir: Path, reserve: bool) -> Sample:
        fs = OsFs()
        made: list[File] = []

        def create(n: int) -> None:
            made.append(fs.open(f"{dir}/{n}", "create"))
            if reserve:
                made[n].allocate(SEGMENT_BYTES)
            made[n].fsync()
            fs.sync_dir(str(dir))

        def use(n: int) -> None:
            made[n].pwrite(b"x", 0)
            made[n].fdatasync()
            made[n].truncate(1)
            made[n].fsync()
            made[n].close()

        return alternate(count, create, use)

    def segment(dir: Path, reserve: bool) -> Sample:
        log = SegmentedLog(
            OsFs(),
            str(dir),
            LibraryNaming(),
            RecordCodec(),
            max_segment_size=SEGMENT_BYTES,
            clock=SystemClock(),
            observer=MeterObserver(NoopMeter(), 0),
            preallocate=reserve,
        )
        log.start(resume=False)

        def use(n: int) -> None:
            log.write([b"x"])
            log.rotate()

        sample = alternate(count, lambda n: log.prepare_next(), use)
        log.close()
        return sample

    arms = [
        Arm("raw, preallocated", lambda dir: raw(dir, True)),
        Arm("preallocated", lambda dir: segment(dir, True)),
        Arm("raw, plain", lambda dir: raw(dir, False)),
        Arm("plain", lambda dir: segment(dir, False)),
    ]
    figures = [
        Figure("preallocated beside raw calls", "preallocated", "raw, preallocated", "time"),
        Figure("plain beside raw calls", "plain", "raw, plain", "time"),
        Figure("preallocated beside plain", "preallocated", "plain", "time"),
    ]
    return Group("segment creation", "segment", arms, figures)
