"""Idempotency keys and producers: the rules by id, and both tables against plain models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.engine.dedupe import Entry, IdempotencyKeys, KeyEntry, Pair, Pending, Producers, Verdict
from topics.errors import LimitReached, ProducerGap
from topics.model import Producer

NOW = 1_790_000_000_000
WINDOW = 120_000
DAY = 86_400_000


def write(keys: IdempotencyKeys, topic: int, key: str, first: int, count: int = 1, ts: int = NOW, **more: Any) -> None:
    pending = keys.stage(topic, key)
    keys.publish(pending, first_seq=first, count=count, head_seq=more.pop("head", first + count - 1), ts=ts, **more)


def known(keys: IdempotencyKeys, topic: int, key: str, now: int = NOW, window: int = WINDOW) -> int | None:
    """First seq under a key, `None` for a new write."""
    answer = keys.check(topic, key, now, window)
    assert not isinstance(answer, Pending)
    return answer.first_seq if isinstance(answer, KeyEntry) else None


class Heard(list[Entry | None]):
    """What those who waited were told."""

    def on(self, pending: Any) -> Heard:
        assert isinstance(pending, Pending)
        pending.wait(self.append)
        return self


# Keys


def test_a_published_key_answers_with_its_seqs_and_head() -> None:
    """[IDM-1, IDM-2]"""
    keys = IdempotencyKeys()
    assert keys.check(1, "k", NOW, WINDOW) is Verdict.NEW
    write(keys, 1, "k", 31, 2, head=40)
    answer = keys.check(1, "k", NOW, WINDOW)
    assert isinstance(answer, KeyEntry)
    assert (answer.first_seq, answer.last_seq, answer.count, answer.head_seq) == (31, 32, 2, 40)
    assert keys.check(1, "other", NOW, WINDOW) is Verdict.NEW


@pytest.mark.parametrize(
    ("later", "window", "remembered"),
    [(0, 1, True), (1, 1, True), (2, 1, False), (-5, 1, True), (WINDOW, WINDOW, True), (WINDOW + 1, WINDOW, False)],
)
def test_a_key_is_forgotten_when_its_window_is_over(later: int, window: int, remembered: bool) -> None:
    """[IDM-1]: strictly longer ago than the window."""
    keys = IdempotencyKeys()
    write(keys, 1, "k", 1)
    assert (known(keys, 1, "k", NOW + later, window) == 1) is remembered


def test_a_window_of_0_is_off() -> None:
    """[S-219]"""
    keys = IdempotencyKeys()
    write(keys, 1, "k", 1)
    assert keys.check(1, "k", NOW, 0) is Verdict.NEW


def test_keys_are_scoped_to_the_topic_instance() -> None:
    """[IDM-6]"""
    keys = IdempotencyKeys()
    write(keys, 1, "k", 7)
    write(keys, 2, "k", 9)
    assert (known(keys, 1, "k"), known(keys, 2, "k"), known(keys, 3, "k")) == (7, 9, None)


def test_concurrent_writes_with_one_key_wait_for_the_first() -> None:
    """[IDM-3]"""
    keys = IdempotencyKeys()
    pending = keys.stage(1, "k")
    first, second = (Heard().on(keys.check(1, "k", NOW, WINDOW)) for _ in range(2))
    assert keys.check(1, "other", NOW, WINDOW) is Verdict.NEW
    assert (first, second) == ([], [])
    keys.publish(pending, first_seq=5, count=3, head_seq=7, ts=NOW)
    assert first == second == [keys.check(1, "k", NOW, WINDOW)]


def test_a_failed_write_leaves_no_entry_and_the_next_in_line_is_new() -> None:
    """[IDM-4, IDM-3]"""
    keys = IdempotencyKeys()
    told: list[tuple[str, object]] = []

    def again(name: str) -> None:
        answer = keys.check(1, "k", NOW, WINDOW)
        told.append((name, answer))
        if answer is Verdict.NEW:
            keys.stage(1, "k")

    pending = keys.stage(1, "k")
    for name in ("a", "b"):
        pending.wait(lambda entry, name=name: again(name))  # type: ignore[misc]
    keys.fail(pending)
    assert told[0] == ("a", Verdict.NEW)
    assert told[1][0] == "b"
    assert isinstance(told[1][1], Pending)
    assert len(keys) == 0


def test_a_failure_leaves_nothing_behind() -> None:
    keys = IdempotencyKeys()
    keys.fail(keys.stage(1, "k"))
    assert keys.check(1, "k", NOW, WINDOW) is Verdict.NEW
    assert keys.topic_ids() == []


def test_an_old_entry_answers_again_when_the_write_that_would_replace_it_fails() -> None:
    """[IDM-4]: forgotten or not depends on the window alone."""
    keys = IdempotencyKeys()
    write(keys, 1, "k", 1)
    assert known(keys, 1, "k", NOW + 11, 10) is None
    keys.fail(keys.stage(1, "k"))
    assert known(keys, 1, "k", NOW + 11, 20) == 1


def test_staging_one_key_twice_is_a_bug() -> None:
    keys = IdempotencyKeys()
    pending = keys.stage(1, "k")
    with pytest.raises(AssertionError):
        keys.stage(1, "k")
    keys.fail(pending)
    with pytest.raises(AssertionError):
        pending.wait(print)


def test_the_oldest_leave_first_whichever_topic_they_are_of() -> None:
    """[A-3]"""
    keys = IdempotencyKeys(max_entries=3)
    for at, (topic, key) in enumerate([(1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e")], 1):
        write(keys, topic, key, at, ts=NOW + at)
    assert keys.evicted == 2
    assert len(keys) == 3
    left = [known(keys, topic, key, NOW) for topic, key in [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e")]]
    assert left == [None, None, 3, 4, 5]
    assert sorted(keys.topic_ids()) == [1, 2, 3]


def test_key_bytes_are_bounded_too_and_counted_as_utf_8() -> None:
    """[A-3]"""
    keys = IdempotencyKeys(max_bytes=10)
    write(keys, 1, "éé", 1)
    write(keys, 1, "abcd", 2)
    assert keys.key_bytes == 8
    write(keys, 1, "xyz", 3, ts=NOW + 1)
    assert (keys.key_bytes, len(keys), keys.evicted) == (7, 2, 1)
    write(keys, 1, "k" * 11, 4, ts=NOW + 2)
    assert (keys.key_bytes, len(keys), keys.topic_ids()) == (0, 0, [])


def test_a_key_used_again_counts_once_and_is_as_old_as_its_last_use() -> None:
    keys = IdempotencyKeys(max_entries=2)
    write(keys, 1, "a", 1)
    write(keys, 1, "b", 2, ts=NOW + 1)
    write(keys, 1, "a", 3, ts=NOW + 2)
    assert (len(keys), keys.key_bytes, keys.evicted) == (2, 2, 0)
    write(keys, 1, "c", 4, ts=NOW + 3)
    assert [known(keys, 1, key) for key in "abc"] == [3, None, 4]


def test_expiry_removes_what_is_forgotten_and_is_no_eviction() -> None:
    keys = IdempotencyKeys()
    for at in range(5):
        write(keys, 1, f"k{at}", at + 1, ts=NOW + at)
    assert keys.expire(1, NOW + 12, 10) == 2
    assert (len(keys), keys.key_bytes, keys.evicted) == (3, 6, 0)
    assert keys.expire(1, NOW + 100, 10) == 3
    assert keys.topic_ids() == []
    assert keys.expire(1, NOW, 10) == 0


def test_removing_a_topic_forgets_its_entries_and_lets_go_who_waits() -> None:
    """[NAME-9, EPO-1]"""
    keys = IdempotencyKeys()
    write(keys, 1, "a", 1)
    write(keys, 2, "b", 1)
    pending = keys.stage(1, "p")
    heard = Heard().on(keys.check(1, "p", NOW, WINDOW))
    keys.remove(1)
    assert heard == [None]
    keys.publish(pending, first_seq=2, count=1, head_seq=2, ts=NOW)
    keys.fail(pending)
    keys.remove(1)
    assert heard == [None]
    assert (len(keys), keys.key_bytes, keys.topic_ids()) == (1, 1, [2])


def test_rows_are_as_of_the_checkpoint_and_come_back() -> None:
    """[S-219, IDM-2, IDM-6]"""
    keys = IdempotencyKeys()
    write(keys, 1, "a", 1, 3, head=9)
    write(keys, 1, "b", 4, 2)
    write(keys, 1, "c", 6, 1)
    assert keys.rows(1, 0) == []
    assert keys.rows(1, 4) == [("a", 1, 3, NOW)]
    assert keys.rows(1, 5) == [("a", 1, 3, NOW), ("b", 4, 2, NOW)]
    assert keys.rows(9, 5) == []
    restored = IdempotencyKeys()
    restored.restore(1, reversed(keys.rows(1, 5)))
    restored.replay(1, "b", 4, 2, NOW)
    restored.replay(1, "c", 6, 1, NOW)
    assert restored.rows(1, 99) == keys.rows(1, 99)
    answer = restored.check(1, "a", NOW, WINDOW)
    assert isinstance(answer, KeyEntry)
    assert answer.head_seq == answer.last_seq == 3


def test_what_an_ephemeral_topic_was_given_is_in_no_snapshot() -> None:
    """[IDM-6], 06 §19 invariant 13"""
    keys = IdempotencyKeys()
    write(keys, 1, "a", 1, logged=False)
    write(keys, 1, "b", 2)
    assert known(keys, 1, "a") == 1
    assert keys.rows(1, 99) == [("b", 2, 1, NOW)]


def test_replay_may_begin_before_the_snapshot_and_repeat() -> None:
    """[S-219, S-43]: of two uses of one key the later one counts."""
    keys = IdempotencyKeys()
    keys.restore(1, [("a", 50, 1, NOW)])
    for _ in range(2):
        keys.replay(1, "a", 5, 1, NOW - DAY)
        keys.replay(1, "b", 20, 1, NOW - 1)
        keys.replay(1, "a", 50, 1, NOW)
        keys.replay(1, "c", 51, 1, NOW)
    assert keys.rows(1, 99) == [("a", 50, 1, NOW), ("c", 51, 1, NOW)]


@pytest.mark.parametrize(
    ("first", "last", "left"),
    [
        (1, 2, "bc"),
        (3, 3, "bc"),
        (4, 4, "ac"),
        (3, 4, "c"),
        (6, 9, "ab"),
        (7, 99, "abc"),
        (1, 99, ""),
        (6, 2**64 - 1, "ab"),
    ],
)
def test_a_recovered_key_never_points_at_a_missing_record(first: int, last: int, left: str) -> None:
    """[S-219], 06 §19 invariant 13, C19"""
    keys = IdempotencyKeys()
    keys.restore(1, [("a", 1, 3, NOW), ("b", 4, 2, NOW), ("c", 6, 1, NOW)])
    assert keys.drop_range(1, first, last) == 3 - len(left)
    assert "".join(row[0] for row in keys.rows(1, 99)) == left
    assert len(keys) == keys.key_bytes == len(left)
    assert keys.drop_range(2, first, last) == 0
    write(keys, 1, "d", 100)


def test_topics_that_come_and_go_leave_nothing_behind() -> None:
    keys = IdempotencyKeys()
    for topic in range(1000):
        write(keys, topic, "k", 1)
        keys.remove(topic)
        write(keys, 5000, f"{topic}", topic + 1, ts=NOW + topic)
        keys.expire(5000, NOW + topic + 9, 5)
    assert len(keys._oldest) < 100
    assert len(keys) == 0


class KeysModel(RuleBasedStateMachine):
    """The table against a dict and a list; several topics, one clock that also steps back."""

    @initialize(entries=st.integers(0, 6), key_bytes=st.integers(0, 9))
    def begin(self, entries: int, key_bytes: int) -> None:
        self.keys = IdempotencyKeys(entries, key_bytes)
        self.now = 1000
        self.entries: dict[tuple[int, str], tuple[int, int, int]] = {}
        self.staged: dict[tuple[int, str], Pending] = {}
        self.head = dict.fromkeys((1, 2, 3), 0)
        self.ts = dict.fromkeys((1, 2, 3), 0)
        self.evicted = 0

    @rule(by=st.integers(-3, 9))
    def clock(self, by: int) -> None:
        self.now += by

    @rule(topic=st.integers(1, 3), key=st.sampled_from(["a", "bb", "é", "d"]), window=st.sampled_from([0, 5, 20]))
    def ask(self, topic: int, key: str, window: int) -> None:
        answer = self.keys.check(topic, key, self.now, window)
        entry = self.entries.get((topic, key))
        if window == 0:
            assert answer is Verdict.NEW
        elif (topic, key) in self.staged:
            assert answer is self.staged[topic, key]
        elif entry is None or self.now - entry[2] > window:
            assert answer is Verdict.NEW
            self.staged[topic, key] = self.keys.stage(topic, key)
        else:
            assert isinstance(answer, KeyEntry)
            assert (answer.first_seq, answer.count, answer.ts) == entry

    @precondition(lambda self: self.staged)
    @rule(data=st.data(), count=st.integers(1, 3))
    def publish(self, data: st.DataObject, count: int) -> None:
        at = data.draw(st.sampled_from(sorted(self.staged)))
        topic = at[0]
        self.ts[topic] = max(self.ts[topic], self.now)
        first = self.head[topic] + 1
        self.head[topic] += count
        pending = self.staged.pop(at)
        self.keys.publish(pending, first_seq=first, count=count, head_seq=self.head[topic], ts=self.ts[topic])
        self.entries.pop(at, None)
        self.entries[at] = (first, count, self.ts[topic])
        while len(self.entries) > self.keys.max_entries or self.bytes() > self.keys.max_bytes:
            del self.entries[min(self.entries, key=lambda at: (self.entries[at][2], at[0], self.entries[at][0]))]
            self.evicted += 1

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.keys.fail(self.staged.pop(data.draw(st.sampled_from(sorted(self.staged)))))

    @rule(topic=st.integers(1, 3), window=st.integers(0, 20))
    def expire(self, topic: int, window: int) -> None:
        gone = [at for at, entry in self.entries.items() if at[0] == topic and self.now - entry[2] > window]
        assert self.keys.expire(topic, self.now, window) == len(gone)
        for at in gone:
            del self.entries[at]

    @rule(topic=st.integers(1, 3), first=st.integers(1, 20), length=st.integers(0, 5))
    def damage(self, topic: int, first: int, length: int) -> None:
        last = first + length
        gone = [
            at for at, (low, n, _) in self.entries.items() if at[0] == topic and low <= last and low + n - 1 >= first
        ]
        assert self.keys.drop_range(topic, first, last) == len(gone)
        for at in gone:
            del self.entries[at]

    @rule(topic=st.integers(1, 3))
    def remove(self, topic: int) -> None:
        self.keys.remove(topic)
        self.entries = {at: entry for at, entry in self.entries.items() if at[0] != topic}
        assert all(pending.settled for at, pending in self.staged.items() if at[0] == topic)
        self.staged = {at: pending for at, pending in self.staged.items() if at[0] != topic}

    def bytes(self) -> int:
        return sum(len(key.encode()) for _, key in self.entries)

    @invariant()
    def agrees(self) -> None:
        assert len(self.keys) == len(self.entries)
        assert self.keys.key_bytes == self.bytes()
        assert self.keys.evicted == self.evicted
        for topic in (1, 2, 3):
            for ck in (0, 5, 10**6):
                expected = [
                    (key, first, count, ts)
                    for (of, key), (first, count, ts) in self.entries.items()
                    if of == topic and first + count - 1 <= ck
                ]
                assert self.keys.rows(topic, ck) == sorted(expected, key=lambda row: row[1])


KeysModel.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestKeysModel = KeysModel.TestCase


# Producers


def stage(producers: Producers, epoch: int, index: int, topic: int = 1, id: str = "p", now: int = NOW) -> Pending:
    producer = Producer(id, epoch, index)
    assert producers.check(topic, producer, now) is Verdict.NEW
    return producers.stage(topic, producer, now)


def append(
    producers: Producers, epoch: int, index: int, first: int, count: int = 1, ts: int = NOW, **more: Any
) -> None:
    logged = more.pop("logged", True)
    pending = stage(producers, epoch, index, now=ts, **more)
    producers.publish(pending, first_seq=first, count=count, head_seq=first + count - 1, ts=ts, logged=logged)


def ask(producers: Producers, epoch: int, index: int, topic: int = 1, id: str = "p", now: int = NOW) -> Any:
    return producers.check(topic, Producer(id, epoch, index), now)


@pytest.mark.parametrize(
    ("epoch", "index", "answer"),
    [
        (2, 6, Verdict.NEW),
        (3, 0, Verdict.NEW),
        (3, 2**64 - 1, Verdict.NEW),
        (2, 5, (50, 2)),
        (2, 4, Verdict.OLDER),
        (2, 0, Verdict.OLDER),
        (1, 9, Verdict.OLDER),
        (0, 2**64 - 1, Verdict.OLDER),
        (2, 7, ProducerGap),
        (2, 2**64 - 1, ProducerGap),
    ],
)
def test_answers_next_to_the_kept_pair(epoch: int, index: int, answer: object) -> None:
    """[A-4]: kept is (2, 5)."""
    producers = Producers()
    append(producers, 2, 4, 49)
    append(producers, 2, 5, 50, 2)
    if answer is ProducerGap:
        with pytest.raises(ProducerGap) as caught:
            ask(producers, epoch, index)
        assert (caught.value.epoch, caught.value.index) == (2, 5)
        return
    told = ask(producers, epoch, index)
    assert ((told.first_seq, told.count) if isinstance(told, Pair) else told) == answer


@pytest.mark.parametrize(("epoch", "index"), [(0, 0), (0, 7), (2**64 - 1, 2**64 - 1)])
def test_the_first_write_of_a_producer_may_have_any_pair(epoch: int, index: int) -> None:
    """[A-4]"""
    assert ask(Producers(), epoch, index) is Verdict.NEW


def test_pairs_are_per_topic_and_id() -> None:
    """[A-4]"""
    producers = Producers()
    append(producers, 5, 5, 1)
    assert isinstance(ask(producers, 5, 5), Pair)
    assert ask(producers, 0, 0, topic=2) is Verdict.NEW
    assert ask(producers, 0, 0, id="q") is Verdict.NEW


def test_kept_is_the_highest_staged_pair_and_repeats_of_staged_writes_wait() -> None:
    """[A-4, IDM-3]"""
    producers = Producers()
    append(producers, 1, 5, 10)
    six, seven = stage(producers, 1, 6), stage(producers, 1, 7)
    with pytest.raises(ProducerGap) as caught:
        ask(producers, 1, 9)
    assert (caught.value.epoch, caught.value.index) == (1, 7)
    assert ask(producers, 1, 5) is Verdict.OLDER
    assert ask(producers, 1, 6) is six
    heard = Heard().on(ask(producers, 1, 7))
    producers.publish(six, first_seq=11, count=1, head_seq=11, ts=NOW)
    assert ask(producers, 1, 6) is Verdict.OLDER
    assert producers.newest(1, "p") == Pair(11, 1, 11, NOW, True, 1, 6)
    producers.publish(seven, first_seq=12, count=1, head_seq=12, ts=NOW)
    assert heard == [ask(producers, 1, 7)] == [producers.newest(1, "p")]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_failed_writes_leave_the_pair_as_it_was(order: tuple[int, ...]) -> None:
    """[A-4, S-110]: whatever the order in which they fail."""
    producers = Producers()
    append(producers, 1, 5, 10)
    staged = [stage(producers, 1, 6), stage(producers, 1, 7), stage(producers, 2, 0)]
    heard = Heard().on(ask(producers, 2, 0))
    for at in order:
        producers.fail(staged[at])
    assert heard == [None]
    assert isinstance(ask(producers, 1, 5), Pair)
    assert ask(producers, 1, 6) is Verdict.NEW
    with pytest.raises(ProducerGap):
        ask(producers, 1, 7)


def test_a_producer_whose_first_write_fails_was_never_there() -> None:
    """[A-4]"""
    producers = Producers(max_producers=1)
    pending = stage(producers, 1, 7)
    producers.fail(pending)
    producers.fail(pending)
    assert len(producers) == 0
    assert ask(producers, 0, 0) is Verdict.NEW
    assert producers.newest(1, "p") is None


def test_staging_below_the_kept_pair_is_a_bug() -> None:
    producers = Producers()
    append(producers, 1, 5, 10)
    with pytest.raises(AssertionError):
        producers.stage(1, Producer("p", 1, 5), NOW)


def test_a_new_producer_is_refused_when_there_are_too_many() -> None:
    """[A-4], 09 §5"""
    producers = Producers(max_producers=2)
    append(producers, 1, 0, 1)
    stage(producers, 1, 0, id="q")
    with pytest.raises(LimitReached) as caught:
        ask(producers, 1, 0, id="r")
    assert (caught.value.limit, caught.value.max, caught.value.code) == ("max_producers", 2, "throttled")
    with pytest.raises(LimitReached):
        producers.stage(2, Producer("p", 1, 0), NOW)
    assert ask(producers, 1, 1) is Verdict.NEW
    assert len(Producers(max_producers=0)) == 0
    assert ask(Producers(max_producers=0), 1, 0) is Verdict.NEW


def test_unused_producers_make_room() -> None:
    """[A-4]"""
    producers = Producers(max_producers=1, ttl_ms=10)
    append(producers, 1, 0, 1)
    with pytest.raises(LimitReached):
        ask(producers, 1, 0, id="q", now=NOW + 10)
    assert ask(producers, 1, 0, id="q", now=NOW + 11) is Verdict.NEW
    assert len(producers) == 0


def test_a_producer_is_kept_until_unused_for_its_ttl() -> None:
    """[A-4]: a repeat is a use, a staged write never times out."""
    producers = Producers(ttl_ms=10)
    append(producers, 5, 5, 1)
    assert isinstance(ask(producers, 5, 5, now=NOW + 10), Pair)
    assert isinstance(ask(producers, 5, 5, now=NOW + 20), Pair)
    assert producers.sweep(NOW + 30) == 0
    assert ask(producers, 0, 0, now=NOW + 31) is Verdict.NEW
    assert len(producers) == 0
    pending = stage(producers, 1, 0)
    assert producers.sweep(NOW + 99) == 0
    assert ask(producers, 1, 0, now=NOW + 99) is pending


def test_a_sweep_goes_by_last_use_also_after_a_restore() -> None:
    producers = Producers(ttl_ms=10)
    producers.restore(1, [("late", 1, 0, 5, 1, NOW + 5), ("early", 1, 0, 1, 1, NOW)])
    producers.restore(2, [("early", 1, 0, 1, 1, NOW + 1)])
    assert producers.sweep(NOW + 12) == 2
    assert producers.sweep(NOW + 12) == 0
    assert producers.newest(1, "late") is not None


def test_removing_a_topic_forgets_its_producers_and_lets_go_who_waits() -> None:
    """[NAME-9, EPO-1]"""
    producers = Producers()
    append(producers, 1, 0, 1)
    append(producers, 1, 0, 1, topic=2)
    pending = stage(producers, 1, 1)
    heard = Heard().on(ask(producers, 1, 1))
    producers.remove(1)
    producers.remove(1)
    assert heard == [None]
    producers.publish(pending, first_seq=2, count=1, head_seq=2, ts=NOW)
    producers.fail(pending)
    assert len(producers) == 1
    assert ask(producers, 0, 0) is Verdict.NEW


def test_rows_are_as_of_the_checkpoint_until_the_next_one() -> None:
    """[S-219]"""
    producers = Producers()
    for index in range(5):
        append(producers, 1, index, 10 * index + 1, 10)
    assert producers.rows(1, 9) == []
    assert producers.rows(1, 25) == [("p", 1, 1, 11, 10, NOW)]
    producers.checkpointed(1, 25)
    assert producers.rows(1, 25) == [("p", 1, 1, 11, 10, NOW)]
    assert producers.rows(1, 30) == [("p", 1, 2, 21, 10, NOW)]
    assert producers.rows(1, 99) == [("p", 1, 4, 41, 10, NOW)]
    assert producers.rows(1, 15) == []
    producers.checkpointed(1, 99)
    assert producers.rows(1, 99) == [("p", 1, 4, 41, 10, NOW)]
    assert len(producers._topics[1]["p"].published) == 1


def test_pairs_of_an_ephemeral_topic_are_in_no_snapshot_and_do_not_pile_up() -> None:
    """[IDM-6], 06 §19 invariant 13"""
    producers = Producers()
    append(producers, 1, 0, 1)
    for index in range(1, 9):
        append(producers, 1, index, index + 1, logged=False)
    assert len(producers._topics[1]["p"].published) == 2
    assert isinstance(ask(producers, 1, 8), Pair)
    producers.checkpointed(1, 99)
    assert producers.rows(1, 99) == [("p", 1, 0, 1, 1, NOW)]
    append(producers, 1, 9, 10)
    producers.checkpointed(1, 99)
    assert producers.rows(1, 99) == [("p", 1, 9, 10, 1, NOW)]


def test_replay_goes_by_seq_whatever_the_pair() -> None:
    """[S-219]: a producer that was forgotten may have begun again below."""
    producers = Producers()
    producers.restore(1, [("p", 5, 9, 50, 1, NOW)])
    for _ in range(2):
        producers.replay(1, Producer("p", 5, 8), 40, 1, NOW)
        producers.replay(1, Producer("p", 5, 9), 50, 1, NOW)
        producers.replay(1, Producer("p", 1, 0), 90, 2, NOW + DAY)
    assert producers.newest(1, "p") == Pair(90, 2, 91, NOW + DAY, True, 1, 0)
    assert producers.rows(1, 90) == [("p", 5, 9, 50, 1, NOW)]


@pytest.mark.parametrize(
    ("first", "last", "index"), [(5, 9, 2), (6, 2**64 - 1, 2), (3, 9, 1), (1, 9, None), (4, 4, 3), (2, 2, 3), (7, 9, 3)]
)
def test_a_recovered_pair_never_points_at_a_missing_record(first: int, last: int, index: int | None) -> None:
    """[S-219], 06 §19 invariant 13, C19: the pair before it is kept again."""
    producers = Producers()
    producers.restore(1, [("p", 1, 1, 1, 2, NOW)])
    producers.replay(1, Producer("p", 1, 2), 3, 2, NOW)
    producers.replay(1, Producer("p", 1, 3), 5, 2, NOW)
    producers.drop_range(1, first, last)
    newest = producers.newest(1, "p")
    assert (newest.index if newest else None) == index
    assert len(producers) == (index is not None)
    assert ask(producers, 1, 1 if index is None else index + 1) is Verdict.NEW


def test_committed_versions_are_pairs_of_topic_0() -> None:
    """[A-19, S-287]: no seqs, the higher version counts."""
    producers = Producers()
    for version in (3, 5, 4):
        producers.replay(0, Producer("w", version, 0), 0, 0, NOW)
    newest = producers.newest(0, "w")
    assert newest is not None
    assert newest.epoch == 5
    assert producers.rows(0, 0) == [("w", 5, 0, 0, 0, NOW)]
    assert ask(producers, 4, 0, topic=0, id="w") is Verdict.OLDER
    assert ask(producers, 9, 0, topic=0, id="w") is Verdict.NEW
    assert producers.drop_range(0, 1, 2**64 - 1) == 0


def test_a_staged_write_keeps_no_other_producer_from_being_forgotten() -> None:
    """A-4: one that waits for its log for longer than the TTL is in front of those that are unused since."""
    producers = Producers(max_producers=2, ttl_ms=50)
    first = producers.stage(1, Producer("p", 0, 0), 1000)
    producers.stage(1, Producer("r", 0, 0), 1000)
    assert producers.check(1, Producer("p", 0, 0), 1000) is first
    producers.publish(first, first_seq=1, count=1, head_seq=1, ts=1000)
    assert producers.check(1, Producer("q", 0, 0), 1051) is Verdict.NEW
    assert len(producers) == 1


class ProducersModel(RuleBasedStateMachine):
    """One topic's producers against plain lists: FIFO publication, failures of everything behind, checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = Producers(max_producers=2, ttl_ms=50)
        self.now, self.head, self.ck = 1000, 0, 0
        self.fifo: list[tuple[str, tuple[int, int], Pending]] = []
        self.published: dict[str, list[tuple[int, int, int, int]]] = {}
        self.used: dict[str, int] = {}

    def staged(self, id: str) -> list[tuple[int, int]]:
        return [pair for of, pair, _ in self.fifo if of == id]

    def forget(self) -> None:
        for id in [id for id, used in self.used.items() if self.now - used > 50 and not self.staged(id)]:
            del self.used[id]
            self.published.pop(id, None)

    @rule(by=st.integers(0, 30))
    def clock(self, by: int) -> None:
        self.now += by

    @rule(id=st.sampled_from("pqr"), epoch=st.integers(0, 2), index=st.integers(0, 4))
    def ask(self, id: str, epoch: int, index: int) -> None:
        if id in self.used and self.now - self.used[id] > 50 and not self.staged(id):
            del self.used[id]
            self.published.pop(id, None)
        pairs = [row[:2] for row in self.published.get(id, [])] + self.staged(id)
        asked = (epoch, index)
        expected: object = "new"
        if not pairs:
            if len(self.used) >= 2:
                self.forget()
            if len(self.used) >= 2:
                expected = "limit"
        elif asked > pairs[-1]:
            expected = "gap" if epoch == pairs[-1][0] and index > pairs[-1][1] + 1 else "new"
        elif asked in self.staged(id):
            expected = "wait"
        else:
            expected = "duplicate" if asked == pairs[-1] else "older"
        assert self.told(id, asked) == expected
        if expected != "limit":
            if pairs or expected == "new":
                self.used[id] = max(self.now, self.used.get(id, 0))
        if expected == "new":
            pending = self.producers.stage(1, Producer(id, epoch, index), self.now)
            self.fifo.append((id, asked, pending))

    def told(self, id: str, asked: tuple[int, int]) -> str:
        try:
            answer = self.producers.check(1, Producer(id, *asked), self.now)
        except LimitReached:
            return "limit"
        except ProducerGap as gap:
            pairs = [row[:2] for row in self.published.get(id, [])] + self.staged(id)
            return "gap" if (gap.epoch, gap.index) == pairs[-1] else f"gap behind {pairs[-1]}"
        if isinstance(answer, Pair):
            assert (answer.first_seq, answer.count) == self.published[id][-1][2:]
            return "duplicate"
        return "wait" if isinstance(answer, Pending) else answer.value

    @precondition(lambda self: self.fifo)
    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        id, pair, pending = self.fifo.pop(0)
        first = self.head + 1
        self.head += count
        self.producers.publish(pending, first_seq=first, count=count, head_seq=self.head, ts=self.now)
        self.published.setdefault(id, []).append((*pair, first, count))

    @precondition(lambda self: self.fifo)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.fifo) - 1))
        behind, self.fifo = self.fifo[at:], self.fifo[:at]
        for _, _, pending in behind:
            self.producers.fail(pending)
        for id, _, _ in behind:
            if not self.staged(id) and id not in self.published:
                self.used.pop(id, None)

    @rule(back=st.integers(0, 4))
    def checkpoint(self, back: int) -> None:
        self.ck = max(self.ck, self.head - back)
        self.producers.checkpointed(1, self.ck)

    @rule()
    def crash(self) -> None:
        """A snapshot as of the checkpoint plus the frames behind it is the table again."""
        rows = self.producers.rows(1, self.ck)
        restored = Producers(max_producers=2, ttl_ms=50)
        restored.restore(1, rows)
        frames = [
            (first, id, epoch, index, count)
            for id, pairs in self.published.items()
            for epoch, index, first, count in pairs
        ]
        for first, id, epoch, index, count in sorted(frames):
            restored.replay(1, Producer(id, epoch, index), first, count, self.now)
        for id, pairs in self.published.items():
            newest = restored.newest(1, id)
            assert newest is not None
            assert (newest.epoch, newest.index, newest.first_seq, newest.count) == pairs[-1]

    @invariant()
    def agrees(self) -> None:
        assert len(self.producers) == len(self.used)
        rows = {row[0]: row[1:5] for row in self.producers.rows(1, self.ck)}
        expected = {
            id: below[-1]
            for id, pairs in self.published.items()
            if (below := [pair for pair in pairs if pair[2] + pair[3] - 1 <= self.ck])
        }
        assert rows == expected


ProducersModel.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestProducersModel = ProducersModel.TestCase


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100)), max_size=40), st.integers(0, 10))
def test_restoring_topic_by_topic_keeps_the_newest_of_all(found: list[tuple[int, int]], bound: int) -> None:
    """[A-3]: a table that shrank between two runs."""
    rows: dict[int, list[tuple[str, int, int, int]]] = {}
    for at, (topic, ts) in enumerate(sorted(found, key=lambda item: item[1]), 1):
        rows.setdefault(topic, []).append((f"k{at}", at, 1, ts * 1000 + at))
    keys = IdempotencyKeys(max_entries=bound)
    for topic, of_topic in rows.items():
        keys.restore(topic, of_topic)
    kept = {row for topic in rows for row in keys.rows(topic, 10**9)}
    everything = sorted((row for of_topic in rows.values() for row in of_topic), key=lambda row: row[3])
    assert kept == set(everything[len(everything) - min(bound, len(everything)) :])
