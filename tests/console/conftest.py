"""A browser and a server per module, a visitor per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.api.kit import Running, running
from tests.console.kit import FOUND, WAIT_MS, Console, visiting

IN_A_BROWSER = ("browser", "console")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FOUND is None:
        skip = pytest.mark.skip(reason="no browser is installed; apt install chromium")
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents and set(IN_A_BROWSER) & set(getattr(item, "fixturenames", ())):
                item.add_marker(skip)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: its driver keeps an event loop running on this thread, where other tests run theirs."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"], timeout=2 * WAIT_MS)
        yield one
        one.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as one:
        yield one


@pytest.fixture
def console(browser: Browser, server: Running) -> Iterator[Console]:
    with visiting(browser, server.url) as one:
        yield one
