"""One segment of a store, read to be kept: verified, cut to what counts, its two witnesses of deletion made to agree.

    gap segment   its `.idx`
    sealed        the `.idx`, and the data its footer names; hot wherever it was: two stores never own one object
    active        as many entries and bytes as the snapshot's row says, whatever was written behind them since
    dead stub     its `.idx`

A server may be running: it sets delete bytes in `.data` before it brings the marks to `.idx`. The `.idx` is read first,
so the data knows every delete that the `.idx` does, and perhaps more; what either says is deleted in both afterwards.

Memory: one segment. The thread that takes the backup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics.codec import segment as codec
from topics.codec import sidecar, snapshot
from topics.codec.frame import NotAFrame
from topics.codec.snapshot import SegmentRow
from topics.errors import UnsupportedFormat
from topics.fs import close_quietly, pread_exact
from topics.storage import tags
from topics.storage.reindex import Entries, data_end, live_of, ranges_of, stats
from topics.storage.segfile import SegmentFiles, entries_in, footer_hash

SHOWN_MAX = 5

FetchCold = Callable[[int, int, int, int], bytes]
"""Topic id, first seq, generation, length: that many bytes of the data in the cold tier."""


class Damaged(Exception):
    """A segment does not verify; the text says how."""


class Vanished(Exception):
    """A file that the snapshot names is not there."""


class Pair(NamedTuple):
    """A segment as it is kept."""

    row: SegmentRow
    generation: int
    data: bytes | None
    idx: bytes
    tag: bytes | None


class _Read(NamedTuple):
    """An `.idx` as it was found."""

    entries: Entries
    generation: int
    cold: bool
    sealed: bool


def key_of(files: SegmentFiles, row: SegmentRow) -> int | None:
    """The hash in a sealed segment's `.idx` as it is now, from its last bytes; None where it has none like the row."""
    size = (row.count + 1 if not row.flags & snapshot.GAP else 2) * codec.ENTRY_BYTES
    path = files.path(row.first, "idx")
    if not row.flags & snapshot.SEALED:
        return None
    try:
        file = files.fs.open(path, "r")
    except FileNotFoundError:
        return None
    try:
        if file.size() != size:
            return None
        return footer_hash(pread_exact(file, codec.ENTRY_BYTES, size - codec.ENTRY_BYTES))
    finally:
        close_quietly(file)


def read_pair(files: SegmentFiles, row: SegmentRow, floor: int, fetch: FetchCold) -> Pair:
    """A segment that a snapshot's row names; nothing below `floor` is needed by anybody."""
    raw = files.read(files.path(row.first, "idx"))
    if raw is None:
        raise Vanished(f"segment {row.first}: its .idx is missing")
    if row.flags & snapshot.GAP:
        return _gap(files, row, raw)
    found = _index(files, row, raw)
    data = _data(files, row, found, fetch)
    if data is None:
        if live_of(found.entries)[max(floor - row.first, 0) :].any():
            raise Vanished(f"segment {row.first}: its .data is missing")
        return _kept(files, row, found, None)
    return _kept(files, row, *_agreed(files, row.first, found, bytearray(data), floor))


def _gap(files: SegmentFiles, row: SegmentRow, raw: bytes) -> Pair:
    try:
        gap = codec.read_gap(raw, files.segment_mask(row.first))
    except NotAFrame as error:
        raise Damaged(f"segment {row.first}: its .idx does not verify: {error}") from None
    if gap.seqs != row.count:
        raise Damaged(f"segment {row.first}: a gap of {gap.seqs} seqs, not {row.count}")
    return Pair(_row(row, 0, 0, 0, footer_hash(raw)), 0, None, raw, None)


def _index(files: SegmentFiles, row: SegmentRow, raw: bytes) -> _Read:
    try:
        footer = codec.read_footer(raw, files.segment_mask(row.first))
    except NotAFrame as error:
        raise Damaged(f"segment {row.first}: its .idx does not verify: {error}") from None
    if row.flags & snapshot.SEALED:
        if footer is None or footer.n != row.count:
            raise Damaged(f"segment {row.first}: its .idx is not that of {row.count} sealed records")
        return _Read(entries_in(raw, footer.n).copy(), footer.generation, footer.magic == codec.COLD, True)
    if footer is not None and (footer.generation or footer.magic != codec.HOT):
        raise Vanished(f"segment {row.first} was sealed and moved since")
    entries = entries_in(raw, min(row.count, len(raw) // codec.ENTRY_BYTES)).copy()
    if len(entries) < row.count or codec.claim_xxh3(entries) != row.idx_xxh3:
        raise Damaged(f"segment {row.first}: its .idx is not what the snapshot says of it")
    return _Read(entries, 0, False, False)


def _data(files: SegmentFiles, row: SegmentRow, found: _Read, fetch: FetchCold) -> bytes | None:
    """The data that the entries point to, hot if it is there [S-303]; None if there is none."""
    length = data_end(found.entries)
    path = files.path(row.first, "data", found.generation)
    size = files.size(path)
    if size is None:
        if found.cold and live_of(found.entries).any():
            return fetch(files.topic_id, row.first, found.generation, length)
        return None
    if size < length:
        raise Damaged(f"segment {row.first}: its .data has {size} bytes of {length}")
    return files.read(path, length)


def _agreed(files: SegmentFiles, first: int, found: _Read, data: bytearray, floor: int) -> tuple[_Read, bytes]:
    """Verify every frame, and have entry and frame say the same about deletion [S-174]."""
    entries = found.entries
    framed = np.flatnonzero(entries["len"])
    chosen = entries[framed]
    seqs = framed.astype(np.uint64) + np.uint64(first)
    valid, _ = codec.check_entries(data, chosen, seqs, files.mask)
    needed = live_of(chosen) & (seqs >= np.uint64(floor))
    ends = chosen["offset"].astype(np.int64) + chosen["len"] - 1
    flagged = np.frombuffer(data, np.uint8)[ends] == codec.DELETE_BYTE
    bad = ~valid & needed
    if bad.any():
        raise Damaged(f"segment {first}: records do not verify: {_shown(framed[bad], first)}")
    gone = valid & (flagged | (chosen["flags"] & codec.DELETED != 0))
    entries["flags"][framed[gone]] |= np.uint8(codec.DELETED)
    for at in ends[gone & ~flagged].tolist():
        data[at] = codec.DELETE_BYTE
    return found, bytes(data)


def _kept(files: SegmentFiles, row: SegmentRow, found: _Read, data: bytes | None) -> Pair:
    packed = found.entries.tobytes()
    counted = stats(found.entries)
    idx, digest = packed, codec.claim_xxh3(found.entries)
    if found.sealed:
        idx += codec.encode_footer(packed, files.segment_mask(row.first), codec.HOT, found.generation)
        digest = footer_hash(idx)
    made = _row(row, data_end(found.entries), counted.live, counted.live_bytes, digest)
    tag = _tag(files, row, found.entries, data) if found.sealed and counted.has_tags else None
    return Pair(made, found.generation, data, idx, tag)


def _row(row: SegmentRow, data_len: int, live: int, live_bytes: int, idx_xxh3: int) -> SegmentRow:
    return SegmentRow(row.first, row.count, data_len, row.flags & ~snapshot.COLD, live, live_bytes, idx_xxh3)


def _tag(files: SegmentFiles, row: SegmentRow, entries: Entries, data: bytes | None) -> bytes | None:
    """The sidecar as it is if it verifies, else made anew [S-187]; a stub has none."""
    if data is None:
        return None
    raw = files.read(files.path(row.first, "tag"))
    if raw is not None:
        try:
            sidecar.read(raw, files.segment_mask(row.first), len(entries))
        except (sidecar.NotASidecar, UnsupportedFormat):
            raw = None
    if raw is None:
        try:
            raw = tags.encode_sidecar(tags.tags_of_entries(data, entries, row.first), files.topic_id, row.first)
        except ValueError:  # a dead frame is damaged: made by whoever needs it, from what verifies
            return None
    return raw


def _shown(which: npt.NDArray[np.int64], first: int) -> str:
    ranges = ranges_of(which, first)
    texts = [str(one.first) if one.first == one.last else f"{one.first}-{one.last}" for one in ranges[:SHOWN_MAX]]
    return ", ".join(texts) + (f" and {len(ranges) - SHOWN_MAX} more" if len(ranges) > SHOWN_MAX else "")
