"""B5: what does sending a record to many watchers cost beside a loop of `transport.write`?

Measured: one writer, single records of 100 bytes of class `disk`, 1, 100 and 1,000 SSE streams on the topic, each of a
session of its own; the next write begins when all of them have the last one. CPU of the server per delivery, less what
the same writes cost without a watcher, by the mean of before and after. The baseline is a process that does nothing but
`transport.write` of a frame of the same length to as many connections, less nothing. WebSocket subscriptions of the
same topic, as many, are told beside it without a bound.

Checked: every watcher receives exactly the bytes of one frame per write; and, before anything is timed, that what is
published in one tick comes as one frame: 64 writers at once bring a watcher no more frames than the log was given
batches, and all of their records. Not measured: several topics per stream, HTTP/2, TLS, watchers that are behind.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench import fanout, served
from bench.measure import Arm, Figure, Group, Sample, percentiles_us

WATCHERS = (1, 100, 1000)
CPU_BOUND = 1.3
WARM = 500
"""Writes before anything counts."""


def groups(quick: bool) -> list[Group]:
    """One comparison for each number of watchers."""
    most = 200 if quick else 2_000
    return [deliveries(count, min(max(60_000 // count, 60), most)) for count in WATCHERS]


def deliveries(count: int, writes: int) -> Group:
    """So many writes to so many watchers."""
    looked_at: list[Path] = []

    def watched(dir: Path) -> Sample:
        if not looked_at:
            looked_at.append(dir)
            one_frame_per_tick(dir / "ticks")
        return uvloop.run(_watched(dir / "store", count, writes, fanout.watch_topic))

    arms = [
        Arm("transport.write", lambda dir: uvloop.run(spread(count, writes, FRAME_BYTES, _one_by_one))),
        Arm("watch", watched),
        Arm("WebSocket", lambda dir: uvloop.run(_watched(dir / "store", count, writes, fanout.subscribe_topic))),
    ]
    figures = [
        Figure("CPU per delivery", "watch", "transport.write", "time", CPU_BOUND, "cpu_us"),
        Figure("CPU µs per delivery", "watch", None, "time", None, "cpu_us"),
        Figure("p99 beside it", "watch", "transport.write", "time", None, "p99_us"),
        Figure("CPU per delivery, WebSocket", "WebSocket", "transport.write", "time", None, "cpu_us"),
    ]
    return Group(f"SSE, {count} watchers" if count > 1 else "SSE, 1 watcher", "delivery", arms, figures)


def one_frame_per_tick(dir: Path, writers: int = 64, count: int = 640) -> None:
    """Publishes of one tick are one frame of a stream."""
    with served.served(dir) as target:
        frames, records, batches = uvloop.run(_frames(target, writers, count))
    assert records == count, f"{records} records of {count} arrived"
    assert frames <= batches, f"{frames} frames of {batches} ticks"


async def _frames(target: served.Target, writers: int, count: int) -> tuple[int, int, float]:
    """How many frames and records a stream got of so many writes at once, and how many batches the log."""
    one = await fanout.writer(target)
    await one.write(served.write_request(1))
    watch = await fanout.watch_topic(target, one, 1)
    (stream,) = watch.watchers
    stream.keep = bytearray()
    before = served.counters(target)["batches"]
    crowd = [await fanout.writer(target) for _ in range(writers)]
    for _ in range(count // writers):
        await asyncio.gather(*(each.write(served.write_request(1)) for each in crowd))
    while (records := stream.keep.count(b'"$seq":')) < count // writers * writers:
        await asyncio.sleep(0.01)
    batches = served.counters(target)["batches"] - before
    await watch.leave()
    for each in (one, *crowd):
        each.transport.abort()
    await asyncio.sleep(0)
    return stream.keep.count(b"event: record"), records, batches


Open = Callable[[served.Target, fanout.Writer, int], Awaitable[fanout.Watch]]


async def _watched(dir: Path, count: int, writes: int, open: Open) -> Sample:
    with served.served(dir) as target:
        one = await fanout.writer(target)
        request = served.write_request(1)
        for _ in range(WARM):
            await one.write(request)
        before_s = await _alone(target, one, request, writes)
        watch = await open(target, one, count)
        size = await frame_size(watch, one, request)
        await _run(target, watch, size, min(WARM, writes), lambda: one.write(request), _one_by_one)
        sample = await _run(target, watch, size, writes, lambda: one.write(request), _one_by_one)
        await watch.leave()
        behind_s = await _alone(target, one, request, writes)
        return sample._replace(cpu_s=max(sample.cpu_s - (before_s + behind_s) / 2, 1e-9))


async def _alone(target: served.Target, one: fanout.Writer, request: bytes, writes: int) -> float:
    """What so many writes take when nobody watches."""
    before_s = served.cpu_of(target.pid)
    for _ in range(writes):
        await one.write(request)
    return served.cpu_of(target.pid) - before_s


async def frame_size(watch: fanout.Watch, one: fanout.Writer, request: bytes) -> int:
    """What one write sends to a watcher; seqs have four digits throughout a run, so that it stays the same."""
    topic_at = 1000
    for watcher in watch.watchers:
        watcher.received = 0
    await one.write(served.post(f"/v0/topics/{served.TOPIC}", _many(topic_at)))
    await asyncio.sleep(0.5)
    for watcher in watch.watchers:
        watcher.received = 0
    await one.write(request)
    while not all(watcher.received for watcher in watch.watchers):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    sizes = {watcher.received for watcher in watch.watchers}
    assert len(sizes) == 1, sizes
    return sizes.pop()


def _many(count: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([b'{"data":1}'] * count)


Pace = Callable[[Callable[[], Awaitable[None]], int], Awaitable[None]]


async def _one_by_one(write: Callable[[], Awaitable[None]], writes: int) -> None:
    for _ in range(writes):
        await write()


async def spread(count: int, writes: int, size: int, pace: Pace) -> Sample:
    """The baseline: so many frames of one size, passed on to so many connections."""
    with fanout.spreader() as target:
        watch = fanout.Watch(target)
        await watch.open(fanout.WATCHER, count)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", target.port)
        frame = b"x" * size

        async def write() -> None:
            transport.write(frame)

        sample = await _run(target, watch, size, writes, write, pace)
        await watch.leave()
        transport.close()
        return sample


FRAME_BYTES = 346
"""About what a record of 100 bytes becomes, with its `caught-up` and two ids."""


async def _run(
    target: served.Target,
    watch: fanout.Watch,
    size: int,
    writes: int,
    write: Callable[[], Awaitable[object]],
    pace: Pace,
) -> Sample:
    async def write_and_wait() -> None:
        done = watch.begin(size)
        await write()
        await done

    gc.collect()
    watch.latencies.clear()
    cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
    await pace(write_and_wait, writes)
    wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
    return Sample(writes * len(watch.watchers), wall_s, cpu_s, percentiles_us(watch.latencies))
