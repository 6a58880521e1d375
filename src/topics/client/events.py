"""Watching without I/O: server-sent events taken apart, and a watch that survives its connections (03) [U-21].

    EventParser    bytes → frames, whatever pieces they come in
    Watching       which request opens the stream now, what its frames mean, where each topic stands

The server keeps a session per watch: a stream that breaks is opened again with the cursors of the last whole frame, and
goes on behind it [RSM-3]. A session that the server has forgotten, after a restart, is made anew with the same cursors.
Either way nothing is lost, and what was taken is not taken again. One thread at a time.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from topics.client import answers, body
from topics.client.http1 import Answer, Request
from topics.client.protocol import Call, Opening, Pause, Protocol
from topics.client.retry import FIRST_S, LONGEST_S, Outage
from topics.codec import rendered
from topics.errors import TopicNotFound, Unreachable
from topics.interrupts import unbroken
from topics.model import Event, TopicDeleted, TopicRecord
from topics.surface.watch import From, starts

HEARTBEAT_MS: Final = 10_000
FORGOTTEN_MAX: Final = 5
"""Sessions in a row that were unknown as soon as they were made: there is more than one server behind the address."""


class Frame(NamedTuple):
    """One event of a stream."""

    id: str
    event: str
    data: str


class EventParser:
    """Frames out of the bytes of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self.retry_ms = 2000

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now; comments, which are heartbeats, are none."""
        whole, mark, self._rest = (self._rest + data).rpartition(b"\n\n")
        if not mark:
            return []
        found = (self._frame(block) for block in whole.decode("utf-8", "replace").split("\n\n"))
        return [one for one in found if one is not None]

    def _frame(self, block: str) -> Frame | None:
        members: dict[str, str] = {}
        for line in block.split("\n"):
            name, colon, value = line.partition(":")
            if name and colon:
                members[name] = value.removeprefix(" ")
        retry = members.get("retry", "")
        if retry.isascii() and retry.isdigit():
            self.retry_ms = min(int(retry), 60_000)
        if "event" not in members:
            return None
        return Frame(members.get("id", ""), members["event"], members.get("data", ""))


def id_of(cursors: Mapping[str, int]) -> str:
    """The id of a frame behind which topics stand there [RSM-1]."""
    return base64.urlsafe_b64encode(msgspec.json.encode(dict(sorted(cursors.items())))).rstrip(b"=").decode()


def cursors_of(id: str) -> dict[str, int]:
    """Where each topic stands behind a frame [RSM-1]; nothing if it does not say."""
    try:
        raw = base64.b64decode(id + "=" * (-len(id) % 4), altchars=b"-_", validate=True)
        return _CURSORS.decode(raw)
    except (binascii.Error, ValueError):
        return {}


class _Watched(msgspec.Struct):
    from_seq: int


class _Session(msgspec.Struct):
    wid: str
    topics: dict[str, _Watched]


class _Error(msgspec.Struct):
    code: str | int
    message: str = ""


_SESSION: Final = msgspec.json.Decoder(_Session)
_ERROR: Final = msgspec.json.Decoder(_Error)
_CURSORS: Final = msgspec.json.Decoder(dict[str, int])


class Watching:
    """One watch over its whole life."""

    def __init__(
        self,
        protocol: Protocol,
        topics: Mapping[str, From],
        *,
        node: str | Iterable[str] | None = None,
        consistency: str = "eventual",
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        self.cursors: dict[str, int] = {}
        """Up to where each topic has been taken; a watch that begins there goes on."""
        self.answer_s = 2 * heartbeat_ms / 1000 + 5
        """So long a stream may be silent [FRM-13]."""
        self._protocol = protocol
        self._starts = starts(topics)
        self._asked = {
            "node": body.listed(node, "node"), "heartbeat_ms": heartbeat_ms, "include_tags": True,
            "consistency": consistency,
        }  # fmt: skip
        self._left: set[str] = set(self._starts)
        self._ready: deque[tuple[Event, dict[str, int]]] = deque()
        self._parsed: dict[str, int] = {}
        """Up to where frames have come, taken or not."""
        self._wid = ""
        self._forgotten = 0
        self._outage = Outage(met=True, budget_s=protocol.retry_s)
        self._parser = EventParser()
        self._pause_s = 0.0
        self._barren = 0
        """Streams in a row that ended before a frame came."""
        self._barren_s = 0.0

    @property
    def is_over(self) -> bool:
        """Nothing is left to be watched."""
        return not self._left

    def next(self) -> Event | None:
        """The next event that is here; its place is counted as reached."""
        if not self._ready:
            return None
        # No call in here: a signal strikes before all of it or behind all of it.
        event, places = self._ready[0]
        del self._ready[0]
        self.cursors |= places
        return event

    # -- the connection ----------------------------------------------------------------------------------------------

    def begin(self) -> Call[None]:
        """Make the first session; a topic that is not there is an error."""
        yield from self._make_session(first=True)

    def connect(self) -> Call[None]:
        """Have a stream opened, however long that takes; returns when it is open, or nothing is left to watch."""
        pause_s, self._pause_s = max(self._pause_s, self._rest_s()), 0.0
        if pause_s:
            yield Pause(pause_s)
        while self._left:
            if not self._wid:
                yield from self._make_session()
                continue
            request = self._request()
            heard = yield Opening(request)
            assert heard is not None
            outcome = heard.outcome
            if isinstance(outcome, Answer) and outcome.status == 200:
                self._parser = EventParser()
                self._barren += 1
                return
            if isinstance(outcome, Answer) and outcome.status == 404 and self._forgotten < FORGOTTEN_MAX:
                self._forgotten += 1
                self._wid = ""
                continue
            wait_s = self._outage.wait_s(request, outcome, heard.now_s)
            if wait_s is None:
                raise self._protocol.failed(outcome)
            yield Pause(wait_s)

    def _rest_s(self) -> float:
        """How long a server, or what is in between, is left in peace that ends streams as soon as they begin."""
        if self._barren < 2:
            return 0.0
        pause_s = min(FIRST_S * (1 << min(self._barren, 10)), LONGEST_S)
        self._barren_s += pause_s
        if self._barren_s > self._protocol.retry_s:
            raise Unreachable(f"streams of {self._protocol.address.url} end as soon as they begin")
        return pause_s

    def _request(self) -> Request:
        # Also of the first frame, which may be lost on its way: the server takes what it has sent for taken [RSM-5].
        headers = (("accept", "text/event-stream"), ("last-event-id", id_of(self._parsed)))
        return Request("GET", f"/v0/watch/{quote(self._wid, safe='')}", None, headers, True, self.answer_s)

    def _make_session(self, *, first: bool = False) -> Call[None]:
        wanted = {name: self._start(name) for name in sorted(self._left)}
        path = "/v0/watch" if first else "/v0/watch?lenient=true"
        request = Request("POST", path, body.encoded({"topics": wanted, **self._asked}))
        told = answers.decoded((yield from self._protocol.ask(request)), _SESSION)
        unbroken(partial(self._note_session, told, wanted, first))

    def _note_session(self, told: _Session, wanted: Collection[str], first: bool) -> None:
        self._wid = told.wid
        for name in set(wanted) - told.topics.keys():
            if first:
                raise TopicNotFound(name)
            self._left.discard(name)
            self._ready.append((TopicDeleted(name), {}))
        for name, place in told.topics.items():
            if name not in self._parsed:
                self._parsed[name] = self.cursors[name] = place.from_seq

    def _start(self, name: str) -> dict[str, object]:
        known = self._parsed.get(name, self._starts[name])
        return {"tail": True} if known == "tail" else {"from_seq": known}

    # -- frames ------------------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """What came on the open stream."""
        unbroken(partial(self._take_all, data))

    def _take_all(self, data: bytes) -> None:
        self._outage.over()
        self._forgotten = 0
        for frame in self._parser.feed(data):
            self._barren, self._barren_s = 0, 0.0
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.event == "error":
            self._take_error(frame)
            return
        try:
            found = rendered.events(frame.event, frame.data)
        except ValueError as error:
            raise Unreachable(f"what answers there is no topics server: {error}") from error
        after = cursors_of(frame.id)
        for event in found:
            if isinstance(event, TopicRecord):
                if event.seq <= self._parsed.get(event.topic, 0):
                    continue  # it was here before
                self._ready.append((event, {event.topic: event.seq}))
            else:
                if isinstance(event, TopicDeleted):
                    self._left.discard(event.topic)
                self._ready.append((event, {}))
        self._parsed |= {name: seq for name, seq in after.items() if name in self._parsed}
        if self._ready and found:
            event, places = self._ready.pop()
            self._ready.append((event, places | {name: after[name] for name in after if name in self._parsed}))

    def _take_error(self, frame: Frame) -> None:
        """What the server says before it ends a stream [FRM-9]."""
        try:
            code = _ERROR.decode(frame.data).code
        except ValueError:
            return
        if code == "server_shutting_down":
            self._pause_s = self._parser.retry_ms / 1000
        elif code == 410:
            self._wid = ""
