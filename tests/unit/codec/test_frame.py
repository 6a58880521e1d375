"""WAL frames: encoding, the order of the checks, scanning, resync."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.unit.codec import samples
from topics.codec import control, frame
from topics.codec.frame import Why

u64 = st.integers(0, 2**64 - 1)
texts = st.none() | st.text(max_size=12)
records = st.lists(st.tuples(texts, texts, st.binary(max_size=30)), min_size=1, max_size=6)


def signed(body: bytes, frame_len: int | None = None) -> bytes:
    """A frame around any body, its checksum right."""
    return (
        struct.pack("<I", len(body) + 8 if frame_len is None else frame_len)
        + body
        + struct.pack("<Q", xxh3_64_intdigest(body))
    )


def raw_frame(
    type: int = 1, flags: int = 0, node: bytes = b"", tag: bytes = b"", data: bytes = b"", **lens: int
) -> bytes:
    """A frame whose fields may break any rule but the checksum."""
    sizes = {"node_len": len(node), "tag_len": len(tag), "data_len": len(data), **lens}
    head = struct.pack("<BBQQQHHI", type, flags, 1, 1, 1, sizes["node_len"], sizes["tag_len"], sizes["data_len"])
    return signed(head + node + tag + data)


def why_of(raw: bytes) -> Why:
    """What decode and scan both say about the first frame of a buffer."""
    with pytest.raises(frame.NotAFrame) as refused:
        frame.decode(raw)
    scan = frame.scan_frames(raw)
    assert (len(scan.rows), scan.stop, scan.why) == (0, 0, refused.value.why)
    return scan.why


@given(records, u64, st.integers(1, 2**64 - 10), u64, st.booleans(), st.integers(0, 8), st.booleans())
def test_appends_come_back_as_written(
    batch: list[frame.Record], topic_id: int, first_seq: int, ts: int, durable: bool, hops: int, more: bool
) -> None:
    """S-22 to S-24, S-27: fields, presence of node and tag, the chain, hops 8 as 7."""
    raw = frame.encode_appends(batch, topic_id, first_seq, ts, durable=durable, hops=hops, more=more)
    rows, stop, why, detail = frame.scan_frames(raw)
    assert (len(rows), stop, why, detail) == (len(batch), len(raw), Why.SHORT, "")
    at = 0
    for i, (node, tag, data) in enumerate(batch):
        found = frame.decode(raw, at)
        assert tuple(rows[i].item()) == (at, topic_id, first_seq + i, ts, found.end - at, 1, found.flags)
        assert found[2:5] == (topic_id, first_seq + i, ts)
        assert found.node == (None if node is None else node.encode())
        assert found.tag == (None if tag is None else tag.encode())
        assert found.data == data
        assert bool(found.flags & frame.DURABLE) is durable
        assert bool(found.flags & frame.MORE) is (more or i < len(batch) - 1)
        assert found.flags >> frame.HOPS_SHIFT == min(hops, 7)
        at = found.end


@pytest.mark.parametrize(
    "arguments",
    [
        ([("n" * 65536, None, b"")], 1, 1, 1),
        ([(None, "é" * 32768, b"")], 1, 1, 1),
        ([("\ud800", None, b"")], 1, 1, 1),
        ([(None, None, b"")], -1, 1, 1),
        ([(None, None, b"")], 2**64, 1, 1),
        ([(None, None, b"")] * 2, 1, 2**64 - 1, 1),
        ([(None, None, b"")], 1, 1, -1),
        ([(None, None, bytes(33554432 - 41))], 1, 1, 1),
    ],
)
def test_a_record_that_fits_no_frame_is_refused(arguments: tuple[list[frame.Record], int, int, int]) -> None:
    """06 §3: a ValueError and no bytes."""
    with pytest.raises(ValueError):  # noqa: PT011
        frame.encode_appends(*arguments)


def test_the_largest_frame_is_accepted() -> None:
    """S-26 step 3: 33554432 is inside the bound."""
    raw = frame.encode_appends([(None, None, bytes(33554432 - 42))], 1, 1, 1)
    assert frame.decode(raw).end == len(raw) == 33554436


def test_a_lease_carries_its_job_and_a_control_frame_its_flags() -> None:
    """06 §3, S-41."""
    lease = control.Lease(event=0, node="a", lease_id=1)
    found = frame.decode(frame.encode_control(lease, 5, 6, seq=7, durable=True, more=True, synced_prefix=True))
    assert found[:5] == (10, frame.DURABLE | frame.MORE | frame.SYNCED_PREFIX, 5, 7, 6)
    for bad in ({"topic_id": -1}, {"ts": 2**64}, {"seq": -1}):
        with pytest.raises(ValueError, match="fit"):
            frame.encode_control(lease, **{"topic_id": 1, "ts": 1, **bad})


def test_flagging_a_frame_changes_its_flags_and_checksum_only() -> None:
    """S-25."""
    raw = samples.appends()
    patched = bytearray(raw)
    first = frame.decode(raw)
    frame.set_synced_prefix(patched, first.end)
    second, flagged = frame.decode(raw, first.end), frame.decode(patched, first.end)
    assert flagged == second._replace(flags=second.flags | frame.SYNCED_PREFIX)
    assert patched[: first.end] == raw[: first.end]
    assert patched[second.end :] == raw[second.end :]
    frame.set_synced_prefix(patched, first.end)
    assert frame.decode(patched, first.end) == flagged


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", Why.SHORT),
        (b"\x2a\0\0", Why.SHORT),
        (b"\0\0\0", Why.SHORT),
        (bytes(4), Why.ZERO),
        (bytes(4) + b"\xff", Why.ZERO),
        (b"\x01\0\0\0", Why.BAD),
        (b"\x29\0\0\0" + bytes(41), Why.BAD),
        (b"\x01\0\0\x02", Why.BAD),
        (b"\xff\xff\xff\xff", Why.BAD),
        (b"\x00\0\0\x02", Why.SHORT),
        (b"\x2a\0\0\0" + bytes(41), Why.SHORT),
        (b"\x2a\0\0\0" + bytes(42), Why.BAD),
        (raw_frame(data_len=1), Why.FORMAT),
        (raw_frame(data=b"x", data_len=0), Why.FORMAT),
        (raw_frame(data_len=2**32 - 1), Why.FORMAT),
        (raw_frame(node_len=65535, tag_len=65535, data_len=2**32 - 131070), Why.FORMAT),
        (raw_frame(node=b"n"), Why.FORMAT),
        (raw_frame(tag=b"t"), Why.FORMAT),
        (raw_frame(flags=frame.HAS_TAG, node=b"n"), Why.FORMAT),
        (raw_frame(flags=frame.HAS_NODE, node=b"\xff"), Why.FORMAT),
        (raw_frame(flags=frame.HAS_TAG, tag=b"\xed\xa0\x80"), Why.FORMAT),
        (raw_frame(flags=3, node=b"\xc3", tag=b"\xa9"), Why.FORMAT),
        (raw_frame(type=0), Why.FORMAT),
        (raw_frame(type=15), Why.FORMAT),
        (raw_frame(type=255), Why.FORMAT),
        (raw_frame(type=12), Why.FORMAT),
        (raw_frame(type=11, data=b"\x82\xa1v\x02\xa1h\x01"), Why.FORMAT),
        (raw_frame(type=11, flags=frame.HAS_NODE, node=b"n", data=b"\x82\xa1v\x01\xa1h\x01"), Why.FORMAT),
    ],
)
def test_the_first_failing_check_gives_the_outcome(raw: bytes, why: Why) -> None:
    """S-26: steps in order; S-22, S-41."""
    assert why_of(raw) is why


def test_empty_strings_are_present() -> None:
    """S-22: presence is the flag, not the length."""
    found = frame.decode(raw_frame(flags=3))
    assert (found.node, found.tag) == (b"", b"")
    assert (frame.decode(raw_frame()).node, frame.decode(raw_frame()).tag) == (None, None)


@pytest.mark.parametrize("bad", [raw_frame(type=15), raw_frame(data_len=1), raw_frame(flags=2, node=b"\xff")])
def test_a_format_stop_comes_before_whatever_follows(bad: bytes) -> None:
    """S-26, S-67: intact frames in front count, nothing behind is looked at."""
    good = samples.appends()
    scan = frame.scan_frames(good + bad + raw_frame(data_len=2) + b"\xff" * 50)
    assert (len(scan.rows), scan.stop, scan.why) == (5, len(good), Why.FORMAT)


def test_a_scan_stays_inside_its_range() -> None:
    """The end of the range is the end of the bytes."""
    raw = samples.appends()
    second = frame.decode(raw).end
    third = frame.decode(raw, second).end
    assert len(frame.scan_frames(raw, second, third).rows) == 1
    scan = frame.scan_frames(raw, second, third - 1)
    assert (len(scan.rows), scan.stop, scan.why) == (0, second, Why.SHORT)
    assert len(frame.scan_frames(memoryview(bytearray(raw)), second, 10**9).rows) == 4
    for start, end in ((-1, 5), (6, 5), (len(raw) + 1, None)):
        with pytest.raises(ValueError, match="range"):
            frame.scan_frames(raw, start, end)


@pytest.mark.parametrize("length", [46, 47, 100, 33554436, 33554437, 33554436 + 46, 3 * 33554436 + 5])
def test_pads_fill_a_range_exactly(length: int) -> None:
    """S-66: valid frames of type 14, none below 46 bytes."""
    raw = frame.encode_pads(length)
    scan = frame.scan_frames(raw)
    assert len(raw) == scan.stop == length
    assert set(scan.rows["type"].tolist()) == {frame.PAD}
    assert not scan.rows["flags"].any()


def test_a_range_shorter_than_a_frame_cannot_be_padded() -> None:
    """S-66."""
    with pytest.raises(ValueError, match="45"):
        frame.encode_pads(45)


def test_resync_finds_every_frame_behind_damage() -> None:
    """S-62: at any distance, and no frame inside another."""
    good = samples.appends()
    offsets = frame.scan_frames(good).rows["offset"]
    noise = random.Random(62)
    for gap in [*range(12), 100, 5000]:
        lead = noise.randbytes(gap)
        rows = frame.resync(lead + good + b"\xee" * 3 + good + bytes(100), 0)
        expected = [*(offsets + gap), *(offsets + gap + len(good) + 3)]
        assert rows["offset"].tolist() == [int(offset) for offset in expected]
        assert rows["seq"].tolist() == [1, 2, 3, 4, 5] * 2


def test_resync_reads_a_checksum_that_ends_in_zeros() -> None:
    """S-62: dropping trailing zeros must not cut the last frame short."""
    batches = (frame.encode_appends([(None, None, b'{"d":%d}' % n)], 1, 1, 1) for n in range(10_000))
    raw = next(batch for batch in batches if batch.endswith(b"\0"))
    assert frame.resync(b"\xff" + raw + bytes(50), 1)["offset"].tolist() == [1]


def test_resync_takes_frames_of_steps_1_to_6_only() -> None:
    """S-62: an unreadable body is a valid frame here, a wrong length is not."""
    lead = b"\xff\xff"
    assert len(frame.resync(lead + raw_frame(type=12, data=b"?"), 0)) == 1
    for bad in (raw_frame(data_len=1), raw_frame(flags=2, node=b"\xff"), raw_frame(type=15), raw_frame(type=0)):
        assert len(frame.resync(lead + bad, 0)) == 0
    assert len(frame.resync(lead, 0)) == len(frame.resync(b"", 0)) == len(frame.resync(bytes(100), 7)) == 0


def test_resync_looks_for_nothing_inside_a_valid_frame() -> None:
    """S-62: a found frame moves the scan to its end, so bytes a client sent inside it are no witness."""
    inner = frame.encode_control(control.SyncMark(), 0, 1, synced_prefix=True)
    outer = raw_frame(data=inner)
    assert frame.resync(b"\xff" + outer, 0)["offset"].tolist() == [1]


def test_resync_believes_no_length_beyond_its_range() -> None:
    """S-26 steps 3 and 4: a candidate that reaches behind the end is none."""
    raw = frame.encode_appends(samples.RECORDS, 10, 1, 1)
    last = int(frame.scan_frames(raw).rows["offset"][-1])
    assert len(frame.resync(raw, 1, len(raw) - 1)) == 3
    assert len(frame.resync(raw[: last + 40], 1)) == 3
