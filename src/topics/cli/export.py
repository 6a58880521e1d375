"""`topics export NAME… --out FILE`: records into Parquet, Arrow, CSV or JSON lines, without Spark (10 K-3, 11 §2).

    --path DIR    a store's files, also while a server has them open: the state of its newest snapshot
    --url URL     a running server, exact at the time of the call

Without either it is TOPICS_URL, or else the store that `topics serve` would open. Gaps are rows of the file, too.

    status   meaning
    0        everything that was there is in the file
    1        failed; no file was written
    3        the file is complete, and tells of records that are lost

Runs on the main thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from topics import settings
from topics.cli import remote
from topics.cli.progress import Progress
from topics.clock import SystemClock
from topics.errors import CallerError
from topics.fs import OsFs

if TYPE_CHECKING:
    from topics.spark.export import Exported

FORMATS = ("parquet", "arrow", "csv", "jsonl")
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv", ".jsonl": "jsonl",
           ".ndjson": "jsonl"}  # fmt: skip


class NeedsExtra(CallerError):
    """A package of an extra is not installed."""

    code = "missing_extra"
    hint = "pip install 'topics[spark]', or pyarrow alone"


class OutExists(CallerError):
    """There is a file of that name."""

    code = "file_exists"
    hint = "--yes replaces it"


class NoFile(CallerError):
    """A folder, a device or a pipe stands where the file should be."""

    code = "not_a_file"
    hint = "name a file; it appears when it is complete, so it cannot be a pipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="+", help="topics to export, one after the other")
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to write")
    parser.add_argument("--format", choices=FORMATS, help="default: by the ending of FILE, or else parquet")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--path", metavar="DIR", help="a store's data directory")
    where.add_argument("--url", help="a running server")
    parser.add_argument("--api-key-file", metavar="FILE", help="the key for --url, - reads it from stdin")
    parser.add_argument("--cold", metavar="DIR", help="cold tier, folder or URL, if it is not where the snapshot says")
    parser.add_argument("--yes", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> int:
    if os.path.exists(args.out) and not os.path.isfile(args.out):
        raise NoFile(f"{args.out} is no file that could be replaced")
    if os.path.exists(args.out) and not args.yes:
        raise OutExists(f"{args.out} exists")
    format = args.format or ENDINGS.get(os.path.splitext(args.out)[1].lower(), "parquet")
    given = {"topics": ",".join(args.names), "onDataLoss": "emit", **place_of(args)}
    done = _export(args, given, format)
    if args.json:
        print(json.dumps({"ok": True, "out": args.out, "format": format, **done._asdict()}))
    elif not args.quiet:
        print(f"{args.out}: {done.rows:,} records, {done.bytes:,} bytes of {format}")
    if done.gaps and not args.json:
        print(f"{args.out}: {done.gaps:,} gaps: records that are lost, told as rows of kind gap", file=sys.stderr)
    return 3 if done.gaps else 0


def _export(args: argparse.Namespace, given: dict[str, str], format: str) -> Exported:
    try:
        from topics.spark.export import export
        from topics.spark.options import parse_read
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    with Progress("exporting", silent=args.json or args.quiet, unit="batches") as progress:
        return export(OsFs(), SystemClock(), parse_read(given), args.out, format, progress.add)


def place_of(args: argparse.Namespace) -> dict[str, str]:
    """The options that say where the records are."""
    url = args.url if args.url or args.path else os.environ.get("TOPICS_URL")
    if url:
        key = remote.key_of(args)
        return {"url": url} | ({"apiKey": key} if key else {})
    path = args.path if args.path is not None else settings.from_env().settings.data_dir
    return {"path": path} | ({"cold": args.cold} if args.cold else {})
