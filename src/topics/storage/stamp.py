"""Staged records become sealed segments (06 §15.6, S-288 step 2): stamped, indexed, tagged, synced.

    in     staged chunks of one topic (codec/part.py), in the order in which their records get seqs
    out    `seg-N.data`, footed `seg-N.idx` and `seg-N.tag` in a directory of their own, as a checkpoint writes them;
           at most `max_bytes` of data each, unless one frame is larger; the limit of entries does not apply

Every file is synced, then the directory: what an `attach` mark names must be whole before the mark. Memory: a few
megabytes of frames, the entries and the tags of one segment. What to do with the directory of a run that failed is the
caller's business. Nothing of the engine is touched: any thread, any process.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from topics.codec import part
from topics.codec import stamp as codec
from topics.codec.frame import NotAFrame
from topics.codec.segment import HAS_TAG, ovh
from topics.fs import File, Fs, close_quietly, pread_exact, pwrite_all
from topics.storage import tags
from topics.storage.reindex import Entries
from topics.storage.segfile import SegmentFiles

BATCH_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 8 << 20
"""Of `.data` that wait for their sync: a large one would make every sync of the WAL wait behind it."""


class StagedChunk(msgspec.Struct, frozen=True, array_like=True):
    """Where a chunk of a part is, and what tells that it is that chunk."""

    path: str
    offset: int
    size: int
    digest: bytes


class Stamping(msgspec.Struct, frozen=True, array_like=True):
    """What is to be made for one topic."""

    topic_id: int
    first_seq: int
    ts: int
    dir: str
    """Where the segments go; it is there and empty."""
    max_bytes: int
    chunks: tuple[StagedChunk, ...]


class Stamped(msgspec.Struct, frozen=True, array_like=True):
    """One segment that was made."""

    first: int
    count: int
    data_len: int
    idx_xxh3: int
    accounted: int
    tagged: bool


Tell = Callable[[int], None]
"""Told how many more bytes are done; what it raises ends the work."""


def stamp(fs: Fs, given: Stamping, tell: Tell) -> list[Stamped]:
    """Make the segments of one topic; `OSError` if the disk fails or a part is not what was staged."""
    files = SegmentFiles(fs, given.dir, given.topic_id)
    made: list[Stamped] = []
    current: _Segment | None = None
    seq = given.first_seq
    try:
        for frames, begins in _batches(fs, given.chunks):
            entries = codec.stamp(frames, begins, seq, given.ts, files.mask)
            low = 0
            while low < len(entries):
                current = current or _Segment(files, seq + low)
                high = low + current.room(entries["len"][low:], given.max_bytes)
                if high > low:
                    current.add(frames, entries[low:high])
                    low = high
                else:
                    made.append(current.seal())
                    current = None
            seq += len(entries)
            tell(len(frames))
        if current is not None:
            made.append(current.seal())
            current = None
    except NotAFrame as error:
        raise OSError(errno.EIO, f"a staged chunk holds what is no frame: {error}") from error
    finally:
        if current is not None:
            current.close()
    files.sync_dir()
    return made


def _batches(fs: Fs, chunks: tuple[StagedChunk, ...]) -> Iterator[tuple[bytearray, list[int]]]:
    """Frames, a few megabytes at a time, and where each begins; small chunks are put together."""
    batch, begins = bytearray(), list[int]()
    with _Parts(fs) as parts:
        for chunk in chunks:
            data = parts.read(chunk)
            begins += [len(batch) + at for at in part.places(data)]
            batch += data
            if len(batch) >= BATCH_BYTES:
                yield batch, begins
                batch, begins = bytearray(), []
    if batch:
        yield batch, begins


class _Parts:
    """The part files, one open at a time: chunks of a part mostly follow each other."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._path = ""
        self._file: File | None = None

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            close_quietly(self._file)

    def read(self, chunk: StagedChunk) -> bytes:
        """A chunk as it was staged; a file that holds anything else is an error, never other rows."""
        if self._file is None or self._path != chunk.path:
            if self._file is not None:
                close_quietly(self._file)
            self._file = None
            self._file, self._path = self._fs.open(chunk.path, "r"), chunk.path
        data = pread_exact(self._file, chunk.size, chunk.offset)
        if part.digest(data) != chunk.digest:
            raise OSError(errno.EIO, "a staged chunk is not what was staged", chunk.path)
        return data


class _Segment:
    """A segment that is being made."""

    __slots__ = ("_accounted", "_data_len", "_entries", "_file", "_files", "_first", "_n", "_synced", "_tags")

    def __init__(self, files: SegmentFiles, first: int) -> None:
        self._files = files
        self._first = first
        self._n = 0
        self._file: File = files.create(files.path(first, "data"))
        self._entries = bytearray()
        self._data_len = self._synced = 0
        self._accounted = 0
        self._tags: dict[bytes, array[int]] = {}

    def room(self, sizes: npt.NDArray[np.integer], max_bytes: int) -> int:
        """How many of the next frames it takes."""
        fit = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), max_bytes - self._data_len, side="right"))
        return fit if self._n else max(fit, 1)

    def add(self, frames: bytearray, entries: Entries) -> None:
        """Write frames that lie in a row, and keep what is to be known of them."""
        start, end = int(entries["offset"][0]), int(entries["offset"][-1]) + int(entries["len"][-1])
        pwrite_all(self._file, memoryview(frames)[start:end], self._data_len)
        self._note_tags(frames, entries)
        placed = entries.copy()
        placed["offset"] = entries["offset"].astype(np.int64) + (self._data_len - start)
        self._entries += placed.tobytes()
        self._accounted += int((entries["len"].astype(np.int64) - ovh(entries)).sum())
        self._n += len(entries)
        self._data_len += end - start
        if self._data_len - self._synced >= SYNC_BYTES:
            self._file.fdatasync()
            self._synced = self._data_len

    def _note_tags(self, frames: bytearray, entries: Entries) -> None:
        tagged = np.flatnonzero(entries["flags"] & np.uint8(HAS_TAG))
        if len(tagged):
            seqs = tagged.astype(np.uint64) + np.uint64(self._first + self._n)
            for tag, found in tags.tags_at(frames, entries["offset"][tagged], seqs).items():
                known = self._tags.setdefault(tag, array("Q"))
                known.extend(found)

    def seal(self) -> Stamped:
        """Make it durable: `.data` before the `.idx` that points to it [S-190]."""
        self._file.fsync()
        self.close()
        files, first = self._files, self._first
        idx_xxh3 = files.write_idx(first, self._entries)
        if self._tags:
            files.write_tag(first, tags.encode_sidecar(self._tags, files.topic_id, first), durable=True)
        return Stamped(first, self._n, self._data_len, idx_xxh3, self._accounted, bool(self._tags))

    def close(self) -> None:
        """Let go of the file."""
        close_quietly(self._file)
