"""Routers: definitions, forwarding, guarantees, cycles, back-pressure (05 §1 to §7), wherever the records lie."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.engine.kit import (
    Store,
    after_every_stop,
    at_every_place,
    each,
    everything,
    gap,
    invalid_request,
    metric,
    numbers,
    tagged,
    write,
)
from tests.unit.engine.watchkit import Tap
from topics.engine import read as reading
from topics.engine.cold import RETRY_NS
from topics.engine.engine import Engine
from topics.errors import (
    LimitReached,
    RouterCycle,
    RouterFanIn,
    RouterNotFound,
    RouterRepoint,
    TopicExistsIncompatible,
    TopicNotFound,
    WalIo,
)
from topics.model import RouterState, Selector, new

R = "r"


def route(engine: Engine, name: str = R, source: str = "a", dest: str = "b", **more: Any) -> RouterState:
    return engine.put_router(name, {"source": source, "dest": dest, **more})[1]


def routed(place: str = "tail", **options: Any) -> Store:
    """A store with topics `a` and `b` of class `fsync`."""
    store = Store(place, **options)
    store.put("a")
    store.put("b")
    return store


# -- definitions -------------------------------------------------------------------------------------------------------


def test_a_router_is_created_once_and_then_replaced_whole() -> None:
    """[RTR-6, RTR-8, RTR-9] Omitted members go back to their defaults; cursor and count stay."""
    store = Store()
    created, state = store.engine.put_router(R, {"source": "a", "dest": "b", "filter": "x*", "preserve_tag": False})
    assert created
    assert state.config.filter == Selector("Glob", "x")
    assert list(store.engine.topics()) == ["a", "b"]
    write(store.engine, 1, name="a", tag="xy")
    created, state = store.engine.put_router(R, {"source": "a", "dest": "b"})
    assert not created
    assert (state.config.filter, state.config.preserve_tag) == (None, True)
    assert store.engine.router(R)[2:] == (1, 1, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"dest": "b"},
        {"source": "a"},
        {"source": "a", "dest": "a"},
        {"source": "a", "dest": "b c"},
        {"source": 1, "dest": "b"},
        {"source": "a", "dest": "b", "preserve_node": 1},
        {"source": "a", "dest": "b", "filter": ["tag", "Like", "x"]},
        {"source": "a", "dest": "b", "guarantee": "once"},
    ],
)
def test_a_malformed_router_is_refused_and_leaves_nothing(config: dict[str, Any]) -> None:
    """[RTR-4, RTR-5]."""
    store = Store()
    with invalid_request():
        store.engine.put_router(R, config)
    assert (list(store.engine.topics()), store.engine.routers()) == ([], [])


def test_the_name_of_a_router_may_have_an_arrow() -> None:
    """[NAME-2]."""
    store = Store()
    route(store.engine, "a->b")
    with invalid_request():
        route(store.engine, ">a")
    assert [one.router for one in store.engine.routers()] == ["a->b"]


def test_a_destination_that_may_not_be_created_must_be_there() -> None:
    """[RTR-4] And nothing is made for the refused router, not even its source."""
    store = Store()
    with pytest.raises(TopicNotFound) as told:
        route(store.engine, create_dest=False)
    assert told.value.topic == "b"
    assert list(store.engine.topics()) == []
    store.put("b")
    route(store.engine, create_dest=False)
    assert list(store.engine.topics()) == ["a", "b"]


def test_a_destination_has_one_source() -> None:
    """[RTR-16, RTR-17] A second router from the same source is welcome."""
    store = Store()
    route(store.engine, "one")
    route(store.engine, "two")
    with pytest.raises(RouterFanIn) as told:
        route(store.engine, "three", source="c")
    assert (told.value.topic, told.value.reason) == ("b", "router_dest_fan_in")
    assert told.value.code == TopicExistsIncompatible.code
    assert list(store.engine.topics()) == ["a", "b"]


def test_the_ends_of_a_router_cannot_change() -> None:
    """[RTR-7]."""
    store = Store()
    route(store.engine)
    with pytest.raises(RouterRepoint) as told:
        route(store.engine, dest="c")
    assert (told.value.existing_source, told.value.existing_dest) == ("a", "b")
    with pytest.raises(RouterRepoint):
        route(store.engine, source="c")
    assert list(store.engine.topics()) == ["a", "b"]


def test_limits_count_new_routers_and_topics_only() -> None:
    """[RTR-4, RTR-8, RES-4] A router refused by a limit leaves no topic behind."""
    store = Store(max_routers=1, max_topics=3)
    route(store.engine)
    with pytest.raises(LimitReached) as told:
        route(store.engine, "second", dest="c")
    assert (told.value.limit, told.value.max) == ("max_routers", 1)
    route(store.engine, filter="x")
    store.engine.delete_router(R)
    with pytest.raises(LimitReached) as told:
        route(store.engine, "third", source="x", dest="y")
    assert told.value.limit == "max_topics"
    assert list(store.engine.topics()) == ["a", "b"]


def test_a_cycle_is_refused_with_its_path_or_allowed_on_request() -> None:
    """[CYC-1, CYC-2]."""
    store = Store()
    route(store.engine, "1", "a", "b")
    route(store.engine, "2", "b", "c")
    with pytest.raises(RouterCycle) as told:
        route(store.engine, "3", "c", "a")
    assert told.value.cycle == ["c", "a", "b", "c"]
    route(store.engine, "3", "c", "a", allow_cycle=True)
    with pytest.raises(RouterCycle):
        route(store.engine, "3", "c", "a")
    with pytest.raises(RouterCycle) as told:
        route(store.engine, "1", "a", "b")
    assert told.value.cycle == ["a", "b", "c", "a"]


def test_the_cap_is_told_before_the_cycle() -> None:
    """[RTR-4]."""
    store = Store(max_routers=1)
    route(store.engine)
    with pytest.raises(LimitReached):
        route(store.engine, "back", "b", "a")


def test_routers_are_listed_by_name_and_filtered() -> None:
    """[RTR-11] Without catching up: the lag shows."""
    store = Store()
    route(store.engine, "y", "a", "b")
    route(store.engine, "x", "a", "c")
    route(store.engine, "xx", "b", "d")
    assert [one.router for one in store.engine.routers()] == ["x", "xx", "y"]
    assert [one.router for one in store.engine.routers("x")] == ["x", "xx"]
    assert [one.router for one in store.engine.routers(source="a")] == ["x", "y"]
    assert [one.router for one in store.engine.routers(dest="d")] == ["xx"]


def test_an_absent_router_is_not_found_and_its_deletion_says_so() -> None:
    """[RTR-10, RTR-13]."""
    store = Store()
    with pytest.raises(RouterNotFound):
        store.engine.router(R)
    assert not store.engine.delete_router(R)
    route(store.engine)
    assert store.engine.delete_router(R)
    with pytest.raises(RouterNotFound):
        store.engine.router(R)


@after_every_stop
def test_definitions_survive_every_stop(stop: str) -> None:
    """[RTR-6, DUR-9, S-244]."""
    store = routed()
    route(store.engine, filter=["tag", "Eq", "x"], preserve_node=False, guarantee="exactly_once")
    route(store.engine, "gone", dest="c")
    store.engine.delete_router("gone")
    before = store.engine.routers()
    engine = store.stop(stop)
    assert engine.routers() == before
    assert before[0].config.filter == Selector("Eq", "x")
    engine.checkpoint(full=True)
    route(engine, preserve_tag=False)
    engine = store.stop(stop)
    assert engine.router(R).config.preserve_tag is False
    assert engine.router(R).config.filter is None


@pytest.mark.parametrize("end", ["a", "b"])
@after_every_stop
def test_deleting_a_topic_takes_its_routers_along(stop: str, end: str) -> None:
    """[RTR-15, S-48] Nothing is logged for them; a topic of the same name has none."""
    store = routed()
    route(store.engine)
    write(store.engine, 1, name="a")
    store.engine.delete_topic(end)
    assert store.engine.routers() == []
    engine = store.stop(stop)
    assert engine.routers() == []
    store.put(end)
    write(engine, 2, name="a")
    assert everything(engine, "b").values == ([1] if end == "a" else [])


# -- forwarding --------------------------------------------------------------------------------------------------------


@at_every_place
def test_copies_are_records_of_their_own_with_everything_they_carry(place: str) -> None:
    """[FWD-1, FWD-4, FWD-5, GUA-6] No backfill; `data`, `meta`, `$node`, `$tag` are the same, seq and ts are not."""
    store = routed(place)
    engine = store.engine
    write(engine, "before", name="a")
    write(engine, "own", name="b")
    route(engine)
    store.clock.advance(5)
    engine.append("a", [new({"kg": 9}, tag="t:1", node="n", meta={"m": [1, 2]}), new(None)])
    engine = store.settle()
    seen = everything(engine, "b").records
    assert [(one.seq, one.data, one.tag, one.node, one.meta) for one in seen] == [
        (1, "own", None, None, None),
        (2, {"kg": 9}, "t:1", "n", {"m": [1, 2]}),
        (3, None, None, None, None),
    ]
    assert seen[1].raw_data == b'{"kg":9}'
    assert engine.router(R).forwarded_total == 2
    assert numbers(engine, "b").count == 3


def test_copies_are_forwarded_with_what_the_router_keeps() -> None:
    """[FWD-5] Without the preserve flags copies have neither node nor tag."""
    store = Store()
    route(store.engine, preserve_node=False, preserve_tag=False)
    write(store.engine, 1, name="a", tag="t", node="n")
    record = everything(store.engine, "b").records[0]
    assert (record.node, record.tag) == (None, None)


def test_a_filter_picks_by_tag_and_untagged_records_never_match() -> None:
    """[RTR-1, FWD-6, FWD-7] What is passed is not counted, and the cursor goes on."""
    store = Store()
    route(store.engine, filter="x*")
    route(store.engine, "eq", filter="y", dest="c")
    tagged(store.engine, "x:1", None, "y", "xx", "z", name="a")
    assert everything(store.engine, "b").values == [1, 4]
    assert everything(store.engine, "c").values == [3]
    assert store.engine.router(R)[2:] == (2, 5, 0)


def test_an_update_applies_to_records_forwarded_from_then_on() -> None:
    """[RTR-8]."""
    store = Store()
    route(store.engine, filter="x")
    write(store.engine, 1, name="a", tag="x")
    route(store.engine, filter="y")
    tagged(store.engine, "x", "y", name="a")
    assert everything(store.engine, "b").values == [1, 2]


def test_two_routers_of_one_edge_make_copies_record_by_record() -> None:
    """[RTR-17, S-212 b]."""
    store = Store()
    route(store.engine, "r2", preserve_tag=False)
    route(store.engine, "r1", filter="x")
    tagged(store.engine, "x", "y", "x", name="a")
    assert [(one.data, one.tag) for one in everything(store.engine, "b").records] == [
        (1, "x"), (1, None), (2, None), (3, "x"), (3, None)]  # fmt: skip


def test_copies_of_many_records_come_in_bounded_steps() -> None:
    """[FWD-8, FWD-9] A read of the destination shows everything that was acknowledged before it."""
    store = Store("active", wal_file_bytes=1 << 22)
    route(store.engine)
    store.engine.append("a", [new(n) for n in range(3_000)])
    assert store.engine.state("b").head_seq == 3_000
    assert everything(store.engine, "b").values == list(range(3_000))


def test_chains_converge() -> None:
    """[FWD-9]."""
    store = Store()
    for n in range(5):
        route(store.engine, f"r{n}", f"t{n}", f"t{n + 1}")
    write(store.engine, 1, 2, name="t0")
    assert everything(store.engine, "t5").values == [1, 2]


def test_deleted_records_are_not_forwarded_and_deletes_do_not_travel() -> None:
    """[FWD-6, FWD-11]."""
    store = Store()
    route(store.engine)
    engine = store.engine
    tagged(engine, "x", "y", name="a")
    engine.delete("a", match="x")
    assert everything(engine, "b").values == [1, 2]
    engine.put_topic("b", {"discard": "reject", "cap_records": 2})
    tagged(engine, "x", "y", name="a")
    engine.delete("a", seqs=[3])
    engine.delete("b", before_seq=3)
    assert everything(engine, "b").values == [2]


def test_a_copy_wakes_who_waits_for_the_destination(tmp_path: Any) -> None:
    """[FWD-10]."""
    with Engine.open(str(tmp_path / "store")) as engine:
        route(engine)
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(engine.read("b", wait_ms=30_000)))
        thread.start()
        write(engine, "x", name="a")
        thread.join(60)
        assert [one.data for one in got[0].records] == ["x"]


def test_a_router_that_is_gone_forwards_nothing_and_its_copies_stay() -> None:
    """[RTR-13, S-212 f]."""
    store = routed()
    route(store.engine)
    write(store.engine, 1, name="a")
    store.engine.delete_router(R)
    write(store.engine, 2, name="a")
    assert everything(store.engine, "b").values == [1]
    assert everything(store.crash(), "b").values == [1]


def test_one_source_write_is_one_append_whatever_the_fan_out() -> None:
    """[FWD-3] Bytes of the log with ten routers are those without any."""
    grown = []
    for fan_out in (0, 10):
        store = Store()
        store.put("a")
        for n in range(fan_out):
            route(store.engine, f"r{n}", "a", f"b{n}")
        before = metric(store.engine, "topics_wal_bytes_written_total")
        each(store.engine, 20, name="a")
        assert all(store.engine.state(f"b{n}").head_seq == 20 for n in range(fan_out))
        grown.append(metric(store.engine, "topics_wal_bytes_written_total") - before)
    assert grown[0] == grown[1]


# -- guarantees --------------------------------------------------------------------------------------------------------


@at_every_place
def test_an_exactly_once_copy_tells_where_it_comes_from(place: str) -> None:
    """[GUA-2, GUA-3]."""
    store = routed(place)
    route(store.engine, guarantee="exactly_once")
    write(store.engine, {"kg": 9}, name="a")
    plan = store.engine.plan("a") if place != "ram" else None
    engine = store.settle()
    record = everything(engine, "b").records[0]
    id, epoch = (plan.id, plan.epoch) if plan is not None else (1, 1)
    assert record.meta == {
        "_topics_router": {
            "idempotency_key": f"router:r:{id}:{epoch}:1",
            "router": "r",
            "source_topic": "a",
            "source_topic_id": id,
            "source_epoch": epoch,
            "source_seq": 1,
        }
    }


def test_the_stamp_joins_replaces_or_wraps_what_is_there() -> None:
    """[GUA-4] And it does not count against the limits of `meta`."""
    store = Store()
    route(store.engine, guarantee="exactly_once")
    full = {f"m{n}": n for n in range(64)}
    given: list[dict[str, Any]] = [{"k": "v"}, {"_topics_router": 1, "z": [1]}, full, {}]
    store.engine.append("a", [new(n, meta=meta) for n, meta in enumerate(given)])
    metas = [one.meta or {} for one in everything(store.engine, "b").records]
    assert [sorted(meta) for meta in metas] == [
        ["_topics_router", "k"],
        ["_topics_router", "z"],
        ["_topics_original_meta", "_topics_router"],
        ["_topics_router"],
    ]
    assert metas[1]["z"] == [1]
    assert metas[2]["_topics_original_meta"] == full
    assert [meta["_topics_router"]["source_seq"] for meta in metas] == [1, 2, 3, 4]


def test_a_stamp_from_an_earlier_hop_is_replaced() -> None:
    """[GUA-4]."""
    store = Store()
    route(store.engine, "one", "a", "b", guarantee="exactly_once")
    route(store.engine, "two", "b", "c", guarantee="exactly_once")
    write(store.engine, 1, name="a")
    meta = everything(store.engine, "c").records[0].meta or {}
    assert list(meta) == ["_topics_router"]
    assert (meta["_topics_router"]["router"], meta["_topics_router"]["source_topic"]) == ("two", "b")


def test_a_copy_whose_key_is_live_in_the_destination_is_not_made_again() -> None:
    """[GUA-2, GUA-5, FWD-7] It counts as forwarded; once the evidence is deleted there is no protection."""
    store = Store()
    route(store.engine, guarantee="exactly_once")
    id = store.engine.plan("a").id
    for seq in (1, 2):
        key = {"_topics_router": {"idempotency_key": f"router:r:{id}:1:{seq}"}}
        store.engine.append("b", [new(f"known {seq}", meta=key)])
    store.engine.delete("b", seqs=[2])
    write(store.engine, 1, 2, 3, name="a")
    assert everything(store.engine, "b").values == ["known 1", 2, 3]
    assert store.engine.router(R).forwarded_total == 3


# -- cycles ------------------------------------------------------------------------------------------------------------


@at_every_place
def test_a_mirror_stops_at_the_hop_cap(place: str) -> None:
    """[CYC-3, CYC-4] One write to `a` gives 5 records there and 4 in `b`, wherever they lie meanwhile."""
    store = routed(place)
    route(store.engine, "there", "a", "b")
    route(store.engine, "back", "b", "a", allow_cycle=True)
    write(store.engine, "x", name="a", node="me")
    engine = store.settle()
    assert (engine.state("a").count, engine.state("b").count) == (5, 4)
    write(engine, "y", name="b")
    assert (engine.state("a").count, engine.state("b").count) == (9, 9)
    assert engine.read("a", node="me").records[0].data == "y"


# -- back-pressure and source trim -------------------------------------------------------------------------------------


def test_a_full_destination_stops_the_router_in_front_of_the_record_that_does_not_fit() -> None:
    """[BKP-1] Nothing is skipped; what fits is kept; the tick goes on when there is room."""
    store = Store()
    store.put("b", discard="reject", cap_records=3)
    route(store.engine)
    each(store.engine, 5, name="a")
    engine = store.engine
    assert everything(engine, "b").values == [1, 2, 3]
    assert engine.router(R)[2:] == (3, 3, 2)
    engine.delete("b", before_seq=3)
    store.pass_time(50, 50)
    assert [one.cursor for one in engine.routers()] == [5]
    assert everything(engine, "b").values == [3, 4, 5]


def test_bytes_of_a_destination_and_the_quota_stop_a_router_too() -> None:
    """[BKP-1, CAP-7]."""
    store = Store(max_total_bytes=105)
    store.put("b", discard="reject", cap_bytes=25)
    route(store.engine)
    each(store.engine, 3, name="a", start=1_000_000_000)
    assert everything(store.engine, "b").values == [1_000_000_000, 1_000_000_001]
    store.put("b")
    store.pass_time(50, 50)
    write(store.engine, *range(2_000_000_000, 2_000_000_004), name="a")
    store.pass_time(50, 50)
    assert store.engine.router(R)[2:] == (3, 3, 4)
    assert store.engine.state("a").bytes + store.engine.state("b").bytes == 100


def test_a_destination_that_evicts_never_blocks() -> None:
    """[BKP-2]."""
    store = Store()
    store.put("b", cap_records=2)
    route(store.engine)
    each(store.engine, 5, name="a")
    seen = everything(store.engine, "b")
    assert (seen.values, seen.ranges) == ([4, 5], [(1, 3, "cap")])


@at_every_place
def test_what_the_source_lost_before_it_was_forwarded_is_told_as_holes(place: str) -> None:
    """[TRM-1, TRM-2, FWD-7] One hole per lost seq; earlier copies stay; holes count nowhere but in the total."""
    store = routed(place)
    engine = store.engine
    store.put("a", cap_records=2)
    store.put("b", discard="reject", cap_records=1)
    route(engine)
    each(engine, 5, name="a")
    assert everything(engine, "b").values == [1]
    store.put("b")
    store.pass_time(50, 50)
    engine = store.settle()
    assert engine.router(R)[2:] == (5, 5, 0)
    seen = everything(engine, "b")
    assert (seen.values, seen.ranges) == ([1, 4, 5], [(2, 3, "source_trim")])
    assert numbers(engine, "b")[:3] == (5, 1, 3)


def test_expired_records_are_never_forwarded() -> None:
    """[TRM-3] Retention comes first; what expired unforwarded is a hole."""
    store = Store()
    store.put("a", ttl_ms=1000)
    store.put("b", discard="reject", cap_records=1)
    route(store.engine)
    each(store.engine, 3, name="a")
    assert everything(store.engine, "b").values == [1]
    store.clock.advance(2000)
    store.put("b")
    store.pass_time(50, 50)
    seen = everything(store.engine, "b")
    assert (seen.values, seen.ranges) == ([1], [(2, 3, "source_trim")])


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "fsync"])
def test_holes_outlive_what_goes_in_front_of_them(durability: str) -> None:
    """[TRM-2, FLR-5] Evicting or deleting older copies does not make the loss behind them silent."""
    store = Store()
    store.put("a", cap_records=1)
    store.put("b", durability=durability, cap_records=1)
    route(store.engine)
    tap = Tap(store.engine)
    tap.follow("b")
    write(store.engine, 1, name="a")
    write(store.engine, 2, 3, 4, name="a")
    assert numbers(store.engine, "b").head_seq == 4
    assert gap(store.engine.read("b", 1)) == (2, 3, "source_trim")
    assert [got.said[:3] for got in tap.got if got.kind == "tombstone"] == [("source_trim", 2, 3)]
    store.engine.delete("b", before_seq=5)
    assert gap(store.engine.read("b", 1)) == (2, 3, "source_trim")
    write(store.engine, 5, name="a")
    assert everything(store.engine, "b", 1).ranges == [(2, 3, "source_trim")]


def test_a_long_run_of_holes_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """[RD-4, RD-8] A read that ends within the run goes on behind it, and no cursor goes back."""
    monkeypatch.setattr(reading, "EXAMINED_MAX", 4)
    store = Store()
    store.put("a", cap_records=1)
    store.put("b")
    route(store.engine, filter="x*")
    write(store.engine, *range(51), name="a")
    write(store.engine, 1, name="a", tag="x")
    assert everything(store.engine, "b", limit=1).ranges == [(1, 50, "source_trim")]
    tap = Tap(store.engine)
    tap.follow("b", limit=1)
    assert [got.cursors["b"] for got in tap.got] == [50, 51, 51]
    assert [got.kind for got in tap.got] == ["tombstone", "record", "caught-up"]


def test_holes_travel_on_whatever_the_filter() -> None:
    """[TRM-2]."""
    store = Store()
    store.put("a", cap_records=1)
    store.put("b", discard="reject", cap_records=1)
    route(store.engine)
    route(store.engine, "on", "b", "c", filter="never")
    each(store.engine, 3, name="a")
    store.put("b")
    store.pass_time(100, 50)
    assert gap(store.engine.read("c")) == (1, 1, "source_trim")


def test_a_long_run_of_lost_seqs_stays_one_run_along_a_chain() -> None:
    """[FWD-6, S-129] Whatever its length, it takes a step and a few bytes."""
    store = Store("active", reserve_min=100_000, wal_shards=4)
    for name in ("a", "b", "c"):
        store.put(name, durability="disk")
    route(store.engine)
    route(store.engine, "on", "b", "c")
    write(store.engine, 1, name="a")
    store.clock.advance(5)
    engine = store.crash()
    head = engine.state("a").head_seq
    assert head > 100_000
    assert [everything(engine, name).ranges[0][2] for name in ("a", "b", "c")] == ["crash", *["source_trim"] * 2]
    assert numbers(engine, "c")[0] == head
    assert metric(engine, "topics_tail_records") < 10
    assert everything(store.kill(), "c").ranges == [(2, head, "source_trim")]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_can_be_either_end(durability: str) -> None:
    """[FWD-5]."""
    for end in ("a", "b"):
        store = Store()
        store.put(end, durability=durability)
        route(store.engine)
        each(store.engine, 4, name="a")
        write(store.engine, "own", name="b")
        each(store.engine, 1, name="a", start=5)
        assert everything(store.engine, "b").values == [1, 2, 3, 4, "own", 5]


def test_metrics_tell_routers_and_their_lag() -> None:
    """[MET] `topics_routers` and `topics_router_lag_records`; holes by reason."""
    store = Store()
    store.put("b", discard="reject", cap_records=1)
    route(store.engine)
    each(store.engine, 3, name="a")
    assert metric(store.engine, "topics_routers") == 1
    assert metric(store.engine, "topics_router_lag_records") == 2


# -- followers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_followers_of_a_destination_get_copies_and_holes_as_they_come(durability: str) -> None:
    """[FWD-10, TRM-2] Like any write; a chain and a direct write too."""
    store = Store()
    store.put("a", cap_records=1)
    store.put("b", durability=durability)
    route(store.engine)
    route(store.engine, "on", "b", "c")
    taps = {name: Tap(store.engine) for name in ("b", "c")}
    for name, tap in taps.items():
        tap.follow(name)
    write(store.engine, 1, 2, name="a")
    write(store.engine, "own", name="b")
    write(store.engine, 3, name="a")
    for tap in taps.values():
        told = [got for got in tap.got if got.kind == "tombstone"]
        assert [got.said[0] for got in told] == ["source_trim"]
        assert [record["data"] for got in tap.got for record in got.records] == [2, "own", 3]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_what_a_strong_follower_of_copies_was_shown_survives_the_machine(durability: str) -> None:
    """[WCH-7] A copy counts once segments have it; who waits for it asks for that."""
    store = Store(segment_max_events=1000, wal_shards=4)
    store.put("a", durability=durability)
    store.put("b", durability=durability)
    route(store.engine)
    strong, eventual = Tap(store.engine), Tap(store.engine)
    strong.follow("b", strong=True)
    eventual.follow("b")
    each(store.engine, 3, name="a")
    write(store.engine, "own", name="b")
    assert strong.seqs() == eventual.seqs() == [1, 2, 3, 4]
    assert store.engine.plan("b").durable_seq == 4
    assert everything(store.crash(), "b").values == [1, 2, 3, "own"]


@pytest.mark.parametrize("writes", [1, 5])
def test_a_strong_follower_of_copies_that_cannot_be_brought_into_segments_asks_again_by_itself(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[WCH-7] Once in a while, however much is published meanwhile."""
    store = Store(segment_max_events=1000)
    store.put("a")
    store.put("b")
    route(store.engine)
    tap = Tap(store.engine)
    tap.follow("b", strong=True)
    tap.take()
    asked: list[int] = []

    def fail(topic_id: int, done: Any) -> None:
        asked.append(topic_id)
        store.engine.core.owner.soon(lambda: done(WalIo(OSError(5, "no segments now"))))

    with monkeypatch.context() as patch:
        patch.setattr(store.engine.core, "bring_in", fail)
        for n in range(writes):
            write(store.engine, n, name="a")
            store.clock.advance(10)
        for n in range(1, 4):
            assert (tap.seqs(), len(asked)) == ([], n)
            store.pass_time(RETRY_NS // 1_000_000, 100)
    store.pass_time(RETRY_NS // 1_000_000, 100)
    assert tap.take() == [("record", "b", *range(1, writes + 1)), ("caught-up", "b", writes)]
