"""Commands over a WebSocket: publish, ping, and what is none (03 §8.2) [WS-12, WS-14, WS-18, WS-19]."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.expect import diff, seqs, state, write
from tests.api.kit import Running, running
from tests.api.rawclient import until
from tests.api.wskit import Ws, command, is_all_let_go, is_held_up, text
from tests.security.kit import GateFs
from topics.server import commands
from topics.server.http1 import READ_BYTES

MIB = 1 << 20
ACK = {
    "op", "request_id", "topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped",
    "performance",
}  # fmt: skip


@pytest.fixture
def ws(server: Running) -> Iterator[Ws]:
    with Ws(server) as one:
        yield one
    is_all_let_go(server)


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as one:
        yield one


def publish(topic: str, *values: object, **more: object) -> bytes:
    """A frame of it."""
    return command("publish", topic=topic, records=[{"data": value} for value in values], **more)


def refused(told: dict[str, Any], code: str, request_id: object) -> str:
    """The message of an error reply of exactly this shape [WS-18]."""
    assert told.keys() == {"op", "request_id", "code", "message"}
    assert (told["op"], told["code"], told["request_id"]) == ("error", code, request_id), told
    assert isinstance(told["message"], str)
    assert told["message"]
    return told["message"]


# -- request ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    ["7", '"p-1"', "null", "true", "[]", '{"a":[1,{"b":null}]}', "12345678901234567890123", "1.50", '"\\u00fc\\n"',
     "1e400", "[" * 100 + "]" * 100],
)  # fmt: skip
def test_any_json_value_comes_back_as_it_was_sent(ws: Ws, id: str) -> None:
    """03 §8.2 Not even a digit or an escape is written otherwise."""
    assert (
        ws.send(text(f'{{"request_id":{id},"op":"ping"}}')).message().decode() == f'{{"op":"pong","request_id":{id}}}'
    )


def test_white_space_of_an_id_does_not_come_back(ws: Ws) -> None:
    """[API-14]"""
    ws.send(text('{"op": "ping", "request_id": [ 1,\n {"a" :\t"b c"} ] }'))
    assert ws.message() == b'{"op":"pong","request_id":[1,{"a":"b c"}]}'


def test_without_an_id_it_is_null(ws: Ws) -> None:
    assert ws.ask("ping") == {"op": "pong", "request_id": None}


# -- publish ---------------------------------------------------------------------------------------------------------


def test_a_publish_is_acknowledged_with_what_a_write_answers(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-12], 03 §8.3"""
    told = ws.ask(
        "publish", request_id="p-1", topic=topic, node="dock-7",
        records=[{"data": {"kg": 8}}, {"data": None, "node": "dock-8", "tag": "a", "meta": {"b": 1}}],
    )  # fmt: skip
    assert told.keys() == ACK
    performance = told.pop("performance")
    assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert told == {
        "op": "ack", "request_id": "p-1", "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2],
        "head_seq": 2, "count": 2, "created": True, "deduped": False,
    }  # fmt: skip
    assert ws.ask("publish", topic=topic, records=[{"data": 3}])["created"] is False
    records = diff(http, topic, include_tags=True)["records"]
    assert [record.pop("$ts") > 0 for record in records] == [True] * 3
    assert records == [
        {"$seq": 1, "$node": "dock-7", "data": {"kg": 8}},
        {"$seq": 2, "$node": "dock-8", "$tag": "a", "data": None, "meta": {"b": 1}},
        {"$seq": 3, "data": 3},
    ]


def test_without_seqs_the_member_is_null(ws: Ws, topic: str) -> None:
    """03 §8.3, unlike over HTTP, where it is left out"""
    told = ws.ask("publish", topic=topic, records=[{"data": 1}], return_seqs=False)
    assert told.keys() == ACK
    assert (told["seqs"], told["first_seq"]) == (None, 1)


def test_a_retry_with_the_same_key_appends_nothing(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[IDM-2, WR-4] It is the same key as over HTTP."""
    first = ws.ask("publish", topic=topic, records=[{"data": 1}], idempotency_key="k")
    again = ws.ask("publish", topic=topic, records=[{"data": 1}], idempotency_key="k")
    assert (first["deduped"], again["deduped"], again["seqs"]) == (False, True, [1])
    assert again["performance"].keys() == {"server_total_ms"}
    assert write(http, topic, 1, idempotency_key="k")["deduped"] is True
    assert state(http, topic)["head_seq"] == 1


def test_a_producer_writes_once_and_in_order(ws: Ws, topic: str) -> None:
    """[A-4]"""

    def send(index: int) -> Any:
        return ws.ask("publish", topic=topic, records=[{"data": 1}], producer={"id": "p", "epoch": 1, "index": index})

    assert send(0)["seqs"] == [1]
    assert send(1)["seqs"] == [2]
    assert send(1)["deduped"] is True
    older = send(0)
    assert (older["first_seq"], older["seqs"], older["count"], older["deduped"]) == (None, None, 0, True)
    assert refused(send(5), "producer_gap", None)


def test_a_configuration_is_used_if_the_topic_is_made(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WR-6]"""
    for ttl_ms in (60_000, 70_000):
        ws.ask("publish", topic=topic, records=[{"data": 1}], config={"ttl_ms": ttl_ms})
    assert state(http, topic)["config"]["ttl_ms"] == 60_000


def test_payloads_are_kept_byte_for_byte(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[REC-12]"""
    data = '{"n":12345678901234567890123,"f":1.10,"s":"\\u00e9\\/","s":"again"}'
    ws.send(text(f'{{"op":"publish","topic":"{topic}","records":[{{"data":{data}}}]}}'))
    assert ws.reply()["op"] == "ack"
    assert f'"data":{data}' in http.post(f"/v0/topics/{topic}/diff").text


# -- in order --------------------------------------------------------------------------------------------------------


def test_commands_are_answered_in_order_whatever_they_are(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-19] Also what creates a topic, which takes longer than what comes behind it."""
    write(http, f"{topic}.there", 0)
    sent = [
        publish(f"{topic}.new", 1, request_id=0), publish(f"{topic}.there", 1, request_id=1),
        command("ping", request_id=2), text("rubbish"), publish(f"{topic}.newer", 2, request_id=4),
        publish(f"{topic}.new", 3, request_id=5), publish("no name at all", 1, request_id=6),
        command("ping", request_id=7),
    ]  # fmt: skip
    ws.send(b"".join(sent))
    told = [ws.reply() for _ in sent]
    assert [one["request_id"] for one in told] == [0, 1, 2, None, 4, 5, 6, 7]
    assert [one["op"] for one in told] == ["ack", "ack", "pong", "error", "ack", "ack", "error", "pong"]


def test_several_publishes_wait_for_their_sync_together() -> None:
    """[WS-19] None is answered before it is synced, and then all are, in order."""
    fs = GateFs()
    with running(fs=fs) as server, server.client() as http, Ws(server) as ws:
        http.put("/v0/topics/slow", json={"durability": "fsync"}).raise_for_status()
        fs.gate.clear()
        ws.send(b"".join(publish("slow", n, request_id=n) for n in range(50)) + command("ping", request_id=50))
        until(server, lambda: len(ws.served._commands._line) == 51)
        fs.gate.set()
        assert [ws.reply()["request_id"] for _ in range(51)] == list(range(51))
        assert seqs(diff(http, "slow", limit=1000)) == list(range(1, 51))
        assert [one["data"] for one in diff(http, "slow", limit=1000)["records"]] == list(range(50))


def test_no_more_commands_are_read_while_many_wait_for_their_answer() -> None:
    """[WS-19, RES-3] And the socket is not read without end either."""
    fs = GateFs()
    with running(fs=fs) as server, server.client() as http, Ws(server) as ws:
        http.put("/v0/topics/slow", json={"durability": "fsync"}).raise_for_status()
        fs.gate.clear()
        total = commands.LINE * 4
        ws.send(b"".join(publish("slow", n, request_id=n) for n in range(total)))
        until(server, lambda: len(ws.served._commands._line) == commands.LINE)
        assert server.on_loop(lambda: len(ws.served._commands._line)) == commands.LINE
        fs.gate.set()
        assert [ws.reply()["request_id"] for _ in range(total)] == list(range(total))
        assert diff(http, "slow", limit=1)["head_seq"] == total


def test_nor_while_those_that_wait_are_large() -> None:
    """[RES-3] 4 MiB of commands and the one that crossed it."""
    fs = GateFs()
    with running(fs=fs) as server, server.client() as http, Ws(server) as ws:
        http.put("/v0/topics/slow", json={"durability": "fsync"}).raise_for_status()
        fs.gate.clear()
        sender = threading.Thread(target=ws.send, args=(publish("slow", "x" * 900_000) * 12,))
        sender.start()
        until(server, lambda: is_held_up(ws))
        assert server.on_loop(lambda: len(ws.served._commands._line)) == 5
        fs.gate.set()
        assert [ws.reply()["first_seq"] for _ in range(12)] == list(range(1, 13))
        sender.join()


def test_a_connection_with_many_commands_at_hand_takes_its_turns_with_the_others(ws: Ws, server: Running) -> None:
    """[P-10] What has come in one piece is not executed in one go."""

    def left_of(data: bytes) -> int:
        ws.served.data_received(data)
        return len(ws.served._input)

    many = command("ping") * 1000
    assert len(many) * 0.9 < server.on_loop(lambda: left_of(many)) < len(many)
    for _ in range(1000):
        assert ws.reply()["op"] == "pong"


def test_after_a_read_that_was_full_the_others_have_their_turn(ws: Ws, server: Running, topic: str) -> None:
    """[P-10] The transport would read on as long as it finds something."""
    frame = publish(topic, *["x" * 1000] * 100)

    def is_resting() -> bool:
        ws.served.data_received(frame[:READ_BYTES])
        return ws.served._is_paused

    assert server.on_loop(is_resting)
    until(server, lambda: not ws.served._is_paused)
    assert ws.send(frame[READ_BYTES:]).reply()["count"] == 100


def test_a_publish_that_waits_for_its_topic_is_not_overtaken() -> None:
    """[WS-19] Staged in order, also in different topics."""
    fs = GateFs()
    with running(fs=fs) as server, server.client() as http, Ws(server) as ws:
        write(http, "there", 0)
        fs.gate.clear()
        ws.send(publish("new", 1, request_id=1) + publish("there", 1, request_id=2))
        until(server, lambda: ws.served._commands._is_busy)
        assert state(http, "there")["head_seq"] == 1
        fs.gate.set()
        assert [ws.reply()["request_id"] for _ in range(2)] == [1, 2]
        assert state(http, "there")["head_seq"] == 2


def test_a_command_that_is_being_decoded_counts_as_buffered_though_its_client_has_gone(
    server: Running, topic: str
) -> None:
    """[RES-3] Else coming and going would make room that is not there."""
    core = server.server.app.engine.core  # type: ignore[union-attr]
    gate = threading.Event()

    def until_the_gate_opens() -> Iterator[None]:
        while not gate.is_set():
            yield

    server.on_loop(lambda: core.owner.sliced(until_the_gate_opens(), lambda error: None))
    frame = publish(topic, *["x" * 100_000] * 20)
    with Ws(server) as ws:
        ws.send(frame)
        until(server, lambda: server.server.app.buffered.used > 2_000_000)
    until(server, lambda: not server.server.app.streams)
    assert server.on_loop(lambda: server.server.app.buffered.used) > 2_000_000
    gate.set()
    is_all_let_go(server)


def test_a_large_publish_is_not_overtaken(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-19, P-10] It is decoded aside; what is behind it waits."""
    write(http, topic, 0)
    large = publish(topic, *["x" * 100_000] * 30, request_id=1)
    ws.send(publish(topic, 1, request_id=0) + large + publish(topic, 2, request_id=2) + command("ping", request_id=3))
    told = [ws.reply() for _ in range(4)]
    assert [one["request_id"] for one in told] == [0, 1, 2, 3]
    assert [one["first_seq"] for one in told[:3]] == [2, 3, 33]


def test_a_large_message_that_is_no_command_is_told_so_and_the_connection_stays(ws: Ws) -> None:
    """[WS-14]"""
    refused(ws.send(text(b'{"op":"ping","x":"' + b"x" * 2 * MIB)).reply(), "invalid_json", None)
    assert ws.ask("ping")["op"] == "pong"


def test_a_message_that_is_on_its_way_counts_as_buffered(server: Running, ws: Ws, topic: str) -> None:
    """[RES-3]"""
    frame = publish(topic, *["x" * 1000] * 1000)
    ws.send(frame[:500_000])
    until(server, lambda: 490_000 < server.server.app.buffered.used <= 500_000)
    ws.send(frame[500_000:])
    assert ws.reply()["count"] == 1000
    until(server, lambda: server.server.app.buffered.used == 0)


def test_what_finds_no_room_is_told_and_the_connection_closed() -> None:
    """[RES-3], 09 §5 As a body is: refused, not kept."""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "100000"}) as server:
        with Ws(server) as ws:
            ws.send(publish("t", "x" * 200_000)[:150_000])
            told = ws.reply()
            assert told.keys() == {"op", "code", "message"}
            assert (told["op"], told["code"]) == ("error", "throttled")
            assert ws.closed()[0] == 1013
        is_all_let_go(server)


# -- what is no command ----------------------------------------------------------------------------------------------

RECORDS = '"records":[{"data":1}]'
NO_COMMANDS = [
    "", "x", "null", "1", '"ping"', "[]", '[{"op":"ping"}]', "{", '{"op":"ping"', '{"op":"ping"}}', '{"op":"ping"} x',
    "{}", '{"op":null}', '{"op":1}', '{"op":"PING"}', '{"op":"pong"}', '{"request_id":1}', '{"op":"ack"}',
    '{"op":"ping","request_id":NaN}', '{"op":"ping","request_id":"\\ud800"}', '{"op":"ping","request_id":01}',
    '{"op":"publish",' + RECORDS + "}", '{"op":"publish","topic":null,' + RECORDS + "}",
    '{"op":"publish","topic":1,' + RECORDS + "}", '{"op":"publish","topic":"t"}',
    '{"op":"publish","topic":"t","records":null}', '{"op":"publish","topic":"t","records":{}}',
    '{"op":"publish","topic":"t","records":[1]}', '{"op":"publish","topic":"t","records":[{}]}',
    '{"op":"publish","topic":"t","records":[{"tag":"a"}]}', '{"op":"publish","topic":"t","records":[{"data":NaN}]}',
    '{"op":"publish","topic":"t","records":[{"data":"\\ud800"}]}',
    '{"op":"publish","topic":"t","records":[{"data":1,"tag":1}]}',
    '{"op":"publish","topic":"t","records":[{"data":1,"node":[]}]}',
    '{"op":"publish","topic":"t","records":[{"data":1,"meta":1}]}',
    '{"op":"publish","topic":"t","records":[{"data":1,"meta":[]}]}',
    '{"op":"publish","topic":"t","records":[{"data":1},{"data":2,"meta":"x"}]}',
    *(
        '{"op":"publish","topic":"t",' + RECORDS + f',"{name}":{value}}}'
        for name, value in [
            ("node", "1"), ("idempotency_key", "1"), ("producer", "[]"), ("producer", '{"id":"p"}'),
            ("producer", '{"id":"p","epoch":-1,"index":0}'), ("producer", '{"id":"p","epoch":0,"index":1.0}'),
            ("producer", '{"id":"p","epoch":0,"index":18446744073709551616}'), ("create", '"yes"'), ("create", "1"),
            ("config", "[]"), ("config", '{"ttl_ms":"1"}'), ("config", '{"ttl_ms":-1}'), ("config", '{"type":1}'),
            ("disable_backpressure", "null"), ("disable_backpressure", "0"), ("return_seqs", "null"),
            ("return_seqs", '"no"'),
        ]
    ),
    '{"op":"publish","topic":"t","records":[{"data":' + "[" * 1001 + "]" * 1001 + "}]}",
    '{"op":"ping","request_id":' + "[" * 5000 + "]" * 5000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("message", NO_COMMANDS)
def test_what_is_no_command_of_the_right_types_is_invalid_json_with_a_null_id(ws: Ws, message: str) -> None:
    """[WS-14, API-11, API-12, API-13] The connection stays, and the id is not looked for."""
    if message.startswith('{"op"') and "request_id" not in message:
        message = '{"request_id":5,' + message[1:]
    refused(ws.send(text(message)).reply(), "invalid_json", None)
    assert ws.ask("ping", request_id=1) == {"op": "pong", "request_id": 1}


def test_unknown_members_are_ignored(ws: Ws, topic: str) -> None:
    """[API-1]"""
    told = ws.ask("publish", topic=topic, records=[{"data": 1, "colour": "red"}], why=["not"])
    assert told["op"] == "ack"
    assert ws.ask("ping", of="what")["op"] == "pong"


def test_null_stands_for_absent_where_it_may(ws: Ws, topic: str) -> None:
    """[API-13]"""
    told = ws.ask(
        "publish", topic=topic, node=None, idempotency_key=None, producer=None, create=None, config=None,
        records=[{"data": 1, "tag": None, "node": None, "meta": None}],
    )  # fmt: skip
    assert told["op"] == "ack"


# -- what is refused later -------------------------------------------------------------------------------------------

LATER: list[tuple[dict[str, object], str]] = [
    ({"records": []}, "invalid_request"),
    ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
    ({"records": [{"data": "x" * MIB}]}, "record_too_large"),
    ({"records": [{"data": 1, "tag": "x" * 257}]}, "invalid_request"),
    ({"records": [{"data": 1, "meta": {str(n): n for n in range(65)}}]}, "invalid_request"),
    ({"node": "x" * 129}, "invalid_request"),
    ({"idempotency_key": ""}, "invalid_request"),
    ({"idempotency_key": "x" * 257}, "invalid_request"),
    ({"idempotency_key": "k", "producer": {"id": "p", "epoch": 1, "index": 1}}, "invalid_request"),
    ({"producer": {"id": "x" * 129, "epoch": 1, "index": 1}}, "invalid_request"),
    ({"topic": "not/a name"}, "invalid_request"),
    ({"topic": ""}, "invalid_request"),
    ({"topic": "$mine"}, "invalid_request"),
    ({"topic": "$loss"}, "forbidden"),
    ({"topic": "never-made", "create": False}, "topic_not_found"),
    ({"topic": "never-made", "config": {"auto_create": False}}, "topic_not_found"),
]


@pytest.mark.parametrize(("more", "code"), LATER)
def test_what_is_decided_later_has_the_code_of_a_write_and_the_id(ws: Ws, more: dict[str, Any], code: str) -> None:
    """[WS-12, WS-14, WS-18]"""
    asked = {"topic": "t", "records": [{"data": 1}], "request_id": [7], **more}
    refused(ws.ask("publish", **asked), code, [7])
    assert ws.ask("ping")["op"] == "pong"


@pytest.mark.parametrize(("more", "code"), [one for one in LATER if one[0].get("topic") != ""])
def test_over_http_it_has_the_same_code(http: httpx.Client, more: dict[str, Any], code: str) -> None:
    """[WS-12] One way to check a write."""
    body = {"records": [{"data": 1}], **more}
    name = str(body.pop("topic", "t"))
    answer = http.post(f"/v0/topics/{name.replace('/', '%2F')}", content=msgspec.json.encode(body), headers=JSON)
    assert answer.json()["error"]["code"] == code


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("record", "more"),
    [
        ('{"data":1}', ""), ('{"data":1,"meta":{"a":1},"tag":"t","node":"n"}', ',"node":"m","return_seqs":false'),
        ('{"data":1,"meta":1}', ""), ('{"tag":"t"}', ""), ('{"data":NaN}', ""), ('{"data":1,"tag":1}', ""),
        ('{"data":1,"tag":"' + "x" * 257 + '"}', ""), ('{"data":"' + "x" * MIB + '"}', ""),
        ('{"data":1}', ',"create":1'),
        ('{"data":1}', ',"producer":{"id":"p","epoch":-1,"index":0}'), ('{"data":1}', ',"config":{"ttl_ms":"x"}'),
        ('{"data":1}', ',"config":{"ttl_ms":5}'), ('{"data":1}', ',"idempotency_key":""'), ('{"data":1}', "}"),
        ('{"data":1}', ',"create":false,"topic":"never-made"'), ('{"data":1}', ',"topic":"$loss"'),
    ],
)  # fmt: skip
def test_a_large_publish_is_judged_as_a_small_one_is(ws: Ws, topic: str, record: str, more: str) -> None:
    """[WS-12, WS-14, P-10] It is decoded in pieces, or, if anything is out of the ordinary, at once."""

    def judged(name: str, *records: str) -> tuple[Any, ...]:
        asked = f'{{"request_id":[7],"op":"publish","topic":"{name}","records":[{",".join(records)}]{more}}}'
        told = ws.send(text(asked)).reply()
        return told["op"], told["request_id"], told.get("code"), told.get("created"), told.get("seqs") is None

    filling = ['{"data":"%s"}' % ("x" * 50_000)] * 25
    assert judged(f"{topic}.large", *filling, record, *filling) == judged(f"{topic}.small", record)
    assert ws.ask("ping")["op"] == "pong"


def test_a_large_publish_keeps_every_byte(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[REC-12, P-10] Cut wherever it may be, also inside of what looks like records."""
    values = [f'{{"n":{n}, "s":"\\u00e9}},{{\\"data\\":{n}","a":[{{"data":1}},{{"data":[]}}]}}' for n in range(10_000)]
    records = ",".join(f'{{"data":{value},"tag":"{n % 7}"}}' for n, value in enumerate(values))
    told = ws.send(text(f'{{"op":"publish","topic":"{topic}","records":[{records}]}}')).reply()
    assert (told["count"], told["last_seq"]) == (10_000, 10_000)
    at = 0
    while at < 10_000:
        page = http.post(f"/v0/topics/{topic}/diff", json={"from_seq": at, "limit": 1000}).text
        for value in values[at : at + 1000]:
            assert f'"data":{value.replace(", ", ",", 1)}' in page
        at += 1000


def test_a_full_topic_refuses(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-18, CAP-3]"""
    http.put(f"/v0/topics/{topic}", json={"cap_records": 1, "discard": "reject"}).raise_for_status()
    assert ws.ask("publish", topic=topic, records=[{"data": 1}])["op"] == "ack"
    refused(ws.ask("publish", topic=topic, records=[{"data": 1}], request_id=2), "topic_full", 2)


# -- rights ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": "boss,reader:read,writer:write:plant3:,maker:write+admin"}) as one:
        yield one


def asked_with(guarded: Running, key: str, **members: Any) -> Any:
    with Ws(guarded, f"Authorization: Bearer {key}") as ws:
        return ws.ask("publish", **{"request_id": 1, "records": [{"data": 1}], **members})


def test_publish_needs_the_scope_write_and_the_prefix(guarded: Running) -> None:
    """[WS-2, WS-12, PFX-2]"""
    assert asked_with(guarded, "boss", topic="plant4:a")["op"] == "ack"
    assert asked_with(guarded, "writer", topic="plant3:a")["op"] == "ack"
    refused(asked_with(guarded, "reader", topic="plant3:a"), "forbidden", 1)
    refused(asked_with(guarded, "writer", topic="plant4:a"), "forbidden", 1)
    refused(asked_with(guarded, "writer", topic="plant3"), "forbidden", 1)


def test_a_configuration_needs_the_scope_admin_whether_or_not_the_topic_exists(guarded: Running) -> None:
    """[WS-12] Over HTTP only if it is absent."""
    for name in ("plant3:new", "plant3:a"):
        refused(asked_with(guarded, "writer", topic=name, config={}), "forbidden", 1)
        assert asked_with(guarded, "maker", topic=name, config={})["op"] == "ack"
        assert asked_with(guarded, "writer", topic=name, config=None)["op"] == "ack"


def test_types_come_before_rights(guarded: Running) -> None:
    """[API-20]"""
    told = asked_with(guarded, "reader", topic="plant3:a", records=[{}])
    refused(told, "invalid_json", None)


def test_a_key_without_scopes_for_it_may_ping(guarded: Running) -> None:
    """[WS-2]"""
    with Ws(guarded, "Authorization: Bearer reader") as ws:
        assert ws.ask("ping", request_id=0) == {"op": "pong", "request_id": 0}
