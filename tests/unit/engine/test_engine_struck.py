"""Ctrl-C in a thread that uses an engine: whatever was half done then, nobody is told what is not so (S-73, INV-1).

A change that a signal ended is neither undone nor gone on with: the engine does nothing any more, and the next start
finds the disk as a process leaves it that was killed there.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import topics
from tests.unit.engine import kit
from tests.unit.strike import Strike
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.follow import LogWatch
from topics.engine.read import Query
from topics.errors import EngineClosed
from topics.storage.owner import LockedOwner
from topics.testing import SimFs

PACKAGE = str(Path(topics.__file__).parent)
OURS = tuple(f"{PACKAGE}/{part}/" for part in ("engine", "storage", "wal"))
in_generators = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Where a generator is being closed, Python tells of what a handler raises and goes on."""
CONFIG = EngineConfig(wal_shards=1, wal_file_bytes=65536, wal_init_zero=False)


def opened(sim: SimFs) -> Engine:
    return Engine.open(kit.PATH, CONFIG, fs=sim)


def strike(at: int) -> Strike:
    return Strike(at, lambda file: file.startswith(OURS))


@in_generators
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_signal_at_any_call_of_a_write_harms_nothing_that_was_acknowledged(durability: str) -> None:
    """S-73, INV-1: other threads are answered, and every start finds what they were told."""
    for at in count(1):
        sim = SimFs(7)
        engine = opened(sim)
        for name in ("a", "b"):
            engine.put_topic(name, {"durability": durability})
            kit.write(engine, "before", name=name)
        signal = strike(at)
        with signal.around():
            kit.write(engine, 1, 2, 3, name="a")
        told: dict[str, list[object]] = {"a": ["before"], "b": ["before"]}
        for name in ("b", "a", "b"):
            later = kit.spawn(partial(kit.write, engine, "after", name=name))
            with suppress(EngineClosed):
                later.result(kit.WAIT_S)
                told[name].append("after")
        check(sim.kill_image(), told, at)
        if durability == "fsync":
            check(sim.crash_image(1, "nothing"), told, at)
        engine.close()
        check(sim, told, at)
        if not signal.struck:
            return


def check(sim: SimFs, told: dict[str, list[object]], at: int) -> None:
    with opened(sim) as again:
        for name, values in told.items():
            seen = kit.everything(again, name)
            assert seen.gaps == [], (at, name)
            assert [value for value in seen.values if value not in (1, 2, 3)] == values, (at, name)
            assert [value for value in seen.values if value in (1, 2, 3)] in ([], [1, 2, 3]), (at, name)


@pytest.fixture
def struck() -> Iterator[tuple[Engine, Callable[[], None]]]:
    """An engine, and what strikes a write of it in the middle."""
    engine = opened(SimFs(7))
    engine.put_topic("a", {"durability": "fsync"})

    def interrupt() -> None:
        owner = engine.owner

        def change() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            owner.start(change)

    yield engine, interrupt
    engine.close()


def test_whoever_waits_is_told_and_nobody_is_served_any_more(struck: tuple[Engine, Callable[[], None]]) -> None:
    """S-73: readers that wait, followers and callers of a loop among them."""
    engine, interrupt = struck
    query = Query.parse("a", 0, None, 1, 1 << 20, None, 60_000, engine.core.limits)
    waits = threading.Semaphore(0)
    reader = kit.spawn(lambda: engine.poll(query, lambda call_off: waits.release()))
    watch = LogWatch(engine, {"a": 0}, None, "eventual")
    follower = kit.spawn(lambda: list(watch))

    async def read() -> object:
        reading = asyncio.ensure_future(engine.aio.read("a", wait_ms=60_000))
        await asyncio.sleep(0)
        waits.release()
        return await reading

    coroutine = kit.spawn(lambda: asyncio.run(read()))
    for _ in range(2):
        assert waits.acquire(timeout=kit.WAIT_S)
    interrupt()
    for waiting in (reader, follower, coroutine):
        with pytest.raises(EngineClosed, match="KeyboardInterrupt interrupted a change"):
            waiting.result(kit.WAIT_S)
    for call in (lambda: kit.write(engine, 1, name="a"), lambda: engine.read("a"), engine.tick):
        with pytest.raises(EngineClosed, match="open it again"):
            call()
    assert not engine.health().ready


@in_generators
def test_a_signal_at_any_call_of_a_read_leaves_nobody_waiting() -> None:
    """S-73, TTL-2: reading retires what is over, so it may leave something half done as well."""
    for at in count(1):
        sim = SimFs(7)
        engine = opened(sim)
        engine.put_topic("a", {"durability": "fsync", "ttl_ms": 1, "max_records": 5})
        kit.each(engine, 8, name="a")
        signal = strike(at)
        with signal.around():
            engine.read("a")
        for later in (partial(engine.read, "a"), partial(kit.write, engine, 9, name="a")):
            with suppress(EngineClosed):
                kit.spawn(later).result(kit.WAIT_S)
        closing = kit.spawn(engine.close)
        closing.result(kit.WAIT_S)
        with opened(sim) as again:
            assert again.state("a").head_seq >= 8, at
        if not signal.struck:
            return


def test_who_is_struck_while_telling_others_tells_them_when_he_closes() -> None:
    """S-73: Ctrl-C twice."""
    engine = opened(SimFs(7))
    engine.put_topic("a", {"durability": "fsync"})
    query = Query.parse("a", 0, None, 1, 1 << 20, None, 60_000, engine.core.limits)
    waits = threading.Semaphore(0)
    reader = kit.spawn(lambda: engine.poll(query, lambda call_off: waits.release()))
    assert waits.acquire(timeout=kit.WAIT_S)
    owner = engine.owner
    assert isinstance(owner, LockedOwner)

    def again() -> None:
        raise KeyboardInterrupt

    owner.on_struck = again
    with pytest.raises(KeyboardInterrupt):
        owner.start(again)
    engine.close()
    with pytest.raises(EngineClosed):
        reader.result(kit.WAIT_S)


def test_loops_that_are_over_are_not_kept() -> None:
    """13 §6: whatever they still waited for."""
    engine = opened(SimFs(7))
    engine.put_topic("a", {"durability": "fsync"})
    loops: list[weakref.ref[object]] = []

    async def leave() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(engine.aio.read("a", wait_ms=60_000), 0.01)

    for _ in range(3):
        asyncio.run(leave())
    kit.write(engine, 1, name="a")
    engine.close()
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
