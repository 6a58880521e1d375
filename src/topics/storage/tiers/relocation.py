"""Moving one sealed segment to the cold tier (06 §16.2), and what follows for segments that are there.

    copy     relocator's thread: parts that differ are put, `.idx` with the magic `TIC1`; then lengths and digests of
             what lies there are compared with those of the bytes that were copied
    settle   the local `.idx` is replaced by one with `TIC1`: the stub; from here on the tier counts where the hot
             `.data` is gone, and the hot `.data` wins where it is not [S-303, S-316]
    commit   the owner: the descriptor is cold
    unlink   the hot `.data` goes, the stub and the tags stay

Every step may be cut short and begun anew: at no instant is there no complete copy [S-311]. Delete marks that are not
on disk stay pending throughout and reach the stub with the next cycle, so no mark outlives its frame in the log. The
tags are synced before the `.data` is gone, because then nothing here could make them anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from xxhash import xxh3_64_intdigest

from topics.codec import segment as codec
from topics.errors import StoreUnavailable
from topics.fs import close_quietly
from topics.storage import tags
from topics.storage.descriptor import Segment
from topics.storage.reindex import Entries, find_frames
from topics.storage.segfile import SegmentFiles, entries_in, footer_hash, load_entries, verified
from topics.storage.segments import TopicSegments
from topics.storage.segread import is_sidecar
from topics.storage.tiers.folder import COPY_BYTES, digest_of
from topics.storage.tiers.store import (
    ColdRoot,
    Part,
    RangeOutOfBounds,
    SegmentId,
    SegmentNotFound,
    SegmentStore,
    Source,
    check_owner,
)

log = logging.getLogger("topics.storage")

T = TypeVar("T")


class Relocation:
    """One segment on its way to the cold tier. `copy`, `settle` and `unlink` are file work, the rest is the owner's."""

    __slots__ = (
        "_copied_xxh3", "_idx_xxh3", "_root", "_segments", "_store_id", "_told", "files", "generation", "segment",
    )  # fmt: skip

    def __init__(self, segments: TopicSegments, segment: Segment, root: ColdRoot, store_id: str) -> None:
        assert segment.sealed
        assert segment.has_data
        self.files = segments.files
        self.segment = segment
        self.generation = segment.generation
        self._segments = segments
        self._root = root
        self._store_id = store_id
        self._told = segments.told
        self._copied_xxh3 = 0
        self._idx_xxh3 = 0

    def copy(self) -> None:
        """Bring a complete copy into the tier, and be sure of it."""
        check_owner(self._root, self._store_id)
        files, first, id = self.files, self.segment.first, SegmentId(self.segment.first, self.generation)
        store = self._root.topic(files.topic_id)
        path = files.path(first, "data", self.generation)
        idx = stub(files, first, self._entries(), self.generation)
        tag = self._tag()
        if tag is None and self.generation and store.exists(id, "tag"):
            tag = tags.empty_sidecar(files.topic_id, first)  # what is there has the tags that a rewrite erased
        wanted: dict[Part, tuple[Source, int, int]] = {"data": (path, *_measured(files, path)), "idx": _given(idx)}
        if tag is not None:
            wanted["tag"] = _given(tag)
        parts = {part: None if _is_there(store, id, part, n, xxh3) else s for part, (s, n, xxh3) in wanted.items()}
        # Also where nothing differs: an earlier put may have failed at its very end, before names were durable.
        store.put(id, parts["data"], parts["idx"], parts.get("tag"))
        for part, (_, n, xxh3) in wanted.items():
            if not _is_there(store, id, part, n, xxh3):
                raise StoreUnavailable(f"{self._root.name}: .{part} of segment {first} is not what was put there")
        self._copied_xxh3 = footer_hash(idx)
        files.fs.point("cold.after_copy")

    def delete_others(self, held: frozenset[int] = frozenset()) -> None:
        """Objects of generations that nothing names any more, once the stub names this one durably [S-285].

        `held` are generations that a pin holds [A-8]; a sweep takes them later.
        """
        if not self.generation:
            return
        check_owner(self._root, self._store_id)
        store = self._root.topic(self.files.topic_id)
        for other in store.list():
            if other.first == self.segment.first and other.generation not in (self.generation, *held):
                store.delete(other)

    def is_current(self) -> bool:
        """Whether the segment is still what was copied, and nobody's: else the move is given up [S-158]."""
        segment = self.segment
        same = segment.generation == self.generation and segment.has_data and not segment.busy
        return same and self._segments.find(segment.first) is segment

    def begin_settling(self) -> None:
        """Hand out the segment."""
        assert self.is_current()
        self.segment.busy = True

    def settle(self) -> None:
        """Make the local `.idx` the stub of a cold segment, durably."""
        files, first = self.files, self.segment.first
        tag = self._tag()
        if tag is not None:
            files.write_tag(first, tag, durable=True)
        raw = stub(files, first, self._entries(), self.generation)
        self._idx_xxh3 = files.write_footed(first, raw)
        files.sync_dir()

    def commit(self) -> None:
        """The tier has the frames from now on; what is pending is applied to the stub again."""
        segment = self.segment
        segment.busy = False
        segment.cold, segment.idx_xxh3 = True, self._idx_xxh3
        segment.behind = self._idx_xxh3 != self._copied_xxh3
        self._segments.reader.forget(segment)

    def abandon(self) -> None:
        """Settling failed: the hot pair is in force, whatever its `.idx` says."""
        self.segment.busy = False

    def unlink(self) -> None:
        """Take the hot `.data` away."""
        self.files.fs.point("cold.before_unlink")
        self.files.remove(self.files.path(self.segment.first, "data", self.generation))
        self.files.sync_dir()

    def _entries(self) -> Entries:
        segment = self.segment
        return load_entries(self.files, segment.first, segment.n, self.generation, has_data=True, told=self._told)

    def _tag(self) -> bytes | None:
        """The sidecar, made anew if it does not verify; None where no record has a tag."""
        files, segment = self.files, self.segment
        if segment.has_tags is False:
            return None
        raw = files.read(files.path(segment.first, "tag"))
        if raw is None or not is_sidecar(raw, files, segment.first, segment.n):
            data = files.read(files.path(segment.first, "data", self.generation)) or b""
            rows = find_frames(data, files.mask, segment.first, segment.last).rows
            raw = tags.build_sidecar(data, rows, files.topic_id, segment.first)
        return raw


def stub(files: SegmentFiles, first: int, entries: Entries, generation: int) -> bytes:
    """The `.idx` of a cold segment."""
    raw = entries.tobytes()
    return raw + codec.encode_footer(raw, files.segment_mask(first), codec.COLD, generation)


def _given(raw: bytes) -> tuple[Source, int, int]:
    return raw, len(raw), xxh3_64_intdigest(raw)


def _measured(files: SegmentFiles, path: str) -> tuple[int, int]:
    file = files.fs.open(path, "r")
    try:
        return file.size(), digest_of(file)
    finally:
        close_quietly(file)


def _is_there(store: SegmentStore, id: SegmentId, part: Part, n: int, xxh3: int) -> bool:
    try:
        return store.len(id, part) == n and store.digest(id, part) == xxh3
    except SegmentNotFound:
        return False


class Following:
    """Deletes that a stub has, brought to the cold copy [S-315]. `run` is the relocator's, the rest the owner's."""

    def __init__(self, segments: TopicSegments, segment: Segment, root: ColdRoot, store_id: str) -> None:
        self._files = segments.files
        self._segment = segment
        self._id = SegmentId(segment.first, segment.generation)
        self._n = segment.n
        self._idx_xxh3 = segment.idx_xxh3
        self._root = root
        self._store_id = store_id

    def run(self) -> None:
        """What is on disk here is what is told there; the stub may have changed again since."""
        check_owner(self._root, self._store_id)
        raw = self._files.read(self._files.path(self._id.first, "idx")) or b""
        footer = verified(self._files, self._id.first, raw)
        if footer is None or (footer.n, footer.generation, footer.magic) != (self._n, self._id.generation, codec.COLD):
            return
        store = self._root.topic(self._files.topic_id)
        if _is_there(store, self._id, "idx", *_given(raw)[1:]):
            return  # the run before this one got that far: the index goes last
        if store.mutable:
            entries = entries_in(raw, footer.n)
            gone = entries[(entries["len"] != 0) & (entries["flags"] & codec.DELETED != 0)]
            store.mark_deleted(self._id, (gone["offset"].astype(np.int64) + gone["len"] - 1).tolist())
        store.put(self._id, None, raw)

    def commit(self) -> None:
        """The copy is as the stub was when this began."""
        if self._segment.idx_xxh3 == self._idx_xxh3:
            self._segment.behind = False


class Mending:
    """A lost stub fetched again, if what the tier has is the very same [S-316]; and lost tags."""

    def __init__(self, segments: TopicSegments, segment: Segment, root: ColdRoot, store_id: str) -> None:
        self._segments = segments
        self._segment = segment
        self._root = root
        self._store_id = store_id
        self._raw: bytes | None = None
        self._tags: bytes | None = None

    def run(self) -> None:
        """On the relocator's thread."""
        check_owner(self._root, self._store_id)
        store, files = self._root.topic(self._segments.files.topic_id), self._segments.files
        if self._segment.unindexed:
            self._raw = same_stub(store, files, self._segment)
        if self._segment.untagged:
            self._tags = same_tags(store, files, self._segment)

    @property
    def is_found(self) -> bool:
        """Whether there is something to write."""
        segment = self._segment
        is_wanted = (self._raw is not None and segment.unindexed) or (self._tags is not None and segment.untagged)
        return is_wanted and segment.cold

    def write(self) -> None:
        """File work."""
        files = self._segments.files
        if self._raw is not None:
            files.write_footed(self._segment.first, self._raw)
        if self._tags is not None:
            files.write_tag(self._segment.first, self._tags, durable=True)
        files.sync_dir()

    def commit(self) -> None:
        """The owner: the segment can be read again; an `OSError` leaves it as lost as it was."""
        segment = self._segment
        segment.untagged = segment.untagged and self._tags is None
        self._segments.reader.forget(segment)
        if self._raw is not None:
            adopt_stub(segment, self._raw)
            try:
                self._segments.recount(segment)
            except OSError:
                segment.unindexed = True  # not counted, it would pass for dead and be dropped
                raise


def adopt_stub(segment: Segment, raw: bytes) -> None:
    """An index that was lost is there again."""
    segment.unindexed = False
    segment.generation = int.from_bytes(raw[-16:-14], "little")
    segment.min_ts = segment.max_ts = segment.has_tags = None


def same_tags(store: SegmentStore, files: SegmentFiles, segment: Segment) -> bytes | None:
    """The tags that the tier has of a segment; None if it has none that verify."""
    raw = _whole(store, SegmentId(segment.first, segment.generation), "tag")
    return raw if raw is not None and is_sidecar(raw, files, segment.first, segment.n) else None


def _whole(store: SegmentStore, id: SegmentId, part: Part) -> bytes | None:
    try:
        return store.read_range(id, part, 0, store.len(id, part))
    except (SegmentNotFound, RangeOutOfBounds):
        return None


def any_stub(store: SegmentStore, files: SegmentFiles, segment: Segment) -> bytes | None:
    """The `.idx` that the tier has of a segment, if it verifies; it may lag behind deletes."""
    raw = _whole(store, SegmentId(segment.first), "idx")
    if raw is None or len(raw) != (segment.n + 1) * codec.ENTRY_BYTES:
        return None
    footer = verified(files, segment.first, raw)
    return raw if footer is not None and footer.n == segment.n and footer.magic == codec.COLD else None


def same_stub(store: SegmentStore, files: SegmentFiles, segment: Segment) -> bytes | None:
    """The `.idx` that the tier has of a segment, if it is the one the descriptor knows; None if not."""
    raw = any_stub(store, files, segment)
    if raw is None:
        return None
    # The snapshot may be from before the move: the same entries under the footer of a hot segment are as good.
    mask, generation = files.segment_mask(segment.first), int.from_bytes(raw[-16:-14], "little")
    hot = codec.encode_footer(raw[: -codec.ENTRY_BYTES], mask, codec.HOT, generation)
    return raw if segment.idx_xxh3 in (footer_hash(raw), footer_hash(hot)) else None


class Bounded(Protocol):
    """Waits for an answer, but not for ever."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def _at_once(call: Callable[[], T]) -> T:
    return call()


class LostParts:
    """Asks the tier for what a start does not find here; after the first failure nothing more is asked [S-318]."""

    def __init__(self, root: ColdRoot | None, store_id: str, bounded: Bounded | None = None) -> None:
        self._root = root
        self._store_id = store_id
        self._bounded = bounded or _at_once
        self._checked = False
        self._failed = False

    def stub(self, files: SegmentFiles, segment: Segment) -> bytes | None:
        """The index of a segment, if it is the one that the snapshot names [S-316]."""
        return self._ask(lambda root: same_stub(root.topic(files.topic_id), files, segment))

    def tags(self, files: SegmentFiles, segment: Segment) -> bytes | None:
        """The tags of a segment."""
        return self._ask(lambda root: same_tags(root.topic(files.topic_id), files, segment))

    def may_have(self, files: SegmentFiles, first: int) -> bool:
        """Whether a segment may have been moved there: it is there, or nobody can tell."""
        found = self._ask(lambda root: [one for one in root.topic(files.topic_id).list() if one.first == first])
        return self._failed or bool(found)

    def _ask(self, ask: Callable[[ColdRoot], T | None]) -> T | None:
        root = self._root
        if root is None or self._failed:
            return None

        def run() -> T | None:
            if not self._checked:
                check_owner(root, self._store_id)
                self._checked = True
            return ask(root)

        try:
            return self._bounded(run)
        except StoreUnavailable as error:
            log.error("the cold tier cannot be asked for what is missing here: %s", error)
            self._failed = True
            return None


def fetch_data(root: ColdRoot, store_id: str, topic_id: int, id: SegmentId, data_len: int) -> bytes:
    """All of a cold segment's frames, for a rewrite [S-285]."""
    check_owner(root, store_id)
    store = root.topic(topic_id)
    sizes = ((at, min(COPY_BYTES, data_len - at)) for at in range(0, data_len, COPY_BYTES))
    return b"".join(store.read_range(id, "data", at, n) for at, n in sizes)


def delete_objects(root: ColdRoot, store_id: str, topic_id: int, first: int, generation: int) -> None:
    """Everything the tier has of a segment, every generation; absent is fine [S-274]."""
    check_owner(root, store_id)
    store = root.topic(topic_id)
    for other in store.list():
        if other.first == first and other.generation != generation:
            store.delete(other)
    store.delete(SegmentId(first, generation))


def clear_topic(root: ColdRoot, store_id: str, topic_id: int) -> None:
    """Everything the tier has of a deleted topic [S-276]."""
    check_owner(root, store_id)
    root.topic(topic_id).clear()
