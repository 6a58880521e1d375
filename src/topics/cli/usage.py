"""Wrong usage, said in one line [U-10]."""

from __future__ import annotations

from topics.errors import CallerError


class UsageError(CallerError):
    """Arguments that the program does not understand; `prog` is the command whose help tells more."""

    code = "usage"

    def __init__(self, message: str, prog: str) -> None:
        super().__init__(message)
        self.prog = prog
