"""Subscriptions over a WebSocket: what is delivered, when, and when no more (03 §8) [WS-5, WS-8 … WS-17]."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.expect import delete, put, tagged, write
from tests.api.kit import WAIT_S, Running, running
from tests.api.rawclient import until
from tests.api.wskit import CLOSE, LAST, Ws, command, framed, is_all_let_go, is_held_up, passes, text
from topics.server import websocket
from topics.testing import ManualClock

U64_MAX = 2**64 - 1


@pytest.fixture
def ws(server: Running) -> Iterator[Ws]:
    with Ws(server) as one:
        yield one
    is_all_let_go(server)
    server.on_loop(lambda: nobody_follows(server))


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as one:
        yield one


def nobody_follows(server: Running) -> None:
    """What is followed ends with the connection [WS-8]."""
    engine = server.server.app.engine
    assert engine is not None
    assert not [topic.name for topic in engine.core.topics.values() if topic.followers]


def subscribe(ws: Ws, topic: str, **more: Any) -> dict[str, Any]:
    """Subscribe to one topic; what the reply says of it."""
    told = ws.ask("subscribe", topic=topic, request_id="s", **more)
    assert told.keys() == {"op", "request_id", "topics"}, told
    assert (told["op"], told["request_id"], list(told["topics"])) == ("subscribed", "s", [topic])
    found: dict[str, Any] = told["topics"][topic]
    assert found.keys() == {"from_seq", "head_seq", "earliest_seq"}
    return found


def record(ws: Ws) -> dict[str, Any]:
    """The next frame, which has records."""
    told: dict[str, Any] = ws.reply()
    assert told.keys() == {"op", "topic", "from_seq", "to_seq", "head_seq", "records"}, told
    assert told["op"] == "record"
    assert told["records"]
    return told


def seqs(told: dict[str, Any]) -> list[int]:
    return [one["$seq"] for one in told["records"]]


def caught_up(ws: Ws, topic: str, head: int) -> None:
    assert ws.reply() == {"op": "caught_up", "topic": topic, "head_seq": head}


def is_quiet(ws: Ws) -> None:
    """Nothing was sent that was not read: the answer to a ping is the next thing."""
    assert ws.ask("ping", request_id="quiet?") == {"op": "pong", "request_id": "quiet?"}


def all_records(ws: Ws, topic: str, head: int) -> list[int]:
    """Seqs of one topic up to its head, frame after frame without a gap."""
    found: list[int] = []
    while True:
        told = ws.reply()
        if told["op"] == "caught_up":
            assert told == {"op": "caught_up", "topic": topic, "head_seq": told["head_seq"]}
            if told["head_seq"] == head:
                return found
        else:
            assert told["op"] == "record"
            found += seqs(told)


# -- subscribing -----------------------------------------------------------------------------------------------------


def test_a_subscription_gets_what_is_there_and_then_what_comes(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9, WS-11, WS-15, FRM-1, FRM-4]"""
    write(http, topic, {"kg": 1}, 2)
    assert subscribe(ws, topic) == {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}
    told = record(ws)
    assert [one.pop("$ts") > 0 for one in told["records"]] == [True, True]
    assert told == {
        "op": "record", "topic": topic, "from_seq": 0, "to_seq": 2, "head_seq": 2,
        "records": [{"$seq": 1, "data": {"kg": 1}}, {"$seq": 2, "data": 2}],
    }  # fmt: skip
    caught_up(ws, topic, 2)
    for seq in (3, 4):
        write(http, topic, seq)
        told = record(ws)
        assert (told["from_seq"], told["to_seq"], told["head_seq"], seqs(told)) == (seq - 1, seq, seq, [seq])
        caught_up(ws, topic, seq)
    is_quiet(ws)


def test_an_empty_topic_is_caught_up_once(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[FRM-4]"""
    put(http, topic)
    assert subscribe(ws, topic) == {"from_seq": 0, "head_seq": 0, "earliest_seq": 1}
    caught_up(ws, topic, 0)
    is_quiet(ws)


def test_from_seq_is_the_last_one_the_client_has(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-8, WS-9]"""
    write(http, topic, *range(5))
    assert subscribe(ws, topic, from_seq=3)["from_seq"] == 3
    told = record(ws)
    assert (told["from_seq"], seqs(told)) == (3, [4, 5])
    caught_up(ws, topic, 5)


def test_tail_begins_at_the_head_and_from_seq_is_ignored(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9]"""
    write(http, topic, 1, 2)
    assert subscribe(ws, topic, from_seq=1, tail=True) == {"from_seq": 2, "head_seq": 2, "earliest_seq": 1}
    caught_up(ws, topic, 2)
    write(http, topic, 3)
    assert seqs(record(ws)) == [3]
    caught_up(ws, topic, 3)


def test_several_topics_with_a_start_each_and_one_beside_them(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9] `topic` adds a name unless `topics` has it already."""
    names = [f"{topic}.{n}" for n in range(4)]
    for name in names:
        write(http, name, 1, 2, 3)
    told = ws.ask(
        "subscribe", topic=names[3], from_seq=2,
        topics={names[0]: {}, names[1]: {"from_seq": 1}, names[2]: {"tail": True, "from_seq": 1, "else": 0}},
    )  # fmt: skip
    starts = {name: one["from_seq"] for name, one in told["topics"].items()}
    assert starts == dict(zip(names, (0, 1, 3, 2), strict=True))
    got: dict[str, list[int]] = {name: [] for name in names}
    reached: list[str] = []
    while len(reached) < 4:
        frame = ws.reply()
        if frame["op"] == "record":
            got[frame["topic"]] += seqs(frame)
        else:
            reached.append(frame["topic"])
    assert got == dict(zip(names, ([1, 2, 3], [2, 3], [], [3]), strict=True))
    told = ws.ask("subscribe", topic=names[0], tail=True, topics={names[0]: {"from_seq": 2}})
    assert told["topics"][names[0]]["from_seq"] == 2
    assert seqs(record(ws)) == [3]


def test_what_of_a_record_is_wanted(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9, FRM-1]"""
    http.post(
        f"/v0/topics/{topic}", json={"records": [{"data": 1, "tag": "a", "node": "n", "meta": {"m": 1}}]}
    ).raise_for_status()
    full = {"$seq": 1, "$node": "n", "$tag": "a", "data": 1, "meta": {"m": 1}}
    for more, without in [
        ({}, {"$tag"}), ({"include_tags": True}, set()), ({"include_meta": False}, {"$tag", "meta"}),
        ({"include_data": False, "include_tags": True}, {"data"}),
        ({"include_data": False, "include_meta": False}, {"data", "meta", "$tag"}),
    ]:  # fmt: skip
        subscribe(ws, topic, **more)
        (told,) = record(ws)["records"]
        told.pop("$ts")
        assert told == {name: value for name, value in full.items() if name not in without}
        caught_up(ws, topic, 1)


def test_records_come_in_frames_of_at_most_limit_records(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9, RD-6]"""
    write(http, topic, *range(7))
    subscribe(ws, topic, limit=3)
    frames = [record(ws) for _ in range(3)]
    assert [seqs(frame) for frame in frames] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [(frame["from_seq"], frame["to_seq"]) for frame in frames] == [(0, 3), (3, 6), (6, 7)]
    caught_up(ws, topic, 7)
    write(http, topic, *range(7))
    assert [seqs(record(ws)) for _ in range(3)] == [[8, 9, 10], [11, 12, 13], [14]]
    caught_up(ws, topic, 14)


def test_by_default_a_frame_has_a_thousand_records_and_a_mebibyte(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9]"""
    write(http, topic, *range(2500))
    subscribe(ws, topic)
    assert [len(record(ws)["records"]) for _ in range(3)] == [1000, 1000, 500]
    caught_up(ws, topic, 2500)
    subscribe(ws, topic, limit=0, tail=False, from_seq=2000)
    assert [len(record(ws)["records"]) for _ in range(2)] == [256, 244]
    caught_up(ws, topic, 2500)
    large = f"{topic}.large"
    write(http, large, *["x" * 300_000] * 5)
    subscribe(ws, large)
    assert [len(record(ws)["records"]) for _ in range(2)] == [3, 2]
    caught_up(ws, large, 5)
    subscribe(ws, large, max_batch_bytes=1)
    assert [len(record(ws)["records"]) for _ in range(5)] == [1] * 5
    caught_up(ws, large, 5)
    subscribe(ws, large, max_batch_bytes=U64_MAX, limit=2**32 - 1)
    assert len(record(ws)["records"]) == 5
    caught_up(ws, large, 5)


def test_own_records_are_left_out(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-9, FRM-8] Those that are there, and those that come."""

    def send(*nodes: str | None) -> None:
        write_of = [{"data": node, "node": node} for node in nodes]
        http.post(f"/v0/topics/{topic}", json={"records": write_of}).raise_for_status()

    send("me", "you", "me")
    subscribe(ws, topic, node=["me", "also me"])
    told = record(ws)
    assert (told["from_seq"], told["to_seq"], seqs(told)) == (0, 3, [2])
    caught_up(ws, topic, 3)
    send("me")
    send("also me")
    is_quiet(ws)
    send("me", "you", None)
    told = record(ws)
    assert (told["to_seq"], seqs(told)) == (8, [7, 8])
    caught_up(ws, topic, 8)


def test_subscribing_again_replaces_options_and_cursor(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-11]"""
    write(http, topic, 1, 2)
    subscribe(ws, topic)
    assert seqs(record(ws)) == [1, 2]
    caught_up(ws, topic, 2)
    subscribe(ws, topic, from_seq=1, include_data=False)
    told = record(ws)
    assert (seqs(told), "data" in told["records"][0]) == ([2], False)
    caught_up(ws, topic, 2)
    write(http, topic, 3)
    told = record(ws)
    assert (seqs(told), "data" in told["records"][0]) == ([3], False)
    caught_up(ws, topic, 3)
    is_quiet(ws)


def test_the_reply_precedes_the_first_frame_whatever_is_in_front_of_it(ws: Ws, topic: str) -> None:
    """[WS-11, WS-19] In one piece: a topic is made, written, followed, written and left."""
    one = command("publish", topic=topic, records=[{"data": 1}])
    ws.send(one * 2 + command("subscribe", topic=topic, from_seq=1) + one + command("ping"))
    told = [ws.reply() for _ in range(7)]
    assert [one["op"] for one in told[:3]] == ["ack", "ack", "subscribed"]
    got = [seq for frame in told if frame["op"] == "record" for seq in seqs(frame)]
    while got[-1] != 3:
        got += [seq for frame in [ws.reply()] if frame["op"] == "record" for seq in seqs(frame)]
    assert got == [2, 3]


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(told: dict[str, Any], code: str, request_id: object) -> None:
    assert told.keys() == {"op", "request_id", "code", "message"}, told
    assert (told["op"], told["code"], told["request_id"]) == ("error", code, request_id), told


def test_an_unknown_topic_is_an_error_and_nothing_changes(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-10] Unless asked to be lenient."""
    write(http, topic, 1)
    subscribe(ws, topic, tail=True)
    caught_up(ws, topic, 1)
    both = {topic: {"from_seq": 0}, "never-made": {}}
    refused(ws.ask("subscribe", topics=both, request_id=1), "topic_not_found", 1)
    is_quiet(ws)
    told = ws.ask("subscribe", topics=both, request_id=2, lenient=True)
    assert list(told["topics"]) == [topic]
    assert seqs(record(ws)) == [1]
    caught_up(ws, topic, 1)
    assert ws.ask("subscribe", topic="never-made", lenient=True) == {
        "op": "subscribed", "request_id": None, "topics": {},
    }  # fmt: skip
    is_quiet(ws)


@pytest.mark.parametrize("members", [{}, {"topics": {}}, {"from_seq": 1}])
def test_no_name_at_all_is_invalid(ws: Ws, members: dict[str, Any]) -> None:
    """[WS-10]"""
    refused(ws.ask("subscribe", request_id=0, **members), "invalid_request", 0)


def test_the_number_of_topics_of_a_connection_is_bounded(topic: str) -> None:
    """[WS-10] Those that are subscribed count; those that are named again do not count twice."""
    with running(env={"TOPICS_MAX_WATCH_TOPICS": "3"}) as server, server.client() as http, Ws(server) as ws:
        for name in "abcd":
            write(http, name, 1)
        assert ws.ask("subscribe", topics={"a": {"tail": True}, "b": {"tail": True}})["op"] == "subscribed"
        caught_up(ws, "a", 1)
        caught_up(ws, "b", 1)
        refused(ws.ask("subscribe", topics={"b": {}, "c": {}, "d": {}}, request_id=1), "invalid_request", 1)
        refused(ws.ask("subscribe", topics={n: {} for n in "abcd"}, request_id=1), "invalid_request", 1)
        is_quiet(ws)
        assert ws.ask("subscribe", topics={"b": {"tail": True}, "c": {"tail": True}})["op"] == "subscribed"
        caught_up(ws, "b", 1)
        caught_up(ws, "c", 1)
        assert ws.ask("unsubscribe", topic="a")["topics"] == ["a"]
        assert ws.ask("subscribe", topic="d", tail=True)["op"] == "subscribed"


def test_too_many_nodes_are_invalid(ws: Ws, http: httpx.Client, topic: str) -> None:
    """02 §1.9"""
    write(http, topic, 1)
    refused(ws.ask("subscribe", topic=topic, node=[str(n) for n in range(65)], request_id=1), "invalid_request", 1)
    refused(ws.ask("subscribe", topic=topic, node="x" * 129, request_id=1), "invalid_request", 1)
    is_quiet(ws)


NO_SUBSCRIBES = [
    '"topic":1', '"topic":null', '"topics":[]', '"topics":["t"]', '"topics":null', '"topics":{"t":1}',
    '"topics":{"t":null}', '"topics":{"t":{"from_seq":-1}}', '"topics":{"t":{"from_seq":"1"}}',
    '"topics":{"t":{"tail":1}}', '"topics":{"t":{"from_seq":18446744073709551616}}', '"topic":"t","from_seq":-1',
    '"topic":"t","from_seq":1.0', '"topic":"t","from_seq":null', '"topic":"t","from_seq":18446744073709551616',
    '"topic":"t","tail":0', '"topic":"t","limit":-1', '"topic":"t","limit":4294967296', '"topic":"t","limit":true',
    '"topic":"t","max_batch_bytes":-1', '"topic":"t","max_batch_bytes":1e3', '"topic":"t","node":1',
    '"topic":"t","node":[1]', '"topic":"t","include_data":null', '"topic":"t","include_tags":"yes"',
    '"topic":"t","include_meta":1', '"topic":"t","lenient":null',
]  # fmt: skip


@pytest.mark.parametrize("members", NO_SUBSCRIBES)
def test_members_of_a_wrong_type_or_range_are_invalid_json(ws: Ws, members: str) -> None:
    """[WS-14]"""
    refused(ws.send(text(f'{{"op":"subscribe","request_id":1,{members}}}')).reply(), "invalid_json", None)


@pytest.mark.parametrize("members", ['"topic":1', '"topics":{}', '"topics":"t"', '"topics":[1]', '"topics":null'])
def test_so_they_are_of_unsubscribe(ws: Ws, members: str) -> None:
    """[WS-14]"""
    refused(ws.send(text(f'{{"op":"unsubscribe","request_id":1,{members}}}')).reply(), "invalid_json", None)


def test_subscribing_needs_the_scope_read_and_the_prefix_of_every_name() -> None:
    """[WS-10, PFX-2]"""
    env = {"TOPICS_API_KEYS": "boss,writer:write,reader:read:plant3:"}
    with running(env=env) as server, server.client(key="boss") as http:
        for name in ("plant3:a", "plant4:a"):
            write(http, name, 1)
        with Ws(server, "Authorization: Bearer writer") as ws:
            refused(ws.ask("subscribe", topic="plant3:a", request_id=1), "forbidden", 1)
        with Ws(server, "Authorization: Bearer reader") as ws:
            refused(ws.ask("subscribe", topic="plant4:a", request_id=1), "forbidden", 1)
            refused(ws.ask("subscribe", topic="plant4:none", request_id=1), "forbidden", 1)
            both: dict[str, Any] = {"plant3:a": {}, "plant4:a": {}}
            refused(ws.ask("subscribe", topics=both, request_id=1, lenient=True), "forbidden", 1)
            is_quiet(ws)
            subscribe(ws, "plant3:a")
            assert seqs(record(ws)) == [1]


# -- unsubscribing ---------------------------------------------------------------------------------------------------


def test_after_unsubscribed_there_is_no_further_frame(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-13]"""
    write(http, topic, 1)
    other = f"{topic}.other"
    write(http, other, 1)
    for name in (topic, other):
        subscribe(ws, name, tail=True)
        caught_up(ws, name, 1)
    assert ws.ask("unsubscribe", topic=topic, request_id=[1]) == {
        "op": "unsubscribed", "request_id": [1], "topics": [topic],
    }  # fmt: skip
    write(http, topic, 2)
    write(http, other, 2)
    told = record(ws)
    assert (told["topic"], seqs(told)) == (other, [2])
    caught_up(ws, other, 2)
    is_quiet(ws)


def test_unsubscribing_while_there_is_a_backlog(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-13] In one piece with the subscription: frames may come before the reply, none behind it."""
    write(http, topic, *range(2000))
    ws.send(
        command("subscribe", topic=topic, limit=1) + command("unsubscribe", topic=topic)
        + command("ping", request_id="last")
    )  # fmt: skip
    told: list[dict[str, Any]] = []
    while not told or told[-1]["op"] != "pong":
        told.append(ws.reply())
    ops = [one["op"] for one in told]
    assert ops[-2] == "unsubscribed"
    assert "record" not in ops[ops.index("unsubscribed") :]
    write(http, topic, 1)
    is_quiet(ws)


def test_the_reply_lists_the_names_of_the_request(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-13] Also of what was not subscribed; without a name there is none."""
    write(http, topic, 1)
    assert ws.ask("unsubscribe", topics=["never", topic], topic="ever")["topics"] == ["never", topic, "ever"]
    assert ws.ask("unsubscribe", topics=[topic, topic], topic=topic)["topics"] == [topic]
    assert ws.ask("unsubscribe", request_id=3) == {"op": "unsubscribed", "request_id": 3, "topics": []}
    assert ws.ask("unsubscribe", topics=[])["topics"] == []


# -- gaps and ends ---------------------------------------------------------------------------------------------------


def test_a_gap_is_told_with_its_real_cause_from_the_first_read_on(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-16, FRM-1] Where server-sent events say `from_seq_too_old`."""
    put(http, topic, cap_records=3)
    write(http, topic, *range(10))
    subscribe(ws, topic, from_seq=2)
    assert ws.reply() == {
        "op": "tombstone", "topic": topic, "reason": "cap", "gap_from": 3, "gap_to": 7, "earliest_seq": 8,
        "head_seq": 10,
    }  # fmt: skip
    told = record(ws)
    assert (told["from_seq"], told["to_seq"], seqs(told)) == (2, 10, [8, 9, 10])
    caught_up(ws, topic, 10)


def test_deleted_records_are_no_gap(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[FRM-3, FRM-8]"""
    tagged(http, topic, "a", "b", "a", "b")
    delete(http, topic, before_seq=2)
    delete(http, topic, match="b")
    subscribe(ws, topic)
    told = record(ws)
    assert (told["from_seq"], told["to_seq"], seqs(told)) == (0, 4, [3])
    caught_up(ws, topic, 4)
    delete(http, topic, match="a")
    is_quiet(ws)


def test_a_seq_above_the_head_is_of_another_life_of_the_topic(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-16], 01 FLR-6"""
    write(http, topic, 1, 2)
    subscribe(ws, topic, from_seq=9)
    told = ws.reply()
    assert (told["op"], told["reason"]) == ("tombstone", "recreated")
    assert seqs(record(ws)) == [1, 2]
    caught_up(ws, topic, 2)


def test_deleting_a_topic_ends_its_subscription_and_nothing_else(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-17] At once, and the connection stays."""
    other = f"{topic}.other"
    for name in (topic, other):
        write(http, name, 1)
        subscribe(ws, name, tail=True)
        caught_up(ws, name, 1)
    http.delete(f"/v0/topics/{topic}").raise_for_status()
    assert ws.reply() == {"op": "topic_deleted", "topic": topic, "head_seq": 0, "reason": "deleted"}
    write(http, topic, "anew")
    write(http, other, 2)
    assert record(ws)["topic"] == other
    caught_up(ws, other, 2)
    is_quiet(ws)
    subscribe(ws, topic)
    assert seqs(record(ws)) == [1]


def test_when_the_last_topic_is_gone_the_connection_stays(ws: Ws, http: httpx.Client, topic: str) -> None:
    """[WS-17]"""
    write(http, topic, 1)
    subscribe(ws, topic, tail=True)
    caught_up(ws, topic, 1)
    http.delete(f"/v0/topics/{topic}").raise_for_status()
    assert ws.reply()["op"] == "topic_deleted"
    is_quiet(ws)


def test_of_topics_that_are_gone_the_connection_keeps_nothing(
    ws: Ws, server: Running, http: httpx.Client, topic: str
) -> None:
    """[WS-17] It may live for weeks: only who resumes, as a stream of a session does, needs its cursors."""
    stays = f"{topic}.stays"
    write(http, stays, 1)
    subscribe(ws, stays, tail=True)
    caught_up(ws, stays, 1)
    for n in range(3):
        name = f"{topic}.{n}"
        write(http, name, 1)
        subscribe(ws, name, tail=True)
        caught_up(ws, name, 1)
        http.delete(f"/v0/topics/{name}").raise_for_status()
        assert ws.reply()["op"] == "topic_deleted"
    feed = server.on_loop(lambda: ws.served._feed)
    assert (list(feed.followers), feed.cursors(), feed.past, feed.gone) == ([stays], {stays: 1}, {}, {})


def test_what_expires_before_it_is_delivered_is_not(timed_server: Running, clock: ManualClock, topic: str) -> None:
    """[FRM-8, TTL-3]"""
    with timed_server.client() as http, Ws(timed_server) as ws:
        put(http, topic, ttl_ms=1000)
        write(http, topic, 1)
        clock.advance(2000)
        told = subscribe(ws, topic)
        assert (told["head_seq"], told["earliest_seq"]) == (1, 2)
        told = ws.reply()
        assert (told["op"], told["reason"], told["gap_from"], told["gap_to"]) == ("tombstone", "ttl", 1, 1)
        caught_up(ws, topic, 1)


# -- many connections ------------------------------------------------------------------------------------------------


def test_a_batch_is_framed_once_for_all_that_want_the_same(
    server: Running, http: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A-12] One framing per view and batch, however many follow."""
    write(http, topic, 0)
    made: list[tuple[int, int]] = []
    framing = websocket.FRAMING
    original = type(framing).record
    monkeypatch.setattr(
        type(framing),
        "record",
        lambda self, batch: made.append((batch.from_seq, batch.to_seq)) or original(self, batch),
    )
    sockets = [Ws(server) for _ in range(12)]
    try:
        for at, one in enumerate(sockets):
            subscribe(one, topic, tail=True, include_data=bool(at % 2), node="me" if at % 3 else None)
            caught_up(one, topic, 1)
        made.clear()
        write(http, topic, 1)
        for at, one in enumerate(sockets):
            told = record(one)
            assert (seqs(told), "data" in told["records"][0]) == ([2], bool(at % 2))
            caught_up(one, topic, 2)
        assert made == [(1, 2)] * 2
    finally:
        for one in sockets:
            one.sock.close()
    is_all_let_go(server)


def test_writes_of_other_connections_arrive_in_order_and_once(server: Running, http: httpx.Client, topic: str) -> None:
    """[WS-15] Published by several sockets at once, followed by several more from different places."""
    total = 600
    put(http, topic)
    followers = [Ws(server) for _ in range(3)]
    for at, one in enumerate(followers):
        subscribe(one, topic, limit=(1000, 7, 1)[at])

    def publish(number: int) -> None:
        with Ws(server) as ws:
            ws.send(b"".join(command("publish", topic=topic, records=[{"data": number}]) for _ in range(total // 3)))
            for _ in range(total // 3):
                assert ws.reply()["op"] == "ack"

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for one in followers:
        assert all_records(one, topic, total) == list(range(1, total + 1))
        one.sock.close()
    for thread in threads:
        thread.join(WAIT_S)
    is_all_let_go(server)


# -- those that do not read ------------------------------------------------------------------------------------------


def unsent(ws: Ws) -> int:
    """What the server holds for a connection."""
    size: int = ws.server.on_loop(lambda: int(ws.served._transport.get_write_buffer_size()))
    return size


FRAME = 100_000


def stalled(server: Running, http: httpx.Client, topic: str, more: int = 60) -> Ws:
    """A subscriber that read nothing of what was published since, which is more than any buffer takes."""
    write(http, topic, 0)
    ws = Ws(server, receive_bytes=4096)
    subscribe(ws, topic, tail=True, max_batch_bytes=1)
    caught_up(ws, topic, 1)
    for _ in range(more):
        write(http, topic, "x" * FRAME)
    until(server, lambda: ws.served.is_full)
    return ws


def test_for_a_reader_that_stalls_at_most_a_frame_beyond_the_mark_is_built(
    server: Running, http: httpx.Client, topic: str
) -> None:
    """[WS-5, D-60, D-61, D-63], 08 §10 point 12: others get everything, and so does it when it reads again."""
    with stalled(server, http, topic) as ws, Ws(server) as healthy:
        assert unsent(ws) <= websocket.OUTPUT_HIGH + FRAME + 1000
        subscribe(healthy, topic, tail=True)
        caught_up(healthy, topic, 61)
        write(http, topic, "last")
        assert seqs(record(healthy)) == [62]
        assert unsent(ws) <= websocket.OUTPUT_HIGH + FRAME + 1000
        assert all_records(ws, topic, 62) == list(range(2, 63))
        is_quiet(ws)
    is_all_let_go(server)


def test_of_a_reader_that_stalls_no_command_is_read(server: Running, http: httpx.Client, topic: str) -> None:
    """[WS-5] Neither executed nor buffered without end; both happens when it reads again."""
    with stalled(server, http, topic) as ws:
        ws.send(command("publish", topic=f"{topic}.other", records=[{"data": 1}]))
        until(server, lambda: len(ws.served._input) > 0)
        assert http.get(f"/v0/topics/{topic}.other").status_code == 404
        rest = command("ping", request_id="x" * 1000) * 10_000
        sender = threading.Thread(target=ws.send, args=(rest,))
        sender.start()
        until(server, lambda: is_held_up(ws))
        assert server.on_loop(lambda: len(ws.served._input)) < 1 << 20
        assert http.get(f"/v0/topics/{topic}.other").status_code == 404
        got: list[int] = []
        pongs = acks = 0
        while pongs < 10_000 or len(got) < 60:
            told = ws.reply()
            got += seqs(told) if told["op"] == "record" else []
            pongs += told["op"] == "pong"
            acks += told["op"] == "ack"
        sender.join(WAIT_S)
        assert (got, acks) == (list(range(2, 62)), 1)
    is_all_let_go(server)


def test_who_passed_its_cursor_while_it_stalled_sees_one_gap(server: Running, http: httpx.Client, topic: str) -> None:
    """[D-61, FRM-11]"""
    with stalled(server, http, topic) as ws:
        put(http, topic, cap_records=5)
        write(http, topic, "last")
        got: list[int] = []
        gaps = []
        while not got or got[-1] != 62:
            told = ws.reply()
            if told["op"] == "record":
                got += seqs(told)
            elif told["op"] == "tombstone":
                gaps.append((told["gap_from"], told["gap_to"], told["reason"]))
        assert len(gaps) == 1
        assert gaps[0] == (got[got.index(58) - 1] + 1, 57, "cap")
        assert got == [*range(2, gaps[0][0]), *range(58, 63)]
    is_all_let_go(server)


def test_after_30_seconds_without_progress_the_connection_is_closed(
    timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[D-62] Not before, and it is counted; no ping is sent on top of what is not read."""
    server = timed_server
    with server.client() as http, stalled(server, http, topic) as ws:
        before = server.server.app.streams.closed_slow
        passes(server, clock, 29)
        assert server.on_loop(lambda: ws.served._state) == "open"
        passes(server, clock, 2)  # the server may have looked before, or only at the first of these seconds
        until(server, lambda: not server.server.app.streams)
        assert server.server.app.streams.closed_slow == before + 1
        metrics = http.get("/v0/metrics").text
        assert f"topics_streams_closed_slow_total {before + 1}" in metrics
    is_all_let_go(server)


def test_who_reads_slowly_stays(timed_server: Running, clock: ManualClock, topic: str) -> None:
    """[D-62] A byte now and then is progress."""
    server = timed_server
    with server.client() as http, stalled(server, http, topic, 150) as ws:
        for _ in range(8):
            passes(server, clock, 20)
            before = unsent(ws), server.on_loop(lambda: ws.served._written)
            while (unsent(ws), server.on_loop(lambda: ws.served._written)) == before:
                ws.message()
        assert server.on_loop(lambda: ws.served._state) == "open"


def test_a_reader_that_stalls_does_not_hold_up_the_shutdown() -> None:
    """[API-5] It has a second for its last frame."""
    clock = ManualClock()
    with running(clock=clock) as server, server.client() as http:
        ws = stalled(server, http, "t")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until_closing(server, ws)
        clock.advance(1000)
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        ws.sock.close()


def until_closing(server: Running, ws: Ws) -> None:
    until(server, lambda: ws.served._state == "closing")


def test_a_close_ends_the_subscriptions(ws: Ws, server: Running, http: httpx.Client, topic: str) -> None:
    """[WS-8] Nothing comes behind the close frame."""
    write(http, topic, *range(5000))
    ws.send(command("subscribe", topic=topic, limit=10) + framed(LAST | CLOSE))
    opcode = 0
    while opcode != CLOSE:
        opcode, _ = ws.frame()
    assert ws.is_ended()
