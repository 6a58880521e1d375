"""Writes to a slow volume: they leave the owner, and every rule of a write stays as it was (06 §6.3, HOTPATH)."""

from __future__ import annotations

import random

import pytest

from tests.unit.storage import kit
from topics.codec import frame
from topics.errors import CommitFailed, ShardReadOnly, StorageFull, TopicsError
from topics.storage import shard as shards
from topics.storage.shard import Lsn

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2
MARK = len(kit.open_mark(1))
SECOND_MS = 1000


def slow_down(run: kit.Run, ms: int) -> None:
    """Let every write to a WAL file take so long."""
    clock = run.disk.clock
    run.disk.sim.before = lambda call: clock.advance(ms) if call[0] == "pwrite" and "CURRENT" not in call[1] else None


def pwrites(run: kit.Run) -> int:
    return sum(op == "pwrite" and name.startswith("wal-") for op, name in run.disk.calls())


@pytest.fixture
def slow(stepped: kit.Run) -> kit.Run:
    """A shard that has come to write aside; everything is synced, its helpers move only when told."""
    slow_down(stepped, 20)
    stepped.put()
    stepped.tick(100)
    assert stepped.shard.writes_aside
    slow_down(stepped, 2)
    assert stepped.shard.log.synced() == stepped.shard.log.position()
    stepped.shard._mark_end = stepped.shard.log.position()
    return stepped


def test_writes_leave_the_owner_when_they_take_longer_than_1_ms(stepped: kit.Run) -> None:
    """06 §6.3: the EWMA of pwrite time; then the owner starts no write itself."""
    slow_down(stepped, 2)
    count = 0
    while not stepped.shard.writes_aside:
        assert stepped.write().finished
        count += 1
    assert count == 6
    before = pwrites(stepped)
    ticket = stepped.write()
    assert (pwrites(stepped), ticket.finished, stepped.owner.waiting(LANE)) == (before, False, 1)
    stepped.owner.step(LANE)
    assert (pwrites(stepped), ticket.finished) == (before + 1, True)


def test_writes_of_1_ms_stay_with_the_owner(stepped: kit.Run) -> None:
    """06 §6.3: the EWMA must exceed it."""
    slow_down(stepped, 1)
    for _ in range(40):
        assert stepped.write().finished
    assert not stepped.shard.writes_aside


def test_writes_come_back_when_they_take_less_than_half_a_millisecond(slow: kit.Run) -> None:
    """06 §6.3: below 0.5 ms, not at the 1 ms that sent them away."""
    aside = []
    for ms in (1, 0):
        slow_down(slow, ms)
        for _ in range(60):
            slow.put(durable=True)
        aside.append(slow.shard.writes_aside)
    assert aside == [True, False]
    assert slow.write().finished


def test_a_batch_above_4_mib_leaves_the_owner_whatever_the_volume(disk: kit.Disk) -> None:
    """[P-10]: tens of megabytes take longer than the owner has; the next small one is the owner's again."""
    run = kit.Run(disk, kit.SteppedOwner(), file_bytes=64 << 20, init_zero=False)
    run.put()
    run.tick(100)
    before = pwrites(run)
    large = run.write(5 << 20)
    assert (pwrites(run), large.finished, run.owner.waiting(LANE)) == (before, False, 1)
    run.owner.step(LANE)
    assert (pwrites(run), large.finished, run.shard.writes_aside) == (before + 1, True, False)
    run.settle()
    assert run.write().finished


def test_the_wall_clock_does_not_make_writes_slow(stepped: kit.Run) -> None:
    """13 §2: monotonic time measures."""
    clock = stepped.disk.clock
    stepped.disk.sim.before = lambda call: clock.jump(10_000)
    for _ in range(20):
        stepped.write()
    assert not stepped.shard.writes_aside


def test_what_arrives_during_a_write_is_written_behind_it(slow: kit.Run) -> None:
    """S-24, S-107: one write in flight; the rest gathers, in order, also when the volume is fast again."""
    first = [slow.write(), slow.write(100)]
    assert slow.owner.waiting(LANE) == 1
    slow_down(slow, 0)
    slow.shard._pwrite_ewma_ns = 0
    second = [slow.write(), slow.write()]
    assert slow.owner.waiting(LANE) == 1
    slow.settle()
    tickets = first + second
    assert [ticket.lsn for ticket in tickets] == sorted(ticket.lsn for ticket in tickets)
    assert slow.order[-4:] == tickets
    assert kit.seqs(slow.disk, kit.read(slow.disk)) == list(range(1, slow.seq + 1))


def test_what_is_durable_still_waits_for_its_sync(slow: kit.Run) -> None:
    """S-23: written aside is not synced."""
    durable, other = slow.submit(durable=True), slow.submit()
    slow.owner.run()
    slow.owner.step(LANE)
    assert (durable.finished, other.finished) == (False, True)
    slow.owner.step(LANE)
    assert durable.finished


def test_a_stream_of_writes_does_not_put_off_the_sync(slow: kit.Run) -> None:
    """S-74, S-76: whenever a write is back another one is waiting; the sync gets its turn all the same."""
    first = slow.write(durable=True)
    for _ in range(4):
        slow.submit()
        slow.owner.step(LANE)
    assert first.finished


def test_a_batch_behind_synced_bytes_says_so(slow: kit.Run) -> None:
    """S-25: decided when it is handed over; nothing is written in between."""
    before = len(kit.rows(slow.disk.file(1)))
    slow.write(durable=True)
    slow.settle()
    slow.write()
    slow.settle()
    assert kit.kinds(slow.disk.file(1))[before:] == ["append*", "append*"]


def test_a_batch_handed_over_while_a_sync_waits_is_not_flagged(slow: kit.Run) -> None:
    """S-25: the sync is complete when the write begins, but the batch was framed before; conservative."""
    before = len(kit.rows(slow.disk.file(1)))
    slow.write(durable=True)
    slow.owner.step(LANE)
    slow.write()
    slow.settle()
    assert kit.kinds(slow.disk.file(1))[before:] == ["append*", "append"]


def test_the_flag_is_never_set_before_unsynced_bytes(disk: kit.Disk) -> None:
    """S-25, S-61: random work, random order; held against what a power loss would leave at every write."""
    rng = random.Random("slow flags")
    run = kit.Run(disk, kit.SteppedOwner(), file_bytes=2000)
    flags = 0

    def look(call: tuple[str, str, tuple[int | str, ...]]) -> None:
        nonlocal flags
        disk.clock.advance(3)
        if call[0] == "pwrite" and "wal-" in call[1] and isinstance(run.shard._in_flight, shards._Batch):
            offset = int(call[2][0])
            if offset and run.shard._in_flight.buffers[0][5] & frame.SYNCED_PREFIX:
                name = call[1].rpartition("/")[2]
                assert disk.power_loss().files()[name][:offset] == disk.files()[name][:offset]
                flags += 1

    disk.sim.before = look
    for _ in range(1500):
        lanes = [lane for lane, queue in run.owner.lanes.items() if queue]
        step = rng.random()
        if step < 0.4:
            run.submit(rng.choice((64, 200)), durable=rng.random() < 0.3)
        elif step < 0.6:
            run.owner.run()
        elif lanes:
            run.owner.step(rng.choice(lanes))
    assert run.shard.writes_aside
    assert flags > 20


@pytest.mark.parametrize(("error", "state"), [("ENOSPC", "full"), ("EIO", "read_only")])
def test_a_failed_write_is_cut_back(slow: kit.Run, error: str, state: str) -> None:
    """S-79: truncated and synced before anything else is written; the batch and everything queued fail."""
    slow.write(durable=True)
    slow.settle()
    before = slow.disk.file(1)[: slow.shard.log.position()[1]]
    slow.disk.fail("pwrite", "short")
    slow.disk.fail("pwrite", error, index=2)
    since = slow.disk.sim.disk_calls
    failed = [slow.write(durable=durable) for durable in (True, False)]
    slow.settle()
    assert [type(ticket.error) for ticket in failed] == [CommitFailed] * 2
    assert slow.state == state
    assert [op for op, _ in slow.disk.calls(since) if op != "pwrite"] == ["truncate", "fsync"]
    assert slow.disk.file(1) == slow.disk.power_loss().file(1) == before


def test_the_cut_is_no_work_for_the_owner(slow: kit.Run) -> None:
    """06 §6.3: what syncs is done by the sync or helper thread."""
    slow.disk.fail("pwrite", "ENOSPC")
    since = slow.disk.sim.disk_calls
    slow.write()
    report = slow.owner.work(LANE)
    assert [op for op, _ in slow.disk.calls(since) if op in ("truncate", "fsync")] == ["truncate", "fsync"]
    since = slow.disk.sim.disk_calls
    report()
    assert slow.disk.calls(since) == []


def test_a_durable_submission_is_still_answered_when_a_later_write_finds_no_space(slow: kit.Run) -> None:
    """S-73, S-80."""
    waiting = slow.write(durable=True)
    slow.submit()
    slow.disk.fail("pwrite", "ENOSPC", index=2)
    slow.settle()
    assert slow.state == "full"
    assert waiting.lsn


def test_a_write_in_flight_behind_a_failed_sync_fails(slow: kit.Run) -> None:
    """S-78: the log was latched before it; nothing of it is on the disk, nothing is finished twice."""
    first = slow.write(durable=True)
    slow.owner.step(LANE)
    end = slow.shard.log.position()
    behind = [slow.write(durable=durable) for durable in (True, False)]
    slow.disk.fail("fdatasync")
    slow.settle()
    assert type(first.error) is CommitFailed
    assert [type(ticket.error) for ticket in behind] == [ShardReadOnly] * 2
    assert slow.state == "read_only"
    assert slow.shard.log.position() == end


def test_a_write_that_succeeds_in_a_latched_shard_is_not_acknowledged(slow: kit.Run) -> None:
    """S-78: no acknowledgement of anything behind a failed sync; a helper of another lane failed meanwhile."""
    slow.write(HALF)
    slow.owner.step(LANE)
    ticket = slow.write()
    report = slow.owner.work(LANE)
    slow.disk.fail("fsync", path=kit.name(2))
    slow.owner.step(HELPER)
    assert slow.state == "read_only"
    report()
    slow.settle()
    assert isinstance(ticket.error, TopicsError)


def test_a_write_in_flight_counts_as_waiting(slow: kit.Run) -> None:
    """S-71, S-77: accepted and not completed; its place is known from the hand-over on."""
    end = slow.shard.log.position()
    slow.write()
    slow.submit()
    assert slow.shard.depth == 2
    assert slow.shard.oldest_open() == end
    report = slow.owner.work(LANE)
    assert slow.shard.log.position() > end
    assert slow.shard.oldest_open() == slow.shard.done_pos() == end
    report()
    assert slow.shard.done_pos() > end
    slow.settle()
    assert slow.shard.depth == 0


def test_control_frames_fit_together_with_what_is_in_flight(slow: kit.Run) -> None:
    """S-80: an accepted one is not failed for want of room."""
    slow.put(1000)
    slow.disk.fill()
    slow.put(kit.FILE_BYTES - 500)
    assert slow.state == "full"
    tickets = []
    with pytest.raises(StorageFull):
        while True:
            tickets.append(slow.send(kit.control_frame(durable=True), durable=True, control=True))
            slow.shard.flush()
    slow.settle()
    assert len(tickets) > 10
    assert {ticket.lsn.file_no for ticket in tickets} == {1}


def test_rotation_waits_for_the_write_in_flight(slow: kit.Run) -> None:
    """S-85: the old file has all its bytes before it is synced for the last time."""
    first = slow.write(HALF)
    second = slow.write(HALF)
    slow.settle()
    assert (first.lsn.file_no, second.lsn.file_no) == (1, 2)
    assert len(slow.disk.file(1)) == first.lsn.offset + HALF
    assert kit.seqs(slow.disk, kit.read(slow.disk)) == list(range(1, slow.seq + 1))


def test_a_sync_mark_leaves_the_owner_too(slow: kit.Run) -> None:
    """S-25, 06 §6.3: every write does."""
    slow.put(durable=True)
    before = pwrites(slow)
    slow.disk.clock.advance(kit.SYNC_MARK_MS)
    slow.shard.tick()
    assert pwrites(slow) == before
    behind = slow.write()
    slow.settle()
    assert kit.kinds(slow.disk.file(1))[-2:] == ["sync*", "append"]
    assert behind.lsn.offset == slow.shard.start_before(1, 1 << 30)


def test_written_bytes_are_synced_in_time(slow: kit.Run) -> None:
    """S-76: the bound counts from their write."""
    slow.put()
    syncs = slow.shard.counters.fsyncs
    slow.tick(kit.BACKGROUND_MS - 3)
    assert slow.shard.counters.fsyncs == syncs
    slow.tick(1)
    assert slow.shard.counters.fsyncs == syncs + 1


def test_places_are_those_of_the_disk(slow: kit.Run) -> None:
    """S-24, S-192: as told to the caller, and as known starts."""
    tickets = [slow.put(200, durable=n % 2 == 1) for n in range(10)]
    data = {number: slow.bytes_of(number) for number in {ticket.lsn.file_no for ticket in tickets}}
    for seq, ticket in enumerate(tickets, slow.seq - 9):
        file_no, offset = ticket.lsn
        assert frame.decode(data[file_no], offset).seq == seq
        assert slow.shard.start_before(file_no, offset + 10) == offset
    assert isinstance(tickets[0].lsn, Lsn)


def test_the_bounds_are_those_of_the_specification() -> None:
    """06 §6.3, HOTPATH."""
    assert (shards.SLOW_PWRITE_NS, shards.FAST_PWRITE_NS) == (1_000_000, 500_000)
