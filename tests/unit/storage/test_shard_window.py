"""The adaptive window: how long a sync waits for company under pressure (S-75, 08 L2)."""

from __future__ import annotations

import pytest

from tests.unit.storage import kit
from topics.storage import shard as shards

LANE, HELPER = "wal-00", "wal-helper"
HALF = kit.FILE_BYTES // 2


@pytest.fixture
def pressed(stepped: kit.Run) -> kit.Run:
    """A shard at a pressure with a slice of 5.25 ms; the clock moves by the test only."""
    stepped.shard.pressure = 0.7
    return stepped


@pytest.mark.parametrize(
    ("pressure", "slice_ns"),
    [(0.4000001, 500_000), (0.555, 2_954_167), (0.7, 5_250_000), (1.0, 10_000_000), (3.0, 10_000_000)],
)
def test_the_slice_follows_the_pressure(pressure: float, slice_ns: int) -> None:
    """08 L2: 0.5 + 9.5 · clamp01((pressure − 0.4) / 0.6) ms."""
    assert shards.commit_slice_ns(pressure) == pytest.approx(slice_ns, abs=10)


@pytest.mark.parametrize("pressure", [0.0, 0.4])
def test_without_pressure_a_lone_durable_write_syncs_at_once(stepped: kit.Run, pressure: float) -> None:
    """S-75: up to and including 0.4 there is no timer."""
    stepped.shard.pressure = pressure
    stepped.write(durable=True)
    assert stepped.owner.waiting(LANE) == 1


def test_under_pressure_a_sync_waits_for_its_slice(pressed: kit.Run) -> None:
    """S-75: and what arrives meanwhile shares it."""
    syncs = pressed.shard.counters.fsyncs
    first = pressed.put(durable=True)
    pressed.tick(3)
    second = pressed.put(durable=True)
    pressed.tick(2)
    assert [first.finished, second.finished] == [False, False]
    pressed.tick(1)
    assert [first.finished, second.finished] == [True, True]
    assert pressed.shard.counters.fsyncs == syncs + 1


def test_the_slice_begins_when_the_sync_could(pressed: kit.Run) -> None:
    """S-75: arrivals gather while a sync runs; the next one waits from its end on."""
    pressed.write(durable=True)
    pressed.disk.clock.advance(6)
    pressed.shard.tick()
    report = pressed.owner.work(LANE)
    behind = pressed.write(durable=True)
    pressed.disk.clock.advance(2)
    report()
    pressed.owner.run()
    pressed.tick(5)
    assert not behind.finished
    pressed.tick(1)
    assert behind.finished


def test_no_durable_submission_waits_for_company_longer_than_10_ms(pressed: kit.Run) -> None:
    """S-75: gc_max counts from the oldest one, also from before a sync that ran meanwhile ended."""
    pressed.write(durable=True)
    pressed.disk.clock.advance(6)
    pressed.shard.tick()
    report = pressed.owner.work(LANE)
    behind = pressed.write(durable=True)
    pressed.disk.clock.advance(7)
    report()
    pressed.owner.run()
    pressed.tick(2)
    assert not behind.finished
    pressed.tick(1)
    assert behind.finished


def test_a_submission_that_waited_for_a_rotation_does_not_wait_again(pressed: kit.Run) -> None:
    """S-75: 10 ms since it was accepted, not since it was written."""
    pressed.write(HALF)
    pressed.owner.step(HELPER)
    pressed.tick(kit.BACKGROUND_MS)
    late = pressed.write(HALF, durable=True)
    pressed.disk.clock.advance(12)
    pressed.settle()
    assert late.finished


def test_when_the_pressure_goes_the_wait_is_over(pressed: kit.Run) -> None:
    """S-75: at the next look at the clock."""
    ticket = pressed.put(durable=True)
    assert not ticket.finished
    pressed.shard.pressure = 0.1
    pressed.tick()
    assert ticket.finished


def test_what_is_not_durable_opens_no_window(pressed: kit.Run) -> None:
    """S-75, S-76: background syncs keep their own bound."""
    syncs = pressed.shard.counters.fsyncs
    pressed.put()
    pressed.tick(kit.BACKGROUND_MS - 1)
    assert pressed.shard.counters.fsyncs == syncs
    pressed.tick(1)
    assert pressed.shard.counters.fsyncs == syncs + 1


def test_a_sync_for_another_reason_ends_the_wait(pressed: kit.Run) -> None:
    """S-75: rotation syncs what waits; the window of what follows begins anew."""
    waiting = pressed.write(HALF, durable=True)
    pressed.owner.step(HELPER)
    pressed.tick(4)
    behind = pressed.write(HALF, durable=True)
    pressed.settle()
    assert waiting.finished
    assert not behind.finished
    pressed.tick(5)
    assert not behind.finished
    pressed.tick(1)
    assert behind.finished


def test_a_call_to_sync_does_not_wait(pressed: kit.Run) -> None:
    """S-73: closing asks for it and wants it now."""
    ticket = pressed.write(durable=True)
    pressed.shard.sync()
    pressed.settle()
    assert ticket.finished


def test_a_latched_shard_has_no_window(pressed: kit.Run) -> None:
    """S-78."""
    pressed.disk.fail("fdatasync")
    pressed.put(durable=True)
    pressed.tick(10)
    assert pressed.state == "read_only"
    pressed.tick(10)
    assert pressed.shard.next_due_ns() is None
