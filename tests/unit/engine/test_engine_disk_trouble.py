"""When the disk fails or fills: what is refused, what goes on; nothing acknowledged is lost (06 §6.4; T10, T11)."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import PATH, TOPIC, Store, gap, numbers, write
from topics.codec.snapshot import Encoder
from topics.engine import append as appending
from topics.engine import checkpoint
from topics.engine.append import Write
from topics.errors import CommitFailed, ShardReadOnly, StorageFull, TopicFull, TopicsError
from topics.fs import OsFs
from topics.model import Producer, new
from topics.storage import shard as shards
from topics.testing import Fault, FaultFs
from topics.testing.simfs import SYNC_MODES

BIG = "x" * 3000


# A failed sync (T10)


def latched(**config: Any) -> Store:
    """Three records, then a sync that failed under a fourth."""
    store = Store()
    kit.each(store.put(**config), 3, tag="x")
    store.fail_log_sync()
    with pytest.raises(CommitFailed):
        write(store.engine, "failed")
    store.mend()
    return store


@pytest.mark.parametrize("mode", SYNC_MODES[:3])
def test_a_failed_sync_fails_its_write_and_latches_the_shard(mode: Any) -> None:
    """[S-78, R-2, DUR-2]: no later success counts; nothing more is acknowledged."""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    store.fail_log_sync(mode=mode)
    with pytest.raises(CommitFailed) as caught:
        write(engine, "failed")
    assert caught.value.code == "internal"
    store.mend()
    for _ in range(5):
        with pytest.raises(ShardReadOnly) as refused:
            write(engine, "refused")
        assert refused.value.code == "not_ready"
        store.pass_time(1000)
    assert kit.everything(engine).values == [1, 2, 3]


def test_a_latched_engine_says_so() -> None:
    """[S-78, R-2], 06 §21"""
    engine = latched().engine
    health = engine.health()
    assert (health.ready, health.state) == (False, "read_only")
    assert set(health.shards.values()) == {"read_only"}
    assert kit.metric(engine, "topics_wal_read_only") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.put_topic("new"),
        lambda engine: engine.put_topic(TOPIC, {"durability": "fsync", "ttl_ms": 7}),
        lambda engine: engine.delete_topic(TOPIC),
        lambda engine: engine.delete(TOPIC, match="x"),
        lambda engine: engine.delete(TOPIC, before_seq=3),
        lambda engine: write(engine, 1, name="lazy"),
        lambda engine: write(engine, 1, idempotency_key="k"),
        lambda engine: write(engine, 1, producer=Producer("p", 1, 1)),
    ],
)
def test_a_latched_shard_refuses_everything_that_must_be_logged(call: Any) -> None:
    """[S-78, CFG-9, DEL-7, TOP-13]"""
    store = latched()
    with kit.nothing_changes(store.engine), pytest.raises(ShardReadOnly):
        call(store.engine)


def test_reads_go_on_on_a_latched_shard() -> None:
    """[S-78, R-2]: also of what lies in segments, and of an ephemeral topic, which needs no log."""
    store = Store()
    engine = store.put()
    store.put("ram", durability="ephemeral")
    kit.each(engine, 7)
    engine.checkpoint(full=True)
    kit.each(engine, 2, start=8)
    store.fail_log_sync()
    with pytest.raises(CommitFailed):
        write(engine, "failed")
    assert kit.everything(engine).values == list(range(1, 10))
    assert engine.state(TOPIC).count == 9
    assert engine.delete(TOPIC, match="x", dry_run=True).deleted == 0
    write(engine, "still", name="ram")
    assert kit.everything(engine, "ram").values == ["still"]


@pytest.mark.parametrize("mode", SYNC_MODES[:3])
@pytest.mark.parametrize("stop", ["killed", "crashed", "reopened"])
def test_a_restart_after_a_failed_sync_finds_every_acknowledged_record(mode: Any, stop: str) -> None:
    """[R-1, S-88, S-81]: what failed may appear once, or not at all."""
    store = Store()
    engine = store.put()
    kit.each(engine, 5)
    store.fail_log_sync(mode=mode)
    with pytest.raises(CommitFailed):
        write(engine, "failed")
    store.mend()
    engine = store.stop(stop)
    assert kit.everything(engine).values in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, "failed"])
    assert kit.everything(engine).ranges == []
    assert engine.health().ready
    head = numbers(engine).head_seq
    assert write(engine, "again").seqs == [head + 1]
    assert kit.everything(store.crash()).values[-1] == "again"


def test_after_a_failed_sync_a_later_power_loss_takes_nothing_acknowledged() -> None:
    """C11: EIO at a sync, restart on the same boot, acknowledged writes in the next file, then power loss."""
    store = Store()
    engine = store.put()
    kit.each(engine, 5)
    store.fail_log_sync(mode="clean")
    with pytest.raises(CommitFailed):
        write(engine, "failed")
    store.mend()
    engine = store.kill()
    before = kit.everything(engine).values
    write(engine, "after")
    for style in ("nothing", "random"):
        image = Store(sim=store.sim.crash_image(5, style), opened=False)
        image.boot = 1
        assert kit.everything(image.open()).values == [*before, "after"]


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_failed_background_sync_latches_too(durability: str) -> None:
    """[S-76, S-78]: what was acknowledged stays readable."""
    store = Store()
    engine = store.put(durability=durability)
    kit.each(engine, 5)
    store.fail_log_sync(times="always")
    store.pass_time(2000)
    store.mend()
    assert not engine.health().ready
    with pytest.raises(ShardReadOnly):
        write(engine, "refused")
    assert kit.everything(engine).values == [1, 2, 3, 4, 5]


def test_a_failed_sync_at_rotation_latches_too() -> None:
    """[S-78, S-85]"""
    store = Store(wal_file_bytes=8192)
    engine = store.put(durability="disk")
    write(engine, 1)
    store.fail_log_sync(times="always")
    with pytest.raises((CommitFailed, ShardReadOnly)):
        for _ in range(10):
            write(engine, BIG)
    with pytest.raises(ShardReadOnly):
        write(engine, 2)
    assert engine.health().state == "read_only"


def test_closing_a_latched_engine_releases_the_directory() -> None:
    """[S-73, S-352]"""
    store = latched()
    try:
        store.engine.close()
    except TopicsError:
        pass
    engine = store.open()
    assert kit.everything(engine).values[:3] == [1, 2, 3]
    assert engine.health().ready


def test_expiry_is_suspended_on_a_latched_shard() -> None:
    """C26 [S-263, DUR-12, TTL-2]: reads go on and may return records past their TTL; a restart makes up for it."""
    store = latched(ttl_ms=100)
    engine = store.engine
    store.clock.advance(101)
    assert kit.everything(engine).values == [1, 2, 3]
    assert numbers(engine) == (3, 1, 3, 3)
    store.pass_time(5000)
    assert kit.everything(engine).values == [1, 2, 3]
    engine = store.kill()
    assert numbers(engine).count == 0
    told = gap(engine.read(TOPIC))
    assert told is not None
    assert told[0] == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda engine: engine.state(TOPIC),
        lambda engine: engine.read(TOPIC),
        lambda engine: engine.delete(TOPIC, before_seq=99),
    ],
)
def test_an_expiry_that_cannot_be_logged_fails_the_operation_that_needed_it(look: Any) -> None:
    """[DUR-12, S-263]: and evicts nothing; from then on the shard is latched and expiry suspended."""
    store = Store()
    engine = store.put(ttl_ms=100)
    kit.each(engine, 3)
    store.clock.advance(101)
    store.fail_log_sync()
    with pytest.raises(TopicsError):
        look(engine)
    assert kit.everything(engine).values == [1, 2, 3]
    assert numbers(engine) == (3, 1, 3, 3)


# Shards of their own


def test_one_latched_shard_of_four_does_not_affect_the_others() -> None:
    """[S-82], C21: they write, checkpoint and trim; its own topics stay readable."""
    store = Store(wal_shards=4, wal_file_bytes=8192, segment_max_events=20)
    names = [f"t{n}" for n in range(12)]
    for name in names:
        store.put(name)
        write(store.engine, "before", name=name)
    engine = store.engine
    store.fail_log_sync("shard-02/", times="always")
    hit = []
    for name in names:
        try:
            write(engine, "under", name=name)
        except (CommitFailed, ShardReadOnly):
            hit.append(name)
    well = [name for name in names if name not in hit]
    assert hit
    assert well
    states = engine.health().shards
    assert sorted(states.values()) == ["ok", "ok", "ok", "read_only"]
    assert engine.health().state == "read_only"
    assert not engine.health().ready
    for round in range(10):
        for name in well:
            for _ in range(10):
                write(engine, "x" * 100, name=name)
        store.pass_time(65_000, 5000)
        if round > 3:
            files = [path for path in store.files(".log") if "shard-02" not in path]
            assert len(files) <= 18, "the logs of the others must stay bounded"
            assert kit.metric(engine, "topics_tail_records") <= len(hit) * 2 + 300
    for name in hit:
        with pytest.raises(ShardReadOnly):
            write(engine, "no", name=name)
        assert kit.everything(engine, name).values == ["before"]
    for name in well:
        assert numbers(engine, name).count == 102
    store.mend()
    engine = store.kill()
    for name in names:
        assert kit.everything(engine, name).values[0] == "before"
        assert numbers(engine, name).count >= (102 if name in well else 1)
    assert engine.health().ready


@pytest.mark.parametrize("shards", [1, 3])
def test_a_file_that_was_begun_and_never_written_to_is_there_after_a_run_that_only_found_space(shards: int) -> None:
    """[S-64, S-86] `CURRENT` names it: a clean stop of a run that wrote nothing must not take it away."""
    store = Store(wal_shards=shards, min_free_bytes=1 << 20)
    store.fail("pwrite", path="wal-")
    with pytest.raises(CommitFailed):
        store.put()
    store.mend()
    engine = store.kill()
    store.sim.capacity = 1 << 16
    store.pass_time(2000)
    assert engine.health().state == "full"
    store.sim.capacity = None
    store.pass_time(2000)
    assert engine.health().state == "ok"
    store.reopen()
    assert write(store.put(), 1).seqs == [1]


def test_an_idle_shard_that_fails_as_it_begins_leaves_a_store_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-82, S-89, S-211] Its earlier files may go in that moment: no snapshot behind it begins in one of them."""
    store = Store(wal_shards=2)
    names = [f"t{n}" for n in range(6)]
    for name in names:
        write(store.put(name), name, name=name)
    keys = {name: store.engine.core.shard(store.engine.core.names[name].id).key for name in names}
    busy, idle = (next(name for name in names if keys[name] == key) for key in ("shard-00", "shard-01"))
    engine = store.reopen()
    write(engine, 1, name=busy)
    engine.checkpoint(full=True)
    late = Write.prepare(idle, [{"data": "late"}], engine.core.limits)
    encode = Encoder.add_topics
    outcomes: list[Any] = []

    def encoded(self: Encoder, items: Any) -> None:
        """Between the header of a snapshot and what it lets go."""
        if not outcomes:
            outcomes.append(None)
            engine.owner.soon(lambda: appending.append(engine.core, late, outcomes.append))
        encode(self, items)

    monkeypatch.setattr(Encoder, "add_topics", encoded)
    store.fail("fdatasync", path="shard-01/wal-", times="always")
    for n in (2, 3):
        write(engine, n, name=busy)
        engine.checkpoint(full=True)
    assert isinstance(outcomes[1], CommitFailed)
    assert store.files("shard-01/wal-0000000000000001.log") == []
    monkeypatch.undo()
    store.mend()
    engine = store.kill()
    for name in names:
        assert kit.everything(engine, name).values[:1] == [name]


# A full disk (T11)


def fill(store: Store, name: str = TOPIC) -> list[int]:
    """Leave no space and write until the engine says so; the seqs that were acknowledged."""
    store.sim.capacity = 0
    acked: list[int] = []
    for _ in range(200):
        try:
            acked += write(store.engine, BIG, name=name, tag="big").seqs or []
        except (StorageFull, CommitFailed):
            return acked
    raise AssertionError("a disk without space took 200 writes")


def full(**options: Any) -> tuple[Store, list[int]]:
    store = Store(**{"min_free_bytes": 0, "wal_file_bytes": 16384, **options})
    kit.each(store.put(), 3, tag="x")
    return store, [1, 2, 3, *fill(store)]


def test_a_full_disk_refuses_writes_and_says_so() -> None:
    """[S-80, INV-3]: T11; and nothing of them is appended."""
    store, acked = full()
    engine = store.engine
    for _ in range(3):
        with kit.nothing_changes(engine), pytest.raises(StorageFull) as caught:
            write(engine, BIG)
        assert caught.value.code == "not_ready"
    assert engine.health().state == "full"
    assert set(engine.health().shards.values()) == {"full"}
    assert kit.metric(engine, "topics_wal_full") == 1
    assert kit.everything(engine).seqs == acked


def test_deletes_work_on_a_full_disk() -> None:
    """[S-80]: T11; control frames are accepted while they fit in the active file."""
    store, acked = full()
    engine = store.engine
    assert engine.delete(TOPIC, match="x").deleted == 3
    assert engine.delete(TOPIC, seqs=[acked[-1]]).deleted == 1
    left = acked[3:-1]
    assert kit.everything(engine).seqs == left
    assert engine.put_topic(TOPIC, {"durability": "fsync", "priority": 9})[1].priority == 9
    engine = store.kill()
    assert kit.everything(engine).seqs == left


def test_expiry_works_on_a_full_disk_while_its_frame_fits() -> None:
    """[S-80, S-263]"""
    store = Store(min_free_bytes=0, wal_file_bytes=16384)
    kit.each(store.put(ttl_ms=100), 3)
    acked = [1, 2, 3, *fill(store)]
    store.clock.advance(101)
    assert numbers(store.engine) == (acked[-1], acked[-1] + 1, 0, 0)


def test_writes_return_when_space_is_back() -> None:
    """[S-80]: T11; at most 5 s later, in the same run, with the next seq."""
    store, acked = full()
    store.pass_time(3000)
    with pytest.raises(StorageFull):
        write(store.engine, BIG)
    store.sim.capacity = None
    store.pass_time(5000)
    engine = store.engine
    assert engine.health().ready
    assert engine.health().state == "ok"
    assert kit.metric(engine, "topics_wal_full") == 0
    assert write(engine, "back").seqs == [acked[-1] + 1]
    assert kit.everything(engine).seqs == [*acked, acked[-1] + 1]
    assert kit.everything(store.crash()).seqs == [*acked, acked[-1] + 1]


def bounded() -> tuple[Store, int]:
    """A disk that the log has filled up to the bound, with two snapshots from before; the last seq."""
    store = Store(min_free_bytes=4 << 20, wal_file_bytes=1 << 20)
    engine = store.put()
    for _ in range(2):
        write(engine, 1)
        engine.snapshot()
    store.sim.capacity = 16 << 20
    return store, fill_up(store)


def fill_up(store: Store, record: str = BIG * 100) -> int:
    """Write until the disk has no more than the bound; the last seq."""
    with suppress(StorageFull, CommitFailed):
        for _ in range(10_000):
            write(store.engine, record)
    assert store.engine.health().state == "full"
    return numbers(store.engine).head_seq


def test_writes_return_when_everything_was_deleted() -> None:
    """[S-80, S-89], T11: at most 5 s later; the log goes as soon as both snapshots lie behind what was deleted."""
    store, last = bounded()
    engine = store.engine
    assert engine.delete(TOPIC, before_seq=last + 1).deleted == last
    store.pass_time(5000)
    assert engine.health().state == "ok"
    assert len(store.files(".log")) <= 4
    assert write(engine, "back").seqs == [last + 1]
    assert kit.everything(store.crash()).values == ["back"]


def test_writes_return_after_a_delete_however_many_topics_a_checkpoint_has_to_tell_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[S-80, S-44], T11: what is left free of a file holds the marks of all of them. Here all is a tenth as large."""
    monkeypatch.setattr(shards, "SPARE_BYTES", shards.SPARE_BYTES // 10)
    monkeypatch.setattr(checkpoint, "MARK_ROOM", checkpoint.MARK_ROOM // 10)
    store = Store(min_free_bytes=4 << 20, wal_file_bytes=1 << 20)
    engine = store.put()
    names = [f"topic-{n}" for n in range(400)]
    for name in names:
        store.put(name)
    engine.snapshot()
    for name in names:
        write(engine, name, name=name)
    store.sim.capacity = 12 << 20
    last = fill_up(store, BIG)
    assert engine.delete(TOPIC, before_seq=last + 1).deleted == last
    store.pass_time(5000)
    assert engine.health().state == "ok"
    assert write(engine, "back").seqs == [last + 1]


def test_deletes_on_a_full_disk_leave_room_for_what_gives_space_back() -> None:
    """[S-80], T11: however many there are, the marks of a checkpoint fit behind them."""
    store, last = bounded()
    engine = store.engine
    assert engine.delete(TOPIC, before_seq=last + 1).deleted == last
    with suppress(StorageFull):
        for _ in range(10_000):
            engine.delete(TOPIC, seqs=[last])
        raise AssertionError("a full disk took 10,000 deletes")
    store.pass_time(5000)
    assert engine.health().state == "ok"
    assert write(engine, "back").seqs == [last + 1]


def test_snapshots_for_space_are_a_second_apart_and_end() -> None:
    """[S-214, S-219]: however often the engine is woken; and what they log does not use up the room for deletes."""
    store = Store(min_free_bytes=1 << 20, wal_file_bytes=1 << 20)
    engine = store.put()
    kit.each(engine, 60)
    store.sim.capacity = store.sim._used * 512 + (1 << 19)
    store.pass_time(2000)
    assert engine.health().state == "full"
    taken = [int(kit.metric(engine, "topics_snapshot_total"))]
    for n in range(50):
        engine.delete(TOPIC, seqs=[n + 1])
        store.pass_time(100, 10)
    taken.append(int(kit.metric(engine, "topics_snapshot_total")))
    assert 1 <= taken[1] - taken[0] <= 6
    store.pass_time(10_000)
    settled, log = kit.metric(engine, "topics_snapshot_total"), store.sim.files()
    store.pass_time(120_000)
    assert kit.metric(engine, "topics_snapshot_total") == settled
    assert store.sim.files() == log
    assert engine.delete(TOPIC, before_seq=61).deleted == 10


def test_a_snapshot_for_space_that_fails_is_tried_again_five_seconds_later() -> None:
    """[S-217, S-80]: a disk without any space is not written to all the time."""
    store, _ = full()
    tried = []
    for _ in range(20):
        store.pass_time(1000, 50)
        tried.append(kit.metric(store.engine, "topics_snapshot_failed_total"))
    assert 2 <= tried[-1] <= 5


@kit.after_every_stop
def test_a_full_disk_loses_nothing_acknowledged(stop: str) -> None:
    """[S-80, R-1]: T11; also when the next start finds the disk still full."""
    store, acked = full()
    try:
        engine = store.stop(stop)
    except (OSError, TopicsError):
        # A start may refuse without space; it must not lose anything by that.
        store.sim.capacity = None
        if stop == "reopened":
            store._use(store.sim.kill_image(), trust=False)
        engine = store.open()
    assert kit.everything(engine).seqs == acked
    store.sim.capacity = None
    store.pass_time(5000)
    assert write(store.engine, "back").seqs == [acked[-1] + 1]


def test_an_engine_opens_on_a_full_disk_and_reads() -> None:
    """[S-245]: it opens `full`; the probe writes what was due once there is space."""
    store, acked = full()
    store._use(store.sim.kill_image(), trust=False)
    store.sim.capacity = 0
    engine = store.open()
    assert kit.everything(engine).seqs == acked
    with pytest.raises((StorageFull, CommitFailed)):
        for _ in range(20):
            write(engine, BIG)
    assert engine.health().state == "full"
    store.sim.capacity = None
    store.pass_time(5000)
    assert (write(engine, "back").first_seq or 0) > acked[-1]


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_a_write_without_space_is_taken_back_whole(error: str) -> None:
    """[S-79, DUR-2, INV-2]: its seqs are used again."""
    store = Store(min_free_bytes=0)
    engine = store.put()
    kit.each(engine, 3)
    store.fail("pwrite", error, path="wal/wal-")
    with kit.nothing_changes(engine), pytest.raises((CommitFailed, StorageFull)):
        write(engine, "a", "b")
    assert engine.health().state == "full"
    store.pass_time(5000)
    assert write(engine, "c").seqs == [4]
    assert kit.everything(store.crash()).values == [1, 2, 3, "c"]


def test_a_short_write_is_carried_on() -> None:
    """[S-79], 13 §6: a short count is no failure."""
    store = Store()
    engine = store.put()
    store.fail("pwrite", "short", "always", path="wal/wal-")
    kit.each(engine, 5)
    store.mend()
    assert kit.everything(store.crash()).values == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", ["EIO", "zero"])
def test_a_write_that_fails_for_another_reason_latches(error: str) -> None:
    """[S-79]: no progress, or an error that is not about space."""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    store.fail("pwrite", error, path="wal/wal-")
    with kit.nothing_changes(engine), pytest.raises(CommitFailed):
        write(engine, "failed")
    assert engine.health().state == "read_only"
    store.mend()
    assert kit.everything(store.kill()).values[:3] == [1, 2, 3]


def test_a_write_that_cannot_be_taken_back_latches() -> None:
    """[S-79]: ENOSPC, and then the cut fails too."""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    store.fail("pwrite", "ENOSPC", path="wal/wal-")
    store.fail("truncate", "EIO", path="wal/wal-")
    with pytest.raises(CommitFailed):
        write(engine, "failed")
    assert engine.health().state == "read_only"
    store.mend()
    assert kit.everything(store.kill()).values in ([1, 2, 3], [1, 2, 3, "failed"])


def test_too_little_free_space_is_full_before_the_disk_is() -> None:
    """[S-80]: `min_free_bytes`; writes return when the bound holds again."""
    store = Store(min_free_bytes=1 << 20)
    engine = store.put()
    kit.each(engine, 3, tag="x")
    store.sim.capacity = (1 << 20) - 4096
    store.pass_time(2000)
    assert engine.health().state == "full"
    with kit.nothing_changes(engine), pytest.raises(StorageFull):
        write(engine, "refused")
    assert engine.delete(TOPIC, seqs=[2]).deleted == 1
    store.sim.capacity = 4 << 20
    store.pass_time(5000)
    assert engine.health().state == "ok"
    assert write(engine, "back").seqs == [4]


def test_a_bound_of_zero_switches_the_check_of_free_space_off() -> None:
    """06 §20"""
    store = Store(min_free_bytes=0)
    engine = store.put()
    write(engine, 1)
    store.sim.capacity = store.sim._used * 512
    store.pass_time(1000)
    assert write(engine, 2).seqs == [2]


def test_a_full_disk_does_not_hide_what_is_asked_before_it() -> None:
    """[WR-1, IDM-5]: bad input, a known key and a full topic are answered as ever."""
    store = Store(min_free_bytes=0, wal_file_bytes=16384)
    engine = store.put()
    store.put("small", cap_records=1, discard="reject")
    write(engine, "small", name="small")
    write(engine, "k", idempotency_key="k")
    fill(store)
    assert write(engine, "k", idempotency_key="k").deduped
    with kit.invalid_request():
        engine.append(TOPIC, [])
    with pytest.raises(TopicFull):
        write(engine, "x", name="small")


# Segments and snapshots


@pytest.mark.parametrize("op", ["pwrite", "fdatasync", "fsync", "rename", "sync_dir", "open"])
def test_a_checkpoint_that_fails_loses_nothing_and_is_tried_again(op: str) -> None:
    """[S-195]: writes go on, the next cycle does it; also across a kill."""
    store = Store(checkpoint_records=1)
    engine = store.put()
    kit.each(engine, 10, tag="x")
    engine.delete(TOPIC, seqs=[4])
    store.fail(op, times="always", path="topics/")
    try:
        engine.checkpoint(full=True)
    except (OSError, TopicsError):
        pass
    store.pass_time(6000)
    kit.each(engine, 2, start=11)
    before = kit.snapshot_of(engine)
    assert engine.health().ready
    store.mend()
    engine.checkpoint(full=True)
    store.pass_time(6000)
    engine.checkpoint(full=True)
    assert kit.snapshot_of(engine) == before
    assert kit.metric(engine, "topics_tail_records") == 0
    store.trim()
    assert kit.snapshot_of(store.crash()) == before


@pytest.mark.parametrize("mode", SYNC_MODES[:3])
@pytest.mark.parametrize("op", ["fdatasync", "fsync"])
def test_a_failed_sync_of_a_segment_is_never_trusted(mode: Any, op: str) -> None:
    """C36 [S-195]: kill, start, checkpoint, trim, power loss: all records there, deleted ones stay deleted."""
    store = Store(segment_max_events=4)
    engine = store.put()
    kit.each(engine, 6, tag="x")
    engine.checkpoint(full=True)
    engine.delete(TOPIC, seqs=[2, 5])
    kit.each(engine, 6, start=7)
    before = kit.snapshot_of(engine)
    store.fail(op, path="topics/", mode=mode)
    try:
        engine.checkpoint(full=True)
    except (OSError, TopicsError):
        pass
    store.mend()
    assert kit.snapshot_of(engine) == before
    engine = store.kill()
    assert kit.snapshot_of(engine) == before
    store.trim()
    assert kit.snapshot_of(store.crash()) == before


@pytest.mark.parametrize("op", ["pwrite", "fsync", "rename"])
def test_a_snapshot_that_fails_leaves_the_previous_one_in_force(op: str) -> None:
    """[S-217]"""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    engine.snapshot()
    kit.each(engine, 3, start=4)
    store.clock.advance(60_000)
    store.fail(op, times="always", path="snapshot-")
    with pytest.raises((OSError, TopicsError)):
        engine.snapshot()
    store.pass_time(6000)
    assert kit.metric(engine, "topics_snapshot_failed_total") >= 1
    write(engine, 7)
    assert kit.everything(store.kill()).values == [1, 2, 3, 4, 5, 6, 7]


def test_a_disk_that_cannot_be_read_fails_open_and_never_starts_empty() -> None:
    """[S-248]"""
    store = Store()
    kit.each(store.put(), 5)
    for op, path in (("pread", "wal-"), ("listdir", ""), ("pread", "snapshot-"), ("open", "wal-")):
        if path == "snapshot-":
            store.engine.snapshot()
        image = Store(sim=store.sim.kill_image(), opened=False)
        image.fail(op, times="always", path=path)
        with pytest.raises((OSError, TopicsError)):
            image.open()
        image.mend()
        assert kit.everything(image.open()).values == [1, 2, 3, 4, 5]


# Every call, once


def workload(store: Store, acked: list[int]) -> None:
    """A bit of everything; errors of the disk are met as a program would meet them."""

    def attempt(call: Any) -> Any:
        try:
            return call()
        except (OSError, TopicsError):
            return None

    for round in range(2):
        if attempt(store.open) is None and attempt(store.open) is None:
            return
        engine = store.engine
        attempt(lambda: store.put(cap_records=50))
        for n in range(1, 7):
            value = 10 * round + n
            if attempt(partial(write, engine, value, tag=f"t{value}")) is not None:
                acked.append(value)
            if n == 2:
                attempt(partial(engine.checkpoint, full=True))
            if n == 4:
                attempt(partial(engine.delete, TOPIC, match="t1"))
                attempt(engine.snapshot)
        attempt(engine.close)


@pytest.mark.parametrize(
    ("op", "error"),
    [
        ("pwrite", "EIO"),
        ("pwrite", "ENOSPC"),
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("sync_dir", "EIO"),
        ("rename", "EIO"),
        ("truncate", "EIO"),
        ("allocate", "ENOSPC"),
        ("remove", "EIO"),
        ("open", "EMFILE"),
        ("pread", "EIO"),
        ("listdir", "EIO"),
        ("makedirs", "EIO"),
        ("close", "EIO"),
        ("size", "EIO"),
    ],
)
def test_one_fault_at_any_call_loses_nothing_acknowledged(op: str, error: Any) -> None:
    """T4 in small [R-1, S-362]: every call of an operation fails once; afterwards a start finds all that was acked."""
    dry = Store(opened=False, min_free_bytes=0)
    everything: list[int] = []
    workload(dry, everything)
    assert everything == [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16]
    calls = dry.faults.counts[op]
    for index in range(1, calls + 1):
        store = Store(opened=False, min_free_bytes=0)
        store.fail(op, error, index=index)
        acked: list[int] = []
        workload(store, acked)
        store.mend()
        image = Store(sim=store.sim.crash_image(index, "nothing"), opened=False)
        image.boot = 1
        engine = image.open()
        if TOPIC not in set(engine.topics()):
            assert acked == [], index
            continue
        seen = kit.everything(engine)
        assert seen.ranges == [], (index, seen.ranges)
        got = [value for value in seen.values if value != 1]
        assert got == sorted(set(got)), index
        assert {value for value in acked if value != 1} <= set(got), index
        assert set(got) <= set(everything), index


# A real process (T10)


def test_a_failed_sync_under_load_is_the_end_of_all_acknowledgements(tmp_path: Path) -> None:
    """T10 [R-2, S-78]: real threads, the real disk: not ready once they are told, reads go on, a restart is whole."""
    faults = FaultFs(OsFs())
    engine = kit.open_real(tmp_path / PATH, faults)
    engine.put_topic(TOPIC, {"durability": "fsync"})
    write(engine, "first")
    acked: list[list[int]] = [[] for _ in range(8)]
    late: list[int] = []
    running = threading.Barrier(9)

    def writer(who: int) -> BaseException:
        running.wait(kit.WAIT_S)
        for n in range(100_000):
            struck = bool(faults.hits)
            try:
                seq = write(engine, [who, n]).first_seq
            except TopicsError as error:
                return error
            assert seq is not None
            acked[who].append(seq)
            if struck:
                late.append(seq)
        raise AssertionError("the fault never struck")

    writers = [kit.spawn(partial(writer, who)) for who in range(8)]
    running.wait(kit.WAIT_S)
    for _ in range(20):
        write(engine, "load")
    faults.inject(Fault("fdatasync", 1, "EIO", "always", path="wal-"))
    failures = kit.finish(writers)
    assert {type(error) for error in failures} <= {CommitFailed, ShardReadOnly}
    assert any(isinstance(error, CommitFailed) for error in failures)
    assert late == []
    assert not engine.health().ready
    with pytest.raises(ShardReadOnly):
        write(engine, "no")
    told = {seq for mine in acked for seq in mine}
    assert told <= set(kit.everything(engine, limit=1000).seqs)
    try:
        engine.close()
    except TopicsError:
        pass
    faults.clear()
    with kit.open_real(tmp_path / PATH) as engine:
        seen = kit.everything(engine, limit=1000)
        assert told <= set(seen.seqs)
        assert seen.ranges == []
        assert engine.health().ready
        assert engine.append(TOPIC, [new("on")]).first_seq == seen.seqs[-1] + 1


def test_a_short_read_in_a_checkpoint_is_no_damage() -> None:
    """[S-176, S-195]: bytes that did not come this time are there the next time; nothing is given up for it."""
    dry = Store(min_free_bytes=0)
    engine = dry.put(durability="disk")
    kit.each(engine, 5)
    before = dry.faults.counts["pread"]
    engine.checkpoint(full=True)
    for index in range(1, dry.faults.counts["pread"] - before + 1):
        store = Store(min_free_bytes=0)
        engine = store.put(durability="disk")
        kit.each(engine, 5)
        store.fail("pread", "zero", index=index)
        with suppress(TopicsError):
            engine.checkpoint(full=True)
        store.mend()
        engine.checkpoint(full=True)
        assert kit.everything(engine).values == [1, 2, 3, 4, 5], index
        assert kit.everything(store.kill()).ranges == [], index


@pytest.mark.parametrize("selector", [{"seqs": [1, 3, 5, 7]}, {"match": "odd"}], ids=str)
@pytest.mark.parametrize(("op", "error"), [("pread", "EIO"), ("pread", "zero"), ("open", "EMFILE"), ("map", "EIO")])
def test_a_delete_that_fails_while_it_is_marked_shows_whole_or_not_at_all(
    selector: dict[str, Any], op: str, error: Any
) -> None:
    """[R-6, INV-8]: its outcome is open, for it is in the log already; half of it is never seen, nor is it undone."""
    everything, rest = [1, 2, 3, 4, 5, 6, 7, 8], [2, 4, 6, 8]
    for index in range(1, 1000):
        store = Store(min_free_bytes=0, max_maps=1, max_fds=1)
        engine = store.put(durability="disk")
        for n in everything:
            write(engine, n, tag="odd" if n % 2 else "even")
        engine.checkpoint(full=True)
        store.fail(op, error, index=index)
        with suppress(TopicsError):
            engine.delete(TOPIC, **selector)
        struck = bool(store.faults.hits)
        store.mend()
        seen = kit.everything(engine).values
        assert seen in (everything, rest) if struck else seen == rest, index
        after = kit.everything(store.kill())
        assert (after.values, after.ranges) in ((seen, []), (rest, [])), index
        if not struck:
            break
    assert index > 1


FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.model import new

CONFIG = EngineConfig(segment_max_events=2, wal_file_bytes=1 << 20, min_free_bytes=0, wal_init_zero=False)

def seen(engine):
    found, page = [], None
    while page is None or not page.caught_up:
        page = engine.read("t", page.next_from_seq if page else 0)
        found += [one.data for one in page.records]
    return found

with Engine.open(sys.argv[1], CONFIG) as engine:
    engine.put_topic("t", {"durability": "fsync"})
    engine.append("t", [new(n) for n in range(1, 801)])
    engine.checkpoint(full=True)
    assert seen(engine) == list(range(1, 801))
    engine.append("t", [new(801)])
    if sys.argv[2] == "delete":
        assert engine.delete("t", seqs=list(range(1, 801, 2))).deleted == 400
    engine.checkpoint(full=True)
    kept = [n for n in range(1, 802) if n % 2 == 0 or n == 801 or sys.argv[2] == "read"]
    assert seen(engine) == kept
with Engine.open(sys.argv[1], CONFIG) as engine:
    assert seen(engine) == kept
    print("ok")
"""


@pytest.mark.parametrize("what", ["read", "delete"])
def test_more_segments_than_descriptors_are_read_deleted_from_and_written_behind(what: str, tmp_path: Path) -> None:
    """[S-155] 400 of them with 256 descriptors."""
    run = [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path / "store"), what]
    ended = subprocess.run(run, capture_output=True, text=True, check=False, timeout=kit.WAIT_S)
    assert (ended.stdout, ended.returncode) == ("ok\n", 0), ended.stderr[-2000:]
