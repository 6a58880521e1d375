"""When the log syncs: always, batch, os (W-52, W-53, W-82), and what threads share (W-80, W-81)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from itertools import pairwise
from typing import Any, NoReturn

import pytest

from tests.unit.wal import kit
from topics.errors import WalIo, WalReadOnly
from topics.wal import FsyncPolicy, Position, Record
from topics.wal.timer import SyncTimer

BATCH = FsyncPolicy.batch(10)


def synced(disk: kit.Disk, mark: int = 0) -> int:
    return disk.calls(mark).count(("fdatasync", "000000.wal"))


def durable(disk: kit.Disk) -> int:
    """How many records would survive a power loss now."""
    wal, info = kit.open_wal(disk.power_loss())
    wal.close()
    return info.valid_records


def test_always_syncs_each_append_before_it_returns(disk: kit.Disk) -> None:
    """W-52 always."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    for n in range(3):
        mark = disk.sim.disk_calls
        wal.append(kit.put(n))
        disk.fs.acked(f"{kit.DIR}/000000.wal", wal.current_position().offset)
        assert (synced(disk, mark), durable(disk)) == (1, n + 1)
    wal.close()


def test_os_syncs_only_at_sync_rotation_and_close(disk: kit.Disk) -> None:
    """W-52 os."""
    wal, _ = kit.open_wal(disk)
    mark = disk.sim.disk_calls
    kit.fill(wal, 5)
    disk.clock.advance(100_000)
    wal.tick()
    kit.fill(wal, 2, 5)
    assert (synced(disk, mark), durable(disk)) == (0, 0)
    wal.sync()
    assert (synced(disk, mark), durable(disk)) == (1, 7)
    kit.fill(wal, 5, 7)
    assert wal.current_position().segment_id == 1
    assert synced(disk, mark) == 2
    wal.close()
    assert durable(disk) == 12


def test_batch_syncs_the_first_append_in_the_call(disk: kit.Disk) -> None:
    """W-52 batch: always at the first append."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    assert durable(disk) == 1
    wal.close()


def test_batch_leaves_appends_within_the_window_to_the_timer(disk: kit.Disk) -> None:
    """W-52 batch."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    mark = disk.sim.disk_calls
    disk.clock.advance(9)
    kit.fill(wal, 3, 1)
    assert (synced(disk, mark), durable(disk)) == (0, 1)
    wal.close()


def test_batch_syncs_in_the_call_when_the_window_has_passed(disk: kit.Disk) -> None:
    """W-52 batch: w since the last sync."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    disk.clock.advance(3)
    wal.append(kit.put(1))
    disk.clock.advance(7)
    wal.append(kit.put(2))
    assert durable(disk) == 3
    wal.close()


def test_the_timer_syncs_one_window_after_the_oldest_unsynced_record_and_not_before(disk: kit.Disk) -> None:
    """W-52 batch: at most w after the oldest."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    disk.clock.advance(5)
    wal.append(kit.put(1))
    disk.clock.advance(4)
    wal.append(kit.put(2))
    disk.clock.advance(5)
    wal.tick()
    assert durable(disk) == 1
    disk.clock.advance(1)
    wal.tick()
    assert durable(disk) == 3
    mark = disk.sim.disk_calls
    disk.clock.advance(1000)
    wal.tick()
    assert synced(disk, mark) == 0
    wal.close()


def test_the_timer_syncs_before_a_call_would_have_to(disk: kit.Disk) -> None:
    """W-52 batch(w): at most w after the oldest unsynced record; the next call finds no window passed."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    wal.append(kit.put(1))
    disk.clock.advance(7)
    assert wal._tick_early() == 0.001
    assert durable(disk) == 1
    disk.clock.advance(1)
    assert wal._tick_early() == 0
    assert durable(disk) == 2
    mark = disk.sim.disk_calls
    disk.clock.advance(9)
    wal.append(kit.put(2))
    assert synced(disk, mark) == 0
    wal.close()


def test_the_timer_comes_back_for_what_was_written_while_it_synced(disk: kit.Disk) -> None:
    """W-52 batch: at most w after the oldest unsynced record, however long the sync before it took."""
    late: list[str] = []

    def hook(op: str, path: str) -> None:
        if op == "fdatasync" and late:
            late.clear()
            wal.append(kit.put(2))
            disk.clock.advance(5)

    wal, _ = kit.open_wal(disk, BATCH, fs=kit.hooked(disk, hook))
    wal.append(kit.put(0))
    wal.append(kit.put(1))
    disk.clock.advance(8)
    late.append("now")
    assert wal._tick_early() == 0.003
    disk.clock.advance(3)
    assert wal._tick_early() == 0
    assert durable(disk) == 3
    wal.close()


@pytest.mark.parametrize("gap", [1, 3, 7, 9, 10, 11])
def test_batch_makes_every_record_durable_within_two_windows(disk: kit.Disk, gap: int) -> None:
    """W-52 batch(w): durable within 2·w without further calls; the timer looks once per millisecond here."""
    wal, _ = kit.open_wal(disk, BATCH, size=1 << 20)
    appended: list[int] = []
    for now in range(120):
        if now % gap == 0 and now < 90:
            wal.append(kit.put(len(appended)))
            appended.append(now)
        wal.tick()
        if now % 5 == 0 or now == 119:
            assert durable(disk) >= sum(at <= now - 20 for at in appended)
        disk.clock.advance(1)
    wal.close()


def test_a_jump_of_the_wall_clock_changes_nothing(disk: kit.Disk) -> None:
    """W-52, 13 §2: windows are measured in monotonic time."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    disk.clock.jump(10**9)
    wal.append(kit.put(1))
    wal.tick()
    assert durable(disk) == 1
    disk.clock.jump(-(10**10))
    disk.clock.advance(10)
    wal.tick()
    assert durable(disk) == 2
    wal.close()


def test_one_batch_makes_one_sync_decision(disk: kit.Disk) -> None:
    """W-51."""
    wal, _ = kit.open_wal(disk, BATCH)
    mark = disk.sim.disk_calls
    wal.append_batch([kit.put(n) for n in range(5)])
    assert (synced(disk, mark), durable(disk)) == (1, 5)
    wal.close()


def test_a_sync_starts_a_new_window(disk: kit.Disk) -> None:
    """W-52: since the last sync, whoever asked for it."""
    wal, _ = kit.open_wal(disk, BATCH)
    wal.append(kit.put(0))
    disk.clock.advance(9)
    wal.append(kit.put(1))
    wal.sync()
    disk.clock.advance(9)
    mark = disk.sim.disk_calls
    wal.append(kit.put(2))
    assert synced(disk, mark) == 0
    wal.close()


def test_a_failed_background_sync_is_told_to_the_next_caller(disk: kit.Disk) -> None:
    """07 §1.4 row 1."""
    wal, _ = kit.open_wal(disk, BATCH)
    kit.fill(wal, 2)
    disk.clock.advance(10)
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.tick()
    for call in (lambda: wal.append(kit.put(9)), wal.sync, wal.flush):
        with pytest.raises(WalReadOnly):
            call()
    wal.close()


def threads_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those of other tests may end meanwhile."""
    return set(threading.enumerate()) - before


def test_with_an_injected_clock_no_thread_runs(disk: kit.Disk) -> None:
    """W-82."""
    before = set(threading.enumerate())
    wal, _ = kit.open_wal(disk, BATCH, prepare_ahead=True)
    kit.fill(wal, 20)
    assert not threads_since(before)
    wal.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, kit.OS], ids=["always", "os"])
def test_only_batch_has_a_timer(disk: kit.Disk, policy: FsyncPolicy) -> None:
    """W-82."""
    before = set(threading.enumerate())
    wal, _ = kit.open_wal(disk, policy, timed=True)
    kit.fill(wal, 5)
    assert not threads_since(before)
    wal.close()


def test_batch_has_one_timer_that_ends_with_the_log(disk: kit.Disk) -> None:
    """W-82: none before the first append, one after, none behind close."""
    before = set(threading.enumerate())
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(1000), timed=True)
    assert not threads_since(before)
    kit.fill(wal, 5)
    assert len(threads_since(before)) == 1
    wal.close()
    assert not threads_since(before)


class Threads:
    """`threading` for the timer, whose threads stop at a gate on their way, and whose locks tell who has to wait."""

    Event = staticmethod(threading.Event)
    current_thread = staticmethod(threading.current_thread)

    def __init__(self, step: str) -> None:
        self.gate = kit.Gate()
        self.made: list[threading.Thread] = []
        self._step = step
        self._came = threading.Event()

    def Lock(self) -> kit.TellingLock:
        return kit.TellingLock(self._came)

    def wait_stuck_or_done(self, one: Future[None]) -> None:
        """Until a thread has come to a lock that another one holds, or is through."""
        one.add_done_callback(lambda _: self._came.set())
        assert self._came.wait(kit.WAIT_S)

    def Thread(self, **options: Any) -> threading.Thread:
        thread = threading.Thread(**options)
        self.made.append(thread)
        if self._step == "made" and len(self.made) == 1:
            self.gate.stop()
        elif self._step == "started":
            start = thread.start

            def stopped() -> None:
                self.gate.stop()
                start()

            thread.start = stopped  # type: ignore[method-assign]
        return thread


class Ticked:
    """A log that has nothing to sync."""

    def tick(self) -> float:
        return 0.0


def test_a_timer_that_is_stopped_while_it_is_being_started_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-82, W-56: the first append of one thread, the close of another."""
    threads, owner = Threads("started"), Ticked()
    monkeypatch.setattr("topics.wal.timer.threading", threads)
    timer = SyncTimer(owner.tick, 1000)
    starting = kit.spawn(timer.start)
    threads.gate.wait_reached()
    stopping = kit.spawn(timer.stop)
    threads.wait_stuck_or_done(stopping)
    is_done = stopping.done()
    threads.gate.open()
    assert not is_done  # there was no thread yet that could be waited for
    kit.finish([starting, stopping])
    timer.arm()
    assert [thread.is_alive() for thread in threads.made] == [False]


def test_a_timer_that_came_too_early_comes_back_when_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52 batch: not a whole window later, for the oldest record has waited for a part of one."""
    waits, ticks = list[float](), iter([0.25, 0.125, 0.0])

    class Ticking:
        def tick(self) -> float:
            return next(ticks)

    owner = Ticking()
    timer = SyncTimer(owner.tick, 1000)

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 4

    monkeypatch.setattr(timer._stopped, "wait", wait)
    timer.arm()
    while len(waits) < 3:
        os.sched_yield()
    timer.arm()
    timer.stop()
    assert waits == [0.8, 0.25, 0.125, 0.8]


def test_a_timer_that_two_threads_start_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-82: one thread per log."""
    threads, owner = Threads("made"), Ticked()
    monkeypatch.setattr("topics.wal.timer.threading", threads)
    timer = SyncTimer(owner.tick, 1000)
    first = kit.spawn(timer.start)
    threads.gate.wait_reached()
    second = kit.spawn(timer.start)
    threads.wait_stuck_or_done(second)
    threads.gate.open()
    kit.finish([first, second])
    timer.stop()
    assert [thread.is_alive() for thread in threads.made] == [False]


def test_batch_syncs_in_the_call_while_its_timer_cannot_be_started(
    disk: kit.Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W-52 batch: what is acknowledged is durable within the window; the timer is started when that is possible."""

    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    before = set(threading.enumerate())
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(1000), timed=True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for n in range(4):
            wal.append(kit.put(n))
            assert durable(disk) == n + 1
    assert sum("the timer" in told for told in caplog.messages) == 1
    wal.append(kit.put(4))
    assert [thread.name for thread in threads_since(before)] == ["topics-wal-timer"]
    assert kit.numbers(wal) == list(range(5))
    wal.close()


def test_the_timer_makes_the_last_record_durable_without_further_calls(disk: kit.Disk) -> None:
    """W-52 batch, with the real timer."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(20), meter=meter, timed=True)
    wal.append(kit.put(0))
    wal.append(kit.put(1))
    assert meter.wait(lambda: meter.count("fsync") >= 2)
    assert durable(disk) == 2
    wal.append(kit.put(2))
    wal.append(kit.put(3))
    assert meter.wait(lambda: meter.count("fsync") >= 3)
    wal.close()
    assert durable(disk) == 4


def test_the_timer_survives_idle_times_between_bursts(disk: kit.Disk) -> None:
    """W-52 batch: each burst gets its sync."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(5), meter=meter, timed=True, size=1 << 20)
    end = 0
    for burst in range(5):
        kit.fill(wal, 3, 3 * burst)
        end = wal.current_position().offset
        assert meter.wait(lambda: wal._log.synced() >= (0, end))  # noqa: B023
    assert durable(disk) == 15
    wal.close()


@pytest.mark.usefixtures("kernel_used")
def test_concurrent_appends_under_always_share_one_write_and_one_sync(disk: kit.Disk) -> None:
    """W-52 always: while one sync runs, all who come wait for the next one together."""
    gate, meter = kit.Gate(), kit.Kept()
    writes: list[str] = []
    armed = [False]

    def hook(op: str, path: str) -> None:
        if op == "fdatasync" and armed[0]:
            armed[0] = False
            gate.stop()
        if path == "wal.after_write":
            writes.append(path)

    wal, _ = kit.open_wal(disk, kit.ALWAYS, meter=meter, fs=kit.hooked(disk, hook), size=1 << 20)
    armed[0] = True
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    others = [kit.spawn(lambda n=n: wal.append(kit.put(n))) for n in range(1, 9)]
    kit.wait_gathered(wal._rounds, 8)
    assert not any(future.done() for future in (first, *others))
    gate.open()
    positions = kit.finish([first, *others])
    assert len(set(positions)) == 9
    assert (len(writes), meter.count("fsync")) == (2, 2)
    assert durable(disk) == 9
    for n, position in enumerate(positions):
        with wal.read_from(position) as reader:
            assert reader.next_record() == (kit.put(n), position)
    wal.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, FsyncPolicy.batch(2), kit.OS], ids=["always", "batch", "os"])
def test_threads_append_without_loss_interleaving_or_going_back(disk: kit.Disk, policy: FsyncPolicy) -> None:
    """W-80, W-81: positions of one thread increase, batches stay together, through rotations."""
    wal, _ = kit.open_wal(disk, policy, timed=True, size=4096)
    start = threading.Barrier(6)

    def work(worker: int) -> list[Position]:
        start.wait(kit.WAIT_S)
        found: list[Position] = []
        for n in range(25):
            if n % 3:
                found.append(wal.append(Record.put(b"%d" % worker, b"%d" % len(found))))
            else:
                batch = [Record.put(b"%d" % worker, b"%d" % (len(found) + i)) for i in range(4)]
                got = wal.append_batch(batch)
                assert len({position.segment_id for position in got}) == 1
                assert {b.offset - a.offset for a, b in pairwise(got)} <= {len(record.encode()) for record in batch}
                found += got
        return found

    answers = kit.finish([kit.spawn(lambda w=w: work(w)) for w in range(6)])
    for worker, positions in enumerate(answers):
        assert positions == sorted(set(positions))
        for n, position in enumerate(positions):
            reader = wal.read_from(position)
            assert reader.next_record() == (Record.put(b"%d" % worker, b"%d" % n), position)
            reader.close()
    assert len(kit.records(wal)) == sum(map(len, answers))
    wal.close()


def test_syncing_happens_outside_the_lock_of_appends(disk: kit.Disk) -> None:
    """W-80: an append goes on while a sync is on its way."""
    gate = kit.Gate()
    armed = [False]

    def hook(op: str, path: str) -> None:
        if op == "fdatasync" and armed[0]:
            gate.stop()

    wal, _ = kit.open_wal(disk, fs=kit.hooked(disk, hook))
    wal.append(kit.put(0))
    armed[0] = True
    syncing = kit.spawn(wal.sync)
    gate.wait_reached()
    assert kit.spawn(lambda: wal.append(kit.put(1))).result(kit.WAIT_S).segment_id == 0
    gate.open()
    syncing.result(kit.WAIT_S)
    armed[0] = False
    wal.close()


def test_encoding_happens_before_the_lock(disk: kit.Disk) -> None:
    """W-80: a record is encoded while another append is in its write."""
    gate, encoded = kit.Gate(), threading.Event()
    armed = [False]

    class Probe(bytes):
        def __len__(self) -> int:
            encoded.set()
            return super().__len__()

    def hook(op: str, path: str) -> None:
        if op == "pwrite" and armed[0]:
            armed[0] = False
            gate.stop()

    wal, _ = kit.open_wal(disk, fs=kit.hooked(disk, hook))
    armed[0] = True
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    second = kit.spawn(lambda: wal.append(Record(b"k", Probe(b"v"))))
    try:
        assert encoded.wait(kit.WAIT_S)
        assert not second.done()
    finally:
        gate.open()
    kit.finish([first, second])
    wal.close()
