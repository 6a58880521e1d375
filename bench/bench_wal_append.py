"""B11: what does an append of the WAL library cost beside the bare system call?

Measured: `Wal.append` of 1 KiB records under the `os` policy, one call per record, and `append_batch` of
1000, against a loop of `os.write` with the same bytes: encoding, checksum, locking, the rotation test
and position keeping are what the library adds. One `os.write` per thousand records shows what a batch
could cost at best.

Not measured: building the `Record` objects, opening and closing, syncing (nothing here is on the medium
when its time ends), rotation (everything fits one segment). Files are removed before their pages are due
for write-back. Both sides write into a preallocated file.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.measure import Aim, Arm, Figure, Group, Sample, stopwatch
from bench.workload import RECORD_BYTES, RECORD_MB, check_length, encoded, open_wal, raw_file, records
from topics.wal import FsyncPolicy

SEGMENT_BYTES = 128 << 20
BATCH = 1000


def groups(quick: bool) -> list[Group]:
    """The one comparison of this file."""
    count = 5_000 if quick else 20_000
    given, data = records(count), encoded(count)
    batches = [given[at : at + BATCH] for at in range(0, count, BATCH)]
    joined = [b"".join(data[at : at + BATCH]) for at in range(0, count, BATCH)]

    def raw(dir: Path, parts: list[bytes] = data) -> Sample:
        with raw_file(dir, SEGMENT_BYTES) as fd:
            write = os.write
            with stopwatch() as watch:
                for part in parts:
                    write(fd, part)
            assert os.lseek(fd, 0, os.SEEK_CUR) == count * RECORD_BYTES
        return watch.sample(count)

    def append(dir: Path) -> Sample:
        with open_wal(dir, FsyncPolicy.os()) as wal:
            with stopwatch() as watch:
                for record in given:
                    wal.append(record)
            check_length(wal, count)
        return watch.sample(count)

    def append_batch(dir: Path) -> Sample:
        with open_wal(dir, FsyncPolicy.os()) as wal:
            with stopwatch() as watch:
                for batch in batches:
                    wal.append_batch(batch)
            check_length(wal, count)
        return watch.sample(count)

    arms = [
        Arm("os.write", raw),
        Arm("append", append),
        Arm("append_batch ×1000", append_batch),
        Arm("os.write ×1000", lambda dir: raw(dir, joined)),
    ]
    figures = [
        Figure("append", "append", "os.write", "time", 8.0),
        Figure("append_batch ×1000, per record", "append_batch ×1000", "os.write", "time", 2.5),
        Figure("append_batch beside one write per batch", "append_batch ×1000", "os.write ×1000", "time"),
    ]
    aims = [
        Aim("append", 60_000, "records/s"),
        Aim("append_batch ×1000", 150, "MB/s", RECORD_MB),
    ]
    return [Group("append, 1 KiB, policy os", "record", arms, figures, aims)]
