"""The report: results as one HTML page with plots as inline SVG; no script, no dependency, no network.

First all bounds, then the subjects of `bench.themes`, then every benchmark with all its ratios. A plot of ratios has
one bar per ratio. The line at 1.0 is the baseline, whiskers reach from the lowest to the highest round, each dot is a
round, and a notch marks the bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench import themes
from bench.measure import CURVE, Figure
from topics.cli import plot

Result = Mapping[str, Any]
TARGET = "report.html"

LABELS, PLOT, VALUES = plot.LABELS, plot.PLOT, plot.VALUES
ROW = 44
TOP, BOTTOM = plot.TOP, plot.BOTTOM


def write(results: Path) -> Path:
    """Render every result in a directory into `report.html` beside it."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    target = results.parent / TARGET
    target.write_text(page([one for one in found if "groups" in one]), encoding="utf-8")
    return target


def bound_text(figure: Mapping[str, Any]) -> str:
    """`≤ 8`, `≥ 0.75`, or nothing."""
    if figure["bound"] is None:
        return ""
    return f"{'≤' if figure['kind'] == 'time' else '≥'} {figure['bound']:g}"


def sign(figure: Mapping[str, Any]) -> str:
    """What stands behind the number: × for a ratio."""
    return " " if figure["against"] is None else "×"


def verdict(figure: Mapping[str, Any]) -> str:
    """One word for a bound."""
    if figure["bound"] is None:
        return ""
    return {True: "holds", False: "missed", None: "rejected"}[figure["holds"]]


def page(results: Sequence[Result]) -> str:
    """The whole document."""
    body = "".join(_section(result) for result in results) or "<p>No results yet: run <code>make bench</code>.</p>"
    subjects = "".join(themes.sections(results)) if results else ""
    whole = f"<h1>Benchmarks</h1>{_where(results)}{_bounds(results)}{subjects}{body}"
    return plot.page("topics: benchmarks", whole)


def _where(results: Sequence[Result]) -> str:
    if not results:
        return ""
    first = results[0]
    machine, versions = first["machine"], first["versions"]
    facts = (
        f"{machine['cpu']}, {machine['cores']} cores",
        machine["kernel"],
        machine["filesystem"],
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"seed {first['seed']}",
    )
    small = (
        '<p class="warn">Quick sizes: these figures show that the benchmarks run, not how fast the product is.</p>'
        if any(result["quick"] for result in results)
        else ""
    )
    return '<p class="facts">' + " · ".join(map(escape, facts)) + f"</p>{small}"


def _figures(results: Sequence[Result]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for result in results:
        for group in result["groups"]:
            for figure in group["figures"]:
                yield group["name"], figure


def _bounds(results: Sequence[Result]) -> str:
    rows = []
    for name, figure in _figures(results):
        if figure["bound"] is None:
            continue
        word = verdict(figure)
        ratio = f"{figure['median']:.3g}{sign(figure)}" if "median" in figure else "–"
        rows.append(
            f'<tr><td>{escape(name)}</td><td>{escape(figure["name"])}</td><td class="n">{ratio}</td>'
            f'<td class="n">{bound_text(figure)}</td><td><span class="pill {word}">{word}</span></td></tr>'
        )
    if not rows:
        return ""
    head = '<tr><th>group</th><th>figure</th><th class="n">ratio</th><th class="n">bound</th><th></th></tr>'
    return (
        f'<section class="card"><h2>Bounds</h2><div class="wide"><table>{head}{"".join(rows)}</table></div></section>'
    )


def _section(result: Result) -> str:
    question, _, rest = result["doc"].partition("\n")
    about = f"<details><summary>What is and is not measured</summary><pre>{escape(rest.strip())}</pre></details>"
    cards = "".join(_card(group) for group in result["groups"])
    started = result["started"].replace("T", " ").replace("+00:00", " UTC")
    when = f"commit {result['commit']} · {started} · load {result['machine']['load_before'][0]}"
    return f'<h2>{escape(question)}</h2><p class="note">{escape(when)}</p>{about}{cards}'


def _card(group: Mapping[str, Any]) -> str:
    parts = [f"<h3>{escape(group['name'])}</h3>"]
    attempts = group["attempts"]
    if group["rejected"]:
        parts.append(
            f'<p class="warn">Rejected: in {len(attempts)} runs the baseline varied by more than 25 %. '
            "No ratios were formed; the times below are of the last run.</p>"
        )
    else:
        for kind in ("time", "rate"):
            figures = [
                one
                for one in group["figures"]
                if one["kind"] == kind and one["against"] is not None and "median" in one
            ]
            if figures:
                parts.append(_chart(group["name"], kind, figures, attempts))
        alone = [_alone(figure) for figure in group["figures"] if figure["against"] is None]
        parts += [f'<p class="note">{escape(sentence)}</p>' for sentence in (*alone, *group["explain"])]
        parts += [_aim(aim) for aim in group["aims"]]
        if len(attempts) > 1:
            parts.append(
                f'<p class="note">Measured {len(attempts)} times, because baselines did not hold still: '
                "each ratio is of a run in which its own one did, the times below are of the steadiest.</p>"
            )
    parts.append(_arms(group))
    return f'<section class="card">{"".join(parts)}</section>'


def _alone(figure: Mapping[str, Any]) -> str:
    """A figure that is no ratio, as a sentence."""
    words = [f"{figure['name']}: {figure['median']:.3g} ({figure['low']:.3g} – {figure['high']:.3g})"]
    return ", ".join(words + [f"bound {bound_text(figure)}: {verdict(figure)}"] * (figure["bound"] is not None)) + "."


def _aim(aim: Mapping[str, Any]) -> str:
    word = "reached" if aim["reached"] else "not reached"
    return (
        f'<p class="note">Aim on an NVMe-class disk: {escape(aim["arm"])} {aim["rate"]:,.0f} {escape(aim["unit"])}, '
        f"aimed at {aim['at_least']:,.0f} ({word}).</p>"
    )


def _arms(group: Mapping[str, Any]) -> str:
    arms = group["arms"]
    hidden = {"wall_us", "cpu_us", *(f"p{share:g}_us" for share in CURVE if share not in (50, 99))}
    extras = list(dict.fromkeys(name for row in arms.values() for name in row if name not in hidden))
    heads = ["", f"µs per {group['unit']}", "low – high", "CPU µs", *(name.replace("_", " ") for name in extras)]
    rows = ["<tr>" + "".join(f'<th class="n">{escape(head)}</th>' for head in heads) + "</tr>"]
    for name, row in arms.items():
        wall = row["wall_us"]
        cells = [_number(wall["median"]), f"{_number(wall['low'])} – {_number(wall['high'])}"]
        cells += [_number(row[key]["median"]) if key in row else "" for key in ("cpu_us", *extras)]
        rows.append(f"<tr><td>{escape(name)}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Scale(NamedTuple):
    """From a ratio to a place on the plot."""

    top: float

    def x(self, ratio: float) -> float:
        """Pixels from the left edge of the drawing."""
        return round(LABELS + PLOT * min(ratio, self.top) / self.top, 1)

    def ticks(self) -> list[float]:
        """Round numbers, about five."""
        step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 20, 25, 50, 100, 1e9) if self.top / s <= 6)
        return [round(n * step, 2) for n in range(int(self.top / step) + 1)]


def scale_for(figures: Sequence[Mapping[str, Any]]) -> Scale:
    """Room for every whisker, bound and the baseline."""
    return Scale(1.06 * max(1.0, *(max(figure["high"], figure["bound"] or 0) for figure in figures)))


def _chart(name: str, kind: str, figures: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> str:
    scale = scale_for(figures)
    height = TOP + ROW * len(figures) + BOTTOM
    floor = height - BOTTOM
    better = "shorter is better" if kind == "time" else "longer is better"
    parts = [
        f'<svg class="plot" viewBox="0 0 {LABELS + PLOT + VALUES} {height}" role="img">',
        f"<title>{escape(name)}: ratios, {better}</title>",
    ]
    for tick in scale.ticks():
        x = scale.x(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{floor}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    for index, figure in enumerate(figures):
        parts += _bar(figure, scale, TOP + ROW * index, attempts[figure.get("attempt", -1)]["rounds"])
    one = scale.x(1)
    parts.append(f'<line class="one" x1="{one}" x2="{one}" y1="{TOP - 8}" y2="{floor}"/>')
    parts.append(f'<text class="tick strong" x="{one}" y="{TOP - 12}" text-anchor="middle">baseline</text>')
    what = "time per unit" if kind == "time" else "rate"
    parts.append(f'<text class="tick" x="0" y="{TOP - 12}">{what}, {better}</text></svg>')
    return "".join(parts)


def _bar(figure: Mapping[str, Any], scale: Scale, top: float, rounds: Mapping[str, Any]) -> Iterator[str]:
    middle = top + ROW / 2
    start, end = scale.x(0), scale.x(figure["median"])
    word = verdict(figure) or "free"
    yield from plot.label(figure["name"], middle)
    width = round(max(1, end - start), 1)
    yield f'<rect class="bar {word}" x="{start}" y="{middle - 9}" width="{width}" height="18" rx="2"/>'
    low, high = scale.x(figure["low"]), scale.x(figure["high"])
    yield f'<path class="whisker" d="M{low} {middle - 5}v10M{low} {middle}H{high}M{high} {middle - 5}v10"/>'
    for ratio in Figure(**{field: figure[field] for field in Figure._fields if field in figure}).ratios(rounds):
        yield f'<circle class="round" cx="{scale.x(ratio)}" cy="{middle}" r="2"/>'
    x = LABELS + PLOT + 12
    yield f'<text class="value" x="{x}" y="{middle + 5}">{figure["median"]:.3g}×</text>'
    if figure["bound"] is not None:
        at = scale.x(figure["bound"])
        yield f'<path class="bound" d="M{at} {middle - 15}V{middle + 15}"/>'
        yield f'<text class="tick {word}" x="{x + 58}" y="{middle + 5}">{bound_text(figure)}</text>'
