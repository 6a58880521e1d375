"""Many leases that are over at once: taken up in short stretches, and nobody can tell [LSE-2, P-10]."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.kit_queue import QUEUE, Queue, seqs
from tests.unit.engine.watchkit import step
from topics.engine import queue
from topics.engine import read as reading
from topics.engine.lease import TURN
from topics.errors import TopicNotFound, WalFull

LEASE_MS = 1000
MANY = 10 * TURN
FRESH = 5
"""Jobs that nobody had yet."""


@pytest.fixture(params=[False, True], ids=["memory", "durable"])
def over(request: pytest.FixtureRequest) -> Queue:
    """A queue whose many leases are over, and nobody has looked yet."""
    return expired({"leases_durable": request.param})


def test_who_waits_for_a_sweep_that_fails_goes_on(over: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6] Nobody waits for ever, and neither does who comes behind it."""
    leases = over.engine.core.names[QUEUE].leases
    assert leases is not None
    expire, calls = leases.expire, [1, 1]

    def failing(now_ms: int) -> bool:
        if calls:
            calls.pop()
            if not calls:
                raise ValueError("a bug")
        return expire(now_ms)

    monkeypatch.setattr(leases, "expire", failing)
    assert over.begin_claim("a").outcomes
    assert over.begin_claim("b").outcomes


def expired(config: dict[str, Any]) -> Queue:
    store = leased(config)
    store.clock.advance(LEASE_MS + 1)
    return store


def leased(config: dict[str, Any]) -> Queue:
    store = Queue(config={"lease_ms": LEASE_MS, **config}, segment_max_events=10_000, wal_file_bytes=1 << 20)
    for _ in range(10):
        store.produce(TURN)
    store.produce(FRESH)
    for _ in range(10):
        assert len(store.claim(TURN)) == TURN
    return store


def held(store: Queue) -> int:
    """Leases that were not taken up yet."""
    return len(queue.leases_of(store.engine.core.names[QUEUE]).held)


def ask(store: Queue, *wanted: int, node: str = "w") -> queue.Ask:
    return queue.Ask.parse(node, wanted, None, store.engine.core.limits)


def counted(outcome: Any) -> tuple[int, int]:
    return outcome.ready, outcome.in_flight


def test_no_stretch_takes_up_more_than_some_of_them(over: Queue) -> None:
    """[P-10]: whoever waits for them is answered behind the last."""
    answers: list[Any] = []
    with over.engine._owner:
        queue.claim(over.engine.core, QUEUE, queue.Claim("heir", 3, None), answers.append)
        for turn in range(1, 10):
            assert (held(over), answers) == (MANY - turn * TURN, [])
            step(over.engine)
    assert seqs(answers[0]) == [1, 2, 3]
    assert answers[0].ready == MANY + FRESH - 3
    assert over.counts() == (MANY + FRESH - 3, 3, 0)


def test_others_get_on_between_two_stretches(over: Queue) -> None:
    """[P-10, A-1]: one queue takes no more of the owner because many wait for it."""
    core = over.engine.core
    answers: list[Any] = []
    lefts: list[int] = []
    with over.engine._owner:
        for _ in range(3):
            queue.ack(core, QUEUE, ask(over, 1), answers.append)
            core.owner.soon(lambda: lefts.append(held(over)))
    assert lefts == [MANY - 2 * TURN] * 3
    assert [counted(one) for one in answers] == [(MANY + FRESH, 0)] * 3


def test_jobs_are_claimed_in_order_however_many_came_back(over: Queue) -> None:
    """[CLM-2]: then what was never delivered."""
    taken: list[int] = []
    while found := over.claim(1000):
        taken += found
    assert taken == list(range(1, MANY + FRESH + 1))


def test_the_lowest_job_is_claimed_first_though_its_lease_is_over_last() -> None:
    """[CLM-2]"""
    store = Queue(config={"lease_ms": 1000}, segment_max_events=10_000)
    store.produce(MANY)
    assert store.claim(1, lease_ms=3000) == [1]
    while store.claim(1000):
        pass
    store.clock.advance(3001)
    assert store.claim(2) == [1, 2]


def test_an_ack_behind_the_deadline_is_skipped_though_its_lease_was_not_taken_up(over: Queue) -> None:
    """[LSE-3, ACK-6]: and it tells how many jobs are ready as if all of them were."""
    core = over.engine.core
    answers: list[Any] = []
    with over.engine._owner:
        queue.ack(core, QUEUE, ask(over, 1, MANY), answers.append)
        queue.nack(core, QUEUE, ask(over, 2, MANY - 1), 0, answers.append)
        queue.extend(core, QUEUE, ask(over, 3, MANY - 2), 60_000, answers.append)
        assert held(over) > 0
    extended, acked, nacked = answers
    assert (acked.acked, list(acked.skipped), counted(acked)) == (0, [1, MANY], (MANY + FRESH, 0))
    assert (nacked.nacked, list(nacked.skipped), counted(nacked)) == (0, [2, MANY - 1], (MANY + FRESH, 0))
    assert (extended.extended, list(extended.skipped)) == (0, [3, MANY - 2])


def test_an_ack_in_time_counts_though_it_is_answered_behind_others_that_are_over() -> None:
    """[LSE-2, ACK-2]: it is begun at once, and what is begun does not expire."""
    store = leased({})
    store.clock.advance(LEASE_MS)
    assert len(store.claim(FRESH, node="late", lease_ms=100)) == FRESH
    store.clock.advance(100)
    core, mine, missed = store.engine.core, MANY + 1, MANY + 2
    answers: list[Any] = []
    with store.engine._owner:
        queue.ack(core, QUEUE, ask(store, mine, node="late"), answers.append)
        assert (held(store), answers) == (MANY + FRESH, [])
        store.clock.advance(1)
        queue.ack(core, QUEUE, ask(store, missed, node="late"), answers.append)
    assert {one.acked: (list(one.skipped), *counted(one)) for one in answers} == {
        1: ([], MANY + FRESH - 1, 0),
        0: ([missed], MANY + FRESH - 1, 0),
    }


def test_all_that_is_counted_is_counted_behind_the_last_of_them(over: Queue) -> None:
    """[QOB-1]: state and metrics too."""
    sweep = over.engine.begin_metrics()
    steps = 0
    while not sweep.step():
        steps += 1
    assert steps >= 9
    assert sweep.found.labelled["topics_topic_queue_ready"] == {QUEUE: MANY + FRESH}
    assert sweep.found.values["topics_queue_leases_in_flight"] == 0
    store = expired({})
    told: list[Any] = []
    with store.engine._owner:
        reading.state(store.engine.core, QUEUE, False, told.append)
        assert (told, held(store)) == ([], MANY - TURN)
    assert told[0].queue == {"ready": MANY + FRESH, "in_flight": 0, "delayed": 0, "dead_lettered": 0}


def test_the_list_has_none_that_is_over_and_waits_for_none(over: Queue) -> None:
    """[QOB-4, LSE-2]"""
    page = over.engine.leases(QUEUE, page_size=1000)
    assert (page.leases, page.delayed, page.next_cursor) == ([], [], None)
    assert held(over) == MANY
    assert over.claim(3, lease_ms=60_000) == [1, 2, 3]
    page = over.engine.leases(QUEUE, page_size=2)
    assert ([one.seq for one in page.leases], page.next_cursor) == ([1, 2], 2)


@pytest.mark.parametrize("size", [1, 100, 256, 1000, MANY - 1, MANY, MANY + 1, 1 << 20])
def test_pages_have_every_lease_once_whatever_their_size(size: int) -> None:
    """[QOB-4]"""
    store = Queue(config={"lease_ms": 60_000}, segment_max_events=10_000)
    store.produce(MANY)
    while store.claim(1000):
        pass
    store.engine.nack(QUEUE, "w", range(5, MANY, 7 * MANY // 1000), delay_ms=500)
    found: list[int] = []
    cursor: int | None = 0 if size > 1 else MANY - 9
    while cursor is not None:
        page = store.engine.leases(QUEUE, cursor, page_size=size)
        both = sorted([one.seq for one in page.leases] + [one.seq for one in page.delayed])
        assert len(both) == min(size, MANY - cursor)
        found += both
        cursor = page.next_cursor
    assert found == list(range(1 if size > 1 else MANY - 8, MANY + 1))


def test_a_queue_that_is_deleted_while_it_is_listed_is_not_found() -> None:
    """[QUE-3]"""
    store = Queue(config={"lease_ms": 60_000}, segment_max_events=10_000)
    store.produce(MANY)
    while store.claim(1000):
        pass
    told: list[Any] = []
    with store.engine._owner:
        queue.leases(store.engine.core, QUEUE, 0, MANY, told.append)
        assert told == []
        store.engine.core.names[QUEUE].removed = True
    assert [type(one) for one in told] == [TopicNotFound]


def test_who_waits_when_the_queue_is_deleted_is_answered(over: Queue) -> None:
    """[COH-5]"""
    core = over.engine.core
    answers: list[Any] = []
    with over.engine._owner:
        queue.claim(core, QUEUE, queue.Claim("heir", 3, None), answers.append)
        queue.ack(core, QUEUE, ask(over, 1), answers.append)
        topic = core.names.pop(QUEUE)
        topic.forget()
        step(over.engine)
        assert len(answers) == 2
    assert {type(one) for one in answers} == {TopicNotFound, queue.AckResult}


def test_a_worker_gets_its_slots_back_and_fills_them() -> None:
    """[WRK-3]: one pass, behind the last of the leases that are over, with the lowest jobs."""
    store = Queue(config={"lease_ms": 1000}, segment_max_events=10_000)
    store.produce(1000)
    stream = store.work(max=1000)
    assert stream.take() == list(range(1, 1001))
    store.clock.advance(1001)
    store.engine.tick()
    assert stream.take() == list(range(1, 1001))


def test_a_worker_that_comes_gets_what_others_did_not_do(over: Queue) -> None:
    """[WRK-3, CLM-2]"""
    assert over.work(max=3).take() == [1, 2, 3]


def test_jobs_that_were_delivered_too_often_move_however_many_there_are() -> None:
    """[DLQ-2]: some in every pass; what was never delivered is handed out by the first."""
    store = expired({"max_deliveries": 1, "dead_letter": "dead"})
    assert store.claim(FRESH, lease_ms=60_000) == list(range(MANY + 1, MANY + FRESH + 1))
    state = store.engine.state(QUEUE)
    assert state.queue == {"ready": MANY - 1000, "in_flight": FRESH, "delayed": 0, "dead_lettered": 1000}
    for _ in range(MANY // 1000):
        assert store.claim() == []
    assert store.counts() == (0, FRESH, 0)
    assert store.engine.state("dead").count == MANY


def test_a_stop_while_they_are_taken_up_changes_nothing() -> None:
    """[QRC-3]: the first call behind the restart takes up all of them."""
    store = expired({"leases_durable": True})
    with store.engine._owner:
        queue.claim(store.engine.core, QUEUE, queue.Claim("heir", 3, None), lambda outcome: None)
        step(store.engine, 3)
        assert 0 < held(store) < MANY
        store.engine._owner._soon.clear()
    store.crash()
    assert store.counts() == (MANY + FRESH, 0, 0)
    jobs = store.jobs(1000)
    assert [(job.seq, job.deliveries) for job in jobs] == [(seq, 2) for seq in range(1, 1001)]


def test_an_ack_that_is_refused_while_they_are_taken_up_leaves_a_lease_that_is_over(
    over: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ACK-5]: nothing was begun; whoever comes next takes it up."""
    (mine,) = over.claim(1, lease_ms=100)
    core = over.engine.core
    answers: list[Any] = []

    def refuse(*args: Any) -> None:
        over.clock.advance(101)
        while not queue.leases_of(core.names[QUEUE]).expire(over.clock.now_ms()):
            pass
        args[-1](WalFull("no room"))

    with monkeypatch.context() as patch, over.engine._owner:
        patch.setattr(queue, "remove_jobs", refuse)
        queue.ack(core, QUEUE, ask(over, mine), answers.append)
    assert [type(one) for one in answers] == [WalFull]
    assert over.claim(1) == [mine]
