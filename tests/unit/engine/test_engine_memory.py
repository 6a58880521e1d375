"""The engine without a directory: everything works, nothing is kept (06 §18, S-351)."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, gap, numbers, seqs, write
from topics.engine.engine import Engine
from topics.errors import EngineClosed, TopicFull, TopicNotFound
from topics.model import Producer, new

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def test_an_engine_in_memory_is_ready_at_once() -> None:
    """[S-351]"""
    with Engine.open(None) as engine:
        health = engine.health()
        assert (health.ready, health.state, health.progress) == (True, "ok", 1.0)
        assert list(engine.topics()) == []


def test_it_touches_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-351]"""
    monkeypatch.chdir(tmp_path)
    with Engine.open(None) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        kit.each(engine, 20)
        engine.checkpoint(full=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("durability", CLASSES)
def test_every_class_behaves_alike_and_is_echoed(durability: str) -> None:
    """[S-351, CFG-5]"""
    engine = Store("ram").put(durability=durability)
    kit.each(engine, 5)
    assert numbers(engine) == (5, 1, 5, 5)
    assert engine.state(TOPIC).config.durability == durability
    assert kit.everything(engine).values == [1, 2, 3, 4, 5]


def test_two_engines_in_memory_know_nothing_of_each_other() -> None:
    """[S-351]"""
    with Engine.open(None) as one, Engine.open(None) as other:
        write(one, 1)
        with pytest.raises(TopicNotFound):
            other.read(TOPIC)


def test_nothing_is_left_after_closing() -> None:
    """[S-351]"""
    engine = Engine.open(None)
    write(engine, 1)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        engine.read(TOPIC)
    with Engine.open(None) as engine:
        assert list(engine.topics()) == []


def test_caps_expiry_deletes_and_tombstones_work() -> None:
    """[S-351, DUR-14]"""
    store = Store("ram")
    engine = store.put(cap_records=4, ttl_ms=100)
    kit.tagged(engine, "x", "y", "x", "y", "x", "y")
    assert gap(engine.read(TOPIC)) == (1, 2, "cap")
    assert engine.delete(TOPIC, match="x").deleted == 2
    assert seqs(engine.read(TOPIC, 2)) == [4, 6]
    store.clock.advance(101)
    store.engine.tick()
    assert numbers(engine) == (6, 7, 0, 0)
    assert gap(engine.read(TOPIC, 2)) == (3, 6, "ttl")


def test_keys_and_producers_work() -> None:
    """[S-351], 01 §15"""
    store = Store("ram")
    engine = store.put()
    assert write(engine, 1, idempotency_key="k").seqs == [1]
    assert write(engine, 1, idempotency_key="k").deduped
    assert write(engine, 2, producer=Producer("p", 1, 7)).seqs == [2]
    assert write(engine, 2, producer=Producer("p", 1, 7)).seqs == [2]
    assert write(engine, 3, producer=Producer("p", 1, 8)).seqs == [3]
    store.clock.advance(120_001)
    assert write(engine, 1, idempotency_key="k").seqs == [4]


def test_a_full_topic_rejects() -> None:
    """[CAP-3]"""
    engine = Store("ram").put(cap_records=1, discard="reject")
    write(engine, 1)
    with pytest.raises(TopicFull):
        write(engine, 2)


def test_checkpoints_and_snapshots_do_no_harm() -> None:
    """[S-351]"""
    store = Store("ram")
    engine = store.put()
    kit.each(engine, 10)
    engine.delete(TOPIC, seqs=[5])
    before = kit.snapshot_of(engine)
    engine.checkpoint()
    engine.checkpoint(full=True)
    store.pass_time(70_000, 5000)
    assert kit.snapshot_of(engine) == before


def test_many_records_are_held_and_read_in_order() -> None:
    """[S-102]"""
    engine = Store("ram").put()
    for n in range(5):
        engine.append(TOPIC, [new(1000 * n + i) for i in range(1000)])
    assert kit.everything(engine, limit=1000).values == list(range(5000))
    engine.delete(TOPIC, before_seq=4001)
    assert numbers(engine)[:3] == (5000, 4001, 1000)


def test_threads_share_it_and_a_reader_is_woken() -> None:
    """[S-350, DIF-4]"""
    with Engine.open(None) as engine:
        engine.put_topic(TOPIC)
        begun = threading.Event()

        def follow() -> list[int]:
            got: list[int] = []
            while len(got) < 100:
                begun.set()
                got += seqs(engine.read(TOPIC, got[-1] if got else 0, wait_ms=15_000))
            return got

        reader = kit.spawn(follow)
        assert begun.wait(kit.WAIT_S)
        kit.finish([kit.spawn(partial(kit.each, engine, 25)) for _ in range(4)])
        assert reader.result(kit.WAIT_S) == list(range(1, 101))


def test_a_deleted_topic_begins_anew() -> None:
    """[EPO-1]"""
    engine = Store("ram").put()
    kit.each(engine, 3)
    assert engine.delete_topic(TOPIC) is True
    assert write(engine, "new").seqs == [1]
    assert gap(engine.read(TOPIC, 3)) == (1, 1, "recreated")
