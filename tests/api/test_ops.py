"""Health, readiness, settings, checkpoints (02 §7, 00 A-15)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import topics
from tests.api.kit import WAIT_S, Running, records, running
from topics.codec import kernel
from topics.engine.config import EngineConfig
from topics.fs import OsFs
from topics.settings import SERVER_TABLE
from topics.storage.view import Batch, StoreView
from topics.testing import Fault, FaultFs, ManualClock


def engine_of(server: Running) -> Any:
    return server.server.app.engine


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_is_told_with_version_and_age(path: str) -> None:
    """[HLT-1]"""
    clock = ManualClock()
    with running(clock=clock) as server, server.client() as client:
        clock.advance(1234)
        assert client.get(path).json() == {
            "status": "ok", "version": topics.__version__, "kernel": kernel.name(), "uptime_ms": 1234,
        }  # fmt: skip


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_counts_the_topics(path: str) -> None:
    """[HLT-2, A-14]"""
    with running() as server, server.client() as client:
        client.put("/v0/topics/a")
        client.put("/v0/topics/b")
        assert client.get(path).json() == {"status": "ready", "wal_replay_complete": True, "topics": 2}


def test_while_replaying_the_server_is_alive_and_not_ready() -> None:
    """[HLT-1, HLT-3, API-6]"""
    with running(recover=False) as server, server.client() as client:
        server.on_loop(lambda: setattr(server.server.app, "progress", 0.5))
        assert client.get("/v0/health").status_code == 200
        answer = client.get("/v0/ready")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["detail"] == {"state": "replaying", "replay_progress": 0.5}
        assert client.post("/v0/checkpoint").json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize(("state", "after_s"), [("read_only", "30"), ("full", "5")])
def test_a_log_that_takes_no_writes_is_not_ready(state: str, after_s: str) -> None:
    """[HLT-3], 06 §21"""
    with running() as server, server.client() as client:
        shard = server.on_loop(lambda: engine_of(server).core.wal.shards[0])
        server.on_loop(lambda: setattr(shard, "state", state))
        answer = client.get("/v0/ready")
        server.on_loop(lambda: setattr(shard, "state", "ok"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, after_s)
        assert answer.json()["error"]["detail"] == {"state": state}


def test_draining_is_told() -> None:
    """[HLT-4]"""
    with running() as server, server.client() as client:
        assert client.get("/v0/ready").status_code == 200
        server.on_loop(lambda: setattr(server.server.app, "draining", True))
        answer = client.get("/v0/ready")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "shutting_down"
        assert client.get("/v0/health").status_code == 200
        assert client.get("/v0/settings").status_code == 503


def test_probes_need_a_key_only_when_told_to() -> None:
    """[HLT-5]"""
    with running(env={"TOPICS_API_KEYS": "k:w"}) as server, server.client() as client:
        assert client.get("/v0/health").status_code == client.get("/v0/ready").status_code == 200
    with running(env={"TOPICS_API_KEYS": "k:w", "TOPICS_PROBE_AUTH": "on"}) as server:
        with server.client() as client:
            assert client.get("/healthz").status_code == client.get("/readyz").status_code == 401
        with server.client(key="k") as client:
            assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_settings_say_what_is_in_force_and_where_it_came_from(tmp_path: Path) -> None:
    """[SET-1]"""
    env = {"TOPICS_MAX_LIMIT": "77", "TOPICS_CORS_ORIGINS": "https://a.example,https://b.example"}
    with running(tmp_path, env) as server, server.client() as client:
        told = client.get("/v0/settings").json()
    assert set(told) == {"settings", "keys", "build", "performance"}
    rows = {row.pop("name"): row for row in told["settings"]}
    assert list(rows) == [row.name for row in SERVER_TABLE]
    assert rows["TOPICS_MAX_LIMIT"] == {"value": 77, "source": "environment"}
    assert rows["TOPICS_CORS_ORIGINS"]["value"] == ["https://a.example", "https://b.example"]
    assert rows["TOPICS_MAX_CLAIM"] == {"value": 1000, "source": "default"}
    assert told["build"]["version"] == topics.__version__
    assert told["keys"] == []


def test_settings_never_show_key_material(tmp_path: Path) -> None:
    """[SET-1, KEY-5]: neither keys nor their digests, nor what a URL carries."""
    env = {
        "TOPICS_API_KEYS": "hush-1,hush-2:r+w:plant3:|shared.",
        "TOPICS_COLD_DIR": "s3://hush-3:hush-4@bucket/prefix?region=eu&secret_key=hush-5",
    }
    # The engine has none: it would refuse a URL with credentials at its start.
    with running(tmp_path, env, config=EngineConfig()) as server:
        with server.client(key="hush-1") as client:
            answer = client.get("/v0/settings")
        digests = [key.digest.hex() for key in server.server.app.keys.keys]
        with server.client(key="hush-2") as client:
            assert client.get("/v0/settings").status_code == 403
    assert not [word for word in ("hush", *digests) if word in answer.text]
    told = answer.json()
    assert told["keys"] == [
        {"scopes": ["admin", "delete", "read", "write"], "prefixes": []},
        {"scopes": ["read", "write"], "prefixes": ["plant3:", "shared."]},
    ]
    rows = {row["name"]: row for row in told["settings"]}
    assert rows["TOPICS_API_KEYS"] == {"name": "TOPICS_API_KEYS", "value": None, "source": "environment"}
    assert rows["TOPICS_COLD_DIR"]["value"] == "s3://bucket/prefix?region=eu&secret_key=***"


def test_after_a_checkpoint_the_directory_holds_everything_that_was_acknowledged(tmp_path: Path) -> None:
    """[A-15]: for whoever reads the files while the server runs."""
    with running(tmp_path, {"TOPICS_SEGMENT_MAX_EVENTS": "2"}) as server, server.client() as client:
        for name in ("a", "b"):
            client.post(f"/v0/topics/{name}", json=records(1, 2, 3))
        answer = client.post("/v0/checkpoint")
        assert answer.status_code == 200
        told = answer.json()
        assert set(told) == {"topics", "sealed", "performance"}
        assert (told["topics"], told["sealed"]) == (2, 2)
        for view in StoreView(OsFs(), str(tmp_path)).topics():
            parts = list(view.scan())
            assert [seq for part in parts if isinstance(part, Batch) for seq in part.seqs.tolist()] == [1, 2, 3]
        assert client.post("/v0/checkpoint").json()["sealed"] == 0


def test_a_body_of_a_checkpoint_is_read_and_ignored(client: httpx.Client) -> None:
    """[API-10]"""
    for content, kind in ((b"{}", "application/json"), (b"not json", "text/plain"), (b"\xff", "image/png")):
        answer = client.post("/v0/checkpoint", content=content, headers={"content-type": kind})
        assert answer.status_code == 200


def test_checkpoints_that_are_asked_for_together_share_a_run() -> None:
    """[A-15]"""
    with running(env={"TOPICS_CHECKPOINT_MS": "3600000"}) as server:
        with server.client() as client:
            client.post("/v0/topics/shared-run", json=records(1))
            before = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
        engine = engine_of(server)
        total = server.on_loop(lambda: engine.metrics()["topics_ckpt_total"])
        answers: list[object] = []
        ready = threading.Event()

        def done(outcome: object) -> None:
            answers.append(outcome)
            if len(answers) == 5:
                ready.set()

        server.on_loop(lambda: [engine.begin_checkpoint(done) for _ in range(5)])
        assert ready.wait(WAIT_S)
        assert len({id(one) for one in answers}) == 1
        assert server.on_loop(lambda: engine.metrics()["topics_ckpt_total"]) == total + 1
    assert before["topics"] >= 1


def test_a_checkpoint_that_fails_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """[A-15, ERR-6]"""
    faults = FaultFs(OsFs())
    with running(tmp_path, {"TOPICS_CHECKPOINT_MS": "3600000"}, fs=faults) as server, server.client() as client:
        client.post("/v0/topics/t", json=records(1))
        faults.inject(Fault("fdatasync", 1, "EIO", "always", path=".data"))
        answer = client.post("/v0/checkpoint")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        faults.clear()
        assert client.post("/v0/checkpoint").status_code == 200
        assert client.get("/v0/topics/t").json()["count"] == 1


def test_a_latched_log_refuses_a_checkpoint_with_its_state(tmp_path: Path) -> None:
    """06 §21"""
    faults = FaultFs(OsFs())
    with running(tmp_path, {"TOPICS_CHECKPOINT_MS": "3600000"}, fs=faults) as server, server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json=records(1))
        faults.inject(Fault("fdatasync", 1, "EIO", "always", path="wal-"))
        assert client.post("/v0/topics/t", json=records(2)).status_code in (500, 503)
        answer = client.post("/v0/checkpoint")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert answer.json()["error"]["detail"] == {"state": "read_only"}
        assert client.get("/v0/ready").status_code == 503
        faults.clear()


def test_only_admins_checkpoint_and_see_settings() -> None:
    """09 §2, [SCP-2]"""
    with running(env={"TOPICS_API_KEYS": "boss:admin,others:read+write+delete"}) as server:
        with server.client(key="boss") as client:
            assert client.post("/v0/checkpoint").status_code == client.get("/v0/settings").status_code == 200
        with server.client(key="others") as client:
            assert client.post("/v0/checkpoint").status_code == client.get("/v0/settings").status_code == 403
