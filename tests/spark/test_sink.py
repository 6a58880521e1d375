"""`writeStream.format("topics")`: every row exactly once, whatever happens in between [K-31, K-35], T16.

Rows come from files, one file a batch, so that what has to be there is known. Multisets are compared: a count would not
see a row that is lost and another that is there twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import topics.spark
from tests.api.kit import PLAIN, WAIT_S, running
from tests.spark.between import Between, Pass, Reply, between
from tests.spark.test_write import found, left_staged
from topics.testing.serverproc import ServerProcess

COMMIT = "/v0/txn/commit"
NO = Reply(400, b'{"error":{"code":"invalid_request","message":"on purpose"}}')


class Flow:
    """A stream of files into topics, with a checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "flow") -> None:
        self._spark = spark
        self._in = folder / "in"
        self._in.mkdir(exist_ok=True)
        self.checkpoint = folder / name

    def put(self, name: str, values: range) -> None:
        """A file, which becomes a batch; older ones come first."""
        file = self._in / f"{name}.txt"
        file.write_text("".join(f"{value}\n" for value in values))
        os.utime(file, (1_700_000_000 + ord(name),) * 2)

    def run(self, partitions: int = 2, through: Any = None, **options: object) -> None:
        """Everything there is, one file a batch; raises what stopped it."""
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._in)).selectExpr("value data")
        if partitions > 1:
            rows = rows.repartition(partitions)
        if through is not None:
            rows = rows.mapInArrow(through, "data string")
        given = {"topic": "t", "checkpointLocation": self.checkpoint, "batchRecords": 10} | options
        texts = {name: str(value) for name, value in given.items()}
        rows.writeStream.format("topics").options(**texts).trigger(availableNow=True).start().awaitTermination()

    @property
    def id(self) -> str:
        """Of the query, as the checkpoint keeps it."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def forget_last(self) -> None:
        """As if the driver had died before it noted that the last batch is done."""
        last = max((one for one in (self.checkpoint / "commits").iterdir() if one.name.isdigit()), key=_number)
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def _number(file: Path) -> int:
    return int(file.name)


def reordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in another order."""
    for batch in batches:
        yield batch.take(pa.array(range(batch.num_rows))[::-1])


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of the first partition gives half of its rows and fails; the second has another order."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    if task.partitionId():
        yield from batches
        return
    for batch in reordered(batches):
        if task.attemptNumber() == 0:
            yield batch.slice(batch.num_rows // 2)
            raise RuntimeError("on purpose")
        yield batch


def writer(client: httpx.Client, id: str) -> dict[str, Any]:
    state: dict[str, Any] = client.get(f"/v0/txn/{quote(id, safe='')}").raise_for_status().json()
    return state


def test_batches_become_versions_and_a_replay_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """K-31: a committed batch that is run again, with other partitions and failing tasks, appends nothing."""
    flow = Flow(spark, tmp_path)
    with running() as server, server.client() as client:
        flow.put("a", range(100))
        flow.run(2, failing, url=server.url, txnAppId="label")
        flow.put("b", range(100, 200))
        flow.run(2, url=server.url, txnAppId="label")
        assert Counter(found(client, "t")) == Counter(range(200))
        told = writer(client, f"label/{flow.id}")
        assert (told["version"], told["staged"], told["topics"][0]["count"]) == (1, [], 100)
        flow.forget_last()
        flow.put("c", range(200, 250))
        flow.run(3, reordered, url=server.url, txnAppId="label")
        assert Counter(found(client, "t")) == Counter(range(250))
        assert writer(client, f"label/{flow.id}")["version"] == 2


class Once:
    """Steps into the first commit that passes a proxy."""

    def __init__(self, proxy: Between, what: str) -> None:
        self._proxy = proxy
        self._what = what
        proxy.step = self

    def __call__(self, path: str, body: bytes, forward: Pass) -> Reply | None:
        if path != COMMIT:
            return forward()
        self._proxy.step = lambda path, body, forward: forward()
        if self._what == "error before":
            return NO
        forward()
        return NO if self._what == "error after" else None


@pytest.mark.parametrize("what", ["error before", "error after", "answer lost"])
def test_a_commit_that_fails_or_is_not_heard_is_done_once(spark: SparkSession, tmp_path: Path, what: str) -> None:
    """K-35: the driver is started again with 3 partitions instead of 2, and other rows in them."""
    flow = Flow(spark, tmp_path)
    flow.put("a", range(80))
    flow.put("b", range(80, 120))
    with running() as server, server.client() as client, between(server.url) as proxy:
        Once(proxy, what)
        if what == "answer lost":
            flow.run(2, url=proxy.url)
            assert proxy.of(COMMIT) == 3, "the first one was repeated"
        else:
            with pytest.raises(StreamingQueryException, match=r"topics: invalid_request: .*: on purpose — "):
                flow.run(2, url=proxy.url)
            assert len(found(client, "t")) == (0 if what == "error before" else 80)
            assert writer(client, flow.id)["staged"] == [], "it was aborted [K-32]"
            flow.run(3, reordered, url=proxy.url)
        assert Counter(found(client, "t")) == Counter(range(120))


def test_a_server_killed_between_stage_and_commit_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """K-35: it has forgotten what was staged; the batch fails, is run again, and is there once."""
    flow = Flow(spark, tmp_path)
    flow.put("a", range(50))
    flow.put("b", range(50, 90))
    servers = [ServerProcess(tmp_path / "server", {})]
    try:
        servers[0].wait_ready()
        with between(_url(servers[0])) as proxy:

            def kill(path: str, body: bytes, forward: Pass) -> Reply | None:
                if path == COMMIT and len(servers) == 1:
                    servers[0].kill()
                    servers.append(ServerProcess(tmp_path / "server", {}))
                    servers[1].wait_ready()
                    proxy.target = _url(servers[1])
                return forward()

            proxy.step = kill
            with pytest.raises(StreamingQueryException, match=r"topics: txn_incomplete: .* — run it again"):
                flow.run(url=proxy.url)
            flow.run(url=proxy.url)
        with httpx.Client(base_url=_url(servers[1]), verify=PLAIN, timeout=WAIT_S) as client:
            assert Counter(found(client, "t")) == Counter(range(90))
        servers[1].stop()
    finally:
        for one in servers:
            one.abandon()


def _url(server: ServerProcess) -> str:
    return "http://{}:{}".format(*server.address)


def test_a_checkpoint_that_went_back_swallows_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """K-31: batches of an older checkpoint have numbers that are taken; the query ends, and says why."""
    flow = Flow(spark, tmp_path)
    with running() as server, server.client() as client:
        flow.put("a", range(20))
        flow.run(url=server.url)
        shutil.copytree(flow.checkpoint, tmp_path / "older")
        flow.put("b", range(20, 40))
        flow.put("c", range(40, 60))
        flow.run(url=server.url)
        shutil.rmtree(flow.checkpoint)
        (tmp_path / "older").rename(flow.checkpoint)
        flow.put("d", range(60, 80))
        with pytest.raises(StreamingQueryException, match=r"topics: checkpoint_behind: batch 1 of .* batch 2 was"):
            flow.run(url=server.url)
        assert Counter(found(client, "t")) == Counter(range(60))


def test_flows_and_checkpoints_do_not_swallow_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """K-31, K-35: two flows into one sink under one label; a new checkpoint begins anew, and its rows are new rows."""
    with running() as server, server.client() as client:
        for folder, values in (("one", range(60)), ("two", range(100, 130))):
            (tmp_path / folder).mkdir()
            flow = Flow(spark, tmp_path / folder)
            flow.put("a", values)
            flow.run(url=server.url, txnAppId="shared")
        assert Counter(found(client, "t")) == Counter([*range(60), *range(100, 130)])
        Flow(spark, tmp_path / "one", "anew").run(url=server.url, txnAppId="shared")
        assert Counter(found(client, "t")) == Counter([*range(60), *range(60), *range(100, 130)])


def test_a_row_that_cannot_be_written_stops_the_stream_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """K-15, K-32: also where no task succeeds."""
    flow = Flow(spark, tmp_path)
    flow.put("a", range(30))
    with running(tmp_path / "store") as server, server.client() as client:
        flow.run(url=server.url)
        (tmp_path / "in/b.txt").write_text("30\n31\nno json\n")
        with pytest.raises(StreamingQueryException, match=r"topics: invalid_row: row 3 .*: 'no json' — correct it"):
            flow.run(1, url=server.url, batchRecords=1)
        assert left_staged(tmp_path / "store") == []
        assert sorted(found(client, "t")) == list(range(30))
        with pytest.raises(StreamingQueryException, match="topics: unknown_option: there is no option `tropic`"):
            flow.run(url=server.url, tropic="x")


def test_streams_into_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    """K-30, K-31: each commit opens the store; a replay publishes nothing."""
    flow = Flow(spark, tmp_path)
    flow.put("a", range(40))
    flow.put("b", range(40, 60))
    path = tmp_path / "store"
    flow.run(path=path)
    flow.forget_last()
    flow.run(3, reordered, path=path)
    rows = topics.spark.read(spark, path=str(path), topics="t").collect()
    assert Counter(int(row.data) for row in rows) == Counter(range(60))
    assert "store.staging" not in os.listdir(tmp_path)


def test_only_appending_streams_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    """K-30: an output mode that replaces what was written has no meaning for a log."""
    rows = spark.readStream.text(str(tmp_path)).groupBy("value").count().selectExpr("value data")
    query = rows.writeStream.format("topics").outputMode("complete").option("url", "http://127.0.0.1:1")
    (tmp_path / "a.txt").write_text("1\n")
    with pytest.raises(StreamingQueryException, match="topics: unsupported: a topic cannot be overwritten"):
        query.option("topic", "t").option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
