"""The sweep over a cold tier that fails: what it reaches, and that it notices work that is held up (13 T4, T5)."""

from __future__ import annotations

import pytest

from topics.testing import enginemutants, tierfaults
from topics.testing.enginemutants import Tier
from topics.testing.simbucket import KINDS


def test_the_workloads_meet_every_fault_at_every_sort_of_request() -> None:
    cases = [case for workload in tierfaults.WORKLOADS for case in tierfaults.cases(workload)]
    found = [case.fault.kind for case in cases if case.fault is not None]
    assert set(found) == {kind for kinds in KINDS.values() for kind in kinds}
    assert len(found) >= 2_500
    assert found.count("denied") == found.count("locked") >= 30


@pytest.mark.parametrize("what", ["the relocator stops for good", "upload was not confirmed"])
def test_what_no_restart_has_healed_is_noticed(what: str) -> None:
    """[S-311, S-312]"""
    bug = next(one for one in enginemutants.MUTANTS if what in one.name)
    assert all(isinstance(search, Tier) for search in bug.searches)
    assert enginemutants.hunt(bug, ()) is not None


def test_a_life_repeats_itself() -> None:
    """[R-12] Its number decides everything, whatever ran before it."""
    assert tierfaults.workload_of("life 7") == tierfaults.workload_of("life 7") != tierfaults.workload_of("life 8")
    for _ in range(2):
        tierfaults.run_case(tierfaults.Case("life 43", None))
