"""What the product only logs, a sweep finds nevertheless.

An exception nobody foresaw keeps nobody else waiting: the product logs it and goes on. In a sweep it is a finding,
whether it is a mistake of the product or the oracle's own verdict, raised where the product called it.
"""

from __future__ import annotations

import logging
from types import TracebackType

from topics.testing.subject import Violation


class Unexpected(logging.Handler):
    """Hears the exceptions that are logged while it is entered; leaving it tells the first of them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._first: tuple[str, BaseException] | None = None
        self._logger = logging.getLogger("topics")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first exception: those behind it may follow from it."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and self._first is None:
            self._first = record.getMessage(), error

    def check(self) -> None:
        """Raise `Violation` if anything was heard."""
        if self._first is None:
            return
        (message, error), self._first = self._first, None
        if isinstance(error, Violation):
            raise error
        raise Violation(f"logged: {message}: {type(error).__name__}: {error}") from error

    def __enter__(self) -> Unexpected:
        self._level = self._logger.level
        self._logger.setLevel(logging.ERROR)
        self._logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        if error is None or isinstance(error, Exception):
            self.check()
