"""Snapshots in `meta/`: written so that one loads after any crash, read so that damaged ones are passed over (06 §13).

    write   tmp, fsync, rename, fsync of `meta/`, read back from the disk, and only then prune [S-213]
    load    newest first; one that is damaged or not ours is logged and the one before it tried [S-215]

**Two verified snapshots are kept** [R-4]: pruning spares the new one and the newest other that this object has loaded
or written, which is not always N-1. An attempt that fails leaves the previous snapshot in force [S-217] and takes its
own files away where it can; they do no harm where it cannot, because the WAL is trimmed only after a success.

Errors of the disk come through as `OSError`, also while loading: a store is never opened over data it could not
read [S-248]. Any thread, one call at a time.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection

from topics import paths
from topics.codec import snapshot as codec
from topics.codec.snapshot import Header, NotASnapshot, Snapshot
from topics.errors import MetadataLost, UnsupportedFormat
from topics.fs import Fs, close_quietly, pread_exact, pwrite_all

log = logging.getLogger("topics.storage")

READ_BACK_BYTES = 1 << 20
LISTINGS_MAX = 8
"""How often a directory is listed again because a file vanished: an engine next to this reader prunes [S-340]."""


class SnapshotStore:
    """The snapshots of one store. Invariant: once one was written or loaded, at least one that loads is on disk."""

    __slots__ = ("_dir", "_fs", "_verified")

    def __init__(self, fs: Fs, meta_dir: str) -> None:
        self._fs = fs
        self._dir = meta_dir
        self._verified: int | None = None  # newest snapshot that this object has read completely

    def numbers(self) -> list[int]:
        """Numbers of the snapshots present, newest first, damaged ones included."""
        found = (paths.parse_snapshot(name) for name in self._fs.listdir(self._dir))
        return sorted((number for number in found if number is not None), reverse=True)

    def next_number(self) -> int:
        """Number of the next snapshot: highest present + 1."""
        return max(self.numbers(), default=0) + 1

    def load(self, store_id: str | None) -> Snapshot | None:
        """The newest snapshot that is intact and of this store (None: of any), None if there is no file at all.

        `MetadataLost` if there are files and none will do [S-216]; `UnsupportedFormat` for a later version's [S-7].
        """
        for _ in range(LISTINGS_MAX):
            try:
                return self._newest_valid(self.numbers(), store_id)
            except FileNotFoundError as error:
                vanished = error
        raise vanished

    def headers(self, store_id: str | None) -> list[Header]:
        """Headers of all snapshots present that verify, newest first [S-21]; their topics are not decoded."""
        headers = []
        for number in self.numbers():
            try:
                headers.append(_own(codec.verify(self._read(number)), number, store_id))
            except NotASnapshot as error:
                log.warning("%s: %s", paths.snapshot(number), error)
        return headers

    def write(self, number: int, raw: bytes, spare: Collection[int] = ()) -> None:
        """Put an encoded snapshot in force, then prune all but those to spare; `OSError`: the previous one still is."""
        name = paths.snapshot(number)
        path, tmp = self._path(name), self._path(paths.tmp(name))
        header = codec.verify(raw)
        assert header.id == number, f"snapshot {header.id} under the name of {number}"
        if self._fs.exists(path):
            raise FileExistsError(errno.EEXIST, "a snapshot of this number exists", path)
        try:
            self._create(tmp, raw)
            self._fs.point("snap.after_tmp")
            self._fs.rename(tmp, path)
            self._fs.point("snap.after_rename")
            self._fs.sync_dir(self._dir)
            self._read_back(path, raw)
        except OSError:
            self._discard(tmp)
            self._discard(path)
            raise
        previous, self._verified = self._verified, number
        assert previous is None or previous < number
        self._fs.point("snap.before_prune")
        if previous is not None:
            self._prune(number, {previous, *spare})

    def tidy(self) -> int:
        """Remove what attempts that were cut short left behind (06 §14 step 2); returns how many files."""
        targets = ((name, paths.parse_tmp(name)) for name in self._fs.listdir(self._dir))
        stale = [name for name, target in targets if target is not None and _is_ours(target)]
        for name in stale:
            self._fs.remove(self._path(name))
        if stale:
            self._fs.sync_dir(self._dir)
        return len(stale)

    def _path(self, name: str) -> str:
        return f"{self._dir}/{name}"

    def _newest_valid(self, numbers: list[int], store_id: str | None) -> Snapshot | None:
        refused = []
        for number in numbers:
            try:
                snapshot = codec.decode(self._read(number))
                _own(snapshot.header, number, store_id)
            except NotASnapshot as error:
                refused.append(f"{paths.snapshot(number)}: {error}")
                log.error("snapshot refused, trying the one before: %s", refused[-1])
                continue
            except UnsupportedFormat as error:
                raise UnsupportedFormat(f"{paths.snapshot(number)}: {error}") from error
            self._verified = number
            return snapshot
        if refused:
            raise MetadataLost(f"no snapshot in {self._dir} can be used: {'; '.join(refused)}")
        return None

    def _read(self, number: int) -> bytes:
        file = self._fs.open(self._path(paths.snapshot(number)), "r")
        try:
            size = file.size()
            if size > codec.HEADER_BYTES + codec.BODY_BYTES_MAX:
                raise NotASnapshot(f"{size} bytes are more than any snapshot has")
            return pread_exact(file, size, 0)
        finally:
            close_quietly(file)

    def _create(self, path: str, raw: bytes) -> None:
        # A file that an earlier attempt could not take away may be longer, or hold pages that a failed sync forgot.
        if self._fs.exists(path):
            self._fs.remove(path)
        file = self._fs.open(path, "create")
        try:
            pwrite_all(file, raw, 0)
            file.fsync()
        finally:
            close_quietly(file)

    def _read_back(self, path: str, raw: bytes) -> None:
        """Compare what the disk has, not what the page cache remembers."""
        file = self._fs.open(path, "r")
        try:
            file.fadvise(0, 0, "dontneed")
            same = file.size() == len(raw)
            for at in range(0, len(raw) if same else 0, READ_BACK_BYTES):
                expected = raw[at : at + READ_BACK_BYTES]
                same = same and pread_exact(file, len(expected), at) == expected
        finally:
            close_quietly(file)
        if not same:
            raise OSError(errno.EIO, "the snapshot does not read back as it was written", path)

    def _discard(self, path: str) -> None:
        try:
            if self._fs.exists(path):
                self._fs.remove(path)
        except OSError as error:
            log.warning("left behind by a failed snapshot: %s", error)

    def _prune(self, number: int, kept: Collection[int]) -> None:
        """Unlink all but these. What cannot be unlinked now is at the next time; nothing depends on it."""
        try:
            old = [one for one in self.numbers() if one < number and one not in kept]
            for one in old:
                self._fs.remove(self._path(paths.snapshot(one)))
            if old:
                self._fs.sync_dir(self._dir)
        except OSError as error:
            log.warning("old snapshots stay for now: %s", error)


def _own(header: Header, number: int, store_id: str | None) -> Header:
    """The header, if it belongs to this name and this store [S-135]."""
    if header.id != number:
        raise NotASnapshot(f"it is snapshot {header.id} by its header")
    if store_id is not None and header.store != store_id:
        raise NotASnapshot(f"it is of store {header.store}, not {store_id}")
    return header


def _is_ours(target: str) -> bool:
    return target == paths.STORE_FILE or paths.parse_snapshot(target) is not None
