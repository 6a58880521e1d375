"""Helpers on the driver: `register`, `read`, `write` [K-2, K-12, K-30]; errors are our line alone [K-15]."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from topics.clock import SystemClock
from topics.errors import TopicsError
from topics.fs import OsFs
from topics.spark.failure import SourceError, from_spark
from topics.spark.options import parse_read
from topics.spark.reader import plan_read
from topics.spark.writeoptions import parse_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Bounds = tuple[object | None, object | None]


def register(spark: SparkSession) -> None:
    """Make the format known to a session, wherever it looks for formats by itself."""
    from topics.spark.source import TopicsSource

    spark.dataSource.register(TopicsSource)


def read(
    spark: SparkSession,
    *,
    path: str | None = None,
    url: str | None = None,
    topics: str | Sequence[str],
    seq: Bounds = (None, None),
    ts: Bounds = (None, None),
    tags: str | Iterable[str] | None = None,
    node: str | Iterable[str] | None = None,
    columns: Sequence[str] | None = None,
    payload: str | StructType = "string",
    meta: str = "map",
    **options: object,
) -> DataFrame:
    """The records of topics as a DataFrame, made by one `load()`.

    `seq` and `ts` are pairs of inclusive bounds, None for none. `payload` is `"string"` (the stored JSON text),
    `"binary"`, `"variant"`, or a schema (a `StructType` or DDL such as `"sku string, qty int"`) that `data` is parsed
    into. Further options are those of the format, as they are called there.
    """
    given = _options(path, url, topics, seq, ts, tags, node, columns, meta, options)
    as_stored = payload in ("string", "binary")
    if as_stored:
        given["payload"] = str(payload)
    elif columns is not None and "data" not in columns:
        raise SourceError("invalid_option", "payload: `data` is not among the columns", "add it to `columns`")
    _check(given)
    register(spark)
    frame = spark.read.format("topics").options(**given).load()
    return frame if as_stored else frame.withColumn("data", _parsed(payload))


def write(
    df: DataFrame,
    *,
    path: str | None = None,
    url: str | None = None,
    topic: str | None = None,
    app_id: str | None = None,
    version: int | None = None,
    mode: str = "append",
    **options: object,
) -> None:
    """Append the rows of a DataFrame to topics, all or none; on return they are there.

    `topic` is where rows go that name none. With `app_id` and `version` the same write again appends nothing, whatever
    became of the first. `mode="segments"` is for large loads: tasks make the frames, and the store attaches them as
    segments. Further options are those of the format, as they are called there.
    """
    from pyspark.errors import PySparkException

    named: dict[str, object | None] = {
        "path": None if path is None else os.path.abspath(path), "url": url, "topic": topic, "txnAppId": app_id,
        "txnVersion": version, "mode": mode,
    }  # fmt: skip
    given = {name: _text(value) for name, value in (named | options).items() if value is not None}
    _check_write(df, given)
    register(df.sparkSession)
    try:
        df.write.format("topics").mode("append").options(**given).save()
    except PySparkException as error:
        ours = from_spark(str(error))
        if ours is None:
            raise
        raise ours from error


def _check_write(df: DataFrame, given: dict[str, str]) -> None:
    from topics.spark.rows import Shape
    from topics.spark.writer import AT_LEAST_ONCE, is_in_stream, target_of

    asked = parse_write(given)
    Shape(df.schema, asked.topic, text=asked.text)
    target_of(asked).check()
    if asked.app_id is None and is_in_stream(df.sparkSession):
        warnings.warn(AT_LEAST_ONCE, stacklevel=3)


def _options(
    path: str | None, url: str | None, topics: str | Sequence[str], seq: Bounds, ts: Bounds,
    tags: str | Iterable[str] | None, node: str | Iterable[str] | None, columns: Sequence[str] | None, meta: str,
    more: dict[str, object],
) -> dict[str, str]:  # fmt: skip
    named: dict[str, object | None] = {
        "path": None if path is None else os.path.abspath(path),  # Spark's processes are elsewhere
        "url": url,
        "topics": topics if isinstance(topics, str) else ",".join(topics),
        "startingSeq": seq[0],
        "endingSeq": seq[1],
        "startingTimestamp": ts[0],
        "endingTimestamp": ts[1],
        "tags": None if tags is None else json.dumps([tags] if isinstance(tags, str) else list(tags)),
        "node": None if node is None else json.dumps([node] if isinstance(node, str) else list(node)),
        "columns": None if columns is None else ",".join(columns),
        "meta": meta,
    }
    return {name: _text(value) for name, value in (named | more).items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _check(given: dict[str, str]) -> None:
    """Plan once: a wrong option, path, server or key is told here, not behind a traceback of Spark's."""
    try:
        plan_read(OsFs(), parse_read(given | {"pinMs": "0"}), SystemClock().now_ms())
    except SourceError:
        raise
    except TopicsError as error:
        raise SourceError(error.code, str(error), "check the store with `topics doctor`") from error
    except OSError as error:
        raise SourceError("io_error", str(error), "check the path and its permissions") from error


def _parsed(payload: str | StructType) -> Any:
    from pyspark.sql import functions as sql

    if payload == "variant":
        return sql.try_parse_json("data")
    return sql.from_json("data", payload)
