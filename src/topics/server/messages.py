"""Where messages begin and end in the bytes of a WebSocket (RFC 6455), strictly [WS-1, WS-4, WS-6, WS-19].

    handshake        fields of a request → the value of `Sec-WebSocket-Accept`, or why there is no upgrade
    MessageReader    frames of the client, cut anywhere → text, the fact of a binary message, ping, pong, close
    framed           a message of the server → its one frame

    status   when
    1002     reserved bits, unknown opcodes, no mask, control frames that are long or in pieces, pieces out of order
    1007     text that is not UTF-8, told with the first byte that shows it
    1009     a message above the limit, told by the frame that begins too much: nothing of it is kept

What has come of a message is unmasked and checked piece by piece, so that no single call works on much; of a binary
message nothing is kept at all. Pure; no sockets, no clock.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from websockets.utils import accept_key

from topics.server.failure import Failure
from topics.server.inbound import Utf8

try:
    from websockets.speedups import apply_mask
except ImportError:  # the package was built without a compiler
    from websockets.utils import apply_mask

TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
NOTHING: Final = 0
"""No message is complete yet."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NOT_UTF8: Final = 1007
POLICY: Final = 1008
TOO_BIG: Final = 1009
UNEXPECTED: Final = 1011
TRY_AGAIN: Final = 1013
_CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})
"""That may be in a close frame."""

VERSION: Final = b"13"
HEADER_BYTES: Final = 14
"""The longest there is."""
CONTROL_BYTES: Final = 125


class Violation(Exception):
    """The connection has to be closed with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


# -- handshake -------------------------------------------------------------------------------------------------------


class Handshake(NamedTuple):
    """What a request for an upgrade leads to: one of both."""

    accept: bytes
    failure: Failure | None = None


def handshake(headers: Mapping[bytes, bytes]) -> Handshake:
    """Judge a request's fields; extensions and subprotocols are ignored [WS-1, WS-19]."""
    if b"upgrade" not in _tokens(headers, b"connection") or b"websocket" not in _tokens(headers, b"upgrade"):
        return _refused("this path speaks WebSocket: it needs an upgrade, over HTTP/1.1")
    if headers.get(b"sec-websocket-version") != VERSION:
        return _refused("Sec-WebSocket-Version must be 13")
    key = headers.get(b"sec-websocket-key", b"")
    if not _is_key(key):
        return _refused("Sec-WebSocket-Key must be 16 bytes in base64")
    return Handshake(accept_key(key.decode()).encode())


def _refused(message: str) -> Handshake:
    version = ((b"sec-websocket-version", VERSION),)
    return Handshake(b"", Failure(400, "invalid_request", message, headers=version))


def _tokens(headers: Mapping[bytes, bytes], name: bytes) -> list[bytes]:
    return [token.strip() for token in headers.get(name, b"").lower().split(b",")]


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


# -- frames out ------------------------------------------------------------------------------------------------------


def framed(payload: bytes, opcode: int = TEXT) -> bytes:
    """One frame, which is the whole message."""
    size = len(payload)
    if size <= CONTROL_BYTES:
        return b"%c%c%b" % (0x80 | opcode, size, payload)
    if size < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, 126, size) + payload
    return struct.pack(">BBQ", 0x80 | opcode, 127, size) + payload


def closing(status: int, reason: str = "") -> bytes:
    """A close frame; a reason that is too long for it is cut."""
    text = reason.encode()[: CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return framed(struct.pack(">H", status) + text, CLOSE)


# -- frames in -------------------------------------------------------------------------------------------------------


class MessageReader:
    """Reads frame after frame of one client. A `Violation` is final."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._header = b""
        """As far as it came."""
        self._opcode = 0
        self._is_last = False
        self._mask = b""
        self._left: int | None = None
        """Of the payload of the frame being read; None between frames."""
        self._kind = NOTHING
        """Of the message being read; control frames may come between its frames."""
        self._size = 0
        """Of the message with the whole of the frame being read."""
        self._message = bytearray()
        self._control = bytearray()
        self._utf8 = Utf8()
        self._keeps = True

    @property
    def held(self) -> int:
        """Bytes kept of a message that is not complete."""
        return len(self._message)

    def keep_nothing(self) -> None:
        """From now on only where messages end matters."""
        self._keeps = False
        self._message = bytearray()

    def read(self, data: bytes, at: int) -> tuple[int, int, bytes | bytearray]:
        """Take bytes from `at` on, up to the end of a frame: how far it got, and what is complete, if anything."""
        left = self._left
        if left is None:
            at = self._read_header(data, at)
            left = self._left
            if left is None:
                return at, NOTHING, b""
        part = data[at : at + left]
        size = len(part)
        left -= size
        self._left = left or None
        if size:
            part = apply_mask(part, self._mask)
            if left and size & 3:
                turn = size & 3
                self._mask = self._mask[turn:] + self._mask[:turn]
        if self._opcode >= CLOSE:
            return at + size, *self._take_control(part, not left)
        return at + size, *self._take(part, not left and self._is_last)

    def _read_header(self, data: bytes, at: int) -> int:
        before = len(self._header)
        header = self._header + data[at : at + HEADER_BYTES - before] if before else data[at : at + HEADER_BYTES]
        size = self._begin(header)
        if not size:
            self._header = header
            return at + len(header) - before
        self._header = b""
        return at + size - before

    def _begin(self, header: bytes) -> int:
        """Judge the header of a frame; its size, 0 while a part of it is missing."""
        if len(header) < 2:
            return 0
        first, second = header[0], header[1]
        opcode, length, size = first & 15, second & 127, 2
        if not _may_begin(first, second, within=self._kind != NOTHING):
            raise Violation(PROTOCOL_ERROR, "the frame is malformed, or out of order")
        if length >= 126:
            size = 4 if length == 126 else 10
            if len(header) < size:
                return 0
            length = int.from_bytes(header[2:size], "big")
        if opcode < CLOSE and (self._size if opcode == 0 else 0) + length > self._most:
            raise Violation(TOO_BIG, f"messages have at most {self._most} bytes")
        if len(header) < size + 4:
            return 0
        self._mask = header[size : size + 4]
        self._start(opcode, length, is_last=first >= 0x80)
        return size + 4

    def _start(self, opcode: int, length: int, *, is_last: bool) -> None:
        self._opcode = opcode
        self._left = length
        if opcode >= CLOSE:
            return
        self._is_last = is_last
        if opcode:
            self._kind, self._size = opcode, length
        else:
            self._size += length

    def _take(self, part: bytes, is_complete: bool) -> tuple[int, bytes | bytearray]:
        """More of a message."""
        kind = self._kind
        if kind == BINARY or not self._keeps:
            part = b""
        elif part:
            self._utf8.feed(part)
            if self._utf8.is_broken:
                raise Violation(NOT_UTF8, "the text is not valid UTF-8")
        if not is_complete:
            self._message += part
            return NOTHING, b""
        self._kind, self._size = NOTHING, 0
        if not self._utf8.is_valid():
            raise Violation(NOT_UTF8, "the text is not valid UTF-8")
        self._utf8 = Utf8()
        if not self._message:
            return kind, part
        # It is handed on as it is: copying a large one would hold everybody up [P-10].
        whole, self._message = self._message, bytearray()
        whole += part
        return kind, whole

    def _take_control(self, part: bytes, is_complete: bool) -> tuple[int, bytes]:
        self._control += part
        if not is_complete:
            return NOTHING, b""
        payload = bytes(self._control)
        self._control.clear()
        if self._opcode == CLOSE:
            _check_close(payload)
        return self._opcode, payload


def _may_begin(first: int, second: int, *, within: bool) -> bool:
    """Whether the first two bytes of a frame may be; `within`: a message in pieces is being received."""
    opcode, is_last, length = first & 15, first >= 0x80, second & 127
    if first & 0x70 or second < 0x80:
        return False
    if opcode >= CLOSE:
        return opcode <= PONG and is_last and length <= CONTROL_BYTES
    return opcode == 0 if within else opcode in (TEXT, BINARY)


def _check_close(payload: bytes) -> None:
    if not payload:
        return
    if len(payload) == 1 or int.from_bytes(payload[:2], "big") not in _CLOSE_CODES:
        raise Violation(PROTOCOL_ERROR, "the close frame has no valid status")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise Violation(NOT_UTF8, "the reason of the close frame is not valid UTF-8") from None
