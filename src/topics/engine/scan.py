"""The binary scan: records as the frames that segments hold, for readers that cannot reach the files [A-21].

    retention, then stretches of one walk each (`read.walk`), from wherever the records are
    sealed, hot    frames as stored, verified
    elsewhere      the frame that a checkpoint would write: active segment, log, memory
    last           what was deleted since its stretch is taken out: no deleted payload leaves

A scan begins at `from_seq` and says where the next one does. It ends at `to_seq`, at the head, when the bytes asked for
are there, or in front of a tombstone that it cannot tell any more: one answer tells one, ahead of its records [RD-8].
Owner only, but for `Query.parse` and `ScanResult.body`.
"""

from __future__ import annotations

from functools import partial
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
from topics.errors import CallerError, TopicNotFound
from topics.model import Gap, check_u64
from topics.storage.reindex import Entries, live_of

BYTES_DEFAULT: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
STRETCH_RECORDS: Final = 512
STRETCH_BYTES: Final = 512 << 10
"""About a millisecond [P-10]."""
SLICE_NS: Final = 2_000_000
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

    entries: list[Entries]
    frames: list[bytes]
    next_seq: int
    """`from_seq` of the next one; nothing is left when it is above `head_seq`."""
    head_seq: int
    tombstone: Gap | None

    def body(self) -> bytes:
        """All of it in the format of [A-21]; any thread."""
        # Not `concatenate`: it would lay the fields out anew.
        entries = np.frombuffer(b"".join(one.tobytes() for one in self.entries), segment.IDX)
        return b"".join(segment.encode_scan(entries, self.frames))


def scan(core: Core, query: Query, done: Outcome) -> None:
    """Answers a `ScanResult`."""

    def found(topic: Topic) -> None:
        def retain() -> None:
            retention.catch_up(core, topic)
            retention.expire(core, topic, _Scan(core, topic, query, done).step, done)

        forward.drain(core, topic, retain, done)

    core.with_topic(query.name, found, done)


class _Stretch(NamedTuple):
    """Records that one walk found."""

    seqs: list[int]
    entries: Entries
    frames: list[bytes]


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
        self._wanted = Projection(mask=topic_mask(topic.id))
        self._live: int | None = None
        """Count less head at first: changes with every record that goes, and not with those that come."""

    def step(self) -> None:
        """One stretch."""
        topic = self._topic
        if self._core.topics.get(topic.id) is not topic:
            self._done(TopicNotFound(topic.name))
            return
        if self._live is None:
            self._live = topic.count - topic.head
            topic.read_at(self._core.clock.now_ms())
        if self._walk():
            self._core.owner.soon(lambda: guarded(self.step, self._done))
        elif topic.count - topic.head == self._live:
            self._answer()
        else:
            self._recheck(0)

    def _walk(self) -> bool:
        """Take what is next; whether there is more to take."""
        topic, asked = self._topic, self._query
        through = topic.head if self._cursor > topic.head else min(topic.head, asked.to_seq)
        budget = max(min(self._left, STRETCH_BYTES), 1)
        query = read.Query(asked.name, self._cursor, None, STRETCH_RECORDS, budget, frozenset(), 0)
        result = read.walk(topic, query, self._wanted, through)
        if result.tombstone is not None:
            if self._found or self._tombstone is not None:
                return False
            self._tombstone = msgspec.structs.replace(result.tombstone, head_seq=topic.head)
        cursor = result.next_from_seq
        frames: list[bytes] = result.records  # type: ignore[assignment]
        if frames:
            stretch = self._described(frames)
            if len(stretch.frames) < len(frames):
                cursor = stretch.seqs[-1] if stretch.frames else _seq(frames[0]) - 1
            if stretch.frames:
                self._found.append(stretch)
            if len(stretch.frames) < len(frames):
                self._cursor = cursor
                return False
        self._cursor = cursor
        return cursor < min(topic.head, asked.to_seq) and cursor - self._start < EXAMINED_MAX

    def _described(self, frames: list[bytes]) -> _Stretch:
        """As many frames as there is room for, the first in any case, with their entries."""
        fit = 0
        for one in frames:
            cost = len(one) + segment.ENTRY_BYTES
            if cost > self._left and (fit or self._found):
                break
            self._left -= cost
            fit += 1
        seqs = [_seq(one) for one in frames[:fit]]
        entries = self._entries(seqs)
        hops = entries["flags"] >> np.uint8(segment.HOPS_SHIFT)
        kept = frames[:fit]
        for at in np.flatnonzero(hops).tolist():
            # Of what is in no segment the frame itself does not know.
            if kept[at][4] >> segment.HOPS_SHIFT != hops[at]:
                kept[at] = segment.with_hops(kept[at], int(hops[at]), topic_mask(self._topic.id))
        return _Stretch(seqs, entries, kept)

    def _entries(self, seqs: list[int]) -> Entries:
        """The entries of records, as they are in this very stretch; empty where nothing is known any more."""
        wanted = np.array(seqs, np.uint64)
        found = np.zeros(len(seqs), segment.IDX)
        for run in self._topic.index.walk(seqs[0], seqs[-1]) if seqs else ():
            if isinstance(run, Run):
                bounds = np.array([run.first, run.first + len(run.entries)], np.uint64)
                begin, end = np.searchsorted(wanted, bounds).tolist()
                found[begin:end] = run.entries[(wanted[begin:end] - np.uint64(run.first)).astype(np.int64)]
        return found

    # -- what went meanwhile -----------------------------------------------------------------------------------------

    def _recheck(self, at: int) -> None:
        """Take out what was deleted since its stretch, in slices; what goes now is as if it went after the answer."""
        topic, now = self._topic, self._core.clock.monotonic_ns
        if self._core.topics.get(topic.id) is not topic:
            self._done(TopicNotFound(topic.name))
            return
        until_ns = now() + SLICE_NS
        while at < len(self._found):
            self._found[at] = self._still_live(self._found[at])
            at += 1
            if now() >= until_ns:
                self._core.owner.soon(partial(guarded, partial(self._recheck, at), self._done))
                return
        self._answer()

    def _still_live(self, one: _Stretch) -> _Stretch:
        live = live_of(self._entries(one.seqs)) & (np.array(one.seqs, np.uint64) >= np.uint64(self._topic.floor))
        if live.all():
            return one
        kept = np.flatnonzero(live).tolist()
        return _Stretch([one.seqs[at] for at in kept], one.entries[kept], [one.frames[at] for at in kept])

    def _answer(self) -> None:
        frames = [one for stretch in self._found for one in stretch.frames]
        entries = [stretch.entries for stretch in self._found]
        self._done(ScanResult(entries, frames, self._cursor + 1, self._topic.head, self._tombstone))


def _seq(frame: bytes) -> int:
    return int.from_bytes(frame[5:13], "little")
