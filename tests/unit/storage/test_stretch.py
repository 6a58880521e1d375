"""A stretch of records in a sealed segment, cut to what fits (06 §10)."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from topics.codec import segment as codec
from topics.storage.segread import Stretch


def stretch_of(sizes: list[int], start: int) -> Stretch:
    entries, at = bytearray(), start
    for size in sizes:
        entries += struct.pack("<II", at, size).ljust(codec.ENTRY_BYTES, b"\0")
        at += size
    return Stretch(bytes(entries), start, at)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(0, 10_000), st.integers(0, 6_000))
def test_as_many_as_fit_and_one_at_least(sizes: list[int], start: int, max_bytes: int) -> None:
    found = stretch_of(sizes, start).within(max_bytes)
    fitting = [count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) <= max_bytes]
    assert found == stretch_of(sizes[: max(fitting, default=1)], start)
