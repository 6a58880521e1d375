"""A write, and what a reader sees of it (02 §4, §5)."""

from __future__ import annotations

import httpx

from tests.api.kit import records


def test_a_write_is_answered_with_its_seqs_and_read_back_byte_for_byte(client: httpx.Client, topic: str) -> None:
    """[WR-3, DIF-2, REC-6]"""
    body = b'{"node":"dock-7","records":[{"data":{"kg": 412.50},"tag":"pallet:A19"},{"data":null,"meta":{"k":1e3}}]}'
    answer = client.post(f"/v0/topics/{topic}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    told = answer.json()
    assert told.pop("performance").keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert told == {
        "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2,
        "created": True, "deduped": False,
    }  # fmt: skip
    read = client.post(f"/v0/topics/{topic}/diff", json={"include_tags": True})
    assert read.status_code == 200
    assert b'"$node":"dock-7","$tag":"pallet:A19","data":{"kg":412.50}}' in read.content
    assert b'"meta":{"k":1e3},"data":null}' in read.content
    page = read.json()
    assert page["next_from_seq"] == page["head_seq"] == 2
    assert page["caught_up"] is True
    assert page["tombstone"] is None
    assert page["performance"]["records_scanned"] == 2


def test_a_second_write_finds_the_topic(client: httpx.Client, topic: str) -> None:
    """[WR-2]"""
    assert client.post(f"/v0/topics/{topic}", json=records(1)).status_code == 201
    answer = client.post(f"/v0/topics/{topic}?return_seqs=false", json=records(2, 3))
    assert answer.status_code == 200
    assert answer.json()["created"] is False
    assert "seqs" not in answer.json()
    assert answer.json()["last_seq"] == 3
