"""`topics pipeline init NAME`, `run [DIR]`, `dry-run [DIR]`: projects of Spark Declarative Pipelines [K-50].

    status   run, dry-run
    0        it ran, or would
    1        it failed: one line says why, all that Spark said is on stderr

Runs on the main thread; Spark is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from topics.cli.export import NeedsExtra, place_of
from topics.clock import SystemClock
from topics.fs import OsFs


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the project, and of the directory that is made")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--path", metavar="DIR", help="a store's data directory")
    where.add_argument("--url", help="a running server")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="the key for --url; the project keeps the name of the file"
    )
    parser.add_argument("--cold", metavar="DIR", help="cold tier, folder or URL, if it is not where the snapshot says")
    parser.add_argument(
        "--topic", metavar="NAME", action="append", default=[], help="a topic, repeatable; default: all"
    )
    parser.add_argument("--into", metavar="TOPIC", help="where silver rows are written back; default: TOPIC.silver")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", nargs="?", default=".", help="the project; default: here")
    parser.add_argument("--full-refresh", action="store_true", help="make all tables anew, from the first record on")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", nargs="?", default=".", help="the project; default: here")


def init(args: argparse.Namespace) -> int:
    try:
        from topics.spark.jobs import project
        from topics.spark.jobs.place import look, place_from
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    fs, place, root = OsFs(), place_from(place_of(args)), os.path.abspath(args.name)
    place = place._replace(path=None if place.path is None else os.path.abspath(place.path))
    store = look(fs, place, tuple(args.topic))
    made = project.init(fs, root, place, store, SystemClock().now_ms(), args.into, args.api_key_file)
    if args.json:
        print(json.dumps({"ok": True, "dir": root, "files": made}))
    elif not args.quiet:
        print(f"{root}: {', '.join(made)}")
        print(f"rules and columns are in {args.name}/pipeline.toml; run it with `topics pipeline run {args.name}`")
    return 0


def run(args: argparse.Namespace) -> int:
    return _run(args, dry=False)


def dry_run(args: argparse.Namespace) -> int:
    return _run(args, dry=True)


def _run(args: argparse.Namespace, *, dry: bool) -> int:
    try:
        from topics.spark.jobs import project
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    quiet = args.json or args.quiet
    refresh = bool(getattr(args, "full_refresh", False))
    told = project.run(os.path.abspath(args.dir), dry=dry, quiet=quiet, full_refresh=refresh)
    if args.json:
        print(json.dumps({"ok": True, "dry_run": dry, **told}))
    elif dry:
        print(f"{args.dir}: can be run")
    else:
        show(told)
    return 0


def show(told: dict[str, Any]) -> None:
    """What a run came to, for people."""
    for name, rows in told["rows"].items():
        new = f"{told['new'][name]:+,}" if name in told["new"] else ""
        print(f"{name:>14}  {rows:>10,} rows  {new}".rstrip())
    for rule, rows in told["rules"].items():
        print(f"{'broken rule':>14}  {rows:>10,} rows  {rule}")
