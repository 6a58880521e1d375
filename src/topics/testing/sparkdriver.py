"""A driver of `spark-chaos`: a stream of files into topics, in a process of its own that is killed now and then.

    python -m topics.testing.sparkdriver FOLDER URL PARTITIONS

It runs the stream over what lies in `FOLDER/in`, one file a batch, over and over; a query that fails is started again
from its checkpoint, as whoever runs a stream does. It ends by itself once `FOLDER/stop` is there and nothing is left.
Some tasks fail at their first attempt, with half of their rows sent, and the order of rows is another every time.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAUSE_S = 0.05
SHAKY = 0.1
"""How often the first attempt of a task fails."""


def shaken(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a task in another order; now and then only some of them, and an error."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    fails = task.attemptNumber() == 0 and random.random() < SHAKY
    for batch in batches:
        order = random.sample(range(batch.num_rows), batch.num_rows)
        yield batch.take(order[: len(order) // 2] if fails else order)
        if fails:
            raise RuntimeError("a task fails, as tasks do")


def main(folder: Path, url: str, partitions: int) -> None:
    """Until nothing is left to do."""
    import topics.spark

    spark = topics.spark.session("local[2,3]", app="chaos", spark_local_dir=folder / "spark")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    shaped = rows.selectExpr("value data", "concat('t', get_json_object(value, '$.n') % 3) topic")
    flow = shaped.repartition(partitions).mapInArrow(shaken, "data string, topic string").writeStream.format("topics")
    flow = flow.options(url=url, batchRecords="40", checkpointLocation=str(folder / "checkpoint"), txnAppId="chaos")
    while True:
        last = (folder / "stop").exists()
        _run(flow.trigger(availableNow=True))
        if last:
            break
        time.sleep(PAUSE_S)
    spark.stop()


def _run(flow: Any) -> None:
    """Once through everything, however often it fails."""
    from pyspark.errors import StreamingQueryException

    while True:
        try:
            flow.start().awaitTermination()
            return
        except StreamingQueryException as error:
            lines = [line for line in str(error).splitlines() if line.startswith("topics: ")]
            print("again:", lines[-1] if lines else str(error)[:500], flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
