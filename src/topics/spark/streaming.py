"""`spark.readStream.format("topics")`: Spark's class around a `Stream` [K-20].

One process on the driver holds the reader for as long as the query runs and asks it for offsets and partitions; tasks
get a copy and call `read` alone. So the stream behind it is made when it is first asked. Errors end in our own line
[K-15].
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topics.clock import SystemClock
from topics.fs import OsFs
from topics.spark import offsets
from topics.spark.options import parse_stream
from topics.spark.source import TopicsPartition, read_rows, told
from topics.spark.stream import Stream

UNLIMITED: Final = 2**63 - 1


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of what the options select."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = parse_stream(given)
        read = options.read
        path = None if read.path is None else os.path.abspath(read.path)
        self._options = options._replace(read=read._replace(path=path))
        self._made: Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs; connections stay here."""
        return self.__dict__ | {"_made": None}

    def _stream(self) -> Stream:
        if self._made is None:
            self._made = Stream(OsFs(), self._options, SystemClock())
        return self._made

    @told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return offsets.told(self._stream().initial())

    @told
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = offsets.parse(start)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else UNLIMITED
        end = self._stream().latest(begun, None if isinstance(limit, ReadAllAvailable) else rows)
        return start if end is begun else offsets.told(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_records or UNLIMITED)

    @told
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return offsets.told(self._stream().heads())

    @told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream().fix()

    @told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = self._stream().partitions(offsets.parse(start), offsets.parse(end))
        return [TopicsPartition(one) for one in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)

    @told
    def commit(self, end: dict[str, Any]) -> None:
        self._stream().done(offsets.parse(end))

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
