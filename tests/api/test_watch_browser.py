"""A real browser's `EventSource` against the server (03 §3 to §5, 02 API-22)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.api.expect import put, write
from tests.api.kit import Running, running
from tests.api.watching import until_streams, watch
from topics.server.exchange import Carrier, Exchange, Head

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
WAIT_MS = 60_000
PAGE = "<!doctype html><title>watching</title>"
WATCH = """(url) => {
  window.got = []; window.states = [];
  const source = window.source = new EventSource(url);
  for (const kind of ["record", "tombstone", "caught-up", "topic-deleted", "error"])
    source.addEventListener(kind, (event) => {
      if (event.data === undefined) window.states.push(source.readyState);
      else window.got.push({kind, id: event.lastEventId, data: JSON.parse(event.data)});
    });
}"""
SEQS = 'window.got.filter((one) => one.kind === "record").flatMap((one) => one.data.records.map((r) => r.$seq))'

pytestmark = pytest.mark.skipif(FOUND is None, reason="no browser is installed; apt install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"], timeout=2 * WAIT_MS)
        yield one
        one.close()


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as one:
        yield one


def page_at(browser: Browser, origin: str) -> Page:
    """A page of an origin, which no server has to have."""
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)

    def serve(route: Route) -> None:
        route.fulfill(body=PAGE, content_type="text/html")

    page.route(f"{origin}/page", serve)
    page.goto(f"{origin}/page")
    return page


def seqs(page: Page, count: int) -> list[int]:
    """Of the records that came, once there are so many."""
    page.wait_for_function(f"({SEQS}).length >= {count}")
    told: list[int] = page.evaluate(SEQS)
    return told


def test_an_event_source_gets_frames_and_resumes_by_itself(browser: Browser, server: Running) -> None:
    """[STR-4, STR-5, RSM-3] It reconnects after the retry delay with the last id, and no record comes twice."""
    with server.client() as client:
        write(client, "t", {"text": "zeile\nzwei ☃"}, 2)
        wid = watch(client, "t")["wid"]
        page = page_at(browser, server.url)
        page.evaluate(WATCH, f"/v0/watch/{wid}")
        assert seqs(page, 2) == [1, 2]
        write(client, "t", 3)
        assert seqs(page, 3) == [1, 2, 3]
        first: dict[str, Any] = page.evaluate("window.got[0]")
        assert first["data"]["records"][0]["data"] == {"text": "zeile\nzwei ☃"}
        assert page.evaluate("window.got[1].kind") == "caught-up"
        server.on_loop(lambda: [one.abort() for one in list(server.server.connections.open)])
        write(client, "t", 4, 5)
        assert seqs(page, 5) == [1, 2, 3, 4, 5]
        assert page.evaluate("window.states").count(0) >= 1, "it noticed, and tried again"
        page.evaluate("window.source.close()")
        until_streams(server, 0)
        page.close()


def test_an_event_source_hears_of_a_deleted_topic(browser: Browser, server: Running) -> None:
    """[FRM-5]"""
    with server.client() as client:
        put(client, "t")
        put(client, "u")
        wid = watch(client, "t", "u")["wid"]
        page = page_at(browser, server.url)
        page.evaluate(WATCH, f"/v0/watch/{wid}")
        page.wait_for_function('window.got.filter((one) => one.kind === "caught-up").length == 2')
        client.delete("/v0/topics/t")
        page.wait_for_function('window.got.some((one) => one.kind === "topic-deleted" && one.data.topic === "t")')
        page.close()
        until_streams(server, 0)


def test_a_foreign_page_gets_nothing(browser: Browser, server: Running) -> None:
    """[API-22] Also from another port of the same machine: the request arrives, and is refused."""
    app = server.server.app
    begin = app.begin
    seen: list[tuple[bytes | None, bool]] = []

    def watched(carrier: Carrier, head: Head) -> Exchange:
        exchange = begin(carrier, head)
        seen.append((head.headers.get(b"origin"), exchange.answered))
        return exchange

    app.begin = watched  # type: ignore[method-assign]
    with server.client() as client, running() as other:
        write(client, "t", 1)
        wid = watch(client, "t")["wid"]
        seen.clear()
        page = browser.new_page()
        # Of a real server of this machine: browsers keep other pages from local addresses by themselves.
        page.goto(f"{other.url}/healthz")
        page.evaluate(WATCH, f"{server.url}/v0/watch/{wid}")
        page.wait_for_function("window.states.length > 0")
        assert page.evaluate("window.source.readyState") == 2, "closed for good"
        assert page.evaluate("window.got") == []
        assert seen == [(other.url.encode(), True)], "refused by its head, before any handler"
        page.close()
