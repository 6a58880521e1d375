"""What a shard tells of its places: where submissions start, and how far everything is finished (06 §6.3, S-192)."""

from __future__ import annotations

import random

import pytest

from tests.unit.storage import kit
from topics.codec import frame
from topics.errors import CommitFailed
from topics.storage.shard import Lsn

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2
MARK = len(kit.open_mark(1))


def test_a_known_start_is_where_a_batch_began(run: kit.Run) -> None:
    """S-192: a replay position is a submission start, never inside one."""
    first = run.put(count=3)
    second = run.put(count=2)
    assert run.shard.start_before(1, first.lsn.offset) == first.lsn.offset
    assert run.shard.start_before(1, second.lsn.offset - 1) == first.lsn.offset
    assert run.shard.start_before(1, second.lsn.offset) == second.lsn.offset
    assert run.shard.start_before(1, second.lsn.offset + 70) == second.lsn.offset
    assert run.shard.start_before(1, 1 << 40) == second.lsn.offset


def test_in_front_of_the_first_batch_the_file_begins(run: kit.Run) -> None:
    """S-192, S-20: the open mark is a submission of its own."""
    first = run.put()
    assert run.shard.start_before(1, first.lsn.offset - 1) == 0
    assert run.shard.start_before(1, 0) == 0


def test_of_a_file_that_this_run_has_not_written_only_its_beginning_is_known(disk: kit.Disk) -> None:
    """S-192: a file of an earlier run, one that never was, and one that is only prepared."""
    kit.Run(disk).put(HALF, durable=True)
    again = kit.Run(disk.killed(), run=2)
    again.put(HALF)
    assert [again.shard.start_before(number, 3000) for number in (1, 3, 99)] == [0, 0, 0]
    assert again.shard.start_before(2, 3000) > 0


def test_each_file_has_starts_of_its_own(run: kit.Run) -> None:
    """S-192: across rotations; starts are offsets in their file."""
    places = [run.put(900).lsn for _ in range(12)]
    assert places[-1].file_no > 2
    for place in places:
        assert run.shard.start_before(place.file_no, place.offset + 500) == place.offset


def test_every_known_start_is_a_submission_start_of_the_file(disk: kit.Disk) -> None:
    """S-192, S-24: held against the frames on the disk, with failed writes and sync marks in between."""
    run = kit.Run(disk)
    rng = random.Random("starts")
    for n in range(80):
        for _ in range(rng.randrange(1, 4)):
            run.submit(rng.choice((64, 100)), count=rng.randrange(1, 5), durable=rng.random() < 0.3)
        if n % 20 == 10:
            disk.fail("pwrite", "ENOSPC")
        run.settle()
        run.tick(rng.choice((1, kit.SYNC_MARK_MS, 1000)))
        if run.state == "full":
            run.tick(1000)
    known = 0
    for number in range(1, run.shard.log.position()[0] + 1):
        data = run.bytes_of(number)
        rows = frame.scan_frames(data).rows
        inside = [False, *((rows["flags"] & frame.MORE) != 0).tolist()[:-1]]
        starts = {int(offset) for offset, within in zip(rows["offset"], inside, strict=True) if not within}
        told = {run.shard.start_before(number, offset) for offset in range(len(data))}
        assert told <= starts
        known += len(told)
    assert known > 60


def test_starts_of_deleted_files_are_forgotten(run: kit.Run) -> None:
    """S-89: what is below the replay position is of no use."""
    places = [run.put(900).lsn for _ in range(12)]
    last = places[-1].file_no
    run.shard.forget_starts(last)
    for place in places:
        expected = place.offset if place.file_no == last else 0
        assert run.shard.start_before(place.file_no, place.offset) == expected


def test_a_shard_with_nothing_under_way_has_finished_everything(run: kit.Run) -> None:
    """S-77: `done_pos` is where the next byte goes."""
    run.put(durable=True)
    run.put()
    assert run.shard.oldest_open() is None
    assert run.shard.done_pos() == run.shard.log.position()
    assert isinstance(run.shard.done_pos(), Lsn)


def test_before_the_first_file_everything_of_earlier_runs_is_finished(disk: kit.Disk) -> None:
    """S-77, S-21: the run's first file begins behind them, also while it is not there yet."""
    kit.Run(disk).put(durable=True)
    again = kit.Run(disk.killed(), kit.SteppedOwner(), run=2)
    assert (again.shard.oldest_open(), again.shard.done_pos()) == (None, (2, 0))
    ticket = again.submit()
    assert again.shard.oldest_open() == again.shard.done_pos() == (2, 0)
    again.settle()
    assert again.shard.oldest_open() is None
    assert again.shard.done_pos() == (2, ticket.lsn.offset + 64)


def test_a_number_taken_from_a_snapshot_counts_before_the_first_file_too(disk: kit.Disk) -> None:
    """S-77, S-21."""
    assert kit.Run(disk, first_file=9).shard.done_pos() == (9, 0)


def test_what_is_queued_is_open(stepped: kit.Run) -> None:
    """S-77: durable or not; it will lie at or behind the end of the log."""
    end = stepped.shard.log.position()
    for durable in (False, True):
        ticket = stepped.submit(durable=durable)
        assert stepped.shard.oldest_open() == end
        assert stepped.shard.done_pos() == end
        stepped.settle()
        assert ticket.lsn == end
        end = stepped.shard.log.position()


def test_what_is_not_durable_is_finished_when_written(stepped: kit.Run) -> None:
    """S-77, 06 §6.3 finish: it waits for no sync."""
    stepped.write()
    assert stepped.shard.oldest_open() is None
    assert stepped.shard.done_pos() == stepped.shard.log.position()


def test_what_is_durable_is_open_until_its_sync(stepped: kit.Run) -> None:
    """S-77: the oldest of them; what was written behind it does not matter."""
    end = stepped.shard.log.position()
    stepped.write(durable=True)
    stepped.write()
    stepped.submit()
    assert stepped.shard.oldest_open() == stepped.shard.done_pos() == end
    report = stepped.owner.work(LANE)
    assert stepped.shard.oldest_open() == end
    report()
    assert stepped.shard.done_pos() > end


def test_the_end_of_what_is_finished_follows_each_sync(stepped: kit.Run) -> None:
    """S-77: it goes to the next one that waits."""
    stepped.write(durable=True)
    report = stepped.owner.work(LANE)
    next_start = stepped.shard.log.position()
    behind = stepped.write(durable=True)
    report()
    assert stepped.shard.done_pos() == next_start
    stepped.settle()
    assert behind.lsn == next_start
    assert stepped.shard.oldest_open() is None


def test_what_is_finished_together_is_open_until_all_of_it_is(stepped: kit.Run) -> None:
    """S-77: all *earlier* frames are published; those of one write, or one sync, are published together."""
    seen: list[Lsn] = []
    tickets = [
        stepped.submit(durable=durable, then=lambda: seen.append(stepped.shard.done_pos()))
        for durable in (False, True, False, True)
    ]
    stepped.settle()
    first, second, _, _ = (ticket.lsn for ticket in tickets)
    # Those that wait for no sync are finished first, then the durable ones.
    assert seen == [first, first, second, second]


def test_a_failed_submission_is_not_open(stepped: kit.Run) -> None:
    """S-77, S-81: it has its answer."""
    end = stepped.shard.log.position()
    stepped.disk.fail("pwrite", "ENOSPC")
    failed = stepped.write()
    assert stepped.shard.done_pos() == end
    stepped.settle()
    assert isinstance(failed.error, CommitFailed)
    assert stepped.shard.oldest_open() is None
    assert stepped.shard.done_pos() == end


def test_during_a_rotation_what_gathers_is_open(stepped: kit.Run) -> None:
    """S-77, 06 §6.3: its place is not known yet, but nothing before it is open."""
    stepped.write(HALF)
    stepped.owner.step(HELPER)
    gathered = stepped.write(HALF)
    open_at = stepped.shard.oldest_open()
    assert open_at is not None
    report = stepped.owner.work(LANE)
    assert stepped.shard.oldest_open() == (2, 0)
    report()
    stepped.settle()
    assert open_at <= gathered.lsn
    assert stepped.shard.done_pos() == stepped.shard.log.position()


@pytest.mark.parametrize("seed", range(30))
def test_nothing_before_the_end_of_what_is_finished_is_open(seed: int) -> None:
    """S-77: random work, random order of the helpers; it never goes back."""
    rng = random.Random(f"done {seed}")
    run = kit.Run(kit.Disk(), kit.SteppedOwner(), file_bytes=1500)
    tickets: list[kit.Ticket] = []
    told: list[tuple[Lsn, list[kit.Ticket]]] = []
    for _ in range(60):
        step = rng.random()
        lanes = [lane for lane, queue in run.owner.lanes.items() if queue]
        if step < 0.5:
            tickets.append(run.submit(rng.choice((64, 300, 2000)), durable=rng.random() < 0.5))
        elif step < 0.7:
            run.owner.run()
        elif lanes:
            run.owner.step(rng.choice(lanes))
        told.append((run.shard.done_pos(), [ticket for ticket in tickets if not ticket.finished]))
    run.settle()
    positions = [position for position, _ in told]
    assert positions == sorted(positions)
    for position, unfinished in told:
        assert all(ticket.lsn >= position for ticket in unfinished), f"seed {seed}"


@pytest.mark.parametrize("durable", [False, True])
def test_a_completion_may_submit(stepped: kit.Run, durable: bool) -> None:
    """06 §6.3: what it submits is accepted, and written behind those already written."""
    again: list[kit.Ticket] = []
    first = stepped.submit(durable=durable, then=lambda: again.append(stepped.submit(durable=durable)))
    second = stepped.submit(durable=durable)
    stepped.settle()
    stepped.settle()
    assert first.lsn < second.lsn < again[0].lsn
    assert stepped.shard.depth == 0


def test_a_completion_that_failed_may_submit(stepped: kit.Run) -> None:
    """S-73, S-80: a control frame out of a failed completion is taken by a full shard, and answered."""
    again: list[kit.Ticket] = []
    stepped.disk.fail("pwrite", "ENOSPC")
    stepped.submit(then=lambda: again.append(stepped.send(kit.control_frame(), control=True)))
    stepped.settle()
    assert stepped.state == "full"
    assert again[0].lsn
