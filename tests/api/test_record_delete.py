"""Deleting records over HTTP (02 §6; 01 §14)."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.api.expect import (
    ANY,
    JSON,
    U64_MAX,
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
    tagged,
    write,
)
from tests.api.kit import running


def test_a_delete_is_answered_with_exactly_the_members_of_the_contract(client: httpx.Client, topic: str) -> None:
    """[DLR-2, DEL-7, DEL-10]: the state afterwards; the head stays; again deletes nothing."""
    tagged(client, topic, "aa", "b", "aa")
    answer = client.post(f"/v0/topics/{topic}/delete", json={"match": "aa"})
    assert answer.json()["performance"].keys() == {"server_total_ms"}
    expected = {"topic": topic, "deleted": 2, "earliest_seq": 2, "head_seq": 3, "count": 1, "bytes": 3}
    assert ok(answer) == expected
    assert seqs(diff(client, topic)) == [2]
    assert delete(client, topic, match="aa") == {**expected, "deleted": 0}
    now = state(client, topic)
    assert (now["head_seq"], now["earliest_seq"], now["count"], now["bytes"]) == (3, 2, 1, 3)
    assert delete(client, topic, before_seq=U64_MAX) == {
        **expected,
        "earliest_seq": 4,
        "count": 0,
        "bytes": 0,
        "deleted": 1,
    }


@pytest.mark.parametrize(
    ("selector", "gone"),
    [
        ({"before_seq": 0}, []), ({"before_seq": 1}, []), ({"before_seq": 3}, [1, 2]),
        ({"before_seq": U64_MAX}, [1, 2, 3, 4, 5, 6]), ({"before_seq": 2**53 + 1}, [1, 2, 3, 4, 5, 6]),
        ({"match": "a"}, [1]), ({"match": ["tag", "Eq", "a"]}, [1]), ({"match": ["tag", "Eq", "a*"]}, [3]),
        ({"match": "a*"}, [1, 2, 3]), ({"match": ["tag", "Glob", "a*"]}, [1, 2, 3]),
        ({"match": ["tag", "Glob", "a**"]}, [3]), ({"match": "*"}, [1, 2, 3, 5, 6]),
        ({"match": ["tag", "Glob", "*"]}, [1, 2, 3, 5, 6]), ({"match": ""}, [6]),
        ({"match": ["tag", "Eq", "*"]}, []), ({"match": "A"}, []), ({"match": "zz*"}, []), ({"match": "é*"}, [5]),
        ({"match": "a*", "before_seq": 3}, [1, 2]), ({"match": "a", "before_seq": None, "seqs": None}, [1]),
        ({"seqs": [2, 4]}, [2, 4]), ({"seqs": [4, 4, 99, 0, U64_MAX]}, [4]), ({"seqs": []}, []),
        ({"seqs": [1, 2, 5], "match": "a*"}, [1, 2]), ({"seqs": [4], "match": "*"}, []),
    ],
    ids=json.dumps,
)  # fmt: skip
def test_what_a_selector_removes(
    client: httpx.Client, topic: str, selector: dict[str, object], gone: list[int]
) -> None:
    """[DEL-2, DEL-3, DEL-4, DEL-11, DLR-4, GEN-2]: tried first, then done."""
    topic = topic[:30]
    tagged(client, topic, "a", "ab", "a*", None, "é", "")
    left = [seq for seq in range(1, 7) if seq not in gone]
    tried = delete(client, topic, **selector, dry_run=True)
    assert tried == {"topic": topic, "deleted": len(gone), **_now(client, topic)}
    assert seqs(diff(client, topic)) == [1, 2, 3, 4, 5, 6]
    done = delete(client, topic, **selector)
    assert done == {"topic": topic, "deleted": len(gone), **_now(client, topic)}
    page = diff(client, topic)
    assert (seqs(page), page["tombstone"]) == (left, None)
    assert delete(client, topic, **selector)["deleted"] == 0
    client.delete(f"/v0/topics/{topic}")


def _now(client: httpx.Client, topic: str) -> dict[str, object]:
    told = state(client, topic)
    return {name: told[name] for name in ("earliest_seq", "head_seq", "count", "bytes")}


BAD_DELETES: list[object] = [
    {}, {"before_seq": None}, {"match": None, "seqs": None, "before_seq": None}, {"dry_run": True}, {"other": 1},
    {"before_seq": -1}, {"before_seq": 2**64}, {"before_seq": 1.0}, {"before_seq": "1"}, {"before_seq": True},
    {"match": 5}, {"match": True}, {"match": {}}, {"match": []}, {"match": ["tag"]}, {"match": ["tag", "Eq"]},
    {"match": ["tag", "Eq", "x", "y"]}, {"match": ["tag", "eq", "x"]}, {"match": ["tag", "GLOB", "x*"]},
    {"match": ["node", "Eq", "x"]}, {"match": ["Tag", "Eq", "x"]}, {"match": ["tag", "Glob", "x"]},
    {"match": ["tag", "Glob", ""]}, {"match": ["tag", "Glob", "*x"]}, {"match": ["tag", "Eq", 5]},
    {"match": ["tag", "Eq", None]}, {"match": [1, 2, 3]}, {"match": ["tag", "Regex", "x"]},
    {"seqs": 5}, {"seqs": "1"}, {"seqs": {}}, {"seqs": [-1]}, {"seqs": [1.0]}, {"seqs": ["1"]}, {"seqs": [True]},
    {"seqs": [None]}, {"seqs": [2**64]}, {"seqs": [1], "before_seq": 2}, {"seqs": [], "before_seq": 2},
    {"seqs": [1], "dry_run": None}, {"seqs": [1], "dry_run": 1}, {"seqs": [1], "dry_run": "true"},
    [], None, "x", 5,
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_DELETES, ids=json.dumps)
def test_a_bad_selector_is_refused_before_the_topic_is_looked_for(
    client: httpx.Client, topic: str, body: object
) -> None:
    """[DLR-1, DEL-1, DEL-2, API-12, API-13]"""
    invalid(raw(client, "/v0/topics/never-made/delete", json.dumps(body)))
    if isinstance(body, dict):
        # As well on a topic that exists, where nothing is deleted.
        topic = topic[:30]
        tagged(client, topic, "x")
        invalid(raw(client, f"/v0/topics/{topic}/delete", json.dumps(body)))
        assert seqs(diff(client, topic))[:1] == [1]


def test_a_match_that_no_tag_can_have_is_refused_and_deletes_go_on(client: httpx.Client, topic: str) -> None:
    """[DLR-1, S-40]"""
    tagged(client, topic, "x", "y")
    for match in ("x" * 65_537, ["tag", "Eq", "x" * 65_537], "x" * 65_536 + "*"):
        assert "65536 bytes" in invalid(client.post(f"/v0/topics/{topic}/delete", json={"match": match}))
    assert delete(client, topic, match="x" * 65_536)["deleted"] == 0
    assert delete(client, topic, match="x*")["deleted"] == 1


def test_checks_of_a_delete_come_in_the_order_of_the_contract(client: httpx.Client) -> None:
    """[DLR-1, API-10]: content type, grammar, selector, topic."""
    path = "/v0/topics/never-made/delete"
    refused(client.post(path, content=b"{", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    refused(client.post(path), 415, "unsupported_media_type")
    invalid(client.post(path, headers=JSON))
    invalid(raw(client, path, "{"))
    invalid(raw(client, path, "{}"))
    refused(raw(client, path, '{"before_seq":1}'), 404, "topic_not_found", {"topic": "never-made"})


def test_too_many_seqs(client: httpx.Client, topic: str) -> None:
    """(02 §1.9)"""
    write(client, topic, 1)
    assert delete(client, topic, seqs=list(range(1000)))["deleted"] == 1
    answer = client.post(f"/v0/topics/{topic}/delete", json={"seqs": list(range(1001))})
    refused(answer, 400, "batch_too_large", ANY)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_only_post_deletes(client: httpx.Client, topic: str, method: str) -> None:
    """[DLR-3, API-21]"""
    put(client, topic)
    answer = client.request(method, f"/v0/topics/{topic}/delete")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        refused(answer, 405, "method_not_allowed")


def test_later_records_are_never_affected(client: httpx.Client, topic: str) -> None:
    """[DEL-5, INV-9]"""
    tagged(client, topic, "x", "x")
    assert delete(client, topic, match="x")["deleted"] == 2
    assert delete(client, topic, before_seq=100)["deleted"] == 0
    tagged(client, topic, "x")
    assert seqs(diff(client, topic)) == [3]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_deletes_survive_a_restart(client: httpx.Client, tmp_path: object, durability: str) -> None:
    """[DEL-6, INV-8]"""
    with running(str(tmp_path)) as first, like(client, first) as one:
        put(one, "t", durability=durability)
        tagged(one, "t", "a", "b", "c", "d", "a")
        delete(one, "t", match="a")
        delete(one, "t", before_seq=3)
        delete(one, "t", seqs=[4])
    with running(str(tmp_path)) as second, like(client, second) as one:
        assert seqs(diff(one, "t")) == [3]
        tagged(one, "t", "a")
        assert delete(one, "t", match="a")["deleted"] == 1
        assert delete(one, "t", match="*")["deleted"] == 1
        assert state(one, "t")["count"] == 0


def test_a_delete_of_an_ephemeral_topic(client: httpx.Client, topic: str) -> None:
    """[DUR-10]"""
    put(client, topic, durability="ephemeral")
    tagged(client, topic, "a", "b")
    assert delete(client, topic, match="a")["deleted"] == 1
    assert seqs(diff(client, topic)) == [2]


def test_deletes_free_room_under_caps(client: httpx.Client, topic: str) -> None:
    """[CAP-1]"""
    put(client, topic, cap_records=2, discard="reject")
    tagged(client, topic, "a", "b")
    delete(client, topic, match="a")
    assert tagged(client, topic, "c")["last_seq"] == 3
