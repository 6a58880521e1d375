"""Listing topics over HTTP (02 §3.3, §1.4, §1.8)."""

from __future__ import annotations

import base64
import functools
import operator
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.expect import compact, invalid, like, ok, put, state, write
from tests.api.kit import Running, running
from topics.testing import ManualClock

NAMES = ["A", "B:x", "Z", "a", "a.b", "a:b", "ab", "b-1", "b_1", "x" * 255]


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def listed_server(clock: ManualClock) -> Iterator[Running]:
    env = {"TOPICS_API_KEYS": "all,only-a:r:a|Z,nothing:r:q,writer:w"}
    with running(env=env, clock=clock) as one, one.client(key="all") as client:
        for name in reversed(NAMES):
            put(client, name)
        yield one


@pytest.fixture
def listed(client: httpx.Client, listed_server: Running) -> Iterator[httpx.Client]:
    """A client of a server with the topics `NAMES`."""
    with like(client, listed_server, key="all") as one:
        yield one


def names(page: dict[str, Any]) -> list[str]:
    return [entry["topic"] for entry in page["topics"]]


def pages(client: httpx.Client, **query: str) -> list[list[str]]:
    """Every page, by following the cursor."""
    found = []
    cursor = ""
    while True:
        page = ok(client.get("/v0/topics", params={**query, "cursor": cursor}))
        found.append(names(page))
        if "next_cursor" not in page:
            return found
        cursor = page["next_cursor"]


def test_an_entry_has_exactly_the_members_of_the_contract(client: httpx.Client) -> None:
    """[TOP-7, API-14]"""
    clock = ManualClock()
    with running(clock=clock) as other, like(client, other) as one:
        put(one, "fresh", type="queue", durable=True)
        write(one, "kiln", "ab", 1)
        clock.jump(5)
        write(one, "kiln", 2)
        answer = one.get("/v0/topics")
        assert compact(answer)
        assert answer.json()["performance"].keys() == {"server_total_ms"}
        now = clock.now_ms()
        assert ok(answer) == {
            "topics": [
                {
                    "topic": "fresh", "type": "queue", "durability": "fsync", "head_seq": 0, "earliest_seq": 1,
                    "count": 0, "bytes": 0, "durable": True, "last_write_ts": None, "earliest_ts": None,
                    "effective_priority": 0,
                },
                {
                    "topic": "kiln", "type": "log", "durability": "disk", "head_seq": 3, "earliest_seq": 1, "count": 3,
                    "bytes": 6, "durable": False, "last_write_ts": now, "earliest_ts": now - 5,
                    "effective_priority": 0,
                },
            ]
        }  # fmt: skip


def test_an_empty_list(client: httpx.Client) -> None:
    """[PAG-2]"""
    with running() as other, like(client, other) as one:
        assert ok(one.get("/v0/topics")) == {"topics": []}


def test_names_are_sorted_by_bytes_and_pages_neither_overlap_nor_skip(listed: httpx.Client) -> None:
    """[PAG-2]"""
    assert names(ok(listed.get("/v0/topics"))) == NAMES
    for size in (1, 2, 3, 5, 9):
        found = pages(listed, page_size=str(size))
        assert [len(page) for page in found[:-1]] == [size] * (len(found) - 1)
        assert functools.reduce(operator.iadd, found, []) == NAMES
    assert len(pages(listed, page_size="10")) == 1
    assert len(pages(listed, page_size="5")) == 2


def test_a_cursor_is_base64url_and_outlives_its_name(listed: httpx.Client) -> None:
    """[PAG-2]: it encodes the last name; that topic may go."""
    put(listed, "b-2")
    page = ok(listed.get("/v0/topics", params={"page_size": "9"}))
    assert names(page)[-1] == "b-2"
    cursor = page["next_cursor"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    ok(listed.delete("/v0/topics/b-2"))
    assert names(ok(listed.get(f"/v0/topics?cursor={cursor}"))) == ["b_1", "x" * 255]


def test_an_empty_cursor_is_the_first_page(listed: httpx.Client) -> None:
    """[PAG-3]"""
    assert names(ok(listed.get("/v0/topics?cursor="))) == NAMES


@pytest.mark.parametrize(
    "cursor",
    [
        "x", "!", "%%%", "AAAA", "e30", "bnVsbA", "W10", "%FF", "a b",
        base64.urlsafe_b64encode(b'{"after":5}').rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b'{"after":null}').rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b'{"after":"\\ud800"}').rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b"[" * 3000).rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b'{"after":"\xff"}').rstrip(b"=").decode(),
        "é",
    ],
)  # fmt: skip
def test_an_undecodable_cursor_is_refused(listed: httpx.Client, cursor: str) -> None:
    """[PAG-3]"""
    invalid(listed.get("/v0/topics", params={"cursor": cursor}))


@pytest.mark.parametrize(
    ("size", "count"),
    [("", 3), ("0", 1), ("-5", 1), ("1", 1), ("2", 2), ("1000", 3), ("1001", 3), ("9" * 40, 3), ("x", 3), ("1.5", 3),
     ("2x", 3), ("-", 3), ("\u00b2", 3), ("-\u00b2", 3)],
)  # fmt: skip
def test_page_size_is_clamped_and_has_a_default(listed: httpx.Client, size: str, count: int) -> None:
    """[API-18, API-19]"""
    page = ok(listed.get("/v0/topics", params={"page_size": size, "prefix": "a"}))
    assert len(page["topics"]) == min(count, 4) if count < 3 else len(page["topics"]) == 4


def test_the_default_page_has_100_entries_and_the_largest_1000(client: httpx.Client) -> None:
    """[API-19]"""
    with running() as other, like(client, other) as one:
        made = [f"t{number:04}" for number in range(1005)]
        for name in made:
            answer = one.put(f"/v0/topics/{name}", json={"durability": "ephemeral"})
            assert answer.status_code == 201
        assert names(ok(one.get("/v0/topics"))) == made[:100]
        assert names(ok(one.get("/v0/topics?page_size=99999"))) == made[:1000]
        assert names(ok(one.get("/v0/topics?page_size=" + "9" * 40))) == made[:1000]
        assert functools.reduce(operator.iadd, pages(one, page_size="400"), []) == made


def test_a_prefix_is_one_of_bytes_and_form_urlencoded(listed: httpx.Client) -> None:
    """(02 §3.3) [API-27]"""

    def at(query: str) -> list[str]:
        return names(ok(listed.get(f"/v0/topics?{query}")))

    assert at("prefix=a") == ["a", "a.b", "a:b", "ab"]
    assert at("prefix=a%3A") == ["a:b"]
    assert at("prefix=a:") == ["a:b"]
    assert at("prefix=") == NAMES
    assert at("prefix=zz") == []
    assert at("prefix=a+b") == []
    assert at("prefix=a&prefix=Z") == ["a", "a.b", "a:b", "ab"]
    assert at("prefix=%FF") == []
    assert at("prefix=$") == []
    assert at("system=true") == NAMES
    assert pages(listed, prefix="a", page_size="3") == [["a", "a.b", "a:b"], ["ab"]]


def test_a_list_holds_only_what_the_key_may_see(client: httpx.Client, listed_server: Running) -> None:
    """[TOP-8, PFX-4]: filtered names do not influence paging."""
    with like(client, listed_server, key="only-a") as one:
        assert names(ok(one.get("/v0/topics"))) == ["Z", "a", "a.b", "a:b", "ab"]
        assert pages(one, page_size="5") == [["Z", "a", "a.b", "a:b", "ab"]]
        assert pages(one, page_size="2") == [["Z", "a"], ["a.b", "a:b"], ["ab"]]
        assert names(ok(one.get("/v0/topics?prefix=b"))) == []
    with like(client, listed_server, key="nothing") as one:
        assert ok(one.get("/v0/topics?page_size=1")) == {"topics": []}
    with like(client, listed_server, key="writer") as one:
        assert one.get("/v0/topics").status_code == 403


def test_touch_refreshes_the_priority_of_listed_topics_only(listed: httpx.Client, clock: ManualClock) -> None:
    """[TOP-9, PRI-4]"""

    def priorities(query: str) -> list[int]:
        return [entry["effective_priority"] for entry in ok(listed.get(f"/v0/topics?{query}"))["topics"]]

    clock.jump(300_000)
    assert priorities("prefix=a") == [0, 0, 0, 0]
    assert priorities("prefix=a&page_size=2&touch=true") == [500, 500]
    assert priorities("prefix=a") == [500, 500, 0, 0]
    assert state(listed, "a")["last_read_ts"] is None
    clock.jump(30_000)
    assert priorities("prefix=a&touch=maybe") == [250, 250, 0, 0]


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_what_has_expired_is_not_counted(listed: httpx.Client, clock: ManualClock, durability: str) -> None:
    """[TTL-3, STA-1]: listing applies retention first."""
    name = f"b-{durability}"
    put(listed, name, ttl_ms=100, durability=durability)
    write(listed, name, 1, 2)
    clock.jump(50)
    write(listed, name, 3)
    clock.jump(51)
    entry = ok(listed.get(f"/v0/topics?prefix={name}"))["topics"][0]
    assert (entry["count"], entry["bytes"], entry["earliest_seq"], entry["head_seq"]) == (1, 1, 3, 3)
    assert entry["earliest_ts"] == clock.now_ms() - 51
    clock.jump(50)
    entry = ok(listed.get(f"/v0/topics?prefix={name}"))["topics"][0]
    assert (entry["count"], entry["earliest_seq"], entry["earliest_ts"]) == (0, 4, None)
    ok(listed.delete(f"/v0/topics/{name}"))
