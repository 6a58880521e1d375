"""The lock of a data directory, and what its file remembers [S-11, S-245].

    pid=…  boot=…  started=…      who holds it, for the message to the next one
    run=…                         added once recovery knows it
    sync_failed=<run>:<group>     a sync of that group failed in that run, or its page cache was found to be lost

The file is never unlinked and never truncated before it was read. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from topics import paths
from topics.errors import DataDirInUse
from topics.fs import File, Fs, close_quietly, pread_all, process_id, pwrite_all

_MAX_BYTES = 1 << 20


class FailedSync(NamedTuple):
    """A run and a group whose page cache cannot be believed."""

    run: int
    group: str


class Previous(NamedTuple):
    """What the file said before."""

    run: int
    failed: frozenset[FailedSync]


def check_free(fs: Fs, dir: str) -> None:
    """Raise `DataDirInUse` when somebody holds the lock now; nothing is made or changed."""
    path = f"{dir}/{paths.LOCK_FILE}"
    if fs.exists(path):
        close_quietly(_locked(fs, dir, path))


def _locked(fs: Fs, dir: str, path: str) -> File:
    try:
        return fs.lock(path)
    except BlockingIOError:
        raise DataDirInUse(f"the data directory {dir} is in use by another engine{_holder(fs, path)}") from None


@contextmanager
def held(fs: Fs, dir: str) -> Iterator[None]:
    """Keep engines out for a while, or raise `DataDirInUse`; what the file says stays as it is."""
    lock = _locked(fs, dir, f"{dir}/{paths.LOCK_FILE}")
    try:
        yield
    finally:
        close_quietly(lock)


class StoreLock:
    """The held lock of one data directory."""

    def __init__(self, fs: Fs, dir: str, boot: str, now_ms: int) -> None:
        """Take the lock, or raise `DataDirInUse`."""
        path = f"{dir}/{paths.LOCK_FILE}"
        self._file: File = _locked(fs, dir, path)
        try:
            self.previous = _parse(pread_all(self._file, min(self._file.size(), _MAX_BYTES), 0))
        except BaseException:
            close_quietly(self._file)
            raise
        self._boot = boot
        self._started = now_ms
        self._run: int | None = None
        self._writing = threading.RLock()
        self.failed: set[FailedSync] = set(self.previous.failed)

    def write(self, run: int | None = None) -> None:
        """Say who holds it, the run if it is known, and the failed syncs in force; synced."""
        with self._writing:
            self._write(run)

    def _write(self, run: int | None) -> None:
        self._run = run if run is not None else self._run
        lines = [f"pid={process_id()}", f"boot={self._boot}", f"started={self._started}"]
        if self._run is not None:
            lines.append(f"run={self._run}")
        lines += [f"sync_failed={one.run}:{one.group}" for one in sorted(self.failed)]
        raw = ("\n".join(lines) + "\n").encode()
        pwrite_all(self._file, raw, 0)
        self._file.truncate(len(raw))
        self._file.fsync()

    def note(self, failed: Iterable[FailedSync]) -> None:
        """Add failed syncs, synced before anything is cut or forgotten."""
        with self._writing:
            before = len(self.failed)
            self.failed.update(failed)
            if len(self.failed) != before:
                self.write()

    def settle(self, run: int) -> None:
        """The run's `ready` mark is synced: what earlier runs left behind is decided [S-245]."""
        with self._writing:
            kept = {one for one in self.failed if one.run >= run}
            if kept != self.failed:
                self.failed = kept
                self.write()

    def release(self) -> None:
        """Let go of the directory."""
        close_quietly(self._file)


def _parse(raw: bytes) -> Previous:
    run = 0
    failed = set()
    for line in raw.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name == "run" and value.isascii() and value.isdigit():
            run = min(int(value[:20]), paths.U64_MAX)
        elif name == "sync_failed":
            number, _, group = value.partition(":")
            if number.isascii() and number.isdigit():
                failed.add(FailedSync(min(int(number[:20]), paths.U64_MAX), group))
    return Previous(run, frozenset(failed))


def _holder(fs: Fs, path: str) -> str:
    try:
        file = fs.open(path, "r")
    except OSError:
        return ""
    try:
        first = pread_all(file, 64, 0).decode("utf-8", "replace").partition("\n")[0]
    except OSError:
        return ""
    finally:
        close_quietly(file)
    return f" ({first})" if first.startswith("pid=") else ""
