"""The bound on free space: when a shard is full before the disk is (S-80)."""

from __future__ import annotations

import pytest

from tests.unit.storage import kit
from topics.errors import CommitFailed, StorageFull
from topics.testing.faultfs import FAULTS

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2
SECOND_MS = 1000
BOUND = 64 << 10
LOW = BOUND - 512


@pytest.fixture
def run(disk: kit.Disk) -> kit.Run:
    """A shard with a bound; its first file is open."""
    run = kit.Run(disk, min_free_bytes=BOUND)
    run.put(durable=True)
    return run


@pytest.fixture
def stepped(disk: kit.Disk) -> kit.Run:
    """The same, with helpers that move only when told."""
    run = kit.Run(disk, kit.SteppedOwner(), min_free_bytes=BOUND)
    run.put(durable=True)
    run.tick(SECOND_MS)
    return run


def asked(run: kit.Run) -> int:
    return run.disk.faults.counts["free_bytes"]


def test_a_shard_is_full_when_free_space_falls_below_the_bound(run: kit.Run) -> None:
    """S-80: found by the clock, whether or not anything is written."""
    run.disk.leave(BOUND)
    run.tick(SECOND_MS)
    assert run.state == "ok"
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    assert run.state == "full"
    assert str(LOW) in run.shard.reason
    with pytest.raises(StorageFull):
        run.submit()


def test_free_space_is_looked_at_once_a_second(run: kit.Run) -> None:
    """S-80: not more often, however often the timer comes."""
    run.tick(SECOND_MS)
    before = asked(run)
    for _ in range(99):
        run.tick(10)
    assert asked(run) == before
    run.tick(10)
    assert asked(run) == before + 1


def test_without_a_bound_nobody_asks(disk: kit.Disk) -> None:
    """S-80: 0 means none."""
    run = kit.Run(disk)
    for _ in range(20):
        run.put(900)
        run.tick(SECOND_MS)
    assert asked(run) == 0


def test_asking_is_no_work_for_the_owner(stepped: kit.Run) -> None:
    """06 §6.3: the owner never waits for a disk; neither the timer nor a write asks it."""
    before = asked(stepped)
    stepped.write(HALF)
    stepped.write(HALF)
    stepped.disk.clock.advance(SECOND_MS)
    stepped.shard.tick()
    assert asked(stepped) == before
    stepped.settle()
    assert asked(stepped) > before


def test_a_look_that_takes_long_is_not_repeated_meanwhile(stepped: kit.Run) -> None:
    """S-80: one at a time."""
    for _ in range(5):
        stepped.disk.clock.advance(SECOND_MS)
        stepped.shard.tick()
    assert stepped.owner.waiting(HELPER) == 1


def test_what_was_accepted_before_is_written_and_answered(stepped: kit.Run) -> None:
    """S-73, S-80: `full` refuses new records; what fits the active file needs no space."""
    stepped.disk.leave(LOW)
    tickets = [stepped.submit(durable=durable) for durable in (True, False)]
    stepped.disk.clock.advance(SECOND_MS)
    stepped.shard.tick()
    stepped.owner.step(HELPER)
    assert stepped.state == "full"
    stepped.settle()
    assert all(ticket.lsn.file_no == 1 for ticket in tickets)


@pytest.mark.parametrize("size", [64, 100, 128, 500])
def test_records_leave_room_in_a_file_for_deletes(disk: kit.Disk, size: int) -> None:
    """S-80, T11: however exactly records fill the last file that could be made, deletes still fit it."""
    run = kit.Run(disk)
    run.put(size, durable=True)
    run.disk.fill()
    while run.state == "ok":
        ticket = run.submit(size, durable=True)
        run.settle()
    assert isinstance(ticket.error, CommitFailed)
    for _ in range(2):
        ticket = run.send(kit.control_frame(durable=True), durable=True, control=True)
        run.settle()
        assert ticket.lsn.file_no == 1


def test_control_frames_are_taken_while_they_fit(run: kit.Run) -> None:
    """S-80: deletes work when space is short."""
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    ticket = run.send(kit.control_frame(durable=True), durable=True, control=True)
    run.settle()
    assert ticket.lsn.file_no == 1
    assert run.state == "full"


@pytest.mark.parametrize("prepared", [False, True])
def test_a_rotation_below_the_bound_makes_the_shard_full_with_nothing_written(run: kit.Run, prepared: bool) -> None:
    """S-80, S-85: looked at before it, not only by the clock."""
    run.put(HALF if prepared else HALF - 400)
    assert run.shard.log.has_ready() == prepared
    end = run.shard.log.position()
    run.disk.leave(LOW)
    failed = run.put(HALF + 600)
    assert isinstance(failed.error, CommitFailed)
    assert (run.state, run.shard.log.position()) == ("full", end)
    run.disk.free()
    run.tick(SECOND_MS)
    assert run.put(HALF + 600).lsn.file_no == 2


def test_no_file_is_prepared_below_the_bound(run: kit.Run) -> None:
    """S-80, S-84: looked at before it; what is active is written on, the next record is refused."""
    run.disk.leave(LOW)
    assert run.put(HALF).lsn.file_no == 1
    assert kit.name(2) not in run.disk.files()
    assert run.state == "full"


def test_a_run_below_the_bound_opens_no_file(disk: kit.Disk) -> None:
    """S-80, S-20: and takes writes when space is back."""
    run = kit.Run(disk, min_free_bytes=BOUND)
    disk.leave(LOW)
    assert isinstance(run.put().error, CommitFailed)
    assert (run.state, disk.files()) == ("full", {})
    disk.free()
    run.tick(SECOND_MS)
    assert run.put(durable=True).lsn.file_no == 1


def test_a_shard_is_well_again_only_above_the_bound(run: kit.Run) -> None:
    """S-80: that the next file could be allocated is not enough."""
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    for _ in range(5):
        run.tick(SECOND_MS)
        assert run.state == "full"
    assert kit.name(2) not in run.disk.files()
    run.disk.free()
    run.tick(SECOND_MS)
    assert run.state == "ok"
    assert kit.name(2) in run.disk.files()


def test_the_bound_holds_with_the_next_file_allocated(run: kit.Run) -> None:
    """S-80: or making it would bring the shard back to `full` at once."""
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    run.disk.leave(BOUND + kit.FILE_BYTES - 512)
    run.tick(SECOND_MS)
    assert run.state == "full"
    run.disk.leave(BOUND + kit.FILE_BYTES)
    run.tick(SECOND_MS)
    assert run.state == "ok"
    run.tick(SECOND_MS)
    assert run.state == "ok"


def test_with_the_next_file_at_hand_the_bound_alone_decides(run: kit.Run) -> None:
    """S-80: its space is taken already."""
    run.put(HALF)
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    run.disk.leave(BOUND)
    run.tick(SECOND_MS)
    assert run.state == "ok"


@pytest.mark.parametrize("error", FAULTS["free_bytes"])
def test_a_volume_that_cannot_be_asked_changes_nothing(run: kit.Run, error: str) -> None:
    """S-80: neither into `full`, nor out of it; and it latches nothing."""
    run.disk.fail("free_bytes", error, times="always")
    run.tick(SECOND_MS)
    places = [run.put(900).lsn for _ in range(12)]
    assert run.state == "ok"
    assert places[-1].file_no > 2
    run.disk.faults.clear()
    run.disk.leave(LOW)
    run.tick(SECOND_MS)
    run.disk.free()
    run.disk.fail("free_bytes", error, times="always")
    run.tick(SECOND_MS)
    assert run.state == "full"
    run.disk.faults.clear()
    run.tick(SECOND_MS)
    assert run.state == "ok"


def test_a_latched_shard_does_not_look(run: kit.Run) -> None:
    """S-78: `read_only` for the rest of the run."""
    run.disk.fail("fdatasync")
    run.put(durable=True)
    before = asked(run)
    run.disk.leave(LOW)
    run.tick(10 * SECOND_MS)
    assert (run.state, asked(run)) == ("read_only", before)


def test_a_look_reported_to_a_latched_shard_does_not_soften_it(stepped: kit.Run) -> None:
    """S-78."""
    stepped.disk.leave(LOW)
    stepped.disk.clock.advance(SECOND_MS)
    stepped.shard.tick()
    stepped.disk.fail("fdatasync")
    stepped.write(durable=True)
    stepped.owner.step(LANE)
    assert stepped.state == "read_only"
    stepped.settle()
    assert stepped.state == "read_only"
