"""What of leases, counters and acks survives a stop, and what a failing disk does to them (04 §7, C12)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.kit import STOPS, after_every_stop, everything
from tests.unit.engine.kit_queue import QUEUE, Queue
from tests.unit.engine.test_tiering import flip_stub
from topics.engine import queue
from topics.engine.lease import ROOM
from topics.errors import CommitFailed, ShardReadOnly, TopicsError
from topics.model import DelayedJob

CLASSES = ("memory", "disk", "fsync")
KEPT = (*STOPS, "trimmed")


def stop(store: Queue, how: str) -> None:
    """Stop and start; `trimmed`: only a snapshot is left of everything before."""
    if how == "trimmed":
        store.trim()
        store.kill()
    else:
        store.stop(how)


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("how", KEPT)
def test_durable_leases_are_back_with_everything(durability: str, how: str) -> None:
    """[QRC-3]: node, id, absolute deadline, deliveries; released ones keep their counters."""
    store = Queue(config={"durability": durability, "leases_durable": True, "lease_ms": 3_600_000})
    store.produce(6)
    store.engine.checkpoint(full=True)
    store.claim(4, "a")
    store.engine.nack(QUEUE, "a", [2])
    store.claim(1, "b")
    store.engine.nack(QUEUE, "a", [3])
    store.engine.extend(QUEUE, "a", [4], lease_ms=7_200_000)
    before = store.engine.leases(QUEUE)
    assert [(one.seq, one.node, one.deliveries) for one in before.leases] == [(1, "a", 1), (2, "b", 2), (4, "a", 1)]
    stop(store, how)
    assert store.engine.leases(QUEUE) == before
    assert store.counts() == (3, 3, 0)
    jobs = store.jobs(9)
    assert [(job.seq, job.deliveries) for job in jobs] == [(3, 2), (5, 1), (6, 1)]


@pytest.mark.parametrize("done", [ROOM - 1, ROOM, ROOM + 1])
def test_a_recovered_lease_goes_with_its_job_however_many_were_done_before_it(done: int) -> None:
    """[QRC-3, QOB-1, QOB-3]: what a delete by seq passes is neither in flight nor owed to `ready`."""
    store = Queue(config={"leases_durable": True, "lease_ms": 3_600_000})
    store.produce(done + 2)
    for seq in range(1, done + 1):
        assert store.claim() == [seq]
        assert store.engine.ack(QUEUE, "w", [seq]).acked == 1
    store.claim()
    store.kill()
    assert store.counts() == (1, 1, 0)
    store.engine.delete(QUEUE, before_seq=done + 2)
    assert store.counts() == (1, 0, 0)


@pytest.mark.parametrize("how", KEPT)
def test_other_leases_are_forgotten_with_their_counters(how: str) -> None:
    """[QRC-2, QRC-6]"""
    store = Queue()
    store.produce(4)
    (old, *_) = store.jobs(3, lease_ms=3_600_000)
    store.engine.nack(QUEUE, "w", [2])
    store.engine.nack(QUEUE, "w", [3], delay_ms=3_600_000)
    stop(store, how)
    assert store.counts() == (4, 0, 0)
    assert store.engine.ack(QUEUE, "w", [1], [old.lease_id]).skipped == [1]
    assert [(job.seq, job.deliveries) for job in store.jobs(9)] == [(1, 1), (2, 1), (3, 1), (4, 1)]


@after_every_stop
def test_an_expired_lease_is_reclaimed_by_the_first_call_after_a_restart(stop: str) -> None:
    """[QRC-3, QRC-8]: deadlines are absolute, and what came back is handed out first."""
    store = Queue(config={"leases_durable": True, "lease_ms": 5000})
    store.produce(3)
    store.claim(2)
    store.clock.advance(5001)
    store.stop(stop)
    assert store.counts() == (3, 0, 0)
    assert [(job.seq, job.deliveries) for job in store.jobs(9)] == [(1, 2), (2, 2), (3, 1)]


@after_every_stop
def test_tokens_of_before_a_restart_still_fence(stop: str) -> None:
    """[QRC-3, LSE-8]"""
    store = Queue(config={"leases_durable": True})
    store.produce(2)
    old = store.jobs(1, "a", 1000)[0]
    store.clock.advance(1001)
    current = store.jobs(1, "a", 60_000)[0]
    store.stop(stop)
    assert store.engine.ack(QUEUE, "a", [1], [old.lease_id]).skipped == [1]
    assert store.engine.ack(QUEUE, "a", [1], [current.lease_id]).acked == 1


@after_every_stop
def test_an_ephemeral_queue_keeps_no_leases(stop: str) -> None:
    """[QRC-3]"""
    store = Queue(config={"durability": "ephemeral", "leases_durable": True})
    store.produce(3)
    store.claim(2)
    store.stop(stop)
    assert store.counts() == (0, 0, 0)
    store.produce(1)
    assert store.jobs(9)[0].deliveries == 1


@pytest.mark.parametrize("durability", CLASSES)
@after_every_stop
def test_an_acked_job_stays_gone_as_far_as_its_class_says(durability: str, stop: str) -> None:
    """[QRC-7, ACK-2]"""
    store = Queue(config={"durability": durability})
    store.produce(4)
    store.engine.checkpoint(full=True)
    store.claim(4)
    store.engine.ack(QUEUE, "w", [1, 3])
    store.stop(stop)
    if stop == "crashed" and durability != "fsync":
        assert store.claim(9) == [1, 2, 3, 4], "nothing of it was synced"
    else:
        assert store.claim(9) == [2, 4]


@after_every_stop
def test_a_dead_lease_is_back_and_its_job_is_not(stop: str) -> None:
    """[QOB-3, QRC-3]"""
    store = Queue(config={"leases_durable": True})
    store.produce(2)
    store.claim(2)
    store.engine.delete(QUEUE, seqs=[1])
    store.stop(stop)
    assert store.counts() == (0, 1, 0)
    assert store.engine.ack(QUEUE, "w", [1, 2]).acked == 2
    store.stop(stop)
    assert (store.counts(), store.engine.ack(QUEUE, "w", [1, 2]).skipped) == ((0, 0, 0), [1, 2])


def test_a_delay_may_survive_a_restart() -> None:
    """[QRC-6]"""
    store = Queue(config={"leases_durable": True})
    store.produce(1)
    store.claim()
    store.engine.nack(QUEUE, "w", [1], delay_ms=5000)
    store.kill()
    assert store.engine.leases(QUEUE).delayed == [DelayedJob(1, store.clock.now_ms() + 5000)]


def test_leases_that_were_not_kept_do_not_come_back_when_they_are_kept_again() -> None:
    """[QUE-7, QRC-4]: what happened meanwhile is not in the log."""
    store = Queue(config={"leases_durable": True})
    store.produce(2)
    old = store.jobs(1, "a")[0]
    store.put_queue(leases_durable=False)
    store.engine.nack(QUEUE, "a", [1])
    store.claim(1, "b")
    store.put_queue(leases_durable=True)
    kept = store.jobs(1, "c")[0]
    store.kill()
    assert [one.seq for one in store.engine.leases(QUEUE).leases] == [2]
    assert store.engine.ack(QUEUE, "a", [1], [old.lease_id]).skipped == [1]
    assert store.engine.ack(QUEUE, "c", [2], [kept.lease_id]).acked == 1


def test_leases_survive_any_number_of_snapshots_and_stops() -> None:
    """[QRC-3]: checkpoints carry them."""
    store = Queue(config={"leases_durable": True, "lease_ms": 86_400_000})
    store.produce(9)
    for turn in range(1, 7):
        store.claim(1, f"w{turn}")
        (store.engine.snapshot if turn % 2 else store.trim)()
        stop(store, STOPS[turn % 3])
        assert [(one.seq, one.node) for one in store.engine.leases(QUEUE).leases] == [
            (seq, f"w{seq}") for seq in range(1, turn + 1)
        ]


def test_lease_events_are_synced_before_the_answer() -> None:
    """[QRC-3]: one sync for all events of a call; none where leases are not kept."""
    for config, syncs in (
        ({"leases_durable": True}, 1),
        ({}, 0),
        ({"durability": "ephemeral", "leases_durable": True}, 0),
    ):
        store = Queue(config=config)
        store.produce(8)
        for call in (
            lambda store=store: store.claim(4),
            lambda store=store: store.engine.extend(QUEUE, "w", [1, 2, 3], lease_ms=5000),
            lambda store=store: store.engine.nack(QUEUE, "w", [1, 2]),
        ):
            before = store.engine.metrics()["topics_wal_fsyncs_total"]
            call()
            assert store.engine.metrics()["topics_wal_fsyncs_total"] == before + syncs, config


def test_nobody_is_told_before_the_sync() -> None:
    """[QRC-3]"""
    store = Queue(config={"leases_durable": True})
    store.produce(2)
    told: list[Any] = []
    at_sync: list[int] = []

    def before(call: Any) -> None:
        if call[0] in ("fdatasync", "fsync"):
            at_sync.append(len(told))

    store.sim.before = before
    with store.engine._owner:
        queue.claim(store.engine.core, QUEUE, queue.Claim("w", 2, None), told.append)
    assert (at_sync, len(told)) == ([0], 1)
    with store.engine._owner:
        queue.nack(store.engine.core, QUEUE, queue.Ask("w", (1,), (None,)), 0, told.append)
    with store.engine._owner:
        queue.extend(store.engine.core, QUEUE, queue.Ask("w", (2,), (None,)), 5000, told.append)
    with store.engine._owner:
        queue.ack(store.engine.core, QUEUE, queue.Ask("w", (2,), (None,)), told.append)
    assert (at_sync, len(told)) == ([0, 1, 2, 3], 4)


# A disk that fails


def test_a_claim_whose_event_cannot_be_logged_is_a_claim() -> None:
    """[QRC-5]: after a restart the job is as if it had not been delivered."""
    store = Queue(config={"leases_durable": True})
    store.produce(3)
    store.claim(1)
    store.fail_log_sync()
    jobs = store.jobs(1)
    assert [(job.seq, job.deliveries) for job in jobs] == [(2, 1)]
    assert store.claim(1) == [3], "the log takes nothing more, the queue goes on"
    assert store.engine.nack(QUEUE, "w", [2]).nacked == 1
    store.mend()
    store.crash()
    assert [(job.seq, job.deliveries) for job in store.jobs(9)] == [(2, 1), (3, 1)]


def test_a_failed_ack_gives_its_jobs_back() -> None:
    """[ACK-5]: 500; the job is to be had again, with its counter."""
    store = Queue()
    store.produce(3)
    store.claim(2)
    store.fail_log_sync()
    with pytest.raises(CommitFailed):
        store.engine.ack(QUEUE, "w", [1, 2])
    assert store.counts() == (3, 0, 0)
    assert [(job.seq, job.deliveries) for job in store.jobs(9)] == [(1, 2), (2, 2), (3, 1)]


def test_an_ack_that_is_refused_leaves_the_lease() -> None:
    """[ACK-5]: nothing was begun; the lease expires as ever, so no job is stranded."""
    store = Queue()
    store.produce(2)
    store.claim(1)
    store.fail_log_sync()
    with pytest.raises(CommitFailed):
        store.engine.append(QUEUE, [{"data": 9}])
    with pytest.raises(ShardReadOnly):
        store.engine.ack(QUEUE, "w", [1])
    assert store.counts() == (1, 1, 0)
    store.clock.advance(30_001)
    assert store.claim(9) == [1, 2]


def test_a_job_that_cannot_be_read_now_is_not_lost() -> None:
    """No job may be stranded, also where the disk fails for a while."""
    store = Queue("sealed", recent_cache_bytes=0)
    store.produce(4)
    store.settle()
    store.claim(1)
    store.fail("pread", times="always")
    with pytest.raises(TopicsError):
        store.claim(9)
    store.mend()
    assert store.counts() == (3, 1, 0)
    assert store.claim(9) == [2, 3, 4]


def test_a_delete_mark_that_fails_leaves_nothing_behind() -> None:
    """[ACK-5]: the delete is committed; its marks are set by the next call, and the job is done then."""
    store = Queue("sealed")
    store.produce(3)
    store.settle()
    store.claim(3)
    topic = store.engine.core.names[QUEUE]
    segments = topic.index.segments
    assert segments is not None
    mark, calls = segments.mark_deleted, [0]

    def fail_once(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(5, "no marks now")
        return mark(*given, **more)

    segments.mark_deleted = fail_once  # type: ignore[method-assign]
    with pytest.raises(TopicsError):
        store.engine.ack(QUEUE, "w", [1, 2])
    assert store.counts() == (0, 1, 0)
    assert (store.claim(9), store.live()) == ([], [3])


# Jobs that a router made


def test_a_claim_sees_what_was_written_to_the_source_before_it() -> None:
    """[CLM-2, FWD-9]"""
    store = Queue()
    store.put("source")
    store.engine.put_router("r", {"source": "source", "dest": QUEUE})
    for n in range(1, 4):
        store.engine.append("source", [{"data": n}])
        assert [job.data for job in store.jobs(9)] == [n]


def test_a_copy_reaches_a_work_stream() -> None:
    """[WRK-3]"""
    store = Queue()
    store.put("source")
    store.engine.put_router("r", {"source": "source", "dest": QUEUE})
    stream = store.work("w", 5)
    store.engine.append("source", [{"data": 1}, {"data": 2}])
    assert stream.take() == [1, 2]


@after_every_stop
def test_leases_and_acks_of_copies_survive_though_the_copies_are_made_again(stop: str) -> None:
    """[QRC-3, RRC-7], C37: neither is in the log by itself."""
    store = Queue(config={"leases_durable": True})
    store.put("source")
    store.engine.put_router("r", {"source": "source", "dest": QUEUE})
    store.engine.append("source", [{"data": n} for n in range(1, 7)])
    store.claim(4, "a", 3_600_000)
    store.engine.ack(QUEUE, "a", [1, 3])
    store.engine.nack(QUEUE, "a", [2])
    before = store.engine.leases(QUEUE)
    for _ in range(2):
        store.stop(stop)
        assert (store.engine.leases(QUEUE), store.counts()) == (before, (3, 1, 0))
    assert [(job.seq, job.data, job.deliveries) for job in store.jobs(9)] == [(2, 2, 2), (5, 5, 1), (6, 6, 1)]
    assert everything(store.engine, QUEUE).gaps == []


# Named histories


@pytest.mark.parametrize("durability", ["ephemeral", *CLASSES])
@pytest.mark.parametrize("how", ["reopened", "killed"])
def test_c12_a_drained_queue_keeps_its_head_and_tells_of_no_loss(durability: str, how: str) -> None:
    """C12: drained before its first checkpoint; then checkpoint, snapshot, trim."""
    store = Queue(config={"durability": durability})
    store.produce(7)
    store.engine.ack(QUEUE, "w", store.claim(9))
    store.engine.checkpoint(full=True)
    store.engine.snapshot()
    store.trim()
    store.stop(how)
    seen = everything(store.engine, QUEUE)
    assert (seen.records, seen.gaps) == ([], [])
    state = store.engine.state(QUEUE)
    assert (state.head_seq, state.earliest_seq, state.count) == (7, 8, 0)
    store.produce(1)
    assert store.claim(9) == [8]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_replaying_any_history_gives_the_leases_that_were_shown(data: st.DataObject) -> None:
    """[QRC-1, QRC-3, S-249]: after every step, a kill shows what was shown; and again."""
    store = Queue(config={"leases_durable": True, "durability": data.draw(st.sampled_from(CLASSES))})
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(
            st.sampled_from(("produce", "claim", "ack", "nack", "extend", "wait", "delete", "snapshot", "kill"))
        )
        seqs = data.draw(st.lists(st.integers(1, 12), max_size=4))
        if step == "produce":
            store.produce(data.draw(st.integers(1, 4)))
        elif step == "claim":
            store.claim(
                data.draw(st.integers(1, 4)), data.draw(st.sampled_from("ab")), data.draw(st.integers(100, 3000))
            )
        elif step in ("ack", "nack"):
            getattr(store.engine, step)(QUEUE, data.draw(st.sampled_from("ab")), seqs)
        elif step == "extend":
            store.engine.extend(QUEUE, data.draw(st.sampled_from("ab")), seqs, lease_ms=2000)
        elif step == "delete":
            store.engine.delete(QUEUE, seqs=seqs)
        elif step == "wait":
            store.pass_time(data.draw(st.integers(1, 2500)))
        elif step == "snapshot":
            store.engine.snapshot()
        else:
            store.kill()
    shown = (store.engine.leases(QUEUE), store.counts(), store.live())
    for _ in range(2):
        store.kill()
        assert (store.engine.leases(QUEUE), store.counts(), store.live()) == shown


def test_jobs_that_are_lost_under_their_leases_count_nowhere_and_starve_nobody() -> None:
    """[QOB-1, WRK-3] An index in the cold tier is found damaged: what it held is no job any more."""
    store = Queue("cold")
    store.produce(6)
    store.settle()
    assert store.claim(3, lease_ms=600_000) == [1, 2, 3]
    flip_stub(store, 0)
    store.engine.read(QUEUE, 0)
    assert store.counts() == (3, 0, 0)
    stream = store.work("x", max=10)
    store.pass_time(1000)
    assert [job.seq for job in stream.jobs] == [4, 5, 6]
    assert store.engine.ack(QUEUE, "w", [1]).ready == 0


def test_jobs_that_come_back_with_their_index_are_to_be_had_again() -> None:
    """[CLM-2, S-316] Also where a claim has passed them over meanwhile."""
    store = Queue("cold")
    store.produce(9)
    store.settle()
    flip_stub(store, 0)
    assert store.claim(20) == [4, 5, 6, 7, 8, 9]
    for _ in range(3):
        store.relocate()
    assert store.counts() == (3, 6, 0)
    assert store.claim(20) == [1, 2, 3]
