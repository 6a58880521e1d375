"""One server per module, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.api.kit import Running, running
from topics.testing import ManualClock


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Running]:
    with running(clock=clock) as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return f"of-{crc32(request.node.nodeid.encode()):08x}"
