"""P-3, P-4: one client for all servers, which counts nothing that was not answered whole."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from topics.cli import load
from topics.cli.load import Driven, Target, Unexpected, Wire, drive, drive_all, http_answer
from topics.cli.peers import publish, xadd

CERTIFICATE = Path(__file__).parents[2] / "api" / "localhost.pem"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
ASK = Wire(b"ask\n", http_answer)

Serve = Callable[[socket.socket], None]


@contextmanager
def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> Iterator[Target]:
    """Somebody who serves each connection on a thread of its own, until it is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run(sock: socket.socket) -> None:
        with suppress(OSError), sock if tls is None else tls.wrap_socket(sock, server_side=True) as own:
            serve(own)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=run, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield Target(listener.getsockname()[1])
    finally:
        with suppress(OSError):  # some systems have nothing to shut down there
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def answers(*pieces: bytes) -> Serve:
    """Each line is answered by these, one after another."""

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock.makefile("rb") as lines:
            for _ in lines:
                for piece in pieces:
                    sock.sendall(piece)

    return serve


def check(found: Driven, count: int) -> None:
    assert len(found.latencies_ns) == count
    assert min(found.latencies_ns) > 0
    assert found.wall_s > 0


@pytest.mark.parametrize(
    "pieces", [(OK,), (OK[:10], OK[10:30], OK[30:]), tuple(OK[at : at + 1] for at in range(len(OK)))]
)
def test_every_answer_is_waited_for_to_its_end(pieces: tuple[bytes, ...]) -> None:
    with serving(answers(*pieces)) as target:
        check(drive(target, ASK, connections=3, count=40), 40)


def test_no_more_is_asked_than_was_said_and_one_request_of_a_connection_at_a_time() -> None:
    asked: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        while data := sock.recv(4096):
            asked.append(data)
            sock.sendall(OK)

    with serving(serve) as target:
        check(drive(target, ASK, connections=4, count=10), 10)
    assert asked == [b"ask\n"] * 10


def test_loads_at_once_have_their_own_counts() -> None:
    with serving(answers(OK)) as target:
        check(drive_all(target, [ASK, ASK], connections=2, count=9), 18)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (OK + b"!", Unexpected),
        (OK + OK, Unexpected),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", Unexpected),
    ],
)
def test_what_is_no_answer_ends_the_load(said: bytes, error: type[Exception]) -> None:
    with serving(answers(said)) as target, pytest.raises(error):
        drive(target, ASK, connections=2, count=9)


@pytest.mark.parametrize("said", [b"", OK[:20]], ids=["before an answer", "in an answer"])
def test_a_server_that_goes_away_ends_the_load(said: bytes) -> None:
    serve: Serve = lambda sock: sock.sendall(said) if sock.recv(99) else None  # noqa: E731
    with serving(serve) as target, pytest.raises(Unexpected, match=rf":{target.port}: .*closed"):
        drive(target, ASK, connections=2, count=9)


def test_a_server_that_is_not_there_is_named() -> None:
    with serving(answers(OK)) as target:
        pass
    with pytest.raises(Unexpected, match=str(target.port)):
        drive(target, ASK, connections=2, count=9)


def test_a_server_that_says_nothing_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WAIT_S", 0.05)
    wire = ASK._replace(hello=b"hello\n", ready=b"READY")
    with serving(answers()) as target:
        for asked in (ASK, wire):
            with pytest.raises(Unexpected):
                drive(target, asked, connections=1, count=2)


def test_what_nobody_asked_for_ends_the_load() -> None:
    """One connection answers twice, the other never: that is not two answers."""
    first = threading.Lock()

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(99)
        if first.acquire(blocking=False):
            sock.sendall(OK)
            sock.sendall(OK)
        sock.recv(99)

    with serving(serve) as target, pytest.raises(Unexpected, match=r"asked for|another length"):
        drive(target, ASK, connections=2, count=2)


def test_a_greeting_and_what_a_server_asks_in_between_are_no_answers() -> None:
    said: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        with sock.makefile("rb") as lines:
            said.append(lines.readline())
            sock.sendall(b"welcome\nREADY\n")
            for line in lines:
                said.append(line)
                if line != b"pong\n":
                    sock.sendall(b"ping\n" + OK)

    wire = Wire(b"ask ##\n", http_answer, b"hello ##\n", b"READY\n", b"ping\n", b"pong\n", b"##")
    with serving(serve) as target:
        check(drive(target, wire, connections=1, count=3), 3)
    assert said[:2] == [b"hello 00\n", b"ask 00\n"]
    assert said.count(b"ask 00\n") == 3
    assert said.count(b"pong\n") >= 2  # the last may not have been read yet


def test_answers_over_tls_may_be_many_records_long() -> None:
    """Of what was decrypted already, no poll tells."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(CERTIFICATE)
    client = ssl.create_default_context(cafile=str(CERTIFICATE))
    body = b"x" * 300_000
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with serving(answers(said), server) as target:
        check(drive(target._replace(host="localhost", tls=client), ASK, connections=2, count=8), 8)


def test_the_peers_answers_are_told_apart() -> None:
    added, published = xadd(b"1", 2), publish(b"1", 2)
    one = b"$15\r\n1700000000000-0\r\n"
    assert [added.answer(one), added.answer(one * 2)] == [0, 2 * len(one)]
    with pytest.raises(Unexpected):
        added.answer(b"-ERR no\r\n")
    acked = b'MSG _INBOX.000000 1 27\r\n{"stream":"hot", "seq":1234}\r\n'
    assert [published.answer(acked), published.answer(acked * 2)] == [0, 2 * len(acked)]
    with pytest.raises(Unexpected):
        published.answer(acked + b'MSG _INBOX.000000 1 2\r\n{"error":{}}\r\n')
