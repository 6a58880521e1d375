"""The real disk behind the seam, and the loops that finish short transfers [S-360]."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import struct
import sys
from pathlib import Path

import pytest

from topics import fs as topics_fs
from topics.fs import (
    Advice,
    Bytes,
    File,
    OsFile,
    OsFs,
    allocate_linux,
    allocate_macos,
    ensure_dir,
    fds_permit,
    maps_permit,
    pread_all,
    pwrite_all,
)


@pytest.fixture
def fs() -> OsFs:
    return OsFs()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture
def fd(path: str):  # type: ignore[no-untyped-def]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


class Choppy:
    """A file that transfers at most `step` bytes a call; 0 makes no progress."""

    def __init__(self, file: File, step: int) -> None:
        self.file, self.step, self.calls = file, step, 0

    def pread(self, n: int, offset: int) -> bytes:
        self.calls += 1
        return self.file.pread(min(n, self.step), offset)

    def pwrite(self, data: Bytes, offset: int) -> int:
        self.calls += 1
        return self.file.pwrite(memoryview(data)[: self.step], offset)

    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None: ...
    def fdatasync(self) -> None: ...
    def fsync(self) -> None: ...
    def fadvise(self, offset: int, n: int, advice: Advice) -> None: ...
    def size(self) -> int:
        return self.file.size()

    def close(self) -> None: ...


def test_a_file_is_written_read_cut_and_measured_at_offsets(fs: OsFs, path: str) -> None:
    file = fs.open(path, "create")
    assert file.pwrite(b"hello world", 0) == 11
    assert file.pwrite(memoryview(b"W"), 6) == 1
    assert file.pread(5, 6) == b"World"
    assert file.pread(100, 6) == b"World"
    assert file.pread(5, 50) == b""
    file.truncate(5)
    assert (file.size(), fs.size(path)) == (5, 5)
    file.fdatasync()
    file.fsync()
    for advice in ("sequential", "random", "willneed", "dontneed"):
        file.fadvise(0, 0, advice)
    file.close()
    file.close()
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_create_keeps_content_and_the_other_modes_never_create(fs: OsFs, path: str) -> None:
    for mode in ("r", "rw"):
        with pytest.raises(FileNotFoundError):
            fs.open(path, mode)
    Path(path).write_bytes(b"kept")
    for mode in ("create", "rw", "r"):
        file = fs.open(path, mode)
        assert file.pread(9, 0) == b"kept"
        file.close()
    reader = fs.open(path, "r")
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.pwrite(b"x", 0)
    reader.close()


def test_descriptors_are_not_inherited(fs: OsFs, path: str) -> None:
    file = fs.open(path, "create")
    assert isinstance(file, OsFile)
    assert not os.get_inheritable(file.fd)
    file.close()


def test_every_directory_that_is_made_is_the_owners_alone(fs: OsFs, tmp_path: Path) -> None:
    """[S-12]: also those above the one asked for, whatever the umask; what was there stays as it was."""
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        fs.makedirs(str(tmp_path / "there" / "a" / "b" / "c"))
        fs.makedirs(str(tmp_path / "there" / "a" / "b" / "d") + "/")
    finally:
        os.umask(before)
    made = list((tmp_path / "there").rglob("*"))
    assert len(made) == 4
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_of_a_directory_is_an_error(fs: OsFs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        fs.makedirs(str(tmp_path / "file"))
    with pytest.raises((FileExistsError, NotADirectoryError)):
        fs.makedirs(str(tmp_path / "file" / "a"))


def test_a_tree_is_made_listed_renamed_and_removed(fs: OsFs, tmp_path: Path) -> None:
    base = str(tmp_path / "a" / "b")
    fs.makedirs(base)
    fs.makedirs(base)
    assert Path(base).stat().st_mode & 0o777 == 0o700
    fs.open(f"{base}/one", "create").close()
    fs.open(f"{base}/two", "create").close()
    fs.rename(f"{base}/one", f"{base}/two")
    assert fs.listdir(base) == ["two"]
    fs.sync_dir(base)
    assert fs.exists(f"{base}/two")
    fs.remove(f"{base}/two")
    assert not fs.exists(f"{base}/two")
    fs.rmdir(base)
    with pytest.raises(FileNotFoundError):
        fs.sync_dir(base)
    assert fs.free_bytes(str(tmp_path)) > 0
    fs.point("anything")


def descriptors_of(path: str) -> int | None:
    """How many this process has, where the system tells; other threads open and close theirs meanwhile."""
    if not os.path.isdir("/proc/self/fd"):
        return None
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}") == os.path.realpath(path)
    return found


def test_a_second_opener_is_refused_the_lock_until_the_first_closes(fs: OsFs, path: str) -> None:
    first = fs.lock(path)
    with pytest.raises(BlockingIOError):
        fs.lock(path)
    assert descriptors_of(path) in (1, None)
    first.close()
    fs.lock(path).close()
    assert fs.exists(path)


def test_a_mapping_shows_the_file_and_never_changes_it(fs: OsFs, path: str) -> None:
    Path(path).write_bytes(b"")
    assert fs.map(path) is None
    Path(path).write_bytes(b"sealed")
    mapping = fs.map(path)
    assert mapping is not None
    mapping[0:1] = b"X"
    mapping.close()
    assert Path(path).read_bytes() == b"sealed"


@pytest.mark.parametrize(
    ("limit", "wanted", "permitted"),
    [(1024, None, 512), (1_048_576, None, 4096), (1_048_576, 0, 0), (1_048_576, 300, 300), (1_048_576, 10_000, 10_000),
     (1024, 10_000, 512), (resource.RLIM_INFINITY, None, 4096), (resource.RLIM_INFINITY, 10_000, 10_000)],
)  # fmt: skip
def test_descriptors_for_reading_are_as_many_as_asked_for_and_half_the_limit_at_most(
    limit: int, wanted: int | None, permitted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-155: the lesser of 4096 and half the limit, unless the setting says otherwise."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert fds_permit(wanted) == permitted


@pytest.mark.parametrize("limit", [16, 256, 1024, 1_048_576])
def test_mappings_leave_descriptors_to_others(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-155: each of them holds one before Python 3.13."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    permitted = maps_permit(8192)
    assert 1 <= permitted <= 8192
    assert permitted <= limit // 2 or sys.version_info >= (3, 13)
    assert maps_permit(1) == 1
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert maps_permit(8192) == 8192


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_short_counts_are_continued(fs: OsFs, path: str, step: int) -> None:
    file = fs.open(path, "create")
    choppy = Choppy(file, step)
    pwrite_all(choppy, b"0123456789", 4)
    assert file.pread(99, 0) == b"\0\0\0\0" + b"0123456789"
    assert choppy.calls == -(-10 // step)
    assert pread_all(choppy, 10, 4) == b"0123456789"
    assert pread_all(choppy, 50, 8) == b"456789"
    assert pread_all(choppy, 5, 99) == b""
    file.close()


def test_a_write_without_progress_is_an_error_and_an_empty_one_is_none(fs: OsFs, path: str) -> None:
    """(13 §6)"""
    file = fs.open(path, "create")
    stuck = Choppy(file, 0)
    with pytest.raises(OSError, match="no progress") as caught:
        pwrite_all(stuck, b"x", 0)
    assert caught.value.errno == errno.EIO
    pwrite_all(stuck, b"", 0)
    assert stuck.calls == 1
    file.close()


class RecordingFs(OsFs):
    """Notes directory creation and syncs, relative to `root`."""

    __slots__ = ("calls",)

    def __init__(self, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.root = str(root)

    def makedirs(self, path: str) -> None:
        self.calls.append(("mkdir", os.path.relpath(path, self.root)))
        super().makedirs(path)

    def sync_dir(self, path: str) -> None:
        self.calls.append(("sync", os.path.relpath(path, self.root)))
        super().sync_dir(path)


def test_ensure_dir_syncs_the_parent_of_every_level_it_makes(tmp_path: Path) -> None:
    """[S-12]"""
    fs = RecordingFs(tmp_path)
    ensure_dir(fs, str(tmp_path / "a" / "b"))
    assert fs.calls == [("sync", ".."), ("mkdir", "a"), ("sync", "."), ("mkdir", "a/b"), ("sync", "a")]
    fs.calls.clear()
    ensure_dir(fs, str(tmp_path / "a" / "b"))
    assert fs.calls == [("sync", "a")]


def test_ensure_dir_takes_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ensure_dir(OsFs(), "x/y")
    assert (tmp_path / "x" / "y").is_dir()


def test_allocation_reserves_zeros(fs: OsFs, path: str) -> None:
    file = fs.open(path, "create")
    file.allocate(100_000)
    assert file.size() == 100_000
    assert file.pread(100_000, 0) == bytes(100_000)
    file.close()


class Fallocate:
    """Stands in for libc: fails with the given errors in turn, then succeeds."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.calls = list(codes), 0

    def __call__(self, fd: int, mode: int, offset: int, length: int) -> int:
        self.calls += 1
        assert (mode, offset) == (0, 0)
        if not self.codes:
            os.ftruncate(fd, length)
            return 0
        ctypes.set_errno(self.codes.pop(0))
        return -1


def test_linux_tries_again_when_interrupted(fd: int) -> None:
    call = Fallocate(errno.EINTR, errno.EINTR)
    allocate_linux(fd, 4096, call)
    assert call.calls == 3
    assert os.fstat(fd).st_size == 4096


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_linux_falls_back_to_a_sparse_file(fd: int, code: int) -> None:
    """[W-12]"""
    call = Fallocate(code)
    allocate_linux(fd, 4096, call)
    assert call.calls == 1
    assert os.fstat(fd).st_size == 4096


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_linux_reports_a_full_disk_and_other_errors(fd: int, code: int) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        allocate_linux(fd, 4096, Fallocate(code))
    assert caught.value.errno == code
    assert os.fstat(fd).st_size == 0


def test_linux_without_the_symbol_uses_the_portable_call(fd: int) -> None:
    allocate_linux(fd, 8192, None)
    assert os.fstat(fd).st_size == 8192


class Control:
    """Stands in for fcntl: notes requests, fails with the given errors in turn."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.requests = list(codes), []  # type: tuple[list[int], list[tuple[int, bytes]]]

    def __call__(self, fd: int, request: int, store: bytes) -> object:
        self.requests.append((request, store))
        if self.codes and (code := self.codes.pop(0)):
            raise OSError(code, os.strerror(code))
        return store


def fstore(flags: int, size: int) -> bytes:
    return struct.pack("=Iiqqq", flags, 3, 0, size, 0)


def test_macos_asks_for_contiguous_space_first(fd: int) -> None:
    control = Control()
    allocate_macos(fd, 5000, control)
    assert control.requests == [(42, fstore(0x6, 5000))]
    assert len(control.requests[0][1]) == 32
    assert os.fstat(fd).st_size == 5000


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EINVAL])
def test_macos_then_takes_any_space(fd: int, code: int) -> None:
    control = Control(code)
    allocate_macos(fd, 5000, control)
    assert control.requests == [(42, fstore(0x6, 5000)), (42, fstore(0x4, 5000))]
    assert os.fstat(fd).st_size == 5000


def test_macos_reports_a_full_disk(fd: int) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        allocate_macos(fd, 5000, Control(errno.ENOSPC, errno.ENOSPC))
    assert caught.value.errno == errno.ENOSPC
    assert os.fstat(fd).st_size == 0


def test_macos_falls_back_to_a_sparse_file_where_reserving_is_unsupported(fd: int) -> None:
    """[W-12]"""
    allocate_macos(fd, 5000, Control(errno.ENOTSUP, errno.ENOTSUP))
    assert os.fstat(fd).st_size == 5000


def test_macos_syncs_reach_the_medium_or_warn(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-74]"""
    requests: list[int] = []
    monkeypatch.setattr("topics.fs.fcntl.fcntl", lambda fd, request: requests.append(request))
    topics_fs._sync_macos(fd)
    assert requests == [51]

    def refuse(fd: int, request: int) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr("topics.fs.fcntl.fcntl", refuse)
    with pytest.warns(UserWarning, match="drive's cache"):
        topics_fs._sync_macos(fd)

    def fail(fd: int, request: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("topics.fs.fcntl.fcntl", fail)
    with pytest.raises(OSError, match="broken"):
        topics_fs._sync_macos(fd)
