"""What a WebSocket connection follows, and how its frames look (03 §8.2, §8.3) [WS-9 … WS-11, WS-13, WS-15 … WS-17].

The following itself is `engine.watch`, as for server-sent events; here is what is different: all bytes of a frame are
shared, for a frame carries no cursor, and a gap has its own reason from the first read on. Pure, but for `followed`,
which reads the engine's state on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.codec.project import Projection
from topics.engine.core import Core
from topics.engine.read import nodes_of
from topics.engine.topic import Topic
from topics.engine.watch import Batch, View
from topics.errors import TopicNotFound
from topics.model import Gap, Limits, check_u32, check_u64
from topics.server import wire
from topics.server.failure import bad_request, forbidden
from topics.server.keys import READ
from topics.server.messages import framed
from topics.server.watch import TopicOptions

if TYPE_CHECKING:
    from topics.server.keys import Key

LIMIT: Final = 1000
BATCH_BYTES: Final = 1 << 20
NULL: Final = Raw(b"null")


class WsFraming:
    """Whole frames: what they say, and the WebSocket's header in front of it."""

    names_first_gap = False

    def record(self, batch: Batch) -> bytes:
        head = b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[' % (
            batch.name.encode(), batch.from_seq, batch.to_seq, batch.head,
        )  # fmt: skip
        return framed(b"%b%b]}" % (head, b",".join(batch.records)))

    def caught_up(self, name: str, head: int) -> bytes:
        return framed(b'{"op":"caught_up","topic":"%b","head_seq":%d}' % (name.encode(), head))

    def tombstone(self, name: str, gap: Gap, reason: str) -> bytes:
        said = {
            "op": "tombstone",
            "topic": name,
            "reason": reason,
            "gap_from": gap.gap_from,
            "gap_to": gap.gap_to,
            "earliest_seq": gap.earliest_seq,
            "head_seq": gap.head_seq,
        }
        return framed(wire.encode(said))

    def deleted(self, name: str) -> bytes:
        return framed(b'{"op":"topic_deleted","topic":"%b","head_seq":0,"reason":"deleted"}' % name.encode())


FRAMING: Final = WsFraming()


class Subscribe(msgspec.Struct, tag_field="op", tag="subscribe"):
    """Follow topics [WS-9]."""

    request_id: Raw = NULL
    topic: str | UnsetType = UNSET
    topics: dict[str, TopicOptions] | UnsetType = UNSET
    from_seq: int = 0
    tail: bool = False
    node: str | list[str] | None = None
    limit: int = LIMIT
    max_batch_bytes: int = BATCH_BYTES
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False

    def check(self) -> None:
        """Look at the ranges that decoding left open [API-12]."""
        check_u64(self.from_seq, "from_seq")
        check_u32(self.limit, "limit")
        check_u64(self.max_batch_bytes, "max_batch_bytes")
        for options in (self.topics or {}).values():
            check_u64(options.from_seq, "from_seq")


class Unsubscribe(msgspec.Struct, tag_field="op", tag="unsubscribe"):
    """Follow them no more [WS-13]."""

    request_id: Raw = NULL
    topic: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET

    def names(self) -> list[str]:
        """Those of the request, each once."""
        single = [] if self.topic is UNSET else [self.topic]
        return list(dict.fromkeys([*(self.topics or []), *single]))


class Wanted(NamedTuple):
    """A subscription that may be, as far as it can be told without looking at topics."""

    starts: Mapping[str, TopicOptions]
    view: View
    lenient: bool


def wanted(asked: Subscribe, key: Key | None, limits: Limits) -> Wanted:
    """Scope, prefixes and names, in the order of [WS-10]; any thread."""
    starts = dict(asked.topics or {})
    if asked.topic is not UNSET:
        starts.setdefault(asked.topic, TopicOptions(asked.from_seq, asked.tail))
    if key is not None and READ not in key.scopes:
        raise forbidden("subscribe needs a key with the scope read")
    if key is not None and not all(map(key.permits, starts)):
        raise forbidden("the key does not permit one of these names")
    if not starts:
        raise bad_request("subscribe names no topic")
    view = View(
        Projection(asked.include_tags, asked.include_meta, asked.include_data),
        limits.read_limit(asked.limit),
        limits.read_bytes(asked.max_batch_bytes),
        nodes_of(asked.node, limits),
    )
    return Wanted(starts, view, asked.lenient)


def followed(core: Core, asked: Wanted, already: Iterable[str], most: int) -> dict[str, Topic]:
    """The topics to follow, or why nothing is followed [WS-10]."""
    count = len(asked.starts.keys() | set(already))
    if count > most:
        raise bad_request(f"{count} topics would be subscribed; at most {most} are accepted")
    found = {name: topic for name in asked.starts if (topic := core.names.get(name)) is not None}
    if not asked.lenient:
        for name in asked.starts:
            if name not in found:
                raise TopicNotFound(name)
    return found
