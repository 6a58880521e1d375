"""Whatever is wrong, the user's last line says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import topics.spark
from tests.api.kit import running
from tests.spark.conftest import Filled
from tests.spark.test_batch import HUNDRED, load
from topics.spark.failure import SourceError

OF_SPARK = ("SQLSTATE", "at ", "...", "Driver stacktrace:", "JVM stacktrace:")


def last_line(call: Callable[[], object]) -> str:
    """Of an error that comes out of Spark, which adds nothing but its SQLSTATE and its own stack."""
    with pytest.raises(PySparkException) as caught:
        call()
    lines = [line for line in str(caught.value).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("topics: ")]
    assert ours, caught.value
    at = lines.index(ours[0])
    assert all(line.lstrip().startswith(OF_SPARK) for line in lines[at + 1 :]), lines[at + 1 :]
    return ours[0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"topics": "nope"}, "topics: topic_not_found: {path} has no topic `nope` — "),
        ({"topics": "a", "startingsek": "1"}, "topics: unknown_option: there is no option `startingsek` — did you "),
        ({"topics": "a", "path": "/nowhere"}, "topics: no_store: /nowhere is not a data directory — "),
        ({"topics": "a", "columns": "value"}, "topics: invalid_option: columns: there is no column `value` — "),
    ],
)
def test_bad_options_are_told_inside_spark_and_by_the_helper(
    spark: SparkSession, filled: Filled, options: dict[str, str], line: str
) -> None:
    """K-15: behind Spark's traceback, and alone."""
    given = {"path": filled(a=HUNDRED), **options}
    expected = line.format(path=given["path"])
    assert last_line(lambda: load(spark, **given).count()).startswith(expected)
    with pytest.raises(SourceError) as caught:
        columns = {"columns": [given.pop("columns")]} if "columns" in given else {}
        topics.spark.read(spark, **given, **columns)  # type: ignore[arg-type]
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_servers_that_do_not_answer_or_refuse_the_key(spark: SparkSession, tmp_path: Path) -> None:
    """K-15"""
    with running(tmp_path / "store", {"TOPICS_API_KEYS": "open-sesame-123456"}) as server:
        url = server.url
        refused = last_line(lambda: load(spark, url=url, topics="a", apiKey="wrong").count())
        assert refused.startswith(f"topics: unauthorized: {url}: ")
        assert refused.endswith("— set `apiKey` or `apiKeyFile` to a key that may read these topics")
        with pytest.raises(SourceError, match=r"^topics: unauthorized: "):
            topics.spark.read(spark, url=url, topics="a", apiKey="wrong")
    assert last_line(lambda: load(spark, url=url, topics="a").count()).startswith(f"topics: unreachable: {url} ")
    with pytest.raises(SourceError, match=r"^topics: unreachable: "):
        topics.spark.read(spark, url=url, topics="a")


def test_a_damaged_segment_names_its_place_and_the_doctor(spark: SparkSession, filled: Filled) -> None:
    """K-14: raised in a task; with `emit` the rest is read."""
    path = filled(a=HUNDRED)
    (data,) = Path(path).glob("topics/*/seg-0000000000000008.data")
    raw = bytearray(data.read_bytes())
    raw[40] ^= 0x55
    data.write_bytes(bytes(raw))
    line = last_line(lambda: load(spark, path=path, topics="a").collect())
    assert line.startswith(f"topics: corrupt: a: seq 8 cannot be read: {data} at 0: the frame does not verify — ")
    assert f"run `topics doctor {path}`" in line
    frame = load(spark, path=path, topics="a", onDataLoss="emit")
    assert [tuple(row) for row in frame.where("kind = 'gap'").select("seq", "gap_to", "reason").collect()] == [
        (8, 8, "corrupt"),
    ]  # fmt: skip
    assert frame.where("kind = 'record'").count() == 99


def test_a_table_does_not_keep_a_key(spark: SparkSession) -> None:
    """K-15: its options are kept where anybody can read them."""
    line = last_line(
        lambda: spark.sql("create table leaky using topics options (url 'http://x', topics 'a', apiKey 's3cret')")
    )
    assert line == "topics: invalid_option: apiKey: a table would keep the key itself — use `apiKeyFile`"
    assert not spark.catalog.tableExists("leaky")


def test_another_schema_is_refused(spark: SparkSession, filled: Filled) -> None:
    """K-15: a schema of the user's own would be filled by position."""
    path = filled(a=HUNDRED)
    wrong = spark.read.format("topics").schema("a int").option("path", path).option("topics", "a")
    assert last_line(lambda: wrong.load().count()).startswith("topics: schema_mismatch: the schema is struct<topic:")
