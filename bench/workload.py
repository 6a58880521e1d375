"""What the benchmarks write: records of exactly 1 KiB on disk, and the raw files they are compared with."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topics.fs import OsFile
from topics.wal import FsyncPolicy, Record, Wal, WalConfig

SEED = 20_240_229
RECORD_BYTES = 1024
RECORD_MB = RECORD_BYTES / 1e6
_VALUE_BYTES = 1000
"""A key of 16 bytes, 4 bytes of lengths and flags and 4 of checksum make it 1024."""


def records(count: int, seed: int = SEED) -> list[Record]:
    """Incompressible values under ascending keys; made before anything is timed."""
    source = random.Random(seed)
    values = [source.randbytes(_VALUE_BYTES) for _ in range(256)]
    made = [Record.put(b"key-%012d" % n, values[n % 256]) for n in range(count)]
    assert len(made[0].encode()) == RECORD_BYTES
    return made


def encoded(count: int) -> list[bytes]:
    """The bytes the log stores for `records(count)`, for the raw loops."""
    return [record.encode() for record in records(count)]


def open_wal(dir: Path, policy: FsyncPolicy, **options: object) -> Wal:
    """A log with the product's defaults, except what is asked for."""
    return Wal.open(WalConfig(dir=str(dir / "wal"), fsync_policy=policy, **options))[0]  # type: ignore[arg-type]


@contextmanager
def raw_file(dir: Path, size: int) -> Iterator[int]:
    """A descriptor of a file prepared like a segment: allocated, synced, and not yet written.

    Overwriting blocks that were written before is cheaper to sync, so a reused file would flatter the raw loop.
    """
    file = OsFile(os.open(dir / "raw", os.O_RDWR | os.O_CREAT, 0o600))
    try:
        file.allocate(size)
        file.fsync()
        yield file.fd
    finally:
        file.close()


def check_length(wal: Wal, count: int) -> None:
    """Every record is there, once [P-4]."""
    total = sum(segment.size for segment in wal.segments())
    assert total == count * RECORD_BYTES, f"{total} bytes for {count} records"
