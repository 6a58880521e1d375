"""SteppedOwner: every order of work and reports that threads could produce, and no other."""

from __future__ import annotations

import random

from topics.testing.owner import SteppedOwner


def two_lanes(owner: SteppedOwner, seen: list[str]) -> None:
    """Two pieces of work in each of two lanes; each piece and each report tells of itself."""
    for lane in "ab":
        for n in (1, 2):
            owner.aside(
                lane,
                lambda lane=lane, n=n: seen.append(f"work {lane}{n}"),
                lambda error, lane=lane, n=n: seen.append(f"report {lane}{n}"),
            )
    owner.soon(lambda: seen.append("soon"))


def test_nothing_happens_by_itself() -> None:
    """06 §6.3: helpers move only when they are told."""
    owner, seen = SteppedOwner(), list[str]()
    two_lanes(owner, seen)
    assert seen == []
    owner.run()
    assert (seen, owner.waiting("a"), owner.waiting("c")) == (["soon"], 2, 0)


def test_settling_does_everything_once() -> None:
    """Also what reports start."""
    owner, seen = SteppedOwner(), list[str]()
    two_lanes(owner, seen)
    owner.aside("a", lambda: None, lambda error: owner.aside("b", lambda: seen.append("more"), lambda error: None))
    owner.move(random.Random(1))
    owner.settle()
    assert len(seen) == len(set(seen)) == 10


def test_a_lane_works_and_reports_in_order_and_lanes_interleave() -> None:
    """As threads do: a report comes behind its work, but not at once; lanes know nothing of each other."""
    orders = set()
    for seed in range(300):
        owner, seen, rng = SteppedOwner(), list[str](), random.Random(seed)
        two_lanes(owner, seen)
        while len(seen) < 9:
            owner.move(rng)
        for lane in "ab":
            for what in ("work", "report"):
                assert seen.index(f"{what} {lane}1") < seen.index(f"{what} {lane}2")
            for n in "12":
                assert seen.index(f"work {lane}{n}") < seen.index(f"report {lane}{n}")
        orders.add(tuple(seen))
    assert len(orders) > 200
    assert any(seen.index("work a2") < seen.index("report a1") for seen in orders)


def test_an_error_of_the_work_is_its_report() -> None:
    """The owner judges it."""
    owner, heard = SteppedOwner(), list[BaseException | None]()

    def fails() -> None:
        raise OSError("no")

    owner.aside("a", fails, heard.append)
    owner.settle()
    assert [type(error) for error in heard] == [OSError]
