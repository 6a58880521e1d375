"""SegmentedLog: discovery, creation, writing, deletion, close — for both kinds of log (07 §1.3)."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import topics.wal.core as core_module
from tests.unit.wal import kit
from topics.codec.scan import FileInfo, Place, Scan
from topics.errors import SegmentNotFound, WalClosed, WalError, WriteFailed
from topics.testing import PowerLoss
from topics.testing.simfs import Call
from topics.wal.core import State

SIZE = 1024


def states(log: object) -> dict[int, State]:
    return {id: segment.state for id, segment in log._segments.items()}


def write_segments(log: object, kind: kit.Kind, count: int, per: int = 2) -> None:
    """Fill `count` segments with `per` units each; the last stays active."""
    for n in range(count):
        if n:
            log.rotate()
        for i in range(per):
            log.write([kind.unit(n * per + i)])


def test_the_core_imports_no_record_and_no_server() -> None:
    """W-1, W-2, W-3: it knows files, sizes and bytes."""
    tree = ast.parse(Path(core_module.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {"topics.wal.record", "topics.codec.frame", "topics.wal.policy", "topics.wal.timer"}
    assert not any(str(module).startswith(("topics.server", "topics.storage")) for module in modules)


def test_only_the_core_preallocates() -> None:
    """W-90: one implementation in the code base."""
    package = Path(core_module.__file__).parents[1]
    users = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if ".allocate(" in path.read_text(encoding="utf-8") and "testing" not in path.parts
    }
    assert users == {"wal/core.py"}


class LineNaming:
    """A third kind of name."""

    first_id = 10

    def name(self, id: int) -> str:
        return f"lines.{id}"

    def parse(self, name: str) -> int | None:
        return int(name[6:]) if name.startswith("lines.") else None


class LineCodec:
    """A third kind of content: lines of text, a header line in front."""

    def preamble(self, info: FileInfo) -> bytes:
        return b"#%d\n" % info.id

    def scan(self, view: memoryview, start: int, place: Place) -> Scan:
        raw = bytes(view)
        end = raw.rfind(b"\n") + 1
        return Scan(end, raw[:end].count(b"\n"), "clean" if not raw[end:].strip(b"\0") else "torn")


def test_a_third_kind_of_log_needs_no_change_in_the_core(disk: kit.Disk) -> None:
    """W-2."""
    third = kit.Kind("lines", LineNaming(), LineCodec(), None, True)
    log = kit.start_core(third, disk, size=12)
    log.write([b"one\n"])
    assert not log.fits(5)
    log.rotate()
    assert log.write([b"three\n"]) == (11, 4)
    log.close()
    assert disk.files() == {"lines.10": b"#10\none\n", "lines.11": b"#11\nthree\n"}
    assert kit.start_core(third, disk, size=12).position() == (11, 10)


def test_discovery_lists_segments_in_numeric_order_and_ignores_other_files(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 discover."""
    for id, size in ((1_000_000, 3), (999_999, 2), (2, 1)):
        disk.sim.load({f"log/{kind.file(id)}": bytes(size)})
    for name in ("LOCK", "CURRENT", "000002.wal.cut", "000002.wal.tmp", "0000003.wal", "wal-3.log", "notes.txt"):
        disk.sim.load({f"log/{name}": b"x"})
    log = kit.new_core(kind, disk)
    assert log.discover() == [(2, 1), (999_999, 2), (1_000_000, 3)]


def test_the_first_segment_of_an_empty_directory_has_the_first_id(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-62, 07 §1.2."""
    log = kit.start_core(kind, disk)
    assert disk.names() == [kind.file(kind.naming.first_id)]
    assert log.position() == (kind.naming.first_id, 0)
    log.close()


def test_a_new_segment_reserves_its_space_and_is_durable_before_it_is_used(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-11, W-12, W-15: allocate, fsync, fsync of the directory; logical 0, physical the whole size."""
    log = kit.start_core(kind, disk, size=SIZE)
    name = kind.file(kind.naming.first_id)
    calls = disk.calls()
    steps = [calls.index(step) for step in (("create", name), ("allocate", name), ("fsync", name))]
    assert steps == sorted(steps)
    assert ("sync_dir", "log") in calls[steps[-1] :]
    assert (len(disk.files()[name]), log.segments()) == (SIZE, [(kind.naming.first_id, 0)])
    log.close()


def test_without_preallocation_creation_and_its_syncs_stay(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-12: preallocate=False skips the reservation only."""
    log = kit.start_core(kind, disk, preallocate=False)
    name = kind.file(kind.naming.first_id)
    calls = disk.calls()
    assert ("allocate", name) not in calls
    assert ("sync_dir", "log") in calls[calls.index(("create", name)) :]
    assert disk.files()[name] == b""
    log.write([kind.unit(1)])
    log.sync()
    disk.fs.acked(f"{kit.DIR}/{name}", log.position()[1])
    log.close()


def test_existing_content_in_the_place_of_a_new_segment_is_never_cut(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.1 creating: never truncating existing content."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    stranger = kind.file(kind.naming.first_id + 1)
    disk.sim.load({f"log/{stranger}": b"someone else's bytes"})
    with pytest.raises(WalError):
        log.rotate()
    assert disk.files().get(stranger) == b"someone else's bytes"
    log.close()


def test_preparing_a_segment_twice_makes_one(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 prepare_next: idempotent; W-10: at most one is ready."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.prepare_next()
    mark = disk.sim.disk_calls
    log.prepare_next()
    log.prepare_next(SIZE * 9)
    assert disk.sim.disk_calls == mark
    assert disk.names() == [kind.file(id) for id in kind.ids(2)]
    log.close()


def test_a_prepared_segment_becomes_the_active_one_at_rotation(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 rotate: the next ready segment becomes active."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.prepare_next()
    mark = disk.sim.disk_calls
    log.rotate()
    assert ("create", kind.file(kind.ids(2)[1])) not in disk.calls(mark)
    assert log.position() == (kind.ids(2)[1], 0)
    log.close()


def test_a_segment_may_be_asked_for_larger_than_the_maximum(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-13: the server asks for a segment of the unit's size."""
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1)])
    log.rotate(SIZE * 4)
    name = kind.file(kind.ids(2)[1])
    assert len(disk.files()[name]) == SIZE * 4
    unit = kind.unit(2, 3 * SIZE)
    _, offset = log.write([unit])
    assert disk.files()[name][offset : offset + len(unit)] == unit
    log.close()


def test_a_segment_is_never_smaller_than_the_maximum(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-13: a small request does not shrink it."""
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1)])
    log.prepare_next(1)
    assert len(disk.files()[kind.file(kind.ids(2)[1])]) == SIZE
    log.close()


def test_fits_compares_with_the_maximum_to_the_byte(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-13, 07 §1.3 fits: logical + n <= max_segment_size, the preamble included."""
    log = kit.start_core(kind, disk, size=SIZE)
    room = SIZE - len(kind.preamble(kind.naming.first_id))
    assert (log.fits(room), log.fits(room + 1)) == (True, False)
    log.write([kind.unit(1, 64)])
    assert (log.fits(room - 64), log.fits(room - 63)) == (True, False)
    log.write([kind.unit(2, room - 64)])
    assert (log.position()[1], log.fits(0), log.fits(1)) == (SIZE, True, False)
    log.close()


def test_a_write_appends_the_concatenation_and_tells_where_it_went(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 write: at the logical end; the offset is that of the first part, behind the preamble."""
    log = kit.start_core(kind, disk)
    first = kind.naming.first_id
    head = kind.preamble(first)
    units = [kind.unit(n) for n in range(3)]
    assert log.write([units[0][:10], units[0][10:], b""]) == (first, len(head))
    assert log.write(units[1:]) == (first, len(head) + 64)
    assert log.position() == (first, len(head) + 3 * 64)
    assert disk.files()[kind.file(first)].rstrip(b"\0") == (head + b"".join(units)).rstrip(b"\0")
    log.close()


def test_the_first_write_carries_the_preamble_in_one_disk_call(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.2 preamble: first bytes of a new segment, in front of the first unit."""
    log = kit.start_core(kind, disk)
    mark = disk.sim.disk_calls
    log.write([kind.unit(1)])
    assert disk.calls(mark) == [("pwrite", kind.file(kind.naming.first_id))]
    log.close()


def test_the_preamble_of_a_later_segment_names_the_one_before_it(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.2 FileInfo: id and logical length of the previous segment."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    one = log.position()
    log.rotate()
    log.write([kind.unit(2)])
    two = kind.ids(2)[1]
    head = kind.preamble(two, one)
    assert disk.files()[kind.file(two)].startswith(head + kind.unit(2))
    log.close()


@pytest.mark.parametrize("times", ["once", "always"])
def test_a_short_write_goes_on_until_all_is_written(disk: kit.Disk, kind: kit.Kind, times: str) -> None:
    """07 §1.3 write: pwrite, looping over short writes."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("pwrite", "short", times)
    id, offset = log.write([kind.unit(2)])
    assert disk.files()[kind.file(id)][offset : offset + 64] == kind.unit(2)
    assert len(disk.faults.hits) >= 1
    log.close()


def test_a_sync_makes_everything_written_durable_and_advances_synced(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 sync; W-15: also the name."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    assert log.synced() < log.position()
    log.sync()
    assert log.synced() == log.position()
    disk.fs.acked(f"{kit.DIR}/{kind.file(log.position()[0])}", log.position()[1])
    log.close()


def test_a_sync_of_nothing_new_touches_no_disk(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 sync."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.sync()
    mark = disk.sim.disk_calls
    log.sync()
    assert disk.sim.disk_calls == mark
    log.close()


def test_segments_tell_logical_sizes(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-11."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 3)
    assert [info.id for info in log.segments()] == kind.ids(3)
    for info in log.segments():
        raw = disk.files()[kind.file(info.id)]
        assert kind.codec.scan(memoryview(raw), 0, "inner")[:1] == (info.size,)
    log.close()


def test_a_finalized_segment_is_archived_when_the_next_has_taken_its_first_write(
    disk: kit.Disk, kind: kit.Kind
) -> None:
    """W-10."""
    log = kit.start_core(kind, disk)
    one, two = kind.ids(2)
    log.write([kind.unit(1)])
    log.rotate()
    assert states(log) == {one: State.FINALIZED, two: State.ACTIVE}
    log.write([kind.unit(2)])
    assert states(log) == {one: State.ARCHIVED, two: State.ACTIVE}
    log.close()


def test_deletion_takes_the_oldest_first_and_never_the_active_or_the_ready_one(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 delete_before."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 4)
    log.prepare_next()
    ids = kind.ids(5)
    mark = disk.sim.disk_calls
    assert log.delete_before(10**9) == ids[:3]
    assert [call for call in disk.calls(mark) if call[0] == "remove"] == [("remove", kind.file(id)) for id in ids[:3]]
    assert disk.names() == [kind.file(id) for id in ids[3:]]
    assert log.segments()[0].id == ids[3]
    log.write([kind.unit(99)])
    log.close()


def test_deletion_keeps_the_given_segment_and_later_ones(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 delete_before: smaller ids only."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 4)
    ids = kind.ids(4)
    assert log.delete_before(ids[0]) == []
    assert log.delete_before(ids[2]) == ids[:2]
    assert log.delete_before(ids[2]) == []
    assert [info.id for info in log.segments()] == ids[2:]
    log.close()


def test_removals_are_durable_when_deletion_returns(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 delete_before: directory fsync."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 4)
    log.delete_before(kind.ids(4)[3])
    disk.fs.settled(kit.DIR)
    assert disk.power_loss().names() == [kind.file(kind.ids(4)[3])]
    log.close()


def test_a_crash_during_deletion_leaves_no_hole(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 delete_before: oldest first; §6: a missing id between two segments would be called damage."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 6, per=1)
    ids = kind.ids(6)
    images: list[list[str]] = []

    def fork(call: object) -> None:
        images.extend(sorted(disk.sim.crash_image(seed).files()) for seed in range(12))

    disk.sim.before = fork
    log.delete_before(ids[5])
    disk.sim.before = None
    wanted = [[f"log/{kind.file(id)}" for id in ids[n:]] for n in range(6)]
    assert images
    assert [names for names in images if names not in wanted] == []
    log.close()


def test_a_rotation_waits_for_whoever_prepares_the_next_segment(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-15, W-13: two segments of one id would be two logical ends of one file."""
    gate, came, stopped = kit.Gate(), threading.Event(), list[str]()

    def hook(op: str, path: str) -> None:
        if op == "fsync" and path.endswith(kind.file(kind.ids(2)[1])) and not stopped:
            stopped.append(path)
            gate.stop()

    log = kit.start_core(kind, disk, fs=kit.hooked(disk, hook))
    log._ready_lock = kit.TellingLock(came)  # type: ignore[assignment]
    log.write([kind.unit(1)])
    preparing = kit.spawn(log.prepare_next)
    gate.wait_reached()

    def rotated() -> None:
        log.rotate()
        log.write([kind.unit(2)])

    rotating = kit.spawn(rotated)
    assert came.wait(kit.WAIT_S)
    gate.open()
    kit.finish([preparing, rotating])
    end = log.position()
    log.rotate()
    assert log.position() == (end[0] + 1, 0)
    assert disk.files()[kind.file(end[0])].endswith(kind.unit(2))
    log.close()


def test_an_unfinalized_segment_is_not_deleted(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 delete_before: finalized and archived segments only; what follows it waits too."""
    log = kit.start_core(kind, disk)
    waiting: list[Callable[[], None]] = []
    log.write([kind.unit(1)])
    log.rotate(defer=waiting.append)
    log.write([kind.unit(2)])
    log.rotate()
    log.write([kind.unit(3)])
    assert log.delete_before(10**9) == []
    waiting[0]()
    assert log.delete_before(10**9) == kind.ids(2)
    log.close()


def test_close_syncs_finalizes_and_unlinks_the_ready_segment(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 close."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.prepare_next()
    first, end = log.position()
    assert log.close() is True
    assert {name: len(data) for name, data in disk.files().items()} == {kind.file(first): end}
    assert len(disk.power_loss().files()[kind.file(first)]) == end


def test_close_without_finalize_syncs_and_leaves_the_size(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 close(finalize)."""
    log = kit.start_core(kind, disk, size=SIZE)
    log.write([kind.unit(1)])
    first, end = log.position()
    log.close(finalize=False)
    assert len(disk.files()[kind.file(first)]) == SIZE
    assert disk.power_loss().files()[kind.file(first)][:end] == disk.files()[kind.file(first)][:end]


@pytest.mark.parametrize("call", ["write", "rotate", "prepare_next", "fits"])
def test_a_closed_core_takes_no_more_writes(disk: kit.Disk, kind: kit.Kind, call: str) -> None:
    """W-56 for the core."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.close()
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: log.write([kind.unit(2)]),
        "rotate": log.rotate,
        "prepare_next": log.prepare_next,
        "fits": lambda: log.fits(1),
    }
    with pytest.raises(WalClosed):
        calls[call]()


@pytest.mark.parametrize("size", [0, -1])
def test_a_segment_size_that_is_not_above_zero_is_refused(disk: kit.Disk, kind: kit.Kind, size: int) -> None:
    """07 §4: the core accepts any size > 0."""
    with pytest.raises(ValueError, match="max_segment_size"):
        kit.new_core(kind, disk, size=size)


def test_an_unknown_segment_cannot_be_acquired(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-54: SegmentNotFound(id)."""
    log = kit.start_core(kind, disk)
    with pytest.raises(SegmentNotFound) as caught:
        log.acquire(77)
    assert caught.value.segment_id == 77
    log.close()


def test_the_library_resumes_its_last_segment_at_the_logical_end(disk: kit.Disk) -> None:
    """07 §1.2 on open."""
    log = kit.start_core(kit.LIBRARY, disk)
    log.write([kit.LIBRARY.unit(1)])
    log.close()
    log = kit.start_core(kit.LIBRARY, disk)
    assert log.position() == log.synced() == (0, 64)
    assert log.write([kit.LIBRARY.unit(2)]) == (0, 64)
    log.close()


def test_the_server_never_resumes_a_segment(disk: kit.Disk) -> None:
    """07 §1.2 on open, 06 S-21."""
    log = kit.start_core(kit.SERVER, disk)
    log.write([kit.SERVER.unit(1)])
    end = log.position()
    log.close()
    before = disk.files()
    log = kit.start_core(kit.SERVER, disk)
    assert log.position() == (2, 0)
    log.write([kit.SERVER.unit(2)])
    assert disk.files()[kit.SERVER.file(2)].startswith(kit.SERVER.preamble(2, end))
    log.close()
    assert disk.files()[kit.SERVER.file(1)] == before[kit.SERVER.file(1)]


def test_recovery_writes_nothing_but_the_cuts_the_rule_allows(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.3 recover."""
    log = kit.start_core(kind, disk, size=SIZE)
    write_segments(log, kind, 3)
    image = disk.killed()
    before = image.files()
    report = kit.new_core(kind, image).recover(lambda scans: [])
    assert (image.files(), report.cut) == (before, ())
    mark = image.sim.disk_calls
    report = kit.new_core(kind, image).recover(kit.cut_all)
    assert [call for call in image.calls(mark) if call[0] != "sync_dir"] == [
        ("truncate", kind.file(kind.ids(3)[2])), ("fsync", kind.file(kind.ids(3)[2])),
    ]  # fmt: skip
    assert [segment.id for segment in report.cut] == [kind.ids(3)[2]]
    log.close()


def test_the_rule_sees_every_scan_before_anything_changes(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-61: `fail` examines all segments before changing any."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 3)
    image = disk.killed()
    before = image.files()
    seen: list[object] = []

    def refuse(scans: object) -> list[object]:
        seen.extend(scans)
        raise WalError("no")

    with pytest.raises(WalError, match="no"):
        kit.new_core(kind, image).recover(refuse)
    assert [(scan.id, scan.place) for scan in seen] == list(zip(kind.ids(3), ["inner", "inner", "last"], strict=True))
    assert image.files() == before
    log.close()


def test_the_places_are_given_by_content_not_by_files(disk: kit.Disk, kind: kit.Kind) -> None:
    """07 §1.2 place: last is the highest with content, beyond lies above it."""
    log = kit.start_core(kind, disk)
    write_segments(log, kind, 2)
    log.prepare_next()
    scans = kit.new_core(kind, disk.killed()).scan()
    assert [scan.place for scan in scans] == ["inner", "last", "beyond"]
    log.close()


@pytest.mark.parametrize("zeros", [0, SIZE])
def test_a_prepared_segment_left_by_a_crash_is_taken_or_removed(disk: kit.Disk, kind: kit.Kind, zeros: int) -> None:
    """W-62, 06 S-20, S-21: it carries no information; no file stays that is no segment of the log.

    The server's next file has the number behind the highest one with content.
    """
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    log.prepare_next()
    image = disk.killed()
    image.sim.truncate_at_rest(f"log/{kind.file(kind.ids(2)[1])}", zeros)
    again = kit.start_core(kind, image)
    ids = [info.id for info in again.segments()]
    assert image.names() == [kind.file(id) for id in ids]
    assert again.position()[0] == ids[-1]
    if not kind.resumes:
        assert again.position() == (kind.ids(2)[1], 0)
    id, offset = again.write([kind.unit(2)])
    assert image.files()[kind.file(id)][offset : offset + 64] == kind.unit(2)
    log.close()
    again.close()


def test_a_crash_at_any_disk_call_loses_nothing_synced(kind: kit.Kind) -> None:
    """W-15, W-16, R-10: images forked at every call of a run with rotations and deletions."""
    disk = kit.Disk()
    acked: list[bytes] = []
    forks: list[tuple[object, list[bytes], int]] = []
    floor = [0]

    def fork(call: Call) -> None:
        if call[0] != "point":
            forks.extend((disk.sim.crash_image(seed), list(acked), floor[0]) for seed in range(3))

    disk.sim.before = fork
    log = kit.start_core(kind, disk, size=400)
    for n in range(24):
        unit = kind.unit(n, 64 + n % 5)
        if not log.fits(len(unit)):
            log.rotate()
        log.write([unit])
        log.sync()
        acked.append(unit)
        if n == 15:
            active = disk.files()[kind.file(log.position()[0])]
            floor[0] = sum(unit not in active for unit in acked)
            log.delete_before(log.position()[0])
    disk.sim.before = None
    for image, units, gone in forks:
        found = kit.Disk(image)
        again = kit.start_core(kind, found, size=400)
        content = b"".join(found.files().values())
        assert [unit for unit in units[gone:] if unit not in content] == []
        again.close()
    log.close()


def test_a_power_loss_is_no_error_to_be_handled(disk: kit.Disk, kind: kit.Kind) -> None:
    """13 §2 PowerLoss: nothing is acknowledged behind it."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.sim.crash()
    with pytest.raises(PowerLoss):
        log.sync()


def test_write_failed_says_which_segment_could_not_be_prepared(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-70: the original error is the cause."""
    log = kit.start_core(kind, disk)
    log.write([kind.unit(1)])
    disk.fail("allocate", "ENOSPC")
    with pytest.raises(WriteFailed, match=f"segment {kind.ids(2)[1]}") as caught:
        log.rotate()
    assert isinstance(caught.value.__cause__, OSError)
    log.close()
