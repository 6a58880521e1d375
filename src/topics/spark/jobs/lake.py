"""What all lake tables share: whose table it is, files in the making, and how a table is reached.

    <out>/_topics/lake.json      {"v":1,"format","store","columns","variant"}: made with the table, never changed
    <out>/_topics/staging/RUN/   files of a run that are not committed; `.lock` is held while the run lives
    <out>/_topics/runs/          run records

A folder that holds something else is refused: it may be somebody's. What a run that was killed left in its staging
folder is removed by the next one, which can tell by the lock. A Parquet table may also lie in a bucket, where there are
no locks (`objects`). Driver only.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from topics.errors import TimingError, TopicsError
from topics.fs import File, Fs, close_quietly, ensure_dir, replace_file
from topics.spark.failure import SourceError
from topics.spark.jobs import files
from topics.spark.jobs.erase import Erasures
from topics.spark.jobs.place import as_json
from topics.spark.jobs.rows import Proof, Typed

if TYPE_CHECKING:
    from topics.spark.jobs.work import Work

log = logging.getLogger("topics.spark")

OWN_DIR: Final = "_topics"
LAKE_FILE: Final = f"{OWN_DIR}/lake.json"
STAGING_DIR: Final = f"{OWN_DIR}/staging"
FORMATS: Final = ("parquet", "delta", "iceberg")


class LostRace(TopicsError):
    """Another run committed first: read again and start over."""

    code = "lost_race"

    def __init__(self, message: str, committed: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.committed = frozenset(committed)
        """Instances that were committed before the race was lost, where each is a commit."""


class LakeBusy(TimingError):
    """Other runs committed first, again and again."""

    code = "lake_busy"


class Shape(NamedTuple):
    """What `lake.json` says."""

    format: str
    store: str | None
    typed: Typed = Typed()
    variant: bool = False

    def as_dict(self) -> dict[str, Any]:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.typed.columns)
        return {"v": 1, "format": self.format, "store": self.store, "columns": columns, "variant": self.variant}


class Staged(NamedTuple):
    """A file that was written and is not committed."""

    name: str
    """In the staging folder of its run."""
    topic: str
    topic_id: int
    epoch: int
    date: str
    first: int
    last: int
    """The seqs it stands for; not all of them need to have a row."""
    rows: int
    bytes: int
    hash: str
    min_seq: int
    max_seq: int

    @property
    def key(self) -> str:
        return f"{self.topic_id}-{self.epoch}"


class Held(NamedTuple):
    """A file of the table, and what is promised of it; `proof` None where the table keeps no promises."""

    path: str
    key: str
    first: int
    last: int
    proof: Proof | None


class Lake(Protocol):
    """A table that topics are archived to. Every read is of the table's state at the last `refresh`."""

    shape: Shape
    root: str
    """What paths are relative to; empty: they are those of this machine."""

    def staging(self, run: str) -> AbstractContextManager[str]:
        """The staging folder of a run, as tasks know it; its rest goes at the end."""
        ...

    def sweep(self) -> None:
        """Remove the staging folders of runs that are no more."""
        ...

    def refresh(self) -> None:
        """Take the newest state; finish what a run that was killed had committed."""
        ...

    def done(self, keys: Iterable[str] = ()) -> dict[str, int]:
        """How far each instance is archived; a table that cannot list them tells of these, and of those it has."""
        ...

    def deletes(self) -> int:
        """The last record of `$deletes` that was applied."""
        ...

    def files(self) -> list[Held]:
        """What a reader of the table reads."""
        ...

    def commit(self, work: Work, staged: list[Staged], done: Mapping[str, int]) -> None:
        """Add files, and how far that is, in one step; `LostRace` if somebody else was first."""
        ...

    def erase(self, work: Work, erasures: Erasures, upto: int) -> int:
        """Remove rows, and note how far `$deletes` was applied, in one step; how many rows went."""
        ...


class OnDisk:
    """What tables in a directory have in common."""

    def __init__(self, fs: Fs, out: str, shape: Shape) -> None:
        self.shape = shape
        self.root = ""
        self._fs = fs
        self._out = out

    def staging(self, run: str) -> AbstractContextManager[str]:
        return staging(self, self._fs, self._out, run)  # type: ignore[arg-type]  # the rest is its subclasses'

    def sweep(self) -> None:
        sweep(self, self._fs, self._out)  # type: ignore[arg-type]


def wanted_shape(work: Work, store: str | None) -> Shape:
    """What this run would make of an empty folder."""
    columns = work.options.get("columns")
    variant = bool(work.options.get("variant"))
    format = str(work.options.get("format") or "parquet")
    if variant and format != "parquet":
        what = "--variant: delta-rs and pyiceberg cannot handle files of Spark with it"
        raise SourceError("invalid_option", what, "use --format parquet, or --columns")
    if files.is_objects(work.out) and (variant or format != "parquet"):
        what = f"--out: a bucket holds tables of Parquet, not {'--variant' if variant else format}"
        raise SourceError("unsupported", what, "use --format parquet, or a directory")
    return Shape(format, store, Typed.parse(str(columns)) if columns else Typed(), variant)


def read_shape(fs: Fs, out: str) -> Shape | None:
    """Of the table at `out`; None if there is no table yet and the folder may be used."""
    path = f"{out}/{LAKE_FILE}"
    raw, others = _objects_in(out) if files.is_objects(out) else _files_in(fs, out)
    if raw is None:
        if others:
            what = f"{out} holds `{sorted(others)[0]}` and no table of ours"
            raise SourceError("target_not_empty", what, "name a directory that is empty or does not exist")
        return None
    try:
        told = json.loads(raw)
        typed = Typed.parse(told["columns"]) if told["columns"] else Typed()
        return Shape(told["format"], told["store"], typed, told["variant"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError("lake_damaged", f"{path} cannot be understood: {error}", "use another --out") from error


def _files_in(fs: Fs, out: str) -> tuple[bytes | None, list[str]]:
    """What describes the table, and what else lies there."""
    if os.path.exists(out) and not os.path.isdir(out):
        raise SourceError("not_a_directory", f"{out} is a file", "name a directory with --out")
    others = [name for name in (os.listdir(out) if os.path.isdir(out) else []) if name != OWN_DIR]
    if not fs.exists(f"{out}/{LAKE_FILE}"):
        return None, others
    with open(f"{out}/{LAKE_FILE}", "rb") as file:
        return file.read(), others


def _objects_in(out: str) -> tuple[bytes | None, list[str]]:
    others = [*files.bucket(out).folders(""), *files.bucket(out).keys("")]
    return files.read(out, LAKE_FILE), [name for name in others if name != OWN_DIR]


def agree(out: str, there: Shape, wanted: Shape, work: Work) -> Shape:
    """The shape of the table that is there, unless it is not the one that is asked for."""
    if there.store != wanted.store:
        what = f"{out} archives store {there.store}, not {wanted.store}"
        raise SourceError("other_store", what, "each store needs a table of its own")
    asked = {"format": "format", "columns": "typed", "variant": "variant"}
    for option, field in asked.items():
        if work.options.get(option) and getattr(there, field) != getattr(wanted, field):
            shown = there.as_dict()[option]
            what = f"{out} was made with --{option} {shown or 'off'}"
            raise SourceError("lake_differs", what, "leave the option out, or use another --out")
    return there


def make_shape(fs: Fs, out: str, shape: Shape) -> None:
    """Note what the table is, once."""
    if files.is_objects(out):
        files.bucket(out).put(LAKE_FILE, as_json(shape.as_dict()) + b"\n", {}, create=True)
        return
    ensure_dir(fs, f"{out}/{OWN_DIR}")
    if not fs.exists(f"{out}/{LAKE_FILE}"):
        replace_file(fs, f"{out}/{LAKE_FILE}", as_json(shape.as_dict()) + b"\n")


def open_lake(fs: Fs, out: str, shape: Shape) -> Lake:
    """The table in `out`, whose shape is known."""
    if files.is_objects(out):
        from topics.spark.jobs.objects import ObjectLake

        return ObjectLake(out, shape)
    if shape.format == "parquet":
        from topics.spark.jobs.parquet import ParquetLake

        return ParquetLake(fs, out, shape)
    if shape.format == "delta":
        from topics.spark.jobs.delta import DeltaLake

        return DeltaLake(fs, out, shape)
    if shape.format == "iceberg":
        from topics.spark.jobs.iceberg import IcebergLake

        return IcebergLake(fs, out, shape)
    raise SourceError("lake_damaged", f"{out} is a table of format {shape.format!r}", "use the version that made it")


@contextmanager
def staging(lake: Lake, fs: Fs, out: str, run: str) -> Iterator[str]:
    """The staging folder of a run, locked while it lives; its rest goes at the end, and that of runs long dead."""
    folder = f"{out}/{STAGING_DIR}/{run}"
    ensure_dir(fs, folder)
    lock = fs.lock(f"{folder}/.lock")
    try:
        sweep(lake, fs, out, run)
        try:
            yield folder
        except BaseException:
            _settle(lake, folder)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        close_quietly(lock)


def _settle(lake: Lake, folder: str) -> None:
    """Remove what a failed run has left. It may have failed behind its commit, so that is finished first."""
    try:
        lake.refresh()
    except (OSError, TopicsError) as error:
        log.warning("left for the next run: %s: %s", folder, error)
        return
    shutil.rmtree(folder, ignore_errors=True)


def sweep(lake: Lake, fs: Fs, out: str, run: str = "") -> None:
    """Remove the folders of runs that are no more, once what they had committed is in its place."""
    folder = f"{out}/{STAGING_DIR}"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = f"{folder}/{name}"
        if name == run or not os.path.exists(f"{path}/.lock"):
            continue
        lock = _locked(fs, f"{path}/.lock")
        if lock is None:
            continue  # it lives
        lake.refresh()  # whoever is dead commits nothing any more, so this sees all it did
        shutil.rmtree(path, ignore_errors=True)
        close_quietly(lock)


def _locked(fs: Fs, path: str) -> File | None:
    """The lock, None if somebody holds it."""
    try:
        return fs.lock(path)
    except BlockingIOError:
        return None


def missing_extra(error: ModuleNotFoundError) -> SourceError:
    """A format whose library is not installed."""
    return SourceError("missing_extra", f"{error.name} is not installed", "pip install 'topics[lake]'")


def folder_of(staged: Staged) -> str:
    """Where a file belongs in a table by folders; only `:` needs to be written differently there [NAME-1]."""
    return f"topic={staged.topic.replace(':', '%3A').replace('$', '%24')}/date={staged.date}"


def place_files(fs: Fs, root: str, staged_in: str, staged: list[Staged]) -> None:
    """Move files to their folders, durably."""
    folders = set()
    for one in staged:
        folder = f"{root}/{folder_of(one)}"
        ensure_dir(fs, folder)
        fs.rename(f"{staged_in}/{one.name}", f"{folder}/{one.name}")
        folders.add(folder)
    sync_folders(fs, folders)


def sync_folders(fs: Fs, folders: Iterable[str]) -> None:
    for folder in sorted(set(folders)):
        fs.sync_dir(folder)
