"""Metrics on the wire: the Prometheus text format 0.0.4, and a JSON snapshot (02 §7.3, 06 §21, 08 §11).

    TABLE      every metric there is, in the order of the exposition; the reference page is generated from it
    gathered   what the engine found, and what only the server knows
    text       the exposition: HELP and TYPE of each family, then its series
    snapshot   the members of [MET-6]

The engine collects (`engine.metrics`), here is only how it is told. Pure functions of what was collected; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from topics.engine.metrics import TABLE as ENGINE_TABLE
from topics.engine.metrics import Collected, Metric, Timings
from topics.server.describe import U64, about

if TYPE_CHECKING:
    from topics.server.app import App

TEXT: Final = b"text/plain; version=0.0.4"

SERVER_TABLE: Final[tuple[Metric, ...]] = (
    Metric("topics_sse_connections", "gauge", "Open watch, work and WebSocket connections."),
    Metric("topics_watch_sessions", "gauge", "Watch sessions held."),
    Metric("topics_ready", "gauge", "1 if the server takes requests."),
    Metric("topics_uptime_ms", "counter", "Time since the process began to serve in milliseconds."),
    Metric("topics_streams_closed_slow_total", "counter", "Streams closed because their client did not keep up."),
    Metric("topics_loop_lag_ms", "gauge", "By how much the event loop was late when last looked at, in milliseconds."),
    Metric("topics_loop_stall_ms", "histogram", "Stretches that held up the event loop, in milliseconds."),
)
TABLE: Final[tuple[Metric, ...]] = ENGINE_TABLE + SERVER_TABLE


class WalCounts(msgspec.Struct):
    """The log, all shards together."""

    fsyncs: Annotated[int, about("group syncs", U64)]
    frames: Annotated[int, about("frames written", U64)]
    batches: Annotated[int, about("group-commit batches", U64)]
    bytes_written: Annotated[int, about("bytes written", U64)]
    rotations: Annotated[int, about("changes to the next file", U64)]
    queue_depth: Annotated[int, about("submissions accepted and not committed", U64)]
    queue_depth_peak: Annotated[int, about("highest depth of one shard's queue", U64)]
    submit_full_total: Annotated[int, about("submissions refused because the queue was full", U64)]
    read_only: Annotated[bool, about("whether a shard refuses writes after a fault")]
    fsync_count: Annotated[int, about("syncs that were timed", U64)]
    fsync_micros_total: Annotated[int, about("time spent in them in microseconds", U64)]


class ShardState(msgspec.Struct):
    """One shard of the log."""

    name: str
    state: Annotated[str, about("`ok`, `full` or `read_only`", {"enum": ["ok", "full", "read_only"]})]
    queue_depth: Annotated[int, about("submissions accepted and not committed", U64)]


class WarningTold(msgspec.Struct):
    """Something the operator should know."""

    ts: Annotated[int, about("when, in ms", U64)]
    message: str


class TrafficCounts(msgspec.Struct):
    """What went through since the start; of two snapshots, rates are made."""

    records_written: Annotated[int, about("records acknowledged to clients", U64)]
    reads: Annotated[int, about("reads behind a cursor that were answered", U64)]
    records_read: Annotated[int, about("records in their answers", U64)]
    records_delivered: Annotated[int, about("records sent to streams, once for each stream", U64)]
    jobs_delivered: Annotated[int, about("jobs handed out by queues", U64)]


class Histogram(msgspec.Struct):
    """How often something lasted how long since the start."""

    bounds: Annotated[list[float], about("upper bounds of the buckets; one more bucket holds the rest")]
    counts: Annotated[list[int], about("by bucket, not cumulative")]
    sum: Annotated[float, about("of all that was measured")]

    @classmethod
    def of(cls, timings: Timings) -> Histogram:
        """As it goes over the wire."""
        return cls(list(timings.bounds), list(timings.counts), timings.total)


class MetricsAnswer(msgspec.Struct):
    """`GET /v0/metrics` with `Accept: application/json` [MET-6]."""

    topics: Annotated[int, about("topics", U64)]
    topics_ephemeral: Annotated[int, about("topics of class `ephemeral`", U64)]
    topics_memory: Annotated[int, about("topics of class `memory`", U64)]
    topics_disk: Annotated[int, about("topics of class `disk`", U64)]
    topics_fsync: Annotated[int, about("topics of class `fsync`", U64)]
    routers: Annotated[int, about("routers", U64)]
    records_live: Annotated[int, about("live records of all topics", U64)]
    bytes_live: Annotated[int, about("live accounted bytes of all topics", U64)]
    queue_topics: Annotated[int, about("topics that are queues", U64)]
    queue_leases_in_flight: Annotated[int, about("active leases of all queues", U64)]
    sse_connections: Annotated[int, about("open watch, work and WebSocket connections", U64)]
    watch_sessions: Annotated[int, about("watch sessions held", U64)]
    ready: Annotated[bool, about("whether the server takes requests")]
    replay_progress: Annotated[float, about("share of the recovery that is done", {"minimum": 0, "maximum": 1})]
    uptime_ms: Annotated[int, about("since the process began to serve", U64)]
    wal: WalCounts
    shards: list[ShardState]
    warnings: Annotated[list[WarningTold], about("the last ones", {"maxItems": 20})]
    bytes_by_tier: Annotated[dict[str, int], about("bytes of segment data, by `hot` and `cold`")]
    pressure: Annotated[float, about("load", {"minimum": 0, "maximum": 1})]
    throttle_level: Annotated[int, about("step of the load-shedding ladder", U64)]
    traffic: TrafficCounts
    ack_latency_ms: Annotated[dict[str, Histogram], about("from a write until its acknowledgement, by class")]
    fsync_latency_us: Annotated[Histogram, about("syncs of the log")]
    lost_records: Annotated[dict[str, int], about("records lost since the start, by reason")]
    router_lag_records: Annotated[int, about("records that routers have not forwarded yet", U64)]


class Gathered:
    """Everything to tell: the engine's part, the server's, and the last warnings."""

    __slots__ = ("engine", "histograms", "values", "warnings")

    def __init__(self, app: App, engine: Collected, *, ready: bool) -> None:
        self.engine = engine
        self.values: dict[str, float] = {one.name: 0 for one in SERVER_TABLE if one.kind != "histogram"}
        self.values["topics_ready"] = int(ready)
        self.values["topics_uptime_ms"] = (app.clock.monotonic_ns() - app.started_ns) // 1_000_000
        self.values["topics_sse_connections"] = len(app.streams)
        self.values["topics_watch_sessions"] = len(app.sessions)
        self.values["topics_streams_closed_slow_total"] = app.streams.closed_slow
        self.values["topics_loop_lag_ms"] = round(app.stalls.last_ms, 3)
        self.histograms = {**engine.histograms, "topics_loop_stall_ms": app.stalls.timings()}
        self.warnings = [WarningTold(*one) for one in app.warnings]
        if app.engine is None:
            engine.values["topics_recovery_progress"] = min(max(app.progress, 0.0), 1.0)

    def series(self, one: Metric) -> Mapping[str, float | Timings] | Timings | float:
        """The value of a metric, by label value where it has a label."""
        if one.kind == "histogram":
            return self.engine.labelled_histograms[one.name] if one.label else self.histograms[one.name]
        if one.label:
            return self.engine.labelled[one.name]
        return self.values[one.name] if one.name in self.values else self.engine.values[one.name]


# -- Prometheus ------------------------------------------------------------------------------------------------------


def text(found: Gathered) -> bytes:
    """The exposition."""
    return "\n".join((*_lines(found), "")).encode()


def _lines(found: Gathered) -> Iterator[str]:
    for one in TABLE:
        yield f"# HELP {one.name} {one.help}"
        yield f"# TYPE {one.name} {one.kind}"
        value = found.series(one)
        if isinstance(value, Timings):
            yield from _buckets(one.name, value)
        elif isinstance(value, Mapping):
            for label, number in value.items():
                named = f'{one.label}="{_escaped(label)}"'
                if isinstance(number, Timings):
                    yield from _buckets(one.name, number, named)
                else:
                    yield f"{one.name}{{{named}}} {_number(number)}"
        else:
            yield f"{one.name} {_number(value)}"


def _buckets(name: str, found: Timings, named: str = "") -> Iterator[str]:
    """Cumulative; the last one is the number of all [MET-5]."""
    so_far = 0
    before, alone = (f"{named},", f"{{{named}}}") if named else ("", "")
    for bound, count in zip((*found.bounds, "+Inf"), found.counts, strict=True):
        so_far += count
        yield f'{name}_bucket{{{before}le="{bound}"}} {so_far}'
    yield f"{name}_sum{alone} {found.total}"
    yield f"{name}_count{alone} {so_far}"


def _escaped(value: str) -> str:
    """A label value [MET-3]."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


# -- JSON ------------------------------------------------------------------------------------------------------------


def snapshot(found: Gathered) -> MetricsAnswer:
    """The same as an object [MET-6]."""
    engine, values = found.engine, found.engine.values
    syncs = engine.histograms["topics_wal_fsync_latency_us"]
    wal: dict[str, Any] = {
        name: int(values[f"topics_wal_{name}_total"])
        for name in ("fsyncs", "frames", "batches", "bytes_written", "rotations")
    }
    return MetricsAnswer(
        topics=int(values["topics_topics"]),
        **{f"topics_{name}": int(count) for name, count in engine.labelled["topics_topics_by_class"].items()},
        routers=int(values["topics_routers"]),
        records_live=int(values["topics_records_live"]),
        bytes_live=int(values["topics_bytes_live"]),
        queue_topics=int(values["topics_queue_topics"]),
        queue_leases_in_flight=int(values["topics_queue_leases_in_flight"]),
        sse_connections=int(found.values["topics_sse_connections"]),
        watch_sessions=int(found.values["topics_watch_sessions"]),
        ready=bool(found.values["topics_ready"]),
        replay_progress=values["topics_recovery_progress"],
        uptime_ms=int(found.values["topics_uptime_ms"]),
        wal=WalCounts(
            **wal,
            queue_depth=int(values["topics_wal_queue_depth"]),
            queue_depth_peak=int(values["topics_wal_queue_depth_peak"]),
            submit_full_total=int(values["topics_wal_submit_full_total"]),
            read_only=bool(values["topics_wal_read_only"]),
            fsync_count=syncs.times,
            fsync_micros_total=int(syncs.total),
        ),
        shards=[ShardState(*one) for one in engine.shards],
        warnings=found.warnings,
        bytes_by_tier=dict(engine.bytes_by_tier),
        pressure=values["topics_pressure"],
        throttle_level=int(values["topics_throttle_level"]),
        traffic=TrafficCounts(
            records_written=int(values["topics_records_written_total"]),
            reads=int(values["topics_reads_total"]),
            records_read=int(values["topics_records_read_total"]),
            records_delivered=int(values["topics_records_delivered_total"]),
            jobs_delivered=int(values["topics_jobs_delivered_total"]),
        ),
        ack_latency_ms={
            name: Histogram.of(one) for name, one in engine.labelled_histograms["topics_ack_latency_ms"].items()
        },
        fsync_latency_us=Histogram.of(syncs),
        lost_records={name: int(count) for name, count in engine.labelled["topics_lost_records_total"].items()},
        router_lag_records=int(values["topics_router_lag_records"]),
    )
