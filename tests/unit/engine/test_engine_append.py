"""Writes: what is answered and stored, every limit at its edge, and all that is refused (01 §1, §6; 02 §4)."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, numbers, write
from topics.engine import retention, system
from topics.errors import BatchTooLarge, CallerError, LimitReached, RecordTooLarge, TopicNotFound
from topics.model import Producer, TopicConfig, new
from topics.testing.clock import TEN_YEARS_MS

MIB = 2**20
E_ACUTE = "é"
SPELLINGS = [
    b"1.0",
    b"1e3",
    b"-0",
    b"-0.0",
    b"1E+2",
    b"1234567890123456789012345",
    b"0.1000000000000000000000000001",
    b'"\\u00e9"',
    '"é"'.encode(),
    b'"\\/"',
    b'"\\ud83d\\ude00"',
    b'{"a":1,"a":2}',
    b'{"b":1,"a":2}',
    b"[]",
    b"{}",
    b'""',
    b"null",
    b"true",
    b'" a  b "',
]


# What is answered


def test_a_write_answers_with_its_seqs_and_the_head() -> None:
    """[WR-3, SEQ-1, SEQ-2]"""
    engine = Store().engine
    first = write(engine, "a", "b", "c")
    assert (first.first_seq, first.last_seq, first.seqs, first.head_seq) == (1, 3, [1, 2, 3], 3)
    assert (first.count, first.created, first.deduped) == (3, True, False)
    second = write(engine, "d")
    assert (second.first_seq, second.last_seq, second.seqs, second.head_seq) == (4, 4, [4], 4)
    assert (second.count, second.created, second.deduped) == (1, False, False)


@kit.at_every_place
def test_records_come_back_as_written_in_array_order(place: str) -> None:
    """[REC-1, SEQ-2, SEQ-3, REC-3]: absence is absence, an empty string is a value."""
    store = Store(place)
    engine = store.put()
    engine.append(
        TOPIC,
        [
            {"data": {"kg": 412.5}, "tag": "pallet:A19", "node": "dock-7", "meta": {"fw": "2.8"}},
            {"data": None},
            new("", tag="", node="", meta={}),
            {"data": [1, [2]], "tag": None, "node": None, "meta": None},
        ],
    )
    ts = store.clock.now_ms()
    engine = store.settle()
    got = [(r.seq, r.ts, r.node, r.tag, r.data, r.meta) for r in engine.read(TOPIC).records]
    assert got == [
        (1, ts, "dock-7", "pallet:A19", {"kg": 412.5}, {"fw": "2.8"}),
        (2, ts, None, None, None, None),
        (3, ts, "", "", "", {}),
        (4, ts, None, None, [1, [2]], None),
    ]


@kit.at_every_place
def test_the_text_of_data_and_meta_comes_back_byte_for_byte(place: str) -> None:
    """[REC-6, REC-12, S-350]"""
    store = Store(place)
    engine = store.put()
    engine.append(TOPIC, [new(text) for text in SPELLINGS])
    engine.append(TOPIC, [new(0, meta=b'{"k":%b}' % text) for text in SPELLINGS])
    records = store.settle().read(TOPIC).records
    assert [record.raw_data for record in records[: len(SPELLINGS)]] == SPELLINGS
    assert [record.raw_meta for record in records[len(SPELLINGS) :]] == [b'{"k":%b}' % text for text in SPELLINGS]


def test_insignificant_whitespace_is_removed_when_the_record_is_stored() -> None:
    """[REC-6]: and only that."""
    engine = Store().put()
    engine.append(TOPIC, [new(b' { "a" :\n[ 1 ,\t2.50 ] , "b c" : " x  y " } ', meta=b' { "m" : 1 } ')])
    record = engine.read(TOPIC).records[0]
    assert (record.raw_data, record.raw_meta) == (b'{"a":[1,2.50],"b c":" x  y "}', b'{"m":1}')
    assert numbers(engine).bytes == len(record.raw_data) + len(record.raw_meta)


def test_python_values_are_stored_compactly() -> None:
    """[S-40]"""
    engine = Store().put()
    write(engine, {"a": [1, 2.5, None, True], E_ACUTE: "x y"})
    assert engine.read(TOPIC).records[0].raw_data == '{"a":[1,2.5,null,true],"é":"x y"}'.encode()


@kit.at_every_place
def test_the_accounted_size_is_that_of_data_and_meta_alone(place: str) -> None:
    """[REC-12, REC-14]: tag and node do not count, multi-byte characters count as bytes."""
    store = Store(place)
    engine = store.put()
    write(engine, "abc", tag="t" * 200, node="n" * 100)
    assert numbers(engine).bytes == 5
    write(engine, E_ACUTE)
    assert numbers(engine).bytes == 9
    engine.append(TOPIC, [new(b" [ 1, 2 ] ", meta={"m": 1})])
    assert numbers(engine).bytes == 9 + 5 + 7
    assert numbers(store.settle()) == (3, 1, 3, 21)


def test_a_record_has_its_own_node_or_else_that_of_the_write() -> None:
    """[REC-9]"""
    engine = Store().engine
    engine.append(TOPIC, [{"data": 1, "node": "own"}, {"data": 2}, {"data": 3, "node": None}, new(4)], node="batch")
    engine.append(TOPIC, [{"data": 5}])
    assert [r.node for r in engine.read(TOPIC).records] == ["own", "batch", "batch", "batch", None]


def test_unknown_members_of_a_record_are_ignored() -> None:
    """[API-1]"""
    engine = Store().engine
    engine.append(TOPIC, [{"data": 1, "colour": "red", "$seq": 99}])
    assert [(r.seq, r.data) for r in engine.read(TOPIC).records] == [(1, 1)]


def test_reserved_members_of_meta_are_not_refused() -> None:
    """[REC-11]"""
    engine = Store().engine
    meta = {"_topics_router": 1, "_topics_original_meta": {}, "$dead_letter_reason": "x"}
    engine.append(TOPIC, [new(1, meta=meta)])
    assert engine.read(TOPIC).records[0].meta == meta


def test_records_may_come_from_any_iterable() -> None:
    """S-354"""
    engine = Store().engine
    assert engine.append(TOPIC, (new(n) for n in range(3))).seqs == [1, 2, 3]
    assert engine.append(TOPIC, (new(1), {"data": 2})).seqs == [4, 5]


# Time


def test_all_records_of_a_write_share_one_timestamp() -> None:
    """[REC-10]"""
    store = Store()
    engine = store.engine
    write(engine, 1, 2, 3)
    store.clock.advance(7)
    write(engine, 4)
    start = store.clock.now_ms() - 7
    assert [r.ts - start for r in engine.read(TOPIC).records] == [0, 0, 0, 7]


@kit.at_every_place
def test_timestamps_never_decrease_when_the_clock_steps_back(place: str) -> None:
    """[REC-10, S-104]: also across a restart."""
    store = Store(place)
    engine = store.put()
    start = store.clock.now_ms()
    write(engine, 1)
    store.clock.jump(-TEN_YEARS_MS)
    write(engine, 2)
    if place != "ram":
        engine = store.settle()
    write(engine, 3)
    store.clock.jump(TEN_YEARS_MS)
    # Trimming lets time pass.
    passed = store.clock.now_ms() - start
    store.clock.advance(5)
    write(engine, 4)
    assert [r.ts - start for r in engine.read(TOPIC).records] == [0, 0, 0, passed + 5]


def test_timestamps_of_an_ephemeral_topic_never_decrease_across_a_clean_stop() -> None:
    """[S-104, DUR-7]: also behind a run that wrote nothing to it."""
    store = Store()
    engine = store.put(durability="ephemeral")
    before = store.clock.now_ms()
    write(engine, 1)
    store.clock.jump(-TEN_YEARS_MS)
    store.reopen()
    engine = store.put("other")
    write(engine, 1, name="other")
    engine = store.reopen()
    write(engine, 2)
    assert [(r.seq, r.ts) for r in engine.read(TOPIC, 1).records] == [(2, before)]


def test_timestamps_of_one_topic_say_nothing_about_another() -> None:
    """[REC-10]"""
    store = Store()
    write(store.engine, 1)
    store.clock.jump(-1000)
    write(store.engine, 1, name="other")
    assert store.engine.read("other").records[0].ts == store.clock.now_ms()


# Limits (01 §1.1): at the limit, and one above


def refused_whole(engine: Any, error: type[Exception], *records: Any, **more: Any) -> Any:
    """The write is refused, alone and as part of a batch, on a topic that exists and on one that does not."""
    before = kit.snapshot_of(engine)
    seen: list[Any] = []
    for batch in (list(records), [new("good"), *records, new("good")]):
        for name in (TOPIC, "absent"):
            with pytest.raises(error) as caught:
                engine.append(name, batch, **more)
            seen.append(caught.value)
    assert kit.snapshot_of(engine) == before
    assert list(engine.topics()) == [TOPIC]
    return seen[0]


def started(**options: Any) -> Any:
    """An engine with a topic of one record."""
    engine = Store(**options).put()
    write(engine, "before")
    return engine


def test_ten_thousand_records_are_one_write_and_one_more_is_too_many() -> None:
    """01 §1.1, [REC-13]"""
    engine = started()
    with kit.nothing_changes(engine), pytest.raises(BatchTooLarge) as caught:
        engine.append(TOPIC, [new(0)] * 10_001)
    assert (caught.value.code, caught.value.count, caught.value.max) == ("batch_too_large", 10_001, 10_000)
    result = engine.append(TOPIC, [new(n) for n in range(10_000)])
    assert (result.first_seq, result.last_seq, result.count) == (2, 10_001, 10_000)
    assert numbers(engine).count == 10_001


def test_a_record_of_one_mebibyte_is_stored_and_one_byte_more_refused() -> None:
    """01 §1.1: canonical bytes of data and meta together."""
    engine = started()
    error = refused_whole(engine, RecordTooLarge, new("x" * (MIB - 1)))
    assert error.code == "record_too_large"
    refused_whole(engine, RecordTooLarge, new("x" * (MIB - 2 - 7), meta={"m": 12}))
    write(engine, "x" * (MIB - 2))
    engine.append(TOPIC, [new("x" * (MIB - 2 - 7), meta={"m": 1})])
    assert numbers(engine).bytes == 8 + 2 * MIB
    assert kit.everything(engine).values[1:] == ["x" * (MIB - 2), "x" * (MIB - 9)]


def test_whitespace_does_not_count_towards_the_size_of_a_record() -> None:
    """[REC-12]"""
    engine = started(max_record_bytes=8)
    engine.append(TOPIC, [new(b" [ 1 , 2 , 34 ] ")])
    refused_whole(engine, RecordTooLarge, new(b"[1,2,345]"))


def test_sixteen_kibibytes_of_meta_are_stored_and_one_byte_more_refused() -> None:
    """01 §1.1: as an invalid request, not as a large record."""
    engine = started()
    refused_whole(engine, CallerError, new(0, meta={"m": "x" * (16_384 - 7)}))
    with kit.invalid_request():
        engine.append(TOPIC, [new(0, meta={"m": "x" * (16_384 - 7)})])
    engine.append(TOPIC, [new(0, meta={"m": "x" * (16_384 - 8)})])
    assert numbers(engine).bytes == 8 + 1 + 16_384


@pytest.mark.parametrize("raw", [False, True])
def test_meta_has_at_most_64_members(raw: bool) -> None:
    """01 §1.1"""
    engine = started()

    def meta(members: int) -> Any:
        if raw:
            return b"{" + b",".join(b'"m%d":{"a":1,"b":2}' % n for n in range(members)) + b"}"
        return {f"m{n}": {"a": 1, "b": 2} for n in range(members)}

    refused_whole(engine, CallerError, new(0, meta=meta(65)))
    with kit.invalid_request():
        engine.append(TOPIC, [new(0, meta=meta(65))])
    engine.append(TOPIC, [new(0, meta=meta(64))])
    assert len(engine.read(TOPIC, 1).records[0].meta or ()) == 64


@pytest.mark.parametrize(("member", "most"), [("tag", 256), ("node", 128)])
@pytest.mark.parametrize("letter", ["x", E_ACUTE])
def test_a_tag_and_a_node_have_their_limits_in_bytes(member: str, most: int, letter: str) -> None:
    """01 §1.1"""
    engine = started()
    long = letter * (most // len(letter.encode()))
    refused_whole(engine, CallerError, {"data": 0, member: long + "x"})
    with kit.invalid_request():
        engine.append(TOPIC, [{"data": 0, member: long + "x"}])
    engine.append(TOPIC, [{"data": 0, member: long}])
    assert getattr(engine.read(TOPIC, 1).records[0], member) == long


def test_the_node_of_a_write_has_the_same_limit() -> None:
    """01 §1.1, [REC-9]"""
    engine = started()
    with kit.nothing_changes(engine), kit.invalid_request():
        engine.append(TOPIC, [new(0)], node="n" * 129)
    engine.append(TOPIC, [new(0)], node="n" * 128)
    assert engine.read(TOPIC, 1).records[0].node == "n" * 128


@pytest.mark.parametrize("letter", ["x", E_ACUTE])
def test_an_idempotency_key_has_at_most_256_bytes_and_at_least_one(letter: str) -> None:
    """01 §1.1, §18.13, [API-27]"""
    engine = started()
    longest = letter * (256 // len(letter.encode()))
    for bad in (longest + "x", ""):
        with kit.nothing_changes(engine), kit.invalid_request():
            write(engine, 1, idempotency_key=bad)
    assert write(engine, 1, idempotency_key=longest).seqs == [2]
    assert write(engine, 1, idempotency_key=longest).deduped


def test_a_producer_id_has_at_most_128_bytes_and_at_least_one() -> None:
    """[A-4]"""
    engine = started()
    for bad in ("x" * 129, E_ACUTE * 65, ""):
        with kit.nothing_changes(engine), kit.invalid_request():
            write(engine, 1, producer={"id": bad, "epoch": 1, "index": 1})
    assert write(engine, 1, producer={"id": E_ACUTE * 64, "epoch": 1, "index": 1}).seqs == [2]


def test_limits_can_be_set() -> None:
    """02 §1.9"""
    engine = started(max_batch_records=2, max_record_bytes=10, max_meta_bytes=8, max_tag_bytes=3, max_node_bytes=2)
    engine.append(TOPIC, [new("12345678", tag="abc", node="ab"), new(1, meta={"m": 12})])
    with kit.nothing_changes(engine):
        for bad in (
            [new(0)] * 3,
            [new("123456789")],
            [new(1, meta={"m": 123})],
            [new(1, tag="abcd")],
            [new(1, node="abc")],
        ):
            with pytest.raises(CallerError) as caught:
                engine.append(TOPIC, bad)
            assert caught.value.code in ("batch_too_large", "record_too_large", "invalid_request")


def test_json_of_128_levels_is_stored_and_of_more_than_1000_refused() -> None:
    """[API-11]"""
    engine = started()
    engine.append(TOPIC, [new(b"[" * 124 + b"]" * 124)])
    assert engine.read(TOPIC, 1).records[0].raw_data == b"[" * 124 + b"]" * 124
    for data in (b"[" * 1001 + b"]" * 1001, b'{"a":' * 1001 + b"1" + b"}" * 1001):
        with kit.nothing_changes(engine), kit.invalid_request():
            engine.append(TOPIC, [new(data)])
    deep: Any = 1
    for _ in range(1001):
        deep = [deep]
    with kit.nothing_changes(engine), kit.invalid_request():
        engine.append(TOPIC, [new(deep)])


# What is refused

BAD_BATCHES: list[Any] = [
    [],
    (),
    iter(()),
    None,
    5,
    "records",
    b"[]",
    {"data": 1},
    new(1),
    [1],
    ["x"],
    [None],
    [[new(1)]],
    [b"{}"],
]
BAD_RECORDS: list[Any] = [
    {},
    {"tag": "x"},
    {"data": math.nan},
    {"data": math.inf},
    {"data": [-math.inf]},
    {"data": {"a": [1, math.nan]}},
    {"data": object()},
    {"data": {1: object()}},
    {"data": "\ud800"},
    {"data": {"\udfff": 1}},
    {"data": ["a", ["\ud800x"]]},
    {"data": b""},
    {"data": b" "},
    {"data": b"nan"},
    {"data": b"NaN"},
    {"data": b"Infinity"},
    {"data": b"01"},
    {"data": b"1 2"},
    {"data": b"[1,]"},
    {"data": b'{"a":1'},
    {"data": b"'a'"},
    {"data": b'"\xff"'},
    {"data": b'"\xed\xa0\x80"'},
    {"data": b'"\\ud800"'},
    {"data": b'["\\udc00\\ud800"]'},
    {"data": b'"\x01"'},
    {"data": b"\xef\xbb\xbf1"},
    {"data": 1, "tag": 5},
    {"data": 1, "tag": b"x"},
    {"data": 1, "tag": ["x"]},
    {"data": 1, "tag": "\ud800"},
    {"data": 1, "node": 5},
    {"data": 1, "node": True},
    {"data": 1, "node": "\ud800"},
    {"data": 1, "meta": []},
    {"data": 1, "meta": "x"},
    {"data": 1, "meta": 5},
    {"data": 1, "meta": False},
    {"data": 1, "meta": b"[]"},
    {"data": 1, "meta": b'{"a":'},
    {"data": 1, "meta": {"a": math.nan}},
    {"data": 1, "meta": {"a": "\ud800"}},
]


@pytest.mark.parametrize("batch", BAD_BATCHES, ids=lambda bad: re.sub(" at 0x[0-9a-f]+", "", repr(bad))[:40])
def test_what_is_no_list_of_records_is_refused(batch: Any) -> None:
    """[WR-1, REC-15]"""
    engine = started()
    with kit.nothing_changes(engine, TOPIC, "absent"):
        with kit.invalid_request():
            engine.append(TOPIC, batch)
        with kit.invalid_request():
            engine.append("absent", batch)


@pytest.mark.parametrize("record", BAD_RECORDS, ids=lambda bad: re.sub(" at 0x[0-9a-f]+", "", ascii(bad))[:60])
@pytest.mark.parametrize("around", [0, 1, 9])
def test_one_invalid_record_refuses_the_whole_write(record: Any, around: int) -> None:
    """[REC-7, REC-8, REC-15, API-11, WR-1]: and does not create the topic."""
    engine = started()
    batch = [new("good")] * around + [record] + [new("good")] * around
    with kit.nothing_changes(engine, TOPIC, "absent"):
        with kit.invalid_request():
            engine.append(TOPIC, batch)
        with kit.invalid_request():
            engine.append("absent", batch)


@pytest.mark.parametrize(
    "more",
    [
        {"node": 5},
        {"node": ["a"]},
        {"node": "\ud800"},
        {"idempotency_key": 5},
        {"idempotency_key": b"k"},
        {"idempotency_key": "\ud800"},
        {"producer": "p"},
        {"producer": {}},
        {"producer": {"id": "p"}},
        {"producer": {"id": "p", "epoch": 1}},
        {"producer": {"epoch": 1, "index": 1}},
        {"producer": {"id": 5, "epoch": 1, "index": 1}},
        {"producer": {"id": None, "epoch": 1, "index": 1}},
        {"producer": {"id": "\ud800", "epoch": 1, "index": 1}},
        {"producer": {"id": "p", "epoch": -1, "index": 1}},
        {"producer": {"id": "p", "epoch": 1, "index": 2**64}},
        {"producer": {"id": "p", "epoch": True, "index": 1}},
        {"producer": {"id": "p", "epoch": 1.0, "index": 1}},
        {"producer": {"id": "p", "epoch": "1", "index": 1}},
        {"producer": Producer("p", -1, 0)},
        {"producer": Producer("", 1, 0)},
        {"producer": Producer("p", 1, 1), "idempotency_key": "k"},
        {"producer": {"id": "p", "epoch": 1, "index": 1}, "idempotency_key": "k"},
    ],
    ids=ascii,
)
def test_bad_options_of_a_write_are_refused_and_append_nothing(more: dict[str, Any]) -> None:
    """[WR-1, A-4, API-12]: both a key and a producer are one thing too many."""
    engine = started()
    with kit.nothing_changes(engine, TOPIC, "absent"):
        with kit.invalid_request():
            engine.append(TOPIC, [new(1)], **more)
        with kit.invalid_request():
            engine.append("absent", [new(1)], **more)


def test_the_first_fault_in_the_order_of_checks_is_the_one_reported() -> None:
    """[WR-1]: too many, then the key, then the records in array order, then the topic."""
    engine = started(max_batch_records=3, max_record_bytes=100)
    big, bad = new("x" * 200), new(1, tag=5)  # type: ignore[arg-type]
    with pytest.raises(BatchTooLarge):
        engine.append(TOPIC, [bad] * 4, idempotency_key="")
    with kit.invalid_request():
        engine.append(TOPIC, [big], idempotency_key="")
    with pytest.raises(RecordTooLarge):
        engine.append(TOPIC, [new(1), big, bad])
    with kit.invalid_request():
        engine.append(TOPIC, [new(1), bad, big])
    with pytest.raises(RecordTooLarge):
        engine.append("absent", [big], create=False)
    own = {"type": "queue", "dead_letter": "absent"}
    with pytest.raises(RecordTooLarge):
        engine.append("absent", [big], config=own)
    with pytest.raises(TopicNotFound):
        engine.append("absent", [new(1)], create=False, config=own)
    with kit.invalid_request():
        engine.append("absent", [big], config={"ttl_ms": "x"})
    with kit.invalid_request():
        engine.append("absent", [new(1)], config=own)
    with kit.invalid_request():
        engine.append("absent", [new(1)], config=TopicConfig(type="queue", dead_letter="absent"))


def test_values_of_a_configuration_that_is_not_used_do_not_matter_but_its_types_do() -> None:
    """[WR-6]"""
    engine = started()
    for config in ({"dead_letter": "no name"}, {"type": "queue", "dead_letter": TOPIC}, {"type": "queue"}):
        engine.append(TOPIC, [new(1)], config=config)
    for bad in ({"dead_letter": 5}, {"ttl_ms": -1, "dead_letter": "no name"}, {"durable": 1}, 5):
        with kit.nothing_changes(engine), kit.invalid_request():
            engine.append(TOPIC, [new(1)], config=bad)  # type: ignore[arg-type]


# The bound on all bytes [RES-5]


def test_live_bytes_of_all_topics_are_bounded() -> None:
    """[RES-2, RES-5, REC-13]: at the bound, and one byte above it."""
    store = Store(max_total_bytes=20)
    engine = store.put("a")
    store.put("b")
    write(engine, "12345678", name="a")
    with kit.nothing_changes(engine, "a", "b"), pytest.raises(LimitReached) as caught:
        write(engine, "123456789", name="b")
    assert (caught.value.code, caught.value.limit, caught.value.max) == ("throttled", "max_total_bytes", 20)
    write(engine, "12345678", name="b")
    with pytest.raises(LimitReached):
        write(engine, 1, name="a")
    assert numbers(engine, "a").bytes + numbers(engine, "b").bytes == 20


@pytest.mark.parametrize("freed_by", ["delete", "topic", "ttl", "cap"])
def test_bytes_that_were_freed_can_be_used_again(freed_by: str) -> None:
    """[RES-5]"""
    store = Store(max_total_bytes=20)
    engine = store.put("a", ttl_ms=1000)
    store.put("b")
    write(engine, "x" * 8, name="a")
    write(engine, "x" * 8, name="a")
    with pytest.raises(LimitReached):
        write(engine, 1, name="b")
    if freed_by == "delete":
        engine.delete("a", seqs=[1])
    elif freed_by == "topic":
        engine.delete_topic("a")
    elif freed_by == "ttl":
        store.clock.advance(1001)
        store.engine.tick()
    else:
        store.put("a", cap_records=1)
    write(engine, "x" * 8, name="b")


def test_what_has_expired_in_a_topic_does_not_stand_in_the_way_of_its_next_write() -> None:
    """[WR-1, RES-5]: retention comes before the quota, whether or not it is logged yet."""
    store = Store(max_total_bytes=20)
    engine = store.put(ttl_ms=1000)
    write(engine, "x" * 18)
    store.clock.advance(1000)
    with pytest.raises(LimitReached):
        write(engine, "x" * 18)
    store.clock.advance(1)
    assert write(engine, "x" * 18).last_seq == 2


def test_what_has_expired_in_another_topic_is_free_at_once() -> None:
    """[RES-5]: whether or not it is logged yet; what the server wrote itself frees nothing when it expires."""
    store = Store(max_total_bytes=20)
    engine = store.put("a", ttl_ms=1000)
    store.put("b")
    write(engine, 1, name="a")
    engine.delete("a", seqs=[1])
    store.pass_time(100)
    write(engine, "x" * 8, name="a")
    store.clock.advance(500)
    write(engine, "x" * 8, name="a")
    store.clock.advance(500)
    with pytest.raises(LimitReached):
        write(engine, "x" * 8, name="b")
    store.clock.advance(1)
    write(engine, "x" * 8, name="b")
    store.clock.advance(system.KEPT_MS)
    with pytest.raises(LimitReached):
        write(engine, "x" * 19, name="b")
    assert store.engine.core.names["a"].count == 2
    write(engine, "x" * 8, name="b")


def test_where_many_topics_have_a_ttl_the_sweep_frees_what_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """[RES-5, P-10]"""
    monkeypatch.setattr(retention, "LOOKED_AT_MAX", 1)
    store = Store(max_total_bytes=20)
    engine = store.put("a", ttl_ms=1000)
    store.put("other", ttl_ms=1000)
    store.put("b")
    write(engine, "x" * 18, name="a")
    store.clock.advance(1001)
    with pytest.raises(LimitReached):
        write(engine, "x" * 8, name="b")
    engine.tick()
    write(engine, "x" * 8, name="b")


def test_space_that_a_write_would_free_by_evicting_is_not_credited_in_advance() -> None:
    """[RES-5]"""
    store = Store(max_total_bytes=20)
    engine = store.put(cap_records=1)
    write(engine, "x" * 13)
    with kit.nothing_changes(engine), pytest.raises(LimitReached):
        write(engine, "x" * 13)


@kit.after_every_stop
def test_the_bound_on_bytes_counts_what_was_there_at_start(stop: str) -> None:
    """[RES-5, S-157]"""
    store = Store(max_total_bytes=20)
    write(store.put(), "x" * 13)
    engine = store.stop(stop)
    with pytest.raises(LimitReached):
        write(engine, "x" * 13)
    write(engine, "x" * 3)


def test_a_refused_write_leaves_no_hole_in_the_seqs() -> None:
    """[SEQ-4, DUR-2, INV-2]"""
    engine = started()
    for _ in range(3):
        with kit.invalid_request():
            engine.append(TOPIC, [new(1), {}])
    assert write(engine, 2).seqs == [2]
