"""What a web page may do to a server: a case per clause of [API-22] (13 §5)."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.kit import Running, records, running
from tests.security.kit import VERSIONS, ask_raw, code, head, wait_until
from topics import settings
from topics.errors import SettingsError
from topics.server import browser
from topics.server.browser import Origin, Policy, judge
from topics.server.keys import KeyRing
from topics.server.routes import ROUTES

KEY = "only-key-11"
APP = "https://app.example"
PORTED = "http://dev.example:3000"
SIX = "http://[2001:db8::1]:8080"
FOREIGN = "https://evil.example"
LISTED = {"TOPICS_CORS_ORIGINS": f"{APP}:443,{PORTED},{SIX}"}


@pytest.fixture(scope="module", params=VERSIONS)
def page(request: pytest.FixtureRequest) -> Iterator[tuple[Running, httpx.Client]]:
    """A server with a key and some listed origins, and a browser that shows its pages."""
    http2 = request.param == "http2"
    with running(env={"TOPICS_API_KEYS": KEY, **LISTED}) as server, server.client(http2=http2) as client:
        yield server, client


def fetch(page: tuple[Running, httpx.Client], method: str, path: str, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return page[1].request(method, path, headers=names)


def is_refused(answer: httpx.Response) -> bool:
    """403, and no permission for the page to read even that."""
    if answer.status_code != 403:
        return False
    assert answer.request.method == "HEAD" or code(answer) == "forbidden"
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    return True


# (a) Origin and Fetch-Metadata


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_a_foreign_origin_is_refused_on_every_route_before_anything_else(
    page: tuple[Running, httpx.Client], row: object
) -> None:
    """(a) With the key, without it, and as a preflight; streams, WebSocket and probes as well."""
    path = row.path.replace("{", "").replace("}", "")  # type: ignore[attr-defined]
    method = row.method  # type: ignore[attr-defined]
    for origin in (
        FOREIGN,
        "null",
        "",
        "http://app.example",
        f"{APP}:444",
        f"{APP}.evil.example",
        "https://app.examplf",
    ):
        assert is_refused(fetch(page, method, path, origin=origin, authorization=f"Bearer {KEY}")), origin
        assert is_refused(fetch(page, method, path, origin=origin)), origin
        assert is_refused(fetch(page, "OPTIONS", path, origin=origin, access_control_request_method=method)), origin


def test_a_foreign_origin_changes_nothing(page: tuple[Running, httpx.Client]) -> None:
    """(a) A simple request of a page is sent without a preflight; it must not have had its effect."""
    server, client = page
    headers = {"origin": FOREIGN, "authorization": f"Bearer {KEY}"}
    assert client.post("/v0/topics/victim", json=records(1), headers=headers).status_code == 403
    assert client.get("/v0/topics/victim", headers={"authorization": f"Bearer {KEY}"}).status_code == 404
    wait_until(server, lambda: not server.server.app.keys.keys[0].usage.inflight)


def test_a_websocket_handshake_of_another_page_is_refused(page: tuple[Running, httpx.Client]) -> None:
    """(a)"""
    server, _ = page
    fields = (
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Authorization: Bearer {KEY}",
    )  # fmt: skip
    assert ask_raw(server, head("GET", "/v0/ws", f"Origin: {FOREIGN}", *fields)).status == 403
    assert ask_raw(server, head("GET", "/v0/ws", *fields)).status != 403


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:4000", "127.0.0.1:4000"),
        ("https://127.0.0.1:4000", "127.0.0.1:4000"),
        ("http://LocalHost:4000", "localhost:4000"),
        ("http://topics.example", "topics.example"),
        ("http://topics.example", "topics.example:80"),
        ("http://topics.example:80", "topics.example"),
        ("https://topics.example", "topics.example"),
        ("https://topics.example", "topics.example:443"),
        ("http://topics.example", "topics.example:"),
        ("http://[::1]:4000", "[::1]:4000"),
        ("http://[::1]", "[::1]"),
        ("http://[::1]:80", "[0:0:0:0:0:0:0:1]"),
        ("http://[2001:DB8::1]:80", "[2001:db8::1]"),
    ],
)
def test_the_servers_own_pages_are_told_by_host_and_port(origin: str, host: str) -> None:
    """(a) The scheme is ignored: a proxy may have ended TLS. A default port may be left out."""
    own = judge(Policy.of((), (), "127.0.0.1", loopback=False), "GET", _headers(origin, host), public=False)
    assert own == browser.Verdict()


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:4001", "127.0.0.1:4000"),
        ("http://127.0.0.1", "127.0.0.1:4000"),
        ("http://127.0.0.1:4000", "127.0.0.1"),
        ("http://localhost:4000", "127.0.0.1:4000"),
        ("https://topics.example", "topics.example:80"),
        ("http://topics.example", "topics.example:443"),
        ("http://a.topics.example", "topics.example"),
        ("http://topics.example", "a.topics.example"),
        ("http://topics.example.", "topics.example"),
        ("http://topics.example/", "topics.example"),
        ("http://x@topics.example", "topics.example"),
        ("http://topics.example http://evil.example", "topics.example"),
        ("http://topics.example, http://evil.example", "topics.example"),
        ("//topics.example", "topics.example"),
        ("topics.example", "topics.example"),
        ("null", "null"),
        ("", ""),
        ("http://", ""),
        ("tauri://localhost", "localhost"),
        ("http://[::1]:4000", "[::2]:4000"),
        ("http://[::1", "[::1"),
        ("http://::1:80", "::1:80"),
        ("http://topics.example:²", "topics.example:²"),
        ("http://topics.example:999999", "topics.example:999999"),
    ],
)
def test_no_other_origin_passes_for_the_servers_own(origin: str, host: str) -> None:
    """(a) What cannot be understood is refused."""
    verdict = judge(Policy.of((), (), "127.0.0.1", loopback=False), "GET", _headers(origin, host), public=True)
    assert verdict.failure is browser.OTHER_ORIGIN


def _headers(origin: str, host: str) -> dict[bytes, bytes]:
    return {b"origin": origin.encode("latin-1"), b"host": host.encode("latin-1")}


def test_the_servers_own_page_is_served_without_cors_headers(page: tuple[Running, httpx.Client]) -> None:
    """(a)"""
    server, _ = page
    answer = fetch(page, "GET", "/v0/topics", origin=server.url, authorization=f"Bearer {KEY}")
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", " cross-site "])
def test_a_request_of_another_site_without_an_origin_is_refused(page: tuple[Running, httpx.Client], site: str) -> None:
    """(a) An `<img>` or a link of another page sends no Origin; it may look at what holds no data, by GET."""
    site = site.strip()
    for row in ROUTES:
        path = row.path.replace("{", "").replace("}", "")
        free = row.path in ("/", "/openapi.json", "/healthz", "/readyz") or row.path.startswith(
            ("/console", "/v0/health", "/v0/ready")
        )
        answer = fetch(page, row.method, path, sec_fetch_site=site, authorization=f"Bearer {KEY}")
        assert is_refused(answer) is not free, row.path
        assert is_refused(fetch(page, "HEAD", path, sec_fetch_site=site))
        assert is_refused(fetch(page, "POST", path, sec_fetch_site=site))


@pytest.mark.parametrize("site", ["same-origin", "none", "", "something-new"])
def test_a_request_of_our_own_page_or_of_nobodys_is_served(page: tuple[Running, httpx.Client], site: str) -> None:
    """(a) `none` is an address that was typed; what a browser may say one day is not held against it."""
    answer = fetch(page, "GET", "/v0/topics", sec_fetch_site=site, authorization=f"Bearer {KEY}")
    assert answer.status_code == 200


# (b) Host


HOSTS = {
    "127.0.0.1": True,
    "127.0.0.1:4000": True,
    "127.0.0.1.": True,
    "10.1.2.3:80": True,
    "[::1]": True,
    "[::1]:4000": True,
    "[2001:db8::1]:4000": True,
    "localhost": True,
    "localhost:4000": True,
    "LOCALHOST:4000": True,
    "localhost.": True,
    "localhost.:4000": True,
    "localhost:": True,
    "a.localhost": True,
    "a.b.LocalHost:1": True,
    "topics.internal": True,
    "Topics.Internal:4000": True,
    "topics.internal.": True,
    "x.lab.example": True,
    "x.y.lab.example:4000": True,
    "evil.example": False,
    "evil.example:4000": False,
    "lab.example": False,
    "xlab.example": False,
    "x.topics.internal": False,
    "localhost.evil.example": False,
    "127.0.0.1.evil.example": False,
    "127.0.0.1.nip.io:4000": False,
    "evillocalhost": False,
    "localhost..": False,
    "999.1.1.1": False,
    "127.1": False,
    "2130706433": False,
    "": False,
    "*": False,
}
ALLOWED_HOSTS = {"TOPICS_ALLOWED_HOSTS": "topics.internal,*.lab.example"}


@pytest.fixture(scope="module")
def keyless() -> Iterator[Running]:
    with running(env=ALLOWED_HOSTS) as server:
        yield server


@pytest.mark.parametrize(("host", "safe"), HOSTS.items())
def test_on_loopback_without_keys_a_name_must_be_one_that_cannot_be_rebound(
    keyless: Running, host: str, safe: bool
) -> None:
    """(b) Addresses, localhost and what is below it, and what is allowed by name; on every route, probes as well."""
    for path in ("/v0/topics", "/v0/health", "/unknown"):
        answer = ask_raw(keyless, head("GET", path, host=host))
        assert (answer.status != 403) is safe
        assert safe or code(answer) == "forbidden"


def test_a_rebound_page_is_refused_although_its_origin_looks_like_our_own(keyless: Running) -> None:
    """(b) DNS rebinding: to the browser the page and the server are one site."""
    host = f"evil.example:{keyless.port}"
    fields = (f"Origin: http://{host}", "Sec-Fetch-Site: same-origin")
    assert ask_raw(keyless, head("GET", "/v0/topics", *fields, host=host)).status == 403
    preflight = head("OPTIONS", "/v0/topics", *fields, "Access-Control-Request-Method: PUT", host=host)
    assert ask_raw(keyless, preflight).status == 403


def test_no_host_at_all_is_none_of_ours(keyless: Running) -> None:
    """(b) HTTP/1.0 may leave it out."""
    assert ask_raw(keyless, b"GET /v0/topics HTTP/1.0\r\n\r\n").status == 403
    assert ask_raw(keyless, b"GET /v0/topics HTTP/1.0\r\nHost: localhost\r\n\r\n").status == 200


def test_the_absolute_form_does_not_stand_for_the_host(keyless: Running) -> None:
    """(b), [API-25] Its authority is ignored."""
    assert ask_raw(keyless, head("GET", "http://localhost/v0/topics", host="evil.example")).status == 403
    assert ask_raw(keyless, head("GET", "http://evil.example/v0/topics", host="localhost")).status == 200


def test_hosts_are_looked_at_only_on_loopback_without_keys(page: tuple[Running, httpx.Client]) -> None:
    """(b) A key protects by itself; beyond loopback the server has names it does not know."""
    answer = fetch(page, "GET", "/v0/topics", host="evil.example", authorization=f"Bearer {KEY}")
    assert answer.status_code == 200
    with running(loopback=False) as server:
        assert ask_raw(server, head("GET", "/v0/topics", host="evil.example")).status == 200


def test_hosts_are_looked_at_again_once_the_last_key_is_gone() -> None:
    """(b), [KEY-4] Keys may be read anew; what protects follows them."""
    with running(env={"TOPICS_API_KEYS": KEY}) as server:
        request = head("GET", "/v0/topics", f"Authorization: Bearer {KEY}", host="evil.example")
        assert ask_raw(server, request).status == 200
        app = server.server.app
        server.on_loop(lambda: server.server.use_keys(KeyRing((), app.keys)))
        assert ask_raw(server, request).status == 403


@pytest.mark.parametrize(
    ("bind", "allowed", "host", "safe"),
    [
        ("topics-box", (), "topics-box:4000", True),
        ("Topics-Box", (), "topics-box", True),
        ("topics-box", (), "other-box", False),
        ("::1", (), "[::1]:4000", True),
        ("127.0.0.1", ("*",), "anything.example", True),
        ("127.0.0.1", ("a.example.",), "a.example", True),
        ("127.0.0.1", ("*.example",), "example", False),
        ("127.0.0.1", (), "[::1].evil.example", False),
        ("127.0.0.1", (), "[::1%25evil]", False),
        ("127.0.0.1", (), "user@localhost", False),
        ("127.0.0.1", (), "localhost:4000:1", False),
        ("127.0.0.1", (), "evil.example, localhost", False),
    ],
)
def test_the_host_part_of_the_bind_address_counts_and_so_do_patterns(
    bind: str, allowed: tuple[str, ...], host: str, safe: bool
) -> None:
    """(b)"""
    verdict = judge(Policy.of((), allowed, bind, loopback=True), "GET", {b"host": host.encode()}, public=True)
    assert verdict.failure is (None if safe else browser.OTHER_HOST)


def test_a_pattern_of_hosts_is_a_star_and_what_follows_its_dot() -> None:
    """(b), [A-17] What would never match anything stops the start."""
    given = settings.parse({"TOPICS_ALLOWED_HOSTS": "*, *.lab.example,[::1],x_1.y"})
    assert given.settings.allowed_hosts == ("*", "*.lab.example", "[::1]", "x_1.y")
    for bad in ("a*b", "*x", "**", "a.*", "*.*", "x:1", "http://x"):
        with pytest.raises(SettingsError, match="TOPICS_ALLOWED_HOSTS"):
            settings.parse({"TOPICS_ALLOWED_HOSTS": bad})


def test_long_hosts_are_judged_and_not_remembered() -> None:
    """[R-7]"""
    policy = Policy.of((), (), "127.0.0.1", loopback=True)
    before = browser._remembered_safe.cache_info().currsize
    long = b"x" * browser.REMEMBERED_HOST_BYTES + b".localhost"
    assert judge(policy, "GET", {b"host": long}, public=False).failure is None
    assert judge(policy, "GET", {b"host": b"x" + long + b"x"}, public=False).failure is browser.OTHER_HOST
    assert browser._remembered_safe.cache_info().currsize == before


# (c) Listed origins


def check_cors(answer: httpx.Response, origin: str) -> None:
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-expose-headers"] == "Retry-After"
    assert answer.headers.get_list("vary", split_commas=True).count("Origin") == 1
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", [APP, f"{APP}:443", "HTTPS://App.Example", PORTED, SIX, "http://[2001:DB8:0::1]:8080"]
)
def test_every_answer_to_a_listed_origin_says_that_its_page_may_read_it(
    page: tuple[Running, httpx.Client], origin: str
) -> None:
    """(c) Successes and every kind of refusal; the origin as it was sent."""
    _, client = page
    headers = {"origin": origin, "authorization": f"Bearer {KEY}"}
    json = {**headers, "content-type": "application/json"}
    wanted: list[tuple[int, httpx.Response]] = [
        (200, client.get("/v0/topics", headers=headers)),
        (200, client.head("/v0/topics", headers=headers)),
        (200, client.get("/v0/health", headers={"origin": origin})),
        (401, client.get("/v0/topics", headers={"origin": origin})),
        (404, client.get("/v0/unknown", headers=headers)),
        (404, client.get("/v0/topics/none", headers=headers)),
        (405, client.patch("/v0/topics", headers=headers)),
        (415, client.post("/v0/topics/t", content=b"{}", headers=headers)),
        (400, client.post("/v0/topics/t", content=b"{", headers=json)),
        (400, client.post("/v0/topics/t", content=b"x", headers={**json, "content-encoding": "gzip"})),
        (204, client.options("/v0/topics", headers=headers)),
        (204, client.options("/v0/topics", headers={**headers, "access-control-request-method": "PUT"})),
    ]
    for status, answer in wanted:
        assert answer.status_code == status
        check_cors(answer, origin)


def test_refusals_of_scope_size_load_and_host_say_so_too() -> None:
    """(c) 403, 413, 429 and 503."""
    keys = "small:read,busy"
    env = {"TOPICS_API_KEYS": keys, "TOPICS_MAX_INFLIGHT_PER_KEY": "1", "TOPICS_MAX_BODY_BYTES": "10", **LISTED}
    origin = {"origin": APP}
    with running(env=env) as server, server.client() as client:
        json = {**origin, "authorization": "Bearer busy", "content-type": "application/json"}
        large = client.post("/v0/topics/t", content=b"x" * 11, headers=json)
        less = client.put("/v0/topics/t", headers={**origin, "authorization": "Bearer small"})
        usage = server.server.app.keys.keys[1].usage
        server.on_loop(lambda: setattr(usage, "inflight", 1))
        busy = client.get("/v0/topics", headers={**origin, "authorization": "Bearer busy"})
        server.on_loop(lambda: setattr(usage, "inflight", 0))
        assert [one.status_code for one in (large, less, busy)] == [413, 403, 429]
        for answer in (large, less, busy):
            check_cors(answer, APP)
    with running(env=LISTED, recover=False) as server, server.client() as client:
        early = client.get("/v0/topics", headers=origin)
        assert early.status_code == 503
        check_cors(early, APP)
        rebound = client.get("/v0/topics", headers={**origin, "host": "evil.example"})
        assert rebound.status_code == 403
        check_cors(rebound, APP)


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_a_head_that_is_too_large_is_refused_to_a_listed_origin_so_that_its_page_may_read_it(http2: bool) -> None:
    """(c) 431"""
    with running(env=LISTED) as server, server.client(http2=http2) as client:
        answer = client.get("/v0/topics", headers={"origin": APP, **{f"x-{n}": "y" for n in range(200)}})
        assert answer.status_code == 431
        check_cors(answer, APP)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (431, f"X: {'x' * (64 << 10)}"),
        (413, f"Content-Length: {2**64}"),
        (400, "Transfer-Encoding: gzip"),
        (400, "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nno chunk"),
    ],
    ids=["too large", "long body", "coding", "chunk"],
)
def test_what_is_no_request_is_refused_to_a_listed_origin_so_that_its_page_may_read_it(
    status: int, fields: str
) -> None:
    """(c) As soon as the Origin is known."""
    with running(env=LISTED) as server:
        for origin, is_told in ((APP, True), (FOREIGN, False)):
            head = f"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n{fields}\r\n\r\n"
            answer = server.raw(head.encode())
            if is_told:
                assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert (b"\r\naccess-control-allow-origin: %b\r\n" % origin.encode() in answer) == is_told


def test_a_listed_origin_on_our_own_host_is_told_so_as_well() -> None:
    """(c) To a browser http and https of one host are two origins; only the headers let the one read the other."""
    policy = Policy.of(("https://topics.example",), (), "127.0.0.1", loopback=False)
    verdict = judge(policy, "GET", _headers("https://topics.example", "topics.example"), public=False)
    assert dict(verdict.cors)[b"access-control-allow-origin"] == b"https://topics.example"


def test_one_vary_names_both_reasons(page: tuple[Running, httpx.Client]) -> None:
    """(c), [API-16] A gzipped answer to a listed origin."""
    _, client = page
    headers = {"authorization": f"Bearer {KEY}"}
    client.post("/v0/topics/big", json=records("x" * 5000), headers=headers)
    answer = client.post("/v0/topics/big/diff", json={}, headers={**headers, "origin": APP})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.headers.get_list("vary")) == 1
    assert set(answer.headers["vary"].split(", ")) == {"Accept-Encoding", "Origin"}
    check_cors(answer, APP)


def test_a_star_lists_every_origin() -> None:
    """(c) Each is answered with its own name, never with the star; an unknown one is `null`."""
    with running(env={"TOPICS_CORS_ORIGINS": "*", "TOPICS_API_KEYS": KEY}) as server, server.client() as client:
        for origin in (FOREIGN, "null", "app://x"):
            answer = client.get("/v0/topics", headers={"origin": origin, "authorization": f"Bearer {KEY}"})
            assert answer.status_code == 200
            check_cors(answer, origin)
            assert client.get("/v0/topics", headers={"origin": origin}).status_code == 401
        refused = client.get("/v0/topics", headers={"sec-fetch-site": "cross-site"})
        assert refused.status_code == 403


def test_nobody_is_listed_by_default() -> None:
    """(a), (c)"""
    policy = Policy.of((), (), "127.0.0.1", loopback=True)
    assert judge(policy, "GET", _headers(APP, "localhost"), public=True).failure is browser.OTHER_ORIGIN


@pytest.mark.parametrize(
    "text", ["null", "", "http://", "http:///x", "http://a:b", "http://a:123456", "a b", "http://a b"]
)
def test_what_is_no_origin_is_not_taken_for_one(text: str) -> None:
    """(a)"""
    assert Origin.parse(text) is None


# (d) OPTIONS


@pytest.mark.parametrize(
    "path", ["/v0/topics/t", "/v0/topics", "/v0/unknown", "/", "/v0/watch/w_1", "/x/y", "/v0/health"]
)
@pytest.mark.parametrize("origin", [APP, "own"])
def test_a_preflight_needs_no_key_on_any_path(page: tuple[Running, httpx.Client], path: str, origin: str) -> None:
    """(d)"""
    origin = page[0].url if origin == "own" else origin
    answer = fetch(
        page, "OPTIONS", path, origin=origin, access_control_request_method="PUT",
        access_control_request_headers="authorization,content-type",
    )  # fmt: skip
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, PUT, POST, DELETE"
    assert (
        answer.headers["access-control-allow-headers"]
        == "Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID"
    )
    assert answer.headers["access-control-max-age"] == "600"
    assert "allow" not in answer.headers
    if origin == APP:
        check_cors(answer, APP)


def test_a_preflight_is_told_by_its_header_alone(page: tuple[Running, httpx.Client]) -> None:
    """(d) Also without an Origin; and only `OPTIONS` can be one."""
    assert fetch(page, "OPTIONS", "/v0/topics", access_control_request_method="PUT").status_code == 204
    assert fetch(page, "GET", "/v0/topics", access_control_request_method="PUT").status_code == 401
    assert fetch(page, "OPTIONS", "/v0/topics", origin=APP).status_code == 401


def test_a_preflight_takes_no_slot_and_is_answered_while_the_log_is_replayed() -> None:
    """(d), [API-6]"""
    with running(env={"TOPICS_API_KEYS": KEY, **LISTED}, recover=False) as server, server.client(key=KEY) as client:
        headers = {"origin": APP, "access-control-request-method": "POST"}
        assert client.options("/v0/topics/t", headers=headers).status_code == 204
        assert client.post("/v0/topics/t", headers=headers).status_code == 503
        wait_until(server, lambda: not server.server.app.keys.keys[0].usage.inflight)


def test_any_other_options_names_the_methods(page: tuple[Running, httpx.Client]) -> None:
    """(d) With the scope of the route; see test_scopes_and_prefixes for which."""
    answer = fetch(page, "OPTIONS", "/v0/topics", authorization=f"Bearer {KEY}")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD")
    assert not [name for name in answer.headers if name.startswith("access-control-")]
