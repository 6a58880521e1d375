"""Reading: across segments, following, deletion, damage, threads (W-54, W-80)."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tests.unit.wal import kit
from topics.errors import CrcMismatch, RecordError, SegmentNotFound, WalIo
from topics.fs import File
from topics.wal import FsyncPolicy, Position, Record

SIZE = 1024


def test_a_reader_goes_on_across_segments_to_the_end(disk: kit.Disk) -> None:
    """W-54; 07 §10: read_from does not stop at the segment's end."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 30)
    assert positions[-1].segment_id >= 3
    found = list(wal.read_from(positions[0]))
    assert found == [(kit.put(n, 100), position) for n, position in enumerate(positions)]
    wal.close()


def test_a_reader_may_start_at_every_record(disk: kit.Disk) -> None:
    """W-54: starts at a record boundary."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 20)
    for n, position in enumerate(positions):
        assert kit.numbers(wal, position) == list(range(n, 20))
    wal.close()


def test_a_reader_may_start_at_the_end_of_an_earlier_segment(disk: kit.Disk) -> None:
    """W-54: goes on across segments."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 20)
    end = wal.segments()[0].size
    assert kit.numbers(wal, Position(0, end)) == [n for n, p in enumerate(positions) if p.segment_id > 0]
    wal.close()


def test_next_record_returns_none_at_the_end_and_goes_on_when_there_is_more(disk: kit.Disk) -> None:
    """07 §5: item or None; W-54: the logical end seen when it gets there."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    reader = wal.read_from(kit.START)
    assert reader.next_record() == (kit.put(0), Position(0, 0))
    assert reader.next_record() is None
    position = wal.append(kit.put(1))
    assert reader.next_record() == (kit.put(1), position)
    assert reader.next_record() is None
    reader.close()
    wal.close()


def test_a_reader_sees_what_is_appended_while_it_reads(disk: kit.Disk) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    kit.fill(wal, 3)
    found = []
    for record, _ in wal.read_from(kit.START):
        found.append(int(record.key))
        if len(found) < 25:
            kit.fill(wal, 1, 100 + len(found))
    assert found == [0, 1, 2, *range(101, 125)]
    wal.close()


@pytest.mark.parametrize("past", [0, 1, 500, 10**12])
def test_an_offset_at_or_past_the_end_of_the_last_segment_is_empty(disk: kit.Disk, past: int) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk)
    kit.fill(wal, 3)
    end = wal.current_position()
    assert list(wal.read_from(Position(0, end.offset + past))) == []
    wal.close()


def test_an_empty_log_reads_empty(disk: kit.Disk) -> None:
    """W-54, W-33: prepared zero space is never read."""
    wal, _ = kit.open_wal(disk)
    assert len(disk.files()["000000.wal"]) == SIZE
    assert list(wal.read_from(kit.START)) == []
    wal.close()


def test_prepared_zero_space_is_never_read(disk: kit.Disk) -> None:
    """W-54: no pread reaches behind the logical end."""
    wal, _ = kit.open_wal(disk, size=SIZE, prepare_ahead=True)
    kit.fill(wal, 7)
    reads: list[tuple[int, int]] = []
    inner = wal._log.descriptors._open

    class Counting:
        def __init__(self, file: Any) -> None:
            self._file = file

        def pread(self, n: int, offset: int) -> Any:
            reads.append((offset, offset + n))
            return self._file.pread(n, offset)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    wal._log.descriptors.clear()
    wal._log.descriptors._open = lambda id: cast(File, Counting(inner(id)))
    assert kit.numbers(wal) == list(range(7))
    assert reads
    assert max(end for _, end in reads) <= wal.current_position().offset
    wal.close()


@pytest.mark.parametrize("id", [-1, 1, 5, 10**9])
def test_an_unknown_segment_is_not_found(disk: kit.Disk, id: int) -> None:
    """W-54: SegmentNotFound(id)."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    with pytest.raises(SegmentNotFound) as caught:
        list(wal.read_from(Position(id, 0)))
    assert caught.value.segment_id == id
    wal.close()


def test_a_prepared_segment_is_not_found(disk: kit.Disk) -> None:
    """W-54: it has no record and is no part of the log yet."""
    wal, _ = kit.open_wal(disk, size=SIZE, prepare_ahead=True)
    kit.fill(wal, 7)
    assert "000001.wal" in disk.names()
    with pytest.raises(SegmentNotFound):
        wal.read_from(Position(1, 0))
    wal.close()


def test_a_deleted_segment_is_not_found(disk: kit.Disk) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    kit.fill(wal, 30)
    wal.delete_segments_before(Position(2, 0))
    with pytest.raises(SegmentNotFound) as caught:
        wal.read_from(Position(1, 0))
    assert caught.value.segment_id == 1
    wal.close()


def test_a_negative_offset_is_refused(disk: kit.Disk) -> None:
    """07 §5: offset = first byte of a record."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    with pytest.raises(ValueError, match="-1"):
        wal.read_from(Position(0, -1))
    wal.close()


def test_a_reader_finishes_a_segment_deleted_under_it_and_goes_on(disk: kit.Disk) -> None:
    """07 §1.1 deleted: open readers may finish."""
    wal, _ = kit.open_wal(disk, size=SIZE, read_buffer=4096)
    positions = kit.fill(wal, 30)
    reader = wal.read_from(kit.START)
    first = reader.next_record()
    assert first is not None
    wal.delete_segments_before(Position(1, 0))
    assert [int(record.key) for record, _ in reader] == list(range(1, len(positions)))
    wal.close()


def test_a_reader_whose_next_segment_was_deleted_is_told_which(disk: kit.Disk) -> None:
    """W-54: never a silent gap."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 30)
    inside = sum(position.segment_id == 0 for position in positions)
    reader = wal.read_from(kit.START)
    assert reader.next_record() is not None
    wal.delete_segments_before(Position(3, 0))
    for n in range(1, inside):
        assert reader.next_record() == (kit.put(n, 100), positions[n])
    with pytest.raises(SegmentNotFound) as caught:
        reader.next_record()
    assert caught.value.segment_id == 1
    reader.close()
    wal.close()


def test_a_reader_that_held_nothing_of_a_deleted_segment_is_told(disk: kit.Disk) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    kit.fill(wal, 30)
    reader = wal.read_from(Position(1, 0))
    wal.delete_segments_before(Position(3, 0))
    with pytest.raises(SegmentNotFound):
        reader.next_record()
    wal.close()


def test_a_bad_record_raises_and_the_reader_stays_at_it(disk: kit.Disk) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk)
    positions = kit.fill(wal, 3)
    disk.sim.flip_bit("log/000000.wal", positions[1].offset + 20, 3)
    reader = wal.read_from(kit.START)
    assert reader.next_record() == (kit.put(0, 100), positions[0])
    for _ in range(3):
        with pytest.raises(CrcMismatch):
            reader.next_record()
    assert reader.position() == positions[1]
    reader.close()
    assert kit.numbers(wal, positions[2]) == [2]
    wal.close()


@pytest.mark.parametrize("value", [0x00, 0xFF])
@pytest.mark.parametrize("at", range(12))
def test_a_damaged_head_raises_a_record_error_and_nothing_else(disk: kit.Disk, at: int, value: int) -> None:
    """W-54, W-70: a length that claims too much does not read behind the end."""
    wal, _ = kit.open_wal(disk)
    positions = kit.fill(wal, 3)
    before = disk.files()["000000.wal"][positions[1].offset + at]
    disk.sim.set_byte("log/000000.wal", positions[1].offset + at, value)
    reader = wal.read_from(positions[1])
    if before == value:
        assert reader.next_record() == (kit.put(1, 100), positions[1])
    else:
        with pytest.raises(RecordError):
            reader.next_record()
    reader.close()
    wal.close()


def test_a_read_from_within_a_record_never_yields_a_record_that_was_not_appended(disk: kit.Disk) -> None:
    """W-54: it starts at a record boundary; elsewhere the checksum says no."""
    wal, _ = kit.open_wal(disk)
    positions = kit.fill(wal, 2)
    for offset in range(1, positions[1].offset):
        with pytest.raises(RecordError):
            wal.read_from(Position(0, offset)).next_record()
    wal.close()


@pytest.mark.parametrize("size", [4000, 4096, 5000, 70_000, 300_000])
def test_a_record_larger_than_the_read_buffer_is_read(disk: kit.Disk, size: int) -> None:
    """W-54: enlarged for larger records."""
    wal, _ = kit.open_wal(disk, size=1 << 20, read_buffer=4096)
    sizes = [20, size, 30, size, 10]
    for n, length in enumerate(sizes):
        wal.append(kit.put(n, length))
    assert kit.records(wal) == [kit.put(n, length) for n, length in enumerate(sizes)]
    wal.close()


@pytest.mark.parametrize("shift", range(0, 60, 7))
def test_records_across_the_edge_of_the_buffer_are_read_whole(disk: kit.Disk, shift: int) -> None:
    """W-54."""
    wal, _ = kit.open_wal(disk, size=1 << 20, read_buffer=4096)
    wal.append(kit.put(0, 20 + shift))
    kit.fill(wal, 300, 1, 40)
    assert kit.numbers(wal) == list(range(301))
    wal.close()


@pytest.mark.parametrize("buffer", [4096, 16384])
def test_small_records_are_read_in_pieces_of_at_most_the_read_buffer(disk: kit.Disk, buffer: int) -> None:
    """W-54: a buffer of read_buffer bytes."""
    wal, _ = kit.open_wal(disk, size=1 << 20, read_buffer=buffer)
    kit.fill(wal, 1000)
    before = disk.sim.reads["pread"]
    kit.records(wal)
    needed = wal.current_position().offset / buffer
    assert needed <= disk.sim.reads["pread"] - before <= 2 * needed + 8
    wal.close()


def test_short_reads_are_continued(disk: kit.Disk) -> None:
    """13 §6 for reads: a short count is not the end."""
    wal, _ = kit.open_wal(disk, size=1 << 20)
    kit.fill(wal, 100)
    disk.fail("pread", "short", "always")
    assert kit.numbers(wal) == list(range(100))
    disk.mend()
    wal.close()


def test_a_failed_read_is_told_and_may_be_repeated(disk: kit.Disk) -> None:
    """W-70: WalIo, the original as its cause."""
    wal, _ = kit.open_wal(disk)
    kit.fill(wal, 3)
    reader = wal.read_from(kit.START)
    disk.fail("pread", "EIO")
    with pytest.raises(WalIo) as caught:
        reader.next_record()
    assert isinstance(caught.value.__cause__, OSError)
    assert [int(record.key) for record, _ in reader] == [0, 1, 2]
    wal.close()


def test_readers_under_always_see_only_durable_records(disk: kit.Disk) -> None:
    """W-52 always, W-70: what may still fail is not shown."""
    gate = kit.Gate()
    armed = [False]

    def hook(op: str, path: str) -> None:
        if op == "fdatasync" and armed[0]:
            gate.stop()

    wal, _ = kit.open_wal(disk, kit.ALWAYS, fs=kit.hooked(disk, hook))
    wal.append(kit.put(0))
    armed[0] = True
    appending = kit.spawn(lambda: wal.append(kit.put(1)))
    gate.wait_reached()
    seen = kit.numbers(wal)
    gate.open()
    appending.result(kit.WAIT_S)
    assert (seen, kit.numbers(wal)) == ([0], [0, 1])
    wal.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, FsyncPolicy.batch(5), kit.OS], ids=["always", "batch", "os"])
def test_a_follower_wakes_on_append_and_ends_at_close(disk: kit.Disk, policy: FsyncPolicy) -> None:
    """W-54 follow."""
    wal, _ = kit.open_wal(disk, policy, size=SIZE)
    kit.fill(wal, 3)
    arrived = threading.Semaphore(0)
    found: list[int] = []

    def follow() -> list[int]:
        for record, _ in wal.read_from(kit.START, follow=True):
            found.append(int(record.key))
            arrived.release()
        return found

    following = kit.spawn(follow)
    for n in range(3, 30):
        assert arrived.acquire(timeout=kit.WAIT_S)
        kit.fill(wal, 1, n)
    for _ in range(3):
        assert arrived.acquire(timeout=kit.WAIT_S)
    assert not following.done()
    wal.close()
    assert following.result(kit.WAIT_S) == list(range(30))


def test_a_follower_ends_also_when_close_fails(disk: kit.Disk) -> None:
    """W-54, W-56: it waits for more, and no more will come."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    waits = kit.watched(wal)
    following = kit.spawn(lambda: [int(record.key) for record, _ in wal.read_from(kit.START, follow=True)])
    assert waits.wait(kit.WAIT_S)
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.close()
    try:
        assert following.result(kit.WAIT_S) == [0]
    finally:
        wal._wake()


def test_a_follower_waits_on_an_empty_log(disk: kit.Disk) -> None:
    """W-54 follow."""
    wal, _ = kit.open_wal(disk)
    waits = kit.watched(wal)
    following = kit.spawn(lambda: next(wal.read_from(kit.START, follow=True)))
    assert waits.wait(kit.WAIT_S)
    position = wal.append(kit.put(7))
    assert following.result(kit.WAIT_S) == (kit.put(7), position)
    wal.close()


def test_next_record_of_a_follower_does_not_wait(disk: kit.Disk) -> None:
    """07 §5: next_record() → item or None."""
    wal, _ = kit.open_wal(disk)
    assert wal.read_from(kit.START, follow=True).next_record() is None
    wal.close()


def test_a_follower_is_not_held_up_by_a_writer(disk: kit.Disk) -> None:
    """W-80: readers never take the lock of appends; here one stands in its write while a record is ready."""
    writing = kit.Gate()
    armed = [False]
    stuck: list[bool] = []

    def hook(op: str, path: str) -> None:
        if op == "pwrite" and armed[0]:
            armed[0] = False
            writing.stop()
        if op == "pread" and stuck:
            writing.wait_reached()

    wal, _ = kit.open_wal(disk, fs=kit.hooked(disk, hook))
    waits = kit.watched(wal)
    following = kit.spawn(lambda: next(wal.read_from(kit.START, follow=True)))
    assert waits.wait(kit.WAIT_S)
    stuck.append(True)

    def write() -> None:
        wal.append(kit.put(1))
        armed[0] = True
        wal.append(kit.put(2))

    appending = kit.spawn(write)
    try:
        assert following.result(kit.WAIT_S)[0] == kit.put(1)
    finally:
        writing.open()
        appending.result(kit.WAIT_S)
    wal.close()


def test_any_number_of_readers_run_during_appends_rotation_and_deletion(disk: kit.Disk) -> None:
    """W-80: with real threads; each reader sees consecutive records or is told that its segment is gone."""
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(1), timed=True, size=4096, fd_cache_size=2)
    kit.fill(wal, 1)
    done = threading.Event()

    def read() -> int:
        rounds = 0
        while not done.is_set() or rounds == 0:
            rounds += 1
            try:
                found = [int(r.key) for r, _ in wal.read_from(Position(wal.segments()[0].id, 0))]
            except SegmentNotFound:
                continue
            assert found == list(range(found[0], found[0] + len(found)))
        return rounds

    readers = [kit.spawn(read) for _ in range(3)]
    for n in range(1, 600):
        wal.append(kit.put(n, 100))
        if n % 50 == 0:
            wal.delete_segments_before(Position(wal.current_position().segment_id - 1, 0))
    done.set()
    assert all(rounds >= 1 for rounds in kit.finish(readers))
    wal.close()


def test_a_follower_in_a_thread_misses_nothing_through_rotations(disk: kit.Disk) -> None:
    """W-54, W-80."""
    wal, _ = kit.open_wal(disk, kit.OS, timed=True, size=2048)
    last = Record.put(b"999999", b"end")

    def follow() -> list[int]:
        found: list[int] = []
        for record, _ in wal.read_from(kit.START, follow=True):
            if record == last:
                return found
            found.append(int(record.key))
        return found

    following = [kit.spawn(follow) for _ in range(3)]
    kit.fill(wal, 500)
    wal.append(last)
    for found in kit.finish(following):
        assert found == list(range(500))
    wal.close()


def test_a_reader_is_a_context_manager_that_gives_its_descriptor_back(disk: kit.Disk) -> None:
    """W-20: a lease released."""
    wal, _ = kit.open_wal(disk, fd_cache_size=1)
    kit.fill(wal, 3)
    with wal.read_from(kit.START) as reader:
        assert reader.next_record() is not None
        (entry,) = wal._log.descriptors._entries.values()
        assert entry.leases == 1
    assert entry.leases == 0
    wal.close()
