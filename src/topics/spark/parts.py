"""A part: what one attempt of one task stages, in chunks of one topic each [K-31].

Rows of a topic keep their order, topics need not wait for each other: a chunk is sent when it has `batchRecords` rows
or `batchBytes` bytes, or when the rows that wait for all topics together are many. How rows are cut is nobody's
business: chunks that are too large for a server are cut in halves [K-33].

Where a part goes is a target's business: `upload.py` (a server) or `sink.py` (a directory). One thread, no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from topics.spark.failure import SourceError
from topics.spark.rows import Row
from topics.spark.writeoptions import WriteOptions

ROW_COST: Final = 64
"""Bytes that a row takes beside its payload, about."""
WAITING: Final = 4
"""How many chunks' bytes may wait in all topics together."""


class Staged(NamedTuple):
    """A part that is complete, as a commit names it."""

    part: str
    chunks: int
    records: int


class Version(NamedTuple):
    """Whose rows they are, and of which commit."""

    id: str
    number: int


def behind(version: Version, known: int) -> SourceError:
    """A stream whose checkpoint went back: what it reads now under an old number would be left out in silence."""
    what = f"batch {version.number} of {version.id} comes after batch {known} was written: its checkpoint is an old one"
    return SourceError("checkpoint_behind", what, "go on with the newest checkpoint, or with a new one")


class Committed(Exception):
    """The version is committed already: nothing is left to send [TXN-3]."""


class TooLarge(Exception):
    """A chunk has to be cut."""


class Send(Protocol):
    """Where chunks of a part go."""

    def __call__(self, chunk: int, topic: str, rows: Sequence[Row]) -> None:
        """Put a chunk there; `Committed`, `TooLarge`, or an error that fails the task."""
        ...


class Outgoing(Protocol):
    """A part that is being staged."""

    def send(self, chunk: int, topic: str, rows: Sequence[Row]) -> None: ...

    def close(self, *, complete: bool) -> None:
        """Nothing follows; what is not complete is nobody's."""
        ...


class Target(Protocol):
    """Where rows are written to."""

    def check(self) -> None:
        """Whether a write can begin; `SourceError` says why not."""
        ...

    def open(self, version: Version) -> None:
        """Before the tasks of a batch; on the driver. The batches of a stream are not announced."""
        ...

    def begin(self, version: Version, part: str, *, opened: bool = False) -> Outgoing:
        """Begin a part; in a task. Of a version that was opened and is over, none is begun."""
        ...

    def commit(self, version: Version, parts: Sequence[Staged], *, newest: bool = False) -> None:
        """Make the parts visible, in their order, once; on the driver. `newest`: a higher version is an error."""
        ...

    def abort(self, version: Version, *, final: bool = False) -> None:
        """Drop what is staged; a committed version is left alone. `final`: it will not be written again."""
        ...


def stage(
    target: Target, options: WriteOptions, version: Version, part: str, rows: Iterable[Row], *, opened: bool = False
) -> Staged:
    """Rows as a part of a version; whatever goes wrong, nothing of it stays open."""
    outgoing = target.begin(version, part, opened=opened)
    chunks, complete = Chunker(options, outgoing.send), False
    try:
        with suppress(Committed):  # by another attempt or run, as the commit will say again [TXN-3]
            chunks.add(rows)
            chunks.finish()
        complete = True
    finally:
        outgoing.close(complete=complete)
    return Staged(part, chunks.chunks, chunks.records)


class Chunker:
    """Cuts rows into chunks and counts them."""

    def __init__(self, options: WriteOptions, send: Send) -> None:
        self._most_rows = options.batch_records
        self._most_bytes = options.batch_bytes
        self._send = send
        self._waiting: dict[str, list[Row]] = {}
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.chunks = 0
        self.records = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of any topics."""
        waiting, sizes, most_rows, most_bytes = self._waiting, self._sizes, self._most_rows, self._most_bytes
        for row in rows:
            topic, size = row.topic, len(row.stored) + ROW_COST
            known = waiting.get(topic)
            if known is None:
                known = waiting[topic] = []
                sizes[topic] = 0
            elif known and (len(known) >= most_rows or sizes[topic] + size > most_bytes):
                self._flush(topic)
                known = waiting[topic]
            known.append(row)
            sizes[topic] += size
            self._total += size
            if self._total > WAITING * most_bytes:
                self.finish()

    def finish(self) -> None:
        """Send what waits."""
        for topic in list(self._waiting):
            self._flush(topic)
        self._waiting.clear()
        self._sizes.clear()

    def _flush(self, topic: str) -> None:
        rows, self._waiting[topic] = self._waiting[topic], []
        self._total -= self._sizes[topic]
        self._sizes[topic] = 0
        if rows:
            self._put(topic, rows)

    def _put(self, topic: str, rows: list[Row]) -> None:
        try:
            self._send(self.chunks, topic, rows)
        except TooLarge:
            half = len(rows) // 2
            self._most_rows = max(half, 1)
            self._put(topic, rows[:half])
            self._put(topic, rows[half:])
            return
        self.chunks += 1
        self.records += len(rows)
