"""Head reservation: no acknowledged `disk` seq is ever handed out twice, at less than a sync per write [S-103, A-2].

A topic of class `disk` acknowledges a seq only under a ceiling that is synced. The next ceiling is asked for when half
of this one is used; only a write beyond the ceiling carries one in front of itself and waits. A topic that has been
idle gives its ceiling back, so that a machine crash then tells of nothing.

Numbers only: who writes the HeadWatermark, and when, is the caller's business. Owner only.
"""

from __future__ import annotations


class Reservation:
    """What one topic has reserved.

    `ceiling` is synced and in force, 0 for none. `asked` is the highest one on its way, or `ceiling`.
    """

    __slots__ = ("_since_ms", "_since_seq", "asked", "ceiling", "generation")

    def __init__(self) -> None:
        self.ceiling = 0
        self.asked = 0
        self.generation = 0
        """Counts give-backs: a ceiling that was on its way before one is void [A-2]."""
        self._since_ms = 0
        self._since_seq = 0

    def covers(self, last_seq: int) -> bool:
        """Whether a write up to `last_seq` may be acknowledged without another ceiling."""
        return last_seq <= self.ceiling

    def wanted(self, last_seq: int) -> bool:
        """Whether half of the ceiling is used and nothing is on its way."""
        return self.asked == self.ceiling and self.ceiling - last_seq <= (self.ceiling - self._since_seq) // 2

    def next(self, last_seq: int, now_ms: int, least: int, most: int, span_ms: int) -> int:
        """The ceiling to ask for: `span_ms` ahead at the present rate, within bounds."""
        elapsed = now_ms - self._since_ms
        rate = (last_seq - self._since_seq) * span_ms // elapsed if elapsed > 0 and self._since_ms else 0
        self._since_ms, self._since_seq = now_ms, last_seq
        self.asked = max(self.asked, last_seq + min(max(rate, least), most))
        return self.asked

    def granted(self, ceiling: int, generation: int) -> None:
        """A ceiling is synced."""
        if generation == self.generation:
            self.ceiling = max(self.ceiling, ceiling)
            self.asked = max(self.asked, self.ceiling)

    def refused(self, generation: int) -> None:
        """A ceiling could not be logged."""
        if generation == self.generation:
            self.asked = self.ceiling

    def give_back(self) -> None:
        """From now on nothing is reserved, whatever is on its way."""
        self.ceiling = self.asked = 0
        self.generation += 1
