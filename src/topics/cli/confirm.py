"""Asking whether to go on [U-14]. Runs on the main thread."""

from __future__ import annotations

import sys

from topics.errors import CallerError


class NotConfirmed(CallerError):
    """Nobody is there to be asked."""

    code = "not_confirmed"
    hint = "--yes goes on without asking"


def confirmed(question: str, *, default: bool | None = None) -> bool:
    """Ask whoever sits at stdin's terminal; `default` is the answer where nobody does, without one that is an error.

    The question goes to stderr, which may be a file: that is no reason to go on without an answer.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        if default is None:
            raise NotConfirmed(f"{question} Nobody is there to say so")
        return default
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
