"""Single files of a lake table: in a directory, or as objects of a bucket [K-44, A-7].

A file is named by the root of its table and its path below that; an empty root means a path of this machine. Objects
appear whole or not at all; a Parquet file for a bucket is written aside and then sent. Credentials are those of the
process, never part of a root: each machine that runs tasks needs them. Any thread; tasks and driver.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from topics.errors import SettingsError, StoreUnavailable
from topics.spark.failure import SourceError
from topics.storage.tiers import place
from topics.storage.tiers.open import open_bucket

if TYPE_CHECKING:
    from topics.storage.tiers.bucket import Bucket

OPTION = "--out"


def normal(out: str) -> str:
    """What `--out` names: a directory as an absolute path, objects as the URL that means them."""
    try:
        meant = place.parse(out, OPTION)
    except SettingsError as error:
        raise SourceError("invalid_option", str(error), "name a directory, or s3://bucket/prefix?…") from error
    if isinstance(meant, str):
        return os.path.abspath(meant)
    if meant.scheme == "memory":
        raise SourceError("invalid_option", f"{OPTION}: tasks do not share memory", "name a directory, or a bucket")
    return str(meant)


def is_objects(out: str | None) -> bool:
    """Whether it is a bucket, of what `normal` gave."""
    return out is not None and "://" in out


@cache
def bucket(root: str) -> Bucket:
    """The objects of a table."""
    meant = place.parse(root, OPTION)
    assert not isinstance(meant, str)
    return open_bucket(meant, OPTION)


def read(root: str, path: str) -> bytes | None:
    """A whole object; None if there is none."""
    from topics.storage.tiers.answers import PIECE_BYTES, Absent, Beyond

    parts: list[bytes] = []
    try:
        while not parts or len(parts[-1]) == PIECE_BYTES:
            parts.append(bucket(root).read(path, len(parts) * PIECE_BYTES, PIECE_BYTES))
    except Absent:
        return None
    except Beyond:  # it ends where a piece does
        pass
    return b"".join(parts)


def readable(root: str, path: str) -> Any:
    """What Parquet reads a file from; `FileNotFoundError` if it is not there."""
    if not root:
        return path
    data = read(root, path)
    if data is None:
        raise FileNotFoundError(path)
    return pa.BufferReader(data)


def size(root: str, path: str) -> int:
    """Bytes of a file; 0 if it is not there."""
    if not root:
        return os.path.getsize(path) if os.path.exists(path) else 0
    from topics.storage.tiers.answers import Absent

    try:
        return bucket(root).know(path).size
    except Absent:
        return 0


class NewFile:
    """A file that is being written at `path`; it is there, for good, once it is done."""

    def __init__(self, root: str, path: str) -> None:
        self._root, self._target = root, path
        self._aside = tempfile.NamedTemporaryFile(prefix="topics-", suffix=".parquet") if root else None  # noqa: SIM115
        self.path = path if self._aside is None else self._aside.name

    def done(self) -> int:
        """Make it durable; its size."""
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if self._aside is None:
                os.fsync(file.fileno())
            else:
                _send(bucket(self._root), self._target, file, size)
        if self._aside is not None:
            self._aside.close()
        return size


def _send(bucket: Bucket, path: str, file: IO[bytes], size: int) -> None:
    from topics.storage.tiers.object import MULTIPART_BYTES

    if size > MULTIPART_BYTES:
        bucket.put_pieces(path, _pieces(file), {})
    else:
        bucket.put(path, file.read(), {})
    if bucket.know(path).size != size:
        raise StoreUnavailable(f"{bucket.name}: {path} is not what was put")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    from topics.storage.tiers.answers import PIECE_BYTES

    while piece := file.read(PIECE_BYTES):
        yield piece
