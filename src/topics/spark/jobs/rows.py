"""Rows of a lake table [K-43] and what proves them [K-48].

    column     type                  from
    topic      string                the instance; a folder of the path in Parquet and Delta tables
    topic_id   bigint                the instance
    epoch      bigint                the instance
    seq, ts    bigint, timestamp     the record; times in microseconds, UTC
    node, tag  string                the record
    data, meta string                the stored text, always kept
    …          as asked              members of `data` by name, and `_rescued`: what did not fit them, as JSON
    date       date                  of `ts`, UTC; a folder of the path in Parquet and Delta tables

    hash of a row     xxh3_64(le8 seq ‖ le8 ts_ms ‖ u8 bits: 1 tag, 2 node, 4 meta ‖ le4 len, tag ‖ le4 len, node
                      ‖ le4 len, data ‖ meta); what is absent has length 0
    hash of a range   the sum of its rows' hashes mod 2^64: the order of rows does not matter

Pure functions; any thread.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from topics.spark.failure import SourceError

U64: Final = (1 << 64) - 1
RESCUED: Final = "_rescued"
_TS: Final = pa.timestamp("us", "UTC")
STORED: Final = pa.schema(
    [("topic_id", pa.int64()), ("epoch", pa.int64()), ("seq", pa.int64()), ("ts", _TS), ("node", pa.string()),
     ("tag", pa.string()), ("data", pa.string()), ("meta", pa.string())]
)  # fmt: skip
HASHED: Final = ("seq", "ts", "node", "tag", "data", "meta")
_TYPES: Final = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip
_COLUMN: Final = re.compile(r"\s*([A-Za-z_]\w*)\s+([a-z]+)\s*")
_HEAD: Final = np.dtype([("seq", "<u8"), ("ts", "<u8"), ("bits", "u1"), ("tag_len", "<u4")])


class Proof(NamedTuple):
    """How many rows, and the sum of their hashes."""

    rows: int = 0
    hash: int = 0

    def plus(self, other: Proof) -> Proof:
        return Proof(self.rows + other.rows, (self.hash + other.hash) & U64)


class Typed(NamedTuple):
    """Columns that are made of members of `data`."""

    columns: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, ddl: str) -> Typed:
        """`"sku string, qty int"`; flat, and of the types that JSON has."""
        found = []
        for part in ddl.split(","):
            match = _COLUMN.fullmatch(part)
            if match is None or match[2] not in _TYPES:
                hint = f"write NAME TYPE, …; types are {', '.join(_TYPES)}"
                raise SourceError("invalid_option", f"--columns: {part.strip()!r} is no column", hint)
            found.append((match[1], match[2]))
        names = [name for name, _ in found]
        taken = {*STORED.names, "topic", "date", "v", RESCUED}
        if len(set(names)) != len(names) or taken & set(names):
            raise SourceError("invalid_option", "--columns: a name is taken, or occurs twice", "choose another name")
        return cls(tuple(found))

    def schema(self) -> list[pa.Field]:
        fields = [pa.field(name, _TYPES[kind]) for name, kind in self.columns]
        return [*fields, pa.field(RESCUED, pa.string())] if fields else []

    def of(self, data: pa.Array) -> list[pa.Array]:
        """The columns of these payloads: what has the type of its column is in it, everything else is rescued."""
        if not self.columns:
            return []
        rows = [_fitted(text, self.columns) for text in data.to_pylist()]
        columns = [pa.array([row[0].get(name) for row in rows], _TYPES[kind]) for name, kind in self.columns]
        return [*columns, pa.array([row[1] for row in rows], pa.string())]


def _fitted(text: str, columns: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], str | None]:
    """Values by column, and the JSON of what is left."""
    try:
        members = _MEMBERS.decode(text)
    except msgspec.DecodeError:  # not an object: all of it is left
        return {}, text
    values = {}
    for name, kind in columns:
        raw = members.get(name)
        if raw is not None:
            fits, value = _value(bytes(raw), kind)
            if fits:
                values[name] = value
                del members[name]
    return values, msgspec.json.encode(members).decode() if members else None


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DECODERS: Final[dict[str, Any]] = {
    "string": msgspec.json.Decoder(str | None), "boolean": msgspec.json.Decoder(bool | None),
    "int": msgspec.json.Decoder(int | None), "bigint": msgspec.json.Decoder(int | None),
    "double": msgspec.json.Decoder(float | None),
}  # fmt: skip
_BOUNDS: Final = {"int": 1 << 31, "bigint": 1 << 63}


def _value(raw: bytes, kind: str) -> tuple[bool, Any]:
    """Whether a JSON value is of this type, and what it is; null is of every type."""
    try:
        value = _DECODERS[kind].decode(raw)
    except msgspec.DecodeError:
        return False, None
    bound = _BOUNDS.get(kind)
    if bound is not None and value is not None and not -bound <= value < bound:
        return False, None
    return True, value


def schema_of(typed: Typed, *, whole: bool) -> pa.Schema:
    """Of a file; `whole` has the columns that are folders elsewhere."""
    fields = [*STORED, *typed.schema()]
    return pa.schema([pa.field("topic", pa.string()), *fields, pa.field("date", pa.date32())] if whole else fields)


def stored(batch: pa.RecordBatch, topic_id: int, epoch: int) -> pa.RecordBatch:
    """Records of the source, `meta` as text, as rows."""
    n = batch.num_rows
    ids = [pa.array(np.full(n, value, np.int64)) for value in (topic_id, epoch)]
    return pa.RecordBatch.from_arrays([*ids, *(batch.column(name) for name in STORED.names[2:])], schema=STORED)


def widened(rows: pa.RecordBatch, schema: pa.Schema, typed: Typed, topic: str, day: date) -> pa.RecordBatch:
    """The same with all columns of a file."""
    columns = [*rows.columns, *typed.of(rows.column("data"))]
    if "topic" in schema.names:
        n = rows.num_rows
        columns = [pa.repeat(pa.scalar(topic, pa.string()), n), *columns, pa.repeat(pa.scalar(day, pa.date32()), n)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def days(ts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Days since 1970 of instants."""
    micros: np.ndarray[Any, np.dtype[np.int64]] = ts.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return micros // 86_400_000_000


def prove(rows: pa.RecordBatch | pa.Table) -> Proof:
    """Count and hash of rows that have the columns of `HASHED`."""
    if isinstance(rows, pa.Table):
        proof = Proof()
        for batch in rows.to_batches():
            proof = proof.plus(prove(batch))
        return proof
    hashes = map(xxh3_64_intdigest, _messages(rows).to_pylist())
    return Proof(rows.num_rows, sum(hashes) & U64)


def hashes(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The hash of each row."""
    found = map(xxh3_64_intdigest, _messages(rows).to_pylist())
    return np.fromiter(found, np.uint64, rows.num_rows)


def _messages(rows: pa.RecordBatch) -> pa.Array:
    """What is hashed of each row, put together by Arrow."""
    tag, node, meta = rows.column("tag"), rows.column("node"), rows.column("meta")
    head = np.zeros(rows.num_rows, _HEAD)
    head["seq"] = rows.column("seq").to_numpy(zero_copy_only=False)
    head["ts"] = rows.column("ts").cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
    for bit, column in ((1, tag), (2, node), (4, meta)):
        head["bits"] |= np.where(column.is_valid().to_numpy(zero_copy_only=False), bit, 0).astype(np.uint8)
    head["tag_len"] = _lens(tag)
    parts = [
        _fixed(head), _bytes(tag), _fixed(_lens(node)), _bytes(node), _fixed(_lens(rows.column("data"))),
        _bytes(rows.column("data")), _bytes(meta),
    ]  # fmt: skip
    return pc.binary_join_element_wise(*parts, b"")


def _bytes(column: pa.Array) -> pa.Array:
    return pc.fill_null(column.cast(pa.binary()), b"")


def _lens(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint32]]:
    lens = pc.fill_null(pc.binary_length(column.cast(pa.binary())), 0)
    return lens.to_numpy(zero_copy_only=False).astype("<u4")  # type: ignore[no-any-return]


def _fixed(values: np.ndarray[Any, Any]) -> pa.Array:
    kind = pa.binary(values.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(pa.binary())
