"""`Engine.subscribe`: a topic followed in the same process (06 §18)."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from topics.engine.engine import Engine
from topics.errors import CallerError, EngineClosed, TopicNotFound
from topics.model import Gap, Record

WAIT_S = 60


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.open(None) as one:
        one.put_topic("jobs")
        yield one


def write(engine: Engine, *values: object, **more: Any) -> None:
    engine.append("jobs", [{"data": value} for value in values], **more)


def taken(inbox: queue.Queue[Record | Gap], count: int) -> list[object]:
    found = [inbox.get(timeout=WAIT_S) for _ in range(count)]
    return [one.data if isinstance(one, Record) else one.reason for one in found]


def test_a_queue_gets_what_is_there_and_what_comes_in_order(engine: Engine) -> None:
    write(engine, 1, 2)
    inbox: queue.Queue[Record | Gap] = queue.Queue()
    with engine.subscribe("jobs", 0, inbox) as subscription:
        assert taken(inbox, 2) == [1, 2]
        write(engine, 3)
        write(engine, 4, 5)
        assert taken(inbox, 3) == [3, 4, 5]
        assert subscription.error is None
    write(engine, 6)
    assert inbox.empty()


def test_a_subscription_begins_behind_its_cursor_and_leaves_out_own_records(engine: Engine) -> None:
    write(engine, 1, 2)
    inbox: queue.Queue[Record | Gap] = queue.Queue()
    with engine.subscribe("jobs", 1, inbox, node="me"):
        write(engine, 3, node="me")
        write(engine, 4)
        assert taken(inbox, 2) == [2, 4]


def test_what_was_lost_is_handed_over_as_a_gap(engine: Engine) -> None:
    """[INV-5]"""
    engine.put_topic("jobs", {"cap_records": 2})
    write(engine, 1, 2, 3, 4)
    inbox: queue.Queue[Record | Gap] = queue.Queue()
    with engine.subscribe("jobs", 0, inbox):
        assert taken(inbox, 3) == ["cap", 3, 4]


def test_a_callback_may_write_to_the_topic_it_follows(engine: Engine) -> None:
    """It does not run on the owner, so nothing waits for itself."""
    seen: queue.Queue[object] = queue.Queue()

    def receive(one: Record | Gap) -> None:
        assert isinstance(one, Record)
        seen.put(one.data)
        if one.data < 3:
            write(engine, one.data + 1)

    with engine.subscribe("jobs", 0, receive):
        write(engine, 1)
        assert [seen.get(timeout=WAIT_S) for _ in range(3)] == [1, 2, 3]


def test_a_callback_may_close_its_own_subscription(engine: Engine) -> None:
    seen: queue.Queue[object] = queue.Queue()

    def receive(one: Record | Gap) -> None:
        subscription.close()
        seen.put(one)

    subscription = engine.subscribe("jobs", 0, receive)
    write(engine, 1, 2)
    seen.get(timeout=WAIT_S)
    subscription.close()
    assert seen.empty()


def test_a_callback_that_fails_ends_its_subscription_and_nothing_else(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    failed: queue.Queue[object] = queue.Queue()

    def receive(one: Record | Gap) -> None:
        failed.put(one)
        raise ValueError("not this one")

    subscription = engine.subscribe("jobs", 0, receive)
    write(engine, 1)
    failed.get(timeout=WAIT_S)
    subscription._thread.join(WAIT_S)
    assert isinstance(subscription.error, ValueError)
    write(engine, 2)
    assert engine.state("jobs").count == 2
    assert "failed" in caplog.text


def test_a_subscription_ends_with_its_topic(engine: Engine) -> None:
    subscription = engine.subscribe("jobs", 0, lambda one: None)
    engine.delete_topic("jobs")
    subscription._thread.join(WAIT_S)
    assert isinstance(subscription.error, TopicNotFound)


def test_a_subscription_ends_with_the_engine(engine: Engine) -> None:
    subscription = engine.subscribe("jobs", 0, lambda one: None)
    engine.close()
    subscription._thread.join(WAIT_S)
    assert isinstance(subscription.error, EngineClosed)


def test_what_cannot_be_followed_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(TopicNotFound):
        engine.subscribe("nothing", 0, lambda one: None)
    with pytest.raises(CallerError):
        engine.subscribe("jobs", 0, 7)  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        engine.subscribe("jobs", -1, lambda one: None)


def test_a_coroutine_follows_by_iterating(engine: Engine) -> None:
    async def follow() -> list[object]:
        found: list[object] = []
        async for one in engine.aio.subscribe("jobs"):
            assert isinstance(one, Record)
            found.append(one.data)
            if len(found) == 2:
                await engine.aio.append("jobs", [{"data": 3}])
            if len(found) == 3:
                break
        return found

    write(engine, 1, 2)
    assert asyncio.run(follow()) == [1, 2, 3]
