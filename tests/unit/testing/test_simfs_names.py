"""Directory changes on the simulated disk: durable after `sync_dir`, atomic, any consistent subset before (13 §2)."""

import pytest

from topics.testing import SimFs
from topics.testing.simfs import STYLES


def listings(fs: SimFs, n: int = 300) -> set[tuple[tuple[str, bytes], ...]]:
    """The files of a bounded sample of crashes, with their contents."""
    return {tuple(sorted(fs.crash_image(seed).files().items())) for seed in range(n)}


def names(fs: SimFs, n: int = 300) -> set[tuple[str, ...]]:
    return {tuple(name for name, _ in listing) for listing in listings(fs, n)}


def put(fs: SimFs, path: str, data: bytes) -> None:
    file = fs.open(path, "create")
    file.pwrite(data, 0)
    file.fsync()
    file.close()


def test_syncing_a_new_file_does_not_make_its_name_durable() -> None:
    fs = SimFs()
    put(fs, "/f", b"data")
    assert listings(fs) == {(), (("f", b"data"),)}
    fs.sync_dir("/")
    assert listings(fs) == {(("f", b"data"),)}


def test_any_subset_of_unrelated_changes_may_survive() -> None:
    fs = SimFs()
    for name in "abc":
        put(fs, f"/{name}", b"")
    assert names(fs) == {(), ("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")}


def test_a_new_directory_needs_its_parent_synced_too() -> None:
    fs = SimFs()
    fs.makedirs("/d/e")
    put(fs, "/d/e/f", b"1")
    fs.sync_dir("/d/e")
    assert names(fs) == {(), ("d/e/f",)}
    fs.sync_dir("/d")
    assert names(fs) == {(), ("d/e/f",)}
    fs.sync_dir("/")
    assert names(fs) == {("d/e/f",)}


@pytest.mark.parametrize("target", ["/new", "/e/new"])
def test_a_rename_is_kept_or_lost_as_one_change(target: str) -> None:
    fs = SimFs()
    fs.makedirs("/e")
    put(fs, "/tmp", b"2")
    fs.sync_dir("/")
    fs.rename("/tmp", target)
    assert listings(fs) == {(("tmp", b"2"),), ((target[1:], b"2"),)}


@pytest.mark.parametrize("synced", ["/", "/e"])
def test_syncing_either_directory_makes_a_rename_between_them_durable(synced: str) -> None:
    fs = SimFs()
    fs.makedirs("/e")
    put(fs, "/tmp", b"2")
    fs.rename("/tmp", "/e/new")
    fs.sync_dir(synced)
    # Where only /e was synced, the create and the mkdir went along, because the rename needs them.
    assert listings(fs) == {(("e/new", b"2"),)}


def test_renaming_over_a_file_shows_the_old_or_the_new_one_never_none() -> None:
    fs = SimFs()
    put(fs, "/f", b"1")
    fs.sync_dir("/")
    put(fs, "/tmp", b"2")
    fs.rename("/tmp", "/f")
    seen = listings(fs)
    assert seen == {(("f", b"1"),), (("f", b"1"), ("tmp", b"2")), (("f", b"2"),)}
    fs.sync_dir("/")
    assert listings(fs) == {(("f", b"2"),)}


def test_a_rename_into_a_directory_that_was_lost_is_lost_with_it() -> None:
    fs = SimFs()
    put(fs, "/f", b"1")
    fs.sync_dir("/")
    fs.makedirs("/d")
    fs.rename("/f", "/d/f")
    assert listings(fs) == {(("f", b"1"),), (("d/f", b"1"),)}


def test_a_removed_file_comes_back_whole_until_the_directory_is_synced() -> None:
    fs = SimFs()
    put(fs, "/f", b"1")
    fs.sync_dir("/")
    fs.remove("/f")
    assert not fs.exists("/f")
    assert listings(fs) == {(), (("f", b"1"),)}
    fs.sync_dir("/")
    assert listings(fs) == {()}


def test_a_name_used_again_needs_the_changes_before_it() -> None:
    fs = SimFs()
    put(fs, "/f", b"1")
    fs.sync_dir("/")
    fs.remove("/f")
    put(fs, "/f", b"2")
    fs.rename("/f", "/g")
    assert listings(fs) == {(), (("f", b"1"),), (("f", b"2"),), (("g", b"2"),)}


def test_moved_directories_never_form_a_ring_or_appear_twice() -> None:
    fs = SimFs()
    fs.makedirs("/y/a")
    put(fs, "/y/f", b"")
    put(fs, "/y/a/g", b"")
    for path in ("/", "/y", "/y/a"):
        fs.sync_dir(path)
    fs.rename("/y/a", "/a")
    fs.rename("/y", "/a/y")
    assert names(fs) == {("y/a/g", "y/f"), ("a/g", "y/f"), ("a/g", "a/y/f")}


@pytest.mark.parametrize("style", STYLES)
def test_synced_names_are_in_every_image(style: str) -> None:
    fs = SimFs()
    fs.makedirs("/d")
    put(fs, "/d/f", b"1")
    fs.rename("/d/f", "/d/g")
    fs.sync_dir("/d")
    fs.sync_dir("/")
    for seed in range(50):
        assert fs.crash_image(seed, style).files() == {"d/g": b"1"}  # type: ignore[arg-type]


def test_a_directory_sync_that_fails_leaves_its_changes_waiting() -> None:
    fs = SimFs()
    put(fs, "/f", b"1")
    fs.fail_sync("clean")
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_dir("/")
    assert names(fs) == {(), ("f",)}
    fs.fail_sync("late")
    fs.sync_dir("/")
    assert [lie.path for lie in fs.lies] == ["/"]
    assert names(fs) == {(), ("f",)}
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_dir("/")
    fs.sync_dir("/")
    assert names(fs) == {("f",)}
