"""Reading after a cursor: one algorithm for every kind of reader (01 §12, 06 §10).

    copies of routers, retention, then a view (head, floors), then the tombstone and the start, then a walk upwards

The walk goes over entries in chunks; frames are fetched only for what is delivered. Every seq it passes moves the
cursor. Where frames are in the cold tier, it ends with `NeedsBlocks`: whoever reads has them fetched, does other work
meanwhile, and walks again, with a fresh view [S-172, S-320]. Owner only, but for `Query.parse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from topics.codec import envelope, project
from topics.codec.frame import Frame
from topics.codec.project import Projection
from topics.codec.segment import DELETED, LOST, DataFrame, ovh
from topics.engine import forward, priority, queue, retention
from topics.engine.core import Core, Outcome, guarded
from topics.engine.index import CHUNK, Run, Stored
from topics.engine.topic import Topic
from topics.errors import CallerError, TopicNotFound
from topics.model import Gap, GapReason, Limits, ReadResult, Record, TopicState, check_u32, check_u64, utf8_bytes
from topics.storage.descriptor import Segment
from topics.storage.segread import SLICE_BYTES, Absent, Stretch
from topics.storage.tail import DeadRun
from topics.storage.tiers.blocks import BLOCKS_PER_CALL, ColdRead, NeedsBlocks, Place, Wanted, blocks_of, blocks_of_all

Kinds = npt.NDArray[np.int64]
"""What each entry is, see `_kinds`."""

EXAMINED_MAX: Final = 10_000
"""A walk may end after so many seqs [RD-4]."""
REASONS: Final[dict[int, GapReason]] = {1: "source_trim", 2: "corrupt", 3: "crash"}
FETCH: Final = 256
"""Frames fetched at once."""
JSON_FETCH: Final = 1000
"""The same where they become JSON in one go."""
AHEAD: Final = 16
"""Entries looked at beyond what a read may deliver: some of them may be dead."""


class Query(NamedTuple):
    """One read, checked and clamped [RD-6]."""

    name: str
    from_seq: int
    from_ts: int | None
    limit: int
    max_bytes: int
    nodes: frozenset[bytes]
    wait_ms: int

    @classmethod
    def parse(
        cls,
        name: str,
        from_seq: object,
        from_ts: object,
        limit: object,
        max_bytes: object,
        node: object,
        wait_ms: object,
        limits: Limits,
    ) -> Query:
        """Check what a caller gave."""
        if from_ts is not None and from_seq:
            raise CallerError("a read begins at from_seq or at from_ts, not both")
        return cls(
            name,
            check_u64(from_seq, "from_seq"),
            None if from_ts is None else check_u64(from_ts, "from_ts"),
            limits.read_limit(check_u32(limit, "limit")),
            limits.read_bytes(check_u64(max_bytes, "max_bytes")),
            nodes_of(node, limits),
            min(check_u32(wait_ms, "wait_ms"), limits.max_wait_ms),
        )


def nodes_of(node: object, limits: Limits) -> frozenset[bytes]:
    """What a reader leaves out [NOD-1]: one node, or several."""
    if node is None:
        return frozenset()
    listed = [node] if isinstance(node, str) else node
    if isinstance(listed, (bytes, dict)) or not isinstance(listed, Iterable):
        raise CallerError("node must be a string or a list of strings")
    nodes = list(listed)
    if len(nodes) > limits.max_filter_nodes:
        raise CallerError(f"node lists {len(nodes)} nodes; at most {limits.max_filter_nodes} are accepted")
    for one in nodes:
        if not isinstance(one, str):
            raise CallerError("node must be a string or a list of strings")
        if utf8_bytes(one, "node") > limits.max_node_bytes:
            raise CallerError(f"node has more than {limits.max_node_bytes} bytes")
    return frozenset(one.encode() for one in nodes)


class Waiting:
    """A long poll that may be called off; a read that does not wait never needs it."""

    __slots__ = ("ended", "leave")

    def __init__(self) -> None:
        self.ended = False
        self.leave: Callable[[], None] = lambda: None
        """Out of the topic's waiters."""

    def end(self) -> None:
        """Forget the read, whether it waits already or not yet: nobody wants its answer."""
        self.ended = True
        self.leave()


def read(
    core: Core, query: Query, done: Outcome, wanted: Projection | None = None, waiting: Waiting | None = None
) -> None:
    """Read once, or wait for the next publication if there is nothing [DIF-4]; answers a `ReadResult`."""
    core.with_topic(query.name, lambda topic: _read(core, topic, query, done, wanted, waiting), done)


class _Reading:
    """One read on its way; no closures that refer to each other, so that nothing is left to the collector [P-10]."""

    __slots__ = (
        "_cold", "_core", "_done", "_gone", "_hurries", "_is_large", "_paced", "_query", "_topic", "_waiting", "_walk",
        "_wanted",
    )  # fmt: skip

    def __init__(
        self, core: Core, topic: Topic, query: Query, done: Outcome, wanted: Projection | None, waiting: Waiting | None
    ) -> None:
        self._core = core
        self._topic = topic
        self._query = query
        self._done = done
        self._wanted = wanted
        self._waiting = waiting
        self._cold = core.cold.read()
        self._paced = self._hurries = False
        """Whether it had to wait for the cold tier: it goes on in slices then, between which others have their turn;
        and whether that was in vain once."""
        self._is_large = False
        """Whether it is more than one slice."""
        self._gone = 0
        """How many seqs of the topic were not there when it began."""
        self._walk: _Walk | None = None

    def begin(self) -> None:
        """What routers still have for the topic comes first."""
        forward.drain(self._core, self._topic, self._retain, self._done)

    def _retain(self) -> None:
        retention.catch_up(self._core, self._topic)
        retention.expire(self._core, self._topic, self._go_on, self._done)

    def _go_on(self) -> None:
        if self._is_over():
            return
        topic = self._topic
        topic.read_at(self._core.clock.now_ms())
        self._gone = topic.head - topic.count
        self._is_large = False
        self._walk = _begin(topic, self._query, self._cold, self._wanted)
        self._walk_on()

    def _is_over(self) -> bool:
        """Whether there is nobody to answer, or nothing to read; told where it has to be."""
        if self._core.topics.get(self._topic.id) is not self._topic:
            self._done(TopicNotFound(self._query.name))
            return True
        return self._waiting is not None and self._waiting.ended

    def _walk_on(self) -> None:
        core, walk, cold = self._core, self._walk, self._cold
        assert walk is not None
        paced = self._paced and cold.failed is None
        try:
            ended = walk.go_on(paced)
        except NeedsBlocks as needed:
            core.cold.fetch(cold, needed.wanted, self._fetched)
            return
        if not ended:
            self._is_large = True
            core.cold.again(cold, partial(self._in_turn, self._walk_on))
            return
        core.losses.note_unreadable(self._topic)
        result = walk.result()
        if paced and self._is_large:
            core.cold.again(cold, partial(self._in_turn, partial(self._answer, result)))
        else:
            self._answer(result)

    def _in_turn(self, then: Callable[[], None]) -> None:
        """Go on behind others; in one go and from the beginning if something was removed that was found before [DEL-7].

        How many of a topic's seqs are not there changes with every removal; writes leave it as it is.
        """
        if self._is_over():
            return
        if self._topic.head - self._topic.count != self._gone:
            self._hurries, self._paced = True, False
            then = self._retain
        guarded(then, self._done)

    def _answer(self, result: ReadResult) -> None:
        query = self._query
        if query.wait_ms and result.caught_up and not result.records and result.tombstone is None:
            _wait(self._core, self._topic, query, result, self._done, self._wanted, self._waiting)
        else:
            self._done(result)

    def _fetched(self) -> None:
        self._paced = not self._hurries
        guarded(self._retain, self._done)


def _read(
    core: Core, topic: Topic, query: Query, done: Outcome, wanted: Projection | None, waiting: Waiting | None
) -> None:
    _Reading(core, topic, query, done, wanted, waiting).begin()


def _wait(
    core: Core,
    topic: Topic,
    query: Query,
    first: ReadResult,
    done: Outcome,
    wanted: Projection | None,
    waiting: Waiting | None,
) -> None:
    """In the same stretch as the first read, so no publication is missed [DIF-5]."""
    key = object()

    def ended() -> bool:
        """Whether it has been answered already, or nobody wants an answer; from now on it has."""
        alarm.cancel()
        topic.waiters.pop(key, None)
        return core.polls.pop(key, None) is None

    def woken() -> None:
        if ended():
            return
        if topic.removed:
            done(TopicNotFound(query.name))
        else:
            guarded(lambda: _read(core, topic, query._replace(wait_ms=0), done, wanted, None), done)

    def late() -> None:
        if not ended():
            done(first)

    def leave() -> None:
        ended()

    if waiting is not None:
        waiting.leave = leave

    topic.waiters[key] = woken
    core.polls[key] = late
    alarm = core.alarms.at(core.clock.monotonic_ns() + query.wait_ms * 1_000_000, late)


class Page(ReadResult, frozen=True):
    """A read whose records are JSON: pieces to be joined by commas, of which one may be several records."""

    count: int = 0


def count_of(result: ReadResult) -> int:
    """How many records a read has."""
    return result.count if isinstance(result, Page) else len(result.records)


def walk(
    topic: Topic, query: Query, cold: ColdRead, wanted: Projection | None = None, through: int | None = None
) -> ReadResult:
    """One read of what is there now: `Record` objects, or with a projection their JSON.

    `through` is where the topic ends for this reader, its head by default. `NeedsBlocks`: to be repeated with the same
    `cold` once they are there.
    """
    walk = _begin(topic, query, cold, wanted, through)
    walk.go_on()
    return walk.result()


def _begin(
    topic: Topic, query: Query, cold: ColdRead, wanted: Projection | None = None, through: int | None = None
) -> _Walk:
    cold.begin()
    head, floor = topic.head if through is None else through, topic.evict_floor
    from_seq = query.from_seq
    if query.from_ts is not None:
        from_seq = topic.index.first_at(query.from_ts, topic.floor, head) - 1 if topic.floor <= head else head
    tombstone: Gap | None = None
    if from_seq > head:
        tombstone = Gap.recreated(head, topic.earliest_seq)
        from_seq = floor - 1
    elif from_seq + 1 < floor:
        tombstone = Gap.lost(from_seq + 1, floor - 1, _evicted_by(topic, from_seq + 1), head)
        from_seq = floor - 1
    return _Walk(topic, query, from_seq, tombstone, wanted, head, cold)


def _evicted_by(topic: Topic, gap_from: int) -> GapReason:
    by_cap, by_ttl = topic.cap_floor > gap_from, topic.ttl_floor > gap_from
    return "mixed" if by_cap and by_ttl else "cap" if by_cap else "ttl"


class _Walk:
    """One walk upwards. `cursor` is the last seq examined."""

    def __init__(
        self,
        topic: Topic,
        query: Query,
        cursor: int,
        tombstone: Gap | None,
        wanted: Projection | None,
        head: int,
        cold: ColdRead,
    ) -> None:
        self.cursor = cursor
        self.tombstone = tombstone
        self.records: list[Any] = []
        """`Record` objects, or pieces of JSON to be joined by commas."""
        self.count = 0
        """How many records they are."""
        self._wanted = wanted
        self._topic = topic
        self._head = head
        self._cold = cold
        self._limit = query.limit
        self._budget = query.max_bytes
        self._nodes = query.nodes if topic.config.dedupe_node else frozenset()
        self._bytes = 0
        self._start = cursor
        self._told_through = 0
        self._enough: int | None = None
        """At so many bytes a slice ends, if it is made in slices."""
        self._paused = False

    def go_on(self, paced: bool = False) -> bool:
        """Walk to the end, or if `paced` over one slice of the cold tier; whether it has come to its end.

        `NeedsBlocks`: to be repeated from its beginning, with the same `cold` once they are there.
        """
        try:
            return self._run(paced)
        except NeedsBlocks as needed:
            if not self.is_enough():
                raise NeedsBlocks(self.ahead(needed.wanted)) from needed
            return True

    def result(self) -> ReadResult:
        """What was found."""
        scanned = self.cursor - self._start
        found = (self.records, self.cursor, self._head, self._topic.earliest_seq, self.tombstone, scanned)
        if self._wanted is None:
            return ReadResult(*found, self._cold.records)
        return Page(*found, self._cold.records, self.count)

    def _run(self, paced: bool) -> bool:
        """Until the head, the limit, the budget, or a run of holes that has to wait for the next read."""
        self._enough, self._paused = self._bytes + SLICE_BYTES // 2 if paced else None, False
        while self._take_page():
            if self.count >= self._limit or self.cursor - self._start >= EXAMINED_MAX:
                return True
            if self._pause():
                return False
        self._look()
        return not self._paused

    def _pause(self) -> bool:
        """Whether it was a slice: others have their turn."""
        self._paused = self._enough is not None and self._bytes >= self._enough
        return self._paused

    def _look(self) -> None:
        """The same, entry by entry."""
        topic = self._topic
        for piece in topic.index.walk(self.cursor + 1, self._head, self._limit + AHEAD):
            if isinstance(piece, DeadRun):
                if not self._pass(piece):
                    return
            elif not self._deliver(piece):
                return
            if self.cursor - self._start >= EXAMINED_MAX and self.cursor < self._head:
                # A run that is told is told whole: the next read begins behind it.
                self.cursor = max(self.cursor, self._told_through)
                return
        # Whatever is not known of is dead: below the floors, or a silent gap.
        self.cursor = max(self.cursor, self._head)

    def _take_page(self) -> bool:
        """Deliver what lies in a row in a sealed segment, as most of what is read does, in one go; whether it did."""
        first, most = self.cursor + 1, min(self._limit - self.count, self._head - self.cursor, JSON_FETCH)
        if self._wanted is None or self._nodes or most <= 0 or first < self._topic.floor:
            return False
        page = self._topic.index.page(first, most, self._budget - self._bytes, self._wanted, self._cold)
        if page is None:
            return False
        text, count, size = page
        self.records.append(text)
        self.count += count
        self.cursor += count
        self._bytes += size
        return True

    def is_enough(self) -> bool:
        """Whether what was found is the answer, although more could be fetched; raises if nothing can be [S-323]."""
        found = bool(self.records) or self.tombstone is not None
        if self._cold.failed is not None and not found:
            raise self._cold.failed
        return found and (self._cold.failed is not None or self._cold.is_large)

    def ahead(self, needed: Sequence[Wanted]) -> list[Wanted]:
        """What else of the cold tier this read will need: all of it is fetched at once."""
        wanted, left, budget = dict.fromkeys(needed), self._limit - self.count, self._budget - self._bytes
        at = self.cursor + 1
        while len(wanted) < BLOCKS_PER_CALL and (found := self._cold_stretch(at, left, budget)) is not None:
            segment, stretch = found
            size = stretch.end - stretch.start
            wanted.update(self._missing(segment, blocks_of(stretch.start, size)))
            at, left, budget = at + stretch.records, left - stretch.records, budget - size
        if left > 0 and at <= self._head:
            self._look_ahead(at, left, budget, wanted)
        return list(wanted)[: max(BLOCKS_PER_CALL, len(needed))]

    def _cold_stretch(self, at: int, left: int, budget: int) -> tuple[Segment, Stretch] | None:
        """Records in a row from `at` on, all cold, live and within the budget; None: it takes a closer look."""
        most = min(left, self._head + 1 - at)
        if most <= 0 or at < self._topic.floor:
            return None
        found = self._topic.index.stretch(at, most)
        if found is None or not found[0].cold or not 0 < found[1].end - found[1].start <= budget:
            return None
        return found

    def _missing(self, segment: Segment, numbers: Sequence[int]) -> dict[Wanted, None]:
        place = Place(self._topic.id, segment.first, segment.generation)
        return dict.fromkeys(self._cold.missing(place, segment.data_len, numbers))

    def _look_ahead(self, at: int, left: int, budget: int, wanted: dict[Wanted, None]) -> None:
        """The same from `at` on where something is dead in between, or not cold."""
        for piece in self._topic.index.walk(at, self._head, self._limit + AHEAD):
            if isinstance(piece, DeadRun):
                continue
            source = piece.source
            if not isinstance(source, Segment) or not source.cold:
                break
            chosen = piece.entries[_kinds(piece) == _LIVE][:left]
            sizes = chosen["len"].astype(np.int64)
            chosen = chosen[: int(np.searchsorted(sizes.cumsum(), budget)) + 1]
            left, budget = left - len(chosen), budget - int(sizes.sum())
            wanted.update(self._missing(source, blocks_of_all(chosen["offset"], chosen["len"])))
            if len(wanted) >= BLOCKS_PER_CALL or left <= 0 or budget <= 0:
                break

    def _pass(self, run: DeadRun) -> bool:
        """Go over a long run of dead seqs; False ends the walk."""
        if run.reason and not self._tell(run.first, run.last, run.reason):
            return False
        self.cursor = max(self.cursor, run.last)
        return True

    def _tell(self, first: int, last: int, reason: int) -> bool:
        """A run of holes: the tombstone of this read, or its end [RD-8]."""
        if last <= self._told_through:
            return True
        if self.records or self.tombstone is not None:
            self.cursor = first - 1
            return False
        last = max(last, self._end_of_run(last, reason))
        self.tombstone = Gap.lost(first, last, REASONS[reason], self._head)
        self._told_through = last
        return True

    def _end_of_run(self, last: int, reason: int) -> int:
        """Holes of one reason in a row are one run, whatever they are kept in [S-125]."""
        for piece in self._topic.index.walk(last + 1, self._head):
            if piece.first != last + 1:
                return last
            if isinstance(piece, DeadRun):
                if piece.reason != reason:
                    return last
                last = piece.last
                continue
            kinds = _kinds(piece)
            other = np.flatnonzero(kinds != reason)
            if len(other):
                return last + int(other[0])
            last += len(kinds)
        return last

    def _deliver(self, run: Run) -> bool:
        """Go over entries; False ends the walk."""
        kinds = _kinds(run)
        sizes = run.entries["len"].astype(np.int64) - ovh(run.entries)
        floor = self._topic.floor
        at, n = 0, len(kinds)
        while at < n:
            if self._pause():
                return False
            if kinds[at] != _LIVE or run.first + at < floor:
                behind = self._end_of_dead(kinds, at, floor - run.first)
                if kinds[at] > 0 and not self._tell(run.first + at, run.first + behind - 1, int(kinds[at])):
                    return False
                self.cursor = run.first + behind - 1
                at = behind
                continue
            chosen = self._choose(kinds, sizes, at)
            if isinstance(run.source, Segment) and run.source.cold:
                chosen = _few_blocks(run, chosen)
            taken = self._take_run(run, chosen, sizes)
            if taken:
                if self.count >= self._limit:
                    return False
                at += taken
                continue
            fetched = self._topic.index.fetch(run, chosen, self._cold)
            size = int(sizes[at : at + len(chosen)].sum())
            if self._take_all(run.first + at, fetched, size):
                if self.count >= self._limit:
                    return False
                at = chosen[-1] + 1
                continue
            for position, stored in zip(chosen, fetched, strict=True):
                seq = run.first + position
                if isinstance(stored, Absent):
                    if not self._absent(seq, stored):
                        return False
                elif not self._one(seq, stored, int(sizes[position])):
                    return False
                self.cursor = seq
                if self.count >= self._limit:
                    return False
            at = chosen[-1] + 1
        return True

    def _end_of_dead(self, kinds: Kinds, at: int, floor: int) -> int:
        """Behind the positions from `at` on that are dead in the same way; live ones are below `floor`."""
        behind = _first(kinds[at:] != kinds[at]) + at
        return min(behind, floor) if kinds[at] == _LIVE else behind

    def _choose(self, kinds: Kinds, sizes: npt.NDArray[np.int64], at: int) -> range:
        """Live positions in a row from `at`, hardly more than may be delivered."""
        n = min(len(kinds), at + self._limit - self.count, at + (FETCH if self._wanted is None else JSON_FETCH))
        if n - at > 1:
            n = at + _first(kinds[at:n] != _LIVE)
            # Up to the first that does not fit, and that one too.
            most = self._budget if self._enough is None else min(self._budget, self._enough)
            fitting = np.searchsorted(sizes[at : n - 1].cumsum(), most - self._bytes, side="right")
            n = at + 1 + int(fitting)
        return range(at, max(n, at + 1))

    def _take_run(self, run: Run, chosen: Sequence[int], sizes: npt.NDArray[np.int64]) -> int:
        """Deliver records in a row as JSON, as many as there is nothing to decide about; how many."""
        if self._wanted is None or self._nodes:
            return 0
        size = int(sizes[chosen[0] : chosen[-1] + 1].sum())
        if self._bytes + size > self._budget:
            # The last one chosen is the one that does not fit.
            chosen = chosen[:-1]
            size = int(sizes[chosen[0] : chosen[-1] + 1].sum()) if chosen else 0
        if not chosen or self._bytes + size > self._budget:
            return 0
        pieces = self._topic.index.project(run, chosen[0], chosen[-1] + 1, self._wanted, self._cold)
        if pieces is None:
            return 0
        self._bytes += size
        self.count += len(chosen)
        self.records += pieces
        self.cursor = run.first + chosen[-1]
        return len(chosen)

    def _render(self, stored: Sequence[Stored]) -> list[Any]:
        return list(map(_record, stored)) if self._wanted is None else project.stored(stored, self._wanted)

    def _take_all(self, first: int, fetched: list[Stored | Absent], size: int) -> bool:
        """Deliver what was fetched in one go, where there is nothing to decide about any of it."""
        if self._nodes or self._bytes + size > self._budget or not _STORED.issuperset(map(type, fetched)):
            return False
        self._bytes += size
        self.count += len(fetched)
        self.records += self._render(cast("list[Stored]", fetched))
        self.cursor = first + len(fetched) - 1
        return True

    def _absent(self, seq: int, why: Absent) -> bool:
        """A frame that is gone is passed over; one that cannot be read is a hole of damage [S-176]."""
        if why is Absent.GONE or not self._topic.told:
            return True
        if self._told_through == seq - 1 and self.tombstone is not None and self.tombstone.reason == "corrupt":
            self.tombstone = Gap.lost(self.tombstone.gap_from, seq, "corrupt", self._head)
            self._told_through = seq
            return not self.records
        return self._tell(seq, seq, 2)

    def _one(self, seq: int, stored: Stored, size: int) -> bool:
        if stored.node is not None and stored.node in self._nodes:
            return True
        if self.records and self._bytes + size > self._budget:
            return False
        self._bytes += size
        self.count += 1
        self.records += self._render((stored,))
        return True


_LIVE: Final = -1
_ALL_LIVE: Final = np.full(CHUNK, _LIVE)
_ALL_LIVE.flags.writeable = False
_STORED: Final = frozenset({Frame, DataFrame})


def _first(wrong: npt.NDArray[np.bool_]) -> int:
    """How many come before the first that is set."""
    at = int(wrong.argmax())
    return at if wrong[at] else len(wrong)


def _kinds(run: Run) -> Kinds:
    """What each entry is: live, 0 silently gone, or the reason of a hole."""
    flags = run.entries["flags"]
    dead = flags & np.uint8(DELETED | LOST)
    if not dead.any():
        return _ALL_LIVE[: len(flags)] if len(flags) <= CHUNK else np.full(len(flags), _LIVE)
    kinds = np.where(flags & np.uint8(LOST) != 0, ovh(run.entries).astype(np.int64), 0)
    kinds[dead == 0] = _LIVE
    return kinds


def _few_blocks(run: Run, chosen: range) -> range:
    """As many of these positions as a call's share of blocks holds; at least one."""
    entries = run.entries[chosen.start : chosen.stop]
    offsets, sizes = entries["offset"], entries["len"]
    if len(blocks_of_all(offsets, sizes)) <= BLOCKS_PER_CALL:
        return chosen
    blocks: set[int] = set()
    for number, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        blocks.update(blocks_of(offset, size))
        if len(blocks) > BLOCKS_PER_CALL and number:
            return chosen[:number]
    return chosen


def _record(stored: Stored) -> Record:
    data, meta = envelope.parts(stored.data)
    node = None if stored.node is None else stored.node.decode()
    tag = None if stored.tag is None else stored.tag.decode()
    return Record(stored.seq, stored.ts, node, tag, data, meta)


def state(core: Core, name: str, touch: bool, done: Outcome) -> None:
    """A topic at this instant, retention applied [STA-1]; answers a `TopicState`."""

    def found(topic: Topic) -> None:
        def go_on(now: int) -> None:
            if core.topics.get(topic.id) is not topic:
                done(TopicNotFound(name))
            else:
                if touch:
                    topic.read_at(now)
                done(describe(topic, now))

        forward.drain(core, topic, lambda: queue.up_to_date(core, topic, go_on, done), done)

    core.with_topic(name, found, done)


def refresh(core: Core, topics: Sequence[Topic], then: Callable[[], None], done: Outcome) -> None:
    """Apply the retention of several topics, all at once, then go on [TTL-3]."""
    left = len(topics) + 1
    failed: Exception | None = None

    def one(error: Exception | None = None) -> None:
        nonlocal left, failed
        left -= 1
        failed = failed or error
        if not left:
            guarded(then, done) if failed is None else done(failed)

    def expire(topic: Topic) -> None:
        retention.catch_up(core, topic)
        retention.expire(core, topic, one, one)

    for topic in topics:
        guarded(partial(expire, topic), one)
    one()


def describe(topic: Topic, now: int) -> TopicState:
    """The state of a topic."""
    first = topic.lowest()
    return TopicState(
        topic=topic.name,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        count=topic.count,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=priority.effective_priority(topic.config, topic.last_consumed_ms, now),
        last_write_ts=topic.last_write_ms,
        last_read_ts=topic.last_read_ms,
        earliest_ts=None if first is None else first.ts,
        queue=queue.counters(topic)._asdict() if topic.config.type == "queue" else None,
    )
