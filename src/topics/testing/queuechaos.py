"""`python -m topics.testing queue-chaos`: workers that die and stall, a server that is killed, and every job done.

Eight worker processes take jobs of two queues, half of them by claims and half by streams. They are killed and stopped
for longer than their leases at random, and replaced; the server is killed with SIGKILL when a third and two thirds of
the jobs are acked. At the end the workers' journals are judged:

    every job was done                    at least once [QUE-4]
    an acked job came never again         no delivery has a higher lease id than the one it was acked under [ACK-2]
    no ack counted twice, no lease id was given twice [LSE-4, LSE-5, LSE-8]
    with durable leases, deliveries of a job count on over restarts [QRC-3]
    the queues are empty, and hold as many seqs as jobs were produced

Lease ids grow with time, so nothing depends on clocks. The seed decides who is killed, not how processes interleave.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from topics.testing import queueworker
from topics.testing.httpconn import HttpConn, NotSent
from topics.testing.kill9 import ENV, Broken
from topics.testing.queueworker import LEASE_MS, QUEUES
from topics.testing.serverproc import ServerDied, ServerProcess

WORKERS = 8
PRODUCED_AT_ONCE = 100
SERVER_KILLS = 2
STUCK_S = 120.0
ACKS_BETWEEN = 8
"""At least, from one disturbance to the next: a slow machine is not disturbed more often than it gets on."""
STEP_S = 0.05
STOPPED_S = LEASE_MS * 1.3 / 1000

QUICK = 1500
"""Jobs of a small run."""

Progress = Callable[[int, list[str]], None]
"""Told now and then: how many jobs are acked, and what was violated."""


class Report(NamedTuple):
    """What a run came to."""

    acked: int
    counts: dict[str, int]
    violations: list[str]


class Judge:
    """Everything the journals say, one line after another in the order of each worker."""

    def __init__(self) -> None:
        self.deliveries: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        """By queue and seq: delivery counts, by lease id."""
        self.acks: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.jobs: dict[tuple[str, int], int] = {}
        self.done: set[tuple[str, int]] = set()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def read(self, line: str) -> None:
        """One step of a worker."""
        kind, *words = line.split(" ")
        self.counts[kind] += 1
        if kind == "got":
            self._got(words[0], int(words[1]), _number(words[2]), int(words[3]), int(words[4]))
        elif kind == "did":
            self.done.add((words[0], int(words[1])))
        elif kind == "acked":
            self.acks[words[0], int(words[1])].append(_number(words[2]))
        else:
            self.violations.append(f"odd: {' '.join(words)}")

    def _got(self, queue: str, seq: int, lease: int, count: int, job: int) -> None:
        known = self.deliveries[queue, seq]
        if lease in known:
            self.violations.append(f"lease: {lease:x} of {queue}/{seq} was given twice")
        if self.jobs.setdefault((queue, seq), job) != job:
            self.violations.append(f"job: {queue}/{seq} is two jobs")
        known[lease] = count

    def conclude(self, produced: int) -> list[str]:
        """All that can be said only at the end."""
        found = list(self.violations)
        for queue in QUEUES:
            missing = [job for job in range(produced) if (queue, job) not in self.done]
            found += [f"lost: job {job} of {queue} was never done" for job in missing]
        for (queue, seq), leases in self.acks.items():
            if len(leases) > 1:
                found.append(f"twice: {queue}/{seq} was acked under {', '.join(f'{one:x}' for one in leases)}")
            later = [one for one in self.deliveries[queue, seq] if one > leases[0]]
            found += [f"again: {queue}/{seq} was delivered as {one:x}, acked as {leases[0]:x}" for one in later]
        for (queue, seq), known in self.deliveries.items():
            told = [known[lease] for lease in sorted(known)]
            if queue == "kept" and any(a >= b for a, b in pairwise(told)):
                found.append(f"count: {queue}/{seq} was delivered as number {told}")
        return found


def _number(token: str) -> int:
    return int(token.removeprefix("lease_"), 16)


class Run:
    """One run: the server, its workers, and what they noted."""

    def __init__(self, folder: Path, seed: int, jobs: int) -> None:
        self._folder = folder
        self._seed = seed
        self._rng = random.Random(f"{seed} chaos")
        self._jobs = jobs // len(QUEUES)
        self._produced = 0
        self._server: ServerProcess | None = None
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: dict[str, float] = {}
        self._hired = 0
        self._read: Counter[str] = Counter()
        self._disturbed_at = 0
        """How many were acked then."""
        self.judge = Judge()
        self.counts: Counter[str] = Counter()

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A server; the first one makes the queues."""
        self._server = ServerProcess(self._folder, ENV)
        self._server.wait_ready()

    def kill_server(self) -> None:
        """SIGKILL, a worker with it, and another server."""
        assert self._server is not None
        self._server.kill()
        self.counts["server_kills"] += 1
        self.dismiss(self._rng.choice(list(self._workers)))
        self.counts["worker_kills"] += 1
        self.start()

    def create(self) -> None:
        """Both queues, of class `fsync`: what was acked stays so over any stop."""
        for queue in QUEUES:
            config = {"type": "queue", "durability": "fsync", "lease_ms": LEASE_MS, "leases_durable": queue == "kept",
                      "idempotency_window_ms": 3_600_000}  # fmt: skip
            answer = self._ask("PUT", f"/v0/topics/{queue}", config)
            if answer["created"] is not True:
                raise Broken(f"{queue} cannot be created: {answer}")

    def hire(self) -> None:
        """Have as many workers as there should be."""
        while len(self._workers) < WORKERS:
            self._hired += 1
            name = f"w{self._hired}"
            way = "stream" if self._hired % 2 else "claim"
            command = [sys.executable, "-m", queueworker.__name__, str(self._folder), name, str(self._seed), way]
            self._workers[name] = subprocess.Popen(command)

    def wake(self) -> None:
        """Those who were stopped long enough go on."""
        now = time.monotonic()
        for name, until in list(self._stopped.items()):
            if now >= until:
                del self._stopped[name]
                self._workers[name].send_signal(signal.SIGCONT)

    def disturb(self) -> None:
        """Kill a worker, or stop one for longer than its leases last, if enough was done since the last time."""
        acked = len(self.judge.acks)
        if acked < self._disturbed_at + ACKS_BETWEEN:
            return
        self._disturbed_at = acked
        chance = self._rng.random()
        name = self._rng.choice(list(self._workers))
        if chance < 0.1:
            self.dismiss(name)
            self.counts["worker_kills"] += 1
        elif chance < 0.14 and name not in self._stopped:
            self._stopped[name] = time.monotonic() + STOPPED_S
            self._workers[name].send_signal(signal.SIGSTOP)
            self.counts["worker_stops"] += 1

    def dismiss(self, name: str) -> None:
        """SIGKILL; also ends one that is stopped."""
        self._stopped.pop(name, None)
        process = self._workers.pop(name)
        process.kill()
        process.wait()

    # -- jobs --------------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        """The next jobs, once each: a repeat of a write has the same key [A-3]."""
        for queue in QUEUES:
            first = self._produced
            numbers = range(first, min(first + PRODUCED_AT_ONCE, self._jobs))
            body = {"records": [{"data": {"job": n}} for n in numbers], "idempotency_key": f"{queue}/{first}"}
            self._ask("POST", f"/v0/topics/{queue}", body)
        self._produced = min(self._produced + PRODUCED_AT_ONCE, self._jobs)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        assert self._server is not None
        with HttpConn(*self._server.address) as http:
            answer = http.call(method, path, body)
        if answer.status >= 300:
            raise Broken(f"{method} {path} was answered {answer}")
        return answer.body

    def take_in(self) -> None:
        """Read what the journals have got; the last line of a killed worker may be half of one."""
        for path in sorted(self._folder.glob("*.journal")):
            with path.open("rb") as file:
                file.seek(self._read[path.name])
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path.name] += len(whole)
            for line in whole.decode().splitlines():
                self.judge.read(line)

    def run(self, progress: Progress) -> None:
        """Produce, disturb and kill until nothing is left to be done."""
        total, since, before = self._jobs * len(QUEUES), time.monotonic(), -1
        while not self._is_over():
            if self._produced < self._jobs:
                self.produce()
            self.hire()
            time.sleep(STEP_S)
            self.wake()
            self.take_in()
            self.disturb()
            acked = len(self.judge.acks)
            if acked * (SERVER_KILLS + 1) >= total * (self.counts["server_kills"] + 1) > 0 and not self._is_over():
                self.kill_server()
            if acked != before:
                before, since = acked, time.monotonic()
            elif time.monotonic() - since > STUCK_S:
                raise Broken(f"nothing was acked for {STUCK_S:.0f} s; {acked} of {total} are")
            progress(acked, [])

    def _is_over(self) -> bool:
        """Whether all jobs are produced and gone, and the server was killed as often as it should be."""
        if self._produced < self._jobs or self.counts["server_kills"] < SERVER_KILLS:
            return False
        return all(self._ask("GET", f"/v0/topics/{queue}")["count"] == 0 for queue in QUEUES)

    def finish(self) -> list[str]:
        """Dismiss everybody, look at the queues, judge."""
        for name in list(self._workers):
            self.dismiss(name)
        self.take_in()
        found = self.judge.conclude(self._jobs)
        for queue in QUEUES:
            state = self._ask("GET", f"/v0/topics/{queue}")
            left = {one: state["queue"][one] for one in ("ready", "in_flight", "delayed") if state["queue"][one]}
            if left or state["head_seq"] != self._jobs:
                found.append(f"left: {queue} ends at {state['head_seq']} of {self._jobs} with {left}")
        assert self._server is not None
        self._server.stop()
        return found

    def close(self) -> None:
        """End all processes."""
        for name in list(self._workers):
            self.dismiss(name)
        if self._server is not None:
            self._server.abandon()


def run(folder: Path, seed: int, jobs: int, progress: Progress) -> Report:
    """Have so many jobs done under chaos, and judge."""
    one = Run(folder, seed, jobs)
    violations: list[str] = []
    try:
        one.start()
        one.create()
        one.run(progress)
        violations = one.finish()
    except (Broken, ServerDied, NotSent, OSError) as error:
        one.take_in()
        violations = [*one.judge.violations, f"{type(error).__name__}: {error}"]
    finally:
        one.close()
    progress(len(one.judge.acks), violations)
    return Report(len(one.judge.acks), {**one.judge.counts, **one.counts}, violations)
