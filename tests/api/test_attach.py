"""Bulk loads over HTTP: commits by attach, as any client meets them (02 §9.2, 06 S-288)."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.kit import WAIT_S, Running, running
from topics.codec import envelope
from topics.codec import part as codec
from topics.engine.append import Write
from topics.engine.txn import Stage

FRAMES = {"content-type": "application/vnd.topics.frames"}
ROWS = 3000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "store", {"TOPICS_SEGMENT_MAX_BYTES": "100000", "TOPICS_TXN_WAL_BYTES": "1000"}) as one:
        yield one


def rows(first: int, count: int) -> bytes:
    return codec.upload(
        [(None, "even" if n % 2 == 0 else None, envelope.build(b'{"n":%d}' % n)) for n in range(first, first + count)]
    )


def load(client: httpx.Client, topic: str, version: int = 1, parts: int = 3) -> list[dict[str, Any]]:
    """Stage rows in parts of two chunks; what a commit names."""
    each = ROWS // parts // 2
    for part in range(parts):
        for chunk in range(2):
            query: dict[str, str | int] = {"id": "etl", "version": version, "part": f"p{part}", "chunk": chunk}
            body = rows((part * 2 + chunk) * each, each)
            answer = client.post(f"/v0/topics/{topic}/stage", params=query, content=body, headers=FRAMES)
            assert answer.status_code == 200, answer.text
    return [{"part": f"p{part}", "chunks": 2, "records": each * 2} for part in range(parts)]


def commit(client: httpx.Client, parts: list[dict[str, Any]], version: int = 1, **more: Any) -> dict[str, Any]:
    answer = client.post("/v0/txn/commit", json={"id": "etl", "version": version, "parts": parts, **more}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def read(client: httpx.Client, topic: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        body = {"from_seq": found[-1][0] if found else 0, "limit": 1000}
        page = client.post(f"/v0/topics/{topic}/diff", json=body).json()
        found += [(record["$seq"], record["data"]["n"]) for record in page["records"]]
        if page["caught_up"]:
            return found


def test_a_commit_above_the_bound_is_attached_and_reads_like_any_topic(server: Running) -> None:
    """TXN-8, TXN-9: a helper process stamps; rows are there once, in order, under dense seqs; a repeat is known."""
    with server.client() as client:
        client.post("/v0/topics/t", json={"records": [{"data": {"n": -1}}]})
        parts = load(client, "t")
        answer = commit(client, parts)
        assert answer["topics"] == [
            {"topic": "t", "first_seq": 2, "last_seq": ROWS + 1, "count": ROWS, "created": False, "attached": True}
        ]
        assert read(client, "t") == [(n + 2, n) for n in range(-1, ROWS)]
        again = commit(client, parts)
        assert (again["deduped"], again["topics"]) == (True, answer["topics"])
        deleted = client.post("/v0/topics/t/delete", json={"match": "even"}).json()
        assert deleted["deleted"] == ROWS // 2
        assert client.post("/v0/topics/t", json={"records": [{"data": {"n": 0}}]}).json()["first_seq"] == ROWS + 2


def test_segments_of_an_attach_are_planned_and_scanned_like_others(server: Running) -> None:
    """A-8: sealed, hot, contiguous, at most so many bytes."""
    with server.client() as client:
        commit(client, load(client, "t"), attach="always")
        plan = client.get("/v0/topics/t/segments").json()
        assert all(one["sealed"] and one["tier"] == "hot" and one["bytes"] <= 100_000 for one in plan["segments"])
        assert sum(one["records"] for one in plan["segments"]) == ROWS
        assert (plan["head_seq"], plan["durable_seq"], plan["ckpt_seq"]) == (ROWS, ROWS, ROWS)


def test_a_watcher_is_told_of_an_attach(server: Running) -> None:
    """S-288 step 5: a long poll at the head is answered with what was attached."""
    with server.client() as client:
        client.put("/v0/topics/t", json={})
        parts = load(client, "t")
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as other:
            import threading

            got: list[Any] = []
            body = {"from_seq": 0, "limit": 5, "wait_ms": 30_000}
            waiting = threading.Thread(target=lambda: got.append(other.post("/v0/topics/t/diff", json=body).json()))
            waiting.start()
            commit(client, parts)
            waiting.join(WAIT_S)
        assert [record["$seq"] for record in got[0]["records"]] == [1, 2, 3, 4, 5]


def test_a_restart_shows_what_was_attached(tmp_path: Path) -> None:
    """S-289: a clean stop and a start; the version is known."""
    env = {"TOPICS_TXN_WAL_BYTES": "1000"}
    with running(tmp_path / "store", env) as one, one.client() as client:
        commit(client, load(client, "t"))
    with running(tmp_path / "store", env) as one, one.client() as client:
        assert read(client, "t") == [(n + 1, n) for n in range(ROWS)]
        assert client.get("/v0/txn/etl").json()["version"] == 1
        assert commit(client, [])["deduped"]
    assert list((tmp_path / "store" / "staging").iterdir()) == []


def test_large_bodies_are_let_go_of_without_the_collector(server: Running) -> None:
    """The process collects seldom: what a chunk or a write was decoded into must not wait for it [P-10]."""
    with server.client() as client:
        large = codec.upload([(None, None, envelope.build(b'"%b"' % (b"x" * 1000)))] * 500)
        write = json.dumps({"records": [{"data": "x" * 1000}] * 500})
        gc.collect()
        gc.disable()
        try:
            for chunk in range(3):
                query: dict[str, str | int] = {"id": "etl", "version": 1, "part": "p", "chunk": chunk}
                client.post("/v0/topics/t/stage", params=query, content=large, headers=FRAMES)
                client.post("/v0/topics/u", content=write, headers={"content-type": "application/json"})
            # The last one may still be in the hands of the thread that wrote it.
            kept = [one for one in gc.get_objects() if isinstance(one, (Stage, Write))]
            assert len(kept) <= 2
        finally:
            gc.enable()
