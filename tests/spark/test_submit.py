"""Jobs on a cluster where this package is not installed: the archive brings it [K-41]."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import topics
from tests.spark.cluster import cluster, environment


def bare_python(folder: Path) -> str:
    """An interpreter of this version with nothing installed."""
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python3")
    looked = subprocess.run([python, "-c", "import topics"], env=environment(python), capture_output=True, check=False)
    assert looked.returncode != 0, "it has the package after all"
    return python


def submit(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "topics", "pipeline", "submit", "--json", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.timeout(600)
def test_a_job_runs_where_the_package_is_not_installed(tmp_path: Path) -> None:
    """K-41: the driver builds the archive once, and tasks find in it whatever they import."""
    store, archive = tmp_path / "store", tmp_path / "made" / "topics.zip"
    with topics.open(store) as log:
        log.append_many("orders", [topics.new({"n": n}, tag=f"t{n % 3}") for n in range(500)])
        log.checkpoint()
    python = bare_python(tmp_path / "bare")
    small = (
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.driver.memory=512m",
        "--conf",
        "spark.cores.max=1",
    )
    with cluster(tmp_path / "cluster", ["127.0.0.1"], python) as master:
        done = submit("--archive", str(archive), "scrub", "--path", str(store), "--master", master, *small)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["ok"], summary["findings"], summary["job"]) == (True, [], "scrub")
    assert summary["rows"] >= 500
    unpacked = list((tmp_path / "cluster" / "work").glob("app-*/*/topics_env/topics"))
    assert len(unpacked) == 1, "it ran somewhere else"
    with zipfile.ZipFile(archive) as made:
        names = made.namelist()
    assert {"topics/__init__.py", "pyspark_topics/__init__.py", "msgspec/__init__.py"} <= set(names)
    assert ("topics_kernel/__init__.py" in names) == (find_spec("topics_kernel") is not None)
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


def test_only_jobs_over_a_store_are_submitted(tmp_path: Path) -> None:
    """[U-10]"""
    done = submit("--archive", str(tmp_path / "a.zip"), "demo")
    assert done.returncode == 2
    assert "demo is no job over a store" in done.stderr
    assert list(tmp_path.iterdir()) == []
