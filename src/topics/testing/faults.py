"""The fault sweep: every operation × call × error × duration on every workload, without sampling (13 T4).

A dry run counts the calls; then each fault has a run of its own. Whatever the fault, the system must answer with
its own errors, keep what it promised over a kill and a power loss, and work again when the fault is gone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from topics.testing.faultfs import FAULTS, TIMES, Fault, FaultFs
from topics.testing.simfs import SYNC_MODES, SimFs
from topics.testing.subject import Subject, Violation
from topics.testing.unexpected import Unexpected

_SYNCS = ("fdatasync", "fsync", "sync_dir")
_SPACE = ("ENOSPC", "EDQUOT")


class Case(NamedTuple):
    """One fault in one workload."""

    workload: str
    fault: Fault


def cases(subject: Subject, workload: str) -> Iterator[Case]:
    """Every fault that can strike in a workload."""
    counts = _count(subject, workload)
    for op, errors in FAULTS.items():
        for index in range(1, counts.get(op, 0) + 1):
            for error in errors:
                for times in TIMES:
                    if times == "until_freed" and error not in _SPACE:
                        continue
                    # How a failed sync leaves the pages matters; one that lies is the crash sweep's business.
                    modes = SYNC_MODES[:3] if op in _SYNCS and error == "EIO" else SYNC_MODES[:1]
                    for mode in modes:
                        yield Case(workload, Fault(op, index, error, times, sync_mode=mode))


def _count(subject: Subject, workload: str) -> dict[str, int]:
    make, ops = subject.fault_workloads()[workload]
    driver = make()
    fs = FaultFs(SimFs())
    driver.open(fs)
    for op in ops:
        driver.do(op)
    driver.end()
    return dict(fs.counts)


def run_case(subject: Subject, case: Case) -> None:
    """Run a workload with its fault. Raises `Violation`."""
    make, ops = subject.fault_workloads()[case.workload]
    driver = make()
    fs = FaultFs(SimFs(), [case.fault])
    rng = random.Random(f"faults {case}")
    try:
        with Unexpected():
            driver.start(fs)
            for op in ops:
                driver.do(op)
            driver.judge(driver.disk.kill_image(), "kill", rng)
            driver.judge(driver.disk.crash_image(rng, "nothing"), "crash", rng)
            driver.judge(driver.disk.crash_image(rng), "crash", rng)
            fs.clear()
            driver.must_work()
    except Exception as error:
        raise Violation.of(f"{case.workload}, {case.fault}", error) from error
    finally:
        driver.end()
