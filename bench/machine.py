"""Where a figure comes from: machine, filesystem, commit, versions. Nothing here names a path or a user."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from topics.cli import peers
from topics.codec import kernel as topics_kernel

ROOT = Path(__file__).resolve().parent.parent
DEPENDENCIES = ("crc32c", "msgspec", "numpy", "pyarrow", "pyspark", "uvloop", "xxhash")


def describe(dir: Path) -> dict[str, Any]:
    """Everything a reader needs to judge a result measured in `dir`."""
    return {
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "kernel": f"{platform.system()} {platform.release()}",
            "filesystem": filesystem(dir),
            "load_before": [round(load, 2) for load in os.getloadavg()],
        },
        "commit": commit(),
        "versions": {
            "python": sys.version.split()[0],
            "topics kernel": topics_kernel.name(),
            **{name: _version(name) for name in DEPENDENCIES},
            **{name: peers.version(name) or "missing" for name in peers.NAMES},
        },
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def commit() -> str:
    """The commit under measurement, with a plus when the tree differs from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", "src", "bench", "native") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def cpu_model() -> str:
    """As the kernel calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def filesystem(dir: Path) -> str:
    """The type of the filesystem that holds `dir`."""
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except FileNotFoundError:
        return "unknown"
    return filesystem_in(table, dir.resolve())


def filesystem_in(mountinfo: str, dir: Path) -> str:
    """The type of the innermost mount above `dir` (proc(5): the type follows the lone dash)."""
    best = (-1, "unknown")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].encode().decode("unicode_escape"))
        if dir.is_relative_to(mount):
            # A later line mounts over an earlier one at the same place.
            best = max(best, (len(mount.parts), right.split()[0]), key=lambda found: found[0])
    return best[1]
