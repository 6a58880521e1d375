"""Who may call what: every row of the route table against every kind of key (09 §2, 13 §5).

`RULES` is 09 §2 written down a second time, on purpose. A row of the route table without a rule here fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

import httpx
import pytest

from tests.api.kit import Running, running
from tests.api.rawclient import RawClient, request
from tests.security.kit import ALLOWED, FULL, KEYS, OTHER_PREFIX, SAME_PREFIX, SUBSETS, VERSIONS, code, key_of
from topics.server.routes import ROUTES, Body, Route

T = TypeVar("T")
Asked = tuple[int, dict[str, str], bytes]
"""Status, header fields and, of an error, the body."""

OPEN = "nobody needs a key"
PROBE = "nobody needs a key, unless TOPICS_PROBE_AUTH is on"
OWN = "checks its key itself"
VALID = "any valid key"

RULES: dict[tuple[str, str], str] = {
    ("GET", "/v0/topics"): "read",
    ("GET", "/v0/topics/{topic}"): "read",
    ("POST", "/v0/topics/{topic}/diff"): "read",
    ("GET", "/v0/routers"): "read",
    ("GET", "/v0/routers/{router}"): "read",
    ("POST", "/v0/watch"): "read",
    ("GET", "/v0/metrics"): "read",
    ("GET", "/v0/topics/{topic}/segments"): "read",
    ("GET", "/v0/topics/{topic}/leases"): "read",
    ("GET", "/v0/txn/{id}"): "read",
    ("POST", "/v0/topics/{topic}/scan"): "read",
    ("DELETE", "/v0/pins/{id}"): "read",
    ("POST", "/v0/topics/{topic}/stage"): "write",
    ("POST", "/v0/txn/commit"): "write",
    ("POST", "/v0/txn/abort"): "write",
    ("POST", "/v0/topics/{topic}"): "write",
    ("POST", "/v0/topics/{topic}/ack"): "write",
    ("POST", "/v0/topics/{topic}/nack"): "write",
    ("POST", "/v0/topics/{topic}/extend"): "write",
    ("POST", "/v0/topics/{topic}/claim"): "read write",
    ("GET", "/v0/topics/{topic}/work"): "read write",
    ("DELETE", "/v0/topics/{topic}"): "delete",
    ("POST", "/v0/topics/{topic}/delete"): "delete",
    ("DELETE", "/v0/routers/{router}"): "delete",
    ("PUT", "/v0/topics/{topic}"): "admin",
    ("PUT", "/v0/routers/{router}"): "admin",
    ("POST", "/v0/checkpoint"): "admin",
    ("POST", "/v0/topics/{topic}/compact"): "admin",
    ("GET", "/v0/settings"): "admin",
    ("GET", "/v0/watch/{wid}"): OWN,
    ("GET", "/v0/ws"): VALID,
    ("GET", "/v0/health"): PROBE,
    ("GET", "/v0/ready"): PROBE,
    ("GET", "/healthz"): PROBE,
    ("GET", "/readyz"): PROBE,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/"): OPEN,
    ("GET", "/console"): OPEN,
    ("GET", "/console/{file}"): OPEN,
}
STREAMS = {"/v0/topics/{topic}/work", "/v0/watch/{wid}", "/v0/ws"}
"""GET routes without HEAD [API-21]."""
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
PATHS = sorted({path for _, path in RULES})
BESIDE = (
    "/v0/topics/{topic}/", "/v0/topics/{topic}/unknown", "/v0/topics/{topic}/diff/", "/v0/topics/{topic}/a/b/c",
    "/v0/topics/", "/v0/topics//diff", "/v0/routers/{router}/", "/v0/routers/{router}/unknown", "/v0/routers/",
    "/v0", "/v0/", "/v0/unknown", "/v1/topics", "/v0/health/", "/metrics", "/v0/txn", "/v0/pins", "/unknown",
    "//v0/topics", "/v0/Topics/x",
)  # fmt: skip
"""Paths that are no route's."""


class Rule(NamedTuple):
    """What a method on a path needs; several ways may be enough."""

    ways: tuple[frozenset[str], ...]
    keyless: bool = False
    named: bool = False
    """The path has a name that prefixes apply to."""

    def allows(self, scopes: frozenset[str]) -> bool:
        return self.keyless or any(way <= scopes for way in self.ways)


def rule_of(method: str, path: str, *, probe_auth: bool = False) -> Rule:
    """From `RULES` and the sentences below the table in 09 §2 and in 02 [API-21, API-22]."""
    named = "{topic}" in path or "{router}" in path
    as_method = "GET" if method == "HEAD" and path not in STREAMS else method
    needs = RULES.get((as_method, path))
    if needs in (OPEN, OWN) or (needs == PROBE and not probe_auth):
        return Rule((), keyless=True)
    if needs is not None:
        return Rule((_scopes(needs),), named=named)
    if method == "OPTIONS" and (rows := _offered(path)):
        free = all(RULES[row] == OPEN or (RULES[row] == PROBE and not probe_auth) for row in rows)
        return Rule(tuple(_scopes(RULES[row]) for row in rows), keyless=free, named=named)
    return Rule((_beside(path),), named=named)


def _scopes(needs: str) -> frozenset[str]:
    return frozenset() if needs in (OPEN, PROBE, OWN, VALID) else frozenset(needs.split())


def _beside(path: str) -> frozenset[str]:
    """[SCP-4]"""
    if path.startswith("/v0/topics/{topic}"):
        return frozenset({"write"})
    if path.startswith("/v0/routers/{router}"):
        return frozenset({"admin"})
    return frozenset()


def _offered(path: str) -> list[tuple[str, str]]:
    """Rows of a path that have a handler."""
    return [(row.method, row.path) for row in ROUTES if row.path == path and row.handler is not None]


def row_of(method: str, path: str) -> Route | None:
    as_method = "GET" if method == "HEAD" and path not in STREAMS else method
    return next((row for row in ROUTES if (row.method, row.path) == (as_method, path)), None)


def filled(path: str) -> str:
    for param, value in {"topic": "plant3:x", "router": "plant3:r", "wid": "w_1", "id": "i", "file": "a/b.js"}.items():
        path = path.replace("{" + param + "}", value)
    return path


class Desk:
    """Asks one server as many keys. Over HTTP/1 bytes are sent as they are: there are many thousands of requests."""

    def __init__(self, server: Running, http2: bool) -> None:
        self.server = server
        self.http2 = http2
        self.client = server.client(http2=http2)
        self._raw = RawClient(server)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self._raw.sock.close()

    def some(self, all: Sequence[T]) -> Sequence[T]:
        """Keys are looked at behind the protocol: over HTTP/2 a few of each kind are enough."""
        return all[:: max(len(all) // 4, 1)] if self.http2 else all

    def ask(self, method: str, path: str, authorization: str | None, query: str = "") -> tuple[int, str | None]:
        """Status and error code; a stream is not read."""
        headers = {} if authorization is None else {"authorization": authorization}
        row = row_of(method, path)
        body = b""
        if row is not None and row.body is not Body.NONE:
            headers["content-type"], body = "application/json", b"{}"
        ask = self._ask2 if self.http2 else self._ask1
        status, fields, told = ask(method, filled(path) + query, headers, body)
        if status < 400:
            return status, None
        if status == 401:
            assert fields["www-authenticate"] == "Bearer"
        return status, None if method == "HEAD" else code(httpx.Response(status, content=told))

    def _ask1(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Asked:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        self._raw.send(request(method, target, *lines, body=body, json=False))
        answer = self._raw.answer(to_head=method == "HEAD")
        if "content-length" not in answer.headers or answer.headers.get("connection") == "close":
            self._raw.sock.close()
            self._raw = RawClient(self.server)
        return answer.status, answer.headers, answer.body

    def _ask2(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Asked:
        with self.client.stream(method, target, headers=headers, content=body) as answer:
            told = answer.read() if answer.status_code >= 400 else b""
            return answer.status_code, dict(answer.headers), told

    def topics(self) -> set[str]:
        """All but the server's own, which appear when it has something to tell."""
        engine = self.server.server.app.engine
        assert engine is not None
        return self.server.on_loop(lambda: {name for name in engine.core.names if name[0] != "$"})


@pytest.fixture(scope="module", params=VERSIONS)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as server, Desk(server, request.param == "http2") as one:
        yield one


every_path = pytest.mark.parametrize("path", [*PATHS, *BESIDE])
"""Those that no row has among them; a test asks with every method."""


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    """[13 §5] A row that is added to the table has to be given a rule here first."""
    assert sorted((row.method, row.path) for row in ROUTES) == sorted(RULES)
    assert {row.path for row in ROUTES if row.stream} == STREAMS


NO_KEYS = {
    "none": None,
    "empty": "",
    "wrong": "Bearer nobody-12ab",
    "prefix of a key": f"Bearer {FULL[:-1]}",
    "a key and more": f"Bearer {FULL}0",
    "other case": f"Bearer {FULL.upper()}",
    "only the scheme": "Bearer",
    "other scheme": f"Basic {FULL}",
    "no scheme": FULL,
    "an entry instead of a secret": f"Bearer {key_of(['read'])}:read",
}


@every_path
def test_nobody_without_a_key_is_let_through(desk: Desk, path: str) -> None:
    """[SCP-1, SCP-3, IDX-1, API-8] Also with a key in the query, which counts on the two streams only."""
    before = desk.topics()
    for method in METHODS:
        keyless = rule_of(method, path).keyless
        for what in desk.some(list(NO_KEYS)):
            status, told = desk.ask(method, path, NO_KEYS[what])
            assert (status in (401, 403)) is not keyless, (method, what)
            assert keyless or status == 401, (method, what)
            assert keyless or method == "HEAD" or told == "unauthorized", (method, what)
        in_query = desk.ask(method, path, None, f"?token={FULL}")[0]
        takes_token = method == "GET" and path == "/v0/topics/{topic}/work"
        assert (in_query == 401) is not (keyless or takes_token), method
        assert desk.topics() == before, method


@every_path
def test_a_key_opens_exactly_what_its_scopes_say(desk: Desk, path: str) -> None:
    """[SCP-1, SCP-2, SCP-4, API-21, API-22] All fifteen sets of scopes; refusals come before any effect."""
    for method in METHODS:
        rule = rule_of(method, path)
        before = desk.topics()
        for scopes in desk.some([scopes for scopes in SUBSETS if not rule.allows(scopes)]):
            status, told = desk.ask(method, path, f"Bearer {key_of(scopes)}")
            assert (status, told) == (403, None if method == "HEAD" else "forbidden"), (method, sorted(scopes))
        assert desk.topics() == before, method
        for scopes in desk.some([scopes for scopes in SUBSETS if rule.allows(scopes)]):
            check_let_through(method, path, desk.ask(method, path, f"Bearer {key_of(scopes)}"))


@every_path
def test_a_key_opens_only_names_with_its_prefixes(desk: Desk, path: str) -> None:
    """[PFX-1, KEY-3] Prefixes are bytes: neither another case nor a longer one fits; also on paths of no route."""
    for method in METHODS:
        before = desk.topics()
        status, told = desk.ask(method, path, f"Bearer {OTHER_PREFIX}")
        if rule_of(method, path).named:
            assert (status, told) == (403, None if method == "HEAD" else "forbidden"), method
            assert desk.topics() == before, method
        else:
            check_let_through(method, path, (status, told))
        check_let_through(method, path, desk.ask(method, path, f"Bearer {SAME_PREFIX}"))
        assert all(name.startswith(ALLOWED) for name in desk.topics()), method


def check_let_through(method: str, path: str, got: tuple[int, str | None]) -> None:
    """Not refused for its key; and what is not there says so, behind that check [API-20]."""
    status, told = got
    assert status not in (401, 403), method
    assert status < 500, method
    row = row_of(method, path)
    if row is None and method != "OPTIONS" and _offered(path):
        assert (status, told) == (405, None if method == "HEAD" else "method_not_allowed")
    elif (row is None and not _offered(path)) or (row is not None and row.handler is None):
        assert (status, told) == (404, None if method == "HEAD" else "not_found")
    elif row is None:
        assert status == 204


@pytest.mark.parametrize("version", VERSIONS)
def test_probes_need_a_key_when_they_are_told_to(version: str) -> None:
    """[HLT-5, IDX-1] `TOPICS_PROBE_AUTH`: any valid key, no scope; metrics and static routes are not probes."""
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_PROBE_AUTH": "1"}
    with running(env=env) as server, Desk(server, version == "http2") as desk:
        for path in PATHS:
            for method in ("GET", "HEAD", "OPTIONS"):
                keyless = rule_of(method, path, probe_auth=True).keyless
                assert (desk.ask(method, path, None)[0] == 401) is not keyless, (method, path)
                assert (desk.ask(method, path, "Bearer nobody")[0] == 401) is not keyless, (method, path)
        for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
            for scopes in SUBSETS:
                assert desk.ask("GET", path, f"Bearer {key_of(scopes)}") == (200, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_keys_everybody_may_do_everything(version: str) -> None:
    """[KEY-8, API-7] The header is ignored, whatever it holds."""
    with running() as server, Desk(server, version == "http2") as desk:
        for method, path in product(METHODS, (*PATHS, *BESIDE)):
            for authorization in (None, "Bearer nobody", "Basic x"):
                check_let_through(method, path, desk.ask(method, path, authorization))


def test_httpx_sends_paths_as_they_are() -> None:
    """What the matrix rests on: the client neither folds `//` nor drops a trailing slash."""
    request = httpx.Request("GET", "http://h" + filled("/v0/topics//diff"))
    assert request.url.raw_path == b"/v0/topics//diff"
