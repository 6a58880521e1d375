"""HTTP/2: one port with HTTP/1.1, streams that do not disturb each other, and clients that misbehave [API-26]."""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.api.frames import JSON, Fields, Talk
from tests.api.kit import WAIT_S, Running, received, records, running
from topics.fs import File, Mode, OsFile, OsFs
from topics.server.http2 import PREFACE, STREAMS, Http2
from topics.testing.clock import ManualClock

MIB = 1 << 20


@pytest.fixture
def talk(server: Running) -> Iterator[Talk]:
    with Talk(server) as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> Iterator[Running]:
    """A server of the test's own whose time stands still."""
    with running(clock=clock) as one:
        yield one


def pass_time(server: Running, clock: ManualClock, seconds: float) -> None:
    """Time goes by, and the server looks at it."""
    clock.advance(round(seconds * 1000))

    def sweep() -> None:
        for one in list(server.server.connections.open):
            one.sweep(clock.monotonic_ns())

    server.on_loop(sweep)


def settle(server: Running) -> None:
    """The server has read what was sent to it before, on whatever connection."""
    with server.client() as client:
        client.get("/v0/health")


def speaking(server: Running) -> list[Http2]:
    """Its connections that speak HTTP/2."""

    def found() -> list[Http2]:
        spoken = [one._spoken for one in server.server.connections.open]
        return [one for one in spoken if isinstance(one, Http2)]

    return server.on_loop(found)


def body_of(*values: object) -> bytes:
    return json.dumps(records(*values)).encode()


def fill(server: Running, name: str, size: int) -> None:
    """A topic whose diff is a little larger than `size`."""
    with server.client() as client:
        piece = min(size, 500_000)
        for _ in range(0, size, piece):
            assert client.post(f"/v0/topics/{name}", json=records("x" * piece)).status_code in (200, 201)


def diff(talk: Talk, id: int, name: str, **asked: object) -> None:
    talk.request(id, b"POST", f"/v0/topics/{name}/diff".encode(), json.dumps(asked).encode())


def exists(server: Running, name: str) -> bool:
    with server.client() as client:
        return client.get(f"/v0/topics/{name}").status_code == 200


# -- which protocol --------------------------------------------------------------------------------------------------


def test_the_preface_may_arrive_byte_by_byte(server: Running) -> None:
    """[API-2]"""
    with socket.create_connection((server.host, server.port), timeout=WAIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREFACE + SettingsFrame(0).serialize():
            sock.sendall(bytes([byte]))
        frame, _ = Frame.parse_frame_header(memoryview(sock.recv(9, socket.MSG_WAITALL)))
        assert isinstance(frame, SettingsFrame)


@pytest.mark.parametrize("size", [1, 2, 3, 14, 18, 23])
def test_what_only_begins_like_the_preface_is_answered_as_http_1(server: Running, size: int) -> None:
    """[API-2]"""
    assert server.raw(PREFACE[:size] + b"!\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_http_1_is_told_apart_at_its_first_differing_byte(server: Running) -> None:
    """[API-2]: `PUT` and the preface share a byte."""
    request = b"PUT /v0/topics/told-apart HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    with socket.create_connection((server.host, server.port), timeout=WAIT_S) as sock:
        sock.sendall(request[:1])
        sock.sendall(request[1:])
        assert received(sock).startswith(b"HTTP/1.1 201 ")


def test_the_first_frame_must_be_settings(server: Running) -> None:
    """RFC 9113 §3.4"""
    answer = server.raw(PREFACE + PingFrame(0, opaque_data=bytes(8)).serialize())
    assert GoAwayFrame(0, error_code=1).serialize() in answer


# -- requests and answers --------------------------------------------------------------------------------------------


def test_the_settings_are_the_promised_ones(talk: Talk) -> None:
    """[API-3, API-26]"""
    talk.reach()
    assert talk.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 1024
    assert talk.settings[SettingsFrame.INITIAL_WINDOW_SIZE] == MIB
    assert talk.settings[SettingsFrame.MAX_HEADER_LIST_SIZE] == 65536
    assert talk.settings[SettingsFrame.ENABLE_PUSH] == 0
    assert not talk.settings.get(SettingsFrame.ENABLE_CONNECT_PROTOCOL)
    assert talk.window == 4 * MIB


def test_an_answer_has_the_headers_of_every_answer(talk: Talk) -> None:
    """[API-28]"""
    talk.request(1, b"GET", b"/v0/health")
    answer = talk.answer(1)
    assert answer.status == 200
    assert answer.reset is None
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"cache-control"] == b"no-store"
    assert answer.headers[b"x-content-type-options"] == b"nosniff"
    assert answer.headers[b"date"].endswith(b" GMT")
    assert int(answer.headers[b"content-length"]) == len(answer.body)


def test_head_is_answered_with_the_length_and_without_the_body(talk: Talk) -> None:
    """[API-21]"""
    talk.request(1, b"HEAD", b"/v0/health")
    answer = talk.answer(1)
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers[b"content-length"]) > 0


def test_repeated_fields_are_one_list(server: Running, talk: Talk, topic: str) -> None:
    """`gzip` is in the second of two `accept-encoding` fields."""
    fill(server, topic, 4000)
    talk.request(
        1, b"POST", f"/v0/topics/{topic}/diff".encode(), b"{}",
        [(b"accept-encoding", b"br"), (b"accept-encoding", b"gzip")],
    )  # fmt: skip
    assert talk.answer(1).headers[b"content-encoding"] == b"gzip"


def test_the_authority_is_the_host(talk: Talk) -> None:
    """[API-22]: bound to loopback, a name that may have been rebound is refused."""
    talk.authority = b"rebound.example"
    talk.request(1, b"GET", b"/v0/topics")
    assert talk.answer(1).status == 403


def test_a_body_larger_than_every_window_arrives(client: httpx.Client, topic: str) -> None:
    """[API-26]: window is given back for what was taken."""
    answer = client.post(f"/v0/topics/{topic}", json=records(*["y" * 900_000] * 8))
    assert answer.status_code == 201
    assert client.get(f"/v0/topics/{topic}").json()["count"] == 8


def test_a_client_that_expects_to_be_told_is_told_to_continue(talk: Talk, topic: str) -> None:
    head = talk.head(b"POST", f"/v0/topics/{topic}".encode(), [*JSON, (b"expect", b"100-continue")])
    talk.send(talk.headers(1, head, end=False))
    talk.until(lambda: 1 in talk.answers)
    assert talk.answers[1].interim == [100]
    talk.send(*talk.data(1, body_of(1)))
    assert talk.answer(1).status == 201


def test_trailers_are_ignored(talk: Talk, topic: str) -> None:
    talk.send(
        talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False),
        *talk.data(1, body_of(1), end=False),
        talk.headers(1, [(b"checksum", b"1")]),
    )
    assert talk.answer(1).status == 201


# -- many streams ----------------------------------------------------------------------------------------------------


def test_streams_arrive_interleaved_and_stay_apart(server: Running, talk: Talk, topic: str) -> None:
    """[API-26]: frames of eight bodies in turn."""
    bodies = {1 + 2 * n: body_of(str(n) * 50_000) for n in range(8)}
    for id in bodies:
        path = f"/v0/topics/{topic}-{id}".encode()
        talk.send(talk.headers(id, talk.head(b"POST", path, JSON), end=False))
    rounds = [talk.data(id, body) for id, body in bodies.items()]
    for frames in zip(*rounds, strict=True):
        talk.send(*frames)
    for n, id in enumerate(bodies):
        assert talk.answer(id).status == 201
        with server.client() as client:
            page = client.post(f"/v0/topics/{topic}-{id}/diff").json()
        assert page["records"][0]["data"] == str(n) * 50_000


def test_a_long_poll_does_not_keep_other_streams_waiting(server: Running, talk: Talk, topic: str) -> None:
    """[DIF-4]"""
    fill(server, topic, 10)
    diff(talk, 1, topic, from_seq=1, wait_ms=30_000)
    for id in range(3, 43, 2):
        talk.request(id, b"GET", b"/v0/health")
        assert talk.answer(id).status == 200
    assert 1 not in talk.answers
    talk.request(43, b"POST", f"/v0/topics/{topic}".encode(), body_of("woken"))
    assert talk.answer(43).status == 200
    assert json.loads(talk.answer(1).body)["records"][0]["data"] == "woken"


def test_1024_streams_run_and_one_more_is_refused_alone(server: Running, talk: Talk, topic: str) -> None:
    """[API-3]: refused, not executed, so that the client may send it again."""
    fill(server, topic, 10)
    ids = range(1, 1 + 2 * STREAMS, 2)
    for id in ids:
        diff(talk, id, topic, from_seq=1, wait_ms=30_000)
    late = ids[-1] + 2
    talk.request(late, b"GET", b"/v0/health")
    assert talk.answer(late).reset is ErrorCodes.REFUSED_STREAM
    with server.client() as client:
        client.post(f"/v0/topics/{topic}", json=records("woken"))
    assert {talk.answer(id).status for id in ids} == {200}
    talk.request(late + 2, b"GET", b"/v0/health")
    assert talk.answer(late + 2).status == 200


def test_each_stream_is_one_request_of_its_key(topic: str) -> None:
    """[API-26, RES-7]"""
    env = {"TOPICS_API_KEYS": "secret", "TOPICS_MAX_INFLIGHT_PER_KEY": "2"}
    with running(env=env) as server, Talk(server) as talk:
        bearer = [(b"authorization", b"Bearer secret")]
        with server.client(key="secret") as client:
            client.post(f"/v0/topics/{topic}", json=records(1))
        for id in (1, 3, 5):
            path = f"/v0/topics/{topic}/diff".encode()
            talk.request(id, b"POST", path, b'{"from_seq":1,"wait_ms":30000}', bearer)
        assert talk.answer(5).status == 429
        assert json.loads(talk.answers[5].body)["error"]["detail"] == {"limit": "max_inflight_per_key", "max": 2}
        talk.send(RstStreamFrame(1, error_code=8))
        talk.request(7, b"GET", b"/v0/topics", more=bearer)
        assert talk.answer(7).status == 200


@pytest.mark.parametrize("how", ["taken", "reset"])
def test_an_answer_holds_its_slot_until_it_is_taken(topic: str, how: str) -> None:
    """[RES-7]: the last byte handed to the transport returns it, or the end of the stream."""
    env = {"TOPICS_API_KEYS": "secret", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    bearer = [(b"authorization", b"Bearer secret")]
    with running(env=env) as server, Talk(server, initial_window=0, windows=False) as talk:
        with server.client(key="secret") as client:
            client.post(f"/v0/topics/{topic}", json=records("x" * 1000))
        talk.request(1, b"POST", f"/v0/topics/{topic}/diff".encode(), b"{}", bearer)
        talk.until(lambda: 1 in talk.answers)
        talk.request(3, b"GET", b"/v0/topics", more=bearer)
        talk.until(lambda: 3 in talk.answers)
        assert talk.answers[3].status == 429
        if how == "taken":
            talk.give(4096, 1)
            talk.answer(1)
        else:
            talk.send(RstStreamFrame(1, error_code=8))
        talk.request(5, b"GET", b"/v0/topics", more=bearer)
        talk.until(lambda: 5 in talk.answers)
        assert talk.answers[5].status == 200


# -- what is no request ----------------------------------------------------------------------------------------------

Change = Callable[[list[tuple[bytes, bytes]]], Fields]


def without(name: bytes) -> Change:
    return lambda fields: [pair for pair in fields if pair[0] != name]


def plus(name: bytes, value: bytes) -> Change:
    return lambda fields: [*fields, (name, value)]


def instead(name: bytes, value: bytes) -> Change:
    return lambda fields: [(name, value) if pair[0] == name else pair for pair in fields]


MALFORMED: dict[str, Change] = {
    "no method": without(b":method"),
    "no scheme": without(b":scheme"),
    "no path": without(b":path"),
    "no authority": without(b":authority"),
    "empty path": instead(b":path", b""),
    "path without slash": instead(b":path", b"v0/topics"),
    "absolute path": instead(b":path", b"http://localhost/v0/topics"),
    "method with a space": instead(b":method", b"PO ST"),
    "connect": instead(b":method", b"CONNECT"),
    "extended connect": lambda fields: [(b":protocol", b"websocket"), *instead(b":method", b"CONNECT")(fields)],
    "pseudo twice": lambda fields: [(b":method", b"GET"), *fields],
    "pseudo of answers": lambda fields: [(b":status", b"200"), *fields],
    "pseudo after fields": plus(b":authority", b"localhost"),
    "unknown pseudo": lambda fields: [(b":x", b"1"), *fields],
    "upper case": plus(b"X-Upper", b"1"),
    "empty name": plus(b"", b"1"),
    "space in a name": plus(b"x y", b"1"),
    "colon in a name": plus(b"x:y", b"1"),
    "line feed in a value": plus(b"x", b"1\nhost: evil"),
    "carriage return in a value": plus(b"x", b"1\r"),
    "nul in a value": plus(b"x", b"\0"),
    "space before a value": plus(b"x", b" 1"),
    "space after a value": plus(b"x", b"1 "),
    "connection": plus(b"connection", b"close"),
    "keep-alive": plus(b"keep-alive", b"1"),
    "transfer coding": plus(b"transfer-encoding", b"chunked"),
    "upgrade": plus(b"upgrade", b"websocket"),
    "te": plus(b"te", b"gzip"),
    "another host": plus(b"host", b"evil.example"),
    "malformed authority": instead(b":authority", b"a b"),
    "user in the authority": instead(b":authority", b"me@localhost"),
    "signed length": plus(b"content-length", b"+31"),
    "hexadecimal length": plus(b"content-length", b"0x1f"),
    "length of 5000 digits": plus(b"content-length", b"9" * 5000),
    "two lengths": lambda fields: [*fields, (b"content-length", b"31"), (b"content-length", b"31")],
    "two different lengths": lambda fields: [*fields, (b"content-length", b"31"), (b"content-length", b"30")],
    "body too short": plus(b"content-length", b"32"),
    "body too long": plus(b"content-length", b"30"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_ends_its_stream_and_is_not_executed(
    server: Running, talk: Talk, topic: str, case: str
) -> None:
    """[API-26], RFC 9113 §8.1.1"""
    body = body_of("1234")
    assert len(body) == 31
    fields = MALFORMED[case](talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON))
    talk.request(1, b"GET", b"/v0/health")
    talk.send(talk.headers(3, fields, end=False), *talk.data(3, body))
    assert talk.answer(3).reset is ErrorCodes.PROTOCOL_ERROR
    assert talk.answers[3].status == 0
    talk.request(5, b"GET", b"/v0/health")
    assert talk.answer(1).status == talk.answer(5).status == 200
    assert not exists(server, topic)


def test_a_length_without_a_body_is_malformed(server: Running, talk: Talk, topic: str) -> None:
    fields = talk.head(b"PUT", f"/v0/topics/{topic}".encode(), [(b"content-length", b"5")])
    talk.send(talk.headers(1, fields))
    assert talk.answer(1).reset is ErrorCodes.PROTOCOL_ERROR
    assert not exists(server, topic)


@pytest.mark.parametrize("trailer", [(b":path", b"/"), (b"X-Upper", b"1"), (b"x", b"a\nb")])
def test_malformed_trailers_end_the_stream(
    server: Running, talk: Talk, topic: str, trailer: tuple[bytes, bytes]
) -> None:
    head = talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False)
    talk.send(head, *talk.data(1, body_of(1), end=False), talk.headers(1, [trailer]))
    assert talk.answer(1).reset is ErrorCodes.PROTOCOL_ERROR
    talk.reach()
    assert not exists(server, topic)


def test_trailers_do_not_hide_a_body_that_is_too_short(server: Running, talk: Talk, topic: str) -> None:
    body = body_of(1)
    fields = talk.head(
        b"POST", f"/v0/topics/{topic}".encode(), [*JSON, (b"content-length", b"%d" % (len(body) + 1))]
    )  # fmt: skip
    talk.send(talk.headers(1, fields, end=False), *talk.data(1, body, end=False), talk.headers(1, [(b"x", b"1")]))
    assert talk.answer(1).reset is ErrorCodes.PROTOCOL_ERROR
    talk.reach()
    assert not exists(server, topic)


def test_trailers_must_end_the_stream(server: Running, talk: Talk, topic: str) -> None:
    head = talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False)
    talk.send(head, talk.headers(1, [(b"x", b"1")], end=False))
    assert talk.answer(1).reset is ErrorCodes.PROTOCOL_ERROR
    talk.reach()


def test_129_fields_are_answered_431(talk: Talk) -> None:
    """[API-26], 02 §1.6"""
    talk.request(1, b"GET", b"/v0/health", more=[(b"x-%d" % n, b"") for n in range(128)])
    assert talk.answer(1).status == 200
    talk.request(3, b"GET", b"/v0/health", more=[(b"x-%d" % n, b"") for n in range(129)])
    assert talk.answer(3).status == 431
    assert json.loads(talk.answers[3].body)["error"]["code"] == "headers_too_large"
    talk.reach()


# -- answers before the end of the body ------------------------------------------------------------------------------


def early(talk: Talk, id: int, name: str) -> None:
    """A request that is answered by its head, its body to come."""
    fields = talk.head(b"POST", f"/v0/topics/{name}".encode(), [*JSON, (b"content-length", b"999999999")])
    talk.send(talk.headers(id, fields, end=False))
    assert talk.answer(id).status == 413


@pytest.mark.parametrize("length", [b"%d" % 2**64, b"9" * 30])
def test_a_length_that_no_64_bits_hold_is_too_large(talk: Talk, topic: str, length: bytes) -> None:
    """[API-15, API-2]"""
    fields = talk.head(b"POST", f"/v0/topics/{topic}".encode(), [*JSON, (b"content-length", length)])
    talk.send(talk.headers(1, fields, end=False))
    assert talk.answer(1).status == 413


def test_an_early_answer_is_followed_by_a_reset_without_error(timed: Running, clock: ManualClock, topic: str) -> None:
    """[API-15, API-26]: after a second, in which the client may notice."""
    with Talk(timed) as talk:
        early(talk, 1, topic)
        answer = talk.answers[1]
        assert json.loads(answer.body)["error"]["code"] == "payload_too_large"
        talk.reach()
        assert (answer.ended, answer.reset) == (True, None)
        pass_time(timed, clock, 1)
        talk.reach()
        assert answer.reset is ErrorCodes.NO_ERROR


def test_who_reads_the_answer_only_after_sending_everything_gets_it(client: httpx.Client) -> None:
    """[API-25, API-26]: more than a window of a body that nobody wants."""
    answer = client.post("/v0/nothing", content=bytes(3 * MIB), headers={"content-type": "application/json"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_a_client_that_waits_for_window_learns_of_the_reset(timed: Running, clock: ManualClock, topic: str) -> None:
    """[API-26]: clients that look for a reset only when they may send are woken."""
    with Talk(timed) as talk:
        early(talk, 1, topic)
        pass_time(timed, clock, 1)
        talk.reach()
        assert talk.stream_windows == {1: 1}
        assert talk.answers[1].reset is ErrorCodes.NO_ERROR


def test_who_stops_or_completes_the_body_after_an_early_answer_is_not_reset(
    timed: Running, clock: ManualClock, topic: str
) -> None:
    """[API-26]"""
    with Talk(timed) as talk:
        early(talk, 1, topic)
        talk.send(RstStreamFrame(1, error_code=8))
        fields = talk.head(b"POST", b"/v0/nothing", JSON)
        talk.send(talk.headers(3, fields, end=False), *talk.data(3, bytes(200_000), end=False))
        assert talk.answer(3).status == 404
        talk.send(*talk.data(3, b"the end"))
        talk.reach()
        pass_time(timed, clock, 2)
        talk.reach()
        assert talk.answers[1].reset is talk.answers[3].reset is None
        assert talk.parting() is None


def test_what_is_still_sent_after_an_early_answer_costs_the_connection_nothing(
    timed: Running, clock: ManualClock, topic: str
) -> None:
    """More than the connection's window in all: what is dropped is given back, before the reset and after it."""
    half = bytes(MIB // 2 - 16384)
    with Talk(timed) as talk:
        for id in range(1, 21, 2):
            early(talk, id, topic)
            talk.send(*talk.data(id, half, end=False))
            talk.reach()
            pass_time(timed, clock, 1)
            talk.send(*talk.data(id, half, end=False))
            talk.reach()
            assert talk.answers[id].reset is ErrorCodes.NO_ERROR, "one reset is enough"
        # h2 gives small amounts back together.
        assert talk.window > 2 * MIB + 20 * len(half)
        talk.request(99, b"GET", b"/v0/health")
        assert talk.answer(99).status == 200


def test_window_is_given_back_only_for_what_fits_the_buffered_bytes(topic: str) -> None:
    """[API-26, RES-3]"""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": str(MIB)}) as server, Talk(server) as talk:
        path = f"/v0/topics/{topic}".encode()
        for id in (1, 3):
            talk.send(talk.headers(id, talk.head(b"POST", path, JSON), end=False))
            talk.send(*talk.data(id, b" " * 700_000, end=False))
        assert talk.answer(3).status == 429
        assert json.loads(talk.answers[3].body)["error"]["detail"] == {"limit": "max_buffered_bytes", "max": MIB}
        talk.send(*talk.data(3, b" " * 300_000, end=False))
        talk.reach()
        assert talk.stream_windows.get(3, 0) <= 1
        talk.send(*talk.data(1, body_of(1)))
        assert talk.answer(1).status == 201
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0


# -- output ----------------------------------------------------------------------------------------------------------


def test_an_answer_leaves_as_the_windows_allow(server: Running, topic: str) -> None:
    """[API-26]: first the stream's window is the narrower one, then the connection's."""
    fill(server, topic, 200_000)
    with Talk(server, initial_window=1000, windows=False) as talk:
        diff(talk, 1, topic)
        talk.until(lambda: 1 in talk.answers and len(talk.answers[1].body) == 1000)
        talk.reach()
        talk.give(500, 1)
        talk.until(lambda: len(talk.answers[1].body) == 1500)
        talk.reach()
        talk.give(10 * MIB, 1)
        talk.until(lambda: len(talk.answers[1].body) == 65535)
        talk.reach()
        assert len(talk.answers[1].body) == 65535
        talk.give(10 * MIB, 0)
        assert len(json.loads(talk.answer(1).body)["records"][0]["data"]) == 200_000


def test_a_larger_initial_window_opens_running_streams(server: Running, topic: str) -> None:
    """RFC 9113 §6.9.2"""
    fill(server, topic, 20_000)
    with Talk(server, initial_window=0, windows=False) as talk:
        diff(talk, 1, topic)
        talk.until(lambda: 1 in talk.answers)
        talk.reach()
        assert talk.answers[1].body == b""
        talk.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 50_000}))
        assert talk.answer(1).status == 200


def test_large_answers_of_several_streams_take_turns(server: Running, topic: str) -> None:
    """[API-26]: none waits for the other's last byte."""
    fill(server, topic, 400_000)
    with Talk(server, initial_window=0) as talk:
        talk.give(64 * MIB, 0)
        diff(talk, 1, topic)
        diff(talk, 3, topic)
        talk.until(lambda: talk.answers.keys() == {1, 3})
        talk.reach()
        talk.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 16 * MIB}))
        sizes = [int(talk.answer(id).headers[b"content-length"]) for id in (1, 3)]
        assert [len(talk.answers[id].body) for id in (1, 3)] == sizes
        assert talk.order[:6] in ([1, 3] * 3, [3, 1] * 3)


def test_no_request_is_started_while_a_mebibyte_is_unsent(server: Running, topic: str) -> None:
    """[API-24]"""
    fill(server, topic, 1_500_000)
    with Talk(server, initial_window=0, windows=False) as talk:
        diff(talk, 1, topic, max_batch_bytes=8 * MIB)
        talk.until(lambda: 1 in talk.answers)
        talk.request(3, b"PUT", f"/v0/topics/{topic}-late".encode(), b"{}")
        talk.request(5, b"GET", b"/v0/health")
        talk.reach()
        assert not exists(server, f"{topic}-late")
        assert 5 not in talk.answers
        talk.give(10 * MIB, 0, 1, 3, 5)
        assert [talk.answer(id).status for id in (1, 3, 5)] == [200, 201, 200]
        assert exists(server, f"{topic}-late")


def test_a_waiting_request_that_is_reset_is_never_executed(server: Running, topic: str) -> None:
    """[API-24, API-26]"""
    fill(server, topic, 1_500_000)
    with Talk(server, initial_window=0, windows=False) as talk:
        diff(talk, 1, topic, max_batch_bytes=8 * MIB)
        talk.until(lambda: 1 in talk.answers)
        talk.request(3, b"PUT", f"/v0/topics/{topic}-late".encode(), b"{}")
        talk.send(RstStreamFrame(3, error_code=8))
        talk.give(10 * MIB, 0, 1)
        assert talk.answer(1).status == 200
        talk.reach()
        assert not exists(server, f"{topic}-late")


def test_a_paused_stream_is_cancelled_and_the_others_go_on(timed: Running, clock: ManualClock, topic: str) -> None:
    """[API-24, API-26]"""
    fill(timed, topic, 5000)
    with Talk(timed, initial_window=100, windows=False) as talk:
        diff(talk, 1, topic)
        diff(talk, 3, topic)
        talk.until(lambda: all(id in talk.answers and len(talk.answers[id].body) == 100 for id in (1, 3)))
        for _ in range(4):
            pass_time(timed, clock, 10)
            talk.give(10, 3)
            talk.reach()
        assert talk.answers[1].reset is ErrorCodes.CANCEL
        assert talk.answers[3].reset is None
        talk.give(MIB, 3)
        assert talk.answer(3).status == 200


def test_a_client_that_does_not_read_is_closed_after_30_s(timed: Running, clock: ManualClock, topic: str) -> None:
    """[API-24]"""
    fill(timed, topic, 4_000_000)
    with Talk(timed, initial_window=64 * MIB, windows=False) as talk:
        talk.give(1 << 30, 0)
        for id in range(1, 17, 2):
            diff(talk, id, topic, max_batch_bytes=8 * MIB)
        until_stuck(timed)
        pass_time(timed, clock, 0)
        pass_time(timed, clock, 29.9)
        assert len(speaking(timed)) == 1
        pass_time(timed, clock, 0.2)
        talk.until_closed()
        assert not all(id in talk.answers and talk.answers[id].ended for id in range(1, 17, 2))


def until_stuck(server: Running) -> None:
    """The only connection's output stands still: what left it is the same for a while of other requests."""
    settle(server)
    (one,) = speaking(server)
    seen: list[int] = []
    while len(seen) < 10 or len(set(seen[-10:])) > 1:
        settle(server)
        unsent, gone = server.on_loop(
            lambda: (one._transport.get_write_buffer_size(), one._written - one._transport.get_write_buffer_size())
        )
        seen = [*seen, gone] if unsent else []


# -- deadlines -------------------------------------------------------------------------------------------------------


def test_a_body_has_60_s_and_one_more_per_mebibyte(timed: Running, clock: ManualClock, topic: str) -> None:
    """[API-3]: the stream is answered 408, the others go on."""
    with Talk(timed) as talk:
        path = f"/v0/topics/{topic}".encode()
        talk.send(talk.headers(1, talk.head(b"POST", path, JSON), end=False))
        length = (b"content-length", b"%d" % (5 * MIB))
        talk.send(talk.headers(3, talk.head(b"POST", path, [*JSON, length]), end=False))
        talk.reach()
        for _ in range(3):
            pass_time(timed, clock, 19.9)
            talk.reach()
        assert not talk.answers
        pass_time(timed, clock, 0.3)
        answer = talk.answer(1)
        assert answer.status == 408
        assert json.loads(answer.body)["error"]["code"] == "request_timeout"
        pass_time(timed, clock, 4.7)
        talk.reach()
        assert answer.reset is ErrorCodes.NO_ERROR
        assert 3 not in talk.answers
        pass_time(timed, clock, 0.4)
        assert talk.answer(3).status == 408
        assert not exists(timed, topic)


@pytest.mark.parametrize("size", [5, 12, 40])
def test_half_a_head_has_30_s(timed: Running, clock: ManualClock, size: int) -> None:
    """[API-3]: cut within a frame."""
    with Talk(timed) as talk:
        talk.reach()
        head = talk.headers(1, talk.head(b"GET", b"/v0/health", [(b"x", b"y" * 100)])).serialize()
        talk.send_bytes(head[:size])
        assert_closed_after_30_s(timed, clock, talk)


def test_a_head_that_is_never_completed_has_30_s(timed: Running, clock: ManualClock) -> None:
    """[API-3]: a CONTINUATION now and then does not prolong it."""
    with Talk(timed) as talk:
        talk.reach()
        talk.send(HeadersFrame(1, data=b"\x82"))
        settle(timed)
        pass_time(timed, clock, 29)
        talk.send(ContinuationFrame(1, data=b"\x84"))
        settle(timed)
        pass_time(timed, clock, 1.1)
        talk.until_closed()
        assert talk.parting() is ErrorCodes.ENHANCE_YOUR_CALM


def assert_closed_after_30_s(server: Running, clock: ManualClock, talk: Talk) -> None:
    settle(server)
    pass_time(server, clock, 29.9)
    settle(server)
    assert len(speaking(server)) == 1
    pass_time(server, clock, 0.2)
    talk.until_closed()
    assert talk.parting() is ErrorCodes.ENHANCE_YOUR_CALM


def test_half_a_preface_has_30_s(timed: Running, clock: ManualClock) -> None:
    """[API-3, API-25]"""
    with socket.create_connection((timed.host, timed.port), timeout=WAIT_S) as sock:
        sock.sendall(PREFACE[:20])
        settle(timed)
        pass_time(timed, clock, 30.1)
        sock.sendall(PREFACE[20:])
        assert received(sock).startswith(b"HTTP/1.1 408 ")


def test_a_silent_connection_is_pinged_and_closed_when_it_stays_silent(timed: Running, clock: ManualClock) -> None:
    """[API-3]"""
    with Talk(timed) as talk:
        talk.reach()
        pass_time(timed, clock, 19)
        talk.reach()
        assert talk.pings == 0
        pass_time(timed, clock, 20)
        talk.until(lambda: talk.pings == 1)
        talk.send(PingFrame(0, opaque_data=bytes(8), flags=["ACK"]))
        talk.reach()
        pass_time(timed, clock, 20)
        talk.until(lambda: talk.pings == 2)
        pass_time(timed, clock, 19)
        assert len(speaking(timed)) == 1
        pass_time(timed, clock, 1)
        talk.until_closed()


# -- floods ----------------------------------------------------------------------------------------------------------

FLOODS: dict[str, Callable[[], Frame]] = {
    "ping": lambda: PingFrame(0, opaque_data=bytes(8)),
    "ping ack": lambda: PingFrame(0, opaque_data=bytes(8), flags=["ACK"]),
    "settings": lambda: SettingsFrame(0),
    "priority": lambda: PriorityFrame(1, depends_on=0, stream_weight=1, exclusive=False),
    "reset": lambda: RstStreamFrame(1, error_code=8),
    "empty data": lambda: DataFrame(1, data=b""),
    "padding only": lambda: DataFrame(1, data=b"", pad_length=1, flags=["PADDED"]),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_more_than_a_thousand_costly_frames_within_10_s_end_the_connection(
    timed: Running, clock: ManualClock, topic: str, kind: str
) -> None:
    """[API-26]"""
    one = FLOODS[kind]().serialize()
    with Talk(timed) as talk:
        # Settings, their acknowledgement and the pings of the test count too.
        talk.send(talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False))
        talk.reach()
        talk.send_bytes(one * 990)
        talk.reach()
        pass_time(timed, clock, 9.9)
        talk.send_bytes(one * 5)
        talk.reach()
        assert talk.parting() is None
        pass_time(timed, clock, 0.2)
        talk.send_bytes(one * 900)
        talk.reach()
        assert talk.parting() is None
        talk.send_bytes(one * 101)
        talk.until_closed()
        assert talk.parting() is ErrorCodes.ENHANCE_YOUR_CALM


def test_a_client_that_makes_the_server_reset_streams_is_a_flood_too(timed: Running) -> None:
    """[API-26]: resets by the server cost as much as those by the client."""
    with Talk(timed) as talk:
        for id in range(1, 2001, 2):
            talk.send(talk.headers(id, [(b":method", b"GET")]))
        talk.until_closed()
        assert talk.parting() is ErrorCodes.ENHANCE_YOUR_CALM


def test_ending_bodies_with_an_empty_frame_is_no_flood(timed: Running, topic: str) -> None:
    """As many clients do, for every request."""
    with Talk(timed) as talk:
        for id in range(1, 2401, 2):
            path = f"/v0/topics/{topic}".encode()
            talk.send(talk.headers(id, talk.head(b"PUT", path), end=False), DataFrame(id, flags=["END_STREAM"]))
            assert talk.answer(id).status in (200, 201)


@pytest.mark.parametrize("by", ["bytes", "reference"])
def test_a_header_block_over_the_limit_ends_the_connection(server: Running, topic: str, by: str) -> None:
    """[API-26]: large as sent, or large once the client's references are resolved."""
    with Talk(server) as talk:
        talk.request(1, b"GET", b"/v0/health")
        assert talk.answer(1).status == 200
        if by == "bytes":
            more = [(b"x-%d" % n, random.Random(n).randbytes(4000).hex().encode()) for n in range(20)]
        else:
            more = [(b"x", b"y" * 4000)] * 100
        talk.send(*talk.block(3, talk.head(b"PUT", f"/v0/topics/{topic}".encode(), more)))
        talk.until_closed()
        assert talk.parting() is ErrorCodes.ENHANCE_YOUR_CALM
    assert not exists(server, topic)


def test_an_overlong_frame_is_refused_by_its_header(talk: Talk) -> None:
    """None of its bytes are waited for."""
    talk.reach()
    talk.send_bytes((16385).to_bytes(3, "big") + bytes([0, 0]) + (1).to_bytes(4, "big"))
    talk.until_closed()
    assert talk.parting() is ErrorCodes.FRAME_SIZE_ERROR


def test_broken_header_compression_ends_the_connection(talk: Talk) -> None:
    """RFC 9113 §4.3: also in trailers, where a stream would be at hand."""
    talk.send(talk.headers(1, talk.head(b"POST", b"/v0/topics/t", JSON), end=False))
    talk.send(HeadersFrame(1, data=b"\xff\xff\xff\xff\xff\x0f", flags=["END_HEADERS", "END_STREAM"]))
    talk.until_closed()
    assert talk.parting() not in (None, ErrorCodes.NO_ERROR)


def test_rapid_resets_leave_nothing_behind(topic: str) -> None:
    """[API-26]: neither slots of the key, nor waiting reads, nor buffered bytes, nor streams."""
    env = {"TOPICS_API_KEYS": "secret"}
    with running(env=env) as server, Talk(server) as talk:
        with server.client(key="secret") as client:
            client.post(f"/v0/topics/{topic}", json=records(1))
        bearer = (b"authorization", b"Bearer secret")
        path = f"/v0/topics/{topic}/diff".encode()
        for id in range(1, 1801, 4):
            head = talk.head(b"POST", path, [*JSON, bearer])
            waiting = talk.headers(id, head, end=False), *talk.data(id, b'{"from_seq":1,"wait_ms":30000}')
            half = talk.headers(id + 2, head, end=False), *talk.data(id + 2, b" " * 1000, end=False)
            talk.send(*waiting, *half, RstStreamFrame(id, error_code=8), RstStreamFrame(id + 2, error_code=8))
        talk.reach()

        def left() -> tuple[int, int, int]:
            app = server.server.app
            assert app.engine is not None
            waiters = app.engine.core.names[topic].waiters
            return app.buffered.used, sum(key.usage.inflight for key in app.keys.keys), len(waiters)

        assert server.on_loop(left) == (0, 0, 0)
        assert not any(answer.status for answer in talk.answers.values())
        talk.request(9001, b"GET", b"/v0/topics", more=[bearer])
        assert talk.answer(9001).status == 200


def test_a_write_that_was_reset_is_not_undone_and_gives_its_slot_back(topic: str) -> None:
    """[API-23, R-6]: it was staged when the reset came."""
    with running(env={"TOPICS_API_KEYS": "secret"}) as server, Talk(server) as talk:
        with server.client(key="secret") as client:
            client.put(f"/v0/topics/{topic}", json={"durability": "fsync"})
            bearer = (b"authorization", b"Bearer secret")
            for id in range(1, 101, 2):
                head = talk.head(b"POST", f"/v0/topics/{topic}".encode(), [*JSON, bearer])
                talk.send(
                    talk.headers(id, head, end=False), *talk.data(id, body_of(id)), RstStreamFrame(id, error_code=8)
                )
            talk.reach()
            # In the topic's order behind all of them.
            assert client.post(f"/v0/topics/{topic}", json=records(0)).json()["last_seq"] == 51
        app = server.server.app
        assert server.on_loop(lambda: sum(key.usage.inflight for key in app.keys.keys)) == 0


class SlowFile(OsFile):
    """Its syncs wait for the gate."""

    def __init__(self, fd: int, gate: threading.Event) -> None:
        super().__init__(fd)
        self.gate = gate

    def fdatasync(self) -> None:
        assert self.gate.wait(WAIT_S)
        super().fdatasync()


class SlowFs(OsFs):
    """A disk whose syncs are held up while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, mode: Mode) -> File:
        inner = super().open(path, mode)
        assert isinstance(inner, OsFile)
        return SlowFile(inner.fd, self.gate)


@contextmanager
def opened(gate: threading.Event) -> Iterator[None]:
    """A failed test must not leave the server waiting for its disk."""
    try:
        yield
    finally:
        gate.set()


def test_a_reset_makes_no_room_while_the_request_is_executed(topic: str) -> None:
    """[API-26]: what runs is bounded by the number of streams, however fast the client resets them."""
    fs = SlowFs()
    with running(fs=fs) as server, Talk(server) as talk, server.client() as client, opened(fs.gate):
        path = f"/v0/topics/{topic}".encode()
        assert client.put(f"/v0/topics/{topic}", json={"durability": "fsync"}).status_code == 201
        fill(server, f"{topic}-quiet", 10)
        fs.gate.clear()
        running_ids, waiting_ids = range(1, 1201, 2), range(1201, 1 + 2 * STREAMS, 2)
        for id in running_ids:
            head = talk.headers(id, talk.head(b"POST", path, JSON), end=False)
            talk.send(head, *talk.data(id, body_of(id)), RstStreamFrame(id, error_code=8))
        for id in waiting_ids:
            talk.send(*waiting_read(talk, id, f"{topic}-quiet"))
        late = waiting_ids[-1] + 2
        talk.request(late, b"GET", b"/v0/health")
        assert talk.answer(late).reset is ErrorCodes.REFUSED_STREAM
        assert talk.answers.keys() == {late}
        fs.gate.set()
        # In the topic's order behind all of them.
        assert client.post(f"/v0/topics/{topic}", json=records(0)).json()["last_seq"] == len(running_ids) + 1
        talk.request(late + 2, b"GET", b"/v0/health")
        assert talk.answer(late + 2).status == 200


def test_a_write_whose_client_left_completes_in_the_drain(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """[API-5, API-23]: nothing waits for it but the disk, and the engine closes only after it."""
    fs = SlowFs()
    with running(fs=fs) as server, opened(fs.gate), caplog.at_level(logging.ERROR):
        with server.client() as client:
            assert client.put(f"/v0/topics/{topic}", json={"durability": "fsync"}).status_code == 201
        fs.gate.clear()
        with Talk(server) as talk:
            head = talk.headers(1, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False)
            talk.send(head, *talk.data(1, body_of("kept")), RstStreamFrame(1, error_code=8))
            talk.reach()
        app = server.server.app
        server.loop.call_soon_threadsafe(server._stopping.set)
        while server.on_loop(lambda: app.engine is not None):
            pass
        fs.gate.set()
        server.stop()
    assert not caplog.records


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_drain_lets_running_streams_finish(topic: str) -> None:
    """[API-5, API-26]: GOAWAY first, then answers, then the end."""
    with running() as server, Talk(server) as talk:
        fill(server, topic, 10)
        diff(talk, 1, topic, from_seq=1, wait_ms=30_000)
        talk.send(talk.headers(3, talk.head(b"POST", f"/v0/topics/{topic}".encode(), JSON), end=False))
        talk.reach()
        server.loop.call_soon_threadsafe(server._stopping.set)
        talk.until(lambda: talk.goaway is not None)
        assert talk.goaway is not None
        assert (talk.goaway.error_code, talk.goaway.last_stream_id) == (ErrorCodes.NO_ERROR, 3)
        assert json.loads(talk.answer(1).body)["records"] == []
        talk.request(5, b"GET", f"/v0/topics/{topic}".encode())
        assert json.loads(talk.answer(5).body)["error"]["code"] == "shutting_down"
        talk.send(*talk.data(3, body_of(1)))
        assert talk.answer(3).status == 200
        talk.until_closed()


def test_what_a_client_sends_while_the_server_stops_is_no_reset() -> None:
    """[API-5] A close with something unread would be one, and what was said last might not arrive."""
    with running() as server, Talk(server) as talk:
        talk.reach()
        (served,) = [one._spoken for one in server.server.connections.open if isinstance(one._spoken, Http2)]

        def stop() -> None:
            talk.send(PingFrame(0, opaque_data=b"unread!!"))
            served.drain()

        server.on_loop(stop)
        said = b"".join(iter(lambda: talk._sock.recv(1 << 16), b""))
        assert GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR).serialize() in said


def test_an_idle_connection_ends_with_the_drain(topic: str) -> None:
    """[API-5]"""
    with running() as server, Talk(server) as talk:
        talk.reach()
        server.stop()
        talk.until_closed()
        assert talk.parting() is ErrorCodes.NO_ERROR


def test_after_the_end_of_input_complete_requests_are_answered_and_waiting_ones_end(timed: Running, topic: str) -> None:
    """[API-23]"""
    fill(timed, topic, 10)
    with Talk(timed) as talk:
        talk.reach()
        frames = [
            *waiting_read(talk, 1, topic),
            talk.headers(3, talk.head(b"POST", f"/v0/topics/{topic}-half".encode(), JSON), end=False),
            talk.headers(5, talk.head(b"POST", f"/v0/topics/{topic}-whole".encode(), JSON), end=False),
            *talk.data(5, body_of(1)),
        ]
        talk.send(*frames)
        talk.end_input()
        assert talk.answer(5).status == 201
        talk.until_closed()
        assert talk.answers[1].status == talk.answers[3].status == 0

    def waiters() -> int:
        engine = timed.server.app.engine
        assert engine is not None
        return len(engine.core.names[topic].waiters)

    assert timed.on_loop(waiters) == 0


def waiting_read(talk: Talk, id: int, name: str) -> list[Frame]:
    head = talk.headers(id, talk.head(b"POST", f"/v0/topics/{name}/diff".encode(), JSON), end=False)
    return [head, *talk.data(id, b'{"from_seq":1,"wait_ms":30000}')]


def test_a_client_that_goes_away_gets_its_answers_first(server: Running, talk: Talk, topic: str) -> None:
    """RFC 9113 §6.8"""
    fill(server, topic, 10)
    talk.send(*waiting_read(talk, 1, topic), GoAwayFrame(0))
    talk.reach()
    with server.client() as client:
        client.post(f"/v0/topics/{topic}", json=records("woken"))
    assert talk.answer(1).status == 200
    talk.until_closed()


def test_whatever_frames_arrive_the_server_answers_others(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """[API-26]: random frames, random order, some broken; nothing reaches the loop as an exception."""
    seed = 20_260
    dice = random.Random(seed)
    with caplog.at_level(logging.ERROR):
        for _ in range(60):
            encoder = Encoder()
            pieces = [PREFACE, SettingsFrame(0).serialize()]
            pieces += [_any_frame(dice, encoder) for _ in range(dice.randrange(1, 40))]
            sent = b"".join(pieces)
            with socket.create_connection((server.host, server.port), timeout=WAIT_S) as sock:
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
                received(sock)
    assert not caplog.records, f"seed {seed}"
    with server.client(http2=True) as client:
        assert client.get("/v0/health").status_code == 200
    assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def _any_frame(dice: random.Random, encoder: Encoder) -> bytes:
    id = dice.choice([0, 1, 2, 3, 5, 7, 9, 11])
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", b"/v0/topics/f")]
    fields += dice.sample(
        [*JSON, (b"content-length", b"3"), (b"X", b"1"), (b"te", b"x"), (b"expect", b"100-continue")], 2
    )
    flags = dice.choice([0, 1, 4, 5, 0x24, 0x25, 8, 13])
    kind = dice.choice([0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 8, 9, 10, 77])
    payload = {
        0: dice.randbytes(dice.choice([0, 1, 3, 100])),
        1: dice.choice([bytes(5) if flags & 0x20 else b"", b""]) + encoder.encode(fields),
        2: dice.randbytes(5),
        3: bytes(4),
        4: dice.randbytes(6 * dice.randrange(3)),
        6: bytes(8),
        8: dice.choice([bytes(4), b"\0\0\0\x05", b"\x7f\xff\xff\xff"]),
    }.get(kind, dice.randbytes(dice.randrange(20)))
    if dice.random() < 0.05:
        payload = dice.randbytes(dice.randrange(30))
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + id.to_bytes(4, "big") + payload


def test_the_window_of_a_stream_may_not_overflow(server: Running, topic: str) -> None:
    """RFC 9113 §6.9.1: an error of the stream."""
    fill(server, topic, 10)
    with Talk(server) as talk:
        talk.send(*waiting_read(talk, 1, topic), WindowUpdateFrame(1, window_increment=2**31 - 1))
        assert talk.answer(1).reset is ErrorCodes.FLOW_CONTROL_ERROR
        talk.reach()
