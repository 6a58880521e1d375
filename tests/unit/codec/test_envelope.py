"""Envelopes and canonical JSON text."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec import envelope

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
metas = st.none() | st.dictionaries(st.text(), values, max_size=4)

# Spellings that a parse and re-encode would change, with the whitespace a client may put around them.
SPELLINGS = [
    (b"1.0 ", b"1.0"),
    (b"\t-0", b"-0"),
    (b"1E+05\n", b"1E+05"),
    (b"1e400", b"1e400"),
    (b"12345678901234567890123456789", b"12345678901234567890123456789"),
    (b'{ "a" : 1 ,\r\n"a":2 }', b'{"a":1,"a":2}'),
    (b'"\\u00e9 \\/ \xc3\xa9"', b'"\\u00e9 \\/ \xc3\xa9"'),
    (b'"\\ud83d\\ude00"', b'"\\ud83d\\ude00"'),
    (b'" \\" [ , ] \\\\" ', b'" \\" [ , ] \\\\"'),
    (b'"\x7f"', b'"\x7f"'),
    (b"[ ]", b"[]"),
    (b"{ }", b"{}"),
]

NOT_JSON = [
    b"",
    b"  ",
    b"NaN",
    b"nan",
    b"Infinity",
    b"-Infinity",
    b"01",
    b"-01",
    b"+1",
    b".5",
    b"1.",
    b"1e",
    b"-",
    b"1 2",
    b"truex",
    b"'a'",
    b'"a',
    b'"\x01"',
    b'"\n"',
    b'"a\tb"',
    b'"\\x"',
    b'"\\u12"',
    b"[1,]",
    b'{"a":1,}',
    b"{1:2}",
    b'{"a" 1}',
    b"[1",
    b"[1//\n]",
    b"\x0b1",
    b"1\x00",
    b"\xef\xbb\xbf1",
    b"\xff",
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\\ud800"',
    b'"\\udc00"',
    b'"\\ud800abcdefgh"',
    b'"\\ud800\\u0041"',
    b'{"\\udc00":1}',
    b'["\\ud800" ]',
]

NOT_ENVELOPES = [
    b"",
    b"{}",
    b"null",
    b'{"d":1',
    b'{"d":1} ',
    b' {"d":1}',
    b'{"d": 1}',
    b'{"d":1,"x":2}',
    b'{"d":1,"d":2}',
    b'{"m":{},"d":1}',
    b'{"m":{}}',
    b'{"d":1,"m":null}',
    b'{"d":1,"m":[]}',
    b'{"d":1,"m":1}',
    b'{"d":1, "m":{}}',
    b'{"d":1,"m":{},"m":{}}',
    b'{"d":1,"m":{},"d":2}',
    b'{"\\u0064":1}',
    b'{"d":1}{"d":2}',
    b"\xff" * 10,
    b'{"d":' + b"[" * 5000,
]


@given(values, metas)
def test_an_envelope_gives_back_the_bytes_it_was_built_from(value: object, meta: dict[str, object] | None) -> None:
    """S-40, REC-6, REC-12: data and meta byte for byte, and their accounted size."""
    data = envelope.encode_value(value)
    raw_meta = None if meta is None else envelope.encode_value(meta)
    text = envelope.build(data, raw_meta)
    assert envelope.split(text) == (data, raw_meta)
    assert envelope.has_meta(text) is (meta is not None)
    assert envelope.accounted_bytes(text) == len(data) + len(raw_meta or b"")


@pytest.mark.parametrize(
    "data", [b'{"a":1,"m":{}}', b'",\\"m\\":{}"', b'{"m":{}}', b'[{"a":1,"m":{}}]', b'{"d":1,"m":{"x":{}}}']
)
def test_data_that_looks_like_meta_is_data(data: bytes) -> None:
    """REC-12: what counts is the envelope's own member `m`."""
    assert envelope.split(envelope.build(data)) == (data, None)
    assert envelope.accounted_bytes(envelope.build(data)) == len(data)
    assert envelope.accounted_bytes(envelope.build(data, b'{"m":{}}')) == len(data) + 8


@pytest.mark.parametrize("text", NOT_ENVELOPES)
def test_what_is_no_envelope_is_refused_and_still_counted(text: bytes) -> None:
    """S-40: those bytes exactly; a size is defined for any bytes."""
    with pytest.raises(ValueError):  # noqa: PT011
        envelope.split(text)
    assert not envelope.has_meta(text)
    assert 0 <= envelope.accounted_bytes(text) <= len(text)


@pytest.mark.parametrize(("raw", "text"), SPELLINGS)
def test_canonical_text_keeps_every_spelling(raw: bytes, text: bytes) -> None:
    """REC-6, REC-12: only insignificant whitespace goes."""
    assert envelope.canonical(raw) == text
    assert envelope.canonical(text) == text


@pytest.mark.parametrize("raw", NOT_JSON)
def test_what_is_no_strict_json_is_refused(raw: bytes) -> None:
    """API-11, 13 §6: RFC 8259, valid UTF-8, no unpaired surrogate escapes."""
    with pytest.raises(ValueError):  # noqa: PT011
        envelope.canonical(raw)


@given(values, st.integers(0, 4))
def test_indentation_never_changes_the_canonical_text(value: object, indent: int) -> None:
    """REC-12."""
    for ascii_only in (True, False):
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode()
        assert envelope.canonical(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()) == compact


@given(st.binary(max_size=40))
def test_any_bytes_are_canonical_text_or_a_value_error(raw: bytes) -> None:
    """API-11: what is accepted is what the standard library reads."""
    try:
        text = envelope.canonical(raw)
    except ValueError:
        return
    json.loads(text)
    assert not set(text) & set(b"\n\r\t")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_ends_at_a_fixed_depth(opening: bytes, closing: bytes) -> None:
    """API-11: 128 levels accepted, more than 1000 refused; 256 here, whatever the stack looks like."""

    def nested(levels: int) -> bytes:
        return opening * levels + b"1" + closing * levels

    for levels in (1, 128, envelope.NESTING_MAX):
        assert envelope.canonical(nested(levels)) == nested(levels)
        assert envelope.split(envelope.build(nested(levels), b"{}")) == (nested(levels), b"{}")
    for levels in (envelope.NESTING_MAX + 1, 1001, 100_000):
        with pytest.raises(ValueError, match="nested"):
            envelope.canonical(nested(levels))
    wide = b"[" + b",".join([nested(2)] * 1000) + b"]"
    assert envelope.canonical(wide) == wide
    brackets = b'"' + b'[{\\"' * 1000 + b'"'
    assert envelope.canonical(brackets) == brackets


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [None, -math.inf]}, [(1, {2.0, math.nan})]])
def test_python_values_that_json_cannot_hold_are_refused(value: object) -> None:
    """API-11: msgspec would store null in their place."""
    with pytest.raises(ValueError, match="JSON has no"):
        envelope.encode_value(value)


def test_python_values_are_encoded_compactly() -> None:
    """S-40."""
    assert (
        envelope.encode_value({"a": [1, None, 2.5, "é", 2**70]})
        == '{"a":[1,null,2.5,"é",1180591620717411303424]}'.encode()
    )
    with pytest.raises(ValueError, match="surrogates"):
        envelope.encode_value("\ud800")
    with pytest.raises(TypeError):
        envelope.encode_value(object())
    with pytest.raises(ValueError, match="malformed"):
        envelope.encode_value([msgspec.Raw(b"1}")])
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        envelope.encode_value(loop)
