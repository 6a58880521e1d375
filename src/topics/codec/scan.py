"""What a codec tells the log that calls it: how far bytes are valid, and why they stop there (07 §1.2).

A codec is a pure function of bytes [W-91]: no I/O, no clock, no state. It never raises on hostile input
and never reads outside the buffer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Verdict = Literal["clean", "torn", "corrupt", "format"]
"""clean: ends at a record end, or in zeros · torn: a crash may leave this · corrupt: only damage can ·
format: intact bytes this version cannot interpret."""

Place = Literal["last", "inner", "beyond"]
"""last: the highest segment with content · inner: below it · beyond: above it, without content."""


_ZEROS = bytes(65536)


class Scan(NamedTuple):
    """How much of a segment is valid."""

    end: int
    """Offset behind the last byte to keep."""
    records: int
    verdict: Verdict
    detail: str = ""


class FileInfo(NamedTuple):
    """What a codec may need for the first bytes of a new segment."""

    id: int
    previous: tuple[int, int] | None
    """Id and logical length of the segment before it."""
    context: object = None


class Codec(Protocol):
    """Everything the segmented log does not know about its content [W-2]."""

    def preamble(self, info: FileInfo) -> bytes:
        """First bytes of a new segment; may be empty."""
        ...

    def scan(self, view: memoryview, start: int, place: Place) -> Scan:
        """Walk the records of a whole segment from `start` and say where the valid part ends."""
        ...


def zero_tail(view: memoryview, start: int) -> int:
    """Offset of the zeros that end the buffer, not below `start`; its length when it ends in data."""
    end = len(view)
    while end > start:
        low = max(start, end - len(_ZEROS))
        piece = bytes(view[low:end])
        # Comparing is many times as fast as stripping, and prepared files are mostly zeros.
        if piece != _ZEROS[: len(piece)]:
            return low + len(piece.rstrip(b"\0"))
        end = low
    return start
