"""The oracle for the engine: what every topic must show, now and after a restart (01, 06 §19, 13 §3).

    View    what a topic shows through the API: head, floor, hole runs, live records, configuration, leases
    State   what a topic is after some events of its log: a list of records, two loss marks, holes, keys, producers
    Topic   one instance: `base` (no crash takes it back), the `events` behind it, `live` (what a reader sees now)
    Jobs    of a queue: who holds what, and how often it was delivered, as far as that is certain
    Store   the topics by name, with creations and deletions under way

All frames of a topic lie in one log in order, so a restart must show the state after some *prefix* of its events:

    how     at least                        beyond that
    close   everything acknowledged         events whose outcome is open, whole
    kill    the same                        the same
    crash   everything durable (`base`)     any further events in order; a `disk` topic may then continue behind a hole
                                            run of reason `crash` that covers every acknowledged seq [DUR-4, A-2]

What a `memory` topic lost is silent, and its head may stay. What an `ephemeral` topic held is gone; its head and floor
lie between the last pinned and the live ones [DUR-6 … DUR-8, DUR-12].

Nothing here is shared with the engine, and nothing here knows files. Plain values: any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, NamedTuple

from topics.model import TopicConfig
from topics.testing.subject import Violation

How = Literal["close", "kill", "crash"]
LOSSES = ("cap", "ttl", "mixed")
HOLES = ("source_trim", "corrupt", "crash")


class Rec(NamedTuple):
    """A record. `wall` is the clock at its writing: `ts` is above it only where the clock had gone back [REC-10]."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: bytes
    meta: bytes | None = None
    wall: int = 1 << 62

    @property
    def size(self) -> int:
        """Accounted bytes [REC-12]."""
        return len(self.data) + len(self.meta or b"")

    def shows(self, other: Rec) -> bool:
        """Whether `other`, as read, is this record. Of a clamped `ts` a restart may have forgotten the reason."""
        return (self.seq, *self[2:6]) == (other.seq, *other[2:6]) and min(self.wall, self.ts) <= other.ts <= self.ts


class Run(NamedTuple):
    """A hole run [FLR-5]."""

    first: int
    last: int
    reason: str


class Held(NamedTuple):
    """A lease [LSE-1]."""

    seq: int
    node: str
    id: str
    deadline: int
    deliveries: int


class Jobs:
    """What is certain about the jobs of a queue. A seq in `unsure` may be leased or not, and was delivered any number
    of times: a call about it failed, or the configuration changed what is kept of leases.
    """

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.deliveries: dict[int, int] = {}
        self.unsure: set[int] = set()
        self.claiming: str | None = None
        """The node of a claim under way: it may have got anything that is free."""

    def copy(self) -> Jobs:
        twin = Jobs()
        twin.held, twin.deliveries, twin.unsure = dict(self.held), dict(self.deliveries), set(self.unsure)
        return twin

    def doubt(self, seqs: Iterable[int]) -> None:
        """Nothing is certain about them any more."""
        for seq in list(seqs):
            self.unsure.add(seq)
            self.held.pop(seq, None)
            self.deliveries.pop(seq, None)

    def claimed(self, lease: Held) -> None:
        """The job was handed out, and the caller knows."""
        self.unsure.discard(lease.seq)
        self.held[lease.seq] = lease
        self.deliveries[lease.seq] = lease.deliveries

    def released(self, seqs: Iterable[int]) -> None:
        """The leases are over, the counters stay [NAK-2]."""
        for seq in seqs:
            self.held.pop(seq, None)

    def is_held(self, seq: int, now: int) -> bool:
        """Whether a lease is active [LSE-2]."""
        return seq in self.held and self.held[seq].deadline >= now

    def show(self, view: View, latest: int) -> None:
        """Hold the leases that are shown against those that must be there [QRC-2, QRC-3]."""
        live = {rec.seq for rec in view.records}
        # Of what had expired before the clock went back, nobody knows whether it was noticed.
        sure = {seq: one for seq, one in self.held.items() if seq in live and one.deadline >= latest}
        shown = {one.seq: one for one in view.leases if one.seq not in self.unsure}
        for seq, one in sure.items():
            if shown.get(seq) != one:
                raise Violation(f"{one} must be there, {shown.get(seq)} is [QRC-3]")
        for seq, one in shown.items():
            if seq not in live:
                raise Violation(f"{one} is of a job that is gone [QOB-3]")
            if seq not in sure and one.node != self.claiming and one != self.held.get(seq):
                raise Violation(f"{one} is there, and nobody was told of it")

    def after_restart(self, view: View, *, kept: bool) -> Jobs:
        """What is certain behind a restart: leases as they are shown, counters of what lives, if they are kept."""
        after = Jobs()
        live = {rec.seq for rec in view.records}
        if kept:
            after.deliveries = {seq: count for seq, count in self.deliveries.items() if seq in live}
            after.unsure = {seq for seq in self.unsure if seq in live}
            if self.claiming is not None:
                after.unsure |= live
                after.deliveries = {}
        for one in view.leases:
            after.claimed(one)
        return after


def keeps_leases(config: TopicConfig) -> bool:
    """Whether leases survive a restart [QRC-3]."""
    return config.type == "queue" and config.leases_durable and config.durability != "ephemeral"


def merged(runs: Iterable[Run], floor: int) -> tuple[Run, ...]:
    """Hole runs as a reader sees them: at or above the floor, neighbours of one reason joined."""
    found: list[Run] = []
    for run in sorted(runs):
        first = max(run.first, floor)
        if first > run.last:
            continue
        if found and found[-1].reason == run.reason and found[-1].last + 1 == first:
            first = found.pop().first
        found.append(Run(first, run.last, run.reason))
    return tuple(found)


class View(NamedTuple):
    """What a topic shows."""

    config: TopicConfig
    head: int
    floor: int
    """`evict_floor` [FLR-2]: a reader from 0 is told of everything below it."""
    runs: tuple[Run, ...]
    records: tuple[Rec, ...]
    leases: tuple[Held, ...] = ()
    """Of a queue, by seq."""

    @property
    def earliest(self) -> int:
        return self.records[0].seq if self.records else self.head + 1

    @property
    def numbers(self) -> tuple[int, int, int]:
        """`earliest_seq`, `count` and `bytes` of the topic's state (01 §5)."""
        return self.earliest, len(self.records), sum(rec.size for rec in self.records)


class Answer(NamedTuple):
    """What one read must return: seqs, the cursor behind them, and the tombstone's range and kind."""

    seqs: tuple[int, ...]
    next_from_seq: int
    gap: tuple[int, int, str] | None


def answer(
    view: View, from_seq: int, *, limit: int = 256, budget: int = 1 << 20, nodes: frozenset[str] = frozenset()
) -> Answer:
    """The read pipeline (01 §12) on a view; a prefix tombstone has the kind `lost`, its reason is best effort."""
    gap: tuple[int, int, str] | None = None
    cursor = from_seq
    if from_seq > view.head:
        gap, cursor = (1, view.head, "recreated"), view.floor - 1
    elif from_seq + 1 < view.floor:
        gap, cursor = (from_seq + 1, view.floor - 1, "lost"), view.floor - 1
    hidden = nodes if view.config.dedupe_node else frozenset()
    taken: list[int] = []
    used = 0
    items: list[Run | Rec] = [*view.runs, *view.records]
    for item in sorted(items, key=lambda item: item[0]):
        if isinstance(item, Run):
            if item.last <= cursor:
                continue
            if gap is not None or taken:
                return Answer(tuple(taken), max(cursor, item.first - 1), gap)
            gap = (max(item.first, cursor + 1), item.last, item.reason)
            cursor = item.last
            continue
        if item.seq <= cursor or (item.node is not None and item.node in hidden):
            continue
        if taken and used + item.size > budget:
            return Answer(tuple(taken), item.seq - 1, gap)
        taken.append(item.seq)
        used += item.size
        cursor = item.seq
        if len(taken) == limit:
            return Answer(tuple(taken), cursor, gap)
    return Answer(tuple(taken), view.head, gap)


@dataclass(frozen=True, slots=True)
class Entry:
    """A write that can be recognised again: by its key, or by a producer's epoch and index."""

    first: int
    count: int
    head: int
    ts: int
    wall: int
    epoch: int = 0
    index: int = 0

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Append:
    """A write: consecutive records, and the name it may have."""

    def __init__(
        self,
        recs: tuple[Rec, ...],
        durability: str,
        key: str | None = None,
        producer: tuple[str, int, int] | None = None,
    ) -> None:
        self.recs = recs
        self.durability = durability
        self.key = key
        self.producer = producer
        self.acked = False

    def __repr__(self) -> str:
        return f"append of {self.recs[0].seq}..{self.recs[-1].seq} ({self.durability})"


class Change:
    """A delete or a change of configuration; both pin the head and the loss marks of their moment (06 §4)."""

    def __init__(self, state: State, *, seqs: Iterable[int] = (), config: TopicConfig | None = None) -> None:
        self.seqs = frozenset(seqs)
        self.config = config
        self.head = state.head
        self.cap_lost = state.cap_lost
        self.ttl_lost = state.ttl_lost
        self.acked = False

    def __repr__(self) -> str:
        return f"delete of {sorted(self.seqs)}" if self.config is None else f"change to {self.config.durability}"


Event = Append | Change


class State:
    """A topic after some events. `records` holds the live ones by seq, ascending."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.head = 0
        self.records: dict[int, Rec] = {}
        self.cap_lost = 0
        self.ttl_lost = 0
        self.runs: tuple[Run, ...] = ()
        self.keys: dict[str, Entry] = {}
        self.producers: dict[str, Entry] = {}
        self.last_ts = 0

    def copy(self) -> State:
        twin = State(self.config)
        twin.__dict__.update(self.__dict__)
        twin.records, twin.keys, twin.producers = dict(self.records), dict(self.keys), dict(self.producers)
        return twin

    @property
    def lost(self) -> int:
        """The highest seq given up to a cap or to age."""
        return max(self.cap_lost, self.ttl_lost)

    def view(self) -> View:
        floor = min(self.lost + 1, self.head + 1)
        return View(self.config, self.head, floor, merged(self.runs, floor), tuple(self.records.values()))

    def apply(self, event: Event) -> None:
        """One event of the log."""
        if isinstance(event, Append):
            self._append(event)
        else:
            self.head = max(self.head, event.head)
            self.cap_lost = max(self.cap_lost, event.cap_lost)
            self.lose(event.ttl_lost)
            for seq in event.seqs:
                self.records.pop(seq, None)
            self.config = event.config or self.config
        self._evict()

    def _append(self, event: Append) -> None:
        self.records.update((rec.seq, rec) for rec in event.recs)
        first, last = event.recs[0], event.recs[-1]
        self.head, self.last_ts = last.seq, max(self.last_ts, last.ts)
        entry = Entry(first.seq, len(event.recs), last.seq, last.ts, last.wall)
        if event.key is not None:
            self.keys[event.key] = entry
        if event.producer is not None:
            id, epoch, index = event.producer
            self.producers[id] = replace(entry, epoch=epoch, index=index)

    def _evict(self) -> None:
        """Cap eviction, lowest first, one by one [CAP-2]; `reject` topics never evict [CAP-5]."""
        config = self.config
        if config.discard != "old" or not (config.cap_records or config.cap_bytes):
            return
        count, used = len(self.records), sum(rec.size for rec in self.records.values())
        for seq, rec in list(self.records.items()):
            over = (config.cap_records and count > config.cap_records) or (config.cap_bytes and used > config.cap_bytes)
            if not over:
                break
            del self.records[seq]
            self.cap_lost = seq
            count, used = count - 1, used - rec.size

    def expired(self, now: int) -> int:
        """The highest seq that age has taken by then, or the mark as it is [TTL-1]."""
        ttl = self.config.ttl_ms
        old = [seq for seq, rec in self.records.items() if ttl and now - rec.ts > ttl]
        return max(self.ttl_lost, old[-1] if old else 0)

    def lose(self, ttl_lost: int) -> None:
        """Move the mark of age; everything up to either mark is gone."""
        self.ttl_lost = max(self.ttl_lost, ttl_lost)
        lost = self.lost
        for seq in [seq for seq in self.records if seq <= lost]:
            del self.records[seq]

    def matching(
        self, before_seq: int | None = None, match: str | None = None, seqs: Iterable[int] | None = None
    ) -> frozenset[int]:
        """The live seqs that a delete selects (01 §14)."""
        chosen = set(self.records)
        if before_seq is not None:
            chosen = {seq for seq in chosen if seq < before_seq}
        if seqs is not None:
            chosen &= set(seqs)
        if match is not None:
            chosen = {seq for seq in chosen if _matches(match, self.records[seq].tag)}
        return frozenset(chosen)

    def refuses(self, count: int, size: int) -> Literal["", "full", "never"]:
        """What a `reject` topic says to a write [CAP-3, CAP-4]."""
        config = self.config
        if config.discard != "reject":
            return ""
        records, cap = config.cap_records, config.cap_bytes
        if (records and count > records) or (cap and size > cap):
            return "never"
        used = sum(rec.size for rec in self.records.values())
        full = (records and len(self.records) + count > records) or (cap and used + size > cap)
        return "full" if full else ""

    def remembered(self, key: str, now: int) -> Entry | None:
        """The write of a key inside the window [IDM-1]."""
        entry = self.keys.get(key)
        window = self.config.idempotency_window_ms
        return entry if entry is not None and window and now - entry.ts <= window else None


def _matches(match: str, tag: str | None) -> bool:
    if tag is None:
        return False
    return tag.startswith(match[:-1]) if match.endswith("*") else tag == match


class Rules(NamedTuple):
    """What a restart was, and the numbers that bound what it may show."""

    how: How
    now: int
    latest: int
    """The highest clock seen: where the clock went back, age may have been judged by it [S-265]."""
    reserve_max: int
    assumed: bool = False
    """The start was told to assume a crash: nothing is lost, but open reservations are told of [S-245]."""
    lied: bool = False
    """A sync reported success and wrote nothing: nothing is owed, but nothing may be made up either."""


class Topic:
    """One instance of a topic and what is promised about it."""

    def __init__(self, config: TopicConfig) -> None:
        self.base = State(config)
        self.live = State(config)
        self.events: list[Event] = []
        self.seen: list[Event] = []
        """Those that had been acknowledged when the topic was last looked at."""
        self.written: dict[int, list[Rec]] = {}
        """Every record that was ever handed to the engine, by seq."""
        self.soft: set[int] = set()
        """Chosen by a delete while the topic was `ephemeral`: after a restart they may be there or not [DUR-10]."""
        self.failed: list[frozenset[int]] = []
        """What deletes select that were answered with an error: each may appear at any time, or never [R-6]."""
        self.reserved = False
        """Whether a reservation of seqs may be open on disk [A-2]."""
        self.mixed = False
        """Whether records were in memory only: they count towards caps, and no restart finds them again [CFG-10]."""
        self.jobs = Jobs()
        self.evicted: dict[int, Rec] = {}
        """What caps have taken since, and nobody has seen gone: the log tells of it before anybody does [DUR-12]."""

    @property
    def highest(self) -> int:
        """The highest seq that was ever staged."""
        return max(self.live.head, max(self.written, default=0))

    @property
    def logged(self) -> bool:
        """Whether what is written now goes to the log [S-102]."""
        return self.live.config.durability != "ephemeral"

    def stage(self, event: Event) -> None:
        """The event is on its way: from now on a crash may show it, whole."""
        if isinstance(event, Append):
            for rec in event.recs:
                self.written.setdefault(rec.seq, []).append(rec)
            self.reserved = self.reserved or event.durability == "disk"
        if self._in_log(event):
            self.events.append(event)
        elif isinstance(event, Change):
            self.soft |= event.seqs

    def _in_log(self, event: Event) -> bool:
        return self.logged or (isinstance(event, Change) and event.config is not None)

    def ack(self, event: Event, *, durable: bool) -> None:
        """The caller was told that it happened; then open ones before it did not (they were taken back)."""
        event.acked = True
        if self._in_log(event):
            self._notice_failed_deletes()
            self.events = [other for other in self.events if other.acked]
        self.mixed = self.mixed or (isinstance(event, Append) and event.durability == "ephemeral")
        before = self.live.records.copy() if self.mixed else {}
        self.live.apply(event)
        if self.logged:
            self.evicted |= {seq: rec for seq, rec in before.items() if seq <= self.live.cap_lost}
        if durable:
            self.settle()

    @property
    def unsure(self) -> frozenset[int]:
        """Every seq that a failed delete may have taken, or may take."""
        return frozenset().union(*self.failed)

    def _notice_failed_deletes(self) -> None:
        """One that is in the log and failed behind it, where its records could not be looked up, may still be done."""
        found = [event.seqs for event in self.events if isinstance(event, Change) and not event.acked and event.seqs]
        self.failed += [seqs for seqs in found if seqs not in self.failed]

    def _take_failed_deletes(self, live: State, there: set[int]) -> None:
        """A failed delete of which nothing is there any more was done; half of one never shows [R-6]."""
        self._notice_failed_deletes()
        done = frozenset[int]().union(*(seqs for seqs in self.failed if not seqs & there))
        live.records = {seq: rec for seq, rec in live.records.items() if seq not in done}

    def _unevicted(self, floor: int) -> State:
        """The live state, with what caps should have taken where the log could not be told of it [DUR-12]."""
        if not self.evicted or floor > self.live.cap_lost:
            return self.live
        live = self.live.copy()
        live.records |= {seq: rec for seq, rec in self.evicted.items() if seq >= floor}
        live.records = dict(sorted(live.records.items()))
        live.cap_lost = floor - 1
        return live

    def _see_evicted(self, floor: int) -> None:
        """It was synced before it could be seen [DUR-12], and with it all that lies before it in the log."""
        if self.logged and self.evicted and floor > self.live.cap_lost:
            self.settle()
            self.base.cap_lost = max(self.base.cap_lost, self.live.cap_lost)
            self.base.lose(0)
            self.evicted = {}

    def refuse(self, event: Event) -> None:
        """The caller was told that it did not happen, and it cannot have."""
        self.events = [other for other in self.events if other is not event]

    def settle(self) -> None:
        """A sync covered everything acknowledged so far."""
        while self.events and self.events[0].acked:
            self.base.apply(self.events.pop(0))

    def _settle_behind(self, lost: int) -> None:
        """A sync covered that age has taken the seqs up to `lost`.

        When that came to the log between two looks nobody knows; but it came behind all that was there at the last one,
        and behind the seqs themselves.
        """
        acked = list(takewhile(lambda event: event.acked, self.events))
        before = [at for at, event in enumerate(acked, 1) if event in self.seen or _holds(event, lost)]
        for _ in range(before[-1] if before else 0):
            self.base.apply(self.events.pop(0))

    def pin(self) -> None:
        """A checkpoint noted the head, also of an `ephemeral` topic [DUR-7]."""
        if not self.logged:
            self.base.head = max(self.base.head, self.live.head)

    def show(self, view: View, now: int, latest: int, *, suspended: bool = False) -> None:
        """Hold what the running engine shows against what it must; age moves the floor as it is seen.

        `suspended`: a shard that cannot log keeps showing what has expired since [S-263].
        """
        live = self._unevicted(view.floor) if suspended else self.live
        low = max(live.cap_lost, live.ttl_lost if suspended else live.expired(now)) + 1
        high = max(live.cap_lost, live.expired(latest)) + 1
        if not low <= view.floor <= max(low, high):
            raise Violation(f"the floor is {view.floor}, it must be {low} [FLR-2]")
        live.lose(view.floor - 1 if view.floor - 1 > live.cap_lost else 0)
        if self.logged and live.ttl_lost == view.floor - 1 > self.base.ttl_lost:
            # It was synced before it could be seen [DUR-12], and with it all that lies before it in the log.
            self._settle_behind(view.floor - 1)
            self.base.lose(view.floor - 1)
        self.seen = [event for event in self.events if event.acked]
        self._see_evicted(view.floor)
        self._take_failed_deletes(live, {rec.seq for rec in view.records})
        must = live.view()._replace(leases=view.leases)
        for rec in view.records:
            if rec.seq not in live.records or not live.records[rec.seq].shows(rec):
                raise Violation(f"{_show(rec)} is shown, which is {_why_not(self, rec)}")
        if view != must._replace(records=view.records) or len(view.records) != len(must.records):
            raise Violation(f"shown {_outline(view)}, but it must be {_outline(must)}")
        live.records = {rec.seq: rec for rec in view.records}
        self.jobs.show(view, latest)

    def show_rest(self, view: View) -> None:
        """The same where the disk took records from a running engine: what it shows is true, what it misses is told."""
        shown = {rec.seq for rec in view.records}
        told = {seq for run in view.runs for seq in range(run.first, run.last + 1)}
        live = self._unevicted(view.floor)
        self._take_failed_deletes(live, shown | told)
        for rec in view.records:
            known = live.records.get(rec.seq)
            if known is None or not known.shows(rec):
                raise Violation(f"record {rec.seq} is shown, which is not visible to anybody")
        # Nothing is promised about records of the class `memory`: those may be silent [S-130].
        for seq in live.records if view.config.durability != "memory" else ():
            if seq not in shown and seq not in told and seq >= view.floor:
                raise Violation(f"record {seq} is neither shown nor told")

    def states(self, how: How) -> Iterator[tuple[State, list[Event]]]:
        """Every state that a restart may lead to, and the events that are lost with it.

        Open events come last, and at most one of them reached the disk: after a failure the shard has latched, or has
        taken the write back before it took the next one [S-78, S-79].
        """
        acked = [event for event in self.events if event.acked]
        state = self.base.copy()
        for count in range(len(acked) + 1):
            if count:
                state.apply(acked[count - 1])
            if how == "crash" or count == len(acked):
                yield state.copy(), acked[count:]
        for event in self.events:
            if not event.acked:
                further = state.copy()
                further.apply(event)
                yield further, []

    def judge(self, view: View, rules: Rules) -> Topic:
        """The topic as it is after the restart; raises `Violation` if that breaks a promise."""
        self._nothing_made_up(view)
        if rules.lied:
            return self._adopted(State(view.config), view)
        candidates = list(self.states(rules.how))
        self._nothing_lost(view, [state for state, _ in candidates], rules)
        self._nothing_back(view, [state for state, _ in candidates])
        self._heads(view, candidates, rules)
        why = []
        for state, lost in reversed(candidates):
            differs = self._differs(view, state, lost, rules)
            if not differs:
                kept = keeps_leases(view.config)
                (self.jobs if kept else Jobs()).show(view, rules.latest)
                adopted = self._adopted(state, view)
                adopted.jobs = self.jobs.after_restart(view, kept=kept)
                return adopted
            why.append(f"without {lost}: {differs}" if lost else differs)
        raise Violation(f"after a {rules.how} no prefix of the log explains {_outline(view)}; {'; '.join(why[:4])}")

    def _nothing_made_up(self, view: View) -> None:
        """Every record is one that was written there; in order, once [INV-1, INV-13]."""
        last = Rec(0, 0, None, None, b"")
        for rec in view.records:
            if not any(known.shows(rec) for known in self.written.get(rec.seq, ())):
                raise Violation(f"{_show(rec)} was never written [INV-13]")
            if rec.seq <= last.seq or rec.ts < last.ts:
                raise Violation(f"{_show(rec)} stands behind {_show(last)} [SEQ-3, REC-10]")
            last = rec

    def _nothing_lost(self, view: View, states: list[State], rules: Rules) -> None:
        """What no allowed state lacks must be there [INV-4, S-362 1]."""
        shown = {rec.seq for rec in view.records}
        age = [state.expired(rules.latest) for state in states]
        for seq, rec in states[0].records.items():
            sure = all(seq in state.records and seq > lost for state, lost in zip(states, age, strict=True))
            floor = self._given_up(rules) if self.mixed or states[0].config.durability == "ephemeral" else 0
            if sure and seq not in shown and seq not in self.soft | self.unsure and seq > floor:
                what = "acknowledged" if rules.how != "crash" else "durable"
                raise Violation(f"{_show(rec)} was {what} and is gone after a {rules.how} [INV-4]")

    def _given_up(self, rules: Rules) -> int:
        """How far caps and age may have got among all records, those in memory too; the log may tell of it already."""
        found = [self.live]
        for event in self.events:
            if not event.acked:
                found.append(self.live.copy())
                found[-1].apply(event)
        return max(max(state.lost, state.expired(rules.latest)) for state in found)

    def _nothing_back(self, view: View, states: list[State]) -> None:
        """What every allowed state has given up stays away [INV-8]."""
        for rec in view.records:
            if not any(rec.seq in state.records for state in states):
                raise Violation(f"{_show(rec)} is back, which was {_why_not(self, rec)} [INV-8]")

    def _heads(self, view: View, candidates: list[tuple[State, list[Event]]], rules: Rules) -> None:
        """Heads never fall behind what was acknowledged, nor jump without leave [S-362 3, A-16]."""
        low = min(max(state.head, _owed(lost)) for state, lost in candidates)
        if view.head < low:
            raise Violation(f"the head is {view.head} after a {rules.how}, {low} was acknowledged [INV-1]")
        high = max(self.highest, self.base.head)
        if view.head > high and not (self.reserved and (rules.how == "crash" or rules.assumed)):
            raise Violation(f"the head jumped to {view.head} after a {rules.how}, {high} was the last seq [A-16]")
        if view.head > high + rules.reserve_max:
            raise Violation(f"the head jumped to {view.head}, {rules.reserve_max} seqs are reserved above {high} [A-2]")
        known = {run for state, _ in candidates for run in state.runs}
        for run in view.runs:
            if run.reason != "crash" and run not in merged(known, view.floor):
                raise Violation(f"{run} is told, and no byte was damaged")

    def _differs(self, view: View, state: State, lost: list[Event], rules: Rules) -> str:
        """Why this state is not the one shown, or nothing."""
        volatile = state.config.durability == "ephemeral"
        if view.config != state.config:
            return f"the configuration is {view.config}"
        low, high = (max(state.cap_lost, state.expired(at)) + 1 for at in (rules.now, rules.latest))
        if volatile:
            low = state.lost + 1
        if volatile or self.mixed:
            high = max(high, self._given_up(rules) + 1)
        if not low <= view.floor <= high:
            return f"the floor is {view.floor}, not {low}"
        if view.head < max(state.head, _owed(lost)):
            return f"the head is {view.head}, below {max(state.head, _owed(lost))}"
        if not any(merged(runs, view.floor) == view.runs for runs in self._tails(view, state, volatile, rules)):
            return f"the head is {view.head} and the holes are {view.runs}"
        expected = {seq for seq in state.records if seq >= view.floor}
        shown = {rec.seq for rec in view.records}
        if shown - expected:
            return f"{sorted(shown - expected)} are there too"
        # The marks of a lost delete may have reached its segments: of those each record stands for itself.
        maybe = self.soft | self.unsure | {seq for event in lost if isinstance(event, Change) for seq in event.seqs}
        if expected - shown - maybe:
            return f"{sorted(expected - shown - maybe)} are missing"
        wrong = [rec for rec in view.records if not state.records[rec.seq].shows(rec)]
        return f"{_show(wrong[0])} is not what was acknowledged there" if wrong else ""

    def _tails(self, view: View, state: State, volatile: bool, rules: Rules) -> Iterator[tuple[Run, ...]]:
        """The hole runs that may explain a head above the state's."""
        if view.head == state.head or (volatile and view.head <= self.live.head):
            yield state.runs
        elif rules.how == "crash" and state.config.durability == "memory" and view.head <= self.highest:
            yield state.runs  # the head was noted, the records went with the machine: silently [DUR-8, S-242]
        if self.reserved and (rules.how == "crash" or rules.assumed):
            for run in view.runs:
                if run.reason == "crash" and state.head < run.last <= view.head and (volatile or run.last == view.head):
                    yield (*state.runs, Run(state.head + 1, run.last, "crash"))

    def _adopted(self, state: State, view: View) -> Topic:
        """The topic as the restart shows it: opening made all of it durable [S-88, S-245]."""
        topic = Topic(view.config)
        now = topic.base
        now.__dict__.update(state.copy().__dict__)
        now.head, now.runs = view.head, view.runs
        now.records = {rec.seq: rec for rec in view.records}
        now.cap_lost = max(now.cap_lost, view.floor - 1)
        now.keys = {key: replace(entry, head=entry.last) for key, entry in state.keys.items()}
        now.producers = {id: replace(entry, head=entry.last) for id, entry in state.producers.items()}
        topic.live = now.copy()
        topic.written = {seq: [rec] for seq, rec in now.records.items()}
        return topic


def _holds(event: Event, seq: int) -> bool:
    """Whether it has written records up to that seq."""
    return isinstance(event, Append) and event.recs[0].seq <= seq


def _owed(lost: list[Event]) -> int:
    """The highest acknowledged seq among lost events that must not be handed out again [DUR-4]."""
    owed = (e.recs[-1].seq for e in lost if isinstance(e, Append) and e.acked and e.durability in ("disk", "fsync"))
    return max(owed, default=0)


def _why_not(topic: Topic, rec: Rec) -> str:
    if rec.seq not in topic.written:
        return "never written"
    if rec.seq <= topic.live.lost:
        return "evicted"
    known = topic.live.records.get(rec.seq)
    if known is None:
        return "deleted or refused"
    return f"not {_show(known)}"


def _show(rec: Rec) -> str:
    return f"record {rec.seq} ({rec.data[:24]!r}, {rec.size} bytes, tag {rec.tag!r}, ts {rec.ts})"


def _outline(view: View) -> str:
    seqs = [rec.seq for rec in view.records]
    holes = ", ".join(f"{run.reason} {run.first}..{run.last}" for run in view.runs)
    kind = view.config.durability
    return f"[{kind}: head {view.head}, floor {view.floor}, holes ({holes}), records {seqs}]"


class Slot:
    """What may be found under one name."""

    def __init__(self, topic: Topic | None = None) -> None:
        self.topic = topic
        self.attempts: list[Topic] = []
        """Creations under way, or that failed with an open outcome: one of them may be there after a restart."""
        self.deleting = False
        """The deletion of `topic` is under way, or failed with an open outcome."""


class Store:
    """All topics of an engine."""

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, if it exists."""
        slot = self.slots.get(name)
        return None if slot is None else slot.topic

    def names(self) -> list[str]:
        """The names of the topics that exist, sorted."""
        return sorted(name for name in self.slots if self.topic(name) is not None)

    def topics(self) -> Iterator[Topic]:
        """The topics that exist."""
        return (topic for name in self.names() if (topic := self.topic(name)) is not None)

    def creating(self, name: str, config: TopicConfig) -> Topic:
        """A creation is on its way."""
        topic = Topic(config)
        self.slots.setdefault(name, Slot()).attempts.append(topic)
        return topic

    def created(self, name: str) -> None:
        """The newest attempt to create it is durable [DUR-9]."""
        self.slots[name] = Slot(self.slots[name].attempts[-1])

    def deleting(self, name: str) -> None:
        """A deletion is on its way."""
        self.slots[name].deleting = True

    def deleted(self, name: str) -> None:
        """It is durable."""
        del self.slots[name]

    def settle(self) -> None:
        """A sync covered everything acknowledged in every log."""
        for topic in self.topics():
            topic.settle()

    def judge(self, found: Mapping[str, View], rules: Rules) -> Store:
        """The store as it is after a restart; raises `Violation` if that breaks a promise."""
        store = Store()
        for name in sorted({*self.slots, *found}):
            slot, view = self.slots.get(name, Slot()), found.get(name)
            if view is None:
                if slot.topic is not None and not slot.deleting and not rules.lied:
                    raise Violation(f"topic {name!r} is gone after a {rules.how} [DUR-9]")
                continue
            possible = [slot.topic] if slot.topic is not None else slot.attempts
            if not possible and not rules.lied:
                raise Violation(f"topic {name!r} exists after a {rules.how}; it was deleted or never made [NAME-9]")
            for topic in possible:
                try:
                    store.slots[name] = Slot(topic.judge(view, rules))
                    break
                except Violation as violation:
                    if topic is possible[-1]:
                        raise Violation(f"topic {name!r}: {violation}") from violation
        return store
