"""Handlers of records: write, read after a cursor, delete (02 §4, §5, §6). Event loop only.

A body is decoded in one call; payloads stay the bytes they came as (`msgspec.Raw`) and are checked and stored by
`Write.prepare`. Large bodies are prepared aside, one after another [P-10].
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from topics.codec.project import Projection
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import read as reading
from topics.engine.append import Write
from topics.engine.records import ParsedRecord
from topics.model import AppendResult, DeleteResult, ReadResult, is_system_name
from topics.server import wire
from topics.server.exchange import Exchange
from topics.server.failure import bad_request, forbidden
from topics.server.keys import ADMIN
from topics.server.topics import name_of, not_of_the_server

ASIDE_BYTES: Final = 1 << 20


class WriteBody(msgspec.Struct):
    """`POST /v0/topics/{topic}`."""

    records: list[ParsedRecord]
    node: str | None = None
    idempotency_key: str | None = None
    producer: dict[str, Any] | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool = False


class Event(msgspec.Struct):
    """What is looked at of a CloudEvent."""

    id: str
    source: str
    specversion: str
    type: str
    subject: str | None = None


class DiffBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/diff`."""

    from_seq: int = 0
    from_ts: int | None = None
    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0


class DeleteBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/delete`."""

    before_seq: int | None = None
    match: str | list[Any] | None = None
    seqs: list[int] | None = None
    dry_run: bool = False


_WRITE: Final = msgspec.json.Decoder(WriteBody)
_EVENT: Final = msgspec.json.Decoder(Event)
_EVENTS: Final = msgspec.json.Decoder(list[Raw])
_DIFF: Final = msgspec.json.Decoder(DiffBody)
_DELETE: Final = msgspec.json.Decoder(DeleteBody)


# -- write -----------------------------------------------------------------------------------------------------------


def write(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}` (02 §4)."""
    if len(exchange.body) <= ASIDE_BYTES:
        _append(exchange, _prepared(exchange))
        return
    prepared: list[Write | Exception] = []

    def work() -> None:
        prepared.append(_prepared(exchange))

    def done(error: BaseException | None) -> None:
        if error is not None:
            exchange.fail(error)
        else:
            _append(exchange, prepared[0])  # type: ignore[arg-type]

    exchange.core.owner.aside("decode", work, done)


def _prepared(exchange: Exchange) -> Write:
    """Everything about a write that needs no state but whether its topic exists [WR-1]."""
    content_type = exchange.headers.get(b"content-type", b"")
    if b"cloudevents" in content_type.lower():
        body = _of_events(exchange.body, batch=b"batch" in content_type.lower())
    else:
        body = wire.decode(_WRITE, exchange.body)
    name = name_of(exchange)
    _check_rights(exchange, name, body)
    key = body.idempotency_key
    if key is None:
        key = _header_key(exchange.headers.get(b"idempotency-key"))
    write = Write.prepare(
        name, body.records, exchange.core.limits, node=body.node, idempotency_key=key, producer=body.producer,
        create=body.create, config=body.config,
    )  # fmt: skip
    if body.config is not None and not _may_configure(exchange):
        # The topic exists, so nothing is made of the configuration; should it go before its turn comes, this write
        # must not bring it back with one.
        return write._replace(config=None, create=False)
    return write


def _may_configure(exchange: Exchange) -> bool:
    return exchange.key is None or ADMIN in exchange.key.scopes


def _check_rights(exchange: Exchange, name: str, body: WriteBody) -> None:
    if body.config is not None and not _may_configure(exchange) and name not in exchange.core.names:
        raise forbidden("creating a topic with a configuration needs the scope admin", {"topic": name})
    if is_system_name(name):
        if name in ("$deletes", "$loss", "$pipelines"):
            raise forbidden("only the server writes to this topic", {"topic": name})
        raise bad_request("names beginning with $ belong to the server")


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
    exchange.body_done()
    clock = exchange.app.clock
    began_ns = clock.monotonic_ns()
    staged_ns = 0

    def done(outcome: AppendResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        now_ns = clock.monotonic_ns()
        body = _answer(exchange, write.name, outcome)
        if outcome.deduped:
            timing = b""
        else:
            enqueued_ns = staged_ns or now_ns
            topic = exchange.core.names.get(write.name)
            is_synced = topic is not None and topic.config.durability == "fsync"
            wait_ms = (now_ns - enqueued_ns) / 1e6 if is_synced else 0.0
            timing = b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % ((enqueued_ns - began_ns) / 1e6, wait_ms)
        total_ms = (now_ns - exchange.started_ns) / 1e6
        exchange.reply(201 if outcome.created else 200, wire.timed(body, total_ms, timing))

    appending.append(exchange.core, write, done)
    staged_ns = clock.monotonic_ns()


def _answer(exchange: Exchange, name: str, result: AppendResult) -> bytes:
    first, last = result.first_seq, result.last_seq
    seqs = b""
    if not exchange.query or wire.flag(exchange.params(), "return_seqs", True):
        seqs = b'"seqs":null,'
        if first is not None and last is not None:
            listed = b"%d" % first if first == last else ",".join(map(str, range(first, last + 1))).encode()
            seqs = b'"seqs":[%b],' % listed
    return b'{"topic":"%b","first_seq":%b,"last_seq":%b,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b}' % (
        name.encode(),
        b"null" if first is None else b"%d" % first,
        b"null" if last is None else b"%d" % last,
        seqs,
        result.head_seq,
        result.count,
        b"true" if result.created else b"false",
        b"true" if result.deduped else b"false",
    )


# -- diff ------------------------------------------------------------------------------------------------------------


def diff(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/diff` (02 §5)."""
    asked = wire.decode(_DIFF, exchange.body) if exchange.body else DiffBody()
    exchange.body_done()
    core, name = exchange.core, name_of(exchange)
    query = reading.Query.parse(
        name, asked.from_seq, asked.from_ts, asked.limit, asked.max_batch_bytes, asked.node, asked.wait_ms, core.limits
    )

    def done(outcome: ReadResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            exchange.reply(200, _page(name, outcome, exchange.elapsed_ms()))

    waiting = reading.Waiting()
    reading.read(core, query, done, Projection(asked.include_tags, asked.include_meta), waiting)
    if query.wait_ms and not exchange.answered:
        exchange.cancel = waiting.end


def _page(name: str, result: ReadResult, total_ms: float) -> bytes:
    gap = result.tombstone
    return (
        b'{"topic":"%b","records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,'
        b'"tombstone":%b,"lag":%d,"performance":{"server_total_ms":%.3f,"records_scanned":%d}}'
    ) % (
        name.encode(),
        b",".join(result.records),  # type: ignore[arg-type]
        result.next_from_seq,
        result.head_seq,
        result.earliest_seq,
        b"true" if result.caught_up else b"false",
        b"null" if gap is None else wire.encode(gap),
        result.lag,
        total_ms,
        result.scanned,
    )


# -- delete ----------------------------------------------------------------------------------------------------------


def delete(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/delete` (02 §6)."""
    asked = wire.decode(_DELETE, exchange.body)
    exchange.body_done()
    name = name_of(exchange)
    not_of_the_server(name)
    removal = deleting.Removal.parse(asked.before_seq, asked.match, asked.seqs, exchange.core.limits)

    def done(outcome: DeleteResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"topic": name, **msgspec.structs.asdict(outcome)})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    deleting.delete(exchange.core, name, removal, asked.dry_run, done)
