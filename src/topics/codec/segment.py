"""Segment files (06 §8): frames of a `.data` file, entries and footer of an `.idx` file, gap segments.

`.data` frame, total size 38 + node_len + tag_len + data_len:

    off  size  field
      0    4   frame_len  u32   bytes after this field, delete flag included; >= 34
      4    1   flags      u8    bit0 has_tag  bit1 has_node  bits 4-7 hops (0..8)
      5    8   seq        u64
     13    8   ts         u64
     21    2   node_len   u16
     23    2   tag_len    u16
     25    4   data_len   u32
     29    …   node, tag, data   data = the Append envelope, verbatim [S-121]
      …    8   xxh3       u64   of bytes [4 .. start of xxh3), XOR the topic's mask [S-135]
      …    1   del_flag   u8    0xD5 = deleted, anything else live [S-120]

`.idx` entry, 20 bytes, the entry of seq s at (s - N) * 20 [S-122]:

      0    4   offset     u32   of the frame in .data
      4    4   len        u32   total frame size; 0 = no frame for this seq [S-123]
      8    8   ts         u64
     16    1   flags      u8    bit0 has_tag  bit1 has_node  bit2 deleted  bit3 lost  bits 4-7 hops
     17    3   ovh        u24   len > 0: len - accounted size; hole: reason; else 0

Footer of a sealed `.idx`, 20 bytes:

      0    4   magic            TIX1 hot, TIC1 data in the cold tier, TIXG gap segment
      4    2   generation u16   of the data file
      6    2   0
      8    4   n          u32   entries
     12    8   xxh3       u64   of the entries and footer bytes 0-11, XOR the segment's mask [S-135]

A gap segment is an `.idx` of one entry (offset = number of seqs, len 0, ovh = reason) and a TIXG footer [S-129].

Nothing here depends on the engine [S-344]. Whole-batch functions; pure; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.codec import frame, kernel
from topics.codec.envelope import accounted_bytes, accounted_sizes
from topics.codec.frame import Buffer, NotAFrame, Why

HAS_TAG: Final = 0x01
HAS_NODE: Final = 0x02
DELETED: Final = 0x04
LOST: Final = 0x08
HOPS_SHIFT: Final = 4

DELETE_BYTE: Final = 0xD5

HEADER_BYTES: Final = 29
FRAME_BYTES_MIN: Final = 38
FRAME_LEN_MIN: Final = 34
FRAME_LEN_MAX: Final = frame.FRAME_LEN_MAX - 8
"""Of the largest WAL frame, which has 8 header bytes more."""

ENTRY_BYTES: Final = 20
U32_MAX: Final = 2**32 - 1
GAP_SEQS_MAX: Final = U32_MAX

HOT: Final = b"TIX1"
COLD: Final = b"TIC1"
GAP: Final = b"TIXG"

FLAGS_AT: Final = 16
"""Of the flags in an entry."""
IDX: Final = np.dtype(
    {
        "names": ["offset", "len", "ts", "flags", "flags_ovh"],
        "formats": ["<u4", "<u4", "<u8", "u1", "<u4"],
        "offsets": [0, 4, 8, FLAGS_AT, FLAGS_AT],
        "itemsize": ENTRY_BYTES,
    }
)
"""An `.idx` entry. numpy has no u24: `flags_ovh` overlaps `flags` and holds `ovh` in its upper three bytes."""

ROW: Final = np.dtype(
    [("offset", "<u8"), ("seq", "<u8"), ("ts", "<u8"), ("len", "<u4"), ("flags", "u1"), ("deleted", "?")]
)
"""Index row of one `.data` frame; `deleted` is its delete byte read by S-120."""

_LEN = struct.Struct("<I")
_SUM = struct.Struct("<Q")
_BODY = struct.Struct("<BQQHHI")
_HEADER = struct.Struct("<IBQQHHI")
_WAL_HEADER = struct.Struct("<IBBQQQHHI")
_ENTRY = struct.Struct("<IIQI")
_TAIL = struct.Struct("<QB")
_TAIL_FIELDS = np.dtype([("sum", "<u8"), ("deleted", "u1")])
_FLAGS = [bytes((flags,)) for flags in range(256)]
_SEQ_AT = 14
"""Of the seq in a WAL frame."""
_LENS_AT = 21
"""Of the three lengths in a `.data` frame."""
_FOOTER = struct.Struct("<4sHHI")

HEADER: Final = np.dtype(
    [
        ("frame_len", "<u4"),
        ("flags", "u1"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)


class DataFrame(NamedTuple):
    """One decoded `.data` frame; `end` is the offset behind it."""

    flags: int
    seq: int
    ts: int
    node: bytes | None
    tag: bytes | None
    data: bytes
    deleted: bool
    end: int


class DataScan(NamedTuple):
    """The valid frames of a `.data` buffer from a start offset on, and why they stop."""

    rows: npt.NDArray[np.void]
    stop: int
    why: Why
    detail: str


class Checked(NamedTuple):
    """What the bytes say about entries, one element each; `rows` counts where `valid`, offsets are in the buffer."""

    valid: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.void]


class FrameRun(NamedTuple):
    """Verified frames of consecutive live records, cut out of a `.data` file."""

    raw: bytes
    at: npt.NDArray[np.int64]
    """Where each begins in `raw`."""
    heads: npt.NDArray[np.void]
    sums_at: npt.NDArray[np.int64]
    """Where the checksum of each is."""


class Scanned(NamedTuple):
    """The records of a binary scan [A-21]: entry, seq and frame of each; `offset` counts from the first frame."""

    entries: npt.NDArray[np.void]
    seqs: npt.NDArray[np.uint64]
    frames: memoryview


class Footer(NamedTuple):
    """A verified footer."""

    magic: bytes
    generation: int
    n: int


class GapSegment(NamedTuple):
    """What a gap segment stands for; reason 0 is silent."""

    seqs: int
    ts: int
    reason: int
    hops: int


def reframe(
    frames: Buffer,
    offsets: Sequence[int] | npt.NDArray[np.int64],
    mask: int,
    at: int = 0,
    hops: npt.NDArray[np.integer] | None = None,
) -> tuple[bytes, bytes]:
    """`.data` frames and `.idx` entries of the Append frames at ascending `offsets`; the first goes to `at`.

    `hops` are those of the records, where the frames cannot tell: a WAL frame keeps 8 as 7 [S-27].

    Each WAL frame is verified before its bytes get a new checksum: damage must not become valid on the way. `NotAFrame`
    for a frame that is damaged, no Append, or of a topic the mask does not belong to.
    """
    if not len(offsets):
        return b"", b""
    places = np.array(offsets, np.int64)
    if kernel.native is not None:
        told = None if hops is None else hops.astype(np.uint8).tobytes()
        made = kernel.native.reframe(frames, places.tobytes(), mask, at, told)
        if isinstance(made, tuple):
            return made
    raw = frames if isinstance(frames, bytes) else bytes(frames)
    places = places[: _first(places > len(raw) - frame.FRAME_BYTES_MIN)]
    heads = frame.gather(memoryview(raw), places, frame.HEADER)
    sizes, around = heads["frame_len"].astype(np.int64) + 4, heads["node_len"].astype(np.int64) + heads["tag_len"]
    good = _first(_unfit(heads, places, sizes, around, mask, len(raw)))
    heads, places, sizes, around = heads[:good], places[:good], sizes[:good], around[:good]
    flags = heads["flags"].astype(np.int64)
    kept = flags >> frame.HOPS_SHIFT if hops is None else hops[:good].astype(np.int64)
    kept = flags & (HAS_TAG | HAS_NODE) | kept << HOPS_SHIFT
    data, bad = _resigned(raw, places.tolist(), (places + sizes - 8).tolist(), around.tolist(), kept.tolist(), mask)
    if bad is None and good < len(offsets):
        bad = int(offsets[good])
    if bad is not None:
        raise NotAFrame(Why.BAD, bad, _why_not(raw, bad, mask))
    sizes -= frame.FRAME_BYTES_MIN - FRAME_BYTES_MIN
    ends = at + np.cumsum(sizes)
    if int(ends[-1] - sizes[-1]) > U32_MAX:
        raise ValueError(f"frames from {at} on lie beyond the reach of an .idx entry")
    accounted = accounted_sizes(raw, places + frame.HEADER_BYTES + around, heads["data_len"].astype(np.int64))
    entries = np.empty(good, IDX)
    entries["offset"], entries["len"], entries["ts"] = ends - sizes, sizes, heads["ts"]
    entries["flags_ovh"] = kept | sizes - accounted << 8
    return data, entries.tobytes()


def _first(wrong: npt.NDArray[np.bool_]) -> int:
    """How many are right before the first that is wrong."""
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else len(wrong)


def _unfit(
    heads: npt.NDArray[np.void],
    places: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    around: npt.NDArray[np.int64],
    mask: int,
    end: int,
) -> npt.NDArray[np.bool_]:
    """Which WAL frames cannot be records of the mask's topic, by their headers."""
    lens = (heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64), heads["data_len"].astype(np.int64))
    wrong = frame.misfits(sizes - frame.FRAME_BYTES_MIN, heads["flags"], *lens)
    wrong |= (sizes > frame.FRAME_LEN_MAX + 4) | (places + sizes > end) | (heads["type"] != frame.APPEND)
    owners = [one for one in np.unique(heads["topic_id"]).tolist() if xxh3_64_intdigest(_SUM.pack(one)) == mask]
    wrong |= ~np.isin(heads["topic_id"], np.array(owners, np.uint64))
    return np.asarray(wrong)


def _resigned(
    raw: bytes, starts: list[int], sums: list[int], around: list[int], kept: list[int], mask: int
) -> tuple[bytes, int | None]:
    """`.data` frames of WAL frames whose headers are right, and where the first is whose bytes are not.

    Behind flags and topic a WAL frame has the bytes that the `.data` frame has behind its flags.
    """
    digest, pack, unpack_sum = xxh3_64_intdigest, _TAIL.pack, _SUM.unpack_from
    data: list[bytes] = []
    add = data.append
    for start, sum_at, text_len, flags in zip(starts, sums, around, kept, strict=True):
        if digest(raw[start + 4 : sum_at]) != unpack_sum(raw, sum_at)[0]:
            return b"", start
        body = _FLAGS[flags] + raw[start + _SEQ_AT : sum_at]
        if text_len and not frame.is_text(memoryview(body), HEADER_BYTES - 4, text_len, 0):
            return b"", start
        add(_LEN.pack(len(body) + 9))
        add(body)
        add(pack(digest(body) ^ mask, 0))
    return b"".join(data), None


def _why_not(raw: bytes, offset: int, mask: int) -> str:
    """What is wrong with a WAL frame that cannot be reframed."""
    view = memoryview(raw)
    if not frame.valid_end(view, offset, len(view)):
        return "not a valid WAL frame"
    _, kind, _, topic_id, *_ = _WAL_HEADER.unpack_from(view, offset)
    if xxh3_64_intdigest(_SUM.pack(topic_id)) != mask:
        return f"topic {topic_id} is not the mask's"
    return f"frame type {kind} is no record"


def decode(buffer: Buffer, offset: int, seq: int, mask: int) -> DataFrame:
    """The frame of `seq` at `offset`; `NotAFrame` if it is not there, intact and of that topic and seq [S-120]."""
    assert offset >= 0
    view = memoryview(buffer)
    offsets, end, why = _walk(view, offset, len(view), mask, 1)
    if not offsets:
        raise NotAFrame(why, offset)
    frame_len, flags, found, ts, node_len, tag_len, data_len = _HEADER.unpack_from(view, offset)
    if found != seq:
        raise NotAFrame(Why.BAD, offset, f"seq {found} instead of {seq}")
    if frame.misfits(frame_len - FRAME_LEN_MIN, flags, node_len, tag_len, data_len):
        raise NotAFrame(Why.FORMAT, offset, "lengths do not add up")
    if not frame.is_text(view, offset + HEADER_BYTES, node_len, tag_len):
        raise NotAFrame(Why.FORMAT, offset, "node or tag is not UTF-8")
    tag_at = offset + HEADER_BYTES + node_len
    data_at = tag_at + tag_len
    node = bytes(view[tag_at - node_len : tag_at]) if flags & HAS_NODE else None
    tag = bytes(view[tag_at:data_at]) if flags & HAS_TAG else None
    deleted = view[end - 1] == DELETE_BYTE
    return DataFrame(flags, seq, ts, node, tag, bytes(view[data_at : data_at + data_len]), deleted, end)


def decode_sized(
    buffer: Buffer, places: Iterable[tuple[int, int, int]], mask: int
) -> Iterator[DataFrame | tuple[int, int, int]]:
    """`decode` of many frames whose seq, offset and size are known; the place itself of what is not plainly right."""
    view = memoryview(buffer)
    unpack, unpack_sum, digest, end_of_buffer = _HEADER.unpack_from, _SUM.unpack_from, xxh3_64_intdigest, len(view)
    for place in places:
        seq, offset, size = place
        end = offset + size
        if size < FRAME_BYTES_MIN or end > end_of_buffer:
            yield place
            continue
        frame_len, flags, found, ts, node_len, tag_len, data_len = unpack(view, offset)
        data_at = offset + HEADER_BYTES + node_len + tag_len
        if (
            frame_len != size - 4
            or found != seq
            or data_at + data_len != end - 9
            or digest(view[offset + 4 : end - 9]) ^ mask != unpack_sum(view, end - 9)[0]
        ):
            yield place
            continue
        node = tag = None
        if data_at != offset + HEADER_BYTES or flags & (HAS_NODE | HAS_TAG):
            if frame.misfits(frame_len - FRAME_LEN_MIN, flags, node_len, tag_len, data_len) or not frame.is_text(
                view, offset + HEADER_BYTES, node_len, tag_len
            ):
                yield place
                continue
            tag_at = data_at - tag_len
            node = bytes(view[tag_at - node_len : tag_at]) if flags & HAS_NODE else None
            tag = bytes(view[tag_at:data_at]) if flags & HAS_TAG else None
        deleted = view[end - 1] == DELETE_BYTE
        yield DataFrame(flags, seq, ts, node, tag, bytes(view[data_at : end - 9]), deleted, end)


def encode(seq: int, ts: int, node: bytes | None, tag: bytes | None, data: bytes, mask: int, hops: int = 0) -> bytes:
    """The `.data` frame of one record, as `reframe` makes it of a WAL frame."""
    flags = (tag is not None and HAS_TAG) | (node is not None and HAS_NODE) | hops << HOPS_SHIFT
    node, tag = node or b"", tag or b""
    body = b"".join((_BODY.pack(flags, seq, ts, len(node), len(tag), len(data)), node, tag, data))
    return b"".join((_LEN.pack(len(body) + 9), body, _TAIL.pack(xxh3_64_intdigest(body) ^ mask, 0)))


def with_hops(frame: bytes, hops: int, mask: int) -> bytes:
    """The same frame of a record that routers copied so many times."""
    body = _FLAGS[frame[4] & (HAS_TAG | HAS_NODE) | hops << HOPS_SHIFT] + frame[5:-9]
    return b"".join((frame[:4], body, _TAIL.pack(xxh3_64_intdigest(body) ^ mask, 0)))


def check_run(
    buffer: Buffer, entries: npt.NDArray[np.void], first_seq: int, mask: int, bytes_max: int
) -> FrameRun | None:
    """The frames of consecutive live records, each verified [S-173]; None where anything is out of the ordinary."""
    offsets, sizes = entries["offset"].astype(np.int64), entries["len"].astype(np.int64)
    start, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
    if end > len(buffer) or end - start > bytes_max:
        return None
    if int(sizes.min()) < FRAME_BYTES_MIN or (offsets[1:] < offsets[:-1] + sizes[:-1]).any():
        return None
    raw = bytes(memoryview(buffer)[start:end])
    at = offsets - start
    heads = frame.gather(memoryview(raw), at, HEADER)
    sums_at = at + sizes - _TAIL_FIELDS.itemsize
    tails = frame.gather(memoryview(raw), sums_at, _TAIL_FIELDS)
    around = heads["node_len"].astype(np.int64) + heads["tag_len"]
    fits = (heads["frame_len"] == sizes - 4) & (
        heads["seq"] == np.arange(first_seq, first_seq + len(at), dtype=np.uint64)
    )
    fits &= (around + heads["data_len"] == sizes - FRAME_BYTES_MIN) & (tails["deleted"] == 0)
    if not fits.all():
        return None
    told = (tails["sum"] ^ np.uint64(mask)).tolist()
    for begin, stop, wanted in zip((at + 4).tolist(), sums_at.tolist(), told, strict=True):
        if xxh3_64_intdigest(raw[begin:stop]) != wanted:
            return None
    return FrameRun(raw, at, heads, sums_at)


def encode_scan(entries: npt.NDArray[np.void], frames: Sequence[bytes]) -> list[bytes]:
    """A binary scan in pieces: `n` u32, n entries, then the frames they describe, in the same order [A-21]."""
    assert entries.dtype == IDX
    sizes = entries["len"].astype(np.int64)
    ends = np.cumsum(sizes)
    assert len(entries) == 0 or int(ends[-1]) == sum(map(len, frames)) <= U32_MAX
    told = entries.copy()
    told["offset"] = ends - sizes
    return [_LEN.pack(len(entries)), told.tobytes(), *frames]


def decode_scan(body: Buffer, mask: int) -> Scanned:
    """What `encode_scan` made, every frame verified; `NotAFrame` for anything else. `ovh` is taken as it is told."""
    view = memoryview(body)
    (n,) = _LEN.unpack_from(view, 0) if len(view) >= 4 else (U32_MAX,)
    start = 4 + n * ENTRY_BYTES
    if start > len(view):
        raise NotAFrame(Why.SHORT, 0, "a scan with fewer entries than it says")
    entries = np.frombuffer(view[4:start], IDX, n)
    frames = view[start:]
    found = scan_data(frames, mask)
    rows = found.rows
    if found.stop != len(frames) or len(rows) != n:
        raise NotAFrame(found.why, start + found.stop, f"{len(rows)} frames for {n} entries")
    agree = all((entries[name] == rows[name]).all() for name in ("offset", "len", "ts", "flags"))
    if not agree or rows["deleted"].any():
        raise NotAFrame(Why.BAD, start, "entries and frames do not belong together")
    return Scanned(entries, rows["seq"].copy(), frames)


def scan_data(buffer: Buffer, mask: int, start: int = 0, end: int | None = None) -> DataScan:
    """Every valid frame from `start` on, in ascending seq order, and why the next bytes are none."""
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    if not 0 <= start <= end:
        raise ValueError(f"range {start}..{end} is not in the buffer")
    if kernel.native is not None:
        raw, stop, verdict = kernel.native.verify_data(view, mask, start, end)
        return DataScan(np.frombuffer(bytearray(raw), ROW), stop, *frame.VERDICTS[verdict])
    offsets, stop, why = _walk(view, start, end, mask, end)
    heads = frame.gather(view, offsets, HEADER)
    valid, found, detail = _first_fault(view, offsets, heads)
    if found is not None:
        stop, why = offsets[valid], found
    rows = np.empty(valid, ROW)
    rows["offset"] = offsets[:valid]
    rows["len"] = heads["frame_len"][:valid] + np.uint32(4)
    for name in ("seq", "ts", "flags"):
        rows[name] = heads[name][:valid]
    ends = (rows["offset"] + rows["len"]).astype(np.int64)
    rows["deleted"] = np.frombuffer(view, np.uint8)[ends - 1] == DELETE_BYTE
    return DataScan(rows, stop, why, detail)


def check_entries(
    buffer: Buffer, entries: npt.NDArray[np.void], seqs: npt.NDArray[np.uint64], mask: int, base: int = 0
) -> Checked:
    """Verify the frames that ascending entries point to; `buffer` begins at offset `base` of the file.

    An entry is valid if the frame at its offset is intact, of this topic and seq, and as long as the entry says. Damage
    between the frames does no harm to them.
    """
    starts, sizes = entries["offset"].astype(np.int64) - base, entries["len"]
    valid, rows = np.zeros(len(starts), np.bool_), np.zeros(len(starts), ROW)
    at = 0
    while at < len(starts):
        start = int(starts[at])
        scan = scan_data(buffer, mask, start) if 0 <= start <= len(buffer) else None
        if scan is None or not len(scan.rows):
            at += 1
            continue
        behind = at + max(int(np.searchsorted(starts[at:], scan.stop)), 1)
        found = np.searchsorted(scan.rows["offset"], starts[at:behind].clip(0).astype(np.uint64))
        rows[at:behind] = scan.rows[found.clip(max=len(scan.rows) - 1)]
        valid[at:behind] = (
            (rows["offset"][at:behind] == starts[at:behind])
            & (rows["seq"][at:behind] == seqs[at:behind])
            & (rows["len"][at:behind] == sizes[at:behind])
        )
        at = behind
    return Checked(valid, rows)


class Parts(NamedTuple):
    """Where the parts of frames lie in their buffer: each begins where the one before it ends."""

    node: npt.NDArray[np.int64]
    tag: npt.NDArray[np.int64]
    data: npt.NDArray[np.int64]
    """The envelope."""
    end: npt.NDArray[np.int64]


def parts_at(buffer: Buffer, offsets: npt.NDArray[np.int64]) -> Parts:
    """The parts of the frames at `offsets`, whose lengths agree with their entries."""
    # Three lengths in one word: node u16, tag u16, data u32.
    lens = _words(buffer, offsets + _LENS_AT, "<u8").astype(np.int64)
    node = offsets + HEADER_BYTES
    tag = node + (lens & 0xFFFF)
    data = tag + (lens >> 16 & 0xFFFF)
    return Parts(node, tag, data, data + (lens >> 32 & 0xFFFFFFFF))


def heads_agree(
    buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], seqs: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Which places hold a frame of that size and seq, filled by its parts; checksums are not computed [S-348]."""
    if kernel.native is not None:
        return _agree(kernel.native, buffer, starts, sizes, seqs, None)
    agree: npt.NDArray[np.bool_] = (starts >= 0) & (starts + sizes <= len(buffer)) & (sizes >= FRAME_BYTES_MIN)
    if not agree.all():
        at = np.flatnonzero(agree)
        agree[at] = _heads_fit(buffer, starts[at], sizes[at], seqs[at])
        return agree
    return _heads_fit(buffer, starts, sizes, seqs)


def _heads_fit(
    buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], seqs: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    if not len(starts):
        return np.ones(0, np.bool_)
    flags, parts = _words(buffer, starts + 4, "u1"), parts_at(buffer, starts)
    lens = (parts.tag - parts.node, parts.data - parts.tag, parts.end - parts.data)
    fit: npt.NDArray[np.bool_] = (
        (_words(buffer, starts, "<u4") == sizes - 4)
        & (_words(buffer, starts + 5, "<u8") == seqs)
        & ~frame.misfits(sizes - FRAME_BYTES_MIN, flags, *lens)
    )
    return fit


def frames_agree(
    buffer: Buffer,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    seqs: npt.NDArray[np.uint64],
    mask: int,
) -> npt.NDArray[np.bool_]:
    """Which places hold the frame of that size and seq, intact and of the mask's topic."""
    if kernel.native is not None:
        return _agree(kernel.native, buffer, starts, sizes, seqs, mask)
    agree = heads_agree(buffer, starts, sizes, seqs)
    at = np.flatnonzero(agree)
    if not len(at):
        return agree
    raw, digest = buffer if isinstance(buffer, bytes) else bytes(buffer), xxh3_64_intdigest
    starts = starts[at]
    sums = starts + sizes[at] - 9
    spans = zip((starts + 4).tolist(), sums.tolist(), strict=True)
    found = np.fromiter((digest(raw[start:end]) for start, end in spans), np.uint64, len(at))
    agree[at] = (found ^ np.uint64(mask) == _words(raw, sums, "<u8")) & _are_text(raw, parts_at(raw, starts))
    return agree


def _agree(
    native: kernel.Native,
    buffer: Buffer,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    seqs: npt.NDArray[np.uint64],
    mask: int | None,
) -> npt.NDArray[np.bool_]:
    found = native.agree(buffer, mask, starts.tobytes(), sizes.tobytes(), seqs.tobytes())
    return np.frombuffer(bytearray(found), np.bool_)


def _are_text(raw: bytes, parts: Parts) -> npt.NDArray[np.bool_]:
    """Whether nodes and tags are valid UTF-8, each by itself; mostly all of them are ASCII."""
    text: npt.NDArray[np.bool_] = np.ones(len(parts.node), np.bool_)
    lens = parts.data - parts.node
    ends = lens.cumsum()
    places = np.repeat(parts.node - ends + lens, lens) + np.arange(int(ends[-1]))
    beyond = np.flatnonzero(np.frombuffer(raw, np.uint8)[places] > 0x7F)
    view = memoryview(raw)
    for at in np.unique(np.searchsorted(ends, beyond, side="right")).tolist():
        start, tag = int(parts.node[at]), int(parts.tag[at])
        text[at] = frame.is_text(view, start, tag - start, int(parts.data[at]) - tag)
    return text


def deleted_at(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which frames say that they are deleted [S-120]; all of them lie in the buffer."""
    deleted: npt.NDArray[np.bool_] = np.frombuffer(buffer, np.uint8)[starts + sizes - 1] == DELETE_BYTE
    return deleted


def _words(buffer: Buffer, places: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
    """One field of many frames, wherever they begin: unlike `frame.gather` nothing else is copied."""
    kind = np.dtype(dtype)
    everywhere: npt.NDArray[Any] = np.ndarray((len(buffer) - kind.itemsize + 1,), kind, buffer, strides=(1,))
    return everywhere[places]


def entries_of(buffer: Buffer, rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The `.idx` entries of scanned frames, for an `.idx` that is rebuilt from its `.data` [S-130]."""
    view = memoryview(buffer)
    offsets = rows["offset"].tolist()
    heads = frame.gather(view, offsets, HEADER)
    around = heads["node_len"].astype(np.int64) + heads["tag_len"]
    envelopes = (rows["offset"] + np.uint64(HEADER_BYTES)).astype(np.int64) + around
    spans = zip(envelopes.tolist(), heads["data_len"].tolist(), strict=True)
    accounted = np.fromiter((accounted_bytes(bytes(view[at : at + n])) for at, n in spans), np.int64, len(rows))
    flags = rows["flags"] & ~np.uint8(DELETED | LOST) | np.where(rows["deleted"], np.uint8(DELETED), np.uint8(0))
    entries = np.zeros(len(rows), IDX)
    for name in ("offset", "len", "ts"):
        entries[name] = rows[name]
    entries["flags_ovh"] = flags | (rows["len"] - accounted) << 8
    return entries


def fillers(count: int, ts: int, reason: int = 0, hops: int = 0) -> bytes:
    """Entries of `count` seqs without a frame: deleted (reason 0), or holes of that reason [S-123, S-124]."""
    return _ENTRY.pack(0, 0, ts, _dead_word(reason, hops)) * count


def ovh(entries: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """The `ovh` field: frame size less accounted size, or the reason of a hole."""
    word: npt.NDArray[np.uint32] = entries["flags_ovh"] >> np.uint32(8)
    return word


def deleted_by_witness(entries: npt.NDArray[np.void], data: Buffer) -> npt.NDArray[np.bool_]:
    """Which entries count as deleted once their frames' delete bytes are asked (06 §14 step 5).

    0xD5 is deleted, 0x00 live whatever the entry says; any other byte leaves it to the entry, as does an entry
    without a frame. `ValueError` when an entry points outside the data.
    """
    marked: npt.NDArray[np.bool_] = entries["flags"] & DELETED != 0
    framed = np.flatnonzero(entries["len"])
    ends = entries["offset"][framed].astype(np.int64) + entries["len"][framed]
    if len(ends) and int(ends.max()) > len(data):
        raise ValueError("an entry points behind the end of the data")
    witness = np.frombuffer(data, np.uint8)[ends - 1]
    marked[framed] = (witness == DELETE_BYTE) | (marked[framed] & (witness != 0))
    return marked


def claim_xxh3(entries: npt.NDArray[np.void]) -> int:
    """Hash of an active segment's entries as marks and snapshots claim it: frames' delete marks read as 0 [S-44]."""
    plain = entries.copy()
    plain["flags"][plain["len"] > 0] &= np.uint8(0xFF ^ DELETED)
    return xxh3_64_intdigest(plain.tobytes())


def encode_footer(entries: Buffer, mask: int, magic: bytes = HOT, generation: int = 0) -> bytes:
    """The footer that seals these entries [S-135]."""
    n, rest = divmod(len(entries), ENTRY_BYTES)
    assert rest == 0
    assert magic in (HOT, COLD, GAP)
    head = _FOOTER.pack(magic, generation, 0, n)
    return head + _SUM.pack(_footer_sum(memoryview(entries), head, mask))


def read_footer(idx: Buffer, mask: int) -> Footer | None:
    """The footer of a whole `.idx`, None if there is none; `NotAFrame` for one that does not verify [S-130]."""
    view = memoryview(idx)
    at = len(view) - ENTRY_BYTES
    if at < 0 or bytes(view[at : at + 4]) not in (HOT, COLD, GAP):
        return None
    magic, generation, zero, n = _FOOTER.unpack_from(view, at)
    head = bytes(view[at : at + _FOOTER.size])
    if n * ENTRY_BYTES != at or _SUM.unpack_from(view, at + _FOOTER.size)[0] != _footer_sum(view[:at], head, mask):
        raise NotAFrame(Why.BAD, at, "footer does not verify")
    if zero:
        raise NotAFrame(Why.FORMAT, at, "reserved bytes of the footer are set")
    return Footer(magic, generation, n)


def encode_gap(seqs: int, ts: int, reason: int, mask: int, hops: int = 0) -> bytes:
    """The whole `.idx` of a gap segment [S-129]."""
    if not 1 <= seqs <= GAP_SEQS_MAX:
        raise ValueError(f"a gap segment cannot hold {seqs} seqs")
    entry = _ENTRY.pack(seqs, 0, ts, _dead_word(reason, hops))
    return entry + encode_footer(entry, mask, GAP)


def read_gap(idx: Buffer, mask: int) -> GapSegment:
    """What a gap segment says; `NotAFrame` for anything but one that verifies."""
    footer = read_footer(idx, mask)
    if footer is None or footer.magic != GAP or footer.n != 1:
        raise NotAFrame(Why.BAD, 0, "not a gap segment")
    seqs, size, ts, word = _ENTRY.unpack_from(idx, 0)
    reason, hops = word >> 8, word >> HOPS_SHIFT & 0x0F
    if size or not seqs or reason > 3 or word != _dead_word(reason, hops):
        raise NotAFrame(Why.FORMAT, 0, "not the entry of a gap segment")
    return GapSegment(seqs, ts, reason, hops)


def _dead_word(reason: int, hops: int) -> int:
    """Flags and ovh of an entry without a frame: silent for reason 0, else a hole."""
    if not (0 <= reason <= 3 and 0 <= hops <= 8):
        raise ValueError(f"reason {reason}, {hops} hops")
    return (LOST if reason else DELETED) | hops << HOPS_SHIFT | reason << 8


def _footer_sum(entries: memoryview, head: bytes, mask: int) -> int:
    digest = xxh3_64(entries)
    digest.update(head)
    return digest.intdigest() ^ mask


def _walk(view: memoryview, at: int, end: int, mask: int, limit: int) -> tuple[list[int], int, Why]:
    """At most `limit` frames with right lengths and checksums: offsets, the offset behind them, why the next fails."""
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
        if digest(view[at + 4 : behind - 9]) ^ mask != unpack_sum(view, behind - 9)[0]:
            return offsets, at, Why.BAD
        add(at)
        at = behind
        if len(offsets) == limit:
            return offsets, at, Why.SHORT  # not looked at


def _first_fault(view: memoryview, offsets: list[int], heads: npt.NDArray[np.void]) -> tuple[int, Why | None, str]:
    """How many frames with a right checksum can be used, and what is wrong with the next one."""
    node_len, tag_len = heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64)
    data_len = heads["data_len"].astype(np.int64)
    misfit = np.flatnonzero(
        frame.misfits(heads["frame_len"] - np.uint32(FRAME_LEN_MIN), heads["flags"], node_len, tag_len, data_len)
    )
    disorder = np.flatnonzero(heads["seq"][1:] <= heads["seq"][:-1]) + 1
    valid, found, detail = len(offsets), None, ""
    if len(misfit):
        valid, found, detail = int(misfit[0]), Why.FORMAT, "lengths do not add up"
    if len(disorder) and disorder[0] < valid:
        valid, found, detail = int(disorder[0]), Why.BAD, "seq does not ascend"
    for i in np.flatnonzero((node_len + tag_len)[:valid]).tolist():
        if not frame.is_text(view, offsets[i] + HEADER_BYTES, int(node_len[i]), int(tag_len[i])):
            return i, Why.FORMAT, "node or tag is not UTF-8"
    return valid, found, detail
