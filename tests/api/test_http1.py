"""HTTP/1.1 as a client sees it on the wire (02 API-5, API-10, API-21, API-23, API-25, API-27, API-28)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import pytest

from tests.api.kit import WAIT_S, Running, running
from tests.api.rawclient import RawClient, chunked, count, exists, get, in_chunks, request, sweep, until, write
from topics.server.http1 import READ_BYTES, Http1
from topics.testing import ManualClock

BODY = b'{"records":[{"data":1}]}'
WAIT = b'{"from_seq":1,"wait_ms":30000}'


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Running]:
    with running(clock=clock) as one:
        yield one


@pytest.fixture
def line(server: Running) -> Iterator[RawClient]:
    with RawClient(server) as one:
        yield one


def poll(topic: str) -> bytes:
    return request("POST", f"/v0/topics/{topic}/diff", body=WAIT)


# -- kept connections and order --------------------------------------------------------------------------------------


def test_a_connection_is_kept_over_many_requests(line: RawClient, topic: str) -> None:
    """[API-2]"""
    statuses = []
    for data in (write(topic), write(topic), chunked(topic, in_chunks(BODY)), get("/v0/nothing"), get("/v0/health")):
        answer = line.send(data).answer()
        statuses.append(answer.status)
        assert "connection" not in answer.headers
    assert statuses == [201, 200, 200, 404, 200]


def test_pipelined_requests_are_executed_and_answered_in_order(line: RawClient, topic: str) -> None:
    """[API-25]: writes take longer than reads, and are not overtaken."""
    pair = write(topic) + get(f"/v0/topics/{topic}")
    line.send(pair * 50)
    for n in range(1, 51):
        assert line.answer().json()["last_seq"] == n
        assert line.answer().json()["head_seq"] == n


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_pipelined_requests_cut_anywhere_are_the_same(line: RawClient, topic: str, size: int) -> None:
    """[API-25]"""
    whole = write(topic) + b"\r\n" + chunked(topic, in_chunks(BODY)) + get("/v0/health") + write(topic)
    for at in range(0, len(whole), size):
        line.send(whole[at : at + size])
    assert [line.answer().status for _ in range(4)] == [201, 200, 200, 200]
    assert line.send(get(f"/v0/topics/{topic}")).answer().json()["count"] == 3


def test_a_long_poll_holds_what_is_behind_it(server: Running, line: RawClient, topic: str) -> None:
    """[API-25]: one after another."""
    line.send(write(topic)).answer()
    line.send(poll(topic) + write(f"{topic}-behind")).until(lambda one: one._state == "busy" and bool(one._input))
    assert not exists(server, f"{topic}-behind")
    with RawClient(server) as other:
        other.send(write(topic)).answer()
    assert line.answer().json()["head_seq"] == 2
    assert line.answer().status == 201


# -- versions, forms, Host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [(), ("Connection: keep-alive",)])
def test_http_1_0_is_answered_with_connection_close(line: RawClient, topic: str, fields: tuple[str, ...]) -> None:
    """[API-25]"""
    answer = line.send(write(topic, *fields, version="1.0") + get("/v0/health")).answer()
    assert (answer.status, answer.headers["connection"]) == (201, "close")
    assert line.rest() == b""


def test_http_1_0_needs_no_host(line: RawClient) -> None:
    """[API-25]; without keys on loopback a Host that is not there is none of ours [API-22]."""
    answer = line.send(b"GET /v0/health HTTP/1.0\r\n\r\n").answer()
    assert answer.headers["connection"] == "close"
    assert answer.status != 400


def test_connection_close_is_honoured(line: RawClient) -> None:
    """[API-25]: what is behind it is not executed."""
    answer = line.send(get("/v0/health", "Connection: x, Close") + get("/v0/health")).answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert line.rest() == b""


@pytest.mark.parametrize("host", ["localhost:4000", "127.0.0.1", "[::1]", "[::1]:4000", "LOCALHOST", "a.localhost:"])
def test_a_well_formed_host_is_accepted(line: RawClient, host: str) -> None:
    """[API-25]"""
    assert line.send(get("/v0/health").replace(b"localhost", host.encode())).answer().status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/v0/health", 200),
        ("HTTPS://evil.example:99/v0/health?x=/", 200),
        ("http://user@evil.example/v0/health", 200),
        ("http://evil.example", 302),
        ("http://evil.example?/v0/health", 302),
    ],
)
def test_the_authority_of_an_absolute_form_is_ignored(line: RawClient, target: str, status: int) -> None:
    """[API-25]"""
    assert line.send(get(target)).answer().status == status
    assert line.send(get("/v0/health")).answer().status == 200


@pytest.mark.parametrize("behind", [b"", get("/v0/health")])
@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "foo/2, bar"])
def test_an_upgrade_is_ignored(line: RawClient, upgrade: str, behind: bytes) -> None:
    """[API-25]"""
    line.send(get("/v0/health", "Connection: Upgrade", f"Upgrade: {upgrade}") + behind)
    answer = line.answer()
    assert (answer.status, "upgrade" in answer.headers) == (200, False)
    if not behind:
        line.send(get("/v0/health"))
    assert line.answer().status == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_with_http2_and_a_body_falls_back(server: Running, topic: str) -> None:
    """[API-25]"""
    command = ["curl", "-sS", "--noproxy", "*", "--http2", "-d", BODY.decode(), "-H", "Content-Type: application/json"]
    url = f"{server.url}/v0/topics/{topic}"
    told = subprocess.run([*command, url, url], capture_output=True, check=True, timeout=WAIT_S).stdout
    assert told.count(b'"count":1') == 2
    assert count(server, topic) == 2


# -- Expect ----------------------------------------------------------------------------------------------------------


def test_100_continue_is_sent_when_the_body_is_awaited(line: RawClient, topic: str) -> None:
    """[API-25]"""
    whole = write(topic, "Expect: 100-Continue")
    assert line.send(whole[: -len(BODY)]).answer().status == 100
    assert line.send(BODY).answer().status == 201


def test_100_continue_is_not_sent_when_the_body_came_along_or_there_is_none(line: RawClient, topic: str) -> None:
    """[API-25]"""
    assert line.send(write(topic, "Expect: 100-continue")).answer().status == 201
    assert line.send(get("/v0/health", "Expect: 100-continue")).answer().status == 200


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v0/nothing", (), 404),
        ("/v0/health", (), 405),
        ("/v0/topics/a", ("Origin: http://evil.example",), 403),
        ("/v0/topics/a", ("Content-Encoding: br",), 415),
    ],
)
def test_a_refusal_by_the_head_is_the_answer_to_an_expectation(
    line: RawClient, path: str, fields: tuple[str, ...], status: int
) -> None:
    """[API-25]: no 100, and the connection ends, because the body may or may not come."""
    head = request("POST", path, "Expect: 100-continue", *fields, body=BODY)[: -len(BODY)]
    answer = line.send(head).answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert line.rest() == b""


def test_a_declared_size_and_a_type_refuse_an_expectation(server: Running, topic: str) -> None:
    """[API-25]"""
    for fields, status in (
        (("Content-Type: application/json", f"Content-Length: {1 << 30}"), 413),
        (("Content-Type: text/plain", "Content-Length: 5"), 415),
    ):
        with RawClient(server) as client:
            head = request("POST", f"/v0/topics/{topic}", "Expect: 100-continue", *fields)
            assert client.send(head).answer().status == status
            assert client.rest() == b""


@pytest.mark.parametrize("length", [2**64 - 1, 2**64, 10**30])
def test_a_declared_size_is_too_large_however_large_it_is(line: RawClient, topic: str, length: int) -> None:
    """[API-15]"""
    fields = ("Content-Type: application/json", f"Content-Length: {length}")
    answer = line.send(request("POST", f"/v0/topics/{topic}", *fields)).answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (413, "payload_too_large", "close")
    assert line.rest() == b""


# -- answers before the body was read --------------------------------------------------------------------------------


def test_a_refusal_with_a_short_body_behind_it_keeps_the_connection(line: RawClient) -> None:
    """[API-25]: it is answered when the body was read."""
    for _ in range(3):
        answer = line.send(request("POST", "/v0/nothing", body=b"x" * 10_000)).answer()
        assert (answer.status, answer.headers.get("connection")) == (404, None)


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
def test_a_body_where_none_is_documented_is_read_and_ignored(line: RawClient, topic: str, method: str) -> None:
    """[API-10]: whatever its type and encoding."""
    line.send(write(topic)).answer()
    fields = ("Content-Type: image/png", "Content-Encoding: br")
    line.send(request(method, f"/v0/topics/{topic}", *fields, body=b"\xff" * 5000, json=False))
    assert line.answer(to_head=method == "HEAD").status == 200
    assert line.send(get("/v0/health")).answer().status == 200


# -- HEAD and the lines of every answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v0/health", "/v0/topics", "/v0/topics/missing", "/v0/settings"])
def test_head_is_answered_like_get_without_the_body(server: Running, line: RawClient, path: str) -> None:
    """[API-21]"""
    full = line.send(get(path)).answer()
    bare = line.send(request("HEAD", path)).answer(to_head=True)
    assert bare.status == full.status
    assert {**bare.headers, "content-length": ""} == {**full.headers, "content-length": ""}
    assert int(bare.headers["content-length"]) > 0
    assert line.send(get("/v0/health")).answer().status == 200


@pytest.mark.parametrize("data", [get("/v0/health"), get("/v0/topics"), get("/v0/nothing"), b"x\r\n\r\n"])
def test_every_answer_has_the_lines_of_api_28(line: RawClient, clock: ManualClock, data: bytes) -> None:
    """[API-28]"""
    answer = line.send(data).answer()
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/json"
    assert parsedate_to_datetime(answer.headers["date"]).timestamp() == clock.now_ms() // 1000
    assert not {"etag", "last-modified", "accept-ranges"} & answer.headers.keys()


def test_conditions_and_ranges_are_ignored(line: RawClient) -> None:
    """[API-28]"""
    answer = line.send(get("/v0/health", "Range: bytes=0-1", "If-None-Match: *", "If-Match: x")).answer()
    assert answer.status == 200
    assert answer.json()["status"] == "ok"


def test_an_options_answer_has_no_body_and_no_length(line: RawClient) -> None:
    """[API-22], RFC 9110 §15.3.5"""
    answer = line.send(request("OPTIONS", "/v0/health")).answer()
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD")
    assert "content-length" not in answer.headers
    assert line.send(get("/v0/health")).answer().status == 200


# -- the client's end ------------------------------------------------------------------------------------------------


def test_requests_received_completely_are_answered_after_the_clients_fin(
    server: Running, line: RawClient, topic: str
) -> None:
    """[API-23]: all of them, in order; then the connection is closed."""
    line.send(write(topic) + get(f"/v0/topics/{topic}") + write(topic) + write(topic)[:-1]).finish()
    assert [line.answer().status for _ in range(3)] == [201, 200, 200]
    assert line.rest() == b""
    assert count(server, topic) == 2


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_half_received_request_is_dropped_at_the_clients_fin(
    server: Running, line: RawClient, topic: str, cut: int
) -> None:
    """[API-23]"""
    line.send(write(topic)[:cut]).finish()
    assert line.rest() == b""
    assert not exists(server, topic)
    assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def test_a_waiting_long_poll_ends_at_the_clients_fin(server: Running, line: RawClient, topic: str) -> None:
    """[API-23]"""
    line.send(write(topic)).answer()
    line.send(poll(topic)).until(lambda one: one._state == "busy").finish()
    assert line.rest() == b""
    assert server.on_loop(lambda: len(server.server.app.engine.core.polls)) == 0  # type: ignore[union-attr]


def test_a_long_poll_that_is_reached_after_the_fin_does_not_wait(server: Running, line: RawClient, topic: str) -> None:
    """[API-23]"""
    line.send(write(topic) + poll(topic)).finish()
    assert line.answer().status == 201
    assert line.rest() == b""
    assert server.on_loop(lambda: len(server.server.app.engine.core.polls)) == 0  # type: ignore[union-attr]


def test_a_reset_ends_everything_on_the_connection(server: Running, line: RawClient, topic: str) -> None:
    """[API-23]: a write that was staged stays [R-6]."""
    line.send(write(topic)).answer()
    line.send(poll(topic)).until(lambda one: one._state == "busy").reset()
    until(server, lambda: not server.server.app.engine.core.polls)  # type: ignore[union-attr]
    assert count(server, topic) == 1
    sweep(server)


# -- drain -----------------------------------------------------------------------------------------------------------


def test_while_something_is_busy_a_drain_answers_on_connections_that_are_open_and_closes_the_idle_ones_then() -> None:
    """[API-5, HLT-1, HLT-4] Probes learn of it; a head that had begun is read to its end and answered by its path."""
    with running() as server:
        idle, late, polling, probe, health, other, half, cut = (RawClient(server) for _ in range(8))
        for one in (idle, probe, health, other):
            assert one.send(get("/v0/ready")).answer().status == 200
        assert polling.send(write("a")).answer().status == 201
        polling.send(poll("a")).until(lambda one: one._state == "busy")
        late.send(write("b")[:-3]).until(lambda one: one._state == "body")
        half.send(get("/v0/health")[:-7]).until(lambda one: one._heads.has_begun)
        cut.send(get("/v0/topics")[:-7]).until(lambda one: one._heads.has_begun)
        server.loop.call_soon_threadsafe(server._stopping.set)
        answer = polling.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        for one, path in ((probe, "/v0/ready"), (other, "/v0/topics"), (cut, "/v0/topics")):
            refused = one.send(get(path)[-7:] if one is cut else get(path)).answer()
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "shutting_down", "1")
            assert refused.headers["connection"] == "close"
        for one, rest in ((health, get("/v0/health")), (half, get("/v0/health")[-7:])):
            answer = one.send(rest).answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        idle.until(lambda one: one._state == "head")
        done = late.send(BODY[-3:]).answer()
        assert (done.status, done.headers["connection"]) == (201, "close")
        for one in (idle, late, polling, probe, health, other, half, cut):
            assert one.rest() == b""
            one.sock.close()


def test_a_drain_with_nothing_to_do_ends_at_once_for_all_who_are_idle() -> None:
    """[API-5]"""
    with running() as server:
        idle, silent = RawClient(server), RawClient(server)
        assert idle.send(get("/v0/health")).answer().status == 200
        server.stop()
        for one in (idle, silent):
            assert one.rest() == b""
            one.sock.close()


def test_a_request_behind_one_that_is_executed_while_draining_is_not_begun() -> None:
    """[API-5]: the answer before it said close."""
    with running() as server:
        with RawClient(server) as one:
            assert one.send(write("a")).answer().status == 201
            one.send(poll("a") + write("b")).until(lambda side: side._state == "busy" and bool(side._input))
            server.loop.call_soon_threadsafe(server._stopping.set)
            assert one.answer().headers["connection"] == "close"
            assert one.rest() == b""
        server.stop()


def test_a_client_that_sends_much_lets_others_have_their_turn(
    server: Running, line: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[P-10]: with plenty of a body at hand, a request on another connection is read before the body's next part."""
    seen: list[tuple[str, int]] = []
    receive = Http1.data_received

    def note(self: Http1, data: bytes) -> None:
        seen.append(("small" if data.startswith(b"GET") else "large", len(data)))
        receive(self, data)

    value = b"x" * 500_000
    body = request("POST", f"/v0/topics/{topic}", body=b'{"records":[{"data":"%b"}]}' % value)
    with RawClient(server) as other:
        other.send(get("/v0/health")).answer()
        line.send(body[:1000]).until(lambda served: served._state == "body")
        monkeypatch.setattr(Http1, "data_received", note)
        # On the loop: both are there before it looks.
        sent = server.on_loop(lambda: (line.sock.send(body[1000:]), other.send(get("/v0/health")))[0])
        assert other.answer().status == 200
        line.send(body[1000 + sent :])
        assert line.answer().status == 201
    assert max(size for _, size in seen) <= READ_BYTES
    assert [who for who, _ in seen].index("small") <= 1
    assert [size for who, size in seen if who == "large"].count(READ_BYTES) >= 2
