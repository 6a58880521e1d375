"""What nobody else may wait for goes on when nothing is due, and at the latest after a few milliseconds [S-320]."""

from __future__ import annotations

import asyncio

import pytest

from topics.engine.alarms import Alarms
from topics.engine.turns import PATIENCE_NS, Turns
from topics.storage.owner import InlineOwner, LoopOwner
from topics.testing import ManualClock

PATIENCE_MS = PATIENCE_NS // 1_000_000


class Line:
    """A line on an owner that does everything when it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.owner = InlineOwner()
        self.alarms = Alarms()
        self.turns = Turns(self.owner, self.clock, self.alarms)
        self.seen: list[str] = []
        self.busy = False
        self.more = 0

    def give_way(self) -> None:
        self.turns.give_way(lambda: self.busy, self._has_more)

    def _has_more(self) -> bool:
        self.more -= 1
        return self.more >= 0

    def put(self, *names: str) -> None:
        for name in names:
            self.turns.put(lambda name=name: self.seen.append(name))  # type: ignore[misc]

    def run(self) -> list[str]:
        """What went on until nothing is put off any more."""
        self.seen.clear()
        self.owner.run()
        return list(self.seen)

    def wait(self, ms: int) -> list[str]:
        """The same when so much time has passed."""
        self.clock.advance(ms)
        self.alarms.ring(self.clock.monotonic_ns())
        return self.run()


def test_one_goes_on_at_a_time_and_others_come_in_between() -> None:
    line = Line()
    for name in "abc":
        line.turns.put(lambda name=name: line.seen.append(name) or line.owner.soon(lambda: line.seen.append("other")))  # type: ignore[misc,func-returns-value]
    assert line.run() == ["a", "other", "b", "other", "c", "other"]


def test_embedded_nothing_is_ever_due() -> None:
    line = Line()
    line.busy = True
    line.put("a", "b")
    assert line.run() == ["a", "b"]
    assert line.alarms.next_ns() is None


def test_nobody_goes_on_while_a_write_is_under_way() -> None:
    line = Line()
    line.give_way()
    line.busy = True
    line.put("a", "b")
    assert line.run() == []
    assert line.wait(PATIENCE_MS - 1) == []
    line.busy = False
    line.turns.stir()
    assert line.run() == ["a", "b"]


def test_a_few_go_on_every_few_milliseconds_beside_writes_that_never_end() -> None:
    """Readers of the cold tier get on, however busy the server is; and writers meet that many in that time."""
    line = Line()
    line.give_way()
    line.busy = True
    line.put(*"abcdefgh")
    assert line.run() == []
    for names in (["a", "b", "c"], ["d", "e", "f"], ["g", "h"]):
        for _ in range(3):
            line.turns.stir()  # one write ends and another is under way
            assert line.run() == []
        assert line.wait(PATIENCE_MS - 1) == []
        assert line.wait(1) == names
    assert line.wait(10 * PATIENCE_MS) == []
    assert line.alarms.next_ns() is None


def test_what_takes_long_is_not_followed_by_more_when_patience_has_run_out() -> None:
    """A page that cannot be made in slices keeps the loop for once, not three times over."""
    line = Line()
    line.give_way()
    line.busy = True

    def take_long() -> None:
        line.clock.advance(1)
        line.seen.append("long")

    for _ in range(2):
        line.turns.put(take_long)
    assert line.wait(PATIENCE_MS) == ["long"]
    assert line.wait(PATIENCE_MS) == ["long"]


def test_who_comes_to_an_empty_line_waits_no_longer_than_others() -> None:
    line = Line()
    line.give_way()
    line.put("a")
    assert line.run() == ["a"]
    line.busy = True
    line.clock.advance(100 * PATIENCE_MS)
    line.put("b")
    assert line.run() == []
    assert line.wait(PATIENCE_MS) == ["b"]


def test_what_else_is_put_off_comes_first() -> None:
    """A write that was taken and not staged yet is known to nobody else."""
    line = Line()
    line.give_way()
    line.more = 2
    line.put("a")
    line.turns.stir()
    for n in range(3):
        line.owner.soon(lambda n=n: line.seen.append(f"other {n}"))  # type: ignore[misc]
    assert line.run() == ["other 0", "other 1", "other 2", "a"]


def test_what_is_put_off_all_the_time_is_waited_for_no_longer_than_a_write() -> None:
    line = Line()
    line.give_way()
    line.more = 1_000_000

    def other() -> None:
        line.clock.advance(1)
        if not line.seen:
            line.owner.soon(other)

    line.put("a")
    line.owner.soon(other)
    assert line.run() == ["a"]
    assert line.more > 900_000


def test_one_that_fails_keeps_nobody_from_going_on() -> None:
    line = Line()
    line.turns.put(lambda: 1 // 0)
    line.put("b")
    with pytest.raises(ZeroDivisionError):
        line.run()
    assert line.run() == ["b"]


def test_who_waits_goes_on_when_there_is_nobody_to_give_way_to_any_more() -> None:
    """The loop gives the engine back: no clock moves, and nobody stirs."""
    line = Line()
    line.give_way()
    line.busy = True
    line.put("a")
    assert line.run() == []
    line.turns.give_way()
    assert line.run() == ["a"]


def test_on_a_loop_a_write_that_came_in_the_same_pass_is_taken_first() -> None:
    """What sockets brought is put off behind the line's look at itself."""
    seen: list[str] = []

    async def play() -> None:
        clock = ManualClock()
        owner, ended = LoopOwner(clock), asyncio.Event()
        owner.lend(asyncio.get_running_loop())
        turns = Turns(owner, clock, Alarms())
        turns.give_way(lambda: False, owner.has_more)
        turns.put(lambda: seen.append("page"))
        owner.soon(lambda: seen.append("write"))
        turns.put(ended.set)
        await ended.wait()
        assert not owner.has_more()
        owner.take_back()
        owner.close()

    asyncio.run(play())
    assert seen == ["write", "page"]
