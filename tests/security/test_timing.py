"""Checking a token takes the same steps whichever key it is, or none [KEY-6]. Steps are counted, not seconds."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.api.kit import Running, running
from tests.security.kit import VERSIONS, ask_raw, head
from topics.server import keys
from topics.server.keys import KeyRing, parse

SECRETS = [f"secret-{n:02}" for n in range(7)]
TOKENS = {
    "the first key": SECRETS[0],
    "one in the middle": SECRETS[3],
    "the last key": SECRETS[-1],
    "no key": "nobody",
    "nothing": "",
    "a beginning of a key": SECRETS[0][:-1],
    "very long": "x" * 20_000,
}


class Steps:
    """What was done since it was last asked."""

    def __init__(self) -> None:
        self.compared: list[tuple[bytes, bytes]] = []
        self.hashed: list[bytes] = []

    def take(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        taken = self.compared, self.hashed
        self.compared, self.hashed = [], []
        return taken


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    seen = Steps()

    def compare(a: bytes, b: bytes) -> bool:
        seen.compared.append((a, b))
        return hmac.compare_digest(a, b)

    def sha256(data: bytes) -> Any:
        seen.hashed.append(data)
        return hashlib.sha256(data)

    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=compare))
    monkeypatch.setattr(keys, "hashlib", SimpleNamespace(sha256=sha256))
    return seen


def check(steps: Steps, token: str) -> None:
    """One hash of the token; then every digest once, whole, in the order of the ring."""
    compared, hashed = steps.take()
    assert hashed == [token.encode()]
    digests = [hashlib.sha256(secret.encode()).digest() for secret in SECRETS]
    assert compared == [(digest, hashlib.sha256(token.encode()).digest()) for digest in digests]


@pytest.mark.parametrize("what", TOKENS)
def test_a_token_is_compared_with_every_digest_and_hashed_once(steps: Steps, what: str) -> None:
    """[KEY-6] No early exit, neither on a match nor without one."""
    ring = KeyRing(parse(",".join(SECRETS)))
    steps.take()
    found = ring.find(TOKENS[what].encode())
    assert (found is not None) is (TOKENS[what] in SECRETS)
    check(steps, TOKENS[what])


def test_the_ring_does_not_compare_digests_in_any_other_way() -> None:
    """[KEY-6] A digest that only `compare_digest` may look at is enough to find a key."""

    class Sealed(bytes):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared by value")

        __hash__ = bytes.__hash__

    ring = KeyRing(parse(",".join(SECRETS)))
    for key in ring.keys:
        key.digest = Sealed(key.digest)
    assert ring.find(SECRETS[2].encode()) is ring.keys[2]
    assert ring.find(b"nobody") is None


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": ",".join(SECRETS)}) as one:
        yield one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", TOKENS)
def test_so_it_is_with_requests(server: Running, steps: Steps, what: str, version: str) -> None:
    """[KEY-6] On paths that exist and paths that do not."""
    with server.client(http2=version == "http2", key=TOKENS[what] or None) as client:
        for path in ("/v0/topics", "/v0/topics/none", "/nowhere"):
            assert (client.get(path).status_code == 401) is (TOKENS[what] not in SECRETS)
            check(steps, TOKENS[what])


@pytest.mark.parametrize("line", ["X-None: 1", "Authorization: Basic abc", "Authorization: Bearer", "Authorization: x"])
def test_a_request_without_a_token_takes_the_same_steps(server: Running, steps: Steps, line: str) -> None:
    """[KEY-6]"""
    assert ask_raw(server, head("GET", "/v0/topics", line)).status == 401
    check(steps, "")
