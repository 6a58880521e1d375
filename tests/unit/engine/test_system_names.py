"""Names that belong to the server: what a program that embeds the engine may do with them [A-14]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store
from topics.engine.engine import Engine
from topics.errors import Forbidden, LimitReached
from topics.model import DELETES, LOSS, PIPELINES, SYSTEM_TOPICS, TopicConfig

FORBIDDEN: dict[str, Callable[[Engine, str], Any]] = {
    "put": lambda engine, name: engine.put_topic(name),
    "delete topic": lambda engine, name: engine.delete_topic(name),
    "delete records": lambda engine, name: engine.delete(name, before_seq=1),
    "dry run": lambda engine, name: engine.delete(name, before_seq=1, dry_run=True),
    "claim": lambda engine, name: engine.claim(name, "w"),
    "ack": lambda engine, name: engine.ack(name, "w", [1]),
    "nack": lambda engine, name: engine.nack(name, "w", [1]),
    "extend": lambda engine, name: engine.extend(name, "w", [1], lease_ms=1000),
    "source": lambda engine, name: engine.put_router("r", {"source": name, "dest": "d"}),
    "dest": lambda engine, name: engine.put_router("r", {"source": "s", "dest": name}),
}


def filled() -> Store:
    """A store that has all of the server's topics."""
    store = Store()
    engine = store.put(cap_records=1)
    kit.each(engine, 2)
    engine.delete(TOPIC, before_seq=3)
    engine.append(PIPELINES, [kit.new({"run": 1})])
    store.pass_time(11_000)
    assert set(engine.topics("$", system=True)) == SYSTEM_TOPICS
    return store


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("there", [False, True])
def test_what_only_the_server_may_do_is_refused(what: str, there: bool) -> None:
    """[A-14] Whether or not the topic is there, and whatever is in the name behind the `$`."""
    engine = filled().engine if there else Store().engine
    before = list(engine.topics(system=True))
    for name in (*sorted(SYSTEM_TOPICS), "$other", "$"):
        with pytest.raises(Forbidden) as refused:
            FORBIDDEN[what](engine, name)
        assert (refused.value.topic, refused.value.code) == (name, "forbidden")
    assert list(engine.topics(system=True)) == before
    assert list(engine.routers()) == []


def test_only_pipelines_is_written_to() -> None:
    """[A-14] `$deletes` and `$loss` are the server's alone, other names with `$` are none."""
    engine = filled().engine
    for name in (DELETES, LOSS):
        with pytest.raises(Forbidden):
            kit.write(engine, 1, name=name)
    for name in ("$other", "$", "$deletes2"):
        with kit.invalid_request():
            kit.write(engine, 1, name=name)
    assert kit.write(engine, 2, name=PIPELINES).first_seq == 2


def test_nothing_is_staged_for_them() -> None:
    """[A-14, A-19] A staged write is a client's."""
    engine = filled().engine
    for name in (DELETES, LOSS):
        with pytest.raises(Forbidden):
            engine.stage("w", 1, "p", 0, name, [kit.new(1)])
    for name in ("$other", PIPELINES):
        with kit.invalid_request():
            engine.stage("w", 1, "p", 0, name, [kit.new(1)])


def test_pipelines_is_made_with_defaults_whatever_is_asked_for() -> None:
    """[A-14]"""
    engine = Store().engine
    assert engine.append(PIPELINES, [kit.new(1)], config={"ttl_ms": 5, "durability": "ephemeral"}).created
    assert engine.state(PIPELINES).config == TopicConfig()


def test_they_are_read_like_any_topic() -> None:
    """[A-14] State, read and plan."""
    engine = filled().engine
    for name in SYSTEM_TOPICS:
        assert engine.state(name).count == 1
        assert kit.seqs(engine.read(name)) == [1]
        assert engine.plan(name).head_seq == 1


def test_lists_show_them_only_if_asked_to() -> None:
    """[A-14]"""
    engine = filled().engine
    assert list(engine.topics()) == [TOPIC]
    assert list(engine.topics("$")) == []
    assert list(engine.topics(system=True)) == sorted([*SYSTEM_TOPICS, TOPIC])
    assert asyncio.run(engine.aio.topics(system=True)) == sorted([*SYSTEM_TOPICS, TOPIC])
    assert asyncio.run(engine.aio.topics()) == [TOPIC]


def test_they_do_not_count() -> None:
    """[A-14] Not towards the number of topics allowed, nor in what is counted."""
    store = Store(max_topics=2)
    engine = store.put(cap_records=1)
    kit.each(engine, 2)
    engine.delete(TOPIC, seqs=[1])
    engine.append(PIPELINES, [kit.new(1)])
    store.pass_time(11_000)
    assert len(list(engine.topics("$", system=True))) == 3
    engine.put_topic("second")
    with pytest.raises(LimitReached):
        engine.put_topic("third")
    with pytest.raises(LimitReached):
        engine.put_router("r", {"source": TOPIC, "dest": "third"})
    sweep = engine.begin_metrics()
    while not sweep.step():
        pass
    assert (sweep.found.values["topics_topics"], sweep.found.values["topics_records_live"]) == (2, 1)
    assert sweep.found.values["topics_bytes_live"] == engine.state(TOPIC).bytes
    assert set(sweep.found.labelled["topics_topic_head_seq"]) == {TOPIC, "second"}


def test_the_server_writes_where_no_topic_fits_any_more() -> None:
    """[A-14, A-20] Neither the number of topics nor the quota of bytes keeps its records out."""
    store = Store(max_topics=1, max_total_bytes=40)
    engine = store.put()
    kit.write(engine, "x" * 36)
    engine.delete(TOPIC, before_seq=1)
    store.pass_time(100)
    assert engine.state(DELETES).count == 1


@kit.after_every_stop
def test_what_the_server_writes_takes_nothing_of_the_quota(stop: str) -> None:
    """[RES-5, TOP-14, A-14] What was deleted is free again, however much the server had to say about it."""
    store = Store(max_total_bytes=40)
    for round in range(20):
        engine = store.put(cap_records=1)
        kit.write(engine, "x" * 30)
        with pytest.raises(LimitReached):
            kit.write(engine, "x" * 30)
        if round % 2:
            engine.delete(TOPIC, seqs=[engine.state(TOPIC).head_seq])
        else:
            kit.write(engine, 1)
            engine.delete_topic(TOPIC)
        store.pass_time(11_000)
    assert engine.state(DELETES).bytes > 40
    assert engine.state(LOSS).bytes > 40
    engine = store.stop(stop)
    store.put("other")
    kit.write(engine, "x" * 30, name="other")
    with pytest.raises(LimitReached):
        kit.write(engine, "x" * 30, name="other")


def test_what_clients_write_to_pipelines_counts() -> None:
    """[RES-5, A-14] Nobody could bound it otherwise: it has no caps and no TTL."""
    store = Store(max_total_bytes=40)
    engine = store.put()
    kit.write(engine, "x" * 36, name=PIPELINES)
    for name in (PIPELINES, TOPIC):
        with pytest.raises(LimitReached):
            kit.write(engine, "x" * 36, name=name)


def test_they_survive_restarts() -> None:
    """[A-14]"""
    store = filled()
    for _ in range(2):
        engine = store.kill()
        assert [engine.state(name).head_seq for name in sorted(SYSTEM_TOPICS)] == [1, 1, 1]
        assert list(engine.topics()) == [TOPIC]
