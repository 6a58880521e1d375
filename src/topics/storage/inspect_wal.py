"""Looking at the WAL groups of a store (06 §5): every file gets its verdict, every rule is tried, nothing stops it.

`group.read_group` refuses at the first fault, as a start must; here all of them are wanted. Verdicts and damaged ranges
come from the same functions, so what is an error here is what a start refuses:

    from the newest snapshot's position on   recovery reads it: damage is an error
    below it, down to the oldest position    only a fall-back to an older snapshot reads it: a warning
    below all positions                      nobody reads it; it only waits for its removal

On the way everything is collected that tells how segments must look (`Logged`). One file is in memory at a time. One
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import control, frame
from topics.codec.frame import FrameCodec
from topics.codec.scan import Place, zero_tail
from topics.codec.snapshot import Snapshot
from topics.errors import MetadataLost, UnsupportedFormat
from topics.fs import Fs, close_quietly, pread_all
from topics.storage import salvage
from topics.storage.findings import Area, Collector, Severity
from topics.storage.group import open_mark
from topics.storage.reindex import Range, ranges_of

Looked = Callable[[int], None]


class Created(NamedTuple):
    """A topic by its TopicCreate frame."""

    name: str
    cfg: dict[str, Any]
    base: int


class Logged:
    """What the log says of topics and their segments."""

    def __init__(self) -> None:
        self.claims: dict[int, tuple[int, control.MarkRow]] = {}
        """By topic: the newest mark's number and row."""
        self.created: dict[int, Created] = {}
        self.deleted: set[int] = set()
        self.attached: dict[int, list[control.AttachMark]] = {}
        self.appends: dict[int, list[Range]] = {}
        """Seqs of the records that a replay finds."""


def holds(ranges: tuple[Range, ...], wanted: Range) -> bool:
    """Whether these ascending ranges of seqs cover the wanted one."""
    at = wanted.first
    for one in ranges:
        if one.first <= at <= one.last:
            at = one.last + 1
    return at > wanted.last


def check_groups(
    fs: Fs, path: str, snapshots: list[Snapshot], logged: Logged, *, in_use: bool, looked: Looked
) -> list[Area]:
    """Every WAL group of the store; `snapshots` are the valid ones, newest first."""
    newest = snapshots[0] if snapshots else None
    areas = []
    for key, dir in salvage.group_dirs(fs, path, newest):
        found = Collector(f"{paths.WAL_DIR}/{key}".rstrip("/"), in_use=in_use)
        _Group(fs, key, dir, snapshots, found, logged, looked).run()
        areas.append(found.area())
    return areas


class _Group:
    """One directory of WAL files."""

    def __init__(
        self, fs: Fs, key: str, dir: str, snapshots: list[Snapshot], found: Collector, logged: Logged, looked: Looked
    ) -> None:
        self._fs = fs
        self._key = key
        self._dir = dir
        self._snapshots = snapshots
        self._found = found
        self._logged = logged
        self._looked = looked
        self._ends: dict[int, int] = {}
        self._closed: bool | None = None

    def run(self) -> None:
        found = self._found
        if not self._fs.exists(self._dir):
            found.add("wal_missing", found.name, "the directory is missing")
            return
        current = self._current()
        numbers = salvage.numbers_in(self._fs, self._dir)
        position, oldest = self._positions()
        self._strays()
        views = [n for n in numbers if self._has_content(n)]
        last = max(views, default=0)
        if current is not None and position[0] <= current and current > max(numbers, default=0):
            found.add("current_beyond", self._where(None), f"names {paths.wal_file(current)}, which is not there")
        self._holes([n for n in views if n >= position[0]], position)
        for n in numbers:
            if n not in views:
                found.file(self._size(n))
                continue
            self._file(n, "last" if n == last else "inner", position, oldest)
        if self._closed is False:
            found.add("not_closed", self._name(last), "its last frame is no close mark")

    def _name(self, number: int) -> str:
        return f"{self._found.name}/{paths.wal_file(number)}"

    def _where(self, name: str | None) -> str:
        return f"{self._found.name}/{name or paths.CURRENT_FILE}"

    def _path(self, number: int) -> str:
        return f"{self._dir}/{paths.wal_file(number)}"

    def _positions(self) -> tuple[salvage.Position, salvage.Position]:
        """Where replay begins by the newest snapshot, and by the oldest valid one."""
        if not self._snapshots:
            try:
                position = salvage.position_of(self._fs, self._dir, self._key, None)
            except MetadataLost as error:
                self._found.add("metadata_lost", self._found.name, str(error))
                position = (min(salvage.numbers_in(self._fs, self._dir)), 0)
            return position, position
        found = [salvage.position_of(self._fs, self._dir, self._key, one) for one in self._snapshots]
        return found[0], min(found)

    def _current(self) -> int | None:
        path = f"{self._dir}/{paths.CURRENT_FILE}"
        raw = read_if_there(self._fs, path)
        if raw is None:
            return None
        self._found.file(len(raw))
        number = paths.parse_wal_file(raw.decode("latin-1").removesuffix("\n"))
        if number is None or not raw.endswith(b"\n"):
            self._found.add("current_bad", self._where(None), "is not the name of a file")
            return None
        return number

    def _strays(self) -> None:
        for name in sorted(self._fs.listdir(self._dir)):
            known = paths.parse_wal_file(name) is not None or name == paths.CURRENT_FILE
            if not known and not (not self._key and paths.parse_shard_dir(name) is not None):
                note_other(self._found, f"{self._found.name}/{name}", name)

    def _size(self, number: int) -> int:
        return self._fs.size(self._path(number)) if self._fs.exists(self._path(number)) else 0

    def _has_content(self, number: int) -> bool:
        try:
            return salvage.has_content(self._fs, self._path(number))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # reading it for its frames says what is wrong

    def _holes(self, content: list[int], position: salvage.Position) -> None:
        """Numbers without a file with content, from the replay position on [S-64, S-211]."""
        first, offset = position
        if offset and first not in content:
            self._found.add("wal_missing", self._name(first), "the snapshot's replay position is in it")
        expected = first if self._snapshots and content else min(content, default=first)
        before = max(expected - 1, first if offset else 0)
        for n in content:
            if n > before + 1:
                missing = paths.wal_file(before + 1) + (f" to {paths.wal_file(n - 1)}" if n > before + 2 else "")
                self._found.add("wal_missing", self._name(before + 1), f"{missing}: no content, and later files have")
            before = n

    def _file(self, number: int, place: Place, position: salvage.Position, oldest: salvage.Position) -> None:
        found, where = self._found, self._name(number)
        try:
            data = read_if_there(self._fs, self._path(number))
        except OSError as error:
            found.add("unreadable", where, str(error))
            return
        if data is None:
            found.add("wal_missing", where, "vanished meanwhile", "note")
            return
        found.file(len(data))
        self._looked(len(data))
        if number < oldest[0]:
            return
        start = position[1] if number == position[0] else 0
        needed = number >= position[0]
        if needed and start > len(data):
            found.add("wal_short", where, f"has {len(data)} bytes, the replay position is {start}")
            return
        self._judge(number, data, place, start if needed else 0, position[0])

    def _judge(self, number: int, data: bytes, place: Place, start: int, first_needed: int) -> None:
        needed = number >= first_needed
        found, where, view = self._found, self._name(number), memoryview(data)
        scan = FrameCodec().scan(view, start, place)
        rows = frame.scan_frames(view, start, scan.end).rows
        whole = frame.scan_frames(view, 0, scan.end).rows if start else rows
        found.records += len(whole)
        if scan.verdict == "torn":
            bad = zero_tail(view, scan.end) - scan.end
            found.add("torn_tail", where, f"{bad} bytes at {scan.end} ({scan.detail})")
        elif scan.verdict == "format":
            found.add("wal_newer", where, scan.detail)
        elif scan.verdict == "corrupt":
            code = "wal_damaged" if needed else "wal_damaged_old"
            found.add(code, where, self._ranges(number, data, start, place))
        self._open_mark(number, data, whole, start, first_needed)
        if scan.verdict == "clean":
            self._ends[number] = scan.end
        self._content(view, rows, start, needed)
        if place == "last" and scan.verdict in ("clean", "torn"):
            self._closed = self._closes(view, whole)

    def _ranges(self, number: int, data: bytes, start: int, place: Place) -> str:
        """The damaged ranges, as salvage would pad them, and what lies behind the first."""
        try:
            damage = salvage.find_damage(data, start, None, inner=place == "inner")
        except UnsupportedFormat as error:
            return str(error)
        beyond = frame.resync(data, damage.spans[0].start + 1) if damage.spans else np.empty(0, frame.ROW)
        topics = ", ".join(map(str, np.unique(beyond["topic_id"])[:20]))
        spans = ", ".join(f"{span.start}..{span.end}" for span in damage.spans[:10])
        return f"{damage.why}; damaged: {spans}; {len(beyond)} valid frames beyond, of topics [{topics}]"

    def _open_mark(self, number: int, data: bytes, rows: npt.NDArray[np.void], start: int, first_needed: int) -> None:
        found, where = self._found, self._name(number)
        try:
            mark = open_mark(data, where)
        except UnsupportedFormat as error:
            if start:  # else its verdict says so
                found.add("wal_newer", where, str(error))
            return
        if mark is None:
            if len(rows) and rows["type"][0] != frame.PAD and int(rows["offset"][0]) == 0:
                found.add("wal_no_open_mark", where, "does not begin with an open mark")
            return
        if salvage.is_misplaced(mark, self._key, number):
            said = f"file {mark.file} of shard {mark.shard} of {mark.shards}"
            found.add("wal_misplaced", where, f"it is {said} by its own open mark")
        prev = mark.prev
        if isinstance(prev, tuple) and self._ends.get(prev[0], prev[1]) != prev[1]:
            severity: Severity | None = None if prev[0] >= first_needed else "warning"
            what = f"{self._ends[prev[0]]} valid bytes, the next file's open mark says {prev[1]}"
            found.add("wal_short", self._name(prev[0]), what, severity)

    def _closes(self, view: memoryview, rows: npt.NDArray[np.void]) -> bool:
        if not len(rows) or rows["type"][-1] != control.MARK:
            return False
        last = frame.decode(view, int(rows["offset"][-1]))
        return isinstance(control.decode_body(last.type, last.data), control.CloseMark)

    def _content(self, view: memoryview, rows: npt.NDArray[np.void], start: int, needed: bool) -> None:
        """Take over what the frames say about topics."""
        replayed = rows[rows["offset"] >= start] if needed else rows[:0]
        if (replayed["type"] == frame.PAD).any():
            self._found.add("padded", self._found.name, "Pad frames at or behind the replay position")
        appends = replayed[replayed["type"] == frame.APPEND]
        for topic in np.unique(appends["topic_id"]).tolist():
            seqs = np.unique(appends["seq"][appends["topic_id"] == topic]).astype(np.int64)
            self._logged.appends.setdefault(topic, []).extend(ranges_of(seqs))
        for row in rows[np.isin(rows["type"], (control.MARK, 2, 3))]:
            decoded = frame.decode(view, int(row["offset"]))
            self._control(decoded.topic_id, control.decode_body(decoded.type, decoded.data))

    def _control(self, topic: int, body: control.Body | control.CheckpointMark) -> None:
        logged = self._logged
        if isinstance(body, control.TopicCreate):
            logged.created[topic] = Created(body.name, body.cfg, body.base)
        elif isinstance(body, control.TopicDelete):
            logged.deleted.add(topic)
        elif isinstance(body, control.AttachMark):
            logged.attached.setdefault(body.topic_id, []).append(body)
        elif isinstance(body, control.TopicsMark):
            for one in body.topics:
                if body.n >= logged.claims.get(one.topic_id, (0, one))[0]:
                    logged.claims[one.topic_id] = (body.n, one)


def note_other(found: Collector, where: str, name: str) -> None:
    """A file that is not one of the store's own."""
    if paths.parse_salvaged(name) is not None:
        found.add("salvaged_copy", where)
    elif paths.parse_tmp(name) is not None:
        found.add("leftover", where)
    else:
        found.add("stray", where)


def read_if_there(fs: Fs, path: str) -> bytes | None:
    """A whole file as one pass of pread sees it, None if it is not there."""
    try:
        file = fs.open(path, "r")
    except FileNotFoundError:
        return None
    try:
        return pread_all(file, file.size(), 0)
    finally:
        close_quietly(file)
