"""A signal in a thread that uses an engine: whatever was half done then, nobody is told what is not so (S-73, INV-1).

Ctrl-C waits until a change is whole. One that another handler ended is neither undone nor gone on with: the engine does
nothing any more, and the next start finds the disk as a process leaves it that was killed there.
"""

from __future__ import annotations

import asyncio
import gc
import signal as handlers
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
from tests.unit.strike import Strike, alarm, ctrl_c, interruptible, other
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.follow import LogWatch
from topics.engine.read import Query
from topics.errors import EngineClosed
from topics.model import TopicRecord
from topics.storage.owner import LockedOwner
from topics.testing import SimFs

PACKAGE = str(Path(topics.__file__).parent)
OURS = tuple(f"{PACKAGE}/{part}" for part in ("engine/", "storage/", "wal/", "interrupts.py"))
in_generators = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Where a generator is being closed, Python tells of what a handler raises and goes on."""
CONFIG = EngineConfig(wal_shards=1, wal_file_bytes=65536, wal_init_zero=False)


def opened(sim: SimFs) -> Engine:
    return Engine.open(kit.PATH, CONFIG, fs=sim)


def strike(at: int, by: Callable[[], None] = other) -> Strike:
    return Strike(at, lambda file: file.startswith(OURS), by=by)


def written(durability: str) -> tuple[SimFs, Engine]:
    """Two topics with a record each."""
    sim = SimFs(7)
    engine = opened(sim)
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": durability})
        kit.write(engine, "before", name=name)
    return sim, engine


@in_generators
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_signal_at_any_call_of_a_write_harms_nothing_that_was_acknowledged(durability: str) -> None:
    """S-73, INV-1: other threads are answered, and every start finds what they were told."""
    for at in count(1):
        sim, engine = written(durability)
        signal = strike(at)
        with signal.around():
            kit.write(engine, 1, 2, 3, name="a")
        told: dict[str, list[object]] = {"a": ["before"], "b": ["before"]}
        for name in ("b", "a", "b"):
            later = kit.spawn(partial(kit.write, engine, "after", name=name))
            with suppress(EngineClosed):
                later.result(kit.WAIT_S)
                told[name].append("after")
        check_every_end(sim, engine, durability, told, at)
        if not signal.struck:
            return


def check_every_end(sim: SimFs, engine: Engine, durability: str, told: dict[str, list[object]], at: int) -> None:
    """Killed, without power, closed."""
    check(sim.kill_image(), told, at)
    if durability == "fsync":
        check(sim.crash_image(1, "nothing"), told, at)
    kit.spawn(engine.close).result(kit.WAIT_S)
    check(sim, told, at)


def check(sim: SimFs, told: dict[str, list[object]], at: int) -> None:
    with opened(sim) as again:
        for name, values in told.items():
            seen = kit.everything(again, name)
            assert seen.gaps == [], (at, name)
            assert [value for value in seen.values if value not in (1, 2, 3)] == values, (at, name)
            assert [value for value in seen.values if value in (1, 2, 3)] in ([], [1, 2, 3]), (at, name)


@pytest.mark.parametrize(("durability", "by"), [("disk", ctrl_c), ("fsync", ctrl_c), ("disk", alarm)])
def test_ctrl_c_at_any_call_of_a_write_ends_that_call_alone(durability: str, by: Callable[[], None]) -> None:
    """S-73, INV-1, S-352: the engine goes on, and its close is a clean one."""
    for at in count(1):
        sim, engine = written(durability)
        signal = strike(at, by)
        with interruptible(), signal.around():
            kit.write(engine, 1, 2, 3, name="a")
        assert signal.raised == signal.struck
        for name in ("b", "a"):
            kit.spawn(partial(kit.write, engine, "after", name=name)).result(kit.WAIT_S)
        told: dict[str, list[object]] = {name: ["before", "after"] for name in ("a", "b")}
        check_every_end(sim, engine, durability, told, at)
        if not signal.struck:
            return


def follow(engine: Engine) -> None:
    with LogWatch(engine, {"a": 0}, None, "eventual") as watch:
        next(watch)


CALLS: dict[str, Callable[[Engine], object]] = {
    "read": lambda engine: engine.read("a"),
    "claim": lambda engine: engine.claim("q", "n", 2),
    "delete": lambda engine: engine.delete("a", before_seq=6),
    "configure": lambda engine: engine.put_topic("a", {"durability": "disk", "max_records": 4}),
    "make": lambda engine: engine.put_topic("c", {"durability": "fsync"}),
    "remove": lambda engine: engine.delete_topic("a"),
    "route": lambda engine: engine.put_router("r", {"source": "a", "dest": "b"}),
    "metrics": lambda engine: engine.metrics(),
    "checkpoint": lambda engine: engine.checkpoint(full=True),
    "tick": lambda engine: engine.tick(),
    "follow": follow,
    "aio": lambda engine: asyncio.run(engine.aio.append("a", [{"data": 1}])),
    "aio metrics": lambda engine: asyncio.run(engine.aio.metrics()),
}


@in_generators
@pytest.mark.parametrize("call", list(CALLS))
def test_ctrl_c_at_any_call_of_anything_else_ends_that_alone(call: str) -> None:
    """S-73: nobody is refused, and nobody waits."""
    for at in count(1):
        sim = SimFs(7)
        engine = opened(sim)
        engine.put_topic("a", {"durability": "fsync", "ttl_ms": 1, "max_records": 5})
        engine.put_topic("b", {"durability": "fsync"})
        engine.put_topic("q", {"durability": "fsync", "type": "queue"})
        kit.each(engine, 8, name="a")
        kit.each(engine, 3, name="q")
        signal = strike(at, ctrl_c)
        with interruptible(), signal.around():
            CALLS[call](engine)
        for name in ("q", "b"):
            kit.spawn(partial(kit.write, engine, 9, name=name)).result(kit.WAIT_S)
        kit.spawn(partial(engine.read, "b")).result(kit.WAIT_S)
        assert engine.health().ready, at
        kit.spawn(engine.close).result(kit.WAIT_S)
        with opened(sim) as again:
            assert (again.state("b").head_seq, again.state("q").head_seq) >= (1, 4), at
        if not signal.struck:
            return


def test_a_watch_that_goes_on_behind_ctrl_c_passes_over_nothing() -> None:
    """U-20, 01 §17: what was taken and not handed on yet comes next."""
    for at in count(1):
        engine = opened(SimFs(7))
        engine.put_topic("a", {"durability": "disk"})
        kit.each(engine, 4, name="a")
        signal, seen = strike(at, ctrl_c), list[int]()

        def more(watch: LogWatch, seen: list[int], until: int) -> None:
            while until not in seen:
                event = next(watch)
                if isinstance(event, TopicRecord):
                    seen += [event.seq]

        with LogWatch(engine, {"a": 0}, None, "eventual") as watch:
            with interruptible(), signal.around():
                more(watch, seen, 4)
            reached = watch.cursors["a"]
            assert seen == list(range(1, reached + 1)), at
            kit.each(engine, 1, name="a")
            kit.spawn(partial(more, watch, seen, 5)).result(kit.WAIT_S)
        assert seen == [1, 2, 3, 4, 5], at
        engine.close()
        if not signal.struck:
            return


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
            owner.do(change)

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
        owner.do(again)
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


@in_generators
@pytest.mark.parametrize(("call", "step"), [("names", 1), ("metrics", 11), ("read", 3), ("close", 29)])
def test_a_handler_may_close_the_engine_whatever_it_is_doing(call: str, step: int) -> None:
    """S-352: `close` itself too; and neither waits for the other."""
    calls = {"names": lambda engine: list(engine.topics()), "close": lambda engine: engine.close(), **CALLS}
    for at in count(1, step):
        sim = SimFs(7)
        engine = opened(sim)
        engine.put_topic("a", {"durability": "fsync"})
        kit.each(engine, 3, name="a")
        strike_of = strike(at, ctrl_c)
        with interruptible():
            handlers.signal(handlers.SIGINT, lambda number, frame, engine=engine: engine.close())
            with strike_of.around(), suppress(EngineClosed):
                calls[call](engine)
        engine.close()
        with opened(sim) as again:
            assert again.state("a").head_seq == 3, at
        if not strike_of.struck:
            return
