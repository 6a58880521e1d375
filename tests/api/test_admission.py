"""A full log over HTTP: waiting, 429 and what it says (08 §6, 02 [WR-5, ERR-5])."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.expect import Background, like, ok, put, refused, state, until
from tests.api.kit import WAIT_S, Running, running
from tests.api.wskit import Ws, command, is_all_let_go
from tests.unit.engine.kit import GatedFs, real_config
from topics.engine.core import Core
from topics.testing import ManualClock

BODY: dict[str, Any] = {"records": [{"data": 1}]}


class Full:
    """A server whose sync is held and whose queue of two is full."""

    def __init__(self, server: Running, client: httpx.Client, fs: GatedFs, clock: ManualClock) -> None:
        self.server, self.client, self.clock = server, client, clock
        self._fs = fs
        engine = server.server.app.engine
        assert engine is not None
        self.core: Core = engine.core
        put(client, "t", durability="fsync")
        fs.gate.clear()
        self.held = [self.ask()]
        assert fs.waiting.acquire(timeout=WAIT_S)
        self.held.append(self.ask())
        until(server, lambda: self.core.names["t"].staged_records == 2)

    def ask(self, **more: object) -> Background:
        """A write, on a connection of its own."""
        return Background(self.client, lambda own: own.post("/v0/topics/t", json={**BODY, **more}))

    def waits(self, count: int = 1) -> None:
        """Wait until so many writes wait for room."""
        until(self.server, lambda: self.core.admission.waiting == count)

    def press(self, pressure: float) -> None:
        """As the governor would, had it seen enough."""

        def press() -> None:
            self.core.load.governor.pressure = pressure
            self.core.load.hand_on()

        self.server.on_loop(press)

    def tick(self) -> None:
        engine = self.server.server.app.engine
        assert engine is not None
        self.server.on_loop(engine.tick)

    def release(self) -> None:
        self._fs.gate.set()


@pytest.fixture
def full(client: httpx.Client) -> Iterator[Full]:
    with _full(client) as one:
        yield one


@contextmanager
def _full(client: httpx.Client) -> Iterator[Full]:
    fs, clock = GatedFs(), ManualClock()
    with running(fs=fs, clock=clock, config=real_config(queue_submissions=2)) as server, like(client, server) as one:
        try:
            yield Full(server, one, fs, clock)
        finally:
            fs.gate.set()


def test_a_publish_that_waits_for_room_is_not_overtaken_and_counts_as_buffered(full: Full) -> None:
    """[D-50, WS-19, RES-3], case 2: what the same WebSocket sent behind it is not even read."""
    with Ws(full.server) as ws:
        first, second = command("publish", topic="t", request_id=1, **BODY), command("ping", request_id=2)
        ws.send(first + second)
        full.waits()
        assert full.server.on_loop(lambda: ws.served._input) == second
        assert full.server.server.app.buffered.used == len(first) - 6 + len(second)
        full.clock.advance(50)
        full.tick()
        told = ws.reply()
        assert (told["code"], told["request_id"]) == ("throttled", 1)
        assert ws.reply()["request_id"] == 2
    assert state(full.client, "t")["head_seq"] == 0
    full.release()
    assert sorted(ok(one.answer())["last_seq"] for one in full.held) == [1, 2]
    is_all_let_go(full.server)


def test_a_publish_that_found_room_says_how_long_it_waited(full: Full) -> None:
    """[D-52]"""
    with Ws(full.server) as ws:
        ws.send(command("publish", topic="t", disable_backpressure=True, **BODY))
        full.waits()
        full.clock.advance(70)
        full.release()
        told = ws.reply()
        assert told["seqs"] == [3]
        assert told["performance"]["throttle_wait_ms"] == 70.0
    assert sorted(ok(one.answer())["last_seq"] for one in full.held) == [1, 2]


@pytest.mark.parametrize(("pressure", "retry_after_ms", "retry_after"), [(0.95, 1905, "2"), (1.0, 2000, "2")])
def test_at_full_pressure_a_write_is_refused_at_once(
    full: Full, pressure: float, retry_after_ms: int, retry_after: str
) -> None:
    """[D-51, WR-5], case 1: no time passes."""
    full.press(pressure)
    answer = full.client.post("/v0/topics/t", json=BODY)
    refused(answer, 429, "throttled", {"retry_after_ms": retry_after_ms})
    assert answer.headers["retry-after"] == retry_after
    assert state(full.client, "t")["head_seq"] == 0
    full.press(0.0)
    full.release()
    assert sorted(ok(one.answer())["last_seq"] for one in full.held) == [1, 2]
    assert state(full.client, "t")["head_seq"] == 2


@pytest.mark.parametrize(
    ("more", "wait_ms", "retry_after_ms", "retry_after"),
    [({}, 50, 100, "1"), ({"disable_backpressure": True}, 30_000, 1050, "2")],
    ids=["case 2", "case 3"],
)
def test_a_write_is_refused_when_room_does_not_come_in_time(
    full: Full, more: dict[str, Any], wait_ms: int, retry_after_ms: int, retry_after: str
) -> None:
    """[D-50, D-51], cases 2 and 3: the head is where it was, and the next write takes the next seq.

    In 30 s the governor has seen the full queue once: the clock moved in one leap.
    """
    asked = full.ask(**more)
    full.waits()
    full.clock.advance(wait_ms - 1)
    full.tick()
    full.waits()
    full.clock.advance(1)
    answer = asked.answer()
    refused(answer, 429, "throttled", {"retry_after_ms": retry_after_ms})
    assert answer.headers["retry-after"] == retry_after
    full.press(0.0)
    full.release()
    assert sorted(ok(one.answer())["last_seq"] for one in full.held) == [1, 2]
    assert ok(full.client.post("/v0/topics/t", json=BODY))["first_seq"] == 3


def test_a_write_that_gets_room_tells_how_long_it_waited(full: Full) -> None:
    """[D-52] And only that one."""
    asked = full.ask()
    full.waits()
    full.clock.advance(30)
    full.release()
    told = asked.answer().json()
    assert (told["first_seq"], told["performance"]["throttle_wait_ms"]) == (3, 30.0)
    others = [one.answer().json() for one in full.held] + [full.client.post("/v0/topics/t", json=BODY).json()]
    assert all("throttle_wait_ms" not in one["performance"] for one in others)


def test_what_a_waiting_write_sent_counts_as_buffered(full: Full) -> None:
    """[RES-3] Bytes that are not staged are bounded, however many writes wait."""
    buffered = full.server.server.app.buffered
    asked = full.ask(node="n" * 100)
    full.waits()
    assert full.server.on_loop(lambda: buffered.used) > 100
    full.release()
    ok(asked.answer())
    until(full.server, lambda: not buffered.used)


def test_who_waits_when_the_server_drains_is_told_so(server: Running) -> None:
    """[API-5] It is not left without an answer, and what was accepted is still written.

    Over HTTP/1.1: the client gives up all requests of a connection when HTTP/2 says goodbye.
    """
    with server.client() as client, _full(client) as full:
        asked = full.ask(disable_backpressure=True)
        full.waits()
        full.server.loop.call_soon_threadsafe(full.server._stopping.set)
        refused(asked.answer(), 503, "shutting_down")
        full.release()
        assert sorted(ok(one.answer())["last_seq"] for one in full.held) == [1, 2]


@pytest.mark.parametrize("sliced", [False, True])
def test_the_pool_that_prepares_large_bodies_has_a_bound(sliced: bool) -> None:
    """[D-51], case 4: more than 256 in line are refused, small writes are not; in slices, or aside."""
    with running() as one, one.client() as client:
        core = one.on_loop(lambda: one.server.app.engine.core)  # type: ignore[union-attr]
        gate = threading.Event()

        def steps() -> Iterator[None]:
            while not gate.is_set():
                yield

        def hold() -> None:
            if sliced:
                core.owner.sliced(steps(), lambda error: None)
            else:
                core.owner.aside("decode", lambda: gate.wait(WAIT_S), lambda error: None)

        for _ in range(256):
            one.on_loop(hold)
        answer = client.post("/v0/topics/t", json={"records": [{"data": "x" * 600_000}] * 2})
        refused(answer, 429, "throttled", {"retry_after_ms": 100})
        ok(client.post("/v0/topics/t", json=BODY), 201)
        gate.set()
        until(one, lambda: not core.load.is_pool_full("slices" if sliced else "decode"))
        ok(client.post("/v0/topics/t", json={"records": [{"data": "x" * 600_000}] * 2}))
        assert one.on_loop(lambda: core.admission.refused["4"]) == 1
