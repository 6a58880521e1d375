"""One shard of the WAL: group commit (06 §6, design HOTPATH).

    stage   submissions are framed into one buffer; the first of a tick schedules a flush
    flush   rotate if needed, one pwrite of the buffer, finish what needs no sync
    sync    if a durable submission waits or bytes have waited long enough, and none runs: aside, fdatasync
    synced  finish what it covers, then flush again, so that clients just answered join the next one

All state belongs to the owner; helpers run `fdatasync`, rotation and preparation, and know no rule [S-72]. A
submission is finished exactly once, in log order within its kind: written (not durable) or synced (durable), or failed.

    ok ──sync failed, or a write that could not be taken back──▶ read_only   for the rest of the run [S-78]
    ok ──no space──▶ full ──space is back, probed every second──▶ ok         control frames still fit [S-80]
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

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
    WriteFailed,
)
from topics.fs import Fs
from topics.storage.group import Group, write_current
from topics.storage.owner import Owner
from topics.wal.core import SegmentedLog
from topics.wal.naming import ServerNaming

log = logging.getLogger("topics.storage")

State = Literal["ok", "full", "read_only"]

SUBMISSIONS_MAX = 4096
PENDING_BYTES_MAX = 64 << 20
FLUSH_BYTES = 8 << 20
FLUSH_FRAMES = 16384
SYNC_MARK_AFTER_NS = 20_000_000
PROBE_EVERY_NS = 1_000_000_000
SPACE_EVERY_NS = 1_000_000_000
BACKGROUND_MIN_NS = 10_000_000
BACKGROUND_MAX_NS = 1_000_000_000


class Lsn(NamedTuple):
    """Where a submission lies in its group."""

    file_no: int
    offset: int


Done = Callable[[Lsn | TopicsError], None]
"""Called once, on the owner: the place of the submission when its commit condition holds, or why it failed."""


class Submission(NamedTuple):
    """One caller's atomic unit: a chain of frames [S-24]."""

    size: int
    frames: int
    durable: bool
    done: Done


class Counters:
    """What a shard counts for the metrics of 06 §21. Owner only."""

    __slots__ = ("batches", "bytes_written", "frames", "fsyncs", "queue_peak", "refused", "rotations")

    def __init__(self) -> None:
        self.frames = self.batches = self.bytes_written = self.fsyncs = self.rotations = 0
        self.queue_peak = self.refused = 0


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
        min_free_bytes: int = 0,
    ) -> None:
        self.key = group.key
        self.state: State = "ok"
        self.reason = ""
        self.counters = Counters()
        self._fs = fs
        self._dir = group.dir
        self._owner = owner
        self._clock = clock
        self._min_free_bytes = min_free_bytes
        self._lane = f"wal-{shard:02d}"
        self._first_file = max(group.last_number + 1, first_file or 1)
        self._open_mark = (run, boot, shard, shards)
        self.log = SegmentedLog(
            fs,
            group.dir,
            ServerNaming(),
            FrameCodec(),
            max_segment_size=file_bytes,
            clock=clock,
            observer=_Observer(self),
            fd_cache_size=64,
            init_zero=init_zero,
            announce=lambda number: write_current(fs, group.dir, number),
        )
        self.log.adopt({file.number: file.scan.end for file in group.files}, prepared=group.prepared)
        self._started = False
        self._buffer = bytearray()
        self._queue: list[Submission] = []
        self._queued_frames = 0
        self._written: deque[tuple[Lsn, Submission]] = deque()
        """Written, needing no sync, and about to be finished."""
        self._waiting: deque[tuple[tuple[int, int], Lsn, Submission]] = deque()
        self._pending_bytes = 0
        self._flush_scheduled = False
        self._busy: str | None = None
        """What runs aside and keeps the buffer from being written: opening, rotating."""
        self._preparing = False
        self._syncing = False
        self._sync_target = (0, 0)
        self._dirty_since_ns: int | None = None
        self._synced_at_ns = 0
        self._sync_ewma_ns = 0
        self._probed_at_ns = 0
        self._looking = False
        self._looked_at_ns = clock.monotonic_ns()
        """When free space was last looked at by the clock."""
        self._marked = True
        """A `sync` mark, or nothing at all, is the last thing written."""
        self._closing = False
        self._finishing: Lsn | None = None
        """A completion is being called: what it submits is written behind it and its like, not among them."""
        self._starts: dict[int, array[int]] = {}
        """Where the batches of each file of this run begin, ascending."""

    # -- taking submissions ------------------------------------------------------------------------------------------

    def submit(self, frames: bytes, count: int, done: Done, *, durable: bool, control: bool = False) -> None:
        """Accept a submission whole, or raise and accept nothing of it [S-71]."""
        self._admit(len(frames), control)
        self._buffer += frames
        self._queue.append(Submission(len(frames), count, durable, done))
        self._queued_frames += count
        self._pending_bytes += len(frames)
        self.counters.queue_peak = max(self.counters.queue_peak, self.depth)
        if self._finishing is None and (len(self._buffer) >= FLUSH_BYTES or self._queued_frames >= FLUSH_FRAMES):
            self.flush()
        else:
            self._schedule_flush()

    @property
    def depth(self) -> int:
        """Submissions accepted and not finished."""
        return len(self._queue) + len(self._waiting)

    def _admit(self, size: int, control: bool) -> None:
        if self._closing:
            raise WalClosed(f"shard {self.key!r} is closing")
        if self.state == "read_only":
            raise ShardReadOnly(f"shard {self.key!r} takes no more writes in this run: {self.reason}")
        if self.state == "full" and not (control and self._has_room(len(self._buffer) + size)):
            raise StorageFull(f"shard {self.key!r} has no space: {self.reason}")
        crowded = self.depth >= SUBMISSIONS_MAX or self._pending_bytes + size > PENDING_BYTES_MAX
        if crowded and self.depth:
            self.counters.refused += 1
            raise WalFull(f"shard {self.key!r} has {self.depth} submissions waiting")

    def _has_room(self, size: int) -> bool:
        # A helper may have latched the log and not reported it yet.
        return self._started and self.log.failed is None and self.log.fits(size)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._owner.soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

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
        places = [waiting[0][-2] for waiting in (self._written, self._waiting) if waiting]
        if self._finishing is not None:
            places.append(self._finishing)
        if self._queue:
            places.append(self._end())
        return min(places, default=None)

    def done_pos(self) -> Lsn:
        """Everything before it is finished [S-77]; what the frames of earlier runs say was applied by recovery."""
        return self.oldest_open() or self._end()

    def _end(self) -> Lsn:
        return Lsn(*self.log.position()) if self._started else Lsn(self._first_file, 0)

    def _note_start(self, place: tuple[int, int]) -> None:
        self._starts.setdefault(place[0], array("Q")).append(place[1])

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what has gathered, unless a file is being opened or rotated; then it goes on gathering."""
        if not self._queue or self._busy or self.state == "read_only" or self.log.failed is not None:
            return
        if not self._started:
            self._aside("opening", self._open_first)
        elif self.log.position()[1] and not self.log.fits(len(self._buffer)):
            if not self._preparing:
                self._aside("rotating", self._rotate)
        else:
            self._write()

    def _open_first(self) -> None:
        """On a helper: the run's first file [S-20, S-21]; it is used as soon as it is reserved, without zeros."""
        self._check_space()
        zero, self.log.init_zero = self.log.init_zero, False
        try:
            self.log.context = OpenContext(*self._open_mark, self._clock.now_ms())
            self.log.start(resume=False, next_id=self._first_file, size=len(self._buffer) + 4096)
        finally:
            self.log.init_zero = zero
        self._started = True

    def _rotate(self) -> None:
        """On a helper: the old file synced, the new one active, the old one finalized [S-85]."""
        self._check_space()
        self.log.context = OpenContext(*self._open_mark, self._clock.now_ms())
        # The open mark is written in front of the batch; a file of the batch's own size must hold both [S-87].
        self.log.rotate(len(self._buffer) + 4096)
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
        if self._waiting:
            self.sync()

    def _write(self) -> None:
        log = self.log
        buffer, queue = self._buffer, self._queue
        position = log.position()
        if position[1] and position == log.synced():
            frame.set_synced_prefix(buffer)
        self._buffer, self._queue, self._queued_frames = bytearray(), [], 0
        try:
            file_no, offset = log.write((buffer,), take_back=False)
        except OSError as error:
            # Bound now: the cut runs when this handler is long over.
            failed = error
            self._queue = queue
            self._aside("cutting", lambda: log.take_back(failed))
            return
        except WalError as error:
            self._queue = queue
            self._fail(error)
            return
        self._note_start((file_no, offset))
        self._marked = False
        if self._dirty_since_ns is None:
            self._dirty_since_ns = self._clock.monotonic_ns()
        self.counters.batches += 1
        self.counters.bytes_written += len(buffer)
        for submission in queue:
            self.counters.frames += submission.frames
            lsn = Lsn(file_no, offset)
            offset += submission.size
            if submission.durable:
                self._waiting.append(((file_no, offset), lsn, submission))
            else:
                self._written.append((lsn, submission))
        while self._written:
            lsn, submission = self._written.popleft()
            self._finish(submission, lsn)
        self._prepare_ahead()
        if self._waiting:
            self.sync()

    def _prepare_ahead(self) -> None:
        """When the file is half full a helper makes the next one, under its final name [S-84]."""
        if self._preparing or self.log.failed is not None or self.log.has_ready():
            return
        if self.log.fits(self.log.max_segment_size // 2):
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
            self._dirty_since_ns = None
            self._finish_synced()
            return
        self._syncing = True
        self._dirty_since_ns = None
        position = self._sync_target = self.log.position()
        self._owner.aside(self._lane, lambda: self.log.sync_to(position), self._synced)

    def _synced(self, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            self._fail(error, batch=False)
            return
        assert self.log.synced() >= self._sync_target, "a sync that covers nothing would be asked for again and again"
        self._finish_synced()
        if self._queue:
            self._schedule_flush()
        if self._waiting:
            self._owner.soon(self.sync)

    def _finish_synced(self) -> None:
        synced = self.log.synced()
        while self._waiting and self._waiting[0][0] <= synced:
            _, lsn, submission = self._waiting.popleft()
            self._finish(submission, lsn)

    def tick(self) -> None:
        """What is due by the clock: background sync [S-76], the sync mark [S-25], the probe of a full shard [S-80]."""
        if self._closing or self.log.failed is not None:
            return
        now = self._clock.monotonic_ns()
        if self.state == "full" and now - self._probed_at_ns >= PROBE_EVERY_NS:
            self._probed_at_ns = now
            self.probe()
        if self._min_free_bytes and self.state == "ok" and now - self._looked_at_ns >= SPACE_EVERY_NS:
            self._look_at_space(now)
        if self.state == "read_only" or self.log.failed is not None or not self._started or self._busy:
            return
        bound = min(max(BACKGROUND_MIN_NS, 4 * self._sync_ewma_ns), BACKGROUND_MAX_NS)
        if self._dirty_since_ns is not None and now - self._dirty_since_ns >= bound:
            self.sync()
        elif not self._marked and not self._syncing and now - self._synced_at_ns >= SYNC_MARK_AFTER_NS:
            self._mark_synced()

    def _mark_synced(self) -> None:
        """Say that everything before is synced, so that damage there is told apart from a torn tail [S-25]."""
        if self._queue or self.log.synced() < self.log.position():
            return
        mark = frame.encode_control(control.SyncMark(), 0, self._clock.now_ms(), synced_prefix=True)
        if not self.log.fits(len(mark)):
            return
        try:
            self._note_start(self.log.write((mark,)))
        except WalError as error:
            self._fail(error)
        self._marked = True

    # -- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, *, batch: bool = True) -> None:
        """Fail what is under way and what is queued; decide whether the shard is full or latched [S-78 … S-81].

        `batch` says that the queue is what failed, not what stood behind it.
        """
        if isinstance(error, WriteFailed) and self.log.failed is None and self.state != "read_only":
            # No space, or the next file could not be made for another reason; what is active keeps its room.
            self._fill_up(error)
        else:
            self.state = "read_only"
            self.reason = str(error)
        queue, self._queue, self._buffer, self._queued_frames = self._queue, [], bytearray(), 0
        waiting: list[Submission] = []
        if self.state == "read_only":
            waiting = [submission for _, _, submission in self._waiting]
            self._waiting.clear()
        for submission in waiting:
            self._finish(submission, self._refusal(error, CommitFailed))
        for submission in queue:
            self._finish(submission, self._refusal(error, CommitFailed if batch else ShardReadOnly))

    def _refusal(self, cause: BaseException, kind: type[TopicsError]) -> TopicsError:
        error = kind(f"shard {self.key!r}: {cause}")
        error.__cause__ = cause
        return error

    def _finish(self, submission: Submission, outcome: Lsn | TopicsError) -> None:
        self._pending_bytes -= submission.size
        nested = self._finishing
        self._finishing = nested or (outcome if isinstance(outcome, Lsn) else self._end())
        try:
            submission.done(outcome)
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

    def _look_at_space(self, now: int) -> None:
        if not self._looking:
            self._looking = True
            self._looked_at_ns = now
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
        self._closing = True
        left = [*(submission for _, _, submission in self._waiting), *self._queue]
        self._waiting.clear()
        self._queue = []
        for submission in left:
            self._finish(submission, WalClosed(f"shard {self.key!r} was closed"))
        durable = False
        try:
            durable = self.log.close()
        finally:
            if not durable:
                self.state = "read_only"
                self.reason = self.reason or self.log.failed or "closing failed"
        return durable


class _BelowBound(WriteFailed):
    """There is space, but less than must be left [S-80]."""


class _Observer:
    """Counts for the shard what its files report; the server has names of its own for it [W-25]."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def created(self, id: int) -> None:
        return None

    def rotated(self, id: int, size: int) -> None:
        return None

    def synced(self, id: int, ms: float) -> None:
        shard = self._shard
        shard.counters.fsyncs += 1
        spent = int(ms * 1e6)
        shard._sync_ewma_ns = spent if not shard._sync_ewma_ns else (7 * shard._sync_ewma_ns + spent) // 8
        shard._synced_at_ns = shard._clock.monotonic_ns()

    def truncated(self, id: int, size: int) -> None:
        return None

    def deleted(self, id: int) -> None:
        return None

    def segments(self, count: int) -> None:
        return None

    def latched(self) -> None:
        return None
