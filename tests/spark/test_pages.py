"""The pages with Spark in them: every block, in the session that is there, as `session()` gives it [U-41]."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
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
    """[U-41] A job of a page runs in this process: each would start a Java machine of its own.

    Spark gives the process of a source ten seconds to connect, however busy the machine is: the page is walked again.
    """
    for left in reversed(range(5)):
        folder = tmp_path / f"{left}-left"
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            assert kit.walk(checks.ROOT / page, folder, here="pipeline", sql=spark.sql) >= 3
            return
        except StreamingQueryException as error:
            if not left or "connect back" not in str(error):
                raise
