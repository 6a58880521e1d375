"""The files of one topic directory (06 §2, §8): their names, and how each is brought to disk.

    .idx, gap segment   tmp, fsync, rename [S-130]; `sync_dir` is the caller's, once for all names it changed
    .tag                tmp, rename, no sync: it is derived and its checksum tells [S-187]; synced once `.data` is cold
    .data               written by its owner through one descriptor from first write to last sync (13 §6)

A temporary file is always a new one: what an earlier attempt left may hold pages that a failed sync forgot. Stateless
but for the place it stands for; any thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from topics import paths
from topics.codec import segment as codec
from topics.codec.frame import Buffer, NotAFrame
from topics.codec.place import segment_mask, topic_mask
from topics.fs import File, Fs, close_quietly, pread_exact, pwrite_all
from topics.storage.reindex import Entries, find_frames, reindex

log = logging.getLogger("topics.storage")


class Present(NamedTuple):
    """Which files of a segment are there."""

    generations: list[int]
    """Of `.data`, ascending."""
    idx: bool
    tag: bool


class SegmentFiles:
    """The directory of one topic, seen as segment files."""

    __slots__ = ("dir", "fs", "mask", "topic_id")

    def __init__(self, fs: Fs, dir: str, topic_id: int) -> None:
        self.fs = fs
        self.dir = dir
        self.topic_id = topic_id
        self.mask = topic_mask(topic_id)

    def path(self, first: int, kind: paths.SegmentKind, generation: int = 0) -> str:
        """Where a file of the segment that starts at `first` is."""
        return f"{self.dir}/{paths.segment(first, kind, generation)}"

    def segment_mask(self, first: int) -> int:
        """Mask of a segment's `.idx` footer [S-135]."""
        return segment_mask(self.topic_id, first)

    def listing(self) -> dict[int, Present]:
        """The segment files that are there, by first seq, ascending; names that are not ours are left out [S-10]."""
        found: dict[int, Present] = {}
        for name in self.fs.listdir(self.dir):
            parsed = paths.parse_segment(name)
            if parsed is not None:
                known = found.setdefault(parsed.first_seq, Present([], False, False))
                if parsed.kind == "data":
                    known.generations.append(parsed.generation)
                else:
                    idx, tag = known.idx or parsed.kind == "idx", known.tag or parsed.kind == "tag"
                    found[parsed.first_seq] = Present(known.generations, idx, tag)
        for present in found.values():
            present.generations.sort()
        return dict(sorted(found.items()))

    def read(self, path: str, n: int | None = None, *, keep: bool = True) -> bytes | None:
        """The first `n` bytes of a file, or all of it; None if there is no such file. Without `keep` its pages may go.

        A read that ends early is an error: what looks like a short file could be taken for damage, and written back.
        """
        try:
            file = self.fs.open(path, "r")
        except FileNotFoundError:
            return None
        try:
            found = pread_exact(file, file.size() if n is None else min(n, file.size()), 0)
            if not keep:
                file.fadvise(0, len(found), "dontneed")
            return found
        finally:
            close_quietly(file)

    def size(self, path: str) -> int | None:
        """Bytes of a file, None if it is not there."""
        try:
            return self.fs.size(path)
        except FileNotFoundError:
            return None

    def create(self, path: str) -> File:
        """A new, empty file; one of that name is taken away first, so that no page of it is left."""
        self.remove(path)
        return self.fs.open(path, "create")

    def remove(self, path: str) -> bool:
        """Unlink; absent is fine. Whether there was something."""
        if not self.fs.exists(path):
            return False
        self.fs.remove(path)
        return True

    def write_idx(self, first: int, entries: Buffer, generation: int = 0, magic: bytes = codec.HOT) -> int:
        """Replace a sealed segment's `.idx`; returns the hash in its footer."""
        footer = codec.encode_footer(entries, self.segment_mask(first), magic, generation)
        return self.write_footed(first, bytes(entries) + footer)

    def write_footed(self, first: int, raw: Buffer) -> int:
        """Replace a sealed segment's `.idx` by these bytes, footer included; returns the hash in it."""
        self._replace(self.path(first, "idx"), raw, durable=True)
        return footer_hash(raw)

    def stage_idx(self, first: int, entries: Buffer, generation: int) -> int:
        """The first half of `write_idx`: the temporary file, synced; `commit_idx` is the other."""
        footer = codec.encode_footer(entries, self.segment_mask(first), codec.HOT, generation)
        self._stage(self.path(first, "idx"), bytes(entries) + footer, durable=True)
        return footer_hash(footer)

    def commit_idx(self, first: int) -> None:
        """The second half of `write_idx`: the rename."""
        path = self.path(first, "idx")
        self.fs.rename(paths.tmp(path), path)

    def write_plain_idx(self, first: int, entries: Buffer) -> None:
        """Replace an `.idx` by one without a footer: the segment is active (again)."""
        self._replace(self.path(first, "idx"), bytes(entries), durable=True)

    def write_gap(self, first: int, gap: codec.GapSegment) -> int:
        """The `.idx` of a gap segment [S-129]; returns the hash in its footer."""
        raw = codec.encode_gap(gap.seqs, gap.ts, gap.reason, self.segment_mask(first), gap.hops)
        self._replace(self.path(first, "idx"), raw, durable=True)
        return footer_hash(raw)

    def write_tag(self, first: int, raw: bytes | None, *, durable: bool = False) -> None:
        """The sidecar, or none where no record has a tag."""
        if raw is None:
            self.remove(self.path(first, "tag"))
        else:
            self._replace(self.path(first, "tag"), raw, durable)

    def write_data(self, path: str, raw: Buffer) -> None:
        """A whole `.data` file: tmp, fsync, rename."""
        self._replace(path, raw, durable=True)

    def sync_dir(self) -> None:
        """Make the names durable."""
        self.fs.sync_dir(self.dir)

    def _replace(self, path: str, raw: Buffer, durable: bool) -> None:
        self._stage(path, raw, durable)
        try:
            self.fs.rename(paths.tmp(path), path)
        except OSError:
            self._discard(paths.tmp(path))
            raise

    def _stage(self, path: str, raw: Buffer, durable: bool) -> None:
        tmp = paths.tmp(path)
        file = self.create(tmp)
        try:
            pwrite_all(file, raw, 0)
            if durable:
                file.fsync()
        except OSError:
            self._discard(tmp)
            raise
        finally:
            close_quietly(file)

    def _discard(self, path: str) -> None:
        try:
            self.remove(path)
        except OSError as error:
            log.warning("left behind by a failed write: %s", error)


def footer_hash(idx: Buffer) -> int:
    """The hash in the footer at the end of these bytes, as snapshot rows carry it (06 §13)."""
    return int.from_bytes(bytes(memoryview(idx)[-8:]), "little")


def entries_in(idx: Buffer, n: int) -> Entries:
    """The first `n` entries of an `.idx`."""
    return np.frombuffer(idx, codec.IDX, n)


def verified(files: SegmentFiles, first: int, idx: Buffer) -> codec.Footer | None:
    """The footer of a whole `.idx` if it verifies as this segment's."""
    try:
        return codec.read_footer(idx, files.segment_mask(first))
    except NotAFrame as error:
        log.error("topic %d, segment %d: %s", files.topic_id, first, error)
        return None


def load_entries(files: SegmentFiles, first: int, n: int, generation: int, *, has_data: bool, told: bool) -> Entries:
    """A copy of a sealed segment's entries as they are on disk, or made from its `.data` if they do not verify."""
    raw = files.read(files.path(first, "idx")) or b""
    footer = verified(files, first, raw)
    if footer is not None and (footer.n, footer.generation) == (n, generation):
        return entries_in(raw, n).copy()
    old = entries_in(raw, min(n, len(raw) // codec.ENTRY_BYTES))
    data = (files.read(files.path(first, "data", generation)) or b"") if has_data else b""
    frames = find_frames(data, files.mask, first, first + n - 1)
    return reindex(data, frames, first, n, old, told=told).entries
