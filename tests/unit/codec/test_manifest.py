"""The list of what belongs to a backup: what is written is read, and nothing else is [S-319]."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from topics.codec import manifest
from topics.codec.manifest import Manifest, NotAManifest, Part, SegmentParts, SnapshotPart
from topics.errors import UnsupportedFormat

MADE = Manifest(
    number=3,
    store="0123456789abcdef0123456789abcdef",
    ts=1700000000001,
    snapshot=SnapshotPart(9, 566, 2**64 - 1),
    topics=1,
    segments=(
        SegmentParts(10, 1, 77, 0, Part(500, 1), Part(60, 2), Part(40, 3)),
        SegmentParts(10, 3, 78, 0, None, Part(40, 4), None),
    ),
)


def signed(line: bytes) -> bytes:
    return line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"


def test_what_is_encoded_is_decoded() -> None:
    raw = manifest.encode(MADE)
    assert manifest.decode(raw) == MADE
    assert MADE.bytes == 566 + 500 + 60 + 40 + 40
    assert raw.startswith(b'{"v":1,"number":3,"store":"0123')
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 2


def test_every_flipped_bit_and_every_shorter_file_is_refused() -> None:
    raw = manifest.encode(MADE)
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(NotAManifest):
            manifest.decode(bytes(flipped))
        with pytest.raises(NotAManifest):
            manifest.decode(raw[:at])


def test_a_later_version_is_told_apart_from_damage() -> None:
    """S-7"""
    with pytest.raises(UnsupportedFormat, match="version 2"):
        manifest.decode(signed(msgspec.json.encode(msgspec.structs.replace(MADE, v=2))))
    with pytest.raises(UnsupportedFormat):
        manifest.decode(signed(b'{"v":99,"what":"ever"}'))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_manifest_or_refused(line: bytes) -> None:
    for raw in (line, signed(line)):
        with pytest.raises((NotAManifest, UnsupportedFormat)):
            manifest.decode(raw)
