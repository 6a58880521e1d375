"""Appending: positions, batches, rotation, sizes, failures, close (07 §5, §7)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal import kit
from topics.errors import RecordTooLarge, WalClosed, WalIo, WalReadOnly, WriteFailed
from topics.wal import FsyncPolicy, Position, Record, Wal

SIZE = 1024
POLICIES = [FsyncPolicy.always(), FsyncPolicy.batch(5), FsyncPolicy.os()]


def test_an_append_returns_the_position_of_its_first_byte(disk: kit.Disk) -> None:
    """W-51; 07 §5: offset = first byte of a record."""
    wal, _ = kit.open_wal(disk)
    length = len(kit.put(0).encode())
    assert [wal.append(kit.put(n)) for n in range(3)] == [Position(0, n * length) for n in range(3)]
    assert wal.current_position() == Position(0, 3 * length)
    wal.close()


def test_positions_are_ordered_as_the_log_is(disk: kit.Disk) -> None:
    """07 §5, W-81."""
    wal, _ = kit.open_wal(disk)
    positions = kit.fill(wal, 40)
    assert positions == sorted(set(positions))
    assert positions[-1].segment_id > 2
    wal.close()


def test_an_append_writes_its_encoding_and_nothing_else(disk: kit.Disk) -> None:
    """W-1, 07 §3: the file is the records."""
    wal, _ = kit.open_wal(disk)
    for n in range(3):
        wal.append(kit.put(n))
    wal.close()
    assert disk.files()["000000.wal"] == b"".join(kit.put(n).encode() for n in range(3))


def test_a_batch_is_one_write_back_to_back(disk: kit.Disk) -> None:
    """W-51: one write, one sync decision."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    wal.append(kit.put(0))
    mark = disk.sim.disk_calls
    positions = wal.append_batch([kit.put(n) for n in (1, 2, 3)])
    assert disk.calls(mark) == [("pwrite", "000000.wal"), ("fdatasync", "000000.wal")]
    length = len(kit.put(0).encode())
    assert positions == [Position(0, n * length) for n in (1, 2, 3)]
    assert kit.numbers(wal) == [0, 1, 2, 3]
    wal.close()


def test_an_empty_batch_returns_nothing_and_writes_nothing(disk: kit.Disk) -> None:
    """W-51."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    mark = disk.sim.disk_calls
    assert wal.append_batch([]) == []
    assert disk.sim.disk_calls == mark
    wal.close()


def test_a_batch_that_does_not_fit_rotates_first_and_stays_whole(disk: kit.Disk) -> None:
    """W-13, W-51: never split."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    kit.fill(wal, 7)
    positions = wal.append_batch([kit.put(n, 100) for n in range(7, 12)])
    assert {position.segment_id for position in positions} == {1}
    assert positions[0] == Position(1, 0)
    assert kit.numbers(wal) == list(range(12))
    wal.close()


def test_a_record_that_exactly_fills_the_segment_does_not_rotate(disk: kit.Disk) -> None:
    """W-13: logical + unit > max_segment_size."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    wal.append(Record.put(b"k", b"v" * 500))
    used = wal.current_position().offset
    rest = SIZE - used
    wal.append(Record.put(b"k", b"v" * (rest - 9)))
    assert wal.current_position() == Position(0, SIZE)
    assert wal.append(kit.put(1)) == Position(1, 0)
    wal.close()


@pytest.mark.parametrize("extra", [0, 1])
def test_a_unit_may_be_as_large_as_a_segment_and_not_a_byte_more(disk: kit.Disk, extra: int) -> None:
    """W-13: RecordTooLarge(size, max); nothing is written, the log goes on."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    overhead = len(Record.put(b"k", b"v" * 900).encode()) - 900
    unit = Record.put(b"k", b"v" * (SIZE - overhead + extra))
    if not extra:
        assert wal.append(unit) == Position(0, 0)
    else:
        before = disk.files()
        for call in (lambda: wal.append(unit), lambda: wal.append_batch([kit.put(1, 600), kit.put(2, 600)])):
            with pytest.raises(RecordTooLarge) as caught:
                call()
            assert caught.value.size > caught.value.max == SIZE
        assert disk.files() == before
    wal.append(kit.put(9))
    wal.close()


def test_a_too_large_unit_does_not_rotate(disk: kit.Disk) -> None:
    """W-13."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    wal.append(kit.put(1))
    with pytest.raises(RecordTooLarge):
        wal.append(kit.put(2, 2000))
    assert wal.current_position().segment_id == 0
    wal.close()


@pytest.mark.parametrize("prepare_ahead", [False, True])
def test_the_next_segment_is_created_at_rotation_or_ahead_on_request(disk: kit.Disk, prepare_ahead: bool) -> None:
    """07 §1.2: created at rotation, prepared ahead at half full if asked."""
    wal, _ = kit.open_wal(disk, size=SIZE, prepare_ahead=prepare_ahead)
    kit.fill(wal, 3)
    assert "000001.wal" not in disk.names()
    kit.fill(wal, 4, 3)
    assert ("000001.wal" in disk.names()) is prepare_ahead
    kit.fill(wal, 9, 7)
    assert kit.numbers(wal) == list(range(16))
    wal.close()


def test_preparing_ahead_in_the_background_loses_nothing(disk: kit.Disk) -> None:
    """W-80: with the real clock a thread prepares."""
    wal, _ = kit.open_wal(disk, size=SIZE, prepare_ahead=True, timed=True)
    kit.fill(wal, 60)
    assert kit.numbers(wal) == list(range(60))
    wal.close()
    wal, info = kit.open_wal(disk)
    assert (info.valid_records, info.holes) == (60, [])
    wal.close()


def test_a_failure_to_prepare_ahead_is_no_failure_of_the_append(disk: kit.Disk) -> None:
    """07 §1.4 row 3: the active segment keeps its room."""
    wal, _ = kit.open_wal(disk, size=SIZE, prepare_ahead=True)
    disk.fail("allocate", "ENOSPC", path="000001")
    kit.fill(wal, 16)
    assert kit.numbers(wal) == list(range(16))
    wal.close()


def test_sync_makes_everything_appended_before_it_durable(disk: kit.Disk) -> None:
    """W-53."""
    wal, _ = kit.open_wal(disk)
    kit.fill(wal, 12)
    wal.sync()
    for segment in wal.segments():
        disk.fs.acked(f"{kit.DIR}/{segment.id:06d}.wal", segment.size)
    image, _ = kit.open_wal(disk.power_loss())
    assert kit.numbers(image) == list(range(12))
    wal.close()
    image.close()


def test_flush_makes_no_disk_call(disk: kit.Disk) -> None:
    """W-53: appended bytes are with the operating system already."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    mark = disk.sim.disk_calls
    wal.flush()
    assert disk.sim.disk_calls == mark
    assert kit.Disk(disk.sim.kill_image()).files()["000000.wal"].startswith(kit.put(1).encode())
    wal.close()


def test_flush_and_sync_tell_of_a_latched_log(disk: kit.Disk) -> None:
    """W-53: flush checks the latch."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.sync()
    for call in (wal.flush, wal.sync, lambda: wal.append(kit.put(2)), lambda: wal.append_batch([kit.put(2)])):
        with pytest.raises(WalReadOnly):
            call()
    assert kit.numbers(wal) == [1]
    wal.close()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_an_append_on_a_full_disk_fails_full_and_works_when_space_is_back(policy: FsyncPolicy) -> None:
    """07 §1.4 row 2."""
    disk = kit.Disk()
    wal, _ = kit.open_wal(disk, policy, size=1 << 20, preallocate=False)
    wal.append(kit.put(1))
    disk.sim.capacity = disk.sim._used * 512
    with pytest.raises(WriteFailed) as caught:
        wal.append(kit.put(2, 2000))
    assert caught.value.full
    assert kit.numbers(wal) == [1]
    disk.sim.capacity = None
    wal.append(kit.put(3, 2000))
    wal.close()
    wal, info = kit.open_wal(disk, size=1 << 20)
    assert (kit.numbers(wal), info.corruption_detected) == ([1, 3], False)
    wal.close()


def test_no_room_for_the_next_segment_fails_full_and_smaller_records_still_go(disk: kit.Disk) -> None:
    """07 §1.4 row 3."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    wal.append(kit.put(1, 600))
    disk.fail("allocate", "ENOSPC", "always")
    with pytest.raises(WriteFailed) as caught:
        wal.append(kit.put(2, 600))
    assert caught.value.full
    assert wal.append(kit.put(3, 20)).segment_id == 0
    disk.mend()
    assert wal.append(kit.put(4, 600)).segment_id == 1
    assert kit.numbers(wal) == [1, 3, 4]
    wal.close()


@pytest.mark.parametrize("policy", POLICIES[:2], ids=lambda policy: policy.kind)
@pytest.mark.parametrize("batch", [False, True])
def test_an_append_whose_sync_failed_is_not_visible_afterwards(
    disk: kit.Disk, policy: FsyncPolicy, batch: bool
) -> None:
    """W-70: an error means the record is not in the log as far as this process reports."""
    wal, _ = kit.open_wal(disk, policy)
    wal.append(kit.put(1))
    disk.clock.advance(100)
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        _ = wal.append_batch([kit.put(2), kit.put(3)]) if batch else wal.append(kit.put(2))
    assert kit.numbers(wal) == [1]
    follower = wal.read_from(kit.START, follow=True)
    assert follower.next_record() is not None
    assert follower.next_record() is None
    follower.close()
    wal.close()


def test_records_appended_before_a_failed_sync_stay_visible(disk: kit.Disk) -> None:
    """W-70: what was answered with a position is in the log; 07 §1.4: reading works."""
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(5))
    kit.fill(wal, 3)
    disk.clock.advance(5)
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.append(kit.put(3))
    assert kit.numbers(wal) == [0, 1, 2]
    wal.close()


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_append_whose_write_failed_is_not_visible_afterwards(disk: kit.Disk, error: str) -> None:
    """W-70."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    disk.fail("pwrite", "short")
    disk.fail("pwrite", error, index=2)
    with pytest.raises(WriteFailed):
        wal.append(kit.put(2))
    assert kit.numbers(wal) == [1]
    wal.close()
    wal, _ = kit.open_wal(disk)
    assert kit.numbers(wal) == [1]
    wal.close()


def test_close_syncs_finalizes_and_releases_the_lock(disk: kit.Disk) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    wal.append(kit.put(1))
    end = wal.current_position().offset
    wal.close()
    assert len(disk.files()["000000.wal"]) == end
    image, info = kit.open_wal(disk.power_loss())
    assert (kit.numbers(image), info.prealloc_bytes_trimmed) == ([1], 0)
    image.close()
    kit.open_wal(disk)[0].close()


def test_close_is_idempotent(disk: kit.Disk) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    wal.close()
    mark = disk.sim.disk_calls
    wal.close()
    with wal:
        pass
    assert disk.sim.disk_calls == mark


CALLS: dict[str, Callable[[Wal], object]] = {
    "append": lambda wal: wal.append(kit.put(1)),
    "append_batch": lambda wal: wal.append_batch([kit.put(1)]),
    "flush": lambda wal: wal.flush(),
    "sync": lambda wal: wal.sync(),
    "current_position": lambda wal: wal.current_position(),
    "read_from": lambda wal: wal.read_from(kit.START),
    "delete_segments_before": lambda wal: wal.delete_segments_before(kit.START),
    "segments": lambda wal: wal.segments(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_log_refuses_every_call(disk: kit.Disk, call: str) -> None:
    """W-56: later calls raise WalClosed."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    wal.close()
    mark = disk.sim.disk_calls
    with pytest.raises(WalClosed):
        CALLS[call](wal)
    assert disk.sim.disk_calls == mark


@pytest.mark.parametrize("call", CALLS)
def test_a_log_closed_with_an_error_refuses_every_call(disk: kit.Disk, call: str) -> None:
    """W-56: closed is closed, whatever the last sync said."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.close()
    with pytest.raises(WalClosed):
        CALLS[call](wal)


def test_a_reader_of_a_closed_log_is_told(disk: kit.Disk) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(0))
    reader = wal.read_from(kit.START)
    wal.close()
    with pytest.raises(WalClosed):
        reader.next_record()


def test_a_failed_close_still_releases_the_lock(disk: kit.Disk) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.close()
    wal.close()
    kit.open_wal(disk)[0].close()


def test_a_log_is_a_context_manager(disk: kit.Disk) -> None:
    """07 §5."""
    with kit.open_wal(disk)[0] as wal:
        wal.append(kit.put(1))
    with pytest.raises(WalClosed):
        wal.append(kit.put(2))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_a_log_that_nobody_keeps_is_closed(disk: kit.Disk, policy: FsyncPolicy, timed: bool) -> None:
    """W-56: garbage collection attempts the same."""
    wal, _ = kit.open_wal(disk, policy, timed=timed)
    kit.fill(wal, 3)
    del wal
    gc.collect()
    image, info = kit.open_wal(disk.power_loss())
    assert (kit.numbers(image), info.prealloc_bytes_trimmed) == ([0, 1, 2], 0)
    image.close()
    kit.open_wal(disk)[0].close()


def test_collecting_a_log_whose_sync_fails_is_logged_and_raises_nothing(
    disk: kit.Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """W-56: attempts."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    disk.fail("fdatasync")
    with caplog.at_level(logging.ERROR, "topics.wal"):
        del wal
        gc.collect()
    assert caplog.records
    kit.open_wal(disk)[0].close()


def test_deletion_removes_whole_segments_before_the_position(disk: kit.Disk) -> None:
    """W-55: id < min(p.segment_id, active id); the count."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 30)
    ids = sorted({position.segment_id for position in positions})
    assert wal.delete_segments_before(Position(0, 500)) == 0
    assert wal.delete_segments_before(Position(2, 500)) == 2
    assert [info.id for info in wal.segments()] == ids[2:]
    assert wal.delete_segments_before(Position(2, 10**9)) == 0
    assert kit.numbers(wal, Position(2, 0)) == [n for n, p in enumerate(positions) if p.segment_id >= 2]
    wal.close()


@pytest.mark.parametrize("cutoff", [0, 1, 10**9])
def test_deletion_never_touches_the_active_segment(disk: kit.Disk, cutoff: int) -> None:
    """W-55; 07 §10: cutoff equal to the active segment deletes everything before it."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    kit.fill(wal, 30)
    active = wal.current_position().segment_id
    assert wal.delete_segments_before(Position(active + cutoff, 0)) == active
    assert disk.names() == [f"{active:06d}.wal", "LOCK"]
    wal.append(kit.put(99))
    wal.close()
    wal, info = kit.open_wal(disk, corruption_policy="fail")
    assert (wal.segments()[0].id, info.holes, info.corruption_detected) == (active, [], False)
    wal.close()


def test_segments_tell_ids_and_logical_sizes(disk: kit.Disk) -> None:
    """07 §5."""
    wal, _ = kit.open_wal(disk, size=SIZE)
    positions = kit.fill(wal, 12)
    length = len(kit.put(0, 100).encode())
    counts = {id: sum(p.segment_id == id for p in positions) for id in {p.segment_id for p in positions}}
    assert wal.segments() == [(id, count * length) for id, count in sorted(counts.items())]
    wal.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(6, 300)),
        st.tuples(st.just("batch"), st.integers(0, 6)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("power"), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
    ),
    max_size=30,
)


@given(steps=steps, policy=st.sampled_from(POLICIES), ahead=st.booleans(), prealloc=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_log_is_the_list_of_what_was_appended(
    steps: list[tuple[str, int]], policy: FsyncPolicy, ahead: bool, prealloc: bool
) -> None:
    """W-51, W-54, W-55, W-60, W-62 against a model: what was synced stays, what follows is a prefix."""
    disk = kit.Disk()
    options = {"size": 512, "prepare_ahead": ahead, "preallocate": prealloc}
    wal, _ = kit.open_wal(disk, policy, **options)
    model: list[tuple[Position, int]] = []
    synced = n = 0
    for step, argument in steps:
        if step == "append":
            model.append((wal.append(kit.put(n, argument)), n))
            n += 1
        elif step == "batch":
            batch = range(n, n + argument)
            model.extend(zip(wal.append_batch([kit.put(i) for i in batch]), batch, strict=True))
            n += argument
        elif step == "sync":
            wal.sync()
        elif step == "delete":
            cutoff = wal.segments()[0].id + argument
            wal.delete_segments_before(Position(cutoff, 0))
            kept = [(p, i) for p, i in model if p.segment_id >= wal.segments()[0].id]
            synced -= len(model) - len(kept)
            model = kept
        else:
            if step == "reopen":
                wal.close()
                synced = len(model)
            else:
                old, disk = wal, disk.killed() if step == "kill" else disk.power_loss()
                old.close()
            wal, _ = kit.open_wal(disk, policy, **options)
            found = [int(record.key) for record, _ in wal.read_from(Position(wal.segments()[0].id, 0))]
            known = [i for _, i in model]
            assert found == known[: len(found)]
            assert len(found) >= (len(known) if step == "kill" else max(0, synced))
            model = model[: len(found)]
        if step == "sync" or policy.kind == "always" or step in ("reopen", "kill", "power"):
            synced = len(model)
    read = [(position, int(record.key)) for record, position in wal.read_from(Position(wal.segments()[0].id, 0))]
    assert read == model
    wal.close()
    assert disk.fs.violations == []
