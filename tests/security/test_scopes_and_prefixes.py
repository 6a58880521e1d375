"""What keys say and how they are presented: tokens, scopes, prefixes, lists (09 §1–§3; 02 API-7, API-8, API-27)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.kit import WAIT_S, Running, records, running
from tests.security.kit import VERSIONS, GateFs, ask_raw, code, head, wait_until
from topics.server.keys import ADMIN, DELETE, READ, WRITE, KeyRing, parse, presented
from topics.server.routes import REMEMBERED_METHOD_BYTES, REMEMBERED_PATH_BYTES, _remembered, resolve

BOSS = "boss-9a"
READER = "reader-1b"
WRITER = "writer-2c"
WORKER = "worker-3d"
ADMIN_ONLY = "admin-4e"
PLANT = "plant-5f"
SPACED = "two words"
FOREIGN = "schlüssel-ß"
KEYS = (
    f"{BOSS},{READER}:read,{WRITER}:w,{WORKER}:rw,{ADMIN_ONLY}:a,{PLANT}:rw:plant3:|shared.,{SPACED}:read,{FOREIGN}::"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        yield one


@pytest.fixture(params=VERSIONS)
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[httpx.Client]:
    with server.client(http2=request.param == "http2") as one:
        yield one


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# How a token is presented


@pytest.mark.parametrize(
    "authorization",
    [
        f"Bearer {READER}", f"bearer {READER}", f"BEARER {READER}", f"bEaReR {READER}", f"Bearer    {READER}",
        f"Bearer {SPACED}", f"Bearer {FOREIGN}",
    ],
)  # fmt: skip
def test_a_token_is_found_however_its_header_is_spelt(client: httpx.Client, authorization: str) -> None:
    """[API-7, API-27] The scheme has no case; spaces around the token do not count; its bytes are UTF-8."""
    answer = client.get("/v0/topics", headers={b"authorization": authorization.encode()})
    assert answer.status_code == 200


def test_space_behind_a_token_is_none_of_it(server: Running) -> None:
    """[API-7]"""
    for space in (" ", "   ", "\t"):
        assert ask_raw(server, head("GET", "/v0/topics", f"Authorization: Bearer {READER}{space}")).status == 200


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"Bearer", b"Bearer ", b"Bearer   ", b"Bearer\t" + READER.encode(), b"Bearer" + READER.encode(),
        b"Bearer: " + READER.encode(), b"Bearer " + READER.encode() + b" x", b"Bearer \"" + READER.encode() + b'"',
        b"Bearer " + READER.encode() + b", Bearer " + READER.encode(), b"Bearer Bearer " + READER.encode(),
        b"Token " + READER.encode(), b"Basic cmVhZGVyLTFiOg==", b"Bearer \xff\xfe",
        b"Bearer " + FOREIGN.encode("latin-1"), b"Bearer " + b"x" * 30_000,
    ],
)  # fmt: skip
def test_anything_else_is_no_token(server: Running, value: bytes) -> None:
    """[API-7, SCP-1]"""
    request = head("GET", "/v0/topics").removesuffix(b"\r\n") + b"Authorization: " + value + b"\r\n\r\n"
    answer = ask_raw(server, request)
    assert (answer.status, code(answer)) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_two_authorization_headers_are_no_token(server: Running) -> None:
    """[API-7] Neither of them is picked, not even of two equal ones."""
    for second in (READER, "nobody"):
        lines = (f"Authorization: Bearer {READER}", f"Authorization: Bearer {second}")
        assert ask_raw(server, head("GET", "/v0/topics", *lines)).status == 401


@pytest.mark.parametrize(
    ("authorization", "query", "token"),
    [
        (None, b"", b""),
        (None, b"token=abc", b"abc"),
        (None, b"x=1&token=a+b%2Bc%C3%A9&token=second", "a b+cé".encode()),
        (None, b"tok%65n=abc", b"abc"),
        (None, b"token=&token=abc", b""),
        (None, b"token", b""),
        (None, b"token=%ff%zz", b"\xff%zz"),
        (None, b"Token=abc&xtoken=abc", b""),
        (b"Bearer h", b"token=q", b"h"),
        (b"Bearer ", b"token=q", b""),
        (b"Basic h", b"token=q", b""),
        (b"", b"token=q", b""),
    ],
)
def test_a_token_in_a_query_is_form_encoded_and_the_header_wins(
    authorization: bytes | None, query: bytes, token: bytes
) -> None:
    """[API-8] The first of several counts; a header counts even if there is nothing good in it."""
    assert presented(authorization, query) == token


def test_a_token_in_the_query_counts_on_the_stream_of_jobs_and_nowhere_else(client: httpx.Client) -> None:
    """[API-8] The other stream checks its key itself."""
    assert client.get(f"/v0/topics/x/work?token={WORKER}").status_code not in (401, 403)
    assert client.get(f"/v0/topics/x/work?token={READER}").status_code == 403
    assert client.get("/v0/topics/x/work?token=nobody").status_code == 401
    assert client.get(f"/v0/topics/x/work?token={WORKER}", headers=bearer("nobody")).status_code == 401
    assert client.get("/v0/topics/x/work?token=nobody", headers=bearer(WORKER)).status_code not in (401, 403)
    assert client.request("POST", f"/v0/topics/x/work?token={WORKER}").status_code == 401
    assert client.request("HEAD", f"/v0/topics/x/work?token={WORKER}").status_code == 401
    assert client.get(f"/v0/ws?token={BOSS}").status_code == 401


# Entries


def test_of_two_entries_with_one_secret_the_last_counts() -> None:
    """[KEY-7]"""
    ring = KeyRing(parse("same::a,other,same:read:b"))
    assert len(ring) == 2
    found = ring.find(b"same")
    assert found is not None
    assert (found.scopes, found.prefixes) == (frozenset({READ}), ("b",))


def test_an_entry_means_what_it_says() -> None:
    """[KEY-1, KEY-2, KEY-3]"""
    ring = KeyRing(parse(" a , ,b:R + Del,c::, d:rw: p:1 | |q ,e::x,"))
    found = {secret: ring.find(secret) for secret in (b"a", b"b", b"c", b"d", b"e")}
    everything = frozenset({READ, WRITE, DELETE, ADMIN})
    told = {secret: (key.scopes, key.prefixes) for secret, key in found.items() if key is not None}
    assert told == {
        b"a": (everything, ()),
        b"b": (frozenset({READ, DELETE}), ()),
        b"c": (everything, ()),
        b"d": (frozenset({READ, WRITE}), ("p:1", "q")),
        b"e": (everything, ("x",)),
    }


# Scopes


def test_creating_a_topic_with_a_configuration_needs_the_scope_admin(client: httpx.Client, topic: str) -> None:
    """[WR-1, WR-6, PFX-2] Only where the write would create it; nothing is created by the refusal."""
    path = f"/v0/topics/{topic}"
    refused = client.post(path, json=records(1, config={"cap_records": 5}), headers=bearer(WRITER))
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "forbidden"
    assert refused.json()["error"]["detail"] == {"topic": topic}
    assert client.get(path, headers=bearer(BOSS)).status_code == 404
    assert client.post(path, json=records(1, config={}), headers=bearer(WRITER)).status_code == 403
    assert client.post(path, json=records(1, config=None), headers=bearer(WRITER)).status_code == 201
    ignored = client.post(path, json=records(2, config={"cap_records": 5}), headers=bearer(WRITER))
    assert ignored.status_code == 200
    assert client.get(path, headers=bearer(BOSS)).json()["config"]["cap_records"] == 0
    unfit = client.post(path, json=records(2, config={"cap_records": "x"}), headers=bearer(WRITER))
    assert unfit.status_code == 400


def test_a_key_that_has_both_scopes_creates_with_a_configuration(client: httpx.Client, topic: str) -> None:
    """[WR-1]"""
    path = f"/v0/topics/{topic}"
    assert client.post(path, json=records(1, config={"cap_records": 5}), headers=bearer(BOSS)).status_code == 201
    assert client.get(path, headers=bearer(BOSS)).json()["config"]["cap_records"] == 5


def test_a_write_that_waits_behind_a_delete_does_not_bring_the_topic_back_configured(tmp_path: Path) -> None:
    """[WR-1, SCP-2] It passed the check because the topic was there; it may not use that once it is gone."""
    fs = GateFs()
    with running(tmp_path, {"TOPICS_API_KEYS": KEYS}, fs=fs) as server, server.client(key=BOSS) as client:
        engine = server.server.app.engine
        assert engine is not None
        core = engine.core
        assert client.post("/v0/topics/t", json=records(1)).status_code == 201
        answers: dict[str, httpx.Response] = {}

        def ask(what: str, method: str, key: str, **more: object) -> threading.Thread:
            def run() -> None:
                with server.client(key=key) as other:
                    answers[what] = other.request(method, "/v0/topics/t", **more)  # type: ignore[arg-type]

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        fs.gate.clear()
        deleting = ask("delete", "DELETE", BOSS)
        wait_until(server, lambda: "t" in core.gates)
        writing = ask("write", "POST", WRITER, json=records(2, config={"durability": "fsync", "cap_records": 1}))
        wait_until(server, lambda: core.gates.get("t"))
        fs.gate.set()
        deleting.join(WAIT_S)
        writing.join(WAIT_S)
        assert answers["delete"].json()["deleted"] is True
        assert (answers["write"].status_code, code(answers["write"])) == (404, "topic_not_found")
        assert client.get("/v0/topics/t").status_code == 404


def test_asking_for_the_methods_of_a_path_takes_a_key_for_one_of_them(client: httpx.Client) -> None:
    """[API-22] `OPTIONS` that is no preflight: 204 with `Allow`."""
    for key in (BOSS, READER, WRITER, ADMIN_ONLY):
        answer = client.options("/v0/topics/x", headers=bearer(key))
        assert answer.status_code == 204
        assert answer.headers["allow"] == "DELETE, GET, HEAD, POST, PUT"
        assert answer.content == b""
    assert client.options("/v0/topics/x/diff", headers=bearer(READER)).headers["allow"] == "POST"
    assert client.options("/v0/topics/x/diff", headers=bearer(WRITER)).status_code == 403
    assert client.options("/v0/settings", headers=bearer(READER)).status_code == 403
    assert client.options("/v0/topics", headers=bearer(WRITER)).status_code == 403
    assert client.options("/v0/topics").status_code == 401
    assert client.options("/v0/health").status_code == 204
    assert client.options("/v0/topics/x/none", headers=bearer(WRITER)).status_code == 404
    assert client.options("/v0/topics/other", headers=bearer(PLANT)).status_code == 403


def test_head_needs_what_get_needs_and_has_no_body(client: httpx.Client, topic: str) -> None:
    """[API-21]"""
    path = f"/v0/topics/{topic}"
    client.post(path, json=records(1), headers=bearer(BOSS))
    assert client.head(path).status_code == 401
    assert client.head(path, headers=bearer(WRITER)).status_code == 403
    answer = client.head(path, headers=bearer(READER))
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
    assert client.head(f"{path}/work", headers=bearer(WORKER)).status_code in (404, 405)
    assert client.head(f"{path}/work", headers=bearer(READER)).status_code == 403
    assert client.head("/v0/health").status_code == 200


def test_the_order_of_refusals_is_key_then_scope_then_route(client: httpx.Client) -> None:
    """[API-20] Nobody learns of a path, a method, a size or a type without the key for it."""
    json = {"content-type": "application/json"}
    assert client.put("/v0/topics/x/nothing").status_code == 401
    assert client.put("/v0/topics/x/nothing", headers=bearer(READER)).status_code == 403
    assert client.put("/v0/topics/x/nothing", headers=bearer(WRITER)).status_code == 404
    assert client.patch("/v0/topics/x", headers=bearer(READER)).status_code == 403
    assert client.patch("/v0/topics/x", headers=bearer(WRITER)).status_code == 405
    assert client.post("/v0/topics/x", content=b"{", headers=json).status_code == 401
    assert client.post("/v0/topics/x", content=b"{", headers={**json, **bearer(READER)}).status_code == 403
    assert client.post("/v0/topics/x", content=b"{", headers=bearer(READER)).status_code == 403
    assert client.post("/v0/topics/x", content=b"{", headers=bearer(WRITER)).status_code == 415


def test_a_declared_size_is_looked_at_behind_the_key(server: Running) -> None:
    """[API-20] 401 and 403 before 413."""
    fields = ("Content-Type: application/json", "Content-Length: 999999999999")
    for key, status in (("nobody", 401), (READER, 403), (WRITER, 413)):
        request = head("POST", "/v0/topics/x", f"Authorization: Bearer {key}", *fields)
        assert ask_raw(server, request).status == status


# Prefixes


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v0/topics/plant3:a", 404),
        ("/v0/topics/plant3%3Aa", 404),
        ("/v0/topics/%70lant3:a", 404),
        ("/v0/topics/shared.x", 404),
        ("/v0/topics/plant3", 403),
        ("/v0/topics/plant4:a", 403),
        ("/v0/topics/Plant3:a", 403),
        ("/v0/topics/%2570lant3:a", 403),
        ("/v0/topics/x%2Fplant3:a", 403),
        ("/v0/topics/%00plant3:a", 403),
        ("/v0/topics/%ffplant3:a", 403),
        ("/v0/topics/ plant3:a".replace(" ", "%20"), 403),
        ("/v0/topics/%zzplant3:", 403),
        ("/v0/topics/..%2Fplant3:a", 403),
        ("/v0/t%6Fpics/plant4:a", 403),
        ("/v0/t%6Fpics/plant3:a", 404),
        ("/%760/topics/plant4:a", 403),
        ("/v0/topics/plant4:a/unknown", 403),
        ("/v0/topics/plant3%3Aa/unknown", 404),
        ("/v0/topics/plant4:a/../plant3:a", 403),
        ("/v0/topics/$deletes", 403),
    ],
)
def test_prefixes_apply_to_the_name_as_it_is_once_decoded(server: Running, path: str, status: int) -> None:
    """[PFX-1, API-27] Segments are split first, then each is decoded once; nothing is resolved."""
    assert ask_raw(server, head("GET", path, f"Authorization: Bearer {PLANT}")).status == status


def test_segments_are_decoded_once_whether_they_are_names_or_not() -> None:
    """[API-27]"""
    assert resolve("POST", b"/v0/topics/a%3Ab/d%69ff").route is resolve("POST", b"/v0/topics/x/diff").route
    assert resolve("POST", b"/v0/topics/a%3Ab/diff").name == "a:b"
    assert resolve("GET", b"/v0/topics/a%2Fdiff").name == "a/diff"
    assert resolve("GET", b"/v0/topics/%252e").name == "%2e"
    assert resolve("GET", b"/v0%2Ftopics/x").route is None
    assert resolve("GET", b"/v0/topics/..").name == ".."
    assert resolve("GET", b"/v0/topics/\xff").name not in (None, "")
    assert resolve("GET", b"/console/a/b/c.js").params == {"file": "a/b/c.js"}
    assert resolve("GET", b"healthz").route is None
    assert resolve("OPTIONS", b"*").failure is not None


def test_what_strangers_send_is_not_remembered_beyond_its_bound() -> None:
    """[R-7] Neither long paths nor long methods stay in memory."""
    before = _remembered.cache_info().currsize
    for n in range(10):
        resolve("GET", b"/v0/topics/" + b"x" * REMEMBERED_PATH_BYTES + b"%d" % n)
        resolve("M" * (REMEMBERED_METHOD_BYTES + 1) + str(n), b"/v0/topics")
    assert _remembered.cache_info().currsize == before


def test_lists_hold_only_permitted_names_and_page_as_if_there_were_no_others(client: httpx.Client) -> None:
    """[PFX-4, TOP-8, PAG-2] Filtered names neither take places on a page nor make a cursor."""
    mine = [f"plant3:{n}" for n in range(5)] + ["shared.a", "shared.b"]
    others = [f"plant2:{n}" for n in range(5)] + ["plant3", "plant4:x", "shared", "zz"]
    for name in (*mine, *others):
        assert client.post(f"/v0/topics/{name}", json=records(1), headers=bearer(BOSS)).status_code in (200, 201)
    for size in (1, 2, 3, 6, 7, 100):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = client.get("/v0/topics", params={"page_size": size, "cursor": cursor}, headers=bearer(PLANT)).json()
            names = [one["topic"] for one in page["topics"]]
            assert len(names) == min(size, len(mine) - len(seen))
            seen += names
            cursor = page.get("next_cursor")
        assert seen == mine
    asked = {"prefix": "plant", "page_size": 5}
    page = client.get("/v0/topics", params=asked, headers=bearer(PLANT)).json()
    assert [one["topic"] for one in page["topics"]] == mine[:5]
    assert "next_cursor" not in page
    assert client.get("/v0/topics", params={"prefix": "zz"}, headers=bearer(PLANT)).json()["topics"] == []
    everything = client.get("/v0/topics", params={"page_size": 1000}, headers=bearer(READER)).json()["topics"]
    assert {one["topic"] for one in everything} >= {*mine, *others}


def test_a_forged_cursor_opens_no_other_name(client: httpx.Client) -> None:
    """[PFX-4]"""
    assert client.post("/v0/topics/plant4:x", json=records(1), headers=bearer(BOSS)).status_code in (200, 201)
    # {"after":"plant3:~"}: just before the names of plant4
    cursor = "eyJhZnRlciI6InBsYW50Mzp-In0"
    page = client.get("/v0/topics", params={"cursor": cursor}, headers=bearer(PLANT)).json()
    assert all(one["topic"].startswith("shared.") for one in page["topics"])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    name: str = request.node.name
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[-100:].lstrip("._-")
