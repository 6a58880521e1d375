"""A client of watch streams that keeps the bytes of every frame, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import base64
import json
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
from hyperframe.frame import RstStreamFrame

from tests.api import expect
from tests.api.frames import Talk
from tests.api.kit import Running
from tests.api.rawclient import RawClient, get
from topics.testing import ManualClock


class Event(NamedTuple):
    """One frame as it came, without the empty line behind it."""

    raw: bytes

    def _line(self, name: bytes) -> bytes | None:
        for line in self.raw.split(b"\n"):
            if line.startswith(name + b": "):
                return line[len(name) + 2 :]
        return None

    @property
    def kind(self) -> str:
        """The event's name; `retry` and `hb` for what has none."""
        found = self._line(b"event")
        if found is not None:
            return found.decode()
        return {b"retry: 2000": "retry", b": hb": "hb"}[self.raw]

    @property
    def id(self) -> str:
        found = self._line(b"id")
        assert found is not None
        return found.decode()

    @property
    def cursors(self) -> dict[str, int]:
        return decoded(self.id)

    @property
    def data(self) -> dict[str, Any]:
        found = self._line(b"data")
        assert found is not None
        told: dict[str, Any] = json.loads(found)
        return told

    @property
    def seqs(self) -> list[int]:
        return [one["$seq"] for one in self.data["records"]] if self.kind == "record" else []


class Ended(Exception):
    """The stream is over."""


class Stream:
    """One open stream. `is_complete` once it has ended as it should."""

    status: int
    headers: dict[str, str]
    is_complete = False

    def __init__(self) -> None:
        self._text = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        raise NotImplementedError

    def _more(self) -> None:
        """Add to `_text`, or raise `Ended`."""
        raise NotImplementedError

    def next(self) -> Event:
        """The next frame."""
        while b"\n\n" not in self._text:
            self._more()
        raw, _, self._text = self._text.partition(b"\n\n")
        return Event(raw)

    def take(self, count: int) -> list[Event]:
        return [self.next() for _ in range(count)]

    def until(self, kind: str) -> list[Event]:
        """Frames up to the first of a kind."""
        seen = [self.next()]
        while seen[-1].kind != kind:
            seen.append(self.next())
        return seen

    def until_seq(self, seq: int) -> list[int]:
        """Seqs of records up to this one; a gap in between fails."""
        seen: list[int] = []
        while not seen or seen[-1] < seq:
            event = self.next()
            assert event.kind in ("record", "caught-up", "retry", "hb"), event
            seen += event.seqs
        return seen

    def rest(self) -> list[Event]:
        """Frames up to the end of the stream; no half of one is left."""
        seen = []
        while True:
            try:
                seen.append(self.next())
            except Ended:
                assert self._text == b""
                return seen


class Stream1(Stream):
    """Over HTTP/1.1, or 1.0."""

    def __init__(
        self, server: Running, path: str, fields: tuple[str, ...], version: str = "1.1", receive_bytes: int = 0
    ) -> None:
        super().__init__()
        self.client = RawClient(server, receive_bytes=receive_bytes).send(get(path, *fields, version=version))
        answer = self.client.answer()
        self.status, self.headers, self.body = answer.status, answer.headers, answer.body
        self._chunked = answer.headers.get("transfer-encoding") == "chunked"
        self._raw, self.client._read = self.client._read, b""

    def close(self) -> None:
        self.client.sock.close()

    def reset(self) -> None:
        """RST."""
        self.client.reset()

    def _more(self) -> None:
        if self._unwrap():
            return
        try:
            data = self.client.sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_complete = self.is_complete or not self._chunked
            raise Ended
        self._raw += data
        self._unwrap()

    def _unwrap(self) -> bool:
        """Take whole chunks; whether there was one."""
        if not self._chunked:
            self._text, self._raw, had = self._text + self._raw, b"", bool(self._raw)
            return had
        size, found, rest = self._raw.partition(b"\r\n")
        if not found or len(rest) < int(size, 16) + 2:
            return False
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if not length:
            self.is_complete = True
            assert rest[2:] == b"", "nothing follows the last chunk"
        self._text, self._raw = self._text + rest[:length], rest[length + 2 :]
        return bool(length)


class Stream2(Stream):
    """Over HTTP/2, on a connection of its own or on one that others use."""

    def __init__(self, talk: Talk, path: str, fields: tuple[str, ...] = (), id: int = 1) -> None:
        super().__init__()
        self.talk = talk
        self.stream_id = id
        pairs = [tuple(field.split(": ", 1)) for field in fields]
        talk.request(id, b"GET", path.encode(), more=[(name.lower().encode(), value.encode()) for name, value in pairs])
        talk.until(lambda: id in talk.answers and bool(talk.answers[id].status or talk.answers[id].over))
        self._answer = talk.answers[id]
        self.status = self._answer.status
        self.headers = {name.decode(): value.decode() for name, value in self._answer.headers.items()}
        if self.status != 200:
            talk.answer(id)
        self.body = self._answer.body

    def close(self) -> None:
        self.talk._sock.close()

    def reset(self) -> None:
        """RST_STREAM, and the connection stays."""

        self.talk.send(RstStreamFrame(self.stream_id, error_code=8))

    def _more(self) -> None:
        answer = self._answer
        while not answer.body and not answer.over and not self.talk.closed:
            self.talk._take()
        if not answer.body:
            self.is_complete = answer.ended
            raise Ended
        self._text, answer.body = self._text + answer.body, b""


def is_http2(client: httpx.Client) -> bool:
    return client.get("/healthz").http_version == "HTTP/2"


def watch(client: httpx.Client, *topics: str, query: str = "", **more: Any) -> dict[str, Any]:
    """Make a session of topics from their start, or as `topics` in `more` says; the answer."""
    asked = more.pop("named", None) or {name: {} for name in topics}
    return expect.ok(client.post(f"/v0/watch{query}", json={"topics": asked, **more}))


def open_stream(server: Running, http2: bool, wid: str, *fields: str, query: str = "", **more: Any) -> Stream:
    """Open the stream of a session."""
    path = f"/v0/watch/{wid}{query}"
    if http2:
        return Stream2(Talk(server, **more), path, fields)
    return Stream1(server, path, fields, **more)


def encoded(cursors: dict[str, int]) -> str:
    """A composite cursor [RSM-1]."""
    text = json.dumps(dict(sorted(cursors.items())), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decoded(id: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(base64.urlsafe_b64decode(id + "=" * (-len(id) % 4)))
    assert encoded(found) == id, "sorted, compact, without padding"
    return found


def pass_time(server: Running, clock: ManualClock, ms: int, *, sweep: bool = True) -> None:
    """Let time pass, and what is due by then happen; without the sweep, except to connections."""

    def due() -> None:
        clock.advance(ms)
        engine = server.server.app.engine
        assert engine is not None
        engine.tick()
        if sweep:
            server.server.connections.sweep()

    server.on_loop(due)


def streams(server: Running) -> int:
    """How many are open."""
    return server.on_loop(lambda: len(server.server.app.streams))


def sessions(server: Running) -> int:
    """How many are held."""
    return server.on_loop(lambda: len(server.server.app.sessions))


def until_streams(server: Running, count: int) -> None:
    """Wait until so many are open."""
    expect.until(server, lambda: len(server.server.app.streams) == count)


def close_stream(stream: Stream) -> None:
    """The client closes its connection, or its stream."""
    stream.close()


def finish_stream(stream: Stream) -> None:
    """It sends no more."""
    if isinstance(stream, Stream2):
        stream.talk.end_input()
    elif isinstance(stream, Stream1):
        stream.client.finish()


def reset_stream(stream: Stream) -> None:
    """It resets the connection, or the stream."""
    assert isinstance(stream, (Stream1, Stream2))
    stream.reset()
