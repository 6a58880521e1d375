"""C10, C15, C16, C26, C27: deleted and recreated names, class changes, expiry on a latched shard, cap floors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import Seen, Store, at_every_disk_call, is_sound, is_whole, read_all
from topics.errors import TopicNotFound, TopicsError


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("snapshots", range(32))
def test_c10_a_recreated_name_starts_empty_wherever_snapshots_fall(snapshots: int, durability: str) -> None:
    """C10, EPO-1, S-276, replay table row 1: frames of the deleted topic are skipped, the new one's are kept."""

    def step(n: int) -> None:
        if snapshots >> n & 1:
            store.write("keep")
            store.engine.snapshot()

    store = Store().start()
    store.put("keep")
    store.write("keep", 2)  # its tail is small: it stays in the WAL and holds the replay position back
    store.put("t", durability)
    store.write("t", 30, batch=3, tag="old")
    step(0)
    store.write("t", 10, tag="old")
    store.engine.delete("t", match="old", seqs=[4, 5])
    step(1)
    assert store.engine.delete_topic("t")
    step(2)
    store.tick(12_000)
    step(3)
    store.written["t"], store.deleted["t"] = {}, set()
    store.put("t", durability)
    assert store.write("t", 5) == [1, 2, 3, 4, 5]
    step(4)
    store.write("t", 2)
    for fork in [store.killed(), *store.crashes()]:
        fork.start()
        is_whole(fork, "keep")
        if durability == "fsync" or fork.label == "kill":
            is_whole(fork, "t")
        assert all(record.tag is None for record in fork.look("t").records.values()), fork.label
    store.kill().start()
    store.kill().start()
    assert is_whole(store, "t").seqs == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_c10_a_deleted_topic_is_no_damage_at_the_next_start(end: str) -> None:
    """C10, S-250, S-276: its segments are missing because they were asked to go; nothing counts or reports that."""
    store = Store().start()
    store.put("keep")
    store.put("t")
    store.write("t", 30, tag="old")
    store.engine.checkpoint(full=True)
    store.engine.delete_topic("t")
    store.write("keep")
    for _ in range(2):
        store.end(end).start()
        is_whole(store, "keep")
        is_sound(store)
        assert list(store.engine.topics()) == ["keep"]


@pytest.mark.parametrize("full", [False, True])
def test_c10_deleting_and_recreating_is_whole_or_nothing_at_every_disk_call(full: bool) -> None:
    """C10, S-276, DUR-9: the old data until the delete is durable, never again afterwards, never mixed with the new."""
    store = Store().start()
    store.put("keep")
    store.write("keep", 2)
    store.put("t")
    store.write("t", 10, tag="old")
    old = store.look("t")
    phase = "old"

    def judge(fork: Store) -> None:
        fork.start()
        is_whole(fork, "keep")
        try:
            seen = fork.look("t")
        except TopicNotFound:
            assert phase in ("deleting", "deleted", "creating"), f"{fork.label}: the topic is gone while {phase}"
            return
        if phase in ("old", "deleting") and seen == old:
            return
        assert phase != "old", f"{fork.label}: {seen}"
        assert phase in ("creating", "new"), f"{fork.label}: {seen} while {phase}"
        if phase == "new":
            is_whole(fork, "t")
        else:
            assert seen.records == {}

    with at_every_disk_call(store, judge):
        store.engine.checkpoint(full=full)
        phase = "deleting"
        store.engine.delete_topic("t")
        phase = "deleted"
        store.written["t"] = {}
        store.engine.snapshot()
        store.tick(2000)
        phase = "creating"
        store.put("t")
        phase = "new"
        store.write("t", 3)
        store.engine.snapshot()
    is_whole(store, "t")


@pytest.mark.parametrize("end", ["kill", "stop", "crash"])
@pytest.mark.parametrize(
    "change",
    [
        {"durability": "ephemeral", "cap_records": 20},
        {"durability": "ephemeral", "cap_records": 10, "ttl_ms": 10**9},
        {"durability": "memory", "cap_records": 10},
        {"durability": "disk", "cap_records": 10},
        {"durability": "fsync", "cap_records": 10},
        {"durability": "fsync"},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_c15_writes_after_the_restart_of_a_capped_ephemeral_topic_are_visible(change: dict[str, Any], end: str) -> None:
    """C15, DUR-7, S-102, S-242: floors that outlive the records never hide what comes later."""
    store = Store().start()
    store.put("t", "ephemeral", cap_records=10)
    store.write("t", 400, batch=4)
    assert store.look("t").seqs == list(range(391, 401))
    store.put("t", **change)
    store.end(end).start()
    gone = store.look("t")
    assert gone.records == {}, "ephemeral records are gone at any restart"
    new = [store.engine.append("t", [{"data": n}]).first_seq for n in range(3)]
    assert new == [gone.head + 1, gone.head + 2, gone.head + 3]
    after = store.look("t")
    assert {seq: record.data for seq, record in after.records.items()} == dict(zip(new, range(3), strict=True))
    assert [record.data for record in store.engine.read("t", gone.head).records] == [0, 1, 2]
    if change["durability"] == "fsync":
        for fork in store.ends():
            assert fork.start().look("t").records == after.records, fork.label


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_c16_ephemeral_records_go_silently_and_what_followed_stays(durability: str) -> None:
    """C16, S-102, DUR-8: the Gap of reason 0 in the ConfigUpdate's submission explains the skip without telling it."""
    store = Store().start()
    store.put("t", "ephemeral")
    store.write("t", 500, batch=50)
    store.put("t", durability)
    assert store.look("t").seqs == list(range(1, 501)), "they are served while the process lives"
    assert store.write("t") == [501]
    store.deleted["t"] = set(range(1, 501))  # gone without a word
    assert is_whole(store.killed().start(), "t").seqs == [501]
    store.rest()
    for fork in store.ends():
        assert is_whole(fork.start(), "t").seqs == [501], fork.label
    store.kill().start()
    is_whole(store, "t")
    store.trim()
    for fork in store.ends():
        assert is_whole(fork.start(), "t").seqs == [501], fork.label
    store.kill().start()
    assert store.write("t") == [502]
    is_whole(store, "t")


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_c26_reads_go_on_when_expiry_is_due_on_a_latched_shard(durability: str) -> None:
    """C26, DUR-12, S-263: TTL is suspended; what had not expired when the shard was latched stays readable."""
    store = Store().start()
    store.put("t", durability, ttl_ms=10_000)
    store.put("f")
    store.write("t", 20, batch=4)
    store.latch()
    with pytest.raises(TopicsError):
        store.write("f")
    store.tick(30_000)
    for _ in range(3):
        seen = read_all(store.engine, "t")
        assert (seen.seqs, seen.gaps) == (list(range(1, 21)), [])
        assert store.engine.state("t").head_seq == 20
        store.tick(5000)


def test_c26_a_failed_expiry_is_the_last_read_that_fails() -> None:
    """C26, DUR-12, S-263: the operation whose EvictWatermark cannot be synced fails, the next one does not."""
    store = Store().start()
    store.put("t", "fsync", ttl_ms=10_000)
    store.write("t", 20, batch=4)
    store.clock.advance(30_000)
    store.latch()
    try:
        store.engine.read("t")
    except TopicsError:
        assert store.engine.health().state == "read_only"
    for _ in range(3):
        seen = read_all(store.engine, "t")
        assert seen.head == 20
        store.tick(5000)
    store.kill().start()
    assert store.look("t").records == {}, "expired, and the log works again"


class CapModel:
    """A topic with a cap on its bytes, in words of S-260: the lowest live records go until the rest fits."""

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.head = 0
        self.floor = 1
        self.live: dict[int, str] = {}

    def append(self, texts: list[str]) -> None:
        for text in texts:
            self.head += 1
            self.live[self.head] = text
        self.evict()

    def evict(self) -> None:
        while self.cap_bytes and sum(len(text) + 2 for text in self.live.values()) > self.cap_bytes:
            lowest = min(self.live)
            del self.live[lowest]
            self.floor = lowest + 1

    def shown(self) -> Shown:
        gaps = [(1, self.floor - 1)] if self.floor > 1 else []
        return self.head, dict(self.live), gaps


Shown = tuple[int, dict[int, str], list[tuple[int, int]]]
"""Head, live records and told ranges."""


def shown(seen: Seen) -> Shown:
    return seen.head, {seq: record.data for seq, record in seen.records.items()}, [gap[:2] for gap in seen.gaps]


def test_c27_the_cap_floor_shown_before_a_kill_at_any_disk_call_is_shown_after_it() -> None:
    """C27, S-260, S-261, DUR-12: recovery derives exactly the floor that was shown; a write counts whole or not."""
    store = Store(segment_max_events=8, wal_file_bytes=8192, checkpoint_records=8).start()
    store.put("t", cap_bytes=1000)
    model = CapModel(1000)
    states = [model.shown()]

    def judge(fork: Store) -> None:
        fork.start()
        found = shown(fork.look("t"))
        assert found in states[-2:], f"{fork.label}: {found} is neither {states[-2:]}"
        if fork.label.startswith("crash everything") or fork.label.startswith("kill"):
            fork.kill().start()
            assert shown(fork.look("t")) == found, f"{fork.label}: another start, another floor"

    def append(sizes: list[int]) -> None:
        texts = [store.text("t", size) for size in sizes]
        model.append(texts)
        states.append(model.shown())
        store.engine.append("t", [{"data": text, "tag": f"x{len(text) % 3}"} for text in texts])
        settle()

    def delete(seqs: list[int]) -> None:
        for seq in seqs:
            model.live.pop(seq)
        states.append(model.shown())
        assert store.engine.delete("t", seqs=seqs).deleted == len(seqs)
        settle()

    def change(cap_bytes: int) -> None:
        model.cap_bytes = cap_bytes
        model.evict()
        states.append(model.shown())
        store.put("t", cap_bytes=cap_bytes)
        settle()

    def settle() -> None:
        states.append(model.shown())
        assert shown(store.look("t")) == states[-1]

    with at_every_disk_call(store, judge):
        for round in range(4):
            for n in range(6):
                append([20 + 37 * (round + n) % 200])
            append([100] * 4)
            delete(sorted(model.live)[1:5:2])
            store.tick(6000, 3000)
            append([300, 20, 20])
            if round == 1:
                change(600)
                store.engine.snapshot()
            if round == 2:
                change(1400)
                store.engine.checkpoint(full=True)
        append([2000])
        assert model.live == {}, "a record larger than the cap takes everything with it, itself included"
        append([30])
    for fork in store.ends():
        assert shown(fork.start().look("t")) == states[-1]
