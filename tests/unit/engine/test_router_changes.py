"""Copies that are in memory only, and changes that a start would derive others after (05 §2, §8; 01 §14)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.kit import Store, after_every_stop, each, numbers, tagged, write
from tests.unit.engine.test_router import R, route, routed
from tests.unit.engine.test_router_recovery import shape
from topics.errors import StorageFull
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
