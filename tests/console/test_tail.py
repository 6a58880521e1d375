"""The live tail: at once, in order, nothing twice and nothing left out, whatever happens (03, U-32, U-33)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.api.kit import Running
from tests.console.kit import Console, asking, ok, put, rows, see_seq, visiting, write
from topics.testing.ports import free_port
from topics.testing.serverproc import ServerProcess

HIDE = """(is) => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => is});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
SEEN = """() => {
  window.seen = [];
  const known = new Set();
  const look = () => {
    for (const one of document.querySelectorAll(".rec")) {
      const text = one.classList.contains("gap") ? one.textContent : one.querySelector(".seq").textContent;
      if (!known.has(one)) { known.add(one); window.seen.push(text); }
    }
  };
  const all = {childList: true, subtree: true, characterData: true};
  new MutationObserver(look).observe(document.querySelector("main"), all);
  look();
}"""

PUBLISH = """async (text) => {
  const began = performance.now();
  const there = new Promise((resolve) => new MutationObserver((_, all) => {
    if ([...document.querySelectorAll(".rec .data")].some((one) => one.textContent.includes(text))) {
      all.disconnect(); resolve(performance.now() - began);
    }
  }).observe(document.querySelector("main"), {childList: true, subtree: true, characterData: true}));
  await fetch("/v0/topics/quick", {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({records: [{data: text}]})});
  return there;
}"""


def is_live(page: Page) -> None:
    expect(page.get_by_test_id("tail-state")).to_contain_text("live")


def test_what_is_published_in_one_tab_is_in_the_tail_of_another_within_a_second(
    browser: Browser, server: Running
) -> None:
    """Measured in the page, from the request until the row is there."""
    with server.client() as client, visiting(browser, server.url) as one:
        put(client, "quick")
        page = one.at("#/topics/quick")
        is_live(page)
        write(client, "quick", {"warm": "up"})
        see_seq(page, 1)
        # The first of many: what a busy machine adds is not the console's.
        assert any(page.evaluate(PUBLISH, f"now-{n}") < 1000 for n in range(50))


def test_publishing_by_the_form_shows_the_seq_and_the_record(console: Console, client: httpx.Client) -> None:
    put(client, "forms")
    page = console.at("#/topics/forms?view=publish")
    page.get_by_label("Data").fill('{"id": 12345678901234567890, "text": "ä <b>"}')
    page.get_by_label("Tag").fill("a:1")
    page.get_by_label("Meta").fill('{"trace": "x"}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status").filter(has_text="Written as seq 1")).to_be_visible()
    raw = client.post("/v0/topics/forms/diff", json={"include_tags": True}).text
    assert '"id":12345678901234567890' in raw, "digit for digit"
    page.get_by_role("link", name="See it").click()
    see_seq(page, 1)
    page.locator(".rec").first.click()
    detail = page.get_by_label("record 1")
    expect(detail.get_by_label("data", exact=True)).to_contain_text('"id": 12345678901234567890')
    expect(detail.get_by_label("meta")).to_contain_text('"trace": "x"')
    expect(detail).to_contain_text("a:1")


def test_data_that_is_no_json_cannot_be_published(console: Console, client: httpx.Client) -> None:
    put(client, "strict")
    page = console.at("#/topics/strict?view=publish")
    page.get_by_label("Data").fill("{oops")
    expect(page.get_by_text("Not JSON")).to_be_visible()
    button = page.get_by_role("button", name="Publish")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    assert ok(client.get("/v0/topics/strict"))["head_seq"] == 0


def test_a_pause_leaves_nothing_out(console: Console, client: httpx.Client) -> None:
    put(client, "paused")
    write(client, "paused", *range(5))
    page = console.at("#/topics/paused")
    see_seq(page, 5)
    is_live(page)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_test_id("tail-state")).to_contain_text("paused")
    write(client, "paused", *range(5))
    assert rows(page)[-1] == 5
    page.get_by_role("button", name="Resume").click()
    see_seq(page, 10)
    assert rows(page) == list(range(1, 11))


def test_a_hidden_tab_asks_for_nothing_and_goes_on_where_it_was(console: Console, client: httpx.Client) -> None:
    put(client, "hidden")
    write(client, "hidden", *range(3))
    console.page.clock.install()
    page = console.at("#/topics/hidden")
    see_seq(page, 3)
    is_live(page)
    page.evaluate(HIDE, True)
    page.wait_for_function("document.hidden")
    expect(page.get_by_test_id("tail-state")).to_contain_text("connecting")
    write(client, "hidden", *range(3))
    console.asked.clear()
    page.clock.fast_forward(60_000)
    assert console.asked == set()
    page.evaluate(HIDE, False)
    see_seq(page, 6)
    assert rows(page) == [1, 2, 3, 4, 5, 6]


def test_what_was_evicted_while_nobody_looked_is_a_gap_with_its_reason(console: Console, client: httpx.Client) -> None:
    """[FRM-2, X-1] A stream that begins does not say why; the console asks."""
    put(client, "shrunk", cap_records=5)
    write(client, "shrunk", *range(3))
    page = console.at("#/topics/shrunk")
    see_seq(page, 3)
    is_live(page)
    page.evaluate(HIDE, True)
    expect(page.get_by_test_id("tail-state")).to_contain_text("connecting")
    write(client, "shrunk", *range(20))
    page.evaluate(HIDE, False)
    see_seq(page, 23)
    assert rows(page) == [1, 2, 3, 19, 20, 21, 22, 23]
    expect(page.locator(".rec.gap")).to_have_text("gap: 4 – 18 evicted by a cap")


def test_a_filter_shows_what_fits_and_has_an_address(console: Console, client: httpx.Client) -> None:
    put(client, "tagged")
    for n in range(6):
        write(client, "tagged", n, tag=("eu:" if n % 2 else "us:") + str(n), node=f"n{n}")
    page = console.at("#/topics/tagged")
    see_seq(page, 6)
    page.get_by_label("filter by tag").fill("eu:*")
    expect(page.locator(".rec")).to_have_count(3)
    assert rows(page) == [2, 4, 6]
    write(client, "tagged", 7, tag="us:7")
    write(client, "tagged", 8, tag="eu:8")
    see_seq(page, 8)
    assert rows(page) == [2, 4, 6, 8]
    page.get_by_label("filter by node").fill("n3")
    expect(page.locator(".rec")).to_have_count(1)
    other = console.at(page.url.partition("/console/")[2])
    expect(other.locator(".rec")).to_have_count(1)
    assert rows(other) == [4]


def test_gaps_stand_in_line(console: Console, client: httpx.Client) -> None:
    """[X-1] Where records are missing, with the reason; deleted ones are silent."""
    put(client, "gappy", cap_records=5)
    write(client, "gappy", *range(20))
    page = console.at("#/topics/gappy?from=3")
    see_seq(page, 20)
    expect(page.locator(".rec.gap")).to_have_text("gap: 3 – 15 evicted by a cap")
    assert rows(page) == [16, 17, 18, 19, 20]
    ok(client.post("/v0/topics/gappy/delete", json={"seqs": [18]}))
    again = console.at("#/topics/gappy?from=17")
    see_seq(again, 20)
    assert rows(again) == [17, 19, 20]
    expect(again.locator(".rec.gap")).to_have_count(0)


def test_one_can_jump_to_a_seq_and_to_a_time(console: Console, client: httpx.Client) -> None:
    put(client, "jumped")
    write(client, "jumped", *range(300))
    page = console.at("#/topics/jumped")
    see_seq(page, 300)
    page.get_by_role("button", name="Jump to…").click()
    page.get_by_label("Seq", exact=True).fill("7")
    page.get_by_role("button", name="Go", exact=True).click()
    see_seq(page, 7)
    assert rows(page)[0] == 7
    assert page.url.endswith("#/topics/jumped?from=7")
    page.get_by_role("button", name="To the end").click()
    see_seq(page, 300)
    page.get_by_role("button", name="Jump to…").click()
    page.get_by_label("or a time").fill("2001-01-01T00:00")
    page.get_by_role("button", name="Go", exact=True).click()
    see_seq(page, 1)
    assert rows(page)[0] == 1


def test_much_history_is_paged_and_then_live(console: Console, client: httpx.Client) -> None:
    """A deep link into a long topic does not stream all of it."""
    put(client, "long")
    for _ in range(3):
        write(client, "long", *range(1000))
    page = console.at("#/topics/long?from=1")
    see_seq(page, 1)
    expect(page.get_by_test_id("tail-state")).to_contain_text("scroll for more")
    expect(page.get_by_test_id("tail-state")).to_contain_text("200 shown")
    page.get_by_role("listbox").evaluate("(one) => { one.scrollTop = one.scrollHeight }")
    expect(page.get_by_test_id("tail-state")).to_contain_text("400 shown")
    page.get_by_role("button", name="To the end").click()
    see_seq(page, 3000)
    is_live(page)


def test_rows_are_bounded_and_stay_in_order(console: Console, client: httpx.Client) -> None:
    """[U-33] More than are kept: the oldest scroll out, and only those in sight exist."""
    put(client, "many", durability="ephemeral")
    page = console.at("#/topics/many")
    expect(page.get_by_text("No record yet")).to_be_visible()
    for _ in range(7):
        write(client, "many", *range(1000))
    see_seq(page, 7000)
    expect(page.get_by_test_id("tail-state")).to_contain_text("5,000 shown, 2,000 scrolled out")
    assert page.locator(".rec").count() < 100
    found = rows(page)
    assert found == list(range(found[0], 7001))


def test_a_deleted_topic_says_so(console: Console, client: httpx.Client) -> None:
    console.allowed = ("404",)
    put(client, "doomed")
    write(client, "doomed", 1)
    page = console.at("#/topics/doomed")
    see_seq(page, 1)
    is_live(page)
    ok(client.delete("/v0/topics/doomed"))
    expect(page.get_by_test_id("tail-state")).to_contain_text("the topic is gone")


def test_after_a_kill_and_a_restart_no_record_is_missing_or_repeated(browser: Browser, tmp_path: Path) -> None:
    """[RSM-5, WCH-1] The session is forgotten with the process; the console's cursors are not."""
    env = {"TOPICS_PORT": str(free_port())}
    process = ServerProcess(tmp_path, env)
    try:
        process.wait_ready()
        url = f"http://{process.address[0]}:{process.address[1]}"
        with asking(url) as client, visiting(browser, url) as console:
            console.allowed = ("net::ERR_", "503", "404")
            put(client, "t", durability="fsync")
            write(client, "t", *range(10))
            page = console.at("#/topics/t")
            see_seq(page, 10)
            page.evaluate(SEEN)
            process.kill()
            expect(page.get_by_test_id("tail-state")).to_contain_text("reconnecting")
            expect(page.get_by_text("no answer").first).to_be_visible()
            process = ServerProcess(tmp_path, env)
            process.wait_ready()
            write(client, "t", *range(5))
            see_seq(page, 15)
            is_live(page)
            write(client, "t", *range(5))
            see_seq(page, 20)
            seen: list[Any] = page.evaluate("window.seen")
            assert seen == [str(seq) for seq in range(1, 21)]
            expect(page.get_by_text("connected").first).to_be_visible()
    finally:
        process.abandon()


def test_an_odd_address_does_no_harm(console: Console, client: httpx.Client) -> None:
    put(client, "odd")
    write(client, "odd", 1)
    for query in ("from=9", "from=x", "ts=-1", "tag=%", "view=nothing"):
        console.at(f"#/topics/odd?{query}")
        console.heading("odd")
        expect(console.page.locator(".facts").first).to_be_visible()
        console.check()
