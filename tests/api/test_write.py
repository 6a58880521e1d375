"""Writes over HTTP (02 §4; 01 §1, §2.1, §4, §6, §9, §13, §15.1)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.api.expect import (
    ANY,
    DEFAULT_CONFIG,
    Background,
    compact,
    delete,
    diff,
    invalid,
    like,
    ok,
    put,
    raw,
    refused,
    seqs,
    state,
    until,
    write,
)
from tests.api.kit import WAIT_S, Running, running
from tests.unit.engine.kit import GatedFs, real_config
from topics.server import records as handlers
from topics.testing import ManualClock

# -- the answer ------------------------------------------------------------------------------------------------------


def test_a_write_is_answered_with_exactly_the_members_of_the_contract(client: httpx.Client, topic: str) -> None:
    """[WR-2, WR-3, API-14]"""
    body = {"records": [{"data": 1}, {"data": 2}]}
    answer = client.post(f"/v0/topics/{topic}", json=body)
    performance = answer.json()["performance"]
    assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert all(type(value) is float for value in performance.values())
    assert performance["fsync_ms"] == 0.0
    expected = {
        "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2, "created": True,
        "deduped": False,
    }  # fmt: skip
    assert ok(answer, 201) == expected
    answer = client.post(f"/v0/topics/{topic}?return_seqs=false", json=body)
    expected |= {"first_seq": 3, "last_seq": 4, "head_seq": 4, "created": False}
    del expected["seqs"]
    assert ok(answer) == expected
    for query in ("return_seqs=1", "return_seqs=maybe", "other=1", "return_seqs=1&return_seqs=0"):
        assert "seqs" in ok(client.post(f"/v0/topics/{topic}?{query}", json=body))
    assert "seqs" not in ok(client.post(f"/v0/topics/{topic}?return_seqs=0", json=body))


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_takes_writes_and_says_how_long_it_synced(
    client: httpx.Client, topic: str, durability: str
) -> None:
    """(01 §4): only `fsync` waits for the device."""
    put(client, topic, durability=durability)
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]})
    ok(answer)
    performance = answer.json()["performance"]
    assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert (performance["fsync_ms"] > 0) == (durability == "fsync")
    assert seqs(diff(client, topic)) == [1]


def test_concurrent_writes_get_consecutive_seqs_and_are_all_visible(client: httpx.Client, topic: str) -> None:
    """[SEQ-2, SEQ-3, INV-2, DUR-1]"""

    def ask(at: int, one: httpx.Client) -> httpx.Response:
        return one.post(f"/v0/topics/{topic}", json={"records": [{"data": [at, n]} for n in range(5)]})

    asked = [Background(client, partial(ask, at)) for at in range(12)]
    taken: list[int] = []
    for one in asked:
        told = one.answer().json()
        assert told["seqs"] == list(range(told["first_seq"], told["first_seq"] + 5))
        assert told["head_seq"] >= told["last_seq"]
        taken += told["seqs"]
    assert sorted(taken) == list(range(1, 61))
    page = diff(client, topic)
    assert seqs(page) == list(range(1, 61))
    for first in range(0, 60, 5):
        run = [record["data"] for record in page["records"][first : first + 5]]
        assert run == [[run[0][0], n] for n in range(5)]


# -- lazy creation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 201), ({"create": True}, 201), ({"create": None}, 201), ({"create": False}, 404),
        ({"config": {"auto_create": True}}, 201), ({"config": {"auto_create": False}}, 404),
        ({"config": {}}, 201), ({"config": None}, 201),
        ({"create": True, "config": {"auto_create": False}}, 201),
        ({"create": False, "config": {"auto_create": True}}, 404),
        ({"create": None, "config": {"auto_create": False}}, 404),
    ],
)  # fmt: skip
def test_an_absent_topic_is_created_by_a_write_as_it_asks(
    client: httpx.Client, topic: str, more: dict[str, object], status: int
) -> None:
    """(01 §2.1)"""
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}], **more})
    if status == 201:
        assert ok(answer, 201)["created"] is True
        config = more.get("config") or {}
        assert isinstance(config, dict)
        assert state(client, topic)["config"] == {**DEFAULT_CONFIG, **config}
    else:
        refused(answer, 404, "topic_not_found", {"topic": topic})
        refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})


def test_an_existing_topic_ignores_create_and_config(client: httpx.Client, topic: str) -> None:
    """[WR-6, NAME-6]"""
    put(client, topic, auto_create=False)
    told = write(client, topic, 1, create=False, config={"type": "queue", "cap_records": 1, "auto_create": False})
    assert (told["created"], told["first_seq"]) == (False, 1)
    assert state(client, topic)["config"] == {**DEFAULT_CONFIG, "auto_create": False}


@pytest.mark.parametrize("config", [5, [], "x", {"ttl_ms": "5"}, {"durable": 1}, {"cap_bytes": -1}, {"ttl_ms": None}])
def test_an_ignored_config_is_still_type_checked(client: httpx.Client, topic: str, config: object) -> None:
    """[WR-6]"""
    put(client, topic)
    invalid(client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}], "config": config}))
    assert state(client, topic)["head_seq"] == 0


def test_a_write_that_creates_and_is_refused_leaves_an_empty_topic(client: httpx.Client, topic: str) -> None:
    """[NAME-5, CAP-4]"""
    config = {"discard": "reject", "cap_records": 1}
    body = {"records": [{"data": 1}, {"data": 2}], "config": config}
    refused(client.post(f"/v0/topics/{topic}", json=body), 400, "record_too_large", ANY)
    assert state(client, topic)["head_seq"] == 0
    assert state(client, topic)["config"] == {**DEFAULT_CONFIG, **config}


# -- records ---------------------------------------------------------------------------------------------------------

SPELLINGS = [
    "1.0", "1e3", "1E+3", "-0", "-0.0", "1" * 400, "1e999", '"\\u00e9"', '"é"', '"\\/"', '"\\ud83d\\ude00"', '""',
    '{"a":1,"a":2}', '{"":{}}', "[]", "{}", "null", "true", "false", '"\x7f"', '"\u2028"', "0.10000000000000000000001",
    '{"$seq":9,"d":1,"m":{}}', '{"x":",\\"m\\":{}}"}', '[{"m":{}}]', '"a b  c"', "[" * 120 + "]" * 120,
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS, ids=lambda text: text[:20])
def test_data_comes_back_byte_for_byte(client: httpx.Client, topic: str, text: str) -> None:
    """[REC-6, REC-12, SEQ-6]"""
    topic = topic[:30].rstrip("-")
    body = f'{{"records":[{{"data": {text} }},{{"meta":{{"k":{text}}},"data":{text}}}]}}'
    ok(raw(client, f"/v0/topics/{topic}", body), 201)
    batch = ",".join(f'{{"data":\n{text}\t}}' for _ in range(5))
    ok(raw(client, f"/v0/topics/{topic}", f'{{"records":[{batch}]}}'))
    page = client.post(f"/v0/topics/{topic}/diff").text
    assert f'"data":{text}}},{{"$seq":2,' in page
    assert page.count(f'"data":{text}}}') == 7
    assert f'"meta":{{"k":{text}}}' in page
    size = len(text.encode())
    assert state(client, topic)["bytes"] == 7 * size + size + len('{"k":}')
    client.delete(f"/v0/topics/{topic}")


def test_insignificant_whitespace_goes_when_the_record_is_stored(client: httpx.Client, topic: str) -> None:
    """[REC-6, REC-12]"""
    body = '{"records" : [ { "data" : { "a" : [ 1 , 2 ] , "b c" : "d  e" } , "meta" : { "k" : 1.0 } } ]\r\n}'
    ok(raw(client, f"/v0/topics/{topic}", body), 201)
    text = client.post(f"/v0/topics/{topic}/diff").text
    assert '"data":{"a":[1,2],"b c":"d  e"}' in text
    assert '"meta":{"k":1.0}' in text
    assert state(client, topic)["bytes"] == len('{"a":[1,2],"b c":"d  e"}{"k":1.0}')


def test_members_of_a_record_on_read(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[REC-2, REC-3, REC-4, REC-5, REC-9]"""
    records = [
        {"data": None},
        {"data": 1, "tag": "", "node": "", "meta": {}},
        {"data": 2, "tag": None, "node": None, "meta": None},
        {"data": 3, "tag": "t\"é", "node": "own", "meta": {"k": [None]}, "$seq": 77, "extra": 1},
    ]  # fmt: skip
    ok(timed.post(f"/v0/topics/{topic}", json={"records": records, "node": "batch"}), 201)
    ts = clock.now_ms()
    expected = [
        {"$seq": 1, "$ts": ts, "$node": "batch", "data": None},
        {"$seq": 2, "$ts": ts, "$node": "", "$tag": "", "data": 1, "meta": {}},
        {"$seq": 3, "$ts": ts, "$node": "batch", "data": 2},
        {"$seq": 4, "$ts": ts, "$node": "own", "$tag": 't"é', "data": 3, "meta": {"k": [None]}},
    ]
    assert diff(timed, topic, include_tags=True)["records"] == expected
    for record in expected:
        record.pop("$tag", None)
    assert diff(timed, topic)["records"] == expected
    for record in expected:
        record.pop("meta", None)
    assert diff(timed, topic, include_meta=False)["records"] == expected
    write(timed, topic, 5)
    assert diff(timed, topic, from_seq=4)["records"] == [{"$seq": 5, "$ts": ts, "data": 5}]


def test_ts_never_decreases_within_a_topic(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[REC-10]"""
    write(timed, topic, 1, 2)
    first = clock.now_ms()
    clock.jump(-50)
    write(timed, topic, 3)
    clock.jump(60)
    write(timed, topic, 4)
    assert [record["$ts"] for record in diff(timed, topic)["records"]] == [first, first, first, first + 10]


@pytest.mark.parametrize(
    "record",
    [
        {}, {"tag": "x"}, None, 5, "x", [], {"data": 1, "tag": 5}, {"data": 1, "tag": True}, {"data": 1, "node": 5},
        {"data": 1, "node": ["a"]}, {"data": 1, "meta": 5}, {"data": 1, "meta": []}, {"data": 1, "meta": "x"},
        {"data": 1, "meta": True}, {"data": 1, "tag": "x" * 257}, {"data": 1, "tag": "é" * 129},
        {"data": 1, "node": "x" * 129}, {"data": 1, "node": "é" * 65},
        {"data": 1, "meta": {"k": "x" * 16384}}, {"data": 1, "meta": {str(n): 1 for n in range(65)}},
    ],
    ids=lambda record: str(record)[:40],
)  # fmt: skip
@pytest.mark.parametrize("company", [0, 6])
def test_one_bad_record_refuses_the_whole_write(client: httpx.Client, topic: str, record: object, company: int) -> None:
    """[REC-7, REC-8, REC-15, API-11, API-13] and the limits of 01 §1.1."""
    good = [{"data": n} for n in range(company)]
    invalid(client.post("/v0/topics/never-made", json={"records": [*good, record, *good]}))
    refused(client.get("/v0/topics/never-made"), 404, "topic_not_found", {"topic": "never-made"})


@pytest.mark.parametrize("company", [0, 6])
def test_a_limit_is_exceeded_only_above_it(client: httpx.Client, topic: str, company: int) -> None:
    """[REC-13, REC-14] (01 §1.1)"""
    good = [{"data": n} for n in range(company)]
    members = {f"{n:02}": "x" * 10 for n in range(63)}
    filling = 16384 - len(json.dumps({**members, "z": ""}, separators=(",", ":")))
    fits = [
        {"data": 1, "tag": "é" * 128, "node": "é" * 64},
        {"data": 1, "meta": {**members, "z": "x" * filling}},
        {"data": "x" * (2**20 - 2)},
        {"data": "x" * (2**20 - 2 - len('{"k":1}')), "meta": {"k": 1}, "tag": "t" * 256, "node": "n" * 128},
    ]
    for record in fits:
        answer = client.post(f"/v0/topics/{topic}", json={"records": [*good, record, *good], "node": "é" * 64})
        assert answer.status_code in (200, 201), answer.text
    for record in (
        {"data": "x" * (2**20 - 1)},
        {"data": "x" * (2**20 - 2 - len('{"k":1}') + 1), "meta": {"k": 1}},
    ):
        answer = client.post(f"/v0/topics/{topic}", json={"records": [*good, record, *good]})
        refused(answer, 400, "record_too_large", ANY)
    client.delete(f"/v0/topics/{topic}")


def test_limits_follow_their_variables(client: httpx.Client) -> None:
    """[LIM-1] (02 §1.9)"""
    env = {
        "TOPICS_MAX_BATCH_RECORDS": "3", "TOPICS_MAX_RECORD_BYTES": "50", "TOPICS_MAX_META_BYTES": "20",
        "TOPICS_MAX_TAG_BYTES": "4", "TOPICS_MAX_NODE_BYTES": "2", "TOPICS_MAX_BODY_BYTES": "1000",
        "TOPICS_MAX_LIMIT": "5", "TOPICS_MAX_CLAIM": "2",
    }  # fmt: skip
    with running(env=env) as small, like(client, small) as one:
        write(one, "t", 1, 2, 3)
        refused(one.post("/v0/topics/t", json={"records": [{"data": 1}] * 4}), 400, "batch_too_large", ANY)
        write(one, "t", "x" * 48)
        answer = one.post("/v0/topics/t", json={"records": [{"data": "x" * 49}]})
        refused(answer, 400, "record_too_large", ANY)
        ok(one.post("/v0/topics/t", json={"records": [{"data": 1, "meta": {"k": "x" * 12}, "tag": "abcd"}]}))
        invalid(one.post("/v0/topics/t", json={"records": [{"data": 1, "meta": {"k": "x" * 13}}]}))
        invalid(one.post("/v0/topics/t", json={"records": [{"data": 1, "tag": "abcde"}]}))
        write(one, "t", 1, node="ab")
        invalid(one.post("/v0/topics/t", json={"records": [{"data": 1}], "node": "abc"}))
        invalid(one.post("/v0/topics/t", json={"records": [{"data": 1, "node": "abc"}]}))
        padding = b" " * (1000 - len(b'{"records":[{"data":1}]}'))
        ok(raw(one, "/v0/topics/t", b'{"records":[{"data":1}]}' + padding))
        refused(raw(one, "/v0/topics/t", b'{"records":[{"data":1}]} ' + padding), 413, "payload_too_large")
        assert seqs(diff(one, "t", limit=100)) == [1, 2, 3, 4, 5]
        assert seqs(diff(one, "t")) == [1, 2, 3, 4, 5]
        invalid(one.post("/v0/topics/t/diff", json={"node": "abc"}))
        assert delete(one, "t", seqs=[1, 2])["deleted"] == 2
        answer = one.post("/v0/topics/t/delete", json={"seqs": [1, 2, 3]})
        refused(answer, 400, "batch_too_large", ANY)


def test_a_limit_of_zero_means_the_default(client: httpx.Client) -> None:
    """[LIM-1]"""
    with running(env={"TOPICS_MAX_BATCH_RECORDS": "0", "TOPICS_MAX_LIMIT": " "}) as plain, like(client, plain) as one:
        assert write(one, "t", *range(300))["count"] == 300
        assert len(diff(one, "t", limit=1000)["records"]) == 300


def test_the_default_batch_limit(client: httpx.Client, topic: str) -> None:
    """(01 §1.1)"""
    body = {"records": [{"data": 1}] * 10_001}
    refused(client.post(f"/v0/topics/{topic}", json=body), 400, "batch_too_large", ANY)
    del body["records"][0]
    assert ok(client.post(f"/v0/topics/{topic}?return_seqs=0", json=body), 201)["last_seq"] == 10_000


BAD_BODIES = [
    {}, {"records": []}, {"records": None}, {"records": {}}, {"records": "x"}, {"records": 5},
    {"records": [{"data": 1}], "node": 5}, {"records": [{"data": 1}], "node": ["a"]},
    {"records": [{"data": 1}], "node": "x" * 129}, {"records": [{"data": 1}], "idempotency_key": 5},
    {"records": [{"data": 1}], "idempotency_key": ""}, {"records": [{"data": 1}], "idempotency_key": "x" * 257},
    {"records": [{"data": 1}], "idempotency_key": "é" * 129},
    {"records": [{"data": 1}], "create": 1}, {"records": [{"data": 1}], "create": "true"},
    {"records": [{"data": 1}], "config": []}, {"records": [{"data": 1}], "config": {"ttl_ms": -1}},
    {"records": [{"data": 1}], "config": {"type": "queue", "dead_letter": "never-made"}},
    {"records": [{"data": 1}], "disable_backpressure": None}, {"records": [{"data": 1}], "disable_backpressure": 1},
    {"records": [{"data": 1}], "producer": 5}, {"records": [{"data": 1}], "producer": {}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 1}},
    {"records": [{"data": 1}], "producer": {"id": "", "epoch": 1, "index": 1}},
    {"records": [{"data": 1}], "producer": {"id": "x" * 129, "epoch": 1, "index": 1}},
    {"records": [{"data": 1}], "producer": {"id": 5, "epoch": 1, "index": 1}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": True, "index": 1}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 1, "index": 1.0}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 2**64, "index": 1}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 1, "index": -1}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 1, "index": None}},
    {"records": [{"data": 1}], "producer": {"id": "p", "epoch": 1, "index": 1}, "idempotency_key": "k"},
    [], None, "x", 5,
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: str(body)[:90])
def test_an_ill_typed_write_is_refused_and_creates_nothing(client: httpx.Client, body: object) -> None:
    """[API-11, API-12, API-13, WR-1, A-4]"""
    invalid(raw(client, "/v0/topics/never-made", json.dumps(body)))
    refused(client.get("/v0/topics/never-made"), 404, "topic_not_found", {"topic": "never-made"})


def test_unknown_members_are_ignored_whatever_they_hold(client: httpx.Client, topic: str) -> None:
    """[API-1]"""
    producer = '{"id":"p","epoch":1,"index":1,"x":1e999}'
    body = f'{{"x":1e999,"records":[{{"data":1,"y":{"9" * 5000}}}],"config":{{"z":1e999}},"producer":{producer}}}'
    ok(raw(client, f"/v0/topics/{topic}", body), 201)


NOT_JSON = [
    "{", "}", '{"records":[{"data":1}]}x', '{"records":[{"data":1},]}', '{"records":[{"data":NaN}]}',
    '{"records":[{"data":Infinity}]}', '{"records":[{"data":-Infinity}]}', '{"records":[{"data":01}]}',
    '{"records":[{"data":1.}]}', '{"records":[{"data":.5}]}', '{"records":[{"data":+1}]}', '{"records":[{"data":0x1}]}',
    '{"records":[{"data":"\\x"}]}', '{"records":[{"data":"\\ud800"}]}', '{"records":[{"data":"\\udc00x"}]}',
    '{"records":[{"data":"\\ud800\\ud800"}]}', '{"records":[{"data":"a\nb"}]}', '{"records":[{"data":"\x00"}]}',
    '{"records":[{"data":{"\\ud800":1}}]}', '{"records":[{"data":1,"tag":"\\ud800"}]}',
    '{"records":[{"data":1,"meta":{"k":"\\udfff"}}]}', "{'records':[{'data':1}]}", '{"records":[{"data":1}],"x":NaN}',
    '{"records":[{"data":1}],"x":"\\ud800"}', '\ufeff{"records":[{"data":1}]}', '{"records":[{"data":1 2}]}',
    '{"records":[{"data":tru}]}', '{"records":[{"data":1}] /* no */}', '{"records":[{"data":[1,]}]}',
    '{"records":[{"data":{"a":1,}}]}', '{"records":[{"data":' + "[" * 1001 + "]" * 1001 + "}]}",
    '{"records":[{"data":1}],"x":' + "[" * 1001 + "]" * 1001 + "}", " ",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: text[:45].encode("unicode_escape").decode())
@pytest.mark.parametrize("company", ["", '{"data":0},' * 6])
def test_what_is_not_strict_json_is_refused(client: httpx.Client, text: str, company: str) -> None:
    """[API-11]"""
    text = text.replace('"records":[', f'"records":[{company}')
    invalid(raw(client, "/v0/topics/never-made", text.encode("utf-8", "surrogatepass")))
    refused(client.get("/v0/topics/never-made"), 404, "topic_not_found", {"topic": "never-made"})


@pytest.mark.parametrize("company", [b"", b'{"data":0},' * 6])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"])
def test_what_is_not_utf8_is_refused(client: httpx.Client, bad: bytes, company: bytes) -> None:
    """[API-11]: in payloads, in other members, in unknown ones."""
    for body in (
        b'{"records":[%b{"data":"%b"}]}',
        b'{"records":[%b{"data":1,"tag":"%b"}]}',
        b'{"records":[%b{"data":1}],"x":"%b"}',
    ):
        invalid(raw(client, "/v0/topics/never-made", body % (company, bad)))


def test_128_levels_are_accepted(client: httpx.Client, topic: str) -> None:
    """[API-11]: counted from the body's outermost value."""
    deep = "[" * 125 + "]" * 125
    ok(raw(client, f"/v0/topics/{topic}", f'{{"records":[{{"data":{deep}}}]}}'), 201)
    assert f'"data":{deep}' in client.post(f"/v0/topics/{topic}/diff").text
    deep = "[" * 127 + "]" * 127
    ok(raw(client, f"/v0/topics/{topic}", f'{{"records":[{{"data":1}}],"x":{deep}}}'))


# -- the order of checks ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_server() -> Iterator[Running]:
    env = {
        "TOPICS_API_KEYS": "all,w-only:w", "TOPICS_MAX_BATCH_RECORDS": "3", "TOPICS_MAX_RECORD_BYTES": "20",
        "TOPICS_MAX_TOPICS": "2", "TOPICS_MAX_TOTAL_BYTES": "60", "TOPICS_MAX_PRODUCERS": "1",
    }  # fmt: skip
    with running(env=env) as one, one.client(key="all") as client:
        put(client, "reject", discard="reject", cap_records=2, cap_bytes=30)
        ok(client.post("/v0/topics/reject", json={
            "records": [{"data": 1}, {"data": 2}], "producer": {"id": "p", "epoch": 1, "index": 4},
        }))  # fmt: skip
        put(client, "log")
        ok(client.post("/v0/topics/log", json={"records": [{"data": 1}], "idempotency_key": "known"}))
        yield one


def test_checks_of_a_write_come_in_the_order_of_the_contract(client: httpx.Client, strict_server: Running) -> None:
    """[WR-1], from the last check to the first: each fault is added to those behind it and wins."""
    with like(client, strict_server, key="all") as one:
        throttled = {"limit": "max_total_bytes", "max": 60}
        full = {"topic": "reject", "cap_records": 2, "cap_bytes": 30, "head_seq": 2, "earliest_seq": 1}
        big = "x" * 18
        # quota alone; then full before quota; then can-never-fit before full.
        answer = one.post("/v0/topics/log", json={"records": [{"data": big}] * 3})
        refused(answer, 429, "throttled", throttled)
        answer = one.post("/v0/topics/reject", json={"records": [{"data": 1}]})
        refused(answer, 422, "topic_full", full)
        answer = one.post("/v0/topics/reject", json={"records": [{"data": big}] * 2})
        refused(answer, 400, "record_too_large", ANY)
        # the producer before them all
        gap = {"id": "p", "epoch": 1, "index": 6}
        answer = one.post("/v0/topics/reject", json={"records": [{"data": big}] * 3, "producer": gap})
        refused(answer, 409, "producer_gap", {"epoch": 1, "index": 4})
        other = {"id": "q", "epoch": 1, "index": 1}
        answer = one.post("/v0/topics/reject", json={"records": [{"data": big}] * 3, "producer": other})
        refused(answer, 429, "throttled", {"limit": "max_producers", "max": 1})
        older = {"id": "p", "epoch": 1, "index": 3}
        answer = one.post("/v0/topics/reject", json={"records": [{"data": big}] * 3, "producer": older})
        assert ok(answer)["deduped"] is True
        # a known key before full and quota
        answer = one.post("/v0/topics/log", json={"records": [{"data": big}] * 3, "idempotency_key": "known"})
        assert ok(answer)["deduped"] is True
        # topic resolution: 404, name, config, max_topics
        absent = {"records": [{"data": big}] * 3, "producer": gap}
        answer = one.post("/v0/topics/absent", json=absent)
        refused(answer, 429, "throttled", {"limit": "max_topics", "max": 2})
        own = {"type": "queue", "dead_letter": "absent"}
        invalid(one.post("/v0/topics/absent", json={**absent, "config": own}))
        invalid(one.post("/v0/topics/absent", json={**absent, "config": {"dead_letter": "no name"}}))
        answer = one.post("/v0/topics/absent", json={**absent, "config": own, "create": False})
        refused(answer, 404, "topic_not_found", {"topic": "absent"})
        answer = one.post("/v0/topics/-bad", json={**absent, "config": own, "create": False})
        refused(answer, 404, "topic_not_found", {"topic": "-bad"})
        # limits of records before topic resolution, in array order
        large = {"data": "x" * 19}
        answer = one.post("/v0/topics/-bad", json={"records": [{"data": 1}, large], "config": own, "create": False})
        refused(answer, 400, "record_too_large", ANY)
        bad_tag = {"data": 1, "tag": "x" * 257}
        invalid(one.post("/v0/topics/log", json={"records": [bad_tag, large]}))
        answer = one.post("/v0/topics/log", json={"records": [large, bad_tag]})
        refused(answer, 400, "record_too_large", ANY)
        # the key's length before them, too many before the key
        key = "k" * 257
        invalid(one.post("/v0/topics/log", json={"records": [large], "idempotency_key": key}))
        answer = one.post("/v0/topics/log", json={"records": [large] * 4, "idempotency_key": key})
        refused(answer, 400, "batch_too_large", ANY)
        invalid(one.post("/v0/topics/log", json={"records": [], "idempotency_key": key}))


def test_config_on_an_absent_topic_needs_admin_before_anything_of_the_write_is_judged(
    client: httpx.Client, strict_server: Running
) -> None:
    """[WR-1], and open point 9: not on an existing topic; ill-typed input still comes first [API-20]."""
    forbidden = {"topic": "absent"}
    with like(client, strict_server, key="w-only") as one:
        bodies: list[dict[str, object]] = [
            {"records": [{"data": 1}], "config": {}},
            {"records": [], "config": {}},
            {"records": [{"data": 1}] * 4, "config": {}},
            {"records": [{"data": 1}], "config": {"dead_letter": "no name"}},
            {"records": [{"data": 1}], "config": {}, "create": False},
            {"records": [{"data": "x" * 30}], "config": {}, "idempotency_key": "k" * 300},
        ]
        for body in bodies:
            refused(one.post("/v0/topics/absent", json=body), 403, "forbidden", forbidden)
        refused(
            one.post("/v0/topics/-bad", json={"records": [], "config": {}}), 403, "forbidden", {"topic": "-bad"}
        )  # fmt: skip
        ill_typed: list[dict[str, object]] = [
            {"records": [{"data": 1}], "config": 5},
            {"records": [{"data": 1}], "config": {"ttl_ms": "x"}},
            {"records": [{"data": 1}], "config": {}, "create": 1},
            {"records": [{}], "config": {}},
            {"records": [{"data": 1}], "config": {}, "producer": {"id": "p", "epoch": "x", "index": 1}},
        ]
        for body in ill_typed:
            invalid(one.post("/v0/topics/absent", json=body))
        # null counts as absent
        answer = one.post("/v0/topics/absent", json={"records": [{"data": 1}], "config": None})
        refused(answer, 429, "throttled", {"limit": "max_topics", "max": 2})
        assert ok(one.post("/v0/topics/log", json={"records": [{"data": 1}], "config": {"ttl_ms": 1}}))
        answer = one.post("/v0/topics/log", json={"records": [{"data": 1}], "config": {"dead_letter": "no name"}})
        assert answer.status_code == 200


def test_a_write_without_admin_never_configures_a_topic(client: httpx.Client) -> None:
    """[WR-1]: nor when the topic that was there is being deleted meanwhile."""
    fs = GatedFs()
    keys = {"TOPICS_API_KEYS": "all,w-only:w"}
    with running(env=keys, fs=fs, config=real_config()) as slow, like(client, slow, key="all") as one:
        put(one, "t")
        fs.gate.clear()
        deleting = Background(one, lambda own: own.delete("/v0/topics/t"))
        assert fs.waiting.acquire(timeout=WAIT_S)
        body = {"records": [{"data": 1}], "config": {"ttl_ms": 5}}
        with like(client, slow, key="w-only") as writer:
            writing = Background(writer, lambda own: own.post("/v0/topics/t", json=body))
            engine = slow.server.app.engine
            assert engine is not None
            gates = engine.core.gates
            until(slow, lambda: bool(gates["t"]))
            fs.gate.set()
            assert ok(deleting.answer())["deleted"] is True
            refused(writing.answer(), 404, "topic_not_found", {"topic": "t"})
        refused(one.get("/v0/topics/t"), 404, "topic_not_found", {"topic": "t"})


# -- caps and quota --------------------------------------------------------------------------------------------------


def test_a_full_rejecting_topic_refuses_and_appends_nothing(client: httpx.Client, topic: str) -> None:
    """[CAP-3, CAP-4, CAP-5, INV-12]"""
    put(client, topic, discard="reject", cap_records=3, cap_bytes=10)
    write(client, topic, 1, 2)
    full = {"topic": topic, "cap_records": 3, "cap_bytes": 10, "head_seq": 2, "earliest_seq": 1}
    refused(
        client.post(f"/v0/topics/{topic}", json={"records": [{"data": 3}, {"data": 4}]}), 422, "topic_full", full
    )  # fmt: skip
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": "x" * 7}]})
    refused(answer, 422, "topic_full", full)
    assert write(client, topic, 123456)["last_seq"] == 3
    delete(client, topic, before_seq=2)
    full |= {"head_seq": 3, "earliest_seq": 2}
    refused(client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1234}]}), 422, "topic_full", full)
    assert write(client, topic, 123)["last_seq"] == 4
    for records in ([{"data": 1}] * 4, [{"data": "x" * 9}]):
        refused(client.post(f"/v0/topics/{topic}", json={"records": records}), 400, "record_too_large", ANY)
    put(client, topic, discard="reject", cap_records=1)
    assert state(client, topic)["count"] == 3
    full |= {"cap_records": 1, "cap_bytes": 0, "head_seq": 4}
    refused(client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]}), 422, "topic_full", full)
    assert diff(client, topic)["tombstone"] is None


def test_a_rejecting_topic_has_room_again_when_records_expire(
    timed: httpx.Client, clock: ManualClock, topic: str
) -> None:
    """[TTL-3, CAP-1, CAP-5]"""
    put(timed, topic, discard="reject", cap_records=2, ttl_ms=1000)
    write(timed, topic, 1, 2)
    clock.jump(1000)
    full = {"topic": topic, "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    refused(timed.post(f"/v0/topics/{topic}", json={"records": [{"data": 3}]}), 422, "topic_full", full)
    clock.jump(1)
    assert write(timed, topic, 3, 4)["first_seq"] == 3
    assert state(timed, topic)["count"] == 2


def test_discard_old_evicts_the_lowest_live_records(client: httpx.Client, topic: str) -> None:
    """[CAP-1, CAP-2, CAP-6] with the worked example of 01 §9."""
    put(client, topic, cap_records=3)
    for tag in ("a", "b", "c"):
        ok(client.post(f"/v0/topics/{topic}", json={"records": [{"data": tag, "tag": tag}]}))
    delete(client, topic, match="b")
    write(client, topic, "d")
    page = diff(client, topic)
    assert (seqs(page), page["tombstone"]) == ([1, 3, 4], None)
    write(client, topic, "e")
    page = diff(client, topic, from_seq=1)
    assert (seqs(page), page["tombstone"]) == ([3, 4, 5], None)
    assert write(client, topic, *range(6))["head_seq"] == 11
    assert seqs(diff(client, topic, from_seq=8)) == [9, 10, 11]
    now = state(client, topic)
    assert (now["count"], now["bytes"], now["earliest_seq"]) == (3, 3, 9)
    put(client, topic, cap_bytes=2)
    assert state(client, topic)["count"] == 2
    put(client, topic, discard="reject")
    assert write(client, topic, *range(50))["count"] == 50


def test_the_quota_counts_live_bytes_of_all_topics(client: httpx.Client) -> None:
    """[RES-5, RES-9, TOP-14, NAME-5]"""
    throttled = {"limit": "max_total_bytes", "max": 20}
    with running(env={"TOPICS_MAX_TOTAL_BYTES": "20"}) as small, like(client, small) as one:
        write(one, "a", "x" * 8)
        put(one, "b", cap_bytes=12)
        write(one, "b", "x" * 8)
        body = {"records": [{"data": 1}], "disable_backpressure": True}
        refused(one.post("/v0/topics/a", json=body), 429, "throttled", throttled)
        # what this very write would evict is not credited, and a topic made for a refused write stays
        refused(one.post("/v0/topics/b", json={"records": [{"data": 1}]}), 429, "throttled", throttled)
        refused(one.post("/v0/topics/c", json={"records": [{"data": 1}]}), 429, "throttled", throttled)
        assert state(one, "c")["head_seq"] == 0
        delete(one, "a", before_seq=2)
        assert write(one, "c", "x" * 8)["last_seq"] == 1
        ok(one.delete("/v0/topics/c"))
        assert write(one, "a", "x" * 8)["last_seq"] == 2


def test_expired_bytes_of_the_topic_do_not_count_against_the_quota(client: httpx.Client) -> None:
    """[RES-5, WR-1]: retention comes before the quota."""
    clock = ManualClock()
    with running(env={"TOPICS_MAX_TOTAL_BYTES": "20"}, clock=clock) as small, like(client, small) as one:
        put(one, "a", ttl_ms=1000)
        write(one, "a", "x" * 18)
        clock.jump(1001)
        assert write(one, "a", "y" * 18)["last_seq"] == 2


def test_limits_hold_under_concurrency(client: httpx.Client) -> None:
    """[RES-3]: whatever the interleaving, no cap is exceeded and none is left unused."""
    env = {"TOPICS_MAX_TOPICS": "5", "TOPICS_MAX_TOTAL_BYTES": "50"}
    with running(env=env) as small, like(client, small) as one:
        made = [Background(one, partial(httpx.Client.put, url=f"/v0/topics/t{at}")) for at in range(12)]
        statuses = [asked.answer().status_code for asked in made]
        assert sorted(statuses) == [201] * 5 + [429] * 7
        names = [f"t{at}" for at, status in enumerate(statuses) if status == 201]
        body = {"records": [{"data": "x" * 8}]}
        asked = [Background(one, partial(httpx.Client.post, url=f"/v0/topics/{name}", json=body)) for name in names * 3]
        assert sorted(each.answer().status_code for each in asked) == [200] * 5 + [429] * 10


# -- bodies ----------------------------------------------------------------------------------------------------------


def test_a_gzipped_write(client: httpx.Client, topic: str) -> None:
    """[API-16]: also in several members, and in capital letters."""
    body = json.dumps({"records": [{"data": "x" * 5000}]}).encode()
    for packed in (gzip.compress(body), gzip.compress(body[:100]) + gzip.compress(body[100:])):
        for name in ("gzip", "GZIP"):
            answer = raw(client, f"/v0/topics/{topic}", packed, **{"content-encoding": name})
            assert answer.status_code in (200, 201), answer.text
    answer = raw(client, f"/v0/topics/{topic}", body, **{"content-encoding": "identity"})
    assert ok(answer)["last_seq"] == 5


EMPTY = gzip.compress(b"{}", mtime=0)


@pytest.mark.parametrize("body", [b"no gzip", b"", EMPTY[:-3], EMPTY + b"junk"])
def test_corrupt_gzip_is_refused(client: httpx.Client, body: bytes) -> None:
    """[API-16]"""
    invalid(raw(client, "/v0/topics/never-made", body, **{"content-encoding": "gzip"}))


@pytest.mark.parametrize("media", [
    "application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json ;charset=latin-1",
    "application/json; x=cloudevents-batch",
])  # fmt: skip
def test_the_media_type_is_matched_without_parameters_and_case(client: httpx.Client, topic: str, media: str) -> None:
    """[API-9], open point 11."""
    answer = client.post(f"/v0/topics/{topic}", content=b'{"records":[{"data":1}]}', headers={"content-type": media})
    assert ok(answer, 201)["last_seq"] == 1


def test_a_large_write_is_answered_like_a_small_one(client: httpx.Client, topic: str) -> None:
    """[SEQ-2, API-11]: bodies above 1 MiB are decoded in pieces; their faults are told the same way."""
    values = ["x" * 1000 for _ in range(3000)]
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values]})
    told = ok(answer, 201)
    assert told["seqs"] == list(range(1, 3001))
    assert compact(answer)
    records = [{"data": value} for value in values]
    invalid(client.post(f"/v0/topics/{topic}", json={"records": [*records, {"tag": "no data"}]}))
    assert state(client, topic)["head_seq"] == 3000


FILLING = json.dumps({"data": {"items": [{"data": "},{"}, {"data": 2}], "text": "x" * 900}, "tag": "t"})
"""1,200 of them are more than 1 MiB."""


def large_body(*, last: str = FILLING, before: str = "", after: str = "") -> bytes:
    return f'{{{before}"records":[{(FILLING + " , ") * 1200}{last}]{after}}}'.encode()


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_records_of_a_large_write_are_stored_as_they_came(client: httpx.Client, topic: str, durability: str) -> None:
    """[REC-1, WR-6]: with members of the write in front of them and behind them, payloads that look like records."""
    last = '{"meta":{"m":[1]},"node":"own","data":[ 1 , "\\u0041" ]}'
    before = f'"config":{{"durability":"{durability}"}} , '
    body = large_body(last=last, before=before, after=', "node":"given", "idempotency_key":"once"')
    assert ok(raw(client, f"/v0/topics/{topic}", body), 201)["last_seq"] == 1201
    assert ok(raw(client, f"/v0/topics/{topic}", body))["deduped"] is True
    page = diff(client, topic, from_seq=1198, include_tags=True)
    assert [one["$seq"] for one in page["records"]] == [1199, 1200, 1201]
    first, *_, final = page["records"]
    assert first["data"] == json.loads(FILLING)["data"]
    assert (first["$tag"], first["$node"]) == ("t", "given")
    assert (final["data"], final["meta"], final["$node"]) == ([1, "A"], {"m": [1]}, "own")
    assert delete(client, topic, match="t")["deleted"] == 1200


def test_a_large_write_is_the_records_it_names_however_that_is_spelt(client: httpx.Client, topic: str) -> None:
    """[API-11]: an array of the same name in another member is none of its records."""
    mine = '{"\\u0072ecords":[{"data":1},{"data":2}],"x":{"records":[%s]}}'
    put(client, topic)
    for count in (1, 1200):
        body = mine % ",".join([FILLING] * count)
        assert ok(raw(client, f"/v0/topics/{topic}", body.encode()))["count"] == 2
    assert [one["data"] for one in diff(client, topic)["records"]] == [1, 2, 1, 2]


FAULTS = {
    "no data": {"last": '{"tag":"x"}'},
    "a tag that is a number": {"last": '{"data":1,"tag":5}'},
    "a tag that is too long": {"last": json.dumps({"data": 1, "tag": "x" * 5000})},
    "a meta that is no object": {"last": '{"data":1,"meta":[1]}'},
    "a record that is too large": {"last": json.dumps({"data": "x" * (1 << 20)})},
    "no JSON in a record": {"last": '{"data":nope}'},
    "half a record": {"last": '{"data":'},
    "a string that does not end": {"last": '{"data":"x}'},
    "an unpaired surrogate": {"last": '{"data":"\\ud800"}'},
    "a comma at the end": {"last": FILLING + ","},
    "text behind the end": {"after": '} , {"x":1'},
    "records that come again": {"after": ',"records":[]'},
    "records that come again, spelt otherwise": {"after": ',"rec\\u006frds":[]'},
    "a node of another type behind it": {"after": ',"node":5'},
    "a node of another type in front": {"before": '"node":5,'},
    "an unfit producer": {"after": ',"producer":{"id":""}'},
    "a key that is too long": {"after": json.dumps({"idempotency_key": "k" * 300})[1:-1].join((",", ""))},
    "an unfit configuration": {"before": '"config":{"ttl_ms":-1},'},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_a_large_write_is_told_in_the_words_of_one_call(
    client: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, fault: dict[str, str]
) -> None:
    """[WR-1, API-11]: wherever it is; nothing is written."""
    body = large_body(**fault)
    answer = raw(client, f"/v0/topics/{topic}", body)
    monkeypatch.setattr(handlers, "ASIDE_BYTES", 1 << 30)
    at_once = raw(client, f"/v0/topics/{topic}", body)
    assert answer.status_code == at_once.status_code == 400
    assert answer.json() == at_once.json()
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", ANY)


def test_too_many_records_in_a_large_write_are_counted(client: httpx.Client, topic: str) -> None:
    """[LIM-1]: as in a small one."""
    body = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 150_000)
    detail = refused(raw(client, f"/v0/topics/{topic}", body), 400, "batch_too_large", ANY)
    assert "150000" in str(detail)
