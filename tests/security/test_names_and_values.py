"""Names and values of a stranger (13 §5, 01 NAME, 02 API-11, API-27)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.kit import Running, running
from tests.api.rawclient import Answer, RawClient, request, write

NAMES = {
    "dot dot": "..",
    "a dot": ".",
    "escaped dots and slash": "%2e%2e%2f",
    "escaped slash": "a%2fb",
    "dots inside": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "backslash": "a%5Cb",
    "NUL": "a%00b",
    "newline": "a%0Ab",
    "256 bytes": "x" * 256,
    "256 bytes of two-byte letters": "%C3%A4" * 128,
    "Unicode twin": "kiln%EF%BC%8D7",
    "combining twin": "a%CC%88",
    "right to left": "a%E2%80%AEb",
    "broken escape": "a%zz",
    "half an escape": "a%4",
    "not UTF-8": "a%ff",
    "overlong slash": "a%c0%af",
    "a surrogate": "a%ed%a0%80",
    "escaped twice": "%252e%252e",
    "a space": "a%20b",
    "empty after decoding": "%00",
}


def one(server: Running, data: bytes) -> Answer:
    with RawClient(server) as client:
        return client.send(data).answer()


@pytest.mark.parametrize("case", NAMES)
def test_a_malformed_name_is_400_where_it_would_create_and_absent_elsewhere(server: Running, case: str) -> None:
    """[NAME-1, NAME-3, API-27]"""
    names = server.on_loop(lambda: set(server.server.app.engine.core.names))  # type: ignore[union-attr]
    path = f"/v0/topics/{NAMES[case]}"
    for creating in (request("PUT", path, body=b"{}"), request("POST", path, body=b'{"records":[{"data":1}]}')):
        answer = one(server, creating)
        assert (answer.status, answer.code) == (400, "invalid_request")
    for looking in (request("GET", path), request("POST", f"{path}/diff", body=b"{}")):
        answer = one(server, looking)
        assert (answer.status, answer.code) == (404, "topic_not_found")
    assert one(server, request("DELETE", path)).json()["deleted"] is False
    assert server.on_loop(lambda: set(server.server.app.engine.core.names)) == names  # type: ignore[union-attr]


PATHS = ["/v0/topics/a/../b", "/v0/topics/../topics/a", "/v0/./topics", "//v0/topics", "/v0//topics"]


@pytest.mark.parametrize("path", PATHS)
def test_dot_segments_and_empty_ones_are_not_resolved(server: Running, path: str) -> None:
    """[API-27]: another path, and unknown."""
    assert one(server, request("GET", path)).status == 404


def test_names_differ_by_case_and_live_side_by_side(server: Running) -> None:
    """[NAME-1], 13 §5"""
    for name in ("Twin", "twin", "TWIN", "tw%69n2", "twin2"):
        one(server, write(name))
    told = {
        entry["topic"]: entry["count"] for entry in one(server, request("GET", "/v0/topics?prefix=t")).json()["topics"]
    }
    assert told.items() >= {("twin", 1), ("twin2", 2)}
    assert one(server, request("GET", "/v0/topics/TWIN")).json()["count"] == 1


def test_file_names_are_numeric_ids_whatever_topics_are_called(tmp_path: Path) -> None:
    """[NAME-4], 13 §5"""
    with running(tmp_path) as server:
        for name in ("a..b", "con", "nul", "CON.txt", "x" * 255):
            assert one(server, write(name)).status == 201
        assert one(server, request("POST", "/v0/checkpoint")).status == 200
    words = {part for path in tmp_path.rglob("*") for part in path.relative_to(tmp_path).parts}
    assert not any("a..b" in word or "con" in word.lower() or "x" * 20 in word for word in words)


# -- values ----------------------------------------------------------------------------------------------------------

KEPT = {
    "25 digits": b"1234567890123456789012345",
    "many digits": b"0." + b"1" * 400,
    "a large exponent": b"1e400",
    "minus zero": b"-0.0",
    "duplicate keys": b'{"a":1,"a":2}',
    "a surrogate pair": b'"\\ud83d\\ude00"',
    "escapes": b'"\\u0041\\/\\u0000\\n"',
    "an emoji": '"\U0001f600"'.encode(),
    "a noncharacter": '"\uffff"'.encode(),
    "DEL": b'"\x7f"',
}


@pytest.mark.parametrize("case", KEPT)
def test_a_valid_value_comes_back_byte_for_byte(server: Running, topic: str, case: str) -> None:
    """[REC-6], 13 §5"""
    assert one(server, write(topic, data=KEPT[case])).status == 201
    read = one(server, request("POST", f"/v0/topics/{topic}/diff", body=b"{}"))
    assert b'"data":' + KEPT[case] + b"}]" in read.body


REFUSED = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "minus Infinity": b"-Infinity",
    "nan": b"nan",
    "a lone high surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\udc00x"',
    "surrogates the wrong way round": b'"\\ude00\\ud83d"',
    "a lone surrogate in a key": b'{"\\ud800":1}',
    "a lone surrogate deep down": b'[[{"a":["\\udfff"]}]]',
    "a raw surrogate": b'"\xed\xa0\x80"',
    "an overlong byte": b'"\xc0\xaf"',
    "a stray byte": b'"\xff"',
    "half a letter": b'"\xc3"',
    "above the last code point": b'"\xf4\x90\x80\x80"',
    "a control character": b'"\x01"',
    "a newline in a string": b'"a\nb"',
    "an unknown escape": b'"\\x41"',
    "a leading zero": b"01",
    "a plus": b"+1",
    "a bare point": b"1.",
    "hexadecimal": b"0x10",
    "single quotes": b"'a'",
    "a trailing comma": b"[1,]",
    "a comment": b"1/**/",
    "nothing": b"",
    "two values": b"1 2",
    "True": b"True",
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("where", ["data", "meta"])
def test_what_is_no_json_is_400_and_nothing_is_written(server: Running, topic: str, case: str, where: str) -> None:
    """[API-11], 13 §5"""
    value = REFUSED[case]
    body = b'{"records":[{"data":%b}]}' % value
    if where == "meta":
        body = b'{"records":[{"data":1,"meta":{"a":%b}}]}' % value
    answer = one(server, request("POST", f"/v0/topics/{topic}", body=body))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert one(server, request("GET", f"/v0/topics/{topic}")).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"records":[{"data":1}]}',
        b'{"records":[{"data":1}]} x',
        b'{"records":[{"data":1}]}{}',
        b'{"records":[{"data":1}]}\x00',
        '{"records":[{"data":1}]}'.encode("utf-16"),
        b'{"records":[{"data":1}],"unknown":"\xff"}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}',
    ],
    ids=["a BOM", "text behind", "two objects", "NUL behind", "UTF-16", "bad UTF-8 elsewhere", "a surrogate as a tag"],
)  # fmt: skip
def test_a_body_that_is_not_one_json_text_is_400(server: Running, topic: str, body: bytes) -> None:
    """[API-11]"""
    assert one(server, request("POST", f"/v0/topics/{topic}", body=body)).status == 400
    assert one(server, request("GET", f"/v0/topics/{topic}")).status == 404


def test_utf8_cut_between_two_reads_is_still_checked_as_one(server: Running, topic: str) -> None:
    """[API-11], 13 §6"""
    good, bad = write(topic, data='"ä"'.encode()), write(topic, data=b'"\xc3 "')
    for whole, status in ((good, 201), (bad, 400)):
        at = whole.index(b"\xc3") + 1
        with RawClient(server) as client:
            client.send(whole[:at]).until(lambda one: one._state == "body")
            assert client.send(whole[at:]).answer().status == status
