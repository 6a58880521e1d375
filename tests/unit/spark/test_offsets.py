"""Offsets of a stream as text, and how a trigger's budget is split."""

from __future__ import annotations

import json
import random

import pytest

from topics.spark import offsets
from topics.spark.failure import SourceError
from topics.spark.offsets import Behind, Entry, shares
from topics.spark.plan import Stretch


def test_an_offset_is_the_same_text_whatever_order_it_was_made_in() -> None:
    """K-20: Spark compares text; keys are sorted, members are epoch, from, seq."""
    made = {"b": Entry(2, 0, 7), "a": Entry(1, 3, 3)}
    text = json.dumps(offsets.told(made))
    assert text == '{"a": {"epoch": 1, "from": 3, "seq": 3}, "b": {"epoch": 2, "from": 0, "seq": 7}}'
    assert json.dumps(offsets.told(offsets.parse(json.loads(text)))) == text
    assert offsets.parse({}) == {}


@pytest.mark.parametrize(
    "given", [{"a": 1}, {"a": {"epoch": 1, "seq": 2}}, {"a": {"epoch": 1, "from": 3, "seq": 2}}, {"a": None}, ["a"]]
)
def test_an_offset_of_another_source_is_refused(given: dict[str, object]) -> None:
    """K-15"""
    with pytest.raises(SourceError, match=r"^topics: bad_checkpoint: .* is no offset of topics — "):
        offsets.parse(given)


@pytest.mark.parametrize(
    ("budget", "wanted", "given"),
    [
        (100, [3, 5], [3, 5]),
        (8, [3, 5], [3, 5]),
        (10, [1000, 1, 1, 1], [7, 1, 1, 1]),
        (10, [10, 30], [3, 7]),
        (10, [50, 50, 50], [4, 3, 3]),
        (1, [5, 5, 5], [1, 1, 1]),
        (2, [0, 9, 0], [0, 2, 0]),
        (1, [7], [1]),
    ],
)
def test_a_budget_is_split_by_backlog_with_one_for_everybody(budget: int, wanted: list[int], given: list[int]) -> None:
    """K-21: what is left over goes in name order."""
    assert shares(budget, wanted) == given


def test_a_split_spends_the_budget_and_no_more_where_it_can() -> None:
    """K-21"""
    pick = random.Random(7)
    for _ in range(500):
        wanted = [pick.choice([0, 1, 2, 50, 10_000]) for _ in range(pick.randint(1, 9))]
        budget = pick.randint(1, 200)
        given = shares(budget, wanted)
        some = sum(1 for one in wanted if one)
        assert all(min(want, 1) <= got <= want for got, want in zip(given, wanted, strict=True))
        assert sum(given) == min(sum(wanted), max(budget, some))


def test_bytes_reach_as_far_as_the_stretches_tell() -> None:
    """K-21: whole stretches, then a share of one; one record in any case."""
    stretches = {"a": [Stretch(11, 20, 1000), Stretch(21, 30, 2000)], "b": [Stretch(1, 4, 400)]}
    a, b = Behind("a", 10, 30), Behind("b", 0, 4)
    assert offsets.within_bytes(3400, [a, b], stretches) == {"a": 30, "b": 4}
    assert offsets.within_bytes(2000, [a], stretches) == {"a": 25}
    assert offsets.within_bytes(1000, [a], stretches) == {"a": 20}
    assert offsets.within_bytes(1, [a, b], stretches) == {"a": 11, "b": 1}
    half = offsets.within_bytes(1700, [a, b], stretches)
    assert 20 < half["a"] < 24
    assert half["b"] == 2
    assert offsets.within_bytes(5, [Behind("gone", 3, 9)], {"gone": []}) == {"gone": 9}
