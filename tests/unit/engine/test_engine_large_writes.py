"""Large writes are framed off the owner, and nothing in their topic overtakes them [A-1, P-10]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import lifecycle
from topics.engine.append import Write
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import CommitFailed, EngineClosed
from topics.model import AppendResult
from topics.testing import Fault, FaultFs, ManualClock, SimFs

LARGE = 1000


class Store:
    """An engine whose framing waits until it is told to go on."""

    def __init__(self) -> None:
        self.fs = FaultFs(SimFs())
        self.clock = ManualClock()
        self.engine = Engine.open("store", EngineConfig(min_free_bytes=0), clock=self.clock, fs=self.fs)
        self.core: Any = self.engine.core
        self.core.frames_aside_bytes = LARGE
        self.framing: list[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = []
        owner: Any = self.core.owner
        aside = owner.aside

        def hold(lane: str, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
            if lane == "frames":
                self.framing.append((work, done))
            else:
                aside(lane, work, done)

        owner.aside = hold

    def write(self, *values: object, **more: Any) -> list[Any]:
        """Begin a write; its outcome, once there is one."""
        outcome: list[Any] = []
        write = Write.prepare("t", [{"data": value} for value in values], self.core.limits, **more)
        with self.engine._owner:
            appending.append(self.core, write, outcome.append)
        return outcome

    def do(self, start: Callable[[Callable[[Any], None]], None]) -> list[Any]:
        outcome: list[Any] = []
        with self.engine._owner:
            start(outcome.append)
        return outcome

    def frame(self) -> None:
        """Let the oldest framing come to its end."""
        work, done = self.framing.pop(0)
        work()
        with self.engine._owner:
            done(None)

    def read(self) -> list[Any]:
        return [record.data for record in self.engine.read("t", limit=1000).records]


@pytest.fixture
def store() -> Iterator[Store]:
    one = Store()
    one.engine.put_topic("t", {"durability": "fsync"})
    yield one
    while one.framing:
        one.frame()
    one.engine.close()


def seqs(outcome: list[Any]) -> tuple[int | None, int | None]:
    (one,) = outcome
    assert isinstance(one, AppendResult), one
    return one.first_seq, one.last_seq


def test_what_comes_behind_a_large_write_waits_for_it(store: Store) -> None:
    small = store.write("a")
    large = store.write("x" * LARGE, "y")
    behind = store.write("b")
    removed = store.do(
        lambda done: deleting.delete(
            store.core, "t", deleting.Removal.parse(3, None, None, store.core.limits), False, done
        )
    )
    config = store.do(lambda done: lifecycle.put(store.core, "t", {"durability": "fsync", "ttl_ms": 5000}, done))
    assert (seqs(small), large, behind, removed, config) == ((1, 1), [], [], [], [])
    store.frame()
    assert (seqs(large), seqs(behind)) == ((2, 3), (4, 4))
    assert removed[0].deleted == 2
    assert config[0][1].ttl_ms == 5000
    assert store.read() == ["y", "b"]


def test_other_topics_do_not_wait(store: Store) -> None:
    large = store.write("x" * LARGE)
    assert store.engine.append("other", [{"data": 1}]).first_seq == 1
    assert not large


def test_reads_go_on_meanwhile_and_see_nothing_of_it(store: Store) -> None:
    store.write("a")
    store.write("x" * LARGE)
    assert store.read() == ["a"]


def test_a_topic_deleted_meanwhile_is_created_anew_by_the_write(store: Store) -> None:
    """[NAME-5]: as any write that comes behind the delete."""
    store.write("a")
    large = store.write("x" * LARGE)
    assert store.engine.delete_topic("t") is True
    store.frame()
    while store.framing:
        store.frame()
    assert large[0].created is True
    assert seqs(large) == (1, 1)
    assert store.engine.state("t").count == 1


def test_a_failed_write_in_front_frees_its_seqs_for_the_large_one(store: Store) -> None:
    """[S-110]: seqs are consecutive, whatever was refused."""
    large: list[Any] = []
    outcome: list[Any] = []
    small = Write.prepare("t", [{"data": "lost"}], store.core.limits)
    big = Write.prepare("t", [{"data": "x" * LARGE}], store.core.limits)
    store.fs.inject(Fault("pwrite", 1, "ENOSPC"))
    with store.engine._owner:
        appending.append(store.core, small, outcome.append)
        appending.append(store.core, big, large.append)
    assert isinstance(outcome[0], CommitFailed)
    store.clock.advance(ms=1100)
    store.engine.tick()
    assert store.engine.health().ready
    store.frame()
    while store.framing:
        store.frame()
    assert seqs(large) == (1, 1)
    assert store.read() == ["x" * LARGE]


def test_a_repeat_of_a_large_write_waits_and_is_known(store: Store) -> None:
    """[IDM-3]"""
    large = store.write("x" * LARGE, idempotency_key="k")
    again = store.write("x" * LARGE, idempotency_key="k")
    store.frame()
    assert not store.framing
    assert seqs(large) == seqs(again) == (1, 1)
    assert again[0].deduped is True


def test_a_large_write_of_a_topic_that_rejects_is_admitted_once(store: Store) -> None:
    """[CAP-3]: nobody else takes the room meanwhile."""
    store.engine.put_topic("t", {"durability": "fsync", "cap_records": 2, "discard": "reject"})
    large = store.write("x" * LARGE, "y")
    behind = store.write("z")
    store.frame()
    assert seqs(large) == (1, 2)
    assert behind[0].code == "topic_full"


def test_the_quota_counts_a_large_write_that_is_being_framed() -> None:
    """[RES-3]"""
    store = Store()
    object.__setattr__(store.core.config, "max_total_bytes", LARGE + 100)
    store.engine.put_topic("t", {"durability": "fsync"})
    large = store.write("x" * LARGE)
    with pytest.raises(Exception, match="max_total_bytes"):
        store.engine.append("other", [{"data": "y" * 200}])
    store.frame()
    assert seqs(large) == (1, 1)
    store.engine.close()


def test_an_engine_that_closes_meanwhile_says_so(store: Store) -> None:
    large = store.write("x" * LARGE)
    store.core.closing = True
    store.frame()
    store.core.closing = False
    assert isinstance(large[0], EngineClosed)


def test_a_disk_topic_reserves_in_front_of_a_large_write() -> None:
    """[A-2]: acknowledged seqs are under a synced ceiling, and a machine crash brings none of them back."""
    store = Store()
    store.engine.put_topic("t", {"durability": "disk"})
    large = store.write("x" * LARGE)
    store.frame()
    assert seqs(large) == (1, 1)
    assert store.core.names["t"].reservation.covers(1)
    store.engine.close()
