"""Reading after a cursor over HTTP (02 §5; 01 §6, §7, §8, §10, §12, §13)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.expect import (
    JSON,
    U64_MAX,
    Background,
    compact,
    delete,
    diff,
    invalid,
    like,
    lost,
    ok,
    put,
    raw,
    refused,
    seqs,
    state,
    tagged,
    waiting,
    write,
)
from tests.api.kit import WAIT_S, Running, running
from topics.testing import ManualClock

# -- one read --------------------------------------------------------------------------------------------------------


def test_a_diff_is_answered_with_exactly_the_members_of_the_contract(
    timed: httpx.Client, clock: ManualClock, topic: str
) -> None:
    """[DIF-2, API-14]"""
    write(timed, topic, 1, 2, 3)
    answer = timed.post(f"/v0/topics/{topic}/diff", json={"from_seq": 1, "limit": 1})
    assert compact(answer)
    performance = answer.json()["performance"]
    assert performance.keys() == {"server_total_ms", "records_scanned"}
    assert performance["records_scanned"] == 1
    assert ok(answer) == {
        "topic": topic, "records": [{"$seq": 2, "$ts": clock.now_ms(), "data": 2}], "next_from_seq": 2, "head_seq": 3,
        "earliest_seq": 1, "caught_up": False, "tombstone": None, "lag": 1,
    }  # fmt: skip


def test_a_diff_of_an_empty_topic(client: httpx.Client, topic: str) -> None:
    """[DIF-2, CUR-4, CUR-5]"""
    put(client, topic)
    expected = {
        "topic": topic, "records": [], "next_from_seq": 0, "head_seq": 0, "earliest_seq": 1, "caught_up": True,
        "tombstone": None, "lag": 0,
    }  # fmt: skip
    assert ok(client.post(f"/v0/topics/{topic}/diff")) == expected
    assert ok(client.post(f"/v0/topics/{topic}/diff", headers=JSON)) == expected
    assert ok(raw(client, f"/v0/topics/{topic}/diff", b"{}")) == expected


def test_paging_by_the_cursor_sees_every_record_once(client: httpx.Client, topic: str) -> None:
    """[PAG-1, CUR-1, CUR-2, CUR-5, CUR-6]"""
    write(client, topic, *range(10))
    found: list[int] = []
    cursor, more = 0, True
    while more:
        page = diff(client, topic, from_seq=cursor, limit=3)
        found += seqs(page)
        cursor, more = page["next_from_seq"], not page["caught_up"]
        assert page["lag"] == 10 - cursor
        assert page["caught_up"] == (cursor == 10)
    assert found == list(range(1, 11))
    page = diff(client, topic, from_seq=10)
    assert (page["records"], page["caught_up"], page["next_from_seq"], page["tombstone"]) == ([], True, 10, None)


def test_limits_are_clamped_and_never_refused(client: httpx.Client, topic: str) -> None:
    """[DIF-1, RD-6]"""
    write(client, topic, *range(1100))
    assert len(diff(client, topic)["records"]) == 256
    assert len(diff(client, topic, limit=0)["records"]) == 256
    assert len(diff(client, topic, limit=1)["records"]) == 1
    assert len(diff(client, topic, limit=1001)["records"]) == 1000
    assert len(diff(client, topic, limit=2**32 - 1)["records"]) == 1000
    assert len(diff(client, topic, max_batch_bytes=U64_MAX)["records"]) == 256
    assert seqs(diff(client, topic, from_seq=1099, wait_ms=2**32 - 1)) == [1100]


def test_the_byte_budget_ends_a_page_but_never_before_one_record(client: httpx.Client, topic: str) -> None:
    """[RD-5]"""
    write(client, topic, "x" * 8, "y" * 8, "z" * 8)
    assert seqs(diff(client, topic, max_batch_bytes=1)) == [1]
    assert seqs(diff(client, topic, max_batch_bytes=19)) == [1]
    page = diff(client, topic, max_batch_bytes=20)
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([1, 2], 2, False)
    assert seqs(diff(client, topic, max_batch_bytes=0)) == [1, 2, 3]
    large = f"{topic}-large"
    for _ in range(5):
        write(client, large, "x" * (2**18))
    assert seqs(diff(client, large)) == [1, 2, 3]
    assert len(diff(client, large, max_batch_bytes=2**40)["records"]) == 5


def test_pages_of_any_budget_skip_nothing(client: httpx.Client, topic: str) -> None:
    """[RD-5, INV-10]: large records among small ones, in the log and in segment files."""
    write(client, topic, *("x" * size for size in (1, 9, 2, 30, 0, 0, 17, 1, 40, 3)))
    for _ in range(2):
        for budget in range(1, 60):
            found: list[int] = []
            page: dict[str, Any] = {"next_from_seq": 0, "caught_up": False}
            while not page["caught_up"]:
                page = diff(client, topic, from_seq=page["next_from_seq"], max_batch_bytes=budget)
                sizes = [len(record["data"]) + 2 for record in page["records"]]
                assert len(sizes) == 1 or sum(sizes) <= budget
                found += seqs(page)
            assert found == list(range(1, 11)), budget
        ok(client.post("/v0/checkpoint"))


NOT_INTEGERS: list[object] = [-1, 1.0, 1.5, "1", True, None, [], {}]


@pytest.mark.parametrize(
    "body",
    [
        {name: bad}
        for name, most in (("from_seq", 2**64), ("from_ts", 2**64), ("limit", 2**32), ("wait_ms", 2**32),
                           ("max_batch_bytes", 2**64))
        for bad in (most, *NOT_INTEGERS)
    ] + [
        {name: bad} for name in ("include_tags", "include_meta") for bad in (0, 1, "true", None)
    ] + [
        {"node": 5}, {"node": [5]}, {"node": {"a": 1}}, {"node": [None]}, {"node": True}, {"node": "x" * 129},
        {"node": ["x" * 129]}, {"node": ["é" * 65]}, {"node": [str(n) for n in range(65)]},
        {"from_seq": 1, "from_ts": 1}, {"from_seq": 0, "from_ts": 1}, [], None, "x", 1,
    ],
    ids=str,
)  # fmt: skip
def test_an_ill_typed_diff_is_refused_before_the_topic_is_looked_for(client: httpx.Client, body: object) -> None:
    """[API-11, API-12, API-13, DIF-1] and the node limits of 02 §1.9."""
    invalid(raw(client, "/v0/topics/never-made/diff", json.dumps(body)))


@pytest.mark.parametrize(
    "body", [{"node": None}, {"node": []}, {"node": "x" * 128}, {"node": [str(n) for n in range(64)]}, {"other": 1}]
)
def test_well_typed_values_at_their_bounds(client: httpx.Client, topic: str, body: dict[str, object]) -> None:
    """[API-1, API-13, REC-13]"""
    put(client, topic[:40].rstrip("-"))
    diff(client, topic[:40].rstrip("-"), **body)


@pytest.mark.parametrize("cursor", [2, 2**53, 2**53 + 1, 2**63, U64_MAX])
def test_a_cursor_above_the_head_is_of_another_instance(client: httpx.Client, topic: str, cursor: int) -> None:
    """[EPO-3, GEN-2, TMB-2]"""
    topic = topic[:40]
    put(client, topic)
    page = diff(client, topic, from_seq=cursor)
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 0, "reason": "recreated", "missed_estimate": 0, "earliest_seq": 1, "head_seq": 0,
    }  # fmt: skip
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 0, True)
    write(client, topic, 1)
    page = diff(client, topic, from_seq=cursor)
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 1, "reason": "recreated", "missed_estimate": 1, "earliest_seq": 1, "head_seq": 1,
    }  # fmt: skip
    assert (seqs(page), page["next_from_seq"]) == ([1], 1)
    assert diff(client, topic, from_seq=1)["tombstone"] is None
    client.delete(f"/v0/topics/{topic}")


def test_a_recreated_cursor_continues_with_the_first_live_record(client: httpx.Client, topic: str) -> None:
    """[EPO-3, TMB-2]: also behind evicted and deleted ones; the tombstone has the topic's earliest seq."""
    put(client, topic, cap_records=3)
    write(client, topic, *range(6))
    delete(client, topic, seqs=[4])
    page = diff(client, topic, from_seq=7)
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 6, "reason": "recreated", "missed_estimate": 6, "earliest_seq": 5, "head_seq": 6,
    }  # fmt: skip
    assert seqs(page) == [5, 6]


def test_reading_from_a_time(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[DIF-1] (02 §5): the cursor just before the first record with `$ts` at or above it."""
    times = []
    for value in range(3):
        write(timed, topic, value, value)
        times.append(clock.now_ms())
        clock.jump(10)
    assert seqs(diff(timed, topic, from_ts=0)) == [1, 2, 3, 4, 5, 6]
    assert seqs(diff(timed, topic, from_ts=times[1])) == [3, 4, 5, 6]
    assert seqs(diff(timed, topic, from_ts=times[1] + 1)) == [5, 6]
    for late in (times[2] + 1, 2**53, 2**63, U64_MAX):
        page = diff(timed, topic, from_ts=late)
        assert (page["records"], page["caught_up"], page["tombstone"]) == ([], True, None)
    put(timed, f"{topic}-empty")
    assert diff(timed, f"{topic}-empty", from_ts=5)["next_from_seq"] == 0


# -- node filter -----------------------------------------------------------------------------------------------------


def test_own_records_are_passed_over_silently(client: httpx.Client, topic: str) -> None:
    """[NOD-1, NOD-2, RD-3, CUR-4, TMB-3]"""
    for node in ("a", "b", None, "", "A"):
        ok(
            client.post(f"/v0/topics/{topic}", json={"records": [{"data": node, "node": node}]}),
            201 if node == "a" else 200,
        )
    assert seqs(diff(client, topic, node="a")) == [2, 3, 4, 5]
    assert seqs(diff(client, topic, node=["a", "b", ""])) == [3, 5]
    assert seqs(diff(client, topic, node=[])) == [1, 2, 3, 4, 5]
    assert seqs(diff(client, topic, node=None)) == [1, 2, 3, 4, 5]
    page = diff(client, topic, from_seq=4, node="A")
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 5, True, None)
    answer = client.post(f"/v0/topics/{topic}/diff", json={"node": "a", "limit": 1})
    assert answer.json()["performance"]["records_scanned"] == 2
    assert ok(answer)["next_from_seq"] == 2


def test_a_topic_may_switch_the_filter_off(client: httpx.Client, topic: str) -> None:
    """[NOD-4]"""
    put(client, topic, dedupe_node=False)
    write(client, topic, 1, node="a")
    assert seqs(diff(client, topic, node="a")) == [1]


# -- floors, tombstones ----------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_two_floors(client: httpx.Client, topic: str) -> None:
    """(01 §7) [FLR-2, FLR-3, FLR-6, TMB-1]"""
    put(client, topic, cap_records=4)
    write(client, topic, *range(9))
    assert state(client, topic)["earliest_seq"] == 6
    delete(client, topic, before_seq=8)
    page = diff(client, topic, from_seq=2)
    assert page["tombstone"] == lost(3, 5, "cap", 9)
    assert (seqs(page), page["earliest_seq"]) == ([8, 9], 8)
    page = diff(client, topic, from_seq=5)
    assert (page["tombstone"], seqs(page)) == (None, [8, 9])
    page = diff(client, topic, from_seq=4)
    assert page["tombstone"] == lost(5, 5, "cap", 9)


def test_a_tombstone_does_not_consume_the_limit_and_advances_the_cursor(client: httpx.Client, topic: str) -> None:
    """[TMB-4, RD-1, CUR-4]"""
    put(client, topic, cap_records=2)
    write(client, topic, 1, 2, 3, 4)
    page = diff(client, topic, limit=1)
    assert (page["tombstone"], seqs(page), page["next_from_seq"]) == (lost(1, 2, "cap", 4), [3], 3)
    write(client, topic, 5, 6)
    page = diff(client, topic, from_seq=page["next_from_seq"])
    assert (page["tombstone"], seqs(page)) == (lost(4, 4, "cap", 6), [5, 6])


def test_a_record_expires_strictly_after_its_ttl(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[TTL-1, TTL-2, TTL-4, STA-1]"""
    put(timed, topic, ttl_ms=100)
    write(timed, topic, 1)
    clock.jump(50)
    write(timed, topic, 2)
    clock.jump(50)
    assert seqs(diff(timed, topic)) == [1, 2]
    clock.jump(1)
    page = diff(timed, topic)
    assert (page["tombstone"], seqs(page)) == (lost(1, 1, "ttl", 2), [2])
    now = state(timed, topic)
    assert (now["count"], now["bytes"], now["earliest_seq"]) == (1, 1, 2)
    clock.jump(-51)
    assert seqs(diff(timed, topic)) == [2]
    put(timed, topic)
    page = diff(timed, topic)
    assert (page["tombstone"], seqs(page)) == (lost(1, 1, "ttl", 2), [2])


def test_expiry_is_applied_by_every_operation_that_looks(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[TTL-3]: state, diff, delete."""
    for name in ("state", "diff", "delete"):
        put(timed, f"{topic}-{name}", ttl_ms=10)
        tagged(timed, f"{topic}-{name}", "x")
    clock.jump(11)
    assert state(timed, f"{topic}-state")["count"] == 0
    assert diff(timed, f"{topic}-diff")["tombstone"] == lost(1, 1, "ttl", 1)
    assert delete(timed, f"{topic}-delete", match="x")["deleted"] == 0


def test_expiry_of_everything_leaves_the_head(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[STA-3, SEQ-4, FLR-2]"""
    put(timed, topic, ttl_ms=10)
    write(timed, topic, 1, 2, 3)
    clock.jump(11)
    page = diff(timed, topic)
    assert page["tombstone"] == lost(1, 3, "ttl", 3)
    assert (page["records"], page["next_from_seq"], page["earliest_seq"], page["caught_up"]) == ([], 3, 4, True)
    assert write(timed, topic, 4)["first_seq"] == 4


def test_a_gap_of_both_causes_is_mixed(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[FLR-1] (01 §10)"""
    put(timed, topic, cap_records=3, ttl_ms=100)
    write(timed, topic, 1, 2, 3, 4)
    clock.jump(60)
    write(timed, topic, 5)
    assert diff(timed, topic)["tombstone"] == lost(1, 2, "cap", 5)
    clock.jump(41)
    assert diff(timed, topic)["tombstone"] == lost(1, 4, "mixed", 5)
    assert diff(timed, topic, from_seq=1)["tombstone"] == lost(2, 4, "mixed", 5)
    assert diff(timed, topic, from_seq=2)["tombstone"] == lost(3, 4, "ttl", 5)


def test_deletes_never_cause_a_tombstone(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[TMB-3, FLR-4, DEL-8, INV-6]: nor do they when the deleted records would have aged out."""
    put(timed, topic, ttl_ms=100, cap_records=3)
    write(timed, topic, 1, 2)
    delete(timed, topic, before_seq=3)
    clock.jump(101)
    write(timed, topic, 3, 4, 5)
    page = diff(timed, topic)
    assert (page["tombstone"], seqs(page)) == (None, [3, 4, 5])


def test_tightened_limits_are_enforced_at_once(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[CFG-9]"""
    write(timed, topic, 1, 2, 3)
    clock.jump(10)
    write(timed, topic, 4, 5)
    put(timed, topic, ttl_ms=5)
    assert seqs(diff(timed, topic, from_seq=3)) == [4, 5]
    put(timed, topic, ttl_ms=5, cap_records=1)
    assert state(timed, topic)["earliest_seq"] == 5
    put(timed, topic)
    page = diff(timed, topic)
    assert (page["tombstone"], seqs(page)) == (lost(1, 4, "mixed", 5), [5])


def test_floors_survive_a_restart(client: httpx.Client, tmp_path: object) -> None:
    """[DUR-12, TMB-5]: exact ranges after a restart, a relaxed cap and a clock that went back."""
    clock = ManualClock()
    with running(str(tmp_path), clock=clock) as first, like(client, first) as one:
        put(one, "cap", cap_records=2)
        write(one, "cap", 1, 2, 3, 4, 5)
        put(one, "ttl", ttl_ms=100)
        write(one, "ttl", 1, 2)
        clock.jump(101)
        write(one, "ttl", 3)
        assert diff(one, "ttl")["tombstone"] == lost(1, 2, "ttl", 3)
    clock.jump(-101)
    with running(str(tmp_path), clock=clock) as second, like(client, second) as one:
        put(one, "cap")
        put(one, "ttl")
        page = diff(one, "cap")
        assert (page["tombstone"], seqs(page)) == (lost(1, 3, "cap", 5), [4, 5])
        page = diff(one, "ttl")
        assert (page["tombstone"], seqs(page)) == (lost(1, 2, "ttl", 3), [3])


def test_a_long_walk_over_dead_seqs_ends_at_the_head_in_some_reads(client: httpx.Client, topic: str) -> None:
    """[RD-4, INV-10]"""
    for _ in range(3):
        ok(client.post(f"/v0/topics/{topic}?return_seqs=0", json={
            "records": [{"data": 0, "node": "own"}] * 10_000,
        }), 201 if _ == 0 else 200)  # fmt: skip
    write(client, topic, "last")
    cursor, reads = 0, 0
    while not (page := diff(client, topic, from_seq=cursor, node="own"))["caught_up"]:
        assert page["next_from_seq"] >= cursor + 10_000
        cursor, reads = page["next_from_seq"], reads + 1
        assert reads < 4
    assert [record["data"] for record in page["records"]] == ["last"]


# -- touching --------------------------------------------------------------------------------------------------------


def test_a_diff_touches_the_topic(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[DIF-3, PRI-4]"""
    put(timed, topic)
    assert state(timed, topic)["last_read_ts"] is None
    diff(timed, topic)
    now = state(timed, topic)
    assert (now["last_read_ts"], now["effective_priority"]) == (clock.now_ms(), 500)


# -- waiting ---------------------------------------------------------------------------------------------------------


def poll(client: httpx.Client, topic: str, **body: object) -> Background:
    return Background(client, lambda one: one.post(f"/v0/topics/{topic}/diff", json={"wait_ms": 30_000, **body}))


def test_a_long_poll_is_answered_by_the_next_publish(client: httpx.Client, server: Running, topic: str) -> None:
    """[DIF-4]"""
    write(client, topic, 1)
    asked = poll(client, topic, from_seq=1, include_tags=True)
    waiting(server)
    tagged(client, topic, "t")
    page = ok(asked.answer())
    assert [(record["$seq"], record["$tag"]) for record in page["records"]] == [(2, "t")]
    assert (page["next_from_seq"], page["head_seq"], page["caught_up"]) == (2, 2, True)


def test_a_long_poll_does_not_wait_when_there_is_something(client: httpx.Client, topic: str) -> None:
    """[DIF-4]: records, a tombstone, or not caught up."""
    put(client, topic, cap_records=1)
    write(client, topic, 1, 2)
    assert seqs(diff(client, topic, from_seq=1, wait_ms=30_000)) == [2]
    delete(client, topic, before_seq=3)
    page = diff(client, topic, from_seq=0, wait_ms=30_000)
    assert (page["tombstone"], page["records"]) == (lost(1, 1, "cap", 2), [])
    assert diff(client, topic, from_seq=9, wait_ms=30_000)["tombstone"]["reason"] == "recreated"


def test_a_long_poll_over_own_records_answers_early_and_empty(
    client: httpx.Client, server: Running, topic: str
) -> None:
    """[DIF-4], open point 12."""
    put(client, topic)
    asked = poll(client, topic, node="me")
    waiting(server)
    write(client, topic, 1, 2, node="me")
    page = ok(asked.answer())
    assert (page["records"], page["next_from_seq"], page["head_seq"], page["caught_up"]) == ([], 2, 2, True)


def test_a_long_poll_ends_with_its_first_read_when_the_time_is_over(client: httpx.Client, topic: str) -> None:
    """[DIF-4]"""
    write(client, topic, 1)
    page = diff(client, topic, from_seq=1, wait_ms=30)
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 1, True, None)


def test_waiting_is_measured_on_the_clock_and_clamped(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[DIF-1, GEN-1]: at most 30 s."""
    put(timed, topic)
    asked = poll(timed, topic, wait_ms=2**32 - 1)
    waiting(timed_server)
    clock.advance(30_000)
    assert ok(asked.answer())["records"] == []


def test_deletes_do_not_wake_a_long_poll(client: httpx.Client, server: Running, topic: str) -> None:
    """[DEL-12]"""
    write(client, topic, 1, 2)
    asked = poll(client, topic, from_seq=2)
    waiting(server)
    delete(client, topic, before_seq=2)
    waiting(server)
    write(client, topic, 3)
    assert seqs(ok(asked.answer())) == [3]


def test_deleting_the_topic_ends_a_long_poll(client: httpx.Client, server: Running, topic: str) -> None:
    """[DIF-6]"""
    put(client, topic)
    asked = poll(client, topic)
    waiting(server)
    ok(client.delete(f"/v0/topics/{topic}"))
    refused(asked.answer(), 404, "topic_not_found", {"topic": topic})


def test_no_publish_is_missed_between_the_read_and_the_wait(client: httpx.Client, topic: str) -> None:
    """[DIF-5]: a reader and a writer race; every record arrives, none takes the whole wait."""
    put(client, topic)
    rounds = 60
    found: list[int] = []

    def read(one: httpx.Client) -> httpx.Response:
        cursor = 0
        while cursor < rounds:
            answer = one.post(f"/v0/topics/{topic}/diff", json={"from_seq": cursor, "wait_ms": 20_000})
            page = answer.json()
            assert page["records"], "waited in vain"
            found.extend(seqs(page))
            cursor = page["next_from_seq"]
        return answer

    reader = Background(client, read)
    for value in range(rounds):
        write(client, topic, value)
    reader.answer()
    assert found == list(range(1, rounds + 1))


def test_many_long_polls_are_woken_by_one_write(client: httpx.Client, server: Running, topic: str) -> None:
    """[DIF-4]"""
    put(client, topic)
    asked = [poll(client, topic) for _ in range(8)]
    waiting(server, 8)
    write(client, topic, 1)
    assert [seqs(ok(one.answer())) for one in asked] == [[1]] * 8


def test_a_waiting_request_occupies_its_slot(client: httpx.Client) -> None:
    """[DIF-7, RES-7]"""
    env = {"TOPICS_API_KEYS": "one,two", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(env=env) as small, like(client, small, key="one") as one, like(client, small, key="two") as two:
        put(one, "t")
        asked = poll(one, "t")
        waiting(small)
        limit = {"limit": "max_inflight_per_key", "max": 1}
        refused(one.get("/v0/topics/t"), 429, "throttled", limit)
        assert write(two, "t", 1)["last_seq"] == 1
        assert seqs(ok(asked.answer())) == [1]
        assert state(one, "t")["head_seq"] == 1


def test_a_long_poll_is_answered_when_the_server_stops(client: httpx.Client) -> None:
    """[API-5]: with its first read."""
    with running() as other, like(client, other) as one:
        put(one, "t")
        asked = poll(one, "t")
        waiting(other)
        other.stop()
        assert ok(asked.answer())["records"] == []


def test_a_client_that_leaves_takes_its_wait_along(client: httpx.Client) -> None:
    """[API-23, RES-7]: the waiter and the slot are released; also where expiry had to be logged first."""
    env = {"TOPICS_API_KEYS": "one", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    clock = ManualClock()
    with running(env=env, clock=clock) as small, like(client, small, key="one") as one:
        put(one, "t", ttl_ms=100)
        write(one, "t", 1)
        clock.jump(101)
        with like(client, small, key="one") as leaving, pytest.raises(httpx.ReadTimeout):
            patience = httpx.Timeout(WAIT_S, read=0.3)
            leaving.post("/v0/topics/t/diff", json={"from_seq": 1, "wait_ms": 30_000}, timeout=patience)
        waiting(small, 0)
        assert state(one, "t")["count"] == 0
