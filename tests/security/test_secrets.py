"""Keys never come out: not in answers, logs, metrics or errors, and nothing keeps them [KEY-5, KEY-7] (13 §5)."""

from __future__ import annotations

import base64
import gc
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.api.kit import Running, running
from tests.security.kit import VERSIONS, ask_raw, head, wait_until
from topics import settings
from topics.engine import read as reading
from topics.errors import SettingsError
from topics.fs import OsFs
from topics.server import keys
from topics.server.routes import ROUTES
from topics.testing import Fault, FaultFs

SECRET = "hush-hush-5c1d77"
SMALL = "whisper-88e2b0"
WRONG = "guess-6f0a41"
PRESENTED = (SECRET, SMALL, WRONG)


def traces(token: str) -> list[bytes]:
    """What would give a token away."""
    digest = hashlib.sha256(token.encode()).digest()
    return [token.encode(), digest, digest.hex().encode(), base64.b64encode(digest), base64.urlsafe_b64encode(digest)]


def check_clean(text: bytes, where: object) -> None:
    for token in PRESENTED:
        for trace in traces(token):
            assert trace not in text, where


class Everything:
    """All that a server says: to clients and to its log."""

    def __init__(self, server: Running, fs: FaultFs, caplog: pytest.LogCaptureFixture) -> None:
        self.server = server
        self.fs = fs
        self._caplog = caplog

    def check(self, raw: bytes, what: object) -> None:
        check_clean(raw, what)

    def check_log(self) -> None:
        formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
        for record in self._caplog.records:
            check_clean(formatter.format(record).encode(), record.name)
            check_clean(repr(record.__dict__).encode(), record.name)


@pytest.fixture
def everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Everything]:
    for noisy in ("httpcore", "httpx", "hpack"):
        # What the test's own client logs is not the server's.
        caplog.set_level(logging.CRITICAL, noisy)
    caplog.set_level(logging.DEBUG)  # last, because it is also the level of what catches
    fs = FaultFs(OsFs())
    env = {"TOPICS_API_KEYS": f"{SECRET},{SMALL}:read:mine.", "TOPICS_MAX_BODY_BYTES": "100000"}
    with running(tmp_path, env, fs=fs) as server:
        yield Everything(server, fs, caplog)


def paths() -> Iterator[tuple[str, str]]:
    for row in ROUTES:
        yield row.method, row.path.replace("{", "").replace("}", "")
    yield from (("PATCH", "/v0/topics/t"), ("GET", "/v0/none"), ("GET", "/none"), ("OPTIONS", "/v0/topics"))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_answer_and_no_log_line_holds_a_key(everything: Everything, version: str) -> None:
    """[KEY-5, KEY-7, MET-2, SET-1] Every route with every kind of key, in the header and in the query."""
    with everything.server.client(http2=version == "http2") as client:
        for method, path in paths():
            for token in PRESENTED:
                for headers, query in (
                    ({"authorization": f"Bearer {token}"}, ""),
                    ({"authorization": f"Bearer {token}", "accept": "application/json"}, f"?token={token}"),
                    ({"authorization": f"Basic {token}"}, ""),
                    ({"authorization": token}, ""),
                    ({}, f"?token={token}&x={token}"),
                    ({"cookie": f"key={token}", "x-api-key": token, "idempotency-key": token}, ""),
                ):
                    for body in (b"", b"{}", b"{"):
                        more = {"content-type": "application/json"} if body else {}
                        with client.stream(method, path + query, headers={**headers, **more}, content=body) as answer:
                            told = repr(answer.headers.raw).encode()
                            if "text/event-stream" not in answer.headers.get("content-type", ""):
                                told += answer.read()
                            everything.check(told, (method, path, answer.status_code))
    everything.check_log()


@pytest.mark.parametrize("token", PRESENTED)
def test_a_malformed_head_is_refused_without_repeating_it(everything: Everything, token: str) -> None:
    """[KEY-5] 400, 401, 408 and 431 come from below the routes."""
    server = everything.server
    bearer = f"Authorization: Bearer {token}"
    requests = {
        "control character": head("GET", "/v0/topics", f"Authorization: Bearer {token}\x01"),
        "NUL": head("GET", "/v0/topics", f"Authorization: Bearer {token}\0"),
        "space before the colon": head("GET", "/v0/topics", f"Authorization : Bearer {token}"),
        "folded": head("GET", "/v0/topics", "Authorization: Bearer", f" {token}"),
        "bare line feed": f"GET /v0/topics HTTP/1.1\nHost: x\n{bearer}\n\n".encode(),
        "twice": head("GET", "/v0/topics", bearer, bearer),
        "not ASCII": head("GET", "/v0/topics", f"Authorization: Bearer {token}\xff\xfe"),
        "huge": head("GET", "/v0/topics", f"Authorization: Bearer {token * 8000}"),
        "many fields": head("GET", "/v0/topics", *[bearer] * 200),
        "no such method": head(token, "/v0/topics", bearer),
        "lower-case method": head("get", "/v0/topics", bearer),
        "no such version": f"GET /v0/topics HTTP/3.9\r\nHost: x\r\n{bearer}\r\n\r\n".encode(),
        "no HTTP": f"{bearer}\r\n\r\n".encode(),
        "two hosts": head("GET", "/v0/topics", "Host: y", bearer),
        "two lengths": head("POST", "/v0/topics/t", bearer, "Content-Length: 1", "Content-Length: 2"),
        "other coding": head("POST", "/v0/topics/t", bearer, "Transfer-Encoding: gzip"),
        "other type": head("POST", "/v0/topics/t", bearer, f"Content-Type: {token}", "Content-Length: 0"),
        "other encoding": head("POST", "/v0/topics/t", bearer, f"Content-Encoding: {token}", "Content-Length: 0"),
        "foreign page": head("GET", "/v0/topics", bearer, f"Origin: https://{token}.example"),
        "too large": head("POST", "/v0/topics/t", bearer, "Content-Length: 999999999"),
        "expects": head("POST", "/v0/topics/t", bearer, "Expect: 100-continue", "Content-Length: 999999999"),
        "absolute": head("GET", f"http://{token}@x/v0/none", bearer),
    }
    for what, request in requests.items():
        answer = ask_raw(server, request)
        assert 400 <= answer.status < 500, what
        everything.check(repr(answer).encode() + answer.body, what)
    everything.check_log()


def test_a_failing_disk_and_a_bug_are_told_without_the_key(
    everything: Everything, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[KEY-5, ERR-6] 500 and 503; the log has the trace of a bug, and the request's headers are not in it."""

    def bug(*given: object) -> None:
        raise RuntimeError("a bug")

    with everything.server.client(key=SECRET) as client:
        assert client.put("/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        with monkeypatch.context() as patched:
            patched.setattr(reading, "state", bug)
            broken = client.get(f"/v0/topics/t?token={SECRET}")
        everything.fs.inject(Fault("fdatasync", 1, "EIO", times="always"))
        body = {"records": [{"data": 1}]}
        failed = client.post("/v0/topics/t", json=body)
        latched = client.post("/v0/topics/t", json=body)
        unready = client.get("/v0/ready")
        everything.fs.clear()
    statuses = [one.status_code for one in (broken, failed, latched, unready)]
    assert statuses == [500, 500, 503, 503]
    for answer in (broken, failed, latched, unready):
        everything.check(answer.content + repr(answer.headers.raw).encode(), answer.status_code)
    assert any(record.exc_info for record in caplog.records)
    everything.check_log()


def test_nothing_that_a_server_holds_contains_a_secret(everything: Everything) -> None:
    """[KEY-5] Digests only, once it runs: a memory image does not give keys away."""
    server = everything.server
    with server.client() as client:
        for token in PRESENTED:
            for request in ("/v0/topics", f"/v0/topics/x/work?token={token}"):
                client.get(request, headers={"authorization": f"Bearer {token}"})
                client.get(request)
    wait_until(server, lambda: not server.server.connections.open)
    found = [one for one in reachable(server.server) if isinstance(one, (str, bytes, bytearray))]
    assert "./topics-data" in found  # the settings were looked at
    assert hashlib.sha256(SECRET.encode()).digest() in found  # and so was the ring
    for one in found:
        raw = one.encode("utf-8", "surrogatepass") if isinstance(one, str) else bytes(one)
        for token in PRESENTED:
            assert token.encode() not in raw


def reachable(start: object) -> Iterator[object]:
    """Objects below one, apart from code, modules, loops and what runs."""
    apart = (ModuleType, FunctionType, CodeType, FrameType, type)
    seen, todo = {id(start)}, [start]
    while todo:
        one = todo.pop()
        yield one
        for other in gc.get_referents(one):
            if id(other) in seen or isinstance(other, apart) or type(other).__module__.startswith("uvloop"):
                continue
            seen.add(id(other))
            todo.append(other)


@pytest.mark.parametrize(
    "entries",
    [
        f"{SECRET}:nosuchscope",
        f"{SECRET}:+",
        f":{SECRET}",
        f"::{SECRET}",
        f"ok,{SECRET}:read+{SECRET}",
        f"a\x01,{SECRET}\x02",
    ],
)
def test_a_bad_entry_is_named_by_its_number(entries: str) -> None:
    """[BOOT-2, KEY-5] Neither the secret nor what stands where a scope should."""
    with pytest.raises(SettingsError) as caught:
        keys.parse(settings.parse({"TOPICS_API_KEYS": entries}).settings.api_keys or "")
    check_clean(str(caught.value).encode() + repr(caught.value).encode(), entries)
    assert "entry" in str(caught.value)
    with pytest.raises(SettingsError) as in_file:
        keys.parse_lines(f"# {SECRET}\n{SECRET}:nosuchscope\n")
    check_clean(repr(in_file.value).encode() + str(in_file.value).encode(), entries)
    assert "line 2" in str(in_file.value)


def test_what_is_made_of_keys_does_not_show_them() -> None:
    """[KEY-5, KEY-7] In a debugger, or in a log line that prints it."""
    loaded = settings.parse({"TOPICS_API_KEYS": SECRET})
    parsed: list[Any] = keys.parse(SECRET)
    ring = keys.KeyRing(parsed)
    for one in (loaded, loaded.settings, *parsed, ring, ring.keys, ring.keys[0]):
        shown = repr(one).encode() + str(one).encode()
        check_clean(shown, type(one))
        assert repr(hashlib.sha256(SECRET.encode()).digest()).encode() not in shown
