"""What the process around a log may do to it: change directory, fork, be interrupted, raise in a meter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.wal import kit
from tests.unit.wal.conftest import needs_native
from topics.errors import WalClosed, WalIo, WalReadOnly
from topics.fs import File, Mode, OsFs
from topics.testing import SimFs
from topics.wal import FsyncPolicy, NoopMeter, Position, Record, Wal, WalConfig
from topics.wal.aio import Wal as AioWal
from topics.wal.core import SyncUnderWay
from topics.wal.events import Counter


def keys(wal: Wal) -> list[bytes]:
    return [record.key for record, _ in wal.read_from(Position(wal.segments()[0].id, 0))]


def test_a_log_stays_where_it_was_opened_when_the_process_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W-50, R-1: a relative directory means the one it named at open, also for segments made later."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    config = WalConfig(dir="log", max_segment_size=1 << 20, preallocate=False, fsync_policy=FsyncPolicy.os())
    wal, _ = Wal.open(config)
    monkeypatch.chdir(tmp_path / "b")
    with wal:
        for n in range(5):
            wal.append(Record.put(b"%d" % n, bytes(700_000)))
        assert wal.delete_segments_before(Position(2, 0)) == 2
    assert sorted(os.listdir(tmp_path / "a" / "log")) == ["000002.wal", "000003.wal", "000004.wal", "LOCK"]
    assert os.listdir(tmp_path / "b") == []


def test_a_forked_child_can_neither_use_nor_harm_the_log(tmp_path: Path) -> None:
    """13 §6: the child of a fork lets go of the log; the parent's records are all there."""
    wal, _ = Wal.open(WalConfig(dir=str(tmp_path / "log"), fsync_policy=FsyncPolicy.always()))
    wal.append(Record.put(b"0", b""))
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            with pytest.raises(WalClosed, match="forked"):
                wal.append(Record.put(b"child", b""))
            wal.close()
            wal.__del__()
            code = 0
        finally:
            os._exit(code)
    os.read(ready[0], 1)
    for n in range(1, 50):
        wal.append(Record.put(b"%d" % n, b"x" * 100))
    os.write(go[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    wal.append(Record.put(b"50", b""))
    for end in (*ready, *go):
        os.close(end)
    assert keys(wal) == [b"%d" % n for n in range(51)]
    wal.close()
    wal, found = Wal.open(WalConfig(dir=str(tmp_path / "log"), corruption_policy="fail"))
    assert found.valid_records == 51
    wal.close()


AT_WORK = """
import sys, threading
from topics.wal import FsyncPolicy, Record, Wal, WalConfig

wal, _ = Wal.open(WalConfig(dir=sys.argv[1], fsync_policy=FsyncPolicy.always()))
begun = threading.Barrier(5)


def work():
    wal.append(Record.put(b"key", b"value"))
    begun.wait()
    while True:
        wal.append(Record.put(b"key", b"value"))


for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("kernel", ["pure", pytest.param("native", marks=needs_native)])
def test_a_process_ends_as_it_should_while_threads_share_syncs(tmp_path: Path, kernel: str) -> None:
    """13 §6: nobody waits for daemon threads; one that leads a round is in the middle of a sync."""
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "TOPICS_KERNEL": kernel},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def stopped_in_a_sync(disk: kit.Disk, then: Callable[[str], None] = lambda op: None) -> tuple[Wal, kit.Gate]:
    """A log whose first sync stops at the gate; `then` sees the writes, syncs and points behind it."""
    gate = kit.Gate()
    passed: list[str] = []

    def hook(op: str, path: str) -> None:
        if passed:
            then(path if op == "point" else op)
        elif op == "fdatasync":
            passed.append(op)
            gate.stop()

    # Without prepared space there is one write per round.
    return kit.open_wal(disk, kit.ALWAYS, fs=kit.hooked(disk, hook), preallocate=False)[0], gate


@pytest.mark.usefixtures("kernel_used")
@pytest.mark.parametrize("op", ["pwrite", "after pwrite", "wal.after_write", "fdatasync"])
def test_an_interrupted_leader_leaves_nobody_waiting_and_nothing_written_twice(disk: kit.Disk, op: str) -> None:
    """W-52: a signal may strike whoever writes for all; the others' records become durable all the same, once each."""
    struck: list[str] = []

    def interrupt(at: str) -> None:
        if at == op and not struck:
            struck.append(at)
            raise KeyboardInterrupt

    wal, gate = stopped_in_a_sync(disk, interrupt)
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    others = [kit.spawn(partial(wal.append, kit.put(n))) for n in range(1, 5)]
    kit.wait_gathered(wal._rounds, 4)
    gate.open()
    first.result(kit.WAIT_S)
    errors = [other.exception(kit.WAIT_S) for other in others]
    assert [type(error) for error in errors if error is not None] == [KeyboardInterrupt]
    answered = [n for n, error in enumerate(errors, 1) if error is None]
    written = [0, *answered] if op.endswith("pwrite") else [0, 1, 2, 3, 4]
    assert sorted(kit.numbers(wal)) == written
    assert wal._log.synced() == wal._log.position()
    assert len({others[n - 1].result() for n in answered}) == 3
    for later in (disk.killed(), disk.power_loss()):
        assert sorted(kit.numbers(kit.open_wal(later)[0])) == written
    wal.close()


@pytest.mark.usefixtures("kernel_used")
def test_a_failed_sync_counts_even_if_a_signal_strikes_who_made_it(
    disk: kit.Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W-17: a second sync would succeed and prove nothing; the others are told, whoever heard of the first."""
    wal, gate = stopped_in_a_sync(disk)
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    disk.fail("fdatasync", "EIO", "once", index=2)
    ended = wal._log._sync_ended

    def struck(sync: SyncUnderWay, error: OSError | None) -> None:
        if error is not None:
            raise KeyboardInterrupt
        ended(sync, error)

    monkeypatch.setattr(wal._log, "_sync_ended", struck)
    others = [kit.spawn(partial(wal.append, kit.put(n))) for n in range(1, 5)]
    kit.wait_gathered(wal._rounds, 4)
    gate.open()
    assert first.result(kit.WAIT_S) == Position(0, 0)
    told = [other.exception(kit.WAIT_S) for other in others]
    assert sorted(type(error).__name__ for error in told) == ["KeyboardInterrupt", *["WalReadOnly"] * 3]
    assert kit.numbers(wal) == [0]
    wal.close()


def test_batches_whose_round_was_lost_are_written_together_and_told_together(disk: kit.Disk) -> None:
    """W-51, W-17: the one who led it wrote nothing; the sync they then share fails for each of them."""

    class LostOnce:
        lost = False

        def share(self, work: Any, serve: Callable[[Sequence[Any]], object], /) -> None:
            if self.lost:
                serve([work])
            self.lost = True

        def gathered(self) -> int:
            return 0

    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    wal._rounds = LostOnce()
    disk.fail("fdatasync", "EIO")
    answers = wal.append_units([[kit.put(0)], [kit.put(1)]])
    assert [type(answer) for answer in answers] == [WalIo, WalIo]
    assert kit.numbers(wal) == []
    wal.close()


@pytest.mark.usefixtures("kernel_used")
def test_a_failed_sync_is_told_to_everyone_who_shared_it(disk: kit.Disk) -> None:
    """W-17: the leader and those who waited with it all get an error; nobody takes a failed sync for a good one."""
    wal, gate = stopped_in_a_sync(disk)
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    disk.fail("fdatasync", "EIO", "always")
    others = [kit.spawn(partial(wal.append, kit.put(n))) for n in range(1, 5)]
    kit.wait_gathered(wal._rounds, 4)
    gate.open()
    for call in (first, *others):
        with pytest.raises((WalIo, WalReadOnly)):
            call.result(kit.WAIT_S)
    assert kit.numbers(wal) == []
    wal.close()


@pytest.mark.usefixtures("kernel_used")
def test_a_sync_that_fails_for_a_round_behind_a_good_one_takes_no_answer_back(disk: kit.Disk) -> None:
    """W-17: who shared the good sync keeps its record, who shared the bad one gets an error, the log is latched."""
    wal, gate = stopped_in_a_sync(disk)
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    disk.fail("fdatasync", "EIO", "once", index=2)
    others = [kit.spawn(partial(wal.append, kit.put(n))) for n in range(1, 5)]
    kit.wait_gathered(wal._rounds, 4)
    gate.open()
    assert first.result(kit.WAIT_S) == Position(0, 0)
    told = [other.exception(kit.WAIT_S) for other in others]
    assert sorted(type(error).__name__ for error in told) == ["WalIo", *["WalReadOnly"] * 3]
    assert kit.numbers(wal) == [0]
    with pytest.raises(WalReadOnly):
        wal.append(kit.put(9))
    wal.close()


@pytest.mark.usefixtures("kernel_used")
def test_a_log_closed_while_callers_wait_answers_each_of_them(disk: kit.Disk) -> None:
    """W-56: whoever has not been written when the log closes hears of it; nobody waits for ever."""
    wal, gate = stopped_in_a_sync(disk)
    first = kit.spawn(lambda: wal.append(kit.put(0)))
    gate.wait_reached()
    others = [kit.spawn(partial(wal.append, kit.put(n))) for n in range(1, 5)]
    kit.wait_gathered(wal._rounds, 4)
    wal._log._closed = True  # what close sets first, while the sync is still on its way
    gate.open()
    assert first.result(kit.WAIT_S) == Position(0, 0)
    for other in others:
        with pytest.raises(WalClosed):
            other.result(kit.WAIT_S)
    wal.close()


@pytest.mark.parametrize("value", [np.arange(10), memoryview(np.arange(3)), bytearray(b"x"), "text", 5, None])
def test_a_record_built_by_hand_from_something_else_than_bytes_is_refused(disk: kit.Disk, value: object) -> None:
    """W-51: nothing is written that could not be read back; what follows in the log is safe."""
    wal, _ = kit.open_wal(disk)
    for record in (Record(b"key", value), Record(value, b"value")):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            wal.append(record)
        with pytest.raises(TypeError):
            wal.append_batch([kit.put(1), record])
    wal.append(kit.put(2))
    assert kit.numbers(wal) == [2]
    wal.close()


@pytest.mark.parametrize("call", ["tick", "sync"])
def test_a_record_that_another_thread_appends_during_a_sync_is_not_forgotten(disk: kit.Disk, call: str) -> None:
    """W-52: under `batch` it is durable within two windows without a further call, whatever ran meanwhile."""
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(5))
    wal.append(kit.put(0))
    wal.append(kit.put(1))
    log = wal._log
    position = log.position
    nested: list[bool] = []

    def position_with_an_append_in_between() -> tuple[int, int]:
        at = position()
        if not nested:
            nested.append(True)
            log.sync_to(at)
            kit.fill(wal, 2, 2)  # the second waits, also if the first finds that a window has passed
        return at

    log.position = position_with_an_append_in_between  # type: ignore[method-assign]
    disk.clock.advance(5)
    getattr(wal, call)()
    log.position = position  # type: ignore[method-assign]
    disk.clock.advance(5)
    wal.tick()
    assert log.synced() == log.position()
    wal.close()


def test_a_log_whose_last_segment_is_empty_opens_on_a_full_disk() -> None:
    """07 §1.4: reading and freeing must work when space is out; writing works again when it is back."""
    sim = SimFs()
    config = {"dir": "log", "size": 2000}
    disk = kit.Disk(sim)
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=config["size"], preallocate=True, prepare_ahead=True)
    for n in range(12):
        wal.append(kit.put(n, 200))
    assert len([name for name in disk.names() if name.endswith(".wal")]) >= 2
    killed = disk.killed()
    killed.sim.capacity = sum((len(data) + 511) // 512 * 512 for data in killed.sim.files().values()) - 2000
    again, _ = kit.open_wal(killed, kit.ALWAYS, size=config["size"], preallocate=True, prepare_ahead=True)
    first = again.segments()[0].id
    assert kit.numbers(again, Position(first, 0)) == list(range(12))
    killed.sim.capacity = None
    again.append(kit.put(12))
    assert kit.numbers(again, Position(first, 0)) == list(range(13))
    again.close()


def test_a_follower_gets_everything_appended_before_the_close(disk: kit.Disk) -> None:
    """W-54: closing does not cut a follower short in its backlog."""
    wal, _ = kit.open_wal(disk, size=2000)
    kit.fill(wal, 100)
    reader = wal.read_from(kit.START, follow=True)
    seen = [int(next(reader)[0].key) for _ in range(10)]
    wal.close()
    seen += [int(record.key) for record, _ in reader]
    assert seen == list(range(100))


def test_an_asyncio_follower_gets_everything_appended_before_the_close(tmp_path: Path) -> None:
    """The same through the asyncio twin."""

    async def main() -> list[bytes]:
        wal, _ = await AioWal.open(WalConfig(dir=str(tmp_path / "log"), fsync_policy=FsyncPolicy.os()))
        await wal.append_batch([Record.put(b"%d" % n, b"") for n in range(1000)])
        reader = wal.read_from(Position(0, 0), follow=True)
        seen = [(await anext(reader))[0].key]
        await wal.close()
        return seen + [record.key async for record, _ in reader]

    assert asyncio.run(main()) == [b"%d" % n for n in range(1000)]


def test_appends_go_on_while_segments_are_deleted(disk: kit.Disk) -> None:
    """W-80: syncing happens outside the lock, also the directory's."""
    gate = kit.Gate()
    armed = [False]

    class SlowDirectory(kit.HookFs):
        def sync_dir(self, path: str) -> None:
            if armed[0]:
                armed[0] = False
                gate.stop()
            disk.sim.sync_dir(path)

    wal, _ = kit.open_wal(disk, size=500, fs=SlowDirectory(disk.sim, lambda op, path: None))
    kit.fill(wal, 39)
    room = wal._log.max_segment_size - wal.current_position().offset
    armed[0] = True
    deleting = kit.spawn(lambda: wal.delete_segments_before(wal.current_position()))
    gate.wait_reached()
    assert room > len(kit.put(0).encode())
    wal.append(kit.put(39))
    gate.open()
    assert deleting.result(kit.WAIT_S) > 0
    wal.close()


class Raising(NoopMeter):
    """A meter that breaks its contract."""

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        class Bad:
            def inc(self, n: int = 1) -> None:
                raise RuntimeError("broken meter")

        return Bad()


def test_a_meter_that_raises_does_not_hang_the_asyncio_log(tmp_path: Path) -> None:
    """07 §5: every call is answered; the log can be closed."""

    async def main() -> None:
        wal, _ = await AioWal.open(WalConfig(dir=str(tmp_path / "log")), meter=Raising())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken meter"):
                await wal.append(Record.put(b"k", b"v"))
        await wal.close()

    asyncio.run(main())


def test_a_log_of_another_event_loop_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def opened() -> AioWal:
        return (await AioWal.open(WalConfig(dir=str(tmp_path / "log"))))[0]

    loop = asyncio.new_event_loop()
    wal = loop.run_until_complete(opened())
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(wal.append(Record.put(b"k", b"v")))
    assert loop.run_until_complete(wal.current_position()) == Position(0, 0)
    loop.run_until_complete(wal.close())
    loop.close()


def test_a_parent_directory_that_may_not_be_read_does_not_keep_a_log_from_opening(tmp_path: Path) -> None:
    """S-12: what we make is synced or refused; a parent made by somebody else is his."""

    class Private(OsFs):
        def sync_dir(self, path: str) -> None:
            if path == str(tmp_path):
                raise PermissionError(13, "Permission denied", path)
            super().sync_dir(path)

    (tmp_path / "log").mkdir()
    wal, _ = Wal.open(WalConfig(dir=str(tmp_path / "log")), fs=Private())
    wal.close()


CALLS: Sequence[Callable[[Wal], object]] = (
    lambda wal: wal.append(kit.put(0)),
    lambda wal: wal.append(kit.put(0, 1 << 20)),
    lambda wal: wal.append_batch([]),
    lambda wal: wal.tick(),
    lambda wal: wal.sync(),
    lambda wal: wal.flush(),
    lambda wal: wal.segments(),
    lambda wal: wal.current_position(),
    lambda wal: wal.read_from(kit.START),
    lambda wal: wal.delete_segments_before(kit.START),
)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_a_closed_log_says_so(disk: kit.Disk, call: Callable[[Wal], object]) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk)
    wal.close()
    with pytest.raises(WalClosed):
        call(wal)


def test_a_path_object_is_a_directory_too(tmp_path: Path) -> None:
    wal, _ = Wal.open(WalConfig(dir=tmp_path / "log"))  # type: ignore[arg-type]
    assert wal.config.dir == str(tmp_path / "log")
    wal.close()


def test_a_record_appended_just_before_a_rotation_is_not_skipped_by_a_reader(disk: kit.Disk) -> None:
    """W-54: a reader at the end of a segment looks again before it moves on."""
    wal, _ = kit.open_wal(disk, size=400)
    kit.fill(wal, 2, size=40)
    reader = wal.read_from(kit.START)
    seen = [int(reader.next_record()[0].key) for _ in range(2)]  # type: ignore[index]
    following = wal.next_segment

    def append_and_rotate_first(id: int) -> int | None:
        wal.next_segment = following  # type: ignore[method-assign]
        wal.append(kit.put(2, 40))
        wal.append(kit.put(3, 300))
        return following(id)

    wal.next_segment = append_and_rotate_first  # type: ignore[method-assign]
    seen += [int(record.key) for record, _ in reader]
    assert seen == [0, 1, 2, 3]
    assert wal.current_position().segment_id == 1
    wal.close()


def test_a_rotation_waits_for_the_segment_that_is_being_prepared(tmp_path: Path) -> None:
    """W-10: at most one is ready; one preparer at a time."""
    gate = kit.Gate()
    created: list[str] = []

    class Slow(OsFs):
        def open(self, path: str, mode: Mode) -> File:
            if mode == "create" and path.endswith(".wal"):
                created.append(path[-10:])
                if path.endswith("000001.wal"):
                    gate.stop()
            return super().open(path, mode)

    config = WalConfig(
        dir=str(tmp_path / "log"), max_segment_size=1 << 20, prepare_ahead=True, fsync_policy=FsyncPolicy.os()
    )
    wal, _ = Wal.open(config, fs=Slow())
    wal.append(Record.put(b"0", bytes(600_000)))
    gate.wait_reached()
    rotating = kit.spawn(lambda: wal.append(Record.put(b"1", bytes(600_000))))
    gate.open()
    assert rotating.result(kit.WAIT_S) == Position(1, 0)
    wal.close()
    assert created[:2] == ["000000.wal", "000001.wal"]
    assert len(created) == len(set(created))
