"""The cold tier as the engine sees it: who may use it, and how blocks of it are brought in [S-320].

    reader (on the owner)    meets a cold segment ─▶ `NeedsBlocks` ─▶ `fetch`, and goes on with other work
    pool `topics-cold-0…3`   one ranged read each; whoever wants the same block shares it
    owner                    blocks into the cache and into the reads that wait; each of them tries again, one at a
                             time and when nothing else is due: blocks of many readers come at once (`turns`)

Neither the owner nor a shard ever waits for the tier, and nobody waits for it at the end. A read that fails tells its
reader; after five failures in a row nothing is asked for ten seconds [S-323]. Before the tier is believed, its store id
is looked at, and again after every failure and every ten seconds: a folder of another store has segments under the same
names [S-14, S-346]. Owner only, but for `_Fetch.run`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from topics.clock import Clock
from topics.engine.turns import Turns
from topics.errors import ColdStoreMismatch, EngineClosed, StoreUnavailable
from topics.storage.owner import Owner
from topics.storage.segfile import SegmentFiles
from topics.storage.tiers.blocks import BlockCache, BlockKey, ColdRead, Wanted, fetch_block
from topics.storage.tiers.store import ColdRoot, SegmentNotFound, check_owner

log = logging.getLogger("topics.engine")

T = TypeVar("T")

THREADS: Final = 4
QUEUE_MAX: Final = 64
"""Blocks that wait for a thread; reads beyond them wait themselves."""
FAILURES_MAX: Final = 5
SKIP_NS: Final = 10_000_000_000
CHECK_NS: Final = 10_000_000_000
"""How long a store id is believed."""
START_S: Final = 5.0
"""How long a start waits for the tier, where it has to ask it something."""
RETRY_NS: Final = 1_000_000_000
"""When somebody who follows a topic tries again."""


class _Waiter:
    """A read that waits for blocks."""

    __slots__ = ("left", "read", "then")

    def __init__(self, read: ColdRead, keys: set[BlockKey], then: Callable[[], None]) -> None:
        self.read = read
        self.left = keys
        self.then = then


class _Fetch:
    """One block on its way."""

    __slots__ = ("absent", "data", "must_check", "root", "store_id", "wanted")

    def __init__(self, root: ColdRoot, store_id: str, wanted: Wanted, must_check: bool) -> None:
        self.root = root
        self.store_id = store_id
        self.wanted = wanted
        self.must_check = must_check
        self.data = b""
        self.absent = False

    def run(self) -> None:
        """On a thread of the pool."""
        if self.must_check:
            check_owner(self.root, self.store_id)
        try:
            self.data = fetch_block(self.root.topic(self.wanted.key.place.topic_id), self.wanted)
        except SegmentNotFound:
            check_owner(self.root, self.store_id)
            self.absent = True


class Drop(NamedTuple):
    """Objects of a segment that is dead: they go first, then what is left of it here [S-274]."""

    topic_id: int
    first: int
    generation: int
    files: SegmentFiles
    stub: bool = False
    """Its `.idx` stays, because something still has to be told of it."""

    @property
    def key(self) -> tuple[int, int]:
        """Which segment."""
        return self.topic_id, self.first


class Cold:
    """The cold tier of an engine; without a root nothing is ever there."""

    def __init__(self, owner: Owner, clock: Clock, turns: Turns, cache_bytes: int) -> None:
        self.root: ColdRoot | None = None
        self.store_id = ""
        self.patience_s: float | None = None
        """How long opening waits for an answer; None: as long as it takes."""
        self.reads = 0
        """Blocks that were fetched (`topics_cold_reads_total`)."""
        self.relocated = 0
        """Segments that were moved there (`topics_relocated_total`)."""
        self.is_unclaimed = False
        """Nothing was ever moved there and its id could not be written yet: the relocator goes on trying [S-14]."""
        self.drops: dict[tuple[int, int], Drop] = {}
        """What is to be deleted there, in line until it is."""
        self.clears: dict[int, str] = {}
        """Deleted topics whose objects are to go, and the directory that stands for that."""
        self._cache = BlockCache(cache_bytes)
        self._owner = owner
        self._clock = clock
        self._turns = turns
        self._fetching: dict[BlockKey, list[_Waiter]] = {}
        self._queue: deque[Wanted] = deque()
        self._parked: deque[tuple[_Waiter, Sequence[Wanted]]] = deque()
        self._ready: deque[_Waiter] = deque()
        """They have their blocks and wait for their turn; each has one in line."""
        self._idle = list(range(THREADS))
        self._failures = 0
        self._skip_until_ns = 0
        self._check_due_ns = 0
        self._ended = False

    def check(self, store_id: str) -> None:
        """Whose the tier is; `ColdStoreMismatch` if it is another engine's [S-14]. Not to know is no error."""
        self.store_id = store_id
        if self.root is None:
            return
        try:
            found = self.ask(self.root.store_id)
        except StoreUnavailable as error:
            log.error("the cold tier cannot be reached now; everything else works: %s", error)
            return
        if found is not None and found != store_id:
            raise ColdStoreMismatch(f"{self.root.name} belongs to store {found}, this is {store_id}")

    def claim(self, *, has_cold: bool) -> None:
        """Make the tier this engine's if it is nobody's; not if segments are there already: it is not mounted then."""
        if self.root is None or has_cold:
            return
        self.is_unclaimed = True
        try:
            self.ask(self.claim_now)
        except StoreUnavailable as error:
            log.error("the cold tier cannot be claimed now: %s", error)

    def claim_now(self) -> None:
        """Where the tier may be waited for; nobody else reads or writes the mark meanwhile."""
        assert self.root is not None
        if self.root.store_id() is None:
            self.root.claim(self.store_id)
        self.is_unclaimed = False

    def ask(self, call: Callable[[], T]) -> T:
        """Ask the tier while the store is opened; one that does not answer in time is not there [S-318]."""
        if self.patience_s is None:
            return call()
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(call())
            except BaseException as error:  # noqa: BLE001 - told where it is waited for
                failed.append(error)

        thread = threading.Thread(target=run, name="topics-cold-open", daemon=True)
        thread.start()
        thread.join(self.patience_s)
        if failed:
            raise failed[0]
        if not found:
            raise StoreUnavailable(f"the cold tier does not answer within {self.patience_s:g} s")
        return found[0]

    @property
    def name(self) -> str | None:
        """The root without credentials."""
        return None if self.root is None else self.root.name

    @property
    def is_failing(self) -> bool:
        """Whether the tier is left alone for a while."""
        return self._clock.monotonic_ns() < self._skip_until_ns

    @property
    def waiting(self) -> int:
        """Blocks that are fetched or wait to be."""
        return len(self._fetching)

    def read(self) -> ColdRead:
        """For one call."""
        return ColdRead(self._cache)

    def fetch(self, read: ColdRead, wanted: Sequence[Wanted], then: Callable[[], None]) -> None:
        """Bring blocks in for a read; `then` is called once, later: they are there, or `read.failed` says why not."""
        waiter = _Waiter(read, {one.key for one in wanted}, then)
        refused = self._refusal()
        if refused is not None:
            read.failed = refused
            self._owner.soon(then)
        elif len(self._queue) >= QUEUE_MAX:
            self._parked.append((waiter, wanted))
        else:
            self._enqueue(waiter, wanted)

    def again(self, read: ColdRead, then: Callable[[], None]) -> None:
        """Have a read go on that has its blocks; `then` is called once, later, as with `fetch`."""
        if self._ended:
            read.failed = EngineClosed("the engine is closing")
            self._owner.soon(then)
        else:
            self._in_line(_Waiter(read, set(), then))

    def drop(self, drop: Drop) -> None:
        """Have objects deleted; nobody waits for it [S-318]."""
        self.drops[drop.key] = drop

    def end(self) -> None:
        """The engine closes: whoever waits is told, whatever the tier does."""
        self._ended = True
        waiters = {id(one): one for some in self._fetching.values() for one in some}
        waiters |= {id(one): one for one in (*self._ready, *(one for one, _ in self._parked))}
        self._ready.clear()
        self._fetching.clear()
        self._queue.clear()
        self._parked.clear()
        for one in waiters.values():
            one.read.failed = EngineClosed("the engine is closing")
            one.then()

    def _refusal(self) -> Exception | None:
        if self._ended:
            return EngineClosed("the engine is closing")
        if self.root is None:
            return StoreUnavailable("records are in a cold tier, and none is configured")
        if self.is_failing:
            return StoreUnavailable("the cold tier fails; it is tried again in a few seconds")
        return None

    def _enqueue(self, waiter: _Waiter, wanted: Sequence[Wanted]) -> None:
        for one in wanted:
            waiters = self._fetching.get(one.key)
            if waiters is None:
                self._fetching[one.key] = [waiter]
                self._queue.append(one)
            else:
                waiters.append(waiter)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self._idle:
            assert self.root is not None
            thread, wanted = self._idle.pop(), self._queue.popleft()
            must_check = self._clock.monotonic_ns() >= self._check_due_ns
            fetch = _Fetch(self.root, self.store_id, wanted, must_check)
            self._owner.apart(f"cold-{thread}", fetch.run, partial(self._fetched, fetch, thread))

    def _fetched(self, fetch: _Fetch, thread: int, error: BaseException | None) -> None:
        self._idle.append(thread)
        self.note(error)
        if error is None:
            if fetch.must_check or fetch.absent:
                self._check_due_ns = self._clock.monotonic_ns() + CHECK_NS
            self.reads += 1
        if self._ended:
            return
        key = fetch.wanted.key
        if error is None and not fetch.absent:
            self._cache.put(key, fetch.data)
        for waiter in self._fetching.pop(key, ()):
            if waiter.read.failed is None:
                self._give(waiter, fetch, error)
        while self._parked and len(self._queue) < QUEUE_MAX:
            self.fetch(*_again(*self._parked.popleft()))
        self._hand_out()

    def _give(self, waiter: _Waiter, fetch: _Fetch, error: BaseException | None) -> None:
        key = fetch.wanted.key
        waiter.left.discard(key)
        if error is not None:
            waiter.read.failed = _told(error)
            waiter.left.clear()
        elif fetch.absent:
            waiter.read.absent.add(key.place)
        else:
            waiter.read.blocks[key] = fetch.data
        if not waiter.left:
            self._in_line(waiter)

    def _in_line(self, waiter: _Waiter) -> None:
        self._ready.append(waiter)
        self._turns.put(self._go_on)

    def _go_on(self) -> None:
        if self._ready:
            self._ready.popleft().then()

    def note(self, error: BaseException | None) -> None:
        """How a call of the tier went: five failures in a row, and it is left alone [S-323]."""
        if error is None:
            self._failures = 0
            return
        log.warning("the cold tier: %s", error)
        self._check_due_ns = 0
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._failures = 0
            self._skip_until_ns = self._clock.monotonic_ns() + SKIP_NS


def _again(waiter: _Waiter, wanted: Sequence[Wanted]) -> tuple[ColdRead, Sequence[Wanted], Callable[[], None]]:
    return waiter.read, wanted, waiter.then


def _told(error: BaseException) -> Exception:
    return error if isinstance(error, StoreUnavailable) else StoreUnavailable(f"the cold tier: {error!r}")
