"""What a staged commit brings to one topic through the WAL: its frames, and the ticket that publishes them [S-287].

    frame     chunks become WAL frames, and a piece of the index, in slices, before anything of the topic changes [P-10]
    chain     HeadWatermark, copies of routers, the Appends, the router mark, Dedupe: in one stretch with `stage`
    publish   as any write, but at once however many records there are: topics of a commit become visible together

Owner only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from topics.codec import control, part
from topics.engine.append import Staged, Write, let_go
from topics.engine.core import Core, Outcome, control_frame
from topics.engine.recent import TOPIC_RECORDS_MAX
from topics.engine.records import NOTHING
from topics.engine.topic import Appended, Lsn, Taken, Ticket, Topic
from topics.model import Producer
from topics.storage.staging import Rows
from topics.storage.tail import Tail

STEP_RECORDS: Final = 64
STEP_BYTES: Final = 64 << 10
"""What is framed in less than a tenth of a millisecond."""
RUN_PIECES: Final = 16
"""Steps whose records are put into the index in one call."""


class _Run(NamedTuple):
    """Consecutive records, ready to be applied."""

    first: int
    tags: Sequence[bytes | None]
    """Nothing where no record has one."""
    pieces: list[part.Framed]


class Share(Staged):
    """The ticket of one topic's rows of a commit."""

    __slots__ = (
        "_counted", "_envelopes", "_framed", "_ready", "_runs", "_size", "frame_count", "is_attached", "rows",
    )  # fmt: skip

    def __init__(
        self, core: Core, topic: Topic, rows: Rows, producer: Producer, ts: int, *, created: bool, done: Outcome
    ) -> None:
        write = Write(topic.name, NOTHING, None, producer, None, None)
        super().__init__(core, topic, write, done, created, topic.next_seq, ts)
        self.rows = rows
        self.count = rows.records
        self.total = rows.accounted
        self.is_attached = False
        self.frame_count = 0
        """Of what `chain` made."""
        self._counted = 0
        """Records that are framed."""
        self._framed: list[part.Framed] = []
        self._runs: list[_Run] = []
        self._ready = Tail(self.seq_before)
        """Their entries; locations count from the first frame of the share's Appends."""
        self._size = 0
        """Bytes of the frames of its records."""
        self._envelopes: list[bytes] = []

    @property
    def last(self) -> int:
        """Seq of its last record."""
        return self.seq_before + self.count - 1

    @property
    def is_current(self) -> bool:
        """Whether the seqs in its frames are still those that the topic gives next."""
        return self.topic.next_seq == self.seq_before

    # -- framing -----------------------------------------------------------------------------------------------------

    def steps(self, chunks: Iterable[bytes], *, keep_envelopes: bool) -> Iterator[None]:
        """Frame the records of the next chunks; call `framed` behind the last."""
        for chunk in chunks:
            for begins in _few(chunk, part.places(chunk)):
                seq = self.seq_before + self._counted
                found = part.appends(chunk, begins, self.topic.id, seq, self.ts, durable=True, more=True)
                self._framed.append(found)
                self._counted += len(begins)
                if len(self._framed) >= RUN_PIECES:
                    self._close_run()
                yield
            if keep_envelopes:
                self._envelopes += part.envelopes(chunk)

    def framed(self) -> None:
        """All chunks were given."""
        if self._framed:
            self._close_run()
        assert self._counted == self.count, "what was staged is what is committed"

    def _close_run(self) -> None:
        """Put what was framed together as far as the index wants it; frames stay in pieces."""
        pieces, self._framed = self._framed, []
        first = self.seq_before + self._counted - sum(one.records for one in pieces)
        for one in pieces:
            self._ready.extend(one.entries, np.frombuffer(one.offsets, np.uint64) + np.uint64(self._size))
            self._size += len(one.frames)
        tags: Sequence[bytes | None] = ()
        if any(one.tags for one in pieces):
            tags = [tag for one in pieces for tag in one.tags or [None] * one.records]
        self._runs.append(_Run(first, tags, pieces))

    def envelopes(self) -> Iterable[bytes]:
        return self._envelopes

    # -- staging -----------------------------------------------------------------------------------------------------

    def chain(self, now: int, *, more: bool) -> list[bytes]:
        """Its part of the submission; `more` says that another part follows. In one stretch with `stage`."""
        core, topic, last = self._core, self.topic, self.last
        self._ceiling = 0
        prefix, frames = b"", self.count + 1
        if topic.durability == "disk" and not topic.reservation.covers(last):
            prefix = self.reserve(last, now)
            frames += 1
        edge = core.routers.feeding.get(topic.id)
        behind = b""
        if edge is not None:
            carried = self.take_along(edge, durable=True)
            if carried is not None:
                prefix += carried.frames
                frames += carried.frame_count
            behind = edge.mark(last, self.ts, durable=True, more=True)
            frames += 1
        named = self.write.producer
        assert named is not None
        body = control.Dedupe(
            first=self.seq_before, count=self.count, producer=named.id, epoch=named.epoch, index=named.index
        )
        behind += control_frame(body, topic, self.ts, durable=True, more=more)
        self.prefix_bytes, self.frame_count = len(prefix), frames
        pieces = [one.frames for run in self._runs for one in run.pieces]
        return [prefix, *pieces, behind] if prefix else [*pieces, behind]

    def stage(self, now: int) -> None:
        """Take the seqs; its frames go to the log in the same stretch [S-105]."""
        topic = self.topic
        assert self.write.producer is not None
        self.pending = self._core.producers.stage(topic.id, self.write.producer, now)
        topic.next_seq, topic.last_ts = self.last + 1, self.ts
        self.count_staged()
        if self.edge is not None:
            self.edge.logged_seq = self.last

    def unstage(self, last_ts: int) -> None:
        """The log refused it: nothing of it was staged."""
        self.topic.next_seq, self.topic.last_ts = self.seq_before, last_ts
        self._withdraw()
        self.edge = None

    # -- publishing --------------------------------------------------------------------------------------------------

    def joined(self, line: Sequence[Ticket]) -> int:
        return 1

    def _apply(self, staged: Sequence[Staged]) -> None:
        if isinstance(self.lsn, Lsn):
            self._apply_logged(self.lsn)
        else:
            self._apply_in_memory()
        let_go(self._core, [piece for run in self._runs for piece in run.pieces])
        self._runs.clear()

    def _apply_logged(self, lsn: Lsn) -> None:
        core, topic = self._core, self.topic
        assert core.wal is not None
        began = core.wal.location(lsn.group, lsn.file_no, lsn.offset + self.prefix_bytes)
        for run in self._runs:
            if self.last - run.first < TOPIC_RECORDS_MAX:
                self._remember(run)
        tags = [(run.first, run.tags) for run in self._runs if run.tags]
        topic.apply(Taken(self._ready, began, tags, self.total, self.ts))
        if tags:
            core.tag_soon(topic)

    def _remember(self, run: _Run) -> None:
        """The newest records stay in memory; those in front would be let go of at once."""
        seq = run.first
        for piece in run.pieces:
            self._core.recent.add(self.topic.id, seq, piece.frames, piece.offsets)
            seq += piece.records

    def _apply_in_memory(self) -> None:
        for run in self._runs:
            seq, at = run.first, 0
            for piece in run.pieces:
                tags, begins = run.tags[at : at + piece.records], array("Q", piece.offsets)
                self.topic.apply(Appended(seq, piece.entries, begins, tags, piece.accounted, self.ts, piece.frames))
                seq += piece.records
                at += piece.records


def _few(chunk: bytes, begins: list[int]) -> Iterator[list[int]]:
    """As many frames as one step takes."""
    at = 0
    while at < len(begins):
        end = min(at + STEP_RECORDS, len(begins))
        while end - at > 1 and (begins[end] if end < len(begins) else len(chunk)) - begins[at] > STEP_BYTES:
            end = at + (end - at) // 2
        yield begins[at:end]
        at = end
