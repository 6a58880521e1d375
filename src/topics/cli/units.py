"""Numbers as people write them: 10k, 1Gi, 1h (11 §2). Pure.

counts, bytes    k M G T are powers of 1000, Ki Mi Gi Ti of 1024; 1.5M is fine where it comes out whole
durations        ms s m h d; a bare number is milliseconds
"""

from __future__ import annotations

import argparse
import re
from fractions import Fraction
from typing import Final

U64_MAX: Final = 2**64 - 1
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_SIZES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES_2: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SPANS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def count(text: str) -> int:
    """A number of things: `500`, `10k`, `1.5M`, `64Ki`."""
    return _parsed(text, {**_SIZES, **_SIZES_2}, "a number such as 500, 10k or 1.5M")


def some(text: str) -> int:
    """A `count` of at least 1."""
    value = count(text)
    if value < 1:
        raise argparse.ArgumentTypeError("it is at least 1")
    return value


def size(text: str) -> int:
    """A number of bytes: `4096`, `64Ki`, `1GB`, `1GiB`."""
    units = {**_SIZES, **_SIZES_2}
    units |= {f"{unit}b": factor for unit, factor in units.items()}
    return _parsed(text, units, "a size such as 4096, 64Ki or 1GB")


def span_ms(text: str) -> int:
    """A duration in milliseconds: `250`, `250ms`, `10s`, `5m`, `1h`, `7d`."""
    return _parsed(text, _SPANS, "a duration such as 250ms, 10s, 5m, 1h or 7d")


def seq(text: str) -> int:
    """A seq."""
    if not (text.isascii() and text.isdigit() and int(text) <= U64_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is no seq")
    return int(text)


def _parsed(text: str, units: dict[str, int], what: str) -> int:
    found = _NUMBER.fullmatch(text.strip())
    factor = units.get(found[2].lower()) if found is not None else None
    if found is None or factor is None or len(text) > 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    value = Fraction(found[1]) * factor
    if value.denominator != 1 or value > U64_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}: it is no whole number of the smallest unit")
    return int(value)


def shown_bytes(value: int) -> str:
    """`1.5 MiB`."""
    if value < 1024:
        return f"{value} B"
    amount = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}"


def shown_ms(value: int) -> str:
    """`1h`, `90s`, `250ms`: the largest unit that it is a whole number of."""
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}ms"
