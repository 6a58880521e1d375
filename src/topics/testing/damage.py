"""Damage at rest on a log of the WAL library: every byte, every length, every missing segment (13 T6, T7).

A damaged log is opened under both corruption policies. Whatever the damage: no record is ever served wrong, records
outside the damaged part are all there, and what is missing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from topics import paths
from topics.errors import WalCorrupt, WalError
from topics.testing.clock import ManualClock
from topics.testing.simfs import SimFs
from topics.testing.subject import Violation
from topics.testing.unexpected import Unexpected
from topics.testing.walsubject import DIR, lenient, recovered, without_lock
from topics.wal import FsyncPolicy, Position, Record, WalConfig
from topics.wal.log import open_checked

Kind = Literal["flip", "zero", "ones", "truncate", "missing"]


class Damage(NamedTuple):
    """What is done to one file; `at` is the byte or the new length."""

    path: str
    kind: Kind
    at: int = 0


class Sample(NamedTuple):
    """A closed log: its files and what is in them."""

    config: WalConfig
    files: dict[str, bytes]
    records: list[tuple[Record, Position]]


def sample(*, fail: bool, always: bool) -> Sample:
    """A log of several segments with every kind of record, closed in order."""
    config = WalConfig(
        dir=DIR,
        max_segment_size=400,
        fsync_policy=FsyncPolicy.always() if always else FsyncPolicy.os(),
        corruption_policy="fail" if fail else "truncate",
    )
    disk = SimFs()
    wal, _ = open_checked(config, clock=ManualClock(), fs=disk)
    for n in range(8):
        wal.append(Record.put(b"key-%d" % n, b"%d" % n * 5))
        wal.append(Record.put_with_ttl(b"t%d" % n, bytes(n), 1 << 5 * n))
        wal.append(Record.delete(b"key-%d" % n))
        wal.append(Record.put(b"", b""))
        wal.append(Record.put(b"long-%d" % n, b"abc" * 60).with_compression("none"))
    records = list(wal.read_from(Position(0, 0)))
    wal.close()
    return Sample(config, disk.files(), records)


def flips(one: Sample) -> Iterator[Damage]:
    """Every byte of every file: one bit, 0x00, 0xFF."""
    for path, data in one.files.items():
        for at in range(len(data)):
            for kind in ("flip", "zero", "ones"):
                yield Damage(path, kind, at)


def truncations(one: Sample) -> Iterator[Damage]:
    """Every shorter length of every file, and every file missing."""
    for path, data in one.files.items():
        for length in range(len(data)):
            yield Damage(path, "truncate", length)
        yield Damage(path, "missing")


def inflict(one: Sample, damage: Damage) -> SimFs | None:
    """The sample with its damage, or `None` when that changes nothing."""
    disk = SimFs()
    disk.load(one.files)
    path, kind, at = damage
    act: dict[Kind, Callable[[], None]] = {
        "flip": lambda: disk.flip_bit(path, at, at % 8),
        "zero": lambda: disk.set_byte(path, at, 0),
        "ones": lambda: disk.set_byte(path, at, 0xFF),
        "truncate": lambda: disk.truncate_at_rest(path, at),
        "missing": lambda: disk.lose_file(path),
    }
    act[kind]()
    return None if disk.files() == one.files else disk


def check(one: Sample, damage: Damage) -> bool:
    """Open a damaged log and judge it; whether the damage changed anything. Raises `Violation`."""
    disk = inflict(one, damage)
    if disk is None:
        return False
    try:
        with Unexpected():
            _judge(one, damage, disk)
    except WalError as error:
        raise Violation(f"{damage}: {error!r}") from error
    except Violation as error:
        raise Violation(f"{damage}: {error}") from error
    return True


def _judge(one: Sample, damage: Damage, disk: SimFs) -> None:
    before = disk.files()
    segment = paths.parse_library_segment(damage.path.rpartition("/")[2])
    refused = False
    try:
        wal, info = open_checked(one.config, clock=ManualClock(), fs=disk)
    except WalCorrupt as error:
        if one.config.corruption_policy != "fail" or segment is None:
            raise Violation(f"refused: {error}") from error
        if without_lock(disk.files()) != without_lock(before):
            raise Violation("`fail` changed the disk") from error
        refused = True
        wal, info = open_checked(lenient(one.config), clock=ManualClock(), fs=disk)
    found = recovered(wal)
    last = one.records[-1][1].segment_id
    first = one.records[0][1].segment_id
    for item in found:
        if item not in one.records:
            raise Violation(f"{item} was never written")
    if found != [item for item in one.records if item in found]:
        raise Violation("records are doubled or out of order")
    lost = [position for item in one.records if item not in found for position in [item[1]]]
    told = bool(info.bytes_truncated or info.holes)
    if refused and not told:
        raise Violation("refused under `fail`, but nothing is told under `truncate`")
    if not lost:
        return
    if any(position.segment_id != segment for position in lost):
        raise Violation(f"records of other segments are gone: {lost}")
    if damage.kind == "missing":
        # Before the first and behind the last segment nothing tells that one was there: ids carry no count.
        if segment not in (first, last) and not told:
            raise Violation("a missing segment between two others is not told")
        return
    if any(position.offset + _size(one, position) <= damage.at for position in lost):
        raise Violation(f"records before the damage are gone: {lost}")
    # Cut between two records, or within the zeros a record may begin with: it looks like a shorter log [W-33].
    at_border = damage.kind == "truncate" and not one.files[damage.path][lost[0].offset : damage.at].strip(b"\0")
    if not told and not at_border:
        raise Violation(f"{len(lost)} records are missing and nobody says so")
    if one.config.corruption_policy == "fail" and segment != last and not refused and not at_border:
        raise Violation("damage to durable bytes was not refused under `fail`")


def _size(one: Sample, position: Position) -> int:
    return next(len(record.encode()) for record, at in one.records if at == position)
