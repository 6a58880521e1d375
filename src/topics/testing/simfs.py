"""The simulated disk [R-10, R-12]: what a machine may show after a crash, in memory, from a seed (13 §2).

**Files.** An inode holds what a process reads (`sectors`, sparse: an absent sector is zeros) and, for every 512-byte
sector and for the size, the versions that came up since the last sync, the durable one first:

    state      kept as                         a crash shows
    clean      sectors[s]                      that
    dirty      versions[s] = [(seq, bytes)…]   any of them: lost, torn between sectors, reordered
    forgotten  forgotten[s] = durable bytes    the durable one (a failed sync marked the page clean)

The size is chosen apart from the data: a long size over lost data reads zeros, a short one hides data that landed.
A cut is a change of the metadata: where the shorter size (or a later one) landed, bytes behind the cut are gone.

**Names.** Each create, mkdir, remove, rmdir or rename is one change; it is durable after `sync_dir` of a directory it
touches (a rename between two directories: of either, because it is kept or lost as one). A crash keeps a prefix or a
subset of the others. A change that needs a lost one (same name; for a rename also the way to its new directory) is lost
with it. Syncing a file says nothing about its name.

**Failed syncs** (`fail_sync`, `sync_mode`), modes as kernels really behave:

    clean     error; pages marked clean, never written; the cache shows the new bytes until `drop_caches`
    reverted  error; the cache shows the durable bytes and size again
    partial   error; a random part became durable, the rest as in clean
    late      success reported although nothing was written (noted in `lies`); the next sync of that file fails,
              having written a random part of what came since

A directory sync that fails leaves its changes waiting (partial: a random part became durable); they are not forgotten.

**Crashing.** Every mutating or syncing call is a *disk call*: numbered from 1, logged, shown to `before` ahead of its
effect. `crash_at` cuts the power at one; from then on every call of the disk and its files raises `PowerLoss`.
`crash_image` derives a survivor at any moment without disturbing the run. Same seed, same calls: same images.

Any thread may call any method; one lock serialises them, and `before` runs inside it.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from mmap import mmap
from typing import Literal, NamedTuple

from topics.fs import Advice, Bytes, Mode
from topics.testing.simcrash import (
    STYLES,
    Change,
    Choice,
    Dir,
    Edit,
    Everything,
    Node,
    Nothing,
    Prefix,
    Random,
    Style,
    consistent,
    required,
)
from topics.testing.siminode import SECTOR_BYTES, ZERO, Inode, sectors_of

__all__ = ["STYLES", "SYNC_MODES", "Call", "CrashMode", "Lie", "PowerLoss", "SimFile", "SimFs", "Style", "SyncMode"]

UNLIMITED_BYTES = 1 << 50

SyncMode = Literal["clean", "reverted", "partial", "late"]
CrashMode = Literal["before", "middle", "after"]
Call = tuple[str, str, tuple[int | str, ...]]

SYNC_MODES: tuple[SyncMode, ...] = ("clean", "reverted", "partial", "late")


class PowerLoss(BaseException):
    """The machine lost power. Not an `Exception`, so that no handler of the product survives it."""


class Lie(NamedTuple):
    """A sync that reported success without writing: acknowledgements resting on it alone are excused."""

    path: str
    disk_call: int


def failure(code: int, path: str = "") -> OSError:
    """The `OSError` (of the fitting subclass) that the operating system would raise."""
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))


@lru_cache(maxsize=8192)
def split(path: str) -> tuple[str, ...]:
    """The names along a path; `/`, `.` and relative paths all start at the one root."""
    if not path:
        raise failure(errno.ENOENT, path)
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return tuple(names)


class SimFile:
    """An open file of a `SimFs`."""

    __slots__ = ("_fs", "_inode", "_locks", "_open", "_writable", "path")

    def __init__(self, fs: SimFs, inode: Inode, path: str, writable: bool) -> None:
        self._fs = fs
        self._inode = inode
        self._writable = writable
        self._open = True
        self._locks = False
        self.path = path

    def _check(self, writing: bool = False, code: int = errno.EBADF) -> None:
        if not self._open:
            raise failure(errno.EBADF)
        if writing and not self._writable:
            raise failure(code)

    def pread(self, n: int, offset: int) -> bytes:
        fs = self._fs
        with fs._lock:
            fs._read("pread")
            self._check()
            if offset < 0 or n < 0:
                raise failure(errno.EINVAL)
            return self._inode.read(n, offset)

    def pwrite(self, data: Bytes, offset: int) -> int:
        fs = self._fs
        with fs._lock:
            payload = bytes(data)
            last = fs._begin("pwrite", self.path, (offset, len(payload)))
            self._check(writing=True)
            if offset < 0:
                raise failure(errno.EINVAL)
            if fs.capacity is not None and payload:
                payload = payload[: fs._room(self._inode, offset, len(payload))]
            inode, before = self._inode, self._inode.used
            if payload:
                fs._seq = inode.write(payload, offset, fs._seq)
                fs._used += inode.used - before
            if last:
                fs._end()
            return len(payload)

    def truncate(self, size: int) -> None:
        fs = self._fs
        with fs._lock:
            last = fs._begin("truncate", self.path, (size,))
            self._check(writing=True, code=errno.EINVAL)
            if size < 0:
                raise failure(errno.EINVAL)
            inode, before = self._inode, self._inode.used
            fs._seq += 1
            inode.truncate(size, fs._seq)
            fs._used += inode.used - before
            if last:
                fs._end()

    def allocate(self, size: int) -> None:
        fs = self._fs
        with fs._lock:
            last = fs._begin("allocate", self.path, (size,))
            self._check(writing=True)
            if size <= 0:
                raise failure(errno.EINVAL)
            inode, before = self._inode, self._inode.used
            complete = inode.reserve(sectors_of(size), fs._free_sectors())
            fs._used += inode.used - before
            reached = size if complete else min(size, inode.reserved * SECTOR_BYTES)
            if reached > inode.size:
                fs._seq += 1
                inode._resize(fs._seq, reached)
            if last:
                fs._end()
            if not complete:
                raise failure(errno.ENOSPC)

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")

    def _sync(self, op: str) -> None:
        fs = self._fs
        with fs._lock:
            last = fs._begin(op, self.path, ())
            self._check()
            if last == "middle":
                self._inode.land(fs._coin)
                fs._end()
            fs._sync_inode(self._inode, op, self.path)
            if last:
                fs._end()

    def fadvise(self, offset: int, n: int, advice: Advice) -> None:
        with self._fs._lock:
            self._fs._read("fadvise")
            self._check()

    def size(self) -> int:
        with self._fs._lock:
            self._fs._read("size")
            self._check()
            return self._inode.size

    def close(self) -> None:
        """Close; again is fine. Does not sync. Releases the lock if this handle holds it."""
        with self._fs._lock:
            self._fs._read("close")
            if self._open:
                self._open = False
                if self._locks:
                    self._inode.locked = False
                self._inode.opens -= 1
                self._fs._release(self._inode)


class SimFs:
    """A disk in memory; see the module's docstring for the model.

    `capacity` in bytes may be changed at any time; it counts whole sectors of files, not names.
    """

    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self.seed = seed
        self.capacity = capacity
        self.calls: list[Call] = []
        self.reads: Counter[str] = Counter()
        self.points: list[str] = []
        self.lies: list[Lie] = []
        self.before: Callable[[Call], None] | None = None
        self.sync_mode: Callable[[str, str], SyncMode | None] | None = None
        self._lock = threading.RLock()
        self._root = Dir()
        self._changes: list[Change] = []
        self._late_dirs: list[Dir] = []
        self._seq = 0
        self._used = 0
        self._dead = False
        self._crash_call = 0
        self._crash_mode: CrashMode = "before"
        self._crash_point = ("", 0)
        self._failing: dict[int, tuple[SyncMode, int]] = {}
        self._syncs = 0
        self._random: random.Random | None = None

    @property
    def disk_calls(self) -> int:
        """How many disk calls were made; the next one has this number plus one."""
        return len(self.calls)

    @property
    def dead(self) -> bool:
        """True once the power is gone."""
        return self._dead

    def crash_at(self, n: int, mode: CrashMode = "before") -> None:
        """Lose power at disk call `n` of this disk's life, counted from 1.

        before: it has no effect. middle: its effect is in the cache only; a sync has written a random part.
        after: it is complete, but the caller never hears of it.
        """
        if n <= len(self.calls):
            raise ValueError(f"disk call {n} has already happened")
        self._crash_call, self._crash_mode = n, mode

    def crash_at_point(self, name: str, nth: int = 1) -> None:
        """Lose power when the named crash point [S-361] is passed for the `nth` time from now."""
        self._crash_point = (name, self.points.count(name) + nth)

    def crash(self) -> None:
        """Lose power now: every later call raises `PowerLoss`."""
        self._dead = True

    def point(self, name: str) -> None:
        with self._lock:
            last = self._begin("point", name, ())
            self.points.append(name)
            crash_name, nth = self._crash_point
            if last or (name == crash_name and self.points.count(name) == nth):
                self._end()

    def _begin(self, op: str, path: str, args: tuple[int | str, ...]) -> CrashMode | None:
        """Count, log and announce a disk call; tells the crash mode if this is the one to die in."""
        if self._dead:
            raise PowerLoss
        call = (op, path, args)
        calls = self.calls
        calls.append(call)
        number = len(calls)
        if self.before is not None:
            self.before(call)
            if self._dead:
                raise PowerLoss
        if number != self._crash_call:
            return None
        if self._crash_mode == "before":
            self._end()
        return self._crash_mode

    def _end(self) -> None:
        self._dead = True
        raise PowerLoss

    def _read(self, op: str) -> None:
        if self._dead:
            raise PowerLoss
        self.reads[op] += 1

    def _rng(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self.seed)
        return self._random

    def _coin(self) -> bool:
        return self._rng().random() < 0.5

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for name in split(path):
            if not isinstance(node, Dir):
                raise failure(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                raise failure(errno.ENOENT, path)
            node = found
        return node

    def _file(self, path: str) -> Inode:
        node = self._node(path)
        if isinstance(node, Dir):
            raise failure(errno.EISDIR, path)
        return node

    def _way(self, path: str) -> list[tuple[Dir, str]]:
        """Each directory on the way to `path` with the name taken there; all but the last name exist."""
        names = split(path)
        if not names:
            raise failure(errno.EBUSY, path)
        node: Node | None = self._root
        way: list[tuple[Dir, str]] = []
        for name in names:
            if node is None:
                raise failure(errno.ENOENT, path)
            if not isinstance(node, Dir):
                raise failure(errno.ENOTDIR, path)
            way.append((node, name))
            node = node.entries.get(name)
        return way

    def _place(self, path: str) -> tuple[Dir, str, Node | None]:
        directory, name = self._way(path)[-1]
        return directory, name, directory.entries.get(name)

    def _change(self, edits: list[Edit], needs: list[tuple[Dir, str]] | None = None) -> None:
        for directory, name, node in edits:
            if directory.entries is directory.durable:
                directory.entries = dict(directory.durable)
            if node is None:
                del directory.entries[name]
            else:
                directory.entries[name] = node
        self._seq += 1
        self._changes.append(Change(self._seq, edits, needs or []))

    def _unlink(self, inode: Inode) -> None:
        inode.linked = False
        self._release(inode)

    def _release(self, inode: Inode) -> None:
        if not inode.linked and inode.opens == 0:
            self._used -= inode.used

    def _flush(self, changes: list[Change]) -> None:
        """Make these waiting changes durable, in order."""
        if not changes:
            return
        for change in changes:
            for directory, name, node in change.edits:
                if node is None:
                    directory.durable.pop(name, None)
                else:
                    directory.durable[name] = node
        flushed = set(map(id, changes))
        self._changes = [change for change in self._changes if id(change) not in flushed]
        waiting = {directory for change in self._changes for directory, _, _ in change.edits}
        for change in changes:
            for directory, _, _ in change.edits:
                if directory not in waiting:
                    directory.durable = directory.entries

    def open(self, path: str, mode: Mode) -> SimFile:
        with self._lock:
            self._read("open")
            inode = self._create(path) if mode == "create" else self._file(path)
            inode.opens += 1
            return SimFile(self, inode, path, mode != "r")

    def _create(self, path: str) -> Inode:
        directory, name, node = self._place(path)
        if isinstance(node, Dir):
            raise failure(errno.EISDIR, path)
        if node is not None:
            return node
        last = self._begin("create", path, ())
        inode = Inode()
        self._change([(directory, name, inode)])
        if last:
            self._end()
        return inode

    def lock(self, path: str) -> SimFile:
        with self._lock:
            self._read("lock")
            inode = self._create(path)
            if inode.locked:
                raise failure(errno.EWOULDBLOCK, path)
            inode.opens += 1
            inode.locked = True
            file = SimFile(self, inode, path, True)
            file._locks = True
            return file

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            last = self._begin("rename", old, (new,))
            way = self._way(new)
            source, name, node = self._place(old)
            target, new_name = way[-1]
            replaced = target.entries.get(new_name)
            if node is None:
                raise failure(errno.ENOENT, old)
            if replaced is not node:
                self._check_rename(node, replaced, way, new)
                self._change([(source, name, None), (target, new_name, node)], way[:-1])
                if isinstance(replaced, Inode):
                    self._unlink(replaced)
            if last:
                self._end()

    def _check_rename(self, node: Node, replaced: Node | None, way: list[tuple[Dir, str]], new: str) -> None:
        if any(directory is node for directory, _ in way):
            raise failure(errno.EINVAL, new)
        if replaced is None:
            return
        if isinstance(replaced, Dir):
            if not isinstance(node, Dir):
                raise failure(errno.EISDIR, new)
            if replaced.entries:
                raise failure(errno.ENOTEMPTY, new)
        elif isinstance(node, Dir):
            raise failure(errno.ENOTDIR, new)

    def remove(self, path: str) -> None:
        with self._lock:
            last = self._begin("remove", path, ())
            directory, name, node = self._place(path)
            if node is None:
                raise failure(errno.ENOENT, path)
            if isinstance(node, Dir):
                raise failure(errno.EISDIR, path)
            self._change([(directory, name, None)])
            self._unlink(node)
            if last:
                self._end()

    def rmdir(self, path: str) -> None:
        with self._lock:
            last = self._begin("rmdir", path, ())
            directory, name, node = self._place(path)
            if node is None:
                raise failure(errno.ENOENT, path)
            if not isinstance(node, Dir):
                raise failure(errno.ENOTDIR, path)
            if node.entries:
                raise failure(errno.ENOTEMPTY, path)
            self._change([(directory, name, None)])
            if last:
                self._end()

    def makedirs(self, path: str) -> None:
        """Each missing level is a disk call of its own."""
        with self._lock:
            self._read("makedirs")
            directory, names = self._root, split(path)
            for depth, name in enumerate(names):
                node = directory.entries.get(name)
                if node is None:
                    last = self._begin("mkdir", ("/" if path[0] == "/" else "") + "/".join(names[: depth + 1]), ())
                    node = Dir()
                    self._change([(directory, name, node)])
                    if last:
                        self._end()
                if not isinstance(node, Dir):
                    raise failure(errno.EEXIST if depth == len(names) - 1 else errno.ENOTDIR, path)
                directory = node

    def sync_dir(self, path: str) -> None:
        with self._lock:
            last = self._begin("sync_dir", path, ())
            node = self._node(path)
            if not isinstance(node, Dir):
                raise failure(errno.ENOTDIR, path)
            if last == "middle":
                self._flush(consistent(required(self._changes, node), lambda _: self._coin()))
                self._end()
            self._sync_names(node, path)
            if last:
                self._end()

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            self._read("listdir")
            node = self._node(path)
            if not isinstance(node, Dir):
                raise failure(errno.ENOTDIR, path)
            return list(node.entries)

    def exists(self, path: str) -> bool:
        with self._lock:
            self._read("exists")
            try:
                self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, path: str) -> int:
        with self._lock:
            self._read("size")
            node = self._node(path)
            return 4096 if isinstance(node, Dir) else node.size

    def free_bytes(self, path: str) -> int:
        with self._lock:
            self._read("free_bytes")
            self._node(path)
            return self._free_sectors() * SECTOR_BYTES

    def map(self, path: str) -> mmap | None:
        """Always `None`: a mapping would hide reads from the disk."""
        with self._lock:
            self._read("map")
            self._file(path)
            return None

    def _free_sectors(self) -> int:
        capacity = UNLIMITED_BYTES if self.capacity is None else self.capacity
        return max(0, capacity // SECTOR_BYTES - self._used)

    def _room(self, inode: Inode, offset: int, n: int) -> int:
        """How many of `n` bytes at `offset` fit on the disk; none at all is ENOSPC."""
        free = self._free_sectors()
        for sector in inode.new_sectors(offset // SECTOR_BYTES, (offset + n - 1) // SECTOR_BYTES):
            if free == 0:
                fits = sector * SECTOR_BYTES - offset
                if fits <= 0:
                    raise failure(errno.ENOSPC)
                return fits
            free -= 1
        return n

    @property
    def syncs(self) -> int:
        """How many syncs (fdatasync, fsync, sync_dir) were made."""
        return self._syncs

    def fail_sync(self, mode: SyncMode = "clean", k: int = 1, error: int = errno.EIO) -> None:
        """Let the `k`-th sync from now fail in this way; fdatasync, fsync and sync_dir count alike."""
        self._failing[self._syncs + k] = (mode, error)

    def fail_this_sync(self, sync: Callable[[], None], mode: SyncMode, error: int = errno.EIO) -> None:
        """Make the one sync that `sync` carries out fail in this way, whatever other threads sync meanwhile."""
        with self._lock:
            number = self._syncs + 1
            self._failing[number] = (mode, error)
            try:
                sync()
            finally:
                self._failing.pop(number, None)

    def clear_faults(self) -> None:
        """Take back failures that were asked for and have not struck yet."""
        self._failing.clear()
        self.sync_mode = None

    def _fault(self, op: str, path: str) -> tuple[SyncMode, int] | None:
        self._syncs += 1
        fault = self._failing.pop(self._syncs, None)
        if fault is None and self.sync_mode is not None:
            mode = self.sync_mode(op, path)
            fault = (mode, errno.EIO) if mode is not None else None
        return fault

    def _sync_inode(self, inode: Inode, op: str, path: str) -> None:
        fault = self._fault(op, path)
        if inode.late_error:
            inode.late_error = False
            inode.forget(self._coin)
            raise failure(errno.EIO)
        if fault is None:
            inode.sync()
            return
        mode, error = fault
        before = inode.used
        inode.forget(self._coin if mode == "partial" else None)
        if mode == "late":
            inode.late_error = True
            self.lies.append(Lie(path, len(self.calls)))
            return
        if mode == "reverted":
            inode.revert(size_too=True)
            self._used += inode.used - before
        raise failure(error)

    def _sync_names(self, directory: Dir, path: str) -> None:
        fault = self._fault("sync_dir", path)
        changes = required(self._changes, directory)
        if any(late is directory for late in self._late_dirs):
            self._late_dirs = [late for late in self._late_dirs if late is not directory]
            raise failure(errno.EIO)
        if fault is None:
            self._flush(changes)
            return
        mode, error = fault
        if mode == "late":
            self._late_dirs.append(directory)
            self.lies.append(Lie(path, len(self.calls)))
            return
        if mode == "partial":
            self._flush(consistent(changes, lambda _: self._coin()))
        raise failure(error)

    def drop_caches(self) -> None:
        """Evict clean pages, as memory pressure may at any time: pages a failed sync forgot show durable bytes.

        Sizes stay: the kernel keeps the inode.
        """
        with self._lock:
            for _, inode in self._walk(self._root, ""):
                before = inode.used
                inode.revert(size_too=False)
                self._used += inode.used - before

    def crash_image(self, rng: random.Random | int, style: Style = "random") -> SimFs:
        """One disk that a machine crash at this moment may leave; this one goes on undisturbed [R-10]."""
        with self._lock:
            if not isinstance(rng, random.Random):
                rng = random.Random(rng)
            choice = self._choice(rng, style)
            views: dict[Dir, dict[str, Node]] = {}
            for change in choice.changes(self._changes) if self._changes else ():
                for directory, name, node in change.edits:
                    view = views.get(directory)
                    if view is None:
                        view = views[directory] = dict(directory.durable)
                    if node is None:
                        view.pop(name, None)
                    else:
                        view[name] = node
            image = SimFs(rng.getrandbits(32), capacity=self.capacity)
            image._root = image._survive(self._root, views, choice)
            return image

    def _choice(self, rng: random.Random, style: Style) -> Choice:
        if style == "random":
            return Random(rng)
        if style == "prefix":
            return Prefix(rng.randint(self._oldest() - 1, self._seq))
        return Nothing() if style == "nothing" else Everything()

    def _oldest(self) -> int:
        """The number of the oldest change that is not durable: a prefix that ends before it keeps nothing."""
        oldest = self._changes[0].seq if self._changes else self._seq + 1
        for inode in self._inodes():
            for versions in inode.versions.values():
                if len(versions) > 1:
                    oldest = min(oldest, versions[1][0])
                    break
            if inode.sizes:
                oldest = min(oldest, inode.sizes[1][0])
        return oldest

    def _inodes(self) -> Iterator[Inode]:
        for _, inode in self._walk(self._root, ""):
            yield inode

    def _survive(self, directory: Dir, views: dict[Dir, dict[str, Node]], choice: Choice) -> Dir:
        twin = Dir()
        entries = twin.entries
        for name, node in views.get(directory, directory.durable).items():
            if isinstance(node, Dir):
                entries[name] = self._survive(node, views, choice)
            else:
                survivor = entries[name] = node.survivor(choice)
                self._used += survivor.used
        return twin

    def kill_image(self) -> SimFs:
        """The disk after a process kill: same boot, all cached bytes there and still dirty, locks released."""
        with self._lock:
            image = SimFs(self.seed, capacity=self.capacity)
            image._seq = self._seq
            image.lies = list(self.lies)
            twins: dict[Node, Node] = {}
            image._root = self._twin_dir(self._root, twins)
            image._changes = [
                Change(
                    change.seq,
                    [(self._twin_dir(d, twins), n, node and self._twin(node, twins)) for d, n, node in change.edits],
                    [(self._twin_dir(d, twins), n) for d, n in change.needs],
                )
                for change in self._changes
            ]
            image._late_dirs = [self._twin_dir(d, twins) for d in self._late_dirs]
            image._used = sum(inode.used for inode in image._inodes())
            if self._random is not None:
                image._rng().setstate(self._random.getstate())
            return image

    def _twin(self, node: Node, twins: dict[Node, Node]) -> Node:
        if isinstance(node, Dir):
            return self._twin_dir(node, twins)
        twin = twins.get(node)
        if twin is None:
            twin = twins[node] = node.clone()
        return twin

    def _twin_dir(self, directory: Dir, twins: dict[Node, Node]) -> Dir:
        known = twins.get(directory)
        if known is not None:
            assert isinstance(known, Dir)
            return known
        twin = twins[directory] = Dir()
        twin.entries = {name: self._twin(node, twins) for name, node in directory.entries.items()}
        if directory.durable is directory.entries:
            twin.durable = twin.entries
        else:
            twin.durable = {name: self._twin(node, twins) for name, node in directory.durable.items()}
        return twin

    def _walk(self, directory: Dir, prefix: str) -> Iterator[tuple[str, Inode]]:
        for name, node in directory.entries.items():
            if isinstance(node, Dir):
                yield from self._walk(node, f"{prefix}{name}/")
            else:
                yield prefix + name, node

    def files(self) -> dict[str, bytes]:
        """Every file as a process would read it, by path from the root, without a leading slash."""
        with self._lock:
            return {path: inode.read(inode.size, 0) for path, inode in self._walk(self._root, "")}

    def load(self, files: dict[str, bytes]) -> None:
        """Put these files on the disk, durable, with the directories they need; others stay."""
        with self._lock:
            self._flush(list(self._changes))
            for path, data in files.items():
                directory = self._root
                *way, name = split(path)
                for level in way:
                    below = directory.entries.setdefault(level, Dir())
                    if not isinstance(below, Dir):
                        raise failure(errno.ENOTDIR, path)
                    directory = below
                old = directory.entries.get(name)
                if isinstance(old, Dir):
                    raise failure(errno.EISDIR, path)
                if old is not None:
                    self._unlink(old)
                inode = Inode()
                inode.reserved = inode.used = sectors_of(len(data))
                inode.write(data, 0, 0)
                inode.sync()
                directory.entries[name] = inode
                self._used += inode.used

    def set_byte(self, path: str, offset: int, value: int) -> None:
        """Replace one byte on the medium and in the cache."""
        with self._lock:
            inode = self._file(path)
            if not 0 <= offset < inode.size:
                raise ValueError(f"{path} has no byte {offset}")
            sector, at = divmod(offset, SECTOR_BYTES)
            data = bytearray(inode.sectors.get(sector, ZERO))
            data[at] = value
            self._damage(inode, sector, bytes(data))

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        with self._lock:
            byte = self._file(path).read(1, offset)
            self.set_byte(path, offset, byte[0] ^ (1 << bit) if byte else 0)

    def zero_sector(self, path: str, n: int) -> None:
        with self._lock:
            inode = self._file(path)
            if not 0 <= n < sectors_of(inode.size):
                raise ValueError(f"{path} has no sector {n}")
            self._damage(inode, n, ZERO)

    def _damage(self, inode: Inode, sector: int, data: bytes) -> None:
        before = inode.used
        inode.own()[sector] = data
        inode.versions.pop(sector, None)
        inode.forgotten.pop(sector, None)
        inode._count_used()
        self._used += inode.used - before

    def truncate_at_rest(self, path: str, size: int) -> None:
        """Cut (or lengthen with zeros) a file on the medium and in the cache; its dirty bytes become durable."""
        with self._lock:
            inode = self._file(path)
            before = inode.used
            inode.sync()
            inode.forgotten, inode.forgotten_size = {}, None
            inode._settle(size, dict(inode.sectors))
            self._used += inode.used - before

    def lose_file(self, path: str) -> None:
        """Make a file vanish; waiting changes of names become durable first."""
        with self._lock:
            self._flush(list(self._changes))
            inode = self._file(path)
            directory, name, _ = self._place(path)
            del directory.entries[name]
            self._unlink(inode)

    def swap_files(self, a: str, b: str) -> None:
        """Exchange two files under their names; waiting changes of names become durable first."""
        with self._lock:
            self._flush(list(self._changes))
            one, other = self._file(a), self._file(b)
            (dir_a, name_a, _), (dir_b, name_b, _) = self._place(a), self._place(b)
            dir_a.entries[name_a], dir_b.entries[name_b] = other, one
