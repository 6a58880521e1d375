"""Handlers of topics: create, configure, look at, list, delete (02 §3). Event loop only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw

from topics.engine import lifecycle, priority
from topics.engine import read as reading
from topics.engine.topic import Topic
from topics.model import Discard, Durability, TopicConfig, TopicState, TopicType, check_not_system, is_system_name
from topics.server import wire
from topics.server.describe import I32, TOPIC_NAME, U64, about
from topics.server.exchange import Exchange

_CONFIG: Final = msgspec.json.Decoder(dict[str, Raw])
_VALUE: Final = msgspec.json.Decoder(Any)


class ConfigBody(msgspec.Struct):
    """A topic's configuration; whatever is left out takes its default. `TopicConfig` checks it."""

    type: Annotated[TopicType, about("cannot be changed")] = "log"
    ttl_ms: Annotated[int, about("age at which records expire; 0 for never", U64)] = 0
    cap_records: Annotated[int, about("live records at most; 0 for no bound", U64)] = 0
    cap_bytes: Annotated[int, about("live accounted bytes at most; 0 for no bound", U64)] = 0
    discard: Annotated[Discard, about("what a cap does: evict the oldest, or refuse the write")] = "old"
    durable: Annotated[bool, about("short for `durability` `fsync`")] = False
    durability: Annotated[Durability | None, about("what a crash may take; by default `disk`")] = None
    priority: Annotated[int | None, about("of delivery; by default by how it is used", I32)] = None
    auto_priority: Annotated[bool, about("raise the priority of topics that are read")] = True
    auto_create: Annotated[bool, about("whether writes create what they name")] = True
    idempotency_window_ms: Annotated[int, about("how long idempotency keys are kept", U64)] = 120_000
    dedupe_node: Annotated[bool, about("whether readers may leave out their own node's records")] = True
    lease_ms: Annotated[int, about("of a claimed job; from 100 to 86400000", U64)] = 30_000
    claim_jitter_ms: Annotated[int, about("spread of claims; 5000 at most", U64)] = 0
    max_deliveries: Annotated[int, about("before a job goes to the dead letters; 0 for no bound", U64)] = 0
    dead_letter: Annotated[str | None, about("topic for jobs that failed too often", TOPIC_NAME)] = None
    leases_durable: Annotated[bool, about("whether leases survive a restart")] = False


class PutAnswer(msgspec.Struct):
    """What was put."""

    topic: str
    created: Annotated[bool, about("whether this call created the topic")]
    config: TopicConfig
    performance: wire.Performance


class QueueCounts(msgspec.Struct):
    """Jobs of a queue; `count` of the topic is the sum of the first three."""

    ready: Annotated[int, about("can be claimed", U64)]
    in_flight: Annotated[int, about("are leased", U64)]
    delayed: Annotated[int, about("wait for the end of a nack's delay", U64)]
    dead_lettered: Annotated[int, about("were moved to the dead letters since the start", U64)]


class StateAnswer(msgspec.Struct):
    """A topic at one instant."""

    topic: str
    type: TopicType
    head_seq: Annotated[int, about("highest seq", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]
    next_seq: Annotated[int, about("that the next record gets", U64)]
    count: Annotated[int, about("live records", U64)]
    bytes: Annotated[int, about("live accounted bytes", U64)]
    config: TopicConfig
    effective_priority: Annotated[int, about("of delivery, now", I32)]
    last_write_ts: Annotated[int | None, about("in ms", U64)]
    last_read_ts: Annotated[int | None, about("in ms", U64)]
    earliest_ts: Annotated[int | None, about("`$ts` of the lowest live record", U64)]
    performance: wire.Performance
    queue: Annotated[QueueCounts | msgspec.UnsetType, about("only of queues")] = msgspec.UNSET


class TopicEntry(msgspec.Struct):
    """A topic in a list."""

    topic: str
    type: TopicType
    durability: Durability
    head_seq: Annotated[int, about("highest seq", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]
    count: Annotated[int, about("live records", U64)]
    bytes: Annotated[int, about("live accounted bytes", U64)]
    durable: bool
    last_write_ts: Annotated[int | None, about("in ms", U64)]
    earliest_ts: Annotated[int | None, about("`$ts` of the lowest live record", U64)]
    effective_priority: Annotated[int, about("of delivery, now", I32)]


class ListAnswer(msgspec.Struct):
    """Topics, ascending by name."""

    topics: list[TopicEntry]
    performance: wire.Performance
    next_cursor: Annotated[str | msgspec.UnsetType, about("`cursor` of the next page, if there is one")] = msgspec.UNSET


class TopicDeleteAnswer(msgspec.Struct):
    """What deleting a topic did."""

    topic: str
    deleted: Annotated[bool, about("whether there was one")]
    routers_removed: Annotated[list[str], about("routers that touched it, ascending")]
    performance: wire.Performance


def name_of(exchange: Exchange) -> str:
    """The topic in the path."""
    assert exchange.match.name is not None
    return exchange.match.name


def members(config: dict[str, Raw]) -> dict[str, Any]:
    """What a configuration says; members that are not known are passed over unread [CFG-8]."""
    return {name: wire.decode(_VALUE, config[name]) for name in TopicConfig.__struct_fields__ if name in config}


def put(exchange: Exchange) -> None:
    """`PUT /v0/topics/{topic}` (02 §3.1)."""
    name = name_of(exchange)
    check_not_system(name)
    config = members(wire.decode(_CONFIG, exchange.body)) if exchange.body else {}
    exchange.body_done()

    @exchange.answers
    def done(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        created, stored = outcome
        body = wire.encode({"topic": name, "created": created, "config": stored})
        exchange.reply(201 if created else 200, wire.timed(body, exchange.elapsed_ms()))

    lifecycle.put(exchange.core, name, config, done)


def state(exchange: Exchange) -> None:
    """`GET /v0/topics/{topic}` (02 §3.2)."""
    touch = wire.flag(exchange.params(), "touch", True)

    @exchange.answers
    def done(outcome: TopicState | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            exchange.reply(200, wire.timed(wire.encode(_state(outcome)), exchange.elapsed_ms()))

    reading.state(exchange.core, name_of(exchange), touch, done)


def _state(found: TopicState) -> dict[str, Any]:
    told: dict[str, Any] = {
        "topic": found.topic,
        "type": found.type,
        "head_seq": found.head_seq,
        "earliest_seq": found.earliest_seq,
        "next_seq": found.next_seq,
        "count": found.count,
        "bytes": found.bytes,
        "config": found.config,
        "effective_priority": found.effective_priority,
        "last_write_ts": found.last_write_ts,
        "last_read_ts": found.last_read_ts,
        "earliest_ts": found.earliest_ts,
    }
    if found.queue is not None:
        told["queue"] = found.queue
    return told


def listing(exchange: Exchange) -> None:
    """`GET /v0/topics` (02 §3.3)."""
    query = exchange.params()
    prefix, after = query.get("prefix", ""), wire.cursor_name(query.get("cursor", ""))
    size = wire.page_size(query)
    system, touch = wire.flag(query, "system", False), wire.flag(query, "touch", False)
    core, app, key = exchange.core, exchange.app, exchange.key
    names = sorted(
        name
        for name in core.names
        if name > after
        and name.startswith(prefix)
        and (system or not is_system_name(name))
        and app.permits(key, name)
    )  # fmt: skip
    page = [core.names[name] for name in names[:size]]
    after = page[-1].name if len(names) > size else ""
    reading.refresh(core, page, lambda: _listed(exchange, page, after, touch=touch), exchange.fail)


def _listed(exchange: Exchange, page: Sequence[Topic], after: str, *, touch: bool) -> None:
    """Answer with a page whose retention is applied."""
    now = exchange.core.clock.now_ms()
    there = [topic for topic in page if not topic.removed]
    if touch:
        for topic in there:
            topic.last_consumed_ms = now
    told: dict[str, Any] = {"topics": [_entry(topic, now) for topic in there]}
    if after:
        told["next_cursor"] = wire.cursor_after(after)
    exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))


def _entry(topic: Topic, now: int) -> dict[str, Any]:
    first = topic.lowest()
    return {
        "topic": topic.name,
        "type": topic.config.type,
        "durability": topic.config.durability,
        "head_seq": topic.head,
        "earliest_seq": topic.head + 1 if first is None else first.seq,
        "count": topic.count,
        "bytes": topic.bytes,
        "durable": topic.config.durable,
        "last_write_ts": topic.last_write_ms,
        "earliest_ts": None if first is None else first.ts,
        "effective_priority": priority.effective_priority(topic.config, topic.last_consumed_ms, now),
    }


def delete(exchange: Exchange) -> None:
    """`DELETE /v0/topics/{topic}` (02 §3.4)."""
    name = name_of(exchange)
    check_not_system(name)
    if_empty = wire.flag(exchange.params(), "if_empty", False)

    @exchange.answers
    def done(outcome: lifecycle.TopicDeleted | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"topic": name, "deleted": outcome.deleted, "routers_removed": outcome.routers})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    lifecycle.delete(exchange.core, name, done, if_empty=if_empty)
