"""`topics checkpoint`: everything acknowledged into segment files, for readers of the directory (00 A-15).

    --url URL     a running server; default: TOPICS_URL, or a profile's
    --path DIR    a store that nobody has open: it is opened, checkpointed and closed

With neither it is the server at the default address, or else the store that `topics serve` would open, if no server has
it. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from topics import settings
from topics.cli import output, remote
from topics.client.protocol import LONG_S
from topics.errors import Unreachable
from topics.fs import OsFs
from topics.storage.inspect import inspect_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("--path", metavar="DIR", help="a store that nobody has open")


def run(args: argparse.Namespace) -> int:
    told = _told(args)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{told['topics']:,} topics are complete in segment files; {told['sealed']:,} segments were sealed")
    return 0


def _told(args: argparse.Namespace) -> dict[str, Any]:
    if args.path is not None:
        return _of_store(args.path)
    try:
        with remote.connect(args) as client:
            return client.call("POST", "/v0/checkpoint", repeatable=True, answer_s=LONG_S)
    except Unreachable:
        path = settings.from_env().settings.data_dir
        if remote.is_named(args) or not os.path.isdir(path):
            raise
        return _of_store(path)


def _of_store(path: str) -> dict[str, Any]:
    from topics.engine.engine import Engine
    from topics.engine.log import Log

    inspect_names(OsFs(), path)  # refuses what is no store, before an engine makes one of it
    with Log(Engine.open(path, settings.from_env().settings)) as log:
        done = log.checkpoint()
    return {"ok": True, "topics": done.topics, "sealed": done.sealed}
