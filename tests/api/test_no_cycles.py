"""Requests leave nothing to the cycle collector: its passes hold up the loop, and memory would wait for them [P-10]."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.kit import Running
from topics.testing.httpconn import HttpConn

TIMES = 20
Call = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
def call(server: Running) -> Iterator[Call]:
    with HttpConn(server.host, server.port) as http:

        def post(path: str, body: dict[str, Any]) -> Any:
            answer = http.call("POST", f"/v0/topics/{path}", body)
            assert answer.status in (200, 201), answer.body
            return answer.body

        yield post


def claim(call: Call, topic: str, count: int = 3) -> dict[str, Any]:
    jobs = call(f"{topic}/claim", {"node": "n", "max": count})["claimed"]
    assert len(jobs) == count
    return {"node": "n", "seqs": [job["$seq"] for job in jobs], "lease_ids": [job["lease_id"] for job in jobs]}


OPERATIONS: dict[str, Callable[[Call, str], object]] = {
    "write": lambda call, topic: call(topic, {"records": [{"data": 1}]}),
    "write with a key": lambda call, topic: call(topic, {"records": [{"data": 1}], "idempotency_key": "k"}),
    "read": lambda call, topic: call(f"{topic}/diff", {"limit": 10}),
    "read of the end, which waits": lambda call, topic: call(f"{topic}/diff", {"from_seq": 1 << 40, "wait_ms": 1}),
    "delete": lambda call, topic: call(f"{topic}/delete", {"seqs": [1, 2]}),
    "delete by tag": lambda call, topic: call(f"{topic}/delete", {"match": "a"}),
    "claim and ack": lambda call, topic: call(f"{topic}/ack", claim(call, topic)),
    "claim and nack": lambda call, topic: call(f"{topic}/nack", claim(call, topic)),
    "claim, extend and ack": lambda call, topic: [
        (call(f"{topic}/extend", {**held, "lease_ms": 5000}), call(f"{topic}/ack", held))
        for held in [claim(call, topic)]
    ],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_left_to_the_collector(call: Call, server: Running, topic: str, name: str) -> None:
    with HttpConn(server.host, server.port) as http:
        assert http.call("PUT", f"/v0/topics/{topic}", {"type": "queue"}).status == 201
    for _ in range(10):
        call(topic, {"records": [{"data": {"a": 1}, "tag": "a"}] * 20})
    operation = OPERATIONS[name]
    operation(call, topic)
    server.on_loop(gc.collect)
    gc.disable()
    try:
        for _ in range(TIMES):
            operation(call, topic)
        # What the test and the server's own upkeep leave behind does not grow with the requests.
        found = server.on_loop(gc.collect)
    finally:
        gc.enable()
    assert found < TIMES
