"""The owner: what is put off runs in order, what is sent aside reports to it, threads share it (00 A-1, 06 §6.3)."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.storage import kit
from tests.unit.wal.kit import WAIT_S, Gate, HookFs, TellingLock, finish, spawn
from topics.clock import SystemClock
from topics.codec import kernel
from topics.errors import CommitFailed, TopicsError, WalClosed
from topics.fs import Fs, OsFs
from topics.storage import group as groups
from topics.storage import owner as owners
from topics.storage import shard as shards
from topics.storage.owner import InlineOwner, LockedOwner, LoopOwner
from topics.storage.shard import Lsn, Shard
from topics.testing import ManualClock

THREADS, EACH = 16, 50


def test_what_is_put_off_runs_in_order() -> None:
    """A-1: after what the owner is doing now."""
    owner, seen = InlineOwner(), []
    for n in range(3):
        owner.soon(lambda n=n: seen.append(n))
    assert seen == []
    owner.run()
    assert seen == [0, 1, 2]


def test_what_is_put_off_meanwhile_runs_too() -> None:
    """A-1: `run` ends when nothing is left."""
    owner, seen = InlineOwner(), []
    owner.soon(lambda: owner.soon(lambda: seen.append("later")))
    owner.soon(lambda: seen.append("now"))
    owner.run()
    assert seen == ["now", "later"]


def test_work_aside_runs_at_once_and_its_report_later() -> None:
    """A-1: completions are put off behind what was put off before."""
    owner = InlineOwner()
    seen: list[object] = []
    owner.soon(lambda: seen.append("before"))
    owner.aside("lane", lambda: seen.append("work"), seen.append)
    owner.soon(lambda: seen.append("after"))
    assert seen == ["work"]
    owner.run()
    assert seen == ["work", "before", None, "after"]


def test_an_error_of_the_work_is_its_report() -> None:
    """A-1: the owner judges it."""
    owner = InlineOwner()
    seen: list[BaseException | None] = []
    error = OSError(5, "no")

    def work() -> None:
        raise error

    owner.aside("lane", work, seen.append)
    owner.run()
    assert seen == [error]


@pytest.fixture
def owner() -> Iterator[LockedOwner]:
    owner = LockedOwner()
    yield owner
    owner.close()


def held_elsewhere(owner: LockedOwner) -> bool:
    """Whether another thread could not become the owner now."""

    def attempt() -> bool:
        got = owner._lock.acquire(blocking=False)
        if got:
            owner._lock.release()
        return not got

    return finish([spawn(attempt)])[0]


def test_leaving_does_what_was_put_off_first(owner: LockedOwner) -> None:
    """A-1: still as the owner, in order."""
    seen: list[object] = []
    with owner:
        owner.soon(lambda: seen.append(held_elsewhere(owner)))
        owner.soon(lambda: owner.soon(lambda: seen.append("last")))
        assert seen == []
    assert seen == [True, "last"]
    assert not held_elsewhere(owner)


def test_only_the_outermost_leaving_does_it(owner: LockedOwner) -> None:
    """A-1: what the owner is doing now includes what called it."""
    seen: list[str] = []
    with owner:
        with owner:
            owner.soon(lambda: seen.append("soon"))
        assert seen == []
    assert seen == ["soon"]


def test_an_error_in_what_was_put_off_gives_the_lock_back(owner: LockedOwner, caplog: pytest.LogCaptureFixture) -> None:
    """A-1: it is nobody's in particular, so it is told to the log, and what stands behind it is done all the same."""
    seen: list[str] = []

    def fails() -> None:
        raise KeyError("bug")

    with owner:
        owner.soon(fails)
        owner.soon(lambda: seen.append("behind"))
    assert not held_elsewhere(owner)
    assert seen == ["behind"]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("way", ["do", "look"])
def test_what_was_put_off_is_done_behind_work_that_failed(owner: LockedOwner, way: str) -> None:
    """A-1: it may be somebody else's."""
    seen: list[str] = []

    def fails() -> None:
        owner.soon(lambda: seen.append("soon"))
        raise KeyError("bug")

    with pytest.raises(KeyError):
        getattr(owner, way)(fails)
    assert seen == ["soon"]


def test_a_report_comes_while_holding_the_lock(owner: LockedOwner) -> None:
    """A-1: a shard's completion takes the lock to publish; work runs without it."""
    seen: list[object] = []
    done = threading.Event()

    def report(error: BaseException | None) -> None:
        seen.append(held_elsewhere(owner))
        owner.soon(done.set)

    with owner:
        owner.aside("lane", lambda: seen.append(threading.current_thread().name), report)
    assert done.wait(WAIT_S)
    assert str(seen[0]).startswith("topics-lane")
    assert seen[1] is True


def test_work_of_a_lane_runs_one_after_another(owner: LockedOwner) -> None:
    """06 §6.2: one sync thread per shard; the report of a piece comes before the next piece begins."""
    seen: list[int] = []
    last = threading.Event()
    with owner:
        for n in range(20):
            owner.aside("lane", lambda n=n: seen.append(n), lambda error, n=n: seen.append(n))
        owner.aside("lane", lambda: None, lambda error: last.set())
    assert last.wait(WAIT_S)
    assert seen == [n for n in range(20) for _ in range(2)]


def test_lanes_do_not_wait_for_each_other(owner: LockedOwner) -> None:
    """06 §6.2: a helper that is stuck keeps no other shard's sync."""
    gate, done = Gate(), threading.Event()
    with owner:
        owner.aside("stuck", gate.stop, lambda error: None)
        owner.aside("other", lambda: None, lambda error: done.set())
    assert done.wait(WAIT_S)
    gate.open()


class Died(BaseException):
    """What ends a thread: `SystemExit` and its kin are no `Exception`s."""


@pytest.mark.parametrize("error", [OSError(5, "no"), ValueError("bug"), Died("gone")], ids=["OSError", "bug", "death"])
def test_whatever_ends_the_work_is_reported(owner: LockedOwner, error: BaseException) -> None:
    """S-73: no ticket may be left unresolved, also when a sync thread dies."""
    seen: list[BaseException | None] = []
    reported = threading.Event()

    def work() -> None:
        raise error

    def report(outcome: BaseException | None) -> None:
        seen.append(outcome)
        reported.set()

    with owner:
        owner.aside("lane", work, report)
    owner.close()
    assert reported.is_set()
    assert seen == [error]


def test_close_waits_for_the_helpers() -> None:
    """S-73: their reports have been made when it returns."""
    owner, gate = LockedOwner(), Gate()
    seen: list[str] = []
    with owner:
        owner.aside("lane", gate.stop, lambda error: seen.append("reported"))
    closing = spawn(lambda: (owner.close(), list(seen))[1])
    gate.wait_reached()
    assert not closing.done()
    gate.open()
    assert finish([closing]) == [["reported"]]


def test_close_waits_for_what_the_reports_start() -> None:
    """S-73: a report that sends more aside, as a sync does for those who gathered meanwhile, loses nothing."""
    owner, gate = LockedOwner(), Gate()
    seen: list[str] = []

    def report(error: BaseException | None) -> None:
        owner.aside("lane", lambda: seen.append("second"), lambda error: seen.append("reported"))

    with owner:
        owner.aside("lane", gate.stop, report)
    closing = spawn(owner.close)
    gate.wait_reached()
    gate.open()
    finish([closing])
    assert seen == ["second", "reported"]


class Embedded:
    """A shard on the real disk, used by many threads."""

    def __init__(self, dir: Path, fs: Fs | None = None, file_bytes: int = 1 << 16) -> None:
        self.dir = f"{dir}/wal"
        self.fs: Fs = OsFs() if fs is None else fs
        self.on_wait = self.on_finish = lambda: None
        self.fs.makedirs(self.dir)
        self.owner = LockedOwner()
        self.shard = Shard(
            self.fs, groups.read_group(self.fs, self.dir, ""), owner=self.owner, clock=SystemClock(), run=1,
            boot="boot", shard=0, shards=1, file_bytes=file_bytes,
        )  # fmt: skip
        self.held: list[bool] = []
        self.seq = 0

    def write(self, *, durable: bool = True) -> int:
        """Submit one record and wait for its outcome without the lock; its seq."""
        done = threading.Event()
        outcome: list[Lsn | TopicsError] = []

        def finished(result: Lsn | TopicsError) -> None:
            self.held.append(self.owner._lock._is_owned())
            outcome.append(result)
            self.on_finish()
            done.set()

        with self.owner:
            self.seq += 1
            seq = self.seq
            self.shard.submit(kit.append(seq, durable=durable), 1, finished, durable=durable)
        self.on_wait()
        assert done.wait(WAIT_S), "never finished"
        (result,) = outcome
        if isinstance(result, TopicsError):
            raise result
        return seq

    def close(self) -> None:
        """Wait for what runs aside, then close."""
        self.owner.close()
        with self.owner:
            assert self.shard.close()

    def recovered(self) -> list[int]:
        group = groups.read_group(self.fs, self.dir, "")
        rows = [groups.replay(self.fs, group, file)[1] for file in group.files]
        return [seq for found in rows for seq in found["seq"][found["type"] == 1].tolist()]


class Patience:
    """Keeps a sync from ending before every thread that is still at work waits for one."""

    def __init__(self, threads: int) -> None:
        self._running = threads
        self._changed = threading.Condition()

    def change(self, by: int) -> None:
        """So many threads more are on their way to a submission."""
        with self._changed:
            self._running += by
            self._changed.notify_all()

    def hook(self, op: str, path: str) -> None:
        if op == "fdatasync":
            with self._changed:
                assert self._changed.wait_for(lambda: self._running == 0, WAIT_S), "somebody never came"


def test_threads_share_their_syncs(tmp_path: Path) -> None:
    """S-74, 06 §6.3: callers that arrive while a sync runs share the next one; each is synced and finished once."""
    patience = Patience(THREADS)
    embedded = Embedded(tmp_path, cast(Fs, HookFs(OsFs(), patience.hook)), file_bytes=1 << 20)
    embedded.on_wait, embedded.on_finish = lambda: patience.change(-1), lambda: patience.change(1)

    def work() -> list[int]:
        written = [embedded.write() for _ in range(EACH)]
        patience.change(-1)
        return written

    written = [seq for seqs in finish([spawn(work) for _ in range(THREADS)]) for seq in seqs]
    assert sorted(written) == list(range(1, THREADS * EACH + 1))
    assert THREADS * EACH / embedded.shard.counters.fsyncs > 1.5
    assert all(embedded.held)
    embedded.close()
    assert embedded.recovered() == list(range(1, THREADS * EACH + 1))


def test_threads_and_rotations(tmp_path: Path) -> None:
    """S-85: files change under the writers; order and completeness stay."""
    embedded = Embedded(tmp_path, file_bytes=4096)
    finish([spawn(lambda n=n: [embedded.write(durable=n % 2 == 0) for _ in range(EACH)]) for n in range(8)])
    assert embedded.shard.counters.rotations > 3
    embedded.close()
    assert embedded.recovered() == list(range(1, 8 * EACH + 1))


def test_threads_on_a_slow_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """06 §6.3: the writes leave the owner; order and completeness stay, also across rotations."""
    monkeypatch.setattr(shards, "SLOW_PWRITE_NS", -1)
    monkeypatch.setattr(shards, "FAST_PWRITE_NS", -1)
    embedded = Embedded(tmp_path, file_bytes=4096)
    finish([spawn(lambda n=n: [embedded.write(durable=n % 2 == 0) for _ in range(EACH)]) for n in range(8)])
    assert embedded.shard.writes_aside
    assert embedded.shard.counters.rotations > 3
    embedded.close()
    assert embedded.recovered() == list(range(1, 8 * EACH + 1))


def test_a_lone_writer_syncs_at_once(tmp_path: Path) -> None:
    """S-75: no timer; nothing ticks here, and the write is answered."""
    embedded = Embedded(tmp_path)
    for _ in range(5):
        embedded.write()
    assert embedded.shard.counters.fsyncs == 5
    embedded.close()


def test_a_failed_helper_fails_everyone_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-73, S-78: the error of the sync thread reaches every waiting thread; none hangs."""
    embedded = Embedded(tmp_path)
    embedded.write()

    def fails(position: tuple[int, int]) -> None:
        raise MemoryError

    monkeypatch.setattr(embedded.shard.log, "sync_to", fails)
    outcomes = [spawn(embedded.write) for _ in range(8)]
    for outcome in outcomes:
        assert isinstance(outcome.exception(WAIT_S), TopicsError)
    assert embedded.shard.state == "read_only"
    embedded.owner.close()


def test_a_closed_shard_refuses_every_thread(tmp_path: Path) -> None:
    """S-73."""
    embedded = Embedded(tmp_path)
    embedded.write()
    embedded.close()
    for outcome in [spawn(embedded.write) for _ in range(4)]:
        assert isinstance(outcome.exception(WAIT_S), WalClosed)


# -- slices ----------------------------------------------------------------------------------------------------------


def counting(seen: list[str], name: str, steps: int) -> Iterator[None]:
    for n in range(steps):
        seen.append(f"{name}{n}")
        yield


@pytest.mark.parametrize("make", [InlineOwner, LockedOwner, LoopOwner])
def test_sliced_work_of_an_owner_without_a_loop_is_done_and_reported(
    make: type[InlineOwner | LockedOwner | LoopOwner],
) -> None:
    """A-1: embedded, there is nobody to give way to."""
    owner = make()
    seen: list[str] = []
    with owner:
        owner.sliced(counting(seen, "a", 3), lambda error: seen.append(f"done {error}"))
    owner.close()
    if isinstance(owner, InlineOwner):
        owner.run()
    assert seen == ["a0", "a1", "a2", "done None"]


class Ticking(ManualClock):
    """A clock that moves on by each look at it: every step of work takes that long."""

    def monotonic_ns(self) -> int:
        self.advance(ms=1)
        return super().monotonic_ns()


def on_loop(play: Callable[[LoopOwner], Awaitable[None]]) -> None:
    """With an owner that is lent to a loop, and taken back in the end."""

    async def run() -> None:
        owner = LoopOwner(Ticking())
        owner.lend(asyncio.get_running_loop())
        await play(owner)
        owner.take_back()
        owner.close()

    asyncio.run(run())


def test_one_work_is_sliced_after_another_and_others_run_in_between() -> None:
    """A-1, P-10: a pass of the loop has a slice of the oldest work and everything that was put off."""
    seen: list[str] = []

    async def play(owner: LoopOwner) -> None:
        done = asyncio.Event()
        owner.sliced(counting(seen, "a", 4), lambda error: seen.append("a done"))
        owner.sliced(counting(seen, "b", 3), lambda error: done.set())
        for n in range(3):
            await asyncio.sleep(0)
            owner.soon(lambda n=n: seen.append(f"soon {n}"))
        await done.wait()

    on_loop(play)
    works = [one for one in seen if not one.startswith("soon")]
    assert works == ["a0", "a1", "a2", "a3", "a done", "b0", "b1", "b2"]
    assert [one for one in seen if one.startswith("soon")] == ["soon 0", "soon 1", "soon 2"]
    assert seen.index("soon 2") < seen.index("a done")


def test_a_slice_gives_way_to_what_was_put_off_but_only_once() -> None:
    """A-1: who waits for an answer has it first; who puts things off all the time does not stop the work."""
    seen: list[str] = []

    async def play(owner: LoopOwner) -> None:
        done = asyncio.Event()

        def again() -> None:
            seen.append("soon")
            if not done.is_set():
                owner.soon(again)

        owner.sliced(counting(seen, "a", 3), lambda error: done.set())
        owner.soon(again)
        await done.wait()

    on_loop(play)
    assert seen[:2] == ["soon", "a0"] or seen[:3] == ["soon", "soon", "a0"]
    assert "a2" in seen


def test_an_error_in_a_step_is_the_outcome_and_the_next_work_goes_on() -> None:
    """S-73: nobody waits for ever."""
    outcomes: list[BaseException | None] = []
    error = ValueError("no")

    def fails() -> Iterator[None]:
        yield
        raise error

    async def play(owner: LoopOwner) -> None:
        done = asyncio.Event()
        owner.sliced(fails(), outcomes.append)
        owner.sliced(counting([], "b", 2), lambda error: (outcomes.append(error), done.set())[0])
        await done.wait()

    on_loop(play)
    assert outcomes == [error, None]


def test_what_is_left_of_sliced_work_is_done_when_the_owner_is_taken_back() -> None:
    """S-73, API-5: what was begun is brought to its end."""
    seen: list[str] = []

    async def play(owner: LoopOwner) -> None:
        owner.sliced(counting(seen, "a", 3), lambda error: seen.append("a done"))
        owner.sliced(counting(seen, "b", 1), lambda error: seen.append("b done"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    on_loop(play)
    assert seen == ["a0", "a1", "a2", "a done", "b0", "b done"]


def test_slices_are_as_long_as_the_specification_allows() -> None:
    """A-1: at most 2 ms."""
    assert owners.SLICE_MIN_NS < owners.SLICE_MAX_NS <= 2_000_000


def test_a_helper_rests_as_long_as_it_worked_while_a_loop_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10: a scheduler would let it run for milliseconds where it may; a long stretch is no reason for a long rest."""
    rests: list[int] = []
    monkeypatch.setattr(owners, "pause", rests.append)
    monkeypatch.setattr(owners, "stand_back", lambda: None)  # it would be this thread
    clock = ManualClock()

    async def play() -> None:
        owner = LoopOwner(clock)
        owner.give_way()
        owner.lend(asyncio.get_running_loop())
        owner.give_way()
        for ms in (0, 20):
            clock.advance(ms=ms)
            owner.give_way()
        owner.take_back()
        owner.give_way()
        owner.close()

    asyncio.run(play())
    assert rests[1:] == [0, owners.REST_MAX_NS]


def test_a_round_that_comes_when_the_owner_was_taken_back_leaves_things_to_who_enters() -> None:
    """What was put off is done by one thread at a time: the loop's turn may come behind `take_back`."""
    done: list[str] = []

    async def play(owner: LoopOwner) -> None:
        owner.soon(lambda: done.append("lent"))
        owner.take_back()
        with owner:
            owner.soon(lambda: done.append("entered"))
            owner._run_soon()
            assert done == ["lent"]
        assert done == ["lent", "entered"]
        await asyncio.sleep(0)  # the round that was scheduled in time

    on_loop(play)
    assert done == ["lent", "entered"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows threads that stand back")
def test_helpers_take_the_processor_from_nobody_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10: one that gives way, also when it comes back from its rest; and one that takes in large bodies gets less."""
    monkeypatch.setattr(kernel, "native", object())
    ways: dict[str, tuple[int, int]] = {}

    async def play(owner: LoopOwner) -> None:
        def note(lane: str) -> None:
            nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            ways[lane] = (os.sched_getscheduler(0), nice - usual)

        usual = os.getpriority(os.PRIO_PROCESS, 0)
        ended = asyncio.Semaphore(0)
        owner.aside("gives way", owner.give_way, lambda _: None)
        for lane in ("gives way", "hurries", "decode"):
            owner.aside(lane, partial(note, lane), lambda _: ended.release())
            await ended.acquire()
        note("loop")
        owner.take_back()
        owner.aside("frames", partial(note, "embedded"), lambda _: None)

    on_loop(play)
    behind = 15 - os.getpriority(os.PRIO_PROCESS, 0)
    assert ways == {
        "gives way": (os.SCHED_BATCH, 0), "hurries": (os.SCHED_OTHER, 0), "decode": (os.SCHED_BATCH, max(behind, 0)),
        "loop": (os.SCHED_OTHER, 0), "embedded": (os.SCHED_OTHER, 0),
    }  # fmt: skip


def test_what_is_last_comes_behind_the_round_under_way_and_otherwise_with_the_next() -> None:
    """D-33: a delivery follows its publication in the same pass; one that goes on has its turn in a later one."""
    seen: list[str] = []

    async def play(owner: LoopOwner) -> None:
        def first() -> None:
            owner.last(broken)
            owner.last(write)
            owner.soon(lambda: seen.append("put off meanwhile"))
            seen.append("first")

        def broken() -> None:
            seen.append("broken")
            raise ValueError("to be logged")

        def write() -> None:
            seen.append("write")
            owner.last(delivery)

        def delivery() -> None:
            seen.append("delivery")
            owner.last(lambda: seen.append("goes on"))

        owner.soon(first)
        owner.soon(lambda: seen.append("second"))
        await asyncio.sleep(0)
        seen.append("pass")
        await asyncio.sleep(0)
        owner.last(lambda: seen.append("outside"))
        await asyncio.sleep(0)

    on_loop(play)
    round_one = ["first", "second", "broken", "write", "delivery"]
    assert seen == [*round_one, "pass", "put off meanwhile", "goes on", "outside"]


# -- syncs that need no helper of Python -------------------------------------------------------------------------------

needs_syncer = pytest.mark.skipif(sys.platform != "linux", reason="syncs beside the interpreter are for Linux")


class HeldSyncer:
    """Syncs for real, but ends when the test says so, and as it says."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._ended = threading.Event()
        self.asked: list[int] = []
        self._errno = 0

    def fileno(self) -> int:
        return self._event

    def ask(self, fd: int, /) -> None:
        self._ended.clear()
        self.asked.append(fd)

    def end(self, errno: int = 0) -> None:
        """The sync under way is over."""
        os.fdatasync(self.asked[-1])  # fails if it is not open any more
        self._errno = errno
        self._ended.set()
        os.eventfd_write(self._event, 1)

    def take(self) -> int | None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return None
        return self._errno

    def wait(self) -> int:
        assert self._ended.wait(WAIT_S), "the sync never ends"
        return self._errno


class Lent:
    """A shard on the real disk whose owner is lent to a loop."""

    def __init__(self, dir: Path, monkeypatch: pytest.MonkeyPatch, syncer: HeldSyncer | None, **options: int) -> None:
        self.fs = OsFs()
        self.dir = f"{dir}/wal"
        self.fs.makedirs(self.dir)
        if syncer is not None:
            monkeypatch.setattr(kernel, "syncer", lambda: syncer)
        self.owner = LoopOwner()
        self.owner.lend(asyncio.get_running_loop())
        self.shard = Shard(
            self.fs, groups.read_group(self.fs, self.dir, ""), owner=self.owner, clock=SystemClock(), run=1,
            boot="boot", shard=0, shards=1, **{"file_bytes": 1 << 16, **options},
        )  # fmt: skip
        self.seq = 0

    def write(self, size: int = 64) -> asyncio.Future[Lsn | TopicsError]:
        """One durable record."""
        done: asyncio.Future[Lsn | TopicsError] = asyncio.get_running_loop().create_future()
        self.seq += 1
        self.shard.submit(kit.append(self.seq, size, durable=True), 1, done.set_result, durable=True)
        return done

    async def until(self, is_so: Callable[[], bool]) -> None:
        """The loop goes on until something is so."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                await asyncio.sleep(0)

    async def close(self) -> list[int]:
        """As the server does; what a start would find."""
        self.owner.take_back()
        await asyncio.get_running_loop().run_in_executor(None, self.owner.close)
        with self.owner:
            self.shard.close()
        group = groups.read_group(self.fs, self.dir, "")
        rows = [groups.replay(self.fs, group, file)[1] for file in group.files]
        return [seq for found in rows for seq in found["seq"][found["type"] == 1].tolist()]


def on_lent(
    dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    play: Callable[[Lent, HeldSyncer], Awaitable[None]],
    **options: int,
) -> None:
    """With a shard whose syncs end when the test says so."""

    async def run() -> None:
        syncer = HeldSyncer()
        await play(Lent(dir, monkeypatch, syncer, **options), syncer)

    asyncio.run(run())


@needs_syncer
@pytest.mark.skipif(not hasattr(kernel.installed(), "Syncer"), reason="the native kernel is not installed")
def test_durable_writes_of_a_server_are_synced_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-74, HOTPATH: by the thread of the kernel, over rotations too; every one is there afterwards."""

    async def play() -> None:
        if kernel.native is None:
            monkeypatch.setattr(kernel, "native", kernel.installed())
        lent = Lent(tmp_path, monkeypatch, None, file_bytes=8192)
        for _ in range(60):
            outcomes = await asyncio.gather(*[lent.write(200) for _ in range(4)])
            assert all(isinstance(one, Lsn) for one in outcomes)
        assert lent.shard.counters.rotations > 1
        assert lent.owner._syncs
        assert await lent.close() == list(range(1, 241))

    asyncio.run(play())


@needs_syncer
def test_nothing_is_acknowledged_before_its_sync_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[INV-1, S-74] What was written while one ran waits for the next."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        first = lent.write()
        await lent.until(lambda: len(syncer.asked) == 1)
        second = lent.write()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        syncer.end()
        assert isinstance(await first, Lsn)
        await lent.until(lambda: len(syncer.asked) == 2)
        assert not second.done()
        syncer.end()
        assert isinstance(await second, Lsn)
        assert await lent.close() == [1, 2]

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_what_is_put_off_to_one_round_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[P-4] Whether a write was due before it, or a sync has just ended: it waits for what the round still brings."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        counters = lent.shard.counters
        syncing = lent.write()
        await lent.until(lambda: len(syncer.asked) == 1)
        lent.write()
        lent.owner.soon(lent.write)
        await lent.until(lambda: lent.seq == 3 and not lent.shard._queue)
        assert counters.batches == 2

        def answered(_: object) -> None:
            """Between the end of the sync and the round in which the next one gathers."""
            lent.write()
            lent.owner.soon(lent.write)

        syncing.add_done_callback(answered)
        syncer.end()
        await lent.until(lambda: lent.seq == 5 and not lent.shard._queue)
        assert counters.batches == 3
        await lent.until(lambda: len(syncer.asked) == 2)
        syncer.end()
        await lent.until(lambda: not lent.shard.depth)
        assert await lent.close() == [1, 2, 3, 4, 5]

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_what_a_write_publishes_is_delivered_in_the_same_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D-33] The write comes at the end of a round, and the delivery behind it."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        opened = lent.write()
        await lent.until(lambda: bool(syncer.asked))
        delivered: list[None] = []
        lent.seq += 1

        def published(_: object) -> None:
            lent.owner.last(lambda: delivered.append(None))

        lent.shard.submit(kit.append(lent.seq), 1, published, durable=False)
        await asyncio.sleep(0)
        assert delivered
        syncer.end()
        await opened
        await lent.close()

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_a_sync_that_fails_beside_the_interpreter_latches_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-78, W-17] A later success proves nothing about pages that failed."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        written = lent.write()
        await lent.until(lambda: bool(syncer.asked))
        syncer.end(errno.EIO)
        assert isinstance(await written, CommitFailed)
        assert lent.shard.state == "read_only"
        assert not lent.shard.log._sync_lock.locked()
        await lent.close()
        assert len(syncer.asked) == 1

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_a_file_is_not_left_while_it_is_synced_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[W-16, S-85] Its descriptor stays open; the loop goes on, and the next file begins when the sync has ended."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        first = lent.write()
        await lent.until(lambda: bool(syncer.asked))
        waits, log = threading.Event(), lent.shard.log
        log._sync_lock = TellingLock(waits, log._sync_lock)  # type: ignore[assignment]
        later = [lent.write(3000) for _ in range(4)]
        await lent.until(waits.is_set)
        assert lent.shard.counters.rotations == 0
        syncer.end()
        assert isinstance(await first, Lsn)
        asked = 1
        while not all(one.done() for one in later):
            if len(syncer.asked) > asked:
                asked += 1
                syncer.end()
            await asyncio.sleep(0)
        assert all(isinstance(one.result(), Lsn) for one in later)
        assert lent.shard.counters.rotations >= 1
        assert await lent.close() == [1, 2, 3, 4, 5]

    on_lent(tmp_path, monkeypatch, play, file_bytes=8192)


@needs_syncer
def test_a_sync_that_outlives_the_loop_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-73, API-5] Whoever waits for it is told, and the file is closed behind it."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        outcomes: list[Lsn | TopicsError] = []
        lent.shard.submit(kit.append(1, durable=True), 1, outcomes.append, durable=True)
        await lent.until(lambda: bool(syncer.asked))
        lent.owner.take_back()
        syncer.end()
        await asyncio.get_running_loop().run_in_executor(None, lent.owner.close)
        assert [type(one) for one in outcomes] == [Lsn]
        with lent.owner:
            assert lent.shard.close()

    on_lent(tmp_path, monkeypatch, play)


async def rotating(lent: Lent, syncer: HeldSyncer) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
    """Somebody waits for the sync under way, and somebody else for the next file, whose helper waits for that sync."""
    first = lent.write()
    await lent.until(lambda: len(syncer.asked) == 1)
    syncer.end()
    await first
    second = lent.write()
    await lent.until(lambda: len(syncer.asked) == 2)
    third = lent.write(64_000)
    waits, log = threading.Event(), lent.shard.log
    log._sync_lock = TellingLock(waits, log._sync_lock)  # type: ignore[assignment]
    await lent.until(waits.is_set)
    return second, third


@needs_syncer
def test_closing_ends_though_a_helper_waits_for_the_sync_that_outlives_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-73, API-5] Whoever waits for the sync's end does not stand behind those who wait for the sync."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        second, third = await rotating(lent, syncer)
        lent.owner.take_back()
        syncer.end()
        async with asyncio.timeout(WAIT_S):
            await asyncio.get_running_loop().run_in_executor(None, lent.owner.close)
        assert isinstance(second.result(), Lsn)
        assert isinstance(third.result(), Lsn)

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_a_rotation_that_waited_for_a_sync_that_failed_does_not_sync_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[W-17, S-78] The system forgets pages that it could not write: a later success is not about them."""

    async def play(lent: Lent, syncer: HeldSyncer) -> None:
        second, third = await rotating(lent, syncer)
        synced = lent.shard.log.synced()
        syncer.end(errno.EIO)
        assert isinstance(await second, CommitFailed)
        assert isinstance(await third, TopicsError)
        await lent.until(lambda: not lent.shard._busy)
        assert lent.shard.state == "read_only"
        assert lent.shard.log.synced() == synced < lent.shard.log.position()

    on_lent(tmp_path, monkeypatch, play)


@needs_syncer
def test_an_owner_that_is_lent_again_hears_of_its_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-74: also if a sync was under way when it was taken back."""

    async def play() -> None:
        syncers = [HeldSyncer(), HeldSyncer()]
        lent = Lent(tmp_path, monkeypatch, None)
        monkeypatch.setattr(kernel, "syncer", iter(syncers).__next__)
        outcomes: list[Lsn | TopicsError] = []
        lent.shard.submit(kit.append(1, durable=True), 1, outcomes.append, durable=True)
        await lent.until(lambda: bool(syncers[0].asked))
        lent.owner.take_back()
        syncers[0].end()
        await asyncio.get_running_loop().run_in_executor(None, lent.owner.wait_idle)
        assert [type(one) for one in outcomes] == [Lsn]
        lent.owner.lend(asyncio.get_running_loop())
        lent.seq = 1
        again = lent.write()
        await lent.until(lambda: bool(syncers[1].asked))
        syncers[1].end()
        assert isinstance(await again, Lsn)
        assert await lent.close() == [1, 2]

    asyncio.run(play())


@needs_syncer
def test_a_log_that_is_latched_before_its_sync_begins_fails_whoever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-71, S-73] A helper may find the disk broken at any moment: what was accepted has one outcome."""

    async def play() -> None:
        lent = Lent(tmp_path, monkeypatch, HeldSyncer())
        opened: asyncio.Future[Lsn | TopicsError] = asyncio.get_running_loop().create_future()
        lent.seq = 1
        lent.shard.submit(kit.append(1), 1, opened.set_result, durable=False)
        await opened
        complete = lent.shard._complete

        def then_latched(batch: Any) -> None:
            complete(batch)
            lent.shard.log._failed = "sync of a new segment"

        monkeypatch.setattr(lent.shard, "_complete", then_latched)
        written = lent.write()
        assert isinstance(await written, CommitFailed)
        assert not lent.shard._syncing
        assert lent.shard.state == "read_only"

    asyncio.run(play())


@needs_syncer
def test_where_no_thread_is_to_be_had_python_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[RES-1] Descriptors may be used up when a server begins to write."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "no descriptors")

    async def play() -> None:
        lent = Lent(tmp_path, monkeypatch, None)
        asked: list[None] = []
        monkeypatch.setattr(kernel, "syncer", lambda: (asked.append(None), refuse())[1])
        for _ in range(3):
            assert isinstance(await lent.write(), Lsn)
        assert not lent.owner._syncs
        assert len(asked) == 1
        assert await lent.close() == [1, 2, 3]

    asyncio.run(play())
