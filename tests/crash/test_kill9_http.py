"""A real server under HTTP load, killed with SIGKILL again and again (13 §4, T8).

`TOPICS_TEST_KILL9_CYCLES` sets the number of kills under load.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from topics.fs import boot_id as machine_boot_id
from topics.testing import kill9, load, serverproc

CYCLES = int(os.environ.get("TOPICS_TEST_KILL9_CYCLES", "20"))

LIAR = """
import itertools, sys
from topics.fs import OsFs
from topics.testing import faultyserver

calls = itertools.count()

def lying(file, path):
    write = file.pwrite
    class Liar:
        def __getattr__(self, name):
            return getattr(file, name)
        def pwrite(self, data, offset):
            # From the 200th write to the log on it says that it wrote, and did not.
            return len(data) if "/wal/" in path and next(calls) > 200 else write(data, offset)
    return Liar()

class LyingFs(OsFs):
    def open(self, path, mode):
        return lying(super().open(path, mode), path)

faultyserver.OsFs = LyingFs
faultyserver.main()
"""


BUGGY = """
import sys
from unittest import mock
from topics.testing import enginemutants, faultyserver

bug = next(one for one in enginemutants.MUTANTS if sys.argv[1] in one.name)
with mock.patch.object(bug.target, bug.attribute, bug.make(getattr(bug.target, bug.attribute))):
    faultyserver.main()
"""


def quiet(kills: int, acks: int, violations: list[str]) -> None:
    """Nobody watches."""


@pytest.mark.timeout(300 + 20 * CYCLES)
def test_a_server_killed_again_and_again_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """[R-1, R-6, DUR-4, DUR-6, INV-1 … INV-9, IDM-6, A-3, A-4, A-16]"""
    seed = random.SystemRandom().randrange(2**32)
    report = kill9.run(tmp_path, seed, kill9.Size(CYCLES, 250), quiet)
    assert report.violations == [], f"seed {seed}"
    assert report.kills >= CYCLES
    assert report.acks >= 50 * CYCLES
    counts = report.counts
    seen = ("writes_acked", "writes_unknown", "writes_deduped", "deletes", "reads", "tombstones")
    assert {name: counts.get(name, 0) > 0 for name in seen} == dict.fromkeys(seen, True), counts


def test_a_server_that_does_not_write_what_it_acknowledges_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run can fail: what a disk that lies did not write is missing, or the next start refuses what it finds."""
    monkeypatch.setattr(serverproc, "SERVE", (sys.executable, "-c", LIAR))
    report = kill9.run(tmp_path, 1, kill9.Size(3, 600), quiet)
    assert any(one.startswith(("lost", "head", "ServerDied")) for one in report.violations), report


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        ("Dedupe frames are not replayed", "twice"),
        ("a reservation is counted after a mere kill", "head"),
        ("caps are not enforced after replay", "gap"),
    ],
)
def test_a_server_with_a_bug_in_its_recovery_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, rule: str
) -> None:
    """The run finds over HTTP, in real processes, what the sweeps of the simulated disk find."""
    monkeypatch.setattr(serverproc, "SERVE", (sys.executable, "-c", BUGGY, bug))
    report = kill9.run(tmp_path, 5, kill9.Size(12, 300), quiet)
    assert rule in {one.partition(":")[0] for one in report.violations}, report


def test_a_served_store_knows_which_boot_of_the_machine_it_runs_in(tmp_path: Path) -> None:
    """[DUR-4, S-245] Else the next start would take a crash of the machine for a mere kill, and tell no loss."""
    server = serverproc.ServerProcess(tmp_path, {})
    try:
        server.wait_ready()
        lines = (tmp_path / "data" / ".topics.lock").read_text().splitlines()
        assert f"boot={machine_boot_id()}" in lines
        server.stop()
    finally:
        server.abandon()


def test_a_payload_names_itself_and_a_damaged_one_does_not() -> None:
    """What readers hand to the checker stands for every byte of the payload."""
    whole = [load.payload(f"w0.1/{n}/0") for n in range(2000)]
    assert [load.name_of(one) for one in whole] == [f"w0.1/{n}/0" for n in range(2000)]
    assert len({len(one) for one in whole}) > 100
    for damaged in (whole[0][:-1], whole[0] + ".", whole[1][::-1], "", None, 7, {"a": 1}):
        assert load.name_of(damaged).startswith("damaged")
