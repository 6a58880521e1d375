"""The report: results as one HTML page with plots as inline SVG; no script, no dependency, no network.

A plot has one bar per ratio. The line at 1.0 is the baseline, whiskers reach from the lowest to the highest
round, each dot is a round, and a notch marks the bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Figure

Result = Mapping[str, Any]
TARGET = "report.html"

LABELS, PLOT, VALUES = 246, 390, 124
"""Columns of a plot: names, bars, numbers."""
ROW = 44
TOP, BOTTOM = 26, 26


def write(results: Path) -> Path:
    """Render every result in a directory into `report.html` beside it."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    target = results.parent / TARGET
    target.write_text(page(found), encoding="utf-8")
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
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>topics: benchmarks</title><style>{CSS}</style></head>\n<body><main>"
        f"<h1>Benchmarks</h1>{_where(results)}{_bounds(results)}{body}</main></body></html>\n"
    )


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
    refused = [attempt for attempt in group["attempts"] if attempt["rejected"]]
    if group["rejected"]:
        parts.append(
            f'<p class="warn">Rejected: in {len(refused)} runs the baseline varied by more than 25 %. '
            "No ratios were formed; the times below are of the last run.</p>"
        )
    else:
        for kind in ("time", "rate"):
            figures = [one for one in group["figures"] if one["kind"] == kind and one["against"] is not None]
            if figures:
                parts.append(_chart(group["name"], kind, figures, group["attempts"][-1]["rounds"]))
        alone = [_alone(figure) for figure in group["figures"] if figure["against"] is None]
        parts += [f'<p class="note">{escape(sentence)}</p>' for sentence in (*alone, *group["explain"])]
        parts += [_aim(aim) for aim in group["aims"]]
        if refused:
            parts.append(f'<p class="note">Rejected before this run for an unsteady baseline: {len(refused)}.</p>')
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
    extras = list(dict.fromkeys(name for row in arms.values() for name in row if name not in ("wall_us", "cpu_us")))
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


def _chart(name: str, kind: str, figures: Sequence[Mapping[str, Any]], rounds: Mapping[str, Any]) -> str:
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
        parts += _bar(figure, scale, TOP + ROW * index, rounds)
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
    yield from _label(figure["name"], middle)
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


def _label(text: str, middle: float) -> Iterator[str]:
    """The name of a bar, on two lines when it is long."""
    lines = wrap(text, 31)
    for index, line in enumerate(lines):
        y = middle + 5 + 16 * (index - (len(lines) - 1) / 2)
        yield f'<text class="label" x="{LABELS - 12}" y="{y:g}" text-anchor="end">{escape(line)}</text>'


def wrap(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` characters, where words allow."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2330; --soft: #5d6778; --line: #e0e4ea;
  --holds: #2f8f83; --missed: #c8553d; --free: #7b8cb0; --mark: #1c2330; --warn: #9a5b00; --warnback: #fff4e0; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161d; --card: #1a2029; --ink: #e4e8ef; --soft: #98a3b5; --line: #2c3543;
    --holds: #4bb3a5; --missed: #e37b62; --free: #6d80a8; --mark: #f2f4f8; --warn: #f0bd6a; --warnback: #33291a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 40px 20px 80px; }
h1 { font-size: 28px; letter-spacing: -.01em; margin: 0 0 4px; }
h2 { font-size: 19px; line-height: 1.35; margin: 44px 0 10px; }
h3 { font-size: 16px; margin: 0 0 10px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 20px 24px; margin: 16px 0; }
.card > h2 { margin-top: 0; }
.facts { color: var(--soft); margin: 0 0 24px; }
.note { color: var(--soft); margin: 4px 0; }
.warn { color: var(--warn); background: var(--warnback); border-radius: 6px; padding: 8px 12px; }
details { color: var(--soft); } summary { cursor: pointer; }
pre { white-space: pre-wrap; font: 13px/1.5 ui-monospace, monospace; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: 12px; font-size: 13.5px; }
th { text-align: left; font-weight: 500; color: var(--soft); }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.pill { display: inline-block; min-width: 66px; text-align: center; border-radius: 9px; padding: 0 8px;
  font-size: 12.5px; border: 1px solid; margin-left: 10px; }
.pill.holds { color: var(--holds); } .pill.missed { color: var(--missed); font-weight: 600; }
.pill.rejected { color: var(--warn); }
.plot { width: 100%; height: auto; display: block; margin: 4px 0 10px; font: 13px system-ui, sans-serif; }
.plot .label, .plot .value { fill: var(--ink); } .plot .value { font-weight: 600; }
.plot .tick { fill: var(--soft); font-size: 12px; } .plot .strong { fill: var(--ink); }
.plot .tick.missed { fill: var(--missed); font-weight: 600; } .plot .tick.holds { fill: var(--holds); }
.plot .grid { stroke: var(--line); } .plot .one { stroke: var(--ink); stroke-width: 1.2; }
.plot .bar.holds { fill: var(--holds); } .plot .bar.missed { fill: var(--missed); }
.plot .bar.free { fill: var(--free); }
.plot .bar { opacity: .8; } .plot .whisker { stroke: var(--mark); stroke-width: 1.2; fill: none; }
.plot .round { fill: var(--mark); opacity: .45; }
.plot .bound { stroke: var(--mark); stroke-width: 2.5; stroke-dasharray: 4 2; }
"""
