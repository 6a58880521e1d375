"""RecordCodec: the verdicts of 07 §6, from bytes alone (W-91)."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal import kit
from topics.codec.frame import FrameCodec
from topics.codec.scan import Codec, FileInfo, Place, Scan
from topics.wal import Record
from topics.wal.record import RecordCodec

PLACES: list[Place] = ["last", "inner", "beyond"]
RAWS = [
    kit.put(1).encode(),
    Record.delete(b"k").encode(),
    Record.put_with_ttl(b"k", b"v", 300).encode(),
    Record.put(b"k" * 200, b"v").encode(),
    Record.put(b"k", b"v" * 20_000).encode(),
    Record.put(b"k", b"abc" * 20).with_compression("lz4").encode(),
    Record.put(b"k", b"abc" * 20).with_compression("zstd").encode(),
    Record.put(b"", b"").encode(),
]
GOOD = b"".join(RAWS)
BAD = bytearray(kit.put(9).encode())
BAD[-6] ^= 1


def scan(raw: bytes, place: Place = "last", *, strict: bool = False) -> Scan:
    return RecordCodec(strict=strict).scan(memoryview(raw), 0, place)


def sealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "little")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("zeros", [0, 1, 6, 7, 8, 511, 70_000])
def test_records_up_to_the_end_or_to_zeros_are_clean(place: Place, zeros: int) -> None:
    """07 §6 rows 1 and 2."""
    assert scan(GOOD + bytes(zeros), place)[:3] == (len(GOOD), len(RAWS), "clean")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("raw", [b"", bytes(7), bytes(4096)])
def test_nothing_and_zeros_are_clean_and_empty(raw: bytes, place: Place) -> None:
    """07 §6 row 2, W-33."""
    assert scan(raw, place)[:3] == (0, 0, "clean")


ENDINGS = {
    "incomplete": GOOD[:-1] + b"",
    "bad": GOOD + bytes(BAD),
    "bad then good": GOOD + bytes(BAD) + RAWS[0],
    "zeros then good": GOOD + bytes(512) + RAWS[0],
    "one byte": GOOD + b"\x01",
    "overflow": GOOD + b"\xff" * 30,
    "reserved flags without checksum": GOOD + b"\x01\x01\xf0kv\x00\x00\x00\x00",
    "incomplete then zeros": GOOD + RAWS[0][:-2] + bytes(600),
}


@pytest.mark.parametrize(("place", "verdict"), [("last", "torn"), ("inner", "corrupt")])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bad_end_is_torn_in_the_last_segment_and_corrupt_before_it(ending: str, place: Place, verdict: str) -> None:
    """07 §6 rows 3 and 4."""
    found = scan(ENDINGS[ending], place)
    kept = RAWS[:-1] if ending == "incomplete" else RAWS
    assert found[:3] == (sum(map(len, kept)), len(kept), verdict)


@pytest.mark.parametrize("place", ["last", "inner"])
@pytest.mark.parametrize("flags", [0x10, 0x80, 0xF0, 0x12 ^ 0x02, 0x0C])
def test_an_intact_record_of_a_newer_version_is_a_matter_of_format(flags: int, place: Place) -> None:
    """07 §6 row 5: valid checksum, reserved flags (or a compression this version does not know)."""
    found = scan(GOOD + sealed(b"\x01\x01" + bytes([flags]) + b"kv") + RAWS[0], place)
    assert found[:3] == (len(GOOD), len(RAWS), "format")


@pytest.mark.parametrize(("strict", "verdict"), [(False, "torn"), (True, "corrupt")])
def test_strict_looks_behind_a_bad_record_where_its_lengths_say(strict: bool, verdict: str) -> None:
    """W-61."""
    assert scan(GOOD + bytes(BAD) + RAWS[0], strict=strict).verdict == verdict


@pytest.mark.parametrize("behind", [b"", bytes(700), b"\x00" + RAWS[0], bytes(BAD), RAWS[0][:-1]])
def test_strict_calls_a_bad_record_torn_when_none_that_verifies_follows_it(behind: bytes) -> None:
    """W-61."""
    assert scan(GOOD + bytes(BAD) + behind, strict=True).verdict == "torn"


@pytest.mark.parametrize("at", range(len(RAWS)))
def test_a_flipped_byte_ends_the_valid_part_at_its_record(at: int) -> None:
    """W-60: the valid prefix is kept, to the byte."""
    start = sum(map(len, RAWS[:at]))
    for offset in {start, start + 1, start + 2, start + len(RAWS[at]) - 1, start + len(RAWS[at]) // 2}:
        raw = bytearray(GOOD)
        raw[offset] ^= 0x40
        found = scan(bytes(raw), "inner")
        assert (found.end, found.records) == (start, at)
        assert found.verdict in ("corrupt", "format")


def test_a_scan_starts_where_it_is_told() -> None:
    """07 §1.2: scan(view, start, place)."""
    found = RecordCodec().scan(memoryview(b"\xff" * 9 + GOOD), 9, "last")
    assert found[:3] == (9 + len(GOOD), len(RAWS), "clean")


def test_the_library_writes_no_preamble() -> None:
    """07 §1.2."""
    assert RecordCodec().preamble(FileInfo(0, None)) == RecordCodec().preamble(FileInfo(3, (2, 9))) == b""


pieces = st.lists(
    st.sampled_from([*RAWS[:4], *RAWS[5:], bytes(BAD), bytes(9), bytes(600)]) | st.binary(max_size=30), max_size=8
)


@pytest.mark.parametrize(
    "codec", [RecordCodec(), RecordCodec(strict=True), FrameCodec()], ids=["record", "strict", "frame"]
)
@given(raw=pieces.map(b"".join), place=st.sampled_from(PLACES))
@settings(max_examples=300)
def test_a_codec_gives_a_verdict_on_every_buffer(codec: Codec, raw: bytes, place: Place) -> None:
    """W-91: never raises, never reads outside."""
    found = codec.scan(memoryview(raw), 0, place)
    assert 0 <= found.end <= len(raw)
    assert found.records >= 0
    assert found.verdict in ("clean", "torn", "corrupt", "format")
    assert codec.scan(memoryview(raw), 0, place) == found


@given(raw=pieces.map(b"".join))
def test_what_a_scan_keeps_scans_clean(raw: bytes) -> None:
    """W-61: a cut is repeatable; the second recovery cuts nothing."""
    found = scan(raw)
    if found.verdict != "format":
        assert scan(raw[: found.end])[:3] == (found.end, found.records, "clean")


@given(raw=pieces.map(b"".join))
def test_a_scan_keeps_exactly_the_records_that_decode(raw: bytes) -> None:
    """W-60: every record's checksum is verified, by the same rule as a reader's."""
    found = scan(raw)
    at = count = 0
    while at < found.end:
        at += Record.decode(raw, at)[1]
        count += 1
    assert (at, count) == (found.end, found.records)
