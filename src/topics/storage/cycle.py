"""One checkpoint cycle of one topic, steps 2 to 4 (06 §12): frames into the active segment, marks to disk, syncs.

    prepare                    first of all: what an abandoned cycle left is taken back
    append, append_run, seal   step 2, in ascending seq order; `seal` makes its segment durable by itself [S-128]
    sync                       steps 3 and 4: delete bytes, `.data` syncs, then `.idx`, then the directory [S-190]
    claim                      what the mark of step 5 may say; right only after `sync`

Nothing of a cycle counts before its mark is durable: the owner sees it at `TopicSegments.commit`. A cycle that fails is
abandoned; the next one begins at the claimed end again and takes back what is beyond it. If a *sync* of the active
segment failed, its pages are not trusted: the claimed part is cut off and sealed, the rest goes to a new one [S-195].

The directory is synced once, at the end: until the mark nobody relies on a name. Delete bytes go through a file opened
for the descriptor's generation while the segment is busy, so no rewrite can receive them [S-197]. A cycle holds one
descriptor of the active `.data` from first write to last sync (13 §6), at most one other, and copies: any thread, one
at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topics.codec import segment as codec
from topics.codec.frame import Buffer
from topics.codec.segment import GapSegment
from topics.fs import File, close_quietly, pwrite_all
from topics.storage import tags
from topics.storage.descriptor import Claim, Limits, MarkedSegment, Marks, OpenSegment, seal_due
from topics.storage.reindex import DAMAGE, Entries, find_frames, live_of
from topics.storage.segfile import SegmentFiles, load_entries


class CycleInput(NamedTuple):
    """What the owner hands over when a cycle begins."""

    files: SegmentFiles
    limits: Limits
    next_seq: int
    active: OpenSegment | None
    marked: Sequence[MarkedSegment]
    strays: frozenset[int]
    """Segments that abandoned cycles made."""
    reset: bool
    """An abandoned cycle may have left more on disk than is claimed."""
    untrusted: bool
    """A sync of the active segment failed."""
    names_unsure: bool
    """The files found at the start may be under names that are not durable: a killed run renamed them."""
    told: bool


class Cycle:
    """A cycle. Invariant: `made` and the current segment hold all seqs from the claimed end to `next_seq`."""

    __slots__ = (
        "_current", "_file", "_names_changed", "_prepared", "complete", "created", "give_way", "input", "made",
        "replaced", "untrusted",
    )  # fmt: skip

    def __init__(self, given: CycleInput) -> None:
        self.input = given
        self.made: list[OpenSegment] = []
        """Segments it has finished, the one it was given among them."""
        self.created: set[int] = set()
        """Segments it has put on disk that were not there."""
        self.replaced: dict[int, int] = {}
        """Footer hashes of `.idx` files it has replaced."""
        self.untrusted = False
        self.complete = False
        self.give_way: Callable[[], None] = lambda: None
        """Called between two stretches; none needs the processor for much more than a millisecond."""
        self._current = given.active and OpenSegment(
            given.active.first, given.active.data_len, given.active.entries, given.active.marks
        )
        self._file: File | None = None
        self._names_changed = given.reset or given.names_unsure
        self._prepared = False

    @property
    def next_seq(self) -> int:
        """The seq that comes next, or the first that may."""
        if self._current is not None:
            return self._current.first + self._current.n
        return max([self.input.next_seq, *(made.first + made.n for made in self.made)])

    @property
    def data_len(self) -> int:
        """Where the next frame goes in `.data`: the `at` of `reframe`."""
        assert self._prepared
        return self._current.data_len if self._current else 0

    @property
    def entries(self) -> int:
        """Entries in the segment that is being written."""
        assert self._prepared
        return self._current.n if self._current else 0

    def due(self, now_ms: int) -> bool:
        """Whether the segment is to be sealed before another entry [S-127]."""
        current = self._current
        if current is None or not current.n:
            return False
        return seal_due(current.n, current.data_len, current.first_ts, now_ms, self.input.limits)

    def append(self, first_seq: int, data: Buffer, idx: Buffer) -> None:
        """Write frames and take their entries, fillers among them; offsets count from `data_len`."""
        assert self._prepared
        current = self._current or self._start(first_seq)
        added = np.frombuffer(idx, codec.IDX)
        assert first_seq == current.first + current.n, f"seq {first_seq} behind {current.first} + {current.n}"
        assert current.n + len(added) <= self.input.limits.max_events or not current.n
        ends = int(added["offset"][-1]) + int(added["len"][-1])
        assert ends in (0, current.data_len + len(data)) or not added["len"][-1], "they do not belong together"
        if len(data):
            pwrite_all(self._data(), data, current.data_len)
        current.data_len += len(data)
        current.entries += idx

    def append_run(self, first_seq: int, count: int, ts: int, reason: int = 0, hops: int = 0) -> None:
        """Add dead seqs: entries, or gap segments if they are many [S-129]; reason 0 is silent."""
        assert self._prepared
        if count > self.input.limits.max_run:
            self._append_gaps(first_seq, count, ts, reason, hops)
            return
        while count:
            if self.entries >= self.input.limits.max_events:
                self.seal()
            n = min(count, self.input.limits.max_events - self.entries)
            self.append(first_seq, b"", codec.fillers(n, ts, reason, hops))
            first_seq += n
            count -= n

    def _append_gaps(self, first_seq: int, count: int, ts: int, reason: int, hops: int) -> None:
        if self.entries:
            self.seal()
        assert first_seq >= self.next_seq
        while count:
            n = min(count, codec.GAP_SEQS_MAX)
            self.insert_gap(first_seq, GapSegment(n, ts, reason, hops))
            first_seq += n
            count -= n

    def seal(self) -> None:
        """Make the current segment durable with a footer and tags; the next entry begins a new one [S-128]."""
        assert self._prepared
        current = self._current
        assert current is not None
        assert current.n, "an empty segment is not sealed"
        file, files = self._data(), self.input.files
        _write_delete_bytes(file, current.array(), current.marks)
        self._sync_active(file)
        self.give_way()
        self._names_changed = True
        current.idx_xxh3 = files.write_idx(current.first, current.entries)
        self.give_way()
        files.write_tag(current.first, self._tag(current))
        current.sealed = True
        self._finish(current)
        self.give_way()

    def insert(self, first_seq: int, data: Buffer, idx: Buffer) -> None:
        """A sealed segment of its own, in a range that was missing or lost [S-250]; offsets count from 0."""
        assert self._prepared
        files = self.input.files
        made = OpenSegment(first_seq, len(data), idx)
        self.created.add(first_seq)
        self._names_changed = True
        files.write_data(files.path(first_seq, "data"), data)
        made.idx_xxh3 = files.write_idx(first_seq, idx)
        files.write_tag(first_seq, tags.encode_sidecar(_tags(data, made), files.topic_id, first_seq))
        made.sealed = True
        made.counted()
        self.made.append(made)

    def insert_gap(self, first_seq: int, gap: GapSegment) -> None:
        """A gap segment [S-129]."""
        assert self._prepared
        made = OpenSegment(first_seq)
        self.created.add(first_seq)
        self._names_changed = True
        made.gap, made.sealed = gap, True
        files = self.input.files
        made.idx_xxh3 = files.write_gap(first_seq, gap)
        for kind in ("data", "tag"):  # what is left of a segment that could not be saved
            files.remove(files.path(first_seq, kind))
        self.made.append(made)

    def sync(self) -> None:
        """Bring everything to disk: `.data` before the `.idx` that points to it, names last [S-190]."""
        assert self._prepared
        assert not self.complete, "the cycle is over"
        fs = self.input.files.fs
        current, given = self._current, self.input.active
        changed = current is not None and (given is None or current.first != given.first or self._grew(given))
        if current is not None and changed:
            _write_delete_bytes(self._data(), current.array(), current.marks)
        fs.point("ckpt.after_data")
        if changed:
            self._sync_active(self._data())
        for one in self.input.marked:
            self._flag_sealed(one)
        fs.point("ckpt.after_data_sync")
        if current is not None and changed:
            self._write_active_idx(current, given)
        for one in self.input.marked:
            self._replace_sealed(one)
        if self._names_changed:
            self.input.files.sync_dir()
        fs.point("ckpt.after_idx")
        if current is not None:
            self._finish(current)
        self.complete = True

    def claim(self) -> Claim:
        """What is durable of the active segment once `sync` is done."""
        assert self.complete
        for made in self.made:
            if not made.sealed:
                return Claim.of(made.first, made.data_len, made.entries)
        return Claim.of(self.next_seq, 0, b"")

    def prepare(self, give_way: Callable[[], None] = lambda: None) -> None:
        """Take back what an abandoned cycle left [S-195]; `entries` and `data_len` are right only after it."""
        assert not self._prepared
        self.give_way = give_way
        given, files = self.input, self.input.files
        for first in given.strays:
            for kind in ("data", "tag", "idx"):
                files.remove(files.path(first, kind))
        current = self._current
        if current is not None and given.reset:
            file = self._data()
            if file.size() > current.data_len:
                file.truncate(current.data_len)
            files.remove(files.path(current.first, "tag"))
        self._prepared = True
        if current is not None and given.untrusted:
            self.untrusted = True  # until it has been sealed: only then its pages do not matter any more
            self.seal()
            self.untrusted = False

    def close(self) -> None:
        """Let go of the files; again is fine."""
        file, self._file = self._file, None
        if file is not None:
            close_quietly(file)

    def _grew(self, given: OpenSegment) -> bool:
        assert self._current is not None
        return self._current.n > given.n or bool(len(given.marks)) or self.input.reset

    def _start(self, first_seq: int) -> OpenSegment:
        assert first_seq >= self.next_seq, f"seq {first_seq} is held already"
        files = self.input.files
        self.created.add(first_seq)
        self._names_changed = True
        self._file = files.create(files.path(first_seq, "data"))
        files.remove(files.path(first_seq, "tag"))
        files.remove(files.path(first_seq, "idx"))
        self._current = OpenSegment(first_seq)
        return self._current

    def _data(self) -> File:
        """The open `.data` of the current segment."""
        if self._file is None:
            assert self._current is not None
            self._file = self.input.files.fs.open(self.input.files.path(self._current.first, "data"), "rw")
        return self._file

    def _sync_active(self, file: File) -> None:
        try:
            file.fdatasync()
        except OSError:
            self.untrusted = True
            raise

    def _finish(self, current: OpenSegment) -> None:
        current.counted()
        self.made.append(current)
        self.close()
        self._current = None

    def _tag(self, current: OpenSegment) -> bytes | None:
        if not (current.array()["flags"] & codec.HAS_TAG).any():
            return None
        files = self.input.files
        data = files.read(files.path(current.first, "data"), current.data_len) or b""
        try:
            found = _tags(data, current)
        except ValueError:  # a damaged frame is told when it is read; the others keep their tags
            found = tags.tags_of(data, find_frames(data, files.mask, current.first, current.first + current.n - 1).rows)
        return tags.encode_sidecar(found, files.topic_id, current.first)

    def _flag_sealed(self, one: MarkedSegment) -> None:
        """Write and sync the delete bytes of a sealed segment."""
        if not one.has_data or not len(one.marks):
            return
        files = self.input.files
        entries = load_entries(files, one.first, one.n, one.generation, has_data=True, told=self.input.told)
        file = files.fs.open(files.path(one.first, "data", one.generation), "rw")
        try:
            _write_delete_bytes(file, entries, one.marks)
            file.fdatasync()
        finally:
            close_quietly(file)

    def _replace_sealed(self, one: MarkedSegment) -> None:
        """Replace a sealed `.idx`: what is on disk, and the marks this cycle was given [S-158]."""
        files, told = self.input.files, self.input.told
        entries = one.entries
        if entries is None:
            entries = load_entries(files, one.first, one.n, one.generation, has_data=one.has_data, told=told)
            entries["flags"][one.marks] |= np.uint8(codec.DELETED)
        if one.given_up:
            give_up(entries, told=told)
        magic = codec.COLD if one.cold else codec.HOT
        self.replaced[one.first] = files.write_idx(one.first, entries.tobytes(), one.generation, magic)
        self._names_changed = True

    def _write_active_idx(self, current: OpenSegment, given: OpenSegment | None) -> None:
        files = self.input.files
        path = files.path(current.first, "idx")
        known = given.n if given is not None and given.first == current.first and not self.input.reset else 0
        if not known or files.size(path) != known * codec.ENTRY_BYTES:
            self._names_changed = True
            files.write_plain_idx(current.first, current.entries)
            return
        low = min(int(current.marks[0]) if len(current.marks) else known, known) * codec.ENTRY_BYTES
        file = files.fs.open(path, "rw")
        try:
            pwrite_all(file, memoryview(current.entries)[low:], low)
            self._sync_active(file)
        finally:
            close_quietly(file)


def give_up(entries: Entries, *, told: bool) -> None:
    """Mark what is live as lost by damage, or silently dead; `len` 0, because there is no frame any more [S-250]."""
    live = live_of(entries)
    hops = entries["flags_ovh"][live] & np.uint32(0xF0)
    entries["flags_ovh"][live] = hops | np.uint32(codec.LOST | DAMAGE << 8 if told else codec.DELETED)
    rest = (entries["len"] != 0) & ~live
    entries["flags_ovh"][rest] = entries["flags_ovh"][rest] & np.uint32(0xF0) | np.uint32(codec.DELETED)
    entries["len"] = entries["offset"] = 0


def _tags(data: Buffer, made: OpenSegment) -> dict[bytes, array[int]]:
    return tags.tags_of_entries(data, made.array(), made.first)


def _write_delete_bytes(file: File, entries: Entries, marks: Marks) -> None:
    """The delete byte of each marked frame, one byte each [S-120]."""
    framed = entries[marks]
    framed = framed[framed["len"] != 0]
    deleted = bytes([codec.DELETE_BYTE])
    for at in (framed["offset"].astype(np.int64) + framed["len"] - 1).tolist():
        pwrite_all(file, deleted, at)
