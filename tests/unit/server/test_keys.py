"""Keys: the grammar of entries, what is refused, and what a rotation does to requests in flight (09 §1)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import SettingsError
from topics.server import keys
from topics.server.keys import ALL_SCOPES, Entry, KeyRing


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


@pytest.mark.parametrize(
    ("text", "scopes", "prefixes"),
    [
        ("k", ALL_SCOPES, ()),
        ("  k  ", ALL_SCOPES, ()),
        ("k:", ALL_SCOPES, ()),
        ("k::", ALL_SCOPES, ()),
        ("k:read", {"read"}, ()),
        ("k: R + Del ", {"read", "delete"}, ()),
        ("k:rw", {"read", "write"}, ()),
        ("k:w+a+d", {"write", "admin", "delete"}, ()),
        ("k:read:plant3:", {"read"}, ("plant3:",)),
        ("k:w:plant3:|shared.", {"write"}, ("plant3:", "shared.")),
        ("k::a| b ||", ALL_SCOPES, ("a", "b")),
        ("k:r:|", {"read"}, ()),
        ("k:r:a:b:c", {"read"}, ("a:b:c",)),
    ],
)
def test_an_entry_has_a_secret_scopes_and_prefixes(text: str, scopes: set[str], prefixes: tuple[str, ...]) -> None:
    """[KEY-1, KEY-2, KEY-3]"""
    assert keys.parse(text) == [Entry(digest("k"), frozenset(scopes), prefixes)]


def test_a_list_is_split_at_commas_and_empty_items_are_skipped() -> None:
    """[KEY-1]"""
    assert [entry.digest for entry in keys.parse(" , a:r,,b, ")] == [digest("a"), digest("b")]
    assert keys.parse(" , ,") == []


@pytest.mark.parametrize(
    ("text", "number"),
    [("k:raed", 1), ("ok,k:read+", 0), ("ok,k:+", 2), ("k: + ", 1), ("ok,,:read", 3), (":", 1), ("::x", 1)],
)
def test_what_would_mean_other_rights_is_refused_by_number_without_the_secret(text: str, number: int) -> None:
    """[BOOT-2, KEY-5]"""
    if not number:
        assert keys.parse(text)[1].scopes == {"read"}
        return
    with pytest.raises(SettingsError) as caught:
        keys.parse(text)
    assert str(caught.value).startswith(f"TOPICS_API_KEYS: entry {number} ")
    assert "raed" not in str(caught.value)


def test_a_file_has_one_entry_per_line_and_comments() -> None:
    """[KEY-4]"""
    text = "# ours\r\n\r\n  a:read  \r\n\t# more\nb\u0085c:w\n"
    assert [entry.digest for entry in keys.parse_lines(text)] == [digest("a"), digest("b\u0085c")]
    for bad in ("ok\na,b\n", "ok\na\0b\n", "ok\na:what\n"):
        with pytest.raises(SettingsError, match="TOPICS_API_KEYS_FILE: line 2 "):
            keys.parse_lines(bad)


def test_a_file_is_read_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    """[KEY-4]"""
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfa\n")
    path.chmod(0o640)
    assert keys.load(str(path)) == ([Entry(digest("a"), ALL_SCOPES, ())], [])
    path.chmod(0o604)
    assert "readable by others" in keys.load(str(path)).warnings[0]
    path.chmod(0o600)
    path.write_text("# nothing\n")
    assert keys.load(str(path)).warnings == [f"{path} holds no API key"]
    path.write_text("x" * (keys.FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="longer than"):
        keys.load(str(path))


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    """[KEY-4]"""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "absent"):
        with pytest.raises(SettingsError, match="cannot be read"):
            keys.load(str(path))


def test_the_last_entry_of_a_secret_counts() -> None:
    """[KEY-7, KEY-4]"""
    ring = KeyRing([*keys.parse("a:read,b"), *keys.parse_lines("a:write:x")])
    assert len(ring) == 2
    found = ring.find(b"a")
    assert found is not None
    assert found.scopes == {"write"}
    assert found.prefixes == ("x",)


def test_a_token_is_found_whole_or_not_at_all() -> None:
    """[KEY-6]"""
    ring = KeyRing(keys.parse("abc,def:read"))
    assert ring.find(b"def") is ring.keys[1]
    for wrong in (b"", b"ab", b"abcd", b"ABC", b"abc,def:read", digest("abc")):
        assert ring.find(wrong) is None
    assert KeyRing().find(b"") is None


@given(st.binary(max_size=64))
def test_only_the_very_bytes_of_a_secret_are_its_token(token: bytes) -> None:
    """[KEY-6]"""
    assert (KeyRing(keys.parse("abc")).find(token) is not None) is (token == b"abc")


def test_a_key_permits_names_by_prefix() -> None:
    """[KEY-3]"""
    key = KeyRing(keys.parse("k:r:plant3:|é")).keys[0]
    assert [key.permits(name) for name in ("plant3:a", "plant3:", "plant3", "été", "x")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert KeyRing(keys.parse("k")).keys[0].permits("anything")


def test_a_key_that_stays_keeps_count_of_its_requests_across_a_rotation() -> None:
    """[KEY-4, RES-7] What was in flight is counted down on the key that is asked next time."""
    before = KeyRing(keys.parse("stays:read,goes"))
    old = before.find(b"stays")
    assert old is not None
    old.usage.inflight = 2
    after = KeyRing(keys.parse("stays:write:x,comes"), before)
    old.usage.inflight -= 2
    new = after.find(b"stays")
    assert new is not None
    assert new.usage.inflight == 0
    assert new.scopes == {"write"}
    assert new.prefixes == ("x",)
    assert after.find(b"goes") is None
    assert after.find(b"comes") is not None


def test_nothing_of_a_ring_holds_a_secret() -> None:
    """[KEY-5]"""
    [key] = KeyRing(keys.parse("s3cret:read:plant")).keys
    assert set(key.__slots__) == {"digest", "scopes", "prefixes", "usage"}
    assert (key.digest, key.scopes, key.prefixes) == (digest("s3cret"), frozenset({"read"}), ("plant",))
