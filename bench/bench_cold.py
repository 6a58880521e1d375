"""B10: do reads of a slow cold tier make writers and live watchers wait?

Measured: 200 writes a second of 1 KiB, class `fsync`, and 20 SSE streams at the head; the time from sending a write to
its answer, and to receiving the whole frame. Alone, and beside eight readers that page through another topic whose
segments are all in a cold tier where each ranged read takes 100 ms, without a cache: four of them are under way all the
time. Both p99 may be 1.15 times those of the writes alone.

What a disk takes for a sync changes from one minute to the next by more than that. So a round is one server, where
stretches of a second alone and beside readers follow each other, and each side's percentiles are those of all its
stretches. The readers are a process of their own that runs when nobody else wants its core: what they do with their
answers is not the server's doing.

Checked: every page of the old topic is whole, in order and was fetched from the tier; every watcher receives every
frame. Not measured: a tier over a network, moving segments meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench import fanout, served
from bench.bench_delivery import PAYLOAD, PER_SECOND, paced
from bench.bench_sse import frame_size
from bench.measure import Arm, Figure, Group, Sample, percentiles_us

WATCHERS = 20
READERS = 8
OLD = "/v0/topics/old"
RECORDS = 4_000
PAGE = 200
STRETCH = PER_SECOND
UNDER_WAY_S = 0.15
"""Until the first pages have come."""
PUT = (b"POST", b"PUT", 1)
TAIL_BYTES = 1024
_NEXT = re.compile(rb'"next_from_seq":(\d+)')


def groups(quick: bool) -> list[Group]:
    """The comparison of this file."""
    pair = _Pair(2 if quick else 20)  # seqs keep four digits, see `frame_size`
    arms = [Arm("alone", pair.run), Arm("beside cold reads", pair.other)]
    figures = [
        Figure("p99 of writes", "beside cold reads", "alone", "time", 1.15, "p99_us"),
        Figure("p99 of deliveries", "beside cold reads", "alone", "time", 1.15, "live_p99_us"),
        Figure("p50 of writes", "beside cold reads", "alone", "time", None, "p50_us"),
        Figure("p50 of deliveries", "beside cold reads", "alone", "time", None, "live_p50_us"),
        Figure("cold records read meanwhile", "beside cold reads", None, "rate", None, "cold_records"),
    ]
    return [Group("cold reads", "write", arms, figures, passes=1)]


class _Pair:
    """Both sides of a round, which are measured in turn: the first arm does it, the second tells the other side."""

    def __init__(self, stretches: int) -> None:
        self._stretches = stretches
        self._sides: tuple[_Side, _Side] | None = None

    def run(self, dir: Path) -> Sample:
        """Measure both; the writes alone."""
        self._sides = uvloop.run(_written(dir, self._stretches))
        return self._sides[0].sample()

    def other(self, dir: Path) -> Sample:
        """The writes beside readers, of the same round."""
        assert self._sides is not None
        return self._sides[1].sample()


class _Side:
    """What was seen of one side, over all its stretches."""

    def __init__(self) -> None:
        self.took: list[int] = []
        self.live: list[int] = []
        self.wall_s = self.cpu_s = 0.0
        self.cold = 0

    def sample(self) -> Sample:
        """The same as numbers."""
        live = {f"live_{name}": value for name, value in percentiles_us(self.live).items()}
        extra = {**percentiles_us(self.took), **live, "cold_records": float(self.cold)}
        return Sample(len(self.took), self.wall_s, self.cpu_s, extra)


async def _written(dir: Path, stretches: int) -> tuple[_Side, _Side]:
    alone, beside = sides = _Side(), _Side()
    with served.served(dir / "store", "cold") as target:
        one = await fanout.writer(target)
        await _fill(one)
        path = f"/v0/topics/{served.TOPIC}"
        await one.write(served.post(path, b'{"durability":"fsync"}').replace(*PUT))
        request = served.post(f"{path}?return_seqs=false", b'{"records":[%b]}' % PAYLOAD)
        watch = await fanout.watch_topic(target, one, WATCHERS)
        size = await frame_size(watch, one, request)

        async def stretch(side: _Side) -> None:
            watch.latencies = side.live
            cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
            await paced(partial(write, side.took), STRETCH)
            side.wall_s += time.perf_counter() - began
            side.cpu_s += served.cpu_of(target.pid) - cpu_s

        async def write(took: list[int]) -> None:
            done = watch.begin(size)
            began_ns = time.perf_counter_ns()
            await one.write(request)
            took.append(time.perf_counter_ns() - began_ns)
            await done

        with _Readers(target.port) as readers:
            for _ in range(stretches):
                await stretch(alone)
                readers.say("go")
                await asyncio.sleep(UNDER_WAY_S)
                await stretch(beside)
                readers.say("rest")
            beside.cold = readers.end()
        await watch.leave()
    return sides


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


class _Readers:
    """All of them, in a process of their own: a page that is taken there keeps nobody here from taking an answer."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "bench.bench_cold", str(port)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, word: str) -> None:
        """`go`, or `rest`, which is done when nothing is under way any more."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{word}\n")
        self._child.stdin.flush()
        assert self._child.stdout.readline() == f"{word}\n", "the readers failed; they say why above"

    def end(self) -> int:
        """How many records their pages had fetched from the tier."""
        told, _ = self._child.communicate()
        assert self._child.returncode == 0
        return int(told)

    def __enter__(self) -> _Readers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.kill()
        self._child.communicate()


async def _read_all(port: int) -> None:
    """In that process: read while that is wanted, then look at what came."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    target, loop = served.Target(port, 0), asyncio.get_running_loop()
    writers = [await fanout.writer(target) for _ in range(READERS)]
    answers: list[bytes] = []
    resting = asyncio.Event()
    reading: list[asyncio.Task[None]] = []
    while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if word == "go":
            resting.clear()
            reading = [asyncio.create_task(_read(one, n * PAGE, answers, resting)) for n, one in enumerate(writers)]
        else:
            resting.set()
            await asyncio.gather(*reading)
        print(word, flush=True)
    print(_checked(answers), flush=True)


async def _read(one: fanout.Writer, cursor: int, answers: list[bytes], resting: asyncio.Event) -> None:
    """Page through the old topic again and again; the answers are looked at when nobody is measured any more."""
    while not resting.is_set():
        answers.append(await one.write(served.post(f"{OLD}/diff", b'{"from_seq":%d}' % cursor)))
        found = _NEXT.search(answers[-1], len(answers[-1]) - TAIL_BYTES)
        assert found, answers[-1][-TAIL_BYTES:]
        cursor = int(found[1]) if int(found[1]) < RECORDS - 2 * PAGE else 0


def _checked(answers: list[bytes]) -> int:
    """How many records of these pages were fetched from the tier; each page is whole and in order."""
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
