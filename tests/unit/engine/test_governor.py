"""Governor: pressure and the ladder (08 §5, §10 points 7 and 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.governor import Governor
from topics.engine.scheduler import SchedulerConfig


def test_pressure_rises_quickly_and_falls_slowly_and_deferring_has_two_thresholds() -> None:
    """[D-41], §10 point 7."""
    governor = Governor(SchedulerConfig(depth_free=2))
    high = (40, 6.0, 1.0)
    low = (0, 0.2, 0.2)
    samples = [(0, 0.2, 0.1), (8, 1.0, 0.5), *[high] * 5, *[low] * 4]
    expected = [0.02, 0.11, 0.555, 0.7775, 0.8888, 0.9444, 0.9722, 0.7857, 0.6366, 0.5173, 0.4218]
    found = []
    deferring = []
    for sample in samples:
        found.append(governor.sample(*sample))
        deferring.append(governor.deferring)
    assert found == pytest.approx(expected, abs=0.0001)
    assert deferring == [False] * 6 + [True] * 3 + [False] * 2


def test_windows_and_levels_follow_pressure() -> None:
    """[D-41], §10 point 8."""
    governor = Governor()
    told = []
    for pressure in (0.11, 0.2, 0.3, 0.4, 0.555, 0.9):
        governor.pressure = pressure
        told.append((round(governor.window_ms(), 3), round(governor.commit_slice_ms(), 4), governor.level()))
    assert told == [
        (0, 0.5, 0),
        (0, 0.5, 0),
        (2.5, 0.5, 1),
        (5, 0.5, 1),
        (8.875, 2.9542, 2),
        (17.5, 8.4167, 2),
    ]


def test_every_signal_presses_by_itself_and_the_strongest_counts() -> None:
    """08 §5: with N = 4 there is room for four items, and 64 are too many."""
    pressed = {
        (4, 0.0, 0.5, 0.0): 0.0,
        (34, 0.0, 0.0, 0.0): 0.25,
        (64, 0.0, 0.0, 0.0): 0.5,
        (0, 2.5, 0.0, 0.0): 0.25,
        (0, 2.5, 0.0, 5.0): 0.5,
        (0, 0.0, 0.75, 0.0): 0.25,
        (34, 1.0, 1.0, 4.0): 0.5,
        (10**6, 10.0**6, 7.0, 10.0**6): 0.5,
    }
    assert {sample: Governor().sample(*sample) for sample in pressed} == pytest.approx(pressed)


def test_pressure_ends_at_nothing() -> None:
    """08 §5: it does not fade for ever."""
    governor = Governor()
    governor.sample(64, 0.0, 0.0)
    pressures = [governor.sample(0, 0.0, 0.0) for _ in range(30)]
    assert pressures == sorted(pressures, reverse=True)
    assert pressures[-1] == 0
    assert min(one for one in pressures if one) >= 0.01


def test_two_high_samples_are_no_reason_to_defer() -> None:
    """[D-41] Three in a row are."""
    governor = Governor()
    governor.pressure = 0.9
    for raw in (64, 64, 0, 64, 64):
        governor.sample(raw, 0.0, 0.0)
        assert not governor.deferring
    governor.sample(64, 0.0, 0.0)
    assert governor.deferring
    assert governor.level() == 3


@pytest.mark.parametrize(("pressure", "retry_after_ms"), [(0.0, 100), (1.0, 2000), (0.5, 1050)])
def test_the_harder_the_pressure_the_later_a_client_tries_again(pressure: float, retry_after_ms: int) -> None:
    """[D-51]"""
    governor = Governor()
    governor.pressure = pressure
    assert governor.retry_after_ms() == retry_after_ms


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6)),
        max_size=30,
    )
)
def test_pressure_stays_between_none_and_full(samples: list[tuple[int, float, float, float]]) -> None:
    """[D-40]"""
    governor = Governor()
    for sample in samples:
        assert 0 <= governor.sample(*sample) <= 1
        assert 0 <= governor.window_ms() <= 20
        assert 0.5 <= governor.commit_slice_ms() <= 10
        assert not governor.deferring or governor.pressure >= 0.6
