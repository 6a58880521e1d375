"""Connections that the kernel has: writes it takes are what they would be elsewhere, and all else is handed on.

A connection whose last request was a plain write is in the kernel's hands (`in_hand`); what a server answers then is
held against the ordinary way: the same server in pure Python, or what the rules say.
"""

from __future__ import annotations

import gzip
import random
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from tests.api.kit import Running, running
from tests.api.rawclient import Answer, RawClient, get, sweep, until
from tests.api.test_gathering import held, known_to, post, row, submissions, together, write
from tests.unit.engine.kit import GatedFs, real_config
from topics.codec import kernel
from topics.engine.append import Write
from topics.engine.append import append as real_append
from topics.engine.core import Core, Outcome
from topics.server import gather, keys, lines
from topics.server.http1 import IDLE_NS, Http1
from topics.server.known import Known
from topics.testing import ManualClock

pytestmark = pytest.mark.skipif(not kernel.has_lines(), reason="only the compiled kernel has connections, on Linux")

TIMES = re.compile(rb'"(server_total_ms|wal_append_ms|fsync_ms)":[0-9.]+')


@contextmanager
def in_hand(server: Running, count: int, *requests: bytes) -> Iterator[list[RawClient]]:
    """Connections whose next request the kernel takes, if it is plain and has one of these heads."""
    with known_to(server, count, *requests) as clients:
        for one in clients:
            assert one.send(requests[-1]).answer().status == 200
        yield clients


def taken(server: Running, client: RawClient) -> int:
    """How many writes of a connection the kernel has answered."""
    line = server.on_loop(lambda: client.served)._line
    assert line is not None
    return server.on_loop(line.served)[1]


@contextmanager
def shut(fs: GatedFs) -> Iterator[None]:
    """No sync of the log ends meanwhile."""
    fs.gate.clear()
    try:
        yield
    finally:
        fs.gate.set()


def bare(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """An answer without what differs from one time to the next."""
    fields = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    return answer.status, fields, TIMES.sub(rb'"\1":0', answer.body)


# -- writes that are taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_writes_that_are_taken_are_one_write_to_the_log_and_answered_each(
    server: Running, topic: str, durability: str
) -> None:
    """[WR-3, S-70, P-4] Seqs of each in a row, none twice; one pwrite; read back as answered."""
    requests = [write(topic, row(10 * n), {"data": 10 * n + 1, "tag": f"t{n}"}) for n in range(10, 40)]
    first = write(topic, row(0), config={"durability": durability})
    with in_hand(server, len(requests), first, requests[0]) as clients:
        begin = clients[0].send(post(f"/v0/topics/{topic}/diff", {"limit": 1000})).answer().json()["head_seq"]
        assert clients[0].send(requests[0]).answer().status == 200
        before = submissions(server)
        answers = [answer.json() for answer in together(server, clients, requests)]
        pwrites = submissions(server) - before
        assert all(taken(server, client) for client in clients)
        asked = {"from_seq": begin + 1, "limit": 1000, "include_tags": True}
        found = clients[0].send(post(f"/v0/topics/{topic}/diff", asked)).answer().json()["records"]
    assert pwrites == (0 if durability == "ephemeral" else 1)
    assert sorted(seq for answer in answers for seq in answer["seqs"]) == list(range(begin + 3, begin + 63))
    by_seq = {record["$seq"]: (record["data"], record.get("$tag")) for record in found}
    for n, answer in enumerate(answers, 10):
        first_seq = answer["first_seq"]
        assert answer["seqs"] == [first_seq, first_seq + 1]
        assert (answer["count"], answer["last_seq"], answer["head_seq"]) == (2, first_seq + 1, begin + 62)
        assert [by_seq[seq] for seq in answer["seqs"]] == [(10 * n, None), (10 * n + 1, f"t{n}")]


def test_an_answer_of_the_kernel_is_that_of_the_ordinary_way(topic: str) -> None:
    """[WR-3, API-28] Byte for byte, but for times."""
    requests = [
        write(topic, row(1)),
        write(topic, *[row(n) for n in range(30)]),
        write(topic, {"data": {"a": [1, 2.5, None]}, "tag": "x", "node": "n", "meta": {"k": "v"}}, node="m"),
        post(f"/v0/topics/{topic}", b'{ "records" : [ {"data" : [1, 2 ] , "other": true} ] }'),
    ]
    told: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
    stored: dict[str, bytes] = {}
    before = kernel.name()
    for name in ("pure", "native"):
        kernel.select(name)
        try:
            with running() as server, known_to(server, 1, requests[0]) as (client,):
                answers = []
                for _ in range(2):
                    for request in requests:
                        assert client.send(write(topic, row(0))).answer().status == 200
                        answers.append(bare(client.send(request).answer()))
                if name == "native":
                    assert taken(server, client) > len(requests)
                told[name] = answers
                read = client.send(post(f"/v0/topics/{topic}/diff", {"limit": 1000, "include_tags": True})).answer()
                stored[name] = re.sub(rb'"\$ts":\d+', b"", TIMES.sub(b"", read.body))
        finally:
            kernel.select(before)
    assert told["pure"] == told["native"]
    assert stored["pure"] == stored["native"]


NOT_TAKEN = [
    pytest.param(lambda topic: write(topic, row(1), idempotency_key="k"), 200, id="a key"),
    pytest.param(lambda topic: write(topic, {"data": "ä"}), 200, id="not ASCII"),
    pytest.param(lambda topic: post(f"/v0/topics/{topic}", b'{"records":[{"data":1}]'), 400, id="no JSON"),
    pytest.param(lambda topic: post(f"/v0/topics/{topic}", b'{"records":[]}'), 400, id="nothing"),
    pytest.param(lambda topic: write(topic, row("x" * 40_000)), 200, id="large"),
    pytest.param(lambda topic: get(f"/v0/topics/{topic}"), 200, id="a read"),
    pytest.param(lambda topic: b"\r\n" + write(topic, row(1)), 200, id="a blank line"),
    pytest.param(lambda topic: b"NONSENSE\r\n\r\n", 400, id="nonsense"),
]


@pytest.mark.parametrize(("make", "status"), NOT_TAKEN)
def test_what_is_not_plain_is_handed_on(server: Running, topic: str, make: object, status: int) -> None:
    """[API-11, API-25] And answered as ever; what is plain is taken again behind it."""
    assert callable(make)
    plain, other = write(topic, row(1)), make(topic)
    with in_hand(server, 1, plain) as (client,):
        before = taken(server, client)
        assert client.send(other).answer().status == status
        if status == 200:
            assert taken(server, client) == before
            for _ in range(3):
                assert client.send(plain).answer().status == 200
            assert taken(server, client) >= before + 2


def test_requests_in_a_row_and_in_pieces_are_answered_in_a_row(server: Running, topic: str) -> None:
    """[API-25] Several at once, a request in two pieces, one and a half."""
    request = write(topic, row(1))
    with in_hand(server, 1, request) as (client,):
        seqs = [client.send(request).answer().json()["first_seq"]]
        client.send(request * 4)
        seqs += [client.answer().json()["first_seq"] for _ in range(4)]
        for _ in range(2):
            seqs.append(client.send(request).answer().json()["first_seq"])
        client.send(request + request[:-5])
        seqs.append(client.answer().json()["first_seq"])
        seqs.append(client.send(request[-5:]).answer().json()["first_seq"])
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_a_request_behind_one_that_is_under_way_waits_for_its_answer(topic: str, tmp_path: object) -> None:
    """[API-25] Nothing is read of a connection while its write waits for a sync."""
    fs = GatedFs()
    with running(tmp_path / "store", fs=fs, config=real_config()) as server:  # type: ignore[operator]
        first = write(topic, row(0), config={"durability": "fsync"})
        request = write(topic, row(1))
        with in_hand(server, 2, first, request) as (client, other):
            with shut(fs):
                client.send(request)
                until(server, lambda: client.served._line.served()[0])  # type: ignore[union-attr]
                client.send(request)
                assert other.send(get(f"/v0/topics/{topic}")).answer().json()["head_seq"] == 4
            assert [client.answer().json()["first_seq"] for _ in range(2)] == [5, 6]


def test_a_client_that_ends_behind_its_write_is_answered(server: Running, topic: str) -> None:
    """[API-23] Whether its end comes with the request or behind it."""
    request = write(topic, row(1))
    with in_hand(server, 2, request) as (one, other):
        with held(server):
            one.send(request).finish()
        other.send(request).finish()
        for client in (one, other):
            assert client.answer().status == 200
            assert client.rest() == b""
    until(server, lambda: not server.server.connections.open)


def test_a_client_that_is_gone_keeps_nobody_else_waiting(server: Running, topic: str) -> None:
    """[R-6] Its write may be there; the others are answered."""
    request = write(topic, row(1))
    with in_hand(server, 4, request) as (gone, *others):
        head = others[0].send(request).answer().json()["head_seq"]
        with held(server):
            for one in (gone, *others):
                one.send(request)
            gone.reset()
        answers = [one.answer().json() for one in others]
        assert all(answer["head_seq"] <= head + 4 for answer in answers)
        assert len({answer["first_seq"] for answer in answers}) == 3
        until(server, lambda: len(server.server.connections.open) == 3)


# -- what they may meet ----------------------------------------------------------------------------------------------


def test_what_the_engine_refuses_is_tried_one_by_one(server: Running, topic: str) -> None:
    """[CAP-4, WR-1] For some of them there is room."""
    first = write(topic, row(0), config={"cap_records": 7, "discard": "reject"})
    request = write(topic, row(1))
    with in_hand(server, 4, first) as clients:
        # The topic has five by now: one made it, four brought their connections into the kernel's hands.
        statuses = sorted(answer.status for answer in together(server, clients, [first] * 4))
        assert statuses == [200, 200, 422, 422]
        assert clients[0].send(get(f"/v0/topics/{topic}")).answer().json()["head_seq"] == 7
        assert clients[0].send(request).answer().status == statuses[-1]


def test_a_topic_that_is_gone_is_made_anew_and_said_to_be(server: Running, topic: str) -> None:
    """[WR-2] By one of them."""
    request = write(topic, row(1))
    with in_hand(server, 3, request) as clients, server.client() as client:
        assert client.delete(f"/v0/topics/{topic}").status_code in (200, 204)
        answers = together(server, clients, [request] * 3)
    assert sorted(answer.status for answer in answers) == [200, 200, 201]
    assert sorted(answer.json()["first_seq"] for answer in answers) == [1, 2, 3]


def test_whatever_staging_meets_each_is_told(server: Running, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-6] And their connections go on."""
    request = write(topic, row(1))

    def append(core: Core, given: Write, done: Outcome) -> None:
        raise RuntimeError("nothing goes in here")

    with in_hand(server, 3, request) as clients:
        monkeypatch.setattr(gather.appending, "append", append)
        assert [answer.status for answer in together(server, clients, [request] * 3)] == [500] * 3
        monkeypatch.setattr(gather.appending, "append", real_append)
        assert [answer.status for answer in together(server, clients, [request] * 3)] == [200] * 3


def test_keys_that_come_meanwhile_count_at_once(server: Running, topic: str) -> None:
    """[KEY-4] A head that needed none is judged anew."""
    request = write(topic, row(1))
    with in_hand(server, 1, request) as (client,):
        ring = keys.KeyRing(keys.parse("of-all"))
        server.on_loop(lambda: server.server.use_keys(ring))
        try:
            assert client.send(request).answer().status == 401
        finally:
            server.on_loop(lambda: server.server.use_keys(keys.KeyRing()))


def test_bodies_of_writes_that_are_taken_count_as_buffered(topic: str) -> None:
    """[RES-3] And no longer once they are answered."""
    request = write(topic, row("x" * 600))
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "1500"}) as server:
        with in_hand(server, 3, request) as clients:
            statuses = {answer.status for answer in together(server, clients, [request] * 3)}
            assert statuses <= {200, 429}
            assert clients[0].send(request).answer().status == 200
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def test_a_large_answer_is_packed_for_those_who_want_it(server: Running, topic: str) -> None:
    """[API-26] The kernel takes only what is answered as it is."""
    packed = ["Accept-Encoding: gzip"]
    small, large = write(topic, row(1), more=packed), write(topic, *[row(n) for n in range(200)], more=packed)
    with in_hand(server, 1, large, small) as (client,):
        before = taken(server, client)
        answer = client.send(small).answer()
        assert "content-encoding" not in answer.headers
        assert taken(server, client) == before + 1
        answer = client.send(large).answer()
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(answer.body).count(b",") > 200
        assert taken(server, client) == before + 1


def test_a_connection_is_idle_from_its_last_write_on(topic: str) -> None:
    """[API-24] Whoever answered it."""
    clock = ManualClock()
    request = write(topic, row(1))
    with running(clock=clock) as server, in_hand(server, 2, request) as (busy, idle):
        for _ in range(3):
            clock.advance(IDLE_NS // 2_000_000)
            assert busy.send(request).answer().status == 200
            assert idle.sock.fileno() >= 0
            sweep(server)
        assert idle.rest() == b""
        assert busy.send(request).answer().status == 200
        clock.advance(IDLE_NS // 1_000_000 - 1)
        sweep(server)
        assert busy.send(request).answer().status == 200


def test_a_server_that_stops_answers_what_is_under_way_and_closes(topic: str, tmp_path: object) -> None:
    """[API-5] `connection: close`, and nothing behind it."""
    fs = GatedFs()
    with running(tmp_path / "store", fs=fs, config=real_config()) as server:  # type: ignore[operator]
        first = write(topic, row(0), config={"durability": "fsync"})
        request = write(topic, row(1))
        with in_hand(server, 3, first, request) as (client, idle, asking):
            with shut(fs):
                client.send(request)
                until(server, lambda: client.served._line.served()[0])  # type: ignore[union-attr]
                server.loop.call_soon_threadsafe(server._stopping.set)
                until(server, lambda: server.server.app.draining)
                refused = asking.send(request).answer()
                assert (refused.status, refused.code, refused.headers["connection"]) == (503, "shutting_down", "close")
            answer = client.answer()
            assert (answer.status, answer.headers.get("connection")) == (200, "close")
            assert idle.rest() == client.rest() == b""


def test_nothing_is_taken_of_a_line_while_something_waits_to_be_looked_at(server: Running, topic: str) -> None:
    """[API-25] What was told comes before what is read next, and may be the same line's."""
    request = write(topic, row(1))
    with in_hand(server, 1, request) as (client,):
        before = taken(server, client)
        all_lines = server.server.connections.lines
        assert all_lines is not None

        def gather_while_something_waits() -> None:
            assert client.served._line is not None
            all_lines._events.append((client.served._line, 3, None))
            client.served._line.gather(client.served)

        assert client.send(get("/v0/health")).answer().status == 200
        server.on_loop(gather_while_something_waits)
        assert client.send(request).answer().status == 200
        assert taken(server, client) == before
        assert client.send(request).answer().status == 200
        assert taken(server, client) == before + 1


def test_a_head_that_comes_again_is_known_once(server: Running, topic: str) -> None:
    """[R-7] Also where its body comes apart from it, or behind another request."""
    request = write(topic, row(1))
    with in_hand(server, 1, request) as (client,):
        all_lines = server.server.connections.lines
        assert all_lines is not None
        before = len(all_lines._heads)
        for _ in range(5):
            client.send(request * 3)
            assert [client.answer().status for _ in range(3)] == [200] * 3
        assert len(all_lines._heads) == before


def test_one_that_breaks_while_writes_are_handed_on_is_no_other_s_trouble(
    server: Running, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-6] It is closed, the others are answered; so it is where all of them break."""
    request = write(topic, row(1))
    real = Http1.execute_known
    struck: list[None] = []

    def execute(self: Http1, known: Known, body: bytes, since_ns: int) -> None:
        if not struck:
            struck.append(None)
            raise RuntimeError("this one breaks")
        real(self, known, body, since_ns)

    with in_hand(server, 3, request) as clients:
        monkeypatch.setattr(server.server.app.buffered, "most", 1)  # nothing is gathered
        monkeypatch.setattr(Http1, "execute_known", execute)
        with held(server):
            for client in clients:
                client.send(request)
        told = [client.rest() if client is clients[0] else client.answer().status for client in clients]
        assert told == [b"", 429, 429]
    monkeypatch.undo()
    with in_hand(server, 3, request) as clients:
        monkeypatch.setattr(gather.Gathering, "take_run", lambda self, run: 1 / 0)
        with held(server):
            for client in clients:
                client.send(request)
        assert [client.rest() for client in clients] == [b""] * 3
    assert "that came at once" in caplog.text


def test_connections_are_closed_where_the_kernel_cannot_answer(
    server: Running, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-6] They are decided, and nobody knows who was told: no connection waits for ever."""
    request = write(topic, row(1))
    with in_hand(server, 3, request) as clients:
        monkeypatch.setattr(lines.Taken, "answer", lambda self, *told: 1 / 0)
        with held(server):
            for client in clients:
                client.send(request)
        assert [client.rest() for client in clients] == [b""] * 3
    assert "answering writes" in caplog.text


def test_urgent_data_holds_nothing_up(server: Running) -> None:
    """[API-25] A read ends at it, though there is more."""
    asked = get("/v0/health")
    with RawClient(server) as client:
        assert client.send(asked).answer().status == 200
        with held(server):
            client.send(asked)
            client.sock.send(b"!", socket.MSG_OOB)
            client.send(asked)
        assert [client.answer().status for _ in range(2)] == [200, 200]


# -- the transport ---------------------------------------------------------------------------------------------------


def test_what_a_client_does_not_take_is_kept_for_it(server: Running, topic: str) -> None:
    """[API-24] Byte for byte, in order, however slowly it reads."""
    request = write(topic, row("x" * 20_000))
    with known_to(server, 1, request) as (writer,):
        for _ in range(99):
            assert writer.send(request).answer().status == 200
    asked = post(f"/v0/topics/{topic}/diff", {"limit": 100, "max_batch_bytes": 4 << 20})
    with RawClient(server, receive_bytes=4096) as slow:
        assert slow.send(get("/v0/health")).answer().status == 200
        slow.send(asked * 3)
        until(server, lambda: slow.served._transport.get_write_buffer_size() > 0)
        for _ in range(3):
            records = slow.answer().json()["records"]
            assert [record["$seq"] for record in records] == list(range(1, 101))


def test_answers_that_are_not_taken_stop_the_reading(server: Running, topic: str) -> None:
    """[API-24, R-7] A client that only sends gets no further than the marks; then it reads, and all is there."""
    request = write(topic, *[row(n) for n in range(1000)])
    with in_hand(server, 1, request) as (client,):
        client.sock.setblocking(False)
        sent, most = 0, 400 * len(request)
        stream = request * 400
        until_full = 0
        while sent < most and until_full < 200:
            try:
                sent += client.sock.send(stream[sent : sent + 65536])
                until_full = 0
            except BlockingIOError:
                server.on_loop(lambda: None)
                until_full += 1
        assert server.on_loop(client.served._transport.get_write_buffer_size) < 2 << 20
        client.sock.settimeout(60)
        whole = sent // len(request)
        firsts = [client.answer().json()["first_seq"] for _ in range(whole)]
    assert all(after - before == 1000 for before, after in pairwise(firsts))


@pytest.mark.parametrize("how", ["close", "write_eof"])
def test_what_is_written_when_there_is_room_again_is_sent_before_the_end(server: Running, how: str) -> None:
    """[API-24] All of it, as with any transport."""

    class Writes:
        """A protocol that writes more than a socket takes, and ends."""

        def __init__(self) -> None:
            self.more = 12 << 20

        def connection_made(self, transport: lines.Line) -> None:
            self.transport = transport
            transport.write(bytes(6 << 20))

        def pause_writing(self) -> None:
            pass

        def resume_writing(self) -> None:
            more, self.more = self.more, 0
            if more:
                self.transport.write(bytes(more))
                getattr(self.transport, how)()

        def eof_received(self) -> bool:
            return False

        def connection_lost(self, error: Exception | None) -> None:
            pass

    (listener,) = server.server._listeners
    assert isinstance(listener, lines.Listener)
    real = listener._protocol
    server.on_loop(lambda: setattr(listener, "_protocol", Writes))
    with RawClient(server) as client:
        assert len(client.rest()) == 18 << 20
    server.on_loop(lambda: setattr(listener, "_protocol", real))


def test_connections_that_come_and_go_leave_nothing(server: Running, topic: str) -> None:
    """Places are used again; what came for an old one is nobody's."""
    random.seed(7)
    request = write(topic, row(1))
    with in_hand(server, 1, request) as (first,):
        for _ in range(30):
            with in_hand(server, 5, request) as clients:
                for client in random.sample(clients, 3):
                    client.send(request)
                    client.reset() if random.random() < 0.5 else client.sock.close()
        assert first.send(request).answer().status == 200
        until(server, lambda: len(server.server.connections.open) == 1)


def test_descriptors_that_are_used_up_are_waited_for(
    server: Running, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-7] Connections wait in the queue of the system and are taken in later."""
    (listener,) = server.server._listeners
    assert isinstance(listener, lines.Listener)

    class Full:
        """A socket of a process without descriptors."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(24, "Too many open files")

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    real = listener._sock
    monkeypatch.setattr(lines, "REST_S", 0.05)
    server.on_loop(lambda: setattr(listener, "_sock", Full(real)))
    with RawClient(server) as client:
        client.send(get("/v0/health"))
        until(server, lambda: "no connection can be taken in" in caplog.text)
        server.on_loop(lambda: setattr(listener, "_sock", real))
        assert client.answer().status == 200
