"""C42 with real processes: a server under load, backed up, killed, restored beside itself, and compared [S-319].

`TOPICS_TEST_BACKUPS` sets the number of backups taken under load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerProcess

BACKUPS = int(os.environ.get("TOPICS_TEST_BACKUPS", "3"))
TOPICS = {"sync": "fsync", "fast": "disk", "copies": "fsync"}
ENV = {
    "TOPICS_SEGMENT_MAX_EVENTS": "100",
    "TOPICS_CHECKPOINT_MS": "200",
    "TOPICS_RECLAIM_REWRITE": "1",
    "TOPICS_MIN_FREE_BYTES": "0",
}
WAIT_S = 120
PAUSE_S = 0.02
"""Between the writes of one connection: the backup is to be had in seconds on any machine."""


class Told(NamedTuple):
    """What was acknowledged up to a moment: payload by topic and seq, and what was deleted."""

    written: dict[str, dict[int, str]]
    deleted: set[int]


class Load:
    """Writers and a deleter, each on a connection of its own; what they were told is kept."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._written: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self._sent: set[str] = set()
        self._deleted: set[int] = set()
        self._deleting: set[int] = set()
        self._enough = threading.Event()
        self._some = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(topic, n)) for topic in TOPICS for n in range(2)]
        self._threads.append(threading.Thread(target=self._delete))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def wait(self) -> None:
        """Until some more was acknowledged."""
        self._some.clear()
        assert self._some.wait(WAIT_S)

    def told(self) -> Told:
        with self._lock:
            return Told({topic: dict(rows) for topic, rows in self._written.items()}, set(self._deleted))

    def sent(self) -> tuple[set[str], set[int]]:
        """Payloads on their way or acknowledged, and deletes."""
        with self._lock:
            return set(self._sent), set(self._deleting)

    def _write(self, topic: str, writer: int) -> None:
        number = 0
        with HttpConn(*self._address) as http:
            while not self._enough.wait(PAUSE_S):
                payloads = [f"{topic}/{writer}/{number + n}" for n in range(7)]
                number += 7
                with self._lock:
                    self._sent |= set(payloads)
                rows = [{"data": payload, "tag": f"w{writer}"} for payload in payloads]
                answer = http.call("POST", f"/v0/topics/{topic}", {"records": rows})
                assert answer.status == 200, answer
                with self._lock:
                    self._written[topic].update(zip(answer.body["seqs"], payloads, strict=True))
                if number % 70 == 0:
                    self._some.set()

    def _delete(self) -> None:
        at = 5
        with HttpConn(*self._address) as http:
            while not self._enough.wait(0.01):
                with self._lock:
                    if at not in self._written["sync"]:
                        continue
                    self._deleting.add(at)
                answer = http.call("POST", "/v0/topics/sync/delete", {"seqs": [at]})
                assert answer.status == 200, answer
                with self._lock:
                    self._deleted.add(at)
                at += 9


def topics(*words: object) -> dict[str, Any]:
    """The program, as a process."""
    command = [sys.executable, "-m", "topics", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, (words, done.stderr.decode(), done.stdout.decode())
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def shown(address: tuple[str, int], topic: str) -> tuple[int, dict[int, str], list[Any]]:
    """Head, records and tombstones of a topic."""
    records: dict[int, str] = {}
    gaps: list[Any] = []
    cursor = 0
    with HttpConn(*address) as http:
        while True:
            answer = http.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
            assert answer.status == 200, answer
            page = answer.body
            records |= {one["$seq"]: one["data"] for one in page["records"]}
            gaps += [page["tombstone"]] if page.get("tombstone") else []
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                return page["head_seq"], records, gaps


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "original", ENV)
    try:
        server.wait_ready()
        with HttpConn(*server.address) as http:
            for topic, durability in TOPICS.items():
                assert http.call("PUT", f"/v0/topics/{topic}", {"durability": durability}).status == 201
            router = {"source": "fast", "dest": "copies"}
            assert http.call("PUT", "/v0/routers/r", router).status == 201
        yield server
    finally:
        server.abandon()


def test_c42_a_backup_under_load_is_the_original_up_to_its_cut_and_nothing_after_it(
    served: ServerProcess, tmp_path: Path
) -> None:
    """C42, S-319: everything acknowledged before it was asked for, nothing sent after it was made, no gap, no copy
    missing or made twice.
    """
    url = f"http://{served.address[0]}:{served.address[1]}"
    seen: list[tuple[Told, set[str], set[int]]] = []
    with Load(served.address) as load:
        for number in range(BACKUPS):
            load.wait()
            before = load.told()
            report = topics("backup", "--url", url, tmp_path / "bk")
            assert report["number"] == number + 1
            seen.append((before, *load.sent()))
        load.wait()
    served.kill()
    before, sent, deleting = seen[-1]
    topics("restore", tmp_path / "bk", tmp_path / "restored/data")
    report = topics("doctor", tmp_path / "restored/data")
    assert {one["severity"] for one in report["findings"]} <= {"note"}, report["findings"]
    twin = ServerProcess(tmp_path / "restored", ENV)
    try:
        twin.wait_ready()
        for topic in TOPICS:
            head, records, gaps = shown(twin.address, topic)
            assert gaps == []
            gone = deleting if topic == "sync" else set()
            missing = {seq for seq in range(1, head + 1) if seq not in records}
            assert missing <= gone, f"{topic} lost {sorted(missing - gone)[:5]}"
            for seq, payload in before.written[topic].items():
                assert records.get(seq) == (None if seq in missing else payload), f"{topic} lacks {seq}"
            for seq, payload in records.items():
                assert payload in sent, f"{topic} has {payload} at {seq}, which was sent after the backup"
            if topic == "sync":
                assert not set(records) & before.deleted, "a record that was deleted is back"
        _check_copies(twin)
        with HttpConn(*twin.address) as http:
            assert http.call("POST", "/v0/topics/sync", {"records": [{"data": "next"}]}).status == 200
        twin.kill()
        again = ServerProcess(tmp_path / "restored", ENV)
        twin = again
        again.wait_ready()
        assert list(shown(again.address, "sync")[1].values())[-1] == "next"
    finally:
        twin.abandon()


def _check_copies(twin: ServerProcess) -> None:
    """What the source has is in the destination exactly once, in order, whatever was behind when the cut was made."""
    with HttpConn(*twin.address) as http:
        assert http.call("GET", "/v0/routers/r").status == 200
    source = list(shown(twin.address, "fast")[1].values())
    end = time.monotonic() + WAIT_S
    while True:  # copies are made in their own time, also after a start
        copies = [one for one in shown(twin.address, "copies")[1].values() if one.startswith("fast/")]
        if len(copies) >= len(source) or time.monotonic() > end:
            break
    assert copies == source


def test_a_backup_that_is_killed_again_and_again_is_finished_by_the_next(served: ServerProcess, tmp_path: Path) -> None:
    """S-319: SIGKILL in the middle of it, under load; what was there before stands."""
    url = f"http://{served.address[0]}:{served.address[1]}"
    command = [sys.executable, "-m", "topics", "backup", "--url", url, str(tmp_path / "bk"), "--quiet"]
    with Load(served.address) as load:
        load.wait()
        topics("backup", "--url", url, tmp_path / "bk")
        for _ in range(3):
            load.wait()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(0.6)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        load.wait()
        before = load.told()
        topics("backup", "--url", url, tmp_path / "bk")
    topics("restore", tmp_path / "bk", tmp_path / "new")
    assert topics("doctor", tmp_path / "new")["ok"] is True
    command = [sys.executable, "-m", "topics", "backup", "--path", str(tmp_path / "new"), str(tmp_path / "bk")]
    refused = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert b"other_store" in refused.stderr
    assert before.written["sync"]
