"""What signals do not come into the middle of.

Python runs the handlers of signals on its main thread, between any two calls of whatever that is doing, and the one of
Ctrl-C raises there.

    unbroken    runs something; Ctrl-C comes behind it. A handler that only notes it stands in meanwhile, and the real
                one is called at the end. The second Ctrl-C goes through at once, as what is under way may never end.
                Other signals are not put off, and neither is one that the system handles itself
    Flag        a `threading.Event` that no signal leaves locked, and that a handler may set whatever it interrupts
"""

from __future__ import annotations

# Not `signal`: looking up numbers in its enumerations takes ten times as long as all the rest.
import _signal  # type: ignore[import-not-found]
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], object]

_SIGINT: Final = int(_signal.SIGINT)
_handler_of = _signal.getsignal
_handle = _signal.signal
_main = threading.main_thread().ident
"""The thread that runs handlers."""


def _note_fork() -> None:
    global _main
    _main = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def unbroken(work: Callable[[], T]) -> T:
    """Do something that Ctrl-C does not come into the middle of; any thread."""
    if get_ident() != _main:
        return work()
    handler = _handler_of(_SIGINT)
    if not callable(handler) or (type(handler) is _Late and not handler.is_over):
        return work()  # it is the system's, or put off already
    late = _Late(handler)
    try:
        try:
            _handle(_SIGINT, late)
        except ValueError:
            late.is_elsewhere = True
        return work()
    finally:
        # Nothing comes between the end of the work and this, which is no call.
        late.is_over = True
        if not late.is_elsewhere:
            _handle(_SIGINT, handler)
            if late.came:
                handler(_SIGINT, None)


class _Late:
    """Stands in for a handler."""

    __slots__ = ("_handler", "came", "is_elsewhere", "is_over")

    def __init__(self, handler: Handler) -> None:
        self.came = False
        self.is_elsewhere = False
        """This interpreter has another main thread than its `threading` knows: no signal comes here."""
        self.is_over = False
        """Whoever was to take it away was struck by another signal."""
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_over or self.came:
            _handle(_SIGINT, self._handler)
            self._handler(number, frame)
        self.came = True


class Flag:
    """Set by any thread, or by a signal's handler, and waited for by any thread.

    Whoever clears it looks behind that whether there is something to do: one who sets it meanwhile did it before.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One for whoever waits while it is set; no signal comes into the middle of what this queue does."""

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set

    def set(self) -> None:
        """Let everybody who waits go on."""
        self._is_set = True
        if self._tokens.empty():
            self._tokens.put(None)

    def clear(self) -> None:
        """From now on, who waits waits for the next time."""
        self._is_set = False
        with suppress(queue.Empty):
            self._tokens.get_nowait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is set, or somebody clears it at the same time; whether it is."""
        if not self.is_set():
            try:
                self._tokens.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
            except queue.Empty:
                return self._is_set
            if self.is_set() and self._tokens.empty():
                self._tokens.put(None)
        return self._is_set
