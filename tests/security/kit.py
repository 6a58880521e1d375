"""Keys to try, requests sent as they are, and a disk whose syncs wait."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain, combinations
from typing import Any, NamedTuple

import httpx

from tests.api.kit import WAIT_S, Running, received
from topics.fs import File, Mode, OsFs
from topics.server.keys import ADMIN, DELETE, READ, WRITE

VERSIONS = ["http1", "http2"] if importlib.util.find_spec("topics.server.http2") else ["http1"]
"""Of HTTP that the server speaks."""

SCOPES = (READ, WRITE, DELETE, ADMIN)
SUBSETS: tuple[frozenset[str], ...] = tuple(
    frozenset(some) for some in chain.from_iterable(combinations(SCOPES, n) for n in range(1, 5))
)
ALLOWED = "plant3:"
"""The prefix of every name that the requests of the matrix use."""
FULL = "full-4f1d90"
OTHER_PREFIX = "elsewhere-77aa"
SAME_PREFIX = "here-31c6"


def key_of(scopes: Iterable[str]) -> str:
    """The secret of the key that has exactly these scopes."""
    return "only-" + "-".join(sorted(scopes)) + "-k"


KEYS = ",".join(
    [
        *(f"{key_of(scopes)}:{'+'.join(sorted(scopes))}" for scopes in SUBSETS),
        FULL,
        f"{OTHER_PREFIX}::plant4:|Plant3:|plant3:x-and-more",
        f"{SAME_PREFIX}::zzz|{ALLOWED}",
    ]
)


class Answer(NamedTuple):
    """What came back on a raw connection."""

    status: int
    headers: dict[str, str]
    body: bytes


def parsed(raw: bytes) -> Answer:
    """The first answer in some bytes."""
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    pairs = (field.split(": ", 1) for field in fields)
    return Answer(int(line.split(" ")[1]), {name.lower(): value for name, value in pairs}, body)


def connect(server: Running) -> socket.socket:
    """A connection of the test's own."""
    return socket.create_connection((server.host, server.port), timeout=WAIT_S)


def head(method: str, target: str, *fields: str, host: str = "127.0.0.1") -> bytes:
    """A request head; `fields` are complete lines."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode("latin-1")


def ask_raw(server: Running, request: bytes) -> Answer:
    """Send one request as it is, and then nothing more."""
    with connect(server) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return parsed(received(sock))


def code(answer: httpx.Response | Answer) -> str | None:
    """The error code, None for a success."""
    body = answer.content if isinstance(answer, httpx.Response) else answer.body
    if (answer.status_code if isinstance(answer, httpx.Response) else answer.status) < 400:
        return None
    told: dict[str, Any] = httpx.Response(200, content=body).json()
    assert told.keys() == {"error"}
    assert told["error"].keys() <= {"code", "message", "detail"}
    return str(told["error"]["code"])


def wait_until(server: Running, true: Callable[[], object]) -> None:
    """Ask on the server's loop until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not server.on_loop(true):
        assert time.monotonic() < deadline, "it never came to be"


def inflight(server: Running) -> int:
    """Requests in flight of all keys together."""
    return sum(key.usage.inflight for key in server.server.app.keys.keys)


def waiters(server: Running) -> int:
    """Long polls that wait."""
    assert server.server.app.engine is not None
    return sum(len(topic.waiters) for topic in server.server.app.engine.core.topics.values())


class GateFs(OsFs):
    """The real disk; while the gate is shut, a sync of a file waits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, mode: Mode) -> File:
        return _GateFile(super().open(path, mode), self.gate)  # type: ignore[return-value]


class _GateFile:
    def __init__(self, inner: File, gate: threading.Event) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fdatasync(self) -> None:
        assert self._gate.wait(WAIT_S)
        self._inner.fdatasync()

    def fsync(self) -> None:
        assert self._gate.wait(WAIT_S)
        self._inner.fsync()
