"""Calls about many durable leases: short stretches on the owner, a log in the order of what happened [P-10, A-1]."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.kit import flip_in, segment_files
from tests.unit.engine.kit_queue import QUEUE, Queue
from tests.unit.engine.watchkit import step
from topics.engine import delete as deleting
from topics.engine import queue
from topics.engine.leaselog import SLICE
from topics.errors import TopicNotFound

MANY = 1000


def leased(count: int = MANY) -> tuple[Queue, queue.Ask]:
    """A queue with so many durable leases of one worker, and a call about all of them."""
    store = Queue(config={"leases_durable": True, "lease_ms": 60_000})
    store.produce(count)
    jobs = store.jobs(count)
    asked = queue.Ask.parse("w", [job.seq for job in jobs], [job.lease_id for job in jobs], store.engine.core.limits)
    return store, asked


def logged(store: Queue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each submission from now on has."""
    sizes: list[int] = []
    core = store.engine.core
    submit = core.submit

    def noting(topic_id: int, frames: Any, count: int, *more: Any, **options: Any) -> None:
        sizes.append(count)
        submit(topic_id, frames, count, *more, **options)

    monkeypatch.setattr(core, "submit", noting)
    return sizes


def test_a_nack_of_many_leases_is_many_short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10, NCK-1: each changes and logs what it changes; the answer is one."""
    store, asked = leased()
    sizes = logged(store, monkeypatch)
    told = store.engine.nack(QUEUE, "w", asked.seqs, delay_ms=500)
    assert (told.nacked, list(told.skipped), told.ready, told.in_flight) == (MANY, [], 0, 0)
    assert sum(sizes) == MANY
    assert max(sizes) <= SLICE
    store.crash()
    assert store.counts() == (0, 0, MANY)


def test_an_extend_of_many_leases_is_many_short_stretches_with_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10, EXT-1, EXT-2"""
    store, asked = leased()
    sizes = logged(store, monkeypatch)
    told = store.engine.extend(QUEUE, "w", asked.seqs, lease_ms=3_600_000)
    assert (told.extended, list(told.skipped)) == (MANY, [])
    assert set(told.deadlines.values()) == {store.clock.now_ms() + 3_600_000}
    assert list(told.deadlines) == list(asked.seqs)
    assert sum(sizes) == MANY
    assert max(sizes) <= SLICE
    store.crash()
    held = store.engine.leases(QUEUE, page_size=MANY).leases
    assert {one.deadline for one in held} == set(told.deadlines.values())


def test_what_is_named_twice_counts_once_however_far_apart() -> None:
    """ACK-3: the second time it is skipped, in the order of the call."""
    store, asked = leased(300)
    seqs = [*asked.seqs, 1, 300, 999]
    told = store.engine.extend(QUEUE, "w", seqs, lease_ms=1000)
    assert (told.extended, list(told.skipped)) == (300, [1, 300, 999])
    given = store.engine.nack(QUEUE, "w", seqs)
    assert (given.nacked, list(given.skipped)) == (300, [1, 300, 999])


def test_who_gets_a_job_between_two_stretches_still_has_it_after_a_restart() -> None:
    """QRC-3: the log has the nack in front of the claim that followed it."""
    store, asked = leased(300)
    core = store.engine.core
    answers: list[Any] = []
    claimed: list[Any] = []

    def both() -> None:
        queue.nack(core, QUEUE, asked, 0, answers.append)
        queue.claim(core, QUEUE, queue.Claim("heir", 10, None), claimed.append)

    store.engine._owner.do(both)
    assert answers[0].nacked == 300
    mine = {job.seq: job.lease_id for job in claimed[0].jobs}
    assert len(mine) == 10
    for _ in range(2):
        store.crash()
        held = store.engine.leases(QUEUE, page_size=MANY).leases
        assert {one.seq: one.lease_id for one in held} == mine
        assert {one.node for one in held} == {"heir"}


def test_a_stream_that_ends_gives_back_its_many_jobs_in_short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10, WRK-6"""
    store = Queue(config={"leases_durable": True, "lease_ms": 60_000})
    store.produce(400)
    stream = store.work(max=400)
    assert store.counts() == (0, 400, 0)
    sizes = logged(store, monkeypatch)
    with store.engine._owner:
        stream.worker.close()
    assert store.counts() == (400, 0, 0)
    assert sum(sizes) == 400
    assert max(sizes) <= SLICE
    store.crash()
    assert store.counts() == (400, 0, 0)


def test_a_stream_that_ends_between_two_slices_of_its_pass_holds_nothing_after_a_restart() -> None:
    """[QRC-1, QRC-3, WRK-6]: the log has every claim in front of what gave it back."""
    store = Queue(config={"leases_durable": True, "lease_ms": 3_600_000})
    store.produce(400)
    most = 4 * SLICE
    with store.engine._owner:
        stream = store.work(max=400)
        for _ in range(100):
            step(store.engine, len(stream.worker.held) < most)
        assert len(stream.worker.held) == most
        stream.worker.close()
    assert (stream.take(), store.counts()) == ([], (400, 0, 0))
    store.kill()
    assert store.counts() == (400, 0, 0)
    assert store.engine.leases(QUEUE).leases == []
    assert len(store.claim(400)) == 400


def test_a_job_deleted_between_two_slices_of_a_pass_that_could_not_read_it_leaves_nothing_behind() -> None:
    """[LSE-5]: no counter of what is no job any more."""
    store = Queue("active", recent_cache_bytes=0)
    store.engine.append(QUEUE, [{"data": "broken"}, *({"data": n} for n in range(MANY))])
    store.settle()
    flip_in(store, segment_files(store)[0], b"broken")
    core = store.engine.core
    leases = queue.leases_of(core.names[QUEUE])
    answers: list[Any] = []
    with store.engine._owner:
        queue.claim(core, QUEUE, queue.Claim("w", MANY, None), answers.append)
        assert len(leases.held) == SLICE - 1
        removal = deleting.Removal.parse(None, None, [1], core.limits)
        deleting.delete(core, QUEUE, removal, False, answers.append)
    assert answers[0].deleted == 1
    assert [job.seq for job in answers[1].jobs] == list(range(2, MANY + 2))
    assert sorted(leases.deliveries) == sorted(leases.held)


def test_a_queue_that_is_deleted_in_between_is_not_found() -> None:
    """NAME-8: what came first stays as it was answered, the call fails."""
    store, asked = leased(300)
    engine = store.engine
    answers: list[Any] = []

    def both() -> None:
        queue.nack(engine.core, QUEUE, asked, 0, answers.append)
        engine.core.names[QUEUE].removed = True

    engine._owner.do(both)
    assert [type(one) for one in answers] == [TopicNotFound]
