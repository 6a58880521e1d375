"""`GET /v0/metrics`: the text that Prometheus reads and the JSON snapshot (02 §7.3, 06 §21)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.kit import Running, records, running
from tests.api.watching import open_stream, watch
from topics.engine import metrics as sweeps
from topics.engine.metrics import TOPICS_MAX
from topics.engine.traffic import ACK_BOUNDS_MS, Traffic
from topics.server import metrics
from topics.testing import ManualClock

JSON = {"accept": "application/json"}
LABEL = r'[a-z]+="(?P<{}>(?:[^"\\\n]|\\["\\n])*)"'
SERIES = re.compile(rf"(?P<name>[a-z_]+)(?:\{{{LABEL.format('value')}(?:,{LABEL.format('more')})?\}})? (?P<number>\S+)")


class Scrape:
    """A parsed exposition; whatever is not of the format fails."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[str, dict[str, float]] = {}
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, what, family, rest = line.split(" ", 3)
                told = self.helps if what == "HELP" else self.kinds
                assert family not in told, f"{what} of {family} twice"
                told[family] = rest
                continue
            match = SERIES.fullmatch(line)
            assert match, line
            assert match["name"].startswith(family), f"{line} stands under {family}"
            value = ",".join(filter(None, (match["value"], match["more"])))
            series = self.samples.setdefault(match["name"], {})
            assert value not in series, f"{line} twice"
            series[value] = float(match["number"])

    def __getitem__(self, name: str) -> float:
        (number,) = self.samples[name].values()
        return number


def engine_of(server: Running) -> Any:
    return server.server.app.engine


def scrape(client: httpx.Client) -> Scrape:
    answer = client.get("/v0/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"
    return Scrape(answer.text)


def test_every_metric_has_help_type_and_the_kind_that_is_documented(client: httpx.Client, topic: str) -> None:
    """[MET-2]"""
    client.post(f"/v0/topics/{topic}", json=records(1))
    found = scrape(client)
    assert set(found.kinds) == set(found.helps) == {one.name for one in metrics.TABLE}
    for one in metrics.TABLE:
        assert found.kinds[one.name] == one.kind
        assert (one.kind == "counter") == (one.name.endswith("_total") or one.name == "topics_uptime_ms")
        if one.kind != "histogram" and not one.label:
            assert list(found.samples[one.name]) == [""]


def test_the_names_of_the_specification_are_there(client: httpx.Client) -> None:
    """02 §7.3, 06 §21, 08 §11."""
    found = scrape(client)
    for name in (
        *("topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live", "topics_bytes_live"),
        *("topics_topic_metrics_truncated", "topics_queue_topics", "topics_queue_leases_in_flight"),
        *("topics_sse_connections", "topics_watch_sessions", "topics_ready", "topics_recovery_progress"),
        *("topics_uptime_ms", "topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total"),
        *("topics_wal_bytes_written_total", "topics_wal_rotations_total", "topics_wal_queue_depth"),
        *("topics_wal_queue_depth_peak", "topics_wal_submit_full_total", "topics_wal_read_only", "topics_wal_full"),
        *("topics_ckpt_total", "topics_ckpt_ms", "topics_tail_records", "topics_tail_bytes", "topics_segments"),
        *("topics_segment_corrupt_total", "topics_segments_dropped_total", "topics_relocated_total"),
        *("topics_cold_reads_total", "topics_snapshot_total", "topics_snapshot_failed_total", "topics_holes_total"),
        *("topics_orphan_dirs", "topics_idempotency_entries", "topics_idempotency_evicted_total"),
        *("topics_pressure", "topics_throttle_level", "topics_router_lag_records", "topics_loop_stall_ms_count"),
        *("topics_streams_closed_slow_total", "topics_sched_ready", "topics_sched_latency_ms_count"),
        *("topics_throttled_total", "topics_loop_lag_ms"),
    ):  # fmt: skip
        assert name in found.samples, name


def test_a_topic_is_counted_as_it_is() -> None:
    """[MET-5]: what is live, by class, and by topic; a log has no queue series."""
    with running() as server, server.client() as client:
        client.put("/v0/topics/q", json={"type": "queue", "durability": "memory"})
        client.post("/v0/topics/q", json=records(1, 2))
        client.put("/v0/topics/log", json={"durable": True})
        client.post("/v0/topics/log", json=records(*range(5)))
        client.post("/v0/topics/log/delete", json={"before_seq": 3})
        state = client.get("/v0/topics/log").json()
        found = scrape(client)
        assert found["topics_topics"] == 2
        assert found.samples["topics_topics_by_class"] == {"ephemeral": 0, "memory": 1, "disk": 0, "fsync": 1}
        assert found["topics_records_live"] == 5
        assert found.samples["topics_topic_head_seq"] == {"q": 2, "log": 5}
        assert found.samples["topics_topic_earliest_seq"] == {"q": 1, "log": 3}
        assert found.samples["topics_topic_records_live"] == {"q": 2, "log": 3}
        assert found.samples["topics_topic_bytes_live"]["log"] == state["bytes"]
        assert found["topics_bytes_live"] == sum(found.samples["topics_topic_bytes_live"].values())
        assert found.samples["topics_topic_queue_ready"] == {"q": 2}
        assert found.samples["topics_topic_queue_in_flight"] == {"q": 0}
        assert (found["topics_queue_topics"], found["topics_queue_leases_in_flight"]) == (1, 0)
        client.delete("/v0/topics/q")
        assert scrape(client).samples["topics_topic_head_seq"] == {"log": 5}


def test_the_histogram_of_syncs_is_cumulative_and_counts_every_sync(client: httpx.Client, topic: str) -> None:
    """[MET-5]"""
    client.put(f"/v0/topics/{topic}", json={"durable": True})
    for n in range(5):
        client.post(f"/v0/topics/{topic}", json=records(n))
    found = scrape(client)
    buckets = found.samples["topics_wal_fsync_latency_us_bucket"]
    assert list(buckets) == ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == found["topics_wal_fsync_latency_us_count"] == found["topics_wal_fsyncs_total"] >= 5
    assert found["topics_wal_fsync_latency_us_sum"] > 0
    assert found["topics_wal_queue_depth"] == 0
    assert found["topics_wal_queue_depth_peak"] >= 1


def test_a_client_that_accepts_json_gets_the_snapshot(client: httpx.Client, topic: str) -> None:
    """[MET-6]"""
    client.post(f"/v0/topics/{topic}", json=records(1))
    answer = client.get("/v0/metrics", headers={"accept": "text/html, application/json;q=0.9"})
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert set(told) == {
        "topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live",
        "bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready",
        "replay_progress", "uptime_ms", "wal", "shards", "warnings", "bytes_by_tier", "pressure", "throttle_level",
        "traffic", "ack_latency_ms", "fsync_latency_us", "lost_records", "router_lag_records",
    }  # fmt: skip
    assert set(told["wal"]) == {
        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth", "queue_depth_peak",
        "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
    }  # fmt: skip
    assert told["topics"] >= 1
    assert told["ready"] is True
    assert told["replay_progress"] == 1
    assert told["wal"]["read_only"] is False
    assert told["wal"]["fsync_count"] == told["wal"]["fsyncs"] >= 1
    assert told["shards"] == [{"name": "wal", "state": "ok", "queue_depth": 0}]


def test_both_forms_tell_the_same(client: httpx.Client, topic: str) -> None:
    client.post(f"/v0/topics/{topic}", json=records(1, 2))
    client.post("/v0/checkpoint")
    text, told = scrape(client), client.get("/v0/metrics", headers=JSON).json()
    for name in ("topics", "records_live", "bytes_live", "routers", "watch_sessions"):
        assert told[name] == text[f"topics_{name}"], name
    for name in ("frames", "batches", "bytes_written", "rotations"):
        assert told["wal"][name] == text[f"topics_wal_{name}_total"], name
    assert told["bytes_by_tier"]["hot"] > 0
    assert text.samples["topics_segments"]["hot"] >= 1
    assert (text["topics_tail_records"], text["topics_snapshot_total"] >= 1) == (0, True)


def test_metrics_are_answered_while_the_log_is_replayed() -> None:
    """[MET-1, API-6]"""
    with running(recover=False) as server, server.client() as client:
        server.on_loop(lambda: setattr(server.server.app, "progress", 0.25))
        found = scrape(client)
        assert (found["topics_ready"], found["topics_recovery_progress"]) == (0, 0.25)
        assert set(found.kinds) == {one.name for one in metrics.TABLE}
        told = client.get("/v0/metrics", headers=JSON).json()
        assert (told["ready"], told["replay_progress"], told["topics"]) == (False, 0.25, 0)
        assert client.get("/v0/topics").status_code == 503


def test_metrics_need_the_read_scope() -> None:
    """[MET-1, PFX-5]: names are not filtered."""
    with running(env={"TOPICS_API_KEYS": "all,reader:r:other.,writer:w"}) as server:
        with server.client(key="all") as client:
            client.post("/v0/topics/mine", json=records(1))
            assert client.get("/metrics").status_code == 404
        with server.client() as client:
            assert client.get("/v0/metrics").status_code == 401
        with server.client(key="writer") as client:
            assert client.get("/v0/metrics").status_code == 403
        with server.client(key="reader") as client:
            assert scrape(client).samples["topics_topic_head_seq"] == {"mine": 1}


def test_there_are_series_for_a_thousand_topics_at_most(tmp_path: Path) -> None:
    """[MET-4]"""
    with running(tmp_path, {"TOPICS_MAX_TOPICS": "0"}) as server, server.client() as client:
        for n in range(TOPICS_MAX):
            client.put(f"/v0/topics/t{n}", json={"durability": "ephemeral"})
        found = scrape(client)
        assert len(found.samples["topics_topic_head_seq"]) == TOPICS_MAX
        assert found["topics_topic_metrics_truncated"] == 0
        client.put("/v0/topics/one-more")
        found = scrape(client)
        assert found["topics_topics"] == TOPICS_MAX + 1
        assert len(found.samples["topics_topic_head_seq"]) == TOPICS_MAX
        assert found["topics_topic_metrics_truncated"] == 1


def test_a_label_value_is_escaped() -> None:
    """[MET-3]"""
    with running() as server, server.client() as client:
        client.put("/v0/topics/plain")
        strange = 'back\\slash "quoted"\nnext'
        core = engine_of(server).core
        server.on_loop(lambda: setattr(core.names["plain"], "name", strange))
        answer = client.get("/v0/metrics").text
        assert 'topics_topic_head_seq{topic="back\\\\slash \\"quoted\\"\\nnext"} 0' in answer.splitlines()
        server.on_loop(lambda: setattr(core.names["plain"], "name", "plain"))


def test_system_topics_are_not_counted() -> None:
    """[A-14]"""
    with running() as server, server.client() as client:
        client.post("/v0/topics/mine", json=records(1))
        before = scrape(client)
        client.post("/v0/topics/other", json=records(1, 2))
        core = engine_of(server).core
        server.on_loop(lambda: setattr(core.names["other"], "name", "$loss"))
        found = scrape(client)
        server.on_loop(lambda: setattr(core.names["other"], "name", "other"))
        for name in ("topics_topics", "topics_records_live", "topics_bytes_live"):
            assert found[name] == before[name], name
        assert found.samples["topics_topic_head_seq"] == {"mine": 1}


def test_a_latched_log_shows() -> None:
    """[MET-6], 06 §21: and the server is not ready."""
    with running() as server, server.client() as client:
        client.post("/v0/topics/mine", json=records(1))
        server.on_loop(lambda: setattr(engine_of(server).core.wal.shards[0], "state", "read_only"))
        found, told = scrape(client), client.get("/v0/metrics", headers=JSON).json()
        server.on_loop(lambda: setattr(engine_of(server).core.wal.shards[0], "state", "ok"))
        assert (found["topics_wal_read_only"], found["topics_ready"]) == (1, 0)
        assert told["wal"]["read_only"] is True
        assert told["shards"][0]["state"] == "read_only"


def test_the_last_twenty_warnings_are_told() -> None:
    """[MET-6]"""
    clock = ManualClock()
    with running(clock=clock) as server, server.client() as client:
        for n in range(25):
            server.on_loop(lambda n=n: server.server.app.warn(f"warning {n}"))
            clock.advance(1)
        told = client.get("/v0/metrics", headers=JSON).json()
        assert [one["message"] for one in told["warnings"]] == [f"warning {n}" for n in range(5, 25)]
        assert told["warnings"][-1]["ts"] == clock.now_ms() - 1
        assert told["uptime_ms"] == 25


def test_a_slow_loop_shows(server: Running, client: httpx.Client) -> None:
    """[P-10]"""
    before = scrape(client)
    server.on_loop(lambda: server.server.app.stalls.note(12.5))
    after = scrape(client)
    assert after["topics_loop_stall_ms_sum"] - before["topics_loop_stall_ms_sum"] == 12.5
    for bound, counted in (("10", 0), ("50", 1), ("+Inf", 1)):
        seen = [one.samples["topics_loop_stall_ms_bucket"][bound] for one in (before, after)]
        assert seen[1] - seen[0] == counted


def test_topics_have_gauges_only() -> None:
    """[MET-7]: no counters of appends, reads, evictions or tombstones per topic."""
    assert {one.kind for one in metrics.TABLE if one.label == "topic"} == {"gauge"}


def test_writes_are_counted_by_class_with_their_latency() -> None:
    """What rates and percentiles of the console are made of; a refused or repeated write is none."""
    with running() as server, server.client() as client:
        for durability in ("ephemeral", "memory", "disk", "fsync"):
            client.put(f"/v0/topics/{durability}", json={"durability": durability})
            client.post(f"/v0/topics/{durability}", json=records(1, 2, 3))
        client.post("/v0/topics/fsync", json=records(4, idempotency_key="k"))
        client.post("/v0/topics/fsync", json=records(4, idempotency_key="k"))
        assert client.post("/v0/topics/absent", json=records(1, create=False)).status_code == 404
        text, told = scrape(client), client.get("/v0/metrics", headers=JSON).json()
        assert text["topics_records_written_total"] == told["traffic"]["records_written"] == 13
        assert text.samples["topics_ack_latency_ms_count"] == {"ephemeral": 1, "memory": 1, "disk": 1, "fsync": 2}
        for durability, one in told["ack_latency_ms"].items():
            count = text.samples["topics_ack_latency_ms_count"][durability]
            assert len(one["counts"]) == len(one["bounds"]) + 1
            assert sum(one["counts"]) == count
            assert one["sum"] == text.samples["topics_ack_latency_ms_sum"][durability] > 0
            assert text.samples["topics_ack_latency_ms_bucket"][f"{durability},+Inf"] == count
        syncs = told["fsync_latency_us"]
        assert sum(syncs["counts"]) == told["wal"]["fsync_count"]
        assert syncs["bounds"] == [50, 100, 250, 500, 1000, 5000, 10000, 50000, 100000]


def test_a_latency_is_counted_in_its_bucket() -> None:
    traffic = Traffic()
    for took_ms in (0.05, 0.1, 0.2, 7.0, 5000.0):
        traffic.acked("disk", 2, took_ms)
    assert dict(zip((*ACK_BOUNDS_MS, None), traffic.acks["disk"].counts, strict=True)) == {
        0.1: 2, 0.25: 1, 0.5: 0, 1: 0, 2.5: 0, 5: 0, 10: 1, 25: 0, 50: 0, 100: 0, 250: 0, 1000: 0, None: 1,
    }  # fmt: skip
    assert (traffic.written, traffic.acks["disk"].total_ms) == (10, 5007.35)


def test_reads_deliveries_and_jobs_are_counted() -> None:
    """Each stream that is sent a record counts, whether it reads for itself or gets what others get."""
    with running() as server, server.client() as client:
        client.post("/v0/topics/t", json=records(*range(5)))
        client.post("/v0/topics/t/diff", json={"limit": 3})
        client.post("/v0/topics/t/diff", json={"from_seq": 5})
        traffic = client.get("/v0/metrics", headers=JSON).json()["traffic"]
        assert (traffic["reads"], traffic["records_read"], traffic["records_delivered"]) == (2, 3, 0)
        wids = [watch(client, "t")["wid"] for _ in range(2)]
        with open_stream(server, False, wids[0]) as one, open_stream(server, False, wids[1]) as two:
            for stream in (one, two):
                stream.until("caught-up")
            assert scrape(client)["topics_records_delivered_total"] == 10
            client.post("/v0/topics/t", json=records(6, 7, 8))
            for stream in (one, two):
                stream.until("caught-up")
            assert scrape(client)["topics_records_delivered_total"] == 16
        client.put("/v0/topics/q", json={"type": "queue"})
        client.post("/v0/topics/q", json=records(1, 2))
        client.post("/v0/topics/q/claim", json={"node": "n", "max": 5})
        assert scrape(client)["topics_jobs_delivered_total"] == 2


def test_a_bug_in_a_later_stretch_of_the_sweep_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ERR-6, MET-1] And the next scrape is none the worse for it."""
    monkeypatch.setattr(sweeps, "STEP", 2)
    real = sweeps.Sweep.step
    steps: list[None] = []

    def step(sweep: sweeps.Sweep) -> bool:
        steps.append(None)
        if len(steps) == 2:
            raise LookupError("unforeseen")
        return real(sweep)

    with running() as server, server.client() as client:
        for n in range(6):
            client.post(f"/v0/topics/t{n}", json=records(1))
        monkeypatch.setattr(sweeps.Sweep, "step", step)
        answer = client.get("/v0/metrics", timeout=10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert scrape(client)["topics_topics"] == 6
