"""Writes that come in one pass of the loop are staged as one, and nobody can tell; heads are read once (HOTPATH)."""

from __future__ import annotations

import gzip
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pytest

from tests.api.kit import WAIT_S, Running, running
from tests.api.rawclient import Answer, RawClient, until
from tests.unit.engine.kit import GatedFs, real_config
from topics.codec import frame, kernel, offsets
from topics.engine.append import Write
from topics.engine.append import append as real_append
from topics.engine.core import Core, Outcome
from topics.engine.records import Joined, Sole, prepare
from topics.model import Limits
from topics.server import gather, keys, records, wire
from topics.server.gather import RUN_RECORDS_MAX, RUN_WRITES_MAX
from topics.server.known import HEADS_MAX
from topics.testing import ManualClock

KERNELS = ["pure", *(["native"] if kernel.installed() is not None else [])]


def post(path: str, body: object, *fields: str) -> bytes:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(raw)}\r\n\r\n"]).encode() + raw


def write(topic: str, *records: object, more: Sequence[str] = (), **members: object) -> bytes:
    return post(f"/v0/topics/{topic}", {"records": list(records), **members}, *more)


def row(value: object) -> dict[str, object]:
    return {"data": value}


@contextmanager
def held(server: Running) -> Iterator[None]:
    """The loop stands still: whatever is sent meanwhile is read in one pass."""
    stands, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        stands.set()
        goes_on.wait(WAIT_S)

    server.loop.call_soon_threadsafe(hold)
    assert stands.wait(WAIT_S)
    try:
        yield
    finally:
        goes_on.set()


@contextmanager
def known_to(server: Running, count: int, *requests: bytes) -> Iterator[list[RawClient]]:
    """Connections of a server that has seen the heads of these requests, and the topics of those that write."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server)) for _ in range(count)]
        for request in requests:
            assert clients[0].send(request).answer().status in (200, 201)
        for one in clients:
            assert one.send(b"GET /v0/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").answer().status == 200
        yield clients


def together(server: Running, clients: Sequence[RawClient], requests: Sequence[bytes]) -> list[Answer]:
    with held(server):
        for client, request in zip(clients, requests, strict=True):
            client.send(request)
    return [client.answer() for client in clients]


def submissions(server: Running) -> int:
    wal = server.on_loop(lambda: server.server.app.engine).core.wal  # type: ignore[union-attr]
    assert wal is not None
    return server.on_loop(lambda: sum(shard.counters.batches for shard in wal.shards))


@pytest.fixture(params=KERNELS)
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.name()
    kernel.select(request.param)
    yield request.param
    kernel.select(before)


# -- writes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_writes_of_one_pass_are_one_write_to_the_log_and_answered_each(
    each_kernel: str, server: Running, topic: str, durability: str
) -> None:
    """[WR-3, S-70, P-4] Seqs of each in a row, none twice; one pwrite; read back as answered."""
    requests = [write(topic, row(10 * n), row(10 * n + 1)) for n in range(10, 40)]
    first = write(topic, row(0), config={"durability": durability})
    with known_to(server, len(requests), first, requests[0]) as clients:
        before = submissions(server)
        answers = [answer.json() for answer in together(server, clients, requests)]
        pwrites = submissions(server) - before
        found = clients[0].send(post(f"/v0/topics/{topic}/diff", {"limit": 1000})).answer().json()["records"]
    assert pwrites == (0 if durability == "ephemeral" else 1)
    assert sorted(answer["first_seq"] for answer in answers) == list(range(4, 4 + 2 * len(requests), 2))
    stored = {record["$seq"]: record["data"] for record in found}
    for n, answer in zip(range(10, 40), answers, strict=True):
        assert (
            answer["seqs"] == [answer["first_seq"], answer["last_seq"]] == [answer["first_seq"] + at for at in (0, 1)]
        )
        assert (answer["count"], answer["created"], answer["deduped"]) == (2, False, False)
        assert answer["head_seq"] >= answer["last_seq"]
        assert set(answer["performance"]) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
        assert [stored[seq] for seq in answer["seqs"]] == [10 * n, 10 * n + 1]


def test_what_is_not_plain_goes_its_own_way_in_the_same_pass(each_kernel: str, server: Running, topic: str) -> None:
    """[WR-1, API-11] Whatever a body is, it is answered as alone, and the others do not mind."""
    rows: list[tuple[bytes, int]] = [
        (b'{"records":[{"data":1}]}', 200),
        (b'{"records":[{"data":1]}}', 400),
        (b'{"records":[]          }', 400),
        ('{"records":[{"data":"ü"}]}'.encode(), 200),
        (b'{"records":[{"data":"\xff"}]}', 400),
        (b'{"records":[{"data":1,"tag":"a"}]}', 200),
        (b'{"records":[{"data":1}],"node":"n"}', 200),
        (b'{"records":[{"data":1}],"idempotency_key":"k"}', 200),
        (b'{"records":[{"data":1}],"create":false,"producer":{"id":"p","epoch":1,"index":1}}', 200),
        (b"[]", 400),
        (b'{"records":[{"data":1}],"disable_backpressure":7}', 400),
    ]
    requests = [post(f"/v0/topics/{topic}", body) for body, _ in rows]
    good = [post(f"/v0/topics/{topic}", b'{"records":[{"data":"%b"}]}' % (b"x" * n)) for n in range(60)]
    with known_to(server, 2 * len(rows), *good) as clients:
        answers = together(server, clients, [one for one in requests for _ in (0, 1)])
        state = clients[0].send(f"GET /v0/topics/{topic} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()).answer().json()
    expected = [status for _, status in rows for _ in (0, 1)]
    assert [answer.status for answer in answers] == expected
    deduped = sum(answer.status == 200 and answer.json()["deduped"] for answer in answers)
    assert deduped == 2, "the second of the same key, and of the same producer and index"
    assert state["count"] == len(good) + expected.count(200) - deduped


def test_each_write_is_refused_by_itself(server: Running, topic: str) -> None:
    """[CAP-3] A topic with room for two takes two of five, not none."""
    first = write(topic, row(0), config={"cap_records": 4, "discard": "reject"})
    with known_to(server, 5, first, write(topic, row(1))) as clients:
        answers = together(server, clients, [write(topic, row(n)) for n in range(5)])
    statuses = sorted(answer.status for answer in answers)
    assert statuses == [200, 200, *[next(a.status for a in answers if a.status != 200)] * 3]
    assert {answer.code for answer in answers if answer.status != 200} == {"topic_full"}


def test_writes_that_are_tried_one_by_one_are_buffered_once(topic: str) -> None:
    """[RES-3, CAP-3] What one of them is refused for is the topic's cap, not the bound of what is buffered."""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "65536"}) as server:
        first = write(topic, row(0), config={"cap_records": 3, "discard": "reject"})
        request = write(topic, row("x" * 20_000))
        with known_to(server, 3, first, request) as clients:
            answers = together(server, clients, [request] * 3)
        assert sorted(answer.status for answer in answers) == [200, 422, 422]
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0


@pytest.mark.parametrize(("pressure", "case"), [(1.0, "1"), (0.0, "2")])
def test_writes_that_find_no_room_are_refused_each_and_counted_each(topic: str, pressure: float, case: str) -> None:
    """[WR-5, D-50, MET-8] Requests are what `topics_throttled_total` counts."""
    fs, clock = GatedFs(), ManualClock()
    requests = write(topic, row(0), config={"durability": "fsync"}), write(topic, row(1))
    with (
        running(fs=fs, clock=clock, config=real_config(queue_submissions=1)) as server,
        known_to(server, 4, *requests) as (in_front, *others),
    ):
        engine = server.on_loop(lambda: server.server.app.engine)
        assert engine is not None
        admission = engine.core.admission
        fs.gate.clear()
        try:
            in_front.send(requests[1])
            assert fs.waiting.acquire(timeout=WAIT_S)
            server.on_loop(lambda: setattr(admission, "pressure", pressure))
            with held(server):
                for one in others:
                    one.send(requests[1])
            if case == "2":
                until(server, lambda: admission.waiting == 1)
                clock.advance(50)
                server.on_loop(engine.tick)
            answers = [one.answer() for one in others]
        finally:
            fs.gate.set()
        assert {(answer.status, answer.code) for answer in answers} == {(429, "throttled")}
        assert {one: count for one, count in admission.refused.items() if count} == {case: 3}
        assert in_front.answer().status == 200


def test_an_answer_that_cannot_be_given_keeps_nobody_else_waiting(
    server: Running, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-6] Each of them is answered for itself, as if it had been alone."""
    request = write(topic, row(1))
    with known_to(server, 3, request) as (broken, *others):

        def breaks(*answer: object) -> None:
            raise RuntimeError("nothing goes out here")

        server.on_loop(lambda: setattr(broken.served, "answer_known", breaks))
        with held(server):
            for one in (broken, *others):
                one.send(request)
        assert [one.answer().status for one in others] == [200, 200]
        assert broken.rest() == b""
    assert "answering a write" in caplog.text


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
def test_writes_are_answered_once_whatever_happens(
    topic: str, durability: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[RES-7] Even if staging breaks behind their decision: a connection is at something else by then."""
    struck: list[None] = []

    def append(core: Core, given: Write, done: Outcome) -> None:
        real_append(core, given, done)
        if not struck:
            struck.append(None)
            raise RuntimeError("behind it all")

    with running(env={"TOPICS_API_KEYS": "of-all"}) as server:
        keyed = ["Authorization: Bearer of-all"]
        first = write(topic, row(0), more=keyed, config={"durability": durability})
        request = write(topic, row(1), more=keyed)
        with known_to(server, 3, first, request) as clients:
            monkeypatch.setattr(gather.appending, "append", append)
            together(server, clients, [request] * 3)
            answers = together(server, clients, [request] * 3)
        assert sorted(answer.json()["first_seq"] for answer in answers) == [6, 7, 8]
        assert server.on_loop(lambda: [key.usage.inflight for key in server.server.app.keys.keys]) == [0]
    assert "decided again" in caplog.text


def breaks_once(real: Callable[..., Any], at: int = 1) -> Callable[..., Any]:
    """The same, but the call of this number breaks."""
    calls: list[None] = []

    def call(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            raise RuntimeError("nobody foresaw it")
        return real(*args)

    return call


def status_or_end(client: RawClient) -> int:
    """Of the next answer; 0: the connection ended instead."""
    try:
        return client.answer().status
    except (AssertionError, ConnectionResetError):
        return 0


@pytest.mark.parametrize("key", ["", "of-all"], ids=["lines", "carriers"])
@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
def test_writes_that_are_decided_are_answered_though_deciding_breaks(
    topic: str, durability: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ERR-6, RES-7] Nobody was told yet: each of them is told that something went wrong, and goes on."""
    with running(env={"TOPICS_API_KEYS": key} if key else {}) as server:
        keyed = [f"Authorization: Bearer {key}"] if key else []
        first = write(topic, row(0), more=keyed, config={"durability": durability})
        request = write(topic, row(1), more=keyed)
        with known_to(server, 3, first, request) as clients:
            together(server, clients, [request] * 3)
            monkeypatch.setattr(gather.records, "log_timing", breaks_once(records.log_timing))
            broken = together(server, clients, [request] * 3)
            answers = together(server, clients, [request] * 3)
        assert [(answer.status, answer.code) for answer in broken] == [(500, "internal")] * 3
        assert [answer.status for answer in answers] == [200] * 3
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def test_an_answer_that_cannot_be_made_keeps_nobody_else_waiting(
    topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-6, RES-7] The one that it was for is closed, and its key's slot is free."""
    with running(env={"TOPICS_API_KEYS": "of-all"}) as server:
        request = write(topic, row(1), more=["Authorization: Bearer of-all"])
        with known_to(server, 3, request) as clients:
            monkeypatch.setattr(gather.wire, "performance", breaks_once(wire.performance, at=2))
            with held(server):
                for one in clients:
                    one.send(request)
            assert sorted(status_or_end(one) for one in clients) == [0, 200, 200]
        assert server.on_loop(lambda: [key.usage.inflight for key in server.server.app.keys.keys]) == [0]
    assert "answering a write" in caplog.text


def test_a_run_is_of_so_many_records_that_nobody_waits_for_it(
    server: Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[P-10] However small records are."""
    staged: list[int] = []

    def append(core: Core, given: Write, done: Outcome) -> None:
        staged.append(given.prepared.records)
        real_append(core, given, done)

    request = write(topic, *[row(0)] * 300)
    with known_to(server, 10, request) as clients:
        monkeypatch.setattr(gather.appending, "append", append)
        answers = together(server, clients, [request] * 10)
    assert sorted(answer.json()["first_seq"] for answer in answers) == list(range(301, 3301, 300))
    assert max(staged) < RUN_RECORDS_MAX + 300
    assert len(staged) < 10


def test_more_than_a_run_holds_are_several_runs(server: Running, topic: str) -> None:
    count = RUN_WRITES_MAX + 10
    with known_to(server, count, write(topic, row(0))) as clients:
        answers = together(server, clients, [write(topic, row(1))] * count)
    assert sorted(answer.json()["first_seq"] for answer in answers) == list(range(2, count + 2))


def test_a_client_that_goes_takes_nobody_along(server: Running, topic: str) -> None:
    """[API-23, R-6] What was received whole is written; who waits is answered."""
    with known_to(server, 3, write(topic, row(0))) as clients:
        with held(server):
            for client in clients:
                client.send(write(topic, row(1)))
            clients[0].reset()
            clients[1].finish()
        answers = [clients[1].answer(), clients[2].answer()]
        assert clients[1].rest() == b""
    assert len({answer.json()["first_seq"] for answer in answers}) == 2


def test_a_topic_that_goes_in_the_same_pass_is_made_anew(server: Running, topic: str) -> None:
    """[NAME-5, WR-2] As if the deletion had come first: one of the writes creates the topic, and is told so."""
    with known_to(server, 4, write(topic, row(0))) as clients:
        gone = f"DELETE /v0/topics/{topic} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        deleted, *written = together(server, clients, [gone, *[write(topic, row(1))] * 3])
    assert deleted.status == 200
    told = sorted((answer.json()["first_seq"], answer.status, answer.json()["created"]) for answer in written)
    assert told == [(1, 201, True), (2, 200, False), (3, 200, False)]


def test_a_long_answer_is_packed_for_whoever_wants_that(server: Running, topic: str) -> None:
    """[API-16]"""
    request = write(topic, *[row(n) for n in range(300)], more=["Accept-Encoding: gzip"])
    with known_to(server, 1, request) as (client,):
        answer = client.send(request).answer()
    assert answer.headers["content-encoding"] == "gzip"
    assert msgspec.json.decode(gzip.decompress(answer.body))["seqs"] == list(range(301, 601))


def test_writes_wait_for_room_together(topic: str) -> None:
    """[RES-3] What is buffered is given back: a thousand bodies later there is still room."""
    with running(env={"TOPICS_MAX_BUFFERED_BYTES": "65536"}) as server:
        request = write(topic, row("x" * 1000))
        with known_to(server, 4, request) as clients:
            for _ in range(50):
                assert {answer.status for answer in together(server, clients, [request] * 4)} == {200}
        assert server.on_loop(lambda: server.server.app.buffered.used) == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_joined_writes_are_the_bytes_of_each_behind_the_other(each_kernel: str, count: int) -> None:
    """[S-24, S-212 c] So a crash leaves each write whole or not at all; what belongs to all of them chains them."""

    def made(n: int) -> Sole:
        given = [{"data": [n, at], "tag": "t" * at or None, "node": "n" * n or None} for at in range(n + 1)]
        if kernel.native is None:
            return prepare(given, Limits())
        found = kernel.native.scan_write(msgspec.json.encode({"records": given}), Limits())
        assert found is not None
        return found

    parts = [made(n) for n in range(count)]
    for more in (False, True):
        seq, at, raw, rows = 5, 0, b"", b""
        places: list[int] = []
        for part in parts:
            frames, begins, entries = part.framed(3, seq, 77, frame.DURABLE, more)
            places += [at + offset for offset in array("Q", begins)]
            raw, rows, at, seq = raw + frames, rows + entries, at + len(frames), seq + part.records
        joined = Joined(parts)
        assert joined.framed(3, 5, 77, frame.DURABLE, more) == (raw, offsets.pack(places), rows)
    assert (joined.records, joined.total) == (seq - 5, sum(part.total for part in parts))
    assert joined.has_tags == any(part.has_tags for part in parts)
    assert joined.tags == [tag for part in parts for tag in part.tags]
    assert joined.envelopes == [stored for part in parts for stored in part.envelopes]


# -- heads -----------------------------------------------------------------------------------------------------------


def remembered(server: Running) -> list[bytes]:
    return server.on_loop(lambda: list(server.server.app.heads.by_bytes))


def test_what_keys_there_are_counts_at_once(topic: str) -> None:
    """[KEY-4] A head that was let through before there were keys is not, afterwards."""
    with running() as server, known_to(server, 1, write(topic, row(1))) as (client,):
        assert client.send(write(topic, row(1))).answer().status == 200
        ring = keys.KeyRing(keys.parse("s3cret-of-nobody"))
        server.on_loop(lambda: server.server.use_keys(ring))
        refused = client.send(write(topic, row(1))).answer()
        assert (refused.status, refused.code) == (401, "unauthorized")
        keyed = write(topic, row(1), more=["Authorization: Bearer s3cret-of-nobody"])
        for _ in range(3):
            assert client.send(keyed).answer().status == 200
        assert not [head for head in remembered(server) if b"s3cret" in head], "[KEY-5]"
        refused = client.send(write(topic, row(1))).answer()
        assert refused.status == 401


def test_a_key_counts_with_every_request(topic: str) -> None:
    """[KEY-3, KEY-4, KEY-5, RES-7] Scopes, prefixes and slots, of a head that is known as of a new one."""
    listed = "of-all,of-reading:read,of-others:write:elsewhere"
    with running(env={"TOPICS_API_KEYS": listed, "TOPICS_MAX_INFLIGHT_PER_KEY": "3"}) as server:
        keyed = {
            name: write(topic, row(1), more=[f"Authorization: Bearer {name}"]) for name in ("of-all", "of-reading")
        }
        others = write(topic, row(1), more=["Authorization: Bearer of-others"])
        with known_to(server, 5, keyed["of-all"]) as clients:
            first = clients[0]
            for _ in range(3):
                assert first.send(keyed["of-all"]).answer().status == 200
                assert first.send(keyed["of-reading"]).answer().code == "forbidden"
                assert first.send(others).answer().code == "forbidden"
                assert first.send(write(topic, row(1))).answer().code == "unauthorized"
                assert first.send(write(topic, row(1), more=["Authorization: Bearer of-none"])).answer().status == 401
            statuses = sorted(one.status for one in together(server, clients, [keyed["of-all"]] * 5))
            assert statuses == [200, 200, 200, 429, 429]
            ring = server.on_loop(lambda: server.server.app.keys)
            assert [key.usage.inflight for key in ring.keys] == [0, 0, 0]
            kept = server.on_loop(lambda: repr([server.server.app.heads.by_bytes, server.server.app.heads.by_digest]))
            assert "of-all" not in kept
            fewer = keys.KeyRing(keys.parse("of-reading:read"), ring)
            server.on_loop(lambda: server.server.use_keys(fewer))
            assert first.send(keyed["of-all"]).answer().status == 401


def test_a_key_that_stands_where_none_belongs_is_not_kept(server: Running, topic: str) -> None:
    """[KEY-5, API-8] It is ignored there, and it may be one all the same."""
    with known_to(server, 1, write(topic, row(0))) as (client,):
        for path in ("/v0/health?token=s3cret-in-a-query", f"/v0/topics/{topic}?x=1&token=s3cret-in-a-query"):
            assert client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()).answer().status == 200
        heads = server.server.app.heads
        assert "s3cret-in-a-query" not in server.on_loop(lambda: repr([heads.by_bytes, heads.by_digest]))


@pytest.mark.parametrize(
    "fields",
    [
        ["Origin: http://elsewhere.example"],
        ["Authorization: Bearer x"],
        ["Authorization: Basic eDp5"],
        ["Content-Encoding: identity"],
        ["Expect: 100-continue"],
        ["Cookie: a=b"],
        ["Idempotency-Key: a"],
        ["Sec-Fetch-Site: cross-site"],
    ],
    ids=lambda fields: fields[0].partition(":")[0],
)
def test_a_head_with_more_to_it_is_answered_twice_as_once(server: Running, topic: str, fields: list[str]) -> None:
    """[API-20, API-22, IDM-2]"""
    request = write(topic, row(1), more=fields)
    with known_to(server, 1, write(topic, row(0))) as (client,):
        once, twice = (client.send(request).answer() for _ in (0, 1))
        while once.status == 100:
            once = twice
            twice = client.answer()
    assert once.status == twice.status


def test_bytes_that_only_end_like_a_head_that_is_known_are_not_taken_for_it(server: Running, topic: str) -> None:
    """[API-25] A head in pieces, behind blank lines, or behind half a line end, is what it always was."""
    request = write(topic, row(1))
    with known_to(server, 1, request) as (client,):
        client.send(request[:9])
        client.until(lambda side: side._heads.has_begun)
        client.send(request[9:])
        assert client.answer().status == 200
        assert client.send(b"\r\n\r\n" + request).answer().status == 200
        client.send(b"\r")
        client.until(lambda side: not side._heads.is_fresh)
        assert client.send(request).answer().status == 400


def test_requests_in_a_row_are_answered_in_a_row(server: Running, topic: str) -> None:
    """[API-25] Several at once are taken one by one; a body in two pieces is waited for."""
    request = write(topic, row(1))
    with known_to(server, 1, request) as (client,):
        client.send(request * 5)
        firsts = [client.answer().json()["first_seq"] for _ in range(5)]
        client.send(request[:-4])
        client.until(lambda side: side._exchange is not None)
        last = client.send(request[-4:]).answer().json()["first_seq"]
    assert firsts == list(range(2, 7))
    assert last == 7


def test_what_is_remembered_is_bounded(server: Running) -> None:
    """What strangers send does not fill memory."""
    with RawClient(server) as client:
        for n in range(HEADS_MAX + 10):
            client.send(f"GET /v0/topics/t{n} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()).answer()
        long = f"GET /v0/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {'x' * 2000}\r\n\r\n".encode()
        assert client.send(long).answer().status == 200
    found = remembered(server)
    assert 0 < len(found) <= HEADS_MAX
    assert long not in found


def test_a_stopping_server_takes_no_more(topic: str) -> None:
    """[API-5]"""
    with running() as server, known_to(server, 2, write(topic, row(1))) as clients:
        with held(server):
            clients[0].send(write(topic, row(1)))
            server.loop.call_soon_threadsafe(server._stopping.set)
        taken = clients[0].answer()
        assert taken.status in (200, 503)
        until_closed = clients[1].rest()
        assert until_closed == b""
