"""Signals that strike at a chosen call: what a handler raises there goes through the code like any exception."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def other() -> None:
    """A handler that is not Ctrl-C's raises."""
    raise KeyboardInterrupt


def fail() -> None:
    """One raises what calls of our own raise."""
    raise ValueError("by a handler")


def ctrl_c() -> None:
    """The user presses it; see `interruptible`."""
    signal.raise_signal(signal.SIGINT)


def alarm() -> None:
    """A time that the program has set is up; see `interruptible`."""
    signal.raise_signal(signal.SIGALRM)


def _is_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is handled as in any program: whoever runs the tests may have said otherwise. Alarms raise."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: _is_up}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Strike:
    """A signal at the `at`-th call that our code makes on this thread once it is armed.

    Where its handler raises, the call does not begin, or, if it is one of C, its outcome is lost. `called`: also at
    those that others make of our code, an event loop for instance.
    """

    def __init__(
        self,
        at: int,
        is_ours: Callable[[str], bool],
        *,
        armed: bool = True,
        by: Callable[[], None] = other,
        called: bool = False,
    ) -> None:
        self.armed = armed
        self.struck = False
        self.raised = False
        self._is_ours = is_ours
        self._left = at
        self._by = by
        self._called = called

    @contextmanager
    def around(self) -> Iterator[None]:
        """What may be struck."""
        gc.disable()  # what it calls back is not ours
        sys.setprofile(self._look)
        try:
            yield
        except (KeyboardInterrupt, TimeoutError, ValueError):
            assert self.struck
            self.raised = True
        finally:
            sys.setprofile(None)
            gc.enable()

    def _look(self, frame: FrameType, event: str, arg: object) -> None:
        caller = frame.f_back if event == "call" else frame
        if event not in ("call", "c_return") or caller is None:
            return
        is_called = self._called and self._is_ours(frame.f_code.co_filename)
        if not is_called and not self._is_ours(caller.f_code.co_filename):
            return
        if self.armed and not self.struck:
            self._left -= 1
            if not self._left:
                self.struck = True
                self._by()
