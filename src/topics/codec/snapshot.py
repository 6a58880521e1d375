"""Snapshots (06 §13): what the store knows without its records, as one file.

    off  size  field
      0    4   magic      SNP1
      4    4   version    u32   3
      8    4   body_len   u32   bytes after this header; the file has exactly 24 + body_len
     12    4   reserved   u32   0
     16    8   xxh3       u64   of bytes 0-15 and the body, without a mask
     24    …   body             items: u32 length + one MessagePack map each

The first item is the header, then come the topics, then the routers, as many as the header says. Keys are written in
the order of the fields below, absent optionals are omitted; a reader ignores unknown keys and further elements of a
row, because an incompatible change has a higher version [S-7]. A router item is the body of RouterCreate without `v`,
and its position.

Whatever the bytes are, reading them gives a snapshot, `NotASnapshot`, or `UnsupportedFormat` for an intact file of a
later version [S-215]; no length is used before it was checked against what is there.

`Encoder` works in slices, so that its caller can let other threads run between them [S-214], and decodes every item it
made: what no start-up could read must not get into a file. Items hold no cycles, so the garbage collector need not walk
them (`gc=False`): decoding a large store would set it off again and again. Pure; one thread per `Encoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from xxhash import xxh3_64

from topics import paths
from topics.codec.control import U64, RouterCreate, Selector
from topics.codec.frame import Buffer
from topics.errors import UnsupportedFormat

MAGIC: Final = b"SNP1"
VERSION: Final = 3
ITEM_VERSION: Final = 1
"""Of the header item's `v`, which speaks for all items."""
HEADER_BYTES: Final = 24
BODY_BYTES_MAX: Final = 2**32 - 1

SEALED: Final = 0x01
COLD: Final = 0x02
GAP: Final = 0x04

_HEAD = struct.Struct("<4sIII")
_LEN = struct.Struct("<I")
_SUM = struct.Struct("<Q")

_T = TypeVar("_T")


class NotASnapshot(ValueError):
    """Bytes that are not a snapshot this version wrote [S-215]."""


class WalRow(Struct, frozen=True, array_like=True, gc=False):
    """Replay position of one group of WAL files [S-211]; a retired row has a fourth element on disk, others three."""

    group: str
    """`""` for `wal/`, else the name of the shard's directory."""
    file_no: U64
    offset: U64
    retired: Annotated[int, Meta(ge=0, le=1)] = 0

    def __post_init__(self) -> None:
        if self.group and paths.parse_shard_dir(self.group) is None:
            raise ValueError(f"no group of WAL files is called {self.group!r}")


class CommitRow(Struct, frozen=True, array_like=True, gc=False):
    """Committed version of a writer [S-287]."""

    id: str
    version: U64
    ts: U64


class PendingDelete(Struct, frozen=True, array_like=True, gc=False):
    """A delete whose `$deletes` record is not yet durable (00 A-20)."""

    topic_id: U64
    name: str
    epoch: U64
    delete_number: U64
    ts: U64
    before_seq: U64 | None
    match: Selector | None
    seqs: tuple[U64, ...] | None
    bound: U64 | None
    removed: U64 | None
    """None if unknown, and for a topic delete."""
    drop: bool
    """The topic itself was deleted."""


class Header(Struct, frozen=True, kw_only=True, gc=False):
    """First item: what concerns the store as a whole, captured before the first topic [S-218]."""

    v: U64 = ITEM_VERSION
    id: U64
    """Number of the snapshot, as in its name [S-135]."""
    ts: U64
    store: str
    run: U64
    boot: str
    clean: bool
    next_topic_id: U64
    next_epoch: U64
    next_router_op: U64
    ckpt: U64
    """Checkpoint number."""
    cold: str | None
    """The configured cold root, without credentials."""
    commits: tuple[CommitRow, ...] = field(name="txn", default=())
    pending_deletes: tuple[PendingDelete, ...] = field(name="dp", default=())
    wal: tuple[WalRow, ...]
    topics: U64 = 0
    """How many topic items follow; `Encoder` fills it in, as it does `routers`."""
    routers: U64 = 0


class SegmentRow(Struct, frozen=True, array_like=True, gc=False):
    """One segment of a topic."""

    first: U64
    count: U64
    """Of seqs."""
    data_len: U64
    flags: U64
    """SEALED, COLD, GAP."""
    live: U64
    live_bytes: U64
    idx_xxh3: U64
    """Sealed: hash of the footer; active: as in a mark [S-44]."""


class KeyRow(Struct, frozen=True, array_like=True, gc=False):
    """An idempotency key and the records it stands for, as of `ckpt_seq` [S-219]."""

    key: str
    first: U64
    count: U64
    ts: U64


class ProducerRow(Struct, frozen=True, array_like=True, gc=False):
    """A producer's newest pair, as of `ckpt_seq` [S-219]."""

    id: str
    epoch: U64
    index: U64
    first: U64
    count: U64
    ts: U64


class LeaseRow(Struct, frozen=True, array_like=True, gc=False):
    """A job in the hands of a node."""

    seq: U64
    node: str
    lease_id: U64
    deadline_ms: U64


class DeliveryRow(Struct, frozen=True, array_like=True, gc=False):
    """How often a job was delivered."""

    seq: U64
    deliveries: U64


class DelayRow(Struct, frozen=True, array_like=True, gc=False):
    """A released job that is not yet ready."""

    ready_at_ms: U64
    seq: U64


class QueueState(Struct, frozen=True, kw_only=True, gc=False):
    """A queue with durable leases."""

    cursor: U64 = field(name="cur")
    """Claim cursor."""
    dead_lettered: U64 = field(name="dl")
    leases: tuple[LeaseRow, ...]
    deliveries: tuple[DeliveryRow, ...] = field(name="dv")
    delayed: tuple[DelayRow, ...]


class TopicItem(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One topic, captured in one stretch [S-214]."""

    id: U64
    name: str
    epoch: U64
    cfg: dict[str, Any]
    """Complete normalised configuration; unknown names are kept."""
    config_version: U64 = field(name="cv")
    base: U64
    """First seq."""
    head_seq: U64 = field(name="head")
    ckpt_seq: U64 = field(name="ck")
    reserved: U64 = field(name="res")
    cap_floor: U64 = field(name="cf")
    ttl_floor: U64 = field(name="tf")
    delete_below: U64 = field(name="db")
    delete_number: U64 = field(name="dn")
    deletes_recorded: U64 = field(name="dr")
    """Highest delete number whose `$deletes` record is durable."""
    last_write_ms: U64 = field(name="lw")
    segments: tuple[SegmentRow, ...] = field(name="segs")
    keys: tuple[KeyRow, ...] = field(name="idem", default=())
    producers: tuple[ProducerRow, ...] = field(name="prod", default=())
    queue: QueueState | None = field(name="q", default=None)


class RouterItem(RouterCreate, frozen=True, kw_only=True, tag=False):
    """One router: what created it, and its position [S-212]. `cursor` is where it began, `position` where it is."""

    position: U64 = field(name="cursor")
    total: U64
    dest_head: U64


class Snapshot(NamedTuple):
    """A decoded snapshot."""

    header: Header
    topics: list[TopicItem]
    routers: list[RouterItem]


class _Version(Struct):
    v: U64


_ENCODER = msgspec.msgpack.Encoder()
_VERSION = msgspec.msgpack.Decoder(_Version)
_HEADER = msgspec.msgpack.Decoder(Header)
_TOPIC = msgspec.msgpack.Decoder(TopicItem)
_ROUTER = msgspec.msgpack.Decoder(RouterItem)


class Encoder:
    """A snapshot in the making: topics in slices, then routers, then `finish`, once."""

    __slots__ = ("_bytes", "_header", "_parts", "_routers", "_topics")

    def __init__(self, header: Header) -> None:
        self._header = header
        self._parts: list[bytes] = []
        self._bytes = 0
        self._topics = 0
        self._routers = 0

    def add_topics(self, topics: Iterable[TopicItem]) -> None:
        """Append topics; `ValueError` for one that would not decode again."""
        assert not self._routers, "topics come before routers"
        for topic in topics:
            self._append(_encode_item(topic, _TOPIC))
            self._topics += 1

    def add_routers(self, routers: Iterable[RouterItem]) -> None:
        """Append routers; `ValueError` for one that would not decode again."""
        for router in routers:
            self._append(_encode_item(router, _ROUTER))
            self._routers += 1

    def add_pending_deletes(self, rows: tuple[PendingDelete, ...]) -> None:
        """Say in the header which deletes are not recorded yet."""
        self._header = msgspec.structs.replace(self._header, pending_deletes=rows)

    def finish(self) -> bytes:
        """The whole file; `ValueError` if its body does not fit a u32."""
        header = msgspec.structs.replace(self._header, topics=self._topics, routers=self._routers)
        first = _encode_item(_header_map(header), _HEADER)
        body_len = self._bytes + len(first)
        if body_len > BODY_BYTES_MAX:
            raise ValueError(f"a snapshot cannot hold {body_len} bytes")
        head = _HEAD.pack(MAGIC, VERSION, body_len, 0)
        digest = xxh3_64(head)
        digest.update(first)
        for part in self._parts:
            digest.update(part)
        return b"".join((head, _SUM.pack(digest.intdigest()), first, *self._parts))

    def _append(self, item: bytes) -> None:
        self._parts.append(item)
        self._bytes += len(item)


def encode(header: Header, topics: Iterable[TopicItem], routers: Iterable[RouterItem]) -> bytes:
    """A whole snapshot in one go; the counts of `header` are filled in."""
    encoder = Encoder(header)
    encoder.add_topics(topics)
    encoder.add_routers(routers)
    return encoder.finish()


def decode(raw: Buffer) -> Snapshot:
    """The whole snapshot; `NotASnapshot`, or `UnsupportedFormat` for a later version's."""
    view = memoryview(raw)
    header, spans = _open(view)
    at = 1 + header.topics
    topics = [_decode_item(_TOPIC, view[start:end]) for start, end in spans[1:at]]
    routers = [_decode_item(_ROUTER, view[start:end]) for start, end in spans[at:]]
    if len({topic.id for topic in topics}) != len(topics):
        raise NotASnapshot("a topic id occurs twice")
    return Snapshot(header, topics, routers)


def verify(raw: Buffer) -> Header:
    """The header of a snapshot whose checksum, framing and counts are right; topics and routers are not decoded."""
    return _open(memoryview(raw))[0]


def _open(view: memoryview) -> tuple[Header, list[tuple[int, int]]]:
    """Header and the spans of all items, the header's first."""
    _check_file(view)
    spans = _spans(view)
    if not spans:
        raise NotASnapshot("no header item")
    first = view[slice(*spans[0])]
    v = _decode_item(_VERSION, first).v
    if v > ITEM_VERSION:
        raise UnsupportedFormat(f"snapshot items of version {v}, this is version {ITEM_VERSION}")
    header = _decode_item(_HEADER, first)
    if v != ITEM_VERSION:
        raise NotASnapshot(f"items of version {v}")
    if len(spans) != 1 + header.topics + header.routers:
        raise NotASnapshot(f"{len(spans)} items for {header.topics} topics and {header.routers} routers")
    return header, spans


def _check_file(view: memoryview) -> None:
    """Magic, size, reserved word and checksum; of a later version only what tells that it is one [S-7]."""
    if len(view) < HEADER_BYTES or bytes(view[:4]) != MAGIC:
        raise NotASnapshot("no snapshot header")
    _, version, body_len, reserved = _HEAD.unpack_from(view, 0)
    if version == VERSION and (len(view) != HEADER_BYTES + body_len or reserved):
        raise NotASnapshot(f"{len(view)} bytes, body of {body_len}, reserved word {reserved}")
    digest = xxh3_64(view[: _HEAD.size])
    digest.update(view[HEADER_BYTES:])
    if digest.intdigest() != _SUM.unpack_from(view, _HEAD.size)[0]:
        raise NotASnapshot("checksum mismatch")
    if version > VERSION:
        raise UnsupportedFormat(f"snapshot version {version}, this is version {VERSION}")
    if version != VERSION:
        raise NotASnapshot(f"snapshot version {version}")


def _spans(view: memoryview) -> list[tuple[int, int]]:
    unpack_len, end = _LEN.unpack_from, len(view)
    spans: list[tuple[int, int]] = []
    at = HEADER_BYTES
    while at < end:
        start = at + 4
        if start > end or (at := start + unpack_len(view, at)[0]) > end:
            raise NotASnapshot("an item ends behind the body")
        spans.append((start, at))
    return spans


def _decode_item(decoder: msgspec.msgpack.Decoder[_T], item: memoryview) -> _T:
    try:
        return decoder.decode(item)
    except (ValueError, RecursionError) as error:
        raise NotASnapshot(f"undecodable item: {error}") from error


def _encode_item(item: Struct | dict[str, object], decoder: msgspec.msgpack.Decoder[Any]) -> bytes:
    """Length and map of one item."""
    try:
        raw = _ENCODER.encode(item)
        length = _LEN.pack(len(raw))
    except (OverflowError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(f"an item that cannot be encoded: {error}") from error
    _decode_item(decoder, memoryview(raw))
    return length + raw


def _header_map(header: Header) -> dict[str, object]:
    """The header as it is written: optional keys absent when empty, the fourth element only in retired rows."""
    written = {one.encode_name: getattr(header, one.name) for one in msgspec.structs.fields(header)}
    written["wal"] = [msgspec.structs.astuple(row)[: 4 if row.retired else 3] for row in header.wal]
    return {key: value for key, value in written.items() if value or key not in ("txn", "dp")}
