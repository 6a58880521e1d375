"""A signal may strike wherever Python looks for one: at any call that the log makes (W-52, W-17, 13 §6).

What handlers raise goes through the log like any exception. Here the n-th call of a stretch raises it, for every n
there is: the call does not begin, or, if it is one of C, its outcome is lost. Whoever was struck knows nothing of his
record; the others' are there once, the log goes on, and a failure of the disk is remembered.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.unit.strike import Strike
from tests.unit.wal import kit
from topics.errors import WalError
from topics.fs import Fs
from topics.wal import FsyncPolicy, Position, core, log

OURS = frozenset((core.__file__, log.__file__))
BATCH = FsyncPolicy.batch(10)
FULL = 9
"""Records that a segment has room for."""


def strike_at(at: int, *, armed: bool = True) -> Strike:
    return Strike(at, OURS.__contains__, armed=armed)


@pytest.mark.parametrize("policy", [kit.ALWAYS, kit.OS, BATCH], ids=lambda policy: policy.kind)
def test_a_log_goes_on_behind_a_signal_at_any_call_of_an_append_that_rotates(policy: FsyncPolicy) -> None:
    """W-52, W-16, W-14, W-55: what was acknowledged is there once, and segments are cut to their data and deleted."""
    for at in count(1):
        disk = kit.Disk()
        wal, _ = kit.open_wal(disk, policy)
        kit.fill(wal, FULL)
        assert wal.current_position().segment_id == 0
        strike, struck = strike_at(at), list[int]()
        with strike.around():
            kit.fill(wal, 1, FULL)
        if strike.struck:
            struck.append(FULL)
        kit.fill(wal, 30, FULL + 1)
        acknowledged = [n for n in range(FULL + 31) if n not in struck]
        assert [n for n in kit.numbers(wal) if n not in struck] == acknowledged, at
        there = kit.numbers(wal)
        assert there.count(FULL) <= 1, at
        files = disk.files()
        for info in wal.segments()[:-1]:
            assert len(files[f"{info.id:06}.wal"]) == info.size, at
        assert kit.numbers(kit.open_wal(disk.killed())[0]) == there, at
        durable = kit.numbers(kit.open_wal(disk.power_loss())[0])
        assert durable == there[: len(there) if policy is kit.ALWAYS else len(durable)], at
        assert wal.delete_segments_before(wal.current_position()) == wal.current_position().segment_id, at
        wal.close()
        assert disk.fs.violations == [], at
        if not strike.struck:
            return


def test_a_log_that_is_closed_behind_a_signal_leaves_no_segment_unfinished() -> None:
    """W-56, W-14: Ctrl-C in an append that rotates, and the end of a `with`."""
    for at in count(1):
        disk = kit.Disk()
        wal, _ = kit.open_wal(disk, kit.ALWAYS)
        kit.fill(wal, FULL)
        strike = strike_at(at)
        with strike.around():
            kit.fill(wal, 1, FULL)
        sizes = {f"{info.id:06}.wal": info.size for info in wal.segments()}
        wal.close()
        assert {name: len(data) for name, data in disk.files().items() if name in sizes} == sizes, at
        assert kit.numbers(kit.open_wal(disk.power_loss())[0])[:FULL] == list(range(FULL)), at
        if not strike.struck:
            return


Faults = Sequence[tuple[str, int, int]]
"""Operation, which call of it, and the error number."""


def failing(disk: kit.Disk, faults: Faults, strike: Strike) -> Fs:
    """A disk on which calls fail behind `Strike.around`'s begin; the strike is armed by the last of them."""
    left = list(faults)
    seen = dict.fromkeys((op for op, _, _ in faults), 0)

    def hook(op: str, path: str) -> None:
        if op in seen and sys.getprofile() is not None and left:
            seen[op] += 1
            due, index, number = left[0]
            if op == due and seen[op] == index:
                del left[0]
                strike.armed = not left
                raise OSError(number, "injected")

    return kit.hooked(disk, hook)


@pytest.mark.parametrize(
    ("records", "faults"),
    [
        pytest.param(1, [("fdatasync", 1, errno.EIO)], id="sync"),
        pytest.param(1, [("pwrite", 1, errno.EIO)], id="write"),
        pytest.param(1, [("pwrite", 1, errno.ENOSPC), ("fsync", 1, errno.EIO)], id="cutting back"),
        pytest.param(FULL, [("fsync", 1, errno.EIO)], id="new segment"),
        pytest.param(FULL, [("fdatasync", 1, errno.EIO)], id="sync of a rotation"),
        pytest.param(FULL, [("fsync", 2, errno.EIO)], id="finalizing"),
    ],
)
def test_a_disk_that_failed_is_remembered_whatever_a_signal_strikes(records: int, faults: Faults) -> None:
    """W-17, W-15: the next sync would succeed, and prove nothing about pages that failed."""
    for at in count(1):
        disk = kit.Disk()
        strike = strike_at(at, armed=False)
        wal, _ = kit.open_wal(disk, kit.ALWAYS, fs=failing(disk, faults, strike), prepare_ahead=False)
        kit.fill(wal, records)
        with strike.around(), suppress(WalError):
            kit.fill(wal, 1, records)
        assert strike.armed
        assert wal._log.failed is not None, at
        with pytest.raises(WalError):
            kit.fill(wal, 1, records + 1)
        with suppress(WalError):
            wal.close()
        if not strike.struck:
            return


@pytest.mark.parametrize("call", ["append", "sync"])
def test_what_waits_under_batch_is_synced_whoever_was_struck(call: str) -> None:
    """W-52 batch: at most w after the oldest unsynced record; a struck call does not make the others' forgotten."""
    for at in count(1):
        disk = kit.Disk()
        wal, _ = kit.open_wal(disk, BATCH)
        kit.fill(wal, 2)
        disk.clock.advance(10)
        strike = strike_at(at)
        with strike.around():
            if call == "sync":
                wal.sync()
            else:
                kit.fill(wal, 1, 2)
        disk.clock.advance(10)
        wal.tick()
        again, found = kit.open_wal(disk.power_loss())
        assert found.valid_records >= 2, at
        again.close()
        wal.close()
        if not strike.struck:
            return


class Struck:
    """Rounds whose first leader writes and is struck; `then` happens before anybody looks at what became of it."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._led = False

    def share(self, work: Any, serve: Callable[[Sequence[Any]], object], /) -> None:
        if self._led:
            serve([work])
            return
        self._led = True
        with suppress(KeyboardInterrupt):
            serve([work])
        self._then()

    def gathered(self) -> int:
        return 0


def struck_at(disk: kit.Disk, place: str) -> tuple[Fs, list[str]]:
    """A disk on which whoever comes to a place is interrupted, once the list has something."""
    armed: list[str] = []

    def interrupt(op: str, path: str) -> None:
        if armed and place == (path if op == "point" else op):
            armed.clear()
            raise KeyboardInterrupt

    return kit.hooked(disk, interrupt), armed


def test_a_record_that_an_interrupted_leader_wrote_is_told_although_the_log_was_closed(disk: kit.Disk) -> None:
    """W-70: closing synced it, so its caller hears of no error."""
    fs, armed = struck_at(disk, "wal.after_write")
    wal, _ = kit.open_wal(disk, kit.ALWAYS, fs=fs)
    wal._rounds = Struck(wal.close)
    armed.append("now")
    assert wal.append(kit.put(0)) == Position(0, 0)
    assert kit.numbers(kit.open_wal(disk.power_loss())[0]) == [0]


def test_a_record_that_nobody_wrote_is_not_told_as_written_behind_a_close_that_failed(disk: kit.Disk) -> None:
    """W-17, W-52: the log ends elsewhere than before, and the record is in no file."""
    fs, armed = struck_at(disk, "pwrite")
    wal, _ = kit.open_wal(disk, kit.ALWAYS, fs=fs)
    kit.fill(wal, FULL)

    def close() -> None:
        assert wal._log.position() == (1, 0)
        disk.fail("fdatasync", "EIO")
        with pytest.raises(WalError):
            wal.close()

    wal._rounds = Struck(close)
    armed.append("now")
    with pytest.raises(WalError):
        kit.fill(wal, 1, FULL)
    assert kit.numbers(kit.open_wal(disk.killed())[0]) == list(range(FULL))


def test_a_record_of_an_interrupted_leader_is_not_written_again_by_one_who_comes_late(disk: kit.Disk) -> None:
    """W-52: a second caller goes to share his record anew when the first one finds both written."""
    fs, armed = struck_at(disk, "wal.after_write")
    wal, _ = kit.open_wal(disk, kit.ALWAYS, fs=fs)
    here, lost, back, told = (threading.Event() for _ in range(4))

    class Late:
        """Leads the round of both, struck; then the late one comes back first and is served last."""

        def __init__(self) -> None:
            self.works: list[Any] = []

        def share(self, work: Any, serve: Callable[[Sequence[Any]], object], /) -> None:
            late = threading.current_thread() is not threading.main_thread()
            self.works.append(work)
            if late and len(self.works) == 1:
                here.set()
                assert lost.wait(kit.WAIT_S)
            elif len(self.works) == 2:
                with suppress(KeyboardInterrupt):
                    serve(self.works)
                lost.set()
                assert back.wait(kit.WAIT_S)
            else:
                if late:
                    back.set()
                    assert told.wait(kit.WAIT_S)
                serve([work])

        def gathered(self) -> int:
            return 0

    wal._rounds = Late()
    late = kit.spawn(partial(wal.append, kit.put(0)))
    late.add_done_callback(lambda _: back.set())
    assert here.wait(kit.WAIT_S)
    armed.append("now")
    second = wal.append(kit.put(1))
    told.set()
    assert late.result(kit.WAIT_S) < second
    assert kit.numbers(wal) == [0, 1]
    wal.close()
