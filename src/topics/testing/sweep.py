"""Crash sweeps: at every disk call, derive a survivor and judge it [R-10 … R-12].

`crash_run` is one seeded life of several epochs: run operations, cut the power somewhere, adopt one survivor, go on.
`sequences` is the exhaustive form: every short sequence of operations, every disk call of its last one.
Nothing here knows what the system under test is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from topics.testing.simfs import STYLES, Call, PowerLoss, SimFs, Style
from topics.testing.subject import Driver, Subject, Violation
from topics.testing.unexpected import Unexpected


class Forks:
    """Hooks itself into the driver's disk and judges one survivor at every disk call."""

    def __init__(self, driver: Driver, rng: random.Random, *, per_call: int = 1) -> None:
        self.images = 0
        self.on = True
        self._driver = driver
        self._rng = rng
        self._per_call = per_call
        driver.on_disk = self._hook

    def _hook(self, disk: SimFs) -> None:
        disk.before = self._before

    def _before(self, call: Call) -> None:
        if self.on and call[0] != "point":
            self.fork()

    def fork(self) -> None:
        """Judge survivors of the present moment."""
        for _ in range(self._per_call):
            self.images += 1
            if self._rng.random() < 0.2:
                self._driver.judge(self._driver.disk.kill_image(), "kill", self._rng)
            else:
                self._driver.judge(self._driver.disk.crash_image(self._rng, _style(self._rng)), "crash", self._rng)


def _style(rng: random.Random) -> Style:
    """Random survivors mostly: they contain the others."""
    return "random" if rng.random() < 0.55 else rng.choice(STYLES)


def crash_run(subject: Subject, seed: int, epochs: int, *, every_call: bool = True) -> int:
    """One seeded life; the number of survivors judged, at every disk call or behind every operation only.

    Raises `Violation`.
    """
    rng = random.Random(f"crash {seed}")
    driver = subject.driver(seed)
    forks = Forks(driver, rng)
    forks.on = every_call
    disk = SimFs(seed)
    where = ""
    try:
        with Unexpected() as unexpected:
            for epoch in range(epochs):
                disk.crash_at(disk.disk_calls + rng.randrange(1, 120), rng.choice(("before", "middle", "after")))
                try:
                    where = f"epoch {epoch}: open"
                    driver.open(disk)
                    for number, op in enumerate(subject.workload(rng, rng.randrange(3, 14))):
                        where = f"epoch {epoch}, operation {number}: {op}"
                        driver.do(op)
                        unexpected.check()
                        forks.fork()
                except PowerLoss:
                    where += " (power lost)"
                driver.end()
                unexpected.check()
                survivor = driver.disk.crash_image(rng, _style(rng))
                driver.disk.before = None
                disk = survivor
                disk.capacity = None
    except Exception as error:
        raise _located(error, f"seed {seed}, {where}") from error
    finally:
        driver.disk.before = None
        driver.end()
    return forks.images


def _located(error: Exception, where: str) -> Violation:
    text = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
    return Violation(f"{where}: {text}")


def sequences(ops: tuple[str, ...], max_ops: int) -> Iterator[tuple[str, ...]]:
    """Every sequence of one to `max_ops` operations."""
    for length in range(1, max_ops + 1):
        yield from itertools.product(ops, repeat=length)


def exhaust(subject: Subject, seed: int, ops: tuple[str, ...]) -> int:
    """Run one sequence and judge survivors at every disk call of its last operation.

    Earlier operations are the last ones of shorter sequences, so nothing is judged twice. Short sequences are few: two
    survivors of each call are judged there, one of those of three operations.
    """
    rng = random.Random(f"exhaust {seed} {ops}")
    driver = subject.driver(seed)
    forks = Forks(driver, rng, per_call=2 if len(ops) < 3 else 1)
    try:
        with Unexpected():
            forks.on = len(ops) == 1
            driver.open(SimFs(seed))
            for op in ops[:-1]:
                driver.do(op)
            forks.on = True
            driver.do(ops[-1])
            forks.fork()
    except Exception as error:
        raise _located(error, f"seed {seed}, operations {','.join(ops)}") from error
    finally:
        driver.disk.before = None
        driver.end()
    return forks.images
