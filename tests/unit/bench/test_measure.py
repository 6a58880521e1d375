"""The arithmetic of the benchmarks. Nothing here looks at the time anything takes."""

from __future__ import annotations

import argparse
import json
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import __main__ as command
from bench import measure, report
from bench.measure import Aim, Arm, Figure, Group, Sample

MICRO = 1e-6


def arm(name: str, times_us: list[float]) -> Arm:
    """An arm that claims these times, one per call."""
    left = iter(times_us)
    return Arm(name, lambda dir: Sample(1, next(left) * MICRO, 0.5 * MICRO))


def group(base_us: list[float], ours_us: list[float], kind: str = "time", bound: float | None = 3.0) -> Group:
    figure = Figure("ours", "ours", "base", kind, bound)
    return Group("g", "record", [arm("base", base_us), arm("ours", ours_us)], [figure], [Aim("ours", 1e5, "records/s")])


def rows(*times_us: float) -> list[dict[str, float]]:
    return [{"wall_us": time, "cpu_us": time} for time in times_us]


def run(given: Group, tmp_path: Path, rounds: int = 5) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    found = measure.measure(given, rounds, tmp_path, said.append)
    json.dumps(found)
    return found, said


def constant(value: float, rounds: int = 5) -> list[float]:
    return [value] * (1 + rounds * measure.PASSES)


def test_a_ratio_is_the_median_of_the_rounds_and_keeps_its_spread(tmp_path: Path) -> None:
    found, said = run(group(constant(10), [1, *[t for t in (20, 21, 22, 28, 30) for _ in range(3)]]), tmp_path)
    (figure,) = found["figures"]
    assert (figure["median"], figure["low"], figure["high"], figure["holds"]) == (2.2, 2.0, 3.0, True)
    assert found["aims"][0]["rate"] == pytest.approx(1e6 / 22, rel=1e-3)
    assert found["aims"][0]["reached"] is False
    assert said == []


def test_a_rate_is_the_inverse_and_its_bound_a_minimum(tmp_path: Path) -> None:
    found, _ = run(group(constant(10), constant(20), "rate", 0.8), tmp_path)
    (figure,) = found["figures"]
    assert (figure["median"], figure["holds"]) == (0.5, False)


def test_a_figure_without_a_bound_neither_holds_nor_fails(tmp_path: Path) -> None:
    found, _ = run(group(constant(10), constant(20), bound=None), tmp_path)
    assert found["figures"][0]["holds"] is None


def test_a_figure_may_look_at_another_value_and_leave_something_on_top() -> None:
    given = {"ours": [{"p50_us": 800.0}, {"p50_us": 400.0}], "base": [{"p50_us": 100.0}, {"p50_us": 100.0}]}
    assert Figure("f", "ours", "base", "time", 1.6, "p50_us", 500.0).ratios(given) == [3.0, 0.0]


def test_a_figure_without_a_baseline_is_the_value_itself_and_needs_no_steadiness(tmp_path: Path) -> None:
    shares = iter([0.9, *[share for share in (0.4, 0.6, 0.7, 0.8, 0.9) for _ in range(3)]])
    one = Arm("a", lambda dir: Sample(1, MICRO, MICRO, {"sharing": next(shares)}))
    found, said = run(Group("g", "record", [one], [Figure("f", "a", None, "rate", 0.5, "sharing")]), tmp_path)
    assert (found["figures"][0]["median"], found["figures"][0]["holds"], said) == (0.7, True, [])


def test_a_burst_in_one_of_three_passes_is_not_seen(tmp_path: Path) -> None:
    found, said = run(group([1, *[10, 90, 11] * 5], constant(22)), tmp_path)
    assert said == []
    assert found["figures"][0]["median"] == 2.0


def test_an_unsteady_baseline_is_rejected_and_measured_again(tmp_path: Path) -> None:
    """[P-4] Before ratios are looked at: the rejected run has none."""
    shaky = [10, 10, 10, 13, 13, 13] * 2 + [10] * 3
    found, said = run(group([1, *shaky, *constant(10)], constant(20, 10)), tmp_path)
    assert [attempt["baseline_variation"] for attempt in found["attempts"]] == [{"base": 0.3}, {}]
    assert len(said) == 1
    assert "base by 30%" in said[0]
    assert found["figures"][0]["median"] == 2.0
    assert len(found["attempts"][0]["rounds"]["base"]) == 5


@pytest.mark.parametrize(("value", "tries"), [("wall_us", 4), ("cpu_us", 1)])
def test_what_has_to_hold_still_is_what_the_ratios_are_of(tmp_path: Path, value: str, tries: int) -> None:
    """[P-4] How long it took to fill a server says nothing of its memory, and a pace nothing of a p99."""
    given = group([1, *[10, 10, 10, 14, 14, 14, 10, 10, 10, 14, 14, 14, 10, 10, 10] * 4], constant(20, 20))
    found, _ = run(given._replace(figures=[given.figures[0]._replace(value=value)]), tmp_path)
    assert len(found["attempts"]) == tries


def test_a_baseline_that_never_holds_still_gives_no_ratio_and_says_so(tmp_path: Path) -> None:
    shaky = [10, 10, 10, 14, 14, 14, 10, 10, 10, 14, 14, 14, 10, 10, 10]
    found, said = run(group([1, *shaky * 4], constant(20, 20)), tmp_path)
    assert found["rejected"] is True
    assert len(found["attempts"]) == len(said) == 1 + measure.RETRIES
    assert "median" not in found["figures"][0]
    assert found["figures"][0]["holds"] is None
    assert found["aims"] == []


def test_a_ratio_is_of_a_run_in_which_its_own_baseline_held_still(tmp_path: Path) -> None:
    """[P-4] Each of two baselines varied in one run of two; nothing is measured a third time."""
    still, shaky = [10] * 15, [10, 10, 10, 14, 14, 14, 10, 10, 10, 14, 14, 14, 10, 10, 10]
    arms = [
        arm("base", [1, *still, *shaky]),
        arm("peer", [1, *shaky, *still]),
        arm("ours", [1, *[20] * 15, *[30] * 15]),
    ]
    figures = [Figure(f"beside {name}", "ours", name, "time", 3.0) for name in ("base", "peer")]
    found, said = run(Group("g", "record", arms, figures), tmp_path)
    assert len(found["attempts"]) == len(said) == 2
    assert [figure["median"] for figure in found["figures"]] == [2.0, 3.0]
    assert found["explain"] == []
    shown = found["attempts"][-1]["rounds"]["ours"][0]["wall_us"]
    assert found["arms"]["ours"]["wall_us"]["median"] == shown


def test_what_never_held_still_is_measured_once_more_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """[P-4] If it has a bound; the attempts before it are kept and told."""
    shaky = [10, 10, 10, 14, 14, 14, 10, 10, 10, 14, 14, 14, 10, 10, 10]
    fine, late = group(constant(10), constant(20)), group([1, *shaky, 1, *[10] * 15], [1, *[20] * 15, 1, *[20] * 15])
    free = group([1, *shaky], constant(20), bound=None)
    monkeypatch.setattr(command, "_module", lambda name: SimpleNamespace(groups=lambda quick: [fine, late, free]))
    found = [measure.measure(one, 5, tmp_path, print, retries=0) for one in (fine, late, free)]
    assert [one["rejected"] for one in found] == [False, True, True]
    result: dict[str, Any] = {"bench": "b", "groups": found}
    command.run_again(result, argparse.Namespace(quick=True, rounds=5, dir=tmp_path, out=tmp_path))
    assert [len(one["attempts"]) for one in result["groups"]] == [1, 2, 1]
    assert result["groups"][1]["figures"][0]["median"] == 2.0
    assert json.loads((tmp_path / "b.json").read_text()) == result
    assert "b, once more: g" in capsys.readouterr().out


def test_an_arm_that_is_no_denominator_may_vary(tmp_path: Path) -> None:
    given = group(constant(10), [1, *[t for t in (20, 90, 20, 90, 20) for _ in range(3)]])
    assert run(given, tmp_path)[1] == []


def test_each_run_of_an_arm_gets_an_empty_directory_that_is_removed(tmp_path: Path) -> None:
    seen: list[Path] = []

    def work(dir: Path) -> Sample:
        assert list(dir.iterdir()) == []
        (dir / "file").write_text("x")
        seen.append(dir)
        return Sample(1, MICRO, MICRO)

    measure.once(Group("g", "record", [Arm("a", work)], []), tmp_path)
    assert len(seen) == len(set(seen)) == 1 + measure.PASSES
    assert list(tmp_path.iterdir()) == []


def test_variation_is_the_range_over_the_median() -> None:
    assert measure.variation([10, 8, 12]) == 0.4


def test_percentiles_are_values_that_were_seen() -> None:
    assert measure.percentiles_us([n * 1000 for n in range(1, 101)]) == {"p50_us": 50.0, "p99_us": 99.0}
    assert measure.percentiles_us([7000]) == {"p50_us": 7.0, "p99_us": 7.0}


def test_a_row_is_per_unit() -> None:
    assert Sample(4, 8 * MICRO, 2 * MICRO, {"p99_us": 3.0}).row() == {"wall_us": 2.0, "cpu_us": 0.5, "p99_us": 3.0}


def test_one_of_two_baselines_that_never_holds_still_costs_its_own_ratios_only(tmp_path: Path) -> None:
    """[P-4] A peer that varies says nothing of the other."""
    times = {"ours": cycle([20]), "base": cycle([10]), "peer": cycle([10, 10, 10, 14, 14, 14, 10, 10, 10])}
    arms = [Arm(name, lambda dir, name=name: Sample(1, next(times[name]) * MICRO, MICRO)) for name in times]
    figures = [Figure(f"beside {name}", "ours", name, "time", 3.0) for name in ("base", "peer")]
    found, said = run(Group("g", "record", arms, figures), tmp_path)
    assert len(said) == 1 + measure.RETRIES
    assert found["rejected"] is False
    steady, shaky = found["figures"]
    assert (steady["median"], steady["holds"]) == (2.0, True)
    assert ("median" in shaky, shaky["holds"]) == (False, None)
    assert found["explain"] == ["peer did not hold still: nothing is said beside it."]
    command.print_group(found)
    report.page([{"bench": "b", "doc": "d", "quick": True, "seed": 1, "started": "", "commit": "", "groups": [found],
                  "machine": {"cpu": "", "cores": 2, "kernel": "", "filesystem": "", "load_before": [0]},
                  "versions": {}}])  # fmt: skip
