"""The descriptor cache: exact LRU of read descriptors with counted leases [W-20]. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from topics.fs import File, close_quietly


class Lease:
    """A descriptor that stays readable until released, whatever happens to its segment meanwhile."""

    __slots__ = ("_cache", "_entry", "file")

    def __init__(self, cache: DescriptorCache, entry: _Entry) -> None:
        self._cache = cache
        self._entry: _Entry | None = entry
        self.file = entry.file

    def release(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache._release(entry)

    def abandon(self) -> None:
        """`release` for whoever must not wait: the collector may come by while this thread has the cache's lock."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache._abandon(entry)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class _Entry:
    __slots__ = ("cached", "file", "leases")

    def __init__(self, file: File) -> None:
        self.file = file
        self.leases = 0
        self.cached = True


class DescriptorCache:
    """Keeps at most `size` descriptors, more only while all of them are leased."""

    def __init__(self, open: Callable[[int], File], size: int) -> None:
        self._open = open
        self._size = size
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._abandoned: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> list[int]:
        """The cached ids, least recently used first."""
        with self._lock:
            return list(self._entries)

    def acquire(self, id: int) -> Lease:
        """A lease on the descriptor of `id`, which becomes the most recently used."""
        with self._lock:
            self._take_back()
            entry = self._entries.get(id)
            if entry is None:
                entry = self._entries[id] = _Entry(self._open(id))
            else:
                self._entries.move_to_end(id)
            entry.leases += 1
            self._evict()
            return Lease(self, entry)

    def drop(self, id: int) -> None:
        """Forget a deleted segment; leased descriptors close with their last lease.

        Closing the last one of a deleted file frees its pages, which takes milliseconds: nobody waits for it here.
        """
        with self._lock:
            entry = self._entries.pop(id, None)
            if entry is None:
                return
            entry.cached = False
            is_idle = entry.leases == 0
        if is_idle:
            close_quietly(entry.file)

    def clear(self) -> None:
        """Forget everything, at close; what is acquired from now on goes with its lease."""
        with self._lock:
            self._take_back()
            self._size = 0
            while self._entries:
                self._let_go(self._entries.popitem()[1])

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            self._give_back(entry)

    def _abandon(self, entry: _Entry) -> None:
        self._abandoned.append(entry)
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        while self._abandoned:
            self._give_back(self._abandoned.popleft())

    def _give_back(self, entry: _Entry) -> None:
        entry.leases -= 1
        if not entry.cached and entry.leases == 0:
            close_quietly(entry.file)
        elif entry.cached:
            self._evict()

    def _evict(self) -> None:
        while len(self._entries) > self._size:
            idle = next((id for id, entry in self._entries.items() if entry.leases == 0), None)
            if idle is None:
                return
            self._let_go(self._entries.pop(idle))

    def _let_go(self, entry: _Entry) -> None:
        entry.cached = False
        if entry.leases == 0:
            close_quietly(entry.file)
