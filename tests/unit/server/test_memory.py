"""What large answers need stays with the process (P-10); what piled up is given back when nothing is going on (B7)."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from topics.server.memory import WORTH_BYTES, Memory

ROUNDS, PIECES, BYTES = 50, 8, 270_000
SCRIPT = f"""
import resource
from topics.server.memory import keep_memory
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


PILE = """
from topics.server.memory import Memory, keep_memory, own_bytes
keep_memory()
memory = Memory(cpu_s=lambda: 0.0)
memory.look()
pile, kept, size = [], [], 1024
for n in range(64 << 10):
    pile.append(b"x" * size)
    if n % 64 == 0:
        kept.append(b"y" * size)
del pile
before = own_bytes()
memory.look()
memory._giving.join()
print(before - own_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_what_piled_up_in_pieces_goes_back_to_the_system() -> None:
    """B7: the allocator alone gives back what lies at its end, and something always does."""
    found = subprocess.run([sys.executable, "-c", PILE], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 48 << 20


class Machine:
    """A process whose figures are moved by hand."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.own = 100 << 20
        self.free = 0
        self.given = 0
        self.memory = Memory(lambda: self.cpu_s, lambda: self.own, self._give)
        self.look()

    def _give(self) -> None:
        self.given += 1
        self.own -= self.free
        self.free = 0

    def look(self, *, cpu_s: float = 0.0) -> int:
        """A second in which so much of a processor was used; how often memory was given back so far."""
        self.cpu_s += cpu_s
        self.memory.look()
        if self.memory._giving is not None:
            self.memory._giving.join()
        return self.given

    def grow(self, size: int, *, free: int = 0) -> None:
        self.own += size
        self.free += free


def test_memory_is_given_back_once_nothing_is_going_on() -> None:
    """P-10: nobody waits for it, and what is done is not done again."""
    machine = Machine()
    machine.grow(300 << 20, free=290 << 20)
    assert [machine.look(cpu_s=0.5), machine.look(cpu_s=0.06)] == [0, 0]
    assert [machine.look(cpu_s=0.04), machine.look(), machine.look()] == [1, 1, 1]
    machine.grow(WORTH_BYTES, free=WORTH_BYTES)
    assert machine.look() == 2


def test_memory_that_is_in_use_is_not_looked_through_again_and_again() -> None:
    """P-10: nor is a little of it worth the while."""
    machine = Machine()
    machine.grow(WORTH_BYTES - 1, free=WORTH_BYTES - 1)
    assert machine.look() == 0
    machine.grow(200 << 20)
    assert [machine.look(), machine.look(), machine.look()] == [1, 1, 1]


def test_a_system_without_a_thread_to_give_is_asked_again_when_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 §6: it is nobody's error."""
    machine = Machine()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    machine.grow(WORTH_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        machine.memory.look()
    assert machine.look() == 0
    machine.grow(WORTH_BYTES)
    assert machine.look() == 1
