"""B9: what do ten routers cost the writer of their source?

Measured: single records of 100 bytes of class `disk`, one after another over one connection, to a topic without routers
and to one that ten routers copy into ten others. At 200 writes a second: how long the answer takes. As fast as they are
answered: the bytes that the log grows by per write, from the server's own count, and the server's CPU, beside the same
record written to ten topics by ten requests; here the next write meets the copying of the last ones.

Checked: every destination has every record in the end. Not measured: filters, exactly-once keys, destinations that
take direct writes.
"""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing
from pathlib import Path

from bench import served
from bench.measure import Arm, Figure, Group, Sample, percentiles_us, stopwatch

FAN_OUT = 10
PER_SECOND = 200
SOURCE = "source"
_BYTES = re.compile(rb"^topics_wal_bytes_written_total (\d+)", re.MULTILINE)


def groups(quick: bool) -> list[Group]:
    """One after another with pauses, and without."""
    return [_unhurried(100 if quick else 400), _hurried(300 if quick else 1_500)]


def _unhurried(writes: int) -> Group:
    routed, alone = f"{FAN_OUT} routers", "no routers"
    arms = [
        Arm(alone, lambda dir: _written(dir, writes, routers=0, topics=1, pace=PER_SECOND)),
        Arm(routed, lambda dir: _written(dir, writes, routers=FAN_OUT, topics=1, pace=PER_SECOND)),
    ]
    figures = [Figure("p50 of the answer", routed, alone, "time", 1.1, "p50_us")]
    return Group(f"fan-out of {FAN_OUT}, {PER_SECOND} writes/s", "write", arms, figures)


def _hurried(writes: int) -> Group:
    arms = [
        Arm("no routers", lambda dir: _written(dir, writes, routers=0, topics=1)),
        Arm(f"{FAN_OUT} routers", lambda dir: _written(dir, writes, routers=FAN_OUT, topics=1)),
        Arm(f"{FAN_OUT} writes", lambda dir: _written(dir, writes // FAN_OUT, routers=0, topics=FAN_OUT)),
    ]
    routed, alone, separate = f"{FAN_OUT} routers", "no routers", f"{FAN_OUT} writes"
    figures = [
        Figure("log bytes beside one write", routed, alone, "time", 1.05, "wal_bytes"),
        Figure("p50 of the answer", routed, alone, "time", 1.1, "p50_us"),
        Figure("log bytes beside ten writes", routed, separate, "time", None, "wal_bytes"),
        Figure("server CPU beside ten writes", routed, separate, "time", None, "cpu_us"),
    ]
    return Group(f"fan-out of {FAN_OUT}, without a pause", "write", arms, figures)


def _written(dir: Path, writes: int, *, routers: int, topics: int, pace: int = 0) -> Sample:
    with served.served(dir) as target, closing(_Client(target.port)) as client:
        for number in range(routers):
            client.put(f"/v0/routers/r{number}", {"source": SOURCE, "dest": f"dest-{number}"})
        names = [SOURCE] if topics == 1 else [f"dest-{number}" for number in range(topics)]
        requests = [served.post(f"/v0/topics/{name}", b'{"records":[{"data":%b}]}' % served.DATA) for name in names]
        for request in requests * 50:
            client.send(request)
        client.settled(routers, len(requests) * 50 if topics == 1 else 0)
        latencies: list[int] = []
        before, cpu_s = client.logged(), served.cpu_of(target.pid)
        began = time.perf_counter()
        with stopwatch() as watch:
            for number in range(writes):
                if pace:
                    time.sleep(max(began + number / pace - time.perf_counter(), 0))
                for request in requests:
                    start = time.perf_counter_ns()
                    client.send(request)
                    latencies.append(time.perf_counter_ns() - start)
        client.settled(routers, 50 + writes)
        cpu_s = served.cpu_of(target.pid) - cpu_s
        grown = (client.logged() - before) / writes
        return Sample(writes, watch.wall_s, cpu_s, {**percentiles_us(latencies), "wal_bytes": grown})


class _Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def send(self, request: bytes) -> bytes:
        """A request and its whole answer."""
        self._socket.sendall(request)
        data = b""
        while not (length := served.http_answer(data)) or len(data) < length:
            part = self._socket.recv(65536)
            assert part, "the server closed the connection"
            data += part
        assert len(data) == length, "an answer of another length than it says"
        return data

    def put(self, path: str, body: object) -> None:
        """Create something."""
        self.send(served.post(path, json.dumps(body).encode()).replace(b"POST", b"PUT", 1))

    def settled(self, routers: int, records: int) -> None:
        """Every destination has all records."""
        for number in range(routers):
            answer = self.send(b"GET /v0/topics/dest-%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % number)
            assert json.loads(answer[answer.index(b"\r\n\r\n") :])["count"] == records

    def logged(self) -> int:
        """Bytes that the log was given so far."""
        found = _BYTES.search(self.send(b"GET /v0/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
        assert found is not None
        return int(found[1])
