"""The format `topics` of Spark (10 §2): the source. Its streams are in `streaming`.

    schema()       from the options `columns`, `payload` and `meta` [K-10]
    partitions()   the plan, made once per `load()` at the first action [K-11]; on the driver, in a process of its own
    read()         a partition's rows as Arrow batches, in a process of an executor

A table of the catalog (`CREATE TABLE … USING topics`) is read without its options: Spark 4.3 passes them to `schema()`
when the table is made, and not to `reader()`. So they are kept in the metadata of the table's first column.

`pushFilters` is not implemented, and must not be: Spark keeps the plan of the filters pushed last for all scans of a
DataFrame [K-12]. Errors end in our own line [K-15].
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from topics.clock import SystemClock
from topics.fs import OsFs
from topics.spark.failure import SourceError, in_spark
from topics.spark.options import layout_of, parse_read
from topics.spark.plan import Partition
from topics.spark.reader import plan_read, read_partition
from topics.spark.writeoptions import parse_write

PROVIDER: Final = "provider"
"""An option that only tables of a catalog have."""
KEPT: Final = "topics.options"
_CATALOG: Final = frozenset(
    {PROVIDER, "owner", "location", "comment", "collation", "external", "is_managed_location", "serialization.format"}
)

P = ParamSpec("P")
T = TypeVar("T")

_MAP: Final = MapType(StringType(), StringType())
_TYPES: Final[dict[str, DataType]] = {"seq": LongType(), "ts": TimestampType(), "meta": _MAP, "gap_to": LongType()}
"""Of the columns that are not text."""


def told(call: Callable[P, T]) -> Callable[P, T]:
    """The call with errors that end in our own line."""

    @wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            shown = in_spark(error)
            if shown is error:
                raise
            raise shown from None

    return wrapper


def schema_of(given: Mapping[str, str]) -> StructType:
    """The schema that options give [K-10]."""
    columns, binary, meta_json = layout_of(given)
    types = dict(_TYPES)
    if binary:
        types["data"] = BinaryType()
    if meta_json:
        types["meta"] = StringType()
    return StructType([StructField(name, types.get(name, StringType())) for name in columns])


class TopicsSource(DataSource):
    """Topics of a data directory or of a server."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    @told
    def schema(self) -> StructType:
        given = own_options(self.options)
        schema = schema_of(given)
        if PROVIDER in {name.lower() for name in self.options}:
            _keep(given, schema)
        return schema

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicsReader(self._given(schema))

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  as Spark calls it
        from topics.spark.streaming import TopicsStreamReader

        return TopicsStreamReader(self._given(schema))

    def _given(self, schema: StructType) -> dict[str, str]:
        """The options of a read, whose schema is the one they give."""
        kept = schema.fields[0].metadata.get(KEPT) if schema.fields else None
        given = (json.loads(kept) if kept else {}) | own_options(self.options)
        own = schema_of(given)
        if [(one.name, one.dataType) for one in schema] != [(one.name, one.dataType) for one in own]:
            raise SourceError(
                "schema_mismatch",
                f"the schema is {own.simpleString()}, not {schema.simpleString()}",
                "leave the schema out; `columns`, `payload` and `meta` choose it",
            )
        return given

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from topics.spark import writer

        writer.refuse_overwrite(overwrite)
        return writer.TopicsWriter(parse_write(own_options(self.options)), schema)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from topics.spark import writer

        writer.refuse_overwrite(overwrite)
        return writer.TopicsStreamWriter(parse_write(own_options(self.options), stream=True), schema)


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are meant for us: a table of the catalog brings some of its own."""
    found = {
        name.lower(): value
        for name, value in options.items()
        if name.lower() not in _CATALOG and not name.lower().startswith("option.")
    }
    if found.get("path", "").startswith("file:"):
        found["path"] = re.sub("^file:/{0,2}(?=/)", "", found["path"])
    return found


def _keep(given: dict[str, str], schema: StructType) -> None:
    """Put the options of a table where its reader finds them."""
    if "apikey" in given:
        raise SourceError("invalid_option", "apiKey: a table would keep the key itself", "use `apiKeyFile`")
    parse_read(given)
    schema.fields[0].metadata = {KEPT: json.dumps(given)}


class TopicsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(len(partition.pieces))
        self.partition = partition


class TopicsReader(DataSourceReader):
    """A read of what the options select."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = parse_read(given)
        self._options = options._replace(path=None if options.path is None else os.path.abspath(options.path))

    @told
    def partitions(self) -> list[InputPartition]:
        _leave_modules_alone()
        return [TopicsPartition(one) for one in plan_read(OsFs(), self._options, SystemClock().now_ms())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)


def read_rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in a process of an executor; of a read or of a batch of a stream."""
    if not isinstance(partition, TopicsPartition):  # Spark's own, where there is nothing to read [K-13]
        return
    if TaskContext.get() is not None:
        _leave_modules_alone()
    try:
        yield from read_partition(OsFs(), partition.partition)
    except Exception as error:
        shown = in_spark(error)
        if shown is error:
            raise
        raise shown from None


@cache
def _leave_modules_alone() -> None:
    """Once for each process that Spark reads or plans with: it has them collect garbage after everything they did.

    Each time it would go through all that pyspark, pandas and we have imported, which takes as long as decoding a good
    part of a partition does. What is there now is not gone through again; it is freed as before once nothing refers
    to it.
    """
    gc.freeze()
