"""What may be asked again, and when [U-21]. Pure; any thread.

    not sent                    the connection was refused, or ended before anything was sent: always
    sent, no answer             only what does no harm twice: reads, and what carries a key or says what should be
    502, 504 of a proxy         the same: the server behind it may have done it
    429, 503                    nothing was done: always, where waiting helps; not sooner than `Retry-After` says

What carries a key is asked again only for as long as a server remembers keys, counted from when it may first have been
done: later, it would be done twice.

Waiting helps against load, a replay and a restart. It does not against a limit that stays reached, a full disk or a log
that is read-only until somebody looks at it: those are told at once, as a store in the same process would.

The first connection of a client is not retried: a wrong address should be told at once. After that, an outage may last
up to a minute: so long after a request first failed it is made again, and each time its answer is waited for as long as
is left of that.
"""

from __future__ import annotations

import math
import random
from typing import Final, NamedTuple

import msgspec

from topics.client.http1 import Answer, Request

BUDGET_S: Final = 60.0
FIRST_S: Final = 0.05
LONGEST_S: Final = 2.0
LEAST_S: Final = 1.0
"""So long an answer is always waited for."""
KNOWN_S: Final = 100.0
"""So long a key is good for: servers remember them for 120 s, unless their topic says otherwise [IDM-1]."""
_PASSING_LIMITS: Final = frozenset({"max_inflight_per_key", "max_buffered_bytes", "max_connections"})
_PASSING_STATES: Final = frozenset({"replaying", "cold"})


class Fault(NamedTuple):
    """No answer came."""

    message: str
    sent: bool
    """Whether anything of the request may have reached the server."""
    stale: bool = False
    """It was a kept connection that the server had closed: a new one is worth a try at once."""


class Outage:
    """One stretch of failures. Ask `wait_s` after each; None: it is to be told."""

    def __init__(self, *, met: bool, budget_s: float = BUDGET_S) -> None:
        self._met = met
        self._budget_s = budget_s
        self._began_s: float | None = None
        self._next_s = FIRST_S
        self._was_stale = False

    def over(self) -> None:
        """It works again."""
        self._began_s, self._next_s, self._was_stale = None, FIRST_S, False

    def wait_s(self, request: Request, outcome: Answer | Fault, now_s: float) -> float | None:
        """How long to wait before the request is made again."""
        if isinstance(outcome, Fault):
            if outcome.sent and not request.repeatable:
                return None
            if outcome.stale and not self._was_stale:
                self._was_stale = True
                return 0.0
            return self._pause(0.0, now_s) if self._met else None
        if may_be_done(outcome):
            return self._pause(_seconds(outcome), now_s) if request.repeatable and self._met else None
        asked_s = asked_to_wait(outcome)
        return None if asked_s is None else self._pause(asked_s, now_s)

    def left_s(self, now_s: float) -> float:
        """How long the answer to a request that is made again may take."""
        return math.inf if self._began_s is None else max(self._began_s + self._budget_s - now_s, LEAST_S)

    def _pause(self, least_s: float, now_s: float) -> float | None:
        if self._began_s is None:
            self._began_s = now_s
        pause_s = max(least_s, self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(self._next_s * 2, LONGEST_S)
        return pause_s if now_s + pause_s - self._began_s <= self._budget_s else None


class _Told(msgspec.Struct):
    code: str
    detail: dict[str, msgspec.Raw] | None = None


class _Envelope(msgspec.Struct):
    error: _Told


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def may_be_done(outcome: Answer | Fault) -> bool:
    """Whether the request reached a server of which nobody heard what it did."""
    if isinstance(outcome, Fault):
        return outcome.sent
    return outcome.status in (502, 504)


def asked_to_wait(answer: Answer) -> float | None:
    """The seconds that a server asks a client to wait; None where waiting is not the answer."""
    if answer.status not in (429, 503):
        return None
    try:
        told = _ENVELOPE.decode(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _seconds(answer)  # a proxy in front of the server
    detail = told.detail or {}
    if told.code == "throttled" and "limit" in detail and _text(detail["limit"]) not in _PASSING_LIMITS:
        return None
    if told.code == "not_ready" and _text(detail.get("state")) not in _PASSING_STATES:
        return None
    return _seconds(answer)


def _text(raw: msgspec.Raw | None) -> str:
    return bytes(raw).decode().strip('"') if raw is not None else ""


def _seconds(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
