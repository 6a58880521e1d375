"""Backups in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure.

An object appears whole or not at all, under a name that says what it holds. Its XXH3-64 and its length travel with it
and are compared after each put; from a store that loses them it is read back. Nothing keeps two backups from being
taken to one prefix at once: that is for whoever starts them. Synchronous; the thread that takes the backup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xxhash import xxh3_64_hexdigest

from topics import paths
from topics.errors import StoreUnavailable
from topics.storage.backup.depot import is_own
from topics.storage.tiers.answers import PIECE_BYTES, Absent, Beyond
from topics.storage.tiers.bucket import Bucket
from topics.storage.tiers.object import DIGEST, LENGTH, MULTIPART_BYTES


class ObjectDepot:
    """A prefix of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def name(self) -> str:
        return self._bucket.name

    def listing(self) -> frozenset[str]:
        found = [name for name in self._bucket.keys("") if is_own(name)]
        for topic in self._bucket.folders(paths.TOPICS_DIR):
            if paths.parse_topic_dir(topic) is not None:
                dir = f"{paths.TOPICS_DIR}/{topic}"
                names = self._bucket.keys(dir)
                found += [f"{dir}/{name}" for name in names if paths.parse_backup_part(name) is not None]
        return frozenset(found)

    def put(self, name: str, data: bytes) -> None:
        attributes = {DIGEST: xxh3_64_hexdigest(data), LENGTH: str(len(data))}
        if len(data) > MULTIPART_BYTES:
            pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
            self._bucket.put_pieces(name, pieces, attributes)
        else:
            self._bucket.put(name, data, attributes)
        self._compare(name, data, attributes)

    def flush(self) -> None:
        """An object that was put is there for good."""

    def read(self, name: str, size: int) -> bytes | None:
        parts: list[bytes] = []
        for at in range(0, max(size, 1), PIECE_BYTES):
            try:
                parts.append(self._bucket.read(name, at, min(PIECE_BYTES, size - at)))
            except Absent:
                return None
            except Beyond:
                break
            if len(parts[-1]) < PIECE_BYTES:
                break
        return b"".join(parts)

    def remove(self, name: str) -> None:
        self._bucket.delete(name)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        yield

    def _compare(self, name: str, data: bytes, attributes: dict[str, str]) -> None:
        try:
            known = self._bucket.know(name)
        except Absent:
            raise StoreUnavailable(f"{self.name}: {name} is not there after it was put") from None
        kept = {key: value for key, value in known.attributes.items() if key in attributes}
        same = known.size == len(data) and (kept == attributes if kept else self.read(name, len(data)) == data)
        if not same:
            raise StoreUnavailable(f"{self.name}: {name} is not what was put")
