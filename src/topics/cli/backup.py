"""`topics backup DEST`: a consistent copy of a store, running or stopped, to a folder or a bucket (06 S-319).

    --url URL     a running server, as --profile names one: it writes a checkpoint and holds its files while they are
                  copied. The command runs where these files are; --path says where they are seen from here, if that
                  differs
    --path DIR    a stopped store; its lock is held meanwhile
    neither       the server of TOPICS_URL or of a profile, else the store in TOPICS_DATA_DIR

What is at DEST already is not copied again; interrupted, the same command goes on. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from urllib.parse import quote

from topics import paths, settings
from topics.cli import remote
from topics.cli.progress import Progress
from topics.cli.wal_survey import read_whole
from topics.client.protocol import LONG_S
from topics.client.sync import Client
from topics.clock import SystemClock
from topics.codec import snapshot as snapshots
from topics.errors import CallerError, DataDirInUse, TopicsError
from topics.fs import Fs, OsFs
from topics.storage.backup.depot import Depot, FolderDepot
from topics.storage.backup.faults import SourceChanged
from topics.storage.backup.place import cold_fetcher, open_depot
from topics.storage.backup.take import Source, Taken, Taker
from topics.storage.inspect import inspect_names
from topics.storage.lockfile import check_free
from topics.storage.view import read_store_id

log = logging.getLogger("topics.cli")

PIN_MS = 3_600_000
MARGIN_MS = 60_000
"""A pin that ends so soon does not count: clocks differ, and answers take their time."""
CUTS_MAX = 24
"""How often a new cut is asked for because copying took longer than a pin lasts."""


class NotLocal(CallerError):
    """The server's files cannot be reached from here."""

    code = "not_local"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dest", metavar="DEST", help="folder or URL (s3://, gs://, az://) of the backup")
    remote.add_arguments(parser)
    parser.add_argument(
        "--path", metavar="DIR", help="a stopped store; with --url: where the server's data directory is from here"
    )
    parser.add_argument("--check", action="store_true", help="read what is at DEST already; copy anew what is damaged")


def run(args: argparse.Namespace) -> int:
    fs, clock = OsFs(), SystemClock()
    depot = open_depot(fs, args.dest, "DEST")
    began = clock.monotonic_ns()
    with Progress("backing up", silent=args.json or args.quiet) as progress:
        taker = Taker(depot, progress.add, check=args.check)
        if args.url or args.profile or (not args.path and remote.is_named(args)):
            with remote.connect(args) as server:
                taken = _of_server(fs, server, args.path, depot, taker)
        else:
            taken = _of_stopped(fs, args.path, depot, taker)
    _tell(taken, depot, (clock.monotonic_ns() - began) / 1e9, args)
    return 0


def _of_stopped(fs: Fs, path: str | None, depot: Depot, taker: Taker) -> Taken:
    from topics.engine.backup import held

    loaded = settings.from_env().settings
    path = path or loaded.data_dir
    inspect_names(fs, path)  # refuses what is no store, before an engine makes one of it
    _require_apart(depot, path)
    try:
        check_free(fs, path)
    except DataDirInUse as error:
        raise DataDirInUse(f"{error}; a running server is backed up with --url") from None
    with held(fs, path, loaded) as snapshot:
        fetch = cold_fetcher(fs, loaded.cold_dir or snapshot.header.cold, snapshot.header.store)
        return taker.take(Source(fs, path, snapshot, fetch))


def _of_server(fs: Fs, server: Client, path: str | None, depot: Depot, taker: Taker) -> Taken:
    dir = path or _data_dir(server)
    _require_apart(depot, dir)
    for _ in range(CUTS_MAX):
        try:
            return _of_cut(fs, server, dir, taker)
        except SourceChanged as error:
            changed = error
    raise changed


def _of_cut(fs: Fs, server: Client, dir: str, taker: Taker) -> Taken:
    """One attempt with one pin; what it copied is not copied again by the next."""
    clock = SystemClock()
    asked_ns = clock.monotonic_ns()
    told = server.call("POST", "/v0/checkpoint", {"pin_ms": PIN_MS}, answer_s=LONG_S)
    if not told.get("pin"):
        raise CallerError("the server keeps its topics in memory only: there is nothing to back up")
    try:
        snapshot = _snapshot(fs, dir, str(told["snapshot"]))
        fetch = cold_fetcher(fs, _cold(snapshot.header.cold), snapshot.header.store)

        def is_held() -> bool:
            return clock.monotonic_ns() - asked_ns < (PIN_MS - MARGIN_MS) * 1_000_000

        return taker.take(Source(fs, dir, snapshot, fetch, is_held))
    finally:
        _release(server, str(told["pin"]["id"]))


def _require_apart(depot: Depot, dir: str) -> None:
    """A backup among the files of its store would go with them."""
    if isinstance(depot, FolderDepot):
        dest, store = os.path.realpath(depot.name), os.path.realpath(dir)
        if os.path.commonpath((dest, store)) == store:
            raise CallerError(f"{depot.name} lies in the store that is backed up; name a place outside {dir}")


def _cold(named: str | None) -> str | None:
    return settings.from_env().settings.cold_dir or named


def _release(server: Client, id: str) -> None:
    """A pin that cannot be released, for want of the scope `read` perhaps, ends by itself."""
    try:
        server.call("DELETE", f"/v0/pins/{quote(id)}", repeatable=True)
    except TopicsError as error:
        log.warning("the server holds its files for up to an hour: the pin was not released: %s", error)


def _data_dir(server: Client) -> str:
    """Where the server says its store is: an absolute path with its topics, as it was given among its settings."""
    topics = server.call("GET", "/v0/topics?page_size=1&system=true").get("topics") or ()
    for one in topics:
        name = quote(str(one["topic"]), safe="")
        found = server.call("GET", f"/v0/topics/{name}/segments?limit=1").get("data_dir")
        if found is not None:
            return str(found)
    rows = server.call("GET", "/v0/settings")["settings"]
    return str(next(row["value"] for row in rows if row["name"] == "TOPICS_DATA_DIR"))


def _snapshot(fs: Fs, dir: str, name: str) -> snapshots.Snapshot:
    """The pinned snapshot, from the directory that must be the server's."""
    number = paths.parse_snapshot(name)
    try:
        raw = read_whole(fs, f"{dir}/{paths.META_DIR}/{name}")
    except FileNotFoundError:
        raise NotLocal(
            f"{dir} does not have the server's files; run this where they are, or say with --path where they are seen"
        ) from None
    found = snapshots.decode(raw)
    if found.header.id != number or found.header.store != read_store_id(fs, dir):
        raise NotLocal(f"{dir} is another store than the server's")
    return found


def _tell(taken: Taken, depot: Depot, seconds: float, args: argparse.Namespace) -> None:
    made = taken.manifest
    if args.json:
        told = {
            "ok": True, "dest": depot.name, "number": made.number, "store": made.store, "ts": made.ts,
            "snapshot": paths.snapshot(made.snapshot.number), "topics": made.topics, "segments": len(made.segments),
            "bytes": made.bytes, "copied_segments": taken.copied_segments, "copied_bytes": taken.copied_bytes,
            "removed_parts": taken.removed, "damaged_parts": taken.damaged, "seconds": round(seconds, 3),
        }  # fmt: skip
        print(json.dumps(told))
        return
    print(f"{depot.name}: backup {made.number} of store {made.store}")
    print(f"  {made.topics} topics, {len(made.segments)} segments, {made.bytes} bytes")
    print(f"  copied and verified {taken.copied_segments} segments, {taken.copied_bytes} bytes in {seconds:.1f} s")
    if args.check:
        print(f"  all that was there was read: {taken.damaged} parts were damaged and are copied anew")
