"""Staged parts: their bounds, their order, and that nothing of them stays behind [S-286, TXN-4]."""

from __future__ import annotations

import errno

import pytest

from topics import paths
from topics.codec import part as codec
from topics.errors import LimitReached
from topics.storage import staging
from topics.storage.staging import CHUNK_COST, Chunk, Located, Staging
from topics.testing import SimFs

ROOT = "/s/staging"


def chunk(topic: str, data: bytes, offset: int = 0, records: int = 1) -> Chunk:
    return Chunk(topic, offset, len(data), records, len(data), codec.digest(data))


def write(fs: SimFs, path: str, offset: int, data: bytes) -> None:
    staging.write(fs, path, offset, [data[:2], data[2:]], len(data), 0)


def test_rows_of_a_topic_are_in_the_order_of_parts_and_chunks() -> None:
    """TXN-6: parts in the order given, chunks in order, whatever other topics lie between."""
    table = Staging(ROOT, 0, 1000)
    version = table.begin("w", 1, 0)
    first, second = table.part(version, "b"), table.part(version, "a")
    for one, topic, at in ((first, "t", 0), (first, "u", 4), (first, "t", 8), (second, "t", 0)):
        one.add(Chunk(topic, at, 4, 2, 3, b""))
    found = staging.rows([second, first])
    assert [(path, one.offset) for path, one in found["t"].chunks] == [
        (second.path, 0),
        (first.path, 0),
        (first.path, 8),
    ]
    assert (found["t"].records, found["t"].accounted, found["t"].size) == (6, 9, 12)
    assert [one.chunk.offset for one in found["u"].chunks] == [4]


def test_parts_have_files_of_their_own_whatever_they_are_called() -> None:
    """S-10: a part's name never becomes a path, and writers whose hashes agree do not meet."""
    table = Staging(ROOT, 0, 1000)
    one, other = table.begin("w", 1, 0), table.begin("v", 1, 0)
    names = [table.part(version, name).path for version in (one, other) for name in ("..", "out", "A", "a")]
    files = [path.rpartition("/")[2] for path in names]
    assert len(set(files)) == 8
    assert all(paths.parse_part(name) is not None for name in files)


def test_room_is_taken_before_a_chunk_is_written_and_given_back_with_it() -> None:
    """TXN-4, RES-3."""
    table = Staging(ROOT, 2 * CHUNK_COST + 100, 1000)
    version = table.begin("w", 1, 0)
    table.reserve(version, 60)
    with pytest.raises(LimitReached, match="max_staged_bytes"):
        table.reserve(version, 41)
    table.reserve(version, 40)
    table.give_back(version, 40)
    assert table.cost == version.cost == 60 + CHUNK_COST
    table.drop(version)
    table.give_back(version, 60)
    assert table.cost == 0


def test_a_version_is_over_when_nobody_staged_to_it_for_long_enough() -> None:
    """TXN-4: by the clock; not while a commit of it is under way or a chunk of it is written."""
    table = Staging(ROOT, 0, 1000)
    version = table.begin("w", 1, 5000)
    assert table.find("w", 1) is version
    assert not table.is_over(version, 6000)
    assert table.is_over(version, 6001)
    assert list(table.expired(6001)) == [version]
    version.held = True
    assert list(table.expired(9999)) == []
    version.held, table.part(version, "p").busy = False, True
    assert not table.is_over(version, 9999)
    table.part(version, "p").busy = False
    table.drop(version)
    assert table.of("w") == []


def test_a_chunk_is_read_back_as_it_was_or_not_at_all() -> None:
    """S-286, R-5: other bytes are an error, never other rows."""
    fs = SimFs()
    table = Staging(ROOT, 0, 1000)
    part = table.part(table.begin("w", 1, 0), "p")
    one, two = b"first chunk", b"second"
    write(fs, part.path, 0, one)
    write(fs, part.path, len(one), b"torn attempt")
    write(fs, part.path, len(one), two)
    located = Located(part.path, chunk("t", two, len(one)))
    assert staging.read(fs, Located(part.path, chunk("t", one))) == one
    assert staging.read(fs, located) == two
    file = fs.open(part.path, "rw")
    file.pwrite(b"S", len(one))
    with pytest.raises(OSError, match="not what was staged"):
        staging.read(fs, located)


def test_staging_leaves_the_log_its_share_of_the_volume() -> None:
    """S-80: what nobody has committed does not fill the disk."""
    fs = SimFs()
    with pytest.raises(OSError, match="no room") as found:
        staging.write(fs, f"{ROOT}/{paths.staging_dir(1, 1)}/{paths.part(1)}", 0, [b"x"], 1, fs.free_bytes("/"))
    assert found.value.errno == errno.ENOSPC


def test_a_start_removes_what_was_staged_and_nothing_else() -> None:
    """06 §14 step 2, S-10: directories of attach marks stay, and so does what has no name of ours."""
    fs = SimFs()
    gone, kept = (f"{ROOT}/{paths.staging_dir(number, 1)}" for number in (1, 2))
    for dir in (gone, kept):
        made = [f"{inner}/{paths.segment(1, 'data')}" for inner in ("out/0000000A", paths.stamp_dir(1, 2))]
        for name in (paths.part(1), *made, f"out/0000000A/{paths.segment(1, 'idx')}.tmp"):
            fs.makedirs(f"{dir}/{name}".rpartition("/")[0])
            fs.open(f"{dir}/{name}", "create").close()
    fs.open(f"{ROOT}/notes.txt", "create").close()
    staging.clear(fs, ROOT, {kept.rpartition("/")[2]})
    assert sorted(fs.listdir(ROOT)) == sorted([kept.rpartition("/")[2], "notes.txt"])
    assert len(fs.listdir(f"{kept}/out/0000000A")) == 2
    staging.clear(fs, ROOT)
    assert fs.listdir(ROOT) == ["notes.txt"]
    staging.clear(fs, "/s/none")


def test_dropping_removes_the_files_and_the_directory_unless_it_is_shared() -> None:
    fs = SimFs()
    table = Staging(ROOT, 0, 1000)
    version = table.begin("w", 1, 0)
    mine, other = table.part(version, "p"), f"{version.dir}/{paths.part(99)}"
    for path in (mine.path, other):
        write(fs, path, 0, b"x")
    staging.remove(fs, version.dir, table.drop(version))
    assert fs.listdir(version.dir) == [paths.part(99)]
    staging.remove(fs, version.dir, [other, mine.path])
    assert not fs.exists(version.dir)
