"""The owner: the one thread that all rules run on, and how it waits without waiting [A-1].

Storage never blocks its owner. What must wait for a disk goes `aside`, on a thread that knows no rules; its outcome
comes back as a call on the owner. A `sync` needs no Python at all: where the kernel has a thread for it, neither its
beginning nor its end takes the interpreter from the owner. What should happen after everything that is ready now goes
`soon`. Work that needs the interpreter all the time gains nothing aside, it only makes the owner wait for its turns: it
is `sliced`.

    InlineOwner   aside runs at once: tests with an injected clock, one deterministic thread
    LockedOwner   embedded: whoever holds the lock is the owner; helpers take it to report
    LoopOwner     the server: as `LockedOwner` while the store is opened and closed, an event loop in between
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeVar

from topics.clock import Clock, SystemClock, pause
from topics.codec import kernel
from topics.errors import EngineClosed
from topics.interrupts import unbroken
from topics.process import stand_back

log = logging.getLogger("topics.storage")

T = TypeVar("T")

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]
"""Called on the owner with the error of the work, or `None`."""
Synced = Callable[[OSError | None], None]
Steps = Iterator[None]
"""Work that stops for a moment between steps of less than a tenth of a millisecond."""

SLICES: Final = "slices"
"""The lane that has sliced work where there is no loop; its name counts it in any case."""
SLICE_MIN_NS: Final = 50_000
SLICE_MAX_NS: Final = 2_000_000
"""The owner is not kept longer by one stretch [A-1]."""
SLICE_SHARE: Final = 8
"""While others keep the owner busy, slices get one part in so many of the time they take."""
REST_MAX_NS: Final = 1_000_000
LARGE: Final = frozenset(("decode", "frames"))
"""Lanes that take in large bodies. With the kernel they need the processor for long and the interpreter hardly."""


class Owner(Protocol):
    """What storage asks of the thread it belongs to."""

    def __enter__(self) -> object:
        """Be the owner for a block: for steps of sliced work, which may be taken on a helper's thread."""
        ...

    def __exit__(self, *exception: object) -> None: ...

    def soon(self, call: Callable[[], None]) -> None:
        """Run on the owner after what it is doing now, in order."""
        ...

    def last(self, call: Callable[[], None]) -> None:
        """The same; where what was put off is done in rounds, at the end of the one under way.

        What such a call puts there comes behind it; what that does comes with the next round.
        """
        ...

    def aside(self, lane: str, work: Work, done: Done) -> None:
        """Run `work` off the owner, one after another within a lane, then `done` on the owner."""
        ...

    def can_sync(self, lane: str) -> bool:
        """Whether it syncs descriptors without a helper that needs the interpreter."""
        ...

    def sync(self, lane: str, descriptor: int, done: Synced) -> None:
        """Do so, if it can; one at a time within a lane. The descriptor stays open until `done`."""
        ...

    def apart(self, lane: str, work: Work, done: Done) -> None:
        """As `aside`, for what may never end: nobody waits for it when the owner is closed."""
        ...

    def sliced(self, work: Steps, done: Done) -> None:
        """Take `work` step by step, one work after another, between what the owner has to do; then `done`."""
        ...

    def give_way(self) -> None:
        """Aside, between two stretches of less than a millisecond: the owner may need the same processor."""
        ...


class InlineOwner:
    """Everything on the caller's thread; `run` does what was put off."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()
        self._depth = 0

    def __enter__(self) -> InlineOwner:
        """One thread at a time; leaving does what was put off."""
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._depth == 1 and exception[0] is None:
                self.run()
        finally:
            self._depth -= 1
            self._lock.release()

    def do(self, work: Callable[[], T]) -> T:
        """Run work, and what it put off at once."""
        with self:
            return work()

    def look(self, work: Callable[[], T]) -> T:
        """The same."""
        return self.do(work)

    def check(self) -> None:
        """Nothing strikes it."""

    def close(self) -> None:
        """Nothing runs by itself."""

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def last(self, call: Callable[[], None]) -> None:
        self.soon(call)

    def aside(self, lane: str, work: Work, done: Done) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - an outcome like any other: the owner judges it
            outcome: Exception | None = error
        else:
            outcome = None
        self._soon.append(lambda: done(outcome))

    def can_sync(self, lane: str) -> bool:
        return False

    def sync(self, lane: str, descriptor: int, done: Synced) -> None:
        raise NotImplementedError

    def apart(self, lane: str, work: Work, done: Done) -> None:
        self.aside(lane, work, done)

    def sliced(self, work: Steps, done: Done) -> None:
        self.aside(SLICES, lambda: _take_all(work), done)

    def give_way(self) -> None:
        """There is nobody else."""

    def run(self) -> None:
        """Do everything that was put off, until nothing is left."""
        while self._soon:
            self._soon.popleft()()


class LockedOwner:
    """Whoever is inside `with owner` is the owner; leaving does what was put off first.

    What changes anything goes through `do`, what changes nothing may go through `look`. The usual signals wait until a
    change is whole. Another one, or a second Ctrl-C, may strike in the middle: what is half done then can be neither
    undone nor gone on with, so nothing is done any more. Memory is as the signal left it, the disk as a process that
    was killed there leaves it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._lanes: dict[str, _Lane] = {}
        self._apart: dict[str, _Lane] = {}
        self._outstanding = 0
        self._outstanding_apart = 0
        self._counting = threading.RLock()
        """For what is outstanding. It is taken as itself, not through the condition: no signal leaves it locked."""
        self._idle = threading.Condition(self._counting)
        self._closed = False
        self.struck = ""
        """By what, and so nothing is done any more."""
        self.on_struck: Callable[[], None] = lambda: None
        """Told once, on the owner."""

    def __enter__(self) -> LockedOwner:
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._soon:
                self._whole(self._do_what_was_put_off)
        finally:
            self._depth -= 1
            self._lock.release()

    def _do_what_was_put_off(self) -> None:
        while self._depth == 1 and self._soon and not self.struck:
            call = self._soon.popleft()
            try:
                call()
            except Exception:  # it is nobody's in particular: what else was put off must still be done
                log.exception("something that was put off failed")

    def do(self, work: Callable[[], T]) -> T:
        """Run work as the owner, and then what was put off."""
        return unbroken(partial(self._do, work), self._lock)

    def _do(self, work: Callable[[], T]) -> T:
        self.check()
        self._depth += 1
        try:
            try:
                return self._whole(work)
            finally:
                if self._soon and not self.struck:
                    self._whole(self._do_what_was_put_off)
        finally:
            self._depth -= 1

    def look(self, work: Callable[[], T]) -> T:
        """The same for what changes nothing: another signal may end it anywhere."""
        return unbroken(partial(self._look, work), self._lock)

    def _look(self, work: Callable[[], T]) -> T:
        self.check()
        self._depth += 1
        try:
            return work()
        finally:
            self._depth -= 1
            if self._soon and not self.struck:
                self._do(self._do_what_was_put_off)

    def check(self) -> None:
        """Raise if nothing is done any more."""
        if self.struck:
            raise EngineClosed(
                f"{self.struck} interrupted a change: close the engine and open it again; "
                "what was not answered yet may be written or not"
            )

    def _whole(self, work: Callable[[], T]) -> T:
        """Nothing comes behind work that was not done to its end, or to an error of its own."""
        try:
            return work()
        except Exception:
            raise
        except BaseException as error:
            self.struck = self.struck or type(error).__name__
            with self._counting:
                self._idle.notify_all()
            self.on_struck()
            raise

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def last(self, call: Callable[[], None]) -> None:
        self.soon(call)

    def aside(self, lane: str, work: Work, done: Done) -> None:
        thread = self._lane(lane)
        with self._counting:
            self._outstanding += 1
        thread.put(lambda: self._carry_out(work, partial(self._tell, done)))

    def _tell(self, done: Done, outcome: BaseException | None) -> None:
        if not self.struck:
            done(outcome)

    def _lane(self, lane: str) -> _Lane:
        thread = self._lanes.get(lane)
        if thread is None:
            thread = self._lanes[lane] = _Lane(f"topics-{lane}")
        return thread

    def can_sync(self, lane: str) -> bool:
        return False

    def sync(self, lane: str, descriptor: int, done: Synced) -> None:
        raise NotImplementedError

    def apart(self, lane: str, work: Work, done: Done) -> None:
        thread = self._apart.get(lane)
        if thread is None:
            thread = self._apart[lane] = _Lane(f"topics-{lane}")
        with self._counting:
            self._outstanding += 1
            self._outstanding_apart += 1

        def told(outcome: BaseException | None) -> None:
            with self._counting:
                self._outstanding_apart -= 1
            if not self._closed and not self.struck:
                done(outcome)

        thread.put(lambda: self._carry_out(work, told))

    def sliced(self, work: Steps, done: Done) -> None:
        self.aside(SLICES, lambda: _take_all(work), done)

    def give_way(self) -> None:
        """Whoever waits for an engine in the same process waits for this too."""

    def _carry_out(self, work: Work, done: Done) -> None:
        outcome: BaseException | None = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a helper that dies is an outcome too: nobody may wait for ever
            outcome = error
        self._report(done, outcome)

    def _report(self, done: Done, outcome: BaseException | None) -> None:
        try:
            with self:
                done(outcome)
        except Exception:
            log.exception("a helper's report failed")
        finally:
            with self._counting:
                self._outstanding -= 1
                self._idle.notify_all()

    def queued(self, lane: str) -> int:
        """How much work a lane has, what it is doing included; a reader on another thread is off by one at times."""
        thread = self._lanes.get(lane) or self._apart.get(lane)
        return 0 if thread is None else thread.depth

    def wait_idle(self, apart_s: float | None = None) -> None:
        """Wait for the helpers and for what their reports start; call it without being the owner.

        Not behind a change that a signal ended: work may be counted then that nobody has.
        `apart_s`: also for those that are apart, but not longer than that.
        """
        with self._counting:
            if apart_s is not None:
                self._idle.wait_for(lambda: self.struck or not self._outstanding, apart_s)
            self._idle.wait_for(lambda: self.struck or self._outstanding == self._outstanding_apart)

    def close(self) -> None:
        """The same, and end the helpers; those that are apart end by themselves, and tell nothing any more."""
        self.wait_idle()
        self._closed = True
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._apart.values():
            lane.leave()


class LoopOwner(LockedOwner):
    """A `LockedOwner` that is lent to an event loop: then the loop's thread is the owner, and no lock is needed.

    What is put off runs in the loop's next pass, behind all sockets that were ready; what is put off meanwhile in the
    one after it, so that clients just answered join the next write and the next sync.

    Slices are taken in passes of their own, and give way once to what was put off: an answer leaves at the end of the
    pass that gives it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._in_round = False
        self._last: deque[Callable[[], None]] = deque()
        """What comes at the end of the round."""
        self._reports: deque[tuple[Done, BaseException | None]] = deque()
        self._works: deque[tuple[Steps, Done]] = deque()
        self._sliced_ns = 0
        """When the last slice ended."""
        self._gave_way = False
        self._stretch = threading.local()
        self._syncs: dict[str, _Syncs] = {}
        self._is_refused = False
        """The system gave no thread or event for syncs once: it is not asked again."""

    def lend(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the loop is the owner; called on it, while nobody else uses the engine."""
        self._loop = loop
        if self._soon:
            self._schedule(loop)

    def take_back(self) -> None:
        """Whoever enters is the owner again; called on the loop, which does nothing to the engine any more."""
        loop, self._loop = self._loop, None
        begun, self._syncs = self._syncs, {}
        for lane, syncs in begun.items():
            if loop is not None:
                loop.remove_reader(syncs.syncer.fileno())
            if syncs.done is not None:
                # Not in the lane itself: whatever is there may wait for this sync.
                self._lane(f"{lane}-sync").put(partial(self._wait_for_sync, syncs))
        with self:
            self._take_reports()
        while self._works:
            work, done = self._works.popleft()
            self._carry_out(partial(_take_all, work), done)

    def _do_what_was_put_off(self) -> None:
        if self._loop is None:
            super()._do_what_was_put_off()

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)
        if self._loop is not None and not self._scheduled:
            self._schedule(self._loop)

    def last(self, call: Callable[[], None]) -> None:
        if self._in_round:
            self._last.append(call)
        else:
            self.soon(call)

    def has_more(self) -> bool:
        """Whether anything else was put off: on the loop, for what is itself done as something put off."""
        return bool(self._soon)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._run_soon)

    def _run_soon(self) -> None:
        self._scheduled = False
        if self._loop is None:
            return  # it was taken back meanwhile: who enters does it
        self._in_round = True
        _do(self._soon)
        _do(self._last)
        self._in_round = False
        _do(self._last)  # what those brought: a delivery behind the write that it tells of
        if self._soon and not self._scheduled and self._loop is not None:
            self._schedule(self._loop)

    def aside(self, lane: str, work: Work, done: Done) -> None:
        if lane in LARGE and self._loop is not None and kernel.native is not None:
            work = partial(_do_far_back, work)
        super().aside(lane, work, done)

    def sliced(self, work: Steps, done: Done) -> None:
        if self._loop is None:
            super().sliced(work, done)
            return
        with self._counting:
            self._outstanding += 1
        self._works.append((work, done))
        if len(self._works) == 1:
            self._sliced_ns = self._clock.monotonic_ns()
            self._loop.call_soon(self._slice)

    def can_sync(self, lane: str) -> bool:
        if self._loop is None:
            return False
        if lane not in self._syncs:
            syncer = self._make_syncer()
            if syncer is None:
                return False
            syncs = self._syncs[lane] = _Syncs(syncer)
            self._loop.add_reader(syncer.fileno(), self._sync_ended, syncs)
        return True

    def _make_syncer(self) -> kernel.Syncer | None:
        if self._is_refused:
            return None
        try:
            return kernel.syncer()
        except OSError as error:
            log.warning("syncs will need the interpreter: %s", error)
            self._is_refused = True
            return None

    def sync(self, lane: str, descriptor: int, done: Synced) -> None:
        syncs = self._syncs[lane]
        assert syncs.done is None, "one at a time"
        with self._counting:
            self._outstanding += 1
        syncs.done = done
        syncs.syncer.ask(descriptor)

    def _sync_ended(self, syncs: _Syncs) -> None:
        """On the loop; called for nothing once the end was taken."""
        errno = syncs.syncer.take()
        if errno is not None:
            self._tell_sync(syncs, errno)

    def _wait_for_sync(self, syncs: _Syncs) -> None:
        """On a helper: the loop is not there any more."""
        self._tell_sync(syncs, syncs.syncer.wait())

    def _tell_sync(self, syncs: _Syncs, errno: int) -> None:
        done, syncs.done = syncs.done, None
        assert done is not None
        error = OSError(errno, "fdatasync failed") if errno else None
        LockedOwner._report(self, lambda _: done(error), None)

    def give_way(self) -> None:
        """Rest as long as the last stretch took: a scheduler lets a thread run for milliseconds where it may."""
        if self._loop is not None:
            since_ns = getattr(self._stretch, "since_ns", None)
            if since_ns is None:
                stand_back()
            pause(min(self._clock.monotonic_ns() - (since_ns or 0), REST_MAX_NS))
            self._stretch.since_ns = self._clock.monotonic_ns()

    def queued(self, lane: str) -> int:
        syncs = self._syncs.get(lane)
        more = len(self._works) if lane == SLICES else syncs is not None and syncs.done is not None
        return super().queued(lane) + more

    def _slice(self) -> None:
        """On the loop: steps of the first work for as long as is fair."""
        if self._loop is None or not self._works:
            return
        self._gave_way = self._scheduled and not self._gave_way
        if not self._gave_way:
            now = self._clock.monotonic_ns()
            spare = (now - self._sliced_ns) // SLICE_SHARE
            self._take_steps(now + min(max(spare, SLICE_MIN_NS), SLICE_MAX_NS))
            self._sliced_ns = self._clock.monotonic_ns()
        if self._works:
            self._loop.call_soon(self._slice)

    def _take_steps(self, until_ns: int) -> None:
        work, done = self._works[0]
        outcome: BaseException | None = None
        try:
            for _ in work:
                if self._clock.monotonic_ns() >= until_ns:
                    return
        except Exception as error:  # noqa: BLE001 - an outcome like any other: the owner judges it
            outcome = error
        self._works.popleft()
        LockedOwner._report(self, done, outcome)

    def _report(self, done: Done, outcome: BaseException | None) -> None:
        loop = self._loop
        if loop is None:
            super()._report(done, outcome)
            return
        self._reports.append((done, outcome))
        loop.call_soon_threadsafe(self._take_reports)

    def _take_reports(self) -> None:
        while self._reports:
            done, outcome = self._reports.popleft()
            super()._report(done, outcome)


def _do(calls: deque[Callable[[], None]]) -> None:
    """Those that are there; not what they add."""
    for _ in range(len(calls)):
        try:
            calls.popleft()()
        except Exception:
            log.exception("something that was put off failed")


def _do_far_back(work: Work) -> None:
    """On a helper: everybody else's small requests come first [P-10]."""
    stand_back(far=True)
    work()


def _take_all(work: Steps) -> None:
    for _ in work:
        pass


class _Syncs:
    """The syncs of a lane, one after another."""

    def __init__(self, syncer: kernel.Syncer) -> None:
        self.syncer = syncer
        self.done: Synced | None = None
        """Who is told when the one under way ends."""


class _Lane:
    """One daemon thread that does one thing after another; it works until the interpreter is gone."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._working = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """What waits, and what is being done."""
        return self._queue.qsize() + self._working

    def put(self, call: Callable[[], None]) -> None:
        """Have it done behind everything that was put before."""
        self._queue.put(call)

    def stop(self) -> None:
        """End the thread, unless it is the caller."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def leave(self) -> None:
        """Let the thread end when it is done."""
        self._queue.put(None)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            self._working = True
            call()
            self._working = False
