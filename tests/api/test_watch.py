"""Watch sessions and what their streams say (03 §1 to §5), over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api import expect
from tests.api.expect import delete, invalid, put, refused, write
from tests.api.kit import Running, running
from tests.api.watching import (
    Event,
    Stream,
    Stream1,
    decoded,
    encoded,
    is_http2,
    open_stream,
    pass_time,
    sessions,
    streams,
    until_streams,
    watch,
)
from topics.engine import lifecycle
from topics.testing import ManualClock

Open = Callable[..., Stream]
NO_OPTIONS: dict[str, Any] = {}


@pytest.fixture
def opened(client: httpx.Client, server: Running) -> Iterator[Open]:
    """Open a stream of a new session by the client's version of HTTP."""
    made: list[Stream] = []

    def opening(*topics: str, fields: tuple[str, ...] = (), wid: str = "", **more: Any) -> Stream:
        wid = wid or watch(client, *topics, **more)["wid"]
        stream = open_stream(server, is_http2(client), wid, *fields)
        made.append(stream)
        assert stream.status == 200
        return stream

    yield opening
    for stream in made:
        stream.close()
    until_streams(server, 0)


# §1, §2: sessions


def test_a_session_is_named_by_sixteen_random_bytes(client: httpx.Client, topic: str) -> None:
    """[WCH-2]"""
    put(client, topic)
    wids = {watch(client, topic)["wid"] for _ in range(20)}
    assert len(wids) == 20
    for wid in wids:
        assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", wid)
        assert len(base64.urlsafe_b64decode(wid[4:] + "==")) == 16


def test_the_answer_says_where_every_topic_begins(client: httpx.Client, topic: str) -> None:
    """[WCH-5]"""
    put(client, topic, cap_records=3)
    write(client, topic, 1, 2, 3, 4, 5)
    put(client, topic + "2")
    named = {topic: {"from_seq": 2}, topic + "2": {"tail": True, "from_seq": 99}}
    told = watch(client, named=named)
    wid = told.pop("wid")
    assert told == {
        "stream_url": f"/v0/watch/{wid}",
        "session_ttl_ms": 300_000,
        "topics": {
            topic: {"from_seq": 2, "head_seq": 5, "earliest_seq": 3},
            topic + "2": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1},
        },
    }


def test_tail_begins_at_the_head_whatever_from_seq_says(client: httpx.Client, topic: str, opened: Open) -> None:
    """[WCH-5]"""
    write(client, topic, 1, 2, 3)
    told = watch(client, named={topic: {"tail": True, "from_seq": 1}})
    assert told["topics"][topic]["from_seq"] == 3
    stream = opened(wid=told["wid"])
    assert [one.kind for one in stream.take(2)] == ["retry", "caught-up"]
    write(client, topic, 4)
    assert stream.next().seqs == [4]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("[]", "no object"),
        ("{}", "no topics"),
        ('{"topics":{}}', "nothing"),
        ('{"topics":[]}', "no object of topics"),
        ('{"topics":{"T":1}}', "no options"),
        ('{"topics":{"T":null}}', "null options"),
        ('{"topics":{"T":{"from_seq":-1}}}', "negative"),
        ('{"topics":{"T":{"from_seq":18446744073709551616}}}', "above u64"),
        ('{"topics":{"T":{"from_seq":"1"}}}', "text"),
        ('{"topics":{"T":{"from_seq":true}}}', "bool"),
        ('{"topics":{"T":{"from_seq":null}}}', "null"),
        ('{"topics":{"T":{"tail":1}}}', "no bool"),
        ('{"topics":{"T":{}},"limit":-1}', "negative"),
        ('{"topics":{"T":{}},"limit":4294967296}', "above u32"),
        ('{"topics":{"T":{}},"max_batch_bytes":1.0}', "no integer"),
        ('{"topics":{"T":{}},"heartbeat_ms":"5"}', "text"),
        ('{"topics":{"T":{}},"heartbeat_ms":18446744073709551616}', "above u64"),
        ('{"topics":{"T":{}},"include_data":null}', "null"),
        ('{"topics":{"T":{}},"consistency":"weak"}', "unknown"),
        ('{"topics":{"T":{}},"consistency":1}', "no text"),
        ('{"topics":{"T":{}},"node":1}', "no text"),
        ('{"topics":{"T":{}},"node":["a",1]}', "no text"),
        ('{"topics":{"T":{}}} x', "trailing"),
    ],
)
def test_what_is_ill_formed_is_refused(client: httpx.Client, topic: str, body: str, why: str) -> None:
    """[WCH-3, API-11, API-12, API-13]"""
    put(client, topic)
    invalid(expect.raw(client, "/v0/watch", body.replace("T", topic)))


def test_node_may_be_null_and_unknown_members_are_ignored_also_in_options(client: httpx.Client, topic: str) -> None:
    """[WCH-4, API-13]"""
    put(client, topic)
    watch(client, named={topic: {"from_seq": 0, "colour": "red"}}, node=None, colour=[1])


def test_limits_of_a_session_are_clamped_not_refused(client: httpx.Client, server: Running, topic: str) -> None:
    """(03 §2) limit, bytes and heartbeat."""
    put(client, topic)
    cases = [
        ({}, (256, 262_144, 15_000)),
        ({"limit": 0, "max_batch_bytes": 0, "heartbeat_ms": 0}, (256, 1 << 20, 1000)),
        ({"limit": 4_000_000_000, "max_batch_bytes": 2**63, "heartbeat_ms": 2**63}, (1000, 8 << 20, 60_000)),
        ({"limit": 7, "max_batch_bytes": 7, "heartbeat_ms": 1000}, (7, 7, 1000)),
    ]
    for asked, want in cases:
        wid = watch(client, topic, **asked)["wid"]
        session = server.server.app.sessions.get(wid)
        assert session is not None
        assert (session.view.limit, session.view.max_bytes, session.heartbeat_ms) == want


def test_a_session_needs_a_json_body(client: httpx.Client, topic: str) -> None:
    """[WCH-3, API-9, API-10]"""
    put(client, topic)
    refused(client.post("/v0/watch", content=b"{}"), 415, "unsupported_media_type")
    refused(client.post("/v0/watch"), 415, "unsupported_media_type")
    invalid(expect.raw(client, "/v0/watch", b""))


def test_topics_are_counted_and_so_are_the_bytes_of_their_names(client: httpx.Client) -> None:
    """[WCH-3] Before anything is looked up (02 §1.9)."""
    invalid(client.post("/v0/watch", json={"topics": {f"n{n}": {} for n in range(257)}}))
    names = [f"n{n}".ljust(100, "x") for n in range(164)]
    invalid(client.post("/v0/watch", json={"topics": dict.fromkeys(names, NO_OPTIONS)}))
    nodes = [f"n{n}" for n in range(65)]
    invalid(client.post("/v0/watch", json={"topics": {"a": {}}, "node": nodes}))
    fine = client.post("/v0/watch", json={"topics": dict.fromkeys(names[:163], NO_OPTIONS)})
    refused(fine, 404, "topic_not_found", {"topic": names[0]})


def test_an_unknown_topic_is_refused_or_left_out(client: httpx.Client, topic: str, opened: Open) -> None:
    """[WCH-3, WCH-6, NAME-3] No topic is created."""
    put(client, topic)
    both = {"topics": dict.fromkeys((topic, topic + "-absent"), NO_OPTIONS)}
    refused(client.post("/v0/watch", json=both), 404, "topic_not_found", {"topic": topic + "-absent"})
    refused(client.post("/v0/watch", json={"topics": {"..": {}}}), 404, "topic_not_found", {"topic": ".."})
    for query in ("?lenient=true", "?lenient=1"):
        told = expect.ok(client.post(f"/v0/watch{query}", json=both))
        assert list(told["topics"]) == [topic]
    assert client.get(f"/v0/topics/{topic}-absent").status_code == 404


def test_an_empty_session_has_a_stream_that_ends_behind_its_first_line(client: httpx.Client, opened: Open) -> None:
    """[WCH-6]"""
    told = watch(client, "absent-a", "absent-b", query="?lenient=true")
    assert told["topics"] == {}
    stream = opened(wid=told["wid"])
    assert [one.raw for one in stream.rest()] == [b"retry: 2000"]
    assert stream.is_complete


# §3: the stream


def test_the_head_of_a_stream(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-2, API-16, API-28] Nothing is compressed, nothing is cached."""
    put(client, topic)
    stream = opened(topic, fields=("Accept-Encoding: gzip", "Accept: text/event-stream"))
    kept = {name: value for name, value in stream.headers.items() if name != "date"}
    want = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "x-content-type-options": "nosniff",
    }
    if not is_http2(client):
        want["transfer-encoding"] = "chunked"
    assert kept == want
    assert stream.headers["date"].endswith("GMT")


@pytest.mark.parametrize(
    ("accept", "fine"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; q=0.5, application/json", True),
        ("*/*", True),
        ("application/json, */*;q=0.1", True),
        ("application/json", False),
        ("text/*", False),
    ],
)
def test_what_a_client_accepts_decides_first(
    client: httpx.Client, server: Running, topic: str, accept: str, fine: bool
) -> None:
    """[STR-1] Before the session is looked for."""
    put(client, topic)
    wid = watch(client, topic)["wid"]
    with open_stream(server, is_http2(client), wid, f"Accept: {accept}") as stream:
        assert stream.status == (200 if fine else 406)
    if not fine:
        refused(client.get("/v0/watch/none", headers={"accept": accept}), 406, "not_acceptable")
    until_streams(server, 0)


def test_an_unknown_session_is_not_found_whatever_it_looks_like(client: httpx.Client) -> None:
    """[STR-1, WGC-3; 03 §9.12]"""
    for wid in ("none", "wid_", "wid_AAAAAAAAAAAAAAAAAAAAAA", "%00", "x" * 500):
        refused(client.get(f"/v0/watch/{wid}"), 404, "not_found")


def test_other_methods_are_not_allowed_and_head_is_one_of_them(client: httpx.Client, topic: str) -> None:
    """[API-21] A stream has no HEAD."""
    put(client, topic)
    wid = watch(client, topic)["wid"]
    for method in ("HEAD", "POST", "PUT", "DELETE"):
        answer = client.request(method, f"/v0/watch/{wid}")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET"
    answer = client.get("/v0/watch")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_the_bytes_of_every_kind_of_frame(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-4, STR-5, FRM-1, FRM-2, FRM-4, FRM-5, API-14] Exactly, and nothing else."""
    put(client, topic, cap_records=2)
    write(client, topic, {"kg": 1}, {"kg": 2}, {"kg": 3})
    ts = expect.diff(client, topic)["records"][0]["$ts"]
    stream = opened(topic)
    got = [one.raw for one in stream.take(4)]
    gap, end = encoded({topic: 1}).encode(), encoded({topic: 3}).encode()
    name = topic.encode()
    records = b'{"$seq":2,"$ts":%d,"data":{"kg":2}},{"$seq":3,"$ts":%d,"data":{"kg":3}}' % (ts, ts)
    assert got == [
        b"retry: 2000",
        b'id: %b\nevent: tombstone\ndata: {"topic":"%b","reason":"from_seq_too_old","gap_from":1,"gap_to":1,'
        b'"earliest_seq":2,"head_seq":3}' % (gap, name),
        b'id: %b\nevent: record\ndata: {"topic":"%b","from_seq":0,"to_seq":3,"head_seq":3,"records":[%b]}'
        % (end, name, records),
        b'id: %b\nevent: caught-up\ndata: {"topic":"%b","head_seq":3}' % (end, name),
    ]
    client.delete(f"/v0/topics/{topic}")
    deleted = b'id: %b\nevent: topic-deleted\ndata: {"topic":"%b","head_seq":0,"reason":"deleted"}' % (end, name)
    assert [one.raw for one in stream.rest()] == [deleted]
    assert stream.is_complete


def test_live_frames_have_the_same_form(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-4, FRM-1]"""
    put(client, topic)
    stream = opened(topic, include_tags=True)
    stream.until("caught-up")
    answer = client.post(
        f"/v0/topics/{topic}",
        json={"records": [{"data": [1, 2], "tag": "t", "node": "n", "meta": {"k": "v"}}]},
    )
    assert answer.status_code == 200
    ts = expect.diff(client, topic)["records"][0]["$ts"]
    record, reached = stream.take(2)
    id, name = encoded({topic: 1}).encode(), topic.encode()
    one = b'{"$seq":1,"$ts":%d,"$node":"n","$tag":"t","meta":{"k":"v"},"data":[1,2]}' % ts
    said = b'{"topic":"%b","from_seq":0,"to_seq":1,"head_seq":1,"records":[%b]}' % (name, one)
    assert json.loads(said) == record.data
    assert record.raw.startswith(b"id: %b\nevent: record\ndata: {" % id)
    assert len(record.raw.split(b"\n")) == 3
    assert reached.raw == b'id: %b\nevent: caught-up\ndata: {"topic":"%b","head_seq":1}' % (id, name)


def test_whatever_a_writer_sends_a_frame_is_three_lines(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-4, API-14] White space between tokens is not passed on; what is inside strings is escaped anyway."""
    put(client, topic)
    stream = opened(topic)
    stream.until("caught-up")
    body = b'{"records":[{"data":{"a" :\n\r\n [ 1,\t2 ],"b":"x\\n\\r y"},"meta":{ "k":\n"v w" }}]}'
    assert expect.raw(client, f"/v0/topics/{topic}", body).status_code == 200
    live = stream.until("caught-up")[0]
    again = opened(topic).take(2)[1]
    for event in (live, again):
        assert len(event.raw.split(b"\n")) == 3
        assert b"\r" not in event.raw
        assert event.raw.endswith(b'"meta":{"k":"v w"},"data":{"a":[1,2],"b":"x\\n\\r y"}}]}')


def test_topics_are_served_once_in_the_order_of_their_names(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-6]"""
    names = [f"{topic}-{letter}" for letter in "cab"]
    for name in names:
        write(client, name, 1, 2, 3)
    stream = opened(*names, limit=2)
    seen = [(one.data["topic"][-1], one.kind) for one in stream.take(10)[1:]]
    assert seen == [(letter, kind) for letter in "abc" for kind in ("record", "record", "caught-up")]


def test_a_new_record_comes_without_being_polled_for(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-3] Each frame when it is made: the client reads one by one, and nothing else happens in between."""
    put(client, topic)
    stream = opened(topic)
    stream.until("caught-up")
    for n in range(1, 6):
        write(client, topic, n)
        assert [one.kind for one in stream.take(2)] == ["record", "caught-up"]


def test_what_of_a_record_is_sent_is_chosen_by_the_session(client: httpx.Client, topic: str, opened: Open) -> None:
    """[FRM-1] `meta` and `data` by default, `$tag` on request."""
    answer = client.post(
        f"/v0/topics/{topic}", json={"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}}]}
    )
    assert answer.status_code == 201
    base = {"$seq", "$ts", "$node"}
    for asked, want in [
        ({}, base | {"data", "meta"}),
        ({"include_tags": True, "include_meta": False}, base | {"$tag", "data"}),
        ({"include_data": False}, base | {"meta"}),
        ({"include_data": False, "include_meta": False, "include_tags": False}, base),
    ]:
        assert set(opened(topic, **asked).take(2)[1].data["records"][0]) == want


def test_own_records_are_left_out_and_the_next_frame_shows_how_far_it_is(
    client: httpx.Client, topic: str, opened: Open
) -> None:
    """[RSM-6, FRM-8, NOD-1] By one name, or by several."""
    put(client, topic)
    one, several = opened(topic, node="me"), opened(topic, node=["me", "us"])
    for stream in (one, several):
        stream.until("caught-up")
    write(client, topic, 1, node="me")
    write(client, topic, 2, node="us")
    write(client, topic, 3)
    assert one.until_seq(3) == [2, 3]
    event = several.next()
    assert (event.seqs, event.data["to_seq"], event.cursors) == ([3], 3, {topic: 3})
    assert event.data["from_seq"] <= 2, "how many of the others the same read passed is a matter of time"


def test_a_frame_holds_at_most_limit_records_and_the_byte_budget(
    client: httpx.Client, topic: str, opened: Open
) -> None:
    """[STR-6, RD-5]"""
    write(client, topic, *("x" * 1000 for _ in range(5)))
    assert [one.seqs for one in opened(topic, limit=2).take(4)[1:]] == [[1, 2], [3, 4], [5]]
    assert [one.seqs for one in opened(topic, max_batch_bytes=2500).take(4)[1:]] == [[1, 2], [3, 4], [5]]


def test_a_deleted_prefix_is_not_told_and_a_deletion_is_nothing_to_say(
    client: httpx.Client, topic: str, opened: Open
) -> None:
    """[FRM-3, FRM-8, DEL-12]"""
    write(client, topic, 1, 2, 3)
    delete(client, topic, before_seq=3)
    stream = opened(topic)
    assert [one.kind for one in stream.take(3)] == ["retry", "record", "caught-up"]
    delete(client, topic, seqs=[3])
    write(client, topic, 4)
    assert stream.next().seqs == [4]


def test_caught_up_is_told_once_and_again_behind_records(client: httpx.Client, topic: str, opened: Open) -> None:
    """[FRM-4]"""
    put(client, topic)
    stream = opened(topic)
    assert [one.kind for one in stream.take(2)] == ["retry", "caught-up"]
    write(client, topic, 1)
    write(client, topic, 2)
    kinds: list[str] = []
    while kinds.count("caught-up") < 2 and "2" not in kinds:
        event = stream.next()
        kinds.append(event.kind)
        if event.kind == "caught-up" and event.data["head_seq"] == 2:
            break
    assert kinds in (["record", "caught-up"] * 2, ["record", "caught-up"])


def test_a_deleted_topic_ends_and_the_others_go_on(client: httpx.Client, topic: str, opened: Open) -> None:
    """[FRM-5]"""
    other = topic + "-other"
    write(client, topic, 1)
    write(client, other, 1)
    stream = opened(topic, other)
    stream.take(5)
    client.delete(f"/v0/topics/{topic}")
    gone = stream.next()
    assert (gone.kind, gone.cursors) == ("topic-deleted", {topic: 1, other: 1})
    write(client, other, 2)
    event = stream.next()
    assert (event.seqs, event.cursors) == ([2], {topic: 1, other: 2})
    client.delete(f"/v0/topics/{other}")
    assert [one.kind for one in stream.rest()] == ["caught-up", "topic-deleted"]
    assert stream.is_complete


def test_a_stream_that_opens_on_a_topic_that_is_gone_says_so(client: httpx.Client, topic: str, opened: Open) -> None:
    """[FRM-6]"""
    write(client, topic, 1)
    wid = watch(client, topic)["wid"]
    client.delete(f"/v0/topics/{topic}")
    stream = opened(wid=wid)
    assert [one.kind for one in stream.rest()] == ["retry", "topic-deleted"]
    assert stream.is_complete


@pytest.mark.parametrize("count", [1, 5])
def test_a_stream_that_opens_on_another_instance_says_so_and_begins_anew(
    client: httpx.Client, topic: str, opened: Open, count: int
) -> None:
    """[FRM-6, EPO-3, EPO-4, RSM-2] Below the old cursor or past it, with the reason of a first read."""
    write(client, topic, 1, 2, 3)
    wid = watch(client, named={topic: {"tail": True}})["wid"]
    client.delete(f"/v0/topics/{topic}")
    write(client, topic, *range(count))
    stream = opened(wid=wid)
    _, gap, record, _ = stream.take(4)
    want = {"topic": topic, "reason": "from_seq_too_old", "gap_from": 1, "gap_to": count}
    assert gap.data == {**want, "earliest_seq": 1, "head_seq": count}
    assert gap.cursors == {topic: 0}
    assert record.seqs == list(range(1, count + 1))


def test_a_topic_made_anew_behind_a_running_stream(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[FRM-5, FRM-6] It says `topic-deleted`, or `recreated` where it never saw the topic gone."""
    write(client, topic, 1, 2)
    other = topic + "-other"
    put(client, other)
    stream = opened(topic, other)
    stream.take(4)

    def again() -> None:
        core = server.server.app.engine.core  # type: ignore[union-attr]
        lifecycle.delete(core, topic, lambda outcome: None)

    server.on_loop(again)
    client.put(f"/v0/topics/{topic}", json={})
    write(client, topic, "new")
    write(client, other, "end")
    seen: list[Event] = []
    while not seen or seen[-1].data["topic"] != other or seen[-1].kind != "record":
        seen.append(stream.next())
    mine = [one for one in seen if one.data["topic"] == topic]
    if mine[0].kind == "topic-deleted":
        assert [one.kind for one in mine] == ["topic-deleted"]
    else:
        assert (mine[0].kind, mine[0].data["reason"]) == ("tombstone", "recreated")


def test_reading_a_stream_counts_as_consumption(timed: httpx.Client, timed_server: Running, topic: str) -> None:
    """[STR-8, PRI-4]"""
    put(timed, topic)
    with open_stream(timed_server, is_http2(timed), watch(timed, topic)["wid"]) as stream:
        stream.until("caught-up")
        write(timed, topic, 1)
        stream.until("caught-up")
        assert expect.state(timed, topic)["effective_priority"] == 500
    until_streams(timed_server, 0)


# Strong consistency


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync", "ephemeral"])
def test_strong_streams_deliver_everything_in_the_end(
    client: httpx.Client, topic: str, opened: Open, durability: str
) -> None:
    """[WCH-7] Backlog and live."""
    put(client, topic, durability=durability)
    write(client, topic, 1, 2)
    stream = opened(topic, consistency="strong")
    assert stream.until_seq(2) == [1, 2]
    write(client, topic, 3)
    assert stream.until_seq(3) == [3]


# Time


def test_a_heartbeat_comes_when_nothing_was_written_for_its_time(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[FRM-7] Exactly its bytes; a frame puts it off."""
    put(timed, topic)
    wid = watch(timed, topic, heartbeat_ms=5000)["wid"]
    with open_stream(timed_server, is_http2(timed), wid) as stream:
        stream.until("caught-up")
        pass_time(timed_server, clock, 4999)
        write(timed, topic, 1)
        stream.until("caught-up")
        pass_time(timed_server, clock, 4999)
        write(timed, topic, 2)
        assert [one.kind for one in stream.take(2)] == ["record", "caught-up"], "no heartbeat in between"
        pass_time(timed_server, clock, 5000)
        assert stream.next().raw == b": hb"
        pass_time(timed_server, clock, 5000)
        assert stream.next().raw == b": hb"
    until_streams(timed_server, 0)


def test_a_session_is_forgotten_five_minutes_after_its_last_use(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[WGC-1, WGC-2, WGC-3] Creation, opening and closing of a stream are uses; an open stream is one all the time."""
    put(timed, topic)
    http2 = is_http2(timed)
    kept, idle = watch(timed, topic)["wid"], watch(timed, topic)["wid"]
    with open_stream(timed_server, http2, kept) as stream:
        stream.until("caught-up")
        pass_time(timed_server, clock, 300_000, sweep=False)
        with open_stream(timed_server, http2, idle) as other:
            assert other.status == 200, "not yet: exactly five minutes"
        until_streams(timed_server, 1)
        pass_time(timed_server, clock, 300_001, sweep=False)
        refused(timed.get(f"/v0/watch/{idle}"), 404, "not_found")
        write(timed, topic, 1)
        assert stream.until_seq(1) == [1]
    until_streams(timed_server, 0)
    pass_time(timed_server, clock, 300_000, sweep=False)
    with open_stream(timed_server, http2, kept) as stream:
        assert stream.status == 200
    until_streams(timed_server, 0)
    pass_time(timed_server, clock, 300_001, sweep=False)
    watch(timed, topic)
    assert sessions(timed_server) == 1, "creating one sweeps the others"


def test_a_session_does_not_survive_a_restart() -> None:
    """[WCH-1]"""
    with running() as one, one.client() as client:
        put(client, "a")
        wid = watch(client, "a")["wid"]
    with running() as one, one.client() as client:
        refused(client.get(f"/v0/watch/{wid}"), 404, "not_found")


# §4: cursor and resume


def test_the_id_is_the_map_of_all_topics(client: httpx.Client, topic: str, opened: Open) -> None:
    """[RSM-1, RSM-2] Also of those that were not served yet, and of those that are gone."""
    a, b = topic + "-a", topic + "-b"
    write(client, a, 1, 2)
    write(client, b, 1)
    stream = opened(named={b: {"tail": True}, a: {"from_seq": 1}})
    ids = [one.cursors for one in stream.take(4)[1:]]
    assert ids == [{a: 2, b: 1}] * 3
    assert decoded("eyJnYXRlLWV2ZW50cyI6OTA3LCJ3ZWlnaGJyaWRnZSI6MzJ9") == {"gate-events": 907, "weighbridge": 32}


def test_a_reconnect_without_an_id_goes_on_where_the_session_is(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[RSM-3, RSM-5, STR-7]"""
    write(client, topic, 1, 2)
    wid = watch(client, topic)["wid"]
    with open_stream(server, is_http2(client), wid) as first:
        first.until("caught-up")
    until_streams(server, 0)
    write(client, topic, 3)
    assert opened(wid=wid).take(2)[1].seqs == [3]


def test_a_session_that_began_above_the_head_skips_nothing(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[STR-7, EPO-3] The topic grows past the cursor that it began with, which no stream was ever handed."""
    write(client, topic, 1, 2)
    wid = watch(client, named={topic: {"from_seq": 5}})["wid"]
    first = opened(wid=wid)
    assert [one.cursors[topic] for one in first.until("caught-up")[1:]] == [0, 2, 2]
    second = opened(wid=wid)
    assert [one.kind for one in second.take(2)] == ["retry", "caught-up"]
    first.close()
    second.close()
    until_streams(server, 0)
    write(client, topic, 3, 4, 5, 6, 7)
    assert opened(wid=wid).until_seq(7) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("id", "first"),
    [
        ({"T": 1}, 2),
        ({"T": 0}, 1),
        ({"T": 3}, 4),
        ({"T": 99}, 4),
        ({"T": 2**64 - 1}, 4),
        ({"other": 1}, 4),
        ({"T": 1, "other": 1}, 2),
        ({}, 4),
    ],
    ids=str,
)
def test_an_id_lowers_the_cursor_and_never_raises_it(
    client: httpx.Client, server: Running, topic: str, opened: Open, id: dict[str, int], first: int
) -> None:
    """[RSM-3] Names that are not in the session are ignored."""
    write(client, topic, 1, 2, 3)
    wid = watch(client, topic)["wid"]
    with open_stream(server, is_http2(client), wid) as stream:
        stream.until("caught-up")
    until_streams(server, 0)
    write(client, topic, 4)
    sent = encoded({name.replace("T", topic): seq for name, seq in id.items()})
    again = opened(wid=wid, fields=(f"Last-Event-ID: {sent}",))
    assert again.until_seq(4)[0] == first


@pytest.mark.parametrize(
    "id",
    ["", "x", "!!!!", "e30=", "bnVsbA", "W10", "eyJhIjotMX0", "eyJhIjoxLjB9", "eyJhIjp0cnVlfQ", "eyJhIjoi", "_" * 4000,
     base64.urlsafe_b64encode(b"[" * 8_000).decode(), base64.urlsafe_b64encode(b'{"a":1e999}').decode().rstrip("="),
     base64.urlsafe_b64encode(b'{"\\ud800":1}').decode().rstrip("="),
     base64.urlsafe_b64encode(b'{"a":18446744073709551616}').decode().rstrip("="), "\u00e9"],
)  # fmt: skip
def test_an_id_that_is_none_is_ignored(
    client: httpx.Client, server: Running, topic: str, opened: Open, id: str
) -> None:
    """[RSM-4]"""
    write(client, topic, 1)
    wid = watch(client, topic)["wid"]
    fields = (f"Last-Event-ID: {id}",) if id or not is_http2(client) else ()
    assert opened(wid=wid, fields=fields).until_seq(1) == [1]
    assert streams(server) == 1


def test_two_streams_of_a_session_have_cursors_of_their_own(client: httpx.Client, topic: str, opened: Open) -> None:
    """[STR-7] Each delivers everything behind its start; the session keeps the highest."""
    write(client, topic, 1, 2)
    wid = watch(client, topic)["wid"]
    first = opened(wid=wid)
    assert first.until_seq(2) == [1, 2]
    first.until("caught-up")
    second = opened(wid=wid, fields=(f"Last-Event-ID: {encoded({topic: 1})}",))
    assert second.until_seq(2) == [2]
    write(client, topic, 3)
    assert first.until_seq(3) == [3]
    assert second.until_seq(3) == [3]
    third = opened(wid=wid)
    write(client, topic, 4)
    assert third.until_seq(4) == [4]


def test_a_rewound_stream_does_not_take_the_session_back(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[STR-7]"""
    write(client, topic, 1, 2, 3)
    wid = watch(client, topic, limit=1)["wid"]
    http2 = is_http2(client)
    with open_stream(server, http2, wid) as stream:
        stream.until("caught-up")
    until_streams(server, 0)
    with open_stream(server, http2, wid, f"Last-Event-ID: {encoded({topic: 0})}") as stream:
        stream.until("record")
    until_streams(server, 0)
    write(client, topic, 4)
    assert opened(wid=wid).take(2)[1].seqs == [4]


def test_frames_lost_with_a_topic_made_anew_are_sent_again(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[RSM-5] The id is of the old instance and so cannot say how far its owner is in the new one."""
    write(client, topic, 1, 2, 3, 4)
    wid = watch(client, topic)["wid"]
    http2 = is_http2(client)
    with open_stream(server, http2, wid) as stream:
        last = stream.until("caught-up")[-1].id
    until_streams(server, 0)
    client.delete(f"/v0/topics/{topic}")
    write(client, topic, "a", "b")
    with open_stream(server, http2, wid, f"Last-Event-ID: {last}") as stream:
        assert stream.until("record")[-1].seqs == [1, 2]
    until_streams(server, 0)
    again = opened(wid=wid, fields=(f"Last-Event-ID: {last}",))
    assert again.until("record")[-1].seqs == [1, 2]


def test_an_id_from_within_the_old_instance_loses_nothing_of_the_new_one(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[RSM-5] Everything behind it was lost, the end of the old instance as well; the new one has grown past it."""
    write(client, topic, 1, 2, 3, 4)
    wid = watch(client, topic, limit=2)["wid"]
    http2 = is_http2(client)
    with open_stream(server, http2, wid) as stream:
        ids = [one.id for one in stream.until("caught-up") if one.kind == "record"]
    until_streams(server, 0)
    client.delete(f"/v0/topics/{topic}")
    write(client, topic, *"abc")
    with open_stream(server, http2, wid) as stream:
        stream.until("caught-up")
    until_streams(server, 0)
    gap, record = opened(wid=wid, fields=(f"Last-Event-ID: {ids[0]}",)).take(3)[1:]
    assert (gap.kind, gap.cursors) == ("tombstone", {topic: 0})
    assert record.seqs == [1, 2]


@pytest.mark.parametrize("times", [1, 2])
def test_an_id_told_before_a_topic_was_deleted_loses_nothing_of_a_later_instance(
    client: httpx.Client, server: Running, topic: str, opened: Open, times: int
) -> None:
    """[RSM-5, FRM-5] The stream saw it deleted; what came of it later was lost, however often it was made anew."""
    write(client, topic, 1, 2, 3, 4)
    wid = watch(client, topic)["wid"]
    http2 = is_http2(client)
    with open_stream(server, http2, wid) as stream:
        stream.until("caught-up")
        client.delete(f"/v0/topics/{topic}")
        (last,) = stream.rest()
    assert (last.kind, last.cursors) == ("topic-deleted", {topic: 4})
    until_streams(server, 0)
    for number in range(times):
        client.delete(f"/v0/topics/{topic}")
        write(client, topic, *range(1 if number < times - 1 else 5))
        with open_stream(server, http2, wid) as stream:
            stream.until("caught-up")
        until_streams(server, 0)
    gap, record = opened(wid=wid, fields=(f"Last-Event-ID: {last.id}",)).take(3)[1:]
    assert (gap.kind, gap.cursors) == ("tombstone", {topic: 0})
    assert record.seqs == [1, 2, 3, 4, 5]


def test_a_reconnect_that_missed_what_retention_took_is_told(
    client: httpx.Client, server: Running, topic: str, opened: Open
) -> None:
    """[FRM-2, FRM-11]"""
    put(client, topic, cap_records=2)
    write(client, topic, 1)
    wid = watch(client, topic)["wid"]
    with open_stream(server, is_http2(client), wid) as stream:
        stream.until("caught-up")
    until_streams(server, 0)
    write(client, topic, 2, 3, 4, 5)
    _, gap, record, _ = opened(wid=wid).take(4)
    assert (gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("from_seq_too_old", 2, 3)
    assert (record.data["from_seq"], record.seqs) == (1, [4, 5])


def test_http_1_0_gets_a_stream_up_to_the_end_of_the_connection(server: Running, topic: str) -> None:
    """[API-25]"""
    with server.client() as client:
        write(client, topic, 1)
        wid = watch(client, topic)["wid"]
        with Stream1(server, f"/v0/watch/{wid}", (), version="1.0") as stream:
            assert stream.headers["connection"] == "close"
            assert "transfer-encoding" not in stream.headers
            assert stream.until_seq(1) == [1]
            client.delete(f"/v0/topics/{topic}")
            assert [one.kind for one in stream.rest()] == ["caught-up", "topic-deleted"]
    until_streams(server, 0)


def test_the_key_of_a_session_does_not_matter_without_keys(client: httpx.Client, server: Running, topic: str) -> None:
    """[WAU-3]"""
    put(client, topic)
    wid = watch(client, topic)["wid"]
    with open_stream(server, is_http2(client), wid, "Authorization: Bearer whatever", query="?token=x") as stream:
        assert stream.status == 200
    until_streams(server, 0)


def test_a_shorter_heartbeat_may_be_had_for_tests(topic: str) -> None:
    """(09 §6) `TOPICS_TEST_MIN_HEARTBEAT_MS`."""
    for value, want in (("5", 5), ("0", 1), ("5000", 1000)):
        with running(env={"TOPICS_TEST_MIN_HEARTBEAT_MS": value}) as one, one.client() as client:
            put(client, topic)
            session = one.server.app.sessions.get(watch(client, topic, heartbeat_ms=1)["wid"])
            assert session is not None
            assert session.heartbeat_ms == want
