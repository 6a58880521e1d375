"""C30, C31, C35: commits by attach, killed or crashed at every disk call (06 S-288 … S-290)."""

from __future__ import annotations

import pytest

from tests.crash.kit_attach import SEGMENT_BYTES, Load, judge, look_at, write_while_stamping
from tests.crash.kit_engine import Store, at_every_disk_call, is_sound, same_after_restarts
from topics.codec.place import shard_of
from topics.storage.inspect import inspect
from topics.storage.view import Batch, Gap, StoreView


def started(**config: object) -> Store:
    return Store(segment_max_bytes=SEGMENT_BYTES, **config).start()


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_c30_an_attach_of_three_segments_is_whole_or_nothing_at_every_disk_call(durability: str) -> None:
    """C30, S-288, S-289: `fsync` writes before and after; a repeat ends it; later writes are behind it."""
    store = started()
    store.put("t", durability)
    store.write("t", 3)
    if durability != "fsync":
        store.sync()
        store.rest()
    load = Load(1, "t")
    load.stage(store)
    with at_every_disk_call(store, judge(load), crashes=2) as sweep:
        load.commit(store)
        if durability == "fsync":
            store.write("t", 2)
    assert [segment.n for segment in store.segments("t", 1)] >= [3, 4, 4, 4]
    assert sweep.images > 50


def test_c30_writes_during_stamping_come_first_and_the_segments_are_stamped_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C30, S-288: what is staged before the topic is held keeps its seqs; whole or nothing at every disk call."""
    store = started()
    store.put("t")
    store.write("t", 2)
    load = Load(1, "t")
    load.stage(store)
    write_while_stamping(store, monkeypatch, "t")
    with at_every_disk_call(store, judge(load), crashes=1):
        result = load.commit(store)
        store.write("t")
    assert result.topics[0].first_seq == 4
    assert look_at(store, "t").head == 16


def test_c30_the_log_is_trimmed_behind_an_attach_at_every_disk_call() -> None:
    """C30, S-192: the mark is needed until a snapshot has the segments; then nothing is missed without it."""
    store = started()
    store.put("t")
    store.write("t", 3)
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    with at_every_disk_call(store, judge(load), crashes=1):
        store.trim("t")
    for fork in store.ends():
        judge(load)(fork)


def test_c30_several_topics_of_one_group_and_topics_without_a_record_are_attached_together() -> None:
    """C30, S-288: one submission, all marks and the committed version; empty topics begin with seq 1."""
    store = started()
    for topic in ("a", "b", "c"):
        store.put(topic)
    store.write("b", 2)
    load = Load(1, "a", "b", "c", records=4)
    load.stage(store)
    with at_every_disk_call(store, judge(load), crashes=1):
        result = load.commit(store)
    assert [one.first_seq for one in result.topics] == [1, 3, 1]


@pytest.mark.parametrize(("shards", "step"), [(2, 1), (3, 4)])
def test_c30_over_several_groups_each_is_whole_or_nothing_and_a_repeat_completes_it(shards: int, step: int) -> None:
    """C30, S-288, TXN-6: group by group, that of shard 0 last, with the committed version."""
    store = started(wal_shards=shards)
    topics = ("a", "b", "c")
    groups: dict[int, list[str]] = {}
    for topic in topics:
        store.put(topic)
        groups.setdefault(shard_of(store.engine.core.names[topic].id, shards), []).append(topic)
    assert len(groups) > 1
    load = Load(1, *topics, records=4)
    load.stage(store)
    judged = judge(load, groups=list(groups.values()))
    with at_every_disk_call(store, judged, crashes=1, chosen=lambda number, call: number % step == 0):
        load.commit(store)


def test_c30_topics_that_cannot_be_attached_to_go_through_the_log_in_the_same_submission() -> None:
    """TXN-8: a router's destination; together with the attached ones, at every disk call."""
    store = started()
    for topic in ("source", "t", "dest"):
        store.put(topic)
    store.engine.put_router("r", {"source": "source", "dest": "dest"})
    store.write("t", 2)
    load = Load(1, "t", "dest", records=6)
    load.stage(store)

    def judged(fork: Store) -> None:
        fork.start()
        load.is_whole_or_nothing(fork)
        again = Load(1, "t", "dest", records=6)
        again.again(fork)
        again.is_whole_or_nothing(fork)

    with at_every_disk_call(store, judged, crashes=1):
        result = load.commit(store)
    assert {one.topic: one.attached for one in result.topics} == {"t": True, "dest": False}


def test_c31_an_attach_whose_mark_is_trimmed_is_there_once() -> None:
    """C31: the snapshot's rows stand for the mark."""
    store = started()
    store.put("t")
    store.write("t", 2)
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    store.trim("t")
    for how in ("kill", "crash", "stop"):
        store.end(how).start()
        look_at(store, "t")
        is_sound(store)
    same_after_restarts(store, "t")
    assert load.commit(store).deduped


def test_c31_a_crash_before_the_snapshot_and_two_restarts_show_it_once() -> None:
    """C31, S-249: the mark is replayed again and again, and finds the segments in their place."""
    store = started()
    store.put("t")
    store.write("t", 2)
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    for fork in store.ends():
        fork.start()
        before = look_at(fork, "t")
        for how in ("kill", "crash"):
            fork.end(how).start()
            assert look_at(fork, "t") == before, fork.label
            is_sound(fork)
        assert load.commit(fork).deduped
        same_after_restarts(fork, "t")


def test_c31_a_second_attach_follows_the_first_without_a_snapshot_between_them() -> None:
    """C31, S-240: each mark moves the end of the topic; none is replayed over another."""
    store = started()
    store.put("t")
    first, second = Load(1, "t", records=5), Load(2, "t", records=7)
    for load in (first, second):
        load.stage(store)
        load.commit(store)
    store.write("t")
    for fork in store.ends():
        fork.start()
        assert look_at(fork, "t").head == 13
        is_sound(fork)
        same_after_restarts(fork, "t")


@pytest.mark.parametrize("cap", [{"cap_records": 5}, {"cap_bytes": 90}, {"cap_records": 1}])
def test_c35_what_caps_take_of_an_attach_is_dropped_and_never_told_as_damage(cap: dict[str, int]) -> None:
    """C35, S-250, S-261, S-277: dropped segments are explained by floors at every disk call; floors stay."""
    store = started()
    store.put("t", **cap)
    store.write("t", 2)
    load = Load(1, "t")
    load.stage(store)
    shown: list[int] = []

    def judged(fork: Store) -> None:
        fork.start()
        is_sound(fork)
        before = fork.engine.read("t", limit=100)
        assert before.tombstone is None or before.tombstone.reason == "cap", f"{fork.label}: {before.tombstone}"
        texts = [str(record.data) for record in before.records]
        assert texts == (store_texts + load.texts("t"))[-len(texts) :] or texts == store_texts[-len(texts) :]
        if shown:
            assert before.earliest_seq == shown[0], f"{fork.label}: the floor moved"
        for how in ("kill", "crash"):
            fork.end(how).start()
            after = fork.engine.read("t", limit=100)
            assert [record.seq for record in after.records] == [record.seq for record in before.records]
            is_sound(fork)

    store_texts = [one.data for one in store.written["t"].values()]
    with at_every_disk_call(store, judged, crashes=1):
        load.commit(store)
        shown.append(store.engine.state("t").earliest_seq)
        for _ in range(3):
            store.tick(6000)
            store.engine.checkpoint()
    assert store.engine.metrics()["topics_segments_dropped_total"] >= 2


@pytest.mark.parametrize("how", ["kill", "crash", "stop"])
def test_records_of_an_attach_that_were_deleted_stay_deleted(how: str) -> None:
    """S-289, INV-8: deletes by tag and seq right behind the attach, before any checkpoint."""
    store = started()
    store.put("t")
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    store.delete_tag("t", "odd")
    store.delete("t", [1, 3])
    store.end(how).start()
    assert look_at(store, "t").seqs == [5, 7, 9, 11]
    store.trim("t")
    store.end(how).start()
    assert look_at(store, "t").seqs[:4] == [5, 7, 9, 11]


def test_a_topic_that_is_deleted_behind_an_attach_stays_deleted() -> None:
    """S-276, S-289: its mark is replayed for nobody."""
    store = started()
    store.put("t")
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    store.engine.delete_topic("t")
    for fork in store.ends():
        fork.start()
        assert list(fork.engine.topics()) == []
        assert fork.sim.listdir("store/topics") == []


def test_the_doctor_and_readers_of_the_directory_find_nothing_wrong_at_any_disk_call_of_an_attach() -> None:
    """S-345, 13 R-5: segments on their way are no damage; a reader sees whole commits, at a snapshot's pace."""
    store = started()
    store.put("t")
    store.write("t", 3)
    store.engine.checkpoint(full=True)
    store.write("t", 2)
    load = Load(1, "t")
    load.stage(store)
    notes: set[str] = set()

    def judged(fork: Store) -> None:
        report = inspect(fork.sim, "store")
        assert [one for one in report.findings if one.severity == "error"] == [], f"{fork.label}: {report.findings}"
        notes.update(one.code for one in report.findings)
        view = StoreView(fork.sim, "store").topic("t")
        assert view is not None
        given = list(view.scan())
        assert not [one for one in given if isinstance(one, Gap)], f"{fork.label}: {given}"
        seqs = [seq for one in given if isinstance(one, Batch) for seq in one.seqs.tolist()]
        assert seqs in ([*range(1, 4)], [*range(1, 18)]), f"{fork.label}: {seqs}"

    with at_every_disk_call(store, judged, crashes=2):
        load.commit(store)
        store.engine.checkpoint(full=True)
    assert "attach_unfinished" in notes


def test_the_doctor_tells_of_attached_segments_that_are_nowhere() -> None:
    """S-250: the mark says that they were; readers are told of a gap."""
    store = started()
    store.put("t")
    load = Load(1, "t")
    load.stage(store)
    load.commit(store)
    gone = store.segments("t", 1)[1]
    for kind in ("data", "idx", "tag"):
        store.sim.remove(gone.path(kind))
    report = inspect(store.sim, "store")
    assert [one.code for one in report.findings if one.severity == "error"] == ["segment_missing"]
    store.kill().start()
    assert store.look("t").gaps == [(gone.first, gone.last, "corrupt")]
