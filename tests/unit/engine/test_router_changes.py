"""Copies that are in memory only, and changes that a start would derive others after (05 §2, §8; 01 §14)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.engine.kit import Store, after_every_stop, each, everything, numbers, tagged, write
from tests.unit.engine.test_router import R, route, routed
from tests.unit.engine.test_router_recovery import shape
from topics.errors import RecordTooLarge, StorageFull, TopicFull
from topics.model import new

SHARDS = pytest.mark.parametrize("shards", [1, 4])


def queues(source: str = "queue", dest: str = "queue", **options: Any) -> Store:
    """A topic `a` that is copied into `b`, with three jobs in each."""
    store = Store(**options)
    store.put("a", type=source)
    store.put("b", type=dest)
    route(store.engine)
    each(store.engine, 3, name="a")
    assert shape(store.engine, "b") == [(1, 1), (2, 2), (3, 3)]
    return store


def done_with(store: Store, name: str, count: int = 1) -> None:
    """So many jobs are claimed and acked."""
    seqs = [job.seq for job in store.engine.claim(name, "w", count).jobs]
    assert store.engine.ack(name, "w", seqs).acked == len(seqs) == count


def whole(store: Store) -> list[tuple[Any, ...]]:
    """Everything of the copies but their time."""
    return [(one.seq, one.data, one.tag, one.node, one.meta) for one in store.engine.read("b").records]


# -- another definition ------------------------------------------------------------------------------------------------


@after_every_stop
@SHARDS
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"filter": "x"}, {"filter": "y"}),
        ({"filter": "x"}, {}),
        ({}, {"filter": "x"}),
        ({}, {"preserve_tag": False, "preserve_node": False}),
        ({}, {"guarantee": "exactly_once"}),
    ],
)
def test_another_definition_changes_no_copy(
    first: dict[str, Any], then: dict[str, Any], shards: int, stop: str
) -> None:
    """[RTR-8, REC-1, RRC-3] It applies to records forwarded from then on, whatever stops the server."""
    store = routed(wal_shards=shards)
    route(store.engine, **first)
    tagged(store.engine, "y", "x", "x", "y", name="a")
    before = whole(store)
    route(store.engine, **then)
    store.stop(stop)
    assert whole(store) == before
    write(store.engine, "next", name="a", tag="y")
    picked = then.get("filter", "y") == "y"
    assert [one.data for one in store.engine.read("b", before[-1][0]).records] == ["next"] * picked


@after_every_stop
@SHARDS
def test_what_a_definition_passed_over_is_not_looked_at_by_the_next(shards: int, stop: str) -> None:
    """[RTR-8] Also when it made no copy at all."""
    store = routed(wal_shards=shards)
    route(store.engine, filter="x")
    tagged(store.engine, "y", "y", name="a")
    assert shape(store.engine, "b") == []
    route(store.engine)
    engine = store.stop(stop)
    assert shape(engine, "b") == []
    write(engine, "next", name="a")
    assert shape(engine, "b") == [(1, "next")]


@after_every_stop
def test_an_acked_copy_does_not_come_back_with_a_wider_filter(stop: str) -> None:
    """[RRC-7, RTR-8]"""
    store = Store()
    store.put("a")
    store.put("b", type="queue")
    route(store.engine, filter="x")
    tagged(store.engine, "y", "x", "x", name="a")
    done_with(store, "b")
    route(store.engine)
    assert shape(store.stop(stop), "b") == [(2, 3)]


@after_every_stop
def test_another_filter_of_an_ephemeral_destination_picks_nothing_that_was_passed_over(stop: str) -> None:
    """[RTR-8, RRC-4, DUR-7] Its copies may be gone; others than were made are not there instead."""
    store = Store()
    store.put("a")
    store.put("b", durability="ephemeral")
    route(store.engine, filter="x")
    tagged(store.engine, "x", "y", "x", name="a")
    assert shape(store.engine, "b") == [(1, 1), (2, 3)]
    route(store.engine, filter="y")
    engine = store.stop(stop)
    assert shape(engine, "b") == []
    write(engine, "next", name="a", tag="y")
    assert shape(engine, "b") == [(3, "next")]


# -- what is gone in the destination -----------------------------------------------------------------------------------


@after_every_stop
@SHARDS
def test_what_was_acked_in_both_topics_takes_no_other_job(shards: int, stop: str) -> None:
    """[RRC-7, INV-4] The ack names a seq, and the job there is the one that was acked."""
    store = queues(wal_shards=shards)
    done_with(store, "b")
    done_with(store, "a")
    engine = store.stop(stop)
    assert shape(engine, "a") == shape(engine, "b") == [(2, 2), (3, 3)]


@after_every_stop
@pytest.mark.parametrize("what", [{"seqs": [3]}, {"before_seq": 3}, {"match": "secret"}])
def test_a_deleted_copy_stays_deleted_when_its_source_loses_another(what: dict[str, Any], stop: str) -> None:
    """[DEL-6, RRC-7] Seqs of copies are what they were when something was deleted."""
    store = queues(dest="log")
    write(store.engine, 4, name="a", tag="secret")
    store.engine.delete("b", **what)
    before = shape(store.engine, "b")
    done_with(store, "a")
    assert shape(store.stop(stop), "b") == before


@after_every_stop
def test_a_lease_that_survives_is_of_the_same_job(stop: str) -> None:
    """[QRC-3] Its worker acks what it was given."""
    store = Store()
    store.put("a", type="queue")
    store.put("b", type="queue", leases_durable=True, lease_ms=600_000)
    route(store.engine)
    each(store.engine, 3, name="a")
    jobs = store.engine.claim("b", "w", 2).jobs
    done_with(store, "a")
    engine = store.stop(stop)
    engine.ack("b", "w", [jobs[1].seq], [jobs[1].lease_id])
    assert shape(engine, "b") == [(1, 1), (3, 3)]


def test_a_claim_at_the_source_logs_its_own_event_and_no_copies() -> None:
    """[QRC-3] It takes nothing from those who copy the queue."""
    store = Store()
    store.put("a", type="queue", leases_durable=True, lease_ms=600_000)
    store.put("b")
    route(store.engine)
    each(store.engine, 3, name="a")
    assert shape(store.engine, "b") == [(1, 1), (2, 2), (3, 3)]
    frames = store.engine.metrics()["topics_wal_frames_total"]
    assert len(store.engine.claim("a", "w", 1).jobs) == 1
    assert store.engine.metrics()["topics_wal_frames_total"] == frames + 1


@after_every_stop
def test_a_destination_that_begins_to_reject_keeps_its_copies(stop: str) -> None:
    """[CAP-5, RRC-3] A tighter cap evicts nothing there, also after a start."""
    store = routed()
    route(store.engine)
    each(store.engine, 5, name="a")
    before = shape(store.engine, "b")
    store.put("b", cap_records=2, discard="reject")
    engine = store.stop(stop)
    assert shape(engine, "b") == before
    assert numbers(engine, "b")[0] == 5


def test_a_delete_that_could_hit_another_copy_is_refused() -> None:
    """[INV-4] On a full disk the copies cannot be logged: nothing is acknowledged that a start may take back."""
    store = queues(dest="log")
    shard = store.engine.core.shard(store.engine.core.names["b"].id)
    shard._fill_up(StorageFull("no space"))
    shard.has_room = lambda size: size < 200  # type: ignore[method-assign]
    with pytest.raises(StorageFull):
        store.engine.delete("b", seqs=[3])
    assert shape(store.engine, "b") == [(1, 1), (2, 2), (3, 3)]


# -- what is gone in the source ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["killed", "crashed"])
@pytest.mark.parametrize("why", ["ack", "dead letter", "age"])
def test_readers_of_the_destination_miss_nothing_when_the_source_loses_jobs(why: str, stop: str) -> None:
    """[RRC-8] The copies are in the log before their source loses anything by itself or by an ack."""
    store = Store()
    lasting = {"ttl_ms": 10_000} if why == "age" else {"dead_letter": "dead", "max_deliveries": 1, "lease_ms": 1_000}
    store.put("a", type="log" if why == "age" else "queue", **lasting)
    store.put("b")
    route(store.engine)
    store.engine.append("a", [new(n) for n in range(1, 4)])
    before = shape(store.engine, "b")
    if why == "ack":
        done_with(store, "a")
    elif why == "age":
        store.clock.advance(20_000)
        assert not store.engine.read("a").records
    else:
        store.engine.claim("a", "w")
        store.clock.advance(2_000)
        store.engine.claim("a", "w")
        assert store.engine.state("dead").count == 1
    engine = store.stop(stop)
    assert shape(engine, "b") == before
    write(engine, "next", name="a")
    assert [one.data for one in engine.read("b", 3).records] == ["next"]
    assert engine.router(R).forwarded_total == 4


# -- all of it, at random ----------------------------------------------------------------------------------------------


class Life:
    """Topics `a` -> `b` -> `c`, all queues, and whatever may happen to them between two stops."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Store(wal_shards=self.rng.choice([1, 1, 3]))
        for name in "abc":
            self.store.put(name, type="queue", leases_durable=self.rng.random() < 0.5)
        self.log: list[str] = []
        self.count = 0
        for name in ("r", "on"):
            self.reroute(name)

    def step(self) -> None:
        """One thing more."""
        often = [self.write, self.ack]
        does = self.rng.choice(
            [*often, *often, self.claim, self.delete, self.reroute, self.configure, self.checkpoint, self.tick]
        )
        self.log.append(does.__name__)
        does()

    def topic(self) -> str:
        return self.rng.choice("aabbc")

    def write(self) -> None:
        values = range(self.count + 1, self.count + self.rng.randint(2, 4))
        self.count = values[-1]
        records = [new(n, tag=self.rng.choice(["x", "y", None])) for n in values]
        try:
            self.store.engine.append(self.topic(), records)
        except (RecordTooLarge, TopicFull):
            self.log.append("full")

    def claim(self) -> None:
        self.store.engine.claim(self.topic(), "w", self.rng.randint(1, 2), 60_000)

    def ack(self) -> None:
        name = self.topic()
        seqs = [job.seq for job in self.store.engine.claim(name, "w", self.rng.randint(1, 2), 60_000).jobs]
        self.store.engine.ack(name, "w", seqs)

    def delete(self) -> None:
        name = self.topic()
        head = self.store.engine.state(name).head_seq
        what: dict[str, Any] = self.rng.choice(
            [{"seqs": [self.rng.randint(1, head + 1)]}, {"match": "x"}, {"before_seq": max(head - 3, 1)}]
        )
        self.store.engine.delete(name, **what)

    def reroute(self, name: str | None = None) -> None:
        name = name or self.rng.choice(["r", "on"])
        given: dict[str, Any] = {"preserve_tag": self.rng.random() < 0.7}
        if self.rng.random() < 0.5:
            given["filter"] = self.rng.choice("xy")
        if self.rng.random() < 0.3:
            given["guarantee"] = "exactly_once"
        ends = ("a", "b") if name == "r" else ("b", "c")
        route(self.store.engine, name, *ends, **given)

    def configure(self) -> None:
        limits = {"cap_records": self.rng.randint(1, 6), "discard": "reject"} if self.rng.random() < 0.5 else {}
        self.store.put(self.rng.choice("bc"), type="queue", **limits)

    def checkpoint(self) -> None:
        self.store.engine.checkpoint(full=self.rng.random() < 0.5)

    def tick(self) -> None:
        self.store.clock.advance(self.rng.choice([1, 100, 2_000]))
        self.store.engine.tick()

    def seen(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every record but its time, and where each topic ends; what can be forwarded is."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for name in "abc":
            view = everything(self.store.engine, name)
            found[name] = [(one.seq, one.data, one.tag, one.node, one.meta) for one in view.records]
            found[name].append((view.ranges, self.store.engine.state(name).head_seq))
        return found


def live_through(seed: int) -> None:
    """Everything is as it was after every kill; and there is nothing that a dead machine may take back."""
    life = Life(seed)
    for _ in range(life.rng.randint(1, 3)):
        for _ in range(life.rng.randint(3, 12)):
            life.step()
        before = life.seen()
        how = life.rng.choice(["killed", "killed", "reopened", "crashed"])
        life.log.append(how)
        life.store.stop(how)
        if how != "crashed" or life.store.options.get("wal_shards") == 1:
            assert life.seen() == before, f"seed {seed}: {life.log}"


@pytest.mark.parametrize("seed", range(25))
def test_no_stop_changes_a_copy_whatever_happened_before(seed: int) -> None:
    """[REC-1, RRC-3, RRC-7, RRC-8, INV-4]"""
    live_through(seed)
