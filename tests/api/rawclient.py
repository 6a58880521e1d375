"""A client that sends bytes as they are and reads answers one by one; and a look at the server's side of it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from tests.api.kit import WAIT_S, Running, received
from topics.server.http1 import Http1

MIB = 1 << 20


class Answer(NamedTuple):
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        code: str = self.json()["error"]["code"]
        return code


class RawClient:
    """One connection."""

    def __init__(self, server: Running, *, receive_bytes: int = 0) -> None:
        self.sock = socket.socket()
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect((server.host, server.port))
        self._server = server
        self._read = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> RawClient:
        self.sock.sendall(data)
        return self

    def finish(self) -> RawClient:
        """FIN; answers can still be read."""
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def reset(self) -> None:
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def answer(self, *, to_head: bool = False) -> Answer:
        """The next response."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        assert len({name for name, _ in pairs}) == len(pairs), "a field came twice"
        headers = dict(pairs)
        size = 0 if to_head else int(headers.get("content-length", "0"))
        while len(self._read) < size:
            self._more()
        body, self._read = self._read[:size], self._read[size:]
        return Answer(int(status), headers, body)

    def rest(self) -> bytes:
        """Everything up to the server's end."""
        data, self._read = self._read, b""
        return data + received(self.sock)

    def _more(self) -> None:
        part = self.sock.recv(65536)
        assert part, f"the server ended after {self._read!r}"
        self._read += part

    @property
    def served(self) -> Http1:
        """The server's side of this connection; look at it on the server's loop."""
        mine = self.sock.getsockname()
        for front in self._server.server.connections.open:
            transport = front._transport
            if transport is not None and transport.get_extra_info("peername") == mine:
                assert isinstance(front._spoken, Http1)
                return front._spoken
        raise LookupError("the server has no such connection")

    def until(self, holds: Callable[[Http1], bool]) -> RawClient:
        """Wait until the server's side looks like that."""
        until(self._server, lambda: self._is_accepted() and holds(self.served))
        return self

    def _is_accepted(self) -> bool:
        try:
            return self.served is not None
        except LookupError:
            return False


def until(server: Running, holds: Callable[[], bool]) -> None:
    """Wait, looking once per pass of the server's loop."""
    seen: Future[None] = Future()

    def look() -> None:
        try:
            if holds():
                seen.set_result(None)
            elif not seen.cancelled():
                server.loop.call_soon(look)
        except BaseException as error:  # noqa: BLE001 - the test gets it
            seen.set_exception(error)

    server.loop.call_soon_threadsafe(look)
    try:
        seen.result(WAIT_S)
    finally:
        seen.cancel()


def sweep(server: Running) -> None:
    """Have the deadlines looked at now."""
    server.on_loop(server.server.connections.sweep)


def get(path: str, *fields: str, version: str = "1.1") -> bytes:
    """A request without a body."""
    return request("GET", path, *fields, version=version)


def request(
    method: str, path: str, *fields: str, body: bytes | None = None, version: str = "1.1", json: bool = True
) -> bytes:
    """A request as bytes; with a body it gets a length and a type."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if json:
            lines.append("Content-Type: application/json")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def write(topic: str, *fields: str, data: bytes = b"1", version: str = "1.1") -> bytes:
    """A write of one record."""
    return request("POST", f"/v0/topics/{topic}", *fields, body=b'{"records":[{"data":%b}]}' % data, version=version)


def chunked(topic: str, framed: bytes, *fields: str) -> bytes:
    """A write whose body is framed by the caller."""
    return request(
        "POST", f"/v0/topics/{topic}", "Content-Type: application/json", "Transfer-Encoding: chunked", *fields
    ) + framed  # fmt: skip


def in_chunks(body: bytes, size: int = 7) -> bytes:
    """Chunked coding of a body."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def in_flight(server: Running) -> int:
    """In-flight slots that are taken, of all keys [RES-7]."""
    return server.on_loop(lambda: sum(key.usage.inflight for key in server.server.app.keys.keys))


def leave(server: Running, client: RawClient) -> None:
    """The client goes, and the server knows it."""
    served = server.on_loop(lambda: client.served)
    client.reset()
    until(server, lambda: served not in [front._spoken for front in server.server.connections.open])


def exists(server: Running, topic: str) -> bool:
    """Whether a topic was created."""
    return server.on_loop(lambda: topic in server.server.app.engine.core.names)  # type: ignore[union-attr]


def count(server: Running, topic: str) -> int:
    """Records of a topic."""
    return server.on_loop(lambda: server.server.app.engine.core.names[topic].count)  # type: ignore[union-attr]
