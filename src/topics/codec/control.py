"""Bodies of the control frames, types 2-13 [S-41, S-42, S-44]: one MessagePack map each.

`v` comes first and is always 1, then the keys in the order of the fields below; absent optionals and keys at
their printed default are omitted, integers take their shortest form. A reader ignores unknown keys and applies
the default of an absent one. A wrong type, a number out of range, a missing required key, an unknown version or
kind is FORMAT: `decode_body` raises `ValueError` and nothing else.

    2 TopicCreate     3 TopicDelete      4 RouterCreate   5 RouterDelete   6 Delete   7 EvictWatermark
    8 CheckpointMark  9 ConfigUpdate    10 Lease         11 HeadWatermark 12 Gap     13 Dedupe

A CheckpointMark is told apart by its second key `k`: open, mark, router, attach, ready, sync, close.
`encode_body` decodes what it made: a body that no start-up could read must not reach the log.

Pure functions; any thread.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

WAL_FORMAT: Final = 2

# MessagePack carries no integer above u64 and msgspec refuses to encode one: the lower bound is what is left to check.
U64 = Annotated[int, Meta(ge=0)]
Hops = Annotated[int, Meta(ge=0, le=8)]
Selector = tuple[Literal["Eq", "Glob"], str]
"""`("Eq", tag)` or `("Glob", literal prefix)`."""


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=1):
    """What all control bodies share: `v` in front."""


class TopicCreate(Body, frozen=True, kw_only=True):
    """Type 2."""

    name: str
    epoch: U64
    cfg: dict[str, Any]
    """Complete normalised configuration; unknown names are kept."""
    config_version: U64 = field(name="cv", default=1)
    base: U64 = 1
    """First seq."""


class TopicDelete(Body, frozen=True, kw_only=True):
    """Type 3."""

    name: str
    epoch: U64
    delete_number: U64 | None = field(name="dn", default=None)


class RouterCreate(Body, frozen=True, kw_only=True):
    """Type 4: create or replace."""

    op: U64
    inc: U64
    """The `op` that created this router."""
    name: str
    source: str = field(name="src")
    dest: str = field(name="dst")
    source_id: U64 = field(name="sid")
    dest_id: U64 = field(name="did")
    preserve_node: bool = field(name="pn")
    preserve_tag: bool = field(name="pt")
    create_dest: bool = field(name="cd")
    allow_cycle: bool = field(name="ac")
    guarantee: Literal["at_least_once", "exactly_once"] = field(name="g")
    selector: Selector | None = field(name="f", default=None)
    new: bool
    created_ms: U64 = field(name="cts")
    cursor: U64 | None = field(name="cur", default=None)
    """Source cursor at creation, only when new."""
    base: U64 | None = None
    """Destination head at creation, only when new."""


class RouterDelete(Body, frozen=True, kw_only=True):
    """Type 5."""

    op: U64
    name: str


class Delete(Body, frozen=True, kw_only=True):
    """Type 6: records that existed below `bound`, or the listed ones."""

    before_seq: U64 | None = field(name="b", default=None)
    match: Selector | None = field(name="m", default=None)
    seqs: tuple[U64, ...] | None = field(name="s", default=None)
    bound: U64 | None = field(name="h", default=None)
    cap_floor: U64 = field(name="cf")
    ttl_floor: U64 = field(name="tf")
    kind: Annotated[int, Meta(ge=0, le=2)] = field(name="k", default=0)
    """0 api, 1 ack, 2 dead-letter."""
    delete_number: U64 | None = field(name="dn", default=None)

    def __post_init__(self) -> None:
        if self.bound is None and self.seqs is None:
            raise ValueError("a Delete without `s` needs `h`")


class EvictWatermark(Body, frozen=True, kw_only=True):
    """Type 7."""

    cap_floor: U64 = field(name="cf")
    ttl_floor: U64 = field(name="tf")
    earliest_seq: U64 = field(name="e")


class ConfigUpdate(Body, frozen=True, kw_only=True):
    """Type 9."""

    name: str
    cfg: dict[str, Any]
    config_version: U64 = field(name="cv")
    cap_floor: U64 = field(name="cf")
    ttl_floor: U64 = field(name="tf")
    head_seq: U64 = field(name="at")


class Lease(Body, frozen=True, kw_only=True):
    """Type 10; the job is the frame's seq."""

    event: Annotated[int, Meta(ge=0, le=3)] = field(name="e")
    """0 claimed, 1 released, 2 extended, 3 acked."""
    node: str = field(name="n")
    lease_id: U64 = field(name="l")
    deadline_ms: U64 = field(name="d", default=0)
    deliveries: U64 = field(name="c", default=0)
    ready_at_ms: U64 = field(name="r", default=0)


class HeadWatermark(Body, frozen=True, kw_only=True):
    """Type 11."""

    reserved: U64 = field(name="h")
    """Ceiling, inclusive."""


class Gap(Body, frozen=True, kw_only=True):
    """Type 12."""

    first: U64 = field(name="f")
    last: U64 = field(name="t")
    reason: Annotated[int, Meta(ge=0, le=3)] = field(name="r")
    """0 silent, 1 source_trim, 2 damage, 3 crash."""
    hops: Hops = field(name="o", default=0)

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError("a Gap ends before it begins")


class Dedupe(Body, frozen=True, kw_only=True):
    """Type 13: an idempotency key, or a producer's pair."""

    first: U64 = field(name="f")
    count: U64 = field(name="n")
    key: str | None = field(name="k", default=None)
    producer: str | None = field(name="p", default=None)
    epoch: U64 | None = field(name="e", default=None)
    index: U64 | None = field(name="i", default=None)

    def __post_init__(self) -> None:
        pair = (self.producer, self.epoch, self.index)
        if (None in pair) if self.key is None else (pair != (None, None, None)):
            raise ValueError("a Dedupe has either `k` or all of `p`, `e`, `i`")


class MarkRow(Struct, frozen=True, array_like=True):
    """What one checkpoint claims for one topic."""

    topic_id: U64
    ckpt_seq: U64
    head_seq: U64
    cap_floor: U64
    ttl_floor: U64
    delete_below: U64
    active_first: U64
    active_data_len: U64
    active_entries: U64
    active_idx_xxh3: U64


class RouterRow(Struct, frozen=True, array_like=True):
    """A router's position."""

    inc: U64
    name: str
    cursor: U64
    total: U64
    dest_head: U64


class AttachRow(Struct, frozen=True, array_like=True):
    """One attached segment."""

    first: U64
    count: U64
    data_len: U64
    idx_xxh3: U64


class CheckpointMark(Struct, frozen=True, kw_only=True, tag_field="v", tag=1):
    """Type 8: what all its kinds share, `v` and then `k`; nothing but `prev` is ever omitted."""


class OpenMark(CheckpointMark, frozen=True, kw_only=True):
    """First frame of each file [S-20]."""

    k: Literal["open"] = "open"
    run: U64
    boot: str
    shard: U64
    shards: U64
    file: U64
    prev: tuple[U64, U64] | UnsetType = UNSET
    """Number and length of the group's previous file."""
    fmt: U64 = WAL_FORMAT

    def __post_init__(self) -> None:
        if self.fmt != WAL_FORMAT:
            raise ValueError(f"WAL format {self.fmt} is not {WAL_FORMAT}")


class TopicsMark(CheckpointMark, frozen=True, kw_only=True):
    """End of a checkpoint, one chain per shard."""

    k: Literal["mark"] = "mark"
    n: U64
    """Checkpoint number."""
    part: U64
    parts: U64
    topics: tuple[MarkRow, ...]


class RouterMark(CheckpointMark, frozen=True, kw_only=True):
    """Router progress [S-212]."""

    k: Literal["router"] = "router"
    routers: tuple[RouterRow, ...]


class AttachMark(CheckpointMark, frozen=True, kw_only=True):
    """Commit point of an attach [S-288]."""

    k: Literal["attach"] = "attach"
    topic_id: U64 = field(name="id")
    dir: str
    producer: str = field(name="p")
    epoch: U64 = field(name="e")
    first: U64 = field(name="f")
    count: U64 = field(name="n")
    ts: U64
    cap_floor: U64 = field(name="cf")
    segments: tuple[AttachRow, ...] = field(name="segs")


class ReadyMark(CheckpointMark, frozen=True, kw_only=True):
    """End of recovery."""

    k: Literal["ready"] = "ready"
    run: U64


class SyncMark(CheckpointMark, frozen=True, kw_only=True):
    """Tells that everything before it was synced [S-25]."""

    k: Literal["sync"] = "sync"


class CloseMark(CheckpointMark, frozen=True, kw_only=True):
    """Last frame of a clean shutdown."""

    k: Literal["close"] = "close"
    run: U64


class _Kind(Struct, tag_field="v", tag=1):
    k: str


BODIES: Final[dict[int, type[Body]]] = {
    2: TopicCreate,
    3: TopicDelete,
    4: RouterCreate,
    5: RouterDelete,
    6: Delete,
    7: EvictWatermark,
    9: ConfigUpdate,
    10: Lease,
    11: HeadWatermark,
    12: Gap,
    13: Dedupe,
}
"""Frame type to body, all but the marks."""

MARK: Final = 8
MARKS: Final[dict[str, type[CheckpointMark]]] = {
    "open": OpenMark,
    "mark": TopicsMark,
    "router": RouterMark,
    "attach": AttachMark,
    "ready": ReadyMark,
    "sync": SyncMark,
    "close": CloseMark,
}
"""Kind of a CheckpointMark (type 8) to its body."""

TYPES: Final[dict[type[Body | CheckpointMark], int]] = {
    **{body: number for number, body in BODIES.items()},
    **dict.fromkeys(MARKS.values(), MARK),
}
"""Body to frame type."""

_BODY_DECODERS = {number: msgspec.msgpack.Decoder(body) for number, body in BODIES.items()}
_MARK_DECODERS = {kind: msgspec.msgpack.Decoder(mark) for kind, mark in MARKS.items()}
_KIND_DECODER = msgspec.msgpack.Decoder(_Kind)
_ENCODER = msgspec.msgpack.Encoder()


def encode_body(body: Body | CheckpointMark) -> bytes:
    """The MessagePack map of a control frame; `ValueError` for one that would not decode again."""
    try:
        raw = _ENCODER.encode(body)
    except (OverflowError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(body).__name__}: {error}") from error
    decode_body(TYPES[type(body)], raw)
    return raw


def decode_body(type: int, raw: bytes | bytearray | memoryview) -> Body | CheckpointMark:
    """Body of a control frame of types 2-13; `ValueError` means FORMAT [S-26 step 7]."""
    if not _begins_with_version(raw):
        raise ValueError("control body does not begin with `v`")
    try:
        if type == MARK:
            kind = _KIND_DECODER.decode(raw).k
            if kind not in _MARK_DECODERS:
                raise ValueError(f"unknown kind of mark {kind!r}")
            return _MARK_DECODERS[kind].decode(raw)
        if type not in _BODY_DECODERS:
            raise ValueError(f"frame type {type} has no control body")
        return _BODY_DECODERS[type].decode(raw)
    except RecursionError:
        raise ValueError("control body is nested too deeply") from None


def _begins_with_version(raw: bytes | bytearray | memoryview) -> bool:
    # msgspec accepts a map without its tag field, so the presence of `v` is looked up in the bytes.
    if len(raw) < 1:
        return False
    if raw[0] & 0xF0 == 0x80:
        return bytes(raw[1:3]) == b"\xa1v"
    return raw[0] == 0xDE and bytes(raw[3:5]) == b"\xa1v"
