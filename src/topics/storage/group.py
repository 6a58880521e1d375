"""A WAL group: the files of one directory, judged before anything is changed (06 §5, §14 step 4).

Reading comes first and changes nothing: every file from the replay position on gets its verdict, `CURRENT` and the
numbers are cross-checked, and damage in bytes that were synced stops start-up with `WalCorrupt` [S-65]. Only then
`mend` cuts torn tails and writes the tail file again [S-88]. Runs once, in recovery, on the opener's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from topics import paths
from topics.codec import control, frame
from topics.codec.frame import Buffer, FrameCodec, NotAFrame, Why
from topics.codec.scan import Place, Scan, zero_tail
from topics.errors import UnsupportedFormat, WalCorrupt
from topics.fs import File, Fs, close_quietly, pread_exact, pwrite_all, replace_file

_COPY_BYTES = 1 << 20
_TOPIC_DELETE = control.TYPES[control.TopicDelete]


class WalFile(NamedTuple):
    """One file of a group and what is valid in it."""

    number: int
    size: int
    place: Place
    start: int
    """Where replay begins in it: 0, or the replay position."""
    scan: Scan
    islands: bool
    """Valid frames lie behind the first bad one: a page cache was lost, not merely a process [S-245]."""
    mark: control.OpenMark | None
    offsets: npt.NDArray[np.uint64]
    """Where its valid frames begin, whole submissions only [S-241]."""
    marks: tuple[control.CheckpointMark, ...]
    """The marks among them, in order."""
    closed: bool
    """Whether its last frame is a close mark."""
    deleted: frozenset[int]
    """Topics of its TopicDelete frames."""


class Group(NamedTuple):
    """A directory of WAL files, judged."""

    key: str
    dir: str
    files: tuple[WalFile, ...]
    """Those with content at or above the replay position, ascending."""
    prepared: tuple[int, ...]
    """Numbers of files without content."""
    below: tuple[int, ...]
    """Numbers of files below the replay position; their content is in segments [S-63]."""

    @property
    def last_number(self) -> int:
        """The highest number of a file with content, 0 if none; one that is torn as a whole has none left [S-21]."""
        return max((*(file.number for file in self.files if file.scan.end), *self.below), default=0)


def read_group(fs: Fs, dir: str, key: str, position: tuple[int, int] = (1, 0), reading: Reading | None = None) -> Group:
    """Judge every file from the replay position on; `WalCorrupt` or `UnsupportedFormat` if it cannot be replayed."""
    numbers = sorted(n for name in fs.listdir(dir) if (n := paths.parse_wal_file(name)) is not None)
    below = [n for n in numbers if n < position[0]]
    views = _Views(reading or Reading(fs), dir, [n for n in numbers if n >= position[0]])
    content = [n for n in views if _has_content(fs, f"{dir}/{paths.wal_file(n)}")]
    judge = _Judge(key, views)
    judge.numbers(read_current(fs, dir), numbers, content, position)
    files = []
    for n in content:
        place: Place = "last" if n == content[-1] else "inner"
        files.append(judge.file(n, place, position[1] if n == position[0] else 0))
    judge.lengths(files, position[0])
    prepared = [n for n in views if n not in content]
    return Group(key, dir, tuple(files), tuple(prepared), tuple(below))


class Reading:
    """Files that are read whole, one after another, into the same memory.

    So much of it is not let go of in an instant, and meanwhile no other thread of the process runs.
    """

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._kept = np.empty(0, np.uint8)

    def read(self, path: str, most: int | None = None) -> memoryview:
        """A file, or its first `most` bytes; to be used until the next one is read."""
        file = self._fs.open(path, "r")
        try:
            size = file.size() if most is None else most
            if size > len(self._kept):
                self._kept = np.empty(size, np.uint8)
            for at in range(0, size, _COPY_BYTES):
                piece = _piece(file, at, size)
                self._kept[at : at + len(piece)] = piece
        finally:
            close_quietly(file)
        return self._kept.data[:size].toreadonly()


class _Views(Mapping[int, memoryview]):
    """The bytes of files by number, one at a time: a group may be larger than memory."""

    def __init__(self, reading: Reading, dir: str, numbers: Sequence[int]) -> None:
        self._reading = reading
        self._dir = dir
        self._numbers = numbers
        self._kept: tuple[int, memoryview] | None = None

    def __getitem__(self, number: int) -> memoryview:
        if self._kept is None or self._kept[0] != number:
            self._kept = None
            self._kept = number, self._reading.read(f"{self._dir}/{paths.wal_file(number)}")
        return self._kept[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _Judge:
    """The verdicts on the files of one group; each refusal tells what lies beyond, for salvage [S-65]."""

    def __init__(self, key: str, views: _Views) -> None:
        self._key = key
        self._views = views

    def numbers(
        self, current: int | None, numbers: Sequence[int], content: Sequence[int], position: tuple[int, int]
    ) -> None:
        """`CURRENT` and the numbers must fit what is there [S-64, S-211]."""
        if current is not None and position[0] <= current and current > max(numbers, default=0):
            raise self._corrupt(current, 0, "CURRENT names a file that is not there [S-64]")
        for low, high in pairwise(content):
            if high != low + 1:
                raise self._corrupt(low + 1, 0, "missing between two files with content [S-64]")
        file_no, offset = position
        if offset and (file_no not in content or len(self._views[file_no]) < offset):
            raise self._corrupt(file_no, offset, "the file of the replay position does not reach it [S-211]")

    def file(self, number: int, place: Place, start: int) -> WalFile:
        """One file, by 06 §5 and its own open mark [S-135]."""
        view = self._views[number]
        assert start <= len(view), "a replay position that the file does not reach was refused before"
        found = frame.scan_frames(view, start)
        scan = FrameCodec().judge(view, start, place, found)
        if scan.verdict == "format":
            name = paths.wal_file(number)
            raise UnsupportedFormat(f"WAL group {self._key!r}, {name}, {scan.detail}: written by a newer version")
        if scan.verdict == "corrupt":
            raise self._corrupt(number, scan.end, scan.detail)
        mark = self._open_mark(number, view)
        # Behind the first bad byte, not behind the cut: an unfinished submission in front of it is no island.
        behind = found.stop + 1 if scan.verdict == "torn" else len(view)
        islands = behind < len(view) and bool(len(frame.resync(view, behind)))
        rows = found.rows[: scan.records]
        marks = _marks(view, rows)
        closed = bool(marks) and rows["type"][-1] == control.MARK and isinstance(marks[-1], control.CloseMark)
        offsets = rows["offset"].copy()
        deleted = frozenset(rows["topic_id"][rows["type"] == _TOPIC_DELETE].tolist())
        return WalFile(number, len(view), place, start, scan, islands, mark, offsets, marks, closed, deleted)

    def _open_mark(self, number: int, view: memoryview) -> control.OpenMark | None:
        """The open mark, which must belong to this place; `None` where salvage put a Pad over it."""
        mark = open_mark(view, f"WAL group {self._key!r}, {paths.wal_file(number)}")
        if mark is None:
            return None
        shard = paths.parse_shard_dir(self._key) if self._key else 0
        if mark.file != number or mark.shard != shard or (not self._key and mark.shards != 1):
            said = f"file {mark.file} of shard {mark.shard} of {mark.shards}"
            raise self._corrupt(number, 0, f"it is {said} by its own open mark [S-135]")
        return mark

    def lengths(self, files: Sequence[WalFile], first_needed: int) -> None:
        """Every file is as long as the next one's open mark says, where that is readable [S-68]."""
        judged = {file.number: file for file in files}
        for file in files:
            prev = file.mark.prev if file.mark is not None else UNSET
            if isinstance(prev, tuple) and prev[0] >= first_needed and prev[0] < file.number:
                end = judged[prev[0]].scan.end if prev[0] in judged else 0
                if end != prev[1]:
                    raise self._corrupt(prev[0], end, f"{prev[1]} bytes long by the next file's open mark [S-68]")

    def _corrupt(self, number: int, offset: int, reason: str) -> WalCorrupt:
        beyond = [frame.resync(view, offset if n == number else 0) for n, view in self._views.items() if n >= number]
        topics = sorted({int(topic) for rows in beyond for topic in rows["topic_id"]})[:20]
        count = sum(len(rows) for rows in beyond)
        return WalCorrupt(
            f"WAL group {self._key!r}, {paths.wal_file(number)}, offset {offset}: {reason}; "
            f"{count} valid frames of topics {topics} lie at or behind it; "
            "nothing was changed; `topics doctor --salvage` is the way on"
        )


def open_mark(head: Buffer, where: str) -> control.OpenMark | None:
    """The open mark that a file begins with; None if it does not, or its bytes are bad.

    An intact one that is not understood is a newer version's, and so is the file: `UnsupportedFormat` [S-7, S-26].
    """
    try:
        first = frame.decode(head)
    except NotAFrame as error:
        if error.why is Why.FORMAT:
            raise UnsupportedFormat(f"{where}, {error}: written by a newer version") from error
        return None
    mark = control.decode_body(first.type, first.data) if first.type == control.MARK else None
    return mark if isinstance(mark, control.OpenMark) else None


def _read(fs: Fs, path: str) -> memoryview:
    file = fs.open(path, "r")
    try:
        return memoryview(pread_exact(file, file.size(), 0))
    finally:
        close_quietly(file)


def _has_content(fs: Fs, path: str) -> bool:
    """Whether there is anything but zeros in a file; mostly its first bytes tell."""
    file = fs.open(path, "r")
    try:
        size = file.size()
        return any(zero_tail(_piece(file, at, size), 0) for at in range(0, size, _COPY_BYTES))
    finally:
        close_quietly(file)


def _piece(file: File, at: int, size: int) -> memoryview:
    """The bytes from `at` on, at most so many as are copied at once."""
    return memoryview(pread_exact(file, min(_COPY_BYTES, size - at), at))


def read_current(fs: Fs, dir: str) -> int | None:
    """The number `CURRENT` names; `None` when there is none or it cannot be read: it is a cross-check only [S-86]."""
    path = f"{dir}/{paths.CURRENT_FILE}"
    if not fs.exists(path):
        return None
    name = bytes(_read(fs, path))
    return paths.parse_wal_file(name[:-1].decode("ascii", "replace")) if name.endswith(b"\n") else None


def write_current(fs: Fs, dir: str, number: int) -> None:
    """Name the active file, atomically and durably, before anything in it is acknowledged [S-86]."""
    replace_file(fs, f"{dir}/{paths.CURRENT_FILE}", f"{paths.wal_file(number)}\n".encode())


def replay(fs: Fs, group: Group, file: WalFile) -> tuple[memoryview, npt.NDArray[np.void]]:
    """The bytes of a judged file and the rows of its valid frames, whole submissions only [S-241]."""
    view = _read(fs, f"{group.dir}/{paths.wal_file(file.number)}")[: file.scan.end]
    return view, frame.scan_frames(view, file.start).rows


def mend(fs: Fs, group: Group) -> Iterator[int]:
    """Cut every file to its valid part; the tail of a run without a close mark is written again first [S-60, S-88].

    Yields the number of each file that was changed. Repeating it does no harm.
    """
    for file in group.files:
        rewrite = file.place == "last" and not file.closed
        if not rewrite and file.size == file.scan.end:
            continue
        handle = fs.open(f"{group.dir}/{paths.wal_file(file.number)}", "rw")
        try:
            for at in range(0, file.scan.end if rewrite else 0, _COPY_BYTES):
                pwrite_all(handle, pread_exact(handle, min(_COPY_BYTES, file.scan.end - at), at), at)
            handle.truncate(file.scan.end)
            handle.fsync()
        finally:
            close_quietly(handle)
        yield file.number


def _marks(view: memoryview, rows: npt.NDArray[np.void]) -> tuple[control.CheckpointMark, ...]:
    found = []
    for at in rows["offset"][rows["type"] == control.MARK].tolist():
        body = control.decode_body(control.MARK, frame.fields(view, at).data)
        assert isinstance(body, control.CheckpointMark)
        found.append(body)
    return tuple(found)
