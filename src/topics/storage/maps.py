"""Whole files in memory, engine-wide and bounded [S-155]: mapped where the disk can map, read where it cannot.

    lease          the whole file as a private, writable buffer: a mapping, else a copy on the heap
    lease_mapped   the same, or None where the file would have to be read: the caller then reads the ranges it needs

A mapping is copy-on-write [S-150]: what is written to a buffer is seen by every later lease and never by the disk. Only
files whose size never changes may be leased; the size is checked when a file is brought in, because a mapping behind
the end of a file kills the process (13 §6).

An entry in use is never evicted, nor is a pinned one, whose marks are not on disk yet. Everything else is, least
recently used first, beyond `max_maps` entries or `COPIES_BYTES_MAX` bytes of copies. Where `max_maps` mappings are
pinned, no more files are mapped: each may hold a descriptor, and a checkpoint needs some. `forget` makes the next lease
bring the file in anew; who still holds the old buffer keeps it until its lease ends.

No view of a buffer may outlive its lease. One that does keeps its mapping alive until the view is gone, because a
mapping with exported buffers cannot be closed; it never reads unmapped memory. Any thread may call any method.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict
from mmap import mmap
from types import TracebackType
from typing import NamedTuple

from topics.fs import Fs, close_quietly, pread_exact

log = logging.getLogger("topics.storage")

COPIES_BYTES_MAX = 64 << 20


class WrongSize(ValueError):
    """A file that has not the size its descriptor says [S-170]."""


class MapStatistics(NamedTuple):
    """What the cache holds now and what it did."""

    entries: int
    copies_bytes: int
    leased: int
    pinned: int
    brought_in: int
    evicted: int


class _Entry:
    """One file in memory. Guarded by the cache's lock; `mapping` is None for a copy on the heap."""

    __slots__ = ("attachment", "buffer", "leases", "mapping", "path", "pinned")

    def __init__(self, path: str, mapping: mmap | None, copy: bytearray) -> None:
        self.path = path
        self.mapping = mapping
        self.buffer = memoryview(copy if mapping is None else mapping)
        self.attachment: object = None
        self.leases = 0
        self.pinned = False

    def copied_bytes(self) -> int:
        return len(self.buffer) if self.mapping is None else 0

    def close(self) -> None:
        self.attachment = None
        try:
            self.buffer.release()
            if self.mapping is not None:
                self.mapping.close()
        except BufferError:
            log.warning("a view of %s outlived its lease; its memory is freed with it", self.path)


class Lease:
    """The right to use a buffer until `release`. `fresh`: no lease before this one has seen the buffer."""

    __slots__ = ("_cache", "_entry", "fresh")

    def __init__(self, cache: MapCache, entry: _Entry, fresh: bool) -> None:
        self._cache = cache
        self._entry: _Entry | None = entry
        self.fresh = fresh

    @property
    def buffer(self) -> memoryview:
        """The whole file, writable."""
        return self._held().buffer

    @property
    def attachment(self) -> object:
        """What an earlier lease made of the buffer and left with it; goes when the buffer goes."""
        return self._held().attachment

    @attachment.setter
    def attachment(self, value: object) -> None:
        self._held().attachment = value

    def pin(self) -> None:
        """Keep the buffer until it is forgotten: it holds what is not on disk."""
        self._cache.pin(self._held())

    def release(self) -> None:
        """Give the right back; again is fine."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache.returned(entry)

    def _held(self) -> _Entry:
        assert self._entry is not None, "the lease has ended"
        return self._entry

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class MapCache:
    """All files in memory. Invariant: an entry with a lease or a pin stays; at most `max_maps` others do."""

    def __init__(self, fs: Fs, max_maps: int, use_mmap: bool = True) -> None:
        assert max_maps >= 1
        self._fs = fs
        self._max_maps = max_maps
        self._use_mmap = use_mmap
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._copies_bytes = 0
        self._pinned_maps = 0
        """Mappings that cannot be evicted whatever comes."""
        self._brought_in = 0
        self._evicted = 0
        self._forgets = 0
        """A file brought in across one of these may be the old one: it is brought in again."""

    def lease(self, path: str, size: int) -> Lease:
        """The file of exactly `size` bytes; `WrongSize` if it has another one."""
        while True:
            found, forgets = self._cached(path, size)
            if found is None:
                mapping = self._map(path)
                if mapping is None:
                    found = self._keep(_Entry(path, None, self._read(path, size)), forgets)
                else:
                    found = self._keep_mapped(path, mapping, size, forgets, exact=True)
            if found is not None:
                return found

    def lease_mapped(self, path: str, size: int) -> Lease | None:
        """The file of at least `size` bytes, if it can be mapped; `WrongSize` if it is shorter."""
        while True:
            found, forgets = self._cached(path, None)
            if found is None:
                mapping = self._map(path)
                if mapping is None:
                    return None
                found = self._keep_mapped(path, mapping, size, forgets, exact=False)
            if found is not None:
                return found

    def put(self, path: str, content: bytearray) -> None:
        """Let this content stand for a file, pinned, until it is forgotten: the file itself is damaged."""
        with self._lock:
            self._drop(path)
            entry = self._entries[path] = _Entry(path, None, content)
            entry.pinned = True
            self._copies_bytes += entry.copied_bytes()

    def forget(self, path: str) -> None:
        """The file was replaced or removed: no later lease sees the old buffer."""
        with self._lock:
            self._forgets += 1
            self._drop(path)

    def clear(self) -> None:
        """Forget everything, pins included."""
        with self._lock:
            for path in list(self._entries):
                self._drop(path)

    def statistics(self) -> MapStatistics:
        """Counts for metrics and tests."""
        with self._lock:
            held = self._entries.values()
            leased, pinned = sum(entry.leases > 0 for entry in held), sum(entry.pinned for entry in held)
            return MapStatistics(
                len(held), self._copies_bytes, leased, pinned, self._brought_in, self._evicted
            )  # fmt: skip

    def pin(self, entry: _Entry) -> None:
        """See `Lease.pin`."""
        with self._lock:
            if not entry.pinned and entry.mapping is not None and self._entries.get(entry.path) is entry:
                self._pinned_maps += 1
            entry.pinned = True

    def returned(self, entry: _Entry) -> None:
        """A lease ended."""
        with self._lock:
            entry.leases -= 1
            assert entry.leases >= 0
            if self._entries.get(entry.path) is entry:
                self._evict()
            elif entry.leases == 0:
                entry.close()

    def _cached(self, path: str, size: int | None) -> tuple[Lease | None, int]:
        """A lease on what is there, and how often files were forgotten so far."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                return None, self._forgets
            if size is not None and len(entry.buffer) != size:
                raise WrongSize(f"{path} is {len(entry.buffer)} bytes in memory, not {size}")
            self._entries.move_to_end(path)
            entry.leases += 1
            return Lease(self, entry, fresh=False), self._forgets

    def _map(self, path: str) -> mmap | None:
        if not self._use_mmap or self._pinned_maps >= self._max_maps:
            return None
        try:
            return self._fs.map(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self._lock:
            self._evict(keep=0)  # connections have taken what mappings had left them
        return self._fs.map(path)

    def _read(self, path: str, size: int) -> bytearray:
        file = self._fs.open(path, "r")
        try:
            found = file.size()
            if found != size:
                raise WrongSize(f"{path} has {found} bytes, not {size}")
            return bytearray(pread_exact(file, size, 0))
        finally:
            close_quietly(file)

    def _keep_mapped(self, path: str, mapping: mmap, size: int, forgets: int, *, exact: bool) -> Lease | None:
        found = len(mapping)
        if found < size or (exact and found != size):
            mapping.close()
            raise WrongSize(f"{path} has {found} bytes, not {size}")
        return self._keep(_Entry(path, mapping, bytearray()), forgets)

    def _keep(self, entry: _Entry, forgets: int) -> Lease | None:
        """A lease on a file just brought in; None if files were forgotten meanwhile."""
        with self._lock:
            if forgets != self._forgets:
                entry.close()
                return None
            known = self._entries.get(entry.path)
            if known is not None:  # another thread was faster, and its buffer may have marks already
                entry.close()
                known.leases += 1
                return Lease(self, known, fresh=False)
            self._entries[entry.path] = entry
            self._copies_bytes += entry.copied_bytes()
            self._brought_in += 1
            entry.leases = 1
            self._evict()
            return Lease(self, entry, fresh=True)

    def _evict(self, keep: int | None = None) -> None:
        """Let go of what nobody uses, oldest first, until the bounds hold or all that is left is in use."""
        keep = self._max_maps if keep is None else keep
        if len(self._entries) <= keep and self._copies_bytes <= COPIES_BYTES_MAX:
            return
        for path, entry in list(self._entries.items()):
            if len(self._entries) <= keep and self._copies_bytes <= COPIES_BYTES_MAX:
                return
            if entry.leases == 0 and not entry.pinned:
                self._drop(path)
                self._evicted += 1

    def _drop(self, path: str) -> None:
        entry = self._entries.pop(path, None)
        if entry is not None:
            self._copies_bytes -= entry.copied_bytes()
            self._pinned_maps -= entry.pinned and entry.mapping is not None
            if entry.leases == 0:
                entry.close()
