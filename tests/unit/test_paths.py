"""Names round-trip, and nothing but an exact name is recognised [S-10]."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import paths

u64 = st.integers(0, paths.U64_MAX)
PARSERS: list[Callable[[str], object]] = [
    paths.parse_snapshot,
    paths.parse_wal_file,
    paths.parse_shard_dir,
    paths.parse_topic_dir,
    paths.parse_segment,
    paths.parse_staging_dir,
    paths.parse_part,
    paths.parse_stamp_dir,
    paths.parse_backup,
    paths.parse_backup_part,
    paths.parse_library_segment,
    paths.parse_library_cut,
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (paths.snapshot(7), "snapshot-0000000000000007.bin"),
        (paths.wal_file(1), "wal-0000000000000001.log"),
        (paths.shard_dir(0), "shard-00"),
        (paths.topic_dir(10), "0000000A"),
        (paths.topic_dir(11, deleted=True), "0000000B.deleted"),
        (paths.segment(1, "data"), "seg-0000000000000001.data"),
        (paths.segment(1, "idx"), "seg-0000000000000001.idx"),
        (paths.segment(1, "data", 2), "seg-0000000000000001.g0002.data"),
        (paths.staging_dir(255, 3), "00000000000000ff-3"),
        (paths.backup(3), "backup-0000000000000003.json"),
        (paths.backup_snapshot(3, 255), "snapshot-0000000000000003.00000000000000ff.bin"),
        (paths.backup_part(1, "tag", 255), "seg-0000000000000001.00000000000000ff.tag"),
        (paths.part(3), "part-0000000000000003"),
        (paths.stamp_dir(7, 2), "out-7-2"),
        (paths.library_segment(0), "000000.wal"),
        (paths.library_segment(1_000_000), "1000000.wal"),
        (paths.library_cut(12), "000012.wal.cut"),
        (paths.library_cut(12, 1), "000012.wal.cut.1"),
        (paths.tmp("STORE"), "STORE.tmp"),
        (paths.salvaged("wal-1"), "wal-1.salvaged"),
    ],
)
def test_names_are_spelled_as_the_formats_say(name: str, expected: str) -> None:
    assert name == expected


@given(u64)
def test_numbered_names_round_trip(number: int) -> None:
    assert paths.parse_snapshot(paths.snapshot(number)) == number
    assert paths.parse_wal_file(paths.wal_file(number)) == number
    assert paths.parse_library_segment(paths.library_segment(number)) == number
    assert paths.parse_part(paths.part(number)) == number
    assert paths.parse_topic_dir(paths.topic_dir(number)) == (number, False)
    assert paths.parse_topic_dir(paths.topic_dir(number, deleted=True)) == (number, True)


@given(st.integers(0, paths.SHARDS_MAX - 1))
def test_shard_directories_round_trip(shard: int) -> None:
    assert paths.parse_shard_dir(paths.shard_dir(shard)) == shard


@given(u64, st.sampled_from(["data", "idx", "tag"]), u64)
def test_segment_names_round_trip(first_seq: int, kind: paths.SegmentKind, generation: int) -> None:
    generation = generation if kind == "data" else 0
    assert paths.parse_segment(paths.segment(first_seq, kind, generation)) == (first_seq, kind, generation)


@given(u64, st.sampled_from(["data", "idx", "tag"]), u64)
def test_names_in_a_backup_round_trip(number: int, kind: paths.SegmentKind, xxh3: int) -> None:
    assert paths.parse_backup(paths.backup(number)) == number
    assert paths.parse_backup_part(paths.backup_part(number, kind, xxh3)) == (number, kind, xxh3)
    assert paths.is_backup_snapshot(paths.backup_snapshot(number, xxh3))
    assert not paths.is_backup_snapshot(paths.snapshot(number))


@given(u64, u64)
def test_two_part_names_round_trip(first: int, second: int) -> None:
    assert paths.parse_staging_dir(paths.staging_dir(first, second)) == (first, second)
    assert paths.parse_stamp_dir(paths.stamp_dir(first, second)) == (first, second)
    assert paths.parse_library_cut(paths.library_cut(first, second)) == (first, second)


@given(st.text(min_size=1).filter(lambda name: "/" not in name))
def test_transient_names_give_their_target_back(name: str) -> None:
    assert paths.parse_tmp(paths.tmp(name)) == name
    assert paths.parse_salvaged(paths.salvaged(name)) == name


def formatted_again(parser: Callable[[str], object], value: object) -> str:
    """What the formatter that belongs to `parser` makes of what it returned."""
    if isinstance(value, paths.TopicDir):
        return paths.topic_dir(value.topic_id, deleted=value.deleted)
    formatter = getattr(paths, parser.__name__.removeprefix("parse_"))
    return str(formatter(*value) if isinstance(value, tuple) else formatter(value))


NEAR_NAMES = st.text(alphabet="0123456789abcdefABCDEF.-gwalogshrtpinuxkdeteco\n٣", max_size=40)


@given(st.sampled_from(PARSERS), NEAR_NAMES | st.text())
def test_what_is_recognised_is_exactly_what_would_be_written(parser: Callable[[str], object], name: str) -> None:
    value = parser(name)
    assert value is None or formatted_again(parser, value) == name


@given(st.sampled_from(PARSERS), u64, st.sampled_from("0 \n\tx.-/٣"), st.integers(0, 40))
def test_a_name_with_one_character_too_many_is_not_recognised_as_the_same(
    parser: Callable[[str], object], number: int, extra: str, at: int
) -> None:
    name = paths.wal_file(number)
    changed = name[:at] + extra + name[at:]
    value = parser(changed)
    assert value is None or formatted_again(parser, value) == changed


@pytest.mark.parametrize(
    "name",
    [
        "wal-1.log",
        "wal-00000000000000001.log",
        "wal-000000000000000١.log",
        "wal-0000000000000001.log\n",
        "wal--000000000000001.log",
        "wal-99999999999999999999.log",
        "WAL-0000000000000001.log",
    ],
)
def test_near_misses_of_a_wal_file_are_not_ours(name: str) -> None:
    assert paths.parse_wal_file(name) is None


@pytest.mark.parametrize(
    ("parser", "name"),
    [
        (paths.parse_shard_dir, "shard-64"),
        (paths.parse_shard_dir, "shard-1"),
        (paths.parse_shard_dir, "shard-001"),
        (paths.parse_topic_dir, "0000000a"),
        (paths.parse_topic_dir, "00000000A"),
        (paths.parse_topic_dir, "A"),
        (paths.parse_topic_dir, "0000000A.Deleted"),
        (paths.parse_topic_dir, "1" + "0" * 16),
        (paths.parse_segment, "seg-0000000000000001.g0000.data"),
        (paths.parse_segment, "seg-0000000000000001.g0001.idx"),
        (paths.parse_segment, "seg-0000000000000001.g1.data"),
        (paths.parse_segment, "seg-0000000000000001.data.tmp"),
        (paths.parse_staging_dir, "00000000000000FF-3"),
        (paths.parse_staging_dir, "00000000000000ff-03"),
        (paths.parse_stamp_dir, "out"),
        (paths.parse_stamp_dir, "out-1-02"),
        (paths.parse_library_segment, "0.wal"),
        (paths.parse_library_segment, "0000001.wal"),
        (paths.parse_library_segment, "-00001.wal"),
        (paths.parse_library_segment, "٠٠٠٠٠٠.wal"),
        (paths.parse_library_segment, "18446744073709551616.wal"),
        (paths.parse_library_cut, "000000.wal.cut.0"),
        (paths.parse_library_cut, "000000.wal.cut.01"),
        (paths.parse_library_cut, "000000.wal"),
        (paths.parse_tmp, ".tmp"),
        (paths.parse_tmp, "x"),
        (paths.parse_tmp, "a/b.tmp"),
        (paths.parse_salvaged, "x.tmp"),
    ],
)
def test_other_near_misses_are_not_ours(parser: Callable[[str], object], name: str) -> None:
    assert parser(name) is None


def test_library_segments_are_ordered_by_number_not_by_text() -> None:
    names = [paths.library_segment(n) for n in (1_000_000, 999_999)]
    assert sorted(names) != sorted(names, key=lambda name: paths.parse_library_segment(name) or 0)


def test_numbers_that_no_file_can_have_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        paths.wal_file(-1)
    with pytest.raises(AssertionError):
        paths.shard_dir(64)
    with pytest.raises(AssertionError):
        paths.segment(1, "idx", 1)
