"""The task of `archive`: a partition's records into Parquet files, one per topic and day, and proofs [K-43, K-48].

Batches go from segment files to Parquet in one process; nothing passes through the JVM. A file has its own name for
every attempt at a task, so what a task that failed has left is nobody's. Files are synced before they are told of.
Runs in processes of executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.fs import OsFs, random_id
from topics.spark.jobs.files import NewFile
from topics.spark.jobs.lake import Staged
from topics.spark.jobs.rows import Proof, Typed, days, prove, schema_of, stored, widened
from topics.spark.plan import Partition
from topics.spark.reader import read_partition

ROW_GROUP_ROWS: Final = 1 << 18
ROW_GROUP_BYTES: Final = 64 << 20
_EPOCH: Final = date(1970, 1, 1)


class Item(NamedTuple):
    """What one task writes."""

    number: int
    partition: Partition
    folder: str
    typed: Typed
    whole: bool
    root: str = ""
    """Of a table in a bucket, to which the folder is relative."""


def archived(item: Item) -> Iterator[dict[str, Any]]:
    """Files that were written, as `Staged`, and gaps that were met. A task."""
    for topic, first, last in spans(item.partition):
        yield from _Topic(item, topic, first, last).run()


def spans(partition: Partition) -> list[tuple[str, int, int]]:
    """The topics of a partition and the seqs of each; pieces of a topic follow each other."""
    found: dict[str, tuple[int, int]] = {}
    for piece in partition.pieces:
        low, high = found.get(piece.item.name, (piece.stretch.first, 0))
        found[piece.item.name] = (min(low, piece.stretch.first), max(high, piece.stretch.last))
    return [(name, low, high) for name, (low, high) in found.items()]


def of_topic(partition: Partition, topic: str) -> Partition:
    """The part of a partition that is of one topic."""
    return partition._replace(pieces=tuple(piece for piece in partition.pieces if piece.item.name == topic))


class _Topic:
    """A topic's records of one partition; their days go up with their seqs."""

    def __init__(self, item: Item, topic: str, first: int, last: int) -> None:
        self._item = item
        self._part = of_topic(item.partition, topic)
        self._instance = self._part.pieces[0].item
        self._at = first
        self._last = last
        self._file: _File | None = None

    def run(self) -> Iterator[dict[str, Any]]:
        for batch in read_partition(OsFs(), self._part):
            is_gap = pc.equal(batch.column("kind"), "gap")
            gaps = batch.filter(is_gap)
            for row in gaps.select(["seq", "gap_to", "reason"]).to_pylist():
                yield {"gap": {"topic": self._instance.name, "first": row["seq"], "last": row["gap_to"],
                               "reason": row["reason"]}}  # fmt: skip
            records = batch.filter(pc.invert(is_gap)) if gaps.num_rows else batch
            if records.num_rows:
                yield from self._records(stored(records, self._instance.id, self._instance.epoch))
        if self._file is not None:
            yield self._closed(self._last)

    def _records(self, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        numbers = days(rows.column("ts"))
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(edges):
            day, part = int(numbers[start]), rows.slice(start, end - start)
            if self._file is not None and self._file.day != day:
                yield self._closed(int(part.column("seq")[0].as_py()) - 1)
            if self._file is None:
                self._file = _File(self._item, self._instance.name, day)
            self._file.write(part)

    def _closed(self, last: int) -> dict[str, Any]:
        assert self._file is not None
        file, self._file = self._file, None
        one, first, self._at = self._instance, self._at, last + 1
        size = file.close()
        day = (_EPOCH + timedelta(days=file.day)).isoformat()
        return Staged(
            file.name, one.name, one.id, one.epoch, day, first, last, file.proof.rows, size,
            f"{file.proof.hash:016x}", file.min_seq, file.max_seq,
        )._asdict()  # fmt: skip


class _File:
    """A Parquet file in the making."""

    def __init__(self, item: Item, topic: str, day: int) -> None:
        self.name = f"part-{item.number:05d}-{random_id()[:16]}.parquet"
        self.day = day
        self.proof = Proof()
        self.min_seq = self.max_seq = 0
        self._typed, self._topic = item.typed, topic
        self._schema = schema_of(item.typed, whole=item.whole)
        self._file = NewFile(item.root, f"{item.folder}/{self.name}")
        self._writer = writer(self._file.path, self._schema)
        self._held: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self.proof = self.proof.plus(prove(rows))
        seqs = rows.column("seq")
        self.min_seq = self.min_seq or int(seqs[0].as_py())
        self.max_seq = int(seqs[-1].as_py())
        day = _EPOCH + timedelta(days=self.day)
        self._held.append(widened(rows, self._schema, self._typed, self._topic, day))
        size = sum(one.nbytes for one in self._held)
        if size >= ROW_GROUP_BYTES or sum(one.num_rows for one in self._held) >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        self._flush()
        self._writer.close()
        return self._file.done()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._writer.write_table(pa.Table.from_batches(held, self._schema))


def writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """As all files are written: zstd, times in microseconds, no dictionaries for payloads, which rarely repeat."""
    dictionaries = [name for name in ("topic", "topic_id", "epoch", "node", "tag", "date") if name in schema.names]
    return pq.ParquetWriter(
        path, schema, compression="zstd", coerce_timestamps="us", version="2.6", use_dictionary=dictionaries,
        store_schema=False,
    )  # fmt: skip


def new_file(root: str, path: str, rows: pa.Table) -> int:
    """A whole table as a file, durable; its size."""
    file = NewFile(root, path)
    with writer(file.path, rows.schema) as made:
        made.write_table(rows)
    return file.done()
