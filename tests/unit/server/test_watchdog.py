"""How late beats are is how long the loop stood still [P-10]."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from topics import settings
from topics.engine.engine import Engine
from topics.server.app import App
from topics.server.browser import Policy
from topics.server.keys import KeyRing
from topics.server.watchdog import BEAT_S, BUCKETS_MS, Watchdog
from topics.testing import ManualClock

BEAT_MS = int(BEAT_S * 1000)


class Loop:
    """Holds the next beat until the test lets it come."""

    def __init__(self) -> None:
        self.due: Any = None

    def call_later(self, delay: float, call: Any, *args: Any) -> Any:
        self.due = lambda: call(*args)
        return asyncio.Handle(call, args, cast(Any, self))

    def get_debug(self) -> bool:
        return False


def watched() -> tuple[App, Watchdog, Loop, ManualClock]:
    clock = ManualClock()
    app = App(settings.parse({}), KeyRing(), clock, Policy.of((), (), "127.0.0.1", loopback=True))
    dog, loop = Watchdog(app), Loop()
    dog.start(cast(Any, loop))
    return app, dog, loop, clock


def test_a_beat_in_time_is_no_stall_and_a_late_one_is() -> None:
    app, _, loop, clock = watched()
    for late_ms in (0, 3, 40, 700):
        clock.advance(ms=BEAT_MS + late_ms)
        loop.due()
    seen = app.stalls.timings()
    assert seen.total == 743.0
    assert seen.times == 4
    assert [seen.counts[BUCKETS_MS.index(bound)] for bound in (0.5, 5, 50)] == [1, 1, 1]
    assert seen.counts[-1] == 1


def test_long_stalls_are_warned_about_at_most_once_a_minute() -> None:
    app, _, loop, clock = watched()
    for late_ms in (199, 250, 900, 400):
        clock.advance(ms=BEAT_MS + late_ms)
        loop.due()
    assert [warned.message.split(";")[0] for warned in app.warnings] == ["the event loop stood still for 250 ms"]
    clock.advance(ms=60_000)
    loop.due()
    assert len(app.warnings) == 2


def test_the_governor_sees_by_how_much_the_last_beat_was_late() -> None:
    """08 §5"""
    app, _, loop, clock = watched()
    with Engine.open(None, clock=clock) as engine:
        app.engine = engine
        for late_ms in (7, 2):
            clock.advance(ms=BEAT_MS + late_ms)
            loop.due()
            assert engine.core.load.loop_lag_ms == app.stalls.last_ms == late_ms
