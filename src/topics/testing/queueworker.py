"""A worker of `queue-chaos`: a process of its own that takes jobs, does them, and notes each step before the next.

    python -m topics.testing.queueworker FOLDER NAME SEED claim|stream

The journal is a file that is appended to by single writes, so a worker killed at any moment leaves all it has noted.
One line a step: `got queue seq lease deliveries job`, `did queue job`, `acked queue seq lease`, `odd text`.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topics.testing.httpconn import Answer, HttpConn, NotSent

QUEUES = ("plain", "kept")
"""Without durable leases, and with them."""
LEASE_MS = 1500
BATCH = 8
PAUSE_S = 0.03
LATE = 0.02
"""How often a worker is so late that somebody else has its jobs."""
GIVEN_BACK = 0.05
FORGOTTEN = 0.03
STREAM_S = 0.2
"""How long a stream may be silent before the other queue is looked at."""


class Job(NamedTuple):
    """A job as it was delivered."""

    seq: int
    lease_id: str
    deliveries: int
    data: Any


class Journal:
    """What a worker has done so far."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        """One step; it is in the file when this returns."""
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    """Takes jobs of both queues in turn."""

    def __init__(self, folder: Path, name: str, seed: str, way: str) -> None:
        self._folder = folder
        self._name = name
        self._rng = random.Random(f"{seed} {name}")
        self._streams = way == "stream"
        self._journal = Journal(folder / f"{name}.journal")

    def run(self) -> None:
        """Work until killed; a server that is gone comes back, perhaps at another port."""
        while True:
            try:
                self._live(*self._address())
            except OSError:
                time.sleep(PAUSE_S)

    def _address(self) -> tuple[str, int]:
        try:
            host, _, port = (self._folder / "port").read_text().strip().rpartition(":")
            return host.strip("[]"), int(port)
        except (FileNotFoundError, ValueError):
            raise NotSent("no server yet") from None

    def _live(self, host: str, port: int) -> None:
        with HttpConn(host, port) as http:
            while True:
                for queue in QUEUES:
                    if self._streams:
                        self._stream(http, (host, port), queue)
                    else:
                        self._work(http, queue, self._claim(http, queue))

    # -- taking ------------------------------------------------------------------------------------------------------

    def _claim(self, http: HttpConn, queue: str) -> list[Job]:
        answer = http.call("POST", f"/v0/topics/{queue}/claim", {"node": self._name, "max": BATCH})
        if answer.status != 200:
            self._refused("a claim", answer)
            return []
        if not answer.body["claimed"]:
            time.sleep(PAUSE_S)
        return [job_of(one) for one in answer.body["claimed"]]

    def _stream(self, http: HttpConn, address: tuple[str, int], queue: str) -> None:
        """Take jobs from a stream until none has come for a while; then it is let go, with what it holds."""
        with socket.create_connection(address, 10) as sock:
            path = f"/v0/topics/{queue}/work?node={self._name}&max={BATCH}"
            sock.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            sock.settimeout(STREAM_S)
            text = b""
            while True:
                try:
                    part = sock.recv(1 << 16)
                except TimeoutError:
                    return
                if not part:
                    return
                *frames, text = (text + part).split(b"\n\n")
                self._work(http, queue, [job for frame in frames if (job := pushed(frame)) is not None])

    # -- doing -------------------------------------------------------------------------------------------------------

    def _work(self, http: HttpConn, queue: str, jobs: list[Job]) -> None:
        for job in jobs:
            self._journal.note("got", queue, job.seq, job.lease_id, job.deliveries, job.data["job"])
        if not jobs:
            return
        chance = self._rng.random()
        if chance < LATE:
            time.sleep(LEASE_MS * 1.4 / 1000)
        elif chance < LATE + FORGOTTEN:
            return
        elif chance < LATE + FORGOTTEN + GIVEN_BACK:
            self._call(http, queue, "nack", jobs, delay_ms=self._rng.choice((0, 50)))
            return
        time.sleep(self._rng.uniform(0, PAUSE_S))
        for job in jobs:
            self._journal.note("did", queue, job.data["job"])
        told = self._call(http, queue, "ack", jobs)
        if told is not None:
            skipped = set(told["skipped"])
            for job in jobs:
                if job.seq not in skipped:
                    self._journal.note("acked", queue, job.seq, job.lease_id)

    def _call(self, http: HttpConn, queue: str, verb: str, jobs: list[Job], **more: object) -> Any:
        body = {"node": self._name, "seqs": [job.seq for job in jobs], "lease_ids": [job.lease_id for job in jobs]}
        answer = http.call("POST", f"/v0/topics/{queue}/{verb}", {**body, **more})
        if answer.status != 200:
            self._refused(verb, answer)
            return None
        return answer.body

    def _refused(self, what: str, answer: Answer) -> None:
        if answer.status != 503:  # it recovers
            self._journal.note("odd", f"{what} was answered {answer.status}")
        time.sleep(PAUSE_S)


def job_of(told: dict[str, Any]) -> Job:
    """A job as an answer or a frame has it."""
    return Job(told["$seq"], told["lease_id"], told["deliveries"], told["data"])


def pushed(frame: bytes) -> Job | None:
    """The job of a frame; None of a head, a `retry` or a heartbeat."""
    lines = frame.split(b"\n")
    if b"event: job" not in lines:
        return None
    return job_of(msgspec.json.decode(lines[-1].removeprefix(b"data: ")))


if __name__ == "__main__":
    Worker(Path(sys.argv[1]), *sys.argv[2:]).run()
