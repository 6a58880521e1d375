"""What topics lose without anybody having asked for it, told in `$loss` [A-22].

    cap, ttl      evicted, as tombstones say
    source_trim   a router's source had lost it before it was copied
    corrupt       damage
    crash         acknowledged records of class `disk` that went with the machine

What a topic loses for one reason within ten seconds is one record, with the range that all of it lies in: a small cap
under load costs one entry of a dictionary per eviction. It is advice: the tombstones are the truth, and a crash may
take the last ten seconds of it. Owner only.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from topics.engine.alarms import Alarm
from topics.engine.topic import Topic
from topics.model import LOSS, is_system_name

if TYPE_CHECKING:
    from topics.engine.core import Core

log = logging.getLogger("topics.engine")

Reason = Literal["cap", "ttl", "source_trim", "corrupt", "crash"]
REASONS: Final[tuple[Reason, ...]] = ("cap", "ttl", "source_trim", "corrupt", "crash")
OF_HOLES: Final[dict[int, Reason]] = {1: "source_trim", 2: "corrupt", 3: "crash"}
"""By the stored reason of a gap."""
NS_PER_MS: Final = 1_000_000
BATCH: Final = 256
"""Records of one append."""


class _Loss:
    """What one topic lost for one reason since it was last told."""

    __slots__ = ("epoch", "first", "id", "last", "name", "reason")

    def __init__(self, topic: Topic, reason: Reason, first: int, last: int) -> None:
        self.name, self.id, self.epoch = topic.name, topic.id, topic.epoch
        self.reason = reason
        self.first = first
        self.last = last

    def widen(self, first: int, last: int) -> None:
        """It lost more."""
        if first < self.first:
            self.first = first
        if last > self.last:
            self.last = last

    def said(self) -> dict[str, Any]:
        """As its record tells it."""
        return {
            "topic": self.name,
            "id": self.id,
            "epoch": self.epoch,
            "gap_from": self.first,
            "gap_to": self.last,
            "reason": self.reason,
        }


class LossJournal:
    """Losses that are not told yet; at most one per topic and reason."""

    def __init__(self, core: Core) -> None:
        self.records: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Lost since the start (`topics_lost_records_total`)."""
        self.again = False
        """Recovery is under way: caps take what they took before."""
        self._core = core
        self._open: dict[tuple[int, Reason], _Loss] = {}
        self._writing = False
        self._alarm: Alarm | None = None

    def note(self, topic: Topic, reason: Reason, first: int, last: int, records: int) -> None:
        """A topic lost so many records in a range."""
        if is_system_name(topic.name):
            return
        self.records[reason] += records
        found = self._open.get((topic.id, reason))
        if found is not None:
            found.widen(first, last)
            return
        self._open[topic.id, reason] = _Loss(topic, reason, first, last)
        self._arm()

    def note_evicted(self, topic: Topic, first: int, last: int, records: int) -> None:
        """Caps took records; what recovery evicts once more was told before."""
        if not self.again:
            self.note(topic, "cap", first, last, records)

    def note_hole(self, topic: Topic, reason: int, first: int, last: int) -> None:
        """Seqs became a hole that readers are told of."""
        if reason in OF_HOLES:
            self.note(topic, OF_HOLES[reason], first, last, last - first + 1)

    def note_unreadable(self, topic: Topic) -> None:
        """A read may have met damage that nobody knew of [S-176]."""
        segments = topic.index.segments
        if segments is None or not segments.reader.unreadable or not topic.told:
            return
        known = segments.reader.unreadable
        fresh = [seq for seq, told in known.items() if not told]
        if fresh:
            known.update(dict.fromkeys(fresh, True))
            self.note(topic, "corrupt", min(fresh), max(fresh), len(fresh))

    def _arm(self) -> None:
        core = self._core
        if self._alarm is None and not core.closing:
            due_ns = core.clock.monotonic_ns() + core.config.loss_merge_ms * NS_PER_MS
            self._alarm = core.alarms.at(due_ns, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.flush()

    def flush(self) -> None:
        """Tell what was lost since the last time."""
        if self._writing or not self._open:
            return
        told, self._open = self._open, {}
        self._write(told)

    def _write(self, told: dict[tuple[int, Reason], _Loss]) -> None:
        chosen = list(islice(told, BATCH))
        said = [(told[key].name, told[key].said()) for key in chosen]
        self._writing = True
        self._core.tell(LOSS, said, lambda outcome: self._over(told, chosen, outcome))

    def _over(self, told: dict[tuple[int, Reason], _Loss], chosen: list[tuple[int, Reason]], outcome: object) -> None:
        self._writing = False
        if isinstance(outcome, Exception):
            self._again(told, outcome)
            return
        for key in chosen:
            del told[key]
        if told:
            self._core.owner.soon(lambda: self._write(told))
        elif self._open:
            self._arm()

    def _again(self, told: dict[tuple[int, Reason], _Loss], error: Exception) -> None:
        """They wait for the next time, with what is lost until then."""
        for key, loss in told.items():
            newer = self._open.setdefault(key, loss)
            newer.widen(loss.first, loss.last)
        if not self._core.closing:
            log.warning("%d losses wait to be told in %s: %s", len(self._open), LOSS, error)
        self._arm()
