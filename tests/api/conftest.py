"""One server per module; a client for each version of HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.expect import like
from tests.api.kit import Running, running
from topics.testing import ManualClock


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[httpx.Client]:
    with server.client(http2=request.param == "http2") as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    name: str = request.node.name
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[-200:].lstrip("._-")


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def timed_server(clock: ManualClock) -> Iterator[Running]:
    with running(clock=clock) as one:
        yield one


@pytest.fixture
def timed(client: httpx.Client, timed_server: Running) -> Iterator[httpx.Client]:
    """A client of a server whose clock is moved by hand."""
    with like(client, timed_server) as one:
        yield one
