"""`archive`: sealed segments into a lake table, incrementally and exactly once [K-42].

    look     how far the table is, by the table itself; how far topics are sealed
    write    tasks write the records between as Parquet files, aside
    commit   one step of the table adds the files and says how far it is now; who loses a race starts over
    erase    deletes that were made since reach the table [K-47]

A run that is killed leaves at most files that nobody counts. The first run of a topic begins at its first record; where
streaming takes over is what the table says is done [X-10]. Records that retention took before they were archived are
told, and the status is 3. Queues are archived as they are met: an ack is no delete there. Driver only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from topics.spark.failure import SourceError
from topics.spark.held import held
from topics.spark.jobs import files
from topics.spark.jobs.erase import Erasures
from topics.spark.jobs.journal import Journal, read_journal
from topics.spark.jobs.lake import (
    Lake,
    LakeBusy,
    LostRace,
    Shape,
    Staged,
    agree,
    make_shape,
    open_lake,
    read_shape,
    wanted_shape,
)
from topics.spark.jobs.place import Instance, Store
from topics.spark.jobs.spread import spoken, spread
from topics.spark.jobs.verify import missing_rows
from topics.spark.jobs.work import GAPS, OK, Outcome, Work
from topics.spark.jobs.write import Item, archived
from topics.spark.options import PARTITION_BYTES, Bound
from topics.spark.plan import Partition

ATTEMPTS: Final = 5
OBJECTS: Final = True
"""It can write to a bucket."""


class Range(NamedTuple):
    """What of an instance is to be archived: `(done, upto]`."""

    instance: Instance
    done: int | None
    """None: nothing yet."""

    @property
    def is_empty(self) -> bool:
        return self.instance.upto <= (self.done or 0)


def check(work: Work, store: Store) -> None:
    """Refuse an output that is not ours before anything is written to it."""
    work.number("partition_bytes", PARTITION_BYTES)
    _shape(work, store)


def _shape(work: Work, store: Store) -> Shape:
    out = work.output()
    wanted = wanted_shape(work, store.id)
    there = read_shape(work.fs, out)
    if there is None and not files.is_objects(out) and not os.access(_nearest(out), os.W_OK):
        raise SourceError("io_error", f"{out} cannot be written", "check the path and its permissions")
    return wanted if there is None else agree(out, there, wanted, work)


def _nearest(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What a run would archive."""
    shape = _shape(work, store)
    there = read_shape(work.fs, work.output())
    done: Mapping[str, int] = {}
    if there is not None:
        lake = open_lake(work.fs, work.output(), shape)
        lake.refresh()
        done = lake.done(store.keys())
    ranges = _ranges(store, done)
    with _partitions(work, ranges) as parts:
        return {
            "format": shape.format, "partitions": len(parts), "bytes": sum(part.bytes for part in parts),
            "topics": [
                {"topic": one.instance.name, "from": (one.done or 0) + 1, "upto": one.instance.upto} for one in ranges
            ],
        }  # fmt: skip


def run(work: Work, store: Store) -> Outcome:
    out = work.output()
    make_shape(work.fs, out, _shape(work, store))
    shape = _shape(work, store)  # another run may have made the table meanwhile, and otherwise
    lake = open_lake(work.fs, out, shape)
    lake.refresh()
    lake.sweep()
    fresh = not lake.done()
    staged, gaps, read = _archive(work, lake)
    erased, unverified = _erase(work, lake, store, fresh=fresh) if work.options.get("deletes", True) else (0, [])
    told = {
        "format": shape.format, "files": len(staged), "read_bytes": read, "gaps": gaps, "erased": erased,
        "unverified": unverified, "done": lake.done(store.keys()), "deletes": lake.deletes(),
    }  # fmt: skip
    rows, size = sum(one.rows for one in staged), sum(one.bytes for one in staged)
    return Outcome(rows, size, told, GAPS if gaps or unverified else OK)


def _archive(work: Work, lake: Lake) -> tuple[list[Staged], list[dict[str, Any]], int]:
    """Files that were added, gaps that were met, and the bytes that were read for it."""
    told, read = list[dict[str, Any]](), 0
    for attempt in range(ATTEMPTS):
        with lake.staging(work.run) as folder:
            lake.refresh()  # only now: staging tidies up behind other runs, and may have had to look for that
            store = work.store()
            ranges = _ranges(store, lake.done(store.keys()))
            if not ranges:
                return *_sorted(told), read
            with _partitions(work, ranges) as parts:
                found, read = _written(work, lake, parts, folder), read + sum(part.bytes for part in parts)
            try:
                lake.commit(work, _sorted(found)[0], {one.instance.key: one.instance.upto for one in ranges})
            except LostRace as lost:
                names = {one.instance.name for one in ranges if one.instance.key in lost.committed}
                told += [one for one in found if one.get("gap", one)["topic"] in names]
                work.tell(attempt, ATTEMPTS, "attempts: another run was faster")
                continue
        return *_sorted(told + found), read
    raise LakeBusy(f"{work.out}: other runs were faster {ATTEMPTS} times")


def _sorted(told: list[dict[str, Any]]) -> tuple[list[Staged], list[dict[str, Any]]]:
    """Files and gaps of what tasks told."""
    return [Staged(**one) for one in told if "gap" not in one], [one["gap"] for one in told if "gap" in one]


def _ranges(store: Store, done: Mapping[str, int]) -> list[Range]:
    found = [Range(one, done.get(one.key)) for one in store.instances]
    return [one for one in found if not one.is_empty]


@contextmanager
def _partitions(work: Work, ranges: list[Range]) -> Iterator[list[Partition]]:
    """What tasks read: exactly these ranges of exactly these instances; held until the block ends."""
    if not ranges:
        yield []
        return
    options = work.place.options(
        topics=tuple(one.instance.name for one in ranges),
        start_seq=Bound(by_topic=tuple((one.instance.name, one.done and one.done + 1) for one in ranges)),
        end_seq=Bound(by_topic=tuple((one.instance.name, one.instance.upto) for one in ranges)),
        meta_json=True,
        on_data_loss="emit",
        partition_bytes=work.number("partition_bytes", PARTITION_BYTES),
    )
    known = {(one.instance.id, one.instance.epoch) for one in ranges}
    with held(work.fs, options, work.clock.now_ms()) as parts:
        for piece in (piece for part in parts for piece in part.pieces):
            if (piece.item.id, piece.item.epoch) not in known:
                what = f"{piece.item.name} was made anew while it was planned"
                raise SourceError("recreated", what, "run it again")
        yield parts


def _written(work: Work, lake: Lake, parts: list[Partition], folder: str) -> list[dict[str, Any]]:
    shape = lake.shape
    whole = shape.format == "iceberg"
    items = [Item(at, part, folder, shape.typed, whole, lake.root) for at, part in enumerate(parts)]
    told = spread(work.spark(), items, archived, work.tell, "partitions written") if items else []
    if not shape.variant:
        return told
    return [one if "gap" in one else _with_variant(work, folder, one) for one in told]


def _with_variant(work: Work, folder: str, one: dict[str, Any]) -> dict[str, Any]:
    """The file once more, with `v`, which only Spark can write."""
    from pyspark.sql import functions as sql

    path, aside = f"{folder}/{one['name']}", f"{folder}/variant"
    with spoken():
        frame = work.spark().read.parquet(path).withColumn("v", sql.try_parse_json("data"))
        frame.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(aside)
    (made,) = (name for name in os.listdir(aside) if name.endswith(".parquet"))
    os.replace(f"{aside}/{made}", path)
    shutil.rmtree(aside)
    return {**one, "bytes": os.path.getsize(path)}


def _erase(work: Work, lake: Lake, store: Store, *, fresh: bool) -> tuple[int, list[dict[str, Any]]]:
    """Rows that went, and what could not be compared where `$deletes` itself has a gap.

    A table that was empty before this run misses no delete: it was filled from a log that knew them all.
    """
    for _ in range(ATTEMPTS):
        lake.refresh()
        start = None if fresh else lake.deletes()
        journal = read_journal(work, start, keep_dropped=bool(work.options.get("keep_dropped")))
        erasures = journal.erasures.only(set(lake.done(store.keys())))
        unverified = _compared(work, lake, journal, erasures)
        if journal.upto <= lake.deletes():
            return 0, unverified
        try:
            return lake.erase(work, erasures, journal.upto), unverified
        except LostRace:
            continue
    raise LakeBusy(f"{work.out}: other runs were faster {ATTEMPTS} times")


def _compared(work: Work, lake: Lake, journal: Journal, erasures: Erasures) -> list[dict[str, Any]]:
    """Where the journal forgot deletes, the log itself says what is gone, as far as it goes back."""
    if journal.gap is None:
        return []
    gone, unverified = missing_rows(work, lake)
    for key, seqs in gone.items():
        id, _, epoch = key.partition("-")
        erasures.add({"id": id, "epoch": epoch, "seqs": seqs})
    return unverified
