"""The benchmark of slower syncs runs, small, and its disk does what it says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench import bench_wal_slow_syncs as bench
from bench.slowdisk import SlowSyncFs


@pytest.mark.parametrize("wait_ms", bench.WAITS_MS)
def test_every_arm_runs_and_shares_syncs(wait_ms: float, tmp_path: Path) -> None:
    group = bench.slow_syncs(wait_ms, 32)
    rows = {}
    for n, arm in enumerate(group.arms):
        (tmp_path / str(n)).mkdir()
        rows[arm.name] = [arm.run(tmp_path / str(n)).row()]
    assert [figure.bound for figure in group.figures] == [4.0]
    for figure in group.figures:
        assert len(figure.ratios(rows)) == 1
        assert rows[figure.arm][0]["records_per_sync"] >= 1


def test_a_sync_of_data_takes_longer_and_the_bytes_are_on_the_real_disk(tmp_path: Path) -> None:
    file = SlowSyncFs(0.02).open(str(tmp_path / "file"), "create")
    file.pwrite(b"data", 0)
    start = time.monotonic()
    file.fdatasync()
    assert time.monotonic() - start >= 0.02
    file.close()
    assert (tmp_path / "file").read_bytes() == b"data"
