"""Priority: who is served first, never what is stored or seen (01 §16, 08 §2-3).

    P      = manual + auto + age
    manual = clamp(priority, -1000, 1000)         0 when priority is null
    auto   = 500 * 2^(-idle / 30 s)               only without a manual priority, with auto_priority, once consumed
    age    = 0.1 * min(waited, 10 s)              only while the topic waits for service

    band   B4 >= 750   B3 500-749   B2 250-499   B1 0-249   B0 < 0
    weight    8           4            2            1          1

Pure functions of a configuration and instants in ms; the scheduler calls them on the owner thread.
"""

from __future__ import annotations

import math
from typing import Final

from topics.model import TopicConfig

MANUAL_MAX: Final = 1000
AUTO_MAX: Final = 500
HALF_LIFE_MS: Final = 30_000
AUTO_FLOOR_MS: Final = 300_000
AGE_PER_MS: Final = 0.1
AGE_CAP_MS: Final = 10_000
TICK_MS: Final = 50

WEIGHTS: Final = (1, 1, 2, 4, 8)
"""Share of each band, B0 first [PRI-5]."""
BAND_FLOORS: Final = (0, 250, 500, 750)
"""Least priority of B1 to B4."""


def manual(config: TopicConfig) -> int:
    """The priority somebody chose; kept unclamped, clamped here [CFG-6]."""
    if config.priority is None:
        return 0
    return min(max(config.priority, -MANUAL_MAX), MANUAL_MAX)


def auto(config: TopicConfig, last_consumed_ms: int | None, now_ms: int) -> float:
    """What recent reading is worth: halved every 30 s, nothing from 300 s on [PRI-2, PRI-3]."""
    if config.priority is not None or not config.auto_priority or last_consumed_ms is None:
        return 0.0
    # A clock that stepped back makes a topic freshly consumed, not more than that.
    idle_ms = max(now_ms - last_consumed_ms, 0)
    if idle_ms >= AUTO_FLOOR_MS:
        return 0.0
    return AUTO_MAX * math.exp2(-idle_ms / HALF_LIFE_MS)


def age(enqueued_ms: int | None, now_ms: int) -> float:
    """What waiting is worth: 100 per second, at most 1000; `None` = not waiting."""
    if enqueued_ms is None:
        return 0.0
    return AGE_PER_MS * min(max(now_ms - enqueued_ms, 0), AGE_CAP_MS)


def priority(config: TopicConfig, last_consumed_ms: int | None, enqueued_ms: int | None, now_ms: int) -> int:
    """`P`, which the scheduler serves by, rounded like the effective priority (08 §2)."""
    return round_half_away(manual(config) + auto(config, last_consumed_ms, now_ms) + age(enqueued_ms, now_ms))


def effective_priority(config: TopicConfig, last_consumed_ms: int | None, now_ms: int) -> int:
    """`P` without age, as topic state reports it [PRI-1]."""
    return priority(config, last_consumed_ms, None, now_ms)


def round_half_away(value: float) -> int:
    """The nearest integer, halves away from zero; `round` would send them to the even one."""
    whole = math.floor(abs(value) + 0.5)
    return whole if value >= 0 else -whole


def band(p: int) -> int:
    """Index of the band that serves a priority, 0 to 4 [PRI-5]."""
    return sum(p >= floor for floor in BAND_FLOORS)
