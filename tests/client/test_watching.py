"""Watches over every way to the operations: the same events in the same order (03 §5) [U-20, U-21]."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import topics
from tests.api.kit import running
from tests.client.subjects import CLIENTS, KINDS, WAIT_S, client_of, subject
from tests.unit.strike import Strike, ctrl_c, interruptible
from topics import errors, interrupts
from topics.client import events as watching
from topics.client import sync
from topics.client.sync import Client
from topics.model import CaughtUp, TopicDeleted, TopicGap, TopicRecord
from topics.testing.tcpproxy import TcpProxy


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    with subject(request.param, None) as one:
        yield one


@pytest.fixture
def one(shared: Any) -> Any:
    return shared


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def take(events: Any, count: int) -> list[Any]:
    return list(itertools.islice(events, count))


def told(event: Any) -> Any:
    """An event, short."""
    match event:
        case TopicRecord():
            return event.topic, event.seq, event.data
        case TopicGap():
            return event.topic, event.gap_from, event.gap_to, event.reason
        case CaughtUp():
            return event.topic, "caught up", event.head_seq
        case TopicDeleted():
            return event.topic, "deleted"


def test_what_was_there_comes_first_then_what_is_written(one: Any, name: str) -> None:
    one.append_many(name, [topics.new(1, tag="t", node="n", meta={"m": 1}), 2])
    with one.watch({name: 0}) as events:
        first, *rest = take(events, 3)
        assert (first.tag, first.node, first.meta, first.ts > 0) == ("t", "n", {"m": 1}, True)
        assert list(map(told, rest)) == [(name, 2, 2), (name, "caught up", 2)]
        one.append(name, 3)
        assert list(map(told, take(events, 2))) == [(name, 3, 3), (name, "caught up", 3)]
        assert dict(events.cursors) == {name: 3}


def test_a_watch_begins_behind_a_seq_or_at_the_tail(one: Any, name: str) -> None:
    one.append_many(f"{name}.a", range(5))
    one.append_many(f"{name}.b", range(5))
    with one.watch({f"{name}.a": 3, f"{name}.b": "tail"}) as events:
        assert dict(events.cursors) == {f"{name}.a": 3, f"{name}.b": 5}
        found = sorted(map(told, take(events, 4)), key=str)
        assert found == [
            (f"{name}.a", "caught up", 5),
            (f"{name}.a", 4, 3),
            (f"{name}.a", 5, 4),
            (f"{name}.b", "caught up", 5),
        ]


def test_a_watch_goes_on_where_another_ended(one: Any, name: str) -> None:
    """[U-21] The cursors are those of what was taken, not of what has come."""
    one.append_many(name, range(1000))
    seen: list[int] = []
    cursors = {name: 0}
    while len(seen) < 1000:
        with one.watch(cursors) as events:
            seen += [event.data for event in take(events, 125) if isinstance(event, TopicRecord)]
            cursors = dict(events.cursors)
    assert seen == list(range(1000))


def test_what_is_lost_is_an_event_in_its_place(one: Any, name: str) -> None:
    one.create(name, cap_records=2)
    one.append_many(name, range(5))
    with one.watch({name: 1}) as events:
        assert list(map(told, take(events, 4))) == [
            (name, 2, 3, "from_seq_too_old"),
            (name, 4, 3),
            (name, 5, 4),
            (name, "caught up", 5),
        ]


def test_own_records_are_left_out(one: Any, name: str) -> None:
    one.append_many(name, [topics.new(n, node="me" if n % 2 else "you") for n in range(6)])
    with one.watch({name: 0}, node="me") as events:
        assert [event.data for event in take(events, 3)] == [0, 2, 4]


def test_a_topic_that_goes_is_told_and_without_any_the_watch_ends(one: Any, name: str) -> None:
    """[FRM-5]"""
    one.create(f"{name}.a")
    one.create(f"{name}.b")
    with one.watch({f"{name}.a": 0, f"{name}.b": 0}) as events:
        take(events, 2)
        one.drop(f"{name}.a")
        assert told(next(events)) == (f"{name}.a", "deleted")
        one.append(f"{name}.b", 1)
        assert [told(event) for event in take(events, 2)] == [(f"{name}.b", 1, 1), (f"{name}.b", "caught up", 1)]
        one.drop(f"{name}.b")
        assert [told(event) for event in events] == [(f"{name}.b", "deleted")]


def test_a_strong_watch_yields_what_is_synced(one: Any, name: str) -> None:
    """[WCH-7]"""
    one.append(name, 1)
    with one.watch({name: 0}, consistency="strong") as events:
        assert told(next(events)) == (name, 1, 1)
    with pytest.raises(errors.CallerError):
        next(iter(one.watch({name: 0}, consistency="perhaps")))


def test_a_slow_reader_misses_nothing(one: Any, name: str) -> None:
    """[FRM-10] More than anybody holds for it."""
    text = "x" * 20_000
    with one.watch({name: 0} if one.append(name, [0, text]).created else {}) as events:
        for start in range(1, 400, 40):
            one.append_many(name, [[n, text] for n in range(start, start + 40)])
        found = [event.data[0] for event in events_up_to(events, 400)]
    assert found == list(range(401))


def events_up_to(events: Any, last: int) -> Iterator[Any]:
    for event in events:
        if isinstance(event, TopicRecord):
            yield event
            if event.data[0] == last:
                return


def test_a_watch_may_be_closed_while_somebody_waits(one: Any, name: str) -> None:
    one.create(name)
    events = one.watch({name: "tail"})
    assert told(next(events)) == (name, "caught up", 0)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.extend(events))
    waiter.start()
    events.close()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()
    assert found == []
    events.close()


def test_a_watch_that_was_forgotten_costs_nothing() -> None:
    """Whoever drops one without closing it leaves no followers behind."""
    with topics.open(None) as log:
        log.create("a")
        for _ in range(3):
            next(log.watch({"a": 0}))
        gc.collect()
        log.append("a", 1)
        with log.watch({"a": 0}) as events:
            assert [told(event) for event in take(events, 2)] == [("a", 1, 1), ("a", "caught up", 1)]
            assert len(log.engine.inboxes) == 1
        assert not log.engine.inboxes
        assert not log.engine.core.names["a"].followers


@pytest.mark.parametrize("kind", KINDS)
def test_a_watch_ends_with_what_it_watches(kind: str) -> None:
    """Closing a store or a client ends its watches."""
    with subject(kind, None) as one:
        one.create("a")
        events = one.watch({"a": 0})
        next(events)
        over = threading.Event()

        def wait() -> None:
            with pytest.raises((StopIteration, errors.EngineClosed)):
                next(events)
            over.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        one.close()
        assert over.wait(WAIT_S)
        waiter.join(WAIT_S)
        with pytest.raises(errors.EngineClosed):
            next(iter(one.watch({"a": 0})))


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_line_that_is_cut_again_and_again_costs_nothing(kind: str) -> None:
    """[RSM-3] The session lives on, the last whole frame counts."""
    with running() as server, TcpProxy(server.host, server.port) as line, client_of(kind, line.endpoint) as one:
        one.append_many("a", [[n, "x" * 3000] for n in range(300)])
        seen = []
        with one.watch({"a": 0}) as events:
            line.cut_after(300_000)  # a frame, and part of the next
            for event in events_up_to(events, 299):
                seen.append(event.data[0])
                line.cut_after(300_000)
        assert seen == list(range(300))
        assert line.connections >= 3  # one for calls, one that was cut, at least one more


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_watch_survives_a_topic_made_anew_while_it_was_away(kind: str) -> None:
    """[FRM-6] The session knows which instance it was."""
    with (
        running() as server,
        TcpProxy(server.host, server.port) as line,
        client_of("client", server.url) as other,
        client_of(kind, line.endpoint) as one,
    ):
        other.append_many("a", ["old 1", "old 2"])
        with one.watch({"a": 0}) as events:
            take(events, 3)
            line.refuse()
            other.drop("a")
            other.append_many("a", ["new 1", "new 2", "new 3"])
            line.accept()
            gap, *rest = take(events, 4)
            assert isinstance(gap, TopicGap)
            assert [event.data for event in rest] == ["new 1", "new 2", "new 3"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket just opened is collected
def test_a_watch_that_goes_on_behind_ctrl_c_passes_over_nothing() -> None:
    """[RSM-3] What was read and not handed on comes again, once."""
    ours = {sync.__file__, watching.__file__, interrupts.__file__}
    with running() as server, Client(server.url) as one:
        one.append_many("a", list(range(4)))
        for at in itertools.count(1):
            strike = Strike(at, ours.__contains__, by=ctrl_c)
            seen: list[Any] = []
            with one.watch({"a": 0}) as events:
                with interruptible(), strike.around():
                    for event in events:
                        seen.append(told(event))
                        if len(seen) == 5:
                            break
                if len(seen) < 5:
                    seen += map(told, take(events, 5 - len(seen)))
            assert seen == [*(("a", n + 1, n) for n in range(4)), ("a", "caught up", 4)], at
            if not strike.struck:
                return
