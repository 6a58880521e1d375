"""What a process holds, as the kernel counts it: memory, descriptors, threads."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = ("VmRSS", "RssAnon", "RssFile")


def memory(pid: int | str = "self") -> dict[str, int]:
    """Bytes that are resident: all of them, those of its own, those of mapped files."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    rows = dict(line.split(":", 1) for line in text.splitlines())
    return {name: int(rows[name].split()[0]) * 1024 for name in MEMORY}


def descriptors(pid: int) -> int:
    """How many are open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """How many there are."""
    return len(os.listdir(f"/proc/{pid}/task"))
