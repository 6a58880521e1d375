"""`topics restore SRC DIR`: a new store from a backup, every byte verified (06 S-319).

DIR is empty or does not exist; interrupted, the same command goes on, and until it has finished no server opens DIR.
Runs on the main thread.
"""

from __future__ import annotations

import argparse
import json

from topics.cli.progress import Progress
from topics.clock import SystemClock
from topics.fs import OsFs
from topics.storage.backup.place import open_depot
from topics.storage.backup.restore import restore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="folder or URL (s3://, gs://, az://) of the backup")
    parser.add_argument("dir", metavar="DIR", help="the new data directory")


def run(args: argparse.Namespace) -> int:
    fs, clock = OsFs(), SystemClock()
    depot = open_depot(fs, args.src, "SRC")
    began = clock.monotonic_ns()
    with Progress("restoring", silent=args.json or args.quiet) as progress:
        made = restore(fs, depot, args.dir, progress.add)
    seconds = (clock.monotonic_ns() - began) / 1e9
    backup = made.manifest
    if args.json:
        told = {
            "ok": True, "dir": args.dir, "src": depot.name, "number": backup.number, "store": made.store,
            "store_before": backup.store, "ts": backup.ts, "topics": backup.topics, "segments": len(backup.segments),
            "bytes": backup.bytes, "written_bytes": made.written_bytes, "seconds": round(seconds, 3),
        }  # fmt: skip
        print(json.dumps(told))
        return 0
    print(f"{args.dir}: store {made.store}, from backup {backup.number} of store {backup.store}")
    print(f"  {backup.topics} topics, {len(backup.segments)} segments, {backup.bytes} bytes in {seconds:.1f} s")
    return 0
