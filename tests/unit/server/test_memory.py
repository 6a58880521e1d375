"""What large answers need stays with the process (P-10)."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

ROUNDS, PIECES, BYTES = 50, 8, 270_000
SCRIPT = f"""
import resource
from topics.server.main import keep_memory
keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def page():
    pieces = [b"x" * {BYTES} for _ in range({PIECES})]
page()
before = faults()
for _ in range({ROUNDS}):
    page()
print(faults() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_memory_of_large_answers_is_not_faulted_in_again_and_again() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 2 * PIECES * BYTES // 4096
