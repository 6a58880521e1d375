"""Queues under chaos, in real processes: workers killed and stalled, the server killed (04); stopped workers (T12).

`TOPICS_TEST_QUEUE_JOBS` sets the number of jobs.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from topics.testing import queuechaos, queuestall, serverproc

JOBS = int(os.environ.get("TOPICS_TEST_QUEUE_JOBS", str(queuechaos.QUICK)))

BUGGY = """
from topics.engine.topic import Topic
from topics.testing import faultyserver

Topic.keeps_leases = property(lambda self: False)
faultyserver.main()
"""


def quiet(acked: int, violations: list[str]) -> None:
    """Nobody watches."""


@pytest.mark.timeout(300 + JOBS // 20)
def test_every_job_is_done_and_an_acked_one_never_again(tmp_path: Path) -> None:
    """[QUE-4, ACK-2, LSE-4, LSE-5, LSE-8, QRC-3, QRC-7, WRK-6] Workers are stopped beyond their leases, too."""
    seed = random.SystemRandom().randrange(2**32)
    report = queuechaos.run(tmp_path, seed, JOBS, quiet)
    assert report.violations == [], f"seed {seed}"
    assert report.counts["server_kills"] == 2
    assert report.counts["worker_kills"] >= 2
    assert report.counts["got"] > JOBS  # some were delivered again
    assert report.acked > JOBS * 0.9  # the others were acked by who did not live to note it


@pytest.mark.timeout(900)
def test_a_server_with_a_bug_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run can fail: where leases are not logged, counters begin anew with the server [QRC-3]."""
    monkeypatch.setattr(serverproc, "SERVE", (sys.executable, "-c", BUGGY))
    rules: set[str] = set()
    for seed in range(4):  # who is late when is chance
        report = queuechaos.run(tmp_path / str(seed), seed, queuechaos.QUICK, quiet)
        rules |= {one.partition(":")[0] for one in report.violations}
        if "count" in rules:
            break
    assert "count" in rules


UNFENCED = {
    "the token of a lease is not looked at": (
        "right = Leases.find\nLeases.find = lambda self, seq, node, id, now: right(self, seq, node, None, now)"
    ),
    "a lease keeps its token when it is given anew": (
        "from topics.engine import claiming\nclaiming.lease_number = lambda run, number: 1"
    ),
    "a lease that is over still counts": (
        "from topics.engine.claiming import Pass\n"
        "right, found, claiming = Leases.expire, Leases.find, Pass.__init__\n"
        "def dealt(self, core, topic, leases, *more):\n"
        "    while not right(leases, core.clock.now_ms()): pass\n"
        "    claiming(self, core, topic, leases, *more)\n"
        "Pass.__init__ = dealt\n"
        "Leases.expire = lambda self, now: True\n"
        "Leases.find = lambda self, seq, node, id, now: found(self, seq, node, id, 0)"
    ),
}
"""Seeded bugs of fencing: code for the server's process."""


@pytest.mark.parametrize("bug", UNFENCED)
def test_a_server_that_does_not_fence_is_caught_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """T12 can fail: an old token that counts is seen, whichever part of fencing is gone [LSE-4, LSE-7, LSE-8]."""
    code = f"from topics.engine.lease import Leases\n{UNFENCED[bug]}\nfrom topics.testing import faultyserver\n"
    monkeypatch.setattr(serverproc, "SERVE", (sys.executable, "-c", f"{code}faultyserver.main()\n"))
    found: list[str] = []
    queuestall.run(tmp_path, queuestall.QUICK, found.extend)
    assert any(one.startswith("stale: ack") for one in found), found
