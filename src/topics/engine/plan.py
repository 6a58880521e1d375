"""Planning for external readers: which files hold a topic, and up to where they may be believed [A-8].

    retention first, then one look at everything in one stretch: floors, ends, segments

    ckpt_seq       segments hold everything up to it, durably; behind it, read through the engine
    durable_seq    no crash takes back anything up to it: it is in segments, or its log bytes are synced
    pending        deletes that the segment's `.idx` on disk does not show yet

A reader opens files by itself, so deletes that are only in memory would escape it. They are brought to disk before the
answer; what came in meanwhile, or could not be written, is told as `pending`.

A start leaves most segments' times unknown until they are asked for: they are looked up in slices [P-10]. Owner only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_hexdigest

from topics import paths
from topics.engine import retention
from topics.engine.checkpoint import Asked, can_log
from topics.engine.core import Core, Outcome, guarded
from topics.engine.topic import Topic
from topics.errors import TopicNotFound
from topics.model import Durability
from topics.storage.descriptor import Segment
from topics.storage.reindex import stats
from topics.storage.segments import TopicSegments
from topics.storage.tail import NOWHERE, OFFSET_BITS

SEGMENTS_MAX: Final = 10_000
"""Of one answer."""
SLICE_NS: Final = 2_000_000
BRINGINGS_MAX: Final = 2
"""How often marks are brought to disk for one answer: deletes may arrive faster than they are written."""
GAPS: Final = {0: "deleted", 1: "source_trim", 2: "corrupt", 3: "crash"}
_STATE = struct.Struct("<QQQQQHBB?")

BringIn = Callable[[int, Asked], None]
"""Have a checkpoint take a topic."""


class Floors(NamedTuple):
    """The first seq that each kind of removal has left."""

    cap: int
    ttl: int
    deleted_below: int


class PlannedSegment(NamedTuple):
    """One segment as a reader needs it."""

    first_seq: int
    last_seq: int
    records: int
    """Live, floors applied."""
    bytes: int
    """Of `.data`."""
    min_ts: int
    max_ts: int
    tier: str
    path: str
    """Of `.data`, below the data directory; of `.idx` where there is no data."""
    generation: int
    sealed: bool
    gap: str | None
    """Why a gap segment's seqs are not there."""
    pending: list[tuple[int, int]]
    version: str


class Plan(NamedTuple):
    """A topic at one instant."""

    topic: str
    id: int
    epoch: int
    store: str
    durability: Durability
    now_ms: int
    head_seq: int
    durable_seq: int
    ckpt_seq: int
    earliest_seq: int
    floors: Floors
    segments: list[PlannedSegment]
    next_seq: int | None
    """Where the next page begins."""
    version: str


class Range(NamedTuple):
    """What of a topic is asked for: segments that hold a seq from one to the other, at most so many."""

    from_seq: int = 0
    to_seq: int = paths.U64_MAX
    limit: int = SEGMENTS_MAX


def plan(core: Core, name: str, asked: Range, bring_in: BringIn | None, done: Outcome) -> None:
    """Answers a `Plan`; `bring_in` None: nothing is ever written to segments."""
    core.with_topic(name, lambda topic: _Planner(core, topic, asked, bring_in, done).look(), done)


class _Planner:
    """One answer on its way: whatever has to be waited for, everything is looked at anew behind it."""

    def __init__(self, core: Core, topic: Topic, asked: Range, bring_in: BringIn | None, done: Outcome) -> None:
        self._core = core
        self._topic = topic
        self._asked = asked
        self._bring_in = bring_in
        self._done = done
        self._brought = 0

    def look(self) -> None:
        """Apply retention, then see whether everything is known."""
        retention.catch_up(self._core, self._topic)
        retention.expire(self._core, self._topic, self._go_on, self._done)

    def _again(self, outcome: object = None) -> None:
        guarded(self.look, self._done)

    def _go_on(self) -> None:
        core, topic = self._core, self._topic
        if core.topics.get(topic.id) is not topic:
            self._done(TopicNotFound(topic.name))
            return
        page, _ = self._page()
        if not self._learn(page):
            core.owner.soon(self._again)
        elif any(len(one.pending) for one in page) and self._may_bring_in():
            assert self._bring_in is not None
            self._brought += 1
            self._bring_in(topic.id, self._again)
        else:
            self._done(self._plan())

    def _page(self) -> tuple[list[Segment], int | None]:
        """The segments of the answer, and where the next one would begin."""
        asked, segments = self._asked, self._topic.index.segments
        if segments is None:
            return [], None
        found = segments.between(max(asked.from_seq, self._topic.evict_floor), asked.to_seq)
        return found[: asked.limit], found[asked.limit].first if len(found) > asked.limit else None

    def _learn(self, page: list[Segment]) -> bool:
        """Look up times that are not known yet; False: there are more, other work first."""
        now = self._core.clock.monotonic_ns
        began = now()
        for one in page:
            if one.min_ts is None:
                if now() - began > SLICE_NS:
                    return False
                assert self._topic.index.segments is not None
                self._topic.index.segments.ts_range(one)
        return True

    def _may_bring_in(self) -> bool:
        if self._bring_in is None or self._brought >= BRINGINGS_MAX:
            return False
        return can_log(self._core.shard(self._topic.id))

    def _plan(self) -> Plan:
        core, topic = self._core, self._topic
        segments = topic.index.segments
        page, next_seq = self._page()
        floors = Floors(topic.cap_floor, topic.ttl_floor, topic.delete_below)
        ckpt_seq = topic.index.ckpt_seq
        told = (topic.id, topic.epoch, core.store_id, topic.config.durability, ckpt_seq, topic.earliest_seq, floors)
        states = b"" if segments is None else b"".join(map(_state, segments.segments))
        return Plan(
            topic.name, topic.id, topic.epoch, core.store_id, topic.config.durability,
            max(core.clock.now_ms(), topic.ttl_now), topic.head, durable_seq(core, topic), ckpt_seq,
            topic.earliest_seq, floors, [_planned(topic, segments, one) for one in page if segments is not None],
            next_seq, xxh3_64_hexdigest(repr(told).encode() + states),
        )  # fmt: skip


def durable_seq(core: Core, topic: Topic) -> int:
    """The highest seq up to which no crash takes anything back; 0 for `ephemeral` [A-8]."""
    if core.wal is None or topic.config.durability == "ephemeral":
        return 0
    through = synced_seq(core, topic)
    for overlay in topic.index.overlays:
        # What is in memory only goes with the process, although the log has a gap for it.
        first = overlay.tail.lowest_live(topic.floor)
        if first is not None:
            through = min(through, first - 1)
    return through


def synced_seq(core: Core, topic: Topic) -> int:
    """The highest seq up to which everything logged is synced; what is in memory only is no matter of it [WCH-7]."""
    assert core.wal is not None
    wal, settled = core.wal, core.settling is None

    def is_kept(location: int) -> bool:
        if location >> OFFSET_BITS == 0:
            return settled and location == NOWHERE
        return wal.is_synced(location)

    return topic.index.tail.kept_through(is_kept)


def _planned(topic: Topic, segments: TopicSegments, one: Segment) -> PlannedSegment:
    min_ts, max_ts = segments.ts_range(one)
    records = _live_from(topic.floor, segments, one)
    is_cold, has_data = one.cold, one.has_data or one.cold
    name = paths.segment(one.first, "data", one.generation) if has_data else paths.segment(one.first, "idx")
    # The floors are in it: they say which of its records count.
    version = xxh3_64_hexdigest(_state(one) + records.to_bytes(8, "little"))
    return PlannedSegment(
        one.first, one.last, records, one.data_len if has_data else 0, min_ts, max_ts, "cold" if is_cold else "hot",
        f"{paths.TOPICS_DIR}/{paths.topic_dir(topic.id)}/{name}", one.generation, one.sealed,
        None if one.gap is None else GAPS[one.gap.reason], _pending(one), version,
    )  # fmt: skip


def _live_from(floor: int, segments: TopicSegments, one: Segment) -> int:
    if one.first >= floor or not one.live:
        return one.live
    if one.last < floor:
        return 0
    with segments.entries(one) as entries:
        return stats(entries[floor - one.first :]).live


def _state(one: Segment) -> bytes:
    """What tells one state of a segment from another."""
    reason = 0xFF if one.gap is None else one.gap.reason
    tier = one.has_data + 2 * one.cold
    fixed = _STATE.pack(
        one.first, one.n, one.data_len, one.live, one.idx_xxh3, one.generation, reason, tier, one.sealed
    )
    return fixed + one.pending.tobytes()


def _pending(one: Segment) -> list[tuple[int, int]]:
    """Marks that are not on disk, as ranges of seqs."""
    marks = one.pending
    if not len(marks):
        return []
    breaks = np.flatnonzero(np.diff(marks) != 1)
    firsts = marks[np.concatenate(([0], breaks + 1))].tolist()
    lasts = marks[np.concatenate((breaks, [len(marks) - 1]))].tolist()
    return [(one.first + low, one.first + high) for low, high in zip(firsts, lasts, strict=True)]
