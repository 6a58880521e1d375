"""The newest records in memory, as they were logged: a pure accelerator [S-154].

Whole submissions are kept, the oldest leave first; at most 4096 records of a topic. Owner only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

TOPIC_RECORDS_MAX: Final = 4096


class _Recent:
    __slots__ = ("batches", "firsts", "records")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.batches: list[tuple[bytes, list[int]]] = []
        self.records = 0


class RecentFrames:
    """Frames of recent submissions by topic and seq. Invariant: `nbytes <= max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._topics: dict[int, _Recent] = {}
        self._order: OrderedDict[tuple[int, int], int] = OrderedDict()

    def add(self, topic_id: int, first: int, frames: bytes, offsets: list[int]) -> None:
        """Keep the frames of a submission; `offsets` are those of its records."""
        if len(frames) > self.max_bytes:
            self.forget(topic_id)
            return
        topic = self._topics.setdefault(topic_id, _Recent())
        if topic.firsts and topic.firsts[-1] + len(topic.batches[-1][1]) != first:
            self.forget(topic_id)
            topic = self._topics.setdefault(topic_id, _Recent())
        topic.firsts.append(first)
        topic.batches.append((frames, offsets))
        topic.records += len(offsets)
        self._order[topic_id, first] = len(frames)
        self.nbytes += len(frames)
        while topic.records > TOPIC_RECORDS_MAX and len(topic.firsts) > 1:
            self._drop_oldest(topic_id)
        while self.nbytes > self.max_bytes:
            self._drop_oldest(next(iter(self._order))[0])

    def find(self, topic_id: int, seq: int) -> tuple[bytes, int] | None:
        """The buffer and offset of a record's frame."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return None
        at = bisect_right(topic.firsts, seq) - 1
        if at < 0 or seq - topic.firsts[at] >= len(topic.batches[at][1]):
            return None
        frames, offsets = topic.batches[at]
        return frames, offsets[seq - topic.firsts[at]]

    def forget(self, topic_id: int) -> None:
        """Let go of a topic."""
        topic = self._topics.pop(topic_id, None)
        if topic is not None:
            for first in topic.firsts:
                self.nbytes -= self._order.pop((topic_id, first))

    def _drop_oldest(self, topic_id: int) -> None:
        topic = self._topics[topic_id]
        first = topic.firsts.pop(0)
        topic.records -= len(topic.batches.pop(0)[1])
        self.nbytes -= self._order.pop((topic_id, first))
        if not topic.firsts:
            del self._topics[topic_id]
