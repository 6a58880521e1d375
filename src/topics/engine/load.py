"""The governor at work: what it looks at, and who follows its pressure (08 §5, §6).

    every 100 ms   depth and latency of the scheduler, the loop's lag, how full pools and shards are ─▶ pressure
    L1, L3         the scheduler: coalescing, suspension
    L2             the shards: how long a sync waits for company [S-75]
    L4             admission: whether a write without room may wait

It looks only while there is something to see: after a mark, after a write without room, when a shard's queue is half
full, and until all of that has faded. A server where nothing happens has no timer for it. Owner only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from topics.clock import Clock
from topics.engine.admission import Admission
from topics.engine.alarms import Alarm, Alarms
from topics.engine.governor import BUSY_FREE, NOTHING, Governor
from topics.engine.scheduler import Scheduler
from topics.storage.shard import Shard

POOL: Final = ("files", "frames", "decode", "wal-helper")
"""Lanes that together are the I/O pool (08 §8)."""
POOL_QUEUE_MAX: Final = 256
"""What may wait in one of them (08 §6 case 4)."""
REFUSING: Final = 4
"""The ladder's last step."""


class Load:
    """One per engine."""

    def __init__(self, clock: Clock, alarms: Alarms, scheduler: Scheduler, admission: Admission) -> None:
        self.governor = Governor(scheduler.config)
        self.shards: Sequence[Shard] = ()
        self.loop_lag_ms = 0.0
        """By how much the event loop was late when somebody last looked; nobody does outside a server."""
        self.queued: Callable[[str], int] = lambda lane: 0
        """Pieces of work in a lane, the one under way included."""
        self._clock = clock
        self._alarms = alarms
        self._scheduler = scheduler
        self._admission = admission
        self._alarm: Alarm | None = None
        self._refused = self._refused_before = 0
        """Writes refused up to the last two samples."""
        self._popped = 0
        self._ended = False
        admission.on_full = self.wake

    def wake(self) -> None:
        """There is something to see."""
        if self._alarm is None and not self._ended:
            due_ns = self._clock.monotonic_ns() + self._scheduler.config.sample_ms * 1_000_000
            self._alarm = self._alarms.at(due_ns, self._sample)

    def end(self) -> None:
        """Nothing brings the clock on any more, so nothing may wait for it: there is no pressure from now on."""
        self._ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.governor.pressure, self.governor.deferring = 0.0, False
        self.hand_on()

    def look(self) -> None:
        """Begin if a shard's queue presses; called now and then."""
        if self._alarm is None and self._busy() > BUSY_FREE:
            self.wake()

    def level(self) -> int:
        """The highest step of the ladder in force, 0 to 4."""
        return REFUSING if self._turned_away() > self._refused_before else self.governor.level()

    def is_pool_full(self, lane: str) -> bool:
        """Whether no more work may be put into a lane of the pool (08 §6 case 4)."""
        return self.queued(lane) >= POOL_QUEUE_MAX

    def _sample(self) -> None:
        self._alarm = None
        scheduler = self._scheduler
        active = self._is_active()
        # While nothing is served or written, how late the loop is presses nobody.
        lag_ms = self.loop_lag_ms if active else 0.0
        self.governor.sample(scheduler.depth, scheduler.sample_latency_ms(), self._busy(), lag_ms)
        self._refused_before, self._refused = self._refused, self._turned_away()
        if active or self.governor.pressure >= NOTHING or self._refused != self._refused_before:
            self.wake()
        else:
            self.governor.pressure = 0.0
        self.hand_on()

    def hand_on(self) -> None:
        """Everybody who slows down with pressure is told."""
        pressure = self.governor.pressure
        self._admission.pressure = pressure
        for shard in self.shards:
            shard.pressure = pressure
        self._scheduler.set_pressure(pressure)
        self._scheduler.defer(self.governor.deferring)

    def _is_active(self) -> bool:
        """Whether anything was served since the last sample, or waits to be served or written."""
        popped, self._popped = self._popped, sum(self._scheduler.latencies)
        return self._popped != popped or not self._scheduler.idle or self._busy() > 0

    def _busy(self) -> float:
        """The pool or a shard's queue, whichever is fuller."""
        pool = sum(self.queued(lane) > 0 for lane in POOL) / len(POOL)
        return max((pool, *(shard.fullness for shard in self.shards)))

    def _turned_away(self) -> int:
        refused = self._admission.refused
        return refused["1"] + refused["2"] + refused["3"] + refused["4"]
