"""Staged commits under chaos, in real processes: stagers, a committer, a server that is killed (02 §9, C28).

`TOPICS_TEST_TXN_KILLS` sets how often the server is killed.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from topics.testing import serverproc, txnchaos

KILLS = int(os.environ.get("TOPICS_TEST_TXN_KILLS", str(txnchaos.QUICK)))

BUGGY = """
import asyncio
from topics.engine import txn
from topics.engine.dedupe import Producers
from topics.testing import faultyserver

Producers.restore = Producers.replay = lambda *ignored: None
commit = txn.commit

def slow(core, asked, done, check):
    commit(core, asked, lambda told: asyncio.get_running_loop().call_later(2, done, told), check)

txn.commit = slow
faultyserver.main()
"""
"""A server that forgets with its process which versions it has, and is slow to answer what it has committed."""


def quiet(kills: int, violations: list[str]) -> None:
    """Nobody watches."""


@pytest.mark.timeout(300 + KILLS * 20)
def test_every_version_is_there_once_and_whole_however_often_the_server_is_killed(tmp_path: Path) -> None:
    """[TXN-2, TXN-3, TXN-6, TXN-7, TXN-10], C28, C29."""
    seed = random.SystemRandom().randrange(2**32)
    report = txnchaos.run(tmp_path, seed, KILLS, quiet)
    assert report.violations == [], f"seed {seed}"
    assert report.counts["kills"] == KILLS
    assert report.counts["rows"] > 100
    assert report.counts["looks"] > 0


@pytest.mark.timeout(900)
def test_a_server_that_forgets_committed_versions_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run can fail: where versions are not kept, the repeat of a commit that was cut appends it again [TXN-7]."""
    monkeypatch.setattr(serverproc, "SERVE", (sys.executable, "-c", BUGGY))
    for seed in range(3):  # most kills cut a commit behind its sync; which ones is chance
        report = txnchaos.run(tmp_path / str(seed), seed, 3 * txnchaos.QUICK, quiet)
        if report.violations:
            break
    assert report.violations
