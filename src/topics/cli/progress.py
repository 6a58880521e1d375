"""Progress of long work: a line that renews itself on a terminal, plain lines now and then elsewhere [U-12]."""

from __future__ import annotations

import os
import sys
from typing import Self, TextIO

from topics.clock import Clock, SystemClock

TERMINAL_EVERY_NS = 100_000_000
PLAIN_EVERY_NS = 5_000_000_000
BAR_CELLS = 24


class Progress:
    """Tells on stderr how far a command has come; says so too when it is interrupted."""

    def __init__(
        self, label: str, *, silent: bool, unit: str = "files", clock: Clock | None = None,
        stream: TextIO | None = None,
    ) -> None:  # fmt: skip
        self._label = label
        self._unit = unit
        self._silent = silent
        self._clock = SystemClock() if clock is None else clock
        self._stream = sys.stderr if stream is None else stream
        is_dumb = os.environ.get("TERM") == "dumb"  # a terminal that cannot renew a line
        self._terminal = self._stream is not None and self._stream.isatty() and not is_dumb
        self._every_ns = TERMINAL_EVERY_NS if self._terminal else PLAIN_EVERY_NS
        self._told_ns = self._clock.monotonic_ns()
        self._shown = False
        self._total = 0
        self.files = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._silent:
            return
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._write(f"{self._text()} when it was interrupted", last=True)
        elif self._shown and self._terminal:
            self._write("", last=False)

    def add(self, size: int) -> None:
        """One more file, or whatever the unit is, is done."""
        self.files += 1
        self.bytes += size
        now = self._clock.monotonic_ns()
        if self._silent or now - self._told_ns < self._every_ns:
            return
        self._told_ns = now
        self._write(self._text(), last=not self._terminal)

    def at(self, done: int, total: int, unit: str) -> None:
        """So many of so many; the first and the last are always told on a terminal."""
        self.files, self._total, self._unit = done, total, unit
        now = self._clock.monotonic_ns()
        if self._silent or (now - self._told_ns < self._every_ns and not (self._terminal and done in (0, total))):
            return
        self._told_ns = now
        self._write(self._text(), last=not self._terminal)

    def _text(self) -> str:
        if self._total:
            filled = BAR_CELLS * self.files // self._total
            bar = f" [{'█' * filled}{'·' * (BAR_CELLS - filled)}]" if self._terminal else ""
            return f"{self._label}:{bar} {self.files} of {self._total} {self._unit}"
        return f"{self._label}: {self.files} {self._unit}, {self.bytes / 1e6:.0f} MB done"

    def _write(self, text: str, *, last: bool) -> None:
        self._shown = True
        clear = "\r\x1b[K" if self._terminal else ""
        print(f"{clear}{text}", end="\n" if last else "", file=self._stream, flush=True)
