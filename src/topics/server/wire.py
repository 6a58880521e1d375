"""Bodies in and out: strict decoding, compact encoding, parameters, list cursors (02 §1.3, §1.4, §1.7, §1.8).

Pure functions; any thread.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from topics.server.describe import U64, about
from topics.server.failure import bad_request

T = TypeVar("T")

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
CURSOR_MAX: Final = 512
"""Characters; the token of the longest name has fewer."""

_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)

encode = msgspec.json.Encoder().encode


class Performance(msgspec.Struct):
    """How long it took (02 §1.7)."""

    server_total_ms: Annotated[float, about("handling time", {"minimum": 0})]


class WritePerformance(Performance):
    """How long a write took."""

    wal_append_ms: Annotated[float | msgspec.UnsetType, about("time to enqueue into the log")] = msgspec.UNSET
    fsync_ms: Annotated[float | msgspec.UnsetType, about("time spent waiting for the sync")] = msgspec.UNSET
    throttle_wait_ms: Annotated[
        float | msgspec.UnsetType, about("time spent waiting for room in the log, when it was full")
    ] = msgspec.UNSET


class ReadPerformance(Performance):
    """How long a read took."""

    records_scanned: Annotated[int, about("seqs examined, delivered and skipped", U64)]
    cold_segments_read: Annotated[
        int | msgspec.UnsetType, about("records that were fetched from the cold tier; absent when none was", U64)
    ] = msgspec.UNSET


def decode(decoder: msgspec.json.Decoder[T], body: bytes | bytearray) -> T:
    """A body of a known shape; whatever is wrong with it is 400 [API-11]."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise bad_request("the JSON is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise bad_request(str(error)) from None


def media_type(content_type: bytes) -> bytes:
    """Without parameters, in lower case."""
    return content_type.partition(b";")[0].strip().lower()


def timed(body: bytes, total_ms: float, more: bytes = b"") -> bytes:
    """An object's bytes with the performance block as its last member (02 §1.7)."""
    return b"%b,%b}" % (body[:-1], performance(total_ms, more))


def performance(total_ms: float, more: bytes = b"") -> bytes:
    """The member of that name; `more` are those of its members that not every answer has."""
    return b'"performance":{"server_total_ms":%.3f%b}' % (total_ms, more)


def flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    """A boolean parameter; anything but true, 1, false, 0 means the default [API-18]."""
    value = query.get(name)
    if value in ("true", "1"):
        return True
    if value in ("false", "0"):
        return False
    return default


def number(query: Mapping[str, str], name: str, default: int) -> int:
    """An integer parameter; what cannot be parsed means the default [API-18]."""
    value = query.get(name, "")
    if value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return default


def page_size(query: Mapping[str, str]) -> int:
    """Clamped to 1 … 1000 [API-19]."""
    value = query.get("page_size", "")
    if not _INTEGER.fullmatch(value):
        return PAGE_DEFAULT
    if value.startswith("-"):
        return 1
    digits = value.lstrip("0")
    return PAGE_MAX if len(digits) > 4 else min(max(int(digits or "0"), 1), PAGE_MAX)


def cursor_after(name: str) -> str:
    """The token of a page that ends with a name [PAG-2]."""
    return base64.urlsafe_b64encode(encode({"after": name})).rstrip(b"=").decode()


def cursor_name(token: str) -> str:
    """The name a token ends with; empty for the first page [PAG-3]."""
    if not token:
        return ""
    if len(token) > CURSOR_MAX:
        raise bad_request("cursor is not one that a list returned")
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        value: Any = msgspec.json.decode(raw)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise bad_request("cursor is not one that a list returned") from None
    if not isinstance(value, dict) or not isinstance(value.get("after"), str):
        raise bad_request("cursor is not one that a list returned")
    return str(value["after"])
