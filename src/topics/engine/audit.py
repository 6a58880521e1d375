"""The audit: a while after a start, the counts of all sealed segments are compared with their files (06 §14 step 6).

A start believes the counts of its snapshot, so that it does no work per sealed record. This looks behind them, one
segment after another: the index is read and counted on a thread of its own, with `pread`, and its pages are let go, so
that history does not become resident [S-150]. A count that is wrong is corrected and logged. An index that does not
verify is left to the reader, which makes it anew from the data.

Deletes go on meanwhile: a segment whose marks are not all on disk, or that changed while it was read, is left out. Its
counts were made in this run, or the next start counts it [S-192]. Owner only, but for `_read`.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Final

from topics.engine.core import Core
from topics.engine.topic import Topic
from topics.storage.descriptor import Segment
from topics.storage.reindex import Stats, stats
from topics.storage.segfile import SegmentFiles, entries_in, verified
from topics.storage.segments import TopicSegments

log = logging.getLogger("topics.engine")

AFTER_NS: Final = 60_000_000_000
"""Behind the start, whose readers and writers have the disk for themselves until then."""
LANE: Final = "audit"


class Audit:
    """One per engine and run."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._left: deque[tuple[int, int]] = deque()
        self.begun = False
        self.looked_at = 0
        self.corrected = 0

    def begin(self) -> None:
        """Look at every segment that is sealed now."""
        self.begun = True
        for topic in self._core.topics.values():
            if topic.index.segments is not None:
                self._left += [(topic.id, one.first) for one in topic.index.segments.segments if _is_known(one)]
        self._next()

    def _next(self) -> None:
        while self._left and not self._core.closing:
            topic, segment = self._find(*self._left.popleft())
            if topic is None or segment is None or not _is_known(segment):
                continue
            reading = _Reading(_segments(topic).files, segment)
            self._core.owner.apart(LANE, reading.run, partial(self._read, topic, segment, reading))
            return

    def _find(self, topic_id: int, first: int) -> tuple[Topic | None, Segment | None]:
        topic = self._core.topics.get(topic_id)
        if topic is None or topic.index.segments is None:
            return None, None
        found = topic.index.segments.find(first)
        return topic, found if found is not None and found.first == first else None

    def _read(self, topic: Topic, segment: Segment, reading: _Reading, error: BaseException | None) -> None:
        if self._core.closing:
            return
        if error is not None:
            log.warning("topic %s, segment %d is not audited: %s", topic.name, segment.first, error)
        elif self._find(topic.id, segment.first) == (topic, segment) and reading.is_of(segment):
            self._compare(topic, segment, reading)
        self._core.owner.soon(self._next)

    def _compare(self, topic: Topic, segment: Segment, reading: _Reading) -> None:
        self.looked_at += 1
        found = reading.found
        if found is None or (found.live, found.live_bytes) == (segment.live, segment.live_bytes):
            return
        log.warning(
            "topic %s, segment %d had %d live records of %d bytes in the snapshot and has %d of %d",
            topic.name, segment.first, segment.live, segment.live_bytes, found.live, found.live_bytes,
        )  # fmt: skip
        self.corrected += 1
        segment.learn(found, counts=True)
        topic.recount()
        self._core.changed.add(topic.id)


class _Reading:
    """The index of one segment, read and counted on another thread."""

    def __init__(self, files: SegmentFiles, segment: Segment) -> None:
        self._files = files
        self._first = segment.first
        self._as_was = _version(segment)
        self._n = segment.n
        self.found: Stats | None = None
        """None: the file is not what the descriptor knows."""

    def run(self) -> None:
        """Anywhere."""
        raw = self._files.read(self._files.path(self._first, "idx"), keep=False)
        footer = None if raw is None else verified(self._files, self._first, raw)
        if raw is not None and footer is not None and (footer.n, footer.generation) == self._as_was[:2]:
            self.found = stats(entries_in(raw, self._n))

    def is_of(self, segment: Segment) -> bool:
        """Whether nothing happened to the segment since."""
        return _is_known(segment) and _version(segment) == self._as_was


def _version(segment: Segment) -> tuple[int, ...]:
    return segment.n, segment.generation, segment.idx_xxh3, segment.live, segment.live_bytes


def _is_known(segment: Segment) -> bool:
    """Whether its file has all that the descriptor counts."""
    return (
        segment.sealed
        and segment.gap is None
        and not segment.busy
        and not segment.unindexed
        and not segment.lost
        and not len(segment.pending)
    )


def _segments(topic: Topic) -> TopicSegments:
    assert topic.index.segments is not None
    return topic.index.segments
