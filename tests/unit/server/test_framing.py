"""Readers of heads and chunked bodies: cut anywhere they see the same, and whatever comes they only refuse."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.server.exchange import Head
from topics.server.framing import FIELDS, HEAD_BYTES, ChunkReader, HeadReader, Malformed

HEADS = (
    b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\n\r\nGET /v0/topics?prefix=x HTTP/1.0\r\n\r\n",
    b"GET http://a:80/x?y HTTP/1.1\r\nHost: b:1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"DELETE https://a?x HTTP/1.1\r\nHost: [::1]:4000\r\nX: 1 \t\r\nx: 2\r\n\r\n",
    b"M-SEARCH'S /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n",
)
WITH_BODY = b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n1;a=b\r\n \r\n00a ; c\r\n0123456789\r\n0\r\nT: x\r\n\r\n"


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % len(data) for place in at}), len(data)]
    return [data[a:b] for a, b in pairwise(places) if a < b]


def heads(pieces: list[bytes]) -> list[tuple[Head, bool]]:
    reader, found = HeadReader(), []
    for piece in pieces:
        at = 0
        while at < len(piece):
            at, head = reader.read(piece, at)
            if head is not None:
                found.append((head, reader.keep_alive))
    return found


def chunks(pieces: list[bytes], lines_max: int = 1000) -> tuple[bytes, bytes]:
    """The body, and what lay behind it."""
    reader, behind = ChunkReader(), b""
    parts: list[bytes] = []
    for piece in pieces:
        at = 0
        while at < len(piece) and not reader.is_complete:
            at = reader.read(piece, at, parts, lines_max)
        behind += piece[at:]
    assert reader.is_complete
    return b"".join(parts), behind


def test_heads_are_read_as_they_were_meant() -> None:
    """[API-25, API-27]"""
    told = [(one.method, one.target, one.declared, keep) for one, keep in heads([b"".join(HEADS)])]
    assert told == [
        ("GET", b"/v0/health", 0, True),
        ("GET", b"/v0/topics?prefix=x", 0, False),
        ("GET", b"/x?y", 0, True),
        ("DELETE", b"/?x", 0, True),
        ("M-SEARCH'S", b"/x", 0, True),
        ("OPTIONS", b"*", 0, False),
    ]
    (_, _, _, (joined, _), _, _) = heads([b"".join(HEADS)])
    assert joined.headers == {b"host": b"[::1]:4000", b"x": b"1, 2"}
    ((head, _),) = heads([WITH_BODY])
    assert (head.declared, head.expects) == (None, True)


@given(st.lists(st.integers(0, 10_000), max_size=60))
def test_heads_cut_anywhere_are_the_same_heads(at: list[int]) -> None:
    """[API-25]"""
    whole = b"".join(HEADS)
    assert heads(cut(whole, at)) == heads([whole])


@given(st.lists(st.integers(0, 10_000), max_size=60), st.integers(1, 5))
def test_a_chunked_body_cut_anywhere_is_the_same_body_and_ends_where_it_ends(at: list[int], lines_max: int) -> None:
    """[API-25]"""
    assert chunks(cut(CHUNKS + b"GET / HTTP", at), lines_max) == (b"hello 0123456789", b"GET / HTTP")


@given(st.binary(max_size=200), st.integers(0, 10_000), st.lists(st.integers(0, 10_000), max_size=5))
def test_bytes_of_a_stranger_are_requests_or_malformed_and_nothing_else(junk: bytes, place: int, at: list[int]) -> None:
    """13 §5: no other exception leaves the readers."""
    for sample, read in ((b"".join(HEADS), heads), (CHUNKS, body_or_none)):
        where = place % len(sample)
        with suppress(Malformed):
            read(cut(sample[:where] + junk + sample[where + len(junk) // 2 :], at))


def body_or_none(pieces: list[bytes]) -> None:
    reader = ChunkReader()
    parts: list[bytes] = []
    for piece in pieces:
        at = 0
        while at < len(piece) and not reader.is_complete:
            at = reader.read(piece, at, parts, 1000)
    assert len(b"".join(parts)) == reader.size


def padded(size: int, field: bytes = b"X: ") -> bytes:
    start = b"GET / HTTP/1.1\r\nHost: a\r\n" + field
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("cuts", [[], [1, 300, 65535]], ids=["whole", "cut"])
def test_a_head_of_64_kib_is_accepted_and_one_byte_more_is_431(cuts: list[int]) -> None:
    """02 §1.9"""
    assert len(heads(cut(padded(HEAD_BYTES), cuts))) == 1
    with pytest.raises(Malformed) as refused:
        heads(cut(padded(HEAD_BYTES + 1), cuts))
    assert refused.value.failure.status == 431


def test_blanks_that_a_parser_drops_count_into_the_head() -> None:
    """02 §1.9"""
    with pytest.raises(Malformed) as refused:
        heads([b"GET / HTTP/1.1\r\nHost: a\r\nX:" + b" " * HEAD_BYTES])
    assert refused.value.failure.status == 431


def test_128_fields_are_accepted_and_one_more_is_431() -> None:
    """02 §1.9"""
    lines = b"".join(b"x%d: y\r\n" % n for n in range(FIELDS - 1))
    assert len(heads([b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % lines])) == 1
    with pytest.raises(Malformed) as refused:
        heads([b"GET / HTTP/1.1\r\nHost: a\r\n%bx: y\r\n\r\n" % lines])
    assert refused.value.failure.status == 431


@pytest.mark.parametrize("method", [b"GET", b"FOO", b"brew", b"DESCRIBE", b"PRI", b"x" * 1000])
def test_every_token_is_a_method(method: bytes) -> None:
    """[API-21] Whether or not httptools knows it, and however it is cut."""
    whole = method + b" /v0/health HTTP/1.1\r\nHost: a\r\n\r\n"
    for pieces in ([whole], cut(whole, list(range(len(whole))))):
        ((head, keep),) = heads(pieces * 2)[:1]
        assert (head.method, head.target, keep) == (method.decode(), b"/v0/health", True)


@pytest.mark.parametrize(
    "line", [b"\x16\x03", b"G(T / HTTP/1.1\r\n", b" / HTTP/1.1\r\n", b"GET\r\n", b"FOO / HTTP/2.0\r\n"]
)
def test_what_cannot_become_a_request_is_told_at_once(line: bytes) -> None:
    """[API-25]"""
    for pieces in ([line], [line[:1], line[1:]]):
        with pytest.raises(Malformed) as refused:
            heads(pieces)
        assert refused.value.failure.status == 400


@pytest.mark.parametrize(
    ("length", "declared"),
    [(b"0" * 30 + b"5", 5), (b"%d" % (2**64 - 1), 2**64 - 1), (b"%d" % 2**64, None), (b"9" * 5000, None)],
)
def test_a_length_that_no_64_bits_hold_is_413(length: bytes, declared: int | None) -> None:
    """[API-15]"""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\n" % length
    if declared is not None:
        assert [one.declared for one, _ in heads([head])] == [declared]
        return
    with pytest.raises(Malformed) as refused:
        heads([head])
    assert refused.value.failure.status == 413
