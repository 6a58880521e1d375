"""What is due at an instant: a heap that forgets what was cancelled."""

from __future__ import annotations

import random

import pytest

from topics.engine.alarms import Alarms


def test_alarms_ring_in_the_order_of_their_instants_and_then_of_their_arming() -> None:
    alarms, rung = Alarms(), list[object]()
    for due, name in ((30, "c"), (10, "a"), (20, "b"), (10, "a2"), (40, "d")):
        alarms.at(due, lambda name=name: rung.append(name))  # type: ignore[misc]
    alarms.ring(9)
    assert rung == []
    alarms.ring(30)
    assert rung == ["a", "a2", "b", "c"]
    assert alarms.next_ns() == 40


def test_one_rings_once_and_may_be_cancelled_before_and_after() -> None:
    alarms, rung = Alarms(), list[object]()
    one = alarms.at(10, lambda: rung.append(1))
    other = alarms.at(10, lambda: rung.append(2))
    other.cancel()
    other.cancel()
    alarms.ring(10)
    alarms.ring(10)
    one.cancel()
    assert rung == [1]
    assert alarms.next_ns() is None


def test_who_is_rung_may_cancel_who_is_due_with_it() -> None:
    alarms, rung = Alarms(), list[object]()
    later = alarms.at(11, lambda: rung.append("later"))
    alarms.at(10, later.cancel)
    alarms.ring(20)
    assert rung == []
    assert alarms.next_ns() is None


@pytest.mark.parametrize("due", [0, 15, 20])
def test_what_is_armed_by_an_alarm_waits_for_the_next_time_and_keeps_nobody_from_ringing(due: int) -> None:
    """Also when it is due before those that are due now."""
    alarms, rung = Alarms(), list[object]()

    def again() -> None:
        rung.append("first")
        alarms.at(due, lambda: rung.append("anew"))

    alarms.at(10, again)
    alarms.at(18, lambda: rung.append("second"))
    alarms.ring(20)
    assert rung == ["first", "second"]
    alarms.ring(20)
    assert rung == ["first", "second", "anew"]


def test_one_that_fails_keeps_nobody_from_ringing(caplog: pytest.LogCaptureFixture) -> None:
    alarms, rung = Alarms(), list[object]()

    def fail() -> None:
        raise LookupError("of the alarm")

    alarms.at(10, fail)
    alarms.at(10, lambda: rung.append("other"))
    alarms.ring(10)
    assert rung == ["other"]
    assert "of the alarm" in caplog.text


def test_who_waits_for_the_next_one_is_told_when_it_is_earlier_than_it_was() -> None:
    alarms, told = Alarms(), list[object]()
    alarms.armed = lambda: told.append(alarms.next_ns())
    first = alarms.at(100, lambda: None)
    alarms.at(200, lambda: None)
    alarms.at(50, lambda: None)
    assert told == [100, 50]
    first.cancel()
    alarms.ring(60)
    alarms.at(150, lambda: None)
    assert told == [100, 50, 150]


def test_ten_thousand_alarms_armed_and_cancelled_leave_nothing() -> None:
    """As heartbeats and long polls do: most are cancelled long before they are due."""
    alarms, rung, chance = Alarms(), list[int](), random.Random(5)
    kept = []
    for number in range(10_000):
        one = alarms.at(chance.randrange(1_000_000), lambda number=number: rung.append(number))  # type: ignore[misc]
        if number % 100:
            one.cancel()
        else:
            kept.append(number)
        assert len(alarms._heap) <= 2 * len(kept) + 128, "what is cancelled is cleared away"
    alarms.ring(1_000_000)
    assert sorted(rung) == kept
    assert alarms._heap == []
    assert alarms._cancelled == 0
