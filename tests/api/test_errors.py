"""Every row of the error table that can occur, bodies and headers of answers (02 §1.3, §1.6, §1.7)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.api.expect import (
    ANY,
    JSON,
    Background,
    delete,
    diff,
    invalid,
    like,
    ok,
    put,
    raw,
    refused,
    seqs,
    state,
    until,
    write,
)
from tests.api.kit import WAIT_S, Running, running
from tests.unit.engine.kit import GatedFs, real_config
from topics.fs import OsFs
from topics.testing import Fault, FaultFs

# -- rows of the table -----------------------------------------------------------------------------------------------


def test_400_invalid_request(client: httpx.Client, topic: str) -> None:
    """[ERR-1]"""
    invalid(raw(client, f"/v0/topics/{topic}", "{"))


def test_401_unauthorized_and_403_forbidden(client: httpx.Client) -> None:
    """[API-7, SCP-1, SCP-2, API-27]"""
    env = {"TOPICS_API_KEYS": "all,reader:r,writer:w,deleter:d,admin:a,lim::plant3:|shared."}
    with running(env=env) as keyed, like(client, keyed) as one:

        def get(authorization: str | None, path: str = "/v0/topics") -> httpx.Response:
            return one.get(path, headers={} if authorization is None else {"authorization": authorization})

        for bad in (None, "", "Bearer", "Bearer nope", "Basic all", "all", "Bearer all,reader", "bearer ALL"):
            refused(get(bad), 401, "unauthorized")
        refused(get(None, "/v0/topics?token=all"), 401, "unauthorized")
        for good in ("Bearer all", "bearer all", "BEARER all", "Bearer reader", "Bearer  all"):
            ok(get(good))
        for scopeless in ("writer", "deleter", "admin"):
            refused(get(f"Bearer {scopeless}"), 403, "forbidden")
        refused(get("Bearer lim", "/v0/topics/other"), 403, "forbidden")
        refused(get("Bearer lim", "/v0/topics/%70lant4:x"), 403, "forbidden")
        refused(get("Bearer lim", "/v0/topics/plant3:x"), 404, "topic_not_found", {"topic": "plant3:x"})
        refused(get("Bearer lim", "/v0/topics/%70lant3%3Ax"), 404, "topic_not_found", {"topic": "plant3:x"})


SCOPES = [
    ("GET", "/v0/topics/t", "r"), ("HEAD", "/v0/topics/t", "r"), ("GET", "/v0/topics", "r"),
    ("POST", "/v0/topics/t/diff", "r"), ("POST", "/v0/topics/t", "w"), ("DELETE", "/v0/topics/t", "d"),
    ("POST", "/v0/topics/t/delete", "d"), ("PUT", "/v0/topics/t", "a"), ("POST", "/v0/topics/t/claim", "rw"),
    ("POST", "/v0/topics/t/ack", "w"), ("GET", "/v0/topics/t/work", "rw"), ("PUT", "/v0/routers/r", "a"),
    ("DELETE", "/v0/routers/r", "d"), ("GET", "/v0/routers", "r"), ("POST", "/v0/watch", "r"),
    ("POST", "/v0/checkpoint", "a"), ("GET", "/v0/settings", "a"), ("GET", "/v0/metrics", "r"),
    ("GET", "/v0/topics/t/segments", "r"), ("POST", "/v0/topics/t/stage", "w"), ("POST", "/v0/txn/commit", "w"),
    ("PATCH", "/v0/topics/t", "w"), ("GET", "/v0/topics/t/unknown", "w"), ("GET", "/v0/topics/t/x/y", "w"),
    ("GET", "/v0/topics/t/diff", "w"), ("PATCH", "/v0/routers/r", "a"), ("GET", "/v0/routers/r/x", "a"),
    ("GET", "/v0/unknown", ""), ("PUT", "/v0/topics", ""), ("OPTIONS", "/v0/topics/t/diff", "r"),
]  # fmt: skip


@pytest.fixture(scope="module")
def scoped_server() -> Iterator[Running]:
    keys = "r:r,w:w,d:d,a:a,wda:w+d+a,rda:r+d+a,rwa:r+w+a,rwd:r+w+d,all"
    with running(env={"TOPICS_API_KEYS": keys}) as one:
        yield one


@pytest.mark.parametrize(("method", "path", "needed"), SCOPES)
def test_each_route_needs_its_scopes_and_no_others(
    client: httpx.Client, scoped_server: Running, method: str, path: str, needed: str
) -> None:
    """(09 §2) [SCP-2, SCP-4]"""
    for key in ("r", "w", "d", "a", "wda", "rda", "rwa", "rwd", "all"):
        held = "rwda" if key == "all" else key
        with like(client, scoped_server, key=key) as one:
            answer = one.request(method, path)
            assert (answer.status_code == 403) == (not set(needed) <= set(held)), (key, answer.text)
    with like(client, scoped_server) as one:
        assert one.request(method, path).status_code == 401


def test_404_not_found(client: httpx.Client, topic: str) -> None:
    """[ERR-3, API-21]: a trailing slash is another path."""
    put(client, topic)
    for path in (
        "/v0", "/v0/", "/v1/topics", "/v0/topics/", f"/v0/topics/{topic}/", f"/v0/topics/{topic}/nothing",
        f"/v0/topics/{topic}/diff/", "/v0/topics//diff", "/V0/topics", "/v0/Topics", "/healthz/", "/nothing", "/",
        f"/v0//topics/{topic}", "/v0/topics%2F" + topic,
    ):  # fmt: skip
        for method in ("GET", "POST", "DELETE"):
            if (path, method) == ("/", "GET"):
                continue
            answer = client.request(method, path)
            if path == "/":
                assert answer.status_code in (404, 405)
            else:
                refused(answer, 404, "not_found")


@pytest.mark.parametrize(
    ("path", "methods", "allow"),
    [
        ("/v0/topics", ("PUT", "POST", "DELETE", "PATCH", "BREW"), "GET, HEAD"),
        ("/v0/topics/t", ("PATCH", "TRACE", "FOO"), "DELETE, GET, HEAD, POST, PUT"),
        ("/v0/topics/t/diff", ("GET", "PUT", "DELETE", "PATCH"), "POST"),
        ("/v0/health", ("POST", "PUT", "DELETE"), "GET, HEAD"),
        ("/readyz", ("POST",), "GET, HEAD"),
    ],
)
def test_405_method_not_allowed(client: httpx.Client, path: str, methods: tuple[str, ...], allow: str) -> None:
    """[ERR-3, API-21]"""
    for method in methods:
        answer = client.request(method, path)
        refused(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allow
    options = client.options(path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, allow, b"")


def test_413_payload_too_large(client: httpx.Client) -> None:
    """[API-15, API-16]: declared, in chunks, and inflated."""
    with running(env={"TOPICS_MAX_BODY_BYTES": "1000"}) as small, like(client, small) as one:
        put(one, "t")
        fitting = b'{"note":"' + b"x" * (1000 - 11) + b'"}'
        assert len(fitting) == 1000
        large = fitting + b" "
        too_large = (413, "payload_too_large")
        for path, method in (
            ("/v0/topics/t", "POST"), ("/v0/topics/t", "PUT"), ("/v0/topics/t/diff", "POST"),
            ("/v0/topics/t/delete", "POST"), ("/v0/topics", "GET"), ("/v0/topics/t", "DELETE"),
        ):  # fmt: skip
            refused(one.request(method, path, content=large, headers=JSON), *too_large)
        ok(one.post("/v0/topics/t/diff", content=fitting, headers=JSON))
        ok(one.post("/v0/topics/t/diff", content=iter([fitting[:500], fitting[500:]]), headers=JSON))
        refused(one.post("/v0/topics/t/diff", content=iter([large[:500], large[500:]]), headers=JSON), *too_large)
        packed = {**JSON, "content-encoding": "gzip"}
        ok(one.post("/v0/topics/t/diff", content=gzip.compress(fitting), headers=packed))
        refused(one.post("/v0/topics/t/diff", content=gzip.compress(large), headers=packed), *too_large)
        bomb = gzip.compress(b"{" + b" " * 10_000_000)
        assert len(bomb) > 1000
        refused(one.post("/v0/topics/t/diff", content=gzip.compress(b"{" + b" " * 600_000), headers=packed), *too_large)
        refused(one.post("/v0/topics/t/diff", content=bomb, headers=packed), *too_large)


@pytest.mark.parametrize("media", [
    None, "text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonx", "application/json+x",
    "application/ld+json", "json", "application/cloudevents", "*/*", "application/json, text/plain", "",
])  # fmt: skip
def test_415_unsupported_media_type(client: httpx.Client, topic: str, media: str | None) -> None:
    """[API-9]"""
    headers = {} if media is None else {"content-type": media}
    unsupported = (415, "unsupported_media_type")
    for method, path in (("POST", ""), ("PUT", ""), ("POST", "/diff"), ("POST", "/delete")):
        answer = client.request(method, f"/v0/topics/{topic}{path}", content=b'{"records":[]}', headers=headers)
        refused(answer, *unsupported)


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "gzip, br", "compress", "x", "x-gzip"])
def test_415_for_other_content_encodings(client: httpx.Client, encoding: str) -> None:
    """[API-16]"""
    answer = raw(client, "/v0/topics/t/diff", b"{}", **{"content-encoding": encoding})
    refused(answer, 415, "unsupported_media_type")


def test_empty_bodies(client: httpx.Client, topic: str) -> None:
    """[API-10]"""
    path = f"/v0/topics/{topic}"
    ok(client.put(path), 201)
    ok(client.put(path, headers=JSON))
    ok(client.post(f"{path}/diff"))
    ok(client.post(f"{path}/diff", headers=JSON))
    ok(client.post(f"{path}/diff", content=iter([])))
    for endpoint in (path, f"{path}/delete", f"{path}/compact", f"{path}/scan"):
        refused(client.post(endpoint), 415, "unsupported_media_type")
        refused(client.post(endpoint, headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
        invalid(client.post(endpoint, headers=JSON))
        refused(client.post(endpoint, content=iter([])), 415, "unsupported_media_type")
        invalid(client.post(endpoint, content=iter([]), headers=JSON))


def test_503_not_ready_until_recovery_is_complete(client: httpx.Client) -> None:
    """[API-6, ERR-5]"""
    with running(recover=False) as young, like(client, young) as one:
        for method, path in (
            ("GET", "/v0/topics"), ("GET", "/v0/topics/t"), ("PUT", "/v0/topics/t"), ("POST", "/v0/topics/t"),
            ("POST", "/v0/topics/t/diff"), ("GET", "/v0/nothing"), ("PATCH", "/v0/topics/t"), ("GET", "/v0/settings"),
            ("POST", "/v0/checkpoint"), ("OPTIONS", "/v0/topics"),
        ):  # fmt: skip
            answer = one.request(method, path)
            refused(answer, 503, "not_ready", {"state": "replaying", "replay_progress": 0.0})
            assert answer.headers["retry-after"] == "1"
            assert type(answer.json()["error"]["detail"]["replay_progress"]) is float
        assert one.get("/v0/health").status_code == 200
        refused(one.get("/v0/ready"), 503, "not_ready", {"state": "replaying", "replay_progress": 0.0})


def test_503_shutting_down(client: httpx.Client) -> None:
    """[HLT-4, ERR-5]"""
    with running() as old, like(client, old) as one:
        put(one, "t")

        def drain() -> None:
            old.server.app.draining = True

        old.on_loop(drain)
        for method, path in (("GET", "/v0/topics/t"), ("POST", "/v0/topics/t/diff"), ("GET", "/v0/ready")):
            answer = one.request(method, path)
            refused(answer, 503, "shutting_down")
            assert answer.headers["retry-after"] == "1"
        assert one.get("/v0/health").status_code == 200


def test_429_carries_retry_after(client: httpx.Client) -> None:
    """[ERR-5, RES-2]"""
    with running(env={"TOPICS_MAX_TOPICS": "1"}) as small, like(client, small) as one:
        put(one, "t")
        answer = one.put("/v0/topics/u")
        refused(answer, 429, "throttled", {"limit": "max_topics", "max": 1})
        assert answer.headers["retry-after"] == "1"


def test_a_failed_sync_is_an_error_and_leaves_nothing_visible(client: httpx.Client) -> None:
    """[ERR-6, DUR-2, INV-3] (06 §21): 500 for the write itself, 503 `read_only` for those behind it."""
    fs = FaultFs(OsFs())
    with running(fs=fs) as ill, like(client, ill) as one:
        put(one, "t", durability="fsync")
        write(one, "t", 1)
        fs.inject(Fault("fdatasync", 1))
        body = {"records": [{"data": 2}], "idempotency_key": "k"}
        refused(one.post("/v0/topics/t", json=body), 500, "internal", {"state": "commit_failed"})
        answer = one.post("/v0/topics/t", json=body)
        refused(answer, 503, "not_ready", {"state": "read_only"})
        assert answer.headers["retry-after"] == "30"
        assert state(one, "t")["head_seq"] == 1
        answer = one.get("/v0/ready")
        refused(answer, 503, "not_ready", {"state": "read_only"})
        fs.clear()


def test_503_full_while_the_disk_has_no_space(client: httpx.Client) -> None:
    """[ERR-5, ERR-6] (06 §21): 500 for the write that found none, then 503; reads and deletes go on."""
    fs = FaultFs(OsFs())
    with running(fs=fs, config=real_config()) as ill, like(client, ill) as one:
        put(one, "t", durability="fsync")
        write(one, "t", 1, 2)
        fs.inject(Fault("pwrite", 1, "ENOSPC", "until_freed", path="wal-"))
        body = {"records": [{"data": 3}]}
        refused(one.post("/v0/topics/t", json=body), 500, "internal", {"state": "commit_failed"})
        answer = one.post("/v0/topics/t", json=body)
        refused(answer, 503, "not_ready", {"state": "full"})
        assert answer.headers["retry-after"] == "5"
        refused(one.get("/v0/ready"), 503, "not_ready", {"state": "full"})
        assert state(one, "t")["head_seq"] == 2
        assert seqs(diff(one, "t")) == [1, 2]
        fs.free_space()
        assert delete(one, "t", before_seq=2)["deleted"] == 1


def test_429_when_the_log_takes_no_more_submissions(client: httpx.Client) -> None:
    """[WR-5, ERR-5]: nothing of the refused write is appended."""
    fs = GatedFs()
    with running(fs=fs, config=real_config(queue_submissions=2)) as slow, like(client, slow) as one:
        put(one, "t", durability="fsync")
        fs.gate.clear()
        body = {"records": [{"data": 1}]}
        held = [Background(one, lambda own: own.post("/v0/topics/t", json=body))]
        assert fs.waiting.acquire(timeout=WAIT_S)
        held.append(Background(one, lambda own: own.post("/v0/topics/t", json=body)))
        engine = slow.server.app.engine
        assert engine is not None
        topic = engine.core.names["t"]
        until(slow, lambda: topic.staged_records == 2)
        answer = one.post("/v0/topics/t", json=body)
        refused(answer, 429, "throttled", ANY)
        detail = answer.json()["error"]["detail"]
        assert detail.keys() == {"retry_after_ms"}
        assert 100 <= detail["retry_after_ms"] <= 2000
        assert answer.headers["retry-after"] == ("1" if detail["retry_after_ms"] <= 1000 else "2")
        fs.gate.set()
        assert sorted(ok(asked.answer())["last_seq"] for asked in held) == [1, 2]
        assert state(one, "t")["head_seq"] == 2


def test_429_when_too_many_bytes_are_buffered(client: httpx.Client) -> None:
    """(09 §5) [RES-2]: whatever is given back can be used again."""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "1000"}) as small, like(client, small) as one:
        limit = {"limit": "max_buffered_bytes", "max": 1000}
        for _ in range(3):
            write(one, "t", "x" * 900)
            answer = one.post("/v0/topics/t", json={"records": [{"data": "x" * 1000}]})
            refused(answer, 429, "throttled", limit)
            assert one.post("/v0/topics/t", json={"records": [{"tag": "x" * 900}]}).status_code == 400


# -- bodies and headers ----------------------------------------------------------------------------------------------


def test_messages_with_odd_names_are_valid_json(client: httpx.Client) -> None:
    """[ERR-1]"""
    name = '"\\\u0001é'
    answer = client.get("/v0/topics/%22%5C%01%C3%A9")
    refused(answer, 404, "topic_not_found", {"topic": name})


@pytest.mark.parametrize("accept", ["gzip", "GZIP", "br, gzip", "gzip;q=0.1", "*", "gzip;q=1, *;q=0", "x-gzip"])
def test_large_answers_are_gzipped_on_request(client: httpx.Client, topic: str, accept: str) -> None:
    """[API-16]: from 1 KiB on; more than 64 KiB aside."""
    topic = topic[:40]
    for size in (2000, 200_000):
        write(client, topic, "x" * size)
        plain = client.post(f"/v0/topics/{topic}/diff", headers={"accept-encoding": "identity"})
        packed = client.post(f"/v0/topics/{topic}/diff", headers={"accept-encoding": accept})
        assert "content-encoding" not in plain.headers
        assert "vary" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert int(packed.headers["content-length"]) < 2000
        assert ok(packed) == ok(plain)
    client.delete(f"/v0/topics/{topic}")


@pytest.mark.parametrize("accept", ["identity", "gzip;q=0", "br", "", "*;q=0", "gzip;q=0, *", "gzip; q=0.0"])
def test_answers_are_plain_where_gzip_is_not_accepted(client: httpx.Client, topic: str, accept: str) -> None:
    """[API-16]"""
    topic = topic[:40]
    write(client, topic, "x" * 3000)
    answer = client.post(f"/v0/topics/{topic}/diff", headers={"accept-encoding": accept})
    assert "content-encoding" not in answer.headers
    ok(answer)
    client.delete(f"/v0/topics/{topic}")


def test_small_answers_are_never_gzipped(client: httpx.Client, topic: str) -> None:
    """[API-16]"""
    put(client, topic[:20])
    answer = client.post(f"/v0/topics/{topic[:20]}/diff", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert "vary" not in answer.headers


def test_health_and_ready_have_no_performance_block(client: httpx.Client) -> None:
    """(02 §1.7) [HLT-1, HLT-2]"""
    for path in ("/v0/health", "/healthz"):
        told = client.get(path).json()
        assert told.keys() == {"status", "version", "kernel", "uptime_ms"}
        assert (told["status"], type(told["uptime_ms"])) == ("ok", int)
    for path in ("/v0/ready", "/readyz"):
        told = client.get(path).json()
        assert told.keys() == {"status", "wal_replay_complete", "topics"}
        assert told["status"] == "ready"
        assert told["wal_replay_complete"] is True


def test_conditional_and_range_requests_are_ignored(client: httpx.Client, topic: str) -> None:
    """[API-28]"""
    put(client, topic)
    headers = {"if-none-match": "*", "range": "bytes=0-1", "if-modified-since": "Thu, 01 Jan 2099 00:00:00 GMT"}
    ok(client.get(f"/v0/topics/{topic}", headers=headers))


def test_json_of_answers_is_utf8_and_ints_stay_ints(client: httpx.Client, topic: str) -> None:
    """[API-14, SEQ-6]"""
    put(client, topic, cap_records=2**64 - 1)
    text = client.get(f"/v0/topics/{topic}").text
    assert '"cap_records":18446744073709551615' in text
    assert json.loads(text)["config"]["cap_records"] == 2**64 - 1
