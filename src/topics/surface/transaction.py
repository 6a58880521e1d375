"""Transactions: what is appended in a block appears when it is left, all of it or nothing (02 §9) [A-19, U-24].

    with log.transaction("loader", version=7) as txn:
        txn.append("orders", {"sku": "B-12"})
        txn.append("stock", {"sku": "B-12", "left": 4})

Records are staged in chunks while the block runs, out of sight, under a part of this attempt's own. The commit names
it. A version that was committed before commits nothing again: repeat a block that failed with the same version, and its
records are there once. `Chunks` is that without I/O. One thread or task at a time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from topics.codec import envelope
from topics.errors import CallerError, TopicsError, TxnCommitted, Unreachable
from topics.model import CommitResult, NewRecord, as_record

if TYPE_CHECKING:
    from topics.surface.base import AsyncSurface, Surface

log = logging.getLogger("topics.transaction")

CHUNK_RECORDS: Final = 1000
CHUNK_BYTES: Final = 4 << 20


class Chunk(NamedTuple):
    """Records of one topic that are staged together."""

    number: int
    topic: str
    records: list[NewRecord]


class Chunks:
    """Records on their way into one part; a topic's order is the order in which they were added."""

    def __init__(self) -> None:
        self.part = f"py-{secrets.token_hex(12)}"
        self.number = 0
        self.records = 0
        self._open: dict[str, list[NewRecord]] = {}
        self._bytes: dict[str, int] = {}

    def add(self, topic: str, record: NewRecord) -> Chunk | None:
        """One more record, as it is now; a chunk, if one is full with it."""
        text = _text("data", record.data)
        meta = None if record.meta is None else _text("meta", record.meta)
        records = self._open.setdefault(topic, [])
        records.append(NewRecord(text, record.tag, record.node, meta))
        size = self._bytes[topic] = self._bytes.get(topic, 0) + len(text) + len(meta or b"")
        return self._close(topic) if len(records) >= CHUNK_RECORDS or size >= CHUNK_BYTES else None

    def rest(self) -> Iterable[Chunk]:
        """What is not staged yet."""
        for topic in list(self._open):
            yield self._close(topic)

    def _close(self, topic: str) -> Chunk:
        records = self._open.pop(topic)
        del self._bytes[topic]
        chunk = Chunk(self.number, topic, records)
        self.number += 1
        self.records += len(records)
        return chunk

    def parts(self) -> list[tuple[str, int, int]]:
        """What a commit names."""
        return [(self.part, self.number, self.records)] if self.number else []


def _text(what: str, value: object) -> bytes:
    try:
        return envelope.text_of(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise CallerError(f"{what} is not JSON: {error}") from error


class Transaction:
    """The block of a transaction; `result` is known once it is left."""

    def __init__(self, surface: Surface, id: str, version: int) -> None:
        self._surface = surface
        self._id = id
        self._version = version
        self._chunks = Chunks()
        self._is_known = False
        """The version is committed already: nothing more needs to be staged [TXN-3]."""
        self.result: CommitResult | None = None
        """What the commit did."""

    def append(
        self, name: str, data: object, *, tag: str | None = None, node: str | None = None, meta: object = None
    ) -> None:
        """A record that appears with the commit."""
        chunk = self._chunks.add(name, as_record(data, tag, node, meta))
        if chunk is not None:
            self._stage(chunk)

    def append_many(self, name: str, rows: Iterable[object]) -> None:
        """The same for several: values, or made with `topics.new`."""
        for row in rows:
            self.append(name, row)

    def _stage(self, chunk: Chunk) -> None:
        if self._is_known:
            return
        try:
            self._surface.stage(
                self._id, self._version, self._chunks.part, chunk.number, chunk.topic, chunk.records
            )  # fmt: skip
        except TxnCommitted:
            self._is_known = True

    def _abort(self) -> None:
        try:
            self._surface.abort_staged(self._id, self._version)
        except TopicsError as error:  # what made the block fail is what matters
            log.warning("what was staged is dropped later: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            if self._chunks.number and not issubclass(kind, Unreachable):
                self._abort()
            return
        for chunk in self._chunks.rest():
            self._stage(chunk)
        self.result = self._surface.commit_staged(self._id, self._version, self._chunks.parts())


class AsyncTransaction:
    """See `Transaction`; use it with `async with`."""

    def __init__(self, surface: AsyncSurface, id: str, version: int) -> None:
        self._surface = surface
        self._id = id
        self._version = version
        self._chunks = Chunks()
        self._is_known = False
        self.result: CommitResult | None = None
        """What the commit did."""

    async def append(
        self, name: str, data: object, *, tag: str | None = None, node: str | None = None, meta: object = None
    ) -> None:
        """See `Transaction.append`."""
        chunk = self._chunks.add(name, as_record(data, tag, node, meta))
        if chunk is not None:
            await self._stage(chunk)

    async def append_many(self, name: str, rows: Iterable[object]) -> None:
        """See `Transaction.append_many`."""
        for row in rows:
            await self.append(name, row)

    async def _stage(self, chunk: Chunk) -> None:
        if self._is_known:
            return
        try:
            await self._surface.stage(
                self._id, self._version, self._chunks.part, chunk.number, chunk.topic, chunk.records
            )  # fmt: skip
        except TxnCommitted:
            self._is_known = True

    async def _abort(self) -> None:
        try:
            await self._surface.abort_staged(self._id, self._version)
        except TopicsError as error:
            log.warning("what was staged is dropped later: %s", error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not None:
            if self._chunks.number and not issubclass(kind, Unreachable):
                await self._abort()
            return
        for chunk in self._chunks.rest():
            await self._stage(chunk)
        self.result = await self._surface.commit_staged(self._id, self._version, self._chunks.parts())
