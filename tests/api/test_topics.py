"""Topics over HTTP: create, configure, look at, delete (02 §3; 01 §2, §3, §5, §11, §16)."""

from __future__ import annotations

import httpx
import pytest

from tests.api.expect import (
    DEFAULT_CONFIG,
    JSON,
    U64_MAX,
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
    write,
)
from tests.api.kit import Running, running
from topics.testing import ManualClock

# -- PUT -------------------------------------------------------------------------------------------------------------


def test_put_creates_then_updates_and_echoes_the_stored_config(client: httpx.Client, topic: str) -> None:
    """[TOP-2, TOP-3, CFG-3, API-14]"""
    answer = client.put(f"/v0/topics/{topic}", json={"ttl_ms": 90_000})
    assert compact(answer)
    assert list(answer.json()["config"]) == list(DEFAULT_CONFIG)
    assert answer.json()["performance"].keys() == {"server_total_ms"}
    assert ok(answer, 201) == {"topic": topic, "created": True, "config": {**DEFAULT_CONFIG, "ttl_ms": 90_000}}
    again = client.put(f"/v0/topics/{topic}", json={"ttl_ms": 90_000})
    assert ok(again, 200) == {"topic": topic, "created": False, "config": {**DEFAULT_CONFIG, "ttl_ms": 90_000}}


def test_put_without_a_body_takes_every_default(client: httpx.Client, topic: str) -> None:
    """[API-10, CFG-1]"""
    answer = client.put(f"/v0/topics/{topic}")
    assert ok(answer, 201)["config"] == DEFAULT_CONFIG
    answer = client.put(f"/v0/topics/{topic}", headers=JSON)
    assert ok(answer, 200)["config"] == DEFAULT_CONFIG


def test_put_replaces_the_whole_config(client: httpx.Client, topic: str) -> None:
    """[CFG-1]"""
    put(client, topic, cap_records=3, discard="reject", priority=5)
    assert put(client, topic, ttl_ms=500)["config"] == {**DEFAULT_CONFIG, "ttl_ms": 500}
    assert state(client, topic)["config"] == {**DEFAULT_CONFIG, "ttl_ms": 500}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"durable": True}, {"durable": True, "durability": "fsync"}),
        ({"durable": False}, {"durable": False, "durability": "disk"}),
        ({"durable": True, "durability": "memory"}, {"durable": False, "durability": "memory"}),
        ({"durable": False, "durability": "fsync"}, {"durable": True, "durability": "fsync"}),
        ({"durability": "ephemeral"}, {"durable": False, "durability": "ephemeral"}),
        ({"durability": None, "durable": True}, {"durable": True, "durability": "fsync"}),
        ({"lease_ms": 1}, {"lease_ms": 100}),
        ({"lease_ms": U64_MAX}, {"lease_ms": 86_400_000}),
        ({"claim_jitter_ms": 5001}, {"claim_jitter_ms": 5000}),
        ({"priority": -(2**31)}, {"priority": -(2**31)}),
        ({"priority": 2**31 - 1}, {"priority": 2**31 - 1}),
        ({"priority": None, "dead_letter": None}, {}),
        ({"ttl_ms": U64_MAX, "cap_records": U64_MAX, "cap_bytes": 2**53 + 1}, {
            "ttl_ms": U64_MAX, "cap_records": U64_MAX, "cap_bytes": 2**53 + 1,
        }),
        ({"dead_letter": "dead", "max_deliveries": 7, "leases_durable": True}, {
            "dead_letter": "dead", "max_deliveries": 7, "leases_durable": True,
        }),
        ({"auto_create": False, "auto_priority": False, "dedupe_node": False, "idempotency_window_ms": 0}, {
            "auto_create": False, "auto_priority": False, "dedupe_node": False, "idempotency_window_ms": 0,
        }),
        ({"type": "queue"}, {"type": "queue"}),
        ({"unknown": {"deep": [None]}, "ttl-ms": "x"}, {}),
    ],
)  # fmt: skip
def test_config_is_stored_complete_clamped_and_consistent(
    client: httpx.Client, topic: str, given: dict[str, object], stored: dict[str, object]
) -> None:
    """[CFG-4, CFG-5, CFG-6, CFG-7, CFG-8]"""
    topic = topic[-40:].lstrip(".-_")
    assert put(client, topic, **given)["config"] == {**DEFAULT_CONFIG, **stored}
    assert state(client, topic)["config"] == {**DEFAULT_CONFIG, **stored}
    client.delete(f"/v0/topics/{topic}")


def test_unknown_config_members_are_ignored_whatever_they_hold(client: httpx.Client, topic: str) -> None:
    """[CFG-8, API-1]: also numbers that no type of the server holds."""
    body = b'{"vendor":{"x":1e999,"y":%b},"ttl_ms":5}' % (b"9" * 5000)
    answer = client.put(f"/v0/topics/{topic}", content=body, headers=JSON)
    assert ok(answer, 201)["config"]["ttl_ms"] == 5


NOT_INTEGERS: list[object] = [-1, 2**64, 5.0, "5", True, None, [], {}]
BAD_CONFIGS: list[dict[str, object]] = [
    {name: bad}
    for name in ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms",
                 "max_deliveries")
    for bad in NOT_INTEGERS
] + [
    {name: bad}
    for name in ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
    for bad in (0, 1, "true", None)
] + [
    {name: bad}
    for name in ("type", "discard")
    for bad in ("", "LOG", "Old", 1, None, True)
] + [
    {"durability": "none"}, {"durability": 1}, {"durability": ""}, {"priority": 2**31}, {"priority": -(2**31) - 1},
    {"priority": 1.0}, {"priority": True}, {"priority": "1"}, {"dead_letter": ""}, {"dead_letter": "a b"},
    {"dead_letter": "$deletes"}, {"dead_letter": 5}, {"dead_letter": "x" * 256},
]  # fmt: skip


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
def test_a_bad_config_value_is_refused_and_creates_nothing(client: httpx.Client, config: dict[str, object]) -> None:
    """[CFG-8, API-12, API-13, TOP-1]"""
    invalid(client.put("/v0/topics/never-made", json=config))
    refused(client.get("/v0/topics/never-made"), 404, "topic_not_found", {"topic": "never-made"})


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"5", b"{", b'{"ttl_ms":1}x', b" ", b'{"ttl_ms":01}'])
def test_a_config_that_is_no_object_is_refused(client: httpx.Client, body: bytes) -> None:
    """[API-11]"""
    invalid(client.put("/v0/topics/never-made", content=body, headers=JSON))


def test_only_a_queue_may_not_be_its_own_dead_letter_topic(client: httpx.Client, topic: str) -> None:
    """[TOP-1, CFG-7]"""
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": topic}))
    assert put(client, topic, dead_letter=topic)["created"] is True


def test_a_change_of_type_is_refused_and_changes_nothing(client: httpx.Client, topic: str) -> None:
    """[CFG-2]"""
    put(client, topic, cap_records=3)
    detail = {"topic": topic, "existing_type": "log", "requested_type": "queue"}
    refused(
        client.put(f"/v0/topics/{topic}", json={"type": "queue", "cap_records": 9}),
        409, "topic_exists_incompatible", detail,
    )  # fmt: skip
    assert state(client, topic)["config"] == {**DEFAULT_CONFIG, "cap_records": 3}
    put(client, f"{topic}-q", type="queue")
    detail = {"topic": f"{topic}-q", "existing_type": "queue", "requested_type": "log"}
    refused(client.put(f"/v0/topics/{topic}-q"), 409, "topic_exists_incompatible", detail)


def test_checks_of_put_come_in_the_order_of_the_contract(client: httpx.Client, topic: str) -> None:
    """[TOP-1]: name, values, own dead letter, type, max_topics."""
    invalid(client.put("/v0/topics/-bad", json={"ttl_ms": 1}))
    put(client, topic)
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "ttl_ms": -1}))
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": topic}))
    with running(env={"TOPICS_MAX_TOPICS": "1"}) as full, like(client, full) as other:
        put(other, "one")
        invalid(other.put("/v0/topics/-bad"))
        invalid(other.put("/v0/topics/two", json={"discard": "x"}))
        invalid(other.put("/v0/topics/two", json={"type": "queue", "dead_letter": "two"}))
        detail = {"topic": "one", "existing_type": "log", "requested_type": "queue"}
        refused(other.put("/v0/topics/one", json={"type": "queue"}), 409, "topic_exists_incompatible", detail)
        refused(other.put("/v0/topics/two"), 429, "throttled", {"limit": "max_topics", "max": 1})


def test_max_topics_counts_topics_and_spares_updates(client: httpx.Client) -> None:
    """[TOP-2, TOP-14, RES-2, RES-4]"""
    with running(env={"TOPICS_MAX_TOPICS": "2"}) as full, like(client, full) as other:
        put(other, "one")
        write(other, "two", 1)
        throttled = {"limit": "max_topics", "max": 2}
        refused(other.put("/v0/topics/three"), 429, "throttled", throttled)
        answer = other.post("/v0/topics/three", json={"records": [{"data": 1}], "disable_backpressure": True})
        refused(answer, 429, "throttled", throttled)
        assert put(other, "one", ttl_ms=5)["created"] is False
        assert write(other, "two", 2)["last_seq"] == 2
        ok(other.delete("/v0/topics/one"))
        assert put(other, "three")["created"] is True


def test_concurrent_creations_make_one_topic(client: httpx.Client, topic: str) -> None:
    """[NAME-8]"""
    puts = [Background(client, lambda one: one.put(f"/v0/topics/{topic}", json={})) for _ in range(8)]
    writes = [
        Background(client, lambda one: one.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]}))
        for _ in range(8)
    ]
    answers = [one.answer() for one in puts + writes]
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert [answer.json()["created"] for answer in answers].count(True) == 1
    assert state(client, topic)["head_seq"] == 8


# -- names -----------------------------------------------------------------------------------------------------------

BAD_NAMES = [
    "-x", ".x", "_x", ":x", "a b", "a%20b", "a%2Fb", "%2E%2E", "%C3%A9", "caf%C3%A9", "a%", "a%zz", "%FF", "a%00",
    "a*", "a>b", "a~", "x" * 256, "%EF%BF%BD", "a%0A", "@a", "a$",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_name_is_absent_to_lookups_and_refused_on_creation(client: httpx.Client, name: str) -> None:
    """[NAME-1, NAME-3, API-27, TOP-11]"""
    path = f"/v0/topics/{name}"
    assert client.get(path).status_code == 404
    assert client.get(path).json()["error"]["code"] == "topic_not_found"
    assert client.post(f"{path}/diff").json()["error"]["code"] == "topic_not_found"
    gone = client.post(f"{path}/delete", json={"before_seq": 1})
    assert gone.json()["error"]["code"] == "topic_not_found"
    told = ok(client.delete(path))
    assert told["deleted"] is False
    assert told["routers_removed"] == []
    invalid(client.put(path))
    invalid(client.post(path, json={"records": [{"data": 1}]}))
    absent = client.post(path, json={"records": [{"data": 1}], "create": False})
    assert absent.json()["error"]["code"] == "topic_not_found"


@pytest.mark.parametrize("name", ["a", "9", "A.b_c:d-e", "x" * 255, "0:"])
def test_a_good_name_is_accepted_as_it_is(client: httpx.Client, name: str) -> None:
    """[NAME-1]"""
    assert put(client, name)["topic"] == name
    assert state(client, name)["topic"] == name
    assert ok(client.delete(f"/v0/topics/{name}"))["deleted"] is True


def test_names_are_compared_by_bytes_and_percent_escapes_are_decoded_once(client: httpx.Client, topic: str) -> None:
    """[NAME-1, NAME-3, API-27]"""
    put(client, f"{topic}-K:1")
    assert state(client, f"{topic}-%4B%3a1")["topic"] == f"{topic}-K:1"
    detail = {"topic": f"{topic}-k:1"}
    refused(client.get(f"/v0/topics/{topic}-k:1"), 404, "topic_not_found", detail)
    twice = client.get(f"/v0/topics/{topic}-%254B:1")
    refused(twice, 404, "topic_not_found", {"topic": f"{topic}-%4B:1"})


def test_every_segment_of_a_path_is_decoded(client: httpx.Client, topic: str) -> None:
    """[API-27]: `%64iff` is `diff`."""
    write(client, topic, 1)
    assert ok(client.post(f"/v0/%74opics/{topic}/%64iff"))["head_seq"] == 1


def test_dot_segments_are_names_and_lead_nowhere_else(server: Running) -> None:
    """[API-27]: `..` is a malformed name, and no way up."""
    for path in (b"/v0/topics/..", b"/v0/topics/.", b"/v0/topics/x/../.."):
        asked = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
        answer = server.raw(asked)
        assert answer.startswith(b"HTTP/1.1 404 "), answer
        expected = b"topic_not_found" if path.count(b"/") == 3 else b"not_found"
        assert b'"code":"%b"' % expected in answer


# -- GET -------------------------------------------------------------------------------------------------------------


def test_state_of_a_fresh_topic(client: httpx.Client, topic: str) -> None:
    """[STA-2, TOP-6]"""
    put(client, topic)
    assert state(client, topic) == {
        "topic": topic, "type": "log", "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0, "bytes": 0,
        "config": DEFAULT_CONFIG, "effective_priority": 0, "last_write_ts": None, "last_read_ts": None,
        "earliest_ts": None,
    }  # fmt: skip


def test_state_tells_exact_counts_and_times(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[TOP-5, TOP-6, STA-1, REC-12]"""
    began = clock.now_ms()
    answer = timed.post(f"/v0/topics/{topic}", json={"records": [{"data": "ab", "meta": {"k": 1}}, {"data": None}]})
    ok(answer, 201)
    clock.jump(7)
    write(timed, topic, 12)
    assert state(timed, topic) == {
        "topic": topic, "type": "log", "head_seq": 3, "earliest_seq": 1, "next_seq": 4, "count": 3,
        "bytes": len('"ab"{"k":1}null12'), "config": DEFAULT_CONFIG, "effective_priority": 0,
        "last_write_ts": began + 7, "last_read_ts": None, "earliest_ts": began,
    }  # fmt: skip
    clock.jump(1)
    touched = ok(timed.get(f"/v0/topics/{topic}"))
    assert touched["last_read_ts"] == began + 8
    assert touched["effective_priority"] == 500
    delete(timed, topic, before_seq=3)
    now = state(timed, topic)
    assert (now["earliest_seq"], now["earliest_ts"], now["count"], now["bytes"]) == (3, began + 7, 1, 2)


@pytest.mark.parametrize(("touch", "touches"), [("true", 1), ("1", 1), ("false", 0), ("0", 0), ("x", 1), ("", 1)])
def test_touch_is_a_boolean_with_the_default_true(client: httpx.Client, topic: str, touch: str, touches: int) -> None:
    """[API-18, TOP-5]"""
    put(client, topic)
    told = ok(client.get(f"/v0/topics/{topic}", params={"touch": touch}))
    assert (told["last_read_ts"] is not None) == bool(touches)


def test_the_first_of_equal_parameters_counts(client: httpx.Client, topic: str) -> None:
    """[API-27]"""
    put(client, topic)
    assert ok(client.get(f"/v0/topics/{topic}?touch=false&touch=true&unknown=1"))["last_read_ts"] is None
    assert ok(client.get(f"/v0/topics/{topic}?t%6fuch=fals%65"))["last_read_ts"] is None
    assert ok(client.get(f"/v0/topics/{topic}?touch=true&touch=false"))["last_read_ts"] is not None


def test_looking_at_an_absent_topic_creates_nothing(client: httpx.Client, topic: str) -> None:
    """[TOP-4, DIF-1, NAME-7, ERR-1]"""
    absent = {"topic": topic}
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", absent)
    refused(client.post(f"/v0/topics/{topic}/diff"), 404, "topic_not_found", absent)
    refused(client.post(f"/v0/topics/{topic}/delete", json={"match": "x"}), 404, "topic_not_found", absent)
    assert ok(client.delete(f"/v0/topics/{topic}"))["deleted"] is False
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", absent)


def test_head_answers_like_get_without_a_body(client: httpx.Client, topic: str) -> None:
    """[API-21]"""
    write(client, topic, 1)
    answer = client.head(f"/v0/topics/{topic}")
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) > 0
    absent = client.head(f"/v0/topics/{topic}-absent")
    assert absent.status_code == 404
    assert absent.content == b""
    assert client.head("/v0/topics").status_code == 200


def test_priority_decays_and_a_manual_one_is_clamped_on_use(
    timed: httpx.Client, clock: ManualClock, topic: str
) -> None:
    """[PRI-1, PRI-2, PRI-3, PRI-4, CFG-6]"""
    write(timed, topic, 1)
    assert state(timed, topic)["effective_priority"] == 0
    diff(timed, topic)
    for passed_ms, expected in ((0, 500), (15_000, 354), (15_000, 250), (30_000, 125), (60_000, 31), (180_000, 0)):
        clock.jump(passed_ms)
        assert state(timed, topic)["effective_priority"] == expected
    put(timed, topic, priority=5000)
    diff(timed, topic)
    assert state(timed, topic)["effective_priority"] == 1000
    assert state(timed, topic)["config"]["priority"] == 5000
    put(timed, topic, priority=-5000)
    assert state(timed, topic)["effective_priority"] == -1000
    put(timed, topic, auto_priority=False)
    assert state(timed, topic)["effective_priority"] == 0


# -- DELETE ----------------------------------------------------------------------------------------------------------


def test_deleting_a_topic_removes_it_once(client: httpx.Client, topic: str) -> None:
    """[TOP-11, TOP-13]"""
    write(client, topic, 1)
    answer = client.delete(f"/v0/topics/{topic}")
    assert answer.json()["performance"].keys() == {"server_total_ms"}
    assert ok(answer) == {"topic": topic, "deleted": True, "routers_removed": []}
    assert ok(client.delete(f"/v0/topics/{topic}")) == {"topic": topic, "deleted": False, "routers_removed": []}
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})


def test_a_conditional_delete_spares_a_topic_with_records(client: httpx.Client, topic: str) -> None:
    """[TOP-12]"""
    write(client, topic, 1, 2, 3)
    refused(
        client.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty", {"topic": topic, "count": 3}
    )  # fmt: skip
    assert state(client, topic)["count"] == 3
    delete(client, topic, before_seq=4)
    assert ok(client.delete(f"/v0/topics/{topic}?if_empty=1"))["deleted"] is True


def test_a_conditional_delete_looks_at_what_has_expired(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[TTL-3, TOP-12]"""
    put(timed, topic, ttl_ms=100)
    write(timed, topic, 1)
    clock.jump(100)
    refused(timed.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty", {"topic": topic, "count": 1})
    clock.jump(1)
    assert ok(timed.delete(f"/v0/topics/{topic}?if_empty=true"))["deleted"] is True


def test_if_empty_has_the_default_false(client: httpx.Client, topic: str) -> None:
    """[API-18]"""
    write(client, topic, 1)
    assert ok(client.delete(f"/v0/topics/{topic}?if_empty=maybe"))["deleted"] is True


def test_a_recreated_topic_begins_anew(client: httpx.Client, topic: str) -> None:
    """[EPO-1, EPO-3, NAME-9]"""
    write(client, topic, 1, 2, 3, idempotency_key="k")
    ok(client.delete(f"/v0/topics/{topic}"))
    again = write(client, topic, "new", idempotency_key="k")
    assert (again["created"], again["deduped"], again["first_seq"]) == (True, False, 1)
    page = diff(client, topic, from_seq=3)
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 1, "reason": "recreated", "missed_estimate": 1, "earliest_seq": 1, "head_seq": 1,
    }  # fmt: skip
    assert seqs(page) == [1]


def test_a_delete_with_a_body_ignores_it(client: httpx.Client, topic: str) -> None:
    """[API-10]"""
    write(client, topic, 1)
    answer = client.request(
        "DELETE", f"/v0/topics/{topic}", content=b"\x00 not json", headers={"content-type": "text/plain"}
    )
    assert ok(answer)["deleted"] is True
    answer = client.request("GET", "/v0/topics", content=b"{", headers={"content-encoding": "br"})
    ok(answer)


# -- across a restart ------------------------------------------------------------------------------------------------


def test_config_and_records_survive_a_restart(client: httpx.Client, tmp_path: object) -> None:
    """[DUR-9, CFG-6]: every class keeps its config; all but `ephemeral` keep what a clean stop had."""
    classes = ("ephemeral", "memory", "disk", "fsync")
    before = {}
    with running(str(tmp_path)) as first, like(client, first) as one:
        for kind in classes:
            put(one, kind, durability=kind, cap_records=U64_MAX, priority=2**31 - 1)
            write(one, kind, 1, 2, 3)
            delete(one, kind, seqs=[2])
            before[kind] = state(one, kind)
        put(one, "gone")
        ok(one.delete("/v0/topics/gone"))
    with running(str(tmp_path)) as second, like(client, second) as one:
        refused(one.get("/v0/topics/gone"), 404, "topic_not_found", {"topic": "gone"})
        for kind in classes:
            after = state(one, kind)
            assert after["config"] == before[kind]["config"]
            assert after["head_seq"] == 3
            if kind != "ephemeral":
                assert after["count"] == 2
                assert seqs(diff(one, kind)) == [1, 3]
            else:
                assert after["count"] == 0
                assert diff(one, kind)["tombstone"] is None
            assert write(one, kind, 4)["first_seq"] == 4


def test_put_of_a_long_config_text_is_read_whole(client: httpx.Client, topic: str) -> None:
    """[API-1]: unknown members of any size are passed over."""
    answer = client.put(f"/v0/topics/{topic}", json={"note": "x" * 100_000, "ttl_ms": 1})
    assert ok(answer, 201)["config"]["ttl_ms"] == 1
    assert raw(client, f"/v0/topics/{topic}/diff", b'{"note":[[[[]]]],"limit":1}').status_code == 200
