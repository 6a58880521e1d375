"""Planning for external readers: which files hold a topic, and up to where they may be believed [A-8].

    retention first, then one look at everything in one stretch: floors, ends, segments

    ckpt_seq       segments hold everything up to it, durably; behind it, read through the engine
    durable_seq    no crash takes back anything up to it: it is in segments, or its log bytes are synced
    pending        deletes that the segment's `.idx` on disk does not show yet

A reader opens files by itself, so deletes that are only in memory would escape it. They are brought to disk before the
answer; what came in meanwhile, or could not be written, is told as `pending`.

With `pin_ms` the instant is kept: its files stay, and further pages are cut from it by the pin's id, whatever became of
the topic meanwhile.

A start leaves most segments' times unknown until they are asked for: they are looked up in slices [P-10]. Owner only.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_hexdigest

from topics import paths
from topics.engine import retention
from topics.engine.checkpoint import Asked, can_log
from topics.engine.core import Core, Outcome, guarded
from topics.engine.pins import PIN_MS_MAX, Files, Pin
from topics.engine.topic import Topic
from topics.errors import PinNotFound, TopicNotFound, TopicsError
from topics.model import Durability
from topics.storage.descriptor import Marks, Segment
from topics.storage.reindex import stats
from topics.storage.segments import TopicSegments
from topics.storage.tail import NOWHERE, OFFSET_BITS

SEGMENTS_MAX: Final = 10_000
"""Of one answer."""
SLICE_NS: Final = 2_000_000
BRINGINGS_MAX: Final = 2
"""How often marks are brought to disk for one answer: deletes may arrive faster than they are written."""
PENDING_MAX: Final = 10_000
"""Ranges of an answer; as long as there are more, marks are brought to disk again."""
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


class PinTold(NamedTuple):
    """A pin, as its holder is told of it."""

    id: str
    expires_ms: int


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
    pin: PinTold | None = None


class Range(NamedTuple):
    """What of a topic is asked for: segments that hold a seq from one to the other, at most so many."""

    from_seq: int = 0
    to_seq: int = paths.U64_MAX
    limit: int = SEGMENTS_MAX
    pin_ms: int = 0
    """Hold the files for so long."""
    pin: str | None = None
    """Cut this page from the instant of a pin."""


class _Seen(NamedTuple):
    """A segment at the instant of a plan; made fast, because there may be many."""

    first: int
    last: int
    records: int
    data_len: int
    min_ts: int
    max_ts: int
    cold: bool
    has_data: bool
    generation: int
    sealed: bool
    gap: int | None
    pending: Marks
    state: bytes


class _Instant(NamedTuple):
    """A topic at the instant of a plan: what all pages say, and the segments that were asked for."""

    plan: Plan
    seen: list[_Seen]


def plan(core: Core, name: str, asked: Range, bring_in: BringIn | None, done: Outcome) -> None:
    """Answers a `Plan`; `bring_in` None: nothing is ever written to segments."""
    if asked.pin is not None:
        done(_further(core, name, asked))
        return
    core.with_topic(name, lambda topic: _Planner(core, topic, asked, bring_in, done).look(), done)


def _further(core: Core, name: str, asked: Range) -> Plan:
    """A page of a pinned instant; a pin is its topic's alone."""
    assert asked.pin is not None
    pin = core.pins.find(asked.pin)
    if not isinstance(pin.told, _Instant) or pin.told.plan.topic != name:
        raise PinNotFound(asked.pin)
    return _cut(pin.told, asked, pin)


class _Planner:
    """One answer on its way: whatever has to be waited for, everything is looked at anew behind it."""

    def __init__(self, core: Core, topic: Topic, asked: Range, bring_in: BringIn | None, done: Outcome) -> None:
        self._core = core
        self._topic = topic
        self._asked = asked
        self._bring_in = bring_in
        self._done = done
        self._brought = 0
        self._failed = False

    def look(self) -> None:
        """Apply retention, then see whether everything is known."""
        retention.catch_up(self._core, self._topic)
        retention.expire(self._core, self._topic, lambda: guarded(self._go_on, self._done), self._done)

    def _again(self, outcome: object = None) -> None:
        self._failed = isinstance(outcome, TopicsError)
        guarded(self.look, self._done)

    def _go_on(self) -> None:
        core, topic = self._core, self._topic
        if core.topics.get(topic.id) is not topic:
            self._done(TopicNotFound(topic.name))
            return
        found = self._found()
        if not self._learn(found):
            core.owner.soon(self._again)
        elif any(len(one.pending) for one in found) and self._may_bring_in(found):
            assert self._bring_in is not None
            self._brought += 1
            self._bring_in(topic.id, self._again)
        else:
            self._done(self._plan(found))

    def _found(self) -> list[Segment]:
        """The segments of the answer and the one behind them; all that are asked for, if a pin is to hold them."""
        asked, segments = self._asked, self._topic.index.segments
        if segments is None:
            return []
        found = segments.between(max(asked.from_seq, self._topic.evict_floor), asked.to_seq)
        return found if asked.pin_ms else found[: asked.limit + 1]

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

    def _may_bring_in(self, found: list[Segment]) -> bool:
        if self._bring_in is None or self._failed or not can_log(self._core.shard(self._topic.id)):
            return False
        return self._brought < BRINGINGS_MAX or sum(map(_ranges, found)) > PENDING_MAX

    def _plan(self, found: list[Segment]) -> Plan:
        core, topic, asked = self._core, self._topic, self._asked
        segments = topic.index.segments
        floors = Floors(topic.cap_floor, topic.ttl_floor, topic.delete_below)
        ckpt_seq = topic.index.ckpt_seq
        told = (topic.id, topic.epoch, core.store_id, topic.config.durability, ckpt_seq, topic.earliest_seq, floors)
        states = b"" if segments is None else b"".join(map(_state, segments.segments))
        whole = Plan(
            topic.name, topic.id, topic.epoch, core.store_id, topic.config.durability,
            max(core.clock.now_ms(), topic.ttl_now), topic.head, durable_seq(core, topic), ckpt_seq,
            topic.earliest_seq, floors, [], None, xxh3_64_hexdigest(repr(told).encode() + states),
        )  # fmt: skip
        instant = _Instant(whole, [_see(topic, segments, one) for one in found if segments is not None])
        return _cut(instant, asked, self._hold(instant) if asked.pin_ms else None)

    def _hold(self, instant: _Instant) -> Pin:
        pins = self._core.pins
        files = Files(instant.plan.id, frozenset((one.first, one.generation) for one in instant.seen))
        pin = pins.make(files, instant)
        pins.start(pin, min(self._asked.pin_ms, PIN_MS_MAX))
        return pin


def _cut(instant: _Instant, asked: Range, pin: Pin | None) -> Plan:
    """One page of an instant."""
    seen, whole = instant.seen, instant.plan
    low = bisect_left(seen, asked.from_seq, key=lambda one: one.last)
    page = [one for one in seen[low : low + asked.limit + 1] if one.first <= asked.to_seq]
    next_seq = page[asked.limit].first if len(page) > asked.limit else None
    return whole._replace(
        segments=[_planned(whole.id, one) for one in page[: asked.limit]],
        next_seq=next_seq,
        pin=None if pin is None else PinTold(pin.id, pin.expires_ms),
    )


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


def _see(topic: Topic, segments: TopicSegments, one: Segment) -> _Seen:
    return _Seen(
        one.first, one.last, _live_from(topic.floor, segments, one), one.data_len, *segments.ts_range(one), one.cold,
        one.has_data or one.cold, one.generation, one.sealed, None if one.gap is None else one.gap.reason, one.pending,
        _state(one),
    )  # fmt: skip


def _planned(topic_id: int, one: _Seen) -> PlannedSegment:
    name = paths.segment(one.first, "data", one.generation) if one.has_data else paths.segment(one.first, "idx")
    # The floors are in it: they say which of its records count.
    version = xxh3_64_hexdigest(one.state + one.records.to_bytes(8, "little"))
    return PlannedSegment(
        one.first, one.last, one.records, one.data_len if one.has_data else 0, one.min_ts, one.max_ts,
        "cold" if one.cold else "hot", f"{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}/{name}", one.generation,
        one.sealed, None if one.gap is None else GAPS[one.gap], _pending(one.first, one.pending), version,
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


def _ranges(one: Segment) -> int:
    """How many ranges its marks that are not on disk are."""
    marks = one.pending
    return int((np.diff(marks) != 1).sum()) + 1 if len(marks) else 0


def _pending(first: int, marks: Marks) -> list[tuple[int, int]]:
    """Marks that are not on disk, as ranges of seqs."""
    if not len(marks):
        return []
    breaks = np.flatnonzero(np.diff(marks) != 1)
    firsts = marks[np.concatenate(([0], breaks + 1))].tolist()
    lasts = marks[np.concatenate((breaks, [len(marks) - 1]))].tolist()
    return [(first + low, first + high) for low, high in zip(firsts, lasts, strict=True)]
