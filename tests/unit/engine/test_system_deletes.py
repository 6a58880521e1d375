"""`$deletes`: every delete of a client becomes a record once its frame is synced, whatever happens meanwhile [A-20]."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store
from topics.codec import snapshot
from topics.engine import deletes
from topics.engine.engine import Engine
from topics.errors import CommitFailed, ShardReadOnly, StorageFull, TopicNotFound, TopicsError
from topics.model import DELETES

GATHER_MS = 100


def told(engine: Engine) -> list[dict[str, Any]]:
    """What `$deletes` has, in its order."""
    if DELETES not in engine.topics(system=True):
        return []
    return kit.everything(engine, DELETES).values


def numbers(engine: Engine) -> list[tuple[str, int]]:
    return [(one["topic"], one["dn"]) for one in told(engine)]


def pending(store: Store) -> list[tuple[str, int, int | None, bool]]:
    """The `dp` rows of the newest snapshot: name, number, removed, drop."""
    newest = store.files(".bin")[-1]
    header = snapshot.decode(store.sim.files()[f"{kit.PATH}/{newest}"]).header
    return [(row.name, row.delete_number, row.removed, row.drop) for row in header.pending_deletes]


def test_a_record_says_what_was_deleted_from_which_topic() -> None:
    """[A-20] Its members, in their order, and the topic as its tag."""
    store = Store()
    engine = store.put()
    plan = engine.plan(TOPIC)
    kit.tagged(engine, "a", "b:1", "b:2", None, "c")
    engine.delete(TOPIC, match="a")
    engine.delete(TOPIC, match=["tag", "Glob", "b:*"], before_seq=3)
    engine.delete(TOPIC, seqs=[4, 9])
    engine.delete(TOPIC, before_seq=5)
    engine.delete_topic(TOPIC)
    store.pass_time(GATHER_MS)
    whose = {"topic": TOPIC, "id": plan.id, "epoch": plan.epoch}
    by_tag = {"before_seq": None, "match": ["tag", "Eq", "a"], "seqs": None, "bound": 6, "removed": 1}
    by_prefix = {"before_seq": 3, "match": ["tag", "Glob", "b:*"], "seqs": None, "bound": 6, "removed": 1}
    by_seq = {"before_seq": None, "match": None, "seqs": [4, 9], "bound": 6, "removed": 1}
    below = {"before_seq": 5, "match": None, "seqs": None, "bound": 6, "removed": 1}
    records = kit.everything(engine, DELETES).records
    assert [record.data for record in records] == [
        {**whose, "dn": 1, **by_tag},
        {**whose, "dn": 2, **by_prefix},
        {**whose, "dn": 3, **by_seq},
        {**whose, "dn": 4, **below},
        {**whose, "dn": 5, "drop": True},
    ]
    assert [list(record.data) for record in records[:1]] == [[*whose, "dn", *by_tag]]
    assert {record.tag for record in records} == {TOPIC}


def test_the_topic_has_its_own_configuration() -> None:
    """[A-20] Class `fsync`, thirty days, and it is not there before it is needed."""
    store = Store()
    engine = store.put()
    with pytest.raises(TopicNotFound):
        engine.state(DELETES)
    kit.each(engine, 1)
    engine.delete(TOPIC, before_seq=2)
    store.pass_time(GATHER_MS)
    config = engine.state(DELETES).config
    assert (config.durability, config.ttl_ms) == ("fsync", 30 * 86_400_000)


def test_many_deletes_become_one_append() -> None:
    """[A-20] They wait a moment for company: one write, one `ts`, one sync for all of them."""
    store = Store()
    engine = store.put()
    kit.each(engine, 40)
    syncs = kit.metric(engine, "topics_wal_fsyncs_total")
    for seq in range(1, 41):
        engine.delete(TOPIC, seqs=[seq])
    per_delete = kit.metric(engine, "topics_wal_fsyncs_total") - syncs
    assert per_delete == 40
    store.pass_time(GATHER_MS)
    records = kit.everything(engine, DELETES).records
    assert [record.data["dn"] for record in records] == list(range(1, 41))
    assert len({record.ts for record in records}) == 1
    assert kit.metric(engine, "topics_wal_fsyncs_total") - syncs - per_delete <= 2


@pytest.mark.parametrize("character", ["x", "\x01"])
def test_deletes_that_match_long_tags_are_not_all_one_append(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[P-10, A-20] An append of them stays small, however what they match is spelled."""
    store = Store()
    engine = store.put()
    kit.each(engine, 1)
    appended: list[int] = []
    tell = engine.core.tell

    def noting(name: str, rows: list[tuple[str, dict[str, Any]]], done: Any) -> None:
        if name == DELETES:
            appended.append(len(json.dumps(rows)))
        tell(name, rows, done)

    monkeypatch.setattr(engine.core, "tell", noting)
    for n in range(60):
        engine.delete(TOPIC, match=character * 20_000 + str(n))
    store.pass_time(GATHER_MS)
    assert numbers(engine) == [(TOPIC, n) for n in range(1, 61)]
    assert len(appended) > 1
    assert max(appended) <= deletes.BATCH_BYTES


def test_dry_runs_acks_and_dead_letters_are_no_deletes() -> None:
    """[A-20] Delete frames of kind 0 only."""
    store = Store()
    engine = store.engine
    engine.put_topic("jobs", {"type": "queue", "durability": "fsync", "max_deliveries": 1, "dead_letter": "dead"})
    kit.each(engine, 3, name="jobs")
    jobs = engine.claim("jobs", "w", 2).jobs
    engine.ack("jobs", "w", [jobs[0].seq])
    engine.nack("jobs", "w", [jobs[1].seq])
    engine.delete("jobs", before_seq=9, dry_run=True)
    engine.claim("jobs", "w", 1)
    store.pass_time(60_000)
    assert engine.state("dead").count == 1
    assert told(engine) == []
    engine.delete("jobs", before_seq=9)
    store.pass_time(GATHER_MS)
    assert numbers(engine) == [("jobs", 1)]


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_what_a_crash_can_take_back_is_not_told(durability: str) -> None:
    """[A-20] The record is appended when the frame's bytes are synced, not when the delete is answered."""
    store = Store()
    engine = store.put(durability=durability)
    kit.each(engine, 4)
    engine.checkpoint(full=True)
    engine.delete(TOPIC, before_seq=3)
    engine.core.deletes.flush()
    assert told(engine) == []
    engine = store.crash("nothing")
    assert kit.everything(engine).seqs == [1, 2, 3, 4], "the delete went with the machine"
    store.pass_time(2000)
    assert told(engine) == []
    engine.delete(TOPIC, before_seq=3)
    store.pass_time(2000)
    assert numbers(engine) == [(TOPIC, 1)]


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("stop", kit.STOPS)
def test_what_was_told_is_not_told_again_and_its_number_is_not_used_again(stop: str, durability: str) -> None:
    """[A-20] Readers go by `(id, dn)`."""
    store = Store()
    engine = store.put(durability=durability)
    kit.each(engine, 4)
    engine.snapshot()
    for seq in (1, 2):
        engine.delete(TOPIC, seqs=[seq])
    store.pass_time(3000)
    assert numbers(engine) == [(TOPIC, 1), (TOPIC, 2)]
    engine = store.stop(stop)
    kit.each(engine, 1)
    engine.delete(TOPIC, before_seq=9)
    store.pass_time(3000)
    assert numbers(engine) == [(TOPIC, 1), (TOPIC, 2), (TOPIC, 3)]


def test_a_restart_tells_what_was_not_told_without_being_waited_for() -> None:
    """[A-20, 06 §14 step 13] How much was removed is not known any more."""
    store = Store()
    engine = store.put()
    store.put("gone")
    kit.each(engine, 4)
    engine.delete(TOPIC, before_seq=3)
    engine.delete_topic("gone")
    engine = store.kill()
    assert told(engine) == []
    store.pass_time(1)
    found = {one["topic"]: one for one in told(engine)}
    assert (found[TOPIC]["dn"], found[TOPIC]["before_seq"], found[TOPIC]["removed"]) == (1, 3, None)
    assert found["gone"]["drop"] is True


def test_a_snapshot_carries_what_is_not_told_and_no_log_is_kept_for_it() -> None:
    """[A-20, S-192, 06 §13] Key `dp`, until the record is durable; `dr` says how far a topic is."""
    store = Store(deletes_gather_ms=10_000_000)
    engine = store.put()
    store.put("gone")
    kit.each(engine, 4)
    engine.delete(TOPIC, before_seq=3)
    engine.delete_topic("gone")
    first = store.files(".log") or store.files()
    store.trim()
    assert not set(first) & set(store.files(".log")), "the log of the deletes is gone"
    assert pending(store) == [(TOPIC, 1, 2, False), ("gone", 1, None, True)]
    engine = store.kill(deletes_gather_ms=GATHER_MS)
    store.pass_time(GATHER_MS)
    assert [(one["topic"], one["dn"], one.get("removed")) for one in told(engine)] == [(TOPIC, 1, 2), ("gone", 1, None)]
    store.trim()
    assert pending(store) == []
    newest = store.sim.files()[f"{kit.PATH}/{store.files('.bin')[-1]}"]
    item = next(one for one in snapshot.decode(newest).topics if one.name == TOPIC)
    assert (item.delete_number, item.deletes_recorded) == (1, 1)


def test_a_clean_stop_leaves_nothing_to_tell() -> None:
    """[A-20] Whoever reads the files of a stopped store finds `$deletes` complete."""
    store = Store()
    engine = store.put(durability="disk")
    kit.each(engine, 4)
    engine.delete(TOPIC, before_seq=3)
    engine.close()
    newest = store.sim.files()[f"{kit.PATH}/{store.files('.bin')[-1]}"]
    decoded = snapshot.decode(newest)
    assert decoded.header.pending_deletes == ()
    assert [one.head_seq for one in decoded.topics if one.name == DELETES] == [1]
    assert numbers(store.open()) == [(TOPIC, 1)]


def test_deletes_are_told_while_there_is_no_space() -> None:
    """[A-20, S-80] Like control frames."""
    store = Store(wal_file_bytes=16384)
    engine = store.put()
    kit.each(engine, 30)
    engine.delete(TOPIC, seqs=[1])
    store.pass_time(GATHER_MS)
    store.sim.capacity = 0
    with pytest.raises(TopicsError):
        for _ in range(200):
            kit.write(engine, "x" * 400)
    assert engine.health().state == "full"
    engine.delete(TOPIC, before_seq=20)
    store.pass_time(GATHER_MS)
    assert engine.health().state == "full"
    assert numbers(engine) == [(TOPIC, 1), (TOPIC, 2)]


def test_too_many_that_wait_keep_further_deletes_out() -> None:
    """[A-20] With the state of the shard that holds `$deletes`; dry runs and everything else go on."""
    store = Store(deletes_pending_max=3)
    engine = store.put()
    engine.put_topic("other", {"durability": "fsync"})
    kit.each(engine, 9)
    for seq in (1, 2, 3):
        engine.delete(TOPIC, seqs=[seq])
    for refused in (lambda: engine.delete(TOPIC, seqs=[4]), lambda: engine.delete_topic("other")):
        with pytest.raises(StorageFull, match="3 deletes wait"):
            refused()
    assert engine.delete(TOPIC, seqs=[4], dry_run=True).deleted == 1
    assert kit.everything(engine).seqs == [4, 5, 6, 7, 8, 9]
    store.pass_time(GATHER_MS)
    engine.delete(TOPIC, seqs=[4])
    assert engine.delete_topic("other")


def test_a_shard_that_takes_no_more_writes_is_named() -> None:
    """[A-20, S-78]"""
    store = Store(deletes_pending_max=1, wal_shards=2)
    engine, core = store.engine, store.engine.core
    names = [f"t{n}" for n in range(8)]
    for name in names:
        kit.each(store.put(name), 2, name=name)
    engine.delete("t0", seqs=[1])
    store.pass_time(GATHER_MS)
    shard = core.shard(core.names[DELETES].id)
    elsewhere = next(name for name in names if core.shard(core.names[name].id) is not shard)
    store.fail_log_sync(f"{shard.key}/")
    inside = next(name for name in names if core.shard(core.names[name].id) is shard)
    with pytest.raises(CommitFailed):
        kit.write(engine, 1, name=inside)
    engine.delete(elsewhere, seqs=[1])
    store.pass_time(5000)
    with pytest.raises(ShardReadOnly, match="1 deletes wait"):
        engine.delete(elsewhere, seqs=[2])


def test_a_delete_that_was_refused_leaves_no_hole_in_the_numbers() -> None:
    """[A-20] Deletes of a topic are counted from 1."""
    store = Store()
    engine = store.put()
    kit.each(engine, 4)
    shard = engine.core.shard(engine.core.names[TOPIC].id)
    state, shard.state = shard.state, "read_only"
    with pytest.raises(ShardReadOnly):
        engine.delete(TOPIC, seqs=[1])
    shard.state = state
    engine.delete(TOPIC, seqs=[1])
    store.pass_time(GATHER_MS)
    assert numbers(engine) == [(TOPIC, 1)]


def test_a_delete_that_is_not_logged_is_not_told() -> None:
    """[A-20, DUR-7] A restart forgets it with its records, and their seqs may be given to others."""
    store = Store()
    engine = store.put(durability="ephemeral")
    kit.each(engine, 4)
    engine.delete(TOPIC, before_seq=3)
    store.pass_time(3000)
    assert told(engine) == []
    engine.put_topic(TOPIC, {"durability": "fsync"})
    kit.each(engine, 1)
    engine.put_topic(TOPIC, {"durability": "ephemeral"})
    engine.delete(TOPIC, before_seq=9)
    store.pass_time(3000)
    assert [(one["before_seq"], one["bound"]) for one in told(engine)] == [(9, 6)], "records of a logged class"


def test_a_crowd_does_not_wait() -> None:
    """[A-20] Nobody has to tick for the bound not to be met."""
    store = Store("ram")
    engine = store.put()
    for _ in range(deletes.CROWD + 1):
        engine.delete(TOPIC, before_seq=1)
    assert engine.state(DELETES).head_seq == deletes.CROWD


def test_a_name_that_is_used_again_is_another_topic() -> None:
    """[A-20, EPO-1] Numbers begin anew with the id."""
    store = Store()
    for _ in range(2):
        kit.each(store.put(), 2)
        store.engine.delete(TOPIC, before_seq=2)
        store.engine.delete_topic(TOPIC)
    store.pass_time(GATHER_MS)
    found = told(store.engine)
    assert [one["dn"] for one in found] == [1, 2, 1, 2]
    assert len({one["id"] for one in found}) == len({one["epoch"] for one in found}) == 2
