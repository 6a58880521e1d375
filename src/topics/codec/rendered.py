"""Records and frames of delivery as JSON has them, taken apart [REC-3, FRM-1]: the other side of `project`.

    record          {"topic":…,"from_seq":…,"to_seq":…,"head_seq":…,"records":[{"$seq":…,"$ts":…,"data":…},…]}
    tombstone       {"topic":…,"reason":…,"gap_from":…,"gap_to":…,"earliest_seq":…,"head_seq":…}
    caught-up       {"topic":…,"head_seq":…}
    topic-deleted   {"topic":…,…}

Whoever follows a server and whoever follows a store in its own process reads the same bytes here. Payloads keep their
spelling and are decoded when somebody looks at them. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topics.model import CaughtUp, Event, Gap, GapReason, Record, TopicDeleted, TopicGap, TopicRecord


class Rendered(msgspec.Struct):
    """A record as an answer of the server has it; `data` and `meta` keep their spelling."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw()


class _Records(msgspec.Struct):
    topic: str
    to_seq: int
    records: list[Rendered]


class _Tombstone(msgspec.Struct):
    topic: str
    reason: GapReason
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int


_RECORDS: Final = msgspec.json.Decoder(_Records)
_TOMBSTONE: Final = msgspec.json.Decoder(_Tombstone)
_CAUGHT_UP: Final = msgspec.json.Decoder(CaughtUp)
_DELETED: Final = msgspec.json.Decoder(TopicDeleted)


def records(items: Iterable[Rendered]) -> list[Record]:
    """Records of an answer."""
    return [Record(one.seq, one.ts, one.node, one.tag, bytes(one.data), bytes(one.meta) or None) for one in items]


def events(kind: str, data: bytes | str) -> list[Event]:
    """What a frame of delivery says; nothing, where it is of a kind that is not known [API-1].

    `ValueError` if it is of a known kind and cannot be read.
    """
    if kind == "record":
        frame = _RECORDS.decode(data)
        topic = frame.topic
        return [
            TopicRecord(topic, one.seq, one.ts, one.node, one.tag, bytes(one.data), bytes(one.meta) or None)
            for one in frame.records
        ]
    if kind == "tombstone":
        return [_gap(_TOMBSTONE.decode(data))]
    if kind == "caught-up":
        return [_CAUGHT_UP.decode(data)]
    if kind == "topic-deleted":
        return [_DELETED.decode(data)]
    return []


def _gap(told: _Tombstone) -> TopicGap:
    lost = Gap.lost(told.gap_from, told.gap_to, told.reason, told.head_seq)
    return TopicGap(
        lost.gap_from, lost.gap_to, lost.reason, lost.missed_estimate, told.earliest_seq, lost.head_seq,
        topic=told.topic,
    )  # fmt: skip
