"""`POST /v0/topics/{topic}/scan` on a real socket: stored frames, exact bytes, and how to go on [A-21]."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.api.expect import like
from tests.api.kit import Running, records, running
from tests.api.rawclient import RawClient, in_flight, leave, request, until
from topics.codec import envelope, segment
from topics.codec.place import topic_mask
from topics.engine.config import EngineConfig
from topics.server.scan import AT_ONCE

FRAMES = "application/vnd.topics.frames"


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    """A server whose segments hold eight records."""
    with running(config=EngineConfig(segment_max_events=8)) as one:
        yield one


@pytest.fixture
def there(client: httpx.Client, small: Running) -> Iterator[httpx.Client]:
    with like(client, small) as one:
        yield one


class Page(NamedTuple):
    """An answer, decoded."""

    seqs: list[int]
    values: list[Any]
    next_seq: int
    head_seq: int
    tombstone: dict[str, Any] | None
    raw: bytes


def scan(client: httpx.Client, topic: str, **body: Any) -> Page:
    answer = client.post(f"/v0/topics/{topic}/scan", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == FRAMES
    id = client.get(f"/v0/topics/{topic}/segments").json()["id"]
    found = segment.decode_scan(answer.content, topic_mask(id))
    values = []
    for seq, offset in zip(found.seqs.tolist(), found.entries["offset"].tolist(), strict=True):
        values.append(json.loads(envelope.parts(segment.decode(found.frames, offset, seq, topic_mask(id)).data)[0]))
    told = answer.headers.get("topics-tombstone")
    return Page(
        found.seqs.tolist(),
        values,
        int(answer.headers["topics-next-seq"]),
        int(answer.headers["topics-head-seq"]),
        None if told is None else json.loads(told),
        answer.content,
    )


def fill(client: httpx.Client, topic: str, count: int, **config: Any) -> None:
    client.put(f"/v0/topics/{topic}", json=config)
    client.post(f"/v0/topics/{topic}", json=records(*range(1, count + 1)))


def test_records_come_from_segments_and_the_log_alike(there: httpx.Client, topic: str) -> None:
    """A-21: sealed, active and tail in one answer; nothing else is said."""
    fill(there, topic, 20)
    there.post("/v0/checkpoint")
    there.post(f"/v0/topics/{topic}", json=records(21, 22))
    page = scan(there, topic)
    assert page.seqs == page.values == list(range(1, 23))
    assert (page.next_seq, page.head_seq, page.tombstone) == (23, 22, None)
    assert scan(there, topic, from_seq=23)._replace(raw=b"") == Page([], [], 23, 22, None, b"")
    assert scan(there, topic, from_seq=23).raw == bytes(4)


def test_the_answer_holds_the_very_bytes_that_the_segments_hold(
    there: httpx.Client, small: Running, topic: str
) -> None:
    """A-21, S-135: n, entries with offsets from the first frame, frames masked as stored; before and after."""
    there.put(f"/v0/topics/{topic}", json={"durability": "fsync"})
    body = {"records": [{"data": n, "tag": "t" * n or None, "node": "n", "meta": {"k": n}} for n in range(7)]}
    there.post(f"/v0/topics/{topic}", json=body)
    from_log = scan(there, topic).raw
    there.post("/v0/checkpoint")
    assert not there.get(f"/v0/topics/{topic}/segments").json()["segments"][0]["sealed"]
    from_active = scan(there, topic).raw
    there.post(f"/v0/topics/{topic}", json=records(8, 9))
    there.post("/v0/checkpoint")
    plan = there.get(f"/v0/topics/{topic}/segments").json()["segments"][0]
    assert (plan["sealed"], plan["last_seq"]) == (True, 8)
    assert from_log == from_active == scan(there, topic, to_seq=7).raw
    data, idx = Path(plan["path"]), Path(plan["path"].replace(".data", ".idx"))
    assert scan(there, topic, to_seq=8).raw == (8).to_bytes(4, "little") + idx.read_bytes()[:-20] + data.read_bytes()


def test_a_range_is_read_with_both_ends(there: httpx.Client, topic: str) -> None:
    """A-21: `from_seq` and `to_seq` are included; `Topics-Next-Seq` is the next `from_seq`."""
    fill(there, topic, 30)
    there.post("/v0/checkpoint")
    assert scan(there, topic, from_seq=7, to_seq=11)[:3] == ([7, 8, 9, 10, 11], [7, 8, 9, 10, 11], 12)
    assert scan(there, topic, from_seq=29, to_seq=500).next_seq == 31
    assert scan(there, topic, from_seq=5, to_seq=5).seqs == [5]


def test_pages_of_any_size_add_up(there: httpx.Client, topic: str) -> None:
    """A-21: an answer is not larger than asked for, but for one record that alone is."""
    fill(there, topic, 60)
    there.post("/v0/checkpoint")
    whole = scan(there, topic)
    for max_bytes in (1, 70, 200, 1000, 1 << 20):
        seqs: list[int] = []
        cursor = 1
        while cursor <= whole.head_seq:
            page = scan(there, topic, from_seq=cursor, max_bytes=max_bytes)
            assert len(page.raw) <= max(max_bytes, 100)
            assert page.next_seq > cursor
            seqs += page.seqs
            cursor = page.next_seq
        assert seqs == whole.seqs


def test_deleted_payloads_never_leave(there: httpx.Client, topic: str) -> None:
    """A-21: neither frame nor entry of a deleted record, wherever it lies."""
    there.put(f"/v0/topics/{topic}")
    secrets = [f"secret-{n:04d}" for n in range(1, 31)]
    there.post(f"/v0/topics/{topic}", json=records(*secrets[:20]))
    there.post("/v0/checkpoint")
    there.post(f"/v0/topics/{topic}", json=records(*secrets[20:]))
    gone = [3, 4, 12, 18, 20, 21, 30]
    there.post(f"/v0/topics/{topic}/delete", json={"seqs": gone})
    there.post(f"/v0/topics/{topic}/delete", json={"before_seq": 3})
    page = scan(there, topic)
    left = [seq for seq in range(3, 31) if seq not in gone]
    assert page.seqs == left
    for seq in range(1, 31):
        assert (secrets[seq - 1].encode() in page.raw) == (seq in left)
    assert (page.next_seq, page.tombstone) == (31, None)


def test_what_was_evicted_is_told_in_a_header(there: httpx.Client, topic: str) -> None:
    """A-21: `Topics-Tombstone` is the tombstone of a diff, in ASCII."""
    fill(there, topic, 30, cap_records=5)
    page = scan(there, topic)
    diff = there.post(f"/v0/topics/{topic}/diff", json={"limit": 100}).json()
    assert page.tombstone is not None
    assert page.tombstone == diff["tombstone"]
    assert (page.tombstone["gap_from"], page.tombstone["gap_to"], page.tombstone["reason"]) == (1, 25, "cap")
    assert page.seqs == [26, 27, 28, 29, 30]
    assert scan(there, topic, from_seq=26).tombstone is None
    other = scan(there, topic, from_seq=100)
    assert other.tombstone is not None
    assert other.tombstone["reason"] == "recreated"


@pytest.mark.parametrize(
    "body",
    [
        b'{"from_seq":-1}',
        b'{"from_seq":"1"}',
        b'{"from_seq":18446744073709551616}',
        b'{"from_seq":5,"to_seq":4}',
        b'{"to_seq":1.5}',
        b'{"max_bytes":-1}',
        b'{"max_bytes":null}',
        b"[]",
        b"{",
    ],
)
def test_a_body_that_makes_no_sense_is_refused(there: httpx.Client, topic: str, body: bytes) -> None:
    """API-11."""
    fill(there, topic, 1)
    headers = {"content-type": "application/json"}
    refused = there.post(f"/v0/topics/{topic}/scan", content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


def test_an_unknown_topic_is_not_found_and_an_empty_one_is_empty(there: httpx.Client, topic: str) -> None:
    """02 §1.5."""
    missing = there.post("/v0/topics/nowhere/scan", json={})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "topic_not_found")
    there.put(f"/v0/topics/{topic}")
    assert scan(there, topic)._replace(raw=b"") == Page([], [], 1, 0, None, b"")


def test_many_large_scans_at_once_are_all_answered_while_others_are_served(small: Running, topic: str) -> None:
    """A-21, P-10: more than run at once; each whole, and small requests go on in between."""
    with small.client() as client:
        client.put(f"/v0/topics/{topic}")
        for n in range(12):
            client.post(f"/v0/topics/{topic}", json=records(*[f"{n}-{m}" + "x" * 20_000 for m in range(40)]))

        def one(number: int) -> bytes:
            with small.client(http2=number % 2 == 1) as mine:
                answer = mine.post(f"/v0/topics/{topic}/scan", json={"max_bytes": 64 << 20})
                assert answer.status_code == 200
                return answer.content

        with ThreadPoolExecutor(10) as pool:
            bodies = pool.map(one, range(10))
            assert client.get("/v0/health").status_code == 200
            found = set(bodies)
        (body,) = found
        id = client.get(f"/v0/topics/{topic}/segments").json()["id"]
        scanned = segment.decode_scan(body, topic_mask(id))
        assert scanned.seqs.tolist() == list(range(1, 481))
        assert len(body) > 9 << 20
        assert (np.diff(scanned.entries["offset"].astype(np.int64)) > 20_000).all()


def test_a_client_that_leaves_while_its_scan_waits_for_its_turn_gives_its_slot_back() -> None:
    """[RES-7, API-23]"""
    env = {"TOPICS_API_KEYS": "k", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(env=env) as server, server.client(key="k") as client:
        fill(client, "t", 3)
        turns = server.server.app.scans
        server.on_loop(lambda: setattr(turns, "_running", AT_ONCE))
        with RawClient(server) as gone:
            gone.send(request("POST", "/v0/topics/t/scan", "Authorization: Bearer k", body=b"{}"))
            until(server, lambda: len(turns._waiting) == 1)
            assert in_flight(server) == 1
            leave(server, gone)
        for _ in range(AT_ONCE):
            server.on_loop(turns.over)
        assert in_flight(server) == 0
        assert scan(client, "t").seqs == [1, 2, 3]


def test_a_reader_of_one_prefix_scans_no_other() -> None:
    """PFX-1, 09 §2: `read` is enough, within the key's prefixes."""
    env = {"TOPICS_API_KEYS": "reader-key-0123456789:read:mine.,all-key-0123456789:"}
    with running(env=env) as server, server.client(key="all-key-0123456789") as admin:
        for name in ("mine.a", "yours.a"):
            admin.post(f"/v0/topics/{name}", json=records(1))
        with server.client(key="reader-key-0123456789") as reader:
            assert reader.post("/v0/topics/mine.a/scan", json={}).status_code == 200
            assert reader.post("/v0/topics/yours.a/scan", json={}).status_code == 403
