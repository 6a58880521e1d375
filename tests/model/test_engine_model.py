"""The engine against a model of it: every verb, every way to stop, clock jumps and damage, in random order (T9).

The oracle (`Topic`) is the semantics of 01 in a few lines over plain dictionaries, and knows no files. What a class
leaves open after a stop is settled by looking: the engine must show a state that the class allows, and the model goes
on from there.

    stop            `fsync`     `disk`                                 `memory`    `ephemeral`
    clean           the same    the same                               the same    empty, the same head
    kill            the same    the same                               a subset    empty, no higher head
    machine crash   the same    a state it had since the last sync,    a subset    empty, no higher head
                                then one run told as `crash`

`TOPICS_TEST_MACHINES` is how many machines run, 100 by default and 1000 for the full size; each takes 50 steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import ProducerGap, RecordTooLarge, TopicFull
from topics.model import Gap, Producer, Record, Selector, TopicConfig, new
from topics.testing import ManualClock, PowerLoss, SimFs
from topics.testing.simfs import STYLES

MACHINES = int(os.environ.get("TOPICS_TEST_MACHINES", "100"))
STEPS = 50

PATH = "store"
NAMES = ("a", "b", "c")
TAGS = (None, "x", "xy", "y", "")
NODES = (None, "n1", "n2")
JUMPS_MS = (1, 20, 1000, 5000, 60_000, 3_600_000)


class Entry(NamedTuple):
    """A write that has a name."""

    first: int
    count: int  # type: ignore[assignment]
    head: int
    at_ms: int
    ts: int


class Pair(NamedTuple):
    """The newest write of a producer."""

    epoch: int
    index: int  # type: ignore[assignment]
    entry: Entry


class Row(NamedTuple):
    """A live record."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: str
    durability: str

    @property
    def size(self) -> int:
        return len(self.data) + 2


class Run(NamedTuple):
    """Lost seqs, told with a reason."""

    first: int
    last: int
    reason: str


class Page(NamedTuple):
    """What a read answers."""

    seqs: list[int]
    gap: tuple[int, int, str] | None
    next_from_seq: int


@dataclass
class Topic:
    """One instance of a topic, as 01 describes it."""

    config: TopicConfig
    head: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    cap_lost: int = 0
    ttl_lost: int = 0
    runs: list[Run] = field(default_factory=list)
    newest_ts: int = 0
    keys: dict[str, Entry] = field(default_factory=dict)
    producers: dict[str, Pair] = field(default_factory=dict)
    capped: bool = False
    aged: bool = False
    """Whether caps, a TTL were ever set: then the reason of a floor may be either."""
    reserved: bool = False
    """A `disk` write of this run has reserved seqs."""
    restarted: bool = False
    written: dict[int, Row] = field(default_factory=dict)
    """Everything ever written, for classes that may bring deletes back."""

    def copy(self) -> Topic:
        return replace(
            self,
            rows=dict(self.rows),
            runs=list(self.runs),
            keys=dict(self.keys),
            producers=dict(self.producers),
            written=dict(self.written),
        )

    @property
    def floor(self) -> int:
        return max(self.cap_lost, self.ttl_lost) + 1

    @property
    def earliest(self) -> int:
        return min(self.rows, default=self.head + 1)

    @property
    def bytes(self) -> int:
        return sum(row.size for row in self.rows.values())

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.head, self.earliest, len(self.rows), self.bytes

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.capped |= bool(config.cap_records or config.cap_bytes)
        self.aged |= bool(config.ttl_ms)
        self.enforce_caps()

    def admits(self, rows: list[dict[str, Any]]) -> type[Exception] | None:
        """Why a topic that rejects refuses this write [CAP-3, CAP-4]."""
        config, size = self.config, sum(len(row["data"]) + 2 for row in rows)
        if config.discard != "reject":
            return None
        caps = [(config.cap_records, len(self.rows), len(rows)), (config.cap_bytes, self.bytes, size)]
        if any(cap and more > cap for cap, _, more in caps):
            return RecordTooLarge
        if any(cap and used + more > cap for cap, used, more in caps):
            return TopicFull
        return None

    def append(self, rows: list[dict[str, Any]], now_ms: int) -> Entry:
        ts = max(now_ms, self.newest_ts)
        first = self.head + 1
        for row in rows:
            self.head += 1
            self.rows[self.head] = self.written[self.head] = Row(
                self.head, ts, row.get("node"), row.get("tag"), row["data"], self.config.durability
            )
        self.newest_ts = ts
        self.reserved |= self.config.durability == "disk"
        self.enforce_caps()
        return Entry(first, len(rows), self.head, now_ms, ts)

    def enforce_caps(self) -> None:
        config = self.config
        if config.discard != "old":
            return
        for seq in sorted(self.rows):
            over_count = config.cap_records and len(self.rows) > config.cap_records
            over_bytes = config.cap_bytes and self.bytes > config.cap_bytes
            if not over_count and not over_bytes:
                return
            del self.rows[seq]
            self.cap_lost = seq

    def expire(self, now_ms: int, highest_ms: int, left: int) -> bool:
        """Expire so that `left` records stay; they must be too old by this clock, or by the highest one [S-263]."""
        ttl_ms = self.config.ttl_ms
        order = sorted(self.rows)
        gone = len(order) - left
        must = sum(1 for row in self.rows.values() if ttl_ms and now_ms - row.ts > ttl_ms)
        may = sum(1 for row in self.rows.values() if ttl_ms and highest_ms - row.ts > ttl_ms)
        assert must <= gone <= may, f"{gone} records expired; at least {must} and at most {may} are too old"
        for seq in order[:gone]:
            del self.rows[seq]
            self.ttl_lost = seq
        return gone > 0

    def selected(
        self, before_seq: int | None = None, match: object = None, seqs: Iterable[int] | None = None
    ) -> list[int]:
        """Live records that a delete names (01 §14)."""
        selector = None if match is None else Selector.parse(match)
        chosen = None if seqs is None else set(seqs)
        return [
            seq
            for seq, row in self.rows.items()
            if (before_seq is None or seq < before_seq)
            and (selector is None or selector.matches(row.tag))
            and (chosen is None or seq in chosen)
        ]

    def reason(self, gap_from: int) -> str:
        cap, ttl = self.cap_lost >= gap_from, self.ttl_lost >= gap_from
        return "mixed" if cap and ttl else "cap" if cap else "ttl"

    def page(self, from_seq: int, limit: int = 1000, max_bytes: int = 8 << 20, nodes: tuple[str, ...] = ()) -> Page:
        """The read pipeline (01 §12)."""
        gap, cursor = None, from_seq
        if from_seq > self.head:
            gap, cursor = (1, self.head, "recreated"), self.floor - 1
        elif from_seq + 1 < self.floor:
            gap, cursor = (from_seq + 1, self.floor - 1, self.reason(from_seq + 1)), self.floor - 1
        ahead: list[tuple[int, Row | Run]] = [(seq, row) for seq, row in self.rows.items() if seq > cursor]
        told = max(cursor + 1, self.floor)
        ahead += [(max(run.first, told), run) for run in self.runs if run.last >= told]
        seqs: list[int] = []
        total = 0
        for at, item in sorted(ahead, key=lambda one: one[0]):
            if isinstance(item, Run):
                if gap is not None or seqs:
                    return Page(seqs, gap, at - 1)
                gap = (at, item.last, item.reason)
                continue
            if item.node in nodes and self.config.dedupe_node:
                continue
            if seqs and total + item.size > max_bytes:
                return Page(seqs, gap, at - 1)
            seqs.append(at)
            total += item.size
            if len(seqs) == limit:
                return Page(seqs, gap, at)
        return Page(seqs, gap, self.head)

    def lose(self, first: int, last: int) -> None:
        """Holes of reason `crash`; they join a run they touch."""
        if self.runs and self.runs[-1].last == first - 1 and self.runs[-1].reason == "crash":
            first = self.runs.pop().first
        self.runs.append(Run(first, last, "crash"))
        self.head = last


class Shown(NamedTuple):
    """A topic as a reader sees it from the beginning."""

    numbers: tuple[int, int, int, int]
    records: list[Record]
    gaps: list[Gap]


def show(engine: Engine, name: str) -> Shown:
    records: list[Record] = []
    gaps: list[Gap] = []
    cursor = 0
    for _ in range(10_000):
        page = engine.read(name, cursor, limit=1000, max_bytes=8 << 20)
        records += page.records
        gaps += [page.tombstone] if page.tombstone else []
        if page.caught_up:
            state = engine.state(name, touch=False)
            return Shown((state.head_seq, state.earliest_seq, state.count, state.bytes), records, gaps)
        assert page.next_from_seq > cursor
        cursor = page.next_from_seq
    raise AssertionError("the reader never caught up [INV-10]")


def differs(topic: Topic, shown: Shown) -> str:
    """How a topic as shown differs from the model; empty if it does not. Reasons of floors are not compared."""
    if shown.numbers != topic.numbers:
        return f"numbers: {shown.numbers}, expected {topic.numbers}"
    got = [(r.seq, r.node, r.tag, r.data) for r in shown.records]
    expected = [(row.seq, row.node, row.tag, row.data) for _, row in sorted(topic.rows.items())]
    if got != expected:
        return f"records: {got}, expected {expected}"
    if [r.ts for r in shown.records] != [row.ts for _, row in sorted(topic.rows.items())]:
        return "timestamps"
    gaps = []
    cursor = 0
    while True:
        page = topic.page(cursor)
        gaps += [page.gap] if page.gap else []
        cursor = page.next_from_seq
        if cursor == topic.head:
            break
    told = [(gap.gap_from, gap.gap_to, gap.reason) for gap in shown.gaps]
    if [one[:2] for one in told] != [one[:2] for one in gaps]:
        return f"gaps: {told}, expected {gaps}"
    for one, other in zip(told, gaps, strict=True):
        if "crash" in (one[2], other[2]) and one[2] != other[2]:
            return f"reason: {one}, expected {other}"
    return ""


batches = st.lists(
    st.fixed_dictionaries(
        {"data": st.text("abc", max_size=6), "tag": st.sampled_from(TAGS), "node": st.sampled_from(NODES)}
    ),
    min_size=1,
    max_size=4,
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from((0, 0, 1000, 60_000)),
        "cap_records": st.sampled_from((0, 0, 1, 3, 10)),
        "cap_bytes": st.sampled_from((0, 0, 10, 40)),
        "discard": st.sampled_from(("old", "old", "reject")),
        "dedupe_node": st.booleans(),
        "priority": st.sampled_from((None, 5)),
    },
)
names = st.sampled_from(NAMES)
logged = st.sampled_from(("memory", "disk", "disk", "fsync"))
classes = st.sampled_from(("ephemeral", "memory", "disk", "disk", "fsync", "fsync"))
selectors = st.one_of(
    st.fixed_dictionaries({"match": st.sampled_from(("x", "x*", "y", "*", "", "none"))}),
    st.fixed_dictionaries({"back": st.integers(-2, 12)}),
    st.fixed_dictionaries({"back": st.integers(0, 12), "match": st.sampled_from(("x*", "y"))}),
    st.fixed_dictionaries({"backs": st.lists(st.integers(-1, 12), min_size=1, max_size=4)}),
)


class EngineMachine(RuleBasedStateMachine):
    """One store and its model."""

    @initialize(
        shards=st.sampled_from((1, 1, 3)),
        events=st.sampled_from((2, 5, 10_000)),
        reserve=st.sampled_from((8, 8, 1500)),
        file_bytes=st.sampled_from((4096, 65536)),
        cache=st.sampled_from((0, 1 << 20)),
        seed=st.integers(0, 1000),
    )
    def start(self, shards: int, events: int, reserve: int, file_bytes: int, cache: int, seed: int) -> None:
        self.options: dict[str, Any] = {
            "wal_shards": shards,
            "segment_max_events": events,
            "reserve_min": reserve,
            "reserve_max": 2 * reserve,
            "wal_file_bytes": file_bytes,
            "wal_init_zero": False,
            "recent_cache_bytes": cache,
            "checkpoint_records": 4,
        }
        self.clock = ManualClock()
        self.highest_ms = self.clock.now_ms()
        self.sim = SimFs(seed)
        self.boot = 0
        self.topics: dict[str, Topic] = {}
        self.past: dict[str, list[Topic]] = {}
        """States of each topic since one that no crash can take back; the last one is the present."""
        self.kept_head: dict[str, int] = {}
        """Heads of ephemeral topics at their last full checkpoint."""
        self.unsure: set[tuple[str, str]] = set()
        """Names of writes of which nobody can say whether they are remembered."""
        self.serial = self.epoch = 0
        self.engine = self.open()

    def open(self, sim: SimFs | None = None) -> Engine:
        return Engine.open(
            PATH,
            EngineConfig(**self.options),
            clock=self.clock,
            fs=self.sim if sim is None else sim,
            boot_id=f"boot-{self.boot}",
        )

    # -- the model's bookkeeping

    def done(self, name: str, *, durable: bool = False) -> None:
        """An operation on a topic was acknowledged."""
        topic = self.topics[name]
        if durable or topic.config.durability == "fsync":
            self.past[name] = []
        self.past.setdefault(name, []).append(topic.copy())

    def pin(self) -> None:
        """Nothing of the present can be taken back."""
        for name, topic in self.topics.items():
            self.past[name] = [topic.copy()]
            self.kept_head[name] = topic.head

    def look(self, name: str) -> None:
        """A topic's numbers are exact, and what is too old has gone for good."""
        topic = self.topics[name]
        state = self.engine.state(name, touch=False)
        if topic.expire(self.clock.now_ms(), self.highest_ms, state.count):
            self.done(name, durable=True)
        assert (state.head_seq, state.earliest_seq, state.count, state.bytes) == topic.numbers
        assert state.config == topic.config

    def unique(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same rows with payloads that were never written before."""
        for row in rows:
            self.serial += 1
            row["data"] = f"{self.serial}{row['data']}"
        return rows

    # -- topics

    @rule(name=names, config=configs, durability=classes, change=logged)
    def put_topic(self, name: str, config: dict[str, Any], durability: str, change: str) -> None:
        known = self.topics.get(name)
        if known is not None:
            # A topic that is ephemeral stays so: what it did meanwhile was not logged.
            durability = "ephemeral" if known.config.durability == "ephemeral" else change
        complete = TopicConfig(**{**config, "durability": durability})
        created, stored = self.engine.put_topic(name, {**config, "durability": durability})
        assert (created, stored) == (known is None, complete)
        topic = self.topics.setdefault(name, Topic(complete))
        if known is None:
            self.kept_head[name] = 0
            self.past[name] = []
        topic.configure(complete)
        self.done(name, durable=True)

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        assert self.engine.delete_topic(name) is (name in self.topics)
        self.topics.pop(name, None)
        self.past.pop(name, None)
        self.unsure = {one for one in self.unsure if one[0] != name}

    # -- writing

    @rule(name=names, rows=batches)
    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.write(name, self.unique(rows))

    def write(self, name: str, rows: list[dict[str, Any]], **more: Any) -> Entry | None:
        """A write that is new; `None` if the topic refuses it."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(TopicConfig())
            self.past[name] = [topic.copy()]
            self.kept_head[name] = 0
            created = True
        else:
            created = False
        refusal = topic.admits(rows)
        try:
            result = self.engine.append(name, [new(**row) for row in rows], **more)
        except (TopicFull, RecordTooLarge) as error:
            self.check_refusal(error, refusal)
            return None
        assert refusal is None
        entry = topic.append(rows, self.clock.now_ms())
        assert result.seqs == list(range(entry.first, entry.first + entry.count))
        assert (result.head_seq, result.count) == (entry.head, len(rows))
        assert (result.created, result.deduped) == (created, False)
        self.settle_ts(name, entry)
        self.done(name)
        return entry

    def check_refusal(self, error: Exception, expected: type[Exception] | None) -> None:
        assert type(error) is expected

    def settle_ts(self, name: str, entry: Entry) -> None:
        """After a restart the newest timestamp may have gone with its record; then the clock decides again."""
        topic = self.topics[name]
        if not topic.restarted:
            return
        page = self.engine.read(name, entry.head - 1, limit=1)
        older = max((row.ts for row in topic.rows.values() if row.seq < entry.first), default=0)
        if page.records:
            ts = page.records[0].ts
        elif entry.head in topic.rows and topic.config.ttl_ms:
            # Too old already: the clock has gone back behind what age was last judged by [S-263].
            ts = max(self.clock.now_ms(), older)
        else:
            return
        assert max(self.clock.now_ms(), older) <= ts <= topic.newest_ts
        for seq in range(entry.first, entry.head + 1):
            topic.written[seq] = topic.written[seq]._replace(ts=ts)
            if seq in topic.rows:
                topic.rows[seq] = topic.rows[seq]._replace(ts=ts)
        topic.newest_ts = ts
        topic.restarted = False

    @rule(name=names, rows=batches, key=st.sampled_from(("k1", "k2")))
    def append_keyed(self, name: str, rows: list[dict[str, Any]], key: str) -> None:
        topic = self.topics.get(name)
        entry = None if topic is None else topic.keys.get(key)
        if entry is not None and topic is not None:
            window, now_ms = topic.config.idempotency_window_ms, self.clock.now_ms()
            forgotten = now_ms - entry.at_ms > window and now_ms - entry.ts > window
            certain = self.highest_ms - entry.at_ms <= window and (name, key) not in self.unsure
            if forgotten:
                entry = None
            elif not certain:
                self.ask(name, self.unique(rows), key)
                return
        if entry is None:
            written = self.write(name, self.unique(rows), idempotency_key=key)
            if written is not None:
                self.remember(name, key, written)
            return
        result = self.engine.append(name, [new(**row) for row in rows], idempotency_key=key)
        self.check_repeat(entry, result)

    def remember(self, name: str, key: str, entry: Entry) -> None:
        self.unsure.discard((name, key))
        self.topics[name].keys[key] = entry
        self.past[name][-1].keys[key] = entry

    def ask(self, name: str, rows: list[dict[str, Any]], key: str) -> None:
        """A retry of which either outcome is right: the first one, or a new write."""
        topic = self.topics[name]
        refusal = topic.admits(rows)
        try:
            result = self.engine.append(name, [new(**row) for row in rows], idempotency_key=key)
        except (TopicFull, RecordTooLarge) as error:
            self.check_refusal(error, refusal)
            return
        if result.deduped:
            self.check_repeat(topic.keys[key], result)
            return
        entry = topic.append(rows, self.clock.now_ms())
        assert result.seqs == list(range(entry.first, entry.first + entry.count))
        self.settle_ts(name, entry)
        self.done(name)
        self.remember(name, key, entry)

    def check_repeat(self, entry: Entry, result: Any) -> None:
        last = entry.first + entry.count - 1
        assert (result.first_seq, result.last_seq, result.count) == (entry.first, last, entry.count)
        assert (result.created, result.deduped) == (False, True)
        assert result.head_seq in (entry.head, last)

    @rule(name=names, rows=batches, step=st.sampled_from((-1, 0, 0, 1, 1, 1, 2)), epoch=st.sampled_from((0, 0, 0, 1)))
    def append_produced(self, name: str, rows: list[dict[str, Any]], step: int, epoch: int) -> None:
        topic = self.topics.get(name)
        pair = None if topic is None else topic.producers.get("p")
        if pair is None:
            # An epoch never used before is new, whatever became of the pairs before it.
            self.epoch += 100
            producer = Producer("p", self.epoch, 5)
        elif epoch:
            producer = Producer("p", pair.epoch + 1, max(step, 0))
        else:
            producer = Producer("p", pair.epoch, max(pair.index + step, 0))
        if pair is not None and topic is not None:
            given = (producer.epoch, producer.index)
            kept = (pair.epoch, pair.index)
            if given <= kept:
                result = self.engine.append(name, [new(**row) for row in rows], producer=producer)
                if given == kept:
                    self.check_repeat(pair.entry, result)
                else:
                    assert (result.first_seq, result.last_seq, result.seqs, result.count) == (None, None, None, 0)
                    assert (result.head_seq, result.deduped) == (topic.head, True)
                return
            if given[0] == kept[0] and given[1] > kept[1] + 1:
                with pytest.raises(ProducerGap) as caught:
                    self.engine.append(name, [new(**row) for row in rows], producer=producer)
                assert (caught.value.epoch, caught.value.index) == kept
                return
        written = self.write(name, self.unique(rows), producer=producer)
        if written is not None:
            kept_pair = Pair(producer.epoch, producer.index, written)
            self.topics[name].producers["p"] = kept_pair
            self.past[name][-1].producers["p"] = kept_pair

    # -- deleting

    def selector(self, topic: Topic, given: dict[str, Any]) -> dict[str, Any]:
        """Seqs are drawn as distances from the head, so that they hit."""
        selector = {"match": given["match"]} if "match" in given else {}
        if "back" in given:
            selector["before_seq"] = max(topic.head - given["back"], 0)
        if "backs" in given:
            selector["seqs"] = [max(topic.head - back, 0) for back in given["backs"]]
        return selector

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), given=selectors, dry_run=st.sampled_from((False, False, False, True)))
    def delete(self, data: st.DataObject, given: dict[str, Any], dry_run: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[name]
        selector = self.selector(topic, given)
        gone = topic.selected(**selector)
        result = self.engine.delete(name, **selector, dry_run=dry_run)
        assert (result.deleted, result.head_seq) == (len(gone), topic.head)
        if dry_run:
            return
        for seq in gone:
            del topic.rows[seq]
        assert (result.head_seq, result.earliest_seq, result.count, result.bytes) == topic.numbers
        self.done(name)

    # -- reading

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        back=st.one_of(st.just(None), st.integers(-3, 20)),
        limit=st.sampled_from((1, 2, 3, 1000)),
        max_bytes=st.sampled_from((1, 12, 30, 8 << 20)),
        nodes=st.sampled_from(((), ("n1",), ("n1", "n2"))),
    )
    def read(self, data: st.DataObject, back: int | None, limit: int, max_bytes: int, nodes: tuple[str, ...]) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[name]
        cursor = 0 if back is None else max(topic.head - back, 0)
        expected = topic.page(cursor, limit, max_bytes, nodes)
        page = self.engine.read(name, cursor, limit=limit, max_bytes=max_bytes, node=nodes)
        assert [record.seq for record in page.records] == expected.seqs
        for record in page.records:
            row = topic.rows[record.seq]
            assert (record.ts, record.node, record.tag, record.data) == (row.ts, row.node, row.tag, row.data)
        told = None if page.tombstone is None else (page.tombstone.gap_from, page.tombstone.gap_to)
        assert told == (None if expected.gap is None else expected.gap[:2])
        if page.tombstone is not None and expected.gap is not None:
            self.check_reason(topic, page.tombstone, expected.gap[2])
        assert page.next_from_seq == expected.next_from_seq
        assert (page.head_seq, page.earliest_seq) == (topic.head, topic.earliest)

    def check_reason(self, topic: Topic, gap: Gap, reason: str) -> None:
        """With both a TTL and caps, which of two causes took a record first is nobody's promise."""
        floor = ("cap", "ttl", "mixed")
        if reason not in floor:
            assert gap.reason == reason
        elif not (topic.capped and topic.aged):
            assert gap.reason in (("cap",) if topic.capped else ("ttl",))
        else:
            assert gap.reason in floor

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def read_all(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        assert differs(self.topics[name], show(self.engine, name)) == ""

    # -- time and background work

    @rule(ms=st.sampled_from(JUMPS_MS))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.highest_ms = max(self.highest_ms, self.clock.now_ms())

    @rule(ms=st.sampled_from((*JUMPS_MS, *(-ms for ms in JUMPS_MS))))
    def jump(self, ms: int) -> None:
        self.clock.jump(ms)
        self.highest_ms = max(self.highest_ms, self.clock.now_ms())

    @rule()
    def tick(self) -> None:
        self.engine.tick()

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.engine.checkpoint(full=full)
        if full:
            self.pin()

    @rule()
    def snapshot(self) -> None:
        assert self.engine.snapshot() >= 1

    # -- stopping

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.pin()
        self.engine = self.open()
        self.recovered(unclean=False, machine=False)

    @rule()
    def kill(self) -> None:
        self.sim = self.sim.kill_image()
        self.engine = self.open()
        self.recovered(unclean=True, machine=False)

    @rule(style=st.sampled_from(STYLES), seed=st.integers(0, 1000))
    def crash(self, style: Any, seed: int) -> None:
        self.sim = self.sim.crash_image(seed, style)
        self.boot += 1
        self.engine = self.open()
        self.recovered(unclean=True, machine=True)

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        what=st.sampled_from(("append", "append", "delete", "checkpoint", "snapshot", "tick", "close")),
        rows=batches,
        given=selectors,
        calls=st.integers(1, 30),
        mode=st.sampled_from(("before", "middle", "after")),
        machine=st.booleans(),
        style=st.sampled_from(STYLES),
        seed=st.integers(0, 1000),
    )
    def interrupt(
        self,
        data: st.DataObject,
        what: str,
        rows: list[dict[str, Any]],
        given: dict[str, Any],
        calls: int,
        mode: Any,
        machine: bool,
        style: Any,
        seed: int,
    ) -> None:
        """The process or the machine dies in the middle of an operation, which then happened whole or not at all."""
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[name]
        after = topic.copy()
        call: Callable[[], object] = {
            "checkpoint": lambda: self.engine.checkpoint(full=True),
            "snapshot": self.engine.snapshot,
            "tick": self.engine.tick,
            "close": self.engine.close,
        }.get(what, self.engine.tick)
        rows = self.unique(rows)
        if what == "append" and not topic.restarted and topic.admits(rows) is None:
            after.append(rows, self.clock.now_ms())
            call = lambda: self.engine.append(name, [new(**row) for row in rows])  # noqa: E731
        elif what == "delete":
            selector = self.selector(topic, given)
            for seq in topic.selected(**selector):
                del after.rows[seq]
            call = lambda: self.engine.delete(name, **selector)  # noqa: E731
        self.sim.crash_at(self.sim.disk_calls + calls, mode)
        try:
            call()
        except PowerLoss:
            note("the power went")
        else:
            # It needed fewer calls than that: it is acknowledged, and then the power goes.
            self.topics[name] = after
            if what in ("append", "delete"):
                self.done(name)
            elif what in ("checkpoint", "close"):
                self.pin()
        if machine:
            self.sim = self.sim.crash_image(seed, style)
            self.boot += 1
        else:
            self.sim = self.sim.kill_image()
        self.engine = self.open()
        self.recovered(unclean=True, machine=machine, maybe=(name, after))

    def recovered(self, *, unclean: bool, machine: bool, maybe: tuple[str, Topic] | None = None) -> None:
        """Every topic shows a state that its class allows after this stop; the model takes it over."""
        assert list(self.engine.topics()) == sorted(self.topics)
        for name in self.topics:
            present, past = self.topics[name], self.past[name]
            shown = show(self.engine, name)
            allowed = list(reversed(past)) if machine else [present]
            if maybe is not None and maybe[0] == name:
                allowed.insert(0, maybe[1])
            if present.config.durability == "ephemeral":
                found = self.emptied(name, shown, unclean)
            elif present.config.durability == "memory" and unclean:
                found = self.survived(name, shown, allowed, machine)
            else:
                reserved = machine and any(one.reserved for one in (present, *allowed))
                found = self.one_of(name, allowed, shown, reserved)
            found.reserved = False
            found.restarted = True
            self.topics[name] = found
        self.pin()

    def one_of(self, name: str, allowed: list[Topic], shown: Shown, reserved: bool) -> Topic:
        """The newest of the allowed states that the topic shows, with a run behind it if it lost reserved seqs."""
        why = []
        acked = self.topics[name].head
        for state in allowed:
            topic = state.copy()
            head = shown.numbers[0]
            if reserved and head > topic.head:
                topic.lose(topic.head + 1, head)
            try:
                topic.expire(self.clock.now_ms(), self.highest_ms, shown.numbers[2])
            except AssertionError as error:
                why.append(str(error))
                continue
            difference = differs(topic, shown)
            if not difference:
                assert head >= acked, "an acknowledged seq could be handed out again [DUR-4]"
                return topic
            why.append(difference)
        raise AssertionError(f"topic {name!r} shows no state it was in: {why}")

    def emptied(self, name: str, shown: Shown, unclean: bool) -> Topic:
        """An ephemeral topic [DUR-7]: its floors are nobody's promise."""
        topic = self.topics[name]
        head, earliest, count, size = shown.numbers
        assert (count, size, earliest) == (0, 0, head + 1)
        assert self.kept_head[name] <= head <= topic.head if unclean else head == topic.head
        found = Topic(topic.config, head, capped=True, aged=True)
        found.newest_ts = topic.newest_ts
        found.cap_lost = max((gap.gap_to for gap in shown.gaps), default=0)
        return found

    def survived(self, name: str, shown: Shown, allowed: list[Topic], machine: bool) -> Topic:
        """A memory topic [DUR-5, DUR-6, DUR-8]: anything that was written, in order; records of other classes stay."""
        present = self.topics[name]
        newest = allowed[0]
        for record in shown.records:
            row = newest.written[record.seq]
            assert (record.ts, record.node, record.tag, record.data) == (row.ts, row.node, row.tag, row.data)
        crash = [gap for gap in shown.gaps if gap.reason == "crash"]
        known = [run for run in present.runs if run.reason == "crash"]
        reserved = machine and any(one.reserved for one in (present, *allowed))
        assert len(crash) <= len(known) + reserved
        if not reserved:
            assert shown.numbers[0] <= newest.head
        got = {record.seq for record in shown.records}
        promised = ("fsync",) if machine else ("fsync", "disk")
        expired = self.highest_ms - present.config.ttl_ms if present.config.ttl_ms else -1
        for row in present.rows.values():
            if row.durability in promised and row.seq in newest.rows and row.ts >= expired:
                assert row.seq in got, f"record {row.seq} of class {row.durability} is gone"
        found = Topic(present.config, shown.numbers[0], capped=True, aged=True, written=dict(newest.written))
        found.rows = {record.seq: newest.written[record.seq] for record in shown.records}
        found.runs = [Run(gap.gap_from, gap.gap_to, "crash") for gap in crash]
        found.cap_lost = max((gap.gap_to for gap in shown.gaps if gap.reason != "crash"), default=0)
        found.newest_ts = newest.newest_ts
        assert shown.numbers == found.numbers
        found.keys = dict(present.keys)
        self.unsure |= {(name, key) for key in present.keys}
        return found

    # -- damage

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def flip(self, data: st.DataObject, where: float, bit: int) -> None:
        """One bit of a sealed segment rots: the record is told as `corrupt`, or nothing changes [S-176, R-3]."""
        # Closing seals, and drops what is dead.
        self.engine.close()
        self.pin()
        files = self.sim.files()
        sealed = [
            path.removesuffix(".idx") + ".data"
            for path, content in files.items()
            if path.endswith(".idx") and content[-20:-16] == b"TIX1"
        ]
        sealed = sorted(path for path in sealed if files.get(path))
        if sealed:
            self.check_flip(data.draw(st.sampled_from(sealed)), where, bit)
        self.engine = self.open()
        self.recovered(unclean=False, machine=False)

    def check_flip(self, path: str, where: float, bit: int) -> None:
        image = self.sim.kill_image()
        image.flip_bit(path, int(where * image.size(path)), bit)
        damaged = self.open(image)
        for name, topic in self.topics.items():
            if topic.config.durability != "ephemeral":
                self.check_damaged(topic, damaged, name)

    def check_damaged(self, topic: Topic, damaged: Engine, name: str) -> None:
        shown = show(damaged, name)
        rotten = {seq for gap in shown.gaps if gap.reason == "corrupt" for seq in range(gap.gap_from, gap.gap_to + 1)}
        assert len(rotten) <= 1
        for record in shown.records:
            row = topic.rows[record.seq]
            assert (record.node, record.tag, record.data) == (row.node, row.tag, row.data)
        expected = {seq for seq, row in topic.rows.items() if not self.too_old(topic, row)}
        got = {record.seq for record in shown.records}
        assert got <= set(topic.rows)
        # A `memory` topic promises no completeness after a start [DUR-5, DUR-8]: there damage may be silent.
        assert expected - got <= rotten or topic.config.durability == "memory"
        assert not rotten & got

    def too_old(self, topic: Topic, row: Row) -> bool:
        return bool(topic.config.ttl_ms) and self.highest_ms - row.ts > topic.config.ttl_ms

    # -- always

    @invariant()
    def numbers_are_exact(self) -> None:
        for name in getattr(self, "topics", ()):
            self.look(name)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()


# The full size takes longer than one test may otherwise.
pytestmark = pytest.mark.timeout(max(300, 2 * MACHINES))

EngineMachine.TestCase.settings = settings(
    max_examples=MACHINES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
test_the_engine_behaves_like_its_model = EngineMachine.TestCase
