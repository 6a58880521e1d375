"""The engine's oracle: right answers pass, and each kind of wrong answer is caught (13 §3, 06 §19)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topics.model import TopicConfig
from topics.testing.enginemodel import Append, Change, How, Rec, Rules, Run, State, Store, Topic, View, answer, merged
from topics.testing.subject import Violation

T0 = 1_000_000


def rec(
    seq: int, tag: str | None = None, *, ts: int = T0, size: int = 10, text: str = "r", node: str | None = None
) -> Rec:
    return Rec(seq, ts, node, tag, f"{text}{seq}".ljust(size, "x").encode(), None, ts)


def rules(how: How, *, now: int = T0, latest: int = 0, lied: bool = False) -> Rules:
    return Rules(how, now, max(now, latest), 16, lied=lied)


def topic(durability: str = "fsync", **config: Any) -> Topic:
    return Topic(TopicConfig.parse({"durability": durability, **config}))


def write(of: Topic, count: int = 1, *, acked: bool = True, durable: bool | None = None, **fields: Any) -> Append:
    """The next records, acknowledged as the class promises."""
    head, kind = of.live.head, of.live.config.durability
    names = {name: fields.pop(name) for name in ("key", "producer") if name in fields}
    event = Append(tuple(rec(head + 1 + n, **fields) for n in range(count)), kind, **names)
    of.stage(event)
    if acked:
        of.ack(event, durable=kind == "fsync" if durable is None else durable)
    return event


def remove(of: Topic, *seqs: int, acked: bool = True, durable: bool | None = None) -> None:
    event = Change(of.live, seqs=seqs)
    of.stage(event)
    if acked:
        of.ack(event, durable=of.live.config.durability == "fsync" if durable is None else durable)


def configure(of: Topic, durability: str, **config: Any) -> None:
    event = Change(of.live, config=TopicConfig.parse({"durability": durability, **config}))
    of.stage(event)
    of.ack(event, durable=True)


def shown(of: Topic, **changes: Any) -> View:
    """What the topic shows while it runs, with changes."""
    return of.live.view()._replace(**changes)


def cut(view: View, *seqs: int) -> tuple[Rec, ...]:
    """The records of a view without some."""
    return tuple(one for one in view.records if one.seq not in seqs)


class TestAnswer:
    """One read on a view (01 §12)."""

    def test_the_worked_example_of_the_two_floors(self) -> None:
        """01 §7: cap 4, write 1–9, delete before 8."""
        state = State(TopicConfig(cap_records=4))
        state.apply(Append(tuple(rec(n) for n in range(1, 10)), "disk"))
        assert (state.view().floor, state.view().earliest) == (6, 6)
        state.apply(Change(state, seqs=state.matching(before_seq=8)))
        view = state.view()
        assert (view.floor, view.earliest) == (6, 8)
        assert answer(view, 2) == ((8, 9), 9, (3, 5, "lost"))
        assert answer(view, 5) == ((8, 9), 9, None)

    def test_the_worked_example_of_live_counting(self) -> None:
        """01 §9: deleted records do not count."""
        state = State(TopicConfig(cap_records=3))
        for seq in (1, 2, 3):
            state.apply(Append((rec(seq, "t" if seq == 2 else None),), "disk"))
        state.apply(Change(state, seqs=state.matching(match="t")))
        state.apply(Append((rec(4),), "disk"))
        assert list(state.records) == [1, 3, 4]
        state.apply(Append((rec(5),), "disk"))
        assert answer(state.view(), 1) == ((3, 4, 5), 5, None)

    def test_a_hole_run_is_told_first_or_ends_the_read(self) -> None:
        """[RD-8]"""
        view = View(TopicConfig(), 9, 1, (Run(3, 5, "crash"),), (rec(1), rec(2), rec(6), rec(9)))
        assert answer(view, 0) == ((1, 2), 2, None)
        assert answer(view, 2) == ((6, 9), 9, (3, 5, "crash"))
        assert answer(view, 3) == ((6, 9), 9, (4, 5, "crash"))
        assert answer(view, 12) == ((1, 2), 2, (1, 9, "recreated"))
        assert answer(view._replace(floor=3), 0) == ((), 2, (1, 2, "lost"))

    def test_limit_budget_and_nodes_end_or_thin_a_read(self) -> None:
        """[RD-4, RD-5, NOD-1, NOD-4]"""
        view = View(TopicConfig(), 6, 1, (), (rec(1), rec(2, node="n"), rec(4), rec(6)))
        assert answer(view, 0, limit=1) == ((1,), 1, None)
        assert answer(view, 1, budget=10) == ((2,), 3, None)
        assert answer(view, 0, nodes=frozenset({"n"})) == ((1, 4, 6), 6, None)
        deaf = view._replace(config=TopicConfig(dedupe_node=False))
        assert answer(deaf, 0, nodes=frozenset({"n"})) == ((1, 2, 4, 6), 6, None)

    def test_runs_of_one_reason_that_touch_are_one(self) -> None:
        """[FLR-5]"""
        runs = [Run(3, 4, "crash"), Run(5, 6, "crash"), Run(7, 7, "corrupt")]
        assert merged(runs, 1) == (Run(3, 6, "crash"), Run(7, 7, "corrupt"))
        assert merged(runs, 6) == (Run(6, 6, "crash"), Run(7, 7, "corrupt"))


class TestState:
    """What events make of a topic."""

    def test_age_takes_what_is_strictly_older(self) -> None:
        """[TTL-1]"""
        state = State(TopicConfig(ttl_ms=100))
        state.apply(Append((rec(1, ts=T0), rec(2, ts=T0 + 1)), "disk"))
        assert state.expired(T0 + 100) == 0
        assert state.expired(T0 + 101) == 1
        state.lose(1)
        assert list(state.records) == [2]

    def test_a_full_topic_that_rejects_says_whether_waiting_helps(self) -> None:
        """[CAP-3, CAP-4, CAP-5]"""
        state = State(TopicConfig(cap_records=3, cap_bytes=25, discard="reject"))
        state.apply(Append((rec(1), rec(2)), "disk"))
        assert state.refuses(1, 5) == ""
        assert state.refuses(2, 2) == "full"
        assert state.refuses(1, 6) == "full"
        assert state.refuses(4, 4) == "never"
        assert state.refuses(1, 26) == "never"

    def test_a_record_above_the_byte_cap_evicts_everything(self) -> None:
        """[CAP-2]"""
        state = State(TopicConfig(cap_bytes=25))
        state.apply(Append((rec(1), rec(2, size=26)), "disk"))
        assert (state.records, state.view().floor) == ({}, 3)

    def test_selectors(self) -> None:
        """01 §14"""
        state = State(TopicConfig())
        state.apply(Append((rec(1, "a"), rec(2, "a:1"), rec(3), rec(4, "b")), "disk"))
        assert state.matching(match="a") == {1}
        assert state.matching(match="a*") == {1, 2}
        assert state.matching(match="*") == {1, 2, 4}
        assert state.matching(match="*", before_seq=4) == {1, 2}
        assert state.matching(seqs=[2, 3, 9], match="a*") == {2}

    def test_a_key_is_known_for_its_window(self) -> None:
        """[IDM-1]"""
        of = topic("disk", idempotency_window_ms=50)
        write(of, 2, key="k")
        entry = of.live.remembered("k", T0 + 50)
        assert entry is not None
        assert (entry.first, entry.last) == (1, 2)
        assert of.live.remembered("k", T0 + 51) is None
        assert of.live.remembered("other", T0) is None


class TestWhatMayBe:
    """Survivors that keep every promise are taken, and become the new truth."""

    @pytest.mark.parametrize("how", ["close", "kill", "crash"])
    def test_everything_durable_is_there(self, how: How) -> None:
        of = topic()
        write(of, 3)
        remove(of, 2)
        after = of.judge(shown(of), rules(how))
        assert after.live.view() == after.base.view() == of.live.view()

    def test_a_crash_takes_a_suffix_of_what_was_not_synced(self) -> None:
        """[DUR-4]: a `disk` topic goes on behind a run that covers what was acknowledged."""
        of = topic("disk")
        write(of, 2, durable=True)
        write(of, 3)
        view = shown(of, records=cut(shown(of), 3, 4, 5), head=8, runs=(Run(3, 8, "crash"),))
        after = of.judge(view, rules("crash"))
        assert (after.live.head, after.base.runs) == (8, (Run(3, 8, "crash"),))

    def test_two_crashes_in_a_row_leave_one_run(self) -> None:
        """C6 without a write between."""
        of = topic("disk")
        write(of, 1)
        after = of.judge(View(of.live.config, 4, 1, (Run(1, 4, "crash"),), ()), rules("crash"))
        write(after, 1, durable=False)
        again = after.judge(View(of.live.config, 9, 1, (Run(1, 9, "crash"),), ()), rules("crash"))
        assert again.live.head == 9

    def test_memory_loses_a_tail_silently_in_a_crash(self) -> None:
        """[DUR-6, DUR-8]"""
        of = topic("memory")
        write(of, 2)
        write(of, 2)
        for head in (2, 3, 4):
            of.judge(shown(of, head=head, records=cut(shown(of), 3, 4)), rules("crash"))

    def test_ephemeral_keeps_its_head_between_the_pinned_and_the_last(self) -> None:
        """[DUR-7]"""
        of = topic("ephemeral")
        write(of, 5)
        of.pin()
        write(of, 5)
        for head in (5, 7, 10):
            of.judge(shown(of, head=head, records=()), rules("kill"))
        of.pin()
        of.judge(shown(of, records=()), rules("close"))

    def test_what_a_class_change_leaves_behind(self) -> None:
        """C16: `ephemeral` 1–5, then `fsync` 6: 1–5 are silent."""
        of = topic("ephemeral")
        write(of, 5)
        configure(of, "fsync")
        write(of, 1)
        assert len(of.live.records) == 6
        of.judge(shown(of, records=cut(shown(of), 1, 2, 3, 4, 5)), rules("kill"))

    def test_an_open_write_appears_whole_or_not_at_all(self) -> None:
        """[R-6]"""
        of = topic()
        write(of, 1)
        failed = write(of, 2, acked=False)
        of.judge(shown(of), rules("kill"))
        of.judge(shown(of, head=3, records=(*shown(of).records, *failed.recs)), rules("kill"))

    def test_a_write_that_was_taken_back_leaves_its_seq_to_the_next(self) -> None:
        """[DUR-2]"""
        of = topic()
        write(of, 1, acked=False, text="refused")
        write(of, 1, text="taken")
        of.judge(shown(of), rules("crash"))

    def test_an_unsynced_delete_may_be_undone_by_a_crash(self) -> None:
        """[INV-8]: its exception."""
        of = topic("disk")
        write(of, 2, durable=True)
        before = shown(of)
        remove(of, 1)
        of.judge(before, rules("crash"))
        of.judge(shown(of), rules("crash"))

    def test_an_unsynced_delete_may_survive_a_crash_in_part(self) -> None:
        """Its marks in the segments may be durable while its frame is not."""
        of = topic("disk")
        write(of, 3, durable=True)
        before = shown(of)
        remove(of, 1, 2)
        of.judge(before._replace(records=cut(before, 1)), rules("crash"))
        with pytest.raises(Violation, match="is back"):
            of.judge(before._replace(records=cut(before, 1)), rules("kill"))

    def test_a_delete_that_failed_may_be_done_later(self) -> None:
        """[R-6]"""
        of = topic()
        write(of, 2)
        remove(of, 1, acked=False)
        write(of, 1)
        of.show(shown(of), T0, T0)
        after = of.judge(shown(of, records=cut(shown(of), 1)), rules("crash"))
        of.show(shown(of, records=cut(shown(of), 1)), T0, T0)
        assert after.live.view() == of.live.view()

    def test_a_delete_of_an_ephemeral_topic_may_be_undone(self) -> None:
        """[DUR-10]"""
        of = topic()
        write(of, 2)
        configure(of, "ephemeral")
        before = shown(of)
        remove(of, 1)
        of.judge(before, rules("kill"))
        of.judge(shown(of), rules("kill"))

    def test_a_delete_under_way_in_an_ephemeral_topic_may_have_taken_logged_records(self) -> None:
        """[CFG-10, R-6]: records of an earlier class make it a logged one, and a kill may strike before its answer."""
        of = topic("disk")
        write(of, 2)
        configure(of, "ephemeral")
        remove(of, 1, acked=False)
        for records in (shown(of).records, cut(shown(of), 1)):
            of.judge(shown(of, records=records), rules("kill"))
        with pytest.raises(Violation, match=r"record 2 .* is gone"):
            of.judge(shown(of, records=()), rules("kill"))

    def test_age_is_judged_at_the_restart(self) -> None:
        """[STA-1]"""
        of = topic("disk", ttl_ms=100)
        write(of, 2, durable=True)
        of.judge(shown(of, floor=3, records=()), rules("crash", now=T0 + 101))

    def test_a_disk_that_lied_owes_nothing(self) -> None:
        of = topic()
        write(of, 3)
        of.judge(shown(of, head=0, records=()), rules("crash", lied=True))

    def test_reservations_that_are_merely_open_may_be_told(self) -> None:
        """[A-2]: nothing is lost, the unwritten part of the reservation is skipped."""
        of = topic("disk")
        write(of, 2, durable=True)
        of.judge(shown(of, head=6, runs=(Run(3, 6, "crash"),)), rules("crash"))


def _broken() -> list[Any]:
    """Each row: a name, what is said, how it ended, and the topic with the view that breaks a promise."""
    rows: list[tuple[str, str, How, Callable[[], tuple[Topic, View]]]] = []

    def case(name: str, says: str, how: How = "crash") -> Callable[[Callable[[], tuple[Topic, View]]], None]:
        return lambda make: rows.append((name, says, how, make))

    @case("an acknowledged fsync record is gone", "was durable and is gone")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 3)
        return of, shown(of, records=cut(shown(of), 2))

    @case("an acknowledged fsync record is told as lost", "no byte was damaged")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        write(of, 1, acked=False)
        return of, shown(of, head=2, runs=(Run(2, 2, "corrupt"),))

    @case("an acknowledged disk record is gone after a kill", "was acknowledged and is gone", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 3)
        return of, shown(of, head=2, records=cut(shown(of), 3))

    @case("an acknowledged memory record is gone after a kill", "was acknowledged and is gone", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("memory")
        write(of, 1)
        return of, shown(of, head=0, records=())

    @case("a record was never written", "was never written")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        return of, shown(of, head=2, records=(*shown(of).records, rec(2)))

    @case("a record came back with other content", "was never written")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        return of, shown(of, records=(rec(1, text="forged"),))

    @case("a record came back with another time", "was never written")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        return of, shown(of, records=(rec(1, ts=T0 + 1),))

    @case("a record is there twice", "stands behind")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        return of, shown(of, records=shown(of).records * 2)

    @case("records are out of order", "stands behind")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 2)
        return of, shown(of, records=shown(of).records[::-1])

    @case("half a write survives", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("memory")
        write(of, 3)
        return of, shown(of, head=2, records=cut(shown(of), 3))

    @case("half a disk write survives and the rest is told", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 3)
        return of, shown(of, records=cut(shown(of), 3), runs=(Run(3, 3, "crash"),))

    @case("half a failed write appears", "no prefix", "kill")
    def _() -> tuple[Topic, View]:
        of = topic()
        event = write(of, 2, acked=False)
        return of, shown(of, head=1, records=event.recs[:1])

    @case("a refused write appears", "is back, which was deleted or refused", "kill")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        event = write(of, 1, acked=False)
        of.refuse(event)
        return of, shown(of, head=2, records=(*shown(of).records, *event.recs))

    @case("a write that was taken back is there instead of the one after it", "not what was acknowledged")
    def _() -> tuple[Topic, View]:
        of = topic()
        event = write(of, 1, acked=False, text="refused")
        write(of, 1)
        return of, shown(of, records=event.recs)

    @case("a durable delete is undone", "is back")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 2)
        before = shown(of)
        remove(of, 1)
        return of, before

    @case("a delete of a disk topic is undone by a kill", "is back", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2)
        before = shown(of)
        remove(of, 1)
        return of, before

    @case("a lost write is followed by one that came after it", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("memory")
        write(of, 2, durable=True)
        write(of, 1)
        write(of, 1)
        return of, shown(of, records=cut(shown(of), 3))

    @case("an evicted record is back", "is back")
    def _() -> tuple[Topic, View]:
        of = topic(cap_records=2)
        write(of, 3)
        return of, shown(of, floor=1, records=(rec(1), *shown(of).records))

    @case("the cap floor went back", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic(cap_records=2)
        write(of, 3)
        return of, shown(of, floor=1)

    @case("more is told than was evicted", "no prefix", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("disk", cap_records=2)
        write(of, 4)
        remove(of, 3)
        return of, shown(of, floor=4)

    @case("a delete is told as a loss", "no prefix", "kill")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 2)
        remove(of, 1)
        return of, shown(of, floor=2)

    @case("an age floor that was seen went back", "is back|no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk", ttl_ms=100)
        write(of, 2, durable=True)
        before = shown(of)
        of.show(shown(of, floor=3, records=()), T0 + 200, T0 + 200)
        return of, before

    @case("the head fell behind an acknowledged disk seq", "the head is 2")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        write(of, 2)
        return of, shown(of, head=2, records=cut(shown(of), 3, 4))

    @case("the run does not reach an acknowledged disk seq", "the head is 3")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        write(of, 2)
        return of, shown(of, head=3, runs=(Run(3, 3, "crash"),), records=cut(shown(of), 3, 4))

    @case("a lost disk tail is not told", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        write(of, 2)
        return of, shown(of, records=cut(shown(of), 3, 4))

    @case("the run tells of records that are there", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        return of, shown(of, head=6, runs=(Run(2, 6, "crash"),))

    @case("a run that was told once is forgotten", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 1)
        after = of.judge(View(of.live.config, 4, 1, (Run(1, 4, "crash"),), ()), rules("crash"))
        write(after, 1, durable=True)
        return after, shown(after, runs=())

    @case("the head jumped after a kill", "the head jumped", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2)
        return of, shown(of, head=6, runs=(Run(3, 6, "crash"),))

    @case("the head of an fsync topic jumped", "the head jumped")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 2)
        return of, shown(of, head=6, runs=(Run(3, 6, "crash"),))

    @case("the head jumped after the reservation was given back", "the head jumped")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        of.reserved = False
        return of, shown(of, head=6, runs=(Run(3, 6, "crash"),))

    @case("the head jumped beyond the reservation", "reserved above")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        return of, shown(of, head=30, runs=(Run(3, 30, "crash"),))

    @case("the head jumped silently", "no prefix")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2, durable=True)
        return of, shown(of, head=6)

    @case("the head of a memory topic is above all that was written", "the head jumped")
    def _() -> tuple[Topic, View]:
        of = topic("memory")
        write(of, 2)
        return of, shown(of, head=3)

    @case("an ephemeral head fell below the pinned one", "the head is 4", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("ephemeral")
        write(of, 5)
        of.pin()
        return of, shown(of, head=4, records=())

    @case("an ephemeral record is back", "is back", "kill")
    def _() -> tuple[Topic, View]:
        of = topic("ephemeral")
        write(of, 1)
        return of, shown(of)

    @case("a configuration is forgotten", "the configuration is")
    def _() -> tuple[Topic, View]:
        of = topic()
        write(of, 1)
        before = shown(of)
        configure(of, "fsync", dedupe_node=False)
        return of, before

    @case("damage is told of a sound disk", "no byte was damaged")
    def _() -> tuple[Topic, View]:
        of = topic("disk")
        write(of, 2)
        return of, shown(of, head=4, runs=(Run(3, 4, "corrupt"),))

    return [pytest.param(says, how, make, id=name) for name, says, how, make in rows]


@pytest.mark.parametrize(("says", "how", "make"), _broken())
def test_a_survivor_that_breaks_a_promise_is_caught(
    says: str, how: How, make: Callable[[], tuple[Topic, View]]
) -> None:
    """13 §3: each oracle can fail."""
    of, view = make()
    with pytest.raises(Violation, match=says):
        of.judge(view, rules(how))


class TestTheRunningEngine:
    """What is shown while it runs is exactly what was acknowledged."""

    def test_what_is_acknowledged_is_shown(self) -> None:
        of = topic("disk", cap_records=2)
        write(of, 3)
        of.show(shown(of), T0, T0)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"records": ()},
            {"head": 4},
            {"floor": 1},
            {"floor": 3},
            {"runs": (Run(3, 3, "crash"),)},
            {"config": TopicConfig()},
            {"records": (rec(2), rec(3, text="forged"))},
        ],
    )
    def test_anything_else_is_caught(self, wrong: dict[str, Any]) -> None:
        """[INV-3, DEL-7]"""
        of = topic("disk", cap_records=2)
        write(of, 3)
        with pytest.raises(Violation):
            of.show(shown(of, **wrong), T0, T0)

    def test_a_failed_write_that_shows_is_caught(self) -> None:
        """[INV-3]"""
        of = topic()
        event = write(of, 1, acked=False)
        with pytest.raises(Violation, match="is shown"):
            of.show(shown(of, head=1, records=event.recs), T0, T0)

    def test_a_deleted_record_that_shows_is_caught(self) -> None:
        """[DEL-7]"""
        of = topic()
        write(of, 2)
        before = shown(of)
        remove(of, 1)
        with pytest.raises(Violation, match="deleted or refused"):
            of.show(before, T0, T0)

    @pytest.mark.parametrize("done", [True, False])
    def test_a_failed_delete_is_seen_whole_or_not_at_all(self, done: bool) -> None:
        """[R-6]: also where the disk took records, and the view is held against what is left."""
        for rest in (False, True):
            of = topic()
            write(of, 3)
            remove(of, 1, 2, acked=False)
            view = shown(of, records=cut(shown(of), 1, 2) if done else shown(of).records)
            of.show_rest(view) if rest else of.show(view, T0, T0)
            assert list(of.live.records) == ([3] if done else [1, 2, 3])

    def test_half_of_a_failed_delete_is_caught(self) -> None:
        """[R-6]"""
        of = topic()
        write(of, 3)
        remove(of, 1, 2, acked=False)
        half = shown(of, records=cut(shown(of), 1))
        with pytest.raises(Violation, match="must be"):
            of.show(half, T0, T0)
        with pytest.raises(Violation, match="record 1 is neither shown nor told"):
            of.show_rest(half)

    def test_a_failed_delete_that_was_seen_done_is_not_undone(self) -> None:
        """[INV-8]"""
        of = topic()
        write(of, 3)
        before = shown(of)
        remove(of, 1, 2, acked=False)
        of.show_rest(shown(of, records=cut(before, 1, 2)))
        with pytest.raises(Violation, match="is shown"):
            of.show_rest(before)

    def test_a_floor_raised_by_records_in_memory_is_kept_once_it_was_seen(self) -> None:
        """[DUR-12, INV-8]: 1 `fsync`, 2 `ephemeral`, 3 `fsync` under a cap of 2."""
        of = topic("fsync", cap_records=2)
        write(of, 1)
        configure(of, "ephemeral", cap_records=2)
        write(of, 1)
        configure(of, "fsync", cap_records=2)
        write(of, 1)
        back = View(of.live.config, 3, 1, (), (rec(1), rec(3)))
        gone = View(of.live.config, 3, 2, (), (rec(3),))
        for view in (back, gone):
            of.judge(view, rules("kill"))
        of.show(shown(of), T0, T0)
        of.judge(gone, rules("kill"))
        with pytest.raises(Violation, match="is back"):
            of.judge(back, rules("kill"))

    def test_the_log_may_tell_of_a_floor_before_anybody_sees_it(self) -> None:
        """[DUR-12]: of age among records in memory, and of a cap whose change of configuration is not answered yet."""
        of = topic("ephemeral")
        write(of, 2)
        configure(of, "memory", ttl_ms=100)
        of.judge(shown(of, floor=3, records=()), rules("kill", now=T0 + 101))
        with pytest.raises(Violation, match="floor"):
            of.judge(shown(of, floor=3, records=()), rules("kill", now=T0 + 100))
        of = topic()
        write(of, 3)
        configure(of, "ephemeral")
        write(of, 2)
        tight = TopicConfig.parse({"durability": "fsync", "cap_records": 2})
        of.stage(Change(of.live, config=tight))
        of.judge(View(tight, 5, 4, (), ()), rules("kill"))
        with pytest.raises(Violation, match="the floor is 5"):
            of.judge(View(tight, 5, 5, (), ()), rules("kill"))

    def test_a_floor_that_cannot_be_logged_stays_where_it_was(self) -> None:
        """[DUR-12]: the shard is latched; what the caps would take is still there, and a sound shard must take it."""
        of = topic("ephemeral")
        write(of, 2)
        before = shown(of)
        configure(of, "fsync", cap_records=1)
        view = before._replace(config=of.live.config)
        of.show(view, T0, T0, suspended=True)
        of.show_rest(view)
        with pytest.raises(Violation, match="floor"):
            of.show(view, T0, T0)
        of.show(shown(of), T0, T0, suspended=True)
        with pytest.raises(Violation, match="floor"):
            of.show(view, T0, T0, suspended=True)

    def test_what_the_disk_took_is_told(self) -> None:
        """[S-176]: a record that cannot be read is missing by name; nothing is made up in its place."""
        of = topic()
        write(of, 3)
        gone = cut(shown(of), 2)
        of.show_rest(shown(of, records=gone, runs=(Run(2, 2, "corrupt"),)))
        with pytest.raises(Violation, match="record 2 is neither shown nor told"):
            of.show_rest(shown(of, records=gone))
        with pytest.raises(Violation, match="not visible to anybody"):
            of.show_rest(shown(of, records=(rec(1, text="forged"), rec(2), rec(3))))

    def test_age_moves_the_floor_at_the_very_millisecond_unless_it_is_suspended(self) -> None:
        """[TTL-1, S-263]"""
        of = topic("disk", ttl_ms=100)
        write(of, 1)
        before = shown(of)
        of.show(before, T0 + 100, T0 + 100)
        with pytest.raises(Violation, match="floor"):
            of.show(before, T0 + 101, T0 + 101)
        of.show(before, T0 + 101, T0 + 101, suspended=True)
        of.show(shown(of, floor=2, records=()), T0 + 101, T0 + 101)
        assert of.base.view().floor == 2

    def test_a_clock_that_went_back_un_expires_nothing(self) -> None:
        """[S-265, TTL-4]"""
        of = topic("disk", ttl_ms=100)
        write(of, 1)
        before = shown(of)
        of.show(shown(of, floor=2, records=()), T0 + 200, T0 + 200)
        with pytest.raises(Violation):
            of.show(before, T0, T0 + 200)


class TestStore:
    """Topics by name."""

    def make(self) -> Store:
        store = Store()
        write(store.creating("t", TopicConfig.parse({"durability": "fsync"})), 1, acked=False)
        store.created("t")
        return store

    def found(self, store: Store) -> dict[str, View]:
        return {name: view for name in store.names() if (of := store.topic(name)) and (view := of.live.view())}

    def test_a_topic_that_was_created_is_there(self) -> None:
        """[DUR-9]"""
        store = self.make()
        assert store.judge(self.found(store), rules("crash")).names() == ["t"]
        with pytest.raises(Violation, match="is gone"):
            store.judge({}, rules("crash"))

    def test_a_topic_nobody_made_is_caught(self) -> None:
        store = self.make()
        with pytest.raises(Violation, match="never made"):
            store.judge(self.found(store) | {"u": shown(topic())}, rules("crash"))

    def test_a_deleted_topic_stays_away_and_one_being_deleted_may_do_either(self) -> None:
        """[NAME-9]"""
        store = self.make()
        there = self.found(store)
        store.deleting("t")
        store.judge(there, rules("crash"))
        store.judge({}, rules("crash"))
        store.deleted("t")
        with pytest.raises(Violation, match="it was deleted"):
            store.judge(there, rules("kill"))

    def test_a_creation_under_way_is_there_empty_or_not_at_all(self) -> None:
        store = Store()
        store.creating("t", TopicConfig())
        event = write(store.creating("t", TopicConfig.parse({"durability": "fsync"})), 1, acked=False)
        store.judge({}, rules("kill"))
        store.judge({"t": State(TopicConfig()).view()}, rules("kill"))
        with pytest.raises(Violation):
            store.judge({"t": shown(topic("memory"))}, rules("kill"))
        with pytest.raises(Violation):
            store.judge({"t": View(TopicConfig(), 1, 1, (), event.recs)}, rules("kill"))


class TestNames:
    """Keys and producers are known exactly as far as their writes survive [IDM-6, S-219]."""

    def test_a_lost_write_takes_its_key_and_its_pair_along(self) -> None:
        """C19"""
        of = topic("disk")
        write(of, 1, durable=True, key="kept", producer=("p", 1, 0))
        write(of, 1, key="lost", producer=("p", 1, 1))
        view = shown(of, records=cut(shown(of), 2), runs=(Run(2, 2, "crash"),))
        live = of.judge(view, rules("crash")).live
        assert live.remembered("kept", T0) is not None
        assert live.remembered("lost", T0) is None
        assert (live.producers["p"].epoch, live.producers["p"].index) == (1, 0)

    def test_a_deleted_record_leaves_its_key(self) -> None:
        """[IDM-1]: from publish until the window ends."""
        of = topic()
        write(of, 1, key="k")
        remove(of, 1)
        assert of.judge(shown(of), rules("kill")).live.remembered("k", T0) is not None

    def test_an_ephemeral_key_is_gone(self) -> None:
        """[IDM-6]"""
        of = topic("ephemeral")
        write(of, 1, key="k")
        assert of.judge(shown(of, records=()), rules("kill")).live.remembered("k", T0) is None


def aged(at: int) -> tuple[Topic, View]:
    """Two records that age has taken when nobody looked, a third one of that time, and what is shown then."""
    one = topic("disk", ttl_ms=5000)
    write(one, 2)
    write(one, 1, ts=T0 + at)
    return one, shown(one, floor=3, records=shown(one).records[2:])


def test_a_delete_behind_a_mark_of_age_may_go_with_the_machine() -> None:
    """[DUR-12] The mark was synced before it was seen, but not what came behind it in the log."""
    one, view = aged(5000)
    remove(one, 3)
    one.show(view._replace(records=()), T0 + 5001, T0 + 5001)
    one.judge(view, rules("crash", now=T0 + 5001))


def test_what_was_seen_before_a_mark_of_age_is_durable_with_it() -> None:
    one, view = aged(4000)
    one.show(shown(one), T0 + 4000, T0 + 4000)
    one.show(view, T0 + 5001, T0 + 5001)
    with pytest.raises(Violation, match="durable and is gone"):
        one.judge(view._replace(records=()), rules("crash", now=T0 + 5001))


def test_what_age_has_taken_was_durable_whenever_it_was_seen() -> None:
    one, view = aged(0)
    one.show(view._replace(floor=4, records=()), T0 + 5001, T0 + 5001)
    with pytest.raises(Violation, match="head is 2"):
        one.judge(view._replace(head=2, floor=3, records=()), rules("crash", now=T0 + 5001))
