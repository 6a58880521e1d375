"""The pages are true: links lead somewhere, figures are measured. What they tell people to type: tests/pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from bench import tables
from tests.tidy import checks
from topics.model import GapReason

PAGES = sorted([*checks.ROOT.glob("*.md"), *(checks.ROOT / "docs").rglob("*.md"), *(checks.ROOT / "src").rglob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=checks.relative)
def test_every_link_of_a_page_resolves(path: Path) -> None:
    assert checks.broken_links(path.read_text(encoding="utf-8"), path) == []


def test_the_tables_of_the_pages_are_made_of_the_stored_runs() -> None:
    """[P-1] Each stored figure is on the page of figures, and nothing else is; `python -m bench keep` renews them."""
    results = tables.stored()
    assert results
    assert not any(result["quick"] for result in results.values())
    page, readme = (path.read_text(encoding="utf-8") for path in (tables.PAGE, tables.README))
    assert tables.page(page, results, tables.soaked()) == page
    assert tables.readme(readme, results) == readme


@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/guides/deletes.md"])
def test_the_pages_about_gaps_have_every_reason(page: str) -> None:
    """01 §10"""
    text = (checks.ROOT / page).read_text(encoding="utf-8")
    assert [reason for reason in get_args(GapReason) if f"`{reason}`" not in text] == []


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    here = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One two\n")
    good = "[a](other.md) [b](other.md#one-two) [c](https://example.org) [d](#mine)\n\n## Mine\n"
    here.write_text(good)
    assert checks.broken_links(good, here) == []
    assert checks.broken_links("[a](gone.md)", here) == ["page.md: broken link: gone.md"]
    assert checks.broken_links("[a](other.md#three)", here) == ["page.md: no such heading: other.md#three"]


def test_every_page_of_the_documentation_is_in_its_table_of_contents() -> None:
    """[U-41] A page that nobody can find is no page; `make docs` would refuse it."""
    nav = (checks.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(checks.ROOT / "docs").as_posix() for path in (checks.ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[ :]{re.escape(page)}$", nav, re.MULTILINE)] == []
