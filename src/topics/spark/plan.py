"""What a read will return, fixed before it begins [K-11]: per topic the instance, the range, the floors, the files.

    Stretch      consecutive seqs of a topic that are read together, and about how many bytes that is
    TopicPlan    a topic at one instant: what of it is wanted, what of that is lost already, and its stretches
    Piece        a stretch with all that its reader has to know [K-23]
    Partition    pieces that one task reads

Partitions are few and large: a task costs as much as reading megabytes (10 §8). Stretches are segments; they are put
together in order, over topics too, and only a segment larger than a partition is cut [K-13]. What files there are is
decided by the `.idx` at the time of reading: one may have been rewritten or moved since [S-343].

Pure functions; any thread.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from topics.codec.snapshot import TopicItem
from topics.spark.arrow import GapRow
from topics.spark.options import ReadOptions

ENTRY_COST: Final = 20
"""Bytes of `.idx` that are read for each seq, whatever its record weighs."""
GAP_COST: Final = 40
RECREATED: Final = "recreated"
"""Why records of an instance that is gone are missing."""


class Stretch(NamedTuple):
    """Consecutive seqs that lie in one segment, or that only the server can read."""

    first: int
    last: int
    bytes: int
    remote: bool = False
    """To be read through the server."""
    generation: int = 0
    """Of the data file when this was planned."""
    pending: tuple[tuple[int, int], ...] = ()
    """Deleted, although no mark in a file says so."""


class TopicPlan(NamedTuple):
    """One topic at one instant."""

    item: TopicItem
    """As in a snapshot, floors as they count for this read."""
    first: int
    last: int
    min_ts: int
    max_ts: int
    lost: GapRow | None
    """What was asked for and is gone."""
    stretches: list[Stretch]


class Piece(NamedTuple):
    """A stretch to read."""

    item: TopicItem
    stretch: Stretch
    min_ts: int
    max_ts: int
    lost: GapRow | None = None
    """To be told before its first row."""

    @property
    def bytes(self) -> int:
        return self.stretch.bytes


class Source(NamedTuple):
    """Where pieces are read from; what `store` names is checked where the files are opened."""

    options: ReadOptions
    data_dir: str | None
    """None: no files can be reached."""
    store: str | None
    cold: str | None
    snapshot: int = 0
    """Number of the snapshot that a directory was planned by."""


class Partition(NamedTuple):
    """What one task reads."""

    source: Source
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


class Lost(NamedTuple):
    """Seqs that should be there, and what is known about why they are not."""

    first: int
    last: int
    reason: str
    detail: str = ""


Rows = pa.RecordBatch | Lost
"""What reading a piece gives."""


class Floors(NamedTuple):
    """The first seq that each kind of removal has left."""

    cap: int
    ttl: int
    deleted_below: int

    @property
    def evict(self) -> int:
        return max(self.cap, self.ttl)

    def reason(self, first: int) -> str:
        """Why seqs from `first` up to the evict floor are gone (01 §10)."""
        if self.cap > first and self.ttl > first:
            return "mixed"
        return "cap" if self.cap > first else "ttl"


def lost_before(asked: int | None, floors: Floors, last: int) -> GapRow | None:
    """What a read that explicitly starts at `asked` has missed; `earliest` misses nothing [K-10]."""
    if asked is None:
        return None
    first = max(asked, 1)
    behind = min(floors.evict, last + 1)
    return GapRow(first, behind - 1, floors.reason(first)) if first < behind else None


def narrowed(item: TopicItem, first: int, last: int, floors: Floors) -> TopicItem:
    """What a reader needs of an item: rows of its own segments, no keys, no leases."""
    low = bisect_right(item.segments, first, key=lambda row: row.first + row.count)
    rows = item.segments[low : bisect_right(item.segments, last, key=lambda row: row.first)]
    return replace(
        item, segments=rows, keys=(), producers=(), queue=None,
        cap_floor=floors.cap, ttl_floor=floors.ttl, delete_below=floors.deleted_below,
    )  # fmt: skip


def partitions(source: Source, plans: Sequence[TopicPlan]) -> list[Partition]:
    """The pieces of all topics, in order, as few partitions as the options allow; none where nothing is to be read."""
    options = source.options
    pieces = [piece for plan in plans for piece in _pieces(plan, options.partition_bytes)]
    stretches = sum(len(plan.stretches) for plan in plans)
    total = sum(piece.bytes for piece in pieces)
    count = max(math.ceil(total / options.partition_bytes), min(options.min_partitions, stretches))
    return [Partition(source, tuple(part)) for part in _shared_out(pieces, count)]


def _pieces(plan: TopicPlan, partition_bytes: int) -> list[Piece]:
    found = [
        Piece(narrowed(plan.item, one.first, one.last, floors_of(plan.item)), one, plan.min_ts, plan.max_ts)
        for stretch in plan.stretches
        for one in _split(stretch, partition_bytes)
    ]
    if plan.lost is not None:
        nothing = Stretch(plan.first, plan.first - 1, 0)
        first = found[0] if found else Piece(narrowed(plan.item, 1, 0, floors_of(plan.item)), nothing, 0, 0)
        found[:1] = [first._replace(lost=plan.lost)]
    return found


def floors_of(item: TopicItem) -> Floors:
    """The floors of an item."""
    return Floors(item.cap_floor, item.ttl_floor, item.delete_below)


def _split(stretch: Stretch, partition_bytes: int) -> list[Stretch]:
    """A stretch that is too large for a partition, cut by seqs."""
    seqs = stretch.last + 1 - stretch.first
    count = min(math.ceil(stretch.bytes / partition_bytes), seqs)
    if count <= 1:
        return [stretch]
    edges = [stretch.first + seqs * at // count for at in range(count + 1)]
    return [
        stretch._replace(first=low, last=high - 1, bytes=stretch.bytes * (high - low) // seqs)
        for low, high in pairwise(edges)
    ]


def _shared_out(pieces: list[Piece], count: int) -> list[list[Piece]]:
    """Consecutive pieces in at most `count` parts of about equal bytes, and in that many if there are enough."""
    parts: list[list[Piece]] = []
    left = sum(piece.bytes for piece in pieces)
    at = 0
    while at < len(pieces):
        open_parts = max(count - len(parts), 1)
        share, spare = left / open_parts, len(pieces) - at - open_parts
        end, taken = at + 1, pieces[at].bytes
        while end < len(pieces) and end - at <= max(spare, 0) and taken + pieces[end].bytes / 2 <= share:
            taken += pieces[end].bytes
            end += 1
        if len(parts) == count - 1:
            end = len(pieces)
        parts.append(pieces[at:end])
        left -= sum(piece.bytes for piece in pieces[at:end])
        at = end
    return parts
