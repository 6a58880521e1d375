"""`topics demo` as people run it: a server on a port of its own, a load, nothing left behind (11 §2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

WAIT_S = 60.0


def started(tmp_path: Path, *flags: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and where it listens."""
    env = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "TOPICS_API_KEYS": "of-another-server",
        "TOPICS_DATA_DIR": "elsewhere",
    }
    command = [sys.executable, "-m", "topics", "demo", "--port", "0", *flags]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        told = json.loads(line)
        if told.get("event") == "listening":
            return process, told["url"]
    raise AssertionError("it never listened")


def test_the_demo_has_something_of_everything_and_leaves_nothing(tmp_path: Path) -> None:
    """Topics, routers, queues with a dead letter soon, runs; settings of the environment are another server's."""
    process, url = started(tmp_path, "--seed", "3")
    try:
        assert process.stdout is not None
        assert "the shop is open" in process.stdout.readline()
        with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
            listed = client.get("/v0/topics?system=true").json()["topics"]
            topics = {one["topic"]: one for one in listed}
            assert {"orders", "clicks", "invoices", "emails", "orders.eu", "audit", "$pipelines"} <= set(topics)
            assert topics["clicks"]["count"] == 4000 < topics["clicks"]["head_seq"]
            assert topics["orders"]["earliest_seq"] > 1
            assert len(client.get("/v0/routers").json()["routers"]) == 3
            assert client.get("/v0/topics/orders/segments").json()["segments"]
            grown: dict[str, Any] = {}
            while grown.get("head_seq", 0) <= topics["orders"]["head_seq"]:
                head = topics["orders"]["head_seq"]
                client.post("/v0/topics/orders/diff", json={"from_seq": head, "wait_ms": 5000})
                grown = client.get("/v0/topics/orders").json()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
