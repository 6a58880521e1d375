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
from topics.engine.core import Core
from topics.engine.topic import Topic
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
        if not one.sealed or one.busy or one.cold or one.lost:
            continue
        if one.last < evicted or (one.last < below and not _has_holes(segments, one, evicted)):
            segments.forget(one)
            _unlink(core, topic, one, stub=False)
        elif one.live == 0 and one.has_data and not len(one.pending) and one.first not in segments.reader.damaged:
            one.stub, one.has_tags = True, False
            segments.reader.forget(one)
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
    work = partial(storage.unlink, topic.index.segments.files, one.first, stub=stub)
    unlink_when_free(core, topic, one.first, None, work)


def unlink_when_free(core: Core, topic: Topic, first: int, generation: int | None, unlink: Callable[[], None]) -> None:
    """Unlink files of a segment off the owner, once no pin holds them [A-8]; a deleted topic's go with it."""

    def begin() -> None:
        if not topic.removed:
            core.owner.aside("files", unlink, core.note_failure(f"unlinking segment {first} of {topic.name!r}"))

    core.pins.when_free(topic.id, first, generation, begin)


class Rewriter:
    """Rewrites one segment at a time, within a rate of bytes per second [S-282]."""

    def __init__(self, core: Core) -> None:
        self.total = 0
        self._core = core
        self._busy = False
        self._free_at_ms = 0

    def tick(self) -> None:
        """Begin a rewrite if one is due and the rate allows it."""
        core = self._core
        now = core.clock.now_ms()
        if self._busy or not core.config.reclaim_rewrite or now < self._free_at_ms:
            return
        for topic in core.topics.values():
            if now - topic.rewritten_ms < core.config.rewrite_every_ms and topic.rewritten_ms:
                continue
            try:
                one = self._due(topic)
                if one is not None:
                    self._begin(topic, one, now)
                    return
            except OSError as error:
                log.error("topic %r is not rewritten now: %s", topic.name, error)

    def _due(self, topic: Topic) -> Segment | None:
        segments = topic.index.segments
        if segments is None or topic.checkpointing:
            return None
        least = self._core.config.rewrite_min_bytes
        for one in segments.segments:
            usable = one.sealed and one.has_data and not one.busy and one.live and one.last <= topic.index.ckpt_seq
            if not usable or one.data_len < least or one.first in segments.reader.damaged:
                continue
            if self._core.pins.is_frozen(topic.id, one.first):
                continue
            # A cheap bound first: accounted bytes are less than frame bytes.
            if one.live_bytes * REWRITE_SHARE > one.data_len:
                continue
            with segments.entries(one) as entries:
                kept = int(entries["len"][live_of(entries)].astype(np.int64).sum())
            dead = one.data_len - kept
            if dead >= least and dead * REWRITE_SHARE >= one.data_len:
                return one
        return None

    def _begin(self, topic: Topic, one: Segment, now: int) -> None:
        core, segments = self._core, topic.index.segments
        assert segments is not None
        rewrite = storage.Rewrite(segments, one)
        self._busy = True
        topic.rewritten_ms = now
        moved = one.data_len * 2
        unlink_old = partial(storage.unlink_data, segments.files, one.first, one.generation)
        old = one.generation

        def copied(error: BaseException | None) -> None:
            if error is not None:
                give_up(error)
                return
            rewrite.hand_over()
            core.owner.aside("files", rewrite.finish, finished)

        def finished(error: BaseException | None) -> None:
            if error is not None:
                give_up(error)
                return
            rewrite.commit()
            self.total += 1
            unlink_when_free(core, topic, one.first, old, unlink_old)
            core.owner.aside("files", rewrite.write_tags, cleaned)

        def cleaned(error: BaseException | None) -> None:
            core.note_failure(f"the tags of segment {one.first} of {topic.name!r}")(error)
            self._rest(moved)

        def give_up(error: BaseException) -> None:
            rewrite.abandon()
            log.error("segment %d of %r was not rewritten: %s", one.first, topic.name, error)
            self._rest(moved)

        core.owner.aside("files", rewrite.copy, copied)

    def _rest(self, moved: int) -> None:
        """Wait as long as the bytes moved may take."""
        self._busy = False
        rate = max(self._core.config.reclaim_bytes_per_sec, 1)
        self._free_at_ms = self._core.clock.now_ms() + moved * 1000 // rate
