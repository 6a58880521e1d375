"""`POST /v0/topics/{topic}/scan`: records as stored frames (00 A-21). Event loop only.

A large answer is found in slices and put together aside. At most `AT_ONCE` scans are under way, the others wait for
their turn: each of them may hold 64 MiB.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Final

import msgspec

from topics.engine import scan as scanning
from topics.engine.scan import BYTES_MAX, Query, ScanResult
from topics.errors import EngineClosed
from topics.server import wire
from topics.server.describe import U64, about
from topics.server.exchange import Exchange, Headers
from topics.server.topics import name_of

FRAMES: Final = b"application/vnd.topics.frames"
ASIDE_BYTES: Final = 256 << 10
AT_ONCE: Final = 4


class ScanBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/scan`."""

    from_seq: Annotated[int, about("first seq wanted; 0 is the beginning", U64)] = 0
    to_seq: Annotated[int | None, about("last seq wanted; by default the head", U64)] = None
    max_bytes: Annotated[
        int,
        about(f"bytes of the answer, 0 means 8 MiB; lowered to {BYTES_MAX >> 20} MiB; one record comes anyway", U64),
    ] = 0


class Turns:
    """Who scans now, and who is next."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting: deque[tuple[Exchange, Query]] = deque()

    def take(self, exchange: Exchange, query: Query) -> None:
        """Begin, or wait in line."""
        self._waiting.append((exchange, query))
        self._next()

    def _next(self) -> None:
        while self._waiting and self._running < AT_ONCE:
            exchange, query = self._waiting.popleft()
            if exchange.app.engine is None:
                exchange.fail(EngineClosed("the server has stopped"))
            elif exchange.abandoned:
                exchange.reply(200, b"")  # nobody reads it; what it holds is given back
            else:
                self._running += 1
                _begin(exchange, query, self)

    def over(self) -> None:
        """One is answered."""
        self._running -= 1
        self._next()


_BODY: Final = msgspec.json.Decoder(ScanBody)


def scan(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/scan` [A-21]."""
    given = wire.decode(_BODY, exchange.body)
    exchange.body_done()
    query = Query.parse(name_of(exchange), given.from_seq, given.to_seq, given.max_bytes)
    exchange.app.scans.take(exchange, query)


def _begin(exchange: Exchange, query: Query, turns: Turns) -> None:
    @exchange.answers
    def done(outcome: ScanResult | Exception) -> None:
        if isinstance(outcome, Exception):
            turns.over()
            exchange.fail(outcome)
        elif outcome.size < ASIDE_BYTES:
            tell(outcome, _body(outcome))
        else:
            exchange.apart(lambda: _body(outcome), lambda body: tell(outcome, body))

    def tell(found: ScanResult, body: bytes | Exception) -> None:
        turns.over()
        if isinstance(body, Exception):
            exchange.fail(body)
        else:
            exchange.reply(200, body, FRAMES, _headers(found))

    scanning.scan(exchange.core, query, done)


def _body(found: ScanResult) -> bytes | Exception:
    """Here or on the pool; the turn is given back either way."""
    try:
        return found.body()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
        return error


def _headers(found: ScanResult) -> Headers:
    headers = [(b"topics-next-seq", b"%d" % found.next_seq), (b"topics-head-seq", b"%d" % found.head_seq)]
    if found.tombstone is not None:
        headers.append((b"topics-tombstone", wire.encode(found.tombstone)))
    return tuple(headers)
