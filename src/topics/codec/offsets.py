"""Where frames begin in a buffer: 64-bit numbers in bytes, little-endian, so that no record needs an object [P-10].

    pack      numbers → bytes; `array("Q", bytes)` is the way back
    at        one of them
    shifted   those of several buffers one behind another, each moved by its own base

Pure functions; any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Final

from topics.codec import kernel

SIZE: Final = 8
"""Of one, in bytes."""

_ONE = Struct("<Q")


def pack(numbers: Iterable[int]) -> bytes:
    """Numbers as bytes."""
    return array("Q", numbers).tobytes()


def at(offsets: bytes, which: int) -> int:
    """One of them, counted from 0."""
    found: int = _ONE.unpack_from(offsets, which * SIZE)[0]
    return found


def shifted(parts: list[tuple[int, bytes]]) -> bytes:
    """Offsets with what is added to each of them, one part behind another; `ValueError` for one that does not fit."""
    if kernel.native is not None:
        return kernel.native.shifted(parts)
    try:
        return pack([base + offset for base, offsets in parts for offset in array("Q", offsets)])
    except OverflowError:
        raise ValueError("a place does not fit 64 bits") from None
