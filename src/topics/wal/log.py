"""`Wal`: the key-value write-ahead log (07 §5).

One lock serialises append and rotation; encoding happens before it, syncing behind it, and readers never
take it [W-80]. Under `always` a reader sees what is durable, under the other policies what was appended.

    append → encode → [lock: rotate if full, write] → sync as the policy says → position

Under `always` callers that arrive together share the write too: one of them writes and syncs for all. Each then looks
for itself whether a sync has covered its bytes, and returns only if one has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from topics import paths
from topics.clock import Clock, SystemClock
from topics.errors import RecordTooLarge, WalClosed, WalError, WalInUse, WalIo
from topics.fs import File, Fs, OsFs, close_quietly, ensure_dir, pread_all, process_id, pwrite_all
from topics.wal.core import SegmentedLog, SegmentInfo
from topics.wal.descriptors import Lease
from topics.wal.events import BUCKETS_MS, Meter, MeterObserver, NoopMeter
from topics.wal.naming import LibraryNaming
from topics.wal.policy import WalConfig
from topics.wal.reader import WalReader
from topics.wal.record import Record, RecordCodec, encode
from topics.wal.recovery import Position, RecoveryInfo, recover
from topics.wal.rounds import Sharing, rounds
from topics.wal.timer import EARLY, SyncTimer

log = logging.getLogger("topics.wal")

ZERO_AHEAD = 512 << 10
"""Under `always` reserved space is zeroed in steps of so many bytes: syncs that change no metadata are cheaper."""

_OPEN, _CLOSED = b"state=open\n", b"state=closed\n"


class _Unit:
    """One write, all or nothing: its bytes, and then where they went or why they went nowhere."""

    __slots__ = ("end", "error", "parts", "size", "start")

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        self.start: tuple[int, int] | None = None
        self.end: tuple[int, int] | None = None
        self.error: WalError | None = None

    def position(self) -> Position:
        """Where its first record is; raises what kept it from being written."""
        if self.error is not None:
            raise self.error
        assert self.start is not None, "a unit has a place or an error"
        return Position(*self.start)

    def positions(self) -> list[Position]:
        """Where each of its records is."""
        id, at = self.position()
        positions = []
        for part in self.parts:
            positions.append(Position(id, at))
            at += len(part)
        return positions


class _Writing(NamedTuple):
    """A write that was begun, and where the log ended before it."""

    units: Sequence[_Unit]
    size: int
    before: tuple[int, int]


class Wal:
    """A log of key-value records in one directory. Thread-safe."""

    def __init__(self, config: WalConfig, segments: SegmentedLog, lock: File, meter: Meter, *, timed: bool) -> None:
        """Use `Wal.open`; this takes a recovered and started core and the held lock."""
        labels = {"node": str(config.node_id)}
        self.config = config
        self._log = segments
        self._lock_file = lock
        self._clock = segments.clock
        self._lock = threading.Lock()
        self._delete_lock = threading.Lock()
        self._pid = process_id()
        self._closed = False
        self._followers_lock = threading.Lock()
        self._followers: frozenset[Callable[[], None]] = frozenset()
        self._hidden_from: tuple[int, int] | None = None
        self._records = meter.counter("wal_records_total", labels)
        self._bytes = meter.counter("wal_bytes_total", labels)
        self._gc_ms = meter.histogram("wal_gc_latency_ms", BUCKETS_MS, {})
        kind = config.fsync_policy.kind
        self._durable_reads = kind == "always"
        self._commit: Callable[[tuple[int, int]], None] | None = None
        if kind == "always":
            self._commit = segments.sync_to
        elif kind == "batch":
            self._commit = self._commit_in_window
        self._rounds: Sharing[Sequence[_Unit]] | None = rounds() if kind == "always" else None
        self._writing: _Writing | None = None
        self._window_ns = int(config.fsync_policy.window_ms * 1e6)
        self._synced_at_ns = -(1 << 62)
        self._oldest_ns: int | None = None
        self._timer = SyncTimer(self._tick_early, config.fsync_policy.window_ms) if timed and kind == "batch" else None
        self._timed = timed
        self._preparing: threading.Thread | None = None
        self._prepared_behind: int | None = None
        """The segment behind which preparing ahead was tried last."""

    @classmethod
    def open(
        cls,
        config: WalConfig | None = None,
        *,
        meter: Meter | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> tuple[Wal, RecoveryInfo]:
        """Open or create the log in `config.dir`, mending what a crash left; the log and what was found.

        With an injected clock nothing runs in the background: call `tick`.
        """
        config = (WalConfig() if config is None else config).with_plain_dir()
        config.check()
        return open_checked(config, meter=meter, clock=clock, fs=fs)

    def append(self, record: Record) -> Position:
        """Append one record; what is promised when this returns is the policy's business [W-52]."""
        self._open_or_raise()
        unit = self._unit([encode(record)])
        self._put((unit,))
        return unit.position()

    def append_batch(self, records: Sequence[Record]) -> list[Position]:
        """Append all records back to back with one write and one sync decision; all or nothing [W-51]."""
        self._open_or_raise()
        encoded = [encode(record) for record in records]
        if not encoded:
            return []
        unit = self._unit(encoded)
        self._put((unit,))
        return unit.positions()

    def append_units(self, units: Iterable[Sequence[Record]]) -> list[list[Position] | Exception]:
        """Append several batches, each all or nothing, under one sync decision; the outcome of each.

        It is how callers that arrive together, on an event loop for instance, share a sync.
        """
        outcomes: list[list[Position] | Exception] = []
        taken: dict[int, _Unit] = {}
        for n, records in enumerate(units):
            outcomes.append([])
            try:
                encoded = [encode(record) for record in records]
                if encoded:
                    taken[n] = self._unit(encoded)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a batch is its own caller's to hear
                outcomes[n] = error
        if taken:
            self._put(list(taken.values()))
        for n, unit in taken.items():
            outcomes[n] = unit.error or unit.positions()
        return outcomes

    def _unit(self, parts: list[bytes]) -> _Unit:
        unit = _Unit(parts)
        if unit.size > self._log.max_segment_size:
            raise RecordTooLarge(unit.size, self._log.max_segment_size)
        return unit

    def _put(self, units: Sequence[_Unit]) -> None:
        """Write the units and sync as the policy says; each then has a place, or the error its caller must hear."""
        end: tuple[int, int] | None = None
        count = size = 0
        rounds = self._rounds
        try:
            if rounds is None:
                self._write_units(units)
            else:
                # Together with those of other callers [W-52].
                rounds.share(units, self._write_and_sync)
                last = units[-1]
                while last.end is None and last.error is None:
                    # Whoever did it for all was interrupted before he came to it, or before he could say so.
                    if left := self._unwritten(units):
                        rounds.share(left, self._write_and_sync)
            for unit in units:
                if unit.end is not None:
                    end = unit.end
                    count += len(unit.parts)
                    size += unit.size
            if end is None:
                return
            if self._commit is not None:
                # Whoever synced for all, each caller looks for itself whether its bytes are covered.
                self._commit(end)
        except WalError as error:
            self._fail_unsynced(units, error)
            return
        self._records.inc(count)
        self._bytes.inc(size)
        if self._followers:
            self._wake()

    def _write_and_sync(self, work: Sequence[Sequence[_Unit]]) -> None:
        units = work[0] if len(work) == 1 else [unit for units in work for unit in units]
        self._write_units(units)
        for unit in reversed(units):
            if unit.end is not None:
                self._log.sync_to(unit.end)
                break

    def _unwritten(self, units: Sequence[_Unit]) -> list[_Unit]:
        """Those of one's own that are not in the log; nobody else writes them, so they may be written again."""
        with self._lock:
            self._settle()
            return [unit for unit in units if unit.end is None and unit.error is None]

    def _write_units(self, units: Sequence[_Unit]) -> None:
        """Write the units in order: with one write all that go into one segment."""
        with self._lock:
            if self._writing is not None:
                self._settle()
            size = sum([unit.size for unit in units])
            if self._fits(size):
                self._write(units, size)
                return
            together: list[_Unit] = []
            size = 0
            for unit in units:
                if together and not self._fits(size + unit.size):
                    self._write(together, size)
                    together, size = [], 0
                together.append(unit)
                size += unit.size
            self._write(together, size)

    def _fits(self, size: int) -> bool:
        """Whether one write may take so much; a log that takes no more writes says so to each unit by itself."""
        try:
            return self._log.fits(size)
        except WalError:
            return False

    def _write(self, units: Sequence[_Unit], size: int) -> None:
        """Write units back to back, rotating first when they do not fit [W-13]."""
        segments = self._log
        try:
            if not segments.fits(size):
                segments.rotate()
            self._writing = _Writing(units, size, segments.position())
            id, at = segments.write(
                units[0].parts if len(units) == 1 else [part for unit in units for part in unit.parts]
            )
        except WalError as error:
            self._writing = None
            self._write_failed(units, error)
            return
        for unit in units:
            unit.start = id, at
            at += unit.size
            unit.end = id, at
        self._writing = None
        if self.config.prepare_ahead and at > segments.max_segment_size // 2:
            self._prepare_ahead(id)

    def _settle(self) -> None:
        """Say where units are whose writer was interrupted before it could; under the lock.

        They are in the log if it ends right behind them: nobody writes before this was asked. A closed log ends where
        it was synced.
        """
        writing = self._writing
        if writing is None:
            return
        id, at = writing.before
        if self._log.position() == (id, at + writing.size):
            for unit in writing.units:
                unit.start = id, at
                at += unit.size
                unit.end = id, at
        self._writing = None

    def _write_failed(self, units: Sequence[_Unit], error: WalError) -> None:
        """What failed for all may work for some: nobody's append fails for the size of another's."""
        if len(units) == 1:
            units[0].error = error
            return
        for unit in units:
            self._write((unit,), unit.size)

    def _prepare_ahead(self, id: int) -> None:
        """Have the segment behind `id` ready before rotation needs it: tried once, for rotation reports a failure."""
        if id == self._prepared_behind or self._log.has_ready():
            return
        if self._preparing is not None and self._preparing.is_alive():
            return
        self._prepared_behind = id
        if not self._timed:
            self._prepare()
            return
        self._preparing = threading.Thread(target=self._prepare, name="topics-wal-prepare", daemon=True)
        try:
            self._preparing.start()
        except RuntimeError as error:
            log.warning("no thread to prepare the next segment ahead: %s", error)

    def _prepare(self) -> None:
        try:
            self._log.prepare_next()
        except WalClosed:
            return
        except WalError as error:
            log.warning("preparing the next segment ahead failed: %s", error)

    def _commit_in_window(self, end: tuple[int, int]) -> None:
        now = self._clock.monotonic_ns()
        if now - self._synced_at_ns >= self._window_ns:
            if self._timer is not None:
                self._timer.start()
            self._sync_window()
        elif self._oldest_ns is None and not self._wait_since(now):
            self._sync_window()

    def _wait_since(self, oldest_ns: int) -> bool:
        """Have the timer sync what has waited since then; `False` if it cannot be started."""
        self._oldest_ns = oldest_ns
        armed = False
        try:
            armed = self._timer is None or self._timer.arm()
        finally:
            if not armed:
                self._oldest_ns = None  # whoever comes next arms it
        return armed

    def _sync_window(self, *, checked: bool = False) -> None:
        """Sync what was written so far; `checked` raises if the log is being closed, or takes no more writes."""
        # Cleared before the end is looked at: whoever writes later sets it again.
        oldest, self._oldest_ns = self._oldest_ns, None
        try:
            self._synced_at_ns = self._clock.monotonic_ns()
            end = self._log.position()
            if checked:
                self.flush()  # behind it: a log that is being closed ends where it was synced
            self._log.sync_to(end)
        except WalError:
            raise
        except BaseException:
            # By a signal, perhaps before anything was synced: what others have written still waits.
            if oldest is not None:
                self._wait_since(oldest)
            raise
        self._synced_at_ns = self._clock.monotonic_ns()

    def tick(self) -> None:
        """Sync under `batch` what has waited for a window; the timer's work, for injected clocks [W-82]."""
        self._sync_waiting(self._window_ns)

    def _tick_early(self) -> float:
        """What the timer calls: before the window has passed, so that no call has to sync. When to come back [s]."""
        return self._sync_waiting(int(EARLY * self._window_ns)) / 1e9

    def _sync_waiting(self, longest_ns: int) -> int:
        """Sync what has waited for so long; how much longer the rest may, 0 if nothing waits."""
        self._open_or_raise()
        left_ns = self._left_ns(longest_ns)
        if left_ns is not None and left_ns <= 0:
            self._sync_window()
            left_ns = self._left_ns(longest_ns)
        return 0 if left_ns is None else max(left_ns, 1)

    def _left_ns(self, longest_ns: int) -> int | None:
        oldest = self._oldest_ns
        return None if oldest is None else oldest + longest_ns - self._clock.monotonic_ns()

    def sync(self) -> None:
        """Return when everything appended before the call is durable [W-53]."""
        self.flush()
        self._sync_window(checked=True)

    def flush(self) -> None:
        """Appended bytes are with the operating system already; raise if the log takes no more writes."""
        self._open_or_raise()
        self._log.check()

    def current_position(self) -> Position:
        """Where the next record goes."""
        self._open_or_raise()
        return Position(*self._log.position())

    def segments(self) -> list[SegmentInfo]:
        """The segments with their sizes, oldest first."""
        self._open_or_raise()
        return self._log.segments()

    def read_from(self, position: Position, *, follow: bool = False) -> WalReader:
        """Read from a record boundary on, across segments, to the end; `follow` waits for more [W-54]."""
        self._open_or_raise()
        return WalReader(self, Position(*position), follow=follow, read_buffer=self.config.read_buffer)

    def delete_segments_before(self, position: Position) -> int:
        """Remove whole segments before the one of `position`, oldest first; how many went [W-55]."""
        start = self._clock.monotonic_ns()
        self._open_or_raise()
        with self._delete_lock:
            self._open_or_raise()
            gone = self._log.delete_before(min(position[0], self._log.position()[0]))
        self._gc_ms.observe((self._clock.monotonic_ns() - start) / 1e6)
        return len(gone)

    def close(self) -> None:
        """Sync, finalize, release the lock; idempotent [W-56].

        In a forked child it only lets go: the files belong to the process that opened them.
        """
        if self._pid != process_id():
            self._closed = True
            return
        if self._timer is not None:
            self._timer.stop()
        with self._lock, self._delete_lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._log.close():
                    write_state(self._lock_file, _CLOSED)
            except OSError as error:
                raise WalIo(error, "closing") from error
            finally:
                close_quietly(self._lock_file)
                self._wake()

    def readable_end(self, id: int) -> int | None:
        """Where readers stop in a segment: its logical end, or what is durable under `always`."""
        end = self._log.end_of(id)
        if end is None or (self._hidden_from is None and not self._durable_reads):
            return end
        for limit in (self._log.synced() if self._durable_reads else None, self._hidden_from):
            if limit is not None and limit < (id, end):
                end = limit[1] if limit[0] == id else 0
        return end

    def next_segment(self, id: int) -> int | None:
        """The segment behind `id`, or `None`."""
        return self._log.next_id(id)

    def acquire(self, id: int) -> Lease:
        """A descriptor of a segment, for a reader."""
        return self._log.acquire(id)

    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` after every append and at close."""
        with self._followers_lock:
            self._followers |= {wake}

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._followers_lock:
            self._followers -= {wake}

    def _wake(self) -> None:
        for wake in self._followers:
            wake()

    def _fail_unsynced(self, units: Sequence[_Unit], error: WalError) -> None:
        """What a sync has not covered is answered with its error, and not in the log as this process tells [W-70]."""
        with self._lock:
            for unit in units:
                if unit.start is not None and unit.end is not None and self._log.synced() < unit.end:
                    unit.error = error
                    self._hidden_from = min(unit.start, self._hidden_from or unit.start)

    def _open_or_raise(self) -> None:
        if self._closed:
            raise WalClosed(f"the log in {self.config.dir} is closed")
        if self._pid != process_id():
            raise WalClosed(f"the log in {self.config.dir} was opened by the process that forked this one")

    def __enter__(self) -> Wal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            try:
                self.close()
            except WalError as error:
                log.error("closing a forgotten log failed: %s", error)


def open_checked(
    config: WalConfig, *, meter: Meter | None = None, clock: Clock | None = None, fs: Fs | None = None
) -> tuple[Wal, RecoveryInfo]:
    """`Wal.open` behind its check; the core takes any segment size, which is how tests rotate often."""
    fs = OsFs() if fs is None else fs
    meter = NoopMeter() if meter is None else meter
    always = config.fsync_policy.kind == "always"
    segments = SegmentedLog(
        fs,
        config.dir,
        LibraryNaming(),
        RecordCodec(strict=always and config.corruption_policy == "fail"),
        max_segment_size=config.max_segment_size,
        clock=SystemClock() if clock is None else clock,
        observer=MeterObserver(meter, config.node_id),
        preallocate=config.preallocate,
        fd_cache_size=config.fd_cache_size,
        zero_ahead=ZERO_AHEAD if always else 0,
    )
    try:
        lock = _take_lock(fs, config.dir)
        try:
            info = _recover_and_start(segments, lock, config)
        except BaseException:
            segments.descriptors.clear()
            close_quietly(lock)
            raise
    except OSError as error:
        raise WalIo(error, f"opening {config.dir}") from error
    return Wal(config, segments, lock, meter, timed=clock is None), info


def _recover_and_start(segments: SegmentedLog, lock: File, config: WalConfig) -> RecoveryInfo:
    clean = pread_all(lock, len(_CLOSED) + 1, 0) == _CLOSED
    info = recover(segments, config.corruption_policy)
    write_state(lock, _OPEN)
    segments.start(resume=True, rewrite=not clean)
    return info


def _take_lock(fs: Fs, dir: str) -> File:
    if not fs.exists(dir):
        ensure_dir(fs, dir)
    try:
        lock = fs.lock(f"{dir}/{paths.LIBRARY_LOCK}")
    except BlockingIOError as error:
        raise WalInUse(f"{dir} is open in another process, or in another object of this one") from error
    try:
        ensure_dir(fs, dir)  # only now: whoever is refused has synced nothing
    except BaseException:
        close_quietly(lock)
        raise
    return lock


def write_state(lock: File, state: bytes) -> None:
    """Note in the lock file whether the log was closed in order.

    Only a process of the same boot can find pages that a failed sync marked clean, and it finds this note
    in the same page cache; so a note that a machine crash takes away is not missed.
    """
    pwrite_all(lock, state, 0)
    lock.truncate(len(state))
    lock.fsync()
