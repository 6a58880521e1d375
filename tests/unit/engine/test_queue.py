"""Claim, ack, nack, extend and what they show, by the rules of 04."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import PLACES, U64_MAX
from tests.unit.engine.kit_queue import QUEUE, Queue, Waiting, seqs
from topics.engine import lifecycle, queue
from topics.engine.engine import Engine
from topics.errors import BatchTooLarge, CallerError, NotAQueue, TopicNotFound
from topics.model import AckResult, DelayedJob, ExtendResult, HeldLease, NackResult, new


@pytest.fixture
def store() -> Queue:
    return Queue()


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("claim", {"node": "w"}),
    ("ack", {"node": "w", "seqs": []}),
    ("nack", {"node": "w", "seqs": []}),
    ("extend", {"node": "w", "seqs": [], "lease_ms": 100}),
    ("leases", {}),
]


# Model


@pytest.mark.parametrize(("call", "given"), CALLS)
def test_queue_calls_need_a_queue_and_create_none(store: Queue, call: str, given: dict[str, Any]) -> None:
    """[QUE-3, NAME-7]"""
    store.put("log")
    with pytest.raises(TopicNotFound):
        getattr(store.engine, call)("absent", **given)
    with pytest.raises(NotAQueue) as refused:
        getattr(store.engine, call)("log", **given)
    assert (refused.value.code, refused.value.topic) == ("not_a_queue", "log")
    assert list(store.engine.topics()) == [QUEUE, "log"]


@pytest.mark.parametrize("place", PLACES)
def test_jobs_are_handed_out_in_seq_order_wherever_they_lie(place: str) -> None:
    """[CLM-2, QUE-4]"""
    store = Queue(place)
    store.produce(9)
    store.settle()
    assert store.claim(4) == [1, 2, 3, 4]
    assert store.claim(4) == [5, 6, 7, 8]
    assert store.claim(4) == [9]
    assert store.claim(4) == []


def test_a_job_is_told_with_everything_but_its_node(store: Queue) -> None:
    """[CLM-6, QUE-5]"""
    store.engine.append(QUEUE, [new({"loaf": "rye"}, tag="lot:9", node="w", meta={"rush": "1"}), new(2)])
    first, second = store.jobs(2, lease_ms=45_000)
    assert (first.seq, first.ts, first.tag, first.data, first.meta) == (
        1,
        store.clock.now_ms(),
        "lot:9",
        {"loaf": "rye"},
        {"rush": "1"},
    )
    assert (first.deadline, first.deliveries) == (store.clock.now_ms() + 45_000, 1)
    assert (second.tag, second.data, second.meta, second.raw_meta) == (None, 2, None, None)
    assert not hasattr(first, "node")


def test_ids_count_the_deliveries_of_a_run_over_all_queues(store: Queue) -> None:
    """[LSE-4]"""
    store.put("other", type="queue")
    store.produce(2)
    store.engine.append("other", [new(1)])
    run = store.engine.core.run
    (first,) = store.jobs()
    (other,) = store.engine.claim("other", "w").jobs
    store.engine.nack(QUEUE, "w", [1])
    (again,) = store.jobs()
    assert [job.lease_id for job in (first, other, again)] == [f"lease_{(run << 40) + n:x}" for n in (1, 2, 3)]
    store.produce(1)
    store.reopen()
    assert store.jobs()[0].lease_id == f"lease_{(store.engine.core.run << 40) + 1:x}"
    assert store.engine.core.run > run


def test_reading_a_queue_does_not_touch_leases(store: Queue) -> None:
    """[QUE-6]"""
    store.produce(3)
    store.claim(1)
    assert store.live() == [1, 2, 3]
    assert (store.counts(), store.claim(9)) == ((2, 1, 0), [2, 3])


def test_a_changed_configuration_is_for_later_claims(store: Queue) -> None:
    """[QUE-7]"""
    store.produce(2)
    now = store.clock.now_ms()
    (first,) = store.jobs()
    store.put_queue(lease_ms=1000)
    (second,) = store.jobs()
    assert (first.deadline, second.deadline) == (now + 30_000, now + 1000)
    store.clock.advance(1001)
    assert store.claim(9) == [2]


# Claim


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (1, 1), (3, 3), (1000, 5), (2**32 - 1, 5)])
def test_max_is_clamped(asked: int, given: int) -> None:
    """04 §3"""
    store = Queue(max_claim=5)
    store.produce(7)
    assert len(store.claim(asked)) == given


@pytest.mark.parametrize(
    "given",
    [
        {"node": None},
        {"node": 5},
        {"node": ""},
        {"node": "x" * 129},
        {"node": "\ud800"},
        {"max": -1},
        {"max": True},
        {"max": 2**32},
        {"lease_ms": -1},
        {"lease_ms": "5"},
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(store: Queue, given: dict[str, Any]) -> None:
    """[CLM-1]"""
    store.produce(1)
    with pytest.raises(CallerError):
        store.engine.claim(QUEUE, **{"node": "w", **given})
    assert store.counts() == (1, 0, 0)


def test_the_topic_is_looked_up_before_the_node_is_judged(store: Queue) -> None:
    """[CLM-1], open point 12"""
    store.put("log")
    with pytest.raises(TopicNotFound):
        store.engine.claim("absent", "")
    with pytest.raises(NotAQueue):
        store.engine.claim("log", "")


def test_what_is_left_after_the_pass_is_told(store: Queue) -> None:
    """[CLM-4, CLM-5]"""
    store.produce(7)
    result = store.engine.claim(QUEUE, "w", 2)
    assert (seqs(result), result.ready) == ([1, 2], 5)
    result = store.engine.claim(QUEUE, "w", 9)
    assert (len(result.jobs), result.ready) == (5, 0)
    result = store.engine.claim(QUEUE, "w", 9)
    assert (result.jobs, result.ready) == ([], 0)


def test_redeliveries_come_first_and_answers_ascend(store: Queue) -> None:
    """[CLM-2, CLM-6, CLM-7]"""
    store.produce(6)
    store.claim(5)
    store.engine.nack(QUEUE, "w", [4, 2])
    jobs = store.jobs(3)
    assert [(job.seq, job.deliveries) for job in jobs] == [(2, 2), (4, 2), (6, 1)]


def test_what_has_died_is_passed_over(store: Queue) -> None:
    """[CLM-2]"""
    store.produce(4)
    store.claim(1)
    store.engine.nack(QUEUE, "w", [1])
    store.engine.delete(QUEUE, seqs=[1, 3])
    assert store.claim(9) == [2, 4]


def test_an_expired_job_is_never_claimed() -> None:
    """[TTL-2, TTL-3]"""
    store = Queue(config={"ttl_ms": 1000})
    store.produce(2)
    store.claim(1)
    store.clock.advance(600)
    store.produce(1)
    store.clock.advance(500)
    assert store.claim(9) == [3]
    assert store.counts() == (0, 1, 0)


def test_evicted_jobs_are_never_claimed() -> None:
    """[CAP-2, QOB-3]"""
    store = Queue(config={"cap_records": 3})
    store.produce(3)
    assert store.claim(2) == [1, 2]
    store.produce(2)
    assert store.counts() == (3, 0, 0)
    assert store.claim(9) == [3, 4, 5]


def test_a_claim_is_bounded_in_bytes() -> None:
    """[R-7]: a thousand jobs of a megabyte are no answer; the rest stays for the next claim."""
    store = Queue()
    store.engine.append(QUEUE, [new("x" * 1_000_000) for _ in range(12)])
    assert store.claim(99) == list(range(1, 10))
    assert store.counts() == (3, 9, 0)
    assert store.claim(99) == [10, 11, 12]


# Windows


@pytest.fixture
def windowed() -> Queue:
    return Queue(config={"claim_jitter_ms": 200})


def pass_ms(store: Queue, ms: int) -> None:
    store.clock.advance(ms)
    store.engine.tick()


def test_without_a_window_a_claim_is_served_at_once(store: Queue) -> None:
    """[COH-1]"""
    store.produce(2)
    assert store.begin_claim().seqs == [1]


def test_a_cohort_is_served_when_its_window_ends(windowed: Queue) -> None:
    """[COH-2, COH-4, COH-6]"""
    store = windowed
    store.produce(5)
    early = store.begin_claim("a", 9, 1000)
    pass_ms(store, 199)
    late = store.begin_claim("b", 9, 2000)
    assert early.is_waiting
    assert late.is_waiting
    pass_ms(store, 1)
    assert (early.seqs, late.seqs) == ([1, 3, 5], [2, 4])
    now = store.clock.now_ms()
    deadlines = [waiting.outcomes[0].jobs[0].deadline for waiting in (early, late)]
    assert deadlines == [now + 1000, now + 2000]
    store.produce(1)
    third = store.begin_claim("c")
    pass_ms(store, 199)
    assert third.is_waiting
    pass_ms(store, 1)
    assert third.seqs == [6]


@pytest.mark.parametrize(
    ("count", "wants", "shares"), [(18, [9, 9, 9], [6, 6, 6]), (9, [2, 100], [2, 7]), (50, [10] * 10, [5] * 10)]
)
def test_a_cohort_shares_evenly(windowed: Queue, count: int, wants: list[int], shares: list[int]) -> None:
    """[COH-3]"""
    windowed.produce(count)
    claims = [windowed.begin_claim(f"w{n}", want) for n, want in enumerate(wants)]
    pass_ms(windowed, 200)
    assert [len(one.seqs) for one in claims] == shares
    assert sorted(seq for one in claims for seq in one.seqs) == list(range(1, count + 1))


def test_who_left_before_the_pass_gets_nothing(windowed: Queue) -> None:
    """[COH-5]"""
    windowed.produce(2)
    gone, there = windowed.begin_claim("a", 9), windowed.begin_claim("b", 9)
    gone.claimer.cancel()
    pass_ms(windowed, 200)
    assert (gone.outcomes, there.seqs) == ([], [1, 2])


def test_a_pass_that_nobody_waits_for_any_more_is_over_at_once(windowed: Queue) -> None:
    """[COH-5] Everybody left in the window, and the next one gets what is there."""
    windowed.produce(2)
    gone = windowed.begin_claim("a", 9)
    gone.claimer.cancel()
    pass_ms(windowed, 200)
    there = windowed.begin_claim("b", 9)
    pass_ms(windowed, 200)
    assert (gone.outcomes, there.seqs) == ([], [1, 2])


def test_a_topic_that_went_in_the_window_is_not_found(windowed: Queue) -> None:
    """[COH-5]"""
    windowed.produce(1)
    waiting = [windowed.begin_claim(), windowed.begin_claim()]
    windowed.engine.delete_topic(QUEUE)
    pass_ms(windowed, 200)
    assert [type(one.outcomes[0]) for one in waiting] == [TopicNotFound, TopicNotFound]


def test_a_topic_that_came_back_as_a_log_is_no_queue(windowed: Queue) -> None:
    """[COH-5]"""
    waiting = windowed.begin_claim()
    windowed.engine.delete_topic(QUEUE)
    windowed.put(QUEUE)
    pass_ms(windowed, 200)
    assert isinstance(waiting.outcomes[0], NotAQueue)


def test_waiting_claims_are_served_when_the_engine_ends(windowed: Queue) -> None:
    """[API-5]"""
    windowed.produce(1)
    waiting = windowed.begin_claim()
    windowed.engine.close()
    assert waiting.seqs == [1]


def test_passes_wait_for_each_other_in_turn() -> None:
    """[A-1]: the first one waits for its retention to be logged."""
    store = Queue(config={"ttl_ms": 100})
    store.produce(1)
    store.clock.advance(101)
    store.produce(2)
    with store.engine._owner:
        outcomes: list[Any] = []
        for node in ("a", "b", "c"):
            queue.claim(store.engine.core, QUEUE, queue.Claim(node, 1, None), outcomes.append)
        assert outcomes == []
    assert [seqs(one) for one in outcomes] == [[2], [3], []]


def test_a_large_claim_is_dealt_in_slices_and_nobody_comes_between(store: Queue) -> None:
    """[A-1, P-10, COH-4]: acks may, another pass may not."""
    store.produce(310)
    first = store.claim(5, "x")
    with store.engine._owner:
        large, small = store.begin_claim("a", 300), store.begin_claim("b", 9)
        assert large.is_waiting
        acked: list[Any] = []
        queue.ack(store.engine.core, QUEUE, queue.Ask("x", tuple(first), (None,) * 5), acked.append)
    assert (large.seqs, small.seqs) == (list(range(6, 306)), list(range(306, 311)))
    assert {job.deadline for job in large.outcomes[0].jobs} == {store.clock.now_ms() + 30_000}
    assert (acked[0].acked, store.counts()) == (5, (0, 305, 0))


def test_a_topic_that_goes_in_the_middle_of_a_claim_is_not_found(store: Queue) -> None:
    """[A-1]: after a wait it is looked at again."""
    store.produce(400)
    with store.engine._owner:
        waiting, next_one = store.begin_claim("a", 400), store.begin_claim("b", 400)
        lifecycle.delete(store.engine.core, QUEUE, lambda outcome: None)
    assert [type(one.outcomes[0]) for one in (waiting, next_one)] == [TopicNotFound, TopicNotFound]


# Ack


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_an_acked_job_is_gone_for_good_and_silently(durability: str) -> None:
    """[ACK-2, ACK-6, TMB-3]"""
    store = Queue(config={"durability": durability})
    store.produce(6)
    store.claim(4)
    assert store.engine.ack(QUEUE, "w", [1, 2]) == AckResult(2, [], 2, 2)
    assert (store.live(), store.claim(9)) == ([3, 4, 5, 6], [5, 6])
    assert store.engine.read(QUEUE).tombstone is None
    assert store.engine.state(QUEUE).earliest_seq == 3


def test_what_nobody_holds_is_skipped(store: Queue) -> None:
    """[ACK-3, LSE-7]: never claimed, acked, expired, somebody else's, repeated, unknown."""
    store.produce(6)
    store.claim(1, "w", 1000)
    store.clock.advance(1001)
    store.claim(2, "w", 60_000)
    store.claim(2, "v", 60_000)
    assert store.engine.ack(QUEUE, "w", [2, 6, 3, 2, 99, 1, U64_MAX]) == AckResult(2, [6, 3, 2, 99, U64_MAX], 2, 2)
    assert store.engine.ack(QUEUE, "w", [1, 2]).skipped == [1, 2]
    assert store.live() == [3, 4, 5, 6]


def test_a_late_ack_is_skipped_though_nobody_claimed_the_job(store: Queue) -> None:
    """[LSE-3], open point 1"""
    store.produce(1)
    (job,) = store.jobs(lease_ms=100)
    store.clock.advance(101)
    for call in ("ack", "nack"):
        assert getattr(store.engine, call)(QUEUE, "w", [1], [job.lease_id]).skipped == [1]
    assert store.engine.extend(QUEUE, "w", [1], [job.lease_id], lease_ms=1000).skipped == [1]
    assert store.counts() == (1, 0, 0)


def test_an_ack_on_the_deadline_counts(store: Queue) -> None:
    """[LSE-2]"""
    store.produce(1)
    store.claim(lease_ms=100)
    store.clock.advance(100)
    assert store.engine.ack(QUEUE, "w", [1]).acked == 1


def test_an_old_token_does_not_ack_a_newer_lease_of_the_same_node(store: Queue) -> None:
    """[LSE-8], T12: a worker that was paused beyond its lease."""
    store.produce(1)
    (old,) = store.jobs(lease_ms=1000)
    store.clock.advance(31_000)
    (new_one,) = store.jobs(lease_ms=60_000)
    for call in ("ack", "nack"):
        result = getattr(store.engine, call)(QUEUE, "w", [1], [old.lease_id])
        assert (result.skipped, result.in_flight) == ([1], 1)
    assert store.engine.extend(QUEUE, "w", [1], [old.lease_id], lease_ms=100) == ExtendResult(0, [1], {})
    assert store.engine.ack(QUEUE, "w", [1], [new_one.lease_id]).acked == 1


def test_an_empty_token_fences_nothing(store: Queue) -> None:
    """[LSE-8]"""
    store.produce(2)
    jobs = store.jobs(2)
    assert store.engine.ack(QUEUE, "w", [1, 2], ["", jobs[1].lease_id]).acked == 2


@pytest.mark.parametrize(
    "given",
    [
        {"node": ""},
        {"node": None},
        {"seqs": None},
        {"seqs": "12"},
        {"seqs": [-1]},
        {"seqs": [True]},
        {"seqs": [2**64]},
        {"lease_ids": ["lease_1", "lease_2"]},
        {"lease_ids": ["1"]},
        {"lease_ids": ["lease_"]},
        {"lease_ids": ["lease_xyz"]},
        {"lease_ids": ["lease_1 "]},
        {"lease_ids": ["lease_1 lease_2"]},
        {"lease_ids": ["lease_1_0"]},
        {"lease_ids": [5]},
        {"lease_ids": "lease_1"},
    ],
)
@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_a_call_that_makes_no_sense_is_refused(store: Queue, call: str, given: dict[str, Any]) -> None:
    """[ACK-1, LSE-7, LSE-8]"""
    store.produce(1)
    store.claim()
    more = {"lease_ms": 100} if call == "extend" else {}
    with pytest.raises(CallerError):
        getattr(store.engine, call)(QUEUE, **{"node": "w", "seqs": [1], **more, **given})
    assert store.counts() == (0, 1, 0)


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_the_checks_come_in_order(store: Queue, call: str) -> None:
    """[ACK-1]: token, node, number of seqs, number of tokens, topic, type."""
    store = Queue(max_claim=2)
    store.put("log")
    more = {"lease_ms": 100} if call == "extend" else {}
    verb = getattr(store.engine, call)
    with pytest.raises(CallerError, match="lease_ids must hold"):
        verb("absent", "", [1, 2, 3], ["nonsense"], **more)
    with pytest.raises(CallerError, match="node must not be empty"):
        verb("absent", "", [1, 2, 3], ["lease_1"], **more)
    with pytest.raises(BatchTooLarge) as refused:
        verb("absent", "w", [1, 2, 3], ["lease_1"], **more)
    assert (refused.value.count, refused.value.max) == (3, 2)
    with pytest.raises(CallerError, match="1 lease_ids for 2 seqs"):
        verb("absent", "w", [1, 2], ["lease_1"], **more)
    with pytest.raises(TopicNotFound):
        verb("absent", "w", [1, 2], **more)
    with pytest.raises(NotAQueue):
        verb("log", "w", [1, 2], **more)


def test_empty_seqs_do_nothing(store: Queue) -> None:
    """[ACK-1], open point 4"""
    store.produce(1)
    assert store.engine.ack(QUEUE, "w", []) == AckResult(0, [], 1, 0)
    assert store.engine.nack(QUEUE, "w", []) == NackResult(0, [], 1, 0)
    assert store.engine.extend(QUEUE, "w", [], lease_ms=100) == ExtendResult(0, [], {})


def test_an_ack_is_one_delete_of_its_own_kind(store: Queue) -> None:
    """[S-273, A-20]: without a delete number."""
    store.produce(3)
    store.claim(3)
    frames = store.engine.metrics()["topics_wal_frames_total"]
    store.engine.ack(QUEUE, "w", [1, 2, 3])
    assert store.engine.metrics()["topics_wal_frames_total"] == frames + 1
    assert store.engine.core.names[QUEUE].delete_number == 0


def test_an_fsync_ack_is_synced_before_its_answer() -> None:
    """[ACK-2, DUR-10]"""
    for durability, syncs in (("fsync", 1), ("disk", 0), ("memory", 0), ("ephemeral", 0)):
        store = Queue(config={"durability": durability})
        store.produce(2)
        store.claim(2)
        before = store.engine.metrics()["topics_wal_fsyncs_total"]
        store.engine.ack(QUEUE, "w", [1, 2])
        assert store.engine.metrics()["topics_wal_fsyncs_total"] == before + syncs, durability


def test_a_queue_may_be_filled_and_drained_again_and_again(store: Queue) -> None:
    for turn in range(5):
        store.produce(7)
        assert store.claim(9) == list(range(turn * 7 + 1, turn * 7 + 8))
        store.engine.ack(QUEUE, "w", store.live())
        assert store.counts() == (0, 0, 0)


# Nack


def test_a_nacked_job_is_to_be_had_at_once(store: Queue) -> None:
    """[NAK-1, NAK-2, NAK-3]"""
    store.produce(3)
    store.claim(2)
    assert store.engine.nack(QUEUE, "w", [2, 3, 2]) == NackResult(1, [3, 2], 2, 1)
    (job,) = store.jobs()
    assert (job.seq, job.deliveries) == (2, 2)


def test_a_delayed_job_counts_nowhere_until_its_time(store: Queue) -> None:
    """[NAK-1, NAK-3, QOB-1]"""
    store.produce(2)
    store.claim(1)
    assert store.engine.nack(QUEUE, "w", [1], delay_ms=500) == NackResult(1, [], 1, 0)
    assert store.counts() == (1, 0, 1)
    store.clock.advance(499)
    assert (store.claim(9), store.counts()) == ([2], (0, 1, 1))
    store.clock.advance(1)
    assert store.counts() == (1, 1, 0)
    assert store.claim(9) == [1]


def test_a_delay_is_at_most_a_day(store: Queue) -> None:
    """04 §5"""
    store.produce(1)
    store.claim()
    store.engine.nack(QUEUE, "w", [1], delay_ms=U64_MAX)
    assert store.engine.leases(QUEUE).delayed == [DelayedJob(1, store.clock.now_ms() + 86_400_000)]


# Extend


def test_extending_sets_deadlines(store: Queue) -> None:
    """[EXT-1, EXT-2]"""
    store.produce(2)
    jobs = store.jobs(2, lease_ms=1000)
    store.clock.advance(900)
    until = store.clock.now_ms() + 5000
    assert store.engine.extend(QUEUE, "w", [1, 7], lease_ms=5000) == ExtendResult(1, [7], {1: until})
    store.clock.advance(200)
    assert (store.counts(), store.engine.ack(QUEUE, "w", [1], [jobs[0].lease_id]).acked) == ((1, 1, 0), 1)


@pytest.mark.parametrize(("asked", "effective"), [(0, 100), (U64_MAX, 86_400_000)])
def test_an_extension_is_clamped(store: Queue, asked: int, effective: int) -> None:
    """04 §6"""
    store.produce(1)
    store.claim()
    result = store.engine.extend(QUEUE, "w", [1], lease_ms=asked)
    assert result.deadlines == {1: store.clock.now_ms() + effective}


# What is shown


def test_counters_are_exact_at_every_instant(store: Queue) -> None:
    """[QOB-1]"""
    store.produce(5)
    assert store.counts() == (5, 0, 0)
    store.claim(3, lease_ms=1000)
    assert store.counts() == (2, 3, 0)
    store.engine.nack(QUEUE, "w", [2], delay_ms=500)
    assert store.counts() == (2, 2, 1)
    store.clock.advance(500)
    assert store.counts() == (3, 2, 0)
    store.clock.advance(501)
    assert store.counts() == (5, 0, 0)


@pytest.mark.parametrize("how", ["delete", "before", "match", "cap", "ttl"])
def test_a_job_removed_under_its_lease_stays_acknowledgeable(how: str) -> None:
    """[QOB-3]"""
    store = Queue(config={"ttl_ms": 60_000 if how == "ttl" else 0, "cap_records": 3 if how == "cap" else 0})
    store.produce(3, tag="x")
    store.claim(3, lease_ms=100_000)
    if how == "delete":
        store.engine.delete(QUEUE, seqs=[1, 2, 3])
    elif how == "before":
        store.engine.delete(QUEUE, before_seq=4)
    elif how == "match":
        store.engine.delete(QUEUE, match="x")
    elif how == "cap":
        store.produce(3, start=10)
        store.engine.delete(QUEUE, seqs=[4, 5, 6])
    else:
        store.clock.advance(60_001)
    assert (store.counts(), store.engine.leases(QUEUE).leases) == ((0, 0, 0), [])
    assert store.engine.ack(QUEUE, "w", [1]) == AckResult(1, [], 0, 0)
    assert store.engine.nack(QUEUE, "w", [2]) == NackResult(1, [], 0, 0)
    assert store.engine.extend(QUEUE, "w", [3], lease_ms=1000).extended == 1
    store.clock.advance(200_000)
    assert (store.counts(), store.claim(9), store.live()) == ((0, 0, 0), [], [])


def test_leases_and_delays_are_listed_by_seq(store: Queue) -> None:
    """[QOB-4]"""
    store.produce(6)
    jobs = store.jobs(5, lease_ms=1000)
    store.engine.nack(QUEUE, "w", [2, 4], delay_ms=700)
    now = store.clock.now_ms()
    held = [HeldLease(job.seq, "w", job.lease_id, now + 1000, 1) for job in jobs if job.seq in (1, 3, 5)]
    page = store.engine.leases(QUEUE)
    assert (page.leases, page.next_cursor) == (held, None)
    assert page.delayed == [DelayedJob(2, now + 700), DelayedJob(4, now + 700)]
    first = store.engine.leases(QUEUE, page_size=3)
    assert ([one.seq for one in first.leases], [one.seq for one in first.delayed], first.next_cursor) == (
        [1, 3],
        [2],
        3,
    )
    second = store.engine.leases(QUEUE, 3, page_size=3)
    assert ([one.seq for one in second.leases], [one.seq for one in second.delayed]) == ([5], [4])
    assert second.next_cursor is None


def test_a_log_has_no_queue_in_its_state(store: Queue) -> None:
    """[TOP-6]"""
    store.put("log")
    assert store.engine.state("log").queue is None
    assert store.engine.state(QUEUE).queue == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 0}


def test_metrics_tell_of_queues(store: Queue) -> None:
    """02 §7.3"""
    store.put("log")
    store.put("other", type="queue")
    store.produce(5)
    store.claim(2, lease_ms=1000)
    sweep = store.engine.begin_metrics()
    while not sweep.step():
        pass
    assert sweep.found.labelled["topics_topic_queue_ready"] == {QUEUE: 3, "other": 0}
    assert sweep.found.labelled["topics_topic_queue_in_flight"] == {QUEUE: 2, "other": 0}
    found = store.engine.metrics()
    assert (found["topics_queue_topics"], found["topics_queue_leases_in_flight"]) == (2, 2)
    store.clock.advance(1001)
    assert store.engine.metrics()["topics_queue_leases_in_flight"] == 0


def test_a_recreated_queue_knows_no_leases(store: Queue) -> None:
    """[EPO-1, NAME-9]"""
    store.produce(2)
    store.claim(2)
    store.engine.delete_topic(QUEUE)
    store.put_queue()
    store.produce(1)
    assert store.counts() == (1, 0, 0)
    assert store.engine.ack(QUEUE, "w", [1]).skipped == [1]
    assert store.jobs()[0].deliveries == 1


def test_idle_queues_have_no_timer_and_no_state() -> None:
    """10 000 queues without jobs cost nothing."""
    engine = Engine.open(None)
    try:
        for n in range(300):
            engine.put_topic(f"q{n}", {"type": "queue", "durability": "ephemeral"})
        assert engine.core.alarms.next_ns() is None
        assert all(topic.leases is None and topic.claims is None for topic in engine.core.topics.values())
    finally:
        engine.close()


def test_an_expired_lease_needs_no_alarm(store: Queue) -> None:
    """[LSE-2]"""
    store.produce(1)
    store.claim(lease_ms=100)
    assert store.engine.core.alarms.next_ns() is None


def test_the_same_as_coroutines() -> None:
    async def run(engine: Engine) -> None:
        aio = engine.aio
        await aio.put_topic(QUEUE, {"type": "queue"})
        await aio.append(QUEUE, [new(1), new(2), new(3)])
        result = await aio.claim(QUEUE, "w", 3)
        assert seqs(result) == [1, 2, 3]
        assert (await aio.ack(QUEUE, "w", [1], [result.jobs[0].lease_id])).acked == 1
        assert (await aio.nack(QUEUE, "w", [2], delay_ms=60_000)).nacked == 1
        assert (await aio.extend(QUEUE, "w", [3], lease_ms=60_000)).extended == 1
        page = await aio.leases(QUEUE)
        assert ([one.seq for one in page.leases], [one.seq for one in page.delayed]) == ([3], [2])

    with Engine.open(None) as engine:
        asyncio.run(run(engine))


def test_a_window_ends_by_itself_in_a_running_engine() -> None:
    """[COH-2]"""
    with Engine.open(None) as engine:
        engine.put_topic(QUEUE, {"type": "queue", "claim_jitter_ms": 20})
        engine.append(QUEUE, [new(1)])
        assert seqs(engine.claim(QUEUE, "w")) == [1]


def test_a_waiting_claim_is_answered_once(windowed: Queue) -> None:
    """[COH-2]"""
    windowed.produce(1)
    waiting: Waiting = windowed.begin_claim()
    windowed.engine.end_waits()
    pass_ms(windowed, 1000)
    assert waiting.seqs == [1]


@pytest.mark.parametrize("jitter", [0, 5])
def test_threads_share_the_jobs_and_do_each_of_them_once(tmp_path: Path, jitter: int) -> None:
    """[LSE-5, INV-14]: no lease expires here, so at least once is exactly once."""
    with kit.open_real(tmp_path / "store") as engine:
        engine.put_topic(QUEUE, {"type": "queue", "claim_jitter_ms": jitter, "leases_durable": bool(jitter)})
        engine.append(QUEUE, [new(n) for n in range(400)])

        def drain(node: str) -> list[int]:
            done: list[int] = []
            while jobs := engine.claim(QUEUE, node, 9).jobs:
                result = engine.ack(QUEUE, node, [job.seq for job in jobs], [job.lease_id for job in jobs])
                assert result.acked == len(jobs)
                done += [job.data for job in jobs]
            return done

        shares = kit.finish([kit.spawn(partial(drain, f"w{n}")) for n in range(6)])
        assert sorted(job for share in shares for job in share) == list(range(400))
        assert engine.state(QUEUE).queue == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 0}
