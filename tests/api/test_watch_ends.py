"""Who may open a stream, how many, and all that ends one (03 §5.1, §6, §7; 02 API-5, API-23 to API-26; 09 §5)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from hyperframe.frame import GoAwayFrame

from tests.api import expect
from tests.api.expect import put, refused, write
from tests.api.frames import Talk
from tests.api.kit import WAIT_S, Running, running
from tests.api.test_metrics import scrape
from tests.api.watching import (
    Stream,
    Stream1,
    Stream2,
    close_stream,
    encoded,
    finish_stream,
    is_http2,
    open_stream,
    pass_time,
    reset_stream,
    sessions,
    streams,
    until_streams,
    watch,
)
from tests.api.wskit import Ws, command
from topics.server import keys, sse
from topics.testing import ManualClock

KEYS = "full,reader:read,other:read,writer:write,limited:read:plant:"
VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server with keys."""
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        with one.client(key="full") as client:
            put(client, "plant:a")
            put(client, "yard")
        yield one


def gauges(server: Running, key: str | None = None) -> tuple[float, float]:
    """Open streams and sessions, as the metrics say."""
    with server.client(key=key) as client:
        told = scrape(client)
    return told["topics_sse_connections"], told["topics_watch_sessions"]


# §7: keys


@VERSIONS
def test_a_session_needs_the_read_scope_and_the_prefix_of_every_name(locked: Running, http2: bool) -> None:
    """[WAU-1, WCH-3, PFX-2] One bad name refuses all; before it is looked up."""
    asked: dict[str, Any] = {"topics": {"plant:a": {}, "yard": {}}}
    with locked.client(http2=http2) as client:

        def post(key: str | None, body: Any = asked) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return client.post("/v0/watch", json=body, headers=headers)

        refused(post(None), 401, "unauthorized")
        refused(post("nobody"), 401, "unauthorized")
        refused(post("writer"), 403, "forbidden")
        refused(post("limited"), 403, "forbidden", {"topic": "yard"})
        absent: dict[str, Any] = {"topics": {"plant:absent": {}, "yard-absent": {}}}
        refused(post("limited", absent), 403, "forbidden", {"topic": "yard-absent"})
        refused(post("limited", {"topics": {"plant:absent": {}}}), 404, "topic_not_found", {"topic": "plant:absent"})
        expect.ok(post("limited", {"topics": {"plant:a": {}}}))
        expect.ok(post("reader"))


@VERSIONS
def test_a_stream_is_opened_with_the_key_that_made_its_session_and_with_no_other(locked: Running, http2: bool) -> None:
    """[WAU-2, API-8] In the header, or as a token; the header wins."""
    with locked.client(key="reader", http2=http2) as client:
        wid = watch(client, "yard")["wid"]
    cases: list[tuple[tuple[str, ...], str, int]] = [
        ((), "", 401),
        ((bearer("nobody"),), "", 401),
        ((bearer("other"),), "", 401),
        ((bearer("full"),), "", 401),
        ((), "?token=other", 401),
        ((bearer("other"),), "?token=reader", 401),
        ((), "?Token=reader", 401),
        ((bearer("reader"),), "", 200),
        ((bearer("reader"),), "?token=other", 200),
        ((), "?token=reader", 200),
        ((), "?a=b&token=%72eader&token=other", 200),
    ]
    for fields, query, status in cases:
        with open_stream(locked, http2, wid, *fields, query=query) as stream:
            assert stream.status == status, (fields, query)
    until_streams(locked, 0)


@VERSIONS
def test_a_token_in_the_query_opens_nothing_but_streams(locked: Running, http2: bool) -> None:
    """[API-8]"""
    with locked.client(http2=http2) as client:
        refused(client.post("/v0/watch?token=full", json={"topics": {"yard": {}}}), 401, "unauthorized")
        refused(client.get("/v0/topics?token=full"), 401, "unauthorized")


@VERSIONS
def test_an_unknown_session_is_not_found_with_or_without_a_key(locked: Running, http2: bool) -> None:
    """[WAU-4, STR-1] And what is accepted comes first."""
    with locked.client(http2=http2) as client:
        for headers in ({}, {"authorization": "Bearer reader"}, {"authorization": "Bearer nobody"}):
            refused(client.get("/v0/watch/none", headers=headers), 404, "not_found")
            answer = client.get("/v0/watch/none", headers={**headers, "accept": "text/html"})
            refused(answer, 406, "not_acceptable")


@VERSIONS
def test_a_stream_holds_no_in_flight_slot(http2: bool) -> None:
    """[WAU-5, RES-7]"""
    env = {"TOPICS_API_KEYS": "a", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(env=env) as server, server.client(key="a", http2=http2) as client:
        put(client, "t")
        wid = watch(client, "t")["wid"]
        with open_stream(server, http2, wid, bearer("a")), open_stream(server, http2, wid, bearer("a")) as stream:
            assert stream.status == 200
            write(client, "t", 1)
            assert stream.until_seq(1) == [1]


@VERSIONS
def test_a_removed_key_ends_its_streams_and_sessions_and_nobody_elses(http2: bool) -> None:
    """[FRM-9, KEY-4] The integer 410; posting again is what helps."""
    with running(env={"TOPICS_API_KEYS": "a,b"}) as server:
        with server.client(key="a") as client:
            put(client, "t")
            gone, idle = watch(client, "t")["wid"], watch(client, "t")["wid"]
        with server.client(key="b") as client:
            kept = watch(client, "t")["wid"]
        with open_stream(server, http2, gone, bearer("a")) as one, open_stream(server, http2, kept, bearer("b")) as two:
            one.until("caught-up")
            two.until("caught-up")
            ring = keys.KeyRing(keys.parse("b"), server.server.app.keys)
            server.on_loop(lambda: server.server.use_keys(ring))
            (last,) = one.rest()
            assert one.is_complete
            assert (last.kind, last.data["code"], last.cursors) == ("error", 410, {"t": 0})
            assert isinstance(last.data["message"], str)
            with server.client(key="b") as client:
                write(client, "t", 1)
            assert two.until_seq(1) == [1]
            with server.client(key="b") as client:
                for wid in (gone, idle):
                    refused(client.get(f"/v0/watch/{wid}"), 404, "not_found")
            until_streams(server, 1)
            assert sessions(server) == 1


@VERSIONS
def test_when_there_are_keys_at_last_streams_without_one_end(http2: bool) -> None:
    """[KEY-4, FRM-9] And their sessions with them: nobody may open them any more."""
    with running() as server, server.client() as client:
        put(client, "t")
        used, idle = watch(client, "t")["wid"], watch(client, "t")["wid"]
        with open_stream(server, http2, used) as stream:
            stream.until("caught-up")
            ring = keys.KeyRing(keys.parse("k"), server.server.app.keys)
            server.on_loop(lambda: server.server.use_keys(ring))
            assert sessions(server) == 0
            (last,) = stream.rest()
            assert stream.is_complete
            assert (last.kind, last.data["code"], last.cursors) == ("error", 410, {"t": 0})
        until_streams(server, 0)
        with server.client(key="k") as known:
            for wid in (used, idle):
                refused(known.get(f"/v0/watch/{wid}"), 404, "not_found")


# Caps


@VERSIONS
def test_sessions_are_counted(http2: bool) -> None:
    """[RES-2, WCH-3] Behind every other check; expired ones make room."""
    clock = ManualClock()
    with running(env={"TOPICS_MAX_WATCH_SESSIONS": "2"}, clock=clock) as server, server.client(http2=http2) as client:
        put(client, "t")
        watch(client, "t")
        watch(client, "t")
        full = {"limit": "max_watch_sessions", "max": 2}
        answer = client.post("/v0/watch", json={"topics": {"t": {}}})
        refused(answer, 429, "throttled", full)
        assert answer.headers["retry-after"] == "1"
        refused(client.post("/v0/watch", json={"topics": {"u": {}}}), 404, "topic_not_found", {"topic": "u"})
        pass_time(server, clock, 300_001, sweep=False)
        watch(client, "t")
        assert sessions(server) == 1


@VERSIONS
@pytest.mark.parametrize("which", ["max_sse_connections", "max_sse_connections_per_key"])
def test_streams_are_counted_and_a_slot_is_free_when_one_ends(http2: bool, which: str) -> None:
    """[RES-2, RES-6, STR-1] Of the server, and of the key that made the session; the last check."""
    env = {"TOPICS_API_KEYS": "a,b", "TOPICS_" + which.upper(): "2"}
    with running(env=env) as server, server.client(key="a", http2=http2) as client:
        put(client, "t")
        wid = watch(client, "t")["wid"]
        first = open_stream(server, http2, wid, bearer("a"))
        with open_stream(server, http2, wid, bearer("a")), open_stream(server, http2, wid, bearer("a")) as third:
            assert third.status == 429
            assert third.headers["retry-after"] == "1"
            assert b'"detail":{"limit":"%b","max":2}' % which.encode() in third.body
            with open_stream(server, http2, wid, bearer("b")) as wrong:
                assert wrong.status == 401
            with server.client(key="b", http2=http2) as other:
                theirs = watch(other, "t")["wid"]
            with open_stream(server, http2, theirs, bearer("b")) as stream:
                assert stream.status == (429 if which == "max_sse_connections" else 200)
            first.close()
            until_streams(server, 1)
            with open_stream(server, http2, wid, bearer("a")) as again:
                assert again.status == 200
        until_streams(server, 0)
        usage = [key.usage.streams for key in server.server.app.keys.keys]
        assert usage == [0, 0]


# Ends


def _violate(stream: Stream) -> None:
    """What makes the server send GOAWAY over HTTP/2; over HTTP/1.1 the connection is reset."""
    if isinstance(stream, Stream2):
        stream.talk.send_bytes(b"\xff\xff\xff" + b"\0" * 20)
    else:
        reset_stream(stream)


@VERSIONS
@pytest.mark.parametrize("how", [close_stream, finish_stream, reset_stream, _violate])
def test_a_client_that_goes_leaves_nothing_behind(server: Running, http2: bool, how: Callable[[Stream], None]) -> None:
    """[API-23, RES-6] End of input, reset of the connection or of the stream: it ends at once, slots are free."""
    topic = f"gone-{http2}-{how.__name__}"
    with server.client() as client:
        put(client, topic)
        wid = watch(client, topic)["wid"]
        stream = open_stream(server, http2, wid)
        stream.until("caught-up")
        assert gauges(server)[0] == 1
        how(stream)
        until_streams(server, 0)
        assert gauges(server)[0] == 0
        write(client, topic, 1)
    followed = server.on_loop(lambda: server.server.app.engine.core.names[topic].followers)  # type: ignore[union-attr]
    assert followed == {}
    stream.close()


def test_half_closed_means_the_stream_ends_without_its_last_chunk(server: Running) -> None:
    """[API-23] The connection is closed at once."""
    with server.client() as client:
        put(client, "half")
        wid = watch(client, "half")["wid"]
    with open_stream(server, False, wid) as stream:
        stream.until("caught-up")
        finish_stream(stream)
        assert stream.rest() == []
        assert not stream.is_complete
    until_streams(server, 0)


def test_a_client_whose_input_ended_with_the_request_gets_no_stream_for_long(server: Running) -> None:
    """[API-23] FIN right behind the request."""
    with server.client() as client:
        put(client, "early-fin")
        wid = watch(client, "early-fin")["wid"]
    with socket.create_connection((server.host, server.port), timeout=WAIT_S) as sock:
        sock.sendall(f"GET /v0/watch/{wid} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    until_streams(server, 0)


def test_other_streams_of_a_connection_go_on_when_one_is_reset(server: Running) -> None:
    """[API-26] Also ordinary requests on it."""
    with server.client() as client:
        put(client, "several")
        wid = watch(client, "several")["wid"]
        with Talk(server) as talk:
            one, two = (Stream2(talk, f"/v0/watch/{wid}", id=id) for id in (1, 3))
            one.until("caught-up")
            two.until("caught-up")
            one.reset()
            until_streams(server, 1)
            write(client, "several", 1)
            assert two.until_seq(1) == [1]
            talk.request(5, b"GET", b"/healthz")
            assert talk.answer(5).status == 200
    until_streams(server, 0)


def test_a_client_that_says_goodbye_keeps_its_streams(server: Running) -> None:
    """[API-26] GOAWAY of the client: what runs goes on until it closes."""
    with server.client() as client:
        put(client, "parting")
        wid = watch(client, "parting")["wid"]
        with Talk(server) as talk:
            stream = Stream2(talk, f"/v0/watch/{wid}")
            stream.until("caught-up")
            talk.send(GoAwayFrame(0, last_stream_id=0))
            write(client, "parting", 1)
            assert stream.until_seq(1) == [1]
    until_streams(server, 0)


@VERSIONS
def test_a_stream_whose_topic_cannot_be_read_ends_incomplete(http2: bool) -> None:
    """[D-74, API-25] The client knows that this was not all, and slots are free."""
    with running() as server, server.client() as client:
        write(client, "t", 1)
        put(client, "fine")
        wid = watch(client, "t")["wid"]
        fine = watch(client, "fine")["wid"]

        def broken(*args: object) -> None:
            raise OSError(5, "Input/output error")

        core = server.server.app.engine.core  # type: ignore[union-attr]
        server.on_loop(lambda: setattr(core.names["t"].index, "walk", broken))
        with open_stream(server, http2, fine) as other, open_stream(server, http2, wid) as stream:
            assert [one.kind for one in stream.rest()] == ["retry"]
            assert not stream.is_complete
            until_streams(server, 1)
            other.until("caught-up")
            write(client, "fine", 1)
            assert other.until_seq(1) == [1]
        until_streams(server, 0)
        assert gauges(server) == (0, 2)


@VERSIONS
def test_a_handler_that_fails_while_it_opens_a_stream_gives_the_slot_back(
    http2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[RES-6] For any reason."""
    with running(env={"TOPICS_API_KEYS": "a"}) as server, server.client(key="a") as client:
        put(client, "t")
        wid = watch(client, "t")["wid"]

        def broken(id: bytes) -> dict[str, int]:
            raise LookupError("unforeseen")

        monkeypatch.setattr(sse, "cursors_of", broken)
        with open_stream(server, http2, wid, bearer("a")) as stream:
            assert stream.status == 500
        until_streams(server, 0)
        assert [key.usage.streams for key in server.server.app.keys.keys] == [0]
        monkeypatch.undo()
        with open_stream(server, http2, wid, bearer("a")) as stream:
            assert stream.status == 200


# Slow consumers


BIG = "x" * 100_000


@contextmanager
def stalled(server: Running, http2: bool, wid: str) -> Iterator[Stream]:
    """A stream whose client takes next to nothing: small buffers, or no window."""
    if http2:
        with Talk(server, initial_window=0, windows=False) as talk:
            yield Stream2(talk, f"/v0/watch/{wid}")
    else:
        stream = Stream1(server, f"/v0/watch/{wid}", (), receive_bytes=4096)
        try:
            yield stream
        finally:
            stream.close()


def pending(server: Running) -> int:
    """Bytes that are kept for the client of the only stream."""

    def count() -> int:
        held = 0
        for front in server.server.connections.open:
            spoken, transport = front._spoken, front._transport
            assert transport is not None
            if getattr(spoken, "_stream", None) is not None or any(
                one.listener is not None for one in getattr(spoken, "_streams", {}).values()
            ):
                held += transport.get_write_buffer_size()
                held += sum(len(one.out) for one in getattr(spoken, "_streams", {}).values())
        return held

    return server.on_loop(count)


@VERSIONS
def test_a_client_that_reads_nothing_is_held_one_frame_and_closed_after_thirty_seconds(http2: bool) -> None:
    """[FRM-10, FRM-12, D-60, D-62; 08 §10.11] Not before; it is counted, and its session lives on."""
    clock = ManualClock()
    with running(clock=clock) as server, server.client() as client:
        put(client, "t")
        wid = watch(client, "t", limit=1)["wid"]
        other = watch(client, "t")["wid"]
        with stalled(server, http2, wid) as slow, open_stream(server, False, other) as fast:
            for n in range(1, 121):
                write(client, "t", BIG)
                assert fast.until_seq(n) == [n]
            before = pending(server)
            assert before <= (64 << 10) + 2 * len(BIG), "the mark, and the frame that crossed it"
            write(client, "t", BIG)
            assert fast.until_seq(121) == [121]
            assert pending(server) == before, "nothing more is built"
            pass_time(server, clock, 0)
            pass_time(server, clock, 29_999)
            assert streams(server) == 2
            pass_time(server, clock, 1)
            until_streams(server, 1)
            with server.client() as metered:
                assert scrape(metered)["topics_streams_closed_slow_total"] == 1
            write(client, "t", BIG)
            assert fast.until_seq(122) == [122]
            del slow
        with open_stream(server, http2, wid, f"Last-Event-ID: {encoded({'t': 0})}") as again:
            assert again.until_seq(122) == list(range(1, 123))
        until_streams(server, 0)


def test_many_streams_of_a_topic_get_the_same_whoever_stalls_among_them(server: Running) -> None:
    """[FRM-11, D-61, A-12] More than are served at a time, of both protocols; every tenth reads last of all."""
    topic = "of-many"
    with server.client() as client, ExitStack() as opened:
        put(client, topic)
        ways = [(bool(n % 7 == 3), bool(n % 10 == 9)) for n in range(70)]
        streams = []
        for http2, stalls in ways:
            wid = watch(client, topic)["wid"]
            enter = open_stream(server, http2, wid) if http2 or not stalls else stalled(server, http2, wid)
            streams.append(opened.enter_context(enter))
        for n in range(1, 41):
            write(client, topic, BIG)
            for (http2, stalls), one in zip(ways, streams, strict=True):
                if http2 or not stalls:
                    assert one.until_seq(n) == [n]
        for (http2, stalls), one in zip(ways, streams, strict=True):
            if stalls and not http2:
                assert one.until_seq(40) == list(range(1, 41))
        write(client, topic, 41)
        for one in streams:
            assert one.until_seq(41) == [41]
    until_streams(server, 0)


@VERSIONS
def test_a_client_that_reads_on_misses_nothing(server: Running, http2: bool) -> None:
    """[FRM-11, D-61]"""
    topic = f"reads-on-{http2}"
    with server.client() as client:
        put(client, topic)
        wid = watch(client, topic, limit=3)["wid"]
        with stalled(server, http2, wid) as slow:
            for _ in range(60):
                write(client, topic, BIG)
            if isinstance(slow, Stream2):
                slow.talk.give(1 << 24, 0, slow.stream_id)
            assert slow.until_seq(60) == list(range(1, 61))
            write(client, topic, 61)
            assert slow.until_seq(61) == [61]
    until_streams(server, 0)


@VERSIONS
def test_what_a_cap_takes_from_a_stalled_client_is_one_tombstone(server: Running, http2: bool) -> None:
    """[FRM-11, D-61; 08 §10.11]"""
    topic = f"capped-{http2}"
    with server.client() as client:
        put(client, topic, cap_records=20)
        wid = watch(client, topic, limit=1)["wid"]
        with stalled(server, http2, wid) as slow:
            for _ in range(200):
                write(client, topic, BIG)
            if isinstance(slow, Stream2):
                slow.talk.give(1 << 26, 0, slow.stream_id)
            seen: list[int] = []
            gaps = []
            while not seen or seen[-1] < 200:
                event = slow.next()
                seen += event.seqs
                if event.kind == "tombstone":
                    gaps.append((event.data["gap_from"], event.data["gap_to"], event.data["reason"]))
    (gap,) = gaps
    missing = sorted(set(range(1, 201)) - set(seen))
    assert seen == sorted(set(seen))
    assert missing == list(range(gap[0], gap[1] + 1))
    assert gap[2] == "cap"
    until_streams(server, 0)


# Stopping


def stopping(server: Running) -> threading.Thread:
    thread = threading.Thread(target=server.stop, daemon=True)
    thread.start()
    return thread


@VERSIONS
def test_a_server_that_stops_says_so_and_ends_its_streams(http2: bool) -> None:
    """[API-5, FRM-9, API-25, API-26] With an id; the client comes back after the retry delay."""
    with running() as server, server.client() as client:
        write(client, "t", 1)
        wid = watch(client, "t")["wid"]
        with open_stream(server, http2, wid) as stream:
            stream.until("caught-up")
            thread = stopping(server)
            (last,) = stream.rest()
            assert stream.is_complete
            assert (last.kind, last.data["code"], last.cursors) == ("error", "server_shutting_down", {"t": 1})
            assert last.data["message"]
        thread.join(WAIT_S)
        assert not thread.is_alive()


@VERSIONS
def test_a_client_that_takes_nothing_holds_a_stopping_server_up_for_a_second_or_so(http2: bool) -> None:
    """[API-5] Whether its window is closed or its socket full."""
    with running() as server, server.client() as client:
        put(client, "t")
        wid = watch(client, "t", limit=1)["wid"]
        with stalled(server, http2, wid):
            for _ in range(60):
                write(client, "t", BIG)
            thread = stopping(server)
            thread.join(WAIT_S / 2)
            assert not thread.is_alive(), "it is not waited for until the end of the drain"


def test_a_full_socket_of_http_2_holds_a_stopping_server_up_for_a_second_or_so() -> None:
    """[API-5]"""
    with running() as server, server.client() as client:
        put(client, "t")
        wid = watch(client, "t", limit=1)["wid"]
        with Talk(server, initial_window=2**31 - 1, windows=False) as talk:
            talk.give(2**30, 0)
            Stream2(talk, f"/v0/watch/{wid}")
            for _ in range(150):
                write(client, "t", BIG)
            thread = stopping(server)
            thread.join(WAIT_S / 2)
            assert not thread.is_alive(), "it is not waited for until the end of the drain"


def left(server: Running, how: str, wid: str) -> socket.socket:
    """A client that follows from the start, reads nothing of it, and sends its end."""
    if how == "http1":
        sock = Stream1(server, f"/v0/watch/{wid}", (), receive_bytes=4096).client.sock
    elif how == "http2":
        talk = Talk(server, initial_window=2**31 - 1, windows=False)
        talk.give(2**30, 0)
        sock = Stream2(talk, f"/v0/watch/{wid}").talk._sock
    else:
        sock = Ws(server, receive_bytes=4096).send(command("subscribe", topic="t", limit=1)).sock
    until_streams(server, 1)
    with server.client() as client:
        for _ in range(150):
            write(client, "t", BIG)
    sock.shutdown(socket.SHUT_WR)
    until_streams(server, 0)
    return sock


@pytest.mark.parametrize("how", ["http1", "http2", "websocket"])
def test_a_client_that_left_has_a_second_for_what_it_did_not_take(how: str) -> None:
    """[API-5, API-23] Its connection is not held for as long as that of one that may still read."""
    clock = ManualClock()
    with running(clock=clock) as server:
        with server.client() as client:
            put(client, "t")
            wid = watch(client, "t", limit=1)["wid"]
        with left(server, how, wid):
            expect.until(server, lambda: len(server.server.connections.open) == 1)
            pass_time(server, clock, 999)
            assert server.on_loop(lambda: len(server.server.connections.open)) == 1
            pass_time(server, clock, 1)
            expect.until(server, lambda: not server.server.connections.open)


@VERSIONS
def test_while_it_stops_no_stream_is_opened(http2: bool) -> None:
    """[API-5, API-20]"""
    with running() as server, server.client(http2=http2) as client:
        put(client, "t")
        wid = watch(client, "t")["wid"]
        server.on_loop(server.server.stop_listening)
        refused(client.get(f"/v0/watch/{wid}"), 503, "shutting_down")


# Browsers


@VERSIONS
def test_streams_obey_the_rules_for_browsers(http2: bool) -> None:
    """[API-22, API-20] Before anything else; a listed origin may read the stream."""
    env = {"TOPICS_CORS_ORIGINS": "https://good.example"}
    with running(env=env) as server, server.client(http2=http2) as client:
        put(client, "t")
        wid = watch(client, "t")["wid"]
        for fields in (("Origin: https://bad.example",), ("Sec-Fetch-Site: cross-site",)):
            with open_stream(server, http2, wid, *fields) as stream:
                assert stream.status == 403
        with open_stream(server, http2, wid, "Origin: https://good.example") as stream:
            assert stream.status == 200
            assert stream.headers["access-control-allow-origin"] == "https://good.example"
            assert stream.headers["vary"] == "Origin"
        until_streams(server, 0)
        assert is_http2(client) == http2
