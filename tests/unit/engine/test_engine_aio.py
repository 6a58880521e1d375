"""Operations of an engine on an event loop: those of a pass begin together, and each has its own outcome [U-20]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.unit.engine import kit
from tests.unit.strike import Strike, ctrl_c, interruptible
from topics.engine.engine import STARTS_MAX, Engine
from topics.errors import EngineClosed, TopicNotFound
from topics.testing import SimFs


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.open(kit.PATH, fs=SimFs(7)) as one:
        one.put_topic("a", {"durability": "disk"})
        yield one


async def outcomes(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def writes_to_the_log(engine: Engine) -> int:
    assert engine.core.wal is not None
    return sum(shard.counters.batches for shard in engine.core.wal.shards)


def test_what_a_pass_begins_is_one_change_in_its_order(engine: Engine) -> None:
    """S-85: one write to the log, whoever they are for."""
    before = writes_to_the_log(engine)
    aio = engine.aio
    done = asyncio.run(outcomes(*(aio.append("a", [{"data": n}]) for n in range(20))))
    assert [one.first_seq for one in done] == list(range(1, 21))
    assert writes_to_the_log(engine) == before + 1


def test_each_has_its_own_outcome(engine: Engine) -> None:
    aio = engine.aio
    first, second, third = asyncio.run(
        outcomes(aio.append("a", [{"data": 1}]), aio.read("b"), aio.append("a", [{"data": 2}]))
    )
    assert (first.first_seq, third.first_seq) == (1, 2)
    assert isinstance(second, TopicNotFound)


def test_one_that_fails_in_a_way_of_its_own_keeps_nobody_else_waiting(engine: Engine) -> None:
    def broken(done: Callable[[Any], None]) -> None:
        raise LookupError

    aio = engine.aio
    calls = (aio._run(broken), aio.append("a", [{"data": 1}]))

    async def wait() -> list[Any]:
        return await asyncio.wait_for(outcomes(*calls), kit.WAIT_S)

    failed, done = asyncio.run(wait())
    assert isinstance(failed, LookupError)
    assert done.head_seq == 1


def test_what_nobody_waits_for_when_it_would_begin_is_not_done(engine: Engine) -> None:
    """A write that was called off at once is not in the log."""

    async def run() -> None:
        tasks = [asyncio.ensure_future(engine.aio.append("a", [{"data": n}])) for n in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())
    assert kit.everything(engine, "a").values == [1]
    assert not engine.aio.waiting()


@pytest.mark.parametrize("end", ["here", "aside"])
def test_closing_finishes_what_the_loop_has_begun(engine: Engine, end: str) -> None:
    """S-352"""

    async def run() -> list[Any]:
        tasks = [asyncio.ensure_future(engine.aio.append("a", [{"data": n}])) for n in range(STARTS_MAX + 1)]
        await asyncio.sleep(0)
        if end == "here":
            engine.close()
        else:
            await engine.aio.close()
        return [(await asyncio.wait_for(one, kit.WAIT_S)).first_seq for one in tasks]

    assert asyncio.run(run()) == list(range(1, STARTS_MAX + 2))


@pytest.mark.parametrize("end", ["closed elsewhere", "struck"])
def test_an_engine_that_ends_before_it_begins_refuses_it(engine: Engine, end: str) -> None:
    def strike() -> None:
        raise KeyboardInterrupt

    async def run() -> None:
        task = asyncio.ensure_future(engine.aio.append("a", [{"data": 1}]))
        await asyncio.sleep(0)
        if end == "closed elsewhere":
            kit.spawn(engine.close).result(kit.WAIT_S)
        else:
            with pytest.raises(KeyboardInterrupt):
                engine.owner.do(strike)
        with pytest.raises(EngineClosed):
            await asyncio.wait_for(task, kit.WAIT_S)

    asyncio.run(run())
    engine.close()


def test_a_loop_that_is_over_takes_nothing_along(engine: Engine) -> None:
    """What was begun by it is done, and others are told of theirs."""

    async def leave() -> None:
        task = asyncio.ensure_future(engine.aio.append("a", [{"data": 1}]))
        await asyncio.sleep(0)
        assert not task.done()

    for _ in range(3):
        asyncio.run(leave())
    assert asyncio.run(engine.aio.append("a", [{"data": 2}])).head_seq <= 4
    assert kit.spawn(partial(engine.read, "a")).result(kit.WAIT_S).head_seq <= 4


async def wait(tasks: list[Any]) -> None:
    await asyncio.wait_for(asyncio.wait(tasks), kit.WAIT_S)


def test_ctrl_c_in_a_loop_that_is_gone_on_with_leaves_nobody_waiting() -> None:
    """S-73: as in a notebook, where the loop outlives what is run on it."""
    ours = tuple(str(Path(topics.__file__).parent / name) for name in ("engine", "storage", "interrupts.py"))
    for at in count(1):
        engine = Engine.open(kit.PATH, fs=SimFs(7))
        engine.put_topic("a", {"durability": "disk"})
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(engine.aio.append("a", [{"data": n}])) for n in range(3)]
        strike, first = (
            Strike(at, lambda file: file.startswith(ours), by=ctrl_c, called=True),
            loop.create_task(wait(tasks)),
        )
        with interruptible(), strike.around():
            loop.run_until_complete(first)
        later = loop.create_task(engine.aio.append("a", [{"data": 3}]))
        loop.run_until_complete(wait([first, later]))
        struck = [one for one in tasks if isinstance(one.exception(), KeyboardInterrupt)]
        assert len(struck) <= 1, at
        assert [one for one in tasks if one.exception() is None] == [one for one in tasks if one not in struck], at
        assert later.result().head_seq >= len(tasks) - len(struck) + 1, at
        assert not engine.aio.waiting(), at
        loop.close()
        engine.close()
        if not strike.struck:
            return


def test_signals_that_end_the_wait_for_other_threads_leave_nobody_waiting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: what was begun is begun when the lock is there."""
    do, ends = engine.owner.do, [KeyboardInterrupt] * 5

    def struck(work: Callable[[], Any]) -> Any:
        if ends:
            raise ends.pop()
        return do(work)

    monkeypatch.setattr(engine.owner, "do", struck)
    loop = asyncio.new_event_loop()
    task = loop.create_task(wait([loop.create_task(engine.aio.append("a", [{"data": n}])) for n in range(3)]))
    while ends:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
    loop.run_until_complete(task)
    loop.close()
    assert kit.everything(engine, "a").values == [0, 1, 2]


def test_bridges_of_loops_that_are_closed_go() -> None:
    """13 §6: with what they still waited for."""
    with Engine.open(kit.PATH, fs=SimFs(7)) as engine:
        engine.put_topic("a", {"durability": "fsync"})
        for _ in range(20):
            loop = asyncio.new_event_loop()
            task = loop.create_task(engine.aio.append("a", [{"data": 1}]))
            loop.run_until_complete(asyncio.sleep(0))
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
            loop.close()
            assert len(engine.aio._bridges) <= 1
