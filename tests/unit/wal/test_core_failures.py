"""SegmentedLog: preallocation failures, rotation order and the failure latch, row by row (07 §1.3, §1.4)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from tests.unit.wal import kit
from topics.errors import WalClosed, WalError, WalIo, WalReadOnly, WriteFailed

SIZE = 1024


def assert_latched(log: object, kind: kit.Kind) -> None:
    """Every later write, sync and rotate raises WalReadOnly; reading works."""
    for call in (lambda: log.write([kind.unit(9)]), log.sync, log.rotate):
        with pytest.raises(WalReadOnly):
            call()
    id, end = log.position()
    with log.acquire(id) as lease:
        assert len(lease.file.pread(end, 0)) == end


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EINTR"])
def test_a_failed_sync_latches_the_log_for_good(disk: kit.Disk, kind: kit.Kind, error: str) -> None:
    """07 §1.4 row 1, W-17: never cleared, although the disk works again."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.sync()
    synced = log.synced()
    log.write([kind.unit(2)])
    disk.fail("fdatasync", error)
    with pytest.raises(WalIo) as caught:
        log.sync()
    assert caught.value.error is caught.value.__cause__
    assert_latched(log, kind)
    assert log.synced() == synced
    log.close()


def test_a_sync_that_would_succeed_again_is_not_tried_after_a_failure(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-17: nothing is acknowledged by a retry."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.sync()
    mark = disk.sim.disk_calls
    with pytest.raises(WalReadOnly):
        log.sync()
    assert disk.calls(mark) == []
    assert log.close() is False


def test_a_rotation_that_waited_for_a_sync_that_failed_proves_nothing(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-17, R-2: it does not sync again, and nobody takes that for his own."""
    gate = kit.Gate()

    def stop(op: str, path: str) -> None:
        if op == "fdatasync" and not gate.reached.is_set():
            gate.stop()
            raise OSError(5, "lost")

    hooked = kit.hooked(disk, stop)
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    active = log._active
    assert active is not None
    active.file = hooked.open(log.path(active.id), "rw")
    position = log.position()
    failing = kit.spawn(lambda: log.sync_to(position))
    gate.wait_reached()
    waits = threading.Event()
    log._sync_lock = kit.TellingLock(waits, log._sync_lock)  # type: ignore[assignment]
    rotating = kit.spawn(log.rotate)
    assert waits.wait(kit.WAIT_S)
    gate.open()
    with pytest.raises(WalIo):
        kit.finish([failing])
    with pytest.raises(WalReadOnly):
        kit.finish([rotating])
    with pytest.raises(WalReadOnly):
        log.sync_to(position)
    assert log.synced() < position
    assert_latched(log, kind)
    log.close()


def test_a_failed_sync_in_rotation_latches_the_log(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 1, R-2: on any path; the new segment does not become active."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.rotate()
    assert log.position()[0] == kind.naming.first_id
    assert_latched(log, kind)
    log.close()


def test_a_failed_sync_at_close_is_told(disk: kit.Disk, kind: kit.Kind) -> None:
    """R-2: commit, rotation, close."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.close()
    assert log.failed is not None


def test_a_failed_sync_in_finalize_latches_the_log(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-14, R-2."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.prepare_next()
    disk.fail("fsync", path=kind.file(kind.naming.first_id))
    log.rotate()
    assert_latched(log, kind)
    log.close()


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("written", [0, 2])
def test_a_write_without_space_is_taken_back_and_the_log_stays_usable(
    disk: kit.Disk, kind: kit.Kind, error: str, written: int
) -> None:
    """07 §1.4 row 2: cut back, synced, WriteFailed(full)."""
    log = kit.start_core(kind, disk)
    for n in range(written):
        log.write([kind.unit(n)])
    position = log.position()
    name = kind.file(position[0])
    before = disk.files()[name][: position[1]]
    # Half of the unit lands before the disk is full: these bytes must go.
    disk.fail("pwrite", "short")
    disk.fail("pwrite", error, index=2)
    mark = disk.sim.disk_calls
    with pytest.raises(WriteFailed) as caught:
        log.write([kind.unit(5)])
    assert caught.value.full
    assert isinstance(caught.value.__cause__, OSError)
    assert disk.calls(mark)[-2:] == [("truncate", name), ("fsync", name)]
    assert (disk.files()[name].rstrip(b"\0"), log.position()) == (before.rstrip(b"\0"), position)
    _, offset = log.write([kind.unit(6)])
    assert disk.files()[name][offset : offset + 64] == kind.unit(6)
    log.sync()
    disk.fs.acked(f"{kit.DIR}/{name}", log.position()[1])
    log.close()


def test_a_full_disk_takes_writes_again_when_space_is_back(kind: kit.Kind) -> None:
    """07 §1.4 row 2, on a disk that really is full (short write, then ENOSPC)."""
    disk = kit.Disk()
    log = kit.start_core(kind, disk, size=100_000, preallocate=False)
    disk.sim.capacity = 4096
    good = []
    with pytest.raises(WriteFailed) as caught:
        for n in range(100):
            log.write([kind.unit(n, 300)])
            good.append(n)
    assert caught.value.full
    with pytest.raises(WriteFailed):
        log.write([kind.unit(77, 3000)])
    disk.sim.capacity = 100_000
    log.write([kind.unit(88, 300)])
    log.sync()
    log.close()
    content = disk.files()[kind.file(kind.naming.first_id)]
    found = kind.codec.scan(memoryview(content), 0, "last")
    assert found.verdict == "clean"
    assert content.endswith(b"".join(kind.unit(n, 300) for n in [*good, 88]))


@pytest.mark.parametrize("error", ["EIO", "EINTR"])
def test_a_write_that_fails_otherwise_is_taken_back_and_latches(disk: kit.Disk, kind: kit.Kind, error: str) -> None:
    """07 §1.4 row 2: otherwise latch."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    end = log.position()[1]
    disk.fail("pwrite", error)
    with pytest.raises(WriteFailed) as caught:
        log.write([kind.unit(2)])
    assert not caught.value.full
    assert len(disk.files()[kind.file(kind.naming.first_id)]) == end
    assert_latched(log, kind)
    log.close()


def test_a_latched_log_refuses_a_sync_also_when_everything_is_synced(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 1: every later write, sync, rotate raises WalReadOnly."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.sync()
    disk.fail("pwrite", "EIO")
    with pytest.raises(WriteFailed):
        log.write([kind.unit(2)])
    with pytest.raises(WalReadOnly):
        log.sync()
    log.close()


def test_a_write_that_makes_no_progress_latches(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 2: no progress is no reason to loop for ever."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("pwrite", "zero", "always")
    with pytest.raises(WriteFailed) as caught:
        log.write([kind.unit(2)])
    assert not caught.value.full
    assert_latched(log, kind)
    log.close()


@pytest.mark.parametrize("op", ["truncate", "fsync"])
def test_a_cut_back_that_fails_latches(disk: kit.Disk, kind: kit.Kind, op: str) -> None:
    """07 §1.4 row 2: only success of the cut keeps the log usable."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("pwrite", "ENOSPC")
    disk.fail(op)
    with pytest.raises(WriteFailed) as caught:
        log.write([kind.unit(2)])
    assert not caught.value.full
    assert_latched(log, kind)
    log.close()


@pytest.mark.parametrize("op", ["open", "allocate", "fsync", "sync_dir"])
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_no_space_for_the_next_segment_leaves_the_active_one_its_room(
    disk: kit.Disk, kind: kit.Kind, op: str, error: str
) -> None:
    """07 §1.4 row 3."""
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1, 600)])
    two = kind.ids(2)[1]
    disk.fail(op, error, path="log" if op == "sync_dir" else kind.file(two))
    with pytest.raises(WriteFailed) as caught:
        log.rotate()
    assert caught.value.full
    assert kind.file(two) not in disk.files()
    assert log.write([kind.unit(2)])[0] == kind.naming.first_id
    log.rotate()
    assert log.position() == (two, 0)
    log.close()


def test_a_reservation_that_runs_out_of_space_gives_back_what_it_got(kind: kit.Kind) -> None:
    """W-12: ENOSPC: cut back to 0, unlink, error (13 §6: a failed reservation keeps what it got)."""
    disk = kit.Disk()
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1)])
    disk.sim.capacity = disk.sim._used * 512 + 512
    free = disk.sim.free_bytes("/log")
    mark = disk.sim.disk_calls
    with pytest.raises(WriteFailed) as caught:
        log.prepare_next()
    assert caught.value.full
    name = kind.file(kind.ids(2)[1])
    assert disk.calls(mark) == [("create", name), ("allocate", name), ("truncate", name), ("remove", name)]
    assert disk.sim.free_bytes("/log") == free
    disk.sim.capacity = None
    log.prepare_next()
    assert log.has_ready()
    log.close()


@pytest.mark.parametrize("op", ["open", "allocate"])
def test_an_io_error_while_preparing_is_told_and_leaves_no_file(disk: kit.Disk, kind: kit.Kind, op: str) -> None:
    """W-12, W-70: not full, and the next try may work."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    two = kind.ids(2)[1]
    disk.fail(op, "EIO", path=kind.file(two))
    with pytest.raises(WalError) as caught:
        log.prepare_next()
    assert isinstance(caught.value.__cause__, OSError)
    assert not getattr(caught.value, "full", False)
    assert kind.file(two) not in disk.files()
    log.close()


@pytest.mark.parametrize("op", ["fsync", "sync_dir"])
def test_a_failed_sync_of_a_new_segment_latches(disk: kit.Disk, kind: kit.Kind, op: str) -> None:
    """R-2: any failed WAL sync, on any path."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail(op, "EIO", path="log" if op == "sync_dir" else kind.file(kind.ids(2)[1]))
    with pytest.raises(WalError):
        log.rotate()
    with pytest.raises(WalReadOnly):
        log.write([kind.unit(2)])
    log.close()


def test_leftovers_of_a_failed_preparation_are_reused(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-12: when the unlink fails too, the zeros that stay do not stop the next try."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("allocate", "ENOSPC")
    disk.fail("remove", "EIO")
    with pytest.raises(WriteFailed):
        log.rotate()
    log.rotate()
    log.write([kind.unit(2)])
    assert log.position()[0] == kind.ids(2)[1]
    log.close()


def test_rotation_syncs_the_old_segment_before_the_new_one_takes_a_byte(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-16, seen at the disk; the new name is durable first (W-15), the old one is finalized (W-14)."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    old, new = (kind.file(id) for id in kind.ids(2))
    mark = disk.sim.disk_calls
    log.rotate()
    log.write([kind.unit(2)])
    calls = disk.calls(mark)
    order = {step: calls.index(step) for step in dict.fromkeys(calls)}
    assert order["fdatasync", old] < order["pwrite", new]
    assert order["create", new] < order["fsync", new] < order["sync_dir", "log"] < order["pwrite", new]
    assert order["fdatasync", old] < order["truncate", old] < order["fsync", old]
    log.close()


def test_every_byte_of_an_earlier_segment_is_durable_when_the_next_has_one(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-16."""
    log = kit.start_core(kind, disk)
    for n in range(3):
        log.write([kind.unit(n)])
        old = log.position()
        log.rotate()
        disk.fs.acked(f"{kit.DIR}/{kind.file(old[0])}", old[1])
    log.close()


def test_a_finalized_segment_has_its_logical_size_and_is_never_written_again(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-11, W-14, 07 §1.1 finalized: immutable."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    old, end = log.position()
    log.rotate()
    assert len(disk.files()[kind.file(old)]) == end
    assert len(disk.power_loss().files()[kind.file(old)]) == end
    disk.fs.sealed(f"{kit.DIR}/{kind.file(old)}")
    for n in range(2):
        log.write([kind.unit(n)])
        log.rotate()
    log.close()


def test_finalizing_can_be_left_to_an_executor(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 rotate: by the given executor, or inline."""
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1)])
    old, end = log.position()
    tasks: list[Callable[[], None]] = []
    log.rotate(defer=tasks.append)
    log.write([kind.unit(2)])
    assert len(disk.files()[kind.file(old)]) == SIZE
    tasks[0]()
    assert len(disk.files()[kind.file(old)]) == end
    log.close()


def test_a_crash_before_finalize_leaves_a_zero_tail_that_recovery_knows(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-14."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    end = log.position()[1]
    log.rotate(defer=lambda task: None)
    log.write([kind.unit(2)])
    log.sync()
    scans = kit.new_core(kind, disk.power_loss()).scan()
    assert (scans[0].scan.end, scans[0].scan.verdict, scans[0].damaged_bytes) == (end, "clean", 0)
    log.close()


def test_an_unlink_that_fails_stops_deletion_there_and_the_next_call_goes_on(
    disk: kit.Disk, kind: kit.Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """07 §1.4 row 4: stop, report what was deleted, raise nothing; logged."""
    log = kit.start_core(kind, disk)
    for n in range(5):
        log.write([kind.unit(n)])
        log.rotate()
    ids = kind.ids(6)
    disk.fail("remove", "EIO", index=3)
    with caplog.at_level(logging.WARNING, "topics.wal"):
        assert log.delete_before(ids[5]) == ids[:2]
    assert caplog.records
    assert disk.names() == [kind.file(id) for id in ids[2:]]
    assert [info.id for info in log.segments()] == ids[2:]
    log.acquire(ids[2]).release()
    assert log.delete_before(ids[5]) == ids[2:5]
    log.close()


def test_a_failed_directory_sync_in_deletion_raises_nothing_and_is_made_good(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 4: retried by the next call."""
    log = kit.start_core(kind, disk)
    for n in range(3):
        log.write([kind.unit(n)])
        log.rotate()
    ids = kind.ids(4)
    disk.fail("sync_dir", "EIO", "always")
    gone = log.delete_before(ids[3])
    assert gone == ids[: len(gone)]
    disk.mend()
    gone += log.delete_before(ids[3])
    assert gone == ids[:3]
    disk.fs.settled(kit.DIR)
    log.close()


def test_deletion_works_on_a_latched_log(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.4 row 1: write, sync and rotate raise; nothing else."""
    log = kit.start_core(kind, disk)
    for n in range(2):
        log.write([kind.unit(n)])
        log.rotate()
    log.write([kind.unit(3)])
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.sync()
    assert log.delete_before(10**9) == kind.ids(2)
    log.close()


def test_a_latched_log_is_told_to_the_observer_once(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §2 wal_read_only."""
    seen = kit.Seen()
    log = kit.start_core(kind, disk, observer=seen)
    log.write([kind.unit(1)])
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.sync()
    with pytest.raises(WalReadOnly):
        log.sync()
    assert seen.of("latched") == [("latched",)]
    log.close()


def test_a_caller_waiting_for_a_sync_hears_of_it_when_the_log_was_closed_after_a_failure(
    disk: kit.Disk, kind: kit.Kind
) -> None:
    """07 §1.4 row 1: an append in flight while another thread closes must not wait for ever."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    end = log.position()
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        log.close()
    waiting = kit.spawn(lambda: log.sync_to(end))
    try:
        with pytest.raises((WalClosed, WalReadOnly)):
            waiting.result(kit.WAIT_S)
    finally:
        log._synced = (10**9, 0)  # ends a thread that still turns
