"""One shard of the WAL: group commit (06 §6, design HOTPATH).

    stage   submissions are framed into one buffer; the first of a tick schedules a flush
    flush   rotate if needed, one pwrite of the buffer, finish what needs no sync
    sync    if a durable submission waits or bytes have waited long enough, and none runs: aside, fdatasync;
            under pressure it waits for company first [S-75]
    synced  finish what it covers, then gather: the next one waits while each pass brings clients just answered

All state belongs to the owner; helpers run `fdatasync`, rotation and preparation, and know no rule [S-72]. On a slow
volume the pwrite goes aside too, one at a time; what arrives meanwhile gathers. A submission is finished exactly once,
in log order within its kind: written (not durable) or synced (durable), or failed.

What is due by the clock is done by `tick`; `next_due_ns` tells a timer how long it may sleep.

    ok ──sync failed, or a write that could not be taken back──▶ read_only   for the rest of the run [S-78]
    ok ──no space──▶ full ──space is back, probed every second──▶ ok         control frames still fit [S-80]
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import msgspec

from topics.clock import Clock
from topics.codec import control, frame
from topics.codec.frame import FrameCodec, OpenContext
from topics.errors import (
    CommitFailed,
    ShardReadOnly,
    StorageFull,
    TopicsError,
    WalClosed,
    WalError,
    WalFull,
    WalReadOnly,
    WriteFailed,
)
from topics.fs import Fs
from topics.storage.group import Group, write_current
from topics.storage.owner import Owner
from topics.wal.core import SegmentedLog, SyncUnderWay
from topics.wal.events import Meter, MeterObserver, NoopMeter
from topics.wal.naming import ServerNaming

log = logging.getLogger("topics.storage")

State = Literal["ok", "full", "read_only"]

SUBMISSIONS_MAX = 4096
PENDING_BYTES_MAX = 64 << 20
ASIDE_BYTES = 4 << 20
"""A larger batch takes the owner more than its time even on a fast volume."""
FLUSH_BYTES = 8 << 20
FLUSH_FRAMES = 16384
SYNC_MARK_AFTER_NS = 20_000_000
PROBE_EVERY_NS = 1_000_000_000
SPACE_EVERY_NS = 1_000_000_000
SPARE_BYTES, SPARE_SHARE = 64 << 10, 16
"""So many bytes of a file beside those for marks, and at most this part of it, are left to control frames."""
MARK_BYTES = 16 << 10
"""What the marks of a checkpoint take, unless the engine knows better."""
BACKGROUND_MIN_NS = 10_000_000
BACKGROUND_MAX_NS = 1_000_000_000
SLOW_PWRITE_NS = 1_000_000
FAST_PWRITE_NS = 500_000
ZERO_AHEAD = 256 << 10
"""Space ahead of durable writes is zeroed in steps of so many bytes, in the same write."""
GATHER_PASSES = 3
"""A pass takes some ten microseconds, a sync a hundred at least; more of them gain nothing at 64 writers."""
WINDOW_ABOVE = 0.4
GC_MAX_NS = 10_000_000
SYNC_BOUNDS_US: Final = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
"""Upper bounds of the buckets that syncs are counted in by how long they took; one more for the rest (06 §21)."""


class Lsn(NamedTuple):
    """Where a submission lies in its group."""

    file_no: int
    offset: int


Frames = bytes | list[bytes]
"""Of one submission: in one piece, or in several that are never put together, each of whole frames."""

Done = Callable[[Lsn | TopicsError], None]
"""Called once, on the owner: the place of the submission when its commit condition holds, or why it failed."""


class Submission(msgspec.Struct, frozen=True):
    """One caller's atomic unit: a chain of frames [S-24]."""

    size: int
    frames: int
    durable: bool
    done: Done


class _Batch:
    """Submissions that go to the disk in one write; none for a sync mark. Its write fills in the rest."""

    __slots__ = ("at", "began_ns", "buffers", "place", "queue", "since_ns", "size", "spent_ns")

    def __init__(self, buffers: list[bytes | bytearray], queue: list[Submission], at: Lsn, since_ns: int) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers))
        self.queue = queue
        self.at = at
        """The end of the log when it was handed over: it lies there, or behind an open mark."""
        self.since_ns = since_ns
        """When the oldest of its submissions was accepted."""
        self.place = (0, 0)
        self.began_ns = 0
        self.spent_ns = 0


class _Waiting(NamedTuple):
    """A durable submission that is written and not synced."""

    end: tuple[int, int]
    lsn: Lsn
    since_ns: int
    submission: Submission


def frames_bytes(frames: Frames) -> int:
    """How long they are together."""
    return sum(map(len, frames)) if isinstance(frames, list) else len(frames)


def commit_slice_ns(pressure: float) -> int:
    """How long a sync waits for company at a pressure above `WINDOW_ABOVE` (08 L2)."""
    above = min(max((pressure - WINDOW_ABOVE) / 0.6, 0.0), 1.0)
    return round((0.5 + 9.5 * above) * 1e6)


def retry_after_ms(pressure: float) -> int:
    """When a client that was refused because of load may try again [D-51]."""
    return round(100 + 1900 * pressure)


class Counters:
    """What a shard counts for the metrics of 06 §21. Owner only, but for syncs: whoever did one counts it."""

    __slots__ = ("batches", "bytes_written", "frames", "queue_peak", "refused", "rotations", "sync_us", "syncs_within")

    def __init__(self) -> None:
        self.frames = self.batches = self.bytes_written = self.rotations = 0
        self.queue_peak = self.refused = 0
        self.syncs_within = [0] * (len(SYNC_BOUNDS_US) + 1)
        """Syncs by bucket, each in one."""
        self.sync_us = 0
        """Time spent in all of them."""

    @property
    def fsyncs(self) -> int:
        """Syncs of the log's files while they are written."""
        return sum(self.syncs_within)

    def note_sync(self, took_us: int) -> None:
        """Count one; at most one runs at a time [S-74]."""
        self.sync_us += took_us
        self.syncs_within[bisect_left(SYNC_BOUNDS_US, took_us)] += 1


class Shard:
    """Group commit over the files of one group. Owner thread only, but for what it sends aside."""

    def __init__(
        self,
        fs: Fs,
        group: Group,
        *,
        owner: Owner,
        clock: Clock,
        run: int,
        boot: str,
        shard: int,
        shards: int,
        file_bytes: int,
        init_zero: bool = True,
        first_file: int | None = None,
        max_submissions: int = SUBMISSIONS_MAX,
        max_pending_bytes: int = PENDING_BYTES_MAX,
        min_free_bytes: int = 0,
        meter: Meter | None = None,
    ) -> None:
        self.key = group.key
        self.state: State = "ok"
        self.on_due: Callable[[], None] = lambda: None
        """Told, on the owner, when unsynced bytes begin to wait: `next_due_ns` is nearer now."""
        self.on_finished: Callable[[], None] = lambda: None
        """Told, on the owner, when all submissions that one write or sync finishes have been."""
        self.on_latched: Callable[[], None] = lambda: None
        """Told once, on the owner, when the shard takes no more writes for the rest of the run."""
        self.reason = ""
        self.counters = Counters()
        self.pressure = 0.0
        """The governor's, set by whoever owns the shard [S-75]."""
        self.mark_bytes = MARK_BYTES
        """What the marks of a checkpoint may take, set by whoever owns the shard."""
        self.writes_aside = False
        """The volume is slow: writes are no work for the owner."""
        self._fs = fs
        self._dir = group.dir
        self._owner = owner
        self._clock = clock
        self._min_free_bytes = min_free_bytes
        self._max_submissions = max_submissions
        self._max_pending_bytes = max_pending_bytes
        self._lane = f"wal-{shard:02d}"
        self._first_file = max(group.last_number + 1, first_file or 1)
        self._open_mark = (run, boot, shard, shards)
        self._observer = _Observer(self, meter or NoopMeter(), shard)
        self.log = SegmentedLog(
            fs,
            group.dir,
            ServerNaming(),
            FrameCodec(),
            max_segment_size=file_bytes,
            clock=clock,
            observer=self._observer,
            fd_cache_size=64,
            zero_ahead=ZERO_AHEAD if init_zero else 0,
            announce=lambda number: write_current(fs, group.dir, number),
        )
        self.log.adopt({file.number: file.scan.end for file in group.files}, prepared=group.prepared)
        self._started = False
        self._rotation_wanted = False
        self._small: list[bytes | bytearray] = []
        """Submissions that are put together to be written."""
        self._before: list[bytes | bytearray] = []
        """What goes in front of them: pieces of large submissions, which are not copied, and what they follow."""
        self._queue: list[Submission] = []
        self._queued_bytes = self._queued_frames = 0
        self._queued_since_ns = 0
        self._in_flight: _Batch | None = None
        """What is being written aside."""
        self._written: deque[tuple[Lsn, Submission]] = deque()
        """Written, needing no sync, and about to be finished."""
        self._waiting: deque[_Waiting] = deque()
        self._pending_bytes = 0
        self._open = 0
        """Submissions accepted and not finished."""
        self._flush_scheduled = False
        self._busy: str | None = None
        """What runs aside and keeps the buffer from being written: opening, rotating, cutting."""
        self._preparing = False
        self._syncing = False
        self._sync_target = (0, 0)
        self._passes_left = 0
        """For so many passes at most the next sync waits for those just answered."""
        self._gathered = 0
        """What it would have covered at the end of the last one."""
        self._dirty_since_ns: int | None = None
        self._synced_at_ns = 0
        self._sync_ewma_ns = 0
        self._pwrite_ewma_ns = 0
        self._window_ns: int | None = None
        """Since when a sync that could begin waits for company."""
        self._probed_at_ns = 0
        self._looking = False
        self._looked_at_ns = clock.monotonic_ns()
        """When free space was last looked at by the clock."""
        self._mark_end = (0, 0)
        """The end of the last `sync` mark."""
        self._mark_tried = (0, 0)
        """Where the last one was begun; one that failed is tried again when the shard is well again."""
        self._closing = False
        self._finishing: Lsn | None = None
        """A completion is being called: what it submits is written behind it and its like, not among them."""
        self._starts: dict[int, array[int]] = {}
        """Where the batches of each file of this run begin, ascending."""

    # -- taking submissions ------------------------------------------------------------------------------------------

    def submit(
        self, frames: Frames, count: int, done: Done, *, durable: bool, control: bool = False, mark: bool = False
    ) -> None:
        """Accept a submission whole, or raise and accept nothing of it [S-71].

        A `mark` is a control frame that may take the room which others leave to it: it is what gives space back [S-80].
        """
        size = len(frames) if isinstance(frames, bytes) else frames_bytes(frames)
        self._admit(size, control, mark)
        if not self._queue:
            self._queued_since_ns = self._clock.monotonic_ns()
        if isinstance(frames, bytes):
            self._small.append(frames)
        else:
            self._close_small()
            self._before += frames
        self._queue.append(Submission(size, count, durable, done))
        self._queued_bytes += size
        self._queued_frames += count
        self._pending_bytes += size
        self._open += 1
        if self._open > self.counters.queue_peak:
            self.counters.queue_peak = self._open
        if self._finishing is None and (self._queued_bytes >= FLUSH_BYTES or self._queued_frames >= FLUSH_FRAMES):
            try:
                self.flush()
            except Exception:  # it is accepted: its outcome is told by `done` alone
                log.exception("shard %r: writing what has gathered", self.key)
        else:
            self._flush_soon()

    def check(self, size: int) -> None:
        """Raise what a submission of records of this size would be refused with."""
        self._admit(size, control=False)

    @property
    def is_open(self) -> bool:
        """Whether this run has a file here."""
        return self._started

    @property
    def depth(self) -> int:
        """Submissions accepted and not finished."""
        return self._open

    def _admit(self, size: int, control: bool, mark: bool = False) -> None:
        if self._closing:
            raise WalClosed(f"shard {self.key!r} is closing")
        if self.state == "read_only":
            raise ShardReadOnly(f"shard {self.key!r} takes no more writes in this run: {self.reason}")
        if self.state == "full" and not (control and self.has_room(size + (0 if mark else self.mark_room))):
            raise StorageFull(f"shard {self.key!r} has no space: {self.reason}")
        crowded = self._open >= self._max_submissions or self._pending_bytes + size > self._max_pending_bytes
        if crowded and self.is_crowded(size):
            self.counters.refused += 1
            raise WalFull(f"shard {self.key!r} has {self._open} submissions waiting", retry_after_ms(self.pressure))

    def is_crowded(self, size: int) -> bool:
        """Whether the queue has no room for a submission of this size [S-71]."""
        crowded = self._open >= self._max_submissions or self._pending_bytes + size > self._max_pending_bytes
        return crowded and self._open > 0

    @property
    def fullness(self) -> float:
        """Share of the queue that is used (08 §5)."""
        return max(self._open / self._max_submissions, self._pending_bytes / self._max_pending_bytes)

    def has_room(self, size: int) -> bool:
        """Whether the active file holds `size` bytes of control frames behind everything accepted."""
        in_flight = 0 if self._in_flight is None else self._in_flight.size
        return self._started and self._fits(in_flight + self._queued_bytes + size)

    def _fits(self, size: int) -> bool:
        try:
            return self.log.fits(size)
        except WalError:
            # A helper has latched the log and not reported it yet.
            return False

    def _spare(self) -> int:
        """What records leave free of a file while the next one can be made: room for deletes on a full disk [S-80]."""
        most = self.log.max_segment_size // SPARE_SHARE
        return 0 if self.state == "full" else min(SPARE_BYTES + self.mark_bytes, most)

    @property
    def mark_room(self) -> int:
        """What deletes leave free of it: room for the marks behind which space is given back."""
        return min(self.mark_bytes, self.log.max_segment_size // SPARE_SHARE // 2)

    def _flush_soon(self) -> None:
        """In the next round, behind everything that it brings: one write is for all of it [P-4]."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._owner.soon(partial(self._owner.last, self._end_round))

    def _end_round(self) -> None:
        self._flush_scheduled = False
        self.flush()
        if self._passes_left:
            self._gather()

    # -- places ------------------------------------------------------------------------------------------------------

    def start_before(self, file_no: int, offset: int) -> int:
        """The last known submission start at or below `offset` of a file; its beginning if none is known [S-192]."""
        starts = self._starts.get(file_no)
        at = bisect_right(starts, offset) if starts is not None else 0
        return starts[at - 1] if starts is not None and at else 0

    def forget_starts(self, below: int) -> None:
        """Files with a smaller number were deleted."""
        for number in [number for number in self._starts if number < below]:
            del self._starts[number]

    def oldest_open(self) -> Lsn | None:
        """Where the oldest submission lies that was accepted and is not finished; `None` if there is none.

        For one that is not written yet: the end of the log, which is where it will lie, or before it.
        """
        places = [] if self._finishing is None else [self._finishing]
        if self._written:
            places.append(self._written[0][0])
        if self._waiting:
            places.append(self._waiting[0].lsn)
        if self._in_flight is not None and self._in_flight.queue:
            places.append(self._in_flight.at)
        elif self._queue:
            places.append(self._end())
        return min(places, default=None)

    def is_synced(self, file_no: int, offset: int) -> bool:
        """Whether what was written at a place of this group is durable; recovery made all of earlier runs so [S-88]."""
        return file_no < self._first_file or (file_no, offset) < self.log.synced()

    def done_pos(self) -> Lsn:
        """Everything before it is finished [S-77]; what the frames of earlier runs say was applied by recovery."""
        return self.oldest_open() or self._end()

    def synced_pos(self) -> Lsn:
        """Everything of this run before it is durable; the files of earlier runs may be gone by now [S-89]."""
        return max(Lsn(*self.log.synced()), Lsn(self._first_file, 0))

    def _end(self) -> Lsn:
        return Lsn(*self.log.position()) if self._started else Lsn(self._first_file, 0)

    def _note_start(self, place: tuple[int, int]) -> None:
        starts = self._starts.get(place[0])
        if starts is None:
            starts = self._starts[place[0]] = array("Q")
        starts.append(place[1])

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what has gathered, unless a file is being opened or rotated, or a write is in flight."""
        if not self._queue or self._busy or self._in_flight is not None:
            return
        if self.state == "read_only" or self.log.failed is not None:
            return
        if not self._started:
            self._aside("opening", self._open_first)
        elif self.log.position()[1] and (self._rotation_wanted or not self._fits(self._queued_bytes + self._spare())):
            if not self._preparing:
                self._aside("rotating", self._rotate)
        else:
            self._write()

    def rotate_soon(self) -> None:
        """Begin a new file with the next submission, so that everything before it can be trimmed [S-85]."""
        self._rotation_wanted = self._started

    def _open_first(self) -> None:
        """On a helper: the run's first file [S-20, S-21]."""
        self._check_space()
        self.log.context = OpenContext(*self._open_mark, self._clock.now_ms())
        self.log.start(resume=False, next_id=self._first_file, size=self._queued_bytes + 4096)
        self._started = True

    def _rotate(self) -> None:
        """On a helper: the old file synced, the new one active, the old one finalized [S-85]."""
        self._check_space()
        self.log.context = OpenContext(*self._open_mark, self._clock.now_ms())
        # The open mark is written in front of the batch; a file of the batch's own size must hold both [S-87].
        self.log.rotate(self._queued_bytes + 4096)
        self._rotation_wanted = False
        self.counters.rotations += 1

    def _aside(self, what: str, work: Callable[[], None]) -> None:
        self._busy = what
        self._owner.aside(self._lane, work, self._back_from_aside)

    def _back_from_aside(self, error: BaseException | None) -> None:
        self._busy = None
        if error is not None or self.log.failed is not None:
            self._fail(error or WalError(self.log.failed))
        self._finish_synced()
        self.flush()
        self._sync_waiting()

    def _write(self) -> None:
        at, first = self._end(), self._before or self._small
        # Only one write is under way, so nothing comes between this look and the write, wherever that takes place.
        if at.offset and at == self.log.synced():
            flagged = bytearray(first[0])
            frame.set_synced_prefix(flagged)
            first[0] = flagged
        self._close_small()
        buffers = self._before
        self._put(_Batch(buffers, self._take_queue(), at, self._queued_since_ns))

    def _close_small(self) -> None:
        """Put small submissions together: they are one buffer from here on."""
        if self._small:
            self._before.append(self._small[0] if len(self._small) == 1 else b"".join(self._small))
            self._small = []

    def _take_queue(self) -> list[Submission]:
        queue, self._queue, self._small, self._before = self._queue, [], [], []
        self._queued_bytes = self._queued_frames = 0
        return queue

    def _put(self, batch: _Batch) -> None:
        """Write a batch here, or aside where that takes long."""
        if self.writes_aside or batch.size > ASIDE_BYTES:
            self._in_flight = batch
            self._owner.aside(self._lane, lambda: self._pwrite_or_cut(batch), self._back_from_write)
            return
        try:
            self._pwrite(batch)
        except OSError as error:
            # Bound now: the cut runs when this handler is long over.
            failed = error
            self._queue = batch.queue
            self._aside("cutting", lambda: self.log.take_back(failed))
        except WalError as error:
            self._queue = batch.queue
            self._fail(error)
        else:
            self._complete(batch)
            self._sync_waiting()

    def _pwrite(self, batch: _Batch) -> None:
        batch.began_ns = self._clock.monotonic_ns()
        ahead = any(submission.durable for submission in batch.queue)
        batch.place = self.log.write(batch.buffers, take_back=False, apart=len(batch.buffers) > 1, ahead=ahead)
        batch.spent_ns = self._clock.monotonic_ns() - batch.began_ns

    def _pwrite_or_cut(self, batch: _Batch) -> None:
        """On a helper: what a failed write left is cut before anything else can be written [S-79]."""
        try:
            self._pwrite(batch)
        except OSError as error:
            self.log.take_back(error)

    def _back_from_write(self, error: BaseException | None) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        if error is None and self.state != "read_only":
            self._complete(batch)
        else:
            # Of a log that was latched before, nothing was written; what was written behind a failed sync is unknown.
            self._queue[:0] = batch.queue
            self._fail(error or WalError(self.reason), batch=not isinstance(error, WalReadOnly))
        self.flush()
        self._sync_waiting()

    def _complete(self, batch: _Batch) -> None:
        """A batch is written: finish what needs no sync."""
        self._measure_pwrite(batch.spent_ns)
        self._note_start(batch.place)
        if not batch.queue:
            self._mark_end = self.log.position()
            return
        newly_dirty = self._dirty_since_ns is None
        if newly_dirty:
            self._dirty_since_ns = batch.began_ns
        self.counters.batches += 1
        self.counters.bytes_written += batch.size
        file_no, offset = batch.place
        frames = 0
        for submission in batch.queue:
            frames += submission.frames
            lsn = Lsn(file_no, offset)
            offset += submission.size
            if submission.durable:
                self._waiting.append(_Waiting((file_no, offset), lsn, batch.since_ns, submission))
            else:
                self._written.append((lsn, submission))
        self.counters.frames += frames
        self._observer.written(frames, batch.size)
        if newly_dirty and not self._syncing and (not self._waiting or self.pressure > WINDOW_ABOVE):
            # Otherwise a sync is about to begin anyway, or one runs, whose end tells what is due.
            self.on_due()
        if self._written:
            self._finish_all(self._take_written())
        self._prepare_ahead()

    def _take_written(self) -> Iterator[tuple[Lsn, Submission]]:
        while self._written:
            yield self._written.popleft()

    def _measure_pwrite(self, spent_ns: int) -> None:
        """Writes change threads only here, where none is in flight (06 §6.3)."""
        self._pwrite_ewma_ns = (7 * self._pwrite_ewma_ns + spent_ns) // 8
        if self._pwrite_ewma_ns > SLOW_PWRITE_NS:
            self.writes_aside = True
        elif self._pwrite_ewma_ns < FAST_PWRITE_NS:
            self.writes_aside = False

    def _prepare_ahead(self) -> None:
        """When the file is half full a helper makes the next one, under its final name [S-84]."""
        if self._preparing or self.log.failed is not None or self.log.has_ready():
            return
        if self._fits(self.log.max_segment_size // 2):
            return
        self._preparing = True
        self._owner.aside("wal-helper", self._prepare_next, self._prepared)

    def _prepare_next(self) -> None:
        """On a helper."""
        self._check_space()
        self.log.prepare_next()

    def _prepared(self, error: BaseException | None) -> None:
        self._preparing = False
        if error is not None and self.log.failed is not None:
            self._fail(error, batch=False)
            return
        if isinstance(error, _BelowBound) and self.state == "ok":
            self._fill_up(error)
        # That the file could not be made is not told here: rotation tries again and speaks up.
        self.flush()

    # -- syncing -----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Start a sync of everything written, unless one runs; it goes on with what gathers meanwhile [S-74]."""
        if self._syncing or self._busy or self.state == "read_only" or not self._started:
            return
        if self.log.synced() >= self.log.position():
            self._dirty_since_ns = self._window_ns = None
            self._finish_synced()
            return
        self._syncing = True
        self._dirty_since_ns = self._window_ns = None
        position = self._sync_target = self.log.position()
        sync = self.log.begin_sync() if self._owner.can_sync(self._lane) else None
        if sync is None:
            self._owner.aside(self._lane, lambda: self.log.sync_to(position), self._synced)
        else:
            self._owner.sync(self._lane, sync.descriptor, partial(self._end_sync, sync))

    def _end_sync(self, sync: SyncUnderWay, error: OSError | None) -> None:
        """The owner has synced a file by itself."""
        outcome: Exception | None = None
        try:
            self.log.end_sync(sync, error)
        except Exception as failed:  # noqa: BLE001 - an outcome like any other, and whoever waits for it is told
            outcome = failed
        self._synced(outcome)

    def when_synced(self, done: Done) -> None:
        """Call back when everything written by now is synced, which is asked for; or when it cannot be [S-77]."""
        if not self._started:
            done(self._end())
            return
        if self.state == "read_only":
            done(ShardReadOnly(f"shard {self.key!r} syncs nothing any more: {self.reason}"))
            return
        now = self._clock.monotonic_ns()
        self._open += 1
        self._waiting.append(_Waiting(self.log.position(), self._end(), now, Submission(0, 0, True, done)))
        self._owner.soon(self._sync_waiting)

    def _sync_waiting(self) -> None:
        """Start the sync that durable submissions wait for; under pressure it waits for company first [S-75]."""
        if not self._waiting or self._syncing or self._busy or self._passes_left:
            return
        if self.pressure > WINDOW_ABOVE:
            now = self._clock.monotonic_ns()
            if self._window_ns is None:
                self._window_ns = now
                self.on_due()
            if now < self._window_end_ns():
                return
        self.sync()

    def _window_end_ns(self) -> int:
        assert self._window_ns is not None
        spare = commit_slice_ns(self.pressure) if self.pressure > WINDOW_ABOVE else 0
        return min(self._window_ns + spare, self._waiting[0].since_ns + GC_MAX_NS)

    def _synced(self, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            self._fail(error, batch=False)
            return
        assert self.log.synced() >= self._sync_target, "a sync that covers nothing would be asked for again and again"
        if self.log.synced() >= self.log.position():
            # It covered what was written after it was asked for.
            self._dirty_since_ns = None
        shared = self._finish_synced() > 1
        if self._queue or self._waiting or shared:
            self._flush_soon()
            # Several who were answered at once come back one after another: the first pass is never the last.
            self._passes_left, self._gathered = GATHER_PASSES, -1 if shared else self._unsynced
        if not self._waiting and self._dirty_since_ns is not None:
            # Written while it ran: then nothing was due, so no timer knows of it.
            self.on_due()

    @property
    def _unsynced(self) -> int:
        """Submissions that the next sync would finish, and those to be written before it."""
        return len(self._waiting) + len(self._queue)

    def _gather(self) -> None:
        """In the pass behind an answer: who was answered may be back, and the next sync is to cover what he writes.

        It waits for another pass while each brings somebody.
        """
        self._passes_left -= 1
        if self._passes_left and self._unsynced > self._gathered:
            self._gathered = self._unsynced
            self._flush_soon()
        else:
            self._passes_left = 0
            self._sync_waiting()

    def _finish_synced(self) -> int:
        """Finish what is durable now; how many frames it is."""
        synced = self.log.synced()
        frames = sum(one.submission.frames for one in takewhile(lambda one: one.end <= synced, self._waiting))
        if frames or (self._waiting and self._waiting[0].end <= synced):
            self._finish_all(self._take_synced(synced))
        return frames

    def _take_synced(self, synced: tuple[int, int]) -> Iterator[tuple[Lsn, Submission]]:
        while self._waiting and self._waiting[0].end <= synced:
            # What is left, or comes, has a window of its own.
            self._window_ns = None
            waiting = self._waiting.popleft()
            yield waiting.lsn, waiting.submission

    def tick(self) -> None:
        """Do what is due by the clock."""
        now = self._clock.monotonic_ns()
        for due_ns, act in list(self._agenda()):
            if now >= due_ns:
                act()

    def next_due_ns(self) -> int | None:
        """The monotonic instant from which on `tick` has something to do; `None`: nothing, as things stand.

        Every call of the shard and every report of a helper may change it.
        """
        return min((due_ns for due_ns, _ in self._agenda()), default=None)

    def _agenda(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """What the clock brings, and when; never what could not be done at its time, or a timer would spin on it."""
        if self._closing or self.state == "read_only" or self.log.failed is not None:
            return
        if self.state == "full" and not (self._busy or self._preparing):
            yield self._probed_at_ns + PROBE_EVERY_NS, self.probe
        if self.state == "ok" and self._min_free_bytes and not self._looking:
            yield self._looked_at_ns + SPACE_EVERY_NS, self._look_at_space
        if not self._started or self._busy or self._syncing:
            return
        if self._window_ns is not None:
            yield self._window_end_ns(), self.sync
        if self._dirty_since_ns is not None:
            bound = min(max(BACKGROUND_MIN_NS, 4 * self._sync_ewma_ns), BACKGROUND_MAX_NS)
            yield self._dirty_since_ns + bound, self.sync
        elif self._wants_mark():
            yield self._synced_at_ns + SYNC_MARK_AFTER_NS, self._mark_synced

    def _wants_mark(self) -> bool:
        position = self.log.position()
        if not position[1] or position in (self._mark_end, self._mark_tried) or self.log.synced() < position:
            return False
        return not self._queue and self._in_flight is None and self._fits(_SYNC_MARK_BYTES)

    def _mark_synced(self) -> None:
        """Say that everything before is synced, so that damage there is told apart from a torn tail [S-25]."""
        if self._wants_mark():
            self._mark_tried = self.log.position()
            mark = frame.encode_control(control.SyncMark(), 0, self._clock.now_ms(), synced_prefix=True)
            self._put(_Batch([mark], [], self._end(), 0))

    # -- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, *, batch: bool = True) -> None:
        """Fail what is under way and what is queued; decide whether the shard is full or latched [S-78 … S-81].

        `batch` says that the queue is what failed, not what stood behind it.
        """
        if isinstance(error, WriteFailed) and self.log.failed is None and self.state != "read_only":
            # No space, or the next file could not be made for another reason; what is active keeps its room.
            self._fill_up(error)
        else:
            self._latch(str(error))
        queue = self._take_queue()
        waiting: list[Submission] = []
        if self.state == "read_only":
            waiting = [waiting.submission for waiting in self._waiting]
            self._waiting.clear()
            self._window_ns = None
        for submission in waiting:
            self._finish(submission, self._refusal(error, CommitFailed))
        for submission in queue:
            self._finish(submission, self._refusal(error, CommitFailed if batch else ShardReadOnly))
        if waiting or queue:
            self._tell_finished()

    def _refusal(self, cause: BaseException, kind: type[TopicsError]) -> TopicsError:
        error = kind(f"shard {self.key!r}: {cause}")
        error.__cause__ = cause
        return error

    def _finish_all(self, finished: Iterator[tuple[Lsn, Submission]]) -> None:
        """Finish submissions in turn; whoever owns the shard then publishes them together."""
        nested = self._finishing
        try:
            for lsn, submission in finished:
                # Until all of it is published, the first is the oldest that is open.
                if self._finishing is None:
                    self._finishing = lsn
                self._pending_bytes -= submission.size
                self._open -= 1
                try:
                    submission.done(lsn)
                except Exception:  # it is nobody else's: the others are told, and what is to follow follows
                    log.exception("shard %r: telling that something is written", self.key)
            if nested is None:
                self._tell_finished()
        finally:
            self._finishing = nested

    def _tell_finished(self) -> None:
        try:
            self.on_finished()
        except Exception:  # what is to be written or synced next does not wait for it
            log.exception("shard %r: going on with what is written", self.key)

    def _finish(self, submission: Submission, outcome: Lsn | TopicsError) -> None:
        self._pending_bytes -= submission.size
        self._open -= 1
        nested = self._finishing
        self._finishing = nested or (outcome if isinstance(outcome, Lsn) else self._end())
        try:
            submission.done(outcome)
        except Exception:  # it is nobody else's
            log.exception("shard %r: telling what became of something", self.key)
        finally:
            self._finishing = nested

    # -- space -------------------------------------------------------------------------------------------------------

    def _fill_up(self, error: BaseException) -> None:
        self.state = "full"
        self.reason = str(error)
        self._probed_at_ns = self._clock.monotonic_ns()

    def _check_space(self) -> None:
        """On a helper: raise if free space is below the bound [S-80]; a volume that cannot be asked is no news."""
        if not self._min_free_bytes:
            return
        try:
            self._require_free(self._min_free_bytes)
        except OSError as error:
            log.warning("free space of %s is not known: %s", self._dir, error)

    def _require_free(self, least: int) -> None:
        free = self._fs.free_bytes(self._dir)
        if free < least:
            raise _BelowBound(
                f"{free} bytes are free on the volume of {self._dir}, at least {least} must be", full=True
            )

    def _look_at_space(self) -> None:
        self._looking = True
        self._looked_at_ns = self._clock.monotonic_ns()
        self._owner.aside("wal-helper", self._check_space, self._looked)

    def _looked(self, error: BaseException | None) -> None:
        self._looking = False
        if isinstance(error, _BelowBound) and self.state == "ok":
            # What was accepted is written if it fits: that takes no space.
            self._fill_up(error)

    def probe(self) -> None:
        """See whether the next file can be made now; then the shard takes writes again [S-80]."""
        if self.state != "full" or self._busy or self._preparing:
            return
        self._preparing = True
        self._probed_at_ns = self._clock.monotonic_ns()
        self._owner.aside("wal-helper", self._try_space, self._probed)

    def _try_space(self) -> None:
        """On a helper: the bound holds with the next file allocated, and it can be allocated."""
        if self._min_free_bytes:
            spare = 0 if self.log.has_ready() else self.log.max_segment_size
            self._require_free(self._min_free_bytes + spare)
        self.log.prepare_next(id=None if self._started else self._first_file)

    def _probed(self, error: BaseException | None) -> None:
        self._preparing = False
        if error is None and self.log.failed is None:
            self.state = "ok"
            self.reason = ""
            self._mark_tried = (0, 0)
            self.flush()
        elif self.log.failed is not None:
            self._fail(error or WalError(self.log.failed), batch=False)
        else:
            self.reason = str(error)

    # -- ending ------------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Sync, finalize, unlink the prepared file [S-88]; whether everything written is durable.

        The caller has flushed and waited for what runs aside; whatever is still here fails, so that no submission is
        left without an answer [S-73].
        """
        assert not self._busy
        assert self._in_flight is None
        self._closing = True
        left = [*(waiting.submission for waiting in self._waiting), *self._queue]
        self._waiting.clear()
        self._queue = []
        for submission in left:
            self._finish(submission, WalClosed(f"shard {self.key!r} was closed"))
        durable = False
        try:
            durable = self.log.close()
        finally:
            if not durable:
                self._latch(self.reason or self.log.failed or "closing failed")
        return durable

    def _latch(self, reason: str) -> None:
        """Take no more writes for the rest of the run, and say so once [S-78]."""
        told, self.state, self.reason = self.state == "read_only", "read_only", reason
        if not told:
            self.on_latched()


_SYNC_MARK_BYTES = len(frame.encode_control(control.SyncMark(), 0, 0, synced_prefix=True))


class _BelowBound(WriteFailed):
    """There is space, but less than must be left [S-80]."""


class _Observer(MeterObserver):
    """Counts for the shard what its files report; the server has names of its own for it [W-25].

    Whoever embeds the engine may give a meter, which gets it under the names of 07 §2.
    """

    def __init__(self, shard: Shard, meter: Meter, node: int) -> None:
        super().__init__(meter, node)
        labels = {"node": str(node)}
        self._shard = shard
        self._records = meter.counter("wal_records_total", labels)
        self._bytes = meter.counter("wal_bytes_total", labels)

    def written(self, frames: int, size: int) -> None:
        """A batch is in the file."""
        self._records.inc(frames)
        self._bytes.inc(size)

    def synced(self, id: int, ms: float) -> None:
        super().synced(id, ms)
        shard = self._shard
        spent = int(ms * 1e6)
        shard.counters.note_sync(spent // 1000)
        shard._sync_ewma_ns = spent if not shard._sync_ewma_ns else (7 * shard._sync_ewma_ns + spent) // 8
        shard._synced_at_ns = shard._clock.monotonic_ns()
