"""The oracle for routers: what a creation may leave behind whose outcome is open (05 §3)."""

from __future__ import annotations

import pytest

from topics.model import TopicConfig
from topics.testing.enginemodel import Rec, Rules, View
from topics.testing.routermodel import SOURCE, Flow, Routes
from topics.testing.subject import Violation

CRASH = Rules("crash", now=0, latest=0, reserve_max=0)


def seen(*data: bytes) -> View:
    records = tuple(Rec(seq, 0, None, None, text) for seq, text in enumerate(data, 1))
    return View(TopicConfig(), len(data), 0, (), records)


def routes(*, attempts: list[int]) -> Routes:
    """Two records in the source, one direct write acknowledged, and a creation of which nobody heard."""
    routes = Routes()
    routes.wrote(1, [Rec(0, 0, None, None, text) for text in (b"one", b"two")])
    flow = routes.flows["to.mixed"] = Flow("fsync")
    flow.attempts = attempts
    flow.tried, flow.direct = {b"mine"}, {b"mine": 1}
    return routes


@pytest.mark.parametrize("attempts", [[], [0]])
def test_direct_writes_into_a_topic_without_its_router_are_no_violation(attempts: list[int]) -> None:
    views = {SOURCE: seen(b"one", b"two"), "to.mixed": seen(b"mine")}
    after = routes(attempts=attempts).judge(views, CRASH).flows["to.mixed"]
    assert (after.began, after.attempts, after.direct) == (None, attempts, {b"mine": 1})


@pytest.mark.parametrize("attempts", [[], [1]])
def test_a_copy_that_no_attempt_explains_is_a_violation(attempts: list[int]) -> None:
    views = {SOURCE: seen(b"one", b"two"), "to.mixed": seen(b"mine", b"one")}
    with pytest.raises(Violation, match="copy of anything"):
        routes(attempts=attempts).judge(views, CRASH)


@pytest.mark.parametrize("attempts", [[], [2]])
def test_a_direct_write_that_is_gone_is_a_violation_with_or_without_a_router(attempts: list[int]) -> None:
    given = routes(attempts=attempts)
    given.flows["to.mixed"].tried.add(b"late")
    with pytest.raises(Violation, match="is gone"):
        given.judge({SOURCE: seen(b"one", b"two"), "to.mixed": seen(b"late")}, CRASH)


def test_a_router_that_is_there_began_at_one_of_the_attempts() -> None:
    views = {SOURCE: seen(b"one", b"two"), "to.mixed": seen(b"mine", b"two")}
    assert routes(attempts=[0, 1]).found("to.mixed", views) == 1
    with pytest.raises(Violation, match="nobody asked"):
        routes(attempts=[]).found("to.mixed", views)
