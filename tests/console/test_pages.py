"""Every page: it shows what is there, nothing complains, it fits 380 px, and machines find no serious fault in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.kit import Running, running
from tests.console.kit import AXE, NARROW, WIDE, Console, lacking, ok, put, visiting, write
from topics.server import openapi

PAGES = {
    "overview": ("#/", "Overview"),
    "topics": ("#/topics", "Topics"),
    "topic": ("#/topics/orders", "orders"),
    "record": ("#/topics/orders?from=2", "orders"),
    "publish": ("#/topics/orders?view=publish", "orders"),
    "segments": ("#/topics/orders?view=segments", "orders"),
    "delete": ("#/topics/orders?view=delete", "orders"),
    "config": ("#/topics/jobs?view=config", "jobs"),
    "system": ("#/topics/$deletes", "$deletes"),
    "queues": ("#/queues", "Queues"),
    "queue": ("#/queues/jobs", "jobs"),
    "routers": ("#/routers", "Routers"),
    "pipelines": ("#/pipelines", "Pipelines"),
    "settings": ("#/settings", "Settings"),
}
EMPTY = {
    "overview": ("#/", "Nothing is stored yet"),
    "topics": ("#/topics", "There is no topic yet"),
    "queues": ("#/queues", "There is no queue yet"),
    "routers": ("#/routers", "No topic is copied into another"),
    "pipelines": ("#/pipelines", "No job has run yet"),
}
RUN = {"job": "archive", "run": "r1", "topics": ["orders"], "started_ms": 1000, "ended_ms": 61_000, "ok": True}


@pytest.fixture(scope="module", autouse=True)
def stored(server: Running) -> None:
    """Something of everything."""
    with server.client() as client:
        put(client, "orders", durability="fsync", cap_records=40)
        write(client, "orders", *({"order": n} for n in range(60)), tag="eu:1", node="shop")
        ok(client.post("/v0/topics/orders/delete", json={"before_seq": 25}))
        put(client, "jobs", type="queue", max_deliveries=1, dead_letter="jobs.dead", lease_ms=60_000)
        write(client, "jobs", *range(4))
        ok(client.post("/v0/topics/jobs/claim", json={"node": "w", "max": 1}))
        ok(client.post("/v0/topics/jobs/nack", json={"node": "w", "seqs": [1]}))
        ok(client.post("/v0/topics/jobs/claim", json={"node": "w", "max": 2}))
        ok(client.put("/v0/routers/copy", json={"source": "orders", "dest": "audit"}))
        write(client, "orders", {"order": 61})
        write(client, "$pipelines", {**RUN, "rows": 10, "bytes": 2048, "out": "/lake"}, tag="archive")
        ok(client.post("/v0/checkpoint"))


@pytest.fixture(scope="module", params=[("light", WIDE), ("dark", NARROW)], ids=["wide", "narrow"])
def visitor(request: pytest.FixtureRequest, browser: Browser, server: Running) -> Iterator[Console]:
    scheme, size = request.param
    with visiting(browser, server.url, size, color_scheme=scheme) as one:
        yield one


def settled(page: Page) -> None:
    """Nothing is being asked for the first time any more."""
    expect(page.get_by_text("Asking the server…")).to_have_count(0)
    expect(page.get_by_text("Reading…")).to_have_count(0)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_itself_without_complaint_and_fits(visitor: Console, name: str) -> None:
    """[U-30, U-32] Wide and at 380 px, light and dark; it asks the public API only, and axe finds nothing serious."""
    address, heading = PAGES[name]
    page = visitor.at(address)
    visitor.heading(heading)
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert [url for url in visitor.asked if not is_public(url)] == []
    visitor.check()
    assert violations(page) == []


def test_the_palette_is_accessible_too(visitor: Console) -> None:
    page = visitor.at()
    visitor.heading("Overview")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    assert violations(page) == []


PUBLIC = {path.partition("{")[0] for _, path in openapi.OPERATIONS}


def is_public(url: str) -> bool:
    """Whether a path is one of the documented API's, or a file."""
    path = url.partition("?")[0]
    return any(path == one or (one.endswith("/") and one != "/" and path.startswith(one)) for one in PUBLIC)


def violations(page: Page) -> list[Any]:
    """What axe calls serious or critical. Where it is absent the test is skipped from here on, and says why."""
    if not AXE.exists():
        pytest.skip(f"the rest was checked, but {lacking('axe-core')}")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        {"rule": one["id"], "where": [node["html"][:160] for node in one["nodes"]][:3]}
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_axe_would_find_a_missing_label(console: Console) -> None:
    page = console.at()
    console.heading("Overview")
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert [one["rule"] for one in violations(page)] == ["label"]


def test_an_empty_page_says_what_to_do(browser: Browser) -> None:
    """With a command that can be copied."""
    with running() as fresh, visiting(browser, fresh.url) as visitor:
        for address, title in EMPTY.values():
            page = visitor.at(address)
            expect(page.get_by_text(title)).to_be_visible()
            command = page.locator(".curl pre").first.inner_text()
            assert command.startswith((f"curl -s '{fresh.url}/v0/", f"curl -s -X PUT '{fresh.url}/v0/")), title
            visitor.check()


def test_the_overview_shows_what_goes_through(console: Console, client: httpx.Client) -> None:
    page = console.at()
    expect(page.locator(".tile", has_text="Topics")).to_contain_text("4")
    expect(page.get_by_role("meter", name="pressure")).to_be_visible()
    write(client, "orders.side", *range(50))
    expect(page.locator(".tile", has_text="Written").locator(".value")).not_to_have_text("0 /s")
    expect(page.get_by_role("cell", name="fsync")).to_be_visible()
    expect(page.get_by_role("row", name="wal ok")).to_be_visible()
    expect(page.get_by_text("authentication is OFF")).to_have_count(0)
    expect(page.get_by_text("cap 2")).to_be_visible()


def test_topics_can_be_searched_and_sorted(console: Console) -> None:
    page = console.at("#/topics")
    names = page.locator(".cols.line a")
    expect(names.first).to_have_text("audit")
    page.get_by_role("button", name="Head").click()
    expect(names.first).to_have_text("orders")
    assert "sort=head" in page.url, "it has an address"
    page.get_by_label("search topics").fill("job")
    expect(names).to_have_text(["jobs", "jobs.dead"])
    page.get_by_label("search topics").fill("nothing")
    expect(page.get_by_text("No topic has this in its name")).to_be_visible()


def test_the_ruler_tells_evicted_deleted_and_live_seqs(console: Console) -> None:
    """Floors, as the plan of the topic has them [A-8]."""
    page = console.at("#/topics/orders")
    said = page.get_by_role("img", name="seqs:")
    told = "seqs: live, in segments: 25 – 61; evicted by a cap: 1 – 20; deleted: 21 – 24"
    expect(said).to_have_attribute("aria-label", told)
