"""B6: how long does an engine take to open, after a kill and over sealed segments?

after a kill       `Engine.open` of a store whose records are all in the WAL, beside reading the valid bytes of its
                   files and one XXH3 per frame, with the lengths known: at most 12 times as long. Every frame
                   carries its own checksum, so this is what any reader that checks the bytes must at least do. And
                   beside one XXH3 over each whole file, which checks nothing, since no such sum is stored, with the
                   same bound.
sealed segments    start of a process that opens and closes a cleanly closed store with a hundred times the records,
                   all sealed: at most 1.5 times as long as with the fewer, because only what is unsealed is replayed.
                   `Engine.open` by itself is told beside it: it looks at each segment once, never at a record.

by records in the WAL    the first of these again for several sizes: whether the time grows as the records do.

100-byte records of one topic under the product's defaults. Opening ends when the engine takes writes: the run's
`ready` mark is synced, the WAL's torn end is cut and its tail written again. Checked: the number of records, and the
newest one. Not measured: a cold disk (the bytes are in the page cache on all sides), damage, many topics, closing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from bench import store
from bench.measure import Arm, Figure, Group, Sample, stopwatch
from topics import paths
from topics.codec import frame
from topics.engine.engine import Engine

PROCESS = "import sys, topics; topics.open(sys.argv[1]).close()"


def groups(quick: bool) -> list[Group]:
    """The comparisons of this file."""
    return [
        after_kill(50_000 if quick else 1_000_000),
        over_segments(20_000, 400_000) if quick else over_segments(100_000, 10_000_000),
        curve((10_000, 20_000) if quick else (100_000, 250_000, 500_000, 1_000_000)),
    ]


def after_kill(count: int) -> Group:
    """A store whose records are in the WAL only."""

    def image(dir: Path) -> Path:
        return store.shared(dir, f"killed-{count}", lambda made: store.killed(made, count))

    def opened(dir: Path) -> Sample:
        store.copy(image(dir), dir / "store")
        return _open(dir / "store", count, count)

    def read(dir: Path, *, per_frame: bool) -> Sample:
        files = sorted((image(dir) / paths.WAL_DIR).glob("*.log"))
        scans = [frame.scan_frames(path.read_bytes()) for path in files]
        spans = [[(int(row["offset"]), int(row["offset"] + row["len"])) for row in scan.rows] for scan in scans]
        with stopwatch() as watch:
            for path, scan, each in zip(files, scans, spans, strict=True):
                with path.open("rb", buffering=0) as file:
                    view = memoryview(file.read(scan.stop))
                for start, end in each if per_frame else ((0, len(view)),):
                    xxh3_64_intdigest(view[start:end])
        assert sum(map(len, spans)) > count
        return watch.sample(count)

    arms = [
        Arm("read + XXH3 in one go", lambda dir: read(dir, per_frame=False)),
        Arm("read + XXH3 per frame", lambda dir: read(dir, per_frame=True)),
        Arm("open after kill", opened),
    ]
    figures = [
        Figure(f"open beside one XXH3 {how}", arms[2].name, arms[at].name, "time", 12.0)
        for at, how in ((1, "per frame"), (0, "in all"))
    ]
    return Group(f"recovery of {count:,} records in the WAL", "record", arms, figures)


def curve(counts: Sequence[int]) -> Group:
    """Stores that differ in what is in the WAL; the time of each per record of its own."""

    def opened(dir: Path, count: int) -> Sample:
        store.copy(store.shared(dir, f"killed-{count}", lambda made: store.killed(made, count)), dir / "store")
        sample = _open(dir / "store", count, count)
        return sample._replace(extra={"open_ms": sample.wall_s * 1e3})

    arms = [Arm(f"open, {count:,}", partial(opened, count=count)) for count in counts]
    few, many = arms[0].name, arms[-1].name
    figures = [Figure(f"per record, {counts[0]:,} beside {counts[-1]:,}", few, many, "time")]
    return Group("recovery by records in the WAL", "record", arms, figures)


def over_segments(few: int, many: int) -> Group:
    """Two stores that differ in what is sealed."""

    def opened(dir: Path, count: int) -> Sample:
        made = store.shared(dir, f"sealed-{count}", lambda made: store.sealed(made, count))
        return _open(made, count, 1)

    def started(dir: Path, count: int) -> Sample:
        made = store.shared(dir, f"sealed-{count}", lambda made: store.sealed(made, count))
        with stopwatch() as watch:
            subprocess.run([sys.executable, "-c", PROCESS, str(made)], check=True)
        return watch.sample(1)

    arms = [Arm(f"open, {count:,} sealed", partial(opened, count=count)) for count in (few, many)]
    arms += [Arm(f"process, {count:,} sealed", partial(started, count=count)) for count in (few, many)]
    figures = [
        Figure(f"a process over {many:,} sealed beside {few:,}", arms[3].name, arms[2].name, "time", 1.5),
        Figure(f"opening {many:,} sealed beside {few:,}", arms[1].name, arms[0].name, "time"),
    ]

    def explain(medians: Mapping[str, Mapping[str, Any]]) -> list[str]:
        less, more = (medians[one.name]["wall_us"]["median"] for one in arms[:2])
        return [f"{(more - less) / (many - few) * 1e3:.2f} ns per sealed record more."]

    return Group("start-up over sealed segments", "start-up", arms, figures, explain=explain)


def _open(dir: Path, count: int, units: int) -> Sample:
    with stopwatch() as watch:
        engine = Engine.open(str(dir))
    with engine:
        state = engine.state(store.TOPIC)
        assert (state.count, state.head_seq) == (count, count), state
        (newest,) = engine.read(store.TOPIC, count - 1).records
        assert len(newest.raw_data) == store.DATA_BYTES
    return watch.sample(units)
