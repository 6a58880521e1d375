"""What strangers do to it: others change the same thing, answers never come, clocks and values are odd [U-31, U-32]."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, Route, expect

from tests.api.kit import Running, running
from tests.console.kit import NARROW, Console, asking, ok, put, rows, see_seq, visiting, write
from tests.console.test_tail import HIDE, free_port, is_live
from topics.engine.config import EngineConfig
from topics.testing.serverproc import ServerProcess

LONG = "n" * 255
HOUR_S = 3600


def test_a_filter_holds_wherever_one_goes(console: Console, client: httpx.Client) -> None:
    """And each record is there once."""
    put(client, "filtered")
    for n in range(1, 7):
        write(client, "filtered", n, tag="eu:1" if n % 2 else "us:1")
    page = console.at("#/topics/filtered?from=2&tag=eu:*")
    see_seq(page, 5)
    assert rows(page) == [3, 5]
    page.get_by_role("button", name="To the end").click()
    see_seq(page, 1)
    is_live(page)
    write(client, "filtered", 7, tag="eu:1")
    see_seq(page, 7)
    assert rows(page) == [1, 3, 5, 7]
    page.go_back()
    expect(page).to_have_url("about:blank")
    page.go_forward()
    see_seq(page, 7)
    assert rows(page) == [1, 3, 5, 7]


def lose_answer(route: Route) -> None:
    """The server does it, and nobody hears of it."""
    route.fetch()
    route.abort()


def test_a_record_whose_answer_was_lost_is_written_once(console: Console, client: httpx.Client) -> None:
    """[IDM-1] The visitor presses again, as anybody would; another record is another write."""
    put(client, "lost")
    page = console.at("#/topics/lost?view=publish")
    console.allowed = ("net::ERR_FAILED",)
    page.route("**/v0/topics/lost", lose_answer)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_contain_text("whether it was done is not known")
    page.unroute("**/v0/topics/lost")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq 1")).to_be_visible()
    assert ok(client.get("/v0/topics/lost"))["head_seq"] == 1
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq 2")).to_be_visible()


def test_what_is_written_after_a_preview_is_not_deleted(console: Console, client: httpx.Client) -> None:
    """What goes is what was shown."""
    put(client, "previewed")
    write(client, "previewed", 1, 2, tag="a")
    page = console.at("#/topics/previewed?view=delete")
    page.get_by_label("Tag").fill("a")
    page.get_by_role("button", name="Preview", exact=True).click()
    button = page.get_by_role("button", name="Delete 2 records")
    expect(button).to_be_visible()
    write(client, "previewed", 3, tag="a")
    button.click()
    expect(page.get_by_text("2 records are deleted, 1 are left.")).to_be_visible()
    assert ok(client.get("/v0/topics/previewed"))["count"] == 1


def test_creating_what_is_there_changes_nothing(console: Console, client: httpx.Client) -> None:
    """[CFG-1] A PUT would set everything else back to its default."""
    put(client, "kept", ttl_ms=86_400_000, cap_records=5)
    ok(client.put("/v0/routers/kept-too", json={"source": "kept", "dest": "kept.copy", "filter": "eu:*"}))
    page = console.at("#/topics?new=1")
    page.get_by_label("Name").fill("kept")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("There is a topic of this name.")
    assert ok(client.get("/v0/topics/kept"))["config"]["cap_records"] == 5
    page = console.at("#/routers?new=1")
    expect(page.get_by_role("row", name="kept-too")).to_be_visible()
    for label, text in (("From topic", "a"), ("To topic", "b"), ("Name", "kept-too")):
        page.get_by_role("dialog").get_by_label(label).fill(text)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("There is a router of this name.")
    assert ok(client.get("/v0/routers/kept-too"))["source"] == "kept"


FIELDS = {
    "Time to live": ("ttl_ms", "2d", 172_800_000),
    "Records at most": ("cap_records", "10k", 10_000),
    "Bytes at most": ("cap_bytes", "64Mi", 67_108_864),
    "Idempotency window": ("idempotency_window_ms", "5m", 300_000),
    "Priority": ("priority", "-7", -7),
    "Lease": ("lease_ms", "45s", 45_000),
    "Claim window": ("claim_jitter_ms", "250", 250),
    "Deliveries at most": ("max_deliveries", "9", 9),
    "Dead letters go to": ("dead_letter", "formed.dead", "formed.dead"),
}
CHOICES = {"Durability": ("durability", "fsync"), "When full": ("discard", "reject")}
FLAGS = {
    "Raise the priority of what is read": "auto_priority",
    "Writes may create topics": "auto_create",
    "Readers may leave out their own records": "dedupe_node",
    "Leases survive a restart": "leases_durable",
}


def test_every_field_of_a_configuration_is_saved_and_what_others_changed_stays(
    console: Console, client: httpx.Client
) -> None:
    put(client, "formed", type="queue")
    page = console.at("#/topics/formed?view=config")
    before = ok(client.get("/v0/topics/formed"))["config"]
    for label, (_, text, _) in FIELDS.items():
        page.get_by_label(label, exact=True).fill(text)
    for label, (_, value) in CHOICES.items():
        page.get_by_label(label, exact=True).select_option(value)
    for label in FLAGS:
        page.get_by_label(label).click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. It is in force.")).to_be_visible()
    saved = ok(client.get("/v0/topics/formed"))["config"]
    wanted = {name: value for name, _, value in FIELDS.values()} | dict(CHOICES.values())
    wanted |= {name: not before[name] for name in FLAGS.values()} | {"type": "queue", "durable": True}
    assert saved == wanted
    page.get_by_label("Lease", exact=True).fill("1m")
    put(client, "formed", **{**saved, "cap_records": 2**63, "ttl_ms": 0})
    expect(page.get_by_label("Records at most")).to_have_value(str(2**63))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. It is in force.")).to_be_visible()
    again = ok(client.get("/v0/topics/formed"))["config"]
    assert again == {**saved, "cap_records": 2**63, "ttl_ms": 0, "lease_ms": 60_000}


def test_a_dead_letter_that_somebody_removed_does_not_come_back(console: Console, client: httpx.Client) -> None:
    put(client, "risen", type="queue", max_deliveries=1, dead_letter="risen.dead")
    write(client, "risen", {"job": 1})
    for _ in range(2):
        for job in ok(client.post("/v0/topics/risen/claim", json={"node": "w"}))["claimed"]:
            ok(client.post("/v0/topics/risen/nack", json={"node": "w", "seqs": [job["$seq"]]}))
    page = console.at("#/queues/risen")
    button = page.get_by_role("button", name="redrive 1", exact=True)
    expect(button).to_be_visible()
    page.evaluate(HIDE, True)  # nothing is asked for any more: the page is as old as it looks
    ok(client.post("/v0/topics/risen.dead/delete", json={"seqs": [1]}))
    button.click()
    expect(page.get_by_text("Nothing went back")).to_be_visible()
    assert ok(client.get("/v0/topics/risen"))["queue"]["ready"] == 0


def test_dead_letters_that_cannot_go_back_are_not_kept(console: Console, client: httpx.Client) -> None:
    """What was claimed for it is given back when it fails, and what is no letter too."""
    console.allowed = ("404", "422")
    put(client, "grave", type="queue", lease_ms=600_000)
    put(client, "asked", type="queue", dead_letter="grave", cap_records=1, discard="reject")
    write(client, "asked", "full")
    write(client, "grave", "no letter")
    for name in ("nowhere", "asked"):
        letter = {"data": 1, "meta": {"$dead_letter_from": name}}
        ok(client.post("/v0/topics/grave", json={"records": [letter]}))
    page = console.at("#/queues/asked")
    page.get_by_role("button", name="Redrive all").click()
    expect(page.get_by_role("alert")).to_contain_text("full")
    assert ok(client.get("/v0/topics/grave"))["queue"] == {"ready": 3, "in_flight": 0, "delayed": 0, "dead_lettered": 0}


def test_a_topic_that_was_made_anew_while_nobody_looked_is_read_from_its_start(
    console: Console, client: httpx.Client
) -> None:
    """[EPO-4] Even where it has grown past what was seen of the one before."""
    put(client, "anew")
    write(client, "anew", "old", "old")
    page = console.at("#/topics/anew")
    see_seq(page, 2)
    is_live(page)
    page.evaluate(HIDE, True)
    expect(page.get_by_test_id("tail-state")).to_contain_text("connecting")
    ok(client.delete("/v0/topics/anew"))
    put(client, "anew")
    write(client, "anew", *(5 * ["new"]))
    page.evaluate(HIDE, False)
    expect(page.locator(".rec.gap")).to_contain_text("made anew")
    see_seq(page, 5)
    assert rows(page) == [1, 2, 1, 2, 3, 4, 5]


def test_a_long_absence_is_paged_and_nothing_is_missing(console: Console, client: httpx.Client) -> None:
    """More than is streamed after a pause: it goes on where one was, as far as one scrolls."""
    put(client, "absent", durability="ephemeral")
    write(client, "absent", 0)
    page = console.at("#/topics/absent")
    see_seq(page, 1)
    is_live(page)
    page.evaluate(HIDE, True)
    expect(page.get_by_test_id("tail-state")).to_contain_text("connecting")
    for _ in range(3):
        write(client, "absent", *range(1000))
    page.evaluate(HIDE, False)
    expect(page.get_by_test_id("tail-state")).to_contain_text("scroll for more")
    expect(page.get_by_test_id("tail-state")).to_contain_text("201 shown, 2,800 behind")
    page.get_by_role("listbox").evaluate("(one) => { one.scrollTop = 190 * 28 }")
    see_seq(page, 201)
    found = rows(page)
    assert found == list(range(found[0], found[-1] + 1))


def test_times_are_by_the_server_s_clock(browser: Browser, server: Running) -> None:
    """A visitor whose clock is an hour late sees how long a lease still lasts, and how old a record is."""
    with server.client() as client, visiting(browser, server.url) as console:
        put(client, "skewed", type="queue", lease_ms=600_000)
        write(client, "skewed", 1)
        ok(client.post("/v0/topics/skewed/claim", json={"node": "w-1"}))
        console.page.clock.install(time=time.time() - HOUR_S)
        page = console.at("#/queues/skewed")
        expect(page.get_by_role("row", name="w-1")).to_contain_text(re.compile(r"(9 min|10 min)"))
        expect(page.get_by_role("row", name="w-1")).not_to_contain_text("h ")
        console.page.clock.install(time=time.time() + HOUR_S)
        page = console.at("#/topics/skewed")
        expect(page.locator(".facts div", has_text="Last write").locator("dd")).to_have_text(re.compile(r"now|\bs ago"))


def test_a_large_and_a_deep_record_are_shown_as_far_as_a_page_can(console: Console, client: httpx.Client) -> None:
    deep: object = list(range(2000))
    for _ in range(110):
        deep = [deep]
    put(client, "large")
    write(client, "large", {"text": "x" * 1_000_000}, deep, "\u001b[31m\u0000\ufffe\U0001f600 \u202e")
    page = console.at("#/topics/large?from=1")
    for seq, most in ((1, 100_000), (2, 700_000), (3, 100)):
        page.locator(".rec").nth(seq - 1).click()
        data = page.get_by_label(f"record {seq}", exact=True).get_by_label("data", exact=True)
        expect(data).not_to_have_text("…")
        assert len(data.text_content() or "") <= most
    page = console.at("#/topics/large?from=1")
    page.locator(".rec").first.click()
    expect(page.get_by_text("more characters are not shown")).to_be_visible()


def test_names_of_255_characters_fit_into_380_pixels(browser: Browser, server: Running) -> None:
    other = "o" * 255
    with server.client() as client, visiting(browser, server.url, NARROW) as console:
        put(client, LONG, type="queue", lease_ms=600_000, dead_letter=other)
        write(client, LONG, {"k" * 500: "v" * 500}, tag="t" * 256, node="w" * 100)
        ok(client.post(f"/v0/topics/{LONG}/claim", json={"node": "w" * 100}))
        ok(client.put(f"/v0/routers/{'r' * 255}", json={"source": LONG, "dest": other}))
        addresses = (f"#/topics?q={LONG}", f"#/topics/{LONG}?from=1", f"#/queues/{LONG}", "#/queues", "#/routers")
        for address in addresses:
            page = console.at(address)
            expect(page.locator(".cols.line, .rec, td a").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        page.get_by_role("button", name="remove").first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        dialog = page.get_by_role("dialog").evaluate("(one) => [one.scrollWidth, one.clientWidth]")
        assert dialog[0] <= dialog[1]


def fill(page: Page, texts: dict[str, str]) -> None:
    for label, text in texts.items():
        page.get_by_label(label).fill(text)


Action = Callable[[Page], None]
ACTIONS: dict[str, tuple[str, Action, Action]] = {
    "publish": (
        "#/topics/t?view=publish",
        lambda _: None,
        lambda page: page.get_by_role("button", name="Publish").click(),
    ),
    "config": (
        "#/topics/t?view=config",
        lambda page: page.get_by_label("Records at most").fill("77"),
        lambda page: page.get_by_role("button", name="Save").click(),
    ),
    "create": (
        "#/topics?new=1",
        lambda page: page.get_by_label("Name").fill("made"),
        lambda page: page.get_by_role("button", name="Create").click(),
    ),
    "router": (
        "#/routers?new=1",
        lambda page: fill(page, {"From topic": "t", "To topic": "u"}),
        lambda page: page.get_by_role("button", name="Add", exact=True).click(),
    ),
    "nack": (
        "#/queues/q",
        lambda page: expect(page.get_by_role("button", name="nack job 1")).to_be_visible(),
        lambda page: page.get_by_role("button", name="nack job 1").click(),
    ),
}


def test_what_is_done_while_the_server_is_away_says_so_and_works_when_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    """Each action where it happened; a tail that began meanwhile waits, and then shows everything."""
    env = {"TOPICS_PORT": str(free_port())}
    process = ServerProcess(tmp_path, env)
    try:
        process.wait_ready()
        url = f"http://{process.address[0]}:{process.address[1]}"
        with asking(url) as client, visiting(browser, url) as console:
            console.allowed = ("net::ERR_", "503", "404")
            put(client, "t", durability="fsync")
            write(client, "t", 1, 2, 3)
            put(client, "q", type="queue", durability="fsync", lease_ms=600_000, leases_durable=True)
            write(client, "q", 1)
            ok(client.post("/v0/topics/q/claim", json={"node": "w"}))
            pages = {}
            for name, (address, prepare, _) in ACTIONS.items():
                pages[name] = console.page.context.new_page()
                pages[name].goto(f"{url}/console/{address}")
                prepare(pages[name])
            tail = console.at("#/topics")
            console.heading("Topics")
            process.kill()
            tail.evaluate("location.hash = '#/topics/t'")
            for name, (_, _, act) in ACTIONS.items():
                act(pages[name])
                alert = pages[name].get_by_role("alert").filter(has_text="whether it was done is not known")
                if name == "create":
                    alert = pages[name].get_by_role("dialog").get_by_role("alert").filter(has_text="does not answer")
                expect(alert).to_be_visible()
            process = ServerProcess(tmp_path, env)
            process.wait_ready()
            see_seq(tail, 3)
            is_live(tail)
            for name, (_, _, act) in ACTIONS.items():
                act(pages[name])
            expect(pages["publish"].get_by_text("Written as seq 4")).to_be_visible()
            expect(pages["config"].get_by_text("Saved. It is in force.")).to_be_visible()
            expect(pages["create"].get_by_role("heading", level=1, name="made")).to_be_visible()
            expect(pages["router"].get_by_role("row", name="t->u")).to_be_visible()
            expect(pages["nack"].get_by_text("Nobody holds a job now.")).to_be_visible()
            see_seq(tail, 4)
            assert rows(tail) == [1, 2, 3, 4]
    finally:
        process.abandon()


def test_dots_alone_lead_nowhere(console: Console, client: httpx.Client) -> None:
    """As a name they would be another path of the API."""
    console.allowed = ("404", "400")
    for name in (".", ".."):
        console.at(f"#/topics/{name}")
        expect(console.page.get_by_role("alert").first).to_be_visible()
        paths = {url.partition("?")[0] for url in console.asked if url.startswith("/v0/topics/")}
        assert paths <= {f"/v0/topics/{name}%20", f"/v0/topics/{name}%20/segments"}, json.dumps(sorted(console.asked))


WATCH_LIST = """() => {
  window.leastRows = Infinity;
  const panel = [...document.querySelectorAll(".panel")].find((one) => one.textContent.startsWith("Losses"));
  const look = () => { window.leastRows = Math.min(window.leastRows, panel.querySelectorAll("ul.told li").length); };
  look();
  new MutationObserver(look).observe(panel, { childList: true, subtree: true });
}"""


def test_the_newest_losses_stay_in_sight_while_others_come(browser: Browser) -> None:
    """[U-33] The list is changed, not emptied and filled again."""
    config = EngineConfig(loss_merge_ms=50)
    with running(config=config) as server, server.client() as client, visiting(browser, server.url) as console:
        put(client, "capped", cap_records=1)
        write(client, "capped", 1)
        write(client, "capped", 2)
        page = console.at("#/")
        panel = page.locator(".panel", has=page.get_by_role("heading", name="Losses"))
        expect(panel.locator("li", has_text="capped 1 – 1")).to_be_visible()
        page.evaluate(WATCH_LIST)
        write(client, "capped", 3)
        expect(panel.locator("li", has_text="capped 2 – 2")).to_be_visible()
        assert page.evaluate("window.leastRows") >= 1


def test_segments_of_several_pages_are_all_there(browser: Browser) -> None:
    """[A-8] Whoever stands between asks for fewer at a time than the console does."""

    def fewer(route: Route) -> None:
        mark = "&" if "?" in route.request.url else "?"
        route.continue_(url=f"{route.request.url}{mark}limit=2")

    with running(env={"TOPICS_SEGMENT_MAX_EVENTS": "10"}) as server, visiting(browser, server.url) as console:
        with server.client() as client:
            put(client, "long")
            write(client, "long", *range(65))
            ok(client.post("/v0/checkpoint", json={"full": True}))
        console.page.route(re.compile(r"/v0/topics/long/segments(\?from_seq=\d+)?$"), fewer)
        page = console.at("#/topics/long?view=segments")
        expect(page.get_by_role("img", name="7 segments")).to_be_visible()
        expect(page.get_by_role("region", name="segments").get_by_role("row")).to_have_count(8)


def test_commands_name_the_address_that_the_visitor_uses(console: Console, client: httpx.Client) -> None:
    """Behind a proxy that gives the server a path of its own."""

    def forward(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/under/this", "", 1)))

    put(client, "proxied")
    console.page.route("**/under/this/**", forward)
    console.page.goto(f"{console.url}/under/this/console/#/topics/proxied?view=publish")
    command = console.page.get_by_label("command", exact=True)
    expect(command).to_contain_text(f"{console.url}/under/this/v0/topics/proxied'")
    console.page.get_by_role("button", name="Publish").click()
    expect(console.page.get_by_text("Written as seq 1")).to_be_visible()
