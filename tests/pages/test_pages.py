"""What README and documentation tell people to type works: every block of every page, in order [U-41].

Pages with Spark in them are walked through by tests/spark/test_pages.py, which has a session.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pages import kit
from tests.tidy import checks

SPARK = ("README.md", "docs/guides/spark.md", "docs/guides/pipelines.md")
PAGES = [checks.ROOT / "README.md", *sorted((checks.ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [path for path in PAGES if list(checks.blocks(path.read_text(encoding="utf-8")))]
HERE = [path for path in WITH_BLOCKS if checks.relative(path) not in SPARK]

needs_tools = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("curl") is None, reason="needs bash and curl"
)


@needs_tools
@pytest.mark.parametrize("path", HERE, ids=checks.relative)
def test_a_reader_can_do_what_the_page_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[U-41]"""
    monkeypatch.chdir(tmp_path)
    kit.walk(path, tmp_path)


@pytest.mark.parametrize("path", PAGES, ids=checks.relative)
def test_a_block_that_is_not_run_has_a_reason(path: Path) -> None:
    """[U-41]"""
    assert kit.bad_marks(path.read_text(encoding="utf-8")) == []


def test_few_blocks_are_not_run() -> None:
    """[U-41] An exception is for what a test cannot do, not for what is hard."""
    found = [block for path in PAGES for block in checks.blocks(path.read_text(encoding="utf-8"))]
    runnable = [block for block in found if block.language in ("python", *kit.SHELL)]
    assert len([block for block in runnable if block.mark == "not run"]) * 5 < len(runnable)
