"""TLS: the protocol is the one the handshake chose [API-2, API-4].

`localhost.pem` is a key and its self-signed certificate, for these tests and nothing else.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.api.frames import JSON, Talk
from tests.api.kit import WAIT_S, Running, received, records, running
from tests.unit.engine.kit import GatedFs

CERTIFICATE = Path(__file__).with_name("localhost.pem")


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def client_context(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Running]:
    with running(tls=server_context()) as one:
        yield one


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_a_client_gets_the_version_it_asks_for(encrypted: Running, topic: str, version: str) -> None:
    """[API-2]: large bodies both ways."""
    is_2 = version == "HTTP/2"
    with httpx.Client(
        base_url=encrypted.url, verify=client_context(), http1=not is_2, http2=is_2, timeout=WAIT_S, trust_env=False
    ) as client:
        answer = client.post(f"/v0/topics/{topic}", json=records(*["z" * 700_000] * 6))
        assert (answer.status_code, answer.http_version) == (201, version)
        page = client.post(f"/v0/topics/{topic}/diff", json={"max_batch_bytes": 8 << 20}).json()
        assert [len(one["data"]) for one in page["records"]] == [700_000] * 6


def test_a_client_that_accepts_both_gets_http_2(encrypted: Running) -> None:
    """[API-2]"""
    with httpx.Client(
        base_url=encrypted.url, verify=client_context(), http1=True, http2=True, timeout=WAIT_S, trust_env=False
    ) as client:
        assert client.get("/v0/health").http_version == "HTTP/2"


def test_a_client_without_alpn_is_told_by_its_first_bytes(encrypted: Running) -> None:
    """[API-2]"""
    request = b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert exchange(encrypted, client_context(), request).startswith(b"HTTP/1.1 200 ")


def test_who_chose_http_2_must_speak_it(encrypted: Running) -> None:
    """RFC 9113 §3.4: nothing of the request is executed."""
    request = b"PUT /v0/topics/chose-2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    assert b"HTTP/1.1" not in exchange(encrypted, client_context("h2"), request)
    with httpx.Client(base_url=encrypted.url, verify=client_context(), timeout=WAIT_S, trust_env=False) as client:
        assert client.get("/v0/topics/chose-2").status_code == 404


def test_the_end_of_input_ends_a_waiting_read(encrypted: Running, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """[API-23]: on either protocol, without a word in the log."""
    with httpx.Client(base_url=encrypted.url, verify=client_context(), timeout=WAIT_S, trust_env=False) as client:
        client.post(f"/v0/topics/{topic}", json=records(1))
    body = json.dumps({"from_seq": 1, "wait_ms": 30_000}).encode()
    head = b"POST /v0/topics/%b/diff HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head % topic.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    with caplog.at_level(logging.WARNING):
        assert exchange(encrypted, client_context("http/1.1"), request, ends=True) == b""
        with Talk(encrypted, tls=client_context("h2")) as talk:
            talk.send(
                talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}/diff".encode(), JSON), end=False),
                *talk.data(1, body),
            )
            talk.reach()
            # The server may still say that it cancels the stream, which is late for `ssl`.
            with suppress(ssl.SSLError):
                talk.end_input()
        settle(encrypted)
    assert not caplog.records

    def waiters() -> int:
        engine = encrypted.server.app.engine
        assert engine is not None
        return len(engine.core.names[topic].waiters)

    assert encrypted.on_loop(waiters) == 0


def test_the_end_of_input_ends_the_connection_of_a_running_write(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """[API-23]: a connection with TLS is not half open. The write is not undone, its answer is not sent."""
    fs = GatedFs()
    with running(tls=server_context(), fs=fs) as server, caplog.at_level(logging.WARNING), secure(server) as client:
        assert client.put(f"/v0/topics/{topic}", json={"durability": "fsync"}).status_code == 201
        fs.gate.clear()
        try:
            with Talk(server, tls=client_context("h2")) as talk:
                talk.request(1, b"POST", f"/v0/topics/{topic}".encode(), json.dumps(records(1)).encode())
                talk.reach()
                talk.end_input()
                talk.until_closed()
            assert talk.answers.get(1) is None
        finally:
            fs.gate.set()
        assert client.post(f"/v0/topics/{topic}", json=records(2)).json()["last_seq"] == 2
    assert not caplog.records


def exchange(server: Running, context: ssl.SSLContext, data: bytes, *, ends: bool = False) -> bytes:
    """What is answered until the server closes; `ends` closes our side first."""
    plain = socket.create_connection((server.host, server.port), timeout=WAIT_S)
    with context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(data)
        if not ends:
            return received(sock)
        settle(server)
        with sock.unwrap() as rest:
            return received(rest)


def secure(server: Running) -> httpx.Client:
    return httpx.Client(base_url=server.url, verify=client_context(), timeout=WAIT_S, trust_env=False)


def settle(server: Running) -> None:
    """The server has read what was sent before."""
    with httpx.Client(base_url=server.url, verify=client_context(), timeout=WAIT_S, trust_env=False) as client:
        client.get("/v0/health")
