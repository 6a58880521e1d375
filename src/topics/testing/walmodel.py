"""The oracle for the WAL library: what was promised about every record, and whether a survivor keeps it (13 §3).

Entries lie in the order they were appended. A survivor must show one contiguous run of them: nothing made up,
doubled or reordered; nothing missing behind a record that is there; everything durable and not deleted present.

    durable     acknowledged under `always`, or covered by a sync, a rotation, a tick or a close
    uncertain   a call that is under way, or that ended in an error which leaves the outcome open
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.testing.subject import Violation
from topics.wal import Position, Record, RecoveryInfo


class Entry:
    """One record and what is promised about it."""

    __slots__ = ("durable", "position", "record")

    def __init__(self, record: Record, position: Position | None = None, *, durable: bool = False) -> None:
        self.record = record
        self.position = position
        self.durable = durable


class WalModel:
    """What a log must contain."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.uncertain: list[Entry] = []
        self.gone_below = 0
        """Segments below it were deleted for good."""
        self.may_go_below = 0
        """Segments below it may be gone: a deletion is under way or its outcome is open."""
        self.at_least = Position(0, 0)
        """A place that the log may not fall behind: positions were given out, and the segment's name is durable."""
        self.lied = False
        """A sync reported success without writing: what came after it may be lost, but is never made up."""

    def adopt(self, found: Sequence[tuple[Record, Position]], first_segment: int, end: Position) -> None:
        """Take a recovered log as the new truth: opening made all of it durable."""
        self.at_least = end
        self.entries = [Entry(record, position, durable=True) for record, position in found]
        self.uncertain = []
        self.gone_below = self.may_go_below = first_segment
        self.lied = False

    def make_durable(self, end: Position | None = None) -> None:
        """A sync covered everything appended so far, up to `end`."""
        if not self.lied:
            self.at_least = max(self.at_least, end or self.at_least)
            for entry in self.entries:
                entry.durable = True

    def rotated_to(self, segment: int) -> None:
        """Everything in earlier segments was synced before this one took a byte [W-16]."""
        if not self.lied:
            self.at_least = max(self.at_least, Position(segment, 0))
            for entry in self.entries:
                if entry.position is not None and entry.position.segment_id < segment:
                    entry.durable = True

    def visible(self, first_segment: int) -> list[tuple[Record, Position | None]]:
        """What a reader of the running log must see."""
        return [(e.record, e.position) for e in self.entries if e.position and e.position.segment_id >= first_segment]

    def acknowledged(self) -> WalModel:
        """The stricter promise after a mere kill: the page cache lives, so all that was acknowledged is there."""
        twin = WalModel()
        twin.entries = [Entry(entry.record, entry.position, durable=True) for entry in self.entries]
        twin.uncertain = list(self.uncertain)
        twin.gone_below, twin.may_go_below, twin.lied = self.gone_below, self.may_go_below, self.lied
        twin.at_least = self.at_least
        return twin

    def judge(self, found: Sequence[tuple[Record, Position]], info: RecoveryInfo, end: Position) -> None:
        """Raise `Violation` unless a recovered log, whose next record goes to `end`, is one that the promises allow."""
        if self.lied:
            self._judge_lied(found, info)
            return
        if end < self.at_least:
            raise Violation(f"the next record goes to {end}, but {self.at_least} was reached before [W-81]")
        if info.holes:
            raise Violation(f"holes {info.holes} reported, but a crash makes none")
        entries = self.entries + self.uncertain
        start = self._start(entries, found)
        for at, (record, position) in enumerate(found):
            entry = entries[start + at] if start + at < len(entries) else None
            if entry is None or entry.record != record:
                raise Violation(f"{_show(record, position)} was not the record appended there")
            if entry.position is not None and entry.position != position:
                raise Violation(f"{_show(record, position)} was acknowledged at {entry.position}")
        for entry in entries[start + len(found) :]:
            self._must_not_be_durable(entry)
        for entry in entries[:start]:
            if entry.position is None or entry.position.segment_id >= self.may_go_below:
                self._must_not_be_durable(entry)

    def _start(self, entries: list[Entry], found: Sequence[tuple[Record, Position]]) -> int:
        """Index of the first survivor; what lies before it must have been deleted."""
        if not found:
            return len(entries)
        at = next((at for at, entry in enumerate(entries) if entry.record == found[0][0]), None)
        if at is None:
            raise Violation(f"{_show(*found[0])} was never appended")
        segment = found[0][1].segment_id
        if segment < self.gone_below:
            raise Violation(f"{_show(*found[0])} was deleted with its segment and is back")
        for earlier in entries[:at]:
            if earlier.position is None or earlier.position.segment_id >= min(segment, self.may_go_below):
                raise Violation(f"{_show(earlier.record, earlier.position)} is missing before {_show(*found[0])}")
        return at

    def _must_not_be_durable(self, entry: Entry) -> None:
        if entry.durable:
            raise Violation(f"{_show(entry.record, entry.position)} was durable and is gone")

    def _judge_lied(self, found: Sequence[tuple[Record, Position]], info: RecoveryInfo) -> None:
        """After a sync that lied: order and truth still hold, and a hole in the middle is told."""
        entries = self.entries + self.uncertain
        at = -1
        told = bool(info.holes) or info.corruption_detected
        for record, position in found:
            nxt = next((i for i in range(at + 1, len(entries)) if entries[i].record == record), None)
            if nxt is None:
                raise Violation(f"{_show(record, position)} is made up, doubled or out of order")
            skipped = [e for e in entries[at + 1 : nxt] if not e.position or e.position.segment_id >= self.may_go_below]
            if at >= 0 and skipped and not told:
                raise Violation(
                    f"{len(skipped)} records before {_show(record, position)} are missing and nobody says so"
                )
            at = nxt
        have = {record.key for record, _ in found}
        for entry in self.entries:
            if entry.durable and entry.record.key not in have and not self._may_be_deleted(entry):
                self._must_not_be_durable(entry)

    def _may_be_deleted(self, entry: Entry) -> bool:
        return entry.position is not None and entry.position.segment_id < self.may_go_below


def _show(record: Record, position: Position | None) -> str:
    return f"record {record.key[:12]!r} of {len(record.value)} bytes at {position}"
