"""`topics bench [--against redis,nats]`: how fast a server is here, and others beside it (11 §2, 12).

A server is started for it on an empty directory below `--path`, with its defaults, and removed again; or `--url` names
one that runs, whose topics `bench-…` are made and dropped. Questions are asked in turn, in rounds:

    one-record writes     64 connections, class `disk`       Redis Streams `everysec`, NATS JetStream
    100-record writes     16 connections, class `disk`       the same, pipelined
    durable writes        64 connections, class `fsync`      Redis `always`, NATS `sync_interval: always` (2.10)
    reads                 4 connections, 1000 records each
    deliveries            200 writes a second to one live stream: from the write to its arrival

Records have 100 bytes, one request is in flight per connection. Peers get the same ones, on one core like ours, and are
reported as missing where they are not installed. Told is the median of all rounds, with the lowest and the highest;
beside a peer the ratio of each round. The benchmarks of the repository, with their bounds, ask more. Runs on the main
thread.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import os
import ssl
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import topics
from topics.cli import output, peers, plot, remote, units
from topics.cli.interrupted import Interrupted
from topics.cli.load import Driven, Target, Unexpected, Wire, apart, drive, http_answer, new_loop_run, post
from topics.cli.progress import Progress
from topics.cli.usage import UsageError
from topics.client.sync import Client
from topics.clock import SystemClock

ROUNDS: Final = 5
DATA: Final = b'{"kg":412.5,"from":"dock-7","to":"yard-3","note":"%b"}' % (b"0123456789" * 5)
OURS: Final = "topics"
PEERS: Final = {"redis": "Redis", "nats": "NATS"}
PAGE: Final = 1000
QUICK: Final = 10
"""What sizes are divided by."""
PER_SECOND: Final = 200
START_S: Final = 60.0
POLL_S: Final = 0.02
FILES: Final = "topics-bench"
_now_ns = SystemClock().monotonic_ns

Sample = dict[str, float]
Arm = Callable[[Path], Sample]


class Question(NamedTuple):
    """What is asked, of whom, and in what it is told."""

    name: str
    unit: str
    arms: Mapping[str, Arm]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--path", metavar="DIR", default=".", help="whose disk is measured; default: here")
    where.add_argument("--url", help="a running server, whose topics bench-… are made and dropped")
    parser.add_argument("--api-key-file", metavar="FILE", help="the key for --url, - reads it from stdin")
    beside = "peers to measure beside it: redis,nats"
    parser.add_argument("--against", metavar="NAMES", type=_peers, default=[], help=beside)
    parser.add_argument("--rounds", metavar="N", type=units.some, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    parser.add_argument("--out", metavar="DIR", default=".", help=f"where {FILES}.json and .html go; default: here")


def run(args: argparse.Namespace) -> int:
    asked = args.against
    if asked and args.url is not None:
        told = "peers are measured beside a server that is started here: give --against or --url, not both"
        raise UsageError(told, args.prog)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topics-bench-", dir=args.path)))
        server = stack.enter_context(_server(args, folder))
        here = [name for name in asked if peers.installed(name)]
        questions = server.questions(here, QUICK if args.quick else 1)
        found = _rounds(questions, args, folder)
    report = _report(args, questions, found, [name for name in asked if name not in here])
    paths = _store(report, Path(args.out))
    if args.json:
        output.answer(report)
    else:
        _show(report, paths, quiet=args.quiet)
    return 0


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    return names


def _rounds(questions: Sequence[Question], args: argparse.Namespace, folder: Path) -> list[dict[str, list[Sample]]]:
    """Every arm of every question in turn, round by round."""
    found: list[dict[str, list[Sample]]] = [{name: [] for name in one.arms} for one in questions]
    total = args.rounds * sum(len(one.arms) for one in questions)
    done = 0
    with Progress("measuring", silent=args.json or args.quiet) as bar:
        try:
            for _ in range(args.rounds):
                for question, samples in zip(questions, found, strict=True):
                    for name, arm in question.arms.items():
                        with tempfile.TemporaryDirectory(dir=folder) as own:
                            samples[name].append(arm(Path(own)))
                        done += 1
                        bar.at(done, total, "runs")
        except KeyboardInterrupt:
            raise Interrupted(f"{done} of {total} runs were done; nothing is told of them") from None
    return found


# -- servers ---------------------------------------------------------------------------------------------------------


class Server:
    """Ours, wherever it is."""

    def __init__(self, target: Target, client: Client, key: str | None) -> None:
        self._target = target
        self._client = client
        self._headers = "" if key is None else f"Authorization: Bearer {key}\r\n"
        self._number = 0

    def questions(self, others: Sequence[str], less: int) -> list[Question]:
        """What is asked; `less` divides the sizes."""
        return [
            Question("one-record writes", "records/s", self._writes(1, 64, 20_000 // less, "disk", others)),
            Question("100-record writes", "records/s", self._writes(100, 16, 1_600 // less, "disk", others)),
            Question("durable writes", "records/s", self._writes(1, 64, 10_000 // less, "fsync", others)),
            Question("reads of 1000", "records/s", {OURS: lambda dir: self._reads(400 // less)}),
            Question("deliveries", f"of {PER_SECOND} a second", {OURS: lambda dir: self._deliveries(400 // less)}),
        ]

    def _writes(
        self, size: int, connections: int, count: int, durability: str, others: Sequence[str]
    ) -> dict[str, Arm]:
        def ours(dir: Path) -> Sample:
            with self._topic(durability) as name:
                wire = self._wire(f"/v0/topics/{name}", _records(size))
                drive(self._target, wire, connections=1, count=2)
                return _sample(drive(self._target, wire, connections=connections, count=count), count * size)

        def peer(start: Callable[[Path], AbstractContextManager[Target]], wire: Wire) -> Arm:
            def measured(dir: Path) -> Sample:
                with start(dir) as target:
                    return _sample(drive(target, wire, connections=connections, count=count), count * size)

            return measured

        is_durable = durability == "fsync"
        arms: dict[str, Arm] = {OURS: ours}
        if "redis" in others:
            sync = "always" if is_durable else "everysec"
            arms["Redis"] = peer(lambda dir: peers.redis(dir, sync), peers.xadd(DATA, size))
        if "nats" in others and (not is_durable or peers.can_sync_always()):
            arms["NATS"] = peer(lambda dir: peers.nats(dir, sync_always=is_durable), peers.publish(DATA, size))
        return arms

    def _reads(self, count: int) -> Sample:
        with self._topic("disk") as name:
            drive(self._target, self._wire(f"/v0/topics/{name}", _records(PAGE)), connections=1, count=4)
            asked = json.dumps({"from_seq": PAGE, "limit": PAGE, "max_batch_bytes": 1 << 22}).encode()
            wire = self._wire(f"/v0/topics/{name}/diff", asked)
            return _sample(drive(self._target, wire, connections=4, count=count), count * PAGE)

    def _deliveries(self, count: int) -> Sample:
        with self._topic("disk") as name:
            found: Driven = new_loop_run(self._delivered(name, count))
            return _sample(found, count)

    async def _delivered(self, name: str, count: int) -> Driven:
        """Write at a pace, and wait for each record to come out of a stream."""
        write = self._wire(f"/v0/topics/{name}", _records(1)).request
        watch = self._wire("/v0/watch", json.dumps({"topics": {name: {"tail": True}}}).encode()).request
        async with _Connection(self._target) as one, _Connection(self._target) as stream:
            url = json.loads(await one.call(watch))["stream_url"]
            await stream.send(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self._headers}\r\n".encode())
            await stream.until(b"event: caught-up")
            latencies, began_ns = [], _now_ns()
            for number in range(count):
                await asyncio.sleep(max((began_ns + number * 1e9 / PER_SECOND - _now_ns()) / 1e9, 0))
                sent_ns = _now_ns()
                seq = json.loads(await one.call(write))["last_seq"]
                await stream.until(b'"to_seq":%d,' % seq)
                latencies.append(_now_ns() - sent_ns)
            return Driven((_now_ns() - began_ns) / 1e9, 0.0, latencies)

    def _wire(self, path: str, body: bytes) -> Wire:
        return Wire(post(path, body, self._headers), http_answer)

    @contextmanager
    def _topic(self, durability: str) -> Iterator[str]:
        """A topic of its own, dropped behind it."""
        self._number += 1
        name = f"bench-{os.getpid()}-{self._number}"
        self._client.create(name, durability=durability)
        try:
            yield name
        finally:
            self._client.drop(name)


class _Connection:
    """One connection to the server, byte by byte."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._seen = b""

    async def __aenter__(self) -> _Connection:
        target = self._target
        self._reader, self._writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def send(self, request: bytes) -> None:
        """Send something."""
        self._writer.write(request)

    async def call(self, request: bytes) -> bytes:
        """A request and the body of its answer."""
        await self.send(request)
        while not (length := http_answer(self._seen)) or len(self._seen) < length:
            await self._more()
        answer, self._seen = self._seen[:length], self._seen[length:]
        return answer[answer.index(b"\r\n\r\n") + 4 :]

    async def until(self, mark: bytes) -> None:
        """Wait for something in a stream; what lies before it is passed over."""
        while mark not in self._seen:
            self._seen = self._seen[-len(mark) :] if len(self._seen) > 1 << 20 else self._seen
            await self._more()
        self._seen = self._seen[self._seen.index(mark) + len(mark) :]

    async def _more(self) -> None:
        data = await self._reader.read(1 << 16)
        if not data:
            raise Unexpected("the server ended a connection")
        self._seen += data


@contextmanager
def _server(args: argparse.Namespace, folder: Path) -> Iterator[Server]:
    """The one that was named, or one that is started for it."""
    if args.url is not None:
        key = remote.key_of(args)
        with Client(args.url, key) as client:
            yield Server(_target(args.url), client, key)
        return
    with _started(folder) as target, Client(f"http://127.0.0.1:{target.port}") as client:
        yield Server(target, client, None)


def _target(url: str) -> Target:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    tls = ssl.create_default_context() if is_tls else None
    return Target(parts.port or (443 if is_tls else 80), 0, parts.hostname or "127.0.0.1", tls)


@contextmanager
def _started(folder: Path) -> Iterator[Target]:
    """A server on an empty directory, with its defaults."""
    port_file, log_file = folder / "port", folder / "log"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    own |= {name: value for name, value in os.environ.items() if name == "TOPICS_KERNEL"}
    own |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file), "TOPICS_DATA_DIR": str(folder / "data")}
    command = [sys.executable, "-m", "topics", "serve", "--quiet"]
    with (
        log_file.open("wb") as log,
        # Not of our group: Ctrl-C is for us, and we end it.
        apart(command, env=own, stdout=log, stderr=log, start_new_session=True) as child,
    ):
        pause = threading.Event()
        for _ in range(int(START_S / POLL_S)):
            if child.poll() is not None:
                raise Unexpected(f"no server came up: {log_file.read_text(errors='replace')[-500:]}")
            if port_file.exists() and _is_ready(port := int(port_file.read_text().rpartition(":")[2])):
                yield Target(port, child.pid)
                return
            pause.wait(POLL_S)
        raise Unexpected("the server did not get ready")


def _is_ready(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)) as one:
        one.request("GET", "/v0/ready")
        return one.getresponse().status == 200


# -- what was found --------------------------------------------------------------------------------------------------


def _records(count: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([b'{"data":%b}' % DATA] * count)


def _sample(found: Driven, units: int) -> Sample:
    ranked = sorted(found.latencies_ns)
    p50, p99 = (ranked[max(0, math.ceil(len(ranked) * share) - 1)] / 1e6 for share in (0.5, 0.99))
    cpu = {"cpu_us": found.cpu_s / units * 1e6} if found.cpu_s else {}
    return {"per_second": units / found.wall_s, "p50_ms": p50, "p99_ms": p99, **cpu}


def _spread(values: Sequence[float]) -> dict[str, float]:
    three = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in three.items()}


def _report(
    args: argparse.Namespace,
    questions: Sequence[Question],
    found: Sequence[Mapping[str, list[Sample]]],
    missing: list[str],
) -> dict[str, Any]:
    """One object, as it is stored and printed [U-13]."""
    told = []
    for question, samples in zip(questions, found, strict=True):
        arms = {
            name: {value: _spread([one[value] for one in rounds]) for value in rounds[0]}
            for name, rounds in samples.items()
        }
        beside = {
            name: _spread([a["per_second"] / b["per_second"] for a, b in zip(samples[OURS], rounds, strict=True)])
            for name, rounds in samples.items()
            if name != OURS
        }
        told.append({"question": question.name, "unit": question.unit, "arms": arms, "beside": beside})
    versions = {OURS: topics.__version__, **{PEERS[name]: peers.version(name) for name in args.against}}
    return {
        "ok": True, "quick": args.quick, "rounds": args.rounds, "started_ms": SystemClock().now_ms(),
        "versions": versions, "missing": missing, "questions": told,
    }  # fmt: skip


def _store(report: Mapping[str, Any], out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{FILES}.json", out / f"{FILES}.html"]
    paths[0].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(_page(report), encoding="utf-8")
    return paths


def _page(report: Mapping[str, Any]) -> str:
    parts = [f"<h1>topics bench</h1><p class='facts'>{report['rounds']} rounds</p>".replace("'", '"')]
    parts += [f'<p class="warn">{escape(one)}</p>' for one in _remarks(report)]
    for one in report["questions"]:
        rates, times = (
            [
                plot.Bar(name, *_three(arm[value]), "ours" if name == OURS else "free")
                for name, arm in one["arms"].items()
            ]
            for value in ("per_second", "p99_ms")
        )
        inside = plot.bars(one["question"], rates, one["unit"], "longer")
        inside += plot.bars(one["question"], times, "p99 in ms", "shorter")
        parts.append(f'<section class="card"><h3>{escape(one["question"])}</h3>{inside}</section>')
    return plot.page("topics bench", "".join(parts))


def _three(spread: Mapping[str, float]) -> tuple[float, float, float]:
    return spread["median"], spread["low"], spread["high"]


def _remarks(report: Mapping[str, Any]) -> list[str]:
    said = ["Quick sizes: they show that it works, not how fast it is."] if report["quick"] else []
    said += [f"{PEERS[name]} is not installed: not compared." for name in report["missing"]]
    if (version := report["versions"].get("NATS")) and not peers.can_sync_always():
        said.append(f"NATS {version} cannot sync every write, 2.10 can: durable writes are not compared with it.")
    return said


def _show(report: Mapping[str, Any], paths: Sequence[Path], *, quiet: bool) -> None:
    rows = []
    for one in report["questions"]:
        for name, arm in one["arms"].items():
            beside = one["beside"].get(name)
            ratio = "" if beside is None else f"{beside['median']:.3g} × ({beside['low']:.3g} – {beside['high']:.3g})"
            cpu = plot.number(arm["cpu_us"]["median"]) if "cpu_us" in arm else ""
            numbers = (plot.number(arm[value]["median"]) for value in ("per_second", "p50_ms", "p99_ms"))
            rows.append((one["question"], name, *numbers, cpu, ratio))
    output.table(("question", "server", "per second", "p50 ms", "p99 ms", "CPU µs", "topics beside it"), rows)
    if not quiet:
        for sentence in (*_remarks(report), *(f"wrote {path}" for path in paths)):
            print(sentence)
