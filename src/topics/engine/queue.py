"""Queues: leased jobs over the records of a topic (04). The rules are in `lease`; `deadletter` moves what is due.

    claim      joins a cohort; a cohort is served by one pass, one pass of a queue after another [A-1, COH-2]
    ack        takes the leases in hand, then one Delete frame for the call, as durable as the class is [S-273]
    nack       gives leases up, at once or with a delay
    extend     sets deadlines
    leases     lists what is leased and what is delayed [QOB-4]
    work       a `Worker`: keeps up to `max` leases on one connection and is given jobs as they come (04 §8)

Callback style like the other verbs: `done` is called once, on the owner, with a result of `model` or an exception.
`Ask.parse` and `Claim.parse` check what needs no state, in the order of [CLM-1] and [ACK-1]; any thread.

For the endpoints. `claim` returns a `Claimer`; for a client that goes while it `is_waiting` for its window, `cancel` is
called [COH-5], and `window_over` tells when it is too late for that. A claim that waits for its window is in
`core.polls`: `Engine.end_waits` serves it at once [API-5].

A work stream is `work(core, name, claim, deliver, ended, done)`: `done` gets the `Worker` or the refusal (400, 404,
409), all before the stream opens [WRK-1]. From then on `deliver(jobs)` is called with `Job`s whose leases are this
connection's, and `ended(error)` once, when the topic is gone [WRK-8]. Slots that ack, nack or expiry have freed are
filled by themselves, with new jobs and with what others gave back [WRK-3]. Output that is full: `worker.pause()`, later
`worker.resume()`. When the connection ends, for whatever reason, `worker.close()`: what it holds is released [WRK-6].

Leases that survive restarts are synced before the answer; if that fails they are not, and nothing else changes [QRC-5].
An idle queue has no timer: an alarm is set only while a worker waits and something will expire. Owner only.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from topics.codec import control, envelope, frame
from topics.codec.offsets import SIZE
from topics.engine import copies, deadletter, forward, retention
from topics.engine.alarms import Alarm
from topics.engine.cold import RETRY_NS
from topics.engine.core import Core, Outcome, guarded
from topics.engine.delete import remove_jobs
from topics.engine.index import Stored
from topics.engine.lease import DELAY_MS_MAX, Lease, Leases, claimed, clamped_ms, lease_number, turns
from topics.engine.topic import ACK, Topic
from topics.errors import (
    BatchTooLarge,
    CallerError,
    CommitFailed,
    NotAQueue,
    TopicNotFound,
    TopicsError,
    WalIo,
)
from topics.model import (
    AckResult,
    ClaimResult,
    DelayedJob,
    ExtendResult,
    HeldLease,
    Job,
    LeasePage,
    Limits,
    NackResult,
    check_not_system,
    check_u32,
    check_u64,
    utf8_bytes,
)
from topics.paths import U64_MAX
from topics.storage.segread import Absent
from topics.storage.tiers.blocks import NeedsBlocks

log = logging.getLogger("topics.engine")

NS_PER_MS: Final = 1_000_000
SLICE: Final = 96
"""Jobs handed out, given back or kept longer in one stretch: about a millisecond [P-10]."""
_TOKEN = re.compile(r"lease_([0-9a-fA-F]+)")
_TOKENS = re.compile(r"(?:lease_[0-9a-fA-F]+ )+")


def token(id: int) -> str:
    """A lease's id as it is told [LSE-4]."""
    return f"lease_{id:x}"


def _parse_token(text: object) -> int | None:
    """The id in a token; None for the empty text, which fences nothing [LSE-8]."""
    if text == "":
        return None
    found = _TOKEN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise CallerError("lease_ids must hold texts that a claim has given")
    return int(found[1], 16)


def _parse_seqs(given: tuple[object, ...]) -> tuple[int, ...]:
    """Seqs of a call: mostly all of them are."""
    seqs = cast("tuple[int, ...]", given)
    if given and {*map(type, given)} == {int} and min(seqs) >= 0 and max(seqs) <= U64_MAX:
        return seqs
    return tuple([check_u64(seq, "seqs") for seq in given])


def _parse_tokens(texts: tuple[object, ...]) -> tuple[int | None, ...]:
    """The same of many: mostly all of them are tokens."""
    try:
        if _TOKENS.fullmatch(" ".join(texts) + " "):  # type: ignore[arg-type]
            return tuple([int(text[6:], 16) for text in texts])  # type: ignore[index]
    except (TypeError, ValueError):  # one that is no text, or two in one text
        pass
    return tuple(map(_parse_token, texts))


class Claim(NamedTuple):
    """What a claimer asks for."""

    node: str
    max: int
    lease_ms: int | None

    @classmethod
    def parse(cls, node: object, max: object, lease_ms: object, limits: Limits) -> Claim:
        """Check what needs no topic; `node` itself is judged behind the topic [CLM-1]."""
        if not isinstance(node, str):
            raise CallerError("node must be a string")
        wanted = min(check_u32(max, "max") or 1, limits.max_claim)
        return cls(node, wanted, None if lease_ms is None else check_u64(lease_ms, "lease_ms"))


class Ask(NamedTuple):
    """Which leases an ack, nack or extend is about."""

    node: str
    seqs: tuple[int, ...]
    ids: tuple[int | None, ...]
    """One per seq; None: not fenced."""

    @classmethod
    def parse(cls, node: object, seqs: object, lease_ids: object, limits: Limits) -> Ask:
        """Check a call in the order of [ACK-1]."""
        if not isinstance(node, str):
            raise CallerError("node must be a string")
        listed = _parse_seqs(tuple(_listed(seqs, "seqs")))
        ids = _parse_tokens(tuple(_listed(() if lease_ids is None else lease_ids, "lease_ids")))
        if not node:
            raise CallerError("node must not be empty")
        if len(listed) > limits.max_claim:
            raise BatchTooLarge(len(listed), limits.max_claim)
        if ids and len(ids) != len(listed):
            raise CallerError(f"{len(ids)} lease_ids for {len(listed)} seqs")
        return cls(node, listed, ids or (None,) * len(listed))


def _listed(value: object, what: str) -> Iterable[object]:
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise CallerError(f"{what} must be a list")
    return value


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


def _to_jobs(hand: Hand, ready: int) -> ClaimResult:
    return ClaimResult(hand.jobs(), ready)


class Claimer:
    """One who waits for jobs: a claim, or the refill of a worker."""

    def __init__(self, claim: Claim, done: Outcome, told: Callable[[Hand, int], object] = _to_jobs) -> None:
        self.claim = claim
        self.told = told
        """Makes the answer of the jobs it got, and of how many are ready still."""
        self.holder: Worker | None = None
        self.cancelled = False
        self.is_waiting = False
        """Its window is open: nothing has happened for it yet."""
        self.window_over: Callable[[], None] = lambda: None
        """Called when it waits no more."""
        self._done = done

    @property
    def wants(self) -> int:
        """How many jobs, at the time of the pass."""
        return 0 if self.cancelled else self.claim.max

    def cancel(self) -> None:
        """Nobody waits for the answer any more: the pass leaves it out [COH-5]."""
        self.cancelled = True

    def answer(self, outcome: Any) -> None:
        """What came of it: what `told` made, or an exception."""
        if not self.cancelled:
            self._done(outcome)

    def wait(self) -> None:
        """It is in a cohort whose window is open."""
        self.is_waiting = True

    def end_wait(self) -> None:
        """Its pass is next."""
        self.is_waiting = False
        self.window_over()

    def left_out(self) -> None:
        """A pass found that it wants nothing any more."""

    def again(self, core: Core, name: str) -> None:
        """The topic is another one, or none, by now [COH-5]."""
        core.with_topic(name, lambda topic: _join(core, topic, self), self.answer)


class Claims:
    """Who waits for jobs of a queue. Invariant: one pass at a time; later cohorts wait in line."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self.cohort: list[Claimer] | None = None
        """Those that wait for the window to end."""
        self.line: deque[list[Claimer]] = deque()
        self.workers: dict[Worker, None] = {}
        """In the order they came."""
        self._core = core
        self._topic = topic
        self._passing = False
        self._running = False
        self._stirred = False
        self._alarm: Alarm | None = None
        self._alarm_ms = 0
        self._retry: Alarm | None = None

    # -- cohorts -------------------------------------------------------------------------------------------------------

    def join(self, claimers: list[Claimer]) -> None:
        """Wait for the window, or be served at once where there is none [COH-1, COH-2]."""
        window = self._topic.config.claim_jitter_ms
        if not window:
            self._enqueue(claimers)
            return
        for one in claimers:
            one.wait()
        if self.cohort is not None:
            self.cohort += claimers
        else:
            self._open(claimers, window)

    def _open(self, claimers: list[Claimer], window_ms: int) -> None:
        core, key = self._core, object()
        cohort = self.cohort = list(claimers)

        def close() -> None:
            alarm.cancel()
            core.polls.pop(key, None)
            self.cohort = None
            for one in cohort:
                one.end_wait()
            self._enqueue(cohort)

        alarm = core.alarms.at(core.clock.monotonic_ns() + window_ms * NS_PER_MS, close)
        core.polls[key] = close

    def _enqueue(self, cohort: list[Claimer]) -> None:
        self.line.append(cohort)
        self._run()

    def _run(self) -> None:
        """One pass after another, as long as none of them has to wait."""
        if self._running:
            return
        self._running = True
        try:
            while self.line and not self._passing:
                self._passing = True
                self._begin(self.line.popleft())
        finally:
            self._running = False

    def _begin(self, cohort: list[Claimer]) -> None:
        core, topic = self._core, self._topic

        def go_on() -> None:
            if core.names.get(topic.name) is topic:
                _Pass(core, topic, self._wanting(cohort), self._over, fail).step()
            else:
                self._over()
                _again(core, topic.name, cohort)

        def fail(error: Exception) -> None:
            self._over()
            _tell([(one, error) for one in cohort])

        def retain() -> None:
            _retained(core, topic, go_on, fail)

        # What was acknowledged in the source of a router before this claim can be claimed here [FWD-9].
        guarded(lambda: forward.drain(core, topic, retain, fail), fail)

    def _wanting(self, cohort: list[Claimer]) -> list[Claimer]:
        wanting = []
        for one in cohort:
            if one.wants > 0:
                wanting.append(one)
            else:
                one.left_out()
        return wanting

    def _over(self) -> None:
        """The pass is decided and its leases are in force; the next one need not wait for the answers."""
        self._passing = False
        if self.line:
            self._core.owner.soon(self._run)
        self.watch()

    # -- workers -------------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Something happened that may let a worker have a job: new jobs, free slots, jobs given back."""
        if self.workers and not self._stirred:
            self._stirred = True
            self._core.owner.soon(self._feed)

    def stir_later(self) -> None:
        """The same in a while, for what failed; once, however many passes fail until then."""
        if self._retry is None or self._retry.call is None:
            self._retry = self._core.alarms.at(self._core.clock.monotonic_ns() + RETRY_NS, self.stir)

    def _feed(self) -> None:
        """Let workers with free slots claim, all of them together; the rest of the time is the alarm's."""
        self._stirred = False
        core, topic = self._core, self._topic
        if topic.removed:
            workers, self.workers = list(self.workers), {}
            for worker in workers:
                worker.end(TopicNotFound(topic.name))
            return
        leases_of(topic).expire(core.clock.now_ms())
        for worker in self.workers:
            worker.missed = worker.refilling
        hungry = [worker for worker in self.workers if worker.refill.wants > 0 and not worker.refilling]
        if hungry and _ready(topic):
            for worker in hungry:
                worker.refilling = True
            self.join([worker.refill for worker in hungry])
        self.watch()

    def watch(self) -> None:
        """Ring when the next lease expires or the next delay is over, while there is a worker [WRK-3]."""
        core, leases = self._core, self._topic.leases
        when = leases.next_change_ms() if self.workers and leases is not None else None
        if self._alarm is not None and when == self._alarm_ms and self._alarm.call is not None:
            return
        if self._alarm is not None:
            if self._alarm.call is not None and self._alarm_ms <= core.clock.now_ms():
                self.stir()  # somebody's pass was quicker than the alarm, and took some of what it would have told of
            self._alarm.cancel()
            self._alarm = None
        if when is not None:
            wait_ns = max(when - core.clock.now_ms(), 0) * NS_PER_MS
            self._alarm = core.alarms.at(core.clock.monotonic_ns() + wait_ns, self.stir)
            self._alarm_ms = when


class Worker:
    """A work stream: one connection, its free slots and the leases that were delivered on it (04 §8)."""

    def __init__(
        self,
        core: Core,
        topic: Topic,
        claim: Claim,
        deliver: Callable[[Sequence[Job]], None],
        ended: Callable[[TopicsError], None],
    ) -> None:
        self.held: dict[int, Lease] = {}
        """By seq; what is acked, nacked or expired leaves at once."""
        self.refilling = False
        """It waits for a pass."""
        self.missed = False
        """Something happened meanwhile that its pass may not have seen."""
        self.paused = self.closed = False
        self.refill = _Refill(self, claim)
        self.deliver = deliver
        self._core = core
        self._topic = topic
        self._ended = ended

    @property
    def free(self) -> int:
        """Slots that a pass may fill."""
        return 0 if self.paused or self.closed else max(self.refill.claim.max - len(self.held), 0)

    def pause(self) -> None:
        """Its output is full: no more jobs for now."""
        self.paused = True

    def resume(self) -> None:
        """There is room again."""
        self.paused = False
        claims_of(self._core, self._topic).stir()

    def close(self) -> None:
        """The connection ended: give back what was delivered on it and is still active [WRK-6]; again is fine."""
        if self.closed:
            return
        self.closed = True
        claims_of(self._core, self._topic).workers.pop(self, None)
        release(self._core, self._topic, list(self.held.values()))

    def end(self, error: TopicsError) -> None:
        """The topic is gone [WRK-8]."""
        if not self.closed:
            self.closed = True
            self._ended(error)


class _Refill(Claimer):
    """The claim of a worker's free slots."""

    def __init__(self, worker: Worker, claim: Claim) -> None:
        super().__init__(claim, lambda outcome: None)
        self.holder = self._worker = worker

    @property
    def wants(self) -> int:
        return self._worker.free

    def answer(self, outcome: Any) -> None:
        worker = self._worker
        self._settle()
        if isinstance(outcome, Exception):
            log.warning("a work stream got no jobs: %s", outcome)
            claims_of(worker._core, worker._topic).stir_later()
        elif outcome.jobs and worker.closed:
            release(worker._core, worker._topic, list(worker.held.values()))
        elif outcome.jobs:
            worker.deliver(outcome.jobs)
            if worker.free:
                claims_of(worker._core, worker._topic).stir()

    def left_out(self) -> None:
        self._settle()

    def again(self, core: Core, name: str) -> None:
        self._settle()

    def _settle(self) -> None:
        worker = self._worker
        worker.refilling = False
        if worker.missed:
            worker.missed = False
            claims_of(worker._core, worker._topic).stir()


def _tell(answers: Iterable[tuple[Claimer, object]]) -> None:
    """It is decided: what one claimer does with its answer is no other's trouble."""
    for claimer, outcome in answers:
        try:
            claimer.answer(outcome)
        except Exception:
            log.exception("answering a claim")


def _again(core: Core, name: str, cohort: Iterable[Claimer]) -> None:
    for one in cohort:
        one.again(core, name)


# -- the verbs ---------------------------------------------------------------------------------------------------------


def claim(
    core: Core, name: str, asked: Claim, done: Outcome, told: Callable[[Hand, int], object] = _to_jobs
) -> Claimer:
    """Claim jobs; answers a `ClaimResult`, or what `told` makes of the jobs and of how many are ready still."""
    check_not_system(name)
    claimer = Claimer(asked, done, told)
    core.with_topic(name, lambda topic: _join(core, topic, claimer), done)
    return claimer


def _join(core: Core, topic: Topic, claimer: Claimer) -> None:
    _check_queue(topic)
    check_node(claimer.claim.node, core.limits)
    claims_of(core, topic).join([claimer])


def work(
    core: Core,
    name: str,
    asked: Claim,
    deliver: Callable[[Sequence[Job]], None],
    ended: Callable[[TopicsError], None],
    done: Outcome,
) -> None:
    """Open a work stream; answers a `Worker`. See the module docstring."""
    check_not_system(name)

    def found(topic: Topic) -> None:
        _check_queue(topic)
        worker = Worker(core, topic, asked, deliver, ended)
        claims = claims_of(core, topic)
        claims.workers[worker] = None
        done(worker)
        claims.stir()

    def open_stream() -> None:
        check_node(asked.node, core.limits)
        core.with_topic(name, found, done)

    guarded(open_stream, done)


def ack(core: Core, name: str, asked: Ask, done: Outcome) -> None:
    """Delete jobs for good; answers an `AckResult` [ACK-2]."""
    check_not_system(name)

    def go_on(topic: Topic, leases: Leases, now: int) -> None:
        seqs, skipped = leases.begin_acks(*asked)
        if not seqs:
            done(_acked(core, topic, 0, skipped))
            return

        def fail(error: TopicsError) -> None:
            # What was refused before it was begun is as it was; a commit that failed gives the jobs back [ACK-5].
            (leases.ack_failed if isinstance(error, (CommitFailed, WalIo)) else leases.ack_refused)(seqs)
            claims_of(core, topic).stir()
            done(error)

        remove_jobs(core, topic, seqs, ACK, lambda: done(_acked(core, topic, len(seqs), skipped)), fail)

    _with_leases(core, name, go_on, done)


def nack(core: Core, name: str, asked: Ask, delay_ms: int, done: Outcome) -> None:
    """Give jobs back, at once or in a while; answers a `NackResult`."""
    check_not_system(name)
    delay = min(delay_ms, DELAY_MS_MAX)

    def go_on(topic: Topic, leases: Leases, now: int) -> None:
        ready_at = now + delay if delay else 0

        def answer(changed: list[int], skipped: list[int]) -> None:
            counts = counters(topic, core.clock.now_ms())
            done(NackResult(len(changed), skipped, counts.ready, counts.in_flight))

        def give_back(lease: Lease) -> control.Lease:
            return leases.release(lease, ready_at)

        _Change(core, topic, asked, give_back, answer, done).step()

    _with_leases(core, name, go_on, done)


def extend(core: Core, name: str, asked: Ask, lease_ms: int, done: Outcome) -> None:
    """Set the deadlines of leases; answers an `ExtendResult`."""
    check_not_system(name)

    def go_on(topic: Topic, leases: Leases, now: int) -> None:
        deadline = now + clamped_ms(lease_ms, lease_ms)

        def answer(changed: list[int], skipped: list[int]) -> None:
            done(ExtendResult(len(changed), skipped, dict.fromkeys(changed, deadline)))

        _Change(core, topic, asked, lambda lease: leases.extend(lease, deadline), answer, done).step()

    _with_leases(core, name, go_on, done)


class _Change:
    """A nack or an extend: some leases in each stretch, logged in the stretch that changes them [P-10].

    So the log has what happens to a queue in the order in which it happened, whoever comes in between.
    """

    def __init__(
        self,
        core: Core,
        topic: Topic,
        asked: Ask,
        change: Callable[[Lease], control.Lease],
        answer: Callable[[list[int], list[int]], None],
        done: Outcome,
    ) -> None:
        self._core = core
        self._topic = topic
        self._asked = asked
        self._change = change
        self._answer = answer
        self._done = done
        self._at = 0
        self._changed: dict[int, None] = {}
        self._skipped: list[int] = []
        self._unlogged = 1

    def step(self) -> None:
        """The next leases; those that are not held by the call any more are skipped [ACK-3]."""
        core, topic, asked, low = self._core, self._topic, self._asked, self._at
        self._at = high = low + SLICE
        leases = leases_of(topic)
        events = []
        for seq, id in zip(asked.seqs[low:high], asked.ids[low:high], strict=True):
            lease = None if seq in self._changed else leases.find(seq, asked.node, id)
            if lease is None:
                self._skipped.append(seq)
            else:
                self._changed[seq] = None
                events.append((seq, self._change(lease)))
        claims_of(core, topic).stir()
        self._unlogged += 1
        _log(core, topic, events, self._logged)
        if high < len(asked.seqs):
            core.owner.soon(self._go_on)
        else:
            self._logged()

    def _go_on(self) -> None:
        if self._topic.removed:
            self._done(TopicNotFound(self._topic.name))
            return
        leases_of(self._topic).expire(self._core.clock.now_ms())
        self.step()

    def _logged(self) -> None:
        """A stretch is synced, or all are through."""
        self._unlogged -= 1
        if not self._unlogged:
            self._answer(list(self._changed), self._skipped)


def leases(core: Core, name: str, after: int, count: int, done: Outcome) -> None:
    """What is leased and what is delayed, by seq; answers a `LeasePage` [QOB-4]."""

    def go_on(topic: Topic, found: Leases, now: int) -> None:
        seqs = list(found.page(after, count + 1))
        chosen = seqs[:count]
        held = [
            HeldLease(seq, lease.node, token(lease.id), lease.deadline_ms, found.deliveries[seq])
            for seq in chosen
            if (lease := found.held.get(seq)) is not None
        ]
        delayed = [DelayedJob(seq, found.delayed[seq]) for seq in chosen if seq in found.delayed]
        done(LeasePage(held, delayed, chosen[-1] if len(seqs) > count else None))

    _with_leases(core, name, go_on, done)


def release(core: Core, topic: Topic, held: Sequence[Lease]) -> None:
    """Give leases up that are still active: jobs are to be had again at once [WRK-6]."""
    leases = topic.leases
    if leases is None or topic.removed:
        return
    leases.expire(core.clock.now_ms())
    active = [lease for lease in held[:SLICE] if leases.held.get(lease.seq) is lease and not lease.acking]
    events = [(lease.seq, leases.release(lease)) for lease in active]
    claims_of(core, topic).stir()
    _log(core, topic, events, lambda: None)
    if len(held) > SLICE:
        core.owner.soon(lambda: release(core, topic, held[SLICE:]))


# -- what they share ---------------------------------------------------------------------------------------------------


class Counters(NamedTuple):
    """Jobs of a queue, by state [QOB-1]."""

    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int


def counters(topic: Topic, now_ms: int) -> Counters:
    """The state of a queue at an instant: `count` of the topic is the sum of the first three."""
    leases = topic.leases
    if leases is None:
        return Counters(topic.count, 0, 0, 0)
    leases.expire(now_ms)
    delayed = len(leases.delayed)
    return Counters(topic.count - leases.in_flight - delayed, leases.in_flight, delayed, leases.dead_lettered)


def _ready(topic: Topic) -> int:
    leases = leases_of(topic)
    return topic.count - leases.in_flight - len(leases.delayed)


def leases_of(topic: Topic) -> Leases:
    """The leases of a queue, from its first call on."""
    if topic.leases is None:
        topic.leases = Leases()
    if topic.leases.on_end is not _freed:
        topic.leases.on_end = _freed
    return topic.leases


def claims_of(core: Core, topic: Topic) -> Claims:
    """Who waits for jobs of a queue."""
    if topic.claims is None:
        topic.claims = Claims(core, topic)
    return topic.claims


def _freed(lease: Lease) -> None:
    """A lease is over: a slot of its worker is free."""
    worker = lease.holder
    if isinstance(worker, Worker) and worker.held.get(lease.seq) is lease:
        del worker.held[lease.seq]
        claims_of(worker._core, worker._topic).stir()


def check_node(node: str, limits: Limits) -> None:
    """A claimer has a name of 1 to 128 bytes [CLM-1]."""
    if not 1 <= utf8_bytes(node, "node") <= limits.max_node_bytes:
        raise CallerError(f"node must have 1 to {limits.max_node_bytes} bytes")


def _check_queue(topic: Topic) -> None:
    if topic.config.type != "queue":
        raise NotAQueue(topic.name)


def _retained(core: Core, topic: Topic, then: Callable[[], None], done: Outcome) -> None:
    """What every call begins with, so that no expired job is claimed or counted [TTL-2]."""
    retention.catch_up(core, topic)
    retention.expire(core, topic, then, done)


def _with_leases(core: Core, name: str, then: Callable[[Topic, Leases, int], None], done: Outcome) -> None:
    """Go on with the leases of a queue as they are at this instant."""

    def found(topic: Topic) -> None:
        _check_queue(topic)

        def go_on() -> None:
            if core.names.get(name) is not topic:
                _with_leases(core, name, then, done)
                return
            now, leases = core.clock.now_ms(), leases_of(topic)
            leases.expire(now)
            then(topic, leases, now)

        _retained(core, topic, go_on, done)

    core.with_topic(name, found, done)


def _acked(core: Core, topic: Topic, acked: int, skipped: Sequence[int]) -> AckResult:
    counts = counters(topic, core.clock.now_ms())
    return AckResult(acked, skipped, counts.ready, counts.in_flight)


def _log(core: Core, topic: Topic, events: Iterable[tuple[int, control.Lease]], then: Callable[[], None]) -> None:
    """Log lease events, and go on when they are synced, or cannot be."""
    gathered = _Events(core, topic)
    for seq, event in events:
        gathered.add(seq, event)
    gathered.commit(then)


class _Events:
    """What happened to jobs in one call: one submission, where leases survive restarts [QRC-3]."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self._core = core
        self._topic = topic
        self.kept = core.wal is not None and topic.keeps_leases
        self._now = core.clock.now_ms()
        self._frames: list[bytes] = []
        self._last: tuple[int, control.Lease] | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    def add(self, seq: int, event: control.Lease) -> None:
        """One event more."""
        if self.kept:
            if self._last is not None:
                self._encode(*self._last, more=True)
            self._last = (seq, event)

    def _encode(self, seq: int, event: control.Lease, *, more: bool) -> None:
        self._frames.append(frame.encode_control(event, self._topic.id, self._now, seq=seq, durable=True, more=more))

    def commit(self, then: Callable[[], None]) -> None:
        """Log them, and go on when they are synced, or cannot be [QRC-5]."""
        if self._last is None:
            then()
            return
        self._encode(*self._last, more=False)

        def logged(outcome: object) -> None:
            if isinstance(outcome, TopicsError):
                log.warning("topic %r: leases will not survive a restart: %s", self._topic.name, outcome)
            then()

        try:
            copies.keep_into(self._core, self._topic)
            self._core.submit(self._topic.id, b"".join(self._frames), len(self._frames), logged, durable=True)
        except TopicsError as error:
            logged(error)


# -- a pass ------------------------------------------------------------------------------------------------------------


class _Pass:
    """One pass of a queue [CLM-2]: jobs are dealt to a cohort in slices, then dead letters move, then all is answered.

    Between slices others may ack, give back and delete, but no other pass begins; leases are in force at once.
    """

    def __init__(
        self, core: Core, topic: Topic, cohort: Sequence[Claimer], over: Callable[[], None], fail: Outcome
    ) -> None:
        self._core = core
        self._topic = topic
        self._cohort = cohort
        self._over = over
        self._fail = fail
        self._now = core.clock.now_ms()
        wants = [one.wants for one in cohort]
        self._left = sum(wants)
        self._turns = turns(wants)
        self._is_shared = len(cohort) > 1
        self._budget = core.limits.max_read_bytes * len(cohort)
        self._jobs: list[list[Dealt]] = [[] for _ in cohort]
        self._fresh: list[Fresh] = []
        """The same of a claimer who is alone."""
        self._deadlines = [self._now + clamped_ms(one.claim.lease_ms, topic.config.lease_ms) for one in cohort]
        """All deadlines of a pass start at its time [COH-4]."""
        self._unreadable: list[int] = []
        self._cold = core.cold.read()
        self._events = _Events(core, topic)
        self._awaited = 1
        """What the answers wait for: dead letters, and the events of each slice."""
        config, leases = topic.config, leases_of(topic)
        leases.expire(self._now)
        leases.limit(config.max_deliveries if config.dead_letter is not None else 0)

    def step(self) -> None:
        """Deal some jobs, and go on as long as there are any; raises if the first of them cannot be read."""
        try:
            more = self._deal()
        except NeedsBlocks as needed:
            self._core.cold.fetch(self._cold, needed.wanted, self._go_on)
            return
        except OSError as error:
            if not self._has_jobs:
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
            self._over()
            _again(self._core, self._topic.name, self._cohort)
        else:
            guarded(self.step, self._fail)

    def _deal(self) -> bool:
        """One slice; whether there may be more. What cannot be read now is left for later passes."""
        leases, index = leases_of(self._topic), self._topic.index
        if not (self._is_shared or self._events.kept) and self._deal_run(leases):
            return True
        seqs = leases.choose(min(self._left, SLICE), self._look)
        order = sorted(seqs)
        try:
            frames: Sequence[Stored | Absent | tuple[bytes, int]]
            frames = index.places_in_memory(order) or index.frames(order, self._cold)
        except OSError:
            leases.put_back(seqs)
            raise
        except NeedsBlocks:
            if self._cold.failed is None:
                leases.put_back(seqs)
                raise
            self._leave_cold(leases, seqs)
            return True
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
        return bool(seqs)

    def _deal_run(self, leases: Leases) -> bool:
        """A slice of jobs in a row that are in memory and were never delivered, as most are; False: none is dealt."""
        run = leases.choose_run(min(self._left, SLICE), self._look)
        if run is None:
            return False
        pieces = self._topic.index.run_in_memory(run.start, len(run))
        size = 0 if pieces is None else sum(frame.span_bytes(*piece) for piece in pieces)
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
        due = leases_of(self._topic).take_due(core.limits.max_claim)
        self._over()
        deadletter.move(core, self._topic, due, self._one_done)

    def _commit(self) -> None:
        """Log the leases of a slice at once: whoever gives one back between two slices logs that behind it [QRC-1]."""
        if self._events:
            events, self._events = self._events, _Events(self._core, self._topic)
            self._awaited += 1
            events.commit(self._one_done)

    def _one_done(self) -> None:
        self._awaited -= 1
        if not self._awaited:
            self._answer()

    def _set_aside(self) -> None:
        """What could not be read is for later passes, unless it was dealt again since, or deleted."""
        topic, leases = self._topic, leases_of(self._topic)
        for seq in self._unreadable:
            if seq not in leases.held and topic.index.live(max(seq, topic.floor), seq).records:
                leases.set_aside(seq)

    def _answer(self) -> None:
        failed = self._cold.failed
        if failed is not None:
            claims_of(self._core, self._topic).stir_later()
            if not self._has_jobs:
                _tell((one, failed) for one in self._cohort)
                return
        ready = counters(self._topic, self._core.clock.now_ms()).ready
        _tell((one, one.told(self._hand(at), ready)) for at, one in enumerate(self._cohort))

    def _hand(self, at: int) -> Hand:
        jobs, deadline = self._jobs[at], self._deadlines[at]
        if self._fresh and not jobs:
            count = sum(len(offsets) // SIZE for run in self._fresh for _, offsets in run.pieces)
            return Hand((), self._fresh, count, deadline)
        jobs += [one for run in self._fresh for one in run.dealt()]
        return Hand(sorted(jobs, key=_seq_of), (), len(jobs), deadline)


_seq_of: Final = itemgetter(0)
