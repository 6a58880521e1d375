"""The entries of an `.idx` made from its `.data` [S-130], where the file itself cannot be believed.

What decides about a seq, in this order:

    a frame that verifies      its entry; its delete byte says whether it is deleted: 0xD5 yes, 0x00 no, any other
                               value as the old entry has it, if that agrees with the frame (06 §14 step 5)
    a frame in an older file   the rewrite that made the newer file left it out, so it was deleted [S-280]
    the old entry              of a filler or hole whose nearest frames on both sides agree with `.data`; where the old
                               file verified as a whole, any filler, hole or deleted record
    nothing                    lost by damage if the topic's class tells of loss, else silently gone

Frames behind damaged bytes are found again: a candidate has a length that fits and a seq of the segment, and its
checksum decides. Everything given up is reported by range. Pure functions; any thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics.codec import segment as codec
from topics.codec.frame import Buffer

Entries = npt.NDArray[np.void]
Rows = npt.NDArray[np.void]

DAMAGE = 2
"""Reason of a hole that damage made [S-132]."""
_WINDOW_BYTES = 1 << 20


class Range(NamedTuple):
    """Seqs from `first` to `last`, both included."""

    first: int
    last: int


class Frames(NamedTuple):
    """The frames of one `.data` file; `whole` if nothing but frames is in it."""

    rows: Rows
    whole: bool


class Reindexed(NamedTuple):
    """The entries of a segment and what had to be given up."""

    entries: Entries
    given_up: tuple[Range, ...]
    """Seqs of which neither a frame nor a trustworthy entry is left."""
    revived: int
    """Delete marks of old entries that the `.data` contradicts."""


class Stats(NamedTuple):
    """What a descriptor keeps of its entries [S-156]."""

    live: int
    live_bytes: int
    min_ts: int
    max_ts: int
    has_tags: bool


def stats(entries: Entries) -> Stats:
    """Counts of all entries, without floors; accounted bytes [S-157]."""
    if not len(entries):
        return Stats(0, 0, 0, 0, False)
    live = entries[live_of(entries)]
    accounted = int(live["len"].astype(np.int64).sum()) - int(codec.ovh(live).astype(np.int64).sum())
    has_tags = bool((entries["flags"] & codec.HAS_TAG).any())
    return Stats(len(live), accounted, int(entries["ts"][0]), int(entries["ts"][-1]), has_tags)


def live_of(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries have a frame that is neither deleted nor lost."""
    live: npt.NDArray[np.bool_] = (entries["len"] != 0) & (entries["flags"] & (codec.DELETED | codec.LOST) == 0)
    return live


def data_end(entries: Entries) -> int:
    """Where the last frame that the entries point to ends."""
    framed = entries[entries["len"] != 0]
    return int((framed["offset"].astype(np.int64) + framed["len"]).max(initial=0))


def ranges_of(seqs: npt.NDArray[np.int64], first: int = 0) -> tuple[Range, ...]:
    """Ascending seqs, each plus `first`, as maximal ranges."""
    if not len(seqs):
        return ()
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    starts = np.concatenate(([0], breaks + 1))
    ends = np.concatenate((breaks, [len(seqs) - 1]))
    return tuple(Range(first + int(seqs[a]), first + int(seqs[b])) for a, b in zip(starts, ends, strict=True))


def find_frames(data: Buffer, mask: int, first: int, last: int) -> Frames:
    """All frames of seqs from `first` to `last`, in ascending order, also behind damaged bytes."""
    view = memoryview(data)
    found: list[Rows] = []
    at, low, whole = 0, first, True
    while at < len(view):
        scan = codec.scan_data(view, mask, at)
        rows = scan.rows[(scan.rows["seq"] >= low) & (scan.rows["seq"] <= last)]
        if len(rows):
            found.append(rows)
            low = int(rows["seq"][-1]) + 1
        whole = whole and len(rows) == len(scan.rows) and scan.stop == len(view)
        at = len(view) if scan.stop >= len(view) else _next_candidate(view, scan.stop + 1, low, last)
    return Frames(np.concatenate(found) if found else np.empty(0, codec.ROW), whole)


def _next_candidate(view: memoryview, at: int, low: int, last: int) -> int:
    """The first offset from `at` on where a frame of one of these seqs may begin; the end if there is none."""
    end = len(view) - codec.FRAME_BYTES_MIN + 1
    while at < end:
        n = min(_WINDOW_BYTES, end - at)
        seqs: npt.NDArray[np.uint64] = np.ndarray((n,), "<u8", view, at + 5, (1,))
        for start in (np.flatnonzero((seqs >= low) & (seqs <= last)) + at).tolist():
            frame_len = int.from_bytes(view[start : start + 4], "little")
            if codec.FRAME_LEN_MIN <= frame_len <= len(view) - start - 4:
                return int(start)
        at += n
    return len(view)


def reindex(
    data: Buffer,
    frames: Frames,
    first: int,
    n: int,
    old: Entries | None,
    *,
    trusted: bool = False,
    older: Frames | None = None,
    told: bool = True,
) -> Reindexed:
    """The `n` entries of the segment at `first`; `trusted` says that `old` verified as a whole."""
    rows = frames.rows
    rel = (rows["seq"] - np.uint64(first)).astype(np.int64)
    assert not len(rel) or int(rel[-1]) < n
    entries = np.zeros(n, codec.IDX)
    entries[rel] = codec.entries_of(data, rows)
    framed = np.zeros(n, np.bool_)
    framed[rel] = True
    known = _padded(old, n)
    agree = framed & _same(entries, known)
    revived = _settle_marks(entries, known, rel, agree, np.frombuffer(data, np.uint8), rows)
    kept = ~framed & (_dead(known, trusted) if trusted else _dead(known, False) & _beside_frames(framed, agree))
    entries[kept] = _fillers_like(known[kept])
    if older is not None and frames.whole:
        left_out = _left_out(older, first, n) & ~framed & ~kept
        entries["flags_ovh"][left_out] = codec.DELETED
        kept |= left_out
    gone = ~framed & ~kept
    entries["flags_ovh"][gone] = codec.LOST | DAMAGE << 8 if told else codec.DELETED
    _fit_ts(entries, framed | kept if trusted else framed)
    return Reindexed(entries, ranges_of(np.flatnonzero(gone), first), revived)


def _padded(old: Entries | None, n: int) -> Entries:
    """Old entries for all seqs; where there are none, entries that agree with nothing and are no fillers."""
    known = np.zeros(n, codec.IDX)
    if old is not None:
        take = min(n, len(old))
        known[:take] = old[:take]
    return known


def _same(entries: Entries, known: Entries) -> npt.NDArray[np.bool_]:
    """Which old entries say what their frame says, the delete mark apart."""
    same: npt.NDArray[np.bool_] = (entries["flags_ovh"] ^ known["flags_ovh"]) & ~np.uint32(codec.DELETED) == 0
    for name in ("offset", "len", "ts"):
        same &= entries[name] == known[name]
    return same


def _settle_marks(
    entries: Entries,
    known: Entries,
    rel: npt.NDArray[np.int64],
    agree: npt.NDArray[np.bool_],
    data: npt.NDArray[np.uint8],
    rows: Rows,
) -> int:
    """Take over the marks of old entries that agree where the delete byte decides nothing; counts contradictions."""
    witness = data[(rows["offset"] + rows["len"]).astype(np.int64) - 1]
    marked = agree[rel] & (known["flags"][rel] & codec.DELETED != 0)
    undecided = (witness != 0) & (witness != codec.DELETE_BYTE)
    entries["flags"][rel[marked & undecided]] |= np.uint8(codec.DELETED)
    return int((marked & (witness == 0)).sum())


def _dead(known: Entries, any_frame: bool) -> npt.NDArray[np.bool_]:
    """Old entries of seqs that need no frame: well-formed fillers and holes; with `any_frame` deleted records too."""
    flags, reason = known["flags"], codec.ovh(known)
    silent = (flags & 0x0F == codec.DELETED) & (reason == 0)
    hole = (flags & (codec.LOST | codec.HAS_TAG | codec.HAS_NODE) == codec.LOST) & (reason >= 1) & (reason <= 3)
    dead: npt.NDArray[np.bool_] = (known["len"] == 0) & (known["offset"] == 0) & (silent | hole)
    if any_frame:
        dead |= (known["len"] != 0) & (flags & codec.DELETED != 0)
    return dead


def _beside_frames(framed: npt.NDArray[np.bool_], agree: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Seqs whose nearest frames below and above agree with their old entries; one side may be the segment's end."""
    n, at = len(framed), np.flatnonzero(framed)
    if not len(at):
        return np.zeros(n, np.bool_)
    position = np.searchsorted(at, np.arange(n))
    below, above = at[np.maximum(position - 1, 0)], at[np.minimum(position, len(at) - 1)]
    beside: npt.NDArray[np.bool_] = ((position == 0) | agree[below]) & ((position == len(at)) | agree[above])
    return beside


def _fillers_like(known: Entries) -> Entries:
    """Entries without a frame that stand for these: fillers and holes as they are, deleted records emptied."""
    made = known.copy()
    emptied = made["len"] != 0
    made["flags_ovh"][emptied] = made["flags_ovh"][emptied] & np.uint32(0xF0) | np.uint32(codec.DELETED)
    made["offset"] = made["len"] = 0
    return made


def _left_out(older: Frames, first: int, n: int) -> npt.NDArray[np.bool_]:
    left_out = np.zeros(n, np.bool_)
    left_out[(older.rows["seq"] - np.uint64(first)).astype(np.int64)] = True
    return left_out


def _fit_ts(entries: Entries, sure: npt.NDArray[np.bool_]) -> None:
    """Bring the times of the other entries between those that are sure [S-123]."""
    if not len(entries):
        return
    ts = entries["ts"]
    floor = np.maximum.accumulate(np.where(sure, ts, np.uint64(0)))
    later = np.where(sure, ts, np.uint64(2**64 - 1))
    ceiling = np.minimum.accumulate(later[::-1])[::-1]
    # Behind the last sure entry nothing bounds a time from above: only the one before is certain.
    ceiling = np.where(ceiling == np.uint64(2**64 - 1), floor, ceiling)
    fitted = np.maximum.accumulate(np.minimum(np.maximum(ts, floor), np.maximum(ceiling, floor)))
    entries["ts"] = np.where(sure, ts, fitted)
