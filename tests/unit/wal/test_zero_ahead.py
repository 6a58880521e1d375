"""Zeros written ahead over reserved space, which make the syncs behind them cheaper and nothing else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.unit.wal import kit
from topics.errors import WriteFailed
from topics.fs import File
from topics.wal import FsyncPolicy, Record
from topics.wal.core import SegmentedLog

SIZE = 4096
AHEAD = 1000


def writes(disk: kit.Disk, since: int) -> int:
    return sum(op == "pwrite" for op, _ in disk.calls(since))


def start(disk: kit.Disk, kind: kit.Kind, **options: Any) -> SegmentedLog:
    return kit.start_core(kind, disk, size=SIZE, zero_ahead=AHEAD, **options)


def spans(log: SegmentedLog, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The zeros that are written from now on: first byte and end of each."""
    found: list[tuple[int, int]] = []
    write = log._write_with_zeros

    def noted(active: Any, file: File, parts: Any, end: int, ahead: bool) -> bool:
        done = write(active, file, parts, end, ahead)
        if done:
            found.append((end, active.unzeroed_from))
        return done

    monkeypatch.setattr(log, "_write_with_zeros", noted)
    return found


def test_zeros_are_written_once_for_many_writes(
    disk: kit.Disk, kind: kit.Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W-12: again only when data has come to the end of the last zeros."""
    log = start(disk, kind)
    zeros = spans(log, monkeypatch)
    ends = []
    for n in range(20):
        log.write([kind.unit(n)])
        ends.append(log.position()[1])
    expected: list[tuple[int, int]] = []
    for end in ends:
        if end > (expected[-1][1] if expected else 0):
            expected.append((end, end + AHEAD))
    assert zeros == expected
    assert len(zeros) == 2
    log.close()


def test_zeros_stay_within_the_segment_and_leave_the_data_alone(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-11, W-54: a full segment is data from end to end, the file is never longer than its reservation."""
    log = start(disk, kind)
    data = b"".join(kind.unit(n) for n in range(100))
    n = 0
    while log.fits(len(kind.unit(n))):
        log.write([kind.unit(n)])
        n += 1
        assert len(disk.files()[kind.file(log.position()[0])]) == SIZE
    id, end = log.position()
    content = disk.files()[kind.file(id)]
    assert content[:end].endswith(data[: n * len(kind.unit(0))])
    assert not content[end:].strip(b"\0")
    log.close()


def test_what_was_written_before_is_never_taken_for_zeros(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-33: behind a short write that is put together where a long one was, zeros are zeros."""
    log = start(disk, kind)
    log.write([b"\xaa" * 400])
    assert log._active is not None
    zeroed = log._active.unzeroed_from
    while log._active.unzeroed_from == zeroed < SIZE:
        log.write([b"\xbb" * 40])
    id, end = log.position()
    assert not disk.files()[kind.file(id)][end:].strip(b"\0")
    log.close()


def test_a_write_that_was_interrupted_leaves_nothing_to_be_taken_for_zeros(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-33: a signal strikes behind the write of data and zeros; what it wrote is cut, and used for nothing again."""
    struck: list[str] = []

    def hook(op: str, path: str) -> None:
        if op == "after pwrite" and not struck:
            struck.append(path)
            raise KeyboardInterrupt

    log = start(disk, kind, fs=kit.hooked(disk, hook))
    with pytest.raises(KeyboardInterrupt):
        log.write([b"\xaa" * 400])
    log.write([b"\xbb" * 40])
    log.rotate()
    log.write([b"\xcc" * 40])
    files = disk.files()
    for id in (log.position()[0] - 1, log.position()[0]):
        assert b"\xaa" not in files[kind.file(id)]
    assert not files[kind.file(id)][log.position()[1] :].strip(b"\0")
    log.close()


def test_a_write_larger_than_the_zeros_would_be_gets_none(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-12: the next one of its size would only write over them."""
    log = start(disk, kind)
    mark = disk.sim.disk_calls
    log.write([kind.unit(0, AHEAD)])
    log.write([kind.unit(1, AHEAD)])
    assert writes(disk, mark) == 2
    assert log._active is not None
    assert log._active.unzeroed_from == log.position()[1]
    log.write([kind.unit(2)])
    assert writes(disk, mark) == 3
    assert log._active.unzeroed_from == log.position()[1] + AHEAD
    log.close()


def test_a_write_whose_sync_nobody_waits_for_gets_none(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-12: they would be written for nothing; the next one that is waited for gets its own."""
    log = start(disk, kind)
    assert log._active is not None
    for n in range(3):
        log.write([kind.unit(n)], ahead=False)
        assert log._active.unzeroed_from == log.position()[1]
    log.write([kind.unit(3)])
    assert log._active.unzeroed_from == log.position()[1] + AHEAD
    log.close()


def test_data_and_zeros_are_one_write(disk: kit.Disk, kind: kit.Kind) -> None:
    """P-4, S-79: however much of it is written at once."""
    log = start(disk, kind)
    mark = disk.sim.disk_calls
    log.write([kind.unit(0)])
    assert writes(disk, mark) == 1
    assert disk.files()[kind.file(log.position()[0])][: log.position()[1]].endswith(kind.unit(0))
    log.close()


def test_space_that_was_not_reserved_is_not_zeroed(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-12: `preallocate=False` is for tight quotas; the file holds the data and nothing more."""
    log = start(disk, kind, preallocate=False)
    log.write([kind.unit(1)])
    id, end = log.position()
    assert len(disk.files()[kind.file(id)]) == end
    log.close()


def test_a_failed_write_ends_the_zeros_because_its_cut_ends_the_reservation(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 2: on a full disk the log takes no space but for data."""
    log = start(disk, kind)
    log.write([kind.unit(1)])
    disk.fail("pwrite", "ENOSPC")
    with pytest.raises(WriteFailed):
        log.write([kind.unit(2)])
    for n in range(2, 30):
        log.write([kind.unit(n)])
        id, end = log.position()
        assert len(disk.files()[kind.file(id)]) == end
    log.close()


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_zeros_that_there_is_no_space_for_fail_nothing(disk: kit.Disk, kind: kit.Kind, error: str) -> None:
    """07 §1.4: they are not data; writes go on without them, and the log is not latched."""
    log = start(disk, kind)
    disk.fail("pwrite", error)
    mark = disk.sim.disk_calls
    for n in range(20):
        log.write([kind.unit(n)])
    log.sync()
    assert log.failed is None
    assert writes(disk, mark) == 20  # that one failed is no call of the disk
    log.close()


def test_a_write_with_zeros_that_fails_otherwise_is_a_failed_write(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4: which of the two it was nobody knows; nothing is acknowledged by trying again."""
    log = start(disk, kind)
    disk.fail("pwrite", "EIO")
    with pytest.raises(WriteFailed):
        log.write([kind.unit(0)])
    assert log.failed is not None
    log.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, FsyncPolicy.batch(5), kit.OS], ids=["always", "batch", "os"])
def test_only_a_log_that_syncs_each_append_writes_zeros(disk: kit.Disk, policy: FsyncPolicy) -> None:
    """W-52: the others sync too seldom to gain from it."""
    wal, _ = kit.open_wal(disk, policy)
    wal.append(kit.put(0))
    active = wal._log._active
    assert active is not None
    assert (active.unzeroed_from < sys.maxsize) is (policy == kit.ALWAYS)
    wal.close()


def test_a_crash_leaves_zeros_that_recovery_takes_for_prepared_space(disk: kit.Disk) -> None:
    """W-60: a clean end, no corruption, every acknowledged record there; a second open cuts nothing."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=SIZE)
    for n in range(5):
        wal.append(kit.put(n))
    for after in (disk.power_loss(), disk.killed()):
        again, found = kit.open_wal(after, kit.ALWAYS, size=SIZE)
        assert (found.valid_records, found.corruption_detected, found.bytes_truncated) == (5, False, 0)
        again.append(Record.put(b"5", b""))
        again.close()
    wal.close()
