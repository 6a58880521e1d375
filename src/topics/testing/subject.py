"""What a sweep drives and judges: a system on a disk, and the oracle beside it (13 §3).

A *subject* makes drivers. A *driver* runs operations against a real implementation on a given disk, keeps the
oracle's view of what was promised, and judges survivors of that disk. The WAL library is one subject; an engine
becomes another by implementing the same two protocols.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from topics.fs import Fs
from topics.testing.simfs import SimFs

How = Literal["crash", "kill"]
"""crash: another boot, only what reached the medium · kill: same boot, page cache alive."""


class Violation(Exception):
    """A promise was broken; the message says which and how."""

    @classmethod
    def of(cls, where: str, error: Exception) -> Violation:
        """Of what a case met: one already, or an error that nobody should see."""
        return cls(f"{where}: {error if isinstance(error, cls) else f'{type(error).__name__} leaks: {error}'}")


class Driver(Protocol):
    """One life of a system under test and the oracle's view of it."""

    on_disk: Callable[[SimFs], None] | None
    """Told of every simulated disk the system moves to."""

    @property
    def disk(self) -> SimFs:
        """The simulated disk it runs on now."""
        ...

    def open(self, fs: Fs) -> None:
        """Start on this disk: recover what is there and take it as the new truth."""
        ...

    def start(self, fs: Fs) -> None:
        """Like `open`, but a disk that fails may prevent it; then the next operation tries again."""
        ...

    def must_work(self) -> None:
        """The disk is healthy again: opening, writing and syncing must succeed, else `Violation`."""
        ...

    def do(self, op: str) -> None:
        """Run one operation of the alphabet; promises it keeps are noted, promises it breaks raise `Violation`."""
        ...

    def end(self) -> None:
        """Let go of the system without closing it, as a kill would."""
        ...

    def judge(self, image: SimFs, how: How, rng: random.Random) -> None:
        """Recover a survivor of the present moment and raise `Violation` if a promise is broken on it."""
        ...


class Subject(Protocol):
    """A system that can be swept."""

    @property
    def ops(self) -> tuple[str, ...]:
        """The alphabet."""
        ...

    def driver(self, seed: int) -> Driver:
        """A driver whose configuration and payloads follow from the seed."""
        ...

    def fault_workloads(self) -> Mapping[str, tuple[Callable[[], Driver], tuple[str, ...]]]:
        """Named short workloads for the fault sweep: how to make the driver, and what it does."""
        ...

    def workload(self, rng: random.Random, length: int) -> list[str]:
        """A random run of operations."""
        ...
