"""The same over Spark Connect, whose client has no JVM, no RDDs and no SparkContext."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.kit import running
from tests.unit.spark.streamkit import World

SCRIPT = """
import json, sys
import topics.spark
from pyspark.errors import StreamingQueryException
from topics.spark.local import prepare

url, checkpoint = sys.argv[1:]
prepare()
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
frame = spark.read.format("topics").options(url=url, topics="a").load()
told = {"session": type(spark).__module__, "counts": [frame.where("seq > 10").count(), frame.count()]}
typed = topics.spark.read(spark, url=url, topics="a", seq=(3, 5), payload="n int")
told["typed"] = [row[0] for row in typed.select("data.n").collect()]
stream = spark.readStream.format("topics").options(url=url, topics="a", maxRecordsPerTrigger="10").load()
for left in reversed(range(10)):  # Spark gives the process of a source ten seconds to connect
    writer = stream.writeStream.format("memory").queryName("got").option("checkpointLocation", f"{checkpoint}-{left}")
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        break
    except StreamingQueryException as error:
        if not left or "connect back" not in str(error):
            raise
told["streamed"] = sorted(row.seq for row in spark.table("got").collect())
told["lag"] = topics.spark.lag(query)
topics.spark.write(frame.where("seq <= 4").select("data"), url=url, topic="b")
told["written"] = topics.spark.read(spark, url=url, topics="b").count()
try:
    topics.spark.read(spark, url=url, topics="nope")
except topics.spark.SourceError as error:
    told["line"] = str(error)
spark.stop()
print("TOLD", json.dumps(told))
"""


@pytest.mark.timeout(600)
def test_batches_streams_and_the_helpers_work_over_connect(tmp_path: Path) -> None:
    """10 §7: `remote("local")`, in a process of its own: one has either kind of session."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env["SPARK_TESTING"] = "1"  # Spark's own way to say: any port
    with running(tmp_path / "store", {"TOPICS_SEGMENT_MAX_EVENTS": "7"}) as server, server.client() as client:
        world = World(server, client, "url", "")
        world.put("a")
        client.post("/v0/topics/a", json={"records": [{"data": {"n": n}} for n in range(1, 31)]})
        command = [sys.executable, "-c", SCRIPT, server.url, str(tmp_path / "checkpoint")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=560, check=False, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout + done.stderr
    told = json.loads(lines[0].removeprefix("TOLD "))
    assert told.pop("session").startswith("pyspark.sql.connect.")
    assert told.pop("line").startswith("topics: topic_not_found: ")
    assert told == {
        "counts": [20, 30], "typed": [3, 4, 5], "streamed": list(range(1, 31)), "lag": {"a": 0}, "written": 4,
    }  # fmt: skip
