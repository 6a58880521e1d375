"""Bulk loads: rows become segments and are attached in one step, or nothing is [K-34].

`TOPICS_TEST_BULK_ROWS=5000000` is the full size.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import topics.spark
from tests.spark.between import Pass, Reply, between
from tests.spark.test_sink import COMMIT
from tests.spark.test_write import left_staged
from topics.engine.engine import Engine
from topics.spark.failure import SourceError
from topics.spark.parts import Staged, Version, stage
from topics.spark.rows import Row
from topics.spark.sink import FolderTarget
from topics.spark.writeoptions import parse_write
from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerProcess

ROWS = int(os.environ.get("TOPICS_TEST_BULK_ROWS", "20000"))
TIMEOUT = 300 + ROWS // 5000


class Servers:
    """One server after another on a directory, and what is seen of a topic meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills = 0
        self.heads: set[int] = set()
        self.missed = ""
        """Why it could not be looked at last."""
        self._one = ServerProcess(folder, {})
        self._one.wait_ready()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look)
        self._looking.start()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self._one.address)

    def head(self) -> int:
        with HttpConn(*self._one.address) as http:
            answer = http.call("GET", "/v0/topics/bulk")
        return int(answer.body["head_seq"]) if answer.status == 200 else 0

    def _look(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.heads.add(self.head())
            except OSError as error:
                self.missed = str(error)

    def kill(self) -> None:
        """SIGKILL, and the next one."""
        self._one.kill()
        self._one = ServerProcess(self.folder, {})
        self._one.wait_ready()
        self.kills += 1

    def close(self) -> None:
        self._over.set()
        self._looking.join()
        self._one.abandon()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    one = Servers(tmp_path / "server")
    yield one
    one.close()


def load(frame: DataFrame, url: str) -> None:
    topics.spark.write(frame, url=url, topic="bulk", app_id="load", version=1, mode="segments", batchRecords=2000)


@pytest.mark.timeout(TIMEOUT)
def test_a_bulk_load_is_attached_whole_once_though_the_server_is_killed(spark: SparkSession, servers: Servers) -> None:
    """K-34, 06 S-288, S-289: while rows are staged, and while segments are made of them."""
    frame = spark.range(0, ROWS, 1, 4).selectExpr("concat('{\"n\":', id, '}') data", "concat('t', id % 7) tag")
    with between(servers.url) as proxy:
        one_at_a_time = threading.Lock()

        def while_staging(path: str, body: bytes, forward: Pass) -> Reply | None:
            with one_at_a_time:  # tasks ask side by side
                if len(proxy.asked) < 4 or servers.kills:
                    return forward()
                proxy.step = while_committing
                servers.kill()
                proxy.target = servers.url
                return None

        def while_committing(path: str, body: bytes, forward: Pass) -> Reply | None:
            if path != COMMIT:
                return forward()
            proxy.step = lambda path, body, forward: forward()
            asking = threading.Thread(target=_cut_off, args=(forward,))
            asking.start()
            while asking.is_alive() and not _there(servers.folder, "data/staging/*/out"):
                asking.join(0.001)
            servers.kill()
            asking.join()
            proxy.target = servers.url
            if not servers.head():
                assert left_staged(servers.folder / "data") == [], "nothing is left of it"
            return None

        proxy.step = while_staging
        for _ in range(3):
            try:
                load(frame, proxy.url)
                break
            except SourceError as error:
                if not error.code.startswith("txn_"):
                    raise
        assert servers.kills == 2
        load(frame, proxy.url)
    assert servers.head() == ROWS
    assert servers.heads <= {0, ROWS}, "nobody saw a part of it"
    assert left_staged(servers.folder / "data") == []
    found = topics.spark.read(spark, url=servers.url, topics="bulk", payload="n long")
    told = found.selectExpr("count(*)", "count(distinct data.n)", "min(data.n)", "max(data.n)").first()
    assert told is not None
    assert tuple(told) == (ROWS, ROWS, 0, ROWS - 1)


def _cut_off(forward: Pass) -> None:
    with suppress(OSError, HTTPException):
        forward()


def _there(path: Path, pattern: str) -> bool:
    with suppress(FileNotFoundError):  # a folder may go while it is looked into
        return any(path.glob(pattern))
    return False


COMMITTING = """
import sys
from topics.spark.parts import Staged, Version
from topics.spark.sink import FolderTarget
from topics.spark.writeoptions import parse_write

path, part = sys.argv[1], Staged("p0", int(sys.argv[2]), int(sys.argv[3]))
FolderTarget(parse_write({"path": path, "mode": "segments"})).commit(Version("load", 1), [part])
"""


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("moment", ["staging", "out", "attached"])
def test_a_load_into_a_directory_is_whole_though_the_driver_is_killed(moment: str, tmp_path: Path) -> None:
    """K-30, K-34: in the middle of its commit; run again it is there once."""
    path = tmp_path / "store"
    options = parse_write({"path": str(path), "mode": "segments"})
    target, version, n = FolderTarget(options), Version("load", 1), max(ROWS // 5, 1000)

    def staged(part: str) -> Staged:
        return stage(target, options, version, part, (Row(at, "bulk", None, None, b'{"d":%d}' % at) for at in range(n)))

    part = staged("p0")
    command = [sys.executable, "-c", COMMITTING, str(path), str(part.chunks), str(part.records)]
    pattern = {"staging": "staging/*/*", "out": "staging/*/out", "attached": "topics/*/*.data"}[moment]
    committing = subprocess.Popen(command)
    while committing.poll() is None and not _there(path, pattern):
        threading.Event().wait(0.0005)
    committing.send_signal(signal.SIGKILL)
    committing.wait()
    with Engine.open(str(path)) as engine:
        assert "bulk" not in engine.topics() or engine.state("bulk").head_seq in (0, n)
    for _ in range(2):
        target.commit(version, [staged("p1")])
        assert os.listdir(tmp_path) == ["store"]
        with Engine.open(str(path)) as engine:
            assert engine.state("bulk").head_seq == n
            assert [one.data for one in engine.read("bulk", n - 3).records] == [n - 3, n - 2, n - 1]
