"""`backfill`: a topic's records through a transform into another topic or a folder of Parquet files, once each [K-49].

    transform    `--transform module:function`, DataFrame to DataFrame; or `--sql`, over the view `input`; or none
    ranges       of so many seqs, one after the other; a range's number is its last seq
    into         `--into TOPIC`: a staged commit with this job's name and the range's number, so it happens once [K-31]
                 `--out DIR` alone: a folder `upto=<number>`, which appears when it is complete

How far it is, the target knows: the committed number, or the newest folder. A run that was killed goes on behind it,
and so does one that comes when there are more records. So no range reaches beyond what is there for good, wherever it
is said to end, and nothing is written before what is done. The first range begins at the first record there is;
records that are lost from there on, or from `--from` on, are told, and the status is 3. Numbers are of one instance of
the topic: its epoch is part of the job's name, and `_topics/backfill.json` says whose folders they are, so that a topic
made anew, or another store, is not taken for what is done. Driver only.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from topics.fs import ensure_dir, replace_file
from topics.spark.failure import SourceError
from topics.spark.held import held
from topics.spark.jobs.lake import OWN_DIR, STAGING_DIR
from topics.spark.jobs.place import Instance, Store, as_json
from topics.spark.jobs.spread import spoken
from topics.spark.jobs.work import GAPS, OK, Outcome, Work
from topics.spark.options import Bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RANGE: Final = 1_000_000
WHOSE_FILE: Final = f"{OWN_DIR}/backfill.json"
FOLDER: Final = re.compile(r"upto=(\d{20})")


class Asked(NamedTuple):
    """What is to be done."""

    instance: Instance
    first: int
    last: int
    step: int

    def ranges(self, done: int) -> list[tuple[int, int]]:
        """What is left behind `done`."""
        start = max(self.first, done + 1)
        return [(at, min(at + self.step - 1, self.last)) for at in range(start, self.last + 1, self.step)]


def check(work: Work, store: Store) -> None:
    """One topic, one target, and a transform that can be found."""
    if len(store.instances) != 1 or not work.topics:
        raise SourceError("invalid_option", "--topic: a backfill replays one topic", "name exactly one")
    into = work.options.get("into")
    if not into and work.out is None:
        raise SourceError("invalid_option", "there is no target", "use --into TOPIC, or --out DIR")
    if into == store.instances[0].name:
        raise SourceError("invalid_option", "--into: a topic cannot be replayed into itself", "name another one")
    if work.options.get("transform") and work.options.get("sql"):
        raise SourceError("invalid_option", "--transform and --sql exclude each other", "use one of them")
    work.number("step", RANGE)
    _whose(work, store)
    _function(work)


def _whose(work: Work, store: Store) -> bytes:
    """Whose folders the output holds, or will hold; refuses those of another topic, instance or store."""
    one = store.instances[0]
    own = as_json({"v": 1, "store": store.id, "topic": one.name, "id": one.id, "epoch": one.epoch}) + b"\n"
    path = f"{work.out}/{WHOSE_FILE}"
    if not work.options.get("into") and work.fs.exists(path):
        with open(path, "rb") as file:
            there = file.read()
        if there != own:
            what = f"{work.out} holds what was made of {there.decode('utf-8', 'replace').strip()}"
            raise SourceError("target_not_empty", what, "each topic, also one made anew, needs its own directory")
    return own


def plan(work: Work, store: Store) -> dict[str, Any]:
    """The ranges that are left."""
    done, ranges = _left(work, store)
    return {
        "partitions": len(ranges),
        "behind": done,
        "ranges": ranges[:100],
        "records": sum(last + 1 - first for first, last in ranges),
    }


def run(work: Work, store: Store) -> Outcome:
    done, ranges = _left(work, store)
    rows, gaps = 0, list[dict[str, Any]]()
    if not work.options.get("into") and ranges:
        ensure_dir(work.fs, f"{work.output()}/{OWN_DIR}")
        replace_file(work.fs, f"{work.output()}/{WHOSE_FILE}", _whose(work, store))
    for number, (first, last) in enumerate(ranges):
        work.tell(number, len(ranges), "ranges written")
        more, lost = _one(work, store.instances[0], first, last)
        rows, gaps = rows + more, gaps + lost
    work.tell(len(ranges), len(ranges), "ranges written")
    upto = ranges[-1][1] if ranges else done
    name = name_of(work, store.instances[0])
    told = {"ranges": len(ranges), "behind": done, "upto": upto, "gaps": gaps, "name": name}
    return Outcome(rows, 0, told, GAPS if gaps else OK)


def name_of(work: Work, instance: Instance) -> str:
    """Under which the job is known to its target; a topic made anew is another one."""
    target = work.options.get("into") or "files"
    return f"{work.options.get('name') or f'backfill:{instance.name}>{target}'}#{instance.epoch}"


def _left(work: Work, store: Store) -> tuple[int, list[tuple[int, int]]]:
    """How far the target is, and the ranges behind that."""
    done, last = _done(work, store), work.options.get("last")
    if last is not None and int(last) < done:
        other = "--name" if work.options.get("into") else "--out"
        what = f"--to: the target is at seq {done} already, and goes forward only: nothing up to {last} is written"
        raise SourceError("invalid_option", what, f"use another {other} for what lies before")
    return done, _asked(work, store, done).ranges(done)


def _asked(work: Work, store: Store, done: int) -> Asked:
    """What is to be done, as far as the topic reaches: numbers beyond it would count as done for good."""
    instance, last = store.instances[0], work.options.get("last")
    earliest, reach = _ends(work, instance)
    first = work.number("first", 1 if done else earliest, least=0)
    end = reach if last is None else min(int(last), reach)
    return Asked(instance, first, end, work.number("step", RANGE))


def _ends(work: Work, instance: Instance) -> tuple[int, int]:
    """The first record there is, and the last seq that no crash can take back."""
    if work.place.url is None:
        from topics.spark.directory import open_store, plan_topic

        assert work.place.path is not None
        store = open_store(work.fs, work.place.path, work.place.cold)
        topic = store.topic(instance.name)
        if topic is None:
            return 1, 0
        return plan_topic(store, topic, work.place.options(), work.clock.now_ms()).first, topic.ckpt_seq
    remote = work.place.server()
    try:
        told = remote.segments(instance.name)
        return int(told["earliest_seq"]), int(told["durable_seq"])
    finally:
        remote.close()


def _done(work: Work, store: Store) -> int:
    """The number of the newest range in the target."""
    if not work.options.get("into"):
        names = os.listdir(work.output()) if os.path.isdir(work.output()) else []
        return max((int(match[1]) for name in names if (match := FOLDER.fullmatch(name))), default=0)
    if work.place.url is None:
        return _committed_in_directory(work, name_of(work, store.instances[0]))
    remote = work.place.server()
    try:
        name = quote(name_of(work, store.instances[0]), safe="")
        return int(remote.call("GET", f"/v0/txn/{name}")["version"] or 0)
    finally:
        remote.close()


def _committed_in_directory(work: Work, name: str) -> int:
    """The committed version. A store that was killed knows it only after a start, so it is opened for a moment."""
    from topics.engine.backup import as_laid_out
    from topics.engine.config import EngineConfig
    from topics.engine.engine import Engine
    from topics.storage.view import StoreView

    path = work.place.path
    assert path is not None
    Engine.open(path, as_laid_out(work.fs, path, EngineConfig())).close()
    header = StoreView(work.fs, path).header
    rows = () if header is None else header.commits
    return max((row.version for row in rows if row.id == name), default=0)


def _one(work: Work, instance: Instance, first: int, last: int) -> tuple[int, list[dict[str, Any]]]:
    """One range; how many rows went in, and what of it is lost. It is read once: both are of the same reading.

    Its files are held here, where it is known when they were read.
    """
    import topics.spark

    options = work.place.options(topics=(instance.name,), start_seq=Bound(first), end_seq=Bound(last))
    cold: dict[str, Any] = {"cold": work.place.cold} if work.place.cold else {}
    with held(work.fs, options, work.clock.now_ms()), spoken():
        frame = topics.spark.read(
            work.spark(), topics=instance.name, seq=(first, last), meta="json", onDataLoss="emit", pinMs=0,
            **_where(work), **cold,
        ).persist()  # fmt: skip
        try:
            gaps = _gaps(frame, instance.name)
            if work.store().instances[0].key != instance.key:
                raise SourceError("recreated", f"{instance.name} was made anew while it was read", "run it again")
            records = frame.where("kind = 'record'").select("topic", "seq", "ts", "node", "tag", "data", "meta")
            made = _transformed(work, records)
            if work.options.get("into"):
                return _to_topic(work, made, name_of(work, instance), last), gaps
            return _to_folder(work, made, last), gaps
        finally:
            frame.unpersist()


def _where(work: Work) -> dict[str, Any]:
    place = work.place
    return {"path": place.path, "url": place.url, **({"apiKey": place.api_key} if place.api_key else {})}


def _gaps(frame: DataFrame, topic: str) -> list[dict[str, Any]]:
    found = frame.where("kind = 'gap'").select("seq", "gap_to", "reason").orderBy("seq").collect()
    return [{"topic": topic, "first": row["seq"], "last": row["gap_to"], "reason": row["reason"]} for row in found]


def _to_topic(work: Work, made: DataFrame, name: str, last: int) -> int:
    import topics.spark

    if "topic" in made.columns:
        made = made.drop("topic")
    made = made.select(*(column for column in ("data", "tag", "node", "meta") if column in made.columns)).persist()
    try:
        topics.spark.write(made, topic=work.options["into"], app_id=name, version=last, **_where(work))
        return made.count()
    finally:
        made.unpersist()


def _to_folder(work: Work, frame: DataFrame, last: int) -> int:
    out = work.output()
    aside = f"{out}/{STAGING_DIR}/{work.run}"
    ensure_dir(work.fs, f"{out}/{STAGING_DIR}")
    frame.write.mode("overwrite").option("compression", "zstd").parquet(aside)
    rows = work.spark().read.schema(frame.schema).parquet(aside).count()
    for name in os.listdir(aside):
        if name.startswith(("_", ".")):
            os.unlink(f"{aside}/{name}")
    try:
        os.rename(aside, f"{out}/upto={last:020d}")
    except OSError:
        shutil.rmtree(aside)
        raise
    work.fs.sync_dir(out)
    return rows


def _transformed(work: Work, frame: DataFrame) -> DataFrame:
    function, query = _function(work), work.options.get("sql")
    if function is not None:
        return function(frame)  # type: ignore[no-any-return]
    if query:
        frame.createOrReplaceTempView("input")
        return work.spark().sql(str(query))
    return frame


def _function(work: Work) -> Any:
    """The function that `--transform` names."""
    given = work.options.get("transform")
    if not given:
        return None
    module, _, name = str(given).partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        what = f"--transform: {given!r} cannot be found: {error}"
        raise SourceError("invalid_option", what, "name it as MODULE:FUNCTION, importable from here") from error
    finally:
        sys.path.remove(os.getcwd())
