"""A lake table in Iceberg's format, through pyiceberg [K-46].

    <out>/_topics/catalog.db    the catalog, in SQLite; the table is `lake.topics`
    <out>/data, metadata        its files

One transaction adds files, or deletes rows, and sets the properties `topics.done.<id>-<epoch>` and `topics.deletes`.
Tables are made with `commit.retry.num-retries=0`: otherwise pyiceberg bases a transaction that lost a race on the new
state and commits it as well. It also does so where only properties have changed meanwhile, the cursor of deletes for
one, so every transaction requires the very state that it was planned by. Driver only.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from topics.fs import Fs
from topics.spark.jobs.erase import ALL, Erased, Erasures
from topics.spark.jobs.lake import (
    OWN_DIR,
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
    from pyiceberg import expressions
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
    from pyiceberg.table import CommitTableResponse, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
except ModuleNotFoundError as error:
    raise missing_extra(error) from error

if TYPE_CHECKING:
    from topics.spark.jobs.work import Work

_MODELS: Any = expressions
"""Their types are those of a plugin of pydantic's."""
EqualTo, In, LessThan, StartsWith = _MODELS.EqualTo, _MODELS.In, _MODELS.LessThan, _MODELS.StartsWith

TABLE: Final = "lake.topics"
DONE: Final = "topics.done."
DELETES: Final = "topics.deletes"
DATA_DIR: Final = "data"


class AsLoaded:
    """A requirement of a commit: nobody has committed anything since the table was loaded."""

    def __init__(self, table: Table) -> None:
        self._metadata = table.metadata

    def validate(self, base_metadata: TableMetadata | None) -> None:
        if base_metadata != self._metadata:
            raise CommitFailedException("the table went on")


class Catalog(SqlCatalog):
    """The catalog, which bases no change on a state that its author has not seen."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        as_loaded: Any = AsLoaded(table)  # theirs is a closed list of types
        return super().commit_table(table, (*requirements, as_loaded), updates)


class IcebergLake(OnDisk):
    """The table at `out`."""

    def __init__(self, fs: Fs, out: str, shape: Shape) -> None:
        super().__init__(fs, out, shape)
        self._catalog = Catalog("topics", uri=f"sqlite:///{out}/{OWN_DIR}/catalog.db", warehouse=f"file://{out}")
        self._table: Table | None = None

    def refresh(self) -> None:
        try:
            self._table = self._catalog.load_table(TABLE)
        except NoSuchTableError:
            self._table = None

    def done(self, keys: Iterable[str] = ()) -> dict[str, int]:
        found = {} if self._table is None else self._table.properties
        return {name.removeprefix(DONE): int(value) for name, value in found.items() if name.startswith(DONE)}

    def deletes(self) -> int:
        return 0 if self._table is None else int(self._table.properties.get(DELETES, "0"))

    def files(self) -> list[Held]:
        tasks = [] if self._table is None else list(self._table.scan().plan_files())
        return [Held(_path(task.file.file_path), "", 0, 0, None) for task in tasks]

    def commit(self, work: Work, staged: list[Staged], done: Mapping[str, int]) -> None:
        table = self._make()
        place_files(self._fs, f"{self._out}/{DATA_DIR}", f"{self._out}/{STAGING_DIR}/{work.run}", staged)
        placed = [f"{self._out}/{DATA_DIR}/{folder_of(one)}/{one.name}" for one in staged]
        try:
            with table.transaction() as change:
                change.set_properties({f"{DONE}{key}": str(upto) for key, upto in done.items()})
                if placed:
                    change.add_files([f"file://{path}" for path in placed])
        except CommitFailedException as error:
            for path in placed:
                os.unlink(path)
            raise LostRace(str(error)) from error
        self.refresh()

    def erase(self, work: Work, erasures: Erasures, upto: int) -> int:
        table = self._make()
        before = self._rows()
        try:
            with table.transaction() as change:
                for key, one in sorted(erasures.of.items()) if before else ():
                    for expression in _expressions(key, one):
                        _delete(change, expression)
                change.set_properties({DELETES: str(upto)})
        except CommitFailedException as error:
            raise LostRace(str(error)) from error
        self.refresh()
        return before - self._rows()

    def _make(self) -> Table:
        """The table as it was planned by, and made if there was none; `LostRace` if somebody else has filled it."""
        if self._table is None:
            self._catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
            self._table = self._catalog.create_table_if_not_exists(
                TABLE, schema_of(self.shape.typed, whole=True), location=f"file://{self._out}",
                properties={"commit.retry.num-retries": "0"},
            )  # fmt: skip
            if self.done() or self.deletes():
                raise LostRace("another run has made the table")
        try:
            if not self._table.spec().fields:
                with self._table.update_spec() as spec:
                    spec.add_identity("topic")
                    spec.add_identity("date")
        except CommitFailedException as error:
            raise LostRace(str(error)) from error
        return self._table

    def _rows(self) -> int:
        snapshot = None if self._table is None else self._table.current_snapshot()
        summary = None if snapshot is None else snapshot.summary
        return int(summary["total-records"] or 0) if summary is not None else 0


def _delete(change: Transaction, expression: BooleanExpression) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")  # as most do: no news
        change.delete(expression)


def _path(uri: str) -> str:
    return urlsplit(uri).path if uri.startswith("file:") else uri


def _expressions(key: str, erased: Erased) -> Iterator[BooleanExpression]:
    """What was deleted of an instance, one after the other.

    Not all at once: for pyiceberg 0.12 a row without a tag matches no `Or` in which tags occur.
    """
    id, _, epoch = key.partition("-")
    own = And(EqualTo("topic_id", int(id)), EqualTo("epoch", int(epoch)))
    if erased.below:
        yield And(own, _before(erased.below))
    if erased.seqs:
        yield And(own, In("seq", erased.seqs))
    for end in sorted(set(erased.tags.values())):
        tags = {tag for tag, upto in erased.tags.items() if upto == end}
        yield And(And(own, _before(end)), In("tag", tags))
    for prefix, end in erased.prefixes.items():
        yield And(And(own, _before(end)), StartsWith("tag", prefix))


def _before(end: int) -> BooleanExpression:
    found: BooleanExpression = LessThan("seq", end) if end < ALL else AlwaysTrue()
    return found
