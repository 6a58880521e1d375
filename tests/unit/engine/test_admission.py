"""Admission: a write whose shard is full waits or is refused, and leaves no trace then (08 §6, §10 point 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engine import kit
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine.append import Write
from topics.errors import EngineClosed, LimitReached, ShardReadOnly, TopicsError, WalFull
from topics.model import DELETES, AppendResult
from topics.storage.owner import Done, InlineOwner, Work

TOPIC = kit.TOPIC


class Slow(kit.Store):
    """A store whose syncs can be held, on one thread."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"queue_submissions": 2, **options})
        self.core = self.engine.core
        self.core.admission.patient = True
        owner = self.core.owner
        assert isinstance(owner, InlineOwner)
        self.owner = owner
        self._at_once = owner.aside
        self._held: list[tuple[str, Work, Done]] | None = None
        setattr(owner, "aside", self._aside)  # noqa: B010 - mypy knows that a method is no attribute

    def _aside(self, lane: str, work: Work, done: Done) -> None:
        if self._held is not None and lane.startswith("wal-0"):
            self._held.append((lane, work, done))
        else:
            self._at_once(lane, work, done)

    def hold(self) -> None:
        """From now on no sync comes back."""
        self._held = []

    def release(self) -> None:
        """Do what was held, and no more is."""
        held, self._held = self._held or [], None
        with self.owner:
            for lane, work, done in held:
                self._at_once(lane, work, done)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.tick()

    def write(self, *values: object, topic: str = TOPIC, **more: Any) -> list[Any]:
        """Begin a write; where its outcome will be."""
        outcome: list[Any] = []
        write = Write.prepare(topic, [{"data": value} for value in values], self.core.limits, **more)
        with self.owner:
            appending.append(self.core, write, outcome.append)
        return outcome

    def fill(self, topic: str = TOPIC) -> list[list[Any]]:
        """Hold syncs and fill the queue."""
        self.hold()
        first = self.write("first", topic=topic)
        second = self.write("second", topic=topic)
        assert first == second == []
        return [first, second]


@pytest.fixture
def store() -> Iterator[Slow]:
    with_topic = Slow()
    with_topic.put()
    yield with_topic
    with_topic.release()
    with_topic.engine.close()
    with_topic.check_order()


def refusal(outcome: list[Any]) -> WalFull:
    (error,) = outcome
    assert isinstance(error, WalFull)
    return error


def trace(store: Slow) -> tuple[object, ...]:
    """What a refused write must leave as it was [D-50]."""
    topic, core = store.core.names[TOPIC], store.core
    (shard,) = core.wal.shards if core.wal is not None else ()
    return (
        topic.head, topic.next_seq, topic.last_ts, topic.staged_records, topic.staged_bytes, list(topic.tickets),
        topic.framing, list(topic.line), core.staged_bytes, shard.depth, len(core.keys), len(core.producers),
    )  # fmt: skip


@pytest.mark.parametrize(("pressure", "retry_after_ms"), [(0.95, 1905), (1.0, 2000)])
def test_at_full_pressure_a_write_without_room_is_refused_at_once(
    store: Slow, pressure: float, retry_after_ms: int
) -> None:
    """[D-50, D-51], case 1."""
    store.fill()
    before = trace(store)
    store.core.admission.pressure = pressure
    (shard,) = store.core.wal.shards if store.core.wal else ()
    shard.pressure = pressure
    assert refusal(store.write(3)).retry_after_ms == retry_after_ms
    assert trace(store) == before
    assert store.core.admission.refused == {"1": 1, "2": 0, "3": 0, "4": 0, "5": 0}


@pytest.mark.parametrize(
    ("more", "wait_ms", "case", "retry_after_ms"),
    [({}, 50, "2", 100), ({"disable_backpressure": True}, 30_000, "3", 1050)],
    ids=["2", "3"],
)
@pytest.mark.parametrize(
    "named", [{}, {"idempotency_key": "k"}, {"producer": {"id": "p", "epoch": 1, "index": 0}}], ids=str
)
def test_a_write_waits_for_room_and_is_refused_when_it_does_not_come(
    store: Slow, more: dict[str, Any], wait_ms: int, case: str, retry_after_ms: int, named: dict[str, Any]
) -> None:
    """[D-50, D-51], cases 2 and 3; in 30 s the governor has looked once and seen a full queue."""
    store.fill()
    before = trace(store)
    asked = store.write(3, **more, **named)
    store.pass_ms(wait_ms - 1)
    assert asked == []
    store.pass_ms(1)
    assert refusal(asked).retry_after_ms == retry_after_ms
    assert trace(store) == before
    assert store.core.admission.refused[case] == 1
    assert store.core.admission.waiting == 0


def test_disable_backpressure_waits_at_full_pressure_too(store: Slow) -> None:
    """Case 3 as 1."""
    store.fill()
    store.core.admission.pressure = 1.0
    asked = store.write(3, disable_backpressure=True)
    store.pass_ms(29_999)
    store.release()
    store.pass_ms(10)  # at this pressure a sync waits for company
    assert asked[0].first_seq == 3


def test_room_in_time_lets_the_write_in_and_the_wait_is_told(store: Slow) -> None:
    """[D-52]"""
    first = store.fill()
    asked = store.write(3)
    store.pass_ms(20)
    assert asked == []
    store.release()
    assert asked == [AppendResult(3, 3, 3, 1, throttle_wait_ms=20.0)]
    assert [one[0].throttle_wait_ms for one in first] == [None, None]
    assert store.write(4)[0].throttle_wait_ms is None
    store.pass_ms(1_000)
    assert len(asked) == 1


def test_what_waits_keeps_its_order_within_topic_and_shard(store: Slow) -> None:
    """[A-1, D-50] Deletes of the topic stand behind its writes, and nobody overtakes in the shard."""
    store.put("other")
    store.fill()
    order: list[str] = []

    def note(name: str) -> Callable[[Any], None]:
        return lambda outcome: order.append(f"{name} {getattr(outcome, 'last_seq', outcome)}")

    def begin(topic: str, *values: object) -> None:
        write = Write.prepare(topic, [{"data": value} for value in values], store.core.limits)
        with store.owner:
            appending.append(store.core, write, note(topic))

    begin(TOPIC, 3)
    begin("other", 1)
    begin(TOPIC, 4)
    removal = deleting.Removal.parse(4, None, None, store.core.limits)
    with store.owner:
        deleting.delete(store.core, TOPIC, removal, False, lambda outcome: order.append(f"deleted {outcome.deleted}"))
    begin(TOPIC, 5)
    assert order == []
    store.release()
    assert [told for told in order if told != "other 1"] == [f"{TOPIC} 3", f"{TOPIC} 4", "deleted 3", f"{TOPIC} 5"]
    assert "other 1" in order
    assert kit.everything(store.engine).seqs == [4, 5]


def test_who_stands_behind_a_waiting_write_is_refused_in_its_own_time(store: Slow) -> None:
    """08 §6: 50 ms from when it came, not 50 ms more for each in front of it."""
    store.fill()
    outcomes = []
    for n in range(5):
        outcomes.append(store.write(n))
        store.pass_ms(10)
    assert [len(one) for one in outcomes] == [1, 0, 0, 0, 0]
    for late in range(2, 6):
        store.pass_ms(10)
        assert [len(one) for one in outcomes] == [1] * late + [0] * (5 - late)
    assert all(refusal(one).retry_after_ms == 100 for one in outcomes)
    store.release()
    assert kit.values(store.engine.read(TOPIC)) == ["first", "second"]


def test_a_write_that_does_not_fit_waits_in_front_until_it_does(store: Slow) -> None:
    """[S-71] Bytes count too; what came later and would fit does not overtake."""
    wide = Slow(queue_submissions=100, queue_bytes=600)
    wide.put()
    wide.put("other")
    wide.hold()
    first = wide.write("x" * 400)
    large = wide.write("y" * 300)
    small = wide.write(1, topic="other")
    assert (first, large, small) == ([], [], [])
    wide.pass_ms(5)
    wide.release()
    assert [one[0].throttle_wait_ms for one in (first, large, small)] == [None, 5.0, 5.0]
    wide.engine.close()


def test_who_fits_goes_on_when_the_large_one_in_front_is_refused() -> None:
    """[S-71] Room that is there is used."""
    wide = Slow(queue_submissions=100, queue_bytes=600)
    wide.put()
    wide.put("other")
    wide.hold()
    wide.write("x" * 400)
    large = wide.write("y" * 300)
    wide.pass_ms(10)
    wide.write(1, topic="other")
    assert wide.core.names["other"].staged_records == 0
    wide.pass_ms(40)
    refusal(large)
    assert wide.core.names["other"].staged_records == 1
    wide.release()
    wide.engine.close()


def test_what_stands_behind_a_write_that_is_refused_for_another_reason_goes_on() -> None:
    """[A-1, RES-5] While it waited for room, others used up the quota."""
    store = Slow(max_total_bytes=400)
    store.put()
    store.put("other")
    store.put("unlogged", durability="ephemeral")
    first = store.fill("other")
    asked, behind = store.write("x" * 100), store.write("y" * 100)
    assert store.write("z" * 350, topic="unlogged")[0].count == 1
    store.release()
    assert [one[0].count for one in first] == [1, 1]
    assert [type(one[0]) for one in (asked, behind)] == [LimitReached, LimitReached]
    store.engine.close()


def test_records_of_the_server_that_are_on_their_way_take_nothing_of_the_quota() -> None:
    """[RES-5, A-20]"""
    store = Slow(max_total_bytes=40)
    store.put("unlogged", durability="ephemeral")
    kit.write(store.put(), 1)
    store.engine.delete(TOPIC, seqs=[1])
    store.pass_ms(100)
    kit.write(store.engine, 1)
    store.engine.delete(TOPIC, seqs=[2])
    store.hold()
    store.pass_ms(100)
    assert store.core.names[DELETES].staged_bytes > 40
    assert store.write("x" * 30, topic="unlogged")[0].count == 1
    store.release()
    assert store.core.quota_bytes() == store.core.names["unlogged"].bytes
    store.engine.close()


def test_what_waits_without_need_is_tried_before_it_is_refused(store: Slow) -> None:
    """[D-53] If the queue is not what is in the way, the client is told what is."""
    (shard,) = store.core.wal.shards if store.core.wal else ()
    turn = store.core.admission.turn(patient=False)
    assert turn is not None
    told: list[object] = []
    store.core.admission.wait(shard, turn, 10, lambda: told.append("go"), told.append)
    store.pass_ms(50)
    assert told == ["go"]
    assert store.core.admission.waiting == 0


def test_a_repeat_of_a_write_that_waits_is_answered_like_it(store: Slow) -> None:
    """[IDM-3] The key is the first one's, whoever waited."""
    store.fill()
    asked = store.write(3, idempotency_key="k")
    again = store.write(3, idempotency_key="k")
    store.release()
    assert (asked[0].first_seq, asked[0].deduped) == (3, False)
    assert (again[0].first_seq, again[0].deduped) == (3, True)
    assert kit.everything(store.engine).seqs == [1, 2, 3]


def test_a_write_that_would_create_its_topic_waits_as_well(store: Slow) -> None:
    """08 §6"""
    store.fill()
    asked, late = store.write(1, topic="new"), store.write(1, topic="newer")
    store.pass_ms(49)
    assert asked == late == []
    store.release()
    assert asked == [AppendResult(1, 1, 1, 1, True, throttle_wait_ms=49.0)]
    assert late[0].created
    store.fill()
    refused = store.write(1, topic="newest")
    store.pass_ms(50)
    assert refusal(refused).retry_after_ms == 100
    assert "newest" not in store.core.names
    assert "newest" not in store.core.gates


def test_a_shard_that_fails_meanwhile_says_so(store: Slow) -> None:
    """[D-53] 503 states are never turned into 429."""
    first = store.fill()
    asked = store.write(3, disable_backpressure=True)
    store.fail_log_sync()
    store.release()
    assert isinstance(first[0][0], TopicsError)
    (error,) = asked
    assert isinstance(error, ShardReadOnly)


def test_nobody_waits_where_nothing_would_bring_it_on(store: Slow) -> None:
    """An embedded engine refuses: its callers decide how long they wait."""
    store.core.admission.patient = False
    store.fill()
    assert refusal(store.write(3)).retry_after_ms == 100
    assert refusal(store.write(3, disable_backpressure=True)).retry_after_ms == 100
    assert store.core.admission.refused == dict.fromkeys("12345", 0)


def test_who_waits_when_the_engine_goes_is_told(store: Slow) -> None:
    """[API-5, S-73]"""
    store.fill()
    asked, behind = store.write(3), store.write(4)
    absent = store.write(5, topic="new")
    store.engine.end_waits()
    with store.owner:
        pass
    assert [type(one[0]) for one in (asked, absent)] == [EngineClosed, EngineClosed]
    assert isinstance(behind[0], WalFull)
    store.release()
    assert kit.everything(store.engine).seqs == [1, 2]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.sampled_from("ab"), st.sampled_from((1, 200))),
            st.tuples(st.just("patient"), st.sampled_from("ab"), st.sampled_from((1, 200))),
            st.tuples(st.just("hold"), st.just(""), st.just(0)),
            st.tuples(st.just("release"), st.just(""), st.just(0)),
            st.tuples(st.just("wait"), st.just(""), st.sampled_from((1, 20, 50))),
        ),
        max_size=40,
    )
)
def test_whatever_waits_is_written_in_order_or_refused_and_nothing_else(script: list[tuple[str, str, int]]) -> None:
    """[D-46, D-50] Each write is answered once; its topic holds exactly the accepted ones, in the order they came."""
    store = Slow(queue_submissions=3, queue_bytes=700)
    for name in "ab":
        store.put(name)
    asked: list[tuple[str, str, list[Any]]] = []
    for act, topic, number in script:
        if act in ("write", "patient"):
            value = f"{len(asked)}:" + "x" * number
            asked.append((topic, value, store.write(value, topic=topic, disable_backpressure=act == "patient")))
        elif act == "hold":
            store.release()
            store.hold()
        elif act == "release":
            store.release()
        else:
            store.pass_ms(number)
    store.release()
    for _ in range(20):
        store.pass_ms(10)  # under pressure a sync waits so long for company
    assert [len(outcome) for _, _, outcome in asked] == [1] * len(asked)
    for name in "ab":
        accepted = [value for topic, value, outcome in asked if topic == name and isinstance(outcome[0], AppendResult)]
        assert kit.values(store.engine.read(name)) == accepted
    assert store.core.admission.waiting == 0
    store.engine.close()
    store.check_order()
