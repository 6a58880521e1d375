"""`topics pipeline demo`: everything once, on generated data, in a directory of its own [K-51].

    1. a server, and orders written to it, some of them bad
    2. archive to a Parquet table, and the proof that the table is the log
    3. a delete by tag, and how it reaches the table
    4. a declarative pipeline: bronze, silver with rules, gold, and silver rows back in a topic
    5. a hundred more orders, and a run that processes a hundred

Runs on the main thread; the server and the pipeline are processes of their own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from topics.cli.export import NeedsExtra
from topics.cli.pipeline_project import show
from topics.clock import SystemClock
from topics.errors import TimingError
from topics.fs import OsFs

ORDERS: Final = 5000
MORE: Final = 100
SEGMENT: Final = "500"
START_S: Final = 60
GOODS: Final = ("rye loaf", "spelt loaf", "croissant", "pretzel", "baguette", "oat bread")


class NoServer(TimingError):
    """The server of the demonstration does not start."""

    code = "no_server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", help="keep everything in DIR, which must be empty or missing")
    parser.add_argument("--orders", metavar="N", type=int, default=ORDERS, help=f"orders to write; default {ORDERS}")


def run(args: argparse.Namespace) -> int:
    try:
        importlib.import_module("topics.spark.jobs.spread")
        importlib.import_module("pyspark")
    except ModuleNotFoundError as error:
        raise NeedsExtra(f"{error.name} is not installed") from error
    root = os.path.abspath(args.dir) if args.dir else tempfile.mkdtemp(prefix="topics-pipeline-")
    if os.path.exists(root) and os.listdir(root):
        raise NoServer(f"{root} is not empty")
    os.makedirs(root, exist_ok=True)
    told: dict[str, Any] = {"ok": True, "dir": root}
    try:
        with server(root) as url:
            _Demo(root, url, args, told).run()
    finally:
        if not args.dir:
            shutil.rmtree(root, ignore_errors=True)
    if args.json:
        print(json.dumps(told))
    return 0


@contextmanager
def server(root: str) -> Iterator[str]:
    """A server in a process of its own, with small segments so that there is something to archive."""
    port_file = f"{root}/port"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    given = {
        "TOPICS_PORT": "0", "TOPICS_PORT_FILE": port_file, "TOPICS_DATA_DIR": f"{root}/store",
        "TOPICS_SEGMENT_MAX_EVENTS": SEGMENT,
    }  # fmt: skip
    with open(f"{root}/server.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "topics", "serve"], env={**own, **given}, stdout=log, stderr=log
        )
    try:
        yield f"http://{_address(process, port_file)}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


def _address(process: subprocess.Popen[bytes], port_file: str) -> str:
    pause = threading.Event()
    for _ in range(START_S * 20):
        if os.path.exists(port_file):
            with open(port_file, encoding="utf-8") as file:
                found = file.read().strip()
            if found and _ready(f"http://{found}"):
                return found
        if process.poll() is not None:
            break
        pause.wait(0.05)
    raise NoServer("the server did not start; see server.log")


def _ready(url: str) -> bool:
    from topics.spark.failure import SourceError
    from topics.spark.remote import Remote

    remote = Remote(url, None)
    try:
        remote.call("GET", "/v0/ready")
    except SourceError:
        return False
    finally:
        remote.close()
    return True


class _Demo:
    """The steps."""

    def __init__(self, root: str, url: str, args: argparse.Namespace, told: dict[str, Any]) -> None:
        from topics.spark.remote import Remote

        self._root, self._url, self._args, self._told = root, url, args, told
        self._server = Remote(url, None)
        self._random = random.Random(1)
        self._written = 0
        self._silent = args.json or args.quiet

    def run(self) -> None:
        self._say(f"a server at {self._url}, and {self._args.orders:,} orders")
        self._server.call("PUT", "/v0/topics/orders", {"durability": "fsync"})
        self._write(self._args.orders)
        self._server.call("POST", "/v0/checkpoint")
        self._lake()
        self._project()
        self._server.close()
        self._look()

    def _say(self, text: str) -> None:
        if not self._silent:
            print(f"\n— {text}", flush=True)

    def _write(self, n: int) -> None:
        for at in range(0, n, 500):
            rows = [self._order() for _ in range(min(500, n - at))]
            self._server.call("POST", "/v0/topics/orders", {"records": rows})

    def _order(self) -> dict[str, Any]:
        self._written += 1
        qty = self._random.randint(1, 12) if self._random.random() > 0.03 else -1
        data = {"order": self._written, "sku": self._random.choice(GOODS), "qty": qty, "price": round(qty * 2.4, 2)}
        return {"data": data, "tag": f"customer:{self._random.randint(1, 40)}"}

    def _lake(self) -> None:
        from topics.spark.jobs.work import start_spark

        spark, own = start_spark("local[2]", None)
        try:
            self._archive(spark)
        finally:
            if own:
                spark.stop()

    def _archive(self, spark: Any) -> None:
        from topics.spark.jobs import archive, verify
        from topics.spark.jobs.place import Place
        from topics.spark.jobs.work import Work, carry_out

        def job(name: str, module: Any) -> dict[str, Any]:
            work = Work(name, Place(url=self._url), ("orders",), f"{self._root}/lake", spark=spark)
            return carry_out(work, module)

        self._say("archive: sealed segments to a Parquet table, and the proof that it is the log")
        self._told["archive"] = job("archive", archive)
        self._tell(self._told["archive"], "rows", "files", "done")
        self._say("a customer is deleted by tag; the next archive takes the rows out of the table, too")
        self._server.call("POST", "/v0/topics/orders/delete", {"match": "customer:7"})
        self._recorded()
        self._told["erase"] = job("archive", archive)
        self._told["verify"] = job("verify-export", verify)
        self._tell(self._told["erase"], "rows", "erased")
        self._tell(self._told["verify"], "ok", "ranges")

    def _recorded(self) -> None:
        """Wait until the delete is told in `$deletes`, which is a moment later."""
        from topics.spark.failure import SourceError

        for _ in range(100):
            try:
                self._server.call("GET", "/v0/topics/$deletes")
                return
            except SourceError:
                threading.Event().wait(0.05)

    def _tell(self, summary: dict[str, Any], *names: str) -> None:
        if not self._silent:
            print("  " + ", ".join(f"{name}: {json.dumps(summary[name])}" for name in names), flush=True)

    def _project(self) -> None:
        from topics.spark.jobs import project
        from topics.spark.jobs.place import Place, look

        place, root = Place(url=self._url), f"{self._root}/shop"
        self._say("a declarative pipeline: bronze, silver with rules, gold, and silver rows back into orders.silver")
        store = look(OsFs(), place, ("orders",))
        project.init(OsFs(), root, place, store, SystemClock().now_ms(), None, None)
        for step in ("first", "second"):
            self._told[step] = project.run(root, dry=False, quiet=True, brief=True)
            if not self._silent:
                show(self._told[step])
            if step == "first":
                self._say(f"{MORE} more orders; the next run processes those alone")
                self._write(MORE)
        back = self._server.call("GET", "/v0/topics/orders.silver")
        self._told["back"] = back["head_seq"]

    def _look(self) -> None:
        if self._silent:
            return
        self._say("what to look at")
        print(f"  orders.silver has {self._told['back']:,} records: silver rows, each written once")
        if not self._args.dir:
            print("  with --dir DIR everything is kept: DIR/store, DIR/lake, DIR/shop (pipeline.toml has the rules)")
            return
        print(f"  {self._root}/lake                a table: read it with Spark, DuckDB or pandas")
        print(f"  {self._root}/lake/_topics        manifests and run records")
        print(f"  {self._root}/shop/pipeline.toml  columns and rules; change one and run `topics pipeline run`")
        print(
            f"  {self._root}/store               the log: `topics serve --data-dir`, then the console's Pipelines page"
        )
