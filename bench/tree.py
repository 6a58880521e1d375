"""Processor time of this process and of all that it started, directly or not: Spark's work is done by others [P-2].

A process that has ended is counted by whoever waited for it, so the sum never goes back while parents live. Linux only.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Told(NamedTuple):
    """What the kernel tells of a process."""

    pid: int
    parent: int
    ticks: int
    """Its own, and those of children it has waited for."""


def parse(text: str) -> Told:
    """A line of `/proc/PID/stat`; the name in it may hold anything."""
    pid, _, rest = text.partition(" ")
    fields = rest[rest.rindex(")") + 2 :].split()
    return Told(int(pid), int(fields[1]), sum(map(int, fields[11:15])))


def cpu_s(root: int | None = None) -> float:
    """Seconds of all processes from `root` down; this one unless given."""
    children: dict[int, list[Told]] = defaultdict(list)
    ticks, todo = 0, [os.getpid() if root is None else root]
    for one in _all():
        children[one.parent].append(one)
        ticks += one.ticks if one.pid == todo[0] else 0
    while todo:
        for one in children[todo.pop()]:
            ticks += one.ticks
            todo.append(one.pid)
    return ticks / TICKS_PER_S


def _all() -> list[Told]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                found.append(parse(file.read()))
        except (FileNotFoundError, ProcessLookupError):  # it has ended since
            continue
    return found
