"""One run of a job [K-40]: where it works, with which Spark, whom it tells, and the record of it.

    record     {"job","run","store","topics","started_ms","ended_ms","ok","rows","bytes","out","error"}
    where      `<out>/_topics/runs/<run>.json` for jobs with an output; topic `$pipelines` with a server, tag = job
    when       one at the start, `ended_ms` null, one at the end; the file is replaced

A run whose start cannot be recorded does not begin: a server that shows pipelines would show less than there is. Driver
only, one thread.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from topics.clock import Clock, SystemClock
from topics.errors import StoreUnavailable, TopicsError
from topics.fs import Fs, OsFs, ensure_dir, random_id, replace_file
from topics.spark.failure import SourceError
from topics.spark.jobs import files
from topics.spark.jobs.place import PIPELINES, Place, Store, as_json, look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OK: Final = 0
FAILED: Final = 1
GAPS: Final = 3
"""Done, and something is missing that cannot be had any more, or could not be proven."""
RUNS_DIR: Final = "_topics/runs"
MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
CONNECT_S: Final = 5.0
JVM_JOBS: Final = frozenset({"backfill"})
"""Whose work Spark itself does; all others are done by tasks of Python, which Java only starts."""

Tell = Callable[[int, int, str], None]
"""How far a step is: done, of how many, of what."""


class Outcome(NamedTuple):
    """What a run came to."""

    rows: int = 0
    bytes: int = 0
    told: Mapping[str, Any] = {}
    """What else its summary says."""
    status: int = OK


class Work:
    """One run, before and while it is made."""

    def __init__(
        self,
        job: str,
        place: Place,
        topics: tuple[str, ...] = (),
        out: str | None = None,
        *,
        master: str | None = None,
        remote: str | None = None,
        spark: SparkSession | None = None,
        conf: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        tell: Tell = lambda done, total, unit: None,
        fs: Fs | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.job = job
        self.place = place._replace(path=None if place.path is None else os.path.abspath(place.path))
        self.topics = topics
        self.out = None if out is None else files.normal(out)
        self.options = dict(options or {})
        self.tell = tell
        self.fs = OsFs() if fs is None else fs
        self.clock = SystemClock() if clock is None else clock
        self.run = f"{self.clock.now_ms():013d}-{random_id()[:8]}"
        self._master, self._remote = master, remote
        self._conf = dict(conf or {})
        self._spark = spark
        self._own = False

    def spark(self) -> SparkSession:
        """The session, started when it is first needed."""
        if self._spark is None:
            brief = self.job not in JVM_JOBS
            self._spark, self._own = start_spark(self._master, self._remote, self._conf, brief=brief)
        return self._spark

    def store(self) -> Store:
        """The wanted topics as they are now."""
        return look(self.fs, self.place, self.topics)

    def output(self) -> str:
        """The directory to write to."""
        if self.out is None:
            raise SourceError("usage", f"{self.job} writes files", "name a directory with --out")
        return self.out

    def number(self, option: str, default: int, *, least: int = 1) -> int:
        """An option that counts something; the default if it was not given."""
        given = self.options.get(option)
        if given is not None and int(given) < least:
            name = {"first": "from"}.get(option, option.replace("_", "-"))
            raise SourceError("invalid_option", f"--{name}: {given} is less than {least}", "use a larger number")
        return default if given is None else int(given)

    def close(self) -> None:
        """Stop a session that was started for this run."""
        if self._own and self._spark is not None:
            self._spark.stop()
            self._spark, self._own = None, False


def start_spark(
    master: str | None, remote: str | None, conf: Mapping[str, str] | None = None, *, brief: bool = True
) -> tuple[SparkSession, bool]:
    """A session, and whether it is ours to stop; an address nobody listens at is told before Spark waits for it."""
    from topics.spark.local import prepare, session

    prepare()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    try:
        if remote is not None:
            _reachable(remote, "sc", 15002, "--remote")
            return SparkSession.builder.remote(remote).getOrCreate(), True
        chosen = master or "local[*]"
        if not chosen.startswith(MASTERS):
            raise SourceError("invalid_option", f"--master: {chosen!r} is no master", "local[N], spark://HOST:PORT, …")
        if chosen.startswith("spark://"):
            _reachable(chosen, "spark", 7077, "--master")
        return session(chosen, brief=brief, **(conf or {})), running is None
    except SourceError:
        raise
    except (PySparkException, RuntimeError, ValueError) as error:
        raise SourceError("no_spark", f"no session: {first_line(error)}", "check --master or --remote") from error
    except Exception as error:  # py4j's errors have no common base that can be imported without it
        raise SourceError("no_spark", f"no session: {first_line(error)}", "check --master or --remote") from error


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _reachable(url: str, scheme: str, port: int, option: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != scheme or not parts.hostname:
        raise SourceError("invalid_option", f"{option}: {url!r} is no address", f"use {scheme}://HOST:PORT")
    try:
        socket.create_connection((parts.hostname, parts.port or port), CONNECT_S).close()
    except OSError as error:
        what = f"{option}: nobody listens at {url}: {error}"
        raise SourceError("unreachable", what, "start it, or use --master 'local[*]'") from error


def carry_out(work: Work, job: ModuleType) -> dict[str, Any]:
    """Make a run and give its summary, which has the exit status; errors are raised once they are recorded."""
    store = survey(work, job)
    names = [one.name for one in store.instances]
    record: dict[str, Any] = {
        "job": work.job, "run": work.run, "store": store.id, "topics": names, "started_ms": work.clock.now_ms(),
        "ended_ms": None, "ok": None, "rows": 0, "bytes": 0, "out": work.out, "error": None,
    }  # fmt: skip
    job.check(work, store)
    note(work, record)
    try:
        outcome: Outcome = job.run(work, store)
    except BaseException as error:
        note(work, {**record, "ended_ms": work.clock.now_ms(), "ok": False, "error": _shown(error)}, last=True)
        raise
    ended = {
        **record, "ended_ms": work.clock.now_ms(), "ok": outcome.status == OK, "rows": outcome.rows,
        "bytes": outcome.bytes,
    }  # fmt: skip
    note(work, ended)
    return {**ended, **outcome.told, "status": outcome.status}


def survey(work: Work, job: ModuleType) -> Store:
    """The topics a job is about. A job that looks for damage also takes a store that cannot be read."""
    if files.is_objects(work.out) and not hasattr(job, "OBJECTS"):
        raise SourceError("unsupported", f"--out: {work.job} writes to a directory", "name one of this machine")
    try:
        return work.store()
    except SourceError as error:
        if work.place.path is None or error.code in ("no_store", "topic_not_found") or not hasattr(job, "DAMAGED"):
            raise
        return Store(None, [])


def _shown(error: BaseException) -> str:
    return str(error) if isinstance(error, TopicsError) else f"{type(error).__name__}: {first_line(error)}"


def note(work: Work, record: Mapping[str, Any], *, last: bool = False) -> None:
    """Write a run record; with `last`, what is in the way of it is passed over: the run's own error counts."""
    try:
        if work.out is not None and files.is_objects(work.out):
            files.bucket(work.out).put(f"{RUNS_DIR}/{work.run}.json", as_json(record) + b"\n", {})
        elif work.out is not None:
            folder = f"{work.out}/{RUNS_DIR}"
            ensure_dir(work.fs, folder)
            replace_file(work.fs, f"{folder}/{work.run}.json", as_json(record) + b"\n")
        if work.place.url is not None and work.options.get("record", True):
            _publish(work, record)
    except (OSError, SourceError, StoreUnavailable) as error:
        if not last:
            raise _unrecorded(error, work) from error


def _unrecorded(error: Exception, work: Work) -> SourceError:
    if isinstance(error, SourceError):
        hint = f"use a key with write and admin, or --no-record: runs are recorded in {PIPELINES}"
        return SourceError(error.code, error.what, hint)
    return SourceError("io_error", f"{work.out} cannot be written: {error}", "check the path and its permissions")


def _publish(work: Work, record: Mapping[str, Any]) -> None:
    remote = work.place.server()
    try:
        remote.call("POST", f"/v0/topics/{PIPELINES}", {"records": [{"data": record, "tag": work.job}]})
    finally:
        remote.close()
