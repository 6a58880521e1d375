"""Columns of Arrow batches: types, meta, projections."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.unit.spark.kit import PATH, History, rows
from topics.spark import arrow
from topics.spark.arrow import GapRow, Layout
from topics.spark.options import COLUMNS, parse_read
from topics.spark.reader import plan_read

TYPES = {
    "topic": pa.string(), "seq": pa.int64(), "ts": pa.timestamp("us", "UTC"), "node": pa.string(), "tag": pa.string(),
    "data": pa.string(), "meta": pa.map_(pa.string(), pa.string()), "kind": pa.string(), "gap_to": pa.int64(),
    "reason": pa.string(),
}  # fmt: skip


def test_the_schema_is_that_of_the_contract() -> None:
    """K-10; 10 §8: no large, dictionary or view types, which Spark does not take."""
    assert dict(zip(Layout().schema().names, Layout().schema().types, strict=True)) == TYPES
    other = Layout(binary=True, meta_json=True).schema()
    assert (other.field("data").type, other.field("meta").type) == (pa.binary(), pa.string())
    assert arrow.gaps("t", [GapRow(1, 2, "cap")], Layout()).schema == Layout().schema()


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (b"{}", []),
        (b'{"k":"v"}', [("k", "v")]),
        (b'{"n":1.0,"e":1e3,"t":true,"z":null}', [("n", "1.0"), ("e", "1e3"), ("t", "true"), ("z", None)]),
        (b'{"o":{"a":[1,"x"]},"s":"\\u00e9\\n"}', [("o", '{"a":[1,"x"]}'), ("s", "é\n")]),
        (b'{"a":1,"a":2}', [("a", "2")]),
        (b'{"half":"\\ud800","n":12345678901234567890123,"o":{"x":[1.50]}}',
         [("half", "�"), ("n", "12345678901234567890123"), ("o", '{"x":[1.50]}')]),
    ],
)  # fmt: skip
def test_meta_values_that_are_no_strings_are_their_json_text(text: bytes, members: list[tuple[str, str]]) -> None:
    """K-10"""
    made = arrow.metas([None, text, None, b'{"k":"v"}'])
    made.validate(full=True)
    assert made.to_pylist() == [None, members, None, [("k", "v")]]
    assert made.type == TYPES["meta"]


def test_any_subset_of_the_columns_is_that_part_of_all_of_them() -> None:
    """10 §2 `columns`: in the schema's order; filters work without their column."""
    history = History(3)
    history.run(60)
    history.settle()

    def read(**options: str) -> list[dict[str, object]]:
        given = parse_read({"path": PATH, "topics": "alpha,gamma", "onDataLoss": "emit", **options})
        return rows(history.sim, plan_read(history.sim, given, history.clock.now_ms()))

    whole = read()
    assert len(whole) > 50
    for columns in ("seq,kind,gap_to,reason", "reason,data,seq,gap_to,kind", "meta,seq,kind,gap_to,reason,ts"):
        ordered = [name for name in COLUMNS if name in columns.split(",")]
        assert read(columns=columns) == [{name: row[name] for name in ordered} for row in whole]
    tagged = [row["seq"] for row in whole if row["tag"] == "a" or row["kind"] == "gap"]
    assert [row["seq"] for row in read(columns="seq,kind,gap_to,reason", tags="a")] == tagged
    assert [row["data"] for row in read(payload="binary")] == [
        None if row["data"] is None else str(row["data"]).encode() for row in whole
    ]
    history.engine.close()
