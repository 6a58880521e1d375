"""The WAL of an engine: its shards, the groups an earlier layout left, and what of them is still needed.

    of(topic_id)     the shard that a topic's frames go to in this run [S-46, S-70]
    position(...)    where replay has to begin in a group [S-192]
    trim(...)        unlink what no retained snapshot needs, and groups that the layout no longer uses [S-89]

Owner only, but for `trim`'s file work, which any one thread does.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topics import paths
from topics.clock import Clock
from topics.codec.place import shard_of
from topics.codec.snapshot import WalRow
from topics.fs import Fs
from topics.storage.group import Group
from topics.storage.owner import Owner
from topics.storage.shard import Shard
from topics.storage.tail import WalFiles, unpack
from topics.storage.walread import WalReader
from topics.wal.events import Meter

log = logging.getLogger("topics.storage")


def group_keys(shards: int) -> list[str]:
    """The groups of a layout: the flat directory for one shard [S-70]."""
    return [""] if shards == 1 else [paths.shard_dir(number) for number in range(shards)]


def group_dir(wal_dir: str, key: str) -> str:
    """The directory of a group."""
    return f"{wal_dir}/{key}" if key else wal_dir


class Recovered(NamedTuple):
    """A group as recovery found it."""

    group: Group
    first_file: int
    """Number of the file that this run would begin with [S-21]."""


class Shards:
    """All groups of one data directory."""

    def __init__(
        self,
        fs: Fs,
        wal_dir: str,
        shards: int,
        recovered: Mapping[str, Recovered],
        files: WalFiles,
        *,
        owner: Owner,
        clock: Clock,
        run: int,
        boot: str,
        file_bytes: int,
        init_zero: bool,
        min_free_bytes: int,
        max_fds: int,
        max_submissions: int,
        max_pending_bytes: int,
        retired: Iterable[WalRow] = (),
        meter: Meter | None = None,
    ) -> None:
        self._fs = fs
        self._wal_dir = wal_dir
        self.files = files
        keys = group_keys(shards)
        self.shards: list[Shard] = []
        for number, key in enumerate(keys):
            found = recovered[key]
            shard = Shard(
                fs, found.group, owner=owner, clock=clock, run=run, boot=boot, shard=number, shards=shards,
                file_bytes=file_bytes, init_zero=init_zero, first_file=found.first_file,
                min_free_bytes=min_free_bytes, max_submissions=max_submissions, max_pending_bytes=max_pending_bytes,
                meter=meter,
            )  # fmt: skip
            self.shards.append(shard)
        self._by_key = {shard.key: shard for shard in self.shards}
        self._starts: dict[str, dict[int, array[int]]] = {key: {} for key in recovered}
        self._below = {key: list(found.group.below) for key, found in recovered.items()}
        """Files of earlier runs that the newest snapshot does not need."""
        self.orphans = {key: found for key, found in recovered.items() if key not in self._by_key}
        self._retired = {row.group: row for row in retired if row.group not in recovered}
        """Rows of groups that are gone: their numbers are not used again [S-211]."""
        dirs = {key: group_dir(wal_dir, key) for key in recovered}
        self.reader = WalReader(fs, dirs, files, max_fds)

    def of(self, topic_id: int) -> Shard:
        """The shard of a topic."""
        return self.shards[shard_of(topic_id, len(self.shards))]

    def note_starts(self, group: str, file_no: int, starts: array[int]) -> None:
        """Where the submissions of a recovered file begin."""
        self._starts[group][file_no] = starts

    def location(self, group: str, file_no: int, offset: int) -> int:
        """The location of a place in the WAL, for tails."""
        return self.files.reference(group, file_no) << 40 | offset

    def place(self, location: int) -> tuple[str, int, int]:
        """Group, file and offset of a location."""
        reference, offset = unpack(location)
        file = self.files.file(reference)
        return file.group, file.file_no, offset

    def is_synced(self, location: int) -> bool:
        """Whether the frame at a location is durable; groups that are no longer written are."""
        group, file_no, offset = self.place(location)
        shard = self._by_key.get(group)
        return shard is None or shard.is_synced(file_no, offset)

    def start_before(self, group: str, file_no: int, offset: int) -> int:
        """The start of a submission at or below an offset: positions are never inside one [S-192]."""
        starts = self._starts.get(group, {}).get(file_no)
        if starts is not None:
            at = bisect_right(starts, offset) - 1
            return starts[at] if at >= 0 else 0
        shard = self._by_key.get(group)
        return shard.start_before(file_no, offset) if shard is not None else 0

    def rows(self, needed: Iterable[tuple[str, int, int]]) -> list[WalRow]:
        """A row for every group: where replay would have to begin now, given what is needed (group, file, offset)."""
        lowest: dict[str, tuple[int, int]] = {}
        for group, file_no, offset in needed:
            at = (file_no, self.start_before(group, file_no, offset))
            if group not in lowest or at < lowest[group]:
                lowest[group] = at
        rows = []
        for shard in self.shards:
            # What is not synced may not be there after a crash: no position lies in it.
            at = min(shard.done_pos(), shard.synced_pos())
            rows.append(WalRow(shard.key, *min((*at,), lowest.get(shard.key, (*at,)))))
        for key, found in self.orphans.items():
            if key in lowest:
                rows.append(WalRow(key, *lowest[key]))
            else:
                rows.append(WalRow(key, found.first_file - 1, 0, 1))
        return [*rows, *self._retired.values()]

    def active_file(self, key: str) -> int:
        """The number of the file that a group writes, or would; of one that it no longer uses, a very high one."""
        shard = self._by_key.get(key)
        return paths.U64_MAX if shard is None else shard.done_pos().file_no

    def trim(self, retained: list[Mapping[str, WalRow]], gone: list[tuple[str, int]]) -> None:
        """Unlink files below the positions of every retained snapshot; `gone` gets group and number of each."""
        for shard in self.shards:
            rows = [rows.get(shard.key) for rows in retained]
            if rows and all(row is not None for row in rows):
                below = min(row.file_no + row.retired for row in rows if row is not None)
                self._trim_earlier(shard.key, below, gone)
                gone += [(shard.key, number) for number in shard.log.delete_before(below)]
        for key in list(self.orphans):
            rows = [rows.get(key) for rows in retained]
            if rows and all(row is not None and row.retired for row in rows) and self._remove(key):
                gone += [(key, number) for number in (*self._starts[key], 0)]

    def _trim_earlier(self, key: str, below: int, gone: list[tuple[str, int]]) -> None:
        """Unlink files that lay below the replay position when the engine was opened, oldest first."""
        dir = group_dir(self._wal_dir, key)
        for number in sorted(self._below[key]):
            if number >= below:
                break
            path = f"{dir}/{paths.wal_file(number)}"
            if self._fs.exists(path):
                self._fs.remove(path)
            self._fs.sync_dir(dir)
            gone.append((key, number))

    def forget(self, gone: Iterable[tuple[str, int]]) -> list[int]:
        """On the owner: files that `trim` unlinked; their references, for `reader.forget` on a helper."""
        references: list[int] = []
        for key, number in gone:
            self._starts[key].pop(number, None)
            if number in self._below[key]:
                self._below[key].remove(number)
            shard = self._by_key.get(key)
            if shard is not None:
                shard.forget_starts(number + 1)
            elif key in self.orphans:
                self._retired[key] = WalRow(key, self.orphans.pop(key).first_file - 1, 0, 1)
            reference = self.files.find(key, number)
            if reference is not None:
                references.append(reference)
                self.files.release(reference)
        return references

    def _remove(self, key: str) -> bool:
        """A group that nothing needs: CURRENT first, then its files ascending, then the directory [S-89]."""
        dir = group_dir(self._wal_dir, key)
        try:
            remove_group(self._fs, dir, keep_dir=not key)
        except OSError as error:
            log.warning("the WAL group %r stays for now: %s", key, error)
            return False
        return True


def remove_group(fs: Fs, dir: str, *, keep_dir: bool) -> None:
    """Unlink a whole group, in an order that leaves no state which looks like damage."""
    current = f"{dir}/{paths.CURRENT_FILE}"
    if fs.exists(current):
        fs.remove(current)
    fs.sync_dir(dir)
    numbers = sorted(n for name in fs.listdir(dir) if (n := paths.parse_wal_file(name)) is not None)
    for number in numbers:
        fs.remove(f"{dir}/{paths.wal_file(number)}")
        fs.sync_dir(dir)
    if not keep_dir and not fs.listdir(dir):
        fs.rmdir(dir)
        fs.sync_dir(dir.rpartition("/")[0])
