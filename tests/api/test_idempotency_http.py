"""Writes that name themselves: idempotency keys and producers over HTTP (01 §15; 00 A-3, A-4)."""

from __future__ import annotations

from functools import partial

import httpx
import pytest

from tests.api.expect import (
    ANY,
    U64_MAX,
    Background,
    delete,
    diff,
    invalid,
    like,
    ok,
    put,
    refused,
    seqs,
    state,
    write,
)
from tests.api.kit import running
from topics.testing import ManualClock

# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_repeated_key_appends_nothing_and_tells_the_original(client: httpx.Client, topic: str) -> None:
    """[IDM-1, IDM-2, WR-4]"""
    first = write(client, topic, 1, 2, idempotency_key="k")
    write(client, topic, 3)
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": "other"}], "idempotency_key": "k"})
    assert answer.json()["performance"].keys() == {"server_total_ms"}
    assert ok(answer) == {**first, "created": False, "deduped": True}
    assert first["head_seq"] == 2
    answer = client.post(f"/v0/topics/{topic}?return_seqs=0", json={"records": [{"data": 1}], "idempotency_key": "k"})
    assert "seqs" not in ok(answer)
    assert state(client, topic)["head_seq"] == 3


def test_the_records_of_a_retry_are_validated(client: httpx.Client, topic: str) -> None:
    """[IDM-2]"""
    write(client, topic, 1, idempotency_key="k")
    invalid(client.post(f"/v0/topics/{topic}", json={"records": [], "idempotency_key": "k"}))
    invalid(client.post(f"/v0/topics/{topic}", json={"records": [{"tag": "x"}], "idempotency_key": "k"}))


def test_the_header_names_a_write_and_the_body_wins(client: httpx.Client, topic: str) -> None:
    """(02 §4) [API-27]"""

    def post(header: str | bytes, **more: object) -> httpx.Response:
        return client.post(
            f"/v0/topics/{topic}", json={"records": [{"data": 1}], **more}, headers={"idempotency-key": header}
        )  # type: ignore[arg-type]

    assert ok(post("one"), 201)["deduped"] is False
    assert ok(post("one"))["deduped"] is True
    assert ok(post("one", idempotency_key=None))["deduped"] is True
    assert ok(post("one", idempotency_key="two"))["last_seq"] == 2
    assert ok(post("three", idempotency_key="two"))["deduped"] is True
    assert ok(post("three"))["last_seq"] == 3
    assert ok(post("é".encode()))["last_seq"] == 4
    assert write(client, topic, 1, idempotency_key="é")["deduped"] is True
    invalid(post(""))
    invalid(post("", idempotency_key="five"))
    invalid(post("three", idempotency_key=""))
    invalid(post("x" * 257))
    invalid(post(b"\xff\xfe"))
    invalid(post("k", producer={"id": "p", "epoch": 1, "index": 1}))
    assert state(client, topic)["head_seq"] == 4


def test_keys_are_of_any_characters_up_to_256_bytes(client: httpx.Client, topic: str) -> None:
    """(01 §1.1)"""
    for at, key in enumerate(("x" * 256, "é" * 128, " ", "\u0000", 'a"b\\', "😀" * 64), 1):
        assert write(client, topic, 1, idempotency_key=key)["last_seq"] == at
        assert write(client, topic, 1, idempotency_key=key)["deduped"] is True


def test_a_key_is_of_its_topic_alone(client: httpx.Client, topic: str) -> None:
    """[IDM-1, IDM-6]"""
    write(client, topic, 1, idempotency_key="k")
    assert write(client, f"{topic}-b", 1, idempotency_key="k")["deduped"] is False


def test_a_key_is_forgotten_after_its_window(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[IDM-1]: only when more than the window has passed; a window of 0 keeps nothing."""
    put(timed, topic, idempotency_window_ms=1000)
    write(timed, topic, 1, idempotency_key="k")
    clock.jump(1000)
    assert write(timed, topic, 1, idempotency_key="k")["deduped"] is True
    clock.jump(1)
    assert write(timed, topic, 1, idempotency_key="k")["last_seq"] == 2
    put(timed, topic, idempotency_window_ms=0)
    assert write(timed, topic, 1, idempotency_key="z")["deduped"] is False
    assert write(timed, topic, 1, idempotency_key="z")["deduped"] is False


def test_concurrent_writes_with_one_key_append_once(client: httpx.Client, topic: str) -> None:
    """[IDM-3]: in every class, on a topic that is there and on one that the write creates."""
    body = {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}
    for durability in ("ephemeral", "memory", "disk", "fsync", None):
        name = f"{topic[:60]}-{durability}"
        if durability is not None:
            put(client, name, durability=durability)
        path = f"/v0/topics/{name}"
        asked = [Background(client, partial(httpx.Client.post, url=path, json=body)) for _ in range(8)]
        told = [one.answer().json() for one in asked]
        assert sorted(one["deduped"] for one in told) == [False] + [True] * 7
        assert all((one["seqs"], one["count"]) == ([1, 2], 2) for one in told)
        assert sum(one["created"] for one in told) == (durability is None)
        assert state(client, name)["head_seq"] == 2


def test_a_failed_write_leaves_no_entry(client: httpx.Client, topic: str) -> None:
    """[IDM-4]"""
    put(client, topic, discard="reject", cap_records=1)
    write(client, topic, 1)
    body = {"records": [{"data": 2}], "idempotency_key": "k", "producer": None}
    refused(client.post(f"/v0/topics/{topic}", json=body), 422, "topic_full", ANY)
    delete(client, topic, before_seq=2)
    assert ok(client.post(f"/v0/topics/{topic}", json=body))["deduped"] is False


def test_a_known_key_is_answered_though_the_topic_is_full(client: httpx.Client, topic: str) -> None:
    """[IDM-5]"""
    put(client, topic, discard="reject", cap_records=1)
    write(client, topic, 1, idempotency_key="k")
    assert write(client, topic, 1, idempotency_key="k")["deduped"] is True
    assert write(client, topic, 1, 2, 3, idempotency_key="k")["seqs"] == [1]


def test_a_key_outlives_its_records(client: httpx.Client, topic: str) -> None:
    """[IDM-2]"""
    write(client, topic, 1, idempotency_key="k")
    delete(client, topic, before_seq=2)
    assert write(client, topic, 1, idempotency_key="k")["seqs"] == [1]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_keys_survive_a_restart(client: httpx.Client, tmp_path: object, durability: str) -> None:
    """[A-3, IDM-2, IDM-6]: then with its own last seq as the head."""
    clock = ManualClock()
    with running(str(tmp_path), clock=clock) as first, like(client, first) as one:
        put(one, "t", durability=durability)
        write(one, "t", 1, 2, idempotency_key="k")
        write(one, "t", 3)
    for passed_ms, deduped in ((120_000, True), (1, False)):
        clock.jump(passed_ms)
        with running(str(tmp_path), clock=clock) as later, like(client, later) as one:
            told = write(one, "t", 9, idempotency_key="k")
            assert told["deduped"] is deduped
            if deduped:
                assert (told["seqs"], told["head_seq"], told["count"], told["created"]) == ([1, 2], 2, 2, False)
            else:
                assert told["seqs"] == [4]


def test_the_table_of_keys_is_bounded(client: httpx.Client) -> None:
    """[A-3]: the oldest leave."""
    with running(env={"TOPICS_IDEMPOTENCY_MAX_ENTRIES": "2"}) as small, like(client, small) as one:
        for key in ("a", "b", "c"):
            write(one, "t", 1, idempotency_key=key)
        assert write(one, "t", 1, idempotency_key="c")["deduped"] is True
        assert write(one, "t", 1, idempotency_key="b")["deduped"] is True
        assert write(one, "t", 1, idempotency_key="a")["deduped"] is False


# -- producers -------------------------------------------------------------------------------------------------------


def produce(client: httpx.Client, topic: str, id: str, epoch: int, index: int, *values: object) -> httpx.Response:
    records = [{"data": value} for value in values or ("x",)]
    producer = {"id": id, "epoch": epoch, "index": index}
    return client.post(f"/v0/topics/{topic}", json={"records": records, "producer": producer})


def test_the_newest_write_of_a_producer_is_answered_again(client: httpx.Client, topic: str) -> None:
    """[A-4, IDM-2]"""
    first = ok(produce(client, topic, "p", 3, 7, 1, 2), 201)
    assert (first["seqs"], first["deduped"]) == ([1, 2], False)
    write(client, topic, 3)
    answer = produce(client, topic, "p", 3, 7, 1, 2)
    assert answer.json()["performance"].keys() == {"server_total_ms"}
    assert ok(answer) == {**first, "created": False, "deduped": True}


def test_an_older_write_of_a_producer_has_no_seqs(client: httpx.Client, topic: str) -> None:
    """[A-4]"""
    for index in (0, 1, 2):
        produce(client, topic, "p", 1, index)
    for epoch, index in ((1, 1), (1, 0), (0, 99), (0, 0)):
        answer = produce(client, topic, "p", epoch, index)
        assert ok(answer) == {
            "topic": topic, "first_seq": None, "last_seq": None, "seqs": None, "head_seq": 3, "count": 0,
            "created": False, "deduped": True,
        }  # fmt: skip
    producer = {"id": "p", "epoch": 1, "index": 0}
    answer = client.post(f"/v0/topics/{topic}?return_seqs=false", json={"records": [{"data": 1}], "producer": producer})
    assert "seqs" not in ok(answer)


def test_an_index_may_not_skip_within_an_epoch(client: httpx.Client, topic: str) -> None:
    """[A-4]: a new epoch begins anywhere; the pair is left as it was."""
    assert ok(produce(client, topic, "p", 5, 40), 201)["last_seq"] == 1
    refused(produce(client, topic, "p", 5, 42), 409, "producer_gap", {"epoch": 5, "index": 40})
    refused(produce(client, topic, "p", 5, U64_MAX), 409, "producer_gap", {"epoch": 5, "index": 40})
    assert ok(produce(client, topic, "p", 5, 41))["last_seq"] == 2
    assert ok(produce(client, topic, "p", 6, 1000))["last_seq"] == 3
    assert ok(produce(client, topic, "p", U64_MAX, U64_MAX))["last_seq"] == 4
    assert ok(produce(client, topic, "p", U64_MAX, U64_MAX))["deduped"] is True
    assert ok(produce(client, topic, "q", 0, 0))["last_seq"] == 5
    assert state(client, topic)["head_seq"] == 5


def test_a_producer_is_of_its_topic_alone(client: httpx.Client, topic: str) -> None:
    """[A-4]"""
    ok(produce(client, topic, "p", 1, 5), 201)
    assert ok(produce(client, f"{topic}-b", "p", 1, 5), 201)["deduped"] is False


def test_a_failed_write_leaves_the_pair_as_it_was(client: httpx.Client, topic: str) -> None:
    """[A-4]"""
    put(client, topic, discard="reject", cap_records=1)
    ok(produce(client, topic, "p", 1, 0))
    refused(produce(client, topic, "p", 1, 1), 422, "topic_full", ANY)
    refused(produce(client, topic, "p", 1, 2), 409, "producer_gap", {"epoch": 1, "index": 0})
    delete(client, topic, before_seq=2)
    assert ok(produce(client, topic, "p", 1, 1))["deduped"] is False


def test_concurrent_repeats_of_a_producer_append_once(client: httpx.Client, topic: str) -> None:
    """[A-4, IDM-3]"""
    put(client, topic, durability="fsync")
    asked = [Background(client, lambda one: produce(one, topic, "p", 1, 1)) for _ in range(8)]
    told = [one.answer().json() for one in asked]
    assert sorted(one["deduped"] for one in told) == [False] + [True] * 7
    assert [one["seqs"] for one in told] == [[1]] * 8
    assert state(client, topic)["head_seq"] == 1


def test_producers_are_bounded_and_forgotten_when_unused(client: httpx.Client) -> None:
    """[A-4, RES-2]"""
    env = {"TOPICS_MAX_PRODUCERS": "2", "TOPICS_PRODUCER_TTL_MS": "1000"}
    clock = ManualClock()
    with running(env=env, clock=clock) as small, like(client, small) as one:
        ok(produce(one, "t", "a", 1, 0), 201)
        ok(produce(one, "t", "b", 1, 0))
        limit = {"limit": "max_producers", "max": 2}
        refused(produce(one, "t", "c", 1, 0), 429, "throttled", limit)
        refused(produce(one, "u", "a", 1, 0), 429, "throttled", limit)
        assert ok(produce(one, "t", "a", 1, 1))["deduped"] is False
        clock.jump(1001)
        assert ok(produce(one, "t", "c", 1, 0))["deduped"] is False
        assert ok(produce(one, "t", "a", 1, 0))["deduped"] is False


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_producers_survive_a_restart(client: httpx.Client, tmp_path: object, durability: str) -> None:
    """[A-4]"""
    with running(str(tmp_path)) as first, like(client, first) as one:
        put(one, "t", durability=durability)
        ok(produce(one, "t", "p", 1, 0))
        ok(produce(one, "t", "p", 1, 1, "a", "b"))
        write(one, "t", "c")
    with running(str(tmp_path)) as second, like(client, second) as one:
        again = ok(produce(one, "t", "p", 1, 1))
        assert (again["seqs"], again["head_seq"], again["deduped"]) == ([2, 3], 3, True)
        assert ok(produce(one, "t", "p", 1, 0))["seqs"] is None
        refused(produce(one, "t", "p", 1, 3), 409, "producer_gap", {"epoch": 1, "index": 1})
        assert ok(produce(one, "t", "p", 1, 2))["seqs"] == [5]
        assert seqs(diff(one, "t")) == [1, 2, 3, 4, 5]
