"""Plots as inline SVG and the page around them: no script, no dependency, no network.

    bars    quantities, one bar each, with whiskers from the lowest to the highest of what was seen
    lines   curves over one axis, each with its name; the other axis begins at 0
    page    a document that holds them, light and dark

Any thread; text in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

LABELS: Final = 246
PLOT: Final = 390
VALUES: Final = 124
"""Columns of bars: names, bars, numbers."""
ROW: Final = 34
TOP: Final = 26
BOTTOM: Final = 26
LEFT: Final = 64
WIDE: Final = 690
HIGH: Final = 220
COLOURS: Final = 6


class Bar(NamedTuple):
    """A quantity, and between what it lay."""

    name: str
    value: float
    low: float
    high: float
    kind: str = "free"
    """`ours` stands out."""


class Scale(NamedTuple):
    """From a quantity to a place."""

    top: float
    start: float
    length: float

    def at(self, value: float) -> float:
        """Pixels from the edge where the axis begins."""
        return round(self.start + self.length * min(max(value / self.top, 0.0), 1.0), 1)

    def ticks(self) -> list[float]:
        """Round numbers, about five."""
        step = next(s for s in _steps() if self.top / s <= 6)
        return [step * n for n in range(int(self.top / step + 1e-9) + 1)]


def _steps() -> Iterator[float]:
    for power in range(-6, 16):
        yield from (one * 10.0**power for one in (1, 2, 2.5, 5))


def number(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bars(title: str, rows: Sequence[Bar], unit: str, better: str) -> str:
    """One bar for each; `better` is `longer` or `shorter`."""
    scale = Scale(1.06 * max((*(row.high for row in rows), 1e-9)), LABELS, PLOT)
    height = TOP + ROW * len(rows) + BOTTOM
    floor = height - BOTTOM
    parts = [
        f'<svg class="plot" viewBox="0 0 {LABELS + PLOT + VALUES} {height}" role="img">',
        f"<title>{escape(title)}: {escape(unit)}, {better} is better</title>",
    ]
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{floor}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{floor + 16}" text-anchor="middle">{number(tick)}</text>')
    for index, row in enumerate(rows):
        parts += _bar(row, scale, TOP + ROW * (index + 0.5))
    parts.append(f'<text class="tick" x="0" y="{TOP - 12}">{escape(unit)}, {better} is better</text></svg>')
    return "".join(parts)


def _bar(row: Bar, scale: Scale, middle: float) -> Iterator[str]:
    yield from label(row.name, middle)
    start, end = scale.at(0), scale.at(row.value)
    width = round(max(1, end - start), 1)
    yield f'<rect class="bar {row.kind}" x="{start}" y="{middle - 8}" width="{width}" height="16" rx="2"/>'
    low, high = scale.at(row.low), scale.at(row.high)
    yield f'<path class="whisker" d="M{low} {middle - 4}v8M{low} {middle}H{high}M{high} {middle - 4}v8"/>'
    yield f'<text class="value" x="{LABELS + PLOT + 12}" y="{middle + 5}">{number(row.value)}</text>'


def label(text: str, middle: float) -> Iterator[str]:
    """The name of a bar, on two lines when it is long."""
    found = wrap(text, 31)
    for index, line in enumerate(found):
        y = middle + 5 + 16 * (index - (len(found) - 1) / 2)
        yield f'<text class="label" x="{LABELS - 12}" y="{y:g}" text-anchor="end">{escape(line)}</text>'


def wrap(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` characters, where words allow."""
    found = [""]
    for word in text.split():
        if found[-1] and len(found[-1]) + 1 + len(word) > width:
            found.append(word)
        else:
            found[-1] = f"{found[-1]} {word}".strip()
    return found


Points = Sequence[tuple[float, float]]


def lines(
    title: str, curves: Mapping[str, Points], x_unit: str, y_unit: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Curves from left to right; `marks` name places of the lower axis instead of numbers."""
    points = [point for curve in curves.values() for point in curve]
    across = Scale(max((*(x for x, _ in points), 1e-9)), LEFT, WIDE - LEFT - 20)
    up = Scale(1.06 * max((*(y for _, y in points), 1e-9)), 0, HIGH)
    floor = TOP + HIGH
    rows = -(-len(curves) // 3)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDE} {floor + 46 + 20 * rows}" role="img">',
        f"<title>{escape(title)}: {escape(y_unit)} over {escape(x_unit)}</title>",
        f'<text class="tick" x="0" y="{TOP - 12}">{escape(y_unit)}</text>',
        f'<text class="tick" x="{WIDE - 20}" y="{floor + 36}" text-anchor="end">{escape(x_unit)}</text>',
    ]
    for tick in up.ticks():
        y = floor - up.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - 20}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{number(tick)}</text>')
    for place, text in marks or [(tick, number(tick)) for tick in across.ticks()]:
        parts.append(f'<text class="tick" x="{across.at(place)}" y="{floor + 16}" text-anchor="middle">{text}</text>')
    for index, (name, curve) in enumerate(curves.items()):
        parts += _curve(name, curve, index, across, up, floor)
    return "".join(parts) + "</svg>"


def _curve(name: str, curve: Points, index: int, across: Scale, up: Scale, floor: float) -> Iterator[str]:
    colour = f"c{index % COLOURS}"
    steps = " ".join(f"{across.at(x)},{round(floor - up.at(y), 1)}" for x, y in curve)
    yield f'<polyline class="line {colour}" points="{steps}"/>'
    if len(curve) <= 12:
        for x, y in curve:
            yield f'<circle class="dot {colour}" cx="{across.at(x)}" cy="{round(floor - up.at(y), 1)}" r="2.5"/>'
    x, y = LEFT + (index % 3) * 205, floor + 58 + 20 * (index // 3)
    yield f'<line class="line {colour}" x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}"/>'
    yield f'<text class="tick" x="{x + 24}" y="{y}">{escape(name)}</text>'


def thinned(curve: Points, most: int = 400) -> list[tuple[float, float]]:
    """At most so many points: the highest of each stretch, so that no peak is lost."""
    if len(curve) <= most:
        return list(curve)
    edges = [len(curve) * n // most for n in range(most + 1)]
    return [max(curve[low:high], key=lambda point: point[1]) for low, high in pairwise(edges)]


def page(title: str, body: str) -> str:
    """The whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


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
.plot .bar.ours { fill: var(--holds); }
.plot .line { fill: none; stroke-width: 2; } .plot .c0 { stroke: #2f8f83; } .plot .c1 { stroke: #c8553d; }
.plot .c2 { stroke: #6d80c8; } .plot .c3 { stroke: #c29a2e; } .plot .c4 { stroke: #9a5bb0; }
.plot .c5 { stroke: #7d8794; } .plot .dot { fill: var(--card); stroke-width: 2; }
"""
