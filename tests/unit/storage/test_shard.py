"""Group commit of one shard: what is finished when, what a failure latches, how files come and go (06 §3, §6, §7.3)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.unit.storage import kit
from topics.codec import control, frame
from topics.errors import (
    CommitFailed,
    ShardReadOnly,
    StorageFull,
    TopicsError,
    WalClosed,
    WalCorrupt,
    WalError,
    WalFull,
)
from topics.storage import shard as shards
from topics.storage.shard import SYNC_BOUNDS_US, Counters, Lsn
from topics.testing import PowerLoss
from topics.testing.simfs import STYLES

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2
MARK = len(kit.open_mark(1))
SECOND_MS = 1000


def survivors(disk: kit.Disk) -> list[kit.Disk]:
    """Disks that a kill or a power loss at this moment may leave."""
    found = [disk.killed()]
    return found + [kit.Disk(disk.sim.crash_image(random.Random(n), style)) for n in range(3) for style in STYLES]


def full_file(run: kit.Run) -> None:
    """Fill the active file, synced, so that the next submission of a few hundred bytes rotates."""
    number = run.put().lsn.file_no
    while run.shard.log.fits(500):
        run.put(300)
    run.tick(kit.BACKGROUND_MS)
    assert run.shard.log.synced() == run.shard.log.position()
    assert run.shard.log.position()[0] == number


def latched(run: kit.Run) -> None:
    """The shard takes nothing more, syncs nothing more, and still reads."""
    assert run.state == "read_only"
    assert run.shard.reason
    for durable in (False, True):
        with pytest.raises(ShardReadOnly):
            run.submit(durable=durable)
    with pytest.raises(ShardReadOnly):
        run.send(kit.control_frame(), control=True)
    calls = run.disk.sim.disk_calls
    run.disk.faults.clear()
    run.shard.sync()
    run.tick(10 * SECOND_MS)
    assert run.disk.calls(calls) == []
    assert run.state == "read_only"


def test_a_shard_that_is_given_nothing_makes_no_file(disk: kit.Disk) -> None:
    """S-20: neither at start, nor with time, nor at close."""
    run = kit.Run(disk)
    since = disk.sim.disk_calls
    run.tick(10 * SECOND_MS)
    assert run.close()
    assert disk.calls(since) == []
    assert disk.files() == {}


def test_the_first_frame_of_a_file_is_an_open_mark(run: kit.Run) -> None:
    """S-20: in front of the first batch, always with `synced_prefix` [S-25]."""
    run.put()
    assert kit.kinds(run.disk.file(1))[:2] == ["open*", "append"]
    mark = control.decode_body(control.MARK, frame.decode(run.disk.file(1)).data)
    assert isinstance(mark, control.OpenMark)
    assert (mark.run, mark.boot, mark.shard, mark.shards, mark.file) == (1, "boot", 0, 1, 1)


def test_files_are_used_as_soon_as_they_are_reserved(disk: kit.Disk) -> None:
    """S-84, decision 0004: zeros of a whole file take longer than filling it; what is not durable gets none."""
    run = kit.Run(disk, init_zero=True, file_bytes=4096)
    while run.put().lsn.file_no < 3:
        pass
    for number in (1, 2):
        written = [args for op, path, args in disk.sim.calls if op == "pwrite" and path.endswith(kit.name(number))]
        assert written[0][0] == 0
        assert sum(size for _, size in written) == len(disk.file(number).rstrip(bytes(1)))


def test_each_run_starts_a_new_file(disk: kit.Disk) -> None:
    """S-21: one above the highest with content; a recovered file is never appended to."""
    run = kit.Run(disk)
    run.put(durable=True)
    before = disk.file(1)[: run.shard.log.position()[1]]
    killed = disk.killed()
    again = kit.Run(killed, run=2)
    assert again.put(durable=True).lsn.file_no == 2
    assert killed.file(1) == before


def test_the_open_mark_tells_the_length_of_the_file_before(disk: kit.Disk) -> None:
    """S-44, S-68: across runs and across rotations."""
    run = kit.Run(disk)
    run.put(durable=True)
    killed = disk.killed()
    second = kit.Run(killed, run=2)
    second.put()
    full_file(second)
    second.put(1000)
    for number in (2, 3):
        mark = control.decode_body(control.MARK, frame.decode(killed.file(number)).data)
        assert isinstance(mark, control.OpenMark)
        assert mark.prev == (number - 1, len(killed.file(number - 1)))


def test_space_ahead_of_durable_writes_is_zeroed_in_every_file(disk: kit.Disk) -> None:
    """06 §6.5, P-4: syncs that change no extents are cheaper, and a tick is still one write."""
    run = kit.Run(disk)
    active = lambda: run.shard.log._segments[run.shard.log.position()[0]]  # noqa: E731
    run.put()
    assert active().unzeroed_from == run.shard.log.position()[1], "nobody waits for its sync"
    mark = disk.sim.disk_calls
    run.put(durable=True)
    assert [op for op, _ in disk.calls(mark)].count("pwrite") == 1
    assert run.shard.log.position()[1] < active().unzeroed_from <= kit.FILE_BYTES
    run.put(durable=True)
    full_file(run)
    run.put(1000, durable=True)
    assert run.shard.log.position()[0] == 2
    assert run.shard.log.position()[1] < active().unzeroed_from <= kit.FILE_BYTES
    assert kit.seqs(disk, kit.recover(disk)) == list(range(1, run.seq + 1))


@pytest.mark.parametrize(
    ("error", "state"), [("ENOSPC", "ok"), ("short", "ok"), ("EIO", "read_only"), ("zero", "read_only")]
)
def test_a_write_with_zeros_behind_it_may_do_without_them(run: kit.Run, error: str, state: str) -> None:
    """S-79: where there is no space for them; any other failure is one of the write."""
    run.put()
    run.disk.fail("pwrite", error)
    ticket = run.put(durable=True)
    assert run.state == state
    if state == "ok":
        assert ticket.finished
        run.put(durable=True)
        after = run.disk.power_loss()
        assert kit.seqs(after, kit.recover(after)) == [1, 2, 3]
    else:
        assert isinstance(ticket.error, CommitFailed)


def test_a_run_starts_behind_the_number_of_a_snapshot_row(disk: kit.Disk) -> None:
    """S-21: `file_no` of the group's row counts too, so numbers never come back after a trim."""
    run = kit.Run(disk, first_file=9)
    assert run.put().lsn.file_no == 9


def test_the_highest_file_wins_over_a_lower_snapshot_row() -> None:
    """S-21: the larger of the two."""
    disk = kit.layout({1: kit.log_file(1, kit.append(1))})
    assert kit.Run(disk, first_file=1).put().lsn.file_no == 2


@pytest.mark.parametrize("left", [b"", bytes(8000)], ids=["empty", "zeros"])
def test_a_prepared_file_of_the_right_number_is_used_again(left: bytes) -> None:
    """S-21."""
    disk = kit.layout({1: kit.log_file(1, kit.append(1)), 2: left})
    run = kit.Run(disk)
    assert run.put(durable=True).lsn == (2, len(kit.open_mark(2, (1, len(disk.file(1))))))
    assert kit.kinds(disk.file(2)) == ["open*", "append"]


def test_other_prepared_files_go_once_current_names_the_new_one() -> None:
    """S-21, S-64: at no moment does `CURRENT` name a file above every present one."""
    disk = kit.layout({1: kit.log_file(1, kit.append(1)), 2: bytes(100), 3: bytes(100), 4: b""}, current=4)
    run = kit.Run(disk)
    seen: list[bool] = []

    def look(_: object) -> None:
        for image in survivors(disk):
            kit.read(image)
            seen.append(disk.current() == 4)

    disk.sim.before = look
    run.put(durable=True)
    disk.sim.before = None
    assert {True, False} == set(seen)
    assert sorted(disk.files()) == ["CURRENT", kit.name(1), kit.name(2)]


def test_a_file_that_was_torn_as_a_whole_gives_its_number_back() -> None:
    """S-21: it has no content any more."""
    disk = kit.layout({1: kit.log_file(1, kit.append(1)), 2: b"torn"}, current=2)
    assert kit.Run(disk).put().lsn.file_no == 2


def test_the_first_file_cannot_be_made_for_want_of_space(disk: kit.Disk) -> None:
    """S-80: `full`, nothing written, and it recovers."""
    run = kit.Run(disk)
    disk.fill()
    failed = run.put()
    assert isinstance(failed.error, CommitFailed)
    assert run.state == "full"
    disk.free()
    run.tick(SECOND_MS)
    assert run.state == "ok"
    assert run.put(durable=True).lsn.file_no == 1


def test_a_batch_behind_synced_bytes_says_so(run: kit.Run) -> None:
    """S-25: on its first frame only."""
    run.put(durable=True)
    run.submit(count=3)
    run.submit()
    run.settle()
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "append*", "append", "append", "append"]


def test_a_batch_behind_unsynced_bytes_does_not_say_synced(run: kit.Run) -> None:
    """S-25: every earlier byte of the file must have been covered."""
    run.put()
    run.put()
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "append"]


def test_the_first_batch_of_a_file_is_not_flagged(run: kit.Run) -> None:
    """S-25: the open mark before it is not synced yet."""
    run.put(durable=True)
    assert kit.kinds(run.disk.file(1)) == ["open*", "append"]


def test_a_batch_written_while_a_sync_runs_is_not_flagged(stepped: kit.Run) -> None:
    """S-25: handed to the OS before the sync was complete."""
    stepped.write(durable=True)
    stepped.write()
    stepped.settle()
    assert kit.kinds(stepped.disk.file(1)) == ["open*", "append", "append*", "append"]


def test_the_flag_is_set_exactly_when_everything_before_is_durable(disk: kit.Disk) -> None:
    """S-25, S-61: held against what a power loss would leave, over a random run."""
    run = kit.Run(disk, file_bytes=2000)
    run.put()
    rng = random.Random("flags")
    flags = 0
    for _ in range(150):
        file, start = run.shard.log.position()
        durable = len(disk.power_loss().files().get(kit.name(file), b"").rstrip(b"\0"))
        frames = len(kit.rows(disk.file(file)))
        run.put(rng.choice((64, 200)), durable=rng.random() < 0.3)
        if run.shard.log.position()[0] == file:
            flagged = bool(kit.rows(disk.file(file))[frames][1] & frame.SYNCED_PREFIX)
            assert flagged == (durable >= start), f"at {start} of file {file}"
            flags += flagged
        if rng.random() < 0.2:
            run.tick(kit.BACKGROUND_MS)
    assert flags > 20


def test_flagged_frames_are_valid_frames(run: kit.Run) -> None:
    """S-25: the checksum is computed again."""
    for _ in range(5):
        run.put(durable=True)
    assert len(kit.rows(run.disk.file(1))) == 6
    assert kit.seqs(run.disk, kit.read(run.disk)) == [1, 2, 3, 4, 5]


def test_a_sync_mark_follows_after_20_ms_of_quiet(run: kit.Run) -> None:
    """S-25: flagged, so that damage in the last synced batch is told apart from a torn tail."""
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS - 1)
    assert kit.kinds(run.disk.file(1)) == ["open*", "append"]
    run.tick(1)
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "sync*"]


def test_the_20_ms_begin_with_the_sync(run: kit.Run) -> None:
    """S-25: also when the sync was one of the background."""
    run.put()
    run.tick(kit.BACKGROUND_MS)
    run.tick(kit.SYNC_MARK_MS - 1)
    assert "sync*" not in kit.kinds(run.disk.file(1))
    run.tick(1)
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "sync*"]


def test_damage_before_a_sync_mark_is_refused_at_the_next_start(run: kit.Run) -> None:
    """S-25, 06 §5 row 4: what the mark is for."""
    place = run.put(durable=True).lsn
    run.tick(kit.SYNC_MARK_MS)
    run.disk.sim.flip_bit(kit.path(1), place.offset + 50, 0)
    with pytest.raises(WalCorrupt):
        kit.read(run.disk.killed())


def test_there_is_no_second_sync_mark_without_other_frames(run: kit.Run) -> None:
    """S-25."""
    run.put(durable=True)
    for _ in range(20):
        run.tick(SECOND_MS)
    assert kit.kinds(run.disk.file(1)).count("sync*") == 1
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS)
    assert kit.kinds(run.disk.file(1)).count("sync*") == 2


def test_a_sync_mark_starts_no_sync(run: kit.Run) -> None:
    """S-25: itself unsynced; an idle shard does not touch the disk."""
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS)
    since = run.disk.sim.disk_calls
    for _ in range(20):
        run.tick(SECOND_MS)
    assert run.disk.calls(since) == []


def test_unsynced_bytes_get_no_sync_mark(run: kit.Run) -> None:
    """S-25: 20 ms after a sync *with nothing behind it*."""
    run.put(durable=True)
    run.disk.clock.advance(kit.SYNC_MARK_MS)
    run.write()
    run.shard.tick()
    assert "sync*" not in kit.kinds(run.disk.file(1))


def test_a_batch_behind_a_sync_mark_is_not_flagged(run: kit.Run) -> None:
    """S-25: the mark itself is not synced."""
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS)
    run.put(durable=True)
    run.put()
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "sync*", "append", "append*"]


def test_a_sync_that_covered_more_than_asked_is_followed_by_a_mark_too(stepped: kit.Run) -> None:
    """S-25: bytes written just before the helper began are synced with the rest; quiet is quiet."""
    stepped.write(durable=True)
    stepped.write()
    stepped.settle()
    assert stepped.shard.log.synced() == stepped.shard.log.position()
    for _ in range(10):
        stepped.tick(kit.SYNC_MARK_MS)
    assert kit.kinds(stepped.disk.file(1))[-1] == "sync*"


@pytest.mark.parametrize(("error", "state"), [("ENOSPC", "full"), ("EIO", "read_only")])
def test_a_sync_mark_that_cannot_be_written_counts_like_any_write(run: kit.Run, error: str, state: str) -> None:
    """S-79: cut back; what was acknowledged stays."""
    place = run.put(durable=True).lsn
    run.disk.fail("pwrite", error)
    run.tick(kit.SYNC_MARK_MS)
    assert run.state == state
    assert run.disk.file(1) == run.disk.file(1)[: place.offset + 64]


def test_a_sync_mark_that_found_no_space_follows_when_there_is_some(run: kit.Run) -> None:
    """S-25, S-80: tried once, not with every tick; and again when the shard is well."""
    run.put(durable=True)
    run.disk.fail("pwrite", "ENOSPC", path=kit.name(1), times="always")
    run.tick(kit.SYNC_MARK_MS)
    assert run.state == "full"
    since = run.disk.sim.disk_calls
    for _ in range(10):
        run.tick(kit.SYNC_MARK_MS)
    assert run.disk.calls(since) == []
    run.disk.faults.clear()
    run.tick(SECOND_MS)
    run.tick()
    assert run.state == "ok"
    assert kit.kinds(run.disk.file(1)) == ["open*", "append", "sync*"]


def test_a_full_shard_marks_what_it_has_synced(run: kit.Run) -> None:
    """S-25, S-80: a mark fits where a file cannot be made."""
    fill_up(run)
    run.tick(kit.BACKGROUND_MS)
    run.tick(kit.SYNC_MARK_MS)
    assert run.state == "full"
    assert kit.kinds(run.disk.file(1))[-1] == "sync*"


def test_4096_submissions_may_wait(disk: kit.Disk) -> None:
    """S-71: the next raises `WalFull`, and nothing of it is accepted."""
    run = kit.Run(disk, kit.SteppedOwner())
    tickets = [run.submit() for _ in range(4096)]
    for durable in (False, True):
        with pytest.raises(WalFull):
            run.submit(durable=durable)
    assert (run.shard.depth, run.shard.counters.refused) == (4096, 2)
    run.settle()
    assert kit.all_finished_once(tickets)
    assert kit.seqs(disk, kit.read(disk)) == list(range(1, 4097))


def test_a_submission_waits_until_it_is_finished(stepped: kit.Run) -> None:
    """S-71: accepted *and not completed*: written durable ones still count."""
    for _ in range(4096):
        stepped.submit(durable=True)
    stepped.owner.run()
    with pytest.raises(WalFull):
        stepped.submit()
    stepped.settle()
    stepped.put()


def test_64_mib_may_wait(disk: kit.Disk) -> None:
    """S-71: encoded bytes, accepted and not completed."""
    run = kit.Run(disk, kit.SteppedOwner(), file_bytes=128 << 20, init_zero=False)
    for _ in range(64):
        run.submit(1 << 20)
    with pytest.raises(WalFull):
        run.submit(64)
    run.settle()
    assert run.shard.depth == 0
    run.submit(64)


def test_a_larger_submission_is_taken_when_nothing_waits(disk: kit.Disk) -> None:
    """S-71: and only then."""
    run = kit.Run(disk, kit.SteppedOwner(), init_zero=False)
    run.submit()
    with pytest.raises(WalFull):
        run.submit(22 << 20, count=3)
    run.settle()
    ticket = run.submit(22 << 20, count=3)
    run.settle()
    assert run.bytes_of(ticket.lsn.file_no)[ticket.lsn.offset :] == kit.chain(2, 3, 22 << 20)


def test_a_refused_submission_leaves_nothing_behind(stepped: kit.Run) -> None:
    """S-71: whole or not at all."""
    for _ in range(4096):
        stepped.submit()
    with pytest.raises(WalFull):
        stepped.submit(count=3)
    stepped.settle()
    assert kit.seqs(stepped.disk, kit.read(stepped.disk)) == list(range(1, 4098))


def test_a_submission_lies_in_one_piece_in_one_file(disk: kit.Disk) -> None:
    """S-24, S-72: contiguous, in the order of acceptance, at the place its caller is told."""
    run = kit.Run(disk, file_bytes=2000)
    rng = random.Random("pieces")
    sent = []
    for _ in range(60):
        for _ in range(rng.randrange(1, 4)):
            count, size = rng.randrange(1, 5), rng.choice((64, 100, 300))
            frames = kit.chain(run.seq + 1, count, size)
            sent.append((run.submit(size, count=count, durable=False), frames))
        run.settle()
    for ticket, frames in sent:
        data = run.bytes_of(ticket.lsn.file_no)
        found = bytearray(data[ticket.lsn.offset : ticket.lsn.offset + len(frames)])
        if found[5] & frame.SYNCED_PREFIX:
            frames = kit.flagged(frames)
        assert bytes(found) == frames
    places = [ticket.lsn for ticket, _ in sent]
    assert places == sorted(places)
    assert run.order == [ticket for ticket, _ in sent]


def test_what_is_not_durable_is_finished_when_it_is_written(stepped: kit.Run) -> None:
    """06 §6.3 finish, §7: written to the OS, no sync waited for."""
    ticket = stepped.submit()
    stepped.owner.run()
    assert ticket.finished
    assert stepped.owner.waiting(LANE) == 0


def test_what_is_durable_is_finished_when_it_is_synced(stepped: kit.Run) -> None:
    """S-23: not before, and at once after."""
    ticket = stepped.submit(durable=True)
    stepped.owner.run()
    assert not ticket.finished
    stepped.owner.step(LANE)
    assert ticket.finished


def test_one_sync_serves_the_whole_batch(disk: kit.Disk) -> None:
    """S-74, S-106: one fdatasync, one wake-up."""
    run = kit.Run(disk, file_bytes=1 << 20)
    run.put()
    run.tick(kit.BACKGROUND_MS)
    since, syncs = run.disk.sim.disk_calls, run.shard.counters.fsyncs
    tickets = [run.submit(durable=True) for _ in range(100)]
    run.settle()
    assert [call for call in run.disk.calls(since) if "sync" in call[0]] == [("fdatasync", kit.name(1))]
    assert run.shard.counters.fsyncs - syncs == 1
    assert all(ticket.finished for ticket in tickets)


def test_one_write_carries_a_whole_tick(disk: kit.Disk) -> None:
    """06 §6.3 flush: one pwrite of the buffer."""
    run = kit.Run(disk, file_bytes=1 << 20)
    run.put()
    since = run.disk.sim.disk_calls
    for _ in range(100):
        run.submit()
    run.settle()
    assert run.disk.calls(since) == [("pwrite", kit.name(1))]


def test_what_arrives_while_a_sync_runs_shares_the_next_one(stepped: kit.Run) -> None:
    """06 §6.3: arrivals gather; one more sync for all of them."""
    first = stepped.write(durable=True)
    syncs = stepped.shard.counters.fsyncs
    report = stepped.owner.work(LANE)
    later = [stepped.write(durable=True) for _ in range(10)]
    report()
    assert first.finished
    assert not any(ticket.finished for ticket in later)
    stepped.settle()
    assert all(ticket.finished for ticket in later)
    assert stepped.shard.counters.fsyncs - syncs == 2


def test_clients_just_answered_join_the_next_sync(stepped: kit.Run) -> None:
    """06 §6.3 synced: one more loop pass before the next sync starts."""
    answered: list[kit.Ticket] = []
    stepped.submit(durable=True, then=lambda: answered.append(stepped.submit(durable=True)))
    stepped.owner.run()
    report = stepped.owner.work(LANE)
    waiting = stepped.write(durable=True)
    report()
    stepped.owner.run()
    stepped.owner.step(LANE)
    assert waiting.finished
    assert answered[0].finished


def behind_an_answer(run: kit.Run) -> kit.Ticket:
    """Somebody was just answered, and somebody else waits for the next sync."""
    run.write(durable=True)
    report = run.owner.work(LANE)
    waiting = run.write(durable=True)
    report()
    assert not run.owner.waiting(LANE)
    return waiting


def test_who_is_back_in_the_pass_behind_his_answer_joins_the_next_sync(stepped: kit.Run) -> None:
    """06 §6.3 synced: it is written before that sync begins, not beside it."""
    waiting = behind_an_answer(stepped)
    back = stepped.submit(durable=True)
    stepped.owner.run()
    stepped.owner.step(LANE)
    assert (waiting.finished, back.finished) == (True, True)


def test_a_sync_waits_for_one_pass_if_nobody_is_back(stepped: kit.Run) -> None:
    """06 §6.3, S-75: no timer."""
    behind_an_answer(stepped)
    stepped.owner.turn()
    assert stepped.owner.waiting(LANE) == 1


def test_a_sync_waits_while_each_pass_brings_somebody_but_not_for_ever(stepped: kit.Run) -> None:
    """06 §6.3: and covers all of them; S-75: a bound that is none of time."""
    tickets = [behind_an_answer(stepped)]
    passes = 0
    while not stepped.owner.waiting(LANE):
        tickets.append(stepped.submit(durable=True))
        stepped.owner.turn()
        passes += 1
    assert passes == shards.GATHER_PASSES
    stepped.owner.step(LANE)
    assert all(ticket.finished for ticket in tickets)


def test_those_who_shared_a_sync_may_come_back_in_two_passes_and_share_the_next(stepped: kit.Run) -> None:
    """06 §6.3 synced: nobody waited when they were answered, so nobody else asks for the next one."""
    together = [stepped.submit(durable=True) for _ in range(2)]
    stepped.owner.run()
    stepped.owner.work(LANE)()
    assert all(ticket.finished for ticket in together)
    stepped.owner.turn()
    first = stepped.write(durable=True)
    assert not stepped.owner.waiting(LANE)
    second = stepped.submit(durable=True)
    stepped.owner.run()
    stepped.owner.step(LANE)
    assert (first.finished, second.finished) == (True, True)


def test_who_was_alone_waits_for_nobody(stepped: kit.Run) -> None:
    """06 §6.3, S-75: the next sync begins with what he writes next."""
    stepped.write(durable=True)
    stepped.owner.run()
    stepped.owner.work(LANE)()
    stepped.submit(durable=True)
    stepped.owner.turn()
    stepped.owner.turn()
    assert stepped.owner.waiting(LANE) == 1


def test_a_sync_of_the_clock_while_another_waits_for_company_does_not_prolong_that(stepped: kit.Run) -> None:
    """06 §6.3, S-76: passes are counted once, however many syncs end meanwhile."""
    behind_an_answer(stepped)
    stepped.shard.sync()
    stepped.submit(durable=True)
    stepped.owner.work(LANE)()
    passes = 0
    while not stepped.owner.waiting(LANE) and passes < 10:
        stepped.submit(durable=True)
        stepped.owner.turn()
        passes += 1
    assert passes <= shards.GATHER_PASSES
    for _ in range(shards.GATHER_PASSES):
        stepped.submit(durable=True)
        stepped.owner.turn()
    assert not stepped.owner._soon


def test_what_needs_no_sync_is_finished_while_one_waits_for_company(stepped: kit.Run) -> None:
    """06 §6.3 finish: in its own pass."""
    behind_an_answer(stepped)
    stepped.submit(durable=True)
    plain = stepped.submit()
    stepped.owner.turn()
    assert plain.finished
    assert not stepped.owner.waiting(LANE)


def test_who_fails_to_hear_of_his_sync_keeps_nobody_from_the_next(stepped: kit.Run) -> None:
    """06 §6.3 synced: what was written meanwhile is synced behind it, whatever becomes of the answer in front."""

    def broken(_: object) -> None:
        raise ValueError("to be logged")

    stepped.write(durable=True)
    stepped.owner.step(LANE)
    stepped.shard.submit(kit.append(2, durable=True), 1, broken, durable=True)
    stepped.owner.run()
    report = stepped.owner.work(LANE)
    waiting = stepped.write(durable=True)
    report()
    stepped.owner.run()
    stepped.owner.step(LANE)
    assert waiting.finished


def test_what_goes_wrong_behind_what_is_finished_keeps_nobody_from_the_next_sync(stepped: kit.Run) -> None:
    """06 §6.3 synced: what was written meanwhile is synced, whatever becomes of publishing what is in front of it."""

    def broken() -> None:
        raise ValueError("to be logged")

    stepped.write(durable=True)
    stepped.owner.step(LANE)
    stepped.shard.on_finished = broken
    first = stepped.write(durable=True)
    report = stepped.owner.work(LANE)
    waiting = stepped.write(durable=True)
    report()
    assert first.finished
    stepped.owner.run()
    stepped.owner.step(LANE)
    assert waiting.finished


@pytest.mark.parametrize("what", ["bytes", "frames"])
def test_a_large_buffer_is_flushed_early(stepped: kit.Run, what: str) -> None:
    """06 §6.3 flush: at 8 MiB or 16384 frames, without waiting for the end of the tick."""
    if what == "bytes":
        stepped.send(kit.append(2, 8 << 20))
    else:
        stepped.send(kit.chain(2, 16384, 50), 16384)
    if stepped.owner.waiting(LANE):
        stepped.owner.step(LANE)
    assert stepped.order[-1].finished


def test_completions_come_in_log_order_also_when_one_submits_again(disk: kit.Disk) -> None:
    """S-107, 06 §6.3 finish: in order; a large submission made inside a completion is behind those already written."""
    run = kit.Run(disk, file_bytes=32 << 20, init_zero=False)
    run.put()
    again: list[kit.Ticket] = []
    first = run.submit(then=lambda: again.append(run.send(kit.append(9, 8 << 20))))
    second = run.submit()
    run.settle()
    run.tick(kit.BACKGROUND_MS)
    assert run.order[1:] == [first, second, again[0]]
    assert first.lsn < second.lsn < again[0].lsn


def test_durable_completions_come_in_log_order_also_when_one_submits_again(disk: kit.Disk) -> None:
    """S-107: the same with a durable one made inside the completion of one that is not."""
    run = kit.Run(disk, file_bytes=32 << 20, init_zero=False)
    run.put()
    again: list[kit.Ticket] = []
    first = run.submit(then=lambda: again.append(run.send(kit.append(9, 8 << 20, durable=True), durable=True)))
    second = run.submit(durable=True)
    run.settle()
    assert run.order[1:] == [first, second, again[0]]


def test_counters_count(run: kit.Run) -> None:
    """06 §21: frames of submissions, open marks excluded; batches; bytes; the highest queue."""
    for _ in range(3):
        run.submit(count=2)
    run.settle()
    run.put(durable=True)
    counters = run.shard.counters
    assert (counters.frames, counters.batches, counters.bytes_written) == (7, 2, 7 * 64)
    assert (counters.queue_peak, counters.fsyncs, counters.rotations) == (3, 1, 0)


def test_a_sync_is_counted_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    """MET-5: every sync is in exactly one bucket, so that `_count` is the number of syncs."""
    counters = Counters()
    for took_us in (0, 50, 51, 100, 100_000, 100_001, 10**9):
        counters.note_sync(took_us)
    assert counters.syncs_within == [2, 2, 0, 0, 0, 0, 0, 0, 1, 2]
    assert counters.fsyncs == 7
    assert counters.sync_us == 201 + 200_001 + 10**9


def test_a_slow_sync_is_counted_by_how_long_it_took(run: kit.Run) -> None:
    """06 §21: the time is that of the sync itself, by the shard's clock."""
    run.disk.sim.before = lambda call: run.disk.clock.advance(7) if call[0] == "fdatasync" else None
    run.put(durable=True)
    assert run.shard.counters.syncs_within[SYNC_BOUNDS_US.index(10_000)] == 1
    assert run.shard.counters.sync_us == 7000


def test_written_bytes_are_synced_after_10_ms(run: kit.Run) -> None:
    """S-76: whether or not new submissions arrive."""
    run.put()
    run.tick(kit.BACKGROUND_MS - 1)
    assert run.shard.counters.fsyncs == 0
    run.tick(1)
    assert run.shard.counters.fsyncs == 1
    image = run.disk.power_loss()
    assert kit.seqs(image, kit.recover(image)) == [1]


def test_the_bound_counts_from_the_oldest_byte(run: kit.Run) -> None:
    """S-76: a stream of writes does not put it off."""
    for _ in range(kit.BACKGROUND_MS):
        run.put()
        run.tick(1)
    assert run.shard.counters.fsyncs == 1


def test_bytes_written_behind_a_running_sync_have_a_bound_of_their_own(stepped: kit.Run) -> None:
    """S-76: `synced_pos` is the end captured before the call, so they are not forgotten."""
    stepped.write(durable=True)
    report = stepped.owner.work(LANE)
    stepped.write()
    report()
    stepped.owner.run()
    syncs = stepped.shard.counters.fsyncs
    stepped.tick(kit.BACKGROUND_MS)
    assert stepped.shard.counters.fsyncs == syncs + 1
    assert stepped.shard.log.synced() == stepped.shard.log.position()


@pytest.mark.parametrize(("sync_ms", "bound_ms"), [(1, 10), (5, 20), (100, 400), (250, 1000), (5000, 1000)])
def test_the_bound_follows_the_time_a_sync_takes(run: kit.Run, sync_ms: int, bound_ms: int) -> None:
    """S-76: max(10 ms, 4 × EWMA of fdatasync time), at most 1000 ms."""
    clock = run.disk.clock
    run.disk.sim.before = lambda call: clock.advance(sync_ms) if call[0] == "fdatasync" else None
    run.put(durable=True)
    run.put()
    syncs = run.shard.counters.fsyncs
    run.tick(bound_ms - 1)
    assert run.shard.counters.fsyncs == syncs
    run.tick(1)
    assert run.shard.counters.fsyncs == syncs + 1


def test_the_wall_clock_does_not_matter(run: kit.Run) -> None:
    """13 §2: a jump of ten years neither starts nor stops a sync."""
    run.put()
    run.disk.clock.jump(-(10**10))
    run.tick(kit.BACKGROUND_MS)
    assert run.shard.counters.fsyncs == 1
    run.put()
    run.disk.clock.jump(10**10)
    run.tick(kit.BACKGROUND_MS - 1)
    assert run.shard.counters.fsyncs == 1


def test_a_full_shard_still_syncs_what_it_has_written(run: kit.Run) -> None:
    """S-76, S-80: `full` refuses new records; bytes already answered keep their bound."""
    fill_up(run)
    run.tick(SECOND_MS)
    assert run.state == "full"
    image = run.disk.power_loss()
    image.free()
    assert kit.seqs(image, kit.recover(image)) == [1]


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EINTR"])
def test_a_failed_sync_of_a_commit_latches_the_shard(run: kit.Run, error: str) -> None:
    """S-78, R-2: any errno; the batch fails, nothing is retried, what is written can be read."""
    kept = run.put(durable=True)
    run.disk.fail("fdatasync", error)
    failed = [run.submit(durable=True) for _ in range(3)]
    run.settle()
    assert [type(ticket.error) for ticket in failed] == [CommitFailed] * 3
    latched(run)
    data = run.bytes_of(1)
    assert data[kept.lsn.offset : kept.lsn.offset + 64] == kit.append(1, durable=True)
    assert [seq for type, _, seq in kit.rows(data) if type == frame.APPEND] == [1, 2, 3, 4]


def test_what_is_queued_behind_a_failed_sync_fails_as_read_only(stepped: kit.Run) -> None:
    """S-78: `ShardReadOnly` for what had not been written."""
    batch = stepped.write(durable=True)
    stepped.disk.fail("fdatasync")
    report = stepped.owner.work(LANE)
    behind = [stepped.submit(durable=durable) for durable in (True, False)]
    report()
    stepped.settle()
    assert type(batch.error) is CommitFailed
    assert [type(ticket.error) for ticket in behind] == [ShardReadOnly] * 2
    latched(stepped)


def test_a_flush_between_a_failed_sync_and_its_report_raises_nothing(stepped: kit.Run) -> None:
    """S-73, S-78: the helper has failed and the owner does not know yet; every submission is failed, none raises."""
    batch = stepped.write(durable=True)
    stepped.disk.fail("fdatasync")
    report = stepped.owner.work(LANE)
    behind = stepped.submit()
    stepped.owner.run()
    report()
    stepped.settle()
    assert isinstance(batch.error, CommitFailed)
    assert isinstance(behind.error, (CommitFailed, ShardReadOnly))
    latched(stepped)


def test_a_submission_between_a_failed_sync_and_its_report_is_taken_or_refused_not_both(stepped: kit.Run) -> None:
    """S-71: whole or not at all: who gets an exception gets no completion."""
    stepped.write(durable=True)
    stepped.disk.fail("fdatasync")
    report = stepped.owner.work(LANE)
    outcomes: list[object] = []
    try:
        stepped.shard.submit(kit.append(9, 8 << 20), 1, outcomes.append, durable=True)
        accepted = True
    except TopicsError:
        accepted = False
    report()
    stepped.settle()
    assert len(outcomes) == accepted


def test_a_tick_between_a_failed_preparation_and_its_report_raises_nothing(stepped: kit.Run) -> None:
    """S-78: a sync of the next file fails; the timer meets it before the report does."""
    stepped.write(HALF, durable=True)
    stepped.owner.step(LANE)
    stepped.disk.fail("fsync", path=kit.name(2))
    report = stepped.owner.work(HELPER)
    stepped.disk.clock.advance(kit.SYNC_MARK_MS)
    stepped.shard.tick()
    report()
    stepped.settle()
    latched(stepped)


def test_a_failed_background_sync_latches_the_shard(run: kit.Run) -> None:
    """S-78: every sync of a WAL file."""
    answered = run.put()
    run.disk.fail("fdatasync")
    run.tick(kit.BACKGROUND_MS)
    assert answered.finished
    latched(run)


def test_a_failed_sync_in_a_rotation_latches_the_shard(run: kit.Run) -> None:
    """S-78, S-85 (a): nothing goes to the next file."""
    full_file(run)
    run.put(64)
    run.disk.fail("fdatasync", path=kit.name(1))
    failed = run.put(1000, durable=True)
    assert isinstance(failed.error, CommitFailed)
    latched(run)
    assert not run.disk.file(2).strip(b"\0")


def test_a_failed_sync_in_a_rotation_fails_what_waits_for_it(stepped: kit.Run) -> None:
    """S-78: also the durable ones written before the rotation."""
    first = stepped.write(HALF, durable=True)
    report = stepped.owner.work(LANE)
    waiting = stepped.write(durable=True)
    report()
    assert first.finished
    stepped.owner.step(HELPER)
    stepped.disk.fail("fdatasync", times="always")
    failed = stepped.write(HALF, durable=True)
    stepped.settle()
    assert isinstance(waiting.error, CommitFailed)
    assert isinstance(failed.error, (CommitFailed, ShardReadOnly))
    latched(stepped)


def test_a_failed_finalize_latches_the_shard(run: kit.Run) -> None:
    """S-78: the sync of the file that stopped being active."""
    full_file(run)
    run.disk.fail("fsync", path=kit.name(1))
    failed = run.put(1000, durable=True)
    assert isinstance(failed.error, (CommitFailed, ShardReadOnly))
    latched(run)


def test_a_failed_sync_of_the_next_file_latches_the_shard(run: kit.Run) -> None:
    """S-78: every sync of a WAL file."""
    run.disk.fail("fsync", path=kit.name(2))
    run.put(HALF)
    latched(run)


@pytest.mark.parametrize("op", ["fdatasync", "fsync"])
def test_a_failed_sync_at_close_latches_the_shard_and_is_told(run: kit.Run, op: str) -> None:
    """S-78, R-2: close and finalize; the run is known to have failed."""
    run.put()
    run.disk.fail(op, path=kit.name(1))
    try:
        durable = run.shard.close()
    except WalError:
        durable = False
    assert not durable
    assert run.state == "read_only"


def test_nothing_is_acknowledged_after_a_failed_sync(disk: kit.Disk) -> None:
    """S-78, R-1: over random runs, whatever sync fails; what was acknowledged survives a power loss."""
    for seed in range(40):
        disk = kit.Disk()
        rng = random.Random(f"latch {seed}")
        run = kit.Run(disk, kit.SteppedOwner(), file_bytes=2000)
        run.put()
        tickets = []
        disk.fail("fdatasync", index=rng.randrange(1, 6), mode=rng.choice(("clean", "reverted", "partial")))
        for _ in range(40):
            lanes = [lane for lane, queue in run.owner.lanes.items() if queue]
            step = rng.random()
            try:
                if step < 0.5:
                    tickets.append(run.submit(rng.choice((64, 300)), durable=True))
                elif step < 0.7:
                    run.owner.run()
                elif lanes:
                    run.owner.step(rng.choice(lanes))
            except ShardReadOnly:
                break
        run.settle()
        assert kit.all_finished_once(tickets), f"seed {seed}"
        failed = [isinstance(ticket.outcomes[0], TopicsError) for ticket in tickets]
        assert failed == sorted(failed), f"seed {seed}: acknowledged behind a failure"
        acked = [seq for seq, bad in enumerate(failed, 2) if not bad]
        image = disk.power_loss()
        assert set(acked) <= set(kit.seqs(image, kit.recover(image))), f"seed {seed}"


def test_a_latched_shard_stays_latched_when_a_helper_reports_no_space(stepped: kit.Run) -> None:
    """S-78: `read_only` for the rest of the run; a late report of another failure does not soften it."""
    stepped.write(HALF, durable=True)
    stepped.disk.fail("allocate", "ENOSPC")
    report = stepped.owner.work(HELPER)
    stepped.disk.fail("fdatasync")
    stepped.owner.step(LANE)
    assert stepped.state == "read_only"
    report()
    stepped.owner.run()
    latched(stepped)


def test_a_failed_shard_leaves_the_others_alone(disk: kit.Disk) -> None:
    """S-82, C21: one latched shard of four; the others write, rotate and sync on."""
    runs = [kit.Run(disk, key=f"shard-{n:02d}", shard=n, shards=4, file_bytes=1500) for n in range(4)]
    for run in runs:
        run.put(durable=True)
    disk.fail("fdatasync", path="shard-02")
    runs[2].put(durable=True)
    for _ in range(30):
        for run in runs[:2] + runs[3:]:
            run.put(200, durable=True)
    assert [run.state for run in runs] == ["ok", "ok", "read_only", "ok"]
    assert all(isinstance(ticket.outcomes[0], Lsn) for run in runs[:2] + runs[3:] for ticket in run.order)
    assert runs[0].shard.log.position()[0] > 3


def test_a_full_shard_leaves_the_others_alone(disk: kit.Disk) -> None:
    """S-82."""
    runs = [kit.Run(disk, key=f"shard-{n:02d}", shard=n, shards=2) for n in range(2)]
    for run in runs:
        run.put(durable=True)
    disk.fail("pwrite", "ENOSPC", path="shard-00")
    runs[0].put()
    assert [run.state for run in runs] == ["full", "ok"]
    runs[1].put(durable=True)


@pytest.mark.parametrize(("error", "state"), [("ENOSPC", "full"), ("EDQUOT", "full"), ("EIO", "read_only")])
@pytest.mark.parametrize("short", [False, True], ids=["whole", "half"])
def test_a_failed_write_is_cut_back(run: kit.Run, error: str, state: str, short: bool) -> None:
    """S-79: ftruncate to the length before the batch, then fsync; the batch and everything queued fail."""
    run.put(durable=True)
    before = run.disk.file(1)[: run.shard.log.position()[1]]
    if short:
        run.disk.fail("pwrite", "short")
        run.disk.fail("pwrite", error, index=2)
    else:
        run.disk.fail("pwrite", error)
    since = run.disk.sim.disk_calls
    failed = [run.submit(durable=durable) for durable in (True, False)]
    run.settle()
    assert [type(ticket.error) for ticket in failed] == [CommitFailed] * 2
    assert run.state == state
    assert [call[0] for call in run.disk.calls(since) if call[0] != "pwrite"] == ["truncate", "fsync"]
    assert run.disk.file(1) == before
    assert run.disk.power_loss().file(1) == before


def test_a_write_without_progress_latches_the_shard(run: kit.Run) -> None:
    """S-79: failure *or no progress*; not for want of space, so read-only."""
    run.put()
    run.disk.fail("pwrite", "zero", times="always")
    assert isinstance(run.put().error, CommitFailed)
    latched(run)


def test_short_writes_are_gone_on_with(run: kit.Run) -> None:
    """06 §6.3 flush: looping over short writes."""
    run.put()
    run.disk.fail("pwrite", "short")
    run.put(1000, durable=True)
    assert kit.seqs(run.disk, kit.read(run.disk)) == [1, 2]


@pytest.mark.parametrize("op", ["truncate", "fsync"])
def test_a_write_that_cannot_be_cut_back_latches_the_shard(run: kit.Run, op: str) -> None:
    """S-79: also when the cause was want of space."""
    run.put()
    run.disk.fail("pwrite", "ENOSPC")
    run.disk.fail(op)
    assert isinstance(run.put().error, CommitFailed)
    latched(run)


def test_the_cut_is_no_work_for_the_owner(stepped: kit.Run) -> None:
    """06 §6.3: what syncs, the cut of S-79 among it, is done by the sync or helper thread."""
    stepped.disk.fail("pwrite", "ENOSPC")
    since = stepped.disk.sim.disk_calls
    ticket = stepped.write()
    assert [op for op, _ in stepped.disk.calls(since) if op in ("truncate", "fsync")] == []
    stepped.settle()
    assert isinstance(ticket.error, CommitFailed)


def test_what_was_acknowledged_before_a_failed_write_stays(run: kit.Run) -> None:
    """S-79: the cut goes to the length before the batch, not further."""
    run.put(durable=True)
    run.disk.fail("pwrite", "EIO")
    run.put()
    for image in survivors(run.disk):
        assert kit.seqs(image, kit.recover(image)) == [1]


def test_a_failed_first_write_of_a_file_leaves_a_prepared_one(run: kit.Run) -> None:
    """S-79, S-20: cut to nothing; the next write begins with the open mark again."""
    run.disk.fail("pwrite", "ENOSPC", path=kit.name(1))
    run.put()
    assert run.disk.file(1) == b""
    run.tick(SECOND_MS)
    assert run.put(durable=True).lsn == (1, MARK)
    assert kit.kinds(run.disk.file(1).rstrip(b"\0"))[0] == "open*"


def test_a_durable_submission_is_still_answered_when_a_later_write_finds_no_space(stepped: kit.Run) -> None:
    """S-73, S-80: `full` concerns the batch that failed, not what was written before it."""
    waiting = stepped.write(durable=True)
    stepped.disk.fail("pwrite", "ENOSPC")
    stepped.write()
    stepped.settle()
    assert stepped.state == "full"
    assert waiting.lsn


def fill_up(run: kit.Run) -> None:
    """Bring a shard to `full`: no next file at a rotation."""
    run.put(1000)
    run.disk.fill()
    assert isinstance(run.put(kit.FILE_BYTES - 500).error, TopicsError)
    assert run.state == "full"


def test_no_next_file_makes_the_shard_full_with_nothing_written(run: kit.Run) -> None:
    """S-80, S-85: entered when the next file cannot be allocated at rotation; what it took is given back."""
    run.put(1000)
    end = run.shard.log.position()
    run.disk.fill()
    failed = run.put(kit.FILE_BYTES - 500)
    assert isinstance(failed.error, (CommitFailed, StorageFull))
    assert (run.state, run.shard.log.position()) == ("full", end)
    assert kit.name(2) not in run.disk.files()


@pytest.mark.parametrize("op", ["open", "pwrite", "fsync", "rename", "sync_dir"])
def test_no_current_makes_the_shard_full_with_nothing_written(run: kit.Run, op: str) -> None:
    """S-85 (b), S-86: the new file is not used before its name is in `CURRENT`."""
    full_file(run)
    position = run.shard.log.position()
    run.disk.fail(op, path="" if op == "sync_dir" else "CURRENT")
    failed = run.put(1000, durable=True)
    assert isinstance(failed.error, (CommitFailed, StorageFull))
    assert (run.state, run.shard.log.position()) == ("full", position)
    run.tick(SECOND_MS)
    assert run.put(1000, durable=True).lsn.file_no == 2
    assert run.disk.power_loss().current() == 2


def test_a_full_shard_refuses_records(run: kit.Run) -> None:
    """S-80."""
    fill_up(run)
    for durable in (False, True):
        with pytest.raises(StorageFull):
            run.submit(durable=durable)


def test_a_full_shard_takes_control_frames_while_they_fit(run: kit.Run) -> None:
    """S-80: in the active file, marks behind them; deletes and configs work on a full disk."""
    fill_up(run)
    taken = 0
    size = len(kit.control_frame())
    room = kit.FILE_BYTES - run.shard.log.position()[1] - run.shard.mark_room
    for _ in range(room // size):
        ticket = run.send(kit.control_frame(durable=True), durable=True, control=True)
        run.settle()
        assert ticket.lsn.file_no == 1
        taken += 1
    with pytest.raises(StorageFull):
        run.send(kit.control_frame(), control=True)
    assert taken > 10
    for _ in range(run.shard.mark_room // size):
        ticket = run.send(kit.control_frame(durable=True), durable=True, control=True, mark=True)
        run.settle()
        assert ticket.lsn.file_no == 1
    assert run.state == "full"


def test_control_frames_of_one_tick_fit_together(run: kit.Run) -> None:
    """S-80: what waits in the buffer counts; an accepted one is not failed for want of room."""
    fill_up(run)
    tickets = []
    with pytest.raises(StorageFull):
        while True:
            tickets.append(run.send(kit.control_frame(durable=True), durable=True, control=True))
    run.settle()
    assert {ticket.lsn.file_no for ticket in tickets} == {1}


def test_a_full_shard_without_a_file_takes_no_control_frames(run: kit.Run) -> None:
    """S-80: there is no active file that they could fit in."""
    run.disk.fill()
    run.put()
    with pytest.raises(StorageFull):
        run.send(kit.control_frame(), control=True)


def test_a_full_shard_is_probed_every_second(run: kit.Run) -> None:
    """S-80: not more often, and not in vain when space is back."""
    fill_up(run)
    run.disk.free()
    run.tick(SECOND_MS - 1)
    assert run.state == "full"
    run.tick(1)
    assert run.state == "ok"
    assert run.put(kit.FILE_BYTES - 500, durable=True).lsn.file_no == 2


def test_a_probe_that_finds_no_space_changes_nothing(run: kit.Run) -> None:
    """S-80: it says so each second and leaves no file behind."""
    fill_up(run)
    for _ in range(5):
        run.tick(SECOND_MS)
        assert run.state == "full"
        assert kit.name(2) not in run.disk.files()
    run.disk.free()
    run.tick(SECOND_MS)
    assert run.state == "ok"


def test_a_probe_before_the_first_file_needs_space_too(run: kit.Run) -> None:
    """S-80: back to `ok` when the next file *could be allocated*; until then records are refused, not failed."""
    run.disk.fill()
    run.put()
    run.tick(SECOND_MS)
    assert run.state == "full"
    with pytest.raises(StorageFull):
        run.submit()


def test_the_probe_is_no_work_for_the_owner(stepped: kit.Run) -> None:
    """06 §6.3: what syncs is done by the sync or helper thread; the owner never waits for a disk."""
    fill_up(stepped)
    stepped.disk.free()
    since = stepped.disk.sim.disk_calls
    stepped.disk.clock.advance(SECOND_MS)
    stepped.shard.tick()
    assert stepped.disk.calls(since) == []
    stepped.settle()
    assert stepped.state == "ok"


def test_a_failed_sync_in_a_probe_latches_the_shard(run: kit.Run) -> None:
    """S-78: every sync of a WAL file, and no way back to `ok`."""
    fill_up(run)
    run.disk.free()
    run.disk.fail("fsync", path=kit.name(2))
    run.tick(SECOND_MS)
    latched(run)


def test_a_durable_submission_is_answered_although_the_rotation_behind_it_fails(stepped: kit.Run) -> None:
    """S-73, S-76, S-80: it was written; the sync it waits for takes place in a full shard too."""
    first = stepped.write(HALF, durable=True)
    stepped.owner.step(HELPER)
    report = stepped.owner.work(LANE)
    waiting = stepped.write(durable=True)
    behind = stepped.write(HALF + 500)
    stepped.disk.fail("rename", path="CURRENT", times="always")
    report()
    stepped.settle()
    assert first.finished
    assert isinstance(behind.error, TopicsError)
    assert stepped.state == "full"
    stepped.tick(kit.BACKGROUND_MS)
    assert waiting.lsn


def test_the_next_file_is_made_when_the_active_one_is_half_full(run: kit.Run) -> None:
    """S-84, S-83: under its final name, reserved, file and directory synced."""
    run.put(HALF - MARK - 100)
    assert kit.name(2) not in run.disk.files()
    run.put(200)
    assert run.disk.file(2) == bytes(kit.FILE_BYTES)
    assert run.disk.power_loss().file(2) == bytes(kit.FILE_BYTES)
    assert run.disk.current() == 1


def test_the_next_file_is_made_aside(stepped: kit.Run) -> None:
    """S-84: by a helper; writing goes on meanwhile."""
    stepped.write(HALF)
    assert stepped.owner.waiting(HELPER) == 1
    assert stepped.write(64).finished
    assert stepped.owner.waiting(HELPER) == 1


def test_a_rotation_waits_for_a_file_that_is_being_made(stepped: kit.Run) -> None:
    """S-84: "never waits for it unless it is not finished"; then the submissions gather."""
    stepped.write(HALF)
    late = [stepped.write(HALF), stepped.write(64)]
    stepped.owner.run()
    assert not any(ticket.finished for ticket in late)
    assert stepped.owner.waiting(LANE) == 0
    stepped.settle()
    assert [ticket.lsn.file_no for ticket in late] == [2, 2]


def test_a_rotation_in_order(run: kit.Run) -> None:
    """S-85: sync the old file, write CURRENT, then the new file's first batch."""
    full_file(run)
    since = run.disk.sim.disk_calls
    run.put(1000)
    calls = [
        (op, path.rpartition("/")[2])
        for op, path, _ in run.disk.sim.calls[since:]
        if op in ("fdatasync", "pwrite", "rename")
    ]
    assert calls[:4] == [
        ("fdatasync", kit.name(1)),
        ("pwrite", "CURRENT.tmp"),
        ("rename", "CURRENT.tmp"),
        ("pwrite", kit.name(2)),
    ]
    assert run.shard.counters.rotations == 1


def test_a_rotated_file_has_its_logical_length(run: kit.Run) -> None:
    """S-88: finalize is ftruncate and fsync, for every file that stops being active."""
    full_file(run)
    _, end = run.shard.log.position()
    run.put(1000)
    assert len(run.disk.file(1)) == len(run.disk.power_loss().file(1)) == end


def test_current_names_the_new_file_before_anything_in_it_is_acknowledged(disk: kit.Disk) -> None:
    """S-86: durable or not, held against a power loss at the moment of the answer."""
    run = kit.Run(disk, file_bytes=1500)
    seen: list[tuple[int, int | None]] = []
    for n in range(60):
        ticket = run.submit(200, durable=n % 3 == 0)
        ticket._then = lambda ticket=ticket: seen.append((ticket.lsn.file_no, disk.power_loss().current()))
        run.settle()
    assert len(seen) == 60
    assert all(current is not None and current >= number for number, current in seen)
    assert seen[-1][0] > 5


def test_submissions_gather_while_a_file_is_opened_or_rotated(disk: kit.Disk) -> None:
    """06 §6.3: nothing is written meanwhile, everything is afterwards, in order."""
    run = kit.Run(disk, kit.SteppedOwner())
    tickets = [run.submit() for _ in range(3)]
    run.owner.run()
    tickets += [run.write() for _ in range(3)]
    assert not any(ticket.finished for ticket in tickets)
    run.settle()
    assert [ticket.lsn.offset for ticket in tickets] == [MARK + 64 * n for n in range(6)]


def test_what_gathers_during_a_rotation_is_whole_in_the_new_file(stepped: kit.Run) -> None:
    """S-24, S-85: also when more gathers than a file was meant to hold."""
    stepped.write(HALF)
    stepped.owner.step(HELPER)
    tickets = [stepped.write(HALF, durable=True)]
    tickets += [stepped.write(1000, durable=True) for _ in range(6)]
    stepped.settle()
    assert kit.all_finished_once(tickets)
    for image in survivors(stepped.disk):
        assert kit.seqs(image, kit.recover(image)) == list(range(1, stepped.seq + 1))


def test_a_submission_larger_than_a_file_gets_one_of_its_own_size(run: kit.Run) -> None:
    """S-87: in a file of its own, whole."""
    run.put()
    large = run.put(3 * kit.FILE_BYTES, durable=True)
    assert large.lsn == (2, len(kit.open_mark(2, (1, len(run.disk.file(1))))))
    after = run.put(durable=True)
    assert after.lsn.file_no == 3
    assert len(run.disk.file(2)) == large.lsn.offset + 3 * kit.FILE_BYTES


def test_a_large_submission_is_taken_by_the_first_file(run: kit.Run) -> None:
    """S-87, S-20: reserved at its size, the open mark included."""
    large = run.put(3 * kit.FILE_BYTES, durable=True)
    assert large.lsn == (1, MARK)
    sizes = [args[0] for op, _, args in run.disk.sim.calls if op == "allocate"]
    assert int(sizes[0]) >= MARK + 3 * kit.FILE_BYTES


def test_what_was_acknowledged_survives_a_crash_anywhere_in_a_rotation(disk: kit.Disk) -> None:
    """S-85, S-86, S-88, R-1: at every disk call, kill and power loss; and the next run goes on."""
    run = kit.Run(disk, file_bytes=1500)
    acked: list[int] = []
    images = 0

    def judge(_: object) -> None:
        nonlocal images
        for image in survivors(disk):
            group = kit.recover(image)
            found = kit.seqs(image, group)
            assert found[: len(acked)] == acked
            assert found == list(range(1, len(found) + 1))
            images += 1

    disk.sim.before = judge
    while run.shard.log.position()[0] < 4:
        run.put(400, durable=True)
        acked.append(run.seq)
    disk.sim.before = None
    assert images > 300


def test_close_syncs_and_finalizes(run: kit.Run) -> None:
    """S-88: everything written is durable, the file has its logical length."""
    run.put()
    _, end = run.shard.log.position()
    assert run.close()
    image = run.disk.power_loss()
    assert len(image.file(1)) == end
    assert kit.seqs(image, kit.recover(image)) == [1]


def test_close_unlinks_the_prepared_file(run: kit.Run) -> None:
    """S-88."""
    run.put(HALF)
    assert kit.name(2) in run.disk.files()
    assert run.close()
    assert sorted(run.disk.files()) == ["CURRENT", kit.name(1)]
    kit.read(run.disk)


def test_close_gives_every_descriptor_back(run: kit.Run) -> None:
    """S-88: of the active file, the prepared one, those that were rotated away and those that were read."""
    full_file(run)
    run.put(1000)
    run.put(HALF)
    for number in (1, 2):
        run.bytes_of(number)
    run.close()
    assert [inode.opens for inode in run.disk.sim._inodes()] == [0] * len(run.disk.files())


def test_close_gives_back_a_first_file_that_never_became_active(run: kit.Run) -> None:
    """S-88: prepared files are unlinked at close; one that `CURRENT` may name stays, but takes no space."""
    run.disk.fail("rename", path="CURRENT")
    run.put()
    assert run.state == "full"
    run.shard.close()
    assert run.disk.files().get(kit.name(1), b"") == b""
    assert all(inode.opens == 0 for inode in run.disk.sim._inodes())


def test_a_prepared_file_that_current_names_stays(run: kit.Run) -> None:
    """S-64, S-88: or the next start would be refused."""
    full_file(run)
    run.disk.fail("sync_dir", times="always")
    run.put(1000)
    run.disk.faults.clear()
    assert run.disk.current() == 2
    run.close()
    for image in survivors(run.disk):
        kit.recover(image)


def test_submissions_after_close_are_refused(run: kit.Run) -> None:
    """S-73: `WalClosed`."""
    run.put()
    run.close()
    with pytest.raises(WalClosed):
        run.submit()


def test_time_does_nothing_to_a_closed_shard(run: kit.Run) -> None:
    """S-73: a timer that is late raises nothing and touches nothing."""
    run.put(durable=True)
    run.close()
    since = run.disk.sim.disk_calls
    for _ in range(5):
        run.tick(SECOND_MS)
    assert run.disk.calls(since) == []


@pytest.mark.parametrize("where", ["queued", "written", "syncing"])
def test_whatever_is_left_at_close_is_failed_once(stepped: kit.Run, where: str) -> None:
    """S-73: no submission is left without an answer, none gets two."""
    tickets = [stepped.submit(durable=True) for _ in range(3)]
    if where != "queued":
        stepped.shard.flush()
    report: Callable[[], None] = lambda: None  # noqa: E731
    if where == "syncing":
        report = stepped.owner.work(LANE)
    stepped.shard.close()
    report()
    stepped.settle()
    assert [type(ticket.error) for ticket in tickets] == [WalClosed] * 3


def test_a_latched_shard_closes_without_another_sync(run: kit.Run) -> None:
    """S-78: and says that not everything is durable."""
    run.put()
    run.disk.fail("fdatasync")
    run.tick(kit.BACKGROUND_MS)
    since = run.disk.sim.disk_calls
    assert not run.shard.close()
    assert [call for call in run.disk.calls(since) if "sync" in call[0]] == []


class Chaos:
    """Random work on a shard with one random fault; helpers finish, and report, when they like.

    Every second one writes to a slow volume, every third one is under pressure.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"chaos {seed}")
        self.disk = kit.Disk()
        self.owner = kit.SteppedOwner()
        self.run = kit.Run(self.disk, self.owner, file_bytes=1500)
        op = self.rng.choice(("pwrite", "fdatasync", "fsync", "truncate", "allocate", "rename", "sync_dir", "open"))
        self.disk.fail(op, self.rng.choice(("EIO", "ENOSPC")), index=self.rng.randrange(1, 8))
        if seed % 2:
            self.disk.sim.before = lambda call: self.disk.clock.advance(10) if call[0] == "pwrite" else None
        self.run.shard.pressure = 0.8 if seed % 3 == 0 else 0.0
        self.tickets: list[kit.Ticket] = []
        self.reports: dict[str, Callable[[], None]] = {}

    def step(self) -> None:
        """One thing that happens: a submission, a pass of the loop, time, a helper's work or its report."""
        choice = self.rng.random()
        idle = [lane for lane, queue in self.owner.lanes.items() if queue and lane not in self.reports]
        if choice < 0.4:
            size, durable = self.rng.choice((64, 300, 2000)), self.rng.random() < 0.5
            try:
                self.tickets.append(self.run.submit(size, durable=durable))
            except (StorageFull, ShardReadOnly):
                pass
        elif choice < 0.6:
            self.owner.run()
        elif choice < 0.7:
            self.disk.clock.advance(self.rng.choice((1, 10, 30, 1000)))
            self.run.shard.tick()
        elif choice < 0.85 and idle:
            lane = self.rng.choice(idle)
            self.reports[lane] = self.owner.work(lane)
        elif self.reports:
            self.reports.pop(self.rng.choice(list(self.reports)))()

    def end(self) -> None:
        """Let everything come to rest, then close."""
        while self.reports:
            self.reports.popitem()[1]()
        self.owner.settle()
        self.run.shard.flush()
        self.owner.settle()
        try:
            self.run.shard.close()
        except WalError:
            pass


@pytest.mark.parametrize("seed", range(100))
def test_every_submission_is_finished_exactly_once_whatever_fails(seed: int) -> None:
    """S-73, 06 §19 (15): random work, a random fault, random order of the helpers; and nothing raises."""
    chaos = Chaos(seed)
    for _ in range(80):
        chaos.step()
    chaos.end()
    assert kit.all_finished_once(chaos.tickets)


@pytest.mark.parametrize("seed", range(100))
def test_an_acknowledged_submission_is_on_the_disk_whatever_fails(seed: int) -> None:
    """R-1, S-241: as above, held against a power loss at the end."""
    chaos = Chaos(seed)
    for _ in range(80):
        chaos.step()
    image = chaos.disk.power_loss()
    image.free()
    survivors = kit.recover(image)
    kept = set(kit.seqs(image, survivors))
    acked = {
        seq
        for seq, ticket in enumerate(chaos.tickets, 1)
        if ticket._durable and any(isinstance(outcome, Lsn) for outcome in ticket.outcomes)
    }
    assert acked <= kept


def test_power_loss_is_not_an_answer(run: kit.Run) -> None:
    """13 §2: after the crash no acknowledgement exists."""
    run.put(durable=True)
    run.disk.sim.crash_at(run.disk.sim.disk_calls + 2, "after")
    ticket = run.submit(durable=True)
    with pytest.raises(PowerLoss):
        run.settle()
    assert not ticket.finished


def test_bounds_are_those_of_the_specification() -> None:
    """S-71, S-76, S-80, 06 §6.3."""
    assert (shards.SUBMISSIONS_MAX, shards.PENDING_BYTES_MAX) == (4096, 64 << 20)
    assert (shards.FLUSH_BYTES, shards.FLUSH_FRAMES) == (8 << 20, 16384)
    assert (shards.BACKGROUND_MIN_NS, shards.BACKGROUND_MAX_NS) == (10_000_000, 1_000_000_000)
    assert (shards.SYNC_MARK_AFTER_NS, shards.PROBE_EVERY_NS) == (20_000_000, 1_000_000_000)
