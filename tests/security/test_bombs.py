"""Requests that are small to send and large to take in (13 §5, 02 API-11, API-15, API-16, §1.9, 09 §5)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from tests.api.kit import Running, running
from tests.api.rawclient import MIB, Answer, RawClient, chunked, count, exists, get, request, until, write
from topics.server.connections import TURNED_AWAY_MAX

LIMIT = MIB
BUFFERED = 3 * MIB


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Small limits, so that going beyond them is quick."""
    env = {"TOPICS_MAX_BODY_BYTES": str(LIMIT), "TOPICS_MAX_BUFFERED_BYTES": str(BUFFERED)}
    with running(env=env) as one:
        yield one


def packed(topic: str, body: bytes) -> bytes:
    return request("POST", f"/v0/topics/{topic}", "Content-Encoding: gzip", body=body)


def one(server: Running, data: bytes) -> Answer:
    with RawClient(server) as client:
        return client.send(data).answer()


def buffered(server: Running) -> int:
    return server.on_loop(lambda: server.server.app.buffered.used)


def record_of(size: int) -> bytes:
    frame = b'{"records":[{"data":""}]}'
    return frame.replace(b'""', b'"%b"' % (b"x" * (size - len(frame))))


# -- size ------------------------------------------------------------------------------------------------------------


def test_a_declared_size_above_the_limit_is_413_before_a_byte_of_it_is_read(server: Running, topic: str) -> None:
    """[API-15, API-25]"""
    with RawClient(server) as client:
        head = request("POST", f"/v0/topics/{topic}", "Content-Type: application/json", f"Content-Length: {LIMIT + 1}")
        answer = client.send(head).answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert answer.headers["connection"] == "close"
        assert client.rest() == b""


def test_a_body_of_exactly_the_limit_is_taken(server: Running, topic: str) -> None:
    """[API-15]: what it holds is another question."""
    answer = one(server, request("POST", f"/v0/topics/{topic}", body=b" " * (LIMIT - 24) + b'{"records":[{"data":1}]}'))
    assert answer.status == 201
    assert buffered(server) == 0


def test_a_chunked_body_above_the_limit_is_413_where_it_crosses_it(server: Running, topic: str) -> None:
    """[API-15]"""
    with RawClient(server) as client:
        answer = client.send(chunked(topic, b"%x\r\n" % (100 * LIMIT) + b" " * (LIMIT + 1))).answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert client.rest() == b""
    assert not exists(server, topic)
    assert buffered(server) == 0


@pytest.mark.parametrize("size", [LIMIT + 1, 200 * LIMIT])
def test_gzip_of_a_thousand_to_one_is_413_when_it_inflates_beyond_the_limit(
    server: Running, topic: str, size: int
) -> None:
    """[API-16]: the limit applies to the decoded size as well."""
    bomb = gzip.compress(b" " * size, 9)
    assert len(bomb) < LIMIT
    assert one(server, packed(topic, bomb)).status == 413
    assert not exists(server, topic)
    assert buffered(server) == 0


def test_gzip_up_to_the_limit_is_taken(server: Running, topic: str) -> None:
    """[API-16]"""
    body = b" " * (LIMIT - 24) + b'{"records":[{"data":1}]}'
    assert one(server, packed(topic, gzip.compress(body, 9))).status == 201
    assert buffered(server) == 0


def test_a_gzip_bomb_is_inflated_in_steps_that_are_counted(topic: str) -> None:
    """09 §5 `max_buffered_bytes`: what it inflates to never exists as a whole."""
    env = {"TOPICS_MAX_BODY_BYTES": str(64 * MIB), "TOPICS_MAX_BUFFERED_BYTES": str(4 * MIB)}
    with running(env=env) as server:
        seen: list[int] = []
        real = server.server.app.buffered.take

        def take(size: int) -> bool:
            seen.append(size)
            return real(size)

        server.server.app.buffered.take = take  # type: ignore[method-assign]
        answer = one(server, packed(topic, gzip.compress(b" " * 64 * MIB, 9)))
        assert (answer.status, answer.json()["error"]["detail"]) == (
            429,
            {"limit": "max_buffered_bytes", "max": 4 * MIB},
        )
        assert answer.headers["retry-after"] == "1"
        assert max(seen) <= MIB
        assert buffered(server) == 0


def test_a_hundred_thousand_empty_gzip_members_are_400(server: Running, topic: str) -> None:
    """[API-16]: they make no bytes and cost time."""
    empty = gzip.compress(b"", mtime=0)
    with running(env={}) as roomy:
        body = gzip.compress(b'{"records":[{"data":1}]}')
        refused = one(roomy, packed(topic, empty * 100_000 + body))
        assert (refused.status, "members" in refused.json()["error"]["message"]) == (400, True)
        assert not exists(roomy, topic)
        assert one(roomy, packed(topic, empty * 100 + body)).status == 201


def test_bodies_beyond_max_buffered_bytes_are_429_and_the_connection_closes(server: Running, topic: str) -> None:
    """09 §5"""
    holders = [RawClient(server) for _ in range(3)]
    try:
        for holder in holders:
            holder.send(chunked(topic, b"%x\r\n" % LIMIT + b" " * (LIMIT - 1)))
            holder.until(lambda one: one._chunks is not None and one._chunks.size == LIMIT - 1)
        with RawClient(server) as client:
            answer = client.send(write(topic)).answer()
            assert answer.status == 429
            assert answer.json()["error"]["detail"] == {"limit": "max_buffered_bytes", "max": BUFFERED}
            assert answer.headers["retry-after"] == "1"
        assert not exists(server, topic)
    finally:
        for holder in holders:
            holder.sock.close()
    until(server, lambda: not server.server.app.buffered.used)
    assert one(server, write(topic)).status == 201


def test_after_input_that_could_not_be_kept_nothing_of_the_connection_is_believed() -> None:
    """09 §5, 13 §5: bytes are missing, so what comes behind them is no request, wherever it seems to begin."""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "20000"}) as server, RawClient(server) as client:
        assert client.send(write("a")).answer().status == 201
        poll = request("POST", "/v0/topics/a/diff", body=b'{"from_seq":1,"wait_ms":30000}')
        client.send(poll + get("/v0/health") * 1000).until(lambda side: side._overrun is not None)

        def answer_and_receive() -> None:
            assert server.server.app.engine is not None
            side = client.served
            server.server.app.engine.end_waits()
            assert side._state == "head"
            side.data_received(write("smuggled"))

        server.on_loop(answer_and_receive)
        assert client.answer().status == 200
        refused = client.answer()
        assert (refused.status, refused.headers["connection"]) == (429, "close")
        assert refused.json()["error"]["detail"] == {"limit": "max_buffered_bytes", "max": 20_000}
        assert client.rest() == b""
        assert not exists(server, "smuggled")
        assert buffered(server) == 0


# -- heads and connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        get("/v0/health", "X: " + "x" * 65536),
        get("/v0/health?" + "x" * 65536),
        get("/v0/health", *(f"X{n}: y" for n in range(128))),
        get("/v0/health", *["X: y"] * 10_000),
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\nX:" + b" " * 70_000,
    ],
    ids=["a field", "a line", "129 fields", "one field 10 000 times", "an endless line", "endless blanks"],
)
def test_a_head_above_its_limits_is_431_and_the_connection_closes(server: Running, head: bytes) -> None:
    """02 §1.9"""
    with RawClient(server) as client:
        answer = client.send(head).answer()
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert answer.headers["connection"] == "close"
        assert client.rest() == b""


def test_a_head_of_64_kib_and_128_fields_is_answered(server: Running) -> None:
    """02 §1.9"""
    fields = [f"X{n}: y" for n in range(126)]
    room = 65536 - len(get("/v0/health", *fields, "Y: "))
    head = get("/v0/health", *fields, "Y: " + "y" * room)
    assert len(head) == 65536
    assert one(server, head).status == 200


def test_a_connection_beyond_max_connections_is_429_and_a_freed_place_is_taken() -> None:
    """09 §5"""
    with running(env={"TOPICS_MAX_CONNECTIONS": "2"}) as server:
        first, second = RawClient(server), RawClient(server)
        assert [one.send(get("/v0/health")).answer().status for one in (first, second)] == [200, 200]
        with RawClient(server) as third:
            answer = third.answer()
            assert (answer.status, answer.code) == (429, "throttled")
            assert answer.json()["error"]["detail"] == {"limit": "max_connections", "max": 2}
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
            assert third.rest() == b""
            first.sock.close()
            until(server, lambda: len(server.server.connections.open) == 2)
            with RawClient(server) as fourth:
                assert fourth.send(get("/v0/health")).answer().status == 200
        second.sock.close()


def test_a_flood_of_connections_beyond_the_limit_holds_a_bounded_number(server: Running) -> None:
    """09 §5"""
    with running(env={"TOPICS_MAX_CONNECTIONS": "1"}) as small:
        flood = [RawClient(small) for _ in range(TURNED_AWAY_MAX + 60)]
        assert flood[0].send(get("/v0/health")).answer().status == 200
        assert flood[-1].rest() == b""  # without a word; those before it are known to the server by then
        until(small, lambda: small.server.connections.turned_away <= TURNED_AWAY_MAX)
        assert small.on_loop(lambda: len(small.server.connections.open)) == TURNED_AWAY_MAX + 1
        for one_of_them in flood:
            one_of_them.sock.close()
        until(small, lambda: not small.server.connections.open)
        assert small.server.connections.turned_away == 0


# -- JSON ------------------------------------------------------------------------------------------------------------


def nested(levels: int, inner: bytes = b"1") -> bytes:
    """A write whose body has so many levels, counted from its outermost value."""
    deep = levels - 3
    return b'{"records":[{"data":%b%b%b}]}' % (b"[" * deep, inner, b"]" * deep)


def test_128_levels_are_accepted_and_come_back_byte_for_byte(server: Running, topic: str) -> None:
    """[API-11]"""
    assert one(server, request("POST", f"/v0/topics/{topic}", body=nested(128))).status == 201
    read = one(server, request("POST", f"/v0/topics/{topic}/diff", body=b"{}"))
    assert b'"data":' + b"[" * 125 + b"1" + b"]" * 125 + b"}" in read.body


@pytest.mark.parametrize("levels", [1001, 5000, 400_000])
@pytest.mark.parametrize("where", ["data", "meta", "unknown", "diff"])
def test_more_than_1000_levels_are_400(server: Running, topic: str, levels: int, where: str) -> None:
    """[API-11]: `RecursionError` is 400, too (13 §5)."""
    deep = b"[" * levels + b"]" * levels
    body = {
        "data": nested(levels),
        "meta": b'{"records":[{"data":1,"meta":{"a":%b}}]}' % deep,
        "unknown": b'{"records":[{"data":1}],"unknown":%b}' % deep,
        "diff": b'{"unknown":%b}' % deep,
    }[where]
    path = f"/v0/topics/{topic}" + ("/diff" if where == "diff" else "")
    answer = one(server, request("POST", path, body=body))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not exists(server, topic)


def test_ten_thousand_records_of_nothing_are_refused_or_taken_as_a_whole(server: Running, topic: str) -> None:
    """13 §5, 02 §1.9"""

    def batch(one_record: bytes, number: int) -> bytes:
        body = b'{"records":[%b]}' % b",".join([one_record] * number)
        return request("POST", f"/v0/topics/{topic}?return_seqs=false", body=body)

    assert one(server, batch(b"{}", 10_000)).code == "invalid_request"
    assert one(server, batch(b'{"data":{}}', 10_001)).code == "batch_too_large"
    assert not exists(server, topic)
    assert one(server, batch(b'{"data":{}}', 10_000)).status == 201
    assert count(server, topic) == 10_000
