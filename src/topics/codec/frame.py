"""WAL frames (06 §3): encoding a submission, scanning a file, and judging where its valid part ends (06 §5).

    off  size  field
      0    4   frame_len  u32   bytes after this field; 42 <= frame_len <= 33554432
      4    1   type       u8    1 Append, 2-13 control (control.py), 14 Pad
      5    1   flags      u8    bit0 has_tag  bit1 has_node  bit2 durable
                                bit3 more  bit4 synced_prefix  bits 5-7 hops
      6    8   topic_id   u64   0 for frames of no topic
     14    8   seq        u64   Append: the record; Lease: the job; else 0
     22    8   ts         u64   commit ms
     30    2   node_len   u16
     32    2   tag_len    u16
     34    4   data_len   u32
     38    …   node, tag, data
      …    8   xxh3       u64   over bytes [4 .. start of xxh3)

Outcomes of a decode, in this order [S-26]: SHORT and ZERO and BAD are judged by 06 §5, FORMAT means intact bytes
this version cannot interpret. Nothing is read or allocated from a length before it was checked against the buffer.

Whole-batch functions over bytes and numpy arrays: no object per stored record. Pure functions; any thread.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UNSET
from xxhash import xxh3_64_intdigest

from topics.codec import kernel
from topics.codec.control import MARK, TYPES, Body, CheckpointMark, OpenMark, decode_body, encode_body
from topics.codec.offsets import SIZE as OFFSET_BYTES
from topics.codec.offsets import at as offset_at
from topics.codec.scan import FileInfo, Place, Scan, zero_tail

APPEND: Final = 1
PAD: Final = 14

HAS_TAG: Final = 0x01
HAS_NODE: Final = 0x02
DURABLE: Final = 0x04
MORE: Final = 0x08
SYNCED_PREFIX: Final = 0x10
HOPS_SHIFT: Final = 5
HOPS_MAX: Final = 7

HEADER_BYTES: Final = 38
FRAME_BYTES_MIN: Final = 46
"""Bytes of a frame around node, tag and data: frame_len field, header and checksum."""
FRAME_LEN_MIN: Final = 42
FRAME_LEN_MAX: Final = 33554432

Buffer = bytes | bytearray | memoryview

Record = tuple[str | None, str | None, bytes]
"""Node, tag and envelope of a record to be written."""

_N = TypeVar("_N", int, npt.NDArray[Any])
_U64_MAX: Final = 2**64 - 1

_LEN = struct.Struct("<I")
_SUM = struct.Struct("<Q")
_BODY = struct.Struct("<BBQQQHHI")
_HEADER = struct.Struct("<IBBQQQHHI")
_DATA_LEN = _FRAME_LEN = struct.Struct("<I")
_TEXT_LENS = struct.Struct("<HH")
_TEXT_LENS_AT: Final = 30

HEADER: Final = np.dtype(
    [
        ("frame_len", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
        ("topic_id", "<u8"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)

ROW: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("topic_id", "<u8"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("len", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
    ]
)
"""Index row of one frame; `len` is its total size, frame_len field included."""

# A candidate start has byte o+3 <= 0x02 and byte o+4 in 1..14 [S-62]; the match is byte o+3.
_CANDIDATE = re.compile(rb"[\x00-\x02](?=[\x01-\x0e])")


class Why(Enum):
    """Why bytes are not a frame [S-26]."""

    SHORT = "short"
    """The buffer ends first; also at its very end."""
    ZERO = "zero"
    BAD = "bad"
    FORMAT = "format"


class NotAFrame(ValueError):
    """Bytes that do not decode to a frame; `why` says which check failed first."""

    def __init__(self, why: Why, offset: int, detail: str = "") -> None:
        super().__init__(f"{why.value} at {offset}: {detail}" if detail else f"{why.value} at {offset}")
        self.why = why
        self.offset = offset


class Frame(NamedTuple):
    """One decoded frame; `end` is the offset behind it."""

    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes | None
    tag: bytes | None
    data: bytes
    end: int


class FrameScan(NamedTuple):
    """The valid frames from a start offset on, and why they stop."""

    rows: npt.NDArray[np.void]
    stop: int
    """Offset of the first byte that is not part of a valid frame; the end of the range when all of it is."""
    why: Why
    detail: str


class OpenContext(NamedTuple):
    """What the open mark of a new file tells, given as `FileInfo.context`."""

    run: int
    boot: str
    shard: int
    shards: int
    ts: int


def encode_appends(
    records: Sequence[Record],
    topic_id: int,
    first_seq: int,
    ts: int,
    *,
    durable: bool = False,
    hops: int = 0,
    more: bool = False,
) -> bytes:
    """Frames of consecutive records of one topic, chained by `more` [S-24]; `more` says that the submission goes on.

    `ValueError` for a value that fits no frame; nothing is encoded then.
    """
    if not 0 <= hops <= 8:
        raise ValueError(f"{hops} hops")
    chained = MORE | (DURABLE if durable else 0) | min(hops, HOPS_MAX) << HOPS_SHIFT
    if kernel.native is not None and 0 <= topic_id <= _U64_MAX and 0 <= first_seq <= _U64_MAX and 0 <= ts <= _U64_MAX:
        rows = records if isinstance(records, list) else list(records)
        framed = kernel.native.frame_values(rows, topic_id, first_seq, ts, chained ^ MORE, more)
        if framed is not None:
            return framed
    return _appends(records, topic_id, first_seq, ts, chained, more=more)


def _appends(records: Sequence[Record], topic_id: int, first_seq: int, ts: int, chained: int, *, more: bool) -> bytes:
    pack, digest = _BODY.pack, xxh3_64_intdigest
    parts: list[bytes] = []
    add = parts.append
    last_seq = first_seq + len(records) - 1
    seq = first_seq
    try:
        for node, tag, data in records:
            flags = chained if more or seq != last_seq else chained ^ MORE
            text = b""
            node_len = tag_len = 0
            if node is not None:
                text = node.encode()
                node_len = len(text)
                flags |= HAS_NODE
            if tag is not None:
                raw = tag.encode()
                tag_len = len(raw)
                text += raw
                flags |= HAS_TAG
            data_len = len(data)
            frame_len = FRAME_LEN_MIN + len(text) + data_len
            if frame_len > FRAME_LEN_MAX:
                raise ValueError(f"a frame of {frame_len} bytes exceeds {FRAME_LEN_MAX}")
            body = pack(APPEND, flags, topic_id, seq, ts, node_len, tag_len, data_len) + text + data
            add(frame_len.to_bytes(4, "little"))
            add(body)
            add(digest(body).to_bytes(8, "little"))
            seq += 1
    except struct.error as error:
        raise ValueError(f"a field does not fit its frame: {error}") from error
    return b"".join(parts)


def encode_control(
    body: Body | CheckpointMark,
    topic_id: int,
    ts: int,
    *,
    seq: int = 0,
    durable: bool = False,
    more: bool = False,
    synced_prefix: bool = False,
) -> bytes:
    """One control frame; its type follows from the body. `seq` is the job of a Lease."""
    flags = (DURABLE if durable else 0) | (MORE if more else 0) | (SYNCED_PREFIX if synced_prefix else 0)
    return _encode(TYPES[type(body)], flags, topic_id, seq, ts, encode_body(body))


def encode_pads(length: int) -> bytes:
    """Pad frames of exactly `length` bytes, at least 46 [S-66]."""
    if length < FRAME_BYTES_MIN:
        raise ValueError(f"no frame fits {length} bytes")
    parts = []
    while length:
        # What a full frame leaves must still hold a frame.
        size = length if length <= FRAME_LEN_MAX + 4 else min(FRAME_LEN_MAX + 4, length - FRAME_BYTES_MIN)
        parts.append(_encode(PAD, 0, 0, 0, 0, bytes(size - FRAME_BYTES_MIN)))
        length -= size
    return b"".join(parts)


def _encode(type: int, flags: int, topic_id: int, seq: int, ts: int, data: bytes) -> bytes:
    frame_len = FRAME_LEN_MIN + len(data)
    if frame_len > FRAME_LEN_MAX:
        raise ValueError(f"a frame of {frame_len} bytes exceeds {FRAME_LEN_MAX}")
    try:
        body = _BODY.pack(type, flags, topic_id, seq, ts, 0, 0, len(data)) + data
    except struct.error as error:
        raise ValueError(f"a field does not fit its frame: {error}") from error
    return _LEN.pack(frame_len) + body + _SUM.pack(xxh3_64_intdigest(body))


def set_synced_prefix(buffer: bytearray, offset: int = 0) -> None:
    """Flag a frame of our own in place: everything before it in its file is synced [S-25]."""
    (frame_len,) = _LEN.unpack_from(buffer, offset)
    end = offset + 4 + frame_len
    assert FRAME_LEN_MIN <= frame_len <= FRAME_LEN_MAX
    assert end <= len(buffer)
    buffer[offset + 5] |= SYNCED_PREFIX
    with memoryview(buffer) as view, view[offset + 4 : end - 8] as body:
        digest = xxh3_64_intdigest(body)
    _SUM.pack_into(buffer, end - 8, digest)


def decode(buffer: Buffer, offset: int = 0) -> Frame:
    """The frame at `offset`; `NotAFrame` says which check of S-26 failed first."""
    assert offset >= 0
    view = memoryview(buffer)
    offsets, end, why = _walk(view, offset, len(view), 1)
    if not offsets:
        raise NotAFrame(why, offset)
    frame_len, type, flags, topic_id, seq, ts, node_len, tag_len, data_len = _HEADER.unpack_from(view, offset)
    if misfits(frame_len - FRAME_LEN_MIN, flags, node_len, tag_len, data_len):
        raise NotAFrame(Why.FORMAT, offset, "lengths do not add up")
    if not is_text(view, offset + HEADER_BYTES, node_len, tag_len):
        raise NotAFrame(Why.FORMAT, offset, "node or tag is not UTF-8")
    tag_at = offset + HEADER_BYTES + node_len
    data_at = tag_at + tag_len
    detail = _content_error(type, node_len + tag_len, view[data_at : data_at + data_len])
    if detail:
        raise NotAFrame(Why.FORMAT, offset, detail)
    node = bytes(view[tag_at - node_len : tag_at]) if flags & HAS_NODE else None
    tag = bytes(view[tag_at:data_at]) if flags & HAS_TAG else None
    return Frame(type, flags, topic_id, seq, ts, node, tag, bytes(view[data_at : data_at + data_len]), end)


def plain_appends(buffer: bytes, places: Iterable[tuple[int, int, int]], topic_id: int) -> Iterator[Frame | None]:
    """`decode` of records without node and tag whose seq, offset and size are known; None: look at it closer."""
    unpack, unpack_sum, digest = _HEADER.unpack_from, _SUM.unpack_from, xxh3_64_intdigest
    for seq, at, size in places:
        end = at + size
        if size < FRAME_BYTES_MIN or end > len(buffer):
            yield None
            continue
        frame_len, type, flags, id, found, ts, node_len, tag_len, data_len = unpack(buffer, at)
        if (
            frame_len != size - 4
            or (type, id, found) != (APPEND, topic_id, seq)
            or flags & (HAS_NODE | HAS_TAG)
            or node_len
            or tag_len
            or data_len != size - FRAME_BYTES_MIN
            or digest(buffer[at + 4 : end - 8]) != unpack_sum(buffer, end - 8)[0]
        ):
            yield None
            continue
        yield Frame(type, flags, id, seq, ts, None, None, buffer[at + HEADER_BYTES : end - 8], end)


def fields(buffer: Buffer, offset: int = 0) -> Frame:
    """The frame at `offset` of bytes that were encoded here and never left memory: nothing is verified."""
    frame_len, type, flags, topic_id, seq, ts, node_len, tag_len, data_len = _HEADER.unpack_from(buffer, offset)
    tag_at = offset + HEADER_BYTES + node_len
    data_at = tag_at + tag_len
    node = bytes(buffer[tag_at - node_len : tag_at]) if flags & HAS_NODE else None
    tag = bytes(buffer[tag_at:data_at]) if flags & HAS_TAG else None
    data = bytes(buffer[data_at : data_at + data_len])
    return Frame(type, flags, topic_id, seq, ts, node, tag, data, offset + 4 + frame_len)


def data_bytes(buffer: Buffer, offset: int) -> int:
    """How long the payload of such a frame is."""
    size: int = _DATA_LEN.unpack_from(buffer, offset + HEADER_BYTES - _DATA_LEN.size)[0]
    return size


def span_bytes(buffer: Buffer, offsets: bytes) -> int:
    """From the first of such frames to the end of the last, by where they begin (codec.offsets)."""
    last = offset_at(offsets, len(offsets) // OFFSET_BYTES - 1)
    size: int = last - offset_at(offsets, 0) + 4 + _FRAME_LEN.unpack_from(buffer, last)[0]
    return size


def scan_frames(buffer: Buffer, start: int = 0, end: int | None = None) -> FrameScan:
    """Every valid frame from `start` on, and why the next bytes are none [S-26]."""
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    if not 0 <= start <= end:
        raise ValueError(f"range {start}..{end} is not in the buffer")
    if kernel.native is not None:
        return _scanned(view, *_verified(view, start, end, kernel.native))
    offsets, stop, why = _walk(view, start, end, end)
    heads = gather(view, offsets, HEADER)
    valid, detail = _first_format_error(view, offsets, heads)
    if detail:
        stop, why = offsets[valid], Why.FORMAT
    return FrameScan(_rows(offsets[:valid], heads[:valid]), stop, why, detail)


SCAN_BYTES: Final = 2 << 20
"""Scanned at once."""
VERDICTS: Final = (
    (Why.SHORT, ""),
    (Why.ZERO, ""),
    (Why.BAD, ""),
    (Why.FORMAT, "lengths do not add up"),
    (Why.FORMAT, "node or tag is not UTF-8"),
    (Why.BAD, "seq does not ascend"),
)
"""What the numbers of the compiled scans stand for."""


def _verified(view: memoryview, start: int, end: int, native: kernel.Native) -> tuple[npt.NDArray[np.void], int, int]:
    """The compiled scan in pieces: what it found is copied while no other thread of the process runs."""
    found: list[npt.NDArray[np.void]] = []
    at, size = start, SCAN_BYTES
    while True:
        until = min(at + size, end)
        raw, stop, verdict = native.verify(view, at, until)
        found.append(np.frombuffer(raw, ROW))
        if until == end or VERDICTS[verdict][0] is not Why.SHORT:
            return np.concatenate(found), stop, verdict
        # The piece ends within a frame, which may be larger than a piece.
        size = SCAN_BYTES if stop > at else 2 * size
        at = stop


def _scanned(view: memoryview, rows: npt.NDArray[np.void], stop: int, verdict: int) -> FrameScan:
    """What the compiled scan found; it does not look into control frames (step 7 of S-26)."""
    why, detail = VERDICTS[verdict]
    others = np.flatnonzero(rows["type"] != APPEND)
    for i in others.tolist():
        at, size, kind = int(rows["offset"][i]), int(rows["len"][i]), int(rows["type"][i])
        node_len, tag_len = _TEXT_LENS.unpack_from(view, at + _TEXT_LENS_AT)
        data_at = at + HEADER_BYTES + node_len + tag_len
        wrong = _content_error(kind, node_len + tag_len, view[data_at : at + size - 8])
        if wrong:
            return FrameScan(rows[:i], at, Why.FORMAT, wrong)
    return FrameScan(rows, stop, why, detail)


def resync(buffer: Buffer, start: int, end: int | None = None) -> npt.NDArray[np.void]:
    """Rows of the valid frames (S-26 steps 1-6) found at or after `start`, wherever they begin [S-62]."""
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    # Trailing zeros hold no start of a frame, but they may be the last bytes of a checksum.
    last = zero_tail(view[:end], start)
    offsets: list[int] = []
    at = start
    while (found := _CANDIDATE.search(view, at + 3, last)) is not None:
        at = found.start() - 3
        behind = valid_end(view, at, end)
        if behind:
            offsets.append(at)
            at = behind
        else:
            at += 1
    return _rows(offsets, gather(view, offsets, HEADER))


def length_agrees(file_no: int, valid_bytes: int, next_file: Buffer) -> bool:
    """Whether a file has the length that the open mark of the next file gives it, where that is readable [S-68]."""
    try:
        frame = decode(next_file)
        mark = decode_body(frame.type, frame.data) if frame.type == MARK else None
    except ValueError:
        return True
    if not isinstance(mark, OpenMark) or not isinstance(mark.prev, tuple) or mark.prev[0] != file_no:
        return True
    return mark.prev[1] == valid_bytes


class FrameCodec:
    """The server's codec for the segmented log: open marks in front, verdicts by 06 §5. Stateless; any thread."""

    def preamble(self, info: FileInfo) -> bytes:
        """The open mark of a new file [S-20]; `info.context` is an `OpenContext`."""
        context = info.context
        assert isinstance(context, OpenContext)
        mark = OpenMark(
            run=context.run,
            boot=context.boot,
            shard=context.shard,
            shards=context.shards,
            file=info.id,
            prev=UNSET if info.previous is None else info.previous,
        )
        return encode_control(mark, 0, context.ts, synced_prefix=True)

    def scan(self, view: memoryview, start: int, place: Place) -> Scan:
        """How far a file is valid; `start` is the start of a submission."""
        if start > len(view):
            return Scan(len(view), 0, "corrupt", f"file ends at {len(view)}, before the replay position {start}")
        return self.judge(view, start, place, scan_frames(view, start))

    def judge(self, view: memoryview, start: int, place: Place, found: FrameScan) -> Scan:
        """The same, for one who looks at the frames too."""
        rows, stop, why, detail = found
        if why is Why.FORMAT:
            return Scan(stop, len(rows), "format", f"offset {stop}: {detail}")
        whole = _whole_submissions(rows)
        kept = int(rows["offset"][whole - 1]) + int(rows["len"][whole - 1]) if whole else start
        if zero_tail(view, stop) == stop:
            if whole == len(rows):
                return Scan(stop, whole, "clean")
            if place != "inner":
                return Scan(kept, whole, "torn", f"offset {kept}: submission without its last frame")
            return Scan(stop, len(rows), "corrupt", f"offset {stop}: submission without its last frame")
        beyond = resync(view, stop + 1)
        if place != "inner" and not (beyond["flags"] & SYNCED_PREFIX).any():
            return Scan(kept, whole, "torn", f"offset {stop}: {why.value}, {len(beyond)} valid frames beyond")
        topics = ", ".join(map(str, np.unique(beyond["topic_id"])[:20]))
        return Scan(
            stop,
            len(rows),
            "corrupt",
            f"offset {stop}: {why.value}, {len(beyond)} valid frames beyond, of topics [{topics}]",
        )


def _walk(view: memoryview, at: int, end: int, limit: int) -> tuple[list[int], int, Why]:
    """Steps 1-5 of S-26 for at most `limit` frames: their offsets, the offset behind them, why the next one fails."""
    unpack_len, unpack_sum, digest = _LEN.unpack_from, _SUM.unpack_from, xxh3_64_intdigest
    offsets: list[int] = []
    add = offsets.append
    while True:
        if end - at < 4:
            return offsets, at, Why.SHORT
        (frame_len,) = unpack_len(view, at)
        if frame_len == 0:
            return offsets, at, Why.ZERO
        if not FRAME_LEN_MIN <= frame_len <= FRAME_LEN_MAX:
            return offsets, at, Why.BAD
        behind = at + 4 + frame_len
        if behind > end:
            return offsets, at, Why.SHORT
        if digest(view[at + 4 : behind - 8]) != unpack_sum(view, behind - 8)[0]:
            return offsets, at, Why.BAD
        add(at)
        at = behind
        if len(offsets) == limit:
            return offsets, at, Why.SHORT  # not looked at


def gather(view: memoryview, offsets: list[int] | npt.NDArray[np.integer], header: np.dtype[Any]) -> npt.NDArray[Any]:
    """Header fields of the frames at `offsets`, in one call."""
    if not len(offsets):
        return np.empty(0, header)
    # A view with one (overlapping) header per byte lets numpy pick the real ones.
    everywhere = np.ndarray((len(view) - header.itemsize + 1,), header, view, strides=(1,))
    return everywhere[offsets]


def rows_at(buffer: Buffer, offsets: list[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.void]:
    """Rows of frames whose places are known and whose bytes were verified before."""
    return _rows(offsets, gather(memoryview(buffer), offsets, HEADER))


def _rows(offsets: list[int] | npt.NDArray[np.integer], heads: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    rows = np.empty(len(offsets), ROW)
    rows["offset"] = offsets
    rows["len"] = heads["frame_len"] + np.uint32(4)
    for name in ("type", "flags", "topic_id", "seq", "ts"):
        rows[name] = heads[name]
    return rows


def _first_format_error(view: memoryview, offsets: list[int], heads: npt.NDArray[np.void]) -> tuple[int, str]:
    """Steps 6-7 for frames whose checksum is right: how many pass, and what is wrong with the next one."""
    node_len, tag_len = heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64)
    data_len = heads["data_len"].astype(np.int64)
    misfit = np.flatnonzero(
        misfits(heads["frame_len"] - np.uint32(FRAME_LEN_MIN), heads["flags"], node_len, tag_len, data_len)
    )
    fitting = int(misfit[0]) if len(misfit) else len(offsets)
    # Only node and tag texts and control bodies need a look at each frame.
    looked_at = np.flatnonzero((node_len + tag_len > 0) | (heads["type"] != APPEND))
    fields = (node_len, tag_len, data_len, heads["type"])
    for i, *lens, kind in zip(looked_at.tolist(), *(field[looked_at].tolist() for field in fields), strict=True):
        if i >= fitting:
            break
        text_at = offsets[i] + HEADER_BYTES
        if not is_text(view, text_at, lens[0], lens[1]):
            return i, "node or tag is not UTF-8"
        data_at = text_at + lens[0] + lens[1]
        detail = _content_error(kind, data_at - text_at, view[data_at : data_at + lens[2]])
        if detail:
            return i, detail
    return fitting, "lengths do not add up" if len(misfit) else ""


def misfits(body_len: _N, flags: _N, node_len: _N, tag_len: _N, data_len: _N) -> bool | npt.NDArray[np.bool_]:
    """Whether lengths fail to add up to what the frame holds, or break S-22; for one header or for arrays of them."""
    wrong: bool | npt.NDArray[np.bool_] = (
        (node_len + tag_len + data_len != body_len)
        | ((flags & HAS_NODE == 0) & (node_len != 0))
        | ((flags & HAS_TAG == 0) & (tag_len != 0))
    )
    return wrong


def is_text(view: memoryview, at: int, node_len: int, tag_len: int) -> bool:
    """Whether the node at `at` and the tag behind it are valid UTF-8, each by itself."""
    text = bytes(view[at : at + node_len + tag_len])
    if text.isascii():
        return True
    try:
        text[:node_len].decode()
        text[node_len:].decode()
    except UnicodeDecodeError:
        return False
    return True


def _content_error(type: int, text_len: int, data: memoryview) -> str:
    """Step 7 of S-26: what this version cannot interpret, empty when nothing."""
    if type in (APPEND, PAD):
        return ""
    if not APPEND < type < PAD:
        return f"unknown frame type {type}"
    if text_len:
        return f"node or tag in a frame of type {type}"
    try:
        decode_body(type, data)
    except ValueError as error:
        return str(error)
    return ""


def valid_end(view: memoryview, at: int, end: int) -> int:
    """Offset behind the frame at `at` if it passes steps 1-6 of S-26, else 0.

    The cheap checks come first: a candidate is nearly always noise, and hashing what its length claims is not free.
    """
    if end - at < FRAME_BYTES_MIN:
        return 0
    frame_len, _, flags, _, _, _, node_len, tag_len, data_len = _HEADER.unpack_from(view, at)
    behind: int = at + 4 + frame_len
    if (
        frame_len > FRAME_LEN_MAX
        or behind > end
        or misfits(frame_len - FRAME_LEN_MIN, flags, node_len, tag_len, data_len)
    ):
        return 0
    if xxh3_64_intdigest(view[at + 4 : behind - 8]) != _SUM.unpack_from(view, behind - 8)[0]:
        return 0
    return behind if is_text(view, at + HEADER_BYTES, node_len, tag_len) else 0


def _whole_submissions(rows: npt.NDArray[np.void]) -> int:
    """How many leading frames belong to submissions that have their last frame [S-24]."""
    last = np.flatnonzero(rows["flags"] & MORE == 0)
    return int(last[-1]) + 1 if len(last) else 0
