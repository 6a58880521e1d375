"""HTTP/1.1 as a client speaks it: a request as bytes, an answer from bytes. No I/O; one thread at a time.

    address = Address.parse("http://127.0.0.1:4000")
    bytes   = address.head(request, token(key))     what to send
    reader  = Reading(); reader.feed(received)      until `reader.is_complete`

Parsing is `httptools`; a body that ends with the connection is taken for whole only where the answer says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from topics.errors import CallerError

ANSWER_S: Final = 60.0
"""How long an answer may take, unless the call itself waits."""
HEAD_BYTES_MAX: Final = 1 << 16
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Request(NamedTuple):
    """What is asked."""

    method: str
    path: str
    """With its query, percent-encoded."""
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = True
    """Whether it does no harm to ask again, not knowing whether it was done [U-21]."""
    answer_s: float = ANSWER_S
    """How long the answer may take."""
    content_type: str = "application/json"
    known_s: float = math.inf
    """How long after it was done the server still knows it again."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class NotHttp(Exception):
    """Bytes that are no answer."""


class Address(NamedTuple):
    """Where a server is."""

    url: str
    secure: bool
    host: str
    port: int
    base: str
    """Path in front of every path, without a slash behind it."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in a URL; `CallerError` for what is none."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise CallerError(f"{url!r} is no address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CallerError(f"{url!r} is no address of a server: use http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None or parts.password is not None:
            raise CallerError("a URL with a password in it is refused: keys are given apart from it")
        if parts.query or parts.fragment or not _is_plain(parts.netloc + parts.path):
            raise CallerError(f"{url!r} is no address of a server: it has a query, a fragment or a blank")
        secure = parts.scheme == "https"
        base = parts.path.rstrip("/")
        host = parts.hostname
        shown = f"[{host}]" if ":" in host else host
        port = (443 if secure else 80) if port is None else port
        return cls(f"{parts.scheme}://{shown}:{port}{base}", secure, host, port, base)

    def head(self, request: Request, token: str | None) -> bytes:
        """Everything of a request but its body; `CallerError` for a path that would end its line early."""
        if not request.path.startswith("/") or not _is_plain(request.method + request.path):
            raise CallerError(f"{request.method} {request.path!r} is no request: the path begins with / and is encoded")
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{request.method} {self.base}{request.path} HTTP/1.1", f"host: {host}:{self.port}"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        if request.body is not None:
            lines += [f"content-type: {request.content_type}", f"content-length: {len(request.body)}"]
        lines += [f"{name}: {value}" for name, value in request.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def token(key: str) -> str:
    """A key as heads, which are latin-1, have it: the bytes of its UTF-8 [KEY-1]; `CallerError` for what is no key.

    None of those bytes but a control character of ASCII could end a line. The error does not repeat the key.
    """
    if _CONTROL.search(key) or key.strip() != key:
        raise CallerError("a key has no control characters, and no blanks around it")
    try:
        return key.encode().decode("latin-1")
    except UnicodeEncodeError:
        raise CallerError("a key is text that UTF-8 can spell") from None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


class Reading:
    """One answer, as its bytes come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_head_complete = False
        self.is_complete = False
        self.keeps_alive = False
        """Whether the connection may be used again."""
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take what was received; `NotHttp` if it is no answer."""
        if not self.is_head_complete:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NotHttp(str(error)) from None
        if not self.is_head_complete and self._head_bytes > HEAD_BYTES_MAX:
            raise NotHttp("the head of the answer does not end")

    def ended(self) -> None:
        """The other side sends no more; `NotHttp` if something is missing."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.is_complete and (framed or not self.is_head_complete):
            raise NotHttp("the connection ended in the middle of an answer")
        self.is_complete, self.keeps_alive = True, False

    def taken(self) -> bytes:
        """The body as far as it is here and was not taken yet."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def answer(self) -> Answer:
        """The whole."""
        return Answer(self.status, self.headers, self.taken())

    # -- called by the parser ----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_head_complete = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # something in between: the answer is still to come
            self.is_head_complete = False
            self.headers.clear()
            return
        self.is_complete = True
        self.keeps_alive = self._parser.should_keep_alive()
