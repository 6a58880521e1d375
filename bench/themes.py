"""What the report draws first: subjects a reader has, each with the arms that answer it.

    Bars      one value of every arm of a group: rates, sizes, times
    Curve     the latencies of every arm of a group, from p10 to p99.9
    Growth    one value over the number in the arms' names

A plot that has no result is left out; a subject without any says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from bench.measure import CURVE, PEERS
from topics.cli import plot

Result = Mapping[str, Any]
Group = Mapping[str, Any]


def _ours(group: Group) -> set[str]:
    return {figure["arm"] for figure in group["figures"] if not figure["arm"].startswith(PEERS)}


class Bars(NamedTuple):
    """A value of the arms. `per_second` turns a time of one unit into a rate."""

    bench: str
    group: str
    value: str
    unit: str
    per_second: bool = False
    better: str = "shorter"

    def draw(self, group: Group) -> str:
        """The plot, or nothing where no arm has the value."""
        ours = _ours(group)
        rows = [
            self._bar(name, row[self.value], "ours" if name in ours else "free")
            for name, row in group["arms"].items()
            if self.value in row
        ]
        return plot.bars(group["name"], rows, self.unit, self.better) if rows else ""

    def _bar(self, name: str, spread: Mapping[str, float], kind: str) -> plot.Bar:
        low, middle, high = spread["low"], spread["median"], spread["high"]
        if self.per_second:
            low, middle, high = (1e6 / max(value, 1e-9) for value in (high, middle, low))
        return plot.Bar(name, middle, low, high, kind)


class Curve(NamedTuple):
    """Latencies by the share of calls that took no longer."""

    bench: str
    group: str

    def draw(self, group: Group) -> str:
        """The plot, or nothing where no arm has a curve."""
        names = [f"p{share:g}_us" for share in CURVE]
        ours = _ours(group)
        # Ours first: they have the same colour everywhere.
        arms = sorted(group["arms"].items(), key=lambda arm: arm[0] not in ours)
        curves = {
            arm: [(float(at), row[name]["median"] / 1e3) for at, name in enumerate(names)]
            for arm, row in arms
            if all(name in row for name in names)
        }
        marks = [(float(at), f"p{share:g}") for at, share in enumerate(CURVE)]
        return plot.lines(group["name"], curves, "share of calls", "ms", marks) if curves else ""


class Growth(NamedTuple):
    """A value over the number that an arm's name ends with."""

    bench: str
    group: str
    value: str
    x_unit: str
    y_unit: str

    def draw(self, group: Group) -> str:
        """The plot, or nothing where no arm has the value."""
        points = [
            (float(found[0].replace(",", "")), row[self.value]["median"])
            for name, row in group["arms"].items()
            if self.value in row and (found := re.findall(r"[\d,]*\d", name))
        ]
        return plot.lines(group["name"], {self.y_unit: sorted(points)}, self.x_unit, self.y_unit) if points else ""


Plot = Bars | Curve | Growth

WRITES = (("http_write", ""), ("http_commit", "64 writers"))
SUBJECTS: Mapping[str, Sequence[Plot]] = {
    "Throughput": [
        *(Bars(bench, group, "wall_us", "records/s", True, "longer") for bench, group in WRITES),
        Bars("http_commit", "shards", "wall_us", "records/s", True, "longer"),
        Bars("http_read", "diff, limit 1000", "wall_us", "records/s", True, "longer"),
        Bars("queue", "", "wall_us", "jobs/s", True, "longer"),
    ],
    "Latency": [Curve(bench, group) for bench, group in (*WRITES, ("http_commit", "lone writer"))],
    "CPU per record": [
        *(Bars(bench, group, "cpu_us", "µs of the server per record") for bench, group in WRITES),
        Bars("http_read", "diff, limit 1000", "cpu_us", "µs of the server per record"),
        Bars("sse", "", "cpu_us", "µs of the server per delivery"),
    ],
    "Memory per record kept": [
        Bars("retained", "", "at_once_bytes_per_record", "bytes of resident memory per record, just written"),
        Bars("retained", "", "bytes_per_record", "bytes of resident memory per record, some seconds later"),
        Bars("retained", "", "restarted_bytes_per_record", "bytes of resident memory per record, after a restart"),
        Bars("engine_memory", "", "vmrss_bytes_per_record", "bytes of resident memory per sealed record"),
    ],
    "Recovery": [
        Bars("retained", "", "restart_ms", "ms from a start until it answers, after a kill"),
        Growth("engine_recovery", "recovery by", "open_ms", "records in the WAL", "ms until it takes writes"),
        Bars("engine_recovery", "start-up", "wall_us", "µs"),
    ],
    "From a write to its delivery": [
        Bars("delivery", "", "p50_us", "µs, median"),
        Bars("delivery", "", "p99_us", "µs, p99"),
    ],
    "Beside cold reads": [
        Bars("cold", "", "p99_us", "µs of a write, p99"),
        Bars("cold", "", "live_p99_us", "µs until a delivery, p99"),
    ],
    "Spark": [Bars("spark", "", "wall_us", "rows/s", True, "longer")],
    "Archive": [Bars("archive", "", "mib_s", "MiB/s", better="longer")],
}


def sections(results: Sequence[Result]) -> Iterator[str]:
    """Every subject with its plots."""
    groups = {result["bench"]: result["groups"] for result in results}
    for title, plots in SUBJECTS.items():
        drawn = "".join(_drawn(one, groups.get(one.bench, [])) for one in plots)
        missing = '<p class="note">Not measured here.</p>'
        yield f'<section class="card"><h2>{escape(title)}</h2>{drawn or missing}</section>'


def _drawn(one: Plot, groups: Sequence[Group]) -> str:
    parts = []
    for group in groups:
        svg = one.draw(group) if group["name"].startswith(one.group) else ""
        if svg:
            warning = '<p class="warn">Rejected: the baseline did not hold still.</p>' if group["rejected"] else ""
            parts.append(f"<h3>{escape(group['name'])}</h3>{warning}{svg}")
    return "".join(parts)
