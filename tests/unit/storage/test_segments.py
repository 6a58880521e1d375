"""Segments of one topic: written in the right order, read verified, deleted for good, and whole after any crash."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.storage.segkit import (
    DIR,
    LIMITS,
    Forks,
    Life,
    frames_of,
    new_disk,
    payload,
    random_life,
    tag_of,
)
from topics.codec import segment, snapshot
from topics.codec.segment import DataFrame, GapSegment
from topics.fs import OsFs
from topics.storage.descriptor import Claim, Limits, Segment, room, seal_due
from topics.storage.maps import MapCache
from topics.storage.reclaim import Rewrite, drop
from topics.storage.segments import Absent
from topics.testing import Fault, FaultFs, MonitorFs, SimFs
from topics.testing.faultfs import FAULTS
from topics.testing.simfs import SYNC_MODES


def path(first: int, kind: str, generation: int = 0) -> str:
    mark = f".g{generation:04d}" if generation else ""
    return f"{DIR}/seg-{first:016d}{mark}.{kind}"


def busy_life(disk: SimFs, **kwargs: object) -> Life:
    """Two sealed segments, one with a hole and a filler, and an active one."""
    life = Life(disk, **kwargs)
    life.write(4)
    life.checkpoint()
    life.write(2)
    life.delete(5)
    life.lose(1)
    life.write(7)
    life.delete(2)
    life.checkpoint()
    life.delete(9)
    life.checkpoint()
    return life


@pytest.mark.parametrize(
    ("entries", "data_len", "first_ts", "due"),
    [
        (0, 0, 0, False),
        (9, 99, 950, False),
        (10, 0, 950, True),
        (1, 100, 950, True),
        (1, 1, 900, True),
        (1, 1, 901, False),
    ],
)
def test_a_segment_is_sealed_by_count_size_or_age_but_never_empty(entries, data_len, first_ts, due) -> None:
    """S-127."""
    assert seal_due(entries, data_len, first_ts, 1000, Limits(10, 100, 100)) is due
    assert not seal_due(1, 1, 0, 10**15, Limits(10, 100, 0))


def test_room_says_how_many_frames_go_before_the_segment_is_due() -> None:
    """S-127: asked for a batch, it answers as asking before each entry would."""
    rng = random.Random(1)
    for _ in range(300):
        limits = Limits(rng.randint(1, 8), rng.randint(1, 300), 0)
        sizes = np.array([rng.choice((0, 40, 90)) for _ in range(rng.randint(1, 10))])
        entries, data_len = rng.randint(0, 9), rng.randint(0, 350)
        if not entries:
            data_len = 0
        n, total, fit = entries, data_len, 0
        while fit < len(sizes) and not seal_due(n, total, 0, 0, limits):
            n, total, fit = n + 1, total + int(sizes[fit]), fit + 1
        assert room(entries, data_len, sizes, limits) == fit


def test_records_fillers_holes_and_tags_come_back_from_every_kind_of_segment() -> None:
    """S-122 … S-129, S-186."""
    life = busy_life(new_disk())
    assert [(one.first, one.n, one.sealed) for one in life.topic.segments] == [
        (1, 6, True),
        (7, 6, True),
        (13, 2, False),
    ]
    life.check(life.topic, deleted=life.deleted)
    assert life.topic.active_tags() == {
        b"job:1": life.topic.active_tags()[b"job:1"],
        b"job:2": life.topic.active_tags()[b"job:2"],
    }
    assert list(life.topic.active_tags()[b"job:1"]) == [13]
    assert life.topic.find(6) is life.topic.segments[0]
    assert life.topic.find(15) is None
    assert [one.first for one in life.topic.between(6, 7)] == [1, 7]
    assert life.topic.ts_range(life.topic.segments[1]) == (1007, 1012)
    assert life.topic.missing(1, 20) == ((15, 20),)


def test_a_long_run_of_dead_seqs_ends_its_segment_and_becomes_a_gap_segment() -> None:
    """S-129: 40 bytes whatever its length, told or silent."""
    life = Life(new_disk())
    life.write(2)
    life.lose(5000)
    life.write(1)
    life.checkpoint()
    one, gap, other = life.topic.segments
    assert (one.sealed, one.n, gap.gap, gap.n, other.first) == (True, 2, GapSegment(5000, 1003, 3, 0), 5000, 5003)
    assert life.disk.size(path(3, "idx")) == 40
    assert life.topic.read(gap, [4, 5]) == [Absent.GONE] * 2
    assert life.topic.mark_deleted([1, 3, 5003]) == (2, 2 * (len(payload(1)) - 6) + 3)
    row = life.topic.rows()[1]
    assert (row.count, row.flags, row.live) == (5000, snapshot.SEALED | snapshot.GAP, 0)
    life.judge(life.disk.crash_image(1, "nothing"), replay=False)


def test_a_cycle_that_was_not_committed_shows_nothing() -> None:
    """06 §12 step 6: the mark first, then the owner's view."""
    life = busy_life(new_disk())
    before = life.topic.rows(), life.topic.claim()
    life.write(9)
    cycle = life.topic.begin()
    cycle.prepare()
    life.fill(cycle, life.head)
    cycle.sync()
    assert (life.topic.rows(), life.topic.claim()) == before
    life.check(life.topic, deleted=life.deleted)
    life.topic.abandon(cycle)
    life.check(life.topic, deleted=life.deleted)
    life.checkpoint()
    life.judge(life.disk.crash_image(1, "nothing"))


def test_the_claim_reads_delete_marks_of_frames_as_not_set() -> None:
    """S-44: a mark on its way changes no claim."""
    life = busy_life(new_disk())
    before = life.topic.claim()
    assert (before.first, before.entries) == (13, 2)
    life.delete(13)
    assert life.topic.claim() == before
    assert life.topic.rows()[-1].idx_xxh3 == before.idx_xxh3


def test_an_empty_claim_names_the_next_seq() -> None:
    life = Life(new_disk())
    assert life.topic.claim() == Claim.of(1, 0, b"")
    life.write(3)
    life.checkpoint(seal=True)
    assert life.topic.claim() == Claim.of(4, 0, b"")
    assert life.topic.active is None
    life.raise_floor(4)
    drop(life.topic, life.topic.segments[0])
    assert life.topic.claim().first == 4


def test_a_delete_counts_what_was_live_once() -> None:
    """S-157, S-272."""
    life = busy_life(new_disk())
    live, live_bytes = (sum(getattr(one, name) for one in life.topic.segments) for name in ("live", "live_bytes"))
    both = len(payload(4)) + len(payload(13)) - 12
    assert life.topic.mark_deleted([13, 2, 4, 4, 7, 99]) == (2, both)
    assert life.topic.mark_deleted([4, 13]) == (0, 0)
    for one in life.topic.segments:
        life.topic.recount(one)
    assert sum(one.live for one in life.topic.segments) == live - 2
    assert sum(one.live_bytes for one in life.topic.segments) == live_bytes - both


def test_a_job_settles_only_what_its_input_contained() -> None:
    """S-158."""
    life = busy_life(new_disk())
    life.delete(1, 13)
    life.checkpoint(between=lambda: life.delete(3, 14))
    sealed, _, active = life.topic.segments
    assert (sealed.pending.tolist(), active.pending.tolist()) == ([2], [1])
    assert life.topic.has_pending
    life.check(life.topic, deleted=life.deleted)
    crashed = life.open(life.disk.crash_image(1, "nothing")).segments
    assert isinstance(crashed.read(crashed.segments[0], [3])[0], DataFrame)
    assert crashed.read(crashed.segments[0], [1]) == [Absent.GONE]
    life.checkpoint()
    assert not life.topic.has_pending


def test_marks_survive_a_buffer_that_is_brought_in_anew() -> None:
    """S-158: pending marks are applied to every mapping."""
    life = busy_life(new_disk())
    life.delete(3)
    life.topic.reader.forget(life.topic.segments[0])
    life.check(life.topic, deleted=life.deleted)
    assert life.topic.segments[0].live == 3


def test_replayed_deletes_become_pending_even_where_the_mark_is_there() -> None:
    """06 §14 (Delete), C36: a mark in the page cache may not be on the medium."""
    life = busy_life(new_disk())
    life.restart(life.disk)
    assert [one.pending.tolist() for one in life.topic.segments] == [[1], [2], []]
    life.checkpoint()
    assert not life.topic.has_pending


@pytest.mark.parametrize("mapped", [True, False])
def test_the_same_on_a_real_disk_with_and_without_mappings(tmp_path: Path, mapped: bool) -> None:
    """S-150, S-170."""
    maps = MapCache(OsFs(), 4, use_mmap=mapped)
    life = Life(SimFs(), fs=OsFs(), dir=str(tmp_path), maps=maps)
    for _ in range(6):
        life.write(7)
        life.checkpoint()
    life.delete(*range(2, 30, 3))
    life.checkpoint()
    life.rewrite(life.topic.segments[0], late=(1,), later=(3,))
    life.checkpoint()
    life.check(life.topic, deleted=life.deleted)
    assert maps.statistics().entries <= 4
    life.restart(OsFs())
    life.check(life.topic, deleted=life.deleted)
    life.drop_first()
    assert not [name for name in tmp_path.iterdir() if name.name.startswith("seg-0000000000000001")]


def test_a_sidecar_that_is_missing_or_damaged_is_made_anew() -> None:
    """S-187."""
    for damage in ("lose", "flip", "cut"):
        life = busy_life(new_disk())
        tag = path(1, "tag")
        whole = life.disk.files()[tag]
        if damage == "lose":
            life.disk.lose_file(tag)
        elif damage == "flip":
            life.disk.flip_bit(tag, 30, 2)
        else:
            life.disk.truncate_at_rest(tag, 11)
        life.check(life.topic, deleted=life.deleted)
        assert len(life.disk.files()[tag]) >= len(whole)
        assert life.topic.tagged(life.topic.segments[0], "job:1").tolist() == [1]


def test_a_sidecar_that_cannot_be_written_is_used_all_the_same() -> None:
    disk = new_disk()
    life = busy_life(disk)
    disk.lose_file(path(1, "tag"))
    fs = FaultFs(disk, [Fault("open", 1, "ENOSPC", "always", path=".tag.tmp")])
    topic = life.open(fs).segments
    assert topic.tagged(topic.segments[0], "job:1").tolist() == [1]


def test_an_index_that_rots_under_a_running_engine_is_made_from_data_and_replaced() -> None:
    """S-176, S-130: never served wrong, whole again with the next cycle."""
    life = busy_life(new_disk())
    idx = path(1, "idx")
    for at in range(0, 60, 7):
        life.disk.flip_bit(idx, at, at % 8)
    life.topic.reader.forget(life.topic.segments[0])
    life.check(life.topic, deleted=life.deleted)
    assert life.topic.reader.corrupt == 1
    life.checkpoint()
    life.judge(life.disk.crash_image(1, "nothing"))


def test_a_frame_that_fails_twice_is_unreadable_and_its_neighbours_are_not() -> None:
    """S-176."""
    life = busy_life(new_disk())
    life.disk.flip_bit(path(1, "data"), 40, 3)
    topic = life.topic
    got = topic.read(topic.segments[0], [1, 3, 4])
    assert got[0] is Absent.UNREADABLE
    assert [one.data for one in got[1:] if isinstance(one, DataFrame)] == [payload(3), payload(4)]
    assert topic.reader.corrupt == 1


def test_a_frame_that_fails_once_is_read_again() -> None:
    life = busy_life(new_disk())
    fs = FaultFs(life.disk)
    topic = life.open(fs).segments
    topic.read(topic.segments[0], [1])
    fs.inject(Fault("pread", 1, "zero", path=".data"))
    assert isinstance(topic.read(topic.segments[0], [1])[0], DataFrame)
    assert topic.reader.corrupt == 0


def test_data_and_index_are_read_as_a_pair_across_a_rewrite() -> None:
    """S-172, S-173: a reader with an old descriptor finds its file gone, never another record."""
    life = busy_life(new_disk())
    topic = life.topic
    target = topic.segments[0]
    view = life.open(life.disk).segments
    old = view.segments[0]
    with view.entries(old):
        life.rewrite(target)
        with pytest.raises(FileNotFoundError):
            view.read(old, [1])
    assert isinstance(topic.read(target, [1])[0], DataFrame)


def test_a_rewrite_keeps_arithmetic_and_gives_the_space_back() -> None:
    """S-280, S-281."""
    life = busy_life(new_disk(), size=100)
    life.delete(1, 3)
    target = life.topic.segments[0]
    before = life.disk.size(path(1, "data"))
    life.rewrite(target, late=(4,), later=(6,))
    assert (target.generation, target.n, target.pending.tolist()) == (1, 6, [5])
    assert life.disk.size(path(1, "data", 1)) < before
    assert not life.disk.exists(path(1, "data"))
    life.check(life.topic, deleted=life.deleted)
    life.judge(life.disk.crash_image(1, "nothing"))
    life.checkpoint()
    life.rewrite(target)
    assert target.generation == 2
    assert life.disk.size(path(1, "data", 2)) == 0
    assert life.topic.tagged_prefix(target, "").tolist() == []
    life.judge(life.disk.crash_image(1, "nothing"))


def test_a_rewrite_over_a_damaged_frame_is_refused() -> None:
    """Only what is provably deleted is left out."""
    life = busy_life(new_disk())
    life.disk.flip_bit(path(1, "data"), 40, 3)
    work = Rewrite(life.topic, life.topic.segments[0])
    with pytest.raises(ValueError, match="1 frames do not verify"):
        work.copy()
    work.abandon()
    assert not life.topic.segments[0].busy


def test_drop_is_idempotent_and_unlinks_the_index_last() -> None:
    """S-274."""
    life = busy_life(new_disk())
    life.raise_floor(7)
    disk = life.disk
    disk.calls.clear()
    drop(life.topic, life.topic.segments[0])
    assert [call[1].rpartition(".")[2] for call in disk.calls if call[0] == "remove"] == ["data", "tag", "idx"]
    assert [call[0] for call in disk.calls][-1] == "sync_dir"
    assert life.topic.segments[0].first == 7
    twin = Segment(1, 6, 0)
    twin.sealed = True
    life.topic.segments.insert(0, twin)
    drop(life.topic, twin)
    life.judge(disk.crash_image(1, "nothing"))


def test_a_dead_stub_keeps_its_marks_and_tells_no_loss() -> None:
    """S-274: `.data` goes, `.idx` stays."""
    life = busy_life(new_disk())
    life.delete(*range(1, 7))
    life.checkpoint()
    life.drop_first(stub=True)
    assert sorted(name[-4:] for name in life.disk.listdir(DIR) if "0001." in name) == [".idx"]
    life.check(life.topic, deleted=life.deleted)
    life.snapshot()
    life.judge(life.disk.crash_image(1, "nothing"))
    life.drop_first()
    life.judge(life.disk.crash_image(1, "nothing"))


def test_data_is_durable_before_the_index_that_points_to_it() -> None:
    """S-190, S-361: the order of every cycle, and its crash points."""
    life = busy_life(new_disk())
    life.write(1)
    life.delete(1, 13)
    life.disk.calls.clear()
    life.checkpoint()
    short = [
        (op, "tmp" if where.endswith("tmp") else where.rpartition(".")[2] if op != "point" else where)
        for op, where, _ in life.disk.calls
    ]
    assert short == [
        ("pwrite", "data"),
        ("pwrite", "data"),
        ("point", "ckpt.after_data"),
        ("fdatasync", "data"),
        ("pwrite", "data"),
        ("fdatasync", "data"),
        ("point", "ckpt.after_data_sync"),
        ("pwrite", "idx"),
        ("fdatasync", "idx"),
        ("create", "tmp"),
        ("pwrite", "tmp"),
        ("fsync", "tmp"),
        ("rename", "tmp"),
        ("sync_dir", DIR),
        ("point", "ckpt.after_idx"),
    ]


def watch(monitor: MonitorFs, life: Life) -> None:
    """Everything a mark is about to claim is durable; sealed data changes in delete bytes only."""
    made = {one.first: one for one in life.topic.segments if not one.busy}
    for one in life.topic.segments:
        if one.gap is None and one.has_data:
            monitor.acked(path(one.first, "data", one.generation), one.data_len)
            if one.sealed:
                with life.topic.entries(one) as entries:
                    ends = (entries["offset"].astype(np.int64) + entries["len"])[entries["len"] != 0] - 1
                monitor.sealed(path(one.first, "data", one.generation), ends.tolist())
        monitor.acked(path(one.first, "idx"), life.disk.size(path(one.first, "idx")))
    assert made or life.topic.segments
    monitor.settled(DIR)


@pytest.mark.parametrize("seed", range(4))
def test_every_write_sync_and_rename_is_in_order(seed: int) -> None:
    """S-12, S-128, S-130, S-190, under the order monitor."""
    disk = new_disk(seed)
    monitor = MonitorFs(disk)
    life = Life(disk, fs=monitor, size=60)
    rng = random.Random(f"monitor {seed}")
    for n in range(25):
        life.write(rng.choice((1, 3, 7)))
        if n % 5 == 3:
            life.lose(rng.choice((2, 12)))
        life.delete(*(rng.randint(1, life.head) for _ in range(3)))
        life.checkpoint(seal=n % 7 == 5)
        watch(monitor, life)
        sealed = [one for one in life.topic.segments if one.sealed and one.has_data]
        if n % 6 == 4 and sealed:
            life.rewrite(rng.choice(sealed))
            monitor.settled(DIR)
        if n % 8 == 7:
            life.drop_first()
            monitor.settled(DIR)
    assert not monitor.violations


@pytest.mark.parametrize("seed", range(30))
def test_no_crash_at_any_disk_call_loses_or_invents_anything(seed: int) -> None:
    """S-194, S-362: random lives, a survivor judged before every disk call, some of them lived on."""
    random_life(seed, 25)


@pytest.mark.parametrize("seed", range(3))
def test_many_survivors_of_one_scripted_life(seed: int) -> None:
    """append, sync, seal, delete, sync, rewrite, drop: several survivors of every disk call."""
    life = Life(new_disk(seed), size=(0, 120, 500)[seed])
    forks = Forks(life, seed, per_call=4, go_on=0.1)
    life.write(4)
    life.checkpoint()
    life.write(5)
    life.delete(2, 5)
    life.checkpoint()
    life.snapshot()
    life.delete(1, 3)
    life.checkpoint(seal=True)
    life.rewrite(life.topic.segments[0], late=(4,), later=(6,))
    life.checkpoint()
    life.drop_first()
    life.write(2)
    life.checkpoint()
    assert forks.images > 200


def test_c13_oldest_records_deleted_in_the_tail_tell_no_loss() -> None:
    """C13: fillers hold their places in the segments."""
    life = Life(new_disk())
    life.write(8)
    life.delete(1, 2, 3)
    life.checkpoint()
    opened = life.judge(life.disk.crash_image(1, "nothing"))
    assert opened.segments.missing(1, 8) == ()


@pytest.mark.parametrize("point", ["ckpt.after_data", "ckpt.after_data_sync", "ckpt.after_idx"])
def test_c14_a_filler_and_a_delete_in_the_active_index_lose_nothing(point: str) -> None:
    """C14: the flag lands in the sector of claimed entries, and the mark never comes."""
    life = Life(new_disk())
    life.write(3)
    life.delete(2)
    life.checkpoint()
    life.write(1)
    life.delete(3)
    cycle = life.topic.begin()
    cycle.prepare()
    life.fill(cycle, life.head)
    stop = life.disk.points.count(point) + 1
    rng = random.Random(7)

    def before(call: object) -> None:
        if life.disk.points.count(point) == stop:
            for style in ("nothing", "everything", "prefix", "random"):
                life.judge(life.disk.crash_image(rng, style))

    life.disk.before = before
    cycle.sync()
    for _ in range(20):
        life.judge(life.disk.crash_image(rng))
    life.judge(life.disk.kill_image())


def test_c18_a_delete_during_a_cycle_and_a_rewrite_stays_deleted() -> None:
    """C18: whatever job holds the segment, the record is gone after the Delete frame may be trimmed."""
    life = busy_life(new_disk())
    life.checkpoint(between=lambda: life.delete(1, 14))
    target = life.topic.segments[0]
    life.rewrite(target, late=(3,), later=(4,))
    life.checkpoint()
    assert not life.topic.has_pending
    life.deleted = set()  # every Delete frame is trimmed
    life.settled = {1, 2, 3, 4, 5, 9, 14}
    twin = life.open(life.disk.crash_image(1, "nothing")).segments
    gone = [
        seq for one in twin.segments for seq in range(one.first, one.last + 1) if twin.read(one, [seq]) == [Absent.GONE]
    ]
    assert gone == [1, 2, 3, 4, 5, 7, 9, 14]


@pytest.mark.parametrize("mode", SYNC_MODES[:3])
@pytest.mark.parametrize("nth", range(1, 8))
def test_c36_a_failed_segment_sync_then_kill_start_checkpoint_and_power_loss(mode, nth: int) -> None:
    """C36, S-195: pages that a failed sync marked clean are never relied on."""
    life = busy_life(new_disk(nth), size=150)
    life.write(8)
    life.delete(1, 13)
    life.disk.fail_sync(mode, nth)
    try:
        life.checkpoint(seal=True)
    except OSError:
        life.check(life.topic, deleted=life.deleted)
    life.disk.clear_faults()
    for style in ("nothing", "random"):
        life.judge(life.disk.crash_image(nth, style))
    killed = life.disk.kill_image()
    life.disk = killed
    life.restart(killed)
    life.checkpoint()
    killed.drop_caches()
    life.check(life.topic, deleted=life.deleted)
    life.judge(killed.crash_image(nth, "nothing"))


@pytest.mark.parametrize("mode", SYNC_MODES[:3])
@pytest.mark.parametrize("nth", range(1, 8))
def test_after_a_failed_sync_the_claimed_part_is_sealed_and_the_rest_goes_to_a_new_segment(mode, nth: int) -> None:
    """S-195, in the same run: the next cycle brings everything to disk, and memory pressure changes nothing."""
    life = busy_life(new_disk(nth), size=150)
    life.write(3)
    life.delete(1, 13)
    life.disk.fail_sync(mode, nth)
    try:
        life.checkpoint()
    except OSError:
        life.check(life.topic, deleted=life.deleted)
    else:
        assert nth > 5
    life.disk.clear_faults()
    active = life.topic.active
    claimed = None if active is None else (active.first, active.n)
    life.checkpoint()
    life.disk.drop_caches()
    life.topic.reader.forget(life.topic.segments[0])
    life.check(life.topic, deleted=life.deleted)
    life.judge(life.disk.crash_image(nth, "nothing"))
    if nth == 1:
        assert claimed is not None
        assert (life.topic.segments[-2].n, life.topic.segments[-2].sealed) == (claimed[1], True)
        assert life.topic.segments[-1].first == claimed[0] + claimed[1]


def script(life: Life) -> list[object]:
    """A life in steps, each of which may fail."""
    return [
        lambda: life.write(8),
        life.checkpoint,
        lambda: life.delete(2, 7),
        life.checkpoint,
        lambda: life.write(2),
        lambda: life.lose(9),
        lambda: life.checkpoint(seal=True),
        lambda: life.rewrite(life.topic.segments[0], late=(1,), later=(3,)),
        lambda: life.drop_first() if life.topic.segments[0].last < life.head else None,
        lambda: life.write(3),
        life.checkpoint,
    ]


def run_script(life: Life) -> int:
    failed = 0
    for act in script(life):
        try:
            act()  # type: ignore[operator]
        except OSError:
            failed += 1
        except IndexError:
            assert not life.topic.segments
    return failed


def fault_cases() -> list[Fault]:
    fs = FaultFs(new_disk())
    run_script(Life(fs.inner, fs=fs))  # type: ignore[arg-type]
    cases = []
    for op, errors in FAULTS.items():
        for index in range(1, fs.counts.get(op, 0) + 1):
            for error in errors:
                for times in ("once", "always"):
                    modes = SYNC_MODES[:3] if op in ("fdatasync", "fsync") and error == "EIO" else SYNC_MODES[:1]
                    cases += [Fault(op, index, error, times, sync_mode=mode) for mode in modes]
    return cases


@pytest.mark.parametrize("part", range(8))
def test_every_fault_at_every_call_keeps_what_was_claimed_and_ends(part: int) -> None:
    """R-1, S-195: errors come through as `OSError`, nothing claimed is lost, and it works again without the fault."""
    for fault in fault_cases()[part::8]:
        disk = new_disk()
        fs = FaultFs(disk)
        life = Life(disk, fs=fs, limits=LIMITS)
        fs.inject(fault)
        try:
            run_script(life)
            life.judge(disk.kill_image())
            life.judge(disk.crash_image(1, "nothing"))
            life.judge(disk.crash_image(2, "random"))
            fs.clear()
            disk.clear_faults()
            life.checkpoint()
            life.check(life.topic, deleted=life.deleted)
            life.judge(disk.crash_image(3, "nothing"))
        except (AssertionError, OSError, ValueError) as error:
            raise AssertionError(f"{fault}: {error!r}") from error


@pytest.mark.parametrize("capacity", range(1024, 12_000, 512))
def test_a_full_disk_keeps_what_was_claimed_and_works_again_with_space(capacity: int) -> None:
    """S-80 for segments: records stay in the WAL until there is room."""
    disk = new_disk()
    disk.capacity = capacity
    life = Life(disk, size=100)
    run_script(life)
    life.judge(disk.crash_image(1, "random"))
    disk.capacity = None
    life.checkpoint()
    life.check(life.topic, deleted=life.deleted)
    life.judge(disk.crash_image(1, "nothing"))


def test_a_lost_segment_is_told_until_it_is_refilled_or_given_up() -> None:
    """S-250: `Cycle.insert` from the WAL, `give_up` where that has nothing."""
    for refill in (True, False):
        life = busy_life(new_disk())
        life.disk.lose_file(path(1, "data"))
        opened = life.open(life.disk)
        assert opened.report.lost == (1,)
        topic = opened.segments
        lost = topic.segments[0]
        assert topic.read(lost, [1, 2, 3]) == [Absent.UNREADABLE, Absent.GONE, Absent.UNREADABLE]
        if not refill:
            topic.give_up(lost)
        cycle = topic.begin()
        cycle.prepare()
        if refill:
            data, idx = frames_of([1], 0)
            rest, more = frames_of([3, 4], len(data))
            last, end = frames_of([6], len(data) + len(rest))
            silent = segment.fillers(1, 1002)
            cycle.insert(1, data + rest + last, idx + silent + more + segment.fillers(1, 1004) + end)
        cycle.sync()
        life.marked = life.marked._replace(claim=cycle.claim())
        topic.commit(cycle)
        again = life.open(life.disk.crash_image(1, "nothing"))
        assert not any(again.report)
        found = again.segments.read(again.segments.segments[0], [1, 2, 3])
        if refill:
            assert [one.data if isinstance(one, DataFrame) else one for one in found] == [
                payload(1),
                Absent.GONE,
                payload(3),
            ]
            assert found[0].tag == tag_of(1)  # type: ignore[union-attr]
        else:
            with again.segments.entries(again.segments.segments[0]) as entries:
                assert (entries["flags"] & segment.LOST != 0).tolist() == [True, False, True, True, False, True]
                assert segment.ovh(entries).tolist() == [2, 0, 2, 2, 0, 2]


def test_a_missing_range_can_be_filled_with_a_gap_segment() -> None:
    """S-250."""
    life = busy_life(new_disk())
    for kind in ("data", "idx", "tag"):
        life.disk.lose_file(path(7, kind))
    opened = life.open(life.disk)
    assert opened.report.missing == ((7, 12),)
    cycle = opened.segments.begin()
    cycle.prepare()
    cycle.insert_gap(7, GapSegment(6, 1007, 2, 0))
    cycle.sync()
    opened.segments.commit(cycle)
    again = life.open(life.disk.crash_image(1, "nothing"))
    assert not any(again.report)
    assert again.segments.segments[1].gap == GapSegment(6, 1007, 2, 0)


def test_segments_of_an_abandoned_cycle_are_gone_when_the_next_one_divides_otherwise() -> None:
    """S-195: deletes make fillers of large records, so a segment reaches over what began another one."""
    life = Life(new_disk(), size=480)
    life.write(6)
    cycle = life.topic.begin()
    cycle.prepare()
    life.fill(cycle, 6)
    cycle.sync()
    assert cycle.created == {1, 4}
    life.topic.abandon(cycle)
    life.delete(2, 3)
    life.checkpoint()
    assert [one.first for one in life.topic.segments] == [1, 6]
    assert not [name for name in life.disk.listdir(DIR) if "0004" in name]
    life.judge(life.disk.crash_image(1, "nothing"))
    life.judge(life.disk.kill_image())


def test_a_rewrite_whose_last_sync_fails_goes_on_with_the_new_pair_and_settles_nothing() -> None:
    """S-281, S-158: power loss may bring the old pair back, whole, so its deletes stay pending."""
    life = busy_life(new_disk())
    life.delete(10)
    target = life.topic.segments[1]
    work = Rewrite(life.topic, target)
    work.copy()
    life.disk.fail_sync("clean", 2)  # the new index is synced, its directory is not
    with pytest.raises(OSError, match="Input/output error"):
        work.finish()
    work.abandon()
    assert (target.generation, target.pending.tolist()) == (1, [3])
    life.check(life.topic, deleted=life.deleted)
    for seed in range(10):
        life.judge(life.disk.crash_image(seed))
    life.judge(life.disk.kill_image())
    life.delete(12)
    life.checkpoint()
    assert life.topic.reader.corrupt == 0
    life.judge(life.disk.crash_image(1, "nothing"))


def test_a_temporary_file_that_was_left_behind_never_becomes_part_of_an_index() -> None:
    """A failed write whose file could not be taken away."""
    life = busy_life(new_disk())
    life.disk.load({f"{path(1, 'idx')}.tmp": b"x" * 500, f"{path(13, 'idx')}.tmp": b"x" * 500})
    life.delete(1, 13)
    life.checkpoint(seal=True)
    life.judge(life.disk.crash_image(1, "nothing"))
