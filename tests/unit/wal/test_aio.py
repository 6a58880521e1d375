"""The asyncio twin behaves as the log does (07 §5 topics.wal.aio)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.unit.wal import kit
from topics.errors import (
    CrcMismatch,
    RecordTooLarge,
    SegmentNotFound,
    WalClosed,
    WalInUse,
    WalIo,
    WalReadOnly,
    WriteFailed,
)
from topics.wal import FsyncPolicy, Position, Record, WalConfig
from topics.wal.aio import Wal

BIG = 1 << 20


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a fresh loop, bounded."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), kit.WAIT_S)

    asyncio.run(bounded())


async def open_aio(
    disk: kit.Disk, policy: FsyncPolicy = kit.OS, *, meter: Any = None, fs: Any = None, **fields: Any
) -> Wal:
    config = WalConfig(dir=kit.DIR, max_segment_size=BIG, fsync_policy=policy, **fields)
    wal, _ = await Wal.open(config, meter=meter, clock=disk.clock, fs=disk.fs if fs is None else fs)
    return wal


class HeldSync:
    """Stops the next sync once it is armed, until its gate is opened."""

    def __init__(self) -> None:
        self.gate = kit.Gate()
        self.armed = False

    def hook(self, op: str, path: str) -> None:
        if op == "fdatasync" and self.armed:
            self.armed = False
            self.gate.stop()


async def numbers(wal: Wal, start: Position = kit.START) -> list[int]:
    return [int(record.key) async for record, _ in wal.read_from(start)]


def test_records_appended_are_read_back_at_their_positions(disk: kit.Disk) -> None:
    """W-51, W-54."""

    async def main() -> None:
        wal = await open_aio(disk)
        positions = [await wal.append(kit.put(n)) for n in range(300)]
        positions += await wal.append_batch([kit.put(n) for n in range(300, 310)])
        assert await wal.append_batch([]) == []
        found = [item async for item in wal.read_from(kit.START)]
        assert found == [(kit.put(n), position) for n, position in enumerate(positions)]
        assert await wal.current_position() > positions[-1]
        assert [info.id for info in await wal.segments()] == [0]
        await wal.close()

    run(main)


def test_what_the_twin_wrote_the_plain_log_reads(disk: kit.Disk) -> None:
    """07 §5: the same log."""

    async def main() -> None:
        async with await open_aio(disk) as wal:
            await wal.append(kit.put(1))

    run(main)
    wal, info = kit.open_wal(disk)
    assert (kit.numbers(wal), info.bytes_truncated, info.prealloc_bytes_trimmed) == ([1], 0, 0)
    wal.close()


def test_opening_tells_what_recovery_found(disk: kit.Disk) -> None:
    """07 §5: open → (Wal, RecoveryInfo)."""
    disk.sim.load({"log/000000.wal": kit.put(0).encode() + b"\x05torn"})

    async def main() -> None:
        wal, info = await Wal.open(WalConfig(dir=kit.DIR, max_segment_size=BIG), clock=disk.clock, fs=disk.fs)
        assert (info.valid_records, info.bytes_truncated) == (1, 5)
        await wal.close()

    run(main)


def test_concurrent_appends_under_always_share_syncs_and_are_all_durable(disk: kit.Disk) -> None:
    """W-52 always."""
    sync, meter = HeldSync(), kit.Kept()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, meter=meter, fs=kit.hooked(disk, sync.hook))
        sync.armed = True
        first = asyncio.ensure_future(wal.append(kit.put(0)))
        await asyncio.to_thread(sync.gate.wait_reached)
        others = [asyncio.ensure_future(wal.append(kit.put(n))) for n in range(1, 40)]
        await asyncio.sleep(0)
        assert not first.done()
        sync.gate.open()
        positions = await asyncio.gather(first, *others)
        assert positions == sorted(set(positions))
        assert meter.count("fsync") == 2
        image, _ = kit.open_wal(disk.power_loss(), size=BIG)
        assert kit.numbers(image) == list(range(40))
        image.close()
        await wal.close()

    run(main)


def test_each_of_several_concurrent_batches_stays_together(disk: kit.Disk) -> None:
    """W-81."""

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS)
        batches = [[kit.put(10 * b + n) for n in range(5)] for b in range(20)]
        answers = await asyncio.gather(*(wal.append_batch(batch) for batch in batches))
        for batch, positions in zip(batches, answers, strict=True):
            reader = wal.read_from(positions[0])
            assert [await reader.next_record() for _ in batch] == list(zip(batch, positions, strict=True))
            reader.close()
        await wal.close()

    run(main)


def test_a_bad_append_in_a_group_fails_alone(disk: kit.Disk) -> None:
    """W-51: what is wrong with one batch is its own caller's to hear."""
    sync = HeldSync()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, fs=kit.hooked(disk, sync.hook))
        sync.armed = True
        first = asyncio.ensure_future(wal.append(kit.put(0)))
        await asyncio.to_thread(sync.gate.wait_reached)
        group = [
            asyncio.ensure_future(call)
            for call in (
                wal.append(kit.put(1)),
                wal.append(kit.put(2, BIG + 1)),
                wal.append("no record"),
                wal.append_batch([]),
                wal.append(kit.put(3)),
            )
        ]
        await asyncio.sleep(0)
        sync.gate.open()
        await first
        answers = await asyncio.gather(*group, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Position, RecordTooLarge, AttributeError, list, Position]
        assert await numbers(wal) == [0, 1, 3]
        await wal.close()

    run(main)


def test_a_failed_sync_fails_every_append_it_covered_and_none_is_visible(disk: kit.Disk) -> None:
    """W-17, W-70."""
    sync = HeldSync()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, fs=kit.hooked(disk, sync.hook))
        await wal.append(kit.put(0))
        sync.armed = True
        first = asyncio.ensure_future(wal.append(kit.put(1)))
        await asyncio.to_thread(sync.gate.wait_reached)
        others = [asyncio.ensure_future(wal.append(kit.put(n))) for n in range(2, 6)]
        await asyncio.sleep(0)
        disk.fail("fdatasync", index=2)
        sync.gate.open()
        await first
        answers = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(answer, (WalIo, WalReadOnly)) for answer in answers)
        assert await numbers(wal) == [0, 1]
        with pytest.raises(WalReadOnly):
            await wal.append(kit.put(9))
        with pytest.raises(WalReadOnly):
            await wal.flush()
        with pytest.raises(WalReadOnly):
            await wal.sync()
        await wal.close()

    run(main)


def test_a_full_disk_is_told_and_the_log_goes_on(disk: kit.Disk) -> None:
    """07 §1.4 row 2."""

    async def main() -> None:
        wal = await open_aio(disk)
        disk.fail("pwrite", "ENOSPC")
        with pytest.raises(WriteFailed) as caught:
            await wal.append(kit.put(0))
        assert caught.value.full
        await wal.append(kit.put(1))
        assert await numbers(wal) == [1]
        await wal.close()

    run(main)


def test_sync_makes_appends_durable(disk: kit.Disk) -> None:
    """W-53."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(1))
        await wal.flush()
        await wal.sync()
        disk.fs.acked(f"{kit.DIR}/000000.wal", (await wal.current_position()).offset)
        await wal.close()

    run(main)


def test_tick_does_the_timers_work(disk: kit.Disk) -> None:
    """W-82."""

    async def main() -> None:
        wal = await open_aio(disk, FsyncPolicy.batch(10))
        await wal.append(kit.put(0))
        await wal.append(kit.put(1))
        disk.clock.advance(10)
        await wal.tick()
        disk.fs.acked(f"{kit.DIR}/000000.wal", (await wal.current_position()).offset)
        await wal.close()

    run(main)


def test_a_follower_sees_what_is_appended_and_ends_at_close(disk: kit.Disk) -> None:
    """W-54 follow."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        found: asyncio.Queue[int] = asyncio.Queue()

        async def follow() -> None:
            async for record, _ in wal.read_from(kit.START, follow=True):
                await found.put(int(record.key))

        following = asyncio.ensure_future(follow())
        for n in range(1, 20):
            assert await found.get() == n - 1
            await wal.append(kit.put(n))
        assert await found.get() == 19
        assert not following.done()
        await wal.close()
        await following

    run(main)


def test_a_follower_whose_read_is_behind_a_close_ends_and_raises_nothing(disk: kit.Disk) -> None:
    """W-54: a follower ends at close, as the plain reader's does."""
    sync = HeldSync()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, fs=kit.hooked(disk, sync.hook))
        reader = wal.read_from(kit.START, follow=True)
        sync.armed = True
        appending = asyncio.ensure_future(wal.append(kit.put(0)))
        await asyncio.to_thread(sync.gate.wait_reached)
        closing = asyncio.ensure_future(wal.close())
        await asyncio.sleep(0)

        async def follow() -> list[int]:
            return [int(record.key) async for record, _ in reader]

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sync.gate.open()
        await appending
        await closing
        assert await following in ([], [0])

    run(main)


def test_a_cancelled_follower_leaves_the_log_usable(disk: kit.Disk) -> None:
    """W-54."""

    async def main() -> None:
        wal = await open_aio(disk)
        reader = wal.read_from(kit.START, follow=True)
        waiting = asyncio.ensure_future(anext(reader))
        await wal.append_batch([])
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await wal.append(kit.put(1))
        assert (await anext(reader))[0] == kit.put(1)
        await wal.close()

    run(main)


@pytest.mark.parametrize("follow", [False, True])
def test_a_cancelled_read_takes_no_record_away(disk: kit.Disk, follow: bool) -> None:
    """W-54: whoever gives up waiting, after some time perhaps, reads on where it was."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append_batch([kit.put(n) for n in range(300)])
        reader = wal.read_from(kit.START, follow=follow)
        found: list[int] = []
        gave_up = 0
        while len(found) < 300:
            reading = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            if reading.cancel():
                gave_up += 1
                with pytest.raises(asyncio.CancelledError):
                    await reading
                found.append(int((await anext(reader))[0].key))
            else:
                found.append(int(reading.result()[0].key))
            assert found[-1] == len(found) - 1
        assert gave_up >= 3  # each visit to the worker is one
        await wal.append(kit.put(300))
        assert (await anext(reader))[0] == kit.put(300)
        reader.close()
        await wal.close()

    run(main)


def test_a_cancelled_append_is_in_the_log_once_or_not_at_all(disk: kit.Disk) -> None:
    """R-6: indeterminate, never twice, never half; the others are not disturbed."""
    sync = HeldSync()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, fs=kit.hooked(disk, sync.hook))
        sync.armed = True
        tasks = [asyncio.ensure_future(wal.append(kit.put(n))) for n in range(3)]
        await asyncio.to_thread(sync.gate.wait_reached)
        tasks += [asyncio.ensure_future(wal.append(kit.put(n))) for n in range(3, 6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[4].cancel()
        sync.gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        found = await numbers(wal)
        assert found == sorted(set(found))
        assert {1, 2, 3, 5} <= set(found) <= set(range(6))
        assert [isinstance(answer, Position) for answer in answers] == [False, True, True, True, False, True]
        await wal.close()

    run(main)


def test_cancelled_appends_keep_their_places(disk: kit.Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """07 §5: what waits for the worker is bounded, also if those who asked are gone."""
    monkeypatch.setattr("topics.wal.aio.PENDING_MAX", 4)
    sync = HeldSync()

    async def main() -> None:
        wal = await open_aio(disk, kit.ALWAYS, fs=kit.hooked(disk, sync.hook))
        sync.armed = True
        tasks = [asyncio.ensure_future(wal.append(kit.put(0)))]
        await asyncio.to_thread(sync.gate.wait_reached)
        for n in range(1, 9):
            tasks.append(asyncio.ensure_future(wal.append(kit.put(n))))
            await asyncio.sleep(0)
            tasks[-1].cancel()
            await asyncio.wait(tasks[-1:])
        tasks[0].cancel()
        sync.gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
        found = await numbers(wal)
        assert found == sorted(set(found))
        assert len(found) <= 4
        await asyncio.gather(*(wal.append(kit.put(n)) for n in range(9, 20)))
        assert await numbers(wal) == [*found, *range(9, 20)]
        await wal.close()

    run(main)


def test_close_finishes_what_was_accepted(disk: kit.Disk) -> None:
    """W-56."""

    async def main() -> None:
        wal = await open_aio(disk)
        appends = [asyncio.ensure_future(wal.append(kit.put(n))) for n in range(30)]
        await asyncio.sleep(0)
        await wal.close()
        positions = await asyncio.gather(*appends)
        assert len(set(positions)) == 30

    run(main)
    wal, info = kit.open_wal(disk.power_loss(), size=BIG)
    assert info.valid_records == 30
    wal.close()


CALLS: dict[str, Callable[[Wal], Awaitable[object]]] = {
    "append": lambda wal: wal.append(kit.put(1)),
    "append_batch": lambda wal: wal.append_batch([kit.put(1)]),
    "flush": lambda wal: wal.flush(),
    "sync": lambda wal: wal.sync(),
    "current_position": lambda wal: wal.current_position(),
    "segments": lambda wal: wal.segments(),
    "delete_segments_before": lambda wal: wal.delete_segments_before(kit.START),
    "read": numbers,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_log_refuses_every_call(disk: kit.Disk, call: str) -> None:
    """W-56."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        await wal.close()
        await wal.close()
        with pytest.raises(WalClosed):
            await CALLS[call](wal)

    run(main)


def test_two_closes_at_once_are_one(disk: kit.Disk) -> None:
    """W-56: idempotent."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        await asyncio.gather(wal.close(), wal.close(), wal.close())

    run(main)
    kit.open_wal(disk)[0].close()


def test_a_failed_close_is_told_and_the_lock_is_released(disk: kit.Disk) -> None:
    """R-2, W-56."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        disk.fail("fdatasync")
        with pytest.raises(WalIo):
            await wal.close()
        with pytest.raises(WalClosed):
            await wal.append(kit.put(1))

    run(main)
    kit.open_wal(disk)[0].close()


def test_no_thread_is_left_behind_a_close(disk: kit.Disk) -> None:
    """07 §5: one worker thread per log."""
    before = {thread for thread in threading.enumerate() if thread.name.startswith("topics")}

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        mine = {thread for thread in threading.enumerate() if thread.name.startswith("topics")} - before
        assert len(mine) == 1
        await wal.close()
        assert not any(thread.is_alive() for thread in mine)

    run(main)


def test_a_log_that_nobody_keeps_is_closed(disk: kit.Disk) -> None:
    """W-56: garbage collection attempts the same."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        workers = [thread for thread in threading.enumerate() if thread.name == "topics-wal-aio"]
        del wal
        gc.collect()
        for worker in workers:
            await asyncio.to_thread(worker.join, kit.WAIT_S)
            assert not worker.is_alive()

    run(main)
    wal, info = kit.open_wal(disk)
    assert (kit.numbers(wal), info.prealloc_bytes_trimmed) == ([0], 0)
    wal.close()


def test_collecting_a_log_whose_sync_fails_raises_nothing_in_any_thread(disk: kit.Disk) -> None:
    """W-56: attempts; as for the plain log the failure is logged."""

    async def main() -> None:
        wal = await open_aio(disk)
        await wal.append(kit.put(0))
        workers = [thread for thread in threading.enumerate() if thread.name == "topics-wal-aio"]
        disk.fail("fdatasync")
        del wal
        gc.collect()
        for worker in workers:
            await asyncio.to_thread(worker.join, kit.WAIT_S)

    hook, raised = threading.excepthook, []
    threading.excepthook = lambda args: raised.append(args.exc_value)
    try:
        run(main)
    finally:
        threading.excepthook = hook
    assert raised == []
    kit.open_wal(disk)[0].close()


def test_a_second_opener_is_refused(disk: kit.Disk) -> None:
    """W-50."""

    async def main() -> None:
        wal = await open_aio(disk)
        with pytest.raises(WalInUse):
            await open_aio(disk)
        await wal.close()

    run(main)


def test_an_unknown_segment_is_not_found_and_a_bad_record_stays(disk: kit.Disk) -> None:
    """W-54."""

    async def main() -> None:
        wal = await open_aio(disk)
        positions = [await wal.append(kit.put(n)) for n in range(3)]
        with pytest.raises(SegmentNotFound):
            await numbers(wal, Position(9, 0))
        disk.sim.flip_bit("log/000000.wal", positions[1].offset + 12, 0)
        reader = wal.read_from(kit.START)
        assert (await reader.next_record()) == (kit.put(0), positions[0])
        for _ in range(2):
            with pytest.raises(CrcMismatch):
                await reader.next_record()
        reader.close()
        assert await numbers(wal, positions[2]) == [2]
        await wal.close()

    run(main)


def test_deletion_goes_through_the_worker(disk: kit.Disk) -> None:
    """W-55."""

    async def main() -> None:
        wal = await open_aio(disk)
        for n in range(3):
            await wal.append(Record.put(b"k", b"v" * (BIG - 100 - n)))
        assert await wal.delete_segments_before(Position(2, 0)) == 2
        assert [info.id for info in await wal.segments()] == [2]
        await wal.close()

    run(main)
