"""Records as JSON, from wherever they lie: the same that `Record` objects say [REC-2, REC-3, REC-4, S-173]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.codec import project
from topics.codec.project import Projection
from topics.engine import read as reading
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.model import ReadResult, Record

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
RECORDS = st.fixed_dictionaries(
    {"data": st.sampled_from([b"null", b"1.50", b'{"a":{"b":1}}', b'"x,\\"m\\":{}"', b'{"d":{"m":{}},"m":{"k":1}}'])},
    optional={"tag": TEXTS, "node": TEXTS, "meta": st.sampled_from([{}, {"k": 1}, {"m": {"d": [1]}}])},
)
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=30), min_size=1, max_size=4)


def rendered(record: Record, wanted: Projection) -> bytes:
    """The slow and obvious way."""
    parts = [b'"$seq":%d' % record.seq, b'"$ts":%d' % record.ts]
    if record.node is not None:
        parts.append(b'"$node":' + _text(record.node))
    if wanted.tags and record.tag is not None:
        parts.append(b'"$tag":' + _text(record.tag))
    if wanted.metas and record.raw_meta is not None:
        parts.append(b'"meta":' + record.raw_meta)
    return b"{" + b",".join([*parts, b'"data":' + record.raw_data]) + b"}"


def _text(value: str) -> bytes:
    return project._quoted(value.encode())


def text(made: ReadResult) -> bytes:
    """Pieces of JSON, each of one record or of several, as an array."""
    pieces: list[Any] = list(made.records)
    return b"[%b]" % b",".join(pieces)


def check(engine: Engine, limit: int, wanted: Projection) -> None:
    """Every page of a topic, read both ways."""
    from_seq = 0
    while True:
        query = reading.Query.parse("t", from_seq, None, limit, 0, None, 0, engine.core.limits)
        with engine._owner:
            topic = engine.core.names["t"]
            cold = engine.core.cold.read()
            plain, made = reading.walk(topic, query, cold), reading.walk(topic, query, cold, wanted)
        assert text(made) == b"[%b]" % b",".join(rendered(one, wanted) for one in plain.records)
        assert len(json.loads(text(made))) == len(plain.records)
        assert (made.next_from_seq, made.tombstone, made.scanned) == (
            plain.next_from_seq,
            plain.tombstone,
            plain.scanned,
        )
        if plain.caught_up:
            return
        from_seq = plain.next_from_seq


@settings(max_examples=40)
@given(
    batches=BATCHES,
    tags=st.booleans(),
    metas=st.booleans(),
    limit=st.integers(1, 40),
    durability=st.sampled_from(["disk", "ephemeral"]),
)
def test_every_place_renders_what_records_say(
    batches: list[list[dict[str, Any]]], tags: bool, metas: bool, limit: int, durability: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Recent frames, frames of the log, a sealed segment and memory."""
    wanted = Projection(tags, metas)
    path = tmp_path_factory.mktemp("store")
    config = EngineConfig(segment_max_events=20, min_free_bytes=0)
    with Engine.open(str(path), config) as engine:
        engine.put_topic("t", {"durability": durability})
        for batch in batches:
            engine.append("t", batch)
        check(engine, limit, wanted)
        engine.core.recent.forget(engine.core.names["t"].id)
        check(engine, limit, wanted)
        engine.checkpoint(full=True)
        engine.delete("t", seqs=[2, 3])
        check(engine, limit, wanted)


def test_a_damaged_frame_is_a_tombstone_as_json_too(tmp_path: Path) -> None:
    """[S-176]"""
    config = EngineConfig(segment_max_events=20, min_free_bytes=0)
    with Engine.open(str(tmp_path), config) as engine:
        engine.append("t", [{"data": n} for n in range(20)])
        engine.checkpoint(full=True)
    (data,) = tmp_path.glob("topics/*/seg-*.data")
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    data.write_bytes(raw)
    with Engine.open(str(tmp_path), config) as engine:
        check(engine, 20, Projection())
        query = reading.Query.parse("t", 0, None, 20, 0, None, 0, engine.core.limits)
        with engine._owner:
            made = reading.walk(engine.core.names["t"], query, engine.core.cold.read(), Projection())
        assert len(json.loads(text(made))) < 20


def test_the_byte_budget_ends_a_page_in_the_same_place(tmp_path: Path) -> None:
    """[RD-5]"""
    with Engine.open(str(tmp_path), EngineConfig(segment_max_events=20, min_free_bytes=0)) as engine:
        engine.append("t", [{"data": "x" * n} for n in range(0, 400, 10)])
        engine.checkpoint(full=True)
        for budget in range(1, 8000, 7):
            query = reading.Query.parse("t", 0, None, 1000, budget, None, 0, engine.core.limits)
            with engine._owner:
                topic = engine.core.names["t"]
                cold = engine.core.cold.read()
                plain, made = reading.walk(topic, query, cold), reading.walk(topic, query, cold, Projection())
            assert len(json.loads(text(made))) == len(plain.records) >= 1
            assert made.next_from_seq == plain.next_from_seq
