"""Requests whose end two readers could see in different places: refused, not executed, and nothing behind them is.

13 §5, 02 API-25. Each case is a write that is not to be believed, followed by one that a fooled server would take for
the next request.
"""

from __future__ import annotations

import pytest

from tests.api.kit import Running
from tests.api.rawclient import RawClient, chunked, count, exists, get, in_chunks, request, write
from topics.server.framing import FRAMING_BYTES

BODY = b'{"records":[{"data":1}]}'
SIZE = len(BODY)
CHUNK = b"%x" % SIZE


def post(topic: str, *fields: str, behind: bytes = BODY) -> bytes:
    return request("POST", f"/v0/topics/{topic}", "Content-Type: application/json", *fields) + behind


def framed(first_line: bytes, after: bytes = b"\r\n0\r\n\r\n") -> bytes:
    return first_line + BODY + after


AMBIGUOUS = {
    "length and chunked": lambda t: post(t, f"Content-Length: {SIZE}", "Transfer-Encoding: chunked"),
    "chunked and length": lambda t: post(t, "Transfer-Encoding: chunked", "Content-Length: 5", behind=in_chunks(BODY)),
    "two lengths": lambda t: post(t, f"Content-Length: {SIZE}", "Content-Length: 3"),
    "two equal lengths": lambda t: post(t, f"Content-Length: {SIZE}", f"Content-Length: {SIZE}"),
    "a list of lengths": lambda t: post(t, f"Content-Length: {SIZE}, {SIZE}"),
    "length +5": lambda t: post(t, f"Content-Length: +{SIZE}"),
    "length 0x5": lambda t: post(t, f"Content-Length: {SIZE:#x}"),
    "length -1": lambda t: post(t, "Content-Length: -1"),
    "length of nothing": lambda t: post(t, "Content-Length: "),
    "length with a space in it": lambda t: post(t, "Content-Length: 2 4"),
    "length with a vertical tab": lambda t: post(t, f"Content-Length: \x0b{SIZE}"),
    "bare LF after the request line": lambda t: write(t).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    "bare LF after a field": lambda t: write(t).replace(b"localhost\r\n", b"localhost\n"),
    "bare LF as the blank line": lambda t: write(t).replace(b"\r\n\r\n", b"\r\n\n"),
    "only LF": lambda t: write(t).replace(b"\r\n", b"\n"),
    "bare CR in a field": lambda t: post(t, "X: a\rContent-Length: 3", f"Content-Length: {SIZE}"),
    "a folded field": lambda t: post(t, "X: a\r\n b", f"Content-Length: {SIZE}"),
    "a folded length": lambda t: post(t, f"Content-Length:\r\n {SIZE}"),
    "space before the colon": lambda t: post(t, f"Content-Length : {SIZE}"),
    "space before a colon of chunked": lambda t: post(t, "Transfer-Encoding : chunked", behind=in_chunks(BODY)),
    "space before the first field": lambda t: post(t, f"Content-Length: {SIZE}").replace(b"\r\nHost", b"\r\n Host"),
    "a field without a name": lambda t: post(t, ": x", f"Content-Length: {SIZE}"),
    "a field without a colon": lambda t: post(t, "x", f"Content-Length: {SIZE}"),
    "NUL in a field": lambda t: post(t, "X: a\x00b", f"Content-Length: {SIZE}"),
    "gzip, chunked": lambda t: post(t, "Transfer-Encoding: gzip, chunked", behind=in_chunks(BODY)),
    "chunked, gzip": lambda t: post(t, "Transfer-Encoding: chunked, gzip", behind=in_chunks(BODY)),
    "chunked, chunked": lambda t: post(t, "Transfer-Encoding: chunked, chunked", behind=in_chunks(BODY)),
    "chunked twice": lambda t: post(t, *["Transfer-Encoding: chunked"] * 2, behind=in_chunks(BODY)),
    "chunked and identity": lambda t: post(
        t, "Transfer-Encoding: chunked", "Transfer-Encoding: identity", behind=in_chunks(BODY)
    ),
    "identity": lambda t: post(t, "Transfer-Encoding: identity"),
    "xchunked": lambda t: post(t, "Transfer-Encoding: xchunked", behind=in_chunks(BODY)),
    "quoted chunked": lambda t: post(t, 'Transfer-Encoding: "chunked"', behind=in_chunks(BODY)),
    "an empty coding": lambda t: post(t, "Transfer-Encoding:", behind=in_chunks(BODY)),
    "chunked in 1.0": lambda t: chunked(t, in_chunks(BODY)).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "bare LF after a chunk size": lambda t: chunked(t, framed(CHUNK + b"\n")),
    "bare LF after a chunk": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\n0\r\n\r\n")),
    "bare LF after the last chunk": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0\n\r\n")),
    "bare LF as the end": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0\r\n\n")),
    "bare LF in an extension": lambda t: chunked(t, framed(CHUNK + b";a\n0\r\n")),
    "bare CR in an extension": lambda t: chunked(t, framed(CHUNK + b";a\rb\r\n")),
    "bare LF in a trailer": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0\r\nA: b\n\r\n")),
    "a folded trailer": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0\r\nA: b\r\n c\r\n\r\n")),
    "a trailer without a colon": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0\r\nabc\r\n\r\n")),
    "chunk size 0x": lambda t: chunked(t, framed(b"0x" + CHUNK + b"\r\n")),
    "chunk size +": lambda t: chunked(t, framed(b"+" + CHUNK + b"\r\n")),
    "chunk size -": lambda t: chunked(t, framed(b"-" + CHUNK + b"\r\n")),
    "chunk size with a space before": lambda t: chunked(t, framed(b" " + CHUNK + b"\r\n")),
    "chunk size with a space behind": lambda t: chunked(t, framed(CHUNK + b" \r\n")),
    "chunk size of nothing": lambda t: chunked(t, framed(b"\r\n")),
    "chunk size beyond 64 bits": lambda t: chunked(t, framed(b"f" * 17 + b"\r\n")),
    "chunk longer than it says": lambda t: chunked(t, framed(b"5\r\n")),
    "a version of nothing": lambda t: write(t).replace(b" HTTP/1.1", b""),
    "version 0.9": lambda t: write(t, version="0.9"),
    "version 1.2": lambda t: write(t, version="1.2"),
    "version 2.0": lambda t: write(t, version="2.0"),
    "RTSP": lambda t: write(t).replace(b" HTTP/1.1", b" RTSP/1.0"),
    "space behind the version": lambda t: write(t).replace(b" HTTP/1.1", b" HTTP/1.1 "),
    "no Host": lambda t: write(t).replace(b"Host: localhost\r\n", b""),
    "two Hosts": lambda t: write(t, "Host: localhost"),
    "two Hosts, one of nothing": lambda t: write(t, "Host:"),
    "Host with a path": lambda t: write(t).replace(b"localhost", b"localhost/x"),
    "Host with a user": lambda t: write(t).replace(b"localhost", b"me@localhost"),
    "Host with a space": lambda t: write(t).replace(b"localhost", b"local host"),
    "a malformed Host in 1.0": lambda t: write(t, version="1.0").replace(b"localhost", b"a/b"),
    "CONNECT": lambda t: request("CONNECT", "localhost:1", body=BODY),
    "a fragment": lambda t: write(f"{t}#x"),
    "an absolute form of another scheme": lambda t: write(t).replace(b"POST ", b"POST ftp://localhost"),
    "an absolute form without a host": lambda t: write(t).replace(b"POST ", b"POST http://"),
    "a relative path": lambda t: write(t).replace(b"POST /", b"POST "),
    "a bare LF in front": lambda t: b"\n" + write(t),
    "a bare CR in front": lambda t: b"\r" + write(t),
}  # fmt: skip


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_an_ambiguous_request_is_400_and_nothing_of_it_or_behind_it_is_executed(
    server: Running, topic: str, case: str
) -> None:
    """13 §5, [API-25]"""
    with RawClient(server) as client:
        answer = client.send(AMBIGUOUS[case](topic) + write(f"{topic}-smuggled")).answer()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert client.rest() == b""
    assert not exists(server, topic)
    assert not exists(server, f"{topic}-smuggled")


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_what_came_before_an_ambiguous_request_is_answered_first(server: Running, topic: str, case: str) -> None:
    """[API-25]: in order; the write in front takes a while, the refusal does not overtake it."""
    with RawClient(server) as client:
        client.send(write(f"{topic}-first") + AMBIGUOUS[case](topic) + write(f"{topic}-smuggled"))
        assert [client.answer().status, client.answer().status] == [201, 400]
        assert client.rest() == b""
    assert count(server, f"{topic}-first") == 1
    assert not exists(server, topic)
    assert not exists(server, f"{topic}-smuggled")


@pytest.mark.parametrize("case", ["only LF", "bare LF after a chunk size", "two lengths", "no Host", "RTSP"])
def test_an_ambiguous_request_in_single_bytes_is_refused_the_same(server: Running, topic: str, case: str) -> None:
    """13 §5"""
    with RawClient(server) as client:
        for byte in AMBIGUOUS[case](topic) + write(f"{topic}-smuggled"):
            client.send(bytes([byte]))
        assert client.answer().status == 400
        client.finish()
        assert client.rest() == b""
    assert not exists(server, topic)
    assert not exists(server, f"{topic}-smuggled")


def test_behind_a_length_beyond_64_bits_nothing_is_executed(server: Running, topic: str) -> None:
    """13 §5, [API-15]"""
    with RawClient(server) as client:
        beyond = post(topic, "Content-Length: 99999999999999999999999")
        client.send(write(f"{topic}-first") + beyond + write(f"{topic}-smuggled"))
        assert [client.answer().status, client.answer().status] == [201, 413]
        assert client.rest() == b""
    assert not exists(server, topic)
    assert not exists(server, f"{topic}-smuggled")


def test_a_request_line_without_a_version_is_refused_before_its_blank_line(server: Running) -> None:
    """[API-25]: HTTP/0.9 has none, its client would wait."""
    with RawClient(server) as client:
        assert client.send(b"GET /v0/health\r\n").answer().status == 400
        assert client.rest() == b""


UNAMBIGUOUS = {
    "length": write,
    "length with blanks around": lambda t: post(t, f"Content-Length: \t {SIZE} \t"),
    "length with zeros": lambda t: post(t, f"Content-Length: 000{SIZE}"),
    "chunked": lambda t: chunked(t, in_chunks(BODY)),
    "Chunked": lambda t: post(t, "Transfer-Encoding: Chunked", behind=in_chunks(BODY)),
    "chunk sizes with zeros": lambda t: chunked(t, framed(b"000" + CHUNK + b"\r\n")),
    "chunk extensions": lambda t: chunked(t, framed(CHUNK + b';a=b;c="d e" ; f\r\n')),
    "trailers": lambda t: chunked(t, framed(CHUNK + b"\r\n", b"\r\n0;x\r\nContent-Length: 5\r\nHost: evil\r\n\r\n")),
    "an empty line in front": lambda t: b"\r\n" + write(t),
    "an absolute form": lambda t: write(t).replace(b"POST ", b"POST http://evil.example:1"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNAMBIGUOUS)
def test_an_unambiguous_request_is_executed_once_and_so_is_the_next(server: Running, topic: str, case: str) -> None:
    """13 §5: extensions and trailers are allowed and ignored."""
    with RawClient(server) as client:
        client.send(UNAMBIGUOUS[case](topic) + write(topic))
        assert [client.answer().status, client.answer().status] == [201, 200]
    assert count(server, topic) == 2


def one_byte_chunks(number: int) -> bytes:
    return b"1\r\n \r\n" * number


FRAMING = {
    "one endless extension": b"5;" + b"x" * (FRAMING_BYTES + 1),
    "an endless size": b"0" * (FRAMING_BYTES + 1),
    "endless trailers": b"0\r\n" + b"a: b\r\n" * (FRAMING_BYTES // 6 + 1),
    "one endless trailer": b"0\r\na: " + b"b" * FRAMING_BYTES,
    "chunks of one byte": one_byte_chunks(FRAMING_BYTES // 4 + 2),
}


@pytest.mark.parametrize("case", FRAMING)
def test_chunk_framing_beyond_16_kib_and_the_body_is_400(server: Running, topic: str, case: str) -> None:
    """13 §5"""
    with RawClient(server) as client:
        answer = client.send(chunked(topic, FRAMING[case])).answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert client.rest() == b""
    assert not exists(server, topic)


def test_chunk_framing_up_to_16_kib_and_the_body_is_accepted(server: Running, topic: str) -> None:
    """13 §5"""
    room = FRAMING_BYTES - len(in_chunks(BODY, SIZE)) + SIZE
    with RawClient(server) as client:
        client.send(chunked(topic, framed(CHUNK + b";" + b"x" * (room - 1) + b"\r\n")))
        assert client.answer().status == 201
        client.send(chunked(topic, one_byte_chunks(4000) + in_chunks(BODY, SIZE)))
        assert client.answer().status == 200


def test_a_body_behind_an_ignored_upgrade_is_that_requests_body(server: Running, topic: str) -> None:
    """[API-25]: a parser that stops at the upgrade would take the body for the next request."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    inner = get("/v0/health")
    with RawClient(server) as client:
        client.send(write(topic, *upgrade) + chunked(topic, in_chunks(BODY), *upgrade) + get("/v0/health", *upgrade))
        assert [client.answer().status for _ in range(3)] == [201, 200, 200]
        answer = client.send(request("POST", f"/v0/topics/{topic}", *upgrade, body=inner)).answer()
        assert answer.status == 400
        assert client.send(get(f"/v0/topics/{topic}")).answer().json()["count"] == 2
