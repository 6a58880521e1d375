"""Opening a topic's segments after any end of the last run (06 §14 step 5): accept, cut, rebuild, and say what is gone.

Given the newest claim of the active segment [S-44] and the snapshot's rows, for each segment found:

    above `ckpt_seq`          unlinked, unless an `attach` mark names it: the WAL has its records
    sealed, as in its row     taken as it is; its footer is verified when it is brought in
    sealed, else              footer verified; other generations of its `.data` unlinked [S-283]
    sealed, not verifying     `.idx` made from the highest generation whose frames verify [S-130]
    active                    the claimed entries if their hash is right, else made from `.data`; delete marks as the
                              bytes in `.data` say; everything behind the claimed part is cut off
    without its `.data`       a stub if nothing in it is live, else *lost* [S-250]
    cold                      its `.idx` says so; one that is lost is asked for in the tier, else *unindexed* [S-316]
    nothing to go by          left alone and not taken: its seqs are *missing*; below the floor: unlinked [S-275]

What is lost or missing is reported and stays readable as damage or absent until the caller has refilled it from the WAL
(`Cycle.insert`) or given it up (`give_up`, `Cycle.insert_gap`). Repeating it gives the same result [S-249]. Names that
are not ours are never touched [S-10]. An error of the disk comes through: no topic opens over what could not be read
[S-248]. One thread, before the topic is used.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from topics import paths
from topics.codec import segment as codec
from topics.codec import snapshot
from topics.codec.frame import NotAFrame
from topics.codec.snapshot import SegmentRow
from topics.fs import Fs, close_quietly, pread_exact
from topics.storage.descriptor import Claim, Limits, Segment, gap_segment
from topics.storage.maps import MapCache
from topics.storage.reindex import Entries, Frames, Range, Reindexed, data_end, find_frames, live_of, reindex, stats
from topics.storage.segfile import Present, SegmentFiles, entries_in, footer_hash, verified
from topics.storage.segments import TopicSegments
from topics.storage.tiers.relocation import LostParts

log = logging.getLogger("topics.storage")


class Report(NamedTuple):
    """What a start-up found out about one topic's segments. Empty but for `removed`: nothing was damaged."""

    missing: tuple[Range, ...]
    """Seqs from the floor to `ckpt_seq` that no segment holds."""
    lost: tuple[int, ...]
    """First seqs of segments whose `.data` is gone and needed."""
    rebuilt: tuple[int, ...]
    """First seqs of segments whose `.idx` was made from `.data`."""
    given_up: tuple[Range, ...]
    """Seqs that became holes (or silent, by class) while rebuilding."""
    revived: int
    """Delete marks that `.data` contradicts: cleared, counted as damage."""
    strays: tuple[int, ...]
    """First seqs of files inside another segment's range: left alone."""
    removed: tuple[str, ...]
    """Names of files unlinked: not claimed, superseded or temporary."""


class Opened(NamedTuple):
    """A topic's segments and how they were found."""

    segments: TopicSegments
    report: Report


def open_segments(
    fs: Fs,
    dir: str,
    topic_id: int,
    maps: MapCache,
    limits: Limits,
    *,
    ckpt_seq: int,
    claim: Claim,
    rows: Iterable[SegmentRow] = (),
    floor: int = 1,
    told: bool = True,
    attached: Collection[int] = (),
    lost: LostParts | None = None,
) -> Opened:
    """Open a topic directory; `floor` is the highest of evict floor, `delete_below` and the topic's first seq.

    Without a claim (nothing of the topic was ever checkpointed) give `ckpt_seq` 0 and `NO_CLAIM`. `lost` asks the cold
    tier, if there is one.
    """
    opened = TopicSegments(fs, dir, topic_id, maps, limits, told=told)
    lost = lost or LostParts(None, "")
    opened.reader.lost_tags = lost.tags
    opening = _Opening(opened.files, claim, floor, told, lost)
    found = opening.run(ckpt_seq, {row.first: row for row in rows}, attached)
    opened.adopt(found, ckpt_seq + 1)
    if opening.mended_active:
        opened.mend_active()
    return Opened(opened, opening.report(opened.missing(floor, ckpt_seq)))


NO_CLAIM = Claim.of(1, 0, b"")
"""Of a topic that was never checkpointed."""


NOTHING = Present([], False, False)


class _Opening:
    """One opening of one directory."""

    def __init__(self, files: SegmentFiles, claim: Claim, floor: int, told: bool, lost: LostParts) -> None:
        self._files = files
        self._tier = lost
        self._claim = claim
        self._floor = floor
        self._told = told
        self._lost: list[int] = []
        self._rebuilt: list[int] = []
        self._given_up: list[Range] = []
        self._revived = 0
        self._strays: list[int] = []
        self._removed: list[str] = []
        self._names_changed = False
        self.mended_active = False
        """The active segment's entries were made from `.data`; on disk they stay as they are until the next cycle.

        Were they written now, a second start would hold them against the old claim and judge otherwise [S-249].
        """

    def report(self, missing: tuple[Range, ...]) -> Report:
        made = (tuple(self._lost), tuple(self._rebuilt), tuple(self._given_up), self._revived, tuple(self._strays))
        report = Report(missing, *made, tuple(self._removed))
        if any(report[:-1]):
            log.error("topic %d: segments are damaged: %s", self._files.topic_id, report)
        return report

    def run(self, ckpt_seq: int, rows: dict[int, SegmentRow], attached: Collection[int]) -> list[Segment]:
        self._tidy()
        listing = self._files.listing()
        for first in [first for first in listing if first > ckpt_seq and first not in attached]:
            self._unlink(first, listing.pop(first))
        for row in rows.values():
            if row.first not in listing and self._is_due(row, ckpt_seq) and self._is_cold(row, NOTHING):
                listing[row.first] = NOTHING
        listing = dict(sorted(listing.items()))
        segments: list[Segment] = []
        firsts = list(listing)
        for at, first in enumerate(firsts):
            if (segments and first <= segments[-1].last) or self._in_active(first):
                self._strays.append(first)
                continue
            behind = firsts[at + 1] if at + 1 < len(firsts) else ckpt_seq + 1
            segment = self._open(first, listing[first], rows.get(first), behind - first)
            if segment is not None:
                # Whether the copy has the deletes of the stub is for the relocator to find out [S-315].
                segment.behind = segment.cold and not segment.unindexed and segment.live < segment.n
                segments.append(segment)
        if self._names_changed:
            self._files.sync_dir()
        return segments

    def _is_due(self, row: SegmentRow, ckpt_seq: int) -> bool:
        """Whether a sealed segment that a snapshot names has to be there."""
        return bool(row.flags & snapshot.SEALED) and row.first <= ckpt_seq and row.first + row.count > self._floor

    def _in_active(self, first: int) -> bool:
        """Whether a segment begins inside the claimed one, which no cycle leaves behind."""
        return self._claim.first < first < self._claim.first + self._claim.entries

    def _open(self, first: int, present: Present, row: SegmentRow | None, n: int) -> Segment | None:
        if first == self._claim.first and self._claim.entries:
            return self._active(first, present)
        if row is not None and row.flags & snapshot.SEALED:
            quick = self._as_in_row(row, present)
            if quick is not None:
                return quick
            n = row.count
        return self._sealed(first, present, n, row)

    def _tidy(self) -> None:
        """Unlink what writes that were cut short left (06 §14 step 2)."""
        for name in self._files.fs.listdir(self._files.dir):
            target = paths.parse_tmp(name)
            if target is not None and (target == paths.TOPIC_FILE or paths.parse_segment(target) is not None):
                self._remove(f"{self._files.dir}/{name}")

    def _remove(self, path: str) -> None:
        if self._files.remove(path):
            self._removed.append(path.rpartition("/")[2])
            self._names_changed = True

    def _unlink(self, first: int, present: Present) -> None:
        for generation in present.generations:
            self._remove(self._files.path(first, "data", generation))
        self._remove(self._files.path(first, "tag"))
        self._remove(self._files.path(first, "idx"))

    def _as_in_row(self, row: SegmentRow, present: Present) -> Segment | None:
        """A sealed segment whose files have the sizes and the hash of its row; its entries are not read."""
        files, size = self._files, (row.count + 1) * codec.ENTRY_BYTES
        path = files.path(row.first, "idx")
        is_cold = bool(row.flags & snapshot.COLD)
        if row.flags & snapshot.GAP or len(present.generations) != (not is_cold) or files.size(path) != size:
            return None
        if is_cold and not row.live:
            return None  # dead, or its index was lost when it was counted: what lives in it would be dropped
        footer = self._tail(path, size)
        generation = int.from_bytes(footer[4:6], "little")
        if footer[:4] != (codec.COLD if is_cold else codec.HOT) or footer_hash(footer) != row.idx_xxh3:
            return None
        if not is_cold:
            data = files.path(row.first, "data", generation)
            if present.generations != [generation] or (files.size(data) or 0) < row.data_len:
                return None
        segment = Segment(row.first, row.count, row.data_len)
        segment.sealed, segment.generation, segment.idx_xxh3 = True, generation, row.idx_xxh3
        segment.cold = is_cold
        segment.live, segment.live_bytes = row.live, row.live_bytes
        return segment

    def _tail(self, path: str, size: int) -> bytes:
        file = self._files.fs.open(path, "r")
        try:
            return pread_exact(file, codec.ENTRY_BYTES, size - codec.ENTRY_BYTES)
        finally:
            close_quietly(file)

    def _sealed(self, first: int, present: Present, n: int, row: SegmentRow | None = None) -> Segment | None:
        """A sealed segment by its own files; `n` counts only where its footer does not."""
        files = self._files
        raw = files.read(files.path(first, "idx")) or b""
        footer = verified(files, first, raw)
        if footer is None:
            if first + n > self._floor and row is not None and self._is_cold(row, present):
                return self._without_stub(row)
            if first + n > self._floor:
                return self._reindexed(first, present, n, raw, trusted=False)
            self._unlink(first, present)  # an interrupted drop, or an orphan [S-274, S-275]
            return None
        if footer.magic == codec.GAP:
            return self._gap(first, raw)
        entries = entries_in(raw, footer.n)
        segment = _described(first, entries, footer_hash(raw), footer.generation)
        if footer.magic == codec.COLD and footer.generation not in present.generations:
            # What else is here was on its way to take its place, and did not get that far [S-285].
            self._unlink_others(first, present, footer.generation)
            segment.cold = True
            return segment
        if footer.generation in present.generations:
            size = files.size(files.path(first, "data", footer.generation)) or 0
            if size >= segment.data_len:
                self._unlink_others(first, present, footer.generation)
                return segment
        if present.generations:
            return self._reindexed(first, present, footer.n, raw, trusted=True)
        return self._without_data(segment, entries)

    def _is_cold(self, row: SegmentRow, present: Present) -> bool:
        """Whether the frames of a segment without a valid `.idx` are in the cold tier, or may be."""
        if present.generations or row.flags & snapshot.GAP:
            return False
        return bool(row.flags & snapshot.COLD) or self._tier.may_have(self._files, row.first)

    def _without_stub(self, row: SegmentRow) -> Segment:
        """A cold segment whose `.idx` is lost: the tier's, if it is the one the row names, else none [S-316]."""
        segment = Segment(row.first, row.count, row.data_len)
        segment.sealed, segment.cold, segment.idx_xxh3 = True, True, row.idx_xxh3
        raw = self._tier.stub(self._files, segment)
        if raw is None:
            log.error("topic %d: the index of cold segment %d is lost", self._files.topic_id, row.first)
            segment.unindexed = True
            return segment
        self._files.write_footed(row.first, raw)
        self._names_changed = True
        footer = verified(self._files, row.first, raw)
        assert footer is not None
        segment = _described(row.first, entries_in(raw, footer.n), footer_hash(raw), footer.generation)
        segment.cold = True
        return segment

    def _gap(self, first: int, raw: bytes) -> Segment | None:
        try:
            return gap_segment(first, codec.read_gap(raw, self._files.segment_mask(first)), footer_hash(raw))
        except NotAFrame as error:
            log.error("topic %d, segment %d: %s", self._files.topic_id, first, error)
            return None

    def _unlink_others(self, first: int, present: Present, generation: int) -> None:
        for other in present.generations:
            if other != generation:
                self._remove(self._files.path(first, "data", other))

    def _without_data(self, segment: Segment, entries: Entries) -> Segment:
        """A dead stub, or a lost segment if anything at or above the floor is live [S-250]."""
        needed = live_of(entries)[max(self._floor - segment.first, 0) :]
        segment.lost = bool(needed.any())
        segment.stub = not segment.lost
        if segment.lost:
            self._lost.append(segment.first)
        return segment

    def _reindexed(self, first: int, present: Present, n: int, raw: bytes, *, trusted: bool) -> Segment | None:
        """The segment from its `.data`, with a new footed `.idx`; None if not one frame is left to go by [S-130]."""
        scans = [self._frames(first, n, generation) for generation in reversed(present.generations)]
        if not any(len(frames.rows) for _, frames, _ in scans):
            return None if not trusted else self._unreadable(first, raw, n)
        best = next((scan for scan in scans if scan[1].whole), max(scans, key=lambda scan: len(scan[1].rows)))
        data, frames, generation = best
        if not trusted:  # what lies behind the last frame and the old file is missing, not a hole of any length
            n = min(n, max(int(frames.rows["seq"][-1]) - first + 1, len(raw) // codec.ENTRY_BYTES))
        older = next((found for _, found, other in scans if other < generation), None)
        old = entries_in(raw, min(n, len(raw) // codec.ENTRY_BYTES))
        made = reindex(data, frames, first, n, old, trusted=trusted, older=older, told=self._told)
        self._note(first, made)
        idx_xxh3 = self._files.write_idx(first, made.entries.tobytes(), generation)
        self._names_changed = True
        return _described(first, made.entries, idx_xxh3, generation)

    def _frames(self, first: int, n: int, generation: int) -> tuple[bytes, Frames, int]:
        data = self._files.read(self._files.path(first, "data", generation)) or b""
        return data, find_frames(data, self._files.mask, first, first + n - 1), generation

    def _unreadable(self, first: int, raw: bytes, n: int) -> Segment:
        """A verified `.idx` over data that holds no frame of it: as good as gone."""
        entries = entries_in(raw, n)
        return self._without_data(_described(first, entries, footer_hash(raw), 0), entries)

    def _note(self, first: int, made: Reindexed) -> None:
        self._rebuilt.append(first)
        self._given_up += made.given_up
        self._revived += made.revived

    def _active(self, first: int, present: Present) -> Segment | None:
        """The claimed segment: its claimed part, nothing behind it."""
        files, claim = self._files, self._claim
        raw = files.read(files.path(first, "idx")) or b""
        data = files.read(files.path(first, "data"), claim.data_len) or b""
        old = entries_in(raw, min(claim.entries, len(raw) // codec.ENTRY_BYTES))
        intact = len(old) == claim.entries and codec.claim_xxh3(old) == claim.idx_xxh3
        footer = None if intact else verified(files, first, raw)
        if footer is not None and footer.n == claim.entries:
            # An earlier start found it damaged and said what is left of it: that stands [S-249].
            return self._sealed(first, present, claim.entries)
        if intact and data_end(old) <= len(data):
            entries = self._witnessed(first, old, data)
        else:
            frames = find_frames(data, files.mask, first, first + claim.entries - 1)
            if not len(frames.rows):
                return self._claimed_without_data(first, old) if intact else None
            made = reindex(data, frames, first, claim.entries, old, trusted=intact, told=self._told)
            self._note(first, made)
            entries = made.entries
            self.mended_active = True
        return self._cut(first, entries, raw, present)

    def _witnessed(self, first: int, old: Entries, data: bytes) -> Entries:
        """The claimed entries with the delete marks that `.data` confirms (06 §14 step 5).

        Only the frame of a record speaks for it: where another one lies, as in a file of another topic, marks stay.
        """
        entries = old.copy()
        marked, deleted = entries["flags"] & codec.DELETED != 0, codec.deleted_by_witness(entries, data)
        for rel in np.flatnonzero(marked != deleted).tolist():
            if not self._is_there(first + rel, entries[rel], data):
                deleted[rel] = marked[rel]
        self._revived += int((marked & ~deleted).sum())
        plain = entries["flags"] & np.uint8(0xFF ^ codec.DELETED)
        entries["flags"] = plain | np.where(deleted, np.uint8(codec.DELETED), np.uint8(0))
        return entries

    def _is_there(self, seq: int, entry: np.void, data: bytes) -> bool:
        offset = int(entry["offset"])
        try:
            return codec.decode(data, offset, seq, self._files.mask).end == offset + int(entry["len"])
        except NotAFrame:
            return False

    def _claimed_without_data(self, first: int, entries: Entries) -> Segment:
        """It cannot grow any more: sealed as it is [S-134]."""
        idx_xxh3 = self._files.write_idx(first, entries.tobytes())
        self._names_changed = True
        return self._without_data(_described(first, entries, idx_xxh3, 0), entries)

    def _cut(self, first: int, entries: Entries, raw: bytes, present: Present) -> Segment:
        """Leave the claimed part on disk and nothing behind it (S-60).

        The segment is active, also if it was sealed without a mark: as long as the newest claim names it, its files are
        judged by that claim, so nothing may come between them, as a rewrite would.
        """
        files, packed = self._files, entries.tobytes()
        segment = _described(first, entries, 0, 0)
        files.fs.point("recovery.before_cut")
        if 0 in present.generations:
            self._truncate(files.path(first, "data"), segment.data_len)
        else:
            close_quietly(files.create(files.path(first, "data")))
            self._names_changed = True
        if raw[: len(packed)] == packed:
            self._truncate(files.path(first, "idx"), len(packed))
        elif not self.mended_active:
            files.write_plain_idx(first, packed)
            self._names_changed = True
        self._remove(files.path(first, "tag"))
        segment.sealed, segment.entries = False, bytearray(packed)
        return segment

    def _truncate(self, path: str, size: int) -> None:
        file = self._files.fs.open(path, "rw")
        try:
            if file.size() > size:
                file.truncate(size)
                file.fsync()
        finally:
            close_quietly(file)


def _described(first: int, entries: Entries, idx_xxh3: int, generation: int) -> Segment:
    """The descriptor of a sealed segment with these entries, counted."""
    segment = Segment(first, len(entries), data_end(entries))
    segment.learn(stats(entries))
    segment.sealed, segment.idx_xxh3, segment.generation = True, idx_xxh3, generation
    return segment
