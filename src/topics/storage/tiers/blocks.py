"""Reading cold segments by blocks, without anybody waiting on the owner [S-320, S-321].

    BlockCache    blocks of 256 KiB that were read before, least recently used out; engine-wide
    ColdRead      what one call has of the cold tier: the blocks fetched for it, what is absent, what failed
    NeedsBlocks   raised where a frame lies in blocks that are in neither: the caller has them fetched and tries again

A call that tries again finds everything that was fetched for it, whatever the cache let go of meanwhile, so it always
gets further. `fetch_block` is for the cold pool; everything else belongs to the owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics.storage.tiers.store import RangeOutOfBounds, SegmentId, SegmentStore

BLOCK_BYTES = 256 << 10
BLOCKS_PER_CALL = 32
"""A call that has so many and delivers something already does not ask for more."""


class Place(NamedTuple):
    """A cold segment: which object its frames are in."""

    topic_id: int
    first: int
    generation: int

    @property
    def segment(self) -> SegmentId:
        """Within its topic."""
        return SegmentId(self.first, self.generation)


class BlockKey(NamedTuple):
    """One block of a segment's `.data`."""

    place: Place
    number: int


class Wanted(NamedTuple):
    """A block to be fetched; the last one of a segment is shorter."""

    key: BlockKey
    length: int


class NeedsBlocks(Exception):
    """Frames are in the cold tier and not in memory."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        super().__init__(f"{len(wanted)} blocks of the cold tier are needed")
        self.wanted = wanted


class BlockCache:
    """Blocks in memory. Invariant: at most `bytes_max` of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[BlockKey, bytes] = OrderedDict()
        self.nbytes = 0

    def get(self, key: BlockKey) -> bytes | None:
        found = self._blocks.get(key)
        if found is not None:
            self._blocks.move_to_end(key)
        return found

    def put(self, key: BlockKey, data: bytes) -> None:
        """Keep a block; the oldest go."""
        self.discard(key)
        if len(data) > self._bytes_max:
            return
        self._blocks[key] = data
        self.nbytes += len(data)
        while self.nbytes > self._bytes_max:
            _, gone = self._blocks.popitem(last=False)
            self.nbytes -= len(gone)

    def discard(self, key: BlockKey) -> None:
        """Forget a block: its bytes did not verify."""
        gone = self._blocks.pop(key, None)
        if gone is not None:
            self.nbytes -= len(gone)


class ColdRead:
    """One call that may meet cold segments. `begin` is called at each attempt."""

    __slots__ = ("_again", "_cache", "absent", "blocks", "failed", "records", "unreadable")

    def __init__(self, cache: BlockCache) -> None:
        self.blocks: dict[BlockKey, bytes] = {}
        self.absent: set[Place] = set()
        """Segments that the tier is known not to have [S-317]."""
        self.failed: Exception | None = None
        """Why nothing more can be fetched for this call."""
        self.records = 0
        """Records of this attempt whose bytes were fetched for this call [S-322]."""
        self.unreadable: set[int] = set()
        """Seqs that were found to be damaged."""
        self._cache = cache
        self._again: set[BlockKey] = set()

    def begin(self) -> ColdRead:
        """An attempt begins."""
        self.records = 0
        return self

    @property
    def is_large(self) -> bool:
        """Whether this call has had its share of blocks."""
        return len(self.blocks) >= BLOCKS_PER_CALL

    def span(self, place: Place, data_len: int, start: int, end: int) -> tuple[bytes, int] | list[Wanted]:
        """Bytes that hold [start, end) and where they begin; or the blocks that are missing for that."""
        numbers = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        found = [self._block(BlockKey(place, number)) for number in numbers]
        missing = [_wanted(place, data_len, n) for n, one in zip(numbers, found, strict=True) if one is None]
        if missing:
            return missing
        base, blocks = numbers[0] * BLOCK_BYTES, [one for one in found if one is not None]
        if len(blocks) == 1:
            return blocks[0], base
        blocks[0] = blocks[0][start - base :]
        blocks[-1] = blocks[-1][: end - numbers[-1] * BLOCK_BYTES]
        return b"".join(blocks), start

    def missing(self, place: Place, data_len: int, numbers: Iterable[int]) -> list[Wanted]:
        """Those of a segment's blocks that are not in memory."""
        return [_wanted(place, data_len, n) for n in numbers if self._block(BlockKey(place, n)) is None]

    def _block(self, key: BlockKey) -> bytes | None:
        return self.blocks.get(key) or self._cache.get(key)

    def is_fetched(self, place: Place, start: int, end: int) -> bool:
        """Whether any of these bytes was fetched for this call."""
        return any(BlockKey(place, n) in self.blocks for n in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))

    def count_fetched(self, place: Place, entries: npt.NDArray[np.void]) -> int:
        """How many of some frames in a row have bytes that were fetched for this call."""
        first, last = entries[0], entries[-1]
        start, end = int(first["offset"]), int(last["offset"]) + int(last["len"])
        fetched = [BlockKey(place, number) in self.blocks for number in blocks_of(start, end - start)]
        if all(fetched):
            return len(entries)
        if not any(fetched):
            return 0
        places = zip(entries["offset"].tolist(), entries["len"].tolist(), strict=True)
        return sum(self.is_fetched(place, at, at + n) for at, n in places)

    def distrust(self, place: Place, data_len: int, spans: Iterable[tuple[int, int]]) -> list[Wanted]:
        """Blocks whose bytes did not verify and are to be fetched once more [S-176]; none if that was done."""
        keys = {BlockKey(place, n) for low, high in spans for n in range(low // BLOCK_BYTES, -(-high // BLOCK_BYTES))}
        fresh = sorted(keys - self._again)
        for key in fresh:
            self._again.add(key)
            self.blocks.pop(key, None)
            self._cache.discard(key)
        return [_wanted(place, data_len, key.number) for key in fresh]


def _wanted(place: Place, data_len: int, number: int) -> Wanted:
    return Wanted(BlockKey(place, number), min(BLOCK_BYTES, data_len - number * BLOCK_BYTES))


def blocks_of(offset: int, length: int) -> range:
    """The numbers of the blocks that hold a range."""
    return range(offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES))


def blocks_of_all(offsets: npt.NDArray[np.unsignedinteger], sizes: npt.NDArray[np.unsignedinteger]) -> Sequence[int]:
    """The numbers of the blocks that hold frames, ascending; usually they lie behind each other."""
    if not len(offsets):
        return ()
    starts = offsets.astype(np.int64)
    ends = starts + sizes
    gaps = starts[1:] - ends[:-1]
    if not len(gaps) or (gaps.min() >= 0 and gaps.max() < BLOCK_BYTES):
        return range(int(starts[0]) // BLOCK_BYTES, -(-int(ends[-1]) // BLOCK_BYTES))
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    return sorted({number for offset, size in spans for number in blocks_of(offset, size)})


def fetch_block(store: SegmentStore, wanted: Wanted) -> bytes:
    """A block; where the object ends too early zeros stand for the rest, which no frame verifies with."""
    place, offset = wanted.key.place, wanted.key.number * BLOCK_BYTES
    try:
        return store.read_range(place.segment, "data", offset, wanted.length)
    except RangeOutOfBounds:
        left = max(min(store.len(place.segment, "data") - offset, wanted.length), 0)
        found = store.read_range(place.segment, "data", offset, left) if left else b""
        return found.ljust(wanted.length, b"\0")
