"""Queues without jobs cost nothing: no alarm, no timer that rings more often, no work when it does [LSE-2]."""

from __future__ import annotations

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.testing import ManualClock

MANY = 10_000


def opened() -> tuple[Engine, ManualClock]:
    clock = ManualClock()
    return Engine.open(None, EngineConfig(max_topics=MANY + 1), clock=clock), clock


def test_ten_thousand_idle_queues_add_no_timer() -> None:
    """Issue of queues: the engine sleeps as long as an empty one, before and after jobs came and went."""
    empty, _ = opened()
    full, clock = opened()
    for n in range(MANY):
        full.put_topic(f"q{n}", {"type": "queue"})
    assert len(full.core.topics) == MANY
    empty.tick()
    full.tick()
    assert full.core.alarms.next_ns() is None
    assert full.idle_s() == empty.idle_s()
    for name in ("q0", f"q{MANY - 1}"):
        full.append(name, [{"data": 1}])
        (job,) = full.claim(name, "w", 1, 1000).jobs
        assert full.ack(name, "w", [job.seq]).acked == 1
    assert full.core.alarms.next_ns() is None
    clock.advance(60_000)
    full.tick()
    assert full.core.alarms.next_ns() is None
    assert full.idle_s() is not None


def test_a_tick_looks_at_no_idle_queue() -> None:
    """What is due is known, not searched for: queues are not gone through."""
    engine, clock = opened()
    looked: list[str] = []

    class Watched(dict[int, object]):
        """Notices whoever goes through all topics."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            looked.append("iter")
            return super().__iter__()

        def values(self):  # type: ignore[no-untyped-def]
            looked.append("values")
            return super().values()

        def items(self):  # type: ignore[no-untyped-def]
            looked.append("items")
            return super().items()

    for n in range(100):
        engine.put_topic(f"q{n}", {"type": "queue"})
    engine.core.topics = Watched(engine.core.topics)  # type: ignore[assignment]
    for _ in range(100):
        clock.advance(1000)
        engine.tick()
    assert looked == []
