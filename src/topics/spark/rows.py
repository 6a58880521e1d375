"""Rows of a DataFrame as records [K-30]: which columns there may be, and what becomes of their values.

    column            type                   becomes
    data              string                 the JSON text that it is; `dataFormat=text`: a JSON string
                      binary                 the JSON text that it is, as `payload=binary` reads it
                      variant                its JSON
                      any other              JSON: struct and map an object, array an array, decimal a number, date and
                                             time ISO 8601, binary in base64
    topic, tag, node  string                 null: none; `topic`: that of the option
    meta              map<string,string>     an object
                      string                 the JSON object that it is
    kind              string                 only rows of kind `record` can be written
    seq, ts, gap_to, reason                  of what was read: passed over

A null in `data` is JSON `null`. Whatever cannot be written stops the write with the row it is in. Any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from topics.codec import envelope
from topics.errors import TopicsError
from topics.model import check_writable, valid_topic_name
from topics.spark.failure import SourceError

TAKEN: Final = ("data", "topic", "tag", "node", "meta")
PASSED: Final = ("seq", "ts", "gap_to", "reason", "kind")
"""What a read gives beside, so that its rows can be written back."""
SHOWN: Final = 80
"""Characters of a value that an error shows."""
NULL: Final = b"null"
_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_MAP: Final = MapType(StringType(), StringType())
_AS_THEY_ARE: Final = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, StringType, BinaryType, DateType, DecimalType,
    DayTimeIntervalType, NullType, TimestampNTZType,
)  # fmt: skip

Convert = Callable[[Any], Any]
Texts = Callable[[Any], bytes]


class Row(NamedTuple):
    """A record to be written."""

    number: int
    """In its partition, from 1."""
    topic: str
    node: str | None
    tag: str | None
    stored: bytes
    """Its envelope."""


class Shape:
    """What the rows of a DataFrame look like; `SourceError` where they cannot be records."""

    def __init__(self, schema: StructType, topic: str | None, *, text: bool) -> None:
        self._places = _places(schema)
        if "data" not in self._places:
            raise _mismatch("there is no column `data`", "select what is to be written as `data`")
        if topic is None and "topic" not in self._places:
            raise _mismatch("there is neither a column `topic` nor an option", "set the option `topic`")
        kinds = {name: schema.fields[at].dataType for name, at in self._places.items()}
        for name in ("topic", "tag", "node", "kind"):
            if not isinstance(kinds.get(name, StringType()), (StringType, NullType)):
                raise _mismatch(f"`{name}` is {kinds[name].simpleString()}", "cast it to string")
        self._topic = topic
        self._topics: set[str] = set()
        self._data = _data(kinds["data"], text=text)
        self._meta = _meta(kinds.get("meta", NullType()))

    def rows(self, batch: pa.RecordBatch, before: int) -> Iterator[Row]:
        """The records of a batch, `before` rows of the partition lying before it."""
        n = batch.num_rows
        columns = {name: _values(name, batch.column(at), before) for name, at in self._places.items()}
        nothing = [None] * n
        topics, tags, nodes = (columns.get(name, nothing) for name in ("topic", "tag", "node"))
        metas, kinds = columns.get("meta", nothing), columns.get("kind", nothing)
        every = zip(columns["data"], metas, topics, tags, nodes, kinds, strict=True)
        for number, (data, meta, topic, tag, node, kind) in enumerate(every, before + 1):
            if kind is not None and kind != "record":
                raise _bad_row(number, f"its kind is `{kind}`", "write records only: where(\"kind = 'record'\")")
            text = NULL if data is None else _text(number, "data", self._data, data)
            meta_text = None if meta is None else _text(number, "meta", self._meta, meta)
            if meta_text == NULL:
                meta_text = None
            if meta_text is not None and not meta_text.startswith(b"{"):
                raise _bad_row(number, f"`meta` is no JSON object: {_shown(meta)}", "correct it, or leave it null")
            name = self._topic if topic is None else topic
            if name not in self._topics:
                self._check_topic(number, name)
            yield Row(number, name, node, tag, envelope.build(text, meta_text))  # type: ignore[arg-type]

    def _check_topic(self, number: int, name: str | None) -> None:
        if name is None:
            raise _bad_row(number, "it names no topic", "fill the column, or set the option `topic`")
        try:
            check_writable(name)
            known = name.startswith("$") or valid_topic_name(name)
        except TopicsError as error:
            raise _bad_row(number, f"`topic`: {name}: {error}", "choose another topic") from error
        if not known:
            raise _bad_row(number, f"`topic`: {_shown(name)} is not the name of a topic", "correct it")
        self._topics.add(name)


def _places(schema: StructType) -> dict[str, int]:
    """Where each column is that counts; names are not case-sensitive, as elsewhere in Spark."""
    found: dict[str, int] = {}
    for at, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in found:
            raise _mismatch(f"there are two columns `{name}`", "drop or rename one")
        if name not in TAKEN and name not in PASSED:
            todo = f"put it into `data`, or drop it; columns are {', '.join(TAKEN)}"
            raise _mismatch(f"there is no place for a column `{field.name}`", todo)
        found[name] = at
    return {name: at for name, at in found.items() if name in TAKEN or name == "kind"}


def _mismatch(what: str, todo: str) -> SourceError:
    return SourceError("schema_mismatch", what, todo)


def _bad_row(number: int, what: str, todo: str) -> SourceError:
    return SourceError("invalid_row", f"row {number} of the partition: {what}", todo)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _values(name: str, column: pa.Array, before: int) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (UnicodeDecodeError, OverflowError):
        for number, one in enumerate(column, before + 1):
            try:
                one.as_py()
            except UnicodeDecodeError as error:
                raise _bad_row(number, f"`{name}` is not UTF-8: {error}", "correct it") from error
            except OverflowError as error:  # Spark knows years that ISO 8601 has no four digits for
                raise _bad_row(number, f"`{name}`: {error}", "cast it to string, or drop the row") from error
        raise


def _text(number: int, name: str, texts: Texts, value: Any) -> bytes:
    try:
        return texts(value)
    except (ValueError, TypeError) as error:
        todo = f"correct it, or drop the row{'; dataFormat=text writes strings as they are' if name == 'data' else ''}"
        raise _bad_row(number, f"`{name}` is not JSON ({error}): {_shown(value)}", todo) from error


# -- values ----------------------------------------------------------------------------------------------------------


def _data(kind: DataType, *, text: bool) -> Texts:
    if isinstance(kind, StringType) and text:
        return _JSON.encode
    if isinstance(kind, StringType):
        return lambda value: envelope.canonical(value.encode())
    if isinstance(kind, BinaryType) and not text:
        return envelope.canonical
    if text:
        raise _mismatch(f"`data` is {kind.simpleString()}, not text", "cast it to string, or leave dataFormat out")
    convert = _convert("data", kind)
    if convert is None:
        return lambda value: envelope.canonical(_JSON.encode(value))
    return lambda value: envelope.canonical(_JSON.encode(convert(value)))


def _meta(kind: DataType) -> Texts:
    if isinstance(kind, StringType):
        return lambda value: envelope.canonical(value.encode())
    if isinstance(kind, NullType):
        return lambda value: NULL
    if isinstance(kind, MapType) and (kind.keyType, kind.valueType) == (_MAP.keyType, _MAP.valueType):
        return lambda pairs: _JSON.encode(dict(pairs))
    raise _mismatch(f"`meta` is {kind.simpleString()}", "make it a map<string,string>, or a JSON object as a string")


def _convert(where: str, kind: DataType) -> Convert | None:
    """What makes a value of Arrow's one that JSON can have; None: it is one."""
    if isinstance(kind, _AS_THEY_ARE):
        return None
    if isinstance(kind, DoubleType):
        return _finite
    if isinstance(kind, FloatType):
        return _short
    if isinstance(kind, TimestampType):
        return _instant
    if isinstance(kind, VariantType):
        return _variant
    if isinstance(kind, ArrayType):
        return _each(_convert(f"{where}[]", kind.elementType))
    if isinstance(kind, MapType):
        return _object(_convert(f"{where}.key", kind.keyType), _convert(f"{where}.value", kind.valueType))
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            raise _mismatch(f"`{where}` has two members of one name", "rename one")
        return _members({one.name: _convert(f"{where}.{one.name}", one.dataType) for one in kind.fields})
    raise _mismatch(f"`{where}` is {kind.simpleString()}, which JSON has no form for", "cast it to string")


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    item = _nullable(convert)
    return lambda values: [item(value) for value in values]


def _object(key: Convert | None, value: Convert | None) -> Convert:
    """Maps come as pairs; keys that are no strings become their text."""
    key, value = key or _same, _nullable(value or _same)
    return lambda pairs: {_name(key(one)): value(item) for one, item in pairs}


def _members(members: dict[str, Convert | None]) -> Convert | None:
    changing = [(name, _nullable(convert)) for name, convert in members.items() if convert is not None]
    if not changing:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name, member in changing:
            value[name] = member(value[name])
        return value

    return convert


def _same(value: Any) -> Any:
    return value


def _name(key: Any) -> str:
    return key if isinstance(key, str) else _JSON.encode(key).decode().strip('"')


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    return value


def _short(value: float) -> float:
    """A float of four bytes as it is written, not as its eight bytes are."""
    return float(str(np.float32(_finite(value))))


def _instant(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _variant(value: dict[str, bytes]) -> msgspec.Raw:
    return msgspec.Raw(VariantVal(value["value"], value["metadata"]).toJson().encode())
