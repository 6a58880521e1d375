"""Counters and gauges of an engine, under the names of 06 §21. Owner only."""

from __future__ import annotations

from topics.engine.checkpoint import Checkpointer
from topics.engine.core import Core
from topics.engine.snapshot import Snapshots


def collect(
    core: Core, checkpointer: Checkpointer | None, snapshots: Snapshots | None, progress: float
) -> dict[str, float]:
    """Everything there is to count, shards summed."""
    found: dict[str, float] = {
        "topics": len(core.topics),
        "topics_tail_records": sum(topic.index.tail.records for topic in core.topics.values()),
        "topics_tail_bytes": sum(topic.index.tail.nbytes for topic in core.topics.values()),
        "topics_records_live": sum(topic.count for topic in core.topics.values()),
        "topics_bytes_live": core.totals.bytes,
        "topics_idempotency_entries": len(core.keys),
        "topics_idempotency_evicted_total": core.keys.evicted,
        "topics_producers": len(core.producers),
        "topics_recovery_progress": progress,
        "topics_segments_dropped_total": core.dropped_segments,
        "topics_orphan_dirs": core.orphan_dirs,
    }
    segments = [topic.index.segments for topic in core.topics.values() if topic.index.segments is not None]
    found["topics_segments"] = sum(len(one.segments) for one in segments)
    found["topics_segment_corrupt_total"] = core.corrupt + sum(one.reader.corrupt for one in segments)
    if core.wal is not None:
        shards = core.wal.shards
        for name in ("frames", "batches", "fsyncs", "bytes_written", "rotations"):
            found[f"topics_wal_{name}_total"] = sum(getattr(shard.counters, name) for shard in shards)
        found["topics_wal_queue_depth"] = sum(shard.depth for shard in shards)
        found["topics_wal_queue_depth_peak"] = max(shard.counters.queue_peak for shard in shards)
        found["topics_wal_submit_full_total"] = sum(shard.counters.refused for shard in shards)
        found["topics_wal_read_only"] = float(any(shard.state == "read_only" for shard in shards))
        found["topics_wal_full"] = float(any(shard.state == "full" for shard in shards))
    if checkpointer is not None:
        found["topics_ckpt_total"] = checkpointer.total
        found["topics_ckpt_ms"] = checkpointer.last_ms
    if snapshots is not None:
        found["topics_snapshot_total"] = snapshots.total
        found["topics_snapshot_failed_total"] = snapshots.failed
    return found
