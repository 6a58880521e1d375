"""Frames held against their entries, in one pass of the kernel or one by one: the verdicts are the same [S-348]."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codec.test_segment import MASK, raw_frame
from topics.codec import kernel, segment

FRAMES = st.lists(st.tuples(st.sampled_from([b"", b"n", b"\xff"]), st.binary(max_size=9)), min_size=1, max_size=8)


def judged(data: bytes, places: list[tuple[int, int, int]], mask: int = MASK) -> list[bool]:
    """The verdict about starts, sizes and seqs, which the twin has to share."""
    starts, sizes, seqs = (np.array(column, np.int64) for column in zip(*places, strict=True))
    made: list[list[bool]] = [segment.frames_agree(data, starts, sizes, seqs.astype(np.uint64), mask).tolist()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        made.append(segment.frames_agree(data, starts, sizes, seqs.astype(np.uint64), mask).tolist())
    assert made[0] == made[1]
    return made[0]


def laid_out(frames: list[bytes]) -> tuple[bytes, list[tuple[int, int, int]]]:
    ends = np.cumsum([len(one) for one in frames]).tolist()
    return b"".join(frames), [(end - len(one), len(one), seq) for seq, (end, one) in enumerate(zip(ends, frames), 1)]  # noqa: B905


@given(FRAMES, st.data())
def test_one_pass_and_one_by_one_judge_alike(bodies: list[tuple[bytes, bytes]], chance: st.DataObject) -> None:
    """Whole or damaged anywhere, all of them or some, at their places or beside them."""
    frames = [
        raw_frame(seq, segment.HAS_TAG if tag else 0, tag=tag, data=data) for seq, (tag, data) in enumerate(bodies, 1)
    ]
    data, places = laid_out(frames)
    chosen = sorted(chance.draw(st.sets(st.integers(0, len(places) - 1), min_size=1)))
    asked = [places[at] for at in chosen]
    judged(data, asked)
    at, bit = chance.draw(st.integers(0, len(data) - 1)), chance.draw(st.integers(0, 7))
    judged(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], asked)
    judged(data[:at], asked)
    moved = chance.draw(st.integers(-3, 3))
    judged(data, [(start + moved, size, seq) for start, size, seq in asked])
    judged(data, [(start, max(size + moved, 0), seq) for start, size, seq in asked])
    judged(data, [(start, size, max(seq + moved, 0)) for start, size, seq in asked])
    assert not any(judged(data, asked, MASK ^ 1))


def test_intact_frames_agree_and_damage_is_of_its_frame_alone() -> None:
    data, places = laid_out([raw_frame(seq, data=b"12345") for seq in range(1, 6)])
    assert judged(data, places) == [True] * 5
    assert judged(data, places[1::2]) == [True] * 2
    at = places[2][0] + 30
    assert judged(data[:at] + b"\0" + data[at + 1 :], places) == [True, True, False, True, True]
    assert judged(data, [(start, size, seq + 1) for start, size, seq in places]) == [False] * 5
