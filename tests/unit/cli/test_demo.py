"""`topics demo` as people run it: a server on a port of its own, a load, nothing left behind (11 §2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import httpx

WAIT_S = 60.0


class Demo:
    """The process; what it says is read as it comes, so that it never waits for a reader."""

    def __init__(self, tmp_path: Path, *flags: str) -> None:
        env = {
            **os.environ,
            "TMPDIR": str(tmp_path),
            "TOPICS_API_KEYS": "of-another-server",
            "TOPICS_DATA_DIR": "elsewhere",
        }
        command = [sys.executable, "-m", "topics", "demo", "--port", "0", *flags]
        self.process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self.printed: list[str] = []
        """Of what it said, that on stdout."""
        self._came = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True)
            for pipe in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with self._came:
                self.said.append(line)
                if pipe is self.process.stdout:
                    self.printed.append(line)
                self._came.notify_all()
        with self._came:
            self._open -= 1
            self._came.notify_all()

    def line(self, text: str) -> str:
        """The first line with this text."""

        def found() -> str | None:
            return next((line for line in self.said if text in line), None)

        with self._came:
            self._came.wait_for(lambda: found() is not None or not self._open, WAIT_S)
            told = found()
        assert told is not None, f"no {text!r}, status {self.process.poll()}: {''.join(self.said)}"
        return told

    def end(self) -> int:
        """Ctrl-C, and its status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            self.process.wait()
            for reader, pipe in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
                reader.join(WAIT_S)
                assert pipe is not None
                pipe.close()


def test_the_demo_has_something_of_everything_and_leaves_nothing(tmp_path: Path) -> None:
    """Topics, routers, queues with a dead letter soon, runs; settings of the environment are another server's."""
    demo = Demo(tmp_path, "--seed", "3")
    try:
        url = json.loads(demo.line('"listening"'))["url"]
        demo.line("the shop is open")
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
        status = demo.end()
    assert status == 0, "".join(demo.said)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_as_json_prints_one_report(tmp_path: Path) -> None:
    """[U-10, U-13]"""
    demo = Demo(tmp_path, "--json")
    try:
        url = json.loads(demo.line('"listening"'))["url"]
        demo.line('"ok"')
    finally:
        status = demo.end()
    assert status == 0, "".join(demo.said)
    assert [json.loads(line) for line in demo.printed] == [{"ok": True, "url": url, "seed": 1}]
    assert all(isinstance(json.loads(line), dict) for line in demo.said)
