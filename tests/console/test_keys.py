"""With keys configured: it asks for one, keeps it for the tab, and shows only what it may do [U-30]."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.kit import Running, running
from tests.console.kit import Console, ok, put, visiting, write

KEYS = (
    "full-9f2c,look-77ab:read,work-01dd:read+write,admin-55:admin,plant-33:read+write+delete:plant.,peek-11:read:plant."
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        with one.client(key="full-9f2c") as client:
            put(client, "orders")
            put(client, "plant.a")
            put(client, "vault", type="queue")
            ok(client.put("/v0/routers/vault-copy", json={"source": "orders", "dest": "vault.copy"}))
            write(client, "orders", 1, 2, 3)
            write(client, "plant.a", 1)
        yield one


@pytest.fixture
def console(browser: Browser, server: Running) -> Iterator[Console]:
    with visiting(browser, server.url) as one:
        one.allowed = ("401", "403")
        yield one


def enter(console: Console, key: str, address: str = "") -> Page:
    page = console.at(address)
    expect(page.get_by_text("This server needs a key")).to_be_visible()
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Enter").click()
    return page


def reason(page: Page, name: str) -> str:
    """Why a button cannot be pressed."""
    button = page.get_by_role("button", name=name)
    expect(button).to_have_attribute("aria-disabled", "true")
    return button.get_attribute("title") or ""


def test_a_wrong_key_is_told_and_a_right_one_enters(console: Console) -> None:
    page = enter(console, "nobody")
    expect(page.get_by_role("alert")).to_contain_text("unauthorized")
    page.get_by_label("Key").fill("full-9f2c")
    page.get_by_label("Key").press("Enter")
    console.heading("Overview")
    assert page.evaluate("[...Array(localStorage.length).keys()].length") == 0
    assert page.evaluate("sessionStorage.getItem('topics.key')") == "full-9f2c"
    assert "full-9f2c" not in "".join(console.asked), "the key is in no address"
    assert page.context.cookies() == []
    page.reload()
    console.heading("Overview")


def test_another_tab_is_asked_again(console: Console) -> None:
    enter(console, "full-9f2c")
    console.heading("Overview")
    other = console.page.context.new_page()
    other.goto(f"{console.url}/console/")
    expect(other.get_by_text("This server needs a key")).to_be_visible()


def test_a_key_that_may_only_look_sees_why_it_cannot_do_more(console: Console) -> None:
    page = enter(console, "look-77ab", "#/topics")
    console.heading("Topics")
    assert reason(page, "New topic") == "This key lacks the scope admin."
    page.get_by_role("link", name="orders").click()
    expect(page.locator(".rec")).to_have_count(3)
    assert reason(page, "Delete topic") == "This key lacks the scope delete."
    page.get_by_role("link", name="Publish").click()
    assert reason(page, "Publish") == "This key lacks the scope write."
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_text("Settings are shown to administrators only.")).to_be_visible()
    page.get_by_role("button", name="your key").click()
    expect(page.get_by_role("row", name="read see topics")).to_contain_text("yes")
    expect(page.get_by_role("row", name="admin create")).to_contain_text("no")


def test_a_worker_s_key_may_publish_and_not_delete(console: Console) -> None:
    page = enter(console, "work-01dd", "#/topics/orders?view=publish")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq")).to_be_visible()
    page.get_by_role("link", name="Delete records").click()
    page.get_by_label("Tag").fill("x")
    assert reason(page, "Preview (This") == "This key lacks the scope delete."


def test_a_key_that_may_not_read_is_told_where_it_looks(console: Console) -> None:
    page = enter(console, "admin-55")
    expect(page.get_by_role("alert")).to_contain_text("forbidden")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("row", name="TOPICS_MAX_TOPICS")).to_be_visible()
    assert "full-9f2c" not in page.content()


def test_a_key_for_some_names_sees_and_does_only_those(console: Console) -> None:
    page = enter(console, "plant-33", "#/topics")
    expect(page.locator(".cols.line a")).to_have_text(["plant.a"])
    expect(page.get_by_role("button", name="delete plant.a")).not_to_have_attribute("aria-disabled", "true")
    page.goto(f"{console.url}/console/#/topics/orders")
    expect(page.get_by_role("alert").first).to_contain_text("forbidden")


def test_a_key_for_some_names_may_write_those(console: Console) -> None:
    page = enter(console, "plant-33", "#/topics/plant.a?view=publish")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq")).to_be_visible()


def test_a_key_that_may_only_look_at_some_names_finds_every_page_in_order(console: Console) -> None:
    """What it may not see is not there, or is told; nothing breaks, and nothing is offered that it may not do."""
    page = enter(console, "peek-11", "#/topics/plant.a")
    expect(page.locator(".rec").first).to_be_visible()
    assert reason(page, "Delete topic") == "This key lacks the scope delete."
    for name in ("Overview", "Topics", "Queues", "Routers", "Pipelines", "Settings"):
        page.get_by_role("link", name=name, exact=True).click()
        console.heading(name)
        expect(page.get_by_text("Asking the server…")).to_have_count(0)
        expect(page.locator("main")).not_to_contain_text("vault")
    page.evaluate("location.hash = '#/queues/vault'")
    expect(page.get_by_role("alert").first).to_contain_text("forbidden")


def test_a_key_no_header_can_carry_is_a_wrong_one(console: Console) -> None:
    page = enter(console, "ключ")
    expect(page.get_by_role("alert")).to_contain_text("unauthorized")
    page.get_by_label("Key").fill("full-9f2c")
    page.get_by_role("button", name="Enter").click()
    console.heading("Overview")


def test_the_key_can_be_forgotten(console: Console) -> None:
    page = enter(console, "full-9f2c")
    console.heading("Overview")
    page.get_by_role("button", name="your key").click()
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_text("This server needs a key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_is_taken_away_is_asked_for_again(browser: Browser) -> None:
    """[KEY-4] The stream ends, and the next request says why."""
    from topics.server import keys

    with running(env={"TOPICS_API_KEYS": "one"}) as server, visiting(browser, server.url) as console:
        console.allowed = ("401",)
        enter(console, "one")
        console.heading("Overview")
        server.on_loop(lambda: server.server.use_keys(keys.KeyRing(keys.parse("two"))))
        expect(console.page.get_by_text("This server needs a key")).to_be_visible()
        expect(console.page.get_by_role("alert")).to_contain_text("does not know this key")
