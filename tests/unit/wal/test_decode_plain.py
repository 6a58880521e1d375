"""The reader's fast path must be `decode` for the records it takes, and take nothing it should not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.errors import RecordError
from topics.wal.record import Record, decode, decode_plain

RECORDS = st.builds(
    Record,
    key=st.binary(max_size=200),
    value=st.binary(max_size=300) | st.integers(0, 20_000).map(bytes),
    tombstone=st.booleans(),
    ttl_ms=st.none() | st.integers(0, 2**64 - 1),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)


def usual(record: Record) -> bool:
    return (
        len(record.key) < 128 and len(record.value) < 1 << 14 and record.ttl_ms is None and record.compression == "none"
    )


@given(RECORDS, st.binary(max_size=9), st.binary(max_size=9))
def test_it_takes_the_usual_records_and_reads_them_as_decode_does(record: Record, before: bytes, behind: bytes) -> None:
    """W-32."""
    raw = before + record.encode() + behind
    end = len(raw)
    found = decode_plain(raw, len(before), end)
    assert found == (decode(raw, len(before), end) if usual(record) else None)


@given(RECORDS.filter(usual), st.data())
def test_a_damaged_or_cut_record_is_left_to_decode(record: Record, data: st.DataObject) -> None:
    """W-32: it never answers where decode raises, and never with something else."""
    raw = bytearray(record.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(raw)))
    found = decode_plain(bytes(raw), 0, end)
    try:
        expected = decode(bytes(raw), 0, end)
    except RecordError:
        assert found is None
    else:
        assert found in (None, expected)
