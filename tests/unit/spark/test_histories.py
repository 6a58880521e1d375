"""Rows read from files are those the engine gives, whatever happened before."""

from __future__ import annotations

import pytest

from tests.unit.spark.kit import PATH, History, planned, records, rows
from topics.storage.view import StoreView


@pytest.mark.parametrize("verify", ["true", "false"])
@pytest.mark.parametrize("seed", range(20))
def test_files_give_exactly_what_the_engine_gives(seed: int, verify: str) -> None:
    """K-11, S-342, S-345: deletes, caps, TTL, rewrites, several topics, nodes, tags, meta, an unsealed tail."""
    history = History(seed)
    history.run(60)
    history.settle()
    expected = [row for name in history.names for row in history.live(name)]
    now = history.clock.now_ms()
    assert records(history.sim, now, topics=",".join(history.names), verify=verify) == expected
    small = {"partitionBytes": "700", "minPartitions": "7"}
    assert records(history.sim, now, subscribePattern="[a-z.0-9]+", verify=verify, **small) == expected
    history.engine.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_options_keep_what_a_filter_over_all_rows_keeps(seed: int) -> None:
    """K-12: pruning by seq, ts, tags and node leaves exactly the rows that the condition holds for."""
    history = History(seed)
    history.run(60)
    history.settle()
    pick, now = history.random, history.clock.now_ms()
    for name in history.names:
        live = history.live(name)
        if not live:
            continue
        low, high = sorted(pick.sample(range(1, live[-1]["seq"] + 2), 2))
        early, late = sorted(pick.choice(live)["ts"] + pick.choice([-1, 0, 1]) for _ in range(2))
        few = {"topics": name, "onDataLoss": "skip", "partitionBytes": "2000"}
        assert records(history.sim, now, startingSeq=str(low), endingSeq=str(high), **few) == [
            row for row in live if low <= row["seq"] <= high
        ]
        assert records(history.sim, now, startingTimestamp=str(early), endingTimestamp=str(late), **few) == [
            row for row in live if early <= row["ts"] <= late
        ]
        assert records(history.sim, now, tags='["a:*", "b", ""]', **few) == [
            row for row in live if row["tag"] is not None and (row["tag"].startswith("a:") or row["tag"] in ("b", ""))
        ]
        assert records(history.sim, now, node="knöpfe,dock-7", **few) == [
            row for row in live if row["node"] in ("knöpfe", "dock-7")
        ]
    history.engine.close()


@pytest.mark.parametrize("seed", range(6))
def test_deleted_and_live_rows_are_all_seqs_that_were_not_given_up(seed: int) -> None:
    """K-10: `includeDeleted` from an explicit start; no deleted row has a payload."""
    history = History(seed)
    history.run(60)
    history.settle()
    for name in history.names:
        if not (state := history.engine.state(name)).head_seq:
            continue
        parts = planned(history.sim, history.clock.now_ms(), topics=name, includeDeleted="true", startingSeq="1",
                        onDataLoss="emit")  # fmt: skip
        found = rows(history.sim, parts)
        deleted = [row for row in found if row["kind"] == "deleted"]
        live = [row["seq"] for row in found if row["kind"] == "record"]
        assert live == [row["seq"] for row in history.live(name)]
        assert not {row["seq"] for row in deleted} & set(live)
        assert {(row["data"], row["meta"], row["tag"], row["node"]) for row in deleted} <= {(None, None, None, None)}
        assert all(row["ts"] is not None for row in deleted)
        lost = {seq for row in found if row["kind"] == "gap" for seq in range(row["seq"], row["gap_to"] + 1)}
        # Segments without a live record are dropped, and with them what they knew of the deleted ones.
        kept = {row["seq"] for row in found if row["kind"] != "gap"}
        assert kept | lost <= set(range(1, state.head_seq + 1))
        assert not set(live) & lost
    history.engine.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_directory_shows_its_newest_snapshot(seed: int) -> None:
    """S-345: what was written since is not given, although checkpoints bring it to the files."""
    history = History(seed)
    history.run(40)
    for name in history.names:
        history.engine.put_topic(name, {"durability": "fsync"})
    history.settle()
    names, now = ",".join(history.names), history.clock.now_ms()
    expected = [row for name in history.names for row in history.live(name)]
    parts = planned(history.sim, now, topics=names)
    for _ in range(5):
        for name in history.names:
            history.engine.append(name, [history.record() for _ in range(20)])
        history.engine.checkpoint(full=False)
        assert [row["seq"] for row in records(history.sim, now, topics=names)] == [row["seq"] for row in expected]
    grown = sum(len(topic.files.listing()) for topic in StoreView(history.sim, PATH).topics())
    assert grown > sum(len(topic.item.segments) for topic in StoreView(history.sim, PATH).topics())
    assert [row["data"] for row in rows(history.sim, parts)] == [row["data"] for row in expected]
    history.engine.close()


@pytest.mark.parametrize("seed", range(10))
def test_what_happens_between_plan_and_read_takes_only_what_was_removed(seed: int) -> None:
    """K-11, T15: never a row that was dead at the plan, every row that is still live; what was given up is a gap."""
    history = History(seed)
    history.run(40)
    history.settle()
    names, now = ",".join(history.names), history.clock.now_ms()
    before = [(name, row["seq"]) for name in history.names for row in history.live(name)]
    parts = planned(history.sim, now, topics=names, onDataLoss="emit", partitionBytes="3000")
    history.run(60)
    history.settle()
    after = {(name, row["seq"]) for name in history.names for row in history.live(name)}
    found = rows(history.sim, parts)
    seen = [(row["topic"], row["seq"]) for row in found if row["kind"] == "record"]
    assert set(seen) <= set(before)
    assert set(seen) >= set(before) & after
    assert len(seen) == len(set(seen))
    assert {row["reason"] for row in found if row["kind"] == "gap"} <= {"cap", "ttl", "mixed"}
    history.engine.close()


def test_the_histories_hold_what_they_promise() -> None:
    """The tests above are about something: cold segments in folders and objects, rewrites, unsealed tails, floors."""
    seen = set()
    for seed in range(20):
        history = History(seed)
        history.run(60)
        history.settle()
        store = StoreView(history.sim, PATH)
        for topic in store.topics():
            item = topic.item
            seen |= {name for name in ("cap_floor", "ttl_floor", "delete_below") if getattr(item, name) > 1}
            for one in topic.segments():
                seen.add("rewritten" if one.generation else "as written")
                seen.add("sealed" if one.sealed else "unsealed")
                if one.tier == "cold":
                    seen.add("objects" if store.cold.is_remote else "folder")
        history.engine.close()
    assert seen >= {
        "cap_floor", "ttl_floor", "delete_below", "rewritten", "as written", "sealed", "unsealed", "objects", "folder",
    }  # fmt: skip
