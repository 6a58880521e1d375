"""The command line: run benchmarks, compare with another commit, render the report.

    python -m bench [NAME …] [--quick] [--rounds N] [--out DIR] [--dir DIR]
    python -m bench compare REF [NAME …] [--quick] [--rounds N] [--dir DIR]
    python -m bench report [--out DIR]            the page of what lies there
    python -m bench keep [NAME …] [--out DIR]     store results in docs/data, and renew the tables of README and docs

The exit status says whether everything ran; whether bounds hold is for the reader of the figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import compare, machine, measure, report, tables, workload

HERE = Path(__file__).resolve().parent
NAMES = tuple(sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")))


def main(words: Sequence[str]) -> int:
    """Run what the words say."""
    command = words[0] if words[:1] in (["report"], ["compare"], ["keep"]) else None
    parser = _parser(command)
    if command == "keep":
        _add_out(parser).add_argument("names", nargs="*", metavar="NAME", help="all that are there, if none is named")
        given = parser.parse_args(words[1:])
        for path in (*tables.keep(given.names, given.out), *tables.renew(tables.stored())):
            print(path.relative_to(machine.ROOT))
        return 0
    if command == "report":
        print(report.write(_add_out(parser).parse_args(words[1:]).out))
        return 0
    if command == "compare":
        parser.add_argument("ref", help="the commit to compare with")
        _add_choice(parser)
        given = parser.parse_args(words[1:])
        _check(parser, given)
        return compare.run(given.ref, given.names or NAMES, rounds=given.rounds, quick=given.quick, dir=given.dir)
    _add_choice(_add_out(parser))
    parser.add_argument("--once", action="store_true", help="one round, no ratios, no report: for compare")
    given = parser.parse_args(words)
    _check(parser, given)
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.names or NAMES
    results = {name: run(name, given) for name in names}
    for _ in range(0 if given.once else measure.RETRIES - measure.AT_ONCE):
        for name in names:
            run_again(results[name], given)
    if not given.once:
        print(f"\n{report.write(given.out)}")
    return 0


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench" + (f" {command}" if command else ""), description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _add_out(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the results go")
    return parser


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    parser.add_argument(
        "--rounds", type=int, default=measure.ROUNDS_MIN, help=f"{measure.ROUNDS_MIN} (the default) or more"
    )
    parser.add_argument("--dir", type=Path, default=HERE / "results", help="whose disk is measured; not a tmpfs")


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    for name in given.names:
        if name not in NAMES:
            parser.error(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    if given.rounds < measure.ROUNDS_MIN:
        parser.error(f"fewer than {measure.ROUNDS_MIN} rounds say nothing about the spread")


def run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one benchmark: print its table, write its result."""
    module = _module(name)
    doc = module.__doc__ or ""
    with _scratch(given.dir) as dir:
        result = {"bench": name, "doc": doc.strip(), "seed": workload.SEED, "quick": given.quick}
        result |= machine.describe(dir)
        _say_where(name, doc, result)
        if given.once:
            result["groups"] = [measure.once(group, dir) for group in module.groups(given.quick)]
        else:
            result["groups"] = []
            for group in module.groups(given.quick):
                found = measure.measure(group, given.rounds, dir, print, retries=measure.AT_ONCE)
                print_group(found)
                result["groups"].append(found)
    _write(result, given)
    return result


def run_again(result: dict[str, Any], given: argparse.Namespace) -> None:
    """Measure once more whatever has a bound beside a baseline that never held still."""
    for n, group in enumerate(_module(result["bench"]).groups(given.quick)):
        before = result["groups"][n]["attempts"]
        if not measure.unsettled(group, before, bounded=True):
            continue
        with _scratch(given.dir) as dir:
            print(f"\n{result['bench']}, once more: {group.name}")
            result["groups"][n] = measure.measure(group, given.rounds, dir, print, before=before, retries=0)
        print_group(result["groups"][n])
        _write(result, given)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"bench.bench_{name}")


def _write(result: Mapping[str, Any], given: argparse.Namespace) -> None:
    (given.out / f"{result['bench']}.json").write_text(to_json(result), encoding="utf-8")


def to_json(result: Mapping[str, Any]) -> str:
    """Indented, but each innermost object on one line: a round is a line."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    return re.sub(r"\{[^{}]*\}", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"


@contextmanager
def _scratch(dir: Path) -> Iterator[Path]:
    dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dir, prefix="tmp-") as name:
        yield Path(name)


def _say_where(name: str, doc: str, result: Mapping[str, Any]) -> None:
    found, versions = result["machine"], result["versions"]
    print(f"\n{name}: {doc.strip().splitlines()[0]}")
    print(
        f"{found['cpu']}, {found['cores']} cores, {found['kernel']}, {found['filesystem']}; "
        f"Python {versions['python']}, {versions['topics kernel']} kernel; commit {result['commit']}; "
        f"load {found['load_before'][0]}"
    )
    if found["filesystem"] in ("tmpfs", "ramfs"):
        print("This is memory, not a disk: syncs cost nothing here. Choose another --dir.")


def print_group(found: Mapping[str, Any]) -> None:
    """A table of the arms, and one of the figures."""
    print(f"\n  {found['name']:<42}{'µs/' + found['unit']:>12}{'low–high':>18}{'CPU µs':>9}{'p50':>9}{'p99':>9}")
    for name, row in found["arms"].items():
        wall, cpu = row["wall_us"], row["cpu_us"]
        rest = "".join(f"{row[p]['median']:>9.4g}" if p in row else f"{'':>9}" for p in ("p50_us", "p99_us"))
        times = f"{wall['median']:>12.4g}{wall['low']:>9.4g} –{wall['high']:>7.4g}{cpu['median']:>9.3g}"
        print(f"    {name:<40}{times}{rest}".rstrip())
    if found["rejected"]:
        print("    rejected: the baseline never held still; no ratios. Try again when the machine is quieter.")
        return
    print(f"  {'ratio':<42}{'median':>12}{'low–high':>18}{'bound':>9}")
    for figure in found["figures"]:
        if "median" not in figure:
            print(f"    {figure['name']:<40}{'rejected':>12}")
            continue
        ratio = f"{figure['median']:>11.3g}{report.sign(figure)}"
        print(
            f"    {figure['name']:<40}{ratio}{figure['low']:>9.3g} –{figure['high']:>7.3g}"
            f"{report.bound_text(figure):>9}  {report.verdict(figure)}"
        )
    for aim in found["aims"]:
        print(
            f"    aim: {aim['arm']} {aim['rate']:,.0f} {aim['unit']}, aimed at {aim['at_least']:,.0f}"
            f"{'' if aim['reached'] else ': missed'}"
        )
    for sentence in found["explain"]:
        print(f"    {sentence}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
