"""Large bodies of writes, decoded piece by piece: one call over megabytes would keep everybody else waiting [P-10].

    {"node":"n","records":[ {…},{…},{…} , {…},{…},{…} , {…},{…} ],"create":true}
    ╰──────── head ───────╯ ╰─ piece ─╯   ╰─ piece ─╯   ╰piece╯ ╰──── rest ────╯

The array is cut where a record seems to begin. Whether one does is told by decoding: `[piece]` is valid JSON only if
the piece is whole values between commas, since what comes first in a JSON text decides what the next byte means. A
piece that is not valid is decoded again together with what follows. Head and rest are decoded around an empty array.

What comes out is what one call would make of the whole. Anything out of the ordinary, errors above all, is left to that
call: it finds the words. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec

from topics.engine.records import ParsedRecord

STEP_BYTES: Final = 32 << 10
PIECE_MAX: Final = 4 << 20
"""A record of more than that is not looked for."""

_BEGIN = re.compile(rb'"records"[ \t\r\n]*:[ \t\r\n]*\[')
_CUT = re.compile(rb'\}[ \t\r\n]*(,)[ \t\r\n]*\{[ \t\r\n]*"(?:data|tag|node|meta)"')
_END = re.compile(rb"\}[ \t\r\n]*(\])")
_LOOKED_AT: Final = 8 << 10
"""How much of the end of a piece is searched first."""
_TRIES: Final = 4
"""Places may be inside of a payload that looks like records."""
_RECORDS: Final = msgspec.json.Decoder(list[ParsedRecord])

T = TypeVar("T")

Runs = list[list[ParsedRecord]]


class Decoded(NamedTuple):
    """A body: its records, a list for each piece, and everything else as JSON with no records."""

    runs: Runs
    around: bytes


def decoded(chunks: Iterable[bytes | bytearray]) -> Generator[None, None, Decoded | None]:
    """Decode step by step; the result is None for what is left to one call over everything."""
    windows = _windows(chunks)
    text = next(windows, b"")
    begin = _BEGIN.search(text)
    if begin is None:
        return None
    head, text = text[: begin.end()], text[begin.end() :]
    if b"\\" in head:
        return None  # it might name an array in another spelling, and this one be another member's
    runs: Runs = []
    gathered, size, least = [text], len(text), STEP_BYTES
    for window in windows:
        gathered.append(window)
        size += len(window)
        if size < least:
            yield
            continue
        if size > PIECE_MAX:
            return None
        text = b"".join(gathered)
        # So that a long record is not gone through more than a few times.
        least = 2 * len(text)
        for cut in _places(_CUT, text):
            records = _records(text[:cut])
            yield
            if records is not None:
                runs.append(records)
                text = text[cut + 1 :]
                least = STEP_BYTES
                break
        gathered, size = [text], len(text)
    text = b"".join(gathered)
    for end in _places(_END, text):
        records = _records(text[:end])
        yield
        if records is not None:
            runs.append(records)
            rest = text[end:]
            # It might name the array again, and the last one counts.
            return None if b'"records"' in rest or b"\\" in rest else Decoded(runs, head + rest)
    return None


def _windows(chunks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """The same bytes in pieces of at least `STEP_BYTES`, but for the last, and less than twice that."""
    gathered: list[bytes | bytearray] = []
    size = 0
    for chunk in chunks:
        for at in range(0, len(chunk), STEP_BYTES):
            part = chunk[at : at + STEP_BYTES]
            gathered.append(part)
            size += len(part)
            if size >= STEP_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _places(pattern: re.Pattern[bytes], text: bytes) -> list[int]:
    """Where the group of the last few matches begins, the last one first; the end of the text is searched first."""
    found: list[int] = []
    for start in (max(len(text) - _LOOKED_AT, 0), 0):
        found = found or [match.start(1) for match in pattern.finditer(text, start)]
    return found[: -_TRIES - 1 : -1]


def _records(piece: bytes) -> list[ParsedRecord] | None:
    try:
        return _RECORDS.decode(b"[%b]" % piece)
    except (msgspec.MsgspecError, RecursionError):
        return None
