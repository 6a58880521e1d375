"""`spark.read.format("topics")`: rows, schemas, plans, filters."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

import topics.spark
from tests.api.kit import running
from tests.spark.conftest import Filled
from tests.unit.spark.kit import History
from tests.unit.spark.test_remote import by_diff, written
from topics.fs import OsFs
from topics.spark import source
from topics.spark.source import TopicsReader

SCHEMA = (
    "struct<topic:string,seq:bigint,ts:timestamp,node:string,tag:string,data:string,meta:map<string,string>,"
    "kind:string,gap_to:bigint,reason:string>"
)
HUNDRED: list[dict[str, Any]] = [{"data": {"n": n}, "tag": f"t:{n % 4}", "meta": {"n": n}} for n in range(1, 101)]


def load(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format("topics").options(**{name: str(value) for name, value in options.items()}).load()


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row["seq"] for row in frame.select("seq").collect())


def test_the_format_is_found_by_its_name(spark: SparkSession, filled: Filled) -> None:
    """K-2, K-10: without registering anything; types as in the contract."""
    frame = load(spark, path=filled(a=HUNDRED), topics="a")
    assert frame.schema.simpleString() == SCHEMA
    row = frame.where("seq = 5").first()
    assert row is not None
    told = row.asDict()
    assert told.pop("ts").replace(tzinfo=UTC) <= datetime.now(UTC)
    assert told == {
        "topic": "a", "seq": 5, "node": None, "tag": "t:1", "data": '{"n":5}', "meta": {"n": "5"}, "kind": "record",
        "gap_to": None, "reason": None,
    }  # fmt: skip


def test_only_processes_of_spark_stop_looking_for_garbage_in_what_they_imported(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each: Spark has them look after everything they did. Who reads without Spark is left alone."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    source._leave_modules_alone.cache_clear()
    reader = TopicsReader({"path": str(filled(a=HUNDRED)), "topics": "a"})
    parts = reader.partitions()
    assert len(frozen) == 1
    source._leave_modules_alone.cache_clear()
    assert sum(rows.num_rows for part in parts for rows in reader.read(part)) == 100
    assert len(frozen) == 1
    monkeypatch.setattr(TaskContext, "get", staticmethod(TaskContext))
    for _ in range(2):
        assert sum(rows.num_rows for part in parts for rows in reader.read(part)) == 100
        assert len(frozen) == 2


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_rows_are_those_the_engine_gives(
    spark: SparkSession, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-11: random histories with deletes, caps, TTL and rewrites, read while the engine has them open."""
    monkeypatch.chdir(tmp_path)
    history = History(seed, OsFs(), f"{tmp_path}/")
    history.run(50)
    for name in history.names:
        history.engine.put_topic(name, {"durability": "fsync"})  # the clock of Spark is not the history's
    history.settle()
    expected = [row for name in history.names for row in history.live(name)]
    frame = load(
        spark, path=tmp_path / "store", topics=",".join(history.names), meta="json", partitionBytes=4000
    ).select("topic", "seq", (sql.unix_millis("ts")).alias("ts"), "node", "tag", "data", "meta")
    assert frame.rdd.getNumPartitions() > 2
    assert [row.asDict() for row in frame.collect()] == expected
    history.engine.close()


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_one_frame_filtered_joined_and_unioned_with_itself_gives_right_rows(
    spark: SparkSession, filled: Filled, pushdown: str
) -> None:
    """K-12: with Spark's pushdown of filters on and off; nothing that one scan filters is missing in another."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = load(spark, path=filled(a=HUNDRED), topics="a")
        low, high = frame.where("seq <= 10"), frame.where("seq > 5")
        assert (low.count(), high.count(), frame.count()) == (10, 95, 100)
        joined = low.alias("l").join(high.alias("h"), sql.col("l.seq") == sql.col("h.seq"))
        assert sorted(row[0] for row in joined.select("l.seq").collect()) == [6, 7, 8, 9, 10]
        assert seqs(low.union(high)) == sorted([*range(1, 11), *range(6, 101)])
        tagged = frame.where("tag = 't:1'").union(frame.where("tag = 't:2'"))
        assert tagged.count() == 50
        frame.createOrReplaceTempView("hundred")
        counts = spark.sql(
            "select (select count(*) from hundred where seq < 10), (select count(*) from hundred where tag = 't:0'),"
            " (select count(*) from hundred)"
        ).first()
        assert counts is not None
        assert tuple(counts) == (9, 25, 100)
        assert frame.count() == 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert "pushFilters" not in vars(TopicsReader)


def test_a_frame_keeps_its_plan_and_a_table_plans_anew(spark: SparkSession, tmp_path: Path) -> None:
    """K-11: made at the first action of a `load()`; a table of the catalog plans for every query."""
    with running(tmp_path / "store") as server, server.client() as client:
        client.post("/v0/topics/a", json={"records": HUNDRED})
        frame = load(spark, url=server.url, topics="a")
        spark.sql(f"create table live using topics options (url '{server.url}', topics 'a')")
        try:
            assert (frame.count(), spark.table("live").count()) == (100, 100)
            client.post("/v0/topics/a", json={"records": HUNDRED[:11]})
            assert (frame.count(), spark.table("live").count()) == (100, 111)
            assert load(spark, url=server.url, topics="a").count() == 111
        finally:
            spark.sql("drop table live")


@pytest.mark.parametrize("seed", [2, 3])
def test_a_running_server_gives_the_rows_of_its_diff(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    """K-11: sealed segments from files, the tail by diff, exact at the plan."""
    env = {"TOPICS_SEGMENT_MAX_EVENTS": "7", "TOPICS_CHECKPOINT_MS": "3600000"}
    with running(tmp_path / "store", env) as server, server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        written(client, seed)
        found = load(spark, url=server.url, subscribePattern="t").orderBy("seq").collect()
        expected = by_diff(client)
    assert [
        (row.topic, row.seq, round(row.ts.replace(tzinfo=UTC).timestamp() * 1000), row.node, row.tag,
         json.loads(row.data))
        for row in found
    ] == expected  # fmt: skip


def test_options_prune_and_queries_see_only_what_they_select(spark: SparkSession, filled: Filled) -> None:
    """K-12: `seq`, `ts`, `tags`, `node`, `columns`."""
    path = filled(a=HUNDRED, b=HUNDRED[:20])
    assert seqs(load(spark, path=path, topics="a", startingSeq=20, endingSeq=25)) == list(range(20, 26))
    assert load(spark, path=path, subscribePattern="[ab]").groupBy("topic").count().orderBy("topic").collect() == [
        ("a", 100), ("b", 20),
    ]  # fmt: skip
    assert load(spark, path=path, topics="a", tags="t:3", columns="seq,tag").schema.names == ["seq", "tag"]
    assert seqs(load(spark, path=path, topics="a", tags="t:3")) == list(range(3, 101, 4))
    assert load(spark, path=path, topics="a", startingSeq=1000).count() == 0
    assert load(spark, path=path, topics="a", endingTimestamp="2020-01-01").collect() == []
    binary = load(spark, path=path, topics="b", payload="binary", meta="json").orderBy("seq").first()
    assert binary is not None
    assert (bytes(binary.data), binary.meta) == (b'{"n":1}', '{"n":1}')


def test_the_helper_parses_payloads_in_the_jvm(spark: SparkSession, filled: Filled) -> None:
    """K-12: `variant`, a schema as DDL or as a type; bounds as pairs."""
    path = filled(a=HUNDRED)
    typed = topics.spark.read(spark, path=path, topics="a", seq=(3, 5), payload="n int")
    assert [row[0] for row in typed.select("data.n").collect()] == [3, 4, 5]
    also = topics.spark.read(spark, path=path, topics=["a"], tags=["t:*"], payload=StructType().add("n", "long"))
    total = also.agg(sql.sum("data.n")).first()
    assert total is not None
    assert total[0] == 5050
    variant = topics.spark.read(spark, path=path, topics="a", payload="variant", columns=["seq", "data"])
    assert variant.select(sql.variant_get("data", "$.n", "int")).where("seq = 7").first() == (7,)
    since = topics.spark.read(spark, path=path, topics="a", ts=(datetime(2020, 1, 1, tzinfo=UTC), None), node="x")
    assert since.count() == 0


def test_a_gap_is_a_row_if_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """K-10: cap eviction passed the start."""
    env = {"TOPICS_SEGMENT_MAX_EVENTS": "7"}
    with running(tmp_path / "store", env) as server, server.client() as client:
        client.put("/v0/topics/t", json={"cap_records": 10})
        client.post("/v0/topics/t", json={"records": HUNDRED[:30]})
        found = load(spark, url=server.url, topics="t", startingSeq=5, onDataLoss="emit").orderBy("seq").collect()
    assert [(row.seq, row.gap_to, row.kind, row.reason) for row in found[:2]] == [
        (5, 20, "gap", "cap"), (21, None, "record", None),
    ]  # fmt: skip
    assert len(found) == 11
