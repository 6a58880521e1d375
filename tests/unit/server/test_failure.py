"""What goes over the wire when something fails (02 §1.6)."""

from __future__ import annotations

from topics import errors
from topics.engine.core import unexpected
from topics.server import failure


def test_a_bug_is_told_in_the_same_words_wherever_it_is_met() -> None:
    """[ERR-6] In the engine or in front of it: nothing of it goes out."""
    bug = LookupError("secret")
    told = failure.of(bug)
    assert told == failure.of(unexpected(bug))
    assert (told.status, told.code, told.message) == (500, "internal", errors.UNEXPECTED_TOLD)
    assert told.message.startswith(errors.UNEXPECTED)
