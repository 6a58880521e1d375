"""Tag sidecar `seg-N.tag` (06 §11): which seqs of a sealed segment carry which tag [S-186].

    off       size          field
      0        4            magic       TTG1
      4        4            version     u32   1
      8        4            n_tags      u32
     12        4            n_postings  u32
     16        8            xxh3        u64   of bytes 0-15 and everything after byte 24, XOR the segment's mask [S-135]
     24        n_tags × 16  table, sorted by tag bytes, no tag twice:
                              0  4  str_off   u32   in the string bytes
                              4  2  str_len   u16
                              6  2  pad       u16   0
                              8  4  post_off  u32   in the postings
                             12  4  post_cnt  u32   at least 1
      …        …            string bytes: the tags in table order, nothing between them
      …        n_postings × 4   seq - N as u32, ascending per tag; the tags in table order, nothing between them

Because postings follow the order of the table, the tags of a prefix own one run of them. The last 4 × n_postings bytes
are the postings; they need not be aligned.

The file is derived [S-187]: one that does not verify is built anew. Lookups read the buffer in place; what they give
refers to it, so a mapping cannot be closed before its answers are gone. Pure functions; any thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from topics.codec.frame import Buffer
from topics.errors import UnsupportedFormat

MAGIC: Final = b"TTG1"
VERSION: Final = 1
HEADER_BYTES: Final = 24
TAG_BYTES_MAX: Final = 2**16 - 1

ROW: Final = np.dtype(
    [("str_off", "<u4"), ("str_len", "<u2"), ("pad", "<u2"), ("post_off", "<u4"), ("post_cnt", "<u4")]
)
POSTING: Final = np.dtype("<u4")

Seqs = Sequence[int] | npt.NDArray[np.unsignedinteger]

_HEAD = struct.Struct("<4sIII")
_SUM = struct.Struct("<Q")
_U32_MAX = 2**32 - 1


class NotASidecar(ValueError):
    """Bytes that are not the sidecar of this segment: build it anew [S-187]."""


class Sidecar(NamedTuple):
    """A verified sidecar: views into its buffer."""

    table: npt.NDArray[np.void]
    strings: memoryview
    postings: npt.NDArray[np.uint32]


def encode(tags: Mapping[bytes, Seqs], mask: int, base: int = 0) -> bytes:
    """The sidecar of these tags, each with its ascending seqs; `base` is the seq that is written as 0.

    `ValueError` for a tag or a seq that does not fit, an empty or unordered list.
    """
    ordered = sorted(tags)
    flat = array("Q")
    try:
        for tag in ordered:
            flat.extend(tags[tag])
    except OverflowError as error:
        raise ValueError("a seq does not fit a sidecar") from error
    # A seq below `base` wraps to a number far above what fits.
    postings = np.frombuffer(flat, np.uint64) - np.uint64(base)
    lens = np.fromiter(map(len, ordered), np.int64, len(ordered))
    counts = np.fromiter((len(tags[tag]) for tag in ordered), np.int64, len(ordered))
    if max(int(lens.sum()), len(flat), int(postings.max(initial=0))) > _U32_MAX or lens.max(initial=0) > TAG_BYTES_MAX:
        raise ValueError("a tag, a seq or all of them do not fit a sidecar")
    table = np.zeros(len(ordered), ROW)
    table["str_off"], table["str_len"] = lens.cumsum() - lens, lens
    table["post_off"], table["post_cnt"] = counts.cumsum() - counts, counts
    narrow = postings.astype(POSTING)
    if not _lists_ascend(table, narrow):
        raise ValueError("the seqs of a tag are none, or do not ascend")
    body = table.tobytes() + b"".join(ordered) + narrow.tobytes()
    head = _HEAD.pack(MAGIC, VERSION, len(ordered), len(narrow))
    return head + _SUM.pack(_sum(head, body, mask)) + body


def read(buffer: Buffer, mask: int, count: int | None = None, *, whole: bool = True) -> Sidecar:
    """The sidecar in `buffer`, all of it verified; with `count`, also that its seqs lie in a segment of so many.

    Without `whole` the order of the tags is left to the checksum: looking at each costs more than a lookup.

    `NotASidecar`, or `UnsupportedFormat` for an intact one of a later version [S-7].
    """
    view = memoryview(buffer)
    if len(view) < HEADER_BYTES or bytes(view[:4]) != MAGIC:
        raise NotASidecar("no sidecar header")
    _, version, n_tags, n_postings = _HEAD.unpack_from(view, 0)
    strings_at, postings_at = HEADER_BYTES + n_tags * ROW.itemsize, len(view) - n_postings * POSTING.itemsize
    if version == VERSION and strings_at > postings_at:
        raise NotASidecar(f"{len(view)} bytes cannot hold {n_tags} tags and {n_postings} postings")
    if _SUM.unpack_from(view, _HEAD.size)[0] != _sum(view[: _HEAD.size], view[HEADER_BYTES:], mask):
        raise NotASidecar("checksum mismatch")
    if version > VERSION:
        raise UnsupportedFormat(f"tag sidecar version {version}, this is version {VERSION}")
    if version != VERSION:
        raise NotASidecar(f"tag sidecar version {version}")
    found = Sidecar(
        np.frombuffer(view[HEADER_BYTES:strings_at], ROW),
        view[strings_at:postings_at],
        np.frombuffer(view[postings_at:], POSTING),
    )
    _check_content(found, count, whole=whole)
    return found


def tags(sidecar: Sidecar) -> list[bytes]:
    """All tags, in ascending order."""
    strings = bytes(sidecar.strings)
    starts, lens = sidecar.table["str_off"].tolist(), sidecar.table["str_len"].tolist()
    return [strings[start : start + n] for start, n in zip(starts, lens, strict=True)]


def eq(sidecar: Sidecar, tag: bytes) -> npt.NDArray[np.uint32]:
    """Relative seqs of the records with this tag, ascending."""
    at = _lower(sidecar, tag)
    if at == len(sidecar.table) or _tag(sidecar, at) != tag:
        return sidecar.postings[:0]
    return _run(sidecar, at, at + 1)


def prefix(sidecar: Sidecar, literal: bytes) -> npt.NDArray[np.uint32]:
    """Relative seqs of the records whose tag begins with `literal`, ascending [S-188]."""
    behind = successor(literal)
    end = len(sidecar.table) if behind is None else _lower(sidecar, behind)
    run = _run(sidecar, _lower(sidecar, literal), end)
    return np.sort(run)


def successor(literal: bytes) -> bytes | None:
    """The smallest text above all that begin with `literal`; None if there is none [S-188]."""
    kept = literal.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _sum(head: Buffer, rest: Buffer, mask: int) -> int:
    digest = xxh3_64(head)
    digest.update(rest)
    return digest.intdigest() ^ mask


def _tag(sidecar: Sidecar, at: int) -> bytes:
    start, length, _, _, _ = sidecar.table[at].item()
    return bytes(sidecar.strings[start : start + length])


def _lower(sidecar: Sidecar, text: bytes) -> int:
    """Row of the first tag that is not below `text`."""
    low, high = 0, len(sidecar.table)
    while low < high:
        middle = (low + high) // 2
        if _tag(sidecar, middle) < text:
            low = middle + 1
        else:
            high = middle
    return low


def _run(sidecar: Sidecar, first: int, end: int) -> npt.NDArray[np.uint32]:
    """The postings of the rows `first` to `end`."""
    if first >= end:
        return sidecar.postings[:0]
    start = int(sidecar.table["post_off"][first])
    return sidecar.postings[start : int(sidecar.table["post_off"][end - 1]) + int(sidecar.table["post_cnt"][end - 1])]


def _check_content(sidecar: Sidecar, count: int | None, *, whole: bool) -> None:
    table = sidecar.table
    lens, counts = table["str_len"].astype(np.int64), table["post_cnt"].astype(np.int64)
    if int(lens.sum()) != len(sidecar.strings) or int(counts.sum()) != len(sidecar.postings):
        raise NotASidecar("lengths do not add up")
    if (table["str_off"] != lens.cumsum() - lens).any() or (table["post_off"] != counts.cumsum() - counts).any():
        raise NotASidecar("strings or postings are not in the order of the table")
    if table["pad"].any() or not _lists_ascend(table, sidecar.postings):
        raise NotASidecar("seqs of a tag are none, or do not ascend")
    if count is not None and int(sidecar.postings.max(initial=0)) >= max(count, 1):
        raise NotASidecar(f"a posting lies outside of {count} seqs")
    found = tags(sidecar) if whole else []
    if any(one >= other for one, other in pairwise(found)):
        raise NotASidecar("tags are not in ascending order")


def _lists_ascend(table: npt.NDArray[np.void], postings: npt.NDArray[np.uint32]) -> bool:
    """Whether every tag has postings and they ascend; the table's offsets are right."""
    if len(table) and not table["post_cnt"].all():
        return False
    rises = np.ones(len(postings), np.bool_)
    rises[1:] = postings[1:] > postings[:-1]
    rises[table["post_off"]] = True
    return bool(rises.all())
