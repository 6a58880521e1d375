"""`topics delete NAME --before/--tag/--prefix`: records of a topic, shown first (11 §2). Runs on the main thread.

What is deleted is what was shown: records that are written meanwhile stay.
"""

from __future__ import annotations

import argparse
from typing import Any

from topics.cli import output, remote, units
from topics.cli.confirm import confirmed
from topics.cli.usage import UsageError
from topics.client.body import topic_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="name of the topic")
    parser.add_argument("--before", type=units.seq, metavar="SEQ", help="records below this seq")
    tags = parser.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="records with this tag")
    tags.add_argument("--prefix", metavar="PREFIX", help="records whose tag begins with this")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def run(args: argparse.Namespace) -> int:
    selected = _selected(args)
    path = topic_path(args.name) + "/delete"
    with remote.connect(args) as client:
        told = client.call("POST", path, {**selected, "dry_run": True}, repeatable=True)
        if not args.dry_run:
            if not args.json:
                print(f"{args.name}: {told['deleted']:,} records would go")
            if not args.yes and not confirmed(f"delete {told['deleted']:,} records of {args.name}?"):
                return 1
            last = told["head_seq"] + 1
            selected["before_seq"] = min(selected.get("before_seq", last), last)
            told = client.call("POST", path, selected, repeatable=True)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        done = "would go" if args.dry_run else "deleted"
        print(f"{args.name}: {told['deleted']:,} records {done}; {told['count']:,} are there")
    return 0


def _selected(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if args.before is not None:
        found["before_seq"] = args.before
    if args.tag is not None:
        found["match"] = ["tag", "Eq", args.tag]
    if args.prefix is not None:
        found["match"] = ["tag", "Glob", args.prefix + "*"]
    if not found:
        raise UsageError("say which records: --before SEQ, --tag TAG or --prefix PREFIX", args.prog)
    return found
