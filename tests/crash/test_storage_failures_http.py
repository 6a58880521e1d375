"""A failing and a full disk under a real server in a process of its own, over real HTTP (13 §4, T10 and T11)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topics.testing.httpconn import Answer, HttpConn
from topics.testing.serverproc import FAULTY, ServerProcess

ENV = {"TOPICS_WAL_FILE_BYTES": "65536", "TOPICS_CHECKPOINT_MS": "100", "TOPICS_MIN_FREE_BYTES": "0"}
WAIT_S = 60.0
PAD = "." * 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    one = ServerProcess(tmp_path, ENV, FAULTY)
    try:
        one.wait_ready()
        yield one
    finally:
        one.abandon()


def inject(server: ServerProcess, op: str, error: str, path: str = "", times: str = "always") -> None:
    server.tell(json.dumps({"op": op, "error": error, "path": path, "times": times}))


def write(http: HttpConn, topic: str, *texts: str) -> Answer:
    return http.call("POST", f"/v0/topics/{topic}", {"records": [{"data": text, "tag": text[:20]} for text in texts]})


def everything(http: HttpConn, topic: str) -> tuple[dict[int, str], list[tuple[int, int, str]]]:
    """What a topic holds, and what it tells as lost."""
    found: dict[int, str] = {}
    gaps: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        page = http.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000}).body
        gap = page["tombstone"]
        gaps += [] if gap is None else [(gap["gap_from"], gap["gap_to"], gap["reason"])]
        found.update((record["$seq"], record["data"]) for record in page["records"])
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found, gaps


def texts(http: HttpConn, topic: str) -> list[str]:
    """Everything a topic holds; it tells no loss."""
    found, gaps = everything(http, topic)
    assert gaps == []
    return list(found.values())


def until(call: Callable[[], Answer], status: int) -> Answer:
    """Ask again and again until an answer has this status."""
    end = time.monotonic() + WAIT_S
    while (answer := call()).status != status:
        assert time.monotonic() < end, f"still {answer}"
    return answer


class Writers:
    """Threads that write single records until they are told to stop; what was answered to each."""

    def __init__(self, server: ServerProcess, topics: list[str]) -> None:
        self.answers: dict[str, tuple[str, Answer, float]] = {}
        """By text: topic, answer, when the request was sent."""
        self._stop = threading.Event()
        self._told = threading.Condition()
        self._address = server.address
        self._threads = [threading.Thread(target=self._run, args=(n, topic)) for n, topic in enumerate(topics)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, topic: str) -> None:
        count = 0
        with HttpConn(*self._address) as http:
            while not self._stop.is_set():
                count += 1
                text = f"{number}/{count} {PAD}"
                began = time.monotonic()
                answer = write(http, topic, text)
                with self._told:
                    self.answers[text] = (topic, answer, began)
                    self._told.notify_all()

    def wait_for(self, count: int, status: int, since: float = 0.0) -> None:
        """Return once so many requests, sent since then, were answered with this status."""

        def enough() -> bool:
            told = self.answers.values()
            return sum(answer.status == status and began > since for _, answer, began in told) >= count

        with self._told:
            assert self._told.wait_for(enough, WAIT_S)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def of(self, topic: str, status: int) -> list[str]:
        return [text for text, (name, answer, _) in self.answers.items() if name == topic and answer.status == status]


def assert_not_ready(answer: Answer, state: str, retry_after: str) -> None:
    """06 §21"""
    assert answer.status == 503, answer
    assert answer.body["error"]["code"] == "not_ready"
    assert answer.body["error"]["detail"] == {"state": state}
    assert answer.headers["retry-after"] == retry_after


# -- T10: a failed sync ----------------------------------------------------------------------------------------------


def test_after_a_failed_sync_nothing_is_acknowledged_and_reads_go_on(server: ServerProcess, tmp_path: Path) -> None:
    """[R-2] The batch that failed answers 500, what comes later 503; `ready` is false before anybody is answered."""
    with HttpConn(*server.address) as http:
        for topic, durability in (("fsync", "fsync"), ("disk", "disk")):
            assert http.call("PUT", f"/v0/topics/{topic}", {"durability": durability}).status == 201
        writers = Writers(server, ["fsync", "fsync", "fsync", "disk"])
        writers.wait_for(50, 200)
        inject(server, "fdatasync", "EIO", "/wal/", times="once")
        writers.wait_for(1, 500)
        # Which is within any second that a clock could measure, on a machine as busy as it may be.
        assert_not_ready(http.call("GET", "/v0/ready"), "read_only", "30")
        refused = time.monotonic()
        writers.wait_for(20, 503, refused)
        writers.stop()

        late = [answer for _, answer, began in writers.answers.values() if began > refused]
        assert late
        for answer in late:
            assert_not_ready(answer, "read_only", "30")
        failed = writers.of("fsync", 500)
        assert failed, "the batch whose sync failed was not answered"
        assert all(writers.answers[text][1].body["error"]["code"] == "internal" for text in failed)
        statuses = {answer.status for _, answer, _ in writers.answers.values()}
        assert statuses == {200, 500, 503}

        # The disk works again, and nothing is acknowledged by a retry all the same.
        assert_not_ready(write(http, "fsync", "again"), "read_only", "30")
        assert_not_ready(http.call("PUT", "/v0/topics/new", {}), "read_only", "30")
        assert_not_ready(http.call("GET", "/v0/ready"), "read_only", "30")
        for topic in ("fsync", "disk"):
            assert sorted(texts(http, topic)) == sorted(writers.of(topic, 200))
            assert http.call("GET", f"/v0/topics/{topic}").status == 200
        assert http.call("GET", "/v0/health").status == 200

    server.kill()
    again = ServerProcess(tmp_path, ENV, FAULTY)
    try:
        again.wait_ready()
        with HttpConn(*again.address) as http:
            check_after_failed_sync(http, writers)
            assert write(http, "fsync", "at last").status == 200
    finally:
        again.abandon()


def check_after_failed_sync(http: HttpConn, writers: Writers) -> None:
    """A failed write may have happened, once; a refused one has not [R-6]."""
    for topic in ("fsync", "disk"):
        found, gaps = everything(http, topic)
        acked = {writers.answers[text][1].body["first_seq"]: text for text in writers.of(topic, 200)}
        missing = {seq: text for seq, text in acked.items() if found.get(seq) != text}
        assert len(set(found.values())) == len(found)
        assert set(found.values()) <= {*writers.of(topic, 200), *writers.of(topic, 500)}
        if topic == "fsync":
            assert (missing, gaps) == ({}, [])
        # What a `disk` topic had not synced is like after a crash of the machine: told, where it is not there [DUR-4].
        assert all(reason == "crash" for _, _, reason in gaps)
        assert all(any(first <= seq <= last for first, last, _ in gaps) for seq in missing)


def test_a_sync_that_fails_while_nobody_waits_for_it_turns_the_server_read_only(tmp_path: Path) -> None:
    """[R-2] A `disk` write is acknowledged before its sync; when that fails later, everybody is told."""
    server = ServerProcess(tmp_path, {**ENV, "TOPICS_WAL_SHARDS": "1", "TOPICS_CHECKPOINT_MS": "3600000"}, FAULTY)
    try:
        server.wait_ready()
        check_failed_background_sync(server)
    finally:
        server.abandon()


def check_failed_background_sync(server: ServerProcess) -> None:
    with HttpConn(*server.address) as http:
        assert write(http, "disk", "first").status == 201
        # It covers what was written before: from now on nothing is synced until somebody writes again.
        assert http.call("PUT", "/v0/topics/fsync", {"durability": "fsync"}).status == 201
        assert write(http, "fsync", "all of it").status == 200
        inject(server, "fdatasync", "EIO", "/wal/")
        assert write(http, "disk", "second").status == 200
        assert_not_ready(until(lambda: http.call("GET", "/v0/ready"), 503), "read_only", "30")
        assert_not_ready(write(http, "disk", "third"), "read_only", "30")
        assert texts(http, "disk") == ["first", "second"]


# -- T11: a full disk ------------------------------------------------------------------------------------------------


def fill(http: HttpConn) -> tuple[list[str], Answer]:
    """Write until the disk is full: what was acknowledged, and the first refusal."""
    acked: list[str] = []
    for number in range(100_000):
        text = f"fill/{number} {PAD}"
        answer = write(http, "fsync", text)
        if answer.status == 503:
            return acked, answer
        if answer.status == 200:
            acked.append(text)
        else:
            # The write that found the disk full failed; the next one is refused.
            assert answer.status == 500, answer
    raise AssertionError("the disk is never full")


def check_full(server: ServerProcess, take_space: Callable[[], None], give_back: Callable[[], None]) -> list[str]:
    """T11 from the outside: refused as full, nothing lost, deletes work, writes are back soon after space is."""
    with HttpConn(*server.address) as http:
        assert http.call("PUT", "/v0/topics/fsync", {"durability": "fsync"}).status == 201
        take_space()
        acked, refusal = fill(http)
        assert acked
        assert_not_ready(refusal, "full", "5")
        assert_not_ready(until(lambda: http.call("GET", "/v0/ready"), 503), "full", "5")
        assert set(acked) <= set(texts(http, "fsync"))

        gone = acked.pop(0)
        deleted = http.call("POST", "/v0/topics/fsync/delete", {"match": ["tag", "Eq", gone[:20]]})
        assert (deleted.status, deleted.body["deleted"]) == (200, 1)
        assert gone not in texts(http, "fsync")
        assert_not_ready(write(http, "fsync", "still full"), "full", "5")

        give_back()
        until(lambda: write(http, "fsync", f"room {time.monotonic_ns()}"), 200)
        assert http.call("GET", "/v0/ready").status == 200
        found = texts(http, "fsync")
        assert gone not in found
        assert "still full" not in found
        assert set(acked) <= set(found)
        return found


def check_restart(folder: Path, found: list[str]) -> None:
    again = ServerProcess(folder, ENV, FAULTY)
    try:
        again.wait_ready()
        with HttpConn(*again.address) as http:
            assert texts(http, "fsync") == found
            assert write(http, "fsync", "after").status == 200
    finally:
        again.abandon()


def test_a_full_disk_loses_nothing_and_writes_return_when_space_is_back(server: ServerProcess, tmp_path: Path) -> None:
    """[R-1, S-80] The volume refuses new space; what is reserved already can be written."""

    def take_space() -> None:
        inject(server, "allocate", "ENOSPC")
        inject(server, "pwrite", "ENOSPC", "/topics/")

    found = check_full(server, take_space, lambda: server.tell('{"clear": true}'))
    server.kill()
    check_restart(tmp_path, found)


VOLUME_BYTES = 4 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A real volume of its own, where that is permitted."""
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a volume is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_volume(hog: Path) -> None:
    """Leave 1 MiB, so that the server finds out by itself."""
    free = shutil.disk_usage(hog.parent).free
    hog.write_bytes(bytes(max(free - (1 << 20), 0)))


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_volume_that_is_really_full_loses_nothing(volume: Path) -> None:
    """T11 without injected faults: another file takes the space and gives it back."""
    hog = volume / "hog"
    server = ServerProcess(volume, ENV, FAULTY)
    try:
        server.wait_ready()
        found = check_full(server, lambda: fill_volume(hog), hog.unlink)
        server.kill()
    finally:
        server.abandon()
    check_restart(volume, found)
