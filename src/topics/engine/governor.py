"""Governor: how hard the server is working, and what that costs whom (08 §5, 01 PRI-7).

    signal    share of pressure
    depth     (depth - N) / 15 N            items that could be served now
    latency   latency / 5 ms                how late they are, or the event loop if that is later
    busy      (busy - 0.5) / 0.5            the fullest of the pools and the shards' queues

    raw       the largest share; pressure follows it, quickly up (half the way a sample) and slowly down (a fifth)

    level     condition                                   effect
    L1        pressure > 0.2                              a topic is served at most once per `window_ms`
    L2        pressure > 0.4                              a group commit waits `commit_slice_ms` for company [S-75]
    L3        > 0.8 in three samples, until < 0.6         forwarding one band lower, negative priorities paused

Shedding costs latency only, never data [D-46]. A plain object: who calls `sample` every 100 ms keeps the time. Owner
only; `pressure` may be read anywhere [D-40].
"""

from __future__ import annotations

from topics.engine.scheduler import SchedulerConfig, window_ms
from topics.storage.shard import WINDOW_ABOVE, commit_slice_ns, retry_after_ms

RISE = 0.5
FALL = 0.2
NOTHING = 0.01
"""A pressure below this is none once nothing presses."""
BUSY_FREE = 0.5


class Governor:
    """Pressure, smoothed, and the steps of the ladder."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.pressure = 0.0
        self.deferring = False
        """L3 is in force."""
        self._high = 0
        """Samples above L3's threshold in a row."""

    def sample(self, depth: int, latency_ms: float, busy: float, loop_lag_ms: float = 0.0) -> float:
        """Take one sample; the pressure from now on."""
        raw = self._raw(depth, max(latency_ms, loop_lag_ms), busy)
        pressure = self.pressure
        pressure += (RISE if raw > pressure else FALL) * (raw - pressure)
        if not raw and pressure < NOTHING:
            pressure = 0.0
        self.pressure = pressure
        self._judge(pressure)
        return pressure

    def _raw(self, depth: int, latency_ms: float, busy: float) -> float:
        free = self.config.depth_free
        return max(
            _clamped((depth - free) / (15 * free)),
            _clamped(latency_ms / self.config.latency_full_ms),
            _clamped((busy - BUSY_FREE) / (1 - BUSY_FREE)),
        )

    def _judge(self, pressure: float) -> None:
        """L3 begins when pressure stays high and ends when it is clearly lower [D-41]."""
        self._high = self._high + 1 if pressure > self.config.defer_above else 0
        if self._high >= self.config.defer_samples:
            self.deferring = True
        elif pressure < self.config.defer_below:
            self.deferring = False

    def level(self) -> int:
        """The highest step in force, 0 to 3; refusing writes (L4) depends on the queue a write meets."""
        if self.deferring:
            return 3
        if self.pressure > WINDOW_ABOVE:
            return 2
        return int(self.pressure > self.config.coalesce_above)

    def window_ms(self) -> float:
        """L1: how long a topic that was served waits at least for the next time."""
        return window_ms(self.pressure, self.config)

    def commit_slice_ms(self) -> float:
        """L2: how long a sync waits for company; in force above a pressure of 0.4 only."""
        return commit_slice_ns(self.pressure) / 1e6

    def retry_after_ms(self) -> int:
        """When a refused client may try again [D-51]."""
        return retry_after_ms(self.pressure)


def _clamped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
