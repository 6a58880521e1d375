"""`python -m topics.testing kill9`: a real server under HTTP load, killed again and again (13 §4, T8).

One cycle: start the server (now and then kill it while it recovers), read every topic behind what is verified already,
let the clients of `load` write, delete and follow, kill the server at a moment that the seed chooses, and take in what
the clients saw. `history` judges every step. At the end everything is read from the beginning, the server is stopped in
order and started again, and everything is read once more: it must be the same.

The seed decides what clients do and after how many acknowledgements the server dies; how threads and the disk
interleave it cannot decide.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from topics.testing import load
from topics.testing.history import Delete, Event, History, Read, Rules, Write
from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerDied, ServerProcess

TOPICS = {
    "fsync": Rules("fsync"),
    "disk": Rules("disk"),
    "memory": Rules("memory"),
    "capped": Rules("fsync", cap_records=300),
}
WINDOW_MS = 3_600_000
ENV = {
    # Small files and frequent checkpoints: every life sees rotations, seals, snapshots and trims.
    "TOPICS_WAL_FILE_BYTES": "131072",
    "TOPICS_SEGMENT_MAX_EVENTS": "500",
    "TOPICS_CHECKPOINT_MS": "50",
    "TOPICS_MIN_FREE_BYTES": "0",
    "TOPICS_LOG_LEVEL": "warning",
}
SILENCE_S = 60.0
WHOLE_EVERY = 25
WRITERS = 8
STARTS_KILLED = 0.15
START_SPAN_S = 0.6


class Broken(Exception):
    """The run cannot go on; the message says why."""


class Size(NamedTuple):
    """How long a run is."""

    cycles: int
    acks_mean: int = 650
    """Acknowledged writes between two kills."""


QUICK = Size(4, 150)


class Report(NamedTuple):
    """What a run came to."""

    kills: int
    acks: int
    counts: dict[str, int]
    violations: list[str]


Progress = Callable[[int, int, list[str]], None]
"""Told after each cycle: kills, acks, and the violations it brought."""


class Clients:
    """The client processes."""

    def __init__(self, seed: int, writing: int) -> None:
        context = multiprocessing.get_context("spawn")
        names = tuple(TOPICS)
        capped = tuple(name for name, rules in TOPICS.items() if rules.cap_records)
        forgetful = tuple(name for name, rules in TOPICS.items() if rules.durability == "memory")
        followers = tuple((name, waits) for name in names for waits in (False, True))
        plans = [
            load.Plan(seed, f"w{n}", WRITERS, topics=names, keeping=capped, forgetful=forgetful) for n in range(writing)
        ]
        plans.append(load.Plan(seed, "r", followers=followers))
        self._links: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for plan in plans:
            mine, theirs = context.Pipe()
            process = context.Process(target=load.run, args=(theirs, plan), daemon=True)
            process.start()
            theirs.close()
            self._links.append(mine)
            self._processes.append(process)

    def go(self, life: int, address: tuple[str, int]) -> None:
        """A server is there."""
        for link in self._links:
            link.send((life, *address))

    def wait_acks(self, count: int) -> int:
        """Return once so many writes were acknowledged; how many there were."""
        acks = 0
        while acks < count:
            ready = wait(self._links, SILENCE_S)
            if not ready:
                raise Broken(f"no write was acknowledged for {SILENCE_S} seconds")
            for link in ready:
                acks += self._one(link)
        return acks

    def _one(self, link: object) -> int:
        assert isinstance(link, Connection)
        told = link.recv()
        if not isinstance(told, int):
            raise Broken(f"clients gave up while the server lived: {told[1][:5]}")
        return told

    def collect(self) -> tuple[int, list[Event], list[str]]:
        """After a kill: acknowledgements that were still under way, all events, and complaints."""
        acks, events, complaints = 0, [], []
        for link in self._links:
            while isinstance(told := self._receive(link), int):
                acks += told
            events += told[0]
            complaints += told[1]
        return acks, events, complaints

    def _receive(self, link: Connection) -> int | tuple[list[Event], list[str]]:
        if not link.poll(2 * SILENCE_S):
            raise Broken("a client did not notice that the server is gone")
        told: int | tuple[list[Event], list[str]] = link.recv()
        return told

    def close(self) -> None:
        """End them."""
        for link, process in zip(self._links, self._processes, strict=True):
            try:
                link.send(None)
            except OSError:
                process.kill()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            link.close()


class Run:
    """One run: the server, its clients, and the history."""

    def __init__(self, folder: Path, seed: int, writing: int, acks_mean: int) -> None:
        self._folder = folder
        self._rng = random.Random(f"{seed} kills")
        self._acks_mean = acks_mean
        self._history = History(TOPICS)
        self._verified = dict.fromkeys(TOPICS, 0)
        self._life = 0
        self._server: ServerProcess | None = None
        self._clients = Clients(seed, writing)
        self.kills = 0
        self.acks = 0
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    # -- the server --------------------------------------------------------------------------------------------------

    def start(self) -> ServerProcess:
        """A new life, perhaps after some that ended while they began."""
        while self._rng.random() < STARTS_KILLED:
            self._begin()
            time.sleep(self._rng.uniform(0, START_SPAN_S))
            self.kill()
            self.counts["killed_starts"] += 1
        server = self._begin()
        server.wait_ready()
        return server

    def _begin(self) -> ServerProcess:
        self._life += 1
        self._server = ServerProcess(self._folder, ENV)
        return self._server

    def kill(self) -> None:
        """SIGKILL."""
        assert self._server is not None
        self._server.kill()
        self.kills += 1

    # -- steps -------------------------------------------------------------------------------------------------------

    def create_topics(self) -> None:
        """In the first life."""
        with HttpConn(*self.start().address) as http:
            for name, rules in TOPICS.items():
                config = {"idempotency_window_ms": WINDOW_MS, **rules._asdict()}
                answer = http.call("PUT", f"/v0/topics/{name}", config)
                if answer.status != 201:
                    raise Broken(f"topic {name} cannot be created: {answer}")

    def cycle(self) -> None:
        """Load the server that runs, kill it, judge, start another, judge what it remembers."""
        assert self._server is not None
        self._clients.go(self._life, self._server.address)
        self.acks += self._clients.wait_acks(self._rng.randrange(1, 2 * self._acks_mean))
        time.sleep(self._rng.uniform(0, 0.01))
        self.kill()
        late, events, complaints = self._clients.collect()
        self.acks += late
        self.violations += complaints
        self.judge(events)
        self.start()
        self.verify(whole=False)

    def verify(self, *, whole: bool) -> dict[str, list[tuple[int, str]]]:
        """Read every topic, behind what was read before or from the beginning; what is there."""
        assert self._server is not None
        if whole:
            self._verified = dict.fromkeys(TOPICS, 0)
        events: list[Event] = []
        with HttpConn(*self._server.address) as http:
            for topic, cursor in self._verified.items():
                pages = self._pages(http, topic, cursor)
                self._verified[topic] = pages[-1].next_from
                events += pages
        self.judge(events)
        found: dict[str, list[tuple[int, str]]] = {topic: [] for topic in TOPICS}
        for event in events:
            assert isinstance(event, Read)
            found[event.topic] += event.records
        return found

    def _pages(self, http: HttpConn, topic: str, cursor: int) -> list[Read]:
        pages: list[Read] = []
        while not pages or not pages[-1].caught_up:
            page = load.read_page(http, self._life, topic, cursor, 1000)
            if not isinstance(page, Read):
                raise Broken(f"{topic} cannot be read after {cursor}: {page}")
            if pages and page.next_from <= cursor:
                raise Broken(f"a reader of {topic} does not get beyond {cursor}: {page._replace(records=())}")
            pages.append(page)
            cursor = page.next_from
        return pages

    def judge(self, events: list[Event]) -> None:
        """Compare with all that is known."""
        for event in events:
            self._count(event)
        self.violations += map(str, self._history.add(events))

    def _count(self, event: Event) -> None:
        counts = self.counts
        if isinstance(event, Write):
            counts["writes"] += 1
            counts[f"writes_{event.outcome}"] += 1
            counts["writes_deduped"] += event.deduped
            counts["records_acked"] += len(event.texts) if event.outcome == "acked" and not event.deduped else 0
        elif isinstance(event, Read):
            counts["reads"] += 1
            counts["records_read"] += len(event.records)
            counts["tombstones"] += event.gap is not None
        elif isinstance(event, Delete):
            counts["deletes"] += 1

    def finish(self) -> None:
        """Everything from the beginning, before and after a stop in order."""
        before = self.verify(whole=True)
        assert self._server is not None
        self._server.stop()
        self.start_again()
        after = self.verify(whole=True)
        self.violations += [f"{topic} changed by a stop in order" for topic in TOPICS if before[topic] != after[topic]]
        self._server.stop()

    def start_again(self) -> None:
        """A new life after a stop in order."""
        self._begin().wait_ready()

    def close(self) -> None:
        """End all processes."""
        self._clients.close()
        if self._server is not None:
            self._server.abandon()


def run(folder: Path, seed: int, size: Size, progress: Progress, *, writing: int = 1) -> Report:
    """Run the cycles of a size and judge them; `writing` is the number of processes that write."""
    with ExitStack() as stack:
        one = Run(folder, seed, writing, size.acks_mean)
        stack.callback(one.close)
        try:
            one.create_topics()
            for cycle in range(1, size.cycles + 1):
                known = len(one.violations)
                one.cycle()
                if cycle % WHOLE_EVERY == 0:
                    one.verify(whole=True)
                progress(one.kills, one.acks, one.violations[known:])
                if one.violations:
                    break
            one.finish()
        except (Broken, ServerDied, OSError) as error:
            one.violations.append(f"{type(error).__name__}: {error}")
        return Report(one.kills, one.acks, dict(one.counts), one.violations)
