"""Handlers of topics: create, configure, look at, list, delete (02 §3). Event loop only."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from topics.engine import lifecycle, priority
from topics.engine import read as reading
from topics.engine.topic import Topic
from topics.model import TopicState, is_system_name
from topics.server import wire
from topics.server.exchange import Exchange
from topics.server.failure import forbidden

_CONFIG: Final = msgspec.json.Decoder(dict[str, Any])


def name_of(exchange: Exchange) -> str:
    """The topic in the path."""
    assert exchange.match.name is not None
    return exchange.match.name


def not_of_the_server(name: str) -> None:
    """403 for what only the server may do to its own topics [A-14]."""
    if is_system_name(name):
        raise forbidden("names beginning with $ belong to the server", {"topic": name})


def put(exchange: Exchange) -> None:
    """`PUT /v0/topics/{topic}` (02 §3.1)."""
    name = name_of(exchange)
    not_of_the_server(name)
    config = wire.decode(_CONFIG, exchange.body) if exchange.body else {}
    exchange.body_done()

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
    now = core.clock.now_ms()
    page = [core.names[name] for name in names[:size]]
    if touch:
        for topic in page:
            topic.last_consumed_ms = now
    told: dict[str, Any] = {"topics": [_entry(topic, now) for topic in page]}
    if len(names) > size:
        told["next_cursor"] = wire.cursor_after(page[-1].name)
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
    not_of_the_server(name)
    if_empty = wire.flag(exchange.params(), "if_empty", False)

    def done(outcome: bool | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"topic": name, "deleted": outcome, "routers_removed": []})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    lifecycle.delete(exchange.core, name, done, if_empty=if_empty)
