"""Taking a backup [S-319]: the segments that a snapshot names, the snapshot, and the manifest that makes it count.

    parts        named by what they hold, so nothing that an earlier backup needs is ever overwritten
    snapshot     as if the store had been closed at the cut
    manifest     **the commit point**; before it the place holds the backup before, behind it this one
    clean-up     older manifests first, then parts that this backup does not name

Killed anywhere it can be run again: what is there already is not copied again. A sealed segment whose `.idx` has not
changed since the last backup is not even read. A segment that does not verify is told, and there is no backup then.

The caller sees to it that what the snapshot names stays: a pin, or the lock of a stopped store. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest

from topics import paths
from topics.codec import manifest as manifests
from topics.codec import snapshot as snapshots
from topics.codec.manifest import Manifest, NotAManifest, Part, SegmentParts, SnapshotPart
from topics.codec.snapshot import SegmentRow, Snapshot, TopicItem
from topics.errors import StoreUnavailable
from topics.fs import Fs
from topics.storage.backup.cut import cut
from topics.storage.backup.depot import Depot, read_whole
from topics.storage.backup.faults import BackupDamaged, OtherStore, SourceChanged, SourceDamaged
from topics.storage.backup.pair import Damaged, FetchCold, Pair, Vanished, key_of, read_pair
from topics.storage.segfile import SegmentFiles
from topics.storage.tiers.store import RangeOutOfBounds, SegmentNotFound

MANIFEST_BYTES_MAX = 1 << 30
TRIES = 3
"""A server replaces an `.idx` while it is read: another look shows which."""

_T = TypeVar("_T")


class Source(NamedTuple):
    """What is backed up."""

    fs: Fs
    dir: str
    snapshot: Snapshot
    fetch: FetchCold
    is_held: Callable[[], bool] = lambda: True
    """Whether everything that the snapshot names was there until now."""


class Taken(NamedTuple):
    """What a backup came to."""

    manifest: Manifest
    copied_segments: int
    copied_bytes: int
    removed: int
    """Parts of earlier backups that nothing names any more."""
    damaged: int = 0
    """Parts that were there, did not verify and were copied anew."""


class _Known(NamedTuple):
    """A segment that is in the depot already."""

    parts: SegmentParts
    row: SegmentRow


class Taker:
    """Takes a backup to one place; when the cut is lost, `take` may be called again with a new one.

    With `check` what is there already is read first, and what does not verify is copied anew.
    """

    def __init__(self, depot: Depot, copied: Callable[[int], None] = lambda size: None, *, check: bool = False) -> None:
        self._depot = depot
        self._copied = copied
        self._check = check
        self._known: dict[tuple[int, int], _Known] = {}
        self._segments = 0
        self._bytes = 0
        self._there: set[str] = set()

    def take(self, source: Source) -> Taken:
        """`SourceDamaged`, `SourceChanged`, `OtherStore`, errors of the disk or the place: the backup before stands."""
        with self._depot.reserved():
            self._there = set(self._depot.listing())
            before = newest(self._depot, self._there)
            store = source.snapshot.header.store
            damaged = 0
            if before is not None and before.store != store:
                raise OtherStore(f"{self._depot.name} holds backups of store {before.store}, this is store {store}")
            if before is not None:
                if self._check:
                    damaged = self._verify(before)
                self._learn(before)
            segments, rows = self._segments_of(source)
            made = self._manifest(source, segments, rows, before)
            return Taken(made, self._segments, self._bytes, self._clean_up(made), damaged)

    def _verify(self, before: Manifest) -> int:
        """Read every part that the last backup names; how many are damaged, and are as good as absent now."""
        damaged = 0
        for one in before.segments:
            for kind, part in parts_of(one):
                name = part_name(one.topic_id, one.first, kind, part)
                try:
                    read_whole(self._depot, name, part.bytes, part.xxh3)
                except BackupDamaged:
                    damaged += 1
                    self._there.discard(name)
        return damaged

    def _learn(self, before: Manifest) -> None:
        """What the last backup has, as long as its snapshot can be read; else everything is read anew."""
        try:
            snapshot = read_snapshot(self._depot, before)
        except BackupDamaged:
            return
        rows = {(item.id, row.first): row for item in snapshot.topics for row in item.segments}
        for one in before.segments:
            row = rows.get((one.topic_id, one.first))
            if row is not None and names_of(one) <= self._there:
                self._known.setdefault((one.topic_id, one.first), _Known(one, row))

    def _segments_of(self, source: Source) -> tuple[list[SegmentParts], dict[int, list[SegmentRow]]]:
        """Every segment into the depot; all damage is told at once."""
        segments: list[SegmentParts] = []
        rows: dict[int, list[SegmentRow]] = {}
        damage: list[str] = []
        for item in source.snapshot.topics:
            for row in item.segments:
                try:
                    known = self._segment(source, item, row)
                except (Damaged, Vanished) as error:
                    damage.append(f"topic {item.name!r}, {error}")
                    continue
                segments.append(known.parts)
                rows.setdefault(item.id, []).append(known.row)
        if damage and not source.is_held():
            raise SourceChanged("the files are not held any more: " + damage[0])
        if damage:
            raise SourceDamaged(damage)
        return segments, rows

    def _segment(self, source: Source, item: TopicItem, row: SegmentRow) -> _Known:
        floor = max(item.cap_floor, item.ttl_floor, item.delete_below, item.base)

        def look(files: SegmentFiles) -> _Known:
            key = key_of(files, row)
            known = self._known.get((item.id, row.first))
            if known is not None and key is not None and known.parts.key == key:
                return known
            return self._keep(item.id, key or 0, read_pair(files, row, floor, source.fetch))

        known = _patiently(source, item.id, look)
        self._known[item.id, row.first] = known
        return known

    def _keep(self, topic_id: int, key: int, pair: Pair) -> _Known:
        first = pair.row.first
        before = self._bytes
        # The `.idx` last: in a folder it is then never there without its data.
        data = self._part(topic_id, first, "data", pair.data)
        tag = self._part(topic_id, first, "tag", pair.tag)
        idx = self._part(topic_id, first, "idx", pair.idx)
        assert idx is not None
        if self._bytes != before:
            self._segments += 1
        return _Known(SegmentParts(topic_id, first, key, pair.generation, data, idx, tag), pair.row)

    def _part(self, topic_id: int, first: int, kind: paths.SegmentKind, data: bytes | None) -> Part | None:
        if data is None:
            return None
        part = Part(len(data), xxh3_64_intdigest(data))
        self._put(part_name(topic_id, first, kind, part), data)
        return part

    def _put(self, name: str, data: bytes) -> None:
        if name not in self._there:
            self._depot.put(name, data)
            self._there.add(name)
            self._bytes += len(data)
        self._copied(len(data))

    def _manifest(
        self,
        source: Source,
        segments: list[SegmentParts],
        rows: dict[int, list[SegmentRow]],
        before: Manifest | None,
    ) -> Manifest:
        """Snapshot, then manifest: none of both if the newest backup is this one already."""
        made = cut(source.snapshot, rows)
        raw = snapshots.encode(made.header, made.topics, made.routers)
        part = SnapshotPart(made.header.id, len(raw), xxh3_64_intdigest(raw))
        self._put(paths.backup_snapshot(part.number, part.xxh3), raw)
        self._depot.flush()
        if not source.is_held():
            raise SourceChanged("the files were not held until all of them were copied")
        if before is not None and (before.snapshot, list(before.segments)) == (part, segments):
            return before
        number = 1 + max((n for name in self._there if (n := paths.parse_backup(name)) is not None), default=0)
        manifest = Manifest(
            number=number,
            store=made.header.store,
            ts=made.header.ts,
            snapshot=part,
            topics=len(made.topics),
            segments=tuple(segments),
        )
        self._put(paths.backup(number), manifests.encode(manifest))
        self._depot.flush()
        return manifest

    def _clean_up(self, kept: Manifest) -> int:
        """Remove what this backup does not name, manifests first: none may name what is gone."""
        named = {paths.backup(kept.number), paths.backup_snapshot(kept.snapshot.number, kept.snapshot.xxh3)}
        for one in kept.segments:
            named |= names_of(one)
        stale = sorted(self._there - named, key=lambda name: (paths.parse_backup(name) is None, name))
        for name in stale:
            self._depot.remove(name)
            self._there.discard(name)
        return len(stale)


def _patiently(source: Source, topic_id: int, look: Callable[[SegmentFiles], _T]) -> _T:
    """Look at a segment's files until they hold still; a topic that was deleted since has them under another name."""
    for attempt in range(TRIES):
        for deleted in (False, True):
            dir = f"{source.dir}/{paths.TOPICS_DIR}/{paths.topic_dir(topic_id, deleted=deleted)}"
            if deleted and not source.fs.exists(dir):
                continue
            try:
                return look(SegmentFiles(source.fs, dir, topic_id))
            except (Damaged, Vanished) as error:
                failure: Exception = error
            except FileNotFoundError as error:
                failure = Vanished(str(error))
            except (SegmentNotFound, RangeOutOfBounds) as error:
                failure = Vanished(f"segment {error.id.first} in the cold tier: {error}")
            except StoreUnavailable as error:
                if attempt + 1 == TRIES:
                    raise
                failure = error
    raise failure


def part_name(topic_id: int, first: int, kind: paths.SegmentKind, part: Part) -> str:
    """Where a part of a segment is in a depot."""
    return f"{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}/{paths.backup_part(first, kind, part.xxh3)}"


def parts_of(one: SegmentParts) -> Iterator[tuple[paths.SegmentKind, Part]]:
    """The parts that a segment has, `.idx` last."""
    kinds: tuple[tuple[paths.SegmentKind, Part | None], ...] = (("data", one.data), ("tag", one.tag), ("idx", one.idx))
    for kind, part in kinds:
        if part is not None:
            yield kind, part


def names_of(one: SegmentParts) -> set[str]:
    """The names of a segment's parts in a depot."""
    return {part_name(one.topic_id, one.first, kind, part) for kind, part in parts_of(one)}


def newest(depot: Depot, there: set[str] | frozenset[str]) -> Manifest | None:
    """The newest manifest that verifies."""
    numbers = sorted((n for name in there if (n := paths.parse_backup(name)) is not None), reverse=True)
    for number in numbers:
        raw = depot.read(paths.backup(number), MANIFEST_BYTES_MAX)
        try:
            found = manifests.decode(raw or b"")
        except NotAManifest:
            continue
        if found.number == number:
            return found
    return None


def read_snapshot(depot: Depot, manifest: Manifest) -> Snapshot:
    """The snapshot of a backup; `BackupDamaged` if it is not what was put there."""
    part = manifest.snapshot
    raw = read_whole(depot, paths.backup_snapshot(part.number, part.xxh3), part.bytes, part.xxh3)
    try:
        return snapshots.decode(raw)
    except snapshots.NotASnapshot as error:
        raise BackupDamaged(f"{depot.name}: the snapshot does not decode: {error}") from error
