"""What goes through an engine: counts of writes, reads and deliveries, and how long acknowledgements took.

Rates and percentiles are made of these by whoever looks at them twice. There is nothing here by topic [MET-7]. Whoever
answers a client counts it: a few additions, no look at the clock that was not taken anyway. Owner only.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from topics.model import Durability

ACK_BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
"""Upper bounds of the buckets that writes are counted in by how long they took; one more for the rest."""
CLASSES: Final[tuple[Durability, ...]] = ("ephemeral", "memory", "disk", "fsync")


class Acks:
    """How long the writes to topics of one class took."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(ACK_BOUNDS_MS) + 1)
        self.total_ms = 0.0


class Traffic:
    """Counts since the start."""

    __slots__ = ("acks", "delivered", "read", "reads", "written")

    def __init__(self) -> None:
        self.acks = {durability: Acks() for durability in CLASSES}
        self.written = 0
        """Records that were acknowledged to clients."""
        self.reads = 0
        self.read = 0
        """Records in answers to reads."""
        self.delivered = 0
        """Records sent to followers, once for each of them."""

    def acked(self, durability: Durability, records: int, took_ms: float, writes: int = 1) -> None:
        """A write was acknowledged, or several of the same class that took as long."""
        self.written += records
        acks = self.acks[durability]
        acks.total_ms += took_ms * writes
        acks.counts[bisect_left(ACK_BOUNDS_MS, took_ms)] += writes

    def answered(self, records: int) -> None:
        """A read was answered."""
        self.reads += 1
        self.read += records
