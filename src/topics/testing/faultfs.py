"""Faults at chosen calls, over any disk (13 §2).

A fault names an operation, the call of it that fails, what it fails with and for how long:

    error            effect
    EIO … EMFILE     that `OSError`; the operation has no effect (a close still closes)
    short            pread and pwrite move half of what was asked, at least one byte
    zero             pread and pwrite move nothing: no progress, or an early end of the file

    times            hits
    once             call `index` (from 1) of the operation
    always           call `index` and all later ones
    until_freed      the same, until `free_space()` is called or a remove or a shrinking truncate has gone through

`exists` and `point` cannot fail and are only counted. A dry run tells through `counts` how many calls there are to
sweep; `FAULTS` says which errors an operation can really meet. Over a `SimFs` a failed sync happens in the
disk's own way, `sync_mode`; over another disk it is not carried out at all. Any thread may call any method.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from topics.fs import Advice, Bytes, File, Fs, Mode
from topics.testing.simfs import SimFs, SyncMode, failure

ErrorName = Literal["EIO", "ENOSPC", "EDQUOT", "EINTR", "EMFILE", "short", "zero"]
Times = Literal["once", "always", "until_freed"]

TIMES: tuple[Times, ...] = ("once", "always", "until_freed")
_ENTRY: tuple[ErrorName, ...] = ("EIO", "ENOSPC", "EDQUOT", "EINTR")
_READ: tuple[ErrorName, ...] = ("EIO", "EINTR")
FAULTS: dict[str, tuple[ErrorName, ...]] = {
    "open": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EMFILE"),
    "lock": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EMFILE"),
    "rename": _ENTRY,
    "remove": _READ,
    "rmdir": _READ,
    "listdir": ("EIO", "EINTR", "EMFILE"),
    "sync_dir": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EMFILE"),
    "makedirs": _ENTRY,
    "size": _READ,
    "free_bytes": _READ,
    "map": ("EIO", "EINTR", "EMFILE"),
    "pread": ("EIO", "EINTR", "short", "zero"),
    "pwrite": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "short", "zero"),
    "truncate": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "allocate": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fadvise": _READ,
    "close": _READ,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. With `path`, only calls whose path contains it are counted and hit."""

    op: str
    index: int
    error: ErrorName = "EIO"
    times: Times = "once"
    sync_mode: SyncMode = "clean"
    path: str = ""

    def __post_init__(self) -> None:
        if self.op not in FAULTS:
            raise ValueError(f"no operation {self.op!r} that can fail")
        if self.index < 1:
            raise ValueError("calls are counted from 1")
        if self.error in ("short", "zero") and self.op not in ("pread", "pwrite"):
            raise ValueError(f"{self.op} has no short counts")


class _Armed:
    """A fault with what it has seen so far."""

    __slots__ = ("fault", "over", "seen")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0
        self.over = False

    def hits(self, op: str, path: str) -> bool:
        fault = self.fault
        if fault.op != op or fault.path not in path:
            return False
        self.seen += 1
        if self.over:
            return False
        return self.seen == fault.index if fault.times == "once" else self.seen >= fault.index


class FaultFs:
    """A disk that fails where it is told to. `hits` lists the faults that struck, in order."""

    def __init__(self, inner: Fs, faults: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()
        self.hits: list[Fault] = []
        self._armed = [_Armed(fault) for fault in faults]
        self._lock = threading.Lock()

    def inject(self, fault: Fault) -> None:
        """Add a fault; its index counts from now."""
        with self._lock:
            self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._armed.clear()

    def free_space(self) -> None:
        """End every fault that lasts until space is freed."""
        with self._lock:
            for armed in self._armed:
                if armed.fault.times == "until_freed" and armed.seen >= armed.fault.index:
                    armed.over = True

    def _strike(self, op: str, path: str) -> Fault | None:
        """Count a call; the fault that strikes it, if any."""
        with self._lock:
            self.counts[op] += 1
            struck = None
            for armed in self._armed:
                if armed.hits(op, path) and struck is None:
                    struck = armed.fault
            if struck is not None:
                self.hits.append(struck)
            return struck

    def _try(self, op: str, path: str) -> None:
        fault = self._strike(op, path)
        if fault is not None:
            raise failure(error_number(fault), path)

    def _sync(self, op: str, path: str, sync: Callable[[], None]) -> None:
        """Carry out a sync, fail it here, or have the simulated disk below fail it in its own way."""
        fault = self._strike(op, path)
        if fault is None:
            sync()
        elif isinstance(self.inner, SimFs):
            self.inner.fail_this_sync(sync, fault.sync_mode, error_number(fault))
        else:
            raise failure(error_number(fault), path)

    def open(self, path: str, mode: Mode) -> File:
        self._try("open", path)
        return FaultFile(self, self.inner.open(path, mode), path)

    def lock(self, path: str) -> File:
        self._try("lock", path)
        return FaultFile(self, self.inner.lock(path), path)

    def rename(self, old: str, new: str) -> None:
        self._try("rename", old)
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self._try("remove", path)
        self.inner.remove(path)
        self.free_space()

    def rmdir(self, path: str) -> None:
        self._try("rmdir", path)
        self.inner.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        self._try("listdir", path)
        return self.inner.listdir(path)

    def sync_dir(self, path: str) -> None:
        self._sync("sync_dir", path, lambda: self.inner.sync_dir(path))

    def makedirs(self, path: str) -> None:
        self._try("makedirs", path)
        self.inner.makedirs(path)

    def exists(self, path: str) -> bool:
        self._strike("exists", path)
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        self._try("size", path)
        return self.inner.size(path)

    def free_bytes(self, path: str) -> int:
        self._try("free_bytes", path)
        return self.inner.free_bytes(path)

    def map(self, path: str) -> mmap.mmap | None:
        self._try("map", path)
        return self.inner.map(path)

    def point(self, name: str) -> None:
        self._strike("point", name)
        self.inner.point(name)


class FaultFile:
    """An open file of a `FaultFs`."""

    __slots__ = ("_fs", "_inner", "path")

    def __init__(self, fs: FaultFs, inner: File, path: str) -> None:
        self._fs = fs
        self._inner = inner
        self.path = path

    def _moved(self, op: str, n: int) -> int:
        """How many of `n` bytes this call may move; raises if it fails altogether."""
        fault = self._fs._strike(op, self.path)
        if fault is None:
            return n
        if fault.error == "short":
            return min(n, max(1, n // 2))
        if fault.error == "zero":
            return 0
        raise failure(error_number(fault))

    def pread(self, n: int, offset: int) -> bytes:
        return self._inner.pread(self._moved("pread", n), offset)

    def pwrite(self, data: Bytes, offset: int) -> int:
        n = len(data)
        moved = self._moved("pwrite", n)
        if moved == n:
            return self._inner.pwrite(data, offset)
        return self._inner.pwrite(bytes(data)[:moved], offset) if moved else 0

    def truncate(self, size: int) -> None:
        self._fs._try("truncate", self.path)
        shrinks = size < self._inner.size()
        self._inner.truncate(size)
        if shrinks:
            self._fs.free_space()

    def allocate(self, size: int) -> None:
        self._fs._try("allocate", self.path)
        self._inner.allocate(size)

    def fdatasync(self) -> None:
        self._fs._sync("fdatasync", self.path, self._inner.fdatasync)

    def fsync(self) -> None:
        self._fs._sync("fsync", self.path, self._inner.fsync)

    def fadvise(self, offset: int, n: int, advice: Advice) -> None:
        self._fs._try("fadvise", self.path)
        self._inner.fadvise(offset, n, advice)

    def size(self) -> int:
        self._fs._try("size", self.path)
        return self._inner.size()

    def close(self) -> None:
        fault = self._fs._strike("close", self.path)
        self._inner.close()
        if fault is not None:
            raise failure(error_number(fault))


def error_number(fault: Fault) -> int:
    """The errno a fault raises."""
    assert fault.error not in ("short", "zero")
    return int(getattr(errno, fault.error))
