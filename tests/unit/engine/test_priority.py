"""Priority: the formula, its check points and the bands (01 §16, 08 §2-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine import priority as rules
from topics.model import TopicConfig

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("idle_ms", "auto"),
    [(0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0), (300_000, 0), (10**9, 0)],
)
def test_decay_points(idle_ms: int, auto: int) -> None:
    """[PRI-3]"""
    assert rules.effective_priority(TopicConfig(), NOW - idle_ms, NOW) == auto


def test_auto_stops_at_its_floor_and_not_before() -> None:
    assert rules.auto(TopicConfig(), NOW - 299_999, NOW) > 0.4
    assert rules.auto(TopicConfig(), NOW - 300_000, NOW) == 0


def test_never_consumed_is_nothing_and_a_clock_that_stepped_back_is_just_now() -> None:
    """[PRI-3]"""
    assert rules.effective_priority(TopicConfig(), None, NOW) == 0
    assert rules.effective_priority(TopicConfig(), NOW + 5000, NOW) == 500


@pytest.mark.parametrize("given", [0, 7, -7, 1000, 1001, 2**31 - 1, -1001, -(2**31)])
def test_a_manual_priority_is_clamped_on_use_and_switches_auto_off(given: int) -> None:
    """[PRI-2, CFG-6]"""
    config = TopicConfig(priority=given)
    assert rules.effective_priority(config, NOW, NOW) == max(-1000, min(given, 1000))
    assert config.priority == given


def test_auto_priority_can_be_switched_off() -> None:
    assert rules.effective_priority(TopicConfig(auto_priority=False), NOW, NOW) == 0


@pytest.mark.parametrize(
    ("waited_ms", "age"), [(0, 0), (5, 1), (14, 1), (1000, 100), (9999, 1000), (10_000, 1000), (10**9, 1000), (-5, 0)]
)
def test_waiting_adds_100_per_second_up_to_1000(waited_ms: int, age: int) -> None:
    assert rules.priority(TopicConfig(auto_priority=False), None, NOW - waited_ms, NOW) == age


def test_the_effective_priority_leaves_age_out() -> None:
    """[PRI-1]"""
    config = TopicConfig(priority=3)
    assert rules.priority(config, None, NOW - 2000, NOW) == 203
    assert rules.priority(config, None, None, NOW) == rules.effective_priority(config, None, NOW) == 3


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.5, 1), (1.5, 2), (2.5, 3), (-0.5, -1), (-2.5, -3), (0.49, 0), (-0.49, 0), (353.6, 354)]
)
def test_halves_are_rounded_away_from_zero(value: float, rounded: int) -> None:
    """[PRI-1]"""
    assert rules.round_half_away(value) == rounded


@pytest.mark.parametrize(
    ("p", "band", "weight"),
    [
        (2000, 4, 8),
        (750, 4, 8),
        (749, 3, 4),
        (500, 3, 4),
        (499, 2, 2),
        (250, 2, 2),
        (249, 1, 1),
        (0, 1, 1),
        (-1, 0, 1),
        (-1000, 0, 1),
    ],
)
def test_bands(p: int, band: int, weight: int) -> None:
    """[PRI-5]"""
    assert rules.band(p) == band
    assert rules.WEIGHTS[band] == weight


@given(st.integers(-(2**31), 2**31 - 1))
def test_ten_seconds_of_waiting_lift_everything_out_of_the_lowest_band(given: int) -> None:
    """[D-23]"""
    p = rules.priority(TopicConfig(priority=given), None, NOW - 10_000, NOW)
    assert rules.band(p) >= 1
    assert given < -250 or rules.band(p) == 4


@given(st.integers(0, 400_000), st.integers(0, 400_000))
def test_the_longer_idle_the_lower(one: int, other: int) -> None:
    config = TopicConfig()
    values = [rules.effective_priority(config, NOW - idle, NOW) for idle in sorted((one, other))]
    assert values[0] >= values[1]
