"""What an exception that nobody foresaw leaves behind: one answer, and nothing that stays taken for ever [ERR-6]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.unit.engine.kit import TOPIC, Store, everything
from tests.unit.engine.kit_queue import QUEUE, Queue
from topics.engine import append as appending
from topics.engine import copies, deadletter, leaselog, lifecycle, queue, retention, route
from topics.engine import delete as deleting
from topics.engine import read as reading
from topics.engine.deadletter import BATCH
from topics.engine.delete import Removal
from topics.engine.index import Index
from topics.engine.lease import Leases
from topics.engine.leaselog import SLICE
from topics.engine.queue import LISTED
from topics.errors import TopicsError, WalIo
from topics.model import AppendResult, RouterConfig, new
from topics.storage.shard import Shard


class Bug(Exception):
    """Nobody foresaw it."""


def breaks_at(number: int, real: Callable[..., Any], error: Exception | None = None) -> Callable[..., Any]:
    """The same, but the call of this number raises."""
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise error or Bug(f"call {number}")
        return real(*args, **options)

    return call


def is_internal(outcome: object) -> bool:
    """Whether this is how a bug is told: by an error of no class of its own, with the bug behind it."""
    return type(outcome) is TopicsError and isinstance(outcome.__cause__, Bug)


def asked(store: Queue, *seqs: int) -> queue.Ask:
    return queue.Ask.parse("w", seqs, None, store.engine.core.limits)


def start(store: Store, call: Callable[[Callable[[Any], None]], object]) -> list[Any]:
    """All answers that a call got until nothing was left to do."""
    answers: list[Any] = []
    with store.engine._owner:
        call(answers.append)
    return answers


@pytest.mark.parametrize("config", [{}, {"cap_records": 100}], ids=["at once", "capped"])
@pytest.mark.parametrize("place", ["tail", "ram"])
def test_a_lease_is_what_it_was_when_its_ack_cannot_be_staged(
    place: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ACK-5, ERR-6] Its holder may ack it again."""
    store = Queue(place, config=config)
    store.produce(2)
    assert store.claim(2) == [1, 2]
    monkeypatch.setattr(copies, "keep", breaks_at(1, copies.keep))
    (answer,) = start(store, lambda done: queue.ack(store.engine.core, QUEUE, asked(store, 1, 2), done))
    assert is_internal(answer)
    assert store.counts() == (0, 2, 0)
    assert store.engine.nack(QUEUE, "w", [2]).nacked == 1
    assert store.engine.ack(QUEUE, "w", [1]).acked == 1
    assert store.live() == [2]


def test_a_lease_whose_ack_could_not_be_staged_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """[LSE-2, ERR-6]"""
    store = Queue(config={"lease_ms": 1000})
    store.produce(1)
    assert store.claim() == [1]
    monkeypatch.setattr(copies, "keep", breaks_at(1, copies.keep))
    with pytest.raises(TopicsError):
        store.engine.ack(QUEUE, "w", [1])
    store.clock.advance(1001)
    assert store.claim(node="heir") == [1]


def test_a_job_whose_ack_met_the_disk_is_to_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ACK-5]"""
    store = Queue()
    store.produce(1)
    assert store.claim() == [1]
    monkeypatch.setattr(copies, "keep", breaks_at(1, copies.keep, OSError(5, "no")))
    with pytest.raises(WalIo):
        store.engine.ack(QUEUE, "w", [1])
    assert store.claim(node="heir") == [1]


def leased(count: int, **config: Any) -> Queue:
    """A queue with so many leases of `w`."""
    store = Queue(config={"lease_ms": 60_000, **config}, segment_max_events=10_000)
    store.produce(count)
    assert len(store.claim(count)) == count
    return store


def nack(store: Queue, seqs: range) -> list[Any]:
    return start(store, lambda done: queue.nack(store.engine.core, QUEUE, asked(store, *seqs), 0, done))


def extend(store: Queue, seqs: range) -> list[Any]:
    return start(store, lambda done: queue.extend(store.engine.core, QUEUE, asked(store, *seqs), 90_000, done))


CHANGES = {"nack": (nack, "release"), "extend": (extend, "extend")}


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("at", [1, SLICE + 1, 3 * SLICE], ids=["first", "second", "last"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_bug_in_any_stretch_of_a_change_is_answered_once(
    what: str, at: int, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ERR-6, P-10] What the call has changed so far stays changed; it says nothing of it."""
    change, verb = CHANGES[what]
    store = leased(3 * SLICE, leases_durable=durable)
    monkeypatch.setattr(Leases, verb, breaks_at(at, getattr(Leases, verb)))
    (answer,) = change(store, range(1, 3 * SLICE + 1))
    assert is_internal(answer)
    assert not isinstance(change(store, range(at, 3 * SLICE + 1))[0], Exception)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("what", CHANGES)
def test_a_bug_in_logging_any_stretch_of_a_change_is_answered_once(
    what: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ERR-6] Those that are logged report afterwards: nobody is told of them."""
    store = leased(3 * SLICE, leases_durable=True)
    monkeypatch.setattr(leaselog, "write", breaks_at(at, leaselog.write))
    (answer,) = CHANGES[what][0](store, range(1, 3 * SLICE + 1))
    assert is_internal(answer)


@pytest.mark.parametrize("what", CHANGES)
def test_a_bug_behind_the_sync_of_a_change_is_answered_once(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6] The answer is made when the log reports."""
    store = leased(2, leases_durable=True)
    made = "ExtendResult" if what == "extend" else "swept"
    monkeypatch.setattr(queue, made, breaks_at(1, getattr(queue, made)))
    (answer,) = CHANGES[what][0](store, range(1, 3))
    assert is_internal(answer)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_bug_in_any_stretch_of_a_listing_is_answered_once(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, QOB-4]"""
    store = leased(3 * LISTED)
    monkeypatch.setattr(Leases, "page", breaks_at(at, Leases.page))
    (answer,) = start(store, lambda done: queue.leases(store.engine.core, QUEUE, 0, 3 * LISTED, done))
    assert is_internal(answer)
    assert len(store.engine.leases(QUEUE, page_size=3 * LISTED).leases) == 3 * LISTED


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("what", ["_read", "_copies"])
def test_a_claim_is_answered_when_dead_letters_meet_a_bug(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DLQ-7, ERR-6] Its leases are in force, so it is told of them; the letters stay for a later pass."""
    store = Queue(config={"max_deliveries": 1, "dead_letter": "dead", "lease_ms": 1000}, max_claim=1000)
    store.produce(3 * BATCH)
    assert len(store.claim(3 * BATCH)) == 3 * BATCH
    store.clock.advance(1001)
    store.produce(1)
    monkeypatch.setattr(deadletter, what, breaks_at(at, getattr(deadletter, what)))
    waiting = store.begin_claim()
    assert waiting.seqs == [3 * BATCH + 1]
    stayed = list(range((at - 1) * BATCH + 1, at * BATCH + 1))
    assert store.live() == [*stayed, 3 * BATCH + 1]
    assert store.claim() == []
    assert store.live() == [3 * BATCH + 1]
    assert store.engine.state("dead").count == 3 * BATCH


def write_together(store: Store, count: int) -> list[list[Any]]:
    """Writes that are logged and published as one; all answers that each of them got."""
    core = store.engine.core
    answers: list[list[Any]] = [[] for _ in range(count)]
    with store.engine._owner:
        for n, told in enumerate(answers):
            write = appending.Write.prepare(TOPIC, [new(n)], core.limits, idempotency_key=f"k{n}")
            appending.append(core, write, told.append)
    return answers


def test_a_bug_in_publishing_one_write_is_no_other_writes_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6] Those in front were told already, those behind it are as visible as they are."""
    store = Store()
    store.put()
    keys = store.engine.core.keys
    monkeypatch.setattr(keys, "publish", breaks_at(2, keys.publish))
    (first,), (second,), (third,) = write_together(store, 3)
    assert is_internal(second)
    assert (first.first_seq, third.first_seq) == (1, 3)
    assert [one.data for one in everything(store.engine).records] == [0, 1, 2]
    assert store.engine.core.staged_bytes == 0


def test_a_write_to_a_routers_destination_that_met_a_bug_late_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[ERR-6, S-212] Its records are logged and visible: what was logged in front of them stays logged."""
    store = two_routers()
    keys = store.engine.core.keys
    with monkeypatch.context() as broken:
        broken.setattr(keys, "publish", breaks_at(1, keys.publish))
        write = appending.Write.prepare("b", [new(3)], store.engine.core.limits, idempotency_key="k")
        (answer,) = start(store, lambda done: appending.append(store.engine.core, write, done))
    assert is_internal(answer)
    assert store.engine.append("b", [new(4)], idempotency_key="k").first_seq == 6, "nobody waits for the one before"
    assert goes_on(store)


def test_who_waits_for_a_name_is_answered_when_his_turn_meets_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, NAME-5]"""
    store = Store()
    store.put()
    core = store.engine.core
    told: list[Any] = []

    def both(done: Callable[[Any], None]) -> None:
        lifecycle.delete(core, TOPIC, done)
        assert TOPIC in core.gates
        appending.append(core, appending.Write.prepare(TOPIC, [new(1)], core.limits, create=True), told.append)

    monkeypatch.setattr(appending, "_create", breaks_at(1, appending._create))
    (answer,) = start(store, both)
    assert not isinstance(answer, Exception)
    assert is_internal(*told)


def test_a_write_whose_followers_cannot_be_woken_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6] It is published and told by then."""
    store = Store()
    store.put()
    core = store.engine.core
    monkeypatch.setattr(core, "wake", breaks_at(1, core.wake))
    answers = write_together(store, 3)
    assert [type(outcome) for told in answers for outcome in told] == [AppendResult] * 3
    assert store.engine.append(TOPIC, [new(3)]).first_seq == 4


Call = Callable[[Store, Callable[[Any], None]], None]


def two_routers() -> Store:
    """Two routers copy from `a` into `b`, and what they copied is in memory only."""
    store = Store()
    store.put("a")
    store.put("b")
    for name in ("first", "second"):
        store.engine.put_router(name, {"source": "a", "dest": "b"})
    store.engine.append("a", [new(1), new(2)])
    assert len(everything(store.engine, "b").records) == 4
    return store


def goes_on(store: Store) -> bool:
    """Whether what is written to `a` still comes to `b`, as often as there are routers."""
    before = len(everything(store.engine, "b").records)
    store.engine.append("a", [new("next")])
    start(store, lambda done: None)
    return store.engine.core.names["b"].count - before == len(store.engine.routers())


def replace_router(store: Store, done: Callable[[Any], None]) -> None:
    config = RouterConfig.parse({"source": "a", "dest": "b", "preserve_tag": False})
    route.put(store.engine.core, "first", config, done)


def delete_router(store: Store, done: Callable[[Any], None]) -> None:
    route.delete(store.engine.core, "first", done)


def delete_records(store: Store, done: Callable[[Any], None]) -> None:
    deleting.delete(store.engine.core, "a", Removal(None, None, (1,)), False, done)


PAUSING = {"replace": replace_router, "delete": delete_router, "delete records": delete_records}


@pytest.mark.parametrize("what", PAUSING)
def test_forwarding_goes_on_when_an_answer_cannot_be_given(what: str) -> None:
    """[ERR-6, S-212] It was paused once, and is resumed once."""
    store = two_routers()
    answers: list[Any] = []

    def told(outcome: Any) -> None:
        answers.append(outcome)
        raise Bug("in giving the answer")

    try:
        with store.engine._owner:
            PAUSING[what](store, told)
    finally:
        store.engine.core.owner.run()
    assert len(answers) == 1
    assert goes_on(store)


@pytest.mark.parametrize(
    ("what", "module", "name"),
    [
        ("replace", copies, "log_copies"),
        ("replace", route, "log"),
        ("delete", lifecycle, "keep_copies"),
        ("delete", route, "log"),
        ("delete records", lifecycle, "keep_copies"),
        ("delete records", deleting, "_stage"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_forwarding_goes_on_when_a_change_meets_a_bug(
    what: str, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ERR-6, S-43] The change is answered, and the next one finds everything as it was."""
    store = two_routers()
    monkeypatch.setattr(module, name, breaks_at(1, getattr(module, name)))
    (answer,) = start(store, lambda done: PAUSING[what](store, done))
    assert is_internal(answer)
    assert len(store.engine.routers()) == 2
    assert goes_on(store)
    (answer,) = start(store, lambda done: PAUSING[what](store, done))
    assert not isinstance(answer, Exception)
    assert goes_on(store)


def test_a_router_that_a_bug_kept_from_being_logged_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """[RTR-5, ERR-6] Nor do topics that were made for it."""
    store = Store()
    store.put("a")
    monkeypatch.setattr(route, "log", breaks_at(1, route.log))
    (answer,) = start(store, lambda done: replace_router(store, done))
    assert is_internal(answer)
    assert (store.engine.routers(), store.engine.core.routers.feeding) == ([], {})
    assert "b" not in store.engine.topics()
    assert store.engine.put_router("first", {"source": "a", "dest": "b"})[0]
    assert goes_on(store)


@pytest.mark.parametrize("where", ["keep_copies", "_log_deletion", "control_frame", "submit", "remove_files"])
def test_a_name_is_free_again_when_its_deletion_meets_a_bug(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, NAME-5] Whoever asks for the name next is answered."""
    store = Store()
    store.engine.append(TOPIC, [new(1)])
    with monkeypatch.context() as broken:
        target = Shard if where == "submit" else lifecycle
        broken.setattr(target, where, breaks_at(1, getattr(target, where)))
        (answer,) = start(store, lambda done: lifecycle.delete(store.engine.core, TOPIC, done))
    assert isinstance(answer, TopicsError)
    assert not store.engine.core.gates
    store.engine.append(TOPIC, [new(2)], create=True)
    assert store.engine.delete_topic(TOPIC)


def test_nothing_stays_paused_when_what_follows_the_copies_of_moved_records_fails() -> None:
    """[RTR-8, ERR-6]"""
    store = Store()
    engine = store.engine
    engine.put_topic("copy", {})
    engine.put_router("r", RouterConfig(source=TOPIC, dest="copy"))
    engine.append(TOPIC, [new(1)])
    (edge,) = engine.core.routers.fed[engine.core.names[TOPIC].id]

    def fails(outcome: object) -> None:
        raise Bug("behind the copies")

    with engine._owner:
        copies.keep_moved(engine.core, engine.core.names[TOPIC], 1, 1, fails)
    assert edge.paused == 0
    engine.append(TOPIC, [new(2)])
    assert [one.data for one in engine.read("copy").records] == [1, 2]


def test_many_changes_of_routers_in_a_row_are_all_answered() -> None:
    """[S-43] Those that end at once do not stand on each other's shoulders."""
    store = Store()
    store.put("a")
    store.put("b")
    core = store.engine.core
    answers: list[Any] = []
    with store.engine._owner:
        route.put(core, "r", RouterConfig("a", "b"), answers.append)
        for n in range(2_000):
            route.delete(core, f"none{n}", answers.append)
    assert len(answers) == 2_001
    assert start(store, lambda done: route.delete(core, "r", done)) == [True]


@pytest.mark.parametrize("where", ["control_frame", "submit"])
def test_a_name_is_free_again_when_its_creation_meets_a_bug(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, NAME-5] Whoever asks for the name next is answered."""
    store = Store()
    store.put()
    core = store.engine.core
    with monkeypatch.context() as broken:
        target = Shard if where == "submit" else lifecycle
        broken.setattr(target, where, breaks_at(1, getattr(target, where)))
        (answer,) = start(store, lambda done: lifecycle.put(core, "fresh", None, done))
    assert is_internal(answer)
    assert (core.gates, core.creating) == ({}, set())
    store.engine.append("fresh", [new(1)], create=True)


def aged() -> Queue:
    """A queue with jobs that are too old, which nobody has noticed yet."""
    store = Queue(config={"ttl_ms": 1000})
    store.produce(3)
    store.clock.advance(2000)
    return store


def test_a_bug_before_floors_are_logged_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, TTL-3]"""
    store = aged()
    with monkeypatch.context() as broken:
        broken.setattr(retention, "control_frame", breaks_at(1, retention.control_frame))
        (answer,) = start(store, lambda done: reading.state(store.engine.core, QUEUE, False, done))
    assert is_internal(answer)
    assert store.counts() == (0, 0, 0)


def test_a_bug_in_raising_floors_is_told_to_all_who_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, TTL-3] The queue goes on."""
    store = aged()
    core = store.engine.core

    def three(done: Callable[[Any], None]) -> None:
        reading.state(core, QUEUE, False, done)
        reading.state(core, QUEUE, False, done)
        queue.claim(core, QUEUE, queue.Claim("w", 1, None), done)

    with monkeypatch.context() as broken:
        broken.setattr(retention, "_raise", breaks_at(1, retention._raise))
        answers = start(store, three)
    assert [is_internal(one) for one in answers] == [True] * 3
    store.produce(1)
    assert store.claim() == [4]


@pytest.mark.parametrize(("where", "delivered"), [("places_in_memory", True), ("run_in_memory", False)])
def test_jobs_that_a_pass_had_chosen_are_to_be_had_when_it_meets_a_bug(
    where: str, delivered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[CLM-2, ERR-6]"""
    store = Queue(config={"lease_ms": 1000})
    store.produce(5)
    if delivered:
        assert len(store.claim(5)) == 5
        store.clock.advance(1001)
    with monkeypatch.context() as broken:
        broken.setattr(Index, where, breaks_at(1, getattr(Index, where)))
        with pytest.raises(TopicsError):
            store.claim(5)
    assert store.claim(5) == [1, 2, 3, 4, 5]


def test_jobs_that_are_due_move_when_the_end_of_a_pass_met_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """[DLQ-7, ERR-6]"""
    store = Queue(config={"lease_ms": 1000, "max_deliveries": 1, "dead_letter": "dead"})
    store.produce(3)
    assert len(store.claim(3)) == 3
    store.clock.advance(1001)
    with monkeypatch.context() as broken:
        broken.setattr(queue.Claims, "watch", breaks_at(1, queue.Claims.watch))
        with pytest.raises(TopicsError):
            store.claim(3)
    assert store.claim(3) == []
    assert store.engine.state("dead").count == 3


def test_workers_are_fed_again_when_a_feed_met_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """[WRK-3, ERR-6]"""
    store = Queue(config={"lease_ms": 1000})
    store.produce(1)
    assert store.claim() == [1]
    worker = store.work(node="x")
    store.clock.advance(1001)
    claims = store.engine.core.names[QUEUE].claims
    assert claims is not None
    with monkeypatch.context() as broken:
        broken.setattr(Leases, "expire", breaks_at(1, Leases.expire))
        with contextlib.suppress(Bug), store.engine._owner:
            claims.stir()
    store.engine.core.owner.run()
    with store.engine._owner:
        claims.stir()
    assert [job.seq for job in worker.jobs] == [1]


def test_what_waits_in_the_line_of_a_topic_goes_on_behind_an_answer_that_cannot_be_given() -> None:
    """[A-1, ERR-6]"""
    store = Store()
    store.put()
    core = store.engine.core
    topic = core.names[TOPIC]
    answers: list[Any] = []

    def fails(outcome: object) -> None:
        raise Bug("in giving the answer")

    with store.engine._owner:
        topic.framing = True
        for told in (fails, answers.append, answers.append):
            core.in_line(topic, partial(told, None), told)
        topic.framing = False
        core.advance(topic)
    assert answers == [None, None]
    with store.engine._owner:
        topic.framing = True
        for told in (fails, answers.append):
            core.in_line(topic, partial(told, None), told)
        topic.framing = False
        core.refuse_line(topic, WalIo(OSError(5, "no")))
    assert len(answers) == 3
