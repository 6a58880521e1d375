"""The journal of deletes, `$deletes` [A-20], as a job reads it: everything behind a cursor. Driver only."""

from __future__ import annotations

import json
from typing import NamedTuple

import pyarrow.compute as pc

from topics.spark.failure import SourceError
from topics.spark.held import held
from topics.spark.jobs.erase import Erasures
from topics.spark.jobs.place import DELETES, look
from topics.spark.jobs.work import Work
from topics.spark.options import Bound
from topics.spark.reader import read_partition


class Journal(NamedTuple):
    """Deletes behind a cursor."""

    erasures: Erasures
    upto: int
    """The last record that was read; the cursor itself if there is none."""
    gap: tuple[int, int] | None
    """Records that retention took before they were read."""


def read_journal(work: Work, cursor: int | None, *, keep_dropped: bool = False) -> Journal:
    """All deletes behind the cursor that no crash can take back; a store without deletes has none.

    None: whatever there is; nothing of it can be missed.
    """
    try:
        look(work.fs, work.place, (DELETES,))
    except SourceError as error:
        if error.code == "topic_not_found":
            return Journal(Erasures(), cursor or 0, None)
        raise
    bound = Bound(None if cursor is None else cursor + 1)
    options = work.place.options(topics=(DELETES,), start_seq=bound, on_data_loss="emit", meta_json=True)
    erasures, upto, gap = Erasures(), cursor or 0, None
    with held(work.fs, options, work.clock.now_ms()) as parts:
        for batch in (batch for part in parts for batch in read_partition(work.fs, part)):
            for row in batch.select(["seq", "gap_to", "kind", "data"]).to_pylist():
                if row["kind"] == "gap":
                    gap, upto = (row["seq"], row["gap_to"]), max(upto, row["gap_to"])
                    continue
                told = json.loads(row["data"])
                if not (keep_dropped and told.get("drop")):
                    erasures.add(told)
            upto = max(upto, int(pc.max(batch.column("seq")).as_py()))
    return Journal(erasures, upto, gap)
