"""Whatever answers at the address: one line on stderr, status 1, and no traceback [U-10]."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.cli.conftest import Run


def answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


ANSWERS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a proxy without a server": answer("502 Bad Gateway", b"<html></html>", "text/html"),
    "a web page": answer("200 OK", b"<html></html>", "text/html"),
    "a list": answer("200 OK", b"[]"),
    "an object of others": answer("200 OK", b'{"hello":"world"}'),
    "an error of others": answer("418 Teapot", b'{"error":"no tea"}'),
    "an odd error": answer("400 Bad Request", b'{"error":{"code":5,"message":["x"],"detail":7}}'),
    "text that is no text": answer("200 OK", b'{"topics":"\xff"}'),
    "a redirection": b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "half an answer": b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"to',
    "nothing": b"",
}
COMMANDS = (
    "ls", "show t", "create t", "config t ttl_ms=1h", "rm t", "read t", "tail t", "tail t -f", "write t --data 1",
    "delete t --before 3 --yes", "queue stats t", "queue claim t", "queue ack t 1", "queue nack t 1",
    "queue work t --until-empty -- true", "queue redrive t", "router ls", "router add r a b", "router rm r",
    "checkpoint --url",
)  # fmt: skip


@contextmanager
def stranger(said: bytes) -> Iterator[str]:
    """Says the same to whoever comes, once it was asked something."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:  # it is over
                    return
                with peer, suppress(OSError):  # who asked may be gone already
                    peer.recv(65536)
                    peer.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("what", ANSWERS)
def test_who_is_no_topics_server_is_told_in_one_line(run: Run, what: str) -> None:
    """[U-10]"""
    found = []
    with stranger(ANSWERS[what]) as url:
        for line in COMMANDS:
            words = line.removesuffix(" --url").split()
            at = words.index("--") if "--" in words else len(words)
            ran = run(*words[:at], "--url", url, *words[at:])
            bad = ran.status != 1 or "Traceback" in ran.err or "internal" in ran.err or len(ran.err.splitlines()) != 1
            found += [(line, ran)] if bad else []
    assert not found, "\n".join(map(str, found))


def test_the_state_of_a_server_that_is_not_ready_is_told(run: Run) -> None:
    """[U-13]"""
    error = {"code": "not_ready", "message": "no space", "detail": {"state": "full"}}
    with stranger(answer("503 Service Unavailable", json.dumps({"error": error}).encode())) as url:
        ran = run("write", "t", "--data", "1", "--url", url, "--json")
    assert ran.status == 1
    told = json.loads(ran.err)["error"]
    assert (told["code"], told["detail"]) == ("not_ready", {"state": "full"})
