"""`stats`: what is in the topics: rates, sizes, tags and their skew, members of payloads, as a page with plots (10 §5).

Tasks read the log once and tell sums, histograms and samples; nothing is shuffled. How many different tags there are is
exact up to `SKETCH`, and an estimate from their smallest hashes beyond; the most frequent ones are exact as long as a
partition has no more than `TAGS` different ones. Members are taken from the first records of every partition. Driver
only, but for the task.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from topics.fs import OsFs, ensure_dir, replace_file
from topics.spark.held import held
from topics.spark.jobs import page
from topics.spark.jobs.place import Store
from topics.spark.jobs.spread import spread
from topics.spark.jobs.work import GAPS, OK, Outcome, Work
from topics.spark.jobs.write import of_topic, spans
from topics.spark.plan import Partition
from topics.spark.reader import read_partition

SKETCH: Final = 4096
TAGS: Final = 10_000
TOP: Final = 15
SAMPLES: Final = 500
MINUTE_MS: Final = 60_000
BARS: Final = 120
_COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "data", "kind", "gap_to", "reason")


def check(work: Work, store: Store) -> None:
    """Nothing can be wrong with it before it is read."""


@contextmanager
def _partitions(work: Work, store: Store) -> Iterator[list[Partition]]:
    """What tasks read; held until the block ends."""
    names = tuple(one.name for one in store.instances)
    options = work.place.options(topics=names, columns=_COLUMNS, on_data_loss="emit", meta_json=True)
    if not names:
        yield []
        return
    with held(work.fs, options, work.clock.now_ms()) as parts:
        yield parts


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What would be read."""
    with _partitions(work, store) as parts:
        return {"partitions": len(parts), "bytes": sum(part.bytes for part in parts)}


def run(work: Work, store: Store) -> Outcome:
    with _partitions(work, store) as parts:
        told = spread(work.spark(), parts, counted, work.tell, "partitions read") if parts else []
    topics: dict[str, Counted] = {one.name: Counted() for one in store.instances}
    for one in told:
        topics[one["topic"]].add(one)
    found = {name: one.summary() for name, one in topics.items()}
    if work.out is not None:
        ensure_dir(work.fs, work.out)
        replace_file(work.fs, f"{work.out}/stats.html", render(topics).encode())
    rows, size = sum(one.records for one in topics.values()), sum(one.bytes for one in topics.values())
    gaps = sum(one.gaps for one in topics.values())
    summary = {"stats": found, "gaps": gaps, "report": work.out and f"{work.out}/stats.html"}
    return Outcome(rows, size, summary, GAPS if gaps else OK)


class Counted:
    """What was counted of one topic."""

    def __init__(self) -> None:
        self.records = self.bytes = self.gaps = self.tagged = self.sampled = 0
        self.first_ms, self.last_ms = 2**63, 0
        self.sizes: Counter[int] = Counter()
        self.minutes: Counter[int] = Counter()
        self.tags: Counter[str] = Counter()
        self.nodes: Counter[str] = Counter()
        self.members: dict[str, Counter[str]] = {}
        self.hashes: set[int] = set()

    def add(self, told: dict[str, Any]) -> None:
        """What a task told."""
        for name in ("records", "bytes", "gaps", "tagged", "sampled"):
            setattr(self, name, getattr(self, name) + told[name])
        self.first_ms, self.last_ms = min(self.first_ms, told["first_ms"]), max(self.last_ms, told["last_ms"])
        for name in ("sizes", "minutes"):
            getattr(self, name).update({int(key): count for key, count in told[name].items()})
        self.tags.update(told["tags"])
        self.nodes.update(told["nodes"])
        for path, kinds in told["members"].items():
            self.members.setdefault(path, Counter()).update(kinds)
        self.hashes = set(heapq.nsmallest(SKETCH, self.hashes | set(told["hashes"])))

    @property
    def tag_count(self) -> int:
        """Different tags: exact below `SKETCH`, else by how dense the smallest hashes lie."""
        if len(self.hashes) < SKETCH:
            return len(self.hashes)
        return int((SKETCH - 1) * 2**64 / max(self.hashes))

    def summary(self) -> dict[str, Any]:
        """For machines."""
        span_s = max(self.last_ms - self.first_ms, 0) / 1000 if self.records else 0
        return {
            "records": self.records, "bytes": self.bytes, "gaps": self.gaps,
            "mean_bytes": round(self.bytes / self.records, 1) if self.records else 0,
            "records_per_s": round(self.records / span_s, 2) if span_s else None,
            "tags": self.tag_count, "tagged": self.tagged,
            "top_share": round(self.tags.most_common(1)[0][1] / self.tagged, 4) if self.tagged else None,
            "top_tags": dict(self.tags.most_common(TOP)),
            "members": {path: dict(kinds) for path, kinds in sorted(self.members.items())}, "sampled": self.sampled,
        }  # fmt: skip


def counted(partition: Partition) -> Iterator[dict[str, Any]]:
    """What one partition holds of each topic. A task."""
    for topic, _, _ in spans(partition):
        yield {"topic": topic, **_counted(of_topic(partition, topic))}


def _counted(partition: Partition) -> dict[str, Any]:
    found: dict[str, Any] = {
        "records": 0, "bytes": 0, "gaps": 0, "tagged": 0, "sampled": 0, "first_ms": 2**63, "last_ms": 0,
    }  # fmt: skip
    sizes, minutes, tags, nodes = (Counter[Any]() for _ in range(4))
    members: dict[str, Counter[str]] = {}
    for batch in read_partition(OsFs(), partition):
        is_gap = pc.equal(batch.column("kind"), "gap")
        found["gaps"] += pc.sum(is_gap).as_py() or 0
        rows = batch.filter(pc.invert(is_gap))
        if not rows.num_rows:
            continue
        lens = pc.binary_length(rows.column("data").cast(pa.binary())).to_numpy(zero_copy_only=False)
        millis = rows.column("ts").cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
        found["records"] += rows.num_rows
        found["bytes"] += int(lens.sum())
        found["tagged"] += rows.num_rows - rows.column("tag").null_count
        found["first_ms"] = min(found["first_ms"], int(millis[0]))
        found["last_ms"] = max(found["last_ms"], int(millis[-1]))
        _histogram(sizes, np.ceil(np.log2(np.maximum(lens, 1))).astype(np.int64))
        _histogram(minutes, millis // MINUTE_MS)
        _values(tags, rows.column("tag"))
        _values(nodes, rows.column("node"))
        found["sampled"] += _sample(members, rows.column("data"), SAMPLES - found["sampled"])
    hashes = heapq.nsmallest(SKETCH, {xxh3_64_intdigest(tag.encode()) for tag in tags})
    return {
        **found, "sizes": sizes, "minutes": minutes, "tags": dict(tags.most_common(TAGS)),
        "nodes": dict(nodes.most_common(TAGS)), "members": members, "hashes": hashes,
    }  # fmt: skip


def _histogram(counts: Counter[Any], values: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    keys, times = np.unique(values, return_counts=True)
    counts.update(dict(zip(keys.tolist(), times.tolist(), strict=True)))


def _values(counts: Counter[Any], column: pa.Array) -> None:
    for one in pc.value_counts(column.drop_null()).to_pylist():
        counts[one["values"]] += one["counts"]


def _sample(members: dict[str, Counter[str]], data: pa.Array, room: int) -> int:
    texts = data.slice(0, max(room, 0)).to_pylist()
    for text in texts:
        for path, kind in _kinds("$", json.loads(text)):
            members.setdefault(path, Counter())[kind] += 1
    return len(texts)


def _kinds(path: str, value: object) -> Iterator[tuple[str, str]]:
    """The members of a value and their types; items of an array count as one."""
    yield path, _KINDS.get(type(value), "string")
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _kinds(f"{path}.{name}", one)
    elif isinstance(value, list):
        yield from {pair for one in value for pair in _kinds(f"{path}[]", one)}


_KINDS: Final[dict[type, str]] = {
    dict: "object", list: "array", bool: "boolean", int: "integer", float: "number", type(None): "null",
}  # fmt: skip


def render(topics: dict[str, Counted]) -> str:
    """The report as a page."""
    names = ["topic", "records", "bytes", "mean", "per s", "tags", "gaps"]
    told = [(name, one, one.summary()) for name, one in topics.items()]
    rows = [
        [name, one.records, one.bytes, of["mean_bytes"], of["records_per_s"], one.tag_count, one.gaps]
        for name, one, of in told
    ]
    sizes = [(name, float(one.bytes)) for name, one in topics.items()]
    parts = [page.table(names, rows), page.rows("Bytes of payload by topic", sizes)]
    for name, one in topics.items():
        parts += _section(name, one)
    return page.page("Topics in numbers", *parts)


def _section(name: str, one: Counted) -> list[str]:
    if not one.records:
        return [page.heading(name), page.paragraph("no records")]
    shares = [[path, sum(kinds.values()) / max(one.sampled, 1), ", ".join(sorted(kinds))] for path, kinds in
              sorted(one.members.items())]  # fmt: skip
    return [
        page.heading(name),
        page.columns("Records over time", _over_time(one), _iso(one.first_ms), _iso(one.last_ms)),
        page.rows("Sizes of payloads", [(f"to {1 << bits:,} B", float(n)) for bits, n in sorted(one.sizes.items())]),
        page.rows("Most frequent tags", [(tag, float(n)) for tag, n in one.tags.most_common(TOP)]),
        page.paragraph(f"Members of payloads, in a sample of {one.sampled}:"),
        page.table(["member", "share", "types"], shares),
    ]


def _over_time(one: Counted) -> list[float]:
    first, last = min(one.minutes), max(one.minutes)
    width = max(-(-(last + 1 - first) // BARS), 1)
    bars = [0.0] * (-(-(last + 1 - first) // width))
    for minute, n in one.minutes.items():
        bars[(minute - first) // width] += n
    return bars


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
