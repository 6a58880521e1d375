"""B7: how much memory does an open engine need for records that are sealed?

Measured: resident memory (`VmRSS`) of a process that opened a store with 100-byte records in sealed segments, less
that of one that opened an empty store: at most 4 bytes per record. Each store is opened by a new process that does
nothing else and collects its garbage first. Beside it, without a bound: the same after 1000 records were read from
each of a hundred places, when indexes and data are mapped; mapped pages count as resident although the kernel takes
them back when it wants to, so memory that is the process's own (`RssAnon`) is told too.

The times of the arms are those of opening. Not measured: unsealed records (28 bytes each in the index), tags, caches of
recent records, what a store with many topics needs for each of them.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import store
from bench.measure import Arm, Figure, Group, Sample
from topics.engine.engine import Engine

PLACES = 100
_WORDS = ("VmRSS", "RssAnon")


def groups(quick: bool) -> list[Group]:
    """The one comparison of this file."""
    return [sealed_memory(400_000 if quick else 10_000_000)]


def sealed_memory(count: int) -> Group:
    """An engine with so many sealed records beside one with none."""

    def measured(dir: Path, *, reads: bool) -> Sample:
        full = store.shared(dir, f"sealed-{count}", lambda made: store.sealed(made, count))
        empty = store.shared(dir, "empty", lambda made: Engine.open(str(made)).close())
        less, more = _child(empty, 0), _child(full, PLACES if reads else 0)
        assert (less["count"], more["count"]) == (0, count)
        extra = {f"{name.lower()}_bytes_per_record": (more[name] - less[name]) / count for name in _WORDS}
        return Sample(1, more["wall_s"], more["cpu_s"], {**extra, "vmrss_mb": more["VmRSS"] / 1e6})

    arms = [
        Arm("opened", lambda dir: measured(dir, reads=False)),
        Arm("opened and read", lambda dir: measured(dir, reads=True)),
    ]
    figures = [
        Figure("bytes per record", "opened", None, "time", 4.0, "vmrss_bytes_per_record"),
        Figure("bytes per record, its own", "opened", None, "time", None, "rssanon_bytes_per_record"),
        Figure("bytes per record after reads", "opened and read", None, "time", None, "vmrss_bytes_per_record"),
        Figure(
            "bytes per record, its own, after reads", "opened and read", None, "time", None, "rssanon_bytes_per_record"
        ),
    ]

    def explain(medians: Mapping[str, Mapping[str, Any]]) -> list[str]:
        return [f"{name}: {row['vmrss_mb']['median']:.1f} MB in all." for name, row in medians.items()]

    return Group(f"memory, {count:,} sealed records", "start-up", arms, figures, explain=explain)


def _child(dir: Path, places: int) -> Mapping[str, float]:
    """What a new process needs that opens a store."""
    command = [sys.executable, "-m", "bench.bench_engine_memory", str(dir), str(places)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, float] = json.loads(done.stdout)
    return found


def main(dir: str, places: int) -> None:
    """In the child: open, read, and say how much memory it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Engine.open(dir) as engine:
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        count = sum(engine.state(name).count for name in engine.topics())
        for place in range(places):
            assert engine.read(store.TOPIC, count // places * place, limit=1000).records
        gc.collect()
        print(json.dumps({**_resident(), **spent, "count": count}))


def _resident() -> dict[str, int]:
    with open("/proc/self/status", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file)
    return {name: int(rows[name].split()[0]) * 1024 for name in _WORDS}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
