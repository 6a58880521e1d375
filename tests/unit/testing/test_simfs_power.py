"""The simulated disk finds real bugs: a correct way to replace a file survives every crash, each shortcut is caught."""

import random

import pytest

from topics.testing import MonitorFs, OrderViolation, SimFs
from topics.testing.simfs import STYLES

OLD, NEW = b"old" * 500, b"NEW" * 700


def replace(fs: SimFs | MonitorFs, skip: str = "") -> None:
    """Write a new file beside the old one, then put it in its place; `skip` leaves one step out."""
    file = fs.open("/d/f.tmp", "create")
    file.pwrite(NEW, 0)
    if skip != "sync before rename":
        file.fsync()
    file.close()
    fs.rename("/d/f.tmp", "/d/f")
    if skip != "directory sync after rename":
        fs.sync_dir("/d")


def overwrite_in_place(fs: SimFs) -> None:
    file = fs.open("/d/f", "rw")
    file.pwrite(NEW, 0)
    file.fsync()


def survivors(fs: SimFs, work: str) -> tuple[set[bytes], set[bytes]]:
    """Contents of the file in images taken before each disk call, and in images taken at the end."""
    rng = random.Random(5)
    during: set[bytes] = set()

    def take(into: set[bytes]) -> None:
        for style in STYLES:
            into.update(fs.crash_image(rng, style).files().get("d/f", b"none") for _ in range(8))

    fs.before = lambda call: take(during)
    overwrite_in_place(fs) if work == "in place" else replace(fs, work)
    after: set[bytes] = set()
    take(after)
    return during, after


def disk() -> SimFs:
    fs = SimFs()
    fs.load({"/d/f": OLD})
    return fs


def test_an_atomic_replacement_shows_old_or_new_and_new_once_done() -> None:
    during, after = survivors(disk(), "")
    assert during == {OLD, NEW}
    assert after == {NEW}


def test_leaving_out_the_sync_shows_torn_files() -> None:
    _, after = survivors(disk(), "sync before rename")
    assert len(after - {OLD, NEW}) > 3


def test_leaving_out_the_directory_sync_brings_the_old_file_back() -> None:
    _, after = survivors(disk(), "directory sync after rename")
    assert after == {OLD, NEW}


def test_overwriting_in_place_shows_mixtures() -> None:
    during, after = survivors(disk(), "in place")
    assert len(during - {OLD, NEW}) > 3
    assert after == {NEW}


@pytest.mark.parametrize("skip", ["", "sync before rename", "directory sync after rename"])
def test_the_monitor_sees_each_shortcut_without_any_crash(skip: str) -> None:
    fs = MonitorFs(disk())
    if skip != "sync before rename":
        replace(fs, skip)
    else:
        with pytest.raises(OrderViolation, match="unsynced bytes"):
            replace(fs, skip)
        return
    if skip:
        with pytest.raises(OrderViolation, match="no sync_dir"):
            fs.settled()
    else:
        fs.settled()
        fs.acked("/d/f", len(NEW))
