"""The order monitor: every test's disk checks that syncs come where they must (13 §2).

    call                 must hold, else `OrderViolation`
    acked(path, end)     every byte below `end` was written and a sync begun after that has succeeded; the name and the
                         names of all directories above it are durable
    rename               the file moved has no unsynced byte or size, unless it becomes a tag sidecar, which is derived
                         [S-187]
    settled()            no change of names waits for its `sync_dir` (a rename between directories: of both)
    sealed(path)         from here on no write, allocate or truncate, except one byte at an offset of `flag_bytes`

A sync covers what was written before it began. After a *failed* sync the bytes it should have covered count as lost
until they are written again: a later sync that succeeds proves nothing about them [W-17].

Files and names found on the disk are taken to be durable (`trust_existing`); give False for the disk of a killed
process, whose page cache is still dirty: then each file has to be synced, and each directory before its names count.
A file created and removed again without a `sync_dir` between leaves nothing waiting.

A violation is raised where it happens and kept in `violations`, because a worker thread may swallow it.
Any thread may call any method.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from topics import paths
from topics.fs import Advice, Bytes, File, Fs, Mode
from topics.testing.faultfs import FaultFs
from topics.testing.simfs import split

FlagBytes = Iterable[int] | Callable[[int], bool]


class OrderViolation(AssertionError):
    """The product did something before what it had to wait for."""


class Spans:
    """A set of byte offsets as sorted, separate, half-open spans."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.starts)

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        starts, ends = self.starts, self.ends
        if ends and ends[-1] == start:
            ends[-1] = end
            return
        low, high = bisect_left(ends, start), bisect_right(starts, end)
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]

    def discard(self, start: int, end: int) -> None:
        if start >= end or not self.starts:
            return
        low, high = bisect_right(self.ends, start), bisect_left(self.starts, end)
        if low >= high:
            return
        rest = [(self.starts[low], start), (end, self.ends[high - 1])]
        left = [(a, b) for a, b in rest if a < b]
        self.starts[low:high] = [a for a, _ in left]
        self.ends[low:high] = [b for _, b in left]

    def update(self, other: Spans) -> None:
        for start, end in zip(other.starts, other.ends, strict=True):
            self.add(start, end)

    def below(self, end: int) -> tuple[int, int] | None:
        """The first span that begins below `end`."""
        return (self.starts[0], self.ends[0]) if self.starts and self.starts[0] < end else None

    def covers(self, end: int) -> bool:
        return end <= 0 or (bool(self.starts) and self.starts[0] == 0 and self.ends[0] >= end)


class _Watched:
    """What is known of one file. `dirty`: written, not synced; `syncing`: a sync is on its way; `lost`: it failed."""

    __slots__ = ("dirty", "flag_ok", "lost", "resized", "sealed", "syncing", "written")

    def __init__(self) -> None:
        self.written = Spans()
        self.dirty = Spans()
        self.syncing: list[Spans] = []
        self.lost = Spans()
        self.resized = False
        self.sealed = False
        self.flag_ok: Callable[[int], bool] = _never

    def unsynced(self) -> str | None:
        if self.lost:
            return "bytes whose sync failed"
        if self.dirty or any(self.syncing):
            return "unsynced bytes"
        return "an unsynced size" if self.resized else None


def _never(offset: int) -> bool:
    return False


def _is_derived(name: str) -> bool:
    """Whether a file is made again from others when it is missing or bad, so that nobody waits for its sync."""
    segment = paths.parse_segment(name)
    return segment is not None and segment.kind == "tag"


Path = tuple[str, ...]


class MonitorFs:
    """A disk that watches the order of writes, syncs, renames and acknowledgements."""

    def __init__(self, inner: Fs, *, trust_existing: bool = True) -> None:
        self.inner = inner
        self.violations: list[str] = []
        # The monitor's own questions go past the fault injector: they neither count as calls nor fail.
        self._probe = inner
        while isinstance(self._probe, FaultFs):
            self._probe = self._probe.inner
        self._trust = trust_existing
        self._lock = threading.RLock()
        self._files: dict[Path, _Watched] = {}
        # Names that wait, by directory, each with what durably has that name: a file, True (something) or None.
        self._waiting: dict[Path, dict[str, _Watched | bool | None]] = {}
        self._synced_dirs: set[Path] = set()

    def acked(self, path: str, end: int) -> None:
        """The product has acknowledged the bytes of `path` below `end` as durable."""
        with self._lock:
            watched = self._watch(path)
            if not watched.written.covers(end):
                self._violation(f"{path}: acknowledged up to {end}, but not all of it was written")
            for spans, why in [(watched.lost, "its sync failed"), (watched.dirty, "not synced")] + [
                (spans, "its sync is not complete") for spans in watched.syncing
            ]:
                found = spans.below(end)
                if found is not None:
                    self._violation(f"{path}: acknowledged up to {end}, but bytes {found[0]} to {found[1]}: {why}")
            self._check_entry(path)

    def settled(self, under: str = "/") -> None:
        """No change of names at or below the directory `under` waits for its sync."""
        with self._lock:
            top = split(under)
            for directory, names in self._waiting.items():
                if names and directory[: len(top)] == top:
                    self._violation(f"/{'/'.join(directory)}: no sync_dir since {', '.join(sorted(names))} changed")

    def sealed(self, path: str, flag_bytes: FlagBytes = ()) -> None:
        """The file is immutable from here on, except single bytes at the offsets of `flag_bytes`."""
        with self._lock:
            watched = self._watch(path)
            watched.sealed = True
            if callable(flag_bytes):
                watched.flag_ok = flag_bytes
            else:
                watched.flag_ok = frozenset(flag_bytes).__contains__

    def _violation(self, text: str) -> None:
        self.violations.append(text)
        raise OrderViolation(text)

    def _check_entry(self, path: str) -> None:
        names = split(path)
        for depth in range(len(names)):
            directory, name = names[:depth], names[depth]
            waits = name in self._waiting.get(directory, ())
            if waits or not (self._trust or directory in self._synced_dirs):
                self._violation(f"{path}: acknowledged, but the name {name} in /{'/'.join(directory)} is not durable")

    def _watch(self, path: str) -> _Watched:
        """The state of a file; one met for the first time was there before the monitor."""
        names = split(path)
        watched = self._files.get(names)
        if watched is None:
            watched = _Watched()
            size = self._probe.size(path)
            watched.written.add(0, size)
            if not self._trust:
                watched.dirty.add(0, size)
                watched.resized = True
            self._files[names] = watched
        return watched

    def _changed(self, names: Path, durable: _Watched | bool | None, now: _Watched | bool | None) -> None:
        """The entry `names` held `durable` before and holds `now`; note what its directory has to sync."""
        directory, name = names[:-1], names[-1]
        waiting = self._waiting.setdefault(directory, {})
        before = waiting.setdefault(name, durable)
        if before is now and not isinstance(now, bool):
            del waiting[name]

    def open(self, path: str, mode: Mode) -> File:
        return self._open(path, mode == "create", lambda: self.inner.open(path, mode))

    def lock(self, path: str) -> File:
        return self._open(path, True, lambda: self.inner.lock(path))

    def _open(self, path: str, creates: bool, opener: Callable[[], File]) -> File:
        with self._lock:
            new = creates and not self._probe.exists(path)
            file = opener()
            if new:
                watched = self._files[split(path)] = _Watched()
                self._changed(split(path), None, watched)
            try:
                return MonitorFile(self, file, path, self._watch(path))
            except BaseException:
                file.close()
                raise

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            source, target = split(old), split(new)
            if source == target or not self._probe.exists(old):
                self.inner.rename(old, new)
                return
            is_dir = self._is_dir(old)
            moved: _Watched | bool = True if is_dir else self._watch(old)
            why = None if isinstance(moved, bool) or _is_derived(target[-1]) else moved.unsynced()
            if why is not None:
                self._violation(f"rename of {old} to {new}, which has {why}")
            replaced: _Watched | bool | None = None
            if self._probe.exists(new):
                replaced = True if is_dir else self._watch(new)
            self.inner.rename(old, new)
            self._move(source, target)
            self._changed(source, moved, None)
            self._changed(target, replaced, moved)

    def _is_dir(self, path: str) -> bool:
        if split(path) in self._files:
            return False
        try:
            self._probe.listdir(path)
        except NotADirectoryError:
            return False
        return True

    def _move(self, source: Path, target: Path) -> None:
        n = len(source)
        self._files.pop(target, None)
        self._files = {target + k[n:] if k[:n] == source else k: v for k, v in self._files.items()}
        self._waiting = {target + k[n:] if k[:n] == source else k: v for k, v in self._waiting.items()}
        self._synced_dirs = {target + k[n:] if k[:n] == source else k for k in self._synced_dirs}

    def remove(self, path: str) -> None:
        with self._lock:
            known = self._files.get(split(path), True)
            self.inner.remove(path)
            self._files.pop(split(path), None)
            self._changed(split(path), known, None)

    def rmdir(self, path: str) -> None:
        with self._lock:
            self.inner.rmdir(path)
            self._waiting.pop(split(path), None)
            self._synced_dirs.discard(split(path))
            self._changed(split(path), True, None)

    def makedirs(self, path: str) -> None:
        with self._lock:
            names = split(path)
            root = "/" if path.startswith("/") else ""
            levels = [names[:depth] for depth in range(1, len(names) + 1)]
            missing = [level for level in levels if not self._probe.exists(root + "/".join(level))]
            try:
                self.inner.makedirs(path)
            finally:
                for level in missing:
                    if self._probe.exists(root + "/".join(level)):
                        self._changed(level, None, True)

    def sync_dir(self, path: str) -> None:
        names = split(path)
        with self._lock:
            covered = dict(self._waiting.get(names, {}))
            now = {name: self._files.get((*names, name)) for name in covered}
        self.inner.sync_dir(path)
        with self._lock:
            waiting = self._waiting.get(names, {})
            for name in covered:
                # A name that changed again meanwhile goes on waiting.
                if name in waiting and self._files.get((*names, name)) is now[name]:
                    del waiting[name]
            self._synced_dirs.add(names)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)

    def map(self, path: str) -> mmap.mmap | None:
        return self.inner.map(path)

    def point(self, name: str) -> None:
        self.inner.point(name)


class MonitorFile:
    """An open file of a `MonitorFs`."""

    __slots__ = ("_fs", "_inner", "_watched", "path")

    def __init__(self, fs: MonitorFs, inner: File, path: str, watched: _Watched) -> None:
        self._fs = fs
        self._inner = inner
        self._watched = watched
        self.path = path

    def pread(self, n: int, offset: int) -> bytes:
        return self._inner.pread(n, offset)

    def pwrite(self, data: Bytes, offset: int) -> int:
        watched = self._watched
        with self._fs._lock:
            if watched.sealed and not (len(data) == 1 and watched.flag_ok(offset)):
                self._fs._violation(f"{self.path} is sealed: write of {len(data)} bytes at {offset}")
            n = self._inner.pwrite(data, offset)
            watched.written.add(offset, offset + n)
            watched.dirty.add(offset, offset + n)
            watched.lost.discard(offset, offset + n)
            return n

    def truncate(self, size: int) -> None:
        watched = self._watched
        with self._fs._lock:
            if watched.sealed:
                self._fs._violation(f"{self.path} is sealed: truncate to {size}")
            self._inner.truncate(size)
            watched.resized = True
            for spans in (watched.written, watched.dirty, watched.lost, *watched.syncing):
                spans.discard(size, 1 << 63)

    def allocate(self, size: int) -> None:
        with self._fs._lock:
            if self._watched.sealed:
                self._fs._violation(f"{self.path} is sealed: allocate {size}")
            self._watched.resized = True
            self._inner.allocate(size)

    def fdatasync(self) -> None:
        with self._syncing():
            self._inner.fdatasync()

    def fsync(self) -> None:
        with self._syncing():
            self._inner.fsync()

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        """What is dirty now is covered if the body succeeds, and lost if it does not."""
        watched, lock = self._watched, self._fs._lock
        with lock:
            covered, watched.dirty = watched.dirty, Spans()
            watched.syncing.append(covered)
            resized, watched.resized = watched.resized, False
        try:
            yield
        except BaseException:
            with lock:
                watched.resized |= resized
                watched.lost.update(covered)
                # Bytes written again while the sync was on its way are dirty, not lost.
                for start, end in zip(watched.dirty.starts, watched.dirty.ends, strict=True):
                    watched.lost.discard(start, end)
            raise
        finally:
            with lock:
                watched.syncing = [spans for spans in watched.syncing if spans is not covered]

    def fadvise(self, offset: int, n: int, advice: Advice) -> None:
        self._inner.fadvise(offset, n, advice)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()
