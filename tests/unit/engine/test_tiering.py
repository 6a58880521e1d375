"""Old segments in the cold tier: moved, read, deleted from, dropped, rewritten; and a tier that is gone (06 §16)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from topics.codec.project import Projection
from topics.engine import read as reading
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.salvage import salvage
from topics.errors import ColdStoreMismatch, StoreDenied, StoreUnavailable, WalIo
from topics.fs import Fs, OsFs
from topics.model import new
from topics.storage.descriptor import Segment
from topics.storage.inspect import inspect
from topics.storage.reclaim import Rewrite
from topics.storage.tiers.folder import FolderRoot
from topics.storage.tiers.store import SegmentId
from topics.storage.view import Batch, StoreView
from topics.testing import ManualClock
from topics.testing.delayedstore import DelayedRoot

DAY_MS = 86_400_000


def cold_files(store: kit.Store, ending: str = "") -> list[str]:
    return sorted(path for path in store.sim.files() if path.startswith("cold/") and path.endswith(ending))


def hot_files(store: kit.Store, ending: str = "") -> list[str]:
    return sorted(path for path in store.sim.files() if path.startswith("store/topics/") and path.endswith(ending))


def segments_of(engine: Engine, name: str = kit.TOPIC) -> list[Segment]:
    segments = engine.core.names[name].index.segments
    assert segments is not None
    return segments.segments


def cold_of(engine: Engine, name: str = kit.TOPIC) -> list[bool]:
    return [one.cold for one in segments_of(engine, name)]


def store_of(records: int = 20, **options: Any) -> kit.Store:
    """Records in segments of three, of which all sealed ones are cold."""
    store = kit.Store("cold", **options)
    store.put()
    for n in range(1, records + 1):
        kit.write(store.engine, n, tag=f"t:{n % 2}")
    store.settle()
    return store


def unmount(store: kit.Store) -> dict[str, bytes]:
    """The cold folder is an empty mount point; what was there is given back."""
    files = {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")}
    for path in files:
        store.sim.lose_file(path)
    return files


def mount(store: kit.Store, files: dict[str, bytes]) -> None:
    store.sim.load(files)


def flip_stub(store: kit.Store, number: int = 1) -> str:
    """A byte of a cold segment's index changes at rest, and nobody has it in memory."""
    path = hot_files(store, ".idx")[number]
    store.sim.flip_bit(path, 3, 1)
    store.engine.core.maps.clear()
    return path


# -- moving ------------------------------------------------------------------------------------------------------------


def test_sealed_segments_past_hot_retention_move_and_read_as_before() -> None:
    """[S-310, S-316] The newest stay; index and tags stay here, data goes."""
    store = store_of(20, hot_retain_segments=2)
    assert cold_of(store.engine) == [True] * 4 + [False] * 3
    assert [len(cold_files(store, part)) for part in (".data", ".idx", ".tag")] == [4, 4, 4]
    assert [len(hot_files(store, part)) for part in (".data", ".idx", ".tag")] == [3, 7, 6]
    seen = kit.everything(store.engine)
    assert seen.values == list(range(1, 21))
    assert store.engine.metrics()["topics_relocated_total"] == 4
    assert store.engine.metrics()["topics_cold_reads_total"] == 4
    store.relocate()
    assert store.engine.metrics()["topics_relocated_total"] == 4
    assert store.engine.metrics()["topics_segments"] == 7
    store.check_order()


@pytest.mark.parametrize(
    ("segments", "nbytes", "kept"),
    [(0, 0, 0), (2, 0, 2), (99, 0, 6), (99, 1, 0), (4, 200, 1), (4, 300, 2), (1, 100_000, 1)],
)
def test_the_stricter_of_both_retentions_wins(segments: int, nbytes: int, kept: int) -> None:
    """[S-310]"""
    store = store_of(20, hot_retain_segments=segments, hot_retain_bytes=nbytes)
    sealed = [one for one in segments_of(store.engine) if one.sealed]
    assert {one.data_len // 10 for one in sealed} == {14}
    assert [one.cold for one in sealed] == [True] * (6 - kept) + [False] * kept


def test_relocation_comes_by_itself_every_five_seconds() -> None:
    store = kit.Store("cold")
    store.put()
    kit.each(store.engine, 7)
    store.engine.checkpoint(full=True)
    store.pass_time(4000)
    assert not any(cold_of(store.engine))
    store.pass_time(2000)
    assert cold_of(store.engine) == [True, True, False]


def test_the_snapshot_names_the_tier_and_the_segments_in_it() -> None:
    """[S-346] 06 §13: `cold`, row flag 2."""
    store = store_of(7)
    assert store.engine.core.cold.name == "cold"
    store.engine.checkpoint(full=True)
    store.reopen()
    assert cold_of(store.engine)[:2] == [True, True]
    assert kit.everything(store.engine).values == list(range(1, 8))


def test_a_segment_with_a_fault_at_any_step_stays_hot_and_moves_later() -> None:
    """[S-311, S-312]"""
    for op in ("open", "pwrite", "fsync", "rename", "sync_dir", "size", "pread", "listdir", "makedirs"):
        for index in range(1, 12):
            store = kit.Store("cold")
            store.put()
            kit.each(store.engine, 4)
            store.engine.checkpoint(full=True)
            store.fail(op, index=index, path="cold/" if index % 2 else "")
            store.relocate()
            store.mend()
            assert kit.everything(store.engine).values == [1, 2, 3, 4]
            store.pass_time(30_000, 5000)
            assert cold_of(store.engine) == [True, False], (op, index)
            assert kit.everything(store.engine).values == [1, 2, 3, 4]
            assert len(hot_files(store, ".data")) in (1, 2)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_records_fetched_for_a_read_are_counted_and_cached_ones_are_not() -> None:
    """[S-321, S-322]"""
    store = store_of(20)
    first = store.engine.read(kit.TOPIC, 0, limit=5)
    assert (kit.seqs(first), first.cold_segments_read) == ([1, 2, 3, 4, 5], 5)
    again = store.engine.read(kit.TOPIC, 0, limit=7)
    assert (kit.seqs(again), again.cold_segments_read) == ([1, 2, 3, 4, 5, 6, 7], 1)
    newest = store.engine.read(kit.TOPIC, 18)
    assert (kit.seqs(newest), newest.cold_segments_read) == ([19, 20], 0)


def test_without_a_cache_every_read_fetches_and_still_comes_to_an_end() -> None:
    store = store_of(20, cold_cache_bytes=0)
    for _ in range(2):
        page = store.engine.read(kit.TOPIC, 0, limit=20)
        assert (kit.seqs(page), page.cold_segments_read) == (list(range(1, 21)), 18)


def test_large_records_across_blocks_come_back_whole() -> None:
    """[S-321] Frames straddle blocks of 256 KiB; a page takes no more than its share of them."""
    store = kit.Store("cold", segment_max_events=8, wal_file_bytes=8 << 20)
    store.put()
    values = [str(n) * 150_000 for n in range(1, 17)]
    for value in values:
        kit.write(store.engine, value)
    store.engine.checkpoint(full=True)
    kit.write(store.engine, "end")
    store.engine.checkpoint(full=True)
    store.relocate()
    assert cold_of(store.engine) == [True, True, False]
    assert kit.everything(store.engine, limit=1000, max_bytes=8 << 20).values == [*values, "end"]


def test_a_tier_that_fails_costs_the_records_behind_it_and_is_left_alone_for_a_while() -> None:
    """[S-323] Records before the failure are returned; without any it is 503; five in a row and nothing is asked."""
    store = store_of(20)
    store.engine.read(kit.TOPIC, 0, limit=3)
    store.fail("open", times="always", path="cold/topics")
    page = store.engine.read(kit.TOPIC, 0)
    assert kit.seqs(page) == [1, 2, 3]
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            store.engine.read(kit.TOPIC, 3)
    asked = store.faults.counts["open"]
    with pytest.raises(StoreUnavailable):
        store.engine.read(kit.TOPIC, 3)
    assert store.faults.counts["open"] == asked
    store.mend()
    store.clock.advance(10_001)
    assert kit.everything(store.engine).values == list(range(1, 21))


def test_an_object_that_is_known_to_be_gone_is_told_as_damage_and_nothing_is_written() -> None:
    """[S-317] The tier answers, it is ours, and the copy is not there."""
    store = store_of(12)
    gone = cold_files(store, ".data")[1]
    raw = store.sim.files()[gone]
    store.sim.lose_file(gone)
    seen = kit.everything(store.engine)
    assert (seen.seqs, seen.ranges) == ([1, 2, 3, 7, 8, 9, 10, 11, 12], [(4, 6, "corrupt")])
    assert store.engine.metrics()["topics_segment_corrupt_total"] == 6, "two pages met them"
    store.reopen()
    assert kit.everything(store.engine).ranges == [(4, 6, "corrupt")]
    store.sim.load({gone: raw})
    assert kit.everything(store.engine).values == list(range(1, 13))


def test_every_byte_flip_in_a_cold_segment_is_told_with_its_exact_range() -> None:
    """Issue 8: a flip is damage of the very record it hit, or of nothing."""
    store = store_of(9, cold_cache_bytes=0)
    path = cold_files(store, ".data")[1]
    raw = store.sim.files()[path]
    size = len(raw) // 3
    assert size * 3 == len(raw)
    told = harmless = 0
    for at in range(len(raw)):
        for value in (raw[at] ^ 1, 0x00, 0xFF):
            if value == raw[at]:
                continue
            store.sim.set_byte(path, at, value)
            seen = kit.everything(store.engine)
            hit = 4 + at // size
            if at % size == size - 1:  # the delete byte: only 0xD5 says deleted [S-120]
                assert (seen.values, seen.ranges) == (list(range(1, 10)), [])
                harmless += 1
            else:
                assert seen.ranges == [(hit, hit, "corrupt")], (at, value)
                assert seen.values == [n for n in range(1, 10) if n != hit]
                told += 1
            store.sim.set_byte(path, at, raw[at])
    assert told > 350
    assert harmless


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_deletes_in_cold_segments_need_no_cold_io_and_stay() -> None:
    """[S-315, S-316] By tag, by seq, by prefix; the stub is the witness."""
    store = store_of(20)
    store.fail("open", times="always", path="cold/")
    assert store.engine.delete(kit.TOPIC, match="t:0").deleted == 10
    assert store.engine.delete(kit.TOPIC, seqs=[7]).deleted == 1
    assert store.engine.delete(kit.TOPIC, before_seq=4).deleted == 2
    store.engine.checkpoint(full=True)
    store.mend()
    for stop in ("", "killed", "crashed", "reopened"):
        if stop:
            store.stop(stop)
        assert kit.everything(store.engine).values == [5, 9, 11, 13, 15, 17, 19]


def test_the_cold_copy_follows_at_most_once_a_minute() -> None:
    """[S-315] Bytes and index."""
    store = store_of(7)
    store.engine.delete(kit.TOPIC, seqs=[2])
    store.engine.checkpoint(full=True)
    before = store.sim.files()
    store.relocate()
    after = store.sim.files()
    changed = sorted(path for path in after if after[path] != before.get(path))
    first = cold_files(store, ".data")[0]
    assert changed == [first, first.replace(".data", ".idx")]
    assert after[first.replace(".data", ".idx")] == after[first.replace("cold/", "store/").replace(".data", ".idx")]
    store.engine.delete(kit.TOPIC, seqs=[3])
    store.engine.checkpoint(full=True)
    store.relocate()
    assert store.sim.files()[first] == after[first]
    store.clock.advance(60_000)
    store.relocate()
    assert store.sim.files()[first] != after[first]


@pytest.mark.parametrize("stop", ["killed", "reopened"])
def test_the_cold_copy_follows_deletes_of_an_earlier_run(stop: str) -> None:
    """[S-315] A stop between a delete and the next round does not leave the copy behind for good."""
    store = store_of(7)
    store.engine.delete(kit.TOPIC, seqs=[2])
    store.engine.checkpoint(full=True)
    store.stop(stop)
    store.relocate()
    for path in cold_files(store, ".idx"):
        assert store.sim.files()[path] == store.sim.files()[path.replace("cold/", "store/")]
    before = store.sim.files()
    store.stop(stop)
    store.relocate()
    assert {path: before[path] for path in cold_files(store)} == {
        path: store.sim.files()[path] for path in cold_files(store)
    }


def test_doctor_takes_a_lost_stub_for_lost_only_if_the_next_start_would() -> None:
    """[S-316] What the tier has is fetched by a start; what it cannot be asked for is not judged."""
    store = store_of(7)
    store.engine.close()
    stub = hot_files(store, ".idx")[0]
    raw = store.sim.files()[stub]
    store.sim.load({stub: raw[:-1] + bytes([raw[-1] ^ 1])})
    assert [one.code for one in inspect(store.sim, "store", cold="cold").findings] == ["stub_lost"]
    store.sim.lose_file(stub)
    store.sim.lose_file(stub.replace(".idx", ".tag"))
    codes = {one.code for one in inspect(store.sim, "store", cold="cold").findings}
    assert codes == {"stub_lost", "tag_damaged"}
    files = unmount(store)
    assert {one.code for one in inspect(store.sim, "store", cold="cold").findings} == {"cold_unchecked"}
    mount(store, files)
    store.sim.lose_file(cold_files(store, ".idx")[0])
    assert "idx_lost" in {one.code for one in inspect(store.sim, "store", cold="cold").findings}


def test_dead_cold_segments_lose_their_objects_and_dead_prefixes_all() -> None:
    """[S-274] In mid-log the index stays, below the floors nothing does."""
    store = store_of(20)
    store.engine.delete(kit.TOPIC, seqs=[7, 8, 9])
    store.engine.checkpoint(full=True)
    store.relocate()
    third = f"seg-{7:016d}"
    assert [path for path in cold_files(store) if third in path] == []
    assert [path.rpartition("/")[2] for path in hot_files(store) if third in path] == [f"{third}.idx"]
    store.engine.delete(kit.TOPIC, before_seq=7)
    store.engine.checkpoint(full=True)
    store.relocate()
    assert not any(f"seg-{n:016d}" in path for n in (1, 4, 7) for path in store.sim.files())
    store.kill()
    assert kit.everything(store.engine).values == list(range(10, 21))


def test_drops_wait_for_a_tier_that_is_gone_and_nobody_waits_for_them() -> None:
    """[S-318] Queued and retried, also by the next start."""
    store = store_of(20)
    files = unmount(store)
    store.put(cap_records=5)
    store.engine.checkpoint(full=True)
    store.relocate()
    assert [path for path in hot_files(store, ".idx") if f"seg-{1:016d}" in path]
    store.kill()
    mount(store, files)
    store.pass_time(30_000, 5000)
    assert kit.everything(store.engine).values == [16, 17, 18, 19, 20]
    assert not any(f"seg-{1:016d}" in path for path in store.sim.files())
    assert len(cold_files(store, ".data")) == 1


def test_a_deleted_topic_takes_its_objects_along_whenever_the_tier_is_back() -> None:
    """[S-276]"""
    store = store_of(20)
    files = unmount(store)
    store.engine.delete_topic(kit.TOPIC)
    assert hot_files(store) == []
    store.relocate()
    store.kill()
    mount(store, files)
    store.relocate()
    assert cold_files(store) == ["cold/.topics-store"]
    assert store.sim.listdir("store/topics") == []


def test_objects_of_a_topic_that_went_while_no_tier_was_configured_are_swept() -> None:
    store = store_of(7)
    store.reopen(cold_dir=None)
    store.engine.delete_topic(kit.TOPIC)
    store.reopen()
    store.relocate()
    assert cold_files(store) == ["cold/.topics-store"]


def test_an_object_that_may_not_be_deleted_keeps_no_other_from_being_swept() -> None:
    """[S-318] It may be locked for a while; whatever else nobody names goes."""
    store = store_of(7)
    store.put("other")
    kit.each(store.engine, 7, name="other")
    store.settle()
    store.reopen(cold_dir=None)
    store.engine.delete_topic(kit.TOPIC)
    store.engine.delete_topic("other")
    store.reopen()
    Refusing(store, "clear", error=StoreDenied("not this one"), times=1)
    store.relocate()
    assert {path.split("/")[2] for path in cold_files(store)[1:]} == {"00000001"}
    store.pass_time(3_600_000, 3_600_000)
    assert cold_files(store) == ["cold/.topics-store"]


@pytest.mark.parametrize(("op", "part"), [("sync_dir", None), ("rename", ".idx"), ("fsync", ".data")])
@pytest.mark.parametrize("first", [1, 4])
def test_a_copy_of_a_segment_that_died_before_it_had_moved_is_swept(op: str, part: str | None, first: int) -> None:
    """[S-275, S-312] The put failed at its end or in the middle, and then somebody deleted everything in it."""
    store = kit.Store("cold")
    store.put()
    kit.each(store.engine, 7)
    store.engine.checkpoint(full=True)
    if part is None:
        store.fail(op, path="cold/topics/0", index=1 if first == 1 else 2)
    else:
        store.fail(op, path=f"cold/topics/00000001/seg-{first:016d}{part}")
    store.relocate()
    assert cold_of(store.engine) == [first == 4, first == 1, False]
    store.engine.delete(kit.TOPIC, seqs=range(first, first + 3))
    store.engine.checkpoint(full=True)
    store.stop("killed")
    store.pass_time(12_000, 6000)
    store.pass_time(3_600_000, 3_600_000)
    assert [path for path in cold_files(store) if f"{first:016d}" in path] == []
    assert kit.everything(store.engine).values == [n for n in range(1, 8) if not first <= n < first + 3]


# -- rewriting ---------------------------------------------------------------------------------------------------------


def test_a_mostly_dead_cold_segment_comes_back_smaller_and_moves_again() -> None:
    """[S-285] The old object goes behind the new one; at most once a day."""
    store = store_of(20, reclaim_rewrite=True, rewrite_min_bytes=10)
    store.engine.delete(kit.TOPIC, seqs=[1, 2])
    store.engine.checkpoint(full=True)
    store.relocate()
    store.relocate()
    store.relocate()
    one = segments_of(store.engine)[0]
    assert (one.generation, one.cold, one.n, one.live) == (1, True, 3, 1)
    names = [path.rpartition("/")[2] for path in cold_files(store, ".data")]
    assert names[0] == f"seg-{1:016d}.g0001.data"
    assert f"seg-{1:016d}.data" not in names
    assert kit.everything(store.engine).values == list(range(3, 21))
    store.kill()
    assert kit.everything(store.engine).values == list(range(3, 21))


@pytest.mark.parametrize("left", [None, "kept"])
def test_the_tags_of_what_was_rewritten_away_leave_the_tier_too(left: str | None) -> None:
    """[S-281, S-285] Also where no record has one any more."""
    store = kit.Store("cold", reclaim_rewrite=True, rewrite_min_bytes=10)
    store.put()
    for n, tag in enumerate((left, "erased", "erased", None), 1):
        kit.write(store.engine, n, tag=tag)
    store.settle()
    assert any(b"erased" in raw for path, raw in store.sim.files().items() if path.startswith("cold/"))
    store.engine.delete(kit.TOPIC, match="erased")
    store.engine.checkpoint(full=True)
    for _ in range(3):
        store.relocate()
    assert (segments_of(store.engine)[0].generation, cold_of(store.engine)[0]) == (1, True)
    assert not any(b"erased" in raw for path, raw in store.sim.files().items() if path.endswith(".tag"))
    store.kill()
    assert store.engine.delete(kit.TOPIC, match="*").deleted == (left is not None)


def test_a_clock_that_is_set_back_does_not_keep_cold_segments_from_being_rewritten() -> None:
    """[S-285] The rate is kept by a clock that nobody sets."""
    store = store_of(20, reclaim_rewrite=True, rewrite_min_bytes=10)
    store.engine.delete(kit.TOPIC, seqs=[1, 2])
    store.engine.checkpoint(full=True)
    for _ in range(3):
        store.relocate()
    store.clock.jump(-DAY_MS)
    store.engine.delete(kit.TOPIC, seqs=[4, 5])
    store.pass_time(20_000, 5000)
    assert [one.generation for one in segments_of(store.engine)[:3]] == [1, 1, 0]
    assert kit.everything(store.engine).values == [n for n in range(3, 21) if n not in (4, 5)]


def test_old_objects_of_a_rewritten_segment_wait_for_the_pin_of_a_plan_that_names_them() -> None:
    """[A-8] Also while the segment moves again, and while objects are swept."""
    store = store_of(20, reclaim_rewrite=True, rewrite_min_bytes=10)

    def names() -> set[str]:
        return {path.rpartition("/")[2] for path in cold_files(store)}

    pin = store.engine.plan(kit.TOPIC, pin_ms=3_600_000).pin
    assert pin is not None
    store.engine.delete(kit.TOPIC, seqs=[1, 2])
    store.engine.checkpoint(full=True)
    for _ in range(3):
        store.relocate()
    old, fresh = f"seg-{1:016d}.data", f"seg-{1:016d}.g0001.data"
    assert {old, fresh} <= names()
    store.clock.jump(DAY_MS)
    store.relocate()
    assert {old, fresh} <= names()
    store.engine.release_pin(pin.id)
    store.clock.jump(DAY_MS)
    store.relocate()
    assert old not in names()
    assert fresh in names()


def test_objects_of_a_deleted_topic_are_not_swept_while_a_plan_holds_them() -> None:
    """[A-8]"""
    store = store_of(20)
    pin = store.engine.plan(kit.TOPIC, pin_ms=3_600_000).pin
    assert pin is not None
    before = cold_files(store)
    store.engine.delete_topic(kit.TOPIC)
    store.clock.jump(DAY_MS)
    store.relocate()
    assert cold_files(store) == before
    store.engine.release_pin(pin.id)
    store.clock.jump(DAY_MS)
    store.relocate()
    assert cold_files(store) == ["cold/.topics-store"]


class Held:
    """Work for the tier that is not done before the test says so."""

    def __init__(self, store: kit.Store, patch: pytest.MonkeyPatch, what: str) -> None:
        self._owner = store.engine.owner
        self._held: list[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = []
        apart = self._owner.apart

        def hold(lane: str, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
            if what in getattr(getattr(work, "func", work), "__qualname__", ""):
                self._held.append((work, done))
            else:
                apart(lane, work, done)

        patch.setattr(self._owner, "apart", hold)

    def go_on(self) -> None:
        work, done = self._held.pop(0)
        work()
        with self._owner:
            done(None)


def test_a_segment_that_a_floor_passes_while_its_objects_are_dropped_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[S-274] Its index was to stay when the objects were asked for, and is not when they have gone."""
    store = store_of(20)
    store.engine.delete(kit.TOPIC, seqs=[7, 8, 9])
    store.engine.checkpoint(full=True)
    held = Held(store, monkeypatch, "delete_objects")
    store.relocate()
    store.engine.delete(kit.TOPIC, before_seq=7)
    store.engine.checkpoint(full=True)
    held.go_on()
    monkeypatch.undo()
    store.relocate()
    store.relocate()
    assert not any(f"seg-{7:016d}" in path for path in store.sim.files())


def test_a_cold_segment_is_not_rewritten_once_a_pinned_snapshot_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A-15] Not even if it was being fetched for that already."""
    store = store_of(20, reclaim_rewrite=True, rewrite_min_bytes=10, cold_rewrite_ms=1)
    store.engine.delete(kit.TOPIC, seqs=[1, 2])
    store.engine.checkpoint(full=True)
    held = Held(store, monkeypatch, "Relocator.rewrite.<locals>.fetch")
    store.relocate()
    store.relocate()
    pinned: list[Any] = []
    with store.engine.owner:
        store.engine.begin_checkpoint(pinned.append, 60_000)
    one = segments_of(store.engine)[0]
    held.go_on()
    assert (one.generation, one.cold) == (0, True)
    monkeypatch.undo()
    store.engine.release_pin(pinned[0].pin.id)
    store.clock.advance(DAY_MS)
    store.relocate()
    assert one.generation == 1
    assert kit.everything(store.engine).values == list(range(3, 21))


# -- a tier that is not there ------------------------------------------------------------------------------------------


@kit.after_every_stop
def test_a_folder_that_is_not_mounted_is_no_loss_and_stops_nothing(stop: str) -> None:
    """[C20] Not mounted at the start, some reads, mounted again, restart."""
    store = store_of(20)
    files = unmount(store)
    store.stop(stop)
    with pytest.raises(StoreUnavailable):
        store.engine.read(kit.TOPIC)
    assert kit.numbers(store.engine)[:3] == (20, 1, 20)
    assert kit.seqs(store.engine.read(kit.TOPIC, 18)) == [19, 20]
    kit.each(store.engine, 5, start=21)
    store.engine.delete(kit.TOPIC, seqs=[2, 22])
    store.engine.checkpoint(full=True)
    store.pass_time(20_000, 5000)
    assert cold_files(store) == []
    store.engine.append("other", [new(1)])
    store.engine.delete_topic("other")
    mount(store, files)
    store.clock.advance(10_000)
    expected = [n for n in range(1, 26) if n not in (2, 22)]
    assert kit.everything(store.engine).values == expected
    store.reopen()
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (expected, [])


def test_a_tier_that_is_no_longer_configured_keeps_everything_else_going() -> None:
    """[S-318]"""
    store = store_of(20)
    store.reopen(cold_dir=None)
    with pytest.raises(StoreUnavailable, match="none is configured"):
        store.engine.read(kit.TOPIC)
    kit.write(store.engine, 21)
    store.engine.delete(kit.TOPIC, match="t:0")
    store.reopen()
    assert kit.everything(store.engine).values == list(range(1, 22, 2))


class Refusing:
    """The tier of a store, with calls that are refused."""

    def __init__(self, store: kit.Store, *calls: str, error: StoreUnavailable, times: int = 1 << 30) -> None:
        self.calls = set(calls)
        self.refused = 0
        self._times = times
        self._error = error
        root = store.engine.core.cold.root
        assert root is not None
        store.engine.core.cold.root = DelayedRoot(root, self._before)

    def _before(self, call: str) -> None:
        if call in self.calls and self.refused < self._times:
            self.refused += 1
            raise self._error


@pytest.mark.parametrize("call", ["delete", "clear"])
@pytest.mark.parametrize("error", [StoreUnavailable, StoreDenied])
def test_objects_that_cannot_be_deleted_keep_no_segment_from_being_moved(
    call: str, error: type[StoreUnavailable]
) -> None:
    """[S-312, S-318] They stay in line, behind everything else."""
    store = store_of(12)
    store.put("other")
    Refusing(store, call, error=error("not now"))
    if call == "delete":
        store.engine.delete(kit.TOPIC, before_seq=4)
    else:
        store.engine.delete_topic(kit.TOPIC)
    store.engine.checkpoint(full=True)
    store.relocate()
    kit.each(store.engine, 7, name="other")
    store.engine.checkpoint(full=True)
    store.relocate()
    assert cold_of(store.engine, "other") == [True, True, False]
    assert len(store.engine.core.cold.drops) + len(store.engine.core.cold.clears) == 1


def test_a_tier_that_denies_deleting_is_not_taken_for_one_that_fails() -> None:
    """[S-318, S-323] Its records are read as ever, however often the objects are asked to go."""
    store = store_of(12, cold_cache_bytes=0)
    tier = Refusing(store, "delete", error=StoreDenied("not you"))
    store.engine.delete(kit.TOPIC, before_seq=4)
    store.engine.checkpoint(full=True)
    for _ in range(20):
        store.relocate()
        assert not store.engine.core.cold.is_failing
    assert tier.refused >= 20
    assert kit.everything(store.engine).values == list(range(4, 13))


def test_a_segment_that_cannot_be_read_here_holds_up_no_other_and_no_cold_read() -> None:
    """[S-312, S-323] What is wrong is our own disk, and one file of it."""
    store = store_of(12, cold_cache_bytes=0)
    kit.each(store.engine, 6, start=13)
    store.engine.checkpoint(full=True)
    store.fail("open", times="always", path=hot_files(store, ".data")[0])
    store.put("other")
    for run in range(10):
        kit.each(store.engine, 3, name="other", start=1 + 3 * run)
        store.engine.checkpoint(full=True)
        store.relocate()
        assert not store.engine.core.cold.is_failing
    assert kit.seqs(store.engine.read(kit.TOPIC, 0, limit=12)) == list(range(1, 13))
    assert cold_of(store.engine) == [True] * 4 + [False, True]
    assert cold_of(store.engine, "other") == [True] * 10
    store.mend()
    store.relocate()
    assert cold_of(store.engine) == [True] * 6


def test_an_index_that_cannot_be_read_while_a_round_is_planned_ends_no_round() -> None:
    """[S-312] Its own topic comes with the next one."""
    store = store_of(12, reclaim_rewrite=True, rewrite_min_bytes=10)
    store.engine.delete(kit.TOPIC, seqs=[4, 5])
    store.engine.checkpoint(full=True)
    store.relocate()
    store.put("other")
    kit.each(store.engine, 6, name="other")
    store.engine.checkpoint(full=True)
    store.engine.core.maps.clear()
    store.fail("open", path=hot_files(store, ".idx")[1])
    store.pass_time(6000)
    assert len(store.faults.hits) == 1
    assert cold_of(store.engine, "other") == [True, True]
    store.pass_time(20_000, 5000)
    one = segments_of(store.engine)[1]
    assert (one.generation, one.cold) == (1, True)
    assert kit.everything(store.engine).values == [n for n in range(1, 13) if n not in (4, 5)]


def test_a_tier_that_is_dead_is_not_asked_once_for_every_segment() -> None:
    """[S-312] A few failures in a row end the round."""
    store = kit.Store("cold")
    store.put()
    kit.each(store.engine, 60)
    store.engine.checkpoint(full=True)
    tier = Refusing(store, "store_id", "topics", "list", "len", "digest", "put", error=StoreUnavailable("gone"))
    store.relocate()
    assert 1 <= tier.refused <= 3
    tier.calls.clear()
    store.relocate()
    assert all(cold_of(store.engine))


def test_an_empty_root_is_claimed_only_by_a_store_without_cold_segments() -> None:
    """[S-14] Another store's root ends the start."""
    store = kit.Store("cold")
    store.put()
    assert FolderRoot(store.sim, "cold").store_id() == store.engine.core.store_id
    kit.each(store.engine, 4)
    store.settle()
    unmount(store)
    store.kill()
    assert FolderRoot(store.sim, "cold").store_id() is None
    FolderRoot(store.sim, "cold").claim("f" * 32)
    with pytest.raises(ColdStoreMismatch, match="f" * 32):
        store.kill()


def test_two_stores_with_one_cold_root_never_touch_each_others_objects() -> None:
    """[C25] The second does not start; a root that changes hands under a running engine is neither read nor written."""
    store = store_of(20)
    before = {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")}
    copied = {path.replace("store/", "copy/"): raw for path, raw in store.sim.files().items() if "store/" in path}
    copied["copy/meta/STORE"] = b"0" * 32 + b"\n"
    store.sim.load({path: raw for path, raw in copied.items() if "/meta/snapshot" not in path and ".lock" not in path})
    other = FolderRoot(store.sim, "cold")
    assert other.store_id() != "0" * 32
    with pytest.raises(ColdStoreMismatch):
        Engine.open("other", clock=store.clock, fs=store.sim, cold=other)
    assert {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")} == before
    store.sim.load({"cold/.topics-store": b"e" * 32 + b"\n"})
    store.clock.advance(10_001)
    store.engine.core.cold._cache.__init__(0)
    with pytest.raises(StoreUnavailable, match="another store"):
        store.engine.read(kit.TOPIC)
    kit.each(store.engine, 6, start=21)
    store.engine.delete(kit.TOPIC, before_seq=7)
    store.engine.checkpoint(full=True)
    store.pass_time(120_000, 5000)
    after = {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")}
    assert {**after, "cold/.topics-store": b""} == {**before, "cold/.topics-store": b""}


# -- lost stubs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "flipped"])
def test_a_lost_stub_is_fetched_again_if_it_is_the_one_the_snapshot_names(how: str) -> None:
    """[S-316]"""
    store = store_of(12)
    store.engine.checkpoint(full=True)
    store.engine.snapshot()
    path = hot_files(store, ".idx")[1]
    store.engine.close()
    store.sim.lose_file(path) if how == "lost" else store.sim.flip_bit(path, 3, 1)
    store.open()
    if how == "flipped":  # nobody looks at it before it is needed, and then nobody waits for the tier
        assert kit.everything(store.engine).ranges == [(4, 6, "corrupt")]
        store.relocate()
    assert kit.everything(store.engine).values == list(range(1, 13))
    store.kill()
    assert kit.everything(store.engine).values == list(range(1, 13))


def test_a_lost_stub_without_the_tier_reads_as_damage_until_the_tier_is_back() -> None:
    """[S-316] Deletes that came meanwhile are not forgotten, and nothing is final."""
    store = store_of(12)
    store.engine.checkpoint(full=True)
    store.engine.snapshot()
    store.engine.close()
    files = unmount(store)
    store.sim.lose_file(hot_files(store, ".idx")[1])
    store.open()
    page = store.engine.read(kit.TOPIC, 3)
    assert kit.gap(page) == (4, 6, "corrupt")
    store.engine.delete(kit.TOPIC, seqs=[5])
    store.engine.delete(kit.TOPIC, match="t:0")
    store.engine.checkpoint(full=True)
    store.engine.snapshot()
    store.kill()
    mount(store, files)
    store.clock.advance(60_001)
    store.relocate()
    assert kit.everything(store.engine).values == [1, 3, 7, 9, 11]
    store.engine.checkpoint(full=True)
    store.kill()
    assert kit.everything(store.engine).values == [1, 3, 7, 9, 11]


@pytest.mark.parametrize("stop", ["", *kit.STOPS])
@pytest.mark.parametrize("given", [{"seqs": [5]}, {"match": "t:1"}], ids=["seqs", "match"])
def test_a_delete_that_is_the_first_to_meet_a_damaged_stub_is_not_forgotten(given: dict[str, Any], stop: str) -> None:
    """[S-316, INV-8] Whatever checkpoints, snapshots and stops come before the tier gives the index back."""
    store = store_of(12)
    store.engine.checkpoint(full=True)
    flip_stub(store)
    store.engine.delete(kit.TOPIC, **given)
    for _ in range(2):
        store.engine.checkpoint(full=True)
    if stop:
        store.trim()
        store.stop(stop)
    store.relocate()
    kept = [n for n in range(1, 13) if n != 5] if "seqs" in given else list(range(2, 13, 2))
    assert kit.everything(store.engine).values == kept
    store.engine.checkpoint(full=True)
    for how in ("killed", "crashed"):
        store.stop(how)
        seen = kit.everything(store.engine)
        assert (seen.values, seen.ranges) == (kept, [])


def test_a_replayed_delete_that_is_the_first_to_meet_a_damaged_stub_is_not_forgotten() -> None:
    """[S-316, INV-8] It was acknowledged before the kill."""
    store = store_of(12)
    store.engine.checkpoint(full=True)
    store.engine.delete(kit.TOPIC, seqs=[5])
    flip_stub(store)
    store.kill()
    store.engine.checkpoint(full=True)
    store.relocate()
    kept = [n for n in range(1, 13) if n != 5]
    assert kit.everything(store.engine).values == kept
    store.kill()
    assert kit.everything(store.engine).values == kept


@pytest.mark.parametrize("stop", ["", *kit.STOPS])
def test_a_checkpoint_that_is_the_first_to_meet_a_damaged_stub_writes_nothing_over_it(stop: str) -> None:
    """[S-316, S-317] Nor over the tier's index; the log keeps the delete until the index is back."""
    store = kit.Store("cold")
    store.put()
    kit.each(store.engine, 7)
    store.engine.checkpoint(full=True)
    store.engine.delete(kit.TOPIC, seqs=[2])
    store.relocate()
    path = flip_stub(store, 0)
    stub = store.sim.files()[path]
    away = unmount(store)
    store.engine.checkpoint(full=True)
    store.trim()
    assert store.sim.files()[path] == stub
    assert len(store.engine.core.names[kit.TOPIC].needed) == 1
    if stop:
        store.stop(stop)
    mount(store, away)
    store.clock.advance(60_001)
    store.relocate()
    kept = [1, 3, 4, 5, 6, 7]
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (kept, [])
    store.engine.checkpoint(full=True)
    assert store.engine.core.names[kit.TOPIC].needed == []
    store.clock.advance(60_001)
    store.relocate()
    assert store.sim.files()[path.replace("store/", "cold/")] == store.sim.files()[path]
    store.kill()
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (kept, [])


def test_a_rewrite_that_is_the_first_to_meet_a_damaged_stub_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-285, S-316] What stands for the index is not taken for it."""
    store = store_of(20, reclaim_rewrite=True, rewrite_min_bytes=10)
    store.engine.delete(kit.TOPIC, seqs=[1, 2])
    store.engine.checkpoint(full=True)
    held = Held(store, monkeypatch, "Relocator.rewrite.<locals>.fetch")
    store.relocate()
    store.relocate()
    flip_stub(store, 0)
    held.go_on()
    monkeypatch.undo()
    one = segments_of(store.engine)[0]
    assert (one.generation, one.cold, one.busy, one.unindexed) == (0, True, False, True)
    segments = store.engine.core.names[kit.TOPIC].index.segments
    assert segments is not None
    with pytest.raises(OSError, match=r"index of segment 1 .* is damaged"):
        Rewrite(segments, one, b"")
    store.relocate()
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (list(range(3, 21)), [])


@pytest.mark.parametrize("stop", ["", *kit.STOPS])
def test_what_was_not_counted_because_its_stub_is_damaged_does_not_pass_for_dead(stop: str) -> None:
    """[S-274, S-316] No object goes, whatever a snapshot says of it and whoever believes that."""
    store = store_of(12)
    store.engine.checkpoint(full=True)
    away = unmount(store)
    flip_stub(store)
    assert kit.gap(store.engine.read(kit.TOPIC, 3)) == (4, 6, "corrupt")
    store.trim()
    if stop:
        store.stop(stop)
    mount(store, away)
    kit.write(store.engine, 13)
    for _ in range(2):
        store.engine.checkpoint(full=True)
        store.clock.advance(60_001)
        store.relocate()
    assert len(cold_files(store, ".data")) == 4
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (list(range(1, 14)), [])
    found = inspect(store.sim, "store", cold="cold", in_use=True).findings
    assert {one.code for one in found if one.severity != "note"} == set()


def test_a_stub_that_is_back_and_cannot_be_read_does_not_pass_for_dead() -> None:
    """[S-274, S-316] The next round tries again."""
    store = store_of(12)
    path = flip_stub(store)
    assert kit.everything(store.engine).ranges == [(4, 6, "corrupt")]
    store.fail("open", path=path, index=2)
    store.relocate()
    assert len(store.faults.hits) == 1
    kit.write(store.engine, 13)
    store.engine.checkpoint(full=True)
    store.clock.advance(60_001)
    store.relocate()
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (list(range(1, 14)), [])


@pytest.mark.parametrize("first_look", ["write", "read"])
@pytest.mark.parametrize("cap", [{"cap_records": 20}, {"cap_bytes": 31}])
def test_a_cap_takes_nothing_for_records_whose_stub_is_damaged(first_look: str, cap: dict[str, int]) -> None:
    """[S-157, S-260, S-316] What cannot be read does not count, so that nothing else has to go for it."""
    store = store_of(20)
    store.put(**cap)
    before = kit.numbers(store.engine)
    store.reopen()
    flip_stub(store, 0)
    if first_look == "read":
        assert kit.everything(store.engine).ranges == [(1, 3, "corrupt")]
        assert kit.numbers(store.engine) == (20, 4, 17, before.bytes - 3)
    kit.write(store.engine, 21)
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (list(range(4, 22)), [(1, 3, "corrupt")])
    assert kit.numbers(store.engine) == (21, 4, 18, before.bytes - 3 + 2)
    assert store.engine.core.totals.bytes == before.bytes - 3 + 2
    store.relocate()
    kit.write(store.engine, 22)
    kept = range(3, 23) if "cap_records" in cap else range(5, 23)
    seen = kit.everything(store.engine)
    assert (seen.values, seen.ranges) == (list(kept), [(1, kept[0] - 1, "cap")])
    known = kit.numbers(store.engine)
    assert kit.numbers(store.kill()) == known


def test_an_index_that_cannot_be_opened_leaves_its_segment_in_nobodys_hands() -> None:
    """[S-158] The checkpoint that met it says so, the next one does all of it, and the log lets go of the delete."""
    store = store_of(12)
    store.engine.delete(kit.TOPIC, seqs=[5])
    store.engine.core.maps.clear()
    store.fail("open", path=hot_files(store, ".idx")[1])
    with pytest.raises(WalIo, match="stay in the log"):
        store.engine.checkpoint(full=True)
    assert not any(one.busy for one in segments_of(store.engine))
    store.engine.checkpoint(full=True)
    topic = store.engine.core.names[kit.TOPIC]
    assert (topic.needed, [len(one.pending) for one in segments_of(store.engine)]) == ([], [0] * 4)
    before = store.files(".log")
    store.trim()
    assert before
    assert not set(before) & set(store.files(".log"))
    store.kill()
    assert kit.everything(store.engine).values == [n for n in range(1, 13) if n != 5]


def test_only_salvage_makes_what_the_tier_lost_final() -> None:
    """[S-317, S-316] A lost object becomes damage on disk, a lost index is taken from the tier as it is."""
    store = store_of(12)
    store.engine.delete(kit.TOPIC, seqs=[8])
    store.engine.checkpoint(full=True)
    store.engine.close()
    gone = cold_files(store, ".data")[0]
    raw = store.sim.files()[gone]
    store.sim.lose_file(gone)
    store.sim.lose_file(hot_files(store, ".idx")[2])
    config = EngineConfig(**store.options)

    def opened(fs: Fs, path: str) -> Engine:
        return Engine.open(path, config, clock=store.clock, fs=fs, boot_id="boot-0", salvage=True)

    salvage(store.sim, "store", config=config, open_engine=opened)
    store.sim.load({gone: raw})
    store.kill()
    seen = kit.everything(store.engine)
    assert seen.ranges == [(1, 3, "corrupt")]
    assert seen.values == [4, 5, 6, 7, 8, 9, 10, 11, 12], "the tier's index did not know of the delete yet"


def test_lost_tags_of_a_cold_segment_come_from_the_tier_and_no_delete_misses_them() -> None:
    """[S-187, S-316]"""
    store = store_of(12)
    path = hot_files(store, ".tag")[1]
    store.sim.lose_file(path)
    store.engine.core.maps.clear()
    with pytest.raises(Exception, match="tags of segment 4"):
        store.engine.delete(kit.TOPIC, match="t:0")
    store.relocate()
    assert store.engine.delete(kit.TOPIC, match="t:0").deleted == 6
    store.kill()
    assert kit.everything(store.engine).values == [1, 3, 5, 7, 9, 11]


def test_a_relocation_of_a_dropped_segment_leaves_no_object() -> None:
    """[S-158] Copied, then dropped before it was settled."""
    store = kit.Store("cold")
    store.put()
    kit.each(store.engine, 4)
    store.engine.checkpoint(full=True)
    assert store.engine._relocator is not None
    FolderRoot(store.sim, "cold").topic(1).put(SegmentId(1), b"x", b"y")
    store.engine.delete(kit.TOPIC, before_seq=4)
    store.engine.checkpoint(full=True)
    store.relocate()
    assert cold_files(store) == ["cold/.topics-store"]


# -- readers of the directory ------------------------------------------------------------------------------------------


def test_a_view_and_the_doctor_find_cold_records_in_an_object_store(tmp_path: Path) -> None:
    """[S-346] Through the local stub and the root that the snapshot names; a missing object is told by its seqs."""
    pytest.importorskip("obstore")
    path = str(tmp_path / "store")
    where = f"memory://{tmp_path.name}"
    config = EngineConfig(segment_max_events=10, hot_retain_segments=0, cold_dir=where, wal_init_zero=False)
    with Engine.open(path, config, clock=ManualClock()) as engine:
        engine.put_topic("t", {"durability": "fsync"})
        engine.append("t", [new(n) for n in range(1, 31)])
        engine.checkpoint(full=True)
        with engine._owner:
            engine._relocator.tick()
        assert cold_of(engine, "t") == [True, True, True]
        assert kit.everything(engine, "t").values == list(range(1, 31))
        root, id = engine.core.cold.root, engine.core.names["t"].id
        engine.checkpoint(full=True)
        assert root is not None
        view = StoreView(OsFs(), path)
        assert view.header is not None
        assert view.header.cold == where
        topic = view.topic("t")
        assert topic is not None
        rows = [seq for piece in topic.scan() if isinstance(piece, Batch) for seq in piece.seqs.tolist()]
        assert rows == list(range(1, 31))
        report = inspect(OsFs(), path, in_use=True)
        assert [one.code for one in report.findings if one.severity != "note"] == []
        root.topic(id).delete(SegmentId(11))
        missing = [one for one in inspect(OsFs(), path, in_use=True).findings if one.code == "cold_missing"]
        assert ["11" in one.what and "20" in one.what for one in missing] == [True]


@pytest.mark.parametrize("limit", [1, 4, 7, 1000])
def test_pages_as_json_are_those_of_records_and_need_one_round_of_fetching(limit: int) -> None:
    """[A-13, S-321] All blocks of a page are asked for at once; damage is told alike."""
    store = store_of(20, cold_cache_bytes=0)
    store.sim.flip_bit(cold_files(store, ".data")[2], 30, 3)
    core = store.engine.core
    cursor = 0
    while True:
        query = reading.Query.parse(kit.TOPIC, cursor, None, limit, 0, None, 0, core.limits)
        plain = store.engine.read(kit.TOPIC, cursor, limit=limit)
        before = core.cold.reads
        made = store.engine._call(lambda done, query=query: reading.read(core, query, done, Projection()))
        told = json.loads(b"[%b]" % b",".join(made.records))
        assert [one["$seq"] for one in told] == kit.seqs(plain)
        assert [one["data"] for one in told] == kit.values(plain)
        assert made.tombstone == plain.tombstone
        assert (made.next_from_seq, made.cold_segments_read) == (plain.next_from_seq, plain.cold_segments_read)
        assert core.cold.reads - before <= 7
        if plain.caught_up:
            break
        cursor = plain.next_from_seq
