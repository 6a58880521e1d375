"""Rows of lake tables without Spark: their hashes, typed columns, and which of them a delete names (10 K-43…K-48)."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from topics.spark.failure import SourceError
from topics.spark.jobs import page
from topics.spark.jobs.erase import Erased, Erasures
from topics.spark.jobs.rows import HASHED, STORED, U64, Proof, Typed, hashes, prove

TEXTS = [None, "", "x", "ü" * 40, '{"a":1}']


def by_the_rule(seq: int, ts_ms: int, tag: str | None, node: str | None, data: str, meta: str | None) -> int:
    """K-48, written down as it reads."""
    bits = (tag is not None) | (node is not None) << 1 | (meta is not None) << 2
    message = struct.pack("<QQB", seq, ts_ms, bits)
    for text in (tag, node, data):
        raw = (text or "").encode()
        message += struct.pack("<I", len(raw)) + raw
    return xxh3_64_intdigest(message + (meta or "").encode())


def rows(n: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "seq": chance.randrange(1 << 40), "ts": datetime.fromtimestamp(chance.randrange(1 << 31) / 1000, UTC),
            "node": chance.choice(TEXTS), "tag": chance.choice(TEXTS), "data": chance.choice(TEXTS) or "null",
            "meta": chance.choice(TEXTS),
        }
        for _ in range(n)
    ]  # fmt: skip


def test_a_row_is_hashed_as_the_rule_says_and_order_does_not_matter() -> None:
    """K-48: vectorised and by hand; the sum of a range is that of its rows in any order, in any pieces."""
    made = rows(500, 7)
    schema = pa.schema([STORED.field(name) for name in HASHED])
    batch = pa.RecordBatch.from_pylist(made, schema=schema)
    expected = [
        by_the_rule(
            one["seq"], round(one["ts"].timestamp() * 1000), one["tag"], one["node"], one["data"], one["meta"]
        )
        for one in made
    ]  # fmt: skip
    assert hashes(batch).tolist() == expected
    assert prove(batch) == Proof(500, sum(expected) & U64)
    backwards = pa.RecordBatch.from_pylist(made[::-1], schema=schema)
    assert prove(backwards.slice(0, 123)).plus(prove(backwards.slice(123))) == prove(batch)
    assert prove(batch.slice(1)) != prove(batch)


@pytest.mark.parametrize(
    ("text", "values", "rescued"),
    [
        ('{"a":"x","n":1,"d":2,"b":true}', ("x", 1, 2.0, True), None),
        ('{"a":null,"n":null}', (None, None, None, None), None),
        ('{"a":1,"n":1.5,"d":"2","b":0}', (None, None, None, None), '{"a":1,"n":1.5,"d":"2","b":0}'),
        ('{"n":2147483648,"more":{"k":[1, 2]}}', (None, None, None, None), '{"n":2147483648,"more":{"k":[1, 2]}}'),
        ("[1]", (None, None, None, None), "[1]"),
        ('"text"', (None, None, None, None), '"text"'),
    ],
)
def test_what_does_not_fit_a_column_is_rescued_as_it_is_spelled(text: str, values: Any, rescued: str | None) -> None:
    """K-43: nothing is turned into something else to make it fit."""
    typed = Typed.parse("a string, n int, d double, b boolean")
    *columns, left = typed.of(pa.array([text]))
    assert tuple(column[0].as_py() for column in columns) == values
    assert left[0].as_py() == rescued


@pytest.mark.parametrize("ddl", ["", "a", "a text", "a int, a int", "seq bigint", "_rescued string", "a int b"])
def test_columns_that_cannot_be_meant_are_refused(ddl: str) -> None:
    with pytest.raises(SourceError, match="--columns"):
        Typed.parse(ddl)


def erased(*told: dict[str, Any]) -> list[int]:
    """Which of the seqs 1 to 10 go; odd ones have the tag `t:<seq>`."""
    one = Erased()
    for record in told:
        one.add(record)
    tags = pa.array([f"t:{n}" if n % 2 else None for n in range(1, 11)])
    return (np.flatnonzero(one.mask(np.arange(1, 11, dtype=np.int64), tags)) + 1).tolist()  # type: ignore[no-any-return]


def test_a_delete_takes_what_it_says_and_nothing_written_behind_it() -> None:
    """K-47: `seq < min(before_seq, bound)`, and the tag, the prefix or the list."""
    assert erased({"before_seq": 4, "bound": 9}) == [1, 2, 3]
    assert erased({"before_seq": 9, "bound": 4}) == [1, 2, 3]
    assert erased({"match": ["tag", "Eq", "t:5"], "bound": 11}) == [5]
    assert erased({"match": ["tag", "Eq", "t:5"], "bound": 5}) == []
    assert erased({"match": ["tag", "Glob", "t:*"], "before_seq": 6, "bound": 11}) == [1, 3, 5]
    assert erased({"seqs": [2, 9], "bound": 9}) == [2]
    assert erased({"drop": True}) == list(range(1, 11))
    assert erased({"seqs": [2]}, {"match": ["tag", "Eq", "t:9"], "bound": 11}, {"before_seq": 2}) == [1, 2, 9]


def test_deletes_are_kept_apart_by_instance() -> None:
    """K-47: a topic made anew is another one."""
    all_of_them = Erasures()
    all_of_them.add({"id": 1, "epoch": 1, "seqs": [1]})
    all_of_them.add({"id": 1, "epoch": 5, "seqs": [2]})
    assert {key: one.seqs for key, one in all_of_them.of.items()} == {"1-1": {1}, "1-5": {2}}
    assert set(all_of_them.only({"1-5", "7-7"}).of) == {"1-5"}
    assert not all_of_them.only(set())


def test_a_page_shows_hostile_text_as_text() -> None:
    """U-31: in every place that takes text."""
    evil = '<img src=x onerror="alert(1)">'
    made = page.page(
        evil, page.heading(evil), page.paragraph(evil, evil), page.table([evil], [[evil]]),
        page.rows(evil, [(evil, 1.0)]), page.columns(evil, [1.0], evil, evil),
    )  # fmt: skip
    assert "<img" not in made
    assert made.count("&lt;img") >= 10
