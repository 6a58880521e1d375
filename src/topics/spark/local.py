"""A local Spark session that is ready for topics [K-1]: loopback, Arrow, UTC, quiet; Java is found or brought.

Whoever has a session already needs none of this: the format is found by its name [K-2]. Driver only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from topics.spark.failure import SourceError
from topics.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
CONF: Final[dict[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java machines that live for seconds, or only start tasks of Python: half of their time would go into optimising
what is soon gone."""
UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true"
"""Arrow's own Python wrote what Java reads: it need not look at the bounds of each value again."""
SOCKET_NAME_BYTES: Final = 42
"""Of the sockets that Spark makes."""


def session(master: str = "local[*]", *, app: str = "topics", brief: bool = False, **conf: Any) -> SparkSession:
    """The session of this process, started if there is none.

    `conf` are further settings of Spark; dots may be written as underscores: `spark_driver_memory="4g"`. `brief`: the
    Java machine has little to do itself.
    """
    prepare()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SourceError("no_spark", "pyspark is not installed", "pip install 'topics[spark]'") from error
    builder = SparkSession.builder.master(master).appName(app)
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    given = {name if "." in name else name.replace("_", "."): str(value) for name, value in conf.items()}
    for name, value in (CONF | _java(brief) | _sockets(master) | shuffle | given).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _java(brief: bool) -> dict[str, str]:
    """Our own settings for the JVM, Arrow in it and its log; a path that Spark would take apart is left out."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
    words = [] if " " in file else [f"-Dlog4j2.configurationFile=file://{file}"]
    words += [UNCHECKED, BRIEF] if brief else [UNCHECKED]
    return {"spark.driver.extraJavaOptions": " ".join(words)}


def _sockets(master: str) -> dict[str, str]:
    """Java and Python on one machine pass rows through a socket of that machine, which takes less than TCP does."""
    dir = _socket_dir() if master.startswith("local") and hasattr(socket, "AF_UNIX") else None
    if dir is None:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": dir}


_made: list[str] = []
"""Directories for sockets, the newest last."""


def _socket_dir() -> str | None:
    """Nobody else's, since who can open a socket in it is not asked who he is; None where none can be there."""
    if _made and os.path.isdir(_made[-1]):
        return _made[-1]
    dir = tempfile.mkdtemp(prefix="t-")
    probe = os.path.join(dir, "-" * SOCKET_NAME_BYTES)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(probe)
        os.unlink(probe)
    except OSError:  # a path that is too long, or files that are no sockets
        shutil.rmtree(dir, ignore_errors=True)
        return None
    _made.append(dir)
    atexit.register(_remove, dir, os.getpid())
    return dir


def _remove(dir: str, pid: int) -> None:
    if os.getpid() == pid:  # not a child's, whose end is not the session's
        shutil.rmtree(dir, ignore_errors=True)


def prepare() -> None:
    """Set what Spark takes from the environment; what is set already is left alone."""
    os.environ["JAVA_HOME"] = find_java()
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
