"""B15: how much do eight threads gain by sharing syncs where a sync takes longer than here?

Policy `always`, records of 1 KiB, eight threads beside `pwrite` + `fdatasync` of the same bytes by one thread, both
on files of the disk at hand. Behind every `fdatasync`, on both sides alike, stands a wait of 0.5 or 1 ms, so that a
sync takes as long as on a slower disk; the disk as it is has its figure in `wal_policies`. What threads pay besides
the sync, the hand-overs between them, stays what it is. The raw loop writes into a freshly allocated, not yet written
file, as it does there.

Latencies (p50, p99) are of single calls; with threads they contain the wait for others. Not measured: a disk whose
syncs take longer the more they have to write, or whose syncs disturb each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.bench_wal_policies import MIB, THREADS, SyncCount, with_syncs
from bench.measure import Arm, Figure, Group, Sample, each
from bench.slowdisk import SlowSyncFs
from bench.workload import RECORD_BYTES, check_length, encoded, records
from topics.fs import pwrite_all
from topics.wal import FsyncPolicy, Wal, WalConfig

WAITS_MS = (0.5, 1.0)
SEGMENT_BYTES = 16 * MIB


def groups(quick: bool) -> list[Group]:
    """The comparisons of this file."""
    return [slow_syncs(wait_ms, 100 if quick else 1_000) for wait_ms in WAITS_MS]


def slow_syncs(wait_ms: float, count: int) -> Group:
    """Threads that share syncs, beside one that does not."""
    given, data = records(count), encoded(count)

    def raw(dir: Path) -> Sample:
        file = SlowSyncFs(wait_ms / 1000).open(str(dir / "raw"), "create")
        try:
            file.allocate(SEGMENT_BYTES)
            file.fsync()

            def write(n: int) -> None:
                pwrite_all(file, data[n], n * RECORD_BYTES)
                file.fdatasync()

            return each([write], count)
        finally:
            file.close()

    def always(dir: Path) -> Sample:
        meter = SyncCount()
        config = WalConfig(dir=str(dir / "wal"), fsync_policy=FsyncPolicy.always(), max_segment_size=SEGMENT_BYTES)
        wal, _ = Wal.open(config, meter=meter, fs=SlowSyncFs(wait_ms / 1000))
        with wal:
            sample = each([lambda n: wal.append(given[n])] * THREADS, count)
            check_length(wal, count)
        return with_syncs(sample, meter)

    arms = [Arm("pwrite + fdatasync", raw), Arm(f"always, {THREADS} threads", always)]
    longer = f"syncs {wait_ms:g} ms longer"
    figure = Figure(f"always, {THREADS} threads, {longer}", arms[1].name, arms[0].name, "rate", 4.0)
    return Group(f"durable appends, {longer}", "record", arms, [figure], explain=_explain)


def _explain(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    raw, ours = arms.values()
    wall_ms, shared = raw["wall_us"]["median"] / 1000, ours["records_per_sync"]["median"]
    return [f"A raw write and sync takes {wall_ms:.2f} ms, {shared:.1f} records share one."]
