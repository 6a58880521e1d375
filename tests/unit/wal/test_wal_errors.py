"""No bare OSError leaves the library, whatever call fails (W-70)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.wal import kit
from topics import errors
from topics.errors import WalError, WalIo, WriteFailed
from topics.testing import Fault
from topics.testing.faultfs import FAULTS
from topics.wal import Position, Record, Wal, WalConfig

RECORD_ERRORS = [
    errors.Incomplete,
    errors.CrcMismatch,
    errors.InvalidFlags,
    errors.InvalidCompression,
    errors.CompressionFailed,
    errors.DecompressionFailed,
    errors.VarintOverflow,
]
WAL_ERRORS = [
    WalIo,
    errors.RecordError,
    errors.SegmentNotFound,
    errors.RecordTooLarge,
    errors.InvalidConfig,
    WriteFailed,
    errors.WalReadOnly,
    errors.WalClosed,
    errors.WalInUse,
    errors.WalCorrupt,
    errors.UnsupportedFormat,
    errors.IllegalTransition,
]


@pytest.mark.parametrize("error", RECORD_ERRORS)
def test_each_record_error_is_a_record_error(error: type[Exception]) -> None:
    """07 §7."""
    assert issubclass(error, errors.RecordError)


@pytest.mark.parametrize("error", WAL_ERRORS)
def test_each_error_of_the_library_is_a_wal_error_and_no_os_error(error: type[Exception]) -> None:
    """07 §7."""
    assert issubclass(error, WalError)
    assert not issubclass(error, OSError)


class Run:
    """A small life of a log: recovery with a cut, appends, rotations, reading, deletion, close, and open again."""

    def __init__(self, disk: kit.Disk) -> None:
        self.disk = disk
        self.acked: dict[int, Position] = {}
        self.failed: list[int] = []
        self.raised: list[BaseException] = []
        self.lives = 0
        disk.sim.load({"log/000000.wal": kit.put(0).encode() + b"\x05damage", "log/LOCK": b"state=open\n"})

    def attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 what is raised is what is tested
            self.raised.append(error)
            return None

    def append(self, wal: Wal, *ns: int) -> None:
        numbers = [100 * self.lives + n for n in ns]
        positions = self.attempt(lambda: wal.append_batch([kit.put(n, 60) for n in numbers]))
        if positions is None:
            self.failed.extend(numbers)
        else:
            self.acked.update(zip(numbers, positions, strict=True))

    def read(self, wal: Wal) -> None:
        def walk() -> list[int]:
            first = wal.segments()[0].id
            return [int(record.key) for record, _ in wal.read_from(Position(first, 0))]

        found = self.attempt(walk)
        if found is not None:
            assert not set(found) & set(self.failed), "an append that failed is visible"
            assert self.acked.keys() <= set(found), "an append that was acknowledged is not visible"

    def life(self) -> None:
        self.lives += 1
        self.failed.clear()  # a failed sync may let them reappear in the next life
        opened = self.attempt(lambda: kit.open_wal(self.disk, kit.ALWAYS, size=200, fd_cache_size=1))
        if opened is None:
            return
        wal, _ = opened
        for n in range(1, 9, 2):
            self.append(wal, n, n + 1)
            self.read(wal)
        held = self.attempt(lambda: wal.read_from(Position(1, 0)))
        self.attempt(lambda: held and held.next_record())
        self.attempt(lambda: wal.delete_segments_before(Position(2, 0)))
        self.acked = {n: position for n, position in self.acked.items() if position.segment_id >= 2}
        # The segment is gone; what is left of it is read from the held descriptor.
        for _ in range(4):
            self.attempt(lambda: held and held.next_record())
        self.attempt(lambda: held and held.close())
        self.append(wal, 9)
        self.read(wal)
        self.attempt(wal.sync)
        self.attempt(wal.close)

    def check(self) -> None:
        """Only errors of the library, each with the system's error at its root."""
        for error in self.raised:
            assert isinstance(error, WalError), f"{type(error).__name__} leaves the library: {error}"
            if isinstance(error, (WalIo, WriteFailed)):
                assert isinstance(error.__cause__, OSError)
            if isinstance(error, WalIo):
                assert error.error is error.__cause__


def dry_counts() -> dict[str, int]:
    run = Run(kit.Disk())
    run.life()
    run.life()
    assert run.raised == [] or all(isinstance(error, errors.SegmentNotFound) for error in run.raised)
    return dict(run.disk.faults.counts)


COUNTS = dry_counts()
CASES = [(op, error) for op in sorted(COUNTS) if op in FAULTS for error in FAULTS[op]]


@pytest.mark.parametrize(("op", "error"), CASES)
def test_no_bare_os_error_leaves_the_library_whatever_fails(op: str, error: str) -> None:
    """W-70, §1.4: every operation × every call of it × every error it can meet, once."""
    problems: list[str] = []
    for index in range(1, COUNTS[op] + 1):
        run = Run(kit.Disk())
        run.disk.faults.inject(Fault(op, index, error))
        run.life()
        run.life()
        try:
            run.check()
        except AssertionError as problem:
            problems.append(f"{op} {index}: {problem}")
    assert problems == []


@pytest.mark.parametrize(("op", "error"), CASES)
def test_nothing_acknowledged_is_lost_whatever_fails(op: str, error: str) -> None:
    """R-1, W-17, W-70: after the fault, then a kill or a power loss, every acknowledged record is recovered."""
    for index in range(1, COUNTS[op] + 1):
        run = Run(kit.Disk())
        run.disk.faults.inject(Fault(op, index, error))
        run.life()
        for image in (kit.Disk(run.disk.sim.crash_image(index, "nothing")), run.disk.killed()):
            wal, _ = kit.open_wal(image, kit.ALWAYS, size=200)
            first = wal.segments()[0].id
            found = kit.numbers(wal, Position(first, 0))
            wal.close()
            assert run.acked.keys() <= set(found), f"{op} {index} {error}"
            assert found == sorted(set(found))


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EMFILE"])
@pytest.mark.parametrize("op", ["makedirs", "lock", "listdir", "open"])
def test_an_open_that_fails_tells_the_system_error(op: str, error: str) -> None:
    """W-70: WalIo with its cause."""
    disk = kit.Disk()
    if op == "open":
        disk.sim.load({"log/000000.wal": kit.put(1).encode()})
    disk.faults.inject(Fault(op, 1, error))
    with pytest.raises(WalIo) as caught:
        kit.open_wal(disk)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    """W-70, on the real disk."""
    place = tmp_path / "log"
    place.write_bytes(b"a file")
    with pytest.raises(WalIo):
        Wal.open(WalConfig(dir=str(place)))
    with pytest.raises(WalIo):
        Wal.open(WalConfig(dir=str(place / "below")))
    assert place.read_bytes() == b"a file"


def test_a_record_error_leaves_append_before_anything_is_written(disk: kit.Disk) -> None:
    """W-70: the record is not in the log."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    before = disk.files()
    wrongs: list[Any] = [b"no record", None, Record("text", b"v"), Record(b"k", 5)]
    for wrong in wrongs:
        with pytest.raises((TypeError, AttributeError)):
            wal.append(wrong)
        with pytest.raises((TypeError, AttributeError)):
            wal.append_batch([kit.put(2), wrong])
    assert disk.files() == before
    wal.append(kit.put(3))
    assert kit.numbers(wal) == [1, 3]
    wal.close()
