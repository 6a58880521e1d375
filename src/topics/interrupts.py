"""What signals do not come into the middle of.

Python runs the handlers of signals on its main thread, between any two calls of whatever that is doing, and the one of
Ctrl-C raises there.

    unbroken    runs something; Ctrl-C, SIGTERM and SIGALRM come behind it, where programs handle them. Handlers that
                only note them stand in meanwhile, and the real ones are called at the end. The second Ctrl-C goes
                through at once, as what is under way may never end. Other signals are not put off
    Flag        a `threading.Event` that no signal leaves locked, and that a handler may set whatever it interrupts
"""

from __future__ import annotations

# Not `signal`: looking up numbers in its enumerations takes ten times as long as all the rest.
import _signal  # type: ignore[import-not-found]
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import get_ident
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], object]

_SIGINT: Final = int(_signal.SIGINT)
_PUT_OFF: Final = tuple(
    int(getattr(_signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(_signal, name)
)
"""Those whose handlers raise in programs that go on, or end in an orderly way. Each costs something in every change."""
_handler_of = _signal.getsignal
_handle = _signal.signal
_NO_LOCK: Final = nullcontext()
_main = threading.main_thread().ident
"""The thread that runs handlers."""


def unbroken(work: Callable[[], T], lock: AbstractContextManager[object] = _NO_LOCK) -> T:
    """Do something that no signal of those comes into the middle of, with a lock of C if it needs one; any thread.

    Waiting for the lock is ended by a signal as ever, and handlers are called when it is given back.
    """
    if get_ident() != _main:
        with lock:
            return work()
    late = _Late()
    try:
        try:
            late.begin()
            with lock:
                # No call comes between having the lock and this, nor between the end of the work and what is below,
                # and so no signal.
                late.is_waiting = False
                return work()
        finally:
            late.is_waiting = False
            late.is_over = late.is_ending = True
            try:
                for number in late.handlers:
                    if _handler_of(number) is late:
                        _handle(number, late.handlers[number])
            finally:
                late.is_ending = False
    finally:
        if late.came:
            late.call()


class _Late:
    """Stands in for handlers."""

    __slots__ = ("came", "handlers", "is_ending", "is_over", "is_waiting")

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        """Those it stands in for, by number."""
        self.came: list[int] = []
        self.is_waiting = True
        """Nothing is under way yet: signals are handled at once."""
        self.is_over = False
        self.is_ending = False
        """It is just being taken away. One that is over otherwise stayed, as another signal struck meanwhile."""

    def begin(self) -> None:
        """Stand in for every handler that no other one stands in for."""
        for number in _PUT_OFF:
            handler = _handler_of(number)
            if callable(handler) and (type(handler) is not _Late or handler.is_over or handler.is_waiting):
                self.handlers[number] = handler
                try:
                    _handle(number, self)
                except ValueError as error:
                    if "main thread" not in str(error):
                        raise  # a handler's
                    # This interpreter has another main thread than its `threading` knows: no signal comes here.
                    del self.handlers[number]
                    return

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_left = self.is_over and not self.is_ending
        if is_left:
            _handle(number, self.handlers[number])
        if is_left or self.is_waiting or (number == _SIGINT and number in self.came):
            self.handlers[number](number, frame)
        elif number not in self.came:
            self.came.append(number)

    def call(self) -> None:
        """What came while it stood in, each once, whatever the others raise."""
        number = self.came.pop(0)
        try:
            self.handlers[number](number, sys._getframe())
        finally:
            if self.came:
                self.call()


def _after_fork() -> None:
    """The child has one thread, which is its main one; nobody there takes away what stood in for handlers."""
    global _main
    _main = get_ident()
    for number in _PUT_OFF:
        while type(late := _handler_of(number)) is _Late:
            late.is_over = True
            _handle(number, late.handlers[number])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Flag:
    """Set by any thread, or by a signal's handler, and waited for by any thread.

    Whoever clears it is the only one who waits, and looks behind that whether there is something to do: one who sets it
    meanwhile did it before.
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
