"""Columns of Arrow batches: types, meta, projections."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.kit import PATH, History, rows
from topics.codec import envelope, kernel
from topics.codec import segment as codec
from topics.spark import arrow, reader
from topics.spark.arrow import BadRecord, GapRow, Layout
from topics.spark.options import COLUMNS, parse_read
from topics.spark.plan import Lost
from topics.spark.reader import plan_read
from topics.storage.view import BATCH_BYTES, Batch

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


TEXTS = st.none() | st.text(max_size=4)
RECORDS = st.lists(
    st.tuples(TEXTS, TEXTS, st.text(max_size=6), st.none() | st.dictionaries(st.text(max_size=2), st.text(max_size=2))),
    min_size=1,
    max_size=9,
)
MASK = 0x1234_5678_9ABC_DEF0


def stored(given: list[tuple[str | None, str | None, str, dict[str, str] | None]]) -> Batch:
    """Records as a scan finds them."""
    frames = []
    for seq, (node, tag, data, meta) in enumerate(given, 1):
        text = envelope.build(json.dumps(data).encode(), None if meta is None else json.dumps(meta).encode())
        from_node, tagged = (None if one is None else one.encode() for one in (node, tag))
        frames.append(codec.encode(seq, seq, from_node, tagged, text, MASK))
    raw = b"".join(frames)
    found = codec.scan_data(raw, MASK).rows
    entries, offsets = codec.entries_of(raw, found), found["offset"].astype(np.int64)
    return Batch(1, len(given), found["seq"].copy(), entries, offsets, raw, MASK)


def made_of(batch: Batch, layout: Layout, *, pure: bool) -> object:
    """The rows, or what is said of the record that is none."""
    with pytest.MonkeyPatch.context() as patch:
        if pure:
            patch.setattr(kernel, "native", None)
        try:
            made = arrow.records("t", batch, layout)
        except BadRecord as bad:
            return bad.seq, str(bad)
    made.validate(full=True)
    return made.to_pylist()


@given(RECORDS, st.data())
def test_columns_cut_in_one_call_are_those_that_arrow_cuts(given: Any, chance: st.DataObject) -> None:
    """K-3; damage that nobody looked for included [S-348]."""
    layout = Layout(binary=chance.draw(st.booleans()), meta_json=chance.draw(st.booleans()))
    batch = stored(given)
    whole = made_of(batch, layout, pure=True)
    assert made_of(batch, layout, pure=False) == whole
    assert isinstance(whole, list)
    assert [(row["node"], row["tag"]) for row in whole] == [(node, tag) for node, tag, _, _ in given]
    at, bit = chance.draw(st.integers(0, len(batch.data) - 1)), chance.draw(st.integers(0, 7))
    broken = batch._replace(data=batch.data[:at] + bytes([batch.data[at] ^ 1 << bit]) + batch.data[at + 1 :])
    agree = codec.heads_agree(broken.data, broken.offsets, broken.entries["len"].astype(np.int64), broken.seqs)
    kept = broken._replace(
        seqs=broken.seqs[agree], entries=broken.entries[agree], offsets=broken.offsets[agree]
    )  # fmt: skip
    assert made_of(kept, layout, pure=False) == made_of(kept, layout, pure=True)


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_small_batches_are_made_into_rows_together(given: Any) -> None:
    """The same rows as one by one, in one batch where nothing lies between them."""
    batches = [stored(one) for one in given]
    lost = Lost(5, 6, "cap")
    found = list(reader._joined([*batches, lost, *batches]))
    assert [isinstance(one, Batch) for one in found] == [True, False, True]
    alone = [row for one in batches for row in arrow.records("t", one, Layout()).to_pylist()]
    assert [arrow.records("t", one, Layout()).to_pylist() for one in (found[0], found[2])] == [alone, alone]


def test_a_full_batch_is_not_copied() -> None:
    """A scan fills batches up to the last frame that fits, whatever the size of frames."""
    one = stored([("n", "t", "x" * 100_000, None)] * (BATCH_BYTES // 110_000))
    assert len(one.data) < BATCH_BYTES
    assert all(found is one for found in reader._joined([one, one]))


def test_large_batches_are_left_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is held than a batch has anyway."""
    one = stored([("n", "t", "x" * 100, None)])

    def joined(times: int) -> list[int]:
        return [len(found.seqs) for found in reader._joined([one] * times) if isinstance(found, Batch)]

    monkeypatch.setattr(reader, "JOINED_BYTES", 2 * len(one.data))
    assert joined(5) == [2, 2, 1]
    monkeypatch.setattr(reader, "JOINED_RECORDS", 1)
    assert joined(3) == [1, 1, 1]
