"""A folder as a tier of segments [S-300]."""

from __future__ import annotations

import errno

import pytest
from xxhash import xxh3_64_intdigest

from topics.codec.segment import DELETE_BYTE
from topics.errors import StoreUnavailable
from topics.fs import Fs, pread_all, pwrite_all
from topics.storage.tiers.folder import FolderRoot, LocalFolderStore
from topics.storage.tiers.store import RangeOutOfBounds, SegmentId, SegmentNotFound, check_owner, known_absent
from topics.testing.faultfs import Fault, FaultFs
from topics.testing.simfs import SimFs

ONE = SegmentId(1)
TWO = SegmentId(101, 2)


@pytest.fixture
def fs() -> SimFs:
    return SimFs(seed=1)


@pytest.fixture
def store(fs: SimFs) -> LocalFolderStore:
    return FolderRoot(fs, "/cold").topic(10)


def _write(fs: Fs, path: str, raw: bytes) -> None:
    file = fs.open(path, "create")
    pwrite_all(file, raw, 0)
    file.close()


def test_what_is_put_comes_back_by_range_length_and_digest(fs: SimFs, store: LocalFolderStore) -> None:
    """[S-300] Parts are bytes or paths of files."""
    data = bytes(range(256)) * 9000
    fs.makedirs("/hot")
    _write(fs, "/hot/x", data)
    store.put(ONE, "/hot/x", b"index", b"tags")
    assert store.read_range(ONE, "data", 256, 3) == b"\0\1\2"
    assert store.read_range(ONE, "data", len(data) - 1, 1) == b"\xff"
    assert [store.len(ONE, part) for part in ("data", "idx", "tag")] == [len(data), 5, 4]
    assert store.digest(ONE, "data") == xxh3_64_intdigest(data)
    assert sorted(fs.listdir("/cold/topics/0000000A")) == [f"seg-{1:016d}.{part}" for part in ("data", "idx", "tag")]


def test_a_range_beyond_the_end_and_a_part_that_is_absent_are_told_apart(store: LocalFolderStore) -> None:
    store.put(ONE, b"0123456789", b"index")
    with pytest.raises(RangeOutOfBounds):
        store.read_range(ONE, "data", 8, 3)
    for ask in (store.len, store.digest, lambda id, part: store.read_range(id, part, 0, 1)):
        with pytest.raises(SegmentNotFound):
            ask(ONE, "tag")
    assert store.exists(ONE, "data")
    assert not store.exists(TWO, "data")


def test_a_put_overwrites_and_leaves_parts_that_are_not_given(store: LocalFolderStore) -> None:
    store.put(ONE, b"old data", b"old")
    store.put(ONE, None, b"new index")
    assert store.read_range(ONE, "data", 0, 8) == b"old data"
    assert store.read_range(ONE, "idx", 0, 9) == b"new index"


def test_only_pairs_are_listed_in_ascending_order(fs: SimFs, store: LocalFolderStore) -> None:
    assert store.list() == []
    store.put(TWO, b"d", b"i")
    store.put(ONE, b"d", b"i")
    store.put(SegmentId(201), b"d", None)
    _write(fs, "/cold/topics/0000000A/notes.txt", b"mine")
    assert store.list() == [ONE, TWO]


def test_deleting_an_old_generation_keeps_the_new_one(store: LocalFolderStore) -> None:
    """06 §16.1: `.idx` and `.tag` carry no generation."""
    store.put(ONE, b"old", b"i0", b"t0")
    store.put(SegmentId(1, 1), b"new", b"i1", b"t1")
    store.delete(ONE)
    assert store.list() == [SegmentId(1, 1)]
    assert store.read_range(ONE, "tag", 0, 2) == b"t1"
    store.delete(SegmentId(1, 1))
    store.delete(SegmentId(1, 1))
    assert not any(store.exists(ONE, part) for part in ("data", "idx", "tag"))


def test_delete_bytes_are_changed_in_place(store: LocalFolderStore) -> None:
    store.put(ONE, bytes(10), b"index")
    store.mark_deleted(ONE, [3, 9])
    assert store.mutable
    assert [at for at, byte in enumerate(store.read_range(ONE, "data", 0, 10)) if byte == DELETE_BYTE] == [3, 9]
    with pytest.raises(RangeOutOfBounds):
        store.mark_deleted(ONE, [10])
    assert store.len(ONE, "data") == 10


def test_a_cleared_topic_leaves_only_what_is_not_ours(fs: SimFs, store: LocalFolderStore) -> None:
    """[S-10, S-276] Halves of interrupted puts go too."""
    store.put(ONE, b"d", b"i", b"t")
    store.put(TWO, b"half", None)
    store.clear()
    assert fs.listdir("/cold/topics") == []
    store.clear()
    store.put(ONE, b"d", b"i")
    _write(fs, "/cold/topics/0000000A/notes.txt", b"mine")
    _write(fs, f"/cold/topics/0000000A/seg-{1:016d}.data.tmp", b"cut off")
    store.clear()
    assert fs.listdir("/cold/topics/0000000A") == ["notes.txt"]


def test_a_put_that_returned_survives_power_loss_and_one_that_did_not_shows_no_half_of_a_part(fs: SimFs) -> None:
    """[S-300] Every disk call of a put, several images each; what is there under its name is whole."""
    parts = {"data": b"d" * 5000, "idx": b"i" * 700, "tag": b"t" * 600}
    images: list[SimFs] = []
    fs.before = lambda call: images.extend(fs.crash_image(seed) for seed in range(6))
    FolderRoot(fs, "/cold").topic(10).put(ONE, parts["data"], parts["idx"], parts["tag"])
    fs.before = None
    assert len(images) > 60
    for image in images:
        store = FolderRoot(image, "/cold").topic(10)
        for part, raw in parts.items():
            assert not store.exists(ONE, part) or store.digest(ONE, part) == xxh3_64_intdigest(raw)
    for seed in range(20):
        store = FolderRoot(fs.crash_image(seed), "/cold").topic(10)
        assert [store.digest(ONE, part) for part in parts] == [xxh3_64_intdigest(raw) for raw in parts.values()]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOSPC])
def test_an_error_of_the_disk_is_unknown_never_absent(fs: SimFs, code: int) -> None:
    """[S-312] `exists` does not guess."""
    FolderRoot(fs, "/cold").topic(10).put(ONE, b"d", b"i")
    broken = _Broken(fs, code)
    store = FolderRoot(broken, "/cold").topic(10)
    for ask in (
        lambda: store.exists(ONE, "data"),
        lambda: store.read_range(ONE, "data", 0, 1),
        lambda: store.put(ONE, b"d", b"i"),
        store.list,
        lambda: store.delete(ONE),
        lambda: store.digest(ONE, "data"),
        FolderRoot(broken, "/cold").store_id,
        FolderRoot(broken, "/cold").topics,
    ):
        with pytest.raises(StoreUnavailable, match="cold"):
            ask()


class _Broken:
    """A disk on which every call for a name fails."""

    def __init__(self, fs: SimFs, code: int) -> None:
        self._fs, self._code = fs, code

    def __getattr__(self, name: str) -> object:
        def fail(*args: object) -> None:
            raise OSError(self._code, "injected")

        return fail


def test_the_root_knows_its_owner_and_its_topics(fs: SimFs) -> None:
    """[S-14]"""
    root = FolderRoot(fs, "/mnt/cold/")
    assert root.name == "/mnt/cold"
    assert root.store_id() is None
    assert root.topics() == []
    root.claim("ab" * 16)
    assert root.store_id() == "ab" * 16
    assert pread_all(fs.open("/mnt/cold/.topics-store", "r"), 99, 0) == b"ab" * 16 + b"\n"
    for id in (11, 10):
        root.topic(id).put(ONE, b"d", b"i")
    assert root.topics() == [10, 11]
    for seed in range(10):
        assert FolderRoot(fs.crash_image(seed), "/mnt/cold").store_id() == "ab" * 16


def test_a_segment_is_known_to_be_absent_only_in_a_tier_that_is_there_and_ours(fs: SimFs) -> None:
    """[S-317] An unmounted folder has no segments either, and proves nothing."""
    root = FolderRoot(fs, "/cold")
    with pytest.raises(StoreUnavailable, match="not mounted"):
        known_absent(root, "a", ONE, 10)
    root.claim("a")
    assert known_absent(root, "a", ONE, 10)
    with pytest.raises(StoreUnavailable, match="another store"):
        check_owner(root, "b")
    root.topic(10).put(ONE, b"d", b"i")
    assert not known_absent(root, "a", ONE, 10)


@pytest.mark.parametrize("op", ["open", "pwrite", "fsync", "rename", "sync_dir", "remove"])
def test_a_fault_at_any_call_of_a_put_leaves_each_part_whole(fs: SimFs, op: str) -> None:
    """[S-311] What was complete stays complete."""
    FolderRoot(fs, "/cold").topic(10).put(ONE, b"old", b"idx")
    failed = 0
    for at in range(1, 8):
        image = fs.crash_image(0)
        faulty = FaultFs(image, [Fault(op, at)])
        try:
            FolderRoot(faulty, "/cold").topic(10).put(ONE, b"new!", b"IDX!")
        except StoreUnavailable:
            failed += 1
        store = FolderRoot(image, "/cold").topic(10)
        assert store.digest(ONE, "data") in map(xxh3_64_intdigest, (b"old", b"new!"))
        assert store.digest(ONE, "idx") in map(xxh3_64_intdigest, (b"idx", b"IDX!"))
    assert failed or op == "remove"
