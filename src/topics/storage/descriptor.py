"""What is known of a segment without its files [S-156], what a job is given of it [S-158], and when it is sealed.

    Segment        the owner's descriptor
    OpenSegment    a segment that a cycle writes: a copy of the active one, or a new one
    MarkedSegment  a sealed segment whose delete marks a cycle brings to disk
    Claim          what a mark or snapshot says of the active segment [S-44]

No file is touched here. A `Segment` belongs to the topic's owner; the others are handed over with their job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics.codec import segment as codec
from topics.codec.frame import Buffer
from topics.codec.segment import GapSegment
from topics.storage.reindex import Entries, Stats, stats

Marks = npt.NDArray[np.uint32]
"""Ascending positions in a segment: seq - first."""

NO_MARKS: Marks = np.empty(0, np.uint32)


class Limits(NamedTuple):
    """When the active segment is sealed [S-127], and when a run of dead seqs is one of its own [S-129]."""

    max_events: int = 10_000
    max_bytes: int = 64 << 20
    max_age_ms: int = 3_600_000
    """0 is never."""
    max_run: int = 1024
    """Dead seqs in a row that are entries; a longer run is a gap segment."""


def seal_due(entries: int, data_len: int, first_ts: int, now_ms: int, limits: Limits) -> bool:
    """Whether the active segment is to be sealed before another entry is added [S-127]."""
    if entries == 0:
        return False
    aged = limits.max_age_ms > 0 and now_ms - first_ts >= limits.max_age_ms
    return entries >= limits.max_events or data_len >= limits.max_bytes or aged


def room(entries: int, data_len: int, sizes: npt.NDArray[np.integer], limits: Limits) -> int:
    """How many of the next frames, given their sizes (0: a filler), a segment takes before it is due by size."""
    left = max(limits.max_events - entries, 0)
    before = np.cumsum(sizes[:left], dtype=np.int64) - sizes[:left] + data_len
    fit = int(np.searchsorted(before, limits.max_bytes))
    return max(fit, 1) if entries == 0 and len(sizes) else fit


class Claim(NamedTuple):
    """What is durable of the active segment; no entries: there is none, the next one begins at `first`."""

    first: int
    data_len: int
    entries: int
    idx_xxh3: int

    @classmethod
    def of(cls, first: int, data_len: int, entries: Buffer) -> Claim:
        """The claim over these packed entries."""
        table = np.frombuffer(entries, codec.IDX) if len(entries) else np.empty(0, codec.IDX)
        return cls(first, data_len, len(table), codec.claim_xxh3(table))


class Segment:
    """Descriptor of one segment, the only heap state of a sealed one [S-156]."""

    __slots__ = (
        "behind", "busy", "cold", "data_len", "entries", "first", "gap", "generation", "given_up", "has_tags",
        "idx_xxh3", "live", "live_bytes", "lost", "max_ts", "min_ts", "n", "pending", "sealed", "stub", "unindexed",
        "untagged",
    )  # fmt: skip

    def __init__(self, first: int, n: int, data_len: int) -> None:
        self.first = first
        self.n = n
        """Of seqs."""
        self.data_len = data_len
        self.generation = 0
        self.sealed = False
        self.gap: GapSegment | None = None
        self.live = 0
        self.live_bytes = 0
        self.min_ts: int | None = None
        """None, as `max_ts` and `has_tags`, until verified entries were seen."""
        self.max_ts: int | None = None
        self.has_tags: bool | None = None
        self.idx_xxh3 = 0
        """Sealed: the hash in the footer."""
        self.entries: bytearray | None = None
        """Of the active segment."""
        self.pending: Marks = NO_MARKS
        """Delete marks that are not on disk."""
        self.busy = False
        """In the hands of a job."""
        self.cold = False
        """The frames are in the cold tier; the `.idx` here is the segment's stub [S-316]."""
        self.behind = False
        """Cold, and the copy there lacks deletes that the stub has [S-315]."""
        self.unindexed = False
        """Cold, and the stub is lost: everything in it reads as damage until the tier gives it back."""
        self.untagged = False
        """Cold, and its tags are lost: deletes by tag cannot be answered until the tier gives them back."""
        self.stub = False
        """Nothing is live and the `.data` is gone [S-274]."""
        self.lost = False
        """The `.data` is gone although it is needed [S-250]."""
        self.given_up = False
        """Lost, and the next cycle is to say so on disk."""

    @property
    def last(self) -> int:
        """The last seq."""
        return self.first + self.n - 1

    @property
    def dead(self) -> int:
        """Seqs that are not live."""
        return self.n - self.live

    @property
    def has_data(self) -> bool:
        """Whether there is a hot `.data`."""
        return not (self.gap or self.cold or self.stub or self.lost)

    def learn(self, found: Stats, *, counts: bool = True) -> None:
        """Take over what entries say."""
        self.min_ts, self.max_ts, self.has_tags = found.min_ts, found.max_ts, found.has_tags
        if counts:
            self.live, self.live_bytes = found.live, found.live_bytes

    def settle(self, marks: Marks) -> None:
        """A job brought these marks to disk; what came since stays pending."""
        self.pending = np.setdiff1d(self.pending, marks, assume_unique=True).astype(np.uint32)


def gap_segment(first: int, gap: GapSegment, idx_xxh3: int) -> Segment:
    """Descriptor of a gap segment."""
    made = Segment(first, gap.seqs, 0)
    made.sealed, made.gap, made.idx_xxh3 = True, gap, idx_xxh3
    made.min_ts = made.max_ts = gap.ts
    made.has_tags = False
    return made


class OpenSegment:
    """A segment in the hands of a cycle."""

    __slots__ = ("_found", "data_len", "entries", "first", "gap", "idx_xxh3", "live", "live_bytes", "marks", "sealed")

    def __init__(self, first: int, data_len: int = 0, entries: Buffer = b"", marks: Marks = NO_MARKS) -> None:
        self.first = first
        self.data_len = data_len
        self.entries = bytearray(entries)
        self.marks = marks
        """Marks in the entries that are not on disk."""
        self.live = 0
        """When it was handed over, as `live_bytes`."""
        self.live_bytes = 0
        self.sealed = False
        self.gap: GapSegment | None = None
        self.idx_xxh3 = 0
        self._found: tuple[int, Stats] | None = None

    @classmethod
    def copied(cls, active: Segment) -> OpenSegment:
        """The active segment as it is now, with everything that is pending."""
        assert active.entries is not None
        made = cls(active.first, active.data_len, active.entries, active.pending)
        made.live, made.live_bytes = active.live, active.live_bytes
        return made

    @property
    def n(self) -> int:
        """Of seqs."""
        return self.gap.seqs if self.gap else len(self.entries) // codec.ENTRY_BYTES

    @property
    def first_ts(self) -> int:
        """`ts` of the first entry."""
        return int.from_bytes(self.entries[8:16], "little")

    def array(self) -> Entries:
        """A copy of the entries."""
        return np.frombuffer(bytes(self.entries), codec.IDX)

    def counted(self) -> Stats:
        """What its entries say. It takes a while: a cycle asks for it before the owner does."""
        if self._found is None or self._found[0] != len(self.entries):
            self._found = len(self.entries), stats(self.array())
        return self._found[1]

    def described(self) -> Segment:
        """A descriptor of its own."""
        if self.gap is not None:
            return gap_segment(self.first, self.gap, self.idx_xxh3)
        segment = Segment(self.first, self.n, self.data_len)
        segment.learn(self.counted())
        segment.sealed, segment.idx_xxh3 = self.sealed, self.idx_xxh3
        segment.entries = None if self.sealed else bytearray(self.entries)
        return segment


class MarkedSegment(NamedTuple):
    """A sealed segment whose `.idx` is to be replaced."""

    first: int
    n: int
    generation: int
    marks: Marks
    has_data: bool
    cold: bool
    given_up: bool
    entries: Entries | None = None
    """Of a cold segment, pending marks among them; others are read from disk again."""

    @classmethod
    def copied(cls, one: Segment, entries: Entries | None = None) -> MarkedSegment:
        """The segment as it is now, with everything that is pending."""
        return cls(one.first, one.n, one.generation, one.pending, one.has_data, one.cold, one.given_up, entries)
