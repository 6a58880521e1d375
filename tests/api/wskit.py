"""A WebSocket client that sends frames as they are and reads them one by one; and a look at the server's side of it."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from tests.api.kit import WAIT_S, Running
from tests.api.rawclient import until
from topics.server.websocket import INPUT_HIGH, WebSocket
from topics.testing import ManualClock

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LAST = 0x80
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
MASK = b"\xa1\x07\x5c\xe2"
UPGRADE = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}",
)  # fmt: skip


def request(*fields: str, path: str = "/v0/ws", upgrade: tuple[str, ...] = UPGRADE) -> bytes:
    """The head of a handshake."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *upgrade, *fields, "", ""]).encode()


def framed(first: int, payload: bytes = b"", *, length: int | None = None, mask: bytes = MASK) -> bytes:
    """A frame; `first` has the last bit and the opcode, `length` may lie."""
    size = len(payload) if length is None else length
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 0xFE, size)
    else:
        head = struct.pack(">BBQ", first, 0xFF, size)
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    whole = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + whole.to_bytes(len(payload), "big")


def text(message: bytes | str) -> bytes:
    """A text message in one frame."""
    return framed(LAST | TEXT, message.encode() if isinstance(message, str) else message)


def command(op: str, **members: Any) -> bytes:
    """A command in one frame."""
    return text(msgspec.json.encode({"op": op, **members}))


class Ws:
    """One connection. `fields` are further lines of its handshake."""

    def __init__(self, server: Running, *fields: str, receive_bytes: int = 0, behind: bytes = b"") -> None:
        self.sock = socket.socket()
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect((server.host, server.port))
        self.server = server
        self._read = b""
        self.sock.sendall(request(*fields) + behind)
        head = self._until(b"\r\n\r\n").decode("latin-1")
        line, *rest = head.split("\r\n")
        self.status = int(line.split(" ")[1])
        self.headers = dict(field.split(": ", 1) for field in rest if field)
        assert self.status == 101, head

    def __enter__(self) -> Ws:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.close()

    # -- out ---------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> Ws:
        """Bytes as they are."""
        self.sock.sendall(data)
        return self

    def ask(self, op: str, **members: Any) -> Any:
        """One command, and its reply."""
        return self.send(command(op, **members)).reply()

    # -- in ----------------------------------------------------------------------------------------------------------

    def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        first, second = self._take(2)
        assert first & 0xF0 == LAST, "whole messages, without extensions"
        assert second < 0x80, "a server masks nothing"
        size = second
        if second == 126:
            (size,) = struct.unpack(">H", self._take(2))
        elif second == 127:
            (size,) = struct.unpack(">Q", self._take(8))
        return first & 15, self._take(size)

    def message(self) -> bytes:
        """The next text."""
        opcode, payload = self.frame()
        assert opcode == TEXT, (opcode, payload)
        return payload

    def reply(self) -> Any:
        """The next text as an object; in frames nothing stands between tokens [API-14]."""
        payload = self.message()
        assert payload == msgspec.json.format(payload, indent=-1)
        return msgspec.json.decode(payload)

    def closed(self) -> tuple[int, str]:
        """The close frame that comes next: status and reason."""
        opcode, payload = self.frame()
        assert opcode == CLOSE, (opcode, payload)
        return struct.unpack(">H", payload[:2])[0], payload[2:].decode()

    def is_ended(self) -> bool:
        """Whether the server sends nothing more; waits for its end."""
        try:
            return not self._read and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            part = self.sock.recv(1 << 20)
            assert part, f"the server ended after {self._read!r}"
            self._read += part
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            part = self.sock.recv(65536)
            assert part, f"the server ended after {self._read!r}"
            self._read += part
        head, _, self._read = self._read.partition(mark)
        return head

    # -- the server's side -------------------------------------------------------------------------------------------

    @property
    def served(self) -> WebSocket:
        """Look at it on the server's loop."""
        mine = self.sock.getsockname()
        for front in self.server.server.connections.open:
            transport = front._transport
            if transport is not None and transport.get_extra_info("peername") == mine:
                assert isinstance(front._spoken, WebSocket)
                return front._spoken
        raise LookupError("the server has no such connection")


def is_held_up(ws: Ws) -> bool:
    """Whether so much waits for its turn that the server does not read on; ask on its loop."""
    return ws.served._is_paused and len(ws.served._input) > INPUT_HIGH


def passes(server: Running, clock: ManualClock, seconds: int) -> None:
    """Time passes as the server sees it: looked at once a second."""
    for _ in range(seconds):
        clock.advance(1000)
        server.on_loop(server.server.connections.sweep)


def streams(server: Running) -> int:
    """Open streams of all kinds."""
    return len(server.server.app.streams)


def is_all_let_go(server: Running) -> None:
    """Wait until no stream is open and nothing is buffered."""
    until(server, lambda: not streams(server) and not server.server.app.buffered.used)
