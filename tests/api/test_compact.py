"""`POST /v0/topics/{topic}/compact` on a real socket (02 §10): every result, progress, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.expect import like
from tests.api.kit import WAIT_S, Running, records, running
from topics.engine.config import EngineConfig


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    """A server whose segments hold eight records."""
    with running(config=EngineConfig(segment_max_events=8)) as one:
        yield one


@pytest.fixture
def there(client: httpx.Client, small: Running) -> Iterator[httpx.Client]:
    with like(client, small) as one:
        yield one


def fill(client: httpx.Client, topic: str, count: int = 20, size: int = 40) -> None:
    client.post(f"/v0/topics/{topic}", json=records(*[f"{n:04d}" + "x" * size for n in range(1, count + 1)]))
    client.post("/v0/checkpoint")


def compact(client: httpx.Client, topic: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v0/topics/{topic}/compact", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert set(told) == {"topic", "state", "segments", "performance"}
    assert all(set(one) == {"first_seq", "result", "bytes_before", "bytes_after"} for one in told["segments"])
    return told


def results(told: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["first_seq"], one["result"]) for one in told["segments"]]


def test_named_segments_are_rewritten_and_every_result_is_told(there: httpx.Client, topic: str) -> None:
    """CPT-1: on a server that rewrites nothing by itself."""
    fill(there, topic)
    there.post(f"/v0/topics/{topic}/delete", json={"seqs": [1, 2]})
    told = compact(there, topic, segments=[1, 9, 17, 5], wait_ms=30_000)
    assert (told["topic"], told["state"]) == (topic, "done")
    assert results(told) == [(1, "rewritten"), (9, "nothing_to_do"), (17, "active"), (5, "gone")]
    first = told["segments"][0]
    assert first["bytes_after"] * 8 == first["bytes_before"] * 6
    plan = there.get(f"/v0/topics/{topic}/segments").json()["segments"][0]
    assert (plan["generation"], plan["bytes"], plan["records"]) == (1, first["bytes_after"], 6)
    seqs = [one["$seq"] for one in there.post(f"/v0/topics/{topic}/diff", json={}).json()["records"]]
    assert seqs == list(range(3, 21))
    assert results(compact(there, topic, segments=[1], wait_ms=30_000)) == [(1, "nothing_to_do")]


def test_unless_told_otherwise_whatever_is_half_dead_is_rewritten(there: httpx.Client, topic: str) -> None:
    """CPT-1: `min_dead_ratio` 0.5, `wait_ms` 0; asked again until it is done."""
    fill(there, topic)
    there.post(f"/v0/topics/{topic}/delete", json={"seqs": [1, 9, 10, 11, 12]})
    answer = there.post(f"/v0/topics/{topic}/compact", json={})
    while answer.json()["state"] == "running":
        assert results(answer.json()) in ([(9, "busy")], [(9, "rewritten")])
        answer = there.post(f"/v0/topics/{topic}/compact", json={})
    assert results(answer.json()) == [(9, "rewritten")]


def test_progress_is_told_while_a_run_goes_on(there: httpx.Client, topic: str) -> None:
    """CPT-1: `running` and `busy` until their turn comes; a second call joins the run, at its rate."""
    fill(there, topic, 40)
    there.post(f"/v0/topics/{topic}/delete", json={"seqs": [1, 9, 17]})
    told = compact(there, topic, segments=[1, 9, 17], bytes_per_sec=1, wait_ms=50)
    assert told["state"] == "running"
    again = compact(there, topic, segments=[1, 9, 17], wait_ms=1)
    assert again["state"] == "running"
    assert results(again)[1:] == [(9, "busy"), (17, "busy")]


@pytest.mark.parametrize(
    "body",
    [
        b'{"segments":[1],"min_dead_ratio":0.5}',
        b'{"segments":[%b0]}' % (b"1," * 1001),
        b'{"segments":[-1]}',
        b'{"segments":["1"]}',
        b'{"segments":1}',
        b'{"min_dead_ratio":1.5}',
        b'{"min_dead_ratio":"all"}',
        b'{"bytes_per_sec":-1}',
        b'{"wait_ms":-1}',
        b'{"wait_ms":1e3}',
        b"[]",
        b"{",
    ],
)
def test_a_body_that_makes_no_sense_is_refused(there: httpx.Client, topic: str, body: bytes) -> None:
    """API-11, CPT-1."""
    fill(there, topic, 1)
    headers = {"content-type": "application/json"}
    refused = there.post(f"/v0/topics/{topic}/compact", content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


def test_an_unknown_topic_is_not_found(there: httpx.Client) -> None:
    """02 §1.5."""
    missing = there.post("/v0/topics/nowhere/compact", json={})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "topic_not_found")


def test_only_administrators_rewrite() -> None:
    """09 §2."""
    env = {"TOPICS_API_KEYS": "worker-key-0123456789:read+write+delete,admin-key-0123456789:admin"}
    with running(env=env) as server, server.client(key="worker-key-0123456789") as worker:
        worker.post("/v0/topics/t", json=records(1))
        assert worker.post("/v0/topics/t/compact", json={}).status_code == 403
        with server.client(key="admin-key-0123456789") as admin:
            assert admin.post("/v0/topics/t/compact", json={}).status_code == 200


def test_a_client_that_leaves_does_not_stop_the_run(small: Running, topic: str) -> None:
    """API-23: what only waits, ends; the rewrite goes on."""
    with small.client() as client:
        fill(client, topic)
        client.post(f"/v0/topics/{topic}/delete", json={"seqs": [1, 9]})
        with pytest.raises(httpx.ReadTimeout), small.client() as hasty:
            hasty.post(
                f"/v0/topics/{topic}/compact",
                json={"segments": [1, 9], "bytes_per_sec": 2000, "wait_ms": 30_000},
                timeout=httpx.Timeout(WAIT_S, read=0.1),
            )
        told = compact(client, topic, segments=[1, 9], wait_ms=30_000)
        assert (told["state"], results(told)) == ("done", [(1, "rewritten"), (9, "rewritten")])
