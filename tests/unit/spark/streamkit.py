"""A stream as Spark drives it, without Spark: offsets go through their text, every call may be another process's."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.api.kit import Running
from tests.unit.spark.kit import rows
from topics.clock import Clock, SystemClock
from topics.fs import Fs, OsFs
from topics.spark import offsets
from topics.spark.options import parse_stream
from topics.spark.stream import Stream

UNLIMITED = 2**63 - 1


class Query:
    """What a streaming query does with a stream. `batches` are the rows of each batch."""

    def __init__(self, given: dict[str, str], *, fs: Fs | None = None, clock: Clock | None = None) -> None:
        self._given = {"meta": "json", **given}
        self._fs = fs or OsFs()
        self._clock = clock or SystemClock()
        self.log: list[str] = []
        """Ends of batches, as a checkpoint has them."""
        self.batches: list[list[dict[str, Any]]] = []
        self.stream = self._opened()

    def begin(self, **given: str) -> None:
        """Go on in a new process, perhaps with other options."""
        self._given |= given
        self.stream.close()
        self.stream = self._opened()

    def _opened(self) -> Stream:
        return Stream(self._fs, parse_stream(self._given), self._clock)

    def trigger(self, limit: int | None = UNLIMITED) -> bool:
        """One trigger; whether there was anything. A batch that was logged and not read comes first."""
        if len(self.batches) < len(self.log):
            self.batches.append(self.replay(len(self.batches)))
            return True
        start = self._start()
        begun = offsets.parse(json.loads(start))
        end = self.stream.latest(begun, limit)
        text = json.dumps(offsets.told(end))
        assert (end is begun) == (text == start)
        if end is begun:
            return False
        self.log.append(text)
        self.batches.append(self.read(start, text))
        self.stream.done(offsets.parse(json.loads(text)))
        return True

    def drain(self, limit: int | None = UNLIMITED) -> None:
        """Triggers until there is nothing new."""
        while self.trigger(limit):
            pass

    def _start(self) -> str:
        return self.log[-1] if self.log else json.dumps(offsets.told(self.stream.initial()))

    def read(self, start: str, end: str) -> list[dict[str, Any]]:
        parts = self.stream.partitions(offsets.parse(json.loads(start)), offsets.parse(json.loads(end)))
        return rows(self._fs, parts)

    def replay(self, number: int) -> list[dict[str, Any]]:
        """A batch once more, in a new process that knows the log alone."""
        again = Query(self._given, fs=self._fs, clock=self._clock)
        again.log = self.log[:number]
        try:
            return again.read(again._start(), self.log[number])
        finally:
            again.stream.close()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch]

    def told(self, *members: str) -> list[tuple[Any, ...]]:
        return [tuple(row[member] for member in members) for row in self.rows]


class World:
    """A running server, read through it or through its directory."""

    def __init__(self, server: Running, client: httpx.Client, origin: str, path: str) -> None:
        self.server = server
        self.client = client
        self.origin = origin
        self._queries: list[Query] = []
        self.where = {"url": server.url} if origin == "url" else {"path": path}

    def put(self, name: str, **config: object) -> None:
        answer = self.client.put(f"/v0/topics/{name}", json={"durable": True, **config})
        assert answer.status_code in (200, 201), answer.text

    def write(self, name: str, count: int, **more: object) -> None:
        if count:
            body = {"records": [{"data": n, **more} for n in range(1, count + 1)]}
            answer = self.client.post(f"/v0/topics/{name}", json=body)
            assert answer.status_code in (200, 201), answer.text
        self.settle()

    def delete(self, name: str) -> None:
        assert self.client.delete(f"/v0/topics/{name}").status_code == 200
        self.settle()

    def settle(self) -> None:
        """Have the directory show what there is."""
        if self.origin == "path":
            assert self.client.post("/v0/checkpoint").status_code == 200

    def query(self, clock: Clock | None = None, **given: str) -> Query:
        self._queries.append(Query({**self.where, **given}, clock=clock))
        return self._queries[-1]

    def close(self) -> None:
        for query in self._queries:
            query.stream.close()
