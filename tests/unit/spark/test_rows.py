"""Rows of a DataFrame as records [K-30]."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from topics.spark.failure import SourceError
from topics.spark.rows import Row, Shape

TEXT = StringType()
ZONE = timezone(timedelta(hours=2))


def shaped(columns: dict[str, tuple[DataType, list[Any]]], topic: str | None = "t", *, text: bool = False) -> list[Row]:
    """The rows of a frame with these columns, as its second batch has them."""
    schema = StructType()
    for name, (kind, _) in columns.items():
        schema.add(name, kind)
    arrays = {name: values for name, (_, values) in columns.items()}
    batch = pa.RecordBatch.from_pydict(arrays, schema=to_arrow_schema(schema, timezone="Europe/Berlin"))
    return list(Shape(schema, topic, text=text).rows(batch, 100))


def stored(kind: DataType, *values: Any, text: bool = False) -> list[bytes]:
    rows = shaped({"data": (kind, list(values))}, text=text)
    assert all(row.stored.startswith(b'{"d":') and row.stored.endswith(b"}") for row in rows)
    return [row.stored[5:-1] for row in rows]


def refusal(columns: dict[str, tuple[DataType, list[Any]]], topic: str | None = "t", *, text: bool = False) -> str:
    with pytest.raises(SourceError) as caught:
        shaped(columns, topic, text=text)
    return str(caught.value)


def test_json_text_is_stored_as_it_was_spelled() -> None:
    """K-30: whitespace apart, so that what was read is written back byte for byte; null is JSON `null`."""
    texts = ['{"a": 1.0,\n"a":1e3}', '"\\u00e9 é"', "12345678901234567890123", "null", None]
    expected = [b'{"a":1.0,"a":1e3}', '"\\u00e9 é"'.encode(), b"12345678901234567890123", b"null", b"null"]
    assert stored(TEXT, *texts) == expected
    assert stored(BinaryType(), *(None if one is None else one.encode() for one in texts)) == expected


def test_text_becomes_a_json_string_if_asked_for() -> None:
    """K-30: `dataFormat=text`."""
    assert stored(TEXT, 'a "b"', "{}", None, text=True) == [b'"a \\"b\\""', b'"{}"', b"null"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (LongType(), 2**62, b"4611686018427387904"),
        (DoubleType(), 0.1, b"0.1"),
        (FloatType(), 0.1, b"0.1"),
        (DecimalType(20, 3), Decimal("12345678901234567.890"), b"12345678901234567.890"),
        (DateType(), date(2024, 2, 29), b'"2024-02-29"'),
        (TimestampType(), datetime(2024, 2, 29, 1, 0, 0, 5, tzinfo=ZONE), b'"2024-02-28T23:00:00.000005Z"'),
        (TimestampNTZType(), datetime(2024, 2, 29, 1), b'"2024-02-29T01:00:00"'),  # noqa: DTZ001  it has no zone
        (ArrayType(DoubleType()), [1.5, None], b"[1.5,null]"),
        (MapType(LongType(), BinaryType()), {7: b"x", 8: None}, b'{"7":"eA==","8":null}'),
        (MapType(DateType(), TEXT), {date(2024, 2, 29): "x"}, b'{"2024-02-29":"x"}'),
        (
            StructType().add("when", TimestampType()).add("of", StructType().add("f", FloatType()).add("s", TEXT)),
            {"when": datetime(2024, 2, 29, tzinfo=UTC), "of": {"f": 2.5, "s": None}},
            b'{"when":"2024-02-29T00:00:00Z","of":{"f":2.5,"s":null}}',
        ),
        (StructType().add("a", LongType()).add("b", ArrayType(TEXT)), {"a": 1, "b": ["x"]}, b'{"a":1,"b":["x"]}'),
        (NullType(), None, b"null"),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, DataType) else "",
)
def test_other_types_are_turned_into_json(kind: DataType, value: Any, expected: bytes) -> None:
    """K-30"""
    assert stored(kind, value, None) == [expected, b"null"]


def test_meta_is_a_map_or_the_text_of_an_object() -> None:
    """K-30: with `meta=json` what was read is written back without loss."""
    maps = shaped({"data": (TEXT, ["1", "2"]), "meta": (MapType(TEXT, TEXT), [{"k": "v", "n": None}, None])})
    assert [row.stored for row in maps] == [b'{"d":1,"m":{"k":"v","n":null}}', b'{"d":2}']
    texts = shaped({"data": (TEXT, ["1", "2", "3"]), "meta": (TEXT, ['{"n": 1.0}', "null", None])})
    assert [row.stored for row in texts] == [b'{"d":1,"m":{"n":1.0}}', b'{"d":2}', b'{"d":3}']


def test_columns_of_a_read_are_taken_or_passed_over() -> None:
    """K-30: a row without a topic goes to that of the option; names are not case-sensitive."""
    rows = shaped(
        {
            "TOPIC": (TEXT, ["a", None]), "seq": (LongType(), [1, 2]), "Tag": (TEXT, ["x", None]),
            "node": (TEXT, [None, "n"]), "data": (TEXT, ["1", "2"]), "kind": (TEXT, ["record", None]),
            "ts": (TimestampType(), [None, None]), "gap_to": (LongType(), [None, None]), "reason": (TEXT, [None, None]),
        }
    )  # fmt: skip
    assert rows == [Row(101, "a", None, "x", b'{"d":1}'), Row(102, "t", "n", None, b'{"d":2}')]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"value": (TEXT, [])}, "topics: schema_mismatch: there is no place for a column `value` — put it into `data`"),
        ({"tag": (TEXT, [])}, "topics: schema_mismatch: there is no column `data` — "),
        ({"data": (TEXT, []), "Data": (TEXT, [])}, "topics: schema_mismatch: there are two columns `data` — "),
        ({"data": (TEXT, []), "tag": (LongType(), [])}, "topics: schema_mismatch: `tag` is bigint — cast it to string"),
        (
            {"data": (TEXT, []), "meta": (MapType(TEXT, LongType()), [])},
            "topics: schema_mismatch: `meta` is map<string,bigint> — make it a map<string,string>",
        ),
        (
            {"data": (ArrayType(StructType().add("i", CalendarIntervalType())), [])},
            "topics: schema_mismatch: `data[].i` is interval, which JSON has no form for — cast it to string",
        ),
    ],
)
def test_frames_that_cannot_be_records_are_refused(columns: dict[str, Any], line: str) -> None:
    """K-15, K-30: by their schema, before anything is written."""
    schema = StructType()
    for name, (kind, _) in columns.items():
        schema.add(name, kind)
    with pytest.raises(SourceError) as caught:
        Shape(schema, "t", text=False)
    assert str(caught.value).startswith(line)


def test_a_topic_has_to_come_from_somewhere() -> None:
    """K-30"""
    assert refusal({"data": (TEXT, [])}, None).startswith(
        "topics: schema_mismatch: there is neither a column `topic` nor an option — set the option `topic`"
    )
    both = {"data": (TEXT, ["1", "2"]), "topic": (TEXT, ["a", None])}
    assert refusal(both, None).startswith("topics: invalid_row: row 102 of the partition: it names no topic — ")


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"data": (TEXT, ["1", "{no"])}, "row 102 of the partition: `data` is not JSON ("),
        ({"data": (TEXT, ["1", '1},{"data":2'])}, "row 102 of the partition: `data` is not JSON ("),
        ({"data": (TEXT, ["1", ""])}, "row 102 of the partition: `data` is not JSON ("),
        ({"data": (BinaryType(), [b"1", b'"\xff"'])}, "row 102 of the partition: `data` is not JSON ("),
        (
            {"data": (DoubleType(), [1.0, float("nan")])},
            "row 102 of the partition: `data` is not JSON (JSON",
        ),
        (
            {"data": (TEXT, ["1"]), "meta": (TEXT, ["[1]"])},
            "row 101 of the partition: `meta` is no JSON object: '[1]",
        ),
        ({"data": (TEXT, ["1"]), "meta": (TEXT, ["{"])}, "row 101 of the partition: `meta` is not JSON ("),
        (
            {"data": (TEXT, ["1"]), "kind": (TEXT, ["gap"])},
            "row 101 of the partition: its kind is `gap` — write",
        ),
        ({"data": (TEXT, ["1"]), "topic": (TEXT, ["a/b"])}, "row 101 of the partition: `topic`: 'a/b' is not the name"),
        ({"data": (TEXT, ["1"]), "topic": (TEXT, ["$loss"])}, "row 101 of the partition: `topic`: $loss: "),
        ({"data": (TEXT, ["1"]), "topic": (TEXT, ["$own"])}, "row 101 of the partition: `topic`: $own: "),
    ],
)
def test_what_cannot_be_written_stops_with_its_row(columns: dict[str, Any], line: str) -> None:
    """K-30: nothing is guessed, and no text gets out of its place."""
    assert refusal(columns).startswith(f"topics: invalid_row: {line}")


def test_text_that_is_no_text_is_told() -> None:
    """K-30: a string of Spark's may hold any bytes."""
    schema = StructType().add("data", TEXT)
    bad = pa.array([b"1", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(SourceError, match="row 2 of the partition: `data` is not UTF-8"):
        list(Shape(schema, "t", text=False).rows(pa.RecordBatch.from_arrays([bad], ["data"]), 0))


def test_a_long_value_is_shown_by_its_beginning() -> None:
    """K-15: one line."""
    assert len(refusal({"data": (TEXT, ["x" * 5000])})) < 400
    assert "\n" not in refusal({"data": (TEXT, ["a\nb"])})


def test_instants_that_iso_8601_has_no_digits_for_are_told_with_their_row() -> None:
    """K-30, K-15: Spark's years go beyond 9999, and before 1."""
    schema = StructType().add("data", TimestampType())
    column = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    with pytest.raises(SourceError, match=r"^topics: invalid_row: row 2 of the partition: `data`: .* — cast it to str"):
        list(Shape(schema, "t", text=False).rows(pa.RecordBatch.from_arrays([column], ["data"]), 0))


def test_members_of_one_name_are_a_mismatch() -> None:
    """K-30: JSON would keep one of them."""
    twice = StructType().add("a", LongType()).add("a", TEXT)
    with pytest.raises(SourceError, match=r"^topics: schema_mismatch: `data\[\]` has two members of one name — rename"):
        Shape(StructType().add("data", ArrayType(twice)), "t", text=False)
