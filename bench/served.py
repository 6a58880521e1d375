"""Servers for benchmarks, each in a process of its own; and the load that drives them.

    served    our server, or the same HTTP layer with a handler that only decodes the body and answers
    load      so many connections, one request in flight on each; every answer is checked for its length
    checked   what the log was asked for meanwhile [P-4]

The client, the peers and the cores are those of `topics bench`: `topics.cli.load`, `topics.cli.peers`. The server has
the first core, the load all others [P-3]. CPU is that of the server's process, all threads [P-2].
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import uvloop

from bench.beat import Beat, TimedLoop
from bench.measure import Sample, curve_us
from bench.slowdisk import CountedFs, LateFs
from topics import settings
from topics.cli import peers
from topics.cli.load import Target as Target
from topics.cli.load import Wire, apart, drive
from topics.cli.load import cpu_of as cpu_of
from topics.cli.load import http_answer as http_answer
from topics.cli.load import post as post
from topics.cli.peers import redis as redis
from topics.server import app, records, wire
from topics.server import main as process
from topics.server.exchange import Exchange
from topics.server.keys import KeyRing
from topics.server.main import SWITCH_S, spare_the_collector
from topics.server.server import Server
from topics.testing.httpconn import HttpConn

TOPIC = "hot"
DATA = b'{"kg":412.5,"from":"dock-7","to":"yard-3","note":"%b"}' % (b"0123456789" * 5)
WAIT_S = 60.0
_COUNTERS = re.compile(rb"^topics_wal_(batches|fsyncs|frames)_total (\d+)", re.MULTILINE)


@contextmanager
def served(dir: Path, kind: str = "write", *, pinned: bool = True, **settings: object) -> Iterator[Target]:
    """Our server in a process of its own: `write`, `decode` for the baseline, `cold` with a tier that answers late,
    `counted` for a look at its writes, `beat` and `recovery` for one at its loop. Settings are named as variables are,
    without their prefix.
    """
    words = [f"TOPICS_{name.upper()}={value}" for name, value in settings.items()]
    with started("bench.served", kind, str(dir), *words, pinned=pinned) as target:
        yield target


@contextmanager
def started(module: str, *words: str, pinned: bool = True) -> Iterator[Target]:
    """A module as a process of its own; its first line is its port, and SIGTERM ends it."""
    command = [sys.executable, "-m", module, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled once, not at every start
    with apart(command, pinned=pinned, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, f"{module} did not start; it says why above"
        yield Target(int(line), child.pid)


def has_redis() -> bool:
    """Whether that peer is installed."""
    return peers.installed("redis")


# -- load ------------------------------------------------------------------------------------------------------------


def write_request(count: int, topic: str = TOPIC) -> bytes:
    """A write of so many records."""
    return post(f"/v0/topics/{topic}", b'{"records":[%b]}' % b",".join([b'{"data":%b}' % DATA] * count))


def writes(count: int) -> Wire:
    """The same, with how its answers end."""
    return Wire(write_request(count), http_answer)


def load(
    target: Target, request: bytes, answer: Callable[[bytes], int], *, connections: int, count: int, units: int = 1
) -> Sample:
    """So many requests over so many connections; `units` pieces of work in each."""
    return driven(target, Wire(request, answer), connections=connections, count=count, units=units)


def driven(target: Target, wire: Wire, *, connections: int, count: int, units: int = 1) -> Sample:
    """The same for any server; with the curve of latencies."""
    found = drive(target, wire, connections=connections, count=count)
    return Sample(count * units, found.wall_s, found.cpu_s, curve_us(found.latencies_ns))


def create(target: Target, topic: str, config: Mapping[str, object]) -> None:
    """Make a topic."""
    with HttpConn("127.0.0.1", target.port) as http:
        assert http.call("PUT", f"/v0/topics/{topic}", dict(config)).status == 201


def asked(target: Target, path: str) -> bytes:
    """The body of a GET, whatever it holds."""
    with socket.create_connection(("127.0.0.1", target.port), WAIT_S) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        data = b""
        while not (length := http_answer(data)) or len(data) < length:
            part = client.recv(65536)
            assert part, "the server closed the connection"
            data += part
    return data[data.index(b"\r\n\r\n") + 4 :]


def counters(target: Target) -> dict[str, float]:
    """What the server says of its log: `batches`, `fsyncs`, `frames`."""
    found = {name.decode(): float(value) for name, value in _COUNTERS.findall(asked(target, "/v0/metrics"))}
    assert set(found) == {"batches", "fsyncs", "frames"}, found
    return found


@contextmanager
def checked(target: Target, requests: int) -> Iterator[dict[str, float]]:
    """What the log was asked for meanwhile, and that it was no more than it had to be [P-4].

    A batch is one write to a shard, made for everything that gathered in a tick: never more of them than requests, and
    never more syncs than batches. What was not synced before, a mark that says so and a reservation may bring one each.
    """
    before, grown = counters(target), dict[str, float]()
    yield grown
    grown |= {name: value - before[name] for name, value in counters(target).items()}
    assert grown["batches"] <= requests + SPARE, f"{grown} for {requests} requests"
    assert grown["fsyncs"] <= grown["batches"] + SPARE, grown


SPARE = 64
"""Batches and syncs of the server itself: reservations, checkpoints, its own topics."""


def one_write_per_tick(dir: Path, size: int, connections: int) -> None:
    """A short load whose every write to the log is looked at: none of a shard in the same tick as another [P-4]."""
    with served(dir / "counted", "counted") as target:
        drive(target, writes(size), connections=connections, count=20 * connections)
    found = json.loads((dir / "counted" / "writes.json").read_text(encoding="ascii"))
    assert found["writes"], found
    assert found["most_per_tick"] == 1, found


# -- in the child ----------------------------------------------------------------------------------------------------


def _decode_and_answer(self: app.App, exchange: Exchange) -> None:
    """The baseline: the same HTTP layer, the body decoded, an answer of the same size."""
    given = wire.decode(records._WRITE, exchange.body)
    exchange.body_done()
    body = _answer(len(given.records))
    exchange.reply(200, wire.timed(body, exchange.elapsed_ms(), b',"wal_append_ms":0.010,"fsync_ms":0.000'))


@cache
def _answer(count: int) -> bytes:
    seqs = b",".join([b"%d" % (100_000 + at) for at in range(count)])
    told = (
        b'{"topic":"hot","first_seq":100000,"last_seq":100000,"seqs":[%b],"head_seq":100000,"count":%d,"created":false'
    )
    return told % (seqs, count) + b',"deduped":false}'


LATE_S = 0.1
"""What a ranged read of the cold tier takes [B10]."""


def _server(kind: str, dir: str, given: Mapping[str, str]) -> tuple[Server, CountedFs | None]:
    if kind == "counted":
        counted = CountedFs(asyncio.get_running_loop().call_soon, dir)
        return Server(settings.parse({"TOPICS_PORT": "0", **given}), KeyRing(), fs=counted), counted
    if kind != "cold":
        return Server(settings.parse({"TOPICS_PORT": "0", **given}), KeyRing()), None
    cold = f"{dir}-cold"
    tier = {"TOPICS_COLD_DIR": cold, "TOPICS_HOT_RETAIN_SEGMENTS": "0", "TOPICS_COLD_CACHE_BYTES": "0"}
    small = {"TOPICS_SEGMENT_MAX_EVENTS": "200", "TOPICS_CHECKPOINT_MS": "1000"}
    late = LateFs(cold, LATE_S)
    return Server(settings.parse({"TOPICS_PORT": "0", **tier, **small, **given}), KeyRing(), fs=late), None


BEATS = "beats.json"
BEATING = ("beat", "recovery")


async def _serve(kind: str, dir: str, given: Mapping[str, str]) -> None:
    server, fs = _server(kind, dir, given)
    _, port = await server.listen()
    # As the product's own process does.
    sys.setswitchinterval(SWITCH_S)
    if hasattr(process, "keep_memory"):  # an older commit that is compared with has none
        process.keep_memory()
    if hasattr(process, "Memory"):
        process.Memory().start(asyncio.get_running_loop())
    beat = Beat() if kind in BEATING else None
    if kind == "recovery":
        print(port, flush=True)
    await server.recover(dir)
    if fs is not None:
        fs.begin()
    spare_the_collector()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if kind != "recovery":
        print(port, flush=True)
        if beat is not None:
            asyncio.get_running_loop().call_soon(beat.again)  # behind what this start still takes
    await stopping.wait()
    if beat is not None:
        beat.tell(Path(dir) / BEATS)
    if fs is not None:
        (Path(dir) / "writes.json").write_text(json.dumps(fs.told()), encoding="ascii")
    await server.drain()


def main(kind: str, dir: str, *words: str) -> None:
    """Serve until SIGTERM."""
    if kind == "decode":
        app.App.execute = _decode_and_answer  # type: ignore[method-assign]
        if find_spec("topics.server.gather"):  # an older commit that is compared with has none
            gathering = import_module("topics.server.gather").Gathering
            gathering.take = lambda *write: False
    loop = TimedLoop if kind in BEATING else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_serve(kind, dir, dict(word.split("=", 1) for word in words)))


if __name__ == "__main__":
    main(*sys.argv[1:])
