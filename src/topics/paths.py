"""Every file and directory name, formatted and parsed in one place (06 §2, 07 §1.2).

    server store                                        write-ahead-log library
    .topics.lock                     LOCK_FILE          LOCK                  LIBRARY_LOCK
    meta/STORE                       STORE_FILE         %06d.wal              library_segment
    meta/snapshot-%016d.bin          snapshot           %06d.wal.cut          library_cut, first copy
    wal/CURRENT                      CURRENT_FILE       %06d.wal.cut.1 …      library_cut, further copies
    wal/wal-%016d.log                wal_file
    wal/shard-%02d/                  shard_dir
    topics/%08X[.deleted]/           topic_dir
      topic.json                     TOPIC_FILE
      seg-%016d.{data,idx,tag}       segment
      seg-%016d.g%04d.data           segment, generation 1, 2 …
    staging/%016x-<version>/         staging_dir, with out/ inside
      part-%016d                     part
      out-<run>-<number>/            stamp_dir
    <cold root>/.topics-store        COLD_STORE_FILE
    *.tmp  *.salvaged                tmp, salvaged
    meta/RESTORING                   RESTORING_FILE, while a restore is not finished

    backup
    .topics-backup.lock              BACKUP_LOCK
    backup-%016d.json                backup
    snapshot-%016d.<xxh3>.bin        backup_snapshot
    topics/%08X/                     topic_dir
      seg-%016d.<xxh3>.{data,idx,tag}  backup_part

Parsing is strict: a name is recognised only if formatting the result gives that very name back, and
`None` means "not ours, leave it alone" [S-10]. Numbers grow beyond their padded width; names sort as
text only within it, so callers order by number. Pure functions: any thread.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast

META_DIR, WAL_DIR, TOPICS_DIR, STAGING_DIR, OUT_DIR = "meta", "wal", "topics", "staging", "out"
LOCK_FILE = ".topics.lock"
STORE_FILE = "STORE"
CURRENT_FILE = "CURRENT"
TOPIC_FILE = "topic.json"
COLD_STORE_FILE = ".topics-store"
LIBRARY_LOCK = "LOCK"
RESTORING_FILE = "RESTORING"
BACKUP_LOCK = ".topics-backup.lock"

U64_MAX = 2**64 - 1
SHARDS_MAX = 64

SegmentKind = Literal["data", "idx", "tag"]


class SegmentName(NamedTuple):
    """The parts of a topic segment's file name; generation 0 is the file as first written."""

    first_seq: int
    kind: SegmentKind
    generation: int = 0


class TopicDir(NamedTuple):
    """A topic's directory; `deleted` while it is being removed."""

    topic_id: int
    deleted: bool = False


class StagingDir(NamedTuple):
    """A staged write's directory: the hash of the writer's id, and its version."""

    id_hash: int
    version: int


class StampDir(NamedTuple):
    """Where segments are stamped: the run of the engine, and a number within it."""

    run: int
    number: int


class LibraryCut(NamedTuple):
    """A copy of bytes that recovery cut off a library segment; `copy` 0 is the first."""

    segment_id: int
    copy: int = 0


class BackupPart(NamedTuple):
    """A part of a segment in a backup, named by what it holds."""

    first_seq: int
    kind: SegmentKind
    xxh3: int


def _checked(value: int, low: int = 0, high: int = U64_MAX) -> int:
    assert low <= value <= high, f"{value} is outside {low}..{high}"
    return value


def _number(digits: str, low: int = 0, high: int = U64_MAX, base: int = 10) -> int | None:
    """The value of matched digits, or None outside the range; 20 digits hold every u64."""
    if len(digits) > 20:
        return None
    value = int(digits, base)
    return value if low <= value <= high else None


# `%016d` and its kin: exactly the padded width, or more digits without a leading zero.
_D16 = r"([0-9]{16}|[1-9][0-9]{16,19})"
_D6 = r"([0-9]{6}|[1-9][0-9]{6,19})"
_D4 = r"([0-9]{4}|[1-9][0-9]{4,19})"
_PLAIN = r"(0|[1-9][0-9]{0,19})"

_SNAPSHOT = re.compile(rf"snapshot-{_D16}\.bin")
_WAL_FILE = re.compile(rf"wal-{_D16}\.log")
_SHARD = re.compile(r"shard-([0-9]{2})")
_TOPIC = re.compile(r"([0-9A-F]{8}|[1-9A-F][0-9A-F]{8,15})(\.deleted)?")
_SEGMENT = re.compile(rf"seg-{_D16}(?:\.g{_D4})?\.(data|idx|tag)")
_STAGING = re.compile(rf"([0-9a-f]{{16}})-{_PLAIN}")
_PART = re.compile(rf"part-{_D16}")
_STAMP = re.compile(rf"out-{_PLAIN}-{_PLAIN}")
_BACKUP = re.compile(rf"backup-{_D16}\.json")
_BACKUP_SNAPSHOT = re.compile(rf"snapshot-{_D16}\.([0-9a-f]{{16}})\.bin")
_BACKUP_PART = re.compile(rf"seg-{_D16}\.([0-9a-f]{{16}})\.(data|idx|tag)")
_LIBRARY_SEGMENT = re.compile(rf"{_D6}\.wal")
_LIBRARY_CUT = re.compile(rf"{_D6}\.wal\.cut(?:\.([1-9][0-9]{{0,19}}))?")


def snapshot(number: int) -> str:
    """Name of a snapshot in `meta/`."""
    return f"snapshot-{_checked(number):016d}.bin"


def parse_snapshot(name: str) -> int | None:
    """Number of a snapshot."""
    match = _SNAPSHOT.fullmatch(name)
    return _number(match[1]) if match else None


def wal_file(number: int) -> str:
    """Name of a server WAL file."""
    return f"wal-{_checked(number):016d}.log"


def parse_wal_file(name: str) -> int | None:
    """Number of a server WAL file."""
    match = _WAL_FILE.fullmatch(name)
    return _number(match[1]) if match else None


def shard_dir(shard: int) -> str:
    """Directory of one shard, used when there is more than one."""
    return f"shard-{_checked(shard, 0, SHARDS_MAX - 1):02d}"


def parse_shard_dir(name: str) -> int | None:
    """Number of a shard directory."""
    match = _SHARD.fullmatch(name)
    return _number(match[1], 0, SHARDS_MAX - 1) if match else None


def topic_dir(topic_id: int, *, deleted: bool = False) -> str:
    """Directory of a topic: its id, never its name [S-10]."""
    return f"{_checked(topic_id):08X}" + (".deleted" if deleted else "")


def parse_topic_dir(name: str) -> TopicDir | None:
    """Id and state of a topic directory."""
    match = _TOPIC.fullmatch(name)
    return TopicDir(int(match[1], 16), match[2] is not None) if match else None


def segment(first_seq: int, kind: SegmentKind, generation: int = 0) -> str:
    """Name of a topic segment's file; only `.data` files have generations."""
    assert generation == 0 or kind == "data", "only .data files are rewritten under a new name"
    mark = f".g{_checked(generation):04d}" if generation else ""
    return f"seg-{_checked(first_seq):016d}{mark}.{kind}"


def parse_segment(name: str) -> SegmentName | None:
    """Parts of a topic segment's file name."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    kind = cast(SegmentKind, match[3])
    first_seq = _number(match[1])
    generation = 0 if match[2] is None else _number(match[2], 1)
    if first_seq is None or generation is None or (match[2] is not None and kind != "data"):
        return None
    return SegmentName(first_seq, kind, generation)


def staging_dir(id_hash: int, version: int) -> str:
    """Directory of one staged write."""
    return f"{_checked(id_hash):016x}-{_checked(version)}"


def parse_staging_dir(name: str) -> StagingDir | None:
    """Parts of a staging directory's name."""
    match = _STAGING.fullmatch(name)
    if match is None:
        return None
    version = _number(match[2])
    return None if version is None else StagingDir(int(match[1], 16), version)


def part(number: int) -> str:
    """Name of a staged part's file: a number, because a part's own name may differ from another's in case only."""
    return f"part-{_checked(number):016d}"


def parse_part(name: str) -> int | None:
    """Number of a staged part's file."""
    match = _PART.fullmatch(name)
    return _number(match[1]) if match else None


def stamp_dir(run: int, number: int) -> str:
    """Directory that segments of a staged write are stamped into: no two runs of an engine share one."""
    return f"out-{_checked(run)}-{_checked(number)}"


def parse_stamp_dir(name: str) -> StampDir | None:
    """Parts of a stamping directory's name."""
    match = _STAMP.fullmatch(name)
    if match is None:
        return None
    run, number = _number(match[1]), _number(match[2])
    return None if run is None or number is None else StampDir(run, number)


def backup(number: int) -> str:
    """Name of a backup's list of what belongs to it."""
    return f"backup-{_checked(number):016d}.json"


def parse_backup(name: str) -> int | None:
    """Number of a backup."""
    match = _BACKUP.fullmatch(name)
    return _number(match[1]) if match else None


def backup_snapshot(number: int, xxh3: int) -> str:
    """Name of a snapshot in a backup: its number and the hash of its bytes."""
    return f"snapshot-{_checked(number):016d}.{_checked(xxh3):016x}.bin"


def is_backup_snapshot(name: str) -> bool:
    """Whether it is the name of a snapshot in a backup."""
    match = _BACKUP_SNAPSHOT.fullmatch(name)
    return match is not None and _number(match[1]) is not None


def backup_part(first_seq: int, kind: SegmentKind, xxh3: int) -> str:
    """Name of a part of a segment in a backup: the hash of its bytes is in it."""
    return f"seg-{_checked(first_seq):016d}.{_checked(xxh3):016x}.{kind}"


def parse_backup_part(name: str) -> BackupPart | None:
    """Parts of such a name."""
    match = _BACKUP_PART.fullmatch(name)
    first_seq = _number(match[1]) if match else None
    if match is None or first_seq is None:
        return None
    return BackupPart(first_seq, cast(SegmentKind, match[3]), int(match[2], 16))


def library_segment(segment_id: int) -> str:
    """Name of a library log segment; ids start at 0."""
    return f"{_checked(segment_id):06d}.wal"


def parse_library_segment(name: str) -> int | None:
    """Id of a library log segment."""
    match = _LIBRARY_SEGMENT.fullmatch(name)
    return _number(match[1]) if match else None


def library_cut(segment_id: int, copy: int = 0) -> str:
    """Name under which bytes cut off a library segment are kept [W-61]."""
    return f"{_checked(segment_id):06d}.wal.cut" + (f".{_checked(copy)}" if copy else "")


def parse_library_cut(name: str) -> LibraryCut | None:
    """Segment and number of a kept cut."""
    match = _LIBRARY_CUT.fullmatch(name)
    if match is None:
        return None
    segment_id = _number(match[1])
    copy = 0 if match[2] is None else _number(match[2], 1)
    return None if segment_id is None or copy is None else LibraryCut(segment_id, copy)


def tmp(name: str) -> str:
    """Name of the file that is written, synced and then renamed to `name`."""
    return f"{name}.tmp"


def parse_tmp(name: str) -> str | None:
    """The target of a temporary file's name."""
    return _target(name, ".tmp")


def salvaged(name: str) -> str:
    """Name of the copy made before salvage changes `name` [S-66]."""
    return f"{name}.salvaged"


def parse_salvaged(name: str) -> str | None:
    """The original of a salvaged copy's name."""
    return _target(name, ".salvaged")


def _target(name: str, suffix: str) -> str | None:
    target = name.removesuffix(suffix)
    return target if target and target != name and "/" not in name else None
