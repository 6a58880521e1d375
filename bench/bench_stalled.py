"""Do watchers that stopped reading make the others wait?

Measured: 200 writes a second of 1 KiB, class `disk`, 100 SSE streams that read; the time from sending a write to
receiving the whole frame, for every delivery. First they are alone, then beside one more SSE stream and one WebSocket
that were opened, have followed the topic, and take nothing any more: their sockets are full before the clock starts.
The p99 of the others may be a fifth more at most. Told beside it: by how much the server's resident memory grew
meanwhile, in KiB per write; records of the topic are bounded by a cap.

Checked: every reading watcher receives every frame. Not measured: many stalled ones.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench import fanout, served
from bench.bench_delivery import PAYLOAD, paced
from bench.bench_sse import frame_size
from bench.measure import Arm, Figure, Group, Sample, percentiles_us

WATCHERS = 100
FILL = 8 << 20
"""More than the sockets and the server's marks hold."""


def groups(quick: bool) -> list[Group]:
    """The comparison of this file."""
    writes = 100 if quick else 400
    arms = [
        Arm("all read", lambda dir: uvloop.run(_watched(dir, writes, stalled=False))),
        Arm("two stalled", lambda dir: uvloop.run(_watched(dir, writes, stalled=True))),
    ]
    figures = [
        Figure("p99 of the others", "two stalled", "all read", "time", 1.2, "p99_us"),
        Figure("p50 of the others", "two stalled", "all read", "time", None, "p50_us"),
        Figure("memory grown, KiB per write", "two stalled", None, "time", None, "grown_kib"),
    ]
    return [Group("stalled readers", "delivery", arms, figures)]


async def _watched(dir: Path, writes: int, *, stalled: bool) -> Sample:
    with served.served(dir) as target, ExitStack() as idle:
        one = await fanout.writer(target)
        path = f"/v0/topics/{served.TOPIC}"
        config = json.dumps({"cap_records": 5_000}).encode()
        await one.write(served.post(path, config).replace(b"POST", b"PUT", 1))
        if stalled:
            idle.enter_context(_stalled_sse(target.port, await _session(one)))
            idle.enter_context(_stalled_socket(target.port))
        request = served.post(f"{path}?return_seqs=false", b'{"records":[%b]}' % PAYLOAD)
        many = served.post(f"{path}?return_seqs=false", b'{"records":[%b]}' % b",".join([PAYLOAD] * 64))
        for _ in range(FILL // (64 << 10)):
            await one.write(many)
        watch = await fanout.watch_topic(target, one, WATCHERS)
        size = await frame_size(watch, one, request)
        watch.latencies.clear()

        async def write() -> None:
            done = watch.begin(size)
            await one.write(request)
            await done

        before = _resident_kib(target.pid)
        cpu_s, began = served.cpu_of(target.pid), time.perf_counter()
        await paced(write, writes)
        wall_s, cpu_s = time.perf_counter() - began, served.cpu_of(target.pid) - cpu_s
        grown = (_resident_kib(target.pid) - before) / writes
        await watch.leave()
    return Sample(writes * WATCHERS, wall_s, cpu_s, {**percentiles_us(watch.latencies), "grown_kib": grown})


async def _session(one: fanout.Writer) -> str:
    body = json.dumps({"topics": {served.TOPIC: {}}}).encode()
    answer = await one.write(served.post("/v0/watch", body))
    return str(json.loads(answer[answer.index(b"\r\n\r\n") :])["stream_url"])


def _connected(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    return client


def _stalled_sse(port: int, url: str) -> socket.socket:
    """A stream that nobody reads."""
    client = _connected(port)
    client.sendall(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return client


def _stalled_socket(port: int) -> socket.socket:
    """A WebSocket that subscribes, and is not read any more."""
    client = _connected(port)
    key = base64.b64encode(os.urandom(16)).decode()
    client.sendall(
        f"GET /v0/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert client.recv(4096).startswith(b"HTTP/1.1 101")
    command = json.dumps({"op": "subscribe", "topic": served.TOPIC}).encode()
    # Masked with zeros, which change nothing.
    client.sendall(bytes((0x81, 0x80 | len(command), 0, 0, 0, 0)) + command)
    return client


def _resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
