"""Records straight from WAL files: the newest ones, which no segment holds yet [S-171].

A location names a file by its reference (`tail.WalFiles`). Neighbouring frames are fetched by one read. Every frame is
verified: checksum, topic and seq; what fails twice is unreadable [S-173, S-176]. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import frame
from topics.codec.frame import Frame, NotAFrame
from topics.fs import File, Fs, pread_all, pread_exact
from topics.storage.tail import OFFSET_BITS, WalFiles, unpack
from topics.wal.descriptors import DescriptorCache

log = logging.getLogger("topics.storage")

SPAN_GAP_BYTES = 64 << 10
SPAN_BYTES_MAX = 1 << 20


class Place(NamedTuple):
    """Where the frame of a seq is, and how long."""

    seq: int
    location: int
    size: int


class WalReader:
    """Reads frames of any WAL file of an engine, of groups that its layout no longer uses too."""

    def __init__(self, fs: Fs, dirs: Mapping[str, str], files: WalFiles, max_fds: int) -> None:
        self._fs = fs
        self._dirs = dirs
        self._files = files
        self._descriptors = DescriptorCache(self._open, max_fds)

    def _open(self, reference: int) -> File:
        file = self._files.file(reference)
        return self._fs.open(f"{self._dirs[file.group]}/{paths.wal_file(file.file_no)}", "r")

    def forget(self, reference: int) -> None:
        """A file is about to be deleted, or was; any thread, for that may take milliseconds."""
        self._descriptors.drop(reference)

    def close(self) -> None:
        """Let go of all descriptors."""
        self._descriptors.clear()

    def frames(self, topic_id: int, places: Sequence[Place]) -> list[Frame | None]:
        """The Append frames at ascending places; `None` for one that cannot be used."""
        found: list[Frame | None] = []
        for reference, start, span, rows in _spans(places):
            data = self._read(reference, start, span)
            places_in = [unpack(place.location)[1] - start for place in rows]
            sized = zip([place.seq for place in rows], places_in, [place.size for place in rows], strict=True)
            for at, place, plain in zip(places_in, rows, frame.plain_appends(data, sized, topic_id), strict=True):
                one = plain or _decode(data, at, place, topic_id)
                if one is None:
                    again = self._read(reference, at + start, place.size)
                    one = _decode(again, 0, place, topic_id)
                    if one is None:
                        log.error("topic %d: seq %d cannot be read from the WAL", topic_id, place.seq)
                found.append(one)
        return found

    def raw(self, places: Sequence[Place], take: Callable[[bytes, list[int]], None]) -> None:
        """The bytes of frames at ascending places, span by span: a buffer and the offsets of the frames in it."""
        for reference, start, span, rows in _spans(places):
            take(self._read_exact(reference, start, span), [unpack(place.location)[1] - start for place in rows])

    def raw_at(
        self,
        locations: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.unsignedinteger],
        take: Callable[[bytes, npt.NDArray[np.int64]], None],
    ) -> None:
        """The same for arrays of ascending locations and sizes."""
        first, last = int(locations[0]), int(locations[-1])
        span = last + int(sizes[-1]) - first
        most = min(int(sizes.sum(dtype=np.int64)) + SPAN_GAP_BYTES, SPAN_BYTES_MAX)
        if span <= most and first >> OFFSET_BITS == last >> OFFSET_BITS and _ascend(locations):
            reference, start = unpack(first)
            take(self._read_exact(reference, start, span), (locations - locations[0]).astype(np.int64))
            return
        references = (locations >> np.uint64(OFFSET_BITS)).astype(np.int64)
        offsets = (locations & np.uint64((1 << OFFSET_BITS) - 1)).astype(np.int64)
        ends = offsets + sizes
        gaps = offsets[1:] - ends[:-1]
        apart = (references[1:] != references[:-1]) | (gaps < 0) | (gaps > SPAN_GAP_BYTES)
        for low, high in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(offsets)]):
            while low < high:
                start = int(offsets[low])
                behind = low + max(int(np.searchsorted(ends[low:high], start + SPAN_BYTES_MAX, side="right")), 1)
                data = self._read_exact(int(references[low]), start, int(ends[behind - 1]) - start)
                take(data, offsets[low:behind] - start)
                low = behind

    def one(self, location: int, size: int) -> bytes:
        """The bytes of one frame."""
        reference, offset = unpack(location)
        return self._read_exact(reference, offset, size)

    def _read(self, reference: int, start: int, n: int) -> bytes:
        with self._descriptors.acquire(reference) as lease:
            return pread_all(lease.file, n, start)

    def _read_exact(self, reference: int, start: int, n: int) -> bytes:
        """Bytes that are known to be there: fewer are an error of the disk, never damage."""
        with self._descriptors.acquire(reference) as lease:
            return pread_exact(lease.file, n, start)


def _ascend(locations: npt.NDArray[np.uint64]) -> bool:
    return bool((locations[1:] > locations[:-1]).all())


def _decode(data: bytes, at: int, place: Place, topic_id: int) -> Frame | None:
    try:
        one = frame.decode(memoryview(data)[: at + place.size], at)
    except NotAFrame:
        return None
    whole = one.end - at == place.size and one.type == frame.APPEND
    return one if whole and one.seq == place.seq and one.topic_id == topic_id else None


def _spans(places: Sequence[Place]) -> list[tuple[int, int, int, Sequence[Place]]]:
    """Places that one read fetches: reference, first offset, bytes, and which they are."""
    spans: list[tuple[int, int, int, Sequence[Place]]] = []
    at = 0
    while at < len(places):
        reference, start = unpack(places[at].location)
        end = start + places[at].size
        behind = at + 1
        while behind < len(places):
            other, offset = unpack(places[behind].location)
            size = places[behind].size
            if other != reference or not 0 <= offset - end <= SPAN_GAP_BYTES or offset + size - start > SPAN_BYTES_MAX:
                break
            end = offset + size
            behind += 1
        spans.append((reference, start, end - start, places[at:behind]))
        at = behind
    return spans
