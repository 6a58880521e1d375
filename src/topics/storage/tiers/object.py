"""Objects as a tier of segments [S-301]: S3 and what speaks its protocol, Google Cloud Storage, Azure.

    <prefix>/.topics-store                  the id of the only engine that may use it [S-14]
    <prefix>/topics/0000000A/seg-….data     names as in the hot directory (06 §2)

A part above 16 MiB is sent in pieces; either way it appears whole or not at all. Its XXH3-64 and its length travel as
the attributes `topicsxxh3` and `topicsbytes` and are compared after each put; from a store that loses attributes the
part is read back instead. Objects are immutable: delete marks reach a cold segment by its `.idx` [S-315].
Only threads that wait for storage call it [S-320].
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from xxhash import xxh3_64

from topics import paths
from topics.errors import StoreUnavailable
from topics.fs import Fs, close_quietly, pread_all
from topics.storage.tiers.answers import PIECE_BYTES, Absent, Beyond, Known, Objects
from topics.storage.tiers.store import (
    Part,
    RangeOutOfBounds,
    SegmentId,
    SegmentNotFound,
    Source,
    Unsupported,
    halves_of,
    pairs_of,
)

MULTIPART_BYTES = 16 << 20
PUT_TRIES = 3
STORE_ID_BYTES = 64
DIGEST, LENGTH = "topicsxxh3", "topicsbytes"
"""Names of attributes: letters and digits only, which every store and proxy passes on."""

_DIGEST = re.compile(r"[0-9a-f]{16}")

PARTS: tuple[Part, ...] = ("data", "tag", "idx")
"""In the order in which they are put; removed in that order too, so that an `.idx` is never gone before its `.data`."""


class ObjectRoot:
    """A cold tier in a bucket."""

    __slots__ = ("_bucket", "_fs")

    def __init__(self, bucket: Objects, fs: Fs) -> None:
        self._bucket = bucket
        self._fs = fs

    @property
    def name(self) -> str:
        return self._bucket.name

    def store_id(self) -> str | None:
        try:
            return self._bucket.read(paths.COLD_STORE_FILE, 0, STORE_ID_BYTES).decode("utf-8", "replace").strip()
        except Absent:
            return None
        except Beyond:
            return ""

    def claim(self, store_id: str) -> None:
        """Of two engines that claim a root at once, one gets it; the other is told."""
        self._bucket.put(paths.COLD_STORE_FILE, f"{store_id}\n".encode("ascii"), {}, create=True)
        if self.store_id() != store_id:
            raise StoreUnavailable(f"{self.name} was claimed by another store")

    def topic(self, topic_id: int) -> ObjectSegmentStore:
        return ObjectSegmentStore(self._bucket, self._fs, f"{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}")

    def topics(self) -> list[int]:
        """Some stores go on naming a folder for a while after its last object is gone."""
        found = [paths.parse_topic_dir(name) for name in self._bucket.folders(paths.TOPICS_DIR)]
        return sorted(one.topic_id for one in found if one is not None and not one.deleted)

    def close(self) -> None:
        """Connections close with the last reference to their client."""


class ObjectSegmentStore:
    """The segments of one topic in a bucket."""

    __slots__ = ("_bucket", "_dir", "_fs")

    mutable = False

    def __init__(self, bucket: Objects, fs: Fs, dir: str) -> None:
        self._bucket = bucket
        self._fs = fs
        self._dir = dir

    def put(self, id: SegmentId, data: Source | None, idx: Source | None, tag: Source | None = None) -> None:
        parts = {"data": data, "tag": tag, "idx": idx}
        for part in PARTS:
            source = parts[part]
            if source is not None:
                self._put(self._key(id, part), source)

    def read_range(self, id: SegmentId, part: Part, offset: int, length: int) -> bytes:
        if length == 0:  # no request can ask for nothing
            self._know(id, part)
            return b""
        try:
            raw = self._bucket.read(self._key(id, part), offset, length)
        except Absent:
            raise SegmentNotFound(id, part) from None
        except Beyond:
            raw = b""
        if len(raw) != length:
            raise RangeOutOfBounds(id, part, offset, length)
        return raw

    def delete(self, id: SegmentId) -> None:
        others = self._generations(id.first) - {id.generation}
        for part in PARTS[:1] if others else PARTS:
            self._bucket.delete(self._key(id, part))

    def list(self) -> builtins.list[SegmentId]:
        return pairs_of(self._bucket.keys(self._dir))

    def halves(self) -> builtins.list[SegmentId]:
        return halves_of(builtins.list(self._bucket.keys(self._dir)))

    def exists(self, id: SegmentId, part: Part) -> bool:
        try:
            self._bucket.know(self._key(id, part))
        except Absent:
            return False
        return True

    def len(self, id: SegmentId, part: Part) -> int:
        return self._know(id, part).size

    def digest(self, id: SegmentId, part: Part) -> int:
        known = self._know(id, part)
        recorded = _recorded(known)
        return self._read_back(self._key(id, part), known.size) if recorded is None else recorded

    def mark_deleted(self, id: SegmentId, offsets: Sequence[int]) -> None:
        raise Unsupported("an object cannot be changed in place")

    def clear(self) -> None:
        for name in builtins.list(self._bucket.keys(self._dir)):
            if paths.parse_segment(name) is not None:
                self._bucket.delete(f"{self._dir}/{name}")

    def _key(self, id: SegmentId, part: Part) -> str:
        return f"{self._dir}/{paths.segment(id.first, part, id.generation if part == 'data' else 0)}"

    def _know(self, id: SegmentId, part: Part) -> Known:
        try:
            return self._bucket.know(self._key(id, part))
        except Absent:
            raise SegmentNotFound(id, part) from None

    def _generations(self, first: int) -> set[int]:
        """Generations of `.data` that are there. Keys come in order, and those of one segment lie together."""
        start = paths.segment(first, "data").removesuffix("data")
        found = set()
        for name in self._bucket.keys(self._dir, after=start):
            if not name.startswith(start):
                break
            one = paths.parse_segment(name)
            if one is not None and one.kind == "data":
                found.add(one.generation)
        return found

    def _put(self, key: str, source: Source) -> None:
        size = _size(self._fs, source)
        if size > MULTIPART_BYTES:
            measured = self._put_pieces(key, source)
        else:
            raw = b"".join(_pieces(self._fs, source))
            measured = _measure(iter((raw,)))
            self._bucket.put(key, raw, _attributes(measured))
        if measured.length != size:
            raise StoreUnavailable(f"{self._bucket.name}: {key} was put from a file that ended early")
        self._compare(key, measured)

    def _put_pieces(self, key: str, source: Source) -> _Measured:
        """The digest goes ahead of the bytes; a file that was marked in between is sent again."""
        for _ in range(PUT_TRIES):
            measured = _measure(_pieces(self._fs, source))
            sent = _Measuring(_pieces(self._fs, source))
            self._bucket.put_pieces(key, sent, _attributes(measured))
            if sent.measured == measured:
                return measured
        raise StoreUnavailable(f"{self._bucket.name}: {key} changed while it was sent")

    def _compare(self, key: str, measured: _Measured) -> None:
        try:
            known = self._bucket.know(key)
            recorded = _recorded(known)
            digest = self._read_back(key, known.size) if recorded is None else recorded
        except Absent:
            raise StoreUnavailable(f"{self._bucket.name}: {key} is not there after it was put") from None
        if _Measured(known.size, digest) != measured:
            raise StoreUnavailable(f"{self._bucket.name}: {key} is not what was put")

    def _read_back(self, key: str, size: int) -> int:
        hashed = xxh3_64()
        for at in range(0, size, PIECE_BYTES):
            try:
                hashed.update(self._bucket.read(key, at, min(PIECE_BYTES, size - at)))
            except (Absent, Beyond):
                raise StoreUnavailable(f"{self._bucket.name}: {key} was replaced while it was read") from None
        return hashed.intdigest()


class _Measured(NamedTuple):
    length: int
    digest: int


class _Measuring(Iterator[bytes]):
    """Pieces, measured as they pass."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._hashed = xxh3_64()
        self._length = 0

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self._hashed.update(piece)
        self._length += len(piece)
        return piece

    @property
    def measured(self) -> _Measured:
        return _Measured(self._length, self._hashed.intdigest())


def _measure(pieces: Iterator[bytes]) -> _Measured:
    passing = _Measuring(pieces)
    for _ in passing:
        pass
    return passing.measured


def _attributes(measured: _Measured) -> dict[str, str]:
    return {DIGEST: f"{measured.digest:016x}", LENGTH: str(measured.length)}


def _recorded(known: Known) -> int | None:
    """The digest recorded at put; None if the store lost it, or holds another object's."""
    digest, length = known.attributes.get(DIGEST, ""), known.attributes.get(LENGTH)
    return int(digest, 16) if _DIGEST.fullmatch(digest) and length == str(known.size) else None


def _size(fs: Fs, source: Source) -> int:
    if not isinstance(source, str):
        return memoryview(source).nbytes
    with _local(source):
        return fs.size(source)


def _pieces(fs: Fs, source: Source) -> Iterator[bytes]:
    if not isinstance(source, str):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), PIECE_BYTES):
            yield bytes(view[at : at + PIECE_BYTES])
        return
    with _local(source):
        file = fs.open(source, "r")
        try:
            at = 0
            while piece := pread_all(file, PIECE_BYTES, at):
                yield piece
                at += len(piece)
        finally:
            close_quietly(file)


@contextmanager
def _local(path: str) -> Iterator[None]:
    """A part that cannot be read here is not put there; the step is tried again [S-312]."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error}") from error
