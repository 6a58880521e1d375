"""Where backups are kept: named pieces of bytes, in a folder or in a bucket.

A name is given to a piece only when all of it is there for good, so a name that is listed needs no second look. Nobody
relies on a piece before a manifest names it. Synchronous; the thread that takes the backup.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from xxhash import xxh3_64_intdigest

from topics import paths
from topics.errors import TimingError
from topics.fs import File, Fs, close_quietly, ensure_dir, pread_exact, pwrite_all
from topics.storage.backup.faults import BackupDamaged

PIECE_BYTES = 4 << 20


class DepotInUse(TimingError):
    """Another backup is being taken to the same place."""

    code = "backup_in_use"


class Depot(Protocol):
    """A place for backups. Every call may raise `OSError` or `StoreUnavailable`."""

    @property
    def name(self) -> str:
        """As people may see it: without credentials."""
        ...

    def listing(self) -> frozenset[str]:
        """The names there are that could be a backup's."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name, and see that it is they which are kept; for good with the next `flush`."""
        ...

    def flush(self) -> None:
        """Make everything that was put durable."""
        ...

    def read(self, name: str, size: int) -> bytes | None:
        """At most so many bytes of what has the name, None if nothing has."""
        ...

    def remove(self, name: str) -> None:
        """Let go of a name; absent is fine."""
        ...

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Be the only one who changes it, as far as the place can tell."""
        ...


class FolderDepot:
    """A folder. A piece is written as tmp, synced, read back from the disk, renamed; `flush` syncs the directories."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self._path = path.rstrip("/") or "/"
        self._made: set[str] = set()
        self._unsynced: set[str] = set()

    @property
    def name(self) -> str:
        return self._path

    def listing(self) -> frozenset[str]:
        topics = [name for name in self._names(paths.TOPICS_DIR) if paths.parse_topic_dir(name) is not None]
        found = [name for name in self._names("") if is_own(name)]
        for topic in topics:
            dir = f"{paths.TOPICS_DIR}/{topic}"
            found += [f"{dir}/{name}" for name in self._names(dir) if paths.parse_backup_part(name) is not None]
        return frozenset(found)

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        dir = path.rpartition("/")[0]
        if dir not in self._made:
            ensure_dir(self._fs, dir)
            self._made.add(dir)
        write_verified(self._fs, path, data)
        self._unsynced.add(dir)

    def flush(self) -> None:
        for dir in sorted(self._unsynced):
            self._fs.sync_dir(dir)
        self._unsynced.clear()

    def read(self, name: str, size: int) -> bytes | None:
        try:
            file = self._fs.open(f"{self._path}/{name}", "r")
        except FileNotFoundError:
            return None
        try:
            return pread_exact(file, min(file.size(), size), 0)
        finally:
            close_quietly(file)

    def remove(self, name: str) -> None:
        path = f"{self._path}/{name}"
        if self._fs.exists(path):
            self._fs.remove(path)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        ensure_dir(self._fs, self._path)
        try:
            lock = self._fs.lock(f"{self._path}/{paths.BACKUP_LOCK}")
        except BlockingIOError:
            raise DepotInUse(f"another backup to {self._path} is under way") from None
        try:
            self._tidy()
            yield
        finally:
            close_quietly(lock)

    def _names(self, dir: str) -> list[str]:
        path = f"{self._path}/{dir}" if dir else self._path
        try:
            return sorted(self._fs.listdir(path))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if not dir:
                raise
            return []

    def _tidy(self) -> None:
        """What earlier backups were writing when they ended."""
        dirs = ["", *(f"{paths.TOPICS_DIR}/{name}" for name in self._names(paths.TOPICS_DIR))]
        for dir in dirs:
            for name in self._names(dir):
                target = paths.parse_tmp(name)
                if target is not None and (is_own(target) or paths.parse_backup_part(target) is not None):
                    self._fs.remove("/".join(part for part in (self._path, dir, name) if part))


def is_own(name: str) -> bool:
    """Whether a name at the top of a depot is that of a manifest or a snapshot."""
    return paths.parse_backup(name) is not None or paths.is_backup_snapshot(name)


def write_verified(fs: Fs, path: str, data: bytes) -> None:
    """Make a file hold bytes: tmp, fsync, read back from the medium, rename. Its name is durable with its directory."""
    tmp = paths.tmp(path)
    if fs.exists(tmp):
        fs.remove(tmp)  # it may hold pages that a failed sync forgot
    file = fs.open(tmp, "create")
    try:
        pwrite_all(file, data, 0)
        file.fsync()
        file.fadvise(0, 0, "dontneed")
        _compare(file, path, data)
    except OSError:
        close_quietly(file)
        fs.remove(tmp)
        raise
    close_quietly(file)
    fs.rename(tmp, path)


def _compare(file: File, path: str, data: bytes) -> None:
    same = file.size() == len(data)
    for at in range(0, len(data) if same else 0, PIECE_BYTES):
        expected = data[at : at + PIECE_BYTES]
        same = same and pread_exact(file, len(expected), at) == expected
    if not same:
        raise OSError(errno.EIO, "it does not read back as it was written", path)


def read_whole(depot: Depot, name: str, size: int, xxh3: int) -> bytes:
    """A piece that a manifest names; `BackupDamaged` where it is not what was put there."""
    data = depot.read(name, size + 1)
    if data is None:
        raise BackupDamaged(f"{depot.name}: {name} is missing")
    if len(data) != size or xxh3_64_intdigest(data) != xxh3:
        raise BackupDamaged(f"{depot.name}: {name} is not what was put there")
    return data
