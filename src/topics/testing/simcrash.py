"""What a crash of the simulated disk keeps: changes of names, and the choice among all that may have landed.

style       keeps
nothing     only what was synced
everything  all that was written
prefix      all that was written up to one moment
random      any version of anything, as far as it is consistent
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from topics.testing.siminode import Inode

Style = Literal["nothing", "everything", "prefix", "random"]
STYLES: tuple[Style, ...] = ("nothing", "everything", "prefix", "random")

Edit = tuple["Dir", str, "Node | None"]
"""A name in a directory, and what it names afterwards."""


class Dir:
    """A directory: the names a process sees and the durable ones (the same dict while they are equal)."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable = self.entries


Node = Inode | Dir


class Change:
    """One change of names: kept or lost as a whole. `needs` are names it relies on without changing them."""

    __slots__ = ("edits", "needs", "seq")

    def __init__(self, seq: int, edits: list[Edit], needs: list[tuple[Dir, str]]) -> None:
        self.seq = seq
        self.edits = edits
        self.needs = needs

    def touches(self, directory: Dir) -> bool:
        return any(edit[0] is directory for edit in self.edits)

    def names(self) -> list[tuple[Dir, str]]:
        return [(directory, name) for directory, name, _ in self.edits]


class Choice(Protocol):
    """How one crash decides: which version of a size, of each sector, and which changes of names."""

    def size(self, sizes: list[tuple[int, int]]) -> int:
        """Index into `sizes` of the one that landed."""
        ...

    def sectors(self, versions: dict[int, list[tuple[int, bytes]]]) -> Iterator[tuple[int, tuple[int, bytes]]]: ...

    def changes(self, changes: list[Change]) -> list[Change]: ...


class Nothing:
    """Only what was synced."""

    def size(self, sizes: list[tuple[int, int]]) -> int:
        return 0

    def sectors(self, versions: dict[int, list[tuple[int, bytes]]]) -> Iterator[tuple[int, tuple[int, bytes]]]:
        return ((sector, found[0]) for sector, found in versions.items())

    def changes(self, changes: list[Change]) -> list[Change]:
        return []


class Everything:
    """All that was written, except pages a failed sync forgot."""

    def size(self, sizes: list[tuple[int, int]]) -> int:
        return len(sizes) - 1

    def sectors(self, versions: dict[int, list[tuple[int, bytes]]]) -> Iterator[tuple[int, tuple[int, bytes]]]:
        return ((sector, found[-1]) for sector, found in versions.items())

    def changes(self, changes: list[Change]) -> list[Change]:
        return changes


class Prefix:
    """All that was written up to one moment, over all files and names."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq

    def size(self, sizes: list[tuple[int, int]]) -> int:
        return max(i for i, (seq, _) in enumerate(sizes) if seq <= self.last_seq)

    def sectors(self, versions: dict[int, list[tuple[int, bytes]]]) -> Iterator[tuple[int, tuple[int, bytes]]]:
        last_seq = self.last_seq
        for sector, found in versions.items():
            for version in reversed(found):
                if version[0] <= last_seq:
                    yield sector, version
                    break

    def changes(self, changes: list[Change]) -> list[Change]:
        return [change for change in changes if change.seq <= self.last_seq]


class Random:
    """Any version of anything. Each file draws a flavour first, because an even coin over forty sectors would
    never show the image that finds most bugs: all of them landed but one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def size(self, sizes: list[tuple[int, int]]) -> int:
        flavour = self.rng.random()
        if flavour < 0.4:
            return len(sizes) - 1
        return 0 if flavour < 0.65 else int(self.rng.random() * len(sizes))

    def sectors(self, versions: dict[int, list[tuple[int, bytes]]]) -> Iterator[tuple[int, tuple[int, bytes]]]:
        draw = self.rng.random
        flavour = draw()
        odd = int(draw() * len(versions))
        landed = 0.5 if flavour < 0.4 else draw() if flavour < 0.6 else 1.0 if flavour < 0.85 else 0.0
        single = flavour >= 0.7
        for i, (sector, found) in enumerate(versions.items()):
            if single and i == odd:
                yield sector, found[0 if landed else -1]
            elif draw() < landed:
                yield sector, found[-1]
            else:
                yield sector, found[int(draw() * (len(found) - 1))] if landed else found[0]

    def changes(self, changes: list[Change]) -> list[Change]:
        flavour = self.rng.random()
        if flavour < 0.4:
            return changes[: int(self.rng.random() * (len(changes) + 1))]
        landed = 0.5 if flavour < 0.8 else 0.9
        return consistent(changes, lambda change: self.rng.random() < landed)


def consistent(changes: list[Change], keep: Callable[[Change], bool]) -> list[Change]:
    """The changes that `keep` wants and that need none of those lost before."""
    lost: set[tuple[Dir, str]] = set()
    kept: list[Change] = []
    for change in changes:
        if keep(change) and not any(name in lost for name in (*change.names(), *change.needs)):
            kept.append(change)
        else:
            lost.update(change.names())
    return kept


def required(changes: list[Change], directory: Dir) -> list[Change]:
    """The changes that touch `directory`, and the earlier ones they need."""
    chosen: list[Change] = []
    wanted: set[tuple[Dir, str]] = set()
    for change in reversed(changes):
        if change.touches(directory) or any(name in wanted for name in change.names()):
            chosen.append(change)
            wanted.update(change.names(), change.needs)
    chosen.reverse()
    return chosen
