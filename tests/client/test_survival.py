"""Watches and workers outlive the server: SIGKILL under load, restart, nothing lost and nothing twice [U-21].

The server is a process of its own that is killed in the middle of what it does and started again on the same
directory and port. Whoever writes, watches and works meanwhile sees an outage and nothing else. `SURVIVAL_KILLS=30`
makes it a long run.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.subjects import CLIENTS, client_of
from topics.model import CaughtUp, TopicRecord
from topics.testing.ports import free_port
from topics.testing.serverproc import ServerProcess

KILLS = int(os.environ.get("SURVIVAL_KILLS", "2"))
WAIT_S = 60.0
LAST = -1


class Phoenix:
    """A server that is killed and comes back at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process = self._start()

    def _start(self) -> ServerProcess:
        process = ServerProcess(self._folder, {"TOPICS_PORT": str(self._port)})
        process.wait_ready()
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kill_and_restart(self) -> None:
        self._process.kill()
        self._process = self._start()

    def close(self) -> None:
        self._process.abandon()


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[Phoenix]:
    one = Phoenix(tmp_path)
    yield one
    one.close()


class Task(threading.Thread):
    """A thread whose failure is the test's."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.error = error

    def end(self) -> None:
        self.join(WAIT_S)
        if self.error is not None:
            raise self.error
        assert not self.is_alive()


class Load:
    """A writer that never rests; `acked` is what it was told is there."""

    def __init__(self, client: Any, names: tuple[str, ...]) -> None:
        self.acked: dict[str, list[int]] = {name: [] for name in names}
        self._client = client
        self._is_over = False
        self._changed = threading.Condition()
        self._task = Task(self._write)

    def _write(self) -> None:
        number = 0
        while not self._is_over:
            for name, acked in self.acked.items():
                self._client.append_many(name, [number, number + 1])
                with self._changed:
                    acked += [number, number + 1]
                    self._changed.notify_all()
            number += 2

    def wait_more(self, count: int) -> None:
        """Until so many more were acknowledged."""
        with self._changed:
            goal = self._total() + count
            self._changed.wait_for(lambda: self._task.error is not None or self._total() >= goal, WAIT_S)
            assert self._task.error is None, self._task.error
            assert self._total() >= goal

    def _total(self) -> int:
        return sum(map(len, self.acked.values()))

    def end(self) -> None:
        """Write the last record of each topic."""
        self._is_over = True
        self._task.end()
        for name in self.acked:
            self._client.append(name, LAST)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_watch_survives_kills_under_load_without_loss_and_without_repetition(kind: str, phoenix: Phoenix) -> None:
    """[U-21] Every record once, in seq order, over several topics, one of them from its tail on."""
    names = ("a", "b")
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with client_of("client", phoenix.url) as writer, client_of(kind, phoenix.url) as reader:
        for name in names:
            writer.append(name, "before")
        watch = reader.watch({"a": 1, "b": "tail"})
        if kind == "async-client":
            watch.begin()

        def follow() -> None:
            left = set(names)
            while left:
                event = next(watch)
                assert isinstance(event, (TopicRecord, CaughtUp)), event
                if isinstance(event, TopicRecord):
                    seen[event.topic].append((event.seq, event.data))
                    if event.data == LAST:
                        left.remove(event.topic)

        follower = Task(follow)
        load = Load(writer, names)
        for _ in range(KILLS):
            load.wait_more(40)
            phoenix.kill_and_restart()
        load.wait_more(40)
        load.end()
        follower.end()
        assert dict(watch.cursors) == {name: writer.state(name).head_seq for name in names}
        watch.close()
    for name in names:
        assert [seq for seq, _ in seen[name]] == list(range(2, len(seen[name]) + 2))
        assert [data for _, data in seen[name]] == [*load.acked[name], LAST]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_worker_survives_kills_under_load_and_every_job_is_done(kind: str, phoenix: Phoenix) -> None:
    """[U-21, QUE-4] No job is lost; one is done again only as a later delivery, and never once its ack counted."""
    deliveries: dict[int, list[int]] = defaultdict(list)
    acked: set[int] = set()
    with client_of("client", phoenix.url) as writer, client_of(kind, phoenix.url) as reader:
        writer.create("jobs", type="queue", lease_ms=1000, leases_durable=True)

        def work() -> None:
            with reader.queue("jobs").worker("w1", max=8) as jobs:
                count, before = 0, 0
                for job in jobs:
                    if jobs.settled.acked > count:
                        acked.add(before)
                    count, before = jobs.settled.acked, job.data
                    assert job.data not in acked, "its ack counted, and it came again"
                    deliveries[job.data].append(job.deliveries)
                    if job.data == LAST:
                        return

        worker = Task(work)
        load = Load(writer, ("jobs",))
        for _ in range(KILLS):
            load.wait_more(20)
            phoenix.kill_and_restart()
        load.wait_more(20)
        load.end()
        worker.end()
        # What a lost claim had leased comes back when its lease is over.
        with reader.queue("jobs").worker("w2") as rest:
            while reader.state("jobs").count:
                job = next(rest)
                deliveries[job.data].append(job.deliveries)
                rest.ack(job)
    assert set(deliveries) == {*load.acked["jobs"], LAST}
    assert all(times == sorted(set(times)) for times in deliveries.values())
    assert acked <= set(deliveries)
    assert len(acked) > KILLS
