"""What goes out: paths, and bodies as JSON. Whatever JSON has no word for is a `CallerError` before anything is sent.

Payloads are checked and spelled as a store in this process would [REC-12]; a text that was given as bytes is looked at
before it is put among others, so that it cannot pretend to be more than one value. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from topics.codec import envelope
from topics.errors import CallerError, TopicNotFound
from topics.model import NewRecord


def topic_path(name: object, *, creates: bool = False) -> str:
    """The path of a topic."""
    return _named("topics", name, CallerError("a topic's name must not be empty") if creates else TopicNotFound(""))


def router_path(name: object) -> str:
    """The path of a router."""
    return _named("routers", name, CallerError("a router's name must not be empty"))


def writer_path(id: object) -> str:
    """The path of a writer of transactions."""
    return _named("txn", id, CallerError("id must not be empty"))


def _named(kind: str, name: object, empty: Exception) -> str:
    if not isinstance(name, str):
        raise CallerError("a name must be a string")
    if not name:
        raise empty
    # What is no Unicode becomes something that no name is.
    return f"/v0/{kind}/{quote(name, safe='', errors='replace')}"


def query(members: Mapping[str, object]) -> str:
    """The query of a path; members that are None are left out."""
    given = {name: _flag(value) for name, value in members.items() if value is not None}
    return f"?{urlencode(given, errors='replace')}" if given else ""


def _flag(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def encoded(body: object) -> bytes:
    """A body; `CallerError` where JSON has no word for it."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CallerError(f"this cannot be sent as JSON: {error}") from error


def rows(records: Iterable[NewRecord]) -> list[dict[str, Any]]:
    """Records of a write, as the body has them."""
    return [_row(f"records[{at}]", one) for at, one in enumerate(records)]


def _row(where: str, record: NewRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"data": _text(f"{where}.data", record.data)}
    if record.tag is not None:
        row["tag"] = record.tag
    if record.node is not None:
        row["node"] = record.node
    if record.meta is not None:
        row["meta"] = _text(f"{where}.meta", record.meta)
    return row


def _text(where: str, value: object) -> msgspec.Raw:
    try:
        text = envelope.text_of(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise CallerError(f"{where} is not JSON: {error}") from error
    return msgspec.Raw(text)


def listed(value: object, what: str) -> Any:
    """One text or several, for a member that takes either."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bytes, dict)) or not isinstance(value, Iterable):
        raise CallerError(f"{what} must be a string or a list of strings")
    return list(value)


def items(value: object, what: str) -> list[Any]:
    """A list of whatever."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise CallerError(f"{what} must be a list")
    return list(value)
