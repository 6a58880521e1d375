"""Scheduler: bands, weighted round-robin, aging, coalescing and suspension (08 §1-§5, §10 points 1-6 and 9)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine import priority
from topics.engine.scheduler import Item, Scheduler, SchedulerConfig, window_ms
from topics.model import TopicConfig
from topics.testing import ManualClock

OF_BAND = (-1, 0, 250, 500, 750)
"""A manual priority of each band."""


class Prio:
    """What a topic is to the scheduler."""

    def __init__(self, manual: int | None = None, *, auto: bool = True, consumed_ms: int | None = None) -> None:
        self.config = TopicConfig(priority=manual, auto_priority=auto)
        self.last_consumed_ms = consumed_ms


class Looked(Prio):
    """A topic that counts how often its priority is computed."""

    looks = 0

    @property
    def config(self) -> TopicConfig:
        Looked.looks += 1
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config


def item_of(manual: int | None = None, *, forward: bool = False, topic: Prio | None = None) -> Item:
    return Item(topic or Prio(manual, auto=False), lambda: False, forward=forward)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def scheduler(clock: ManualClock) -> Scheduler:
    return Scheduler(clock)


def marked(scheduler: Scheduler, *priorities: int | None, forward: bool = False) -> list[Item]:
    items = [item_of(one, forward=forward) for one in priorities]
    for item in items:
        scheduler.mark(item)
    return items


def popped(scheduler: Scheduler, times: int | None = None) -> list[Item]:
    """Pop and serve so many, or until there is nothing."""
    found: list[Item] = []
    while times is None or len(found) < times:
        item = scheduler.pop()
        if item is None:
            break
        scheduler.done(item)
        found.append(item)
    return found


def bands(items: Sequence[Item]) -> list[int]:
    return [item.band for item in items]


# -- bands and rounds ------------------------------------------------------------------------------------------------


def test_edges_rest_until_the_same_instant_and_topics_do_not(scheduler: Scheduler, clock: ManualClock) -> None:
    """A writer that never pauses meets forwarding now and then, not each time [FWD-2]."""
    scheduler.forward_rest_ns = rest = 4_000_000
    edges, topic = [item_of(forward=True), item_of(forward=True)], item_of()
    for item in (*edges, topic):
        scheduler.mark(item)
        assert scheduler.pop() is item
        scheduler.done(item)
        clock.advance(1)
    for item in (*edges, topic):
        scheduler.mark(item)
    assert popped(scheduler) == [topic]
    due_ns = scheduler.next_due_ns()
    assert due_ns is not None
    assert due_ns % rest == 0
    clock.advance(4)
    scheduler.tick()
    assert popped(scheduler) == edges


@pytest.mark.parametrize(
    ("topic", "queued_ms", "p"),
    [
        (Prio(750, consumed_ms=0), 0, 750),
        (Prio(5000), 0, 1000),
        (Prio(-1000), 10_000, 0),
        (Prio(), 7_500, 750),
        (Prio(consumed_ms=30_000), 2_500, 500),
        (Prio(-250), 10_000, 750),
    ],
)
def test_effective_priority_adds_what_was_chosen_or_earned_and_what_waiting_is_worth(
    topic: Prio, queued_ms: int, p: int
) -> None:
    """§10 point 1; the decay points are in test_priority."""
    now = 1_790_000_000_000
    consumed = None if topic.last_consumed_ms is None else now - topic.last_consumed_ms
    assert priority.priority(topic.config, consumed, now - queued_ms, now) == p


@pytest.mark.parametrize(
    ("p", "band"), [(800, 4), (750, 4), (749, 3), (500, 3), (499, 2), (250, 2), (249, 1), (0, 1), (-1, 0)]
)
def test_an_item_queues_in_the_band_of_its_priority(scheduler: Scheduler, p: int, band: int) -> None:
    """§10 point 2."""
    (item,) = marked(scheduler, p)
    assert scheduler.ready[band] == scheduler.depth == 1
    assert item.band == band


def test_recent_consumption_lifts_a_topic_without_a_priority_of_its_own(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    """[D-10, D-11]"""
    item = item_of(topic=Prio(consumed_ms=clock.now_ms()))
    clock.advance(30_000)
    scheduler.mark(item)
    assert scheduler.ready == (0, 0, 1, 0, 0)


def test_sixteen_pops_serve_the_bands_8_4_2_1_1(scheduler: Scheduler) -> None:
    """[D-21], §10 point 3."""
    marked(scheduler, *(OF_BAND * 40))
    turn = [4] * 8 + [3] * 4 + [2] * 2 + [1] + [0]
    assert bands(popped(scheduler, 32)) == turn * 2


def test_an_empty_bands_share_goes_to_the_others_at_once(scheduler: Scheduler) -> None:
    """[D-21], §10 point 4."""
    marked(scheduler, *(0, 750) * 3)
    assert bands(popped(scheduler)) == [4, 4, 4, 1, 1, 1]
    assert scheduler.pop() is None
    assert scheduler.idle


def test_a_band_is_served_in_the_order_it_was_marked_in(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-20] ties are broken by insertion."""
    items = marked(scheduler, 800, 1000, 900)
    clock.advance(1)
    items += marked(scheduler, 1000)
    assert popped(scheduler) == items


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 3)), max_size=120))
def test_the_round_is_work_conserving_and_starves_nobody(script: list[tuple[int, int]]) -> None:
    """[D-20, D-21] A pop finds something whenever something is queued, and every waiting band within 16 pops."""
    scheduler = Scheduler(ManualClock())
    queued, since = Counter[int](), Counter[int]()

    def pop() -> None:
        item = scheduler.pop()
        assert (item is None) == (not queued.total()), "something is queued, and nothing is served"
        if item is None:
            return
        scheduler.done(item)
        queued[item.band] -= 1
        for band in range(5):
            since[band] = since[band] + 1 if queued[band] and band != item.band else 0
            assert since[band] < 16, "a band was passed over for a whole round"

    for p, pops in script:
        (item,) = marked(scheduler, p)
        assert scheduler.depth  # from here on it has its band
        queued[item.band] += 1
        for _ in range(pops):
            pop()
    while queued.total():
        pop()
    pop()
    assert scheduler.depth == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("mark"), st.integers(0, 9)),
            st.tuples(st.just("forget"), st.integers(0, 9)),
            st.tuples(st.just("pop"), st.integers(1, 3)),
            st.tuples(st.just("done"), st.just(0)),
            st.tuples(st.just("wait"), st.sampled_from((1, 7, 50, 1000, 9000))),
            st.tuples(st.just("pressure"), st.sampled_from((0, 50, 100))),
            st.tuples(st.just("defer"), st.integers(0, 1)),
        ),
        max_size=80,
    )
)
def test_whatever_is_marked_is_popped_once_whatever_happens_meanwhile(script: list[tuple[str, int]]) -> None:
    """[D-1, D-5, D-42, D-45, D-46] Nothing is lost, nothing is served twice at a time, depths add up."""
    clock = ManualClock()
    scheduler = Scheduler(clock)
    items = [item_of(p, forward=p % 2 == 0) for p in (-1000, -999, -1, 0, 1, 249, 500, 600, 900, 1000)]
    due: set[int] = set()
    serving: list[Item] = []

    def pop() -> bool:
        item = scheduler.pop()
        if item is None:
            return False
        assert item not in serving
        due.remove(items.index(item))
        serving.append(item)
        return True

    def forget(at: int) -> None:
        scheduler.forget(items[at])
        due.discard(at)
        if items[at] in serving:
            serving.remove(items[at])

    acts: dict[str, Callable[[int], object]] = {
        "mark": lambda at: (due.add(at), scheduler.mark(items[at])),
        "forget": forget,
        "pop": lambda times: [pop() for _ in range(times)],
        "done": lambda _: scheduler.done(serving.pop(0)) if serving else None,
        "wait": lambda ms: (clock.advance(ms), scheduler.tick()),
        "pressure": lambda percent: scheduler.set_pressure(percent / 100),
        "defer": lambda on: scheduler.defer(bool(on)),
    }
    for act, argument in script:
        acts[act](argument)
        assert sum(scheduler.ready) <= len(due)
    while serving:
        scheduler.done(serving.pop(0))
    # Two passes: what was marked during its service is queued by `done`, and what is popped early is held once.
    for _ in range(4):
        while pop():
            scheduler.done(serving.pop())
        clock.advance(10_000)
        scheduler.tick()
    assert not due
    assert scheduler.idle
    assert scheduler.next_due_ns() is None


# -- marking ---------------------------------------------------------------------------------------------------------


def test_a_burst_of_marks_is_one_pop_and_a_mark_during_service_one_more(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    """[D-1, D-4, D-5], §10 point 5."""
    item = item_of(0)
    for _ in range(3):
        scheduler.mark(item)
        clock.advance(5)
    dated = [item.enqueued_ns]
    assert scheduler.pop() is item
    assert not item.dirty
    dated.append(item.enqueued_ns)
    assert scheduler.pop() is None
    scheduler.mark(item)
    clock.advance(5)
    scheduler.done(item)
    dated.append(item.enqueued_ns)
    now = clock.monotonic_ns()
    assert dated == [now - 20_000_000, None, now - 5_000_000]
    assert popped(scheduler) == [item]


def test_an_item_in_service_is_not_popped_again_before_it_is_done(scheduler: Scheduler) -> None:
    """[D-32] One pass of an edge at a time, also while it waits for the disk and others are served."""
    edge, other = item_of(0, forward=True), item_of(0)
    scheduler.mark(edge)
    assert scheduler.pop() is edge
    scheduler.mark(edge)
    scheduler.mark(other)
    assert popped(scheduler) == [other]
    scheduler.done(edge)
    assert popped(scheduler) == [edge]


def test_work_is_announced_when_there_was_none(scheduler: Scheduler) -> None:
    """[D-3] Not again before it is done with: the worker pops until there is nothing."""
    calls: list[int] = []
    scheduler.on_work = lambda: calls.append(scheduler.depth)
    items = marked(scheduler, 0, 0)
    assert calls == [1]
    popped(scheduler)
    scheduler.mark(items[0])
    assert calls == [1, 1]


def test_a_mark_during_service_is_announced_when_the_service_ends(scheduler: Scheduler) -> None:
    """[D-5] No publication is missed, whoever else is idle."""
    calls: list[int] = []
    (item,) = marked(scheduler, 0)
    scheduler.on_work = lambda: calls.append(scheduler.depth)
    scheduler.pop()
    scheduler.mark(item)
    assert calls == []
    scheduler.done(item)
    assert calls == [1]


@pytest.mark.parametrize("when", ["before the pop", "before the read", "after the read", "after the service"])
def test_a_publication_at_any_moment_of_a_service_is_delivered(scheduler: Scheduler, when: str) -> None:
    """[D-4, D-5], §10 point 13: marked first, read later, so the record is delivered or the item is queued."""
    head = delivered = 1

    def publish(now: str) -> None:
        nonlocal head
        if now == when:
            head = 2
            scheduler.mark(item)

    item = item_of(0)
    scheduler.mark(item)
    publish("before the pop")
    assert scheduler.pop() is item
    publish("before the read")
    delivered = head
    publish("after the read")
    scheduler.done(item)
    publish("after the service")
    assert delivered == 2 or scheduler.depth == 1
    while popped(scheduler):
        delivered = head
    assert delivered == 2


@pytest.mark.parametrize("state", ["idle", "queued", "risen", "held", "serving", "marked in service"])
def test_nothing_stays_of_what_is_forgotten(scheduler: Scheduler, clock: ManualClock, state: str) -> None:
    item, other = item_of(0), item_of(0)
    scheduler.set_pressure(1.0)
    if state != "idle":
        scheduler.mark(item)
    if state == "risen":
        clock.advance(3_000)
        scheduler.tick()
    if state in ("held", "serving", "marked in service"):
        assert scheduler.pop() is item
    if state in ("held", "marked in service"):
        scheduler.mark(item)
    if state == "held":
        scheduler.done(item)
        assert scheduler.pop() is None
    scheduler.forget(item)
    scheduler.done(item)
    assert scheduler.idle
    assert not item.dirty
    assert scheduler.depth == 0
    assert scheduler.next_due_ns() is None
    scheduler.mark(other)
    assert popped(scheduler) == [other]
    clock.advance(100)
    scheduler.mark(item)
    assert popped(scheduler) == [item]


# -- aging -----------------------------------------------------------------------------------------------------------


def test_waiting_lifts_an_item_to_its_place_in_the_band_above(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-22], §10 point 6."""
    (old,) = marked(scheduler, None)
    assert scheduler.ready[1] == 1
    for band in (2, 3, 4):
        clock.advance(2_400)
        early = marked(scheduler, 1000)[0] if band == 4 else None
        scheduler.tick()
        assert old.band == band - 1
        clock.advance(100)
        late = marked(scheduler, OF_BAND[band])[0]
        scheduler.tick()
        assert old.band == band
        assert scheduler.ready[band] == 2 + (early is not None)
        if band < 4:
            scheduler.forget(late)
    assert popped(scheduler)[0] is old


def test_risen_items_are_served_by_age_not_by_when_they_rose(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-20, D-22]"""
    slow, quick = marked(scheduler, 500, 700)
    for _ in range(60):
        clock.advance(50)
        scheduler.tick()
        assert slow.band == 4 or quick.band >= slow.band
    fresh = marked(scheduler, 1000)
    assert popped(scheduler) == [slow, quick, *fresh]


def test_nothing_moves_down_while_it_is_queued(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-22]"""
    topic = Prio(750)
    item = item_of(topic=topic)
    scheduler.mark(item)
    assert scheduler.ready[4] == 1
    topic.config = TopicConfig(priority=-1000)
    clock.advance(50)
    scheduler.tick()
    assert item.band == 4


def test_who_is_forgotten_and_marked_again_in_service_has_one_place(scheduler: Scheduler) -> None:
    """[D-3, D-5]"""
    item = item_of(500)
    scheduler.mark(item)
    assert scheduler.pop() is item
    scheduler.forget(item)
    scheduler.mark(item)
    scheduler.done(item)
    assert sum(scheduler.ready) == 1
    assert popped(scheduler) == [item]
    assert scheduler.idle
    scheduler.tick()


@given(st.integers(-(2**31), 2**31 - 1), st.booleans(), st.booleans())
def test_every_item_has_left_the_lowest_band_after_ten_seconds(p: int, forward: bool, deferred: bool) -> None:
    """[D-23] And from -250 on it is in the highest."""
    clock = ManualClock()
    scheduler = Scheduler(clock)
    scheduler.defer(deferred)
    (item,) = marked(scheduler, p, forward=forward)
    clock.advance(10_000)
    scheduler.tick()
    assert item.band >= 1
    assert p < -250 or item.band == 4


def test_a_wall_clock_that_is_set_back_keeps_nobody_waiting(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-23] Waiting is measured, not dated."""
    scheduler.defer(True)
    (item,) = marked(scheduler, -1000)
    clock.jump(-3_600_000)
    clock.advance(10_000)
    scheduler.tick()
    assert popped(scheduler) == [item]


def test_a_tick_looks_at_ten_thousand_items_the_oldest_first(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-22]"""
    items = [item_of(topic=Looked(None, auto=False)) for _ in range(10_050)]
    for item in items:
        scheduler.mark(item)
    clock.advance(2_500)
    Looked.looks = 0
    scheduler.tick()
    looks, Looked.looks = Looked.looks, 0
    assert scheduler.ready == (0, 50, 10_000, 0, 0)
    assert [item.band for item in items[-51:]] == [2] + [1] * 50
    popped(scheduler, 100)
    assert Looked.looks == 0, "a pop computes no priorities"
    scheduler.tick()
    assert Looked.looks == 0, "aging is due every 50 ms"
    clock.advance(50)
    scheduler.tick()
    assert 0 < Looked.looks <= looks


def test_a_pop_costs_the_same_however_much_is_queued() -> None:
    """[D-20] Lines of our code that 200 pops run, counted."""

    def cost(items: int) -> int:
        clock = ManualClock()
        scheduler = Scheduler(clock)
        marked(scheduler, *(OF_BAND * (items // 5)))
        lines = 0

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in range(200):
                scheduler.pop()
        finally:
            sys.settrace(before)
        return lines

    assert cost(20_000) == cost(1_000)


def test_the_clock_is_needed_only_while_something_waits(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-22, D-42] An idle server has no timer."""
    assert scheduler.next_due_ns() is None
    (item,) = marked(scheduler, 0)
    assert scheduler.next_due_ns() == clock.monotonic_ns() + 50_000_000
    clock.advance(50)
    scheduler.tick()
    assert scheduler.next_due_ns() == clock.monotonic_ns() + 50_000_000
    assert popped(scheduler) == [item]
    assert scheduler.next_due_ns() is None


# -- L1: coalescing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pressure", "window"), [(0, 0), (0.2, 0), (0.11, 0), (0.555, 8.875), (0.6, 10), (1, 20)])
def test_the_window_grows_with_pressure(pressure: float, window: float) -> None:
    """08 §5, §10 point 8."""
    assert window_ms(pressure, SchedulerConfig()) == pytest.approx(window)


def test_under_pressure_a_topic_is_served_once_per_window(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-42] What is popped too early waits, keeps its date, and is served when its window is over."""
    scheduler.set_pressure(1.0)
    (item,) = marked(scheduler, 0)
    assert popped(scheduler) == [item]
    clock.advance(3)
    scheduler.mark(item)
    marked_ns = item.enqueued_ns
    assert scheduler.pop() is None
    assert item.dirty
    clock.advance(4)
    scheduler.mark(item)
    assert scheduler.pop() is None
    assert scheduler.next_due_ns() == clock.monotonic_ns() + 13_000_000
    clock.advance(12)
    scheduler.tick()
    assert scheduler.pop() is None
    calls: list[int] = []
    scheduler.on_work = lambda: calls.append(scheduler.depth)
    clock.advance(1)
    scheduler.tick()
    assert calls == [1]
    assert item.enqueued_ns == marked_ns
    assert popped(scheduler) == [item]


def test_who_was_held_returns_in_front_of_younger_ones(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-42] It keeps its place by `enqueued_at`."""
    scheduler.set_pressure(0.6)
    (item,) = marked(scheduler, 0)
    popped(scheduler)
    scheduler.mark(item)
    assert scheduler.pop() is None
    clock.advance(10)
    younger = marked(scheduler, 0)
    scheduler.tick()
    assert popped(scheduler) == [item, *younger]


def test_without_pressure_nothing_is_held(scheduler: Scheduler) -> None:
    """08 §5: at 0.2 and below there is one frame per service pass."""
    scheduler.set_pressure(0.2)
    (item,) = marked(scheduler, 0)
    for _ in range(3):
        assert popped(scheduler) == [item]
        scheduler.mark(item)


# -- L3: deferring ---------------------------------------------------------------------------------------------------


def test_deferring_lowers_edges_and_suspends_negative_priorities(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-45], §10 point 9."""
    scheduler.defer(True)
    (edge,) = marked(scheduler, 250, forward=True)
    topic, paused = marked(scheduler, 250, -1000)
    assert (edge.band, topic.band, paused.band) == (1, 2, 0)
    assert popped(scheduler) == [topic, edge]
    for _ in range(199):
        clock.advance(50)
        scheduler.tick()
        assert scheduler.pop() is None
    clock.advance(50)
    scheduler.tick()
    assert popped(scheduler) == [paused]
    assert paused.band == 1


def test_an_edge_is_never_lowered_below_the_lowest_band(scheduler: Scheduler) -> None:
    scheduler.defer(True)
    assert bands(marked(scheduler, -5, forward=True)) == [0]


def test_what_was_suspended_is_served_when_that_ends(scheduler: Scheduler) -> None:
    """[D-45] Every item keeps its place."""
    calls: list[int] = []
    items = marked(scheduler, -1, -1)
    scheduler.on_work = lambda: calls.append(scheduler.depth)
    scheduler.defer(True)
    assert scheduler.pop() is None
    scheduler.defer(False)
    assert calls == [2]
    assert popped(scheduler) == items


def test_work_beside_suspended_items_is_announced(scheduler: Scheduler, clock: ManualClock) -> None:
    """[D-3] A queue that only holds what is suspended is as good as empty, so the worker has to be called again."""
    calls: list[int] = []
    scheduler.on_work = lambda: calls.append(scheduler.depth)
    scheduler.defer(True)
    (paused,) = marked(scheduler, -100)
    assert (calls, scheduler.depth) == ([], 0)
    marked(scheduler, 0)
    assert calls == [1]
    popped(scheduler)
    clock.advance(1_000)
    scheduler.tick()
    assert calls == [1, 1], "it rose into a band that is served"
    assert popped(scheduler) == [paused]


def test_what_begins_to_wait_for_the_end_of_a_suspension_is_told(scheduler: Scheduler) -> None:
    """[D-45]"""
    told: list[Sequence[Item]] = []
    scheduler.on_suspended = told.append
    before, _ = marked(scheduler, -1, 0)
    assert told == []
    scheduler.defer(True)
    scheduler.defer(True)
    assert told == [(before,)]
    (after,) = marked(scheduler, -7)
    assert told == [(before,), (after,)]


# -- latency ---------------------------------------------------------------------------------------------------------


def test_latency_is_a_moving_average_over_pops_and_fades_when_idle(scheduler: Scheduler, clock: ManualClock) -> None:
    """08 §5: a fifth per pop; halved per interval without pops and with empty queues."""
    marked(scheduler, 0)
    clock.advance(10)
    popped(scheduler)
    assert scheduler.latency_ms == pytest.approx(2.0)
    marked(scheduler, 0)
    clock.advance(5)
    popped(scheduler)
    assert scheduler.sample_latency_ms() == pytest.approx(2.6)
    assert scheduler.sample_latency_ms() == pytest.approx(1.3)
    (item,) = marked(scheduler, 0)
    assert scheduler.sample_latency_ms() == pytest.approx(1.3)
    scheduler.forget(item)
    for _ in range(11):
        scheduler.sample_latency_ms()
    assert scheduler.latency_ms == 0


def test_every_pop_is_counted_by_how_long_the_item_was_queued(scheduler: Scheduler, clock: ManualClock) -> None:
    """08 §11"""
    for wait_ms in (0, 1, 2, 3, 2_000):
        marked(scheduler, 0)
        clock.advance(wait_ms)
        popped(scheduler)
    assert scheduler.latencies == [1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1]
    assert scheduler.latencies_ms == pytest.approx(2_006)


def test_what_the_ladder_keeps_waiting_does_not_press(scheduler: Scheduler, clock: ManualClock) -> None:
    """08 §5: otherwise coalescing and suspension would keep the pressure up that they answer."""
    scheduler.set_pressure(1.0)
    (item,) = marked(scheduler, 0)
    popped(scheduler)
    scheduler.mark(item)
    assert scheduler.pop() is None
    assert scheduler.depth == 0, "held"
    clock.advance(20)
    scheduler.tick()
    popped(scheduler)
    scheduler.set_pressure(0)
    scheduler.defer(True)
    marked(scheduler, -1000, -200)
    assert scheduler.depth == 0, "suspended"
    clock.advance(2_000)
    scheduler.tick()
    popped(scheduler)
    clock.advance(50)
    scheduler.defer(False)
    popped(scheduler)
    assert scheduler.latency_ms == 0
    assert scheduler.latencies_ms == pytest.approx(20 + 2_000 + 2_050)
