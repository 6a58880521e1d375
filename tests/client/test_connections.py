"""Clients on real sockets: connections that are kept, cut, refused and encrypted [U-21]."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.api.kit import WAIT_S, Running, running
from tests.api.test_tls import client_context, server_context
from tests.client.subjects import CLIENTS, client_of
from topics import errors
from topics.client.http1 import Request
from topics.client.retry import Fault
from topics.testing.tcpproxy import TcpProxy


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture
def line(server: Running) -> Iterator[TcpProxy]:
    with TcpProxy(server.host, server.port) as one:
        yield one


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, line: TcpProxy) -> Iterator[Any]:
    with client_of(request.param, line.endpoint) as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[:200]


def cut_next_answer(line: TcpProxy) -> None:
    """The next request arrives; of its answer one byte does. Connections that are kept are ended."""
    line.refuse()
    line.accept()
    line.cut_after(1)


def test_a_connection_is_kept_and_used_again(client: Any, line: TcpProxy, topic: str) -> None:
    for number in range(20):
        client.append(topic, number)
    assert len(list(client.read(topic))) == 20
    assert line.connections == 1


def test_a_connection_that_was_closed_meanwhile_is_replaced(client: Any, line: TcpProxy, topic: str) -> None:
    """[API-25] Also for what is not repeated."""
    client.create(topic, type="queue")
    client.append(topic, 1)
    line.refuse()
    line.accept()
    assert len(client.claim(topic, "w").jobs) == 1
    assert line.connections == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_write_whose_answer_was_lost_is_there_once(client: Any, line: TcpProxy, topic: str, count: int) -> None:
    """[U-21] The request arrived, the answer did not; a retry finds the key."""
    client.append(topic, "first")
    for _ in range(count):
        cut_next_answer(line)
        assert client.append(topic, "again").deduped
    assert [record.data for record in client.read(topic)] == ["first", *["again"] * count]


def test_a_reset_before_anything_arrived_is_retried(client: Any, line: TcpProxy, topic: str) -> None:
    """[U-21]"""
    client.append(topic, 0)
    line.refuse()
    line.accept()
    line.reset_next(2)
    client.append(topic, 1)
    assert [record.data for record in client.read(topic)] == [0, 1]


def test_a_claim_whose_answer_was_lost_is_not_repeated(client: Any, line: TcpProxy, topic: str) -> None:
    """[U-21] It is told, because the jobs may be leased."""
    client.create(topic, type="queue")
    client.append_many(topic, [1, 2])
    cut_next_answer(line)
    with pytest.raises(errors.Unreachable):
        client.claim(topic, "w")
    assert [lease.seq for lease in client.leases(topic).leases] == [1]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_first_connection_that_is_refused_is_told_at_once(kind: str) -> None:
    """[U-21] A wrong address is not waited for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        with client_of(kind, f"http://127.0.0.1:{taken.getsockname()[1]}") as one:
            with pytest.raises(errors.Unreachable) as caught:
                one.state("x")
            assert caught.value.code == "unreachable"
            with pytest.raises(errors.Unreachable):
                next(iter(one.watch({"x": 0})))


def test_an_outage_is_waited_out(client: Any, line: TcpProxy, topic: str) -> None:
    """[U-21]"""
    client.append(topic, 0)
    line.refuse()
    back = threading.Timer(0.3, line.accept)
    back.start()
    try:
        assert client.append(topic, 1).last_seq == 2
    finally:
        back.join()


def test_a_kept_connection_on_which_nothing_comes_was_not_closed(client: Any, line: TcpProxy, topic: str) -> None:
    """[U-21] A server that is silent is no reason to wait for it once more at once."""
    client.append(topic, 1)
    line.stall()
    found = client.exchange(Request("GET", "/v0/topics", answer_s=0.1))
    line.resume()
    assert found == Fault("no answer in time", sent=True, stale=False)


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_outage_that_lasts_is_told(kind: str, line: TcpProxy, topic: str) -> None:
    """[U-21]"""
    with client_of(kind, line.endpoint, retry_s=0.2) as one:
        one.append(topic, 0)
        line.refuse()
        with pytest.raises(errors.Unreachable):
            one.append(topic, 1)
        line.accept()
        one.append(topic, 2)
        assert [record.data for record in one.read(topic)] == [0, 2]


@pytest.mark.parametrize("kind", CLIENTS)
def test_what_listens_there_may_be_anything(kind: str) -> None:
    """It is told in one of our errors, and nothing hangs."""
    said = [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"", b"\0" * 100]
    for one in said:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer(listener: socket.socket = listener, one: bytes = one) -> None:
                for _ in range(2):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(one)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            with client_of(kind, f"http://127.0.0.1:{listener.getsockname()[1]}", retry_s=0.0) as stranger:
                with pytest.raises(errors.Unreachable):
                    stranger.state("x")
                with pytest.raises(errors.Unreachable):
                    stranger.state("x")
            thread.join(WAIT_S)


def test_a_body_that_is_refused_early_is_told_as_what_it_is(tmp_path: Path) -> None:
    """[API-15, API-25] The server answers before all of it is sent, and closes."""
    with running(tmp_path, {"TOPICS_MAX_BODY_BYTES": "100000"}) as small:
        for kind in CLIENTS:
            with client_of(kind, small.url) as one:
                with pytest.raises(errors.PayloadTooLarge):
                    one.append_many("big", ["x" * 100_000] * 300)
                assert list(one.topics()) == []


def test_keys_decide(tmp_path: Path) -> None:
    """[API-7]"""
    keys = "k-all:read+write+admin+delete,k-read:read:w"
    with running(tmp_path, {"TOPICS_API_KEYS": keys}) as locked:
        for kind in CLIENTS:
            with client_of(kind, locked.url, "k-all") as one:
                one.append("w.1", 1)
                one.append("other", 1)
            with client_of(kind, locked.url, "k-read") as one:
                assert one.state("w.1").count >= 1
                with one.watch({"w.1": 0}) as events:
                    assert next(events).topic == "w.1"
                for call in (lambda: one.append("w.1", 1), lambda: one.state("other"), lambda: one.watch({"other": 0})):
                    with pytest.raises(errors.Forbidden):
                        found = call()
                        next(iter(found))
            for bad in ("k-none", None):
                with client_of(kind, locked.url, bad) as one, pytest.raises(errors.Unauthorized) as caught:
                    one.state("w.1")
                assert "k-none" not in str(caught.value)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_key_may_have_any_letters(tmp_path: Path, kind: str) -> None:
    """[KEY-1] Calls and streams."""
    with running(tmp_path, {"TOPICS_API_KEYS": "clé-鍵"}) as locked:
        with client_of(kind, locked.url, "clé-鍵") as one:
            one.append("a", 1)
            with one.watch({"a": 0}) as events:
                assert next(events).data == 1
        with client_of(kind, locked.url, "clè-鍵") as one, pytest.raises(errors.Unauthorized):
            one.state("a")


@pytest.mark.parametrize("kind", CLIENTS)
def test_it_works_over_tls_and_only_with_a_certificate_that_is_trusted(kind: str) -> None:
    """[A-6]"""
    with running(tls=server_context()) as encrypted:
        url = encrypted.url.replace("127.0.0.1", "localhost")
        with client_of(kind, url, tls=client_context()) as one:
            one.append("sealed", "x" * 300_000)
            with one.watch({"sealed": 0}) as events:
                assert len(next(events).data) == 300_000
        with client_of(kind, url) as one, pytest.raises(errors.Unreachable):
            one.state("sealed")


def test_threads_share_a_client(line: TcpProxy, topic: str) -> None:
    with topics.Client(line.endpoint) as one:

        def write(node: int) -> None:
            for number in range(25):
                one.append(topic, [node, number])

        threads = [threading.Thread(target=write, args=(node,)) for node in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(record.data for record in one.page(topic).records) == [
            [a, b] for a in range(8) for b in range(25)
        ]
    assert line.connections <= 8


def test_tasks_share_a_client_within_its_bound(line: TcpProxy, topic: str) -> None:
    async def main() -> list[Any]:
        async with topics.AsyncClient(line.endpoint, connections=5) as one:
            await asyncio.gather(*(one.append(topic, number) for number in range(100)))
            return [record.data for record in (await one.page(topic)).records]

    assert sorted(asyncio.run(main())) == list(range(100))
    assert line.connections <= 5


def test_a_call_that_is_cancelled_leaves_no_answer_to_the_next(line: TcpProxy, topic: str) -> None:
    """Its connection is not used again."""

    async def main() -> None:
        async with topics.AsyncClient(line.endpoint) as one:
            await one.append(topic, 1)
            waiting = asyncio.ensure_future(one.page(topic, 1, wait_ms=20_000))
            await asyncio.sleep(0)
            while line.connections < 1:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await one.state(topic)).count == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_closed_client_says_so(kind: str, server: Running) -> None:
    with client_of(kind, server.url) as one:
        one.close()
        for call in (lambda: one.append("x", 1), lambda: next(iter(one.watch({"x": 0}))), lambda: list(one.topics())):
            with pytest.raises(errors.EngineClosed):
                call()


def test_a_connection_that_comes_back_to_a_closed_client_is_ended(server: Running) -> None:
    """A call that another thread is in the middle of leaves nothing open behind it."""
    with topics.Client(server.url) as one:
        connection = one._pool.take()
    one._pool.give(connection)
    assert connection._sock.fileno() == -1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_does_not_use_its_parents_connections(server: Running, topic: str) -> None:
    """Two on one connection would read each other's answers, two with one key would lose a write."""
    with topics.Client(server.url) as one:
        one.append(topic, "parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                one.append(topic, "child")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        one.append(topic, "parent")
        assert [record.data for record in one.page(topic).records] == ["parent", "child", "parent"]


def test_the_systems_certificates_are_read_only_for_https(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than most calls."""

    def refuse(*args: object, **more: object) -> ssl.SSLContext:
        raise AssertionError("not needed")

    monkeypatch.setattr(ssl, "create_default_context", refuse)
    topics.Client("http://127.0.0.1:1").close()
