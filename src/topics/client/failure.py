"""Errors that a server told, as the exceptions that a store in this process raises: the other side of
`server/failure` (02 §1.6) [U-20].

The code and, where causes share one, the detail choose the class; the message and the members of the detail are the
server's. What has no class is a `ServerError` with the server's code. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from topics import errors
from topics.client.http1 import Answer
from topics.errors import TopicsError

Detail = Mapping[str, Any]

_FIELDS: Final[dict[str, tuple[type[TopicsError], tuple[str, ...]]]] = {
    "batch_too_large": (errors.BatchTooLarge, ("count", "max")),
    "record_too_large": (errors.RecordTooLarge, ("size", "max")),
    "unauthorized": (errors.Unauthorized, ()),
    "forbidden": (errors.Forbidden, ("topic",)),
    "topic_not_found": (errors.TopicNotFound, ("topic",)),
    "router_not_found": (errors.RouterNotFound, ("router",)),
    "producer_gap": (errors.ProducerGap, ("epoch", "index")),
    "txn_committed": (errors.TxnCommitted, ("version",)),
    "txn_incomplete": (errors.TxnIncomplete, ("missing",)),
    "txn_conflict": (errors.TxnConflict, ("part", "expected")),
    "router_cycle": (errors.RouterCycle, ("cycle",)),
    "topic_not_empty": (errors.TopicNotEmpty, ("topic", "count")),
    "not_a_queue": (errors.NotAQueue, ("topic",)),
    "payload_too_large": (errors.PayloadTooLarge, ()),
    "topic_full": (errors.TopicFull, ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq")),
    "shutting_down": (errors.EngineClosed, ()),
    "invalid_request": (errors.CallerError, ()),
}
_STATES: Final[dict[str, type[TopicsError]]] = {
    "read_only": errors.ShardReadOnly,
    "full": errors.StorageFull,
    "cold": errors.StoreUnavailable,
}


def _incompatible(message: str, detail: Detail) -> TopicsError:
    reason = detail.get("reason")
    if reason == "router_dest_fan_in":
        # Which source it is, the message says, and only that [RTR-16].
        return _made(errors.RouterFanIn, message, {"source": "", **detail}, ("topic", "source", "reason"))
    if reason == "router_repoint_forbidden":
        names = ("router", "existing_source", "existing_dest", "reason")
        return _made(errors.RouterRepoint, message, detail, names)
    return _made(errors.TopicExistsIncompatible, message, detail, ("topic", "existing_type", "requested_type"))


def _throttled(message: str, detail: Detail) -> TopicsError:
    if "limit" in detail:
        return _made(errors.LimitReached, message, detail, ("limit", "max"))
    return _made(errors.WalFull, message, {"retry_after_ms": 100, **detail}, ("retry_after_ms",))


def _not_ready(message: str, detail: Detail) -> TopicsError:
    kind = _STATES.get(str(detail.get("state")), errors.TimingError)
    return _made(kind, message, detail, tuple(name for name in ("state", "replay_progress") if name in detail))


_SHARED: Final[dict[str, Callable[[str, Detail], TopicsError]]] = {
    "topic_exists_incompatible": _incompatible,
    "throttled": _throttled,
    "not_ready": _not_ready,
}


def _made(kind: type[TopicsError], message: str, detail: Detail, names: tuple[str, ...]) -> TopicsError:
    """An exception with the server's words: what its constructor would say is known here only in part."""
    error = kind.__new__(kind, message)
    for name in names:
        setattr(error, name, detail.get(name))
    return error


def of(code: str, message: str, detail: object, status: int = 0) -> TopicsError:
    """The exception that a code stands for."""
    told: Detail = detail if isinstance(detail, dict) else {}
    if code == "internal" and told.get("state") == "commit_failed":
        return _made(errors.CommitFailed, message, told, ("state",))
    if code in _SHARED:
        return _SHARED[code](message, told)
    if code in _FIELDS:
        kind, names = _FIELDS[code]
        return _made(kind, message, _counted(told), names)
    return errors.ServerError(status, code, message, detail)


def _counted(detail: Detail) -> Detail:
    """Queue calls tell how many seqs were too many under that name [ACK-1]."""
    return {**detail, "count": detail["seqs"]} if "seqs" in detail else detail


class _Told(msgspec.Struct):
    code: str
    message: str
    detail: Any = None


class _Envelope(msgspec.Struct):
    error: _Told


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def told(answer: Answer) -> TopicsError:
    """The exception of an answer that is an error."""
    try:
        error = _ENVELOPE.decode(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return errors.Unreachable(f"what answers there is no topics server: status {answer.status}")
    return of(error.code, error.message, error.detail, answer.status)
