"""The benchmarks of the server run, small, with whatever peers are installed: their own checks hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import bench_http_commit as commit
from bench import bench_http_write as write
from bench import bench_loop_stalls as stalls
from bench import bench_retained as retained
from bench import bench_sse as sse
from bench import served
from bench.measure import Group
from topics.cli import peers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")

GROUPS = [
    write.writes("one", 1, 4, 20, None, 0.9),
    write.writes("ten", 10, 2, 10, None, 3.0),
    commit.many_writers(64),
    commit.lone_writer(5),
    retained.retained("records kept", 1_000),
]


RUN = [GROUPS[0], GROUPS[2], GROUPS[4], *stalls.groups(True)]


@pytest.mark.parametrize("group", RUN, ids=[group.name for group in RUN])
def test_every_arm_runs_and_has_what_the_figures_look_at(group: Group, tmp_path: Path) -> None:
    rows = {}
    for n, arm in enumerate(group.arms):
        (tmp_path / str(n)).mkdir()
        rows[arm.name] = [arm.run(tmp_path / str(n)).row()]
    for figure in group.figures:
        assert len(figure.ratios(rows)) == 1


def test_what_is_published_in_one_tick_is_one_frame_of_a_stream(tmp_path: Path) -> None:
    """B5"""
    sse.one_frame_per_tick(tmp_path / "store", 8, 80)


@pytest.mark.parametrize(
    ("group", "peer", "bound"), [(GROUPS[0], "Redis", 0.9), (GROUPS[1], "Redis", 3.0), (GROUPS[2], "Redis", 1.0)]
)
def test_a_peer_is_beside_us_with_its_bound_where_it_is_installed(group: Group, peer: str, bound: float) -> None:
    """[P-3] and B1 to B3."""
    found = [figure.bound for figure in group.figures if figure.name == f"rate beside {peer}"]
    assert found == ([bound] if peers.installed(peer.lower()) else [])


def test_a_peer_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """[P-3]"""
    monkeypatch.setattr(peers, "installed", lambda name: name == "redis")
    group = write.writes("one", 1, 1, 1, None, 0.9)
    assert [arm.name for arm in group.arms] == ["decode and answer", "write", "Redis"]
    assert group.explain({}) == ["NATS is not installed: not compared."]


def test_more_writes_than_requests_are_a_failure_of_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[P-4]"""
    counts = iter([{"batches": 1.0, "fsyncs": 0.0, "frames": 1.0}, {"batches": 99.0, "fsyncs": 0.0, "frames": 99.0}])
    monkeypatch.setattr(served, "counters", lambda target: next(counts))
    with pytest.raises(AssertionError, match="for 10 requests"), served.checked(served.Target(0), 10):
        pass
