"""The WAL library under the sweeps: its operations, and the driver that keeps the oracle in step.

Everything follows from the seed: configuration, payload regime, operations. Payload sizes come from regimes, because
purely random sizes hide tail bugs [R-11]; payloads include zeros and bytes that are themselves whole records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from topics import paths
from topics.errors import WalCorrupt, WalError, WalInUse, WalIo, WalReadOnly, WriteFailed
from topics.fs import Fs
from topics.testing.clock import ManualClock
from topics.testing.driver import DiskDriver
from topics.testing.monitorfs import MonitorFs
from topics.testing.simfs import SYNC_MODES, SimFs
from topics.testing.subject import How, Violation
from topics.testing.walmodel import Entry, WalModel
from topics.wal import FsyncPolicy, Position, Record, RecoveryInfo, Wal, WalConfig
from topics.wal.log import open_checked

DIR = "data/wal"
WINDOW_MS = 5
REGIMES = ("tiny", "sector", "quarter", "mixed", "huge")

OPS = (
    "append",
    "append_aligned",
    "append_large",
    "append_zeros",
    "append_nested",
    "append_even",
    "append_ttl",
    "append_packed",
    "delete_key",
    "batch",
    "batch_even",
    "batch_large",
    "sync",
    "wait_tick",
    "wait_append",
    "delete_before",
    "close_reopen",
    "kill_reopen",
    "crash_reopen",
    "failed_sync",
    "full_disk",
)


class WalSetup(NamedTuple):
    """Everything a seed decides about a run."""

    config: WalConfig
    regime: str


ZERO_AHEAD = 700
"""Segments are small, so these steps are: one segment takes several."""


def setup_for(seed: int) -> WalSetup:
    """The configuration and payload regime of a seed."""
    rng = random.Random(f"setup {seed}")
    policy = rng.choice((FsyncPolicy.always(), FsyncPolicy.batch(WINDOW_MS), FsyncPolicy.os()))
    return WalSetup(
        WalConfig(
            dir=DIR,
            max_segment_size=rng.choice((1024, 2048, 4096, 6000)),
            fsync_policy=policy,
            preallocate=rng.random() < 0.7,
            prepare_ahead=rng.random() < 0.3,
            fd_cache_size=rng.choice((1, 2, 16)),
            read_buffer=4096,
            corruption_policy=rng.choice(("truncate", "fail")),
        ),
        rng.choice(REGIMES),
    )


class WalSubject:
    """Makes drivers of the WAL library."""

    ops = OPS

    def driver(self, seed: int) -> WalDriver:
        return WalDriver(setup_for(seed), seed)

    def workload(self, rng: random.Random, length: int) -> list[str]:
        """Appends are the bulk; the operations that change the disk's layout are strewn in."""
        weights = [
            6 if op.startswith(("append", "batch")) else 2 if op.startswith(("sync", "wait")) else 1 for op in OPS
        ]
        return rng.choices(OPS, weights, k=length)

    def fault_workloads(self) -> dict[str, tuple[Callable[[], WalDriver], tuple[str, ...]]]:
        """Short workloads that together pass through every kind of disk call of the library."""
        return {name: (partial(_driver_for, **fields), ops) for name, (fields, ops) in _WORKLOADS.items()}


_ALWAYS, _BATCH, _OS = FsyncPolicy.always(), FsyncPolicy.batch(WINDOW_MS), FsyncPolicy.os()
_WORKLOADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "always": ({"fsync_policy": _ALWAYS}, ("append", "append_aligned", "batch", "sync", "append_zeros")),
    "rotation": ({"fsync_policy": _ALWAYS}, ("append_large", "append", "append_large", "delete_before", "append")),
    "window": ({"fsync_policy": _BATCH}, ("append", "append", "wait_tick", "append", "wait_append", "append_large")),
    "os": ({"fsync_policy": _OS}, ("append", "batch_large", "batch_large", "sync", "append", "close_reopen", "append")),
    "sparse": ({"fsync_policy": _ALWAYS, "preallocate": False}, ("append_large", "batch", "append_large", "sync")),
    "ahead": (
        {"fsync_policy": _BATCH, "prepare_ahead": True},
        ("append_large", "append", "append_large", "close_reopen"),
    ),
    "collection": (
        {"fsync_policy": _OS},
        ("append_large", "append_large", "append_large", "delete_before", "delete_before"),
    ),
    "killed": (
        {"fsync_policy": _ALWAYS},
        ("append", "append_nested", "kill_reopen", "append", "kill_reopen", "append"),
    ),
    "crashed": (
        {"fsync_policy": _OS},
        ("append", "batch_even", "append", "crash_reopen", "append_even", "batch_large", "crash_reopen"),
    ),
    "refusing": (
        {"fsync_policy": _ALWAYS, "corruption_policy": "fail"},
        ("append", "append_large", "crash_reopen", "append"),
    ),
    "full": ({"fsync_policy": _ALWAYS}, ("append", "full_disk", "append_large", "sync")),
}


def _driver_for(**fields: Any) -> WalDriver:
    config = WalConfig(**{"dir": DIR, "max_segment_size": 1024, "read_buffer": 4096, "fd_cache_size": 2, **fields})
    return WalDriver(WalSetup(config, "tiny"), 0)


class WalDriver(DiskDriver):
    """Runs operations on a `Wal` and keeps the model in step with what they promise."""

    def __init__(self, setup: WalSetup, seed: int) -> None:
        super().__init__()
        self.config, self.regime = setup
        self.model = WalModel()
        self.rng = random.Random(f"payloads {seed}")
        self._monitor = MonitorFs(self._fs)
        self._wal: Wal | None = None
        self._count = 0
        self._window_passed = False
        self._crashed = False

    @property
    def wal(self) -> Wal:
        assert self._wal is not None
        return self._wal

    @property
    def latched(self) -> bool:
        """Whether the log refuses writes after a failure."""
        return self._wal is not None and self._wal._log.failed is not None

    def open(self, fs: Fs, *, killed: bool = False) -> None:
        """Open on `fs`; what is found must be what the model allows, and becomes the new truth.

        After a mere kill everything acknowledged must be there, also what a machine crash might still take.
        """
        killed = killed and not self.latched and not self.model.lied
        self.end()
        self._crashed = not killed
        self._adopt(fs)
        self._monitor = MonitorFs(fs)
        try:
            wal, info = open_checked(self.config, clock=self.clock, fs=self._monitor)
        except WalCorrupt as error:
            if not self._may_refuse():
                raise Violation(f"the log is refused after a mere restart: {error}") from error
            self.config = lenient(self.config)
            wal, info = open_checked(self.config, clock=self.clock, fs=self._monitor)
        self._wal = wal
        if wal._log.zero_ahead:
            wal._log.zero_ahead = ZERO_AHEAD
        try:
            found = records_of(wal)
        except WalError:
            self._wal = None
            wal.close()
            raise
        (self.model.acknowledged() if killed else self.model).judge(found, info, wal.current_position())
        self.model.adopt(found, wal.segments()[0].id, wal.current_position())
        self._window_passed = True
        self._lies_known = len(self.disk.lies)
        self._crashed = False
        self._refuses_second_opener()

    def _refuses_second_opener(self) -> None:
        struck = self._struck()
        try:
            open_checked(self.config, clock=self.clock, fs=self._monitor)
        except WalInUse:
            return
        except WalError as error:
            if self._struck() > struck:
                return
            raise Violation(f"a second opener got {error!r} [W-50]") from error
        raise Violation("a second opener got the log [W-50]")

    def end(self) -> None:
        """Drop the log as a kill would: without closing it."""
        if self._wal is not None:
            forget(self._wal)
            self._wal = None

    def do(self, op: str) -> None:
        """Run one operation; errors that the disk is to blame for are part of the game."""
        if self._wal is None:
            self.start(self._fs)
            return
        getattr(self, f"_op_{op}")()
        if self._wal is not None:
            self._note_lies()
            self.model.rotated_to(self.wal.current_position().segment_id)
            self._check_reads()

    def start(self, fs: Fs, *, killed: bool = False) -> None:
        struck = self._struck()
        try:
            self.open(fs, killed=killed)
        except WalError as error:
            if self._struck() == struck and not isinstance(error, (WalIo, WriteFailed)):
                raise Violation(f"cannot be opened, and no fault is to blame: {error!r}") from error

    def must_work(self) -> None:
        """The disk is healthy again: the log opens, and takes and keeps a record."""
        self.disk.clear_faults()
        for op in ("close_reopen", "append", "sync"):
            self.do(op)
            if self._wal is None or self.latched:
                # A sync may still report what failed before; the next start is then the healthy one.
                self.do("close_reopen")
        if self._wal is None or self.latched:
            raise Violation("the disk is healthy and the log still refuses")
        before = len(self.model.entries)
        self._op_append()
        self._op_sync()
        if len(self.model.entries) != before + 1 or not self.model.entries[-1].durable:
            raise Violation("the disk is healthy and a record was not taken")

    def _note_lies(self) -> None:
        if self._disk_lied():
            self.model.lied = True

    def _check_reads(self) -> None:
        """A reader of the running log sees exactly what was acknowledged, in order, at its position."""
        first = self.wal.segments()[0].id
        expected = self.model.visible(first)
        struck = self._struck()
        try:
            found: list[tuple[Record, Position | None]] = list(records_of(self.wal))
        except WalError as error:
            if self.latched or self._struck() > struck:
                return  # the cache may have gone back to what the medium holds, or the read was the fault
            raise Violation(f"reading the running log: {error!r}") from error
        if found == expected or (self.latched and found == expected[: len(found)]):
            return
        raise Violation(f"a reader sees {len(found)} records, {len(expected)} were acknowledged [W-54]")

    def _append(self, records: Sequence[Record]) -> None:
        entries = [Entry(record) for record in records]
        certain = self.model.uncertain
        self.model.uncertain = [*certain, *entries]
        refused = self.latched
        try:
            positions = [self.wal.append(records[0])] if len(records) == 1 else self.wal.append_batch(records)
        except WalReadOnly:
            if refused:
                self.model.uncertain = certain
            return
        except WriteFailed as error:
            if error.full:
                self.model.uncertain = certain
            return
        except WalIo:
            return
        if refused:
            raise Violation("a latched log took a write [W-17]")
        self.model.uncertain = certain
        for entry, position in zip(entries, positions, strict=True):
            entry.position = position
        self.model.entries += entries
        self._promise(positions[-1].segment_id)

    def _promise(self, segment: int) -> None:
        """What a returned append promises, by policy [W-52]."""
        kind = self.config.fsync_policy.kind
        self._note_lies()
        if kind == "always" or (kind == "batch" and self._window_passed):
            self.model.make_durable()
            self._window_passed = False
            if not self.model.lied:
                self._monitor.acked(f"{DIR}/{paths.library_segment(segment)}", self.wal.current_position().offset)

    def _record(self, size: int, fill: Callable[[int], bytes]) -> Record:
        self._count += 1
        # The key tells every record of a run apart; the value must not be needed for that.
        return Record.put(b"%x.%d" % (self.rng.getrandbits(24), self._count), fill(size))

    def _even_record(self) -> Record:
        """All of one size: what a refused or lost write leaves behind would line up with what is written over it."""
        record = self._record(0, bytes)
        return Record.put(record.key, self.rng.randbytes(90 - len(record.key)))

    def _size(self) -> int:
        room = self.config.max_segment_size - 64
        return min(room, self._size_of(room))

    def _size_of(self, room: int) -> int:
        regime = self.rng.choice(REGIMES[:3]) if self.regime == "mixed" else self.regime
        if regime == "tiny":
            return self.rng.randrange(4)
        if regime == "sector":
            return max(0, self.rng.choice((256, 512, 1024)) - self.rng.choice((0, 12, 16, 20)))
        if regime == "quarter":
            return self.rng.randrange(room // 4)
        return self.rng.randrange(room // 2, room)

    def _op_append(self) -> None:
        self._append([self._record(self._size(), self.rng.randbytes)])

    def _op_append_aligned(self) -> None:
        """Make the record end exactly on a sector border, where a torn write cannot be told by its size."""
        here = self.wal.current_position().offset
        record = self._record(0, bytes)
        gap = -(here + len(record.encode())) % 512
        value = self.rng.randbytes(gap if gap < 128 else gap - 1)
        self._append([Record.put(record.key, value)])

    def _op_append_large(self) -> None:
        self._append([self._record(self.config.max_segment_size - 64, self.rng.randbytes)])

    def _op_append_zeros(self) -> None:
        self._append([self._record(self.rng.choice((1, 40, 511, 700)), bytes)])

    def _op_append_nested(self) -> None:
        """A value that is itself whole records: a scan that loses step must not take them for real."""
        inner = Record.put(b"nested", b"not a record of this log").encode()
        self._append([self._record(0, lambda _: inner * self.rng.randrange(1, 8))])

    def _op_append_even(self) -> None:
        self._append([self._even_record()])

    def _op_batch_even(self) -> None:
        self._append([self._even_record() for _ in range(7)])

    def _op_append_ttl(self) -> None:
        record = self._record(self.rng.randrange(64), self.rng.randbytes)
        self._append([Record.put_with_ttl(record.key, record.value, self.rng.getrandbits(40))])

    def _op_append_packed(self) -> None:
        record = self._record(self.rng.choice((0, 30, 600)), lambda size: b"ab" * (size // 2))
        self._append([record.with_compression(self.rng.choice(("lz4", "zstd")))])

    def _op_delete_key(self) -> None:
        self._append([Record.delete(self._record(0, bytes).key)])

    def _op_batch(self) -> None:
        self._append([self._record(self.rng.randrange(100), self.rng.randbytes) for _ in range(3)])

    def _op_batch_large(self) -> None:
        size = self.config.max_segment_size // 5
        self._append([self._record(size - 40, self.rng.randbytes) for _ in range(4)])

    def _op_sync(self) -> None:
        try:
            self.wal.sync()
        except (WalIo, WalReadOnly):
            return
        self._note_lies()
        self.model.make_durable(self.wal.current_position())
        self._window_passed = False

    def _op_wait_tick(self) -> None:
        """`batch`: everything is durable a window after the oldest unsynced record, if the timer runs."""
        self.clock.advance(WINDOW_MS)
        self._window_passed = False
        try:
            self.wal.tick()
        except (WalIo, WalReadOnly):
            return
        self._note_lies()
        if self.config.fsync_policy.kind == "batch" and not self.latched:
            self.model.make_durable()

    def _op_wait_append(self) -> None:
        self.clock.advance(WINDOW_MS)
        self._window_passed = True
        self._op_append()

    def _op_delete_before(self) -> None:
        here = self.wal.current_position().segment_id
        first = self.wal.segments()[0].id
        cutoff = self.rng.randrange(first, here + 3)
        lowest = max(first, min(cutoff, here))
        self.model.may_go_below = max(self.model.may_go_below, lowest)
        struck = self._struck()
        failing = bool(self.disk._failing)
        count = self.wal.delete_segments_before(Position(cutoff, 0))
        troubled = self._struck() > struck or failing
        left = self.wal.segments()[0].id
        if left != lowest and not (troubled and left < lowest) and not self.latched:
            raise Violation(f"segment {left} is the first one left, the cutoff was {cutoff} [W-55]")
        if count != left - first:
            raise Violation(f"{count} segments deleted by its own account, {left - first} are gone [W-55]")
        if not troubled:
            self.model.gone_below = left

    def _op_close_reopen(self) -> None:
        latched = self.latched
        try:
            self.wal.close()
        except WalError:
            latched = True
        self._note_lies()
        if not latched:
            self.model.make_durable()
        self.start(self._fs)

    def _op_kill_reopen(self) -> None:
        """Kill the process: the page cache lives on, and so does everything that was acknowledged."""
        self._move_to(self.disk.kill_image(), killed=True)

    def _op_crash_reopen(self) -> None:
        """Power loss: any state the disk allows may be what the next boot finds."""
        self._move_to(self.disk.crash_image(self.rng), killed=False)

    def _op_failed_sync(self) -> None:
        """One of the next syncs fails in one of the ways kernels have; then go on until something notices."""
        self.disk.fail_sync(self.rng.choice(SYNC_MODES), k=self.rng.randrange(1, 3))
        self._op_append()
        self._op_sync()

    def _op_full_disk(self) -> None:
        """No space for a while: writes are refused, nothing is lost, and the log works again afterwards."""
        self._leave_space(self.rng.choice((0, 512, 1024)))
        self._op_batch_even()
        self._op_batch_even()
        self._op_append()
        self.disk.capacity = None
        struck = self._struck()
        before = len(self.model.entries)
        self._op_append_even()
        if len(self.model.entries) == before and not self.latched and self._struck() == struck:
            raise Violation("space is back and the log still refuses (07 §1.4)")

    def _may_refuse(self) -> bool:
        """Under `fail` and `always` a bad record before a good one is damage; an unsynced batch may look so [W-61]."""
        strict = self.config.corruption_policy == "fail" and self.config.fsync_policy.kind == "always"
        return self.model.lied or (strict and len(self.model.uncertain) > 1)

    def judge(self, image: SimFs, how: How, rng: random.Random) -> None:
        """Recover a survivor twice, go on writing on it now and then, and hold it against the model."""
        before = image.files()
        clock = ManualClock()
        config = self.config
        image.clear_faults()
        image.capacity = None
        try:
            wal, info = open_twice(config, clock, image)
        except WalCorrupt as error:
            if not self._may_refuse():
                raise Violation(f"refused after a mere {how}: {error}") from error
            if without_lock(image.files()) != without_lock(before):
                raise Violation("`fail` changed the disk before it refused [W-61]") from error
            config = lenient(config)
            wal, info = open_checked(config, clock=clock, fs=image)
        except WalError as error:
            raise Violation(f"cannot be opened after a {how}: {error!r}") from error
        end = wal.current_position()
        found = recovered(wal)
        model = self.model
        if how == "kill" and not (self._crashed or self.latched or model.lied):
            model = model.acknowledged()
        model.judge(found, info, end)
        _cut_bytes_are_kept(before, image, info)
        _report_is_true(before, found, info)
        again = image.kill_image() if rng.random() < 0.5 else image.crash_image(rng)
        _recovers_the_same(again, config, clock, found, extra=rng.random() < 0.3)


def _cut_bytes_are_kept(before: dict[str, bytes], image: SimFs, info: RecoveryInfo) -> None:
    """Every byte that recovery cut and that was not zero lies in a `.cut` copy, durably [W-61]."""
    after = image.files()
    durable = image.crash_image(0, "nothing").files()
    total = 0
    for path, data in before.items():
        if paths.parse_library_segment(path.rpartition("/")[2]) is None or path not in after:
            continue
        data, now = data.rstrip(b"\0"), after[path]
        if now.startswith(data) and not now[len(data) :].strip(b"\0"):
            continue
        copies = [content for name, content in durable.items() if name.startswith(f"{path}.cut")]
        for copy in copies:
            kept = data[: len(data) - len(copy)]
            if data.endswith(copy) and now.startswith(kept) and not now[len(kept) :].strip(b"\0"):
                total += len(copy)
                break
        else:
            raise Violation(f"bytes cut from {path} are nowhere to be found [W-61]")
    if total != info.bytes_truncated:
        raise Violation(f"{total} bytes were cut, {info.bytes_truncated} reported")


def _report_is_true(before: dict[str, bytes], found: list[tuple[Record, Position]], info: RecoveryInfo) -> None:
    """Every field of the report says what is so (07 §6)."""
    segments = [name for name in before if paths.parse_library_segment(name.rpartition("/")[2]) is not None]
    last = None
    if found:
        record, position = found[-1]
        last = Position(position.segment_id, position.offset + len(record.encode()))
    says = (info.valid_records, info.segments_scanned, info.last_valid_position, info.corruption_detected)
    is_so = (len(found), len(segments), last, bool(info.bytes_truncated or info.holes))
    if says != is_so:
        raise Violation(f"the report says {says}, what is so is {is_so}")


def _recovers_the_same(
    image: SimFs, config: WalConfig, clock: ManualClock, found: list[tuple[Record, Position]], *, extra: bool
) -> None:
    """A second recovery cuts nothing and finds the same; what is written then survives power loss too [W-62]."""
    wal, info = open_checked(lenient(config), clock=clock, fs=image)
    again = records_of(wal) if extra else recovered(wal)
    if again != found:
        raise Violation(f"the second recovery finds {len(again)} records, the first found {len(found)}")
    if info.bytes_truncated:
        raise Violation(f"the second recovery cuts {info.bytes_truncated} bytes")
    if not extra:
        return
    record = Record.put(b"after recovery", b"!")
    position = wal.append(record)
    wal.sync()
    forget(wal)
    wal, info = open_checked(lenient(config), clock=clock, fs=image.crash_image(0, "nothing"))
    last = recovered(wal)
    if last != [*found, (record, position)]:
        raise Violation(f"written and synced after recovery at {position}, gone after power loss")


def open_twice(config: WalConfig, clock: ManualClock, image: SimFs) -> tuple[Wal, RecoveryInfo]:
    """Open; a sync may still report a failure that the killed process caused, and then refusing once is right."""
    try:
        return open_checked(config, clock=clock, fs=image)
    except (WalIo, WriteFailed):
        return open_checked(config, clock=clock, fs=image)


def records_of(wal: Wal) -> list[tuple[Record, Position]]:
    """Everything in a log."""
    with wal.read_from(Position(wal.segments()[0].id, 0)) as reader:
        return list(reader)


def recovered(wal: Wal) -> list[tuple[Record, Position]]:
    """Everything in a log that is then let go."""
    try:
        return records_of(wal)
    finally:
        forget(wal)


def lenient(config: WalConfig) -> WalConfig:
    """The same configuration, going on after damage."""
    return msgspec.structs.replace(config, corruption_policy="truncate")


def without_lock(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a disk but the lock."""
    return {path: data for path, data in files.items() if not path.endswith(f"/{paths.LIBRARY_LOCK}")}


def forget(wal: Wal) -> None:
    """Let a log go as a killed process does: nothing is synced, finalized or closed in order."""
    wal._closed = True
