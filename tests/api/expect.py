"""What every answer has to look like, and short ways to ask (02 §1.3, §1.6, §1.7)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.api.kit import PLAIN, WAIT_S, Running

ANY: Any = object()
"""For a detail that the contract leaves open."""
U64_MAX = 2**64 - 1
JSON = {"content-type": "application/json"}

DEFAULT_CONFIG: dict[str, object] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120_000, "dedupe_node": True, "lease_ms": 30_000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip
"""All 17 members (01 §3)."""


def ok(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    """The members of a success without its performance block, which is checked [ERR-2, API-14, API-28]."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    _common(answer)
    assert "retry-after" not in answer.headers
    told: dict[str, Any] = answer.json()
    assert "error" not in told
    performance = told.pop("performance")
    assert type(performance["server_total_ms"]) is float
    return told


def refused(answer: httpx.Response, status: int, code: str, detail: Any = None) -> str:
    """The message of an error of exactly this shape [ERR-1, ERR-5, PRF-1]."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    _common(answer)
    told = answer.json()
    assert told.keys() == {"error"}
    error = told["error"]
    assert error["code"] == code
    assert isinstance(error["message"], str)
    assert error["message"]
    if detail is ANY:
        assert error.keys() <= {"code", "message", "detail"}
        assert isinstance(error.get("detail", {}), dict)
    else:
        assert error.keys() == {"code", "message"} | ({"detail"} if detail is not None else set())
        assert error.get("detail") == detail
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)
    assert ("allow" in answer.headers) == (status == 405)
    return str(error["message"])


def invalid(answer: httpx.Response) -> str:
    """400 `invalid_request`."""
    return refused(answer, 400, "invalid_request", ANY)


def _common(answer: httpx.Response) -> None:
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["date"].endswith(" GMT")
    assert "etag" not in answer.headers


def write(client: httpx.Client, topic: str, *values: object, **more: object) -> dict[str, Any]:
    """Append values as records; the answer without its performance block."""
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **more})
    return ok(answer, 201 if answer.status_code == 201 else 200)


def tagged(client: httpx.Client, topic: str, *tags: str | None) -> dict[str, Any]:
    """Append one record per tag."""
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": tag, "tag": tag} for tag in tags]})
    return ok(answer, 201 if answer.status_code == 201 else 200)


def put(client: httpx.Client, topic: str, **config: object) -> dict[str, Any]:
    """Create or configure."""
    answer = client.put(f"/v0/topics/{topic}", json=config)
    return ok(answer, 201 if answer.status_code == 201 else 200)


def diff(client: httpx.Client, topic: str, **body: object) -> dict[str, Any]:
    """Read after a cursor."""
    return ok(client.post(f"/v0/topics/{topic}/diff", json=body))


def state(client: httpx.Client, topic: str, **query: str) -> dict[str, Any]:
    """State of a topic, not touching it unless asked to."""
    return ok(client.get(f"/v0/topics/{topic}", params={"touch": "false", **query}))


def delete(client: httpx.Client, topic: str, **body: object) -> dict[str, Any]:
    """Delete records."""
    return ok(client.post(f"/v0/topics/{topic}/delete", json=body))


def seqs(page: dict[str, Any]) -> list[int]:
    """Of the records of a page."""
    return [record["$seq"] for record in page["records"]]


def lost(gap_from: int, gap_to: int, reason: str, head_seq: int) -> dict[str, Any]:
    """The tombstone of a loss (01 §10)."""
    return {
        "gap_from": gap_from, "gap_to": gap_to, "reason": reason, "missed_estimate": gap_to - gap_from + 1,
        "earliest_seq": gap_to + 1, "head_seq": head_seq,
    }  # fmt: skip


def raw(client: httpx.Client, path: str, body: str | bytes, **headers: str) -> httpx.Response:
    """A POST of exactly these bytes as JSON."""
    return client.post(path, content=body, headers={**JSON, **headers})


def compact(answer: httpx.Response) -> bool:
    """Whether no whitespace stands between tokens [API-14]."""
    return not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", answer.text))


def like(client: httpx.Client, server: Running, **more: Any) -> httpx.Client:
    """A client of another server that speaks the same version of HTTP."""
    return server.client(http2=client.get("/healthz").http_version == "HTTP/2", **more)


def _twin(client: httpx.Client) -> httpx.Client:
    """A client of the same server, key and version of HTTP."""
    http2 = client.get("/healthz").http_version == "HTTP/2"
    key = {name: value for name, value in client.headers.items() if name == "authorization"}
    return httpx.Client(
        base_url=client.base_url, http1=not http2, http2=http2, headers=key, timeout=WAIT_S, trust_env=False,
        verify=PLAIN,
    )  # fmt: skip


def until(server: Running, holds: Callable[[], bool]) -> None:
    """Wait until something holds on the server's loop, pass by pass."""
    end = time.monotonic() + WAIT_S
    while not server.on_loop(holds):
        assert time.monotonic() < end


def waiting(server: Running, count: int = 1) -> None:
    """Wait until so many long polls wait."""
    engine = server.server.app.engine
    assert engine is not None
    until(server, lambda: len(engine.core.polls) == count)


class Background:
    """A request on a thread and a connection of its own: threads that share one of HTTP/2 wait for each other."""

    def __init__(self, client: httpx.Client, ask: Callable[[httpx.Client], httpx.Response]) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=self._run, args=(_twin(client), ask), daemon=True)
        self._thread.start()

    def _run(self, client: httpx.Client, ask: Callable[[httpx.Client], httpx.Response]) -> None:
        with client:
            self._answers.append(ask(client))

    def answer(self) -> httpx.Response:
        """Wait for it."""
        self._thread.join(WAIT_S)
        assert self._answers, "no answer"
        return self._answers[0]
