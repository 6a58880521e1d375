"""Processor time of processes that others started."""

from __future__ import annotations

import subprocess
import sys

from bench import tree

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_name_may_hold_anything() -> None:
    fields = " ".join(str(n) for n in range(5, 53))
    assert tree.parse(f"7 (a) b (c) S 3 {fields}") == (7, 3, 14 + 15 + 16 + 17)


def test_what_children_of_children_used_is_counted_once_they_have_ended() -> None:
    """P-2"""
    before = tree.cpu_s()
    command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}], check=True)"
    subprocess.run([sys.executable, "-c", command], check=True)
    assert tree.cpu_s() - before >= 0.3 - 2 / tree.TICKS_PER_S
