"""The pump: items are served in slices; the clock is asked for only when it is needed (08 §4, [D-3, D-22, D-42])."""

from __future__ import annotations

from topics.engine.pump import Pump
from topics.engine.scheduler import Item
from topics.model import TopicConfig
from topics.storage.owner import InlineOwner
from topics.testing import ManualClock


class Prio:
    last_consumed_ms = None

    def __init__(self, priority: int) -> None:
        self.config = TopicConfig(priority=priority)


class Pumped:
    """A pump and what it told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.owner = InlineOwner()
        self.pump = Pump(self.owner, self.clock)
        self.told: list[str] = []
        self.served: list[str] = []
        self.pump.woken = lambda: self.told.append("woken")
        self.pump.armed = lambda: self.told.append("armed")

    def item(self, name: str, priority: int = 0, slices: int = 1, spend_ms: int = 0) -> Item:
        left = slices

        def serve() -> bool:
            nonlocal left
            self.served.append(name)
            self.clock.advance(spend_ms)
            left -= 1
            return left > 0

        return Item(Prio(priority), serve)


def test_what_is_served_at_once_needs_no_clock() -> None:
    """[D-3]"""
    it = Pumped()
    for name in "ab":
        it.pump.mark(it.item(name))
    it.owner.run()
    assert it.served == ["a", "b"]
    assert it.told == ["woken"]
    assert it.pump.next_due_ns() is None


def test_an_item_keeps_its_turn_until_it_is_done() -> None:
    """08 §4: it yields to the loop, keeping the topic."""
    it = Pumped()
    it.pump.mark(it.item("long", slices=3))
    it.pump.mark(it.item("other", priority=1000))
    it.pump.mark(it.item("last"))
    it.owner.run()
    assert it.served == ["other", "long", "long", "long", "last"]


def test_a_slice_is_over_after_2_ms_and_the_rest_ages_by_the_clock() -> None:
    """08 §4, [D-22]"""
    it = Pumped()
    for name in "abc":
        it.pump.mark(it.item(name, spend_ms=2))
    it.owner._soon.popleft()()
    assert it.served == ["a"]
    assert it.told == ["woken", "woken", "armed"]
    it.owner.run()
    assert it.served == ["a", "b", "c"]


def test_what_is_held_back_comes_when_its_window_is_over() -> None:
    """[D-42]"""
    it = Pumped()
    it.pump.scheduler.set_pressure(1.0)
    item = it.item("a", slices=1)
    it.pump.mark(item)
    it.owner.run()
    it.told.clear()
    it.pump.mark(item)
    it.owner.run()
    assert (it.served, it.told) == (["a"], ["woken", "armed"])
    assert it.pump.next_due_ns() == it.clock.monotonic_ns() + 20_000_000
    it.clock.advance(20)
    it.pump.tick()
    it.owner.run()
    assert it.served == ["a", "a"]


def test_what_is_marked_during_a_suspension_ages_by_the_clock() -> None:
    """[D-45]"""
    it = Pumped()
    it.pump.scheduler.defer(True)
    it.pump.mark(it.item("low", priority=-1000))
    assert it.told == ["armed"]
    it.clock.advance(10_000)
    it.pump.tick()
    it.owner.run()
    assert it.served == ["low"]


def test_a_service_that_fails_costs_nobody_else() -> None:
    """[D-74]"""
    it = Pumped()

    def fail() -> bool:
        raise ValueError("broken")

    broken = Item(Prio(0), fail)
    it.pump.mark(broken)
    it.pump.mark(it.item("other"))
    it.owner.run()
    assert it.served == ["other"]
    assert not broken.serving
    it.pump.mark(broken)
    assert broken.dirty


def test_who_looks_at_the_load_is_woken_at_every_slice_of_a_long_service() -> None:
    """08 §5: nothing is popped meanwhile, and yet there is something to see."""
    pumped = Pumped()
    pumped.pump.mark(pumped.item("long", slices=5))
    pumped.owner.run()
    assert pumped.served == ["long"] * 5
    assert pumped.told.count("woken") == 5
