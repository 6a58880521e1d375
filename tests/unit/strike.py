"""Signals that strike at a chosen call: what a handler raises there goes through the code like any exception."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Strike:
    """Raises at the `at`-th call that our code makes on this thread once it is armed.

    The call does not begin, or, if it is one of C, its outcome is lost.
    """

    def __init__(self, at: int, is_ours: Callable[[str], bool], *, armed: bool = True) -> None:
        self.armed = armed
        self.struck = False
        self._is_ours = is_ours
        self._left = at

    @contextmanager
    def around(self) -> Iterator[None]:
        """What may be struck."""
        gc.disable()  # what it calls back is not ours
        sys.setprofile(self._look)
        try:
            yield
        except KeyboardInterrupt:
            assert self.struck
        finally:
            sys.setprofile(None)
            gc.enable()

    def _look(self, frame: FrameType, event: str, arg: object) -> None:
        caller = frame.f_back if event == "call" else frame
        if event not in ("call", "c_return") or caller is None or not self._is_ours(caller.f_code.co_filename):
            return
        if self.armed and not self.struck:
            self._left -= 1
            if not self._left:
                self.struck = True
                raise KeyboardInterrupt
