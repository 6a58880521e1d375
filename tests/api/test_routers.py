"""Routers over HTTP: create, look at, list, delete, and what readers of the destination see (05)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.api.expect import ANY, JSON, compact, diff, invalid, ok, put, refused, state, tagged, write
from tests.api.kit import Running, running

_NUMBERS = count()
PLANT, ALL = "plant-5f", "boss-9a"
KEYS = f"{ALL},{PLANT}::plant3:"


class Names:
    """A router and two topics that no other test uses."""

    def __init__(self) -> None:
        n = next(_NUMBERS)
        self.router, self.a, self.b, self.c = f"r{n}->x", f"a{n}", f"b{n}", f"c{n}"


@pytest.fixture
def names() -> Names:
    return Names()


def route(client: httpx.Client, name: str, source: str, dest: str, **more: object) -> dict[str, Any]:
    """Create or replace a router."""
    answer = client.put(f"/v0/routers/{name}", json={"source": source, "dest": dest, **more})
    return ok(answer, 201 if answer.status_code == 201 else 200)


def data(page: dict[str, Any]) -> list[Any]:
    return [record["data"] for record in page["records"]]


def test_put_creates_then_replaces_and_echoes_the_definition(client: httpx.Client, names: Names) -> None:
    """[RTR-1, RTR-8, RTR-9] Members in the order of the contract; `create_dest` is not echoed."""
    body = {"source": names.a, "dest": names.b, "filter": "pallet:*"}
    answer = client.put(f"/v0/routers/{names.router}", json=body)
    assert compact(answer)
    told = {
        "router": names.router, "created": True, "source": names.a, "dest": names.b, "preserve_node": True,
        "preserve_tag": True, "filter": ["tag", "Glob", "pallet:*"], "allow_cycle": False,
        "guarantee": "at_least_once",
    }  # fmt: skip
    assert list(answer.json()) == [*told, "performance"]
    assert ok(answer, 201) == told
    again = client.put(f"/v0/routers/{names.router}", json={"source": names.a, "dest": names.b, "preserve_tag": False})
    assert ok(again, 200) == {**told, "created": False, "filter": None, "preserve_tag": False}


def test_get_tells_the_router_and_counts_every_acknowledged_write(client: httpx.Client, names: Names) -> None:
    """[RTR-10]."""
    route(client, names.router, names.a, names.b, filter=["tag", "Eq", "x"])
    tagged(client, names.a, "x", "y", "x")
    told = ok(client.get(f"/v0/routers/{names.router}"))
    assert told == {
        "router": names.router, "source": names.a, "dest": names.b, "preserve_node": True, "preserve_tag": True,
        "filter": ["tag", "Eq", "x"], "allow_cycle": False, "guarantee": "at_least_once", "forwarded_total": 2,
    }  # fmt: skip


def test_a_read_behind_a_write_shows_its_copies(client: httpx.Client, names: Names) -> None:
    """[FWD-9] State and diff, at once."""
    route(client, names.router, names.a, names.b)
    for n in range(20):
        write(client, names.a, n)
        if n % 2:
            assert state(client, names.b)["head_seq"] == n + 1
        else:
            assert data(diff(client, names.b)) == list(range(n + 1))


def test_a_long_poll_of_the_destination_ends_with_the_copy(client: httpx.Client, names: Names) -> None:
    """[FWD-10]."""
    route(client, names.router, names.a, names.b)
    write(client, names.a, 1)
    assert data(diff(client, names.b, from_seq=0, wait_ms=20_000)) == [1]


def test_copies_carry_what_the_router_keeps(client: httpx.Client, names: Names) -> None:
    """[FWD-5, GUA-6]."""
    route(client, names.router, names.a, names.b, preserve_node=False)
    body = {"records": [{"data": {"kg": 9}, "tag": "t", "node": "n", "meta": {"m": 1}}]}
    ok(client.post(f"/v0/topics/{names.a}", json=body))
    copy = diff(client, names.b, include_tags=True)["records"][0]
    assert copy | {"$ts": 0} == {"$seq": 1, "$ts": 0, "$tag": "t", "data": {"kg": 9}, "meta": {"m": 1}}


def test_an_exactly_once_copy_is_stamped(client: httpx.Client, names: Names) -> None:
    """[GUA-3]."""
    route(client, names.router, names.a, names.b, guarantee="exactly_once")
    write(client, names.a, 1)
    source = ok(client.get(f"/v0/topics/{names.a}/segments"))
    key = f"router:{names.router}:{source['id']}:{source['epoch']}:1"
    assert diff(client, names.b)["records"][0]["meta"] == {
        "_topics_router": {
            "idempotency_key": key, "router": names.router, "source_topic": names.a,
            "source_topic_id": source["id"], "source_epoch": source["epoch"], "source_seq": 1,
        }
    }  # fmt: skip


def test_delete_stops_forwarding_and_copies_stay(client: httpx.Client, names: Names) -> None:
    """[RTR-13]."""
    route(client, names.router, names.a, names.b)
    write(client, names.a, 1)
    assert data(diff(client, names.b)) == [1]
    assert ok(client.delete(f"/v0/routers/{names.router}")) == {"router": names.router, "deleted": True}
    assert ok(client.delete(f"/v0/routers/{names.router}")) == {"router": names.router, "deleted": False}
    write(client, names.a, 2)
    assert data(diff(client, names.b)) == [1]
    refused(client.get(f"/v0/routers/{names.router}"), 404, "router_not_found", {"router": names.router})


def test_deleting_a_topic_names_the_routers_it_takes_along(client: httpx.Client, names: Names) -> None:
    """[RTR-15, TOP-13]."""
    route(client, f"z{names.router}", names.a, names.b)
    route(client, f"b{names.router}", names.b, names.c)
    answer = client.delete(f"/v0/topics/{names.b}")
    assert ok(answer)["routers_removed"] == [f"b{names.router}", f"z{names.router}"]
    listed = ok(client.get("/v0/routers", params={"source": names.a}))
    assert listed == {"routers": []}


def test_routers_are_listed_in_pages_and_filtered(client: httpx.Client, names: Names) -> None:
    """[RTR-11, PAG]."""
    for n in range(5):
        route(client, f"p{names.router}{n}", names.a, f"{names.b}.{n}")
    got: list[str] = []
    query = {"prefix": f"p{names.router}", "page_size": "2"}
    while True:
        page = ok(client.get("/v0/routers", params=query))
        got += [one["router"] for one in page["routers"]]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert got == [f"p{names.router}{n}" for n in range(5)]
    write(client, names.a, 1)
    assert state(client, f"{names.b}.3")["head_seq"] == 1
    page = ok(client.get("/v0/routers", params={"dest": f"{names.b}.3"}))
    assert page["routers"] == [
        {"router": f"p{names.router}3", "source": names.a, "dest": f"{names.b}.3", "guarantee": "at_least_once",
         "forwarded_total": 1, "cursor": 1, "lag": 0}]  # fmt: skip
    invalid(client.get("/v0/routers", params={"cursor": "?"}))


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {}, {"source": "s"}, {"dest": "d"}, {"source": "s", "dest": "s"}, {"source": "s", "dest": "d/"},
        {"source": None, "dest": "d"}, {"source": "s", "dest": "d", "filter": 5},
        {"source": "s", "dest": "d", "filter": ["tag", "Glob", "x"]}, {"source": "s", "dest": "d", "allow_cycle": "no"},
        {"source": "s", "dest": "d", "guarantee": None}, {"source": "s", "dest": "d", "create_dest": 0},
    ],
)  # fmt: skip
def test_a_malformed_router_is_refused_and_leaves_nothing(client: httpx.Client, body: dict[str, Any]) -> None:
    """[RTR-4, RTR-5]."""
    invalid(client.put("/v0/routers/bad", json=body))
    for topic in ("s", "d"):
        refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    refused(client.get("/v0/routers/bad"), 404, "router_not_found", {"router": "bad"})


def test_a_filter_that_no_tag_can_match_is_refused_and_routers_go_on(client: httpx.Client, names: Names) -> None:
    """[RTR-4, S-40] What comes behind it is decided as ever."""
    body = {"source": names.a, "dest": names.b, "filter": "x" * 65_537}
    assert "65536 bytes" in invalid(client.put(f"/v0/routers/{names.router}", json=body))
    refused(client.get(f"/v0/routers/{names.router}"), 404, "router_not_found", {"router": names.router})
    route(client, names.router, names.a, names.b, filter="x" * 65_536)
    write(client, names.a, 1)
    assert data(diff(client, names.b)) == []
    route(client, names.router, names.a, names.b)
    write(client, names.a, 2)
    assert data(diff(client, names.b)) == [2]
    assert ok(client.delete(f"/v0/routers/{names.router}"))["deleted"] is True


def test_bodies_and_names_that_are_none(client: httpx.Client, names: Names) -> None:
    """[RTR-4, NAME-2, API-9]."""
    refused(client.put("/v0/routers/x", content=b"{}", headers={"content-type": "text/plain"}), 415,
            "unsupported_media_type")  # fmt: skip
    invalid(client.put("/v0/routers/x", content=b"[]", headers=JSON))
    invalid(client.put("/v0/routers/%3Ex", json={"source": names.a, "dest": names.b}))
    assert ok(client.delete("/v0/routers/%3Ex"))["deleted"] is False


def test_conflicts_are_told_with_their_reason(client: httpx.Client, names: Names) -> None:
    """[RTR-7, RTR-16, CYC-1] Nothing is made for what is refused."""
    route(client, names.router, names.a, names.b)
    route(client, f"{names.router}2", names.b, names.c)

    def refuse(name: str, source: str, dest: str, code: str, detail: Any, **more: object) -> None:
        answer = client.put(f"/v0/routers/{name}", json={"source": source, "dest": dest, **more})
        refused(answer, 404 if code == "topic_not_found" else 409, code, detail)

    new = f"{names.a}.new"
    refuse("other", new, names.b, "topic_exists_incompatible", {"topic": names.b, "reason": "router_dest_fan_in"})
    refuse(names.router, names.a, new, "topic_exists_incompatible", {
        "router": names.router, "reason": "router_repoint_forbidden", "existing_source": names.a,
        "existing_dest": names.b})  # fmt: skip
    refuse("back", names.c, names.a, "router_cycle", {"cycle": [names.c, names.a, names.b, names.c]})
    refuse("none", names.a, new, "topic_not_found", {"topic": new}, create_dest=False)
    refused(client.get(f"/v0/topics/{new}"), 404, "topic_not_found", {"topic": new})


def test_the_servers_own_topics_take_no_part(client: httpx.Client, names: Names) -> None:
    """[A-14]."""
    for source, dest in ((names.a, "$loss"), ("$deletes", names.b)):
        answer = client.put(f"/v0/routers/{names.router}", json={"source": source, "dest": dest})
        refused(answer, 403, "forbidden", {"topic": dest if dest == "$loss" else source})


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    with running(env={"TOPICS_MAX_ROUTERS": "1", "TOPICS_MAX_TOPICS": "3"}) as one:
        yield one


def test_limits_refuse_new_routers_only(small: Running) -> None:
    """[RES-4, RTR-4]."""
    with small.client() as client:
        route(client, "r", "a", "b")
        answer = client.put("/v0/routers/r2", json={"source": "a", "dest": "c"})
        refused(answer, 429, "throttled", {"limit": "max_routers", "max": 1})
        route(client, "r", "a", "b", filter="x")
        ok(client.delete("/v0/routers/r"))
        answer = client.put("/v0/routers/r2", json={"source": "x", "dest": "y"})
        refused(answer, 429, "throttled", {"limit": "max_topics", "max": 3})
        assert [one["topic"] for one in ok(client.get("/v0/topics"))["topics"]] == ["a", "b"]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        yield one


def test_a_limited_key_needs_name_and_both_ends(keyed: Running) -> None:
    """[RTR-4, RTR-12, RTR-14, PFX-2, PFX-3]."""
    with keyed.client(key=PLANT) as limited, keyed.client(key=ALL) as full:
        route(limited, "plant3:r", "plant3:a", "plant3:b")
        for source, dest in (("plant3:a", "other"), ("other", "plant3:b")):
            answer = limited.put("/v0/routers/plant3:x", json={"source": source, "dest": dest})
            refused(answer, 403, "forbidden", {"topic": "other"})
        route(full, "plant3:far", "plant3:a", "elsewhere")
        route(full, "elsewhere", "plant3:a", "plant3:c")
        assert [one["router"] for one in ok(limited.get("/v0/routers"))["routers"]] == ["plant3:r"]
        assert len(ok(full.get("/v0/routers"))["routers"]) == 3
        refused(limited.get("/v0/routers/plant3:far"), 403, "forbidden", {"topic": "elsewhere"})
        refused(limited.delete("/v0/routers/plant3:far"), 403, "forbidden", {"topic": "elsewhere"})
        refused(limited.get("/v0/routers/elsewhere"), 403, "forbidden", ANY)
        assert ok(full.delete("/v0/routers/plant3:far"))["deleted"] is True


def test_back_pressure_shows_as_lag_and_ends_by_itself(client: httpx.Client, names: Names) -> None:
    """[BKP-1, FWD-8] The server's own timer tries again."""
    put(client, names.b, discard="reject", cap_records=2)
    route(client, names.router, names.a, names.b)
    write(client, names.a, 1, 2, 3, 4)
    assert data(diff(client, names.b)) == [1, 2]
    listed = ok(client.get("/v0/routers", params={"source": names.a}))["routers"][0]
    assert (listed["cursor"], listed["lag"], listed["forwarded_total"]) == (2, 2, 2)
    ok(client.post(f"/v0/topics/{names.b}/delete", json={"before_seq": 3}))
    assert data(diff(client, names.b, from_seq=2, wait_ms=20_000)) == [3, 4]


def test_routers_and_copies_survive_a_restart(tmp_path: Any) -> None:
    """[RRC-1] Before the server is ready everything is forwarded."""
    with running(tmp_path) as server, server.client() as client:
        route(client, "r", "a", "b")
        write(client, "a", 1, 2, 3)
    with running(tmp_path) as server, server.client() as client:
        assert data(diff(client, "b")) == [1, 2, 3]
        assert ok(client.get("/v0/routers/r"))["forwarded_total"] == 3
        assert b"topics_routers 1" in client.get("/v0/metrics").content
