"""`topics pipeline archive` and `verify-export`: real Spark, real stores, real tables (10 §5)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.api.kit import running
from tests.spark.conftest import AWS_KEYS
from tests.tiers.servers import BUCKET, Moto, S3Server
from topics.clock import SystemClock
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.failure import SourceError
from topics.spark.jobs import archive, delta, lake, parquet, stats, verify
from topics.spark.jobs.erase import Erasures
from topics.spark.jobs.place import Place
from topics.spark.jobs.work import Work, carry_out
from topics.storage.tiers.bucket import Bucket
from topics.testing import ManualClock

FORMATS = ("parquet", "delta", "iceberg")
CONFIG = EngineConfig(segment_max_events=10, wal_file_bytes=1 << 20)


class Bench:
    """A store, a table, and jobs between them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.store = str(root / "store")
        self.out = str(root / "lake")
        self.place = Place(path=self.store)

    def engine(self) -> Engine:
        return Engine.open(self.store, CONFIG)

    def fill(self, topic: str, start: int, end: int, **config: Any) -> None:
        with self.engine() as engine:
            engine.put_topic(topic, {"durability": "fsync", **config})
            engine.append(topic, [record(n) for n in range(start, end)])

    def delete(self, topic: str, **what: Any) -> None:
        with self.engine() as engine:
            engine.delete(topic, **what)
            engine.tick()

    def work(self, job: str, topics: tuple[str, ...] = (), **options: Any) -> Work:
        return Work(job, self.place, topics, self.out, spark=self.spark, options=options)

    def archive(self, *topics: str, **options: Any) -> dict[str, Any]:
        return carry_out(self.work("archive", topics, **options), archive)

    def verify(self) -> dict[str, Any]:
        return carry_out(self.work("verify-export"), verify)

    def rows(self, format: str = "parquet") -> list[dict[str, Any]]:
        """What the tools of each format read."""
        if format == "delta":
            table = DeltaTable(self.out).to_pyarrow_table()
        elif format == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog(
                "topics", uri=f"sqlite:///{self.out}/_topics/catalog.db", warehouse=f"file://{self.out}"
            )
            table = catalog.load_table("lake.topics").scan().to_arrow()
        else:
            return duck(f"select * from read_parquet('{self.out}/topic=*/*/*.parquet', hive_partitioning = true)")
        rows: list[dict[str, Any]] = table.sort_by([("topic", "ascending"), ("seq", "ascending")]).to_pylist()
        return rows


def duck(query: str) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute(f"{query} order by topic, seq")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def record(n: int) -> dict[str, Any]:
    one: dict[str, Any] = {"data": {"n": n, "text": "é" * (n % 5)}}
    if n % 2:
        one["tag"] = f"user:{n % 4}"
    if n % 3 == 0:
        one["node"] = "dock-7"
    if n % 5 == 0:
        one["meta"] = {"n": n}
    return one


def seqs(rows: list[dict[str, Any]], topic: str = "a") -> list[int]:
    return [row["seq"] for row in rows if row["topic"] == topic]


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_runs_archive_every_record_once_and_deletes_reach_the_table(bench: Bench, format: str) -> None:
    """K-42…K-48: run, run again, new records, deletes; the table is the log, and the tools of the field read it."""
    bench.fill("a", 1, 36)
    bench.fill("b:c", 1, 21)
    first = bench.archive(format=format)
    assert (first["ok"], first["rows"], first["done"]) == (True, 50, {"1-1": 30, "2-2": 20})
    again = bench.archive()
    assert (again["ok"], again["rows"], again["files"]) == (True, 0, 0)
    bench.fill("a", 36, 41)
    assert bench.archive()["rows"] == 10
    rows = bench.rows(format)
    assert seqs(rows) == list(range(1, 41))
    assert seqs(rows, "b:c") == list(range(1, 21))
    told = {name: rows[14][name] for name in ("topic", "topic_id", "epoch", "seq", "node", "tag", "data", "meta")}
    assert told == {
        "topic": "a", "topic_id": 1, "epoch": 1, "seq": 15, "node": "dock-7", "tag": "user:3",
        "data": '{"n":15,"text":""}', "meta": '{"n":15}',
    }  # fmt: skip
    assert rows[0]["ts"].date() == rows[0]["date"]

    bench.delete("a", match=["tag", "Eq", "user:1"])
    bench.delete("b:c", before_seq=6)
    pending = bench.verify()
    assert (pending["ok"], pending["pending_deletes"]) == (True, 15)
    erased = bench.archive()
    assert (erased["rows"], erased["erased"]) == (0, 15)
    rows = bench.rows(format)
    assert seqs(rows) == [n for n in range(1, 41) if n % 4 != 1]
    assert seqs(rows, "b:c") == list(range(6, 21))
    proven = bench.verify()
    assert (proven["ok"], proven["pending_deletes"], proven["ranges"]["differs"]) == (True, 0, 0)
    assert proven["ranges"]["log"] > 0
    assert bench.archive()["erased"] == 0


def test_a_topic_that_is_named_twice_is_archived_once(bench: Bench) -> None:
    """K-40, K-42: and a table that has it twice, each file as its manifest says, is no proof [K-48]."""
    bench.fill("a", 1, 31)
    assert bench.archive("a", "a")["rows"] == 30
    assert seqs(bench.rows()) == list(range(1, 31))
    assert bench.verify()["ok"]

    manifest = Path(bench.out) / "_topics/manifest-0000000000000001.json"
    body = json.loads(manifest.read_text())
    for one in list(body["add"]):
        again = one["path"].replace("part-", "again-")
        (Path(bench.out) / again).write_bytes((Path(bench.out) / one["path"]).read_bytes())
        body["add"].append({**one, "path": again})
    manifest.write_text(json.dumps(body))
    told = bench.verify()
    assert (told["status"], told["ranges"]["differs"]) == (1, len(body["add"]) // 2)


def test_a_prefix_single_seqs_and_a_deleted_topic_reach_the_table(bench: Bench) -> None:
    """K-47: by prefix, by seq; a topic made anew is another instance. Rows of a deleted topic stay only on request."""
    bench.fill("a", 1, 31)
    bench.fill("gone", 1, 11)
    bench.archive()
    bench.delete("a", match=["tag", "Glob", "user:*"], before_seq=12)
    bench.delete("a", seqs=[20, 22])
    with bench.engine() as engine:
        engine.delete_topic("gone")
    bench.fill("gone", 100, 121)
    assert bench.archive(keep_dropped=True)["erased"] == 8
    left = [n for n in range(1, 31) if not (n % 2 and n < 12) and n not in (20, 22)]
    assert seqs(bench.rows()) == left
    assert seqs(bench.rows(), "gone") == sorted([*range(1, 11), *range(1, 21)])
    assert bench.verify()["ok"]


def test_deleting_a_topic_takes_its_rows(bench: Bench) -> None:
    """K-47, A-20: a topic delete is a delete of all its records."""
    bench.fill("a", 1, 31)
    bench.fill("gone", 1, 11)
    bench.archive()
    with bench.engine() as engine:
        engine.delete_topic("gone")
    assert bench.archive()["erased"] == 10
    assert seqs(bench.rows(), "gone") == []
    assert bench.verify()["ok"]


class Killed(BaseException):
    """The end of a process, as far as the table can tell."""


STEPS = ("replace_file", "link", "rename", "unlink")


def dying(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let the process end at this step of a commit, and whatever it would tidy up afterwards not happen."""

    def die(*args: object, **more: object) -> None:
        raise Killed(step)

    if step == "replace_file":
        monkeypatch.setattr(parquet, "replace_file", die)
    else:
        monkeypatch.setattr(parquet.os, step, die)
    monkeypatch.setattr(lake, "_settle", lambda *args: None)


@pytest.mark.parametrize("step", ["replace_file", "link", "rename"])
def test_a_run_that_dies_anywhere_in_its_commit_is_made_good_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """K-44: before the commit point nothing counts, behind it everything; nothing is left behind, nothing doubled."""
    bench.fill("a", 1, 31)
    with monkeypatch.context() as patched:
        dying(patched, step)
        with pytest.raises(Killed):
            bench.archive()
    told = bench.archive()
    assert told["rows"] == (0 if step == "rename" else 30)
    assert seqs(bench.rows()) == list(range(1, 31))
    assert os.listdir(f"{bench.out}/_topics/staging") == []
    assert bench.verify()["ranges"] == {"log": 2, "manifest": 0, "differs": 0}


@pytest.mark.parametrize("step", ["link", "unlink", "rename"])
def test_a_run_that_dies_while_it_erases_is_made_good_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """K-44, K-47: rows are never doubled, and deleted ones are gone."""
    bench.fill("a", 1, 31)
    bench.archive()
    bench.delete("a", match="user:1")
    with monkeypatch.context() as patched:
        dying(patched, step)
        with pytest.raises(Killed):
            bench.archive()
    bench.archive()
    assert seqs(bench.rows()) == [n for n in range(1, 31) if n % 4 != 1]
    assert bench.verify()["ok"]


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_amidst_its_tasks_is_made_good_by_the_next(bench: Bench) -> None:
    """K-44: SIGKILL of the driver, and of Java, once the first file is written and others are not; lake == log."""
    bench.fill("a", 1, 301)
    command = [sys.executable, "-m", "topics", "pipeline", "archive", "--path", bench.store, "--out", bench.out]
    command += ["--master", "local[2]", "--partition-bytes", "1", "--quiet"]
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not list(Path(bench.out).glob("_topics/staging/*/part-*.parquet")):
            assert driver.poll() is None, "it ended before anything was written"
            threading.Event().wait(0.005)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    committed = bool(list(Path(bench.out).glob("_topics/manifest-*")))  # where the machine was slow to kill it
    assert bench.archive()["rows"] == (0 if committed else 300)
    assert seqs(bench.rows()) == list(range(1, 301))
    told = bench.verify()
    assert (told["ok"], told["ranges"]["manifest"], told["ranges"]["differs"]) == (True, 0, 0)
    assert bench.archive()["rows"] == 0


def beside(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Behind this step of the first run something else happens, other runs among it."""
    right, waiting = getattr(archive, step), [act]

    def raced(*args: Any) -> Any:
        told = right(*args)
        if waiting:
            waiting.pop()()
        return told

    monkeypatch.setattr(archive, step, raced)


@pytest.mark.parametrize("format", FORMATS)
def test_of_two_runs_at_a_time_one_wins_and_the_other_starts_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """K-44…K-46: both read the same range; its rows are in the table once."""
    bench.fill("a", 1, 31)

    def other() -> None:
        assert bench.archive(format=format)["rows"] == 30

    beside(monkeypatch, "_written", other)
    assert bench.archive(format=format)["rows"] == 0
    assert seqs(bench.rows(format)) == list(range(1, 31))
    assert bench.verify()["ok"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_record_that_is_deleted_while_a_run_writes_it_does_not_stay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """K-47: another run has applied the delete, to a table that did not have the row yet; nobody would do it again."""
    bench.fill("a", 1, 31)
    bench.fill("b", 1, 11)
    bench.archive(format=format)
    bench.fill("a", 31, 61)

    def other() -> None:
        bench.delete("a", seqs=[50])
        assert bench.archive("b")["deletes"] == 1

    beside(monkeypatch, "_written", other)
    assert bench.archive()["rows"] == 29
    assert seqs(bench.rows(format)) == [n for n in range(1, 61) if n != 50]
    assert bench.verify()["ok"]


def test_a_run_that_loses_one_of_its_topics_tells_of_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-40, K-45: in Delta each topic is a commit; what was added before a race was lost is added, gaps included."""
    bench.fill("a", 1, 31)
    bench.fill("b", 1, 11)
    bench.archive(format="delta")
    bench.fill("a", 31, 81, cap_records=20)
    bench.fill("b", 11, 21)
    commit = delta.DeltaLake._commit
    runs: list[str] = []

    def raced(self: delta.DeltaLake, key: str, *args: Any) -> None:
        runs.append(key)
        if runs == ["1-1", "2-2"]:
            assert bench.archive("b")["rows"] == 10
        commit(self, key, *args)

    monkeypatch.setattr(delta.DeltaLake, "_commit", raced)
    told = bench.archive()
    assert (told["status"], told["rows"]) == (3, 20)
    assert told["gaps"] == [{"topic": "a", "first": 31, "last": 60, "reason": "cap"}]
    assert len(DeltaTable(bench.out).file_uris()) == len(list(Path(bench.out).glob("topic=*/*/*.parquet")))
    assert bench.verify()["ok"]


def killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies behind its commit: its files are still in staging."""
    with monkeypatch.context() as patched:
        dying(patched, "rename")
        with pytest.raises(Killed):
            bench.archive()


def test_a_run_that_tidies_up_behind_another_does_not_take_its_commit_for_what_was_planned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-44: both read the same range, and the other one was killed when it had committed it."""
    bench.fill("a", 1, 31)
    beside(monkeypatch, "_ranges", lambda: killed(bench, monkeypatch))
    assert bench.archive()["rows"] == 0
    assert seqs(bench.rows()) == list(range(1, 31))
    assert bench.verify()["ok"]


def test_rows_of_a_run_that_was_killed_are_looked_through_for_deletes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-44, K-47: they came while the deletes were read."""
    bench.fill("a", 1, 31)
    bench.archive()
    table = lake.open_lake(OsFs(), bench.out, lake.Shape("parquet", None))
    table.refresh()
    bench.fill("a", 31, 61)
    killed(bench, monkeypatch)
    erasures = Erasures()
    erasures.add({"id": 1, "epoch": 1, "seqs": [50]})
    assert table.erase(bench.work("archive"), erasures, 1) == 1
    assert seqs(bench.rows()) == [n for n in range(1, 61) if n != 50]


Tamper = Callable[[pa.Table], pa.Table]


def changed(rows: pa.Table) -> pa.Table:
    data = rows.column("data").to_pylist()
    data[3] = data[3].replace("4", "5")
    return rows.set_column(rows.schema.get_field_index("data"), "data", pa.array(data))


TAMPERED: dict[str, Tamper] = {
    "changed": changed,
    "missing": lambda rows: rows.filter(pc.not_equal(rows.column("seq"), 4)),
    "extra": lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_one_row_that_is_not_as_it_was_is_detected(bench: Bench, how: str) -> None:
    """K-48: changed, missing, extra; against the manifest, and against the log where the manifest is made to fit."""
    bench.fill("a", 1, 31)
    bench.archive()
    path = sorted(Path(bench.out).glob("topic=a/*/*.parquet"))[0]
    pq.write_table(TAMPERED[how](pq.ParquetFile(path).read()), path)
    told = bench.verify()
    assert (told["ok"], told["status"], told["ranges"]["differs"]) == (False, 1, 1)
    assert "the manifest" in told["differing"][0]["why"]

    manifest = Path(bench.out) / "_topics/manifest-0000000000000001.json"
    body = json.loads(manifest.read_text())
    proof = parquet.prove(pq.ParquetFile(path).read())
    entry = next(one for one in body["add"] if path.name in one["path"])
    entry |= {"rows": proof.rows, "hash": f"{proof.hash:016x}"}
    manifest.write_text(json.dumps(body))
    told = bench.verify()
    assert (told["ok"], told["ranges"]["differs"]) == (False, 1)
    assert "the log" in told["differing"][0]["why"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_of_an_instance_that_was_never_archived_is_detected(bench: Bench, format: str) -> None:
    """K-48: one row of the table once more, as another topic's."""
    bench.fill("a", 1, 31)
    bench.archive(format=format)
    assert bench.verify()["ok"]
    path = sorted(Path(bench.out).rglob("topic=a/*/*.parquet"))[0]
    rows = pq.ParquetFile(path).read().slice(3, 1)
    copied = rows.set_column(rows.schema.get_field_index("topic_id"), "topic_id", pa.array([99], pa.int64()))
    added(bench, format, copied)
    told = bench.verify()
    assert (told["ok"], told["status"], told["ranges"]["differs"]) == (False, 1, 1)


def added(bench: Bench, format: str, rows: pa.Table) -> None:
    """Rows that somebody adds to a table with the tools of its format."""
    if format == "delta":
        from deltalake import write_deltalake

        day = bench.rows("delta")[0]["date"]
        whole = rows.append_column("topic", pa.array(["a"])).append_column("date", pa.array([day]))
        write_deltalake(bench.out, whole, mode="append")
    elif format == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        place = {"uri": f"sqlite:///{bench.out}/_topics/catalog.db", "warehouse": f"file://{bench.out}"}
        SqlCatalog("topics", **place).load_table("lake.topics").append(rows)
    else:
        pq.write_table(rows, sorted(Path(bench.out).glob("topic=a/*"))[0] / "more.parquet")


def test_files_that_no_manifest_names_and_files_that_are_gone_are_detected(bench: Bench) -> None:
    """K-48: who reads the folder sees the one and misses the other."""
    bench.fill("a", 1, 31)
    bench.archive()
    path = sorted(Path(bench.out).glob("topic=a/*/*.parquet"))[0]
    path.rename(path.with_name("other.parquet"))
    why = {one["why"] for one in bench.verify()["differing"]}
    assert why == {"the file is missing", "no manifest names this file"}


def test_what_retention_took_is_told_and_what_was_archived_stays(bench: Bench) -> None:
    """K-42, K-47: a cap never touches the table; records it took before they were archived are a gap, status 3."""
    bench.fill("a", 1, 31)
    bench.archive()
    bench.fill("a", 31, 81, cap_records=20)
    told = bench.archive()
    assert (told["status"], told["ok"], told["rows"]) == (3, False, 20)
    assert told["gaps"] == [{"topic": "a", "first": 31, "last": 60, "reason": "cap"}]
    assert seqs(bench.rows()) == [*range(1, 31), *range(61, 81)]
    proven = bench.verify()
    assert proven["ok"]
    assert proven["ranges"]["manifest"] == 2
    assert bench.archive()["status"] == 0


def test_where_the_journal_of_deletes_has_forgotten_the_log_is_compared(bench: Bench) -> None:
    """K-47: a run that comes later than `$deletes` keeps its records; what the log does not reach is unverified, 3."""
    bench.fill("a", 1, 31)
    bench.archive()
    past = ManualClock(SystemClock().now_ms() - 40 * 86_400_000)
    with Engine.open(bench.store, CONFIG, clock=past) as engine:
        engine.delete("a", match="user:1")
        engine.delete("a", seqs=[30])
        engine.tick()
    bench.fill("a", 31, 51, cap_records=30)  # of 41 that are left, so the log begins at 16
    told = bench.archive()
    assert (told["status"], told["unverified"]) == (3, [{"key": "1-1", "first": 1, "last": 15}])
    gone = [n for n in range(16, 31) if n % 4 == 1 or n == 30]
    assert told["erased"] == len(gone)
    assert seqs(bench.rows()) == [n for n in range(1, 51) if n not in gone]
    assert bench.verify()["ok"]
    assert bench.archive()["status"] == 0


def test_acks_of_a_queue_are_no_deletes(bench: Bench) -> None:
    """K-42, K-48: the table contains the log."""
    bench.fill("jobs", 1, 31, type="queue")
    bench.archive()
    with bench.engine() as engine:
        engine.claim("jobs", "w", 5)
        engine.ack("jobs", "w", range(1, 6))
    assert bench.archive()["erased"] == 0
    assert seqs(bench.rows(), "jobs") == list(range(1, 31))
    assert bench.verify()["ok"]


def test_members_become_columns_and_what_does_not_fit_is_rescued(bench: Bench) -> None:
    """K-43, X-10: bad rows are kept, in a column of their own; `data` is always there."""
    values: list[Any] = [
        {"sku": "B-1", "qty": 3}, {"sku": 7, "qty": 2}, {"sku": "B-2", "qty": 2**40, "x": [1]}, "text", {"qty": None},
    ]  # fmt: skip
    with bench.engine() as engine:
        engine.put_topic("a", {"durability": "fsync"})
        engine.append("a", [{"data": value} for value in values * 2])
        engine.append("a", [{"data": 0}])
    bench.archive(columns="sku string, qty int")
    rows = [(row["sku"], row["qty"], row["_rescued"]) for row in bench.rows()][:5]
    assert rows == [
        ("B-1", 3, None), (None, 2, '{"sku":7}'), ("B-2", None, '{"qty":1099511627776,"x":[1]}'),
        (None, None, '"text"'), (None, None, None),
    ]  # fmt: skip
    assert bench.verify()["ok"]
    with pytest.raises(SourceError, match="lake_differs"):
        bench.archive(columns="sku string")


def test_a_variant_column_beside_the_text(bench: Bench, spark: SparkSession) -> None:
    """K-43: written by Spark, unshredded; the text is kept."""
    bench.fill("a", 1, 11)
    bench.archive(variant=True)
    frame = spark.read.parquet(bench.out)
    assert frame.selectExpr("sum(variant_get(v, '$.n', 'int')) as n").collect()[0]["n"] == 55
    assert bench.verify()["ok"]
    with pytest.raises(SourceError, match="variant"):
        Bench.archive(bench, variant=True, format="delta")


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


def test_an_output_that_is_somebody_elses_is_left_alone(bench: Bench, crowded: Path) -> None:
    """K-40: a folder with other files, another store's table, a damaged one: a clear error, nothing touched."""
    bench.fill("a", 1, 31)
    bench.archive()
    table = bench.out
    bench.out = str(crowded)
    with pytest.raises(SourceError, match="target_not_empty"):
        bench.archive()
    bench.out = str(crowded / "letter.txt")
    with pytest.raises(SourceError, match="not_a_directory"):
        bench.archive()
    other = Bench(bench.spark, Path(bench.store).parent / "other")
    other.fill("a", 1, 31)
    other.out = table
    with pytest.raises(SourceError, match="other_store"):
        other.archive()
    (Path(table) / "_topics/manifest-0000000000000001.json").write_text('{"v":1,')
    bench.out = table
    with pytest.raises(SourceError, match="lake_damaged"):
        bench.archive()


def test_a_run_with_a_server_is_recorded_in_its_own_topic(bench: Bench) -> None:
    """K-40, A-14: one record at the start, one at the end; the same beside the output."""
    with running(bench.store, {"TOPICS_SEGMENT_MAX_EVENTS": "10"}) as server, server.client() as http:
        http.put("/v0/topics/a", json={"durability": "fsync"})
        http.post("/v0/topics/a", json={"records": [record(n) for n in range(1, 36)]})
        http.post("/v0/checkpoint")
        bench.place = Place(url=server.url)
        told = bench.archive()
        assert (told["ok"], told["rows"], told["topics"]) == (True, 30, ["a"])
        http.post("/v0/topics/a/delete", json={"match": "user:1"})
        while http.get("/v0/topics/$deletes").status_code != 200:  # the delete is recorded a moment later [A-20]
            http.post("/v0/topics/a/diff", json={"from_seq": 35, "wait_ms": 50})
        assert bench.archive()["erased"] == 8
        assert bench.verify()["ok"]
        found = http.post("/v0/topics/$pipelines/diff", json={"from_seq": 0, "include_tags": True}).json()["records"]
    assert [one["$tag"] for one in found] == ["archive"] * 4 + ["verify-export"] * 2
    start, end = found[0]["data"], found[1]["data"]
    assert start == {**end, "ended_ms": None, "ok": None, "rows": 0, "bytes": 0}
    assert (end["rows"], end["ok"], end["error"], end["out"]) == (30, True, None, bench.out)
    assert json.loads(Path(f"{bench.out}/_topics/runs/{end['run']}.json").read_text()) == end


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[S3Server]:
    """A bucket, whose keys the session's tasks find."""
    server = Moto(tmp_path / "moto")
    AWS_KEYS.write_text(f"[default]\naws_access_key_id={server.key_id}\naws_secret_access_key={server.secret}\n")
    yield server
    AWS_KEYS.unlink()
    server.kill()


def objects(server: S3Server) -> dict[str, bytes]:
    """What another client finds in the bucket."""
    client = server.client()
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def rows_in(found: dict[str, bytes]) -> list[int]:
    tables = [
        pq.read_table(pa.BufferReader(raw)) for key, raw in found.items() if key.startswith("lake/t/topic=b%3Ac/")
    ]
    return sorted(seq for table in tables for seq in table.column("seq").to_pylist())


def test_a_table_in_a_bucket(bench: Bench, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-44: manifests are put if absent, an answer that is lost included; runs, deletes and proof as in a directory."""
    bench.out = moto.url("lake/t")
    left = "lake/t/_topics/staging/1600000000000-dead/part-0.parquet"  # by a run that was killed long ago
    moto.client().put_object(Bucket=BUCKET, Key=left, Body=b"x")
    bench.fill("b:c", 1, 36)
    with pytest.raises(SourceError, match=r"unsupported: --out: a bucket holds tables of Parquet, not delta"):
        bench.archive(format="delta")
    with pytest.raises(SourceError, match=r"unsupported: --out: stats writes to a directory"):
        carry_out(bench.work("stats"), stats)
    put = Bucket.put

    def lost(self: Bucket, key: str, *args: Any, create: bool = False) -> bool:
        return put(self, key, *args, create=create) and "manifest" not in key

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", lost)
        assert bench.archive()["rows"] == 30
    assert bench.archive()["rows"] == 0
    written, raced = archive._written, list[int]()

    def overtaken(*args: Any) -> Any:
        told = written(*args)
        raced.append(1)
        if len(raced) == 1:
            assert bench.archive()["rows"] == 10
        return told

    bench.fill("b:c", 36, 41)
    with monkeypatch.context() as patched:
        patched.setattr(archive, "_written", overtaken)
        assert bench.archive()["rows"] == 0
    assert rows_in(objects(moto)) == list(range(1, 41))
    bench.delete("b:c", match="user:1")
    assert bench.archive()["erased"] == 10
    found = objects(moto)
    assert rows_in(found) == [n for n in range(1, 41) if n % 4 != 1]
    assert [key for key in found if "/staging/" in key] == []
    assert len([key for key in found if key.startswith("lake/t/_topics/manifest-")]) == 3
    told = bench.verify()
    assert (told["ok"], told["ranges"]["manifest"], told["ranges"]["differs"]) == (True, 0, 0)
    moto.client().put_object(Bucket=BUCKET, Key="lake/t/topic=b%3Ac/date=2020-01-01/x.parquet", Body=b"x")
    assert [one["why"] for one in bench.verify()["differing"]] == ["no manifest names this file"]
