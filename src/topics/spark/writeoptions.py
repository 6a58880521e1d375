"""Options of a write with the format `topics` (10 §4): every one is checked before anything is written.

Names are not case-sensitive, and one that nobody knows is an error, as in a read. Pure functions; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple, get_args

from topics.model import Durability
from topics.spark.options import _api_key, _bad, _known, _number, _one_of

BATCH_RECORDS: Final = 5000
BATCH_BYTES: Final = 1 << 20
RETRY_MS: Final = 600_000
ID_BYTES_MAX: Final = 128
QUERY_ID_BYTES: Final = 36
"""Of the id that Spark gives a stream."""
_U64_MAX: Final = 2**64 - 1

WRITE: Final = (
    "url", "apiKey", "apiKeyFile", "path", "stagingDir", "topic", "dataFormat", "batchRecords", "batchBytes",
    "durability", "txnAppId", "txnVersion", "mode", "retryMs",
)  # fmt: skip
OF_STREAMS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark's own that reach the sink of a stream."""


class WriteOptions(NamedTuple):
    """What a writer was asked for."""

    url: str | None = None
    api_key: str | None = None
    path: str | None = None
    staging_dir: str = ""
    topic: str | None = None
    text: bool = False
    """Strings of `data` are text, not JSON."""
    segments: bool = False
    """Rows come as segments [K-34]."""
    batch_records: int = BATCH_RECORDS
    batch_bytes: int = BATCH_BYTES
    durability: str | None = None
    app_id: str | None = None
    version: int | None = None
    retry_ms: int = RETRY_MS
    """How long whoever does not answer is asked again."""

    def __repr__(self) -> str:
        """Without the key: what is shown in logs and plans is anybody's to read."""
        shown = self._replace(api_key=None if self.api_key is None else "…")
        return f"WriteOptions({', '.join(f'{name}={value!r}' for name, value in shown._asdict().items())})"


def parse_write(given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Options of a writer; `SourceError` for anything that cannot be meant."""
    own = {name: value for name, value in given.items() if not (stream and name.lower() in OF_STREAMS)}
    values = _known(own, WRITE)
    path, url = values.get("path"), values.get("url")
    if (path is None) == (url is None):
        raise _bad(
            "path or url", "exactly one of them is needed", "set `url` to a server or `path` to a data directory"
        )
    app_id, version = _identity(values, stream=stream)
    path = None if path is None else os.path.abspath(path)
    return WriteOptions(
        url=url,
        api_key=_api_key(values),
        path=path,
        staging_dir=os.path.abspath(values.get("stagingDir") or f"{path}.staging"),
        topic=values.get("topic") or None,
        text=_one_of(values, "dataFormat", "json", ("json", "text")) == "text",
        segments=_one_of(values, "mode", "append", ("append", "segments")) == "segments",
        batch_records=_number(values, "batchRecords", BATCH_RECORDS, 1, 1_000_000),
        batch_bytes=_number(values, "batchBytes", BATCH_BYTES, 1, 1 << 30),
        durability=_durability(values),
        app_id=app_id,
        version=version,
        retry_ms=_number(values, "retryMs", RETRY_MS, 0, 86_400_000),
    )


def _identity(values: Mapping[str, str], *, stream: bool) -> tuple[str | None, int | None]:
    """Who writes, and which version: both or neither; a stream has its own version [K-31]."""
    app_id = values.get("txnAppId") or None
    most = ID_BYTES_MAX - QUERY_ID_BYTES - 1 if stream else ID_BYTES_MAX
    if app_id is not None and len(app_id.encode()) > most:
        raise _bad("txnAppId", f"it has more than {most} bytes", "choose a shorter one")
    if stream:
        if "txnVersion" in values:
            raise _bad("txnVersion", "the version of a stream is the number of its batch", "leave it out")
        return app_id, None
    if (app_id is None) != ("txnVersion" not in values):
        raise _bad("txnAppId and txnVersion", "both or neither are needed", "a re-run is known by both together")
    return app_id, None if app_id is None else _number(values, "txnVersion", 0, 0, _U64_MAX)


def _durability(values: Mapping[str, str]) -> str | None:
    if "durability" not in values:
        return None
    return _one_of(values, "durability", "disk", get_args(Durability))
