"""The server's own topics over HTTP and WebSocket: who may do what, and what they say [A-14, A-20, A-22]."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.expect import ANY, DEFAULT_CONFIG, diff, invalid, ok, put, refused, seqs, state, tagged, write
from tests.api.kit import WAIT_S, Running, records, running
from tests.api.watching import is_http2, open_stream, pass_time, watch
from tests.api.wskit import Ws
from topics.engine.config import EngineConfig
from topics.model import SYSTEM_TOPICS
from topics.testing import ManualClock

BOSS, READER, WRITER, PLANT, SYSTEM = "boss-9a", "reader-1b", "writer-2c", "plant-5f", "system-7d"
KEYS = f"{BOSS},{READER}:read,{WRITER}:rw,{PLANT}::plant3:,{SYSTEM}:read:$"
NAMES = ("$deletes", "$loss", "$pipelines", "$other")


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        yield one


def records_of(client: httpx.Client, name: str, topic: str) -> list[dict[str, Any]]:
    """What a system topic says of a topic, as far as it has been told."""
    answer = client.post(f"/v0/topics/{name}/diff", json={"include_tags": True, "limit": 1000})
    if answer.status_code == 404:
        return []
    return [one for one in answer.json()["records"] if one["$tag"] == topic]


def told(client: httpx.Client, name: str, topic: str, count: int) -> list[dict[str, Any]]:
    """The same, once there are so many."""
    end = time.monotonic() + WAIT_S
    while len(found := records_of(client, name, topic)) < count:
        assert time.monotonic() < end, f"{name} has {found} of {topic}"
    return [one["data"] for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_what_only_the_server_may_do_is_forbidden(client: httpx.Client, name: str) -> None:
    """[A-14] PUT, topic delete, record delete and queue calls, however the name is spelt."""
    detail = {"topic": name}
    for path in (f"/v0/topics/{name}", f"/v0/topics/{name.replace('$', '%24')}"):
        refused(client.put(path), 403, "forbidden", detail)
        refused(client.put(path, json={"ttl_ms": 5}), 403, "forbidden", detail)
        refused(client.delete(path), 403, "forbidden", detail)
        refused(client.delete(path, params={"if_empty": "true"}), 403, "forbidden", detail)
        for body in ({"before_seq": 1}, {"match": "*", "dry_run": True}, {"seqs": [1]}):
            refused(client.post(f"{path}/delete", json=body), 403, "forbidden", detail)
        refused(client.post(f"{path}/claim", json={"node": "w"}), 403, "forbidden", detail)
        for verb in ("ack", "nack"):
            refused(client.post(f"{path}/{verb}", json={"node": "w", "seqs": [1]}), 403, "forbidden", detail)
        extend = {"node": "w", "seqs": [1], "lease_ms": 1000}
        refused(client.post(f"{path}/extend", json=extend), 403, "forbidden", detail)
        refused(client.get(f"{path}/work", params={"node": "w"}), 403, "forbidden", detail)


@pytest.mark.parametrize("name", NAMES)
def test_no_router_begins_or_ends_there(client: httpx.Client, topic: str, name: str) -> None:
    """[A-14]"""
    for ends in ({"source": name, "dest": topic}, {"source": topic, "dest": name}):
        refused(client.put(f"/v0/routers/{topic}", json=ends), 403, "forbidden", {"topic": name})
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", ANY)


def test_writes_are_the_servers_but_for_pipelines(client: httpx.Client) -> None:
    """[A-14] 403 where it writes itself, 400 where there is nothing."""
    for name in ("$deletes", "$loss"):
        refused(client.post(f"/v0/topics/{name}", json=records(1)), 403, "forbidden", {"topic": name})
    for name in ("$other", "$", "$Deletes", "$pipelines2"):
        invalid(client.post(f"/v0/topics/{name}", json=records(1)))
        invalid(client.post(f"/v0/topics/{name}", json=records(1, create=False)))
    before = diff(client, "$pipelines")["head_seq"] if "$pipelines" in listed(client, system="true") else 0
    answer = client.post("/v0/topics/$pipelines", json=records({"run": 1}, config={"ttl_ms": 5}))
    assert ok(answer, 200 if before else 201)["first_seq"] == before + 1
    assert state(client, "$pipelines")["config"] == DEFAULT_CONFIG


def listed(client: httpx.Client, **query: str) -> list[str]:
    return [one["topic"] for one in ok(client.get("/v0/topics", params={"page_size": "1000", **query}))["topics"]]


def test_a_large_write_meets_the_same_rules(client: httpx.Client) -> None:
    """[A-14, P-10] It is decoded in pieces."""
    body = records(*("x" * 100_000 for _ in range(20)))
    refused(client.post("/v0/topics/$deletes", json=body), 403, "forbidden", {"topic": "$deletes"})
    invalid(client.post("/v0/topics/$other", json=body))


def test_lists_show_them_only_if_asked_to(client: httpx.Client, topic: str) -> None:
    """[A-14, 02 §3.3]"""
    write(client, topic, 1)
    ok(client.delete(f"/v0/topics/{topic}"))
    assert told(client, "$deletes", topic, 1)
    assert not [name for name in listed(client) if name.startswith("$")]
    assert listed(client, prefix="$") == []
    assert "$deletes" in listed(client, system="true")
    assert set(listed(client, system="true", prefix="$")) <= SYSTEM_TOPICS


def test_a_delete_is_told_with_what_it_asked_for(client: httpx.Client, topic: str) -> None:
    """[A-20]"""
    tagged(client, topic, "a", "b1", "b2", "c")
    ok(client.post(f"/v0/topics/{topic}/delete", json={"match": "b*"}))
    ok(client.post(f"/v0/topics/{topic}/delete", json={"seqs": [4]}))
    ok(client.post(f"/v0/topics/{topic}/delete", json={"before_seq": 2, "dry_run": True}))
    ok(client.delete(f"/v0/topics/{topic}"))
    found = told(client, "$deletes", topic, 3)
    whose = {"topic": topic, "id": found[0]["id"], "epoch": found[0]["epoch"]}
    assert found == [
        {**whose, "dn": 1, "before_seq": None, "match": ["tag", "Glob", "b*"], "seqs": None, "bound": 5, "removed": 2},
        {**whose, "dn": 2, "before_seq": None, "match": None, "seqs": [4], "bound": 5, "removed": 1},
        {**whose, "dn": 3, "drop": True},
    ]


def test_the_ids_are_those_of_the_plan(client: httpx.Client, topic: str) -> None:
    """[A-8, A-20] So that a reader of files knows which records are meant."""
    write(client, topic, 1)
    plan = ok(client.get(f"/v0/topics/{topic}/segments"))
    ok(client.post(f"/v0/topics/{topic}/delete", json={"before_seq": 9}))
    (said,) = told(client, "$deletes", topic, 1)
    assert (said["id"], said["epoch"]) == (plan["id"], plan["epoch"])
    assert ok(client.get("/v0/topics/$deletes/segments"))["class"] == "fsync"


def test_watchers_follow_them_like_any_topic(client: httpx.Client, server: Running, topic: str) -> None:
    """[A-14] SSE and long polls."""
    write(client, topic, 1)
    ok(client.post(f"/v0/topics/{topic}/delete", json={"before_seq": 1}))
    told(client, "$deletes", topic, 1)
    head = state(client, "$deletes")["head_seq"]
    session = watch(client, "$deletes")
    with open_stream(server, is_http2(client), session["wid"]) as stream:
        stream.until_seq(head)
        ok(client.post(f"/v0/topics/{topic}/delete", json={"before_seq": 2}))
        stream.until_seq(head + 1)
    assert seqs(diff(client, "$deletes", from_seq=head, wait_ms=20_000)) == [head + 1]


def test_over_a_websocket(server: Running, client: httpx.Client, topic: str) -> None:
    """[A-14, WS-12] Publish meets the rules of a write; subscribe follows."""
    with Ws(server) as ws:
        for name, code in (("$deletes", "forbidden"), ("$loss", "forbidden"), ("$other", "invalid_request")):
            reply = ws.ask("publish", request_id=1, topic=name, records=[{"data": 1}])
            assert (reply["op"], reply["code"]) == ("error", code)
        assert ws.ask("publish", topic="$pipelines", records=[{"data": 1}])["op"] == "ack"
        write(client, topic, 1)
        ok(client.delete(f"/v0/topics/{topic}"))
        told(client, "$deletes", topic, 1)
        head = state(client, "$deletes")["head_seq"]
        assert ws.ask("subscribe", topic="$deletes", from_seq=head - 1)["op"] == "subscribed"
        assert [one["$seq"] for one in ws.reply()["records"]] == [head]


def test_losses_are_told_within_ten_seconds(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[A-22] And counted."""
    put(timed, topic, cap_records=2)
    write(timed, topic, 1, 2, 3, 4, 5)
    pass_time(timed_server, clock, 10_000)
    (said,) = told(timed, "$loss", topic, 1)
    assert said == {
        "topic": topic, "id": said["id"], "epoch": said["epoch"], "gap_from": 1, "gap_to": 3, "reason": "cap",
    }  # fmt: skip
    text = timed.get("/v0/metrics").text
    for reason in ("cap", "ttl", "source_trim", "corrupt", "crash"):
        assert f'topics_lost_records_total{{reason="{reason}"}}' in text


def test_they_do_not_count(client: httpx.Client) -> None:
    """[A-14] Not as topics, records or bytes, and they have no series of their own."""
    write(client, "$pipelines", 1)
    told_now = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
    names = listed(client)
    assert told_now["topics"] == len(names)
    states = [state(client, name) for name in names]
    assert told_now["records_live"] == sum(one["count"] for one in states)
    assert told_now["bytes_live"] == sum(one["bytes"] for one in states)
    assert 'topic="$' not in client.get("/v0/metrics").text


def test_the_servers_topics_take_nobodys_place() -> None:
    """[A-14] `TOPICS_MAX_TOPICS` counts those of clients."""
    with running(env={"TOPICS_MAX_TOPICS": "1"}) as one, one.client() as client:
        put(client, "first")
        ok(client.post("/v0/topics/first/delete", json={"before_seq": 1}))
        told(client, "$deletes", "first", 1)
        write(client, "$pipelines", 1)
        refused(client.put("/v0/topics/second"), 429, "throttled", ANY)
        ok(client.delete("/v0/topics/first"))
        put(client, "second")


def test_scopes_and_prefixes(keyed: Running) -> None:
    """[A-14, 09 §2] Reading takes `read`, writing to `$pipelines` `write` and `admin`; prefixes apply to all."""
    with keyed.client(key=BOSS) as boss:
        write(boss, "plant3:a", 1)
        ok(boss.post("/v0/topics/plant3:a/delete", json={"before_seq": 2}))
        told(boss, "$deletes", "plant3:a", 1)
        write(boss, "$pipelines", 1)
    with keyed.client(key=READER) as reader:
        assert diff(reader, "$deletes")["head_seq"] == 1
        assert "$pipelines" in listed(reader, system="true")
        refused(reader.post("/v0/topics/$pipelines", json=records(1)), 403, "forbidden")
    with keyed.client(key=WRITER) as writer:
        refused(writer.post("/v0/topics/$pipelines", json=records(1)), 403, "forbidden", {"topic": "$pipelines"})
        refused(writer.post("/v0/topics/$deletes", json=records(1)), 403, "forbidden", {"topic": "$deletes"})
    with keyed.client(key=PLANT) as plant:
        refused(plant.post("/v0/topics/$deletes/diff"), 403, "forbidden")
        refused(plant.post("/v0/topics/$pipelines", json=records(1)), 403, "forbidden")
        assert listed(plant, system="true") == ["plant3:a"]
    with keyed.client(key=SYSTEM) as system:
        assert listed(system, system="true") == ["$deletes", "$pipelines"]
        assert state(system, "$deletes")["head_seq"] == 1
    for key, op in ((WRITER, "error"), (BOSS, "ack")):
        with Ws(keyed, f"Authorization: Bearer {key}") as ws:
            assert ws.ask("publish", topic="$pipelines", records=[{"data": 1}])["op"] == op


def test_too_many_deletes_that_wait_are_answered_503() -> None:
    """[A-20, A-5] With the state of the shard that holds `$deletes`; everything else goes on."""
    with (
        running(config=EngineConfig(deletes_pending_max=2, deletes_gather_ms=3_600_000)) as one,
        one.client() as client,
    ):
        write(client, "a", 1, 2, 3)
        for seq in (1, 2):
            ok(client.post("/v0/topics/a/delete", json={"seqs": [seq]}))
        refused(client.post("/v0/topics/a/delete", json={"seqs": [3]}), 503, "not_ready", {"state": "full"})
        refused(client.delete("/v0/topics/a"), 503, "not_ready", {"state": "full"})
        assert ok(client.post("/v0/topics/a/delete", json={"seqs": [3], "dry_run": True}))["deleted"] == 1
        assert seqs(diff(client, "a")) == [3]
        write(client, "a", 4)
