"""A sync while another thread closes the log: it returns when the bytes are durable, or raises (W-53, W-56)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.unit.wal import kit
from topics.errors import WalClosed
from topics.wal import FsyncPolicy
from topics.wal.core import SegmentedLog

PLACES = ["position", "check", "sync_to"]
"""What a sync calls, and where it is when the other thread comes."""


def stop_at(log: SegmentedLog, name: str, gate: kit.Gate, *, behind: bool = False) -> None:
    """Stop the next call at the gate: ahead of what it does, or behind."""
    call, stopped = getattr(log, name), list[bool]()

    def stopping(*args: object) -> object:
        first = not stopped
        stopped.append(True)
        if first and not behind:
            gate.stop()
        result = call(*args)
        if first and behind:
            gate.stop()
        return result

    setattr(log, name, stopping)


class Closing:
    """A disk that holds the close of a log inside its sync."""

    def __init__(self, disk: kit.Disk) -> None:
        self.gate = kit.Gate()
        self.armed = False
        self.fs = kit.hooked(disk, self._hook)

    def _hook(self, op: str, path: str) -> None:
        if self.armed and op == "fdatasync":
            self.gate.stop()


def synced_beside_close(
    closing: Closing, log: SegmentedLog, place: str, sync: Callable[[], None], close: Callable[[], object]
) -> None:
    """Run `sync`, and from `place` on with `close` held inside its sync until the former is done or has to wait."""
    came, gate = threading.Event(), kit.Gate()
    closing.armed = True
    stop_at(log, place, gate)
    syncing = kit.spawn(sync)
    gate.wait_reached()
    closed = kit.spawn(close)
    closing.gate.wait_reached()
    log._sync_lock = kit.TellingLock(came, log._sync_lock)  # type: ignore[assignment]
    syncing.add_done_callback(lambda _: came.set())
    gate.open()
    assert came.wait(kit.WAIT_S)
    closing.gate.open()
    closed.result(kit.WAIT_S)
    with suppress(WalClosed):
        syncing.result(kit.WAIT_S)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("policy", [kit.OS, FsyncPolicy.batch(10)], ids=lambda policy: policy.kind)
def test_a_sync_beside_a_close_does_not_return_before_everything_is_durable(
    disk: kit.Disk, policy: FsyncPolicy, place: str
) -> None:
    """W-53: it waits for the sync of the close, or raises."""
    closing = Closing(disk)
    wal, _ = kit.open_wal(disk, policy, fs=closing.fs)
    kit.fill(wal, 2)

    def sync() -> None:
        wal.sync()
        again, _ = kit.open_wal(disk.power_loss())
        assert kit.numbers(again) == [0, 1]
        again.close()

    synced_beside_close(closing, wal._log, place, sync, wal.close)


@pytest.mark.parametrize("place", PLACES)
def test_a_sync_of_the_core_beside_a_close_does_not_return_before_everything_is_durable(
    disk: kit.Disk, kind: kit.Kind, place: str
) -> None:
    """07 §1.3 sync."""
    closing = Closing(disk)
    log = kit.start_core(kind, disk, fs=closing.fs)
    log.write([kind.unit(1)])
    first, end = log.position()

    def sync() -> None:
        log.sync()
        assert disk.power_loss().files()[kind.file(first)][:end].endswith(kind.unit(1))

    synced_beside_close(closing, log, place, sync, log.close)


def test_a_sync_that_has_begun_is_finished_when_the_log_is_closed_meanwhile(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 sync: the segment it looked for is its own until it is done."""
    came, gate = threading.Event(), kit.Gate()
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    end = log.position()
    log._sync_lock = kit.TellingLock(came)  # type: ignore[assignment]
    stop_at(log, "check", gate, behind=True)
    syncing = kit.spawn(lambda: log.sync_to(end))
    gate.wait_reached()
    closing = kit.spawn(log.close)
    assert came.wait(kit.WAIT_S)
    gate.open()
    syncing.result(kit.WAIT_S)
    assert closing.result(kit.WAIT_S) is True
    assert log.synced() == end
