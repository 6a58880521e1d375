"""Where requests begin and end in the bytes of an HTTP/1.1 connection (RFC 9112), strictly [API-25, 13 §5].

    HeadReader    bytes up to the blank line → Head; httptools judges the grammar but that of methods, this the rest
    ChunkReader   chunked coding → body bytes; size lines, extensions and trailers are checked and dropped

httptools sees heads only. Lengths are counted here, so that nothing depends on what a parser thinks an `Upgrade` or a
`Connection: close` does to the bytes behind it. Both readers take bytes as they come, cut anywhere, and say how far
they got. What is no request is `Malformed`, and nothing of it may be executed. Pure; no sockets, no clock.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from topics.server.exchange import Head
from topics.server.failure import TOO_LARGE, Failure

HEAD_BYTES: Final = 64 << 10
FIELDS: Final = 128
FRAMING_BYTES: Final = 16 << 10
"""Chunk framing may be that much and as many bytes as the body so far (13 §5)."""
LINE_BYTES: Final = 64 << 10
"""And no single line of it may be longer."""

BAD_REQUEST = Failure(400, "invalid_request", "this is not an HTTP/1.1 request")
HEAD_TOO_LARGE = Failure(431, "headers_too_large", "the request head is larger than the server accepts")

_METHODS = tuple(b"%b " % method for method in (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT"))
"""What httptools is shown as it is."""
_INSTEAD: Final = b"GET"
"""What it is shown of other methods: it knows some, and refuses the others, which are 405 [API-21]."""
METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VERSIONS = (b" HTTP/1.1", b" HTTP/1.0")
_ONE = ord("1")
_LENGTH_DIGITS: Final = 20
_OVERFLOW: Final = "Content-Length overflow"
"""What httptools says of a length that no 64 bits hold."""
_BLANK_LINES = re.compile(rb"(?:\r\n)*")
HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://[^/?]+", re.IGNORECASE)
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class Malformed(Exception):
    """Not a request: answered with its failure, then the connection ends."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class HeadReader:
    """Reads head after head of one connection. It is its own httptools protocol."""

    def __init__(self) -> None:
        self._parser: httptools.HttpRequestParser | None = None
        self._seen = b""
        """What came of this head, when it came in pieces."""
        self._after_cr = False
        self._method = b""
        """Of this head, once it is known."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._complete = False
        self.keep_alive = False
        self.is_11 = False
        """Of the last head; else it was HTTP/1.0."""
        """Whether the connection may go on after the request whose head was read last."""

    @property
    def has_begun(self) -> bool:
        """Whether something of a head has come, and not yet all of it."""
        return bool(self._seen)

    @property
    def is_fresh(self) -> bool:
        """Whether the next byte is the first of a head."""
        return not self._seen and not self._after_cr

    @property
    def origin(self) -> bytes | None:
        """The Origin of a head that is not complete, or is refused, if it was seen."""
        return self._headers.get(b"origin")

    def read(self, data: bytes, at: int) -> tuple[int, Head | None]:
        """Take bytes from `at` on: how far it got, and the head once it is complete."""
        if not self._seen:
            if self._after_cr or data[at] <= 13:
                at = self._skip_blank_lines(data, at)
                if at == len(data):
                    return at, None
            end = data.find(b"\r\n\r\n", at)
            if end >= 0:
                end += 4
                return end, self._read_whole(data[at:end])
        return self._read_piece(data, at)

    def close(self) -> None:
        """The connection is gone; lets go of the parser, which refers back."""
        self._parser = None

    def _skip_blank_lines(self, data: bytes, at: int) -> int:
        """Empty lines before a request line are none of it (RFC 9112 §2.2)."""
        if self._after_cr:
            self._after_cr = False
            if data[at] != 10:
                raise Malformed(BAD_REQUEST)
            at += 1
        found = _BLANK_LINES.match(data, at)
        assert found is not None
        at = found.end()
        if at == len(data) - 1 and data[at] == 13:
            self._after_cr = True
            return at + 1
        if at < len(data) and data[at] <= 13:
            raise Malformed(BAD_REQUEST)
        return at

    def _read_whole(self, head: bytes) -> Head:
        is_plain = self._parse(head[:HEAD_BYTES], 0)
        if len(head) > HEAD_BYTES:
            raise Malformed(HEAD_TOO_LARGE)
        return self._judged(head, is_plain)

    def _read_piece(self, data: bytes, at: int) -> tuple[int, Head | None]:
        """One more piece of a head that comes in several; what cannot become a request is told at once."""
        before = len(self._seen)
        seen = self._seen + data[at : at + HEAD_BYTES + 1]
        end = seen.find(b"\r\n\r\n", max(before - 3, 0))
        size = len(seen) if end < 0 else end + 4
        is_plain = self._parse(seen[: min(size, HEAD_BYTES)], before)
        if size > HEAD_BYTES:
            raise Malformed(HEAD_TOO_LARGE)
        if end < 0:
            line_end = seen.find(b"\r\n")
            if line_end >= 0 and not seen.endswith(_VERSIONS, 0, line_end):
                raise Malformed(BAD_REQUEST)
            self._seen = seen
            return len(data), None
        self._seen = b""
        return at + size - before, self._judged(seen[:size], is_plain)

    def _parse(self, head: bytes, before: int) -> bool:
        """Have what came since `before` checked; False when the parser took the head for an upgrade."""
        if self._method:
            piece = head[before:]
        else:
            end = head.find(b" ")
            method = head if end < 0 else head[:end]
            if not METHOD.fullmatch(method):
                raise Malformed(BAD_REQUEST)
            if end < 0:
                return True
            self._method = method
            piece = head if head.startswith(_METHODS) else _INSTEAD + head[end:]
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return False
        except httptools.HttpParserError as error:
            raise Malformed(TOO_LARGE if str(error) == _OVERFLOW else BAD_REQUEST) from None
        return True

    def on_url(self, url: bytes) -> None:
        """Called by httptools, maybe with a part of it."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each field."""
        self._fields += 1
        if self._fields > FIELDS:
            return  # refused when the head is complete; until then nothing more is kept
        name, value = name.lower(), value.strip()
        headers = self._headers
        headers[name] = value if name not in headers else headers[name] + b", " + value

    def on_headers_complete(self) -> None:
        """Called by httptools."""
        assert self._parser is not None
        self._complete = True
        self.keep_alive = self._parser.should_keep_alive()

    def _judged(self, head: bytes, is_plain: bool) -> Head:
        """What httptools lets through and HTTP, or [API-25], does not."""
        target, headers, parser = self._target, self._headers, self._parser
        assert parser is not None
        if not self._complete:
            raise Malformed(BAD_REQUEST)
        if self._fields > FIELDS:
            raise Malformed(HEAD_TOO_LARGE)
        method, self._method = self._method.decode("ascii"), b""
        line_end = head.find(b"\r\n")
        if not head.endswith(_VERSIONS, 0, line_end):
            raise Malformed(BAD_REQUEST)
        is_11 = self.is_11 = head[line_end - 1] == _ONE
        host = headers.get(b"host")
        # Two fields were joined by a comma and a space, which no host has.
        if (host is None and is_11) or (host is not None and HOST.fullmatch(host) is None):
            raise Malformed(BAD_REQUEST)
        length = _body_length(headers, is_11)
        expects = is_11 and length != 0 and headers.get(b"expect", b"").lower() == b"100-continue"
        self._target, self._headers, self._fields, self._complete = b"", {}, 0, False
        if length != 0 or not is_plain or not self.keep_alive:
            self._parser = None  # it waits for a body that it will not see, or for nothing any more
        self.keep_alive = self.keep_alive and is_11
        if not is_11:
            headers.pop(b"upgrade", None)  # it means nothing there (RFC 9110 §7.8)
        return Head(method, _origin_form(method, target), headers, length, expects)


def _body_length(headers: dict[bytes, bytes], is_11: bool) -> int | None:
    length = headers.get(b"content-length")
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if not is_11 or length is not None or coding.lower() != b"chunked":
            raise Malformed(BAD_REQUEST)
        return None
    if length is None:
        return 0
    size = length_of(length)
    if size is None:
        raise Malformed(BAD_REQUEST)
    return size


def length_of(value: bytes) -> int | None:
    """What a Content-Length says, None if it is none; beyond 64 bits it is just too large [API-15]."""
    if not value.isdigit():
        return None
    digits = value.lstrip(b"0") or b"0"
    return int(digits) if len(digits) <= _LENGTH_DIGITS else 10**_LENGTH_DIGITS


def _origin_form(method: str, target: bytes) -> bytes:
    """The path and query of a target in whichever form; CONNECT has none."""
    if b"#" in target or method == "CONNECT":
        raise Malformed(BAD_REQUEST)
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        raise Malformed(BAD_REQUEST)
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


class ChunkReader:
    """Reads one chunked body. Lines end with CRLF and nothing else."""

    def __init__(self) -> None:
        self.is_complete = False
        self.size = 0
        """Of the body so far."""
        self._framing = 0
        self._left = 0
        """Of the chunk being read."""
        self._expected = "size"
        self._held = b""
        """A line as far as it came."""

    def read(self, data: bytes, at: int, parts: list[bytes], lines_max: int) -> int:
        """Take bytes from `at` on, add the body's to `parts`: how far it got. Stops after so many lines."""
        size = len(data)
        while at < size and not self.is_complete and lines_max > 0:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self.size += len(part)
                continue
            end = data.find(b"\n", at) + 1
            if not end:
                self._hold(data[at:])
                return size
            line = data[at:end] if not self._held else self._held + data[at:end]
            self._held = b""
            at = end
            lines_max -= 1
            self._take(line)
        return at

    def _hold(self, piece: bytes) -> None:
        held = self._held = self._held + piece
        plausible = b"\r\n".startswith(held) if self._expected == "end" else held[0] > 32 or held == b"\r"
        if not plausible or len(held) > LINE_BYTES or self._framing + len(held) > FRAMING_BYTES + self.size:
            raise Malformed(BAD_REQUEST)

    def _take(self, line: bytes) -> None:
        self._framing += len(line)
        if self._framing > FRAMING_BYTES + self.size or len(line) > LINE_BYTES:
            raise Malformed(BAD_REQUEST)
        if self._expected == "size":
            found = _SIZE_LINE.fullmatch(line)
            if found is None:
                raise Malformed(BAD_REQUEST)
            self._left = int(found[1], 16)
            self._expected = "end" if self._left else "trailer"
        elif line == b"\r\n":
            self.is_complete = self._expected == "trailer"
            self._expected = "size"
        elif self._expected == "end" or _TRAILER_LINE.fullmatch(line) is None:
            raise Malformed(BAD_REQUEST)
