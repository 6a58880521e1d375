"""Projects of Spark Declarative Pipelines over topics [K-50]: `topics pipeline init`, `run`, `dry-run`.

    pipeline.toml            where the records come from, columns of silver, rules, where results go
    spark-pipeline.yml       what Spark reads: storage, catalog, where definitions are
    conf/                    a catalog that outlives a run (Hive's, in Derby), a quiet log
    transformations/         bronze (a streaming table of topics), silver and silver_rescue, gold, and a sink to a topic
    state/                   catalog, tables and checkpoints; made by the first run

A row of bronze that breaks a rule goes to `silver_rescue` with the name of the first rule it breaks: Spark 4.3 has no
expectations. A run takes what is new: checkpoints know how far it was. `run` and `dry-run` are judged by their exit
status, whatever the JVM prints. Main thread; Spark is a process of its own.
"""

from __future__ import annotations

import glob
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from topics.fs import Fs, ensure_dir, replace_file
from topics.spark.failure import SourceError
from topics.spark.jobs.place import Place, Store
from topics.spark.jobs.stats import _kinds
from topics.spark.local import BRIEF, prepare
from topics.spark.reader import plan_read, read_partition

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
CLASS: Final = re.compile(r"\[[A-Z_]{4,}[A-Z_.]*\]")
"""What Spark calls a kind of error."""
PORT: Final = 15002
SAMPLE: Final = 200
TABLES: Final = ("bronze", "silver", "silver_rescue", "gold")
_SQL: Final = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}

_YML: Final = """\
# What Spark reads; the settings of this pipeline are in pipeline.toml.
name: {name}
storage: file://{root}/state/checkpoints
catalog: spark_catalog
database: default
libraries:
  - glob:
      include: transformations/**
"""
_DEFAULTS: Final = """\
# A catalog that the next run finds again, on this machine alone.
spark.sql.catalogImplementation                hive
spark.hadoop.javax.jdo.option.ConnectionURL    jdbc:derby:;databaseName={root}/state/catalog;create=true
spark.sql.warehouse.dir                        {root}/state/tables
spark.driver.bindAddress                       127.0.0.1
spark.driver.host                              127.0.0.1
spark.sql.session.timeZone                     UTC
spark.sql.parquet.outputTimestampType          TIMESTAMP_MICROS
spark.sql.shuffle.partitions                   4
spark.ui.enabled                               false
spark.ui.showConsoleProgress                   false
"""
_TOML: Final = """\
# Where records come from: options of the format `topics`.
[source]
{source}

# Columns of silver: members of `data`, and their types.
[columns]
{columns}

# Rules of silver: rows that break one go to silver_rescue, with its name.
[rules]
{rules}

# Where rows of silver are written back to: options of the format `topics`. Leave it out for no sink.
[sink]
{sink}
"""
_PYTHON: Final = '''\
"""Bronze, silver and a sink, as pipeline.toml says."""

import tomllib
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import functions as sql

SETTINGS = tomllib.loads((Path(__file__).resolve().parent.parent / "pipeline.toml").read_text())
COLUMNS, RULES, SINK = SETTINGS["columns"], SETTINGS.get("rules", {}), SETTINGS.get("sink")
KEPT = ["topic", "seq", "ts", "tag", "data"]


@dp.table(name="bronze", comment="records as they are in the log")
def bronze():
    records = spark.readStream.format("topics").options(**SETTINGS["source"]).load()
    return records.select("topic", "seq", "ts", "node", "tag", "data")


def checked():
    """Typed rows, and the first rule that each breaks.

    Made of `select` and `where` alone: Spark 4.3 resolves `withColumn` and `drop` too early, against the tables of the
    run before, and then does not know that bronze comes first.
    """
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    rows = spark.readStream.table("bronze").select(*KEPT, sql.from_json("data", schema).alias("parsed"))
    typed = rows.select(*KEPT, *(f"parsed.`{name}`" for name in COLUMNS))
    broken = [sql.when(~sql.coalesce(sql.expr(rule), sql.lit(False)), sql.lit(name)) for name, rule in RULES.items()]
    return typed.select(*KEPT, *COLUMNS, sql.coalesce(*broken, sql.lit(None).cast("string")).alias("rule"))


@dp.table(name="silver", comment="typed rows that keep every rule")
def silver():
    return checked().where("rule is null").select("topic", "seq", "ts", "tag", *COLUMNS)


@dp.table(name="silver_rescue", comment="rows that break a rule, with its name")
def silver_rescue():
    return checked().where("rule is not null").select(*KEPT, "rule")


if SINK:
    dp.create_sink("back", "topics", SINK)

    @dp.append_flow(target="back", name="silver_to_topic")
    def silver_to_topic():
        rows = spark.readStream.table("silver")
        return rows.select(sql.to_json(sql.struct("topic", "seq", *COLUMNS)).alias("data"), "tag")
'''


def init(
    fs: Fs, root: str, place: Place, store: Store, now_ms: int, into: str | None, key_file: str | None
) -> list[str]:
    """Write a project at `root`, with columns as the records of the topics have them; the files, as they are called."""
    name = os.path.basename(root)
    if NAME.fullmatch(name) is None:
        raise SourceError("invalid_option", f"{name!r} is no name", "use a-z, 0-9 and _, beginning with a letter")
    if os.path.exists(root):
        raise SourceError("target_not_empty", f"{root} exists", "choose another name")
    names = tuple(one.name for one in store.instances)
    if not names:
        raise SourceError("no_topics", "there is no topic to read", "name one with --topic, or write some records")
    columns = _columns(fs, place, names, now_ms)
    files = {
        "pipeline.toml": _settings(place, names, columns, into or f"{names[0]}.silver", key_file),
        "spark-pipeline.yml": _YML.format(name=name, root=root),
        "conf/spark-defaults.conf": _DEFAULTS.format(root=root),
        "conf/log4j2.properties": _log4j(),
        "transformations/tables.py": _PYTHON,
        "transformations/gold.sql": _gold(columns),
        ".gitignore": "state/\n",
    }
    for folder in ("conf", "transformations", "state"):
        ensure_dir(fs, f"{root}/{folder}")
    for path, text in files.items():
        replace_file(fs, f"{root}/{path}", text.encode())
    return sorted(files)


def _log4j() -> str:
    with open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "log4j2.properties")) as file:
        return file.read()


def _settings(place: Place, names: tuple[str, ...], columns: dict[str, str], into: str, key_file: str | None) -> str:
    where = {"url": place.url} if place.url is not None else {"path": place.path}
    if key_file is not None:
        where["apiKeyFile"] = os.path.abspath(key_file)
    numbers = [name for name, kind in columns.items() if kind in ("bigint", "double")]
    rules = {f"{name}_is_there": f"{name} is not null" for name in columns}
    rules |= {f"{name}_is_positive": f"{name} >= 0" for name in numbers}
    return _TOML.format(
        source=_members({**where, "topics": ",".join(names), "startingSeq": "earliest"}), columns=_members(columns),
        rules=_members(rules), sink=_members({**where, "topic": into}),
    )  # fmt: skip


def _members(values: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())


def _columns(fs: Fs, place: Place, names: tuple[str, ...], now_ms: int) -> dict[str, str]:
    """Members that the first records have, of one type each."""
    options = place.options(topics=names, on_data_loss="skip", meta_json=True, pin_ms=0)
    kinds: dict[str, Counter[str]] = {}
    seen = 0
    for part in plan_read(fs, options, now_ms):
        for batch in read_partition(fs, part):
            for text in batch.column("data").slice(0, SAMPLE - seen).to_pylist():
                seen += 1
                for path, kind in _kinds("$", json.loads(text)):
                    kinds.setdefault(path, Counter())[kind] += 1
            if seen >= SAMPLE:
                return _typed(kinds)
    return _typed(kinds)


def _typed(kinds: dict[str, Counter[str]]) -> dict[str, str]:
    found = {}
    for path, counts in kinds.items():
        name = path.removeprefix("$.")
        own = {kind for kind in counts if kind != "null"}
        if path.startswith("$.") and re.fullmatch(r"[A-Za-z_]\w*", name) and name not in ("topic", "seq", "ts", "tag"):
            common = counts.most_common(1)[0][0] if own != {"integer", "number"} else "number"
            if common in _SQL:
                found[name] = _SQL[common]
    return found or {"value": "string"}


def _gold(columns: dict[str, str]) -> str:
    key = next((f"`{name}`" for name, kind in columns.items() if kind == "string"), "topic")
    sums = [f", sum(`{name}`) AS `sum_{name}`" for name, kind in columns.items() if kind in ("bigint", "double")]
    return (
        "CREATE MATERIALIZED VIEW gold COMMENT 'totals of silver' AS\n"
        f"SELECT {key}, count(*) AS records{''.join(sums)}, max(ts) AS newest\nFROM silver GROUP BY {key}\n"
    )


def run(root: str, *, dry: bool, quiet: bool, full_refresh: bool = False, brief: bool = False) -> dict[str, Any]:
    """Run a project, or only check it; rows of its tables, how many are new, and how many break which rule.

    `brief`: there are few records, so that Java need not be made fast for them.
    """
    if not os.path.exists(f"{root}/pipeline.toml"):
        raise SourceError("no_project", f"{root} holds no pipeline.toml", "`topics pipeline init NAME` makes a project")
    try:
        with open(f"{root}/pipeline.toml", "rb") as file:
            tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise SourceError("invalid_option", f"{root}/pipeline.toml: {error}", "correct it") from error
    _port_is_free()
    before = {name: _rows(root, name) for name in TABLES}
    command = [_program(), "dry-run" if dry else "run", "--spec", f"{root}/spark-pipeline.yml"]
    if full_refresh and not dry:
        command.append("--full-refresh-all")
    said = subprocess.run(
        command, env=_env(root, brief or dry), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = said.stdout.decode("utf-8", "replace")
    if not quiet:
        sys.stderr.write(text)
    if said.returncode:
        raise _failed(text)
    after = {name: _rows(root, name) for name in TABLES}
    new = {name: after[name] - before[name] for name in ("bronze", "silver", "silver_rescue")}
    return {"rows": after, "new": new, "rules": _broken(root)}


def _port_is_free() -> None:
    """Spark listens at a fixed port while a pipeline runs; one at a time, or its own error says less."""
    if "SPARK_TESTING" in os.environ:  # Spark's own way to say: any port
        return
    try:
        socket.create_server(("127.0.0.1", PORT)).close()
    except OSError as error:
        what = f"port {PORT} is in use, by another pipeline or Spark Connect server: {error}"
        raise SourceError("port_in_use", what, "wait until it has ended") from error


def _program() -> str:
    import pyspark

    return os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-pipelines")


def _env(root: str, brief: bool) -> dict[str, str]:
    import pyspark

    prepare()
    own = {"SPARK_HOME": os.path.dirname(pyspark.__file__), "SPARK_CONF_DIR": f"{root}/conf"}
    own["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and os.path.exists(path))
    return {**({"JAVA_TOOL_OPTIONS": BRIEF} if brief else {}), **os.environ, **own}


def _failed(text: str) -> SourceError:
    """The last thing that was said which is no stack trace."""
    from topics.spark.failure import from_spark

    ours = from_spark(text)
    if ours is not None:
        return ours
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if CLASS.search(line)]
    what = (told or lines or ["Spark said nothing"])[-1]
    return SourceError("pipeline_failed", what[:500], "run it without --quiet to see all that Spark said")


def _files(root: str, table: str) -> list[str]:
    return sorted(glob.glob(f"{glob.escape(root)}/state/tables/{table}/**/*.parquet", recursive=True))


def _rows(root: str, table: str) -> int:
    return sum(pq.read_metadata(path).num_rows for path in _files(root, table))


def _broken(root: str) -> dict[str, int]:
    """Rows of `silver_rescue` by rule."""
    counts: Counter[str] = Counter()
    for path in _files(root, "silver_rescue"):
        rules: pa.ChunkedArray = pq.read_table(path, columns=["rule"], partitioning=None).column("rule")
        counts.update(rules.to_pylist())
    return dict(counts.most_common())
