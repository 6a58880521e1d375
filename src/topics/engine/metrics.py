"""Counters and gauges of an engine: which there are, and the one place that collects them (02 §7.3, 06 §21).

    TABLE      every metric of the engine: name, kind, label, help; the wire and the reference page follow it
    Sweep      collects in steps of a few hundred topics, so that many topics do not hold up the loop [P-10]
    Collected  what a sweep found

System topics do not count [A-14]. Retention is not applied here: a metric shows what is there, expired or not. Owner
only; what was collected belongs to whoever asked for it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final, Literal, NamedTuple

from topics.engine import queue
from topics.engine.admission import CASES
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import Core
from topics.engine.losses import REASONS
from topics.engine.scheduler import BANDS, LATENCY_BOUNDS_MS
from topics.engine.snapshot import Snapshots
from topics.engine.topic import STRICTNESS, Topic
from topics.engine.traffic import ACK_BOUNDS_MS
from topics.model import is_system_name
from topics.storage.shard import SYNC_BOUNDS_US

log = logging.getLogger("topics.engine")

Kind = Literal["gauge", "counter", "histogram"]

TOPICS_MAX: Final = 1000
"""Topics that have series of their own [MET-4]."""
STEP: Final = 256
"""Topics of one step."""
HOLES: Final = {1: "source_trim", 2: "corrupt", 3: "crash"}


class Metric(NamedTuple):
    """One family of series."""

    name: str
    kind: Kind
    help: str
    label: str = ""


TABLE: Final[tuple[Metric, ...]] = (
    Metric("topics_topics", "gauge", "Topics."),
    Metric("topics_topics_by_class", "gauge", "Topics by durability class.", "class"),
    Metric("topics_routers", "gauge", "Routers."),
    Metric("topics_router_lag_records", "gauge", "Records that routers have not forwarded yet."),
    Metric("topics_records_live", "gauge", "Live records of all topics."),
    Metric("topics_bytes_live", "gauge", "Live accounted bytes of all topics."),
    Metric("topics_topic_head_seq", "gauge", "Highest seq of a topic.", "topic"),
    Metric("topics_topic_earliest_seq", "gauge", "Lowest live seq of a topic; above its head: none.", "topic"),
    Metric("topics_topic_records_live", "gauge", "Live records of a topic.", "topic"),
    Metric("topics_topic_bytes_live", "gauge", "Live accounted bytes of a topic.", "topic"),
    Metric("topics_topic_queue_ready", "gauge", "Jobs of a queue that can be claimed.", "topic"),
    Metric("topics_topic_queue_in_flight", "gauge", "Jobs of a queue that are leased.", "topic"),
    Metric("topics_topic_metrics_truncated", "gauge", "1 if there are more topics than have series of their own."),
    Metric("topics_queue_topics", "gauge", "Topics that are queues."),
    Metric("topics_queue_leases_in_flight", "gauge", "Active leases of all queues."),
    Metric("topics_recovery_progress", "gauge", "Share of the recovery that is done, 1 once the server is ready."),
    Metric("topics_records_written_total", "counter", "Records acknowledged to clients."),
    Metric("topics_ack_latency_ms", "histogram", "From a write until its acknowledgement in milliseconds.", "class"),
    Metric("topics_reads_total", "counter", "Reads behind a cursor that were answered."),
    Metric("topics_records_read_total", "counter", "Records in their answers."),
    Metric("topics_records_delivered_total", "counter", "Records sent to streams, once for each stream."),
    Metric("topics_jobs_delivered_total", "counter", "Jobs handed out by queues."),
    Metric("topics_wal_frames_total", "counter", "Frames written to the log."),
    Metric("topics_wal_batches_total", "counter", "Group-commit batches written to the log."),
    Metric("topics_wal_fsyncs_total", "counter", "Syncs of the log."),
    Metric("topics_wal_bytes_written_total", "counter", "Bytes written to the log."),
    Metric("topics_wal_rotations_total", "counter", "Changes to the next log file."),
    Metric("topics_wal_queue_depth", "gauge", "Submissions accepted and not committed."),
    Metric("topics_wal_queue_depth_peak", "gauge", "Highest depth of one shard's queue since the start."),
    Metric("topics_wal_submit_full_total", "counter", "Submissions refused because the ingest queue was full."),
    Metric("topics_wal_read_only", "gauge", "1 if a shard of the log refuses writes after a fault."),
    Metric("topics_wal_full", "gauge", "1 if a shard of the log has no space."),
    Metric("topics_wal_fsync_latency_us", "histogram", "Duration of the log's syncs in microseconds."),
    Metric("topics_ckpt_total", "counter", "Checkpoints that ended."),
    Metric("topics_ckpt_ms", "gauge", "Duration of the last checkpoint in milliseconds."),
    Metric("topics_tail_records", "gauge", "Records that are in the log and not yet in segments."),
    Metric("topics_tail_bytes", "gauge", "Log bytes of those records."),
    Metric("topics_segments", "gauge", "Segments by the tier that holds their data.", "tier"),
    Metric("topics_segment_corrupt_total", "counter", "Segment files and frames that failed verification."),
    Metric("topics_segments_dropped_total", "counter", "Segments dropped because nothing in them was live."),
    Metric("topics_relocated_total", "counter", "Segments moved to the cold tier."),
    Metric("topics_cold_reads_total", "counter", "Reads that went to the cold tier."),
    Metric("topics_snapshot_total", "counter", "Snapshots written."),
    Metric("topics_snapshot_failed_total", "counter", "Snapshots that could not be written."),
    Metric("topics_holes_total", "counter", "Seqs found to be lost since the start, by reason.", "reason"),
    Metric("topics_lost_records_total", "counter", "Records lost since the start, by reason.", "reason"),
    Metric("topics_orphan_dirs", "gauge", "Directories in the store that belong to no known topic."),
    Metric("topics_idempotency_entries", "gauge", "Idempotency keys kept."),
    Metric("topics_idempotency_evicted_total", "counter", "Idempotency keys given up before their window was over."),
    Metric("topics_producers", "gauge", "Producers kept."),
    Metric("topics_sched_ready", "gauge", "Topics and routers that wait to be served, by band.", "band"),
    Metric("topics_sched_latency_ms", "histogram", "How long they waited, in milliseconds."),
    Metric("topics_pressure", "gauge", "Load by which delivery and commits are slowed down, from 0 to 1."),
    Metric("topics_throttle_level", "gauge", "Step of the load-shedding ladder that is in force, 0 for none."),
    Metric(
        "topics_throttled_total", "counter",
        "Requests answered 429: no room in the log (1 at once, 2 after 50 ms, 3 after 30 s), 4 pool full, 5 a limit.",
        "case",
    ),
)  # fmt: skip


class Timings(NamedTuple):
    """How often something lasted how long: a histogram."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One per bound and one for the rest; not cumulative."""
    total: float
    """Sum of all that was measured."""

    @classmethod
    def none(cls, bounds: tuple[float, ...]) -> Timings:
        """Nothing was measured yet."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0)

    @property
    def times(self) -> int:
        """How often."""
        return sum(self.counts)


class ShardNow(NamedTuple):
    """A shard of the log."""

    name: str
    state: str
    queue_depth: int


class Collected:
    """What a sweep found. Every metric of the table is in exactly one of the first four."""

    __slots__ = ("bytes_by_tier", "histograms", "labelled", "labelled_histograms", "shards", "values")

    def __init__(self) -> None:
        self.values: dict[str, float] = {one.name: 0 for one in TABLE if one.kind != "histogram" and not one.label}
        self.labelled: dict[str, dict[str, float]] = {
            one.name: {} for one in TABLE if one.label and one.kind != "histogram"
        }
        self.labelled["topics_topics_by_class"] = dict.fromkeys(STRICTNESS, 0)
        self.labelled["topics_segments"] = {"hot": 0, "cold": 0}
        self.labelled["topics_holes_total"] = dict.fromkeys(HOLES.values(), 0)
        self.labelled["topics_lost_records_total"] = dict.fromkeys(REASONS, 0)
        self.labelled["topics_sched_ready"] = {f"B{band}": 0 for band in range(BANDS)}
        self.labelled["topics_throttled_total"] = dict.fromkeys(CASES, 0)
        self.histograms = {
            "topics_wal_fsync_latency_us": Timings.none(SYNC_BOUNDS_US),
            "topics_sched_latency_ms": Timings.none(LATENCY_BOUNDS_MS),
        }
        self.labelled_histograms: dict[str, dict[str, Timings]] = {
            "topics_ack_latency_ms": {durability: Timings.none(ACK_BOUNDS_MS) for durability in STRICTNESS}
        }
        self.shards: list[ShardNow] = []
        self.bytes_by_tier = {"hot": 0, "cold": 0}
        """Of `.data` files, live or not."""

    def flat(self) -> dict[str, float]:
        """One number each: labels summed, series of single topics left out."""
        found = dict(self.values)
        for name, series in self.labelled.items():
            if not name.startswith("topics_topic_"):
                found[name] = sum(series.values())
        for name, one in self.histograms.items():
            found |= {f"{name}_count": one.times, f"{name}_sum": one.total}
        for name, family in self.labelled_histograms.items():
            found[f"{name}_count"] = sum(one.times for one in family.values())
            found[f"{name}_sum"] = sum(one.total for one in family.values())
        return found


class Sweep:
    """One collection. Call `step` until it says that `found` is complete."""

    def __init__(
        self, core: Core, checkpointer: Checkpointer | None, snapshots: Snapshots | None, progress: float
    ) -> None:
        self.found = Collected()
        self._core = core
        self._topics = list(core.topics.values())
        self._at = 0
        self._now = core.clock.now_ms()
        self._sums: Counter[str] = Counter()
        self._corrupt = core.corrupt
        self._told = 0
        self._once(checkpointer, snapshots, progress)

    def step(self) -> bool:
        """Look at some more topics; whether that was all."""
        for topic in self._topics[self._at : self._at + STEP]:
            leases = None if topic.removed else topic.leases
            if leases is not None and leases.is_over(self._now):
                leases.expire(self._now)  # some of what is over; all of it before its queue is counted
                return False
            if not topic.removed:
                self._count(topic)
            self._at += 1
        if self._at < len(self._topics):
            return False
        self.found.values |= self._sums
        self.found.values["topics_segment_corrupt_total"] = self._corrupt
        self._log()
        return True

    def _count(self, topic: Topic) -> None:
        found, sums = self.found, self._sums
        tail, segments = topic.index.tail, topic.index.segments
        sums["topics_tail_records"] += tail.records
        sums["topics_tail_bytes"] += tail.nbytes
        edge = self._core.routers.feeding.get(topic.id)
        if edge is not None:
            sums["topics_router_lag_records"] += max(edge.source.head - edge.cursor, 0)
        if segments is not None:
            self._corrupt += segments.reader.corrupt
            for one in segments.segments:
                tier = "cold" if one.cold else "hot"
                found.labelled["topics_segments"][tier] += 1
                found.bytes_by_tier[tier] += one.data_len if one.has_data or one.cold else 0
        if is_system_name(topic.name):
            return
        sums["topics_topics"] += 1
        sums["topics_records_live"] += topic.count
        sums["topics_bytes_live"] += topic.bytes
        if topic.config.type == "queue":
            sums["topics_queue_topics"] += 1
            sums["topics_queue_leases_in_flight"] += queue.counters(topic).in_flight
        found.labelled["topics_topics_by_class"][topic.config.durability] += 1
        if self._told < TOPICS_MAX:
            self._told += 1
            self._tell(topic)
        else:
            found.values["topics_topic_metrics_truncated"] = 1

    def _tell(self, topic: Topic) -> None:
        """The series of one topic."""
        series, name = self.found.labelled, topic.name
        try:
            earliest = topic.earliest_seq
        except OSError as error:
            log.warning("topic %r: its earliest seq is not known now: %s", name, error)
            earliest = topic.floor
        series["topics_topic_head_seq"][name] = topic.head
        series["topics_topic_earliest_seq"][name] = earliest
        series["topics_topic_records_live"][name] = topic.count
        series["topics_topic_bytes_live"][name] = topic.bytes
        if topic.config.type == "queue":
            jobs = queue.counters(topic)
            series["topics_topic_queue_ready"][name] = jobs.ready
            series["topics_topic_queue_in_flight"][name] = jobs.in_flight

    def _once(self, checkpointer: Checkpointer | None, snapshots: Snapshots | None, progress: float) -> None:
        core, values = self._core, self.found.values
        values["topics_recovery_progress"] = progress
        values["topics_idempotency_entries"] = len(core.keys)
        values["topics_idempotency_evicted_total"] = core.keys.evicted
        values["topics_producers"] = len(core.producers)
        values["topics_routers"] = len(core.routers.by_name)
        values["topics_segments_dropped_total"] = core.dropped_segments
        values["topics_orphan_dirs"] = core.orphan_dirs
        values["topics_relocated_total"] = core.cold.relocated
        values["topics_cold_reads_total"] = core.cold.reads
        self.found.labelled["topics_holes_total"] = {HOLES[reason]: count for reason, count in core.holes.items()}
        self.found.labelled["topics_lost_records_total"] |= core.losses.records
        self._schedule()
        self._traffic()
        if checkpointer is not None:
            values["topics_ckpt_total"] = checkpointer.total
            values["topics_ckpt_ms"] = checkpointer.last_ms
        if snapshots is not None:
            values["topics_snapshot_total"] = snapshots.total
            values["topics_snapshot_failed_total"] = snapshots.failed

    def _schedule(self) -> None:
        """What waits to be served, and how hard that presses (08 §11)."""
        core, found = self._core, self.found
        scheduler = core.pump.scheduler
        found.values["topics_pressure"] = round(core.load.governor.pressure, 4)
        found.values["topics_throttle_level"] = core.load.level()
        found.labelled["topics_sched_ready"] = {f"B{band}": count for band, count in enumerate(scheduler.ready)}
        found.labelled["topics_throttled_total"] = dict(core.admission.refused)
        found.histograms["topics_sched_latency_ms"] = Timings(
            LATENCY_BOUNDS_MS, tuple(scheduler.latencies), round(scheduler.latencies_ms, 3)
        )

    def _traffic(self) -> None:
        traffic, values = self._core.traffic, self.found.values
        values["topics_records_written_total"] = traffic.written
        values["topics_reads_total"] = traffic.reads
        values["topics_records_read_total"] = traffic.read
        values["topics_records_delivered_total"] = traffic.delivered
        values["topics_jobs_delivered_total"] = self._core.deliveries
        self.found.labelled_histograms["topics_ack_latency_ms"] = {
            durability: Timings(ACK_BOUNDS_MS, tuple(acks.counts), round(acks.total_ms, 3))
            for durability, acks in traffic.acks.items()
        }

    def _log(self) -> None:
        if self._core.wal is None:
            return
        found, shards = self.found, self._core.wal.shards
        values, counters = found.values, [shard.counters for shard in shards]
        for name in ("frames", "batches", "bytes_written", "rotations"):
            values[f"topics_wal_{name}_total"] = sum(getattr(one, name) for one in counters)
        # One copy for both: a sync may end meanwhile, and the two must agree [MET-5].
        within = [tuple(one.syncs_within) for one in counters]
        syncs = Timings(SYNC_BOUNDS_US, tuple(map(sum, zip(*within, strict=True))), sum(c.sync_us for c in counters))
        found.histograms["topics_wal_fsync_latency_us"] = syncs
        values["topics_wal_fsyncs_total"] = syncs.times
        values["topics_wal_queue_depth"] = sum(shard.depth for shard in shards)
        values["topics_wal_queue_depth_peak"] = max(one.queue_peak for one in counters)
        values["topics_wal_submit_full_total"] = sum(one.refused for one in counters)
        values["topics_wal_read_only"] = int(any(shard.state == "read_only" for shard in shards))
        values["topics_wal_full"] = int(any(shard.state == "full" for shard in shards))
        found.shards = [ShardNow(shard.key or "wal", shard.state, shard.depth) for shard in shards]
