"""`python -m topics.testing queue-stall`: workers stopped beyond their leases; old tokens count for nothing [T12].

Each worker is a process of its own with a queue of one job. It takes the job and is stopped with SIGSTOP in the middle
of its work, for so many seconds longer than its lease lasts. Meanwhile, in turn,

    another    a worker of another name is given the job
    renamed    a worker of the very same name is, as when a process is started anew: only the token tells them apart
    streamed   the job had come by a stream, which is still open: it comes by it again and again, under new tokens
    nobody     the job only comes back

Then it goes on, not knowing any of this, and acks, gives its job back and extends its lease, all with its old token.
Nothing of it may count: the new holder's lease stays as it was, its ack is the one that does, and a job that nobody
took is still there.

    python -m topics.testing.queuestall HOST PORT QUEUE NAME claim|stream     is one such worker
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from topics.testing.httpconn import HttpConn
from topics.testing.kill9 import ENV, Broken
from topics.testing.queueworker import Job, job_of, pushed
from topics.testing.serverproc import ServerDied, ServerProcess

WAYS: Final = ("another", "renamed", "streamed", "nobody")
LEASE_MS: Final = 1000
START_S: Final = 60.0
POLL_S: Final = 0.05
STREAM_S: Final = 10.0
"""How long a stream is waited for that should have brought its job again."""
VERBS: Final = ("ack", "nack", "extend")

Progress = Callable[[list[str]], None]
"""Told for each worker that was judged: what was violated."""


class Size(NamedTuple):
    """How many workers, and how many seconds each is stopped beyond its lease."""

    workers: int = 20
    beyond_s: float = 30.0


QUICK: Final = Size(4, 0.5)


# -- the worker ------------------------------------------------------------------------------------------------------


def work(host: str, port: int, queue: str, name: str, way: str) -> None:
    """Take a job, say so, wait for the word to go on, and finish with the token it was given."""
    with socket.create_connection((host, port), START_S) as sock:
        job = _streamed(sock, queue, name) if way == "stream" else _claimed(host, port, queue, name)
        _say(job._asdict())
        sys.stdin.readline()
        with HttpConn(host, port) as http:
            for verb in VERBS:
                _say(_finish(http, queue, name, job, verb))


def _claimed(host: str, port: int, queue: str, name: str) -> Job:
    with HttpConn(host, port) as http:
        answer = http.call("POST", f"/v0/topics/{queue}/claim", {"node": name, "max": 1})
    return job_of(answer.body["claimed"][0])


def _streamed(sock: socket.socket, queue: str, name: str) -> Job:
    """The first job of a stream, which stays open."""
    sock.sendall(f"GET /v0/topics/{queue}/work?node={name}&max=1 HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    text = b""
    while True:
        part = sock.recv(1 << 16)
        if not part:
            raise Broken("the stream ended")
        *frames, text = (text + part).split(b"\n\n")
        for frame in frames:
            job = pushed(frame)
            if job is not None:
                return job


def _finish(http: HttpConn, queue: str, name: str, job: Job, verb: str) -> Any:
    more = {"extend": {"lease_ms": 3_600_000}, "nack": {"delay_ms": 3_600_000}, "ack": {}}[verb]
    body = {"node": name, "seqs": [job.seq], "lease_ids": [job.lease_id], **more}
    answer = http.call("POST", f"/v0/topics/{queue}/{verb}", body)
    return {"status": answer.status, **answer.body}


def _say(told: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


# -- the run ---------------------------------------------------------------------------------------------------------


class _Stalled:
    """One worker, what it was given, and who has its job now."""

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self.name, self.queue, self.way = f"w{number}", f"q{number}", WAYS[number % len(WAYS)]
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self.old: Job | None = None
        self.new: Job | None = None

    @property
    def heir(self) -> str:
        """The node that takes the job over."""
        return self.name if self.way == "renamed" else f"{self.name}-heir"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request of somebody who is awake."""
        with HttpConn(*self._address) as http:
            answer = http.call(method, f"/v0/topics/{self.queue}{path}", body)
        if answer.status >= 300:
            raise Broken(f"{method} {self.queue}{path} was answered {answer}")
        return answer.body

    def create(self, durable: bool) -> None:
        """A queue with one job."""
        config = {"type": "queue", "durability": "fsync", "lease_ms": LEASE_MS, "leases_durable": durable}
        self.ask("PUT", "", config)
        self.ask("POST", "", {"records": [{"data": {"job": self.queue}}]})

    def hire(self) -> None:
        """A worker that takes the job."""
        way = "stream" if self.way == "streamed" else "claim"
        command = [sys.executable, "-m", __name__, *map(str, self._address), self.queue, self.name, way]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.old = Job(**self._heard())

    def _heard(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Broken(f"worker {self.name} ended with {self._process.wait(START_S)}")
        return msgspec.json.decode(line)

    def stop(self) -> None:
        """SIGSTOP; the word to go on is said already, it finds it when it wakes up."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")
        self._process.stdin.flush()

    def take_over(self) -> bool:
        """Have somebody else take the job, if anybody does; whether it is settled who has it, or that it came again."""
        if self.way == "nobody" or self.new is not None:
            return True
        if self.way == "streamed":
            return any(one["deliveries"] > 1 for one in self.ask("GET", "/leases")["leases"])
        claimed = self.ask("POST", "/claim", {"node": self.heir, "max": 1, "lease_ms": 3_600_000})["claimed"]
        if claimed:
            self.new = job_of(claimed[0])
        return self.new is not None

    def go_on(self) -> list[str]:
        """SIGCONT; what of all that it does now counted although it must not."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        found = []
        for verb in VERBS:
            told = self._heard()
            if told["status"] != 200 or told[f"{verb}ed"] or told["skipped"] != [1]:
                found.append(f"stale: {verb} of {self.queue} ({self.way}) with an old token was answered {told}")
        self._process.wait(START_S)
        return found or self._judge()

    def _judge(self) -> list[str]:
        """The job is as whoever has it left it."""
        if self.new is None:
            return self._judge_ready()
        assert self.old is not None
        found = []
        leases = self.ask("GET", "/leases")
        held = [(one["node"], one["lease_id"], one["deliveries"]) for one in leases["leases"]]
        if held != [(self.heir, self.new.lease_id, self.old.deliveries + 1)] or leases["delayed"]:
            found.append(f"changed: {self.queue} ({self.way}) holds {leases}, it was given as {self.new}")
        body = {"node": self.heir, "seqs": [self.new.seq], "lease_ids": [self.new.lease_id]}
        told = self.ask("POST", "/ack", body)
        if told["acked"] != 1 or self.ask("GET", "")["count"]:
            found.append(f"lost: the ack of {self.queue} ({self.way}) by who holds it was answered {told}")
        return found

    def _judge_ready(self) -> list[str]:
        """Nobody has the job: the next one to ask for it is given it, once the server has seen the stream end."""
        late = time.monotonic() + START_S
        while time.monotonic() < late:
            claimed = self.ask("POST", "/claim", {"node": self.heir, "max": 1})["claimed"]
            if claimed:
                deliveries = job_of(claimed[0]).deliveries
                as_told = deliveries == 2 if self.way == "nobody" else deliveries > 2
                return [] if as_told else [f"changed: {self.queue} ({self.way}) comes as delivery {deliveries}"]
            time.sleep(POLL_S)
        return [f"changed: {self.queue} ({self.way}) holds {self.ask('GET', '/leases')}"]

    def close(self) -> None:
        """End the worker; also one that is stopped."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def run(folder: Path, size: Size, progress: Progress) -> list[str]:
    """Stop so many workers beyond their leases, all at once; what was violated."""
    server = ServerProcess(folder, ENV)
    stalled: list[_Stalled] = []
    violations: list[str] = []
    try:
        server.wait_ready()
        stalled += [_Stalled(server.address, number) for number in range(size.workers)]
        for number, one in enumerate(stalled):
            one.create(durable=number // len(WAYS) % 2 == 0)
            one.hire()
            one.stop()
        _wait_beyond(stalled, size.beyond_s)
        for one in stalled:
            found = one.go_on()
            violations += found
            progress(found)
        server.stop()
    except (Broken, ServerDied, OSError) as error:
        violations.append(f"{type(error).__name__}: {error}")
        progress(violations[-1:])
    finally:
        for one in stalled:
            one.close()
        server.abandon()
    return violations


def _wait_beyond(stalled: list[_Stalled], beyond_s: float) -> None:
    """Until every lease is over for so long, and every job that somebody takes is taken."""
    over = time.monotonic() + LEASE_MS / 1000 + beyond_s
    open_jobs = list(stalled)
    while open_jobs or time.monotonic() < over:
        open_jobs = [one for one in open_jobs if not one.take_over()]
        if time.monotonic() > over + STREAM_S:
            open_jobs = [one for one in open_jobs if one.way != "streamed"]  # the judge will tell
        if time.monotonic() > over + START_S:
            raise Broken("jobs whose leases are over did not come back")
        time.sleep(POLL_S)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
