"""Histories of `$deletes` and `$loss` on the simulated disk, at every disk call (15 C33) [A-20, A-22]."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import Store, at_every_disk_call, read_all
from topics.model import DELETES

TTL_MS = 20_000


def told(store: Store) -> list[dict[str, Any]]:
    """What `$deletes` has."""
    if DELETES not in store.engine.topics(system=True):
        return []
    seen = read_all(store.engine, DELETES)
    assert seen.gaps == [], f"{store.label}: {DELETES} tells {seen.gaps}"
    return [record.data for record in seen.records.values()]


class History:
    """A topic whose records expire, and deletes of it; survivors know which of them were answered."""

    def __init__(self, **config: Any) -> None:
        self.store = Store(segment_max_events=4, **config).start()
        self.answered: list[dict[str, Any]] = []
        self.asked = 0

    def delete(self, topic: str, **selector: Any) -> None:
        head = self.store.engine.state(topic).head_seq
        self.asked += 1
        self.store.engine.delete(topic, **selector)
        match = selector.get("match")
        self.answered.append(
            {
                "topic": topic,
                "before_seq": selector.get("before_seq"),
                "seqs": selector.get("seqs"),
                "match": None if match is None else ["tag", "Eq", match],
                "bound": head + 1,
            }
        )

    def drop(self, topic: str) -> None:
        self.asked += 1
        self.store.engine.delete_topic(topic)
        self.answered.append({"topic": topic, "drop": True})

    def is_told(self, fork: Store) -> None:
        """Everything that was answered is there, in its order, and nothing that was not asked for."""
        found = {(one["id"], one["dn"]): one for one in told(fork)}
        said = [{name: value for name, value in one.items() if name in _ASKED} for one in found.values()]
        for one in self.answered:
            assert one in said, f"{fork.label}: {one} is not among {said}"
        assert len(found) <= self.asked
        for topic in {one["topic"] for one in self.answered}:
            mine = [(one["id"], one["dn"]) for one in found.values() if one["topic"] == topic]
            assert mine == sorted(mine), f"{fork.label}: numbers {mine}"

    def judge(self, fork: Store) -> None:
        """Killed once more before anything is told, then everything expires and its segments are dropped."""
        fork.start().kill().start()
        fork.tick(TTL_MS + 10_000, step_ms=5000)
        for _ in range(2):
            fork.engine.checkpoint(full=True)
            fork.tick(1000)
        if "t" in fork.engine.topics():
            assert fork.engine.state("t").count == 0
            left = [one.first for one in fork.segments("t") if one.first <= max(fork.written["t"])]
            assert left == [], f"{fork.label}: TTL left the segments {left}"
        self.is_told(fork)
        fork.crash("random", 3).start()
        fork.tick(1000)
        self.is_told(fork)


_ASKED = {"topic", "before_seq", "seqs", "match", "bound", "drop"}


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("shards", [1, 3])
def test_c33_a_delete_is_told_although_ttl_dropped_its_segment(shards: int, durability: str) -> None:
    """C33, A-20: the record is in `$deletes` whenever the process or the machine died after the answer.

    Of class `disk` that is promised once the frame is synced, which is where the sweep begins.
    """
    history = History(wal_shards=shards)
    store = history.store
    store.put("t", durability, ttl_ms=TTL_MS)
    store.put("gone")
    store.write("t", 8, tag="a", size=40)
    store.write("t", 4, tag="b", size=40)
    store.engine.checkpoint(full=True)
    if durability == "fsync":
        with at_every_disk_call(store, history.judge):
            history.delete("t", match="a")
            history.delete("t", seqs=[9, 11])
            history.drop("gone")
    else:
        history.delete("t", match="a")
        history.delete("t", seqs=[9, 11])
        history.drop("gone")
        store.clock.advance(20)
        store.engine.tick()
    with at_every_disk_call(store, history.judge):
        store.tick(1100, step_ms=1100)
    history.is_told(store)
    with at_every_disk_call(store, history.judge):
        store.engine.checkpoint(full=True)
    store.tick(TTL_MS + 6000, step_ms=2000)
    history.is_told(store)
    for fork in store.ends():
        history.judge(fork)


def test_c33_a_kill_before_the_record_costs_nothing_at_any_disk_call_of_the_next_start() -> None:
    """C33, 06 §14 step 13: the queue of what is due survives any number of interrupted starts."""
    history = History()
    store = history.store
    store.put("t", ttl_ms=TTL_MS)
    store.write("t", 8, tag="a", size=40)
    store.write("t", 4, tag="b", size=40)
    store.engine.checkpoint(full=True)
    history.delete("t", match="a")
    store.kill()
    with at_every_disk_call(store, history.judge):
        store.start()
        store.tick(100)
    history.is_told(store)
    with at_every_disk_call(store, history.judge):
        store.stop()
    history.is_told(store.start())


def test_c33_rows_of_a_snapshot_replace_the_log() -> None:
    """C33, A-20, S-192: no log is kept for a delete that is in `dp`; it is told all the same."""
    history = History(deletes_gather_ms=10_000_000)
    store = history.store
    store.put("t", ttl_ms=TTL_MS)
    store.write("t", 8, tag="a", size=40)
    store.write("t", 4, tag="b", size=40)
    history.delete("t", match="a")
    with at_every_disk_call(store, lambda fork: _later(history, fork), crashes=1, chosen=lambda n, _: n % 3 == 0):
        store.trim()
    assert [row.delete_number for row in store.snapshots()[-1].header.pending_deletes] == [1]
    for fork in store.ends():
        _later(history, fork)


def _later(history: History, fork: Store) -> None:
    fork.config["deletes_gather_ms"] = 100
    history.judge(fork)


def test_a_crash_while_losses_are_told_costs_the_store_nothing() -> None:
    """[A-22] Advice: at every disk call the store starts, and what `$loss` has happened."""
    store = Store().start()
    store.put("t", cap_records=3)
    store.write("t", 9)

    def judge(fork: Store) -> None:
        fork.start()
        assert fork.engine.state("t").count == 3
        fork.tick(11_000, step_ms=11_000)
        if "$loss" in fork.engine.topics(system=True):
            for record in read_all(fork.engine, "$loss").records.values():
                assert (record.data["gap_from"], record.data["gap_to"], record.data["reason"]) == (1, 6, "cap")

    with at_every_disk_call(store, judge, crashes=2):
        store.tick(10_000, step_ms=10_000)
    assert len(read_all(store.engine, "$loss").records) == 1
