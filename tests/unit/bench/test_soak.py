"""The soak: what it takes for growth, and that a short one of everything runs against a real server."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import judge, soak

MIB = 1 << 20


def noise(seed: int, count: int = 1800, about: float = 80.0 * MIB, swing: float = 1.0 * MIB) -> list[float]:
    source = random.Random(seed)
    return [about + source.uniform(-swing, swing) for _ in range(count)]


def warmed_up(values: list[float], *, by: float = 60.0 * MIB) -> list[float]:
    """Caches that fill in the first quarter of the run."""
    full = len(values) / 4
    return [value - by * max(1 - n / full, 0) for n, value in enumerate(values)]


def sawtooth(values: list[float], period: int = 120, by: float = 10.0 * MIB) -> list[float]:
    return [value + by * (n % period) / period for n, value in enumerate(values)]


def leaking(values: list[float], per_sample: float) -> list[float]:
    return [value + n * per_sample for n, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_fills_its_caches_and_swings_did_not_grow(seed: int) -> None:
    found = judge.growth(sawtooth(warmed_up(noise(seed))), judge.FLOORS["memory"])
    assert found is not None
    assert not found.grew


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_ten_kib_a_second_is_found_among_noise_and_warm_up(seed: int) -> None:
    """Half an hour of one value a second."""
    found = judge.growth(leaking(sawtooth(warmed_up(noise(seed))), 10 * 1024), judge.FLOORS["memory"])
    assert found is not None
    assert found.grew


def test_a_step_in_the_last_third_is_told_from_a_leak_of_the_same_size() -> None:
    step = [value + (8.0 * MIB if n > 1700 else 0.0) for n, value in enumerate(noise(1))]
    found, leak = (
        judge.growth(step, judge.FLOORS["memory"]),
        judge.growth(leaking(noise(1), 8 * MIB / 1800 * 3), 4 * MIB),
    )
    assert found is not None
    assert leak is not None
    assert (found.grew, leak.grew) == (False, True)


def test_descriptors_that_are_never_closed_are_found_and_those_that_come_and_go_are_not() -> None:
    source = random.Random(3)
    come_and_go = [40.0 + source.randint(0, 12) for _ in range(600)]
    kept_open = [value + n // 60 for n, value in enumerate(come_and_go)]
    flat, grown = (judge.growth(values, judge.FLOORS["descriptors"]) for values in (come_and_go, kept_open))
    assert flat is not None
    assert grown is not None
    assert (flat.grew, grown.grew) == (False, True)


def test_nothing_is_said_of_a_run_that_is_too_short() -> None:
    assert judge.growth([1.0] * (judge.LEAST - 1), 0.0) is None


def latencies(first_ms: float, last_ms: float, seconds: float = 60.0) -> list[tuple[float, float]]:
    points = [(n / 100, first_ms + (last_ms - first_ms) * n / 6000) for n in range(6000)]
    # One stretch of something else on the machine.
    return [(at, value * (50 if 40 < at < 41 else 1)) for at, value in points]


def test_the_p99_of_both_ends_is_that_of_most_of_their_stretches() -> None:
    found = judge.later(judge.windows(latencies(1.0, 1.0), 60.0))
    assert found == judge.Later(1.0, 1.0)
    slower = judge.later(judge.windows(latencies(1.0, 2.0), 60.0))
    assert slower is not None
    assert slower.ratio > judge.LATER_MAX


def test_who_stopped_before_the_last_third_has_no_p99_there() -> None:
    assert judge.later(judge.windows([(n / 10, 1.0) for n in range(300)], 60.0)) is None


def test_a_run_fails_for_errors_growth_and_slowness_each_by_itself() -> None:
    flat, leak, same = noise(1), leaking(noise(1), 50_000), judge.Later(1.0, 1.1)

    def judged(values: list[float], late: judge.Later, machine: judge.Later, errors: list[str]) -> judge.Verdict:
        return judge.judge({"memory": ("memory", values)}, {"disk": late}, {"raw": machine}, errors)

    assert judged(flat, same, same, []).ok
    assert "memory grew" in judged(leak, same, same, []).failures[0]
    assert "p99 of disk rose" in judged(flat, judge.Later(1.0, 1.3), same, []).failures[0]
    assert "1 errors, the first: x" in judged(flat, same, same, ["x"]).failures[0]


def test_latencies_are_not_judged_when_the_machine_itself_changed() -> None:
    """[P-4]"""
    found = judge.judge({}, {"disk": judge.Later(1.0, 3.0)}, {"raw sync": judge.Later(1.0, 1.5)}, [])
    assert not found.ok
    assert found.failures == []
    assert "raw sync itself" in found.rejected[0]


DONE = ("records written", "records read", "records delivered", "jobs", "deletes", "checkpoints", "visits",
        "topics made and dropped", "socket messages")  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_a_short_soak_of_everything_runs_without_an_error_and_is_drawn(tmp_path: Path) -> None:
    """Until each kind of thing was done, however long that takes."""
    said: list[str] = []
    result = soak.run(tmp_path, 1.0, 1, said.append, DONE)
    # So short a run may leave a stretch of a third without anything.
    assert [error for error in result["errors"] if "stopped" not in error] == []
    assert result["done"].keys() >= set(DONE)
    page = ET.fromstring(soak.page(result).removeprefix("<!DOCTYPE html>\n"))
    assert len(list(page.iter("svg"))) == 6
    assert soak.tell(result, said.append) in (0, 1, soak.REJECTED)
    assert any("own memory" in sentence for sentence in said)
