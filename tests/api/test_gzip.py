"""Compression in and out (02 API-16)."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.expect import ok
from tests.api.kit import Running, records, running
from tests.api.rawclient import RawClient, in_flight, leave, request, until

JSON = {"content-type": "application/json"}
PACKED = {**JSON, "content-encoding": "gzip"}
BODY = b'{"records":[{"data":"' + b"x" * 50 + b'"}]}'


def large_body(size: int) -> bytes:
    """A write of that many bytes that does not compress away."""
    text = random.Random(7).randbytes(size // 2).hex()
    return b'{"records":[%b]}' % b",".join(
        b'{"data":"%b"}' % text[at : at + 1000].encode() for at in range(0, size, 1000)
    )


# -- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
def test_a_gzipped_body_is_read(client: httpx.Client, topic: str, encoding: str) -> None:
    """[API-16]"""
    headers = {**JSON, "content-encoding": encoding}
    assert client.post(f"/v0/topics/{topic}", content=gzip.compress(BODY), headers=headers).status_code == 201
    assert client.post(f"/v0/topics/{topic}/diff", json={}).json()["records"][0]["data"] == "x" * 50


def test_several_members_are_one_stream(client: httpx.Client, topic: str) -> None:
    """[API-16]: empty ones included, cut in the middle of a token."""
    members = [gzip.compress(part) for part in (b"", BODY[:3], BODY[3:30], b"", BODY[30:], b"")]
    assert client.post(f"/v0/topics/{topic}", content=b"".join(members), headers=PACKED).status_code == 201


@pytest.mark.parametrize("size", [70_000, 3_000_000])
def test_a_large_gzipped_body_is_read_in_chunks(client: httpx.Client, topic: str, size: int) -> None:
    """[API-16]: inflated aside."""
    packed = gzip.compress(large_body(size))
    parts = (packed[at : at + 10_000] for at in range(0, len(packed), 10_000))
    answer = client.post(f"/v0/topics/{topic}?return_seqs=false", content=parts, headers=PACKED)
    assert (answer.status_code, answer.json()["count"]) == (201, size // 1000)


BROKEN = {
    "not gzip": BODY,
    "zlib": zlib.compress(BODY),
    "cut short": gzip.compress(BODY)[:-1],
    "cut in the header": gzip.compress(BODY)[:5],
    "only a header": gzip.compress(BODY)[:10],
    "a wrong checksum": gzip.compress(BODY)[:-8] + b"\0\0\0\0" + gzip.compress(BODY)[-4:],
    "a wrong length": gzip.compress(BODY)[:-4] + b"\0\0\0\0",
    "flipped bits": gzip.compress(BODY)[:20] + b"\xff\xff\xff\xff" + gzip.compress(BODY)[24:],
    "bytes behind": gzip.compress(BODY) + b"x",
    "zeros behind": gzip.compress(BODY) + b"\0" * 512,
    "half a member behind": gzip.compress(BODY) + gzip.compress(b"  ")[:-1],
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_corrupt_gzip_and_bytes_after_the_last_member_are_400(
    client: httpx.Client, topic: str, case: str, large: bool
) -> None:
    """[API-16]"""
    content = BROKEN[case]
    if large and not case.startswith(("not", "zlib")):
        content = gzip.compress(random.Random(1).randbytes(40_000).hex().encode()) + content
    answer = client.post(f"/v0/topics/{topic}", content=content, headers=PACKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert client.get(f"/v0/topics/{topic}").status_code == 404
    assert client.get("/v0/health").status_code == 200


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "identity, gzip", "compress"])
def test_any_other_encoding_is_415(client: httpx.Client, topic: str, encoding: str) -> None:
    """[API-16]"""
    headers = {**JSON, "content-encoding": encoding}
    answer = client.post(f"/v0/topics/{topic}", content=gzip.compress(BODY), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_identity_is_no_encoding(client: httpx.Client, topic: str, encoding: str) -> None:
    """[API-16]"""
    headers = {**JSON, "content-encoding": encoding}
    assert client.post(f"/v0/topics/{topic}", content=BODY, headers=headers).status_code == 201


@pytest.mark.parametrize("size", [10, 30_000])
def test_inflated_text_is_checked_for_utf8(client: httpx.Client, topic: str, size: int) -> None:
    """[API-11, API-16]"""
    noise = random.Random(2).randbytes(size).hex().encode()
    packed = gzip.compress(b'{"records":[{"data":"%b\xff"}]}' % noise)
    assert client.post(f"/v0/topics/{topic}", content=packed, headers=PACKED).status_code == 400


def test_an_inflated_body_is_given_back_when_it_is_staged(server: Running, client: httpx.Client, topic: str) -> None:
    """09 §5 `max_buffered_bytes`"""
    client.post(f"/v0/topics/{topic}", content=gzip.compress(large_body(2_000_000)), headers=PACKED)
    client.post(f"/v0/topics/{topic}", content=gzip.compress(b"[" + BODY), headers=PACKED)
    client.post(f"/v0/topics/{topic}", content=b"junk" * 10_000, headers=PACKED)
    assert server.on_loop(lambda: server.server.app.buffered.used) == 0


def test_a_client_that_leaves_while_its_body_is_inflated_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """[RES-7, API-23]: nothing of it is executed."""
    env = {"TOPICS_API_KEYS": "k", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(env=env) as server, server.client(key="k") as client:
        app, held = server.server.app, list[Callable[[], None]]()

        def hold(work: Callable[[], Any], then: Callable[[Any], None], fail: object) -> None:
            held.append(lambda: then(work()))

        monkeypatch.setattr(app, "aside", hold)
        fields = ["Authorization: Bearer k", "Content-Encoding: gzip"]
        with RawClient(server) as gone:
            gone.send(request("POST", "/v0/topics/t", *fields, body=gzip.compress(large_body(100_000))))
            until(server, lambda: bool(held))
            assert in_flight(server) == 1
            leave(server, gone)
        server.on_loop(held.pop())
        assert (in_flight(server), server.on_loop(lambda: app.buffered.used)) == (0, 0)
        assert ok(client.get("/v0/topics"))["topics"] == []


# -- out -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(server: Running) -> str:
    """A topic whose records fill answers of any size."""
    with server.client() as one:
        for n in range(40):
            one.post("/v0/topics/filled", json=records(*(f"{n}-{m}-" + "y" * 90 for m in range(25))))
    return "/v0/topics/filled/diff"


def ask(client: httpx.Client, path: str, limit: int, accept: str | None) -> httpx.Response:
    headers = {**JSON, "accept-encoding": accept} if accept is not None else JSON
    request = client.build_request("POST", path, json={"limit": limit}, headers=headers)
    if accept is None:
        del request.headers["accept-encoding"]
    return client.send(request)


ALLOWS = ["gzip", "GZIP", "x-gzip", "br, gzip", "gzip;q=0.001", "gzip; Q=0.5", "*", "*;q=0.1", "br;q=1.0, gzip;q=0.1",
          "identity;q=0, gzip", "*;q=0, gzip;q=1"]  # fmt: skip
FORBIDS = [
    None,
    "",
    "identity",
    "br",
    "gzip;q=0",
    "gzip;q=0.000",
    "*;q=0",
    "gzip;q=0, *;q=1",
    "gzip;q=x",
    "deflate, br",
]


@pytest.mark.parametrize("limit", [20, 1000], ids=["on the loop", "aside"])
@pytest.mark.parametrize("accept", ALLOWS)
def test_an_answer_from_1_kib_on_is_gzipped_when_allowed(
    client: httpx.Client, filled: str, accept: str, limit: int
) -> None:
    """[API-16]: with `Vary`, and it is the same answer."""
    answer = ask(client, filled, limit, accept)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) < len(answer.content)
    plain = ask(client, filled, limit, None).json()
    assert (len(answer.content) > 64 << 10) == (limit == 1000)
    assert {**answer.json(), "performance": 0} == {**plain, "performance": 0}


@pytest.mark.parametrize("limit", [20, 1000])
@pytest.mark.parametrize("accept", FORBIDS)
def test_an_answer_is_not_gzipped_when_that_is_not_allowed(
    client: httpx.Client, filled: str, accept: str | None, limit: int
) -> None:
    """[API-16]"""
    answer = ask(client, filled, limit, accept)
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_an_answer_below_1_kib_is_sent_as_it_is(client: httpx.Client, topic: str) -> None:
    """[API-16]"""
    answer = client.post(f"/v0/topics/{topic}", json=records(1), headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert "vary" not in answer.headers


def test_head_tells_the_length_of_the_gzipped_answer(client: httpx.Client, filled: str) -> None:
    """[API-16, API-21]"""
    full = client.get("/v0/settings", headers={"accept-encoding": "gzip"})
    bare = client.head("/v0/settings", headers={"accept-encoding": "gzip"})
    assert full.headers["content-encoding"] == bare.headers["content-encoding"] == "gzip"
    assert bare.content == b""
    assert abs(int(bare.headers["content-length"]) - int(full.headers["content-length"])) < 20
    assert client.get("/v0/health").status_code == 200


def test_vary_of_gzip_and_of_an_origin_are_one_field(topic: str) -> None:
    """[API-16, API-22]"""
    with running(env={"TOPICS_CORS_ORIGINS": "https://board.example"}) as server, server.client() as client:
        headers = {"accept-encoding": "gzip", "origin": "https://board.example"}
        answer = client.get("/v0/settings", headers=headers)
        assert answer.headers["vary"] == "Accept-Encoding, Origin"
