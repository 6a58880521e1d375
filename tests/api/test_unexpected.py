"""A bug behind a request is answered with 500 `internal`, logged, and costs nobody else anything [ERR-6, RES-7].

A bug is made of every Python call in turn that a request takes on the event loop, from its handler to its answer; of
every seventh where HTTP/2 brings it, since behind that is the same. Left out are the few calls that bring outcomes
back: nothing could answer behind them.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.api import wskit
from tests.api.kit import Running, records, running
from tests.api.rawclient import in_flight

KEY = "all"
BEHIND = ("topics.engine.", *(f"topics.server.{name}" for name in ("records", "queues", "txn", "topics", "routers")))
WAYS_BACK = {
    "<genexpr>", "<lambda>", "_answered", "_committed", "_logged", "_one_less", "_placed", "_unless_failed", "answer",
    "committed", "core", "decided", "ended", "finished", "follows", "guarded", "joined", "over", "publish",
    "publish_ready", "room", "settled", "told",
}  # fmt: skip
BACKGROUND = "topics.engine.timer"


class Bug(Exception):
    """Nobody foresaw it."""


class Bugs:
    """Raises in the call of a number, among those behind requests; None: counts them."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not _is_behind(frame):
            return
        self.calls += 1
        if self.calls == self.number:
            sys.setprofile(None)
            raise Bug(frame.f_code.co_name)


def _is_behind(frame: FrameType) -> bool:
    code = frame.f_code
    if not frame.f_globals.get("__name__", "").startswith(BEHIND) or code.co_name in WAYS_BACK:
        return False
    if code.co_flags & inspect.CO_GENERATOR:
        return False  # it may be called to be closed
    back: FrameType | None = frame
    while back is not None:
        if back.f_globals.get("__name__") == BACKGROUND:
            return False
        back = back.f_back
    return True


@contextmanager
def planted(server: Running, bugs: Bugs) -> Iterator[None]:
    """While the block runs, calls on the server's loop are looked at."""
    server.on_loop(lambda: sys.setprofile(bugs))
    try:
        yield
    finally:
        server.on_loop(lambda: sys.setprofile(None))


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Running]:
    """A server of its own: bugs leave topics in no good order."""
    with running(tmp_path, {"TOPICS_API_KEYS": KEY}) as server:
        yield server


Ask = Callable[[Any, str], Any]


def _put(client: Any, name: str) -> Any:
    return client.put(f"/v0/topics/{name}", json={"durability": "fsync"})


def _put_queue(client: Any, name: str) -> Any:
    client.put(f"/v0/topics/{name}", json={"type": "queue", "durability": "fsync"})
    return _write(client, name)


def _write(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}", json=records(1, 2, tag="x"))


def _read(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}/diff", json={"from_seq": 0})


def _claim(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": 2})


def _ack(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}/ack", json={"node": "w", "seqs": [1, 2]})


def _nack(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}/nack", json={"node": "w", "seqs": [1, 2]})


def _stage(client: Any, name: str) -> Any:
    chunk = {**records(1), "id": name, "version": 1, "part": "p", "chunk": 0}
    return client.post(f"/v0/topics/{name}/stage", json=chunk)


def _commit(client: Any, name: str) -> Any:
    part = {"part": "p", "chunks": 1, "records": 1}
    return client.post("/v0/txn/commit", json={"id": name, "version": 1, "parts": [part]})


def _delete(client: Any, name: str) -> Any:
    return client.post(f"/v0/topics/{name}/delete", json={"match": "x"})


def _drop(client: Any, name: str) -> Any:
    return client.delete(f"/v0/topics/{name}")


def _route(client: Any, name: str) -> Any:
    return client.put(f"/v0/routers/{name}", json={"source": name, "dest": f"{name}-copy"})


REQUESTS: dict[str, tuple[list[Ask], Ask]] = {
    "write": ([_put], _write),
    "write to a new topic": ([], _write),
    "diff": ([_write], _read),
    "claim": ([_put_queue], _claim),
    "ack": ([_put_queue, _claim], _ack),
    "nack": ([_put_queue, _claim], _nack),
    "stage": ([], _stage),
    "commit": ([_write, _stage], _commit),
    "delete": ([_write], _delete),
    "configure": ([_write], _put),
    "delete a topic": ([_write], _drop),
    "router": ([], _route),
}


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("what", REQUESTS)
def test_a_bug_in_any_call_behind_a_request_is_answered(
    broken: Running, what: str, http2: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """[ERR-6, RES-7] The connection goes on, and so does its key's slot."""
    prepare, ask = REQUESTS[what]
    caplog.set_level(logging.CRITICAL + 1, "topics")
    with broken.client(http2=http2, key=KEY) as client:

        def asked(bugs: Bugs, name: str) -> Any:
            for each in prepare:
                assert each(client, name).status_code in (200, 201)
            with planted(broken, bugs):
                return ask(client, name)

        counting = Bugs()
        label = f"{what.replace(' ', '-')}-{http2}"
        assert asked(counting, f"{label}-0").status_code in (200, 201)
        assert counting.calls > 20
        internal = 0
        for number in range(1, counting.calls + 1, 7 if http2 else 1):
            answer = asked(Bugs(number), f"{label}-{number}")
            assert answer.status_code in (200, 201, 500), answer.text
            if answer.status_code == 500:
                internal += 1
                assert answer.json()["error"]["code"] == "internal"
        assert internal > (1 if http2 else 5)
        assert in_flight(broken) == 0
        assert client.get("/v0/health").status_code == 200


@pytest.mark.parametrize("op", ["publish", "subscribe"])
def test_a_bug_in_any_call_behind_a_command_is_answered(
    broken: Running, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    """[ERR-6] The WebSocket goes on."""
    caplog.set_level(logging.CRITICAL + 1, "topics")
    with wskit.Ws(broken, f"Authorization: Bearer {KEY}") as ws:

        def asked(bugs: Bugs, name: str) -> Any:
            assert ws.ask("publish", topic=name, request_id=0, records=[{"data": 0}])["op"] == "ack"
            members = {"records": [{"data": 1}]} if op == "publish" else {"from_seq": 1}
            with planted(broken, bugs):
                reply = ws.ask(op, topic=name, request_id=1, **members)
            if reply["op"] == "subscribed":
                ws.send(wskit.command("unsubscribe", topic=name, request_id=2))
                while ws.reply()["op"] != "unsubscribed":
                    """What was delivered before."""
            return reply

        counting = Bugs()
        assert asked(counting, f"ws-{op}-0")["op"] in ("ack", "subscribed")
        internal = 0
        for number in range(1, counting.calls + 1):
            reply = asked(Bugs(number), f"ws-{op}-{number}")
            internal += reply["op"] == "error" and reply["code"] == "internal"
        assert internal > 3
        assert ws.ask("ping", request_id=3)["op"] == "pong"


def test_a_bug_is_logged_with_its_traceback(broken: Running, caplog: pytest.LogCaptureFixture) -> None:
    with broken.client(key=KEY) as client:
        assert _write(client, "logged").status_code == 201
        with planted(broken, Bugs(30)):
            assert _read(client, "logged").status_code == 500
    assert any(record.exc_info and record.exc_info[0] is Bug for record in caplog.records)
