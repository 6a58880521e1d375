"""A real browser on a real server's console. What the page complains about fails the test."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.api.kit import PLAIN, WAIT_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
WAIT_MS = 60_000
WIDE = (1280, 860)
NARROW = (380, 780)
HERE = Path(__file__).parent
TOOLS = HERE / "node_modules"
AXE = TOOLS / "axe-core/axe.min.js"
MISSING = HERE / ".missing"
"""Why tools/env could not install what checks the console."""

expect.set_options(timeout=WAIT_MS)


def lacking(tool: str) -> str:
    """Why a tool is not there, for a test that has to be skipped."""
    why = MISSING.read_text(encoding="utf-8").strip() if MISSING.exists() else "tools/env dev installs it where npm is"
    return f"{tool} is not installed: {why}"


class Console:
    """One tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.allowed: tuple[str, ...] = ()
        """Parts of complaints that belong to the test."""
        self.asked: set[str] = set()
        """Paths of all requests."""
        page.on("request", lambda request: self.asked.add(request.url.removeprefix(url)))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(said.text)

    def at(self, address: str = "") -> Page:
        """Go to an address of the console, such as `#/topics`, as a fresh visitor would."""
        self.page.goto("about:blank")
        self.asked.clear()
        self.page.goto(f"{self.url}/console/{address}")
        expect(self.page.locator("main")).to_be_visible()
        return self.page

    def heading(self, text: str) -> None:
        """Wait for a page."""
        expect(self.page.get_by_role("heading", level=1, name=text, exact=True)).to_be_visible()

    def check(self) -> None:
        """Nothing went wrong that the test did not cause."""
        wrong = [one for one in self.complaints if not any(part in one for part in self.allowed)]
        assert not wrong, wrong


@contextmanager
def visiting(browser: Browser, url: str, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[Console]:
    """A visitor with a session of its own."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    context.set_default_timeout(WAIT_MS)
    console = Console(context.new_page(), url)
    try:
        yield console
        console.check()
    finally:
        context.close()


def asking(url: str) -> httpx.Client:
    """A client of a server that is a process of its own."""
    return httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False, verify=PLAIN)


def ok(answer: httpx.Response) -> dict[str, Any]:
    """What a request that succeeded was answered."""
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


def put(client: httpx.Client, topic: str, **config: object) -> None:
    ok(client.put(f"/v0/topics/{topic}", json=config))


def write(client: httpx.Client, topic: str, *values: object, **more: object) -> list[int]:
    """Append values; their seqs."""
    records = [{"data": value, **more} for value in values]
    told = ok(client.post(f"/v0/topics/{topic}", json={"records": records}))
    seqs: list[int] = told["seqs"]
    return seqs


def rows(page: Page) -> list[int]:
    """Seqs of the records in sight, as they stand there."""
    found: list[int] = page.locator(".rec .seq").evaluate_all("(all) => all.map((one) => Number(one.textContent))")
    return found


def see_seq(page: Page, seq: int) -> None:
    """Wait until a record is in sight."""
    expect(page.locator(".rec .seq").filter(has_text=re.compile(rf"^{seq}$"))).to_be_visible()
