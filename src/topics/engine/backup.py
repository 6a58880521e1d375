"""A stopped store, brought to the state a backup is taken of: closed in order [S-319].

An engine that was killed left records in its log. Opening and closing the store brings them into segments, as the next
start would, and leaves a snapshot that says so; a store that was closed in order stays as it is. Then its lock is held
while files are copied. The caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from topics import paths
from topics.clock import Clock
from topics.codec.snapshot import Snapshot
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import MetadataLost
from topics.fs import Fs, OsFs
from topics.settings import Settings
from topics.storage.backup.faults import SourceDamaged
from topics.storage.lockfile import StoreLock
from topics.storage.snapshot import SnapshotStore
from topics.storage.view import read_store_id


@contextmanager
def held(
    fs: Fs, path: str, config: Settings | None = None, *, clock: Clock | None = None, boot_id: str | None = None
) -> Iterator[Snapshot]:
    """The snapshot of a store that nobody else opens meanwhile; `DataDirInUse` if somebody has."""
    own = as_laid_out(fs, path, EngineConfig.of(config or EngineConfig()))
    engine = Engine.open(path, own, fs=None if isinstance(fs, OsFs) else fs, clock=clock, boot_id=boot_id)
    engine.close()
    if engine.core.corrupt:
        raise SourceDamaged([_found(engine.core.corrupt)])
    lock = StoreLock(fs, path, "", 0)
    try:
        snapshot = SnapshotStore(fs, f"{path}/{paths.META_DIR}").load(read_store_id(fs, path))
        if snapshot is None:
            raise MetadataLost(f"{path} has never had a topic: there is nothing to back up")
        if not snapshot.header.clean:
            raise MetadataLost(f"{path} could not be closed in order; `topics doctor {path}` tells more")
        yield snapshot
    finally:
        lock.release()


def _found(corrupt: int) -> str:
    """What opening has made of damage, as every start would: it is told once, the next backup is of what is left."""
    segments = f"{corrupt} segment{'' if corrupt == 1 else 's'}"
    return f"{segments} had to be made anew or given up when it was opened; readers are told what is lost"


def as_laid_out(fs: Fs, path: str, config: EngineConfig) -> EngineConfig:
    """With as many shards as the store has, and the cold tier that it names where none is configured [S-346].

    A command that opens a store for a moment is no reason to lay out its log anew, or to forget its tier.
    """
    headers = SnapshotStore(fs, f"{path}/{paths.META_DIR}").headers(None)
    groups = [row.group for row in headers[0].wal if not row.retired] if headers else []
    cold_dir = config.cold_dir or (headers[0].cold if headers else None)
    return replace(config, wal_shards=len(groups) or config.wal_shards, cold_dir=cold_dir)
