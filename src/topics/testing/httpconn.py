"""One kept HTTP/1.1 connection to a server under test: a request, an answer, and nothing hidden in between.

No retries, no pool, no redirects: when the connection breaks the caller must know which call it was. One thread each.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

import msgspec

TIMEOUT_S = 60.0


class Answer(NamedTuple):
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: Any
    """Decoded JSON; None without a body."""


class NotSent(ConnectionError):
    """There was no connection: the request cannot have reached anybody."""


class HttpConn:
    """A connection that is made with the first request and made again after it broke."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._head = f"host: {host}:{port}\r\n"

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request and wait for its answer; any `OSError` but `NotSent` leaves open whether it was executed."""
        raw = b"" if body is None else msgspec.json.encode(body)
        kind = "" if body is None else "content-type: application/json\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}content-length: {len(raw)}\r\n\r\n"
        sock = self._connected()
        try:
            sock.sendall(head.encode() + raw)
            return self._answer(sock)
        except OSError:
            self.close()
            raise

    def _connected(self) -> socket.socket:
        if self._sock is None:
            try:
                sock = socket.create_connection(self._address, self._timeout_s)
            except OSError as error:
                raise NotSent(str(error)) from error
            if sock.getsockname() == sock.getpeername():
                # A free port of the ephemeral range may be connected to itself.
                sock.close()
                raise NotSent("nobody listens")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = sock
        return self._sock

    def _answer(self, sock: socket.socket) -> Answer:
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            _receive(sock, received)
        first, *lines = bytes(received[:end]).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        del received[: end + 4]
        length = int(headers["content-length"])
        while len(received) < length:
            _receive(sock, received)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(int(first.split()[1]), headers, msgspec.json.decode(received) if length else None)

    def close(self) -> None:
        """Let go of the connection; the next request makes another."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def __enter__(self) -> HttpConn:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _receive(sock: socket.socket, into: bytearray) -> None:
    part = sock.recv(1 << 18)
    if not part:
        raise ConnectionResetError("the connection ended before the answer was complete")
    into += part
