"""Failed syncs and full disks on the simulated disk (13 §2)."""

import errno

import pytest

from topics.testing import SimFs
from topics.testing.simfs import SimFile

A, B, C = (bytes([letter]) * 512 for letter in b"ABC")


def start(seed: int = 0) -> tuple[SimFs, SimFile]:
    fs = SimFs(seed)
    file = fs.open("/f", "create")
    file.pwrite(A * 2, 0)
    file.fsync()
    fs.sync_dir("/")
    return fs, file


def images(fs: SimFs) -> set[bytes]:
    return {fs.crash_image(seed).files()["f"] for seed in range(200)}


def fail(file: SimFile) -> None:
    with pytest.raises(OSError, match="Input/output") as caught:
        file.fdatasync()
    assert caught.value.errno == errno.EIO


def test_clean_pages_are_never_written_although_later_syncs_succeed() -> None:
    fs, file = start()
    file.pwrite(B * 3, 0)
    fs.fail_sync("clean")
    fail(file)
    assert file.pread(2000, 0) == B * 3
    file.fsync()
    assert images(fs) == {A * 2}
    assert fs.kill_image().crash_image(0, "everything").files()["f"] == A * 2


def test_writing_the_same_bytes_again_makes_clean_pages_dirty_again() -> None:
    fs, file = start()
    file.pwrite(B * 3, 0)
    fs.fail_sync("clean")
    fail(file)
    file.pwrite(B, 0)
    file.fsync()
    assert images(fs) == {B + A}
    file.pwrite(B * 2, 512)
    file.fsync()
    assert images(fs) == {B * 3}


def test_clean_pages_may_be_evicted_and_read_back_old() -> None:
    fs, file = start()
    file.pwrite(B * 3, 0)
    fs.fail_sync("clean")
    fail(file)
    file.pwrite(C, 0)
    fs.drop_caches()
    assert file.pread(2000, 0) == C + A + bytes(512)
    file.fsync()
    assert images(fs) == {C + A}


def test_zeros_written_over_a_forgotten_cut_become_durable() -> None:
    fs, file = start()
    file.truncate(0)
    fs.fail_sync("clean")
    fail(file)
    file.allocate(1024)
    file.pwrite(bytes(512), 0)
    file.fsync()
    assert file.pread(2000, 0) == bytes(1024)
    assert images(fs) == {bytes(512) + A}


def test_reverted_pages_show_the_durable_bytes_at_once() -> None:
    fs, file = start()
    file.pwrite(B * 3, 0)
    fs.fail_sync("reverted")
    fail(file)
    assert file.pread(2000, 0) == A * 2
    file.fsync()
    assert images(fs) == {A * 2}


def test_a_partial_sync_writes_any_part_and_forgets_the_rest() -> None:
    seen = set()
    for seed in range(100):
        fs, file = start(seed)
        file.pwrite(B * 2, 0)
        fs.fail_sync("partial")
        fail(file)
        assert file.pread(2000, 0) == B * 2
        file.fsync()
        (outcome,) = images(fs)
        seen.add(outcome)
    assert seen == {A + A, A + B, B + A, B + B}


def test_a_late_error_lies_once_and_says_so() -> None:
    fs, file = start()
    file.pwrite(B, 0)
    fs.fail_sync("late")
    file.fsync()
    assert [(lie.path, lie.disk_call) for lie in fs.lies] == [("/f", fs.disk_calls)]
    assert images(fs) == {A * 2}
    file.pwrite(C, 512)
    fail(file)
    assert images(fs) in ({A + A}, {A + C})
    file.fsync()
    assert len(fs.lies) == 1


def test_the_kth_sync_fails_and_only_that_one() -> None:
    fs, file = start()
    fs.fail_sync("clean", k=3, error=errno.ENOSPC)
    file.fsync()
    fs.sync_dir("/")
    with pytest.raises(OSError, match="No space"):
        file.fsync()
    file.fsync()


def test_a_hook_may_choose_the_mode() -> None:
    fs, file = start()
    fs.sync_mode = lambda op, path: "clean" if op == "fdatasync" and path == "/f" else None
    fail(file)
    file.fsync()


def test_a_full_disk_writes_short_first_and_then_not_at_all() -> None:
    fs, file = start()
    fs.capacity = 5 * 512
    assert fs.free_bytes("/") == 3 * 512
    assert file.pwrite(B * 5, 512 + 100) == 3 * 512 + 412
    with pytest.raises(OSError, match="No space"):
        file.pwrite(C, file.size())
    assert file.pwrite(C * 2, 0) == 1024  # sectors it already has can be overwritten
    file.truncate(512)
    assert fs.free_bytes("/") == 4 * 512


def test_an_allocation_that_runs_out_keeps_what_it_got() -> None:
    fs, _ = start()
    fs.capacity = 10 * 512
    file = fs.open("/g", "create")
    with pytest.raises(OSError, match="No space"):
        file.allocate(100 * 512)
    assert file.size() == 8 * 512
    assert fs.free_bytes("/") == 0
    file.truncate(0)
    assert fs.free_bytes("/") == 8 * 512
    file.allocate(8 * 512)
    assert file.pwrite(B * 8, 0) == 8 * 512


def test_space_of_a_removed_file_is_free_after_its_last_close() -> None:
    fs, file = start()
    fs.capacity = 10 * 512
    fs.remove("/f")
    assert fs.free_bytes("/") == 8 * 512
    assert file.pread(512, 0) == A
    file.close()
    assert fs.free_bytes("/") == 10 * 512
    assert fs.crash_image(0, "nothing").free_bytes("/") == 8 * 512


def test_an_image_counts_its_space_like_the_run() -> None:
    fs, file = start()
    fs.capacity = 100 * 512
    file.pwrite(B * 4, 4096)
    other = fs.open("/g", "create")
    other.allocate(10_000)
    other.pwrite(C, 0)
    for image in (fs.kill_image(), fs.crash_image(0, "everything")):
        assert image.free_bytes("/") == fs.free_bytes("/") == (100 - 2 - 4 - 20) * 512
