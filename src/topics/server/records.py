"""Handlers of records: write, read after a cursor, delete (02 §4, §5, §6). Event loop only.

A body is decoded in one call; payloads stay the bytes they came as (`msgspec.Raw`) and are checked and stored by
`engine.records.prepare`. Large bodies are taken in slices, one after another [P-10].
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.clock import Clock
from topics.codec import kernel
from topics.codec.project import Projection
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import read as reading
from topics.engine.append import Write
from topics.engine.core import Core
from topics.engine.records import NOTHING, ParsedRecord, Ready, Sole, check_key, prepare, prepare_in_steps
from topics.errors import EngineClosed, TopicsError
from topics.model import (
    PIPELINES,
    AppendResult,
    DeleteResult,
    Durability,
    Gap,
    Limits,
    Producer,
    ReadResult,
    check_not_system,
    check_u64,
    check_writable,
)
from topics.server import pieces, wire
from topics.server.describe import PRODUCER, SELECTOR, U32, U64, about
from topics.server.exchange import Exchange
from topics.server.failure import bad_request, forbidden
from topics.server.keys import ADMIN, Key
from topics.server.topics import members, name_of
from topics.storage.owner import SLICES

ASIDE_BYTES: Final = 1 << 20
CLOUDEVENT: Final = b"application/cloudevents+json"
CLOUDEVENTS: Final = b"application/cloudevents-batch+json"

T = TypeVar("T")
Seq = Annotated[int, about(bounds=U64)]


class WriteBody(msgspec.Struct):
    """`POST /v0/topics/{topic}`."""

    records: list[ParsedRecord]
    node: Annotated[str | None, about("origin of records that name none; `TOPICS_MAX_NODE_BYTES` at most")] = None
    idempotency_key: Annotated[
        str | None, about("of a retry, 256 bytes at most; instead of the header `Idempotency-Key`", {"minLength": 1})
    ] = None
    producer: Producer | None = None
    create: Annotated[bool | None, about("whether an absent topic is created; by default the server decides")] = None
    config: Annotated[
        dict[str, Raw] | None, about("configuration of the topic, used only if this write creates it")
    ] = None
    disable_backpressure: Annotated[bool, about("wait rather than be turned away under load")] = False


class Plain(msgspec.Struct, forbid_unknown_fields=True):
    """A write that is nothing but records."""

    records: list[ParsedRecord]


class Given(msgspec.Struct):
    """One record of a write."""

    data: Annotated[Any, about("payload, any JSON; its bytes are kept as sent, `TOPICS_MAX_RECORD_BYTES` at most")]
    tag: Annotated[str | None, about("what deletes select by; `TOPICS_MAX_TAG_BYTES` at most")] = None
    node: Annotated[str | None, about("origin; instead of the write's `node`")] = None
    meta: Annotated[
        dict[str, Any] | None, about("small headers; `TOPICS_MAX_META_BYTES` at most", {"maxProperties": 64})
    ] = None


class WriteRequest(WriteBody, kw_only=True):
    """`POST /v0/topics/{topic}`; the server decodes records into what keeps their text."""

    records: Annotated[  # type: ignore[assignment]
        list[Given], about("in this order; `TOPICS_MAX_BATCH_RECORDS` at most", {"minItems": 1})
    ]
    producer: Annotated[
        dict[str, Any] | None, about("place of the write among those of a long-lived writer", PRODUCER)
    ] = None  # type: ignore[assignment]


class Event(msgspec.Struct):
    """What is looked at of a CloudEvent."""

    id: str
    source: str
    specversion: str
    type: str
    subject: Annotated[str | None, about("becomes the record's tag")] = None


class DiffBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/diff`."""

    from_seq: Annotated[int | UnsetType, about("read behind this seq, 0 by default", U64)] = UNSET
    from_ts: Annotated[
        int | UnsetType, about("instead of `from_seq`: begin with the first record at or after this ms", U64)
    ] = UNSET
    limit: Annotated[int, about("records, 0 means 256; lowered to `TOPICS_MAX_LIMIT`", U32)] = 0
    node: Annotated[str | list[str] | None, about("leave out records of this node, or these 64 at most")] = None
    include_tags: Annotated[bool, about("whether records carry `$tag`")] = False
    include_meta: Annotated[bool, about("whether records carry `meta`")] = True
    wait_ms: Annotated[int, about("wait so long for the next record if there is none; 30000 at most", U32)] = 0
    max_batch_bytes: Annotated[int, about("bytes of records, 0 means 1 MiB; lowered to 8 MiB", U64)] = 0


class DeleteBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/delete`; at least one of the first three, `seqs` not with `before_seq`."""

    before_seq: Annotated[int | None, about("records below this seq", U64)] = None
    match: Annotated[
        str | Annotated[list[Any], about(bounds=SELECTOR)] | None,
        about('a tag, `prefix*`, `["tag","Eq",tag]` or `["tag","Glob","prefix*"]`'),
    ] = None
    seqs: Annotated[list[Seq] | None, about("these records; `TOPICS_MAX_CLAIM` at most")] = None
    dry_run: Annotated[bool, about("only count what would go")] = False


class WriteAnswer(msgspec.Struct):
    """What a write did."""

    topic: str
    first_seq: Annotated[int | None, about("null for an older write of a producer", U64)]
    last_seq: Annotated[int | None, about("null for an older write of a producer", U64)]
    head_seq: Annotated[int, about("highest seq after the write", U64)]
    count: Annotated[int, about("records of this write", U64)]
    created: Annotated[bool, about("whether it created the topic")]
    deduped: Annotated[bool, about("whether it was known already; nothing was appended then")]
    performance: wire.WritePerformance
    seqs: Annotated[list[Seq] | None, about("in the order of the records; left out with `return_seqs=false`")] = None


class RecordAnswer(msgspec.Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """A record as it is read."""

    seq: Annotated[int, about("place in the topic", U64)]
    ts: Annotated[int, about("when it was written, in ms", U64)]
    data: Annotated[Any, about("payload")]
    node: str | msgspec.UnsetType = msgspec.UNSET
    tag: str | msgspec.UnsetType = msgspec.UNSET
    meta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class DiffAnswer(msgspec.Struct):
    """Records behind a cursor."""

    topic: str
    records: list[RecordAnswer]
    next_from_seq: Annotated[int, about("`from_seq` of the next read", U64)]
    head_seq: Annotated[int, about("highest seq", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]
    caught_up: Annotated[bool, about("whether nothing more was there")]
    tombstone: Annotated[Gap | None, about("records that are gone without having been asked to go")]
    lag: Annotated[int, about("seqs between the cursor and the head", U64)]
    performance: wire.ReadPerformance


class DeleteAnswer(msgspec.Struct):
    """What a delete took away, and what is left."""

    topic: str
    deleted: Annotated[int, about("records that were live until then", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]
    head_seq: Annotated[int, about("highest seq", U64)]
    count: Annotated[int, about("live records", U64)]
    bytes: Annotated[int, about("live accounted bytes", U64)]
    performance: wire.Performance


_WRITE: Final = msgspec.json.Decoder(WriteBody)
_RECORDS: Final = msgspec.json.Decoder(Plain)
_PLAIN: Final = WriteBody([])
_OTHERS: Final = [(name.encode(), name) for name in WriteBody.__struct_fields__ if name not in ("records", "node")]
_JSON: Final = b"application/json"
_EVENT: Final = msgspec.json.Decoder(Event)
_EVENTS: Final = msgspec.json.Decoder(list[Raw])
_DIFF: Final = msgspec.json.Decoder(DiffBody)
_DELETE: Final = msgspec.json.Decoder(DeleteBody)


# -- write -----------------------------------------------------------------------------------------------------------


def write(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}` (02 §4)."""
    if exchange.size <= ASIDE_BYTES:
        _append(exchange, _prepared(exchange))
    elif kernel.native is None or _is_event(exchange):
        _write_in_steps(exchange)
    else:
        _write_scanned(exchange, kernel.native)


def _write_in_steps(exchange: Exchange) -> None:
    made(exchange, _prepared_in_steps(exchange), lambda: _prepared(exchange), partial(_append, exchange))


def _write_scanned(exchange: Exchange, native: kernel.Native) -> None:
    """A large body by the kernel, which needs neither the loop nor the interpreter for it."""
    limits = exchange.core.limits

    def then(found: kernel.Written | None) -> None:
        around = None if found is None else _around(found)
        if found is None or around is None:
            _write_in_steps(exchange)
            return
        write = _checked(exchange, around, found)
        let_go_of_body(exchange)
        _append(exchange, write)

    check_pools(exchange)
    exchange.aside(lambda: native.scan_chunks(exchange.chunks, limits), then)


def let_go_of_body(exchange: Exchange) -> None:
    """What it said is known: free a large body, a little at a time."""
    chunks = list(exchange.chunks)
    exchange.chunks.clear()
    appending.let_go(exchange.core, chunks)


def check_pools(exchange: Exchange) -> None:
    """Refuse a large body while others wait to be taken in."""
    load = exchange.core.load
    exchange.core.admission.check_pool(load.is_pool_full("decode") or load.is_pool_full(SLICES))


def made(
    exchange: Exchange, steps: Generator[None, None, T | None], at_once: Callable[[], T], then: Callable[[T], None]
) -> None:
    """Make something of a large body in slices, or aside where the slices came to nothing; then go on with it."""
    owner = exchange.core.owner
    check_pools(exchange)
    found: list[T] = []

    def in_pieces() -> Iterator[None]:
        one = yield from steps
        if one is not None:
            found.append(one)

    def aside() -> None:
        found.append(at_once())

    @exchange.answers
    def done(error: BaseException | None) -> None:
        if error is not None:
            exchange.fail(error)
        elif exchange.app.engine is None:
            exchange.fail(EngineClosed("the server has stopped"))
        elif found:
            then(found.pop())  # `done` refers to itself: what it keeps stays until the collector comes
        else:
            owner.aside("decode", aside, done)

    owner.sliced(in_pieces(), done)


def _prepared(exchange: Exchange) -> Write:
    """Everything about a write that needs no state but whether its topic exists [WR-1]."""
    scanned = _scanned(exchange)
    if scanned is not None:
        return scanned
    given = typed(name_of(exchange), _decoded(exchange))
    key, configures = _standing(exchange, given)
    return prepared(given, exchange.core.limits, key, configures=configures)


def _scanned(exchange: Exchange) -> Write | None:
    """The same by the kernel, of a body that is plainly right; None: it takes a closer look."""
    if kernel.native is None or _is_event(exchange):
        return None
    found = scanned(exchange.body, exchange.core.limits)
    return None if found is None else _checked(exchange, *found)


def _is_event(exchange: Exchange) -> bool:
    media = exchange.headers.get(b"content-type", b"")
    return media != _JSON and wire.media_type(media) in (CLOUDEVENT, CLOUDEVENTS)


def _checked(exchange: Exchange, body: WriteBody, ready: kernel.Written) -> Write:
    """A write whose records the kernel has scanned."""
    name, limits = name_of(exchange), exchange.core.limits
    if body is _PLAIN and b"idempotency-key" not in exchange.headers:
        # Nothing but records: what is left to check is the name.
        check_writable_by(exchange.key, name)
        return Write(name, ready, None, None, None, None)
    given = typed(name, body)
    key, configures = _standing(exchange, given)
    write = _named(given, limits, key, configures=configures, ready=ready)
    if key is not None:
        check_key(key, limits)
    return write


def scanned(raw: bytes, limits: Limits) -> tuple[WriteBody, kernel.Written] | None:
    """A body but for its records, and those, by the kernel; None for what is not plainly right. Any thread."""
    found = None if kernel.native is None else kernel.native.scan_write(raw, limits)
    around = None if found is None else _around(found)
    return None if found is None or around is None else (around, found)


def _around(found: kernel.Written) -> WriteBody | None:
    """Everything but the records; None for what is not plainly right."""
    if found.is_plain:
        return _PLAIN
    members = [b'"%b":%b' % (name, text) for name, member in _OTHERS if (text := getattr(found, member)) is not None]
    try:
        return _WRITE.decode(b'{"records":[],%b}' % b",".join(members))
    except (msgspec.MsgspecError, RecursionError):
        return None


def plain(raw: bytes, limits: Limits) -> Sole | None:
    """The records of a body that is nothing but records and is plainly right; None: it takes a closer look."""
    if not raw.isascii():
        return None
    if kernel.native is not None:
        found = kernel.native.scan_write(raw, limits)
        return found if found is not None and found.is_plain else None
    try:
        return prepare(_RECORDS.decode(raw).records, limits)
    except (msgspec.MsgspecError, RecursionError, TopicsError):
        return None


def decoded(raw: bytes) -> WriteBody:
    """A body of JSON; whatever is wrong with it is 400 [API-11]."""
    return wire.decode(_WRITE, raw)


def _prepared_in_steps(exchange: Exchange) -> Generator[None, None, Write | None]:
    """The same for a large body, step by step; None for what has to be decoded at once."""
    name, limits = name_of(exchange), exchange.core.limits
    if _is_event(exchange):
        return None
    found = yield from pieces.decoded(exchange.chunks)
    if found is None:
        return None
    try:
        body = _WRITE.decode(found.around)
    except (msgspec.MsgspecError, RecursionError):
        return None
    while exchange.chunks:
        exchange.chunks.pop()
        yield
    given = typed(name, body)
    key, configures = _standing(exchange, given)
    return (yield from prepared_in_steps(given, found.runs, limits, key, configures=configures))


def _standing(exchange: Exchange, given: Typed) -> tuple[str | None, bool]:
    """The idempotency key of a write, and whether it may configure its topic."""
    if given.body.producer is not None:
        Producer.parse(given.body.producer, exchange.core.limits)
    configures = _may_configure(exchange, given)
    key, header = given.body.idempotency_key, exchange.headers.get(b"idempotency-key")
    if key is None or header == b"":  # which is refused, whatever the body says [API-27]
        key = _header_key(header)
    return key, configures


class Typed(NamedTuple):
    """A write whose members have the right types [API-11]."""

    name: str
    body: WriteBody
    config: dict[str, Any] | None


def typed(name: str, body: WriteBody) -> Typed:
    """Look at the types that decoding left open; any thread."""
    config = None if body.config is None else members(body.config)
    if config is not None:
        appending.typed_config(config, name)
    if body.producer is not None:
        check_u64(body.producer.epoch, "producer.epoch")
        check_u64(body.producer.index, "producer.index")
    return Typed(name, body, config)


def prepared(given: Typed, limits: Limits, key: str | None, *, configures: bool) -> Write:
    """The write itself, however it came: checked and encoded; any thread."""
    write = _named(given, limits, key, configures=configures)
    body = given.body
    return write._replace(prepared=prepare(body.records, limits, body.node, key))


def prepared_in_steps(
    given: Typed, runs: pieces.Runs, limits: Limits, key: str | None, *, configures: bool
) -> Generator[None, None, Write]:
    """The same, step by step, of records that were decoded in pieces."""
    write = _named(given, limits, key, configures=configures)
    made = yield from prepare_in_steps(runs, limits, given.body.node, key)
    return write._replace(prepared=made)


def _named(given: Typed, limits: Limits, key: str | None, *, configures: bool, ready: Ready = NOTHING) -> Write:
    """A write but for its records, unless they are there already."""
    name, body, config = given
    create = body.create
    if config is not None and not configures:
        # The topic exists, so nothing is made of the configuration; should it go before its turn comes, this write
        # must not bring it back with another one.
        config, create = None, False
    return Write.named(name, limits, key, body.producer, create, config, body.disable_backpressure, ready)


def _decoded(exchange: Exchange) -> WriteBody:
    media = wire.media_type(exchange.headers.get(b"content-type", b""))
    if media in (CLOUDEVENT, CLOUDEVENTS):
        return _of_events(exchange.body, batch=media == CLOUDEVENTS)
    return decoded(exchange.body)


def _may_configure(exchange: Exchange, given: Typed) -> bool:
    """Whether a configuration may be used, should the topic be absent when its turn comes; 403 if it is absent now."""
    name = given.name
    check_writable_by(exchange.key, name)
    if exchange.key is None or ADMIN in exchange.key.scopes:
        return True
    if given.config is not None and name not in exchange.core.names:
        raise forbidden("creating a topic with a configuration needs the scope admin", {"topic": name})
    return False


def check_writable_by(key: Key | None, name: str) -> None:
    """What keeps a client from writing to a topic of the server [A-14]."""
    check_writable(name)
    if name == PIPELINES and key is not None and ADMIN not in key.scopes:
        raise forbidden("writing to this topic needs the scope admin", {"topic": name})


def _header_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise bad_request("Idempotency-Key is not valid UTF-8") from None


def _of_events(body: bytes, *, batch: bool) -> WriteBody:
    """CloudEvents in structured mode: each becomes a record as it was sent [API-9]."""
    texts = wire.decode(_EVENTS, body) if batch else [Raw(body)]
    events = [wire.decode(_EVENT, bytes(text)) for text in texts]
    records = [ParsedRecord(text, event.subject) for text, event in zip(texts, events, strict=True)]
    key = None if batch else f"{events[0].source} {events[0].id}"
    return WriteBody(records, idempotency_key=key)


def _append(exchange: Exchange, write: Write) -> None:
    # The engine is taken now: when the disk is slow and the client left, the app may have let go of it by the answer.
    core = exchange.core

    @exchange.answers
    def done(outcome: AppendResult | Exception, timing: bytes) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        seqs = not exchange.query or wire.flag(exchange.params(), "return_seqs", True)
        body = answer(write.name, outcome, wire.performance(exchange.elapsed_ms(), timing), seqs=seqs)
        exchange.reply(201 if outcome.created else 200, body)

    append(core, exchange.app.clock, write, done)
    if not core.admission.waiting:
        # It is staged, or about to be. While writes wait for room, a body counts until it is answered [RES-3].
        exchange.body_done()


def append(core: Core, clock: Clock, write: Write, done: Callable[[AppendResult | Exception, bytes], None]) -> None:
    """Stage a write; `done` is given the outcome and the log's part of the performance block."""
    began_ns = clock.monotonic_ns()
    staged_ns = 0

    def decided(outcome: AppendResult | Exception) -> None:
        if isinstance(outcome, Exception) or outcome.deduped:
            done(outcome, b"")
            return
        try:
            timing = counted(outcome)
        except Exception as error:  # noqa: BLE001 - whatever a request meets, it is answered
            done(error, b"")
        else:
            done(outcome, timing)

    def counted(result: AppendResult) -> bytes:
        now_ns = clock.monotonic_ns()
        durability = durability_of(core, write.name)
        if durability is not None:
            core.traffic.acked(durability, result.count, (now_ns - began_ns) / 1e6)
        return log_timing(durability, result.throttle_wait_ms, began_ns, staged_ns or now_ns, now_ns)

    appending.append(core, write, decided)
    staged_ns = clock.monotonic_ns()


def log_timing(
    durability: Durability | None, throttled_ms: float | None, began_ns: int, enqueued_ns: int, now_ns: int
) -> bytes:
    """The log's part of the performance block."""
    wait_ms = max((now_ns - enqueued_ns) / 1e6 - (throttled_ms or 0.0), 0.0) if durability == "fsync" else 0.0
    timing = b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % ((enqueued_ns - began_ns) / 1e6, wait_ms)
    return timing if throttled_ms is None else b'%b,"throttle_wait_ms":%.3f' % (timing, throttled_ms)


def durability_of(core: Core, name: str) -> Durability | None:
    """The class of a topic as it is now; None if it is gone."""
    topic = core.names.get(name)
    return None if topic is None else topic.config.durability


def answer(name: str, result: AppendResult, performance: bytes, *, seqs: bool) -> bytes:
    """The body of what a write answers."""
    first = result.first_seq
    if kernel.native is not None and first is not None and not (result.created or result.deduped):
        return kernel.native.answer_write(name, first, result.count, result.head_seq, seqs, performance)
    seqs_member = b'"seqs":%b,' % listed(result) if seqs else b""
    return b"{%b,%b}" % (told(name, result, seqs_member), performance)


def told(name: str, result: AppendResult, seqs: bytes) -> bytes:
    """The members of what a write answers [WR-3]; `seqs` is the member of that name, or nothing."""
    first, last = result.first_seq, result.last_seq
    return b'"topic":"%b","first_seq":%b,"last_seq":%b,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b' % (
        name.encode(),
        b"null" if first is None else b"%d" % first,
        b"null" if last is None else b"%d" % last,
        seqs,
        result.head_seq,
        result.count,
        b"true" if result.created else b"false",
        b"true" if result.deduped else b"false",
    )


def listed(result: AppendResult) -> bytes:
    """The seqs of a write as a JSON array; null for an older write of a producer."""
    first, last = result.first_seq, result.last_seq
    if first is None or last is None:
        return b"null"
    return b"[%d]" % first if first == last else b"[%b]" % ",".join(map(str, range(first, last + 1))).encode()


# -- diff ------------------------------------------------------------------------------------------------------------


def diff(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/diff` (02 §5)."""
    asked = wire.decode(_DIFF, exchange.body) if exchange.body else DiffBody()
    exchange.body_done()
    core, name = exchange.core, name_of(exchange)
    from_seq, from_ts = asked.from_seq, asked.from_ts
    if from_seq is not UNSET and from_ts is not UNSET:
        raise bad_request("a read begins at from_seq or at from_ts, not both")
    query = reading.Query.parse(
        name,
        0 if from_seq is UNSET else from_seq,
        None if from_ts is UNSET else from_ts,
        asked.limit, asked.max_batch_bytes, asked.node, asked.wait_ms, core.limits,
    )  # fmt: skip

    @exchange.answers
    def done(outcome: ReadResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            core.traffic.answered(reading.count_of(outcome))
            exchange.reply(200, _page(name, outcome, exchange.elapsed_ms()))

    waiting = reading.Waiting()
    reading.read(core, query, done, Projection(asked.include_tags, asked.include_meta), waiting)
    if query.wait_ms and not exchange.answered:
        exchange.cancel = waiting.end


def _page(name: str, result: ReadResult, total_ms: float) -> list[bytes]:
    """The body of what a read answers, in pieces: a page may be large [P-10]."""
    gap = result.tombstone
    behind = (
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,'
        b'"tombstone":%b,"lag":%d,"performance":{"server_total_ms":%.3f,"records_scanned":%d%b}}'
    ) % (
        result.next_from_seq,
        result.head_seq,
        result.earliest_seq,
        b"true" if result.caught_up else b"false",
        b"null" if gap is None else wire.encode(gap),
        result.lag,
        total_ms,
        result.scanned,
        b',"cold_segments_read":%d' % result.cold_segments_read if result.cold_segments_read else b"",
    )
    before = b'{"topic":"%b","records":[' % name.encode()
    if len(result.records) <= 1:
        return [before, *result.records, behind]  # type: ignore[list-item]
    return [before, b",".join(result.records), behind]  # type: ignore[arg-type]


# -- delete ----------------------------------------------------------------------------------------------------------


def delete(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/delete` (02 §6)."""
    asked = wire.decode(_DELETE, exchange.body)
    exchange.body_done()
    name = name_of(exchange)
    check_not_system(name)
    removal = deleting.Removal.parse(asked.before_seq, asked.match, asked.seqs, exchange.core.limits)

    @exchange.answers
    def done(outcome: DeleteResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"topic": name, **msgspec.structs.asdict(outcome)})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    deleting.delete(exchange.core, name, removal, asked.dry_run, done)
