"""B14: how long does a record take from the writer's socket to a watcher's, when nothing is saturated?

Measured: 200 writes a second of 1 KiB each, class `disk` and `fsync`, 1 and 100 SSE streams; the time from sending the
write to receiving the whole frame, for every delivery. The baseline is the same bytes sent through a process that does
nothing but pass them on to as many connections. Of `fsync` a raw `pwrite` and `fdatasync` of the same bytes, at the
same pace, is taken off. Told beside it, per stage (08 §9): the server's own time for the write, of it staging and the
wait for the sync, and how long the delivery waited in the scheduler.

Checked: every watcher receives every frame. Not measured: saturation, HTTP/2, TLS. On two cores the writer, the
watchers and the server share them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from bench import fanout, served
from bench.bench_sse import frame_size, spread
from bench.measure import Arm, Figure, Group, Sample, percentiles_us

PER_SECOND = 200
PAYLOAD = b'{"data":"%b"}' % (b"x" * 1013)
BOUNDS_MS = {("disk", 1): (2.0, 5.0), ("disk", 100): (5.0, None)}
_SCHED = re.compile(rb"topics_sched_latency_ms_(sum|count) ([0-9.e+-]+)")


def groups(quick: bool) -> list[Group]:
    """Both classes, few and many watchers."""
    writes = 100 if quick else 400
    return [
        delivered(durability, count, writes) for durability in ("disk", "fsync") for count in (1, 100)
    ]  # fmt: skip


def delivered(durability: str, count: int, writes: int) -> Group:
    """One class and number of watchers."""
    arms = [
        Arm("passed on", lambda dir: uvloop.run(spread(count, writes, FRAME_BYTES, paced))),
        Arm("watch", lambda dir: uvloop.run(_watched(dir, durability, count, writes))),
    ]
    value = "ms" if durability == "disk" else "ms less sync"
    p50, p99 = BOUNDS_MS.get(("disk", count), (None, None))
    figures = [
        Figure(f"p50 {value}", "watch", None, "time", p50, "p50_ms"),
        Figure(f"p99 {value}", "watch", None, "time", p99, "p99_ms"),
        Figure("p50 beside passing on", "watch", "passed on", "time", None, "p50_us"),
    ]
    name = f"delivery, {durability}, {count} watcher{'s' if count > 1 else ''}"
    return Group(name, "delivery", arms, figures, explain=_stages)


FRAME_BYTES = 1250
"""About what such a record becomes."""


async def paced(write: Callable[[], Awaitable[None]], writes: int) -> None:
    """So many a second, each at its time, whatever the last one took."""
    began = time.perf_counter()
    for number in range(writes):
        await asyncio.sleep(max(began + number / PER_SECOND - time.perf_counter(), 0))
        await write()


async def _watched(dir: Path, durability: str, count: int, writes: int) -> Sample:
    with served.served(dir / "store") as target:
        one = await fanout.writer(target)
        path = f"/v0/topics/{served.TOPIC}"
        config = json.dumps({"durability": durability}).encode()
        await one.write(served.post(path, config).replace(b"POST", b"PUT", 1))
        request = served.post(f"{path}?return_seqs=false", b'{"records":[%b]}' % PAYLOAD)
        watch = await fanout.watch_topic(target, one, count)
        size = await frame_size(watch, one, request)
        watch.latencies.clear()
        before = await _scheduled(one)
        stages: dict[str, list[float]] = {"server_total_ms": [], "wal_append_ms": [], "fsync_ms": []}

        async def write() -> None:
            done = watch.begin(size)
            answer = await one.write(request)
            told = json.loads(answer[answer.index(b"\r\n\r\n") :])["performance"]
            for name, values in stages.items():
                values.append(told[name])
            await done

        cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
        await paced(write, writes)
        wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
        waited_ms, times = (now - then for now, then in zip(await _scheduled(one), before, strict=True))
        await watch.leave()
    told = percentiles_us(watch.latencies)
    sync = _raw_syncs(dir / "raw", writes // 5) if durability == "fsync" else {"p50_us": 0.0, "p99_us": 0.0}
    extra = {f"p{p}_ms": max(told[f"p{p}_us"] - sync[f"p{p}_us"], 0.0) / 1e3 for p in (50, 99)}
    middle = {f"stage_{name}": sorted(values)[len(values) // 2] for name, values in stages.items()}
    waited = {"stage_scheduler_ms": waited_ms / times if times else 0.0}
    return Sample(writes * count, wall_s, cpu_s, {**told, **extra, **middle, **waited})


async def _scheduled(one: fanout.Writer) -> tuple[float, float]:
    """What deliveries have waited in the scheduler so far, in ms, and how many there were."""
    answer = await one.write(b"GET /v0/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    found = {name: float(value) for name, value in _SCHED.findall(answer)}
    return found.get(b"sum", 0.0), found.get(b"count", 0.0)


def _raw_syncs(path: Path, count: int) -> dict[str, float]:
    """The disk alone, at the same pace."""
    data = PAYLOAD + b"x" * 64
    latencies = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(len(data) * count), 0)
    os.fsync(fd)
    for number in range(count):
        time.sleep(1 / PER_SECOND)
        start = time.perf_counter_ns()
        os.pwrite(fd, data, number * len(data))
        os.fdatasync(fd)
        latencies.append(time.perf_counter_ns() - start)
    os.close(fd)
    return percentiles_us(latencies)


def _stages(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ours = arms["watch"]
    told = ", ".join(
        f"{name.removeprefix('stage_').removesuffix('_ms')} {values['median']:.3f} ms"
        for name, values in ours.items()
        if name.startswith("stage_")
    )
    return [f"Stages at the median: {told}."]
