"""Space back: whole segments that are dead are dropped, mostly dead ones rewritten (06 §15.3, §15.5).

A drop that removes a segment's `.idx` leaves a range that nothing explains but the floors, so it waits until a durable
mark carries floors that cover it [S-277]: `explain_dead_prefix` raises `delete_below` before the mark, `drop_dead`
follows behind it. Owner only; file work goes aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np

from topics.codec.segment import LOST
from topics.engine.cold import Drop
from topics.engine.core import Core
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.storage import reclaim as storage
from topics.storage.descriptor import Segment
from topics.storage.reindex import live_of
from topics.storage.segments import TopicSegments

log = logging.getLogger("topics.engine")

REWRITE_SHARE = 2
"""A segment is rewritten when at least one in so many of its bytes is dead."""


def explain_dead_prefix(topic: Topic) -> None:
    """Raise `delete_below` over sealed segments in which nothing lives and no hole has to be told."""
    segments = topic.index.segments
    if segments is None or topic.retry or not segments.segments:
        return
    first = segments.segments[0]
    if not first.sealed or (first.live and first.last >= topic.floor):
        return
    earliest = topic.earliest_seq
    for one in segments.segments:
        if not one.sealed or one.last >= earliest:
            return
        if one.last < topic.floor:
            continue
        if one.busy or len(one.pending) or one.lost or _has_holes(segments, one, topic.evict_floor):
            return
        topic.raise_floors(1, 1, one.last + 1)


def _has_holes(segments: TopicSegments, one: Segment, evict_floor: int) -> bool:
    """Whether a hole at or above the evict floor is kept in it."""
    if one.last < evict_floor:
        return False
    if one.gap is not None:
        return bool(one.gap.reason)
    with segments.entries(one) as entries:
        flags = entries["flags"][max(evict_floor - one.first, 0) :]
        return bool((flags & np.uint8(LOST)).any())


def drop_dead(core: Core) -> None:
    """Drop what the newest durable mark explains, and the data of segments that are dead in mid-log [S-274]."""
    for id in list(core.unsealed):
        topic = core.topics.get(id)
        if topic is None or topic.marked is None:
            continue
        try:
            _drop_of(core, topic)
        except OSError as error:
            log.error("topic %r: nothing is dropped now: %s", topic.name, error)
        else:
            if _is_settled(core, topic):
                core.unsealed.discard(id)


def _drop_of(core: Core, topic: Topic) -> None:
    segments = topic.index.segments
    assert segments is not None
    assert topic.marked is not None
    evicted, below = max(topic.marked[1:3]), max(topic.marked[1:])
    for one in list(segments.segments):
        if not one.sealed or one.busy or one.lost:
            continue
        if one.last < evicted or (one.last < below and not _has_holes(segments, one, evicted)):
            segments.forget(one)
            _unlink(core, topic, one, stub=False)
        elif one.live == 0 and has_frames(one) and not len(one.pending) and one.first not in segments.reader.damaged:
            drop_data(core, topic, one)


def has_frames(one: Segment) -> bool:
    """Whether there is anything to drop but its index, here or in the cold tier."""
    return one.has_data or (one.cold and not one.stub and not one.unindexed)


def drop_data(core: Core, topic: Topic, one: Segment) -> None:
    """Drop all of a segment but its `.idx`: nothing in it lives, and every mark that says so is on disk."""
    assert topic.index.segments is not None
    one.stub, one.has_tags = True, False
    topic.index.segments.reader.forget(one)
    _unlink(core, topic, one, stub=True)


def _is_settled(core: Core, topic: Topic) -> bool:
    """Whether no checkpoint has anything to do for a topic until it changes again."""
    segments = topic.index.segments
    assert segments is not None
    busy = topic.index.tail.records or topic.needed or topic.retry or segments.has_pending or segments.reader.damaged
    return not busy and segments.active is None and topic.id not in core.changed


def _unlink(core: Core, topic: Topic, one: Segment, *, stub: bool) -> None:
    assert topic.index.segments is not None
    core.dropped_segments += 1
    if one.cold:
        drop = Drop(topic.id, one.first, one.generation, topic.index.segments.files, stub)
        core.pins.when_free(topic.id, one.first, None, partial(core.cold.drop, drop))
        return
    work = partial(storage.unlink, topic.index.segments.files, one.first, stub=stub)
    unlink_when_free(core, topic, one.first, None, work)


def unlink_when_free(core: Core, topic: Topic, first: int, generation: int | None, unlink: Callable[[], None]) -> None:
    """Unlink files of a segment off the owner, once no pin holds them [A-8]; a deleted topic's go with it."""

    def begin() -> None:
        if not topic.removed:
            core.owner.aside("files", unlink, core.note_failure(f"unlinking segment {first} of {topic.name!r}"))

    core.pins.when_free(topic.id, first, generation, begin)


def dead_bytes(segments: TopicSegments, one: Segment) -> int:
    """Bytes of `.data` that a rewrite gives back."""
    with segments.entries(one) as entries:
        return one.data_len - int(entries["len"][live_of(entries)].astype(np.int64).sum())


def is_mostly_dead(segments: TopicSegments, one: Segment, least: int) -> bool:
    """Whether a rewrite is worth while (06 §15.5)."""
    # A cheap bound first: accounted bytes are less than frame bytes.
    if not one.live or one.data_len < least or one.live_bytes * REWRITE_SHARE > one.data_len:
        return False
    dead = dead_bytes(segments, one)
    return dead >= least and dead * REWRITE_SHARE >= one.data_len


def rewrite(
    core: Core,
    topic: Topic,
    one: Segment,
    done: Callable[[BaseException | None], None],
    data: bytes | None = None,
) -> None:
    """Rewrite a sealed segment that no job has [S-281]; `done` hears when it is over, or why nothing changed.

    `data` are the frames of a cold one, which is a hot one then [S-285].
    """
    segments = topic.index.segments
    assert segments is not None
    job, old = storage.Rewrite(segments, one, data), one.generation
    unlink_old = partial(storage.unlink_data, segments.files, one.first, old)

    def copied(error: BaseException | None) -> None:
        if error is not None:
            give_up(error)
            return
        job.hand_over()
        _when_deletes_are_synced(core, topic, put_in_force)

    def put_in_force(error: BaseException | None) -> None:
        if error is not None:
            give_up(error)
        else:
            core.owner.aside("files", job.finish, finished)

    def finished(error: BaseException | None) -> None:
        if error is not None:
            give_up(error)
            return
        job.commit()
        unlink_when_free(core, topic, one.first, old, unlink_old)
        core.owner.aside("files", job.write_tags, tagged)

    def tagged(error: BaseException | None) -> None:
        core.note_failure(f"the tags of segment {one.first} of {topic.name!r}")(error)
        done(None)

    def give_up(error: BaseException) -> None:
        job.abandon()
        log.error("segment %d of %r was not rewritten: %s", one.first, topic.name, error)
        left = core.note_failure(f"the copy of segment {one.first} of {topic.name!r}")
        core.owner.aside("files", job.discard, left)
        done(error)

    core.owner.aside("files", job.copy, copied)


def _when_deletes_are_synced(core: Core, topic: Topic, then: Callable[[BaseException | None], None]) -> None:
    """Go on once no power loss takes back a delete of this topic: a record that it left out would be neither there nor
    deleted.
    """
    shard = core.shard(topic.id)
    if not any(lsn.group == shard.key and lsn[1:] >= shard.log.synced() for lsn in topic.needed):
        then(None)
        return
    shard.when_synced(lambda outcome: then(outcome if isinstance(outcome, TopicsError) else None))


class Rewriter:
    """Rewrites one segment at a time, within a rate of bytes per second [S-282]."""

    def __init__(self, core: Core) -> None:
        self.total = 0
        self._core = core
        self._busy = False
        self._free_at_ns = 0

    def tick(self) -> None:
        """Begin a rewrite if one is due and the rate allows it."""
        core = self._core
        now = core.clock.now_ms()
        if self._busy or not core.config.reclaim_rewrite or core.clock.monotonic_ns() < self._free_at_ns:
            return
        for topic in core.topics.values():
            if 0 <= now - topic.rewritten_ms < core.config.rewrite_every_ms and topic.rewritten_ms:
                continue
            try:
                one = self._due(topic)
                if one is not None:
                    self._begin(topic, one, now)
                    return
            except OSError as error:
                self._busy = False
                log.error("topic %r is not rewritten now: %s", topic.name, error)

    def _due(self, topic: Topic) -> Segment | None:
        segments = topic.index.segments
        if segments is None or topic.checkpointing:
            return None
        least = self._core.config.rewrite_min_bytes
        for one in segments.segments:
            usable = one.sealed and one.has_data and not one.busy and one.last <= topic.index.ckpt_seq
            if not usable or one.first in segments.reader.damaged or self._core.pins.is_frozen(topic.id, one.first):
                continue
            if is_mostly_dead(segments, one, least):
                return one
        return None

    def _begin(self, topic: Topic, one: Segment, now: int) -> None:
        self._busy = True
        topic.rewritten_ms = now
        moved = one.data_len * 2

        def over(error: BaseException | None) -> None:
            self.total += error is None
            self._rest(moved)

        rewrite(self._core, topic, one, over)

    def _rest(self, moved: int) -> None:
        """Wait as long as the bytes moved may take."""
        self._busy = False
        rate = max(self._core.config.reclaim_bytes_per_sec, 1)
        self._free_at_ns = self._core.clock.monotonic_ns() + moved * 1_000_000_000 // rate
