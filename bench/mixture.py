"""What a soak does to a server: writers, readers, watchers, workers, deletes, checkpoints, topics that come and go.

Everything is bounded by caps, so that a server that keeps no more than it has to stays as large as it is. Each actor
is a task with a connection of its own, at its own pace, more or less, whatever the last call took; one that is late
goes on from there. What an actor sees is checked: statuses, counts, seqs of streams in order and whole but for what
retention took and said so.

    disk, fsync, batch     single records of two classes (the second with idempotency keys), hundreds of a third
    tail, old              reads of the newest records and of any that are live, of which most are in the cold tier
    queue                  jobs put, claimed, acked; every fourth is nacked until it is a dead letter
    watch, socket          streams that stay, by SSE and by WebSocket; one that is opened and left again and again
    delete                 by tag, and below a seq
    churn                  a topic made, written, read and dropped
    checkpoint, metrics    as an operator would

A record of `orders` carries the time it was sent, so that its arrival in a stream is a latency too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from websockets.asyncio.client import connect

from bench import fanout, served

CAPS = {"orders": 8_000, "ledger": 4_000, "clicks": 20_000, "copies": 3_000, "dead": 500}
TAGS = 50
JOBS = 4
PAD = "x" * 60
NAMES = 200
"""Of topics that come and go: so few that what is remembered by name has seen all of them soon."""


class Notes:
    """Latencies by name with the second they belong to, and whatever went wrong."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.points: dict[str, list[tuple[float, float]]] = {}
        self.errors: list[str] = []
        self.done: dict[str, int] = {}

    def took(self, name: str, since: float) -> None:
        """Something ended that began then."""
        now = time.perf_counter()
        self.points.setdefault(name, []).append((now - self.began, (now - since) * 1e3))

    def count(self, name: str, count: int = 1) -> None:
        """So many more."""
        self.done[name] = self.done.get(name, 0) + count


class Mixture:
    """All actors of one run."""

    def __init__(self, target: served.Target, notes: Notes, seed: int) -> None:
        self._target = target
        self._notes = notes
        self._chance = random.Random(seed)
        self._heads: dict[str, int] = {}

    async def prepare(self) -> None:
        """The topics, the queue and the router."""
        one = await Caller.open(self._target)
        classes = {"ledger": "fsync", "clicks": "memory"}
        for name, cap in CAPS.items():
            config = {"cap_records": cap, "durability": classes.get(name, "disk")}
            await one.call("PUT", f"/v0/topics/{name}", config)
        queue = {"type": "queue", "max_deliveries": 2, "dead_letter": "dead", "lease_ms": 30_000}
        await one.call("PUT", "/v0/topics/jobs", queue)
        await one.call("PUT", "/v0/routers/copy", {"source": "orders", "dest": "copies"})
        one.close()

    async def run(self, seconds: float, least: Sequence[str]) -> None:
        """So long, and until all of `least` was done or something failed; who fails ends alone, and is noted."""
        paced: dict[str, tuple[float, Callable[[Caller], Awaitable[None]]]] = {
            "disk": (0.008, self._disk),
            "fsync": (0.02, self._fsync),
            "batch": (0.1, self._batch),
            "tail": (0.025, self._tail),
            "old": (0.05, self._old),
            "queue": (0.05, self._queue),
            "delete": (0.5, self._delete),
            "churn": (1.0, self._churn),
            "checkpoint": (2.0, self._checkpoint),
            "metrics": (1.0, self._metrics),
        }
        tasks = [asyncio.create_task(self._guarded(name, self._pace(*what))) for name, what in paced.items()]
        streams = [self._watch("orders"), self._watch("ledger"), self._watch("clicks"), self._socket(), self._visits()]
        tasks += [asyncio.create_task(self._guarded("stream", stream)) for stream in streams]
        await asyncio.sleep(seconds)
        while not (self._notes.errors or self._notes.done.keys() >= set(least)):
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - every failure is a finding
            self._notes.errors.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")

    async def _pace(self, period_s: float, work: Callable[[Caller], Awaitable[None]]) -> None:
        one = await Caller.open(self._target)
        due = time.perf_counter() + self._chance.random() * period_s
        try:
            while True:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                # Actors in step would keep for minutes how they happened to lie to each other, and call that a latency.
                due = max(due + period_s * self._chance.uniform(0.5, 1.5), time.perf_counter() - period_s)
                await work(one)
        finally:
            one.close()

    # -- writes ------------------------------------------------------------------------------------------------------

    async def _disk(self, one: Caller) -> None:
        record = {"data": {"t": time.perf_counter_ns(), "pad": PAD}, "tag": f"k{self._chance.randrange(TAGS)}"}
        await self._append(one, "disk", "orders", {"records": [record]})

    async def _fsync(self, one: Caller) -> None:
        key = f"{self._chance.getrandbits(64):x}"
        await self._append(one, "fsync", "ledger", {"records": [{"data": {"pad": PAD}}], "idempotency_key": key})

    async def _batch(self, one: Caller) -> None:
        await self._append(one, "batch", "clicks", {"records": [{"data": {"n": n, "pad": PAD}} for n in range(100)]})

    async def _append(self, one: Caller, name: str, topic: str, body: dict[str, Any]) -> None:
        began = time.perf_counter()
        told = await one.call("POST", f"/v0/topics/{topic}", body)
        self._notes.took(name, began)
        self._notes.count("records written", told["count"])
        assert told["last_seq"] > self._heads.get(topic, 0), f"{told} behind {self._heads}"
        assert told["count"] == len(body["records"]), told
        self._heads[topic] = told["last_seq"]

    # -- reads -------------------------------------------------------------------------------------------------------

    async def _tail(self, one: Caller) -> None:
        await self._diff(one, "tail", "orders", max(self._heads.get("orders", 0) - 100, 0))

    async def _old(self, one: Caller) -> None:
        head = self._heads.get("orders", 0)
        await self._diff(one, "old", "orders", self._chance.randint(max(head - CAPS["orders"], 0), head))

    async def _diff(self, one: Caller, name: str, topic: str, from_seq: int) -> None:
        began = time.perf_counter()
        told = await one.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": 100})
        self._notes.took(name, began)
        seqs = [record["$seq"] for record in told["records"]]
        assert seqs == sorted(set(seqs)), f"seqs of a page are not in order: {seqs}"
        assert all(seq > from_seq for seq in seqs), f"a page begins before its cursor {from_seq}: {seqs}"
        self._notes.count("records read", len(seqs))
        self._notes.count("cold segments read", told["performance"].get("cold_segments_read", 0))

    # -- queues ------------------------------------------------------------------------------------------------------

    async def _queue(self, one: Caller) -> None:
        path, node = "/v0/topics/jobs", {"node": "soak"}
        began = time.perf_counter()
        await one.call("POST", path, {"records": [{"data": {"n": n, "pad": PAD}} for n in range(JOBS)]})
        claimed = (await one.call("POST", f"{path}/claim", {**node, "max": JOBS + 1}))["claimed"]
        *good, bad = claimed
        settled = {**node, "seqs": [job["$seq"] for job in good], "lease_ids": [job["lease_id"] for job in good]}
        told = await one.call("POST", f"{path}/ack", settled)
        assert told["acked"] == len(good), told
        told = await one.call("POST", f"{path}/nack", {**node, "seqs": [bad["$seq"]], "lease_ids": [bad["lease_id"]]})
        assert told["nacked"] == 1, told
        self._notes.took("queue", began)
        self._notes.count("jobs", len(claimed))

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def _delete(self, one: Caller) -> None:
        head = self._heads.get("ledger", 0)
        how = [{"match": f"k{self._chance.randrange(TAGS)}"}, {"before_seq": max(head - CAPS["ledger"] // 2, 1)}]
        for topic, body in zip(("orders", "ledger"), how, strict=True):
            began = time.perf_counter()
            await one.call("POST", f"/v0/topics/{topic}/delete", body)
            self._notes.took("delete", began)
            self._notes.count("deletes")

    async def _churn(self, one: Caller) -> None:
        path = f"/v0/topics/churn-{self._notes.done.get('topics made and dropped', 0) % NAMES}"
        await one.call("PUT", path, {"durability": self._chance.choice(["disk", "memory", "fsync"])})
        await one.call("POST", path, {"records": [{"data": {"n": n}, "tag": "t"} for n in range(50)]})
        assert len((await one.call("POST", f"{path}/diff", {"from_seq": 0}))["records"]) == 50
        await one.call("DELETE", path)
        self._notes.count("topics made and dropped")

    async def _checkpoint(self, one: Caller) -> None:
        began = time.perf_counter()
        await one.call("POST", "/v0/checkpoint")
        self._notes.took("checkpoint", began)
        self._notes.count("checkpoints")

    async def _metrics(self, one: Caller) -> None:
        assert (await one.call("GET", "/v0/health"))["status"] == "ok"
        assert b"topics_ready 1" in await one.raw("GET", "/v0/metrics")

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _watch(self, topic: str) -> None:
        stream = await Stream.open(self._target, topic)
        try:
            while True:
                self._looked_at(topic, await stream.frame())
        finally:
            stream.close()

    def _looked_at(self, topic: str, frame: tuple[str, dict[str, Any]]) -> None:
        event, told = frame
        if event != "record":
            return
        now_ns = time.perf_counter_ns()
        assert told["to_seq"] > told["from_seq"], told
        self._notes.count("records delivered", len(told["records"]))
        if topic == "orders":
            self._arrived("delivery", told["records"], now_ns)

    def _arrived(self, name: str, records: Sequence[Any], now_ns: int) -> None:
        for record in records[:1]:
            self._notes.took(name, time.perf_counter() - (now_ns - record["data"]["t"]) / 1e9)

    async def _socket(self) -> None:
        async with connect(f"ws://127.0.0.1:{self._target.port}/v0/ws", max_size=None) as socket:
            await socket.send(json.dumps({"op": "subscribe", "topic": "orders", "tail": True}))
            async for text in socket:
                now_ns = time.perf_counter_ns()
                told = json.loads(text)
                assert told.get("op") != "error", told
                self._arrived("socket", told.get("records", ()), now_ns)
                self._notes.count("socket messages")
        raise AssertionError("the socket was closed")

    async def _visits(self) -> None:
        """A client that comes, looks and goes."""
        for _ in itertools.count():
            stream = await Stream.open(self._target, "clicks")
            await stream.frame()
            stream.close()
            self._notes.count("visits")
            await asyncio.sleep(2)


class Caller:
    """One connection, one call at a time."""

    def __init__(self, one: fanout.Writer) -> None:
        self._one = one

    @classmethod
    async def open(cls, target: served.Target) -> Caller:
        """Connect."""
        return cls(await fanout.writer(target))

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """A request and the JSON of its answer, which has to be a success."""
        return json.loads(await self.raw(method, path, body))

    async def raw(self, method: str, path: str, body: object = None) -> bytes:
        """The same, as it is."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self._one.write(served.post(path, data).replace(b"POST", method.encode(), 1))
        return answer[answer.index(b"\r\n\r\n") + 4 :]

    def close(self) -> None:
        """Leave."""
        self._one.transport.abort()


class Stream:
    """A watch over SSE, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topic: str) -> None:
        self._reader = reader
        self._writer = writer
        self._topic = topic
        self._cursor = -1

    @classmethod
    async def open(cls, target: served.Target, topic: str) -> Stream:
        """A session at the topic's head, and its stream."""
        one = await Caller.open(target)
        told = await one.call("POST", "/v0/watch", {"topics": {topic: {"tail": True}}})
        one.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1 << 24)
        writer.write(f"GET {told['stream_url']} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return cls(reader, writer, topic)

    async def frame(self) -> tuple[str, dict[str, Any]]:
        """The next frame that has data: its event, and what it says. Seqs never go back."""
        event = ""
        while True:
            line = await self._reader.readline()
            assert line, "the stream ended"
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                told = json.loads(line[6:])
                if event == "record":
                    seqs = [record["$seq"] for record in told["records"]]
                    assert seqs == sorted(set(seqs)), f"seqs of {self._topic} are not in order: {seqs}"
                    assert seqs[0] > self._cursor, f"{self._topic} went from {self._cursor} to {seqs[0]}"
                    self._cursor = told["to_seq"]
                return event, told

    def close(self) -> None:
        """Leave."""
        self._writer.transport.abort()
