"""What a client says and understands, without a socket: HTTP, errors, retries (02 §1) [U-20, U-21]."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topics
from topics import errors
from topics.client import failure, retry
from topics.client.http1 import ANSWER_S, Address, Answer, NotHttp, Reading, Request
from topics.client.protocol import LONG_S, Call, Heard, Pause, Protocol
from topics.client.retry import LEAST_S, Fault, Outage
from topics.server import failure as server_failure

SAMPLES: dict[str, Any] = {
    "count": 7, "max": 5, "size": 9, "topic": "kiln-7", "router": "r", "pin": "p", "epoch": 1, "index": 2, "version": 3,
    "missing": ["a"], "part": "p", "expected": 4, "message": "why", "existing_type": "log", "requested_type": "queue",
    "cycle": ["a", "b", "a"], "source": "s", "existing_source": "s", "existing_dest": "d", "cap_records": 1,
    "cap_bytes": 2, "head_seq": 3, "earliest_seq": 4, "limit": "max_topics", "retry_after_ms": 250,
}  # fmt: skip
OTHERWISE = {errors.PinNotFound: errors.ServerError, errors.WalClosed: errors.EngineClosed}
"""Calls that a client has no method for, and twins."""


def raised() -> list[errors.TopicsError]:
    """One of every exception that the server has a word for."""
    found = []
    for kind in [*server_failure._FIELDS, *server_failure._OTHERS, errors.CallerError]:
        names = [name for name in inspect.signature(kind.__init__).parameters if name in SAMPLES]
        found.append(kind(**{name: SAMPLES[name] for name in names}) if names else kind("why"))
    return found


@pytest.mark.parametrize("error", raised(), ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_what_it_was(error: errors.TopicsError) -> None:
    """[U-20] Type, code, words and fields, through the server's table and back through the client's."""
    told = server_failure.of(error)
    back = failure.told(Answer(told.status, {}, told.body()))
    kind = OTHERWISE.get(type(error), type(error))
    assert type(back) is kind
    if kind is type(error):
        assert back.code == error.code
        if type(error) not in (errors.LimitReached, errors.EngineClosed):  # the server has words of its own
            assert str(back) == str(error)
        unsaid = {"source"} | (
            set(vars(error)) if type(error) in (errors.BatchTooLarge, errors.RecordTooLarge) else set()
        )
        fields = {name: value for name, value in vars(error).items() if name not in unsaid}
        assert {name: getattr(back, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ({"state": "full"}, {"state": "full"}),
        ({"state": "replaying", "replay_progress": 0.5}, {"state": "replaying", "replay_progress": 0.5}),
        ({"code": "mine"}, {}),
        (None, {}),
    ],
)
def test_a_server_that_is_not_ready_says_in_which_state_it_is(detail: object, told: dict[str, object]) -> None:
    """[A-5, U-13]"""
    assert vars(failure.of("not_ready", "why", detail)) == told


def test_a_commit_that_failed_at_the_server_is_told_as_here() -> None:
    """[U-20, U-13] (06 §21)"""
    error = failure.of("internal", "why", {"state": "commit_failed"}, 500)
    assert (type(error), str(error), error.code) == (errors.CommitFailed, "why", "internal")
    assert vars(error) == {"state": "commit_failed"}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, b'{"error":{"code":"internal","message":"a bug"}}', errors.ServerError),
        (500, b'{"error":{"code":"internal","message":"x","detail":{"state":"commit_failed"}}}', errors.CommitFailed),
        (405, b'{"error":{"code":"method_not_allowed","message":"no"}}', errors.ServerError),
        (401, b'{"error":{"code":"unauthorized","message":"key"}}', errors.Unauthorized),
        (413, b'{"error":{"code":"payload_too_large","message":"big"}}', errors.PayloadTooLarge),
        (503, b'{"error":{"code":"not_ready","message":"x","detail":{"state":"replaying"}}}', errors.TimingError),
        (502, b"<html>bad gateway</html>", errors.Unreachable),
        (400, b'{"error":"odd"}', errors.Unreachable),
    ],
)
def test_whatever_is_answered_is_one_of_our_errors(status: int, body: bytes, kind: type) -> None:
    error = failure.told(Answer(status, {}, body))
    assert type(error) is kind
    if isinstance(error, errors.ServerError):
        assert error.code == json.loads(body)["error"]["code"]
        assert error.status == status


# -- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "base"),
    [
        ("http://127.0.0.1:4000", "127.0.0.1", 4000, ""),
        ("http://localhost", "localhost", 80, ""),
        ("https://log.example.org/", "log.example.org", 443, ""),
        ("http://[::1]:4000/topics/", "::1", 4000, "/topics"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: str, port: int, base: str) -> None:
    address = Address.parse(url)
    assert (address.host, address.port, address.base) == (host, port, base)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:4000", "ftp://x", "http://", "http://a b", "http://x:port", "http://x:99999", "http://u:p@x",
     "http://x?y=1", "http://x#y", "http://x\r\nHost: y", "http://ü"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.CallerError):
        Address.parse(url)


def test_a_key_never_shows_in_an_error() -> None:
    """[U-14]"""
    for key in (
        "se cret\n",
        "se\r\nhost: y",
        "se\0cret",
        "se\x7fcret",
        "se\ud800cret",
        "se\udc0acret",
        " secret",
        "secret\xa0",
    ):
        with pytest.raises(errors.CallerError) as caught:
            Protocol("http://x", key)
        assert key.strip() not in str(caught.value)


def test_a_key_goes_out_as_utf_8_and_stays_one_line() -> None:
    """[KEY-1] Nothing outside of ASCII becomes a byte that ends a line."""
    for key in ("clé", "鍵", "🔑", "a\u2028b", "a\x85b", "ĊčĀ"):
        protocol = Protocol("http://x", key)
        head = protocol.address.head(Request("GET", "/"), protocol.token)
        assert head.split(b"\r\n")[2:] == [b"authorization: Bearer " + key.encode(), b"", b""]


def test_a_request_is_bytes() -> None:
    head = Address.parse("http://[::1]:4000/b").head(Request("POST", "/v0/topics/a", b"{}"), "k")
    assert head == (
        b"POST /b/v0/topics/a HTTP/1.1\r\nhost: [::1]:4000\r\nauthorization: Bearer k\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize("path", ["", "v0", "/v0/a b", "/v0\r\nx: y", "/v0/ü", "/v0\x00"])
def test_a_path_that_would_end_its_line_early_is_refused(path: str) -> None:
    with pytest.raises(errors.CallerError):
        Address.parse("http://x").head(Request("GET", path), None)


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "in between": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_answer_may_come_in_any_pieces(name: str, size: int) -> None:
    reading = Reading()
    data = ANSWERS[name]
    for at in range(0, len(data), size):
        assert not reading.is_complete
        reading.feed(data[at : at + size])
    assert reading.is_complete
    assert reading.keeps_alive
    answer = reading.answer()
    assert answer.status == (204 if name == "empty" else 200)
    assert answer.body == (b"" if name == "empty" else b"hello")


@pytest.mark.parametrize("name", ["length", "chunked"])
def test_a_half_answer_is_none(name: str) -> None:
    whole = ANSWERS[name]
    for end in range(len(whole)):
        reading = Reading()
        reading.feed(whole[:end]) if end else None
        with pytest.raises(NotHttp):
            reading.ended()


def test_a_body_may_end_with_the_connection_if_nothing_else_says_where() -> None:
    reading = Reading()
    reading.feed(b"HTTP/1.0 200 OK\r\n\r\nhel")
    reading.feed(b"lo")
    reading.ended()
    assert reading.answer().body == b"hello"
    assert not reading.keeps_alive


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    reading = Reading()
    try:
        reading.feed(data)
        reading.ended()
    except NotHttp:
        return
    assert 100 <= reading.status <= 999


def test_a_head_without_end_is_refused() -> None:
    reading = Reading()
    with pytest.raises(NotHttp):
        for _ in range(2000):
            reading.feed(b"HTTP/1.1 200 OK\r\n" if not reading.status and _ == 0 else b"a: " + b"x" * 100 + b"\r\n")


# -- retries ---------------------------------------------------------------------------------------------------------


def answer(status: int, code: str, detail: Mapping[str, object] | None = None, after: str | None = None) -> Answer:
    body = json.dumps({"error": {"code": code, "message": "m", "detail": detail}}).encode()
    return Answer(status, {} if after is None else {"retry-after": after}, body)


GET = Request("GET", "/v0/topics")
CLAIM = Request("POST", "/v0/topics/q/claim", b"{}", repeatable=False)


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        (answer(429, "throttled", {"retry_after_ms": 200}, "3"), 3.0),
        (answer(429, "throttled", {"limit": "max_inflight_per_key", "max": 5}, "1"), 1.0),
        (answer(503, "not_ready", {"state": "replaying", "replay_progress": 0.5}, "1"), 1.0),
        (answer(503, "not_ready", {"state": "cold"}, "1"), 1.0),
        (answer(503, "shutting_down", None, "1"), 1.0),
        (Answer(503, {"retry-after": "2"}, b"<html>"), 2.0),
        (Answer(503, {"retry-after": "tomorrow"}, b""), 0.0),
        (answer(429, "throttled", {"limit": "max_topics", "max": 5}, "1"), None),
        (answer(503, "not_ready", {"state": "read_only"}, "30"), None),
        (answer(503, "not_ready", {"state": "full"}, "5"), None),
        (answer(500, "internal"), None),
        (answer(404, "topic_not_found", {"topic": "x"}), None),
    ],
)
def test_a_refusal_is_retried_where_waiting_helps_and_not_sooner_than_it_says(
    outcome: Answer, seconds: float | None
) -> None:
    """[U-21]"""
    assert retry.asked_to_wait(outcome) == seconds
    for request in (GET, CLAIM):
        wait_s = Outage(met=True).wait_s(request, outcome, 0.0)
        assert (wait_s is None) == (seconds is None)
        assert wait_s is None or wait_s >= (seconds or 0.0)


def test_what_may_have_been_done_is_repeated_only_if_that_does_no_harm() -> None:
    """[U-21]"""
    assert Outage(met=True).wait_s(GET, Fault("reset", sent=True), 0.0) is not None
    assert Outage(met=True).wait_s(CLAIM, Fault("reset", sent=True), 0.0) is None
    assert Outage(met=True).wait_s(CLAIM, Fault("refused", sent=False), 0.0) is not None


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    """[U-21]"""
    assert Outage(met=False).wait_s(GET, Fault("refused", sent=False), 0.0) is None


def test_an_outage_is_waited_out_for_a_minute_with_growing_pauses() -> None:
    """[U-21]"""
    outage, now_s, pauses = Outage(met=True), 100.0, []
    while (pause_s := outage.wait_s(GET, Fault("refused", sent=False), now_s)) is not None:
        pauses.append(pause_s)
        now_s += pause_s
    assert 57 < now_s - 100 <= 60
    assert pauses[0] <= 0.05
    assert max(pauses) <= 2.0
    outage.over()
    assert outage.wait_s(GET, Fault("refused", sent=False), now_s) is not None


def test_a_kept_connection_that_was_closed_is_replaced_at_once_and_once() -> None:
    outage = Outage(met=False)
    assert outage.wait_s(GET, Fault("reset", sent=True, stale=True), 0.0) == 0.0
    assert outage.wait_s(GET, Fault("reset", sent=True, stale=True), 0.0) is None


def test_a_server_that_is_silent_holds_a_call_for_one_answer_and_the_time_for_retries() -> None:
    """[U-21] The first try may take as long as an answer may; what follows has to fit into `retry_s`."""
    protocol = Protocol("http://x", retry_s=3.0)
    protocol.met = True
    call = protocol.state("a")
    request, now_s, tries = next(call), 0.0, 0
    with pytest.raises(errors.Unreachable):
        while True:
            assert isinstance(request, Request)
            tries += 1
            now_s += request.answer_s
            pause = call.send(Heard(Fault("no answer in time", sent=True), now_s))
            assert isinstance(pause, Pause)
            now_s += pause.seconds
            request = call.send(None)
    assert tries > 1
    assert ANSWER_S + 2.9 < now_s <= ANSWER_S + 3.0 + LEAST_S


def test_what_a_server_may_take_longer_for_by_itself_is_waited_for_again_too() -> None:
    """[U-21] A commit of many segments, or a long poll, that meets a restart is not cut off by what is left of it."""
    protocol = Protocol("http://x", retry_s=60.0)
    protocol.met = True
    for own_s in (LONG_S, ANSWER_S + 30):
        call = protocol.call("POST", "/v0/txn/commit", {}, repeatable=True, answer_s=own_s)
        first = next(call)
        assert isinstance(first, Request)
        assert first.answer_s == own_s
        assert isinstance(call.send(Heard(Fault("reset", sent=True), 0.0)), Pause)
        assert isinstance(call.send(None), Request)
        assert isinstance(call.send(Heard(Fault("refused", sent=False), 50.0)), Pause)
        again = call.send(None)
        assert isinstance(again, Request)
        assert again.answer_s >= own_s - ANSWER_S + 5


def sent_at(call: Call[Any], outcome: Callable[[float], Answer | Fault], took_s: float = 0.0) -> list[float]:
    """When requests go out, from 0 s on, whose outcome depends on when that was; until the call gives up."""
    step, now_s, times = next(call), 0.0, []
    with pytest.raises(errors.Unreachable):
        while True:
            assert isinstance(step, Request)
            times.append(now_s)
            ended_s = now_s + took_s
            heard = Heard(outcome(now_s), ended_s, took_s) if took_s else Heard(outcome(now_s), ended_s)
            pause = call.send(heard)
            assert isinstance(pause, Pause)
            now_s = ended_s + pause.seconds
            step = call.send(None)
    return times


LOST, REFUSED = Fault("reset", sent=True), Fault("refused", sent=False)


def patient() -> Protocol:
    protocol = Protocol("http://x", retry_s=600.0)
    protocol.met = True
    return protocol


@pytest.mark.parametrize("key", [None, "mine"])
def test_an_append_is_not_sent_again_when_its_key_may_be_forgotten(key: str | None) -> None:
    """[U-21, IDM-1] It would be there twice: a server knows a key for 120 s from when it was used."""
    times = sent_at(patient().append("a", [topics.new(1)], idempotency_key=key), lambda now_s: LOST)
    assert 95 < times[-1] <= 100
    gone = Answer(502, {}, b"<html>")
    times = sent_at(patient().append("a", [topics.new(1)], idempotency_key=key), lambda now_s: gone)
    assert 95 < times[-1] <= 100


def test_how_long_a_key_is_known_counts_from_when_it_may_first_have_been_used() -> None:
    """[U-21, IDM-1] From the beginning of the first attempt that was sent, not from the end of it."""
    times = sent_at(patient().append("a", [topics.new(1)]), lambda now_s: LOST, took_s=29.0)
    assert 85 < times[-1] <= 100
    times = sent_at(patient().append("a", [topics.new(1)]), lambda now_s: REFUSED if now_s < 200 else LOST)
    first = next(at for at in times if at >= 200)
    assert first + 95 < times[-1] <= first + 100


def test_what_was_never_sent_is_tried_for_as_long_as_was_asked_for() -> None:
    """[U-21]"""
    assert 595 < sent_at(patient().append("a", [topics.new(1)]), lambda now_s: REFUSED)[-1] <= 600


def test_what_does_no_harm_at_any_time_is_tried_for_as_long_as_was_asked_for() -> None:
    """[U-21] Reads, and the numbers of a producer, which a server does not forget."""
    producer = {"id": "p", "epoch": 1, "base_seq": 0}
    calls: list[Call[Any]] = [
        patient().state("a"),
        patient().page("a"),
        patient().append("a", [topics.new(1)], producer=producer),
    ]
    for call in calls:
        assert 595 < sent_at(call, lambda now_s: LOST)[-1] <= 600


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_whose_server_is_away_is_waited_for_where_that_does_no_harm(status: int) -> None:
    """[U-21] Nobody knows whether the server behind it has done what it was asked for."""
    outcome = Answer(status, {"retry-after": "3"}, b"<html>")
    wait_s = Outage(met=True).wait_s(GET, outcome, 0.0)
    assert wait_s is not None
    assert wait_s >= 3.0
    assert Outage(met=True).wait_s(CLAIM, outcome, 0.0) is None
    assert Outage(met=False).wait_s(GET, outcome, 0.0) is None


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_is_not_the_server_that_was_met(status: int) -> None:
    """[U-21] An address that may be wrong is told at once."""
    protocol, gone = Protocol("http://x"), Answer(status, {}, b"<html>")
    for _ in range(2):
        call = protocol.topics("a", None)
        next(call)
        with pytest.raises(errors.Unreachable):
            call.send(Heard(gone, 0.0))
    call = protocol.topics("a", None)
    next(call)
    with pytest.raises(StopIteration):
        call.send(Heard(Answer(200, {}, b'{"topics":[]}'), 0.0))
    call = protocol.topics("a", None)
    next(call)
    assert isinstance(call.send(Heard(gone, 0.0)), Pause)
    assert isinstance(call.send(None), Request)


# -- calls -----------------------------------------------------------------------------------------------------------

WRITTEN = b'{"topic":"a","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":true,"deduped":false}'


def test_an_append_is_sent_again_with_the_same_key() -> None:
    """[U-21] An answer that was lost costs nothing."""
    protocol = Protocol("http://x")
    protocol.met = True
    call = protocol.append("a", [topics.new(1)])
    first = next(call)
    assert isinstance(first, Request)
    assert isinstance(call.send(Heard(Fault("reset", sent=True), 0.0)), Pause)
    again = call.send(None)
    assert isinstance(again, Request)
    assert again._replace(answer_s=first.answer_s) == first
    key = json.loads(first.body or b"")["idempotency_key"]
    with pytest.raises(StopIteration) as done:
        call.send(Heard(Answer(201, {}, WRITTEN), 1.0))
    assert done.value.value.last_seq == 1
    other = next(protocol.append("a", [topics.new(1)]))
    assert isinstance(other, Request)
    assert json.loads(other.body or b"")["idempotency_key"] != key


def test_a_delete_by_tag_alone_is_not_repeated_blindly() -> None:
    """[U-21] It would take what was written meanwhile."""
    protocol = Protocol("http://x")
    for call, repeatable in (
        (protocol.delete("a", match="x*"), False),
        (protocol.delete("a", match="x*", before_seq=9), True),
        (protocol.delete("a", match="x*", dry_run=True), True),
        (protocol.delete("a", seqs=[1]), True),
        (protocol.claim("a", "w"), False),
        (protocol.ack("a", "w", [1]), True),
    ):
        request = next(call)  # type: ignore[call-overload]
        assert isinstance(request, Request)
        assert request.repeatable is repeatable


@pytest.mark.parametrize(
    "asked",
    [
        lambda protocol: protocol.drop("a"),
        lambda protocol: protocol.unroute("a->b"),
        lambda protocol: protocol.call("DELETE", "/v0/topics/a"),
    ],
    ids=["drop", "unroute", "call"],
)
def test_what_was_removed_is_not_removed_again_blindly(asked: Callable[[Protocol], Call[Any]]) -> None:
    """[U-21] It would take what others have made under the same name meanwhile."""
    protocol = Protocol("http://x")
    protocol.met = True
    call = asked(protocol)
    next(call)
    with pytest.raises(errors.Unreachable):
        call.send(Heard(LOST, 0.0))
    call = asked(protocol)
    first = next(call)
    assert isinstance(first, Request)
    assert isinstance(call.send(Heard(REFUSED, 0.0)), Pause)
    again = call.send(None)
    assert isinstance(again, Request)
    assert again._replace(answer_s=first.answer_s) == first


def test_an_answer_that_is_not_ours_is_told_as_such() -> None:
    for body in (b"<html>", b"[]", b"{}"):
        call = Protocol("http://x").state("a")
        next(call)
        with pytest.raises(errors.Unreachable):
            call.send(Heard(Answer(200, {}, body), 0.0))
