"""Where Spark finds the format `topics` by itself: it looks for modules `pyspark_*` with a `DefaultSource` [K-2].

Nothing else is imported, and nothing raises: a `pyspark_*` module that does breaks every format, not only its own.
"""

try:
    from topics.spark.source import TopicsSource as DefaultSource
except Exception:  # noqa: BLE001  whatever is missing, other formats must be found
    pass

__all__ = ["DefaultSource"]
