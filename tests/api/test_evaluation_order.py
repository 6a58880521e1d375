"""The order of checks, pair by pair: of two faults the earlier one is told [API-20]."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.expect import JSON, Background, invalid, like, ok, put, refused, state, waiting, write
from tests.api.kit import Running, running

FOREIGN = {"origin": "https://elsewhere.example"}
LARGE = b"{" + b" " * 5000
TEXT = {"content-type": "text/plain"}


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[Running]:
    env = {
        "TOPICS_API_KEYS": "all,busy,reader:r:t,lim::t", "TOPICS_MAX_BODY_BYTES": "4000",
        "TOPICS_MAX_INFLIGHT_PER_KEY": "1",
    }  # fmt: skip
    with running(env=env) as one, one.client(key="all") as client:
        put(client, "t")
        yield one


@pytest.fixture
def keyed(client: httpx.Client, keyed_server: Running) -> Iterator[httpx.Client]:
    """A client without a key of a server that wants one."""
    with like(client, keyed_server) as one:
        yield one


def key(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}", **more}


# -- origin, key, slot, scope ----------------------------------------------------------------------------------------


def test_origin_comes_before_the_key(keyed: httpx.Client) -> None:
    """403 before 401 [API-22]."""
    refused(keyed.get("/v0/topics/t", headers=FOREIGN), 403, "forbidden")
    refused(keyed.get("/v0/nothing", headers={"sec-fetch-site": "cross-site"}), 403, "forbidden")
    refused(keyed.get("/v0/topics/t"), 401, "unauthorized")


def test_the_key_comes_before_route_body_and_name(keyed: httpx.Client) -> None:
    """401 before everything behind it [SCP-3]."""
    refused(keyed.get("/v0/nothing"), 401, "unauthorized")
    refused(keyed.patch("/v0/topics/t"), 401, "unauthorized")
    refused(keyed.post("/v0/topics/t", content=LARGE, headers=TEXT), 401, "unauthorized")
    refused(keyed.get("/v0/topics/other", headers=key("nope")), 401, "unauthorized")


def test_the_slot_comes_behind_the_key_and_before_the_scope(
    client: httpx.Client, keyed: httpx.Client, keyed_server: Running
) -> None:
    """401 before 429 before 403, 404, 405, 413, 415, 400."""
    limit = {"limit": "max_inflight_per_key", "max": 1}
    with like(client, keyed_server, key="reader") as other:
        poll = {"from_seq": _head(client, keyed_server), "wait_ms": 30_000}
        asked = Background(other, lambda one: one.post("/v0/topics/t/diff", json=poll))
        waiting(keyed_server)
        throttled = (429, "throttled", limit)
        refused(keyed.get("/v0/topics/t", headers=key("nope")), 401, "unauthorized")
        refused(keyed.delete("/v0/topics/t", headers=key("reader")), *throttled)
        refused(keyed.get("/v0/topics/x", headers=key("reader")), *throttled)
        refused(keyed.get("/v0/nothing", headers=key("reader")), *throttled)
        refused(keyed.post("/v0/topics", headers=key("reader")), *throttled)
        refused(keyed.post("/v0/topics/t/diff", content=LARGE, headers=key("reader", **TEXT)), *throttled)
        refused(keyed.get("/v0/topics/t", headers={**key("reader"), **FOREIGN}), 403, "forbidden")
        with like(client, keyed_server, key="all") as writer:
            write(writer, "t", 1)
        ok(asked.answer())
        ok(keyed.get("/v0/topics/t", headers=key("reader")))


def _head(client: httpx.Client, server: Running) -> int:
    with like(client, server, key="all") as one:
        head: int = state(one, "t")["head_seq"]
        return head


def test_the_scope_comes_before_route_and_body(keyed: httpx.Client) -> None:
    """403 before 404, 405, 413, 415, 400; open point 8."""
    reader = key("reader")
    refused(keyed.get("/v0/topics/t/nothing", headers=reader), 403, "forbidden")
    for method in ("PATCH", "BREW"):
        refused(keyed.request(method, "/v0/topics/t", headers=reader), 403, "forbidden")
        refused(keyed.request(method, "/v0/topics/t"), 401, "unauthorized")
    refused(keyed.get("/v0/routers/r/x", headers=reader), 403, "forbidden")
    refused(keyed.post("/v0/topics/t", content=LARGE, headers=key("reader", **TEXT)), 403, "forbidden")
    refused(keyed.put("/v0/topics/t", content=b"{", headers=key("reader", **JSON)), 403, "forbidden")
    refused(keyed.get("/v0/nothing", headers=reader), 404, "not_found")


def test_the_prefix_comes_before_route_and_body(keyed: httpx.Client) -> None:
    """[PFX-1]: on every path that has a name."""
    lim = key("lim")
    refused(keyed.get("/v0/topics/other/nothing", headers=lim), 403, "forbidden")
    refused(keyed.patch("/v0/topics/other", headers=lim), 403, "forbidden")
    refused(keyed.post("/v0/topics/other", content=LARGE, headers=key("lim", **TEXT)), 403, "forbidden")
    refused(keyed.get("/v0/%74opics/other", headers=lim), 403, "forbidden")
    refused(keyed.get("/v0/topics/other", headers=lim), 403, "forbidden")
    refused(keyed.get("/v0/topics/t2", headers=lim), 404, "topic_not_found", {"topic": "t2"})


# -- readiness -------------------------------------------------------------------------------------------------------


def test_readiness_comes_behind_the_scope_and_before_the_route(client: httpx.Client) -> None:
    """401, 403 before 503 before 404, 405, 413, 415, 400."""
    env = {"TOPICS_API_KEYS": "all,reader:r", "TOPICS_MAX_BODY_BYTES": "4000"}
    not_ready = (503, "not_ready", {"state": "replaying", "replay_progress": 0.0})
    with running(env=env, recover=False) as young, like(client, young) as one:
        refused(one.get("/v0/topics"), 401, "unauthorized")
        refused(one.put("/v0/topics/t", headers=key("reader")), 403, "forbidden")
        everything = key("all")
        refused(one.get("/v0/nothing", headers=everything), *not_ready)
        refused(one.patch("/v0/topics/t", headers=everything), *not_ready)
        refused(one.post("/v0/topics/t", content=LARGE, headers=key("all", **TEXT)), *not_ready)
        refused(one.post("/v0/topics/t", content=b"{", headers=key("all", **JSON)), *not_ready)
        refused(one.get("/v0/topics/-bad", headers=everything), *not_ready)


# -- route, size, type, JSON -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server() -> Iterator[Running]:
    with running(env={"TOPICS_MAX_BODY_BYTES": "4000", "TOPICS_MAX_TOPICS": "1"}) as one, one.client() as client:
        put(client, "t")
        yield one


@pytest.fixture
def small(client: httpx.Client, small_server: Running) -> Iterator[httpx.Client]:
    with like(client, small_server) as one:
        yield one


def test_route_and_method_come_before_the_body(small: httpx.Client) -> None:
    """404, 405 before 413, 415, 400."""
    refused(small.post("/v0/nothing", content=LARGE, headers=TEXT), 404, "not_found")
    refused(small.post("/v0/topics", content=LARGE, headers=TEXT), 405, "method_not_allowed")
    refused(small.post("/v0/nothing", content=iter([LARGE]), headers=TEXT), 404, "not_found")
    refused(small.put("/v0/topics/t/diff", content=b"{", headers=JSON), 405, "method_not_allowed")


def test_size_comes_before_type(small: httpx.Client) -> None:
    """413 before 415."""
    too_large = (413, "payload_too_large")
    refused(small.post("/v0/topics/t", content=LARGE, headers=TEXT), *too_large)
    refused(small.post("/v0/topics/t", content=LARGE), *too_large)
    refused(small.post("/v0/topics/t", content=iter([LARGE]), headers=TEXT), *too_large)
    refused(small.post("/v0/topics/t", content=LARGE, headers={**JSON, "content-encoding": "br"}), *too_large)
    refused(small.post("/v0/topics/t", content=iter([LARGE[:3000], LARGE[3000:]])), *too_large)


def test_size_comes_before_json_and_name(small: httpx.Client) -> None:
    """413 before 400."""
    refused(small.post("/v0/topics/-bad", content=LARGE, headers=JSON), 413, "payload_too_large")


def test_type_comes_before_json(small: httpx.Client) -> None:
    """415 before 400: bad JSON, bad UTF-8, bad gzip."""
    unsupported = (415, "unsupported_media_type")
    for body in (b"{", b"\xff", b""):
        refused(small.post("/v0/topics/t", content=body, headers=TEXT), *unsupported)
        refused(small.post("/v0/topics/t", content=iter([body]), headers=TEXT), *unsupported)
    packed = {**TEXT, "content-encoding": "gzip"}
    refused(small.post("/v0/topics/t", content=b"no gzip", headers=packed), *unsupported)
    refused(small.post("/v0/topics/t", content=iter([b"no gzip"]), headers=packed), *unsupported)
    refused(small.post("/v0/topics/t", content=iter([b"no gzip", b"more"]), headers=packed), *unsupported)
    refused(small.post("/v0/topics/t", content=b"{", headers={**JSON, "content-encoding": "br"}), *unsupported)


def test_json_and_types_come_before_the_endpoints_own_checks(small: httpx.Client) -> None:
    """400 before 404, 403 of names of the server apart, 409, 429."""
    invalid(small.post("/v0/topics/absent/diff", content=b"{", headers=JSON))
    invalid(small.post("/v0/topics/absent/diff", json={"limit": -1}))
    invalid(small.post("/v0/topics/absent/delete", json={"before_seq": "x"}))
    invalid(small.post("/v0/topics/absent", json={"records": [{"data": 1}], "create": 5}))
    invalid(small.put("/v0/topics/absent", json={"ttl_ms": None}))
    invalid(small.put("/v0/topics/t", json={"type": "queue", "ttl_ms": None}))


def test_types_come_before_record_limits(small: httpx.Client) -> None:
    """[API-20, WR-1]: an ill-typed member anywhere is told before too many records or a large one."""
    many = [{"data": 1}] * 200
    invalid(small.post("/v0/topics/t", json={"records": [*many, {"tag": "no data"}]}))
    invalid(small.post("/v0/topics/t", json={"records": [{"data": 1}], "node": 5, "create": False}))


def test_a_refused_request_leaves_the_connection_usable(small: httpx.Client) -> None:
    """[API-25]: a short body of a refused request is read to its end."""
    for _ in range(3):
        refused(small.post("/v0/nothing", content=b"x" * 1000, headers=TEXT), 404, "not_found")
        refused(small.post("/v0/topics/t", content=LARGE, headers=TEXT), 413, "payload_too_large")
        assert state(small, "t")["head_seq"] == 0


def test_probes_skip_key_slot_and_scope_but_not_the_origin(keyed: httpx.Client) -> None:
    """[API-20, IDX-1, HLT-5]"""
    for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
        assert keyed.get(path).status_code == 200
        assert keyed.head(path).status_code == 200
        refused(keyed.get(path, headers=FOREIGN), 403, "forbidden")
        assert keyed.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_probes_want_a_key_where_that_is_configured(client: httpx.Client) -> None:
    """[HLT-5]"""
    env = {"TOPICS_API_KEYS": "all,none:w:zzz", "TOPICS_PROBE_AUTH": "on"}
    with running(env=env) as shy, like(client, shy) as one:
        for path in ("/v0/health", "/readyz"):
            refused(one.get(path), 401, "unauthorized")
            assert one.get(path, headers=key("none")).status_code == 200
