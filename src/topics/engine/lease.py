"""The rules of leases: one queue's state, driven by instants and events given to it (04 §2 … §7, §10).

A job that was never delivered is no state at all: it is a live record behind `cursor`, found by looking it up. What was
delivered and is not done has a delivery counter and is in exactly one of four places:

    held       leased; expires by heaps when somebody looks, without a timer [LSE-2]
    delayed    nacked with a delay that is not over
    reclaim    to be had again, lowest seq first, before what was never delivered [CLM-2]
    due        delivered as often as it may be: to be moved to the dead letters [DLQ-2], or being moved

Events (`control.Lease`) are values: a verb has them made here, they are applied by `apply`, logged, and replayed by the
same `apply`. What happens to records is told by the topic: `done` for acks and moves, `gone` and `below` for what was
deleted or evicted under its lease [QOB-3]. Memory follows the jobs that are in flight or came back, not the jobs.

Nothing here takes longer because of how much is over: `expire` takes up some of it in one call, and says whether that
was all [P-10]. Once it was, `in_flight`, `delayed` and the order of `choose` are exact at that instant. What is asked
about single leases, `find` and `page`, is exact in between too: it goes by deadlines and by the floor.

No clock, no disk, no callers: pure. Owner only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from topics.codec.control import Lease as Event
from topics.codec.snapshot import DelayRow, DeliveryRow, LeaseRow, QueueState
from topics.model import LEASE_MS_MAX, LEASE_MS_MIN

CLAIMED: Final = 0
RELEASED: Final = 1
EXTENDED: Final = 2
ACKED: Final = 3

DELAY_MS_MAX: Final = 86_400_000
LOOK_AHEAD: Final = 256
"""Jobs looked up at once."""
TURN: Final = 256
"""Leases, delays or rows gone through in one call: about half a millisecond [P-10]."""
AT_ONCE: Final = 2
"""So many are looked at whenever one is added, whether they are still wanted."""
BLOCK_SHIFT: Final = 5
"""A block has two to the power of this seqs."""
BLOCKS_TURN: Final = 128
"""Blocks looked through in one call for leases to list."""
RUN_SHIFT: Final = 40
ROOM: Final = 64

_R = TypeVar("_R", int, tuple[int, int], tuple[int, int, int])

Look = Callable[[int, int], Sequence[int]]
"""Live seqs above one, ascending: at least so many, all if there are fewer."""


def lease_number(run: int, delivery: int) -> int:
    """The id of a delivery: never the same twice, over runs and queues [LSE-4]."""
    return (run << RUN_SHIFT) + delivery


def token(id: int) -> str:
    """A lease's id as it is told [LSE-4]."""
    return f"lease_{id:x}"


def clamped_ms(asked: int | None, default: int) -> int:
    """The effective lease [LSE-6]."""
    return min(max(default if asked is None else asked, LEASE_MS_MIN), LEASE_MS_MAX)


def turns(wants: Sequence[int]) -> Iterator[int]:
    """Whose turn it is, job by job: one at a time, in the order of arrival, while anybody wants more [COH-3]."""
    given = [0] * len(wants)
    turn = [at for at, want in enumerate(wants) if want > 0]
    while turn:
        for at in turn:
            given[at] += 1
            yield at
        turn = [at for at in turn if given[at] < wants[at]]


class Lease:
    """A job in the hands of a node [LSE-1]."""

    __slots__ = ("acking", "dead", "deadline_ms", "holder", "id", "node", "seq")

    def __init__(self, seq: int, node: str, id: int, deadline_ms: int, holder: object = None) -> None:
        self.seq = seq
        self.node = node
        self.id = id
        self.deadline_ms = deadline_ms
        self.holder = holder
        """The work stream it was delivered on, if any."""
        self.acking = False
        """Its ack is on its way: it does not expire, and nobody acks it again."""
        self.dead = False
        """The job was removed under it."""


def claimed(lease: Lease, deliveries: int) -> Event:
    """A claim as it is logged."""
    return Event(
        event=CLAIMED, node=lease.node, lease_id=lease.id, deadline_ms=lease.deadline_ms, deliveries=deliveries
    )


class Due(NamedTuple):
    """A job that is to be moved to the dead letters."""

    seq: int
    deliveries: int


class Listed(NamedTuple):
    """Jobs that are leased or delayed, by seq."""

    seqs: list[int]
    through: int | None
    """Up to where they were looked for; None: there are no more."""


class Rows(Generic[_R]):
    """Rows in order, of which some are not wanted any more: these leave a few at a time [P-10].

    Two heaps: when most rows are not wanted, all of them become the older ones, and are gone through while others are
    added. Invariant: a row that is wanted stays in one of the two until it is popped.
    """

    def __init__(self, is_wanted: Callable[[_R], bool]) -> None:
        self._is_wanted: Callable[[_R], bool] = is_wanted
        self._heap: list[_R] = []
        self._older: list[_R] = []

    def __len__(self) -> int:
        return len(self._heap) + len(self._older)

    def push(self, added: _R, wanted: int) -> None:
        """Add one, when so many are wanted."""
        heappush(self._heap, added)
        older = self._older
        if older:
            for row in [older.pop() for _ in range(min(AT_ONCE, len(older)))]:  # the last ones: the rest is a heap
                if self._is_wanted(row):
                    heappush(self._heap, row)
        elif len(self._heap) > 2 * wanted + ROOM:
            self._older, self._heap = self._heap, []

    def first(self) -> _R | None:
        """The lowest, wanted or not."""
        heap = self._lower()
        return heap[0] if heap else None

    def pop(self) -> _R:
        """Take the lowest out, wanted or not."""
        return heappop(self._lower())

    def is_tidy(self) -> bool:
        """Whether the lowest is wanted, if there is any."""
        row = self.first()
        return row is None or self._is_wanted(row)

    def tidy(self, left: int) -> int:
        """So many leave at most, until the lowest is wanted; what is left of that many."""
        while left and not self.is_tidy():
            self.pop()
            left -= 1
        return left

    def _lower(self) -> list[_R]:
        """The heap that has the lowest."""
        heap, older = self._heap, self._older
        return older if older and (not heap or older[0] < heap[0]) else heap


class Leases:
    """The leases of one queue. Invariant: `deliveries` has every job of the four places, and no other."""

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        """Also those whose job is dead, until they are acked or expire."""
        self.delayed: dict[int, int] = {}
        """When each of them is ready."""
        self.deliveries: dict[int, int] = {}
        self.in_flight = 0
        """Leases whose job lives."""
        self.cursor = 0
        """The highest seq that was ever delivered."""
        self.dead_lettered = 0
        self.on_end: Callable[[Lease], None] = lambda lease: None
        """Called when a lease that has a holder is over, for whatever reason."""
        self._reclaim: set[int] = set()
        self._due: set[int] = set()
        self._moving: set[int] = set()
        self._most = 0
        """Deliveries after which a job is due; 0: never."""
        self._is_limited_anew = False
        """`_due` is as it was under another limit: what is in it is to be had again first."""
        self._expiries: Rows[tuple[int, int, int]] = Rows(self._ends_lease)
        """When leases expire that were handed out together: those of the seqs from the second to before the third.
        Every lease is in a row, unless its deadline passed while it was acked."""
        self._passed_ms = 0
        """The highest deadline that was taken out of them."""
        self._delays: Rows[tuple[int, int]] = Rows(lambda row: self.delayed.get(row[1]) == row[0])
        self._lowest: Rows[tuple[int, int]] = Rows(self._is_back)
        """Of `_reclaim`, with deliveries: a row from before a delivery is not wanted."""
        self._lowest_due: Rows[int] = Rows(self._is_due)
        self._floor = 0
        """All below is gone; it is in the four places until it is taken up, with the blocks that lie below it."""
        self._blocks: list[int] = []
        """Where all of `deliveries` are, ascending, in blocks of seqs: for floors that pass them, and for pages."""
        self._known: set[int] = set()
        """The same blocks."""
        self._hand = 0
        """Which of them is looked at next, whether anything is in it still."""
        self._ahead: deque[range] = deque()
        """Jobs that were never delivered, looked up ahead."""
        self._looked = 0
        """Up to where."""

    # -- time ----------------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> bool:
        """Some of what is over by now can be had again; whether that was all [LSE-2]."""
        if not self.is_over(now_ms):
            return True
        left, held, expiries, delays = self._pass_blocks(TURN), self.held, self._expiries, self._delays
        while left > 0 and (row := expiries.first()) is not None and row[0] < now_ms:
            deadline_ms, first, behind = expiries.pop()
            end = min(behind, first + left)
            if end < behind:
                expiries.push((deadline_ms, end, behind), len(held))
            left -= end - first
            self._passed_ms = max(self._passed_ms, deadline_ms)
            for seq in range(first, end):
                lease = held.get(seq)
                if lease is not None and lease.deadline_ms == deadline_ms and not lease.acking:
                    self._end(lease)
                    self._put(seq)
        while left > 0 and (delay := delays.first()) is not None and delay[0] <= now_ms:
            left -= 1
            ready_at, seq = delays.pop()
            if self.delayed.get(seq) == ready_at:
                del self.delayed[seq]
                self._put(seq)
        return not self.is_over(now_ms)

    def is_over(self, now_ms: int) -> bool:
        """Whether there may be something that is over by now and was not taken up."""
        row, delay = self._expiries.first(), self._delays.first()
        is_due = (row is not None and row[0] < now_ms) or (delay is not None and delay[0] <= now_ms)
        return is_due or self._is_below_floor()

    def next_change_ms(self) -> int | None:
        """The first instant at which a lease has expired or a delay is over, as things stand; or an earlier one."""
        left, expiries, delays = TURN, self._expiries, self._delays
        while left > 0 and (row := expiries.first()) is not None and not self._ends_lease(row):
            _, first, behind = expiries.pop()
            left -= behind - first
        delays.tidy(max(left, 0))
        row, delay = expiries.first(), delays.first()
        instants = [row[0] + 1] if row is not None else []
        instants += [delay[0]] if delay is not None else []
        return min(instants, default=None)

    def _ends_lease(self, row: tuple[int, int, int]) -> bool:
        """Whether any lease ends with this row."""
        deadline_ms, first, behind = row
        if self.held.keys().isdisjoint(range(first, behind)):
            return False
        leases = map(self.held.get, range(first, behind))
        return any(lease is not None and lease.deadline_ms == deadline_ms for lease in leases)

    # -- a claim pass --------------------------------------------------------------------------------------------------

    def limit(self, max_deliveries: int) -> None:
        """After how many deliveries a job is due for the dead letters, from now on; 0: never [DLQ-1]."""
        if max_deliveries != self._most:
            self._most = max_deliveries
            self._is_limited_anew = bool(self._due)

    def choose(self, count: int, look: Look) -> list[int]:
        """The next jobs in the order of [CLM-2]. They are to be claimed, or put back, before anything else happens.

        Fewer than there are, if many are due instead, or were: `has_back` tells.
        """
        chosen: list[int] = []
        rows, left = self._lowest, TURN + count
        if self._is_limited_anew:
            left = self._judge_again(left)
            if self._is_limited_anew:
                return chosen
        while rows and len(chosen) < count and left:
            left -= 1
            row = rows.pop()
            seq, deliveries = row
            if not self._is_back(row) or (chosen and chosen[-1] == seq):
                continue
            if self._most and deliveries >= self._most:
                self._reclaim.remove(seq)
                self._due.add(seq)
                self._lowest_due.push(seq, len(self._due))
            else:
                chosen.append(seq)
        while not rows and len(chosen) < count and (self._ahead or self._look(count - len(chosen), look)):
            chosen += self._take(count - len(chosen))
        self._lowest_due.tidy(left)
        return chosen

    @property
    def has_back(self) -> bool:
        """Whether there may be jobs still that came back, or more of them to be moved than `take_due` would find."""
        return bool(self._lowest) or self._is_limited_anew or not self._lowest_due.is_tidy()

    def _judge_again(self, left: int) -> int:
        """So many jobs at most that were due under another limit can be had again; what is left of that many."""
        rows = self._lowest_due
        while rows and left:
            left -= 1
            seq = rows.pop()
            if self._is_due(seq):
                self._due.remove(seq)
                self._put(seq)
        self._is_limited_anew = bool(rows)
        return left

    def _is_back(self, row: tuple[int, int]) -> bool:
        seq, deliveries = row
        return seq in self._reclaim and seq >= self._floor and self.deliveries[seq] == deliveries

    def _is_due(self, seq: int) -> bool:
        return seq in self._due and seq >= self._floor

    def choose_run(self, count: int, look: Look) -> range | None:
        """The same, where they are in a row and were never delivered; None: ask for them one by one."""
        run = range(0)
        if self._reclaim or self._is_limited_anew:
            return None
        while count and not run and (self._ahead or self._look(count, look)):
            run = self._take(count)
        return run or None

    def _take(self, count: int) -> range:
        """The first run that was looked up, or so many of it; nothing that was delivered or set aside since."""
        run = self._ahead.popleft()
        if len(run) > count:
            self._ahead.appendleft(run[count:])
        taken = run[:count]
        if self.deliveries.keys().isdisjoint(taken):
            return taken
        fresh = _runs([seq for seq in taken if seq not in self.deliveries])
        self._ahead.extendleft(reversed(fresh[1:]))
        return fresh[0] if fresh else range(0)

    def _look(self, count: int, look: Look) -> bool:
        while not self._ahead:
            found = look(self._looked, max(count, LOOK_AHEAD))
            if not found:
                return False
            self._looked = found[-1]
            # Behind a restart the cursor is not known: what was delivered before is found again.
            self._ahead.extend(_runs([seq for seq in found if seq not in self.deliveries and seq not in self.held]))
        return True

    def appended(self, first: int, last: int) -> None:
        """There are new jobs, all of them live: what was looked up ahead goes on with them, if it came that far."""
        if self._looked == first - 1 and len(self._ahead) < LOOK_AHEAD:
            joins = bool(self._ahead) and self._ahead[-1].stop == first
            self._ahead.append(range(self._ahead.pop().start if joins else first, last + 1))
            self._looked = last

    def put_back(self, seqs: Sequence[int]) -> None:
        """Chosen jobs that nobody gets after all."""
        fresh = []
        for seq in seqs:
            if seq in self._reclaim:
                self._lowest.push((seq, self.deliveries[seq]), len(self._reclaim))
            else:
                fresh.append(seq)
        self._ahead.extendleft(reversed(_runs(fresh)))

    def set_aside(self, seq: int) -> None:
        """A chosen job that cannot be read now: it is tried again by every pass, and keeps its counter."""
        if seq not in self.deliveries:
            self.deliveries[seq] = 0
            self._track(seq, seq + 1)
        self._put(seq)

    def claim(self, seq: int, node: str, id: int, deadline_ms: int, holder: object = None) -> Lease:
        """Hand out a chosen job [CLM-3]; how often it was by then is in `deliveries`."""
        return self._claimed(seq, node, id, deadline_ms, self.deliveries.get(seq, 0) + 1, holder)

    def claim_run(
        self, run: range, node: str, first_id: int, deadline_ms: int, holder: object = None
    ) -> dict[int, Lease]:
        """Hand out a chosen run: each for the first time, ids in a row; the leases by seq."""
        assert self.deliveries.keys().isdisjoint(run)
        leases = {seq: Lease(seq, node, id, deadline_ms, holder) for id, seq in enumerate(run, first_id)}
        self.held.update(leases)
        self.deliveries.update(dict.fromkeys(run, 1))
        self.in_flight += len(run)
        self._track(run.start, run.stop)
        self._expiries.push((deadline_ms, run.start, run.stop), len(self.held))
        self.cursor = max(self.cursor, run.stop - 1)
        return leases

    def take_due(self, count: int) -> list[Due]:
        """Jobs to be moved now, lowest first; they are neither claimable nor due until that is decided [DLQ-2]."""
        taken: list[Due] = []
        rows, left = self._lowest_due, 0 if self._is_limited_anew else TURN
        while rows and len(taken) < count and left:
            seq = rows.pop()
            if not self._is_due(seq):
                left -= 1
            else:
                self._due.remove(seq)
                self._moving.add(seq)
                taken.append(Due(seq, self.deliveries[seq]))
        return taken

    def not_moved(self, seqs: Iterable[int]) -> None:
        """A move failed: the job stays, and a later pass tries again [DLQ-7]."""
        for seq in seqs:
            if seq in self._moving:
                self._moving.remove(seq)
                self._put(seq)

    def ready_of(self, live: int) -> int:
        """How many of so many live jobs are neither leased nor delayed [QOB-1]."""
        if self._is_below_floor():
            self._pass_blocks(len(self._blocks) << BLOCK_SHIFT)  # the others are not among so many live ones
        return live - self.in_flight - len(self.delayed)

    # -- ack, nack, extend ---------------------------------------------------------------------------------------------

    def find(self, seq: int, node: str, id: int | None, now_ms: int) -> Lease | None:
        """The active lease that a call names by node and, where it is fenced, by id [LSE-3, LSE-7, LSE-8]."""
        lease = self.held.get(seq)
        if lease is None or lease.acking or lease.node != node or (id is not None and lease.id != id):
            return None
        return lease if now_ms <= lease.deadline_ms else None

    def begin_acks(
        self, node: str, seqs: Sequence[int], ids: Sequence[int | None], now_ms: int
    ) -> tuple[list[int], list[int]]:
        """The delete of jobs is on its way: of those with a lease that the call names, and the others [ACK-3]."""
        begun: list[int] = []
        skipped: list[int] = []
        find = self.find
        for seq, id in zip(seqs, ids, strict=True):
            lease = find(seq, node, id, now_ms)
            if lease is None:
                skipped.append(seq)
            else:
                lease.acking = True  # so that naming it twice does nothing
                begun.append(seq)
        return begun, skipped

    def ack_failed(self, seqs: Iterable[int]) -> None:
        """The jobs were not deleted: they are to be had again [ACK-5]."""
        for seq in seqs:
            lease = self.held.get(seq)
            if lease is not None and lease.acking:
                self._end(lease)
                self._put(seq)

    def ack_refused(self, seqs: Iterable[int]) -> None:
        """The delete was not even begun: the leases are what they were."""
        for seq in seqs:
            lease = self.held.get(seq)
            if lease is not None and lease.acking:
                lease.acking = False
                if lease.deadline_ms <= self._passed_ms:
                    self._expiries.push((lease.deadline_ms, seq, seq + 1), len(self.held))

    def release(self, lease: Lease, ready_at_ms: int = 0) -> Event:
        """Give a lease up; the job is ready at once, or then [NAK-1, WRK-6]."""
        event = Event(event=RELEASED, node=lease.node, lease_id=lease.id, ready_at_ms=ready_at_ms)
        self.apply(lease.seq, event)
        return event

    def extend(self, lease: Lease, deadline_ms: int) -> Event:
        """Set the deadline [EXT-1]."""
        deliveries = self.deliveries.get(lease.seq, 0)
        event = Event(
            event=EXTENDED, node=lease.node, lease_id=lease.id, deadline_ms=deadline_ms, deliveries=deliveries
        )
        self.apply(lease.seq, event)
        return event

    # -- events --------------------------------------------------------------------------------------------------------

    def apply(self, seq: int, event: Event) -> None:
        """Make an event true, now or in replay; a stale one changes nothing [QRC-4]."""
        if event.event == CLAIMED:
            self._claimed(seq, event.node, event.lease_id, event.deadline_ms, event.deliveries, None)
            return
        lease = self.held.get(seq)
        if lease is None or lease.id != event.lease_id:
            return
        if event.event == EXTENDED:
            if lease.deadline_ms != event.deadline_ms:
                lease.deadline_ms = event.deadline_ms
                self._expiries.push((event.deadline_ms, seq, seq + 1), len(self.held))
        elif event.event == ACKED:
            self.done((seq,))
        else:
            self._end(lease)
            if seq not in self.deliveries:
                return
            if event.ready_at_ms:
                self.delayed[seq] = event.ready_at_ms
                self._delays.push((event.ready_at_ms, seq), len(self.delayed))
            else:
                self._put(seq)

    def _claimed(self, seq: int, node: str, id: int, deadline_ms: int, deliveries: int, holder: object) -> Lease:
        before = self.held.get(seq)
        if before is not None:
            self._end(before)
        if seq in self.deliveries:
            self._take_out(seq)
            self.deliveries[seq] = deliveries
        else:
            self.deliveries[seq] = deliveries
            self._track(seq, seq + 1)
        lease = self.held[seq] = Lease(seq, node, id, deadline_ms, holder)
        self.in_flight += 1
        self._expiries.push((deadline_ms, seq, seq + 1), len(self.held))
        self.cursor = max(self.cursor, seq)
        return lease

    def _track(self, first: int, behind: int) -> None:
        for block in range(first >> BLOCK_SHIFT, ((behind - 1) >> BLOCK_SHIFT) + 1):
            if block not in self._known:
                self._add_block(block)

    def _add_block(self, block: int) -> None:
        """One more, which has something in it; others leave that have nothing any more."""
        blocks = self._blocks
        self._known.add(block)
        if not blocks or blocks[-1] < block:
            blocks.append(block)
        else:
            insort(blocks, block)
        if len(blocks) <= ROOM + (len(self.deliveries) >> (BLOCK_SHIFT - 1)):
            return
        for _ in range(AT_ONCE):
            self._hand = at = self._hand % len(blocks)
            if self.deliveries.keys().isdisjoint(_seqs_of(blocks[at])):
                self._known.remove(blocks.pop(at))
            else:
                self._hand += 1

    def _end(self, lease: Lease) -> None:
        del self.held[lease.seq]
        if not lease.dead:
            self.in_flight -= 1
        if lease.holder is not None:
            self.on_end(lease)

    def _put(self, seq: int) -> None:
        """A job can be had again, if it still is one."""
        if seq in self.deliveries:
            self._reclaim.add(seq)
            self._lowest.push((seq, self.deliveries[seq]), len(self._reclaim))

    def _take_out(self, seq: int) -> None:
        self.delayed.pop(seq, None)
        self._reclaim.discard(seq)
        self._due.discard(seq)
        self._moving.discard(seq)

    # -- what happens to records ---------------------------------------------------------------------------------------

    def done(self, seqs: Iterable[int]) -> None:
        """Jobs were acked or moved, and are deleted: leases and counters go [ACK-4]."""
        held, deliveries = self.held, self.deliveries
        has_others = bool(self.delayed or self._reclaim or self._due or self._moving)
        for seq in seqs:
            lease = held.get(seq)
            if lease is not None:
                self._end(lease)
            if deliveries.pop(seq, None) is not None and has_others:
                self._take_out(seq)

    def moved(self, seqs: Iterable[int]) -> None:
        """The same of jobs that have become dead letters [DLQ-7]."""
        listed = list(seqs)
        self.dead_lettered += len(listed)
        self.done(listed)

    def gone(self, seqs: Iterable[int]) -> None:
        """Jobs were deleted or evicted; a lease stays until it is acked or expires [QOB-3]."""
        for seq in seqs:
            if self.deliveries.pop(seq, None) is None:
                continue
            self._take_out(seq)
            lease = self.held.get(seq)
            if lease is not None and not lease.dead:
                lease.dead = True
                self.in_flight -= 1

    def below(self, floor: int) -> None:
        """Everything below a floor is gone; if that is much, some of it is taken up now, and the rest by `expire`."""
        self._floor = max(self._floor, floor)
        self._pass_blocks(TURN)
        self.gone(range(_seqs_of(floor >> BLOCK_SHIFT).start, floor))
        ahead = self._ahead
        while ahead and ahead[0].start < floor:
            run = ahead.popleft()
            if run.stop > floor:
                ahead.appendleft(range(floor, run.stop))

    def _is_below_floor(self) -> bool:
        """Whether there is a block that the floor has passed."""
        return bool(self._blocks) and self._blocks[0] < self._floor >> BLOCK_SHIFT

    def _pass_blocks(self, left: int) -> int:
        """What is in blocks that the floor has passed is gone, of about so many seqs; what is left of that many."""
        blocks = self._blocks
        passed = blocks[: min(bisect_left(blocks, self._floor >> BLOCK_SHIFT), -(-left >> BLOCK_SHIFT))]
        for block in passed:
            self.gone(_seqs_of(block))
        self._known.difference_update(passed)
        del blocks[: len(passed)]
        return left - (len(passed) << BLOCK_SHIFT)

    def forget_ahead(self) -> None:
        """Records were deleted: what was looked up ahead may be among them, and is looked up again."""
        if self._ahead:
            self._looked = self._ahead[0].start - 1
            self._ahead.clear()

    def look_again(self) -> None:
        """Records may have come back that were passed over: jobs are looked up from the beginning."""
        self._looked = 0
        self._ahead.clear()

    def keep(self, live: Set[int]) -> None:
        """Only these of the jobs with a counter live."""
        self.gone([seq for seq in self.deliveries if seq not in live])
        self.forget_ahead()

    # -- keeping -------------------------------------------------------------------------------------------------------

    def saved(self) -> QueueState:
        """For the snapshot (06 §13)."""
        return QueueState(
            cursor=self.cursor,
            dead_lettered=self.dead_lettered,
            leases=tuple(LeaseRow(one.seq, one.node, one.id, one.deadline_ms) for one in self.held.values()),
            deliveries=tuple(DeliveryRow(*row) for row in self.deliveries.items()),
            delayed=tuple(DelayRow(ready_at, seq) for seq, ready_at in self.delayed.items()),
        )

    @classmethod
    def restored(cls, state: QueueState) -> Leases:
        """From a snapshot. The cursor begins anew: a job without a counter is one that was never delivered [QRC-8]."""
        made = cls()
        made.dead_lettered = state.dead_lettered
        counters = {row.seq: row.deliveries for row in state.deliveries}
        for row in state.leases:
            event = Event(
                event=CLAIMED, node=row.node, lease_id=row.lease_id, deadline_ms=row.deadline_ms,
                deliveries=counters.get(row.seq, 0),
            )  # fmt: skip
            made.apply(row.seq, event)
            if row.seq not in counters:
                made.gone((row.seq,))
        for seq, deliveries in counters.items():
            if seq not in made.held:
                made.deliveries[seq] = deliveries
                made._track(seq, seq + 1)
        for delay in state.delayed:
            if delay.seq in made.deliveries and delay.seq not in made.held:
                made.delayed[delay.seq] = delay.ready_at_ms
                made._delays.push((delay.ready_at_ms, delay.seq), len(made.delayed))
        for seq in made.deliveries:
            if seq not in made.held and seq not in made.delayed:
                made._put(seq)
        made.cursor = 0
        return made

    def restart(self) -> None:
        """Replay is over: look for jobs from the beginning [QRC-8]."""
        self.cursor = 0
        self.look_again()

    def page(self, after: int, count: int, now_ms: int) -> Listed:
        """Live jobs that are leased or delayed, above a seq: so many of them, or what is found in some blocks."""
        found: list[int] = []
        blocks, after = self._blocks, max(after, self._floor - 1)
        begin = bisect_left(blocks, (after + 1) >> BLOCK_SHIFT)
        end = begin + BLOCKS_TURN
        for block in blocks[begin:end]:
            for seq in _seqs_of(block):
                if seq > after and self._is_listed(seq, now_ms):
                    found.append(seq)
                    if len(found) == count:
                        return Listed(found, seq)
        return Listed(found, _seqs_of(blocks[end]).start - 1 if end < len(blocks) else None)

    def _is_listed(self, seq: int, now_ms: int) -> bool:
        lease = self.held.get(seq)
        if lease is None:
            return self.delayed.get(seq, 0) > now_ms
        return not lease.dead and (lease.acking or now_ms <= lease.deadline_ms)


def _runs(seqs: Sequence[int]) -> list[range]:
    """Ascending seqs as runs without a gap."""
    runs: list[range] = []
    at = 0
    while at < len(seqs):
        behind = at + 1
        if seqs[-1] - seqs[at] == len(seqs) - 1 - at:
            behind = len(seqs)
        while behind < len(seqs) and seqs[behind] == seqs[behind - 1] + 1:
            behind += 1
        runs.append(range(seqs[at], seqs[behind - 1] + 1))
        at = behind
    return runs


def _seqs_of(block: int) -> range:
    """The seqs of a block, whatever is in it."""
    return range(block << BLOCK_SHIFT, (block + 1) << BLOCK_SHIFT)
