"""A claim pass: jobs of a queue are dealt to a cohort of claimers [CLM-2, COH-3].

    choose ──▶ read ──▶ lease ──▶ log, slice by slice ──▶ the next pass may begin ──▶ dead letters move ──▶ answers

What a claimer gets is a `Hand`: jobs in a row that are in memory and were never delivered stay where they are until
somebody renders them (`Fresh`), all others are named one by one (`Dealt`).

The rules are in `lease`; who forms a cohort, and when its pass begins, is up to `queue`. Owner only.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from topics.codec import envelope, frame
from topics.codec.offsets import SIZE
from topics.engine import deadletter
from topics.engine.core import Core, Outcome, guarded
from topics.engine.index import Stored
from topics.engine.lease import Leases, claimed, clamped_ms, lease_number, token, turns
from topics.engine.leaselog import SLICE, Events
from topics.engine.topic import Topic
from topics.model import Job
from topics.storage.segread import Absent
from topics.storage.tiers.blocks import NeedsBlocks

if TYPE_CHECKING:
    from topics.engine.queue import Claimer

log = logging.getLogger("topics.engine")

Dealt = tuple[int, int, int, Stored | tuple[bytes, int]]
"""A job that a pass has given to a claimer: its seq, the lease's id, how often it was delivered; and its frame, or the
buffer in memory and where in it the frame begins."""


class Fresh(NamedTuple):
    """Jobs in a row that a pass has delivered for the first time; ids count up with seqs."""

    first: int
    id: int
    pieces: Sequence[tuple[bytes, bytes]]
    """Their frames in memory, and where in each buffer they begin (codec.offsets)."""

    def dealt(self) -> Iterator[Dealt]:
        """One by one."""
        places = ((frames, at) for frames, offsets in self.pieces for at in array("Q", offsets))
        return ((self.first + at, self.id + at, 1, place) for at, place in enumerate(places))


class Hand(NamedTuple):
    """All jobs that a pass has given to one claimer, by seq; as `Job`s, or as whoever answers wants them."""

    dealt: Sequence[Dealt]
    fresh: Sequence[Fresh]
    """All of them, if it is not empty; `dealt` is then."""
    size: int
    deadline: int

    def jobs(self) -> list[Job]:
        """For everybody."""
        fresh = [one for run in self.fresh for one in run.dealt()]
        return [self.job(one) for one in fresh or self.dealt]

    def job(self, dealt: Dealt) -> Job:
        """One of them."""
        seq, id, deliveries, found = dealt
        stored = found if isinstance(found, Stored) else frame.fields(*found)
        data, meta = envelope.parts(stored.data)
        return Job(
            seq=seq, lease_id=token(id), deadline=self.deadline, ts=stored.ts, deliveries=deliveries,
            tag=None if stored.tag is None else stored.tag.decode(), raw_data=data, raw_meta=meta,
        )  # fmt: skip


class Ends(NamedTuple):
    """What a pass tells whoever began it."""

    over: Callable[[], None]
    """It is decided, and its leases are in force."""
    gone: Callable[[], None]
    """It cannot go on: the topic was deleted."""
    fail: Outcome
    """It cannot go on: this is the error."""
    short: Callable[[], None]
    """Some jobs could not be reached, for which it is worth coming again."""


class Pass:
    """One pass of a queue [CLM-2]: jobs are dealt to a cohort in slices, then dead letters move, then all is answered.

    Between slices others may ack, give back and delete, but no other pass begins; leases are in force at once.
    """

    def __init__(
        self, core: Core, topic: Topic, leases: Leases, cohort: Sequence[Claimer], now: int, ends: Ends
    ) -> None:
        self._core = core
        self._topic = topic
        self._leases = leases
        self._cohort = cohort
        self._ends = ends
        wants = [one.wants for one in cohort]
        self._left = sum(wants)
        self._turns = turns(wants)
        self._is_shared = len(cohort) > 1
        self._budget = core.limits.max_read_bytes * len(cohort)
        self._jobs: list[list[Dealt]] = [[] for _ in cohort]
        self._fresh: list[Fresh] = []
        """The same of a claimer who is alone."""
        self._deadlines = [now + clamped_ms(one.claim.lease_ms, topic.config.lease_ms) for one in cohort]
        """All deadlines of a pass start at its time [COH-4]."""
        self._unreadable: list[int] = []
        self._cold = core.cold.read()
        self._events = Events(core, topic)
        self._awaited = 1
        """What the answers wait for: dead letters, and the events of each slice."""
        config = topic.config
        leases.limit(config.max_deliveries if config.dead_letter is not None else 0)

    def step(self) -> None:
        """Deal some jobs, and go on as long as there are any; raises if the first of them cannot be read."""
        try:
            more = self._deal()
        except NeedsBlocks as needed:
            self._core.cold.fetch(self._cold, needed.wanted, self._go_on)
            return
        except Exception as error:
            if not (self._has_jobs and isinstance(error, OSError)):
                self._set_aside()
                raise
            log.warning("topic %r: a claim ends early: %s", self._topic.name, error)
            more = False
        self._commit()
        if more and self._left and self._budget > 0:
            self._core.owner.soon(self._go_on)
        else:
            self._finish()

    def _go_on(self) -> None:
        if self._topic.removed:
            self._ends.gone()
        else:
            guarded(self.step, self._ends.fail)

    def _deal(self) -> bool:
        """One slice; whether there may be more. What cannot be read now is left for later passes."""
        leases, index = self._leases, self._topic.index
        if not (self._is_shared or self._events.kept) and self._deal_run(leases):
            return True
        seqs = leases.choose(min(self._left, SLICE), self._look)
        order = sorted(seqs)
        try:
            frames: Sequence[Stored | Absent | tuple[bytes, int]]
            frames = index.places_in_memory(order) or index.frames(order, self._cold)
        except Exception as error:
            if isinstance(error, NeedsBlocks) and self._cold.failed is not None:
                self._leave_cold(leases, seqs)
                return True
            leases.put_back(seqs)
            raise
        if order != seqs:
            by_seq = dict(zip(order, frames, strict=True))
            frames = [by_seq[seq] for seq in seqs]
        for at, (seq, stored) in enumerate(zip(seqs, frames, strict=True)):
            if stored.__class__ is tuple:
                size = frame.data_bytes(*cast("tuple[bytes, int]", stored))
            elif isinstance(stored, Absent):
                self._unreadable.append(seq)
                continue
            else:
                size = len(cast("Stored", stored).data)
            if self._budget <= 0:
                leases.put_back(seqs[at:])
                break
            self._left -= 1
            self._budget -= size
            self._deliver(leases, next(self._turns) if self._is_shared else 0, seq, stored)
        return bool(seqs) or leases.has_back

    def _deal_run(self, leases: Leases) -> bool:
        """A slice of jobs in a row that are in memory and were never delivered, as most are; False: none is dealt."""
        run = leases.choose_run(min(self._left, SLICE), self._look)
        if run is None:
            return False
        try:
            pieces = self._topic.index.run_in_memory(run.start, len(run))
            size = 0 if pieces is None else sum(frame.span_bytes(*piece) for piece in pieces)
        except Exception:
            leases.put_back(run)
            raise
        if pieces is None or size > self._budget:
            leases.put_back(run)
            return False
        core, claimer = self._core, self._cohort[0]
        first_id = lease_number(core.run, core.deliveries + 1)
        core.deliveries += len(run)
        self._left -= len(run)
        self._budget -= size
        held = leases.claim_run(run, claimer.claim.node, first_id, self._deadlines[0], claimer.holder)
        if claimer.holder is not None:
            claimer.holder.held.update(held)
        self._fresh.append(Fresh(run.start, first_id, pieces))
        return True

    @property
    def _has_jobs(self) -> bool:
        return bool(self._fresh) or any(self._jobs)

    def _leave_cold(self, leases: Leases, seqs: list[int]) -> None:
        """Jobs in a cold tier that cannot be reached are for later passes; those behind them are dealt now."""
        cold = set(filter(self._topic.index.is_cold, seqs))
        self._unreadable += sorted(cold)
        leases.put_back([seq for seq in seqs if seq not in cold])

    def _look(self, after: int, many: int) -> list[int]:
        topic = self._topic
        return topic.index.live_from(max(after + 1, topic.floor), topic.head, many)

    def _deliver(self, leases: Leases, at: int, seq: int, stored: Stored | tuple[bytes, int]) -> None:
        """Lease a job to a claimer [CLM-3]."""
        core, claimer = self._core, self._cohort[at]
        holder = claimer.holder
        core.deliveries = number = core.deliveries + 1
        id = lease_number(core.run, number)
        lease = leases.claim(seq, claimer.claim.node, id, self._deadlines[at], holder)
        deliveries = leases.deliveries[seq]
        if self._events.kept:
            self._events.add(seq, claimed(lease, deliveries))
        if holder is not None:
            holder.held[seq] = lease
        self._jobs[at].append((seq, id, deliveries, stored))

    def _finish(self) -> None:
        """The next pass may begin; the answers wait until events are synced and moves are decided."""
        core = self._core
        self._set_aside()
        due = self._leases.take_due(core.limits.max_claim)
        try:
            self._ends.over()
        except Exception:
            self._leases.not_moved([one.seq for one in due])
            raise
        deadletter.move(core, self._topic, due, self._one_done)

    def _commit(self) -> None:
        """Log the leases of a slice at once: whoever gives one back between two slices logs that behind it [QRC-1]."""
        if self._events:
            events, self._events = self._events, Events(self._core, self._topic)
            self._awaited += 1
            events.commit(self._one_done)

    def _one_done(self) -> None:
        self._awaited -= 1
        if not self._awaited:
            guarded(self._answer, lambda error: tell([(one, error) for one in self._cohort]))

    def _set_aside(self) -> None:
        """What could not be read is for later passes, unless it was dealt again since, or deleted."""
        topic, leases = self._topic, self._leases
        for seq in self._unreadable:
            is_dealt = seq in leases.held or seq in leases.delayed
            if not is_dealt and topic.index.live(max(seq, topic.floor), seq).records:
                leases.set_aside(seq)

    def _answer(self) -> None:
        failed = self._cold.failed
        if failed is not None:
            self._ends.short()
            if not self._has_jobs:
                tell((one, failed) for one in self._cohort)
                return
        ready = self._leases.ready_of(self._topic.count)
        tell((one, one.told(self._hand(at), ready)) for at, one in enumerate(self._cohort))

    def _hand(self, at: int) -> Hand:
        jobs, deadline = self._jobs[at], self._deadlines[at]
        if self._fresh and not jobs:
            count = sum(len(offsets) // SIZE for run in self._fresh for _, offsets in run.pieces)
            return Hand((), self._fresh, count, deadline)
        jobs += [one for run in self._fresh for one in run.dealt()]
        return Hand(sorted(jobs, key=_seq_of), (), len(jobs), deadline)


_seq_of: Final = itemgetter(0)


def tell(answers: Iterable[tuple[Claimer, object]]) -> None:
    """It is decided: what one claimer does with its answer is no other's trouble."""
    for claimer, outcome in answers:
        try:
            claimer.answer(outcome)
        except Exception:
            log.exception("answering a claim")
