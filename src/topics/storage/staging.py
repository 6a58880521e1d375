"""Staged writes: which chunks of which parts there are, and their files [S-286, TXN-2, TXN-4].

    staging/<hash of the writer>-<version>/part-N     chunks of one part, one behind another (codec/part.py)

The files are not part of the store: nothing is synced, recovery does not read them, a start removes them. What they
hold is known in memory only. A store in memory keeps the bytes of its chunks instead.

    Staging     every version that is staged, and how much room all of them take     owner only
    write, read, remove, clear                                                       file work; any one thread

Chunks of a part are written one after another. Everything that touches a version's files is done by one lane, in
order: a version that is dropped while a chunk of it is written leaves nothing behind.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics import paths
from topics.codec import part as codec
from topics.errors import LimitReached
from topics.fs import Fs, close_quietly, pread_exact, pwrite_all
from topics.storage import attach

log = logging.getLogger("topics.storage")

CHUNK_COST: Final = 256
"""What a chunk takes of memory: many tiny ones must not take more than the bound says."""


class Chunk(NamedTuple):
    """One staged chunk: records of one topic."""

    topic: str
    offset: int
    """In the part's file."""
    size: int
    records: int
    accounted: int
    digest: bytes
    data: bytes | None = None
    """Of a store in memory."""


class Located(NamedTuple):
    """A chunk and the file it is in."""

    path: str
    chunk: Chunk


class Rows(NamedTuple):
    """What a commit brings to one topic, in the order in which records get their seqs [TXN-6]."""

    topic: str
    chunks: list[Located]

    @property
    def records(self) -> int:
        """How many."""
        return sum(one.chunk.records for one in self.chunks)

    @property
    def accounted(self) -> int:
        """Their accounted bytes."""
        return sum(one.chunk.accounted for one in self.chunks)

    @property
    def size(self) -> int:
        """Bytes of their frames as they are staged."""
        return sum(one.chunk.size for one in self.chunks)


class Part:
    """One attempt of one producer of rows."""

    __slots__ = ("busy", "chunks", "line", "name", "path", "records", "size")

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.chunks: list[Chunk] = []
        self.records = 0
        self.size = 0
        self.busy = False
        """A chunk is being written."""
        self.line: deque[Callable[[], None]] = deque()
        """Chunks that came meanwhile."""

    def add(self, chunk: Chunk) -> None:
        """A chunk is written."""
        assert chunk.offset == self.size
        self.chunks.append(chunk)
        self.records += chunk.records
        self.size += chunk.size


class Version:
    """What is staged for one version of a writer."""

    __slots__ = ("cost", "dir", "dropped", "held", "id", "parts", "used_ms", "version")

    def __init__(self, id: str, version: int, dir: str, now_ms: int) -> None:
        self.id = id
        self.version = version
        self.dir = dir
        self.parts: dict[str, Part] = {}
        self.used_ms = now_ms
        self.cost = 0
        """Of its chunks, those that are being written among them."""
        self.held = False
        """A commit of it is under way: it does not expire."""
        self.dropped = False

    @property
    def size(self) -> int:
        """Bytes that are staged."""
        return sum(part.size for part in self.parts.values())


class Staging:
    """Everything that is staged. Invariant: `cost` is the sum of all versions' and at most `max_bytes`. Owner only."""

    def __init__(self, root: str | None, max_bytes: int, ttl_ms: int) -> None:
        self.root = root
        """`staging/` of the data directory; None in memory."""
        self.max_bytes = max_bytes
        """0 = unlimited."""
        self.ttl_ms = ttl_ms
        self.cost = 0
        self._writers: dict[str, dict[int, Version]] = {}
        self._parts = 0

    def find(self, id: str, version: int) -> Version | None:
        """What is staged for a version."""
        return self._writers.get(id, {}).get(version)

    def begin(self, id: str, version: int, now_ms: int) -> Version:
        """Stage something for a version that has nothing."""
        dir = ""
        if self.root is not None:
            dir = f"{self.root}/{paths.staging_dir(xxh3_64_intdigest(id.encode()), version)}"
        made = Version(id, version, dir, now_ms)
        self._writers.setdefault(id, {})[version] = made
        return made

    def part(self, version: Version, name: str) -> Part:
        """A part of a version, made if there is none. Files have numbers of their own: writers may share a hash."""
        found = version.parts.get(name)
        if found is None:
            self._parts += 1
            path = f"{version.dir}/{paths.part(self._parts)}" if version.dir else ""
            found = version.parts[name] = Part(name, path)
        return found

    def check(self, size: int) -> None:
        """`LimitReached` if there is no room for a chunk [TXN-4]."""
        if self.max_bytes and self.cost + size + CHUNK_COST > self.max_bytes:
            raise LimitReached("max_staged_bytes", self.max_bytes)

    def reserve(self, version: Version, size: int) -> None:
        """Take room for a chunk before it is written [RES-3]."""
        self.check(size)
        self.cost += size + CHUNK_COST
        version.cost += size + CHUNK_COST

    def give_back(self, version: Version, size: int) -> None:
        """A chunk came to nothing."""
        if not version.dropped:
            self.cost -= size + CHUNK_COST
            version.cost -= size + CHUNK_COST

    def of(self, id: str) -> list[Version]:
        """The versions that a writer has staged something for, ascending."""
        return [one for _, one in sorted(self._writers.get(id, {}).items())]

    def expired(self, now_ms: int) -> Iterator[Version]:
        """Versions that nobody has staged to for too long [TXN-4]."""
        for versions in list(self._writers.values()):
            yield from [one for one in versions.values() if self.is_over(one, now_ms)]

    def is_over(self, version: Version, now_ms: int) -> bool:
        """Whether nobody staged to it for too long, and nobody is at it."""
        busy = version.held or any(part.busy for part in version.parts.values())
        return not busy and now_ms - version.used_ms > self.ttl_ms

    def drop(self, version: Version) -> list[str]:
        """Forget a version; the files that are to be removed."""
        assert not version.dropped
        version.dropped = True
        self.cost -= version.cost
        versions = self._writers[version.id]
        del versions[version.version]
        if not versions:
            del self._writers[version.id]
        return [part.path for part in version.parts.values() if part.path]


def rows(parts: Iterable[Part]) -> dict[str, Rows]:
    """What parts bring to each topic: parts in the order given, chunks in order [TXN-6]."""
    found: dict[str, Rows] = {}
    for part in parts:
        for chunk in part.chunks:
            found.setdefault(chunk.topic, Rows(chunk.topic, [])).chunks.append(Located(part.path, chunk))
    return found


def write(fs: Fs, path: str, offset: int, pieces: Iterable[bytes], size: int, min_free_bytes: int) -> None:
    """Put a chunk behind those before it; nothing is synced. What an earlier attempt left there is overwritten."""
    dir = path.rpartition("/")[0]
    fs.makedirs(dir)
    if min_free_bytes and fs.free_bytes(dir) < min_free_bytes + size:
        # The log's share of the volume is not for what nobody has committed [S-80].
        raise OSError(errno.ENOSPC, "staging has no room on this volume", path)
    file = fs.open(path, "create")
    try:
        for piece in pieces:
            pwrite_all(file, piece, offset)
            offset += len(piece)
    finally:
        close_quietly(file)


def read(fs: Fs, located: Located) -> bytes:
    """A chunk as it was staged; a file that holds anything else is an error, never other rows."""
    path, chunk = located
    if chunk.data is not None:
        return chunk.data
    file = fs.open(path, "r")
    try:
        data = pread_exact(file, chunk.size, chunk.offset)
    finally:
        close_quietly(file)
    if codec.digest(data) != chunk.digest:
        raise OSError(errno.EIO, "a staged chunk is not what was staged", path)
    return data


def remove(fs: Fs, dir: str, files: Iterable[str]) -> None:
    """Unlink the files of a version that is dropped, and its directory unless another writer shares it."""
    for path in files:
        if fs.exists(path):
            fs.remove(path)
    if fs.exists(dir) and not fs.listdir(dir):
        fs.rmdir(dir)


def clear(fs: Fs, root: str, keep: Collection[str] = ()) -> None:
    """At a start: remove everything that was staged but for the directories named in `keep` (06 §14 step 2).

    What has no name of ours stays [S-10].
    """
    if not fs.exists(root):
        return
    for name in fs.listdir(root):
        if paths.parse_staging_dir(name) is not None and name not in keep:
            try:
                _clear_version(fs, f"{root}/{name}")
            except OSError as error:
                # Nothing there counts; and a helper that has not noticed yet that its engine is gone may write there.
                log.warning("what was staged in %s stays for now: %s", name, error)


def _clear_version(fs: Fs, dir: str) -> None:
    for name in fs.listdir(dir):
        path = f"{dir}/{name}"
        if paths.parse_part(name) is not None:
            fs.remove(path)
    attach.clear(fs, dir)
