"""Judging what clients of a real server saw: the history checker of 13 §3.

Clients record every call with the moments it began and ended, on one monotonic clock; payloads are unique. A `History`
is told the calls of one life of the server after another and finds what no correct server can have answered:

    rule         what was broken
    lost         an acknowledged or visible record is missing without a tombstone or a delete [R-1, INV-3, INV-5]
    changed      one seq had two values, or a seq was given out again [REC-1, INV-1]
    twice        a write lies at two places [R-6]
    torn         a part of a write is visible without the rest [INV-2]
    fabricated   a record nobody wrote, or wrote only later, or to another topic [INV-13]
    refused      a write that was refused is visible [INV-3]
    returned     a deleted or evicted record is back [INV-7, INV-8]
    gap          a tombstone that nothing explains, or with another range than it has [INV-5, INV-6]
    cursor       a cursor went back, or a page contradicts itself [CUR-4, CUR-5]
    head         a head or a first live seq went back [STA-3]
    order        a later write lies before an earlier one [SEQ-3]
    dedupe       a repeated write was answered with other seqs, or a new one as repeated [IDM-2, A-4]

The server may be killed between lives; the machine goes on. So `disk` promises what `fsync` promises, and only
`memory` may lose what an earlier life acknowledged, silently [DUR-4, DUR-6, DUR-8]. A call without an answer
(`unknown`) may have happened once or not at all. Pure; one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

Outcome = Literal["acked", "refused", "unknown"]
"""`refused`: an answer that says nothing was done; `unknown`: no answer, or one that says it may have been done."""


class Rules(NamedTuple):
    """What a topic is configured with."""

    durability: str
    cap_records: int = 0


class Write(NamedTuple):
    """One attempt to append records. Attempts of one write carry the same texts."""

    life: int
    topic: str
    at: int
    until: int
    texts: tuple[str, ...]
    outcome: Outcome
    first: int | None = None
    head: int = 0
    deduped: bool = False
    tag: str | None = None
    name: Literal["", "key", "producer"] = ""
    """How the server knows the write again."""


class Gap(NamedTuple):
    """A tombstone."""

    gap_from: int
    gap_to: int
    reason: str


class Read(NamedTuple):
    """One answered read after a cursor; a record is its seq and its text."""

    life: int
    topic: str
    at: int
    until: int
    from_seq: int
    records: tuple[tuple[int, str], ...]
    next_from: int
    head: int
    earliest: int
    caught_up: bool
    gap: Gap | None = None


class Delete(NamedTuple):
    """One delete of records, by tag or by seqs."""

    life: int
    topic: str
    at: int
    until: int
    outcome: Outcome
    tag: str | None = None
    seqs: tuple[int, ...] = ()


Event = Write | Read | Delete


class Finding(NamedTuple):
    """Something no correct server answers."""

    rule: str
    topic: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.topic}: {self.what}"


def check(rules: Mapping[str, Rules], events: Iterable[Event]) -> list[Finding]:
    """Everything that is wrong with a whole history."""
    history = History(rules)
    ordered = sorted(events, key=lambda event: event.life)
    return [found for _, life in groupby(ordered, key=lambda event: event.life) for found in history.add(list(life))]


class History:
    """What is known so far. Everything added has ended before anything that is added later begins."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._topics = {name: _Topic(name, rule) for name, rule in rules.items()}

    def add(self, events: Iterable[Event]) -> list[Finding]:
        """Take in calls of one life of the server; what is wrong with them."""
        by_topic: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_topic[event.topic].append(event)
        return [found for name, some in by_topic.items() for found in self._topics[name].add(some)]


class _Op:
    """A write over all its attempts."""

    __slots__ = ("appended", "at", "attempts", "possible", "tag", "texts")

    def __init__(self, write: Write) -> None:
        self.texts = write.texts
        self.tag = write.tag
        self.at = write.at
        self.attempts = 0
        self.possible = False
        """Some attempt was not refused."""
        self.appended = 0
        """Answers that said it was new."""


class _Topic:
    """The history of one topic."""

    def __init__(self, name: str, rules: Rules) -> None:
        self._name = name
        self._rules = rules
        self._strict = rules.durability in ("fsync", "disk")
        self._life = -1
        self._ops: dict[str, tuple[_Op, int]] = {}
        """By text: its write, and its place in it."""
        self._ops_by_tag: dict[str, list[_Op]] = defaultdict(list)
        self._deletes_by_tag: dict[str, list[Delete]] = defaultdict(list)
        self._deletes_by_seq: dict[int, list[Delete]] = defaultdict(list)
        self._found: list[Finding] = []
        self._most = 0
        """Seqs that can have been given out, had every attempt been appended."""
        self._forget()

    def _forget(self) -> None:
        self._values: dict[int, str] = {}
        self._bases: dict[_Op, int] = {}
        """Where the first record of a write lies."""
        self._since: dict[int, int] = {}
        """From when on a seq is known to be there."""
        self._gone: dict[int, int] = {}
        """From when on it is known to be gone."""
        self._head = 0
        self._earliest = 0

    def _tell(self, rule: str, what: str) -> None:
        self._found.append(Finding(rule, self._name, what))

    def add(self, events: list[Event]) -> list[Finding]:
        """Calls of one life."""
        self._found = []
        life = events[0].life
        if life != self._life and not self._strict:
            self._forget()
        self._life = life
        writes = [event for event in events if isinstance(event, Write)]
        reads = [event for event in events if isinstance(event, Read)]
        deletes = [event for event in events if isinstance(event, Delete)]
        for write in sorted(writes, key=lambda write: write.at):
            self._note_write(write)
        for read in sorted(reads, key=lambda read: read.until):
            self._note_read(read)
        for delete in deletes:
            self._note_delete(delete)
        for read in reads:
            self._judge_missing(read)
        for read in reads:
            self._judge_shown(read)
        self._judge_heads(writes, reads)
        self._judge_floors(reads)
        return self._found

    # -- what the calls say ------------------------------------------------------------------------------------------

    def _note_write(self, write: Write) -> None:
        known = self._ops.get(write.texts[0])
        op = known[0] if known is not None else _Op(write)
        if known is None:
            for index, text in enumerate(write.texts):
                if text in self._ops:
                    raise ValueError(f"{text!r} is written twice: payloads must be unique")
                self._ops[text] = (op, index)
            if op.tag is not None:
                self._ops_by_tag[op.tag].append(op)
        op.attempts += 1
        if write.outcome != "refused":
            op.possible = True
            self._most += len(op.texts)
        if write.outcome == "acked":
            self._note_ack(write, op)

    def _note_ack(self, write: Write, op: _Op) -> None:
        if write.deduped and op.attempts == 1:
            self._tell("dedupe", f"{op.texts[0]} was never sent before and is answered as repeated")
        if not write.deduped:
            op.appended += 1
            if op.appended > 1 and self._strict:
                self._tell("dedupe", f"{op.texts[0]} is answered as new again")
        if write.first is None:
            if not write.deduped or write.name != "producer":
                self._tell("dedupe", f"{op.texts[0]} is acknowledged without seqs")
            return
        base = self._bases.get(op)
        if write.deduped and base is not None and base != write.first:
            self._tell("dedupe", f"{op.texts[0]} lies at {base} and its repetition is answered with {write.first}")
            return
        for index in range(len(op.texts)):
            self._place(op, index, write.first + index, write.until)

    def _place(self, op: _Op, index: int, seq: int, now: int) -> None:
        """A record lies at a seq."""
        text = op.texts[index]
        base = self._bases.setdefault(op, seq - index)
        if base != seq - index:
            self._tell("twice", f"{text} lies at {seq}, and at {base + index} by what was seen before")
        old = self._values.setdefault(seq, text)
        if old != text:
            self._tell("changed", f"seq {seq} was {old} and is {text}")
        self._since[seq] = min(now, self._since.get(seq, now))

    def _note_read(self, read: Read) -> None:
        self._judge_page(read)
        for seq, text in read.records:
            op, index = self._ops.get(text, (None, 0))
            if op is None or read.until < op.at:
                self._tell("fabricated", f"seq {seq} is {text}, which nobody had written")
                continue
            if not op.possible:
                self._tell("refused", f"seq {seq} is {text}, which was refused")
            self._place(op, index, seq, read.until)
            if read.head < seq - index + len(op.texts) - 1:
                self._tell("torn", f"{text} at {seq} is visible below head {read.head} without all of its write")

    def _note_delete(self, delete: Delete) -> None:
        if delete.outcome == "refused":
            return
        for seq in delete.seqs:
            self._deletes_by_seq[seq].append(delete)
        if delete.tag is not None:
            self._deletes_by_tag[delete.tag].append(delete)
        if delete.outcome == "acked":
            for seq in self._selected(delete):
                if self._since.get(seq, delete.at) < delete.at:
                    self._gone[seq] = min(delete.until, self._gone.get(seq, delete.until))

    def _selected(self, delete: Delete) -> list[int]:
        """The seqs a delete names, as far as is known."""
        if delete.tag is None:
            return list(delete.seqs)
        ops = [op for op in self._ops_by_tag.get(delete.tag, ()) if op in self._bases]
        return [self._bases[op] + index for op in ops for index in range(len(op.texts))]

    # -- a page by itself --------------------------------------------------------------------------------------------

    def _judge_page(self, read: Read) -> None:
        gap, seqs = read.gap, [seq for seq, _ in read.records]
        where = f"the page after {read.from_seq}"
        if gap is not None:
            self._judge_gap(read, gap)
        if read.next_from < read.from_seq and (gap is None or gap.reason != "recreated"):
            self._tell("cursor", f"{where} leads back to {read.next_from}")
        if any(a >= b for a, b in pairwise(seqs)):
            self._tell("cursor", f"{where} is out of order: {seqs}")
        if seqs and not (_start(read) <= seqs[0] and seqs[-1] <= read.next_from):
            self._tell("cursor", f"{where} holds {seqs[0]} to {seqs[-1]} and ends at {read.next_from}")
        if read.next_from > read.head or read.caught_up != (read.next_from == read.head):
            self._tell("cursor", f"{where} ends at {read.next_from} of {read.head}, caught_up {read.caught_up}")
        if read.head > self._most:
            self._tell("head", f"{where} has head {read.head}; at most {self._most} records were ever written")
        if seqs and seqs[0] < read.earliest:
            self._tell("returned", f"{where} holds {seqs[0]} below the first live seq {read.earliest}")

    def _judge_gap(self, read: Read, gap: Gap) -> None:
        told = f"a read after {read.from_seq} got the tombstone {gap.gap_from} to {gap.gap_to}, {gap.reason}"
        cap = self._rules.cap_records
        if gap.reason == "recreated":
            # A memory topic may have lost its head with the process, and then says so.
            if self._strict or read.from_seq <= read.head or (gap.gap_from, gap.gap_to) != (1, read.head):
                self._tell("gap", f"{told}; its head is {read.head}")
        elif gap.reason != "cap" or not cap:
            self._tell("gap", told)
        elif gap.gap_from != read.from_seq + 1 or not gap.gap_from <= gap.gap_to < read.earliest:
            self._tell("gap", f"{told}; the first live seq is {read.earliest}")
        elif self._exact_cap() and gap.gap_to != read.head - cap:
            self._tell("gap", f"{told}; {cap} records are kept and the head is {read.head}")

    def _exact_cap(self) -> bool:
        """Without deletes the cap alone decides what is live."""
        return self._strict and not self._deletes_by_seq and not self._deletes_by_tag

    # -- records that are missing, records that are back -------------------------------------------------------------

    def _judge_missing(self, read: Read) -> None:
        shown = {seq for seq, _ in read.records}
        # An absurd head was told already, and must not make work without end.
        last = min(read.next_from, self._most)
        missing = [seq for seq in range(_start(read), last + 1) if seq not in shown]
        for seq in missing:
            known = self._since.get(seq, read.at) < read.at
            if not known and not self._strict:
                continue
            if not self._excused(seq, read):
                value = self._values.get(seq, "never seen")
                self._tell("lost", f"seq {seq} ({value}) is not in the page after {read.from_seq} of life {read.life}")
            elif known:
                self._gone[seq] = min(read.until, self._gone.get(seq, read.until))

    def _excused(self, seq: int, read: Read) -> bool:
        """Whether a delete can have taken a seq away before a read ended [DEL-4, DEL-5]."""
        text = self._values.get(seq)
        if text is None:
            # A write without an answer whose record was deleted before anybody saw it.
            named = [d for d in self._deletes_by_seq.get(seq, ()) if d.at <= read.until]
            return bool(named) or any(self._may_hide(tag, read) for tag in self._deletes_by_tag)
        op = self._ops[text][0]
        of_tag = self._deletes_by_tag.get(op.tag, []) if op.tag is not None else []
        for delete in (*self._deletes_by_seq.get(seq, ()), *of_tag):
            if delete.at <= read.until and (delete.outcome == "unknown" or delete.until >= op.at):
                return True
        return False

    def _may_hide(self, tag: str, read: Read) -> bool:
        """Whether a delete of a tag can have taken a record that was never seen."""
        unseen = [op for op in self._ops_by_tag.get(tag, ()) if op.possible and op not in self._bases]
        return bool(unseen) and any(delete.at <= read.until for delete in self._deletes_by_tag[tag])

    def _judge_shown(self, read: Read) -> None:
        for seq, text in read.records:
            gone = self._gone.get(seq)
            if gone is not None and gone < read.at:
                self._tell("returned", f"seq {seq} ({text}) was deleted and is in the page after {read.from_seq}")

    # -- what never goes back ----------------------------------------------------------------------------------------

    def _judge_heads(self, writes: list[Write], reads: list[Read]) -> None:
        """Who begins after an answer sees at least the head that was answered; seqs follow the order of calls."""
        shown: list[tuple[int, int]] = [(read.until, read.head) for read in reads]
        asked: list[tuple[int, int, str, str]] = [
            (read.at, read.head, "head", f"a read after {read.from_seq} has head {read.head}") for read in reads
        ]
        for write in writes:
            if write.outcome != "acked" or write.first is None:
                continue
            last = write.first + len(write.texts) - 1
            shown.append((write.until, last))
            if not write.deduped:
                shown.append((write.until, write.head))
                asked.append((write.at, write.first - 1, "order", f"{write.texts[0]} lies at {write.first}"))
                if write.head < last:
                    self._tell("head", f"{write.texts[0]} lies up to {last} and was answered with head {write.head}")
        self._head = self._judge_rising(shown, asked, self._head, "the head was")

    def _judge_floors(self, reads: list[Read]) -> None:
        """The first live seq only rises, and nothing below it comes back."""
        shown = [(read.until, read.earliest) for read in reads]
        asked = [
            (read.at, read.earliest, "head", f"a read after {read.from_seq} has first live seq {read.earliest}")
            for read in reads
        ]
        asked += [
            (read.at, read.records[0][0], "returned", f"a read after {read.from_seq} holds {read.records[0]}")
            for read in reads
            if read.records
        ]
        self._earliest = self._judge_rising(shown, asked, self._earliest, "the first live seq was")

    def _judge_rising(
        self, shown: list[tuple[int, int]], asked: list[tuple[int, int, str, str]], highest: int, was: str
    ) -> int:
        """Compare each value with the highest that was shown before its call began; the highest of all."""
        shown.sort()
        asked.sort()
        position = 0
        for at, value, rule, what in asked:
            while position < len(shown) and shown[position][0] < at:
                highest = max(highest, shown[position][1])
                position += 1
            if value < highest:
                self._tell(rule, f"{what}; {was} {highest} before")
        return max([highest, *(value for _, value in shown[position:])])


def _start(read: Read) -> int:
    """The first seq that a read had to account for."""
    if read.gap is None:
        return read.from_seq + 1
    return 1 if read.gap.reason == "recreated" else read.gap.gap_to + 1
