"""The stream of jobs: who may open one, what it is handed, what frees and ends it, over both versions (04 §8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.api import expect
from tests.api.expect import Background, ok, put, write
from tests.api.frames import Talk
from tests.api.kit import Running, running
from tests.api.test_metrics import scrape
from tests.api.test_queues import at_once, cohort
from tests.api.watching import (
    Stream,
    Stream2,
    close_stream,
    finish_stream,
    is_http2,
    pass_time,
    reset_stream,
    until_streams,
)
from tests.api.working import call, claimed, counts, jobs, produce, pushed, queue, seqs, work
from topics.server import keys
from topics.testing import ManualClock

VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
KEYS = "full,worker:rw,reader:read,writer:write,limited:rw:plant:"


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


@pytest.fixture
def http2(client: httpx.Client) -> bool:
    return is_http2(client)


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server with keys."""
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        with one.client(key="full") as client:
            queue(client, "plant:a")
            queue(client, "yard")
        yield one


# Opening


def test_a_stream_is_refused_in_order_and_before_it_opens(server: Running, client: httpx.Client, topic: str) -> None:
    """[WRK-1] `Accept` → `node` → topic → queue."""
    http2 = is_http2(client)

    def opened(name: str, query: str, *fields: str) -> tuple[int, bytes]:
        with work(server, http2, name, query, *fields) as stream:
            return stream.status, stream.body

    def is_refused(answer: tuple[int, bytes], status: int, code: bytes) -> None:
        assert answer[0] == status
        assert b'"code":"%b"' % code in answer[1]

    is_refused(opened(topic, "", "Accept: text/html"), 406, b"not_acceptable")
    for query in ("", "node=", "node=" + "x" * 129, "Node=w", "max=3"):
        is_refused(opened(topic, query), 400, b"invalid_request")
    is_refused(opened(topic, "node=w"), 404, b"topic_not_found")
    put(client, topic)
    is_refused(opened(topic, "node=w"), 409, b"not_a_queue")
    queue(client, topic + "-q")
    for accept in ("text/event-stream", "*/*", "text/html, text/event-stream;q=0.5", "TEXT/EVENT-STREAM"):
        assert opened(topic + "-q", "node=" + "x" * 128, f"Accept: {accept}")[0] == 200
    until_streams(server, 0)


def test_the_head_and_the_first_output(server: Running, client: httpx.Client, topic: str, http2: bool) -> None:
    """[WRK-2, STR-2, STR-5, WRK-7] `retry` first, no heartbeat at once; what was received before is of no interest."""
    queue(client, topic, 2)
    with work(server, http2, topic, "node=w&max=2", "Last-Event-ID: 2", "Accept-Encoding: gzip") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in stream.headers
        assert stream.next().raw == b"retry: 2000"
        assert pushed(stream, 2) == [1, 2]


@VERSIONS
def test_scopes_prefixes_and_tokens(locked: Running, http2: bool) -> None:
    """[API-8, SCP-1, PFX-2] read and write; a token in the query is enough here, the header wins."""
    cases: list[tuple[str, tuple[str, ...], str, int]] = [
        ("yard", (), "", 401),
        ("yard", (bearer("nobody"),), "", 401),
        ("yard", (bearer("reader"),), "", 403),
        ("yard", (bearer("writer"),), "", 403),
        ("yard", (bearer("limited"),), "", 403),
        ("plant:a", (bearer("limited"),), "", 200),
        ("yard", (), "&token=worker", 200),
        ("yard", (), "&token=reader", 403),
        ("yard", (bearer("reader"),), "&token=worker", 403),
        ("yard", (bearer("worker"),), "&token=nobody", 200),
    ]
    for name, fields, token, status in cases:
        with work(locked, http2, name, "node=w" + token, *fields) as stream:
            assert stream.status == status, (name, fields, token)
    until_streams(locked, 0)


# Jobs


def test_a_job_has_all_its_members_on_one_line(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, http2: bool
) -> None:
    """[WRK-4, STR-4] Also when it was written over several lines."""
    queue(timed, topic, lease_ms=7000)
    body = b'{"records":[{"data":{"loaf":\n "spelt\\n"},"tag":"lot:9","meta":{"rush":"1"},"node":"shop"},{"data":2}]}'
    ok(expect.raw(timed, f"/v0/topics/{topic}", body))
    with work(timed_server, http2, topic, "node=w&max=2") as stream:
        first, second = jobs(stream, 2)
        lines = first.raw.split(b"\n")
        assert [line.partition(b": ")[0] for line in lines] == [b"id", b"event", b"data"]
        now = clock.now_ms()
        told = first.data
        assert told.pop("lease_id").startswith("lease_")
        assert told == {
            "topic": topic, "$seq": 1, "deadline": now + 7000, "$ts": now, "$tag": "lot:9", "deliveries": 1,
            "data": {"loaf": "spelt\n"}, "meta": {"rush": "1"},
        }  # fmt: skip
        members = {"topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
        assert second.data.keys() == members


def test_a_stream_holds_no_more_than_it_asked_for(
    server: Running, client: httpx.Client, topic: str, http2: bool
) -> None:
    """[WRK-3, WRK-5] New jobs at once; a slot freed by an ack or a nack is filled again."""
    queue(client, topic)
    with work(server, http2, topic, "node=w&max=2") as stream:
        produce(client, topic, 1)
        assert pushed(stream, 1) == [1]
        produce(client, topic, 4, first=2)
        assert pushed(stream, 1) == [2]
        assert counts(client, topic) == (3, 2, 0)
        assert call(client, "ack", topic, [1])["acked"] == 1
        assert pushed(stream, 1) == [3]
        call(client, "nack", topic, [2], delay_ms=60_000)
        assert pushed(stream, 1) == [4]
        assert counts(client, topic) == (1, 2, 1)


@pytest.mark.parametrize(
    ("query", "most", "lease_ms"),
    [
        ("", 1, 30_000),
        ("&max=0&lease_ms=5", 1, 100),
        ("&max=-3&lease_ms=-1", 1, 30_000),
        ("&max=x&lease_ms=x", 1, 30_000),
        ("&max=3&lease_ms=5000", 3, 5000),
        ("&max=99999&lease_ms=99999999999", 5, 86_400_000),
        ("&max=2&max=4&lease_ms=18446744073709551616", 2, 30_000),
    ],
)
def test_parameters_are_clamped_or_take_their_default(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, query: str, most: int, lease_ms: int
) -> None:
    """04 §8, [LSE-6]"""
    queue(timed, topic, 5)
    with work(timed_server, is_http2(timed), topic, "node=w" + query) as stream:
        found = jobs(stream, most)
        assert {job.data["deadline"] for job in found} == {clock.now_ms() + lease_ms}
        assert counts(timed, topic) == (5 - most, most, 0)


def test_leases_of_a_stream_and_of_claims_are_equal(
    server: Running, client: httpx.Client, topic: str, http2: bool
) -> None:
    """[WRK-5] Acked and extended by the same node, fenced by their ids; slots count only the stream's own."""
    queue(client, topic, 3)
    assert claimed(client, topic) == [1]
    with work(server, http2, topic, "node=w&max=1") as stream:
        (job,) = jobs(stream, 1)
        assert call(client, "ack", topic, [2], node="other")["skipped"] == [2]
        assert call(client, "ack", topic, [2], ["lease_1"])["skipped"] == [2]
        assert call(client, "extend", topic, [1, 2], ["", job.data["lease_id"]], lease_ms=1000)["extended"] == 2
        assert call(client, "ack", topic, [2], [job.data["lease_id"]])["acked"] == 1
        assert pushed(stream, 1) == [3]


@pytest.mark.parametrize("how", ["expiry", "nack", "delay", "disconnect", "own expiry"])
def test_jobs_that_are_given_back_reach_a_stream(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, how: str
) -> None:
    """[WRK-3] By an event, not by asking again and again: the frame is there before any time passes."""
    http2 = is_http2(timed)
    queue(timed, topic, 1)
    other = work(timed_server, http2, topic, "node=other") if how == "disconnect" else None
    if other is not None:
        assert pushed(other, 1) == [1]
    elif how != "own expiry":
        assert claimed(timed, topic, node="other", lease_ms=5000) == [1]
    with work(timed_server, http2, topic, "node=w&lease_ms=5000") as stream:
        assert stream.next().kind == "retry"
        if how == "own expiry":
            assert pushed(stream, 1) == [1]
        if how in ("expiry", "own expiry"):
            pass_time(timed_server, clock, 5001, sweep=False)
        elif other is not None:
            other.close()
        else:
            call(timed, "nack", topic, [1], node="other", delay_ms=3000 if how == "delay" else 0)
            pass_time(timed_server, clock, 3000 if how == "delay" else 0, sweep=False)
        (job,) = jobs(stream, 1)
        assert (job.data["$seq"], job.data["deliveries"]) == (1, 2)


def test_a_stream_and_pollers_share_evenly(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, http2: bool
) -> None:
    """[COH-2, COH-3, WRK-3] Refills join the window that claims wait for."""
    queue(timed, topic, claim_jitter_ms=500)
    with work(timed_server, http2, topic, "node=stream&max=10") as stream:
        assert stream.next().kind == "retry"
        waits = at_once(timed, topic, ("a", 10), ("b", 10))
        cohort(timed_server, topic, 2)
        produce(timed, topic, 18)
        cohort(timed_server, topic, 3)
        pass_time(timed_server, clock, 500, sweep=False)
        shares = [seqs(ok(one.answer())) for one in waits] + [pushed(stream, 6)]
        assert [len(one) for one in shares] == [6, 6, 6]
        assert sorted(seq for one in shares for seq in one) == list(range(1, 19))
        assert counts(timed, topic) == (0, 18, 0)


def test_a_stream_that_left_during_the_window_gets_no_jobs(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, http2: bool
) -> None:
    """[COH-5, WRK-6] Nor are jobs delivered that nobody will see: the counters of the others' jobs stay at one."""
    queue(timed, topic, claim_jitter_ms=500)
    stream = work(timed_server, http2, topic, "node=gone&max=10")
    assert stream.next().kind == "retry"
    produce(timed, topic, 4)
    cohort(timed_server, topic, 1)
    waits = at_once(timed, topic, ("stays", 10))
    cohort(timed_server, topic, 2)
    stream.close()
    until_streams(timed_server, 0)
    pass_time(timed_server, clock, 500, sweep=False)
    told = [ok(one.answer()) for one in waits]
    assert [(job["$seq"], job["deliveries"]) for job in told[0]["claimed"]] == [(n, 1) for n in range(1, 5)]


def test_many_streams_get_every_job_once(server: Running, client: httpx.Client, topic: str, http2: bool) -> None:
    """[LSE-5, WRK-3] Each job has one holder; all are acked in the end."""
    queue(client, topic)
    streams = [work(server, http2, topic, f"node=w{n}&max=3") for n in range(5)]
    try:
        produce(client, topic, 15)
        held = [pushed(stream, 3) for stream in streams]
        assert sorted(seq for one in held for seq in one) == list(range(1, 16))
        produce(client, topic, 15, first=16)
        for number, one in enumerate(held):
            assert call(client, "ack", topic, one, node=f"w{number}")["acked"] == 3
        later = [pushed(stream, 3) for stream in streams]
        assert sorted(seq for one in later for seq in one) == list(range(16, 31))
    finally:
        for stream in streams:
            stream.close()
    until_streams(server, 0)
    assert counts(client, topic) == (15, 0, 0)


def test_silence_is_filled_with_heartbeats(
    timed_server: Running, timed: httpx.Client, clock: ManualClock, topic: str, http2: bool
) -> None:
    """[WRK-2] After 15 s without a frame, and not before."""
    queue(timed, topic)
    with work(timed_server, http2, topic) as stream:
        assert stream.next().kind == "retry"
        pass_time(timed_server, clock, 14_999, sweep=False)
        produce(timed, topic, 1)
        assert stream.next().kind == "job"
        pass_time(timed_server, clock, 14_999, sweep=False)
        pass_time(timed_server, clock, 1, sweep=False)
        assert stream.next().raw == b": hb"
        pass_time(timed_server, clock, 15_000, sweep=False)
        assert stream.next().raw == b": hb"


# Ends


@VERSIONS
@pytest.mark.parametrize("how", [close_stream, finish_stream, reset_stream])
def test_what_a_connection_held_is_released_when_it_ends(
    server: Running, http2: bool, how: Callable[[Stream], None]
) -> None:
    """[WRK-6, API-23, RES-6] At once, and nothing else of the same node; delivery counters stay."""
    name = f"gone-{http2}-{how.__name__}"
    with server.client() as client, work(server, http2, queue(client, name, 6), "node=w") as stays:
        assert pushed(stays, 1) == [1]
        assert claimed(client, name) == [2]
        goes = work(server, http2, name, "node=w&max=3")
        assert pushed(goes, 3) == [3, 4, 5]
        assert call(client, "ack", name, [4])["acked"] == 1
        assert pushed(goes, 1) == [6]
        how(goes)
        until_streams(server, 1)
        rows = ok(client.get(f"/v0/topics/{name}/leases"))["leases"]
        assert [(row["$seq"], row["node"]) for row in rows] == [(1, "w"), (2, "w")]
        again = ok(client.post(f"/v0/topics/{name}/claim", json={"node": "x", "max": 9}))
        assert [(job["$seq"], job["deliveries"]) for job in again["claimed"]] == [(3, 2), (5, 2), (6, 2)]
        goes.close()
    until_streams(server, 0)


def test_a_reset_stream_leaves_the_others_of_its_connection(server: Running) -> None:
    """[API-26, WRK-6]"""
    with server.client() as client:
        queue(client, "several-work", 2)
        with Talk(server) as talk:
            one, two = (Stream2(talk, f"/v0/topics/several-work/work?node=w{id}", id=id) for id in (1, 3))
            assert sorted((*pushed(one, 1), *pushed(two, 1))) == [1, 2]
            one.reset()
            until_streams(server, 1)
            assert counts(client, "several-work") == (1, 1, 0)
            held = ok(client.get("/v0/topics/several-work/leases"))["leases"]
            assert [row["node"] for row in held] == ["w3"]
    until_streams(server, 0)


@pytest.mark.parametrize("back", [None, "log", "queue"])
def test_a_stream_ends_when_its_topic_goes(
    server: Running, client: httpx.Client, topic: str, http2: bool, back: str | None
) -> None:
    """[WRK-8] Also when another one of that name is there right away."""
    queue(client, topic, 1)
    with work(server, http2, topic) as stream:
        assert pushed(stream, 1) == [1]
        ok(client.delete(f"/v0/topics/{topic}"))
        if back is not None:
            put(client, topic, type=back)
            write(client, topic, "of the new one")
        (last,) = stream.rest()
        assert stream.is_complete
        assert b"id: " not in last.raw
        assert last.kind == "error"
        told = last.data
        assert told.keys() == {"code", "message", "topic"}
        assert (told["code"], told["topic"]) == (409, topic)
    until_streams(server, 0)
    if back == "queue":
        assert counts(client, topic) == (1, 0, 0)


@VERSIONS
def test_a_stream_ends_when_its_key_is_removed(http2: bool) -> None:
    """[WRK-8, KEY-4] And with it its leases; streams of other keys go on."""
    with running(env={"TOPICS_API_KEYS": "a,b"}) as server, server.client(key="b") as client:
        queue(client, "t", 2)
        with (
            work(server, http2, "t", "node=one", bearer("a")) as one,
            work(server, http2, "t", "node=two", bearer("b")) as two,
        ):
            assert pushed(one, 1) == [1]
            assert pushed(two, 1) == [2]
            ring = keys.KeyRing(keys.parse("b"), server.server.app.keys)
            server.on_loop(lambda: server.server.use_keys(ring))
            (last,) = one.rest()
            assert one.is_complete
            assert (last.kind, last.data["code"], last.data["topic"]) == ("error", "unauthorized", "t")
            assert b"id: " not in last.raw
            assert call(client, "ack", "t", [2], node="two")["acked"] == 1
            assert pushed(two, 1) == [1]
            until_streams(server, 1)


@VERSIONS
def test_a_stream_ends_when_the_server_stops(http2: bool, tmp_path: object) -> None:
    """[WRK-8, API-5, WRK-6, QRC-3] Its leases are given back, durably where leases are durable."""
    path = str(tmp_path)
    with running(path) as server, server.client() as client:
        queue(client, "t", 2, leases_durable=True)
        assert claimed(client, "t") == [1]
        with work(server, http2, "t", "node=s") as stream:
            assert pushed(stream, 1) == [2]
            server.stop()
            (last,) = stream.rest()
            assert stream.is_complete
            told = last.data
            assert (last.kind, told["code"], told["topic"]) == ("error", "server_shutting_down", "t")
            assert isinstance(told["message"], str)
            assert b"id: " not in last.raw
    with running(path) as server, server.client() as client:
        assert counts(client, "t") == (1, 1, 0)
        (again,) = ok(client.post("/v0/topics/t/claim", json={"node": "x"}))["claimed"]
        assert (again["$seq"], again["deliveries"]) == (2, 2)


# Slots


@VERSIONS
@pytest.mark.parametrize("which", ["max_sse_connections", "max_sse_connections_per_key"])
def test_streams_are_counted_and_a_slot_is_free_when_one_ends(http2: bool, which: str) -> None:
    """[RES-2, RES-6, WRK-1] The last check; a stream that is refused holds nothing."""
    env = {"TOPICS_API_KEYS": "a,b", "TOPICS_" + which.upper(): "2"}
    with running(env=env) as server, server.client(key="a") as client:
        queue(client, "t", 9)
        first = work(server, http2, "t", "node=1", bearer("a"))
        with (
            work(server, http2, "t", "node=2", bearer("a")),
            work(server, http2, "t", "node=3", bearer("a")) as third,
            work(server, http2, "u", "node=3", bearer("a")) as absent,
        ):
            assert absent.status == 404
            assert third.status == 429
            assert third.headers["retry-after"] == "1"
            assert b'"detail":{"limit":"%b","max":2}' % which.encode() in third.body
            with work(server, http2, "t", "node=4", bearer("b")) as other:
                assert other.status == (429 if which == "max_sse_connections" else 200)
            first.close()
            until_streams(server, 1)
            with work(server, http2, "t", "node=5", bearer("a")) as again:
                assert again.status == 200
                assert len(pushed(again, 1)) == 1
        until_streams(server, 0)
        assert [key.usage.streams for key in server.server.app.keys.keys] == [0, 0]
        assert counts(client, "t") == (9, 0, 0)


@VERSIONS
def test_a_stream_holds_no_in_flight_slot(http2: bool) -> None:
    """[RES-7] Only until it opens."""
    env = {"TOPICS_API_KEYS": "a", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(env=env) as server, server.client(key="a", http2=http2) as client:
        queue(client, "t", 2)
        with work(server, http2, "t", "node=1", bearer("a")) as one, work(server, http2, "t", "node=2", bearer("a")):
            assert one.status == 200
            assert scrape(client)["topics_sse_connections"] == 2
        until_streams(server, 0)
        assert [key.usage.inflight for key in server.server.app.keys.keys] == [0]


@VERSIONS
def test_a_client_that_does_not_read_is_handed_no_more_jobs(http2: bool) -> None:
    """[FRM-10, A-12] Its output is bounded, others get the jobs; when it reads again it goes on."""
    with running() as server, server.client() as client:
        put(client, "t", type="queue")
        big = "x" * 500_000
        more = {} if http2 else {"receive_bytes": 4096}
        with work(server, http2, "t", "node=slow&max=200", **more) as slow:
            assert slow.next().kind == "retry"
            for _ in range(40):
                write(client, "t", big)
            stuck = counts(client, "t")[1]
            assert stuck < 40
            others: list[int] = []
            while fast := claimed(client, "t", 200, node="fast"):  # so many bytes at a time
                others += fast
            assert others == list(range(stuck + 1, 41))
            assert pushed(slow, stuck) == list(range(1, stuck + 1))
            for _ in range(2):
                write(client, "t", big)
            assert pushed(slow, 2) == [41, 42]


def test_a_client_that_takes_nothing_for_long_loses_its_jobs(timed_server: Running, clock: ManualClock) -> None:
    """[FRM-12, WRK-6] Half a minute; the connection is closed and what it held can be claimed."""
    with timed_server.client() as client:
        put(client, "stuck", type="queue", lease_ms=86_400_000)
        with work(timed_server, False, "stuck", "node=slow&max=200", receive_bytes=4096) as slow:
            assert slow.next().kind == "retry"
            for _ in range(30):
                write(client, "stuck", "x" * 500_000)
            held = counts(client, "stuck")[1]
            assert 0 < held < 30
            for _ in range(4):
                pass_time(timed_server, clock, 10_001)
            until_streams(timed_server, 0)
            assert counts(client, "stuck") == (30, 0, 0)


def test_a_claim_that_came_before_a_stream_is_served_before_it(server: Running, client: httpx.Client) -> None:
    """[COH-2] A claim in the background and a stream: every job has one holder."""
    name = f"race-{is_http2(client)}"
    queue(client, name, 10)
    with work(server, is_http2(client), name, "node=s&max=5") as stream:
        waits = [Background(client, lambda one: one.post(f"/v0/topics/{name}/claim", json={"node": "p", "max": 5}))]
        mine = pushed(stream, 5)
        theirs = [seq for one in waits for seq in seqs(ok(one.answer()))]
        assert sorted(mine + theirs) == list(range(1, 11))
