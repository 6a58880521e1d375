"""A real Spark cluster on this machine: a standalone master and workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from topics.spark.java import find_java
from topics.testing.ports import free_port

END_S = 30


@contextmanager
def cluster(folder: Path, hosts: Sequence[str], python: str = sys.executable) -> Iterator[str]:
    """A master and a worker of one core on each host; what to connect to. Tasks run in this Python."""
    port = free_port()
    env = environment(python)
    master = f"spark://127.0.0.1:{port}"
    started = [_java(folder, env, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    try:
        for host in hosts:
            told = ("--host", host, "--cores", "1", "--memory", "600m", "--webui-port", "0")
            started.append(_java(folder, env, "worker.Worker", *told, "--work-dir", str(folder / "work"), master))
        yield master
    finally:
        for one in reversed(started):
            one.terminate()
        for one in reversed(started):
            try:
                one.wait(END_S)
            except subprocess.TimeoutExpired:  # how long a loaded machine takes to end a Java is nobody's promise
                one.kill()
                one.wait()


def environment(python: str = sys.executable) -> dict[str, str]:
    """Java as it is found, and an interpreter as `python3`: executors look for it in PATH (10 §8)."""
    path = os.pathsep.join([os.path.dirname(python), os.environ["PATH"]])
    own = {"SPARK_HOME": os.path.dirname(pyspark.__file__), "SPARK_LOCAL_IP": "127.0.0.1"}
    env = {**os.environ, "JAVA_HOME": find_java(), "PATH": path, "SPARK_DAEMON_MEMORY": "256m", **own}
    if python != sys.executable:
        env.pop("PYTHONPATH", None)  # it is to have what it has, and nothing of ours
    return env


def _java(folder: Path, env: dict[str, str], name: str, *args: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    command = [f"{env['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}", *args]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)
