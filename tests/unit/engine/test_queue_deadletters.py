"""Jobs that were delivered too often move to another topic (04 §10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.kit import STOPS, Store, everything
from tests.unit.engine.kit_queue import QUEUE, Queue
from topics.errors import CommitFailed
from topics.model import Record, new
from topics.testing import SimFs

DEAD = "dead"


def make(**config: Any) -> Queue:
    return Queue(config={"max_deliveries": 2, "dead_letter": DEAD, "lease_ms": 1000, **config})


def wear_out(store: Queue, times: int = 2, count: int = 9) -> None:
    """Deliver everything so often, and let the leases expire."""
    for _ in range(times):
        store.claim(count)
        store.clock.advance(1001)


def dead(store: Queue) -> list[Record]:
    return everything(store.engine, DEAD).records


def dead_lettered(store: Queue) -> int:
    state = store.engine.state(QUEUE).queue
    assert state is not None
    return int(state["dead_lettered"])


def test_a_job_moves_when_it_would_be_delivered_once_too_often() -> None:
    """[DLQ-2, DLQ-3, DLQ-4]"""
    store = make()
    store.engine.append(QUEUE, [new({"loaf": "rye"}, tag="lot:9", node="n1", meta={"rush": [1, 2.0]}), new("plain")])
    wear_out(store)
    assert DEAD not in store.engine.topics()
    store.clock.advance(5)
    result = store.engine.claim(QUEUE, "w", 9)
    assert (result.jobs, result.ready) == ([], 0)
    first, second = dead(store)
    assert (first.seq, first.ts, first.tag, first.node, first.data) == (
        1,
        store.clock.now_ms(),
        "lot:9",
        "n1",
        {"loaf": "rye"},
    )
    assert first.raw_meta == (
        b'{"rush":[1,2.0],"$dead_letter_from":"jobs","$dead_letter_deliveries":"2","$dead_letter_src_seq":"1"}'
    )
    assert (second.tag, second.node, second.data) == (None, None, "plain")
    assert second.meta == {
        "$dead_letter_from": "jobs",
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "2",
    }
    assert (store.live(), store.counts(), dead_lettered(store)) == ([], (0, 0, 0), 2)
    assert store.engine.read(QUEUE).tombstone is None


def test_the_claim_goes_on_with_the_next_job() -> None:
    """[DLQ-2]: a moved job does not count against max."""
    store = make()
    store.produce(2)
    wear_out(store)
    store.produce(3, start=3)
    assert store.claim(2) == [3, 4]
    assert [record.data for record in dead(store)] == [1, 2]


@pytest.mark.parametrize("config", [{"max_deliveries": 0}, {"dead_letter": None}])
def test_otherwise_jobs_are_redelivered_for_ever(config: dict[str, Any]) -> None:
    """[DLQ-1]"""
    store = make(**config)
    store.produce(1)
    for n in range(1, 8):
        (job,) = store.jobs(9)
        assert job.deliveries == n
        store.clock.advance(1001)
    assert DEAD not in store.engine.topics()


def test_nacks_count_like_expiries() -> None:
    """[NAK-2, DLQ-2]"""
    store = make()
    store.produce(1)
    for _ in range(2):
        assert store.claim() == [1]
        store.engine.nack(QUEUE, "w", [1])
    assert store.claim() == []
    assert len(dead(store)) == 1


@pytest.mark.parametrize("type", ["log", "queue"])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_the_copy_obeys_the_class_of_its_topic(type: str, durability: str) -> None:
    """[DLQ-5, DUR-11]"""
    store = make()
    store.put(DEAD, type=type, durability=durability)
    store.produce(1)
    wear_out(store)
    before = store.engine.metrics()["topics_wal_fsyncs_total"]
    assert store.claim() == []
    # The delete of the job is synced, for the queue is of class `fsync`.
    assert store.engine.metrics()["topics_wal_fsyncs_total"] == before + 1 + (durability == "fsync") + (
        durability == "disk"
    )
    assert len(dead(store)) == 1
    if type == "queue":
        assert [job.data for job in store.engine.claim(DEAD, "w", 9).jobs] == [1]


def test_an_absent_topic_is_created_with_defaults() -> None:
    """[DLQ-5, NAME-7]"""
    store = make()
    store.produce(1)
    wear_out(store)
    store.claim()
    assert store.engine.state(DEAD).config == store.put("plain", durability="disk").state("plain").config


def test_the_job_stays_where_the_topic_cannot_be_created() -> None:
    """[DLQ-7, DLQ-5]: and goes when it can."""
    store = Queue(config={"max_deliveries": 1, "dead_letter": DEAD, "lease_ms": 1000}, max_topics=1)
    store.produce(2)
    wear_out(store, 1)
    for _ in range(3):
        result = store.engine.claim(QUEUE, "w", 9)
        assert (result.jobs, result.ready, store.live(), dead_lettered(store)) == ([], 2, [1, 2], 0)
    store.reopen(max_topics=5)
    wear_out(store, 1)
    assert store.claim(9) == []
    assert [record.meta["$dead_letter_deliveries"] for record in dead(store) if record.meta] == ["1", "1"]


def test_a_full_topic_takes_what_it_has_room_for() -> None:
    """[DLQ-7, CAP-7]: nothing is dropped, the rest is tried again."""
    store = make()
    store.put(DEAD, cap_records=3, discard="reject", type="queue")
    store.produce(5)
    wear_out(store)
    assert store.claim(9) == []
    assert (len(dead(store)), store.counts(), dead_lettered(store)) == (3, (2, 0, 0), 3)
    (job, *_) = store.engine.claim(DEAD, "w", 9).jobs
    store.engine.ack(DEAD, "w", [job.seq])
    assert store.claim(9) == []
    assert (len(dead(store)), store.counts(), dead_lettered(store)) == (3, (1, 0, 0), 4)


def test_a_capped_topic_evicts_for_the_copy() -> None:
    """[CAP-7]"""
    store = make()
    store.put(DEAD, cap_records=2)
    store.produce(5)
    wear_out(store)
    store.claim(9)
    assert [record.data for record in dead(store)] == [4, 5]
    assert dead_lettered(store) == 5


def test_a_pass_moves_as_many_as_a_claim_may_hand_out() -> None:
    """[DLQ-2]"""
    store = Queue(config={"max_deliveries": 1, "dead_letter": DEAD, "lease_ms": 1000}, max_claim=150)
    store.produce(200)
    assert len(store.claim(150)) + len(store.claim(150)) == 200
    store.clock.advance(1001)
    assert store.engine.claim(QUEUE, "w").ready == 50
    assert (dead_lettered(store), store.live()) == (150, list(range(151, 201)))
    assert store.engine.claim(QUEUE, "w").ready == 0
    assert [record.data for record in dead(store)] == list(range(1, 201))


def test_added_members_count_against_no_limit() -> None:
    """[DLQ-4]"""
    store = make()
    meta = {f"member-{n}": "x" * 200 for n in range(64)}
    store.engine.append(QUEUE, [new("y" * ((1 << 20) - 16_000), meta=meta)])
    wear_out(store)
    store.claim()
    (copy,) = dead(store)
    assert copy.meta is not None
    assert len(copy.meta) == 67


def test_a_second_move_says_where_it_was_last() -> None:
    """[REC-11]: members of an earlier move are replaced, others keep their spelling."""
    store = make()
    store.put(DEAD, type="queue", max_deliveries=1, dead_letter="grave", lease_ms=1000)
    store.engine.append(QUEUE, [new(1, meta=b'{"n":1.50,"$dead_letter_note":"mine"}')])
    wear_out(store)
    store.claim()
    for _ in range(2):
        store.engine.claim(DEAD, "w")
        store.clock.advance(1001)
    (record,) = everything(store.engine, "grave").records
    assert record.raw_meta == (
        b'{"n":1.50,"$dead_letter_note":"mine","$dead_letter_from":"dead","$dead_letter_deliveries":"1",'
        b'"$dead_letter_src_seq":"1"}'
    )


def test_a_changed_limit_counts_for_later_claims() -> None:
    """[QUE-7, DLQ-1]"""
    store = make()
    store.produce(1)
    wear_out(store)
    store.put_queue(max_deliveries=3, dead_letter=DEAD, lease_ms=1000)
    assert store.jobs()[0].deliveries == 3
    store.clock.advance(1001)
    assert store.claim() == []
    assert len(dead(store)) == 1


@pytest.mark.parametrize("how", STOPS)
def test_counters_decide_about_dead_letters_over_restarts_too(how: str) -> None:
    """[QRC-3, DLQ-2]"""
    store = make(leases_durable=True)
    store.produce(1)
    for _ in range(2):
        assert store.claim() == [1]
        store.clock.advance(1001)
        store.stop(how)
    assert store.claim() == []
    store.stop(how)
    assert (len(dead(store)), store.live()) == (1, [])


def test_a_queue_that_cannot_delete_its_letters_copies_none() -> None:
    """[DLQ-7]: each pass would leave one more of every letter."""
    store = Queue(config={"max_deliveries": 1, "dead_letter": DEAD, "lease_ms": 1000}, wal_shards=2)
    store.put(DEAD)
    core = store.engine.core
    here, there = (core.shard(core.names[name].id) for name in (QUEUE, DEAD))
    assert here is not there
    store.produce(2)
    wear_out(store, 1)
    store.fail_log_sync(f"{here.key}/")
    with pytest.raises(CommitFailed):
        store.produce(1)
    assert (here.state, there.state) == ("read_only", "ok")
    for _ in range(3):
        assert store.claim(9) == []
    assert (dead(store), store.live(), dead_lettered(store)) == ([], [1, 2], 0)
    store.mend()
    store.crash()
    wear_out(store, 1)
    assert store.claim(9) == []
    assert [record.data for record in dead(store)] == [1, 2]


def test_letters_of_a_queue_that_logs_nothing_move_whatever_the_log_does() -> None:
    """[DLQ-2]: an engine in memory has none; an ephemeral queue does not ask its own."""
    store = Queue("ram", config={"max_deliveries": 1, "dead_letter": DEAD, "lease_ms": 1000})
    store.produce(2)
    wear_out(store, 1)
    assert (store.claim(9), [record.data for record in dead(store)], store.live()) == ([], [1, 2], [])

    config = {"durability": "ephemeral", "max_deliveries": 1, "dead_letter": DEAD, "lease_ms": 1000}
    store = Queue(config=config, wal_shards=2)
    store.put(DEAD)
    core = store.engine.core
    here = core.shard(core.names[QUEUE].id)
    beside = next(name for name in map(str, range(9)) if core.shard(store.put(name).core.names[name].id) is here)
    store.produce(2)
    wear_out(store, 1)
    store.fail_log_sync(f"{here.key}/")
    with pytest.raises(CommitFailed):
        store.engine.append(beside, [new(1)])
    assert here.state == "read_only"
    assert (store.claim(9), [record.data for record in dead(store)], store.live()) == ([], [1, 2], [])


def test_at_every_disk_call_the_job_is_in_one_place_or_in_both() -> None:
    """[DLQ-6]: never in none."""
    counted = make()
    counted.put(DEAD)
    counted.produce(2)
    wear_out(counted)
    images: list[SimFs] = []
    counted.sim.before = lambda call: images.append(counted.sim.crash_image(len(images), "random"))
    counted.claim(9)
    counted.sim.before = None
    assert len(images) > 3
    for image in [*images, counted.sim.crash_image(0, "nothing")]:
        store = Store(sim=image, opened=False)
        store.boot = 5
        store.open()
        here = {record.data for record in everything(store.engine, QUEUE).records}
        there = {record.data for record in everything(store.engine, DEAD).records}
        assert here | there == {1, 2}
