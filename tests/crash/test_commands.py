"""The fault commands in their quick size: what CI runs of 13 §4."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from topics.testing import enginedamage, faults
from topics.testing.commands import COMMANDS, main
from topics.testing.enginesubject import EngineSubject

QUICK = {
    "crash": 3_000,  # T1
    "exhaustive": 9_000,  # T3
    "faults": 1_100,  # T4
    "mutants": 50,  # T5
    "flips": 1_000,  # T6
    "truncate": 750,  # T7
    "fuzz": 60_000,  # T13
    "kill9": 4,  # T8
    "queue-chaos": 1_350,  # T12
    "txn-chaos": 4,
    "spark-chaos": 2,  # T16
    "queue-stall": 4,  # T12
}


@pytest.mark.timeout(900)  # `mutants` alone takes some minutes on a busy machine
@pytest.mark.parametrize("command", QUICK)
def test_the_sweep_finds_no_broken_promise(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """13 §4: one JSON line, no violations, at least the cases the quick size is known to have."""
    code = main([command, "--quick", "--jobs", "1"])
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert out.count("\n") == 1
    assert {"command", "cases", "violations", "seed", "seconds"} <= report.keys()
    assert (report["command"], report["violations"], code) == (command, 0, 0), err
    assert report["cases"] >= QUICK[command]
    assert logging.getLogger("topics").level == logging.NOTSET  # quiet for the sweep alone


def test_reads_that_fail_once_leave_a_rewrite_explained() -> None:
    """T4, [R-6]: a delete that is logged and meets a failed read answers an error, and is completed whole."""
    subject = EngineSubject()
    reads = [case for case in faults.cases(subject, "rewrite") if case.fault.op == "pread"]
    once = [case for case in reads if case.fault.times == "once"]
    assert len(once) >= 40
    for case in once:
        faults.run_case(subject, case)


def test_a_data_file_of_another_topic_deletes_nothing() -> None:
    """T7, C22 [S-174]: a record whose place has the bytes of another topic is told, never silently gone."""
    one = enginedamage.sample("closed")
    swaps = [each for each in enginedamage.truncations(one) if each.kind == "swap" and each.path.endswith(".data")]
    assert len(swaps) >= 40
    for each in swaps:
        enginedamage.check(one, each)


def test_every_command_has_a_quick_size_here() -> None:
    """A command that is added must be run."""
    assert set(QUICK) == set(COMMANDS)


def test_a_seed_replays_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    """[R-12]: the same seed judges the same number of survivors, run after run, whatever ran before it."""
    seen = []
    for _ in range(2):
        main(["crash", "--replay", "7", "--jobs", "1"])
        report = json.loads(capsys.readouterr().out)
        seen.append({key: value for key, value in report.items() if key != "seconds"})
    assert seen[0] == seen[1]
    assert seen[0]["cases"] > 20


def test_a_violation_makes_the_command_fail_and_names_its_seed(tmp_path: Path) -> None:
    """13 §4: non-zero exit on a miss; [R-12]: the seed to replay is printed."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from topics.testing import commands, mutants\n"
        "bug = next(m for m in mutants.MUTANTS if m.name == 'append acknowledges without a sync')\n"
        "with mutants.applied(bug):\n"
        "    raise SystemExit(commands.main(['crash', '--quick', '--jobs', '1', '--subject', 'wal']))\n"
    )
    done = subprocess.run([sys.executable, str(broken)], capture_output=True, text=True, check=False, timeout=120)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["violations"] > 0
    assert report["first"][0].startswith("wal: seed ")
