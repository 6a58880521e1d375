"""B12: what does a Spark scan of segments cost beside Spark on a Parquet copy of the same rows?

Measured: all columns to `noop` with checksums and without; 1 % of the rows by seq, by time and by tag, net of a read of
one row; `count` and a group by, of which Parquet reads no or one column, without a bound. Records of 100 bytes with a
tag and a node, sealed segments, one local session with two cores.

The share of `.data` that a 1 % read fetches is counted in the reader itself, without Spark.
Not measured: several machines, an object store.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench import tree
from bench.measure import Arm, Figure, Group, Sample, stopwatch
from topics.clock import SystemClock
from topics.codec import kernel
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import File, Mode, OsFs
from topics.spark.options import parse_read
from topics.spark.reader import plan_read, read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
QUICK_ROWS = 200_000
VERIFIED = 0.4 if kernel.name() == "pure" else 0.6
"""The bound of a scan with checksums."""
TAGS = 100
"""Different tags: one of them is 1 % of the rows, all over the log."""


def groups(quick: bool) -> list[Group]:
    """Full scans, scans of a hundredth, and what Parquet does with less than the rows."""
    rows = QUICK_ROWS if quick else ROWS
    return [full(rows), hundredth(rows), columns(rows)]


@cache
def spark() -> SparkSession:
    import topics.spark

    one = topics.spark.session("local[2]")
    atexit.register(one.stop)
    return one


@cache
def filled(rows: int) -> Path:
    """A store with one topic in sealed segments, and the same rows as Parquet beside it."""
    dir = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    atexit.register(shutil.rmtree, dir, ignore_errors=True)
    with Engine.open(str(dir / "store"), EngineConfig(min_free_bytes=0)) as engine:
        engine.put_topic("t", {"durability": "memory"})
        for first in range(0, rows, 1000):
            engine.append("t", [_record(n) for n in range(first, first + 1000)])
    _load(dir).write.option("compression", "zstd").parquet(str(dir / "parquet"))
    return dir


def _record(n: int) -> dict[str, object]:
    return {"data": {"n": n, "text": f"{n * 2654435761 % 2**64:020d}" * 3}, "tag": f"k{n % TAGS}", "node": "bench"}


def _load(dir: Path, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark().read.format("topics").options(path=str(dir / "store"), topics="t", **given).load()


def ours(rows: int, **options: object) -> DataFrame:
    """A new `load()`: planning is part of reading."""
    return _load(filled(rows), **options)


def theirs(rows: int) -> DataFrame:
    return spark().read.parquet(str(filled(rows) / "parquet"))


def _scanned(rows: int, frame: Callable[[], DataFrame], unit: Callable[[], DataFrame] | None = None) -> Sample:
    """All of a frame to nowhere; `unit`, run before, is what Spark itself takes, and is not counted."""
    filled(rows)
    idle = 0.0
    if unit is not None:
        with stopwatch() as watch:
            _consume(unit())
        idle = watch.wall_s
    cpu_s = tree.cpu_s()
    with stopwatch() as watch:
        _consume(frame())
    return Sample(rows, max(watch.wall_s - idle, 1e-6), max(tree.cpu_s() - cpu_s, 1e-6))


def _consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def full(rows: int) -> Group:
    """All columns of all rows."""
    arms = [
        Arm("Parquet", lambda dir: _scanned(rows, lambda: theirs(rows))),
        Arm("verify=false", lambda dir: _scanned(rows, lambda: ours(rows, verify="false"))),
        Arm("verify=true", lambda dir: _scanned(rows, lambda: ours(rows))),
    ]
    figures = [
        Figure("without checksums, rate beside Parquet", "verify=false", "Parquet", "rate", 0.6),
        Figure("with checksums, rate beside Parquet", "verify=true", "Parquet", "rate", VERIFIED),
    ]
    return Group(f"all columns of {rows:,} rows", "row", arms, figures)


def hundredth(rows: int) -> Group:
    """1 % of the rows by options, beside all of them; both net of a read of one row."""
    low, high = rows // 2, rows // 2 + rows // 100 - 1
    one: Callable[[], DataFrame] = lambda: ours(rows, startingSeq=low, endingSeq=low)  # noqa: E731
    picked: dict[str, dict[str, object]] = {
        "by seq": {"startingSeq": low, "endingSeq": high},
        "by time": _instants(rows, low, high),
        "by tag": {"tags": "k7"},
    }
    arms = [Arm("all", lambda dir: _scanned(rows, lambda: ours(rows), one))]
    figures = []
    for name, options in picked.items():
        arms.append(Arm(name, _picking(rows, options, one)))
        figures.append(Figure(f"time {name} beside all", name, "all", "time", 0.2))
        figures.append(Figure(f"share of .data bytes {name}", name, None, "time", 0.05, "share"))
    return Group(f"1 % of {rows:,} rows by options", "row", arms, figures)


def _picking(rows: int, options: dict[str, object], one: Callable[[], DataFrame]) -> Callable[[Path], Sample]:
    def run(dir: Path) -> Sample:
        sample = _scanned(rows, lambda: ours(rows, **options), one)
        return sample._replace(extra={"share": _share(rows, options)})

    return run


def _instants(rows: int, low: int, high: int) -> dict[str, object]:
    """The times of the rows at both ends of a range: records of one batch share theirs, so it may be a little more."""
    frame = ours(rows, startingSeq=low, endingSeq=high, columns="ts")
    row = frame.selectExpr("unix_millis(min(ts))", "unix_millis(max(ts))").first()
    assert row is not None
    return {"startingTimestamp": row[0], "endingTimestamp": row[1]}


class _CountingFile:
    """A file whose read bytes are added up."""

    def __init__(self, file: File, count: list[int]) -> None:
        self._file = file
        self._count = count

    def pread(self, n: int, offset: int) -> bytes:
        data = self._file.pread(n, offset)
        self._count[0] += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _CountingFs(OsFs):
    """The real disk; bytes read of `.data` files are counted."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        super().__init__()
        self.read = [0]

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        return cast(File, _CountingFile(file, self.read)) if path.endswith(".data") else file


def _share(rows: int, options: dict[str, object]) -> float:
    """The share of all `.data` bytes that a read with these options fetches."""
    dir, fs = filled(rows) / "store", _CountingFs()
    given = {name: str(value) for name, value in options.items()}
    for part in plan_read(fs, parse_read({"path": str(dir), "topics": "t", **given}), SystemClock().now_ms()):
        for _ in read_partition(fs, part):
            pass
    return fs.read[0] / sum(path.stat().st_size for path in dir.glob("topics/*/*.data"))


def columns(rows: int) -> Group:
    """Where Parquet reads one column or none; no bound."""
    arms = [
        Arm("Parquet, count", lambda dir: _scanned(rows, lambda: theirs(rows).groupBy().count())),
        Arm("count", lambda dir: _scanned(rows, lambda: ours(rows, columns="seq").groupBy().count())),
        Arm("Parquet, group by tag", lambda dir: _scanned(rows, lambda: theirs(rows).groupBy("tag").count())),
        Arm("group by tag", lambda dir: _scanned(rows, lambda: ours(rows, columns="tag").groupBy("tag").count())),
    ]
    figures = [
        Figure("count, rate beside Parquet", "count", "Parquet, count", "rate"),
        Figure("group by, rate beside Parquet", "group by tag", "Parquet, group by tag", "rate"),
    ]
    return Group(f"counts over {rows:,} rows", "row", arms, figures)
