"""Without a mouse: every page and the main actions, with the focus always somewhere one can see."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.console.kit import Console, ok, put, see_seq, write


def tab_to(page: Page, role: str, name: str, most: int = 60) -> None:
    """Press Tab until something has the focus."""
    goal = page.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
    expect(goal.first).to_be_visible()
    for _ in range(most):
        page.keyboard.press("Tab")
        if goal.first.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError(f"Tab never came to {role} {name!r}")


def test_pages_are_reached_by_tab_and_the_content_by_the_skip_link(console: Console) -> None:
    page = console.at()
    console.heading("Overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page = console.at()
    console.heading("Overview")
    for name in ("Topics", "Queues", "Routers", "Pipelines", "Settings"):
        tab_to(page, "link", name)
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.keyboard.press("Enter")
        console.heading(name)


def test_the_palette_goes_to_topics_and_back_to_where_the_focus_was(console: Console, client: httpx.Client) -> None:
    put(client, "needle.one")
    put(client, "hay.needle")
    page = console.at()
    console.heading("Overview")
    tab_to(page, "link", "Routers")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("link", name="Routers")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("needle")
    expect(page.get_by_role("option")).to_have_text(["needle.onetopic", "hay.needletopic"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    console.heading("hay.needle")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("publish")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Data")).to_be_visible()


def test_the_palette_does_things_too(console: Console, client: httpx.Client) -> None:
    page = console.at()
    console.heading("Overview")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("new topic")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("from.keys")
    page.keyboard.press("Enter")
    console.heading("from.keys")
    assert ok(client.get("/v0/topics/from.keys"))["count"] == 0


def test_a_record_is_published_and_read_by_keys_alone(console: Console, client: httpx.Client) -> None:
    put(client, "typed")
    write(client, "typed", {"n": 1}, {"n": 2})
    page = console.at("#/topics/typed?view=publish")
    tab_to(page, "textbox", "Data")
    page.keyboard.press("Control+a")
    page.keyboard.type('{"typed": true}')
    tab_to(page, "button", "Publish")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Written as seq 3")).to_be_visible()
    assert ok(client.get("/v0/topics/typed"))["head_seq"] == 3
    tab_to(page, "link", "See it")
    page.keyboard.press("Enter")
    see_seq(page, 3)
    tab_to(page, "listbox", "records")
    page.keyboard.press("End")
    expect(page.get_by_label("record 3", exact=True)).to_contain_text('"typed": true')
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_contain_text("3")
    page.keyboard.press("Escape")
    expect(page.locator("aside.detail")).to_have_count(0)


def test_a_dialog_keeps_the_focus_until_it_is_closed(console: Console) -> None:
    page = console.at("#/topics")
    tab_to(page, "button", "New topic")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name")).to_be_focused()
    for _ in range(12):
        page.keyboard.press("Tab")
        inside = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="New topic")).to_be_focused()


def test_who_wants_no_motion_gets_none(console: Console) -> None:
    console.page.emulate_media(reduced_motion="reduce")
    page = console.at()
    console.heading("Overview")
    moves = "(one) => parseFloat(getComputedStyle(one).transitionDuration) > 0"
    assert page.evaluate(f"[...document.querySelectorAll('*')].filter({moves}).length") == 0
