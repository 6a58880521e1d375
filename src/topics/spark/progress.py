"""How far a streaming query is behind its topics [K-22].

Spark asks the source how far its topics reach and reports that beside where a batch ended; the difference is the lag. A
Python source cannot add metrics of its own. Driver only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topics.spark import offsets
from topics.spark.failure import SourceError
from topics.spark.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | ConnectQuery) -> dict[str, int]:
    """Print and return, by topic, how many seqs the query had not read when it last reported.

    A query that has not reported yet, or that reads no topics, gives nothing.
    """
    progress = query.lastProgress
    found: dict[str, int] = {}
    for source in _sources(progress):
        end, heads = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        for name, head in (heads or {}).items():
            read = (end or {}).get(name)
            at = read.seq if read is not None and read.is_of(head.epoch, head.store) else 0
            found[name] = max(found.get(name, 0), head.seq - at)
    width = max(map(len, found), default=0)
    for name, behind in sorted(found.items()):
        print(f"{name:<{width}}  {behind:>12,} behind")  # noqa: T201  what it is for
    return dict(sorted(found.items()))


def _sources(progress: Any) -> list[dict[str, Any]]:
    """The sources of a progress report, which is an object or a dict by version and kind of session."""
    if progress is None:
        return []
    told = json.loads(progress.json) if hasattr(progress, "json") else progress
    sources: list[dict[str, Any]] = told["sources"]
    return sources


def _offset(told: Any) -> Offset | None:
    """An offset of ours; None where there is none, or it is another source's."""
    given = json.loads(told) if isinstance(told, str) else told
    if not isinstance(given, Mapping):
        return None
    try:
        return offsets.parse(given)
    except SourceError:
        return None
