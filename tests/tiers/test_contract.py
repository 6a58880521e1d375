"""What every tier does alike (06 §16.1): a folder, objects in memory, and two S3 servers that are strangers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from topics.codec.segment import DELETE_BYTE
from topics.errors import StoreUnavailable
from topics.storage.tiers.object import MULTIPART_BYTES, ObjectRoot
from topics.storage.tiers.store import (
    ColdRoot,
    RangeOutOfBounds,
    SegmentId,
    SegmentNotFound,
    Unsupported,
    check_owner,
    known_absent,
)

ONE = SegmentId(1)
TWO = SegmentId(101, 2)


def test_what_is_put_comes_back_by_range_length_and_digest(root: ColdRoot, tmp_path: Path) -> None:
    """[S-300, S-301] Parts are bytes or paths of files."""
    store = root.topic(10)
    data = bytes(range(256)) * 9000
    (tmp_path / "x").write_bytes(data)
    store.put(ONE, str(tmp_path / "x"), b"index", memoryview(b"tags"))
    assert store.read_range(ONE, "data", 256, 3) == b"\0\1\2"
    assert store.read_range(ONE, "data", len(data) - 1, 1) == b"\xff"
    assert store.read_range(ONE, "data", 0, len(data)) == data
    assert [store.len(ONE, part) for part in ("data", "idx", "tag")] == [len(data), 5, 4]
    assert store.digest(ONE, "data") == xxh3_64_intdigest(data)
    assert store.digest(ONE, "tag") == xxh3_64_intdigest(b"tags")


def test_an_empty_part_is_there(root: ColdRoot) -> None:
    store = root.topic(10)
    store.put(ONE, b"d", b"i", b"")
    assert store.exists(ONE, "tag")
    assert (store.len(ONE, "tag"), store.digest(ONE, "tag")) == (0, xxh3_64_intdigest(b""))
    assert store.read_range(ONE, "tag", 0, 0) == b""


def test_a_range_beyond_the_end_and_a_part_that_is_absent_are_told_apart(root: ColdRoot) -> None:
    store = root.topic(10)
    store.put(ONE, b"0123456789", b"index")
    for offset, length in ((8, 3), (10, 1), (1000, 5)):
        with pytest.raises(RangeOutOfBounds):
            store.read_range(ONE, "data", offset, length)
    assert store.read_range(ONE, "data", 10, 0) == b""
    for ask in (
        lambda: store.len(ONE, "tag"),
        lambda: store.digest(ONE, "tag"),
        lambda: store.read_range(ONE, "tag", 0, 1),
        lambda: store.read_range(ONE, "tag", 0, 0),
        lambda: store.read_range(SegmentId(1, 1), "data", 0, 1),
    ):
        with pytest.raises(SegmentNotFound):
            ask()
    assert store.exists(ONE, "data")
    assert not store.exists(TWO, "data")
    assert not root.topic(11).exists(ONE, "data")


def test_a_put_overwrites_and_leaves_parts_that_are_not_given(root: ColdRoot) -> None:
    store = root.topic(10)
    store.put(ONE, b"old data", b"old", b"tags")
    store.put(ONE, None, b"new index")
    assert store.read_range(ONE, "data", 0, 8) == b"old data"
    assert store.read_range(ONE, "idx", 0, 9) == b"new index"
    assert store.digest(ONE, "idx") == xxh3_64_intdigest(b"new index")
    assert store.len(ONE, "tag") == 4


def test_only_pairs_are_listed_in_ascending_order(root: ColdRoot) -> None:
    store = root.topic(10)
    assert store.list() == []
    store.put(TWO, b"d", b"i")
    store.put(ONE, b"d", b"i")
    store.put(SegmentId(201), b"d", None)
    store.put(SegmentId(301), None, b"i")
    root.topic(0x10A).put(SegmentId(401), b"d", b"i")
    assert store.list() == [ONE, TWO]


def test_what_is_no_pair_is_found_and_can_be_deleted(root: ColdRoot) -> None:
    """[S-275] Halves of puts and of deletes; an index has no generation of its own."""
    store = root.topic(10)
    store.put(ONE, b"d", b"i", b"t")
    store.put(TWO, b"d", b"i")
    store.put(SegmentId(201), b"d", None, b"t")
    store.put(SegmentId(301, 3), b"d", None)
    store.put(SegmentId(401), None, b"i")
    assert store.halves() == [SegmentId(201), SegmentId(301, 3), SegmentId(401)]
    for id in store.halves():
        store.delete(id)
    assert store.halves() == []
    assert store.list() == [ONE, TWO]
    assert not store.exists(SegmentId(201), "tag")


def test_a_long_list_is_read_to_its_end(root: ColdRoot) -> None:
    """[S-301] Stores answer with at most 1000 keys at once."""
    store = root.topic(10)
    last = 504 if isinstance(root, ObjectRoot) else 20
    all_ids = [SegmentId(seq) for seq in range(1, last + 1)]
    if isinstance(root, ObjectRoot):
        put = root._bucket.put
        names = [f"topics/0000000A/seg-{id.first:016d}.{part}" for id in all_ids for part in ("data", "idx")]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda name: put(name, b"x", {}), names))
    else:
        for id in all_ids:
            store.put(id, b"x", b"x")
    assert store.list() == all_ids
    store.delete(SegmentId(last))
    store.delete(SegmentId(1))
    assert store.list() == all_ids[1:-1]


def test_deleting_an_old_generation_keeps_the_new_one(root: ColdRoot) -> None:
    """06 §16.1: `.idx` and `.tag` carry no generation."""
    store = root.topic(10)
    store.put(ONE, b"old", b"i0", b"t0")
    store.put(SegmentId(1, 1), b"new", b"i1", b"t1")
    store.put(SegmentId(10), b"near", b"i")
    assert store.list() == [ONE, SegmentId(1, 1), SegmentId(10)]
    store.delete(ONE)
    assert store.list() == [SegmentId(1, 1), SegmentId(10)]
    assert store.read_range(ONE, "tag", 0, 2) == b"t1"
    store.delete(SegmentId(1, 1))
    store.delete(SegmentId(1, 1))
    assert not any(store.exists(ONE, part) for part in ("data", "idx", "tag"))
    assert store.list() == [SegmentId(10)]


def test_a_cleared_topic_is_empty_and_its_neighbours_are_not(root: ColdRoot) -> None:
    """[S-276] Halves of interrupted puts go too."""
    store = root.topic(10)
    store.put(ONE, b"d", b"i", b"t")
    store.put(TWO, b"half", None)
    root.topic(11).put(ONE, b"d", b"i")
    store.clear()
    store.clear()
    assert not any(store.exists(id, part) for id in (ONE, TWO) for part in ("data", "idx", "tag"))
    assert root.topics() in ([11], [10, 11])  # the folder may outlive its objects for a while
    assert root.topic(11).list() == [ONE]


def test_delete_bytes_are_changed_in_place_or_not_at_all(root: ColdRoot) -> None:
    store = root.topic(10)
    store.put(ONE, bytes(10), b"index")
    if store.mutable:
        store.mark_deleted(ONE, [3, 9])
        assert [at for at, byte in enumerate(store.read_range(ONE, "data", 0, 10)) if byte == DELETE_BYTE] == [3, 9]
    else:
        with pytest.raises(Unsupported):
            store.mark_deleted(ONE, [3, 9])
        assert store.read_range(ONE, "data", 0, 10) == bytes(10)


def test_the_root_knows_its_owner_and_its_topics(root: ColdRoot) -> None:
    """[S-14]"""
    assert root.store_id() is None
    assert root.topics() == []
    root.claim("ab" * 16)
    assert root.store_id() == "ab" * 16
    for id in (11, 10):
        root.topic(id).put(ONE, b"d", b"i")
    assert root.topics() == [10, 11]


def test_a_segment_is_known_to_be_absent_only_in_a_tier_that_is_there_and_ours(root: ColdRoot) -> None:
    """[S-317] An emptied bucket has no segments either, and proves nothing."""
    with pytest.raises(StoreUnavailable, match="no store id"):
        known_absent(root, "a", ONE, 10)
    root.claim("a")
    assert known_absent(root, "a", ONE, 10)
    with pytest.raises(StoreUnavailable, match="another store"):
        check_owner(root, "b")
    root.topic(10).put(ONE, b"d", b"i")
    assert not known_absent(root, "a", ONE, 10)


def test_a_part_above_the_bound_travels_in_pieces_and_comes_back_whole(root: ColdRoot, tmp_path: Path) -> None:
    """[S-301] 20 MiB, from a file and from memory."""
    store = root.topic(10)
    data = bytes(range(251)) * 83556
    assert len(data) > MULTIPART_BYTES
    (tmp_path / "big").write_bytes(data)
    store.put(ONE, str(tmp_path / "big"), b"i")
    store.put(TWO, bytearray(data), b"i")
    for id in (ONE, TWO):
        assert (store.len(id, "data"), store.digest(id, "data")) == (len(data), xxh3_64_intdigest(data))
        middle = len(data) // 2 - 5
        assert store.read_range(id, "data", middle, 300_000) == data[middle : middle + 300_000]
        assert store.read_range(id, "data", 0, len(data)) == data
