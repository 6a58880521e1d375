"""Limits of the whole server: their names, what is told, and that no interleaving gets past one (09 §5)."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.kit import WAIT_S, Running, received, records, running
from tests.security.kit import VERSIONS, connect, head, parsed, wait_until

JSON = "Content-Type: application/json"


def check_limit(answer: httpx.Response, name: str, most: int) -> None:
    """[RES-2, ERR-5]"""
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    error = answer.json()["error"]
    assert error["code"] == "throttled"
    assert error["detail"] == {"limit": name, "max": most}


def together(server: Running, count: int, call: Any) -> list[httpx.Response]:
    """Many clients that begin at one moment."""
    start = threading.Barrier(count)

    def run(n: int) -> httpx.Response:
        with server.client() as client:
            start.wait(WAIT_S)
            answer: httpx.Response = call(client, n)
            return answer

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_bounded_however_they_are_created(version: str) -> None:
    """[RES-2, RES-4, RES-9] By PUT and by a write; what exists goes on, and room that is freed is there at once."""
    with running(env={"TOPICS_MAX_TOPICS": "2"}) as server, server.client(http2=version == "http2") as client:
        assert client.put("/v0/topics/a").status_code == 201
        assert client.post("/v0/topics/b", json=records(1)).status_code == 201
        check_limit(client.put("/v0/topics/c"), "max_topics", 2)
        check_limit(client.post("/v0/topics/c", json=records(1, disable_backpressure=True)), "max_topics", 2)
        assert client.get("/v0/topics/c").status_code == 404
        assert client.put("/v0/topics/a", json={"ttl_ms": 5}).status_code == 200
        assert client.post("/v0/topics/b", json=records(2)).status_code == 200
        assert client.delete("/v0/topics/a").json()["deleted"] is True
        assert client.put("/v0/topics/c").status_code == 201


def test_no_number_of_clients_creates_more_topics_than_there_may_be() -> None:
    """[RES-3]"""

    def create(client: httpx.Client, n: int) -> httpx.Response:
        return client.put(f"/v0/topics/t{n}") if n % 2 else client.post(f"/v0/topics/t{n}", json=records(n))

    with running(env={"TOPICS_MAX_TOPICS": "5"}) as server, server.client() as client:
        answers = together(server, 16, create)
        created = [one for one in answers if one.status_code == 201]
        assert len(created) == 5
        for one in answers:
            if one not in created:
                check_limit(one, "max_topics", 5)
        assert len(client.get("/v0/topics").json()["topics"]) == 5


def test_bytes_are_bounded_and_what_is_deleted_makes_room() -> None:
    """[RES-5, RES-9]"""
    with running(env={"TOPICS_MAX_TOTAL_BYTES": "10000"}) as server, server.client() as client:
        one = records("x" * 3000)
        assert client.post("/v0/topics/t", json=one).status_code == 201
        assert client.post("/v0/topics/u", json=one).status_code == 201
        assert client.post("/v0/topics/t", json=one).status_code == 200
        check_limit(client.post("/v0/topics/t", json=one), "max_total_bytes", 10000)
        check_limit(client.post("/v0/topics/t", json={**one, "disable_backpressure": True}), "max_total_bytes", 10000)
        assert client.post("/v0/topics/t/delete", json={"before_seq": 2}).json()["deleted"] == 1
        assert client.post("/v0/topics/t", json=one).status_code == 200


def test_no_number_of_clients_writes_more_bytes_than_there_may_be() -> None:
    """[RES-3] Admitted bytes count before they are written."""
    with running(env={"TOPICS_MAX_TOTAL_BYTES": "10000"}) as server, server.client() as client:
        assert client.put("/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        answers = together(server, 16, lambda c, n: c.post("/v0/topics/t", json=records("x" * 1500)))
        written = [one for one in answers if one.status_code == 200]
        for one in answers:
            if one not in written:
                check_limit(one, "max_total_bytes", 10000)
        state = client.get("/v0/topics/t").json()
        assert len(written) == state["count"] >= 5
        assert state["bytes"] <= 10000


def test_producers_are_bounded() -> None:
    """[A-4, RES-2] Those that are known go on."""
    with running(env={"TOPICS_MAX_PRODUCERS": "1"}) as server, server.client() as client:

        def write(id: str, index: int) -> httpx.Response:
            return client.post("/v0/topics/t", json=records(1, producer={"id": id, "epoch": 1, "index": index}))

        assert write("a", 0).status_code == 201
        check_limit(write("b", 0), "max_producers", 1)
        assert write("a", 1).status_code == 200


def test_bodies_that_wait_are_bounded_for_the_whole_server() -> None:
    """[RES-2, RES-3] 429 and the end of the connection; what was reserved comes back."""
    env = {"TOPICS_MAX_BUFFERED_BYTES": "100000"}
    with running(env=env) as server, server.client() as client:
        half = head("POST", "/v0/topics/t", JSON, "Content-Length: 1000000") + b" " * 60_000
        buffered = server.server.app.buffered
        with connect(server) as first, connect(server) as second:
            first.sendall(half)
            wait_until(server, lambda: buffered.used == 60_000)
            second.sendall(half)
            answer = parsed(received(second))
            assert (answer.status, answer.headers["connection"]) == (429, "close")
            told = httpx.Response(429, headers=answer.headers, content=answer.body)
            check_limit(told, "max_buffered_bytes", 100_000)
            wait_until(server, lambda: buffered.used == 60_000)
        wait_until(server, lambda: buffered.used == 0)
        assert client.post("/v0/topics/t", json=records("x" * 50_000)).status_code == 201
        wait_until(server, lambda: buffered.used == 0)


def test_connections_are_bounded() -> None:
    """[RES-2] One too many is answered and closed; one that ends makes room."""
    with running(env={"TOPICS_MAX_CONNECTIONS": "2"}) as server:
        socks: list[socket.socket] = [connect(server), connect(server)]
        wait_until(server, lambda: len(server.server.connections.open) == 2)
        with connect(server) as third:
            answer = parsed(received(third))
            assert answer.headers["connection"] == "close"
            check_limit(
                httpx.Response(answer.status, headers=answer.headers, content=answer.body), "max_connections", 2
            )
        socks.pop().close()
        wait_until(server, lambda: len(server.server.connections.open) == 1)
        with server.client() as client:
            assert client.get("/v0/health").status_code == 200
        socks.pop().close()


def test_zero_is_no_limit() -> None:
    """[RES-1]"""
    names = ("TOPICS", "TOTAL_BYTES", "PRODUCERS", "CONNECTIONS", "BUFFERED_BYTES", "INFLIGHT_PER_KEY")
    env = {f"TOPICS_MAX_{name}": "0" for name in names}
    with running(env={**env, "TOPICS_API_KEYS": "k"}) as server, server.client(key="k") as client:
        for n in range(3):
            producer = {"id": f"p{n}", "epoch": 1, "index": 0}
            assert client.post(f"/v0/topics/t{n}", json=records("x" * 1000, producer=producer)).status_code == 201
