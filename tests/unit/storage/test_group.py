"""A WAL group at start-up: every verdict of 06 §5, and that nothing is changed before it is sure (06 §5, §6.5, §14)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tests.unit.storage import kit
from topics.codec import control, frame
from topics.errors import UnsupportedFormat, WalCorrupt
from topics.storage import group as groups
from topics.testing import PowerLoss, SimFs
from topics.testing.simfs import STYLES, SYNC_MODES, CrashMode, SyncMode

MODES: tuple[CrashMode, ...] = ("before", "middle", "after")
ZEROS = bytes(700)

ONE = kit.log_file(1, kit.append(1), kit.append(2))
"""A whole file of two submissions."""
END = len(ONE)
MARK = len(kit.open_mark(1))


def two(*parts: bytes, prev: int = END) -> bytes:
    """A second file behind `ONE`."""
    return kit.log_file(2, *parts, prev=(1, prev))


def newer_frame() -> bytes:
    """An intact frame of a type that this version does not know."""
    return frame._encode(13 + 100, 0, kit.TOPIC, 0, kit.TS, b"?")


def newer_body() -> bytes:
    """An intact control frame whose body has version 2."""
    body = control.encode_body(control.HeadWatermark(reserved=1)).replace(b"\xa1v\x01", b"\xa1v\x02")
    return frame._encode(11, 0, kit.TOPIC, 0, kit.TS, body)


def unchanged(disk: kit.Disk, act: Callable[[], object]) -> None:
    """Run `act` and see that it left every byte and every name alone."""
    before, calls = disk.sim.files(), disk.sim.disk_calls
    act()
    assert disk.sim.files() == before
    assert disk.sim.disk_calls == calls


def refused(disk: kit.Disk, position: tuple[int, int] = (1, 0), **where: str) -> str:
    """The message of the refusal, which changed nothing."""
    with pytest.raises(WalCorrupt) as caught:
        unchanged(disk, lambda: kit.read(disk, position, **where))
    return str(caught.value)


@pytest.mark.parametrize("rest", [b"", ZEROS], ids=["end of file", "zeros"])
def test_a_tail_file_that_ends_in_nothing_is_clean(rest: bytes) -> None:
    """06 §5 row 1, tail: everything in it counts, and it is finalized."""
    disk = kit.layout({1: ONE + rest})
    group = kit.read(disk)
    assert [(file.scan.verdict, file.scan.end, file.place) for file in group.files] == [("clean", END, "last")]
    assert list(groups.mend(disk.fs, group)) == [1]
    assert disk.file(1) == ONE
    assert kit.seqs(disk, group) == [1, 2]


@pytest.mark.parametrize("rest", [b"", ZEROS], ids=["end of file", "zeros"])
def test_an_inner_file_that_ends_in_nothing_is_clean(rest: bytes) -> None:
    """06 §5 row 1, below the tail file."""
    disk = kit.layout({1: ONE + rest, 2: two(kit.append(3))})
    group = kit.recover(disk)
    assert [(file.scan.verdict, file.place) for file in group.files] == [("clean", "inner"), ("clean", "last")]
    assert disk.file(1) == ONE
    assert kit.seqs(disk, group) == [1, 2, 3]


@pytest.mark.parametrize("rest", [b"", ZEROS], ids=["end of file", "zeros"])
@pytest.mark.parametrize("there", [1, 2])
def test_a_torn_submission_is_cut_at_its_first_frame(rest: bytes, there: int) -> None:
    """06 §5 row 2, S-241: not even its intact frames are applied."""
    disk = kit.layout({1: ONE + kit.chain(3, 3)[: there * 64] + rest})
    group = kit.recover(disk)
    assert [(file.scan.verdict, file.scan.end) for file in group.files] == [("torn", END)]
    assert disk.file(1) == ONE
    assert kit.seqs(disk, group) == [1, 2]


TORN = {
    "a frame whose bytes are wrong": kit.flip(kit.append(3), 40),
    "a frame that ends early": kit.append(3)[:50],
    "a length that is too large": b"\xff\xff\xff\xff" + bytes(20) + b"x",
    "a length that is too small": b"\x05" + bytes(60) + b"x",
    "a zero length with bytes behind": bytes(20) + b"x",
    "a hole with an unconfirmed frame behind": bytes(64) + kit.append(4),
    "a bad frame with unconfirmed frames behind": kit.flip(kit.append(3), 40) + kit.append(4) + kit.chain(5),
}


@pytest.mark.parametrize("rest", [b"", ZEROS], ids=["end of file", "zeros"])
@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_tail_is_cut_where_it_begins(torn: bytes, rest: bytes) -> None:
    """06 §5 row 3: no later frame proves that these bytes were synced, so no promise is broken."""
    disk = kit.layout({1: ONE + torn + rest})
    group = kit.recover(disk)
    assert [(file.scan.verdict, file.scan.end) for file in group.files] == [("torn", END)]
    assert disk.file(1) == ONE
    assert kit.seqs(disk, group) == [1, 2]


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_tail_inside_a_submission_is_cut_at_the_submission_s_start(torn: bytes) -> None:
    """06 §5 row 3: cut at the start of the unfinished submission that contains P."""
    disk = kit.layout({1: ONE + kit.chain(3, 3)[:128] + torn})
    group = kit.recover(disk)
    assert disk.file(1) == ONE
    assert kit.seqs(disk, group) == [1, 2]


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
@pytest.mark.parametrize(
    "witness",
    [kit.flagged(kit.append(9)), kit.mark(control.SyncMark(), synced_prefix=True)],
    ids=["a batch", "a sync mark"],
)
def test_damage_before_a_frame_that_says_synced_is_no_torn_tail(torn: bytes, witness: bytes) -> None:
    """06 §5 row 4, S-25, S-61: a power failure cannot damage bytes that a sync had covered."""
    message = refused(kit.layout({1: ONE + torn + witness + ZEROS}))
    assert f"offset {END}" in message


def test_damage_in_the_batch_that_says_synced_is_a_torn_tail() -> None:
    """06 §5 row 3: the flag speaks of the bytes before its frame, not of its own."""
    disk = kit.layout({1: ONE + kit.flip(kit.flagged(kit.append(3)), 50) + kit.append(4)})
    assert kit.seqs(disk, kit.recover(disk)) == [1, 2]


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_any_damage_below_the_tail_file_is_corruption(torn: bytes) -> None:
    """06 §5 row 5: content in the next file proves that this one was synced."""
    message = refused(kit.layout({1: ONE + torn, 2: kit.log_file(2, kit.append(9))}))
    assert f"offset {END}" in message


def test_a_torn_submission_below_the_tail_file_is_corruption() -> None:
    """06 §5 row 5: anything else than row 1."""
    refused(kit.layout({1: ONE + kit.chain(3, 3)[:128] + ZEROS, 2: kit.log_file(2, kit.append(9))}))


def test_a_file_without_content_does_not_make_the_one_before_it_an_inner_one() -> None:
    """06 §5: the tail file is the highest one with a byte that is not zero; S-20: others carry no information."""
    disk = kit.layout({1: ONE + b"torn", 2: ZEROS, 3: b""})
    group = kit.recover(disk)
    assert (group.prepared, [file.number for file in group.files]) == ((2, 3), [1])
    assert kit.seqs(disk, group) == [1, 2]


def test_a_tail_file_that_is_torn_from_its_first_byte_is_cut_to_nothing() -> None:
    """06 §5 row 3, S-21: its number is free again, because nothing in it was ever confirmed."""
    disk = kit.layout({1: ONE, 2: kit.flip(two(kit.append(3)), 20)}, current=2)
    group = kit.recover(disk)
    assert disk.file(2) == b""
    assert group.last_number == 1
    assert kit.seqs(disk, group) == [1, 2]


def test_bytes_behind_a_cut_are_never_interpreted() -> None:
    """S-60: whole, intact submissions behind the cut are gone for good."""
    disk = kit.layout({1: ONE + b"!" + kit.append(3) + kit.append(4)})
    group = kit.recover(disk)
    assert kit.seqs(disk, group) == [1, 2]
    assert kit.seqs(disk, kit.recover(disk)) == [1, 2]


def test_a_cut_is_a_truncate_and_a_sync() -> None:
    """S-60."""
    disk = kit.layout({1: ONE + b"torn"})
    group = kit.read(disk)
    mark = disk.sim.disk_calls
    list(groups.mend(disk.fs, group))
    assert disk.calls(mark)[-2:] == [("truncate", kit.name(1)), ("fsync", kit.name(1))]
    assert disk.power_loss().file(1) == ONE


def test_a_recovery_that_is_killed_anywhere_gives_the_same_cut_again() -> None:
    """S-60, S-230, S-249: whatever of it reached the disk, and whatever the page cache keeps."""
    torn = kit.layout({1: ONE + ZEROS, 2: two(kit.append(3)) + b"torn" + kit.append(9)})
    dry = kit.Disk(torn.sim.kill_image())
    kit.recover(dry)
    count = 0
    for call in range(1, dry.sim.disk_calls + 1):
        for mode in MODES:
            disk = kit.Disk(torn.sim.kill_image())
            disk.sim.crash_at(call, mode)
            with pytest.raises(PowerLoss):
                kit.recover(disk)
            for survivor in [disk.sim.kill_image(), *(disk.sim.crash_image(call, style) for style in STYLES)]:
                again = kit.Disk(survivor)
                assert kit.seqs(again, kit.recover(again)) == [1, 2, 3]
                assert (again.file(1), again.file(2)) == (dry.file(1), dry.file(2))
                count += 1
    assert count > 50


def test_bytes_below_the_replay_position_are_not_examined() -> None:
    """S-63: damage there is harmless, its content is in segments."""
    disk = kit.layout({1: kit.flip(ONE, MARK + 10) + kit.append(3)})
    refused_without = kit.layout({1: kit.flip(ONE, MARK + 10) + kit.append(3), 2: kit.log_file(2, kit.append(4))})
    refused(refused_without)
    group = kit.recover(disk, (1, END))
    assert kit.seqs(disk, group) == [3]
    assert group.files[0].start == END


def test_the_bytes_below_the_replay_position_survive_the_mending() -> None:
    """S-88: a tail file is written again byte for byte, whatever is in its older part."""
    damaged = kit.flip(ONE, MARK + 10) + kit.append(3)
    disk = kit.layout({1: damaged + b"torn"})
    kit.recover(disk, (1, END))
    assert disk.file(1) == damaged


def test_files_below_the_replay_position_are_not_even_read() -> None:
    """S-63: one that cannot be read does not keep the store from opening."""
    disk = kit.layout({1: b"rubbish", 2: two(kit.append(3), prev=7)})
    for op in ("open", "pread", "size"):
        disk.fail(op, times="always", path=kit.name(1))
    group = kit.recover(disk, (2, 0))
    assert (group.below, kit.seqs(disk, group)) == ((1,), [3])
    assert disk.file(1) == b"rubbish"


def test_a_trimmed_file_is_no_hole() -> None:
    """S-64, S-89: only files above the replay position have to be there."""
    disk = kit.layout({3: kit.log_file(3, kit.append(3), prev=(2, 900))}, current=3)
    assert kit.seqs(disk, kit.recover(disk, (3, 0))) == [3]


@pytest.mark.parametrize("there", [None, b"", ONE[: END - 64], bytes(END - 1)], ids=["no", "empty", "short", "zeros"])
def test_a_file_that_does_not_reach_the_replay_position_is_corruption(there: bytes | None) -> None:
    """S-211: the file of a position above 0 must exist and hold at least that many bytes."""
    files = {} if there is None else {1: there}
    refused(kit.layout(files), (1, END))


def test_a_position_at_the_very_end_is_fine() -> None:
    """S-211: everything in the file is in segments."""
    disk = kit.layout({1: ONE})
    assert kit.seqs(disk, kit.recover(disk, (1, END))) == []


def test_current_above_every_file_is_corruption() -> None:
    """S-64: the active file is gone."""
    message = refused(kit.layout({1: ONE}, current=2))
    assert kit.name(2) in message


def test_current_without_any_file_is_corruption() -> None:
    """S-64: `CURRENT` is written only after its file is durable."""
    refused(kit.layout({}, current=1))


@pytest.mark.parametrize("prepared", [b"", ZEROS], ids=["empty", "zeros"])
def test_a_prepared_file_is_what_current_may_name(prepared: bytes) -> None:
    """S-64: prepared files count as present."""
    disk = kit.layout({1: ONE, 2: prepared}, current=2)
    assert kit.recover(disk).prepared == (2,)


def test_current_below_the_highest_file_is_fine() -> None:
    """S-86: it is a cross-check, not the source of truth."""
    disk = kit.layout({1: ONE, 2: two(kit.append(3))}, current=1)
    assert kit.seqs(disk, kit.recover(disk)) == [1, 2, 3]


@pytest.mark.parametrize("content", [None, b"", b"wal-0000000000000009.log", b"\xff\xfe\n", b"rubbish\n"])
def test_recovery_uses_the_files_where_current_tells_nothing(content: bytes | None) -> None:
    """S-86: missing or unreadable text in it costs nothing."""
    disk = kit.layout({1: ONE})
    if content is not None:
        disk.sim.load({f"{kit.DIR}/CURRENT": content})
    assert kit.seqs(disk, kit.recover(disk)) == [1, 2]


def test_a_hole_in_the_numbers_is_corruption() -> None:
    """S-64."""
    message = refused(kit.layout({1: ONE, 3: kit.log_file(3, kit.append(3))}))
    assert kit.name(2) in message


@pytest.mark.parametrize("prepared", [b"", ZEROS], ids=["empty", "zeros"])
def test_a_file_without_content_between_two_with_content_is_a_hole(prepared: bytes) -> None:
    """S-64: a hole in the numbers of the files *with content*."""
    refused(kit.layout({1: ONE, 2: prepared, 3: kit.log_file(3, kit.append(3))}))


def test_the_file_of_another_number_is_refused() -> None:
    """S-135: an open mark's `file` must match the file's place."""
    refused(kit.layout({1: ONE, 2: kit.log_file(3, kit.append(3))}))


def test_swapped_files_are_refused() -> None:
    """S-135, 13 T7."""
    disk = kit.layout({1: ONE, 2: two(kit.append(3))})
    disk.sim.swap_files(kit.path(1), kit.path(2))
    refused(disk)


def test_the_file_of_another_shard_is_refused() -> None:
    """S-135: an open mark's `shard` must match the file's place too, whatever its number is."""
    dir = f"{kit.DIR}/shard-00"
    alien = kit.log_file(1, kit.append(1), shard=1, shards=2)
    refused(kit.layout({1: alien}, dir=dir), key="shard-00", dir=dir)


def test_the_file_of_a_shard_is_refused_in_the_flat_directory() -> None:
    """S-135, S-70: the flat group belongs to a layout of one shard."""
    refused(kit.layout({1: kit.log_file(1, kit.append(1), shard=1, shards=2)}))


@pytest.mark.parametrize("lost", [64, 128])
def test_an_inner_file_shorter_than_the_next_one_says_is_corruption(lost: int) -> None:
    """S-68: even if what is left is whole, and followed by zeros."""
    for rest in (b"", bytes(lost)):
        message = refused(kit.layout({1: ONE[: END - lost] + rest, 2: two(kit.append(3))}))
        assert f"offset {END - lost}" in message


@pytest.mark.parametrize("left", [b"", bytes(END)], ids=["cut to nothing", "zeroed"])
def test_the_first_file_without_its_content_is_corruption(left: bytes) -> None:
    """S-68, S-1, 13 T7: the next file says that it held bytes; a file cut to nothing is no prepared one."""
    refused(kit.layout({1: left, 2: two(kit.append(3))}))


@pytest.mark.parametrize("left", [b"", bytes(END)], ids=["cut to nothing", "zeroed"])
def test_the_file_of_the_replay_position_without_its_content_is_corruption(left: bytes) -> None:
    """S-68, S-211: what lay between the position and the length the next file gives is gone."""
    refused(kit.layout({1: left, 2: two(kit.append(3))}), (1, MARK))


def test_a_missing_file_at_the_replay_position_is_corruption() -> None:
    """S-64, S-68: the next file says that it held bytes that no segment has."""
    refused(kit.layout({3: kit.log_file(3, kit.append(3), prev=(2, 500))}), (2, 0))


def test_a_length_that_cannot_be_read_is_no_witness() -> None:
    """S-68: "where that is readable": a Pad over the open mark, as salvage writes it, says nothing."""
    pad = frame.encode_pads(len(kit.open_mark(2, (1, END))))
    disk = kit.layout({1: ONE[: END - 64], 2: pad + kit.append(3)})
    assert kit.seqs(disk, kit.recover(disk)) == [1, 3]


def test_a_refusal_names_group_file_offset_and_what_lies_beyond() -> None:
    """S-65: group, file, offset, reason, and how many valid frames of which topics."""
    beyond = kit.append(3, topic=41) + kit.append(1, topic=42) + kit.flagged(kit.append(4, topic=41))
    dir = f"{kit.DIR}/shard-00"
    body = kit.log_file(1, kit.append(1), shards=2)
    disk = kit.layout({1: body + kit.flip(kit.append(2), 44) + beyond}, dir=dir)
    message = refused(disk, key="shard-00", dir=dir)
    for text in ("shard-00", kit.name(1), f"offset {len(body)}", "bad", "3 valid frames", "41", "42"):
        assert text in message


CORRUPT: dict[str, tuple[dict[int, bytes], int | None]] = {
    "row 4": ({1: ONE + b"!" + kit.flagged(kit.append(9))}, None),
    "row 5, bad bytes": ({1: kit.flip(ONE, MARK + 10), 2: two(kit.append(9))}, None),
    "row 5, torn submission": ({1: ONE + kit.chain(3)[:64], 2: kit.log_file(2, kit.append(9))}, None),
    "S-64, hole": ({1: ONE, 3: kit.log_file(3, kit.append(9))}, None),
    "S-64, CURRENT": ({1: ONE}, 2),
    "S-68": ({1: ONE[: END - 64], 2: two(kit.append(9))}, None),
    "S-135": ({1: ONE, 2: kit.log_file(3, kit.append(9))}, None),
}


@pytest.mark.parametrize(("files", "current"), CORRUPT.values(), ids=CORRUPT)
def test_every_refusal_tells_how_much_lies_beyond(files: dict[int, bytes], current: int | None) -> None:
    """S-65: the operator has to know what a salvage could keep, whichever rule refused."""
    message = refused(kit.layout(files, current=current))
    assert "valid frames" in message


@pytest.mark.parametrize(("files", "current"), CORRUPT.values(), ids=CORRUPT)
def test_a_refusal_changes_nothing_and_is_repeatable(files: dict[int, bytes], current: int | None) -> None:
    """S-65: every byte and name as before, not a single disk call; the next start refuses alike."""
    disk = kit.layout(files, current=current)
    assert refused(disk) == refused(disk)


@pytest.mark.parametrize("place", ["tail", "inner"])
@pytest.mark.parametrize("newer", [newer_frame(), newer_body()], ids=["type", "body version"])
def test_intact_bytes_of_a_newer_version_are_never_cut(newer: bytes, place: str) -> None:
    """S-67, S-7: `UnsupportedFormat`, and nothing on disk is changed; also at the very end of the log."""
    files = {1: ONE + newer}
    if place == "inner":
        files[2] = kit.log_file(2, kit.append(3))
    disk = kit.layout(files)
    with pytest.raises(UnsupportedFormat) as caught:
        unchanged(disk, lambda: kit.read(disk))
    assert kit.name(1) in str(caught.value)


@pytest.mark.parametrize("behind", [False, True], ids=["from the start", "position behind it"])
@pytest.mark.parametrize("how", kit.NEWER_MARKS)
def test_a_wal_of_a_newer_format_is_refused(how: str, behind: bool) -> None:
    """S-7, S-26, S-67: the open mark's `fmt` or body version, also where replay begins behind it."""
    newer = kit.newer_open_mark(1, how)
    disk = kit.layout({1: newer + kit.append(1) + kit.append(2)})
    with pytest.raises(UnsupportedFormat) as caught:
        unchanged(disk, lambda: kit.read(disk, (1, len(newer) + 64 if behind else 0)))
    assert kit.name(1) in str(caught.value)


def test_a_damaged_open_mark_behind_the_position_does_not_matter() -> None:
    """S-26, S-63: bad bytes are no newer version's, and nobody replays them."""
    disk = kit.layout({1: kit.flip(ONE, 20)})
    assert kit.read(disk, (1, MARK)).files[0].mark is None


def test_newer_bytes_behind_a_torn_place_do_not_matter() -> None:
    """S-60, S-67: bytes after a cut are never interpreted."""
    disk = kit.layout({1: ONE + b"!" + newer_frame()})
    assert kit.seqs(disk, kit.recover(disk)) == [1, 2]


@pytest.mark.parametrize("op", ["listdir", "open", "size", "pread"])
def test_what_cannot_be_read_fails_the_start(op: str) -> None:
    """S-248: EIO at any read of recovery; the engine never starts empty over data it could not read."""
    make = lambda: kit.layout({1: ONE, 2: two(kit.append(3))}, current=2)  # noqa: E731
    dry = make()
    kit.read(dry)
    assert dry.faults.counts[op] > 0
    for index in range(1, dry.faults.counts[op] + 1):
        disk = make()
        disk.fail(op, index=index)
        with pytest.raises(OSError, match="Input/output error"):
            unchanged(disk, lambda disk=disk: kit.read(disk))


@pytest.mark.parametrize("error", ["short", "zero"])
def test_a_read_that_ends_early_never_shortens_the_log(error: str) -> None:
    """S-248, 13 R-1: a short count is gone on with or fails; it is not taken for the end of the file."""
    for index in range(1, 4):
        disk = kit.layout({1: ONE})
        disk.fail("pread", error, index=index)
        try:
            found = kit.seqs(disk, kit.read(disk))
        except OSError:
            continue
        assert found == [1, 2]


PREFIXES = {
    "a frame that ends early": kit.append(3)[:50],
    "a chain without its last frame": kit.chain(3, 3)[:128],
    "a chain without half of its last frame": kit.chain(3, 3)[:150],
    "a longer chain": kit.chain(3, 6)[: 5 * 64],
}


@pytest.mark.parametrize("rest", [b"", ZEROS], ids=["end of file", "zeros"])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_killed_process_leaves_no_islands(prefix: bytes, rest: bytes) -> None:
    """S-245: it leaves a prefix of what it wrote; frames before P prove no lost page cache, or a `disk` topic would be
    told a loss that did not happen."""
    (file,) = kit.read(kit.layout({1: ONE + prefix + rest})).files
    assert file.scan.verdict == "torn"
    assert not file.islands


ISLANDS = {
    "behind a hole": bytes(64) + kit.append(4),
    "behind a bad frame": kit.flip(kit.append(3), 40) + kit.append(4),
    "behind a hole in a chain": kit.chain(3, 3)[:64] + bytes(64) + kit.chain(3, 3)[128:],
    "behind a torn chain": kit.chain(3, 3)[:100] + bytes(92) + kit.append(6),
}


@pytest.mark.parametrize("torn", ISLANDS.values(), ids=ISLANDS)
def test_a_valid_frame_behind_the_first_bad_one_is_an_island(torn: bytes) -> None:
    """S-245: only a lost page cache leaves one."""
    (file,) = kit.read(kit.layout({1: ONE + torn})).files
    assert file.islands


def test_a_clean_file_has_no_islands() -> None:
    """S-245."""
    assert not any(file.islands for file in kit.read(kit.layout({1: ONE, 2: two(kit.append(3)) + ZEROS})).files)


def rewrites(disk: kit.Disk, group: groups.Group) -> list[tuple[str, tuple[int | str, ...]]]:
    """The disk calls of mending: operation and arguments."""
    since = disk.sim.disk_calls
    list(groups.mend(disk.fs, group))
    return [(op, args) for op, _, args in disk.sim.calls[since:]]


def test_the_tail_of_a_run_without_a_close_mark_is_written_again() -> None:
    """S-88: byte for byte, then cut, then synced: pages that a failed sync had marked clean become dirty."""
    disk = kit.layout({1: ONE + ZEROS})
    assert rewrites(disk, kit.read(disk)) == [("pwrite", (0, END)), ("truncate", (END,)), ("fsync", ())]
    assert disk.file(1) == ONE


def test_the_tail_of_a_run_with_a_close_mark_is_left_alone() -> None:
    """S-88."""
    disk = kit.layout({1: ONE + kit.mark(control.CloseMark(run=1))})
    assert rewrites(disk, kit.read(disk)) == []


def test_a_closed_tail_that_was_not_finalized_is_only_cut() -> None:
    """S-88: finalize is ftruncate and fsync."""
    closed = ONE + kit.mark(control.CloseMark(run=1))
    disk = kit.layout({1: closed + ZEROS})
    assert rewrites(disk, kit.read(disk)) == [("truncate", (len(closed),)), ("fsync", ())]
    assert disk.file(1) == closed


def test_frames_behind_a_close_mark_make_the_tail_open_again() -> None:
    """S-88, S-44: `close` is the last frame of a clean shutdown, or it is none."""
    disk = kit.layout({1: ONE + kit.mark(control.CloseMark(run=1)) + kit.append(3)})
    assert ("pwrite", (0, disk.sim.size(kit.path(1)))) in rewrites(disk, kit.read(disk))


def test_a_close_mark_that_is_cut_off_does_not_count() -> None:
    """S-88: only the valid part decides."""
    disk = kit.layout({1: ONE + b"!" + kit.mark(control.CloseMark(run=1))})
    assert rewrites(disk, kit.read(disk)) == [("pwrite", (0, END)), ("truncate", (END,)), ("fsync", ())]


def test_only_the_tail_file_is_written_again() -> None:
    """S-88: what is below it was synced before it was used."""
    disk = kit.layout({1: ONE, 2: two(kit.append(3))})
    since = disk.sim.disk_calls
    kit.recover(disk)
    assert {name for op, name in disk.calls(since) if op == "pwrite"} == {kit.name(2)}


def test_a_large_tail_is_written_again_whole() -> None:
    """S-88: in pieces, without a gap or an overlap."""
    whole = kit.log_file(1, *(kit.append(seq, 300_000) for seq in range(1, 9)))
    disk = kit.layout({1: whole})
    pieces = [args for op, args in rewrites(disk, kit.read(disk)) if op == "pwrite"]
    ends = [0, *(int(offset) + int(n) for offset, n in pieces)]
    assert [offset for offset, _ in pieces] == ends[:-1]
    assert ends[-1] == len(whole)
    assert disk.file(1) == whole


@pytest.mark.parametrize("op", ["open", "pread", "pwrite", "truncate", "fsync"])
def test_a_tail_that_cannot_be_mended_fails_the_start_and_loses_nothing(op: str) -> None:
    """S-88: a failure of any of this fails open; the next start finds the same."""
    disk = kit.layout({1: ONE + b"torn"})
    group = kit.read(disk)
    disk.fail(op)
    with pytest.raises(OSError, match="Input/output error"):
        list(groups.mend(disk.fs, group))
    again = disk.killed()
    assert kit.seqs(again, kit.recover(again)) == [1, 2]


@pytest.mark.parametrize("mode", [mode for mode in SYNC_MODES if mode != "late"])
def test_acknowledged_writes_survive_an_earlier_failed_sync_of_the_file_before_them(mode: SyncMode) -> None:
    """C11, S-88, S-68: EIO at a sync, restart on the same boot, durable writes in the next file, power loss."""
    disk = kit.Disk()
    first = kit.Run(disk)
    kept = first.put(durable=True)
    disk.fail("fdatasync", mode=mode)
    first.put(durable=True)
    assert first.state == "read_only"
    killed = disk.killed()
    second = kit.Run(killed, run=2)
    second.seq = 10
    acked = [second.put(durable=True) for _ in range(3)]
    assert (kept.lsn.file_no, {ticket.lsn.file_no for ticket in acked}) == (1, {2})
    for style in STYLES:
        for seed in range(5):
            image = kit.Disk(killed.sim.crash_image(seed, style))
            found = kit.seqs(image, kit.recover(image))
            assert [seq for seq in found if seq != 2] == [1, 11, 12, 13]


def test_a_group_that_is_being_removed_can_be_read_at_any_point() -> None:
    """C24, S-89, S-211: `CURRENT` goes first, then the files ascending; what is left is below its retired row."""
    disk = kit.layout({1: ONE, 2: two(kit.append(3)), 3: kit.log_file(3, kit.append(4), prev=(2, 500))}, current=3)
    fs = disk.fs
    steps: list[Callable[[], None]] = [lambda: fs.remove(f"{kit.DIR}/CURRENT"), lambda: fs.sync_dir(kit.DIR)]
    for number in (1, 2, 3):
        steps += [lambda number=number: fs.remove(kit.path(number)), lambda: fs.sync_dir(kit.DIR)]
    for step in steps:
        step()
        for survivor in [disk.sim.kill_image(), *(disk.sim.crash_image(3, style) for style in STYLES)]:
            assert kit.read(kit.Disk(survivor), (4, 0)).files == ()


def test_two_kills_right_after_a_rotation_find_everything() -> None:
    """C41: a file whose name `CURRENT` has and that holds nothing yet, twice."""
    disk = kit.Disk()
    run = kit.Run(disk)
    run.put(durable=True)
    run.shard.log.rotate()
    for number in (2, 3):
        disk = disk.killed()
        run = kit.Run(disk, run=number)
        assert kit.seqs(disk, run.group) == [1]
    run.seq = 1
    assert run.put(durable=True).lsn.file_no == 2
    again = disk.killed()
    assert kit.seqs(again, kit.recover(again)) == [1, 2]


def images(act: Callable[[SimFs], None], base: SimFs) -> Iterator[SimFs]:
    """Survivors of a power loss or a kill at every disk call of `act`."""
    dry = base.kill_image()
    act(dry)
    for call in range(1, dry.disk_calls + 1):
        for mode in MODES:
            disk = base.kill_image()
            disk.crash_at(call, mode)
            with pytest.raises(PowerLoss):
                act(disk)
            yield disk.kill_image()
            for style in STYLES:
                yield disk.crash_image(random.Random(call), style)


@pytest.mark.parametrize("leftover", [None, b"", b"wal-0000000000000001.log and a longer rest\n"])
def test_current_is_the_old_or_the_new_one_at_every_moment(leftover: bytes | None) -> None:
    """S-86: temporary file, fsync, rename, directory fsync; what an earlier attempt left does not matter."""
    base = kit.layout({1: ONE, 2: ZEROS}, current=1).sim
    if leftover is not None:
        base.load({f"{kit.DIR}/CURRENT.tmp": leftover})
    seen = [
        groups.read_current(image, kit.DIR) for image in images(lambda fs: groups.write_current(fs, kit.DIR, 2), base)
    ]
    assert set(seen) == {1, 2}


def test_current_is_durable_when_it_is_written() -> None:
    """S-86, S-12: name and content survive a power loss."""
    disk = kit.layout({1: ONE})
    groups.write_current(disk.fs, kit.DIR, 1)
    assert disk.power_loss().files()["CURRENT"] == f"{kit.name(1)}\n".encode()


@pytest.mark.parametrize("op", ["open", "pwrite", "truncate", "fsync", "rename", "sync_dir"])
def test_current_that_cannot_be_written_is_told(op: str) -> None:
    """S-85, S-86: and what it said before, or the new name, is there."""
    disk = kit.layout({1: ONE, 2: ZEROS}, current=1)
    disk.fail(op)
    with pytest.raises(OSError, match="Input/output error"):
        groups.write_current(disk.fs, kit.DIR, 2)
    assert disk.current() in (1, 2)


def test_names_that_are_not_ours_are_ignored_and_kept() -> None:
    """S-10: not even looked into."""
    disk = kit.layout({1: ONE})
    disk.sim.load({f"{kit.DIR}/notes.txt": b"mine", f"{kit.DIR}/wal-1.log": b"mine"})
    kit.recover(disk)
    assert disk.files()["notes.txt"] == disk.files()["wal-1.log"] == b"mine"


def test_open_marks_tell_the_run_of_every_file() -> None:
    """06 §14 step 4: recovery reads each file's open mark."""
    group = kit.read(kit.layout({1: ONE, 2: two(kit.append(3))}))
    assert [(file.mark.run, file.mark.boot, file.mark.file) for file in group.files if file.mark] == [
        (1, "boot", 1),
        (1, "boot", 2),
    ]


def test_an_empty_group_is_no_problem() -> None:
    """S-20: an engine that wrote nothing made no file."""
    group = kit.recover(kit.Disk())
    assert (group.files, group.prepared, group.below, group.last_number) == ((), (), (), 0)


def test_the_last_number_counts_files_below_the_replay_position() -> None:
    """S-21: the highest number of a file with content in the group."""
    assert kit.read(kit.layout({1: ONE, 2: ZEROS}), (2, 0)).last_number == 1


def test_files_are_read_one_after_another_into_the_same_memory() -> None:
    """A shorter one behind a longer one too, and a part of one; what is there cannot be changed."""
    disk = kit.layout({1: ONE + ZEROS, 2: two(kit.append(3))})
    path = f"{kit.DIR}/{kit.name(1)}", f"{kit.DIR}/{kit.name(2)}"
    reading = groups.Reading(disk.fs)
    for one, most in ((0, None), (1, None), (0, END), (0, None), (1, 10)):
        view = reading.read(path[one], most)
        assert view.readonly
        assert bytes(view) == disk.file(one + 1)[: len(view)]
        assert len(view) == (len(disk.file(one + 1)) if most is None else most)


@pytest.mark.parametrize("at", [0, groups._COPY_BYTES - 1, groups._COPY_BYTES, 2 * groups._COPY_BYTES + 5])
def test_content_is_found_wherever_it_is(at: int) -> None:
    """S-64: a file is prepared only if there is nothing but zeros in it."""
    zeros = bytearray(2 * groups._COPY_BYTES + 10)
    disk = kit.layout({1: bytes(zeros)})
    assert not groups._has_content(disk.fs, f"{kit.DIR}/{kit.name(1)}")
    zeros[at] = 1
    disk = kit.layout({1: bytes(zeros)})
    assert groups._has_content(disk.fs, f"{kit.DIR}/{kit.name(1)}")
