"""Short ways to produce, claim, ack and work, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.expect import ok, put
from tests.api.frames import Talk
from tests.api.kit import Running
from tests.api.watching import Event, Stream, Stream1, Stream2


def queue(client: httpx.Client, name: str, jobs: int = 0, **config: object) -> str:
    """Make a queue with so many jobs, whose data are their seqs."""
    put(client, name, type="queue", **config)
    produce(client, name, jobs)
    return name


def produce(client: httpx.Client, name: str, jobs: int, first: int = 1) -> None:
    """Append jobs."""
    if jobs:
        ok(client.post(f"/v0/topics/{name}", json={"records": [{"data": n} for n in range(first, first + jobs)]}))


def claim(client: httpx.Client, name: str, max: int = 1, node: str = "w", **more: object) -> dict[str, Any]:
    """Claim; the answer."""
    return ok(client.post(f"/v0/topics/{name}/claim", json={"node": node, "max": max, **more}))


def claimed(client: httpx.Client, name: str, max: int = 1, node: str = "w", **more: object) -> list[int]:
    """Claim; the seqs."""
    return seqs(claim(client, name, max, node, **more))


def seqs(answer: dict[str, Any]) -> list[int]:
    """Of the jobs of an answer."""
    return [job["$seq"] for job in answer["claimed"]]


def call(
    client: httpx.Client, verb: str, name: str, jobs: list[int], ids: list[str] | None = None, node: str = "w",
    **more: object,
) -> dict[str, Any]:  # fmt: skip
    """Ack, nack or extend; the answer."""
    fences = {} if ids is None else {"lease_ids": ids}
    return ok(client.post(f"/v0/topics/{name}/{verb}", json={"node": node, "seqs": jobs, **fences, **more}))


def counts(client: httpx.Client, name: str) -> tuple[int, int, int]:
    """Ready, in flight, delayed; together they are the topic's count [QOB-1]."""
    state = ok(client.get(f"/v0/topics/{name}"))
    told = state["queue"]
    assert told.keys() == {"ready", "in_flight", "delayed", "dead_lettered"}
    assert state["count"] == told["ready"] + told["in_flight"] + told["delayed"]
    return told["ready"], told["in_flight"], told["delayed"]


def work(server: Running, http2: bool, name: str, query: str = "node=w", *fields: str, **more: Any) -> Stream:
    """Open a stream of jobs."""
    path = f"/v0/topics/{name}/work?{query}"
    return Stream2(Talk(server, **more), path, fields) if http2 else Stream1(server, path, fields, **more)


def pushed(stream: Stream, count: int) -> list[int]:
    """Seqs of the next jobs of a stream, heartbeats left out; each frame names its seq."""
    return [job.data["$seq"] for job in jobs(stream, count)]


def jobs(stream: Stream, count: int) -> list[Event]:
    """The next jobs of a stream."""
    found: list[Event] = []
    while len(found) < count:
        event = stream.next()
        if event.kind in ("retry", "hb"):
            continue
        assert event.kind == "job", event
        assert event.id == str(event.data["$seq"])
        found.append(event)
    return found
