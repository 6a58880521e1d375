"""What a data directory holds, read before anything is changed: store id, snapshots, WAL groups and their marks.

Steps 1 to 4 of recovery (06 §14). Refusals (`MetadataLost`, `WalCorrupt`, `UnsupportedFormat`) leave the directory as
it was; an error of the disk comes through [S-248]. One thread.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import control, frame
from topics.codec.snapshot import Header, Snapshot, WalRow
from topics.errors import MetadataLost, WalCorrupt
from topics.fs import Fs, close_quietly, ensure_dir, pread_exact, random_id, replace_file
from topics.storage.group import Group, Reading, WalFile, read_group
from topics.storage.lockfile import FailedSync
from topics.storage.shards import group_dir
from topics.storage.snapshot import SnapshotStore


class LoggedMark(NamedTuple):
    """A row of a `mark`, with the number of its checkpoint."""

    checkpoint: int
    row: control.MarkRow


class FoundFile(NamedTuple):
    """A WAL file to be replayed."""

    run: int
    group: Group
    file: WalFile

    def starts(self, rows: npt.NDArray[np.void]) -> array[int]:
        """Where its submissions begin."""
        follows = np.concatenate(([False], rows["flags"][:-1] & frame.MORE != 0)) if len(rows) else np.empty(0, bool)
        starts = array("Q")
        starts.frombytes(rows["offset"][~follows].astype(np.uint64).tobytes())
        return starts


class Found(NamedTuple):
    """Everything that recovery begins with."""

    store_id: str
    snapshot: Snapshot | None
    headers: list[Header]
    groups: dict[str, Group]
    files: list[FoundFile]
    """In the order of replay: by run, group and number."""
    marks: dict[int, LoggedMark]
    """The newest row of each topic."""
    runs: dict[int, str]
    """Boot id of each run seen."""
    ready: frozenset[int]
    closed: frozenset[int]
    deleted: frozenset[int]
    """Topics whose TopicDelete is in the log: nothing of them is to be looked at."""
    attached: dict[int, list[control.AttachMark]]
    """The `attach` marks of each topic, in order [S-288]."""
    islands: frozenset[FailedSync]
    """Groups in which a page cache was found to be lost [S-245]."""
    reading: Reading
    """What its files were read with."""

    def read(self, one: FoundFile) -> memoryview:
        """The valid part of a judged file; to be used until the next one is read."""
        return self.reading.read(f"{one.group.dir}/{paths.wal_file(one.file.number)}", one.file.scan.end)

    @property
    def replay_bytes(self) -> int:
        """What is to be replayed."""
        return sum(one.file.scan.end - one.file.start for one in self.files)

    @property
    def rows(self) -> tuple[WalRow, ...]:
        """The rows of the newest snapshot."""
        return self.snapshot.header.wal if self.snapshot is not None else ()

    def first_file(self, key: str) -> int:
        """The number that a new run's first file of a group has [S-21]."""
        known = [self.groups[key].last_number if key in self.groups else 0]
        for header in self.headers:
            known += [row.file_no - (not row.offset and not row.retired) for row in header.wal if row.group == key]
        return 1 + max(known)


def discover(fs: Fs, dir: str, store: SnapshotStore) -> Found:
    """Read a data directory whose lock is held."""
    meta, wal_dir = f"{dir}/{paths.META_DIR}", f"{dir}/{paths.WAL_DIR}"
    topics_dir = f"{dir}/{paths.TOPICS_DIR}"
    if fs.exists(f"{meta}/{paths.RESTORING_FILE}"):
        raise MetadataLost(f"a restore to {dir} is not finished; run `topics restore` again, or remove the directory")
    for one in (meta, wal_dir, topics_dir):
        ensure_dir(fs, one)
    # What a killed process renamed or unlinked there may not be durable: it is before anything is built on it.
    fs.sync_dir(meta)
    keys = _groups(fs, wal_dir)
    numbers = store.numbers()
    fresh = not numbers and not any(_wal_numbers(fs, group_dir(wal_dir, key)) for key in keys)
    known = _read_store_id(fs, meta)
    store_id = known or _missing_store_id(meta, store, fresh=fresh)
    snapshot = store.load(store_id)
    if snapshot is None:
        _require_metadata(fs, wal_dir, topics_dir, keys, fresh)
    headers = store.headers(store_id)
    positions = {row.group: row for row in snapshot.header.wal} if snapshot is not None else {}
    _require_groups(keys, positions)
    reading = Reading(fs)
    groups = {key: read_group(fs, group_dir(wal_dir, key), key, _position(positions.get(key)), reading) for key in keys}
    found = _scan(store_id, snapshot, headers, groups, reading)
    if known is None:
        # Only now: a start that is refused changes nothing [S-65].
        replace_file(fs, f"{meta}/{paths.STORE_FILE}", f"{store_id}\n".encode())
    return found


def _require_groups(keys: list[str], positions: dict[str, WalRow]) -> None:
    """A group that the snapshot's replay position is in must be there, its directory too [S-211]."""
    for row in positions.values():
        if row.offset and not row.retired and row.group not in keys:
            raise WalCorrupt(
                f"WAL group {row.group!r} is missing, with {paths.wal_file(row.file_no)} of the replay position; "
                "nothing was changed; `topics doctor --salvage` is the way on"
            )


def _position(row: WalRow | None) -> tuple[int, int]:
    if row is None:
        return 1, 0
    return (row.file_no + 1, 0) if row.retired else (row.file_no, row.offset)


def _groups(fs: Fs, wal_dir: str) -> list[str]:
    """Every group there is, whatever the configured number of shards."""
    names = fs.listdir(wal_dir)
    flat = any(paths.parse_wal_file(name) is not None or name == paths.CURRENT_FILE for name in names)
    return [*([""] if flat else []), *sorted(name for name in names if paths.parse_shard_dir(name) is not None)]


def _wal_numbers(fs: Fs, dir: str) -> list[int]:
    return sorted(n for name in fs.listdir(dir) if (n := paths.parse_wal_file(name)) is not None)


def _read_store_id(fs: Fs, meta: str) -> str | None:
    """The id of the store, as its file tells it; None if it does not."""
    path = f"{meta}/{paths.STORE_FILE}"
    if fs.exists(path):
        file = fs.open(path, "r")
        try:
            raw = pread_exact(file, min(file.size(), 64), 0)
        finally:
            close_quietly(file)
        text = raw.decode("ascii", "replace")
        if len(text) == 33 and text.endswith("\n") and all(c in "0123456789abcdef" for c in text[:32]):
            return text[:32]
    return None


def _missing_store_id(meta: str, store: SnapshotStore, *, fresh: bool) -> str:
    """The id of a store whose file does not tell it: that of its snapshots, and a new one only once (06 §14 step 1)."""
    snapshot = store.load(None)
    if snapshot is None and not fresh:
        raise MetadataLost(f"{meta}/{paths.STORE_FILE} cannot be read and no snapshot tells whose store this is")
    return snapshot.header.store if snapshot is not None else random_id()


def _require_metadata(fs: Fs, wal_dir: str, topics_dir: str, keys: list[str], fresh: bool) -> None:
    """Without a snapshot the WAL has to be complete [S-216]."""
    for key in keys:
        numbers = _wal_numbers(fs, group_dir(wal_dir, key))
        if numbers and numbers[0] != 1:
            raise MetadataLost(f"no snapshot, and WAL group {key!r} begins with file {numbers[0]}")
    if fresh and any(_alive(name) for name in fs.listdir(topics_dir)):
        raise MetadataLost(f"{topics_dir} has topics, but there is no snapshot and no WAL")


def _alive(name: str) -> bool:
    parsed = paths.parse_topic_dir(name)
    return parsed is not None and not parsed.deleted


def _scan(
    store_id: str, snapshot: Snapshot | None, headers: list[Header], groups: dict[str, Group], reading: Reading
) -> Found:
    """What the marks of the judged files say, and the order of replay."""
    files: list[FoundFile] = []
    marks: dict[int, LoggedMark] = {}
    runs = {header.run: header.boot for header in headers}
    ready: set[int] = {header.run for header in headers}
    closed: set[int] = set()
    deleted: set[int] = set()
    attached: dict[int, list[control.AttachMark]] = {}
    islands: set[FailedSync] = set()
    for group in groups.values():
        run = 0
        for file in group.files:
            if file.mark is not None:
                run = file.mark.run
                runs[run] = file.mark.boot
            if file.islands:
                islands.add(FailedSync(run, group.key))
            files.append(FoundFile(run, group, file))
    files.sort(key=lambda one: (one.run, one.group.key, one.file.number))
    for one in files:
        deleted |= one.file.deleted
        for mark in one.file.marks:
            if isinstance(mark, control.ReadyMark):
                ready.add(mark.run)
            elif isinstance(mark, control.CloseMark):
                closed.add(mark.run)
            elif isinstance(mark, control.AttachMark):
                attached.setdefault(mark.topic_id, []).append(mark)
            elif isinstance(mark, control.TopicsMark):
                for row in mark.topics:
                    known = marks.get(row.topic_id)
                    if known is None or mark.n >= known.checkpoint:
                        marks[row.topic_id] = LoggedMark(mark.n, row)
    return Found(
        store_id,
        snapshot,
        headers,
        groups,
        files,
        marks,
        runs,
        frozenset(ready),
        frozenset(closed),
        frozenset(deleted),
        attached,
        frozenset(islands),
        reading,
    )
