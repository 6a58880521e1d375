"""Preparing a write: envelopes, limits, and one answer whichever way a batch is taken."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics import errors
from topics.codec import envelope
from topics.codec.frame import encode_appends
from topics.engine import records as rules
from topics.engine.records import prepare
from topics.model import Limits, NewRecord, new

LIMITS = Limits()
PLAIN = {"data": 1}
LENGTHS = pytest.mark.parametrize("around", [0, 5], ids=["alone", "in a batch"])


def refused(around: int, record: Any, limits: Limits = LIMITS, **more: Any) -> errors.TopicsError:
    """The error for a record, alone or among good ones."""
    with pytest.raises(errors.CallerError) as caught:
        prepare([PLAIN] * around + [record] + [PLAIN] * around, limits, **more)
    return caught.value


def accepted(around: int, record: Any, limits: Limits = LIMITS, **more: Any) -> tuple[Any, ...]:
    """Node, tag, envelope and accounted size of a record, alone or among good ones."""
    done = prepare([PLAIN] * around + [record] + [PLAIN] * around, limits, **more)
    assert len(done.nodes) == len(done.tags) == len(done.envelopes) == len(done.accounted) == 2 * around + 1
    assert done.total == sum(done.accounted)
    return (*done.rows()[around], done.accounted[around])


@LENGTHS
@pytest.mark.parametrize(
    ("record", "stored", "size"),
    [
        ({"data": None}, b'{"d":null}', 4),
        ({"data": b"null"}, b'{"d":null}', 4),
        ({"data": {"kg": 412.5}}, b'{"d":{"kg":412.5}}', 12),
        ({"data": b' { "kg" : 1.0 }\n'}, b'{"d":{"kg":1.0}}', 10),
        ({"data": bytearray(b"[1, 2]")}, b'{"d":[1,2]}', 5),
        ({"data": memoryview(b"[1, 2]")}, b'{"d":[1,2]}', 5),
        ({"data": msgspec.Raw(b"[1, 2]")}, b'{"d":[1,2]}', 5),
        ({"data": [None, 1]}, b'{"d":[null,1]}', 8),
        ({"data": (None, 1)}, b'{"d":[null,1]}', 8),
        ({"data": "é"}, '{"d":"é"}'.encode(), 4),
        ({"data": b'"\\u00e9"'}, b'{"d":"\\u00e9"}', 8),
        ({"data": b'{"a":1,"a":1e3}'}, b'{"d":{"a":1,"a":1e3}}', 15),
        ({"data": b"1" * 25}, b'{"d":%b}' % (b"1" * 25), 25),
        ({"data": 1, "meta": {}}, b'{"d":1,"m":{}}', 3),
        ({"data": 1, "meta": b'{ "a": [1] }'}, b'{"d":1,"m":{"a":[1]}}', 10),
        ({"data": 1, "meta": None}, b'{"d":1}', 1),
        ({"data": 1, "meta": b" null"}, b'{"d":1}', 1),
        ({"data": 1, "other": object()}, b'{"d":1}', 1),
        (new(1), b'{"d":1}', 1),
        (new(b"[ ]", meta={"a": None}), b'{"d":[],"m":{"a":null}}', 12),
        (MappingProxyType({"data": 1}), b'{"d":1}', 1),
    ],
)
def test_envelopes(around: int, record: Any, stored: bytes, size: int) -> None:
    """[S-40, REC-6, REC-7, REC-8, REC-12]"""
    node, tag, written, accounted = accepted(around, record)
    assert (node, tag, written, accounted) == (None, None, stored, size)
    assert envelope.accounted_bytes(written) == size


class WireRecord(NewRecord, frozen=True):
    data: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw()


@LENGTHS
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b'{"data":[1, 2]}', b'{"d":[1,2]}'),
        (b'{"data":1,"meta":null,"tag":null}', b'{"d":1}'),
        (b'{"data":1,"meta":{"a": 1}}', b'{"d":1,"m":{"a":1}}'),
    ],
)
def test_a_struct_of_the_wire_is_a_record(around: int, text: bytes, stored: bytes) -> None:
    record = msgspec.json.decode(text, type=WireRecord)
    assert accepted(around, record)[2] == stored


@LENGTHS
def test_a_record_s_node_wins_and_null_falls_back_to_the_batch(around: int) -> None:
    """[REC-9, REC-3]: an empty string is a value."""
    assert accepted(around, {"data": 1, "node": "own"}, batch_node="all")[0] == "own"
    assert accepted(around, {"data": 1, "node": ""}, batch_node="all")[0] == ""
    assert accepted(around, {"data": 1, "node": None}, batch_node="all")[0] == "all"
    assert accepted(around, {"data": 1}, batch_node="all")[0] == "all"
    assert accepted(around, {"data": 1})[0] is None
    assert accepted(around, {"data": 1, "tag": ""})[1] == ""


@LENGTHS
@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"tag": "x"},
        None,
        5,
        "text",
        b"{}",
        [1],
        {"data": b""},
        {"data": b"1 2"},
        {"data": b"1,2"},
        {"data": b"1],[2"},
        {"data": b"[1"},
        {"data": b"NaN"},
        {"data": b"01"},
        {"data": b'"\xff"'},
        {"data": b'"\\ud800"'},
        {"data": b"[" * 257 + b"]" * 257},
        {"data": float("nan")},
        {"data": [1, {"a": float("inf")}]},
        {"data": [None, -float("inf")]},
        {"data": object()},
        {"data": "\ud800"},
        {"data": 1, "meta": []},
        {"data": 1, "meta": "x"},
        {"data": 1, "meta": 0},
        {"data": 1, "meta": False},
        {"data": 1, "meta": b"[]"},
        {"data": 1, "meta": b"{"},
        {"data": 1, "meta": {"a": float("nan")}},
        {"data": 1, "tag": 1},
        {"data": 1, "tag": b"x"},
        {"data": 1, "tag": "\ud800"},
        {"data": 1, "node": True},
        {"data": 1, "node": "a\udfff"},
    ],
)
def test_malformed_records_reject_the_whole_write(around: int, bad: Any) -> None:
    """[REC-7, REC-8, REC-15, API-11]"""
    error = refused(around, bad)
    assert error.code == "invalid_request"
    assert f"records[{around}]" in str(error)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@LENGTHS
def test_nesting_stops_at_256_levels(around: int) -> None:
    """[API-11]"""
    assert accepted(around, {"data": nested(256)})[3] == 512
    assert accepted(around, {"data": b"[" * 256 + b"]" * 256})[3] == 512
    assert accepted(around, {"data": "[" * 1000})[3] == 1002
    assert refused(around, {"data": nested(257)}).code == "invalid_request"
    assert refused(around, {"data": nested(5000)}).code == "invalid_request"


SMALL = Limits(max_record_bytes=20, max_meta_bytes=12, max_meta_members=2, max_tag_bytes=4, max_node_bytes=3)
BOUNDARIES = [
    ({"data": b'"' + b"x" * 18 + b'"'}, {"data": b'"' + b"x" * 19 + b'"'}, "record_too_large"),
    ({"data": "x" * 7, "meta": {"a": "bcd"}}, {"data": "x" * 8, "meta": {"a": "bcd"}}, "record_too_large"),
    ({"data": b" " * 99 + b"1"}, {"data": "é" * 10}, "record_too_large"),
    ({"data": 1, "meta": {"a": "bcde"}}, {"data": 1, "meta": {"a": "bcdef"}}, "invalid_request"),
    ({"data": 1, "tag": "tags"}, {"data": 1, "tag": "tagss"}, "invalid_request"),
    ({"data": 1, "tag": "éé"}, {"data": 1, "tag": "ééa"}, "invalid_request"),
    ({"data": 1, "node": "abc"}, {"data": 1, "node": "abcd"}, "invalid_request"),
    ({"data": 1, "node": "éa"}, {"data": 1, "node": "éé"}, "invalid_request"),
]


@LENGTHS
@pytest.mark.parametrize(("fits", "exceeds", "code"), BOUNDARIES, ids=lambda value: repr(value)[:40])
def test_a_limit_is_exceeded_only_above_it(around: int, fits: Any, exceeds: Any, code: str) -> None:
    """[REC-13, REC-14], 01 §1.1"""
    accepted(around, fits, SMALL)
    error = refused(around, exceeds, SMALL)
    assert error.code == code
    assert f"records[{around}]" in str(error)


@LENGTHS
@pytest.mark.parametrize(
    ("meta", "fits"),
    [
        ({str(n): n for n in range(64)}, True),
        ({str(n): n for n in range(65)}, False),
        ({"a": {str(n): n for n in range(100)}}, True),
        ({"a": ":" * 200}, True),
        ({str(n): [{"x": 10**30}] for n in range(64)}, True),
        ({str(n): ":{,}" for n in range(65)}, False),
        (b"{" + b",".join([b'"a":1'] * 64) + b"}", True),
        (b"{" + b",".join([b'"a":1'] * 65) + b"}", False),
        (b'{"a":%b,"b":":"}' % (b"1" * 5000), True),
        (b'{"a":[%b]}' % b",".join([b'{"b":1e9}'] * 80), True),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_meta_has_at_most_64_members_at_its_top(around: int, meta: Any, fits: bool) -> None:
    """01 §1.1; repeated members count as often as they are written."""
    record = {"data": 1, "meta": meta}
    if fits:
        accepted(around, record)
    else:
        assert "64 members" in str(refused(around, record))


def test_the_error_of_a_large_record_tells_size_and_limit() -> None:
    error = refused(0, {"data": "x" * 2**20})
    assert isinstance(error, errors.RecordTooLarge)
    assert (error.size, error.max) == (2**20 + 2, 2**20)
    assert "records[0]" in str(error)
    assert "segment" not in str(error)


def test_a_batch_has_1_to_10000_records() -> None:
    """01 §1.1, [WR-1]"""
    assert len(prepare([PLAIN] * 10_000, LIMITS).envelopes) == 10_000
    with pytest.raises(errors.BatchTooLarge) as caught:
        prepare([PLAIN] * 10_001, LIMITS)
    assert (caught.value.count, caught.value.max) == (10_001, 10_000)
    with pytest.raises(errors.CallerError, match="at least one"):
        prepare([], LIMITS)


@pytest.mark.parametrize("bad", [{"data": 1}, new(1), "records", b"[]", None, 5])
def test_records_are_a_list(bad: Any) -> None:
    with pytest.raises(errors.CallerError, match="list"):
        prepare(bad, LIMITS)


def test_any_iterable_of_records_will_do() -> None:
    assert prepare((new(n) for n in range(3)), LIMITS).envelopes == [b'{"d":0}', b'{"d":1}', b'{"d":2}']


def test_checks_come_in_order() -> None:
    """[WR-1]: too many, then the key, then per-record limits in array order."""
    limits = Limits(max_batch_records=2, max_record_bytes=4)
    large, odd = {"data": "12345"}, {"data": 1, "tag": 5}
    with pytest.raises(errors.BatchTooLarge):
        prepare([large] * 3, limits, idempotency_key="")
    with pytest.raises(errors.CallerError, match="idempotency_key"):
        prepare([large], limits, idempotency_key="")
    for around in (0, 5):
        batch = [PLAIN] * around
        limits = Limits(max_record_bytes=4)
        with pytest.raises(errors.RecordTooLarge):
            prepare([*batch, large, odd], limits)
        with pytest.raises(errors.CallerError, match="tag"):
            prepare([*batch, odd, large], limits)


@pytest.mark.parametrize(
    ("key", "fits"),
    [("k", True), ("k" * 256, True), ("é" * 128, True), ("k" * 257, False), ("é" * 129, False), ("", False)],
    ids=lambda value: repr(value)[:10],
)
def test_keys_have_1_to_256_bytes(key: str, fits: bool) -> None:
    """01 §1.1, [API-27]"""
    if fits:
        prepare([PLAIN], LIMITS, idempotency_key=key)
        return
    with pytest.raises(errors.CallerError, match="idempotency_key"):
        prepare([PLAIN], LIMITS, idempotency_key=key)


@pytest.mark.parametrize("bad", [1, b"k", "\ud800", True])
def test_keys_and_batch_nodes_are_strings(bad: Any) -> None:
    with pytest.raises(errors.CallerError, match="idempotency_key"):
        prepare([PLAIN], LIMITS, idempotency_key=bad)
    with pytest.raises(errors.CallerError, match="node"):
        prepare([PLAIN], LIMITS, batch_node=bad)


def test_a_batch_node_has_its_limit_too() -> None:
    prepare([PLAIN], LIMITS, batch_node="n" * 128)
    with pytest.raises(errors.CallerError, match="node"):
        prepare([{"data": 1, "node": "own"}], LIMITS, batch_node="n" * 129)


@pytest.mark.parametrize(
    "texts",
    [
        [b"[1", b"2]", b"3,4", b"5"],
        [b"1", b"2,3", b"[4", b"5]"],
        [b'{"a":1', b'"b":2}', b"1,2", b"3"],
        [b'"a', b'b"', b"1,2", b"3"],
        [b'"\xc3', b'\xa9"', b"1,2", b"3"],
        [b"1", b" ", b"2,3", b"4"],
    ],
)
def test_broken_texts_do_not_make_each_other_whole(texts: list[bytes]) -> None:
    """[REC-15]: joined they are a valid array of the right length."""
    with pytest.raises(errors.CallerError, match="not JSON"):
        prepare([{"data": text} for text in texts], LIMITS)


def test_what_is_prepared_can_be_framed() -> None:
    done = prepare([new({"n": n}, tag="é", node="n" * 128, meta={"m": n}) for n in range(9)], LIMITS)
    assert encode_appends(done.rows(), 7, 1, 2)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def as_text(value: object, indent: int | None, ascii: bool) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=ascii, allow_nan=True).encode("utf-8", "surrogatepass")


RAWS = st.builds(as_text, VALUES, st.sampled_from([None, 1]), st.booleans()) | st.binary(max_size=4)
STRINGS = st.none() | st.text(max_size=3) | st.just(b"odd")
RECORDS = st.fixed_dictionaries({}, optional={"tag": STRINGS, "node": STRINGS, "meta": st.none() | VALUES | RAWS}).map(
    dict[str, Any]
)
WRITES = st.lists(st.builds(lambda record, data: {**record, "data": data}, RECORDS, VALUES | RAWS), min_size=1)


@given(WRITES, st.sampled_from([LIMITS, SMALL]))
@example([{"data": b"[1"}, {"data": b"2]"}, {"data": b"3,4"}, {"data": 1}], LIMITS)
@example([{"data": [None, float("nan")]}] * 4, LIMITS)
@example([{"data": b'{"a": 1}'}, {"data": b" 1"}], LIMITS)
def test_a_batch_taken_at_once_is_what_its_records_are_one_by_one(write: list[Any], limits: Limits) -> None:
    try:
        expected = rules._one_by_one(write, limits, "n")
    except errors.CallerError:
        assert rules._all_at_once(write, limits, "n") is None
        return
    assert rules._all_at_once(write, limits, "n") in (None, expected)
    for stored, size in zip(expected.envelopes, expected.accounted, strict=True):
        data, meta = envelope.split(stored)
        assert size == len(data) + len(meta or b"") <= limits.max_record_bytes
        assert envelope.canonical(data) == data
        json.loads(data)


@given(st.lists(VALUES.filter(lambda value: "nan" not in repr(value).lower() and "inf" not in repr(value)), min_size=1))
def test_ordinary_batches_are_taken_at_once(values: list[Any]) -> None:
    plain = [{"data": value} for value in values]
    raw = [{"data": json.dumps(value).encode()} for value in values]
    for write in (plain, raw):
        taken = rules._all_at_once(write, LIMITS, None)
        assert taken is not None
        assert [json.loads(envelope.split(stored)[0]) for stored in taken.envelopes] == values


@pytest.mark.parametrize("number", [127, 128, 129, 1000])
def test_a_batch_taken_in_runs_is_prepared_like_its_records_one_by_one(number: int) -> None:
    """[WR-1, P-10]: long batches are gone through in runs, and nobody can tell."""
    batch = [
        new(msgspec.Raw(b'{"n": %d}' % n), tag=f"t{n}" if n % 3 else None, node="dock" if n % 5 else None,
            meta={"k": n} if n % 7 == 0 else None)
        for n in range(number)
    ]  # fmt: skip
    assert prepare(batch, LIMITS, "all") == rules._one_by_one(batch, LIMITS, "all")


@pytest.mark.parametrize("at", [0, 127, 128, 300])
def test_the_first_fault_of_a_batch_taken_in_runs_is_told(at: int) -> None:
    """[WR-1]: in array order, by its index."""
    batch: list[Any] = [PLAIN] * 400
    batch[at], batch[390] = {"data": 1, "tag": 5}, {"tag": "no data"}
    with pytest.raises(errors.CallerError, match=rf"records\[{at}\]\.tag"):
        prepare(batch, LIMITS)
