"""A lake table in Delta's format, through delta-rs [K-45].

    adding    one commit per topic with `Transaction("topics:<store>:<id>:<epoch>", upto)`
    erasing   `delete` with `Transaction("topics:<store>:deletes", n)`

delta-rs keeps those numbers and does not look at them: the same or a lower one is accepted. So a commit is never tried
again by the library; whoever loses a race looks at the number again, and leaves out what it covers. Nor are rows added
once deletes were applied that their plan did not know: nobody would apply them again. Files move to their folders
before the commit, and are nobody's until then. Driver only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from topics.fs import Fs
from topics.spark.jobs.erase import ALL, Erased, Erasures
from topics.spark.jobs.lake import (
    STAGING_DIR,
    Held,
    LostRace,
    OnDisk,
    Shape,
    Staged,
    folder_of,
    missing_extra,
    place_files,
)
from topics.spark.jobs.rows import schema_of

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction
except ModuleNotFoundError as error:
    raise missing_extra(error) from error

if TYPE_CHECKING:
    from topics.spark.jobs.work import Work

ATTEMPTS: Final = 10
FOLDERS: Final = ["topic", "date"]


class DeltaLake(OnDisk):
    """The table at `out`."""

    def __init__(self, fs: Fs, out: str, shape: Shape) -> None:
        super().__init__(fs, out, shape)
        self._table: DeltaTable | None = None
        self._before: dict[str, int] = {}
        """What a run plans by, as `done` last found it."""
        self._deletes_before = 0

    def refresh(self) -> None:
        if self._table is None and DeltaTable.is_deltatable(self._out):
            self._table = DeltaTable(self._out)
        elif self._table is not None:
            self._table.update_incremental()

    def done(self, keys: Iterable[str] = ()) -> dict[str, int]:
        known = {key: self._version(key) for key in {*keys, *self._keys()}}
        self._before = {key: upto for key, upto in known.items() if upto is not None}
        self._deletes_before = self.deletes()
        return dict(self._before)

    def deletes(self) -> int:
        table = self._table
        return 0 if table is None else table.transaction_version(f"topics:{self.shape.store}:deletes") or 0

    def files(self) -> list[Held]:
        uris = [] if self._table is None else self._table.file_uris()
        return [Held(_path(uri), "", 0, 0, None) for uri in uris]

    def commit(self, work: Work, staged: list[Staged], done: Mapping[str, int]) -> None:
        self._make()
        place_files(self._fs, self._out, f"{self._out}/{STAGING_DIR}/{work.run}", staged)
        waiting = dict(done)
        try:
            for key, upto in done.items():
                self._commit(key, upto, [one for one in staged if one.key == key], work.clock.now_ms())
                del waiting[key]
        except LostRace as lost:
            for one in staged:
                if one.key in waiting:
                    os.unlink(f"{self._out}/{folder_of(one)}/{one.name}")
            raise LostRace(str(lost), done.keys() - waiting.keys()) from lost

    def erase(self, work: Work, erasures: Erasures, upto: int) -> int:
        """Of the table as it was at the last `refresh`: rows that came since have not been looked through."""
        before = self.deletes()
        table = self._make()
        if self.deletes() != before:
            raise LostRace("another run has made the table")
        properties = self._properties("deletes", upto)
        rows = 0
        try:
            if erasures:
                predicate = " OR ".join(_predicate(key, one) for key, one in sorted(erasures.of.items()))
                rows = table.delete(predicate, commit_properties=properties)["num_deleted_rows"] or 0
            if self.deletes() < upto:  # no row matched, so nothing was committed
                self._add([], properties)
        except CommitFailedError as error:
            raise LostRace(str(error)) from error
        self.refresh()
        return rows

    def _make(self) -> DeltaTable:
        if self._table is None:
            schema = schema_of(self.shape.typed, whole=True)
            self._table = DeltaTable.create(self._out, schema, mode="ignore", partition_by=FOLDERS)
        return self._table

    def _version(self, key: str) -> int | None:
        return None if self._table is None else self._table.transaction_version(self._app(key.replace("-", ":")))

    def _app(self, name: str) -> str:
        return f"topics:{self.shape.store}:{name}"

    def _properties(self, name: str, number: int) -> CommitProperties:
        return CommitProperties(max_commit_retries=0, app_transactions=[Transaction(self._app(name), number)])

    def _keys(self) -> set[str]:
        """The instances that the files of the table are of, by their statistics."""
        if self._table is None:
            return set()
        found = pa.table(self._table.get_add_actions(flatten=True))
        keys = set()
        for edge in ("min", "max"):
            if f"{edge}.topic_id" in found.column_names:
                ids = zip(*(found.column(f"{edge}.{name}").to_pylist() for name in ("topic_id", "epoch")), strict=True)
                keys |= {f"{id}-{epoch}" for id, epoch in ids if id is not None}
        return keys

    def _commit(self, key: str, upto: int, staged: list[Staged], now_ms: int) -> None:
        """The files of one topic, unless somebody else has archived the range, or applied deletes, meanwhile."""
        for _ in range(ATTEMPTS):
            self.refresh()
            there = self._version(key)
            if (there, self.deletes()) != (self._before.get(key), self._deletes_before):
                raise LostRace(f"{key} is at {there}, deletes at {self.deletes()}")
            try:
                self._add([_action(one, now_ms) for one in staged], self._properties(key.replace("-", ":"), upto))
                self.refresh()
                return
            except CommitFailedError:
                continue
        raise LostRace(f"{key}: others committed first")

    def _add(self, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        assert self._table is not None
        schema = self._table.schema()
        self._table.create_write_transaction(actions, "append", schema, FOLDERS, commit_properties=properties)


def _action(one: Staged, now_ms: int) -> AddAction:
    ids = {"topic_id": one.topic_id, "epoch": one.epoch}
    stats = {
        "numRecords": one.rows, "minValues": {**ids, "seq": one.min_seq}, "maxValues": {**ids, "seq": one.max_seq},
        "nullCount": {"topic_id": 0, "epoch": 0, "seq": 0},
    }  # fmt: skip
    values = {"topic": one.topic, "date": one.date}
    return AddAction(f"{folder_of(one)}/{one.name}", one.bytes, values, now_ms, True, json.dumps(stats))


def _path(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def _predicate(key: str, erased: Erased) -> str:
    """What was deleted of an instance, in SQL."""
    id, _, epoch = key.partition("-")
    return f"(topic_id = {id} AND epoch = {epoch} AND ({' OR '.join(_conditions(erased))}))"


def _conditions(erased: Erased) -> Iterator[str]:
    if erased.below:
        yield _before(erased.below) or "true"
    if erased.seqs:
        yield f"seq IN ({', '.join(map(str, sorted(erased.seqs)))})"
    for value, end in erased.tags.items():
        yield _and(f"tag = {_quoted(value)}", _before(end))
    for value, end in erased.prefixes.items():
        yield _and(f"starts_with(tag, {_quoted(value)})", _before(end))


def _before(end: int) -> str:
    return f"seq < {end}" if end < ALL else ""


def _and(one: str, other: str) -> str:
    return f"({one} AND {other})" if other else one


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
