"""Whatever a client may write, in every field it controls, is text on the page and nothing else [U-31]."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.kit import Running, running
from tests.console.kit import Console, ok, put, visiting, write

EVIL = "<script>window.pwned=1</script>"
IMAGE = '"><img src=x onerror="window.pwned=1">'
VALUES = (
    EVIL,
    IMAGE,
    "javascript:window.pwned=1",
    "{{7*7}}",
    "${7*7}",
    "\u202egnp.exe",
    "a\u0000b",
    "</textarea>" + EVIL,
)
TRICKS = (
    {"__proto__": {"pwned": 1}},
    {"constructor": {"prototype": {"pwned": 1}}},
    {"type": "script", "props": {"children": "window.pwned=1"}, "key": None, "ref": None, "__k": None, "__v": 1},
    {EVIL: {IMAGE: [EVIL]}},
    [[[[EVIL]]]],
    12345678901234567890123,
    "",
    None,
)


def harmless(page: Page) -> None:
    """Nothing ran, and nothing of it became an element."""
    assert page.evaluate("window.pwned === undefined && ({}).pwned === undefined")
    assert page.locator("main img, main script, main iframe").count() == 0


@pytest.fixture(scope="module", autouse=True)
def written(server: Running) -> None:
    with server.client() as client:
        for value in VALUES:
            record = {
                "data": {"text": value},
                "tag": value.replace("\u0000", ""),
                "node": value[:60].replace("\u0000", ""),
            }
            ok(client.post("/v0/topics/hostile", json={"records": [{**record, "meta": {value[:50]: value}}]}))
        write(client, "hostile", *TRICKS)
        put(client, "jobs", type="queue", lease_ms=600_000, max_deliveries=1, dead_letter="jobs.dead")
        write(client, "jobs", {"job": EVIL}, {"job": IMAGE}, tag=EVIL)
        for _ in range(2):
            claimed = ok(client.post("/v0/topics/jobs/claim", json={"node": IMAGE}))["claimed"]
            ok(client.post("/v0/topics/jobs/nack", json={"node": IMAGE, "seqs": [claimed[0]["$seq"]], "delay_ms": 0}))
        write(client, "jobs", {"job": EVIL})
        ok(client.post("/v0/topics/jobs/claim", json={"node": EVIL}))
        write(client, "letters", {"x": EVIL})
        letter = {"data": EVIL, "meta": {"$dead_letter_from": EVIL, "$dead_letter_deliveries": EVIL}}
        ok(client.post("/v0/topics/jobs.dead", json={"records": [letter]}))
        run = {"job": EVIL, "run": IMAGE, "topics": [EVIL, {"a": 1}], "started_ms": EVIL, "ended_ms": 5, "ok": False}
        write(
            client, "$pipelines", {**run, "rows": EVIL, "bytes": [1], "out": "javascript:1", "error": IMAGE}, tag=EVIL
        )
        write(client, "$pipelines", *TRICKS)
        ok(client.put("/v0/routers/r", json={"source": "hostile", "dest": "copy", "filter": EVIL}))


PAGES = (
    "#/", "#/topics", "#/topics/hostile?from=1", "#/topics/jobs", "#/topics/jobs.dead?from=1", "#/queues",
    "#/queues/jobs", "#/routers", "#/pipelines", "#/settings",
)  # fmt: skip


def test_no_page_runs_what_clients_wrote(console: Console) -> None:
    for address in PAGES:
        page = console.at(address)
        expect(page.get_by_text("Asking the server…")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("table, .rec, .cols.line, .tile").first).to_be_visible()
        harmless(page)
        console.check()


def test_every_hostile_record_is_shown_as_it_is(console: Console) -> None:
    """In its row, and in full: data, tag, node and meta."""
    page = console.at("#/topics/hostile?from=1")
    expect(page.locator(".rec")).to_have_count(len(VALUES) + len(TRICKS))
    for at, value in enumerate(VALUES):
        row = page.locator(".rec").nth(at)
        row.click()
        detail = page.get_by_label(f"record {at + 1}", exact=True)
        expect(detail.get_by_label("meta", exact=True)).to_be_visible()
        if "\u0000" not in value:
            expect(row.locator(".tag")).to_have_text(value)
            expect(detail.locator("dd", has_text=value).first).to_be_visible()
        harmless(page)
    for at in range(len(VALUES), len(VALUES) + len(TRICKS)):
        page.locator(".rec").nth(at).click()
        expect(page.get_by_label(f"record {at + 1}", exact=True).get_by_label("data", exact=True)).not_to_have_text("…")
        harmless(page)
    expect(page.locator(".rec .data", has_text="12345678901234567890123")).to_be_visible()


def test_a_hostile_holder_can_be_operated(console: Console, client: httpx.Client) -> None:
    page = console.at("#/queues/jobs")
    expect(page.get_by_role("cell", name=EVIL, exact=True).first).to_be_visible()
    page.get_by_role("button", name="nack job").first.click()
    expect(page.get_by_text("Nobody holds a job now.")).to_be_visible()
    harmless(page)


ADDRESSES = (
    f"#/topics/{EVIL}", f"#/topics/hostile?tag={EVIL}", "#/%E0%A4%A", f"#/{IMAGE}", "#/topics/..%2f..%2fv0%2fsettings",
    "#/topics/__proto__", "#/queues/constructor", f"#/topics?q={EVIL}",
)  # fmt: skip


def test_a_hostile_address_shows_a_page_and_runs_nothing(console: Console) -> None:
    console.allowed = ("404", "400")
    for address in ADDRESSES:
        page = console.at(address)
        expect(page.locator("main h1, main .empty strong").first).to_be_visible()
        harmless(page)


def test_the_policy_stops_inline_script(browser: Browser) -> None:
    """That the header is in force: what a page of ours never does is refused by the browser."""
    with running() as server, visiting(browser, server.url) as console:
        page = console.at()
        console.heading("Overview")
        page.evaluate("""() => {
          const script = document.createElement("script");
          script.textContent = "window.pwned = 1";
          document.body.append(script);
        }""")
        assert page.evaluate("window.pwned") is None
        console.allowed = ("Content Security Policy",)
        assert any("Content Security Policy" in one for one in console.complaints)


@pytest.fixture(autouse=True)
def unharmed(server: Running) -> Iterator[None]:
    yield
    with server.client() as client:
        assert client.get("/v0/ready").status_code == 200
