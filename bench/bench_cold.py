"""B10: do reads of a slow cold tier make writers and live watchers wait?

Measured: 200 writes a second of 1 KiB, class `fsync`, and 20 SSE streams at the head; the time from sending a write to
its answer, and to receiving the whole frame. First alone, then beside eight readers that page through another topic
whose segments are all in a cold tier where each ranged read takes 100 ms, without a cache: four of them are under way
all the time. The readers are a process of their own. Both p99 may be 1.15 times those of the writes alone.

Checked: every page of the old topic is whole, in order and was fetched from the tier; every watcher receives every
frame. Not measured: a tier over a network, moving segments meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvloop

from bench import fanout, served
from bench.bench_delivery import PAYLOAD, paced
from bench.bench_sse import frame_size
from bench.measure import Arm, Figure, Group, Sample, percentiles_us

WATCHERS = 20
READERS = 8
OLD = "/v0/topics/old"
RECORDS = 4_000
PAGE = 200
PUT = (b"POST", b"PUT", 1)
TAIL_BYTES = 1024
_NEXT = re.compile(rb'"next_from_seq":(\d+)')


def groups(quick: bool) -> list[Group]:
    """The comparison of this file."""
    writes = 100 if quick else 1500
    arms = [
        Arm("alone", lambda dir: uvloop.run(_written(dir, writes, reads=False))),
        Arm("beside cold reads", lambda dir: uvloop.run(_written(dir, writes, reads=True))),
    ]
    figures = [
        Figure("p99 of writes", "beside cold reads", "alone", "time", 1.15, "p99_us"),
        Figure("p99 of deliveries", "beside cold reads", "alone", "time", 1.15, "live_p99_us"),
        Figure("p50 of writes", "beside cold reads", "alone", "time", None, "p50_us"),
        Figure("p50 of deliveries", "beside cold reads", "alone", "time", None, "live_p50_us"),
        Figure("cold records read meanwhile", "beside cold reads", None, "rate", None, "cold_records"),
    ]
    return [Group("cold reads", "write", arms, figures)]


async def _written(dir: Path, writes: int, *, reads: bool) -> Sample:
    with served.served(dir / "store", "cold") as target:
        one = await fanout.writer(target)
        await _fill(one)
        path = f"/v0/topics/{served.TOPIC}"
        await one.write(served.post(path, b'{"durability":"fsync"}').replace(*PUT))
        request = served.post(f"{path}?return_seqs=false", b'{"records":[%b]}' % PAYLOAD)
        watch = await fanout.watch_topic(target, one, WATCHERS)
        size = await frame_size(watch, one, request)
        watch.latencies.clear()
        took: list[int] = []

        async def write() -> None:
            done = watch.begin(size)
            began_ns = time.perf_counter_ns()
            await one.write(request)
            took.append(time.perf_counter_ns() - began_ns)
            await done

        with _readers(target.port) if reads else nullcontext([0]) as cold:
            cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
            await paced(write, writes)
            wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
        await watch.leave()
    live = {f"live_{name}": value for name, value in percentiles_us(watch.latencies).items()}
    return Sample(writes, wall_s, cpu_s, {**percentiles_us(took), **live, "cold_records": float(cold[0])})


async def _fill(one: fanout.Writer) -> None:
    """Records of the old topic, and the wait until all but its last segment are cold."""
    body = b'{"records":[%b]}' % b",".join([PAYLOAD] * PAGE)
    for _ in range(RECORDS // PAGE):
        await one.write(served.post(f"{OLD}?return_seqs=false", body))
    await one.write(served.post("/v0/checkpoint", b""))
    while True:
        plan = _json(await one.write(f"GET {OLD}/segments HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()))
        if sum(found["tier"] == "cold" for found in plan["segments"]) >= RECORDS // PAGE - 1:
            return
        await asyncio.sleep(0.2)


@contextmanager
def _readers(port: int) -> Iterator[list[int]]:
    """All of them, in a process of their own: a page that is taken there keeps nobody here from taking an answer."""
    command = [sys.executable, "-m", "bench.bench_cold", str(port)]
    cold: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "reading\n", "the readers did not start; they say why above"
        yield cold
        cold.append(int(child.communicate()[0]))
    assert child.returncode == 0


async def _read_all(port: int) -> None:
    """In that process: read until nobody listens any more, then look at what came."""
    target, stopping, loop = served.Target(port, 0), asyncio.Event(), asyncio.get_running_loop()
    readers = [asyncio.create_task(_read(target, number, stopping)) for number in range(READERS)]
    print("reading", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    stopping.set()
    print(sum(map(_checked, await asyncio.gather(*readers))), flush=True)


async def _read(target: served.Target, number: int, stopping: asyncio.Event) -> list[bytes]:
    """Page through the old topic again and again; the answers, which are looked at when nobody is measured any more."""
    one, cursor, answers = await fanout.writer(target), number * PAGE, []
    while not stopping.is_set():
        answers.append(await one.write(served.post(f"{OLD}/diff", b'{"from_seq":%d}' % cursor)))
        found = _NEXT.search(answers[-1], len(answers[-1]) - TAIL_BYTES)
        assert found, answers[-1][-TAIL_BYTES:]
        cursor = int(found[1]) if int(found[1]) < RECORDS - 2 * PAGE else 0
    return answers


def _checked(answers: list[bytes]) -> int:
    """How many segments these pages were fetched from; each is whole and in order."""
    cold = 0
    for page in map(_json, answers):
        seqs = [record["$seq"] for record in page["records"]]
        assert seqs, "a page is empty"
        assert seqs == list(range(seqs[0], page["next_from_seq"] + 1)), "a page is not whole"
        cold += page["performance"].get("cold_segments_read", 0)
    assert cold, "nothing was read from the tier"
    return cold


def _json(answer: bytes) -> Any:
    return json.loads(answer[answer.index(b"\r\n\r\n") :])


if __name__ == "__main__":
    uvloop.run(_read_all(int(sys.argv[1])))
