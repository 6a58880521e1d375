"""Reading and writing topics with Spark, or reading with Arrow alone (spec 10).

    import topics.spark

    spark = topics.spark.session()
    spark.read.format("topics").option("path", "./topics-data").option("topics", "orders").load()
    topics.spark.read(spark, path="./topics-data", topics="orders", payload="sku string, qty int")
    spark.readStream.format("topics").option("url", "http://127.0.0.1:4000").option("topics", "orders").load()
    topics.spark.write(frame, url="http://127.0.0.1:4000", topic="orders")

Names are imported when they are first used: decoding and `topics export` do without Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.spark.failure import SourceError as SourceError
    from topics.spark.frames import read as read
    from topics.spark.frames import register as register
    from topics.spark.frames import write as write
    from topics.spark.local import session as session
    from topics.spark.progress import lag as lag

_HOMES = {
    "SourceError": "failure", "lag": "progress", "read": "frames", "register": "frames", "session": "local",
    "write": "frames",
}  # fmt: skip

__all__ = ["SourceError", "lag", "read", "register", "session", "write"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"topics.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
