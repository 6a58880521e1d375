"""Which blocks of a cold segment hold some frames [S-321]."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topics.storage.tiers.blocks import BLOCK_BYTES, BlockCache, ColdRead, Place, blocks_of, blocks_of_all

PLACES = st.lists(
    st.tuples(st.integers(0, 40 * BLOCK_BYTES), st.integers(1, 3 * BLOCK_BYTES)), max_size=12
)  # fmt: skip


def found(places: list[tuple[int, int]]) -> list[int]:
    """As the walk of a reader asks: offsets and sizes of index entries."""
    offsets, sizes = [offset for offset, _ in places], [size for _, size in places]
    return list(blocks_of_all(np.array(offsets, np.uint32), np.array(sizes, np.uint32)))


@given(PLACES)
def test_frames_anywhere_need_the_blocks_that_each_of_them_needs(places: list[tuple[int, int]]) -> None:
    assert found(places) == sorted({number for place in places for number in blocks_of(*place)})


@given(st.integers(0, 1 << 20), st.lists(st.integers(1, BLOCK_BYTES), min_size=1, max_size=40))
def test_frames_behind_each_other_need_the_blocks_they_lie_in(start: int, sizes: list[int]) -> None:
    places = []
    for size in sizes:
        places.append((start, size))
        start += size
    assert found(places) == sorted({number for place in places for number in blocks_of(*place)})


def test_a_hole_as_large_as_a_block_is_not_read() -> None:
    assert found([(0, 10), (2 * BLOCK_BYTES, 10)]) == [0, 2]
    assert found([(0, BLOCK_BYTES), (2 * BLOCK_BYTES, 10)]) == [0, 2]
    assert found([(0, 10), (2 * BLOCK_BYTES - 1, 10)]) == [0, 1, 2]
    assert found([]) == []


@given(start=st.integers(0, 3 * BLOCK_BYTES - 2), size=st.integers(1, 3 * BLOCK_BYTES))
def test_a_span_holds_its_bytes_whichever_blocks_they_lie_in(start: int, size: int) -> None:
    data, end = _DATA, min(start + size, 3 * BLOCK_BYTES)
    read = ColdRead(BlockCache(0))
    place = Place(10, 1, 0)
    missing = read.span(place, len(data), start, end)
    assert isinstance(missing, list)
    for one in missing:
        at = one.key.number * BLOCK_BYTES
        read.blocks[one.key] = data[at : at + one.length]
    found = read.span(place, len(data), start, end)
    assert isinstance(found, tuple)
    assert found[0][start - found[1] : end - found[1]] == data[start:end]


_DATA = bytes(range(251)) * (3 * BLOCK_BYTES // 251 + 1)
