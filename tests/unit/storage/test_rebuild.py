"""Opening segments over damage: found again, rebuilt or told; never served wrong, never another topic's records."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.unit.storage.segkit import DIR, LIMITS, TOPIC, Life, Marked, frames_of, new_disk, payload, tag_of
from topics import paths
from topics.codec import segment
from topics.codec.place import topic_mask
from topics.codec.segment import DataFrame
from topics.fs import Fs
from topics.storage.descriptor import Claim, Limits
from topics.storage.maps import MapCache
from topics.storage.rebuild import NO_CLAIM, Opened, open_segments
from topics.storage.reclaim import Rewrite
from topics.storage.reindex import Frames, Range, find_frames, reindex
from topics.storage.segments import Absent
from topics.testing import Fault, FaultFs, SimFs
from topics.testing.faultfs import FAULTS
from topics.testing.simfs import Call

HOLE, FILLERS = 8, (2, 9)


def path(first: int, kind: paths.SegmentKind, generation: int = 0) -> str:
    return f"{DIR}/{paths.segment(first, kind, generation)}"


class Sample(NamedTuple):
    """A store at rest and what it holds."""

    files: dict[str, bytes]
    marked: Marked
    live: set[int]
    deleted: set[int]


def sample(*, rows: bool, limits: Limits = LIMITS) -> Sample:
    """Segments 1-6 and 7-12 sealed, 13-16 active; a hole, fillers, deleted records with and without a frame."""
    life = Life(new_disk(), limits=limits)
    life.write(7)
    life.delete(2)
    life.lose(1)
    life.write(8)
    life.delete(9)
    life.checkpoint()
    life.delete(4, 11, 14)
    life.checkpoint()
    if rows:
        life.snapshot()
    life.check(life.topic, deleted=life.deleted)
    live = set(range(1, 17)) - life.deleted - {HOLE}
    return Sample(life.disk.files(), life.marked, live, set(life.deleted))


def load(one: Sample) -> SimFs:
    disk = SimFs()
    disk.load(one.files)
    return disk


def opened_on(fs: Fs, one: Sample, *, told: bool = True, topic: int = TOPIC) -> Opened:
    ckpt, claim, floor, rows = one.marked
    maps = MapCache(fs, 16)
    return open_segments(fs, DIR, topic, maps, LIMITS, ckpt_seq=ckpt, claim=claim, rows=rows, floor=floor, told=told)


def covered(ranges: tuple[Range, ...]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def served(opened: Opened) -> dict[int, DataFrame | Absent | str]:
    """What a reader meets at each seq that a segment holds."""
    found: dict[int, DataFrame | Absent | str] = {}
    for one in opened.segments.segments:
        seqs = range(one.first, one.last + 1)
        if one.gap is not None:
            found |= dict.fromkeys(seqs, "lost" if one.gap.reason else "deleted")
            continue
        frames = opened.segments.read(one, list(seqs))
        with opened.segments.entries(one) as entries:
            flags = entries["flags"].tolist()
        for seq, got, flag in zip(seqs, frames, flags, strict=True):
            if got is Absent.GONE:
                found[seq] = "lost" if flag & segment.LOST else "deleted"
            else:
                found[seq] = got
    return found


def judge(one: Sample, opened: Opened, *, before: Opened | None = None) -> None:
    """Hold what is served against the sample; damage that `before` has told, and written down, is told."""
    report, found = opened.report, served(opened)
    missing = covered(report.missing)
    told = bool(any(report[:-1])) or opened.segments.reader.corrupt > 0 or before is not None
    revived = report.revived or (before is not None and before.report.revived)
    for seq in range(1, 17):
        got = found.get(seq)
        if isinstance(got, DataFrame):
            assert (got.seq, got.data, got.ts, got.tag) == (seq, payload(seq), 1000 + seq, tag_of(seq))
            assert seq in one.live or (seq in one.deleted and revived), f"{seq} was deleted and is back"
        elif got is None:
            assert seq in missing, f"{seq} is nowhere and nobody says so"
        elif got == "deleted":
            assert seq in one.deleted, f"{seq} is silently gone"
        else:
            assert told or seq == HOLE, f"{seq} reads as damage, and nothing was counted"
    assert set(found) <= set(range(1, 17))
    for segment_ in opened.segments.segments:
        if segment_.sealed and segment_.gap is None:
            for tag in ("job:1", "job:2", "lot:7"):
                tagged = opened.segments.tagged(segment_, tag).tolist()
                assert all(tag_of(seq) == tag.encode() for seq in tagged)
                readable = [s for s in range(segment_.first, segment_.last + 1) if isinstance(found[s], DataFrame)]
                assert {seq for seq in readable if tag_of(seq) == tag.encode()} <= set(tagged)


def judge_damaged(one: Sample, disk: SimFs, what: object) -> Opened:
    try:
        opened = opened_on(disk, one)
        judge(one, opened)
        again = opened_on(disk, one)
        judge(one, again, before=opened)
        # What the first start-up rebuilt the second takes as it is; an active segment with new holes is not what its
        # claim says until the next mark, so it is rebuilt again, to the same.
        assert covered(again.report.missing) == covered(opened.report.missing)
        assert again.report.lost == opened.report.lost
        assert set(again.report.rebuilt) <= {one.marked.claim.first}
        first, second = served(opened), served(again)
        assert {seq: type(got) for seq, got in first.items()} == {seq: type(got) for seq, got in second.items()}
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    return opened


def flips(one: Sample) -> Iterator[tuple[str, int, str]]:
    for name, data in one.files.items():
        for at in range(len(data)):
            for kind in ("bit", "zero", "ones"):
                yield name, at, kind


def inflict(disk: SimFs, name: str, at: int, kind: str) -> None:
    if kind == "bit":
        disk.flip_bit(name, at, at % 8)
    else:
        disk.set_byte(name, at, 0 if kind == "zero" else 0xFF)


PARTS = range(4) if os.environ.get("TOPICS_TEST_FLIPS") == "all" else range(0, 4, 2)
"""Of the cases, which come in threes for each byte: every other one still strikes every byte."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rows", [True, False])
def test_every_flipped_byte_is_detected_rebuilt_or_told(rows: bool, part: int) -> None:
    """T6, R-5, S-130: every byte of `.idx`, `.data` and `.tag`; `TOPICS_TEST_FLIPS=all` is the full size."""
    one = sample(rows=rows)
    cases = 0
    for name, at, kind in itertools.islice(flips(one), part, None, 4):
        disk = load(one)
        inflict(disk, name, at, kind)
        if disk.files() != one.files:
            judge_damaged(one, disk, (name, at, kind))
            cases += 1
    assert cases > 800


@pytest.mark.parametrize("rows", [True, False])
def test_every_byte_flipped_under_a_running_engine_is_detected_rebuilt_or_told(rows: bool) -> None:
    """S-176: damage that comes after the start."""
    one = sample(rows=rows)
    for name, at, kind in flips(one):
        if kind == "bit":
            disk = load(one)
            opened = opened_on(disk, one)
            inflict(disk, name, at, kind)
            try:
                judge(one, opened)
            except AssertionError as error:
                raise AssertionError(f"{name} {at}: {error}") from error


@pytest.mark.parametrize("rows", [True, False])
def test_every_shorter_file_is_rebuilt_or_told(rows: bool) -> None:
    """T7."""
    one = sample(rows=rows)
    for name, data in one.files.items():
        for size in range(len(data)):
            disk = load(one)
            disk.truncate_at_rest(name, size)
            judge_damaged(one, disk, (name, size))


@pytest.mark.parametrize("rows", [True, False])
def test_every_set_of_missing_files_is_refilled_or_told_with_the_exact_range(rows: bool) -> None:
    """C22, S-250: a hot `.data` removed, a middle pair removed, and every other subset."""
    one = sample(rows=rows)
    names = [name for name in one.files if not name.endswith(".tag")]
    for n in range(1, len(names) + 1):
        for gone in itertools.combinations(names, n):
            disk = load(one)
            for name in gone:
                disk.lose_file(name)
            opened = judge_damaged(one, disk, gone)
            for first, last in ((1, 6), (7, 12), (13, 16)):
                if path(first, "data") in gone and path(first, "idx") in gone:
                    assert set(range(first, last + 1)) <= covered(opened.report.missing)
                elif path(first, "data") in gone:
                    assert first in opened.report.lost
            if not any(".data" in name for name in gone):
                assert one.live - covered(opened.report.missing) == {
                    seq for seq, got in served(opened).items() if isinstance(got, DataFrame)
                }


def stranger() -> dict[str, bytes]:
    """The files of topic 11 with records of the same seqs, sizes and times."""
    disk = SimFs()
    disk.makedirs(DIR)
    topic = open_segments(disk, DIR, 11, MapCache(disk, 4), LIMITS, ckpt_seq=0, claim=NO_CLAIM).segments
    cycle = topic.begin()
    cycle.prepare()
    for seq in range(1, 17):
        if cycle.entries == LIMITS.max_events:
            cycle.seal()
        if seq in (*FILLERS, HOLE):
            cycle.append_run(seq, 1, 1000 + seq, 3 if seq == HOLE else 0)
        else:
            cycle.append(seq, *frames_of([seq], cycle.data_len, topic=11))
    cycle.sync()
    return disk.files()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("kind", ["data", "idx", "tag", "all"])
def test_c22_files_of_two_topics_swapped_are_never_served(kind: str, rows: bool) -> None:
    """C22, S-135: masks bind files to their topic and segment."""
    one = sample(rows=rows)
    strange = stranger()
    for first in (1, 7, 13):
        swapped = [path(first, one_kind) for one_kind in ("data", "idx", "tag") if kind in (one_kind, "all")]
        disk = load(one)
        disk.load({name: strange[name] for name in swapped if name in strange})
        opened = opened_on(disk, one)
        judge(one, opened)
        found = {seq for seq, got in served(opened).items() if isinstance(got, DataFrame)}
        inside = set(range(first, min(first + 6, 17)))
        if kind in ("idx", "tag"):
            assert found == one.live
        else:
            assert found == one.live - inside


@pytest.mark.parametrize("rows", [True, False])
def test_files_of_two_segments_swapped_are_never_served(rows: bool) -> None:
    """S-135: an `.idx` or `.tag` knows its segment, a frame its seq."""
    one = sample(rows=rows)
    for kind in ("data", "idx", "tag"):
        disk = load(one)
        disk.swap_files(path(1, kind), path(7, kind))
        judge(one, opened_on(disk, one))


def test_a_class_that_tells_no_loss_gets_silent_fillers() -> None:
    """S-130, S-246."""
    one = sample(rows=False)
    disk = load(one)
    disk.truncate_at_rest(path(1, "data"), len(one.files[path(1, "data")]) - 1)
    opened = opened_on(disk, one, told=False)
    assert opened.report.rebuilt == (1,)
    assert opened.report.given_up == (Range(6, 6),)
    assert served(opened)[6] == "deleted"
    assert served(opened_on(load(one), one, told=False))[6] != "deleted"


def test_c39_a_flipped_bit_in_a_footer_leaves_the_segment_whole() -> None:
    """C39: generation and every other byte of the footer, over one and two generations."""
    for generations in (1, 2):
        life = Life(new_disk())
        life.write(7)
        life.checkpoint()
        life.delete(2, 5)
        life.checkpoint()
        if generations == 2:
            work = Rewrite(life.topic, life.topic.segments[0])
            work.copy()
            work.finish()
            work.commit()  # and no clean-up: the old generation is still there
        idx = path(1, "idx")
        size = life.disk.size(idx)
        for at, bit in itertools.product(range(size - 20, size), range(8)):
            disk = life.disk.crash_image(1, "nothing")
            disk.flip_bit(idx, at, bit)
            opened = life.open(disk)
            assert opened.report.rebuilt == (1,)
            assert not opened.report.given_up
            assert not opened.report.removed
            life.check(opened.segments, deleted=life.deleted)
            life.judge(disk)


def test_c40_a_crash_between_the_renames_of_a_rewrite_leaves_one_whole_generation() -> None:
    """C40, S-283: any subset of the directory changes."""
    for seed in range(40):
        life = Life(new_disk(seed), size=90)
        life.write(7)
        life.checkpoint()
        life.delete(1, 4)
        life.checkpoint()
        rng = random.Random(f"c40 {seed}")

        def before(call: object, life: Life = life, rng: random.Random = rng) -> None:
            survivor = life.disk.crash_image(rng, "random")
            opened = life.judge(survivor)
            left = [
                name for name in survivor.listdir(DIR) if name.startswith("seg-0000000000000001") and "data" in name
            ]
            assert len(left) == 1
            assert opened.segments.segments[0].generation == (1 if "g0001" in left[0] else 0)

        life.disk.before = before
        life.rewrite(life.topic.segments[0], late=(6,))


def test_a_generation_that_is_named_but_short_is_not_trusted_over_a_whole_one() -> None:
    """S-283: nothing is unlinked, the index is made from what verifies."""
    life = Life(new_disk())
    life.write(7)
    life.checkpoint()
    life.delete(2)
    life.checkpoint()
    old = life.disk.files()[path(1, "data")]
    life.rewrite(life.topic.segments[0])
    life.disk.load({path(1, "data"): old})
    life.disk.truncate_at_rest(path(1, "data", 1), 100)
    opened = life.open(life.disk)
    assert opened.report.rebuilt == (1,)
    assert not opened.report.given_up
    assert not opened.report.removed
    life.check(opened.segments)


def test_what_is_not_claimed_is_cut_or_unlinked_and_nothing_else() -> None:
    """06 §14 step 5, S-10."""
    life = Life(new_disk())
    life.write(4)
    life.checkpoint()
    claimed = life.disk.files()
    cycle = life.topic.begin()
    cycle.prepare()
    life.write(9)
    life.fill(cycle, life.head)
    cycle.sync()
    strangers = {
        f"{DIR}/{name}": b"not ours"
        for name in ("topic.json", "seg-1.data", "seg-0000000000000001.data.salvaged", "x.tmp")
    }
    cut_short = {f"{path(1, 'idx')}.tmp": b"half", f"{path(99, 'data')}.tmp": b"", f"{DIR}/topic.json.tmp": b"{"}
    life.disk.load({**strangers, **cut_short})
    opened = life.open(life.disk)
    files = life.disk.files()
    assert {name: files[name] for name in strangers} == strangers
    assert {name: data for name, data in files.items() if name not in strangers} == claimed
    assert sorted(opened.report.removed) == sorted(
        ["seg-0000000000000001.idx.tmp", "seg-0000000000000099.data.tmp", "topic.json.tmp", "seg-0000000000000001.tag"]
        + [
            f"seg-{first:016d}.{kind}"
            for first, kind in ((7, "data"), (7, "idx"), (7, "tag"), (13, "data"), (13, "idx"))
        ]
    )


def test_a_topic_that_was_never_checkpointed_starts_empty() -> None:
    life = Life(new_disk())
    cycle = life.topic.begin()
    cycle.prepare()
    life.write(20)
    life.fill(cycle, 20)
    cycle.sync()
    opened = life.open(life.disk.crash_image(1, "everything"))
    assert opened.segments.segments == []
    assert not any(opened.report[:-1])


def test_segments_that_an_attach_mark_names_stay() -> None:
    """06 §14 step 5, S-288."""
    one = sample(rows=False)
    disk = load(one)
    ckpt, claim = 6, Claim.of(7, 0, b"")
    kept = open_segments(disk, DIR, TOPIC, MapCache(disk, 4), LIMITS, ckpt_seq=ckpt, claim=claim, attached={7})
    assert [segment_.first for segment_ in kept.segments.segments] == [1, 7]
    assert sorted(kept.report.removed) == ["seg-0000000000000013.data", "seg-0000000000000013.idx"]


def test_counts_come_from_the_rows_and_entries_are_not_read() -> None:
    """06 §14 step 6: work per segment, never per sealed record."""
    one = sample(rows=True)
    disk = load(one)
    opened = opened_on(disk, one)
    assert [(s.live, s.live_bytes, s.min_ts) for s in opened.segments.segments[:2]] == [
        (row.live, row.live_bytes, None) for row in one.marked.rows[:2]
    ]
    for segment_ in opened.segments.segments:
        counts = segment_.live, segment_.live_bytes
        opened.segments.recount(segment_)
        assert (segment_.live, segment_.live_bytes) == counts


def test_a_segment_whose_row_is_older_is_recounted() -> None:
    life = Life(new_disk())
    life.write(8)
    life.checkpoint()
    life.snapshot()
    life.delete(3)
    life.checkpoint()
    opened = life.open(life.disk)
    assert opened.segments.segments[0].live == 5


def test_an_interrupted_drop_is_finished_and_never_told() -> None:
    """S-274, S-275: every subset of the three unlinks."""
    for gone in itertools.chain.from_iterable(itertools.combinations(("data", "tag", "idx"), n) for n in range(4)):
        for rows in (True, False):
            one = sample(rows=rows)
            disk = load(one)
            for kind in gone:
                disk.lose_file(path(1, kind))
            raised = one._replace(marked=one.marked._replace(floor=7))
            report = opened_on(disk, raised).report
            assert not report.missing
            assert not report.lost
            assert not report.rebuilt
            if "idx" in gone:
                assert not [name for name in disk.listdir(DIR) if name.startswith("seg-0000000000000001")]


def test_every_fault_while_opening_comes_through_and_changes_nothing_for_the_next_start() -> None:
    """S-248: no topic opens over what could not be read; S-230: it may be repeated."""
    for rows, damage in itertools.product((True, False), (False, True)):
        one = sample(rows=rows)
        counting = FaultFs(_disturbed(one, damage))
        expected = {seq: type(got) for seq, got in served(opened_on(counting, one)).items()}
        counts = dict(counting.counts)
        for op, errors in FAULTS.items():
            for index, error in itertools.product(range(1, counts.get(op, 0) + 1), errors):
                disk = _disturbed(one, damage)
                fs = FaultFs(disk, [Fault(op, index, error)])
                try:
                    judge(one, opened_on(fs, one))
                except OSError:
                    pass
                fs.clear()
                found = served(opened_on(disk, one))
                assert {seq: type(got) for seq, got in found.items()} == expected, (op, index, error)


def _disturbed(one: Sample, damage: bool) -> SimFs:
    """The sample with an unclaimed segment, a longer active one, and perhaps a damaged index."""
    disk = load(one)
    disk.load({path(17, "data"): b"x", path(17, "idx"): b"y", path(13, "data"): one.files[path(13, "data")] + b"more"})
    if damage:
        disk.flip_bit(path(7, "idx"), 3, 1)
    return disk


@pytest.mark.parametrize("seed", range(3))
def test_opening_may_be_cut_short_at_any_disk_call(seed: int) -> None:
    """S-230, S-249: the power fails while a damaged, uncut directory is opened."""
    one = sample(rows=bool(seed % 2))
    rng = random.Random(f"opening {seed}")
    disk = _disturbed(one, damage=True)

    def before(call: object) -> None:
        for _ in range(4):
            again = opened_on(disk.crash_image(rng), one)
            judge(one, again, before=again)
            assert one.live <= {seq for seq, got in served(again).items() if isinstance(got, DataFrame)}

    disk.before = before
    opened_on(disk, one)


def test_an_index_bit_that_data_contradicts_is_cleared_and_counted() -> None:
    """06 §14 step 5: the bit alone cannot come from a crash [S-190]."""
    one = sample(rows=False)
    disk = load(one)
    disk.flip_bit(path(13, "idx"), 16, 2)
    opened = opened_on(disk, one)
    assert opened.report.revived == 1
    assert isinstance(served(opened)[13], DataFrame)
    other = load(one)
    data = path(13, "data")
    end = int(np.frombuffer(one.files[path(13, "idx")], segment.IDX)["offset"][2]) - 1
    assert one.files[data][end] == segment.DELETE_BYTE
    other.set_byte(data, end, 0x5D)
    opened = opened_on(other, one)
    assert opened.report.revived == 0
    assert served(opened)[14] == "deleted"


def test_frames_behind_damage_are_found_again() -> None:
    """S-130: one bad frame costs one record."""
    data, _ = frames_of(list(range(5, 15)), 0)
    mask = topic_mask(TOPIC)
    whole = find_frames(data, mask, 5, 14)
    assert whole.whole
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= 0x10
        found = find_frames(hurt, mask, 5, 14)
        lost = set(range(5, 15)) - set(found.rows["seq"].tolist())
        frame_at = int(np.searchsorted(whole.rows["offset"], at, side="right")) - 1
        is_delete_byte = at == int(whole.rows["offset"][frame_at] + whole.rows["len"][frame_at]) - 1
        assert lost == (set() if is_delete_byte else {5 + frame_at})
    assert len(find_frames(data, mask, 7, 9).rows) == 3
    assert not len(find_frames(data, mask ^ 1, 5, 14).rows)


def test_a_rebuilt_index_equals_the_one_that_was_written() -> None:
    """S-130: with the old entries at hand nothing is given up."""
    one = sample(rows=False)
    for first in (1, 7):
        data, raw = one.files[path(first, "data")], one.files[path(first, "idx")]
        old = np.frombuffer(raw, segment.IDX)[:-1]
        frames = find_frames(data, topic_mask(TOPIC), first, first + 5)
        made = reindex(data, frames, first, 6, old)
        assert made.entries.tobytes() == old.tobytes()
        assert made.given_up == ()
        bare = reindex(data, frames, first, 6, None)
        assert {seq for gone in bare.given_up for seq in range(gone.first, gone.last + 1)} == {2, 8, 9} & set(
            range(first, first + 6)
        )
        empty = reindex(b"", Frames(np.empty(0, segment.ROW), True), first, 6, old)
        assert empty.given_up == (Range(first, first + 5),)


def test_the_first_claim_of_a_run_rests_on_durable_names() -> None:
    """A kill between a rename and its directory sync leaves a file that power loss exchanges for the old one."""
    life = Life(new_disk())
    life.write(3)
    life.checkpoint()
    life.write(1)
    killed: list[SimFs] = []

    def before(call: Call) -> None:
        if call[0] == "create" and ".tag" in call[1]:
            killed.append(life.disk.kill_image())

    life.disk.before = before
    cycle = life.topic.begin()  # and never heard of again
    cycle.prepare()
    life.fill(cycle, 4)
    cycle.seal()
    life.disk = killed[0]
    life.restart(life.disk)
    life.lose(1)  # a filler: its entry is nowhere else
    life.checkpoint()
    life.judge(life.disk.crash_image(1, "nothing"))


def test_without_any_index_what_a_rewrite_left_out_stays_deleted() -> None:
    """S-280, S-283: the newer generation lacks exactly what was deleted."""
    life = Life(new_disk())
    life.write(7)
    life.checkpoint()
    life.delete(2, 5)
    life.checkpoint()
    work = Rewrite(life.topic, life.topic.segments[0])
    work.copy()
    work.finish()
    work.commit()
    life.disk.lose_file(path(1, "idx"))
    opened = life.open(life.disk)
    assert opened.report.rebuilt == (1,)
    assert not opened.report.given_up
    assert opened.segments.segments[0].generation == 1
    life.check(opened.segments, deleted=life.deleted)


def test_what_an_abandoned_cycle_wrote_never_comes_back_through_a_rebuild() -> None:
    """S-195: records deleted since, whose frames lie behind the end of the shorter `.data`."""
    life = Life(new_disk())
    life.write(2)
    life.checkpoint()
    life.write(4)
    cycle = life.topic.begin()
    cycle.prepare()
    life.fill(cycle, 6)
    cycle.sync()
    life.topic.abandon(cycle)
    life.delete(5, 6)
    life.checkpoint(seal=True)
    life.deleted, disk = set(), life.disk.crash_image(1, "nothing")
    disk.lose_file(path(1, "idx"))
    opened = life.open(disk)
    assert (opened.segments.segments[0].n, opened.segments.segments[0].live) == (4, 4)
    assert opened.report.missing == (Range(5, 6),)
