"""B13: how fast does `archive` turn sealed segments into a Parquet table?

Measured: one core with what a task does (read with checksums, decode, hash every row, zstd, sync), by processor time;
and the whole job on a local session with two cores, commit included: by the processor time of all that take part in it
(this process, Java, and the processes of tasks), and, without a bound, by wall time, in which whatever else the machine
does shows as well. Records of 100 bytes and of 1 KiB with a tag; MiB are those of the segments' data. The bound is five
times what Redpanda publishes per core.

Not measured: the start of Java and the first job of a session, which cost the same whatever there is to archive and are
over before the first round; several machines, an object store, Delta and Iceberg, whose commits take no part in the
bytes.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

from bench import tree
from bench.bench_spark import spark
from bench.measure import Arm, Figure, Group, Sample, stopwatch
from topics.clock import SystemClock
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.jobs import archive
from topics.spark.jobs.place import Place
from topics.spark.jobs.rows import Typed
from topics.spark.jobs.work import Work, carry_out
from topics.spark.jobs.write import Item, archived
from topics.spark.options import parse_read
from topics.spark.reader import plan_read

MIB = 1 << 20
BOUND = 25.0
CORES = 2
SIZES = {"100 B": 100, "1 KiB": 1024}


def groups(quick: bool) -> list[Group]:
    """One for each size of records."""
    total = (40 if quick else 200) * MIB
    return [group(name, size, total // (size + 100)) for name, size in SIZES.items()]


def group(name: str, size: int, rows: int) -> Group:
    arms = [
        Arm("one core", lambda dir: one_core(dir, size, rows)),
        Arm("job", lambda dir: job(dir, size, rows)),
    ]
    figures = [
        Figure(f"{name}: MiB/s of a core", "one core", None, "rate", BOUND, "mib_s"),
        Figure(f"{name}: MiB/s of a core, whole job", "job", None, "rate", BOUND, "mib_s"),
        Figure(f"{name}: MiB/s per core by wall time, whole job", "job", None, "rate", None, "wall_mib_s"),
    ]
    return Group(f"{rows:,} records of {name}", "row", arms, figures)


@cache
def filled(size: int, rows: int) -> Path:
    """A store with one topic in sealed segments."""
    dir = Path(tempfile.mkdtemp(prefix="bench-archive-"))
    atexit.register(shutil.rmtree, dir, ignore_errors=True)
    with Engine.open(str(dir / "store"), EngineConfig(min_free_bytes=0)) as engine:
        engine.put_topic("t", {"durability": "memory"})
        for first in range(0, rows, 1000):
            engine.append("t", [_record(n, size) for n in range(first, min(first + 1000, rows))])
    return dir / "store"


def _record(n: int, size: int) -> dict[str, object]:
    text = random.Random(n).randbytes(size // 2).hex()
    return {"data": {"n": n, "text": text}, "tag": f"k{n % 100}"}


def data_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in store.glob("topics/*/*.data"))


def one_core(dir: Path, size: int, rows: int) -> Sample:
    """The task, in this process."""
    store, folder = filled(size, rows), dir / "files"
    os.makedirs(folder)
    given = {"path": str(store), "topics": "t", "meta": "json", "onDataLoss": "emit"}
    parts = plan_read(OsFs(), parse_read(given), SystemClock().now_ms())
    with stopwatch() as watch:
        for number, part in enumerate(parts):
            for _ in archived(Item(number, part, str(folder), Typed(), False)):
                pass
    return Sample(rows, watch.wall_s, watch.cpu_s, {"mib_s": data_bytes(store) / MIB / watch.cpu_s})


def job(dir: Path, size: int, rows: int) -> Sample:
    """The whole of it; the session is there already."""
    store = filled(size, rows)
    work = Work("archive", Place(path=str(store)), out=str(dir / "lake"), spark=spark())
    before = tree.cpu_s()
    with stopwatch() as watch:
        told = carry_out(work, archive)
    cpu_s = max(tree.cpu_s() - before, 1 / tree.TICKS_PER_S)
    mib = told["read_bytes"] / MIB
    rates = {"mib_s": mib / cpu_s, "wall_mib_s": mib / watch.wall_s / CORES}
    return Sample(told["rows"], watch.wall_s, cpu_s, rates)
