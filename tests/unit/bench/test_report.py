"""The report is well formed, and shows what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import machine, report
from topics.cli import plot


def group(**changes: Any) -> dict[str, Any]:
    rounds = {"raw": [{"wall_us": 10.0}] * 5, "log": [{"wall_us": time} for time in (18.0, 20.0, 20.0, 21.0, 24.0)]}
    figure = {"name": "log & <raw>", "arm": "log", "against": "raw", "kind": "time", "bound": 3.0}
    measured = {"median": 2.0, "low": 1.8, "high": 2.4, "holds": True}
    one = {"median": 10.0, "low": 9.0, "high": 11.0}
    return {
        "name": "g",
        "unit": "record",
        "rejected": False,
        "attempts": [{"rejected": False, "rounds": rounds}],
        "arms": {"raw": {"wall_us": one, "cpu_us": one}, "log": {"wall_us": one, "cpu_us": one, "p99_us": one}},
        "figures": [{**figure, **measured}],
        "aims": [{"arm": "log", "at_least": 100.0, "unit": "MB/s", "rate": 200.0, "reached": True}],
        "explain": ["a < b"],
        **changes,
    }


def rejected() -> dict[str, Any]:
    figure = {"name": "f", "arm": "log", "against": "raw", "kind": "rate", "bound": 0.8, "holds": None}
    return group(rejected=True, figures=[figure], aims=[], attempts=[{"rejected": True, "rounds": {}}] * 4)


def result(*groups: dict[str, Any]) -> dict[str, Any]:
    return {
        "bench": "b",
        "doc": "What?\n\nThis & that.",
        "seed": 1,
        "quick": False,
        "started": "2024-01-01T00:00:00+00:00",
        "machine": {"cpu": "C", "cores": 2, "kernel": "K", "filesystem": "ext4", "load_before": [0.1, 0.2, 0.3]},
        "commit": "abc",
        "versions": {"python": "3.11"},
        "groups": list(groups),
    }


def parse(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_is_well_formed_and_written_beside_the_results(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "b.json").write_text(json.dumps(result(group(), rejected())))
    written = report.write(folder)
    assert written == tmp_path / "report.html"
    page = parse(written.read_text(encoding="utf-8"))
    assert len(list(page.iter("svg"))) == 1
    assert len(list(page.iter("circle"))) == 5


def test_a_page_without_results_says_how_to_get_some() -> None:
    assert "make bench" in "".join(parse(report.page([])).itertext())


def test_a_rejected_group_has_a_warning_and_no_plot() -> None:
    page = parse(report.page([result(rejected())]))
    assert list(page.iter("svg")) == []
    text = "".join(page.itertext())
    assert "in 4 runs the baseline varied" in text
    assert "rejected" in text


def test_a_figure_that_is_no_ratio_is_a_sentence_and_no_bar() -> None:
    figure = {"name": "bytes per record", "arm": "log", "against": None, "kind": "time", "bound": 4.0}
    page = parse(
        report.page([result(group(figures=[{**figure, "median": 3.0, "low": 2.0, "high": 5.0, "holds": True}]))])
    )
    assert list(page.iter("svg")) == []
    assert "bytes per record: 3 (2 – 5), bound ≤ 4: holds." in "".join(page.itertext())


@pytest.mark.parametrize(
    ("kind", "bound", "holds", "text", "word"),
    [("time", 8.0, True, "≤ 8", "holds"), ("rate", 0.75, False, "≥ 0.75", "missed"), ("rate", None, None, "", "")],
)
def test_a_bound_is_told_in_its_direction(
    kind: str, bound: float | None, holds: bool | None, text: str, word: str
) -> None:
    figure = {"kind": kind, "bound": bound, "holds": holds}
    assert report.bound_text(figure) == text
    assert report.verdict(figure) == word


@pytest.mark.parametrize("high", [0.3, 1.0, 2.4, 7.0, 63.0])
def test_a_scale_has_room_for_everything_and_few_ticks(high: float) -> None:
    scale = report.scale_for([{"high": high, "bound": 0.8}])
    assert scale.top > max(high, 1.0)
    assert 3 <= len(scale.ticks()) <= 7
    assert scale.x(0) < scale.x(1) <= report.LABELS + report.PLOT


def test_long_names_are_wrapped_at_words() -> None:
    assert plot.wrap("uncached beside cached, 100 records", 20) == ["uncached beside", "cached, 100 records"]
    assert plot.wrap("indivisible", 3) == ["indivisible"]


def test_the_innermost_mount_names_the_filesystem() -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/a rw\n"
        "23 22 0:20 / /tmp rw shared:1 - tmpfs tmpfs rw\n"
        "24 23 8:2 / /tmp/big\\040disk rw - xfs /dev/b rw\n"
    )
    found = {name: machine.filesystem_in(table, Path(name)) for name in ("/var", "/tmp/x", "/tmp/big disk/y", "/tmpx")}
    assert found == {"/var": "ext4", "/tmp/x": "tmpfs", "/tmp/big disk/y": "xfs", "/tmpx": "ext4"}
