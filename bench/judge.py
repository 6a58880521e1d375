"""What a soak showed: did anything grow, did anything fail, did anybody wait longer at its end? Pure functions of
series.

Growth     The first third of a run is warm-up: caches fill, pools start. Of the rest, the median of the last third is
           set beside that of the middle one. It grew if it is higher by more than 3 % and by more than what the kind is
           allowed (4 MiB of memory, 4 descriptors, 2 threads), and if it kept rising: the medians of ten equal
           stretches are compared in pairs, and rises have to outnumber falls by 40 % of the pairs (Kendall's tau).
           What swings, or made one step at some time, does not rise like that; a leak does, however slow, if it is
above the floor. Latency    The p99 of each of thirty stretches; the median of the last third's ten may be 1.2 times
           that of the first third's. A burst of other work on the machine strikes a stretch or two, not the median.
Baseline   Beside the server two things are timed that it has no part in: a raw write and sync, and a message through a
           process that does nothing but pass it on. If one of them differs between those thirds by more than 25 %, it
           is the machine that changed, and latencies are not judged [P-4].
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

SHARE = 0.03
TAU = 0.4
STRETCHES = 10
WINDOWS = 30
LATER_MAX = 1.2
UNSTEADY = 0.25
FLOORS = {"memory": 4 << 20, "descriptors": 4.0, "threads": 2.0}
LEAST = 30
"""Values without which nothing is said of growth."""


class Growth(NamedTuple):
    """A series at its middle and at its end."""

    middle: float
    last: float
    tau: float
    grew: bool


class Later(NamedTuple):
    """The p99 of the first and of the last third, in ms."""

    first: float
    last: float

    @property
    def ratio(self) -> float:
        """The last beside the first."""
        return self.last / self.first


def growth(values: Sequence[float], floor: float) -> Growth | None:
    """Whether a series grew; None if it is too short to tell."""
    if len(values) < LEAST:
        return None
    rest = values[len(values) // 3 :]
    middle, last = statistics.median(rest[: len(rest) // 2]), statistics.median(rest[len(rest) // 2 :])
    tau = _tau([statistics.median(part) for part in parts(rest, STRETCHES)])
    return Growth(middle, last, tau, last - middle > max(floor, SHARE * middle) and tau >= TAU)


def parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """Stretches of equal length, in order."""
    edges = [len(values) * n // count for n in range(count + 1)]
    return [values[low:high] for low, high in pairwise(edges)]


def _tau(values: Sequence[float]) -> float:
    signs = [(later > earlier) - (later < earlier) for earlier, later in combinations(values, 2)]
    return sum(signs) / len(signs)


def windows(points: Sequence[tuple[float, float]], seconds: float) -> list[float | None]:
    """The p99 of each stretch of a run, from (second, latency); None where nothing happened."""
    found: list[list[float]] = [[] for _ in range(WINDOWS)]
    for at, latency in points:
        found[min(int(at / seconds * WINDOWS), WINDOWS - 1)].append(latency)
    return [sorted(one)[max(0, math.ceil(len(one) * 0.99) - 1)] if one else None for one in found]


def later(p99s: Sequence[float | None]) -> Later | None:
    """The first third of stretches beside the last; None where one of them is empty."""
    third = len(p99s) // 3
    ends = [[one for one in part if one is not None] for part in (p99s[:third], p99s[-third:])]
    if not all(ends):
        return None
    first, last = map(statistics.median, ends)
    return Later(first, last)


class Verdict(NamedTuple):
    """What the run came to."""

    failures: list[str]
    rejected: list[str]
    """Why latencies were not judged."""

    @property
    def ok(self) -> bool:
        """Everything was judged, and nothing failed."""
        return not self.failures and not self.rejected


def judge(
    series: Mapping[str, tuple[str, Sequence[float]]],
    latencies: Mapping[str, Later | None],
    baselines: Mapping[str, Later | None],
    errors: Sequence[str],
) -> Verdict:
    """`series` by name, each with its kind of `FLOORS`."""
    failures = [f"{len(errors)} errors, the first: {errors[0]}"] if errors else []
    for name, (kind, values) in series.items():
        found = growth(values, FLOORS[kind])
        if found is not None and found.grew:
            failures.append(f"{name} grew from {found.middle:,.0f} to {found.last:,.0f} (tau {found.tau:.2f})")
    rejected = [
        f"{name} itself went from {one.first:.3g} to {one.last:.3g} ms"
        for name, one in baselines.items()
        if one is not None and not 1 - UNSTEADY <= one.ratio <= 1 + UNSTEADY
    ]
    if not rejected:
        failures += [
            f"p99 of {name} rose from {one.first:.3g} to {one.last:.3g} ms, {one.ratio:.2f} times"
            for name, one in latencies.items()
            if one is not None and one.ratio > LATER_MAX
        ]
    return Verdict(failures, rejected)
