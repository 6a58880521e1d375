"""When a shard has something to do by the clock: what a timer sleeps until (S-25, S-75, S-76, S-80)."""

from __future__ import annotations

import random

import pytest

from tests.unit.storage import kit

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2
BOUND = 64 << 10
MS = 1_000_000


def due_ms(run: kit.Run) -> float | None:
    """In how many milliseconds something is due."""
    due = run.shard.next_due_ns()
    return None if due is None else (due - run.disk.clock.monotonic_ns()) / MS


def test_an_idle_shard_wants_no_timer(run: kit.Run) -> None:
    """S-20: before the first file; S-25: and behind a sync mark."""
    assert due_ms(run) is None
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS)
    assert due_ms(run) is None


def test_written_bytes_are_due_after_their_bound(run: kit.Run) -> None:
    """S-76: from the oldest of them."""
    run.put()
    assert due_ms(run) == 10
    run.disk.clock.advance(4)
    run.put()
    assert due_ms(run) == 6


def test_the_bound_follows_the_time_a_sync_takes(run: kit.Run) -> None:
    """S-76."""
    clock = run.disk.clock
    run.disk.sim.before = lambda call: clock.advance(100) if call[0] == "fdatasync" else None
    run.put(durable=True)
    run.put()
    assert due_ms(run) == 400


def test_a_sync_mark_is_due_20_ms_after_the_sync(run: kit.Run) -> None:
    """S-25."""
    run.put(durable=True)
    assert due_ms(run) == kit.SYNC_MARK_MS
    run.tick(kit.SYNC_MARK_MS)
    assert kit.kinds(run.disk.file(1))[-1] == "sync*"


def test_a_sync_mark_that_does_not_fit_is_never_due(run: kit.Run) -> None:
    """S-25: a timer must not spin on it. Only a write that has a file for itself leaves so little room."""
    run.put(64)
    room = kit.FILE_BYTES - (run.shard.log.position()[1] - 64)
    run.put(room - 20, durable=True)
    file_no, end = run.shard.log.position()
    assert (file_no, kit.FILE_BYTES - end <= 20) == (2, True)
    assert due_ms(run) is None


def test_a_full_shard_is_due_for_its_probe(run: kit.Run) -> None:
    """S-80: every second."""
    run.put(durable=True)
    run.tick(kit.SYNC_MARK_MS)
    run.disk.fail("pwrite", "ENOSPC")
    run.put()
    assert run.state == "full"
    assert due_ms(run) == 1000


def test_free_space_is_due_every_second(disk: kit.Disk) -> None:
    """S-80: also before the first file."""
    run = kit.Run(disk, min_free_bytes=BOUND)
    disk.clock.advance(300)
    assert due_ms(run) == 700
    run.tick(700)
    assert due_ms(run) == 1000


def test_a_window_is_due_at_its_end(stepped: kit.Run) -> None:
    """S-75: in fractions of a millisecond."""
    stepped.shard.pressure = 0.7
    stepped.write(durable=True)
    assert due_ms(stepped) == 5.25
    stepped.disk.clock.advance(2)
    assert due_ms(stepped) == 3.25
    stepped.shard.pressure = 0.0
    due = due_ms(stepped)
    assert due is not None
    assert due <= 0


@pytest.mark.parametrize(("pressure", "durable"), [(0.0, False), (0.7, False), (0.7, True)])
def test_what_gathers_behind_a_sync_is_told_to_the_timer_when_it_is_due(
    stepped: kit.Run, pressure: float, durable: bool
) -> None:
    """S-75, S-76: while the sync runs nothing is due; a timer that looked then must be woken."""
    told: list[float | None] = []
    stepped.write(durable=True)
    stepped.shard.pressure = pressure
    report = stepped.owner.work(LANE)
    stepped.write(durable=durable)
    assert due_ms(stepped) is None
    stepped.shard.on_due = lambda: told.append(due_ms(stepped))
    report()
    stepped.owner.run()
    assert told
    assert told[-1] == due_ms(stepped)
    assert told[-1] is not None


@pytest.mark.parametrize("busy", ["syncing", "rotating", "opening"])
def test_while_a_helper_has_the_turn_nothing_is_due(disk: kit.Disk, busy: str) -> None:
    """06 §6.3: its report goes on; a timer would only spin."""
    run = kit.Run(disk, kit.SteppedOwner())
    if busy != "opening":
        run.put()
    if busy == "rotating":
        run.write(HALF)
        run.owner.step(HELPER)
        run.write(HALF)
    else:
        run.write(durable=True)
    disk.clock.advance(5000)
    assert run.shard.next_due_ns() is None
    run.settle()
    assert run.shard.next_due_ns() is not None


def test_a_latched_or_closed_shard_wants_no_timer(run: kit.Run) -> None:
    """S-78, S-73."""
    run.put()
    run.disk.fail("fdatasync")
    run.tick(kit.BACKGROUND_MS)
    assert (run.state, due_ms(run)) == ("read_only", None)
    other = kit.Run(kit.Disk(), min_free_bytes=BOUND)
    other.put()
    other.close()
    assert due_ms(other) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_tick_does_something_when_it_is_due_and_nothing_before(seed: int) -> None:
    """S-25, S-75, S-76, S-80: random states; a timer that sleeps exactly until then misses nothing and never spins."""
    rng = random.Random(f"due {seed}")
    disk = kit.Disk()
    run = kit.Run(disk, kit.SteppedOwner(), file_bytes=1500, min_free_bytes=rng.choice((0, BOUND)))
    run.shard.pressure = rng.choice((0.0, 0.9))
    happened = 0

    def trace() -> tuple[object, ...]:
        lanes = sorted((lane, len(queue)) for lane, queue in run.owner.lanes.items())
        shard = run.shard
        return lanes, disk.sim.disk_calls, shard._dirty_since_ns, shard._window_ns

    for _ in range(250):
        lanes = [lane for lane, queue in run.owner.lanes.items() if queue]
        step = rng.random()
        if step < 0.4 and run.state == "ok":
            run.submit(rng.choice((64, 300, 2000)), durable=rng.random() < 0.5)
        elif step < 0.5:
            run.owner.run()
        elif step < 0.55:
            disk.leave(rng.choice((0, 1024, BOUND, 4 * BOUND, 8 * BOUND)))
        elif step < 0.8 and lanes:
            run.owner.step(rng.choice(lanes))
        now = disk.clock.monotonic_ns()
        due = run.shard.next_due_ns()
        before = trace()
        if due is None or due > now:
            run.shard.tick()
            assert trace() == before, f"seed {seed}: something was done before it was due"
        if due is None:
            disk.clock.advance(rng.choice((1, 50, 2000)))
            run.shard.tick()
            assert trace() == before, f"seed {seed}: something was done and never due"
        elif rng.random() < 0.5:
            disk.clock.advance(max(0, -(-(due - now) // MS)))
            run.shard.tick()
            assert trace() != before, f"seed {seed}: it was due and nothing was done"
            later = run.shard.next_due_ns()
            assert later is None or later > disk.clock.monotonic_ns()
            happened += 1
    assert happened > 2
