"""`spark.readStream.format("topics")`: triggers, checkpoints, what is lost on the way, lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import topics.spark
from tests.api.kit import running
from tests.unit.spark.streamkit import World

ENV = {"TOPICS_SEGMENT_MAX_EVENTS": "7", "TOPICS_CHECKPOINT_MS": "3600000"}
NOW: dict[str, Any] = {"availableNow": True}
OFTEN: dict[str, Any] = {"processingTime": "50 milliseconds"}


@pytest.fixture(params=["path", "url"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with running(tmp_path / "store", ENV) as server, server.client() as client:
        yield World(server, client, request.param, str(tmp_path / "store"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[World]:
    with running(tmp_path / "store", ENV) as server, server.client() as client:
        yield World(server, client, "url", "")


class Sink:
    """Rows of every batch that got through, in order; `fail` is the number of a batch that does not."""

    def __init__(self, spark: SparkSession, world: World, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._world = world
        self._checkpoint = checkpoint
        self._options = options
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.fail: int | None = None
        self.failed: list[tuple[Any, ...]] = []

    def start(self, trigger: dict[str, Any], **more: str) -> StreamingQuery:
        self._options |= more
        frame = self._spark.readStream.format("topics").options(**self._world.where, **self._options).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, **more: str) -> None:
        """Everything that there is, then the end."""
        self.started(NOW, StreamingQuery.awaitTermination, **more)

    def started(self, trigger: dict[str, Any], then: Callable[[StreamingQuery], object], **more: str) -> StreamingQuery:
        """A query that has come as far as `then` waits for.

        Spark gives the process of a source ten seconds to connect, however busy the machine is; one that had not the
        time has read nothing.
        """
        for left in reversed(range(10)):
            query = self.start(trigger, **more)
            try:
                then(query)
                break
            except StreamingQueryException as error:
                if not left or "connect back" not in str(error):
                    raise
        return query

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = [(row.topic, row.kind, row.seq, row.gap_to, row.reason) for row in frame.collect()]
        rows.sort(key=lambda row: (row[0], row[2]))
        assert number not in self.batches
        if number == self.fail:
            self.fail, self.failed = None, rows
            raise RuntimeError("on purpose")
        self.batches[number] = rows

    @property
    def seqs(self) -> list[int]:
        return [seq for number in sorted(self.batches) for _, kind, seq, *_ in self.batches[number] if kind == "record"]


def last_line(error: StreamingQueryException) -> str:
    (line,) = {line for line in str(error).splitlines() if line.startswith("topics: ")}
    return line


def test_what_there_is_comes_in_batches_and_a_restart_goes_on(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """K-20, K-21: AvailableNow with a limit, then again; nothing new is no batch; Once has no limit."""
    world.put("a")
    world.write("a", 25)
    sink = Sink(spark, world, tmp_path / "checkpoint", topics="a", maxRecordsPerTrigger="10")
    sink.run()
    assert [len(rows) for rows in sink.batches.values()] == [10, 10, 5]
    sink.run()
    world.write("a", 5)
    sink.run()
    assert sink.seqs == list(range(1, 31))
    assert len(sink.batches) == 4
    world.write("a", 15)
    sink.started({"once": True}, StreamingQuery.awaitTermination)
    assert [seq for _, _, seq, *_ in sink.batches[4]] == list(range(31, 46))


def test_a_batch_that_failed_is_the_same_when_it_is_read_again(
    spark: SparkSession, served: World, tmp_path: Path
) -> None:
    """K-20: the first one of `latest` too, whose start is not in the checkpoint, when what is latest has moved on."""
    served.put("a")
    served.write("a", 10)
    sink = Sink(spark, served, tmp_path / "checkpoint", topics="a", startingSeq="latest")
    sink.fail = 0
    with pytest.raises(StreamingQueryException, match="on purpose"):
        sink.run()
    served.write("a", 6)
    sink.run()
    assert (sink.failed, sink.batches[0], sink.seqs) == ([], [], [11, 12, 13, 14, 15, 16])
    sink.fail = 2
    served.write("a", 4)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        sink.run()
    served.write("a", 3)
    sink.run()
    assert sink.batches[2] == sink.failed
    assert sink.seqs == list(range(11, 24))


def test_a_running_query_takes_what_comes_and_new_topics_join(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """K-21: ProcessingTime; every record once over writes, a stop and a restart."""
    world.put("n1")
    world.write("n1", 3)
    sink = Sink(spark, world, tmp_path / "checkpoint", subscribePattern="n.", maxRecordsPerTrigger="4")
    query = sink.started(OFTEN, StreamingQuery.processAllAvailable)
    try:
        assert sink.seqs == [1, 2, 3]
        world.put("n2")
        world.write("n2", 9)
        world.write("n1", 2)
        query.processAllAvailable()
    finally:
        query.stop()
    world.write("n2", 1)
    sink.run()
    rows = [row for rows in sink.batches.values() for row in rows]
    assert sorted((topic, seq) for topic, _, seq, *_ in rows) == [
        *(("n1", seq) for seq in range(1, 6)), *(("n2", seq) for seq in range(1, 11)),
    ]  # fmt: skip
    assert max(len(one) for one in sink.batches.values()) <= 4


@pytest.mark.parametrize("policy", ["fail", "emit", "skip"])
def test_what_is_lost_goes_by_the_policy(spark: SparkSession, served: World, tmp_path: Path, policy: str) -> None:
    """K-20, K-15: retention passes the offset of `a`, `b` is made anew; the error of `fail` says what to do."""
    served.put("a", cap_records=5)
    served.put("b")
    served.write("a", 3)
    served.write("b", 3)
    sink = Sink(spark, served, tmp_path / "checkpoint", topics="a,b", onDataLoss=policy)
    sink.run()
    served.delete("b")
    served.put("b")
    if policy == "fail":
        with pytest.raises(StreamingQueryException) as recreated:
            sink.run()
        assert last_line(recreated.value).startswith("topics: recreated: b was deleted and made anew since the stream")
        sink.run(topics="a", onDataLoss="fail")
    served.write("a", 9)
    served.write("b", 2)
    if policy == "fail":
        with pytest.raises(StreamingQueryException) as lost:
            sink.run()
        assert last_line(lost.value).startswith("topics: data_loss: a: seqs 4 to 7 are missing (cap): ")
        assert len(sink.batches) == 1
        return
    sink.run()
    gaps = {"emit": [("a", "gap", 4, 7, "cap")], "skip": []}[policy]
    anew = {"emit": [("b", "gap", 1, 2, "recreated")], "skip": []}[policy]
    records = [("a", "record", seq, None, None) for seq in range(8, 13)]
    records += [("b", "record", 1, None, None), ("b", "record", 2, None, None)]
    assert set(sink.batches[1]) == {*gaps, *anew, *records}
    assert len(sink.batches[1]) == len(gaps) + len(anew) + len(records)


def test_the_lag_is_what_was_not_read_at_the_last_report(
    spark: SparkSession, served: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K-22: by topic, from the progress alone."""
    served.put("a")
    served.put("bb")
    served.write("a", 1500)
    served.write("bb", 5)
    sink = Sink(spark, served, tmp_path / "checkpoint", topics="a,bb", maxRecordsPerTrigger="105")

    def reported(query: StreamingQuery) -> None:
        while query.lastProgress is None or not sink.batches:
            query.awaitTermination(1)

    query = sink.started({"processingTime": "1 hour"}, reported)
    try:
        assert topics.spark.lag(query) == {"a": 1396, "bb": 4}
    finally:
        query.stop()
    assert capsys.readouterr().out == "a          1,396 behind\nbb             4 behind\n"


def test_bad_options_of_a_stream_end_in_our_line(spark: SparkSession, served: World, tmp_path: Path) -> None:
    """K-15"""
    served.put("a")
    for options, line in (
        ({"topics": "nope"}, "topics: topic_not_found: "),
        ({"topics": "a", "endingSeq": "5"}, "topics: invalid_option: endingSeq: a stream has no end — "),
    ):
        with pytest.raises(StreamingQueryException) as caught:
            Sink(spark, served, tmp_path / line, **options).run()
        assert last_line(caught.value).startswith(line)
