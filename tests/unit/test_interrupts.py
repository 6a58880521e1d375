"""Ctrl-C waits until what is under way is whole, and nothing else changes (S-73, 13 §6)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import pytest

from tests.unit.strike import Strike, ctrl_c, fail, interruptible, other
from topics import interrupts
from topics.interrupts import Flag, unbroken

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    with interruptible():
        yield
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_behind_what_is_under_way() -> None:
    done: list[str] = []

    def work() -> None:
        done.append("begun")
        ctrl_c()
        done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        unbroken(work)
    assert done == ["begun", "whole"]


def test_without_it_work_is_what_it_is() -> None:
    assert unbroken(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        unbroken(lambda: 1 / 0)


def test_the_second_goes_through_at_once() -> None:
    """What is under way may never end."""

    def work() -> None:
        ctrl_c()
        ctrl_c()
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        unbroken(work)


def test_work_that_is_whole_within_other_work_is_not_the_end() -> None:
    done: list[str] = []

    def outer() -> None:
        unbroken(ctrl_c)
        done.append("inner")
        unbroken(lambda: done.append("another"))

    with pytest.raises(KeyboardInterrupt):
        unbroken(outer)
    assert done == ["inner", "another"]


@contextmanager
def noting(*numbers: signal.Signals) -> Iterator[list[int]]:
    """Handlers that return, as that of an event loop does; what they were called for."""
    calls: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        calls.append(number)

    before = [signal.signal(number, handle) for number in numbers]
    yield calls
    for number, handler in zip(numbers, before, strict=True):
        assert signal.getsignal(number) is handle
        signal.signal(number, handler)


def test_work_has_its_own_end_where_a_handler_does_not_raise() -> None:
    def fail() -> None:
        ctrl_c()
        raise LookupError

    with noting(signal.SIGINT) as calls:
        with pytest.raises(LookupError):
            unbroken(fail)
        assert calls == [signal.SIGINT]


def test_every_signal_is_handled_once_at_whichever_call_it_comes() -> None:
    for at in count(1):
        strike = Strike(at, interrupts.__file__.__eq__, by=ctrl_c)
        with noting(signal.SIGINT) as calls:
            with strike.around():
                unbroken(lambda: None)
            assert calls == [signal.SIGINT] * strike.struck, at
        if not strike.struck:
            return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGALRM])
def test_signals_that_end_programs_or_calls_are_put_off_too(number: signal.Signals) -> None:
    """A timer may strike again and again."""
    done: list[str] = []

    def work() -> None:
        for _ in range(3):
            signal.raise_signal(number)
        done.append("whole")

    with noting(number) as calls:
        unbroken(work)
        assert (done, calls) == (["whole"], [number])


def test_each_that_came_is_handled_whatever_the_others_raise() -> None:
    def work() -> None:
        ctrl_c()
        signal.raise_signal(signal.SIGTERM)

    with noting(signal.SIGTERM) as calls:
        with pytest.raises(KeyboardInterrupt):
            unbroken(work)
        assert calls == [signal.SIGTERM]


def test_handlers_are_called_when_the_lock_is_given_back() -> None:
    """They may wait for a thread that needs it."""
    lock, taken = threading.RLock(), list[bool]()

    def take() -> None:
        taken.append(lock.acquire(timeout=WAIT_S))
        lock.release()

    def handle(number: int, frame: FrameType | None) -> None:
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    signal.signal(signal.SIGINT, handle)
    unbroken(ctrl_c, lock)
    assert taken == [True]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    unbroken(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_another_thread_forks_meanwhile_has_its_own_handlers() -> None:
    statuses: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                unbroken(ctrl_c)
            except KeyboardInterrupt:
                status = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 2
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def work() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    unbroken(work)
    assert statuses == [0]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_the_system_handles_stays_with_it(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
    assert unbroken(lambda: signal.getsignal(signal.SIGINT)) is handler
    signal.signal(signal.SIGINT, signal.default_int_handler)


def on_a_thread(work: Any) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(unbroken(work)))
    thread.start()
    thread.join()
    return found


def test_threads_that_run_no_handlers_leave_them_alone() -> None:
    assert on_a_thread(lambda: signal.getsignal(signal.SIGINT)) == [signal.default_int_handler]


def test_an_interpreter_that_takes_another_thread_for_its_main_one_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is embedded, `threading` may know another main thread than signals do."""

    def work() -> int:
        monkeypatch.setattr(interrupts, "_main", threading.get_ident())
        return unbroken(lambda: 5)

    assert on_a_thread(work) == [5]


def test_at_whichever_call_it_comes_it_is_neither_lost_nor_in_the_middle() -> None:
    for at in count(1):
        strike = Strike(at, interrupts.__file__.__eq__, by=ctrl_c)
        with strike.around():
            unbroken(lambda: None)
        assert strike.raised == strike.struck
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if not strike.struck:
            return


@pytest.mark.parametrize("by", [other, fail])
def test_wherever_another_signal_strikes_the_next_ctrl_c_is_heard(by: Callable[[], None]) -> None:
    """Also where what stands in for its handler could not be taken away any more."""
    for at in count(1):
        strike = Strike(at, interrupts.__file__.__eq__, by=by)
        with strike.around():
            unbroken(lambda: None)
        assert strike.raised == strike.struck, at
        left = signal.getsignal(signal.SIGINT)
        for again in (False, True):
            with pytest.raises(KeyboardInterrupt):
                if again and left is not signal.default_int_handler:
                    signal.signal(signal.SIGINT, left)
                    unbroken(ctrl_c)
                else:
                    ctrl_c()
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if not strike.struck:
            return


# -- flags -----------------------------------------------------------------------------------------------------------


def test_a_flag_lets_everybody_go_on_for_good() -> None:
    flag = Flag()
    waits = [threading.Thread(target=flag.wait) for _ in range(3)]
    for one in waits:
        one.start()
    flag.set()
    for one in waits:
        one.join(WAIT_S)
        assert not one.is_alive()
    assert flag.is_set()
    assert flag.wait(0)


def test_a_flag_that_is_not_set_is_waited_for_so_long() -> None:
    flag = Flag()
    assert not flag.wait(0)
    assert not flag.wait(-1)
    flag.set()
    flag.set()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0)
    flag.set()
    assert flag.wait(0)


def test_what_is_set_while_somebody_clears_it_is_seen_by_who_looks_then() -> None:
    """Two threads that hand each other work, with nobody waiting for ever."""
    flag, work, seen = Flag(), list[int](), list[int]()

    def take() -> None:
        while len(seen) < 20_000:
            flag.clear()
            while work:
                seen.append(work.pop(0))
            if len(seen) < 20_000:
                flag.wait()

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    for n in range(20_000):
        work.append(n)
        flag.set()
    taker.join(WAIT_S)
    assert seen == list(range(20_000))


def test_a_handler_may_set_a_flag_whatever_it_interrupts() -> None:
    """As one does that ends a worker: it may come while the worker looks at it."""
    for at in count(1):
        flag = Flag()

        def look(flag: Flag = flag) -> None:
            flag.set()
            flag.clear()
            flag.wait(0)
            flag.is_set()

        signal.signal(signal.SIGINT, lambda number, frame, flag=flag: flag.set())
        strike = Strike(at, interrupts.__file__.__eq__, by=ctrl_c)
        with strike.around():
            look()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        again = threading.Thread(target=flag.wait, args=(0,))
        again.start()
        again.join(WAIT_S)
        assert not again.is_alive(), at
        flag.set()
        assert flag.wait(0)
        if not strike.struck:
            return
