"""The console's files: served from memory, whoever asks, by their exact names (02 API-28, 11 §4).

    GET /  GET /console         302 to /console/
    GET /console/{file}         the file; `index.html` where nothing follows

All of `console/` is read once, aside, when the first of them is asked for. A request only ever looks a name up in that
table, so that no path leads anywhere else. The files hold no data and need no key [IDX-1]; nothing in them may come
from elsewhere or stand inline, which is what the policy tells browsers [U-31]. Event loop only, but for reading.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from topics.fs import read_regular
from topics.server.exchange import Exchange, Headers
from topics.server.failure import NOT_FOUND, Refused

FOLDER: Final = os.path.join(os.path.dirname(__file__), "console")
HOME: Final = b"/console/"
INDEX: Final = "index.html"
FILE_BYTES_MAX: Final = 1 << 20
TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""What is not one of these is not served: lists, licences and types lie beside what they are about."""
POLICY: Final = b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
HEADERS: Final[Headers] = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
)


class File(NamedTuple):
    """One of them."""

    body: bytes
    content_type: bytes
    etag: bytes
    """Strong: another one for other bytes."""


_found: dict[str, File] = {}


def read_files(folder: str = FOLDER) -> dict[str, File]:
    """Every file that is served, by its path below the folder; any thread."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            content_type = TYPES.get(os.path.splitext(name)[1])
            if content_type is not None:
                path = os.path.join(here, name)
                body = read_regular(path, FILE_BYTES_MAX).data
                etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
                found[os.path.relpath(path, folder).replace(os.sep, "/")] = File(body, content_type, etag)
    return found


def home(exchange: Exchange) -> None:
    """`GET /` and `GET /console`."""
    exchange.reply(302, b"", b"", ((b"location", HOME), *HEADERS))


def file(exchange: Exchange) -> None:
    """`GET /console/{file}`."""
    if _found:
        _tell(exchange, _found)
        return

    def read(outcome: dict[str, File] | OSError) -> None:
        try:
            if isinstance(outcome, OSError):
                raise outcome
            _found.update(outcome)
            _tell(exchange, _found)
        except (Refused, OSError) as error:
            exchange.fail(error)

    exchange.apart(_read, read)


def _read() -> dict[str, File] | OSError:
    try:
        return read_files()
    except OSError as error:
        return error


def _tell(exchange: Exchange, files: Mapping[str, File]) -> None:
    one = files.get(exchange.match.params.get("file", "") or INDEX)
    if one is None:
        raise Refused(NOT_FOUND)
    headers = ((b"etag", one.etag), *HEADERS)
    if _is_known(exchange.headers.get(b"if-none-match"), one.etag):
        exchange.reply(304, b"", b"", headers)
    else:
        exchange.reply(200, one.body, one.content_type, headers)


def _is_known(given: bytes | None, etag: bytes) -> bool:
    """Whether the client has these very bytes; a weak tag is as good, as bodies are compared whole."""
    if given is None:
        return False
    tags = [tag.strip().removeprefix(b"W/") for tag in given.split(b",")]
    return etag in tags or b"*" in tags
