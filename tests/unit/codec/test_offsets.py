"""Places as bytes: what is packed comes back, and moves as a whole."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec import kernel, offsets
from topics.testing.parity import using

places = st.lists(st.integers(0, 2**40), max_size=20)


@given(places)
def test_each_place_can_be_asked_for(numbers: list[int]) -> None:
    packed = offsets.pack(numbers)
    assert len(packed) == len(numbers) * offsets.SIZE
    assert [offsets.at(packed, which) for which in range(len(numbers))] == numbers


@pytest.mark.parametrize("chosen", [None, kernel.installed()], ids=["pure", "as installed"])
@given(st.lists(st.tuples(st.integers(0, 2**63), places), max_size=8))
def test_parts_move_by_their_own_base_and_follow_each_other(
    chosen: kernel.Native | None, parts: list[tuple[int, list[int]]]
) -> None:
    """P-10: the places of a write in the log, without an object for each record."""
    with using(chosen):
        found = array("Q", offsets.shifted([(base, offsets.pack(numbers)) for base, numbers in parts]))
    assert list(found) == [base + number for base, numbers in parts for number in numbers]


@pytest.mark.parametrize("chosen", [None, kernel.installed()], ids=["pure", "as installed"])
def test_a_place_beyond_64_bits_is_none(chosen: kernel.Native | None) -> None:
    with using(chosen), pytest.raises(ValueError, match="does not fit"):
        offsets.shifted([(2**64 - 1, offsets.pack([0, 1]))])
