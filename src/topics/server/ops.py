"""Handlers for operators: health, readiness, metrics, settings, checkpoint, segments, OpenAPI (02 §7, 00 A-8, A-15)."""

from __future__ import annotations

import platform
from typing import Any

import topics
from topics.server import failure, wire
from topics.server.exchange import Exchange
from topics.settings import SERVER_TABLE

KERNEL = "pure"


def health(exchange: Exchange) -> None:
    """`GET /v0/health` [HLT-1]."""
    app = exchange.app
    uptime_ms = (app.clock.monotonic_ns() - app.started_ns) // 1_000_000
    told = {"status": "ok", "version": topics.__version__, "kernel": KERNEL, "uptime_ms": uptime_ms}
    exchange.reply(200, wire.encode(told))


def ready(exchange: Exchange) -> None:
    """`GET /v0/ready` [HLT-2, HLT-3, HLT-4]."""
    app = exchange.app
    if app.draining:
        raise failure.Refused(failure.SHUTTING_DOWN)
    if app.engine is None:
        raise failure.Refused(failure.replaying(app.progress))
    found = app.engine.health()
    if found.state == "read_only":
        raise failure.Refused(failure.not_ready("read_only", "a failed write latched a part of the log", 30))
    if found.state == "full":
        raise failure.Refused(failure.not_ready("full", "the disk has no space for more records", 5))
    count = len(exchange.core.topics)
    exchange.reply(200, wire.encode({"status": "ready", "wal_replay_complete": True, "topics": count}))


def settings(exchange: Exchange) -> None:
    """`GET /v0/settings` [SET-1]."""
    app = exchange.app
    rows: list[dict[str, Any]] = []
    for row in SERVER_TABLE:
        value = getattr(app.settings, row.field)
        if row.kind == "secret":
            value = None
        source = "environment" if row.name in app.loaded.given else "default"
        rows.append({"name": row.name, "value": value, "source": source})
    told = {
        "settings": rows,
        "keys": [{"scopes": sorted(key.scopes), "prefixes": key.prefixes} for key in app.keys.keys],
        "build": {"version": topics.__version__, "kernel": KERNEL, "python": platform.python_version()},
    }
    exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))


def checkpoint(exchange: Exchange) -> None:
    """`POST /v0/checkpoint` [A-15]."""
    assert exchange.app.engine is not None
    total = len(exchange.core.topics)

    def done(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"topics": total, "sealed": outcome.sealed})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    exchange.app.engine.begin_checkpoint(done)


def metrics(exchange: Exchange) -> None:
    """`GET /v0/metrics` (02 §7.3)."""
    raise failure.Refused(failure.NOT_FOUND)


def segments(exchange: Exchange) -> None:
    """`GET /v0/topics/{topic}/segments` [A-8]."""
    raise failure.Refused(failure.NOT_FOUND)


def openapi(exchange: Exchange) -> None:
    """`GET /openapi.json` [A-9]."""
    raise failure.Refused(failure.NOT_FOUND)
