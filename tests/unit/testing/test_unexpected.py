"""A sweep finds what the product logs and goes on from, and a bug that merely does not fit is not a caught one."""

import logging
from typing import Any

import pytest

from topics.storage.shard import Shard, Submission
from topics.testing import mutants, sweep
from topics.testing.mutants import Mutant
from topics.testing.shardsubject import ShardSubject
from topics.testing.simfs import PowerLoss
from topics.testing.subject import Violation
from topics.testing.unexpected import Unexpected

log = logging.getLogger("topics.storage.shard")


def test_a_logged_exception_is_a_violation() -> None:
    with pytest.raises(Violation, match="logged: telling: KeyError: 'gone'"), Unexpected():
        try:
            raise KeyError("gone")
        except KeyError:
            log.exception("telling")


def test_the_first_is_told_before_what_follows_from_it() -> None:
    with pytest.raises(Violation, match="first"), Unexpected():
        for text in ("first", "second"):
            try:
                raise Violation(text)
            except Violation:
                log.exception("telling")
        raise ValueError("what follows")


@pytest.mark.parametrize("end", [KeyboardInterrupt, PowerLoss])
def test_what_ends_a_sweep_is_no_finding(end: type[BaseException]) -> None:
    with pytest.raises(end), Unexpected():
        log.error("telling", exc_info=Violation("heard before"))
        raise end


def test_errors_that_are_foreseen_are_no_news() -> None:
    with Unexpected() as unexpected:
        log.error("the disk is full")
        unexpected.check()
    assert logging.getLogger("topics").level == logging.NOTSET
    assert unexpected not in logging.getLogger("topics").handlers


def test_a_mistake_where_a_submission_is_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 §3: the shard goes on behind a callback that fails; the sweep does not."""
    right = Shard._finish

    def wrong(self: Shard, submission: Submission, outcome: Any) -> None:
        right(self, submission, outcome)
        log.error("of no interest", exc_info=ZeroDivisionError("a mistake"))

    monkeypatch.setattr(Shard, "_finish", wrong)
    with pytest.raises(Violation, match="ZeroDivisionError: a mistake"):
        for seed in range(20):
            sweep.crash_run(ShardSubject(), seed, epochs=4, every_call=False)


def test_a_bug_that_does_not_fit_is_not_caught() -> None:
    """T5: a wrong function of the wrong shape would be found by any run, and proves nothing."""
    misfit = Mutant("misfit", Shard, "flush", lambda right: lambda: None, ShardSubject, known=(0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "_searches", lambda subject, seeds: {})
        assert mutants.hunt(misfit, ()) is None
