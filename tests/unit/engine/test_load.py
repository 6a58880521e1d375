"""The governor at work in an engine: when it looks, what it sees, and who is told (08 §5, [D-40, D-41, S-75])."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.engine import kit
from tests.unit.engine.test_admission import Slow
from topics.engine import read as reading
from topics.storage.shard import Shard

TOPIC = kit.TOPIC


@pytest.fixture
def store() -> Iterator[Slow]:
    slow = Slow()
    slow.put()
    yield slow
    slow.release()
    slow.engine.close()


def shard_of(store: Slow) -> Shard:
    assert store.core.wal is not None
    return store.core.wal.shards[0]


def poll(store: Slow) -> list[object]:
    """A reader that waits for the next record."""
    outcome: list[object] = []
    head = store.core.names[TOPIC].head
    query = reading.Query.parse(TOPIC, head, None, 10, 1 << 20, None, 30_000, store.core.limits)
    with store.owner:
        reading.read(store.core, query, outcome.append)
    return outcome


def test_an_idle_engine_does_not_look(store: Slow) -> None:
    """[D-90] Writes that nobody waits for are no reason either."""
    assert store.core.alarms.next_ns() is None
    for n in range(10):
        store.write(n)
    assert store.core.alarms.next_ns() is None
    store.pass_ms(1_000)
    assert store.core.alarms.next_ns() is None


def test_a_delivery_is_looked_at_and_then_no_more(store: Slow) -> None:
    """08 §5: 100 ms after it, and once more to see that it is over."""
    outcome = poll(store)
    store.core.pump.scheduler.latency_ms = 0.04
    store.write(1)
    assert len(outcome) == 1
    assert store.core.alarms.next_ns() == store.clock.monotonic_ns() + 100_000_000
    store.pass_ms(100)
    assert store.core.alarms.next_ns() == store.clock.monotonic_ns() + 100_000_000
    store.pass_ms(100)
    assert store.core.alarms.next_ns() is None
    assert store.core.load.governor.pressure == 0


def test_a_full_queue_presses_and_everybody_is_told_until_it_is_over(store: Slow) -> None:
    """[D-40, D-41] The ladder up and down, on the clock."""
    store.fill()
    store.write(3, disable_backpressure=True)
    core, shard = store.core, shard_of(store)
    up = []
    for _ in range(6):
        store.pass_ms(100)
        up.append((round(core.load.governor.pressure, 4), core.load.level(), core.pump.scheduler.suspended))
        assert shard.pressure == core.admission.pressure == core.load.governor.pressure
    assert up == [
        (0.5, 2, False),
        (0.75, 2, False),
        (0.875, 2, False),
        (0.9375, 2, False),
        (0.9688, 3, True),
        (0.9844, 3, True),
    ]
    store.write(4)
    assert core.load.level() == 4, "it is refused"
    store.release()
    down = []
    while core.alarms.next_ns() is not None:
        store.pass_ms(100)
        down.append(core.load.governor.pressure)
    assert down == sorted(down, reverse=True)
    assert down[-1] == shard.pressure == core.admission.pressure == 0
    assert core.load.level() == 0
    assert not core.pump.scheduler.suspended
    assert len(down) < 30


def test_a_queue_that_is_half_full_is_noticed_without_a_refusal() -> None:
    """08 §5: the fullest shard's queue, by submissions or by bytes; looked at when the engine ticks."""
    store = Slow(queue_submissions=4)
    store.put()
    store.fill()
    store.pass_ms(1)
    assert store.core.alarms.next_ns() is None
    store.write(3)
    store.pass_ms(1)
    assert store.core.alarms.next_ns() is not None
    store.pass_ms(100)
    assert store.core.load.governor.pressure == pytest.approx(0.25)
    store.release()
    store.engine.close()


def test_a_late_loop_presses_while_there_is_something_to_do(store: Slow) -> None:
    """08 §5: the larger of latency and lag; a lull is not kept awake by it."""
    load = store.core.load
    load.loop_lag_ms = 2.5
    store.pass_ms(1_000)
    assert load.governor.pressure == 0
    poll(store)
    store.write(1)
    store.pass_ms(100)
    assert load.governor.pressure == pytest.approx(0.25)
    store.pass_ms(100)
    assert load.governor.pressure == pytest.approx(0.2)


def test_a_commit_waits_for_company_under_pressure_and_only_then(store: Slow) -> None:
    """[S-75], L2: at 0.4 and below a durable write is synced at once."""
    load = store.core.load
    for pressure, wait_ms in ((0.4, 0), (1.0, 10)):
        load.governor.pressure = pressure
        load.hand_on()
        asked = store.write(pressure)
        assert bool(asked) == (not wait_ms)
        store.pass_ms(wait_ms)
        assert asked[0].count == 1


def test_an_engine_under_pressure_closes_cleanly(store: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """[S-352] Nothing waits for a clock that nobody moves any more."""
    load = store.core.load
    load.governor.pressure, load.governor.deferring = 1.0, True
    load.hand_on()
    asked = store.write(1)
    with caplog.at_level(logging.WARNING):
        store.engine.close()
    assert asked[0].last_seq == 1
    assert not caplog.records
    assert load.governor.pressure == 0
    engine = store.open()
    assert engine.recovered.gaps == ()
    assert kit.everything(engine).values == [1]
    engine.close()
