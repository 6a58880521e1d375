"""`topics serve` with an object store behind it: segments move, read back, and outlast what the store does (06 §16).

How stores differ is the matter of the other modules here; a process is tried with one or the other of them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.process import WAIT_S, Served, served
from tests.tiers.servers import BUCKET, S3Server
from topics.testing.tcpproxy import TcpProxy

OUTAGE_S = float(os.environ.get("TOPICS_TEST_OUTAGE_S", "5"))
"""30 is the full size: then what was asked before the outage is given up and asked again."""
ROUNDS = 12
"""Of an outage, at least: two more segments."""
SETTINGS = {
    "TOPICS_SEGMENT_MAX_EVENTS": "50",
    "TOPICS_HOT_RETAIN_SEGMENTS": "1",
    "TOPICS_CHECKPOINT_MS": "200",
    "TOPICS_COLD_CACHE_BYTES": "0",
    "TOPICS_RECENT_CACHE_BYTES": "0",
}
TOPIC = "/v0/topics/t"
Json = dict[str, Any]


@pytest.fixture
def line(server: S3Server) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", server.ports[0]) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    return f"cold/{uuid4().hex}"


def until(holds: Callable[[], object]) -> None:
    """Wait for what a process does in its own time."""
    end = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        pause.wait(0.05)


class Store:
    """A topic of a served store. `written` counts its records: record n holds n."""

    def __init__(self, one: Served, http: httpx.Client, written: int) -> None:
        self.one = one
        self.http = http
        self.written = written

    def write(self, count: int) -> None:
        """Acknowledged."""
        for start in range(self.written + 1, self.written + count + 1, 50):
            last = min(start + 49, self.written + count)
            records = [{"data": {"n": n, "pad": "x" * 200}, "tag": f"t:{n % 3}"} for n in range(start, last + 1)]
            answer = self.http.post(TOPIC, json={"records": records, "create": True})
            assert answer.status_code in (200, 201), answer.text
            assert (answer.json()["first_seq"], answer.json()["last_seq"]) == (start, last)
        self.written += count

    def plan(self) -> Json:
        answer = self.http.get(f"{TOPIC}/segments")
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def cold(self) -> int:
        return sum(one["tier"] == "cold" for one in self.plan()["segments"])

    def diff(self, after: int) -> httpx.Response:
        return self.http.post(f"{TOPIC}/diff", json={"from_seq": after, "limit": 500})

    def everything(self) -> int:
        """Read from the beginning to the head: each record once, in order, no loss told; how many came from cold."""
        after, cold = 0, 0
        while after < self.written:
            answer = self.diff(after)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["tombstone"] is None, body
            assert [one["$seq"] for one in body["records"]] == [one["data"]["n"] for one in body["records"]]
            assert body["records"][0]["$seq"] == after + 1
            cold += body["performance"].get("cold_segments_read", 0)
            after = body["records"][-1]["$seq"]
        return cold

    def assert_told_cold(self) -> None:
        """[S-323] What only the tier has is not there now, which is no loss."""
        answer = self.diff(0)
        assert answer.status_code == 503, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["detail"]) == ("not_ready", {"state": "cold"})
        assert answer.headers["retry-after"] == "1"

    def assert_works_at_the_head(self) -> None:
        """[S-320] Writes, the newest records and readiness know nothing of the tier."""
        self.write(10)
        answer = self.diff(self.written - 10)
        assert [one["data"]["n"] for one in answer.json()["records"]] == list(range(self.written - 9, self.written + 1))
        assert self.http.get("/v0/ready").status_code == 200


@contextmanager
def serving(home: Path, server: S3Server, url: str, written: int = 0, **more: str) -> Iterator[Store]:
    """A process that is ready, with this cold tier."""
    env = {**SETTINGS, **server.environ, "TOPICS_COLD_DIR": url, **more}
    with served(home, env=env) as one, one.ready().client() as http:
        yield Store(one, http, written)


def test_segments_move_to_the_store_and_read_back(server: S3Server, prefix: str, tmp_path: Path) -> None:
    """[S-310, S-322, A-8] Hot data is gone, plans name the objects and no credentials, every record comes back once."""
    url = server.url(prefix)
    with serving(tmp_path, server, url) as store:
        store.write(1020)
        until(lambda: store.cold() >= 19)
        assert store.everything() >= 900
        plan = store.plan()
        assert plan["cold"] == url
        moved = [seg for seg in plan["segments"] if seg["tier"] == "cold"]
        client = server.client()
        for seg in moved:
            key = f"{prefix}/topics/{plan['id']:08X}/seg-{seg['first_seq']:016d}.data"
            assert client.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == seg["bytes"]
        hot = sorted((tmp_path / "topics-data" / "topics").rglob("*.data"))
        assert len(hot) <= len(plan["segments"]) - len(moved) + 1
        assert store.one.stop() == 0
    assert server.secret.encode() not in store.one.raw
    with serving(tmp_path, server, url, store.written) as again:
        assert again.everything() >= 900
        again.http.post(f"{TOPIC}/delete", json={"before_seq": 501})
        until(lambda: "seg-0000000000000001.data" not in str(_keys(server, prefix)))
        assert again.http.delete(TOPIC).status_code == 200
        until(lambda: not [key for key in _keys(server, prefix) if "/topics/" in key])


def _keys(server: S3Server, prefix: str) -> list[str]:
    pages = server.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


@pytest.mark.timeout(300 + 2 * OUTAGE_S)
@pytest.mark.parametrize(("server", "how"), [("moto", "stalled"), ("seaweedfs", "refused")], indirect=["server"])
def test_an_outage_costs_nothing_but_cold_reads(
    server: S3Server, prefix: str, tmp_path: Path, line: TcpProxy, how: str
) -> None:
    """[S-312, S-318, S-320, S-323] Writes and the head work, segments stay hot; then it goes on by itself.

    The store does not come back before some rounds are done: one that waited for it would never be.
    """
    with serving(tmp_path, server, server.url(prefix, endpoint=line.endpoint)) as store:
        store.write(520)
        until(lambda: store.cold() >= 9)
        (line.refuse if how == "refused" else line.stall)()
        end, rounds = time.monotonic() + OUTAGE_S, 0
        while time.monotonic() < end or rounds < ROUNDS:
            store.assert_works_at_the_head()
            if how == "refused":
                store.assert_told_cold()
            rounds += 1
        moved = store.cold()
        (line.accept if how == "refused" else line.resume)()
        until(lambda: store.diff(0).status_code == 200)
        store.everything()
        until(lambda: store.cold() > moved)
        assert store.everything() > 0
        assert store.http.get("/v0/ready").json()["status"]
        assert store.one.stop() == 0


@pytest.mark.parametrize("server", ["moto"], indirect=True)
def test_a_server_starts_and_stops_while_its_store_does_not_answer(
    server: S3Server, prefix: str, tmp_path: Path, line: TcpProxy
) -> None:
    """[S-318] Neither end of a process waits for the tier: a request is given up after two minutes, and tried again."""
    url = server.url(prefix, endpoint=line.endpoint)
    with serving(tmp_path, server, url) as store:
        store.write(320)
        until(lambda: store.cold() >= 5)
        line.stall()
        reader = threading.Thread(target=lambda: store.diff(0))
        reader.start()
        until(lambda: line.held)
        assert store.one.stop() == 0
        reader.join(WAIT_S)
        assert not reader.is_alive()
    with serving(tmp_path, server, url, store.written) as store:
        store.assert_works_at_the_head()
        line.resume()
        until(lambda: store.diff(0).status_code == 200)
        store.everything()


@pytest.mark.parametrize(("server", "wrong"), [("moto", "credentials"), ("seaweedfs", "bucket")], indirect=["server"])
def test_a_store_that_cannot_be_used_is_told_and_costs_nothing(
    server: S3Server, prefix: str, tmp_path: Path, wrong: str
) -> None:
    """The server runs, nothing moves, the log says why; once it is put right all of it moves."""
    bucket = f"made-later-{prefix[-8:]}" if wrong == "bucket" else BUCKET
    secret = {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"} if wrong == "credentials" else {}
    with serving(tmp_path, server, server.url(prefix, bucket=bucket), **secret) as store:
        store.write(320)
        told = "access is denied (403" if wrong == "credentials" else "the bucket does not exist"
        until(lambda: store.one.messages.count(told) >= 2)
        assert (store.cold(), store.everything()) == (0, 0)
        assert b"a-wrong-secret" not in store.one.raw
        if wrong == "bucket":
            server.client().create_bucket(Bucket=bucket)
            until(lambda: store.cold() >= 5)
        assert store.one.stop() == 0
    if wrong == "credentials":
        with serving(tmp_path, server, server.url(prefix), store.written) as store:
            until(lambda: store.cold() >= 5)
            assert store.everything() > 0


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_a_process_killed_while_it_moves_segments_loses_nothing(server: S3Server, prefix: str, tmp_path: Path) -> None:
    """[S-311] Killed at whatever it does; each start goes on where it was."""
    url, written = server.url(prefix), 0
    for pause in (0.0, 0.1, 0.3):
        with serving(tmp_path, server, url, written) as store:
            store.everything()
            store.write(400)
            written = store.written
            before = store.cold()
            until(lambda before=before, store=store: store.cold() > before)  # type: ignore[misc]
            threading.Event().wait(pause)
            store.one.send(signal.SIGKILL)
            store.one.ended()
    with serving(tmp_path, server, url, written) as store:
        store.everything()
        until(lambda: store.cold() >= 22)
        assert store.everything() >= 1000


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://key:hunter2@bucket/p", "credentials"),
        ("s3://bucket/p?secret=hunter2", "option"),
        ("ftp://host/p", "s3://"),
        ("az://container", "account"),
    ],
)
def test_a_place_that_cannot_be_meant_ends_the_start_with_one_line(url: str, told: str, tmp_path: Path) -> None:
    """[A-17, S-302]"""
    with served(tmp_path, env={"TOPICS_COLD_DIR": url}) as one:
        assert one.ended() == 2
    assert "TOPICS_COLD_DIR" in one.messages
    assert told in one.messages.lower()
    assert b"hunter2" not in one.raw
