"""A store with a cold tier and with damage, made with files: the console says what is where and what is gone [X-3]."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.api.kit import Running, running
from tests.console.kit import Console, ok, put, rows, see_seq, visiting, write
from topics import settings
from topics.engine.config import EngineConfig

ENV = {
    "TOPICS_SEGMENT_MAX_EVENTS": "10",
    "TOPICS_HOT_RETAIN_SEGMENTS": "3",
    "TOPICS_CHECKPOINT_MS": "3600000",
}
LOST, FLIPPED, GONE = range(31, 41), 45, range(11, 21)
"""A hot segment whose files are removed, a record one bit of which is turned, a cold copy that is removed."""


def seven_segments(client: httpx.Client) -> list[Path]:
    """Three of them in the cold tier, three hot, one active; the log holds none of it."""
    put(client, "t", durability="fsync")
    write(client, "t", *({"n": f"needle-{n}"} for n in range(1, 66)))
    ok(client.post("/v0/checkpoint"))
    while True:
        segments = ok(client.get("/v0/topics/t/segments"))["segments"]
        if [one["tier"] for one in segments] == 3 * ["cold"] + 4 * ["hot"]:
            break
    for n in range(3):
        write(client, f"filler-{n}", n)
        ok(client.post("/v0/checkpoint"))
    return [Path(one["path"]) for one in segments]


def harm(files: list[Path]) -> None:
    files[1].unlink()
    for ending in (".data", ".idx"):
        files[3].with_suffix(ending).unlink()
    raw = bytearray(files[4].read_bytes())
    raw[raw.index(f"needle-{FLIPPED}".encode())] ^= 1
    files[4].write_bytes(raw)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("harmed")
    (folder / "cold").mkdir()
    env = {**ENV, "TOPICS_COLD_DIR": str(folder / "cold")}
    plain = EngineConfig.of(settings.parse(env).settings)
    config = dataclasses.replace(plain, relocate_ms=50, loss_merge_ms=50, snapshot_gap_ms=0)
    with running(folder / "store", env, config=config) as one, one.client() as client:
        files = seven_segments(client)
    harm(files)
    with running(folder / "store", env, config=config) as one:
        yield one


@pytest.fixture
def console(browser: Browser, server: Running) -> Iterator[Console]:
    with visiting(browser, server.url) as one:
        yield one


def test_the_tail_has_a_row_for_every_gap_with_its_reason(console: Console) -> None:
    """[X-3] The exact ranges; everything else is there, from a cold copy too."""
    page = console.at("#/topics/t")
    see_seq(page, 65)
    page.get_by_role("listbox").press("Home")
    see_seq(page, 1)
    expect(page.locator(".rec.gap").first).to_have_text("gap: 11 – 20 damaged")
    texts = []
    for seq in (30, 50):
        page.get_by_role("listbox").evaluate("(one, at) => { one.scrollTop = at * 28 }", seq - 20)
        see_seq(page, seq)
        texts += page.locator(".rec.gap").all_inner_texts()
    assert {"gap: 11 – 20 damaged", "gap: 31 – 40 damaged", "gap: 45 – 45 damaged"} <= set(texts)
    assert not set(rows(page)) & {*GONE, *LOST, FLIPPED}


def test_the_ruler_the_map_and_the_list_tell_cold_and_lost_segments(console: Console, server: Running) -> None:
    """[A-8] What the plan knows as lost, and what `$loss` tells of damage that reads found since."""
    with server.client() as client:
        ok(client.post("/v0/topics/t/diff", json={"from_seq": 40}))
        while not client.post("/v0/topics/$loss/diff", json={}).json().get("records"):
            pass
    page = console.at("#/topics/t?view=segments")
    ruler = page.get_by_role("img", name="seqs:")
    expect(ruler).to_have_attribute("aria-label", "seqs: live, in segments: 1 – 65; lost (corrupt): 31 – 40")
    segments = page.get_by_role("img", name="7 segments")
    expect(segments).to_have_attribute("aria-label", "7 segments: 3 cold, 1 lost, 2 hot, 1 active")
    table = page.get_by_role("region", name="segments")
    expect(table.get_by_role("row", name="cold sealed")).to_have_count(3)
    expect(table.get_by_role("row", name="31 40 0")).to_contain_text("corrupt")
    told = page.get_by_role("list", name="damage").get_by_role("link")
    expect(told.first).to_be_visible()
    told.first.click()
    expect(page.locator(".rec.gap").first).to_contain_text("damaged")


def test_the_overview_says_how_much_lies_cold_and_what_was_lost(console: Console) -> None:
    page = console.at()
    expect(page.get_by_role("img", name="hot ")).to_have_attribute(
        "aria-label", re.compile(r"^hot \S+ \S+, cold [1-9]")
    )
    losses = page.locator("section", has_text="Losses")
    expect(losses.locator(".badge")).to_contain_text("corrupt")
    expect(losses.get_by_role("link", name="t").first).to_be_visible()
