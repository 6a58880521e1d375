"""Seeded bugs: proof that the sweeps would notice (13 T5).

Each mutant replaces one step of a log with a plausible mistake. The sweeps run against it until one of them
finds a violation; a mutant that survives is a hole in the oracle, and counts as one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

from topics.codec import frame
from topics.errors import WalIo, WriteFailed
from topics.fs import File, Fs, ensure_dir
from topics.storage import shard
from topics.storage.shard import Lsn, Shard
from topics.testing import damage, faults, sweep
from topics.testing.shardsubject import ShardSubject
from topics.testing.subject import Subject, Violation
from topics.testing.walsubject import WalSubject
from topics.wal import core, log, reader, record, recovery
from topics.wal.core import SegmentedLog

Make = Callable[[Any], Any]


class Mutant(NamedTuple):
    """One bug: what it gets wrong, and the function that gets it wrong."""

    name: str
    target: object
    attribute: str
    make: Make
    """Takes the right function and returns the wrong one."""
    subject: Callable[[], Subject] = WalSubject
    """What is swept to find it."""
    known: tuple[int | str, ...] = ()
    """Seeds of lives and names of sweeps that have found it: tried first."""


def _nothing(right: Any) -> Any:
    return lambda *args, **kwargs: None


def _rotation_unsynced(right: Any) -> Any:
    def wrong(self: SegmentedLog, *args: Any, **kwargs: Any) -> None:
        def forget_to_sync(active: core.Segment) -> None:
            self._synced = (active.id, active.logical)

        with mock.patch.object(self, "_sync_active", forget_to_sync):
            right(self, *args, **kwargs)

    return wrong


def _creation_unsynced(right: Any) -> Any:
    def wrong(self: SegmentedLog, *args: Any) -> None:
        with mock.patch.object(self, "fs", _WithoutDirSync(self.fs)):
            right(self, *args)

    return wrong


class _WithoutDirSync:
    """A disk whose caller forgot to sync directories."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return (lambda path: None) if name == "sync_dir" else getattr(self._inner, name)


def _not_cut_back(right: Any) -> Any:
    def wrong(self: SegmentedLog, error: OSError) -> None:
        raise WriteFailed(str(error), full=True) from error

    return wrong


def _failed_sync_forgotten(right: Any) -> Any:
    def wrong(self: SegmentedLog, sync: core.SyncUnderWay, error: OSError | None) -> None:
        try:
            right(self, sync, error)
        finally:
            self._failed = None

    return wrong


def _short_write_taken_for_whole(right: Any) -> Any:
    return lambda file, data, offset: file.pwrite(data, offset)


def _checksum_ignored(right: Any) -> Any:
    def wrong(view: memoryview, start: int, end: int) -> tuple[int, int]:
        count, offset = 0, start
        while (size := record._size_at(view, offset, end)) and view[offset : offset + 4] != bytes(4):
            count, offset = count + 1, offset + size
        return count, offset

    return wrong


def _tail_not_cut(right: Any) -> Any:
    def wrong(self: SegmentedLog, rule: core.Rule) -> core.CoreReport:
        return core.CoreReport(right(self, lambda scans: rule(scans) and ()).scans, ())

    return wrong


def _tail_not_rewritten(right: Any) -> Any:
    return lambda self, segment, rewrite: right(self, segment, False)


def _start_without_dir_sync(right: Any) -> Any:
    def wrong(self: SegmentedLog, **options: bool) -> None:
        with mock.patch.object(self, "fs", _WithoutDirSync(self.fs)):
            right(self, **options)

    return wrong


def _empty_last_segment_thrown_away(right: Any) -> Any:
    def wrong(self: SegmentedLog, **options: bool) -> None:
        last = max((segment.id for segment in self._segments.values() if segment.logical), default=-1)
        for id in [id for id in self._segments if id > last]:
            del self._segments[id]
            self.fs.remove(self.path(id))
        right(self, **options)

    return wrong


def _finalized_short(right: Any) -> Any:
    def wrong(self: SegmentedLog, segment: core.Segment) -> None:
        size, segment.logical = segment.logical, max(0, segment.logical - 1)
        right(self, segment)
        segment.logical = size

    return wrong


def _cutoff_deleted_too(right: Any) -> Any:
    return lambda self, id: right(self, id + 1)


def _removals_synced_at_the_end(right: Any) -> Any:
    def wrong(self: SegmentedLog, id: int) -> list[int]:
        with mock.patch.object(self, "_sync_removals"):
            gone: list[int] = right(self, id)
        with contextlib.suppress(OSError):
            self._sync_removals()
        return gone

    return wrong


def _lock_not_taken(right: Any) -> Any:
    def wrong(fs: Fs, dir: str) -> File:
        ensure_dir(fs, dir)
        return fs.open(f"{dir}/LOCK", "create")

    return wrong


def _failed_append_readable(right: Any) -> Any:
    return lambda self, id: self._log.end_of(id)


def _damage_taken_for_a_torn_tail(right: Any) -> Any:
    return lambda self, view, start, place: right(self, view, start, "last")


def _first_bad_record_skipped(right: Any) -> Any:
    """Resynchronise behind a bad record, as if what follows still belonged to the log."""

    def wrong(self: Any, view: memoryview, start: int, place: Any) -> Any:
        scan = right(self, view, start, place)
        size = record._size_at(view, scan.end, len(view))
        again = right(self, view, scan.end + size, place) if scan.verdict == "torn" and size else None
        return again if again is not None and again.records else scan

    return wrong


def _holes_untold(right: Any) -> Any:
    return lambda report, ms: right(report, ms)._replace(holes=[], corruption_detected=False)


def _zeros_taken_for_prepared_space(right: Any) -> Any:
    """Eight zero bytes are no proof that nothing follows."""

    def wrong(view: memoryview, start: int) -> int:
        return start if not bytes(view[start : start + 8]).strip(b"\0") else right(view, start)

    return wrong


def _zeros_over_data(right: Any) -> Any:
    """From where the last ones ended, not from behind the data."""

    def wrong(self: SegmentedLog, active: core.Segment, file: File, parts: Any, end: int, ahead: bool) -> bool:
        before = active.unzeroed_from
        done: bool = right(self, active, file, parts, end, ahead)
        if done and before:
            file.pwrite(bytes(end - before), before)
        return done

    return wrong


def _values_lost(right: Any) -> Any:
    return lambda stored, method: b""


def _finished_when_written(right: Any) -> Any:
    def wrong(self: Shard) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            self._finish(waiting.submission, waiting.lsn)

    return wrong


def _flag_first(shard: Shard) -> None:
    first = shard._before or shard._small
    flagged = bytearray(first[0])
    frame.set_synced_prefix(flagged)
    first[0] = flagged


def _always_flagged(right: Any) -> Any:
    def wrong(self: Shard) -> None:
        _flag_first(self)
        right(self)

    return wrong


def _rotation_never_synced(right: Any) -> Any:
    """Neither before the switch, nor by finalizing the old file."""

    def wrong(self: SegmentedLog, *args: Any, **kwargs: Any) -> None:
        with mock.patch.object(self, "_finalize"):
            _rotation_unsynced(right)(self, *args, **kwargs)

    return wrong


def _flagged_while_syncing(right: Any) -> Any:
    def wrong(self: Shard) -> None:
        if self._syncing and self.log.position() == self._sync_target:
            _flag_first(self)
        right(self)

    return wrong


def _written_taken_for_synced(right: Any) -> Any:
    def wrong(self: Shard) -> int:
        with mock.patch.object(self.log, "synced", self.log.position):
            frames: int = right(self)
        return frames

    return wrong


def _asked_taken_for_synced(right: Any) -> Any:
    def wrong(self: SegmentedLog, position: tuple[int, int]) -> None:
        self._synced = max(self._synced, position)

    return wrong


def _failed_sync_taken_for_no_space(right: Any) -> Any:
    def wrong(self: Shard, error: BaseException, *, batch: bool = True) -> None:
        self.log._failed = None
        right(self, WriteFailed(str(error), full=True), batch=batch)

    return wrong


def _sync_tried_again(right: Any) -> Any:
    def wrong(self: SegmentedLog, active: core.Segment) -> None:
        try:
            right(self, active)
        except WalIo:
            self._failed = None
            right(self, active)

    return wrong


def _queue_forgotten(right: Any) -> Any:
    def wrong(self: Shard, error: BaseException, *, batch: bool = True) -> None:
        self._queue = []
        right(self, error, batch=batch)

    return wrong


def _failed_and_kept(right: Any) -> Any:
    def wrong(self: Shard, error: BaseException, *, batch: bool = True) -> None:
        waiting = list(self._waiting)
        right(self, error, batch=batch)
        self._waiting.extend(waiting if not self._waiting else ())

    return wrong


def _links_lost(right: Any) -> Any:
    def wrong(records: Sequence[Any], topic_id: int, first_seq: int, *args: Any, **options: Any) -> bytes:
        return b"".join(right([one], topic_id, first_seq + n, *args, **options) for n, one in enumerate(records))

    return wrong


def _length_before_untold(right: Any) -> Any:
    return lambda self, info: right(self, info._replace(previous=None))


def _announcement_taken_for_made(right: Any) -> Any:
    def wrong(self: SegmentedLog) -> None:
        with contextlib.suppress(WriteFailed):
            right(self)

    return wrong


def _overtaking(right: Any) -> Any:
    def wrong(self: Shard) -> None:
        in_flight, self._in_flight = self._in_flight, None
        right(self)
        self._in_flight = in_flight or self._in_flight

    return wrong


def _start_missed(right: Any) -> Any:
    return lambda self, place: right(self, (place[0], place[1] + 1))


def _in_flight_overlooked(right: Any) -> Any:
    def wrong(self: Shard) -> Lsn | None:
        with mock.patch.object(self, "_in_flight", None):
            found: Lsn | None = right(self)
        return found

    return wrong


def _shard_mutant(name: str, target: object, attribute: str, make: Make, *known: int | str) -> Mutant:
    return Mutant(f"shard: {name}", target, attribute, make, ShardSubject, known)


_SHARD_MUTANTS = (
    _shard_mutant("durable is finished when written", Shard, "_sync_waiting", _finished_when_written),
    _shard_mutant("a sync finishes what was written while it ran", Shard, "_finish_synced", _written_taken_for_synced),
    _shard_mutant("a sync is taken for done when it is asked for", SegmentedLog, "sync_to", _asked_taken_for_synced),
    _shard_mutant("every batch says that everything before is synced", Shard, "_write", _always_flagged),
    _shard_mutant("a batch says so while the sync still runs", Shard, "_write", _flagged_while_syncing, 44),
    _shard_mutant("no batch says so", frame, "set_synced_prefix", _nothing),
    _shard_mutant("no sync mark follows", Shard, "_mark_synced", _nothing),
    _shard_mutant("nothing is due by the clock", Shard, "_agenda", lambda right: lambda self: iter(())),
    _shard_mutant("zeros are written over data", SegmentedLog, "_write_with_zeros", _zeros_over_data),
    _shard_mutant("CURRENT is not written", shard, "write_current", _nothing),
    _shard_mutant("rotation goes on without CURRENT", SegmentedLog, "_announce", _announcement_taken_for_made),
    _shard_mutant("rotation does not sync the old file", SegmentedLog, "rotate", _rotation_never_synced),
    _shard_mutant("the open mark does not tell the length before", frame.FrameCodec, "preamble", _length_before_untold),
    _shard_mutant("a failed sync is taken for want of space", Shard, "_fail", _failed_sync_taken_for_no_space),
    _shard_mutant("a failed sync is tried again", SegmentedLog, "_sync_active", _sync_tried_again),
    _shard_mutant("the remains of a failed write are not cut back", SegmentedLog, "take_back", _not_cut_back),
    _shard_mutant("what is queued behind a failure is forgotten", Shard, "_fail", _queue_forgotten),
    _shard_mutant("what failed goes on waiting", Shard, "_fail", _failed_and_kept, 54),
    _shard_mutant("the records of a submission are not linked", frame, "encode_appends", _links_lost),
    _shard_mutant("a full shard is well again without a file", Shard, "_try_space", _nothing),
    _shard_mutant("the bound on free space is not held", Shard, "_require_free", _nothing, 38),
    _shard_mutant("a write overtakes the one in flight", Shard, "flush", _overtaking, 15),
    _shard_mutant("what is in flight counts as finished", Shard, "oldest_open", _in_flight_overlooked, 15),
    _shard_mutant("a replay position lies inside a submission", Shard, "_note_start", _start_missed, 41),
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant("append acknowledges without a sync", SegmentedLog, "sync_to", _nothing),
    Mutant("rotation does not sync the old segment", SegmentedLog, "rotate", _rotation_unsynced, known=("faults",)),
    Mutant("a new segment's directory entry is not synced", SegmentedLog, "_reserve", _creation_unsynced),
    Mutant("the remains of a failed write are not cut back", SegmentedLog, "take_back", _not_cut_back, known=(36,)),
    Mutant(
        "a short write is taken for a whole one", core, "pwrite_all", _short_write_taken_for_whole, known=("faults",)
    ),
    Mutant("a failed sync does not latch the log", SegmentedLog, "_sync_ended", _failed_sync_forgotten),
    Mutant("recovery does not check checksums", record, "walk", _checksum_ignored),
    Mutant("recovery does not cut the torn tail", SegmentedLog, "recover", _tail_not_cut),
    Mutant(
        "recovery resumes behind bytes that no sync has covered",
        SegmentedLog,
        "_secure",
        _tail_not_rewritten,
        known=("faults",),
    ),
    Mutant("recovery throws an empty last segment away", SegmentedLog, "start", _empty_last_segment_thrown_away),
    Mutant("recovery trusts directory entries of a killed process", SegmentedLog, "start", _start_without_dir_sync),
    Mutant(
        "recovery takes damage in an earlier segment for a torn tail",
        record.RecordCodec,
        "scan",
        _damage_taken_for_a_torn_tail,
        known=("flips",),
    ),
    Mutant(
        "recovery skips a bad record and goes on", record.RecordCodec, "scan", _first_bad_record_skipped, known=(28,)
    ),
    Mutant("cut bytes are not kept", recovery, "_keep_copy", _nothing),
    Mutant("holes are not told", recovery, "summarise", _holes_untold),
    Mutant("a few zeros are taken for prepared space", core, "zero_tail", _zeros_taken_for_prepared_space),
    Mutant("zeros are written over data", SegmentedLog, "_write_with_zeros", _zeros_over_data),
    Mutant("compressed values come back empty", record, "_decompress", _values_lost),
    Mutant("finalize cuts one byte too many", SegmentedLog, "_finalize", _finalized_short),
    Mutant("deletion takes the cutoff segment too", SegmentedLog, "delete_before", _cutoff_deleted_too, known=(10,)),
    Mutant(
        "removals are synced once, at the end", SegmentedLog, "delete_before", _removals_synced_at_the_end, known=(45,)
    ),
    Mutant("the lock is not taken", log, "_take_lock", _lock_not_taken),
    Mutant("the batch timer never syncs", log.Wal, "tick", _nothing, known=(13,)),
    Mutant("readers see what an append refused", log.Wal, "readable_end", _failed_append_readable, known=(11,)),
    Mutant("a reader takes a bad record for the end", reader.WalReader, "_read", lambda right: lambda self, end: None),
    *_SHARD_MUTANTS,
)


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the bug in place."""
    right = getattr(mutant.target, mutant.attribute)
    with mock.patch.object(mutant.target, mutant.attribute, mutant.make(right)):
        yield


def hunt(mutant: Mutant, seeds: Sequence[int]) -> str | None:
    """What the sweeps find with the bug in place, or `None` if it survives them."""
    with applied(mutant):
        for name, search in _in_order(mutant, seeds).items():
            try:
                search()
            except Exception as error:  # noqa: BLE001 - a bug may surface as any error; that is being caught too
                if not is_misfit(error):
                    return f"{name}: {described(error)}"
    return None


def described(error: Exception) -> str:
    """What was found, in words."""
    return str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"


def is_misfit(error: BaseException | None) -> bool:
    """Whether the bug does not fit the code it is put into, or returns what it should not: that any run would find."""
    while error is not None:
        if isinstance(error, TypeError | AttributeError | NameError):
            return True
        error = error.__cause__
    return False


def _in_order(mutant: Mutant, seeds: Sequence[int]) -> dict[str, Callable[[], None]]:
    """What is known to find it, then everything else."""
    subject = mutant.subject()
    searches = _searches(subject, seeds)
    lives = not isinstance(subject, WalSubject)
    known: dict[str, Callable[[], None]] = {
        str(one): searches[one]
        if isinstance(one, str)
        else functools.partial(_crashes, subject, [one], every_call=not lives)
        for one in mutant.known
    }
    return known | searches


def _searches(subject: Subject, seeds: Sequence[int]) -> dict[str, Callable[[], None]]:
    """The sweeps of a subject, the cheap ones first: most bugs fall to them."""
    searches: dict[str, Callable[[], None]] = {
        "crash": lambda: _crashes(subject, seeds[:15]),
        "flips": lambda: _damages(damage.flips, 23),
        "truncate": lambda: _damages(damage.truncations, 7),
        "faults": lambda: _faults(subject, 11),
        "more crashes": lambda: _crashes(subject, seeds[15:]),
        "all flips": lambda: _damages(damage.flips, 1),
        "all faults": lambda: _faults(subject, 1),
    }
    if isinstance(subject, WalSubject):
        return searches
    # Damage at rest is done to files of the library; what a shard notices of it, its own driver asks.
    lives = {"lives": lambda: _crashes(subject, seeds, every_call=False)}
    return lives | {name: search for name, search in searches.items() if "flips" not in name and name != "truncate"}


def _crashes(subject: Subject, seeds: Sequence[int], *, every_call: bool = True) -> None:
    for seed in seeds:
        sweep.crash_run(subject, seed, epochs=4, every_call=every_call)


def _damages(kind: Callable[[damage.Sample], Iterator[damage.Damage]], step: int) -> None:
    one = damage.sample(fail=True, always=False)
    for each in itertools.islice(kind(one), 0, None, step):
        damage.check(one, each)


def _faults(subject: Subject, step: int) -> None:
    for workload in subject.fault_workloads():
        for case in itertools.islice(faults.cases(subject, workload), 0, None, step):
            faults.run_case(subject, case)
