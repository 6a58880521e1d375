"""C28, C29, C32: staged commits, killed or crashed at every disk call, are whole or not there; a repeat ends them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import Store, at_every_disk_call
from topics.codec.place import shard_of
from topics.errors import CommitFailed, StorageFull, TxnIncomplete
from topics.model import CommitResult
from topics.testing import Fault

ID = "writer"
TOPICS = ("t0", "t1", "t2")
PARTS = [{"part": "b", "chunks": 4, "records": 10}, {"part": "a", "chunks": 2, "records": 5}]
"""In the order of the commit, which is not that of their names."""


def rows(part: str, chunk: int) -> list[dict[str, Any]]:
    """Two or three records; every other one has a tag."""
    count = 3 if chunk % 2 else 2
    return [{"data": f"{part}{chunk}.{n}", "tag": "odd" if n % 2 else None} for n in range(count)]


def stage(store: Store, version: int, topics: tuple[str, ...]) -> None:
    for part, chunks in (("a", 2), ("b", 4), ("left-over", 1)):
        for chunk in range(chunks):
            topic = topics[chunk % len(topics)]
            store.engine.stage(ID, version, part, chunk, topic, rows(part, chunk))


def commit(store: Store, version: int) -> CommitResult:
    return store.engine.commit_staged(ID, version, PARTS)


def brought(topics: tuple[str, ...]) -> dict[str, list[str]]:
    """What a commit brings to each topic, in order [TXN-6]."""
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    for part, chunks in (("b", 4), ("a", 2)):
        for chunk in range(chunks):
            found[topics[chunk % len(topics)]] += [str(row["data"]) for row in rows(part, chunk)]
    return found


def shown(store: Store, topic: str) -> list[str]:
    """What a topic has of the commits, from one read to its end; a `disk` topic may tell of a reservation."""
    if topic not in set(store.engine.topics()):
        return []
    seen = store.look(topic)
    is_disk = store.engine.state(topic).config.durability == "disk"
    assert {reason for *_, reason in seen.gaps} <= ({"crash"} if is_disk else set()), f"{store.label}: {seen.gaps}"
    return [data for _, record in sorted(seen.records.items()) if (data := str(record.data)) and data[0] in "ab"]


def again(store: Store, version: int, topics: tuple[str, ...]) -> None:
    """What a client does that got no answer: commit; if staging is gone, stage and commit once more [TXN-10]."""
    try:
        commit(store, version)
    except TxnIncomplete:
        stage(store, version, topics)
        commit(store, version)


def judged(groups: list[tuple[str, ...]], answered: list[int], version: int = 1) -> Any:
    """A judge: whole or nothing in each group, whole everywhere once it was answered or is repeated."""
    topics = tuple(topic for group in groups for topic in group)
    expected = brought(tuple(sorted(topics)))

    def judge(fork: Store) -> None:
        fork.start()
        for group in groups:
            got = {topic: shown(fork, topic) for topic in group}
            whole = {topic: expected[topic] for topic in group}
            nothing: dict[str, list[str]] = {topic: [] for topic in group}
            assert got in (whole, nothing), f"{fork.label}: half a batch: {got}"
            if answered:
                assert got == whole, f"{fork.label}: an answered commit is gone"
        state = fork.engine.writer(ID)
        if state.version == version:
            assert all(shown(fork, topic) == expected[topic] for topic in topics), fork.label
        assert state.staged == (), "a restart drops all staging [TXN-4]"
        again(fork, version, tuple(sorted(topics)))
        for how in ("repeated", "killed", "crashed"):
            if how != "repeated":
                (fork.kill if how == "killed" else fork.crash)().start()
            got = {topic: shown(fork, topic) for topic in topics}
            assert got == expected, f"{fork.label}: {how}, {got}"
            repeat = commit(fork, version)
            assert repeat.deduped
            assert {one.topic: one.count for one in repeat.topics} == {
                topic: len(data) for topic, data in expected.items()
            }

    return judge


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_c28_a_commit_that_is_repeated_is_there_once_whole_and_in_order(durability: str) -> None:
    """C28, TXN-6, S-241, S-287: stage, commit, kill at every disk call, commit again."""
    store = Store().start()
    store.put("t0", durability)
    answered: list[int] = []
    with at_every_disk_call(store, judged([("t0",)], answered), crashes=1):
        stage(store, 1, ("t0",))
        commit(store, 1)
        answered.append(1)
        store.engine.checkpoint(full=True)
        store.write("t0", 2)


def test_c28_topics_that_the_commit_creates_are_whole_or_empty() -> None:
    """C28, TXN-5: creation comes first and by itself; rows come all at once."""
    store = Store().start()
    answered: list[int] = []
    with at_every_disk_call(store, judged([TOPICS], answered), crashes=1):
        stage(store, 1, TOPICS)
        commit(store, 1)
        answered.append(1)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_c29_three_topics_of_one_group_are_all_there_or_none(checkpointed: bool) -> None:
    """C29, TXN-6: one submission; some of the topics have writes before and behind."""
    store = Store().start()
    for topic, durability in zip(TOPICS, ("disk", "fsync", "memory"), strict=True):
        store.put(topic, durability)
    store.write("t0", 3)
    answered: list[int] = []
    with at_every_disk_call(store, judged([TOPICS], answered), crashes=1):
        stage(store, 1, TOPICS)
        commit(store, 1)
        answered.append(1)
        if checkpointed:
            store.engine.checkpoint()
            store.write("t1", 1)
            store.engine.snapshot()
        store.write("t0", 1)


def spread(store: Store, shards: int) -> list[tuple[str, ...]]:
    """Topics of several groups: names by group, that of shard 0 among them."""
    groups: dict[int, list[str]] = {}
    for n in range(4):
        name = f"t{n}"
        store.put(name, "disk" if n % 2 else "fsync")
        groups.setdefault(shard_of(store.engine.core.names[name].id, shards), []).append(name)
    assert 0 in groups
    assert len(groups) > 1
    return [tuple(names) for names in groups.values()]


@pytest.mark.parametrize("shards", [2, 3])
def test_c29_over_several_groups_each_is_whole_or_nothing_and_a_repeat_completes_it(shards: int) -> None:
    """C29, TXN-6, S-287: group by group, that of shard 0 last; nothing twice, nothing missing."""
    store = Store(wal_shards=shards).start()
    groups = spread(store, shards)
    answered: list[int] = []
    with at_every_disk_call(store, judged(groups, answered), crashes=1):
        stage(store, 1, tuple(sorted(topic for group in groups for topic in group)))
        commit(store, 1)
        answered.append(1)


def test_c29_without_a_topic_of_shard_0_the_committed_version_is_submitted_alone() -> None:
    """C29, S-287: the group of shard 0 then has nothing but the version."""
    store = Store(wal_shards=2).start()
    groups = [group for group in spread(store, 2) if shard_of(store.engine.core.names[group[0]].id, 2)]
    answered: list[int] = []
    with at_every_disk_call(store, judged(groups, answered), crashes=1):
        stage(store, 1, tuple(sorted(topic for group in groups for topic in group)))
        commit(store, 1)
        answered.append(1)


@pytest.mark.parametrize("shards", [1, 2])
def test_c29_a_router_destination_among_the_topics_keeps_copies_and_rows_apart(shards: int) -> None:
    """C29, S-212 (c), S-287: copies in memory are logged in front, the routers' positions behind."""
    store = Store(wal_shards=shards).start()
    for topic in ("source", *TOPICS):
        store.put(topic)
    store.engine.put_router("r", {"source": "source", "dest": "t1"})
    store.write("source", 4)
    groups: dict[int, list[str]] = {}
    for topic in TOPICS:
        groups.setdefault(shard_of(store.engine.core.names[topic].id, shards), []).append(topic)
    answered: list[int] = []
    judge = judged([tuple(names) for names in groups.values()], answered)

    def judged_too(fork: Store) -> None:
        judge(fork)
        copies = [str(one.data) for one in fork.look("t1").records.values() if str(one.data).startswith("source")]
        assert len(copies) == len(set(copies)), f"{fork.label}: copied twice: {copies}"
        assert copies == [str(one.data) for one in fork.look("source").records.values()], fork.label

    with at_every_disk_call(store, judged_too, crashes=1):
        stage(store, 1, TOPICS)
        commit(store, 1)
        answered.append(1)
        store.write("source", 2)
        store.engine.checkpoint()


def test_c32_an_answered_commit_on_a_disk_topic_survives_the_machine() -> None:
    """C32, A-19: durable before its answer in every class but `ephemeral`; the repeat is known."""
    store = Store().start()
    for topic, durability in zip(TOPICS, ("disk", "memory", "fsync"), strict=True):
        store.put(topic, durability)
    stage(store, 1, TOPICS)
    first = commit(store, 1)
    for style in ("nothing", "random", "prefix"):
        fork = store.crashed(style, 3).start()
        assert {topic: shown(fork, topic) for topic in TOPICS} == brought(TOPICS)
        repeat = commit(fork, 1)
        assert repeat.deduped
        assert [(one.topic, one.first_seq, one.last_seq, one.count) for one in repeat.topics] == [
            (one.topic, one.first_seq, one.last_seq, one.count) for one in first.topics
        ]


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_committed_versions_outlive_the_log_they_were_written_to(end: str) -> None:
    """S-287, A-19: the snapshot's `txn` row stands for the frame; a trimmed log changes nothing."""
    store = Store().start()
    for topic in TOPICS:
        store.put(topic)
    for version in (1, 2):
        stage(store, version, TOPICS)
        commit(store, version)
    store.trim(*TOPICS)
    assert [(row.id, row.version) for row in store.snapshots()[-1].header.commits] == [(ID, 2)]
    store.end(end).start()
    assert store.engine.writer(ID).version == 2
    for version in (1, 2):
        repeat = commit(store, version)
        assert repeat.deduped
        assert len(repeat.topics) == (3 if version == 2 else 0)
    assert {topic: shown(store, topic) for topic in TOPICS} == {
        topic: data * 2 for topic, data in brought(TOPICS).items()
    }


@pytest.mark.parametrize(("op", "error"), [("pwrite", "EIO"), ("pwrite", "ENOSPC"), ("fdatasync", "EIO")])
def test_a_commit_whose_write_or_sync_fails_shows_nothing_and_a_repeat_after_a_restart_completes_it(
    op: str, error: Any
) -> None:
    """TXN-10, S-78, S-79: indeterminate until it is repeated; never half."""
    store = Store().start()
    for topic in TOPICS:
        store.put(topic)
    stage(store, 1, TOPICS)
    store.faults.inject(Fault(op, 1, error, path="wal-"))
    with pytest.raises(CommitFailed):
        commit(store, 1)
    assert store.faults.hits
    assert all(shown(store, topic) == [] for topic in TOPICS)
    judged([TOPICS], [])(store.kill())


def test_a_commit_that_met_a_full_disk_is_completed_by_the_same_call_once_there_is_space() -> None:
    """TXN-10, S-80: what is staged stays staged through a refusal."""
    store = Store().start()
    for topic in TOPICS:
        store.put(topic)
    stage(store, 1, TOPICS)
    store.faults.inject(Fault("pwrite", 1, "ENOSPC", path="wal-"))
    with pytest.raises(CommitFailed):
        commit(store, 1)
    with pytest.raises(StorageFull):
        commit(store, 1)
    assert [one.parts for one in store.engine.writer(ID).staged] == [3]
    store.clock.advance(2000)
    store.engine.tick()
    assert not commit(store, 1).deduped
    assert {topic: shown(store, topic) for topic in TOPICS} == brought(TOPICS)
    assert store.engine.writer(ID).staged == ()
