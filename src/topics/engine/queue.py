"""Queues: leased jobs over the records of a topic (04). The rules are in `lease`, a claim pass is `claiming`.

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
However many are over at once, they are taken up some at a time, each time in a stretch of its own. A pass waits for
the last of them, and so does an answer that tells how many jobs are ready [LSE-2, P-10]; whether a single lease is
over needs no waiting. An idle queue has no timer: an alarm is set only while a worker waits and something will expire.
Owner only.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from topics.codec import control
from topics.engine import forward, leaselog, retention
from topics.engine.alarms import Alarm
from topics.engine.claiming import Ends, Hand, Pass, tell
from topics.engine.cold import RETRY_NS
from topics.engine.core import Core, Outcome, follows, guarded
from topics.engine.delete import remove_jobs
from topics.engine.lease import DELAY_MS_MAX, Lease, Leases, clamped_ms, token
from topics.engine.leaselog import SLICE
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

log = logging.getLogger("topics.engine")

NS_PER_MS: Final = 1_000_000
LISTED: Final = 256
"""Leases listed in one stretch."""
_TOKEN = re.compile(r"lease_([0-9a-fA-F]+)")
_TOKENS = re.compile(r"(?:lease_[0-9a-fA-F]+ )+")


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
        self.waiting: list[Callable[[int], None]] = []
        """Who goes on when all that is over is taken up."""

    # -- what is over --------------------------------------------------------------------------------------------------

    def wait_swept(self, then: Callable[[int], None]) -> None:
        """Go on behind the turns that it takes to take up all that is over."""
        self.waiting.append(then)
        if len(self.waiting) == 1:
            self._core.owner.soon(self._sweep)

    def _sweep(self) -> None:
        """One turn; there is a last one, for no pass begins meanwhile."""
        now = self._core.clock.now_ms()
        try:
            is_over = self._topic.removed or leases_of(self._topic).expire(now)
        except Exception:  # whoever waits goes on: what is not taken up now is taken up later
            log.exception("topic %r: taking up leases that are over", self._topic.name)
            is_over = True
        if not is_over:
            self._core.owner.soon(self._sweep)
            return
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            try:
                then(now)
            except Exception:
                log.exception("topic %r: going on behind leases that are over", self._topic.name)

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

        def go_on(now: int) -> None:
            if core.names.get(topic.name) is topic:
                wanting = self._wanting(cohort)
                if not wanting:
                    self._over()
                    return
                ends = Ends(self._over, lambda: gone(wanting), fail, self.stir_later)
                Pass(core, topic, leases_of(topic), wanting, now, ends).step()
            else:
                gone(cohort)

        def gone(claimers: list[Claimer]) -> None:
            self._over()
            for one in claimers:
                one.again(core, topic.name)

        def fail(error: Exception) -> None:
            self._over()
            tell([(one, error) for one in cohort])

        def drained() -> None:
            up_to_date(core, topic, go_on, fail)

        # What was acknowledged in the source of a router before this claim can be claimed here [FWD-9].
        guarded(lambda: forward.drain(core, topic, drained, fail), fail)

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
        """End the workers of a topic that is gone; feed the others when it is known which of their slots are free."""
        topic = self._topic
        if not topic.removed:
            try:
                swept(self._core, topic, self._fill)
            except Exception:
                self._stirred = False  # or nobody would be fed again
                raise
            return
        self._stirred = False
        workers, self.workers = list(self.workers), {}
        for worker in workers:
            worker.end(TopicNotFound(topic.name))

    def _fill(self, now: int) -> None:
        """Let workers with free slots claim, all of them together; the rest of the time is the alarm's."""
        self._stirred = False
        topic = self._topic
        if topic.removed:
            self.stir()
            return
        for worker in self.workers:
            worker.missed = worker.refilling
        hungry = [worker for worker in self.workers if worker.refill.wants > 0 and not worker.refilling]
        if hungry and leases_of(topic).ready_of(topic.count):
            for worker in hungry:
                worker.refilling = True
            try:
                self.join([worker.refill for worker in hungry])
            except Exception:
                for worker in hungry:
                    worker.refilling = False
                raise
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
        seqs, skipped = leases.begin_acks(*asked, now)

        def answer() -> None:
            swept(core, topic, follows(lambda now: done(_acked(topic, len(seqs), skipped)), done))

        if not seqs:
            answer()
            return

        def fail(error: TopicsError) -> None:
            # What was refused before it was begun is as it was; a commit that failed gives the jobs back [ACK-5].
            (leases.ack_failed if isinstance(error, (CommitFailed, WalIo)) else leases.ack_refused)(seqs)
            claims_of(core, topic).stir()
            done(error)

        # Here and not above: whatever the staging meets, the leases must not stay as if they were being acked.
        guarded(lambda: remove_jobs(core, topic, seqs, ACK, answer, fail), fail)

    _with_leases(core, name, go_on, done)


def nack(core: Core, name: str, asked: Ask, delay_ms: int, done: Outcome) -> None:
    """Give jobs back, at once or in a while; answers a `NackResult`."""
    check_not_system(name)
    delay = min(delay_ms, DELAY_MS_MAX)

    def go_on(topic: Topic, leases: Leases, now: int) -> None:
        ready_at = now + delay if delay else 0

        def answer(changed: list[int], skipped: list[int]) -> None:
            swept(core, topic, follows(lambda now: done(_nacked(topic, len(changed), skipped)), done))

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
        leases, now = leases_of(topic), core.clock.now_ms()
        events = []
        for seq, id in zip(asked.seqs[low:high], asked.ids[low:high], strict=True):
            lease = None if seq in self._changed else leases.find(seq, asked.node, id, now)
            if lease is None:
                self._skipped.append(seq)
            else:
                self._changed[seq] = None
                events.append((seq, self._change(lease)))
        claims_of(core, topic).stir()
        self._unlogged += 1
        leaselog.write(core, topic, events, self._logged)
        if high < len(asked.seqs):
            core.owner.soon(self._go_on)
        else:
            self._logged()

    def _go_on(self) -> None:
        if self._topic.removed:
            self._done(TopicNotFound(self._topic.name))
        else:
            guarded(self.step, self._done)

    def _logged(self) -> None:
        """A stretch is synced, or all are through."""
        self._unlogged -= 1
        if not self._unlogged:
            guarded(lambda: self._answer(list(self._changed), self._skipped), self._done)


def leases(core: Core, name: str, after: int, count: int, done: Outcome) -> None:
    """What is leased and what is delayed, by seq; answers a `LeasePage` [QOB-4]."""

    def go_on(topic: Topic, found: Leases, now: int) -> None:
        _Listing(core, topic, now, after, count, done).step()

    _with_leases(core, name, go_on, done)


class _Listing:
    """A page of leases and delays as of one instant: some of it in each stretch [P-10]."""

    def __init__(self, core: Core, topic: Topic, now: int, after: int, count: int, done: Outcome) -> None:
        self._core = core
        self._topic = topic
        self._now = now
        self._at: int | None = after
        self._left = count
        self._last = after
        self._held: list[HeldLease] = []
        self._delayed: list[DelayedJob] = []
        self._done = done

    def step(self) -> None:
        """Look for some more; one that is not on the page any more tells that there is another page."""
        if self._topic.removed:
            self._done(TopicNotFound(self._topic.name))
            return
        assert self._at is not None
        found = leases_of(self._topic)
        seqs, self._at = found.page(self._at, min(self._left + 1, LISTED), self._now)
        has_more = len(seqs) > self._left
        for seq in seqs[: self._left]:
            self._add(found, seq)
        if has_more or self._at is None:
            self._done(LeasePage(self._held, self._delayed, self._last if has_more else None))
        else:
            self._core.owner.soon(lambda: guarded(self.step, self._done))

    def _add(self, found: Leases, seq: int) -> None:
        lease = found.held.get(seq)
        if lease is None:
            self._delayed.append(DelayedJob(seq, found.delayed[seq]))
        else:
            told = HeldLease(seq, lease.node, token(lease.id), lease.deadline_ms, found.deliveries[seq])
            self._held.append(told)
        self._left -= 1
        self._last = seq


def release(core: Core, topic: Topic, held: Sequence[Lease]) -> None:
    """Give leases up that are still active: jobs are to be had again at once [WRK-6]."""
    leases = topic.leases
    if leases is None or topic.removed:
        return
    now, some = core.clock.now_ms(), held[:SLICE]
    active = [lease for lease in some if leases.find(lease.seq, lease.node, lease.id, now) is lease]
    events = [(lease.seq, leases.release(lease)) for lease in active]
    claims_of(core, topic).stir()
    leaselog.write(core, topic, events, lambda: None)
    if len(held) > SLICE:
        core.owner.soon(lambda: release(core, topic, held[SLICE:]))


# -- what they share ---------------------------------------------------------------------------------------------------


class Counters(NamedTuple):
    """Jobs of a queue, by state [QOB-1]."""

    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int


def counters(topic: Topic) -> Counters:
    """The state of a queue as of when it was `swept`: `count` of the topic is the sum of the first three."""
    leases = topic.leases
    if leases is None:
        return Counters(topic.count, 0, 0, 0)
    ready = leases.ready_of(topic.count)
    return Counters(ready, leases.in_flight, len(leases.delayed), leases.dead_lettered)


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


def swept(core: Core, topic: Topic, then: Callable[[int], None]) -> None:
    """Go on at an instant as of which leases and delays that are over are taken up [LSE-2, P-10]."""
    now = core.clock.now_ms()
    if _is_swept(topic, now):
        then(now)
    else:
        claims_of(core, topic).wait_swept(then)


def up_to_date(core: Core, topic: Topic, then: Callable[[int], None], done: Outcome) -> None:
    """The same, and retention is applied, too [CLM-2]."""

    def go_on() -> None:
        now = core.clock.now_ms()
        if topic.removed or _is_swept(topic, now):
            then(now)
        else:  # retention has to follow the time that this takes
            again = partial(up_to_date, core, topic, then, done)
            claims_of(core, topic).wait_swept(lambda now: guarded(again, done))

    _retained(core, topic, go_on, done)


def _is_swept(topic: Topic, now_ms: int) -> bool:
    """Whether all that is over is taken up; if nobody waits for that yet, some of it is."""
    leases, claims = topic.leases, topic.claims
    return leases is None or (not (claims is not None and claims.waiting) and leases.expire(now_ms))


def _retained(core: Core, topic: Topic, then: Callable[[], None], done: Outcome) -> None:
    """What every call begins with, so that no expired job is claimed or counted [TTL-2]."""
    retention.catch_up(core, topic)
    retention.expire(core, topic, then, done)


def _with_leases(core: Core, name: str, then: Callable[[Topic, Leases, int], None], done: Outcome) -> None:
    """Go on with the leases of a queue at this instant; what is over may be among them."""

    def found(topic: Topic) -> None:
        _check_queue(topic)

        def go_on() -> None:
            if core.names.get(name) is not topic:
                _with_leases(core, name, then, done)
                return
            then(topic, leases_of(topic), core.clock.now_ms())

        _retained(core, topic, go_on, done)

    core.with_topic(name, found, done)


def _acked(topic: Topic, acked: int, skipped: Sequence[int]) -> AckResult:
    counts = counters(topic)
    return AckResult(acked, skipped, counts.ready, counts.in_flight)


def _nacked(topic: Topic, nacked: int, skipped: Sequence[int]) -> NackResult:
    counts = counters(topic)
    return NackResult(nacked, skipped, counts.ready, counts.in_flight)
