"""Tables and plots say what results say: what is lost as plainly as what is won."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import __main__ as command
from bench import tables, themes
from bench.measure import CURVE
from topics.cli import peers, plot


def figure(name: str, **changes: Any) -> dict[str, Any]:
    made = {"name": name, "arm": "write", "against": "Redis", "kind": "rate", "bound": None, "holds": None}
    return {**made, "median": 0.5, "low": 0.4, "high": 0.612, **changes}


def result(bench: str, group: str, *figures: dict[str, Any], **changes: Any) -> dict[str, Any]:
    one = {"median": 10.0, "low": 8.0, "high": 20.0}
    curve = {f"p{share:g}_us": one for share in CURVE}
    arms = {"write": {"wall_us": one, "cpu_us": one, **curve}, "Redis": {"wall_us": one, "cpu_us": one}}
    made = {
        "bench": bench,
        "quick": False,
        "started": "2024-02-29T00:00:00+00:00",
        "commit": "abc",
        "machine": {"cpu": "C", "cores": 2},
        "versions": {"topics kernel": "native"},
        "groups": [{"name": group, "unit": "record", "arms": arms, "figures": list(figures), "rejected": False}],
    }
    return {**made, **changes}


def table(*figures: dict[str, Any]) -> list[str]:
    results = {"http_write": result("http_write", "one record, 64 connections", *figures)}
    return [line for line in tables.headlines(results).splitlines() if line.startswith("| one-record")]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "**behind**"),
        ({"median": 1.2}, "ahead"),
        ({"bound": 0.4, "holds": True}, "holds, **behind**"),
        ({"bound": 0.4, "holds": True, "median": 1.1}, "holds, ahead"),
        ({"bound": 0.4, "holds": True, "against": "decode and answer"}, "holds"),
        ({"bound": 0.9, "holds": False}, "**missed**, **behind**"),
        ({"kind": "time", "median": 1.2}, "**behind**"),
        ({"kind": "time", "median": 0.8}, "ahead"),
    ],
)
def test_a_row_says_who_is_ahead_or_whether_its_bound_holds(changes: dict[str, Any], word: str) -> None:
    (row,) = table(figure("rate beside Redis", **changes))
    assert row.endswith(f"| {word} |")


def test_a_missed_bound_that_has_no_row_gets_one_in_the_readme_and_on_the_page() -> None:
    lost = figure("batch(5) beside os", against="os", bound=0.75, holds=False, median=0.7)
    results = {"wal_policies": result("wal_policies", "buffered appends", lost)}
    assert "| buffered appends | batch(5) beside os | 0.7× | 0.4 – 0.612 | ≥ 0.75 | **missed** |" in tables.headlines(
        results
    )
    made = tables.page(
        "<!-- missed --><!-- figures: wal_policies -->\n<!-- /figures -->\n<!-- missed -->\n<!-- /missed -->", results
    )
    assert "| wal_policies | buffered appends: batch(5) beside os | 0.7× | ≥ 0.75 |" in made
    assert "All bounds hold." in tables.missed({"x": result("x", "g", figure("f", bound=0.4, holds=True))})


def test_of_a_soak_its_thirds_and_its_verdict_are_kept(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    values = [(float(n), 50.0 * 2**20) for n in range(90)]
    soak = {
        "soak": True, "seconds": 1800.0, "seed": 1, "settings": {}, "started": "2024-02-29T00:00:00+00:00",
        "machine": {}, "commit": "abc", "versions": {}, "done": {"jobs": 1200}, "happened": {},
        "failures": ["it grew"], "rejected": [], "errors": [],
        "p99_ms": {"disk": [1.0] * 20 + [1.5] * 10, "gone": [None] * 30},
        "series": dict.fromkeys(("own memory", "descriptors", "threads"), values),
    }  # fmt: skip
    (tmp_path / "results/soak.json").write_text(json.dumps(soak))
    assert list(tables.keep([], tmp_path / "results", tmp_path)) == [tmp_path / "soak.json"]
    assert tables.stored(tmp_path) == {}
    made = tables.page("<!-- soak -->\n<!-- /soak -->", {}, tables.soaked(tmp_path))
    assert "| p99 of disk, ms | 1 | 1.5 | 1.5× |" in made
    assert "| own memory, MiB | 50 | 50 |" in made
    assert "**Failed:** it grew. 0 errors; 1,200 jobs." in made
    assert "30 minutes, 2024-02-29, commit `abc`" in made


def test_a_rejected_figure_is_told_as_one() -> None:
    rejected = figure("rate beside Redis", bound=0.9)
    for name in ("median", "low", "high"):
        del rejected[name]
    (row,) = table(rejected)
    assert "rejected" in row


def test_what_was_not_measured_is_named() -> None:
    assert "Not stored yet: " in tables.headlines({"x": result("x", "g")})


def test_a_page_gets_its_tables_and_keeps_its_words() -> None:
    text = "before\n<!-- figures: x -->\nstale\n<!-- /figures -->\nafter\n<!-- figures: y -->\n<!-- /figures -->\n"
    made = tables.page(text, {"x": result("x", "g", figure("a | b", bound=0.4, holds=True))})
    assert "stale" not in made
    assert "before" in made
    assert "| a \\| b | rate | 0.5× | 0.4 – 0.612 | ≥ 0.4 | yes |" in made
    assert "No run of this is stored yet." in made
    assert tables.page(made, {"x": result("x", "g", figure("a | b", bound=0.4, holds=True))}) == made


def test_a_stored_result_without_a_place_on_the_page_is_refused() -> None:
    with pytest.raises(AssertionError, match="no place for x"):
        tables.page("nothing", {"x": result("x", "g")})


def test_full_runs_are_stored_and_quick_ones_are_refused(tmp_path: Path) -> None:
    source, data = tmp_path / "results", tmp_path / "data"
    source.mkdir()
    data.mkdir()
    (source / "x.json").write_text(json.dumps(result("x", "g")))
    assert list(tables.keep([], source, data)) == [data / "x.json"]
    assert tables.stored(data).keys() == {"x"}
    (source / "y.json").write_text(json.dumps(result("y", "g", quick=True)))
    with pytest.raises(ValueError, match="quick run"):
        list(tables.keep(["y"], source, data))


def test_runs_without_the_kernel_are_stored_beside_those_with_it(tmp_path: Path) -> None:
    """The README tells of those with it alone."""
    (tmp_path / "results").mkdir()
    group = ("one record, 64 connections", figure("rate beside Redis", median=0.3))
    pure = result("http_write", *group, versions={"topics kernel": "pure"}, machine={"cpu": "P", "cores": 9})
    (tmp_path / "results/http_write.json").write_text(json.dumps(pure))
    assert list(tables.keep([], tmp_path / "results", tmp_path)) == [tmp_path / "http_write_pure.json"]
    results = tables.stored(tmp_path)
    assert results.keys() == {"http_write_pure"}
    told = tables.headlines({**results, "http_write": result("http_write", *group)})
    assert "9 cores" not in told
    assert "(data/http_write_pure.json)" in tables.page("<!-- figures: http_write_pure -->\n<!-- /figures -->", results)


SLOW_TO_MAKE = {"spark", "archive", "wal_recovery"}
"""Their groups need a session or a log to be made."""


@pytest.mark.parametrize("row", tables.ROWS, ids=lambda row: f"{row.bench}: {row.figure}")
def test_every_row_of_the_readme_is_a_figure_of_its_benchmark(row: tables.Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that was renamed would be missing for ever."""
    monkeypatch.setattr(peers, "installed", lambda name: True)
    monkeypatch.setattr(peers, "can_sync_always", lambda: True)
    assert row.bench in command.NAMES
    if row.bench not in SLOW_TO_MAKE:
        groups = importlib.import_module(f"bench.bench_{row.bench}").groups(True)
        assert row.figure in [one.name for group in groups if group.name.startswith(row.group) for one in group.figures]


def test_subjects_are_drawn_from_the_arms_and_say_so_where_nothing_was_measured() -> None:
    found = [result("http_write", "one record", figure("rate beside Redis"))]
    drawn = dict(zip(themes.SUBJECTS, themes.sections(found), strict=True))
    throughput, latency, archive = (ET.fromstring(drawn[name]) for name in ("Throughput", "Latency", "Archive"))
    assert [one.get("class") for one in throughput.iter("rect")] == ["bar ours", "bar free"]
    assert "100,000" in "".join(throughput.itertext())
    assert len(list(latency.iter("polyline"))) == 1
    assert "Not measured here." in "".join(archive.itertext())


def test_a_curve_over_sizes_is_drawn_in_their_order() -> None:
    one = {"median": 5.0, "low": 5.0, "high": 5.0}
    arms = {"open, 1,000": {"open_ms": one}, "open, 100": {"open_ms": one}}
    group = {"name": "recovery by x", "arms": arms, "figures": [], "rejected": False}
    svg = ET.fromstring(themes.Growth("b", "recovery", "open_ms", "records", "ms").draw(group))
    (line,) = svg.iter("polyline")
    first, last = (float(point.split(",")[0]) for point in (line.get("points") or "").split())
    assert first < last


def test_points_are_thinned_without_losing_a_peak() -> None:
    curve = [(float(n), 1.0 if n != 777 else 99.0) for n in range(5000)]
    thin = plot.thinned(curve)
    assert len(thin) == 400
    assert max(value for _, value in thin) == 99.0


@pytest.mark.parametrize("top", [0.004, 0.3, 2.4, 63.0, 540_000.0])
def test_a_scale_has_few_ticks_at_any_size(top: float) -> None:
    scale = plot.Scale(top, 0, 100)
    assert 2 <= len(scale.ticks()) <= 8
    assert scale.at(top) == 100
