"""The WebSocket connection: handshake, messages, pings, ends (03 §8.1) [WS-1 … WS-8, WS-19]."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.api.kit import WAIT_S, Running, running
from tests.api.rawclient import RawClient, get, until, write
from tests.api.test_tls import client_context, server_context
from tests.api.wskit import (
    BINARY,
    CLOSE,
    CONT,
    KEY,
    LAST,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    Ws,
    command,
    framed,
    is_all_let_go,
    passes,
    request,
    streams,
    text,
)
from tests.security.kit import GateFs
from topics.errors import WalIo
from topics.server import keys
from topics.testing import ManualClock


@pytest.fixture
def ws(server: Running) -> Iterator[Ws]:
    with Ws(server) as one:
        yield one
    is_all_let_go(server)


@pytest.fixture
def timed_ws(timed_server: Running) -> Iterator[Ws]:
    with Ws(timed_server) as one:
        yield one


# -- handshake -------------------------------------------------------------------------------------------------------


def test_a_client_of_another_maker_gets_through(server: Running, topic: str) -> None:
    """[WS-1, WS-19] It offers compression and a subprotocol; neither is taken up."""
    url = f"ws://{server.host}:{server.port}/v0/ws"
    with connect(url, compression="deflate", subprotocols=["topics.v9"]) as ws:  # type: ignore[list-item]
        assert ws.subprotocol is None
        assert ws.response is not None
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        ws.send(f'{{"op":"publish","topic":"{topic}","records":[{{"data":1}}]}}')
        assert '"first_seq":1' in ws.recv(WAIT_S)
        assert ws.ping().wait(WAIT_S)
    assert ws.close_code == 1000
    is_all_let_go(server)


def test_the_answer_to_the_handshake(ws: Ws) -> None:
    """[WS-1, API-28]"""
    assert ws.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert ws.headers["upgrade"] == "websocket"
    assert ws.headers["connection"] == "Upgrade"
    assert ws.headers["cache-control"] == "no-store"
    assert "content-length" not in ws.headers
    assert "sec-websocket-protocol" not in ws.headers


@pytest.mark.parametrize(
    "missing", range(len(UPGRADE)), ids=["connection", "upgrade", "version", "key"]
)  # fmt: skip
def test_a_request_without_a_valid_upgrade_is_400_and_the_connection_goes_on(server: Running, missing: int) -> None:
    """[WS-1]"""
    fields = tuple(field for at, field in enumerate(UPGRADE) if at != missing)
    with RawClient(server) as client:
        answer = client.send(request(upgrade=fields)).answer()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["sec-websocket-version"] == "13"
        assert client.send(get("/v0/health")).answer().status == 200
    assert server.on_loop(lambda: streams(server)) == 0


def test_http_1_0_has_no_upgrade(server: Running) -> None:
    """[WS-1], RFC 9110 §7.8"""
    with RawClient(server) as client:
        answer = client.send(request().replace(b"HTTP/1.1", b"HTTP/1.0")).answer()
        assert (answer.status, answer.code) == (400, "invalid_request")


def test_over_http_2_it_is_400(server: Running) -> None:
    """[API-26]"""
    with server.client(http2=True) as client:
        answer = client.get("/v0/ws", headers={"sec-websocket-version": "13", "sec-websocket-key": KEY})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE"])
def test_only_get_is_for_this_path(server: Running, method: str) -> None:
    """[API-21]"""
    with server.client() as client:
        answer = client.request(method, "/v0/ws")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


def test_requests_before_the_upgrade_are_answered_and_what_is_behind_it_belongs_to_the_socket(
    server: Running, topic: str
) -> None:
    """[WS-1, API-25] All of it in one piece."""
    with RawClient(server) as client:
        client.send(write(topic) + get("/v0/health") + request() + command("ping", request_id=7) + framed(LAST | PING))
        assert client.answer().status == 201
        assert client.answer().status == 200
        assert client.answer().status == 101
        assert client.finish().rest() == b'\x81\x1c{"op":"pong","request_id":7}\x8a\x00'


def test_a_body_of_the_handshake_is_read_and_is_no_message(server: Running) -> None:
    """[API-10]"""
    with RawClient(server) as client:
        body = command("ping", request_id="in the body")
        client.send(request(f"Content-Length: {len(body)}") + body + command("ping", request_id=1))
        assert client.answer().status == 101
        assert client.finish().rest()[2:] == b'{"op":"pong","request_id":1}'


def test_a_handshake_in_single_bytes_is_one(server: Running) -> None:
    with RawClient(server) as client:
        for byte in request() + command("ping"):
            client.send(bytes([byte]))
        assert client.answer().status == 101
        until(server, lambda: streams(server) == 1)
        assert client.finish().rest()[2:] in (b'{"op":"pong","request_id":null}', b"")
    is_all_let_go(server)


def test_over_tls_it_is_the_same(topic: str) -> None:
    """[API-2, API-4] Both ways, more than the marks hold, and both ends: the client's close and the server's."""
    with running(tls=server_context()) as server:
        url = f"wss://localhost:{server.port}/v0/ws"
        with connect(url, ssl=client_context(), max_size=None) as ws:
            ws.send(text_of("publish", topic=topic, records=[{"data": "x" * 300_000}] * 10))
            assert '"count":10' in ws.recv(WAIT_S)
            ws.send(text_of("subscribe", topic=topic, limit=2))
            told = [json.loads(ws.recv(WAIT_S)) for _ in range(7)]
            assert [one["op"] for one in told] == ["subscribed", *["record"] * 5, "caught_up"]
        assert ws.close_code == 1000
        is_all_let_go(server)
        with connect(url, ssl=client_context()) as ws:
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert "server_shutting_down" in str(ws.recv(WAIT_S))
            with pytest.raises(ConnectionClosed):
                ws.recv(WAIT_S)
            assert ws.close_code == 1001
            stopping.join(WAIT_S)
            assert not stopping.is_alive()


def text_of(op: str, **members: Any) -> str:
    return json.dumps({"op": op, **members})


# -- who may connect -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    env = {"TOPICS_API_KEYS": "boss,reader:read,writer:write:plant3:", "TOPICS_MAX_SSE_CONNECTIONS": "3",
           "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "2", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}  # fmt: skip
    with running(env=env) as one:
        yield one


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


@pytest.mark.parametrize("fields", [(), (bearer("nobody"),)], ids=["no key", "wrong key"])
def test_without_a_valid_key_it_is_401(guarded: Running, fields: tuple[str, ...]) -> None:
    """[WS-2] Before the upgrade is even looked at [API-20]."""
    for upgrade in (UPGRADE, ()):
        with RawClient(guarded) as client:
            answer = client.send(request(*fields, upgrade=upgrade)).answer()
            assert (answer.status, answer.code) == (401, "unauthorized")


def test_a_token_in_the_query_is_no_key(guarded: Running) -> None:
    """[WS-2, API-8]"""
    with RawClient(guarded) as client:
        assert client.send(request(path="/v0/ws?token=boss")).answer().status == 401


def test_any_valid_key_will_do_and_holds_no_slot_of_requests(guarded: Running) -> None:
    """[WS-2, RES-7] One request in flight is all a key has here."""
    with Ws(guarded, bearer("reader")), guarded.client(key="reader") as client:
        assert client.get("/v0/topics").status_code == 200
    is_all_let_go(guarded)


def test_over_the_cap_of_a_key_or_of_the_server_it_is_429(guarded: Running) -> None:
    """[WS-3, RES-2, RES-6] A slot is free again when its connection has ended, however that was."""

    def refused(key: str) -> Any:
        with RawClient(guarded) as client:
            answer = client.send(request(bearer(key))).answer()
            assert (answer.status, answer.code) == (429, "throttled")
            assert answer.headers["retry-after"] == "1"
            return answer.json()["error"]["detail"]

    first, second = Ws(guarded, bearer("reader")), Ws(guarded, bearer("reader"))
    assert refused("reader") == {"limit": "max_sse_connections_per_key", "max": 2}
    third = Ws(guarded, bearer("writer"))
    assert refused("boss") == {"limit": "max_sse_connections", "max": 3}
    with guarded.client(key="boss") as client:
        assert client.get("/v0/metrics", headers={"accept": "application/json"}).json()["sse_connections"] == 3
    first.sock.close()
    until(guarded, lambda: streams(guarded) == 2)
    second.send(framed(LAST | CLOSE))
    until(guarded, lambda: streams(guarded) == 1)
    third.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
    third.sock.close()
    is_all_let_go(guarded)
    second.sock.close()
    with Ws(guarded, bearer("reader")), Ws(guarded, bearer("reader")):
        pass
    is_all_let_go(guarded)


def test_an_upgrade_that_is_refused_takes_no_slot(guarded: Running) -> None:
    """[RES-6]"""
    with RawClient(guarded) as client:
        for _ in range(5):
            assert client.send(request(bearer("reader"), upgrade=())).answer().status == 400
    with Ws(guarded, bearer("reader")), Ws(guarded, bearer("reader")):
        pass
    is_all_let_go(guarded)


def test_before_recovery_is_complete_it_is_503() -> None:
    """[API-6]"""
    with running(recover=False) as server, RawClient(server) as client:
        answer = client.send(request()).answer()
        assert (answer.status, answer.code) == (503, "not_ready")
        assert server.on_loop(lambda: streams(server)) == 0


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_ping_is_answered_with_a_pong_of_the_same_bytes(ws: Ws) -> None:
    """[WS-4] Also in the middle of a message."""
    ws.send(framed(LAST | PING, b"\x00\xff are you there"))
    assert ws.frame() == (PONG, b"\x00\xff are you there")
    ws.send(framed(TEXT, b'{"op":"pi') + framed(LAST | PING, b"x") + framed(LAST | CONT, b'ng"}'))
    assert ws.frame() == (PONG, b"x")
    assert ws.reply() == {"op": "pong", "request_id": None}


def test_a_pong_nobody_asked_for_is_passed_over(ws: Ws) -> None:
    ws.send(framed(LAST | PONG, b"x"))
    assert ws.ask("ping")["op"] == "pong"


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_binary_message_gets_an_error_and_the_connection_stays(ws: Ws, pieces: int) -> None:
    """[WS-4]"""
    data = b'{"op":"ping"}\xff'
    if pieces == 1:
        ws.send(framed(LAST | BINARY, data))
    else:
        ws.send(framed(BINARY, data) + framed(CONT, data) + framed(LAST | CONT, b""))
    told = ws.reply()
    assert told.keys() == {"op", "code", "message"}
    assert (told["op"], told["code"]) == ("error", "unsupported_message")
    assert ws.ask("ping")["op"] == "pong"


def test_a_message_may_come_in_pieces_of_any_size(ws: Ws) -> None:
    message = '{"op":"ping","request_id":"grüße"}'.encode()
    parts = [framed(CONT, message[at : at + 1]) for at in range(1, len(message))]
    ws.send(framed(TEXT, message[:1]) + framed(CONT) + b"".join(parts) + framed(LAST | CONT))
    assert ws.reply() == {"op": "pong", "request_id": "grüße"}


LIMIT = 5000


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    """A server that takes little."""
    with running(env={"TOPICS_MAX_BODY_BYTES": str(LIMIT)}) as one:
        yield one


def test_a_message_above_the_limit_closes_with_1009(small: Running) -> None:
    """[WS-6] As large as the limit is fine."""
    start, end = b'{"op":"ping","request_id":"', b'"}'
    fits = start + b"x" * (LIMIT - len(start) - len(end)) + end
    with Ws(small) as ws:
        assert ws.send(text(fits)).reply()["op"] == "pong"
        ws.send(text(fits + b" "))
        assert ws.closed()[0] == 1009
        assert ws.is_ended()
    is_all_let_go(small)


def test_the_limit_holds_for_the_pieces_together_and_before_they_have_come(small: Running) -> None:
    """[WS-6] Nothing of the piece that is too much was sent when it is refused."""
    for first, second in ((TEXT, CONT), (BINARY, CONT)):
        with Ws(small) as ws:
            ws.send(framed(first, b"x" * 4000) + framed(second, length=1001)[:8])
            assert ws.closed()[0] == 1009
    with Ws(small) as ws:
        ws.send(framed(LAST | TEXT, length=2**63)[:10])
        assert ws.closed()[0] == 1009
    is_all_let_go(small)


@pytest.mark.parametrize(
    "data",
    [
        framed(LAST | TEXT, b"\xff"),
        framed(TEXT, b"\xc3") + framed(LAST | CONT, b"x"),
        framed(TEXT, b"\xed\xa0\x80", length=9),
    ],
)
def test_text_that_is_not_utf_8_closes_with_1007(ws: Ws, data: bytes) -> None:
    """RFC 6455 §8.1"""
    ws.send(data)
    assert ws.closed()[0] == 1007
    assert ws.is_ended()


@pytest.mark.parametrize(
    "data",
    [b"\x81\x04ping", framed(0xC1, b"{}"), framed(LAST | 3), framed(CONT, b"x"), b"GET / HTTP/1.1\r\n\r\n"],
    ids=["no mask", "compressed", "unknown opcode", "nothing to go on with", "HTTP"],
)
def test_what_breaks_the_protocol_closes_with_1002(ws: Ws, data: bytes) -> None:
    """RFC 6455 §5 [WS-19]"""
    ws.send(data)
    assert ws.closed()[0] == 1002
    assert ws.is_ended()


def test_the_close_frame_arrives_although_more_is_being_sent(ws: Ws) -> None:
    """What is unread must not turn the end into a reset."""
    ws.send(framed(0xC1, b"{}") + b"\x00" * 3_000_000)
    assert ws.closed()[0] == 1002
    assert ws.sock.recv(1) == b""


# -- the client closes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", struct.pack(">H", 1000), struct.pack(">H", 4321) + "für heute".encode()])
def test_a_close_is_answered_with_the_same_and_the_connection_ends(ws: Ws, payload: bytes) -> None:
    """RFC 6455 §5.5.1"""
    ws.send(framed(LAST | CLOSE, payload))
    assert ws.frame() == (CLOSE, payload)
    assert ws.is_ended()


def test_what_was_asked_before_the_close_is_answered_before_it(ws: Ws, topic: str) -> None:
    """[WS-19] In order, although the answers take their time; what is behind the close is not read."""
    one = command("publish", topic=topic, records=[{"data": 1}])
    ws.send(one * 3 + framed(LAST | CLOSE, struct.pack(">H", 1000)) + one)
    assert [ws.reply()["first_seq"] for _ in range(3)] == [1, 2, 3]
    assert ws.closed() == (1000, "")
    assert ws.is_ended()


def test_the_end_of_input_ends_it_at_once(ws: Ws, server: Running) -> None:
    """[API-23]"""
    ws.send(framed(TEXT, b'{"op":'))
    until(server, lambda: server.server.app.buffered.used == 6)
    ws.sock.shutdown(1)
    assert ws.is_ended()
    is_all_let_go(server)


# -- pings of the server ---------------------------------------------------------------------------------------------


def test_after_20_seconds_of_silence_the_server_pings(timed_ws: Ws, timed_server: Running, clock: ManualClock) -> None:
    """[WS-19] A pong is enough to go on, again and again."""
    for _ in range(3):
        passes(timed_server, clock, 20)
        assert timed_ws.frame() == (PING, b"")
        passes(timed_server, clock, 19)
        timed_ws.send(framed(LAST | PONG) + command("ping"))
        assert timed_ws.reply()["op"] == "pong"


def test_who_says_something_is_not_pinged(timed_ws: Ws, timed_server: Running, clock: ManualClock) -> None:
    """[WS-19]"""
    for _ in range(4):
        passes(timed_server, clock, 19)
        assert timed_ws.ask("ping")["op"] == "pong"


def test_without_a_pong_within_20_seconds_the_connection_closes(
    timed_ws: Ws, timed_server: Running, clock: ManualClock
) -> None:
    """[WS-19]"""
    passes(timed_server, clock, 20)
    assert timed_ws.frame() == (PING, b"")
    passes(timed_server, clock, 19)
    assert timed_server.on_loop(lambda: timed_ws.served._state) == "open"
    passes(timed_server, clock, 1)
    assert timed_ws.closed()[0] == 1011
    passes(timed_server, clock, 1)
    assert timed_ws.is_ended()
    is_all_let_go(timed_server)


# -- the server closes -----------------------------------------------------------------------------------------------


def test_on_shutdown_there_is_an_error_frame_then_1001() -> None:
    """[WS-7, API-5] A client that answers the close is let go at once."""
    with running() as server, Ws(server) as ws:
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        told = ws.reply()
        assert told.keys() == {"op", "code", "message"}
        assert (told["op"], told["code"]) == ("error", "server_shutting_down")
        assert ws.closed()[0] == 1001
        ws.send(framed(LAST | CLOSE, struct.pack(">H", 1001)))
        assert ws.is_ended()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()


def test_on_shutdown_a_client_that_says_nothing_has_a_second() -> None:
    """[API-5] Time is the test's: one second, not the ten of a request."""
    clock = ManualClock()
    with running(clock=clock) as server, Ws(server) as ws:
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert ws.reply()["code"] == "server_shutting_down"
        assert ws.closed()[0] == 1001
        clock.advance(1000)
        assert ws.is_ended()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()


def test_a_client_of_another_maker_understands_the_shutdown() -> None:
    """[WS-7]"""
    with running() as server, connect(f"ws://{server.host}:{server.port}/v0/ws") as ws:
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert "server_shutting_down" in str(ws.recv(WAIT_S))
        with pytest.raises(ConnectionClosed):
            ws.recv(WAIT_S)
        assert ws.close_code == 1001
        stopping.join(WAIT_S)


def test_on_shutdown_what_was_staged_is_answered_first() -> None:
    """[WS-7, API-5] A publish that waits for its sync is a running request; what comes behind it is not read."""
    fs = GateFs()
    with running(fs=fs) as server, server.client() as client, Ws(server) as ws:
        client.put("/v0/topics/slow", json={"durability": "fsync"}).raise_for_status()
        fs.gate.clear()
        ws.send(command("publish", topic="slow", records=[{"data": 1}], request_id=1))
        until(server, lambda: not ws.served._commands.is_idle)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(server, lambda: ws.served._state == "parting")
        ws.send(command("ping"))
        fs.gate.set()
        assert ws.reply()["op"] == "ack"
        assert ws.reply()["code"] == "server_shutting_down"
        assert ws.closed()[0] == 1001
        ws.send(framed(LAST | CLOSE))
        stopping.join(WAIT_S)
        assert not stopping.is_alive()


def ring(text: str, server: Running) -> keys.KeyRing:
    return keys.KeyRing(keys.parse(text), server.server.app.keys)


def test_when_its_key_is_removed_there_is_an_error_then_1008() -> None:
    """[WS-7, KEY-4] Others stay."""
    with running(env={"TOPICS_API_KEYS": "old,other"}) as server:
        with Ws(server, bearer("old")) as old, Ws(server, bearer("other")) as other:
            server.on_loop(lambda: server.server.use_keys(ring("other,new", server)))
            told = old.reply()
            assert told.keys() == {"op", "code", "message"}
            assert (told["op"], told["code"]) == ("error", "unauthorized")
            assert old.closed()[0] == 1008
            old.send(framed(LAST | CLOSE, struct.pack(">H", 1008)))
            assert old.is_ended()
            assert other.ask("ping")["op"] == "pong"
            with RawClient(server) as client:
                assert client.send(request(bearer("old"))).answer().status == 401
        is_all_let_go(server)


def test_when_there_are_keys_at_last_who_has_none_is_told_so() -> None:
    """[WS-2, KEY-4]"""
    with running() as server, Ws(server) as ws:
        server.on_loop(lambda: server.server.use_keys(ring("k", server)))
        assert ws.reply()["code"] == "unauthorized"
        assert ws.closed()[0] == 1008


def test_what_cannot_be_read_any_more_ends_the_connection(ws: Ws, server: Running) -> None:
    """06 §21 The client may come back and go on from where it was."""
    server.on_loop(lambda: ws.served.broken(WalIo(OSError(5, "Input/output error"))))
    told = ws.reply()
    assert told.keys() == {"op", "code", "message"}
    assert (told["op"], told["code"]) == ("error", "internal")
    assert ws.closed()[0] == 1011


def test_the_rights_of_a_key_are_those_it_has_now(topic: str) -> None:
    """[KEY-4, WS-2] They may have changed since the handshake."""
    publish = {"topic": "t", "records": [{"data": 1}]}
    with running(env={"TOPICS_API_KEYS": "k:read"}) as server, Ws(server, bearer("k")) as ws:
        assert ws.ask("publish", **publish)["code"] == "forbidden"
        server.on_loop(lambda: server.server.use_keys(ring("k:read+write", server)))
        assert ws.ask("publish", **publish)["op"] == "ack"
        server.on_loop(lambda: server.server.use_keys(ring("k:write:u", server)))
        assert ws.ask("publish", **publish)["code"] == "forbidden"


def test_metrics_count_open_connections(server: Running) -> None:
    """[MET-2]"""

    def told(client: httpx.Client) -> int:
        answer = client.get("/v0/metrics", headers={"accept": "application/json"})
        count: int = answer.json()["sse_connections"]
        return count

    with server.client() as client:
        with Ws(server), Ws(server):
            assert told(client) == 2
        is_all_let_go(server)
        assert told(client) == 0
