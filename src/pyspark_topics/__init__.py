"""Where Spark finds the format `topics` by itself: it looks for modules `pyspark_*` with a `DefaultSource` [K-2].

Nothing else is imported, and nothing raises: a `pyspark_*` module that does breaks every format, not only its own.
"""

import logging

try:
    from topics.spark.source import TopicsSource as DefaultSource
except Exception as error:  # noqa: BLE001  whatever is missing, other formats must be found
    logging.getLogger("topics.spark").info("the format topics is not offered: %s", error)

__all__ = ["DefaultSource"]
