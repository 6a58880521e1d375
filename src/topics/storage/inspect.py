"""Offline examination of a whole data directory: every file, frame, index and snapshot, and what it means (06 §2, R-5).

    area        what is looked at                                                          module
    lock        `.topics.lock`: who has it, syncs that failed                              here
    meta        `STORE`, every snapshot decoded, the rows it has against each other        here
    wal…        every WAL group                                                            inspect_wal
    topics/ID   every topic directory                                                      inspect_topic

Nothing is changed and no lock taken. Whether the store is in use the caller says: then findings that an engine at work
explains are notes (`findings.FLUX`), and anything worse counts only if a second examination finds it again. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from topics import paths
from topics.codec import snapshot as codec
from topics.codec.control import AttachMark, MarkRow
from topics.codec.snapshot import GAP, SEALED, NotASnapshot, SegmentRow, Snapshot, TopicItem
from topics.errors import CallerError, UnsupportedFormat
from topics.fs import Fs
from topics.storage import attach
from topics.storage.descriptor import Claim
from topics.storage.findings import Area, Collector, Finding, Severity, worst_of
from topics.storage.inspect_topic import Expected, check_topic
from topics.storage.inspect_wal import Logged, check_groups, holds, note_other, read_if_there
from topics.storage.reindex import Range
from topics.storage.tiers.reading import ColdTier
from topics.storage.view import read_store_id

CheckTopics = Callable[[list[Expected]], list[Area]]
_STORE_DIRS = (paths.META_DIR, paths.WAL_DIR, paths.TOPICS_DIR)


class NotAStore(CallerError):
    """The directory is not the data directory of a store."""

    code = "not_a_store"


class Report(NamedTuple):
    """Everything that was found."""

    path: str
    store: str | None
    in_use: bool
    snapshot: int | None
    """Number of the newest valid one."""
    clean: bool
    """The last run was closed in order, as far as the snapshot knows."""
    topics: int
    areas: tuple[Area, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(one for area in self.areas for one in area.findings)

    @property
    def ok(self) -> bool:
        """No error."""
        return worst_of(self.findings) != "error"


def inspect(
    fs: Fs,
    path: str,
    *,
    in_use: bool = False,
    cold: str | None = None,
    looked: Callable[[int], None] = lambda size: None,
    check: CheckTopics | None = None,
) -> Report:
    """Examine a data directory; `NotAStore` if it is none. `looked` is told the size of each file.

    `check` examines the topics, if not one after the other is wanted.
    """
    report = _Examination(fs, path, in_use, cold, looked, check).run()
    if not in_use or worst_of(report.findings) in (None, "note"):
        return report
    again = _Examination(fs, path, in_use, cold, looked, check).run()
    seen = {(one.code, one.where) for one in report.findings}
    return again._replace(areas=tuple(_confirmed(area, seen) for area in again.areas))


def inspect_names(fs: Fs, path: str) -> list[str]:
    """What lies in a data directory; `NotAStore` if it is none."""
    try:
        names = sorted(fs.listdir(path))
    except FileNotFoundError:
        raise NotAStore(f"{path} does not exist") from None
    except NotADirectoryError:
        raise NotAStore(f"{path} is not a directory") from None
    if not any(name in names for name in _STORE_DIRS):
        raise NotAStore(f"{path} holds no store: no {', '.join(f'{name}/' for name in _STORE_DIRS)}")
    return names


def _confirmed(area: Area, seen: set[tuple[str, str]]) -> Area:
    """The area without what shows for the first time: the files may have changed under the reader."""
    kept = [one for one in area.findings if one.severity == "note" or (one.code, one.where) in seen]
    return area._replace(findings=tuple(kept))


class _Examination:
    """One pass over everything."""

    def __init__(
        self, fs: Fs, path: str, in_use: bool, cold: str | None, looked: Callable[[int], None],
        check: CheckTopics | None,
    ) -> None:  # fmt: skip
        self._check = self._in_turn if check is None else check
        self._fs = fs
        self._path = path
        self._in_use = in_use
        self._cold = cold
        self._looked = looked
        self._valid: list[Snapshot] = []

    def run(self) -> Report:
        names = inspect_names(self._fs, self._path)
        areas = [self._lock(names), self._meta(names)]
        logged = Logged()
        areas += check_groups(self._fs, self._path, self._valid, logged, in_use=self._in_use, looked=self._looked)
        known = self._expected(logged)
        areas += self._check(list(known.values()))
        areas += self._others(known, logged)
        header = self._valid[0].header if self._valid else None
        number, clean = (header.id, header.clean) if header is not None else (None, False)
        return Report(self._path, self._store, self._in_use, number, clean, len(known), tuple(areas))

    def _in_turn(self, topics: list[Expected]) -> list[Area]:
        return [check_topic(self._fs, self._path, one, in_use=self._in_use, looked=self._looked) for one in topics]

    def _lock(self, names: list[str]) -> Area:
        found = Collector("lock", in_use=self._in_use)
        raw = read_if_there(self._fs, f"{self._path}/{paths.LOCK_FILE}")
        if raw is None:
            found.add("no_lock_file", paths.LOCK_FILE)
        else:
            found.file(len(raw))
            for line in raw.decode("ascii", "backslashreplace").splitlines():
                key, _, value = line.partition("=")
                if key == "sync_failed":
                    found.add("sync_failed", paths.LOCK_FILE, f"run and group {value}")
        if self._in_use:
            found.add("in_use", paths.LOCK_FILE)
        for name in names:
            if name not in (*_STORE_DIRS, paths.STAGING_DIR, paths.LOCK_FILE):
                note_other(found, name, name)
        if paths.STAGING_DIR in names and self._fs.listdir(f"{self._path}/{paths.STAGING_DIR}"):
            found.add("staging", paths.STAGING_DIR)
        return found.area()

    def _meta(self, names: list[str]) -> Area:
        found = Collector(paths.META_DIR, in_use=self._in_use)
        meta = f"{self._path}/{paths.META_DIR}"
        inside = sorted(self._fs.listdir(meta)) if paths.META_DIR in names else []
        numbers = sorted((n for name in inside if (n := paths.parse_snapshot(name)) is not None), reverse=True)
        self._store = self._store_id(found, bool(numbers))
        refused = [(n, self._snapshot(found, n)) for n in numbers]
        for n, why in refused:
            if why:
                severity: Severity | None = None if self._valid else "error"
                found.add("snapshot_damaged", f"{paths.META_DIR}/{paths.snapshot(n)}", why, severity)
        if numbers and not self._valid:
            found.add("metadata_lost", paths.META_DIR, "no snapshot can be used")
        elif not numbers:
            self._without_snapshot(found, names)
        elif len(numbers) == 1:
            found.add("one_snapshot", f"{paths.META_DIR}/{paths.snapshot(numbers[0])}")
        if paths.RESTORING_FILE in inside:
            found.add("restore_unfinished", f"{paths.META_DIR}/{paths.RESTORING_FILE}")
            inside.remove(paths.RESTORING_FILE)
        for name in inside:
            if name != paths.STORE_FILE and paths.parse_snapshot(name) is None:
                note_other(found, f"{paths.META_DIR}/{name}", name)
        if self._valid:
            found.records = len(self._valid[0].topics)
        return found.area()

    def _store_id(self, found: Collector, snapshots: bool) -> str | None:
        where = f"{paths.META_DIR}/{paths.STORE_FILE}"
        raw = read_if_there(self._fs, f"{self._path}/{where}")
        if raw is not None:
            found.file(len(raw))
        store = read_store_id(self._fs, self._path)
        if store is None and snapshots:
            found.add("store_id_missing", where, "is missing" if raw is None else "is not 32 hex digits and a line end")
        elif store is None and raw is not None:
            found.add("store_id_bad", where, "is not 32 hex digits and a line end")
        return store

    def _snapshot(self, found: Collector, number: int) -> str:
        """Decode one snapshot; empty if it can be used, else why not."""
        name = f"{paths.META_DIR}/{paths.snapshot(number)}"
        try:
            raw = read_if_there(self._fs, f"{self._path}/{name}")
        except OSError as error:
            found.add("unreadable", name, str(error))
            return ""
        if raw is None:
            return ""  # pruned meanwhile
        found.file(len(raw))
        self._looked(len(raw))
        try:
            decoded = codec.decode(raw)
        except NotASnapshot as error:
            return str(error)
        except UnsupportedFormat as error:
            found.add("snapshot_newer", name, str(error))
            return ""
        header = decoded.header
        if header.id != number:
            return f"it is snapshot {header.id} by its header"
        if self._store is not None and header.store != self._store:
            return f"it is of store {header.store}, not {self._store}"
        if self._store is None:
            self._store = header.store
        self._valid.append(decoded)
        for what in _contradictions(decoded):
            found.add("snapshot_inconsistent", name, what)
        return ""

    def _without_snapshot(self, found: Collector, names: list[str]) -> None:
        has_log = paths.WAL_DIR in names and bool(self._fs.listdir(f"{self._path}/{paths.WAL_DIR}"))
        has_topics = paths.TOPICS_DIR in names and bool(self._fs.listdir(f"{self._path}/{paths.TOPICS_DIR}"))
        if has_topics and not has_log:
            found.add("metadata_lost", paths.META_DIR, "topics, and neither a snapshot nor a log")
        else:
            found.add("no_snapshot", paths.META_DIR)

    def _expected(self, logged: Logged) -> dict[int, Expected]:
        """The topics there must be: those of the newest snapshot, and those created behind it."""
        newest = self._valid[0] if self._valid else None
        items: dict[int, TopicItem | None] = {item.id: item for item in newest.topics} if newest else {}
        known_below = newest.header.next_topic_id if newest is not None else 0
        for id in logged.created:
            if id not in items and id >= known_below:
                items[id] = None
        ckpt = newest.header.ckpt if newest is not None else 0
        named = self._cold if self._cold is not None else newest.header.cold if newest is not None else None
        cold = ColdTier(self._fs, named, self._store)
        return {
            id: _expected_of(id, item, logged, ckpt, cold, self._waiting(logged.attached.get(id, ())))
            for id, item in sorted(items.items())
            if id not in logged.deleted
        }

    def _waiting(self, marks: Iterable[AttachMark]) -> tuple[Range, ...]:
        """Seqs of segments that a mark attaches and that are not in their topic yet."""
        found = []
        for mark in marks:
            out = attach.out_dir(f"{self._path}/{paths.STAGING_DIR}/{mark.dir}", mark.topic_id)
            there = set(self._fs.listdir(out)) if self._fs.exists(out) else set()
            firsts = {parsed.first_seq for name in there if (parsed := paths.parse_segment(name)) is not None}
            rows = [row for row in mark.segments if row.first in firsts]
            found += [Range(row.first, row.first + row.count - 1) for row in rows]
        return tuple(found)

    def _others(self, known: dict[int, Expected], logged: Logged) -> list[Area]:
        """What else lies in `topics/`."""
        found = Collector(paths.TOPICS_DIR, in_use=self._in_use)
        path = f"{self._path}/{paths.TOPICS_DIR}"
        for name in sorted(self._fs.listdir(path)) if self._fs.exists(path) else []:
            where, parsed = f"{paths.TOPICS_DIR}/{name}", paths.parse_topic_dir(name)
            if parsed is None:
                note_other(found, where, name)
            elif parsed.deleted or parsed.topic_id in logged.deleted:
                found.add("deleted_dir", where)
            elif parsed.topic_id not in known:
                found.add("orphan_dir", where)
        area = found.area()
        return [area] if area.findings else []


def _expected_of(
    id: int, item: TopicItem | None, logged: Logged, ckpt: int, cold: ColdTier, waiting: tuple[Range, ...]
) -> Expected:
    number, mark = logged.claims.get(id, (-1, None))
    if mark is not None and number < ckpt:
        mark = None  # the snapshot is newer
    created = logged.created.get(id)
    cfg: dict[str, Any] = item.cfg if item is not None else created.cfg if created is not None else {}
    base = item.base if item is not None else created.base if created is not None else 1
    floors = [base]
    if item is not None:
        floors += [item.cap_floor, item.ttl_floor, item.delete_below]
    if mark is not None:
        floors += [mark.cap_floor, mark.ttl_floor, mark.delete_below]
    ckpt_seq = max(item.ckpt_seq if item is not None else 0, mark.ckpt_seq if mark is not None else 0)
    ckpt_seq, claim = attach.reached(ckpt_seq, _claim(item, mark), logged.attached.get(id, ()))
    return Expected(
        id=id,
        name=item.name if item is not None else created.name if created is not None else "",
        epoch=item.epoch if item is not None else None,
        promised=cfg.get("durability", "disk") in ("disk", "fsync"),
        floor=max(floors),
        ckpt_seq=ckpt_seq,
        claim=claim,
        rows={row.first: row for row in item.segments} if item is not None else {},
        waiting=waiting,
        in_log=partial(holds, tuple(sorted(logged.appends.get(id, ())))),
        cold=cold,
    )


def _claim(item: TopicItem | None, mark: MarkRow | None) -> Claim | None:
    """What is durable of the active segment, by the newest mark or the snapshot's row."""
    if mark is not None:
        return Claim(mark.active_first, mark.active_data_len, mark.active_entries, mark.active_idx_xxh3)
    rows = [row for row in item.segments if not row.flags & SEALED] if item is not None else []
    return Claim(rows[-1].first, rows[-1].data_len, rows[-1].count, rows[-1].idx_xxh3) if rows else None


def _contradictions(decoded: Snapshot) -> list[str]:
    """What a snapshot says that cannot all be true."""
    found = []
    names = [item.name for item in decoded.topics]
    if len(set(names)) != len(names):
        found.append("a topic name occurs twice")
    for item in decoded.topics:
        if item.id >= decoded.header.next_topic_id:
            found.append(f"topic {item.id} is not below the next id {decoded.header.next_topic_id}")
        if item.ckpt_seq > item.head_seq:
            found.append(f"topic {item.id}: checkpoint {item.ckpt_seq} above head {item.head_seq}")
        if max(item.cap_floor, item.ttl_floor, item.delete_below) > item.head_seq + 1:
            found.append(f"topic {item.id}: a floor above head {item.head_seq}")
        found += [f"topic {item.id}: {what}" for what in _row_faults(item.segments)]
    known = {item.id for item in decoded.topics}
    found += [
        f"router {router.name} joins topics that are not there"
        for router in decoded.routers
        if router.source_id not in known or router.dest_id not in known
    ]
    return found


def _row_faults(rows: tuple[SegmentRow, ...]) -> list[str]:
    found = []
    end = 0
    for row in rows:
        if row.first <= end:
            found.append(f"segment {row.first} begins below {end}")
        if row.live > row.count or (row.flags & GAP and row.live):
            found.append(f"segment {row.first} has {row.live} live records of {row.count}")
        end = row.first + row.count - 1
    if any(not row.flags & SEALED for row in rows[:-1]):
        found.append("a segment that is not the newest is active")
    return found
