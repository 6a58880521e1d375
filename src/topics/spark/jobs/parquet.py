"""A lake table of Parquet files in folders, with manifests [K-44].

    <out>/_topics/manifest-%016d.json
        {"v":1,"n","run","add":[{"path","topic_id","epoch","first","last","rows","bytes","hash"}],"remove":[path…],
         "done":{"<id>-<epoch>":seq},"deletes":n}

A manifest is the commit point: a complete file is linked under its name, which fails if the name is taken, so of two
runs one wins and a manifest is never half there. Then removed files go and added ones move from staging to
`topic=<name>/date=<d>/`. Whoever opens the table first finishes the moves of the newest manifest. A reader of the
folder never sees rows that are not committed, or doubled; at worst a committed file a moment late. The same
table in a bucket is in `objects`. Driver only, but for the task that erases.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from topics.fs import Fs, ensure_dir, replace_file
from topics.spark.failure import SourceError
from topics.spark.jobs import files
from topics.spark.jobs.erase import Erased, Erasures
from topics.spark.jobs.lake import OWN_DIR, STAGING_DIR, Held, LostRace, OnDisk, Shape, Staged, folder_of, sync_folders
from topics.spark.jobs.place import as_json
from topics.spark.jobs.rows import Proof, prove
from topics.spark.jobs.spread import spread
from topics.spark.jobs.write import new_file

if TYPE_CHECKING:
    from topics.spark.jobs.work import Work

NAME: Final = re.compile(r"manifest-(\d{16})\.json")


class Added(NamedTuple):
    """A file that a manifest adds."""

    path: str
    topic_id: int
    epoch: int
    first: int
    last: int
    rows: int
    bytes: int
    hash: str

    @property
    def key(self) -> str:
        return f"{self.topic_id}-{self.epoch}"


class ParquetLake(OnDisk):
    """The table at `out`."""

    def __init__(self, fs: Fs, out: str, shape: Shape) -> None:
        super().__init__(fs, out, shape)
        self._last = 0
        self._files: dict[str, Added] = {}
        self._done: dict[str, int] = {}
        self._deletes = 0

    def refresh(self) -> None:
        numbers = self._numbers()
        if numbers != list(range(1, len(numbers) + 1)):
            raise SourceError("lake_damaged", f"{self._out}: a manifest is missing", "restore it, or use another --out")
        for number in numbers[self._last :]:
            told = self._read(number)
            for path in told["remove"]:
                self._files.pop(path, None)
            self._files |= {one["path"]: Added(**one) for one in told["add"]}
            self._done |= told["done"]
            self._deletes = max(self._deletes, told["deletes"])
            self._last = number
        if numbers:
            self._settle(self._read(self._last))

    def done(self, keys: Iterable[str] = ()) -> dict[str, int]:
        return dict(self._done)

    def deletes(self) -> int:
        return self._deletes

    def files(self) -> list[Held]:
        return [
            Held(self._reached(one.path), one.key, one.first, one.last, Proof(one.rows, int(one.hash, 16)))
            for one in self._files.values()
        ]

    def commit(self, work: Work, staged: list[Staged], done: Mapping[str, int]) -> None:
        self._write(work.run, [_added(one) for one in staged], [], done, self._deletes)

    def erase(self, work: Work, erasures: Erasures, upto: int) -> int:
        with self.staging(f"{work.run}-erase") as folder:
            touched = [one for one in self._files.values() if one.key in erasures.of]
            items = [
                Rewrite(self.root, self._reached(one.path), folder, at, one, erasures.of[one.key])
                for at, one in enumerate(touched)
            ]
            told = spread(work.spark(), items, rewritten, work.tell, "files looked through") if items else []
            made = [Added(**one["add"]) for one in told if one["add"] is not None]
            self._write(f"{work.run}-erase", made, [one["remove"] for one in told], {}, upto)
        return sum(one["rows"] for one in told)

    def strays(self) -> list[str]:
        """Files in the table's folders that no manifest names: a reader of the folders sees them."""
        found = glob.glob(f"{glob.escape(self._out)}/topic=*/**/*.parquet", recursive=True)
        return sorted(set(found) - {self._reached(path) for path in self._files})

    def _reached(self, path: str) -> str:
        """A path of the table as tasks open it: below the root, or of this machine."""
        return path if self.root else f"{self._out}/{path}"

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for name in self._names() if (match := NAME.fullmatch(name)))

    def _read(self, number: int) -> dict[str, Any]:
        path = f"{OWN_DIR}/manifest-{number:016d}.json"
        try:
            told: dict[str, Any] = json.loads(self._load(path))
            if (told["v"], told["n"]) != (1, number):
                raise ValueError(f"it says it is manifest {told['n']} of version {told['v']}")
            return told
        except (ValueError, KeyError, TypeError) as error:
            what = f"{self._out}/{path} cannot be understood: {error}"
            raise SourceError("lake_damaged", what, "restore it, or use another --out") from error

    def _write(self, run: str, add: list[Added], remove: list[str], done: Mapping[str, int], deletes: int) -> None:
        """The commit point: a new name for a complete file, or `LostRace`."""
        number = self._last + 1
        body = {
            "v": 1, "n": number, "run": run, "add": [one._asdict() for one in add], "remove": remove,
            "done": dict(done), "deletes": deletes,
        }  # fmt: skip
        if not self._create(f"{OWN_DIR}/manifest-{number:016d}.json", run, as_json(body) + b"\n"):
            raise LostRace(f"manifest {number} is there already")
        self.refresh()

    def _names(self) -> list[str]:
        """What lies beside the manifests."""
        folder = f"{self._out}/{OWN_DIR}"
        return os.listdir(folder) if os.path.isdir(folder) else []

    def _load(self, path: str) -> bytes:
        with open(f"{self._out}/{path}", "rb") as file:
            return file.read()

    def _create(self, path: str, run: str, data: bytes) -> bool:
        """A complete file under a new name, for good; False if the name is taken."""
        temporary = f"{self._out}/{STAGING_DIR}/{run}/manifest"
        replace_file(self._fs, temporary, data)
        try:
            os.link(temporary, f"{self._out}/{path}")
        except FileExistsError:
            return False
        self._fs.sync_dir(f"{self._out}/{OWN_DIR}")
        return True

    def _settle(self, told: Mapping[str, Any]) -> None:
        """Bring the files of a manifest to where it says they are."""
        folders = set()
        for path in told["remove"]:
            if os.path.exists(f"{self._out}/{path}"):
                os.unlink(f"{self._out}/{path}")
                folders.add(os.path.dirname(f"{self._out}/{path}"))
        for one in told["add"]:
            source = f"{self._out}/{STAGING_DIR}/{told['run']}/{os.path.basename(one['path'])}"
            target = f"{self._out}/{one['path']}"
            if not os.path.exists(target) and os.path.exists(source):
                ensure_dir(self._fs, os.path.dirname(target))
                os.rename(source, target)
                folders.add(os.path.dirname(target))
        sync_folders(self._fs, folders)


def _added(one: Staged) -> Added:
    path = f"{folder_of(one)}/{one.name}"
    return Added(path, one.topic_id, one.epoch, one.first, one.last, one.rows, one.bytes, one.hash)


class Rewrite(NamedTuple):
    """A file to look through for rows that were deleted."""

    root: str
    path: str
    """As it is opened."""
    folder: str
    number: int
    one: Added
    erased: Erased


def rewritten(item: Rewrite) -> Iterator[dict[str, Any]]:
    """A file without the rows that were deleted; nothing if there are none in it. A task."""
    one, folder = item.one, item.folder
    file = pq.ParquetFile(files.readable(item.root, item.path))
    found = file.read(columns=["seq", "tag"])
    gone = item.erased.mask(found.column("seq").to_numpy(), found.column("tag"))
    if not gone.any():
        return
    rows = int(gone.sum())
    if rows == len(gone):
        yield {"remove": one.path, "add": None, "rows": rows}
        return
    kept = file.read().filter(pa.array(~gone))
    proof = prove(kept)
    name = f"{os.path.basename(one.path).split('.')[0]}-e{os.path.basename(folder)[:13]}-{item.number}.parquet"
    size = new_file(item.root, f"{folder}/{name}", kept)
    added = one._replace(
        path=f"{os.path.dirname(one.path)}/{name}", rows=proof.rows, bytes=size, hash=f"{proof.hash:016x}"
    )
    yield {"remove": one.path, "add": added._asdict(), "rows": rows}
