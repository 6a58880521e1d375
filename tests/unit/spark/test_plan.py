"""How a read is cut into partitions."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest

from tests.unit.spark.kit import PATH, planned, rows
from tests.unit.storage import storekit
from tests.unit.storage.storekit import Topic
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.spark.plan import Partition
from topics.testing import ManualClock, SimFs

NOW = 2000


def cut(*topics: Topic, **options: str) -> list[Partition]:
    fs = storekit.on_sim(storekit.store(*topics))
    return planned(fs, NOW, topics=",".join(topic.name for topic in topics), **options)


def ranges(parts: list[Partition]) -> list[list[tuple[str, int, int]]]:
    return [[(one.item.name, one.stretch.first, one.stretch.last) for one in part.pieces] for part in parts]


def test_as_many_partitions_as_wanted_if_there_are_so_many_segments() -> None:
    """10 §2 `minPartitions`: however the bytes lie."""
    sizes = [500, 1, 1, 1, 1, 1]
    topic = Topic()
    for size in sizes:
        topic.segment(2, size=size)
    for wanted in range(1, 9):
        parts = cut(topic, minPartitions=str(wanted))
        assert len(parts) == min(wanted, len(sizes))
        assert [one for part in ranges(parts) for one in part] == [
            ("orders", 2 * at + 1, 2 * at + 2) for at in range(len(sizes))
        ]


def test_partitions_hold_about_as_many_bytes_as_wanted() -> None:
    """K-13: small segments are put together, over topics too; a large one is cut by seqs."""
    one, other = Topic(10, "one"), Topic(11, "other")
    for _ in range(30):
        one.segment(4)
    other.segment(40, size=300)
    parts = cut(one, other, partitionBytes="4000", minPartitions="1")
    assert max(part.bytes for part in parts) <= 2 * 4000
    total = sum(part.bytes for part in parts)
    assert total // 4000 <= len(parts) <= total // 4000 + 2
    flat = [one for part in ranges(parts) for one in part]
    for name, last in (("one", 120), ("other", 40)):
        own = [(first, end) for topic, first, end in flat if topic == name]
        assert own[0][0] == 1
        assert own[-1][1] == last
        assert all(before[1] + 1 == after[0] for before, after in pairwise(own))
    assert len([1 for topic, *_ in flat if topic == "other"]) > 1
    everything = cut(one, other, minPartitions="1")
    assert len(everything) == 1


def test_a_task_lists_a_topic_once_however_many_segments_it_reads() -> None:
    """P-11: reading costs what is read, not the square of it; each piece knows the row of its own segment alone."""
    topic = Topic()
    for _ in range(40):
        topic.segment(2)
    fs = storekit.on_sim(storekit.store(topic))
    parts = planned(fs, NOW, topics=topic.name, minPartitions="2")
    assert [len(part.pieces) for part in parts] == [20, 20]
    assert {len(piece.item.segments) for part in parts for piece in part.pieces} == {1}
    listed: list[str] = []
    real = fs.listdir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "listdir", lambda path: listed.append(path) or real(path))
        found = rows(fs, parts)
    assert [row["seq"] for row in found] == list(range(1, 81))
    assert len([path for path in listed if "topics/" in path]) == len(parts)


def test_segments_outside_of_the_bounds_are_not_in_the_plan() -> None:
    """K-12: by seq and by ts; the ts of a record here is 1000 + its seq."""
    topic = Topic()
    for _ in range(10):
        topic.segment(5)
    parts = cut(topic, startingSeq="12", endingSeq="21", minPartitions="1")
    assert ranges(parts) == [[("orders", 12, 15), ("orders", 16, 20), ("orders", 21, 21)]]
    dated = cut(topic, startingTimestamp="1012", endingTimestamp="1021", minPartitions="1")
    assert ranges(dated) == ranges(parts)
    assert dated[0].bytes < cut(topic, minPartitions="1")[0].bytes / 4


def test_a_read_by_tag_has_as_many_partitions_as_its_share_of_the_bytes_asks_for() -> None:
    """K-12, K-13: a task costs more than reading a little; what is read is the same however it is cut."""
    disk, clock = SimFs(), ManualClock()
    config = EngineConfig(segment_max_events=16, wal_init_zero=False)
    with Engine.open(PATH, config, clock=clock, fs=disk) as engine:
        engine.put_topic("orders", {"durability": "disk"})
        for n in range(320):
            engine.append("orders", [{"data": "x" * 2000, "tag": f"k{n % 16}" if n < 160 else "rest"}])
        clock.advance(5000)
        engine.checkpoint()

    def parts_of(**options: str) -> list[Partition]:
        return planned(disk, clock.now_ms(), topics="orders", partitionBytes="40000", **options)

    everything, few, most = parts_of(), parts_of(tags="k3"), parts_of(tags='["k*", "rest"]')
    assert len(everything) == len(most) > 10
    assert len(few) == 2, "the least there are"
    assert [row["seq"] for row in rows(disk, few)] == list(range(4, 160, 16))
    assert len(rows(disk, most)) == len(rows(disk, everything)) == 320
    assert len(parts_of(tags="nobody")) == 2


def test_a_partition_carries_all_its_reader_needs() -> None:
    """K-23: it is sent to another process, without the keys and leases of its topic."""
    part = cut(Topic().segment(4).segment(3, sealed=False))[1]
    assert pickle.loads(pickle.dumps(part)) == part
    (piece,) = part.pieces
    assert (piece.item.id, piece.item.epoch, piece.item.ckpt_seq) == (10, 1, 7)
    assert [row.first for row in piece.item.segments] == [5]
    assert part.source.store == storekit.STORE_ID


@pytest.mark.parametrize("pattern", ["ord.*", "o.+s"])
def test_patterns_match_whole_names_and_no_system_topic(pattern: str) -> None:
    """K-21"""
    named = [Topic(10, "orders"), Topic(11, "reorders"), Topic(12, "$orders"), Topic(13, "orders.eu")]
    for topic in named:
        topic.segment(2)
    fs = storekit.on_sim(storekit.store(*named))
    found = {one.item.name for part in planned(fs, NOW, subscribePattern=pattern) for one in part.pieces}
    assert found == ({"orders", "orders.eu"} if pattern == "ord.*" else {"orders"})
