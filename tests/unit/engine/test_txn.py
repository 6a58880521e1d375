"""Staged writes in the engine: every rule of 02 §9 that needs no socket, on a simulated disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine import kit
from topics.engine import append as appending
from topics.engine import lifecycle, txn, writers
from topics.engine import read as reading
from topics.engine.engine import Engine
from topics.errors import (
    BatchTooLarge,
    EngineClosed,
    LimitReached,
    RecordTooLarge,
    StorageFull,
    TopicFull,
    TopicNotFound,
    TxnCommitted,
    TxnConflict,
    TxnIncomplete,
    WalFull,
    WalIo,
)
from topics.model import CommitResult, Producer, new
from topics.storage.staging import CHUNK_COST

ID = "w"


@pytest.fixture(params=["tail", "ram"])
def store(request: pytest.FixtureRequest) -> Iterator[kit.Store]:
    made = kit.Store(request.param)
    yield made
    made.engine.close()
    made.check_order()


def stage(engine: Engine, *values: object, part: str = "p", chunk: int = 0, version: int = 1, topic: str = "t") -> Any:
    return engine.stage(ID, version, part, chunk, topic, [new(value) for value in values])


def commit(engine: Engine, *parts: tuple[str, int, int], version: int = 1, **more: Any) -> CommitResult:
    return engine.commit_staged(ID, version, parts or [("p", 1, 1)], **more)


def topics(result: CommitResult) -> list[tuple[Any, ...]]:
    return [(one.topic, one.first_seq, one.last_seq, one.count, one.created) for one in result.topics]


# -- stage ------------------------------------------------------------------------------------------------------------


def test_nothing_of_what_is_staged_can_be_seen(store: kit.Store) -> None:
    """TXN-1: nothing becomes visible, no seq is taken, no topic is created, nothing is synced."""
    engine = store.put("old")
    syncs = engine.metrics()["topics_wal_fsyncs_total"]
    assert stage(engine, 1, 2, 3, topic="old") == (result := stage(engine, 4, 5, 6, part="q", topic="new"))
    assert (result.staged, result.deduped) == (3, False)
    assert list(engine.topics()) == ["old"]
    assert engine.state("old").head_seq == 0
    assert engine.metrics()["topics_wal_fsyncs_total"] == syncs
    assert kit.write(engine, "x", name="old").first_seq == 1


def test_the_same_chunk_again_is_known_and_other_records_under_its_number_are_a_conflict(store: kit.Store) -> None:
    """TXN-2."""
    engine = store.engine
    stage(engine, 1, 2)
    assert stage(engine, 1, 2).deduped
    for wrong in ({"values": (1,)}, {"values": (1, 2, 3)}, {"values": (2, 1)}, {"values": (1, 2), "topic": "u"}):
        values = wrong.pop("values")
        with pytest.raises(TxnConflict) as caught:
            stage(engine, *values, **wrong)  # type: ignore[misc,arg-type]
        assert (caught.value.part, caught.value.expected) == ("p", 1)
    with pytest.raises(TxnConflict):
        engine.stage(ID, 1, "p", 0, "t", [new(1, tag="x"), new(2)])
    assert not stage(engine, 3, chunk=1).deduped
    assert stage(engine, 1, 2).deduped
    assert [one.bytes for one in engine.writer(ID).staged] == [
        sum(38 + 6 + 1 for _ in range(3)),
    ]


@pytest.mark.parametrize(("staged", "chunk"), [(0, 1), (1, 2), (1, 7)])
def test_a_chunk_number_that_skips_one_is_a_conflict(store: kit.Store, staged: int, chunk: int) -> None:
    """TXN-2: detail has the part and the next number; nothing is left of it."""
    engine = store.engine
    for n in range(staged):
        stage(engine, n, chunk=n)
    with pytest.raises(TxnConflict) as caught:
        stage(engine, "x", chunk=chunk)
    assert (caught.value.part, caught.value.expected) == ("p", staged)
    assert len(engine.writer(ID).staged) == (1 if staged else 0)


def test_chunks_of_a_part_go_to_any_topics_and_parts_are_apart(store: kit.Store) -> None:
    """02 §9.1: chunk numbers run over all topics of a part; TXN-6: parts in the order given, chunks in order."""
    engine = store.engine
    stage(engine, "a0", part="a", chunk=0, topic="t")
    stage(engine, "b0", part="b", chunk=0, topic="u")
    stage(engine, "a1", part="a", chunk=1, topic="u")
    stage(engine, "b1", "b1'", part="b", chunk=1, topic="t")
    stage(engine, "a2", part="a", chunk=2, topic="t")
    result = commit(engine, ("b", 2, 3), ("a", 3, 3))
    assert sorted(topics(result)) == [("t", 1, 4, 4, True), ("u", 1, 2, 2, True)]
    assert kit.everything(engine, "t").values == ["b1", "b1'", "a0", "a2"]
    assert kit.everything(engine, "u").values == ["b0", "a1"]


def test_a_committed_version_and_those_below_take_no_more_chunks(store: kit.Store) -> None:
    """TXN-3: the highest committed version is told."""
    engine = store.engine
    stage(engine, 1, version=5)
    commit(engine, version=5)
    for version in (0, 4, 5):
        with pytest.raises(TxnCommitted) as caught:
            stage(engine, 1, version=version)
        assert caught.value.version == 5
    assert stage(engine, 1, version=6).staged == 1


def test_staging_is_bounded(store: kit.Store) -> None:
    """TXN-4, RES-3: 429 `max_staged_bytes`; a refused chunk leaves nothing, dropping one makes room."""
    store.options["max_staged_bytes"] = 2 * (CHUNK_COST + 45)
    engine = store.reopen()
    stage(engine, 1)
    stage(engine, 2, chunk=1)
    for more in ({"chunk": 2}, {"part": "q"}, {"version": 2}):
        with pytest.raises(LimitReached) as caught:
            stage(engine, 3, **more)  # type: ignore[arg-type]
        assert (caught.value.limit, caught.value.max) == ("max_staged_bytes", 2 * (CHUNK_COST + 45))
    assert [one.version for one in engine.writer(ID).staged] == [1]
    engine.abort_staged(ID, 1)
    assert stage(engine, 3, version=2).staged == 1


def test_a_version_that_nobody_stages_to_is_dropped_when_its_time_is_over(store: kit.Store) -> None:
    """TXN-4: `TOPICS_STAGE_TTL_MS`, counted from the last chunk; its files go too."""
    store.options["stage_ttl_ms"] = 10_000
    engine = store.reopen()
    stage(engine, 1)
    store.clock.advance(9_000)
    stage(engine, 2, chunk=1)
    store.clock.advance(10_000)
    engine.tick()
    assert [one.parts for one in engine.writer(ID).staged] == [1]
    store.clock.advance(1)
    with pytest.raises(TxnIncomplete) as caught:
        commit(engine, ("p", 2, 2))
    assert caught.value.missing == ["p"]
    assert engine.writer(ID).staged == ()
    stage(engine, 1)
    store.pass_time(12_000)
    assert engine.core.staging.cost == 0
    assert [path for path in store.files() if path.startswith("staging/")] == []


@kit.after_every_stop
def test_a_restart_drops_all_staging(stop: str) -> None:
    """TXN-4, S-286: whatever the way it ended; no file of it stays."""
    store = kit.Store()
    stage(store.engine, 1)
    stage(store.engine, 1, version=9, part="q")
    engine = store.stop(stop)
    assert engine.writer(ID).staged == ()
    assert [path for path in store.files() if path.startswith("staging/")] == []
    with pytest.raises(TxnIncomplete):
        commit(engine)


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("id", ["", "x" * 129, "é" * 65, 5, None, "\ud800"]),
        ("version", [-1, 2**64, True, "1", 1.0, None]),
        ("part", ["", "x" * 129, "a/b", "a b", "é", None, 3, "a\n"]),
        ("chunk", [-1, 2**32, True, "0", None]),
        ("topic", ["", "-x", "$other", "a b", None, "x" * 300]),
    ],
)
def test_a_place_that_is_none_is_refused(store: kit.Store, what: str, values: list[Any]) -> None:
    """02 §9.1: the types and bounds of the table."""
    right: dict[str, Any] = {"id": ID, "version": 1, "part": "p", "chunk": 0, "topic": "t"}
    for value in values:
        with kit.invalid_request():
            store.engine.stage(**{**right, what: value}, records=[new(1)])
    assert store.engine.writer(ID).staged == ()


def test_records_of_a_chunk_meet_the_limits_of_a_write(store: kit.Store) -> None:
    """02 §9.1: same limits and checks as a write; nothing is staged of a chunk that breaks one."""
    engine, limits = store.engine, store.engine.core.limits
    with kit.invalid_request():
        engine.stage(ID, 1, "p", 0, "t", [])
    with pytest.raises(BatchTooLarge):
        engine.stage(ID, 1, "p", 0, "t", [new(0)] * (limits.max_batch_records + 1))
    with pytest.raises(RecordTooLarge):
        engine.stage(ID, 1, "p", 0, "t", [new("x" * limits.max_record_bytes)])
    with kit.invalid_request():
        engine.stage(ID, 1, "p", 0, "t", [new(1, tag="x" * 257)])
    with kit.invalid_request():
        engine.stage(ID, 1, "p", 0, "t", [{"data": b"{"}])
    assert engine.writer(ID).staged == ()
    assert stage(engine, 1).staged == 1


def test_parts_may_have_any_name_that_the_rule_allows() -> None:
    """S-10: names of parts are no paths; two that differ in case only are two."""
    store = kit.Store()
    names = ["..", ".", "out", "A", "a", "x" * 128, "-", "part-0000000000000001"]
    for name in names:
        stage(store.engine, name, part=name)
    commit(store.engine, *((name, 1, 1) for name in names))
    assert kit.everything(store.engine).values == names


def test_the_batch_node_is_that_of_records_that_name_none(store: kit.Store) -> None:
    """02 §9.1, §4: `node` as in a write; tags, nodes and meta come through."""
    records = [new({"k": 1}, tag="a", meta={"m": 1}), new(2, node="own"), new(None)]
    store.engine.stage(ID, 1, "p", 0, "t", records, node="batch")
    commit(store.engine, ("p", 1, 3))
    seen = kit.everything(store.engine).records
    assert [(one.data, one.tag, one.node, one.meta) for one in seen] == [
        ({"k": 1}, "a", "batch", {"m": 1}),
        (2, None, "own", None),
        (None, None, "batch", None),
    ]
    assert store.engine.delete("t", match="a").deleted == 1


@pytest.mark.parametrize(("error", "kind"), [("ENOSPC", StorageFull), ("EDQUOT", StorageFull), ("EIO", WalIo)])
@pytest.mark.parametrize("op", ["open", "pwrite", "mkdir"])
def test_a_chunk_that_cannot_be_written_leaves_nothing_and_may_be_sent_again(op: str, error: str, kind: Any) -> None:
    """S-286: no space is `StorageFull`; the room it took is given back."""
    store = kit.Store()
    store.fail("makedirs" if op == "mkdir" else op, error, path="staging")
    with pytest.raises(kind):
        stage(store.engine, 1)
    assert store.engine.core.staging.cost == 0
    assert stage(store.engine, 1).deduped is False
    commit(store.engine)
    assert kit.everything(store.engine).values == [1]


def test_a_chunk_that_was_written_in_part_does_not_come_through() -> None:
    """S-286: what a failed attempt left is overwritten by the next."""
    store = kit.Store()
    stage(store.engine, "first")
    store.fail("pwrite", "short", path="staging")
    store.fail("pwrite", "EIO", path="staging", index=2)
    with pytest.raises(WalIo):
        stage(store.engine, "longer than what follows", chunk=1)
    stage(store.engine, "short", chunk=1)
    commit(store.engine, ("p", 2, 2))
    assert kit.everything(store.engine).values == ["first", "short"]


def test_staging_keeps_away_from_the_last_of_the_disk() -> None:
    """S-80, S-286: the free space that the log keeps is not for staging."""
    store = kit.Store(min_free_bytes=1000)
    store.sim.capacity = sum(map(len, store.sim.files().values())) + 4096
    with pytest.raises(StorageFull):
        stage(store.engine, "x" * 20_000)
    assert store.engine.writer(ID).staged == ()


# -- commit -----------------------------------------------------------------------------------------------------------


def test_a_commit_names_exactly_what_is_staged(store: kit.Store) -> None:
    """TXN-5: every part complete and its counts equal, else `txn_incomplete` names it; nothing is published."""
    engine = store.put()
    stage(engine, 1, 2)
    stage(engine, 3, chunk=1)
    stage(engine, 4, part="q")
    for parts, missing in (
        ([("p", 1, 2)], ["p"]),
        ([("p", 2, 2)], ["p"]),
        ([("p", 3, 3)], ["p"]),
        ([("p", 2, 3), ("none", 1, 1)], ["none"]),
        ([("none", 1, 1), ("q", 1, 2)], ["none", "q"]),
        ([(f"n{n}", 1, 1) for n in range(50)], [f"n{n}" for n in range(20)]),
    ):
        with kit.nothing_changes(engine), pytest.raises(TxnIncomplete) as caught:
            commit(engine, *parts)
        assert caught.value.missing == missing
    assert topics(commit(engine, ("p", 2, 3))) == [("t", 1, 3, 3, False)]


def test_parts_that_are_not_named_are_dropped_with_the_commit(store: kit.Store) -> None:
    """TXN-9: as are versions below, which nobody can commit any more."""
    engine = store.engine
    for version in (1, 2, 3):
        stage(engine, version, version=version)
        stage(engine, "not named", part="q", version=version)
    commit(engine, version=2)
    assert [one.version for one in engine.writer(ID).staged] == [3]
    assert kit.everything(engine).values == [2]
    assert len([path for path in store.files() if path.startswith("staging/")]) == (0 if store.place == "ram" else 2)


def test_a_part_without_rows_and_a_commit_without_parts_are_fine(store: kit.Store) -> None:
    """TXN-5: a producer that had no rows has staged nothing."""
    engine = store.engine
    stage(engine, 1)
    assert topics(commit(engine, ("empty", 0, 0), ("p", 1, 1))) == [("t", 1, 1, 1, True)]
    assert topics(commit(engine, ("empty", 0, 0), version=2)) == []
    assert engine.commit_staged(ID, 3, []).topics == ()
    assert engine.writer(ID).version == 3


def test_records_get_consecutive_seqs_and_one_ts(store: kit.Store) -> None:
    """TXN-6: behind what the topic has, in order; one `$ts`."""
    engine = store.put()
    kit.each(engine, 3)
    store.clock.advance(500)
    stage(engine, *range(10))
    stage(engine, *range(10, 20), chunk=1)
    store.clock.advance(500)
    assert topics(commit(engine, ("p", 2, 20))) == [("t", 4, 23, 20, False)]
    seen = kit.everything(engine).records[3:]
    assert [one.seq for one in seen] == list(range(4, 24))
    assert {one.ts for one in seen} == {store.clock.now_ms()}
    assert kit.write(engine, "behind").first_seq == 24


def test_a_committed_version_is_answered_again_and_appends_nothing(store: kit.Store) -> None:
    """TXN-7: `topics` of the newest version, nothing of older ones; a lower version is never an error."""
    engine = store.engine
    for version in (3, 7):
        stage(engine, version, version=version)
        stage(engine, version, part="q", version=version, topic="u")
        commit(engine, ("p", 1, 1), ("q", 1, 1), version=version)
    again = commit(engine, ("p", 1, 1), ("q", 1, 1), version=7)
    assert again.deduped
    assert topics(again) == [("t", 2, 2, 1, False), ("u", 2, 2, 1, False)]
    for version in (0, 3, 5):
        assert commit(engine, version=version) == CommitResult(version, True, ())
    assert kit.everything(engine).values == [3, 7]


def test_concurrent_commits_of_one_version_append_once() -> None:
    """TXN-7: one appends, the others wait and are deduped; a commit of a higher version comes behind."""
    store = kit.Store()
    engine = store.engine
    core, answers = engine.core, list[Any]()
    stage(engine, 1)
    stage(engine, 2, version=2)
    with engine._owner:
        for version in (1, 1, 1, 2, 1):
            asked = txn.Commit.parse(ID, version, [("p", 1, 1)], None, None, "auto", core.limits)
            txn.commit(core, asked, answers.append)
        txn.abort(core, ID, 2, answers.append)
        assert answers == []
    assert [one.deduped for one in answers[:5]] == [False, True, True, False, True]
    assert answers[5].state == "committed"
    assert kit.everything(engine).values == [1, 2]


def test_threads_that_commit_the_same_version_are_told_the_same(tmp_path: Any) -> None:
    """TXN-7, on a real disk with real threads."""
    with Engine.open(str(tmp_path)) as engine:
        stage(engine, *range(50))
        futures = [kit.spawn(lambda: commit(engine, ("p", 1, 50))) for _ in range(8)]
        results = kit.finish(futures)
        assert sorted(one.deduped for one in results) == [False] + [True] * 7
        assert {(one.topics[0].first_seq, one.topics[0].last_seq) for one in results} == {(1, 50)}
        assert engine.state("t").head_seq == 50


def test_a_topic_is_created_like_by_a_write(store: kit.Store) -> None:
    """TXN-5, 01 §2.1: `create`, `config` and `auto_create` decide; nothing is created by what is refused."""
    engine = store.engine
    for more in ({"create": False}, {"config": {"auto_create": False}}, {"create": False, "config": {}}):
        stage(engine, 1)
        with kit.nothing_changes(engine), pytest.raises(TopicNotFound) as caught:
            commit(engine, **more)  # type: ignore[arg-type]
        assert caught.value.topic == "t"
    with kit.nothing_changes(engine), kit.invalid_request():
        commit(engine, config={"type": "queue", "dead_letter": "t"})
    result = commit(engine, config={"type": "queue", "durability": "fsync"})
    assert topics(result) == [("t", 1, 1, 1, True)]
    assert engine.state("t").config.type == "queue"
    assert [job.seq for job in engine.claim("t", "n").jobs] == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parts", None), ("parts", "p"), ("parts", [5]), ("parts", [{"part": "p"}]),
        ("parts", [{"part": "p", "chunks": True, "records": 1}]),
        ("parts", [{"part": "a/b", "chunks": 1, "records": 1}]),
        ("parts", [{"part": "p", "chunks": 1, "records": 1}] * 2), ("parts", [("p", 1, 1)] * 100_001),
        ("version", -1), ("version", "1"), ("id", ""), ("create", 1), ("config", 5), ("config", {"type": "x"}),
        ("attach", "maybe"), ("attach", None),
    ],
)  # fmt: skip
def test_a_commit_of_wrong_types_is_refused(store: kit.Store, name: str, value: Any) -> None:
    """TXN-5: types first, 100 000 parts at most."""
    right = {"id": ID, "version": 1, "parts": [], "create": None, "config": None, "attach": "auto"}
    with kit.invalid_request():
        txn.Commit.parse(**{**right, name: value}, limits=store.engine.core.limits)


def test_caps_and_quota_are_judged_over_all_topics_together(store: kit.Store) -> None:
    """TXN-5: one full topic refuses all of them; what is refused publishes nothing and stays staged."""
    store.options["max_total_bytes"] = 1000
    engine = store.reopen()
    store.put("small", discard="reject", cap_records=3)
    store.put("open")
    kit.each(engine, 2, name="small")
    stage(engine, 1, 2, topic="small")
    stage(engine, 1, part="q", topic="open")
    stage(engine, *range(4), part="huge", topic="small")
    stage(engine, "x" * 600, part="r", topic="open")
    stage(engine, "x" * 600, part="s", topic="other")
    for parts, kind in (
        ([("p", 1, 2), ("q", 1, 1)], TopicFull),
        ([("q", 1, 1), ("huge", 1, 4)], RecordTooLarge),
        ([("r", 1, 1), ("s", 1, 1)], LimitReached),
    ):
        with kit.nothing_changes(engine, "small", "open"), pytest.raises(kind):
            commit(engine, *parts)
        assert engine.core.staged_bytes == 0
    engine.delete("small", before_seq=2)
    assert sorted(topics(commit(engine, ("p", 1, 2), ("q", 1, 1)))) == [
        ("open", 1, 1, 1, False),
        ("small", 3, 4, 2, False),
    ]


def test_what_would_never_fit_the_topic_it_creates_creates_nothing(store: kit.Store) -> None:
    """TXN-5: caps come with `config`; `max_topics` counts all that are absent."""
    store.options["max_topics"] = 2
    engine = store.reopen()
    stage(engine, 1, 2)
    with kit.nothing_changes(engine), pytest.raises(RecordTooLarge):
        commit(engine, ("p", 1, 2), config={"discard": "reject", "cap_records": 1})
    for n in range(3):
        stage(engine, n, part="q", chunk=n, topic=f"t{n}")
    with kit.nothing_changes(engine), pytest.raises(LimitReached, match="max_topics"):
        commit(engine, ("q", 3, 3))
    assert len(topics(commit(engine, ("p", 1, 2)))) == 1


def test_the_bound_of_producers_counts_the_topics_and_the_writer(store: kit.Store) -> None:
    """A-19, A-4: every topic touched gets a pair, and so does the writer."""
    store.options["max_producers"] = 3
    engine = store.reopen()
    for n in range(3):
        stage(engine, n, chunk=n, topic=f"t{n}")
    with kit.nothing_changes(engine), pytest.raises(LimitReached, match="max_producers"):
        commit(engine, ("p", 3, 3))
    stage(engine, 0, part="q", topic="t0")
    stage(engine, 1, part="q", chunk=1, topic="t1")
    assert len(topics(commit(engine, ("q", 2, 2)))) == 2


def test_caps_that_discard_old_records_evict_behind_the_commit(store: kit.Store) -> None:
    """TXN-6, S-260: a batch larger than the cap leaves its newest records, and the floor is told."""
    engine = store.put(cap_records=4)
    kit.each(engine, 2)
    stage(engine, *range(10))
    commit(engine, ("p", 1, 10))
    seen = kit.everything(engine)
    assert seen.seqs == [9, 10, 11, 12]
    assert seen.ranges == [(1, 8, "cap")]


def test_every_topic_gets_the_pair_of_the_writer(store: kit.Store) -> None:
    """A-19: a producer's write at or below (id, version, 0) is known there."""
    engine = store.put()
    stage(engine, 1, version=4)
    commit(engine, version=4)
    again = engine.append("t", [new("x")], producer={"id": ID, "epoch": 4, "index": 0})
    assert (again.deduped, again.first_seq) == (True, 1)
    assert engine.append("t", [new("y")], producer={"id": ID, "epoch": 9, "index": 0}).first_seq == 2
    stage(engine, 2, version=5)
    with kit.nothing_changes(engine), pytest.raises(TxnCommitted):
        commit(engine, version=5)


def test_a_commit_reaches_ephemeral_topics_and_logged_ones_together() -> None:
    """TXN-6: records of an `ephemeral` topic appear with the version, and go with the process."""
    store = kit.Store()
    engine = store.put("quick", durability="ephemeral")
    store.put("kept")
    kit.write(engine, "before", name="quick")
    stage(engine, 1, 2, topic="quick")
    stage(engine, 3, chunk=1, topic="kept")
    assert sorted(topics(commit(engine, ("p", 2, 3)))) == [("kept", 1, 1, 1, False), ("quick", 2, 3, 2, False)]
    assert kit.everything(engine, "quick").values == ["before", 1, 2]
    kit.write(engine, "behind", name="quick")
    engine = store.kill()
    assert kit.everything(engine, "quick").values == []
    assert commit(engine, ("p", 2, 3)).deduped
    assert kit.everything(engine, "kept").values == [3]


def test_long_polls_and_queues_are_woken_by_a_commit(store: kit.Store) -> None:
    """S-287, S-107: published like any write."""
    engine = store.put("jobs", type="queue")
    store.put()
    got: list[Any] = []
    core = engine.core
    query = reading.Query.parse("t", 0, None, 10, 1 << 20, None, 30_000, core.limits)
    with engine._owner:
        reading.read(core, query, got.append)
    stage(engine, 1)
    stage(engine, 2, chunk=1, topic="jobs")
    commit(engine, ("p", 2, 2))
    engine.tick()
    assert [kit.values(one) for one in got] == [[1]]
    assert [job.data for job in engine.claim("jobs", "n").jobs] == [2]


def test_router_copies_of_committed_records_are_made_and_destinations_may_be_committed_to(store: kit.Store) -> None:
    """S-287, S-212 (c): a source's rows are copied; a destination takes rows between copies."""
    engine = store.put("a")
    store.put("b")
    engine.put_router("r", {"source": "a", "dest": "b"})
    kit.write(engine, "a1", name="a")
    stage(engine, "a2", "a3", topic="a")
    stage(engine, "b1", chunk=1, topic="b")
    commit(engine, ("p", 2, 3))
    engine.router("r")
    seen = kit.everything(engine, "b")
    assert sorted(seen.values) == ["a1", "a2", "a3", "b1"]
    assert seen.seqs == [1, 2, 3, 4]
    before = (seen.values, seen.seqs)
    if store.place != "ram":
        for how in kit.STOPS:
            engine = store.stop(how)
            engine.router("r")
            seen = kit.everything(engine, "b")
            assert (seen.values, seen.seqs) == before


# -- abort and state --------------------------------------------------------------------------------------------------


def test_an_abort_drops_what_is_staged_and_leaves_what_is_committed_alone(store: kit.Store) -> None:
    """TXN-11."""
    engine = store.engine
    stage(engine, 1)
    stage(engine, 2, version=2)
    assert engine.abort_staged(ID, 1).state == "aborted"
    assert engine.abort_staged(ID, 1).state == "aborted"
    assert engine.abort_staged("nobody", 1).state == "aborted"
    with pytest.raises(TxnIncomplete):
        commit(engine)
    commit(engine, version=2)
    assert engine.abort_staged(ID, 2).state == "committed"
    assert engine.abort_staged(ID, 1).state == "committed"
    assert kit.everything(engine).values == [2]
    assert engine.core.staging.cost == 0
    assert [path for path in store.files() if path.startswith("staging/")] == []


def test_a_writer_tells_its_version_and_what_it_has_staged(store: kit.Store) -> None:
    """TXN-12: `version` null for one that is not known."""
    engine = store.engine
    nobody = engine.writer("nobody")
    assert (nobody.version, nobody.topics, nobody.committed_ts, nobody.staged) == (None, (), None, ())
    stage(engine, 1)
    commit(engine)
    committed_ts = store.clock.now_ms()
    store.clock.advance(100)
    stage(engine, 2, version=2)
    stage(engine, 3, version=2, part="q")
    stage(engine, 4, version=9)
    state = engine.writer(ID)
    assert (state.version, state.committed_ts) == (1, committed_ts)
    assert [(one.topic, one.first_seq, one.last_seq) for one in state.topics] == [("t", 1, 1)]
    assert [(one.version, one.parts, one.bytes) for one in state.staged] == [(2, 2, 90), (9, 1, 45)]
    engine.delete_topic("t")
    assert engine.writer(ID).topics == ()


@pytest.mark.parametrize("place", ["reopened", "killed", "crashed", "trimmed"])
def test_what_a_producer_of_the_same_name_wrote_is_no_part_of_the_version(place: str) -> None:
    """TXN-7, TXN-12: a commit has the index 0; the rows of another index are somebody else's."""
    store = kit.Store()
    engine = store.engine
    stage(engine, 1, 2, version=3)
    stage(engine, 3, version=3, topic="u", chunk=1)
    commit(engine, ("p", 2, 3), version=3)
    kit.write(engine, "x", name="t", producer=Producer(ID, 3, 1))
    if place == "trimmed":
        store.trim()
    engine = {"killed": store.kill, "crashed": store.crash}.get(place, store.reopen)()
    again = commit(engine, ("p", 2, 3), version=3)
    assert again.deduped
    assert again.topics == engine.writer(ID).topics
    of_t = [] if place in ("reopened", "trimmed") else [("t", 1, 2, 2, False)]
    assert topics(again) == [*of_t, ("u", 1, 1, 1, False)]
    engine.close()


@pytest.mark.parametrize("place", ["reopened", "killed", "crashed", "trimmed"])
def test_a_writer_is_the_same_after_a_restart_but_for_its_staging(place: str) -> None:
    """A-19, S-287: the committed version and what it brought where survive."""
    store = kit.Store(place, wal_shards=3)
    names = ["u", "v", "w", "x"]
    for name in names:
        store.put(name, durability="disk")
    stage(store.engine, 1, version=3)
    for chunk, name in enumerate(names, 1):
        stage(store.engine, 2, 3, chunk=chunk, version=3, topic=name)
    commit(store.engine, ("p", 5, 9), version=3)
    before = store.engine.writer(ID)
    engine = store.settle()
    after = engine.writer(ID)
    assert (after.version, after.committed_ts) == (before.version, before.committed_ts)
    assert after.topics == tuple(
        one.__class__(one.topic, one.first_seq, one.last_seq, one.count) for one in before.topics
    )
    assert commit(engine, version=3).deduped


# -- order, room and trouble ------------------------------------------------------------------------------------------


def test_a_large_commit_is_framed_in_slices_and_overtaken_by_nobody(tmp_path: Any) -> None:
    """A-1, C17, P-10: writes and deletes of its topics wait behind it; those of others do not."""
    with Engine.open(str(tmp_path)) as engine:
        for name in ("t", "u", "other"):
            engine.put_topic(name, {"durability": "fsync"})
        for chunk in range(40):
            stage(engine, *(f"{chunk}/{n}/" + "x" * 200 for n in range(250)), chunk=chunk, topic="tu"[chunk % 2])
        futures = [kit.spawn(lambda: commit(engine, ("p", 40, 10_000)))]
        writes = [kit.spawn(lambda: kit.write(engine, "small", name="t")) for _ in range(20)]
        others = [kit.spawn(lambda: kit.write(engine, "small", name="other")) for _ in range(20)]
        (result,) = kit.finish(futures)
        kit.finish(writes)
        kit.finish(others)
        for name in ("t", "u"):
            seen = kit.everything(engine, name, limit=1000, max_bytes=8 << 20)
            assert seen.seqs == list(range(1, len(seen.seqs) + 1))
            batch = [value for value in seen.values if value != "small"]
            assert batch == [f"{c}/{n}/" + "x" * 200 for c in range("tu".index(name), 40, 2) for n in range(250)]
            (told,) = [one for one in result.topics if one.topic == name]
            assert [seen.values.index(batch[0]) + 1, told.last_seq] == [told.first_seq, told.first_seq + 4999]
            assert "small" not in seen.values[told.first_seq - 1 : told.last_seq]


def test_commits_over_the_same_topics_in_any_order_do_not_wait_for_each_other_for_ever(tmp_path: Any) -> None:
    """A-1: topics are held in ascending id."""
    with Engine.open(str(tmp_path)) as engine:
        names = ("a", "b", "c")
        for name in names:
            engine.put_topic(name, {"durability": "disk"})
        futures = []
        for writer in range(6):
            for at in range(3):
                name = names[(writer + at) % 3]
                engine.stage(f"w{writer}", 1, "p", at, name, [new(f"w{writer}")] * 20)
            futures.append(kit.spawn(lambda id=f"w{writer}": engine.commit_staged(id, 1, [("p", 3, 60)])))  # type: ignore[misc]
        kit.finish(futures)
        for name in names:
            values = kit.everything(engine, name).values
            assert sorted(values) == sorted(f"w{writer}" for writer in range(6) for _ in range(20))
            runs = [value for at, value in enumerate(values) if not at or values[at - 1] != value]
            assert len(runs) == 6, "rows of a commit are consecutive in each topic"


class Slow(kit.Store):
    """A store whose syncs can be held, on one thread."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.core = self.engine.core
        self.owner: Any = self.core.owner
        self._at_once = self.owner.aside
        self._held: list[Any] | None = None
        setattr(self.owner, "aside", self._aside)  # noqa: B010 - mypy knows that a method is no attribute

    def _aside(self, lane: str, work: Any, done: Any) -> None:
        if self._held is not None and lane.startswith("wal-0"):
            self._held.append((lane, work, done))
        else:
            self._at_once(lane, work, done)

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        with self.owner:
            for lane, work, done in held:
                self._at_once(lane, work, done)

    def begin(self, version: int = 1, *parts: tuple[str, int, int]) -> list[Any]:
        outcome: list[Any] = []
        asked = txn.Commit.parse(ID, version, parts or [("p", 1, 1)], None, None, "auto", self.core.limits)
        with self.owner:
            txn.commit(self.core, asked, outcome.append)
        return outcome


def test_what_comes_behind_an_undecided_commit_is_published_behind_it() -> None:
    """S-107, TXN-6: nothing is visible before the sync, then everything at once."""
    store = Slow()
    engine = store.put()
    store.put("u")
    stage(engine, 1, 2)
    stage(engine, 3, chunk=1, topic="u")
    store.hold()
    outcome = store.begin(1, ("p", 2, 3))
    heads: list[tuple[int, int]] = []
    core = store.core

    def look() -> None:
        heads.append((core.names["t"].head, core.names["u"].head))

    look()
    assert outcome == []
    assert engine.writer(ID).version is None
    with store.owner:
        store.owner.soon(look)
    store.release()
    look()
    assert set(heads) == {(0, 0), (2, 1)}
    assert topics(outcome[0]) == [("t", 1, 2, 2, False), ("u", 1, 1, 1, False)]


def test_a_chunk_that_comes_while_its_version_is_committed_is_told_so() -> None:
    """TXN-3, TXN-9: it is not lost silently: the writer hears that the version is committed."""
    store = Slow()
    engine = store.put()
    stage(engine, 1)
    store.hold()
    outcome = store.begin()
    assert stage(engine, 2, part="late").staged == 1
    store.release()
    assert not outcome[0].deduped
    assert engine.writer(ID).staged == ()
    with pytest.raises(TxnCommitted):
        stage(engine, 2, part="late")


def test_an_abort_waits_for_the_commit_that_is_under_way() -> None:
    """TXN-11: a committed version is left alone."""
    store = Slow()
    engine = store.put()
    stage(engine, 1)
    store.hold()
    outcome = store.begin()
    aborted: list[Any] = []
    with store.owner:
        txn.abort(store.core, ID, 1, aborted.append)
    assert aborted == []
    store.release()
    assert not outcome[0].deduped
    assert [one.state for one in aborted] == ["committed"]
    assert kit.everything(engine).values == [1]


def test_a_topic_deleted_while_a_commit_waits_for_it_is_created_anew_or_refused() -> None:
    """A-1, TXN-5: resolution is as at the beginning; no rows are lost in a topic that is gone."""
    store = Slow()
    engine = store.put()
    kit.write(engine, "old")
    stage(engine, 1)
    store.hold()
    deleted: list[Any] = []
    with store.owner:
        lifecycle.delete(store.core, "t", deleted.append)
    outcome = store.begin()
    store.release()
    assert deleted[0].deleted
    assert topics(outcome[0]) == [("t", 1, 1, 1, True)]
    assert kit.everything(engine).values == [1]


def test_a_commit_waits_for_room_in_the_log_or_is_refused_and_may_be_repeated() -> None:
    """S-71, 08 §6: nothing is staged by what finds no room; the order of the topic is kept."""
    store = Slow(queue_submissions=1)
    engine = store.put()
    store.core.admission.patient = True
    stage(engine, 1)
    store.hold()
    kit_write: list[Any] = []
    write = appending.Write.prepare("t", [new("first")], store.core.limits)
    with store.owner:
        appending.append(store.core, write, kit_write.append)
    outcome = store.begin()
    assert outcome == []
    assert store.core.names["t"].next_seq == 2
    store.release()
    assert topics(outcome[0]) == [("t", 2, 2, 1, False)]
    store.core.admission.patient = False
    stage(engine, 2, version=2)
    store.hold()
    with store.owner:
        appending.append(store.core, write, kit_write.append)
    (refused,) = store.begin(2)
    assert isinstance(refused, WalFull)
    store.release()
    assert store.core.staged_bytes == 0
    assert not store.core.names["t"].framing
    assert topics(commit(engine, version=2)) == [("t", 4, 4, 1, False)]


def test_a_closed_engine_takes_nothing() -> None:
    store = kit.Store()
    stage(store.engine, 1)
    store.engine.core.closing = True
    for call in (lambda: stage(store.engine, 2, chunk=1), lambda: commit(store.engine)):
        with pytest.raises(EngineClosed):
            call()
    with pytest.raises(EngineClosed):
        store.engine.abort_staged(ID, 1)


def test_a_staged_file_that_was_damaged_fails_the_commit_and_publishes_nothing() -> None:
    """R-5: other bytes than were staged never become records."""
    store = kit.Store()
    engine = store.put()
    stage(engine, "precious")
    (path,) = [path for path in store.files() if path.startswith("staging/")]
    kit.flip_in(store, path, b"precious")
    with kit.nothing_changes(engine), pytest.raises(WalIo, match="not what was staged"):
        commit(engine)
    engine.abort_staged(ID, 1)
    stage(engine, "precious")
    commit(engine)
    assert kit.everything(engine).values == ["precious"]


def test_what_is_kept_of_writers_goes_with_their_versions(store: kit.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-19: kept until unused for `TOPICS_PRODUCER_TTL_MS`; nothing of a writer stays in memory for ever."""
    monkeypatch.setattr(writers, "FORGET_FROM", 3)
    store.options["producer_ttl_ms"] = 10_000
    engine = store.reopen()
    engine.core.writers._most = 3
    for n in range(4):
        engine.stage(f"w{n}", 1, "p", 0, "t", [new(n)])
        engine.commit_staged(f"w{n}", 1, [("p", 1, 1)])
    store.pass_time(2_000)
    assert len(engine.core.writers.newest) == 4
    store.clock.advance(20_000)
    engine.core.producers.sweep(store.clock.now_ms())
    store.pass_time(2_000)
    engine.stage("w9", 1, "p", 0, "t", [new(9)])
    engine.commit_staged("w9", 1, [("p", 1, 1)])
    engine.core.writers._most = 3
    store.pass_time(2_000)
    assert set(engine.core.writers.newest) == {"w9"}
    assert engine.writer("w0").version is None


parts = st.lists(st.lists(st.tuples(st.sampled_from("tuv"), st.integers(1, 5)), min_size=1, max_size=4), max_size=4)


@settings(max_examples=40, deadline=None)
@given(parts, st.randoms(use_true_random=False), st.sampled_from(kit.STOPS))
def test_any_parts_in_any_order_of_staging_become_the_rows_that_the_commit_names(
    drawn: list[list[tuple[str, int]]], rng: Any, stop: str
) -> None:
    """TXN-6 as a property: interleaved stagers, some chunks sent twice, then any way to end."""
    store = kit.Store(wal_shards=2)
    expected: dict[str, list[str]] = {}
    calls: list[list[tuple[Any, ...]]] = []
    named = []
    for p, chunks in enumerate(drawn):
        calls.append([])
        for c, (topic, count) in enumerate(chunks):
            values = [f"{p}.{c}.{n}" for n in range(count)]
            expected.setdefault(topic, []).extend(values)
            calls[p] += [(f"p{p}", c, topic, values)] * rng.choice((1, 1, 2))
        named.append((f"p{p}", len(chunks), sum(count for _, count in chunks)))
    while any(calls):
        part, chunk, topic, values = rng.choice([line for line in calls if line]).pop(0)
        store.engine.stage(ID, 1, part, chunk, topic, [new(value) for value in values])
    store.engine.commit_staged(ID, 1, named)
    engine = store.stop(stop)
    assert {name: kit.everything(engine, name).values for name in engine.topics()} == expected
    engine.close()
