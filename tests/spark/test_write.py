"""`df.write.format("topics")` and `topics.spark.write`: batches over staged commits [K-30 … K-34]."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import topics.spark
from tests.api.kit import WAIT_S, running
from tests.spark.conftest import Filled
from tests.spark.test_batch import HUNDRED, load
from tests.spark.test_errors import last_line
from topics.spark.failure import SourceError


def found(client: httpx.Client, topic: str) -> list[Any]:
    """All of a topic, in order; nothing if it is not there."""
    cursor, values = 0, []
    while True:
        answer = client.post(f"/v0/topics/{topic}/diff", json={"from_seq": cursor, "limit": 1000})
        if answer.status_code == 404:
            return []
        page = answer.raise_for_status().json()
        values += [one["data"] for one in page["records"]]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return values


def numbers(spark: SparkSession, n: int, partitions: int = 2) -> DataFrame:
    """The numbers below n as JSON text, in order."""
    return spark.range(0, n, 1, partitions).selectExpr("cast(id as string) data")


def save(frame: DataFrame, **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    frame.write.format("topics").mode("append").options(**given).save()


def left_staged(store: Path) -> list[str]:
    """What stays in the server's own staging; files go in their own time, behind the answer."""
    end = time.monotonic() + WAIT_S
    while (left := [name for _, _, names in os.walk(store / "staging") for name in names]) and time.monotonic() < end:
        threading.Event().wait(0.01)
    return left


def test_what_was_read_can_be_written_back(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    """K-30: all columns of a read, in its order, over several topics; meta as text loses nothing."""
    records: list[dict[str, Any]] = [
        {"data": {"n": n, "x": 1.0}, "tag": f"t{n % 3}", "node": "n" if n % 2 else None} for n in range(60)
    ]
    records[7]["meta"] = {"n": 1.0, "z": None, "o": {"a": [1]}}
    frame = load(spark, path=filled(a=records, b=HUNDRED), topics="a,b", meta="json")
    with running(tmp_path / "other") as server, server.client() as client:
        topics.spark.write(frame, url=server.url)
        for name, given in (("a", records), ("b", HUNDRED)):
            page = client.post(f"/v0/topics/{name}/diff", json={"from_seq": 0, "limit": 1000, "include_tags": True})
            assert [
                {"data": one["data"], "tag": one.get("$tag"), "node": one.get("$node"), "meta": one.get("meta")}
                for one in page.json()["records"]
            ] == [{"tag": None, "node": None, "meta": None} | one for one in given]
        again = load(spark, url=server.url, topics="a,b", payload="binary", meta="json")
        topics.spark.write(again.selectExpr("concat(topic, '2') topic", "tag", "data", "meta"), url=server.url)
        assert found(client, "a2") == [one["data"] for one in records]


def test_values_of_any_type_become_json(spark: SparkSession) -> None:
    """K-30: as Spark hands them over, nested ones and variants too."""
    frame = spark.sql(
        "select struct(id, cast(0.1 as float) f, cast(1.50 as decimal(9,2)) d, timestamp_seconds(id) t, array(id, null)"
        " l, map(id, 'x') m, parse_json('{\"v\": [1.0]}') v, cast('x' as binary) b) data from range(1)"
        " union all select null"
    )
    with running() as server, server.client() as client:
        save(frame, url=server.url, topic="t")
        save(spark.sql("select parse_json('[1, {\"a\": null}]') data, 'a' tag"), url=server.url, topic="v")
        save(spark.sql("select 'it''s {' data"), url=server.url, topic="s", dataFormat="text")
        assert found(client, "t") == [
            {
                "id": 0, "f": 0.1, "d": 1.5, "t": "1970-01-01T00:00:00Z", "l": [0, None], "m": {"0": "x"},
                "v": {"v": [1.0]}, "b": "eA==",
            },
            None,
        ]  # fmt: skip
        assert (found(client, "v"), found(client, "s")) == ([[1, {"a": None}]], ["it's {"])


@pytest.mark.parametrize("mode", ["append", "segments"])
def test_the_same_version_twice_appends_once(spark: SparkSession, mode: str) -> None:
    """K-31, K-34: in DataFrame order, whatever the partitions; without an identity each job is its own."""
    with running() as server, server.client() as client:
        for partitions in (2, 3):
            topics.spark.write(
                numbers(spark, 1000, partitions), url=server.url, topic="t", app_id="job", version=7, mode=mode,
                batchRecords=150,
            )  # fmt: skip
            assert found(client, "t") == list(range(1000))
        topics.spark.write(numbers(spark, 5), url=server.url, topic="t", app_id="job", version=6)
        assert len(found(client, "t")) == 1000
        told = client.get("/v0/txn/job").json()
        assert (told["version"], told["staged"], told["topics"][0]["attached"]) == (7, [], mode == "segments")
        for _ in range(2):
            save(numbers(spark, 5), url=server.url, topic="u")
        assert found(client, "u") == [*range(5), *range(5)]
        topics.spark.write(numbers(spark, 0), url=server.url, topic="t", app_id="job", version=8)
        assert client.get("/v0/txn/job").json()["version"] == 8


@pytest.mark.parametrize("mode", ["append", "segments"])
def test_a_directory_is_written_to_without_a_server(spark: SparkSession, mode: str, tmp_path: Path) -> None:
    """K-30: nothing is left beside the store; with a server running it is told to use `url`."""
    path = tmp_path / "store"
    for _ in range(2):
        topics.spark.write(numbers(spark, 500), path=str(path), topic="t", app_id="job", version=1, mode=mode)
        rows = topics.spark.read(spark, path=str(path), topics="t").orderBy("seq").select("data").collect()
        assert [row.data for row in rows] == [str(n) for n in range(500)]
        assert os.listdir(tmp_path) == ["store"]
    save(numbers(spark, 0), path=path, topic="t")
    with running(path), pytest.raises(SourceError, match=r"^topics: data_dir_in_use: .* — write with `url` while a se"):
        topics.spark.write(numbers(spark, 5), path=str(path), topic="t", retryMs=0)
    assert os.listdir(tmp_path) == ["store"]


def test_tasks_that_fail_are_tried_again_and_add_nothing(spark: SparkSession) -> None:
    """K-31, K-35: first attempts stage half of their rows and die; the second ones bring them in another order."""

    def shaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            if task.attemptNumber() == 0:
                yield batch.slice(0, batch.num_rows // 2)
                raise RuntimeError("on purpose")
            yield batch.take(pa.array(range(batch.num_rows))[::-1])

    with running() as server, server.client() as client:
        frame = numbers(spark, 600, 2).mapInArrow(shaky, "data string")
        topics.spark.write(frame, url=server.url, topic="t", batchRecords=20, app_id="job", version=1)
        assert Counter(found(client, "t")) == Counter(range(600))
        assert found(client, "t") == [*reversed(range(300)), *reversed(range(300, 600))]
        assert client.get("/v0/txn/job").json()["staged"] == []


def test_a_failed_job_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    """K-32: neither rows nor staging; the error is our own line."""
    frame = spark.range(0, 400, 1, 2).selectExpr("if(id = 399, 'no json', cast(id as string)) data")
    with running(tmp_path / "store") as server, server.client() as client:
        line = last_line(lambda: save(frame, url=server.url, topic="t", batchRecords=10))
        assert line.startswith("topics: invalid_row: row 200 of the partition: `data` is not JSON (")
        assert line.endswith("): 'no json' — correct it, or drop the row; dataFormat=text writes strings as they are")
        with pytest.raises(SourceError, match=r"^topics: invalid_row: row 200 of the partition: `data` is not JSON"):
            topics.spark.write(frame, url=server.url, topic="t", batchRecords=10)
        with pytest.raises(SourceError, match=r"^topics: record_too_large: .*rows 1 to 1 of the partition: "):
            topics.spark.write(
                spark.sql("select concat('\"', repeat('x', 2000000), '\"') data"), url=server.url, topic="t"
            )
        assert found(client, "t") == []
        assert left_staged(tmp_path / "store") == []
    with pytest.raises(SourceError, match=r"^topics: invalid_row: row 200"):
        topics.spark.write(frame, path=str(tmp_path / "here"), topic="t")
    assert os.listdir(tmp_path) == ["store"]


def test_bad_writes_end_in_our_own_line(spark: SparkSession) -> None:
    """K-15: unknown option, missing place, overwrite, schema, unreachable server, wrong key."""
    frame = numbers(spark, 5)
    with running(env={"TOPICS_API_KEYS": "open-sesame-123456"}) as server:
        url = server.url
        cases = [
            (frame, {"url": url, "topik": "t"}, "unknown_option: there is no option `topik` — did you mean `topic`?"),
            (frame, {"topic": "t"}, "invalid_option: path or url: exactly one of them is needed — set `url`"),
            (frame, {"url": url}, "schema_mismatch: there is neither a column `topic` nor an option — set the option"),
            (frame.selectExpr("*", "1 extra"), {"url": url, "topic": "t"}, "schema_mismatch: there is no place for a"),
            (frame, {"url": url, "topic": "t", "apiKey": "wrong"}, f"unauthorized: {url}: "),
        ]
        for one, options, line in cases:
            assert last_line(lambda one=one, options=options: save(one, **options)).startswith(f"topics: {line}")
            if options.get("topik") is None:
                named = {name: value for name, value in options.items() if value}
                with pytest.raises(SourceError) as caught:
                    topics.spark.write(one, **named)
                assert str(caught.value).startswith(f"topics: {line}")
                assert "\n" not in str(caught.value)
        over = frame.write.format("topics").mode("overwrite").options(url=url, topic="t")
        assert last_line(over.save).startswith("topics: unsupported: a topic cannot be overwritten — use mode(")
    gone = last_line(lambda: save(frame, url=url, topic="t", retryMs=0))
    assert gone.startswith(f"topics: unreachable: {url} does not answer: ")
    assert gone.endswith(" — start the server, or correct `url`")


def test_gap_rows_are_not_written_as_records(spark: SparkSession) -> None:
    """K-30: a read with `onDataLoss=emit` has rows that are no records."""
    with running() as server:
        gaps = spark.sql("select 'a' topic, cast(null as string) data, 'gap' kind, 5L gap_to, 'cap' reason")
        with pytest.raises(SourceError, match=r"its kind is `gap` — write records only: where"):
            topics.spark.write(gaps, url=server.url)


def test_inside_foreach_batch_an_identity_is_asked_for(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K-31: with `txnAppId` and the batch id a replay appends nothing; without, there is a warning."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("1\n2\n3\n")
    told: list[str] = []
    with running() as server, server.client() as client:

        def both(frame: DataFrame, batch: int) -> None:
            topics.spark.write(frame, url=server.url, topic="exact", app_id="flow", version=batch)
            with pytest.warns(UserWarning, match="inside foreachBatch without txnAppId and txnVersion") as caught:
                topics.spark.write(frame, url=server.url, topic="often")
            told.append(str(caught[0].message))

        for _ in range(2):
            rows = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "data")
            query = rows.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "c"))
            with caplog.at_level(logging.CRITICAL, "py4j"):
                query.trigger(availableNow=True).start().awaitTermination()
            for file in (tmp_path / "c/commits").iterdir():
                if "metadata" not in file.name:
                    file.unlink()  # as if the driver had died right before it said that the batch is done
        assert found(client, "exact") == [1, 2, 3]
        assert found(client, "often") == [1, 2, 3, 1, 2, 3]
        assert len(told) == 2
