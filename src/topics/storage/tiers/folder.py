"""A folder as a tier of segments [S-300], through the seam of files.

    <root>/.topics-store                  the id of the only engine that may use it [S-14]
    <root>/topics/0000000A/seg-….data     names as in the hot directory (06 §2)

A part is written as tmp, fsync, rename; the directory is synced once all parts are there. What was written is read back
from the medium for its digest. An `OSError` is `StoreUnavailable` unless it says that a file is not there. I/O threads.
"""

from __future__ import annotations

import builtins
import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xxhash import xxh3_64

from topics import paths
from topics.codec.segment import DELETE_BYTE
from topics.errors import StoreUnavailable
from topics.fs import File, Fs, close_quietly, ensure_dir, pread_all, pread_exact, pwrite_all, replace_file
from topics.storage.tiers.store import (
    Part,
    RangeOutOfBounds,
    SegmentId,
    SegmentNotFound,
    Source,
    halves_of,
    pairs_of,
)

COPY_BYTES = 1 << 20
STORE_ID_BYTES = 64
PARTS: tuple[Part, ...] = ("data", "tag", "idx")
"""In the order in which they are put; removed in that order too, so that an `.idx` is never gone before its `.data`."""


class FolderRoot:
    """A cold tier in a folder."""

    __slots__ = ("_fs", "_path")

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self._path = path.rstrip("/") or "/"

    @property
    def name(self) -> str:
        return self._path

    def store_id(self) -> str | None:
        with _told(self._path):
            try:
                file = self._fs.open(f"{self._path}/{paths.COLD_STORE_FILE}", "r")
            except FileNotFoundError:
                return None
            try:
                return pread_all(file, STORE_ID_BYTES, 0).decode("utf-8", "replace").strip()
            finally:
                close_quietly(file)

    def claim(self, store_id: str) -> None:
        with _told(self._path):
            ensure_dir(self._fs, self._path)
            replace_file(self._fs, f"{self._path}/{paths.COLD_STORE_FILE}", f"{store_id}\n".encode("ascii"))

    def topic(self, topic_id: int) -> LocalFolderStore:
        return LocalFolderStore(self._fs, f"{self._path}/{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}")

    def topics(self) -> list[int]:
        with _told(self._path):
            names = _names(self._fs, f"{self._path}/{paths.TOPICS_DIR}")
        found = [parsed for name in names if (parsed := paths.parse_topic_dir(name)) is not None]
        return sorted(one.topic_id for one in found if not one.deleted)

    def close(self) -> None:
        """Nothing is held."""


class LocalFolderStore:
    """The segments of one topic in a folder."""

    __slots__ = ("_dir", "_fs")

    mutable = True

    def __init__(self, fs: Fs, dir: str) -> None:
        self._fs = fs
        self._dir = dir

    def put(self, id: SegmentId, data: Source | None, idx: Source | None, tag: Source | None = None) -> None:
        parts = {"data": data, "tag": tag, "idx": idx}
        with _told(self._dir):
            ensure_dir(self._fs, self._dir)
            for part in PARTS:
                source = parts[part]
                if source is not None:
                    self._put(self._path(id, part), source)
            self._fs.sync_dir(self._dir)

    def read_range(self, id: SegmentId, part: Part, offset: int, length: int) -> bytes:
        with self._opened(id, part) as file:
            data = pread_all(file, length, offset)
        if len(data) != length:
            raise RangeOutOfBounds(id, part, offset, length)
        return data

    def delete(self, id: SegmentId) -> None:
        with _told(self._dir):
            others = self._generations(id.first) - {id.generation}
            for part in PARTS[:1] if others else PARTS:
                _remove(self._fs, self._path(id, part))
                _remove(self._fs, paths.tmp(self._path(id, part)))
            self._sync_if_there()

    def list(self) -> builtins.list[SegmentId]:
        with _told(self._dir):
            return pairs_of(_names(self._fs, self._dir))

    def halves(self) -> builtins.list[SegmentId]:
        with _told(self._dir):
            return halves_of(_names(self._fs, self._dir))

    def exists(self, id: SegmentId, part: Part) -> bool:
        try:
            self.len(id, part)
        except SegmentNotFound:
            return False
        return True

    def len(self, id: SegmentId, part: Part) -> int:
        with _told(self._dir):
            try:
                return self._fs.size(self._path(id, part))
            except FileNotFoundError:
                raise SegmentNotFound(id, part) from None

    def digest(self, id: SegmentId, part: Part) -> int:
        with self._opened(id, part) as file:
            file.fadvise(0, 0, "dontneed")
            return digest_of(file)

    def mark_deleted(self, id: SegmentId, offsets: Sequence[int]) -> None:
        with self._opened(id, "data", writable=True) as file:
            size = file.size()
            for at in offsets:
                if at >= size:
                    raise RangeOutOfBounds(id, "data", at, 1)
                pwrite_all(file, bytes([DELETE_BYTE]), at)
            file.fdatasync()

    def clear(self) -> None:
        with _told(self._dir):
            for name in sorted(_names(self._fs, self._dir)):
                if paths.parse_segment(paths.parse_tmp(name) or name) is not None:
                    _remove(self._fs, f"{self._dir}/{name}")
            try:
                self._fs.rmdir(self._dir)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else's files are left alone [S-10]
                    raise
                self._fs.sync_dir(self._dir)
                return
            self._fs.sync_dir(self._dir.rpartition("/")[0])

    def _path(self, id: SegmentId, part: Part) -> str:
        return f"{self._dir}/{paths.segment(id.first, part, id.generation if part == 'data' else 0)}"

    def _generations(self, first: int) -> set[int]:
        found = map(paths.parse_segment, _names(self._fs, self._dir))
        return {one.generation for one in found if one is not None and (one.first_seq, one.kind) == (first, "data")}

    def _put(self, path: str, source: Source) -> None:
        tmp = paths.tmp(path)
        _remove(self._fs, tmp)
        file = self._fs.open(tmp, "create")
        try:
            if isinstance(source, str):
                _copy(self._fs, source, file)
            else:
                pwrite_all(file, source, 0)
            file.fsync()
        finally:
            close_quietly(file)
        self._fs.rename(tmp, path)

    @contextmanager
    def _opened(self, id: SegmentId, part: Part, *, writable: bool = False) -> Iterator[File]:
        with _told(self._dir):
            try:
                file = self._fs.open(self._path(id, part), "rw" if writable else "r")
            except FileNotFoundError:
                raise SegmentNotFound(id, part) from None
            try:
                yield file
            finally:
                close_quietly(file)

    def _sync_if_there(self) -> None:
        try:
            self._fs.sync_dir(self._dir)
        except FileNotFoundError:
            return


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Whatever the disk says here is about the tier; which file it was is in the error already."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{where}: {error}") from error


def _names(fs: Fs, dir: str) -> list[str]:
    try:
        return fs.listdir(dir)
    except FileNotFoundError:
        return []


def _remove(fs: Fs, path: str) -> None:
    try:
        fs.remove(path)
    except FileNotFoundError:
        return


def _copy(fs: Fs, path: str, into: File) -> None:
    source = fs.open(path, "r")
    try:
        at = 0
        for piece in pieces(source):
            pwrite_all(into, piece, at)
            at += len(piece)
    finally:
        close_quietly(source)


def pieces(file: File) -> Iterator[bytes]:
    """A file from its start to its end; one that ends early is an error, never a shorter copy."""
    size = file.size()
    for at in range(0, size, COPY_BYTES):
        yield pread_exact(file, min(COPY_BYTES, size - at), at)


def digest_of(file: File) -> int:
    """XXH3-64 of a file."""
    hashed = xxh3_64()
    for piece in pieces(file):
        hashed.update(piece)
    return hashed.intdigest()
