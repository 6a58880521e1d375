"""Slots of requests in flight: taken with the key, returned with the last byte, whatever happens between [RES-7]."""

from __future__ import annotations

import gzip
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.kit import WAIT_S, Running, received, records, running
from tests.security.kit import VERSIONS, GateFs, ask_raw, code, connect, head, inflight, parsed, wait_until, waiters
from topics.server.keys import KeyRing, Usage, parse
from topics.testing import ManualClock

KEY = "key-a1"
OTHER = "key-b2"
READER = "key-c3"
KEYS = f"{KEY},{OTHER},{READER}:read"
AUTH = f"Authorization: Bearer {KEY}"
JSON = "Content-Type: application/json"
WAIT = b'{"wait_ms":30000}'


@pytest.fixture
def server() -> Iterator[Running]:
    """At most two requests of a key at a time."""
    with running(env={"TOPICS_API_KEYS": KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": "2"}) as one:
        with one.client(key=KEY) as client:
            assert client.put("/v0/topics/t").status_code == 201
        yield one


def long_poll(server: Running, key: str = KEY, topic: str = "t") -> socket.socket:
    """A connection on which a read waits, once it does."""
    before = server.on_loop(lambda: waiters(server))
    sock = connect(server)
    request = head(
        "POST", f"/v0/topics/{topic}/diff", f"Authorization: Bearer {key}", JSON, f"Content-Length: {len(WAIT)}"
    )
    sock.sendall(request + WAIT)
    wait_until(server, lambda: waiters(server) == before + 1)
    return sock


def reset(sock: socket.socket) -> None:
    """End a connection at once, so that the other side sees a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    sock.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cap_is_told_with_its_name_and_value_and_only_to_the_key_that_is_over_it(
    server: Running, version: str
) -> None:
    """[RES-2, RES-7, DIF-7, API-20] Waiting reads hold their slots; probes and other keys do not care."""
    with long_poll(server), long_poll(server), server.client(http2=version == "http2") as client:
        mine = {"authorization": f"Bearer {KEY}"}
        for answer in (client.get("/v0/topics", headers=mine), client.put("/v0/unknown", headers=mine)):
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "throttled"
            assert answer.json()["error"]["detail"] == {"limit": "max_inflight_per_key", "max": 2}
        assert client.get("/v0/topics", headers={"authorization": f"Bearer {OTHER}"}).status_code == 200
        assert client.get("/v0/health", headers=mine).status_code == 200
        assert client.get("/v0/topics", headers={"authorization": "Bearer nobody"}).status_code == 401
        assert client.options("/v0/topics", headers={**mine, "access-control-request-method": "GET"}).status_code == 204
        assert server.on_loop(lambda: inflight(server)) == 2
    wait_until(server, lambda: not inflight(server))


def test_a_refusal_for_the_scope_comes_behind_the_cap(server: Running) -> None:
    """[API-20] 429 before 403."""
    with server.client(key=READER) as client:
        assert client.put("/v0/topics/x").status_code == 403
        with long_poll(server, READER), long_poll(server, READER):
            assert client.put("/v0/topics/x").status_code == 429


def test_a_woken_read_returns_its_slot_with_its_answer(server: Running) -> None:
    """[RES-7]"""
    with long_poll(server) as first, long_poll(server) as second, server.client(key=OTHER) as client:
        assert client.post("/v0/topics/t", json=records(1)).status_code == 200
        for sock in (first, second):
            assert parsed(sock.recv(65536)).status == 200
        assert server.on_loop(lambda: inflight(server)) == 0


REQUESTS: dict[str, tuple[int, Callable[[httpx.Client], httpx.Response]]] = {
    "read": (200, lambda c: c.get("/v0/topics")),
    "head": (200, lambda c: c.head("/v0/topics")),
    "write": (200, lambda c: c.post("/v0/topics/t", json=records(1))),
    "gzip on the loop": (200, lambda c: c.post("/v0/topics/t/diff", json={"limit": 40})),
    "gzip aside": (200, lambda c: c.post("/v0/topics/t/diff", json={})),
    "large write": (200, lambda c: c.post("/v0/topics/t", json=records(*["x" * 1000] * 2000))),
    "large write that is refused": (
        400,
        lambda c: c.post("/v0/topics/t", json=records(*["x" * 1000] * 2000, 1, node=7)),
    ),
    "options": (204, lambda c: c.options("/v0/topics")),
    "not json": (400, lambda c: c.post("/v0/topics/t", content=b"{", headers={"content-type": "application/json"})),
    "no record": (400, lambda c: c.post("/v0/topics/t", json={"records": []})),
    "not utf-8": (
        400,
        lambda c: c.put("/v0/topics/t", content=b'"\xff"', headers={"content-type": "application/json"}),
    ),
    "not gzip": (
        400,
        lambda c: c.post(
            "/v0/topics/t", content=b"x", headers={"content-type": "application/json", "content-encoding": "gzip"}
        ),
    ),
    "no topic": (404, lambda c: c.get("/v0/topics/none")),
    "no path": (404, lambda c: c.get("/v0/none")),
    "incomplete commit": (
        409,
        lambda c: c.post(
            "/v0/txn/commit", json={"id": "w", "version": 1, "parts": [{"part": "p", "chunks": 1, "records": 1}]}
        ),
    ),
    "large chunk": (
        200,
        lambda c: c.post(
            "/v0/topics/t/stage",
            json=records(*["x" * 1000] * 2000, id="w", version=1, part=f"p{uuid.uuid4()}", chunk=0),
        ),
    ),
    "no method": (405, lambda c: c.patch("/v0/topics/t")),
    "other type": (415, lambda c: c.post("/v0/topics/t", content=b"{}")),
    "other encoding": (
        415,
        lambda c: c.post(
            "/v0/topics/t", content=b"{}", headers={"content-type": "application/json", "content-encoding": "br"}
        ),
    ),
    "declared too large": (413, lambda c: c.post("/v0/topics/t", content=b"x" * (4 << 20))),
    "inflated too large": (
        413,
        lambda c: c.post(
            "/v0/topics/t",
            content=_bomb(),
            headers={"content-type": "application/json", "content-encoding": "gzip"},
        ),
    ),
    "chunked too large": (413, lambda c: c.post("/v0/topics/t", content=iter([b"x" * (1 << 20)] * 4))),
    "over the cap": (422, lambda c: c.post("/v0/topics/full", json=records(2))),
}


ANSWERED_EARLY = ("declared too large", "chunked too large")
"""Over HTTP/2 the client of the tests waits for room to send and does not see that it was answered already."""


def _bomb() -> bytes:
    return gzip.compress(b" " * (8 << 20))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_answer_returns_its_slot(version: str) -> None:
    """[RES-7] With a cap of one, a slot that is not returned refuses the next request."""
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": "1", "TOPICS_MAX_BODY_BYTES": str(3 << 20)}
    with running(env=env) as server, server.client(key=KEY, http2=version == "http2") as client:
        full = {"cap_records": 1, "discard": "reject"}
        assert client.post("/v0/topics/full", json=records(1, config=full)).status_code == 201
        assert client.post("/v0/topics/t", json=records(*["y" * 300] * 300)).status_code == 201
        for what, (status, request) in REQUESTS.items():
            if version == "http2" and what in ANSWERED_EARLY:
                continue
            for _ in range(3):
                assert request(client).status_code == status, what
                # An answer that came before its request was sent may be read a moment before the server goes on.
                wait_until(server, lambda: not inflight(server))
        with server.client(key=READER, http2=version == "http2") as reader:
            for _ in range(3):
                assert reader.put("/v0/topics/t", content=b"{}").status_code == 403
        assert server.on_loop(lambda: inflight(server)) == 0


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["closed", "reset"])
def test_a_client_that_leaves_a_waiting_read_leaves_its_slot(
    server: Running, end: Callable[[socket.socket], None]
) -> None:
    """[RES-7, API-23]"""
    end(long_poll(server))
    wait_until(server, lambda: not inflight(server) and not waiters(server))


def test_a_client_that_ends_its_input_ends_its_waiting_read(server: Running) -> None:
    """[API-23] The connection is closed without an answer."""
    with long_poll(server) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert received(sock) == b""
        wait_until(server, lambda: not inflight(server) and not waiters(server))


def test_a_read_that_is_left_before_it_waits_does_not_begin_to(tmp_path: Path) -> None:
    """[API-23] It was still bringing the TTL floor up to date; nobody is left who would want the answer."""
    fs, clock = GateFs(), ManualClock()
    env = {"TOPICS_API_KEYS": KEYS}
    with running(tmp_path, env, fs=fs, clock=clock) as server, server.client(key=KEY) as client:
        assert client.put("/v0/topics/t", json={"ttl_ms": 1000, "durability": "fsync"}).status_code == 201
        assert client.post("/v0/topics/t", json=records(1)).status_code == 200
        engine = server.server.app.engine
        assert engine is not None
        topic = engine.core.names["t"]
        fs.gate.clear()
        server.on_loop(lambda: clock.advance(2000))
        body = b'{"from_seq":1,"wait_ms":30000}'
        with connect(server) as sock:
            sock.sendall(head("POST", "/v0/topics/t/diff", AUTH, JSON, f"Content-Length: {len(body)}") + body)
            wait_until(server, lambda: topic.ttl_waiting is not None and inflight(server) == 1)
        wait_until(server, lambda: not inflight(server))
        fs.gate.set()
        wait_until(server, lambda: topic.ttl_waiting is None)
        assert client.get("/v0/topics/t").json()["earliest_seq"] == 2
        assert server.on_loop(lambda: waiters(server)) == 0


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["closed", "reset"])
def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_its_slot(
    server: Running, end: Callable[[socket.socket], None]
) -> None:
    """[RES-7] The slot is taken at the key, long before the body is there."""
    for method, length in (("POST", 1000), ("PATCH", 1000), ("POST", 200_000)):
        sock = connect(server)
        sock.sendall(head(method, "/v0/topics/t", AUTH, JSON, f"Content-Length: {length}") + b'{"records":')
        wait_until(server, lambda: inflight(server) == 1)
        end(sock)
        wait_until(server, lambda: not inflight(server))
        wait_until(server, lambda: not server.server.app.buffered.used)


def test_a_refused_request_holds_its_slot_until_it_is_answered(server: Running) -> None:
    """[RES-7] A short body is read to its end first, so that the connection can be kept."""
    for method, status in (("PUT", 403), ("PATCH", 403)):
        with connect(server) as sock:
            request = head(method, "/v0/topics/t", f"Authorization: Bearer {READER}", "Content-Length: 10")
            sock.sendall(request + b"{}")
            wait_until(server, lambda: inflight(server) == 1)
            sock.sendall(b" " * 8)
            assert parsed(sock.recv(65536)).status == status
            assert server.on_loop(lambda: inflight(server)) == 0


def test_a_body_that_does_not_come_in_time_returns_the_slot() -> None:
    """[RES-7, API-3] 408."""
    clock = ManualClock()
    with running(env={"TOPICS_API_KEYS": KEYS}, clock=clock) as server, connect(server) as sock:
        sock.sendall(head("POST", "/v0/topics/t", AUTH, JSON, "Content-Length: 1000") + b"{")
        wait_until(server, lambda: inflight(server) == 1)
        server.on_loop(lambda: clock.advance(61_000))
        assert parsed(received(sock)).status == 408
        assert server.on_loop(lambda: inflight(server)) == 0


def test_a_write_whose_client_is_gone_holds_its_slot_until_it_is_decided(tmp_path: Path) -> None:
    """[RES-7, R-6] It goes on; nobody can make room for more by leaving."""
    fs = GateFs()
    with running(tmp_path, {"TOPICS_API_KEYS": KEYS}, fs=fs) as server, server.client(key=OTHER) as client:
        assert client.put("/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        engine = server.server.app.engine
        assert engine is not None
        topic = engine.core.names["t"]
        fs.gate.clear()
        body = b'{"records":[{"data":1}]}'
        with connect(server) as sock:
            sock.sendall(head("POST", "/v0/topics/t", AUTH, JSON, f"Content-Length: {len(body)}") + body)
            wait_until(server, lambda: topic.tickets)
            reset(sock)
        wait_until(server, lambda: len(server.server.connections.open) <= 1)
        assert server.on_loop(lambda: inflight(server)) == 1
        fs.gate.set()
        wait_until(server, lambda: not inflight(server))
        assert client.get("/v0/topics/t").json()["head_seq"] == 1


def test_requests_that_wait_in_line_on_a_connection_share_one_slot() -> None:
    """[RES-7, API-25] The second begins when the first is answered; by then its slot is free again."""
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    body = b'{"records":[{"data":1}]}'
    with running(env=env) as server, server.client(key=KEY) as client:
        assert client.put("/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        one = head("POST", "/v0/topics/t", AUTH, JSON, f"Content-Length: {len(body)}") + body
        with connect(server) as sock:
            sock.sendall(one * 20)
            sock.shutdown(socket.SHUT_WR)
            assert received(sock).count(b"HTTP/1.1 200 OK") == 20
        assert server.on_loop(lambda: inflight(server)) == 0


def test_no_number_of_clients_gets_past_the_cap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """[RES-3] Twelve clients, a cap of three: never more than three at once, and none is lost."""
    peak: list[int] = []

    class Watched(Usage):
        """Notes every change, whoever makes it: writes that are gathered take their slots themselves."""

        @property
        def inflight(self) -> int:
            return self._inflight

        @inflight.setter
        def inflight(self, count: int) -> None:
            self._inflight = count
            peak.append(count)

    monkeypatch.setattr("topics.server.keys.Usage", Watched)
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": "3"}
    fs = GateFs()
    with running(tmp_path, env, fs=fs) as server:
        with server.client(key=OTHER) as client:
            assert client.put("/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        start = threading.Barrier(12)
        refused = threading.Event()

        def post(client: httpx.Client) -> int:
            status = client.post("/v0/topics/t", json=records(1)).status_code
            if status == 429:
                refused.set()
            return status

        def hammer(_: int) -> list[int]:
            with server.client(key=KEY) as client:
                start.wait(WAIT_S)
                return [post(client) for _ in range(25)]

        fs.gate.clear()  # nobody is done before somebody was refused, however fast the disk is
        with ThreadPoolExecutor(12) as pool:
            running_all = pool.map(hammer, range(12))
            assert refused.wait(WAIT_S)
            fs.gate.set()
            statuses = [status for some in running_all for status in some]
        with server.client(key=OTHER) as client:
            written = client.get("/v0/topics/t").json()["head_seq"]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == written
        assert max(peak) == 3
        assert server.on_loop(lambda: inflight(server)) == 0


def test_keys_that_are_read_anew_go_on_counting(server: Running) -> None:
    """[RES-3, KEY-4, KEY-7] The digest is what counts; a key that was gone for a while comes back with what it had."""
    app = server.server.app

    def use(keys: str) -> None:
        server.on_loop(lambda: server.server.use_keys(KeyRing(parse(keys), app.keys)))

    with long_poll(server), long_poll(server), server.client(key=KEY) as client:
        use(f"{KEY}:read")
        assert client.get("/v0/topics").status_code == 429
        use(OTHER)
        assert client.get("/v0/topics").status_code == 401
        use(f"{KEY},{OTHER}")
        assert client.get("/v0/topics").status_code == 429
    wait_until(server, lambda: not inflight(server))
    with server.client(key=KEY) as client:
        assert client.get("/v0/topics").status_code == 200
    use("another")
    use("another")
    assert len(app.keys._usage) == 1


@pytest.mark.parametrize(
    "env", [{"TOPICS_API_KEYS": KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": "0"}, {"TOPICS_MAX_INFLIGHT_PER_KEY": "1"}]
)
def test_zero_is_no_limit_and_without_keys_there_is_none(env: dict[str, str]) -> None:
    """[RES-1, RES-8]"""
    with running(env=env) as server, server.client(key=KEY) as client:
        assert client.put("/v0/topics/t").status_code == 201
        socks = [long_poll(server) for _ in range(5)]
        assert client.get("/v0/topics").status_code == 200
        for sock in socks:
            sock.close()
        wait_until(server, lambda: not inflight(server) and not waiters(server))


def test_an_unknown_key_takes_no_slot(server: Running) -> None:
    """[RES-7]"""
    answer = ask_raw(server, head("GET", "/v0/topics", "Authorization: Bearer nobody"))
    assert (answer.status, code(answer)) == (401, "unauthorized")
    assert server.on_loop(lambda: inflight(server)) == 0
