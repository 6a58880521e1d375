"""The blocks of the guide run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.tidy import checks


def test_every_block_of_the_guide_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U-41: in the session that is there, as `session()` gives it."""
    monkeypatch.chdir(tmp_path)
    text = (checks.ROOT / "docs/guides/spark.md").read_text(encoding="utf-8")
    marked = "<!-- not run: tests/spark runs the blocks of this page in its own session -->\n"
    blocks = text.count("```python")
    assert text.count(marked) == blocks
    text = text.replace(marked, "").replace("./topics-data", str(tmp_path / "topics-data"))
    assert checks.run_blocks(text, "docs/guides/spark.md") == blocks
