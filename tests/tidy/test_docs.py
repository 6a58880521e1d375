"""The pages are true: links lead somewhere, figures are measured. What they tell people to type: tests/pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tidy import checks

PAGES = sorted([*checks.ROOT.glob("*.md"), *(checks.ROOT / "docs").rglob("*.md"), *(checks.ROOT / "src").rglob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=checks.relative)
def test_every_link_of_a_page_resolves(path: Path) -> None:
    assert checks.broken_links(path.read_text(encoding="utf-8"), path) == []


def test_the_figures_of_the_performance_page_are_those_of_the_stored_run() -> None:
    """[P-1] Each row has a measured figure, and each measured figure has a row."""
    stored = set()
    for path in (checks.ROOT / "docs/data").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert not result["quick"], path
        figures = [one for group in result["groups"] for one in group["figures"] if "median" in one]
        stored |= {tuple(f"{one[key]:.3g}" for key in ("median", "low", "high")) for one in figures}
    text = (checks.ROOT / "docs/performance.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\| ([\d.]+)×? \| ([\d.]+) – ([\d.]+) \|", text))
    assert told == stored


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    here = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One two\n")
    good = "[a](other.md) [b](other.md#one-two) [c](https://example.org) [d](#mine)\n\n## Mine\n"
    here.write_text(good)
    assert checks.broken_links(good, here) == []
    assert checks.broken_links("[a](gone.md)", here) == ["page.md: broken link: gone.md"]
    assert checks.broken_links("[a](other.md#three)", here) == ["page.md: no such heading: other.md#three"]
