"""Errors of the Spark source: one line that says what is wrong and what to do [K-15].

    topics: <code>: <what> — <what to do>

Inside Spark the line arrives behind a traceback, so there it is its last line; the helpers raise it alone.
"""

from __future__ import annotations

import re
from typing import Final

from topics.errors import TopicsError

_LINE: Final = re.compile(r"^topics: (\w+): (.*) — (.*)$", re.MULTILINE)


class SourceError(TopicsError):
    """Something the user has to know, in one line; its code is that of what happened."""

    def __init__(self, code: str, what: str, hint: str) -> None:
        super().__init__(code, what, hint)
        self.code = code  # type: ignore[misc]
        self.what = " ".join(what.split())
        self.hint = hint

    @property
    def line(self) -> str:
        return f"topics: {self.code}: {self.what} — {self.hint}"

    def __str__(self) -> str:
        return self.line


class InSpark(SourceError):
    """The same behind a traceback, whose last line it is."""

    def __str__(self) -> str:
        return f"\n{self.line}"


def in_spark(error: Exception) -> Exception:
    """What to raise inside Spark for an error: our own line where it is one of ours, else the error itself."""
    if isinstance(error, SourceError):
        return InSpark(error.code, error.what, error.hint)
    if isinstance(error, TopicsError):
        return InSpark(error.code, str(error), "check the store with `topics doctor`")
    if isinstance(error, OSError):
        return InSpark("io_error", str(error), "check the path, its permissions and the disk")
    return error


def from_spark(text: str) -> SourceError | None:
    """Our own error in what Spark says; None if it is not about us."""
    found = _LINE.findall(text)
    return SourceError(*found[-1]) if found else None
