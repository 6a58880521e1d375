"""Making a store of a backup [S-319]: a new one, with an id of its own.

    1   the directory is empty, or holds what an earlier restore of this backup left
    2   `meta/RESTORING`, synced: from here on no engine opens it
    3   every segment, verified as it is read and as it was written
    4   `meta/STORE` with a new id, and the snapshot with that id
    5   `meta/RESTORING` goes: **now it is a store**

Killed anywhere it can be run again, and only then is the store to be had. One thread, which holds the store's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from topics import paths
from topics.codec import snapshot as snapshots
from topics.codec.manifest import Manifest, Part, SegmentParts
from topics.codec.snapshot import Snapshot, TopicItem
from topics.fs import Fs, close_quietly, ensure_dir, pread_exact, random_id, replace_file
from topics.storage.backup.depot import Depot, read_whole, write_verified
from topics.storage.backup.faults import NotABackup, TargetNotEmpty
from topics.storage.backup.take import newest, part_name, parts_of, read_snapshot
from topics.storage.lockfile import StoreLock
from topics.storage.view import read_store_id

_OWN_DIRS = frozenset((paths.META_DIR, paths.TOPICS_DIR))


class Restored(NamedTuple):
    """What a restore came to."""

    manifest: Manifest
    store: str
    """The new id."""
    written_bytes: int


class _Marker(msgspec.Struct, frozen=True):
    """What `meta/RESTORING` says: which backup is on its way, and the id the store will have."""

    number: int
    snapshot: int
    of: str
    store: str


_MARKER: Final = msgspec.json.Decoder(_Marker)


def restore(fs: Fs, depot: Depot, dir: str, copied: Callable[[int], None] = lambda size: None) -> Restored:
    """Make `dir` a store; `TargetNotEmpty`, `NotABackup` and `BackupDamaged` leave no store there."""
    manifest = newest(depot, depot.listing())
    if manifest is None:
        raise NotABackup(f"{depot.name} holds no complete backup")
    snapshot = read_snapshot(depot, manifest)
    _check_target(fs, dir, manifest)
    ensure_dir(fs, dir)
    lock = StoreLock(fs, dir, "", 0)
    try:
        return _Restore(fs, depot, dir, manifest, snapshot, copied).run()
    finally:
        lock.release()


def _check_target(fs: Fs, dir: str, manifest: Manifest) -> None:
    """An empty directory will do, or one that a restore of the same backup has begun."""
    try:
        names = set(fs.listdir(dir)) if fs.exists(dir) else set()
    except NotADirectoryError:
        raise TargetNotEmpty(f"{dir} is not a directory") from None
    if not names - {paths.LOCK_FILE}:
        return
    begun = _marker(fs, dir)
    if begun is None and not _is_barely_begun(fs, dir, names):
        raise TargetNotEmpty(f"{dir} is not empty; a store is restored to a directory of its own")
    if begun is not None and _identity(begun) != (manifest.number, manifest.snapshot.xxh3, manifest.store):
        raise TargetNotEmpty(f"{dir} holds an unfinished restore of another backup; remove it first")


def _is_barely_begun(fs: Fs, dir: str, names: set[str]) -> bool:
    """Nothing but empty directories, and the marker that was not yet in place."""
    if not names <= {paths.LOCK_FILE, *_OWN_DIRS}:
        return False
    unfinished = {paths.tmp(paths.RESTORING_FILE)}
    return all(set(fs.listdir(f"{dir}/{name}")) <= unfinished for name in names & _OWN_DIRS)


def _identity(marker: _Marker) -> tuple[int, int, str]:
    return marker.number, marker.snapshot, marker.of


def _marker(fs: Fs, dir: str) -> _Marker | None:
    path = f"{dir}/{paths.META_DIR}/{paths.RESTORING_FILE}"
    if not fs.exists(path):
        return None
    file = fs.open(path, "r")
    try:
        return _MARKER.decode(pread_exact(file, file.size(), 0))
    except msgspec.MsgspecError as error:
        raise TargetNotEmpty(f"{path} cannot be read: {error}; remove the directory first") from error
    finally:
        close_quietly(file)


class _Restore:
    """One restore."""

    def __init__(
        self, fs: Fs, depot: Depot, dir: str, manifest: Manifest, snapshot: Snapshot, copied: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._depot = depot
        self._dir = dir
        self._meta = f"{dir}/{paths.META_DIR}"
        self._manifest = manifest
        self._snapshot = snapshot
        self._copied = copied
        self._bytes = 0

    def run(self) -> Restored:
        store = self._begin()
        segments: dict[int, list[SegmentParts]] = {}
        for one in self._manifest.segments:
            segments.setdefault(one.topic_id, []).append(one)
        for item in self._snapshot.topics:
            self._topic(item, segments.get(item.id, []))
        self._finish(store)
        return Restored(self._manifest, store, self._bytes)

    def _begin(self) -> str:
        """The marker, durable before anything else; the id the store has from the first attempt on."""
        ensure_dir(self._fs, self._meta)
        marker = _marker(self._fs, self._dir)
        if marker is None:
            made = self._manifest
            marker = _Marker(made.number, made.snapshot.xxh3, made.store, random_id())
            replace_file(self._fs, f"{self._meta}/{paths.RESTORING_FILE}", msgspec.json.encode(marker))
        else:
            self._fs.sync_dir(self._meta)
        for name in (paths.WAL_DIR, paths.TOPICS_DIR):
            ensure_dir(self._fs, f"{self._dir}/{name}")
        return marker.store

    def _topic(self, item: TopicItem, segments: list[SegmentParts]) -> None:
        dir = f"{self._dir}/{paths.TOPICS_DIR}/{paths.topic_dir(item.id)}"
        ensure_dir(self._fs, dir)
        for one in segments:
            for kind, part in parts_of(one):
                generation = one.generation if kind == "data" else 0
                self._part(one, kind, part, f"{dir}/{paths.segment(one.first, kind, generation)}")
        told = {"v": 1, "id": item.id, "name": item.name, "epoch": item.epoch, "config": item.cfg}
        replace_file(self._fs, f"{dir}/{paths.TOPIC_FILE}", msgspec.json.encode(told))
        self._fs.sync_dir(dir)

    def _part(self, one: SegmentParts, kind: paths.SegmentKind, part: Part, path: str) -> None:
        if not self._has(path, part):
            name = part_name(one.topic_id, one.first, kind, part)
            write_verified(self._fs, path, read_whole(self._depot, name, part.bytes, part.xxh3))
            self._bytes += part.bytes
        self._copied(part.bytes)

    def _has(self, path: str, part: Part) -> bool:
        """Whether an earlier attempt has written this file: it got its name when it was synced."""
        if not self._fs.exists(path) or self._fs.size(path) != part.bytes:
            return False
        file = self._fs.open(path, "r")
        try:
            return xxh3_64_intdigest(pread_exact(file, part.bytes, 0)) == part.xxh3
        finally:
            close_quietly(file)

    def _finish(self, store: str) -> None:
        """The id, the snapshot, and only then away with the marker."""
        replace_file(self._fs, f"{self._meta}/{paths.STORE_FILE}", f"{store}\n".encode("ascii"))
        assert read_store_id(self._fs, self._dir) == store
        header = replace(self._snapshot.header, store=store)
        raw = snapshots.encode(header, self._snapshot.topics, self._snapshot.routers)
        write_verified(self._fs, f"{self._meta}/{paths.snapshot(header.id)}", raw)
        self._fs.sync_dir(self._meta)
        self._fs.remove(f"{self._meta}/{paths.RESTORING_FILE}")
        self._fs.sync_dir(self._meta)
