"""`topics pipeline JOB`: jobs on Spark over whole stores (10 §5, §6).

`JOBS` is the one table of them. Every job knows where the store is (`--path`, `--url`, or as for `topics export`),
which topics are meant (`--topic`, else all), where to write (`--out`), which Spark to use (`--master`, `--remote`) and
what it would do (`--dry-run`); it prints one summary, under `--json` as an object, and leaves a record of the run
[K-40].

    status   meaning
    0        done, and everything that was to be shown was
    1        failed, or something differs or is damaged
    2        wrong usage
    3        done, and something is missing that cannot be had any more, or could not be proven

Runs on the main thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from topics.cli import pipeline_demo
from topics.cli import pipeline_project as project
from topics.cli.doctor import is_in_use
from topics.cli.export import NeedsExtra, place_of
from topics.cli.progress import Progress
from topics.cli.usage import UsageError
from topics.fs import OsFs


class Job(NamedTuple):
    """A row of the table."""

    name: str
    help: str
    module: str
    arguments: Callable[[argparse.ArgumentParser], None]
    options: tuple[str, ...] = ()
    """What the job takes from its own arguments."""


def _archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("parquet", "delta", "iceberg"), help="of a new table; default: parquet")
    parser.add_argument("--columns", metavar="DDL", help='members of data as columns: "sku string, qty int"')
    parser.add_argument("--variant", action="store_true", help="add data as a VARIANT column; parquet only")
    parser.add_argument("--partition-bytes", metavar="N", type=int, help="bytes of log per file; default: 96 MiB")
    parser.add_argument("--keep-dropped", action="store_true", help="keep the rows of topics that were deleted")


def _backfill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--into", metavar="TOPIC", help="the topic to write to; without it Parquet files in --out")
    parser.add_argument("--transform", metavar="MODULE:FUNCTION", help="from DataFrame to DataFrame")
    parser.add_argument("--sql", metavar="QUERY", help="the same as a query over the view `input`")
    parser.add_argument("--from", dest="first", metavar="SEQ", type=int, help="first seq; default: 1")
    parser.add_argument("--to", dest="last", metavar="SEQ", type=int, help="last seq; default: what is durable")
    parser.add_argument("--step", metavar="N", type=int, help="seqs that are written at a time; default: 1000000")
    parser.add_argument("--name", metavar="NAME", help="under which the target knows this backfill")


def _compact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--min-dead-ratio", metavar="R", type=float, help="share of dead bytes; default: 0.5")
    parser.add_argument("--bytes-per-sec", metavar="N", type=int, help="read and written; default: as configured")


def _nothing(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


JOBS: tuple[Job, ...] = (
    Job(
        "archive", "copy sealed segments to a lake table, incrementally and exactly once",
        "topics.spark.jobs.archive", _archive, ("format", "columns", "variant", "partition_bytes", "keep_dropped"),
    ),
    Job("verify-export", "prove that a lake table equals the log", "topics.spark.jobs.verify", _nothing),
    Job("scrub", "verify every file of a store in all tiers, in parallel", "topics.spark.jobs.scrub", _nothing),
    Job("stats", "rates, sizes, tags and members of topics, as a page with plots", "topics.spark.jobs.stats", _nothing),
    Job(
        "compact", "give back the bytes of deleted records; seqs and reads stay", "topics.spark.jobs.compact", _compact,
        ("min_dead_ratio", "bytes_per_sec"),
    ),
    Job(
        "backfill", "replay a topic through a transform into another topic or files", "topics.spark.jobs.backfill",
        _backfill, ("into", "transform", "sql", "first", "last", "step", "name"),
    ),
    Job("rebuild", "make index and tag files anew from the data", "topics.spark.jobs.rebuild", _nothing),
)  # fmt: skip


class Action(NamedTuple):
    """A command of this group that is no job over a store."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _add_submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", metavar="FILE", required=True, help="the archive; it is made if it is not there")
    parser.add_argument("words", metavar="JOB …", nargs=argparse.REMAINDER, help="a job and its arguments")


def _submit(args: argparse.Namespace) -> int:
    """Build the archive, then run the job with it."""
    from topics.cli.main import build_parser

    parsed = build_parser(["pipeline"]).parse_args(["pipeline", *args.words])
    if not isinstance(parsed.row, Job):
        raise UsageError(f"{parsed.job} is no job over a store", args.prog)
    try:
        from topics.spark.jobs import ship
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    if not os.path.exists(args.archive):
        files = ship.build(args.archive)
        if not (args.quiet or args.json):
            print(f"{args.archive}: {files:,} files, {os.path.getsize(args.archive):,} bytes")
    parsed.ship = args.archive
    for name in ("json", "quiet", "debug"):
        setattr(parsed, name, getattr(parsed, name) or getattr(args, name))
    return _run(parsed, parsed.row)


ACTIONS: tuple[Action, ...] = (
    Action("init", "make a project of Spark Declarative Pipelines over topics", project.add_init, project.init),
    Action("run", "run a project: what is new goes through it", project.add_run, project.run),
    Action("dry-run", "check a project without running it", project.add_dry_run, project.dry_run),
    Action("submit", "run a job on a cluster where this package is not installed", _add_submit, _submit),
    Action("demo", "everything once, on generated data", pipeline_demo.add_arguments, pipeline_demo.run),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", dest="job", required=True)
    for action in ACTIONS:
        sub = jobs.add_parser(
            action.name, help=action.help, description=action.help[:1].upper() + action.help[1:] + "."
        )
        action.arguments(sub)
        sub.set_defaults(row=action)
    for job in JOBS:
        sub = jobs.add_parser(job.name, help=job.help, description=job.help[:1].upper() + job.help[1:] + ".")
        _common(sub)
        job.arguments(sub)
        sub.set_defaults(row=job, ship=None)


def _common(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--path", metavar="DIR", help="a store's data directory")
    where.add_argument("--url", help="a running server")
    parser.add_argument("--api-key-file", metavar="FILE", help="the key for --url, - reads it from stdin")
    parser.add_argument("--cold", metavar="DIR", help="cold tier, folder or URL, if it is not where the snapshot says")
    parser.add_argument(
        "--topic", metavar="NAME", action="append", default=[], help="a topic, repeatable; default: all"
    )
    parser.add_argument("--out", metavar="DIR", help="where it writes")
    parser.add_argument("--master", metavar="URL", help="Spark's master; default: local[*]")
    parser.add_argument("--remote", metavar="URL", help="a Spark Connect server, sc://HOST:PORT")
    parser.add_argument(
        "--conf", metavar="KEY=VALUE", action="append", default=[], type=_setting, help="of Spark; repeatable"
    )
    parser.add_argument("--no-record", action="store_true", help="leave no record of the run in $pipelines")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _setting(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not is_given or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not spark.NAME=VALUE")
    return name, value


def run(args: argparse.Namespace) -> int:
    return args.row.run(args) if isinstance(args.row, Action) else _run(args, args.row)


def _run(args: argparse.Namespace, job: Job) -> int:
    try:
        from topics.spark.jobs.place import place_from
        from topics.spark.jobs.ship import conf as shipped
        from topics.spark.jobs.work import Work, carry_out, survey

        module = importlib.import_module(job.module)
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    options = {name: getattr(args, name) for name in job.options} | {"record": not args.no_record}
    place = place_from(place_of(args))
    conf = dict(args.conf) | ({} if args.ship is None else shipped(args.ship))
    options["in_use"] = place.path is not None and is_in_use(OsFs(), place.path)
    with Progress(job.name, silent=args.json or args.quiet) as progress:
        work = Work(
            job.name, place, tuple(args.topic), args.out, master=args.master, remote=args.remote,
            options=options, tell=progress.at, conf=conf,
        )  # fmt: skip
        try:
            if args.dry_run:
                store = survey(work, module)
                module.check(work, store)
                summary = {"ok": True, "job": job.name, "dry_run": True, "plan": module.plan(work, store)}
            else:
                summary = carry_out(work, module)
        finally:
            work.close()
    status = int(summary.pop("status", 0))
    _show(summary, args)
    return status


def _show(summary: Mapping[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(summary))
    elif not args.quiet:
        for name, value in summary.items():
            if value not in (None, [], {}):
                print(f"{name:>14}  {_plain(value)}")


def _plain(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{value:,}"
