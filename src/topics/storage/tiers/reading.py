"""The cold tier as an external reader sees it [S-346]: data files to read, whatever they are kept in.

A folder's files are opened as they are. An object is read by ranges behind the interface of a file, so that whoever
scans segments need not know. The root must belong to the store that is read; that is asked once. Any thread may open;
a file is one thread's.
"""

from __future__ import annotations

import errno
import threading
from typing import Literal, NoReturn

from topics import paths
from topics.codec.snapshot import SegmentRow
from topics.errors import ColdStoreMismatch, DiskError, SettingsError, StoreUnavailable
from topics.fs import Advice, Bytes, File, Fs, close_quietly, pread_all
from topics.storage.descriptor import Segment
from topics.storage.segfile import SegmentFiles
from topics.storage.tiers import place
from topics.storage.tiers.open import open_root
from topics.storage.tiers.relocation import same_stub
from topics.storage.tiers.store import ColdRoot, SegmentId, SegmentNotFound, SegmentStore, check_owner


class ColdUnavailable(DiskError):
    """Records lie in a cold tier that cannot be read from here [S-346]."""

    code = "not_ready"


class ColdTier:
    """The cold tier of a store, opened when it is first needed. `where` is a folder or a URL, None if none is known."""

    def __init__(self, fs: Fs, where: str | None, store: str | None) -> None:
        self._fs = fs
        self._where = where
        self._store = store
        self._root: ColdRoot | None = None
        self._opening = threading.Lock()

    @property
    def where(self) -> str | None:
        return self._where

    @property
    def is_remote(self) -> bool:
        """Whether reading takes requests over a network."""
        try:
            return self._where is not None and not isinstance(self._place(), str)
        except ColdUnavailable:  # told when something is read from it
            return False

    def open(self, topic_id: int, first: int, generation: int) -> File | None:
        """A segment's data, None if it is surely not there; `ColdUnavailable` if nobody can tell."""
        if self._where is None:
            raise ColdUnavailable("a segment is in the cold tier and the snapshot names none")
        folder = self._place()
        if isinstance(folder, str):
            return self._in_folder(folder, topic_id, paths.segment(first, "data", generation))
        try:
            segments, id = self._opened().topic(topic_id), SegmentId(first, generation)
            return ColdFile(segments, id, segments.len(id, "data"))
        except SegmentNotFound:
            return None
        except (StoreUnavailable, SettingsError) as error:
            raise ColdUnavailable(str(error)) from error

    def part(self, topic_id: int, first: int, generation: int, kind: Literal["idx", "tag"]) -> bytes | None:
        """What lies beside a segment's data; None if it is surely not there."""
        if self._where is None:
            raise ColdUnavailable("a segment is in the cold tier and the snapshot names none")
        segments, id = self._opened_or_told().topic(topic_id), SegmentId(first, generation)
        try:
            return segments.read_range(id, kind, 0, segments.len(id, kind))
        except SegmentNotFound:
            return None
        except StoreUnavailable as error:
            raise ColdUnavailable(str(error)) from error

    def _opened_or_told(self) -> ColdRoot:
        try:
            return self._opened()
        except (StoreUnavailable, SettingsError, ColdStoreMismatch) as error:
            raise ColdUnavailable(str(error)) from error

    def stub(self, files: SegmentFiles, row: SegmentRow) -> bytes | None:
        """The lost `.idx` of a segment, if the tier has the one that the row names; a start fetches it [S-316]."""
        if self._where is None:
            raise ColdUnavailable("a segment is in the cold tier and the snapshot names none")
        wanted = Segment(row.first, row.count, row.data_len)
        wanted.idx_xxh3 = row.idx_xxh3
        try:
            return same_stub(self._opened_or_told().topic(files.topic_id), files, wanted)
        except StoreUnavailable as error:
            raise ColdUnavailable(str(error)) from error

    def close(self) -> None:
        if self._root is not None:
            self._root.close()
            self._root = None

    def _place(self) -> place.ObjectPlace | str:
        assert self._where is not None
        try:
            return place.parse(self._where, "cold")
        except SettingsError as error:
            raise ColdUnavailable(str(error)) from error

    def _in_folder(self, folder: str, topic_id: int, name: str) -> File | None:
        check_folder(self._fs, folder, self._store)
        try:
            return self._fs.open(f"{folder}/{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}/{name}", "r")
        except FileNotFoundError:
            return None

    def _opened(self) -> ColdRoot:
        with self._opening:
            if self._root is None:
                assert self._where is not None
                root = open_root(self._where, self._fs, variable="cold")
                if self._store is not None:
                    check_owner(root, self._store)
                self._root = root
            return self._root


def check_folder(fs: Fs, folder: str, store: str | None) -> None:
    """Raise `ColdUnavailable` unless the folder is there and this store's."""
    try:
        file = fs.open(f"{folder}/{paths.COLD_STORE_FILE}", "r")
    except FileNotFoundError:
        raise ColdUnavailable(f"{folder} has no {paths.COLD_STORE_FILE}: not mounted?") from None
    try:
        found = pread_all(file, file.size(), 0).decode("ascii", "replace").strip()
    finally:
        close_quietly(file)
    if store is not None and found != store:
        raise ColdUnavailable(f"{folder} belongs to another store")


class ColdFile:
    """An object, read like a file."""

    __slots__ = ("_id", "_segments", "_size")

    def __init__(self, segments: SegmentStore, id: SegmentId, size: int) -> None:
        self._segments = segments
        self._id = id
        self._size = size

    def pread(self, n: int, offset: int) -> bytes:
        n = max(min(n, self._size - offset), 0)
        try:
            return self._segments.read_range(self._id, "data", offset, n) if n else b""
        except StoreUnavailable as error:
            raise ColdUnavailable(str(error)) from error
        except SegmentNotFound as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing is held."""

    def fadvise(self, offset: int, n: int, advice: Advice) -> None:
        """A request is no page."""

    def pwrite(self, data: Bytes, offset: int) -> int:
        _refuse()

    def truncate(self, size: int) -> None:
        _refuse()

    def allocate(self, size: int) -> None:
        _refuse()

    def fdatasync(self) -> None:
        _refuse()

    def fsync(self) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, "opened for reading")
