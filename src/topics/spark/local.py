"""A local Spark session that is ready for topics [K-1]: loopback, Arrow, UTC, quiet; Java is found or brought.

Whoever has a session already needs none of this: the format is found by its name [K-2]. Driver only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
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
UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java reads what our own Python wrote: it need not look at the bounds of each value again."""
SOCKET_DIR_BYTES_MAX: Final = 60
"""A longer directory leaves no room for the name of a socket in it: some systems allow 104 bytes for both."""


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
    if not master.startswith("local") or sys.platform == "win32":
        return {}
    dir = _socket_dir()
    if len(os.fsencode(dir)) > SOCKET_DIR_BYTES_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": dir}


@cache
def _socket_dir() -> str:
    """Nobody else's: who can open a socket in it is not asked who he is."""
    dir = tempfile.mkdtemp(prefix="topics-")
    atexit.register(shutil.rmtree, dir, ignore_errors=True)
    return dir


def prepare() -> None:
    """Set what Spark takes from the environment; what is set already is left alone."""
    os.environ["JAVA_HOME"] = find_java()
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
