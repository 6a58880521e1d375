"""What opening a log finds and mends (07 §6). Runs once, in the opener's thread, under the log's lock.

    end of a segment                                    verdict   truncate              fail
    at a record's end, or only zeros follow             clean     zeros cut             zeros cut
    bad record in the last segment                      torn      cut, counted          cut, counted
    bad record before that: it was durable [W-16]       corrupt   cut, hole reported    WalCorrupt
    segment missing between two others                  hole      reported              WalCorrupt
    valid checksum, unknown flags                       format    UnsupportedFormat     UnsupportedFormat

Cut bytes that are not all zero are copied beside the segment first: nothing is destroyed [W-61].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from topics import paths
from topics.errors import UnsupportedFormat, WalCorrupt
from topics.fs import Fs, close_quietly, pread_exact, replace_file
from topics.wal.core import CoreReport, SegmentedLog, SegmentScan

MISSING_MAX = 100_000
"""Missing segments that are reported as holes; beyond it the log is refused."""


class Position(NamedTuple):
    """A place in the log: the first byte of a record. Positions order as the log does."""

    segment_id: int
    offset: int


class Hole(NamedTuple):
    """Records that were durable and are gone; `bytes` is `None` for a whole missing segment."""

    segment_id: int
    offset: int
    bytes: int | None


class RecoveryInfo(NamedTuple):
    """What opening found (07 §6)."""

    valid_records: int
    segments_scanned: int
    bytes_truncated: int
    prealloc_bytes_trimmed: int
    last_valid_position: Position | None
    """Segment and end offset of the last valid record."""
    corruption_detected: bool
    holes: list[Hole]
    elapsed_ms: float


def recover(log: SegmentedLog, policy: Literal["truncate", "fail"]) -> RecoveryInfo:
    """Scan all segments, refuse or mend, and say what was found."""
    start = log.clock.monotonic_ns()
    report = log.recover(lambda scans: _decide(log, scans, policy))
    return summarise(report, (log.clock.monotonic_ns() - start) / 1e6)


def _decide(log: SegmentedLog, scans: Sequence[SegmentScan], policy: str) -> list[SegmentScan]:
    for segment in scans:
        if segment.scan.verdict == "format":
            raise UnsupportedFormat(f"{log.path(segment.id)} {segment.scan.detail}: written by a newer version")
    missing = missing_ids(scans)
    if policy == "fail":
        _refuse_damage(log, scans, missing)
    cut = [segment for segment in scans if segment.size > segment.scan.end]
    for segment in cut:
        if segment.damaged_bytes:
            _keep_copy(log.fs, log.dir, segment)
    return cut


def _refuse_damage(log: SegmentedLog, scans: Sequence[SegmentScan], missing: Sequence[int]) -> None:
    for segment in scans:
        if segment.scan.verdict == "corrupt":
            raise WalCorrupt(f"{log.path(segment.id)} {segment.scan.detail}: these bytes were durable")
    for id in missing:
        raise WalCorrupt(f"{log.path(id)} is missing between two others")


def missing_ids(scans: Sequence[SegmentScan]) -> list[int]:
    """Ids without a file between two segments with content."""
    ids = [segment.id for segment in scans if segment.place != "beyond"]
    for low, high in pairwise(ids):
        if high - low > MISSING_MAX:
            # No log loses that many files: a stray file is named like a segment. Listing the ids would not help.
            raise WalCorrupt(f"segment {high} lies {high - low} ids behind segment {low}: it cannot belong to this log")
    return [id for low, high in pairwise(ids) for id in range(low + 1, high)]


def _keep_copy(fs: Fs, dir: str, segment: SegmentScan) -> None:
    """Copy what will be cut to the first free `.cut` name, unless the newest copy already is it."""
    source = fs.open(f"{dir}/{paths.library_segment(segment.id)}", "r")
    try:
        data = pread_exact(source, segment.damaged_bytes, segment.scan.end)
    finally:
        close_quietly(source)
    count = 0
    while fs.exists(f"{dir}/{paths.library_cut(segment.id, count)}"):
        count += 1
    if count and _content(fs, f"{dir}/{paths.library_cut(segment.id, count - 1)}") == data:
        return
    replace_file(fs, f"{dir}/{paths.library_cut(segment.id, count)}", data)


def _content(fs: Fs, path: str) -> bytes:
    file = fs.open(path, "r")
    try:
        return pread_exact(file, file.size(), 0)
    finally:
        close_quietly(file)


def summarise(report: CoreReport, elapsed_ms: float) -> RecoveryInfo:
    """The user's view of a core report."""
    kept = [segment for segment in report.scans if segment.place != "beyond"]
    holes = [Hole(id, 0, None) for id in missing_ids(report.scans)]
    holes += [Hole(s.id, s.scan.end, s.damaged_bytes) for s in kept if s.scan.verdict == "corrupt"]
    with_records = [segment for segment in kept if segment.scan.records]
    last = with_records[-1] if with_records else None
    truncated = sum(segment.damaged_bytes for segment in report.cut)
    return RecoveryInfo(
        valid_records=sum(segment.scan.records for segment in kept),
        segments_scanned=len(report.scans),
        bytes_truncated=truncated,
        prealloc_bytes_trimmed=sum(s.size - max(s.scan.end, s.data_end) for s in report.cut),
        last_valid_position=None if last is None else Position(last.id, last.scan.end),
        corruption_detected=truncated > 0 or bool(holes),
        holes=sorted(holes, key=lambda hole: hole[:2]),
        elapsed_ms=elapsed_ms,
    )
