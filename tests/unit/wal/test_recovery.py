"""Recovery: every row of the table, copies of what is cut, and disks that failed before (07 §6)."""

from __future__ import annotations

from typing import Literal

import pytest
from crc32c import crc32c

from tests.unit.wal import kit
from topics.errors import UnsupportedFormat, WalCorrupt, WalError, WalIo, WriteFailed
from topics.testing import SimFs
from topics.wal import FsyncPolicy, Hole, Position, Record, RecoveryInfo, Wal

RAW = [kit.put(n).encode() for n in range(12)]
LENGTH = len(RAW[0])
NEWER = b"\x01\x01\x40kv" + crc32c(b"\x01\x01\x40kv").to_bytes(4, "little")
POLICIES = ["truncate", "fail"]
Policy = Literal["truncate", "fail"]


def bad(raw: bytes) -> bytes:
    """The record with a byte of its value turned."""
    return raw[:-8] + bytes([raw[-8] ^ 0xFF]) + raw[-7:]


def load(**segments: bytes) -> kit.Disk:
    """A disk with these segments: `s0=…`, `s1=…`."""
    disk = kit.Disk()
    disk.sim.load({f"log/{int(name[1:]):06d}.wal": data for name, data in segments.items()})
    return disk


def recover(disk: kit.Disk, policy: str = "truncate", fsync: FsyncPolicy = kit.OS) -> tuple[list[int], RecoveryInfo]:
    """Open, read everything, close."""
    wal, info = kit.open_wal(disk, fsync, corruption_policy=policy)
    found = kit.numbers(wal, Position(wal.segments()[0].id, 0))
    wal.close()
    return found, info


def summary(info: RecoveryInfo) -> dict[str, object]:
    return {
        "records": info.valid_records, "scanned": info.segments_scanned, "truncated": info.bytes_truncated,
        "trimmed": info.prealloc_bytes_trimmed, "last": info.last_valid_position,
        "corrupt": info.corruption_detected, "holes": list(info.holes),
    }  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_directory_gets_segment_0(disk: kit.Disk, policy: Policy) -> None:
    """W-62."""
    wal, info = kit.open_wal(disk, corruption_policy=policy)
    assert summary(info) == {
        "records": 0, "scanned": 0, "truncated": 0, "trimmed": 0, "last": None, "corrupt": False, "holes": [],
    }  # fmt: skip
    assert wal.current_position() == Position(0, 0)
    assert info.elapsed_ms >= 0
    wal.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_segments_that_end_at_a_record_are_clean(policy: Policy) -> None:
    """07 §6 row 1."""
    disk = load(s0=RAW[0] + RAW[1], s1=RAW[2])
    before = disk.files()
    found, info = recover(disk, policy)
    assert found == [0, 1, 2]
    assert summary(info) == {
        "records": 3, "scanned": 2, "truncated": 0, "trimmed": 0, "last": (1, LENGTH), "corrupt": False, "holes": [],
    }  # fmt: skip
    assert {name: data for name, data in disk.files().items() if name != "LOCK"} == before


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("zeros", [1, 7, 511, 5000])
def test_zeros_behind_the_records_are_reclaimed_and_are_no_corruption(policy: Policy, zeros: int) -> None:
    """07 §6 row 2, in every segment; no copy is made of zeros."""
    disk = load(s0=RAW[0] + bytes(zeros), s1=RAW[1] + bytes(zeros))
    meter = kit.Kept()
    wal, info = kit.open_wal(disk, corruption_policy=policy, meter=meter)
    assert kit.numbers(wal) == [0, 1]
    wal.close()
    assert summary(info) == {
        "records": 2, "scanned": 2, "truncated": 0, "trimmed": 2 * zeros, "last": (1, LENGTH), "corrupt": False,
        "holes": [],
    }  # fmt: skip
    assert meter.count("corruption_truncated") == 0
    assert disk.names() == ["000000.wal", "000001.wal", "LOCK"]
    assert len(disk.files()["000000.wal"]) == LENGTH


TAILS = {
    "incomplete": RAW[5][:-1],
    "one byte": b"\x05",
    "bad": bad(RAW[5]),
    "bad then good": bad(RAW[5]) + RAW[6],
    "zeros then good": bytes(40) + RAW[5],
    "noise": b"\xff" * 50,
}


@pytest.mark.parametrize("zeros", [0, 600])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_end_of_the_last_segment_is_cut_told_and_kept_aside(tail: str, policy: Policy, zeros: int) -> None:
    """07 §6 row 3, W-61: both policies; zero tails are counted apart."""
    disk = load(s0=RAW[0], s1=RAW[1] + RAW[2] + TAILS[tail] + bytes(zeros))
    meter = kit.Kept()
    wal, info = kit.open_wal(disk, corruption_policy=policy, meter=meter)
    assert kit.numbers(wal) == [0, 1, 2]
    assert wal.current_position() == Position(1, 2 * LENGTH)
    cut = TAILS[tail].rstrip(b"\0")
    assert summary(info) == {
        "records": 3, "scanned": 2, "truncated": len(cut), "trimmed": zeros + len(TAILS[tail]) - len(cut),
        "last": (1, 2 * LENGTH), "corrupt": True, "holes": [],
    }  # fmt: skip
    (event,) = [event for event in meter.events if event.kind == "corruption_truncated"]
    assert (event.seg, event.bytes) == (1, len(cut))
    assert meter.value("wal_corruption_truncated_total") == 1
    assert disk.files()["000001.wal.cut"] == cut
    wal.close()


@pytest.mark.parametrize("tail", TAILS)
def test_damage_in_an_earlier_segment_is_cut_and_reported_as_a_hole(tail: str) -> None:
    """07 §6 row 4, truncate: goes on with the next segment."""
    disk = load(s0=RAW[0] + TAILS[tail] + bytes(9), s1=RAW[1])
    found, info = recover(disk)
    cut = TAILS[tail].rstrip(b"\0")
    assert found == [0, 1]
    assert summary(info) == {
        "records": 2, "scanned": 2, "truncated": len(cut), "trimmed": 9 + len(TAILS[tail]) - len(cut),
        "last": (1, LENGTH), "corrupt": True, "holes": [Hole(0, LENGTH, len(cut))],
    }  # fmt: skip
    assert disk.files()["000000.wal.cut"] == cut


REFUSED = {
    "inner damage": {"s0": RAW[0] + bad(RAW[1]) + bytes(40), "s1": RAW[2] + bytes(100)},
    "inner damage and torn end": {"s0": RAW[0] + RAW[1][:-2], "s1": RAW[2] + RAW[3][:-3]},
    "missing segment": {"s0": RAW[0] + bytes(50), "s2": RAW[2]},
    "last inner": {"s0": RAW[0] + bytes(90), "s1": RAW[1] + b"\x01", "s2": RAW[2]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_fail_refuses_damage_and_changes_nothing_on_disk(case: str) -> None:
    """07 §6 rows 4 and 6, W-61: every segment is examined before any is changed."""
    disk = load(**REFUSED[case])
    kit.open_wal(load(), corruption_policy="fail")[0].close()
    before = disk.files()
    for _ in range(2):
        with pytest.raises(WalCorrupt):
            kit.open_wal(disk, corruption_policy="fail")
        after = disk.files()
        assert {name: data for name, data in after.items() if name != "LOCK"} == before
        assert after.get("LOCK", b"") == b""


@pytest.mark.parametrize("case", REFUSED)
def test_fail_leaves_an_existing_lock_file_as_it_was(case: str) -> None:
    """07 §6: change nothing."""
    disk = kit.Disk()
    kit.open_wal(disk)[0].close()
    disk.sim.load({f"log/{int(name[1:]):06d}.wal": data for name, data in REFUSED[case].items()})
    before = disk.files()
    with pytest.raises(WalCorrupt):
        kit.open_wal(disk, corruption_policy="fail")
    assert disk.files() == before


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "segments",
    [
        {"s0": RAW[0] + NEWER + RAW[1]},
        {"s0": NEWER},
        {"s0": RAW[0] + NEWER, "s1": RAW[1] + bytes(90)},
        {"s0": RAW[0] + bad(RAW[1]), "s1": RAW[2] + NEWER, "s2": RAW[3][:-1]},
    ],
)
def test_an_intact_record_of_a_newer_version_is_refused_and_nothing_changes(
    policy: Policy, segments: dict[str, bytes]
) -> None:
    """07 §6 row 5."""
    disk = load(**segments)
    before = disk.files()
    with pytest.raises(UnsupportedFormat):
        kit.open_wal(disk, corruption_policy=policy)
    assert {name: data for name, data in disk.files().items() if name != "LOCK"} == before


def test_a_missing_segment_is_a_hole_and_reading_goes_on_behind_it() -> None:
    """07 §6 row 6, truncate."""
    disk = load(s3=RAW[0], s6=RAW[1])
    found, info = recover(disk)
    assert found == [0, 1]
    assert summary(info) == {
        "records": 2, "scanned": 2, "truncated": 0, "trimmed": 0, "last": (6, LENGTH), "corrupt": True,
        "holes": [Hole(4, 0, None), Hole(5, 0, None)],
    }  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_segments_missing_before_the_first_are_no_hole(policy: Policy) -> None:
    """07 §6 row 6: between two segments; deletion takes the oldest."""
    found, info = recover(load(s5=RAW[0], s6=RAW[1]), policy)
    assert (found, list(info.holes), info.corruption_detected) == ([0, 1], [], False)


@pytest.mark.parametrize(
    ("policy", "fsync", "refused"),
    [
        ("fail", kit.ALWAYS, True),
        ("fail", kit.OS, False),
        ("fail", FsyncPolicy.batch(5), False),
        ("truncate", kit.ALWAYS, False),
    ],
)
def test_fail_with_always_refuses_a_bad_record_that_a_good_one_follows(
    policy: Policy, fsync: FsyncPolicy, refused: bool
) -> None:
    """W-61: strict only for this pair."""
    disk = load(s0=RAW[0] + bad(RAW[1]) + RAW[2])
    before = disk.files()
    if not refused:
        assert recover(disk, policy, fsync)[0] == [0]
        return
    with pytest.raises(WalCorrupt):
        kit.open_wal(disk, fsync, corruption_policy=policy)
    assert {name: data for name, data in disk.files().items() if name != "LOCK"} == before


@pytest.mark.parametrize("tail", [RAW[1][:-1], bad(RAW[1]), bad(RAW[1]) + bytes(70), b"\x01"])
def test_fail_with_always_still_cuts_a_torn_end(tail: bytes) -> None:
    """W-61, 07 §6 row 3."""
    assert recover(load(s0=RAW[0] + tail), "fail", kit.ALWAYS)[0] == [0]


def test_opening_twice_yields_the_same_records_and_cuts_nothing_more() -> None:
    """W-62."""
    disk = load(s0=RAW[0] + bad(RAW[1]), s1=RAW[2] + RAW[3][:-1] + bytes(33))
    first, _ = recover(disk)
    before = disk.files()
    second, info = recover(disk)
    assert (second, info.bytes_truncated, info.prealloc_bytes_trimmed, list(info.holes)) == (first, 0, 0, [])
    assert disk.files() == before


def test_a_cut_copies_first_and_cuts_then() -> None:
    """W-61: first copied (synced); a cut is ftruncate + fsync in place."""
    disk = load(s0=RAW[0] + RAW[1][:-1])
    wal, _ = kit.open_wal(disk)
    calls = disk.calls()
    cut = calls.index(("truncate", "000000.wal"))
    copies = [n for n, (op, name) in enumerate(calls) if op == "fsync" and ".cut" in name]
    assert copies
    assert copies[0] < cut
    assert ("sync_dir", "log") in calls[copies[0] : cut]
    assert calls[cut + 1] == ("fsync", "000000.wal")
    wal.close()


def test_a_second_cut_of_a_segment_keeps_the_first_copy() -> None:
    """W-61: nothing is destroyed."""
    disk = load(s0=RAW[0] + b"first damage")
    recover(disk)
    disk.sim.load({"log/000000.wal": RAW[0] + b"second damage"})
    recover(disk)
    kept = sorted(data for name, data in disk.files().items() if ".cut" in name)
    assert kept == [b"first damage", b"second damage"]


def test_recovery_after_a_crash_at_any_disk_call_destroys_nothing_and_makes_one_copy() -> None:
    """W-61: atomic, repeatable; the bytes are in the segment or in one copy, and a repeated recovery adds none."""
    disk = load(s0=RAW[0] + b"damage within", s1=RAW[1] + RAW[2][:-1] + bytes(99))
    images: list[SimFs] = []
    disk.sim.before = lambda call: images.extend(disk.sim.crash_image(seed) for seed in range(6))
    kit.open_wal(disk)[0].close()
    disk.sim.before = None
    assert len(images) > 60
    for image in images:
        again = kit.Disk(image)
        found, _ = recover(again)
        files = again.files()
        assert found == [0, 1, 2][: len(found)]
        assert found[:2] == [0, 1]
        kept = [data for name, data in files.items() if ".cut" in name and not name.endswith(".tmp")]
        assert sorted(kept) == sorted([b"damage within", RAW[2][:-1]])


def test_a_copy_that_cannot_be_made_stops_recovery_before_the_cut() -> None:
    """W-61: nothing is destroyed."""
    disk = load(s0=RAW[0] + b"damage")
    disk.fail("pwrite", "ENOSPC", "always", path=".cut")
    with pytest.raises(WalIo):
        kit.open_wal(disk)
    assert disk.files()["000000.wal"] == RAW[0] + b"damage"
    disk.mend()
    assert recover(disk)[0] == [0]
    assert disk.files()["000000.wal.cut"] == b"damage"


def test_copies_and_foreign_files_are_no_segments() -> None:
    """07 §1.3 discover."""
    disk = load(s0=RAW[0])
    disk.sim.load({f"log/{name}": RAW[1] for name in ("000000.wal.cut", "000001.wal.cut.1", "000002.wal.tmp", "x.wal")})
    found, info = recover(disk)
    assert (found, info.segments_scanned) == ([0], 1)


def test_the_log_resumes_at_its_logical_end(disk: kit.Disk) -> None:
    """W-62."""
    wal, _ = kit.open_wal(disk)
    kit.fill(wal, 3)
    end = wal.current_position()
    wal.close()
    wal, info = kit.open_wal(disk)
    assert info.last_valid_position == wal.current_position() == end
    assert wal.append(kit.put(3)) == end
    assert kit.numbers(wal) == [0, 1, 2, 3]
    wal.close()


def test_a_crash_between_rotation_and_the_first_write_loses_nothing(disk: kit.Disk) -> None:
    """W-16, W-62."""
    wal, _ = kit.open_wal(disk)
    positions = kit.fill(wal, 3)
    wal._log.rotate()
    for image in (disk.killed(), disk.power_loss()):
        again, info = kit.open_wal(image, corruption_policy="fail")
        assert kit.numbers(again) == [0, 1, 2]
        assert not info.corruption_detected
        assert again.append(kit.put(3)) > positions[-1]
        assert kit.numbers(again) == [0, 1, 2, 3]
        again.close()
    wal.close()


def test_a_segment_prepared_ahead_and_left_by_a_crash_is_taken_or_removed(disk: kit.Disk) -> None:
    """W-62: it holds nothing; no file stays that is no segment of the log."""
    wal, _ = kit.open_wal(disk, prepare_ahead=True)
    kit.fill(wal, 7)
    image = disk.killed()
    assert "000001.wal" in image.names()
    again, info = kit.open_wal(image, corruption_policy="fail")
    assert image.names() == [*(f"{segment.id:06d}.wal" for segment in again.segments()), "LOCK"]
    assert (kit.numbers(again), info.bytes_truncated, info.corruption_detected) == (list(range(7)), 0, False)
    again.append(kit.put(7))
    assert kit.numbers(again) == list(range(8))
    again.close()
    wal.close()


@pytest.mark.parametrize("policy", [kit.ALWAYS, FsyncPolicy.batch(5), kit.OS], ids=["always", "batch", "os"])
def test_recovered_records_are_readable_although_the_last_segment_is_empty(policy: FsyncPolicy) -> None:
    """W-54, W-60: what recovery found is durable and visible before the first append."""
    wal, info = kit.open_wal(load(s0=RAW[0] + RAW[1], s1=bytes(600)), policy)
    assert (info.valid_records, kit.numbers(wal)) == (2, [0, 1])
    wal.append(kit.put(2))
    assert kit.numbers(wal) == [0, 1, 2]
    wal.close()


@pytest.mark.parametrize("content", [b"", bytes(300), b"\x05torn"])
def test_segment_ids_never_go_back(content: bytes) -> None:
    """W-62: the last segment is active, and only an empty directory starts at 0; W-81: positions increase.

    A caller that keeps positions would otherwise delete, or skip, what is appended after the restart.
    """
    disk = load(s5=content)
    for _ in range(2):
        wal, _ = kit.open_wal(disk)
        assert wal.current_position() == Position(5, 0)
        wal.close()


@pytest.mark.parametrize("op", ["allocate", "fsync", "sync_dir", "open", "truncate"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_segment_ids_do_not_go_back_after_an_open_that_failed(op: str, error: str) -> None:
    """W-62: the only segment is empty and cannot be made ready; the next open finds it still."""
    disk = load(s5=bytes(300))
    disk.fail(op, error, path="log" if op == "sync_dir" else "000005.wal", index=2 if op == "sync_dir" else 1)
    opened: list[Wal] = []
    try:
        opened.append(kit.open_wal(disk)[0])
    except WalError:
        disk.mend()
        opened.append(kit.open_wal(disk)[0])
    assert opened[0].current_position() == Position(5, 0)
    opened[0].close()


def test_a_log_whose_older_segments_were_deleted_goes_on_counting_after_a_kill(disk: kit.Disk) -> None:
    """W-62, W-55, W-81: the same, reached through the interface: a disk full at rotation, deletion, kill."""
    wal, _ = kit.open_wal(disk)
    before = kit.fill(wal, 30)[-1]
    disk.fail("pwrite", "ENOSPC", "always", path=f"{before.segment_id + 1:06d}")
    with pytest.raises(WriteFailed):
        kit.fill(wal, 30, 30)
    disk.mend()
    assert wal.current_position() == Position(before.segment_id + 1, 0)
    wal.delete_segments_before(wal.current_position())
    again, _ = kit.open_wal(disk.killed())
    assert again.append(kit.put(31)) > before
    again.close()
    wal.close()


def test_a_log_whose_older_segments_were_deleted_goes_on_counting_after_a_power_loss(disk: kit.Disk) -> None:
    """W-62, W-55, W-81: no fault is needed; the newest segment's records were not synced yet."""
    wal, _ = kit.open_wal(disk)
    while wal.current_position().segment_id < 5:
        before = wal.append(kit.put(1, 100))
    assert wal.delete_segments_before(before) == 5
    again, _ = kit.open_wal(disk.power_loss())
    assert again.append(kit.put(31)) >= Position(5, 0)
    again.close()
    wal.close()


def test_records_found_in_the_page_cache_are_written_again_before_anything_is_acknowledged(disk: kit.Disk) -> None:
    """C11 for the library, R-1: a failed sync marks pages clean; the next process acknowledges behind them."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    kit.fill(wal, 2)
    disk.sim.fail_sync("clean")
    with pytest.raises(WalIo):
        wal.append(kit.put(2))
    image = disk.killed()
    again, _ = kit.open_wal(image, kit.ALWAYS)
    kept = kit.numbers(again, kit.START)
    assert kept[:2] == [0, 1]
    again.append(kit.put(9))
    again.sync()
    image.fs.acked(f"{kit.DIR}/000000.wal", again.current_position().offset)
    for style in ("nothing", "everything", "prefix", "random"):
        crashed = kit.Disk(image.sim.crash_image(3, style))
        survivor, _ = kit.open_wal(crashed, kit.ALWAYS, corruption_policy="fail")
        assert kit.numbers(survivor) == [*kept, 9]
        survivor.close()
    again.close()
    wal.close()


@pytest.mark.parametrize("mode", ["clean", "partial", "reverted"])
@pytest.mark.parametrize("preallocate", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_no_way_of_failing_a_sync_loses_what_the_next_process_acknowledges(
    disk: kit.Disk, mode: Literal["clean", "partial", "reverted"], preallocate: bool, closed: bool
) -> None:
    """C11, R-1: killed or closed, each failure mode."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=8192, preallocate=preallocate)
    kit.fill(wal, 2, size=700)
    disk.sim.fail_sync(mode)
    with pytest.raises(WalIo):
        wal.append(kit.put(2, 1500))
    if closed:
        wal.close()
        image = disk
    else:
        image = disk.killed()
    again, _ = kit.open_wal(image, kit.ALWAYS, size=8192, preallocate=preallocate)
    kept = kit.numbers(again)
    assert kept[:2] == [0, 1]
    kit.fill(again, 2, 9)
    survivor, _ = kit.open_wal(image.power_loss(), kit.ALWAYS, size=8192)
    assert kit.numbers(survivor) == [*kept, 9, 10]
    survivor.close()
    again.close()
    wal.close()


def test_a_log_closed_in_order_is_not_written_again_at_open(disk: kit.Disk) -> None:
    """W-60 writes nothing but cuts; the rewrite is for logs that were not closed in order."""
    wal, _ = kit.open_wal(disk)
    kit.fill(wal, 3)
    wal.close()
    mark = disk.sim.disk_calls
    wal, _ = kit.open_wal(disk)
    assert ("pwrite", "000000.wal") not in disk.calls(mark)
    wal.close()


def test_what_a_process_killed_at_any_disk_call_left_is_made_durable_by_the_next_one() -> None:
    """W-15, R-1: also names that were created and never synced."""
    disk = kit.Disk()
    images: list[tuple[SimFs, int]] = []
    acked = [0]
    disk.sim.before = lambda call: images.append((disk.sim.kill_image(), acked[0]))
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=300)
    for n in range(8):
        wal.append(kit.put(n, 60))
        acked[0] = n + 1
    wal.close()
    disk.sim.before = None
    assert len(images) > 40
    for image, count in images:
        killed = kit.Disk(image, trust=False)
        again, _ = kit.open_wal(killed, kit.ALWAYS, size=300)
        found = kit.numbers(again)
        assert found == list(range(len(found)))
        assert len(found) >= count
        again.append(kit.put(100, 60))
        end = again.current_position()
        killed.fs.acked(f"{kit.DIR}/{end.segment_id:06d}.wal", end.offset)
        survivor, info = kit.open_wal(killed.power_loss(), kit.ALWAYS, size=300, corruption_policy="fail")
        assert kit.numbers(survivor) == [*found, 100]
        assert not info.corruption_detected
        survivor.close()
        again.close()


@pytest.mark.parametrize("policy", ["truncate", "fail"])
def test_a_machine_crash_at_any_disk_call_loses_nothing_acknowledged(policy: Policy) -> None:
    """R-1, R-10, W-16: also under `fail`, a crash alone is never called damage."""
    disk = kit.Disk()
    images: list[tuple[SimFs, int]] = []
    acked = [0]
    disk.sim.before = lambda call: images.extend((disk.sim.crash_image(seed), acked[0]) for seed in range(4))
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=400, prepare_ahead=True)
    for n in range(12):
        wal.append(kit.put(n, 60 + 7 * n))
        acked[0] = n + 1
    wal.close()
    disk.sim.before = None
    for image, count in images:
        again, info = kit.open_wal(kit.Disk(image), kit.ALWAYS, size=400, corruption_policy=policy)
        found = kit.numbers(again)
        again.close()
        assert found == list(range(len(found)))
        assert count <= len(found) <= 12
        assert list(info.holes) == []


def test_a_record_behind_a_lost_sector_is_never_read(disk: kit.Disk) -> None:
    """13 §6: length 0 ends the log only if every later byte is zero."""
    wal, _ = kit.open_wal(disk, size=8192)
    kit.fill(wal, 40)
    wal.close()
    disk.sim.zero_sector("log/000000.wal", 2)
    found, info = recover(disk)
    assert found == list(range(len(found)))
    assert len(found) * len(kit.put(0, 100).encode()) <= 1024
    assert info.corruption_detected


def test_compressed_tombstone_and_ttl_records_are_all_recovered(disk: kit.Disk) -> None:
    """W-60."""
    kinds = [
        Record.put(b"a", b"v" * 50).with_compression("zstd"),
        Record.put_with_ttl(b"b", b"v", 5000),
        Record.delete(b"c"),
        Record.put(b"", b""),
        Record.put(b"d" * 300, b"v" * 300).with_compression("lz4"),
    ]
    wal, _ = kit.open_wal(disk, size=4096)
    wal.append_batch(kinds)
    image, info = kit.open_wal(disk.killed(), size=4096)
    assert (info.valid_records, kit.records(image)) == (5, kinds)
    image.close()
    wal.close()


def test_a_segment_cut_to_nothing_by_a_killed_recovery_does_not_come_back_as_damage() -> None:
    """W-61, W-62: a cut that was not synced is made durable before records follow behind it."""
    disk = load(s0=kit.put(0).encode(), s1=b"\x05torn", s2=b"")
    cut = disk.sim.open(f"{kit.DIR}/000001.wal", "rw")
    cut.truncate(0)
    cut.close()
    killed = disk.killed()
    wal, _ = kit.open_wal(killed, kit.ALWAYS)
    wal.append(kit.put(1))
    again, info = kit.open_wal(killed.power_loss(), kit.ALWAYS, corruption_policy="fail")
    assert kit.numbers(again) == [0, 1]
    assert info.holes == []
    again.close()
    wal.close()
