"""From stored frames to the JSON records of an answer [REC-2, REC-3, REC-4]: payload bytes are copied, never parsed.

    {"$seq":31,"$ts":1790000123456,"$node":"dock-7","$tag":"pallet:A19","meta":{"k":1},"data":{"kg":412.5}}

`run_of_segment` and `run_of_wal` take whole runs: headers are read as one array, each frame is hashed once, each record
formatted once. What they make are pieces to be joined by commas; one piece may be several records. Where anything is
out of the ordinary they answer None, and the caller decodes frame by frame. Pure functions; any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from topics.codec import envelope, frame, kernel, segment
from topics.codec.frame import HAS_NODE, HAS_TAG, Buffer

RUN_BYTES_MAX: Final = 16 << 20
FEW: Final = 8
_ID_MAX: Final = 1 << 63
_DATA_AT: Final = envelope.PLAIN_BYTES - 1
"""Of the payload within its envelope."""

_encode = msgspec.json.Encoder().encode


class Projection(NamedTuple):
    """What of a record is wanted besides its seq, instant, node and payload."""

    tags: bool = False
    metas: bool = True
    data: bool = True
    """Only streams do without it [REC-3]."""
    mask: int | None = None
    """Not JSON at all, but the `.data` frames of the topic that has this mask [A-21]; hops are not looked at."""


class Stored(Protocol):
    """A decoded frame."""

    @property
    def seq(self) -> int: ...

    @property
    def ts(self) -> int: ...

    @property
    def node(self) -> bytes | None: ...

    @property
    def tag(self) -> bytes | None: ...

    @property
    def data(self) -> bytes: ...


def stored(frames: Iterable[Stored], wanted: Projection) -> list[bytes]:
    """Decoded frames as JSON."""
    if wanted.mask is not None:
        return [segment.encode(one.seq, one.ts, one.node, one.tag, one.data, wanted.mask) for one in frames]
    return [_one(one.seq, one.ts, one.node, one.tag if wanted.tags else None, one.data, wanted) for one in frames]


def _one(seq: int, ts: int, node: bytes | None, tag: bytes | None, raw: bytes, wanted: Projection) -> bytes:
    between = b""
    if node is not None:
        between = b',"$node":' + _quoted(node)
    if tag is not None:
        between += b',"$tag":' + _quoted(tag)
    if raw.endswith(b"}}") and b',"m":{' in raw:
        data, meta = envelope.split(raw)
        if wanted.metas and meta is not None:
            between += b',"meta":' + meta
        if not wanted.data:
            return b'{"$seq":%d,"$ts":%d%b}' % (seq, ts, between)
        return b'{"$seq":%d,"$ts":%d%b,"data":%b}' % (seq, ts, between, data)
    if not wanted.data:
        return b'{"$seq":%d,"$ts":%d%b}' % (seq, ts, between)
    return b'{"$seq":%d,"$ts":%d%b,"data":%b' % (seq, ts, between, raw[_DATA_AT:])


@lru_cache(maxsize=4096)
def _quoted(text: bytes) -> bytes:
    return _encode(text.decode())


def run_of_segment(
    buffer: Buffer, entries: npt.NDArray[np.void], first_seq: int, mask: int, wanted: Projection
) -> list[bytes] | None:
    """Live records in a row of a segment's `.data`, every frame verified [S-173]."""
    made = packed_of_segment(buffer, entries.tobytes(), first_seq, mask, wanted)
    if made is not None:
        return [made]
    if len(entries) < FEW:
        return _few(buffer, entries, first_seq, mask, wanted)
    run = segment.check_run(buffer, entries, first_seq, mask, RUN_BYTES_MAX)
    if run is None:
        return None
    raw, stops = run.raw, run.sums_at.tolist()
    if wanted.mask is not None:
        ends = (run.sums_at + 9).tolist()
        return [raw[begin:end] for begin, end in zip(run.at.tolist(), ends, strict=True)]
    around = run.heads["node_len"].astype(np.int64) + run.heads["tag_len"]
    return _formatted(raw, run.at + segment.HEADER_BYTES, run.heads, around, stops, wanted)


def packed_of_segment(buffer: Buffer, entries: bytes, first_seq: int, mask: int, wanted: Projection) -> bytes | None:
    """The same of entries as they are on disk, if the kernel is there and all of them are live."""
    if kernel.native is None or wanted.mask is not None:
        return None
    return kernel.native.project(buffer, entries, first_seq, mask, wanted.tags, wanted.metas, wanted.data)


def page_of_segment(
    buffer: Buffer, index: Buffer, at: int, limits: tuple[int, int, int], first_seq: int, mask: int, wanted: Projection
) -> tuple[bytes, int, int] | None:
    """Live records in a row from the entry at `at` of an index on: their JSON, how many, their accounted bytes.

    `limits`: at most so many records, and bytes of their frames; and how many are too few to end at a dead one. None:
    they are beyond that, not intact, or the kernel is not there.
    """
    if kernel.native is None or wanted.mask is not None:
        return None
    return kernel.native.page(buffer, index, at, limits, first_seq, mask, wanted.tags, wanted.metas, wanted.data)


def _few(
    buffer: Buffer, entries: npt.NDArray[np.void], first_seq: int, mask: int, wanted: Projection
) -> list[bytes] | None:
    """The same frame by frame: arrays do not pay for a handful."""
    seqs = range(first_seq, first_seq + len(entries))
    places = zip(seqs, entries["offset"].tolist(), entries["len"].tolist(), strict=True)
    frames: list[segment.DataFrame] = []
    for one in segment.decode_sized(buffer, places, mask):
        if not isinstance(one, segment.DataFrame) or one.deleted:
            return None
        frames.append(one)
    return stored(frames, wanted)


def _formatted(
    raw: bytes,
    text_at: npt.NDArray[np.int64],
    heads: npt.NDArray[Any],
    around: npt.NDArray[np.int64],
    stops: list[int],
    wanted: Projection,
) -> list[bytes] | None:
    """Records of verified frames in a row; None where a node or tag is not what its flags say."""
    flags = heads["flags"]
    named = (flags & np.uint8(HAS_NODE)) != 0
    tagged = (flags & np.uint8(HAS_TAG)) != 0
    if (~named & (heads["node_len"] != 0)).any() or (~tagged & (heads["tag_len"] != 0)).any():
        return None
    seqs, tss = heads["seq"].tolist(), heads["ts"].tolist()
    datas = (text_at + around).tolist()
    if wanted.data and not named.any() and not (wanted.tags and tagged.any()) and b',"m":{' not in raw:
        return [
            b'{"$seq":%d,"$ts":%d,"data":%b' % (seq, ts, raw[data + _DATA_AT : stop])
            for seq, ts, data, stop in zip(seqs, tss, datas, stops, strict=True)
        ]
    out: list[bytes] = []
    texts, tag_lens = text_at.tolist(), heads["tag_len"].tolist()
    rows = zip(seqs, tss, texts, tag_lens, datas, stops, named.tolist(), tagged.tolist(), strict=True)
    try:
        for seq, ts, text, tag_len, data, stop, has_node, has_tag in rows:
            node = raw[text : data - tag_len] if has_node else None
            tag = raw[data - tag_len : data] if has_tag and wanted.tags else None
            out.append(_one(seq, ts, node, tag, raw[data:stop], wanted))
    except UnicodeDecodeError:
        return None
    return out


_JOB: Final = b'"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b,"deliveries":%d,"data":%b%b'


def job(
    seq: int,
    lease_id: bytes,
    deadline: int,
    ts: int,
    tag: bytes | None,
    deliveries: int,
    data: bytes,
    meta: bytes | None,
) -> bytes:
    """The members of a claimed job, without braces [CLM-6, WRK-4]."""
    named = b"" if tag is None else b',"$tag":' + _quoted(tag)
    more = b"" if meta is None else b',"meta":' + meta
    return _JOB % (seq, lease_id, deadline, ts, named, deliveries, data, more)


def jobs_of_wal(raw: bytes, offsets: bytes, first_id: int, deadline: int) -> bytes:
    """Frames in a row that never left memory as jobs that are delivered for the first time, commas in between."""
    if kernel.native is not None and first_id < _ID_MAX:
        made = kernel.native.jobs(raw, offsets, first_id, deadline)
        if made is not None:
            return made
    told = []
    for id, at in enumerate(array("Q", offsets), first_id):
        one = frame.fields(raw, at)
        told.append(b"{%b}" % job(one.seq, b"lease_%x" % id, deadline, one.ts, one.tag, 1, *envelope.parts(one.data)))
    return b",".join(told)


def run_of_wal(raw: bytes, offsets: bytes, wanted: Projection) -> list[bytes] | None:
    """Records of frames in a row that were encoded here and never left memory: nothing is verified.

    `offsets` are where they begin (codec.offsets).
    """
    if kernel.native is not None and wanted.mask is None:
        made = kernel.native.project_wal(raw, offsets, wanted.tags, wanted.metas, wanted.data)
        if made is not None:
            return [made]
    at = np.frombuffer(offsets, "<u8").astype(np.int64)
    if len(at) < FEW or wanted.mask is not None:
        return stored([frame.fields(raw, offset) for offset in at.tolist()], wanted)
    heads = frame.gather(memoryview(raw), at, frame.HEADER)
    around = heads["node_len"].astype(np.int64) + heads["tag_len"]
    text_at = at + frame.HEADER_BYTES
    stops = (text_at + around + heads["data_len"]).tolist()
    return _formatted(raw, text_at, heads, around, stops, wanted)
