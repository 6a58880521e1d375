"""Clients that send slowly, stop sending, or stop reading (02 API-3, API-24, API-25; 13 §5). Time is the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.kit import Running
from tests.api.rawclient import MIB, RawClient, chunked, exists, get, in_chunks, request, sweep, until, write
from topics.server.http1 import Http1
from topics.testing import ManualClock

SECOND = 1000


@pytest.fixture
def client(server: Running) -> Iterator[RawClient]:
    with RawClient(server) as one:
        yield one


def passes(server: Running, clock: ManualClock, seconds: float) -> None:
    """Time passes as the server sees it: looked at once a second."""
    whole, rest = divmod(int(seconds * SECOND), SECOND)
    for ms in [SECOND] * whole + [rest] * (rest > 0):
        clock.advance(ms)
        sweep(server)


def is_open(server: Running, client: RawClient) -> bool:
    return server.on_loop(lambda: client.served._state != "ending")


def is_told_408(client: RawClient) -> None:
    answer = client.answer()
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert client.rest() == b""


# -- heads -----------------------------------------------------------------------------------------------------------


def test_a_head_at_one_byte_a_second_is_408_thirty_seconds_after_accept(
    server: Running, clock: ManualClock, client: RawClient
) -> None:
    """[API-3, API-25]"""
    head = get("/v0/health", "X: y")
    for n in range(29):
        client.send(head[n : n + 1]).until(lambda one, n=n: len(one._heads._seen) == n + 1)  # type: ignore[misc]
        passes(server, clock, 1)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


def test_a_connection_that_says_nothing_is_408_thirty_seconds_after_accept(
    server: Running, clock: ManualClock, client: RawClient
) -> None:
    """[API-25]"""
    client.until(lambda one: True)
    passes(server, clock, 29)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


def test_on_a_kept_connection_the_head_has_thirty_seconds_from_its_first_byte(
    server: Running, clock: ManualClock, client: RawClient
) -> None:
    """[API-25]"""
    assert client.send(get("/v0/health")).answer().status == 200
    passes(server, clock, 100)
    client.send(b"\r\nG").until(lambda one: one._heads.has_begun)
    passes(server, clock, 29)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


def test_an_idle_kept_connection_is_closed_without_an_answer_after_120_seconds(
    server: Running, clock: ManualClock, client: RawClient
) -> None:
    """[API-25]: blank lines are no request."""
    assert client.send(get("/v0/health")).answer().status == 200
    passes(server, clock, 119)
    client.send(b"\r\n")
    assert is_open(server, client)
    passes(server, clock, 1)
    assert client.rest() == b""


def test_each_request_begins_its_own_deadlines(server: Running, clock: ManualClock, client: RawClient) -> None:
    """[API-25]"""
    for _ in range(4):
        assert client.send(get("/v0/health")).answer().status == 200
        passes(server, clock, 100)
        client.send(b"GET /v0/hea").until(lambda one: one._heads.has_begun)
        passes(server, clock, 25)
        assert client.send(b"lth HTTP/1.1\r\nHost: localhost\r\n\r\n").answer().status == 200


def test_a_head_that_waits_behind_a_long_poll_has_its_thirty_seconds_after_it(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-25]: what the server does not read yet cannot be late."""
    assert client.send(write(topic)).answer().status == 201
    poll = request("POST", f"/v0/topics/{topic}/diff", body=b'{"from_seq":1,"wait_ms":30000}')
    client.send(poll + b"GET ").until(lambda one: one._state == "busy" and one._input == b"GET ")
    passes(server, clock, 29)
    with RawClient(server) as other:
        assert other.send(write(topic)).answer().status == 200
    assert client.answer().json()["next_from_seq"] == 2
    client.until(lambda one: one._heads.has_begun)
    passes(server, clock, 29)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


# -- bodies ----------------------------------------------------------------------------------------------------------


def test_a_body_at_one_byte_a_second_is_408_after_sixty_seconds_and_not_executed(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-3]"""
    whole = write(topic, data=b'"' + b"x" * 100 + b'"')
    head, body = whole[:-124], whole[-124:]
    client.send(head).until(lambda one: one._awaits == "body")
    for n in range(59):
        client.send(body[n : n + 1])
        passes(server, clock, 1)
    assert is_open(server, client)
    passes(server, clock, 1.1)
    is_told_408(client)
    client.finish()
    assert not exists(server, topic)
    assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def test_a_body_has_one_second_more_for_each_mebibyte_it_declares(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-3]"""
    length = f"Content-Length: {8 * MIB}"
    client.send(request("POST", f"/v0/topics/{topic}", "Content-Type: application/json", length))
    client.until(lambda one: one._awaits == "body")
    passes(server, clock, 67)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


def test_a_chunked_body_has_one_second_more_for_each_mebibyte_that_came(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-3]"""
    client.send(chunked(topic, b"%x\r\n" % (3 * MIB) + b" " * 3 * MIB))
    client.until(lambda one: one._chunks is not None and one._chunks.size == 3 * MIB and one._awaits == "body")
    passes(server, clock, 62)
    assert is_open(server, client)
    passes(server, clock, 1)
    is_told_408(client)


def test_a_client_that_was_told_100_continue_and_sends_nothing_is_408(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-3, API-25]"""
    client.send(write(topic, "Expect: 100-continue")[:-24])
    assert client.answer().status == 100
    passes(server, clock, 60.1)
    is_told_408(client)
    assert not exists(server, topic)


def test_a_request_in_execution_has_no_deadline(
    server: Running, clock: ManualClock, client: RawClient, topic: str
) -> None:
    """[API-25]"""
    assert client.send(write(topic)).answer().status == 201
    poll = request("POST", f"/v0/topics/{topic}/diff", body=b'{"from_seq":1,"wait_ms":30000}')
    client.send(poll).until(lambda one: one._state == "busy")
    clock.advance(300 * SECOND)
    sweep(server)
    server.on_loop(server.server.app.engine.end_waits)  # type: ignore[union-attr]
    assert client.answer().status == 200


# -- readers that stop reading ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(server: Running) -> str:
    """A topic whose records fill an answer of 8 MiB."""
    record = b'{"data":"%b"}' % (b"x" * (MIB - 100))
    with RawClient(server) as one:
        for _ in range(9):
            body = b'{"records":[%b]}' % record
            assert one.send(request("POST", "/v0/topics/large", body=body)).answer().status in (200, 201)
    return request("POST", "/v0/topics/large/diff", body=b'{"max_batch_bytes":8388608}').decode()


def test_no_further_request_is_started_while_more_than_1_mib_is_unsent(
    server: Running, clock: ManualClock, large: str, topic: str
) -> None:
    """[API-24]"""
    with RawClient(server, receive_bytes=4096) as client:
        client.send(large.encode() * 2 + write(topic)).until(lambda one: one._full)
        with RawClient(server) as healthy:
            for _ in range(20):
                assert healthy.send(get("/v0/health")).answer().status == 200
        assert not exists(server, topic)
        assert server.on_loop(lambda: client.served._written) < 9 * MIB
        assert client.answer().status == 200
        assert client.answer().status == 200
        assert client.answer().status == 201


def test_a_reader_that_takes_nothing_for_thirty_seconds_is_closed(
    server: Running, clock: ManualClock, large: str
) -> None:
    """[API-24]"""
    with RawClient(server, receive_bytes=4096) as client:
        client.send(large.encode()).until(lambda one: one._full)
        sweep(server)
        passes(server, clock, 29)
        assert is_open(server, client)
        passes(server, clock, 2)
        until(server, lambda: not client._is_accepted())


def test_a_reader_that_takes_a_little_is_left_alone(server: Running, clock: ManualClock, large: str) -> None:
    """[API-24]: progress counts, not speed; and the time an answer takes is not idle time."""
    with RawClient(server, receive_bytes=4096) as client:
        client.send(large.encode()).until(lambda one: one._full)
        unsent = server.on_loop(lambda: client.served)._transport.get_write_buffer_size
        left = server.on_loop(unsent)
        for _ in range(6):
            passes(server, clock, 29)
            while server.on_loop(unsent) == left:
                client._more()
            left = server.on_loop(unsent)
        passes(server, clock, 1)
        assert client.answer().status == 200
        assert client.send(get("/v0/health")).answer().status == 200


def test_progress_counts_also_while_answers_are_added(server: Running, clock: ManualClock, topic: str) -> None:
    """[API-24]: what is unsent grows although the client reads."""
    with RawClient(server) as client:
        assert client.send(get("/v0/health")).answer().status == 200
        served = server.on_loop(lambda: client.served)

        class Slow:
            """A transport whose client reads less than is written."""

            unsent = 1000

            def get_write_buffer_size(self) -> int:
                return self.unsent

            def abort(self) -> None:
                raise AssertionError("closed although it reads")

        slow, real = Slow(), served._transport
        served._transport = slow  # type: ignore[assignment]
        served._line = None
        for _ in range(100):
            slow.unsent += 100
            served._written += 150
            passes(server, clock, 1)
        served._transport = real


def test_input_behind_a_request_in_execution_is_bounded(server: Running, clock: ManualClock, topic: str) -> None:
    """09 §5: reading stops, and what waits counts as buffered."""
    with RawClient(server) as client:
        assert client.send(write(topic)).answer().status == 201
        poll = request("POST", f"/v0/topics/{topic}/diff", body=b'{"from_seq":1,"wait_ms":30000}')
        client.send(poll + get("/v0/health") * 10_000).until(lambda one: one._paused)
        waiting = server.on_loop(lambda: len(client.served._input))
        assert 64 << 10 < waiting < 1 << 20
        assert server.on_loop(lambda: server.server.app.buffered.used) == waiting
        with RawClient(server) as other:
            assert other.send(write(topic)).answer().status == 200
        for _ in range(10_001):
            assert client.answer().status == 200
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0
        assert not server.on_loop(lambda: client.served._paused)


def test_many_requests_at_hand_take_turns_with_other_connections(server: Running) -> None:
    """13 §5, [A-1]: one connection does not have the loop for itself."""
    with RawClient(server) as greedy, RawClient(server) as other:
        assert other.send(get("/v0/health")).answer().status == 200
        passes_seen: list[int] = []
        served: dict[str, Http1] = {}

        def note() -> None:
            passes_seen.append(served["one"]._written)
            if len(passes_seen) < 10:
                server.loop.call_soon(note)

        def begin() -> None:
            served["one"] = greedy.served
            served["one"].data_received(get("/v0/health") * 200)
            note()

        greedy.until(lambda one: True)
        server.on_loop(begin)
        until(server, lambda: len(passes_seen) == 10)
        assert len(set(passes_seen)) > 5
        assert [greedy.answer().status for _ in range(200)] == [200] * 200


# -- after an early answer -------------------------------------------------------------------------------------------


def test_after_an_early_answer_input_is_discarded_for_a_second(server: Running, clock: ManualClock, topic: str) -> None:
    """[API-25]: the client can read the answer while it still sends."""
    with RawClient(server) as client:
        client.send(request("POST", f"/v0/topics/{topic}", f"Content-Length: {65 * MIB}"))
        for _ in range(20):
            client.send(b"x" * 65536)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert client.rest() == b""  # its sending side is shut down
        client.send(write(topic)).until(lambda one: one._awaits == "ending")
        passes(server, clock, 1)
        until(server, lambda: not client._is_accepted())
    assert not exists(server, topic)


def test_a_client_that_closes_after_an_early_answer_is_let_go_at_once(server: Running, topic: str) -> None:
    """[API-25]"""
    with RawClient(server) as client:
        assert (
            client.send(chunked(topic, in_chunks(b"x")).replace(b"/v0/topics", b"/v0/nothing")).answer().status == 404
        )
        client.finish()
        until(server, lambda: not client._is_accepted())
