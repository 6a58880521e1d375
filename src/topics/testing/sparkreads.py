"""`python -m topics.testing.sparkreads`: reads of a server whose topics change all the time (13 T15).

A server in a process of its own is written to, deleted from, checkpointed and compacted without a pause; its segments
are sealed, rewritten, moved to a cold tier and dropped meanwhile. For every run everybody holds still while the server
is asked for what there is and the read is planned; then records are deleted, and the server is asked once more; then
rows are read while all goes on, and the server is asked again:

    seen ⊆ at the plan                  nothing that was deleted, or came later; every value as the server tells it
    seen ∩ deleted before reading = ∅   what goes between plan and rows is absent, whatever the files still hold
    at the plan ∩ at the end ⊆ seen     nothing is missing that lived all the time
    the rest of the plan                deleted meanwhile, or told as a gap

Rows are read by Spark, or in this process: from files, or through the server alone. The seed decides what is written
and deleted, not how it falls on the reads.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from topics.fs import Fs, OsFs
from topics.spark.options import parse_read
from topics.spark.reader import plan_read, read_partition
from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerProcess
from topics.testing.simfs import SimFs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 50
ENV = {
    "TOPICS_SEGMENT_MAX_EVENTS": "60",
    "TOPICS_CHECKPOINT_MS": "150",
    "TOPICS_HOT_RETAIN_SEGMENTS": "4",
    "TOPICS_RECLAIM_REWRITE": "1",
    "TOPICS_MIN_FREE_BYTES": "0",
    "TOPICS_LOG_LEVEL": "warning",
}
DELETED, CAPPED = "deleted", "capped"
KEPT = 3000
"""Records of the topic that is deleted from, about."""
CAP = 1500
PAUSE_S = 0.005

Row = tuple[int, str | None, str | None, Any]
"""What a record is: ts, node, tag, data."""
View = dict[int, Row]


class Seen(NamedTuple):
    """What a read gave of one topic."""

    records: list[tuple[int, Row]]
    gaps: list[tuple[int, int, str]]


class Reader(Protocol):
    """Plans a read, and says how to get its rows."""

    def plan(self, options: dict[str, str]) -> Callable[[], list[dict[str, Any]]]: ...


class SparkReader:
    """Rows by Spark: planned on the driver, read by its tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def plan(self, options: dict[str, str]) -> Callable[[], list[dict[str, Any]]]:
        frame = self._spark.read.format("topics").options(**options).load()
        frame = frame.selectExpr("*", "unix_millis(ts) as millis").drop("ts").withColumnRenamed("millis", "ts")
        frame.rdd.getNumPartitions()  # makes the plan, which the frame keeps
        return lambda: [row.asDict() for row in frame.collect()]


class PlainReader:
    """Rows in this process; on a file system that has none of the server's files they come from the server alone."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs

    def plan(self, options: dict[str, str]) -> Callable[[], list[dict[str, Any]]]:
        parts = plan_read(self._fs, parse_read(options), 0)
        return lambda: [
            _plain(row) for part in parts for batch in read_partition(self._fs, part) for row in batch.to_pylist()
        ]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"ts": None if row["ts"] is None else round(row["ts"].timestamp() * 1000)}


class Report(NamedTuple):
    """What the runs came to."""

    counts: dict[str, int]
    violations: list[str]


class Disturber:
    """Changes topics until it is told to stop; `still` holds it between two changes."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._http = HttpConn(*address)
        self._rng = random.Random(f"{seed} disturber")
        self._over = threading.Event()
        self.still = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def fill(self) -> None:
        """Something to begin with."""
        self._call("PUT", f"/v0/topics/{DELETED}", {"durability": "disk"})
        self._call("PUT", f"/v0/topics/{CAPPED}", {"durability": "disk", "cap_records": CAP})
        for _ in range(KEPT // 60):
            self._append()
        self._call("POST", "/v0/checkpoint")

    def start(self) -> None:
        self._thread.start()

    def delete(self) -> None:
        """In every way there is, now; whoever calls holds it still."""
        self._delete_seqs()
        self._delete_tag()
        self._call("POST", f"/v0/topics/{DELETED}/delete", {"before_seq": max(self._head() - KEPT * 19 // 20, 1)})

    def stop(self) -> None:
        """End, and wait for it."""
        self._over.set()
        self._thread.join()
        self._http.close()

    def _run(self) -> None:
        steps = (
            [self._append] * 6
            + [self._delete_seqs] * 6
            + [self._delete_tag, self._trim, self._checkpoint, self._compact]
        )
        try:
            while not self._over.wait(PAUSE_S):
                with self.still:
                    self._rng.choice(steps)()
        except Exception as error:  # noqa: BLE001  told by the run
            self.failed.append(f"the disturber failed: {error!r}")

    def _append(self) -> None:
        for topic in (DELETED, CAPPED):
            self._call(
                "POST", f"/v0/topics/{topic}", {"records": [self._record() for _ in range(self._rng.randint(10, 90))]}
            )

    def _record(self) -> dict[str, Any]:
        pick = self._rng
        one: dict[str, Any] = {"data": {"n": pick.randrange(10**9), "x": "x" * pick.randrange(300)}}
        if pick.random() < 0.7:
            one["tag"] = f"t:{pick.randrange(12)}"
        if pick.random() < 0.3:
            one |= {"node": "n", "meta": {"k": pick.randrange(9)}}
        return one

    def _head(self) -> int:
        return int(self._call("GET", f"/v0/topics/{DELETED}")["head_seq"])

    def _delete_seqs(self) -> None:
        head = self._head()
        seqs = sorted({max(head - self._rng.randrange(KEPT), 1) for _ in range(20)})
        self._call("POST", f"/v0/topics/{DELETED}/delete", {"seqs": seqs})

    def _delete_tag(self) -> None:
        body = {"match": ["tag", "Glob", f"t:{self._rng.randrange(12)}*"]}
        self._call("POST", f"/v0/topics/{DELETED}/delete", body)

    def _trim(self) -> None:
        self._call("POST", f"/v0/topics/{DELETED}/delete", {"before_seq": max(self._head() - KEPT, 1)})

    def _checkpoint(self) -> None:
        self._call("POST", "/v0/checkpoint")

    def _compact(self) -> None:
        self._call("POST", f"/v0/topics/{DELETED}/compact", {"min_dead_ratio": 0.05})

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = self._http.call(method, path, body)
        if answer.status not in (200, 201, 202):
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body}")
        self.counts[path.rsplit("/", 1)[-1]] += 1
        told: dict[str, Any] = answer.body
        return told


def view(http: HttpConn, topic: str) -> View:
    """What the server's diff gives of a topic."""
    found: View = {}
    at = 0
    while True:
        query = {"from_seq": at, "limit": 1000, "max_batch_bytes": 8 << 20, "include_tags": True}
        page = http.call("POST", f"/v0/topics/{topic}/diff", query).body
        for one in page["records"]:
            found[one["$seq"]] = (one["$ts"], one.get("$node"), one.get("$tag"), one["data"])
        at = page["next_from_seq"]
        if page["caught_up"]:
            return found


def seen(rows: Iterable[Mapping[str, Any]], topic: str) -> Seen:
    """The rows of one topic."""
    records, gaps = [], []
    for row in rows:
        if row["topic"] != topic:
            continue
        if row["kind"] == "record":
            records.append((row["seq"], (row["ts"], row["node"], row["tag"], json.loads(row["data"]))))
        else:
            gaps.append((row["seq"], row["gap_to"], row["reason"]))
    return Seen(records, gaps)


def judge(topic: str, found: Seen, planned: View, begun: View, ended: View) -> list[str]:
    """What no correct read can have given."""
    said: list[str] = []
    records = dict(found.records)
    if len(records) != len(found.records):
        said.append(f"{topic}: a record came twice")
    said += [f"{topic}: seq {seq} was not there at the plan" for seq in sorted(records.keys() - planned.keys())]
    differing = [seq for seq in records.keys() & planned.keys() if records[seq] != planned[seq]]
    said += [f"{topic}: seq {seq} is {records[seq]}, not {planned[seq]}" for seq in sorted(differing)]
    if topic == DELETED:  # what retention has passed may be read as long as its files are there
        deleted = records.keys() & planned.keys() - begun.keys()
        said += [f"{topic}: seq {seq} was deleted before it was read" for seq in sorted(deleted)]
    missing = (planned.keys() & ended.keys()) - records.keys()
    said += [f"{topic}: seq {seq} is missing" for seq in sorted(missing)]
    told = {seq for first, last, _ in found.gaps for seq in range(first, last + 1)}
    said += [
        f"{topic}: seq {seq} is told as lost and is there" for seq in sorted(told & (records.keys() | ended.keys()))
    ]
    said += [f"{topic}: a gap of reason {reason}" for *_, reason in found.gaps if topic == DELETED or reason != "cap"]
    if topic == CAPPED:  # nobody deletes there: whatever is not given must be told
        untold = planned.keys() - records.keys() - told
        said += [f"{topic}: seq {seq} is neither given nor told" for seq in sorted(untold)]
    return said


def run(
    folder: Path, seed: int, runs: int, reader: Reader, progress: Callable[[int, list[str]], None] = lambda *_: None
) -> Report:
    """So many reads; the number of reads and what is wrong is told after each."""
    (folder / "cold").mkdir(parents=True, exist_ok=True)
    server = ServerProcess(folder, {**ENV, "TOPICS_COLD_DIR": str(folder / "cold")})
    counts: Counter[str] = Counter()
    violations: list[str] = []
    try:
        server.wait_ready()
        disturber = Disturber(server.address, seed)
        disturber.fill()
        disturber.start()
        with HttpConn(*server.address) as http:
            for number in range(runs):
                wrong = _read(http, disturber, reader, _options(server, number), counts)
                violations += [f"run {number}: {one}" for one in (*wrong, *disturber.failed)]
                progress(number + 1, violations[-len(wrong) :] if wrong else [])
            counts["cold"] = sum(
                one["tier"] == "cold" for one in http.call("GET", f"/v0/topics/{DELETED}/segments").body["segments"]
            )
        disturber.stop()
        return Report({**disturber.counts, **counts}, violations)
    finally:
        server.abandon()


def _options(server: ServerProcess, number: int) -> dict[str, str]:
    """With files held and without, in partitions of several sizes."""
    host, port = server.address
    return {
        "url": f"http://{host}:{port}",
        "topics": f"{DELETED},{CAPPED}",
        "onDataLoss": "emit",
        "pinMs": "5000" if number % 2 else "0",
        "partitionBytes": ("200000", "60000", "100000000")[number % 3],
    }


def _read(
    http: HttpConn, disturber: Disturber, reader: Reader, options: dict[str, str], counts: Counter[str]
) -> list[str]:
    topics = (DELETED, CAPPED)
    with disturber.still:
        planned = {topic: view(http, topic) for topic in topics}
        rows_of = reader.plan(options)
        disturber.delete()
        begun = {topic: view(http, topic) for topic in topics}
    rows = rows_of()
    with disturber.still:
        ended = {topic: view(http, topic) for topic in topics}
    counts["rows"] += len(rows)
    counts["gone"] += sum(len(planned[topic].keys() - ended[topic].keys()) for topic in topics)
    return [
        one for topic in topics for one in judge(topic, seen(rows, topic), planned[topic], begun[topic], ended[topic])
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m topics.testing.sparkreads", description="Reads under change (T15)."
    )
    parser.add_argument("--runs", type=int, default=RUNS, help=f"reads (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, help="what is written and deleted (default 0)")
    parser.add_argument(
        "--reader", choices=["spark", "files", "scan"], default="spark", help="who reads (default spark)"
    )
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="topics-spark-reads-"))

    def progress(number: int, wrong: list[str]) -> None:
        print(f"sparkreads: {number} reads, {len(wrong)} violations", *wrong[:20], sep="\n", file=sys.stderr)

    report = run(folder, args.seed, args.runs, reader_of(args.reader), progress)
    told = {"command": "sparkreads", "cases": args.runs, "violations": len(report.violations), "seed": args.seed}
    print(json.dumps({**told, **report.counts}))
    if report.violations:
        print(f"kept for a look: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def reader_of(name: str) -> Reader:
    """The reader of this name."""
    if name != "spark":
        return PlainReader(OsFs() if name == "files" else SimFs())
    from topics.spark import session

    return SparkReader(session("local[2,3]"))


if __name__ == "__main__":
    raise SystemExit(main())
