"""What `verify-export` concludes from what its tasks told, without Spark (10 K-48)."""

from __future__ import annotations

from typing import Any

from topics.spark.jobs.place import Instance
from topics.spark.jobs.rows import Proof
from topics.spark.jobs.verify import Archived, Log, _compared, _extra

KNOWN = {"1-1": Instance("a", 1, 1, 20, queue=False)}


def told(rows: int, path: str = "", key: str = "1-1") -> dict[str, Any]:
    """What a task says of a file whose rows all have the hash 1."""
    hash = f"{rows:016x}"
    return {"path": path, "key": key, "rows": rows, "hash": hash, "kept_rows": rows, "kept_hash": hash}


def log(**proofs: int) -> Log:
    """A log without gaps; how many records it has in the ranges that begin at these seqs."""
    return Log({("1-1", int(first[1:])): Proof(rows, rows) for first, rows in proofs.items()}, {"1-1": []}, {})


def test_ranges_that_follow_each_other_are_proven() -> None:
    """K-48"""
    ranges = [Archived("1-1", 1, 10, Proof(10, 10), "x"), Archived("1-1", 11, 20, Proof(10, 10), "y")]
    found = _compared(ranges, KNOWN, log(_1=10, _11=10), [told(10, "x"), told(10, "y")])
    assert [one["proven"] for one in found] == ["log", "log"]


def test_ranges_of_an_instance_that_share_seqs_differ() -> None:
    """K-48, K-42: each of them is as the log has it, and the table has its rows twice."""
    ranges = [
        Archived("1-1", 1, 20, Proof(20, 20), "x"), Archived("1-1", 1, 20, Proof(20, 20), "y"),
        Archived("2-2", 1, 20, Proof(20, 20), "z"), Archived("2-2", 20, 30, Proof(11, 11), "zz"),
    ]  # fmt: skip
    table = [told(20, "x"), told(20, "y"), told(20, "z", "2-2"), told(11, "zz", "2-2")]
    found = _compared(ranges, KNOWN, log(_1=20), table)
    assert [one["proven"] for one in found] == ["log", "differs", "manifest", "differs"]
    assert found[1]["why"] == "seqs 1 to 20 are in another range, too"
    assert found[3]["why"] == "seqs 20 to 20 are in another range, too"


def test_rows_of_an_instance_that_nobody_archived_differ() -> None:
    """K-48: a table without manifests has one range per topic; rows outside of them are extra, however they look."""
    ranges, table = [Archived("1-1", 1, 20, None)], [told(20, "x"), told(1, "x", "99-1"), told(2, "y", "99-1")]
    assert [one["proven"] for one in _compared(ranges, KNOWN, log(_1=20), table)] == ["log"]
    why = "3 rows of the table are in no range"
    assert _extra(ranges, {"1-1": 20}, table) == [{"key": "99-1", "proven": "differs", "why": why}]
    assert [one["proven"] for one in _extra(ranges, {"1-1": 20, "99-1": 5}, table)] == ["manifest"]
    unread = {"path": "z", "key": "", "rows": 0, "bytes": 0, "why": "the file is missing"}
    assert _extra(ranges, {"1-1": 20}, [told(20, "x"), unread]) == []
