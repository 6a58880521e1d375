"""The pages with Spark in them: every block, in the session that is there, as `session()` gives it [U-41]."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pages import kit
from tests.pages.test_pages import SPARK, needs_tools
from tests.tidy import checks


@needs_tools
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SPARK)
def test_a_reader_can_do_what_the_page_says(
    spark: SparkSession, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U-41] A job of a page runs in this process: each would start a Java machine of its own."""
    monkeypatch.chdir(tmp_path)
    assert kit.walk(checks.ROOT / page, tmp_path, here="pipeline", sql=spark.sql) >= 3
