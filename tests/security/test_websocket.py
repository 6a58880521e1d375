"""WebSocket connections that mean harm: other pages, floods, rubbish, readers that stop (13 §5)."""

from __future__ import annotations

import logging
import random
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.api.kit import Running, running
from tests.api.rawclient import RawClient, until
from tests.api.wskit import (
    BINARY,
    CLOSE,
    CONT,
    LAST,
    PING,
    PONG,
    TEXT,
    Ws,
    command,
    framed,
    is_all_let_go,
    is_held_up,
    passes,
    request,
    text,
)
from topics.server import websocket
from topics.testing import ManualClock

MIB = 1 << 20
LISTED = "https://board.example"


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that nobody foresaw happens meanwhile."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records] == []


# -- pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_pages() -> Iterator[Running]:
    with running(env={"TOPICS_CORS_ORIGINS": LISTED}) as one:
        yield one


@pytest.mark.parametrize(
    "fields",
    [("Origin: https://evil.example",), ("Origin: null",), ("Sec-Fetch-Site: cross-site",),
     ("Sec-Fetch-Site: same-site",)],
)  # fmt: skip
def test_a_page_of_another_origin_gets_no_connection(with_pages: Running, fields: tuple[str, ...]) -> None:
    """[API-22] (a) Browsers let any page try; here it is decided."""
    with RawClient(with_pages) as client:
        answer = client.send(request(*fields)).answer()
        assert (answer.status, answer.code) == (403, "forbidden")


def test_a_name_that_was_pointed_at_us_gets_no_connection(with_pages: Running) -> None:
    """[API-22] (b) DNS rebinding."""
    with RawClient(with_pages) as client:
        answer = client.send(request().replace(b"Host: localhost", b"Host: evil.example")).answer()
        assert (answer.status, answer.code) == (403, "forbidden")


def test_our_own_page_and_a_listed_one_do(with_pages: Running) -> None:
    """[API-22] (c)"""
    with Ws(with_pages, "Origin: http://localhost") as ws:
        assert "access-control-allow-origin" not in ws.headers
        assert ws.ask("ping")["op"] == "pong"
    with Ws(with_pages, f"Origin: {LISTED}") as ws:
        assert ws.headers["access-control-allow-origin"] == LISTED
        assert ws.headers["vary"] == "Origin"
        assert ws.ask("ping")["op"] == "pong"


# -- floods ----------------------------------------------------------------------------------------------------------


def hammer(ws: Ws, data: bytes, times: int) -> threading.Thread:
    """Send without reading, until the server closes or all is sent."""

    def run() -> None:
        try:
            for _ in range(times):
                ws.send(data)
        except OSError:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "frame", [framed(LAST | PING, b"x" * 125), command("ping", request_id="x" * 100)], ids=["ping frames", "commands"]
)
def test_answers_that_nobody_reads_are_not_piled_up(server: Running, frame: bytes) -> None:
    """[WS-5] Tens of megabytes of questions; what is held is the mark and one answer."""
    with Ws(server, receive_bytes=4096) as ws, Ws(server) as other:
        sender = hammer(ws, frame * 5000, 60)
        until(server, lambda: is_held_up(ws))

        def held() -> int:
            socket = ws.served
            return socket._transport.get_write_buffer_size() + len(socket._input)

        for _ in range(20):
            assert server.on_loop(held) < websocket.OUTPUT_HIGH + 2 * MIB
            assert other.ask("ping")["op"] == "pong"
        ws.sock.close()
        sender.join()
    is_all_let_go(server)


def test_a_message_in_a_million_pieces_costs_what_its_bytes_cost(server: Running, topic: str) -> None:
    """[WS-6, RES-3] One byte each, and empty ones between."""
    message = b'{"op":"ping","request_id":"' + b"x" * 100_000 + b'"}'
    pieces = b"".join(framed(CONT, message[at : at + 1]) + framed(CONT) for at in range(1, len(message)))
    with Ws(server) as ws:
        ws.send(framed(TEXT, message[:1]) + pieces)
        until(server, lambda: server.server.app.buffered.used == len(message))
        ws.send(framed(LAST | CONT))
        assert ws.message() == b'{"op":"pong","request_id":"' + b"x" * 100_000 + b'"}'
    is_all_let_go(server)


def test_half_a_message_does_not_keep_a_dead_connection(server: Running, clock: ManualClock) -> None:
    """[WS-19] Silence is silence, also in the middle of a frame."""
    with Ws(server) as ws:
        ws.send(framed(LAST | TEXT, b"x" * 1000)[:500])
        until(server, lambda: server.server.app.buffered.used > 0)
        passes(server, clock, 20)
        assert ws.frame() == (PING, b"")
        passes(server, clock, 20)
        assert ws.closed()[0] == 1011
        passes(server, clock, 1)
        assert ws.is_ended()
    is_all_let_go(server)


def test_what_comes_behind_our_close_is_not_kept() -> None:
    """[RES-3] A client that goes on sending has a second, and fills nothing."""
    clock = ManualClock()
    with running(clock=clock, env={"TOPICS_API_KEYS": "k"}) as server, Ws(server, "Authorization: Bearer k") as ws:
        ws.send(framed(TEXT, b"x" * 1000))
        until(server, lambda: server.server.app.buffered.used == 1000)
        server.on_loop(ws.served.key_removed)
        assert ws.reply()["code"] == "unauthorized"
        assert ws.closed()[0] == 1008
        ws.send(framed(CONT, b"y" * 5 * MIB))
        until(server, lambda: server.server.app.buffered.used == 0)
        assert server.on_loop(lambda: ws.served._reader.held) == 0
        clock.advance(1000)
        server.on_loop(server.server.connections.sweep)
        assert ws.is_ended()
        is_all_let_go(server)


def test_a_large_id_is_echoed_once_and_not_piled_up(server: Running) -> None:
    """[WS-5] The mark plus the frame that crossed it."""
    large = command("ping", request_id="x" * 2 * MIB)
    with Ws(server, receive_bytes=4096) as ws:
        sender = hammer(ws, large, 10)
        until(server, lambda: ws.served.is_full)
        assert server.on_loop(lambda: int(ws.served._transport.get_write_buffer_size())) < 3 * MIB
        for _ in range(10):
            assert len(ws.message()) > 2 * MIB
        sender.join()
    is_all_let_go(server)


# -- rubbish ---------------------------------------------------------------------------------------------------------

OPS = ["ping", "publish", "subscribe", "unsubscribe", "", "record"]


def rubbish(dice: random.Random) -> bytes:
    """Frames that are right, wrong, cut, or none."""
    kind = dice.randrange(8)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 200))
    if kind == 1:
        opcode = dice.choice([CONT, TEXT, BINARY, CLOSE, PING, PONG, dice.randrange(256)])
        return framed(opcode | dice.choice([0, LAST]), dice.randbytes(dice.randrange(130)))
    if kind == 2:
        return framed(LAST | TEXT, length=dice.choice([1 << 62, 1 << 20, 200]))[: dice.randrange(2, 14)]
    members = {
        "topic": dice.choice(["a", "b", "", "a b", 1, None]),
        "topics": dice.choice([{"a": {}}, {"b": {"tail": True}}, ["a"], [], None, {}]),
        "records": dice.choice([[{"data": 1}], [], [{}], 1, [{"data": "x" * 5000}]]),
        "from_seq": dice.choice([0, 1, -1, 1 << 64, "0"]),
        "request_id": dice.choice([None, 1, "x", [1, {"a": 2}]]),
        "config": dice.choice([None, {}, {"ttl_ms": 5}, {"type": "queue"}, 3]),
    }
    chosen = {name: value for name, value in members.items() if dice.random() < 0.5}
    whole = command(dice.choice(OPS), **chosen)
    if kind == 3:
        return whole[: dice.randrange(len(whole))]
    if kind == 4:
        at = dice.randrange(len(whole))
        return whole[:at] + bytes([dice.randrange(256)]) + whole[at + 1 :]
    if kind == 5:
        return framed(TEXT, b'{"op":') + framed(LAST | PING) + framed(LAST | CONT, b'"ping"}')
    return whole


@pytest.mark.parametrize("seed", range(40))
def test_rubbish_harms_nobody(server: Running, seed: int, quiet_log: None) -> None:
    """[WS-14] Whatever is sent, cut anywhere: it goes on or is closed with a status, others do not notice."""
    dice = random.Random(seed)
    for _ in range(10):
        data = b"".join(rubbish(dice) for _ in range(dice.randrange(1, 15)))
        with Ws(server) as ws:
            at = 0
            try:
                while at < len(data):
                    end = at + dice.choice([1, 7, 100, 100_000])
                    ws.send(data[at:end])
                    at = end
                ws.sock.shutdown(1)
            except OSError:
                pass  # the server has closed already
            judged(ws)
    with Ws(server) as ws:
        assert ws.ask("ping")["op"] == "pong"
    is_all_let_go(server)


def judged(ws: Ws) -> None:
    """Read to the end: whole frames, no `internal`, and nothing behind a close."""
    closed = False
    try:
        while True:
            opcode, payload = ws.frame()
            assert not closed
            if opcode == CLOSE:
                closed = True
                assert not payload or struct.unpack(">H", payload[:2])[0] < 5000
            else:
                assert opcode in (TEXT, PONG)
                assert b'"code":"internal"' not in payload
    except (AssertionError, ConnectionResetError) as end:
        if isinstance(end, AssertionError) and "the server ended after b''" not in str(end):
            raise


def test_a_handshake_that_is_rubbish_is_refused_as_any_request(server: Running) -> None:
    """[WS-1]"""
    dice = random.Random(1)
    head = request()
    for _ in range(200):
        at = dice.randrange(len(head) - 4)
        broken = head[:at] + bytes([dice.randrange(256)]) + head[at + 1 :]
        with RawClient(server) as client:
            raw = client.send(broken).finish().rest()
            assert raw[:12] in (
                b"HTTP/1.1 101",
                b"HTTP/1.1 400",
                b"HTTP/1.1 404",
                b"HTTP/1.1 405",
                b"HTTP/1.1 403",
                b"",
            )
    is_all_let_go(server)


def test_text_that_is_cut_within_a_character_is_whole_again(server: Running) -> None:
    """UTF-8 is checked as it comes, not piece by piece on its own."""
    message = '{"op":"ping","request_id":"äöü€😀"}'.encode()
    with Ws(server) as ws:
        for byte in text(message):
            ws.send(bytes([byte]))
        assert ws.message().decode() == '{"op":"pong","request_id":"äöü€😀"}'
