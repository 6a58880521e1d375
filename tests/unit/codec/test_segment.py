"""Segment files: reframing, scanning, entries, footers, gap segments and the delete byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.unit.codec import samples
from topics.codec import control, envelope, frame, place, segment
from topics.codec.frame import NotAFrame, Why

TOPIC, TS, MASK = samples.TOPIC, samples.TS, samples.MASK
texts = st.none() | st.text(max_size=12)
raws = st.builds(
    envelope.build, st.sampled_from([b"1", b'{"a":1,"m":{}}', b'""']), st.sampled_from([None, b"{}", b'{"m":{}}'])
)
records = st.lists(st.tuples(texts, texts, raws), min_size=1, max_size=6)


def signed(body: bytes, mask: int = MASK) -> bytes:
    """A `.data` frame around any body, its checksum right."""
    return struct.pack("<I", len(body) + 9) + body + struct.pack("<QB", xxh3_64_intdigest(body) ^ mask, 0)


def raw_frame(
    seq: int = 1, flags: int = 0, node: bytes = b"", tag: bytes = b"", data: bytes = b"", **lens: int
) -> bytes:
    """A `.data` frame whose fields may break any rule but the checksum."""
    sizes = {"node_len": len(node), "tag_len": len(tag), "data_len": len(data), **lens}
    head = struct.pack("<BQQHHI", flags, seq, TS, sizes["node_len"], sizes["tag_len"], sizes["data_len"])
    return signed(head + node + tag + data)


def reframed(raw: bytes, at: int = 0) -> tuple[bytes, bytes]:
    return segment.reframe(raw, frame.scan_frames(raw).rows["offset"].tolist(), MASK, at)


@given(records, st.integers(1, 2**60), st.integers(0, 2**63), st.integers(0, 8), st.integers(0, 2**31))
def test_reframed_records_keep_every_field(batch: list[frame.Record], first: int, ts: int, hops: int, at: int) -> None:
    """S-121, S-122: node, tag and data unchanged, one entry per record, sizes that add up."""
    data, idx = reframed(frame.encode_appends(batch, TOPIC, first, ts, hops=hops, durable=True), at)
    entries = np.frombuffer(idx, segment.IDX)
    rows, stop, why, detail = segment.scan_data(data, MASK)
    assert (len(rows), stop, why, detail) == (len(batch), len(data), Why.SHORT, "")
    assert (entries["offset"] - at).tolist() == rows["offset"].tolist()
    assert entries["len"].tolist() == rows["len"].tolist()
    for i, (node, tag, text) in enumerate(batch):
        found = segment.decode(data, int(rows["offset"][i]), first + i, MASK)
        assert found.node == (None if node is None else node.encode())
        assert found.tag == (None if tag is None else tag.encode())
        assert (found.data, found.ts, found.deleted) == (text, ts, False)
        assert found.flags >> segment.HOPS_SHIFT == min(hops, 7)
        assert int(entries["flags"][i]) == found.flags == int(rows["flags"][i])
        assert int(entries["len"][i]) - int(segment.ovh(entries)[i]) == envelope.accounted_bytes(text)
        texts_len = len(found.node or b"") + len(found.tag or b"")
        around = 11 if envelope.split(text)[1] is not None else 6
        assert int(segment.ovh(entries)[i]) - 38 - texts_len == around
    if at == 0:
        assert segment.entries_of(data, rows).tobytes() == idx


def test_reframing_refuses_what_is_not_an_intact_append_of_the_topic() -> None:
    """S-121, S-135: damage or another topic's record must not get a valid checksum."""
    raw = samples.appends()
    flipped = raw[:50] + bytes([raw[50] ^ 1]) + raw[51:]
    gap = frame.encode_control(control.Gap(first=1, last=2, reason=1), TOPIC, TS)
    other = frame.encode_appends(samples.RECORDS[:1], TOPIC + 1, 1, TS)
    for bad, offsets in (
        (flipped, [0]),
        (gap, [0]),
        (other, [0]),
        (raw, [1]),
        (raw, [len(raw)]),
        (b"", [0]),
        (raw[:-1], [0, 337]),
    ):
        with pytest.raises(NotAFrame):
            segment.reframe(bad, offsets, MASK)
    with pytest.raises(NotAFrame):
        segment.reframe(raw + other, [0, len(raw)], MASK)
    with pytest.raises(ValueError, match="reach"):
        segment.reframe(raw, [0], MASK, 2**32)
    assert segment.reframe(raw, [], MASK) == (b"", b"")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", Why.SHORT),
        (b"\x22\0\0", Why.SHORT),
        (bytes(4), Why.ZERO),
        (b"\x21\0\0\0" + bytes(33), Why.BAD),
        (b"\xf9\xff\xff\x01", Why.BAD),
        (b"\xf8\xff\xff\x01", Why.SHORT),
        (b"\x22\0\0\0" + bytes(33), Why.SHORT),
        (b"\x22\0\0\0" + bytes(34), Why.BAD),
        (raw_frame(data_len=1), Why.FORMAT),
        (raw_frame(node=b"n"), Why.FORMAT),
        (raw_frame(tag=b"t"), Why.FORMAT),
        (raw_frame(flags=2, node=b"\xff"), Why.FORMAT),
        (raw_frame(flags=3, node=b"\xc3", tag=b"\xa9"), Why.FORMAT),
    ],
)
def test_bytes_that_are_no_data_frame_say_why(raw: bytes, why: Why) -> None:
    """06 §8.1: lengths before use, then the checksum, then the content."""
    scan = segment.scan_data(raw, MASK)
    assert (len(scan.rows), scan.stop, scan.why) == (0, 0, why)
    with pytest.raises(NotAFrame) as refused:
        segment.decode(raw, 0, 1, MASK)
    assert refused.value.why is why


def test_a_frame_of_another_topic_or_seq_is_not_trusted() -> None:
    """S-120, S-135."""
    data, _ = reframed(samples.appends())
    assert segment.scan_data(data, place.topic_mask(11)).why is Why.BAD
    for seq, mask in ((2, MASK), (0, MASK), (1, place.topic_mask(11))):
        with pytest.raises(NotAFrame) as refused:
            segment.decode(data, 0, seq, mask)
        assert refused.value.why is Why.BAD


def test_a_data_scan_stops_where_seqs_do_not_ascend() -> None:
    """06 §8: a segment is ordered by seq; holes in the seqs are fillers."""
    ordered = raw_frame(1) + raw_frame(5)
    assert len(segment.scan_data(ordered, MASK).rows) == 2
    for seq in (5, 4):
        scan = segment.scan_data(ordered + raw_frame(seq) + raw_frame(9, data_len=1), MASK)
        assert (len(scan.rows), scan.stop, scan.why) == (2, len(ordered), Why.BAD)
    scan = segment.scan_data(ordered + raw_frame(9, data_len=1) + raw_frame(2), MASK)
    assert (len(scan.rows), scan.stop, scan.why) == (2, len(ordered), Why.FORMAT)
    with pytest.raises(ValueError, match="range"):
        segment.scan_data(ordered, MASK, 5, 4)


def test_only_the_exact_delete_byte_deletes() -> None:
    """S-120: all other values read as live, and no value breaks the frame."""
    data = bytearray(reframed(samples.appends())[0])
    end = segment.decode(data, 0, 1, MASK).end
    for value in range(256):
        data[end - 1] = value
        assert segment.decode(data, 0, 1, MASK).deleted is (value == 0xD5)
        scan = segment.scan_data(data, MASK)
        assert scan.rows["deleted"].tolist() == [value == 0xD5] + [False] * 4
        flags = int(segment.entries_of(data, scan.rows)["flags"][0])
        assert bool(flags & segment.DELETED) is (value == 0xD5)


def test_the_delete_byte_decides_and_an_unclear_one_leaves_it_to_the_entry() -> None:
    """06 §14 step 5: 0xD5 deleted, 0x00 live, else the bit; entries without a frame keep theirs."""
    raw, idx = reframed(samples.appends())
    data = bytearray(raw)
    entries = np.frombuffer(idx + segment.fillers(1, TS) + segment.fillers(1, TS, 2), segment.IDX).copy()
    ends = (entries["offset"].astype(int) + entries["len"])[:5].tolist()
    for i, (marked, byte) in enumerate([(False, 0xD5), (True, 0x00), (True, 0x01), (False, 0x01), (True, 0xD5)]):
        data[ends[i] - 1] = byte
        entries["flags"][i] |= segment.DELETED if marked else 0
    before = entries.tobytes()
    assert segment.deleted_by_witness(entries, data).tolist() == [True, False, True, False, True, True, False]
    assert entries.tobytes() == before
    with pytest.raises(ValueError, match="behind the end"):
        segment.deleted_by_witness(entries, data[:-1])
    assert segment.deleted_by_witness(entries[5:], b"").tolist() == [True, False]


def test_fillers_are_deleted_or_holes() -> None:
    """S-123, S-124: offset and len 0, the given ts, the reason in ovh."""
    entries = np.frombuffer(segment.fillers(3, TS) + segment.fillers(2, TS + 1, 3, 8), segment.IDX)
    assert entries["flags"].tolist() == [segment.DELETED] * 3 + [segment.LOST | 0x80] * 2
    assert segment.ovh(entries).tolist() == [0, 0, 0, 3, 3]
    assert entries["ts"].tolist() == [TS] * 3 + [TS + 1] * 2
    assert not entries["offset"].any()
    assert not entries["len"].any()
    for reason, hops in ((4, 0), (-1, 0), (0, 9)):
        with pytest.raises(ValueError, match="reason"):
            segment.fillers(1, TS, reason, hops)


def test_the_claimed_hash_ignores_delete_marks_of_frames_only() -> None:
    """S-44: a mark on a record may reach the disk later; a filler is part of the claim."""
    raw = reframed(samples.appends())[1] + segment.fillers(1, TS)
    entries = np.frombuffer(raw, segment.IDX).copy()
    claimed = segment.claim_xxh3(entries)
    assert claimed == xxh3_64_intdigest(raw)
    entries["flags"][:5] |= segment.DELETED
    assert segment.claim_xxh3(entries) == claimed
    entries["flags"][5] ^= segment.DELETED
    assert segment.claim_xxh3(entries) != claimed


@given(st.integers(0, 40), st.sampled_from([segment.HOT, segment.COLD]), st.integers(0, 65535))
def test_a_footer_verifies_only_in_its_place(n: int, magic: bytes, generation: int) -> None:
    """S-135: another topic's or a renamed file does not verify; an active `.idx` has no footer."""
    entries = segment.fillers(n, TS)
    idx = entries + segment.encode_footer(entries, samples.SEGMENT_MASK, magic, generation)
    assert segment.read_footer(idx, samples.SEGMENT_MASK) == (magic, generation, n)
    assert segment.read_footer(memoryview(idx), samples.SEGMENT_MASK) == (magic, generation, n)
    for topic_id, first in ((TOPIC, 2), (TOPIC + 1, 1)):
        with pytest.raises(NotAFrame):
            segment.read_footer(idx, place.segment_mask(topic_id, first))
    assert segment.read_footer(entries, samples.SEGMENT_MASK) is None
    with pytest.raises(NotAFrame):
        segment.read_footer(segment.fillers(1, TS) + idx, samples.SEGMENT_MASK)


def test_set_reserved_bytes_of_a_footer_are_format() -> None:
    """S-7: intact bytes of a later version are refused, not repaired."""
    head = struct.pack("<4sHHI", segment.HOT, 0, 1, 0)
    with pytest.raises(NotAFrame) as refused:
        segment.read_footer(head + struct.pack("<Q", xxh3_64_intdigest(head) ^ MASK), MASK)
    assert refused.value.why is Why.FORMAT


def test_eight_hops_reach_a_segment_although_a_wal_frame_keeps_seven() -> None:
    """[S-27, CYC-3]."""
    raw = frame.encode_appends([(None, None, b'{"d":1}')] * 2, TOPIC, 1, 5, hops=8)
    offsets = frame.scan_frames(raw).rows["offset"].tolist()
    for hops, kept in ((None, [7, 7]), (np.array([8, 3]), [8, 3])):
        data, idx = segment.reframe(raw, offsets, MASK, 0, hops)
        assert (np.frombuffer(idx, segment.IDX)["flags"] >> 4).tolist() == kept
        assert segment.decode(data, 0, 1, MASK).flags >> 4 == kept[0]


@given(st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(0, 8))
def test_a_gap_segment_comes_back_as_written(seqs: int, ts: int, reason: int, hops: int) -> None:
    """S-129: 40 bytes, silent for reason 0."""
    raw = segment.encode_gap(seqs, ts, reason, MASK, hops)
    assert len(raw) == 40
    assert segment.read_gap(raw, MASK) == (seqs, ts, reason, hops)
    assert raw[16] & 0x0F == (segment.LOST if reason else segment.DELETED)


def test_what_is_no_gap_segment_is_refused() -> None:
    """S-129."""
    for seqs in (0, 2**32):
        with pytest.raises(ValueError, match="seqs"):
            segment.encode_gap(seqs, TS, 0, MASK)
    entry = segment.encode_gap(5, TS, 2, MASK)[:20]
    live = np.frombuffer(entry, segment.IDX).copy()
    live["len"] = 40
    both = np.frombuffer(entry, segment.IDX).copy()
    both["flags"] |= segment.DELETED
    for bad in (live.tobytes(), both.tobytes(), segment.fillers(1, TS), b"", entry * 2):
        with pytest.raises(NotAFrame):
            segment.read_gap(bad + segment.encode_footer(bad, MASK, segment.GAP), MASK)
    for idx in (b"", entry, entry + segment.encode_footer(entry, MASK, segment.HOT)):
        with pytest.raises(NotAFrame):
            segment.read_gap(idx, MASK)


def test_a_footer_with_another_count_does_not_verify() -> None:
    """S-122: the count and the size of the file must agree, whatever the hash says."""
    entries = segment.fillers(2, TS)
    head = struct.pack("<4sHHI", segment.HOT, 0, 0, 1)
    with pytest.raises(NotAFrame):
        segment.read_footer(entries + head + struct.pack("<Q", xxh3_64_intdigest(entries + head) ^ MASK), MASK)


def test_a_footer_at_an_odd_place_is_damage_not_absence() -> None:
    """S-130: a sealed `.idx` that lost bytes is rebuilt, not taken for an active one."""
    idx = samples.idx()
    with pytest.raises(NotAFrame):
        segment.read_footer(idx[3:], samples.SEGMENT_MASK)


def test_unused_flag_bits_of_a_frame_mark_no_entry() -> None:
    """S-120, S-124: deleted and lost are never taken from a frame's flags."""
    data = raw_frame(flags=segment.DELETED | segment.LOST, data=b'{"d":1}')
    assert segment.entries_of(data, segment.scan_data(data, MASK).rows)["flags"].tolist() == [0]
