"""One topic: its state, and `apply`, the only thing that changes it (ARCHITECTURE decision 2).

A verb decides what to log; once its commit condition holds, the entry is applied here. Recovery reads entries back and
applies them in the same way, with `recovering` set: marks are written to disk again, counts are made at the end.

    floor            first seq that eviction and prefix deletes leave: max(evict_floor, delete_below)
    ahead            the lowest live records, looked up in one go: `earliest_seq` and cap eviction cost next to nothing
    tickets          what is staged and not yet published, in seq order [S-107]

Owner only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topics.codec import control
from topics.codec.frame import Buffer
from topics.engine.index import Ahead, Index, Removed
from topics.engine.lease import Leases
from topics.engine.reserve import Reservation
from topics.errors import TopicsError
from topics.model import Durability, Selector, TopicConfig
from topics.storage.descriptor import Claim, Segment
from topics.storage.rebuild import NO_CLAIM
from topics.storage.tags import SeqArray
from topics.storage.tail import Locations, Tail

if TYPE_CHECKING:
    from topics.engine.queue import Claims
    from topics.engine.scheduler import Item
    from topics.engine.watch import Follower

STRICTNESS: dict[Durability, int] = {"ephemeral": 0, "memory": 1, "disk": 2, "fsync": 3}
AHEAD = 256
FEW = 64
"""Seqs that are gone through one by one."""
API, ACK, DEAD_LETTER = 0, 1, 2
"""What a Delete frame was logged for (06 §4)."""


class Lsn(NamedTuple):
    """A place in the WAL of an engine."""

    group: str
    file_no: int
    offset: int


class Ticket:
    """Something staged: published in turn, once its commit condition holds, or failed [S-107, S-110]."""

    __slots__ = ("lsn", "seq_before", "settled")

    def __init__(self, seq_before: int) -> None:
        self.seq_before = seq_before
        """The topic's next seq when it was staged."""
        self.lsn: Lsn | bool = False
        """Where it is logged once it is committed; True for what is not logged at all."""
        self.settled = False

    def joined(self, line: Sequence[Ticket]) -> int:
        """How many tickets, from this one on, its `publish` takes; `line` begins with it."""
        return 1

    def publish(self, run: Sequence[Ticket]) -> None:
        """Make it true, with those that joined it, and tell whoever staged them."""
        raise NotImplementedError

    def fail(self, error: TopicsError) -> None:
        """It will not become true."""
        raise NotImplementedError


class Change(Ticket):
    """A ticket of what is not written often: two calls."""

    __slots__ = ("_fail", "_publish")

    def __init__(
        self, publish: Callable[[Lsn | None], None], fail: Callable[[TopicsError], None], seq_before: int
    ) -> None:
        super().__init__(seq_before)
        self._publish = publish
        self._fail = fail

    def publish(self, run: Sequence[Ticket]) -> None:
        self._publish(self.lsn if isinstance(self.lsn, Lsn) else None)

    def fail(self, error: TopicsError) -> None:
        self._fail(error)


class Appended(NamedTuple):
    """Records that were logged, or are in memory only: what the index keeps of them."""

    first: int
    entries: Buffer
    locations: Sequence[int] | Locations
    """In the WAL; of records in memory, offsets within `frames`."""
    tags: Sequence[bytes | str | None]
    accounted: int
    ts: int
    frames: bytes | None = None
    """Given for records that are in memory only."""
    derived: bool = False
    """Made by a router, in a topic whose records are logged: they stand in its tail [S-196]."""


class Taken(NamedTuple):
    """Logged records of a large commit, made ready ahead: applying them is quick, however many there are."""

    tail: Tail
    base: int
    """Where their locations count from."""
    tags: Sequence[tuple[int, Sequence[bytes | None]]]
    """With the seq of the first of each run."""
    accounted: int
    ts: int


class Attached(NamedTuple):
    """Records that came as sealed segments [S-288]."""

    first: int
    records: int
    ts: int
    cap_floor: int
    """When they were committed."""
    accounted: int = 0
    segments: Sequence[Segment] = ()
    """None at a start, which has found them by itself."""

    @property
    def last(self) -> int:
        """Seq of the last of them."""
        return self.first + self.records - 1


Entry = Appended | Taken | Attached | control.Delete | control.EvictWatermark | control.ConfigUpdate | control.MarkRow


class Totals:
    """Sums over all topics of an engine."""

    __slots__ = ("attached", "bytes", "tail_bytes", "tail_records")

    def __init__(self) -> None:
        self.bytes = 0
        """Accounted bytes of live records."""
        self.tail_records = 0
        """Records added to tails since they were last counted [S-153]."""
        self.tail_bytes = 0
        self.attached = 0
        """How often segments of a commit were taken in [S-288]."""


class Topic:
    """One instance of a topic. Invariant: `floor <= earliest_seq <= head + 1`, counts are of [floor, head]."""

    __slots__ = (
        "_ahead", "_ahead_through", "_totals", "attaching", "base", "bytes", "cap_floor", "caps_due", "checkpointing",
        "claim", "claims", "classes", "config", "config_version", "count", "delete_below", "delete_number",
        "delete_number_staged", "deletes_recorded", "disturbed", "epoch", "extra", "followers", "framing", "head", "id",
        "index", "item", "last_consumed_ms", "last_read_ms", "last_ts", "last_write_ms", "leases", "line", "marked",
        "name", "needed", "next_seq", "recovering", "removed", "reservation", "retry", "rewritten_ms", "served",
        "staged_bytes", "staged_records", "stuck", "tickets", "ttl_floor", "ttl_now", "ttl_waiting", "version_staged",
        "waiters",
    )  # fmt: skip

    def __init__(
        self, id: int, name: str, epoch: int, config: TopicConfig, index: Index, totals: Totals, *, base: int = 1
    ) -> None:
        self.id = id
        self.name = name
        self.epoch = epoch
        self.config = config
        self.extra: dict[str, Any] = {}
        """Members of the stored configuration that only another version knows."""
        self.config_version = 1
        self.base = base
        self.index = index
        self.head = base - 1
        self.next_seq = base
        self.last_ts = 0
        """Of the newest staged record [S-104]."""
        self.cap_floor = 1
        self.ttl_floor = 1
        self.delete_below = 1
        self.count = 0
        self.bytes = 0
        self.delete_number = self.delete_number_staged = 0
        self.deletes_recorded = 0
        """Highest delete number whose record in `$deletes` is durable [A-20]."""
        self.version_staged = 1
        self.staged_records = self.staged_bytes = 0
        """Of appends that are staged and not published."""
        self.claim: Claim = NO_CLAIM
        """What the newest durable mark says of the active segment."""
        self.marked: tuple[int, int, int, int] | None = None
        """Head and floors in the newest mark row."""
        self.reservation = Reservation()
        self.tickets: list[Ticket] = []
        self.line: list[tuple[bool, Callable[[], None], Callable[[TopicsError], None]]] = []
        """What waits to be staged: whether it needs quiet, what it does, and who is told if it cannot."""
        self.framing = False
        """A large write is being framed, or a write waits for room: nothing else is staged before it [A-1]."""
        self.classes: list[Durability] = []
        """Classes of configurations that are staged [CFG-10]."""
        self.needed: list[Lsn] = []
        """Delete and Gap frames that the next checkpoint of the topic makes unnecessary [S-192]."""
        self.retry: list[SeqArray] = []
        """Marks that an I/O error kept from being set."""
        self.caps_due = False
        """An I/O error kept records from being evicted."""
        self.last_write_ms: int | None = None
        self.last_read_ms: int | None = None
        self.last_consumed_ms: int | None = None
        """What priority goes by; listing may touch it without reading [TOP-9]."""
        self.ttl_now = 0
        """Highest instant a TTL pass has used [S-263]."""
        self.ttl_waiting: list[Callable[[TopicsError | None], None]] | None = None
        self.waiters: dict[object, Callable[[], None]] = {}
        """Long polls, called once after the next publication."""
        self.followers: dict[Follower, None] = {}
        """In the order they came."""
        self.disturbed = 0
        """Behind this seq no record was deleted, and none is a hole."""
        self.served = 0
        """Head of the last delivery; whoever follows live has it as cursor."""
        self.item: Item | None = None
        """Its delivery, once somebody wants one."""
        self.leases: Leases | None = None
        """Of a queue, once a job of it was delivered."""
        self.claims: Claims | None = None
        """Who waits for jobs of it."""
        self.recovering = False
        self.removed = False
        self.checkpointing = False
        self.stuck: TopicsError | None = None
        """Why nothing can be staged: segments that are committed cannot be moved in [S-290]."""
        self.attaching = False
        """Segments are about to follow its last one: no checkpoint takes it by itself [S-288]."""
        self.rewritten_ms = 0
        self._totals = totals
        self._ahead: list[Ahead] = []
        """Lowest last."""
        self._ahead_through = 0
        """Up to which seq `_ahead` is complete; 0 when it has to be looked up."""

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def evict_floor(self) -> int:
        """First seq that no eviction took, clamped to the topic [FLR-2]."""
        return max(self.cap_floor, self.ttl_floor, 1)

    @property
    def floor(self) -> int:
        """First seq that may be live."""
        return max(self.cap_floor, self.ttl_floor, self.delete_below)

    @property
    def earliest_seq(self) -> int:
        """The first live seq, `head + 1` when there is none."""
        first = self.lowest()
        return self.head + 1 if first is None else first.seq

    @property
    def next_delete_number(self) -> int:
        """Of the next delete, behind those that are staged."""
        return max(self.delete_number, self.delete_number_staged) + 1

    def lowest(self) -> Ahead | None:
        """The lowest live record."""
        ahead, floor = self._ahead, self.floor
        while ahead and ahead[-1].seq < floor:
            ahead.pop()
        if not ahead and self._ahead_through < self.head and self.count:
            start = max(floor, self._ahead_through + 1)
            found = self.index.ahead(start, self.head, AHEAD)
            ahead.extend(reversed(found))
            self._ahead_through = found[-1].seq if found else self.head
        return ahead[-1] if ahead else None

    def read_at(self, now_ms: int) -> None:
        """Somebody read it, or asked how it is [DIF-3, TOP-5]."""
        self.last_read_ms = self.last_consumed_ms = now_ms

    def forget_ahead(self) -> None:
        """Look live records up anew: some of them are gone."""
        self._ahead.clear()
        self._ahead_through = 0

    def _leave_ahead(self, seqs: SeqArray) -> None:
        """A few of the records looked up are gone, the others are still the lowest."""
        if len(seqs) > AHEAD:
            self.forget_ahead()
        elif self._ahead and len(seqs) and int(seqs[0]) <= self._ahead_through:
            dead = set(seqs.tolist())
            self._ahead = [one for one in self._ahead if one.seq not in dead]

    @property
    def durability(self) -> Durability:
        """The class that a write staged now obeys: the strictest of those in force and in flight [CFG-10]."""
        if not self.classes:
            return self.config.durability
        return max((self.config.durability, *self.classes), key=STRICTNESS.__getitem__)

    @property
    def keeps_leases(self) -> bool:
        """Whether it is a queue whose leases survive restarts [QRC-3]."""
        config = self.config
        return config.type == "queue" and config.leases_durable and config.durability != "ephemeral"

    @property
    def told(self) -> bool:
        """Whether what is lost of it is told to readers [DUR-8]."""
        return self.config.durability in ("disk", "fsync")

    def marks(self) -> tuple[int, int, int, int]:
        """Head and floors, as a mark row says them."""
        return self.head, self.cap_floor, self.ttl_floor, self.delete_below

    # -- changing ----------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry, at: Lsn | None = None) -> Removed | None:
        """Make a committed entry true. `at` is where it is logged, None for what is in memory only."""
        if isinstance(entry, Appended):
            self._append(entry)
        elif isinstance(entry, Taken):
            self._take(entry)
        elif isinstance(entry, Attached):
            self._attach(entry)
        elif isinstance(entry, control.Delete):
            return self._delete(entry, at)
        elif isinstance(entry, control.ConfigUpdate):
            self._configure(entry)
        else:
            below = entry.delete_below if isinstance(entry, control.MarkRow) else 1
            self.raise_floors(entry.cap_floor, entry.ttl_floor, below)
        return None

    def _append(self, entry: Appended) -> None:
        if entry.derived:
            self._derive(entry)
        elif entry.frames is not None:
            tags = [tag if isinstance(tag, str) or tag is None else tag.decode() for tag in entry.tags]
            assert not isinstance(entry.locations, np.ndarray)
            self.index.extend_in_memory(entry.first, bytes(entry.entries), entry.locations, tags, entry.frames)
        else:
            tail = self.index.tail
            assert entry.first == tail.end + 1, "the log has no gap that is not a Gap"
            before = tail.nbytes
            self.index.extend(bytes(entry.entries), entry.locations, entry.tags)
            self._totals.tail_records += len(entry.locations)
            self._totals.tail_bytes += tail.nbytes - before
        last = entry.first + len(entry.locations) - 1
        if not self.recovering:
            self._add(len(entry.locations), entry.accounted)
            if self.leases is not None:
                self.leases.appended(entry.first, last)
        self.last_ts = max(self.last_ts, entry.ts)
        self.head = max(self.head, last)
        self.next_seq = max(self.next_seq, last + 1)

    def _take(self, entry: Taken) -> None:
        tail, ready = self.index.tail, entry.tail
        records, nbytes, last = ready.records, ready.nbytes, ready.end
        assert ready.first == tail.end + 1, "the log has no gap that is not a Gap"
        self.index.take(ready, entry.base, entry.tags)
        self._totals.tail_records += records
        self._totals.tail_bytes += nbytes
        self._add(records, entry.accounted)
        self.last_ts = max(self.last_ts, entry.ts)
        self.head = max(self.head, last)
        self.next_seq = max(self.next_seq, last + 1)

    def _attach(self, entry: Attached) -> None:
        """Segments hold the records already: nothing of them is in the tail."""
        self.raise_floors(entry.cap_floor, 1, 1)
        if entry.segments:
            self.index.attach(entry.segments)
            self._totals.attached += 1
            self._add(entry.records, entry.accounted)
            assert self.index.segments is not None
            self.claim = self.index.segments.claim()
        self.last_ts = max(self.last_ts, entry.ts)
        self.head = max(self.head, entry.last)
        self.next_seq = max(self.next_seq, entry.last + 1)

    def _derive(self, entry: Appended) -> None:
        """Copies in memory, behind the log's end."""
        tail = self.index.tail
        assert entry.frames is not None
        assert entry.first == tail.end + 1
        assert not isinstance(entry.locations, np.ndarray)
        before = tail.nbytes
        self.index.extend_derived(bytes(entry.entries), entry.locations, entry.tags, entry.frames)
        self._totals.tail_records += len(entry.locations)
        self._totals.tail_bytes += tail.nbytes - before
        if entry.first < self.floor and not self.recovering:
            # Derived again behind floors that outlived the first copies: what they passed stays dead.
            gone = self.index.live(entry.first, min(tail.end, self.floor - 1))
            self._add(-gone.records, -gone.bytes)

    def apply_gap_in_memory(self, gap: control.Gap) -> None:
        """Add a hole run to what is in memory only."""
        self.index.append_gap_in_memory(gap.first, gap.last - gap.first + 1, self.index.last_ts(), gap.reason, gap.hops)
        self.disturbed = max(self.disturbed, gap.last)
        self.head = max(self.head, gap.last)
        self.next_seq = max(self.next_seq, gap.last + 1)

    def apply_gap(self, gap: control.Gap, location: int) -> None:
        """Add the part of a gap that lies behind the log's end [S-129]; overlays stay what they are."""
        first = max(gap.first, self.index.tail.end + 1)
        if first <= gap.last:
            # Of what is published: `last_ts` may be that of a record that is staged behind the gap.
            ts = self.index.last_ts()
            self.index.tail.append_gap(gap.last - first + 1, ts, gap.reason, gap.hops, location)
        self.disturbed = max(self.disturbed, gap.last)
        self.head = max(self.head, gap.last)
        self.next_seq = max(self.next_seq, gap.last + 1)

    def _configure(self, entry: control.ConfigUpdate) -> None:
        self.raise_floors(entry.cap_floor, entry.ttl_floor, 1)
        if entry.config_version > self.config_version:
            self.config, self.extra = TopicConfig.from_stored(entry.cfg)
            self.config_version = entry.config_version
            if self.index.segments is not None:
                self.index.segments.told = self.told
            if self.recovering and not self.keeps_leases:
                self.leases = None

    def _delete(self, entry: control.Delete, at: Lsn | None) -> Removed:
        self.raise_floors(entry.cap_floor, entry.ttl_floor, 1)
        if entry.delete_number is not None:
            self.delete_number = max(self.delete_number, entry.delete_number)
        if at is not None:
            self.needed.append(at)
        if entry.seqs is None and entry.match is None:
            assert entry.before_seq is not None
            assert entry.bound is not None
            return self._delete_below(min(entry.before_seq, entry.bound))
        if entry.match is None and entry.seqs is not None and len(entry.seqs) <= FEW:
            return self._delete_few(entry, entry.seqs)
        targets = self.targets(entry)
        if len(targets):
            self.disturbed = max(self.disturbed, int(targets[-1]))
        self._leave_ahead(targets)
        try:
            removed = self.index.mark_deleted(targets, again=self.recovering)
        except OSError:
            self.forget_ahead()
            self.retry.append(targets)
            raise
        if not self.recovering:
            self._add(-removed.records, -removed.bytes)
        if self.leases is not None:
            self._end_leases(self.leases, entry, targets)
        return removed

    def _delete_few(self, entry: control.Delete, seqs: Sequence[int]) -> Removed:
        """The same of a few seqs, as acks name them."""
        lo, hi = self._span(entry)
        targets = [seq for seq in sorted(set(seqs)) if lo <= seq <= hi]
        if targets:
            self.disturbed = max(self.disturbed, targets[-1])
        if self._ahead:
            self._leave_ahead(np.array(targets, np.uint64))
        try:
            removed = self.index.mark_few(targets, again=self.recovering)
        except OSError:
            self.forget_ahead()
            self.retry.append(np.array(targets, np.uint64))
            raise
        if not self.recovering:
            self._add(-removed.records, -removed.bytes)
        if self.leases is not None and not self._end_done(self.leases, entry):
            self.leases.gone(targets)
            self.leases.forget_ahead()
        return removed

    def _end_done(self, leases: Leases, entry: control.Delete) -> bool:
        """Jobs are done or moved; False: neither."""
        if entry.kind == ACK:
            leases.done(entry.seqs or ())
        elif entry.kind == DEAD_LETTER:
            leases.moved(entry.seqs or ())
        else:
            return False
        return True

    def _end_leases(self, leases: Leases, entry: control.Delete, targets: SeqArray) -> None:
        """Jobs of a queue are gone: done, or removed under their leases [ACK-4, QOB-3]."""
        if not self._end_done(leases, entry):
            leases.gone(targets.tolist() if len(targets) < len(leases.deliveries) else self._known_among(targets))
            leases.forget_ahead()

    def _known_among(self, targets: SeqArray) -> list[int]:
        assert self.leases is not None
        known = np.fromiter(self.leases.deliveries, np.uint64, len(self.leases.deliveries))
        return known[np.isin(known, targets)].tolist()  # type: ignore[no-any-return]

    def _pass_floor(self) -> None:
        if self.leases is not None:
            self.leases.below(self.floor)

    def _delete_below(self, below: int) -> Removed:
        floor = self.floor
        gone = self.index.live(floor, below - 1) if below > floor and not self.recovering else None
        self.delete_below = max(self.delete_below, below)
        self._pass_floor()
        if gone is None:
            return Removed(0, 0)
        self._add(-gone.records, -gone.bytes)
        return Removed(gone.records, gone.bytes)

    def targets(self, entry: control.Delete) -> SeqArray:
        """The seqs that a delete by tag or list picks, from the floor on; dead ones may be among them."""
        lo, hi = self._span(entry)
        if entry.match is None:
            assert entry.seqs is not None
            seqs = np.array(sorted(set(entry.seqs)), np.uint64)
            return seqs[(seqs >= np.uint64(lo)) & (seqs <= np.uint64(max(hi, 0)))]
        if lo > hi:
            return np.empty(0, np.uint64)
        tagged = self.index.tagged(Selector(*entry.match), lo, hi, again=self.recovering)
        if entry.seqs is None:
            return tagged
        return np.intersect1d(tagged, np.array(entry.seqs, np.uint64))

    def _span(self, entry: control.Delete) -> tuple[int, int]:
        """From where to where a delete may reach."""
        hi = self.head
        if entry.bound is not None:
            hi = min(hi, entry.bound - 1)
        if entry.before_seq is not None:
            hi = min(hi, entry.before_seq - 1)
        return self.floor, hi

    def mark_again(self) -> None:
        """Set the marks that an I/O error kept from being set; some of them may have been set before it."""
        if not self.retry:
            return
        while self.retry:
            self.index.mark_deleted(self.retry[-1])
            self.retry.pop()
        self.recount()
        self.check_leases()

    def raise_floors(self, cap_floor: int, ttl_floor: int, delete_below: int) -> None:
        """Floors only rise; what falls below them is not counted any more [INV-7]."""
        if cap_floor <= self.cap_floor and ttl_floor <= self.ttl_floor and delete_below <= self.delete_below:
            return
        floor = max(self.floor, cap_floor, ttl_floor, delete_below)
        # Counted first: an I/O error must not leave floors and counts apart.
        gone = self.index.live(self.floor, min(floor - 1, self.head)) if not self.recovering else None
        self.cap_floor = max(self.cap_floor, cap_floor)
        self.ttl_floor = max(self.ttl_floor, ttl_floor)
        self.delete_below = max(self.delete_below, delete_below)
        self._pass_floor()
        if gone is not None:
            self._add(-gone.records, -gone.bytes)

    def evict(self, cap_floor: int, records: int, nbytes: int) -> None:
        """Raise the cap floor over live records that the caller has counted [S-260]."""
        self.cap_floor = max(self.cap_floor, cap_floor)
        self._pass_floor()
        self._add(-records, -nbytes)

    def _add(self, records: int, nbytes: int) -> None:
        self.count += records
        self.bytes += nbytes
        self._totals.bytes += nbytes

    def forget(self) -> None:
        """The topic is deleted: it counts nowhere any more."""
        self.removed = True
        self._add(-self.count, -self.bytes)

    def take_lowest(self) -> Ahead | None:
        """The lowest live record, taken out of what is looked up; for eviction, one after another."""
        first = self.lowest()
        if first is not None:
            self._ahead.pop()
        return first

    def recount(self) -> None:
        """Count from the index: at the end of recovery (06 §14 step 6), and where it is not what was counted."""
        found = self.index.live(self.floor, self.head)
        self._add(found.records - self.count, found.bytes - self.bytes)
        self.index.note_counted()
        self.forget_ahead()
        if self.leases is not None:
            self.leases.look_again()

    def check_leases(self) -> None:
        """Leave out what the queue knows of jobs that are not live, where records went without a word."""
        if self.leases is not None:
            seqs = np.sort(np.fromiter(self.leases.deliveries, np.uint64, len(self.leases.deliveries)))
            self.leases.keep(self.index.live_of(seqs[seqs >= np.uint64(self.floor)]))
