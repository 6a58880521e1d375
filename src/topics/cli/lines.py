"""Records out of lines: JSON lines or CSV, from a file or a pipe, without waiting for more than there is (11 §2).

A pipe that somebody types into, or that a slow program feeds, must not be held back until a batch is full: `Idle` comes
when nothing more is there for now. Runs on the main thread.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import select
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from topics.codec import envelope

PIECE_BYTES: Final = 1 << 16
LINE_BYTES_MAX: Final = 64 << 20
TOO_LONG: Final = "it is longer than 64 MiB"
NOT_CLOSED: Final = "a quote is not closed"
IDLE_S: Final = 0.1


class Row(NamedTuple):
    """A record to write, as JSON text."""

    number: int
    """Of its line."""
    data: bytes


class Bad(NamedTuple):
    """A line that is none."""

    number: int
    why: str


class Hopeless(Bad):
    """A line without which the others mean nothing."""


class Idle(NamedTuple):
    """Nothing more is there for now."""


Found = Row | Bad | Idle


class Source:
    """Lines of a file descriptor; `taken` counts their bytes."""

    def __init__(self, fd: int) -> None:
        self.taken = 0
        self._fd = fd

    def lines(self) -> Iterator[tuple[int, bytes] | Bad | Idle]:
        """Lines with their numbers, without what ends them; of one that is too long only that."""
        held: list[bytes] = []
        size, number, is_long = 0, 0, False
        while True:
            if not select.select([self._fd], [], [], IDLE_S)[0]:
                yield Idle()
                select.select([self._fd], [], [])
            piece = os.read(self._fd, PIECE_BYTES)
            self.taken += len(piece)
            if self.taken == len(piece):
                piece = piece.removeprefix(codecs.BOM_UTF8)  # which spreadsheets put in front
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line = b"".join((*held, end))
                held, size = [], 0
                number += 1
                yield Bad(number, TOO_LONG) if is_long else (number, line)
                is_long = False
            held.append(rest)
            size += len(rest)
            if size > LINE_BYTES_MAX:
                held, size, is_long = [], 0, True
            if not piece:
                if size or is_long:
                    yield Bad(number + 1, TOO_LONG) if is_long else (number + 1, b"".join(held))
                return

    def json_rows(self) -> Iterator[Found]:
        """Each line is a value; empty ones are passed over."""
        for one in self.lines():
            if isinstance(one, (Bad, Idle)):
                yield one
            elif one[1].strip():
                yield json_row(*one)

    def csv_rows(self) -> Iterator[Found]:
        """The first row has the names; each further one becomes an object of texts."""
        names: list[str] | None = None
        for one in self._csv_lines():
            if isinstance(one, Idle):
                yield one
                continue
            if isinstance(one, Bad):
                if names is None:
                    yield Hopeless(*one)
                    return
                yield one
                continue
            number, cells = one
            if names is None:
                names = cells
                if len(set(names)) < len(names):
                    yield Hopeless(number, "two columns have the same name")
                    return
            elif len(cells) != len(names):
                yield Bad(number, f"{len(cells)} cells for {len(names)} columns")
            else:
                yield Row(number, json.dumps(dict(zip(names, cells, strict=True)), ensure_ascii=False).encode())

    def _csv_lines(self) -> Iterator[tuple[int, list[str]] | Bad | Idle]:
        """Rows; one with a line end inside quotes spans several lines."""
        csv.field_size_limit(LINE_BYTES_MAX)
        held: list[bytes] = []
        begun = size = quotes = 0
        for one in self.lines():
            if isinstance(one, Idle):
                yield one
                continue
            begun = begun if held else one[0]
            if isinstance(one, Bad):
                yield Bad(begun, one.why)
                held, size, quotes = [], 0, 0
                continue
            raw = one[1]
            held.append(raw)
            size += len(raw)
            quotes += raw.count(b'"')
            if quotes % 2 and size <= LINE_BYTES_MAX:
                continue
            whole = b"\n".join(held)
            if quotes % 2:
                yield Bad(begun, NOT_CLOSED)
            elif whole.strip():
                yield _csv_row(begun, whole)
            held, size, quotes = [], 0, 0
        if held:
            yield Bad(begun, NOT_CLOSED)


def _csv_row(number: int, raw: bytes) -> tuple[int, list[str]] | Bad:
    """The cells of a row; line ends inside quotes are as they were written."""
    try:
        row, *more = csv.reader(io.StringIO(raw.removesuffix(b"\r").decode(), newline=""), strict=True)
    except UnicodeDecodeError:
        return Bad(number, "it is not UTF-8")
    except csv.Error as error:
        return Bad(number, str(error))
    return Bad(number, "it has a carriage return outside quotes; rows end with a line feed") if more else (number, row)


def json_row(number: int, line: bytes) -> Row | Bad:
    """The record of a line."""
    try:
        return Row(number, envelope.canonical(line.strip()))
    except (ValueError, msgspec.MsgspecError) as error:
        return Bad(number, f"it is not JSON: {error}")
