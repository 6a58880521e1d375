"""One Spark session for all tests: it takes seconds to start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import topics.spark
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.spark.local import BRIEF

AWS_KEYS = Path(tempfile.gettempdir()) / f"topics-spark-keys-{os.getpid()}"
"""Where tasks look for keys of a bucket: their environment is that of the session, from its start on."""
os.environ.setdefault("JAVA_TOOL_OPTIONS", BRIEF)
os.environ |= {"AWS_SHARED_CREDENTIALS_FILE": str(AWS_KEYS), "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, and tasks that fail are tried again (10 §8)."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    one = topics.spark.session("local[2,3]", spark_sql_warehouse_dir=warehouse)
    yield one
    one.stop()


Filled = Callable[..., str]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """Makes a store of topics with the given records, in segments of seven."""

    def make(**topics: list[dict[str, Any]]) -> str:
        path = str(tmp_path / "store")
        with Engine.open(path, EngineConfig(segment_max_events=7, wal_file_bytes=1 << 20)) as engine:
            for name, records in topics.items():
                engine.put_topic(name, {"durability": "fsync"})
                engine.append(name, records)
        return path

    return make
