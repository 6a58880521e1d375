"""Streams batch by batch, over a directory and over a server: every record once, and told what is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import running
from tests.unit.spark.kit import PATH, History
from tests.unit.spark.streamkit import Query, World
from topics.server import keys
from topics.spark.failure import SourceError
from topics.spark.options import LATEST, Bound, parse_stream
from topics.spark.remote import Remote
from topics.testing import ManualClock
from topics.testing.ports import free_port

ENV = {"TOPICS_SEGMENT_MAX_EVENTS": "7", "TOPICS_CHECKPOINT_MS": "3600000"}


@pytest.fixture(params=["path", "url"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    path = tmp_path / "store"
    with running(path, ENV) as server, server.client() as client:
        one = World(server, client, request.param, str(path))
        yield one
        one.close()


def entries(text: str) -> dict[str, tuple[int, int]]:
    """From and seq by topic."""
    return {name: (entry["from"], entry["seq"]) for name, entry in json.loads(text).items()}


def test_every_record_comes_once_and_in_order(world: World) -> None:
    """K-20: `from` is the `seq` before for every topic; nothing new is the same offset."""
    for name in ("a", "b", "c"):
        world.put(name)
        world.write(name, 20)
    query = world.query(topics="b,a,c", maxRecordsPerTrigger="25")
    query.drain(25)
    world.write("b", 3)
    query.drain(25)
    query.begin()
    assert not query.trigger(25)
    world.write("c", 3)
    query.drain(25)
    for name, last in (("a", 20), ("b", 23), ("c", 23)):
        assert [row["seq"] for row in query.rows if row["topic"] == name] == list(range(1, last + 1))
    assert [len(batch) for batch in query.batches] == [25, 25, 10, 3, 3]
    assert list(json.loads(query.log[0])) == ["a", "b", "c"]
    for before, after in zip(query.log, query.log[1:], strict=False):
        assert {name: seq for name, (_, seq) in entries(before).items()} == {
            name: begin for name, (begin, _) in entries(after).items()
        }
    assert entries(query.log[-1]) == {"a": (20, 20), "b": (23, 23), "c": (20, 23)}


def test_a_batch_read_again_is_the_same_less_what_was_deleted_since(world: World) -> None:
    """K-20: in a new process; also the first one of a stream that began with `latest`."""
    world.put("a")
    world.write("a", 10)
    query = world.query(topics="a", startingSeq="latest")
    assert not query.trigger()
    world.write("a", 9)
    query.drain(5)
    assert query.told("seq") == [(seq,) for seq in range(11, 20)]
    world.write("a", 30)
    assert [query.replay(0), query.replay(1)] == query.batches
    world.client.post("/v0/topics/a/delete", json={"seqs": [12, 17]})
    world.settle()
    assert [row["seq"] for row in query.replay(0)] == [11, 13, 14, 15]
    assert [row["seq"] for row in query.replay(1)] == [16, 18, 19]


STARTS: list[tuple[dict[str, str], dict[str, int]]] = [
    ({}, {"a": 20, "b": 0}),
    ({"startingSeq": "earliest"}, {"a": 20, "b": 0}),
    ({"startingSeq": "latest"}, {"a": 30, "b": 4}),
    ({"startingSeq": "3"}, {"a": 2, "b": 2}),
    ({"startingSeq": "0"}, {"a": 0, "b": 0}),
    ({"startingSeq": '{"a": 25, "b": "latest"}'}, {"a": 24, "b": 4}),
    ({"startingSeq": '{"b": "earliest", "a": "latest"}'}, {"a": 30, "b": 0}),
    ({"startingTimestamp": "2100-01-01"}, {"a": 30, "b": 4}),
    ({"startingTimestamp": "2001-01-01"}, {"a": 20, "b": 0}),
]


def test_a_new_stream_begins_where_it_is_told(world: World) -> None:
    """K-20, K-21: once per reader; `earliest` is the first live record, numbers are inclusive."""
    world.put("a", cap_records=10)
    world.put("b")
    world.write("a", 30)
    world.write("b", 4)
    streams = [world.query(subscribePattern="[ab]", **start).stream for start, _ in STARTS]
    initial = [stream.initial() for stream in streams]
    for (start, begins), found in zip(STARTS, initial, strict=True):
        assert {name: (one.begin, one.seq) for name, one in found.items()} == {
            name: (at, at) for name, at in begins.items()
        }, start
    world.write("b", 4)
    assert all(stream.initial() is found for stream, found in zip(streams, initial, strict=True))


def test_a_run_that_is_to_end_sees_nothing_newer(world: World) -> None:
    """K-21: heads and topics of the moment when it was prepared; limits still hold, a minimum does not."""
    world.put("n1")
    world.write("n1", 10)
    query = world.query(subscribePattern="n.", minRecordsPerTrigger="1000")
    query.stream.fix()
    world.write("n1", 5)
    world.put("n2")
    world.write("n2", 5)
    query.drain(4)
    assert [len(batch) for batch in query.batches] == [4, 4, 2]
    query.begin()
    query.stream.fix()
    query.drain()
    assert query.told("topic", "seq")[10:] == [
        *(("n1", seq) for seq in range(11, 16)),
        *(("n2", n) for n in range(1, 6)),
    ]


def test_a_new_topic_joins_with_its_first_record(world: World) -> None:
    """K-21: from 0, if its name matches; an empty one makes no batch, a system topic none at all."""
    world.put("n1")
    world.write("n1", 3)
    query = world.query(subscribePattern=".*", startingSeq="latest")
    assert not query.trigger()
    world.put("n2")
    world.settle()
    assert not query.trigger()
    world.write("n2", 2)
    world.client.post("/v0/topics/n1/delete", json={"seqs": [1]})  # a record of $deletes
    world.settle()
    query.drain()
    assert query.told("topic", "seq") == [("n2", 1), ("n2", 2)]
    assert list(json.loads(query.log[-1])) == ["n1", "n2"]


def test_a_trigger_waits_for_as_many_records_as_it_wants_but_not_forever(world: World) -> None:
    """K-21: `minRecordsPerTrigger`, `maxTriggerDelay`; a trigger that takes everything does not wait."""
    clock = ManualClock()
    world.put("a")
    query = world.query(clock, topics="a", minRecordsPerTrigger="10", maxTriggerDelay="30s")
    world.write("a", 4)
    assert not query.trigger()
    clock.advance(29_999)
    assert not query.trigger()
    clock.advance(1)
    assert query.trigger()
    world.write("a", 9)
    assert not query.trigger()
    world.write("a", 1)
    assert query.trigger()
    world.write("a", 1)
    assert not query.trigger()
    assert query.trigger(None)
    assert [len(batch) for batch in query.batches] == [4, 10, 1]


def test_a_trigger_takes_about_as_many_bytes_as_it_may(world: World) -> None:
    """K-21: `maxBytesPerTrigger`, with and without a bound for records; everything is everything."""
    world.put("a")
    answer = world.client.post("/v0/topics/a", json={"records": [{"data": "x" * 1000} for _ in range(100)]})
    assert answer.status_code in (200, 201)
    world.settle()
    few = world.query(topics="a", maxBytesPerTrigger="10000")
    few.drain()
    assert all(7 <= len(batch) <= 10 for batch in few.batches[:-1])
    assert few.told("seq") == [(seq,) for seq in range(1, 101)]
    fewer = world.query(topics="a", maxBytesPerTrigger="10000", maxRecordsPerTrigger="3")
    assert fewer.trigger(3)
    one = world.query(topics="a", maxBytesPerTrigger="1")
    assert one.trigger()
    everything = world.query(topics="a", maxBytesPerTrigger="1", maxRecordsPerTrigger="3")
    assert everything.trigger(None)
    assert [len(query.batches[0]) for query in (fewer, one, everything)] == [3, 1, 100]


@pytest.mark.parametrize("policy", ["fail", "emit", "skip"])
def test_retention_that_passed_the_offset_is_data_loss(world: World, policy: str) -> None:
    """K-20, K-10: a gap row, nothing, or an error that says what to do; never silence with `fail`."""
    world.put("a", cap_records=10)
    world.write("a", 5)
    query = world.query(topics="a", onDataLoss=policy)
    query.drain()
    world.write("a", 30)
    if policy == "fail":
        with pytest.raises(SourceError, match=r"^topics: data_loss: a: seqs 6 to 25 are missing \(cap\): .* — start"):
            query.trigger()
        query.begin(onDataLoss="emit")
    assert query.trigger()
    gap = [("gap", 6, 25, "cap")] if policy != "skip" else []
    assert query.told("kind", "seq", "gap_to", "reason")[5:] == [
        *gap, *(("record", seq, None, None) for seq in range(26, 36)),
    ]  # fmt: skip


def test_what_retention_took_costs_no_budget(world: World) -> None:
    """K-21: a trigger takes as many records as it may, not as many seqs of the past."""
    world.put("a", cap_records=10)
    world.write("a", 500)
    query = world.query(topics="a", startingSeq="1", onDataLoss="skip")
    query.drain(4)
    assert [len(batch) for batch in query.batches] == [4, 4, 2]


@pytest.mark.parametrize(("policy", "left"), [("fail", 3), ("emit", 0), ("emit", 3), ("emit", 40), ("skip", 40)])
def test_a_topic_made_anew_goes_by_the_policy(world: World, policy: str, left: int) -> None:
    """K-20: `fail` stops; otherwise from 0 of the new instance, told as reads tell it [EPO-3]."""
    world.put("a")
    world.write("a", 10)
    query = world.query(topics="a", onDataLoss=policy)
    query.drain()
    world.delete("a")
    assert not query.trigger()
    world.put("a")
    world.write("a", left)
    if policy == "fail":
        with pytest.raises(SourceError, match=r"^topics: recreated: a was deleted and made anew since .* seq 10 — "):
            query.trigger()
        return
    query.drain()
    gap = [("gap", 1, left, "recreated")] if policy == "emit" else []
    assert query.told("kind", "seq", "gap_to", "reason")[10:] == [
        *gap, *(("record", seq, None, None) for seq in range(1, left + 1)),
    ]  # fmt: skip
    assert query.replay(1) == query.batches[1]


@pytest.mark.parametrize("policy", ["fail", "emit", "skip"])
def test_a_batch_whose_instance_is_gone_is_lost_when_it_is_read_again(world: World, policy: str) -> None:
    """K-20: none of the new one's records are taken for it."""
    world.put("a")
    world.write("a", 10)
    query = world.query(topics="a", onDataLoss=policy)
    query.drain(6)
    world.delete("a")
    world.put("a")
    world.write("a", 40)
    if policy == "fail":
        with pytest.raises(SourceError, match=r"^topics: recreated: a was deleted, or made anew, since"):
            query.replay(1)
        return
    told = [(row["kind"], row["seq"], row["gap_to"], row["reason"]) for row in query.replay(1)]
    assert told == ([("gap", 7, 10, "recreated")] if policy == "emit" else [])


@pytest.mark.parametrize("policy", ["fail", "emit", "skip"])
def test_a_checkpoint_of_another_store_is_told_from_its_own(world: World, tmp_path: Path, policy: str) -> None:
    """K-20: epochs count from 1 in every store, so the store's id tells; nothing of the other is passed over."""
    world.put("a")
    world.write("a", 10)
    query = world.query(topics="a", onDataLoss=policy)
    query.drain(6)
    with running(tmp_path / "other", ENV) as server, server.client() as client:
        other = World(server, client, world.origin, str(tmp_path / "other"))
        other.put("a")
        other.write("a", 40)
        query.begin(**other.where)
        if policy == "fail":
            with pytest.raises(SourceError, match=r"^topics: other_store: the checkpoint is of store [0-9a-f]{32}, "):
                query.trigger()
            with pytest.raises(SourceError, match=r"^topics: recreated: "):
                query.replay(1)
            return
        query.drain()
        gap = [("gap", 1, 40, "recreated")] if policy == "emit" else []
        assert query.told("kind", "seq", "gap_to", "reason")[10:] == [
            *gap, *(("record", seq, None, None) for seq in range(1, 41)),
        ]  # fmt: skip
        assert query.replay(2) == query.batches[2]
        query.begin(**world.where)  # the files of the other store go with this block


def test_a_checkpoint_without_stores_goes_on_and_has_them_from_then_on(world: World) -> None:
    """K-20: offsets of a time before the store was kept in them."""
    world.put("a")
    world.write("a", 5)
    query = world.query(topics="a")
    query.drain()
    (entry,) = json.loads(query.log[-1]).values()
    query.log[-1] = json.dumps({"a": {name: entry[name] for name in ("epoch", "from", "seq")}})
    query.begin()
    assert not query.trigger()
    world.write("a", 2)
    query.drain()
    assert query.told("seq") == [(seq,) for seq in range(1, 8)]
    assert json.loads(query.log[-1])["a"] == entry | {"from": 5, "seq": 7}


def test_a_topic_that_is_gone_keeps_its_entry_and_others_go_on(world: World) -> None:
    """K-20"""
    for name in ("a", "b"):
        world.put(name)
        world.write(name, 5)
    query = world.query(topics="a,b")
    query.drain()
    world.delete("a")
    world.write("b", 5)
    query.drain()
    assert entries(query.log[-1]) == {"a": (5, 5), "b": (5, 10)}
    assert [row["seq"] for row in query.batches[-1]] == [6, 7, 8, 9, 10]
    with pytest.raises(SourceError, match=r"^topics: topic_not_found: .* has no topic `a` — "):
        world.query(topics="a,b").stream.initial()


def test_only_what_no_crash_takes_back_is_read(world: World) -> None:
    """K-20: `durable_seq`, or the checkpoint of a directory; a topic that keeps nothing is refused."""
    world.put("m", durable=False, durability="memory")
    world.put("e", durable=False, durability="ephemeral")
    world.write("m", 5)
    world.write("e", 5)
    query = world.query(topics="m")
    if world.origin == "url":
        query.trigger()
        # On a slow machine the server may have synced by the clock meanwhile; usually it has not.
        durable = world.client.get("/v0/topics/m/segments").json()["durable_seq"]
        assert len(query.told("seq")) <= durable
        world.client.post("/v0/checkpoint")
    query.drain()
    assert query.told("seq") == [(seq,) for seq in range(1, 6)]
    with pytest.raises(SourceError, match=r"^topics: invalid_option: e is ephemeral: "):
        world.query(topics="m,e").stream.initial()
    assert list(world.query(subscribePattern="[em]").stream.initial()) == ["m"]


def test_a_store_that_ends_before_the_stream_is_told(world: World) -> None:
    """K-20: after a restore seqs are given out again, and the stream would pass over them."""
    world.put("a")
    world.write("a", 5)
    query = world.query(topics="a")
    query.drain()
    (epoch,) = {entry["epoch"] for entry in json.loads(query.log[-1]).values()}
    query.log[-1] = json.dumps({"a": {"epoch": epoch, "from": 5, "seq": 9}})
    with pytest.raises(SourceError, match=r"^topics: data_loss: a ends at seq 5, and the stream has been at 9: .* — "):
        query.trigger()


def test_a_start_beyond_the_head_waits_for_its_record(world: World) -> None:
    """K-20: a number n → n − 1, also one that no record has yet, also in a new process."""
    world.put("a")
    world.put("b")
    world.write("a", 3)
    world.write("b", 2)
    query = world.query(topics="a,b", startingSeq='{"a": 6, "b": "earliest"}')
    query.drain()
    assert query.told("topic", "seq") == [("b", 1), ("b", 2)]
    query.begin()
    world.write("b", 1)
    query.drain()
    world.write("a", 4)
    query.begin()
    query.drain()
    assert query.told("topic", "seq") == [("b", 1), ("b", 2), ("b", 3), ("a", 6), ("a", 7)]


def test_a_key_that_is_taken_back_ends_the_stream_and_a_new_one_goes_on(tmp_path: Path) -> None:
    """K-15, K-20: nothing is taken for absent because it may not be seen."""
    with (
        running(tmp_path / "store", ENV | {"TOPICS_API_KEYS": "first-key"}) as server,
        server.client(key="first-key") as client,
    ):
        world = World(server, client, "url", "")
        world.put("a")
        world.write("a", 5)
        query = world.query(topics="a", apiKey="first-key")
        query.drain(3)
        world.write("a", 5)
        ring = keys.KeyRing(keys.parse("second-key"), server.server.app.keys)
        server.on_loop(lambda: server.server.use_keys(ring))
        for _ in range(2):
            with pytest.raises(SourceError, match=r"^topics: unauthorized: .* — set `apiKey` or `apiKeyFile` to a key"):
                query.trigger(3)
        query.begin(apiKey="second-key")
        query.drain(3)
        assert query.told("seq") == [(seq,) for seq in range(1, 11)]
        world.close()


def test_filters_and_columns_are_those_of_a_read(world: World) -> None:
    """10 §2: `tags` and `node` also for streams; records that are left out are passed all the same."""
    world.put("a")
    world.write("a", 4, tag="x:1")
    world.write("a", 4, tag="y", node="n")
    query = world.query(topics="a", tags="x:*", columns="seq,tag")
    query.drain(3)
    assert query.rows == [{"seq": seq, "tag": "x:1"} for seq in range(1, 5)]
    assert entries(query.log[-1]) == {"a": (6, 8)}
    other = world.query(topics="a", node="n")
    other.drain()
    assert other.told("seq") == [(5,), (6,), (7,), (8,)]


def test_a_server_that_starts_again_does_not_end_a_stream(tmp_path: Path) -> None:
    """K-33: one that was there is waited for; one that never was is told at once."""
    env = ENV | {"TOPICS_PORT": str(free_port())}
    with running(tmp_path / "store", env) as server, server.client() as client:
        world = World(server, client, "url", "")
        world.put("a")
        world.write("a", 5)
        query = world.query(topics="a")
        query.drain(3)
    stopped, again = threading.Event(), threading.Event()

    def serve() -> None:
        with running(tmp_path / "store", env):
            again.set()
            stopped.wait(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert not query.trigger()
        assert again.wait(60)
        assert [query.replay(number) for number in range(len(query.log))] == query.batches
    finally:
        stopped.set()
        thread.join()
        world.close()
    with pytest.raises(SourceError, match=r"^topics: unreachable: "):
        world.query(topics="a").stream.initial()


def test_topics_that_nobody_writes_to_are_not_asked_for_at_every_trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-21: a pattern over many topics; one made anew with as many records is noticed all the same."""
    asked: list[str] = []
    state = Remote.state

    def counted(remote: Remote, topic: str) -> dict[str, Any] | None:
        asked.append(topic)
        return state(remote, topic)

    monkeypatch.setattr(Remote, "state", counted)
    with running(tmp_path / "store", ENV) as server, server.client() as client:
        world = World(server, client, "url", "")
        for n in range(5):
            world.put(f"n{n}")
            world.write(f"n{n}", 3)
        query = world.query(subscribePattern="n.*", onDataLoss="emit")
        query.drain()
        asked.clear()
        assert not query.trigger()
        world.write("n3", 1)
        query.drain()
        assert set(asked) == {"n3"}
        world.delete("n1")
        world.put("n1")
        world.write("n1", 3)
        query.drain()
        world.close()
    assert query.told("topic", "kind", "seq")[16:] == [("n1", "gap", 1), *(("n1", "record", n) for n in (1, 2, 3))]


def test_pins_are_given_back_when_a_batch_is_over(tmp_path: Path) -> None:
    """A-8, K-22: there are 64 of them; a batch that is planned again holds them until the next one is asked for."""
    with running(tmp_path / "store", ENV) as server, server.client() as client:
        world = World(server, client, "url", "")
        world.put("a")
        query = world.query(topics="a")

        def pins() -> int:
            engine = server.server.app.engine
            assert engine is not None
            return server.on_loop(lambda: len(engine._core.pins))

        for _ in range(3):
            world.write("a", 5)
            query.drain()
            assert pins() == 0
        query.read(query.log[0], query.log[1])
        query.read(query.log[0], query.log[1])
        assert pins() == 2
        query.read(query.log[1], query.log[2])
        assert pins() == 1
        assert not query.trigger()
        assert pins() == 0
        query.read(query.log[1], query.log[2])
        query.stream.close()
        assert pins() == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_stream_over_any_history_gives_every_record_that_lives_once_and_tells_the_rest(seed: int) -> None:
    """K-20, K-21: deletes, caps, TTL, rewrites and moves between batches of random size; replays are the same."""
    history = History(seed)
    pick = history.random
    given = {"path": PATH, "subscribePattern": ".*", "onDataLoss": "emit", "partitionBytes": "3000"}
    query = Query(given, fs=history.sim, clock=history.clock)
    history.settle()
    for _ in range(12):
        history.run(pick.randint(1, 8))
        history.settle()
        if query.trigger(pick.choice([1, 7, 30, None])):
            assert query.replay(len(query.log) - 1) == query.batches[-1]
        if pick.random() < 0.3:
            query.begin()
    query.drain(20)
    for name in history.names:
        own = [row for row in query.rows if row["topic"] == name]
        seen = {row["seq"]: row for row in own if row["kind"] == "record"}
        gone = [seq for row in own if row["kind"] == "gap" for seq in range(row["seq"], row["gap_to"] + 1)]
        assert [row["seq"] for row in own] == sorted(row["seq"] for row in own)
        assert len(seen) == len([row for row in own if row["kind"] == "record"])
        assert not seen.keys() & set(gone)
        for live in history.live(name):
            assert {member: seen[live["seq"]][member] for member in live} == live
    history.engine.close()


def test_options_of_a_stream_are_checked() -> None:
    """K-15, K-21"""
    base = {"path": "d", "topics": "a"}
    options = parse_stream({**base, "startingseq": '{"a": "latest", "b": 3}', "MAXTRIGGERDELAY": "2 min"})
    assert options.starts == Bound(by_topic=(("a", LATEST), ("b", 3)))
    assert (options.max_records, options.max_bytes, options.min_records, options.max_delay_ms) == (
        None,
        None,
        0,
        120_000,
    )
    assert parse_stream(base).max_delay_ms == 900_000
    for given, line in (
        ({"endingSeq": "3"}, "endingSeq: a stream has no end"),
        ({"endingTimestamp": "3"}, "endingTimestamp: a stream has no end"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is no time"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger: '0' is no number from 1"),
        ({"startingSeq": "newest"}, "startingSeq: 'newest' is neither"),
    ):
        with pytest.raises(SourceError, match=f"^topics: invalid_option: {line}"):
            parse_stream({**base, **given})
