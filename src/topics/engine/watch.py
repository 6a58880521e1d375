"""Following topics live: who is at the head gets shared bytes, everybody else pulls [A-12].

    Follower   one topic followed on one connection: a cursor, and what of records is wanted
    Feed       one connection's followers; those that are behind read in turn, while there is room for output
    Series     what was published since the last pass, rendered once per view
    Pass       one service of a topic by the pump: waiting reads, then its followers, in slices (08 §4)

    subscribe ─▶ behind ──reads up to the head──▶ live ──Pass: shared bytes──▶ live
                   ▲                               │ no room, own records, a hole, another instance
                   └───────────────────────────────┘

A follower is live when its cursor is where the last pass ended; there is no other state. One that needs records of the
cold tier leaves the feed's line until they are fetched: the others go on meanwhile, and where the tier fails it tries
again by and by [S-320]. Owner only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from topics.codec.project import Projection
from topics.engine import retention
from topics.engine.cold import RETRY_NS
from topics.engine.core import Core, guarded
from topics.engine.plan import synced_seq
from topics.engine.read import Query, count_of, walk
from topics.engine.topic import Topic
from topics.errors import StoreUnavailable, TopicNotFound, TopicsError
from topics.model import Gap, ReadResult
from topics.storage.tiers.blocks import ColdRead, NeedsBlocks

log = logging.getLogger("topics.engine")

SLICE_NS: Final = 2_000_000
SLICE_WRITES: Final = 256
LOOK_EVERY: Final = 32
"""Followers between two looks at the clock."""
SERIES_MAX: Final = 8
"""Frames of one pass that are kept to be shared; what lies behind them is pulled."""
ELSEWHERE: Final = 2**64 - 1
"""A cursor above every head: of another instance [EPO-4]."""

_quoted = msgspec.json.Encoder().encode


Share = tuple[Projection, int, int]


class View(NamedTuple):
    """What of a topic's records is wanted, and in which portions."""

    wanted: Projection = Projection()
    limit: int = 256
    max_bytes: int = 256 << 10
    nodes: frozenset[bytes] = frozenset()
    strong: bool = False
    """Only what a sync covers [WCH-7]."""


class Instance(NamedTuple):
    """Which creation of a name [EPO-1]."""

    id: int
    epoch: int


@lru_cache(maxsize=1024)
def lane_of(share: Share, kind: object) -> tuple[Share, object]:
    """The same object for equal ones, nearly always: comparing them costs nothing then."""
    return share, kind


class Batch:
    """Records of one frame. Its bytes are made once per framing, whoever gets them."""

    __slots__ = ("count", "from_seq", "head", "is_last", "made", "name", "records", "to_seq")

    def __init__(self, name: str, from_seq: int, to_seq: int, head: int, records: list[bytes], count: int) -> None:
        self.name = name
        self.from_seq = from_seq
        self.to_seq = to_seq
        self.head = head
        self.records = records
        """As pieces to be joined by commas."""
        self.count = count
        """How many they are."""
        self.is_last = to_seq >= head
        """Whether it ends at the head."""
        self.made: dict[object, Any] = {}
        """What sinks keep here, to be shared."""

    def holds(self, nodes: frozenset[bytes]) -> bool:
        """Whether a record of one of these nodes may be among them."""
        marks = [b'"$node":' + _quoted(node.decode()) for node in nodes]
        return any(mark in record for mark in marks for record in self.records)


class Framing(Protocol):
    """How frames look on the wire. Bytes may be shared between connections."""

    names_first_gap: bool
    """Whether a gap at the first read has a reason of its own [FRM-2]."""

    def record(self, batch: Batch) -> bytes: ...

    def caught_up(self, name: str, head: int) -> bytes: ...

    def tombstone(self, name: str, gap: Gap, reason: str) -> bytes: ...

    def deleted(self, name: str) -> bytes: ...


class Sink(Protocol):
    """A connection that takes frames."""

    framing: Framing
    is_full: bool
    """Output is above its mark: nothing is built until `Feed.room` is called [FRM-10]."""

    def put(self, frame: bytes) -> None:
        """Send a frame; the cursors of the feed say where it leads."""
        ...

    kind: object
    """Whoever has the same renders a batch in the same way; None: what is rendered is for this one alone."""

    def render(self, batch: Batch) -> bytes:
        """A batch that others get as well, `caught-up` behind the last one, as it goes over the connection."""
        ...

    def send(self, rendered: bytes, now_ns: int) -> None:
        """Send that."""
        ...

    @staticmethod
    def send_all(sinks: Sequence[Any], rendered: bytes, now_ns: int) -> bool:
        """Send that to many of a kind at once; False: nothing was sent, they are to be sent it one by one."""
        ...

    def over(self) -> None:
        """Nothing is followed any more."""
        ...

    def broken(self, error: Exception) -> None:
        """What comes next cannot be read."""
        ...


class Follower:
    """One topic on one connection. `topic` is None until its turn comes, and when the one followed is gone."""

    __slots__ = (
        "cold", "cursor", "feed", "instance", "is_behind", "is_first", "is_lowered", "is_reached", "is_stale", "lane",
        "name", "share", "sink", "target", "topic", "view", "was",
    )  # fmt: skip

    def __init__(self, feed: Feed, name: str, cursor: int, view: View, instance: Instance | None) -> None:
        self.feed = feed
        self.sink = feed.sink
        self.name = name
        self.cursor = cursor
        self.view = view
        self.share = view[:3]
        """Whoever has the same gets the same bytes, but for own records."""
        kind = feed.sink.kind
        self.lane = None if view.nodes or view.strong or kind is None else lane_of(self.share, kind)
        """Whoever has the same gets the very same bytes, nothing else to look at; None: it is looked at."""
        self.instance = instance
        self.topic: Topic | None = None
        self.is_behind = False
        """It is in the feed's line, or being read for."""
        self.is_first = True
        """Nothing has been read yet since it was opened."""
        self.is_lowered = False
        """Its cursor was above the head, and begins anew [EPO-3]."""
        self.is_reached = False
        """`caught-up` was told since the last records."""
        self.is_stale = False
        """Its cursor is one of another instance."""
        self.was = 0
        """How far it was in instances before this one."""
        self.target = 0
        """The head seen when its turn began [STR-6]."""
        self.cold: ColdRead | None = None
        """What was fetched from the cold tier for its next read."""

    def attach(self, topic: Topic) -> None:
        """Follow this instance."""
        found = Instance(topic.id, topic.epoch)
        self.is_stale = self.instance is not None and self.instance != found
        if self.is_stale:
            self.was = max(self.was, self.cursor)
            self.is_lowered = False
        self.instance = found
        self.topic = topic
        self.target = topic.head
        if not topic.followers:
            topic.served = topic.head
        topic.followers[self] = None

    def detach(self) -> None:
        """Follow nothing."""
        topic, self.topic = self.topic, None
        if topic is not None:
            topic.followers.pop(self, None)


class Feed:
    """Everything that one connection follows."""

    def __init__(self, core: Core, sink: Sink, *, resumes: bool = True) -> None:
        self.sink = sink
        self.resumes = resumes
        """Whether anybody asks again for what is gone: else nothing is kept of it."""
        self.followers: dict[str, Follower] = {}
        self.past: dict[str, int] = {}
        """Cursors of topics that are gone, or not followed yet."""
        self.gone: dict[str, Follower] = {}
        """Who followed those that are gone."""
        self._core = core
        self._line: deque[Follower] = deque()
        self._reading = False
        self._scheduled = False
        self._closed = False

    def follow(self, name: str, cursor: int, view: View, instance: Instance | None = None) -> Follower:
        """Follow a topic from behind a cursor; one that is followed already begins anew [WS-11]."""
        self.leave((name,))
        follower = self.followers[name] = Follower(self, name, cursor, view, instance)
        self.want(follower)
        return follower

    def leave(self, names: Iterable[str]) -> None:
        """Follow these no more."""
        for name in names:
            follower = self.followers.pop(name, None)
            if follower is not None:
                follower.detach()

    def cursors(self) -> dict[str, int]:
        """Where it is, in every topic it has ever been told of."""
        return {**self.past, **{name: one.cursor for name, one in self.followers.items()}}

    def close(self) -> None:
        """The connection ends; again is fine."""
        self._closed = True
        self._line.clear()
        for follower in self.followers.values():
            follower.detach()

    def want(self, follower: Follower) -> None:
        """It is behind: it reads when its turn comes."""
        if not follower.is_behind and not self._closed:
            follower.is_behind = True
            self._line.append(follower)
            self._soon()

    def room(self) -> None:
        """There is room for output again."""
        self._soon()

    # -- reading, one after another ----------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._line and not self._scheduled and not self._reading and not self._closed and not self.sink.is_full:
            self._scheduled = True
            self._core.owner.soon(self._turn)

    def _turn(self) -> None:
        """One read: others want the owner too."""
        self._scheduled = False
        while self._line and self.followers.get(self._line[0].name) is not self._line[0]:
            self._line.popleft()
        if not self._line or self._reading or self._closed or self.sink.is_full:
            return
        follower = self._line[0]
        self._reading = True
        topic = follower.topic
        if topic is not None and not topic.removed:
            self._guarded(self._expire, follower, topic)
            return
        follower.detach()
        found, missing = partial(self._guarded, self._found, follower), partial(self._guarded, self._missing, follower)
        self._core.with_topic(follower.name, found, missing)

    def _guarded(self, work: Callable[..., None], *args: object) -> None:
        """Part of a read: whatever it meets ends this stream and nothing else, and no read is left half done [D-74]."""
        guarded(partial(work, *args), self._failed)

    def _found(self, follower: Follower, topic: Topic) -> None:
        if self._is_left(follower):
            return
        follower.attach(topic)
        self._expire(follower, topic)

    def _missing(self, follower: Follower, error: Exception) -> None:
        if not isinstance(error, TopicNotFound):
            self._failed(error)
        elif not self._is_left(follower):
            self._pop(follower)
            del self.followers[follower.name]
            if self.resumes:
                self.past[follower.name] = follower.cursor
                self.gone[follower.name] = follower
            self.sink.put(self.sink.framing.deleted(follower.name))
            if not self.followers:
                self.sink.over()
            self._go_on()

    def _expire(self, follower: Follower, topic: Topic) -> None:
        retention.catch_up(self._core, topic)
        read = partial(self._guarded, self._read, follower, topic)
        retention.expire(self._core, topic, read, self._failed)

    def _read(self, follower: Follower, topic: Topic) -> None:
        if self._is_left(follower):
            return
        if topic.removed:
            self._go_on()
            return
        core, cursor = self._core, ELSEWHERE if follower.is_stale else follower.cursor
        head = self._visible(topic, follower.view)
        if head < cursor <= topic.head:
            self._await_sync(follower, topic)
            return
        topic.read_at(core.clock.now_ms())
        view = follower.view
        query = Query(topic.name, cursor, None, view.limit, view.max_bytes, view.nodes, 0)
        cold = follower.cold or core.cold.read()
        follower.cold = None
        try:
            result = walk(topic, query, cold, view.wanted, head)
        except NeedsBlocks as needed:
            follower.cold = cold
            self._stand_aside(follower)
            core.cold.fetch(cold, needed.wanted, partial(self._stand_in_line, follower))
        except StoreUnavailable as error:
            log.warning("%r is not followed further now: %s", topic.name, error)
            self._stand_aside(follower)
            core.alarms.at(core.clock.monotonic_ns() + RETRY_NS, partial(self._stand_in_line, follower))
        else:
            core.losses.note_unreadable(topic)
            self._deliver(follower, topic, result)

    def _stand_aside(self, follower: Follower) -> None:
        """It stays behind, and nobody waits for it."""
        assert self._line[0] is follower
        self._line.popleft()
        self._go_on()

    def _stand_in_line(self, follower: Follower) -> None:
        if not self._closed and self.followers.get(follower.name) is follower:
            self._line.append(follower)
            self._soon()

    def _visible(self, topic: Topic, view: View) -> int:
        """Where a topic ends for a reader [WCH-7]."""
        durability = topic.config.durability
        if not view.strong or self._core.wal is None or durability == "ephemeral":
            return topic.head
        if durability == "fsync" and topic.id not in self._core.routers.feeding:
            return topic.head
        # What a cap took is told whether or not it was synced.
        return max(synced_seq(self._core, topic), topic.evict_floor - 1)

    def _deliver(self, follower: Follower, topic: Topic, result: ReadResult) -> None:
        """Send what a read yielded, and see what comes next."""
        began = follower.cursor
        framing, put = self.sink.framing, self.sink.put
        gap = result.tombstone
        if gap is not None:
            is_anew = gap.reason == "recreated"
            follower.cursor = topic.evict_floor - 1 if is_anew else gap.gap_to
            follower.is_lowered = follower.is_lowered or (is_anew and not follower.is_stale)
            named = follower.is_first and framing.names_first_gap
            put(framing.tombstone(topic.name, gap, "from_seq_too_old" if named else gap.reason))
        follower.is_first = follower.is_stale = False
        follower.cursor = result.next_from_seq
        if result.records:
            records: list[Any] = list(result.records)
            count = count_of(result)
            self._core.traffic.delivered += count
            put(framing.record(Batch(topic.name, began, result.next_from_seq, result.head_seq, records, count)))
        if gap is not None or result.records:
            follower.is_reached = False
        head = self._visible(topic, follower.view)
        if follower.cursor >= head:
            self._reached(follower, topic, head)
        elif follower.cursor >= follower.target:
            self._line.rotate(-1)
            follower.target = topic.head
        self._go_on()

    def _reached(self, follower: Follower, topic: Topic, head: int) -> None:
        if not follower.is_reached:
            follower.is_reached = True
            self.sink.put(self.sink.framing.caught_up(topic.name, head))
        if head < topic.head:
            self._await_sync(follower, topic)
            return
        self._pop(follower)

    def _await_sync(self, follower: Follower, topic: Topic) -> None:
        """Nothing more is to be shown before a sync: ask for one, and be behind again when it is done."""
        self._pop(follower)

        def synced(outcome: object) -> None:
            if follower.topic is not topic:
                return
            if not isinstance(outcome, TopicsError):
                self.want(follower)
            elif not follower.is_behind:
                follower.is_behind = True  # until then, whatever is published: it asks once
                core.alarms.at(core.clock.monotonic_ns() + RETRY_NS, partial(self._stand_in_line, follower))

        core = self._core
        edge = core.routers.feeding.get(topic.id)
        if edge is not None and edge.has_pending and core.bring_in is not None:
            core.bring_in(topic.id, synced)  # copies are in no log: segments are what makes them last
        else:
            core.shard(topic.id).when_synced(synced)
        self._go_on()

    def _pop(self, follower: Follower) -> None:
        follower.is_behind = False
        if self._line and self._line[0] is follower:
            self._line.popleft()

    def _go_on(self) -> None:
        self._reading = False
        self._soon()

    def _is_left(self, follower: Follower) -> bool:
        """Whether nobody wants this read any more; then the next one has its turn."""
        if self._closed or self.followers.get(follower.name) is not follower:
            self._go_on()
            return True
        return False

    def _failed(self, error: Exception) -> None:
        self._reading = False
        if not self._closed:
            log.warning("a stream ends: %s", error)
            self.sink.broken(error)


class Series:
    """What was published between two heads, in the portions of one view."""

    def __init__(self, core: Core, topic: Topic, prev: int, head: int, share: Share) -> None:
        self._core = core
        self._topic = topic
        self._cold: ColdRead | None = None
        self._head = head
        self._share = share
        self._at = prev
        self._batches: list[Batch] = []
        self._ended = False

    def get(self, number: int) -> Batch | None:
        """The batch of this number; None: there is none, or it is not one to be shared."""
        if number < len(self._batches):
            return self._batches[number]
        if self._ended or number >= SERIES_MAX or self._at >= self._head or self._topic.head < self._head:
            return None
        newest = _newest(self._topic, self._at, self._head, self._share)
        if newest is not None:
            return self._add(newest)
        wanted, limit, max_bytes = self._share
        query = Query(self._topic.name, self._at, None, limit, max_bytes, frozenset(), 0)
        if self._cold is None:
            self._cold = self._core.cold.read()
        try:
            result = walk(self._topic, query, self._cold, wanted, self._head)
        except NeedsBlocks:
            self._ended = True
            return None
        if result.tombstone is not None:
            self._ended = True
            return None
        records: list[Any] = list(result.records)
        to_seq = result.next_from_seq
        return self._add(Batch(self._topic.name, self._at, to_seq, self._head, records, count_of(result)))

    def _add(self, batch: Batch) -> Batch:
        self._at = batch.to_seq
        self._batches.append(batch)
        return batch


def _newest(topic: Topic, behind: int, head: int, share: Share) -> Batch | None:
    """Everything up to the head as one batch, where nothing of it has gone: no record has to be looked up."""
    wanted, limit, max_bytes = share
    if behind < topic.disturbed or behind + 1 < topic.floor or head - behind > limit:
        return None
    pieces = topic.index.newest(behind + 1, head, wanted, max_bytes)
    return None if pieces is None else Batch(topic.name, behind, head, head, pieces, head - behind)


def _needs_retention(core: Core, topic: Topic) -> bool:
    """Whether something has to go first: then everybody reads for himself, and that does it [TTL-3]."""
    if topic.retry or topic.caps_due or topic.ttl_waiting is not None:
        return True
    return bool(topic.config.ttl_ms) and retention.is_due(core, topic)


def _rendered(follower: Follower, batch: Batch) -> bytes:
    """A batch for a follower, whose cursor is moved for it."""
    kind = follower.sink.kind
    made: bytes | None = batch.made.get(kind) if kind is not None else None
    if made is None:
        follower.cursor, before = batch.to_seq, follower.cursor
        try:
            made = follower.sink.render(batch)
        finally:
            follower.cursor = before
        if kind is not None:
            batch.made[kind] = made
    return made


def _send_all(core: Core, alike: Sequence[Follower], whole: bytes, head: int, count: int, now_ns: int) -> None:
    """So many records, which take everybody in one lane to the head."""
    sinks = [follower.sink for follower in alike]
    if sinks[0].send_all(sinks, whole, now_ns):
        for follower in alike:
            follower.cursor = head
    else:
        for follower in alike:
            follower.sink.send(whole, now_ns)
            follower.cursor = head
    core.traffic.delivered += len(sinks) * count


def _served_at_once(core: Core, topic: Topic) -> bool:
    """Serve everybody, where nobody waits and the few who follow are live in one lane; False: nothing was done."""
    prev, head, followers = topic.served, topic.head, topic.followers
    if not 0 < len(followers) <= LOOK_EVERY or topic.waiters or topic.removed or _needs_retention(core, topic):
        return False
    alike = list(followers)
    first, lane = alike[0], alike[0].lane
    if lane is None or prev >= head:
        return False
    for follower in alike:
        if follower.lane is not lane or follower.cursor != prev or follower.is_behind or follower.sink.is_full:
            return False
    batch = _newest(topic, prev, head, first.share)
    if batch is None:
        return False
    topic.served = head
    topic.read_at(core.clock.now_ms())
    _send_all(core, alike, _rendered(first, batch), head, batch.count, core.clock.monotonic_ns())
    return True


class Pass:
    """One service of a topic: from the head of the last one to the head seen now [D-5]."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self._core = core
        self._topic = topic
        self._prev, self._head = topic.served, topic.head
        topic.served = topic.head
        self._series: dict[Share, Series] = {}
        self._lanes: dict[object, bytes | None] = {}
        """By lane: what takes everybody in it to the head at once; None: there is no such thing."""
        self._whole_records = 0
        """Records of such a thing: the same number in every lane."""
        waiters, topic.waiters = topic.waiters, {}
        self._waiters = iter(waiters.values())
        self._has_begun = False
        self._followers = iter(list(topic.followers))
        self._is_shared = not topic.removed and not _needs_retention(core, topic)
        if self._is_shared and topic.followers and self._prev < self._head:
            topic.read_at(core.clock.now_ms())

    def _look_again(self) -> None:
        """What was prepared never outlives what it shows [D-30]: from here on everybody reads for himself."""
        topic = self._topic
        if not self._is_shared:
            return
        is_whole = not self._series or (topic.disturbed <= self._prev and topic.floor <= self._prev + 1)
        if topic.removed or not is_whole or _needs_retention(self._core, topic):
            self._is_shared = False
            self._series.clear()
            self._lanes.clear()

    def step(self) -> bool:
        """One slice; True: there is more to do."""
        clock = self._core.clock
        now_ns = clock.monotonic_ns()
        until_ns = now_ns + SLICE_NS
        writes, is_first = 0, not self._has_begun
        self._has_begun = True
        for wake in self._waiters:
            wake()
            writes += 1
            if writes >= SLICE_WRITES or clock.monotonic_ns() >= until_ns:
                return True
        if writes or not is_first:
            self._look_again()
        while True:
            some = tuple(islice(self._followers, LOOK_EVERY))
            writes += self._serve_some(some, now_ns)
            if len(some) < LOOK_EVERY:
                return False
            if writes >= SLICE_WRITES or clock.monotonic_ns() >= until_ns:
                return True

    def _serve_some(self, followers: Sequence[Follower], now_ns: int) -> int:
        """How many frames they were sent."""
        topic, prev, lanes = self._topic, self._prev, self._lanes
        lane: object = None
        whole: bytes | None = None
        alike: list[Follower] = []
        writes = 0
        for follower in followers:
            if follower.topic is not topic:
                continue
            if follower.lane is not lane:
                if whole is not None and alike:
                    writes += self._send(alike, whole, now_ns)
                    alike = []
                lane = follower.lane
                whole = lanes.get(lane)
            if follower.cursor == prev and not follower.is_behind and not follower.sink.is_full:
                if whole is None and lane is not None and lane not in lanes:
                    whole = lanes[lane] = self._whole(follower)
                if whole is not None:
                    alike.append(follower)
                    continue
            writes += self._serve(follower, now_ns)
        if whole is not None and alike:
            writes += self._send(alike, whole, now_ns)
        return writes

    def _send(self, alike: list[Follower], whole: bytes, now_ns: int) -> int:
        """To those of one lane who are live."""
        _send_all(self._core, alike, whole, self._head, self._whole_records, now_ns)
        return len(alike)

    def _whole(self, follower: Follower) -> bytes | None:
        """What everybody in a follower's lane gets, if that is one batch up to the head."""
        if not self._is_shared:
            return None
        batch = self._series_of(follower).get(0)
        if batch is None or not batch.is_last or not batch.records:
            return None
        self._whole_records = batch.count
        return _rendered(follower, batch)

    def _series_of(self, follower: Follower) -> Series:
        series = self._series.get(follower.share)
        if series is None:
            series = Series(self._core, self._topic, self._prev, self._head, follower.share)
            self._series[follower.share] = series
        return series

    def _serve(self, follower: Follower, now_ns: int) -> int:
        """How many frames it was sent; what it cannot be sent it reads for itself."""
        prev, head = self._prev, self._head
        if follower.is_behind or (follower.cursor >= head and not self._topic.removed):
            return 0
        sink, view = follower.sink, follower.view
        if not self._is_shared or follower.cursor != prev or view.strong or sink.is_full:
            follower.feed.want(follower)
            return 0
        series = self._series_of(follower)
        nodes = view.nodes if self._topic.config.dedupe_node else None
        number = sent = 0
        is_told = True
        while (batch := series.get(number)) is not None and not sink.is_full and not (nodes and batch.holds(nodes)):
            number += 1
            if batch.records:
                sent += 1
                sink.send(_rendered(follower, batch), now_ns)
                self._core.traffic.delivered += batch.count
                is_told = batch.is_last
            follower.cursor = batch.to_seq
        if follower.cursor < head:
            follower.is_reached = follower.is_reached and not sent
            follower.feed.want(follower)
        elif not is_told:
            # What came behind the last records has gone, so that no batch said it.
            sink.put(sink.framing.caught_up(follower.name, head))
        return sent


def service(core: Core, topic: Topic) -> Callable[[], bool]:
    """What the pump calls for a topic: one slice of the pass that is under way, or of a new one."""
    under_way: Pass | None = None

    def serve() -> bool:
        nonlocal under_way
        try:
            if under_way is None:
                if _served_at_once(core, topic):
                    return False
                under_way = Pass(core, topic)
            if under_way.step():
                return True
        except Exception:  # what cannot be shared everybody tries for himself, and is told what is wrong
            log.exception("serving topic %r", topic.name)
            for follower in list(topic.followers):
                follower.feed.want(follower)
        under_way = None
        return False

    return serve
