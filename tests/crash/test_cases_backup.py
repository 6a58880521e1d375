"""C34, C42, S-319: backups under load, interrupted at every disk call, and the stores made of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.crash.kit_backup import (
    DEST,
    NEW,
    at_points,
    back_up,
    back_up_stopped,
    everything,
    opened,
    pin,
    restored,
    shown,
    source,
)
from tests.crash.kit_engine import CRASHES, DIR, TINY, Store, at_every_disk_call, look
from topics import paths
from topics.codec import segment
from topics.codec.snapshot import Encoder
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import snapshot as snapshotting
from topics.engine import txn
from topics.engine.attach import Attacher
from topics.errors import ColdStoreMismatch, DataDirInUse, MetadataLost, StoreUnavailable, TopicsError
from topics.storage.backup.depot import DepotInUse, FolderDepot
from topics.storage.backup.faults import (
    BackupDamaged,
    NotABackup,
    OtherStore,
    SourceChanged,
    SourceDamaged,
    TargetNotEmpty,
)
from topics.storage.backup.place import cold_fetcher
from topics.storage.backup.restore import restore
from topics.storage.backup.take import Source, Taker, newest
from topics.storage.inspect import inspect
from topics.testing import Fault, SimFs
from topics.testing.simfs import PowerLoss

SMALL: dict[str, Any] = {**TINY, "segment_max_events": 8}


def filled(**config: Any) -> Store:
    """Topics of every class, with deletes, tags, caps, gaps, keys, copies and leases."""
    store = Store(**{**SMALL, **config}).start()
    for topic, durability in (("f", "fsync"), ("d", "disk"), ("m", "memory")):
        store.put(topic, durability)
        store.write(topic, 20, batch=3, tag="even")
        store.write(topic, 5)
    store.delete_tag("d", "even")
    store.delete("f", [2, 3, 24])
    store.put("capped", "disk", cap_records=10)
    store.write("capped", 30)
    store.put("copies")
    store.engine.put_router("r", {"source": "f", "dest": "copies"})
    store.write("f", 3)
    store.engine.router("r")
    store.put("jobs", type="queue", leases_durable=True)
    store.write("jobs", 6)
    store.engine.append("f", [{"data": "keyed"}], idempotency_key="k")
    return store


def add(store: Store, topic: str, count: int, **options: Any) -> None:
    """Write while the engine is in the middle of something: staged now, published when its turn comes."""
    for _ in range(count):
        write = appending.Write.prepare(topic, [{"data": store.text(topic)}], store.engine.core.limits, **options)
        appending.append(store.engine.core, write, lambda outcome: None)


def remove(store: Store, topic: str, *seqs: int) -> None:
    removal = deleting.Removal.parse(None, None, seqs, store.engine.core.limits)
    deleting.delete(store.engine.core, topic, removal, False, lambda outcome: None)


def test_a_restored_store_shows_what_the_original_showed() -> None:
    """S-319: topics of every class, deletes, floors, routers, queues, keys; `doctor` finds nothing; a new id."""
    store = filled()
    before = everything(store.engine)
    claimed = store.engine.claim("jobs", "w", 2)
    taken = back_up(store)
    made = restored(store.fs)
    assert made.store != taken.manifest.store == store.engine.core.store_id
    engine = opened(store.fs, **SMALL)
    assert everything(engine) == before
    assert engine.metrics()["topics_segment_corrupt_total"] == 0
    assert engine.append("f", [{"data": "keyed"}], idempotency_key="k").deduped
    assert {one.seq for one in engine.leases("jobs").leases} == {one.seq for one in claimed.jobs}
    copied = len(shown(engine, "copies").records)
    engine.append("f", [{"data": "after"}])
    engine.router("r")
    assert len(shown(engine, "copies").records) == copied + 1
    engine.close()


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
def test_a_stopped_store_is_backed_up_however_it_ended(how: str) -> None:
    """S-319: what a killed engine left in its log is in the backup too."""
    store = filled(wal_shards=3)
    store.sync()
    before = everything(store.engine)
    store.end(how)
    back_up_stopped(store)
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    after = everything(engine)
    for topic in ("f", "copies", "jobs"):
        assert after[topic] == before[topic], topic
    assert after["d"].records == before["d"].records
    engine.close()
    store.start()
    assert len(store.engine.health().shards) == 3
    assert everything(store.engine)["f"] == before["f"]


def test_a_restored_store_lives_on_through_kills_and_crashes() -> None:
    """S-319, A-16: written, killed, opened, crashed, opened; its log begins anew."""
    store = filled()
    back_up(store)
    restored(store.fs)
    sim: SimFs = store.sim
    expected: dict[int, object] = {}
    for life in range(4):
        engine = opened(sim, **SMALL)
        if not expected:
            expected = {seq: one[0] for seq, one in shown(engine, "f").records.items()}
        for n in range(5):
            seq = engine.append("f", [{"data": f"{life}/{n}"}]).first_seq
            assert seq is not None
            expected[seq] = f"{life}/{n}"
        assert {seq: one[0] for seq, one in shown(engine, "f").records.items()} == expected
        if life % 2:
            engine.checkpoint(full=True)
        sim = sim.kill_image() if life % 2 else sim.crash_image(life, "nothing")
    engine = opened(sim, **SMALL)
    assert {seq: one[0] for seq, one in shown(engine, "f").records.items()} == expected
    assert shown(engine, "f").gaps == []
    engine.close()


LATE = ("ckpt.after_data", "ckpt.after_idx", "ckpt.before_mark", "ckpt.after_mark", "snap.after_tmp")


@pytest.mark.parametrize("point", LATE)
def test_c42_what_is_written_while_the_backup_begins_is_behind_its_cut(point: str) -> None:
    """C42: nothing after the cut, no gap up to it, whenever writes, deletes, claims and evictions arrive."""
    store = filled()
    before = everything(store.engine)

    def go_on() -> None:
        for topic in ("f", "d", "m", "copies", "jobs"):
            add(store, topic, 12)
        add(store, "capped", 40)
        add(store, "f", 1, idempotency_key="late")
        remove(store, "f", 5, 6)

    at_points(store.sim, point, go_on)
    back_up(store)
    store.sim.before = None
    assert shown(store.engine, "f").head > before["f"].head, "nothing was written meanwhile"
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    after = everything(engine)
    assert {topic: one.head for topic, one in after.items()} == {topic: one.head for topic, one in before.items()}
    for topic in ("d", "m", "copies", "jobs"):
        assert after[topic] == before[topic], topic
    left = {seq: one for seq, one in before["f"].records.items() if seq not in (5, 6)}
    assert after["f"].gaps == []
    assert after["f"].records in (before["f"].records, left)
    assert set(after["capped"].records) <= set(before["capped"].records)
    assert {reason for _, _, reason in after["capped"].gaps} <= {"cap"}
    for topic, one in after.items():
        assert engine.append(topic, [{"data": "next"}]).first_seq == one.head + 1
    assert not engine.append("f", [{"data": "late"}], idempotency_key="late").deduped
    engine.router("r")
    added = [one for seq, one in shown(engine, "copies").records.items() if seq > after["copies"].head + 1]
    assert [data for data, _ in added] == ["next", "late"], "a copy is missing, or was made twice"
    engine.close()


def test_c42_a_version_whose_commit_ends_while_the_backup_begins_is_in_it_with_its_rows_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C42, S-319, TXN-9: else its writer is told that it is committed, and its rows are nowhere."""
    store = filled()
    rows = [f"row {n}" for n in range(3)]
    store.engine.stage("w", 1, "p", 0, "f", [{"data": row} for row in rows])
    owner, limits = store.engine.owner, store.engine.core.limits
    commit = txn.Commit.parse("w", 1, [("p", 1, len(rows))], None, None, "never", limits)
    aside = owner.aside
    syncs: list[tuple[str, Any, Any]] = []
    pinned: list[Any] = []

    def hold(lane: str, work: Any, done: Any) -> None:
        syncs.append((lane, work, done)) if lane.startswith("wal-") else aside(lane, work, done)

    monkeypatch.setattr(owner, "aside", hold)
    with owner:
        txn.commit(store.engine.core, commit, lambda outcome: None)
    with owner:
        store.engine.begin_checkpoint(pinned.append, 3_600_000)
    monkeypatch.undo()
    assert (store.engine.writer("w").version, pinned) == (None, [])
    with owner:
        for sync in syncs:
            aside(*sync)
    assert store.engine.writer("w").version == 1
    Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, pinned[0]))
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    found = [data for data, _ in shown(engine, "f").records.values() if data in rows]
    assert (engine.writer("w").version, found) in [(1, rows), (None, [])]
    engine.close()


def test_c42_segments_that_are_attached_while_topics_are_captured_are_in_the_backup_of_all_topics_or_of_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C42, S-319, A-15: with many topics the snapshot is captured in slices, and a commit may end between two."""
    store = filled()
    topics, rows = ("f", "last"), [f"row {n}" for n in range(3)]
    store.engine.put_topic("last", {"durability": "fsync"})
    for chunk, topic in enumerate(topics):
        store.engine.stage("w", 1, "p", chunk, topic, [{"data": row} for row in rows])
    owner, limits = store.engine.owner, store.engine.core.limits
    commit = txn.Commit.parse("w", 1, [("p", 2, 2 * len(rows))], None, None, "always", limits)
    place, encode = Attacher.place, Encoder.add_topics
    marked: list[Any] = []
    pinned: list[Any] = []

    def encoded(self: Encoder, items: Any) -> None:
        while marked:
            owner.soon(partial(place, *marked.pop()))
        encode(self, items)

    monkeypatch.setattr(snapshotting, "SLICE", 1)
    monkeypatch.setattr(Attacher, "place", lambda *given: marked.append(given))
    monkeypatch.setattr(Encoder, "add_topics", encoded)
    with owner:
        txn.commit(store.engine.core, commit, lambda outcome: None)
    assert len(marked) == 1
    with owner:
        store.engine.begin_checkpoint(pinned.append, 3_600_000)
    assert store.engine.writer("w").version == 1
    monkeypatch.undo()
    Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, pinned[0]))
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    found = [[data for data, _ in shown(engine, topic).records.values() if data in rows] for topic in topics]
    assert (engine.writer("w").version, found) in [(1, [rows, rows]), (None, [[], []])]
    engine.close()


def test_c42_what_happens_while_files_are_copied_is_not_in_the_backup() -> None:
    """C42, A-15: the pin holds everything; deletes made meanwhile may be in it, so that they never return."""
    store = filled(reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0)
    before = everything(store.engine)
    found = pin(store.engine)
    store.delete("f", [7, 8, 9, 10, 11, 12, 13, 14])
    store.write("f", 30)
    store.write("capped", 50)
    store.engine.delete_topic("m")
    for _ in range(3):
        store.engine.checkpoint(full=True)
        store.tick(12_000)
    Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, found))
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    after = everything(engine)
    assert {topic: one.head for topic, one in after.items()} == {topic: one.head for topic, one in before.items()}
    for topic in ("d", "m", "copies", "jobs", "capped"):
        assert after[topic] == before[topic], topic
    gone = {seq for seq in before["f"].records if seq not in after["f"].records}
    assert gone == {7, 8, 9, 10, 11, 12, 13, 14} & set(before["f"].records)
    engine.close()


def test_a_second_backup_copies_what_has_changed_and_drops_what_nothing_names() -> None:
    """S-319: incremental by segment."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 40)
    first = back_up(store)
    assert first.copied_segments == len(first.manifest.segments) == 5
    again = back_up(store)
    assert again.copied_segments == 0
    store.write("t", 8)
    store.delete("t", [3])
    third = back_up(store)
    assert third.copied_segments == 2, "one that is new, one with a delete in it"
    names = {name for name in store.sim.files() if name.startswith(f"{DEST}/topics/")}
    assert len(names) == 2 * len(third.manifest.segments) == 12
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    assert shown(engine, "t") == shown(store.engine, "t")
    engine.close()


def test_a_stopped_store_that_has_not_changed_is_not_backed_up_twice() -> None:
    """The newest backup is this one already."""
    store = filled().stop()
    before = back_up_stopped(store)
    files = store.sim.files()
    after = back_up_stopped(store)
    assert after.manifest == before.manifest
    assert after.copied_bytes == 0
    assert {name: data for name, data in store.sim.files().items() if name.startswith(DEST)} == {
        name: data for name, data in files.items() if name.startswith(DEST)
    }


@pytest.mark.parametrize("sealed", [True, False])
def test_a_delete_that_is_in_the_data_and_not_yet_in_the_index_is_in_both_afterwards(sealed: bool) -> None:
    """S-174, S-190: a server writes the byte first; whoever copies in between keeps a record that stays deleted."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 12)
    found = pin(store.engine)
    one = store.segments("t")[0 if sealed else 1]
    entry = segment.IDX.itemsize * 2
    raw = store.sim.files()[one.path("idx")][entry : entry + 8]
    end = int.from_bytes(raw[:4], "little") + int.from_bytes(raw[4:], "little")
    store.sim.set_byte(one.path("data"), end - 1, segment.DELETE_BYTE)
    Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, found))
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    assert set(shown(engine, "t").records) == set(range(1, 13)) - {one.first + 2}
    assert engine.state("t").count == 11
    engine.close()


COLD: dict[str, Any] = {**SMALL, "cold_dir": "cold", "hot_retain_segments": 1}


def relocated(**config: Any) -> Store:
    """A topic most of which lies in the cold tier, with deletes that the objects there do not show yet."""
    store = Store(**{**COLD, **config}).start()
    store.put("t")
    store.write("t", 40, tag="x")
    store.engine.checkpoint(full=True)
    store.tick(30_000)
    assert [one.tier for one in store.engine.plan("t").segments] == ["cold"] * 4 + ["hot"]
    store.delete("t", [3, 12])
    return store


def cold_source(store: Store, where: str | None = "cold") -> Source:
    cut = source(store.fs, pin(store.engine))
    return cut._replace(fetch=cold_fetcher(store.fs, where, cut.snapshot.header.store))


def test_c25_cold_segments_are_copied_and_two_stores_never_own_one_object() -> None:
    """C25, S-319: the restored store has everything in its own directory, and may not use the other's cold tier."""
    store = relocated()
    Taker(FolderDepot(store.fs, DEST)).take(cold_source(store))
    restored(store.fs)
    objects = {path: data for path, data in store.sim.files().items() if path.startswith("cold/")}
    with pytest.raises(ColdStoreMismatch):
        opened(store.fs, **COLD)
    engine = opened(store.fs, **SMALL)
    assert shown(engine, "t") == shown(store.engine, "t")
    assert {one.tier for one in engine.plan("t").segments} == {"hot"}
    engine.delete_topic("t")
    engine.close()
    assert {path: data for path, data in store.sim.files().items() if path.startswith("cold/")} == objects
    store.stop().start()
    assert len(look(store.engine, "t").records) == 38


def test_a_cold_tier_that_cannot_be_read_is_no_damage_and_no_backup() -> None:
    """S-318: nothing was lost, nothing is made."""
    store = relocated()
    for where in (None, "elsewhere"):
        with pytest.raises(StoreUnavailable):
            Taker(FolderDepot(store.fs, DEST)).take(cold_source(store, where))
    store.sim.lose_file(next(path for path in store.sim.files() if path.startswith("cold/") and "09.data" in path))
    with pytest.raises(SourceDamaged, match="segment 9"):
        Taker(FolderDepot(store.fs, DEST)).take(cold_source(store))


def test_a_segment_that_is_cold_is_not_fetched_for_the_second_backup() -> None:
    """S-319: incremental; relocation alone makes another `.idx`, and a delete does."""
    store = relocated()
    Taker(FolderDepot(store.fs, DEST)).take(cold_source(store))
    store.write("t", 3)
    store.delete("t", [20])
    fetched: list[int] = []

    def fetch(topic_id: int, first: int, generation: int, length: int) -> bytes:
        fetched.append(first)
        return cold_source(store).fetch(topic_id, first, generation, length)

    Taker(FolderDepot(store.fs, DEST)).take(cold_source(store)._replace(fetch=fetch))
    assert fetched == [17]
    restored(store.fs)


# -- interruptions -----------------------------------------------------------------------------------------------------


def test_a_backup_killed_at_any_disk_call_leaves_a_whole_one_and_goes_on() -> None:
    """S-319: the one before until the new one counts; the same command finishes it."""
    store = Store(**SMALL).start()
    store.put("t")
    store.put("u", "disk")
    store.write("t", 20, tag="x")
    store.write("u", 3)
    back_up(store)
    old = everything(store.engine)
    store.delete("t", [1, 9])
    store.write("t", 9)
    new = everything(store.engine)
    store.stop()
    complete: set[bool] = set()

    def judge(fork: Store) -> None:
        restored(fork.fs)
        engine = opened(fork.fs, **SMALL)
        found = everything(engine)
        engine.close()
        assert found in (old, new)
        complete.add(found == new)
        back_up_stopped(fork)
        restored(fork.fs, "finished")
        engine = opened(fork.fs, "finished", **SMALL)
        assert everything(engine) == new
        engine.close()

    with at_every_disk_call(store, judge, crashes=2, chosen=lambda number, call: DEST in str(call[1:])):
        back_up_stopped(store)
    assert complete == {False, True}


def test_a_first_backup_that_is_not_complete_is_none() -> None:
    """S-319"""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    expected = everything(store.engine)
    store.stop()

    def judge(fork: Store) -> None:
        try:
            restored(fork.fs)
        except NotABackup:
            assert not fork.fs.exists(NEW)
            return
        engine = opened(fork.fs, **SMALL)
        assert everything(engine) == expected
        engine.close()

    with at_every_disk_call(store, judge, chosen=lambda number, call: DEST in str(call[1:])):
        back_up_stopped(store)


def test_a_restore_killed_at_any_disk_call_is_never_served_and_can_be_finished() -> None:
    """S-319: an engine refuses what is not complete, `doctor` says why, and the same command completes it."""
    store = filled()
    back_up(store)
    expected = everything(store.engine)
    store.stop()
    ends: set[str] = set()

    def judge(fork: Store) -> None:
        half = fork.sim.kill_image()
        if half.exists(f"{NEW}/{paths.META_DIR}/{paths.RESTORING_FILE}"):
            ends.add("refused")
            with pytest.raises(MetadataLost, match="restore"):
                opened(half, **SMALL)
            assert "restore_unfinished" in {one.code for one in inspect(half, NEW).findings if one.severity == "error"}
        else:
            engine = opened(half, **SMALL)
            found = everything(engine)
            ends.add("complete" if found else "not begun")
            assert found in ({}, expected)
            engine.close()
        try:
            restored(fork.fs)
        except TargetNotEmpty:
            assert {one.severity for one in inspect(fork.fs, NEW).findings} <= {"note"}, "it was complete"
        engine = opened(fork.fs, **SMALL)
        assert everything(engine) == expected
        engine.close()

    with at_every_disk_call(store, judge, crashes=1, chosen=lambda number, call: NEW in str(call[1:])):
        restored(store.fs)
    assert ends >= {"refused", "not begun"}


@pytest.mark.parametrize(("style", "seed"), CRASHES)
def test_a_restore_that_was_told_as_done_survives_the_power(style: Any, seed: int) -> None:
    """S-319, S-12"""
    store = filled()
    back_up(store)
    restored(store.fs)
    engine = opened(store.sim.crash_image(seed, style), **SMALL)
    assert everything(engine) == everything(store.engine)
    engine.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


def damaged(store: Store, kind: str) -> str:
    """Damage the second segment of a topic; what a backup says about it."""
    segment = store.segments("t")[1]
    if kind == "frame":
        store.sim.flip_bit(segment.path("data"), 40, 1)
        return "9"
    store.sim.flip_bit(segment.path("idx"), 5, 1)
    return "idx"


@pytest.mark.parametrize("kind", ["frame", "idx"])
def test_a_damaged_segment_is_told_and_the_backup_before_stands(kind: str) -> None:
    """S-319: damage is not copied silently; what an earlier backup has of the segment is not lost to it."""
    store = Store(**SMALL).start()
    store.put("t")
    store.put("other")
    store.write("t", 20)
    store.write("other", 9)
    store.stop()
    told = damaged(store, kind)
    with pytest.raises(SourceDamaged, match=r"topic 't', segment 9: ") as caught:
        back_up_stopped(store)
    assert told in str(caught.value)
    assert len(caught.value.damage) == 1
    with pytest.raises(NotABackup):
        restored(store.fs)


@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_damage_that_opening_finds_is_told_before_what_is_left_is_backed_up(kind: str) -> None:
    """S-250: a stopped store is opened, as by any start; a range that is lost is a gap for readers of both stores."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    store.stop()
    path = store.segments("t")[1].path("data")
    store.sim.lose_file(path) if kind == "lost" else store.sim.truncate_at_rest(path, 50)
    with pytest.raises(SourceDamaged, match="1 segment had to be made anew or given up"):
        back_up_stopped(store)
    back_up_stopped(store)
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    found = shown(engine, "t")
    engine.close()
    assert {gap[2] for gap in found.gaps} == {"corrupt"}
    assert set(found.records) >= {*range(1, 9), *range(17, 21)}
    store.start()
    assert shown(store.engine, "t") == found


def test_data_that_vanishes_under_a_running_server_is_told() -> None:
    """S-319: the pin holds, so it is damage."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    found = pin(store.engine)
    store.sim.lose_file(store.segments("t")[1].path("data"))
    with pytest.raises(SourceDamaged, match=r"topic 't', segment 9: its \.data is missing"):
        Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, found))


def test_a_good_copy_of_a_segment_outlives_the_damage_of_its_original() -> None:
    """S-319: what is in the backup is not read again, so it is not lost either."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    expected = everything(store.engine)
    back_up(store)
    store.stop()
    damaged(store, "frame")
    back_up_stopped(store)
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    assert everything(engine) == expected
    engine.close()


def test_every_flipped_byte_of_a_backup_is_found_before_it_is_a_store() -> None:
    """S-319: verified by checksum. A damaged manifest is none; the parts say which one is damaged."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 12, tag="x")
    back_up(store)
    for path, data in store.sim.files().items():
        if not path.startswith(f"{DEST}/") or path.endswith(paths.BACKUP_LOCK):
            continue
        for offset in range(0, len(data), 7):
            image = store.sim.kill_image()
            image.flip_bit(path, offset, offset % 8)
            with pytest.raises((BackupDamaged, NotABackup)) as caught:
                restore(image, FolderDepot(image, DEST), NEW)
            assert isinstance(caught.value, NotABackup) or path.rpartition("/")[2] in str(caught.value)
            with pytest.raises((MetadataLost, BackupDamaged, NotABackup)):
                if image.exists(f"{NEW}/{paths.META_DIR}/{paths.RESTORING_FILE}"):
                    opened(image, **SMALL)
                raise NotABackup("nothing was begun")


def test_a_missing_part_is_told_and_copied_again_by_the_next_backup() -> None:
    """S-319"""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 12)
    back_up(store)
    part = next(path for path in store.sim.files() if path.startswith(f"{DEST}/topics/") and path.endswith(".data"))
    store.sim.lose_file(part)
    with pytest.raises(BackupDamaged, match="is missing"):
        restore(store.fs, FolderDepot(store.fs, DEST), NEW)
    back_up(store)
    restored(store.fs, "elsewhere")


def test_a_directory_that_is_not_empty_is_refused_and_left_alone() -> None:
    """S-319: also one with another backup's half restore."""
    store = filled()
    back_up(store)
    with pytest.raises(TargetNotEmpty):
        restore(store.fs, FolderDepot(store.fs, DEST), DIR)
    image = store.sim.kill_image()
    image.crash_at(image.disk_calls + 40)
    with pytest.raises(PowerLoss):
        restore(image, FolderDepot(image, DEST), NEW)
    later = store.fork(image.kill_image(), "half restored")
    later.start()
    later.write("f", 5)
    back_up(later)
    with pytest.raises(TargetNotEmpty, match="another backup"):
        restore(later.fs, FolderDepot(later.fs, DEST), NEW)


def test_a_place_is_one_stores_alone_and_one_backup_at_a_time_is_taken_there() -> None:
    """S-319"""
    store = filled()
    back_up(store)
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    engine.append("f", [{"data": 1}])
    with pytest.raises(OtherStore, match="holds backups of store"):
        Taker(FolderDepot(store.fs, DEST)).take(source(store.fs, pin(engine), NEW))
    engine.close()
    depot = FolderDepot(store.fs, DEST)
    with depot.reserved(), pytest.raises(DepotInUse):
        back_up(store)


def test_a_store_that_is_open_is_not_backed_up_as_a_stopped_one() -> None:
    """S-11"""
    store = filled()
    with pytest.raises(DataDirInUse):
        back_up_stopped(store)


def test_a_cut_that_is_not_held_any_more_is_no_backup_and_the_next_one_goes_on() -> None:
    """A-15: the pin ended while files were copied; what was copied is not copied again."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    found = pin(store.engine)
    cut = source(store.fs, found)
    taker = Taker(FolderDepot(store.fs, DEST))
    with pytest.raises(SourceChanged):
        taker.take(cut._replace(is_held=lambda: False))
    assert newest(FolderDepot(store.fs, DEST), FolderDepot(store.fs, DEST).listing()) is None
    store.engine.release_pin(found.pin.id)
    store.engine.delete("t", before_seq=18)
    store.deleted["t"] = set(range(1, 18))
    store.write("t", 1)
    store.engine.checkpoint(full=True)
    with pytest.raises(SourceChanged):
        taker.take(cut._replace(is_held=lambda: False))
    taken = taker.take(source(store.fs, pin(store.engine)))
    assert taken.manifest.topics == 1
    restored(store.fs)
    engine = opened(store.fs, **SMALL)
    assert shown(engine, "t") == shown(store.engine, "t")
    engine.close()


def test_a_full_disk_or_a_failing_one_is_told_and_the_backup_before_stands() -> None:
    """S-319: every kind of call that can fail, at the place of the backup."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 20)
    back_up(store)
    before = newest(FolderDepot(store.fs, DEST), FolderDepot(store.fs, DEST).listing())
    store.write("t", 20)
    store.stop()
    for call in ("pwrite", "fsync", "rename", "sync_dir", "pread", "open"):
        store.faults.inject(Fault(call, 2, "EIO", "always", path=DEST))
        with pytest.raises((OSError, TopicsError)):
            back_up_stopped(store)
        store.faults.clear()
        assert newest(FolderDepot(store.fs, DEST), FolderDepot(store.fs, DEST).listing()) == before, call
    back_up_stopped(store)
    restored(store.fs)


FIRST = f"{DIR}/{paths.TOPICS_DIR}/{paths.topic_dir(1)}/{paths.segment(1, 'data')}"


def test_c34_a_pin_that_expires_during_a_drop_leaves_nothing_behind_at_any_disk_call() -> None:
    """C34: deleted records never read; files gone after the pin, or with the next start."""
    store = Store(**SMALL).start()
    store.put("t")
    store.write("t", 30)
    store.engine.checkpoint(full=True)
    store.engine.plan("t", pin_ms=5000)
    store.engine.delete("t", before_seq=25)
    store.deleted["t"] = set(range(1, 25))
    store.engine.checkpoint(full=True)
    assert FIRST in store.sim.files()

    def judge(fork: Store) -> None:
        fork.start()
        assert look(fork.engine, "t").seqs == list(range(25, 31))
        fork.write("t")
        fork.engine.checkpoint(full=True)
        fork.tick(10_000)
        assert FIRST not in fork.sim.files()

    with at_every_disk_call(store, judge, crashes=2):
        store.tick(6000)
    assert FIRST not in store.sim.files()
