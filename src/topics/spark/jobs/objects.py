"""A Parquet table as objects of a bucket [K-44]: the same names and manifests as in a directory.

    commit      the manifest is put if no object has its name; of two runs one wins
    moving      an object is copied to its folder, then the one in staging goes
    liveness    nobody can hold a lock here: what a run that was killed left in staging goes when it is a day old

A store that answers late may have taken a manifest although the library, asking again, is told that the name is taken:
whoever finds its own manifest there has won. Driver only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from topics.clock import SystemClock
from topics.errors import StoreUnavailable, TopicsError
from topics.fs import OsFs
from topics.spark.jobs import files
from topics.spark.jobs.lake import OWN_DIR, STAGING_DIR, Shape, log
from topics.spark.jobs.parquet import ParquetLake
from topics.storage.tiers.answers import Absent

DEAD_MS: Final = 86_400_000
"""How old what nobody commits any more becomes."""


class ObjectLake(ParquetLake):
    """The table at `out`, a URL."""

    def __init__(self, out: str, shape: Shape) -> None:
        super().__init__(OsFs(), out, shape)
        self.root = out
        self._bucket = files.bucket(out)
        self._settled = 0

    @contextmanager
    def staging(self, run: str) -> Iterator[str]:
        """The folder of a run; it has no lock. What a failed run committed is brought to its place first."""
        folder = f"{STAGING_DIR}/{run}"
        try:
            yield folder
        except BaseException:
            try:
                self.refresh()
            except TopicsError as error:
                log.warning("left for a later run: %s/%s: %s", self.root, folder, error)
            else:
                self._clear(folder)
            raise
        self._clear(folder)

    def sweep(self) -> None:
        before = SystemClock().now_ms() - DEAD_MS
        for run in self._bucket.folders(STAGING_DIR):
            if run[:13].isdigit() and int(run[:13]) < before:
                self._clear(f"{STAGING_DIR}/{run}")

    def _clear(self, folder: str) -> None:
        try:
            for name in list(self._bucket.keys(folder)):
                self._bucket.delete(f"{folder}/{name}")
        except StoreUnavailable as error:
            log.warning("left for a later run: %s/%s: %s", self.root, folder, error)

    def strays(self) -> list[str]:
        found = []
        for topic in self._bucket.folders(""):
            for day in self._bucket.folders(topic) if topic.startswith("topic=") else []:
                found += [f"{topic}/{day}/{name}" for name in self._bucket.keys(f"{topic}/{day}")]
        return sorted(set(found) - self._files.keys())

    def _names(self) -> list[str]:
        return list(self._bucket.keys(OWN_DIR))

    def _load(self, path: str) -> bytes:
        found = files.read(self.root, path)
        if found is None:
            raise StoreUnavailable(f"{self._bucket.name}: {path} is listed and not there")
        return found

    def _create(self, path: str, run: str, data: bytes) -> bool:
        return self._bucket.put(path, data, {}, create=True) or files.read(self.root, path) == data

    def _settle(self, told: Mapping[str, Any]) -> None:
        if self._settled == told["n"]:
            return
        for path in told["remove"]:
            self._bucket.delete(path)
        for one in told["add"]:
            source = f"{STAGING_DIR}/{told['run']}/{one['path'].rpartition('/')[2]}"
            if not files.size(self.root, one["path"]):
                try:
                    self._bucket.copy(source, one["path"])
                except Absent:
                    continue  # another run has moved it meanwhile
            self._bucket.delete(source)
        self._settled = told["n"]
