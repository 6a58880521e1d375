"""Delivery under load: coalescing, suspension and what streams are told of it (08 §5, [D-42, D-45, D-46])."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.expect import diff, ok, put, seqs, until, write
from tests.api.kit import Running, running
from topics.engine.core import Core
from topics.testing import ManualClock


class Loaded:
    """A server whose clock stands still and whose pressure the test sets, and one stream of the topic `t`."""

    def __init__(self, server: Running, client: httpx.Client, clock: ManualClock) -> None:
        self.server, self.client, self.clock = server, client, clock
        engine = server.server.app.engine
        assert engine is not None
        self.engine = engine
        self.core: Core = engine.core

    def press(self, pressure: float, *, deferring: bool = False) -> None:
        def press() -> None:
            governor = self.core.load.governor
            governor.pressure, governor.deferring = pressure, deferring
            self.core.load.hand_on()

        self.server.on_loop(press)

    def pass_ms(self, ms: int) -> None:
        """Time passes, and what is due is done."""
        self.clock.advance(ms)
        self.server.on_loop(self.engine.tick)

    @contextmanager
    def stream(self, *names: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Frames of a watch from the head on, by event and data."""
        body = {"topics": {name: {"tail": True} for name in names}}
        url = ok(self.client.post("/v0/watch", json=body))["stream_url"]
        with self.client.stream("GET", url) as answer:
            frames = _frames(answer)
            for _ in names:
                assert next(frames)[0] == "caught-up"
            yield frames


def _frames(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    event = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            yield event, json.loads(line[6:])


def records(frame: tuple[str, Any]) -> list[int]:
    assert frame[0] == "record", frame
    return seqs(frame[1])


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    clock = ManualClock()
    with running(clock=clock) as server, server.client() as client:
        yield Loaded(server, client, clock)


def test_without_pressure_every_write_is_pushed_at_once(loaded: Loaded) -> None:
    """08 §5: below 0.2 nothing waits for the clock."""
    put(loaded.client, "t", durability="memory")
    loaded.press(0.2)
    with loaded.stream("t") as frames:
        for seq in (1, 2, 3):
            write(loaded.client, "t", seq)
            assert records(next(frames)) == [seq]
            assert next(frames)[0] == "caught-up"


def test_under_pressure_records_leave_together_once_per_window(loaded: Loaded) -> None:
    """[D-42] L1: the first at once, what follows within 20 ms as one frame."""
    put(loaded.client, "t", durability="memory")
    loaded.press(1.0)
    with loaded.stream("t") as frames:
        write(loaded.client, "t", 1)
        assert records(next(frames)) == [1]
        assert next(frames)[0] == "caught-up"
        for seq in (2, 3, 4):
            write(loaded.client, "t", seq)
        loaded.pass_ms(19)
        write(loaded.client, "t", 5)
        loaded.pass_ms(1)
        assert records(next(frames)) == [2, 3, 4, 5]
        assert next(frames) == ("caught-up", {"topic": "t", "head_seq": 5})


def test_negative_priorities_are_paused_and_their_streams_are_told_once(loaded: Loaded) -> None:
    """[D-45, D-46] L3: stored and readable throughout; the push comes when it has aged, or when the pause ends."""
    put(loaded.client, "low", priority=-1000, durability="memory")
    put(loaded.client, "lower", priority=-1000, durability="memory")
    put(loaded.client, "high", priority=0, durability="memory")
    with loaded.stream("low", "lower", "high") as frames:
        loaded.press(0.9, deferring=True)
        write(loaded.client, "low", 1)
        event, told = next(frames)
        assert event == "error"
        assert told.pop("message")
        assert told == {"code": 429, "retry_after_ms": 1810, "topics": ["low"]}
        write(loaded.client, "low", 2)
        write(loaded.client, "lower", 1)
        assert seqs(diff(loaded.client, "low")) == [1, 2]
        write(loaded.client, "high", 1)
        assert (next(frames)[1]["topic"], next(frames)[0]) == ("high", "caught-up")
        until(loaded.server, lambda: loaded.core.pump.scheduler.ready == (2, 0, 0, 0, 0))
        loaded.pass_ms(10_000)
        assert loaded.core.pump.scheduler.suspended
        pushed = [next(frames) for _ in range(4)]
        assert [(one["topic"], seqs(one)) for event, one in pushed if event == "record"] == [
            ("low", [1, 2]),
            ("lower", [1]),
        ]


def test_a_pause_ends_with_the_load_and_the_next_one_is_told_again(loaded: Loaded) -> None:
    """[D-45] One advisory frame per suspension."""
    put(loaded.client, "low", priority=-1000, durability="memory")
    with loaded.stream("low") as frames:
        for round in (1, 2):
            loaded.press(0.9, deferring=True)
            write(loaded.client, "low", round)
            assert next(frames)[1]["code"] == 429
            loaded.press(0.5)
            assert records(next(frames)) == [round]
            assert next(frames)[0] == "caught-up"
            loaded.clock.advance(20)


def test_what_waits_when_a_pause_begins_is_told_too(loaded: Loaded) -> None:
    """[D-45]"""
    put(loaded.client, "low", priority=-1000, durability="memory")
    with loaded.stream("low") as frames:
        loaded.server.on_loop(lambda: _mark_and_suspend(loaded))
        assert next(frames)[1]["topics"] == ["low"]


def _mark_and_suspend(loaded: Loaded) -> None:
    """In one stretch: the item is queued, and not served yet."""
    loaded.core.wake(loaded.core.names["low"])
    loaded.core.pump.scheduler.defer(True)
