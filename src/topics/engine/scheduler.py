"""Delivery scheduler: which topic or edge is served next, and when (08 §1-§5, 01 §16).

    mark    there is something to deliver: the item takes its place in the line of its band [D-1, D-3]
    pop     deficit weighted round-robin over the bands, 8 4 2 1 1 [D-20]; the item is free to be marked again [D-4]
    done    its service is over; if it was marked meanwhile it takes a new place, behind what waits [D-5]
    tick    what waits longer counts more [D-22]; what was held back to coalesce returns [D-42]

    idle ──mark──▶ queued ──pop──▶ in service ──done──▶ idle, or queued if it was marked meanwhile
                    ▲    └─too early (L1)─▶ held ─┐
                    └────────────tick─────────────┘

The governor acts through two calls, once per sample:

    scheduler.set_pressure(governor.sample(…))      L1: a topic is served at most once per window
    scheduler.defer(governor.deferring)             L3: forward items queue one band lower, B0 is suspended [D-45]

Waiting is measured on the monotonic clock, so a wall clock that is set starves nobody; recent consumption, which is
dated, goes by wall time. The scheduler never changes what is stored or seen. Owner only; no locks, no I/O [D-2].
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Protocol

from topics.clock import Clock
from topics.engine import priority
from topics.model import TopicConfig

LATENCY_BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, 1000)
"""Upper bounds of the buckets that pops are counted in by how long the item waited; one more for the rest (08 §11)."""
LATENCY_WEIGHT: Final = 0.2
LATENCY_NONE_MS: Final = 0.001
"""What has been halved below this is nothing."""
LOWEST: Final = 0
"""The band of negative priorities."""
BANDS: Final = len(priority.WEIGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Fixed numbers of 08 (§11), for tests to set; the formula's are in `priority`."""

    aging_ms: int = priority.TICK_MS
    aging_items: int = 10_000
    """Items that one tick looks at [D-22]."""
    router_ms: int = 50
    """How often an edge that is behind is tried again [D-32]."""
    sample_ms: int = 100
    depth_free: int = 4
    """Items that may be queued at no pressure; sixteen times as many are full pressure."""
    latency_full_ms: float = 5.0
    coalesce_above: float = 0.2
    coalesce_ms: float = 20.0
    defer_above: float = 0.8
    defer_below: float = 0.6
    defer_samples: int = 3
    refuse_from: float = 0.95
    """From this pressure on a write that finds no room does not wait for it (08 §6)."""
    wait_ms: int = 50
    wait_long_ms: int = 30_000
    """The same with `disable_backpressure`."""
    slow_ms: int = 30_000
    """A connection that takes no byte for so long while output is pending is closed [D-62]."""


class Prioritised(Protocol):
    """What a place in the line goes by: a topic."""

    @property
    def config(self) -> TopicConfig: ...

    @property
    def last_consumed_ms(self) -> int | None: ...


class Item:
    """One thing to serve: the delivery of a topic, or the forwarding along an edge [D-1].

    `serve` does one slice of service; True: it wants another one before anything else is popped.
    """

    __slots__ = (
        "band", "dirty", "enqueued_ns", "forward", "held", "order", "ready_ns", "serve", "serviced_ns", "serving",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: Prioritised, serve: Callable[[], bool], *, forward: bool = False) -> None:
        self.topic = topic
        """Of an edge: its source [D-12]."""
        self.serve = serve
        self.forward = forward
        self.dirty = False
        """Marked and not popped since."""
        self.enqueued_ns: int | None = None
        """Since when it waits, on the monotonic clock."""
        self.band = LOWEST
        self.serviced_ns: int | None = None
        """When it was last popped."""
        self.serving = False
        self.held = False
        """Popped too early: waits for its window to end [D-42]."""
        self.order = 0
        """Its place among all that wait; 0: it does not."""
        self.ready_ns = 0
        """Since when nothing but the line keeps it from being served."""


class _Line:
    """One band's queue, by order: what was marked into it, and what came later with an older place.

    An entry whose item has left for a higher band, or was forgotten, is stale and passed over.
    """

    __slots__ = ("band", "count", "credit", "fresh", "placed")

    def __init__(self, band: int) -> None:
        self.band = band
        self.count = 0
        self.credit = 0
        self.fresh: deque[tuple[int, Item]] = deque()
        self.placed: list[tuple[int, Item]] = []
        """A heap: risen and returned items."""

    def popleft(self) -> Item:
        """The oldest; there is one."""
        while True:
            fresh, placed = self.fresh, self.placed
            if placed and (not fresh or placed[0][0] < fresh[0][0]):
                order, item = heappop(placed)
            else:
                order, item = fresh.popleft()
            if item.order == order and item.band == self.band:
                self.count -= 1
                return item

    def place(self, item: Item) -> None:
        """Put an item between the others, by its order."""
        heappush(self.placed, (item.order, item))
        self.count += 1

    def remove(self) -> None:
        """An item has left, by its order or its band: drop what is stale in front."""
        self.count -= 1
        while self.fresh and self._stale(self.fresh[0]):
            self.fresh.popleft()
        while self.placed and self._stale(self.placed[0]):
            heappop(self.placed)

    def _stale(self, entry: tuple[int, Item]) -> bool:
        order, item = entry
        return item.order != order or item.band != self.band


class Scheduler:
    """The ready set of the server. Invariant: an item has one place at most, and only while it is dirty."""

    def __init__(self, clock: Clock, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.on_work: Callable[[], None] = lambda: None
        """Called when there is something to pop and there was not; schedules the worker unless it is scheduled."""
        self.on_suspended: Callable[[Sequence[Item]], None] = lambda items: None
        """Called with what begins to wait for the end of a suspension [D-45]; an item may be told again."""
        self.forward_rest_ns = 0
        """An edge is served once in so long, at most: whoever writes to its source all the time seldom meets it."""
        self.suspended = False
        """L3: band B0 is not served."""
        self.suspensions = 0
        """How often that began."""
        self.latency_ms = 0.0
        """EWMA of how long items that could be served waited for it."""
        self.latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        """Pops by how long the item was queued, each in one bucket."""
        self.latencies_ms = 0.0
        """All of that together."""
        self._clock = clock
        self._lines = [_Line(band) for band in range(BANDS)]
        self._only: Item | None = None
        """What waits alone has no place: one is found for it when somebody looks, or another comes."""
        self._waiting: OrderedDict[int, Item] = OrderedDict()
        """Everything else that is queued or held, oldest first."""
        self._held: list[tuple[int, int, Item]] = []
        """The timer list: when an item returns, a heap [D-42]."""
        self._window_ns = 0
        self._last_order = 0
        self._current = BANDS - 1
        self._granted = False
        self._aged_ns = clock.monotonic_ns()
        self._resumed_ns = self._aged_ns
        self._popped = False
        """Since the last sample."""

    # -- what is queued ----------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Items that could be served now, for the governor.

        What the ladder itself keeps waiting does not count: otherwise the pressure would hold itself up.
        """
        self._settle()
        lines = self._lines
        queued = lines[1].count + lines[2].count + lines[3].count + lines[4].count
        return queued if self.suspended else queued + lines[LOWEST].count

    @property
    def ready(self) -> tuple[int, ...]:
        """Items queued in each band, B0 first."""
        self._settle()
        return tuple(line.count for line in self._lines)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or held."""
        return not self._waiting and self._only is None

    def mark(self, item: Item) -> None:
        """There is something to serve [D-3]."""
        if item.dirty:
            return
        item.dirty = True
        item.enqueued_ns = item.ready_ns = self._clock.monotonic_ns()
        if item.serving:
            return
        if self._only is None and not self._waiting and not self.suspended:
            self._only = item
            self.on_work()
        else:
            self._enqueue(item)

    def done(self, item: Item) -> None:
        """Its service is over; what was marked meanwhile is queued, dated when it was marked [D-5]."""
        item.serving = False
        if item.dirty and not item.order and item is not self._only:
            self._enqueue(item)

    def forget(self, item: Item) -> None:
        """It is no more: nothing of it stays."""
        order, item.order = item.order, 0
        if self._only is item:
            self._only = None
        item.dirty = item.serving = False
        item.enqueued_ns = None
        if order:
            del self._waiting[order]
            if not item.held:
                self._lines[item.band].remove()
        item.held = False

    def _enqueue(self, item: Item) -> None:
        """At the end of its band's line."""
        idle = not self.depth
        self._place(item)
        if item.band == LOWEST and self.suspended:
            self.on_suspended((item,))
        elif idle:
            self.on_work()

    def _settle(self) -> None:
        """Whatever waits has a place from here on."""
        only, self._only = self._only, None
        if only is not None:
            self._place(only)

    def _place(self, item: Item) -> None:
        self._last_order += 1
        item.order = self._last_order
        item.band = self._band(item)
        line = self._lines[item.band]
        line.fresh.append((item.order, item))
        line.count += 1
        self._waiting[item.order] = item

    def _band(self, item: Item) -> int:
        """Where an item belongs now; in L3 an edge belongs one band lower [D-22]."""
        assert item.enqueued_ns is not None
        topic, now_ms = item.topic, self._clock.now_ms()
        waited_ms = (self._clock.monotonic_ns() - item.enqueued_ns) // 1_000_000
        band = priority.band(priority.priority(topic.config, topic.last_consumed_ms, now_ms - waited_ms, now_ms))
        # Whoever waited as long as counts has left B0, edges too: no pause is for ever [D-23].
        if self.suspended and item.forward and waited_ms < priority.AGE_CAP_MS:
            return max(band - 1, LOWEST)
        return band

    # -- serving -----------------------------------------------------------------------------------------------------

    def pop(self) -> Item | None:
        """What is served next; None: nothing, until `on_work` is called [D-20].

        What was served less than a window ago is put aside until that is over [D-42]; so is an edge that rests.
        """
        only, window = self._only, self._window_ns
        if only is not None and not window and not only.forward:
            self._only = None
            self._take(only, self._clock.monotonic_ns())
            return only
        self._settle()
        if not self._waiting:
            return None
        now = self._clock.monotonic_ns()
        while (item := self._next()) is not None:
            due = self._due_ns(item, window)
            if now < due:
                item.held = True
                heappush(self._held, (due, item.order, item))
                continue
            self._take(item, now)
            return item
        return None

    def _due_ns(self, item: Item, window: int) -> int:
        """When an item may be served again. Edges rest until the same instant: many of them cost one interruption."""
        if item.serviced_ns is None:
            return 0
        rest = self.forward_rest_ns if item.forward else 0
        return max(item.serviced_ns + window, (item.serviced_ns // rest + 1) * rest if rest else 0)

    def _next(self) -> Item | None:
        """Deficit weighted round-robin, unit cost 1 [D-20]."""
        lines = self._lines
        for _ in range(2 * BANDS + 1):
            line = lines[self._current]
            if line.count and not (self.suspended and line.band == LOWEST):
                if not self._granted:
                    line.credit += priority.WEIGHTS[line.band]
                    self._granted = True
                if line.credit >= 1:
                    line.credit -= 1
                    item = line.popleft()
                    if not line.count:
                        line.credit = 0
                    if line.credit < 1:
                        self._advance()
                    return item
            else:
                line.credit = 0
            self._advance()
        return None

    def _advance(self) -> None:
        """The next lower band, after B0 the highest."""
        self._current = (self._current - 1) % BANDS
        self._granted = False

    def _take(self, item: Item, now: int) -> None:
        """From now on a mark is a new one [D-4]."""
        assert item.enqueued_ns is not None
        since = max(item.ready_ns, self._resumed_ns) if item.band == LOWEST else item.ready_ns
        self.latency_ms += LATENCY_WEIGHT * ((now - since) / 1e6 - self.latency_ms)
        queued_ms = (now - item.enqueued_ns) / 1e6
        self.latencies[bisect_left(LATENCY_BOUNDS_MS, queued_ms)] += 1
        self.latencies_ms += queued_ms
        self._popped = True
        if item.order:
            del self._waiting[item.order]
            item.order = 0
        item.dirty = False
        item.enqueued_ns = None
        item.serviced_ns = now
        item.serving = True

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by the clock."""
        idle = not self.depth
        now = self._clock.monotonic_ns()
        self._return_held(now)
        aging_ns = self._aging_ns()
        if aging_ns is not None and now >= aging_ns:
            self._age(now)
        if idle and self.depth:
            self.on_work()

    def next_due_ns(self) -> int | None:
        """The monotonic instant from which on `tick` has something to do; None: nothing, as things stand.

        Every call of the scheduler may change it.
        """
        self._settle()
        held = self._held
        while held and not _is_held(held[0]):
            heappop(held)
        aging_ns = self._aging_ns()
        if not held:
            return aging_ns
        return held[0][0] if aging_ns is None else min(held[0][0], aging_ns)

    def _aging_ns(self) -> int | None:
        """Every 50 ms, and not before something has waited that long."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        assert oldest.enqueued_ns is not None
        return max(self._aged_ns, oldest.enqueued_ns) + self.config.aging_ms * 1_000_000

    def _age(self, now: int) -> None:
        """Move what belongs in a higher band by now to its place there; nothing moves down [D-22]."""
        self._aged_ns = now
        old_enough = now - self.config.aging_ms * 1_000_000
        for item in islice(self._waiting.values(), self.config.aging_items):
            assert item.enqueued_ns is not None
            if item.enqueued_ns > old_enough:
                return
            if item.held or item.band == BANDS - 1:
                continue
            band = self._band(item)
            if band > item.band:
                self._rise(item, band, now)

    def _rise(self, item: Item, band: int, now: int) -> None:
        left, item.band = item.band, band
        self._lines[left].remove()
        self._lines[band].place(item)
        if left == LOWEST and self.suspended:
            item.ready_ns = now

    def _return_held(self, now: int) -> None:
        """Put what has waited for the end of its window back to its place."""
        held = self._held
        while held and held[0][0] <= now:
            entry = heappop(held)
            if not _is_held(entry):
                continue
            item = entry[2]
            item.held = False
            item.ready_ns = now
            item.band = max(item.band, self._band(item))
            self._lines[item.band].place(item)

    # -- the governor ------------------------------------------------------------------------------------------------

    def set_pressure(self, pressure: float) -> None:
        """L1: how long a topic that was served waits at least for the next time."""
        self._window_ns = round(window_ms(pressure, self.config) * 1e6)

    def defer(self, on: bool) -> None:
        """L3 begins or ends: see the table above. Queued items keep their places [D-45]."""
        if on == self.suspended:
            return
        idle = not self.depth
        self.suspended = on
        if on:
            self.suspensions += 1
            affected = tuple(item for item in self._waiting.values() if item.band == LOWEST and not item.held)
            if affected:
                self.on_suspended(affected)
            return
        self._resumed_ns = self._clock.monotonic_ns()
        if idle and self.depth:
            self.on_work()

    def sample_latency_ms(self) -> float:
        """The latency at the end of a sample interval: halved when nothing was popped or waits (08 §5)."""
        if not self._popped and not self.depth:
            self.latency_ms /= 2
            if self.latency_ms < LATENCY_NONE_MS:
                self.latency_ms = 0.0
        self._popped = False
        return self.latency_ms


def window_ms(pressure: float, config: SchedulerConfig) -> float:
    """L1: at most one service of a topic in so many milliseconds; 0 for no bound [D-41]."""
    above = (pressure - config.coalesce_above) / (1 - config.coalesce_above)
    return config.coalesce_ms * min(max(above, 0.0), 1.0)


def _is_held(entry: tuple[int, int, Item]) -> bool:
    _, order, item = entry
    return item.held and item.order == order
