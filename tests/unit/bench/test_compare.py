"""How two commits are set beside each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import compare


def side(raw_us: float, log_us: float, cpu_us: float = 1.0) -> dict[str, Any]:
    arms = {"raw": {"wall_us": raw_us, "cpu_us": 0.0}, "log": {"wall_us": log_us, "cpu_us": cpu_us}}
    return {"groups": [{"name": "g", "unit": "record", "baselines": ["raw"], "arms": arms}]}


def test_ratios_pair_the_rounds_of_both_sides() -> None:
    here = [side(10, 20), side(11, 22), side(10, 30)]
    there = [side(10, 40), side(11, 44), side(10, 30)]
    raw, log = compare.table(here, there)
    assert raw.steady
    assert log.steady
    assert log.wall == {"median": 0.5, "low": 0.5, "high": 1.0}
    assert raw.wall["median"] == 1.0


def test_no_measurable_cpu_on_the_other_side_is_no_difference() -> None:
    raw, _ = compare.table([side(10, 20)], [side(10, 20)])
    assert raw.cpu["median"] == 1.0


def test_a_baseline_that_varies_on_either_side_is_told() -> None:
    steady, shaky = [side(10, 20)] * 3, [side(10, 20), side(14, 20), side(10, 20)]
    assert not any(row.steady for row in compare.table(steady, shaky))
    assert not any(row.steady for row in compare.table(shaky, steady))


def test_a_group_keeps_its_first_steady_rows_and_tries_end() -> None:
    steady, shaky = ([side(10, 20)] * 3, [side(10, 20)] * 3), ([side(10, 40)] * 3, [side(10, 20), side(19, 20)] * 2)
    tries = iter([compare.table(shaky[0], shaky[1][:3]), compare.table(*steady), []])
    assert all(row.steady for row in compare.steadiest(lambda: next(tries)))
    calls: list[int] = []

    def never() -> list[compare.Row]:
        calls.append(1)
        return compare.table(shaky[0], shaky[1][:3])

    assert not any(row.steady for row in compare.steadiest(never))
    assert len(calls) == 4


def test_what_measures_is_this_trees_where_other_sources_are_measured(tmp_path: Path) -> None:
    """A commit that has no such modules, or others."""
    here = Path(compare.ROOT) / "src/topics"
    (tmp_path / "topics/cli").mkdir(parents=True)
    (tmp_path / "topics/cli/__init__.py").touch()
    for path in here.iterdir():
        if path.name not in ("cli", "__pycache__"):
            (tmp_path / "topics" / path.name).symlink_to(path)
    code = "import topics.cli, bench; from topics.cli import load; print(topics.cli.__file__, load.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(compare.ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "topics/cli/__init__.py"), str(here / "cli/load.py")]
