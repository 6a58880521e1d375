"""Handlers for operators: health, readiness, metrics, settings, checkpoint, segments, OpenAPI (02 §7, 00 A-8, A-15).

Event loop only. What takes long is done in steps or aside: metrics of many topics, the pages of a plan.
"""

from __future__ import annotations

import os
import platform
import re
from typing import Annotated, Any, Final, Literal

import msgspec

import topics
from topics import paths
from topics.codec import kernel
from topics.engine import plan as planning
from topics.engine.checkpoint import CheckpointResult, Pinned
from topics.engine.metrics import Collected
from topics.errors import TopicsError
from topics.model import SYSTEM_TOPICS, Durability, check_u64
from topics.server import failure, metrics, wire
from topics.server.describe import U64, about
from topics.server.exchange import Exchange
from topics.server.topics import name_of
from topics.settings import SERVER_TABLE, Setting

ASIDE_SERIES: Final = 200
"""Topics, or segments, from which on an answer is put together aside [P-10]."""
_USER_INFO = re.compile(r"(?<=://)[^/?#@]*@")
_SECRET_PARAMETER = re.compile(r"(?i)(?<=[?&])([^=&#]*(?:key|secret|token|password|signature)[^=&#]*=)[^&#]*")


class HealthAnswer(msgspec.Struct):
    """The process is alive."""

    status: Literal["ok"]
    version: Annotated[str, about("of the server")]
    kernel: Literal["pure", "native"]
    uptime_ms: Annotated[int, about("since the process began to serve", U64)]


class ReadyAnswer(msgspec.Struct):
    """The server takes requests."""

    status: Literal["ready"]
    wal_replay_complete: Literal[True]
    topics: Annotated[int, about("topics there are", U64)]


class SettingAnswer(msgspec.Struct):
    """A setting in force."""

    name: str
    value: Annotated[Any, about("null for secrets, and where nothing is set")]
    source: Literal["default", "environment", "flag"]


class KeyAnswer(msgspec.Struct):
    """What a key may do; never the key."""

    scopes: list[str]
    prefixes: Annotated[list[str], about("none means every name")]


class Build(msgspec.Struct):
    """What runs."""

    version: str
    kernel: Literal["pure", "native"]
    python: str


class SettingsAnswer(msgspec.Struct):
    """Settings in force."""

    settings: list[SettingAnswer]
    keys: list[KeyAnswer]
    build: Build
    performance: wire.Performance


class CheckpointBody(msgspec.Struct):
    """How long what the snapshot names is to be held."""

    pin_ms: Annotated[int | None, about("hold the snapshot and its files for so long; lowered to 3 600 000", U64)] = (
        None
    )


class PinAnswer(msgspec.Struct):
    """Files are held until then, or until the pin is released."""

    id: str
    expires_ms: Annotated[int, about("by the server's clock", U64)]


class CheckpointAnswer(msgspec.Struct):
    """Everything acknowledged before the call lies in segment files."""

    topics: Annotated[int, about("topics that are complete there", U64)]
    sealed: Annotated[int, about("segments that it sealed", U64)]
    performance: wire.Performance
    pin: Annotated[
        PinAnswer | msgspec.UnsetType | None,
        about("until it ends nothing that the snapshot names is unlinked or rewritten; only with `pin_ms`"),
    ] = msgspec.UNSET
    snapshot: Annotated[
        str | msgspec.UnsetType | None, about("name of the snapshot's file in `meta/`; only with `pin_ms`")
    ] = msgspec.UNSET


class ReleaseAnswer(msgspec.Struct):
    """What the pin held may go."""

    deleted: Literal[True]
    performance: wire.Performance


class FloorsAnswer(msgspec.Struct):
    """The first seq that each kind of removal has left."""

    cap: Annotated[int, about("by caps", U64)]
    ttl: Annotated[int, about("by age", U64)]
    deleted_below: Annotated[int, about("by deletes of everything before a seq", U64)]


class SegmentAnswer(msgspec.Struct):
    """One segment and its files."""

    first_seq: Annotated[int, about("first seq it holds", U64)]
    last_seq: Annotated[int, about("last seq it holds", U64)]
    records: Annotated[int, about("live records", U64)]
    bytes: Annotated[int, about("of its data file", U64)]
    min_ts: Annotated[int, about("lowest `$ts`, live or not", U64)]
    max_ts: Annotated[int, about("highest `$ts`, live or not", U64)]
    tier: Literal["hot", "cold"]
    generation: Annotated[int, about("of the data file; grows when it is rewritten", U64)]
    sealed: Annotated[bool, about("whether it never grows again")]
    gap: Annotated[
        Literal["deleted", "source_trim", "corrupt", "crash"] | None,
        about("why none of its seqs is there; null for a segment with records"),
    ]
    version: Annotated[str, about("another one whenever anything of this segment changes")]
    path: Annotated[
        str | msgspec.UnsetType, about("of the data file; of its `.idx` where there is no data; not with `url`")
    ] = msgspec.UNSET
    url: Annotated[str | msgspec.UnsetType, about("of the data object in the cold tier")] = msgspec.UNSET
    pending: Annotated[
        list[tuple[int, int]] | msgspec.UnsetType,
        about("seqs from-to that are deleted although the `.idx` does not show it; absent when there are none"),
    ] = msgspec.UNSET


class SegmentsAnswer(msgspec.Struct, rename={"durability": "class"}):
    """A topic's files at one instant."""

    topic: str
    id: Annotated[int, about("of this instance of the topic", U64)]
    epoch: Annotated[int, about("of this instance of the topic", U64)]
    store: Annotated[str | None, about("the id in `data_dir/meta/STORE`; other files are not these")]
    data_dir: Annotated[str | None, about("where the store lies on the server's machine")]
    cold: Annotated[str | None, about("root of the cold tier, without credentials")]
    durability: Annotated[Durability, about("the topic's durability class")]
    now_ms: Annotated[int, about("the instant that retention was applied for", U64)]
    head_seq: Annotated[int, about("highest seq", U64)]
    durable_seq: Annotated[int, about("no crash takes back anything up to it; 0 for `ephemeral`", U64)]
    ckpt_seq: Annotated[int, about("segments hold everything up to it; behind it, read through the API", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]
    floors: FloorsAnswer
    segments: list[SegmentAnswer]
    next_seq: Annotated[int | None, about("`from_seq` of the next page, null on the last", U64)]
    pin: Annotated[PinAnswer | None, about("what holds the files named here; null without `pin_ms` and `pin`")]
    version: Annotated[str, about("another one whenever anything but `head_seq` and `durable_seq` changes")]
    performance: wire.Performance


# -- probes ----------------------------------------------------------------------------------------------------------


def health(exchange: Exchange) -> None:
    """`GET /v0/health` [HLT-1]."""
    app = exchange.app
    uptime_ms = (app.clock.monotonic_ns() - app.started_ns) // 1_000_000
    exchange.reply(200, wire.encode(HealthAnswer("ok", topics.__version__, kernel.name(), uptime_ms)))


def ready(exchange: Exchange) -> None:
    """`GET /v0/ready` [HLT-2, HLT-3, HLT-4]."""
    app = exchange.app
    if app.draining:
        raise failure.Refused(failure.SHUTTING_DOWN)
    if app.engine is None:
        raise failure.Refused(failure.replaying(app.progress))
    unwell = _unwell(exchange)
    if unwell is not None:
        raise failure.Refused(unwell)
    exchange.reply(200, wire.encode(ReadyAnswer("ready", True, _topics(exchange))))


def _unwell(exchange: Exchange) -> failure.Failure | None:
    """The state of a log that does not take writes (06 §21)."""
    assert exchange.app.engine is not None
    state = exchange.app.engine.health().state
    if state == "read_only":
        return failure.not_ready("read_only", "a failed write latched a part of the log", 30)
    if state == "full":
        return failure.not_ready("full", "the disk has no space for more records", 5)
    return None


def _topics(exchange: Exchange) -> int:
    """How many there are; the server's own do not count [A-14]."""
    names = exchange.core.names
    return len(names) - sum(name in names for name in SYSTEM_TOPICS)


# -- settings --------------------------------------------------------------------------------------------------------


def settings(exchange: Exchange) -> None:
    """`GET /v0/settings` [SET-1]."""
    app = exchange.app
    told = {
        "settings": [
            SettingAnswer(row.name, _shown(row, getattr(app.settings, row.field)), app.loaded.source(row.name))
            for row in SERVER_TABLE
        ],
        "keys": [KeyAnswer(sorted(key.scopes), list(key.prefixes)) for key in app.keys.keys],
        "build": Build(topics.__version__, kernel.name(), platform.python_version()),
    }
    exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))


def _shown(row: Setting, value: Any) -> Any:
    """Without secrets: keys are not shown at all, nor credentials within a URL."""
    if row.kind == "secret":
        return None
    if isinstance(value, str) and "://" in value:
        return _SECRET_PARAMETER.sub(r"\1***", _USER_INFO.sub("", value))
    return value


# -- checkpoint ------------------------------------------------------------------------------------------------------


_CHECKPOINT: Final = msgspec.json.Decoder(CheckpointBody)


def checkpoint(exchange: Exchange) -> None:
    """`POST /v0/checkpoint` [A-15]; calls that come while one runs share the next."""
    assert exchange.app.engine is not None
    body = wire.decode(_CHECKPOINT, exchange.body) if exchange.body else CheckpointBody()
    pin_ms = check_u64(body.pin_ms or 0, "pin_ms")

    @exchange.answers
    def done(outcome: CheckpointResult | Pinned | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            unwell = _unwell(exchange) if exchange.app.engine is not None else None
            exchange.fail(outcome if unwell is None else failure.Refused(unwell))
            return
        told = {"topics": _topics(exchange), **_sealed(outcome, pinned=bool(pin_ms))}
        if exchange.abandoned and isinstance(outcome, Pinned):
            exchange.core.pins.give_up(outcome.pin)  # nobody knows its id
        exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))

    exchange.app.engine.begin_checkpoint(done, pin_ms)


def _sealed(outcome: CheckpointResult | Pinned, *, pinned: bool) -> dict[str, Any]:
    if isinstance(outcome, CheckpointResult):
        return {"sealed": outcome.sealed} | ({"pin": None, "snapshot": None} if pinned else {})
    result, pin = outcome
    assert result.snapshot is not None
    return {
        "sealed": result.sealed,
        "pin": PinAnswer(pin.id, pin.expires_ms),
        "snapshot": paths.snapshot(result.snapshot),
    }


def release_pin(exchange: Exchange) -> None:
    """`DELETE /v0/pins/{id}` [A-8]; an unknown one is 404."""
    exchange.core.pins.release(exchange.match.params["id"])
    exchange.reply(200, wire.timed(wire.encode({"deleted": True}), exchange.elapsed_ms()))


# -- metrics ---------------------------------------------------------------------------------------------------------


def show_metrics(exchange: Exchange) -> None:
    """`GET /v0/metrics` (02 §7.3), also while recovering [MET-1]."""
    engine = exchange.app.engine
    if engine is None:
        _tell_metrics(exchange, Collected())
        return
    sweep, soon = engine.begin_metrics(), exchange.core.owner.soon

    @exchange.answers
    def step() -> None:
        if sweep.step():
            _tell_metrics(exchange, sweep.found)
        else:
            soon(step)

    step()


def _tell_metrics(exchange: Exchange, collected: Collected) -> None:
    app = exchange.app
    is_ready = app.engine is not None and not app.draining and app.engine.health().ready
    found = metrics.Gathered(app, collected, ready=is_ready)
    if b"application/json" in exchange.headers.get(b"accept", b"").lower():
        exchange.reply(200, wire.encode(metrics.snapshot(found)))
    elif len(collected.labelled["topics_topic_head_seq"]) < ASIDE_SERIES:
        exchange.reply(200, metrics.text(found), metrics.TEXT)
    else:
        exchange.apart(lambda: metrics.text(found), lambda text: exchange.reply(200, text, metrics.TEXT))


# -- segments --------------------------------------------------------------------------------------------------------


def segments(exchange: Exchange) -> None:
    """`GET /v0/topics/{topic}/segments` [A-8]."""
    query = exchange.params()
    most = planning.SEGMENTS_MAX
    asked = planning.Range(
        wire.number(query, "from_seq", 0),
        wire.number(query, "to_seq", planning.Range().to_seq),
        min(wire.number(query, "limit", most) or most, most),
        wire.number(query, "pin_ms", 0),
        query.get("pin"),
    )
    data_dir = os.path.abspath(exchange.core.dir) if exchange.core.dir else None
    cold = exchange.core.cold.name

    @exchange.answers
    def done(outcome: planning.Plan | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        elif exchange.abandoned and asked.pin_ms and outcome.pin is not None:
            exchange.core.pins.release(outcome.pin.id)  # nobody knows its id
            exchange.reply(200, b"")
        elif len(outcome.segments) < ASIDE_SERIES:
            tell(wire.encode(_files(outcome, data_dir, cold)))
        else:
            exchange.apart(lambda: wire.encode(_files(outcome, data_dir, cold)), tell)

    def tell(body: bytes) -> None:
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    assert exchange.app.engine is not None
    exchange.app.engine.begin_plan(name_of(exchange), asked, done)


def _files(found: planning.Plan, data_dir: str | None, cold: str | None) -> dict[str, Any]:
    """All members of `SegmentsAnswer` but the last."""
    told = found._asdict()
    told["class"] = told.pop("durability")
    told["store"] = found.store or None
    told["data_dir"], told["cold"] = data_dir, cold
    told["pin"] = None if found.pin is None else PinAnswer(*found.pin)
    told["floors"] = FloorsAnswer(*found.floors)
    told["segments"] = [_file(one, data_dir, cold) for one in found.segments]
    return told


def _file(one: planning.PlannedSegment, data_dir: str | None, cold: str | None) -> dict[str, Any]:
    told = one._asdict()
    told["path"] = f"{data_dir}/{one.path}"
    if one.tier == "cold" and cold is not None:
        base, mark, options = cold.partition("?")
        told["path"] = f"{base}/{one.path}{mark}{options}"
        if "://" in base:
            told["url"] = told.pop("path")
    if not one.pending:
        del told["pending"]
    return told


# -- OpenAPI ---------------------------------------------------------------------------------------------------------


def openapi(exchange: Exchange) -> None:
    """`GET /openapi.json` [A-9]."""
    from topics.server.openapi import rendered

    exchange.reply(200, rendered())
