"""Work streams, without a socket: slots, refills, what wakes them, and what ends them (04 §8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.engine.kit_queue import QUEUE, Queue
from topics.engine import deadletter
from topics.engine.cold import RETRY_NS
from topics.errors import CallerError, NotAQueue, TopicNotFound, WalFull


@pytest.fixture
def store() -> Queue:
    return Queue(config={"lease_ms": 10_000})


def pass_ms(store: Queue, ms: int) -> None:
    store.clock.advance(ms)
    store.engine.tick()


def test_a_stream_is_refused_before_it_opens(store: Queue) -> None:
    """[WRK-1]: node, topic, type."""
    store.engine.delete_topic(QUEUE)
    for node in ("", "x" * 129):
        assert isinstance(store.work(node).opened[0], CallerError)
    assert isinstance(store.work().opened[0], TopicNotFound)
    store.put(QUEUE)
    assert isinstance(store.work().opened[0], NotAQueue)


def test_a_stream_is_given_what_is_there_and_what_comes(store: Queue) -> None:
    """[WRK-3]: new jobs at once, never more than `max` leases."""
    store.produce(2)
    stream = store.work(max=3)
    assert stream.take() == [1, 2]
    store.produce(3)
    assert stream.take() == [3]
    assert store.counts() == (2, 3, 0)


@pytest.mark.parametrize("how", ["ack", "nack", "expire", "delete"])
def test_a_freed_slot_is_filled(store: Queue, how: str) -> None:
    """[WRK-3]"""
    store.produce(4)
    stream = store.work(max=2)
    assert stream.take() == [1, 2]
    if how == "ack":
        store.engine.ack(QUEUE, "w", [1])
        assert stream.take() == [3]
    elif how == "nack":
        store.engine.nack(QUEUE, "w", [1], delay_ms=1000)
        assert stream.take() == [3]
    elif how == "expire":
        pass_ms(store, 10_001)
        assert stream.take() == [1, 2]
    else:
        store.engine.delete(QUEUE, seqs=[1])
        store.engine.ack(QUEUE, "w", [1])
        assert stream.take() == [3]


def test_jobs_that_others_give_back_reach_a_stream(store: Queue) -> None:
    """[WRK-3]: by nack, expiry, an elapsed delay and a disconnect."""
    store.produce(4)
    store.claim(3, "other", 500)
    gone = store.work("gone", 1)
    stream = store.work("w", 9)
    assert (gone.take(), stream.take()) == ([4], [])
    store.engine.nack(QUEUE, "other", [1])
    assert stream.take() == [1]
    store.engine.nack(QUEUE, "other", [2], delay_ms=200)
    assert stream.take() == []
    pass_ms(store, 200)
    assert stream.take() == [2]
    pass_ms(store, 301)
    assert stream.take() == [3]
    gone.do("close")
    assert stream.take() == [4]


def test_the_end_of_a_connection_releases_its_own_leases_only(store: Queue) -> None:
    """[WRK-6, WRK-5]"""
    store.produce(6)
    polled = store.claim(1, "w")
    first, second = store.work("w", 2), store.work("w", 2)
    assert (polled, first.take(), second.take()) == ([1], [2, 3], [4, 5])
    store.engine.ack(QUEUE, "w", [2])
    assert first.take() == [6]
    first.do("close")
    assert store.counts() == (2, 3, 0)
    assert [one.seq for one in store.engine.leases(QUEUE).leases] == [1, 4, 5]
    first.do("close")
    jobs = store.jobs(9)
    assert [(job.seq, job.deliveries) for job in jobs] == [(3, 2), (6, 2)]


def test_a_release_is_kept_where_leases_are(store: Queue) -> None:
    """[WRK-6, QRC-3]"""
    store.put_queue(leases_durable=True)
    store.produce(2)
    stream = store.work("w", 2)
    assert stream.take() == [1, 2]
    stream.do("close")
    store.kill()
    assert store.counts() == (2, 0, 0)
    assert [job.deliveries for job in store.jobs(9)] == [2, 2]


def test_a_paused_stream_gets_nothing_until_it_goes_on(store: Queue) -> None:
    store.produce(1)
    stream = store.work(max=9)
    assert stream.take() == [1]
    stream.do("pause")
    store.produce(2)
    assert stream.take() == []
    stream.do("resume")
    assert stream.take() == [2, 3]


def test_a_stream_that_closes_while_its_leases_are_logged_keeps_none() -> None:
    """[WRK-6]"""
    store = Queue(config={"leases_durable": True})
    store.produce(2)
    owner, in_flight = store.engine.core.owner, []

    def close() -> None:
        in_flight.append(len(stream.worker.held))
        stream.worker.close()

    with store.engine._owner:
        stream = store.work("w", 2)
        # The pass comes first, then its events are written, and only then synced: here the connection ends.
        owner.soon(lambda: owner.soon(close))
    assert (in_flight, stream.take(), store.counts()) == ([2], [], (2, 0, 0))


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_deleted_topic_ends_its_streams(store: Queue, comes_back: bool) -> None:
    """[WRK-8]"""
    store.produce(2)
    stream = store.work(max=1)
    store.engine.delete_topic(QUEUE)
    if comes_back:
        store.put_queue()
        store.produce(3)
    assert [type(error) for error in stream.ended] == [TopicNotFound]
    assert stream.take() == [1]
    stream.do("close")
    pass_ms(store, 60_000)
    assert (stream.take(), len(stream.ended)) == ([], 1)


def test_streams_and_pollers_share_a_window_evenly() -> None:
    """[COH-2, COH-3, WRK-3]"""
    store = Queue(config={"claim_jitter_ms": 100})
    stream = store.work("s", 10)
    polls = [store.begin_claim(f"p{n}", 10) for n in range(2)]
    store.produce(15)
    assert stream.take() == []
    pass_ms(store, 100)
    assert (len(stream.take()), [len(one.seqs) for one in polls]) == (5, [5, 5])


def test_streams_share_evenly_without_a_window(store: Queue) -> None:
    """[COH-3]: those that wait are served together."""
    streams = [store.work(f"s{n}", 10) for n in range(3)]
    store.produce(18)
    assert [len(stream.take()) for stream in streams] == [6, 6, 6]


def test_a_stream_moves_dead_letters_and_does_not_spin() -> None:
    """[DLQ-7]: one attempt per pass, also where every move fails."""
    store = Queue(config={"max_deliveries": 1, "dead_letter": "dead", "lease_ms": 1000}, max_topics=1)
    store.produce(1)
    stream = store.work("w", 5)
    assert stream.take() == [1]
    pass_ms(store, 1001)
    assert (stream.take(), store.counts()) == ([], (1, 0, 0))
    assert store.engine.core.alarms.next_ns() is None


def test_a_job_that_comes_while_a_pass_waits_is_delivered_when_that_pass_brings_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[WRK-3]: the stream has a free slot, and nothing else will wake it."""
    store = Queue(config={"max_deliveries": 1, "dead_letter": "dead", "lease_ms": 10_000})
    moves: list[Callable[[], None]] = []
    move = deadletter.move

    def hold(core: Any, topic: Any, due: Sequence[Any], then: Callable[[], None]) -> None:
        if due:
            moves.append(lambda: move(core, topic, due, then))
        else:
            then()

    monkeypatch.setattr(deadletter, "move", hold)
    store.produce(1)
    stream = store.work("w", 1)
    assert stream.take() == [1]
    store.engine.nack(QUEUE, "w", [1])
    store.produce(1, start=2)
    assert (len(moves), stream.take()) == (1, [])
    with store.engine._owner:
        moves.pop()()
    assert stream.take() == [2]


def test_a_poll_that_is_quicker_than_the_alarm_leaves_the_rest_to_streams(store: Queue) -> None:
    """[WRK-3]: it takes one of two jobs whose leases are over."""
    store.produce(2)
    assert store.claim(2, "other", 500) == [1, 2]
    stream = store.work("w", 1)
    store.clock.advance(501)
    assert store.claim(1, "p") == [1]
    store.engine.tick()
    assert stream.take() == [2]


@pytest.mark.parametrize("trouble", ["an unreadable disk", "a full log"])
def test_a_stream_that_got_an_error_for_jobs_asks_again_by_itself(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[WRK-3]"""
    store = Queue("sealed", config={"ttl_ms": 5000}, recent_cache_bytes=0)
    store.produce(1)
    store.clock.advance(5001)
    store.produce(1, start=2)
    with monkeypatch.context() as patch:
        if trouble == "a full log":
            patch.setattr(store.engine.core, "submit", refuse)
        else:
            store.settle()
            store.fail("pread", times="always")
        stream = store.work("w", 1)
        assert stream.take() == []
    store.mend()
    pass_ms(store, RETRY_NS // 1_000_000 - 1)
    assert stream.take() == []
    pass_ms(store, 1)
    assert stream.take() == [2]


def test_passes_that_fail_are_tried_again_once_however_many_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """[WRK-3, P-10]: a busy queue in trouble is no busier for it."""
    store = Queue(config={"ttl_ms": 5000})
    streams = [store.work(f"w{n}", 2) for n in range(3)]
    store.produce(1)
    store.clock.advance(5001)
    tried: list[object] = []

    def counted(*given: Any, **more: Any) -> None:
        tried.append(given)
        refuse()

    with monkeypatch.context() as patch:
        patch.setattr(store.engine.core, "submit", counted)
        for n in range(2, 7):
            store.produce(1, start=n)
            store.clock.advance(10)
        tried.clear()
        for _ in range(300):
            with store.engine._owner:
                store.engine.core.alarms.ring(store.clock.monotonic_ns())
            store.clock.advance(10)
        assert len(tried) == 3
    pass_ms(store, 1000)
    assert sorted(seq for stream in streams for seq in stream.take()) == [1, 2, 3, 4, 5, 6]


def refuse(*given: Any, **more: Any) -> None:
    raise WalFull("no room for that", 100)


def test_a_queue_whose_streams_are_gone_has_no_alarm(store: Queue) -> None:
    store.produce(1)
    stream = store.work("w", 1)
    assert store.engine.core.alarms.next_ns() is not None
    stream.do("close")
    store.claim(1)
    pass_ms(store, 20_000)
    assert store.engine.core.alarms.next_ns() is None


def test_a_clock_that_was_set_back_only_delays(store: Queue) -> None:
    """[WRK-3, GEN-1]"""
    store.produce(1)
    store.claim(1, "other", 1000)
    stream = store.work("w", 1)
    store.clock.jump(-5000)
    pass_ms(store, 1001)
    assert stream.take() == []
    pass_ms(store, 5000)
    assert stream.take() == [1]
