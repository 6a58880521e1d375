"""Queues over HTTP: claim, ack, nack, extend, leases, counters, over both versions (04 §2 to §6, §9, §10)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api import expect
from tests.api.expect import JSON, U64_MAX, Background, compact, diff, invalid, ok, put, refused, tagged, waiting, write
from tests.api.frames import Talk
from tests.api.kit import WAIT_S, Running, running
from tests.api.rawclient import RawClient
from tests.api.test_metrics import scrape
from tests.api.watching import pass_time
from tests.api.working import call, claim, claimed, counts, produce, queue, seqs
from topics.testing import ManualClock

VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
VERBS = pytest.mark.parametrize("verb", ["ack", "nack", "extend"])


def body_of(verb: str, **members: object) -> dict[str, Any]:
    """A call that is right but for what is given."""
    return {"node": "w", "seqs": [1], **({"lease_ms": 1000} if verb == "extend" else {}), **members}


# §1, §3: claim


def test_a_claim_answers_with_jobs_by_seq_and_all_their_members(
    timed: httpx.Client, clock: ManualClock, topic: str
) -> None:
    """[CLM-5, CLM-6, CLM-7, LSE-1, LSE-4, QUE-1]"""
    put(timed, topic, type="queue", lease_ms=20_000)
    records = [
        {"data": {"loaf": "rye"}, "node": "shop"},
        {"data": [1.50, None], "tag": "lot:9", "meta": {"rush": "1"}},
        {"data": "third"},
    ]
    ok(timed.post(f"/v0/topics/{topic}", json={"records": records}))
    answer = timed.post(f"/v0/topics/{topic}/claim", json={"node": "oven-2", "max": 2, "lease_ms": 45_000})
    assert compact(answer)
    told = ok(answer)
    now = clock.now_ms()
    ids = [job.pop("lease_id") for job in told["claimed"]]
    assert told == {
        "topic": topic,
        "claimed": [
            {"$seq": 1, "deadline": now + 45_000, "$ts": now, "deliveries": 1, "data": {"loaf": "rye"}},
            {
                "$seq": 2, "deadline": now + 45_000, "$ts": now, "$tag": "lot:9", "deliveries": 1, "data": [1.5, None],
                "meta": {"rush": "1"},
            },
        ],
        "count": 2,
        "ready": 1,
    }  # fmt: skip
    assert all(id.startswith("lease_") and int(id[6:], 16) for id in ids)
    assert ids[0] != ids[1]
    (third,) = claim(timed, topic, 5)["claimed"]
    assert third["deadline"] == now + 20_000
    assert claim(timed, topic, 5) == {"topic": topic, "claimed": [], "count": 0, "ready": 0}


def test_a_claim_takes_one_job_unless_it_asks_for_more_and_never_too_many(client: httpx.Client, topic: str) -> None:
    """04 §3: absent and 0 mean 1; above `TOPICS_MAX_CLAIM` means that many."""
    queue(client, topic, 1003)
    path = f"/v0/topics/{topic}/claim"
    assert seqs(ok(client.post(path, json={"node": "w"}))) == [1]
    assert claimed(client, topic, 0) == [2]
    assert claimed(client, topic, 2**32 - 1) == list(range(3, 1003))


def test_lease_times_are_clamped(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[LSE-6]; null means the topic's."""
    queue(timed, topic, 4, lease_ms=7000)
    now = clock.now_ms()
    for lease_ms, span in ((0, 100), (U64_MAX, 86_400_000), (None, 7000), (99_999, 99_999)):
        (job,) = claim(timed, topic, lease_ms=lease_ms)["claimed"]
        assert job["deadline"] == now + span


@pytest.mark.parametrize("headers", [{}, JSON, {"content-type": "text/plain"}])
def test_an_empty_claim_is_refused_before_its_type_is_looked_at(
    client: httpx.Client, topic: str, headers: dict[str, str]
) -> None:
    """[CLM-1, API-10] Also on a topic that does not exist."""
    invalid(client.post(f"/v0/topics/{topic}/claim", content=b"", headers=headers))


def test_a_claim_is_checked_in_order(client: httpx.Client, topic: str) -> None:
    """[CLM-1] type, JSON and `node` given → topic → queue → `node` fit; claims create nothing [QUE-3]."""
    path = f"/v0/topics/{topic}/claim"
    refused(client.post(path, content=b"{", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    for bad in ("{", "[]", "{}", '{"node":1}', '{"node":null}', '{"node":"w"}x'):
        invalid(expect.raw(client, path, bad))
    for member in ('"max":-1', '"max":4294967296', '"max":null', '"lease_ms":-1', '"lease_ms":1.5', '"lease_ms":2e19'):
        invalid(expect.raw(client, path, f'{{"node":"w",{member}}}'))
    refused(client.post(path, json={"node": ""}), 404, "topic_not_found", {"topic": topic})
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    put(client, topic)
    refused(client.post(path, json={"node": ""}), 409, "not_a_queue", {"topic": topic})
    queue(client, topic + "-q", 1)
    for node in ("", "x" * 129, "é" * 65):
        invalid(client.post(f"/v0/topics/{topic}-q/claim", json={"node": node}))
    assert claimed(client, topic + "-q", node="x" * 128) == [1]


@pytest.mark.parametrize("verb", ["claim", "ack", "nack", "extend"])
def test_names_of_the_server_are_not_queues(client: httpx.Client, verb: str) -> None:
    """[A-14]"""
    detail = {"topic": "$deletes"}
    refused(client.post(f"/v0/topics/$deletes/{verb}", json=body_of(verb)), 403, "forbidden", detail)
    refused(client.get("/v0/topics/$deletes/work?node=w"), 403, "forbidden", detail)


def test_what_came_back_is_handed_out_first(timed: httpx.Client, timed_server: Running, clock: ManualClock) -> None:
    """[CLM-2, LSE-2, NAK-2] Lowest seq first, then what was never delivered; each delivery has its own id."""
    name = f"order-{clock.now_ms()}"
    queue(timed, name, 6)
    first = claim(timed, name, 3, lease_ms=1000)
    call(timed, "nack", name, [3])
    pass_time(timed_server, clock, 1001, sweep=False)
    again = claim(timed, name, 4)
    assert seqs(again) == [1, 2, 3, 4]
    assert [job["deliveries"] for job in again["claimed"]] == [2, 2, 2, 1]
    ids = [job["lease_id"] for job in first["claimed"] + again["claimed"]]
    assert len(set(ids)) == 7


def test_a_worker_may_claim_what_its_own_node_wrote(client: httpx.Client, topic: str) -> None:
    """[QUE-5]"""
    queue(client, topic)
    write(client, topic, 1, node="w")
    assert claimed(client, topic, node="w") == [1]


def test_reading_a_queue_changes_no_lease(client: httpx.Client, topic: str) -> None:
    """[QUE-6]"""
    queue(client, topic, 3)
    assert claimed(client, topic) == [1]
    assert expect.seqs(diff(client, topic)) == [1, 2, 3]
    assert counts(client, topic) == (2, 1, 0)
    assert claimed(client, topic, 9) == [2, 3]


def test_a_job_that_a_router_brings_can_be_claimed_at_once(client: httpx.Client, topic: str) -> None:
    """[CLM-2, FWD-9] Whoever wrote to the source finds its copy in the queue."""
    put(client, f"{topic}-src")
    queue(client, topic)
    body = {"source": f"{topic}-src", "dest": topic}
    ok(client.put(f"/v0/routers/{topic}", json=body), 201)
    for n in range(1, 20):
        write(client, f"{topic}-src", n)
        assert [job["data"] for job in claim(client, topic, 9)["claimed"]] == [n]


# §3.1: windows


def at_once(client: httpx.Client, name: str, *asks: tuple[str, int]) -> list[Background]:
    """Claims that wait for a window together, in this order."""
    waits = []
    for node, most in asks:
        body = {"node": node, "max": most}
        waits.append(Background(client, lambda one, body=body: one.post(f"/v0/topics/{name}/claim", json=body)))
    return waits


def cohort(server: Running, name: str, size: int) -> None:
    """Wait until so many claims of a queue wait for its window."""
    engine = server.server.app.engine
    assert engine is not None
    core = engine.core

    def gathered() -> bool:
        claims = core.names[name].claims
        return claims is not None and claims.cohort is not None and len(claims.cohort) == size

    expect.until(server, gathered)


@pytest.mark.parametrize(
    ("jobs", "wants", "shares"),
    [(50, [10] * 10, [5] * 10), (18, [9, 9, 9], [6, 6, 6]), (9, [2, 100], [2, 7]), (0, [5, 5], [0, 0])],
)
def test_a_window_splits_evenly(
    timed: httpx.Client,
    timed_server: Running,
    clock: ManualClock,
    topic: str,
    jobs: int,
    wants: list[int],
    shares: list[int],
) -> None:
    """[COH-2, COH-3] One at a time, up to each one's `max`; all jobs are dealt, none twice."""
    queue(timed, topic, jobs, claim_jitter_ms=500)
    waits = []
    for number, most in enumerate(wants):
        waits += at_once(timed, topic, (f"w{number}", most))
        cohort(timed_server, topic, number + 1)
    pass_time(timed_server, clock, 499, sweep=False)
    cohort(timed_server, topic, len(wants))
    pass_time(timed_server, clock, 1, sweep=False)
    answers = [ok(one.answer()) for one in waits]
    assert [one["count"] for one in answers] == shares
    assert sorted(seq for one in answers for seq in seqs(one)) == list(range(1, jobs + 1))
    assert all(one["ready"] == 0 for one in answers)
    assert {job["deadline"] for one in answers for job in one["claimed"]} <= {clock.now_ms() + 30_000}


def test_a_topic_that_goes_during_the_window_is_told(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[COH-5] 404; 409 where it came back as a log."""
    for back in (False, True):
        queue(timed, topic, 1, claim_jitter_ms=500)
        waits = at_once(timed, topic, ("a", 1), ("b", 1))
        cohort(timed_server, topic, 2)
        ok(timed.delete(f"/v0/topics/{topic}"))
        if back:
            put(timed, topic)
        pass_time(timed_server, clock, 500, sweep=False)
        for one in waits:
            status, code = (409, "not_a_queue") if back else (404, "topic_not_found")
            refused(one.answer(), status, code, {"topic": topic})


@pytest.mark.parametrize("how", ["fin", "reset"])
def test_a_claim_whose_client_left_during_the_window_gets_no_jobs(
    timed_server: Running, clock: ManualClock, how: str
) -> None:
    """[COH-5, API-23] End of input is enough: the connection is closed at once, and the others share."""
    name = f"left-{how}"
    with timed_server.client() as client:
        queue(client, name, 4, claim_jitter_ms=500)
        body = b'{"node":"gone","max":9}'
        head = f"POST /v0/topics/{name}/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        gone = RawClient(timed_server).send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        cohort(timed_server, name, 1)
        (stays,) = at_once(client, name, ("stays", 9))
        cohort(timed_server, name, 2)
        if how == "fin":
            gone.finish()
            assert gone.sock.recv(100) == b""
        else:
            gone.reset()
        engine = timed_server.server.app.engine
        assert engine is not None
        claims = engine.core.names[name].claims
        assert claims is not None
        expect.until(timed_server, lambda: [one.cancelled for one in claims.cohort or []] == [True, False])
        pass_time(timed_server, clock, 500, sweep=False)
        assert seqs(ok(stays.answer())) == [1, 2, 3, 4]
        assert {row["node"] for row in ok(client.get(f"/v0/topics/{name}/leases"))["leases"]} == {"stays"}
        gone.sock.close()


def test_a_claim_without_a_window_is_answered_after_the_end_of_input(server: Running) -> None:
    """[API-23, COH-1] It does not wait for anything."""
    with server.client() as client:
        queue(client, "half-claim", 1)
    body = b'{"node":"w"}'
    head = b"POST /v0/topics/half-claim/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((server.host, server.port), timeout=WAIT_S) as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"count":1' in answer


def test_claims_that_wait_are_served_when_the_server_stops() -> None:
    """[API-5] On one connection of HTTP/1.1 and on two streams of one of HTTP/2."""
    with running(clock=ManualClock()) as server, server.client() as client:
        queue(client, "t", 9, claim_jitter_ms=5000)
        (over_http1,) = at_once(client, "t", ("a", 5))
        cohort(server, "t", 1)
        with Talk(server, windows=False) as talk:
            for id in (1, 3):
                talk.request(id, b"POST", b"/v0/topics/t/claim", b'{"node":"b","max":5}')
            cohort(server, "t", 3)
            waiting(server, 1)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            counts_told = [ok(over_http1.answer())["count"]]
            for id in (1, 3):
                answer = talk.answer(id)
                assert answer.status == 200
                counts_told.append(json.loads(answer.body)["count"])
            talk.until_closed()
        stopping.join()  # behind the client's end: the server waits a second for it, and here no second passes
        assert counts_told == [3, 3, 3]


# §4: ack


@VERBS
def test_calls_on_leases_are_checked_in_order(client: httpx.Client, topic: str, verb: str) -> None:
    """[ACK-1] type and JSON → tokens → `node` → number of seqs → number of tokens → topic → queue."""
    path = f"/v0/topics/{topic}/{verb}"
    refused(client.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    refused(client.post(path, content=b""), 415, "unsupported_media_type")
    invalid(client.post(path, content=b"", headers=JSON))
    for wrong in ({"node": None}, {"node": 1}, {"seqs": None}, {"seqs": 1}, {"seqs": [-1]}, {"seqs": [2**64]},
                  {"seqs": ["1"]}, {"lease_ids": "lease_1"}, {"lease_ids": [1]}, {"lease_ids": None},
                  {"lease_ids": [None]}):  # fmt: skip
        invalid(client.post(path, json=body_of(verb, **wrong)))
    for missing in ("node", "seqs"):
        body = body_of(verb)
        del body[missing]
        invalid(client.post(path, json=body))
    many = list(range(1001))
    for token in ("lease_", "lease_G", "Lease_1", "1f", " ", "lease_1 ", "lease_1 lease_2"):
        assert "lease_ids" in invalid(client.post(path, json=body_of(verb, seqs=many, node="", lease_ids=[token])))
    assert "node" in invalid(client.post(path, json=body_of(verb, seqs=many, node="")))
    too_many = {"seqs": 1001, "max": 1000}
    refused(client.post(path, json=body_of(verb, seqs=many, lease_ids=[""])), 400, "batch_too_large", too_many)
    assert "2 lease_ids for 1" in invalid(client.post(path, json=body_of(verb, lease_ids=["", ""])))
    refused(client.post(path, json=body_of(verb)), 404, "topic_not_found", {"topic": topic})
    put(client, topic)
    refused(client.post(path, json=body_of(verb)), 409, "not_a_queue", {"topic": topic})


def test_delays_and_lease_times_of_calls_are_checked(client: httpx.Client, topic: str) -> None:
    """04 §5, §6: `delay_ms` is a u64, `lease_ms` of an extend is required."""
    queue(client, topic)
    for wrong in (-1, 2**64, 1.5, "1", None):
        invalid(client.post(f"/v0/topics/{topic}/nack", json=body_of("nack", delay_ms=wrong)))
        invalid(client.post(f"/v0/topics/{topic}/extend", json=body_of("extend", lease_ms=wrong)))
    invalid(client.post(f"/v0/topics/{topic}/extend", json={"node": "w", "seqs": []}))


def test_an_acked_job_is_gone_for_good(client: httpx.Client, topic: str) -> None:
    """[ACK-2, ACK-4, ACK-6, LSE-8] Without a tombstone; the answer counts what is left."""
    queue(client, topic, 4)
    one, two, _ = claim(client, topic, 3)["claimed"]
    told = call(client, "ack", topic, [1, 2], [one["lease_id"], two["lease_id"]])
    assert told == {"topic": topic, "acked": 2, "skipped": [], "ready": 1, "in_flight": 1}
    page = diff(client, topic)
    assert (expect.seqs(page), page["tombstone"]) == ([3, 4], None)
    assert call(client, "ack", topic, [1, 2])["skipped"] == [1, 2]
    assert call(client, "ack", topic, []) == {"topic": topic, "acked": 0, "skipped": [], "ready": 1, "in_flight": 1}


def test_whatever_is_not_held_is_skipped_in_the_order_of_the_call(client: httpx.Client, topic: str) -> None:
    """[ACK-3, LSE-7, LSE-8] Never claimed, acked, held by another, fenced off, repeated, beyond the head."""
    queue(client, topic, 6)
    mine = claim(client, topic, 3)["claimed"]
    assert claimed(client, topic, node="other") == [4]
    call(client, "ack", topic, [1])
    ids = ["", "", mine[1]["lease_id"], "lease_1", "", "", "", ""]
    told = call(client, "ack", topic, [5, 4, 2, 3, 2, 1, 99, U64_MAX], ids)
    assert (told["acked"], told["skipped"]) == (1, [5, 4, 3, 2, 1, 99, U64_MAX])
    assert (told["ready"], told["in_flight"]) == (2, 2)


def test_a_call_after_the_deadline_is_skipped_though_nobody_claimed_again(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[LSE-2, LSE-3] At the deadline a lease is active; behind it, it is not."""
    queue(timed, topic, 2)
    for verb, more in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
        jobs = claimed(timed, topic, 2, lease_ms=1000)
        pass_time(timed_server, clock, 1001, sweep=False)
        assert call(timed, verb, topic, jobs, **more)["skipped"] == [1, 2]
        assert counts(timed, topic) == (2, 0, 0)
    jobs = claimed(timed, topic, 2, lease_ms=1000)
    pass_time(timed_server, clock, 1000, sweep=False)
    assert call(timed, "ack", topic, jobs)["acked"] == 2


def test_a_worker_paused_beyond_its_lease_cannot_ack_with_its_old_token(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """T12, [LSE-8] Another process of the same node works on the job by then; twenty times."""
    queue(timed, topic, 1)
    for _ in range(20):
        (stale,) = claim(timed, topic, lease_ms=5000)["claimed"]
        pass_time(timed_server, clock, 30_000, sweep=False)
        (fresh,) = claim(timed, topic, lease_ms=5000)["claimed"]
        for verb, more in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
            assert call(timed, verb, topic, [1], [stale["lease_id"]], **more)["skipped"] == [1]
        assert call(timed, "extend", topic, [1], [fresh["lease_id"]], lease_ms=5000)["extended"] == 1
        call(timed, "nack", topic, [1], [fresh["lease_id"]])
    (last,) = claim(timed, topic)["claimed"]
    assert last["deliveries"] == 41
    assert call(timed, "ack", topic, [1], [last["lease_id"]])["acked"] == 1


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_only_an_ack_that_waited_for_a_sync_says_how_long(client: httpx.Client, topic: str, durability: str) -> None:
    """[ACK-2, ACK-6, PRF-1]"""
    queue(client, topic, 2, durability=durability)
    claimed(client, topic)
    answer = client.post(f"/v0/topics/{topic}/ack", json=body_of("ack"))
    performance = answer.json()["performance"]
    assert ("fsync_ms" in performance) == (durability == "fsync")
    assert performance.get("fsync_ms", 1.0) > 0
    assert ok(answer)["acked"] == 1
    again = client.post(f"/v0/topics/{topic}/ack", json=body_of("ack"))
    assert again.json()["performance"].keys() == {"server_total_ms"}


def test_acked_jobs_stay_gone_over_a_restart(tmp_path: Any) -> None:
    """[QRC-2, QRC-7] And without durable leases every other job is ready, delivered for the first time."""
    with running(tmp_path) as server, server.client() as client:
        queue(client, "t", 5, durability="fsync")
        claimed(client, "t", 3)
        call(client, "ack", "t", [2])
    with running(tmp_path) as server, server.client() as client:
        assert counts(client, "t") == (4, 0, 0)
        again = claim(client, "t", 9)
        assert seqs(again) == [1, 3, 4, 5]
        assert {job["deliveries"] for job in again["claimed"]} == {1}


def test_durable_leases_survive_a_restart(tmp_path: Any) -> None:
    """[QRC-3] With node, id, deadline and deliveries; the next id is a new one [LSE-4]."""
    with running(tmp_path) as server, server.client() as client:
        queue(client, "t", 3, leases_durable=True)
        claimed(client, "t", 2)
        call(client, "nack", "t", [2])
        before = ok(client.get("/v0/topics/t/leases"))
    with running(tmp_path) as server, server.client() as client:
        assert ok(client.get("/v0/topics/t/leases")) == before
        again = claim(client, "t", 9)
        assert [(job["$seq"], job["deliveries"]) for job in again["claimed"]] == [(2, 2), (3, 1)]
        assert before["leases"][0]["lease_id"] not in {job["lease_id"] for job in again["claimed"]}
        assert call(client, "ack", "t", [1], [before["leases"][0]["lease_id"]])["acked"] == 1


# §5, §6: nack, extend


def test_a_nacked_job_is_claimed_again_at_once(client: httpx.Client, topic: str) -> None:
    """[NAK-1, NAK-2, NAK-3]"""
    queue(client, topic, 3)
    jobs = claim(client, topic, 2)["claimed"]
    told = call(client, "nack", topic, [2, 3], [jobs[1]["lease_id"], ""])
    assert told == {"topic": topic, "nacked": 1, "skipped": [3], "ready": 2, "in_flight": 1}
    (again,) = claim(client, topic)["claimed"]
    assert (again["$seq"], again["deliveries"]) == (2, 2)


def test_a_nack_may_delay(timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str) -> None:
    """[NAK-1, NAK-3] Counted neither as ready nor as in flight until the very millisecond; a day at most."""
    queue(timed, topic, 2)
    claimed(timed, topic, 2)
    told = call(timed, "nack", topic, [1], delay_ms=5000)
    assert (told["nacked"], told["ready"], told["in_flight"]) == (1, 0, 1)
    assert counts(timed, topic) == (0, 1, 1)
    call(timed, "nack", topic, [2], delay_ms=U64_MAX)
    now = clock.now_ms()
    waits = ok(timed.get(f"/v0/topics/{topic}/leases"))["delayed"]
    assert waits == [{"$seq": 1, "ready_at": now + 5000}, {"$seq": 2, "ready_at": now + 86_400_000}]
    pass_time(timed_server, clock, 4999, sweep=False)
    assert claimed(timed, topic, 9) == []
    pass_time(timed_server, clock, 1, sweep=False)
    assert counts(timed, topic) == (1, 0, 1)
    assert claimed(timed, topic, 9) == [1]


def test_extend_sets_deadlines_and_keeps_the_lease(
    timed: httpx.Client, timed_server: Running, clock: ManualClock, topic: str
) -> None:
    """[EXT-1, EXT-2] Set, not added; also earlier; clamped."""
    queue(timed, topic, 3)
    ids = [job["lease_id"] for job in claim(timed, topic, 2, lease_ms=10_000)["claimed"]]
    pass_time(timed_server, clock, 4000, sweep=False)
    now = clock.now_ms()
    told = call(timed, "extend", topic, [2, 3, 1], [ids[1], "", ids[0]], lease_ms=20_000)
    deadlines = {"1": now + 20_000, "2": now + 20_000}
    assert told == {"topic": topic, "extended": 2, "skipped": [3], "deadlines": deadlines}
    rows = ok(timed.get(f"/v0/topics/{topic}/leases"))["leases"]
    assert [(row["$seq"], row["lease_id"], row["deadline"], row["deliveries"]) for row in rows] == [
        (1, ids[0], now + 20_000, 1), (2, ids[1], now + 20_000, 1),
    ]  # fmt: skip
    for lease_ms, span in ((0, 100), (U64_MAX, 86_400_000)):
        assert call(timed, "extend", topic, [1], lease_ms=lease_ms)["deadlines"] == {"1": clock.now_ms() + span}


# §9: what can be seen


def test_leases_are_listed_by_seq_and_page_by_page(client: httpx.Client, topic: str) -> None:
    """[QOB-4, PAG-2]"""
    queue(client, topic, 7)
    claimed(client, topic, 6)
    call(client, "nack", topic, [2, 5], delay_ms=60_000)
    path = f"/v0/topics/{topic}/leases"
    whole = ok(client.get(path))
    assert whole.keys() == {"topic", "leases", "delayed"}
    assert [row["$seq"] for row in whole["leases"]] == [1, 3, 4, 6]
    assert whole["leases"][0].keys() == {"$seq", "node", "lease_id", "deadline", "deliveries"}
    found: dict[str, list[int]] = {"leases": [], "delayed": []}
    query, pages = {"page_size": "2"}, 0
    while True:
        page = ok(client.get(path, params=query))
        pages += 1
        for kind, rows in found.items():
            rows += [row["$seq"] for row in page[kind]]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert (pages, found) == (3, {"leases": [1, 3, 4, 6], "delayed": [2, 5]})


def test_leases_of_no_queue_are_refused(client: httpx.Client, topic: str) -> None:
    """[QOB-4, PAG-3]"""
    path = f"/v0/topics/{topic}/leases"
    refused(client.get(path), 404, "topic_not_found", {"topic": topic})
    put(client, topic)
    refused(client.get(path), 409, "not_a_queue", {"topic": topic})
    queue(client, topic + "-q")
    for cursor in ("!", "eyJhZnRlciI6ImEifQ", "x" * 600):
        invalid(client.get(f"{path[:-7]}-q/leases", params={"cursor": cursor}))
    assert ok(client.get(f"/v0/topics/{topic}-q/leases")) == {"topic": topic + "-q", "leases": [], "delayed": []}


def test_only_queues_tell_counters(client: httpx.Client, topic: str) -> None:
    """[QOB-1, TOP-6] In state and metrics."""
    put(client, topic)
    assert "queue" not in ok(client.get(f"/v0/topics/{topic}"))
    name = queue(client, topic + "-q", 5)
    claimed(client, name, 3)
    call(client, "nack", name, [3], delay_ms=60_000)
    assert ok(client.get(f"/v0/topics/{name}"))["queue"] == {
        "ready": 2, "in_flight": 2, "delayed": 1, "dead_lettered": 0,
    }  # fmt: skip
    told = scrape(client)
    for series in ("topics_topic_queue_ready", "topics_topic_queue_in_flight"):
        by_topic = told.samples[series]
        assert by_topic[name] == 2
        assert topic not in by_topic
    assert told["topics_queue_topics"] >= 1
    assert told["topics_queue_leases_in_flight"] >= 2


@pytest.mark.parametrize("how", ["delete", "cap"])
def test_a_job_removed_under_its_lease_is_still_reported_done(client: httpx.Client, topic: str, how: str) -> None:
    """[QOB-3] It leaves `in_flight`; ack, nack and extend succeed; nothing brings it back."""
    queue(client, topic, 3, cap_records=3)
    claimed(client, topic, 3)
    if how == "delete":
        expect.delete(client, topic, seqs=[1, 2, 3])
    else:
        produce(client, topic, 3)
    left = 0 if how == "delete" else 3
    assert counts(client, topic) == (left, 0, 0)
    assert call(client, "nack", topic, [1])["nacked"] == 1
    assert call(client, "extend", topic, [2], lease_ms=1000)["extended"] == 1
    told = call(client, "ack", topic, [3])
    assert (told["acked"], told["ready"], told["in_flight"]) == (1, left, 0)
    assert claimed(client, topic, 9) == ([4, 5, 6] if left else [])


# §10: dead letters


def test_a_job_that_failed_too_often_moves_to_the_dead_letters(client: httpx.Client, topic: str) -> None:
    """[DLQ-2, DLQ-3, DLQ-4, DLQ-5, QOB-2] The copy says where it came from; the claim goes on with the next job."""
    dead = topic + "-dead"
    queue(client, topic, max_deliveries=2, dead_letter=dead)
    records = [{"data": {"n": 1}, "tag": "lot:9", "node": "shop", "meta": {"rush": "1"}}, {"data": 2}]
    ok(client.post(f"/v0/topics/{topic}", json={"records": records}))
    for _ in range(2):
        assert claimed(client, topic) == [1]
        call(client, "nack", topic, [1])
    assert claimed(client, topic) == [2]
    state = ok(client.get(f"/v0/topics/{topic}"))
    assert (state["queue"]["dead_lettered"], state["count"]) == (1, 1)
    (copy,) = diff(client, dead, include_tags=True)["records"]
    copy.pop("$ts")
    meta = {
        "rush": "1", "$dead_letter_from": topic, "$dead_letter_deliveries": "2", "$dead_letter_src_seq": "1",
    }  # fmt: skip
    assert copy == {"$seq": 1, "$node": "shop", "$tag": "lot:9", "data": {"n": 1}, "meta": meta}


def test_a_move_that_fails_keeps_the_job_and_its_count(client: httpx.Client, topic: str) -> None:
    """[DLQ-7] A full topic that rejects: tried again by a later claim."""
    dead = topic + "-dead"
    put(client, dead, cap_records=1, discard="reject")
    write(client, dead, "full")
    queue(client, topic, 1, max_deliveries=1, dead_letter=dead)
    assert claimed(client, topic) == [1]
    call(client, "nack", topic, [1])
    assert claimed(client, topic) == []
    assert counts(client, topic) == (1, 0, 0)
    expect.delete(client, dead, seqs=[1])
    assert claimed(client, topic) == []
    assert counts(client, topic) == (0, 0, 0)
    assert diff(client, dead)["records"][0]["meta"]["$dead_letter_deliveries"] == "1"


# Config


def test_a_changed_configuration_applies_to_later_claims(timed: httpx.Client, clock: ManualClock, topic: str) -> None:
    """[QUE-7]"""
    queue(timed, topic, 2, lease_ms=1000)
    (before,) = claim(timed, topic)["claimed"]
    put(timed, topic, type="queue", lease_ms=9000)
    (after,) = claim(timed, topic)["claimed"]
    now = clock.now_ms()
    assert (before["deadline"], after["deadline"]) == (now + 1000, now + 9000)
    assert ok(timed.get(f"/v0/topics/{topic}/leases"))["leases"][0]["deadline"] == now + 1000


def test_a_tagged_delete_takes_jobs_out_of_a_queue(client: httpx.Client, topic: str) -> None:
    """[QUE-2, QOB-1]"""
    queue(client, topic)
    tagged(client, topic, "a", "b", "a")
    expect.delete(client, topic, match="a")
    assert claimed(client, topic, 9) == [2]


@pytest.fixture
def few() -> Iterator[Running]:
    with running(env={"TOPICS_MAX_CLAIM": "3", "TOPICS_MAX_NODE_BYTES": "4"}) as one:
        yield one


@VERSIONS
def test_settings_bound_claims_and_calls(few: Running, http2: bool) -> None:
    """04 §3, [ACK-1]: `TOPICS_MAX_CLAIM`, `TOPICS_MAX_NODE_BYTES`."""
    with few.client(http2=http2) as client:
        queue(client, "t", 5)
        assert claimed(client, "t", 100, node="four") == [1, 2, 3]
        invalid(client.post("/v0/topics/t/claim", json={"node": "fives"}))
        answer = client.post("/v0/topics/t/ack", json={"node": "four", "seqs": [1, 2, 3, 4]})
        refused(answer, 400, "batch_too_large", {"seqs": 4, "max": 3})
