"""Refusals on the wire: the error envelope, and the one table from exceptions to statuses (02 §1.6, 06 §21).

    {"error":{"code":"topic_not_found","message":"…","detail":{"topic":"kiln-7"}}}

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from topics import errors
from topics.errors import TopicsError

Detail = Mapping[str, Any]

_encode = msgspec.json.Encoder().encode


class Failure(NamedTuple):
    """A refusal as it goes out [ERR-1]."""

    status: int
    code: str
    message: str
    detail: Detail | None = None
    retry_after_s: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def body(self) -> bytes:
        """The envelope."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.detail is not None:
            error["detail"] = self.detail
        return _encode({"error": error})

    @property
    def is_limit(self) -> bool:
        """Whether a resource is used up [RES-2]."""
        return self.status == 429 and self.detail is not None and "limit" in self.detail

    def fields(self) -> tuple[tuple[bytes, bytes], ...]:
        """Its header fields [ERR-5]."""
        if self.retry_after_s is None:
            return self.headers
        return (*self.headers, (b"retry-after", b"%d" % self.retry_after_s))


class Refused(Exception):
    """Raised by a handler: answered with its failure, nothing was done."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def bad_request(message: str, detail: Detail | None = None) -> Refused:
    """400, the request cannot be understood [API-11]."""
    return Refused(Failure(400, "invalid_request", message, detail))


def forbidden(message: str, detail: Detail | None = None) -> Refused:
    """403, the key does not permit this."""
    return Refused(Failure(403, "forbidden", message, detail))


NOT_FOUND = Failure(404, "not_found", "there is nothing at this path")
SHUTTING_DOWN = Failure(503, "shutting_down", "the server is shutting down", retry_after_s=1)
TOO_LARGE = Failure(413, "payload_too_large", "the body is larger than the server accepts")
MEDIA_TYPE = Failure(415, "unsupported_media_type", "the body must be application/json")
UNAUTHORIZED = Failure(
    401,
    "unauthorized",
    "a valid key is needed: Authorization: Bearer <key>",
    headers=((b"www-authenticate", b"Bearer"),),
)


def replaying(progress: float) -> Failure:
    """503 until recovery is complete [API-6]."""
    share = min(max(progress, 0.0), 1.0)
    return not_ready("replaying", "the log is being replayed", 1, {"replay_progress": share})


def not_ready(state: str, message: str, retry_after_s: int, more: Detail | None = None) -> Failure:
    """503 with what the storage is in."""
    return Failure(503, "not_ready", message, {"state": state, **(more or {})}, retry_after_s)


def limit(name: str, most: int) -> Failure:
    """429 because a resource is used up [RES-2]."""
    return Failure(429, "throttled", f"{name} is reached", {"limit": name, "max": most}, 1)


def throttled(message: str, retry_after_ms: int) -> Failure:
    """429 because of load: whole seconds in the header, at least one [D-51]."""
    return Failure(429, "throttled", message, {"retry_after_ms": retry_after_ms}, max(-(-retry_after_ms // 1000), 1))


_FIELDS: dict[type[TopicsError], tuple[int, tuple[str, ...]]] = {
    errors.BatchTooLarge: (400, ()),
    errors.RecordTooLarge: (400, ()),
    errors.TopicNotFound: (404, ("topic",)),
    errors.Forbidden: (403, ("topic",)),
    errors.NotAQueue: (409, ("topic",)),
    errors.TopicNotEmpty: (409, ("topic", "count")),
    errors.TopicExistsIncompatible: (409, ("topic", "existing_type", "requested_type")),
    errors.RouterNotFound: (404, ("router",)),
    errors.PinNotFound: (404, ()),
    errors.RouterCycle: (409, ("cycle",)),
    errors.RouterFanIn: (409, ("topic", "reason")),
    errors.RouterRepoint: (409, ("router", "reason", "existing_source", "existing_dest")),
    errors.ProducerGap: (409, ("epoch", "index")),
    errors.TxnCommitted: (409, ("version",)),
    errors.TxnIncomplete: (409, ("missing",)),
    errors.TxnConflict: (409, ("part", "expected")),
    errors.TopicFull: (422, ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq")),
}
_OTHERS: dict[type[TopicsError], Callable[[Any], Failure]] = {
    errors.LimitReached: lambda e: limit(e.limit, e.max),
    errors.WalFull: lambda e: throttled(str(e), e.retry_after_ms),
    errors.CommitFailed: lambda e: Failure(500, e.code, str(e), {"state": "commit_failed"}),
    errors.ShardReadOnly: lambda e: not_ready("read_only", str(e), 30),
    errors.StorageFull: lambda e: not_ready("full", str(e), 5),
    errors.StoreUnavailable: lambda e: not_ready("cold", str(e), 1),
    errors.EngineClosed: lambda e: SHUTTING_DOWN,
    errors.WalClosed: lambda e: SHUTTING_DOWN,
}


def of(error: BaseException) -> Failure:
    """What an exception looks like on the wire; whatever is not known is 500 `internal` [ERR-6]."""
    if isinstance(error, Refused):
        return error.failure
    kind = type(error)
    if isinstance(error, TopicsError):
        if kind in _FIELDS:
            status, names = _FIELDS[kind]
            detail = {name: getattr(error, name) for name in names} if names else None
            return Failure(status, error.code, str(error), detail)
        if kind in _OTHERS:
            return _OTHERS[kind](error)
        if isinstance(error, errors.CallerError):
            return Failure(400, "invalid_request", str(error))
        return Failure(500, "internal", str(error))
    return Failure(500, "internal", errors.UNEXPECTED_TOLD)
