"""A tier that takes its time: something is done before each call of a store, in the thread that calls.

DelayedRoot(root, lambda call: time.sleep(0.1) if call == "read_range" else None)    100 ms per ranged read (12 B10)
DelayedRoot(root, lambda call: gate.wait())                                          a store that hangs
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

from topics.storage.tiers.store import ColdRoot, Part, SegmentId, SegmentStore, Source

Before = Callable[[str], object]
"""Called with the name of the method that is about to run; what it raises, the call raises."""


class DelayedRoot:
    """Any tier, with stores that are delayed alike."""

    def __init__(self, root: ColdRoot, before: Before) -> None:
        self._root = root
        self._before = before

    @property
    def name(self) -> str:
        return self._root.name

    def store_id(self) -> str | None:
        self._before("store_id")
        return self._root.store_id()

    def claim(self, store_id: str) -> None:
        self._before("claim")
        self._root.claim(store_id)

    def topic(self, topic_id: int) -> DelayedStore:
        return DelayedStore(self._root.topic(topic_id), self._before)

    def topics(self) -> list[int]:
        self._before("topics")
        return self._root.topics()

    def close(self) -> None:
        self._root.close()


class DelayedStore:
    """Any store of one topic's segments."""

    def __init__(self, store: SegmentStore, before: Before) -> None:
        self._store = store
        self._before = before

    @property
    def mutable(self) -> bool:
        return self._store.mutable

    def put(self, id: SegmentId, data: Source | None, idx: Source | None, tag: Source | None = None) -> None:
        self._before("put")
        self._store.put(id, data, idx, tag)

    def read_range(self, id: SegmentId, part: Part, offset: int, length: int) -> bytes:
        self._before("read_range")
        return self._store.read_range(id, part, offset, length)

    def delete(self, id: SegmentId) -> None:
        self._before("delete")
        self._store.delete(id)

    def list(self) -> builtins.list[SegmentId]:
        self._before("list")
        return self._store.list()

    def halves(self) -> builtins.list[SegmentId]:
        self._before("halves")
        return self._store.halves()

    def exists(self, id: SegmentId, part: Part) -> bool:
        self._before("exists")
        return self._store.exists(id, part)

    def len(self, id: SegmentId, part: Part) -> int:
        self._before("len")
        return self._store.len(id, part)

    def digest(self, id: SegmentId, part: Part) -> int:
        self._before("digest")
        return self._store.digest(id, part)

    def mark_deleted(self, id: SegmentId, offsets: Sequence[int]) -> None:
        self._before("mark_deleted")
        self._store.mark_deleted(id, offsets)

    def clear(self) -> None:
        self._before("clear")
        self._store.clear()
