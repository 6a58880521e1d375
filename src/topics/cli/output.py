"""What commands print: answers as JSON, tables, records one per line; gaps in colour on a terminal [U-10, U-13].

What comes from a topic is anybody's text: on a terminal what would steer it is shown, not sent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from topics.model import Gap, Record

RED: Final = "\x1b[31m"
DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"


def answer(told: object) -> None:
    """An answer, or a report, as one line of JSON."""
    print(json.dumps(told, ensure_ascii=False))


def is_coloured() -> bool:
    """Whether stdout is a terminal that wants colours."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout is not None and sys.stdout.isatty()


def coloured(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}" if is_coloured() else text


def printable(text: str) -> str:
    """Without what steers a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns; numbers to the right."""
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [bool(cells) and all(row[at].replace(",", "").isdigit() or row[at] == "-" for row in cells)
             for at in range(len(names))]  # fmt: skip
    print(coloured(_line(names, widths, right), DIM))
    for row in cells:
        print(_line(row, widths, right))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def instant(ms: int | None) -> str:
    """A time of the server, in UTC."""
    if ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def record_line(record: Record, *, topic: str | None, tags: bool) -> str:
    """A record as diff gives it, in its own spelling."""
    parts = [] if topic is None else [f'"topic":{json.dumps(topic)}']
    parts += [f'"$seq":{record.seq}', f'"$ts":{record.ts}']
    if record.node is not None:
        parts.append(f'"$node":{json.dumps(record.node, ensure_ascii=False)}')
    if tags and record.tag is not None:
        parts.append(f'"$tag":{json.dumps(record.tag, ensure_ascii=False)}')
    if record.raw_meta is not None:
        parts.append(f'"meta":{record.raw_meta.decode()}')
    parts.append(f'"data":{record.raw_data.decode()}')
    return "{" + ",".join(parts) + "}"


def gap_line(gap: Gap, *, topic: str | None) -> str:
    """A gap among records."""
    told: dict[str, Any] = {"tombstone": {name: getattr(gap, name) for name in Gap.__struct_fields__}}
    if topic is not None:
        told = {"topic": topic, **told}
    return msgspec.json.encode(told).decode()


def show_record(record: Record, *, topic: str | None, tags: bool) -> None:
    """A record for people."""
    parts = [f"{record.seq:>8}", instant(record.ts)]
    if topic is not None:
        parts.insert(0, topic)
    beside = {"node": record.node, "tag": record.tag if tags else None}
    parts += [f"{name}={printable(value)}" for name, value in beside.items() if value is not None]
    parts.append(printable(record.raw_data.decode("utf-8", "replace")))
    print("  ".join(parts))


def show_gap(gap: Gap, *, topic: str | None) -> None:
    """A gap for people."""
    where = "" if topic is None else f"{topic}  "
    print(coloured(f"{where}{gap.gap_from:>8} to {gap.gap_to}: lost ({gap.reason})", RED))
