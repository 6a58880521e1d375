"""The binary scan: records as the frames that segments hold, for readers that cannot reach the files [A-21].

    retention, then stretches of one walk each (`read.walk`), between what else the owner has to do [P-10]
    sealed, hot    frames as stored, verified; cold ones are fetched meanwhile
    elsewhere      the frame that a checkpoint would write: active segment, log, memory
    last           what was deleted since its stretch is taken out: no deleted payload leaves

A scan begins at `from_seq` and says where the next one does. It ends at `to_seq`, at the head, when the bytes asked for
are there, or in front of a tombstone that it cannot tell any more: one answer tells one, ahead of its records [RD-8].
Owner only, but for `Query.parse` and `ScanResult.body`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from topics import paths
from topics.codec import segment
from topics.codec.place import topic_mask
from topics.codec.project import Projection
from topics.engine import forward, read, retention
from topics.engine.core import Core, Outcome, guarded
from topics.engine.index import Run
from topics.engine.topic import Topic
from topics.errors import CallerError, StoreUnavailable, TopicNotFound, WalIo
from topics.model import Gap, check_u64
from topics.storage.reindex import Entries, live_of
from topics.storage.tiers.blocks import NeedsBlocks

BYTES_DEFAULT: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
STRETCH_RECORDS: Final = 128
STRETCH_BYTES: Final = 256 << 10
"""A few tenths of a millisecond."""
EXAMINED_MAX: Final = 2_000_000
"""A scan may end after so many seqs, so that one over nothing but dead ones ends as well [RD-4]."""
HEAD_BYTES: Final = 4


class Query(NamedTuple):
    """What is asked for, checked and clamped."""

    name: str
    from_seq: int
    to_seq: int
    max_bytes: int

    @classmethod
    def parse(cls, name: str, from_seq: object = 0, to_seq: object = None, max_bytes: object = 0) -> Query:
        """Check what a caller gave; both ends are included, 0 is the beginning, no `to_seq` the head."""
        first = check_u64(from_seq, "from_seq") or 1
        last = paths.U64_MAX if to_seq is None else check_u64(to_seq, "to_seq")
        if last < first:
            raise CallerError("to_seq lies before from_seq")
        return cls(name, first, last, min(check_u64(max_bytes, "max_bytes") or BYTES_DEFAULT, BYTES_MAX))


class ScanResult(NamedTuple):
    """Records of a scan, and how to go on."""

    entries: list[bytes]
    frames: list[bytes]
    """Those of some records each, as `entries` are."""
    next_seq: int
    """`from_seq` of the next one; nothing is left when it is above `head_seq`."""
    head_seq: int
    tombstone: Gap | None

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return HEAD_BYTES + sum(map(len, self.entries)) + sum(map(len, self.frames))

    def body(self) -> bytes:
        """All of it in the format of [A-21]; any thread."""
        entries = np.frombuffer(b"".join(self.entries), segment.IDX)
        return b"".join(segment.encode_scan(entries, self.frames))


def scan(core: Core, query: Query, done: Outcome) -> None:
    """Answers a `ScanResult`."""

    def found(topic: Topic) -> None:
        def retain() -> None:
            retention.catch_up(core, topic)
            retention.expire(core, topic, _Scan(core, topic, query, done).begin, done)

        forward.drain(core, topic, retain, done)

    core.with_topic(query.name, found, done)


class _Stretch(NamedTuple):
    """Records that one walk found."""

    seqs: list[int]
    entries: Entries
    frames: bytes


class _Scan:
    """One scan on its way. `cursor` is the last seq it is through with."""

    def __init__(self, core: Core, topic: Topic, query: Query, done: Outcome) -> None:
        self._core = core
        self._topic = topic
        self._query = query
        self._done = done
        self._cursor = self._start = query.from_seq - 1
        self._left = query.max_bytes - HEAD_BYTES
        self._found: list[_Stretch] = []
        self._tombstone: Gap | None = None
        self._mask = topic_mask(topic.id)
        self._live = topic.count - topic.head
        """Changes with every record that goes, and not with those that come."""
        self._cold = core.cold.read()
        self._needed: NeedsBlocks | None = None

    def begin(self) -> None:
        """Take the first stretch at once."""
        self._check_topic()
        self._topic.read_at(self._core.clock.now_ms())
        self._live = self._topic.count - self._topic.head
        self._go_on()

    def _go_on(self) -> None:
        """A stretch; more of them in slices, or when what the cold tier has of them is here."""
        self._check_topic()
        waited = bool(self._found)
        more = self._walk()
        if more or waited:
            self._core.owner.sliced(self._stretches(more), self._over)
        else:
            self._over(None)

    def _stretches(self, more: bool) -> Iterator[None]:
        """What is left, stretch by stretch, as the owner; then what went meanwhile is taken out."""
        while more:
            yield
            with self._core.owner:
                self._check_topic()
                more = self._walk()
        for at in range(0 if self._needed is None else len(self._found), len(self._found)):
            with self._core.owner:
                self._check_topic()
                if self._topic.count - self._topic.head == self._live:
                    return
                self._found[at] = self._still_live(self._found[at])
            yield

    def _check_topic(self) -> None:
        if self._core.topics.get(self._topic.id) is not self._topic:
            raise TopicNotFound(self._topic.name)

    def _over(self, error: BaseException | None) -> None:
        needed, self._needed = self._needed, None
        if error is not None:
            self._done(WalIo(error) if isinstance(error, OSError) else error)
        elif needed is not None:
            self._core.cold.fetch(self._cold, needed.wanted, lambda: guarded(self._go_on, self._done))
        else:
            self._answer()

    def _walk(self) -> bool:
        """Take what is next; whether there is more to take, without asking the cold tier first."""
        topic, asked = self._topic, self._query
        through = topic.head if self._cursor > topic.head else min(topic.head, asked.to_seq)
        budget = max(min(self._left, STRETCH_BYTES), 1)
        query = read.Query(asked.name, self._cursor, None, STRETCH_RECORDS, budget, frozenset(), 0)
        try:
            result = read.walk(topic, query, self._cold, Projection(mask=self._mask), through)
        except NeedsBlocks as needed:
            self._needed = needed
            return False
        except StoreUnavailable:
            if not self._found:
                raise
            return False
        self._cold = self._core.cold.read()
        if result.tombstone is not None:
            if self._found or self._tombstone is not None:
                return False
            self._tombstone = msgspec.structs.replace(result.tombstone, head_seq=topic.head)
        frames: list[bytes] = result.records  # type: ignore[assignment]
        fit = self._fitting(frames)
        if fit:
            self._found.append(self._described(frames[:fit]))
        if fit < len(frames):
            self._cursor = _seq(frames[fit]) - 1
            return False
        self._cursor = result.next_from_seq
        return self._cursor < min(topic.head, asked.to_seq) and self._cursor - self._start < EXAMINED_MAX

    def _fitting(self, frames: list[bytes]) -> int:
        """How many frames there is room for; the first of all in any case."""
        for fit, one in enumerate(frames):
            cost = len(one) + segment.ENTRY_BYTES
            if cost > self._left and (fit or self._found):
                return fit
            self._left -= cost
        return len(frames)

    def _described(self, frames: list[bytes]) -> _Stretch:
        """Frames with their seqs and entries."""
        seqs = list(map(_seq, frames))
        entries = self._entries(seqs)
        hops = entries["flags"] >> np.uint8(segment.HOPS_SHIFT)
        for at in np.flatnonzero(hops).tolist():
            # Of what is in no segment the frame itself does not know.
            if frames[at][4] >> segment.HOPS_SHIFT != hops[at]:
                frames[at] = segment.with_hops(frames[at], int(hops[at]), self._mask)
        return _Stretch(seqs, entries, b"".join(frames))

    def _entries(self, seqs: list[int]) -> Entries:
        """The entries of records, as they are in this very stretch; empty where nothing is known any more."""
        wanted = np.array(seqs, np.uint64)
        found = np.zeros(len(seqs), segment.IDX)
        for run in self._topic.index.walk(seqs[0], seqs[-1]):
            if isinstance(run, Run):
                bounds = np.array([run.first, run.first + len(run.entries)], np.uint64)
                begin, end = np.searchsorted(wanted, bounds).tolist()
                found[begin:end] = run.entries[(wanted[begin:end] - np.uint64(run.first)).astype(np.int64)]
        return found

    def _still_live(self, one: _Stretch) -> _Stretch:
        """Without what was deleted since; what goes behind this is as if it went after the answer."""
        live = live_of(self._entries(one.seqs)) & (np.array(one.seqs, np.uint64) >= np.uint64(self._topic.floor))
        if live.all():
            return one
        ends = np.cumsum(one.entries["len"].astype(np.int64))
        spans = zip((ends - one.entries["len"])[live].tolist(), ends[live].tolist(), strict=True)
        frames = b"".join(one.frames[begin:end] for begin, end in spans)
        return _Stretch(np.array(one.seqs)[live].tolist(), one.entries[live], frames)

    def _answer(self) -> None:
        entries = [stretch.entries.tobytes() for stretch in self._found]
        frames = [stretch.frames for stretch in self._found]
        self._done(ScanResult(entries, frames, self._cursor + 1, self._topic.head, self._tombstone))


def _seq(frame: bytes) -> int:
    return int.from_bytes(frame[5:13], "little")
