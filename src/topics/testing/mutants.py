"""Seeded bugs: proof that the sweeps would notice (13 T5).

Each mutant replaces one step of the library with a plausible mistake. The sweeps run against it until one of them
finds a violation; a mutant that survives is a hole in the oracle, and counts as one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

from topics.errors import WriteFailed
from topics.fs import File, Fs, ensure_dir
from topics.testing import damage, faults, sweep
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
    def wrong(self: SegmentedLog, segment: core.Segment, file: Any, size: int) -> None:
        with mock.patch.object(self, "fs", _WithoutDirSync(self.fs)):
            right(self, segment, file, size)

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


def _values_lost(right: Any) -> Any:
    return lambda stored, method: b""


MUTANTS: tuple[Mutant, ...] = (
    Mutant("append acknowledges without a sync", SegmentedLog, "sync_to", _nothing),
    Mutant("rotation does not sync the old segment", SegmentedLog, "rotate", _rotation_unsynced),
    Mutant("a new segment's directory entry is not synced", SegmentedLog, "_reserve", _creation_unsynced),
    Mutant("the remains of a failed write are not cut back", SegmentedLog, "take_back", _not_cut_back),
    Mutant("a short write is taken for a whole one", core, "pwrite_all", _short_write_taken_for_whole),
    Mutant("a failed sync does not latch the log", SegmentedLog, "_latch", _nothing),
    Mutant("recovery does not check checksums", record, "walk", _checksum_ignored),
    Mutant("recovery does not cut the torn tail", SegmentedLog, "recover", _tail_not_cut),
    Mutant("recovery resumes behind bytes that no sync has covered", SegmentedLog, "_secure", _tail_not_rewritten),
    Mutant("recovery throws an empty last segment away", SegmentedLog, "start", _empty_last_segment_thrown_away),
    Mutant("recovery trusts directory entries of a killed process", SegmentedLog, "start", _start_without_dir_sync),
    Mutant(
        "recovery takes damage in an earlier segment for a torn tail",
        record.RecordCodec,
        "scan",
        _damage_taken_for_a_torn_tail,
    ),
    Mutant("recovery skips a bad record and goes on", record.RecordCodec, "scan", _first_bad_record_skipped),
    Mutant("cut bytes are not kept", recovery, "_keep_copy", _nothing),
    Mutant("holes are not told", recovery, "summarise", _holes_untold),
    Mutant("a few zeros are taken for prepared space", core, "zero_tail", _zeros_taken_for_prepared_space),
    Mutant("compressed values come back empty", record, "_decompress", _values_lost),
    Mutant("finalize cuts one byte too many", SegmentedLog, "_finalize", _finalized_short),
    Mutant("deletion takes the cutoff segment too", SegmentedLog, "delete_before", _cutoff_deleted_too),
    Mutant("removals are synced once, at the end", SegmentedLog, "delete_before", _removals_synced_at_the_end),
    Mutant("the lock is not taken", log, "_take_lock", _lock_not_taken),
    Mutant("the batch timer never syncs", log.Wal, "tick", _nothing),
    Mutant("readers see what an append refused", log.Wal, "readable_end", _failed_append_readable),
    Mutant("a reader takes a bad record for the end", reader.WalReader, "_read", lambda right: lambda self, end: None),
)


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the bug in place."""
    right = getattr(mutant.target, mutant.attribute)
    with mock.patch.object(mutant.target, mutant.attribute, mutant.make(right)):
        yield


def hunt(mutant: Mutant, seeds: Sequence[int]) -> str | None:
    """What the sweeps find with the bug in place, or `None` if it survives them."""
    subject: Subject = WalSubject()
    with applied(mutant):
        # The cheap looks first: most bugs fall to them.
        searches: dict[str, Callable[[], None]] = {
            "crash": lambda: _crashes(subject, seeds[:15]),
            "flips": lambda: _damages(damage.flips, 23),
            "truncate": lambda: _damages(damage.truncations, 7),
            "faults": lambda: _faults(subject, 11),
            "more crashes": lambda: _crashes(subject, seeds[15:]),
            "all flips": lambda: _damages(damage.flips, 1),
            "all faults": lambda: _faults(subject, 1),
        }
        for name, search in searches.items():
            try:
                search()
            except Violation as violation:
                return f"{name}: {violation}"
            except Exception as error:  # noqa: BLE001 - a bug may surface as any error; that is being caught too
                return f"{name}: {type(error).__name__}: {error}"
    return None


def _crashes(subject: Subject, seeds: Sequence[int]) -> None:
    for seed in seeds:
        sweep.crash_run(subject, seed, epochs=4)


def _damages(kind: Callable[[damage.Sample], Iterator[damage.Damage]], step: int) -> None:
    one = damage.sample(fail=True, always=False)
    for each in itertools.islice(kind(one), 0, None, step):
        damage.check(one, each)


def _faults(subject: Subject, step: int) -> None:
    for workload in subject.fault_workloads():
        for case in itertools.islice(faults.cases(subject, workload), 0, None, step):
            faults.run_case(subject, case)
