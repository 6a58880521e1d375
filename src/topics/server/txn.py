"""Handlers of staged writes: stage, commit, abort, state of a writer (02 §9). Event loop only.

A chunk comes as JSON, like a write, or as frames that the client made (`application/vnd.topics.frames`), which a bulk
loader needs and which take the scope admin. Either way its records meet every check of a write; large ones are taken
in slices [P-10].
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Raw

from topics.codec import envelope, kernel
from topics.codec import part as codec
from topics.codec.frame import NotAFrame
from topics.engine import txn
from topics.engine.records import ParsedRecord, Prepared, prepare, prepare_in_steps
from topics.engine.txn import Commit, Place, Stage
from topics.errors import BatchTooLarge, CallerError
from topics.model import AbortResult, CommitResult, CommittedTopic, Limits, NewRecord, StageResult
from topics.server import pieces, wire
from topics.server.describe import U32, U64, about
from topics.server.exchange import Exchange
from topics.server.failure import Refused, bad_request, forbidden
from topics.server.keys import ADMIN
from topics.server.records import ASIDE_BYTES, Given, check_pools, let_go_of_body, made
from topics.server.topics import members, name_of

FRAMES: Final = b"application/vnd.topics.frames"
PART: Final = {"pattern": "^[A-Za-z0-9._-]{1,128}$"}
_ID: Final = {"minLength": 1, "maxLength": 128}
_STEP_RECORDS: Final = 32
_AT_ONCE_BYTES: Final = 64 << 10
"""What the kernel goes through in less than a tenth of a millisecond."""
_PIECE_BYTES: Final = 256 << 10
"""Of a chunk that the kernel has taken in: what is given back at once."""


class StageBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/stage`."""

    id: Annotated[str, about("the writer; 128 bytes at most", _ID)]
    version: Annotated[int, about("grows with every commit of this writer; gaps are fine", U64)]
    part: Annotated[str, about("one attempt of one producer of rows; unique per attempt", PART)]
    chunk: Annotated[int, about("0, 1, 2 … within the part, over all topics", U32)]
    records: list[ParsedRecord]
    node: Annotated[str | None, about("origin of records that name none; `TOPICS_MAX_NODE_BYTES` at most")] = None


class StageRequest(StageBody, kw_only=True):
    """`POST /v0/topics/{topic}/stage`; the server decodes records into what keeps their text."""

    records: Annotated[  # type: ignore[assignment]
        list[Given], about("in this order; `TOPICS_MAX_BATCH_RECORDS` at most", {"minItems": 1})
    ]


class PartBody(msgspec.Struct):
    """A part as a commit names it."""

    part: Annotated[str, about("its name", PART)]
    chunks: Annotated[int, about("how many chunks it has", U32)]
    records: Annotated[int, about("how many records they have together", U64)]


class CommitBody(msgspec.Struct):
    """`POST /v0/txn/commit`."""

    id: Annotated[str, about("the writer; 128 bytes at most", _ID)]
    version: Annotated[int, about("which becomes the committed one", U64)]
    parts: Annotated[list[PartBody], about("what becomes visible, in this order", {"maxItems": txn.PARTS_MAX})]
    create: Annotated[bool | None, about("whether absent topics are created; by default the server decides")] = None
    config: Annotated[dict[str, Raw] | None, about("configuration of topics that this commit creates")] = None
    attach: Annotated[
        Literal["auto", "never", "always"], about("whether records come as segments rather than through the log")
    ] = "auto"


class AbortBody(msgspec.Struct):
    """`POST /v0/txn/abort`."""

    id: Annotated[str, about("the writer; 128 bytes at most", _ID)]
    version: Annotated[int, about("whose staging is dropped", U64)]


class StageAnswer(msgspec.Struct):
    """What was staged."""

    topic: str
    id: str
    version: Annotated[int, about(bounds=U64)]
    part: str
    chunk: Annotated[int, about(bounds=U32)]
    staged: Annotated[int, about("records of this chunk", U64)]
    deduped: Annotated[bool, about("whether it was staged before")]
    performance: wire.Performance


class BroughtAnswer(msgspec.Struct):
    """What a commit brought to one topic."""

    topic: str
    first_seq: Annotated[int, about("of its records", U64)]
    last_seq: Annotated[int, about("of its records", U64)]
    count: Annotated[int, about("of its records", U64)]
    created: Annotated[bool, about("whether the commit created the topic")]
    attached: Annotated[bool, about("whether they came as segments")]


class CommitAnswer(msgspec.Struct):
    """What a commit did."""

    id: str
    version: Annotated[int, about(bounds=U64)]
    deduped: Annotated[bool, about("whether the version was committed before; nothing was appended then")]
    topics: Annotated[list[BroughtAnswer], about("of the newest version only; those that the key may see")]
    performance: wire.Performance


class AbortAnswer(msgspec.Struct):
    """What became of a version."""

    id: str
    version: Annotated[int, about(bounds=U64)]
    state: Literal["aborted", "committed"]
    performance: wire.Performance


class StagedAnswer(msgspec.Struct):
    """What is staged for a version."""

    version: Annotated[int, about(bounds=U64)]
    parts: Annotated[int, about("how many", U64)]
    bytes: Annotated[int, about("of their chunks", U64)]


class WriterAnswer(msgspec.Struct):
    """A writer."""

    id: str
    version: Annotated[int | None, about("highest committed one; null without any", U64)]
    topics: Annotated[list[BroughtAnswer], about("what that version brought; those that the key may see")]
    committed_ts: Annotated[int | None, about("when it was committed, in ms", U64)]
    staged: list[StagedAnswer]
    performance: wire.Performance


_STAGE: Final = msgspec.json.Decoder(StageBody)
_COMMIT: Final = msgspec.json.Decoder(CommitBody)
_ABORT: Final = msgspec.json.Decoder(AbortBody)


# -- stage -----------------------------------------------------------------------------------------------------------


def stage(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/stage` (02 §9.1)."""
    if exchange.match.is_binary(exchange.headers.get(b"content-type")):
        _stage_frames(exchange)
    elif exchange.size <= ASIDE_BYTES:
        _stage(exchange, _prepared(exchange))
    else:
        made(exchange, _prepared_in_steps(exchange), lambda: _prepared(exchange), lambda one: _stage(exchange, one))


def _prepared(exchange: Exchange) -> Stage:
    """A chunk of JSON; any thread."""
    body, limits = wire.decode(_STAGE, exchange.body), exchange.core.limits
    place = _place(name_of(exchange), body, limits)
    return Stage.of(place, prepare(body.records, limits, body.node))


def _prepared_in_steps(exchange: Exchange) -> Generator[None, None, Stage | None]:
    """The same, step by step; None for what has to be decoded at once."""
    name, limits = name_of(exchange), exchange.core.limits
    found = yield from pieces.decoded(exchange.chunks)
    if found is None:
        return None
    try:
        body = _STAGE.decode(found.around)
    except (msgspec.MsgspecError, RecursionError):
        return None
    while exchange.chunks:
        exchange.chunks.pop()
        yield
    place = _place(name, body, limits)
    prepared = yield from prepare_in_steps(found.runs, limits, body.node)
    return (yield from Stage.in_steps(place, prepared))


def _place(topic: str, body: StageBody, limits: Limits) -> Place:
    return Place.parse(topic, body.id, body.version, body.part, body.chunk, limits)


def _stage_frames(exchange: Exchange) -> None:
    """Frames that the client made; what they belong to is in the query."""
    if exchange.key is not None and ADMIN not in exchange.key.scopes:
        raise forbidden("staging frames needs the scope admin")
    query, limits = exchange.params(), exchange.core.limits
    version, chunk = _number(query, "version"), _number(query, "chunk")
    asked = StageBody(query.get("id", ""), version, query.get("part", ""), chunk, [])
    place = _place(name_of(exchange), asked, limits)

    def take(body: bytes) -> None:
        made(exchange, framed(place, body, limits), _never, lambda one: _stage(exchange, one))

    def taken(one: Stage | None) -> None:
        if one is not None:
            let_go_of_body(exchange)
            _stage(exchange, one)
        elif exchange.size <= ASIDE_BYTES:
            take(exchange.body)
        else:
            exchange.aside(lambda: exchange.body, take)

    if kernel.native is None:
        taken(None)
    elif exchange.size <= _AT_ONCE_BYTES:
        taken(_uploaded(place, exchange.chunks, limits))
    else:
        check_pools(exchange)
        exchange.aside(lambda: _uploaded(place, exchange.chunks, limits), taken)


def _uploaded(place: Place, chunks: list[bytes], limits: Limits) -> Stage | None:
    """The frames by the kernel, if all are plainly right; any thread."""
    assert kernel.native is not None
    found = kernel.native.uploaded(chunks, limits, _PIECE_BYTES)
    if found is None:
        return None
    pieces, records, accounted, digest = found
    return Stage(place, pieces, sum(map(len, pieces)), records, accounted, digest)


def _never() -> Stage:
    raise AssertionError("frames are always taken in steps")


def _number(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise bad_request(f"{name} must be a whole number, in the query")
    return int(text)


def framed(place: Place, body: bytes, limits: Limits) -> Generator[None, None, Stage]:
    """A chunk of frames: what they hold is checked like the records of a write, and framed anew."""
    try:
        begins = codec.places(body, limits.max_batch_records)
        if not begins:
            raise CallerError("a chunk needs at least one record")
        if len(begins) > limits.max_batch_records:
            raise BatchTooLarge(len(begins), limits.max_batch_records)
        whole = Prepared([], [], [], [], 0)
        for at in range(0, len(begins), _STEP_RECORDS):
            run = [_record(*one) for one in codec.uploaded(body, begins[at : at + _STEP_RECORDS])]
            for all_of_it, more in zip(whole[:4], prepare(run, limits)[:4], strict=True):
                all_of_it += more  # type: ignore[operator]
            yield
    except NotAFrame as error:
        raise bad_request(f"the body is not frames: {error}") from None
    return (yield from Stage.in_steps(place, whole._replace(total=sum(whole.accounted))))


def _record(node: str | None, tag: str | None, stored: bytes) -> NewRecord:
    try:
        data, meta = envelope.split(stored)
    except ValueError as error:
        raise bad_request(f"a frame's data is no envelope: {error}") from None
    return NewRecord(data, tag, node, meta)


def _stage(exchange: Exchange, staged: Stage) -> None:
    place = staged.place

    @exchange.answers
    def done(outcome: StageResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = {**place._asdict(), "staged": outcome.staged, "deduped": outcome.deduped}
        exchange.reply(200, wire.timed(wire.encode(body), exchange.elapsed_ms()))

    # The body counts as received and not staged until it is in its file [RES-3].
    txn.stage(exchange.core, staged, done)


# -- commit, abort, state --------------------------------------------------------------------------------------------


def commit(exchange: Exchange) -> None:
    """`POST /v0/txn/commit` (02 §9.2)."""
    if exchange.size <= ASIDE_BYTES:
        _commit(exchange, _asked(exchange))
        return
    exchange.aside(lambda: _asked(exchange), lambda asked: _commit(exchange, asked))


def _asked(exchange: Exchange) -> Commit:
    """Types first [TXN-5]; any thread."""
    body = wire.decode(_COMMIT, exchange.body)
    config = None if body.config is None else members(body.config)
    named = [(one.part, one.chunks, one.records) for one in body.parts]
    return Commit.parse(body.id, body.version, named, body.create, config, body.attach, exchange.core.limits)


def _commit(exchange: Exchange, asked: Commit) -> None:
    exchange.body_done()
    core, configures = exchange.core, exchange.key is None or ADMIN in exchange.key.scopes

    def check(topics: Collection[str]) -> Refused | None:
        for name in topics:
            if not exchange.app.permits(exchange.key, name):
                return forbidden("the key does not permit this name", {"topic": name})
        for name in topics if asked.config is not None and not configures else ():
            if name not in core.names:
                return forbidden("creating a topic with a configuration needs the scope admin", {"topic": name})
        return None

    @exchange.answers
    def done(outcome: CommitResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        if not outcome.deduped:
            core.traffic.written += sum(one.count for one in outcome.topics)
        body = {
            "id": asked.id,
            "version": asked.version,
            "deduped": outcome.deduped,
            "topics": _visible(exchange, outcome.topics),
        }
        exchange.reply(200, wire.timed(wire.encode(body), exchange.elapsed_ms()))

    # Without the scope a configuration is for topics that exist: should one go before its turn comes, the commit must
    # not bring it back with another one.
    txn.commit(core, asked if configures or asked.config is None else asked._replace(create=False), done, check)


def _visible(exchange: Exchange, topics: Collection[CommittedTopic]) -> list[CommittedTopic]:
    return [one for one in topics if exchange.app.permits(exchange.key, one.topic)]


def abort(exchange: Exchange) -> None:
    """`POST /v0/txn/abort` (02 §9.3)."""
    body, limits = wire.decode(_ABORT, exchange.body), exchange.core.limits
    exchange.body_done()
    asked = Commit.parse(body.id, body.version, [], None, None, "auto", limits)

    @exchange.answers
    def done(outcome: AbortResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        told = {"id": asked.id, "version": asked.version, "state": outcome.state}
        exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))

    txn.abort(exchange.core, asked.id, asked.version, done)


def state(exchange: Exchange) -> None:
    """`GET /v0/txn/{id}` (02 §9.4)."""
    core = exchange.core
    id = txn.writer_id(exchange.match.params["id"], core.limits)
    found = txn.state(core, id)
    body = {
        "id": id,
        "version": found.version,
        "topics": _visible(exchange, found.topics),
        "committed_ts": found.committed_ts,
        "staged": found.staged,
    }
    exchange.reply(200, wire.timed(wire.encode(body), exchange.elapsed_ms()))
