"""Watching without a socket: frames, cursors, sessions that are forgotten (03) [U-21]."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import errors
from topics.client.events import EventParser, Watching, cursors_of, id_of
from topics.client.http1 import Answer, Request
from topics.client.protocol import Heard, Opening, Pause, Protocol
from topics.client.retry import Fault
from topics.model import CaughtUp, Event, TopicDeleted, TopicGap, TopicRecord

OPENED = Heard(Answer(200, {}, b""), 0.0)


def frame(event: str, after: Mapping[str, int] | None, **data: Any) -> bytes:
    id = "" if after is None else f"id: {id_of(after)}\n"
    return f"{id}event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def records(topic: str, seqs: list[int], after: Mapping[str, int]) -> bytes:
    told = [{"$seq": seq, "$ts": 5, "data": seq} for seq in seqs]
    return frame("record", after, topic=topic, from_seq=0, to_seq=after[topic], head_seq=99, records=told)


def session(wid: str = "wid_1", **starts: int) -> Heard:
    body = {"wid": wid, "topics": {name: {"from_seq": seq} for name, seq in starts.items()}}
    return Heard(Answer(200, {}, json.dumps(body).encode()), 0.0)


def finish(call: Any, heard: Heard) -> None:
    with pytest.raises(StopIteration):
        call.send(heard)


def watching(**starts: Any) -> Watching:
    """One that has a session and an open stream."""
    protocol = Protocol("http://x")
    protocol.met = True
    one = Watching(protocol, starts)
    call = one.begin()
    request = next(call)
    assert isinstance(request, Request)
    asked = json.loads(request.body or b"")["topics"]
    assert asked == {name: {"tail": True} if at == "tail" else {"from_seq": at} for name, at in starts.items()}
    finish(call, session(**{name: 40 if at == "tail" else at for name, at in starts.items()}))
    call = one.connect()
    assert isinstance(next(call), Opening)
    finish(call, OPENED)
    return one


def taken(one: Watching) -> list[Event]:
    found = []
    while (event := one.next()) is not None:
        found.append(event)
    return found


def test_events_are_what_frames_say_and_cursors_follow_what_was_taken() -> None:
    """[RSM-2] The id of a frame counts once all of it is taken."""
    one = watching(a=0, b="tail")
    assert one.cursors == {"a": 0, "b": 40}
    one.take(b"retry: 100\n\n" + records("a", [1, 2], {"a": 3, "b": 41}) + b": hb\n\n")
    first = one.next()
    assert isinstance(first, TopicRecord)
    assert (first.topic, first.seq, first.data) == ("a", 1, 1)
    assert one.cursors == {"a": 1, "b": 40}
    assert one.next() is not None
    assert one.cursors == {"a": 3, "b": 41}
    lost = {"reason": "cap", "gap_from": 4, "gap_to": 9, "earliest_seq": 10, "head_seq": 12}
    one.take(frame("tombstone", {"a": 9, "b": 41}, topic="a", **lost))
    one.take(frame("caught-up", {"a": 9, "b": 41}, topic="b", head_seq=41))
    gap, reached = taken(one)
    assert isinstance(gap, TopicGap)
    assert (gap.topic, gap.gap_from, gap.gap_to, gap.missed_estimate, gap.earliest_seq) == ("a", 4, 9, 6, 10)
    assert reached == CaughtUp("b", 41)
    assert one.cursors == {"a": 9, "b": 41}


@given(st.lists(st.integers(1, 30), max_size=20))
def test_frames_may_come_in_any_pieces(sizes: list[int]) -> None:
    data = records("a", [1], {"a": 1}) + b": hb\n\n" + frame("caught-up", {"a": 1}, topic="a", head_seq=1)
    parser, found, at = EventParser(), [], 0
    for size in [*sizes, len(data)]:
        found += parser.feed(data[at : at + size])
        at += size
    assert [one.event for one in found] == ["record", "caught-up"]


def test_a_stream_that_breaks_goes_on_behind_the_last_whole_frame() -> None:
    """[RSM-3] What is sent twice all the same is taken once."""
    one = watching(a=0)
    whole, half = records("a", [1, 2], {"a": 2}), records("a", [3], {"a": 3})[:-5]
    one.take(whole + half)
    call = one.connect()
    opening = next(call)
    assert isinstance(opening, Opening)
    assert dict(opening.request.headers)["last-event-id"] == id_of({"a": 2})
    finish(call, OPENED)
    one.take(records("a", [1, 2, 3], {"a": 3}))
    assert [event.seq for event in taken(one) if isinstance(event, TopicRecord)] == [1, 2, 3]


def test_a_stream_that_breaks_before_its_first_frame_says_where_it_began() -> None:
    """[RSM-5] The server has taken the frame for delivered."""
    one = watching(a=5, b="tail")
    one.take(records("a", [6], {"a": 6, "b": 40})[:-5])
    opening = next(one.connect())
    assert isinstance(opening, Opening)
    assert cursors_of(dict(opening.request.headers)["last-event-id"]) == {"a": 5, "b": 40}


def test_a_session_that_was_forgotten_is_made_anew_with_the_cursors() -> None:
    """[WCH-1] Also of topics of which nothing came, and of what has come and is not taken yet."""
    one = watching(a=0, b="tail")
    one.take(records("a", [1, 2], {"a": 2, "b": 44}))
    call = one.connect()
    next(call)
    again = call.send(Heard(Answer(404, {}, b""), 0.0))
    assert isinstance(again, Request)
    assert again.path == "/v0/watch?lenient=true"
    assert json.loads(again.body or b"")["topics"] == {"a": {"from_seq": 2}, "b": {"from_seq": 44}}
    opening = call.send(session("wid_2", a=2, b=44))
    assert isinstance(opening, Opening)
    assert opening.request.path == "/v0/watch/wid_2"
    assert cursors_of(dict(opening.request.headers)["last-event-id"]) == {"a": 2, "b": 44}
    finish(call, OPENED)
    assert len(taken(one)) == 2
    assert one.cursors == {"a": 2, "b": 44}


def test_a_topic_that_went_while_nobody_watched_is_told() -> None:
    one = watching(a=0, b=0)
    call = one.connect()
    next(call)
    call.send(Heard(Answer(404, {}, b""), 0.0))
    finish_or_open = call.send(session("wid_2", b=0))
    assert isinstance(finish_or_open, Opening)
    finish(call, OPENED)
    assert taken(one) == [TopicDeleted("a")]
    assert not one.is_over
    one.take(frame("topic-deleted", {"a": 0, "b": 0}, topic="b", head_seq=0, reason="deleted"))
    assert taken(one) == [TopicDeleted("b")]
    assert one.is_over


def test_a_topic_made_anew_is_read_from_its_start() -> None:
    """[RSM-2] The id lowers the cursor, and its records are new."""
    one = watching(a=0)
    one.take(records("a", [1, 2, 3], {"a": 3}))
    gap = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
    one.take(frame("tombstone", {"a": 0}, topic="a", **gap))
    one.take(records("a", [1, 2], {"a": 2}))
    assert [event.seq for event in taken(one) if isinstance(event, TopicRecord)] == [1, 2, 3, 1, 2]
    assert one.cursors == {"a": 2}


def test_sessions_that_are_always_unknown_end_it() -> None:
    """Two servers behind one address: it must not go round for ever."""
    one = watching(a=0)
    call = one.connect()
    next(call)
    with pytest.raises(errors.ServerError) as caught:
        for _ in range(20):
            call.send(Heard(Answer(404, {}, b'{"error":{"code":"not_found","message":"m"}}'), 0.0))
            call.send(session("wid_2", a=0))
    assert caught.value.code == "not_found"


def test_a_server_that_stops_says_when_to_come_back() -> None:
    """[FRM-9]"""
    one = watching(a=0)
    one.take(b"retry: 700\n\n" + frame("error", {"a": 0}, code="server_shutting_down", message="m"))
    call = one.connect()
    assert next(call) == Pause(0.7)
    assert isinstance(call.send(None), Opening)


def test_a_key_that_was_removed_is_an_error() -> None:
    """[FRM-9, KEY-4]"""
    one = watching(a=0)
    one.take(frame("error", {"a": 0}, code=410, message="m"))
    call = one.connect()
    assert isinstance(next(call), Request)
    with pytest.raises(errors.Unauthorized):
        call.send(Heard(Answer(401, {}, b'{"error":{"code":"unauthorized","message":"m"}}'), 0.0))


def test_streams_that_end_before_they_say_anything_are_not_opened_in_a_hurry() -> None:
    """[U-21] A proxy in between, perhaps; with a frame all is well again."""
    one = watching(a=0)
    pauses: list[float] = []
    with pytest.raises(errors.Unreachable):
        while True:
            one.take(b"retry: 2000\n\n")
            call = one.connect()
            step = next(call)
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                step = call.send(None)
            assert isinstance(step, Opening)
            finish(call, OPENED)
    assert pauses[0] < 0.5
    assert pauses == sorted(pauses)
    assert 50 < sum(pauses) <= 60
    other = watching(a=0)
    other.take(records("a", [1], {"a": 1}))
    assert isinstance(next(other.connect()), Opening)


def test_advice_and_unknown_frames_change_nothing() -> None:
    """[FRM-9, API-1]"""
    one = watching(a=0)
    one.take(frame("error", None, code=429, message="m", retry_after_ms=5, topics=["a"]))
    one.take(frame("novelty", {"a": 7}, what=1) + b"event: error\ndata: {\n\n")
    assert taken(one) == []
    call = one.connect()
    assert isinstance(next(call), Opening)


def test_an_outage_is_waited_out_and_then_told() -> None:
    """[U-21]"""
    one = watching(a=0)
    call = one.connect()
    step = next(call)
    now_s = 0.0
    with pytest.raises(errors.Unreachable):
        while True:
            assert isinstance(step, Opening)
            pause = call.send(Heard(Fault("refused", sent=False), now_s))
            assert isinstance(pause, Pause)
            now_s += pause.seconds
            step = call.send(None)
    assert now_s > 55


@given(st.text(max_size=50))
def test_any_text_is_a_cursor_or_none(text: str) -> None:
    assert all(isinstance(seq, int) for seq in cursors_of(text).values())
