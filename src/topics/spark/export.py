"""Rows into one file, without Spark: Parquet, Arrow, CSV, JSON lines (11 §2 `export`).

    parquet   zstd, times as TIMESTAMP_MICROS, `meta` a map
    arrow     the Arrow file format, zstd, the same columns
    csv       a line of names, then rows; `ts` as ISO 8601 in UTC, `data` and `meta` as JSON text
    jsonl     records as diff gives them [U-13] with their topic in front, a gap as {"topic":…,"tombstone":{…}}

The file appears under its name when it is complete, and not at all otherwise. Columns are put together by Arrow, so
JSON lines, too, are made without Python per row. One thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from topics import paths
from topics.clock import Clock
from topics.fs import Fs
from topics.spark.arrow import Layout
from topics.spark.held import held
from topics.spark.options import ReadOptions
from topics.spark.reader import read_partition

FORMATS: Final = ("parquet", "arrow", "csv", "jsonl")
ROW_GROUP_ROWS: Final = 1 << 18
ROW_GROUP_BYTES: Final = 64 << 20
MAPPED: Final = frozenset({"parquet", "arrow"})
"""Formats that have a type for `meta`."""


class Exported(NamedTuple):
    """What was written."""

    rows: int
    gaps: int
    bytes: int


class Sink(Protocol):
    """A file format."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


def export(
    fs: Fs, clock: Clock, options: ReadOptions, out: str, format: str, tell: Callable[[int], None] = lambda n: None
) -> Exported:
    """Write what the options select to `out`; `tell` hears of the bytes of every batch."""
    options = options._replace(meta_json=format not in MAPPED)
    layout = Layout(options.columns, options.binary, options.meta_json)
    temporary = paths.tmp(out)
    rows = gaps = 0
    try:
        with held(fs, options, clock.now_ms()) as parts, closing(_SINKS[format](temporary, layout)) as sink:
            for batch in (batch for part in parts for batch in read_partition(fs, part)):
                rows, gaps = rows + batch.num_rows, gaps + _gaps(batch)
                sink.write(batch)
                tell(batch.nbytes)
        _sync(temporary)
        os.replace(temporary, out)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return Exported(rows - gaps, gaps, os.path.getsize(out))


def _gaps(batch: pa.RecordBatch) -> int:
    count = pc.sum(pc.equal(batch.column("kind"), "gap")).as_py()
    return int(count or 0)


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class ParquetSink:
    """Row groups of about 64 MiB, gathered from batches."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._writer = pa.parquet.ParquetWriter(
            path, layout.schema(), compression="zstd", coerce_timestamps="us", version="2.6"
        )
        self._schema = layout.schema()
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        rows, size = sum(one.num_rows for one in self._held), sum(one.nbytes for one in self._held)
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._writer.write_table(pa.Table.from_batches(held, self._schema))


class ArrowSink:
    """The Arrow file format."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._writer = pa.ipc.new_file(path, layout.schema(), options=pa.ipc.IpcWriteOptions(compression="zstd"))

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class CsvSink:
    """Comma-separated values."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._schema = pa.schema(
            [pa.field(one.name, pa.string() if one.name == "ts" else one.type) for one in layout.schema()]
        )
        self._writer = pa.csv.CSVWriter(path, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [iso(batch.column(one.name)) if one.name == "ts" else batch.column(one.name) for one in self._schema]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def iso(ts: pa.Array) -> pa.Array:
    """Instants as text: 2026-01-02T03:04:05.678Z."""
    return pc.strftime(ts.cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")


class JsonSink:
    """One object per line."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(values_of(json_lines(batch)))

    def close(self) -> None:
        self._file.close()


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """The rows as lines of JSON: records as diff shows them, gaps as tombstones."""
    is_gap = pc.equal(batch.column("kind"), "gap")
    if not pc.any(is_gap).as_py():
        return _record_lines(batch)
    if pc.all(is_gap).as_py():
        return _gap_lines(batch)
    return pc.if_else(is_gap, _gap_lines(batch), _record_lines(batch))


def values_of(lines: pa.Array) -> bytes:
    """The bytes of all values of an array of text without nulls, one after the other."""
    _, offsets, data = lines.buffers()
    edges = memoryview(offsets).cast("i")[lines.offset : lines.offset + len(lines) + 1]
    return bytes(memoryview(data)[edges[0] : edges[-1]])


def _record_lines(batch: pa.RecordBatch) -> pa.Array:
    millis = batch.column("ts").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    parts = [
        '{"topic":', _quoted(batch.column("topic")), ',"$seq":', batch.column("seq").cast(pa.string()),
        ',"$ts":', millis.cast(pa.string()), _member(',"$node":', _quoted(batch.column("node"))),
        _member(',"$tag":', _quoted(batch.column("tag"))), _member(',"meta":', batch.column("meta")),
        _member(',"data":', batch.column("data")), "}\n",
    ]  # fmt: skip
    return _joined(parts)


def _gap_lines(batch: pa.RecordBatch) -> pa.Array:
    parts = [
        '{"topic":', _quoted(batch.column("topic")), ',"tombstone":{"gap_from":', batch.column("seq").cast(pa.string()),
        ',"gap_to":', batch.column("gap_to").cast(pa.string()), ',"reason":', _quoted(batch.column("reason")), "}}\n",
    ]  # fmt: skip
    return _joined(parts)


def _joined(parts: list[pa.Array | str]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="")


def _member(name: str, value: pa.Array) -> pa.Array:
    """A member where there is a value, nothing elsewhere."""
    return pc.binary_join_element_wise(pa.scalar(name), value, "", null_handling="emit_null")


def _quoted(column: pa.Array) -> pa.Array:
    """Text as JSON strings; each different one is encoded once."""
    coded = column.dictionary_encode()
    texts = pa.array([msgspec.json.encode(text).decode() for text in coded.dictionary.to_pylist()], pa.string())
    return texts.take(coded.indices)


_SINKS: Final[dict[str, Callable[[str, Layout], Sink]]] = {
    "parquet": ParquetSink, "arrow": ArrowSink, "csv": CsvSink, "jsonl": JsonSink,
}  # fmt: skip
