"""T15: reads of a server beside seals, rewrites, moves, drops and deletes; `TOPICS_TEST_SPARK_READS` sets how many."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from topics.fs import Fs, OsFs
from topics.testing import SimFs, sparkreads
from topics.testing.sparkreads import CAPPED, DELETED, PlainReader, Reader, Seen, SparkReader, View, judge

READS = int(os.environ.get("TOPICS_TEST_SPARK_READS", "2"))


def checked(folder: Path, runs: int, reader: Reader) -> None:
    seed = random.SystemRandom().randrange(2**32)
    report = sparkreads.run(folder, seed, runs, reader)
    assert report.violations == [], f"seed {seed}"
    assert report.counts["rows"] > runs * 1000
    assert report.counts["delete"] > 0


@pytest.mark.timeout(300 + READS * 20)
def test_spark_gives_what_lived_from_its_plan_to_its_end_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """T15, K-11: rows ⊆ the diff at the plan, ⊇ that and the diff at the end; lost ones are told."""
    checked(tmp_path, READS, SparkReader(spark))


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
def test_so_do_files_and_the_server_alone(fs: Fs, tmp_path: Path) -> None:
    """T15, A-21: the same without Spark, and where no file can be reached."""
    checked(tmp_path, 2 * READS, PlainReader(fs))


ROW = (1, None, None, {"n": 1})
PLANNED: View = dict.fromkeys((1, 2, 3, 4), ROW)
BEGUN: View = dict.fromkeys((2, 3, 4), ROW)
ENDED: View = dict.fromkeys((2, 4, 5), ROW)


@pytest.mark.parametrize(
    ("topic", "records", "gaps", "said"),
    [
        (DELETED, {2: ROW, 4: ROW}, [], None),
        (DELETED, {2: ROW, 3: ROW, 4: ROW}, [], None),
        (DELETED, {1: ROW, 2: ROW, 3: ROW, 4: ROW}, [], "seq 1 was deleted before it was read"),
        (CAPPED, {1: ROW, 2: ROW, 3: ROW, 4: ROW}, [], None),
        (CAPPED, {2: ROW, 3: ROW, 4: ROW}, [(1, 1, "cap")], None),
        (DELETED, {2: ROW}, [], "seq 4 is missing"),
        (DELETED, {2: ROW, 4: ROW, 5: ROW}, [], "seq 5 was not there at the plan"),
        (DELETED, {2: ROW, 4: (1, None, "t", {"n": 1})}, [], "seq 4 is "),
        (DELETED, {2: ROW, 4: ROW}, [(3, 3, "cap")], "a gap of reason cap"),
        (CAPPED, {2: ROW, 3: ROW, 4: ROW}, [], "seq 1 is neither given nor told"),
        (CAPPED, {2: ROW, 4: ROW}, [(1, 4, "cap")], "seq 2 is told as lost and is there"),
        (CAPPED, {2: ROW, 3: ROW, 4: ROW}, [(1, 1, "corrupt")], "a gap of reason corrupt"),
    ],
)
def test_the_judge_finds_what_no_correct_read_can_give(
    topic: str, records: View, gaps: list[tuple[int, int, str]], said: str | None
) -> None:
    """The runs above can fail."""
    found = judge(topic, Seen(list(records.items()), gaps), PLANNED, BEGUN, ENDED)
    assert found == [] if said is None else any(one.startswith(f"{topic}: {said}") for one in found)
