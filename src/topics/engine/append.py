"""Writing: decide, stage, publish (06 §7.1, 01 §9, §15).

    absent topic     create it first, durably; the write follows as a write to an existing topic [NAME-5]
    known write      answered from its entry; one that is still undecided is waited for [IDM-2, IDM-3]
    admission        caps of a topic that rejects, then the quota; nothing was assigned yet [CAP-3, RES-5]
    room             a full shard keeps it waiting in the topic's line, or it is refused (08 §6)
    framing          a large write in slices, piece by piece; its pieces are never put together [P-10, S-72]
    staging          seqs, `ts`, frames, one submission, one ticket: one stretch, so WAL order is seq order [S-105]

Owner only, but for `Write.prepare`, which is the caller's.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import msgspec

from topics.codec import control, offsets
from topics.codec.frame import DURABLE
from topics.engine import forward, lifecycle, retention
from topics.engine.admission import Turn
from topics.engine.core import Core, Outcome, control_frame, guarded, unexpected
from topics.engine.dedupe import Entry, IdempotencyKeys, Pending, Producers, Verdict
from topics.engine.recent import TOPIC_RECORDS_MAX
from topics.engine.records import NOTHING, STEP_BYTES, STEP_RECORDS, Given, Prepared, Ready, prepare, steps
from topics.engine.router import Carried, Edge
from topics.engine.topic import Appended, Lsn, Ticket, Topic
from topics.errors import (
    CallerError,
    CommitFailed,
    EngineClosed,
    LimitReached,
    RecordTooLarge,
    TopicFull,
    TopicNotFound,
    TopicsError,
    WalFull,
    WalIo,
)
from topics.model import PIPELINES, AppendResult, Limits, Producer, TopicConfig, check_writable
from topics.storage.shard import Frames, frames_bytes

log = logging.getLogger("topics.engine")

_FREED_ITEMS: Final = 4
_PIECE_RECORDS, _PIECE_BYTES = 1024, 256 << 10
"""Of what the kernel frames aside."""
_APART_BYTES: Final = 2048
"""Writes of more bytes than that on average stay apart in memory: copying them costs more than their places."""


class Write(NamedTuple):
    """One write, checked and encoded."""

    name: str
    prepared: Ready
    key: str | None
    producer: Producer | None
    create: bool | None
    config: TopicConfig | None
    fault: CallerError | None = None
    """What is wrong with the configuration's values; told where it would be used [WR-1, WR-6]."""
    disable_backpressure: bool = False
    """Wait long for room in the log, rather than be refused (08 §6)."""
    turn: Turn | None = None
    """Since when it waits for that, once it does."""
    own: bool = False
    """The server's own write to a topic of its own: no quota keeps it out."""
    control: bool = False
    """Accepted while there is no space, as control frames are [A-20]."""

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
        disable_backpressure: bool = False,
    ) -> Write:
        """Check everything that needs no state; any thread."""
        write = cls.named(name, limits, idempotency_key, producer, create, config, disable_backpressure)
        return write._replace(prepared=prepare(records, limits, node, idempotency_key))

    @classmethod
    def named(
        cls,
        name: str,
        limits: Limits,
        idempotency_key: str | None,
        producer: Producer | Mapping[str, object] | None,
        create: bool | None,
        config: TopicConfig | Mapping[str, object] | None,
        disable_backpressure: bool,
        prepared: Ready = NOTHING,
    ) -> Write:
        """Everything of it but its records, checked."""
        check_writable(name)
        if create is not None and not isinstance(create, bool):
            raise CallerError("create must be true or false")
        if idempotency_key is not None and producer is not None:
            raise CallerError("a write has an idempotency_key or a producer, not both")
        named = None if producer is None else Producer.parse(producer, limits)
        parsed, fault = (None, None) if config is None else typed_config(config, name)
        if name == PIPELINES:
            parsed = fault = None  # its configuration is nobody's business
        return cls(name, prepared, idempotency_key, named, create, parsed, fault, disable_backpressure)

    @property
    def writes(self) -> int:
        """How many it is: more than one where several were gathered."""
        return self.prepared.writes

    @property
    def creates(self) -> bool:
        """Whether it may create an absent topic (01 §2.1)."""
        if self.create is not None:
            return self.create
        return self.config is None or self.config.auto_create


def typed_config(config: TopicConfig | Mapping[str, object], name: str) -> tuple[TopicConfig, CallerError | None]:
    """A configuration whose types are right, and what is wrong with the topic it names for dead letters, if anything.

    A write to a topic that exists ignores its configuration, but for the types [WR-6].
    """
    try:
        return TopicConfig.parse(config, name), None
    except CallerError as error:
        if isinstance(config, TopicConfig):
            return msgspec.structs.replace(config, dead_letter=None), error
        if not isinstance(config, Mapping) or not isinstance(config.get("dead_letter"), str):
            raise
        fault = error
    return TopicConfig.parse({**config, "dead_letter": None}), fault


def is_last_staged(core: Core, write: Write) -> bool:
    """Whether a write that was just given to `append` is staged: it waits for nothing but its commit."""
    topic = core.names.get(write.name)
    last = topic.tickets[-1] if topic is not None and topic.tickets else None
    return isinstance(last, Staged) and last.write is write


def append(core: Core, write: Write, done: Outcome, *, created: bool = False) -> None:
    """Append, and answer with an `AppendResult` once it is visible [DUR-1]."""
    if core.closing and not write.own:
        done(EngineClosed("the engine is closing"))
        return
    gate = core.gates.get(write.name)
    if gate is not None:
        gate.append(lambda: guarded(lambda: append(core, write, done, created=created), done))
        return
    topic = core.names.get(write.name)
    if topic is not None:
        if topic.line or topic.framing:
            _append_in_line(core, topic, write, done, created)
        else:
            _append(core, topic, write, done, created)
    elif write.creates:
        _create(core, write, done)
    else:
        done(TopicNotFound(write.name))


def _append_in_line(core: Core, topic: Topic, write: Write, done: Outcome, created: bool) -> None:
    """Behind what is in front of it; if that waits for room, it begins to wait for it too."""
    if core.admission.waiting and write.turn is None and _must_wait(core, topic, write):
        turn = core.admission.turn(write.disable_backpressure, write.writes)
        if turn is None:
            done(core.admission.refusal())
            return
        write = write._replace(turn=turn)

    def refused(outcome: object) -> None:
        if isinstance(outcome, TopicNotFound) and topic.removed:
            append(core, write, done)  # it went meanwhile: whether it is made anew is the write's to say [NAME-5]
        else:
            done(outcome)

    core.in_line(topic, lambda: _append(core, topic, write, done, created), refused)


def _create(core: Core, write: Write, done: Outcome) -> None:
    def made(outcome: object) -> None:
        if isinstance(outcome, WalFull):
            _wait_to_create(core, write, done, outcome)
        elif isinstance(outcome, Exception):
            done(outcome)
        else:
            append(core, write, done, created=True)

    def create() -> None:
        if write.fault is not None:
            raise write.fault
        lifecycle.create(core, write.name, write.config or TopicConfig(), made)

    guarded(create, made)


def _wait_to_create(core: Core, write: Write, done: Outcome, why: WalFull) -> None:
    """The shard of the topic that was to be created has no room."""
    turn = write.turn or core.admission.turn(write.disable_backpressure, write.writes)
    if turn is None:
        done(why)
        return
    write = write._replace(turn=turn)
    shard = core.shard(core.next_topic_id)
    core.admission.wait(shard, turn, 0, lambda: append(core, write, done), done)


def _append(core: Core, topic: Topic, write: Write, done: Outcome, created: bool) -> None:
    """At its turn in the topic's line."""
    try:
        retention.catch_up(core, topic)
        now = core.clock.now_ms()
        if write.key is None and write.producer is None:
            known = None
        else:
            known = _known(core, topic, write, now)
        if known is None:
            if not write.own:
                _admit(core, topic, write)
            if core.admission.waiting and _must_wait(core, topic, write):
                _wait_for_room(core, topic, write, done, created, write.prepared.total, core.admission.refusal())
            else:
                _stage(core, topic, write, done, created, now)
        elif isinstance(known, Pending):
            known.wait(partial(_decided, core, topic, write, done, created))
        else:
            done(known)
    except TopicsError as error:
        done(error)
    except OSError as error:
        done(WalIo(error))


def _decided(core: Core, topic: Topic, write: Write, done: Outcome, created: bool, entry: Entry | None) -> None:
    """The write of the same name that was under way is known, or failed: then it is this one's turn."""
    if entry is None:
        core.owner.soon(lambda: append(core, write, done, created=created))
    else:
        done(_again(entry, topic))


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
    count, size = write.prepared.records, write.prepared.total
    check_caps(core, topic, count, size)
    check_total(core, (topic,), size)


def check_size(name: str, config: TopicConfig, count: int, size: int) -> None:
    """Refuse what a topic of this configuration could never hold [CAP-4]."""
    if config.discard == "reject" and (
        (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes)
    ):
        error = RecordTooLarge(size, config.cap_bytes)
        error.args = (f"{count} records of {size} bytes can never fit topic {name!r}",)
        raise error


def check_caps(core: Core, topic: Topic, count: int, size: int) -> None:
    """Refuse what a topic that rejects has no room for [CAP-3]."""
    config = topic.config
    if config.discard == "reject" and (config.cap_records or config.cap_bytes):
        check_size(topic.name, config, count, size)
        records, nbytes = retention.unexpired(core, topic)
        records += topic.staged_records
        nbytes += topic.staged_bytes
        if (config.cap_records and records + count > config.cap_records) or (
            config.cap_bytes and nbytes + size > config.cap_bytes
        ):
            earliest = retention.earliest_unexpired(core, topic)
            raise TopicFull(topic.name, config.cap_records, config.cap_bytes, topic.head, earliest)


def check_total(core: Core, topics: Collection[Topic], size: int) -> None:
    """Refuse what the quota has no room for [RES-5]."""
    most = core.config.max_total_bytes
    over = core.quota_bytes() + size - most if most else 0
    if over <= 0:
        return
    # What has expired is free, though it may not be logged yet: there [WR-1], and elsewhere.
    for topic in topics:
        over -= topic.bytes - retention.unexpired(core, topic)[1]
    if over > 0 and over > retention.expired_elsewhere(core, topics, over):
        raise LimitReached("max_total_bytes", most)


def _must_wait(core: Core, topic: Topic, write: Write) -> bool:
    """Whether others wait for room in its shard, and it was not called yet."""
    if not core.is_logged(topic) or (write.turn is not None and write.turn.called):
        return False
    return core.admission.is_waited_for(core.shard(topic.id))


def _wait_for_room(
    core: Core, topic: Topic, write: Write, done: Outcome, created: bool, size: int, why: WalFull
) -> None:
    """Wait for room in the shard, with the topic's line behind it, or be refused (08 §6)."""
    turn = write.turn or core.admission.turn(write.disable_backpressure, write.writes)
    if turn is None:
        done(why)
        return
    write = write._replace(turn=turn)
    topic.framing = True

    def go() -> None:
        topic.framing = False
        if topic.removed or topic.name in core.gates or core.closing:
            append(core, write, done, created=created)
        else:
            _append(core, topic, write, done, created)
        advance()

    def refuse(error: TopicsError) -> None:
        topic.framing = False
        done(error)
        advance()

    def advance() -> None:
        if topic.line and not topic.framing:
            core.owner.soon(lambda: core.advance(topic))

    core.admission.wait(core.shard(topic.id), turn, size, go, refuse)


def _stage(core: Core, topic: Topic, write: Write, done: Outcome, created: bool, now: int) -> None:
    prepared = write.prepared
    count, first = prepared.records, topic.next_seq
    last = first + count - 1
    durability = topic.durability
    logged = core.is_logged(topic)
    ts = max(now, topic.last_ts)
    ticket = Staged(core, topic, write, done, created, first, ts)
    prefix, durable = b"", durability == "fsync"
    if logged and durability == "disk" and not topic.reservation.covers(last):
        prefix = ticket.reserve(last, now)
        durable = True
    behind = _dedupe_frame(topic, write, first, count, ts, durable) if logged else b""
    frames = bool(prefix) + bool(behind)
    edge = core.routers.feeding.get(topic.id) if core.routers.feeding else None
    if edge is not None and logged:
        carried = ticket.take_along(edge, durable)
        if carried is not None:
            prefix += carried.frames
            frames += carried.frame_count
        behind = edge.mark(last, ts, durable=durable, more=bool(behind)) + behind
        frames += 1
    chain = _Chain(prefix, behind, frames, durable, logged, now)
    if core.frames_aside_bytes is None or prepared.total < core.frames_aside_bytes:
        ticket.frame(chain)
        _submit(core, ticket, chain)
    else:
        _frame_large(core, ticket, chain)


class _Chain(msgspec.Struct, frozen=True):
    """What a submission is besides the frames of its records."""

    prefix: bytes
    """Frame of a higher ceiling, and copies that were in memory only [S-212 c]."""
    behind: bytes
    """How far routers are, and the write's name."""
    frame_count: int
    """In both."""
    durable: bool
    logged: bool
    now: int


def _frame_large(core: Core, ticket: Staged, chain: _Chain) -> None:
    """Frame a large write in slices; until it is staged, what comes behind it in the topic waits [A-1, P-10]."""
    topic = ticket.topic
    total = 0 if ticket.write.own else ticket.prepared.total
    topic.framing = True
    core.staged_bytes += total

    def framed(error: BaseException | None) -> None:
        topic.framing = False
        core.staged_bytes -= total
        if topic.line:
            core.owner.soon(lambda: core.advance(topic))
        if error is not None:
            ticket.fail(error if isinstance(error, TopicsError) else CommitFailed(f"framing: {error!r}"))
        elif topic.next_seq != ticket.seq_before or topic.removed or topic.name in core.gates or core.closing:
            # A write in front of it failed, or the topic went: its seqs are not what they were.
            ticket.retry()
        else:
            _submit(core, ticket, chain)

    if chain.logged and isinstance(ticket.prepared, Prepared):
        core.owner.sliced(ticket.frame_in_steps(chain), framed)
    elif chain.logged:
        # The kernel needs the interpreter no more than the disk does.
        core.owner.aside("frames", lambda: ticket.frame_in_pieces(chain), framed)
    else:
        # The index of a topic in memory wants its frames in one piece.
        core.owner.aside("frames", lambda: ticket.frame(chain), framed)


def _submit(core: Core, ticket: Staged, chain: _Chain) -> None:
    """Take the seqs and put the frames in the log, in one stretch [S-105]."""
    topic, write = ticket.topic, ticket.write
    prefix, behind, durable, logged = chain.prefix, chain.behind, chain.durable, chain.logged
    first, count = ticket.seq_before, ticket.count
    last = first + count - 1
    try:
        ticket.pending = _stage_name(core, topic, write, chain.now)
    except TopicsError as error:  # others have come in front while its frames were made
        ticket.fail(error)
        return
    before_ts = topic.last_ts
    topic.next_seq, topic.last_ts = last + 1, ticket.ts
    ticket.count_staged()
    body: Frames | None = None
    if ticket.pieces:
        body = [part for part in (prefix, *(piece.frames for piece in ticket.pieces), behind) if part]
    elif logged:
        body = b"".join((prefix, ticket.frames, behind)) if prefix or behind else ticket.frames
    ticket.prefix_bytes = len(prefix)
    if ticket.edge is not None:
        ticket.edge.logged_seq = last
    try:
        core.stage(topic, body, count + chain.frame_count, ticket, durable=durable, control=write.control)
    except WalFull as error:
        topic.next_seq, topic.last_ts = first, before_ts
        ticket.wait(0 if body is None else frames_bytes(body), error)
        return
    except TopicsError as error:
        topic.next_seq, topic.last_ts = first, before_ts
        ticket.fail(error)
        return
    if write.turn is not None:
        write.turn.waited_ms = (core.clock.monotonic_ns() - write.turn.since_ns) / 1e6
    ticket.let_go_of_envelopes()
    if logged and topic.durability == "disk" and not ticket.reserves:
        lifecycle.reserve_ahead(core, topic, last, chain.now)


def let_go(core: Core, items: list[Any]) -> None:
    """Free what a large write needs no more, a little at a time: all at once takes milliseconds."""

    def steps() -> Iterator[None]:
        while items:
            del items[-_FREED_ITEMS:]
            yield

    core.owner.sliced(steps(), core.note_failure("freeing a write"))


class _Piece(NamedTuple):
    """Some of the records of a large write, framed."""

    frames: bytes
    offsets: bytes
    """Of each record's frame in `frames` (codec.offsets)."""
    entries: bytes


class Staged(Ticket):
    """The ticket of a write."""

    __slots__ = (
        "_carried", "_ceiling", "_core", "_created", "_done", "_generation", "_keyed", "_logged_seq", "_staged",
        "count", "edge", "entries", "frames", "offsets", "pending", "pieces", "prefix_bytes", "prepared", "topic",
        "total", "ts", "write",
    )  # fmt: skip

    def __init__(
        self, core: Core, topic: Topic, write: Write, done: Outcome, created: bool, first: int, ts: int
    ) -> None:
        self.seq_before = first
        self.lsn = False
        self.settled = False
        self.frames = b""
        self.offsets = b""
        """Of each record's frame in `frames` (codec.offsets)."""
        self.entries = b""
        """What the index keeps of them."""
        self.pieces: list[_Piece] = []
        """Instead of all these, of a large write."""
        self.pending: Pending | None = None
        """Of its idempotency key or producer."""
        self._core = core
        self.topic = topic
        self.write = write
        self._done = done
        self._created = created
        self.prepared = write.prepared
        self.count = write.prepared.records
        self.total = write.prepared.total
        """Accounted bytes of its records."""
        self.ts = ts
        self.prefix_bytes = 0
        """Of the frames in front of its records."""
        self._ceiling = self._generation = 0
        self._staged = False
        self.edge: Edge | None = None
        """What feeds the topic, if it is a router's destination."""
        self._carried: Carried | None = None
        self._keyed: list[tuple[int, bytes]] = []
        """Records that say to be copies, by seq."""
        self._logged_seq = 0

    def frame(self, chain: _Chain) -> None:
        """Encode its records; any thread."""
        flags = DURABLE if chain.durable else 0
        try:
            self.frames, self.offsets, self.entries = self.prepared.framed(
                self.topic.id, self.seq_before, self.ts, flags, bool(chain.behind)
            )
        except ValueError as error:
            raise CallerError(str(error)) from error

    def frame_in_pieces(self, chain: _Chain) -> None:
        """Encode its records by the kernel, in pieces of a size that is given back quickly; any thread."""
        for _ in self.frame_in_steps(chain, _PIECE_RECORDS, _PIECE_BYTES):
            pass

    def frame_in_steps(
        self, chain: _Chain, step_records: int = STEP_RECORDS, step_bytes: int = STEP_BYTES
    ) -> Iterator[None]:
        """Encode its records piece by piece."""
        topic_id, first, count = self.topic.id, self.seq_before, self.count
        flags = DURABLE if chain.durable else 0
        for begin, end in steps(self.prepared.accounted, step_records, step_bytes):
            more = end != count or bool(chain.behind)
            try:
                piece = self.prepared.framed(topic_id, first + begin, self.ts, flags, more, begin, end)
            except ValueError as error:
                raise CallerError(str(error)) from error
            self.pieces.append(_Piece(*piece))
            yield

    def let_go_of_envelopes(self) -> None:
        """Of a large write: they are in its frames."""
        if self.pieces and isinstance(self.prepared, Prepared):
            let_go(self._core, self.prepared.envelopes)

    def retry(self) -> None:
        """Decide about the write anew: nothing of it was staged."""
        if self._ceiling:
            self.topic.reservation.refused(self._generation)
        append(self._core, self.write, self._done, created=self._created)

    def count_staged(self) -> None:
        """Its records are on their way."""
        self._staged = True
        self.topic.staged_records += self.count
        self.topic.staged_bytes += self.total
        self._core.staged_bytes += self.total

    def reserve(self, last: int, now: int) -> bytes:
        """The frame of a higher ceiling, to be logged in front of the records [A-2]."""
        config, reservation = self._core.config, self.topic.reservation
        self._ceiling = reservation.next(last, now, config.reserve_min, config.reserve_max, config.reserve_span_ms)
        self._generation = reservation.generation
        body = control.HeadWatermark(reserved=self._ceiling)
        return control_frame(body, self.topic, self.ts, durable=True, more=True)

    @property
    def reserves(self) -> bool:
        """Whether it asks for a higher ceiling."""
        return self._ceiling > 0

    def take_along(self, edge: Edge, durable: bool) -> Carried | None:
        """The copies that are in memory only and have to be logged in front of it [S-212 c]."""
        self.edge, self._logged_seq = edge, edge.logged_seq
        self._carried = edge.carry(durable=durable)
        self._keyed = forward.keyed(edge, self.seq_before, self.envelopes())
        return self._carried

    def envelopes(self) -> Iterable[bytes]:
        """Of its records, as they are stored."""
        return self.prepared.envelopes

    def joined(self, line: Sequence[Ticket]) -> int:
        """Logged appends in a row become visible together."""
        count = 1
        if isinstance(self.lsn, Lsn) and not self.pieces:
            while count < len(line) and _joins(line[count]):
                count += 1
        return count

    def publish(self, run: Sequence[Ticket]) -> None:
        staged = cast("Sequence[Staged]", run)
        core, topic = self._core, self.topic
        for one in staged:
            one._unstage()
        self._apply(staged)
        for one in staged:
            if one.edge is not None:
                one._carry_through(one.edge)
        topic.last_write_ms = core.clock.now_ms()
        retention.try_caps(core, topic)
        head = topic.head
        for one in staged:
            one._published(head)
        try:
            core.wake(topic)
        except Exception:  # they are published and told: none of them is to be told again
            log.exception("waking who follows topic %r", topic.name)

    def _apply(self, staged: Sequence[Staged]) -> None:
        topic = self.topic
        topic.apply(self._appended_in_pieces() if self.pieces else _appended(self._core, topic, staged))

    def _appended_in_pieces(self) -> Appended:
        """As `_appended`, of a large write."""
        core, topic_id, seq, lsn = self._core, self.topic.id, self.seq_before, self.lsn
        assert core.wal is not None
        assert isinstance(lsn, Lsn)
        at = core.wal.location(lsn.group, lsn.file_no, lsn.offset + self.prefix_bytes)
        places: list[tuple[int, bytes]] = []
        entries: list[bytes] = []
        end = seq + self.count
        for piece in self.pieces:
            places.append((at, piece.offsets))
            entries.append(piece.entries)
            if end - seq <= TOPIC_RECORDS_MAX:
                # Those in front would be let go of at once.
                core.recent.add(topic_id, seq, piece.frames, piece.offsets)
            seq += len(piece.offsets) // offsets.SIZE
            at += len(piece.frames)
        let_go(core, self.pieces)
        located = array("Q", offsets.shifted(places))
        return Appended(self.seq_before, b"".join(entries), located, self.tags(), self.total, self.ts)

    def tags(self) -> Sequence[str | None]:
        """Of its records; none if no record has one."""
        return self.prepared.tags if self.prepared.has_tags else ()

    def place(self) -> int:
        """Of its first record in the log."""
        lsn = self.lsn
        assert self._core.wal is not None
        assert isinstance(lsn, Lsn)
        return self._core.wal.location(lsn.group, lsn.file_no, lsn.offset + self.prefix_bytes)

    def _carry_through(self, edge: Edge) -> None:
        """What it took along is in the log now; and it may have brought keys of copies."""
        index = self.topic.index
        if self._carried is not None and isinstance(self.lsn, Lsn):
            assert self._core.wal is not None
            lsn = self.lsn
            began = lsn.offset + self.prefix_bytes - len(self._carried.frames)
            places = self._carried.located(self._core.wal.location(lsn.group, lsn.file_no, began))
            index.tail.relocate(places)
            index.forget_derived(self._carried.last)
        self._core.routers.moved.add(edge)
        forward.note_keys(edge, self._keyed)

    def _published(self, head: int) -> None:
        core, first, count = self._core, self.seq_before, self.count
        try:
            if self._ceiling:
                self.topic.reservation.granted(self._ceiling, self._generation)
                core.reserved.add(self.topic.id)
            if self.pending is not None:
                self._table().publish(
                    self.pending, first_seq=first, count=count, head_seq=head, ts=self.ts, logged=self.lsn is not True
                )
            turn = self.write.turn
            waited_ms = None if turn is None else turn.waited_ms
            told = AppendResult(first, first + count - 1, head, count, self._created, throttle_wait_ms=waited_ms)
        except Exception as error:  # those in front of it were told, and those behind it are published as well
            log.exception("publishing a write to topic %r", self.topic.name)
            self._fail_late(error)
            return
        try:
            self._done(told)
        except Exception as error:  # it is published: what one caller does with the answer is no other's trouble
            log.exception("answering a write to topic %r", self.topic.name)
            self._tell_again(error)

    def _fail_late(self, error: Exception) -> None:
        """Its records are visible and stay so, but not all that belongs to them is done: nobody was told yet."""
        try:
            if self.pending is not None:
                self._table().fail(self.pending)  # whoever repeats the write waits for that
        except Exception:
            log.exception("forgetting the name of a write to topic %r", self.topic.name)
        self._tell_again(error)

    def _tell_again(self, error: Exception) -> None:
        """Whoever waits may not have been told: that something went wrong is true, and better than nothing."""
        try:
            self._done(unexpected(error))
        except Exception:
            log.exception("answering a write to topic %r again", self.topic.name)

    def fail(self, error: TopicsError) -> None:
        try:
            self.let_go_of_envelopes()
            self._withdraw()
        finally:
            self._done(error)

    def wait(self, size: int, why: WalFull) -> None:
        """Its shard has no room for so many bytes: nothing of it was staged."""
        self._withdraw()
        _wait_for_room(self._core, self.topic, self.write, self._done, self._created, size, why)

    def _withdraw(self) -> None:
        self._unstage()
        if self.edge is not None:
            self.edge.logged_seq = min(self.edge.logged_seq, self._logged_seq)
        if self._ceiling:
            self.topic.reservation.refused(self._generation)
        if self.pending is not None:
            self._table().fail(self.pending)
        if self.pieces:
            let_go(self._core, self.pieces)

    def _table(self) -> IdempotencyKeys | Producers:
        return self._core.keys if self.write.key is not None else self._core.producers

    def _unstage(self) -> None:
        """Once, whether it is published, failed, or fails while it is published."""
        if self._staged:
            self._staged = False
            self.topic.staged_records -= self.count
            self.topic.staged_bytes -= self.total
            self._core.staged_bytes -= self.total


def _joins(ticket: Ticket) -> bool:
    return type(ticket) is Staged and isinstance(ticket.lsn, Lsn) and not ticket.pieces


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


def _appended(core: Core, topic: Topic, staged: Sequence[Staged]) -> Appended:
    """What the index keeps of writes in a row; their frames become the newest in memory."""
    one, ts = staged[0], staged[-1].ts
    if not isinstance(one.lsn, Lsn):
        begins = array("Q", one.offsets)
        return Appended(one.seq_before, one.entries, begins, one.tags(), one.total, ts, one.frames)
    places = array("Q", offsets.shifted([(one.place(), one.offsets) for one in staged]))
    _remember(core, topic, staged)
    if len(staged) == 1:
        return Appended(one.seq_before, one.entries, places, one.tags(), one.total, ts)
    tags: Sequence[str | None] = ()
    if any(one.prepared.has_tags for one in staged):
        tags = [tag for one in staged for tag in one.prepared.tags]
    entries = b"".join([one.entries for one in staged])
    return Appended(one.seq_before, entries, places, tags, sum([one.total for one in staged]), ts)


def _remember(core: Core, topic: Topic, staged: Sequence[Staged]) -> None:
    """Keep the frames of writes in a row: small ones put together, so that a place in memory holds many."""
    if len(staged) == 1 or sum([len(one.frames) for one in staged]) > _APART_BYTES * len(staged):
        for one in staged:
            core.recent.add(topic.id, one.seq_before, one.frames, one.offsets)
        return
    parts: list[tuple[int, bytes]] = []
    at = 0
    for one in staged:
        parts.append((at, one.offsets))
        at += len(one.frames)
    core.recent.add(topic.id, staged[0].seq_before, b"".join([one.frames for one in staged]), offsets.shifted(parts))
