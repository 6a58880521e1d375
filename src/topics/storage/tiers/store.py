"""A store of sealed segments, folder or objects, behind one protocol (06 §16.1).

    ColdRoot       a whole tier: the id of the engine that may use it, and a store per topic
    SegmentStore   the segments of one topic

*Absent* and *unknown* are kept apart everywhere: `SegmentNotFound`, `exists` False and a store id of None mean that the
tier was asked and said no; `StoreUnavailable` means that nobody can tell. Whether an absent segment is lost is decided
by `known_absent`: a folder that is not mounted has no segments either [S-317]. Synchronous; only threads that wait for
storage call it, never the owner [S-320].
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from topics import paths
from topics.errors import StoreUnavailable, TopicsError
from topics.paths import SegmentKind

Part = SegmentKind
Source = str | bytes | bytearray | memoryview
"""A part to be put: the path of a file of the local disk, or its bytes."""


class SegmentId(NamedTuple):
    """A segment of a topic: its first seq, and the generation of its `.data`; the other parts have none."""

    first: int
    generation: int = 0


class SegmentNotFound(TopicsError):
    """The store was asked and has no such part."""

    def __init__(self, id: SegmentId, part: Part) -> None:
        super().__init__(f"there is no .{part} of segment {id.first}, generation {id.generation}")
        self.id = id
        self.part = part


class RangeOutOfBounds(TopicsError):
    """The part is there and ends before the range that was asked for."""

    def __init__(self, id: SegmentId, part: Part, offset: int, length: int) -> None:
        super().__init__(f".{part} of segment {id.first} has no {length} bytes at {offset}")
        self.id = id
        self.part = part


class Unsupported(TopicsError):
    """The store cannot change a byte of what it holds."""


class SegmentStore(Protocol):
    """The segments of one topic in one tier. Every call may raise `StoreUnavailable`."""

    @property
    def mutable(self) -> bool:
        """Whether `mark_deleted` works."""
        ...

    def put(self, id: SegmentId, data: Source | None, idx: Source | None, tag: Source | None = None) -> None:
        """Store parts, `.data` first, then `.tag`, `.idx` last; durable on return, overwriting what is there.

        None leaves that part as it is.
        """
        ...

    def read_range(self, id: SegmentId, part: Part, offset: int, length: int) -> bytes:
        """Exactly this range, else `RangeOutOfBounds`; `SegmentNotFound` if the part is absent."""
        ...

    def delete(self, id: SegmentId) -> None:
        """Remove all parts; while another generation's `.data` is there, only this one's. Absent is success."""
        ...

    def list(self) -> builtins.list[SegmentId]:
        """What has both `.data` and `.idx`, ascending."""
        ...

    def halves(self) -> builtins.list[SegmentId]:
        """What has some part but is no pair, ascending: a put or a delete that was cut short."""
        ...

    def exists(self, id: SegmentId, part: Part) -> bool:
        """Whether the part is there; never a guess."""
        ...

    def len(self, id: SegmentId, part: Part) -> int:
        """Bytes of a part; `SegmentNotFound` if it is absent."""
        ...

    def digest(self, id: SegmentId, part: Part) -> int:
        """XXH3-64 of a part, recorded when it was put or computed; `SegmentNotFound` if it is absent."""
        ...

    def mark_deleted(self, id: SegmentId, offsets: Sequence[int]) -> None:
        """Write the delete byte at each offset of `.data`, durably; `Unsupported` where objects are immutable."""
        ...

    def clear(self) -> None:
        """Remove every part of every segment, halves of interrupted puts included: the topic is deleted [S-276]."""
        ...


class ColdRoot(Protocol):
    """A cold tier. Every call may raise `StoreUnavailable`."""

    @property
    def name(self) -> str:
        """The root without credentials, as snapshots and plans tell it; opening it again by this name finds it."""
        ...

    def store_id(self) -> str | None:
        """The id in `.topics-store` [S-14], None if the root was asked and has none."""
        ...

    def claim(self, store_id: str) -> None:
        """Create `.topics-store` with this id, durably; the caller knows that there is none."""
        ...

    def topic(self, topic_id: int) -> SegmentStore:
        """The store of one topic; nothing is asked or made by this call."""
        ...

    def topics(self) -> list[int]:
        """Ids of the topics that have anything here, ascending."""
        ...

    def close(self) -> None:
        """Let go of connections; no call may follow."""
        ...


def pairs_of(names: Iterable[str]) -> list[SegmentId]:
    """What has both `.data` and `.idx` among these files, ascending."""
    found = [one for name in names if (one := paths.parse_segment(name)) is not None]
    indexed = {one.first_seq for one in found if one.kind == "idx"}
    return sorted(
        SegmentId(one.first_seq, one.generation) for one in found if one.kind == "data" and one.first_seq in indexed
    )


def halves_of(names: Sequence[str]) -> list[SegmentId]:
    """What has some part, or the beginning of one, and is no pair; parts without a `.data` stand for generation 0."""
    parts = (paths.parse_segment(paths.parse_tmp(name) or name) for name in names)
    found = [one for one in parts if one is not None]
    with_data = {one.first_seq for one in found if one.kind == "data"}
    some = [one for one in found if one.kind == "data" or one.first_seq not in with_data]
    return sorted({SegmentId(one.first_seq, one.generation) for one in some} - set(pairs_of(names)))


def check_owner(root: ColdRoot, store_id: str) -> None:
    """Raise `StoreUnavailable` unless the root is there and this engine's [S-14, S-346]."""
    found = root.store_id()
    if found is None:
        raise StoreUnavailable(f"{root.name} has no store id: it is not mounted, or was emptied")
    if found != store_id:
        raise StoreUnavailable(f"{root.name} belongs to another store")


def known_absent(root: ColdRoot, store_id: str, id: SegmentId, topic_id: int) -> bool:
    """Whether a segment's `.data` is surely gone: the tier answers, is this engine's, and has no such part [S-317]."""
    check_owner(root, store_id)
    return not root.topic(topic_id).exists(id, "data")
