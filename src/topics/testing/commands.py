"""The fault commands behind `python -m topics.testing` (13 §4).

Each prints one JSON line, tells its progress on stderr, and exits non-zero when a promise was broken. `--quick` ends
within 20 seconds (`mutants` within a minute); `--replay SEED` repeats one run of `crash` or `exhaustive` exactly, and
one of `kill9` as far as the seed decides it: what clients do, and when the server dies.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from topics.testing import (
    damage,
    enginedamage,
    enginemutants,
    faults,
    fuzz,
    kill9,
    mutants,
    queuechaos,
    queuestall,
    sparkchaos,
    sweep,
    tierfaults,
    txnchaos,
)
from topics.testing.enginesubject import EngineSubject
from topics.testing.shardsubject import ShardSubject
from topics.testing.subject import Subject, Violation
from topics.testing.walsubject import WalSubject

T = TypeVar("T")
Outcome = tuple[int, list[str]]
"""Cases run, and what was violated."""

SHOWN = 20
SUBJECTS: dict[str, Callable[[], Subject]] = {"wal": WalSubject, "shard": ShardSubject, "engine": EngineSubject}
"""What is swept: the log library, the server's log, and the engine on it."""
TIER = "tier"
"""What `faults` sweeps besides: an engine on a good disk, whose cold tier fails."""
LIVES, QUICK_LIVES = 400, 6
"""Of an engine whose cold tier fails again and again; `--seed` says which is the first."""

QUICK_IMAGES = {"wal": 1500, "shard": 1500, "engine": 300}
"""Survivors that the quick size of `crash` judges; a whole engine takes long to open."""
THIN = {
    "wal": {"faults": 13, "flips": 11, "truncate": 5},
    "shard": {"faults": 13},
    "engine": {"exhaustive": 127, "faults": 1201, "flips": 1301, "truncate": 503, "mutants": 11},
    TIER: {"faults": 89},
}
"""Of what a quick size has, every how many cases are taken; primes, so that no kind of case is left out."""


class Tally:
    """Counts cases, keeps violations, tells the progress on stderr."""

    def __init__(self, command: str, unit: str) -> None:
        self.cases = 0
        self.violations: list[str] = []
        self._command = command
        self._unit = unit
        self._start = self._told = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        self.cases += outcome[0]
        self.violations += outcome[1]
        for violation in outcome[1][:SHOWN]:
            print(f"VIOLATION {violation}", file=sys.stderr)
        if time.monotonic() - self._told > (0.2 if sys.stderr.isatty() else 5):
            self._told = time.monotonic()
            self._tell("\r" if sys.stderr.isatty() else "\n")

    def _tell(self, end: str) -> None:
        text = f"{self._command}: {self.cases} {self._unit}, {len(self.violations)} violations, {self.seconds:.0f} s"
        print(text, end=end, file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def report(self, **more: Any) -> int:
        """Print the JSON line; the exit code."""
        self._tell("\n")
        row = {"command": self._command, "cases": self.cases, "violations": len(self.violations), **more}
        print(json.dumps({**row, "seconds": round(self.seconds, 2), "first": self.violations[:SHOWN]}), flush=True)
        return 1 if self.violations else 0


def spread(jobs: int, work: Callable[[T], Outcome], items: Iterable[T]) -> Iterator[Outcome]:
    """Run the items over several processes, in order."""
    if jobs == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=quiet) as pool:
        yield from pool.map(work, items)


def quiet() -> None:
    """Injected faults make the product warn a great deal; here that is no news."""
    logging.getLogger("topics").setLevel(logging.CRITICAL)


def _caught(run: Callable[[], int]) -> Outcome:
    try:
        return run(), []
    except Violation as violation:
        return 1, [str(violation)]


def _crash(item: tuple[str, int, int]) -> Outcome:
    name, seed, epochs = item
    return _named(name, _caught(lambda: sweep.crash_run(SUBJECTS[name](), seed, epochs)))


def _named(subject: str, outcome: Outcome) -> Outcome:
    return outcome[0], [f"{subject}: {violation}" for violation in outcome[1]]


def crash(args: argparse.Namespace) -> int:
    """Multi-epoch crash sweep: survivors at every disk call [T1, T2]."""
    tally = Tally("crash", "images")
    names = _subjects(args)
    if args.replay is not None:
        for name in names:
            tally.add(_crash((name, args.replay, args.epochs)))
        return tally.report(seed=args.replay, epochs=args.epochs)
    seeds = 0
    for name in names:
        images = QUICK_IMAGES[name] if args.quick else args.images // len(names)
        seeds = max(seeds, _crash_seeds(tally, name, images, args))
    return tally.report(seed=args.seed, epochs=args.epochs, seeds=seeds, subjects=names)


def _crash_seeds(tally: Tally, name: str, images: int, args: argparse.Namespace) -> int:
    """Sweep one subject until it has yielded so many images; how many seeds that took."""
    seed, before = args.seed, tally.cases
    while tally.cases - before < images and not tally.violations:
        # A seed yields about 150 images; asking for a bounded number of seeds keeps the run repeatable.
        count = max(args.jobs, (images - tally.cases + before) // 150)
        for outcome in spread(args.jobs, _crash, [(name, n, args.epochs) for n in range(seed, seed + count)]):
            tally.add(outcome)
        seed += count
    return int(seed - args.seed)


def _thin(args: argparse.Namespace, name: str) -> int:
    return THIN.get(name, {}).get(args.command, 1) if args.quick else 1


def _subjects(args: argparse.Namespace) -> list[str]:
    return [args.subject] if args.subject else list(SUBJECTS)


def _exhaust(item: tuple[str, int, tuple[str, ...], range]) -> Outcome:
    """The sequences of one length that begin alike, or those of them that are chosen."""
    name, seed, head, chosen = item
    subject = SUBJECTS[name]()
    total = 0
    violations: list[str] = []
    for last in [subject.ops[n] for n in chosen]:
        count, found = _caught(partial(sweep.exhaust, subject, seed, (*head, last)))
        total += count
        violations += found
    return _named(name, (total, violations))


def exhaustive(args: argparse.Namespace) -> int:
    """Every sequence of operations up to a length, every disk call of it [T3]."""
    max_ops = 2 if args.quick else args.max_ops
    tally = Tally("exhaustive", "images")
    names = _subjects(args)
    work = [
        (name, seed, head, chosen)
        for name in names
        for seed in _seeds(args, name)
        for head, chosen in _chosen(SUBJECTS[name]().ops, max_ops, _thin(args, name))
    ]
    for outcome in spread(args.jobs, _exhaust, work):
        tally.add(outcome)
    sequences = sum(len(chosen) for _, _, _, chosen in work)
    return tally.report(seed=args.seed, max_ops=max_ops, sequences=sequences, subjects=names)


def _seeds(args: argparse.Namespace, name: str) -> Sequence[int]:
    """An engine has so many sequences that one seed takes an hour."""
    if args.replay is not None:
        return [args.replay]
    return range(args.seed, args.seed + (1 if args.quick or name == "engine" else 4))


def _chosen(ops: tuple[str, ...], max_ops: int, thin: int) -> list[tuple[tuple[str, ...], range]]:
    """The beginnings of all sequences, each with the operations that end the chosen ones, by number."""
    heads = enumerate(_heads(ops, max_ops))
    found = [(head, range(-number * len(ops) % thin, len(ops), thin)) for number, head in heads]
    return [(head, chosen) for head, chosen in found if chosen]


def _heads(ops: tuple[str, ...], max_ops: int) -> list[tuple[str, ...]]:
    return [(), *sweep.sequences(ops, max_ops - 1)]


def _fault(item: tuple[str, str, int, int]) -> Outcome:
    name, workload, part, parts = item
    total = 0
    violations: list[str] = []
    for run in islice(_fault_runs(name, workload), part, None, parts):
        total += 1
        try:
            run()
        except Violation as violation:
            violations.append(str(violation))
    return _named(name, (total, violations))


def _fault_runs(name: str, workload: str) -> Iterator[Callable[[], None]]:
    if name == TIER:
        return (partial(tierfaults.run_case, case) for case in tierfaults.cases(workload))
    subject = SUBJECTS[name]()
    return (partial(faults.run_case, subject, case) for case in faults.cases(subject, workload))


def _fault_workloads(name: str, args: argparse.Namespace) -> list[str]:
    if name != TIER:
        return list(SUBJECTS[name]().fault_workloads())
    lives = range(args.seed, args.seed + (QUICK_LIVES if args.quick else LIVES))
    return [*tierfaults.WORKLOADS, *(f"{tierfaults.LIFE} {number}" for number in lives)]


def fault(args: argparse.Namespace) -> int:
    """Every operation × call × error × duration on every workload, every request of a cold tier too [T4]."""
    tally = Tally("faults", "cases")
    work = []
    names = [args.subject] if args.subject else [*SUBJECTS, TIER]
    for name in names:
        workloads, thin = _fault_workloads(name, args), _thin(args, name)
        if args.quick and thin == 1:
            workloads = workloads[::4]
        parts = 4 if thin == 1 else 1
        work += [(name, workload, part, parts * thin) for workload in workloads for part in range(parts)]
    for outcome in spread(args.jobs, _fault, work):
        tally.add(outcome)
    return tally.report(
        seed=args.seed, workloads=len({(name, workload) for name, workload, _, _ in work}), subjects=names
    )


def _mutant(item: tuple[int, Sequence[int]]) -> Outcome:
    number, seeds = item
    bug = _mutants()[number]
    if isinstance(bug, enginemutants.EngineMutant):
        found = enginemutants.hunt(bug, seeds)
    else:
        found = mutants.hunt(bug, seeds)
    if found is not None:
        print(f"caught: {bug.name} — {found[:160]}", file=sys.stderr)
    return 1, [] if found is not None else [f"not caught: {bug.name}"]


def _mutants() -> Sequence[mutants.Mutant | enginemutants.EngineMutant]:
    return (*mutants.MUTANTS, *enginemutants.MUTANTS)


def mutant(args: argparse.Namespace) -> int:
    """Seeded bugs, all of which the sweeps must notice [T5]."""
    seeds = range(args.seed, args.seed + 60)
    tally = Tally("mutants", "mutants")
    thin, simple = _thin(args, "engine"), len(mutants.MUTANTS)
    chosen = [n for n in range(len(_mutants())) if n < simple or n % thin == (simple + 1) % thin]
    for outcome in spread(args.jobs, _mutant, [(n, seeds) for n in chosen]):
        tally.add(outcome)
    return tally.report(seed=args.seed, caught=tally.cases - len(tally.violations))


def _damage(item: tuple[str, bool, bool, int, int]) -> Outcome:
    kind, fail, always, part, parts = item
    one = damage.sample(fail=fail, always=always)
    total = 0
    violations: list[str] = []
    for each in islice(damage.flips(one) if kind == "flips" else damage.truncations(one), part, None, parts):
        count, found = _caught(partial(damage.check, one, each))
        total += count
        violations += found
    return _named("wal", (total, violations))


def _engine_damage(item: tuple[str, str, int, int]) -> Outcome:
    kind, name, part, parts = item
    one = enginedamage.sample(name)
    total = 0
    violations: list[str] = []
    cases = enginedamage.flips(one) if kind == "flips" else enginedamage.truncations(one)
    for each in islice(cases, part, None, parts):
        count, found = _caught(partial(enginedamage.check, one, each))
        total += count
        violations += [f"{name}: {violation}" for violation in found]
    return _named("engine", (total, violations))


def damages(args: argparse.Namespace) -> int:
    """Damage at rest: every byte [T6], every length, every missing and every swapped file [T7]."""
    tally = Tally(args.command, "cases")
    names = [args.subject] if args.subject else ["wal", "engine"]
    samples = [(False, False), (True, True)] if args.quick else [(f, a) for f in (False, True) for a in (False, True)]
    each = _thin(args, "wal")
    pieces = 4 if each == 1 else 1
    logs = [(args.command, f, a, part, pieces * each) for f, a in samples if "wal" in names for part in range(pieces)]
    for outcome in spread(args.jobs, _damage, logs):
        tally.add(outcome)
    thin = _thin(args, "engine")
    parts = 8 if thin == 1 else 1
    kinds = enginedamage.SAMPLES if "engine" in names else ()
    stores = [(args.command, kind, part, parts * thin) for kind in kinds for part in range(parts)]
    for outcome in spread(args.jobs, _engine_damage, stores):
        tally.add(outcome)
    return tally.report(seed=None, samples=len(samples) * ("wal" in names) + len(kinds), subjects=names)


def _fuzz(item: tuple[int, int, int]) -> Outcome:
    number, seed, execs = item
    return _caught(lambda: sum(fuzz.fuzz(fuzz.targets()[number], seed, execs)))


def fuzzing(args: argparse.Namespace) -> int:
    """Hostile bytes into every decoder [T13]."""
    execs = 60_000 if args.quick else args.execs
    count = len(fuzz.targets())
    chunk = 2_500 if args.quick else 5_000
    tally = Tally("fuzz", "execs")
    seeds = range(args.seed, args.seed + -(-execs // (count * chunk)))
    work = [(n, seed, chunk) for seed in (seeds if args.replay is None else [args.replay]) for n in range(count)]
    for outcome in spread(args.jobs, _fuzz, work):
        tally.add(outcome)
    return tally.report(seed=args.seed, targets=count)


def kill9s(args: argparse.Namespace) -> int:
    """A real server under HTTP load, killed again and again [T8]."""
    tally = Tally("kill9", "kills")
    seed = args.seed if args.replay is None else args.replay
    folder = Path(tempfile.mkdtemp(prefix="topics-kill9-"))

    def progress(kills: int, acks: int, violations: list[str]) -> None:
        tally.add((kills - tally.cases, violations))

    size = kill9.QUICK if args.quick else kill9.Size(args.cycles)
    report = kill9.run(folder, seed, size, progress, writing=args.jobs)
    tally.add((report.kills - tally.cases, report.violations[len(tally.violations) :]))
    _keep_or_remove(folder, tally)
    return tally.report(seed=seed, acks=report.acks, **report.counts)


def queue_chaos(args: argparse.Namespace) -> int:
    """Workers killed and stalled, a server killed: every job done, acked ones never again."""
    tally = Tally("queue-chaos", "jobs")
    folder = Path(tempfile.mkdtemp(prefix="topics-queue-chaos-"))

    def progress(acked: int, violations: list[str]) -> None:
        tally.add((acked - tally.cases, violations))

    report = queuechaos.run(folder, args.seed, queuechaos.QUICK if args.quick else args.count, progress)
    _keep_or_remove(folder, tally)
    return tally.report(seed=args.seed, **report.counts)


def txn_chaos(args: argparse.Namespace) -> int:
    """Stagers and a committer, a server killed: every version whole, every row once."""
    tally = Tally("txn-chaos", "kills")
    folder = Path(tempfile.mkdtemp(prefix="topics-txn-chaos-"))

    def progress(kills: int, violations: list[str]) -> None:
        tally.add((kills - tally.cases, violations))

    report = txnchaos.run(folder, args.seed, txnchaos.QUICK if args.quick else args.kills, progress)
    _keep_or_remove(folder, tally)
    return tally.report(seed=args.seed, **report.counts)


def spark_chaos(args: argparse.Namespace) -> int:
    """A stream from Spark, its driver and the server killed: every row exactly once [T16]."""
    tally = Tally("spark-chaos", "kills")
    folder = Path(tempfile.mkdtemp(prefix="topics-spark-chaos-"))

    def progress(kills: int, violations: list[str]) -> None:
        tally.add((kills - tally.cases, violations))

    report = sparkchaos.run(folder, args.seed, sparkchaos.QUICK if args.quick else args.kills, progress)
    _keep_or_remove(folder, tally)
    return tally.report(seed=args.seed, **report.counts)


def queue_stall(args: argparse.Namespace) -> int:
    """Workers stopped beyond their leases: their old tokens count for nothing [T12]."""
    tally = Tally("queue-stall", "stopped workers")
    folder = Path(tempfile.mkdtemp(prefix="topics-queue-stall-"))
    size = queuestall.QUICK if args.quick else queuestall.Size(args.count, args.beyond)
    queuestall.run(folder, size, lambda violations: tally.add((1, violations)))
    _keep_or_remove(folder, tally)
    return tally.report(seed=args.seed)


def _keep_or_remove(folder: Path, tally: Tally) -> None:
    if tally.violations:
        print(f"kept for a look: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "crash": crash,
    "exhaustive": exhaustive,
    "faults": fault,
    "mutants": mutant,
    "flips": damages,
    "truncate": damages,
    "fuzz": fuzzing,
    "kill9": kill9s,
    "queue-chaos": queue_chaos,
    "txn-chaos": txn_chaos,
    "spark-chaos": spark_chaos,
    "queue-stall": queue_stall,
}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m topics.testing", description="Prove what the log promises.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in COMMANDS.items():
        command = commands.add_parser(name, help=(run.__doc__ or "").strip())
        command.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
        command.add_argument("--quick", action="store_true", help="a small size, mostly under 20 seconds")
        command.add_argument(
            "--jobs", type=_positive, default=os.cpu_count() or 1, help="processes (default: one per core)"
        )
        if name in ("crash", "exhaustive", "faults"):
            choices = [*SUBJECTS, TIER] if name == "faults" else list(SUBJECTS)
            command.add_argument("--subject", choices=choices, help="sweep only this (default: all)")
        if name in ("flips", "truncate"):
            command.add_argument("--subject", choices=["wal", "engine"], help="damage only this (default: both)")
        if name in ("crash", "exhaustive", "fuzz", "kill9"):
            command.add_argument("--replay", type=int, metavar="SEED", help="repeat one seed exactly")
        if name == "crash":
            command.add_argument("--images", type=_positive, default=20_000, help="survivors to judge (default 20000)")
            command.add_argument("--epochs", type=_positive, default=4, help="crashes survived in a row (default 4)")
        if name == "exhaustive":
            command.add_argument("--max-ops", type=_positive, default=3, help="longest sequence (default 3)")
        if name == "kill9":
            command.add_argument("--cycles", type=_positive, default=200, help="kills under load (default 200)")
        if name == "queue-chaos":
            command.add_argument("--count", type=_positive, default=20_000, help="jobs (default 20000)")
        if name == "txn-chaos":
            command.add_argument("--kills", type=_positive, default=50, help="of the server (default 50)")
        if name == "spark-chaos":
            command.add_argument("--kills", type=_positive, default=5, help="of driver and server each (default 5)")
        if name == "queue-stall":
            command.add_argument("--count", type=_positive, default=20, help="workers (default 20)")
            command.add_argument("--beyond", type=float, default=30.0, help="seconds beyond the lease (default 30)")
        if name == "fuzz":
            command.add_argument("--execs", type=_positive, default=1_000_000, help="inputs (default 1000000)")
    args = parser.parse_args(argv)
    before = logging.getLogger("topics").level
    quiet()
    try:
        return COMMANDS[args.command](args)
    finally:
        logging.getLogger("topics").setLevel(before)
