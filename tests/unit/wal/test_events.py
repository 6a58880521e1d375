"""Events, metrics and the meters that take them (07 §2)."""

from __future__ import annotations

import re

import pytest

from tests.unit.wal import kit
from topics.errors import WalIo
from topics.wal import EventStream, FsyncPolicy, NoopMeter, Position, PrometheusMeter, Record, WalEvent

SIZE = 1024


def test_a_new_segment_is_told(disk: kit.Disk) -> None:
    """07 §2 segment_created: also the first one."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, meter=meter, node_id=7)
    assert meter.events == [WalEvent(7, 0, "segment_created")]
    wal.close()


def test_a_resumed_segment_is_not_told_as_created(disk: kit.Disk) -> None:
    """07 §2 segment_created: by a new file."""
    kit.open_wal(disk)[0].close()
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    wal.close()
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, meter=meter)
    assert meter.count("segment_created") == 0
    wal.close()


def test_a_rotation_is_told_with_the_size_of_the_old_segment(disk: kit.Disk) -> None:
    """07 §2 segment_rotated: bytes; created and synced come before it."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, size=SIZE, meter=meter, node_id=2)
    kit.fill(wal, 9)
    end = wal.current_position().offset
    meter.events.clear()
    kit.fill(wal, 1, 9)
    created, synced, rotated = meter.events
    assert created == WalEvent(2, 1, "segment_created")
    assert synced[:3] == (2, 0, "fsync")
    assert rotated == WalEvent(2, 0, "segment_rotated", bytes=end)
    wal.close()


def test_each_sync_of_the_active_segment_is_told_with_its_time(disk: kit.Disk) -> None:
    """07 §2 fsync: ms."""
    meter = kit.Kept()

    def hook(op: str, path: str) -> None:
        if op == "fdatasync":
            disk.clock.advance(4)

    wal, _ = kit.open_wal(disk, kit.ALWAYS, meter=meter, fs=kit.hooked(disk, hook))
    meter.events.clear()
    wal.append(kit.put(1))
    wal.append_batch([kit.put(2), kit.put(3)])
    assert meter.events == [WalEvent(0, 0, "fsync", ms=4.0)] * 2
    assert meter.value("wal_fsync_ms") == 2
    wal.close()


def test_each_deleted_segment_is_told(disk: kit.Disk) -> None:
    """07 §2 segment_deleted, W-55: the events and the metrics."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, size=SIZE, meter=meter)
    kit.fill(wal, 30)
    meter.events.clear()
    count = wal.delete_segments_before(Position(3, 0))
    assert meter.events == [WalEvent(0, id, "segment_deleted") for id in range(count)]
    assert meter.value("wal_segments_deleted_total") == count == 3
    assert meter.value("wal_segment_count") == len(wal.segments())
    assert meter.value("wal_gc_latency_ms", None) == 1
    wal.close()


def test_a_cut_is_told_with_its_bytes(disk: kit.Disk) -> None:
    """07 §2 corruption_truncated: bytes."""
    disk.sim.load({"log/000000.wal": kit.put(1).encode() + b"\x05damage"})
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, meter=meter, node_id=3)
    assert WalEvent(3, 0, "corruption_truncated", bytes=7) in meter.events
    assert meter.value("wal_corruption_truncated_total", "3") == 1
    wal.close()


def test_records_and_bytes_count_what_was_appended(disk: kit.Disk) -> None:
    """07 §2 wal_records_total, wal_bytes_total: record bytes."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, size=SIZE, meter=meter)
    wal.append(kit.put(1))
    wal.append_batch([kit.put(n) for n in range(4)])
    wal.append_batch([])
    assert meter.value("wal_records_total") == 5
    assert meter.value("wal_bytes_total") == 5 * len(kit.put(1).encode())
    wal.close()


def test_a_failed_append_is_not_counted(disk: kit.Disk) -> None:
    """07 §2: records appended; W-70."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, kit.ALWAYS, meter=meter)
    wal.append(kit.put(1))
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.append(kit.put(2))
    assert (meter.value("wal_records_total"), meter.value("wal_bytes_total")) == (1, len(kit.put(1).encode()))
    wal.close()


def test_rolls_and_segments_are_counted(disk: kit.Disk) -> None:
    """07 §2 wal_segment_rolls_total, wal_segment_count."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, size=SIZE, meter=meter)
    assert meter.value("wal_segment_count") == 1
    kit.fill(wal, 30)
    assert meter.value("wal_segment_rolls_total") == wal.current_position().segment_id
    assert meter.value("wal_segment_count") == len(wal.segments())
    wal.close()


def test_the_read_only_gauge_shows_the_latch(disk: kit.Disk) -> None:
    """07 §2 wal_read_only."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, kit.ALWAYS, meter=meter)
    assert meter.value("wal_read_only") == 0
    disk.fail("fdatasync")
    with pytest.raises(WalIo):
        wal.append(kit.put(2))
    assert meter.value("wal_read_only") == 1
    wal.close()


METRICS = {
    "wal_records_total": "counter",
    "wal_bytes_total": "counter",
    "wal_fsync_ms": "histogram",
    "wal_segment_rolls_total": "counter",
    "wal_segment_count": "gauge",
    "wal_segments_deleted_total": "counter",
    "wal_gc_latency_ms": "histogram",
    "wal_corruption_truncated_total": "counter",
    "wal_read_only": "gauge",
}


def test_the_metrics_are_those_of_the_table_with_their_labels(disk: kit.Disk) -> None:
    """07 §2: `node` only, and none for the GC time; keys, paths and values never become labels."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=SIZE, meter=meter, node_id=12)
    wal.append(Record.put(b"secret-key", b"secret-value"))
    wal.close()
    assert meter.kinds == METRICS
    assert {name: dict(labels) for name, labels in meter.values} == {
        name: {} if name == "wal_gc_latency_ms" else {"node": "12"} for name in METRICS
    }


def test_handles_are_made_once_and_not_per_call(disk: kit.Disk) -> None:
    """07 §2."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=SIZE, meter=meter)
    made = meter.handles
    kit.fill(wal, 30)
    wal.delete_segments_before(wal.current_position())
    kit.records(wal, wal.current_position())
    assert meter.handles == made
    wal.close()


def test_the_default_meter_keeps_nothing(disk: kit.Disk) -> None:
    """07 §2 NoopMeter."""
    meter = NoopMeter()
    meter.counter("a", {}).inc()
    meter.gauge("b", {}).set(1)
    meter.histogram("c", (1.0,), {}).observe(2)
    meter.emit(WalEvent(0, 0, "fsync"))
    kit.open_wal(disk, meter=meter)[0].close()


def test_an_event_stream_yields_the_events_in_order(disk: kit.Disk) -> None:
    """07 §2 EventStream."""
    stream = EventStream()
    wal, _ = kit.open_wal(disk, size=SIZE, meter=stream)
    kit.fill(wal, 10)
    kinds = [(event.kind, event.seg) for event in stream]
    assert kinds == [("segment_created", 0), ("segment_created", 1), ("fsync", 0), ("segment_rotated", 0)]
    wal.sync()
    assert [event.kind for event in stream] == ["fsync"]
    assert stream.dropped == 0
    wal.close()


def test_a_full_event_stream_drops_the_oldest_and_counts_them() -> None:
    """07 §2 EventStream(capacity)."""
    stream = EventStream(capacity=3)
    events = [WalEvent(0, n, "segment_created") for n in range(8)]
    for event in events:
        stream.emit(event)
    assert stream.dropped == 5
    assert list(stream) == events[5:]


def test_an_event_stream_holds_1024_events_unless_told() -> None:
    """07 §2 EventStream(capacity=1024)."""
    stream = EventStream()
    for n in range(1030):
        stream.emit(WalEvent(0, n, "fsync"))
    assert (stream.dropped, len(list(stream))) == (6, 1024)


def test_an_event_stream_needs_room_for_one_event() -> None:
    """07 §2."""
    with pytest.raises(ValueError, match="capacity"):
        EventStream(capacity=0)


def test_an_event_stream_passes_metrics_on(disk: kit.Disk) -> None:
    """07 §2: EventStream is a Meter."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, meter=EventStream(meter=meter))
    wal.append(kit.put(1))
    assert meter.value("wal_records_total") == 1
    wal.close()


SERIES = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)'
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


def parse(text: str) -> tuple[dict[str, str], dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """A strict reader of the Prometheus text format: kinds by family, values by series."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    family = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in kinds, "a family is told once"
            kinds[family] = kind
            continue
        if line.startswith("# HELP "):
            continue
        found = SERIES.fullmatch(line)
        assert found, line
        name, labels, value = found.groups()
        suffixes = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
        assert name in {family + suffix for suffix in suffixes}, line
        key = (name, tuple(sorted(LABEL.findall(labels or ""))))
        assert key not in values, "a series is told once"
        values[key] = float(value)
    return kinds, values


def test_the_prometheus_text_parses_and_has_every_metric(disk: kit.Disk) -> None:
    """07 §2."""
    meter = PrometheusMeter()
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=SIZE, meter=meter, node_id=4)
    kit.fill(wal, 20)
    wal.delete_segments_before(wal.current_position())
    kinds, values = parse(meter.render())
    node = (("node", "4"),)
    assert kinds == METRICS
    assert values["wal_records_total", node] == 20
    assert values["wal_segment_rolls_total", node] == values["wal_segments_deleted_total", node] == 2
    assert values["wal_segment_count", node] == 1
    assert values["wal_read_only", node] == 0
    assert values["wal_fsync_ms_count", node] == 22
    assert values["wal_gc_latency_ms_count", ()] == 1
    wal.close()


def test_a_histogram_has_the_promised_buckets_cumulative_and_complete() -> None:
    """07 §2 buckets; a value on a bound belongs to it."""
    meter = PrometheusMeter()
    bounds = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
    disk = kit.Disk()
    wal, _ = kit.open_wal(disk, meter=meter)
    histogram = meter.histogram("wal_fsync_ms", bounds, {"node": "0"})
    for value in (0.05, 0.1, 0.3, 5, 5.1, 2000):
        histogram.observe(value)
    _, values = parse(meter.render())
    buckets = {
        float(dict(labels)["le"]): value for (name, labels), value in values.items() if name == "wal_fsync_ms_bucket"
    }
    expected = [sum(v <= bound for v in (0.05, 0.1, 0.3, 5, 5.1, 2000)) for bound in (*bounds, float("inf"))]
    assert list(buckets) == [*bounds, float("inf")]
    assert list(buckets.values()) == expected
    assert values["wal_fsync_ms_count", (("node", "0"),)] == 6
    assert values["wal_fsync_ms_sum", (("node", "0"),)] == pytest.approx(2010.55)
    wal.close()


def test_labels_with_quotes_and_line_ends_stay_one_series() -> None:
    """07 §2, the text format's escapes."""
    meter = PrometheusMeter()
    meter.counter("odd", {"a": 'x"y\\z\n'}).inc(2)
    _, values = parse(meter.render())
    assert values == {("odd", (("a", 'x\\"y\\\\z\\n'),)): 2}


def test_a_metric_name_has_one_type() -> None:
    """07 §2."""
    meter = PrometheusMeter()
    meter.counter("x", {})
    with pytest.raises(ValueError, match="counter"):
        meter.gauge("x", {})


def test_the_same_series_asked_for_twice_is_one() -> None:
    """07 §2: two logs of one node share a meter."""
    meter = PrometheusMeter()
    meter.counter("x", {"node": "1"}).inc()
    meter.counter("x", {"node": "1"}).inc()
    assert parse(meter.render())[1] == {("x", (("node", "1"),)): 2}


def test_a_batch_window_that_syncs_in_the_background_is_told(disk: kit.Disk) -> None:
    """07 §2 fsync: each sync of the active segment."""
    meter = kit.Kept()
    wal, _ = kit.open_wal(disk, FsyncPolicy.batch(10), meter=meter)
    kit.fill(wal, 2)
    disk.clock.advance(10)
    wal.tick()
    assert meter.count("fsync") == 2
    wal.close()
