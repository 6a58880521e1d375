"""Staged commits beside the oracle of the engine: what a writer was promised, what a restart may show of it (02 §9).

    Plan    one version: which rows its chunks bring to which topics, and to which group of the log each topic belongs
    Txns    the writer: its committed version as far as that is certain, and the plans whose outcome is open
    commit  stages and commits a plan through an engine and holds every answer against the model

Each topic is judged by itself, as after any write (`enginemodel`). What is judged here is what topics have to do with
each other: within a group all of them have a version or none has, those of the group of shard 0 exactly when the
version is committed, and a committed version is everywhere [TXN-6, S-287]. Plain values: any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from topics.codec.place import shard_of
from topics.engine.txn import AttachMode
from topics.errors import RecordTooLarge, TopicFull, TopicsError, TxnIncomplete
from topics.model import CommitResult, TopicConfig
from topics.testing.enginemodel import Append, Entry, Rules, Store, Topic
from topics.testing.subject import Violation

if TYPE_CHECKING:
    from topics.testing.enginesubject import Session, Spec

ID = "w"
"""The one writer of a run."""
MADE = "made"
"""A topic that commits create."""


class Chunk(NamedTuple):
    """Rows of one topic."""

    topic: str
    specs: tuple[Spec, ...]


class Plan:
    """One version of the writer."""

    def __init__(self, version: int, parts: Mapping[str, tuple[Chunk, ...]], attach: AttachMode = "auto") -> None:
        self.version = version
        self.attach = attach
        """How it is committed, each time [TXN-8]."""
        self.parts = parts
        """In the order of the commit."""
        self.groups: dict[str, int] = {}
        """Of its topics, when it was last tried: those that are logged."""

    @property
    def rows(self) -> dict[str, list[Spec]]:
        """What it brings to each topic, in order [TXN-6]."""
        found: dict[str, list[Spec]] = {}
        for chunks in self.parts.values():
            for chunk in chunks:
                found.setdefault(chunk.topic, []).extend(chunk.specs)
        return found

    @property
    def named(self) -> list[dict[str, object]]:
        """The parts as a commit names them."""
        return [
            {"part": part, "chunks": len(chunks), "records": sum(len(chunk.specs) for chunk in chunks)}
            for part, chunks in self.parts.items()
        ]


class Late(NamedTuple):
    """A commit that is durable in some group and cannot be shown yet: it is completed as soon as it can be [S-290]."""

    plan: Plan
    events: Mapping[str, tuple[Topic, Append]]


class Txns:
    """What is known of the writer."""

    def __init__(self) -> None:
        self.committed: int | None = None
        self.open: list[Plan] = []
        """Tried, with an outcome that nobody was told: after a restart each may be there, or a part of its groups."""
        self.plan: Plan | None = None
        """What is staged, or was before the process ended; it may be tried again."""
        self.versions = 0
        self.late: Late | None = None

    def judge(self, store: Store, version: int | None, rules: Rules) -> Txns:
        """The writer as a restart shows it; `store` is what the topics were judged to be."""
        after = Txns()
        after.plan, after.versions, after.committed = self.plan, self.versions, version
        if rules.lied:
            return after
        possible = {self.committed, *(plan.version for plan in self.open)}
        if version not in possible or (self.committed is not None and (version or 0) < self.committed):
            raise Violation(f"the committed version is {version} after a {rules.how}, not one of {possible} [A-19]")
        for plan in self.open:
            _whole_groups(plan, store, version)
        return after


def _whole_groups(plan: Plan, store: Store, version: int | None) -> None:
    groups: dict[int, dict[str, bool]] = {}
    for name, group in plan.groups.items():
        topic = store.topic(name)
        if topic is not None and topic.live.config.durability != "ephemeral":
            pair = topic.base.producers.get(ID)
            groups.setdefault(group, {})[name] = pair is not None and pair.epoch >= plan.version
    for group, found in groups.items():
        if len(set(found.values())) > 1:
            raise Violation(f"half of version {plan.version} in group {group}: {found} [TXN-6]")
        if plan.version == version and not all(found.values()):
            raise Violation(f"version {version} is committed, and {found} lack it [S-287]")
        if group == 0 and any(found.values()) and (version or 0) < plan.version:
            raise Violation(f"{found} have version {plan.version}, which is not committed [S-287]")


def commit(session: Session, txns: Txns, plan: Plan) -> bool:
    """Commit a plan, staged before or not; whether it was acknowledged."""
    txns.plan = plan
    store = session.store
    events: dict[str, Append] = {}
    known: dict[str, Entry] = {}
    creating = [name for name in plan.rows if store.topic(name) is None]
    topics = {name: store.topic(name) or store.creating(name, TopicConfig()) for name in plan.rows}
    refused = _prepare(session, plan, topics, events, known)
    is_known = txns.committed is not None and plan.version <= txns.committed
    if not is_known and not refused:
        plan.groups = {}
        for name, topic in topics.items():
            if name not in known:
                topic.stage(events[name])
            if topic.logged:
                found = session.engine.core.names.get(name)
                # A topic that is created gets the next id; with one of them nothing is left open.
                id = session.engine.core.next_topic_id if found is None else found.id
                plan.groups[name] = shard_of(id, session._shards)
        txns.open.append(plan)
    try:
        result = _committed(session, plan)
    except (TopicFull, RecordTooLarge) as error:
        if not refused or is_known:
            raise Violation(f"version {plan.version} was refused with {error!r}, there is room") from error
        _settle_creations(session, creating)
        return False
    except TopicsError as error:
        session._blame(error, f"committing version {plan.version}")
        _settle_creations(session, creating)
        if not is_known and not refused:
            left = {name: (topics[name], event) for name, event in events.items() if name not in known}
            txns.late = Late(plan, left) if ID in session.engine.core.writers.stuck else None
            _partly(session, plan, {name: (topics[name], event) for name, event in events.items() if name not in known})
        return False
    if refused and not is_known:
        raise Violation(f"version {plan.version} was committed over a full topic: {result} [TXN-5]")
    for name in creating:
        if is_known:
            store.slots.pop(name, None)
        else:
            session._created(name)
    _answered(plan, result, events, known, creating, is_known=is_known)
    if not is_known:
        for name, event in events.items():
            if name not in known:
                session._acknowledged(topics[name], event, durable=topics[name].logged)
        txns.committed = plan.version
        txns.open = []
    if session.engine.writer(ID).version != txns.committed and not session.lied():
        raise Violation(f"the writer is at {session.engine.writer(ID)}, not at {txns.committed} [TXN-12]")
    return not is_known


def catch_up(session: Session, txns: Txns) -> None:
    """Look whether a commit that was late is there by now."""
    late = txns.late
    if late is None:
        return
    _partly(session, late.plan, {name: one for name, one in late.events.items() if not one[1].acked})
    if ID not in session.engine.core.writers.stuck:
        txns.late = None
        if session.engine.writer(ID).version == late.plan.version:
            txns.committed = late.plan.version
            txns.open = []


def _prepare(
    session: Session, plan: Plan, topics: Mapping[str, Topic], events: dict[str, Append], known: dict[str, Entry]
) -> bool:
    """The events of a commit, topics that have it already; whether some topic refuses."""
    refused = False
    for name, specs in plan.rows.items():
        topic = topics[name]
        session._age(topic)
        now, live = session._now(), topic.live
        pair = live.producers.get(ID)
        if pair is not None and pair.epoch == plan.version:
            known[name] = pair
            continue
        ts = max(now, live.last_ts)
        recs = tuple(spec.rec(live.head + 1 + at, ts, now) for at, spec in enumerate(specs))
        events[name] = Append(recs, live.config.durability, None, (ID, plan.version, 0))
        refused = refused or bool(live.refuses(len(recs), sum(rec.size for rec in recs)))
    return refused


def _committed(session: Session, plan: Plan) -> CommitResult:
    """Commit; what a restart dropped is staged again [TXN-4, TXN-10]."""
    try:
        return session.engine.commit_staged(ID, plan.version, plan.named, attach=plan.attach)
    except TxnIncomplete:
        stage(session, plan)
        return session.engine.commit_staged(ID, plan.version, plan.named, attach=plan.attach)


def stage(session: Session, plan: Plan) -> None:
    """Stage all chunks; parts in another order than the commit names them."""
    for part, chunks in sorted(plan.parts.items()):
        for number, chunk in enumerate(chunks):
            records = [spec.given() for spec in chunk.specs]
            result = session.engine.stage(ID, plan.version, part, number, chunk.topic, records)
            if result.staged != len(records):
                raise Violation(f"chunk {number} of {part!r} has {len(records)} records, {result} was answered [TXN-1]")


def _settle_creations(session: Session, creating: list[str]) -> None:
    for name in creating:
        session._exists_anyway(name)


def _partly(session: Session, plan: Plan, events: Mapping[str, tuple[Topic, Append]]) -> None:
    """A commit failed: groups that were synced before that are there, whole; the others show nothing [TXN-6]."""
    there: dict[str, bool] = {}
    for name, (topic, event) in events.items():
        found = session.engine.core.names.get(name)
        there[name] = found is not None and found.head >= event.recs[-1].seq
        if there[name]:
            session._acknowledged(topic, event, durable=topic.logged)
    for group in set(plan.groups.values()):
        shown = {there[name] for name in there if plan.groups.get(name) == group}
        if len(shown) > 1:
            raise Violation(f"half of version {plan.version} is visible: {there} [TXN-6]")


def _answered(
    plan: Plan,
    result: CommitResult,
    events: Mapping[str, Append],
    known: Mapping[str, Entry],
    creating: list[str],
    *,
    is_known: bool,
) -> None:
    """Hold an answer against what it must be [TXN-7, TXN-9]."""
    if (result.version, result.deduped) != (plan.version, is_known):
        raise Violation(f"committing version {plan.version} was answered {result}, known before: {is_known} [TXN-7]")
    if is_known:
        return
    must = {name: (event.recs[0].seq, event.recs[-1].seq, len(event.recs)) for name, event in events.items()}
    must |= {name: (entry.first, entry.last, entry.count) for name, entry in known.items()}
    told = {one.topic: (one.first_seq, one.last_seq, one.count) for one in result.topics}
    if told != must or {one.topic for one in result.topics if one.created} != set(creating):
        raise Violation(f"version {plan.version} was answered {result}, it must be {must}, new {creating} [TXN-9]")
