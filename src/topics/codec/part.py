"""Frames of a staged part [S-286]: a `.data` frame without what only the commit can say.

    off  size  field
      0    4   frame_len  u32   bytes after this field; >= 34, as in a `.data` file (segment.py)
      4    1   flags      u8    bit0 has_tag  bit1 has_node; no hops
      5    8   seq        u64   0
     13    8   ts         u64   0
     21    2   node_len   u16
     23    2   tag_len    u16
     25    4   data_len   u32
     29    …   node, tag, data   data = the Append envelope, verbatim
      …    8   xxh3       u64   0; of frames that a client sends [TXN-1], of bytes [4 .. start of xxh3), unmasked
      …    1   del_flag   u8    0

A chunk is such frames one behind another. Nothing in it says how long it is or that it is whole: whoever staged it
knows its place, size, number of records and digest, and staging does not outlive its process.

    encode      records → a chunk                 a client's records, checked
    uploaded    a client's frames → records       every length and checksum verified; limits are not known here
    appends     a chunk → WAL frames, entries     at the commit, a run of records at a time

Pure functions; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest, xxh3_128

from topics.codec import frame, kernel, segment
from topics.codec.envelope import accounted_sizes
from topics.codec.frame import Buffer, NotAFrame, Record, Why
from topics.codec.offsets import SIZE, pack
from topics.codec.segment import FRAME_BYTES_MIN, FRAME_LEN_MAX, FRAME_LEN_MIN, HAS_NODE, HAS_TAG, HEADER_BYTES, IDX

LENGTHS_AT: Final = 21
"""Of the three lengths; from here to the checksum a WAL frame has the same bytes behind its own `ts`."""
TAIL_BYTES: Final = 9
"""Checksum and delete flag."""
_WAL_EXTRA: Final = frame.FRAME_BYTES_MIN - FRAME_BYTES_MIN

_LEN = struct.Struct("<I")
_SUM = struct.Struct("<Q")
_HEADER = struct.Struct("<IBQQHHI")
_WAL_HEAD = struct.Struct("<BBQQQ")
_NO_TAIL: Final = bytes(TAIL_BYTES)


def encode(records: Iterable[Record]) -> bytes:
    """The chunk of some records; `ValueError` for a value that fits no frame."""
    pack = _HEADER.pack
    parts: list[bytes] = []
    add = parts.append
    try:
        for node, tag, data in records:
            flags = 0
            node_text, tag_text = b"", b""
            if node is not None:
                node_text = node.encode()
                flags = HAS_NODE
            if tag is not None:
                tag_text = tag.encode()
                flags |= HAS_TAG
            frame_len = FRAME_LEN_MIN + len(node_text) + len(tag_text) + len(data)
            if frame_len > FRAME_LEN_MAX:
                raise ValueError(f"a frame of {frame_len} bytes exceeds {FRAME_LEN_MAX}")
            add(pack(frame_len, flags, 0, 0, len(node_text), len(tag_text), len(data)))
            add(node_text)
            add(tag_text)
            add(data)
            add(_NO_TAIL)
    except struct.error as error:
        raise ValueError(f"a field does not fit its frame: {error}") from error
    return b"".join(parts)


def digest(chunk: Buffer) -> bytes:
    """What tells equal chunks from others [TXN-2], and whole ones from damaged."""
    return digester(chunk).digest()


def digester(piece: Buffer = b"") -> xxh3_128:
    """The same of a chunk that comes in pieces: `update` it with each, then `digest`."""
    return xxh3_128(piece)


def places(chunk: Buffer, most: int | None = None) -> list[int]:
    """Where the frames of a chunk begin; `NotAFrame` where bytes are none. With `most`, no more than one beyond it."""
    unpack = _LEN.unpack_from
    offsets: list[int] = []
    at, end = 0, len(chunk)
    while at < end:
        if most is not None and len(offsets) > most:
            return offsets
        if end - at < FRAME_BYTES_MIN:
            raise NotAFrame(Why.SHORT, at)
        (frame_len,) = unpack(chunk, at)
        if not FRAME_LEN_MIN <= frame_len <= FRAME_LEN_MAX:
            raise NotAFrame(Why.BAD, at, f"{frame_len} is no length of a frame")
        offsets.append(at)
        at += 4 + frame_len
    if at != end:
        raise NotAFrame(Why.SHORT, offsets[-1])
    return offsets


def uploaded(chunk: Buffer, begins: Iterable[int] | None = None) -> Iterator[Record]:
    """The records of frames that a client made, each verified; `NotAFrame` says what is wrong with the next one."""
    view = memoryview(chunk)
    for at in places(view) if begins is None else begins:
        frame_len, flags, seq, ts, node_len, tag_len, data_len = _HEADER.unpack_from(view, at)
        sum_at = at + 4 + frame_len - TAIL_BYTES
        if xxh3_64_intdigest(view[at + 4 : sum_at]) != _SUM.unpack_from(view, sum_at)[0]:
            raise NotAFrame(Why.BAD, at, "its checksum is not that of its bytes, without a mask")
        if frame.misfits(frame_len - FRAME_LEN_MIN, flags, node_len, tag_len, data_len):
            raise NotAFrame(Why.FORMAT, at, "lengths do not add up")
        if seq or ts or flags & ~(HAS_NODE | HAS_TAG) or view[sum_at + 8]:
            raise NotAFrame(Why.FORMAT, at, "seq, ts, hops and delete flag are for the server to set")
        if not frame.is_text(view, at + HEADER_BYTES, node_len, tag_len):
            raise NotAFrame(Why.FORMAT, at, "node or tag is not UTF-8")
        tag_at = at + HEADER_BYTES + node_len
        data_at = tag_at + tag_len
        node = str(view[tag_at - node_len : tag_at], "utf-8") if flags & HAS_NODE else None
        tag = str(view[tag_at:data_at], "utf-8") if flags & HAS_TAG else None
        yield node, tag, bytes(view[data_at : data_at + data_len])


def upload(records: Iterable[Record]) -> bytes:
    """What a client sends as `application/vnd.topics.frames`: a chunk with unmasked checksums."""
    chunk = bytearray(encode(records))
    with memoryview(chunk) as view:
        for at in places(view):
            sum_at = at + 4 + _LEN.unpack_from(view, at)[0] - TAIL_BYTES
            with view[at + 4 : sum_at] as body:
                found = xxh3_64_intdigest(body)
            _SUM.pack_into(view, sum_at, found)
    return bytes(chunk)


class Framed(NamedTuple):
    """Records of a chunk as the log and the index of a topic take them."""

    frames: bytes
    """Of the WAL."""
    offsets: bytes
    """Of each record's frame in `frames` (codec.offsets)."""
    entries: bytes
    tags: list[bytes | None]
    """Nothing where no record has one."""
    accounted: int

    @property
    def records(self) -> int:
        """How many they are."""
        return len(self.offsets) // SIZE


def appends(
    chunk: bytes, begins: list[int], topic_id: int, first_seq: int, ts: int, *, durable: bool, more: bool
) -> Framed:
    """WAL frames and index entries of the records at ascending places of a chunk, with consecutive seqs from one on.

    `more` says that the submission goes on behind the last of them.
    """
    flag = frame.DURABLE if durable else 0
    if kernel.native is not None and begins:
        made = kernel.native.appends(chunk, pack(begins), topic_id, first_seq, ts, flag, more)
        if made is not None:
            return Framed(*made)
    heads: npt.NDArray[Any] = frame.gather(memoryview(chunk), begins, segment.HEADER)
    starts = np.array(begins, np.int64)
    sizes = heads["frame_len"].astype(np.int64) + 4
    flags = heads["flags"].astype(np.int64)
    around = heads["node_len"].astype(np.int64) + heads["tag_len"]
    accounted = accounted_sizes(chunk, starts + HEADER_BYTES + around, heads["data_len"].astype(np.int64))
    entries = np.empty(len(begins), IDX)
    entries["offset"], entries["len"], entries["ts"] = 0, sizes, ts
    entries["flags_ovh"] = flags | sizes - accounted << 8
    ends = np.cumsum(sizes + _WAL_EXTRA)
    chained = flags | frame.MORE | flag
    if not more and len(chained):
        chained[-1] ^= frame.MORE
    frames = _signed(chunk, begins, (starts + sizes).tolist(), chained.tolist(), topic_id, first_seq, ts)
    assert len(frames) == (int(ends[-1]) if len(ends) else 0), "readers go by these places"
    offsets = (ends - sizes - _WAL_EXTRA).astype("<u8").tobytes()
    return Framed(frames, offsets, entries.tobytes(), _tags(chunk, begins, heads), int(accounted.sum()))


def _signed(
    chunk: bytes, starts: list[int], ends: list[int], flags: list[int], topic_id: int, seq: int, ts: int
) -> bytes:
    pack, pack_len, pack_sum, digest = _WAL_HEAD.pack, _LEN.pack, _SUM.pack, xxh3_64_intdigest
    parts: list[bytes] = []
    add = parts.append
    for start, end, flag in zip(starts, ends, flags, strict=True):
        body = pack(frame.APPEND, flag, topic_id, seq, ts) + chunk[start + LENGTHS_AT : end - TAIL_BYTES]
        add(pack_len(len(body) + 8))
        add(body)
        add(pack_sum(digest(body)))
        seq += 1
    return b"".join(parts)


def _tags(chunk: bytes, begins: list[int], heads: npt.NDArray[Any]) -> list[bytes | None]:
    tagged = np.flatnonzero(heads["flags"] & HAS_TAG)
    tags: list[bytes | None] = [None] * len(begins) if len(tagged) else []
    lens = zip(tagged.tolist(), heads["node_len"][tagged].tolist(), heads["tag_len"][tagged].tolist(), strict=True)
    for at, node_len, tag_len in lens:
        tag_at = begins[at] + HEADER_BYTES + node_len
        tags[at] = chunk[tag_at : tag_at + tag_len]
    return tags


def envelopes(chunk: bytes) -> Iterator[bytes]:
    """The stored envelope of each record."""
    for at in places(chunk):
        frame_len, _, _, _, node_len, tag_len, data_len = _HEADER.unpack_from(chunk, at)
        assert frame_len == FRAME_LEN_MIN + node_len + tag_len + data_len
        data_at = at + HEADER_BYTES + node_len + tag_len
        yield chunk[data_at : data_at + data_len]
