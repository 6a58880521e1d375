"""Pins: what they hold, what waits for them, and how they end [A-8, A-15]."""

from __future__ import annotations

import pytest

from topics.engine.alarms import Alarms
from topics.engine.pins import PIN_MS_MAX, PINS_MAX, Everything, Files, Pin, Pins
from topics.errors import LimitReached, PinNotFound
from topics.testing import ManualClock


class Desk:
    """Pins with a clock moved by hand, and what was unlinked."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.alarms = Alarms()
        self.pins = Pins(self.clock, self.alarms)
        self.gone: list[tuple[int, int | None, int | None]] = []

    def files(self, topic_id: int = 1, *named: tuple[int, int], ms: int = 1000) -> Pin:
        pin = self.pins.make(Files(topic_id, frozenset(named)))
        self.pins.start(pin, ms)
        return pin

    def unlink(self, topic_id: int, first: int | None, generation: int | None) -> None:
        key = (topic_id, first, generation)
        self.pins.when_free(*key, lambda: self.gone.append(key))

    def later(self, ms: int) -> None:
        self.clock.advance(ms)
        self.alarms.ring(self.clock.monotonic_ns())


def test_what_no_pin_holds_goes_at_once() -> None:
    """A-8"""
    desk = Desk()
    desk.files(1, (1, 0), (4, 2))
    for key in ((1, 4, 1), (1, 7, None), (2, 1, 0), (2, None, None)):
        desk.unlink(*key)
        assert desk.gone.pop() == key


def test_what_a_pin_holds_goes_when_the_last_pin_that_holds_it_ends() -> None:
    """A-8: a segment's data of one generation, all its files, its topic's directory."""
    desk = Desk()
    first, second = desk.files(1, (4, 2)), desk.files(1, (4, 2), ms=5000)
    held = [(1, 4, 2), (1, 4, None), (1, None, None)]
    for key in held:
        desk.unlink(*key)
    desk.pins.release(first.id)
    assert desk.gone == []
    desk.later(4999)
    assert desk.gone == []
    desk.later(1)
    assert desk.gone == held
    with pytest.raises(PinNotFound):
        desk.pins.release(second.id)


def test_a_pin_that_was_not_started_does_not_end_by_itself_and_is_nobodys_to_name() -> None:
    """A-15: while a snapshot is being written everything is held; who gave up is as if he had never asked."""
    desk = Desk()
    pin = desk.pins.make(Everything())
    desk.unlink(9, 1, 0)
    desk.later(10 * PIN_MS_MAX)
    assert desk.gone == []
    with pytest.raises(PinNotFound):
        desk.pins.find(pin.id)
    desk.pins.give_up(pin)
    desk.pins.give_up(pin)
    assert desk.gone == [(9, 1, 0)]


def test_a_snapshots_pin_holds_what_the_snapshot_names_and_freezes_it() -> None:
    """A-15: what came behind it is dropped and rewritten as ever."""
    desk = Desk()
    pin = desk.pins.make(Everything())
    assert desk.pins.is_frozen(7, 1_000_000)
    assert isinstance(pin.files, Everything)
    pin.files.ckpt_seqs = {1: 10, 2: 0}
    desk.pins.start(pin, 1000)
    assert [desk.pins.is_frozen(1, first) for first in (1, 10, 11)] == [True, True, False]
    for key in ((1, 10, 0), (1, 11, None), (1, None, None), (2, 1, 0), (3, 1, None)):
        desk.unlink(*key)
    assert desk.gone == [(1, 11, None), (2, 1, 0), (3, 1, None)]
    desk.files(1, (20, 0))
    assert not desk.pins.is_frozen(1, 20)


def test_there_are_at_most_64_pins() -> None:
    """A-8; one that ends makes room."""
    desk = Desk()
    made = [desk.files() for _ in range(PINS_MAX)]
    assert len({pin.id for pin in made}) == PINS_MAX == 64
    with pytest.raises(LimitReached):
        desk.files()
    desk.pins.release(made[0].id)
    desk.files()


def test_closing_ends_all_pins() -> None:
    """What they held back is unlinked before the engine lets go of its directory."""
    desk = Desk()
    desk.files(1, (1, 0))
    desk.files(2, (1, 0))
    desk.unlink(1, 1, 0)
    desk.unlink(2, 1, None)
    desk.pins.end()
    assert desk.gone == [(1, 1, 0), (2, 1, None)]
    assert len(desk.pins) == 0
