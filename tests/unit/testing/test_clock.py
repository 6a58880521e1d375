"""ManualClock: time moves only by hand, and monotonic time only forward."""

import pytest

from topics.clock import Clock
from topics.testing import ManualClock
from topics.testing.clock import TEN_YEARS_MS


def test_time_stands_still_until_moved() -> None:
    clock: Clock = ManualClock(start_ms=1000)
    assert (clock.now_ms(), clock.monotonic_ns()) == (clock.now_ms(), clock.monotonic_ns()) == (1000, 5_000_000_000)


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(start_ms=1000)
    before = clock.monotonic_ns()
    clock.advance(ms=250)
    assert clock.now_ms() == 1250
    assert clock.monotonic_ns() - before == 250_000_000
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


@pytest.mark.parametrize("ms", [-TEN_YEARS_MS, -1, 1, TEN_YEARS_MS])
def test_a_jump_of_the_wall_clock_leaves_monotonic_time_alone(ms: int) -> None:
    clock = ManualClock()
    wall, monotonic = clock.now_ms(), clock.monotonic_ns()
    clock.jump(ms)
    assert clock.now_ms() == wall + ms
    assert clock.monotonic_ns() == monotonic


def test_a_jump_beyond_ten_years_is_refused() -> None:
    with pytest.raises(ValueError, match="ten years"):
        ManualClock().jump(TEN_YEARS_MS + 1)
