"""B7: how much memory does a server need for records that it keeps, and how long to start over them, beside others?

Measured: a server that holds nothing is sent 1,000,000 records of 100 bytes, or ten times as many, in writes of 100,
one topic or stream, class `disk`; resident memory (`VmRSS`) before and after, per record: at once, and when it has had
nothing to do for a few seconds. Then it is killed and started again on the same files: the time from starting the
process until it answers, and its memory then. Redis Streams with an append-only file and NATS JetStream with a file
store, where they are installed, get the same records. Redis keeps every record in memory; NATS keeps an index of them,
and lets go of what it wrote after some seconds; so do we, but for what `TOPICS_RECENT_CACHE_BYTES` lets us keep. Ours
is sealed into segments by a checkpoint before the first look, as it would be by itself within seconds.

Ten million are sent once in a round. What they take of a process that does nothing but open them, and the bound, is in
`engine_memory`. Checked: every server has all records before the kill, and ours behind it; what others lost by it, as
Redis does when a sync was under way, is `lost`, the middle one of a round's passes. Not measured: other sizes of
records, many topics.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import resident, served
from bench.bench_http_write import missing
from bench.measure import PASSES, Arm, Figure, Group, Sample
from topics.cli import peers
from topics.cli.load import Target, Wire, drive
from topics.testing.httpconn import HttpConn

BATCH = 100
REST_S = 4.0
LEAST = 0.01
"""Bytes per record that a share is formed of at least: memory may shrink."""


class Kind(NamedTuple):
    """A kind of server: started on a directory, filled, asked how many records it has."""

    start: Callable[[Path], Iterator[Target]]
    wire: Wire
    count: Callable[[Target], int]
    may_lose: bool = True
    """Whether what it acknowledged may be gone when it is killed: what is not written yet is others' risk, not ours."""


def groups(quick: bool) -> list[Group]:
    """As many records as our caches have room for, and ten times as many."""
    count = 20_000 if quick else 1_000_000
    return [retained("records kept", count), retained("ten times as many", 10 * count, passes=1)]


def retained(name: str, count: int, *, passes: int = PASSES) -> Group:
    """Every server with so many records."""
    each = "bytes_per_record"
    arms = [Arm("topics", partial(kept, kind=_ours(), count=count))]
    figures = [
        Figure("bytes per record", "topics", None, "time", None, each),
        Figure("bytes per record at once", "topics", None, "time", None, "at_once_bytes_per_record"),
        Figure("bytes per record after a restart", "topics", None, "time", None, "restarted_bytes_per_record"),
        Figure("restart in ms", "topics", None, "time", None, "restart_ms"),
    ]
    found = {"Redis": _redis(), "NATS": _nats()}
    for peer, kind in found.items():
        if not peers.installed(peer.lower()):
            continue
        arms.append(Arm(peer, partial(kept, kind=kind, count=count)))
        figures += [
            Figure(f"bytes per record, {peer}", peer, None, "time", None, each),
            Figure(f"memory beside {peer}", "topics", peer, "time", None, each),
            Figure(f"memory at once beside {peer}", "topics", peer, "time", None, "at_once_bytes_per_record"),
            Figure(f"memory after a restart beside {peer}", "topics", peer, "time", None, "restarted_bytes_per_record"),
            Figure(f"restart beside {peer}", "topics", peer, "time", None, "restart_ms"),
        ]
    return Group(f"{name}: {count:,}", "record", arms, figures, explain=lambda arms: missing(), passes=passes)


def kept(dir: Path, *, kind: Kind, count: int) -> Sample:
    """Fill, look, rest, look, kill, start again, look."""
    with contextmanager(kind.start)(dir) as target:
        drive(target, kind.wire, connections=1, count=1)
        empty = resident.memory(target.pid)
        found = drive(target, kind.wire, connections=4, count=count // BATCH - 1)
        assert kind.count(target) == count
        full = resident.memory(target.pid)
        time.sleep(REST_S)
        rested = resident.memory(target.pid)
        os.kill(target.pid, signal.SIGKILL)
    began = time.perf_counter()
    with contextmanager(kind.start)(dir) as target:
        left = kind.count(target)
        assert left == count or kind.may_lose
        restart_ms = (time.perf_counter() - began) * 1e3
        again = resident.memory(target.pid)
    grown = {
        "at_once_bytes_per_record": full["VmRSS"] - empty["VmRSS"],
        "bytes_per_record": rested["VmRSS"] - empty["VmRSS"],
        "own_bytes_per_record": rested["RssAnon"] - empty["RssAnon"],
        "restarted_bytes_per_record": again["VmRSS"] - empty["VmRSS"],
    }
    extra = {name: max(value / count, LEAST) for name, value in grown.items()}
    return Sample(count, found.wall_s, found.cpu_s, {**extra, "restart_ms": restart_ms, "lost": float(count - left)})


def _ours() -> Kind:
    def start(dir: Path) -> Iterator[Target]:
        with served.served(dir / "store") as target:
            yield target

    def count(target: Target) -> int:
        with HttpConn("127.0.0.1", target.port) as http:
            assert http.call("POST", "/v0/checkpoint").status == 200
            return int(http.call("GET", f"/v0/topics/{served.TOPIC}").body["count"])

    return Kind(start, served.writes(BATCH), count, may_lose=False)


def _redis() -> Kind:
    def start(dir: Path) -> Iterator[Target]:
        with peers.redis(dir, "everysec") as target:
            yield target

    return Kind(start, peers.xadd(served.DATA, BATCH), peers.redis_count)


def _nats() -> Kind:
    def start(dir: Path) -> Iterator[Target]:
        with peers.nats(dir) as target:
            yield target

    return Kind(start, peers.publish(served.DATA, BATCH), peers.nats_count)
