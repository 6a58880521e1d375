"""A soak: a server under everything at once for a long time; does it stay as it is?

    python -m bench.soak [--minutes N] [--seed N] [--out DIR] [--dir DIR]

A real `topics serve` process on a core of its own, with a cold tier in a folder, small segments and small caches, so
that what is bounded reaches its bound within the first third of the run. Against it goes what `bench.mixture` says.
Each second its resident memory, descriptors and threads are looked at; beside it a raw write and sync of the same disk
and a message through an idle process are timed, which say whether the machine stayed as it was. `bench.judge` says how
it is decided.

`soak.json` and `soak.html` hold the curves. Exit status: 0 flat, without errors; 1 it grew, failed or became slower; 3
the machine changed meanwhile, so that nothing can be said of latencies.

Not measured: how fast the server is (nothing is saturated), restarts, Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import uvloop

from bench import fanout, judge, machine, resident, served
from bench.mixture import Mixture, Notes
from bench.workload import SEED
from topics.cli import plot
from topics.cli.load import apart
from topics.testing.httpconn import HttpConn

MINUTES = 30.0
SAMPLE_S = 1.0
BASELINE_S = 0.05
START_S = 60.0
REJECTED = 3
SETTINGS = {
    "TOPICS_SEGMENT_MAX_EVENTS": "2000",
    "TOPICS_HOT_RETAIN_SEGMENTS": "2",
    "TOPICS_CHECKPOINT_MS": "2000",
    "TOPICS_WAL_FILE_BYTES": str(4 << 20),
    "TOPICS_RECENT_CACHE_BYTES": str(256 << 10),
    "TOPICS_COLD_CACHE_BYTES": str(1 << 20),
    "TOPICS_IDEMPOTENCY_MAX_ENTRIES": "2000",
    "TOPICS_RECLAIM_REWRITE": "on",
    "TOPICS_MIN_FREE_BYTES": "0",
    "TOPICS_LOG_LEVEL": "warning",
}
LATENCIES = ("disk", "fsync", "batch", "tail", "old", "queue", "delivery")
BASELINES = ("raw sync", "passed on")
HAPPENED = ("topics_ckpt_total", "topics_relocated_total", "topics_cold_reads_total", "topics_segments_dropped_total")
"""What a run that is long enough has to have brought about."""
LONG_S = 60.0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent / "results"
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=here, help="where the curves go")
    parser.add_argument("--dir", type=Path, default=here, help="whose disk is used; not a tmpfs")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="tmp-") as dir:
        result = run(Path(dir), given.minutes * 60, given.seed, print)
    (given.out / "soak.json").write_text(json.dumps(result), encoding="utf-8")
    (given.out / "soak.html").write_text(page(result), encoding="utf-8")
    print(f"\n{given.out / 'soak.html'}")
    return tell(result, print)


def run(dir: Path, seconds: float, seed: int, say: Callable[[str], None], least: Sequence[str] = ()) -> dict[str, Any]:
    """One soak; the result as it is stored. It goes on until everything in `least` was done, if it has to."""
    result = {"soak": True, "seconds": seconds, "seed": seed, "settings": SETTINGS, **machine.describe(dir)}
    with _serving(dir) as target, fanout.spreader() as idle:
        notes = uvloop.run(_soak(dir, (target, idle), seconds, seed, say, least))
        happened = _happened(target)
    p99s = {name: judge.windows(points, seconds) for name, points in notes.points.items()}
    missing = [name for name in (*LATENCIES, *BASELINES) if judge.later(p99s.get(name, [])) is None]
    notes.errors += [f"{name} stopped, or never began" for name in missing]
    if seconds >= LONG_S:
        notes.errors += [f"{name} is 0 at the end" for name, count in happened.items() if not count]
    verdict = judge.judge(
        {name: (kind, [value for _, value in notes.series[name]]) for name, kind in KINDS.items()},
        {name: judge.later(p99s.get(name, [])) for name in LATENCIES},
        {name: judge.later(p99s.get(name, [])) for name in BASELINES},
        notes.errors,
    )
    found = {"series": notes.series, "p99_ms": p99s, "done": notes.done, "happened": happened, "errors": notes.errors}
    return {**result, **found, "failures": verdict.failures, "rejected": verdict.rejected}


KINDS = {"own memory": "memory", "descriptors": "descriptors", "threads": "threads"}
"""What is judged, each as which kind; mapped files come and go with what is read, and are told only."""


class Sampled(Notes):
    """What was noted, and looked at from outside, each value with its second."""

    def __init__(self) -> None:
        super().__init__()
        self.series: dict[str, list[tuple[float, float]]] = {name: [] for name in (*KINDS, "resident", "mapped")}

    def look(self, pid: int) -> None:
        """What the server holds now."""
        memory = resident.memory(pid)
        seen = {
            "own memory": memory["RssAnon"],
            "resident": memory["VmRSS"],
            "mapped": memory["RssFile"],
            "descriptors": resident.descriptors(pid),
            "threads": resident.threads(pid),
        }
        at = round(time.perf_counter() - self.began, 2)
        for name, value in seen.items():
            self.series[name].append((at, value))


@contextmanager
def _serving(dir: Path) -> Iterator[served.Target]:
    """The product's own process."""
    port_file = dir / "port"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    given = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file), "TOPICS_DATA_DIR": str(dir / "data")}
    kernel = {name: value for name, value in os.environ.items() if name == "TOPICS_KERNEL"}
    environment = {**own, **SETTINGS, **given, **kernel, "TOPICS_COLD_DIR": str(dir / "cold")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "topics", "serve"]
    with (dir / "server.log").open("wb") as log, apart(command, env=environment, stdout=log, stderr=log) as child:
        until = time.monotonic() + START_S
        while not _is_ready(port_file):
            assert child.poll() is None, (dir / "server.log").read_text(errors="replace")
            assert time.monotonic() < until, "the server did not get ready"
            time.sleep(0.02)
        yield served.Target(int(port_file.read_text().rpartition(":")[2]), child.pid)
        assert child.poll() is None, (dir / "server.log").read_text(errors="replace")[-2000:]


def _is_ready(port_file: Path) -> bool:
    if not port_file.exists():
        return False
    with HttpConn("127.0.0.1", int(port_file.read_text().rpartition(":")[2])) as http:
        return http.call("GET", "/v0/ready").status == 200


async def _soak(
    dir: Path,
    targets: tuple[served.Target, served.Target],
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    least: Sequence[str],
) -> Sampled:
    target, idle = targets
    notes = Sampled()
    mixture = Mixture(target, notes, seed)
    await mixture.prepare()
    notes.began = time.perf_counter()
    beside = [_sampled(notes, target.pid, seconds, say), _raw(dir / "raw", notes), _passed_on(idle, notes)]
    tasks = [asyncio.create_task(one) for one in beside]
    await mixture.run(seconds, least)
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, Exception):
            notes.errors.append(f"beside the server: {type(end).__name__}: {end}")
    return notes


async def _sampled(notes: Sampled, pid: int, seconds: float, say: Callable[[str], None]) -> None:
    told = 0.0
    while True:
        notes.look(pid)
        at = time.perf_counter() - notes.began
        if at >= told:
            now = {name: values[-1][1] for name, values in notes.series.items()}
            say(
                f"{at:7.0f} of {seconds:.0f} s: own memory {now['own memory'] / 2**20:.1f} MiB, "
                f"{now['descriptors']:.0f} descriptors, {notes.done.get('records written', 0):,} records written, "
                f"{len(notes.errors)} errors"
            )
            told = at + max(seconds / 30, 10.0)
        await asyncio.sleep(SAMPLE_S)


async def _raw(path: Path, notes: Sampled) -> None:
    """The disk alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    data, loop = b"x" * 200, asyncio.get_running_loop()
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fsync(fd)

    def write(number: int) -> None:
        os.pwrite(fd, data, number * len(data) % (1 << 19))
        os.fdatasync(fd)

    try:
        number = 0
        while True:
            began = time.perf_counter()
            await loop.run_in_executor(None, write, number)
            notes.took("raw sync", began)
            number += 1
            await asyncio.sleep(BASELINE_S)
    finally:
        os.close(fd)


async def _passed_on(idle: served.Target, notes: Sampled) -> None:
    """A message there and back, through a process that has nothing else to do."""
    message = b"m" * 200
    reader, writer = await asyncio.open_connection("127.0.0.1", idle.port)
    _, sender = await asyncio.open_connection("127.0.0.1", idle.port)
    try:
        writer.write(fanout.WATCHER)
        assert await reader.readexactly(2) == b"ok"
        while True:
            began = time.perf_counter()
            sender.write(message)
            await reader.readexactly(len(message))
            notes.took("passed on", began)
            await asyncio.sleep(BASELINE_S)
    finally:
        for one in (writer, sender):
            one.transport.abort()


def _happened(target: served.Target) -> dict[str, float]:
    """What the run brought about, of what it was to bring about, from the server's own counts."""
    text = served.asked(target, "/v0/metrics").decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("topics_"))
    return {name: float(lines[name]) for name in HAPPENED}


# -- telling ---------------------------------------------------------------------------------------------------------


def tell(result: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """The end of a run in words; the exit status."""
    for name, kind in KINDS.items():
        found = judge.growth([value for _, value in result["series"][name]], judge.FLOORS[kind])
        unit = (1 << 20) if kind == "memory" else 1
        if found is not None:
            say(f"{name}: {found.middle / unit:.1f} in the middle, {found.last / unit:.1f} at the end")
    for name in (*LATENCIES, *BASELINES):
        late = judge.later(result["p99_ms"].get(name, []))
        if late is not None:
            thirds = f"{late.first:.2f} ms in the first third, {late.last:.2f} in the last"
            say(f"p99 of {name}: {thirds}, {late.ratio:.2f}×")
    say(", ".join(f"{count:,} {name}" for name, count in sorted(result["done"].items())))
    for sentence in result["failures"]:
        say(f"failed: {sentence}")
    for sentence in result["rejected"]:
        say(f"latencies are not judged: {sentence}")
    if result["failures"]:
        return 1
    return REJECTED if result["rejected"] else 0


GOOD = "Flat memory and descriptors, no errors, and no slower at the end than at the beginning."
P99S = {
    "writes": ("disk", "fsync", "batch", "queue"),
    "reads": ("tail", "old", "delivery", "socket"),
    "deletes and checkpoints": ("delete", "checkpoint"),
    "the machine": BASELINES,
}


def page(result: Mapping[str, Any]) -> str:
    """The curves."""
    minutes = result["seconds"] / 60
    facts = f"{minutes:g} minutes · commit {result['commit']} · {result['started']} · seed {result['seed']}"
    body = [f'<h1>Soak</h1><p class="facts">{escape(facts)}</p>']
    for words, sentences in (("Failed", result["failures"]), ("Latencies are not judged", result["rejected"])):
        body += [f'<p class="warn">{words}: {escape(one)}</p>' for one in sentences]
    if len(body) == 1:
        body.append(f'<p class="note">{GOOD}</p>')
    series = {name: [(at / 60, value) for at, value in values] for name, values in result["series"].items()}
    memory = {
        name: plot.thinned([(at, value / 2**20) for at, value in series[name]])
        for name in ("own memory", "mapped", "resident")
    }
    body.append(_card("Memory", plot.lines("memory", memory, "minutes", "MiB")))
    held = {name: plot.thinned(series[name]) for name in ("descriptors", "threads")}
    body.append(_card("Descriptors and threads", plot.lines("held", held, "minutes", "open")))
    for title, names in P99S.items():
        curves = {name: _over_time(result["p99_ms"].get(name, []), minutes) for name in names}
        body.append(_card(f"p99 of {title}", plot.lines(title, curves, "minutes", "ms")))
    rows = [f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td></tr>' for name, count in result["done"].items()]
    body.append(_card("What was done", f"<table>{''.join(sorted(rows))}</table>"))
    return plot.page("topics: soak", "".join(body))


def _over_time(p99s: list[float | None], minutes: float) -> list[tuple[float, float]]:
    return [((n + 0.5) * minutes / judge.WINDOWS, one) for n, one in enumerate(p99s) if one is not None]


def _card(title: str, inside: str) -> str:
    return f'<section class="card"><h3>{escape(title)}</h3>{inside}</section>'


if __name__ == "__main__":
    sys.exit(main())
