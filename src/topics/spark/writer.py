"""Writing with the format `topics` [K-30, K-31]: batches and streams over staged commits.

    write()    in a task: its rows are staged as a part that no other attempt has the name of
    commit()   on the driver: one call names a part for each partition, in order
    abort()    on the driver: what is staged is dropped; a committed version is left alone [K-32]

Who commits what is decided by identity alone, so that attempts, zombies, replays and lost answers append nothing twice:

    batch     `txnAppId` and `txnVersion`, or an id of this job alone
    stream    id = [`txnAppId` + "/"] + the id of the query, which a checkpoint keeps; version = number of the batch

Spark gives `write` neither query nor batch; they are in the task's local properties. It gives `commit` no task, so the
id travels in the messages (10 §8). Each call runs in a process of its own.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.spark import parts
from topics.spark.failure import SourceError
from topics.spark.parts import Staged, Target, Version
from topics.spark.rows import Row, Shape
from topics.spark.source import told
from topics.spark.upload import ServerTarget
from topics.spark.writeoptions import WriteOptions

log = logging.getLogger("topics.spark")

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
AT_LEAST_ONCE: Final = (
    "a write inside foreachBatch without txnAppId and txnVersion is repeated when its batch is: "
    "set txnAppId to a name of this write and txnVersion to the batch id"
)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has staged."""

    staged: Staged
    version: Version
    in_stream: bool


def target_of(options: WriteOptions) -> Target:
    """Where a write goes."""
    if options.url is not None:
        return ServerTarget(options)
    from topics.spark.sink import FolderTarget  # brings the engine, which tasks of a server's writer need not wait for

    return FolderTarget(options)


def is_in_stream(spark: SparkSession) -> bool:
    """Whether this thread is inside `foreachBatch`; with Spark Connect only tasks can tell."""
    try:
        return spark.sparkContext.getLocalProperty(QUERY) is not None
    except PySparkException as error:
        log.debug("not known: %s", error)
        return False


def refuse_overwrite(overwrite: bool) -> None:
    """A log is appended to."""
    if overwrite:
        raise SourceError("unsupported", "a topic cannot be overwritten", 'use mode("append"), output mode append')


class Writing:
    """What batches and streams have in common."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        Shape(schema, options.topic, text=options.text)
        self.options = options
        self._schema = schema

    def stage(
        self, version: Version, batches: Iterator[pa.RecordBatch], task: TaskContext, *, opened: bool = False
    ) -> Written:
        """The rows of a task as a part."""
        name = f"p{task.partitionId()}-a{task.attemptNumber()}-{task.taskAttemptId()}-{secrets.token_hex(4)}"
        target, rows = target_of(self.options), self._rows(batches)
        staged = parts.stage(target, self.options, version, name, rows, opened=opened)
        in_stream = task.getLocalProperty(QUERY) is not None
        return Written(staged, version, in_stream)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        shape, before = Shape(self._schema, self.options.topic, text=self.options.text), 0
        for batch in batches:
            yield from shape.rows(batch, before)
            before += batch.num_rows

    def commit(self, version: Version, messages: Sequence[Written], *, newest: bool = False) -> None:
        """Make it visible; parts without rows need not be named."""
        target_of(self.options).commit(version, [one.staged for one in messages if one.staged.chunks], newest=newest)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """What tasks said, in the order of their partitions; nothing of those that failed."""
    return [one for one in messages if isinstance(one, Written)]


class TopicsWriter(DataSourceArrowWriter):
    """A batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema)
        target = target_of(options)
        target.check()
        self._is_known = options.app_id is not None
        id = f"spark-{secrets.token_hex(16)}" if options.app_id is None else options.app_id
        self._version = Version(id, options.version or 0)
        target.open(self._version)

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        return self._writing.stage(self._version, iterator, task, opened=True)

    @told
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = _written(messages)
        if not self._is_known and any(one.in_stream for one in written):
            log.warning(AT_LEAST_ONCE)
        if any(one.staged.chunks for one in written) or (written and self._is_known):
            self._writing.commit(self._version, written)
        else:
            target_of(self._writing.options).abort(self._version)

    @told
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        target_of(self._writing.options).abort(self._version, final=not self._is_known)


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """The batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema)

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        version = self._version(task)
        try:
            return self._writing.stage(version, iterator, task)
        except SourceError as error:
            if error.code == "invalid_row":
                # No attempt will get further, and if no task does, nobody tells `abort` whose batch it was.
                target_of(self._writing.options).abort(version)
            raise

    def _version(self, task: TaskContext) -> Version:
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if not query or not batch:
            what = "Spark has not said which query and batch this task belongs to"
            raise SourceError("unsupported", what, "use micro-batches: trigger processingTime or availableNow")
        label = self._writing.options.app_id
        return Version(query if label is None else f"{label}/{query}", int(batch))

    @told
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        versions = {one.version for one in written}
        assert all(one.number == batchId for one in versions), (versions, batchId)
        for version in versions:
            self._writing.commit(version, written, newest=True)

    @told
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for version in {one.version for one in _written(messages)}:
            target_of(self._writing.options).abort(version)
