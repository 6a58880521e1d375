"""`POST /v0/topics/{topic}/compact`: rewrite segments on request (02 §10). Event loop only."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from topics.engine.compact import SEGMENTS_MAX, Asked, CompactResult
from topics.engine.read import Waiting
from topics.server import wire
from topics.server.describe import U32, U64, about
from topics.server.exchange import Exchange
from topics.server.topics import name_of

ASIDE_ROWS: Final = 200
"""Segments from which on an answer is put together aside [P-10]."""

FirstSeq = Annotated[int, about(bounds=U64)]


class CompactBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/compact`; `segments` or `min_dead_ratio`, not both."""

    segments: Annotated[
        list[FirstSeq] | None, about("first seqs of sealed segments; 1000 at most", {"maxItems": SEGMENTS_MAX})
    ] = None
    min_dead_ratio: Annotated[
        float | None,
        about("all segments with this share of dead bytes, 0.5 by default", {"minimum": 0, "maximum": 1}),
    ] = None
    bytes_per_sec: Annotated[int | None, about("read and written; `TOPICS_RECLAIM_BYTES_PER_SEC` by default", U64)] = (
        None
    )
    wait_ms: Annotated[int, about("wait so long for the end; 30000 at most", U32)] = 0


class CompactedAnswer(msgspec.Struct):
    """What became of a segment."""

    first_seq: FirstSeq
    result: Annotated[
        Literal["rewritten", "nothing_to_do", "active", "gone", "busy", "failed"],
        about("`busy`: its turn has not come, or other work has it; `active`: it still grows"),
    ]
    bytes_before: Annotated[int, about("of its data file", U64)]
    bytes_after: Annotated[int, about("of its data file", U64)]


class CompactAnswer(msgspec.Struct):
    """How far it is; asked again with the same body it tells more."""

    topic: str
    state: Literal["running", "done"]
    segments: Annotated[list[CompactedAnswer], about("in the order named, else ascending")]
    performance: wire.Performance


_BODY: Final = msgspec.json.Decoder(CompactBody)


def compact(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/compact` [CPT-1]."""
    given = wire.decode(_BODY, exchange.body)
    exchange.body_done()
    limits = exchange.core.limits
    asked = Asked.parse(given.segments, given.min_dead_ratio, given.bytes_per_sec, given.wait_ms, limits)

    @exchange.answers
    def done(outcome: CompactResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        elif len(outcome.segments) < ASIDE_ROWS:
            tell(_told(outcome))
        else:
            exchange.apart(lambda: _told(outcome), tell)

    def tell(body: bytes) -> None:
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    waiting = Waiting()
    assert exchange.app.engine is not None
    exchange.app.engine.compactor.ask(name_of(exchange), asked, done, waiting)
    if not exchange.answered:
        exchange.cancel = waiting.end


def _told(found: CompactResult) -> bytes:
    """All members of `CompactAnswer` but the last."""
    rows = [one._asdict() for one in found.segments]
    return wire.encode({"topic": found.topic, "state": found.state, "segments": rows})
