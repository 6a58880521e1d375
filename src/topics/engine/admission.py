"""Admission: what becomes of a write when its shard's queue is full (08 §6).

    case   situation                                     answer
    1      pressure of 0.95 and more                     refused at once
    2      less pressure                                 waits 50 ms for room, then refused
    3      as 1 or 2 with `disable_backpressure`         waits 30 s for room, then refused
    4      the pool that prepares large bodies is full   refused at once

A refusal comes before any seq is taken and leaves no trace [D-50]. Whoever waits keeps the order: among the writes of a
shard, and, because the topic's line stands still meanwhile, among everything that happens to its topic [A-1]. Writes
wait only where something brings them on, in a server; elsewhere a full queue refuses. Owner only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from topics.clock import Clock
from topics.engine.alarms import Alarm, Alarms
from topics.engine.scheduler import SchedulerConfig
from topics.errors import EngineClosed, TopicsError, WalFull
from topics.storage.owner import Owner
from topics.storage.shard import Shard, retry_after_ms

CASES: Final = ("1", "2", "3", "4", "5")
AT_ONCE: Final = 256
"""Writes that go on in one stretch; a millisecond or two."""


class Turn:
    """One write that waits for room, or behind one that does; or several that were gathered."""

    __slots__ = ("alarm", "called", "go", "patient", "refuse", "since_ns", "size", "until_ns", "waited_ms", "writes")

    def __init__(self, since_ns: int, until_ns: int, patient: bool, writes: int) -> None:
        self.since_ns = since_ns
        self.until_ns = until_ns
        self.patient = patient
        self.writes = writes
        self.called = False
        """It was first in its line: nobody goes before it any more."""
        self.waited_ms: float | None = None
        """Set when it was staged [D-52]."""
        self.alarm: Alarm | None = None
        self.size = 0
        self.go: Callable[[], None] = lambda: None
        self.refuse: Callable[[TopicsError], None] = lambda error: None


class Admission:
    """Who waits for room, shard by shard, and who was turned away."""

    def __init__(self, clock: Clock, alarms: Alarms, owner: Owner, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.pressure = 0.0
        """The governor's."""
        self.patient = False
        """Whether anybody may wait; see above."""
        self.waiting = 0
        """Writes that wait for room."""
        self.refused = dict.fromkeys(CASES, 0)
        """Refusals by case; 5: a resource cap (09 §5)."""
        self.on_full: Callable[[], None] = lambda: None
        """Told when a write found no room: there is something for the governor to see."""
        self._clock = clock
        self._alarms = alarms
        self._owner = owner
        self._lines: dict[str, deque[Turn]] = {}

    # -- waiting -----------------------------------------------------------------------------------------------------

    def turn(self, patient: bool, writes: int = 1) -> Turn | None:
        """What a write waits with from now on, or so many as one; None: it does not, and was refused."""
        self.on_full()
        if not self.patient:
            return None
        if self.pressure >= self.config.refuse_from and not patient:
            self.refused["1"] += writes
            return None
        now = self._clock.monotonic_ns()
        most_ms = self.config.wait_long_ms if patient else self.config.wait_ms
        return Turn(now, now + most_ms * 1_000_000, patient, writes)

    def is_waited_for(self, shard: Shard) -> bool:
        """Whether somebody waits for room there: who comes now does so too."""
        return bool(self._lines.get(shard.key))

    def wait(
        self, shard: Shard, turn: Turn, size: int, go: Callable[[], None], refuse: Callable[[TopicsError], None]
    ) -> None:
        """Call `go` when there may be room for a submission of this size, or `refuse` when it is too late."""
        if not self.patient or self._clock.monotonic_ns() >= turn.until_ns:
            self._turn_away(turn, refuse)
            return
        line = self._lines.setdefault(shard.key, deque())
        if turn.called:
            line.appendleft(turn)
        else:
            line.append(turn)
        self.waiting += 1
        turn.size, turn.go, turn.refuse = size, go, refuse
        turn.alarm = self._alarms.at(turn.until_ns, lambda: self._late(shard, turn))

    def room(self, shard: Shard) -> None:
        """Submissions of a shard are finished: let go on who waited, in turn."""
        line = self._lines.get(shard.key)
        for _ in range(AT_ONCE):
            if not line or shard.is_crowded(line[0].size):
                return
            turn = line[0]
            self._call(line, turn)
            if line and line[0] is turn:
                # It did not fit after all, or the run has not begun.
                return
        self._owner.soon(lambda: self.room(shard))

    def _call(self, line: deque[Turn], turn: Turn) -> None:
        line.remove(turn)
        self.waiting -= 1
        assert turn.alarm is not None
        turn.alarm.cancel()
        turn.called = True
        turn.go()

    def _late(self, shard: Shard, turn: Turn) -> None:
        line = self._lines[shard.key]
        if not shard.is_crowded(turn.size):
            # Not the queue: whatever keeps the shard from taking it is what the client is told [D-53].
            self._call(line, turn)
            return
        line.remove(turn)
        self.waiting -= 1
        self._turn_away(turn, turn.refuse)
        self.room(shard)

    def _turn_away(self, turn: Turn, refuse: Callable[[TopicsError], None]) -> None:
        self.refused["3" if turn.patient else "2"] += turn.writes
        refuse(self.refusal())

    def check_pool(self, full: bool) -> None:
        """Refuse what needs a pool whose queue is full, case 4."""
        if full:
            self.refused["4"] += 1
            raise self.refusal()

    def refusal(self) -> WalFull:
        """What a write is refused with, and when it may be tried again [D-51]."""
        return WalFull("the log takes no more writes now", retry_after_ms(self.pressure))

    def end(self) -> None:
        """Nobody waits any more: the server is going."""
        self.patient = False
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for turn in line:
                self.waiting -= 1
                assert turn.alarm is not None
                turn.alarm.cancel()
                turn.refuse(EngineClosed("the engine is closing"))
