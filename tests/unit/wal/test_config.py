"""Configuration, opening and the lock (07 §4, W-50)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.wal import kit
from topics.errors import InvalidConfig, WalInUse
from topics.wal import FsyncPolicy, Record, Wal, WalConfig

WRONG: list[tuple[str, Any]] = [
    ("dir", ""),
    ("dir", None),
    ("dir", 5),
    ("dir", "a\0b"),
    ("max_segment_size", 1048575),
    ("max_segment_size", 0),
    ("max_segment_size", -1),
    ("max_segment_size", 1e9),
    ("max_segment_size", True),
    ("max_segment_size", "1048576"),
    ("fsync_policy", "always"),
    ("fsync_policy", None),
    ("fsync_policy", FsyncPolicy("sometimes")),
    ("fsync_policy", FsyncPolicy.batch(0)),
    ("fsync_policy", FsyncPolicy.batch(-1)),
    ("fsync_policy", FsyncPolicy.batch(1000.5)),
    ("fsync_policy", FsyncPolicy.batch(float("nan"))),
    ("fsync_policy", FsyncPolicy.batch(float("inf"))),
    ("fsync_policy", FsyncPolicy.batch("5")),
    ("preallocate", 1),
    ("preallocate", None),
    ("prepare_ahead", "yes"),
    ("node_id", -1),
    ("node_id", "a"),
    ("fd_cache_size", 0),
    ("fd_cache_size", -3),
    ("fd_cache_size", 1.5),
    ("read_buffer", 4095),
    ("read_buffer", 0),
    ("read_buffer", None),
    ("corruption_policy", "ignore"),
    ("corruption_policy", None),
    ("corruption_policy", True),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{value!r}" for field, value in WRONG])
def test_a_violated_rule_names_the_field_before_the_disk_is_touched(tmp_path: Path, field: str, value: object) -> None:
    """W-40."""
    place = tmp_path / "missing" / "log"
    with pytest.raises(InvalidConfig) as caught:
        Wal.open(WalConfig(**{"dir": str(place), field: value}))
    assert caught.value.field == field
    assert field in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_violated_rule_makes_no_disk_call() -> None:
    """W-40, on a disk that counts."""
    disk = kit.Disk()
    with pytest.raises(InvalidConfig):
        Wal.open(WalConfig(dir=kit.DIR, read_buffer=1), fs=disk.fs, clock=disk.clock)
    assert (disk.sim.disk_calls, dict(disk.sim.reads)) == (0, {})


RIGHT: list[tuple[str, Any]] = [
    ("max_segment_size", 1048576),
    ("fsync_policy", FsyncPolicy.batch(1000)),
    ("fsync_policy", FsyncPolicy.batch(0.5)),
    ("fsync_policy", FsyncPolicy.always()),
    ("fsync_policy", FsyncPolicy.os()),
    ("preallocate", False),
    ("prepare_ahead", True),
    ("node_id", 2**40),
    ("fd_cache_size", 1),
    ("read_buffer", 4096),
    ("corruption_policy", "fail"),
]


@pytest.mark.parametrize(("field", "value"), RIGHT, ids=[f"{field}-{value!r}" for field, value in RIGHT])
def test_a_value_at_the_edge_of_its_rule_is_accepted(disk: kit.Disk, field: str, value: object) -> None:
    """07 §4."""
    config = WalConfig(**{"dir": kit.DIR, "max_segment_size": 1 << 20, field: value})
    wal, _ = Wal.open(config, fs=disk.fs, clock=disk.clock)
    assert getattr(wal.config, field) == value
    wal.append(kit.put(1))
    wal.close()


def test_the_defaults_are_those_of_the_table() -> None:
    """07 §4."""
    config = WalConfig()
    assert config == WalConfig(
        dir="wal", max_segment_size=134217728, fsync_policy=FsyncPolicy.batch(5), preallocate=True, prepare_ahead=False,
        node_id=0, fd_cache_size=16, read_buffer=65536, corruption_policy="truncate",
    )  # fmt: skip


def test_a_missing_directory_is_created_durably_with_its_parents() -> None:
    """07 §4 dir: created if missing; 13 §6: mkdir needs the parent synced too."""
    disk = kit.Disk()
    wal, _ = Wal.open(
        WalConfig(dir="/a/b/c", max_segment_size=1 << 20, fsync_policy=kit.ALWAYS), fs=disk.fs, clock=disk.clock
    )
    wal.append(kit.put(1))
    disk.fs.acked("/a/b/c/000000.wal", wal.current_position().offset)
    assert "a/b/c/000000.wal" in disk.sim.crash_image(0, "nothing").files()
    wal.close()


def test_a_log_works_on_the_real_disk_with_its_defaults(tmp_path: Path) -> None:
    """07 §4, §5."""
    config = WalConfig(dir=str(tmp_path / "log"))
    wal, info = Wal.open(config)
    with wal:
        positions = [wal.append(Record.put(b"%d" % n, b"v")) for n in range(10)]
        assert [position for _, position in wal.read_from(positions[3])] == positions[3:]
    wal, info = Wal.open(config)
    assert (info.valid_records, info.bytes_truncated, info.last_valid_position) == (
        10,
        0,
        (0, positions[-1].offset * 10 // 9),
    )
    wal.close()


def test_files_are_for_the_owner_only(tmp_path: Path) -> None:
    """06 S-13 for the library's files too: directories 0700, files 0600."""
    wal, _ = Wal.open(WalConfig(dir=str(tmp_path / "log"), max_segment_size=1 << 20))
    wal.append(kit.put(1))
    wal.close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "log").iterdir()} == {0o600}


def test_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """W-50."""
    config = WalConfig(dir=str(tmp_path), max_segment_size=1 << 20)
    wal, _ = Wal.open(config)
    wal.append(kit.put(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(WalInUse) as caught:
        Wal.open(config)
    assert isinstance(caught.value.__cause__, OSError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    wal.append(kit.put(2))
    wal.close()
    Wal.open(config)[0].close()


def test_a_second_opener_on_the_simulated_disk_is_refused(disk: kit.Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """W-50: the lock is the seam's. Whoever is refused has synced nothing: errors are told to the holder."""
    wal, _ = kit.open_wal(disk)

    def strike(path: str) -> None:
        raise AssertionError(f"{path} is synced")

    with monkeypatch.context() as patched, pytest.raises(WalInUse):
        patched.setattr(disk.sim, "sync_dir", strike)
        kit.open_wal(disk)
    wal.close()
    kit.open_wal(disk)[0].close()


HOLDER = """
import sys
from topics.wal import Wal, WalConfig
wal, _ = Wal.open(WalConfig(dir=sys.argv[1], max_segment_size=1 << 20))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """W-50: flock on <dir>/LOCK; a kill releases it."""
    config = WalConfig(dir=str(tmp_path), max_segment_size=1 << 20)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            with pytest.raises(WalInUse):
                Wal.open(config)
            assert (tmp_path / "LOCK").exists()
        finally:
            holder.kill()
            holder.wait(kit.WAIT_S)
    Wal.open(config)[0].close()


@pytest.mark.parametrize("policy", ["truncate", "fail"])
def test_an_open_that_fails_releases_the_lock(disk: kit.Disk, policy: str) -> None:
    """W-50."""
    wal, _ = kit.open_wal(disk)
    wal.close()
    disk.fail("listdir", "EIO")
    with pytest.raises(Exception, match="opening"):
        kit.open_wal(disk, corruption_policy=policy)
    kit.open_wal(disk, corruption_policy=policy)[0].close()
