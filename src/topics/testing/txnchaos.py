"""`python -m topics.testing txn-chaos`: stagers and a committer over HTTP, a server that is killed, every row once.

Eight processes stage their shares of one version after another; one committer names their parts, every other version to
be attached as segments, repeats its call until it is answered, and has staged again what a killed server forgot. The
server is killed with SIGKILL at random, half of the time while a commit is under way. A reader looks on:

    head      of a topic is always where a version ends: nobody sees half a batch [TXN-6]
    order     a topic that is read later shows no older version than one read before: all become visible together
    rows      in the end every topic has exactly the rows of all versions, once and in order [TXN-6, TXN-7, TXN-10]

The seed decides what is staged and when the server is killed, not how processes interleave.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topics.testing import txnstager
from topics.testing.httpconn import Answer, HttpConn, NotSent
from topics.testing.kill9 import ENV, Broken
from topics.testing.serverproc import ServerDied, ServerProcess
from topics.testing.txnstager import ID, TOPICS, address, expected

STAGERS = 8
QUICK = 4
"""Kills of a small run."""
STUCK_S = 90.0
PAUSE_S = 0.01
LIFE_S = 1.5
"""How long a server lives at most once it is ready, if nothing is aimed at."""
AIM_S = 10.0
"""How long a commit is waited for, to kill the server during it."""
AIMED_S = 0.02
ATTACHED_S = 1.0
"""How long a commit takes, about: through the log, and by attaching segments."""

Progress = Callable[[int, list[str]], None]
"""Told now and then: how often the server was killed, and what was violated."""


class Report(NamedTuple):
    """What a run came to."""

    counts: dict[str, int]
    violations: list[str]


class Ends:
    """Where versions end in each topic, as far as they were asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.seqs: dict[str, list[int]] = {topic: [0] for topic in TOPICS}
        self._lock = threading.Lock()

    def version_at(self, topic: str, head: int) -> int | None:
        """The version that ends at a head; None if none does."""
        with self._lock:
            while self.seqs[topic][-1] < head:
                rows = expected(self._seed, len(self.seqs[topic]), STAGERS)
                for name in TOPICS:
                    self.seqs[name].append(self.seqs[name][-1] + len(rows[name]))
            ends = self.seqs[topic]
            at = bisect_left(ends, head)
            return at if ends[at] == head else None


class Run:
    """One run: the server, its stagers, the committer, and who looks on."""

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self._folder = folder
        self._seed = seed
        self._kills = kills
        self._rng = random.Random(f"{seed} chaos")
        self._server: ServerProcess | None = None
        self._stagers: list[subprocess.Popen[bytes]] = []
        self._ends = Ends(seed)
        self._committing = threading.Event()
        self._over = threading.Event()
        self.version = 0
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    # -- processes and threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """A server, and everybody else."""
        self._server = ServerProcess(self._folder, ENV)
        self._server.wait_ready()
        for number in range(STAGERS):
            command = [sys.executable, "-m", txnstager.__name__, str(self._folder), str(number), str(self._seed)]
            self._stagers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def run(self, progress: Progress) -> None:
        """Commit one version after another until the server was killed often enough; then look at everything."""
        threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in (self._kill, self._look)]
        for thread in threads:
            thread.start()
        since, before = time.monotonic(), -1
        while self.counts["kills"] < self._kills and not self.violations:
            self._next_version()
            progress(self.counts["kills"], [])
            if self.counts["kills"] != before:
                before, since = self.counts["kills"], time.monotonic()
            elif time.monotonic() - since > STUCK_S:
                raise Broken(f"no kill for {STUCK_S:.0f} s")
        self._over.set()
        for thread in threads:
            thread.join(STUCK_S)
        self._next_version()
        self._conclude()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ServerDied, OSError, Broken) as error:
            self.violations.append(f"{type(error).__name__}: {error}")

    def _kill(self) -> None:
        """SIGKILL at a random moment, or shortly behind the beginning of a commit; and another server."""
        while self.counts["kills"] < self._kills and not self._over.is_set():
            if self._rng.random() < 0.5:
                self._over.wait(self._rng.uniform(0, LIFE_S))
            else:
                self._committing.wait(AIM_S)
                self._over.wait(self._rng.uniform(0, ATTACHED_S if self._attaches else AIMED_S))
            assert self._server is not None
            self._server.kill()
            self._server = ServerProcess(self._folder, ENV)
            self._server.wait_ready()
            self.counts["kills"] += 1

    def close(self) -> None:
        """End all processes."""
        self._over.set()
        for one in self._stagers:
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()
        if self._server is not None:
            self._server.abandon()

    # -- the committer -----------------------------------------------------------------------------------------------

    def _next_version(self) -> None:
        """Have the next version staged and commit it, until that is answered [TXN-10]."""
        self.version += 1
        attempt = 0
        while True:
            attempt += 1
            parts = self._staged(attempt)
            if parts is None:
                parts = []  # it was committed by a call that nobody heard the answer of
            answer = self._commit(parts)
            if answer.status == 200:
                self.counts["deduped" if answer.body["deduped"] else "committed"] += 1
                return
            code = answer.body["error"]["code"]
            if code != "txn_incomplete":
                raise Broken(f"version {self.version} was answered {answer}")
            self.counts["staged_again"] += 1

    def _staged(self, attempt: int) -> list[dict[str, Any]] | None:
        """The parts of all stagers, in their order; None: the version is committed."""
        for one in self._stagers:
            assert one.stdin is not None
            one.stdin.write(f"{self.version} {attempt}\n".encode())
            one.stdin.flush()
        told = []
        for one in self._stagers:
            assert one.stdout is not None
            line = one.stdout.readline()
            if not line:
                raise Broken("a stager has died")
            told.append(msgspec.json.decode(line))
        if any("committed" in one for one in told):
            return None
        return [{name: one[name] for name in ("part", "chunks", "records")} for one in told]

    @property
    def _attaches(self) -> bool:
        """Every other version is brought as segments [TXN-8]."""
        return self.version % 2 == 1

    def _commit(self, parts: list[dict[str, Any]]) -> Answer:
        body = {"id": ID, "version": self.version, "parts": parts, "attach": "always" if self._attaches else "never"}
        while True:
            self._committing.set()
            try:
                with HttpConn(*address(self._folder)) as http:
                    answer = http.call("POST", "/v0/txn/commit", body)
                if answer.status not in (500, 503):
                    return answer
            except NotSent:
                self.counts["not_sent"] += 1
            except OSError:
                self.counts["commits_cut"] += 1
            finally:
                self._committing.clear()
            time.sleep(PAUSE_S)

    # -- the reader --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Heads of all topics, again and again, each time in another order."""
        rng = random.Random(f"{self._seed} reader")
        while not self._over.is_set() and not self.violations:
            seen = 0
            for topic in rng.sample(TOPICS, len(TOPICS)):
                head = self._head(topic)
                if head is None:
                    seen = 0
                    continue
                version = self._ends.version_at(topic, head)
                self.counts["looks"] += 1
                if version is None:
                    self.violations.append(f"half: {topic} ends at {head}, where no version does")
                elif version < seen:
                    self.violations.append(f"order: {topic} shows version {version} behind {seen}")
                else:
                    seen = version

    def _head(self, topic: str) -> int | None:
        """None while there is no server, or no topic yet."""
        try:
            with HttpConn(*address(self._folder)) as http:
                answer = http.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 1})
        except OSError:
            time.sleep(PAUSE_S)
            return None
        return int(answer.body["head_seq"]) if answer.status == 200 else None

    def _conclude(self) -> None:
        """Every row of every version, once and in order."""
        rows: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        for version in range(1, self.version + 1):
            for topic, more in expected(self._seed, version, STAGERS).items():
                rows[topic] += more
        for topic in TOPICS:
            found = self._all(topic)
            self.counts["rows"] += len(found)
            if found != rows[topic]:
                lost = Counter(rows[topic]) - Counter(found)
                double = Counter(found) - Counter(rows[topic])
                self.violations.append(
                    f"rows: {topic} has {len(found)} of {len(rows[topic])} rows, lost {list(lost)[:5]}, "
                    f"too many {list(double)[:5]}, in order: {sorted(found) == sorted(rows[topic])}"
                )
        assert self._server is not None
        self._server.stop()

    def _all(self, topic: str) -> list[str]:
        found: list[str] = []
        cursor = 0
        with HttpConn(*address(self._folder)) as http:
            while True:
                page = http.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000}).body
                if page["tombstone"] is not None:
                    self.violations.append(f"lost: {topic} tells {page['tombstone']}")
                found += [record["data"] for record in page["records"]]
                cursor = page["next_from_seq"]
                if page["caught_up"]:
                    return found


def run(folder: Path, seed: int, kills: int, progress: Progress) -> Report:
    """Stage and commit while the server is killed so often, and judge."""
    one = Run(folder, seed, kills)
    try:
        one.start()
        one.run(progress)
    except (Broken, ServerDied, NotSent, OSError) as error:
        one.violations.append(f"{type(error).__name__}: {error}")
    finally:
        one.close()
    progress(one.counts["kills"], one.violations)
    return Report({**one.counts, "versions": one.version}, one.violations)
