"""`topics pipeline scrub`, `stats`, `compact`, `backfill`, `rebuild`, and what is common to all jobs (10 §5)."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.api.kit import Running, running
from tests.unit.engine.test_tiering_waits import move
from tests.unit.spark.test_held import pins
from topics import paths
from topics.cli.main import main
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import DataDirInUse
from topics.spark.failure import SourceError
from topics.spark.jobs import archive, backfill, compact, rebuild, scrub, stats, verify
from topics.spark.jobs.place import Place
from topics.spark.jobs.work import Work, carry_out


def made(root: Path, records: int = 200, **config: Any) -> str:
    """A store with tags, deletes, fillers and holes, hot and, if a tier is given, cold."""
    path = str(root / "store")
    options = {"segment_max_events": 10, "wal_file_bytes": 1 << 20, **config}
    with Engine.open(path, EngineConfig(**options)) as engine:
        for name in ("a", "b"):
            engine.put_topic(name, {"durability": "fsync"})
            for at in range(0, records, 20):
                engine.append(name, [record(n) for n in range(at, at + 20)])
                engine.delete(name, seqs=[at + 3])
                engine.checkpoint(full=True)
            engine.delete(name, match="t:2")
        engine.checkpoint(full=True)
        if "cold_dir" in config:
            for _ in range(3):
                move(engine)
            engine.checkpoint(full=True)
    return path


FRAME_BYTES = 32
"""The first frame of a log's file has more; behind the last one there are zeros, which nobody vouches for."""


def record(n: int) -> dict[str, Any]:
    return {"data": {"n": n, "who": f"u{n % 9}"}, **({"tag": f"t:{n % 5}"} if n % 2 else {})}


def run(spark: SparkSession, job: Any, place: Place, out: Path | None = None, topics: Any = (), **options: Any) -> Any:
    work = Work(job.__name__, place, tuple(topics), None if out is None else str(out), spark=spark, options=options)
    return carry_out(work, job)


def everything(path: str, names: tuple[str, ...] = ("a", "b")) -> dict[str, list[Any]]:
    """What readers are given."""
    with Engine.open(path) as engine:
        return {name: [(one.seq, one.ts, one.tag, one.data) for one in engine.read(name, 0, limit=1000).records]
                for name in names}  # fmt: skip


def test_scrub_names_every_one_of_200_flipped_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """10 §5: all types of files, both tiers; a file more or less damaged makes no difference to the others."""
    seed = 11
    store = made(tmp_path, 1000, cold_dir=str(tmp_path / "cold"), hot_retain_segments=40)
    clean = run(spark, scrub, Place(path=store), tmp_path / "report")
    assert (clean["ok"], clean["findings"]) == (True, [])
    assert clean["rows"] > 1000
    chance = random.Random(seed)
    roots = {"store": Path(store), "cold": tmp_path / "cold"}
    files = [(tier, one.relative_to(root)) for tier, root in roots.items() for one in sorted(root.rglob("seg-*"))]
    kinds = {(tier, one.suffix) for tier, one in files}
    assert kinds == {(tier, kind) for tier in roots for kind in (".data", ".idx", ".tag")}
    chosen = chance.sample(files, 197)
    assert {(tier, one.suffix) for tier, one in chosen} == kinds
    chosen.append(("store", Path("meta") / sorted(path.name for path in Path(store, "meta").glob("snap*"))[-1]))
    chosen.append(("store", Path("wal/CURRENT")))
    wal = sorted(Path(store, "wal").glob("wal-*"))[-1]  # one before it may be left, which no start will read
    chosen.append(("store", wal.relative_to(store)))
    for tier, one in chosen:
        flip(roots[tier] / one, chance, within=FRAME_BYTES if one.parent.name == "wal" else None)
    told = run(spark, scrub, Place(path=store), tmp_path / "report", span_bytes=10_000)
    assert (told["ok"], told["status"]) == (False, 1)
    named = {one["where"] for one in told["findings"]}
    page = (tmp_path / "report/scrub.html").read_text()
    assert wal.name in page  # of a log that was closed, damage may be a note
    missed = [(tier, str(one)) for tier, one in chosen[:-1] if not names(named, tier, str(one))]
    assert missed == [], f"seed {seed}"
    assert str(chosen[0][1].name) in page
    Path(store, "meta/STORE").write_text("0" * 32 + "\n")
    told = run(spark, scrub, Place(path=store))
    assert {one["code"] for one in told["findings"]} >= {"metadata_lost", "snapshot_damaged"}


def names(named: set[str], tier: str, file: str) -> bool:
    """Whether a file is named; data in the cold tier goes by its place in the store."""
    return file in named or (tier == "cold" and f"cold/{file}" in named)


def flip(path: Path, chance: random.Random, within: int | None = None) -> None:
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(min(within or len(raw), len(raw)))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def test_stats_tells_what_is_in_topics(spark: SparkSession, tmp_path: Path) -> None:
    """10 §5: counts, tags and their skew, members of payloads; hostile text is text on the page."""
    path = str(tmp_path / "store")
    hostile = "<script>alert(1)</script>"
    with Engine.open(path) as engine:
        engine.put_topic("a", {"durability": "fsync"})
        engine.append("a", [record(n) for n in range(100)])
        engine.append("a", [{"data": {"n": 1.5, hostile: [1, "x"]}, "tag": hostile}])
    told = run(spark, stats, Place(path=path), tmp_path / "report")
    found = told["stats"]["a"]
    assert (told["ok"], told["rows"], found["records"], found["tagged"], found["tags"]) == (True, 101, 101, 51, 6)
    assert found["top_tags"]["t:1"] == 10
    assert found["members"]["$.n"] == {"integer": 100, "number": 1}
    assert found["members"][f"$.{hostile}[]"] == {"integer": 1, "string": 1}
    page = (tmp_path / "report/stats.html").read_text()
    assert "<svg" in page
    assert hostile not in page


def segments_of(store: str) -> Path:
    """Where the first topic's segments lie."""
    return Path(store, paths.TOPICS_DIR, paths.topic_dir(1))


def size(store: str) -> int:
    """Of the first topic's data."""
    return sum(path.stat().st_size for path in segments_of(store).rglob("*.data"))


@pytest.mark.parametrize("served", [True, False])
def test_compact_gives_bytes_back_and_changes_nothing_that_is_read(
    spark: SparkSession, tmp_path: Path, served: bool
) -> None:
    """10 §5, CPT-1: by the running server, or with the lock of a stopped store; seqs and records stay."""
    path = made(tmp_path)
    with Engine.open(path) as engine:
        engine.delete("a", match=["tag", "Glob", "t:*"])
        engine.delete("a", seqs=[seq for seq in range(1, 150) if seq % 3])
        engine.checkpoint(full=True)
    before, bytes_before = everything(path), size(path)
    if served:
        with running(path) as server:
            told = run(spark, compact, Place(url=server.url), topics=["a"])
    else:
        told = run(spark, compact, Place(path=path), topics=["a"])
    assert told["ok"]
    assert told["rewritten"] > 5
    assert bytes_before - size(path) == told["freed_bytes"] > 0
    assert everything(path) == before
    assert run(spark, compact, Place(path=path), topics=["a"])["rewritten"] == 0


def files(root: Path) -> dict[str, bytes]:
    found = sorted(path for path in root.rglob("seg-*") if path.suffix != ".data")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.mark.parametrize("damage", ["none", "flipped", "removed"])
def test_rebuilt_files_are_the_files(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    """10 §5, S-130: with deletes and fillers; from the data alone what has no frame is guessed, and told."""
    store = made(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=8)
    originals = files(Path(store))
    chosen = sorted(Path(store, "topics").rglob("seg-*.idx"))[:-1]
    for index in chosen if damage == "flipped" else []:
        raw = bytearray(index.read_bytes())
        raw[-1] ^= 1
        index.write_bytes(raw)
    for file in Path(store, "topics").rglob("seg-*.tag") if damage != "none" else []:
        file.unlink()
    if damage == "removed":  # one whose deleted records all have frames, and one in the cold tier, which has a copy
        chosen[0].unlink()
    told = run(spark, rebuild, Place(path=store), tmp_path / "made")
    assert told["ok"], told["guessed"]
    made_now = files(tmp_path / "made")
    assert {name: raw for name, raw in originals.items() if name in made_now} == made_now
    assert len(made_now) > 50
    in_place = run(spark, rebuild, Place(path=store))
    assert bool(in_place["changed"]) == (damage != "none")
    assert {name: raw for name, raw in files(Path(store)).items() if name in made_now} == made_now
    with Engine.open(store), pytest.raises(DataDirInUse):
        run(spark, rebuild, Place(path=store))


def doubled(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    return frame.where("tag is not null").withColumn("data", sql.expr("to_json(struct(seq * 2 as twice))"))


def written(server: Running, topic: str) -> list[Any]:
    with server.client() as http:
        found = http.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0, "limit": 1000}).json()
        return [one["data"]["twice"] for one in found["records"]]


def test_a_backfill_that_dies_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-49: ranges are commits; a run that dies before, or behind, one of them repeats none and leaves none out."""
    path = made(tmp_path, 100)
    wanted = [2 * seq for seq, _, tag, _ in everything(path)["a"] if tag is not None]
    options = {"into": "twice", "transform": f"{__name__}:doubled", "step": 30}
    with running(path) as server:
        place, one = Place(url=server.url), backfill._one
        died: list[str] = []

        def dying(*args: Any) -> Any:
            if args[2] == 31 and not died:
                died.append("before")
                raise KeyboardInterrupt
            rows = one(*args)
            if args[2] == 61 and len(died) == 1:
                died.append("behind")
                raise KeyboardInterrupt
            return rows

        monkeypatch.setattr(backfill, "_one", dying)
        monkeypatch.setattr(backfill, "_function", lambda work: doubled)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                run(spark, backfill, place, topics=["a"], **options)
        told = run(spark, backfill, place, topics=["a"], **options)
        assert (told["ok"], told["ranges"], told["upto"]) == (True, 1, 100)
        assert written(server, "twice") == wanted
        assert run(spark, backfill, place, topics=["a"], **options)["ranges"] == 0


def test_a_backfill_into_a_topic_of_a_stopped_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-49: with `--path` the commit opens the store; a run that dies behind one goes on there."""
    path = made(tmp_path, 100)
    query = "select to_json(struct(seq * 2 as twice)) as data, tag from input where tag is not null"
    wanted = [2 * seq for seq, _, tag, _ in everything(path)["a"] if tag is not None]
    one, place = backfill._one, Place(path=path)

    def dying(*args: Any) -> int:
        one(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backfill, "_one", dying)
        with pytest.raises(KeyboardInterrupt):
            run(spark, backfill, place, topics=["a"], into="twice", sql=query, step=60)
    told = run(spark, backfill, place, topics=["a"], into="twice", sql=query, step=60)
    assert (told["ok"], told["ranges"], told["upto"]) == (True, 1, 100)
    assert run(spark, backfill, place, topics=["a"], into="twice", sql=query, step=7)["ranges"] == 0
    with Engine.open(path) as engine:
        assert [one.data["twice"] for one in engine.read("twice", 0, limit=1000).records] == wanted
        with pytest.raises(DataDirInUse):
            run(spark, backfill, place, topics=["a"], into="twice", sql=query)
        engine.delete_topic("a")
        engine.put_topic("a", {"durability": "fsync"})
        engine.append("a", [record(n) for n in range(5)])
    made_anew = Work("backfill", place, ("a",), options={"into": "twice", "sql": query})
    assert backfill.plan(made_anew, made_anew.store())["ranges"] == [(1, 5)], "none of it is taken for what is done"


def test_a_backfill_beyond_the_last_record_goes_on_with_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    """K-49: what was not there when a range was written is written later, and nothing is left out in silence."""
    path = made(tmp_path, 20)
    place = Place(path=path)
    told = run(spark, backfill, place, topics=["a"], into="copy", last=1000)
    assert (told["ok"], told["upto"]) == (True, 20)
    with Engine.open(path) as engine:
        engine.append("a", [record(n) for n in range(20, 25)])
    told = run(spark, backfill, place, topics=["a"], into="copy", last=1000)
    assert (told["rows"], told["behind"], told["upto"]) == (5, 20, 25)
    assert [one[-1] for one in everything(path, ("copy",))["copy"]] == [one[-1] for one in everything(path)["a"]]
    with pytest.raises(SourceError, match=r"invalid_option: --to: the target is at seq 25 already.* — .*--name"):
        run(spark, backfill, place, topics=["a"], into="copy", first=1, last=4)


def test_a_backfill_takes_nothing_of_a_topic_that_was_made_anew_while_it_ran(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-49: numbers are of one instance; what came of the next one would be written once more in its name."""
    path = made(tmp_path, 20)
    held = backfill.held
    with running(path) as server, server.client() as http:

        def late(*args: Any) -> Any:
            monkeypatch.setattr(backfill, "held", held)
            http.delete("/v0/topics/a")
            http.post("/v0/topics/a", json={"records": [record(n) for n in range(100, 130)], "durability": "fsync"})
            http.post("/v0/checkpoint")
            return held(*args)

        monkeypatch.setattr(backfill, "held", late)
        with pytest.raises(SourceError, match=r"recreated: a was made anew while it was read — run it again"):
            run(spark, backfill, Place(url=server.url), topics=["a"], into="copy")
        assert http.get("/v0/topics/copy").status_code == 404
        assert run(spark, backfill, Place(url=server.url), topics=["a"], into="copy")["rows"] == 30


@pytest.mark.parametrize("into", ["copy", None])
def test_a_backfill_tells_what_is_damaged_and_writes_the_rest_once(
    spark: SparkSession, tmp_path: Path, into: str | None
) -> None:
    """K-40, K-14, K-49: one flipped byte is one gap in the summary, status 3, and no row; the range is done."""
    path = made(tmp_path, 40)
    live = [(tag, data) for _, _, tag, data in everything(path)["a"]]
    victim = sorted(segments_of(path).rglob("*.data"))[1]
    raw = bytearray(victim.read_bytes())
    raw[raw.index(b'"n":15')] ^= 1  # seq 16
    victim.write_bytes(raw)
    out = None if into else tmp_path / "out"
    told = run(spark, backfill, Place(path=path), out, ["a"], into=into, step=15)
    assert (told["status"], told["ok"], told["rows"]) == (3, False, len(live) - 1)
    assert told["gaps"] == [{"topic": "a", "first": 16, "last": 16, "reason": "corrupt"}]
    if into:
        found = [(tag, data) for _, _, tag, data in everything(path, ("copy",))["copy"]]
    else:
        rows = spark.read.parquet(str(out)).orderBy("seq").collect()
        found = [(row["tag"], json.loads(row["data"])) for row in rows]
    assert found == [one for one in live if one[1]["n"] != 15]
    again = run(spark, backfill, Place(path=path), out, ["a"], into=into, step=15)
    assert (again["status"], again["rows"], again["gaps"]) == (0, 0, [])


def test_a_backfill_into_files_and_by_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """K-49: a folder per range, which is there when it is complete."""
    path = made(tmp_path, 100)
    query = "select seq, cast(get_json_object(data, '$.n') as int) as n from input"
    out = tmp_path / "out"
    told = run(spark, backfill, Place(path=path), out, ["a"], sql=query, step=40)
    live = [seq for seq, *_ in everything(path)["a"]]
    assert (told["ok"], told["rows"], told["ranges"]) == (True, len(live), 3)
    frame = spark.read.parquet(str(out))
    assert sorted((row["seq"], row["n"]) for row in frame.collect()) == [(seq, seq - 1) for seq in live]
    assert run(spark, backfill, Place(path=path), out, ["a"], sql=query, step=40)["ranges"] == 0
    with pytest.raises(SourceError, match="itself"):
        run(spark, backfill, Place(path=path), topics=["a"], into="a")
    with Engine.open(path) as engine:
        engine.delete_topic("a")
        engine.put_topic("a", {"durability": "fsync"})
        engine.append("a", [record(n) for n in range(5)])
    for topic in ("a", "b"):
        with pytest.raises(SourceError, match=r"target_not_empty: .* holds what was made of .*\"topic\":\"a\""):
            run(spark, backfill, Place(path=path), out, [topic], sql=query, step=40)


def test_jobs_give_the_pins_of_a_server_back(spark: SparkSession, tmp_path: Path) -> None:
    """K-40, A-8: a server has 64 of them for everybody, and a backup needs one; also where a job only says its plan."""
    path, out = made(tmp_path, 40), tmp_path / "lake"
    with running(path) as server:
        place = Place(url=server.url)
        left = []
        for job, folder, options in (
            (archive, out, {}), (verify, out, {}), (stats, None, {}), (backfill, None, {"into": "copy", "step": 15}),
        ):  # fmt: skip
            work = Work(job.__name__, place, ("a",), folder and str(folder), spark=spark, options=options)
            job.check(work, work.store())
            job.plan(work, work.store())
            carry_out(work, job)
            left.append((job.__name__, pins(server)))
    assert left == [(job.__name__, 0) for job in (archive, verify, stats, backfill)]


Caught = pytest.CaptureFixture[str]


def refused(caught: Caught, *words: str) -> tuple[int, str]:
    status = main(["pipeline", *words])
    said = caught.readouterr().err.splitlines()
    return status, said[-1] if said else ""


def test_bad_input_is_one_line_and_damages_nothing(tmp_path: Path, capsys: Caught, spark: SparkSession) -> None:
    """K-40, U-10: wrong master, no store, no topic, an output that cannot be written."""
    store = made(tmp_path, 40)
    out = str(tmp_path / "lake")
    words = ["archive", "--path", store, "--out", out]
    status, line = refused(capsys, "archive", "--path", str(tmp_path / "none"), "--out", out)
    assert (status, line.startswith("topics: no_store: ")) == (1, True)
    status, line = refused(capsys, *words, "--topic", "zz")
    assert (status, line.startswith("topics: topic_not_found: ")) == (1, True)
    status, line = refused(capsys, "archive", "--path", store)
    assert (status, "--out" in line) == (1, True)
    status, line = refused(capsys, *words, "--master", "spark://127.0.0.1:1")
    assert (status, line.startswith("topics: unreachable: ")) == (1, True)
    status, line = refused(capsys, *words, "--master", "nonsense")
    assert (status, line.startswith("topics: invalid_option: ")) == (1, True)
    for wrong in ([*words, "--partition-bytes", "0"], ["backfill", *words[1:], "--topic", "a", "--step", "0"]):
        status, line = refused(capsys, *wrong)
        assert (status, line.startswith(f"topics: invalid_option: {wrong[-2]}: 0 is less than 1")) == (1, True), line
    status, line = refused(capsys, *words[:-1], "ftp://host/x")
    assert (status, "ftp:// is no known scheme" in line) == (1, True), line
    status, line = refused(capsys, "archive", "--url", "http://127.0.0.1:1", "--out", out)
    assert (status, line.startswith("topics: unreachable: ")) == (1, True)
    shutil.rmtree(out, ignore_errors=True)
    assert main(["pipeline", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    assert main(["pipeline", *words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["topics"] == []


def test_a_run_that_fails_is_recorded_as_failed(tmp_path: Path, spark: SparkSession) -> None:
    """K-40: with its error, beside the output; the store's damage is named by the line that says so."""
    store = made(tmp_path, 40)
    victim = sorted(Path(store, paths.TOPICS_DIR).rglob("*.data"))[0]
    victim.unlink()
    out = tmp_path / "lake"
    told = run(spark, archive, Place(path=store), out)
    assert (told["status"], told["gaps"][0]["reason"]) == (3, "corrupt")
    (out / "_topics" / "lake.json").write_text("{")
    with pytest.raises(SourceError, match="lake_damaged"):
        run(spark, archive, Place(path=store), out)
