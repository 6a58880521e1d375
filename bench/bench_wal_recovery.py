"""How fast does a log open, beside reading and checksumming the same bytes?

Measured: `Wal.open` of 80 MiB in three segments, (a) after a clean close and (b) as a kill leaves it: the
lock file says open and the last segment, half full, ends in preallocated zeros. (b) also cuts the zeros
and writes the last segment's records again, byte for byte, before it syncs, so it waits for the disk.
Against: reading the same bytes and one CRC-32C over each segment; and one CRC-32C per record with the
record lengths known, which is what any reader that checks every record must at least do.

Not measured: a cold disk (the bytes are in the page cache on all sides), damaged records, closing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from bench.measure import Aim, Arm, Figure, Group, Sample, stopwatch
from bench.workload import RECORD_BYTES, records
from topics import paths
from topics.fs import OsFile
from topics.wal import FsyncPolicy, Wal, WalConfig

MIB = 1 << 20


def groups(quick: bool) -> list[Group]:
    """Recovery of one log in two states."""
    segment = (4 if quick else 32) * MIB
    sizes = (segment, segment, segment // 2)
    total = sum(sizes)
    count = total // RECORD_BYTES
    with tempfile.TemporaryDirectory() as scratch:
        images_killed, images_closed = _images(Path(scratch), [size // RECORD_BYTES for size in sizes], segment)

    def opened(dir: Path, *, killed: bool) -> Sample:
        _lay_out(dir, images_killed if killed else images_closed)
        config = WalConfig(dir=str(dir), fsync_policy=FsyncPolicy.os(), max_segment_size=segment)
        with stopwatch() as watch:
            wal, found = Wal.open(config)
        wal.close()
        assert (found.valid_records, found.corruption_detected) == (count, False), found
        assert found.prealloc_bytes_trimmed == (segment - sizes[-1] if killed else 0), found
        return watch.sample(count)

    def read_and_sum(dir: Path, *, piece: int) -> Sample:
        _lay_out(dir, images_closed)
        checked = 0
        with stopwatch() as watch:
            for id in range(len(sizes)):
                view = memoryview((dir / paths.library_segment(id)).read_bytes())
                for at in range(0, len(view), piece):
                    crc32c(view[at : at + piece])
                checked += len(view)
        assert checked == total
        return watch.sample(count)

    arms = [
        Arm("read + CRC in one go", lambda dir: read_and_sum(dir, piece=sys.maxsize)),
        Arm("read + CRC per record", lambda dir: read_and_sum(dir, piece=RECORD_BYTES)),
        Arm("open after close", lambda dir: opened(dir, killed=False)),
        Arm("open after kill", lambda dir: opened(dir, killed=True)),
    ]
    figures = [
        Figure("clean open beside one CRC per record", "open after close", "read + CRC per record", "time"),
        Figure("clean open beside one CRC in all", "open after close", "read + CRC in one go", "time"),
        Figure("open after a kill beside a clean open", "open after kill", "open after close", "time"),
    ]
    aims = [Aim(name, 200, "MB/s", RECORD_BYTES / 1e6) for name in ("open after close", "open after kill")]

    def explain(medians: Mapping[str, Mapping[str, Any]]) -> list[str]:
        rates = ", ".join(f"{name} {RECORD_BYTES / row['wall_us']['median']:.0f}" for name, row in medians.items())
        return [f"MB/s: {rates}.", f"After a kill {sizes[-1] / MIB:.0f} of {total / MIB:.0f} MiB are written again."]

    return [Group(f"recovery of {total // MIB} MiB", "record", arms, figures, aims, explain)]


class Image(NamedTuple):
    """A file as it was found: its bytes without the zeros that end it, and its size."""

    data: bytes
    size: int


def _images(dir: Path, counts: list[int], segment: int) -> tuple[dict[str, Image], dict[str, Image]]:
    """The files of one log just before its close, which is what a kill leaves, and after it."""
    config = WalConfig(dir=str(dir), fsync_policy=FsyncPolicy.os(), max_segment_size=segment)
    wal, _ = Wal.open(config)
    given = records(sum(counts))
    for count in counts:
        wal.append_batch(given[:count])
        del given[:count]
    killed = _image(dir)
    wal.close()
    return killed, _image(dir)


def _image(dir: Path) -> dict[str, Image]:
    found = {path.name: path.read_bytes() for path in dir.iterdir()}
    return {name: Image(data.rstrip(b"\0"), len(data)) for name, data in found.items()}


def _lay_out(dir: Path, images: Mapping[str, Image]) -> None:
    """Written and synced before the time starts: dirty pages are not recovery's doing."""
    for name, image in images.items():
        file = OsFile(os.open(dir / name, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            file.allocate(image.size)
            assert file.pwrite(image.data, 0) == len(image.data)
            file.fsync()
        finally:
            file.close()
