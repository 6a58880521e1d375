"""Stored records as Arrow record batches [K-3]: numpy over entries and frames, no Python per row, no Spark.

    column    Arrow type                       from
    topic     string                           the plan
    seq       int64                            place of the entry
    ts        timestamp[us, UTC]               the entry
    node      string                           the frame
    tag       string                           the frame
    data      string (`payload=binary`: binary) the envelope's data, the stored JSON text
    meta      map<string, string>              the envelope's meta [K-10]; `meta=json`: its text
    kind      string                           `record`, `gap` or `deleted`
    gap_to    int64                            last seq of a gap
    reason    string                           why a gap's seqs are missing

Text columns are cut out of the frames' buffer by the kernel, or by Arrow itself: an array whose offsets are the
beginnings and ends of its values, taken at every second place. Where an envelope's data ends is known without looking
at it, but for records with meta [S-347], which are parsed in one call per batch.

Spark checks the schema of the first batch only (10 §8), so all batches here are made by one function. Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topics.codec import envelope, kernel
from topics.codec import segment as codec
from topics.spark.options import COLUMNS
from topics.storage.view import Batch, Tags

REASONS: Final = {1: "source_trim", 2: "corrupt", 3: "crash"}
_TS: Final = pa.timestamp("us", "UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
_CUT: Final = ("node", "tag", "data")
_TS_MS_MAX: Final = (2**63 - 1) // 1000

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Seqs = npt.NDArray[np.uint64]


class Layout(NamedTuple):
    """What rows look like."""

    columns: tuple[str, ...] = COLUMNS
    binary: bool = False
    """`data` as bytes."""
    meta_json: bool = False
    """`meta` as text."""

    def schema(self) -> pa.Schema:
        return pa.schema([(name, self._type(name)) for name in self.columns])

    def _type(self, name: str) -> pa.DataType:
        if name in ("seq", "gap_to"):
            return pa.int64()
        if name == "ts":
            return _TS
        if name == "meta" and not self.meta_json:
            return _MAP
        return pa.binary() if name == "data" and self.binary else pa.string()

    def with_filters(self, tags: Tags | None, nodes: tuple[str, ...] | None) -> Layout:
        """The same and the columns that are filtered by."""
        used = [name for name, filter in (("tag", tags), ("node", nodes)) if filter is not None]
        return self._replace(columns=(*self.columns, *(name for name in used if name not in self.columns)))

    def batch(self, n: int, made: dict[str, pa.Array]) -> pa.RecordBatch:
        """A batch of `n` rows; columns that were not made are null."""
        schema = self.schema()
        arrays = [made[one.name] if one.name in made else _nulls(n, one.type) for one in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class GapRow(NamedTuple):
    """A row that tells of missing seqs."""

    first: int
    last: int
    reason: str


class BadRecord(ValueError):
    """A frame that is intact by the checks made, and whose content is no record."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(why)
        self.seq = seq


def records(topic: str, batch: Batch, layout: Layout) -> pa.RecordBatch:
    """The records of a batch as rows; `BadRecord` where one is none, which takes damage that was not looked for."""
    n, wanted = len(batch.seqs), frozenset(layout.columns)
    made = _constant(topic, "record", n, wanted)
    made["seq"] = _of_numbers(pa.int64(), batch.seqs.astype(np.int64))
    if "ts" in wanted:
        made["ts"] = timestamps(batch.entries["ts"])
    if n and wanted & {"node", "tag", "data", "meta"}:
        made |= _texts(batch, layout, wanted)
    return layout.batch(n, made)


def gaps(topic: str, rows: Sequence[GapRow], layout: Layout) -> pa.RecordBatch:
    """Rows of kind `gap`."""
    made = _constant(topic, "gap", len(rows), frozenset(layout.columns))
    made["seq"] = pa.array([row.first for row in rows], pa.int64())
    made["gap_to"] = pa.array([row.last for row in rows], pa.int64())
    made["reason"] = pa.array([row.reason for row in rows], pa.string())
    return layout.batch(len(rows), made)


def deleted(topic: str, seqs: Seqs, ts: Seqs | None, layout: Layout) -> pa.RecordBatch:
    """Rows of kind `deleted`: never a payload; `ts` None where it is not known any more."""
    made = _constant(topic, "deleted", len(seqs), frozenset(layout.columns))
    made["seq"] = pa.array(seqs.astype(np.int64))
    if ts is not None:
        made["ts"] = timestamps(ts)
    return layout.batch(len(seqs), made)


def metas(texts: Sequence[bytes | None]) -> pa.Array:
    """Meta objects as a map column: strings as they are, other values as their JSON text, null as null [K-10].

    `ValueError` where one is none.
    """
    present = [text for text in texts if text is not None]
    members = _members(present)
    counts = np.zeros(len(texts) + 1, np.int32)
    has = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
    counts[1:][has] = [len(one) for one in members]
    keys = pa.array([key for one in members for key in one], pa.string())
    values = pa.array([value for one in members for value in one.values()], pa.string())
    offsets = pa.array(np.cumsum(counts, dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, keys, values, _MAP, mask=pa.array(~has))


def filtered(rows: pa.RecordBatch, tags: Tags | None, nodes: tuple[str, ...] | None) -> pa.RecordBatch:
    """The rows with one of these tags and from one of these nodes."""
    if tags is not None:
        rows = _kept(rows, _tagged(rows.column("tag"), tags))
    if nodes is not None:
        rows = _kept(rows, pc.is_in(rows.column("node"), value_set=pa.array(nodes, pa.string())))
    return rows


def _kept(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Mostly all of them: the sidecar has picked them already."""
    return rows if mask.true_count == len(mask) else rows.filter(mask)


def _tagged(column: pa.Array, tags: Tags) -> pa.Array:
    kept = pc.is_in(column, value_set=pa.array(tags.equal, pa.string()))
    for prefix in tags.prefixes:
        kept = pc.or_(kept, pc.fill_null(pc.starts_with(column, prefix), False))
    return kept


def _constant(topic: str, kind: str, n: int, wanted: frozenset[str]) -> dict[str, pa.Array]:
    values = {"topic": topic, "kind": kind}
    return {name: _repeated(value, n) for name, value in values.items() if name in wanted}


@lru_cache(maxsize=8)
def _repeated(value: str, n: int) -> pa.Array:
    """The batches of full segments have as many rows as each other: they share what is the same in all of them."""
    return pa.repeat(pa.scalar(value, pa.string()), n)


@lru_cache(maxsize=8)
def _nulls(n: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n, kind)


def _of_numbers(kind: pa.DataType, numbers: Ints) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def timestamps(ts_ms: Seqs) -> pa.Array:
    micros = np.minimum(ts_ms, np.uint64(_TS_MS_MAX)).astype(np.int64) * 1000
    return _of_numbers(_TS, micros)


def _texts(batch: Batch, layout: Layout, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """The columns that are cut out of the frames."""
    return _compiled(batch, layout, wanted) or _cut_out(batch, layout, wanted)


def _compiled(batch: Batch, layout: Layout, wanted: frozenset[str]) -> dict[str, pa.Array] | None:
    """The same in one call, where no record has meta."""
    if kernel.native is None:
        return None
    node, tag, data = (name in wanted for name in _CUT)
    found = kernel.native.columns(
        batch.data, batch.offsets.tobytes(), batch.entries.tobytes(), node, tag, data, layout.binary
    )  # fmt: skip
    if found is None:
        return None
    n = len(batch.seqs)
    made = {"meta": _nulls(n, pa.string() if layout.meta_json else _MAP)} if "meta" in wanted else {}
    for name, column in zip(_CUT, found, strict=True):
        if name in wanted:
            kind = pa.binary() if name == "data" and layout.binary else pa.string()
            present, offsets, values = (pa.py_buffer(raw) for raw in column)
            made[name] = pa.Array.from_buffers(kind, n, [present if present.size else None, offsets, values])
    return made


def _cut_out(batch: Batch, layout: Layout, wanted: frozenset[str]) -> dict[str, pa.Array]:
    parts = codec.parts_at(batch.data, batch.offsets)
    flags = batch.entries["flags"]
    made = {}
    if "node" in wanted:
        made["node"] = _cut(batch, parts.node, parts.tag, flags & codec.HAS_NODE != 0, pa.string())
    if "tag" in wanted:
        made["tag"] = _cut(batch, parts.tag, parts.data, flags & codec.HAS_TAG != 0, pa.string())
    if wanted & {"data", "meta"}:
        starts, ends, has_meta = _payloads(batch, parts)
        if "data" in wanted:
            made["data"] = _cut(batch, starts, ends, None, pa.binary() if layout.binary else pa.string())
        if "meta" in wanted:
            made["meta"] = _meta(batch, np.where(has_meta, ends + 5, ends), parts.end - 1, has_meta, layout)
    return made


def _payloads(batch: Batch, parts: codec.Parts) -> tuple[Ints, Ints, Bools]:
    """Where each record's data begins and ends, and whether meta follows it."""
    starts, ends = parts.data + envelope.PLAIN_BYTES - 1, parts.end - 1
    around = codec.ovh(batch.entries).astype(np.int64) - codec.FRAME_BYTES_MIN - (parts.data - parts.node)
    odd = np.flatnonzero((around != envelope.PLAIN_BYTES) | (ends < starts))
    has_meta: Bools = np.zeros(len(starts), np.bool_)
    if len(odd):
        data = batch.data
        spans = zip(parts.data[odd].tolist(), parts.end[odd].tolist(), strict=True)
        lens = _data_lens([data[start:end] for start, end in spans], batch.seqs[odd])
        has_meta[odd] = starts[odd] + lens != ends[odd]
        ends = ends.copy()
        ends[odd] = starts[odd] + lens
    return starts, ends, has_meta


def _data_lens(envelopes: list[bytes], seqs: Seqs) -> Ints:
    try:
        return envelope.data_lens(envelopes)
    except ValueError:
        for one, seq in zip(envelopes, seqs.tolist(), strict=True):
            try:
                envelope.split(one)
            except ValueError as error:
                raise BadRecord(seq, f"its payload is {error}") from error
        raise


def _meta(batch: Batch, starts: Ints, ends: Ints, has_meta: Bools, layout: Layout) -> pa.Array:
    if layout.meta_json:
        return _cut(batch, starts, ends, has_meta, pa.string())
    if not has_meta.any():
        return pa.nulls(len(starts), _MAP)
    rows = zip(starts.tolist(), ends.tolist(), has_meta.tolist(), strict=True)
    texts = [batch.data[start:end] if has else None for start, end, has in rows]
    try:
        return metas(texts)
    except ValueError as error:
        raise BadRecord(_first_not_meta(texts, batch.seqs), "its meta is no JSON object") from error


def _first_not_meta(texts: Sequence[bytes | None], seqs: Seqs) -> int:
    for text, seq in zip(texts, seqs.tolist(), strict=True):
        try:
            metas([text])
        except ValueError:
            return int(seq)
    raise AssertionError("metas that are right one by one are right together")


def _cut(batch: Batch, starts: Ints, ends: Ints, valid: Bools | None, kind: pa.DataType) -> pa.Array:
    """The bytes from each start to each end as one array; null where not `valid`."""
    n = len(starts)
    edges = np.empty(2 * n, np.int32)
    edges[0::2], edges[1::2] = starts, ends
    around = pa.Array.from_buffers(
        pa.binary(), 2 * n - 1, [None, pa.py_buffer(edges), pa.py_buffer(batch.data)]
    )  # fmt: skip
    places = pa.array(np.arange(0, 2 * n, 2, dtype=np.int32), mask=None if valid is None else ~valid)
    taken = around.take(places)
    if kind == pa.binary():
        return taken
    try:
        return taken.cast(kind)  # checks that it is UTF-8: Java and Parquet would not
    except pa.ArrowInvalid as error:
        raise BadRecord(_first_not_text(taken, batch.seqs), "its text is not UTF-8") from error


def _first_not_text(taken: pa.Array, seqs: Seqs) -> int:
    for at, value in enumerate(taken.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return int(seqs[at])
    raise AssertionError("Arrow found text that is not UTF-8 and Python did not")


_MEMBERS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)


def _members(texts: list[bytes]) -> list[dict[str, str | None]]:
    try:
        found = _MEMBERS.decode(b"[%b]" % b",".join(texts))
        return [{key: _value(bytes(value)) for key, value in one.items()} for one in found]
    except ValueError:  # escapes of half a character are JSON, and no text
        return [_lenient(text) for text in texts]


def _value(raw: bytes) -> str | None:
    if raw.startswith(b'"'):
        return _TEXT.decode(raw)
    return None if raw == b"null" else raw.decode()


def _lenient(text: bytes) -> dict[str, str | None]:
    """The members of one object, halves of characters replaced; values that are no strings keep their spelling."""
    numbers: dict[str, Any] = {"parse_int": _Spelled, "parse_float": _Spelled}
    members = json.loads(text, **numbers)
    if not isinstance(members, dict):
        raise ValueError("no JSON object")
    return {_whole(key): _text_of(value) for key, value in members.items()}


class _Spelled(str):
    """A number as it was written."""

    __slots__ = ()


def _text_of(value: object) -> str | None:
    if isinstance(value, _Spelled):
        return str(value)
    if value is None or isinstance(value, str):
        return None if value is None else _whole(value)
    return _rendered(value)


def _rendered(value: object) -> str:
    """JSON of a nested value without spaces."""
    if isinstance(value, _Spelled):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_rendered(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_rendered, value)) + "]"
    return json.dumps(value)


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
