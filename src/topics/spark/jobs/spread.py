"""Python functions as Spark tasks: one item each, results as objects [K-40].

`mapInArrow` over a range is all that is used of Spark, so it works over Connect as well. Items travel with the
function. A task that fails ends the job; the line it said is raised again on the driver [K-15]. While a job runs, a
thread looks how many of its tasks are done; Connect tells nothing but the end.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from topics.spark.failure import SourceError, from_spark, in_spark
from topics.spark.jobs.work import Tell, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
POLL_S: Final = 0.2
Task = Callable[[T], Iterable[dict[str, Any]]]


def spread(spark: SparkSession, items: Sequence[T], task: Task[T], tell: Tell, unit: str) -> list[dict[str, Any]]:
    """What the task says about every item, in the order of items."""
    if not items:
        return []
    packed = [pickle.dumps(item) for item in items]
    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(_function(packed, task), "told string")
    with watched(spark, len(items), tell, unit), spoken():
        rows = frame.collect()
    return [json.loads(row[0]) for row in rows]


def _function(packed: list[bytes], task: Task[T]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _answered(packed[number], task)

    return run


def _answered(packed: bytes, task: Task[T]) -> pa.RecordBatch:
    try:
        told = [json.dumps(one) for one in task(pickle.loads(packed))]
    except Exception as error:
        shown = in_spark(error)
        if shown is error:
            raise
        raise shown from None
    return pa.RecordBatch.from_arrays([pa.array(told, pa.string())], names=["told"])


@contextmanager
def spoken() -> Iterator[None]:
    """Errors of tasks as the line they end in."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = from_spark(str(error))
        if ours is not None:
            raise ours from error
        raise SourceError("spark_failed", first_line(error), "--debug shows all that Spark said") from error


@contextmanager
def watched(spark: SparkSession, total: int, tell: Tell, unit: str) -> Iterator[None]:
    """Tells how many tasks are done while the block runs, and all of them at its end."""
    ended = threading.Event()
    tracker = _tracker(spark)
    tell(0, total, unit)

    def look() -> None:
        while not ended.wait(POLL_S):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks == total and not ended.is_set():
                    tell(info.numCompletedTasks, total, unit)

    looking = threading.Thread(target=look, name="topics-progress", daemon=True) if tracker is not None else None
    if looking is not None:
        looking.start()
    try:
        yield
        tell(total, total, unit)
    finally:
        ended.set()
        if looking is not None:
            looking.join()


def _tracker(spark: SparkSession) -> Any:
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext.statusTracker()
    except PySparkException:  # Connect has none
        return None
