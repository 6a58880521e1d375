"""Leases against a model that goes through all jobs every time, over random histories (04 §2 … §5, §10).

A history is told by its seed, which is also what the test is called. The sizes of turns, blocks and heaps are drawn
with it: most are so small that all that is done a few at a time takes several turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from topics.engine import lease as leasing
from topics.engine.lease import Lease, Leases, Rows

HISTORIES = 400
TURNS_MAX = 100_000
SIZES = {
    "TURN": (1, 2, 3, 7, 256),
    "AT_ONCE": (1, 2),
    "ROOM": (0, 1, 4, 64),
    "LOOK_AHEAD": (1, 2, 8, 256),
    "BLOCK_SHIFT": (1, 2, 5),
    "BLOCKS_TURN": (1, 2, 128),
}


@dataclass
class Held:
    """A lease as the model knows it."""

    node: str
    id: int
    deadline_ms: int
    acking: bool = False
    dead: bool = False

    def is_active(self, node: str, id: int | None, now: int) -> bool:
        return not self.acking and self.node == node and id in (None, self.id) and now <= self.deadline_ms


@dataclass
class Model:
    """Jobs and leases, without any order that would have to be kept."""

    live: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    delayed: dict[int, int] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)
    reclaim: set[int] = field(default_factory=set)
    due: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
    most: int = 0

    @property
    def in_flight(self) -> int:
        return sum(not one.dead for one in self.held.values())

    @property
    def ready(self) -> int:
        return len(self.live) - self.in_flight - len(self.delayed)

    def expire(self, now: int) -> None:
        for seq, one in list(self.held.items()):
            if one.deadline_ms < now and not one.acking:
                self.give_back(seq)
        for seq in [seq for seq, ready_at in self.delayed.items() if ready_at <= now]:
            del self.delayed[seq]
            self.reclaim.add(seq)

    def give_back(self, seq: int, ready_at: int = 0) -> None:
        if self.held.pop(seq).dead:
            return
        if ready_at:
            self.delayed[seq] = ready_at
        else:
            self.reclaim.add(seq)

    def gone(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.done(seq)
            if seq in self.held:
                self.held[seq].dead = True

    def done(self, seq: int) -> None:
        self.live.discard(seq)
        self.count.pop(seq, None)
        self.delayed.pop(seq, None)
        for place in (self.reclaim, self.due, self.moving):
            place.discard(seq)

    def limit(self, most: int) -> None:
        if most != self.most:
            self.most = most
            self.reclaim |= self.due
            self.due.clear()

    def choose(self, count: int) -> list[int]:
        """What a pass hands out; what it meets on its way that is due is set apart [CLM-2, DLQ-2]."""
        chosen: list[int] = []
        for seq in sorted(self.reclaim):
            if len(chosen) == count:
                return chosen
            if self.most and self.count[seq] >= self.most:
                self.reclaim.remove(seq)
                self.due.add(seq)
            else:
                chosen.append(seq)
        fresh = sorted(seq for seq in self.live if seq not in self.count and seq not in self.held)
        return chosen + fresh[: count - len(chosen)]

    def listed(self, after: int, now: int) -> list[int]:
        held = [seq for seq, one in self.held.items() if not one.dead and (one.acking or now <= one.deadline_ms)]
        return sorted(seq for seq in held + [seq for seq, at in self.delayed.items() if at > now] if seq > after)


class History:
    """The same acts, done to leases and to the model; they are compared wherever the leases are said to be exact."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        for name, sizes in SIZES.items():
            patch.setattr(leasing, name, self.random.choice(sizes))
        self.model = Model()
        self.now = 1000
        self.head = 0
        self.floor = 1
        self.ids = 0
        self.acking: list[list[int]] = []
        self.moving: list[list[int]] = []
        self.with_holder: set[int] = set()
        self.ended: list[int] = []
        self.use(Leases())

    def use(self, leases: Leases) -> None:
        self.leases = leases
        leases.on_end = lambda lease: self.ended.append(lease.id)

    def run(self) -> None:
        acts: list[Callable[[], None]] = [
            self.append, self.append, self.claim, self.claim, self.claim, self.begin_acks, self.end_acks, self.nack,
            self.extend, self.delete, self.raise_floor, self.wait, self.wait, self.expire_some, self.page, self.limit,
            self.move, self.end_moves, self.restart, self.set_aside,
        ]  # fmt: skip
        for _ in range(self.random.randrange(20, 160)):
            self.random.choice(acts)()
            if self.random.random() < 0.3:
                self.compare()
        self.compare()
        self.drain()

    # What happens to jobs

    def append(self) -> None:
        first = self.head + 1
        self.head += self.random.choice([1, 2, 5, 30])
        self.model.live.update(range(first, self.head + 1))
        self.leases.appended(first, self.head)

    def delete(self) -> None:
        live = sorted(self.model.live)
        seqs = self.random.sample(live, min(len(live), self.random.choice([1, 3, 10])))
        self.model.gone(seqs)
        self.leases.gone(seqs)
        self.leases.forget_ahead()

    def raise_floor(self) -> None:
        if self.random.random() < 0.4:
            self.sweep()
            self.pass_floor()
            if self.random.random() < 0.5:
                assert self.leases.ready_of(len(self.model.live)) == self.model.ready

    def pass_floor(self) -> None:
        self.floor = self.random.randrange(self.floor, self.head + 2)
        self.model.gone([seq for seq in self.model.live | self.model.count.keys() if seq < self.floor])
        self.leases.below(self.floor)

    def look(self, after: int, count: int) -> list[int]:
        """At least so many live jobs."""
        return sorted(seq for seq in self.model.live if seq > after)[: count + self.random.choice([0, 0, 1, 2])]

    # Time

    def wait(self) -> None:
        self.now += self.random.choice([0, 1, 5, 50, 200, 1000])

    def expire_some(self) -> None:
        self.leases.expire(self.now)

    def sweep(self) -> None:
        """All that is over is taken up."""
        for _ in range(TURNS_MAX):
            if self.leases.expire(self.now):
                break
        else:
            pytest.fail("it never ends")
        self.model.expire(self.now)

    # Claims

    def new_lease(self, seq: int, node: str, deadline_ms: int, holder: object, count: int) -> None:
        """What the leases are given next, as the model knows it."""
        self.ids += 1
        self.model.reclaim.discard(seq)
        self.model.held[seq] = Held(node, self.ids, deadline_ms)
        self.model.count[seq] = count
        if holder is not None:
            self.with_holder.add(self.ids)

    def claim(self) -> None:
        self.compare()
        if self.random.random() < 0.1:
            self.pass_floor()  # between two slices of a pass
        count = self.random.choice([1, 1, 2, 5, 20])
        if self.random.random() < 0.6 or not self.claim_run(count):
            self.claim_some(count)
        self.compare()

    def claim_run(self, count: int) -> bool:
        run = self.leases.choose_run(count, self.look)
        if run is None:
            return False
        assert run
        assert [*run] == self.model.choose(count)[: len(run)]
        if self.random.random() < 0.2:
            self.leases.put_back(run)
            return True
        deadline_ms, holder = self.now + self.random.choice([0, 5, 100, 300]), self.random.choice([None, "stream"])
        self.leases.claim_run(run, "a", self.ids + 1, deadline_ms, holder)
        for seq in run:
            self.new_lease(seq, "a", deadline_ms, holder, 1)
        return True

    def claim_some(self, count: int) -> None:
        """In as many turns as it takes; the last ones are put back, now and then."""
        expected, got = self.model.choose(count), list[int]()
        for _ in range(TURNS_MAX):
            chosen = self.leases.choose(count - len(got), self.look)
            taken = self.random.randrange(len(chosen) + 1) if self.random.random() < 0.1 else len(chosen)
            for seq in chosen[:taken]:
                self.claim_one(seq)
            got += chosen[:taken]
            if taken < len(chosen):
                self.leases.put_back(chosen[taken:])
                self.not_met_yet(self.model.due - self.leases._due)
                assert got == expected[: len(got)]
                return
            if len(got) == count or not (chosen or self.leases.has_back):
                break
        assert got == expected

    def not_met_yet(self, due: set[int]) -> None:
        """The pass ended before it came to these."""
        self.model.due -= due
        self.model.reclaim |= due

    def claim_one(self, seq: int) -> None:
        node, holder = self.random.choice(["a", "b"]), self.random.choice([None, "stream"])
        deadline_ms = self.now + self.random.choice([0, 5, 100, 300])
        self.new_lease(seq, node, deadline_ms, holder, self.model.count.get(seq, 0) + 1)
        self.leases.claim(seq, node, self.ids, deadline_ms, holder)

    def set_aside(self) -> None:
        self.sweep()
        expected, chosen = self.model.choose(1), self.leases.choose(1, self.look)
        while not chosen and self.leases.has_back:
            chosen = self.leases.choose(1, self.look)
        assert chosen == expected
        for seq in chosen:
            self.leases.set_aside(seq)
            self.model.count.setdefault(seq, 0)
            self.model.reclaim.add(seq)

    # Acks, nacks, extends

    def begin_acks(self) -> None:
        named = self.random.choices([*sorted(self.leases.held), self.head + 1], k=self.random.choice([1, 3, 10]))
        ids = [self.random.choice([None, None, None, self.id_of(seq), 1 << 50]) for seq in named]
        expected = []
        for seq, id in zip(named, ids, strict=True):
            one = self.model.held.get(seq)
            if one is not None and one.is_active("a", id, self.now):
                one.acking = True
                expected.append(seq)
        begun, skipped = self.leases.begin_acks("a", named, ids, self.now)
        assert begun == expected
        assert sorted(begun + skipped) == sorted(named)
        if begun:
            self.acking.append(begun)

    def id_of(self, seq: int) -> int | None:
        return self.model.held[seq].id if seq in self.model.held else None

    def end_acks(self) -> None:
        if not self.acking:
            return
        seqs = self.acking.pop(self.random.randrange(len(self.acking)))
        outcome = self.random.choice(["done", "failed", "refused"])
        if outcome == "done":
            self.leases.done(seqs)
            self.leases.forget_ahead()
            for seq in seqs:
                self.model.done(seq)
                del self.model.held[seq]
        elif outcome == "failed":
            self.leases.ack_failed(seqs)
            for seq in seqs:
                self.model.give_back(seq)
        else:
            self.refuse(seqs)

    def refuse(self, seqs: list[int]) -> None:
        self.leases.ack_refused(seqs)
        for seq in seqs:
            self.model.held[seq].acking = False

    def find(self) -> Lease | None:
        """A lease that both know to be active, or both do not."""
        if not self.leases.held:
            return None
        seq, node = self.random.choice(sorted(self.leases.held)), self.random.choice(["a", "b"])
        found, known = self.leases.find(seq, node, None, self.now), self.model.held.get(seq)
        assert (found is not None) == (known is not None and known.is_active(node, None, self.now))
        return found

    def nack(self) -> None:
        lease = self.find()
        if lease is not None:
            delay = self.random.choice([0, 0, 1, 50, 500])
            ready_at = self.now + delay if delay else 0
            self.leases.release(lease, ready_at)
            self.model.give_back(lease.seq, ready_at)

    def extend(self) -> None:
        lease = self.find()
        if lease is not None:
            deadline_ms = self.now + self.random.choice([0, 1, 50, 100, 500])
            self.leases.extend(lease, deadline_ms)
            self.model.held[lease.seq].deadline_ms = deadline_ms

    # Dead letters

    def limit(self) -> None:
        self.sweep()
        most = self.random.choice([0, 1, 2, 3])
        self.model.limit(most)
        self.leases.limit(most)

    def move(self) -> None:
        """Lowest first; what is not found at once, for all that is gone, is found in the end."""
        self.sweep()
        if self.random.random() < 0.3:
            self.pass_floor()
        expected = sorted(self.model.due)[: self.random.choice([1, 3, 10])]
        taken: list[int] = []
        for _ in range(len(self.leases._lowest_due) + 1):
            for one in self.leases.take_due(len(expected) - len(taken)):
                assert one.deliveries == self.model.count[one.seq]
                taken.append(one.seq)
        assert taken == expected
        self.model.due.difference_update(taken)
        self.model.moving.update(taken)
        if taken:
            self.moving.append(taken)

    def end_moves(self) -> None:
        if not self.moving:
            return
        seqs = self.moving.pop()
        if self.random.random() < 0.5:
            self.stay(seqs)
        else:
            self.leases.moved(seqs)
            self.leases.forget_ahead()
            for seq in seqs:
                self.model.done(seq)

    def stay(self, seqs: list[int]) -> None:
        self.leases.not_moved(seqs)
        stayed = self.model.moving.intersection(seqs)
        self.model.moving -= stayed
        self.model.reclaim |= stayed

    # Looking

    def page(self) -> None:
        at: int | None = self.random.randrange(self.head + 2)
        expected, count, found = self.model.listed(at or 0, self.now), self.random.choice([1, 2, 5, 50]), list[int]()
        while at is not None:
            page = self.leases.page(at, count, self.now)
            assert len(page.seqs) <= count
            assert page.through is None or page.through > at
            found, at = found + page.seqs, page.through
        assert found == expected

    def restart(self) -> None:
        if self.acking or self.moving or self.random.random() < 0.85:
            return
        self.sweep()
        self.use(Leases.restored(self.leases.saved()))
        if self.random.random() < 0.5:
            self.leases.restart()
        self.with_holder = set(self.ended)
        self.model.limit(-1)
        self.model.limit(0)

    def compare(self) -> None:
        self.sweep()
        leases, model = self.leases, self.model
        assert (leases.in_flight, leases.delayed, leases.deliveries) == (model.in_flight, model.delayed, model.count)
        assert leases.ready_of(len(model.live)) == model.ready
        held = {seq: Held(one.node, one.id, one.deadline_ms, one.acking, one.dead) for seq, one in leases.held.items()}
        assert held == model.held
        assert sorted(self.ended) == sorted(self.with_holder - {one.id for one in model.held.values()})
        due = set() if leases._is_limited_anew else leases._due
        assert (leases._reclaim | (leases._due - due), due, leases._moving) == (model.reclaim, model.due, model.moving)
        instants = [one.deadline_ms + 1 for one in model.held.values() if not one.acking] + [*model.delayed.values()]
        first = leases.next_change_ms()
        assert not instants or (first is not None and first <= min(instants))
        self.check_rows()

    def check_rows(self) -> None:
        """Whatever will be looked for is in its rows, and these are in order."""
        leases = self.leases
        ends = {(at, seq) for at, first, behind in rows_of(leases._expiries) for seq in range(first, behind)}
        assert ends >= {(one.deadline_ms, seq) for seq, one in self.model.held.items() if not one.acking}
        assert {*rows_of(leases._delays)} >= {(ready_at, seq) for seq, ready_at in leases.delayed.items()}
        assert {*rows_of(leases._lowest)} >= {(seq, leases.deliveries[seq]) for seq in leases._reclaim}
        assert {*rows_of(leases._lowest_due)} >= leases._due
        assert leases._blocks == sorted(leases._known)
        assert leases._known >= {seq >> leasing.BLOCK_SHIFT for seq in leases.deliveries}

    def drain(self) -> None:
        """In the end every live job can be had, once."""
        for seqs in self.acking:
            self.refuse(seqs)
        for seqs in self.moving:
            self.stay(seqs)
        self.model.limit(0)
        self.leases.limit(0)
        self.now += 10**9
        self.compare()
        expected = self.model.choose(len(self.model.live) + 1)
        assert sorted(expected) == sorted(self.model.live)
        got: list[int] = []
        while (chosen := self.leases.choose(50, self.look)) or self.leases.has_back:
            for seq in chosen:
                self.claim_one(seq)
            got += chosen
        assert got == expected


def rows_of(rows: Rows[Any]) -> list[Any]:
    """All of them; each heap is one."""
    for heap in (rows._heap, rows._older):
        assert all(heap[(at - 1) // 2] <= heap[at] for at in range(1, len(heap)))
    return rows._heap + rows._older


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_leases_are_what_going_through_all_of_them_would_tell(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLM-2, LSE-2, QOB-1, P-10]: order and counts do not depend on how much is done at a time."""
    History(seed, monkeypatch).run()
