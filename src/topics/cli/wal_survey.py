"""What is in the files of a log, found without changing or locking anything.

    DIR                         groups
    a library log               itself: NNNNNN.wal
    a data directory            those of its wal/
    wal/ of a data directory    itself: wal-*.log, and every shard-NN/

The codecs judge the bytes; this module finds the files, reads them whole with pread, one at a time (a mapping would
fault when a live writer cuts its file), and collects faults. A torn tail is none: a crash may leave one, and opening
the log cuts it. Faults are what only damage can cause:

    corrupt    bad bytes where all had been durable: below the last segment with content; in it, a bad record that is
               followed, where its lengths say, by one that verifies; for frames, by one that tells of a later sync
    format     intact bytes that this version cannot interpret
    missing    no file between two segments with content
    length     a server file shorter or longer than the next file's open mark says [S-68]
    preamble   a server file that does not begin with its own open mark [S-20]
    pointer    CURRENT names no file of the group [S-64]
    value      a record that verifies and does not decompress (only looked for on request)
    unreadable the system refused to read the file

A log may be written meanwhile. The list of files is taken first and the last one with content looked up from its
end, so what counts as inner was complete before it is read; a bad end is believed when a second reading shows it;
files deleted from the front are no hole. Runs on the main thread.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from topics import paths
from topics.codec.scan import Codec, Place, Scan, zero_tail
from topics.errors import CallerError, CompressionFailed, DecompressionFailed
from topics.fs import File, Fs, pread_all
from topics.wal.core import SegmentScan
from topics.wal.naming import LibraryNaming, Naming, ServerNaming
from topics.wal.record import RecordCodec, decode, parse_head, walk

if TYPE_CHECKING:
    from topics.codec.control import OpenMark

Kind = Literal["library", "server"]

_LOCK_BYTES = 200
_READ_BYTES = 1 << 20
_READINGS_MAX = 5
"""How often a file with a bad end is read until two readings agree."""


class NotALog(CallerError):
    """The directory holds nothing that this command can look at."""

    code = "not_a_log"


class Group(NamedTuple):
    """Segments that follow one another: a library log, or the WAL files of one server directory."""

    kind: Kind
    key: str
    """Empty, or the shard's directory."""
    dir: str
    prefix: str
    """What stands before a file's name when it is told to people."""

    @property
    def naming(self) -> Naming:
        return LibraryNaming() if self.kind == "library" else ServerNaming()

    def codec(self) -> Codec:
        """The codec of this kind of log; the server's is loaded only when it is needed."""
        if self.kind == "library":
            return RecordCodec(strict=True)
        from topics.codec.frame import FrameCodec

        return FrameCodec()

    def path(self, id: int) -> str:
        return f"{self.dir}/{self.naming.name(id)}"

    def shown(self, id: int) -> str:
        """The file's name as people see it, relative to what they asked for."""
        return self.prefix + self.naming.name(id)


class Fault(NamedTuple):
    """Something that only damage explains; `offset` is `None` when it concerns a whole file."""

    file: str
    offset: int | None
    kind: str
    reason: str


class Frames(NamedTuple):
    """What the valid part of a server file holds."""

    types: dict[str, int]
    topics: list[int]
    run: int | None
    """Of the open mark."""


class Found(NamedTuple):
    """One segment. `scan` is `None` for one that could not be read; one without content was not read whole."""

    group: Group
    id: int
    size: int
    scan: SegmentScan | None
    frames: Frames | None = None

    @property
    def name(self) -> str:
        return self.group.shown(self.id)

    @property
    def verdict(self) -> str:
        if self.scan is None:
            return "unreadable"
        return "prepared" if self.scan.place == "beyond" else self.scan.scan.verdict

    @property
    def valid_bytes(self) -> int:
        return 0 if self.scan is None else self.scan.scan.end

    @property
    def bad_bytes(self) -> int:
        return 0 if self.scan is None else self.scan.damaged_bytes

    @property
    def zero_bytes(self) -> int:
        return 0 if self.scan is None else self.size - self.valid_bytes - self.bad_bytes

    @property
    def records(self) -> int:
        return 0 if self.scan is None else self.scan.scan.records

    @property
    def reason(self) -> str:
        """Why the valid part ends where it does; empty at a clean end."""
        return "" if self.scan is None else reason_of(self.group.kind, self.scan.place, self.scan.scan)


class Kept(NamedTuple):
    """A copy of bytes that an earlier recovery cut off."""

    file: str
    size: int


class Lock(NamedTuple):
    """The lock file as it reads; nobody's lock is touched to find out."""

    file: str
    state: str
    """`open` (now, or its process died), `closed`, or what the file says."""
    holder: int | None
    """Process that holds it, where the system tells."""


class Survey(NamedTuple):
    """Everything found."""

    root: str
    groups: tuple[Group, ...]
    segments: tuple[Found, ...]
    faults: tuple[Fault, ...]
    cuts: tuple[Kept, ...]
    locks: tuple[Lock, ...]
    unchecked: int
    """Compressed values that could not be checked because their library is not installed."""

    @property
    def kind(self) -> str:
        kinds = sorted({group.kind for group in self.groups})
        return kinds[0] if len(kinds) == 1 else "mixed"


def survey(fs: Fs, root: str, *, values: bool = False, looked: Callable[[int], None] = lambda size: None) -> Survey:
    """Look at every segment below `root`; `values` also decompresses what is compressed.

    `looked` is told the size of each file when it is done.
    """
    groups = find_groups(fs, root)
    segments: list[Found] = []
    faults: list[Fault] = []
    unchecked = 0
    for group in groups:
        look = _Look(fs, group, values)
        for found in look.segments():
            segments.append(found)
            looked(found.size)
        faults += look.faults
        unchecked += look.unchecked
    if not segments:
        raise NotALog(f"the files in {root} vanished meanwhile")
    cuts = [cut for group in groups for cut in _cuts(fs, group)]
    locks = _locks(fs, groups)
    return Survey(root, tuple(groups), tuple(segments), tuple(faults), tuple(cuts), tuple(locks), unchecked)


def find_groups(fs: Fs, root: str) -> list[Group]:
    """The groups below `root`; `NotALog` when there are none."""
    names = _names(fs, root)
    groups = _groups_in(fs, root, "", names)
    if not groups and paths.WAL_DIR in names:
        inside = f"{root}/{paths.WAL_DIR}"
        groups = _groups_in(fs, inside, f"{paths.WAL_DIR}/", _names(fs, inside))
    if groups:
        return groups
    if not names:
        raise NotALog(f"{root} is empty")
    raise NotALog(f"{root} holds no log: no NNNNNN.wal, no wal-*.log, no wal/ with any of them")


def _names(fs: Fs, dir: str) -> list[str]:
    try:
        return sorted(fs.listdir(dir))
    except FileNotFoundError as error:
        raise NotALog(f"{dir} does not exist") from error
    except NotADirectoryError as error:
        raise NotALog(f"{dir} is not a directory") from error


def _present(fs: Fs, dir: str) -> list[str]:
    """The names in a directory, none when it was removed meanwhile or is a plain file."""
    try:
        return _names(fs, dir)
    except NotALog:
        return []


def _groups_in(fs: Fs, dir: str, prefix: str, names: Sequence[str]) -> list[Group]:
    groups = []
    if any(paths.parse_library_segment(name) is not None for name in names):
        groups.append(Group("library", "", dir, prefix))
    if any(paths.parse_wal_file(name) is not None for name in names):
        groups.append(Group("server", "", dir, prefix))
    for shard in names:
        if paths.parse_shard_dir(shard) is None:
            continue
        inside = f"{dir}/{shard}"
        if any(paths.parse_wal_file(name) is not None for name in _present(fs, inside)):
            groups.append(Group("server", shard, inside, f"{prefix}{shard}/"))
    return groups


def list_ids(fs: Fs, group: Group) -> list[int]:
    """Ids of the files present, ascending; other files are none of ours."""
    parse = group.naming.parse
    return sorted(id for name in _present(fs, group.dir) if (id := parse(name)) is not None)


def places(fs: Fs, group: Group, ids: Sequence[int]) -> dict[int, Place]:
    """Where each segment stands to the last one with content."""
    last = next((id for id in reversed(ids) if _has_content(fs, group.path(id))), -1)
    return {id: "beyond" if id > last else "last" if id == last else "inner" for id in ids}


def _has_content(fs: Fs, path: str) -> bool:
    try:
        with opened(fs, path) as file:
            at = 0
            while chunk := file.pread(_READ_BYTES, at):
                if chunk.strip(b"\0"):
                    return True
                at += len(chunk)
        return False
    except FileNotFoundError:
        return False
    except OSError:
        # It cannot be told; reading it for its records will say what is wrong.
        return True


@contextmanager
def opened(fs: Fs, path: str) -> Iterator[File]:
    """The file, for reading."""
    file = fs.open(path, "r")
    try:
        yield file
    finally:
        file.close()


def read_whole(fs: Fs, path: str) -> bytes:
    """The bytes of a file that may be changing: what one pass of pread sees."""
    with opened(fs, path) as file:
        return pread_all(file, file.size(), 0)


def judge(read: Callable[[], bytes], codec: Codec, place: Place, start: int = 0) -> tuple[bytes, Scan]:
    """The bytes and the codec's verdict on them. A bad end must show twice: a read may overlap a write."""
    data = read()
    scan = codec.scan(memoryview(data), min(start, len(data)), place)
    for _ in range(_READINGS_MAX - 1):
        if scan.verdict == "clean":
            break
        before = scan
        data = read()
        scan = codec.scan(memoryview(data), min(start, len(data)), place)
        if scan == before:
            break
    return data, scan


def reason_of(kind: Kind, place: Place, scan: Scan) -> str:
    """A scan's detail without its offset, and with what makes it damage."""
    reason = scan.detail.removeprefix(f"at {scan.end}: ").removeprefix(f"offset {scan.end}: ")
    if scan.verdict == "corrupt" and place == "inner":
        return f"{reason}; this file was synced before the next one was used"
    if scan.verdict == "corrupt" and kind == "library":
        return f"{reason}; a record that verifies follows it"
    if scan.verdict == "corrupt":
        return f"{reason}; a later frame tells that these bytes were synced"
    return reason


def holes(fs: Fs, group: Group, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of ids without a file between two of `ids`. What was deleted from the front meanwhile is no hole."""
    found = []
    for low, high in itertools.pairwise(ids):
        if high - low > 1 and fs.exists(group.path(low)) and not fs.exists(group.path(low + 1)):
            found.append((low + 1, high - 1))
    return found


def hole_fault(group: Group, first: int, last: int) -> Fault:
    """A hole as a fault of its first file."""
    if first == last:
        return Fault(group.shown(first), None, "missing", "is missing between two others")
    reason = f"is missing between two others, with all {last - first + 1} files to {group.naming.name(last)}"
    return Fault(group.shown(first), None, "missing", reason)


class _Look:
    """One pass over one group; collects faults on the way."""

    def __init__(self, fs: Fs, group: Group, values: bool) -> None:
        self.fs = fs
        self.group = group
        self.values = values
        self.codec = group.codec()
        self.faults: list[Fault] = []
        self.unchecked = 0
        self._before: Found | None = None

    def segments(self) -> Iterator[Found]:
        """The segments in order; what vanished meanwhile is left out."""
        group = self.group
        named = _named_by_current(self.fs, group)
        ids = list_ids(self.fs, group)
        if isinstance(named, Fault):
            self.faults.append(named)
        elif named is not None and ids and named > ids[-1]:
            reason = f"names {group.naming.name(named)}, which is higher than any file present"
            self.faults.append(Fault(group.prefix + paths.CURRENT_FILE, None, "pointer", reason))
        with_content = []
        for id, place in places(self.fs, group, ids).items():
            found = self._segment(id, place)
            if found is None:
                continue
            if place != "beyond":
                with_content.append(id)
            self._before = found
            yield found
        self.faults += [hole_fault(group, *hole) for hole in holes(self.fs, group, with_content)]

    def _segment(self, id: int, place: Place) -> Found | None:
        path = self.group.path(id)
        try:
            if place == "beyond":
                size = self.fs.size(path)
                return Found(self.group, id, size, SegmentScan(id, size, place, Scan(0, 0, "clean"), 0))
            data, scan = judge(lambda: read_whole(self.fs, path), self.codec, place)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fault(id, None, "unreadable", str(error))
            return Found(self.group, id, 0, None)
        view = memoryview(data)
        found = Found(self.group, id, len(data), SegmentScan(id, len(data), place, scan, zero_tail(view, scan.end)))
        if scan.verdict in ("corrupt", "format"):
            self._fault(id, scan.end, scan.verdict, found.reason)
        if self.group.kind == "server":
            return found._replace(frames=self._frames(id, view, scan.end))
        if self.values:
            self._check_values(id, view, scan.end)
        return found

    def _fault(self, id: int, offset: int | None, kind: str, reason: str) -> None:
        self.faults.append(Fault(self.group.shown(id), offset, kind, reason))

    def _check_values(self, id: int, view: memoryview, end: int) -> None:
        """Decompress what is compressed; checksums are known to be right."""
        at = 0
        while at < end:
            _, at = walk(view, at, end)
            if at >= end:
                return
            try:
                decode(view, at, end)
            except DecompressionFailed as error:
                if isinstance(error.__cause__, CompressionFailed):
                    self.unchecked += 1
                else:
                    self._fault(id, at, "value", str(error))
            key_at, klen, vlen, _, _ = parse_head(view, at, end)
            at = key_at + klen + vlen + 4

    def _frames(self, id: int, view: memoryview, end: int) -> Frames:
        import numpy as np

        from topics.codec.frame import length_agrees, scan_frames

        rows = scan_frames(view, 0, end).rows
        mark = _open_mark(view, end)
        if len(rows):
            self._check_preamble(id, view, mark)
        before = self._before
        if before is not None and before.id == id - 1 and before.verdict == "clean":
            if not length_agrees(before.id, before.valid_bytes, view):
                said = mark.prev[1] if mark is not None and isinstance(mark.prev, tuple) else "another length"
                reason = f"holds {before.valid_bytes} valid bytes, the next file's open mark says {said}"
                self._fault(before.id, before.valid_bytes, "length", reason)
        types, counts = np.unique(rows["type"], return_counts=True)
        named = {type_name(number): count for number, count in zip(types.tolist(), counts.tolist(), strict=True)}
        topics = [topic for topic in np.unique(rows["topic_id"]).tolist() if topic]
        return Frames(named, topics, None if mark is None else mark.run)

    def _check_preamble(self, id: int, view: memoryview, mark: OpenMark | None) -> None:
        from topics.codec.frame import PAD

        # Salvage puts a Pad in the place of a damaged open mark [S-66].
        if mark is None and view[4] != PAD:
            self._fault(id, 0, "preamble", "does not begin with an open mark")
        elif mark is not None and mark.file != id:
            self._fault(id, 0, "preamble", f"its open mark is that of file {mark.file}")


def counted(number: int, noun: str) -> str:
    """`1 segment`, `2,000 segments`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def type_name(type: int) -> str:
    """Name of a frame type."""
    from topics.codec.control import BODIES, MARK
    from topics.codec.frame import APPEND, PAD

    names = {APPEND: "Append", MARK: "CheckpointMark", PAD: "Pad"}
    return names[type] if type in names else BODIES[type].__name__


def _open_mark(view: memoryview, end: int) -> OpenMark | None:
    from topics.codec.control import MARK, OpenMark, decode_body
    from topics.codec.frame import NotAFrame, decode

    try:
        frame = decode(view[:end])
    except NotAFrame:
        return None
    body = decode_body(frame.type, frame.data) if frame.type == MARK else None
    return body if isinstance(body, OpenMark) else None


def _named_by_current(fs: Fs, group: Group) -> int | Fault | None:
    """The file that CURRENT names; read before the files are listed, because it is written after they are made."""
    if group.kind != "server":
        return None
    shown = group.prefix + paths.CURRENT_FILE
    try:
        text = read_whole(fs, f"{group.dir}/{paths.CURRENT_FILE}")
    except FileNotFoundError:
        return None
    except OSError as error:
        return Fault(shown, None, "unreadable", str(error))
    number = paths.parse_wal_file(text.decode("latin-1").removesuffix("\n"))
    return Fault(shown, None, "pointer", "is not the name of a file") if number is None else number


def _cuts(fs: Fs, group: Group) -> Iterator[Kept]:
    if group.kind != "library":
        return
    for name in _present(fs, group.dir):
        if paths.parse_library_cut(name) is not None:
            try:
                yield Kept(group.prefix + name, fs.size(f"{group.dir}/{name}"))
            except FileNotFoundError:
                continue


def _locks(fs: Fs, groups: Sequence[Group]) -> Iterator[Lock]:
    """The lock files that guard the groups: LOCK beside a library log, .topics.lock above `wal/`."""
    seen: dict[str, str] = {}
    for group in groups:
        if group.kind == "library":
            seen[f"{group.dir}/{paths.LIBRARY_LOCK}"] = group.prefix + paths.LIBRARY_LOCK
        else:
            wal = os.path.dirname(group.dir) if group.key else group.dir
            seen[f"{os.path.dirname(os.path.abspath(wal))}/{paths.LOCK_FILE}"] = paths.LOCK_FILE
    for path, shown in seen.items():
        try:
            with opened(fs, path) as file:
                first = pread_all(file, _LOCK_BYTES, 0).decode("ascii", "backslashreplace").partition("\n")[0]
        except FileNotFoundError:
            continue
        except OSError:
            first = "unreadable"
        # Anyone's bytes: what would steer a terminal is shown, not sent.
        state = first.removeprefix("state=").encode("unicode_escape").decode()
        yield Lock(shown, state or "empty", holder(fs, path))


def holder(fs: Fs, path: str) -> int | None:
    """The process that has the file locked, where the system tells (Linux); asking the lock would take it."""
    try:
        stat = os.stat(path)
        with opened(fs, "/proc/locks") as file:
            table = pread_all(file, _READ_BYTES, 0).decode("ascii", "replace")
    except OSError:
        return None
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place and fields[4].isdigit():
            return int(fields[4])
    return None
