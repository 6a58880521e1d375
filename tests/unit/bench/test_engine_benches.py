"""The benchmarks of the engine run, small: their own checks hold, whatever time they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bench_engine_commit as commit
from bench import bench_engine_memory as memory
from bench import bench_engine_recovery as recovery
from bench import store
from bench.measure import Group
from topics.engine.engine import Engine

GROUPS = [
    commit.lone_writer(3),
    commit.many_writers(128),
    commit.shards(128),
    recovery.after_kill(2_000),
    recovery.over_segments(10_000, 20_000),
    memory.sealed_memory(20_000),
]


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
def test_every_arm_runs_and_has_what_the_figures_look_at(group: Group, tmp_path: Path) -> None:
    rows = {}
    for n, arm in enumerate(group.arms):
        (tmp_path / str(n)).mkdir()
        rows[arm.name] = [arm.run(tmp_path / str(n)).row()]
    for figure in group.figures:
        assert len(figure.ratios(rows)) == 1


def test_a_store_written_as_files_is_one_that_the_engine_reads(tmp_path: Path) -> None:
    store.sealed(tmp_path, 30_000)
    with Engine.open(str(tmp_path)) as engine:
        assert engine.state(store.TOPIC).bytes == 30_000 * store.DATA_BYTES
        for first in (1, 10_001, 29_901):
            found = engine.read(store.TOPIC, first - 1, limit=100).records
            assert [one.seq for one in found] == list(range(first, first + 100))
        assert engine.metrics()["topics_segment_corrupt_total"] == 0
