"""The pages are true: links lead somewhere, figures are measured. What they tell people to type: tests/pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import tables
from tests.tidy import checks

PAGES = sorted([*checks.ROOT.glob("*.md"), *(checks.ROOT / "docs").rglob("*.md"), *(checks.ROOT / "src").rglob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=checks.relative)
def test_every_link_of_a_page_resolves(path: Path) -> None:
    assert checks.broken_links(path.read_text(encoding="utf-8"), path) == []


def test_the_tables_of_the_pages_are_made_of_the_stored_runs() -> None:
    """[P-1] Each stored figure is on the page of figures, and nothing else is; `python -m bench keep` renews them."""
    results = tables.stored()
    assert results
    assert not any(result["quick"] for result in results.values())
    for path, make in ((tables.PAGE, tables.page), (tables.README, tables.readme)):
        text = path.read_text(encoding="utf-8")
        assert make(text, results) == text, checks.relative(path)
