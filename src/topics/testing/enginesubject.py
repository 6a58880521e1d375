"""The embedded engine under the sweeps: its operations, and the driver that keeps the oracle in step (13 §3, 06 §19).

    observe   reads a topic through the public API into a `View`, and proves that its answers agree with each other
    Session   one open engine: every call is checked against what the model says it must answer
    Driver    its lives: restarts after a close, a kill and a crash; survivors are opened twice, judged and written to

Everything follows from the seed: configuration, shard counts, payload regime, operations. WAL files, segments and
reservations are tiny, so that rotation, sealing, checkpoint, snapshot, trim, drop and rewrite happen all the time.
"""

from __future__ import annotations

import errno
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.txn import AttachMode
from topics.errors import (
    CallerError,
    DataDirInUse,
    DiskError,
    EngineClosed,
    ProducerGap,
    RecordTooLarge,
    ShardReadOnly,
    StoreUnavailable,
    TimingError,
    TopicFull,
    TopicsError,
    WalIo,
)
from topics.fs import Fs
from topics.model import AppendResult, Record, TopicConfig
from topics.paths import LOCK_FILE, parse_wal_file
from topics.storage.tiers.object import ObjectRoot
from topics.testing import txnmodel
from topics.testing.clock import ManualClock
from topics.testing.deletesmodel import Deletes
from topics.testing.driver import DiskDriver
from topics.testing.enginemodel import (
    HOLES,
    LOSSES,
    Append,
    Change,
    Entry,
    Event,
    Held,
    How,
    Jobs,
    Rec,
    Rules,
    Run,
    State,
    Store,
    Topic,
    View,
    answer,
    merged,
)
from topics.testing.faultfs import FaultFs
from topics.testing.routermodel import DESTS, FILTERS, PREFIX, SOURCE, Flow, Routes
from topics.testing.simbucket import SimBucket
from topics.testing.simfs import SYNC_MODES, SimFs
from topics.testing.subject import How as ImageHow
from topics.testing.subject import Violation
from topics.testing.txnmodel import Chunk, Plan, Txns

DIR = "store"
COLD = "cold"
OBJECTS = SimBucket.name
"""The cold tier is a folder of the simulated disk, or objects beside it."""
READ_BYTES_MAX = 8 << 20
REGIMES = ("tiny", "sector", "mixed")

ZOO: dict[str, dict[str, Any]] = {
    "fsync": {"durability": "fsync"},
    "disk": {},
    "memory": {"durability": "memory"},
    "eph": {"durability": "ephemeral"},
    "capped": {"durability": "fsync", "cap_records": 5},
    "bytes": {"cap_bytes": 300},
    "reject": {"durability": "fsync", "cap_records": 6, "cap_bytes": 500, "discard": "reject"},
    "ttl": {"ttl_ms": 5000},
    "mixed": {"durability": "memory", "ttl_ms": 8000, "cap_records": 6},
    "churn": {"durability": "fsync"},
    SOURCE: {},
    "jobs": {"type": "queue", "durability": "fsync", "leases_durable": True, "lease_ms": 4000},
    "loose": {"type": "queue", "lease_ms": 4000},
    txnmodel.MADE: {},
}
"""The topics of a run, created when first written to."""

OPS = (
    "append_fsync",
    "append_disk",
    "append_batch",
    "append_keyed",
    "append_capped",
    "delete_tag",
    "delete_before",
    "claim",
    "ack",
    "configure",
    "churn",
    "tick",
    "checkpoint",
    "purge",
    "rewrite",
    "relocate",
    "close_reopen",
    "kill_reopen",
    "crash_reopen",
    "failed_sync",
)
"""The alphabet of the exhaustive sweep: what differs in what it does to the disk."""
MORE = (
    "append_memory",
    "append_ephemeral",
    "append_huge",
    "append_many",
    "append_producer",
    "append_reject",
    "append_ttl",
    "append_jobs",
    "nack",
    "extend",
    "retry",
    "delete_seqs",
    "delete_all",
    "dry_run",
    "compact",
    "wait",
    "sync_mark",
    "expire",
    "idle",
    "jump",
    "jump_back",
    "snapshot",
    "move",
    "reshard",
    "full_disk",
    "append_source",
    "append_mixed",
    "route",
    "reroute",
    "delete_copies",
    "stage",
    "commit",
    "commit",
    "attach",
    "attach",
    "abort",
)
"""Further operations of the random runs."""


ROUTED = ("append_source", "append_source", "append_mixed", "delete_copies", "reroute", "commit")
"""What routers are about."""


def observe(engine: Engine, name: str, rng: random.Random | None, *, loose: bool = False) -> View:
    """What a topic shows: read it from 0 to the head; state and every other cursor must agree with that.

    `loose` takes what a latched engine has left: unreadable records still count in its state [S-176].
    """
    state = engine.state(name)
    floor, runs, recs, cursor = 1, [], list[Rec](), 0
    while True:
        page = engine.read(name, cursor, limit=1000, max_bytes=READ_BYTES_MAX)
        if (page.head_seq, page.earliest_seq) != (state.head_seq, state.earliest_seq):
            raise Violation(f"{name}: a read says head and earliest {page.head_seq}, {page.earliest_seq}; not {state}")
        gap = page.tombstone
        if gap is not None and gap.reason in LOSSES and cursor == 0 and gap.gap_from == 1:
            floor = gap.gap_to + 1
        elif gap is not None and gap.reason in HOLES and cursor < gap.gap_from <= gap.gap_to:
            runs.append(Run(gap.gap_from, gap.gap_to, gap.reason))
        elif gap is not None:
            raise Violation(f"{name}: read from {cursor}, which is not above the head, tells {gap}")
        recs += map(_rec, page.records)
        if page.caught_up:
            break
        if page.next_from_seq <= cursor:
            raise Violation(f"{name}: a reader at {cursor} is sent to {page.next_from_seq} [INV-10]")
        cursor = page.next_from_seq
    leases = _leases(engine, name) if state.config.type == "queue" else ()
    view = View(state.config, state.head_seq, floor, merged(runs, floor), tuple(recs), leases)
    if not loose:
        says = (state.earliest_seq, state.count, state.bytes)
        if says != view.numbers:
            raise Violation(f"{name}: state says earliest, count, bytes {says}, a full read shows {view.numbers}")
        if view.runs != tuple(runs):
            raise Violation(f"{name}: hole runs {runs} are told in pieces or below the floor {floor} [FLR-5]")
        for from_seq in _cursors(view, rng):
            _read_agrees(engine, name, view, from_seq, rng)
    return view


def _leases(engine: Engine, name: str) -> tuple[Held, ...]:
    """The leases of a queue; its counters must agree with them and with its records [QOB-1]."""
    state, page = engine.state(name), engine.leases(name, page_size=1 << 20)
    assert state.queue is not None
    counts = (state.queue["ready"], state.queue["in_flight"], state.queue["delayed"])
    if sum(counts) != state.count or counts[1:] != (len(page.leases), len(page.delayed)):
        raise Violation(
            f"{name}: {state.count} jobs are counted as {state.queue}, {len(page.leases)} are leased [QOB-1]"
        )
    return tuple(Held(one.seq, one.node, one.lease_id, one.deadline, one.deliveries) for one in page.leases)


def _rec(record: Record) -> Rec:
    return Rec(record.seq, record.ts, record.node, record.tag, record.raw_data, record.raw_meta, record.ts)


def _cursors(view: View, rng: random.Random | None) -> list[int]:
    if rng is None:
        return [view.head, view.head + 1]
    edges = [view.floor - 2, view.floor - 1, view.head, view.head + 1, 2**64 - 1]
    edges += [seq for run in view.runs for seq in (run.first - 1, run.first, run.last)]
    chosen = [*rng.sample(edges, min(3, len(edges))), rng.randint(0, view.head)]
    return [seq for seq in chosen if seq >= 0]


def _read_agrees(engine: Engine, name: str, view: View, from_seq: int, rng: random.Random | None) -> None:
    """One read at any cursor, limit, budget and node filter is the one that the view demands (01 §12)."""
    limit = rng.choice((1, 2, 7, 1000)) if rng else 1000
    budget = rng.choice((1, 60, 1000, READ_BYTES_MAX)) if rng else READ_BYTES_MAX
    nodes = frozenset(rng.choice(((), ("n1",), ("n1", "n2")))) if rng else frozenset[str]()
    page = engine.read(name, from_seq, limit=limit, max_bytes=budget, node=sorted(nodes) or None)
    must = answer(view, from_seq, limit=limit, budget=budget, nodes=nodes)
    gap = page.tombstone
    told = gap and (gap.gap_from, gap.gap_to, "lost" if gap.reason in LOSSES else gap.reason)
    if (tuple(record.seq for record in page.records), page.next_from_seq, told) != must:
        raise Violation(f"{name}: a read from {from_seq} ({limit=}, {budget=}, {nodes=}) gives {page}, not {must}")
    by_seq = {rec.seq: rec for rec in view.records}
    if any(by_seq[record.seq] != _rec(record) for record in page.records):
        raise Violation(f"{name}: a record differs between two reads [REC-1]")
    if gap is not None:
        first = view.earliest if gap.reason == "recreated" else gap.gap_to + 1
        says = (gap.missed_estimate, gap.earliest_seq, gap.head_seq)
        if says != (max(gap.gap_to - gap.gap_from + 1, 0), first, view.head):
            raise Violation(f"{name}: the tombstone of a read from {from_seq} is {gap} (01 §10)")


def observe_rest(engine: Engine, name: str, view: View, cursors: Iterable[int]) -> None:
    """A topic whose cold tier may fail: a read gives what it must, or less of it, or fails where the tier is needed.

    What is here is read as ever, and nothing is told as lost [S-318, S-323].
    """
    state, segments = engine.state(name), engine.core.names[name].index.segments
    here = max((one.last for one in segments.segments if one.cold), default=0) if segments is not None else 0
    if (state.earliest_seq, state.count, state.bytes) != view.numbers:
        raise Violation(f"{name}: the state is {state}, not {view.numbers}")
    for from_seq in cursors:
        must = answer(view, from_seq, limit=1000, budget=READ_BYTES_MAX)
        try:
            page = engine.read(name, from_seq, limit=1000, max_bytes=READ_BYTES_MAX)
        except StoreUnavailable as error:
            if from_seq >= here:
                raise Violation(
                    f"{name}: a read from {from_seq} fails, which needs no tier: {error!r} [S-318]"
                ) from error
            continue
        seqs, gap = tuple(record.seq for record in page.records), page.tombstone
        told = gap and (gap.gap_from, gap.gap_to, "lost" if gap.reason in LOSSES else gap.reason)
        rest = must.seqs[len(seqs) :]
        if seqs != must.seqs[: len(seqs)] or told != must.gap or page.next_from_seq >= min(rest, default=1 << 64):
            raise Violation(f"{name}: a read from {from_seq} gives {page}, not {must} or a part of it [S-323]")
        known = {rec.seq: rec for rec in view.records}
        if any(not known[record.seq].shows(_rec(record)) for record in page.records):
            raise Violation(f"{name}: a read from {from_seq} gives other records than were written [INV-13]")


def observe_all(engine: Engine, rng: random.Random | None, *, loose: bool = False) -> dict[str, View]:
    """Every topic of clients but destinations of routers; the server's own are none of the model's business [A-14]."""
    names = [name for name in engine.topics() if not name.startswith(("$", PREFIX))]
    if names != sorted(set(names)):
        raise Violation(f"topics() is not sorted: {names}")
    return {name: observe(engine, name, rng, loose=loose) for name in names}


def observe_routes(engine: Engine, *, loose: bool = False) -> dict[str, View]:
    """What routers join: the source and every destination, each behind what feeds it: a read drains one hop [FWD-9]."""
    names = [name for name in engine.topics() if name == SOURCE or name.startswith(PREFIX)]
    names.sort(key=lambda name: name in DESTS and DESTS[name].source != SOURCE)
    return {name: observe(engine, name, None, loose=loose) for name in names}


class Spec(NamedTuple):
    """A record to write: text of the payload, tag, node, meta."""

    text: str
    tag: str | None = None
    node: str | None = None
    meta: int | None = None

    def given(self) -> dict[str, Any]:
        members: dict[str, Any] = {"data": self.text}
        members |= {"tag": self.tag} if self.tag is not None else {}
        members |= {"node": self.node} if self.node is not None else {}
        return members | ({"meta": {"k": self.meta}} if self.meta is not None else {})

    def rec(self, seq: int, ts: int, wall: int) -> Rec:
        meta = None if self.meta is None else b'{"k":%d}' % self.meta
        return Rec(seq, ts, self.node, self.tag, b'"%b"' % self.text.encode(), meta, wall)


class Session:
    """One open engine and the model beside it. Every call is held against the model; a promise it makes is noted.

    `excused` says whether the disk may be to blame for an error.
    """

    def __init__(
        self, engine: Engine, store: Store, clock: ManualClock, config: EngineConfig, excused: Callable[[], bool]
    ) -> None:
        self.engine = engine
        self.store = store
        self.clock = clock
        self.latest = clock.now_ms()
        self.deletes = Deletes()
        """What `$deletes` has to say [A-20]."""
        self.unsettled: How | None = None
        """How the life before ended, while there was no space to begin this one: gaps are told when there is."""
        self._shards = config.wal_shards
        self._reserve_max = config.reserve_max
        self._excused = excused
        self.lied: Callable[[], bool] = lambda: False
        self.blind: Callable[[], bool] = lambda: False
        """Whether reading itself fails: then sound records count as unreadable for a while [S-176]."""
        self.without_tier: Callable[[], bool] = lambda: False
        """Whether the cold tier is to blame for a read that fails, or for one that ends early [S-323]."""
        self.meets_faults = False
        """Whether the first read of a look may be the one at which the tier fails: then it is judged by itself."""

    @property
    def latched(self) -> bool:
        """Whether a shard refuses writes until a restart [S-78]."""
        return "read_only" in self.engine.health().shards.values()

    @property
    def well(self) -> bool:
        """Whether every shard takes writes."""
        return self.engine.health().state == "ok"

    def _now(self) -> int:
        now = self.clock.now_ms()
        self.latest = max(self.latest, now)
        return now

    def _uncertain_age(self, topic: Topic) -> bool:
        """The clock went back: which records age has taken is known only when they are looked at."""
        return self._now() < self.latest and topic.live.config.ttl_ms > 0

    def _blame(self, error: TopicsError, doing: str) -> None:
        """An error of the disk is part of the game where the disk has a fault, and nowhere else."""
        if isinstance(error.__cause__, Violation):
            raise error.__cause__
        if isinstance(error, CallerError) or not self._excused():
            raise Violation(f"{doing} failed, and no fault is to blame: {error!r}") from error

    def _acknowledged(self, topic: Topic, event: Event, *, durable: bool) -> None:
        durable = durable and not self.lied()
        topic.ack(event, durable=durable)
        if durable and self._shards == 1:
            self._settle()

    def _settle(self) -> None:
        self.store.settle()
        self.deletes.settle()

    def synced(self) -> None:
        """Everything acknowledged is durable by now, unless a shard cannot sync."""
        if self.well and not self.lied():
            self._settle()

    def put_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Create a topic or replace its configuration."""
        topic = self.store.topic(name)
        wanted = TopicConfig.parse(config, name)
        if topic is None:
            self.store.creating(name, wanted)
        else:
            self._age(topic)
        change = Change(topic.live, config=wanted) if topic is not None and topic.live.config != wanted else None
        if topic is not None and change is not None:
            topic.jobs.doubt(topic.live.records)
        if topic is not None and change is not None:
            topic.stage(change)
        try:
            created, stored = self.engine.put_topic(name, config)
        except TopicsError as error:
            self._blame(error, f"put_topic({name!r})")
            if topic is None:
                self._exists_anyway(name)
            return
        if (created, stored) != (topic is None, wanted):
            raise Violation(f"put_topic({name!r}) answered {created}, {stored}; not {topic is None}, {wanted}")
        if topic is None:
            self._created(name)
        elif change is not None:
            self._acknowledged(topic, change, durable=True)

    def _created(self, name: str) -> None:
        self.store.created(name)
        if self._shards == 1 and not self.lied():
            self._settle()

    def _exists_anyway(self, name: str) -> None:
        """Creation and append are two steps [NAME-5]: the first may have been done."""
        if name in self.engine.topics():
            self._created(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic for good."""
        there = self.store.topic(name) is not None
        asked = self.deletes.ask_drop(self.engine, name) if there else None
        if there:
            self.store.deleting(name)
        try:
            deleted = self.engine.delete_topic(name)
        except TopicsError as error:
            self._blame(error, f"delete_topic({name!r})")
            return
        if deleted != there:
            raise Violation(f"delete_topic({name!r}) answered {deleted}, the topic was {'' if there else 'not '}there")
        if asked is not None:
            self.store.deleted(name)
            self.deletes.ack(asked, lasting=not self.lied())
        if there and self._shards == 1 and not self.lied():
            self._settle()

    def _age(self, topic: Topic) -> None:
        """Before an operation looks at a topic, what has expired is gone [TTL-3]."""
        if self.well:
            topic.live.lose(topic.live.expired(self._now()))

    def append(
        self,
        name: str,
        specs: Sequence[Spec],
        *,
        key: str | None = None,
        producer: tuple[str, int, int] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write; whether it was acknowledged as new."""
        topic = self.store.topic(name)
        created = topic is None
        if topic is None:
            topic = self.store.creating(name, TopicConfig.parse(config, name))
        self._age(topic)
        now, live, latched = self._now(), topic.live, self.latched
        ts = max(now, live.last_ts)
        recs = tuple(spec.rec(live.head + 1 + at, ts, now) for at, spec in enumerate(specs))
        event = Append(recs, live.config.durability, key if live.config.idempotency_window_ms else None, producer)
        expected = self._expected(live, event, now)
        if expected == "new":
            topic.stage(event)
        given: dict[str, Any] = {"idempotency_key": key, "config": config}
        if producer is not None:
            given["producer"] = dict(zip(("id", "epoch", "index"), producer, strict=True))
        try:
            result = self.engine.append(name, [spec.given() for spec in specs], **given)
        except TopicsError as error:
            self._append_failed(topic, event, expected, error, latched=latched, fuzzy=self._uncertain_age(topic))
            if created:
                self._exists_anyway(name)
            return False
        if created:
            self._created(name)
        if expected in ("full", "never") and self._uncertain_age(topic):
            topic.stage(event)
            expected = "new"
        if expected != "new":
            self._was_known(result, expected)
            return False
        last = recs[-1].seq
        if result != AppendResult(recs[0].seq, last, last, len(recs), created, False):
            raise Violation(f"append to {name!r} answered {result}, not {recs[0].seq}..{last}, {created=} [INV-1]")
        self._acknowledged(topic, event, durable=live.config.durability == "fsync")
        return True

    def _expected(self, live: State, event: Append, now: int) -> str | Entry:
        """What a write must meet: `new`, `full`, `never`, `gap`, `older`, or the entry it repeats."""
        if event.key is not None and (entry := live.remembered(event.key, now)) is not None:
            return entry
        if event.producer is not None and (pair := live.producers.get(event.producer[0])) is not None:
            _, epoch, index = event.producer
            if (epoch, index) == (pair.epoch, pair.index):
                return pair
            if (epoch, index) < (pair.epoch, pair.index):
                return "older"
            if epoch == pair.epoch and index > pair.index + 1:
                return "gap"
        return live.refuses(len(event.recs), sum(rec.size for rec in event.recs)) or "new"

    def _append_failed(
        self, topic: Topic, event: Append, expected: str | Entry, error: TopicsError, *, latched: bool, fuzzy: bool
    ) -> None:
        named = {"full": TopicFull, "never": RecordTooLarge, "gap": ProducerGap}
        if isinstance(expected, str) and expected in named and isinstance(error, named[expected]):
            return
        if fuzzy and isinstance(error, TopicFull):
            topic.refuse(event)
            return
        if isinstance(error, (CallerError, TopicFull)):
            raise Violation(f"{event} failed with {error!r}; it must meet {expected}") from error
        self._blame(error, repr(event))
        if latched and isinstance(error, ShardReadOnly):
            topic.refuse(event)

    def _was_known(self, result: AppendResult, expected: str | Entry) -> None:
        if isinstance(expected, Entry):
            must = (expected.first, expected.last, expected.count, False, True)
            is_so = (result.first_seq, result.last_seq, result.count, result.created, result.deduped)
            if is_so == must and result.head_seq in (expected.head, expected.last):
                return
        elif expected == "older":
            if (result.first_seq, result.last_seq, result.count, result.deduped) == (None, None, 0, True):
                return
        raise Violation(f"a write that must meet {expected} was answered {result} [IDM-2, A-4]")

    def delete(self, name: str, *, dry_run: bool = False, **selector: Any) -> None:
        """Delete records."""
        topic = self.store.topic(name)
        assert topic is not None
        self._age(topic)
        live = topic.live
        chosen = live.matching(**selector)
        event = Change(live, seqs=chosen)
        asked = None if dry_run else self.deletes.ask(self.engine, name, live.head + 1, **selector)
        if not dry_run:
            topic.stage(event)
        latched, fuzzy = self.latched, self._uncertain_age(topic)
        try:
            result = self.engine.delete(name, dry_run=dry_run, **selector)
        except TopicsError as error:
            self._blame(error, f"delete({name!r}, {selector})")
            if latched and isinstance(error, ShardReadOnly):
                topic.refuse(event)
            return
        if asked is not None:
            self.deletes.ack(asked, lasting=live.config.durability == "fsync" and not self.lied())
            self._acknowledged(topic, event, durable=live.config.durability == "fsync")
        after = live.view()
        must = (len(chosen), after.head, *after.numbers)
        says = (result.deleted, result.head_seq, result.earliest_seq, result.count, result.bytes)
        if says != must and not fuzzy and self.well:
            raise Violation(f"delete({name!r}, {selector}, {dry_run=}) answered {says}, not {must} [DEL-7, DEL-10]")

    def claim(self, name: str, node: str, max: int, lease_ms: int) -> None:
        """Claim jobs; none that is leased, none that is gone, each counted, all there is [CLM-2 … CLM-7]."""
        topic = self.store.topic(name)
        assert topic is not None
        self._age(topic)
        jobs, live, now = topic.jobs, topic.live, self._now()
        jobs.claiming = node
        kept = self.well
        try:
            result = self.engine.claim(name, node, max, lease_ms)
        except TopicsError as error:
            self._blame(error, f"claim({name!r})")
            jobs.doubt(live.records)
            jobs.claiming = None
            return
        jobs.claiming = None
        self._blind_claim(topic, len(result.jobs), max, now)
        for job in result.jobs:
            rec, count = live.records.get(job.seq), jobs.deliveries.get(job.seq, 0) + 1
            if rec is None or (rec.data, rec.meta, rec.tag) != (job.raw_data, job.raw_meta, job.tag):
                raise Violation(f"{name}: {job} was claimed, {rec} is there")
            if jobs.is_held(job.seq, self.latest) or (job.seq not in jobs.unsure and job.deliveries != count):
                raise Violation(
                    f"{name}: {job} was claimed; {jobs.held.get(job.seq)}, delivered {count - 1} times [LSE-5]"
                )
            jobs.claimed(Held(job.seq, node, job.lease_id, now + lease_ms, job.deliveries))
        if not kept or not self.well or self.lied():
            # Its event may not have been logged: then a restart forgets it [QRC-5].
            jobs.doubt([job.seq for job in result.jobs])

    def _blind_claim(self, topic: Topic, got: int, max: int, now: int) -> None:
        """No job is held back from whoever asks for it [CLM-4]."""
        jobs, live = topic.jobs, topic.live.records
        free = sum(not jobs.is_held(seq, now) for seq in live if seq not in jobs.unsure)
        steady = now == self.latest and self.well and not self._excused() and not self.lied()
        if got > max or (steady and got < min(max, free)):
            raise Violation(f"{got} jobs of {max} were given, {free} were free")

    def settle_jobs(self, call: str, name: str, node: str, seqs: Sequence[int], *, fenced: bool) -> None:
        """Ack, nack or extend jobs that the model knows to be held, or not [ACK-3]."""
        topic = self.store.topic(name)
        assert topic is not None
        self._age(topic)
        live, now = topic.live, self._now()
        asked = [seq for seq in seqs if seq not in live.records or self._is_clear(topic.jobs, seq)]
        held = {seq: topic.jobs.held[seq] for seq in asked if seq in live.records and seq in topic.jobs.held}
        mine = [seq for seq, one in held.items() if one.node == node]
        ids = [held[seq].id if seq in held else "lease_0" for seq in asked] if fenced else []
        event = Change(live, seqs=mine) if call == "ack" and mine else None
        if event is not None:
            topic.stage(event)
        after = topic.jobs.copy()
        topic.jobs.doubt(asked)
        try:
            more = {"lease_ms": 9000} if call == "extend" else {}
            result = getattr(self.engine, call)(name, node, asked, ids, **more)
        except TopicsError as error:
            self._blame(error, f"{call}({name!r})")
            return
        done = [seq for seq in asked if seq not in result.skipped and seq in live.records]
        if done != mine:
            raise Violation(f"{call} of {asked} by {node!r} did {done}, {mine} were its own [ACK-3]")
        topic.jobs = after
        if event is not None:
            after.doubt(mine)
            self._acknowledged(topic, event, durable=live.config.durability == "fsync")
        elif not self.well or self.lied():
            after.doubt(mine)
        elif call == "nack":
            after.released(mine)
        else:
            for seq in mine:
                after.claimed(held[seq]._replace(deadline=now + 9000))

    def _is_clear(self, jobs: Jobs, seq: int) -> bool:
        """Whether it is known who holds a job, if anybody."""
        return seq not in jobs.unsure and (seq not in jobs.held or jobs.is_held(seq, self.latest))

    def checkpoint(self, *, full: bool) -> None:
        """Move the tail to segments; a full one leaves nothing acknowledged behind."""
        try:
            self.engine.checkpoint(full=full)
        except TopicsError as error:
            self._blame(error, "checkpoint")
            return
        self.synced()
        if full:
            self._pin()

    def compact(self, name: str, ratio: float) -> None:
        """Rewrite segments on request: nothing may change but what lies on the disk."""
        try:
            self.engine.compact(name, min_dead_ratio=ratio)
        except TopicsError as error:
            self._blame(error, f"compact({name!r})")

    def snapshot(self) -> None:
        """Write a snapshot, behind a checkpoint."""
        try:
            self.engine.snapshot()
        except TopicsError as error:
            self._blame(error, "snapshot")
            return
        self.synced()

    def _pin(self) -> None:
        if self.well and not self.lied():
            for topic in self.store.topics():
                topic.pin()

    def tick(self, ms: int) -> None:
        """Let time pass and do what is due; a second later everything written is synced [S-76]."""
        self.clock.advance(ms)
        self._now()
        try:
            self.engine.tick()
        except TopicsError as error:
            self._blame(error, "tick")
            return
        if self.unsettled is not None and self.well:
            rules = Rules(self.unsettled, self._now(), self.latest, self._reserve_max, lied=self.lied())
            reserved = {name for name in self.store.names() if (topic := self.store.topic(name)) and topic.reserved}
            self.store.slots = self.store.judge(observe_all(self.engine, None), rules).slots
            self.unsettled = None
            for name in self.store.names():
                # What was written since may have reserved seqs of its own.
                topic = self.store.topic(name)
                assert topic is not None
                topic.reserved = name in reserved
        if ms >= 1000:
            self.synced()

    def close(self) -> bool:
        """Close in order; whether that succeeded."""
        well = self.well
        try:
            self.engine.close()
        except TopicsError as error:
            self._blame(error, "close")
            return False
        if well and not self.lied() and not self._excused():
            self._settle()
            for topic in self.store.topics():
                topic.pin()
            for topic in self.store.topics():
                topic.reserved = False
        try:
            self.engine.state("fsync")
        except EngineClosed:
            return True
        except CallerError:
            pass
        raise Violation("a closed engine answers")

    def check(self, names: Iterable[str], rng: random.Random) -> None:
        """What the running engine shows is what was acknowledged, no more and no less [INV-3]."""
        for name in names:
            topic = self.store.topic(name)
            if topic is None:
                continue
            loose = self.latched or self.lied() or self.blind()
            if self.meets_faults:
                observe_rest(self.engine, name, topic.live.view(), [0])
            try:
                view = observe(self.engine, name, rng, loose=loose)
            except (DiskError, TimingError, Violation) as error:
                if self.without_tier():
                    with _about(f"{name!r} without its tier"):
                        observe_rest(self.engine, name, topic.live.view(), range(topic.live.head + 1))
                elif not isinstance(error, Violation):
                    self._blame(error, f"reading {name!r}")
                elif not self.blind():
                    raise
                continue
            with _about(f"{name!r} in the running engine"):
                if loose:
                    topic.show_rest(view)
                else:
                    topic.show(view, self._now(), self.latest, suspended=not self.well or self._excused())

    def check_names(self) -> None:
        """The topics are those that were created and not deleted."""
        found = [name for name in self.engine.topics() if not name.startswith(("$", PREFIX))]
        if found != self.store.names():
            raise Violation(f"the engine has the topics {found}, not {self.store.names()}")


@contextmanager
def _about(what: str) -> Iterator[None]:
    try:
        yield
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from violation


class Setup(NamedTuple):
    """Everything a seed decides about a run."""

    config: EngineConfig
    regime: str
    shards: tuple[int, ...]
    """Shard counts, taken in turn by restarts that change them."""


def tiny(**fields: Any) -> EngineConfig:
    """A configuration in which everything happens soon."""
    small: dict[str, Any] = {
        "wal_file_bytes": 4096,
        "wal_retain_files": 1,
        "wal_init_zero": False,
        "min_free_bytes": 0,
        "segment_max_events": 6,
        "segment_max_bytes": 2000,
        "segment_max_age_ms": 60_000,
        "checkpoint_records": 3,
        "checkpoint_bytes": 600,
        "snapshot_bytes": 4096,
        "snapshot_ms": 15_000,
        "snapshot_check_ms": 1000,
        "snapshot_gap_ms": 1000,
        "reserve_min": 4,
        "reserve_max": 16,
        "reclaim_rewrite": True,
        "rewrite_min_bytes": 1,
        "rewrite_every_ms": 1000,
        "cold_follow_ms": 1000,
        "cold_rewrite_ms": 5000,
    }
    return EngineConfig(**(small | fields))


def setup_for(seed: int) -> Setup:
    """The configuration, payload regime and shard counts of a seed."""
    rng = random.Random(f"engine setup {seed}")
    shards = rng.choice(((1,), (1, 3), (3, 1), (3,)))
    config = tiny(
        wal_shards=shards[0],
        wal_file_bytes=rng.choice((4096, 4096, 12_000)),
        wal_retain_files=rng.choice((0, 1, 2)),
        wal_init_zero=rng.random() < 0.2,
        min_free_bytes=rng.choice((0, 2048)),
        segment_max_events=rng.choice((1, 3, 6)),
        segment_max_bytes=rng.choice((600, 2000, 1 << 20)),
        segment_max_age_ms=rng.choice((0, 20_000, 60_000)),
        checkpoint_records=rng.choice((1, 3, 8)),
        recent_cache_bytes=rng.choice((0, 500, 1 << 20)),
        max_maps=rng.choice((1, 2, 64)),
        max_fds=rng.choice((1, 4, None)),
        reserve_min=rng.choice((1, 4)),
        reclaim_rewrite=rng.random() < 0.7,
        **_tier_for(seed),
        txn_wal_bytes=rng.choice((1, 400, 1 << 26)),
    )
    return Setup(config, rng.choice(REGIMES), shards)


def _tier_for(seed: int) -> dict[str, Any]:
    """Whether a seed has a cold tier, and how soon segments go there."""
    rng = random.Random(f"engine tier {seed}")
    fields = {
        "cold_dir": rng.choice((None, COLD)),
        "hot_retain_segments": rng.choice((0, 1, 3)),
        "cold_cache_bytes": rng.choice((0, 1 << 20)),
    }
    return fields | ({"cold_dir": OBJECTS} if fields["cold_dir"] and rng.random() < 0.5 else {})


class EngineDriver(DiskDriver):
    """Runs operations on an engine and keeps the model in step, over closes, kills and crashes."""

    def __init__(self, setup: Setup, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(f"engine {seed}")
        self.store = Store()
        self.routes = Routes()
        self.deletes = Deletes()
        self.txns = Txns()
        self._setup = setup
        self._config = setup.config
        self._layout = 0
        self._session: Session | None = None
        self._boots = 1
        self._how: How = "close"
        """How the life before the present one ended; between lives that is what survivors may show."""
        self._latched = False
        self._armed = False
        self._limited = False
        self._struck_before = 0
        self._lie_seen = False
        self._had_late_error = False
        self._broken: Violation | None = None
        """What a survivor broke: it is judged inside a disk call, and the engine may take that for the disk's fault."""
        self._latest = self.clock.now_ms()
        self._count = 0
        self._keys: list[tuple[str, str, list[Spec]]] = []
        self._next: dict[str, list[int]] = {}
        self.bucket = SimBucket(self.clock)
        """The cold tier, where it is no folder of the disk."""
        self._judged = self.bucket
        """The same for survivors, which have one of their own."""

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def _excused(self) -> bool:
        return self._armed or self._limited or self._struck() > self._struck_before

    def _blind(self) -> bool:
        fs = self._fs
        return isinstance(fs, FaultFs) and any(fault.op == "pread" for fault in fs.hits[self._struck_before :])

    def _without_tier(self) -> bool:
        """Whether the cold tier has failed just now: it may be left alone for ten seconds [S-323]."""
        at = self.bucket.struck_ns
        return at is not None and self.clock.monotonic_ns() - at < 10_000_000_000

    def _lied(self) -> bool:
        """Whether a sync of this life, or of one that could not be followed yet, reported what it had not done."""
        self._lie_seen = self._lie_seen or self._disk_lied()
        return self._lie_seen

    def latched(self) -> bool:
        """Whether this life met a failure after which even the page cache proves nothing."""
        self._latched = self._latched or (self._session is not None and self._session.latched)
        return self._latched

    def rules(self, how: How) -> Rules:
        """What a restart may show now."""
        before = self._how if self._session is None else self._session.unsettled
        if how != "crash" and (self.latched() or before == "crash"):
            how = "crash"
        return Rules(how, self.clock.now_ms(), self._seen(), self._config.reserve_max, lied=self._lied())

    def _seen(self) -> int:
        self._latest = max(self._latest, self.clock.now_ms(), self._session.latest if self._session else 0)
        return self._latest

    def _boot(self, *, again: bool) -> str:
        return f"boot-{self._boots}" + ("'" if again else "")

    def open(self, fs: Fs) -> None:
        """Open on a survivor of a crash; what is found must be what the model allows, and becomes the new truth."""
        self._open(fs, "crash")

    def start(self, fs: Fs, *, killed: bool = False) -> None:
        """Open, unless a failing disk prevents it; then the next operation tries again."""
        self._start(fs, "kill" if killed else "crash")

    def _open(self, fs: Fs, how: How) -> None:
        try:
            self._follow(fs, how)
        finally:
            self._tell_broken()

    def _follow(self, fs: Fs, how: How) -> None:
        """The next life, on what the one before has left."""
        rules = self.rules(how)
        self.end()
        self._how = rules.how
        self._boots += how == "crash"
        self._adopt(fs)
        self._armed, self._struck_before = bool(self.disk._failing), self._struck()
        try:
            engine = self._opened(fs, self._boot(again=False))
        except TopicsError as error:
            if rules.lied:
                self._start_anew()
                return
            if self._excused() or (isinstance(error, DiskError) and self._late_error()):
                raise
            raise Violation(f"refused after a mere {how}: {error!r}") from error
        try:
            found, routed = self._look(engine)
        except (DiskError, TimingError):
            engine.close()
            raise
        store = self.store.judge(found, rules)
        if rules.lied:
            engine.close()
            self._start_anew()
            return
        self.routes.blind |= self._blind()
        routes = self.routes.judge(routed, rules)
        txns = self.txns.judge(store, engine.writer(txnmodel.ID).version, rules)
        self._begin(engine, store)
        self.routes, self.txns = routes, txns
        self._refuses_second_opener()

    def _look(self, engine: Engine) -> tuple[dict[str, View], dict[str, View]]:
        try:
            return observe_all(engine, None), observe_routes(engine)
        except Violation as violation:
            if not self._blind():
                raise
            raise WalIo(OSError(errno.EIO, "reading fails")) from violation

    def _late_error(self) -> bool:
        """Whether a sync may still report what went wrong in an earlier life."""
        return any(inode.late_error for inode in self.disk._inodes()) or bool(self.disk._late_dirs)

    def _opened(self, fs: Fs, boot: str, clock: ManualClock | None = None, *, assume_crash: bool = False) -> Engine:
        clock = clock or self.clock
        bucket = self.bucket if fs is self._fs else self._judged
        cold = ObjectRoot(bucket, fs) if self._config.cold_dir == OBJECTS else None
        return Engine.open(DIR, self._config, clock=clock, fs=fs, boot_id=boot, assume_crash=assume_crash, cold=cold)

    def _refuses_second_opener(self) -> None:
        struck = self._struck()
        try:
            self._opened(self._fs, self._boot(again=False))
        except DataDirInUse:
            return
        except (OSError, TopicsError) as error:
            if self._struck() > struck:
                return
            raise Violation(f"a second opener got {error!r} [S-11]") from error
        raise Violation("a second opener got the data directory [S-11]")

    def _begin(self, engine: Engine, store: Store) -> None:
        session = Session(engine, store, self.clock, self._config, self._excused)
        session.latest, session.lied, session.blind = self._seen(), self._lied, self._blind
        session.without_tier = self._without_tier
        if self._how == "crash":
            self.deletes.crashed()
        session.deletes = self.deletes
        if not session.well:
            # No space for the mark that makes it a run: the restart is not over, reservations are still open [S-245].
            session.unsettled = self._how
            for name in store.names():
                topic, before = store.topic(name), self.store.topic(name)
                assert topic is not None
                topic.reserved = before is not None and before.reserved
        self._session, self.store = session, store
        self._how = "close"
        self._latched = False
        self._lies_known, self._lie_seen = len(self.disk.lies), False

    def _start_anew(self) -> None:
        """A disk that lied proves nothing more: the run goes on with an empty one."""
        self._session = None
        self.store = Store()
        self.routes = Routes()
        self.deletes = Deletes()
        self.txns = Txns()
        self._keys, self._next = [], {}
        self.bucket.objects.clear()
        fs = self._fs
        fresh = SimFs(self.rng.getrandbits(32))
        if isinstance(fs, FaultFs):
            fs.inner = fresh
        else:
            fs = fresh
        self._lies_known, self._lie_seen, self._latched, self._how = 0, False, False, "close"
        self._start(fs, "close")

    def _start(self, fs: Fs, how: How) -> None:
        struck = self._struck()
        try:
            self._open(fs, how)
        except (OSError, TopicsError) as error:
            self._session = None
            if self._struck() == struck and not self._armed and not self._limited and not self._late():
                raise Violation(f"cannot be opened, and no fault is to blame: {error!r}") from error
            # Recovery syncs what a killed process left in the cache; if that failed, the cache proves nothing.
            self._latched = True

    def _late(self) -> bool:
        return self._had_late_error or self._late_error()

    def must_work(self) -> None:
        """The disk is healthy again: the engine opens, takes and keeps a record."""
        self.disk.clear_faults()
        for _ in range(3):
            if self._session is None:
                self._start(self._fs, self._how)
            else:
                self.do("close_reopen")
            if self._session is not None and self.session.well:
                break
        else:
            raise Violation("the disk is healthy and the engine does not open")
        if not self.session.append("fsync", [self._spec()], config=ZOO["fsync"]):
            raise Violation("the disk is healthy and a record is not taken")
        self.session.check(self.store.names(), self.rng)
        self.session.tick(1000)
        self.session.tick(1000)
        self.deletes.judge(self.session.engine, observe_all(self.session.engine, None), crashed=False)
        self.judge(self.disk.crash_image(0, "nothing"), "crash", self.rng)

    def end(self) -> None:
        """Drop the engine as a kill would: without closing it."""
        self.routes.blind |= self._blind()
        self.latched()
        self._lied()
        self._seen()
        self._session = None

    def _tell_broken(self) -> None:
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken

    def do(self, op: str) -> None:
        """Run one operation; errors that the disk is to blame for are part of the game."""
        try:
            self._do(op)
        finally:
            self._tell_broken()

    def _do(self, op: str) -> None:
        if self._session is None:
            self._start(self._fs, self._how)
            return
        getattr(self, f"_op_{op}")()
        if self._session is not None:
            txnmodel.catch_up(self.session, self.txns)
            names = self.store.names()
            self.session.check_names()
            self.session.check(names if self.rng.random() < 0.3 else self._touched(names), self.rng)
            self._check_routes()

    def _check_routes(self) -> None:
        """Destinations in the running engine: a reader sees everything that was acknowledged before [FWD-9]."""
        if not self.routes.flows or self.session.latched or self._lied() or self._blind() or self._excused():
            return
        try:
            views = observe_routes(self.session.engine)
        except (DiskError, TimingError) as error:
            self.session._blame(error, "reading destinations")
            return
        except Violation:
            if self._blind():
                return
            raise
        if not self._excused():
            with _about("in the running engine"):
                self.routes.show(views, complete=self.session.well)

    def _touched(self, names: list[str]) -> list[str]:
        return self.rng.sample(names, min(2, len(names)))

    def judge(self, image: SimFs, how: ImageHow, rng: random.Random) -> None:
        """Open a survivor twice, write to it now and then, and hold it against the model."""
        try:
            self._judge(image, how, rng)
        except Violation as violation:
            self._broken = violation
            raise
        except Exception as error:
            self._broken = Violation(f"after a {how}: {error!r} at {_place(error)}")
            raise self._broken from error

    def _judge(self, image: SimFs, how: ImageHow, rng: random.Random) -> None:
        image.clear_faults()
        image.capacity = None
        self._judged = self.bucket.twin()
        rules = self.rules(how)._replace(assumed=rng.random() < 0.05)
        boot = self._boot(again=how == "crash")
        clock = ManualClock(self.clock.now_ms())
        try:
            engine = self._reopened(image, boot, clock, assume_crash=rules.assumed)
        except TopicsError as error:
            if rules.lied:
                return
            raise Violation(f"refused after a mere {how}: {error!r}") from error
        found = observe_all(engine, rng, loose=rules.lied)
        store = self.store.judge(found, rules)
        if rules.lied:
            return
        routed = observe_routes(engine)
        self.routes.blind |= self._blind()
        self.routes.judge(routed, rules)
        txns = self.txns.judge(store, engine.writer(txnmodel.ID).version, rules)
        settled = _old_logs(image)
        crashed = rng.random() < 0.5
        again = image.crash_image(rng) if crashed else image.kill_image()
        boot += "'" if crashed else ""
        try:
            engine = self._reopened(again, boot, clock)
        except TopicsError as error:
            raise Violation(f"refused by the second recovery: {error!r}") from error
        second = observe_all(engine, rng)
        if second != found:
            raise Violation(f"the second recovery shows {difference(found, second)} [S-249]")
        rerouted = observe_routes(engine)
        if rerouted != routed:
            raise Violation(f"the second recovery shows {difference(routed, rerouted)} [S-249]")
        for path, data in _old_logs(again).items():
            if path in settled and data != settled[path]:
                raise Violation(f"the second recovery changes {path}: {len(settled[path])} to {len(data)} bytes")
        if rng.random() < 0.5:
            clock.advance(1)
            engine.tick()
            self.deletes.judge(engine, second, crashed=rules.how == "crash" or crashed)
        if engine.writer(txnmodel.ID).version != txns.committed:
            raise Violation(f"the second recovery shows {engine.writer(txnmodel.ID)}, not {txns.committed} [S-249]")
        if rng.random() < 0.3:
            self._go_on(engine, store, txns, clock, again, boot, rng)

    def _reopened(self, image: SimFs, boot: str, clock: ManualClock, *, assume_crash: bool = False) -> Engine:
        """Open a survivor; a sync may still report a failure of the killed process, and then refusing once is right."""
        try:
            return self._opened(image, boot, clock, assume_crash=assume_crash)
        except OSError:
            return self._opened(image, boot, clock, assume_crash=assume_crash)
        except DiskError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            return self._opened(image, boot, clock, assume_crash=assume_crash)

    def _go_on(
        self,
        engine: Engine,
        store: Store,
        txns: Txns,
        clock: ManualClock,
        disk: SimFs,
        boot: str,
        rng: random.Random,
    ) -> None:
        """After a restart everything works: names are known, writes go behind the head, and survive in turn."""
        session = Session(engine, store, clock, self._config, lambda: False)
        session.latest = self._seen()
        session.deletes = self.deletes.copy()
        session.deletes.crashed()
        for name, key, specs in self._keys[-3:]:
            if store.topic(name) is not None:
                session.append(name, specs, key=key)
        for name, kept in sorted(self._next.items()):
            if store.topic(name) is not None:
                session.append(name, [Spec(f"retry {kept}")], producer=("p", kept[0], max(kept[1], 0)))
        if txns.plan is not None and not any(name.startswith(PREFIX) for name in txns.plan.rows):
            txnmodel.commit(session, txns, txns.plan)
        for name in store.names():
            session.append(name, [Spec(f"after {name}", tag="a", node="n2")])
        for name in ("jobs", "loose"):
            topic = store.topic(name)
            if topic is not None and topic.live.records:
                session.claim(name, "w", 4, 60_000)
                session.settle_jobs("ack", name, "w", sorted(topic.jobs.held)[:2], fenced=True)
        if rng.random() < 0.5:
            session.checkpoint(full=True)
        for name in store.names():
            if name != SOURCE:
                session.delete(name, match="a*")
        session.check(store.names(), rng)
        if rng.random() < 0.5:
            session.tick(rng.choice((1000, 6000)))
            session.check(store.names(), rng)
        if rng.random() < 0.5:
            session.checkpoint(full=True)
        crashed = rng.random() < 0.5
        survivor = disk.crash_image(rng) if crashed else disk.kill_image()
        rules = Rules("crash" if crashed else "kill", clock.now_ms(), session.latest, self._config.reserve_max)
        try:
            engine = self._opened(survivor, boot + ("+" if crashed else ""), clock)
        except (OSError, TopicsError) as error:
            raise Violation(f"refused after going on: {error!r}") from error
        with _about("after going on"):
            found = observe_all(engine, rng)
            store.judge(found, rules)
            clock.advance(1)
            engine.tick()
            session.deletes.judge(engine, found, crashed=crashed)

    # The operations.

    def _spec(self, size: int | None = None) -> Spec:
        self._count += 1
        rng = self.rng
        text = f"{self._count}." + "x" * (self._size() if size is None else size)
        tag = rng.choice((None, "a", "a:1", "b", "b:2"))
        return Spec(text, tag, rng.choice((None, None, "n1", "n2")), rng.choice((None, None, self._count)))

    def _size(self) -> int:
        regime = self.rng.choice(REGIMES[:2]) if self._setup.regime == "mixed" else self._setup.regime
        if regime == "tiny":
            return self.rng.randrange(12)
        return self.rng.choice((150, 200, 256, 400, 460)) - self.rng.randrange(8)

    def _write(self, name: str, count: int = 1, size: int | None = None, **named: Any) -> bool:
        return self.session.append(name, [self._spec(size) for _ in range(count)], config=ZOO[name], **named)

    def _some(self) -> list[str]:
        """A topic that has been written to, made if there is none; nothing if the disk does not let us."""
        if not any(topic.live.head for topic in self.store.topics() if topic is not self.store.topic(SOURCE)):
            self._write("fsync", 3, 20)
        names = [name for name in self.store.names() if (topic := self.store.topic(name)) and topic.live.head]
        names = [name for name in names if name != SOURCE]
        return [self.rng.choice(names)] if names else []

    def _op_append_fsync(self) -> None:
        self._write("fsync")

    def _op_append_disk(self) -> None:
        self._write("disk")

    def _op_append_memory(self) -> None:
        self._write("memory")

    def _op_append_ephemeral(self) -> None:
        self._write("eph", self.rng.randrange(1, 4))

    def _op_append_batch(self) -> None:
        self._write(self.rng.choice(("fsync", "disk", "memory")), self.rng.randrange(2, 10), self.rng.choice((5, 60)))

    def _op_append_many(self) -> None:
        """More than one reservation, several segments and WAL files at once."""
        for _ in range(3):
            self._write(self.rng.choice(("disk", "disk", "bytes", "memory")), self.rng.randrange(8, 25), 30)

    def _op_append_huge(self) -> None:
        """Larger than a whole WAL file: it gets one of its own size [S-87]."""
        self._write(self.rng.choice(("fsync", "disk")), 1, self._config.wal_file_bytes + self.rng.randrange(600))

    def _op_append_keyed(self) -> None:
        name = self.rng.choice(("fsync", "disk", "capped", "memory", "eph"))
        specs = [self._spec() for _ in range(self.rng.randrange(1, 4))]
        key = f"key-{self._count}"
        self._keys.append((name, key, specs))
        self.session.append(name, specs, key=key, config=ZOO[name])
        if self.rng.random() < 0.5:
            self._op_retry()

    def _op_retry(self) -> None:
        """A write that was made before, by its key: it is known exactly as long as its records are [IDM-6]."""
        if not self._keys:
            self._op_append_keyed()
            return
        name, key, specs = self.rng.choice(self._keys[-5:])
        self.session.append(name, specs, key=key, config=ZOO[name])

    def _op_append_producer(self) -> None:
        """Next index, a repeat, an old one, a skipped one, a new epoch [A-4]."""
        name = self.rng.choice(("fsync", "disk"))
        epoch, index = self._next.setdefault(name, [1, -1])
        move = self.rng.choice(("next", "next", "next", "repeat", "old", "skip", "epoch"))
        if move == "epoch":
            epoch, index = epoch + 1, self.rng.randrange(3)
        elif index >= 0:
            index += {"next": 1, "repeat": 0, "old": -1, "skip": 2}[move]
        else:
            index = 0
        if self._write(name, self.rng.randrange(1, 3), producer=("p", epoch, max(index, 0))):
            self._next[name] = [epoch, max(index, 0)]

    def _op_append_capped(self) -> None:
        self._write(self.rng.choice(("capped", "bytes", "mixed")), self.rng.randrange(1, 8))

    def _op_append_reject(self) -> None:
        self._write("reject", self.rng.choice((1, 2, 2, 7)), self.rng.choice((3, 40, 40, 600)))

    def _op_append_ttl(self) -> None:
        self._write(self.rng.choice(("ttl", "ttl", "mixed")), self.rng.randrange(1, 4))

    def _op_delete_tag(self) -> None:
        for name in self._some():
            selector: dict[str, Any] = {"match": self.rng.choice(("a", "a*", "b", "b:*", "*"))}
            if self.rng.random() < 0.2:
                selector["before_seq"] = self._seq(name)
            self.session.delete(name, **selector)

    def _op_delete_before(self) -> None:
        for name in self._some():
            self.session.delete(name, before_seq=self._seq(name))

    def _op_delete_seqs(self) -> None:
        for name in self._some():
            self.session.delete(name, seqs=sorted({self._seq(name) for _ in range(3)}))

    def _op_delete_all(self) -> None:
        """Every record: whole segments go, and nothing is told of it [TMB-3]."""
        for name in self._some():
            self.session.delete(name, before_seq=2**64 - 1)

    def _op_dry_run(self) -> None:
        for name in self._some():
            self.session.delete(name, before_seq=self._seq(name), dry_run=True)

    def _seq(self, name: str) -> int:
        topic = self.store.topic(name)
        assert topic is not None
        return self.rng.randint(max(1, topic.live.head - 12), topic.live.head + 2)

    def _op_wait(self) -> None:
        self.session.tick(self.rng.choice((30, 1000, 1500)))

    def _op_sync_mark(self) -> None:
        self.session.tick(1000)
        self.session.tick(30)

    def _op_tick(self) -> None:
        """A checkpoint interval, with the snapshot, sweep and reclaim that may be due."""
        self.session.tick(self.rng.choice((5000, 5000, 16_000)))

    def _op_expire(self) -> None:
        """Let records grow old, and look with or without the sweep having run."""
        self.clock.advance(self.rng.choice((4000, 5001, 9000)))
        if self.rng.random() < 0.5:
            self.session.tick(0)
        self.session.check([name for name in ("ttl", "mixed") if name in self.store.names()], self.rng)

    def _op_jump(self) -> None:
        """Someone sets the clock forward: everything with a TTL expires."""
        self.clock.jump(self.rng.choice((6000, 3_600_000)))
        self.session.check(self.store.names(), self.rng)

    def _op_jump_back(self) -> None:
        """Someone sets the clock back: nothing un-expires, and `ts` does not decrease [S-265, REC-10]."""
        self.clock.jump(-self.rng.choice((3000, 3_600_000)))
        self.session.check(self.store.names(), self.rng)

    def _op_idle(self) -> None:
        """A minute without writes: reservations are given back, so a crash tells of nothing [A-2, C7]."""
        self.session.tick(11_000)
        for _ in range(2):
            self.session.tick(25_000)
        self.session.tick(1000)
        # Idleness is told by the wall clock; one that was set back makes it look shorter.
        steady = self.clock.now_ms() >= self._seen()
        if steady and self.session.well and not self._lied() and not self._excused():
            for topic in self.store.topics():
                topic.reserved = False

    def _queue(self) -> str | None:
        """A queue with jobs in it; none if the disk does not let us."""
        name = self.rng.choice(("jobs", "jobs", "loose"))
        topic = self.store.topic(name)
        if topic is None or not topic.live.records:
            self._write(name, self.rng.randrange(1, 5), 8)
        return name if self.store.topic(name) is not None else None

    def _op_append_jobs(self) -> None:
        self._write(self.rng.choice(("jobs", "loose")), self.rng.randrange(1, 4))

    def _op_claim(self) -> None:
        if (name := self._queue()) is not None:
            rng = self.rng
            self.session.claim(name, rng.choice("uv"), rng.choice((1, 2, 9)), rng.choice((1000, 4000, 60_000)))

    def _settle_jobs(self, call: str) -> None:
        """A call about some jobs, most of them leased to who calls."""
        name = self._queue()
        topic = None if name is None else self.store.topic(name)
        if name is None or topic is None:
            return
        if not topic.jobs.held:
            self.session.claim(name, self.rng.choice("uv"), 3, 60_000)
        held = sorted(topic.jobs.held)
        seqs = sorted({*self.rng.sample(held, min(3, len(held))), self._seq(name)})
        node = topic.jobs.held[held[0]].node if held and self.rng.random() < 0.8 else "u"
        self.session.settle_jobs(call, name, node, seqs, fenced=self.rng.random() < 0.5)

    def _op_ack(self) -> None:
        self._settle_jobs("ack")

    def _op_nack(self) -> None:
        self._settle_jobs("nack")

    def _op_extend(self) -> None:
        self._settle_jobs("extend")

    def _op_configure(self) -> None:
        """Replace a configuration: class, caps, age."""
        rng = self.rng
        config: dict[str, Any] = {"durability": rng.choice(("ephemeral", "memory", "disk", "fsync"))}
        if rng.random() < 0.3:
            config |= {"cap_records": rng.choice((2, 5)), "discard": rng.choice(("old", "old", "reject"))}
        if rng.random() < 0.2:
            config["cap_bytes"] = rng.choice((100, 600))
        if rng.random() < 0.2:
            config["ttl_ms"] = rng.choice((1000, 7000))
        if rng.random() < 0.1:
            config["dedupe_node"] = False
        for name in self._some():
            if ZOO[name].get("type") == "queue":
                config |= {"type": "queue", "leases_durable": rng.random() < 0.7}
            self.session.put_topic(name, config)

    def _op_churn(self) -> None:
        """Create, write, delete and create again under one name [EPO-1]."""
        if self.store.topic("churn") is not None and self.rng.random() < 0.6:
            self.session.delete_topic("churn")
            if self.rng.random() < 0.5:
                return
        if self.store.topic("churn") is None:
            self._keys = [row for row in self._keys if row[0] != "churn"]
        if self.rng.random() < 0.5:
            self.session.put_topic("churn", {"durability": self.rng.choice(("disk", "fsync", "memory"))})
        self._write("churn", self.rng.randrange(1, 5))

    def _op_checkpoint(self) -> None:
        self.session.checkpoint(full=self.rng.random() < 0.8)

    def _op_snapshot(self) -> None:
        self.session.snapshot()

    def _op_rewrite(self) -> None:
        """Fill segments, kill most of their records, and let the reclaimer find them."""
        name = self.rng.choice(("fsync", "disk"))
        self._write(name, 8, 40)
        self.session.checkpoint(full=True)
        topic = self.store.topic(name)
        if topic is None:
            return
        head = topic.live.head
        doomed = sorted(self.rng.sample(range(max(1, head - 9), head + 1), min(7, head)))
        self.session.delete(name, seqs=doomed)
        self.session.tick(12_000)
        self.session.tick(12_000)

    def _op_relocate(self) -> None:
        """Fill segments, have them moved to the cold tier, and delete from them while they are there [C18]."""
        name = self.rng.choice(("fsync", "disk"))
        self._write(name, self.rng.randrange(4, 14), 30)
        self.session.checkpoint(full=True)
        if self.rng.random() < 0.5:
            self._op_delete_tag()
        self.session.tick(6000)
        topic = self.store.topic(name)
        if topic is None:
            return
        seq = max(topic.live.head - self.rng.randrange(1, 12), 1)
        self.session.delete(name, seqs=[seq], dry_run=False)
        self.session.tick(6000)
        if self.rng.random() < 0.5:
            self.session.checkpoint(full=True)
            self.session.tick(6000)

    def _op_move(self) -> None:
        """One segment: to the cold tier, mostly deleted there, fetched and rewritten, and moved again [S-285]."""
        self._write("fsync", 3, 10)
        self.session.checkpoint(full=True)
        self.session.tick(6000)
        topic = self.store.topic("fsync")
        if topic is None:
            return
        self.session.delete("fsync", seqs=[seq for seq in (1, 2) if seq <= topic.live.head])
        self.session.checkpoint(full=True)
        for _ in range(3):
            self.session.tick(6000)

    def _op_compact(self) -> None:
        """The same on request, right behind the deletes: their marks are in memory only [CPT-1]."""
        name = self.rng.choice(("fsync", "disk"))
        self._write(name, 8, 40)
        self.session.checkpoint(full=True)
        topic = self.store.topic(name)
        if topic is None:
            return
        head = topic.live.head
        doomed = sorted(self.rng.sample(range(max(1, head - 9), head + 1), min(5, head)))
        self.session.delete(name, seqs=doomed)
        self.session.compact(name, self.rng.choice((0.0, 0.5)))

    def _op_purge(self) -> None:
        """Records of a segment are deleted, and the log that says so is trimmed [S-270, C13]."""
        name = self.rng.choice(("fsync", "disk", "memory"))
        self._write(name, 3, 10)
        self.session.checkpoint(full=True)
        topic = self.store.topic(name)
        if topic is None:
            return
        self.session.delete(name, seqs=[topic.live.head - self.rng.randrange(3)])
        self.session.checkpoint(full=True)

    def _op_close_reopen(self) -> None:
        if self.session.close() and not self._lied():
            self._start(self._fs, "crash" if self.latched() else "close")
        else:
            # A close that failed may keep the lock; then the process ends, which releases it.
            self._move_to(self.disk.kill_image(), killed=True)

    def _op_kill_reopen(self) -> None:
        """Kill the process: the page cache lives on, and so does everything that was acknowledged."""
        self._move_to(self.disk.kill_image(), killed=True)

    def _op_crash_reopen(self) -> None:
        """Power loss: any state the disk allows may be what the next boot finds."""
        self._move_to(self.disk.crash_image(self.rng), killed=False)

    def _op_reshard(self) -> None:
        """Another shard count after a close, a kill or a crash [S-70, C8]."""
        self._layout += 1
        shards = (*self._setup.shards, 3)[self._layout % (len(self._setup.shards) + 1)]
        self._config = tiny(**(_fields(self._config) | {"wal_shards": shards}))
        self.rng.choice((self._op_close_reopen, self._op_kill_reopen, self._op_crash_reopen))()

    def _move_to(self, survivor: SimFs, *, killed: bool) -> None:
        self._had_late_error = self._late_error()
        super()._move_to(survivor, killed=killed)

    def _op_append_source(self) -> None:
        """Write to the topic that routers copy from."""
        topic = self.store.topic(SOURCE)
        head = 0 if topic is None else topic.live.head
        specs = [self._spec() for _ in range(self.rng.choice((1, 1, 2, 5, 9)))]
        self.routes.wrote(head + 1, [spec.rec(0, 0, 0) for spec in specs])
        self.session.append(SOURCE, specs, config=ZOO[SOURCE])

    def _op_route(self) -> None:
        """Create the routers that are not there yet, each destination of a class of its own."""
        if self.store.topic(SOURCE) is None:
            self._op_append_source()
        engine, source = self.session.engine, self.store.topic(SOURCE)
        if source is None:
            return
        for name, dest in DESTS.items():
            flow = self.routes.flows.get(name)
            if flow is not None and flow.began is not None:
                continue
            if flow is None:
                durability = self.rng.choice(("disk", "fsync") if dest.mixed else ("memory", "disk", "fsync"))
                flow = self.routes.flows[name] = Flow(durability)
            try:
                engine.put_topic(name, {"durability": flow.durability})
                there = any(one.router == dest.router for one in engine.routers())
                if not there:
                    began = engine.state(dest.source).head_seq
                    flow.attempts.append(began)
                    config = {"source": dest.source, "dest": name, "filter": FILTERS[0] if dest.filtered else None}
                    engine.put_router(dest.router, config)
                    flow.began = began
                else:
                    flow.began = self.routes.found(name, observe_routes(engine))
            except TopicsError as error:
                self.session._blame(error, f"a router into {name!r}")
                return

    def _op_reroute(self) -> None:
        """Another filter of a router; what was forwarded stays as it is, also behind every crash [RTR-8]."""
        name = "to.few"
        flow = self.routes.flows.get(name)
        if flow is None or flow.began is None or not self.session.well:
            self._op_route()
            return
        engine, dest = self.session.engine, DESTS[name]
        old = self.routes.filters
        new = self.rng.choice([each for each in FILTERS if old != {each}])
        self.routes.filters |= {new}
        try:
            # Whatever the source has is forwarded by the old one [FWD-9].
            engine.read(name, limit=1)
            engine.put_router(dest.router, {"source": dest.source, "dest": name, "filter": new})
        except TopicsError as error:
            self.session._blame(error, f"another filter of the router into {name!r}")
            return
        if not self._lied():
            self.routes.filters = frozenset({new})

    def _op_append_mixed(self) -> None:
        """A direct write into a destination; it takes the copies before it along."""
        flow = self.routes.flows.get("to.mixed")
        if flow is None:
            self._op_append_source()
            return
        specs = [self._spec() for _ in range(self.rng.randrange(1, 4))]
        data = [spec.rec(0, 0, 0).data for spec in specs]
        flow.tried.update(data)
        try:
            result = self.session.engine.append("to.mixed", [spec.given() for spec in specs])
        except TopicsError as error:
            self.session._blame(error, "a direct write to 'to.mixed'")
            return
        assert result.first_seq is not None
        flow.direct.update(zip(data, range(result.first_seq, result.first_seq + len(data)), strict=True))

    def _op_fade(self) -> None:
        """A destination becomes `ephemeral`; what it has keeps the promise that it was made under [CFG-10]."""
        flow = self.routes.flows.get("to.few")
        if flow is None or flow.began is None or flow.kept is not None:
            self._op_append_source()
            return
        flow.kept = dict(flow.known)
        try:
            self.session.engine.put_topic("to.few", {"durability": "ephemeral"})
        except TopicsError as error:
            flow.durability = "memory"
            self.session._blame(error, "making 'to.few' ephemeral")
            return
        flow.durability = "ephemeral"

    def _op_delete_copies(self) -> None:
        """Delete copies where nothing is copied on from [RRC-7]."""
        name = self.rng.choice(("to.few", "to.mixed", "to.chain"))
        flow = self.routes.flows.get(name)
        if flow is None or not flow.known:
            self._op_append_source()
            return
        engine = self.session.engine
        chosen = {seq: data for seq, data in flow.known.items() if self.rng.random() < 0.3}
        if not chosen:
            return
        # Where records of an earlier class live, deletes are logged whatever the class is now [CFG-10].
        logged = flow.durability == "ephemeral" and not flow.known.keys().isdisjoint(flow.kept or ())
        lasting = (flow.durability == "fsync" or logged) and not self._lied()
        asked = self.deletes.ask(engine, name, seqs=sorted(chosen))
        if not lasting:
            flow.unsure.update(chosen.values())
        try:
            flow.unsure.update(chosen.values())
            engine.delete(name, seqs=sorted(chosen))
        except TopicsError as error:
            self.session._blame(error, f"deleting from {name!r}")
            return
        self.deletes.ack(asked, lasting=lasting)
        if lasting:
            flow.unsure.difference_update(chosen.values())
            flow.deleted.update(chosen.values())

    def _plan(self, attach: AttachMode | None = None) -> Plan:
        """The next version: a few chunks for a few topics, in two parts."""
        rng = self.rng
        names = ["fsync", "disk", "memory", "eph", "capped", "reject", "jobs", txnmodel.MADE]
        chosen = [name for name in rng.sample(names, rng.choice((1, 2, 3, 3))) if not self._has_old_clock(name)]
        for name in chosen:
            if name != txnmodel.MADE and self.store.topic(name) is None:
                self._write(name)
        chosen = [name for name in chosen if name == txnmodel.MADE or self.store.topic(name) is not None] or ["made"]
        chunks = [
            Chunk(rng.choice(chosen), tuple(self._spec(rng.choice((None, 3))) for _ in range(rng.choice((1, 2, 4)))))
            for _ in range(rng.randrange(1, 5))
        ]
        self.txns.versions += rng.choice((1, 1, 3))
        cut = rng.randrange(len(chunks) + 1)
        parts = {"q": tuple(chunks[:cut]), "p": tuple(chunks[cut:])}
        modes: tuple[AttachMode, ...] = ("auto", "never", "always") if attach is None else (attach,)
        how = rng.choice(modes)
        return Plan(self.txns.versions, {part: taken for part, taken in parts.items() if taken}, how)

    def _has_old_clock(self, name: str) -> bool:
        """Whether nobody knows what age has taken there: then nobody knows either whether there is room."""
        topic = self.store.topic(name)
        return topic is not None and self.session._uncertain_age(topic)

    def _op_stage(self) -> None:
        """Stage a version, to be committed later, perhaps in another life: then it has to be staged again [TXN-4]."""
        plan = self._plan()
        try:
            txnmodel.stage(self.session, plan)
        except TopicsError as error:
            self.session._blame(error, f"staging version {plan.version}")
        else:
            self.txns.plan = plan

    def _op_commit(self) -> None:
        """Commit what is staged, or was; a commit that failed is repeated, one that succeeded now and then."""
        plan = self.txns.plan
        done = plan is not None and plan.version <= (self.txns.committed or 0)
        if plan is None or (done and self.rng.random() < 0.7) or (not done and self.rng.random() < 0.2):
            plan = self._plan()
        if not any(self._has_old_clock(name) for name in plan.rows):
            txnmodel.commit(self.session, self.txns, plan)

    def _op_attach(self) -> None:
        """A new version, brought to its topics as segments [TXN-8]."""
        plan = self._plan("always")
        if not any(self._has_old_clock(name) for name in plan.rows):
            txnmodel.commit(self.session, self.txns, plan)

    def _op_abort(self) -> None:
        """Drop what is staged; what is committed stays [TXN-11]."""
        plan = self.txns.plan
        if plan is None:
            self._op_stage()
            return
        try:
            state = self.session.engine.abort_staged(txnmodel.ID, plan.version).state
        except TopicsError as error:
            # It waits behind a commit whose segments cannot be moved in [S-290].
            self.session._blame(error, f"aborting version {plan.version}")
            return
        if (state == "committed") != (plan.version <= (self.txns.committed or 0)):
            raise Violation(f"version {plan.version} was {state!r}, {self.txns.committed} is committed [TXN-11]")
        left = [one.version for one in self.session.engine.writer(txnmodel.ID).staged]
        if plan.version in left:
            raise Violation(f"version {plan.version} is still staged after its abort [TXN-11]")

    def _op_failed_sync(self) -> None:
        """One of the next syncs fails in one of the ways kernels have; then go on until something notices."""
        self._armed = True
        self.disk.fail_sync(self.rng.choice(SYNC_MODES), k=self.rng.randrange(1, 4))
        self._op_append_fsync()
        self._op_append_disk()
        self.rng.choice((self._op_tick, self._op_checkpoint, self._op_append_batch))()

    def _op_full_disk(self) -> None:
        """No space for a while: writes are refused, nothing is lost, deletes work, and all is well afterwards."""
        self._limited = True
        self._leave_space(self.rng.choice((0, 512, 2048)))
        try:
            self._op_append_batch()
            self._op_append_huge()
            self._op_append_fsync()
            self.rng.choice((self._op_checkpoint, self._op_tick, self._op_delete_before))()
            self.session.check(self.store.names(), self.rng)
        finally:
            self.disk.capacity = None
        struck = self._struck()
        self.session.tick(1100)
        self.session.tick(1100)
        self._limited = False
        if not self.session.well and not self.session.latched and self._struck() == struck and not self._armed:
            raise Violation("space is back and the engine still refuses [S-80]")


def _place(error: Exception) -> str:
    """Where an error came from, for a report without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[:-4:-1])


def _fields(config: EngineConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def _old_logs(disk: SimFs) -> dict[str, bytes]:
    """The WAL files with content, without the zeros behind it."""
    logs = {path: data.rstrip(b"\0") for path, data in disk.files().items() if parse_wal_file(path.rpartition("/")[2])}
    return {path: data for path, data in logs.items() if data}


def difference(one: Mapping[str, View], other: Mapping[str, View]) -> str:
    """The first topic that is shown otherwise, in short."""
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            return f"{name!r} as {_brief(other.get(name))}, the first showed {_brief(one.get(name))}"
    return "nothing else"


def _brief(view: View | None) -> str:
    if view is None:
        return "absent"
    seqs = [rec.seq for rec in view.records]
    return f"[{view.config.durability}: head {view.head}, floor {view.floor}, {view.runs}, records {seqs}]"


def without_lock(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a disk but the lock, which a refused start may have replaced [S-65]."""
    return {path: data for path, data in files.items() if not path.endswith(LOCK_FILE)}


class EngineSubject:
    """Makes drivers of the embedded engine."""

    ops = OPS

    def driver(self, seed: int) -> EngineDriver:
        return EngineDriver(setup_for(seed), seed)

    def workload(self, rng: random.Random, length: int) -> list[str]:
        """Writes are the bulk; what changes the disk's layout or ends a life is strewn in. A third is about routers."""
        ops: tuple[str, ...] = (*OPS, *MORE)
        if rng.random() < 0.33:
            ops = ("route", *ROUTED * 3, "fade", *OPS)
        weights = [
            4 if op.startswith("append") else 2 if op.startswith(("delete", "tick", "wait", "claim", "ack")) else 1
            for op in ops
        ]
        return rng.choices(ops, weights, k=length)

    def fault_workloads(self) -> dict[str, tuple[Callable[[], EngineDriver], tuple[str, ...]]]:
        """Short workloads that together pass through every kind of disk call of an engine."""
        return {name: (partial(_driver_for, **fields), ops) for name, (fields, ops) in _WORKLOADS.items()}


def _driver_for(**fields: Any) -> EngineDriver:
    config = tiny(**fields)
    return EngineDriver(Setup(config, "tiny", (config.wal_shards,)), 0)


_WORKLOADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "fsync": ({}, ("append_fsync", "append_batch", "delete_tag", "append_fsync")),
    "disk": ({}, ("append_disk", "append_disk", "wait", "append_disk", "idle")),
    "rotation": ({"wal_init_zero": True}, ("append_huge", "append_batch", "append_huge", "append_fsync")),
    "checkpoint": ({"segment_max_events": 3}, ("append_batch", "append_fsync", "checkpoint", "append_fsync", "tick")),
    "snapshots": ({}, ("append_fsync", "snapshot", "append_disk", "snapshot", "append_fsync", "snapshot")),
    "deletes": ({}, ("append_batch", "checkpoint", "delete_tag", "delete_before", "checkpoint")),
    "told": ({}, ("append_batch", "delete_tag", "tick", "churn", "delete_before", "churn", "kill_reopen", "tick")),
    "caps": ({"segment_max_events": 1}, ("append_capped", "append_capped", "checkpoint", "append_capped", "tick")),
    "age": ({}, ("append_ttl", "expire", "append_ttl", "tick")),
    "rewrite": ({}, ("rewrite",)),
    "tiers": ({"cold_dir": COLD, "hot_retain_segments": 0, "segment_max_events": 3}, ("move",)),
    "cold drops": (
        {"cold_dir": COLD, "hot_retain_segments": 0, "segment_max_events": 3, "checkpoint_records": 9},
        ("append_capped", "snapshot", "tick", "append_capped", "append_capped", "snapshot", "tick"),
    ),
    "compact": ({"reclaim_rewrite": False}, ("compact", "compact")),
    "names": ({}, ("append_keyed", "append_producer", "append_keyed", "close_reopen", "retry")),
    "config": ({}, ("append_disk", "configure", "append_disk", "configure", "kill_reopen")),
    "churn": ({}, ("churn", "churn", "churn", "tick", "churn")),
    "closed": ({}, ("append_fsync", "append_ephemeral", "append_disk", "close_reopen", "append_disk")),
    "killed": ({}, ("append_disk", "append_fsync", "kill_reopen", "append_disk", "kill_reopen")),
    "crashed": ({}, ("append_disk", "append_fsync", "append_disk", "crash_reopen", "append_disk", "crash_reopen")),
    "shards": ({"wal_shards": 3}, ("append_fsync", "append_disk", "append_memory", "reshard", "append_disk")),
    "queues": (
        {},
        ("append_jobs", "claim", "ack", "nack", "claim", "checkpoint", "extend", "ack", "kill_reopen", "claim"),
    ),
    "full": ({}, ("append_fsync", "full_disk", "append_disk", "tick")),
    "commits": ({}, ("commit", "commit", "abort")),
    "attached": ({}, ("append_fsync", "attach", "append_fsync")),
    "attached twice": ({"wal_shards": 3}, ("attach", "kill_reopen")),
    "committed": ({"wal_shards": 3}, ("stage", "commit", "kill_reopen", "commit")),
    "routers": ({}, ("route", "append_source", "checkpoint", "append_source", "append_mixed", "append_source")),
    "another filter": (
        {},
        ("route", "append_source", "reroute", "append_source", "kill_reopen", "reroute", "append_source"),
    ),
    "copies": ({}, ("route", "append_source", "delete_copies", "append_mixed", "kill_reopen", "append_source", "tick")),
    "fading copies": (
        {},
        ("route", "append_source", "append_source", "fade", "append_source", "delete_copies", "kill_reopen", "tick"),
    ),
}
