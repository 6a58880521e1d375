"""The pages are true: links lead somewhere and every Python block runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tidy import checks

PAGES = sorted([*checks.ROOT.glob("*.md"), *(checks.ROOT / "docs").rglob("*.md"), *(checks.ROOT / "src").rglob("*.md")])
RUN = [path for path in PAGES if path.name == "README.md" or "docs" in path.relative_to(checks.ROOT).parts]


@pytest.mark.parametrize("path", PAGES, ids=checks.relative)
def test_every_link_of_a_page_resolves(path: Path) -> None:
    assert checks.broken_links(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize("path", RUN, ids=checks.relative)
def test_every_python_block_of_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[U-41] In order, in one namespace, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    checks.run_blocks(path.read_text(encoding="utf-8"), checks.relative(path))


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


def page(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_blocks_share_a_namespace_and_a_failing_one_names_its_line() -> None:
    good = page("```python", "x = 1", "```", "text", "```python", "assert x == 1", "```")
    assert checks.run_blocks(good, "good.md") == 2
    with pytest.raises(ZeroDivisionError) as caught:
        checks.run_blocks(page("# Title", "", "```python", "1 / 0", "```"), "bad.md")
    assert caught.traceback[-1].lineno + 1 == 4


def test_a_block_is_exempt_only_with_a_reason_right_before_it() -> None:
    broken = ("```python", "1 / 0", "```")
    assert checks.run_blocks(page("<!-- not run: needs a server -->", *broken), "x.md") == 0
    assert checks.run_blocks(page("<!-- not run: needs a server -->", "", *broken), "x.md") == 0
    with pytest.raises(ZeroDivisionError):
        checks.run_blocks(page("<!-- not run: needs a server -->", "other text", *broken), "x.md")
    with pytest.raises(ZeroDivisionError):
        checks.run_blocks(page("<!-- not run -->", *broken), "x.md")


def test_other_languages_and_indented_blocks_are_read_correctly() -> None:
    assert checks.run_blocks(page("```sh", "exit 1", "```"), "x.md") == 0
    assert checks.run_blocks(page("- item", "", "  ```python", "  y = 2", "  ```"), "x.md") == 1


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    here = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One two\n")
    good = "[a](other.md) [b](other.md#one-two) [c](https://example.org) [d](#mine)\n\n## Mine\n"
    here.write_text(good)
    assert checks.broken_links(good, here) == []
    assert checks.broken_links("[a](gone.md)", here) == ["page.md: broken link: gone.md"]
    assert checks.broken_links("[a](other.md#three)", here) == ["page.md: no such heading: other.md#three"]
