"""Preparing the next segment ahead of rotation (W-15): beside a rotation, on a full disk, without threads to spare."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from tests.unit.wal import kit
from topics.wal import FsyncPolicy, Wal
from topics.wal.core import Segment

FULL = 9
"""Records that a segment has room for."""


class Copied(dict[int, Segment]):
    """Segments that call `meanwhile` while they are copied, once."""

    def __init__(self, segments: dict[int, Segment], meanwhile: Callable[[], object]) -> None:
        super().__init__(segments)
        self._meanwhile = [meanwhile]

    def __iter__(self) -> Iterator[int]:  # so that a copy asks for the keys
        return super().__iter__()

    def keys(self) -> Any:
        if self._meanwhile:
            self._meanwhile.pop()()
        return super().keys()


def test_a_segment_that_is_prepared_while_another_becomes_active_is_a_new_one(disk: kit.Disk) -> None:
    """W-13, W-15: one of the same id would be written over acknowledged records."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    log = wal._log
    kit.fill(wal, FULL)
    done: list[None] = []
    log._segments = Copied(log._segments, lambda: done.extend(kit.finish([kit.spawn(log.prepare_next)])))
    kit.fill(wal, 3 * FULL, FULL)
    assert done == [None]
    assert kit.numbers(wal) == list(range(4 * FULL))
    again, _ = kit.open_wal(disk.power_loss())
    assert kit.numbers(again) == list(range(4 * FULL))
    again.close()
    wal.close()


def wait_prepared(wal: Wal) -> None:
    """Until no thread prepares."""
    if wal._preparing is not None and wal._preparing.ident is not None:
        wal._preparing.join(kit.WAIT_S)
        assert not wal._preparing.is_alive()


@pytest.mark.parametrize("timed", [False, True])
def test_a_full_disk_is_asked_once_per_segment_ahead_of_rotation(disk: kit.Disk, timed: bool) -> None:
    """07 §1.4 row 3: rotation asks again, and the next segment is prepared ahead as ever."""
    asked: list[str] = []

    def hook(op: str, path: str) -> None:
        if op == "allocate":
            asked.append(path.rpartition("/")[2])

    wal, _ = kit.open_wal(disk, prepare_ahead=True, timed=timed, fs=kit.hooked(disk, hook))
    asked.clear()
    disk.fail("allocate", "ENOSPC", "always")
    for n in range(FULL):
        kit.fill(wal, 1, n)
        wait_prepared(wal)
    assert asked == ["000001.wal"]
    disk.mend()
    for n in range(FULL, 2 * FULL):
        kit.fill(wal, 1, n)
        wait_prepared(wal)
    assert asked == ["000001.wal", "000001.wal", "000002.wal"]
    assert wal._log.has_ready()
    wal.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, kit.OS, FsyncPolicy.batch(1000)], ids=lambda policy: policy.kind)
def test_an_append_needs_no_thread_that_prepares(
    disk: kit.Disk, policy: FsyncPolicy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """07 §1.4 row 3: rotation prepares by itself, and a later segment is prepared ahead again."""

    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    wal, _ = kit.open_wal(disk, policy, prepare_ahead=True, timed=True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        kit.fill(wal, 2 * FULL)
    assert sum("no thread to prepare" in told for told in caplog.messages) == 2
    assert kit.numbers(wal) == list(range(2 * FULL))
    kit.fill(wal, FULL, 2 * FULL)
    wait_prepared(wal)
    assert wal._log.has_ready()
    wal.close()
