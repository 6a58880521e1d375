"""Routers across stops: positions, derived copies, direct writes beside them (05 §8, 06 S-212, S-242, S-245)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.kit import Store, after_every_stop, each, everything, metric, numbers, tagged, write
from tests.unit.engine.test_router import R, route, routed
from topics.codec.snapshot import decode
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.model import new

CLASSES = ("disk", "fsync")


def shape(engine: Engine, name: str) -> list[tuple[int, Any]]:
    """Seqs and values, and nothing told as lost."""
    seen = everything(engine, name)
    assert seen.ranges == []
    return [(one.seq, one.data) for one in seen.records]


@after_every_stop
def test_copies_are_where_they_were_after_every_stop(stop: str) -> None:
    """[RRC-1, RRC-3] Readers of the destination keep their cursors; chains too; again and again."""
    store = routed()
    route(store.engine)
    route(store.engine, "on", "b", "c")
    total = 0
    for n in range(4):
        each(store.engine, 3, name="a", start=total + 1)
        total += 3
        before = shape(store.engine, "b")
        assert before == [(seq, seq) for seq in range(1, total + 1)]
        engine = store.stop(stop)
        assert shape(engine, "b") == before
        assert shape(engine, "c") == before
        assert engine.router("on").forwarded_total == total
        if n == 1:
            engine.checkpoint(full=True)


@after_every_stop
def test_deleting_at_the_source_takes_no_copy_and_no_seq_from_the_destination(stop: str) -> None:
    """[RRC-8] Whoever has read the copies goes on where he is, and misses nothing."""
    store = routed()
    route(store.engine)
    each(store.engine, 6, name="a")
    before = shape(store.engine, "b")
    store.engine.delete("a", before_seq=4)
    store.engine.delete("a", seqs=[5])
    engine = store.stop(stop)
    assert shape(engine, "b") == before
    write(engine, "next", name="a")
    assert [one.data for one in engine.read("b", before[-1][0]).records] == ["next"]


@after_every_stop
def test_a_router_never_backfills_what_was_there_before_it(stop: str) -> None:
    """[RRC-4] Also without any checkpoint."""
    store = routed()
    each(store.engine, 5, name="a")
    route(store.engine)
    engine = store.stop(stop)
    assert engine.state("b").head_seq == 0
    write(engine, "new", name="a")
    assert shape(store.stop(stop), "b") == [(1, "new")]


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("stop", ["reopened", "killed"])
def test_direct_writes_keep_their_seqs_among_copies(stop: str, durability: str) -> None:
    """[RRC-3, S-212 c] They take the copies before them along into the log."""
    store = routed()
    store.put("b", durability=durability)
    route(store.engine)
    for n in range(1, 10):
        write(store.engine, f"copy {n}", name="a")
        write(store.engine, f"own {n}", name="b")
        if n == 4:
            store.engine.checkpoint()
        if n % 3 == 0:
            before = shape(store.engine, "b")
            assert len(before) == 2 * n
            assert shape(store.stop(stop), "b") == before


def test_acknowledged_direct_writes_of_fsync_survive_the_machine_among_copies() -> None:
    """[RRC-3, DUR]."""
    store = routed()
    route(store.engine)
    each(store.engine, 3, name="a")
    write(store.engine, "own", name="b")
    each(store.engine, 2, name="a", start=4)
    before = shape(store.engine, "b")
    assert shape(store.crash(), "b") == before


@after_every_stop
def test_a_checkpoint_repeats_and_loses_no_copy(stop: str) -> None:
    """[RRC-2, S-212 d]."""
    store = routed()
    route(store.engine, filter="x")
    for n in range(20):
        write(store.engine, n, name="a", tag="x" if n % 2 else "y")
        if n % 3 == 0:
            store.engine.checkpoint(full=n % 2 == 0)
        if n % 7 == 6:
            before = shape(store.engine, "b")
            assert [value for _, value in before] == list(range(1, n + 1, 2))
            assert shape(store.stop(stop), "b") == before


@pytest.mark.parametrize("change", ["config", "tag", "seqs", "before"])
def test_deletes_and_configs_of_a_destination_outlive_the_copies_in_memory(change: str) -> None:
    """[RRC-7, S-242] What was deleted stays so, no loss is told, the rest keeps its seqs."""
    store = routed()
    route(store.engine)
    tagged(store.engine, "x", "y", "x", "y", name="a")
    assert numbers(store.engine, "b").count == 4
    if change == "config":
        store.put("b", ttl_ms=1_000_000)
        gone: set[int] = set()
    elif change == "before":
        store.engine.delete("b", before_seq=3)
        gone = {1, 2}
    else:
        store.engine.delete("b", match="x") if change == "tag" else store.engine.delete("b", seqs=[1, 3])
        gone = {1, 3}
    expected = [(seq, seq) for seq in range(1, 5) if seq not in gone]
    assert shape(store.engine, "b") == expected
    for _ in range(2):
        engine = store.kill()
        assert shape(engine, "b") == expected
        assert numbers(engine, "b")[0] == 4
        assert numbers(engine, "b")[2] == len(expected)
    store.engine.checkpoint(full=True)
    assert shape(store.kill(), "b") == expected


def test_deleted_copies_do_not_come_back_when_a_direct_write_logs_the_rest() -> None:
    """[RRC-7] The Delete is logged before the copies are."""
    store = routed()
    route(store.engine)
    tagged(store.engine, "x", "y", "x", name="a")
    store.engine.delete("b", match="x")
    write(store.engine, "own", name="b")
    expected = [(2, 2), (4, "own")]
    assert shape(store.engine, "b") == expected
    assert shape(store.kill(), "b") == expected
    store.engine.checkpoint(full=True)
    assert shape(store.kill(), "b") == expected


@pytest.mark.parametrize("what", [{"seqs": [1, 4]}, {"match": "x"}])
def test_deleted_copies_stay_deleted_in_a_destination_that_has_become_ephemeral(what: dict[str, Any]) -> None:
    """[RRC-7, CFG-10, INV-8] Records of its earlier class are there, so the delete is logged; the copies are not."""
    store = routed()
    route(store.engine)
    tagged(store.engine, "x", "y", name="a")
    assert len(shape(store.engine, "b")) == 2
    store.put("b", durability="ephemeral")
    for n, tag in ((3, "y"), (4, "x"), (5, "y")):
        write(store.engine, n, name="a", tag=tag)
    assert len(shape(store.engine, "b")) == 5
    store.engine.delete("b", **what)
    expected = [(2, 2), (3, 3), (5, 5)]
    assert shape(store.engine, "b") == expected
    assert shape(store.kill(), "b") == expected


def test_floors_of_a_destination_do_not_push_copies_to_other_seqs() -> None:
    """[RRC-3] Records that a cap or their age took stay gone, the others keep their seqs."""
    store = routed()
    store.put("b", ttl_ms=10_000)
    route(store.engine)
    each(store.engine, 3, name="a")
    store.clock.advance(9_000)
    each(store.engine, 2, name="a", start=4)
    store.clock.advance(2_000)
    assert [seq for seq, _ in _kept(store.engine)] == [4, 5]
    engine = store.kill()
    assert [seq for seq, _ in _kept(engine)] == [4, 5]
    assert numbers(engine, "b")[:3] == (5, 4, 2)


def _kept(engine: Engine) -> list[tuple[int, Any]]:
    return [(one.seq, one.data) for one in everything(engine, "b").records]


@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_copies_of_what_a_cap_took_from_the_source_are_derived_again(stop: str) -> None:
    """[RRC-8] A bounded source feeds an unbounded destination: the log still has what the cap took."""
    store = routed()
    store.put("a", cap_records=2)
    route(store.engine)
    each(store.engine, 10, name="a")
    before = shape(store.engine, "b")
    assert len(before) == 10
    engine = store.stop(stop)
    assert shape(engine, "b") == before
    assert numbers(engine, "a")[:3] == (10, 9, 2)


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_a_cursor_above_what_is_left_of_its_source_is_lowered(durability: str) -> None:
    """[RRC-5] Records that take the lost seqs again are forwarded, also when the next stop comes at once."""
    store = routed(wal_shards=4)
    store.put("a", durability=durability)
    route(store.engine)
    each(store.engine, 3, name="a")
    store.engine.checkpoint(full=True)
    each(store.engine, 3, name="a", start=4)
    write(store.engine, "own", name="b")
    engine = store.crash()
    head = engine.state("a").head_seq
    assert head < 6
    copies = len(everything(engine, "b").records)
    for n in range(4):
        write(engine, f"again {n}", name="a")
    assert everything(engine, "b").values[copies:] == [f"again {n}" for n in range(4)]
    engine = store.kill()
    left = engine.state("a").head_seq
    write(engine, "last", name="a")
    assert everything(engine, "b").values[-1] == "last"
    assert engine.router(R).cursor == left + 1


def test_a_crash_run_in_a_mixed_destination_is_told_and_no_seq_is_reused() -> None:
    """[S-245, A-16] Its routers go on behind the run."""
    store = routed(wal_shards=4)
    store.put("b", durability="disk")
    route(store.engine)
    write(store.engine, "own 1", name="b")
    store.pass_time(2_000)
    each(store.engine, 2, name="a")
    write(store.engine, "own 2", name="b")
    each(store.engine, 1, name="a", start=3)
    acked = store.engine.state("b").head_seq
    for _ in range(3):
        engine = store.crash() if _ == 0 else store.kill()
        seen = everything(engine, "b")
        assert seen.ranges[0][0] <= 4
        assert seen.ranges[0][2] == "crash"
        head = seen.ranges[0][1]
        assert head >= acked - 1
        assert seen.values[0] == "own 1"
        assert [one.data for one in seen.records if one.seq > head] == [1, 2, 3]


def test_two_routers_of_one_edge_created_at_different_times_derive_the_same_again() -> None:
    """[S-212 b, RRC-3]."""
    store = routed()
    route(store.engine, "r2")
    each(store.engine, 2, name="a")
    route(store.engine, "r1", preserve_tag=False)
    each(store.engine, 2, name="a", start=3)
    before = shape(store.engine, "b")
    assert [value for _, value in before] == [1, 2, 3, 3, 4, 4]
    assert shape(store.kill(), "b") == before
    store.engine.checkpoint()
    each(store.engine, 1, name="a", start=5)
    before = shape(store.engine, "b")
    assert shape(store.crash(), "b") == before


@pytest.mark.parametrize("shards", [1, 4])
def test_positions_hold_over_several_shards(shards: int) -> None:
    """[S-212 d] A destination's segments and its routers' positions are marked in one submission."""
    store = Store(wal_shards=shards)
    for n in range(6):
        store.put(f"t{n}")
    for n in range(5):
        route(store.engine, f"r{n}", f"t{n}", f"t{n + 1}")
    for n in range(6):
        each(store.engine, 4, name="t0", start=4 * n + 1)
        if n % 2:
            store.engine.checkpoint()
        engine = store.crash() if n % 3 else store.kill()
        for topic in range(6):
            assert [value for _, value in shape(engine, f"t{topic}")] == list(range(1, 4 * n + 5))


def test_a_destination_that_stops_being_ephemeral_keeps_its_copies_in_place() -> None:
    """[S-102, S-212 c]."""
    store = routed()
    store.put("b", durability="ephemeral")
    route(store.engine)
    each(store.engine, 3, name="a")
    assert numbers(store.engine, "b").count == 3
    store.put("b")
    each(store.engine, 2, name="a", start=4)
    assert everything(store.engine, "b").seqs == [1, 2, 3, 4, 5]
    engine = store.kill()
    seen = everything(engine, "b")
    assert (seen.seqs, seen.values, seen.ranges) == ([4, 5], [4, 5], [])


def test_an_ephemeral_destination_gets_what_followed_the_last_checkpoint() -> None:
    """[DUR-7, RRC-1]."""
    store = routed()
    store.put("b", durability="ephemeral")
    route(store.engine)
    each(store.engine, 3, name="a")
    store.engine.checkpoint(full=True)
    each(store.engine, 2, name="a", start=4)
    engine = store.kill()
    assert everything(engine, "b").values == [4, 5]
    assert engine.state("b").head_seq == 5


def test_many_copies_are_brought_into_segments_before_the_regular_checkpoint() -> None:
    """[S-196] Memory stays bounded."""
    store = Store("active", wal_file_bytes=1 << 24)
    route(store.engine)
    for n in range(6):
        store.engine.append("a", [new(n * 1000 + one) for one in range(1000)])
    assert store.engine.state("b").head_seq == 6_000
    assert store.engine.plan("b").ckpt_seq > 4_000
    assert everything(store.kill(), "b").values == list(range(6_000))


def test_what_no_crash_can_take_back_ends_at_the_newest_position() -> None:
    """[A-8] Copies in memory are not durable, whatever their source is."""
    store = routed()
    route(store.engine)
    each(store.engine, 3, name="a")
    assert store.engine.state("b").head_seq == 3
    assert store.engine.plan("b").durable_seq == 0
    write(store.engine, "own", name="b")
    each(store.engine, 1, name="a", start=4)
    assert store.engine.state("b").head_seq == 5
    assert store.engine.plan("b").durable_seq == 4
    store.engine.checkpoint(full=True)
    assert store.engine.plan("b").durable_seq == 5


def test_a_snapshot_has_every_router_with_its_position() -> None:
    """[S-210, S-212 d]."""
    store = routed()
    route(store.engine)
    each(store.engine, 3, name="a")
    store.engine.checkpoint(full=True)
    newest = store.files(".bin")[-1]
    snapshot = decode(store.sim.files()[f"store/{newest}"])
    item = snapshot.routers[0]
    assert (item.name, item.position, item.total, item.dest_head) == ("r", 3, 3, 3)
    assert snapshot.header.next_router_op == 2
    assert [one.head_seq for one in snapshot.topics] == [3, 3]


def test_only_the_snapshot_is_left_of_a_router() -> None:
    """[S-211]."""
    store = routed("trimmed")
    route(store.engine)
    each(store.engine, 3, name="a")
    engine = store.settle()
    assert shape(engine, "b") == [(1, 1), (2, 2), (3, 3)]
    write(engine, 4, name="a")
    assert shape(engine, "b")[-1] == (4, 4)
    assert engine.router(R).forwarded_total == 4


def test_a_destination_whose_log_refuses_stops_its_routers() -> None:
    """[BKP-1] Reads go on, the cursor stays."""
    store = routed()
    route(store.engine)
    each(store.engine, 1, name="a")
    store.fail_log_sync()
    with pytest.raises(TopicsError):
        write(store.engine, 2, name="a")
    assert everything(store.engine, "b").values == [1]
    store.mend()
    engine = store.kill()
    assert everything(engine, "b").values[:1] == [1]


def test_a_clean_stop_loses_no_copy_whose_source_is_gone() -> None:
    """[RRC-8]."""
    store = routed()
    route(store.engine)
    each(store.engine, 3, name="a")
    assert numbers(store.engine, "b").count == 3
    store.engine.delete("a", before_seq=3)
    assert shape(store.reopen(), "b") == [(1, 1), (2, 2), (3, 3)]
    assert metric(store.engine, "topics_router_lag_records") == 0


@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_a_large_direct_write_that_is_framed_in_slices_takes_copies_along_too(stop: str) -> None:
    """[S-212 c, A-1] Copies made while it is being framed wait for their turn."""
    store = routed(wal_file_bytes=1 << 20)
    store.engine.core.frames_aside_bytes = 1000
    route(store.engine, guarantee="exactly_once")
    each(store.engine, 3, name="a")
    id = store.engine.plan("a").id
    known = new("known", meta={"_topics_router": {"idempotency_key": f"router:r:{id}:1:4"}})
    store.engine.append("b", [*(new(f"{n}".ljust(200)) for n in range(50)), known])
    each(store.engine, 2, name="a", start=4)
    before = shape(store.engine, "b")
    assert [seq for seq, _ in before] == list(range(1, 56))
    assert [value for _, value in before][-2:] == ["known", 5]
    assert shape(store.stop(stop), "b") == before
