"""Reports as one HTML page: tables and plots, nothing loaded from anywhere, every value escaped [U-31].

Plots are SVG, drawn here: bars over time and bars side by side are all that reports need. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 140
ROW: Final = 20
_STYLE: Final = """
:root { color-scheme: light dark; --bar: #3b7dd8; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
th { border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; max-width: 100%; height: auto; } svg rect { fill: var(--bar); } svg text { fill: currentColor;
font-size: 11px; } .ok { color: #2a8a43; } .bad { color: #c33; } figcaption { font-size: 13px; opacity: .75; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, *parts: str) -> str:
    """A whole page of parts that are HTML already."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style>'
    )
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{escape(kind)}">{escape(text)}</p>'


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers stand to the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="n">{_number(value)}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def columns(caption: str, values: Sequence[float], first: str, last: str) -> str:
    """Values over time, from left to right."""
    top = max([*values, 0]) or 1
    step = WIDTH / max(len(values), 1)
    bars = "".join(
        f'<rect x="{at * step:.1f}" y="{HEIGHT - HEIGHT * value / top:.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{HEIGHT * value / top:.1f}"/>'
        for at, value in enumerate(values)
    )
    labels = (
        f'<text x="0" y="{HEIGHT + 14}">{escape(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{escape(last)}</text>'
    )
    return _figure(f"{caption}; highest: {_number(round(top, 2))}", HEIGHT + 18, bars + labels)


def rows(caption: str, values: Sequence[tuple[str, float]]) -> str:
    """Named values, one below the other."""
    top = max((value for _, value in values), default=0) or 1
    bars = "".join(
        f'<text x="0" y="{at * ROW + 14}">{escape(name[:32])}</text>'
        f'<rect x="220" y="{at * ROW + 3}" width="{(WIDTH - 320) * value / top:.1f}" height="{ROW - 6}"/>'
        f'<text x="{226 + (WIDTH - 320) * value / top:.1f}" y="{at * ROW + 14}">{_number(value)}</text>'
        for at, (name, value) in enumerate(values)
    )
    return _figure(caption, max(len(values), 1) * ROW, bars)


def _figure(caption: str, height: int, inside: str) -> str:
    label = escape(caption)
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="{label}">{inside}</svg>'
    return f"<figure>{drawing}<figcaption>{label}</figcaption></figure>"
