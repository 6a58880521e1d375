"""After a start the counts of a snapshot are believed, and later looked behind (06 §14 step 6)."""

from __future__ import annotations

import logging

import msgspec
import pytest

from tests.unit.engine import kit
from topics.engine import audit
from topics.engine.engine import Engine
from topics.model import new
from topics.storage.descriptor import Segment
from topics.storage.segments import TopicSegments

SEGMENTS, EVENTS = 6, 3
A_MINUTE_MS = audit.AFTER_NS // 1_000_000


def wrong_snapshot(monkeypatch: pytest.MonkeyPatch, place: str = "sealed") -> kit.Store:
    """A store whose snapshot counts one live record too many in each of its segments, opened again."""
    store = kit.Store(place)
    store.put()
    kit.write(store.engine, *range(SEGMENTS * EVENTS + 1))
    store.engine.delete(kit.TOPIC, seqs=[2])
    store.settle()
    store.clock.advance(60_000)
    right = TopicSegments._row

    def wrong(self: TopicSegments, segment: Segment) -> object:
        row = right(self, segment)
        return (
            msgspec.structs.replace(row, live=row.live + 1, live_bytes=row.live_bytes + 10) if segment.sealed else row
        )

    with monkeypatch.context() as patch:
        patch.setattr(TopicSegments, "_row", wrong)
        store.engine.close()
    store.open()
    return store


@pytest.mark.parametrize("place", ["sealed", "cold"])
def test_wrong_counts_are_corrected_a_minute_after_the_start(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """06 §14 step 6, also where the data are in the cold tier."""
    store = wrong_snapshot(monkeypatch, place)
    before = kit.numbers(store.engine)
    assert store.engine.state(kit.TOPIC).count == SEGMENTS * EVENTS + SEGMENTS
    caplog.set_level(logging.WARNING, "topics.engine")
    store.pass_time(A_MINUTE_MS - 1000)
    assert kit.numbers(store.engine) == before
    store.pass_time(2000)
    assert store.engine.state(kit.TOPIC).count == SEGMENTS * EVENTS
    assert store.engine.audit.corrected == SEGMENTS
    assert "had 4 live records" in caplog.text
    right = kit.numbers(store.engine)
    store.clock.advance(60_000)
    assert kit.numbers(store.reopen()) == right


def test_right_counts_and_what_changes_meanwhile_are_left_as_they_are() -> None:
    store = kit.Store("sealed")
    store.put()
    kit.write(store.engine, *range(SEGMENTS * EVENTS + 1))
    store.settle()
    engine = store.reopen()
    engine.delete(kit.TOPIC, seqs=[1])
    known = kit.numbers(engine)
    with engine._owner:
        engine.audit.begin()
    assert kit.numbers(engine) == known
    assert (engine.audit.looked_at, engine.audit.corrected) == (SEGMENTS - 1, 0)
    engine.checkpoint(full=True)
    with engine._owner:
        engine.audit.begin()
    assert kit.numbers(engine) == known
    assert engine.audit.corrected == 0


def test_an_index_that_is_damaged_or_cannot_be_read_is_left_to_its_readers() -> None:
    """Nothing is believed of it, the others are looked at, and records stay readable."""
    store = kit.Store("sealed")
    store.put()
    kit.write(store.engine, *range(SEGMENTS * EVENTS + 1))
    store.settle()
    engine = store.reopen()
    store.fail("pread", path=".idx")
    with engine._owner:
        engine.audit.begin()
    assert (engine.audit.looked_at, engine.audit.corrected) == (SEGMENTS - 1, 0)
    store.mend()
    assert len(kit.everything(engine).seqs) == SEGMENTS * EVENTS + 1


def test_segments_and_topics_that_go_while_it_runs_are_passed_over(tmp_path: object) -> None:
    """With threads: what is read when it is gone already tells nothing."""
    engine: Engine = kit.open_real(tmp_path, segment_max_events=3)
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "fsync"})
        engine.append(name, [new(n) for n in range(30)])
    engine.checkpoint(full=True)
    with engine._owner:
        engine.audit.begin()
    engine.delete_topic("a")
    engine.delete("b", before_seq=15)
    engine._owner.wait_idle(kit.WAIT_S)  # type: ignore[union-attr]
    assert engine.audit.corrected == 0
    assert engine.state("b").count == 16
    engine.close()
