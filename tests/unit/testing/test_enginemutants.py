"""The hunt for seeded bugs in the engine: what it takes for caught, and what not (13 T5)."""

from __future__ import annotations

import re
from typing import NamedTuple

from topics.engine.core import Core
from topics.testing import commands, enginemutants, mutants
from topics.testing.enginemutants import EngineMutant, Ops, hunt
from topics.testing.subject import Violation

SHORT = Ops(0, ("append_fsync",))


class Broken(NamedTuple):
    """A search that finds something in a sound engine too."""

    def run(self) -> None:
        raise Violation("always")


def test_a_mutant_that_does_nothing_is_missed() -> None:
    same = EngineMutant("engine: nothing is wrong", Core, "touch", lambda right: right, (SHORT,))
    assert hunt(same, range(2)) is None


def test_a_mutant_is_caught_by_the_search_it_names() -> None:
    bug = next(one for one in enginemutants.MUTANTS if "a Delete is replayed without its bound" in one.name)
    found = hunt(bug, ())
    assert found is not None
    assert "delete_all" in found


def test_the_bug_is_in_place_only_while_it_is_hunted() -> None:
    before = Core.stage
    hunt(next(one for one in enginemutants.MUTANTS if one.attribute == "stage"), ())
    assert Core.stage is before


def test_what_a_sound_engine_fails_is_no_proof() -> None:
    broken: tuple[enginemutants.Search, ...] = (Broken(),)  # type: ignore[assignment]
    assert hunt(EngineMutant("engine: nothing is wrong", Core, "touch", lambda right: right, broken), ()) is None


def test_every_mutant_has_a_name_of_its_own_a_rule_and_a_search() -> None:
    names = [one.name for one in (*mutants.MUTANTS, *enginemutants.MUTANTS)]
    assert len(set(names)) == len(names) == len(commands._mutants())
    assert len(enginemutants.MUTANTS) >= 22
    for one in enginemutants.MUTANTS:
        assert one.searches, one.name
        assert re.search(r"\[[A-Z]+-\d+\]$", one.name), one.name
