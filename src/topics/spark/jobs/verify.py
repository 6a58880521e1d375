"""`verify-export`: proof that a lake table equals the log, less what was erased [K-48].

    log        tasks read the log once: count and hash of the rows of every archived range, and the gaps it has
    table      tasks read every file once: count and hash of all its rows, and of those that the log can vouch for
    compare    all rows against the manifest; the rest, without gaps and deletes that have not reached the table yet,
               against the log

A range is proven by the log, where no gap is in it; by the manifest only, where one is; or it differs, also by sharing
seqs with another one. Rows in no range differ as well. Of a queue the table contains the log: acks are no deletes.
Tables without manifests have one range per topic. Status 1 if anything differs. Driver only, but for the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.fs import OsFs
from topics.spark.failure import SourceError
from topics.spark.held import held
from topics.spark.jobs import files
from topics.spark.jobs.erase import Erased, Erasures
from topics.spark.jobs.journal import read_journal
from topics.spark.jobs.lake import Lake, open_lake, read_shape
from topics.spark.jobs.parquet import ParquetLake
from topics.spark.jobs.place import Instance, Store, look
from topics.spark.jobs.rows import HASHED, STORED, U64, Proof, hashes
from topics.spark.jobs.spread import spread
from topics.spark.jobs.work import FAILED, OK, Outcome, Work
from topics.spark.jobs.write import of_topic, spans
from topics.spark.options import Bound
from topics.spark.plan import Partition
from topics.spark.reader import read_partition
from topics.storage.reindex import ranges_of

OBJECTS: Final = True
"""It reads tables in buckets, too."""
READ: Final = pa.schema([STORED.field(name) for name in ("topic_id", "epoch", *HASHED)])
SHOWN_MAX: Final = 100
"""Differing ranges that a summary lists."""

Seqs = list[tuple[int, int]]


class Archived(NamedTuple):
    """A range of the table."""

    key: str
    first: int
    last: int
    proof: Proof | None
    path: str = ""


class LogItem(NamedTuple):
    """What a task reads of the log."""

    partition: Partition
    ranges: dict[str, Seqs]
    """By topic, ascending."""
    live: frozenset[str]
    """Topics of which to tell every live seq."""


class FileItem(NamedTuple):
    """What a task reads of the table."""

    root: str
    path: str
    gaps: dict[str, Seqs]
    """By instance: what the log cannot vouch for."""
    live: dict[str, Seqs]
    """By instance, where only these count."""
    erased: dict[str, Erased]
    """Deletes that have not reached the table."""
    list_gone: bool = False
    """Tell the seqs that are not live."""


def check(work: Work, store: Store) -> None:
    """There must be a table."""
    _open(work, store)


def _open(work: Work, store: Store) -> Lake:
    out = work.output()
    shape = read_shape(work.fs, out)
    if shape is None:
        raise SourceError("no_lake", f"{out} is no table of ours", "`topics pipeline archive --out` makes one")
    if shape.store != store.id:
        what = f"{out} archives store {shape.store}, not {store.id}"
        raise SourceError("other_store", what, "name the store that was archived")
    lake = open_lake(work.fs, out, shape)
    lake.refresh()
    return lake


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What would be read."""
    lake = _open(work, store)
    size = sum(files.size(lake.root, one.path) for one in lake.files())
    with _log_parts(work, _known(work, lake), lake.done()) as parts:
        size += sum(part.bytes for part in parts)
        return {"files": len(lake.files()), "partitions": len(parts), "bytes": size}


def run(work: Work, store: Store) -> Outcome:
    lake = _open(work, store)
    pending = read_journal(work, lake.deletes()).erasures
    known = _known(work, lake)
    ranges = _ranges(lake)
    log = _read_log(work, known, lake.done(), ranges)
    table = _read_table(work, lake, known, log, pending)
    found = lake.done({one["key"] for one in table if one["key"]})
    told = _compared(ranges, known, log, table) + _extra(ranges, found, table) + _strays(lake)
    counts = {kind: sum(one["proven"] == kind for one in told) for kind in ("log", "manifest", "differs")}
    differing = [one for one in told if one["proven"] == "differs"]
    rows, size = sum(one["rows"] for one in table), sum(one["bytes"] for one in table)
    summary = {"ranges": counts, "differing": differing[:SHOWN_MAX], "pending_deletes": _pending(table)}
    return Outcome(rows, size, summary, FAILED if differing else OK)


def _pending(table: list[dict[str, Any]]) -> int:
    return sum(one.get("pending", 0) for one in table)


def _known(work: Work, lake: Lake) -> dict[str, Instance]:
    """The archived instances that the store still has."""
    try:
        there = look(work.fs, work.place, work.topics).instances
    except SourceError as error:
        if error.code != "topic_not_found":
            raise
        there = []
    done = lake.done()
    return {one.key: one for one in there if one.key in done}


def _ranges(lake: Lake) -> list[Archived]:
    held = [one for one in lake.files() if one.proof is not None]
    if held or lake.shape.format == "parquet":
        return sorted(Archived(one.key, one.first, one.last, one.proof, one.path) for one in held)
    return [Archived(key, 1, upto, None) for key, upto in sorted(lake.done().items())]


class Log(NamedTuple):
    """What the log says."""

    proofs: dict[tuple[str, int], Proof]
    """By instance and first seq of a range; 0 for records that are in no range."""
    gaps: dict[str, Seqs]
    live: dict[str, Seqs]


@contextmanager
def _log_parts(work: Work, known: Mapping[str, Instance], done: Mapping[str, int]) -> Iterator[list[Partition]]:
    """What tasks read of the log; held until the block ends."""
    if not known:
        yield []
        return
    options = work.place.options(
        topics=tuple(one.name for one in known.values()),
        start_seq=Bound(1),
        end_seq=Bound(by_topic=tuple((one.name, done[key]) for key, one in known.items())),
        meta_json=True,
        on_data_loss="emit",
    )
    with held(work.fs, options, work.clock.now_ms()) as parts:
        yield parts


def _read_log(
    work: Work,
    known: Mapping[str, Instance],
    done: Mapping[str, int],
    ranges: list[Archived],
    *,
    all_live: bool = False,
) -> Log:
    by_topic = {
        one.name: [(archived.first, archived.last) for archived in ranges if archived.key == key]
        for key, one in known.items()
    }
    live = frozenset(one.name for one in known.values() if all_live or one.queue)
    log = Log({}, {key: [] for key in known}, {key: [] for key, one in known.items() if one.name in live})
    with _log_parts(work, known, done) as parts:
        items = [LogItem(part, by_topic, live) for part in parts]
        told = spread(work.spark(), items, log_proofs, work.tell, "partitions of the log read") if items else []
    for one in told:
        key = one["key"]
        if key not in known:
            continue  # made anew meanwhile: nothing of it is in the table
        if "gap" in one:
            log.gaps[key].append(tuple(one["gap"]))
        elif "live" in one:
            log.live[key] += [tuple(pair) for pair in one["live"]]
        else:
            at = (key, one["range"])
            log.proofs[at] = log.proofs.get(at, Proof()).plus(Proof(one["rows"], int(one["hash"], 16)))
    return log


def log_proofs(item: LogItem) -> Iterator[dict[str, Any]]:
    """Counts and hashes of a partition's records by range, its gaps, and its live seqs where they are asked for."""
    for topic, _, _ in spans(item.partition):
        part = of_topic(item.partition, topic)
        key = f"{part.pieces[0].item.id}-{part.pieces[0].item.epoch}"
        firsts = np.array([first for first, _ in item.ranges[topic]], np.int64)
        lasts = np.array([last for _, last in item.ranges[topic]], np.int64)
        for batch in read_partition(OsFs(), part):
            is_gap = pc.equal(batch.column("kind"), "gap")
            for row in batch.filter(is_gap).select(["seq", "gap_to"]).to_pylist():
                yield {"key": key, "gap": [row["seq"], row["gap_to"]]}
            records = batch.filter(pc.invert(is_gap))
            seqs = records.column("seq").to_numpy(zero_copy_only=False)
            for first, rows, total in _by_range(seqs, hashes(records), firsts, lasts):
                yield {"key": key, "range": first, "rows": rows, "hash": f"{total:016x}"}
            if topic in item.live:
                yield {"key": key, "live": [list(one) for one in ranges_of(seqs)]}


def _by_range(
    seqs: npt.NDArray[np.int64], hashed: npt.NDArray[np.uint64], firsts: npt.NDArray[np.int64],
    lasts: npt.NDArray[np.int64],
) -> Iterator[tuple[int, int, int]]:  # fmt: skip
    at = np.searchsorted(firsts, seqs, side="right") - 1
    inside = (at >= 0) & (seqs <= lasts[at]) if len(firsts) else np.zeros(len(seqs), np.bool_)
    at = np.where(inside, at, -1)
    for index in np.unique(at).tolist():
        chosen = at == index
        total = int(hashed[chosen].sum(dtype=np.uint64))
        yield (int(firsts[index]) if index >= 0 else 0), int(chosen.sum()), total & U64


def _read_table(
    work: Work, lake: Lake, known: Mapping[str, Instance], log: Log, pending: Erasures
) -> list[dict[str, Any]]:
    """Every file, and what the log can vouch for of it."""
    unknown = {key: [(0, U64 >> 1)] for key in lake.done() if key not in known}
    items = [FileItem(lake.root, one.path, {**log.gaps, **unknown}, log.live, pending.of) for one in lake.files()]
    return spread(work.spark(), items, file_proofs, work.tell, "files read") if items else []


def file_proofs(item: FileItem) -> Iterator[dict[str, Any]]:
    """Count and hash of a file's rows by instance: all of them, and those that the log must have. A task."""
    try:
        file = pq.ParquetFile(files.readable(item.root, item.path))
        size, found = files.size(item.root, item.path), _Found(item)
        for batch in file.iter_batches(columns=READ.names):
            found.add(batch.select(READ.names).cast(READ))  # other writers have other types for text
    except FileNotFoundError:
        yield _unread(item.path, "the file is missing")
        return
    except (pa.ArrowException, OSError, KeyError) as error:
        yield _unread(item.path, f"the file cannot be read: {error}")
        return
    for key, (whole, kept, dead) in found.proofs.items():
        yield {
            "path": item.path, "key": key, "rows": whole.rows, "hash": f"{whole.hash:016x}", "kept_rows": kept.rows,
            "kept_hash": f"{kept.hash:016x}", "pending": dead, "bytes": size, "gone": found.gone.get(key, []),
        }  # fmt: skip
        size = 0


def _unread(path: str, why: str) -> dict[str, Any]:
    return {"path": path, "key": "", "rows": 0, "bytes": 0, "why": why}


class _Found:
    """Proofs of one file in the making."""

    def __init__(self, item: FileItem) -> None:
        self._item = item
        self.proofs: dict[str, tuple[Proof, Proof, int]] = {}
        self.gone: dict[str, list[int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        ids = np.stack([batch.column(name).to_numpy(zero_copy_only=False) for name in ("topic_id", "epoch")])
        for id, epoch in np.unique(ids, axis=1).T.tolist():
            chosen = (ids[0] == id) & (ids[1] == epoch)
            self._instance(f"{id}-{epoch}", batch.filter(pa.array(chosen)))

    def _instance(self, key: str, rows: pa.RecordBatch) -> None:
        item, seqs, hashed = self._item, rows.column("seq").to_numpy(zero_copy_only=False), hashes(rows)
        vouched = ~_within(seqs, item.gaps.get(key, []))
        dead = np.zeros(len(seqs), np.bool_)
        if key in item.erased:
            dead = item.erased[key].mask(seqs, rows.column("tag"))
        if key in item.live:
            alive = _within(seqs, item.live[key])
            if item.list_gone:
                self.gone.setdefault(key, []).extend(seqs[vouched & ~alive].tolist())
            vouched &= alive
        kept = vouched & ~dead
        whole, part, pending = self.proofs.get(key, (Proof(), Proof(), 0))
        self.proofs[key] = (
            whole.plus(_proof(hashed)), part.plus(_proof(hashed[kept])), pending + int((dead & vouched).sum()),
        )  # fmt: skip


def _proof(hashed: npt.NDArray[np.uint64]) -> Proof:
    return Proof(len(hashed), int(hashed.sum(dtype=np.uint64)))


def _within(seqs: npt.NDArray[np.int64], ranges: Seqs) -> npt.NDArray[np.bool_]:
    """Which seqs lie in one of the ranges."""
    if not ranges:
        return np.zeros(len(seqs), np.bool_)
    ordered = np.array(sorted(ranges), np.int64)
    ends = np.maximum.accumulate(ordered[:, 1])
    at = np.searchsorted(ordered[:, 0], seqs, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (seqs <= ends[np.maximum(at, 0)])
    return inside


def _compared(
    ranges: list[Archived], known: Mapping[str, Instance], log: Log, table: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    told = []
    reached: dict[str, int] = {}
    for one in ranges:
        files = [row for row in table if (row["path"] == one.path if one.path else row["key"] == one.key)]
        verdict = _shared(one, reached.get(one.key, 0)) or _verdict(one, files, known, log)
        told.append({"key": one.key, "first": one.first, "last": one.last, "path": one.path, **verdict})
        reached[one.key] = max(one.last, reached.get(one.key, 0))
    unread = [row for row in table if "why" in row and not any(one.path == row["path"] for one in ranges)]
    told += [{"path": row["path"], "proven": "differs", "why": row["why"]} for row in unread]
    for (key, first), proof in log.proofs.items():
        if first == 0 and proof.rows:
            why = f"{proof.rows} records of the log are in no range of the table"
            told.append({"key": key, "proven": "differs", "why": why})
    return told


def _shared(one: Archived, reached: int) -> dict[str, str]:
    """A range that begins before the ones before it end: its rows are in the table twice, however well each is."""
    if one.first > reached:
        return {}
    return {"proven": "differs", "why": f"seqs {one.first} to {min(one.last, reached)} are in another range, too"}


def _verdict(one: Archived, files: list[dict[str, Any]], known: Mapping[str, Instance], log: Log) -> dict[str, str]:
    unread = [row["why"] for row in files if "why" in row]
    if unread:
        return {"proven": "differs", "why": unread[0]}
    whole, kept = Proof(), Proof()
    for row in files:
        if row["key"] != one.key:
            return {"proven": "differs", "why": f"rows of instance {row['key']} are in it"}
        whole = whole.plus(Proof(row["rows"], int(row["hash"], 16)))
        kept = kept.plus(Proof(row["kept_rows"], int(row["kept_hash"], 16)))
    if one.proof is not None and whole != one.proof:
        return {"proven": "differs", "why": _difference("the manifest", one.proof, whole)}
    if one.key not in known:
        return {"proven": "manifest", "why": "the store does not have the topic any more"}
    wanted = log.proofs.get((one.key, one.first), Proof())
    if kept != wanted:
        return {"proven": "differs", "why": _difference("the log", wanted, kept)}
    if any(first <= one.last and last >= one.first for first, last in log.gaps[one.key]):
        return {"proven": "manifest", "why": "the log does not have all of it any more"}
    return {"proven": "log", "why": ""}


def _difference(whom: str, wanted: Proof, found: Proof) -> str:
    if wanted.rows != found.rows:
        return f"{whom} has {wanted.rows} rows, the table {found.rows}"
    return f"as many rows as {whom}, {wanted.rows}, and at least one is different"


def _extra(ranges: list[Archived], done: Mapping[str, int], table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of instances that have no range: nobody archived them, or the statistics of their files do not name them."""
    known, rows = {one.key for one in ranges}, Counter[str]()
    for one in table:
        if "why" not in one and one["key"] not in known:
            rows[one["key"]] += one["rows"]
    return [
        {"key": key, "proven": "manifest", "why": "the statistics of its files do not name it"}
        if key in done
        else {"key": key, "proven": "differs", "why": f"{count} rows of the table are in no range"}
        for key, count in sorted(rows.items())
    ]


def _strays(lake: Lake) -> list[dict[str, Any]]:
    """Files in the folders of a Parquet table that no manifest names: a reader of the folder sees them."""
    found = lake.strays() if isinstance(lake, ParquetLake) else []
    return [{"path": path, "proven": "differs", "why": "no manifest names this file"} for path in found]


def missing_rows(work: Work, lake: Lake) -> tuple[dict[str, list[int]], list[dict[str, Any]]]:
    """Rows of the table that the log has no more although it reaches back so far, and what it does not reach."""
    known = _known(work, lake)
    log = _read_log(work, {key: one for key, one in known.items() if not one.queue}, lake.done(), [], all_live=True)
    unknown = {key: [(0, U64 >> 1)] for key in lake.done() if key not in log.gaps}
    gaps = {**log.gaps, **unknown}
    items = [FileItem(lake.root, one.path, gaps, log.live, {}, list_gone=True) for one in lake.files()]
    gone: dict[str, list[int]] = {}
    for row in spread(work.spark(), items, file_proofs, work.tell, "files compared") if items else []:
        if row.get("gone"):
            gone.setdefault(row["key"], []).extend(row["gone"])
    unverified = [
        {"key": key, "first": max(first, 1), "last": min(last, lake.done().get(key, 0))}
        for key, ranges in gaps.items()
        for first, last in ranges
        if first <= lake.done().get(key, 0)
    ]
    return gone, unverified
