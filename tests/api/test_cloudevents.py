"""CloudEvents in structured mode [API-9]."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.api.expect import ANY, diff, invalid, like, ok, put, raw, refused, state
from tests.api.kit import running

ONE = {"content-type": "application/cloudevents+json"}
BATCH = {"content-type": "application/cloudevents-batch+json"}


def event(**more: object) -> dict[str, object]:
    return {"specversion": "1.0", "type": "weighed", "source": "/dock/7", "id": "41", **more}


def test_an_event_becomes_a_record_as_it_was_sent(client: httpx.Client, topic: str) -> None:
    """[API-9, REC-6]"""
    text = '{"specversion":"1.0","type":"w","source":"/d","id":"1","subject":"pallet:A19","data":{"kg":1.50},"x":1e3}'
    spaced = text.replace(",", " ,\n").replace(":", ": ").replace("pallet: A19", "pallet:A19")
    answer = client.post(f"/v0/topics/{topic}", content=spaced, headers=ONE)
    told = ok(answer, 201)
    assert (told["seqs"], told["created"], told["deduped"]) == ([1], True, False)
    answer = client.post(f"/v0/topics/{topic}/diff", json={"include_tags": True})
    assert f'"$tag":"pallet:A19","data":{text}}}' in answer.text
    assert answer.json()["records"][0].keys() == {"$seq", "$ts", "$tag", "data"}


def test_source_and_id_are_the_key_of_a_single_event(client: httpx.Client, topic: str) -> None:
    """[API-9, IDM-2]"""
    path = f"/v0/topics/{topic}"
    ok(client.post(path, json=event(), headers=ONE), 201)
    again = ok(client.post(path, json=event(data=2), headers=ONE))
    assert (again["deduped"], again["seqs"]) == (True, [1])
    named = client.post(path, json={"records": [{"data": 1}], "idempotency_key": "/dock/7 41"})
    assert ok(named)["deduped"] is True
    assert ok(client.post(path, json=event(id="42"), headers={**ONE, "idempotency-key": "/dock/7 41"}))["last_seq"] == 2
    too_long = client.post(path, json=event(id="x" * 250), headers=ONE)
    invalid(too_long)


def test_a_batch_becomes_records_in_order_and_has_no_key(client: httpx.Client, topic: str) -> None:
    """[API-9]"""
    path = f"/v0/topics/{topic}"
    events = [event(subject="a"), event(id="42"), event(id="43", subject=None), event(id="44", subject="")]
    answer = client.post(path, json=events, headers=BATCH)
    assert ok(answer, 201)["seqs"] == [1, 2, 3, 4]
    records = diff(client, topic, include_tags=True)["records"]
    assert [record["data"] for record in records] == events
    assert [record.get("$tag") for record in records] == ["a", None, None, ""]
    assert ok(client.post(path, json=events, headers=BATCH))["deduped"] is False
    keyed = {**BATCH, "idempotency-key": "batch-1"}
    assert ok(client.post(path, json=events, headers=keyed))["last_seq"] == 12
    assert ok(client.post(path, json=events, headers=keyed))["deduped"] is True


@pytest.mark.parametrize("media", [
    "Application/CloudEvents+JSON", "application/cloudevents+json; charset=UTF-8",
    "application/cloudevents+json;a=batch",
])  # fmt: skip
def test_the_media_type_is_matched_without_parameters_and_case(client: httpx.Client, topic: str, media: str) -> None:
    """[API-9]"""
    answer = client.post(f"/v0/topics/{topic}", json=event(), headers={"content-type": media})
    assert ok(answer, 201)["count"] == 1


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"5", b"{}", json.dumps([event()]).encode(),
    *(json.dumps({k: v for k, v in event().items() if k != gone}).encode() for gone in event()),
    *(json.dumps({**event(), name: bad}).encode() for name in event() for bad in (None, 5)),
    json.dumps(event(subject=5)).encode(), json.dumps(event(subject="x" * 257)).encode(),
    b'{"specversion":"1.0","type":"w","source":"/d","id":"1","data":"\\ud800"}',
], ids=lambda body: body.decode()[:80])  # fmt: skip
def test_what_is_no_event_is_refused(client: httpx.Client, body: bytes) -> None:
    """[API-9, API-10, API-11]"""
    invalid(client.post("/v0/topics/never-made", content=body, headers=ONE))
    batch = body if body in (b"", b"{", b"[]", b"null", b"5", b"{}") else b"[%b]" % body
    invalid(client.post("/v0/topics/never-made", content=batch, headers=BATCH))


def test_limits_of_a_write_hold_for_events(client: httpx.Client) -> None:
    """(01 §1.1)"""
    env = {"TOPICS_MAX_BATCH_RECORDS": "2", "TOPICS_MAX_RECORD_BYTES": "100"}
    with running(env=env) as small, like(client, small) as one:
        many = [event(id=str(n)) for n in range(3)]
        refused(one.post("/v0/topics/t", json=many, headers=BATCH), 400, "batch_too_large", ANY)
        large = event(data="x" * 100)
        refused(one.post("/v0/topics/t", json=large, headers=ONE), 400, "record_too_large", ANY)
        assert ok(one.post("/v0/topics/t", json=many[:2], headers=BATCH), 201)["count"] == 2


def test_events_are_for_writes_only(client: httpx.Client, topic: str) -> None:
    """[API-9]"""
    put(client, topic)
    unsupported = (415, "unsupported_media_type")
    refused(client.put(f"/v0/topics/{topic}", json={}, headers=ONE), *unsupported)
    refused(client.post(f"/v0/topics/{topic}/diff", json={}, headers=ONE), *unsupported)
    refused(client.post(f"/v0/topics/{topic}/delete", json={}, headers=BATCH), *unsupported)
    frames = {"content-type": "application/vnd.topics.frames"}
    refused(client.post(f"/v0/topics/{topic}", content=b"x", headers=frames), *unsupported)
    plain = raw(client, f"/v0/topics/{topic}", json.dumps(event()))
    invalid(plain)
    assert state(client, topic)["head_seq"] == 0
