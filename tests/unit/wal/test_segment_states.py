"""The life of a segment (07 §1.1)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from topics.errors import IllegalTransition
from topics.wal.core import Segment, State

LIFE = [
    State.CREATING,
    State.PREALLOCATING,
    State.READY,
    State.ACTIVE,
    State.ROTATING,
    State.FINALIZED,
    State.ARCHIVED,
    State.DELETED,
]
# A preparation that failed and a ready segment at close are unlinked (07 §1.3, W-12): the one way around the table.
GIVEN_BACK = [(state, State.DELETED) for state in LIFE[:3]]
LEGAL = [*pairwise(LIFE), *GIVEN_BACK]
ILLEGAL = [(a, b) for a in LIFE for b in LIFE if (a, b) not in LEGAL]


def test_the_states_are_the_eight_of_the_table() -> None:
    """07 §1.1."""
    assert list(State) == LIFE


@pytest.mark.parametrize(("old", "new"), LEGAL)
def test_a_segment_takes_each_step_of_its_life(old: State, new: State) -> None:
    """W-10."""
    segment = Segment(1, old)
    segment.to(new)
    assert segment.state is new


@pytest.mark.parametrize(("old", "new"), ILLEGAL)
def test_every_other_transition_is_illegal_and_changes_nothing(old: State, new: State) -> None:
    """W-10."""
    segment = Segment(1, old)
    with pytest.raises(IllegalTransition):
        segment.to(new)
    assert segment.state is old
