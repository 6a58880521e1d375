"""Giving space back: whole segments dropped [S-274], partly dead ones rewritten (06 §15.5).

    drop      `.data`, `.tag`, `.idx`, in that order; a *stub* keeps the `.idx`, whose marks must be on disk
    Rewrite   copy      survivors to `seg-N.gK.data`, synced and named
              hand_over deletes that came since; what comes later stays pending
              finish    the new `.idx` renamed over the old one: **the commit point**, one atomic step
              commit    the owner switches; then `unlink_data` of the old generation, and `write_tags`
              abandon   after a failure; `discard` then takes the copy away

A rewritten segment keeps its name, first seq and count: removed seqs become fillers [S-280]. A frame that does not
verify ends the rewrite: only what is provably deleted is left out. Which segments are due, and whether floors cover a
drop [S-277], is the caller's business. `copy`, `finish` and `write_tags` are file work for any thread, the rest is the
owner's.
"""

from __future__ import annotations

import numpy as np

from topics.codec import segment as codec
from topics.fs import close_quietly, pwrite_all
from topics.storage import tags
from topics.storage.descriptor import NO_MARKS, Marks, Segment
from topics.storage.reindex import Entries, Rows, find_frames
from topics.storage.segfile import SegmentFiles, entries_in, verified
from topics.storage.segments import TopicSegments


def drop(segments: TopicSegments, segment: Segment, *, stub: bool = False) -> None:
    """Drop a sealed segment, or all but its `.idx`.

    The owner lets go of it first, so that no cycle touches files on their way out; where unlinking fails, `unlink` may
    be repeated, and the next start-up finds what is left.
    """
    assert segment.sealed, "the active segment is never dropped"
    assert not segment.busy
    assert not segment.cold, "cold objects go first"
    assert not stub or (segment.live == 0 and not len(segment.pending)), "a stub's marks are on disk"
    if stub:
        segment.stub = segment.gap is None
        segment.has_tags = False
        segments.reader.forget(segment)
    else:
        segments.forget(segment)
    unlink(segments.files, segment.first, stub=stub)


def unlink(files: SegmentFiles, first: int, *, stub: bool = False) -> None:
    """Remove a segment's files, every generation; idempotent."""
    for generation in generations(files, first):
        files.remove(files.path(first, "data", generation))
    files.remove(files.path(first, "tag"))
    files.fs.point("seg.drop.between")
    if not stub:
        files.remove(files.path(first, "idx"))
    files.sync_dir()


def unlink_data(files: SegmentFiles, first: int, generation: int) -> None:
    """Remove one generation of `.data`, which readers may still have mapped; idempotent."""
    files.remove(files.path(first, "data", generation))
    files.sync_dir()


def make_dead_stub(files: SegmentFiles, first: int, n: int, generation: int) -> int:
    """Its objects are gone: what was the stub of a cold segment is one of a dead segment; the hash in its footer."""
    raw = files.read(files.path(first, "idx")) or b""
    footer = verified(files, first, raw)
    if footer is None or (footer.n, footer.generation) != (n, generation):
        raise OSError(f"the index of segment {first} of topic {files.topic_id} is damaged")
    files.remove(files.path(first, "tag"))
    idx_xxh3 = files.write_idx(first, entries_in(raw, n).tobytes(), generation)
    files.sync_dir()
    return idx_xxh3


def generations(files: SegmentFiles, first: int) -> list[int]:
    """The generations of `.data` that are there, ascending."""
    present = files.listing().get(first)
    return present.generations if present else []


class Rewrite:
    """One rewrite of one segment."""

    __slots__ = (
        "_data", "_durable", "_entries", "_fresh", "_idx_xxh3", "_late", "_lease", "_named", "_renamed", "_segments",
        "_taken", "data_len", "files", "generation", "segment",
    )  # fmt: skip

    def __init__(self, segments: TopicSegments, segment: Segment, data: bytes | None = None) -> None:
        """Begin: take what is pending and hand out the segment; of a cold one the frames are given [S-285]."""
        assert segment.sealed
        assert segment.has_data if data is None else segment.cold
        assert not segment.busy
        with segments.entries(segment) as entries:
            if segment.unindexed:
                raise OSError(f"the index of segment {segment.first} of topic {segments.files.topic_id} is damaged")
            self._entries: Entries = entries.copy()
        self._lease = segments.reader.hold(segment)
        segment.busy = True
        self.files = segments.files
        self.segment = segment
        self.generation = segment.generation + 1
        self.data_len = 0
        self._idx_xxh3 = 0
        self._data = data
        self._named = False
        self._renamed = False
        self._durable = False
        self._segments = segments
        self._taken = segment.pending
        self._late: Marks = NO_MARKS
        self._fresh: Entries = np.empty(0, codec.IDX)

    def copy(self) -> None:
        """Write the survivors under the new generation's name; `ValueError` if one of them does not verify."""
        old, data = self._entries, self._data
        if data is None:
            data = self.files.read(self.files.path(self.segment.first, "data", self.segment.generation)) or b""
        rows = find_frames(data, self.files.mask, self.segment.first, self.segment.last).rows
        self._fresh, survivors = _without_deleted(data, rows, old, self.segment.first)
        self.data_len = len(survivors)
        self.files.write_data(self.files.path(self.segment.first, "data", self.generation), survivors)
        self.files.sync_dir()

    def hand_over(self) -> None:
        """On the owner: take the deletes that came since the rewrite began."""
        self._late = np.setdiff1d(self.segment.pending, self._taken, assume_unique=True).astype(np.uint32)

    def finish(self) -> None:
        """Bring late deletes into the copy, then put it in force [S-281]."""
        first, fs = self.segment.first, self.files.fs
        if len(self._late):
            self._flag_late()
        self._idx_xxh3 = self.files.stage_idx(first, self._fresh.tobytes(), self.generation)
        fs.point("rewrite.before_rename")
        self._named = True
        self.files.commit_idx(first)
        self._renamed = True
        fs.point("rewrite.after_rename")
        self.files.sync_dir()
        self._durable = True

    def commit(self) -> None:
        """On the owner: the new pair is the segment; what is still pending is applied to it again."""
        assert self._durable
        self._switch()
        self.segment.settle(self._taken)
        self.segment.settle(self._late)

    def abandon(self) -> None:
        """On the owner, after a failure. Before the rename the segment is as it was.

        Behind it a process reads the new pair and a power loss may bring back the old one, whole: the segment is
        switched, nothing is settled and nothing unlinked.
        """
        if self._renamed:
            self._switch()
        self._lease.release()
        self.segment.busy = False

    def discard(self) -> None:
        """File work behind `abandon`: the copy goes, or it would lie there until a restart.

        Not once a rename was tried: whatever that answered, the `.idx` may name the copy.
        """
        if not self._named:
            self.files.remove(self.files.path(self.segment.first, "data", self.generation))

    def _switch(self) -> None:
        segment = self.segment
        self._segments.reader.forget(segment)
        self._lease.release()
        segment.busy = segment.cold = segment.behind = False
        segment.generation, segment.data_len, segment.idx_xxh3 = self.generation, self.data_len, self._idx_xxh3
        segment.has_tags = bool((self._fresh["flags"] & codec.HAS_TAG).any())

    def write_tags(self) -> None:
        """Write the tags that are left."""
        assert self._durable
        first = self.segment.first
        path = self.files.path(first, "data", self.generation)
        data = self.files.read(path) or b""
        found = tags.tags_of_entries(data, self._fresh, first)
        self.files.write_tag(first, tags.encode_sidecar(found, self.files.topic_id, first))
        self.files.sync_dir()

    def _flag_late(self) -> None:
        framed = self._late[self._fresh["len"][self._late] != 0]
        chosen = self._fresh[framed]
        file = self.files.fs.open(self.files.path(self.segment.first, "data", self.generation), "rw")
        try:
            for at in (chosen["offset"].astype(np.int64) + chosen["len"] - 1).tolist():
                pwrite_all(file, bytes([codec.DELETE_BYTE]), at)
            file.fdatasync()
        finally:
            close_quietly(file)
        self._fresh["flags"][framed] |= np.uint8(codec.DELETED)


def _without_deleted(data: bytes, rows: Rows, old: Entries, first: int) -> tuple[Entries, bytes]:
    """New entries and the bytes of the surviving frames."""
    fresh = old.copy()
    removed = (old["len"] != 0) & (old["flags"] & codec.DELETED != 0)
    fresh["flags_ovh"][removed] = old["flags_ovh"][removed] & np.uint32(0xF0) | np.uint32(codec.DELETED)
    fresh["len"][removed] = fresh["offset"][removed] = 0
    kept = np.flatnonzero(fresh["len"])
    place = np.full(len(old), -1, np.int64)
    place[(rows["seq"] - np.uint64(first)).astype(np.int64)] = rows["offset"]
    wrong = place[kept] != old["offset"][kept]
    if wrong.any():
        raise ValueError(f"{int(wrong.sum())} frames do not verify")
    sizes = fresh["len"][kept].astype(np.int64)
    fresh["offset"][kept] = sizes.cumsum() - sizes
    view = memoryview(data)
    spans = zip(old["offset"][kept].tolist(), sizes.tolist(), strict=True)
    return fresh, b"".join(view[start : start + n] for start, n in spans)
