"""Many watchers of a real server process: dropped and resumed at random, and one that stops reading (03 §4, §5.1).

`TOPICS_TEST_WATCHERS` is how many there are, 30 by default and 500 for the full size. The seed of a storm is in its
test's name and in every failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.api.watching import Event, encoded
from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerProcess

WATCHERS = int(os.environ.get("TOPICS_TEST_WATCHERS", "30"))
WRITES = 200
WAIT_S = 240.0
KEPT, CAPPED = "kept", "capped"


@contextmanager
def served(folder: Path, **env: str) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, env)
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        server.abandon()


class Chunks:
    """The text of a chunked answer, frame by frame, as it comes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._text = b""

    async def next(self) -> Event:
        """The next frame; `IncompleteReadError` at the end."""
        while b"\n\n" not in self._text:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            self._text += (await self._reader.readexactly(size + 2))[:-2]
        raw, _, self._text = self._text.partition(b"\n\n")
        return Event(raw)


async def opened(
    address: tuple[str, int], wid: str, last: str | None = None, *, receive_bytes: int = 0
) -> tuple[Chunks, asyncio.StreamWriter]:
    """A stream, behind its head."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
    resumed = "" if last is None else f"last-event-id: {last}\r\n"
    writer.write(f"GET /v0/watch/{wid} HTTP/1.1\r\nhost: localhost\r\n{resumed}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return Chunks(reader), writer


def call(address: tuple[str, int], method: str, path: str, body: object = None) -> Any:
    with HttpConn(*address) as http:
        answer = http.call(method, path, body)
    assert answer.status in (200, 201), answer
    return answer.body


class Writer:
    """A kept connection that writes, on the loop of the watchers: a thread would wait for the interpreter all along."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    async def __aenter__(self) -> Writer:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.transport.abort()

    async def write(self, name: str, *values: object) -> int:
        """Append; the head behind it."""
        body = json.dumps({"records": [{"data": value} for value in values]}).encode()
        head = f"POST /v0/topics/{name} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        told = await self._reader.readuntil(b"\r\n\r\n")
        assert told.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 201 ")), told
        size = int(told.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer: dict[str, int] = json.loads(await self._reader.readexactly(size))
        return answer["head_seq"]


class Watcher:
    """One client that loses its connection again and again; it believes nothing but whole frames."""

    def __init__(self, number: int, seed: int, heads: asyncio.Future[dict[str, int]]) -> None:
        self._chance = random.Random(f"{seed}/{number}")
        self._heads = heads
        self._cursors = {KEPT: 0, CAPPED: 0}
        self._is_first = dict.fromkeys(self._cursors, True)
        self._last = encoded(self._cursors)
        """Also before the first frame: what was sent and lost has to be sent again."""
        self.records = {KEPT: 0, CAPPED: 0}
        self.gaps = 0
        self.drops = 0

    def _is_done(self) -> bool:
        return self._heads.done() and self._cursors == self._heads.result()

    async def run(self, address: tuple[str, int], wid: str) -> None:
        """Until it has everything."""
        while not self._is_done():
            frames, writer = await opened(address, wid, self._last)
            self._is_first = dict.fromkeys(self._cursors, True)
            began = dict(self._cursors)
            for _ in range(self._chance.randrange(1, 60)):
                event = await frames.next()
                if event.kind not in ("retry", "hb"):
                    self._take(event, began)
                if self._is_done():
                    break
            self.drops += 1
            self._drop(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        how = self._chance.choice(("close", "reset", "abort"))
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close() if how == "close" else writer.transport.abort()

    def _take(self, event: Event, began: dict[str, int]) -> None:
        said, name = event.data, event.data["topic"]
        cursor = self._cursors[name]
        if event.kind == "tombstone":
            assert name == CAPPED, event
            assert said["gap_from"] == cursor + 1, event
            assert said["reason"] == ("from_seq_too_old" if self._is_first[name] else "cap"), event
            began[name] = cursor
            self._cursors[name] = said["gap_to"]
            self.gaps += 1
        elif event.kind == "record":
            assert event.seqs == list(range(cursor + 1, said["to_seq"] + 1)), event
            assert said["from_seq"] in (cursor, began[name]), event
            self._cursors[name] = said["to_seq"]
            self.records[name] += len(event.seqs)
        else:
            assert event.kind == "caught-up", event
            assert said["head_seq"] >= cursor
        self._is_first[name] = False
        assert event.cursors == self._cursors, event
        self._last = event.id


def storm(address: tuple[str, int], seed: int, count: int) -> list[Watcher]:
    """Write while `count` watchers come and go; what they saw."""
    chance = random.Random(seed)
    call(address, "PUT", f"/v0/topics/{KEPT}", {})
    call(address, "PUT", f"/v0/topics/{CAPPED}", {"cap_records": 40})

    async def run() -> list[Watcher]:
        loop = asyncio.get_running_loop()
        heads: asyncio.Future[dict[str, int]] = loop.create_future()
        watchers = [Watcher(number, seed, heads) for number in range(count)]
        asked = {"topics": {KEPT: {}, CAPPED: {}}, "limit": 20}
        wids = [call(address, "POST", "/v0/watch", asked)["wid"] for _ in watchers]

        async def writing() -> None:
            told = {}
            async with Writer(address) as writer:
                for n in range(WRITES):
                    for name in (KEPT, CAPPED):
                        values = [{"n": n, "pad": "x" * chance.randrange(300)} for _ in range(chance.randrange(1, 6))]
                        told[name] = await writer.write(name, *values)
            heads.set_result(told)

        async with asyncio.TaskGroup() as group:
            group.create_task(writing())
            for one, wid in zip(watchers, wids, strict=True):
                group.create_task(one.run(address, wid))
        return watchers

    return uvloop.run(asyncio.wait_for(run(), WAIT_S))


@pytest.mark.parametrize("seed", [1])
def test_watchers_that_come_and_go_see_every_record_once_in_order_or_are_told_of_it(seed: int, tmp_path: Path) -> None:
    """[RSM-3, RSM-5, FRM-11, 13 §4]"""
    with served(tmp_path) as server:
        watchers = storm(server.address, seed, WATCHERS)
        heads = {name: call(server.address, "GET", f"/v0/topics/{name}")["head_seq"] for name in (KEPT, CAPPED)}
        assert {one.records[KEPT] for one in watchers} == {heads[KEPT]}
        assert sum(one.drops for one in watchers) > len(watchers)
        until_metric(server.address, "topics_sse_connections", 0)


def metric(address: tuple[str, int], name: str) -> float:
    with socket.create_connection(address, timeout=WAIT_S) as sock:
        sock.sendall(b"GET /v0/metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        text = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(line.split()[1])


def until_metric(address: tuple[str, int], name: str, value: float) -> None:
    end = time.monotonic() + WAIT_S
    while metric(address, name) != value:
        assert time.monotonic() < end, name


# One that stops reading


SIZE = 256 << 10
ROUND = 160
"""Records of one round: 40 MiB, far more than any buffer of the system."""


def resident(pid: int) -> int:
    """Bytes of memory a process holds."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of a process is read from /proc")
def test_one_stalled_reader_costs_the_others_nothing_and_the_server_no_memory(tmp_path: Path) -> None:
    """[FRM-10, D-60, D-63, P-12] It stalls for 40 MiB, then it reads on and misses nothing."""
    with served(tmp_path, TOPICS_RECENT_CACHE_BYTES=str(1 << 20)) as server:
        address, pid = server.address, server.pid
        call(address, "PUT", "/v0/topics/t", {"durability": "disk"})
        grown = uvloop.run(asyncio.wait_for(stalled(address, pid, max(WATCHERS // 5, 8)), WAIT_S))
        # What other readers have not taken yet differs from round to round; what is kept for one would be all of it.
        assert grown < ROUND * SIZE * 3 // 4, f"{grown >> 20} MiB more than a round without a stalled reader"


async def stalled(address: tuple[str, int], pid: int, count: int) -> int:
    """How much memory a round with a stalled reader took beyond one without."""
    readers = []
    for _ in range(count):
        wid = call(address, "POST", "/v0/watch", {"topics": {"t": {"tail": True}}})["wid"]
        readers.append(await opened(address, wid))

    async def write() -> None:
        async with Writer(address) as writer:
            for _ in range(ROUND):
                await writer.write("t", "x" * SIZE)

    async def round_of(first: int) -> int:
        async def one(frames: Chunks) -> None:
            seen: list[int] = []
            while not seen or seen[-1] < first + ROUND - 1:
                seen += (await frames.next()).seqs
            assert seen == list(range(first, first + ROUND))

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            for frames, _ in readers:
                group.create_task(one(frames))
        return resident(pid)

    await round_of(1)
    before = await round_of(1 + ROUND)
    wid = call(address, "POST", "/v0/watch", {"topics": {"t": {"from_seq": 2 * ROUND}}, "limit": 1})["wid"]
    slow, slow_writer = await opened(address, wid, receive_bytes=1 << 16)
    slow_writer.transport.pause_reading()  # type: ignore[attr-defined]
    after = await round_of(1 + 2 * ROUND)
    slow_writer.transport.resume_reading()  # type: ignore[attr-defined]
    seen: list[int] = []
    while not seen or seen[-1] < 3 * ROUND:
        event = await slow.next()
        assert event.kind != "tombstone"
        seen += event.seqs
    assert seen == list(range(2 * ROUND + 1, 3 * ROUND + 1))
    for _, writer in readers:
        writer.transport.abort()
    slow_writer.transport.abort()
    return after - before


def test_the_storm_is_what_it_says() -> None:
    """A watcher that misses, repeats or reorders a record is noticed."""

    async def run() -> None:
        heads: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

        def frame(seqs: list[int], from_seq: int) -> Event:
            data = {"topic": KEPT, "records": [{"$seq": seq} for seq in seqs], "from_seq": from_seq, "to_seq": seqs[-1]}
            id = encoded({KEPT: seqs[-1], CAPPED: 0})
            return Event(f"id: {id}\nevent: record\ndata: {json.dumps(data)}".encode())

        for bad in ([2], [1, 3], [1, 1], [2, 1]):
            with pytest.raises(AssertionError):
                Watcher(0, 0, heads)._take(frame(bad, 0), {KEPT: 0, CAPPED: 0})
        Watcher(0, 0, heads)._take(frame([1, 2], 0), {KEPT: 0, CAPPED: 0})

    asyncio.run(run())
