"""SegmentedLog: the life of a log's files, once for every kind of log [W-90].

It knows files, sizes and bytes; records belong to the codec, names to the naming policy, and when to
sync to the caller [W-1, W-2]. It starts no thread.

    creating → preallocating → ready → active → rotating → finalized → archived → deleted

Invariant [W-16]: a segment is synced before the next one takes its first byte. So in every segment but
the last with content all bytes were durable, and codecs may call a bad one damage.

Threads: whoever writes (`write`, `rotate`, `close`) is serialised by the caller, and so are calls of `delete_before`,
which may run beside a writer, as may `prepare_next`. `sync`, `acquire`, `position`, `synced` and `segments` may be
called by any thread at any time.
Only one sync runs at a time: the kernel reports a failed write-back to one of two concurrent callers,
and the other would take its own success for durability.
"""

from __future__ import annotations

import enum
import errno
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from topics.clock import Clock
from topics.codec.scan import Codec, FileInfo, Place, Scan, zero_tail
from topics.errors import (
    IllegalTransition,
    SegmentNotFound,
    WalClosed,
    WalIo,
    WalReadOnly,
    WriteFailed,
)
from topics.fs import Bytes, File, Fs, close_quietly, descriptor_of, no_progress, pread_exact, pwrite_all
from topics.wal.descriptors import DescriptorCache, Lease
from topics.wal.events import Observer
from topics.wal.naming import Naming

log = logging.getLogger("topics.wal")

NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
_COPY_BYTES = 1 << 20
_NEVER = sys.maxsize


class State(enum.Enum):
    """Where a segment is in its life (07 §1.1)."""

    CREATING = "creating"
    PREALLOCATING = "preallocating"
    READY = "ready"
    ACTIVE = "active"
    ROTATING = "rotating"
    FINALIZED = "finalized"
    ARCHIVED = "archived"
    DELETED = "deleted"


_ORDER = tuple(State)
_NEXT = {state: _ORDER[i + 1] for i, state in enumerate(_ORDER[:-1])}
_UNUSED = frozenset((State.CREATING, State.PREALLOCATING, State.READY))
"""Never written to: a preparation that failed, or a ready segment at close, is thrown away."""


class Segment:
    """One file of the log. `logical` bytes are data, the file may be longer while ready or active [W-11]."""

    __slots__ = ("file", "id", "logical", "preamble", "state", "torn", "unzeroed_from")

    def __init__(self, id: int, state: State = State.CREATING, logical: int = 0, file: File | None = None) -> None:
        self.id = id
        self.state = state
        self.logical = logical
        self.file = file
        self.preamble = b""
        self.unzeroed_from = _NEVER
        """From here on, prepared space has yet to be written with zeros."""
        self.torn = False
        """Whether a write was begun behind the logical end and not ended."""

    def to(self, state: State) -> None:
        """Take the next step of the life cycle; any other is a bug [W-10]."""
        if _NEXT.get(self.state) is not state and not (state is State.DELETED and self.state in _UNUSED):
            raise IllegalTransition(f"segment {self.id}: {self.state.value} → {state.value}")
        self.state = state


class SyncUnderWay(NamedTuple):
    """A sync of what a segment held up to `end` when it began."""

    segment: Segment
    end: int
    since_ns: int
    descriptor: int


class SegmentInfo(NamedTuple):
    """A segment as seen from outside: its size is the file's at discovery, the data's while open."""

    id: int
    size: int


class SegmentScan(NamedTuple):
    """What recovery found in one segment."""

    id: int
    size: int
    place: Place
    scan: Scan
    data_end: int
    """Where the zeros that end the file begin; nothing but zeros follows."""

    @property
    def damaged_bytes(self) -> int:
        """Bytes behind the valid part that are not prepared space."""
        return max(0, self.data_end - self.scan.end)


Rule = Callable[[Sequence[SegmentScan]], Sequence[SegmentScan]]
"""Sees every scan before anything changes; raises to refuse, returns the segments to cut."""


class CoreReport(NamedTuple):
    """What `recover` saw and did."""

    scans: tuple[SegmentScan, ...]
    cut: tuple[SegmentScan, ...]


class SegmentedLog:
    """The files of one log directory."""

    def __init__(
        self,
        fs: Fs,
        dir: str,
        naming: Naming,
        codec: Codec,
        *,
        max_segment_size: int,
        clock: Clock,
        observer: Observer,
        preallocate: bool = True,
        fd_cache_size: int = 16,
        context: object = None,
        zero_ahead: int = 0,
        announce: Callable[[int], None] | None = None,
    ) -> None:
        if max_segment_size <= 0:
            raise ValueError("max_segment_size must be above 0")
        self.fs = fs
        self.dir = dir
        self.naming = naming
        self.codec = codec
        self.max_segment_size = max_segment_size
        self.clock = clock
        self.observer = observer
        self.preallocate = preallocate
        self.context = context
        self.zero_ahead = zero_ahead
        """How many bytes of reserved space to write with zeros in one go; 0 for none."""
        self._zeros = bytearray()
        """Where data and the zeros behind it are put together; zeros only, or empty."""
        self.announce = announce
        """Told the id of a segment before it becomes active; an `OSError` keeps it from doing so."""
        self.descriptors = DescriptorCache(lambda id: fs.open(self.path(id), "r"), fd_cache_size)
        self._segments: dict[int, Segment] = {}
        """Replaced as a whole under its lock, so that readers need none."""
        self._segments_lock = threading.Lock()
        self._active: Segment | None = None
        self._ready: Segment | None = None
        self._ready_lock = threading.Lock()
        """Held while the next segment is prepared: two at a time would be two of one id."""
        self._ready_is_ours = False
        """Whether its file was made for it, and not found."""
        self._synced = (naming.first_id, 0)
        self._sync_lock = threading.Lock()
        self._failed: str | None = None
        """Why no more writes are taken: a later sync that succeeds proves nothing about pages that failed [W-17].
        Set where the failure is seen, before anything is called: a signal may strike at any call."""
        self._unfinalized: Segment | None = None
        """What an inline rotation has yet to finalize, or a signal kept one from finalizing."""
        self._closed = False
        self._removals_unsynced = False
        self._announced: int | None = None

    def path(self, id: int) -> str:
        """The path of a segment's file."""
        return f"{self.dir}/{self.naming.name(id)}"

    def discover(self) -> list[SegmentInfo]:
        """The segments on disk, ascending; other files are ignored."""
        ids = sorted(id for name in self.fs.listdir(self.dir) if (id := self.naming.parse(name)) is not None)
        return [SegmentInfo(id, self.fs.size(self.path(id))) for id in ids]

    def scan(self) -> list[SegmentScan]:
        """Scan every segment with the codec; changes nothing."""
        found = self.discover()
        last = self._last_with_content(found)
        scans = []
        for info in found:
            place: Place = "beyond" if last is None or info.id > last else "last" if info.id == last else "inner"
            view = memoryview(b"" if place == "beyond" else self._read(info.id))
            scan = self.codec.scan(view, 0, place)
            scans.append(SegmentScan(info.id, info.size, place, scan, zero_tail(view, scan.end)))
        return scans

    def _last_with_content(self, found: Sequence[SegmentInfo]) -> int | None:
        for info in reversed(found):
            if info.size and self._has_content(info):
                return info.id
        return None

    def _has_content(self, info: SegmentInfo) -> bool:
        with self.descriptors.acquire(info.id) as lease:
            for at in range(0, info.size, _COPY_BYTES):
                if pread_exact(lease.file, min(_COPY_BYTES, info.size - at), at).strip(b"\0"):
                    return True
        return False

    def _read(self, id: int) -> bytes:
        with self.descriptors.acquire(id) as lease:
            return pread_exact(lease.file, lease.file.size(), 0)

    def recover(self, rule: Rule) -> CoreReport:
        """Scan everything, ask the rule, then cut what it allows: ftruncate and fsync in place, repeatable [W-61]."""
        scans = self.scan()
        cut = tuple(rule(scans))
        for segment in cut:
            file = self.fs.open(self.path(segment.id), "rw")
            try:
                file.truncate(segment.scan.end)
                file.fsync()
            finally:
                close_quietly(file)
            if segment.damaged_bytes:
                self.observer.truncated(segment.id, segment.damaged_bytes)
        for segment in scans:
            self._segments[segment.id] = Segment(segment.id, State.ARCHIVED, segment.scan.end)
        return CoreReport(tuple(scans), cut)

    def adopt(self, lengths: Mapping[int, int], prepared: Iterable[int] = ()) -> None:
        """Take over segments that the caller has recovered itself: their valid lengths, and ids of empty ones."""
        for id, length in {**dict.fromkeys(prepared, 0), **lengths}.items():
            self._segments[id] = Segment(id, State.ARCHIVED, length)

    def start(
        self, *, resume: bool, rewrite: bool = False, next_id: int | None = None, size: int | None = None
    ) -> None:
        """Make a segment active: the last one at its logical end, or a new one.

        Ids never go back: an empty last segment is taken too, because positions in it may have been given out.
        `rewrite` writes the last data again, byte for byte, before it is synced: pages that a failed sync had
        marked clean become dirty, so records recovered from the page cache are on the medium before anything is
        acknowledged behind them.
        """
        # A process killed between creating a file and syncing the directory leaves an entry that is not durable.
        self.fs.sync_dir(self.dir)
        last = max(self._segments.values(), key=lambda segment: segment.id, default=None)
        data = max((s for s in self._segments.values() if s.logical), key=lambda segment: segment.id, default=None)
        if data is not None:
            self._secure(data, rewrite)
            self._synced = (data.id, data.logical)
        for segment in self._segments.values():
            if segment is not last and (data is None or segment.id > data.id):
                # Cut to nothing by a process that was killed before it synced that: the bytes must not come back.
                self._secure(segment, rewrite=False)
        if resume and last is not None and last is data:
            self._resume(data)
        elif resume and last is not None:
            del self._segments[last.id]
            self._prepare_again(last.id)
            self._activate(data)
        else:
            self.prepare_next(size, id=next_id or (data.id + 1 if data is not None else self.naming.first_id))
            self._announce()
            self._discard_prepared(data)
            self._activate(data)
        self._count_segments()

    def _prepare_again(self, id: int) -> None:
        """Take an empty last segment over; on a full disk unreserved, for reading and freeing must still work."""
        try:
            self.prepare_next(id=id)
        except WriteFailed as error:
            if not error.full or not self.preallocate:
                raise
            self.prepare_next(id=id, reserve=False)

    def _discard_prepared(self, data: Segment | None) -> None:
        """A log that starts a new segment per run needs no other prepared file [S-21]."""
        assert self._ready is not None
        for id in [id for id in self._segments if data is None or id > data.id]:
            del self._segments[id]
            if id != self._ready.id:
                self.descriptors.drop(id)
                self.fs.remove(self.path(id))

    def _secure(self, segment: Segment, rewrite: bool) -> None:
        """Make the last data durable, whatever an earlier process left undone [W-16]."""
        file = self.fs.open(self.path(segment.id), "rw")
        try:
            for at in range(0, segment.logical if rewrite else 0, _COPY_BYTES):
                pwrite_all(file, pread_exact(file, min(_COPY_BYTES, segment.logical - at), at), at)
            file.fsync()
        finally:
            close_quietly(file)

    def _resume(self, segment: Segment) -> None:
        file = self.fs.open(self.path(segment.id), "rw")
        self._segments[segment.id] = self._active = Segment(segment.id, State.ACTIVE, segment.logical, file)

    def fits(self, n: int) -> bool:
        """Whether `n` more bytes stay within the active segment [W-13]."""
        active = self._writable()
        return active.logical + (0 if active.logical else len(active.preamble)) + n <= self.max_segment_size

    def write(
        self, parts: Sequence[Bytes], *, take_back: bool = True, apart: bool = False, ahead: bool = True
    ) -> tuple[int, int]:
        """Append the concatenation at the logical end; the segment and offset it went to.

        One write, or with `apart` one for each part: putting large ones together takes as long as writing them. The
        first write of a segment carries the codec's preamble in front of it. Without `take_back` a failed write
        raises the system's error, and the caller must have it taken back before anything else is written. `ahead`:
        somebody will wait for its sync, see `zero_ahead`.
        """
        active = self._writable()
        offset = start = active.logical
        if not offset and active.preamble:
            parts = (active.preamble, *parts)
            start = len(active.preamble)
        if len(parts) > 1 and not apart:
            parts = (b"".join(parts),)
        end = offset + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        file = active.file
        assert file is not None
        if active.torn and take_back:
            self._mend(active)
        try:
            active.torn = True
            at = offset
            if end > active.unzeroed_from and self._write_with_zeros(active, file, parts, end, ahead):
                parts = ()
            for data in parts:
                n = file.pwrite(data, at)
                if n <= 0 < len(data):
                    raise no_progress()
                if n != len(data):
                    pwrite_all(file, memoryview(data)[n:], at + n)
                at += len(data)
        except OSError as error:
            if not take_back:
                raise
            if error.errno not in NO_SPACE:
                self._failed = self._failed or f"write to segment {active.id}: {error}"
            self.take_back(error)
        # Plain stores, which no signal comes between.
        active.logical = end
        active.torn = False
        self.fs.point("wal.after_write")
        if not offset:
            self._archive()
        return active.id, start

    def _write_with_zeros(self, active: Segment, file: File, parts: Sequence[Bytes], end: int, ahead: bool) -> bool:
        """Write up to `end`, and zeros over the space reserved behind it, in one go; whether the data is written.

        A file system notes of reserved space that it was never written. The first write there changes the note, and
        the sync behind it has to make that change durable too; zeros change it for many small writes at once. They are
        not data: where there is no space for them, the log does without.
        """
        offset, active.unzeroed_from = active.logical, end
        stop = min(end + self.zero_ahead, self.max_segment_size)
        if not ahead or len(parts) > 1 or end - offset >= self.zero_ahead or stop <= end:
            return False
        # Kept, for the pages of a new one would take longer than the write; but not if it is interrupted here.
        data, zeros = end - offset, self._zeros or bytearray(2 * self.zero_ahead)
        self._zeros = bytearray()
        zeros[:data] = parts[0]
        try:
            with memoryview(zeros) as view:
                n = file.pwrite(view[: stop - offset], offset)
            if n <= 0:
                raise no_progress()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            log.warning("segment %d of %s is not zeroed ahead: %s", active.id, self.dir, error)
            n = 0
        zeros[:data] = bytes(data)
        self._zeros = zeros
        active.unzeroed_from = stop if n == stop - offset else _NEVER
        return n >= end - offset

    def take_back(self, error: OSError) -> None:
        """Cut the remains of a failed write, which could be read as records, and raise `WriteFailed` (07 §1.4)."""
        active = self._active
        assert active is not None
        with self._sync_lock:
            failed: OSError | None = None if error.errno in NO_SPACE else error
            try:
                self._cut(active)
            except OSError as second:
                failed = second
            if failed is not None:
                self._failed = self._failed or f"segment {active.id}, a write that failed: {failed}"
                self.observer.latched()
        raise WriteFailed(f"segment {active.id}: {error}", full=self._failed is None) from error

    def _mend(self, active: Segment) -> None:
        """Cut the remains of a write whose thread was interrupted, by a signal for instance."""
        with self._sync_lock:
            try:
                self._cut(active)
            except OSError as error:
                self._failed = self._failed or f"segment {active.id}, cutting back an interrupted write: {error}"
                self.observer.latched()
                raise WriteFailed(f"segment {active.id}: {error}", full=False) from error

    def _cut(self, active: Segment) -> None:
        assert active.file is not None
        active.unzeroed_from = _NEVER
        active.file.truncate(active.logical)
        active.file.fsync()
        active.torn = False

    def sync(self) -> None:
        """Make everything written so far durable."""
        position = self.position()
        self.check()  # behind it: a log that is being closed has no other end than where it was synced
        self.sync_to(position)

    def sync_to(self, position: tuple[int, int]) -> None:
        """Return when everything below `position` is durable; a sync that was waited for and covers it is enough."""
        if self._synced < position:
            with self._sync_lock:
                if self._synced < position:
                    self._sync_active(self._writable())

    def begin_sync(self) -> SyncUnderWay | None:
        """Leave the next sync to the caller, who has the descriptor synced and calls `end_sync`; None: `sync_to` it.

        Until then nobody else syncs, cuts or leaves the segment, and its descriptor stays open.
        """
        active = self._active
        if active is None or active.file is None or not self._sync_lock.acquire(blocking=False):
            return None
        descriptor = descriptor_of(active.file)
        if descriptor is None or self._closed or self._failed is not None:
            self._sync_lock.release()
            return None
        return SyncUnderWay(active, active.logical, self.clock.monotonic_ns(), descriptor)

    def end_sync(self, sync: SyncUnderWay, error: OSError | None) -> None:
        """The caller's sync ended; on any thread."""
        try:
            self._sync_ended(sync, error)
        finally:
            self._sync_lock.release()

    def _sync_active(self, active: Segment) -> None:
        """Sync under the sync lock; what was written before the call is durable after it."""
        assert active.file is not None
        sync, failed = SyncUnderWay(active, active.logical, self.clock.monotonic_ns(), -1), None
        try:
            active.file.fdatasync()
        except OSError as error:
            failed = error
            self._failed = self._failed or f"sync of segment {active.id}: {error}"
        self._sync_ended(sync, failed)

    def _sync_ended(self, sync: SyncUnderWay, error: OSError | None) -> None:
        id = sync.segment.id
        if error is not None:
            self._failed = self._failed or f"sync of segment {id}: {error}"
            self.observer.latched()
            raise WalIo(error, f"sync of segment {id}") from error
        self._synced = (id, sync.end)
        self.observer.synced(id, (self.clock.monotonic_ns() - sync.since_ns) / 1e6)
        self.fs.point("wal.after_sync")

    def prepare_next(self, size: int | None = None, *, id: int | None = None, reserve: bool = True) -> None:
        """Bring the next segment to state ready: reserved, and durable as a directory entry [W-15]; idempotent."""
        with self._ready_lock:
            if self._ready is None:
                self._prepare_next(size, id, reserve)

    def _prepare_next(self, size: int | None, id: int | None, reserve: bool) -> None:
        self.check()
        segment = Segment(max(self._segments, default=self.naming.first_id - 1) + 1 if id is None else id)
        existed = True
        try:
            existed = self.fs.exists(self.path(segment.id))
            segment.file = self._create(segment.id)
            reserved = max(size or 0, self.max_segment_size) if reserve else 0
            self._reserve(segment, segment.file, reserved)
        except OSError as error:
            self._abandon(segment, unlink=not existed)
            raise WriteFailed(f"preparing segment {segment.id}: {error}", full=error.errno in NO_SPACE) from error
        self._ready, self._ready_is_ours = segment, not existed
        if not existed:
            self.observer.created(segment.id)
        self._count_segments()

    def _create(self, id: int) -> File:
        """Open the file of a new segment, empty: what a failed attempt left there is cut, content is not ours."""
        file = self.fs.open(self.path(id), "create")
        try:
            size = file.size()
            if size and self._has_content(SegmentInfo(id, size)):
                raise FileExistsError(errno.EEXIST, "a file with content is in the way", self.path(id))
            if size:
                file.truncate(0)
        except OSError:
            close_quietly(file)
            raise
        return file

    def _reserve(self, segment: Segment, file: File, size: int) -> None:
        segment.to(State.PREALLOCATING)
        if self.preallocate and size:
            file.allocate(size)
            if self.zero_ahead:
                segment.unzeroed_from = 0
        self._sync_new(segment, file.fsync)
        self._sync_new(segment, lambda: self.fs.sync_dir(self.dir))
        segment.to(State.READY)

    def _sync_new(self, segment: Segment, sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._failed = self._failed or f"sync of new segment {segment.id}: {error}"
                self.observer.latched()
            raise

    def _abandon(self, segment: Segment, *, unlink: bool = True) -> None:
        """Give back what a failed preparation took; what cannot be removed is all zeros and reused later.

        A file that was there before stays: its name says how far ids have come.
        """
        segment.to(State.DELETED)
        self.descriptors.drop(segment.id)
        if segment.file is None:
            return
        try:
            segment.file.truncate(0)
            if unlink:
                self.fs.remove(self.path(segment.id))
        except OSError as error:
            log.warning("segment %d of %s could not be taken back: %s", segment.id, self.dir, error)
        finally:
            close_quietly(segment.file)

    def rotate(self, size: int | None = None, defer: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Switch to the next segment: old one synced, new one active, old one finalized [W-16].

        `defer` runs the finalizing elsewhere; without it that happens inline.
        """
        old = self._writable()
        if old.torn:
            self._mend(old)
        if defer is None:
            self._finalize_left()
        self.prepare_next(size)
        with self._sync_lock:
            self.check()  # a sync that was waited for may have failed: another one would prove nothing [W-17]
            self._sync_active(old)
            self.fs.point("wal.rotate.after_sync")
            self._announce()
            if defer is None:
                self._unfinalized = old
            self._activate(old)
        self.observer.rotated(old.id, old.logical)
        self._count_segments()
        if defer is None:
            self._finalize_left()
        else:
            defer(lambda: self._finalize(old))

    def _announce(self) -> None:
        if self.announce is None:
            return
        assert self._ready is not None
        self.fs.point("wal.rotate.before_current")
        self._announced = self._ready.id
        try:
            self.announce(self._ready.id)
        except OSError as error:
            raise WriteFailed(f"announcing segment {self._ready.id}: {error}", full=error.errno in NO_SPACE) from error

    def _activate(self, previous: Segment | None) -> None:
        segment = self._ready
        assert segment is not None
        before = None if previous is None else (previous.id, previous.logical)
        segment.preamble = self.codec.preamble(FileInfo(segment.id, before, self.context))
        assert segment.state is State.READY
        with self._segments_lock:
            segments = {**self._segments, segment.id: segment}
            # Plain stores, which no signal comes between.
            if previous is not None and previous.state is State.ACTIVE:
                previous.state = State.ROTATING
            segment.state = State.ACTIVE
            self._segments = segments
            self._active = segment
            # Last: whoever sees that nothing is ready prepares the segment behind those.
            self._ready = None

    def _finalize(self, segment: Segment) -> None:
        """Physical size = logical size, fsynced [W-14]; a failed sync latches the log here too."""
        file = segment.file
        assert file is not None
        try:
            file.truncate(segment.logical)
            file.fsync()
        except OSError as error:
            self._failed = self._failed or f"finalizing segment {segment.id}: {error}"
            self.observer.latched()
        else:
            segment.to(State.FINALIZED)
        segment.file = None
        close_quietly(file)
        self._archive()

    def _finalize_left(self) -> None:
        """Nothing behind a segment that is not finalized could be deleted."""
        segment = self._unfinalized
        if segment is not None and segment.state is State.ROTATING and segment.file is not None:
            self._finalize(segment)
        self._unfinalized = None

    def _archive(self) -> None:
        """A finalized segment becomes history when a later one has data."""
        active = self._active
        if active is None or not active.logical:
            return
        with self._segments_lock:
            for segment in self._segments.values():
                if segment.state is State.FINALIZED and segment.id < active.id:
                    segment.to(State.ARCHIVED)

    def delete_before(self, id: int) -> list[int]:
        """Unlink finalized segments below `id`, oldest first; the ids that went.

        The directory is synced after each: a crash that kept a later removal and lost an earlier one would
        leave a hole that looks like damage. What cannot be unlinked stays, with all behind it, for the next call.
        """
        gone: list[int] = []
        for segment in sorted(self._segments.values(), key=lambda s: s.id):
            if segment.id >= id or segment.state not in (State.FINALIZED, State.ARCHIVED):
                break
            try:
                self._sync_removals()
                self.fs.remove(self.path(segment.id))
            except OSError as error:
                log.warning("segment %d of %s stays for now: %s", segment.id, self.dir, error)
                break
            self._removals_unsynced = True
            self._forget(segment)
            gone.append(segment.id)
        try:
            self._sync_removals()
        except OSError as error:
            log.warning("removals in %s are not yet durable: %s", self.dir, error)
        if gone:
            self._count_segments()
        return gone

    def _count_segments(self) -> None:
        self.observer.segments(len(self._segments) + (self._ready is not None))

    def _sync_removals(self) -> None:
        if self._removals_unsynced:
            self.fs.sync_dir(self.dir)
            self._removals_unsynced = False

    def _forget(self, segment: Segment) -> None:
        with self._segments_lock:
            if segment.state is State.FINALIZED:
                segment.to(State.ARCHIVED)
            segment.to(State.DELETED)
            self._segments = {k: v for k, v in self._segments.items() if k != segment.id}
        self.descriptors.drop(segment.id)
        self.observer.deleted(segment.id)

    def acquire(self, id: int) -> Lease:
        """A descriptor for pread; it outlives the deletion of its segment [W-20]."""
        if id not in self._segments:
            raise SegmentNotFound(id)
        try:
            return self.descriptors.acquire(id)
        except FileNotFoundError as error:
            raise SegmentNotFound(id) from error
        except OSError as error:
            raise WalIo(error, f"opening segment {id}") from error

    def end_of(self, id: int) -> int | None:
        """Logical end of a segment, `None` when it does not exist."""
        segment = self._segments.get(id)
        return None if segment is None else segment.logical

    def next_id(self, id: int) -> int | None:
        """The segment behind `id`, `None` for the last; `SegmentNotFound` when what followed was deleted."""
        segments = self._segments
        if id + 1 in segments:
            return id + 1
        later = [other for other in segments if other > id]
        if not later:
            return None
        if id < min(segments):
            raise SegmentNotFound(id + 1)
        return min(later)

    def position(self) -> tuple[int, int]:
        """The active segment and its logical end: where the next byte goes."""
        active = self._active
        return self._synced if active is None else (active.id, active.logical)

    def synced(self) -> tuple[int, int]:
        """Everything below it is durable."""
        return self._synced

    def segments(self) -> list[SegmentInfo]:
        """The segments with their logical sizes, ascending."""
        return [SegmentInfo(id, segment.logical) for id, segment in sorted(self._segments.items())]

    def has_ready(self) -> bool:
        """Whether the next segment is prepared."""
        return self._ready is not None

    @property
    def failed(self) -> str | None:
        """Why the log is latched, or `None`."""
        return self._failed

    def close(self, *, finalize: bool = True) -> bool:
        """Sync, finalize the active segment, unlink a ready one; whether everything is durable and tidy."""
        self._closed = True
        active, self._active = self._active, None
        with self._ready_lock:
            ready, self._ready = self._ready, None
        try:
            if active is not None and self._failed is None:
                with self._sync_lock:
                    if self._failed is None:
                        active.to(State.ROTATING)
                        self._sync_active(active)
                if finalize and self._failed is None:
                    self._finalize_left()
                    if active.file is not None:
                        self._finalize(active)
        finally:
            if ready is not None:
                # What was announced may be looked for, also when announcing it was reported to have failed; and a file
                # that was there before may have been announced by an earlier process.
                self._abandon(ready, unlink=self._ready_is_ours and ready.id != self._announced)
            # The lock, because a thread may be in a sync of this descriptor.
            with self._sync_lock:
                for segment in (active, self._unfinalized):
                    if segment is not None and segment.file is not None:
                        close_quietly(segment.file)
                        segment.file = None
            self.descriptors.clear()
        return self._failed is None

    def _writable(self) -> Segment:
        active = self._active
        self.check()  # behind it: a log that is being closed has none
        assert active is not None, "the log was not started"
        return active

    def check(self) -> None:
        """Raise if the log takes no more writes."""
        if self._closed:
            raise WalClosed(f"the log in {self.dir} is closed")
        if self._failed is not None:
            raise WalReadOnly(f"the log in {self.dir} takes no more writes: {self._failed}")
