"""`python -m topics.testing spark-chaos`: a stream from Spark into a server, both killed in the middle, every row once.

Files become batches of a stream that is repartitioned and shuffled, with tasks that fail. Its driver (the Java machine
with it) and the server are killed with SIGKILL, the same number of times each, half of the time while rows are staged
and not committed. A driver comes back with another number of partitions. In the end [K-31, K-35]:

    rows      every topic has exactly the rows of all files, as multisets: a count would not see loss and double
    whole     in every topic the rows of a batch lie together: readers saw it whole

The seed decides what is killed and when, not how processes interleave. Needs `topics[spark]`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from topics.spark.local import BRIEF
from topics.testing.httpconn import HttpConn
from topics.testing.kill9 import ENV, Broken
from topics.testing.ports import free_port
from topics.testing.serverproc import ServerDied, ServerProcess

QUICK = 1
"""Kills of the driver, and of the server, of a small run."""
TOPICS = ("t0", "t1", "t2")
ROWS = 400
AHEAD = 3
"""Files that lie there before anything is killed, so that there is work to kill."""
STUCK_S = 240.0
PAUSE_S = 0.01
AIM_S = 20.0
"""How long rows that are staged are waited for."""
LATER_S = (0.0, 0.1, 0.3)
"""How long after that something is killed: amidst the tasks, or between them and the commit."""

Progress = Callable[[int, list[str]], None]
"""Told now and then: how often something was killed, and what was violated."""


class Report(NamedTuple):
    """What a run came to."""

    counts: dict[str, int]
    violations: list[str]


class Row(NamedTuple):
    """A row as it is read back."""

    file: int
    n: int


def expected(files: int) -> dict[str, list[Row]]:
    """What so many files bring to each topic."""
    rows = [Row(file, n) for file in range(files) for n in range(ROWS)]
    return {topic: [row for row in rows if f"t{row.n % 3}" == topic] for topic in TOPICS}


def judge(topic: str, wanted: Iterable[Row], found: Sequence[Row]) -> list[str]:
    """What is wrong with the rows of a topic."""
    lost = Counter(wanted) - Counter(found)
    double = Counter(found) - Counter(wanted)
    violations = []
    if lost or double:
        violations.append(
            f"rows: {topic} has {len(found)} rows, lost {lost.total()} such as {list(lost)[:3]}, "
            f"too many {double.total()} such as {list(double)[:3]}"
        )
    runs = [file for file, _ in groupby(row.file for row in found)]
    if len(runs) != len(set(runs)):
        violations.append(f"whole: {topic} has rows of a batch in several places")
    return violations


class Run:
    """One run: a server, a driver, and who kills them."""

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self._folder = folder
        self._rng = random.Random(f"{seed} spark chaos")
        self._plan = self._rng.sample(["driver", "server"] * kills, 2 * kills)
        self._server: ServerProcess | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._port = free_port()  # for all lives of the server: the address of a sink does not change
        self._files = 0
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def run(self, progress: Progress) -> None:
        """Kill what is planned, let the rest be done, and judge."""
        (self._folder / "in").mkdir(parents=True)
        self._serve()
        for _ in range(AHEAD):
            self._put()
        self._drive()
        for done, victim in enumerate(self._plan, 1):
            self._wait_for_a_moment()
            if victim == "driver":
                self._kill_driver()
                self._drive()
            else:
                self._kill_server()
            self.counts[f"{victim}_kills"] += 1
            progress(done, [])
        self._finish()
        self._judge()

    # -- processes ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        env = {**ENV, "TOPICS_PORT": str(self._port)}
        self._server = ServerProcess(self._folder / "server", env)
        self._server.wait_ready()

    def _kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._serve()

    def _drive(self) -> None:
        command = [sys.executable, "-m", "topics.testing.sparkdriver", str(self._folder)]
        command += [f"http://127.0.0.1:{self._port}", str(self._rng.choice([2, 3]))]
        with (self._folder / "driver.log").open("ab") as log:
            env = {"JAVA_TOOL_OPTIONS": BRIEF, **os.environ}
            self._driver = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def _kill_driver(self) -> None:
        """The Java machine too; processes of tasks notice by themselves, in their own time."""
        assert self._driver is not None
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()

    def close(self) -> None:
        """End what is left."""
        if self._driver is not None and self._driver.poll() is None:
            self._kill_driver()
        if self._server is not None:
            self._server.abandon()

    # -- what happens ------------------------------------------------------------------------------------------------

    def _put(self) -> None:
        """A file, which appears at once."""
        lines = "".join(json.dumps({"file": self._files, "n": n}) + "\n" for n in range(ROWS))
        hidden = self._folder / f"{self._files}.tmp"
        hidden.write_text(lines)
        hidden.rename(self._folder / "in" / f"{self._files:06}.txt")
        self._files += 1

    def _wait_for_a_moment(self) -> None:
        """Until the stream has gone on; half of the time until rows are staged."""
        before = self._state().get("version")
        self._put()
        self._wait(lambda: self._state().get("version") != before, "a batch")
        if self._rng.random() < 0.5:
            self._put()
            end = time.monotonic() + AIM_S
            while time.monotonic() < end and not self._state().get("staged"):
                time.sleep(PAUSE_S)
            self.counts["aimed"] += time.monotonic() < end
            time.sleep(self._rng.choice(LATER_S))
        else:
            time.sleep(self._rng.random() * 0.5)

    def _state(self) -> Mapping[str, Any]:
        """The writer, as the server sees it; nothing before there is one."""
        try:
            id = json.loads((self._folder / "checkpoint/metadata").read_text())["id"]
        except (FileNotFoundError, ValueError):
            return {}
        with HttpConn("127.0.0.1", self._port) as http:
            body: dict[str, Any] = http.call("GET", f"/v0/txn/{quote(f'chaos/{id}', safe='')}").body
        return body

    def _wait(self, over: Callable[[], bool], what: str) -> None:
        assert self._driver is not None
        end = time.monotonic() + STUCK_S
        while not over():
            if time.monotonic() > end:
                raise Broken(f"no {what} for {STUCK_S:.0f} s: {self._said()}")
            if self._driver.poll() is not None and not over():
                raise Broken(f"the driver ended with {self._driver.returncode}: {self._said()}")
            time.sleep(PAUSE_S)

    def _said(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-2000:]

    def _finish(self) -> None:
        """Let the driver do what is left."""
        assert self._driver is not None
        driver = self._driver
        (self._folder / "stop").touch()
        self._wait(lambda: driver.poll() is not None, "end of the driver")
        if driver.returncode:
            raise Broken(f"the driver ended with {driver.returncode}: {self._said()}")
        said = (self._folder / "driver.log").read_bytes()
        self.counts |= {"batches_again": said.count(b"\nagain: "), "tasks_again": said.count(b"\ntopics: txn_conflict")}

    def _judge(self) -> None:
        wanted = expected(self._files)
        for topic in TOPICS:
            found = self._all(topic)
            self.counts["rows"] += len(found)
            self.violations += judge(topic, wanted[topic], found)
        if self._state().get("staged"):
            self.violations.append(f"left: {self._state()['staged']} is still staged")
        assert self._server is not None
        self._server.stop()

    def _all(self, topic: str) -> list[Row]:
        found: list[Row] = []
        cursor = 0
        with HttpConn("127.0.0.1", self._port) as http:
            while True:
                page = http.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000}).body
                if page["tombstone"] is not None:
                    self.violations.append(f"lost: {topic} tells {page['tombstone']}")
                found += [Row(one["data"]["file"], one["data"]["n"]) for one in page["records"]]
                cursor = page["next_from_seq"]
                if page["caught_up"]:
                    return found


def run(folder: Path, seed: int, kills: int, progress: Progress) -> Report:
    """Stream while driver and server are killed so often each, and judge."""
    one = Run(folder, seed, kills)
    try:
        one.run(progress)
    except (Broken, ServerDied, OSError) as error:
        one.violations.append(f"{type(error).__name__}: {error}")
    finally:
        one.close()
    progress(one.counts["driver_kills"] + one.counts["server_kills"], one.violations)
    return Report(dict(one.counts), one.violations)
