"""Salvage, its mechanical part [S-66]: damaged ranges become Pads of their length, copied first, and all else stays."""

from __future__ import annotations

import random

import pytest

from tests.unit.storage import kit, storekit
from topics import paths
from topics.codec import control, frame
from topics.codec.snapshot import WalRow
from topics.errors import MetadataLost, UnsupportedFormat, WalCorrupt
from topics.storage import group as groups
from topics.storage import salvage
from topics.storage.salvage import Plan, Span, pad, plan_salvage
from topics.testing import MonitorFs, PowerLoss, SimFs
from topics.testing.simfs import STYLES

ROOT = "store"
MARK = len(kit.open_mark(1))
ONE = kit.log_file(1, kit.append(1), kit.append(2), kit.append(3))


def two(*parts: bytes, prev: int = len(ONE)) -> bytes:
    return kit.log_file(2, *parts, prev=(1, prev))


SYNCED = kit.mark(control.SyncMark(), synced_prefix=True)


def disk_of(parts: dict[int, bytes], *, current: int | None = None, more: storekit.Files | None = None) -> SimFs:
    return storekit.on_sim(storekit.base_files() | storekit.wal_files(parts, current=current) | (more or {}))


def salvaged(disk: SimFs) -> Plan:
    """Plan, see that planning changed nothing, pad under the order monitor, see that nothing is left to do."""
    before, calls = disk.files(), disk.disk_calls
    plan = plan_salvage(disk, ROOT)
    assert (disk.files(), disk.disk_calls) == (before, calls)
    pad(MonitorFs(disk, trust_existing=True), plan)
    assert plan_salvage(disk, ROOT).is_empty
    return plan


def seqs(disk: SimFs, position: tuple[int, int] = (1, 0), key: str = "") -> list[int]:
    """The records that a replay of the group applies."""
    dir = f"{ROOT}/wal/{key}".rstrip("/")
    group = groups.read_group(disk, dir, key, position)
    found: list[int] = []
    for file in group.files:
        _, rows = groups.replay(disk, group, file)
        found += rows["seq"][rows["type"] == frame.APPEND].tolist()
    return found


def wal(number: int, shard: str = "") -> str:
    return f"{ROOT}/wal/{shard}{'/' if shard else ''}{paths.wal_file(number)}"


def spans(plan: Plan) -> list[tuple[int, list[tuple[int, int]]]]:
    return [(patch.number, [tuple(span) for span in patch.spans]) for patch in plan.patches]


HEALTHY = {
    "one file": {1: ONE},
    "zeros behind": {1: ONE + bytes(500)},
    "two files": {1: ONE + bytes(9), 2: two(kit.append(4))},
    "a torn tail": {1: ONE, 2: two(kit.append(4)) + kit.append(5)[:40]},
    "a torn submission": {1: ONE + kit.chain(4, 3)[:128]},
    "islands behind the last sync": {1: ONE + kit.flip(kit.append(4), 40) + kit.append(5)},
    "nothing at all": {},
    "a prepared file": {1: ONE, 2: bytes(4096)},
}


@pytest.mark.parametrize("parts", HEALTHY.values(), ids=HEALTHY)
def test_nothing_is_planned_where_recovery_needs_no_help(parts: dict[int, bytes]) -> None:
    """06 §5 rows 1-3: a torn tail is recovery's business, not salvage's."""
    assert plan_salvage(disk_of(parts, current=max(parts, default=None)), ROOT).is_empty


def test_damage_in_an_inner_file_becomes_pads_of_its_length() -> None:
    """S-66: the range ends at the next valid frame, the frames behind it are read again."""
    disk = disk_of({1: kit.flip(ONE, MARK + 64 + 40), 2: two(kit.append(4))})
    plan = salvaged(disk)
    assert spans(plan) == [(1, [(MARK + 64, MARK + 128)])]
    assert seqs(disk) == [1, 3, 4]
    assert len(disk.files()[wal(1)]) == len(ONE)


def test_the_damaged_file_is_kept_as_it_was() -> None:
    """S-66, R-3: copies first, synced."""
    damaged = kit.flip(ONE, MARK + 64 + 40)
    disk = disk_of({1: damaged, 2: two(kit.append(4))})
    salvaged(disk)
    assert disk.crash_image(1, "nothing").files()[wal(1) + ".salvaged"] == damaged
    assert disk.files()[wal(2)] == two(kit.append(4))
    assert wal(2) + ".salvaged" not in disk.files()


def test_every_file_is_copied_before_the_first_byte_is_changed() -> None:
    """S-66: all copies are durable by then."""
    damaged = {1: kit.flip(ONE, MARK + 40), 2: kit.flip(two(kit.append(4), kit.append(5)), MARK + 90), 3: b""}
    damaged[3] = kit.log_file(3, kit.append(6), prev=(2, len(damaged[2])))
    disk = disk_of(damaged)
    pad(disk, plan_salvage(disk, ROOT))
    names = [(op, path.rpartition("/")[2]) for op, path, _ in disk.calls if op != "point"]
    changed = [at for at, (op, name) in enumerate(names) if op == "pwrite" and name.endswith(".log")]
    renamed = [at for at, (op, _) in enumerate(names) if op == "rename"]
    synced = [at for at, (op, _) in enumerate(names) if op == "sync_dir"]
    assert len(renamed) == 2
    assert max(renamed) < synced[0] < min(changed)


def test_several_ranges_of_one_file_and_of_the_tail_file() -> None:
    """S-66: each range by itself; in the tail file only those that a sync is known to have covered."""
    tail = two(kit.append(4), kit.flip(kit.append(5), 50), kit.append(6), SYNCED) + kit.flip(kit.append(7), 50)
    inner = kit.flip(kit.flip(ONE, MARK + 20), MARK + 128 + 20)
    disk = disk_of({1: inner, 2: tail})
    plan = salvaged(disk)
    head = len(two())
    assert spans(plan) == [(1, [(MARK, MARK + 64), (MARK + 128, MARK + 192)]), (2, [(head + 64, head + 128)])]
    assert seqs(disk) == [2, 4, 6]


def test_what_is_left_of_a_cut_submission_counts() -> None:
    """S-66: a Pad has `more` clear, so the frames in front of it are applied; a chain that lost its end too."""
    chained = kit.chain(2, 4)
    inner = kit.log_file(1, kit.append(1), kit.flip(chained, 64 + 30))
    disk = disk_of({1: inner, 2: two(kit.append(6), prev=len(inner))})
    salvaged(disk)
    assert seqs(disk) == [1, 2, 4, 5, 6]
    cut = kit.log_file(1, kit.append(1), chained[:128])
    disk = disk_of({1: cut + bytes(64), 2: kit.log_file(2, kit.append(6))})
    salvaged(disk)
    assert seqs(disk) == [1, 2, 3, 6]


def test_a_chain_without_its_end_is_ended_also_where_the_length_is_right() -> None:
    """06 §5 row 5: the last frame of an inner file must have `more` clear; the length gives way."""
    cut = kit.log_file(1, kit.append(1), kit.chain(2, 3)[:128])
    disk = disk_of({1: cut, 2: two(kit.append(6), prev=len(cut))})
    assert [number for number, _ in spans(salvaged(disk))] == [1, 2]
    assert seqs(disk) == [1, 2, 3, 6]


def test_what_was_padded_survives_power_loss() -> None:
    """S-66: Pads, made files and `CURRENT` are synced."""
    parts = {1: kit.flip(ONE, MARK + 20), 3: kit.log_file(3, kit.append(9), prev=(2, 500))}
    disk = disk_of(parts, current=5)
    salvaged(disk)
    for style in STYLES:
        image = disk.crash_image(7, style)
        assert seqs(image) == [2, 3, 9], style
        assert plan_salvage(image, ROOT).is_empty


@pytest.mark.parametrize("rest", ["cut", "zeros", "garbage"])
def test_a_file_shorter_than_the_next_open_mark_says_is_filled_up(rest: str) -> None:
    """S-68, S-66: also where the end reads as zeros."""
    short = ONE[: MARK + 64]
    made = {"cut": short, "zeros": short.ljust(len(ONE) + 100, b"\0"), "garbage": short.ljust(len(ONE) + 7, b"?")}[rest]
    disk = disk_of({1: made, 2: two(kit.append(4))})
    plan = salvaged(disk)
    assert spans(plan) == [(1, [(MARK + 64, len(ONE))])]
    assert seqs(disk) == [1, 4]


def test_a_length_that_cannot_be_met_gives_way() -> None:
    """S-68: frames that verify are kept; the open mark that contradicts them becomes a Pad."""
    disk = disk_of({1: ONE, 2: two(kit.append(4), prev=len(ONE) - 64)})
    plan = salvaged(disk)
    assert spans(plan) == [(2, [(0, len(two(prev=len(ONE) - 64)))])]
    assert seqs(disk) == [1, 2, 3, 4]


def test_bytes_behind_the_end_of_an_inner_file_are_cut_off() -> None:
    """S-68: the next open mark says where the file ends."""
    disk = disk_of({1: ONE + b"junk", 2: two(kit.append(4))})
    plan = salvaged(disk)
    assert [(patch.spans, patch.cut) for patch in plan.patches] == [((), len(ONE))]
    assert disk.files()[wal(1)] == ONE
    assert disk.files()[wal(1) + ".salvaged"] == ONE + b"junk"
    assert seqs(disk) == [1, 2, 3, 4]


def test_damage_up_to_the_end_without_a_length_is_padded() -> None:
    """06 §5 row 5: the next file's open mark is damaged as well."""
    disk = disk_of({1: ONE[:-10] + bytes(40), 2: kit.flip(two(kit.append(4)), 30), 3: kit.log_file(3, kit.append(5))})
    plan = salvaged(disk)
    assert [number for number, _ in spans(plan)] == [1, 2]
    assert seqs(disk) == [1, 2, 4, 5]


def test_a_damaged_open_mark_is_padded() -> None:
    """S-20, S-66: the records behind it are read."""
    disk = disk_of({1: kit.flip(ONE, 25), 2: two(kit.append(4))})
    assert spans(salvaged(disk)) == [(1, [(0, MARK)])]
    assert seqs(disk) == [1, 2, 3, 4]


@pytest.mark.parametrize("was", ["absent", "empty", "zeros"])
def test_a_missing_file_is_made_of_pads_as_long_as_it_was(was: str) -> None:
    """S-64, S-66: so that the numbers have no hole and the next open mark is right."""
    left = {1: ONE, 3: kit.log_file(3, kit.append(9), prev=(2, 500))}
    left |= {"absent": {}, "empty": {2: b""}, "zeros": {2: bytes(4096)}}[was]
    disk = disk_of(left)
    plan = salvaged(disk)
    assert spans(plan) == [(2, [(0, 500)])]
    assert [patch.why for patch in plan.patches] == ["the file is missing"]
    assert seqs(disk) == [1, 2, 3, 9]


def test_several_missing_files_without_lengths_are_made_up_for() -> None:
    """S-64: the length of only the last one is known."""
    disk = disk_of({1: ONE, 5: kit.log_file(5, kit.append(9), prev=(4, 300))})
    assert spans(salvaged(disk)) == [(2, [(0, 46)]), (3, [(0, 46)]), (4, [(0, 300)])]
    assert seqs(disk) == [1, 2, 3, 9]


def test_a_stray_file_with_a_high_number_is_refused() -> None:
    """A bound on what is made up for."""
    with pytest.raises(WalCorrupt, match="far above"):
        plan_salvage(disk_of({1: ONE, 10**15: kit.log_file(10**15, kit.append(9))}), ROOT)


def position(file_no: int, offset: int) -> storekit.Files:
    return storekit.snapshot_file(1, [], [WalRow("", file_no, offset)])


@pytest.mark.parametrize("left", [None, 0, 10, MARK, MARK + 40])
def test_a_file_that_does_not_reach_the_replay_position_is_filled_up_to_it(left: int | None) -> None:
    """S-211: what lies below the position is in segments; the frames of later files are read."""
    at = MARK + 64
    parts = {2: two(kit.append(4))} | ({} if left is None else {1: ONE[:left]})
    disk = disk_of(parts, more=position(1, at))
    salvaged(disk)
    assert seqs(disk, (1, at)) == [4]
    assert len(disk.files()[wal(1)]) == len(ONE)


def test_the_only_file_lost_leaves_a_store_that_opens() -> None:
    """S-211: it held what came behind the snapshot; that it is lost is what salvage is for."""
    disk = disk_of({}, more=position(3, 900))
    assert spans(salvaged(disk)) == [(3, [(0, 900)])]
    assert seqs(disk, (3, 900)) == []
    disk = disk_of({}, more=storekit.snapshot_file(1, [], [WalRow("shard-01", 3, 900)]))
    salvaged(disk)
    assert seqs(disk, (3, 900), "shard-01") == []


def test_damage_below_the_replay_position_is_left_alone() -> None:
    """S-63."""
    disk = disk_of({1: kit.flip(ONE, MARK + 20), 2: two(kit.append(4))}, more=position(1, MARK + 64))
    assert plan_salvage(disk, ROOT).is_empty
    disk = disk_of({2: two(kit.append(4))}, more=storekit.snapshot_file(1, [], [WalRow("", 1, 0, 1)]))
    assert plan_salvage(disk, ROOT).is_empty


@pytest.mark.parametrize("named", [2, 9_000_000_000_000_001])
def test_a_current_that_names_a_lost_file_is_rewritten(named: int) -> None:
    """S-64: the file it names is gone with what it held; what was before it was synced."""
    disk = disk_of({1: ONE[:-10] + b"?" * 10}, current=named)
    plan = salvaged(disk)
    assert [(one.named, one.number) for one in plan.pointers] == [(named, 1)]
    assert spans(plan) == [(1, [(MARK + 128, MARK + 192)])]
    assert disk.files()[f"{ROOT}/wal/CURRENT.salvaged"] == f"{paths.wal_file(named)}\n".encode()
    assert seqs(disk) == [1, 2]


def test_a_current_whose_file_was_trimmed_is_left_alone() -> None:
    """S-64, S-89: nothing behind the position that replay begins at is lost."""
    trimmed = storekit.snapshot_file(1, [], [WalRow("", 6, 0)])
    assert plan_salvage(disk_of({}, current=5, more=trimmed), ROOT).is_empty
    assert not plan_salvage(disk_of({}, current=6, more=trimmed), ROOT).is_empty


def test_a_current_without_any_file_is_removed() -> None:
    """S-64."""
    disk = disk_of({}, current=1)
    assert [one.number for one in salvaged(disk).pointers] == [0]
    assert f"{ROOT}/wal/CURRENT" not in disk.files()


def test_shards_are_salvaged_one_by_one() -> None:
    """06 §14 step 4: every group, whatever the shard count."""
    files = storekit.base_files()
    for shard in (0, 1):
        parts = {1: kit.log_file(1, kit.append(1), kit.append(2), shard=shard, shards=2)}
        parts[2] = kit.log_file(2, kit.append(3), prev=(1, len(parts[1])), shard=shard, shards=2)
        if shard:
            parts[1] = kit.flip(parts[1], len(parts[1]) - 70)
        files |= storekit.wal_files(parts, shard=paths.shard_dir(shard))
    disk = storekit.on_sim(files)
    assert [(patch.group, patch.number) for patch in salvaged(disk).patches] == [("shard-01", 1)]
    assert (seqs(disk, key="shard-00"), seqs(disk, key="shard-01")) == ([1, 2, 3], [2, 3])


def test_swapped_files_are_refused_with_what_to_do() -> None:
    """S-135: their open marks know better."""
    disk = disk_of({1: two(kit.append(4)), 2: ONE})
    with pytest.raises(WalCorrupt, match="is file 2 of shard 0 of 1 by its own open mark"):
        plan_salvage(disk, ROOT)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_what_a_newer_version_wrote_is_never_padded(where: str) -> None:
    """S-67: in front of the damage, and behind it where only padding would bring it to light."""
    newer = frame._encode(
        8, 0, 0, 0, kit.TS, control.encode_body(control.SyncMark()).replace(b"\xa1v\x01", b"\xa1v\x02")
    )
    bad = kit.flip(kit.append(1), 40)
    parts = (newer, bad) if where == "before" else (bad, newer)
    with pytest.raises(UnsupportedFormat):
        plan_salvage(disk_of({1: kit.log_file(1, *parts), 2: kit.log_file(2, kit.append(4))}), ROOT)


@pytest.mark.parametrize("how", kit.NEWER_MARKS)
def test_a_file_with_a_newer_open_mark_is_never_padded(how: str) -> None:
    """S-7, S-67: also where replay begins behind the mark."""
    mark = kit.newer_open_mark(1, how)
    parts = mark + kit.append(1) + kit.flip(kit.append(2), 40)
    disk = disk_of({1: parts, 2: kit.log_file(2, kit.append(4))}, more=position(1, len(mark)))
    with pytest.raises(UnsupportedFormat):
        plan_salvage(disk, ROOT)


def test_lost_metadata_is_not_salvaged() -> None:
    """S-216: without a snapshot the log must begin with file 1; damaged snapshots cannot be made up for."""
    with pytest.raises(MetadataLost):
        plan_salvage(disk_of({2: kit.log_file(2, kit.append(4))}), ROOT)
    broken = storekit.flipped(position(1, 0), "meta/snapshot-0000000000000001.bin", 40)
    with pytest.raises(MetadataLost):
        plan_salvage(disk_of({1: ONE}, more=broken), ROOT)


def test_an_earlier_copy_of_other_bytes_is_kept() -> None:
    """S-66: what was copied once is evidence."""
    damaged = kit.flip(ONE, MARK + 20)
    disk = disk_of({1: damaged, 2: two(kit.append(4))}, more={f"wal/{paths.wal_file(1)}.salvaged": b"older"})
    salvaged(disk)
    assert disk.files()[wal(1) + ".salvaged"] == b"older"
    assert disk.files()[wal(1) + ".salvaged.salvaged"] == damaged


def test_a_salvage_that_is_killed_anywhere_can_be_repeated() -> None:
    """S-66, S-230: the damaged bytes are in a copy or still in place, and the end is the same."""
    tail = two(kit.append(4), kit.flip(kit.append(5), 50), kit.append(6), SYNCED)
    parts = {1: kit.flip(ONE, MARK + 40), 2: tail, 4: kit.log_file(4, kit.append(8), prev=(3, 700))}
    dry = disk_of(parts, current=6)
    begin = dry.disk_calls
    pad(dry, plan_salvage(dry, ROOT))
    expected = seqs(dry)
    assert expected == [2, 3, 4, 6, 8]
    images = 0
    for call in range(begin + 1, dry.disk_calls + 1):
        disk = disk_of(parts, current=6)
        disk.crash_at(call, random.Random(call).choice(("before", "middle", "after")))
        with pytest.raises(PowerLoss):
            pad(disk, plan_salvage(disk, ROOT))
        for image in [disk.kill_image(), *(disk.crash_image(call, style) for style in STYLES)]:
            pad(image, plan_salvage(image, ROOT))
            assert seqs(image) == expected, f"call {call}"
            assert any(data == parts[1] for path, data in image.files().items() if "salvaged" in path)
            images += 1
    assert images > 50


def test_every_flipped_bit_of_a_log_is_survived() -> None:
    """T6, R-3: whatever byte is damaged, the frames around it are read again and no other records appear."""
    parts = {1: ONE, 2: two(kit.append(4), kit.append(5), SYNCED), 3: b""}
    parts[3] = kit.log_file(3, kit.append(6), prev=(2, len(parts[2])))
    for number in (1, 2):
        for at in range(len(parts[number])):
            for mask in (1, 0x80, 0xFF):
                data = bytearray(parts[number])
                data[at] ^= mask
                disk = disk_of(parts | {number: bytes(data)}, current=3)
                plan = salvaged(disk)
                assert len(plan.patches) == 1
                found = seqs(disk)
                assert len(found) >= 5
                assert set(found) <= {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("number", [1, 2])
def test_every_length_of_a_log_file_is_survived(number: int) -> None:
    """T7: a file of any length, or none."""
    parts = {1: ONE, 2: two(kit.append(4), kit.append(5), SYNCED), 3: b""}
    parts[3] = kit.log_file(3, kit.append(6), prev=(2, len(parts[2])))
    for length in range(len(parts[number])):
        disk = disk_of(parts | {number: parts[number][:length]}, current=3)
        salvaged(disk)
        found = seqs(disk)
        others = [4, 5, 6] if number == 1 else [1, 2, 3, 6]
        assert set(others) <= set(found) <= {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_needs_a_second_salvage(seed: int) -> None:
    """S-66: zeroed sectors, bytes changed, bytes removed or put in; what verifies is kept in order."""
    rng = random.Random(f"salvage {seed}")
    frames = [kit.append(n, rng.choice((50, 64, 200))) for n in range(1, 40)]
    one = kit.log_file(1, *frames[:20])
    two_ = kit.log_file(2, *frames[20:38], prev=(1, len(one)))
    three = kit.log_file(3, frames[38], prev=(2, len(two_)))
    for _ in range(30):
        made = {1: bytearray(one), 2: bytearray(two_), 3: bytearray(three)}
        for _ in range(rng.randrange(1, 4)):
            data = made[rng.choice((1, 2))]
            at, n = rng.randrange(len(data)), rng.choice((1, 3, 40, 512))
            what = rng.choice(("zero", "change", "remove", "insert"))
            if what == "zero":
                data[at : at + n] = bytes(len(data[at : at + n]))
            elif what == "change":
                data[at : at + n] = rng.randbytes(len(data[at : at + n]))
            elif what == "remove":
                del data[at : at + n]
            else:
                data[at:at] = rng.randbytes(n)
        disk = disk_of({number: bytes(data) for number, data in made.items()}, current=3)
        salvaged(disk)
        found = seqs(disk)
        assert found == sorted(set(found))
        assert found[-1] == 39


def test_spans_too_short_for_a_frame_take_in_what_follows() -> None:
    """S-66: a Pad has 46 bytes; bytes put between two frames cost the frame behind them, and it is in the copy."""
    damage = salvage.find_damage(kit.append(1) + b"??" + kit.append(2) + kit.append(3), 0, None, inner=True)
    assert damage.spans == (Span(64, 130),)
