"""The rules of leases, without an engine around them (04 §2 … §7, §10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec.control import Lease as Event
from topics.engine.lease import (
    ACKED,
    AT_ONCE,
    BLOCK_SHIFT,
    BLOCKS_TURN,
    CLAIMED,
    EXTENDED,
    LOOK_AHEAD,
    RELEASED,
    ROOM,
    TURN,
    Due,
    Lease,
    Leases,
    claimed,
    clamped_ms,
    lease_number,
    turns,
)


class Jobs:
    """Live records, and the leases over them."""

    def __init__(self, count: int) -> None:
        self.live = set(range(1, count + 1))
        self.leases = Leases()
        self.looks = 0
        self.ids = 0

    def look(self, after: int, count: int) -> list[int]:
        self.looks += 1
        return sorted(seq for seq in self.live if seq > after)[:count]

    def claim(self, count: int = 1, node: str = "w", *, until: int = 100) -> list[int]:
        chosen = self.leases.choose(count, self.look)
        for seq in chosen:
            self.ids += 1
            self.leases.claim(seq, node, self.ids, until)
        return chosen

    def claim_runs(self, count: int, size: int, *, until: int = 100) -> None:
        """The same of fresh jobs, as a pass does it that has one claimer."""
        while count and (run := self.leases.choose_run(min(count, size), self.look)) is not None:
            self.leases.claim_run(run, "w", self.ids + 1, until)
            self.ids += len(run)
            count -= len(run)

    def listed(self, now: int, count: int = 7) -> list[int]:
        """All that is leased or delayed, page by page."""
        found: list[int] = []
        at: int | None = 0
        while at is not None:
            page = self.leases.page(at, count, now)
            assert len(page.seqs) <= count
            found += page.seqs
            at = page.through
        return found

    def lease(self, seq: int) -> Lease:
        return self.leases.held[seq]

    def delete(self, *seqs: int) -> None:
        self.live -= set(seqs)
        self.leases.gone(seqs)
        self.leases.forget_ahead()

    def ack(self, *seqs: int) -> None:
        self.live -= set(seqs)
        self.leases.done(seqs)


def test_who_wants_nothing_gets_nothing() -> None:
    """COH-5: also where there is something to be had."""
    leases = Leases()
    assert leases.choose(0, lambda after, count: [1, 2]) == []
    assert leases.choose_run(0, lambda after, count: [1, 2]) is None


def test_a_lease_is_active_up_to_its_deadline_and_over_behind_it() -> None:
    """[LSE-2, QOB-1]"""
    jobs = Jobs(1)
    jobs.claim(until=100)
    jobs.leases.expire(100)
    assert (jobs.leases.in_flight, jobs.claim()) == (1, [])
    jobs.leases.expire(101)
    assert (jobs.leases.in_flight, jobs.claim()) == (0, [1])


def test_an_expired_lease_is_gone_though_nobody_claimed_the_job_again() -> None:
    """[LSE-3]"""
    jobs = Jobs(1)
    jobs.claim(until=100)
    jobs.leases.expire(101)
    assert jobs.leases.find(1, "w", 1, 101) is None


def test_a_lease_that_is_over_is_not_found_though_nobody_took_it_up() -> None:
    """[LSE-3]: it may be one of many."""
    jobs = Jobs(1)
    jobs.claim(until=100)
    assert jobs.leases.find(1, "w", 1, 101) is None
    assert jobs.leases.begin_acks("w", [1], [1], 101) == ([], [1])
    assert jobs.leases.begin_acks("w", [1], [1], 100) == ([1], [])


def test_ids_tell_run_and_delivery() -> None:
    """[LSE-4]"""
    assert lease_number(3, 0x2F) == (3 << 40) + 0x2F
    assert lease_number(0, 1) == 1


@pytest.mark.parametrize(
    ("asked", "effective"), [(None, 30_000), (0, 100), (99, 100), (5000, 5000), (10**9, 86_400_000)]
)
def test_the_lease_asked_for_is_clamped(asked: int | None, effective: int) -> None:
    """[LSE-6]"""
    assert clamped_ms(asked, 30_000) == effective


def test_a_lease_is_found_by_node_and_id() -> None:
    """[LSE-7, LSE-8]"""
    jobs = Jobs(1)
    jobs.claim(node="w")
    assert jobs.leases.find(1, "w", None, 100) is jobs.leases.find(1, "w", 1, 100) is jobs.lease(1)
    assert jobs.leases.find(1, "v", None, 100) is None
    assert jobs.leases.find(1, "w", 2, 100) is None
    assert jobs.leases.find(2, "w", None, 100) is None


def test_what_came_back_is_handed_out_first_lowest_seq_first() -> None:
    """[CLM-2]"""
    jobs = Jobs(6)
    jobs.claim(4)
    for seq in (3, 1):
        jobs.leases.release(jobs.lease(seq))
    assert jobs.claim(9) == [1, 3, 5, 6]


def test_every_hand_out_counts_and_has_a_new_lease() -> None:
    """[CLM-3, CLM-7, NAK-2]"""
    jobs = Jobs(1)
    for n in (1, 2, 3):
        assert jobs.claim() == [1]
        assert (jobs.leases.deliveries[1], jobs.lease(1).id) == (n, n)
        jobs.leases.release(jobs.lease(1))
        assert jobs.leases.deliveries[1] == n


def test_a_job_has_one_lease_at_a_time() -> None:
    """[LSE-5, INV-14]"""
    jobs = Jobs(5)
    assert jobs.claim(3) == [1, 2, 3]
    assert jobs.claim(9) == [4, 5]
    assert jobs.claim(9) == []


def test_a_delayed_job_is_ready_at_its_time() -> None:
    """[NAK-1, NAK-3]"""
    jobs = Jobs(1)
    jobs.claim(until=1000)
    jobs.leases.release(jobs.lease(1), 500)
    assert (jobs.leases.in_flight, jobs.leases.delayed) == (0, {1: 500})
    jobs.leases.expire(499)
    assert jobs.claim() == []
    jobs.leases.expire(500)
    assert (jobs.leases.delayed, jobs.claim()) == ({}, [1])


def test_extending_sets_the_deadline_and_keeps_the_id() -> None:
    """[EXT-1]"""
    jobs = Jobs(1)
    jobs.claim(until=100)
    jobs.leases.extend(jobs.lease(1), 50)
    jobs.leases.expire(51)
    assert jobs.leases.held == {}
    jobs.claim(until=100)
    jobs.leases.extend(jobs.lease(1), 300)
    jobs.leases.expire(300)
    assert (jobs.lease(1).id, jobs.leases.deliveries[1]) == (2, 2)


def test_an_ack_forgets_lease_and_counter() -> None:
    """[ACK-4]"""
    jobs = Jobs(2)
    jobs.claim(2)
    assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
    assert jobs.leases.find(1, "w", None, 100) is None
    jobs.ack(1)
    assert (list(jobs.leases.held), jobs.leases.deliveries, jobs.leases.in_flight) == ([2], {2: 1}, 1)


def test_a_lease_does_not_expire_while_its_ack_is_on_its_way() -> None:
    """Nobody gets a job whose delete may be committed already."""
    jobs = Jobs(1)
    jobs.claim(until=100)
    assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
    jobs.leases.expire(500)
    assert (jobs.claim(), jobs.leases.in_flight, jobs.leases.next_change_ms()) == ([], 1, None)


def test_a_failed_ack_leaves_the_job_claimable() -> None:
    """[ACK-5]"""
    jobs = Jobs(1)
    jobs.claim()
    assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
    jobs.leases.ack_failed([1])
    assert (jobs.leases.in_flight, jobs.claim(), jobs.leases.deliveries[1]) == (0, [1], 2)


def test_a_refused_ack_leaves_the_lease_as_it_was() -> None:
    """Nothing was begun: the worker may ack again, and the lease still expires."""
    jobs = Jobs(1)
    jobs.claim(until=100)
    assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
    jobs.leases.expire(100)
    jobs.leases.ack_refused([1])
    assert jobs.leases.find(1, "w", 1, 100) is not None
    jobs.leases.expire(101)
    assert jobs.claim() == [1]


def test_an_ack_that_is_refused_behind_the_deadline_leaves_a_lease_that_is_over() -> None:
    """It did not expire while it was acked; nobody else would take it up."""
    jobs = Jobs(1)
    jobs.claim(until=100)
    assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
    assert jobs.leases.expire(200)
    jobs.leases.ack_refused([1])
    assert jobs.leases.next_change_ms() == 101
    assert jobs.leases.expire(200)
    assert jobs.claim() == [1]


def test_acks_that_are_refused_again_and_again_leave_nothing_behind() -> None:
    """Whoever has no room tries again, for as long as it takes."""
    jobs = Jobs(1)
    jobs.claim(until=100)
    for _ in range(1000):
        assert jobs.leases.begin_acks("w", [1], [None], 100) == ([1], [])
        jobs.leases.ack_refused([1])
        jobs.leases.extend(jobs.lease(1), 100)
    assert len(jobs.leases._expiries) <= 70


def test_a_job_removed_under_its_lease_leaves_the_counts_but_not_the_lease() -> None:
    """[QOB-3]"""
    jobs = Jobs(3)
    jobs.claim(3)
    jobs.delete(1, 2, 3)
    assert jobs.leases.in_flight == 0
    assert jobs.leases.find(1, "w", None, 100) is not None
    jobs.leases.release(jobs.lease(1))
    jobs.leases.extend(jobs.lease(2), 1000)
    jobs.ack(3)
    jobs.leases.expire(1001)
    assert (jobs.leases.held, jobs.leases.deliveries, jobs.leases.in_flight, jobs.claim(9)) == ({}, {}, 0, [])


def test_a_floor_takes_every_job_below_it() -> None:
    """[QOB-3]: held, delayed, to be had again, looked up ahead."""
    jobs = Jobs(9)
    jobs.claim(3)
    jobs.leases.release(jobs.lease(1))
    jobs.leases.release(jobs.lease(2), 70)
    jobs.live -= {1, 2, 3, 4}
    jobs.leases.below(5)
    assert (jobs.leases.in_flight, jobs.leases.delayed, jobs.leases.deliveries) == (0, {}, {})
    assert jobs.claim(2) == [5, 6]
    jobs.leases.below(6)
    assert (jobs.leases.in_flight, jobs.claim()) == (1, [7])


def test_jobs_deleted_before_their_first_delivery_are_passed_over() -> None:
    """[CLM-2]"""
    jobs = Jobs(6)
    jobs.claim()
    jobs.delete(2, 3, 5)
    assert jobs.claim(9) == [4, 6]


def test_a_job_is_due_when_it_was_delivered_as_often_as_it_may_be() -> None:
    """[DLQ-2]: it is taken out, the others are handed out."""
    jobs = Jobs(3)
    jobs.leases.limit(2)
    for _ in range(2):
        jobs.claim()
        jobs.leases.release(jobs.lease(1))
    assert jobs.claim(2) == [2, 3]
    assert jobs.leases.take_due(10) == [Due(1, 2)]
    assert jobs.leases.take_due(10) == []
    jobs.leases.moved([1])
    assert (jobs.leases.dead_lettered, 1 in jobs.leases.deliveries) == (1, False)


def test_a_move_that_failed_is_tried_by_a_later_pass_with_the_same_count() -> None:
    """[DLQ-7]"""
    jobs = Jobs(1)
    jobs.leases.limit(1)
    jobs.claim()
    jobs.leases.release(jobs.lease(1))
    for _ in range(3):
        assert jobs.claim() == []
        assert jobs.leases.take_due(10) == [Due(1, 1)]
        jobs.leases.not_moved([1])
    assert jobs.leases.dead_lettered == 0


def test_without_a_limit_jobs_that_were_due_are_delivered_again() -> None:
    """[DLQ-1, QUE-7]"""
    jobs = Jobs(1)
    jobs.leases.limit(1)
    jobs.claim()
    jobs.leases.release(jobs.lease(1))
    assert jobs.claim() == []
    jobs.leases.limit(0)
    assert (jobs.claim(), jobs.leases.deliveries[1]) == ([1], 2)


def test_what_was_put_back_comes_in_the_same_order() -> None:
    jobs = Jobs(5)
    jobs.claim(2)
    jobs.leases.release(jobs.lease(1))
    chosen = jobs.leases.choose(3, jobs.look)
    assert chosen == [1, 3, 4]
    jobs.leases.put_back(chosen)
    assert jobs.leases.choose(9, jobs.look) == [1, 3, 4, 5]


def test_a_job_that_cannot_be_read_is_tried_again_and_not_counted() -> None:
    jobs = Jobs(2)
    assert jobs.leases.choose(1, jobs.look) == [1]
    jobs.leases.set_aside(1)
    assert (jobs.claim(2), jobs.leases.deliveries) == ([1, 2], {1: 1, 2: 1})


# Cohorts


def deal(jobs: Iterable[int], wants: list[int]) -> list[list[int]]:
    """Jobs by claimer; those that nobody wants any more stay."""
    hands: list[list[int]] = [[] for _ in wants]
    for at, job in zip(turns(wants), jobs, strict=False):
        hands[at].append(job)
    return hands


@pytest.mark.parametrize(
    ("count", "wants", "shares"),
    [
        (18, [9, 9, 9], [6, 6, 6]),
        (9, [2, 100], [2, 7]),
        (50, [10] * 10, [5] * 10),
        (3, [1, 1, 1, 1], [1, 1, 1, 0]),
        (0, [5], [0]),
        (4, [], []),
        (4, [0, 2], [0, 2]),
    ],
)
def test_a_cohort_shares_evenly(count: int, wants: list[int], shares: list[int]) -> None:
    """[COH-3]"""
    assert [len(hand) for hand in deal(range(count), wants)] == shares


def test_jobs_are_dealt_one_at_a_time_in_order() -> None:
    """[COH-3]"""
    assert deal([1, 2, 3, 4, 5, 6], [1, 3, 2]) == [[1], [2, 4, 6], [3, 5]]


@given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=6))
def test_dealing_gives_every_job_once_while_anybody_wants_one(count: int, wants: list[int]) -> None:
    """[COH-3]"""
    hands = deal(range(count), wants)
    assert sorted(job for hand in hands for job in hand) == list(range(min(count, sum(wants))))
    assert all(len(hand) <= want for hand, want in zip(hands, wants, strict=True))


# Events


def test_replaying_the_events_gives_the_same_leases() -> None:
    """[QRC-1, QRC-3]"""
    jobs = Jobs(5)
    chosen = jobs.leases.choose(4, jobs.look)
    events = [(seq, claimed(jobs.leases.claim(seq, "w", seq, 100), jobs.leases.deliveries[seq])) for seq in chosen]
    events.append((1, jobs.leases.release(jobs.lease(1))))
    events.append((2, jobs.leases.release(jobs.lease(2), 70)))
    events.append((3, jobs.leases.extend(jobs.lease(3), 400)))
    twin = Leases()
    for seq, event in events:
        twin.apply(seq, event)
    assert twin.saved() == jobs.leases.saved()
    assert [event.event for _, event in events] == [CLAIMED] * 4 + [RELEASED, RELEASED, EXTENDED]


@pytest.mark.parametrize("kind", [RELEASED, EXTENDED, ACKED])
def test_a_stale_event_does_not_touch_a_newer_lease(kind: int) -> None:
    """[QRC-4]"""
    leases = Leases()
    leases.apply(1, Event(event=CLAIMED, node="a", lease_id=1, deadline_ms=10, deliveries=1))
    leases.apply(1, Event(event=CLAIMED, node="b", lease_id=2, deadline_ms=20, deliveries=2))
    before = leases.saved()
    leases.apply(1, Event(event=kind, node="a", lease_id=1, deadline_ms=99, deliveries=1))
    assert leases.saved() == before
    assert leases.in_flight == 1


def test_an_acked_event_ends_its_lease() -> None:
    """[QRC-1]"""
    leases = Leases()
    leases.apply(1, Event(event=CLAIMED, node="a", lease_id=1, deadline_ms=10, deliveries=1))
    leases.apply(1, Event(event=ACKED, node="a", lease_id=1))
    assert (leases.held, leases.deliveries, leases.in_flight) == ({}, {}, 0)


def test_a_snapshot_brings_leases_delays_and_counters_back() -> None:
    """[QRC-3, QRC-8]: what was released is to be had before what was never delivered."""
    jobs = Jobs(6)
    jobs.claim(4, until=500)
    jobs.leases.release(jobs.lease(2))
    jobs.leases.release(jobs.lease(3), 70)
    jobs.delete(4)
    saved = jobs.leases.saved()
    jobs.leases = Leases.restored(saved)
    assert (jobs.leases.in_flight, jobs.leases.delayed) == (1, {3: 70})
    assert jobs.leases.find(4, "w", 4, 500) is not None, "the lease of a job that is gone is still a lease"
    assert jobs.claim(9) == [2, 5, 6]
    assert (jobs.leases.deliveries[2], jobs.leases.deliveries[1]) == (2, 1)


def test_after_a_restart_a_job_whose_claim_was_not_kept_is_fresh() -> None:
    """[QRC-5, QRC-8]: nothing below the last known claim is stranded."""
    jobs = Jobs(4)
    for seq in (1, 3):
        jobs.leases.apply(seq, Event(event=CLAIMED, node="a", lease_id=seq, deadline_ms=10, deliveries=1))
    jobs.leases.restart()
    assert jobs.claim(9) == [2, 4]
    jobs.leases.expire(11)
    assert jobs.claim(9) == [1, 3]


def test_a_delete_strands_no_job_below_one_that_was_delivered_before_the_restart() -> None:
    """[QRC-8, ACK-5]: what came back is handed out first; fresh jobs below it are still to be had."""
    jobs = Jobs(6)
    jobs.leases.apply(5, Event(event=CLAIMED, node="a", lease_id=1, deadline_ms=10, deliveries=1))
    jobs.leases.restart()
    jobs.leases.expire(11)
    assert jobs.claim(2) == [5, 1]
    jobs.delete(3)
    assert jobs.claim(9) == [2, 4, 6]


# Cost


def test_jobs_are_looked_up_many_at_once() -> None:
    jobs = Jobs(2 * LOOK_AHEAD)
    for _ in range(LOOK_AHEAD):
        jobs.claim()
    assert jobs.looks == 1


def test_memory_follows_the_jobs_in_flight() -> None:
    """Whatever was claimed, extended, given back and acked before."""
    jobs = Jobs(3000)
    for turn in range(3000):
        (seq,) = jobs.claim(until=turn)
        for _ in range(3):
            jobs.leases.extend(jobs.lease(seq), 10**6 + turn)
        jobs.leases.release(jobs.lease(seq), turn)
        jobs.leases.expire(turn)
        jobs.claim(until=10**6)
        jobs.ack(seq)
    leases = jobs.leases
    rows = (leases._expiries, leases._delays, leases._lowest, leases._lowest_due, leases._blocks)
    assert all(len(some) <= 2 * ROOM for some in rows)
    assert (leases.held, leases.deliveries, leases.delayed) == ({}, {}, {})


def test_memory_follows_the_jobs_in_flight_that_were_claimed_in_a_row() -> None:
    jobs = Jobs(4800)
    for turn in range(300):
        run = jobs.leases.choose_run(16, jobs.look)
        assert run == range(16 * turn + 1, 16 * turn + 17)
        jobs.leases.claim_run(run, "w", 16 * turn, 10**6)
        if turn:
            jobs.ack(*range(run.start - 16, run.start - 1))  # one of each stays
    leases = jobs.leases
    assert leases.in_flight == 315
    assert len(leases._expiries) <= 300
    assert len(leases._blocks) <= 300
    jobs.ack(*list(leases.held))
    for _ in range(0, 4800, TURN):
        leases.next_change_ms()  # what is stale leaves a turn at a time
    assert (leases.held, leases.deliveries, leases.next_change_ms()) == ({}, {}, None)


def test_memory_follows_the_jobs_that_are_claimed_and_given_back_in_replay() -> None:
    """[QRC-1]: nobody chooses there; a job is in order once, however often it came back."""
    leases = Leases()
    for turn in range(1, 1001):
        for seq in range(1, 11):
            leases.apply(seq, Event(event=CLAIMED, node="a", lease_id=turn, deadline_ms=turn, deliveries=turn))
            leases.apply(seq, Event(event=RELEASED, node="a", lease_id=turn, ready_at_ms=0 if seq % 2 else turn))
    assert all(len(rows) <= 2 * ROOM for rows in (leases._expiries, leases._delays, leases._lowest))
    assert leases.choose(10, lambda after, count: []) == [1, 3, 5, 7, 9]


class Counting(dict[int, Any]):
    """Leases or delays that count how often somebody looks for one."""

    looks = 0

    def get(self, seq: int, default: Any = None) -> Any:
        self.looks += 1
        return super().get(seq, default)

    def keys(self) -> Any:
        self.looks += 1
        return super().keys()


class CountingSet(set[int]):
    """Jobs that count how often somebody looks for one."""

    looks = 0

    def __contains__(self, seq: object) -> bool:
        self.looks += 1
        return super().__contains__(seq)


MANY = 100_000


@pytest.fixture(params=["one by one", "in runs"])
def many(request: pytest.FixtureRequest) -> Jobs:
    """So many jobs, leased until 100 by those who got them as they wanted."""
    jobs = Jobs(0)
    jobs.leases.held = Counting()
    jobs.live = set(range(1, MANY + 1))
    jobs.leases.appended(1, MANY)
    if request.param == "in runs":
        jobs.claim_runs(MANY, 96)
    else:
        jobs.claim(MANY)
    assert jobs.leases.in_flight == MANY
    return jobs


def looks(jobs: Jobs) -> int:
    """How many leases were looked for since the last time."""
    held = jobs.leases.held
    assert isinstance(held, Counting)
    found, held.looks = held.looks, 0
    return found


def test_leases_that_expire_together_are_taken_up_some_at_a_time(many: Jobs) -> None:
    """[P-10, LSE-2, CLM-2]: in as many turns as it takes; then jobs are had in order."""
    looks(many)
    turns, left = 0, MANY
    while not many.leases.expire(101):
        turns += 1
        assert left - TURN <= len(many.leases.held) < left
        left = len(many.leases.held)
        assert many.leases.in_flight == left
        assert looks(many) <= TURN
    assert turns == MANY // TURN
    assert (many.leases.held, many.leases.in_flight, many.leases.next_change_ms()) == ({}, 0, None)
    assert many.claim(1000) == list(range(1, 1001))


def test_delays_that_are_over_together_are_taken_up_some_at_a_time() -> None:
    """[P-10, NAK-1]"""
    jobs = Jobs(5 * TURN)
    jobs.claim(5 * TURN)
    for lease in list(jobs.leases.held.values()):
        jobs.leases.release(lease, 70)
    for turn in range(1, 6):
        assert jobs.leases.expire(70) == (turn == 5)
        assert len(jobs.leases.delayed) == (5 - turn) * TURN
    assert jobs.claim(5 * TURN) == list(range(1, 5 * TURN + 1))


def test_a_run_that_is_longer_than_a_turn_is_taken_up_in_several() -> None:
    """[P-10]"""
    jobs = Jobs(2 * TURN + 1)
    jobs.claim_runs(2 * TURN + 1, 10 * TURN)
    assert [jobs.leases.expire(101) for _ in range(3)] == [False, False, True]
    assert jobs.claim(9999) == list(range(1, 2 * TURN + 2))


def test_jobs_that_are_due_together_are_set_apart_some_at_a_time() -> None:
    """[P-10, DLQ-2]: what was never delivered is not handed out before all that came back was looked at."""
    jobs = Jobs(5 * TURN)
    jobs.leases.limit(1)
    jobs.claim(5 * TURN - 2)
    while not jobs.leases.expire(101):
        pass
    turns = 0
    while not (chosen := jobs.claim(2)):
        assert jobs.leases.has_back
        turns += 1
        assert len(jobs.leases._due) <= turns * (TURN + 2)
    assert (turns, chosen) == (4, [5 * TURN - 1, 5 * TURN])
    assert len(jobs.leases.take_due(9999)) == 5 * TURN - 2


def test_whoever_comes_behind_many_acks_does_not_clear_up_after_all_of_them(many: Jobs) -> None:
    """[P-10]: neither a claim, nor an extend, nor the alarm of a worker."""
    many.ack(*range(1, MANY + 1))
    many.live.add(MANY + 1)
    many.leases.appended(MANY + 1, MANY + 1)
    looks(many)
    assert many.claim(until=900) == [MANY + 1]
    assert looks(many) <= 200
    many.leases.extend(many.lease(MANY + 1), 1000)
    assert looks(many) <= 200
    assert many.leases.next_change_ms() == 101
    assert looks(many) <= TURN + 100


def test_leases_that_are_extended_all_the_time_are_cleared_up_a_few_at_a_time() -> None:
    """[P-10]: as workers do whose jobs take long; memory follows the leases all the same."""
    jobs = Jobs(1000)
    jobs.leases.held = Counting()
    jobs.claim(1000, until=1000)
    for turn in range(1, 20):
        for lease in list(jobs.leases.held.values()):
            looks(jobs)
            jobs.leases.extend(lease, 1000 + turn)
            assert looks(jobs) <= 6
        assert len(jobs.leases._expiries) <= 3 * 1000
    while not jobs.leases.expire(1019):
        pass
    assert (jobs.leases.in_flight, jobs.leases.next_change_ms()) == (1000, 1020)


SOME = 20 * TURN
"""Enough for many turns."""


def expired(count: int) -> Jobs:
    """So many jobs that were delivered once and came back."""
    jobs = Jobs(count)
    jobs.claim_runs(count, 96)
    while not jobs.leases.expire(101):
        pass
    return jobs


def due(count: int) -> Jobs:
    """So many jobs that are due."""
    jobs = expired(count)
    jobs.leases.limit(1)
    while jobs.leases.has_back:
        assert jobs.claim(1) == []
    assert len(jobs.leases._due) == count
    return jobs


def test_whoever_moves_dead_letters_does_not_clear_up_after_all_that_were_deleted() -> None:
    """[P-10, DLQ-2]: neither whoever asks for those to be moved, nor a turn of a pass."""
    jobs = due(SOME)
    jobs.delete(*range(1, SOME))
    rows = jobs.leases._lowest_due
    assert jobs.leases.take_due(2) == []
    assert len(rows) >= SOME - TURN
    jobs.live.clear()
    turns = 0
    while jobs.leases.has_back:
        before = len(rows)
        assert jobs.claim(4) == []
        assert 0 < before - len(rows) <= TURN + 4
        turns += 1
    assert turns <= SOME // TURN
    assert jobs.leases.take_due(2) == [Due(SOME, 1)]


def test_jobs_that_are_due_no_more_can_be_had_again_some_at_a_time() -> None:
    """[P-10, DLQ-1, CLM-2]: nobody gets one before all of them are in order; then the lowest is the first."""
    jobs = due(SOME)
    jobs.live.add(SOME + 1)
    jobs.leases.limit(0)
    assert len(jobs.leases._lowest) == 0
    assert jobs.leases.take_due(10) == [], "nothing is due from now on"
    assert jobs.leases.choose_run(1, jobs.look) is None
    turns = before = 0
    while not (chosen := jobs.claim(4)):
        assert jobs.leases.has_back
        assert len(jobs.leases._lowest) - before <= TURN + 4
        before = len(jobs.leases._lowest)
        turns += 1
    assert SOME // TURN - 2 <= turns <= SOME // TURN
    assert chosen + jobs.claim(4) == list(range(1, 9))
    assert jobs.leases._due == set()


def test_a_limit_that_is_changed_before_the_last_change_was_taken_up_is_the_one_that_counts() -> None:
    """[DLQ-1, QUE-7]"""
    jobs = due(3 * TURN)
    jobs.leases.limit(0)
    assert jobs.claim(1) == []
    jobs.leases.limit(1)
    while jobs.leases.has_back:
        assert jobs.claim(1) == []
    assert jobs.leases.take_due(9) == [Due(seq, 1) for seq in range(1, 10)]
    assert (len(jobs.leases._due), jobs.leases.ready_of(3 * TURN)) == (3 * TURN - 9, 3 * TURN)


def test_a_floor_that_passes_many_jobs_is_taken_up_some_at_a_time(many: Jobs) -> None:
    """[P-10, QOB-3]: in the turns in which leases are that are over; then the counts are exact."""
    leases, block = many.leases, 1 << BLOCK_SHIFT
    left = MANY
    leases.below(MANY - 1)
    assert leases.page(0, 3, 50) == ([MANY - 1, MANY], None)
    for _ in range(MANY // TURN + 1):
        assert left - TURN - block <= len(leases.deliveries) < left
        left = len(leases.deliveries)
        if leases.expire(50):
            break
    assert (leases.in_flight, leases.deliveries) == (2, {MANY - 1: 1, MANY: 1})
    assert leases.find(1, "w", None, 100) is not None


def test_what_a_floor_has_passed_is_nobodys_though_nobody_took_it_up() -> None:
    """[QOB-1, QOB-3, CLM-2]: it is not claimed, not moved, not listed, and not counted."""
    jobs = expired(SOME)
    jobs.leases.below(SOME - 5)
    assert len(jobs.leases.deliveries) > TURN
    while not (chosen := jobs.claim(2)):
        assert jobs.leases.has_back
    assert chosen == [SOME - 5, SOME - 4]
    assert jobs.listed(100) == chosen
    assert (jobs.leases.ready_of(6), jobs.leases.in_flight) == (4, 2)

    jobs = due(SOME)
    jobs.leases.below(SOME - 5)
    while jobs.leases.has_back:
        assert jobs.claim(2) == []
    assert jobs.leases.take_due(2) == [Due(SOME - 5, 1), Due(SOME - 4, 1)]


def test_whoever_gives_a_job_back_for_a_while_does_not_clear_up_after_all_that_were_deleted() -> None:
    """[P-10, NAK-1]"""
    jobs = Jobs(SOME + 1)
    delayed = jobs.leases.delayed = Counting()
    jobs.claim(SOME + 1)
    for seq in range(1, SOME + 1):
        jobs.leases.release(jobs.lease(seq), 500)
    jobs.delete(*range(1, SOME + 1))
    delayed.looks = 0
    jobs.leases.release(jobs.lease(SOME + 1), 400)
    assert delayed.looks <= AT_ONCE
    assert delayed == {SOME + 1: 400}
    while not jobs.leases.expire(400):
        pass
    assert jobs.claim() == [SOME + 1]


def test_whoever_gives_a_job_back_does_not_clear_up_after_all_that_were_deleted() -> None:
    """[P-10, CLM-2]; those that come behind it do so, a few each."""
    jobs = Jobs(2 * SOME)
    reclaim = jobs.leases._reclaim = CountingSet()
    jobs.claim(SOME, until=100)
    jobs.claim(SOME, until=1000)
    while not jobs.leases.expire(101):
        pass
    jobs.delete(*range(1, SOME + 1))
    for seq in range(SOME + 1, 2 * SOME + 1):
        reclaim.looks = 0
        jobs.leases.release(jobs.lease(seq))
        assert reclaim.looks <= AT_ONCE
    assert len(jobs.leases._lowest) == len(reclaim) == SOME
    assert jobs.claim(3) == [SOME + 1, SOME + 2, SOME + 3]


# Pages


def test_a_page_of_leases_costs_what_is_on_it(many: Jobs) -> None:
    """[P-11, QOB-4]: not what is leased."""
    for after in (0, 1234, 50_000, MANY - 100):
        looks(many)
        page = many.leases.page(after, 100, 100)
        assert page.seqs == list(range(after + 1, after + 101))
        assert looks(many) <= 100 + 2 * (1 << BLOCK_SHIFT)
    assert many.leases.page(MANY, 100, 100) == ([], None)


def test_a_page_behind_many_jobs_that_came_back_is_looked_for_in_turns(many: Jobs) -> None:
    """[P-10, QOB-4]"""
    many.leases.extend(many.lease(MANY), 5000)
    while not many.leases.expire(101):
        pass
    looks(many)
    at: int | None = 0
    found: list[int] = []
    while at is not None:
        page = many.leases.page(at, 100, 101)
        found += page.seqs
        at = page.through
        assert looks(many) <= BLOCKS_TURN << BLOCK_SHIFT
    assert found == [MANY]


def test_what_is_over_is_on_no_page_though_nobody_took_it_up() -> None:
    """[LSE-2, QOB-4]: nor is a job that is gone; one whose ack is on its way is."""
    jobs = Jobs(6)
    jobs.claim(5, until=100)
    jobs.leases.extend(jobs.lease(1), 300)
    jobs.leases.release(jobs.lease(2), 101)
    jobs.leases.release(jobs.lease(3), 102)
    assert jobs.leases.begin_acks("w", [4], [None], 100) == ([4], [])
    assert jobs.listed(100) == [1, 2, 3, 4, 5]
    assert jobs.listed(101) == [1, 3, 4]
    jobs.delete(1, 3)
    assert jobs.listed(101) == [4]


class Twins:
    """The same jobs twice: those of the first are claimed in runs where that is possible, those of the second never."""

    def __init__(self, count: int) -> None:
        self.both = (Jobs(count), Jobs(count))
        self.head = count
        self.now = 0

    def claim(self, count: int, ms: int) -> None:
        one, other = self.both
        taken: list[int] = []
        while len(taken) < count and (run := one.leases.choose_run(count - len(taken), one.look)) is not None:
            one.leases.claim_run(run, "w", one.ids + 1, self.now + ms)
            one.ids += len(run)
            taken += run
        taken += one.claim(count - len(taken), until=self.now + ms)
        assert taken == other.claim(count, until=self.now + ms)

    def act(self, kind: str, number: int) -> None:
        """Do the same with both; `number` picks a job or an amount."""
        held = sorted(self.both[0].leases.held)
        for jobs in self.both:
            leases = jobs.leases
            if kind == "append":
                jobs.live.update(range(self.head + 1, self.head + 1 + number))
                leases.appended(self.head + 1, self.head + number)
            elif kind == "delete":
                jobs.delete(number)
            elif kind == "below":
                floor = min(number, self.head + 1)  # a delete is bound to what was there
                jobs.live -= set(range(floor))
                leases.below(floor)
            elif kind == "wait":
                leases.expire(self.now + number)
            elif held:
                lease = leases.held[held[number % len(held)]]
                if kind == "ack":
                    jobs.ack(lease.seq)
                elif kind == "release":
                    leases.release(lease, self.now + number if number % 3 else 0)
                else:
                    leases.extend(lease, self.now + number)
        self.head += number if kind == "append" else 0
        self.now += number if kind == "wait" else 0


@given(
    st.integers(0, 30),
    st.lists(
        st.tuples(
            st.sampled_from(["claim", "claim", "append", "delete", "below", "wait", "ack", "release", "extend"]),
            st.integers(1, 25),
        ),
        max_size=40,
    ),
)
def test_jobs_that_are_claimed_in_a_row_are_what_they_were_one_by_one(count: int, acts: list[tuple[str, int]]) -> None:
    """[CLM-2, CLM-3, LSE-2] Whatever happens to them afterwards."""
    twins = Twins(count)
    for kind, number in acts:
        if kind == "claim":
            twins.claim(number, 10 + number)
        else:
            twins.act(kind, number)
        one, other = (jobs.leases for jobs in twins.both)
        assert one.saved() == other.saved()
        assert (one.in_flight, one.next_change_ms()) == (other.in_flight, other.next_change_ms())
        listed = sorted({seq for seq, lease in one.held.items() if not lease.dead} | one.delayed.keys())
        assert [jobs.listed(twins.now) for jobs in twins.both] == [listed, listed]


def test_the_next_instant_is_that_of_the_first_lease_or_delay() -> None:
    """[WRK-3]: what an alarm is set to."""
    jobs = Jobs(3)
    assert jobs.leases.next_change_ms() is None
    jobs.claim(2, until=100)
    assert jobs.leases.next_change_ms() == 101
    jobs.leases.extend(jobs.lease(1), 300)
    jobs.leases.release(jobs.lease(2), 200)
    assert jobs.leases.next_change_ms() == 200
    jobs.leases.expire(200)
    assert jobs.leases.next_change_ms() == 301
    jobs.ack(1)
    assert jobs.leases.next_change_ms() is None
