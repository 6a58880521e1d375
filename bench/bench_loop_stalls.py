"""P-10: how long is the event loop kept by one callback, and how late does it come to what is due?

Measured, in µs: the stretches of all callbacks of the server's own loop, each by itself, where `topics_loop_stall_ms`
sees those that a beat of 50 ms meets; and how late a call comes that is due every millisecond, which is what is left of
a whole pass over all sockets

idle         with nothing to do: what timers and the machine make of it
writes       under the load of B2: 100 records in each write, 16 connections, class `disk`
recovery     from before a store with all of its records in the WAL is opened until it is checkpointed; a client writes
             all the time, is refused until it is open, and has its writes answered from then on

The p99.9 of the stretches of the last two may be 2 ms; lateness has no bound. The server has one core for all of its
threads, so what they take from the loop is in it. Checked: every record of the store is there, and those that were
answered. Not measured: bodies above 1 MiB, which are decoded one at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import served, store
from bench.measure import Arm, Figure, Group, Sample
from topics.testing.httpconn import HttpConn

BOUND_US = 2000.0
CONNECTIONS = 16
BATCH = 100
WAIT_S = 300.0


def groups(quick: bool) -> list[Group]:
    """The beat under three loads."""
    writes, count = (200, 20_000) if quick else (20_000, 5_000_000)

    def recovered(dir: Path) -> Sample:
        made = store.shared(dir, f"killed-{count}", lambda made: store.killed(made, count))
        store.copy(made, dir / "store")
        return _beaten(dir / "store", "recovery", lambda target: _write_through(target, count))

    arms = [
        Arm("idle", lambda dir: _beaten(dir / "store", "beat", lambda target: time.sleep(0.2 if quick else 3.0))),
        Arm("writes", lambda dir: _beaten(dir / "store", "beat", lambda target: _load(target, writes))),
        Arm("recovery", recovered),
    ]
    figures = [
        *_told("idle", None),
        *_told("writes", BOUND_US),
        *_told("recovery", BOUND_US),
    ]
    return [Group("stretches and lateness of the event loop", "beat", arms, figures)]


def _told(arm: str, bound: float | None) -> list[Figure]:
    return [
        Figure(f"{arm}, p99.9 of stretches, µs", arm, None, "time", bound, "stretch_p99.9_us"),
        Figure(f"{arm}, longest stretch, µs", arm, None, "time", None, "stretch_p100_us"),
        Figure(f"{arm}, p99.9 of lateness, µs", arm, None, "time", None, "p99.9_us"),
    ]


def _beaten(dir: Path, kind: str, load: Callable[[served.Target], None]) -> Sample:
    with served.served(dir, kind) as target:
        began, cpu_s = time.perf_counter(), served.cpu_of(target.pid)
        load(target)
        wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
    found = json.loads((dir / served.BEATS).read_text(encoding="ascii"))
    beats = found.pop("beats")
    assert beats, "the loop never beat"
    return Sample(beats, wall_s, cpu_s, found)


def _load(target: served.Target, count: int) -> None:
    served.driven(target, served.writes(BATCH), connections=CONNECTIONS, count=count, units=BATCH)


def _write_through(target: served.Target, count: int) -> None:
    """Write until the store is open, and then until a checkpoint is done."""
    body = {"records": [{"data": n} for n in range(BATCH)]}
    answered, until = 0, time.monotonic() + WAIT_S
    with HttpConn("127.0.0.1", target.port) as http, ThreadPoolExecutor(1) as aside:
        while not answered:
            assert time.monotonic() < until, "the store does not open"
            answered += http.call("POST", f"/v0/topics/{store.TOPIC}", body).status == 200
        checkpointed = aside.submit(_checkpoint, target)
        while not checkpointed.done():
            answered += http.call("POST", f"/v0/topics/{store.TOPIC}", body).status == 200
        assert checkpointed.result() == 200
        head = http.call("GET", f"/v0/topics/{store.TOPIC}").body["head_seq"]
    assert head == count + answered * BATCH, (head, count, answered)


def _checkpoint(target: served.Target) -> int:
    with HttpConn("127.0.0.1", target.port, WAIT_S) as http:
        return http.call("POST", "/v0/checkpoint", {}).status
