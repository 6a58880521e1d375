"""Measuring: arms run in turn, a baseline that must hold still, ratios taken round by round [P-1, P-4].

    Arm      one way to do the work; times itself, so that preparing and checking are not in its time
    Figure   the ratio of two arms, with the bound it must keep
    Group    arms that run interleaved (A B C A B C …) and the figures over them

A round is three such passes, of which the middle one of each value counts: a burst of other work on the machine seldom
strikes two of three. What no burst changes, and takes long, is done once in a round. Ratios whose denominator, be it a
time, CPU or a p99, varies by more than 25 % from round to round are rejected before they are formed, and the group is
measured again up to three times: once at once and, because what disturbs a machine lasts for minutes, otherwise at the
end of the run. The steadiest attempt counts, and for a ratio whose denominator did not hold still there, the first one
in which it did; if it never did, there is none. Ratios pair the arms of one round, so that what slows a whole round
cancels out.
"""

from __future__ import annotations

import gc
import math
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

VARIATION_MAX = 0.25
RETRIES = 3
AT_ONCE = 1
"""So many of them; the others at the end of a run."""
PASSES = 3
ROUNDS_MIN = 5


class Sample(NamedTuple):
    """One run of one arm: `units` pieces of work in so much wall and process time."""

    units: int
    wall_s: float
    cpu_s: float
    extra: Mapping[str, float] = {}
    """Further numbers of this run by name, units last: `p99_us`, `records_per_sync`."""

    def row(self) -> dict[str, float]:
        """Per unit, as it is stored."""
        values = {"wall_us": self.wall_s / self.units * 1e6, "cpu_us": self.cpu_s / self.units * 1e6, **self.extra}
        return {name: float(f"{value:.5g}") for name, value in values.items()}


class Arm(NamedTuple):
    """A way to do the work. `run` gets an empty directory of its own, removed afterwards."""

    name: str
    run: Callable[[Path], Sample]


class Figure(NamedTuple):
    """`arm` against `against`: times (smaller is better, bound is a maximum) or rates (the reverse).

    Without `against` it is the arm's value itself: a size is told like a time, a share like a rate.
    """

    name: str
    arm: str
    against: str | None
    kind: Literal["time", "rate"]
    bound: float | None = None
    value: str = "wall_us"
    """Which value of the arms is looked at."""
    spare: float = 0.0
    """What `arm` may have on top, in the unit of the value: taken off before the ratio is formed."""

    @property
    def baseline(self) -> str | None:
        """What has to hold still: a value of an arm."""
        return self.against if self.against is None or self.value == "wall_us" else f"{self.against}, {self.value}"

    def ratios(self, rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> list[float]:
        """The ratio of each round."""
        ours = [max(row[self.value] - self.spare, 0.0) for row in rounds[self.arm]]
        if self.against is None:
            return ours
        times = [one / row[self.value] for one, row in zip(ours, rounds[self.against], strict=True)]
        return times if self.kind == "time" else [1 / ratio for ratio in times]

    def holds(self, ratio: float) -> bool | None:
        """Whether the bound is kept; `None` without one."""
        if self.bound is None:
            return None
        return ratio <= self.bound if self.kind == "time" else ratio >= self.bound


class Aim(NamedTuple):
    """An absolute rate to reach on an NVMe-class disk (07 §8): reported, never a bound."""

    arm: str
    at_least: float
    unit: str
    per_unit: float = 1.0
    """What one unit of work counts in `unit`: 1 record, or its megabytes."""


class Group(NamedTuple):
    """Arms that are measured together."""

    name: str
    unit: str
    arms: Sequence[Arm]
    figures: Sequence[Figure]
    aims: Sequence[Aim] = ()
    explain: Callable[[Mapping[str, Mapping[str, Any]]], list[str]] = lambda arms: []
    """Sentences for the reader, from the medians of the arms."""
    passes: int = PASSES
    """How many make a round."""


class Stopwatch:
    """Wall and process time of a stretch."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def sample(self, units: int, **extra: float) -> Sample:
        """The stretch as a sample."""
        return Sample(units, self.wall_s, self.cpu_s, extra)


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the body, with garbage of earlier work collected before."""
    watch = Stopwatch()
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    yield watch
    watch.wall_s, watch.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


def each(calls: Sequence[Callable[[int], object]], count: int) -> Sample:
    """Run `call(n)` for every n, shared out over one thread per call; latencies over all."""
    latencies: list[list[int]] = [[] for _ in calls]

    def work(which: int) -> None:
        call, note, clock = calls[which], latencies[which].append, time.perf_counter_ns
        for n in range(which, count, len(calls)):
            start = clock()
            call(n)
            note(clock() - start)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(1, len(calls))]
    with stopwatch() as watch:
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
    assert sum(map(len, latencies)) == count
    return watch.sample(count, **percentiles_us([one for many in latencies for one in many]))


CURVE = (10, 25, 50, 75, 90, 95, 99, 99.9)
"""The shares of calls whose latency makes a curve, in percent."""


def percentiles_us(latencies_ns: list[int], shares: Sequence[float] = (50, 99)) -> dict[str, float]:
    """p50 and p99, or others, by nearest rank."""
    ranked = sorted(latencies_ns)
    return {f"p{p:g}_us": ranked[max(0, math.ceil(len(ranked) * p / 100) - 1)] / 1e3 for p in shares}


def curve_us(latencies_ns: list[int]) -> dict[str, float]:
    """Enough of them to draw a curve."""
    return percentiles_us(latencies_ns, CURVE)


def variation(values: Sequence[float]) -> float:
    """How much values differ: their range over their median."""
    differ, middle = max(values) - min(values), statistics.median(values)
    return differ / middle if middle else math.copysign(math.inf, differ) if differ else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest, highest."""
    rounded = [float(f"{value:.4g}") for value in (statistics.median(values), min(values), max(values))]
    return dict(zip(("median", "low", "high"), rounded, strict=True))


PEERS = ("Redis", "NATS", "Parquet")
"""What arms of others are called, or begin with."""

Attempt = dict[str, Any]
"""Its rounds by arm, and what varied."""


def measure(
    group: Group,
    rounds: int,
    dir: Path,
    say: Callable[[str], None],
    *,
    before: Sequence[Attempt] = (),
    retries: int = RETRIES,
) -> dict[str, Any]:
    """Measure until every baseline has held still once, then form the ratios; the result as it is stored.

    `before` are attempts that were not enough.
    """
    _warm_up(group, dir)
    attempts = list(before)
    for _ in range(1 + retries):
        kept = [_round(group, dir) for _ in range(rounds)]
        by_arm = {arm.name: [one[arm.name] for one in kept] for arm in group.arms}
        unsteady = unsteady_baselines(group, by_arm)
        attempts.append({"baseline_variation": unsteady, "rounds": by_arm})
        if unsteady:
            told = ", ".join(f"{name} by {value:.0%}" for name, value in unsteady.items())
            say(f"{group.name}: run {len(attempts)} rejected, its baseline varied ({told})")
        if not unsettled(group, attempts):
            break
    attempts.append(attempts.pop(attempts.index(steadiest(attempts))))
    return {"name": group.name, "unit": group.unit, "attempts": attempts, **conclude(group, attempts)}


def steadiest(attempts: Sequence[Attempt]) -> Attempt:
    """The one with the fewest unsteady baselines; the last of several."""
    return min(reversed(attempts), key=lambda attempt: len(attempt["baseline_variation"]))


def unsettled(group: Group, attempts: Sequence[Attempt], *, bounded: bool = False) -> set[str]:
    """The baselines that have held still in no attempt; only those that something with a bound is held against."""
    names = {figure.baseline for figure in group.figures if figure.bound is not None or not bounded}
    return {name for name in names if name is not None and _first_steady(name, attempts) is None}


def _first_steady(baseline: str | None, attempts: Sequence[Attempt]) -> int | None:
    """The attempt that counts beside a baseline: the last, which is the steadiest, or the first it held still in."""
    order = [len(attempts) - 1, *range(len(attempts) - 1)]
    return next((n for n in order if baseline not in attempts[n]["baseline_variation"]), None)


def once(group: Group, dir: Path) -> dict[str, Any]:
    """One round after a warm-up, nothing concluded: a comparison of commits takes one of each in turn."""
    _warm_up(group, dir)
    return {"name": group.name, "unit": group.unit, "baselines": baselines(group), "arms": _round(group, dir)}


def _warm_up(group: Group, dir: Path) -> None:
    for arm in group.arms:
        _run(arm, dir)


def _round(group: Group, dir: Path) -> dict[str, dict[str, float]]:
    passes = [{arm.name: _run(arm, dir) for arm in group.arms} for _ in range(group.passes)]
    return {arm.name: middle([one[arm.name] for one in passes]) for arm in group.arms}


def middle(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The middle one of each value."""
    return {name: sorted(row[name] for row in rows)[len(rows) // 2] for name in rows[0]}


def _run(arm: Arm, dir: Path) -> dict[str, float]:
    own = Path(tempfile.mkdtemp(dir=dir))
    try:
        return arm.run(own).row()
    finally:
        shutil.rmtree(own)


def baselines(group: Group) -> list[str]:
    """The arms that others are measured against."""
    return sorted({figure.against for figure in group.figures if figure.against is not None})


def unsteady_baselines(group: Group, by_arm: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The denominators that vary too much for their ratios to mean anything [P-4]."""
    found = {
        figure.baseline: variation([row[figure.value] for row in by_arm[figure.against]])
        for figure in group.figures
        if figure.against is not None and figure.baseline is not None
    }
    return {name: round(value, 3) for name, value in sorted(found.items()) if value > VARIATION_MAX}


def conclude(group: Group, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Medians of every arm in the last attempt; ratios beside baselines that held still in one; aims, explanations."""
    arms = {name: _summary(rows) for name, rows in attempts[-1]["rounds"].items()}
    unsteady = unsettled(group, attempts)
    if unsteady and unsteady == {figure.baseline for figure in group.figures}:
        return {"rejected": True, "arms": arms, "figures": [_unmeasured(f) for f in group.figures], "aims": []}
    figures = []
    for figure in group.figures:
        at = _first_steady(figure.baseline, attempts)
        if at is None:
            figures.append(_unmeasured(figure))
            continue
        ratios = spread(figure.ratios(attempts[at]["rounds"]))
        figures.append({**_unmeasured(figure), **ratios, "holds": figure.holds(ratios["median"]), "attempt": at})
    aims = []
    for aim in group.aims:
        rate = float(f"{aim.per_unit * 1e6 / arms[aim.arm]['wall_us']['median']:.4g}")
        aims.append({**aim._asdict(), "rate": rate, "reached": rate >= aim.at_least})
    said = [f"{name} did not hold still: nothing is said beside it." for name in sorted(unsteady)]
    return {"rejected": False, "arms": arms, "figures": figures, "aims": aims, "explain": group.explain(arms) + said}


def _unmeasured(figure: Figure) -> dict[str, Any]:
    return {**figure._asdict(), "holds": None}


def _summary(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: spread([row[name] for row in rows if name in row]) for name in names}
