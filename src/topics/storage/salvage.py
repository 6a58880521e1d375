"""The mechanical part of salvage [S-66]: make a WAL readable again whose synced bytes are damaged, copying first.

    plan_salvage   looks, changes nothing: which ranges of which files no frame accounts for, and what else is wrong
    pad            copies every file it will change to `*.salvaged`, then overwrites each damaged range with Pad frames
                   of exactly its length, so that the frames behind it are read again

A range is damaged if it lies in bytes known to be synced (06 §5 rows 4 and 5) and holds no valid frame: in the tail
file before the last frame with `synced_prefix`, in every other file up to the length its successor's open mark gives
[S-68]. The torn end of a tail file is none: recovery cuts it.

    missing file               made of Pads, as long as the next open mark says, so that numbers have no hole [S-64]
    shorter than the position  filled up with Pads to it [S-211]
    length that cannot be met  the next file's open mark, which demands it, becomes a Pad
    CURRENT beyond all files   rewritten; the file it named is lost, with what it held
    a file in another's place  refused: its own open mark says what it is called [S-135]
    intact, not understood     refused: `UnsupportedFormat`, never padded [S-67]

What was in a range is not known: Appends show as a jump in the seqs, which the engine tells as a gap of reason 2;
deletes and configurations may be missing. Interrupted anywhere it can be repeated: copies are complete before the first
byte is changed. The caller holds the store's lock. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import control, frame
from topics.codec.frame import FRAME_BYTES_MIN, FrameCodec, Why
from topics.codec.scan import zero_tail
from topics.codec.snapshot import Snapshot
from topics.errors import MetadataLost, UnsupportedFormat, WalCorrupt
from topics.fs import File, Fs, close_quietly, ensure_dir, pread_all, pread_exact, pwrite_all
from topics.storage import group as groups
from topics.storage.snapshot import SnapshotStore
from topics.storage.view import read_store_id

MISSING_MAX: Final = 1000
"""Missing files of a group that are made up for; more than that is a stray file with a high number."""
_COPY_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16

Position = tuple[int, int]


class Span(NamedTuple):
    """Bytes from `start` to before `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Patch(NamedTuple):
    """What is to be done to one WAL file."""

    group: str
    dir: str
    number: int
    exists: bool
    spans: tuple[Span, ...]
    """To be filled with Pads."""
    cut: int | None
    """Where the file is to end, if it has bytes behind what it may hold."""
    why: str

    @property
    def path(self) -> str:
        return f"{self.dir}/{paths.wal_file(self.number)}"


class Pointer(NamedTuple):
    """A `CURRENT` that is to name another file."""

    group: str
    dir: str
    named: int
    number: int
    """0 where there is no file left to name: it is removed."""


class Plan(NamedTuple):
    """Everything `pad` will do; empty when nothing is damaged."""

    path: str
    patches: tuple[Patch, ...]
    pointers: tuple[Pointer, ...]
    positions: tuple[tuple[str, str, Position], ...]
    """Key, directory and replay position of every group."""

    @property
    def is_empty(self) -> bool:
        return not self.patches and not self.pointers


class Salvaged(NamedTuple):
    """What `pad` did."""

    copies: tuple[str, ...]
    padded: int
    """Bytes."""


def plan_salvage(fs: Fs, path: str, looked: Callable[[int], None] = lambda size: None) -> Plan:
    """Judge every WAL file that recovery would read; `looked` is told the size of each.

    `MetadataLost`, `UnsupportedFormat` or `WalCorrupt` for what no padding can mend.
    """
    snapshot = load_snapshot(fs, path)
    patches: list[Patch] = []
    pointers: list[Pointer] = []
    positions = []
    for key, dir in group_dirs(fs, path, snapshot):
        position = position_of(fs, dir, key, snapshot)
        planned = _GroupPlan(fs, key, dir, position)
        patches += planned.patches(looked)
        pointers += planned.pointers()
        positions.append((key, dir, position))
    return Plan(path, tuple(patches), tuple(pointers), tuple(positions))


def load_snapshot(fs: Fs, path: str) -> Snapshot | None:
    """The newest valid snapshot of a store; `MetadataLost` if there are files and none will do."""
    meta = f"{path}/{paths.META_DIR}"
    if not fs.exists(meta):
        return None
    return SnapshotStore(fs, meta).load(read_store_id(fs, path))


def group_dirs(fs: Fs, path: str, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    """Key and directory of every WAL group that is there, or that the snapshot says must be (06 §14 step 4)."""
    wal = f"{path}/{paths.WAL_DIR}"
    names = fs.listdir(wal) if fs.exists(wal) else []
    keys = {name for name in names if paths.parse_shard_dir(name) is not None}
    if any(name == paths.CURRENT_FILE or paths.parse_wal_file(name) is not None for name in names):
        keys.add("")
    if snapshot is not None:
        keys |= {row.group for row in snapshot.header.wal if row.offset and not row.retired}
    return [(key, f"{wal}/{key}" if key else wal) for key in sorted(keys)]


def position_of(fs: Fs, dir: str, key: str, snapshot: Snapshot | None) -> Position:
    """Where replay of a group begins [S-211]; `MetadataLost` if it begins behind what no snapshot describes [S-216]."""
    lowest = min(numbers_in(fs, dir), default=1)
    if snapshot is None:
        if lowest != 1:
            raise MetadataLost(f"no snapshot, and WAL group {key!r} begins with file {lowest}")
        return (1, 0)
    row = next((row for row in snapshot.header.wal if row.group == key), None)
    if row is None:
        return (lowest, 0)
    return (row.file_no + 1, 0) if row.retired else (row.file_no, row.offset)


def numbers_in(fs: Fs, dir: str) -> list[int]:
    """Numbers of the WAL files of a directory, ascending; none if there is no such directory."""
    if not fs.exists(dir):
        return []
    return sorted(n for name in fs.listdir(dir) if (n := paths.parse_wal_file(name)) is not None)


def is_misplaced(mark: control.OpenMark, key: str, number: int) -> bool:
    """Whether a file's own open mark says that it is another one [S-135]."""
    shard = paths.parse_shard_dir(key) if key else 0
    return mark.file != number or mark.shard != shard or (not key and mark.shards != 1)


class _GroupPlan:
    """The plan for one directory."""

    def __init__(self, fs: Fs, key: str, dir: str, position: Position) -> None:
        self._fs = fs
        self._key = key
        self._dir = dir
        self._position = position
        self._numbers = numbers_in(fs, dir)
        self._content = [n for n in self._numbers if n >= position[0] and has_content(fs, self._path(n))]
        self._current = groups.read_current(fs, dir)

    def pointers(self) -> list[Pointer]:
        highest = max((*self._numbers, *self._expected()), default=0)
        if self._current is None or self._current <= highest or self._current < self._position[0]:
            return []  # one below the position was trimmed: the group has had nothing to write since
        return [Pointer(self._key, self._dir, self._current, highest)]

    def patches(self, looked: Callable[[int], None]) -> Iterator[Patch]:
        expected = self._expected()
        self._refuse_misplaced()
        demanded = {n: self._length_by_next(n) for n in expected}
        unmark: set[int] = set()
        for n in expected:
            found = self._judge(n, demanded[n], unmark)
            looked(found[1])
            if found[0] is not None:
                yield found[0]

    def _path(self, number: int) -> str:
        return f"{self._dir}/{paths.wal_file(number)}"

    def _expected(self) -> range:
        """The numbers that must have content."""
        first, offset = self._position
        if not self._content and not offset:
            return range(0)
        last = max(self._content, default=first)
        if last - first - len(self._content) > MISSING_MAX:
            raise WalCorrupt(
                f"WAL group {self._key!r}: {paths.wal_file(last)} is far above the others; "
                "if it does not belong there, move it away"
            )
        return range(first, last + 1)

    def _refuse_misplaced(self) -> None:
        for n in self._content:
            mark = self._open_mark(n)
            if mark is not None and is_misplaced(mark, self._key, n):
                said = f"file {mark.file} of shard {mark.shard} of {mark.shards}"
                raise WalCorrupt(
                    f"WAL group {self._key!r}, {paths.wal_file(n)} is {said} by its own open mark; "
                    "give it back its place and run this again"
                )

    def _open_mark(self, number: int) -> control.OpenMark | None:
        head = _head(self._fs, self._path(number))
        return groups.open_mark(head, f"WAL group {self._key!r}, {paths.wal_file(number)}")

    def _length_by_next(self, number: int) -> int | None:
        """The length that the next file's open mark gives this one [S-68]."""
        mark = self._open_mark(number + 1) if number + 1 in self._content else None
        prev = mark.prev if mark is not None else None
        return prev[1] if isinstance(prev, tuple) and prev[0] == number else None

    def _judge(self, n: int, length: int | None, unmark: set[int]) -> tuple[Patch | None, int]:
        """The patch of one file, if it needs one, and its size."""
        start = self._position[1] if n == self._position[0] else 0
        present = n in self._content
        data = _read(self._fs, self._path(n)) if present else b""
        highest = self._expected()[-1]
        inner = n < highest or (self._current is not None and self._current > highest)
        damage = find_damage(data, start, length, inner=inner, unmarked=n in unmark)
        if damage.contradicts_next:
            unmark.add(n + 1)
        if not damage.spans and damage.cut is None:
            return None, len(data)
        self._check(n, data, damage, start, inner)
        why = damage.why if present else "the file is missing"
        exists = n in self._numbers
        return Patch(self._key, self._dir, n, exists, damage.spans, damage.cut, why), len(data)

    def _check(self, n: int, data: bytes, damage: Damage, start: int, inner: bool) -> None:
        """What the file will be must be what recovery accepts: decided before anything is changed."""
        made = patched(data, damage)
        scan = FrameCodec().scan(memoryview(made), start, "inner" if inner else "last")
        where = f"WAL group {self._key!r}, {paths.wal_file(n)}"
        if scan.verdict == "format":
            raise UnsupportedFormat(f"{where}, {scan.detail}: written by a newer version")
        if scan.verdict == "corrupt":
            raise WalCorrupt(f"{where}: padding does not mend it: {scan.detail}")


class Damage(NamedTuple):
    """What is wrong with the bytes of one file."""

    spans: tuple[Span, ...]
    cut: int | None
    why: str
    contradicts_next: bool
    """The length that the next file's open mark demands cannot be met."""


def find_damage(data: bytes, start: int, length: int | None, *, inner: bool, unmarked: bool = False) -> Damage:
    """The damaged ranges of a WAL file from the replay position `start` on, in bytes known to be synced.

    `length` is what the next file's open mark says of this one; `inner` says that content follows in a later file;
    `unmarked` that the open mark of this one has to go.
    """
    view = memoryview(data)
    spans: list[Span] = []
    if unmarked:
        spans.append(Span(0, frame.decode(view).end))
    short = len(view) < start or (start and not zero_tail(view, 0))
    if short:
        spans.append(Span(frame.scan_frames(view).stop, start))
    rows, end, why = _valid_rows(view, start)
    if not inner:
        return Damage(tuple(_wide(spans + _before_last_flagged(rows, start), rows)), None, why, False)
    spans += _between(rows, start)
    return _with_end(view, rows, max(end, start), length, spans, why)


def patched(data: bytes, damage: Damage) -> bytes:
    """The bytes as `pad` leaves them."""
    size = max([len(data), *(span.end for span in damage.spans)])
    made = bytearray(data.ljust(size, b"\0"))
    for span in damage.spans:
        made[span.start : span.end] = frame.encode_pads(span.size)
    return bytes(made if damage.cut is None else made[: damage.cut])


def _valid_rows(view: memoryview, start: int) -> tuple[npt.NDArray[np.void], int, str]:
    """Every valid frame from `start` on, also behind damage; where the last one ends; why the first ones stop."""
    if start > len(view):
        return np.empty(0, frame.ROW), start, f"the file ends at {len(view)}, before the replay position"
    scan = frame.scan_frames(view, start)
    if scan.why is Why.FORMAT:
        raise UnsupportedFormat(f"offset {scan.stop}: {scan.detail}: written by a newer version")
    rows = scan.rows
    if zero_tail(view, scan.stop) != scan.stop:
        rows = np.concatenate((rows, frame.resync(view, scan.stop + 1)))
    end = int(rows["offset"][-1]) + int(rows["len"][-1]) if len(rows) else start
    return rows, end, f"{scan.why.value} at {scan.stop}"


def _between(rows: npt.NDArray[np.void], start: int) -> list[Span]:
    """The ranges in front of and between frames."""
    starts = rows["offset"].tolist()
    ends = [start, *(rows["offset"] + rows["len"]).tolist()]
    return [Span(int(low), int(high)) for low, high in zip(ends, starts, strict=False) if high > low]


def _before_last_flagged(rows: npt.NDArray[np.void], start: int) -> list[Span]:
    """Of a tail file only what lies in front of a frame that tells of a sync is known to have been synced [S-61]."""
    flagged = np.flatnonzero(rows["flags"] & frame.SYNCED_PREFIX)
    return _between(rows[: int(flagged[-1]) + 1], start) if len(flagged) else []


def _with_end(
    view: memoryview, rows: npt.NDArray[np.void], end: int, length: int | None, spans: list[Span], why: str
) -> Damage:
    """An inner file ends where the next open mark says, else with its last submission (06 §5 row 5, S-68)."""
    chained = len(rows) > 0 and bool(rows["flags"][-1] & frame.MORE)
    rest = zero_tail(view, end) if end <= len(view) else end
    if length is not None:
        missing = length - end
        if missing == 0 and not chained:
            cut = length if rest > end else None
            return Damage(tuple(_wide(spans, rows)), cut, why if spans else "bytes behind its end", False)
        if missing >= FRAME_BYTES_MIN:
            cut = length if rest > length else None
            whole = _wide([*spans, Span(end, length)], rows)
            return Damage(tuple(whole), cut, why if rest > end else f"ends at {end}, not at {length}", False)
    if rest > end or chained:
        spans.append(Span(end, max(rest, end + FRAME_BYTES_MIN)))
    elif not len(rows) and not spans:
        spans.append(Span(end, end + FRAME_BYTES_MIN))  # a missing file: something has to be in it
    return Damage(tuple(_wide(spans, rows)), None, why, length is not None)


def _wide(spans: Iterable[Span], rows: npt.NDArray[np.void]) -> list[Span]:
    """Ascending spans that a frame fits: one that is too short takes in the frames behind it."""
    ends = (rows["offset"] + rows["len"]).astype(np.int64)
    made: list[Span] = []
    for span in sorted(spans):
        low, high = span
        if made and low < made[-1].end:
            low, high = made[-1].start, max(high, made[-1].end)
            made.pop()
        while high - low < FRAME_BYTES_MIN:
            following = ends[ends > high]
            high = int(following[0]) if len(following) else low + FRAME_BYTES_MIN
        made.append(Span(low, high))
    assert all(one.end <= other.start for one, other in pairwise(made))
    return made


def pad(fs: Fs, plan: Plan, looked: Callable[[int], None] = lambda size: None) -> Salvaged:
    """Copy, overwrite, and judge the groups again; `WalCorrupt` if one still cannot be replayed."""
    for dir in {patch.dir for patch in plan.patches if not fs.exists(patch.dir)}:
        ensure_dir(fs, dir)
    copies = [_copied(fs, patch.path) for patch in plan.patches if patch.exists]
    copies += [_copied(fs, f"{pointer.dir}/{paths.CURRENT_FILE}") for pointer in plan.pointers]
    for dir in dict.fromkeys([*(patch.dir for patch in plan.patches), *(pointer.dir for pointer in plan.pointers)]):
        fs.sync_dir(dir)
    for patch in plan.patches:
        _apply(fs, patch)
        looked(sum(span.size for span in patch.spans))
    for pointer in plan.pointers:
        _point(fs, pointer)
    for key, dir, position in plan.positions:
        groups.read_group(fs, dir, key, position)
    return Salvaged(tuple(copies), sum(span.size for patch in plan.patches for span in patch.spans))


def _point(fs: Fs, pointer: Pointer) -> None:
    if pointer.number:
        groups.write_current(fs, pointer.dir, pointer.number)
    else:
        fs.remove(f"{pointer.dir}/{paths.CURRENT_FILE}")
        fs.sync_dir(pointer.dir)


def _copied(fs: Fs, path: str) -> str:
    """The name of a complete, synced copy; an earlier one of other bytes is left alone."""
    copy = paths.salvaged(path)
    while fs.exists(copy):
        if _same(fs, path, copy):
            return copy
        copy = paths.salvaged(copy)
    temporary = paths.tmp(copy)
    if fs.exists(temporary):
        fs.remove(temporary)
    source = fs.open(path, "r")
    try:
        target = fs.open(temporary, "create")
        try:
            size = source.size()
            for at in range(0, size, _COPY_BYTES):
                pwrite_all(target, pread_exact(source, min(_COPY_BYTES, size - at), at), at)
            target.fsync()
        finally:
            close_quietly(target)
    finally:
        close_quietly(source)
    fs.rename(temporary, copy)
    return copy


def _same(fs: Fs, one: str, other: str) -> bool:
    if fs.size(one) != fs.size(other):
        return False
    return all(left == right for left, right in zip(_pieces(fs, one), _pieces(fs, other), strict=True))


def _pieces(fs: Fs, path: str) -> Iterator[bytes]:
    file = fs.open(path, "r")
    try:
        at = 0
        while piece := pread_all(file, _COPY_BYTES, at):
            yield piece
            at += len(piece)
    finally:
        close_quietly(file)


def _apply(fs: Fs, patch: Patch) -> None:
    file: File = fs.open(patch.path, "rw" if patch.exists else "create")
    try:
        for span in patch.spans:
            pwrite_all(file, frame.encode_pads(span.size), span.start)
        if patch.cut is not None:
            file.truncate(patch.cut)
        file.fsync()
    finally:
        close_quietly(file)
    fs.sync_dir(patch.dir)


def has_content(fs: Fs, path: str) -> bool:
    """Whether any byte of a file is not zero."""
    return any(piece.strip(b"\0") for piece in _pieces(fs, path))


def _head(fs: Fs, path: str) -> bytes:
    file = fs.open(path, "r")
    try:
        return pread_all(file, _HEAD_BYTES, 0)
    finally:
        close_quietly(file)


def _read(fs: Fs, path: str) -> bytes:
    file = fs.open(path, "r")
    try:
        return pread_exact(file, file.size(), 0)
    finally:
        close_quietly(file)
