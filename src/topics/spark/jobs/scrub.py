"""`scrub`: is every byte of a store what it should be, in all tiers, looked at in parallel (10 §5).

The examination is `topics doctor`'s: snapshots and log are looked at here, topics by tasks, a large one by several.
Nothing is changed and no lock taken; with a server running, what it does all the time is only noted. Status 1 if
anything is damaged, also where another copy makes it good. With `--out` the report is a page there, too. Driver only,
but for the task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from topics.fs import Fs, OsFs, ensure_dir, replace_file
from topics.spark.failure import SourceError
from topics.spark.jobs import page
from topics.spark.jobs.place import Place, Store
from topics.spark.jobs.spread import spread
from topics.spark.jobs.work import FAILED, OK, Outcome, Work
from topics.spark.options import PARTITION_BYTES
from topics.storage.findings import Area, Finding
from topics.storage.inspect import Report, inspect
from topics.storage.inspect_topic import Expected, check_topic, spans
from topics.storage.reindex import Range
from topics.storage.tiers.reading import ColdTier
from topics.storage.view import StoreView, read_store_id

DAMAGED: Final = True
"""It looks at stores that nobody else can read."""


class Item(NamedTuple):
    """A topic to examine."""

    path: str
    expected: Expected
    """Without its cold tier, which a task opens for itself."""
    cold: str | None
    store: str | None
    in_use: bool
    span: Range


def check(work: Work, store: Store) -> None:
    """The files must be here."""
    data_dir(work.fs, work.place)


def data_dir(fs: Fs, place: Place) -> str:
    """Where the files of a store are; a server's have to be on this machine."""
    if place.path is not None:
        return place.path
    remote = place.server()
    try:
        names = remote.topics(".*")
        told: dict[str, Any] = remote.segments(names[0]) if names else {"data_dir": "", "store": None}
    finally:
        remote.close()
    if not names or read_store_id(fs, told["data_dir"]) != told["store"]:
        what = f"the files of {place.url} cannot be reached from here"
        raise SourceError("not_local", what, "run it on the server's machine, or name a copy with --path")
    return str(told["data_dir"])


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What would be looked at."""
    path = data_dir(work.fs, work.place)
    topics = StoreView(work.fs, path, cold=work.place.cold).topics()
    size = sum(row.data_len for topic in topics for row in topic.item.segments)
    return {"path": path, "topics": len(topics), "partitions": len(topics), "bytes": size}


def run(work: Work, store: Store) -> Outcome:
    path = data_dir(work.fs, work.place)
    in_use = bool(work.options.get("in_use")) or work.place.url is not None

    def in_parallel(topics: list[Expected]) -> list[Area]:
        id = read_store_id(work.fs, path) or store.id
        items = [
            Item(path, _of(one, span), one.cold.where, id, in_use, span)
            for one in topics
            for span in spans(one, work.number("span_bytes", PARTITION_BYTES))
        ]
        told = spread(work.spark(), items, examined, work.tell, "parts examined") if items else []
        return merged(map(_area, told))

    report = inspect(work.fs, path, in_use=in_use, cold=work.place.cold, check=in_parallel)
    bad = [one for one in report.findings if one.severity != "note"]
    if work.out is not None:
        ensure_dir(work.fs, work.out)
        replace_file(work.fs, f"{work.out}/scrub.html", render(report).encode())
    rows = sum(area.records for area in report.areas if area.label)
    files, size = sum(area.files for area in report.areas), sum(area.bytes for area in report.areas)
    told = {"files": files, "findings": [one._asdict() for one in bad], "report": work.out and f"{work.out}/scrub.html"}
    return Outcome(rows, size, told, FAILED if bad else OK)


def examined(item: Item) -> Iterator[dict[str, Any]]:
    """The area of one topic. A task."""
    fs = OsFs()
    cold = ColdTier(fs, item.cold, item.store)
    try:
        expected = item.expected._replace(cold=cold)
        area = check_topic(fs, item.path, expected, in_use=item.in_use, looked=lambda size: None, span=item.span)
    finally:
        cold.close()
    yield {**area._asdict(), "findings": [one._asdict() for one in area.findings]}


def _of(expected: Expected, span: Range) -> Expected:
    """What a task has to know of a topic: the rows of its span, and the one behind, where its last segment ends."""
    firsts = sorted(first for first in expected.rows if first >= span.first)
    rows = {first: expected.rows[first] for first in firsts[: bisect_right(firsts, span.last) + 1]}
    return expected._replace(cold=None, rows=rows)  # type: ignore[arg-type]


def merged(areas: Iterable[Area]) -> list[Area]:
    """Each topic once, whatever spans it was looked at in."""
    found: dict[str, Area] = {}
    for one in areas:
        known = found.get(one.name)
        found[one.name] = one if known is None else known._replace(
            files=known.files + one.files, bytes=known.bytes + one.bytes, records=known.records + one.records,
            findings=known.findings + one.findings,
        )  # fmt: skip
    return list(found.values())


def _area(told: dict[str, Any]) -> Area:
    return Area(**{**told, "findings": tuple(Finding(**one) for one in told["findings"])})


def render(report: Report) -> str:
    """The report as a page."""
    counts = Counter(one.severity for one in report.findings)
    verdict = f"{counts['error']} errors, {counts['warning']} warnings, {counts['note']} notes"
    damaged = counts["error"] or counts["warning"]
    areas = [
        [f"{one.name} {one.label}".strip(), one.files, one.bytes, one.records, one.verdict] for one in report.areas
    ]
    found = [[one.severity, one.code, one.where, one.what, one.means, one.do] for one in report.findings]
    return page.page(
        f"Scrub of {report.path}",
        page.paragraph(verdict, "bad" if damaged else "ok"),
        page.rows("Bytes by area", [(row[0], row[2]) for row in areas[:40]]),  # type: ignore[misc]
        page.table(["area", "files", "bytes", "holds", "verdict"], areas),
        page.heading("Findings"),
        page.table(["severity", "what", "where", "details", "means", "to do"], found),
    )
