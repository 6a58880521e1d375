"""Writing: decide, stage, publish (06 §7.1, 01 §9, §15).

    absent topic     create it first, durably; the write follows as a write to an existing topic [NAME-5]
    known write      answered from its entry; one that is still undecided is waited for [IDM-2, IDM-3]
    admission        caps of a topic that rejects, then the quota; nothing was assigned yet [CAP-3, RES-5]
    staging          seqs, `ts`, frames, one submission, one ticket: one stretch, so WAL order is seq order [S-105]

Owner only, but for `Write.prepare`, which is the caller's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topics.codec import control, frame
from topics.codec.segment import HAS_NODE, HAS_TAG
from topics.engine import lifecycle, retention
from topics.engine.core import Core, Outcome, control_frame, guarded
from topics.engine.dedupe import Entry, Pending, Verdict
from topics.engine.records import Given, Prepared, prepare
from topics.engine.topic import Appended, Lsn, Ticket, Topic
from topics.errors import CallerError, EngineClosed, LimitReached, RecordTooLarge, TopicFull, TopicNotFound, TopicsError
from topics.model import AppendResult, Limits, Producer, TopicConfig

_ENTRY = struct.Struct("<IIQI")
_DATA_FRAME_BYTES = 38
_WAL_FRAME_BYTES = 46


class Write(NamedTuple):
    """One write, checked and encoded."""

    name: str
    prepared: Prepared
    key: str | None
    producer: Producer | None
    create: bool | None
    config: TopicConfig | None

    @classmethod
    def prepare(
        cls,
        name: str,
        records: Iterable[Given],
        limits: Limits,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> Write:
        """Check everything that needs no state; any thread."""
        if create is not None and not isinstance(create, bool):
            raise CallerError("create must be true or false")
        if idempotency_key is not None and producer is not None:
            raise CallerError("a write has an idempotency_key or a producer, not both")
        parsed = None if config is None else TopicConfig.parse(config, name)
        prepared = prepare(records, limits, node, idempotency_key)
        named = None if producer is None else Producer.parse(producer, limits)
        return cls(name, prepared, idempotency_key, named, create, parsed)

    @property
    def creates(self) -> bool:
        """Whether it may create an absent topic (01 §2.1)."""
        if self.create is not None:
            return self.create
        return self.config is None or self.config.auto_create


def append(core: Core, write: Write, done: Outcome, *, created: bool = False) -> None:
    """Append, and answer with an `AppendResult` once it is visible [DUR-1]."""
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    gate = core.gates.get(write.name)
    if gate is not None:
        gate.append(lambda: append(core, write, done, created=created))
        return
    topic = core.names.get(write.name)
    if topic is not None:
        guarded(lambda: core.in_line(topic, lambda: _append(core, topic, write, done, created), done), done)
    elif write.creates:
        _create(core, write, done)
    else:
        done(TopicNotFound(write.name))


def _create(core: Core, write: Write, done: Outcome) -> None:
    def made(outcome: object) -> None:
        if isinstance(outcome, Exception):
            done(outcome)
        else:
            append(core, write, done, created=True)

    guarded(lambda: lifecycle.create(core, write.name, write.config or TopicConfig(), made), done)


def _append(core: Core, topic: Topic, write: Write, done: Outcome, created: bool) -> None:
    retention.catch_up(core, topic)
    now = core.clock.now_ms()
    known = _known(core, topic, write, now)
    if isinstance(known, Pending):

        def decided(entry: Entry | None) -> None:
            if entry is None:
                core.owner.soon(lambda: append(core, write, done, created=created))
            else:
                done(_again(entry, topic))

        known.wait(decided)
        return
    if known is not None:
        done(known)
        return
    _admit(core, topic, write)
    _stage(core, topic, write, done, created, now)


def _known(core: Core, topic: Topic, write: Write, now: int) -> AppendResult | Pending | None:
    """The answer to a write that was there before, or what decides about it."""
    found: Entry | Pending | Verdict = Verdict.NEW
    if write.key is not None:
        found = core.keys.check(topic.id, write.key, now, topic.config.idempotency_window_ms)
    elif write.producer is not None:
        found = core.producers.check(topic.id, write.producer, now)
    if found is Verdict.NEW:
        return None
    if found is Verdict.OLDER:
        return AppendResult(None, None, topic.head, 0, deduped=True)
    if isinstance(found, Pending):
        return found
    assert isinstance(found, Entry)
    return _again(found, topic)


def _again(entry: Entry, topic: Topic) -> AppendResult:
    return AppendResult(entry.first_seq, entry.last_seq, entry.head_seq, entry.count, deduped=True)


def _admit(core: Core, topic: Topic, write: Write) -> None:
    """Refuse what finds no room, before any seq is taken [CAP-3, CAP-4, RES-5]."""
    config, count, size = topic.config, len(write.prepared.tags), write.prepared.total
    if config.discard == "reject" and (config.cap_records or config.cap_bytes):
        if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
            error = RecordTooLarge(size, config.cap_bytes)
            error.args = (f"{count} records of {size} bytes can never fit topic {topic.name!r}",)
            raise error
        records, nbytes = retention.unexpired(core, topic)
        records += topic.staged_records
        nbytes += topic.staged_bytes
        if (config.cap_records and records + count > config.cap_records) or (
            config.cap_bytes and nbytes + size > config.cap_bytes
        ):
            earliest = retention.earliest_unexpired(core, topic)
            raise TopicFull(topic.name, config.cap_records, config.cap_bytes, topic.head, earliest)
    most = core.config.max_total_bytes
    if most and core.totals.bytes + core.staged_bytes + size > most:
        raise LimitReached("max_total_bytes", most)


def _stage(core: Core, topic: Topic, write: Write, done: Outcome, created: bool, now: int) -> None:
    prepared, config = write.prepared, core.config
    count, first = len(prepared.tags), topic.next_seq
    last = first + count - 1
    durability = topic.durability
    logged = core.is_logged(topic)
    ts = max(now, topic.last_ts)
    reservation, ceiling, prefix = topic.reservation, 0, b""
    durable = durability == "fsync"
    if logged and durability == "disk" and not reservation.covers(last):
        ceiling = reservation.next(last, now, config.reserve_min, config.reserve_max, config.reserve_span_ms)
        body = control.HeadWatermark(reserved=ceiling)
        prefix = control_frame(body, topic, ts, durable=True, more=True)
        durable = True
    dedupe = _dedupe_frame(topic, write, first, count, ts, durable) if logged else b""
    try:
        frames = frame.encode_appends(prepared.rows(), topic.id, first, ts, durable=durable, more=bool(dedupe))
    except ValueError as error:
        raise CallerError(str(error)) from error
    entries, offsets = _entries(prepared, ts)
    pending = _stage_name(core, topic, write, now)
    size = prepared.total
    generation = reservation.generation

    def publish(lsn: Lsn | None) -> None:
        unstage()
        if lsn is None:
            appended = Appended(first, entries, offsets, prepared.tags, size, ts, frames)
        else:
            assert core.wal is not None
            base = core.wal.location(lsn.group, lsn.file_no, lsn.offset + len(prefix))
            appended = Appended(first, entries, [base + at for at in offsets], prepared.tags, size, ts)
            core.recent.add(topic.id, first, frames, offsets)
        if ceiling:
            reservation.granted(ceiling, generation)
            core.reserved.add(topic.id)
        topic.apply(appended)
        topic.last_write_ms = core.clock.now_ms()
        retention.try_caps(core, topic)
        head = topic.head
        if pending is not None:
            table = core.keys if write.key is not None else core.producers
            table.publish(pending, first_seq=first, count=count, head_seq=head, ts=ts, logged=lsn is not None)
        core.wake(topic)
        done(AppendResult(first, last, head, count, created=created))

    def fail(error: TopicsError) -> None:
        unstage()
        if ceiling:
            reservation.refused(generation)
        if pending is not None:
            (core.keys if write.key is not None else core.producers).fail(pending)
        done(error)

    staged = True

    def unstage() -> None:
        nonlocal staged
        if not staged:
            return
        staged = False
        topic.staged_records -= count
        topic.staged_bytes -= size
        core.staged_bytes -= size

    ticket = Ticket(publish, fail, first)
    topic.next_seq, before_ts, topic.last_ts = last + 1, topic.last_ts, ts
    topic.staged_records += count
    topic.staged_bytes += size
    core.staged_bytes += size
    try:
        body_bytes = b"".join((prefix, frames, dedupe)) if logged else None
        core.stage(topic, body_bytes, count + bool(prefix) + bool(dedupe), ticket, durable=durable)
    except TopicsError as error:
        topic.next_seq, topic.last_ts = first, before_ts
        fail(error)
        return
    if logged and durability == "disk" and not ceiling:
        lifecycle.reserve_ahead(core, topic, last, now)


def _stage_name(core: Core, topic: Topic, write: Write, now: int) -> Pending | None:
    if write.key is not None and topic.config.idempotency_window_ms:
        return core.keys.stage(topic.id, write.key)
    if write.producer is not None:
        return core.producers.stage(topic.id, write.producer, now)
    return None


def _dedupe_frame(topic: Topic, write: Write, first: int, count: int, ts: int, durable: bool) -> bytes:
    """The Dedupe frame behind the Appends, if the write has a name that is kept [A-3, A-4, S-219]."""
    if write.key is not None and topic.config.idempotency_window_ms:
        body = control.Dedupe(first=first, count=count, key=write.key)
    elif write.producer is not None:
        named = write.producer
        body = control.Dedupe(first=first, count=count, producer=named.id, epoch=named.epoch, index=named.index)
    else:
        return b""
    return control_frame(body, topic, ts, durable=durable)


def _entries(prepared: Prepared, ts: int) -> tuple[bytes, list[int]]:
    """Index entries of the records and where their frames begin behind each other."""
    pack = _ENTRY.pack
    entries: list[bytes] = []
    offsets: list[int] = []
    at = 0
    for node, tag, envelope, accounted in zip(*prepared[:4], strict=True):
        flags = 0
        size = _DATA_FRAME_BYTES + len(envelope)
        if tag is not None:
            flags = HAS_TAG
            size += len(tag) if tag.isascii() else len(tag.encode())
        if node is not None:
            flags |= HAS_NODE
            size += len(node) if node.isascii() else len(node.encode())
        entries.append(pack(0, size, ts, flags | size - accounted << 8))
        offsets.append(at)
        at += size + (_WAL_FRAME_BYTES - _DATA_FRAME_BYTES)
    return b"".join(entries), offsets
