"""The newest records in memory, as they were logged: a pure accelerator [S-154].

Whole submissions are kept, the oldest leave first; at most 4096 records of a topic. Owner only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from topics.codec.offsets import SIZE
from topics.codec.offsets import at as offset_at

TOPIC_RECORDS_MAX: Final = 4096


class _Recent:
    """Batches of one topic; the first `gone` of them were let go of, and leave the lists many at a time."""

    __slots__ = ("batches", "end", "firsts", "gone", "records")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.batches: list[tuple[bytes, bytes]] = []
        self.gone = 0
        self.records = 0
        self.end = 0
        """The seq behind the newest."""

    def drop_oldest(self) -> int:
        """Let go of the oldest batch; its first seq."""
        first, at = self.firsts[self.gone], self.gone
        self.records -= len(self.batches[at][1]) // SIZE
        self.batches[at] = _NOTHING
        self.gone += 1
        if self.gone > _GONE_MAX:
            del self.firsts[: self.gone], self.batches[: self.gone]
            self.gone = 0
        return first


_GONE_MAX: Final = 256
_NOTHING: Final = (b"", b"")


class RecentFrames:
    """Frames of recent submissions by topic and seq. Invariant: `nbytes <= max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._topics: dict[int, _Recent] = {}
        self._order: OrderedDict[tuple[int, int], int] = OrderedDict()

    def add(self, topic_id: int, first: int, frames: bytes, offsets: bytes) -> None:
        """Keep the frames of a submission; `offsets` are those of its records (codec.offsets)."""
        if len(frames) > self.max_bytes:
            self.forget(topic_id)
            return
        topic = self._topics.get(topic_id)
        if topic is not None and topic.end != first:
            self.forget(topic_id)
            topic = None
        if topic is None:
            topic = self._topics[topic_id] = _Recent()
        topic.firsts.append(first)
        topic.batches.append((frames, offsets))
        count = len(offsets) // SIZE
        topic.records += count
        topic.end = first + count
        self._order[topic_id, first] = len(frames)
        self.nbytes += len(frames)
        while topic.records > TOPIC_RECORDS_MAX and len(topic.firsts) - topic.gone > 1:
            self._drop_oldest(topic_id)
        while self.nbytes > self.max_bytes:
            self._drop_oldest(next(iter(self._order))[0])

    def find(self, topic_id: int, seq: int) -> tuple[bytes, int] | None:
        """The buffer and offset of a record's frame."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return None
        at = bisect_right(topic.firsts, seq) - 1
        if at < 0 or seq - topic.firsts[at] >= len(topic.batches[at][1]) // SIZE:
            return None
        frames, offsets = topic.batches[at]
        return frames, offset_at(offsets, seq - topic.firsts[at])

    def find_all(self, topic_id: int, seqs: Sequence[int]) -> list[tuple[bytes, int] | None]:
        """The same for ascending seqs."""
        topic = self._topics.get(topic_id)
        if topic is None or seqs[-1] < topic.firsts[topic.gone]:
            return [None] * len(seqs)
        found: list[tuple[bytes, int] | None] = []
        frames, offsets, first, end = b"", b"", 0, 0
        for seq in seqs:
            if not first <= seq < end:
                at = bisect_right(topic.firsts, seq) - 1
                if at < 0:
                    found.append(None)
                    continue
                first, (frames, offsets) = topic.firsts[at], topic.batches[at]
                end = first + len(offsets) // SIZE
            found.append((frames, offset_at(offsets, seq - first)) if seq < end else None)
        return found

    def run(self, topic_id: int, first: int, count: int) -> list[tuple[bytes, bytes]] | None:
        """Buffers and offsets of records in a row; None unless all of them are here."""
        topic = self._topics.get(topic_id)
        if topic is None or first < topic.firsts[topic.gone]:
            return None
        found: list[tuple[bytes, bytes]] = []
        at = bisect_right(topic.firsts, first) - 1
        while count > 0:
            if at >= len(topic.firsts):
                return None
            frames, offsets = topic.batches[at]
            skip = first - topic.firsts[at]
            taken = offsets[skip * SIZE : (skip + count) * SIZE]
            if not taken:
                return None
            found.append((frames, taken))
            first += len(taken) // SIZE
            count -= len(taken) // SIZE
            at += 1
        return found

    def forget(self, topic_id: int) -> None:
        """Let go of a topic."""
        topic = self._topics.pop(topic_id, None)
        if topic is not None:
            for first in topic.firsts[topic.gone :]:
                self.nbytes -= self._order.pop((topic_id, first))

    def _drop_oldest(self, topic_id: int) -> None:
        topic = self._topics[topic_id]
        first = topic.drop_oldest()
        self.nbytes -= self._order.pop((topic_id, first))
        if len(topic.firsts) == topic.gone:
            del self._topics[topic_id]
