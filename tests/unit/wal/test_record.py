"""The key-value record: bytes, varints, the order of checks (07 §3)."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.conftest import needs_native
from topics.codec import kernel
from topics.errors import (
    CompressionFailed,
    CrcMismatch,
    DecompressionFailed,
    Incomplete,
    InvalidCompression,
    InvalidFlags,
    RecordError,
    VarintOverflow,
)
from topics.wal import Record
from topics.wal.record import decode_varint, encode_varint

U64_MAX = 2**64 - 1
VECTORS = [
    (Record.put(b"hello", b"world"), "05050068656c6c6f776f726c640ebc610e"),
    (Record.delete(b"key"), "0300016b6579ffcb139e"),
    (Record.put_with_ttl(b"s", b"x", 5000), "010102882773789cb7800d"),
    (Record.put(b"", b""), "0000007aa36460"),
]
SMALL = [
    *(record for record, _ in VECTORS),
    Record(b"k", b"v", tombstone=True, ttl_ms=300),
    Record.put(b"k" * 130, b"v" * 3),
    Record.put(b"k", b"abc" * 20).with_compression("lz4"),
    Record.put(b"k", b"abc" * 20).with_compression("zstd"),
]


def sealed(body: bytes) -> bytes:
    """The bytes with their right checksum."""
    return body + crc32c(body).to_bytes(4, "little")


any_record = st.builds(
    Record,
    key=st.binary(max_size=300),
    value=st.binary(max_size=300) | st.builds(lambda b, n: b * n, st.binary(max_size=20), st.integers(0, 3000)),
    tombstone=st.booleans(),
    ttl_ms=st.none() | st.integers(0, U64_MAX) | st.sampled_from([0, 127, 128, 2047, 2048, U64_MAX]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)


@pytest.mark.usefixtures("kernel_used")
@pytest.mark.parametrize(("record", "raw"), VECTORS)
def test_a_record_encodes_to_its_vector(record: Record, raw: str) -> None:
    """07 §3 vectors."""
    assert record.encode().hex() == raw


@needs_native
@given(any_record)
def test_the_kernel_makes_the_same_bytes(record: Record) -> None:
    """07 §3: with the kernel and without a log is the same, byte for byte."""
    made = []
    for chosen in (None, kernel.installed()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "native", chosen)
            made.append(record.encode())
    assert made[0] == made[1]


@needs_native
@pytest.mark.parametrize("size", [127, 128, 2047, 2048, 16_383, 16_384, 1 << 16, 3 << 20])
def test_the_kernel_makes_the_same_lengths(size: int) -> None:
    """W-30: at every length of a length, and behind the interpreter's back where a record is large."""
    record = Record.put(b"k" * size, b"v" * size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        plain = record.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", kernel.installed())
        assert record.encode() == plain


@pytest.mark.parametrize(("record", "raw"), VECTORS)
def test_a_vector_decodes_to_its_record_and_size(record: Record, raw: str) -> None:
    """07 §3 vectors."""
    assert Record.decode(bytes.fromhex(raw)) == (record, len(raw) // 2)


def test_the_lz4_vector_decodes_whatever_the_lz4_version() -> None:
    """07 §3: block bytes may differ, decoding must not."""
    raw = bytes.fromhex("010e046b3c3f61626303002150626361626328b60b80")
    assert Record.decode(raw) == (Record.put(b"k", b"abc" * 20).with_compression("lz4"), 22)


def test_an_lz4_value_starts_with_its_original_length() -> None:
    """W-31: varint original length, then the raw block."""
    raw = Record.put(b"k", b"abc" * 20).with_compression("lz4").encode()
    assert (raw[0], raw[2], raw[3:5]) == (1, 0x04, b"k\x3c")


def test_the_checksum_is_castagnoli() -> None:
    """07 §3: CRC-32C("123456789")."""
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("n", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (U64_MAX, "ff" * 9 + "01"),
    ],
)
def test_a_varint_is_written_minimal_and_read_back(n: int, raw: str) -> None:
    """W-30."""
    assert encode_varint(n).hex() == raw
    assert decode_varint(bytes.fromhex(raw), 0, len(raw) // 2) == (n, len(raw) // 2)


@given(st.integers(0, U64_MAX))
def test_every_u64_survives_a_varint_of_the_least_length(n: int) -> None:
    """W-30."""
    raw = encode_varint(n)
    assert decode_varint(raw, 0, len(raw)) == (n, len(raw))
    assert len(raw) == max(1, (n.bit_length() + 6) // 7)


@pytest.mark.parametrize("n", [-1, U64_MAX + 1])
def test_a_number_that_is_no_u64_has_no_varint(n: int) -> None:
    """W-30."""
    with pytest.raises(ValueError, match="u64"):
        encode_varint(n)


@pytest.mark.parametrize(
    ("raw", "n"),
    [(b"\x80\x00", 0), (b"\x81\x80\x00", 1), (b"\x80" * 9 + b"\x00", 0), (b"\xff" * 9 + b"\x00", 2**63 - 1)],
)
def test_a_varint_longer_than_needed_is_accepted(raw: bytes, n: int) -> None:
    """W-30."""
    assert decode_varint(raw, 0, len(raw)) == (n, len(raw))


@pytest.mark.parametrize("field", ["klen", "vlen", "ttl"])
@pytest.mark.parametrize("varint", [b"\xff" * 9 + b"\x02", b"\x80" * 9 + b"\x7f", b"\x80" * 10 + b"\x00", b"\xff" * 20])
def test_a_varint_beyond_its_tenth_byte_overflows(field: str, varint: bytes) -> None:
    """W-30: at most ten bytes, the tenth at most 1."""
    front = {"klen": b"", "vlen": b"\x01", "ttl": b"\x01\x01\x02"}[field]
    with pytest.raises(VarintOverflow):
        Record.decode(front + varint + bytes(40))


def test_a_record_with_longer_varints_than_needed_decodes() -> None:
    """W-30: also in a whole record; the size counts the bytes that are there."""
    raw = sealed(b"\x81\x00" + b"\x81\x80\x00" + b"\x02" + b"\x85\x00" + b"kv")
    assert Record.decode(raw) == (Record.put_with_ttl(b"k", b"v", 5), len(raw))


def test_the_smallest_record_has_seven_bytes() -> None:
    """W-30."""
    assert len(Record.put(b"", b"").encode()) == 7


@pytest.mark.parametrize("n", [0, 1, 127, 128, 2047, 2048, 16383, 16384, 2_097_151, 2_097_152])
@pytest.mark.parametrize("field", ["key", "value"])
def test_a_length_on_either_side_of_a_varint_step_survives(field: str, n: int) -> None:
    """W-30."""
    record = Record.put(b"x" * n, b"v") if field == "key" else Record.put(b"k", b"x" * n)
    raw = record.encode()
    assert Record.decode(raw) == (record, len(raw))
    assert len(raw) == n + 1 + len(encode_varint(n)) + 1 + 1 + 4


WRONG = sealed(b"\x01\x01\x04kv")[:-1] + b"\x00"
ORDER = [
    (b"", Incomplete),
    (b"\x80", Incomplete),
    (b"\x05", Incomplete),
    (b"\x05\x80", Incomplete),
    (b"\x05\x05", Incomplete),
    (b"\x05\x05\x02", Incomplete),
    (b"\x05\x05\x02\x80", Incomplete),
    (b"\x05\x05\x10", InvalidFlags),
    (b"\x05\x05\x80", InvalidFlags),
    (b"\x05\x05\x12", InvalidFlags),
    (b"\x05\x05\x0c", InvalidCompression),
    (b"\x05\x05\x0e", InvalidCompression),
    (b"\x05\x05\x1c", InvalidFlags),
    (sealed(b"\x01\x01\x20kv"), InvalidFlags),
    (sealed(b"\x01\x01\x0ckv"), InvalidCompression),
    (b"\x01\x01\x00", Incomplete),
    (b"\x01\x01\x00kv", Incomplete),
    (b"\x01\x01\x00kv\x00\x00\x00", Incomplete),
    (b"\x01\x01\x04kv\x00\x00\x00", Incomplete),
    (b"\x01\x01\x00kv\x00\x00\x00\x00", CrcMismatch),
    (WRONG, CrcMismatch),
    (sealed(b"\x01\x01\x04kv"), DecompressionFailed),
    (sealed(b"\x01\x01\x08kv"), DecompressionFailed),
]


@pytest.mark.parametrize(("raw", "error"), ORDER, ids=[f"{raw.hex()}-{error.__name__}" for raw, error in ORDER])
def test_decoding_checks_in_the_promised_order(raw: bytes, error: type[RecordError]) -> None:
    """W-32: lengths, flags, body, checksum, decompression."""
    with pytest.raises(error) as caught:
        Record.decode(raw)
    assert type(caught.value) is error


def test_a_checksum_mismatch_tells_the_stored_and_the_computed_sum() -> None:
    """W-32: CrcMismatch(expected, actual)."""
    with pytest.raises(CrcMismatch) as caught:
        Record.decode(b"\x01\x01\x00kv\x01\x02\x03\x04")
    assert (caught.value.expected, caught.value.actual) == (0x04030201, crc32c(b"\x01\x01\x00kv"))


@pytest.mark.parametrize("length", [2**31, 2**63, U64_MAX])
def test_a_length_beyond_the_buffer_is_incomplete_and_allocates_nothing(length: int) -> None:
    """W-32: lengths are bounded before anything is allocated; an exbibyte could not be."""
    for raw in (encode_varint(length) + b"\x01\x00", b"\x01" + encode_varint(length) + b"\x00"):
        with pytest.raises(Incomplete):
            Record.decode(raw + bytes(100))


@pytest.mark.parametrize("record", SMALL)
def test_every_truncation_of_a_record_is_incomplete(record: Record) -> None:
    """W-32."""
    raw = record.encode()
    for end in range(len(raw)):
        with pytest.raises(Incomplete):
            Record.decode(raw[:end])


@pytest.mark.parametrize(
    "behind", [b"", bytes(600), Record.put(b"next", b"n" * 500).encode()], ids=["end", "zeros", "record"]
)
@pytest.mark.parametrize("record", SMALL)
def test_no_flipped_byte_yields_a_wrong_record(record: Record, behind: bytes) -> None:
    """W-32, R-5: every byte × {each bit, 0x00, 0xFF}."""
    raw = record.encode()
    for at, byte in enumerate(raw):
        for changed in {*(byte ^ 1 << bit for bit in range(8)), 0x00, 0xFF} - {byte}:
            with pytest.raises(RecordError):
                Record.decode(raw[:at] + bytes([changed]) + raw[at + 1 :] + behind)


@pytest.mark.parametrize("zeros", range(7, 40))
def test_zeros_never_form_a_record(zeros: int) -> None:
    """W-33: klen 0, vlen 0, flags 0 needs checksum 6064a37a."""
    with pytest.raises(CrcMismatch) as caught:
        Record.decode(bytes(zeros))
    assert (caught.value.expected, caught.value.actual) == (0, 0x6064A37A)


@given(any_record)
def test_every_record_survives_encoding(record: Record) -> None:
    """07 §3, all compressions."""
    raw = record.encode()
    assert Record.decode(raw) == (record, len(raw))


@given(st.lists(any_record, max_size=8), st.binary(max_size=40))
def test_records_back_to_back_decode_at_their_offsets(records: list[Record], behind: bytes) -> None:
    """07 §3: decode(buffer, offset) → (record, size)."""
    buffer = b"".join(record.encode() for record in records)
    at = 0
    found = []
    while at < len(buffer):
        record, size = Record.decode(buffer + behind, at)
        found.append(record)
        at += size
    assert (found, at) == (records, len(buffer))


@given(any_record)
def test_every_kind_of_buffer_decodes_alike(record: Record) -> None:
    """07 §3."""
    raw = record.encode()
    assert Record.decode(bytearray(raw)) == Record.decode(memoryview(raw)) == (record, len(raw))


@given(st.binary(max_size=200), st.integers(0, 220))
@settings(max_examples=400)
def test_arbitrary_bytes_raise_nothing_but_record_errors(raw: bytes, offset: int) -> None:
    """W-91."""
    try:
        _, size = Record.decode(raw, offset)
    except RecordError:
        return
    assert 7 <= size <= len(raw) - offset


@given(st.binary(max_size=60), st.integers(0, 255))
@settings(max_examples=400)
def test_arbitrary_bytes_with_a_right_checksum_raise_nothing_but_record_errors(tail: bytes, flags: int) -> None:
    """W-91: what only a hostile writer produces."""
    raw = sealed(encode_varint(min(3, len(tail))) + encode_varint(max(0, len(tail) - 3)) + bytes([flags]) + tail)
    try:
        Record.decode(raw)
    except RecordError:
        return


def test_the_ttl_is_stored_and_nothing_is_stamped_or_expired() -> None:
    """W-34: the same record has the same bytes, and a TTL of 0 comes back."""
    record = Record.put_with_ttl(b"k", b"v", 0)
    assert record.encode() == record.encode()
    assert Record.decode(record.encode())[0].ttl_ms == 0


def test_a_tombstone_keeps_its_value() -> None:
    """W-34."""
    record = Record(b"k", b"why", tombstone=True)
    assert Record.decode(record.encode())[0] == record


@pytest.mark.parametrize("record", [Record.put(b"", b"v"), Record.put(b"k", b""), Record.delete(b"")])
def test_empty_keys_and_values_are_allowed(record: Record) -> None:
    """W-34."""
    assert Record.decode(record.encode())[0] == record


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (Record.put(b"k", b"v"), (b"k", b"v", False, None, "none")),
        (Record.put_with_ttl(b"k", b"v", 7), (b"k", b"v", False, 7, "none")),
        (Record.delete(b"k"), (b"k", b"", True, None, "none")),
        (Record.put(b"k", b"v").with_compression("zstd"), (b"k", b"v", False, None, "zstd")),
    ],
)
def test_each_constructor_sets_the_promised_fields(record: Record, fields: tuple[object, ...]) -> None:
    """07 §3."""
    assert (record.key, record.value, record.tombstone, record.ttl_ms, record.compression) == fields


def test_a_record_is_frozen_and_has_slots() -> None:
    """07 §3: frozen, slots."""
    record = Record.put(b"k", b"v")
    with pytest.raises(AttributeError):
        record.key = b"other"
    assert not hasattr(record, "__dict__")


def test_with_compression_gives_a_new_record_and_keeps_the_old() -> None:
    """07 §3: → new record."""
    record = Record.put_with_ttl(b"k", b"v", 9)
    other = record.with_compression("lz4")
    assert (record.compression, other.compression, other.ttl_ms) == ("none", "lz4", 9)


@pytest.mark.parametrize("wrong", ["text", 5, None, [1], 1.5])
def test_a_key_or_value_that_is_not_bytes_is_a_type_error(wrong: object) -> None:
    """07 §3: key: bytes, value: bytes. `bytes(5)` would be five zeros."""
    for build in (
        lambda: Record.put(wrong, b"v"),
        lambda: Record.put(b"k", wrong),
        lambda: Record.put_with_ttl(wrong, b"v", 1),
        lambda: Record.put_with_ttl(b"k", wrong, 1),
        lambda: Record.delete(wrong),
    ):
        with pytest.raises(TypeError):
            build()


@pytest.mark.parametrize("buffer", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"aXbX")[::2]])
def test_any_bytes_like_key_and_value_is_copied_to_bytes(buffer: bytes) -> None:
    """07 §3: fields are bytes."""
    record = Record.put(buffer, buffer)
    assert (type(record.key), record.key, type(record.value), record.value) == (bytes, b"ab", bytes, b"ab")


@pytest.mark.parametrize("ttl_ms", [-1, -2048, U64_MAX + 1])
def test_a_ttl_that_is_no_u64_is_refused(ttl_ms: int) -> None:
    """07 §3: ttl_ms is a varint."""
    with pytest.raises(ValueError, match="ttl_ms"):
        Record.put_with_ttl(b"k", b"v", ttl_ms)


@pytest.mark.parametrize("ttl_ms", [-1, -5, -2048, -2049, U64_MAX + 1])
def test_a_record_built_by_hand_with_a_ttl_that_is_no_u64_is_refused_when_encoded(ttl_ms: int) -> None:
    """07 §3: the record written is the record given, never one with another TTL."""
    with pytest.raises(ValueError, match=r"u64|ttl"):
        Record(b"k", b"v", ttl_ms=ttl_ms).encode()


@pytest.mark.parametrize("name", ["gzip", "", "LZ4", None, 1])
def test_an_unknown_compression_is_refused(name: object) -> None:
    """07 §3: "none" | "lz4" | "zstd"."""
    with pytest.raises(ValueError, match="none, lz4, zstd"):
        Record.put(b"k", b"v").with_compression(name)


def test_a_record_built_by_hand_with_an_unknown_compression_is_refused_when_encoded() -> None:
    """W-31: a requested compression is applied or an error."""
    with pytest.raises((ValueError, CompressionFailed), match=r"."):
        Record(b"k", b"v", compression="gzip").encode()
