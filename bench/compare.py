"""This tree against another commit: the same benchmarks, the same environment, the two sources in turn.

The other commit is checked out into a temporary worktree and only its `src` is used; the benchmarks are this tree's,
and so is the compiled kernel: it is said if theirs would be another. Each round starts one process per side, so that
neither inherits the other's state. The raw loops run on both sides too: how far they are from 1.0 is what noise alone
does, and where a baseline varies by more than 25 % from round to round nothing beside it is believed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import measure
from bench.machine import ROOT, commit

Rounds = list[Mapping[str, Any]]


def run(ref: str, names: Sequence[str], *, rounds: int, quick: bool, dir: Path) -> int:
    """Alternate the two sides and print a ratio per arm."""
    with worktree(ref) as (tree, there):
        print(f"this tree ({commit()}) against {ref} ({there}): time per unit, below 1 is faster here")
        if subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", there, "--", "native"], check=False).returncode:
            print("native/ differs: both sides run the kernel that is installed here, or none of their own interface")
        for name in names:
            _print(name, steadiest(partial(_alternate, tree, name, rounds, quick, dir)))
    return 0


def _alternate(tree: Path, name: str, rounds: int, quick: bool, dir: Path) -> list[Row]:
    sides: dict[Path, Rounds] = {tree: [], ROOT: []}
    for _ in range(rounds):
        for side, found in sides.items():
            found.append(one_round(side, name, quick, dir))
    return table(sides[ROOT], sides[tree])


def steadiest(attempt: Callable[[], list[Row]]) -> list[Row]:
    """Run attempts until every group was steady once, or no tries are left; each group's first steady rows."""
    rows = attempt()
    for _ in range(measure.RETRIES):
        if all(row.steady for row in rows):
            break
        print("some baselines varied by more than 25 %: once more")
        rows = [old if old.steady else new for old, new in zip(rows, attempt(), strict=True)]
    return rows


@contextmanager
def worktree(ref: str) -> Iterator[tuple[Path, str]]:
    """A checkout of `ref` that is gone afterwards, whatever happens; and the commit it is."""
    git = ["git", "-C", str(ROOT)]
    resolved = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if resolved.returncode:
        sys.exit(f"no such commit: {ref}")
    found = resolved.stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        try:
            subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), found], check=True)
            yield tree, found[:12]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False, capture_output=True)
            subprocess.run([*git, "worktree", "prune"], check=False)


def one_round(side: Path, name: str, quick: bool, dir: Path) -> Mapping[str, Any]:
    """One round of one benchmark on the sources of `side`, in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        words = [name, "--once", "--out", out, "--dir", str(dir.resolve())] + (["--quick"] if quick else [])
        environment = {**os.environ, "PYTHONPATH": str(side / "src")}
        command = [sys.executable, "-c", _CHILD, str(side / "src"), *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} does not run on {'this tree' if side == ROOT else 'the other commit'}:\n{done.stderr}")
        found: Mapping[str, Any] = json.loads((Path(out) / f"{name}.json").read_text(encoding="utf-8"))
        return found


# The environment has this tree installed: be sure that the sources under test are the ones that load.
_CHILD = """
import sys
import topics
source = sys.argv.pop(1)
assert topics.__file__.startswith(source + "/"), f"{topics.__file__} is not below {source}"
from bench.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Row(NamedTuple):
    """One arm, here beside there."""

    group: str
    arm: str
    steady: bool
    """Whether the baselines beside it held still, on both sides."""
    wall: Mapping[str, float]
    cpu: Mapping[str, float]


def table(here: Rounds, there: Rounds) -> list[Row]:
    """The ratios of each arm, round by round."""
    rows = []
    for index, group in enumerate(here[0]["groups"]):
        pairs = [(a["groups"][index]["arms"], b["groups"][index]["arms"]) for a, b in zip(here, there, strict=True)]
        raw = [arm for arm in group["arms"] if arm in group["baselines"]]
        steady = all(
            measure.variation([side[arm]["wall_us"] for side in sides]) <= measure.VARIATION_MAX
            for arm in raw
            for sides in zip(*pairs, strict=True)
        )
        for arm in group["arms"]:
            wall, cpu = (measure.spread(_ratios(pairs, arm, what)) for what in ("wall_us", "cpu_us"))
            rows.append(Row(group["name"], arm, steady, wall, cpu))
    return rows


def _ratios(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], arm: str, what: str) -> list[float]:
    # A wait for the disk may cost no measurable CPU on either side.
    return [here[arm][what] / there[arm][what] if there[arm][what] else 1.0 for here, there in pairs]


def _print(name: str, rows: Sequence[Row]) -> None:
    print(f"\n{name:<46}{'wall':>8}{'low–high':>17}{'CPU':>9}{'low–high':>17}")
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            print(f"  {group}" + ("" if row.steady else "   rejected: its baselines varied by more than 25 %"))
        if row.steady:
            told = "".join(f"{x['median']:>8.3f}×{x['low']:>8.2f} – {x['high']:<6.2f}" for x in (row.wall, row.cpu))
            print(f"    {row.arm:<42}{told}")
