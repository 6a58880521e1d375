"""A pass of read, stream and sink on a real cluster: a standalone master and two workers, started here [K-35]."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.api.kit import running
from tests.spark.cluster import cluster, environment
from tests.spark.test_write import found

DRIVER = """
import json, sys
from pathlib import Path
import topics.spark
from pyspark.errors import StreamingQueryException

master, url, folder = sys.argv[1:]
spark = topics.spark.session(
    master, **{
        "spark.cores.max": "2", "spark.executor.memory": "512m", "spark.driver.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "100ms",
    }
)

def stuck(batches):
    "The first attempt of the last partition sends its rows and hangs; a speculative copy brings them in another order."
    import os, pyarrow, pyspark, threading
    task = pyspark.TaskContext.get()
    if task.partitionId() != 3:
        yield from batches
        return
    for batch in batches:
        Path(folder, f"attempt-{task.attemptNumber()}").write_text(os.environ["SPARK_EXECUTOR_DIRS"])
        if task.attemptNumber() == 0:
            yield batch
            threading.Event().wait()  # until it is killed
        yield batch.take(pyarrow.array(range(batch.num_rows))[::-1])

def finished(stream):
    "Spark gives the process of a source ten seconds to connect, however busy the machine is; a repeat adds nothing."
    for left in reversed(range(10)):
        try:
            return stream.start().awaitTermination()
        except StreamingQueryException as error:
            if not left or "connect back" not in str(error):
                raise

rows = spark.range(0, 400, 1, 4).selectExpr("cast(id as string) data")
topics.spark.write(rows.mapInArrow(stuck, "data string"), url=url, topic="t", batchRecords=10)

read = topics.spark.read(spark, url=url, topics="t")
seen = [int(row.data) for row in read.select("data").collect()]

stream = spark.readStream.format("topics").options(url=url, topics="t", maxRecordsPerTrigger="250").load()
stream = stream.where("seq <= 350").selectExpr("'s' topic", "data", "tag").writeStream.format("topics")
stream = stream.options(url=url, checkpointLocation=f"{folder}/checkpoint").trigger(availableNow=True)
finished(stream)

print(json.dumps({"read": seen}))
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_pass_on_a_standalone_cluster_with_speculation(tmp_path: Path) -> None:
    """K-35, T16: a copy of a task that hangs is run on the other worker; rows of both attempts, each once."""
    with running(tmp_path / "store") as server, cluster(tmp_path / "cluster", ["127.0.0.1", "127.0.0.2"]) as master:
        command = [sys.executable, "-c", DRIVER, master, server.url, str(tmp_path)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.splitlines()[-1])
        with server.client() as client:
            assert Counter(found(client, "t")) == Counter(range(400))
            assert found(client, "t")[300:] == [*reversed(range(300, 400))], "the copy that was done first counts"
            assert Counter(found(client, "s")) == Counter(found(client, "t")[:350])
    assert Counter(told["read"]) == Counter(range(400))
    places = {one.name: one.read_text() for one in tmp_path.glob("attempt-*")}
    assert sorted(places) == ["attempt-0", "attempt-1"]
    assert len(set(places.values())) == 2, "another executor ran the copy"
