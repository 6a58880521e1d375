"""The golden files: bytes written by an earlier version are read, and today's bytes are the same [S-7]."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.codec import samples
from topics.codec import control, envelope, frame, place, segment
from topics.codec.frame import Why


@pytest.mark.parametrize("name", samples.FILES)
def test_encoding_gives_the_golden_bytes(name: str) -> None:
    """S-7: a format changes only with its version; samples.py says how to write the files anew."""
    assert samples.FILES[name]() == (samples.GOLDEN / name).read_bytes()


def test_every_golden_file_has_a_sample() -> None:
    """A file nobody checks is not golden."""
    assert {path.name for path in samples.GOLDEN.iterdir()} == set(samples.FILES)


def test_golden_appends_decode_to_their_records() -> None:
    """S-22, S-24, S-40: nodes, tags, envelopes, and `more` on all but the last."""
    raw = (samples.GOLDEN / "wal-appends.bin").read_bytes()
    at, seen = 0, []
    while at < len(raw):
        decoded = frame.decode(raw, at)
        at = decoded.end
        seen.append(decoded)
    for decoded, (node, tag, data) in zip(seen, samples.RECORDS, strict=True):
        assert decoded.node == (None if node is None else node.encode())
        assert decoded.tag == (None if tag is None else tag.encode())
        assert decoded.data == data
    assert [f.flags & frame.MORE for f in seen] == [frame.MORE] * 4 + [0]


def test_golden_control_frames_decode_to_their_bodies() -> None:
    """S-41, S-44: every body of types 2-13 and every kind of mark."""
    raw = (samples.GOLDEN / "wal-controls.bin").read_bytes()
    rows = frame.scan_frames(raw).rows
    frames = [frame.decode(raw, int(offset)) for offset in rows["offset"]]
    assert [control.decode_body(f.type, f.data) for f in frames[:-1]] == samples.BODIES
    assert frames[-1].type == frame.PAD
    assert {f.type for f in frames} == set(range(2, 15))
    assert set(map(type, samples.BODIES)) == set(control.TYPES)


def test_golden_wal_file_is_clean() -> None:
    """06 §5 situation 1, S-20, S-25, S-27."""
    raw = (samples.GOLDEN / "wal-file.log").read_bytes()
    assert frame.FrameCodec().scan(memoryview(raw), 0, "last") == (len(raw), 9, "clean", "")
    rows = frame.scan_frames(raw).rows
    assert np.flatnonzero(rows["flags"] & frame.SYNCED_PREFIX).tolist() == [0, 7]
    assert int(rows["flags"][-1]) >> frame.HOPS_SHIFT == 7


def test_golden_segment_decodes_to_its_records() -> None:
    """S-120 to S-124: data, entries, fillers, holes and footers."""
    data = (samples.GOLDEN / "segment.data").read_bytes()
    scan = segment.scan_data(data, samples.MASK)
    assert (scan.stop, scan.why) == (len(data), Why.SHORT)
    assert scan.rows["deleted"].tolist() == [False, True, False, False, False]
    idx = (samples.GOLDEN / "segment.idx").read_bytes()
    assert segment.read_footer(idx, samples.SEGMENT_MASK) == (segment.HOT, 0, 8)
    entries = np.frombuffer(idx[:-20], segment.IDX)
    assert segment.entries_of(data, scan.rows).tobytes() == idx[: 5 * 20]
    for i, (_, _, text) in enumerate(samples.RECORDS):
        found = segment.decode(data, int(entries["offset"][i]), i + 1, samples.MASK)
        assert found.data == text
        assert int(entries["len"][i]) - int(segment.ovh(entries)[i]) == envelope.accounted_bytes(text)
    assert entries["flags"][5:].tolist() == [segment.DELETED, segment.LOST | 0x30, segment.LOST | 0x30]
    assert segment.ovh(entries)[5:].tolist() == [0, 2, 2]


def test_golden_cold_and_gap_footers_are_read() -> None:
    """S-129, S-135."""
    cold = (samples.GOLDEN / "segment-cold.idx").read_bytes()
    assert segment.read_footer(cold, samples.SEGMENT_MASK) == (segment.COLD, 2, 8)
    gap = (samples.GOLDEN / "segment-gap.idx").read_bytes()
    assert segment.read_gap(gap, place.segment_mask(samples.TOPIC, 301)) == (700, samples.TS, 3, 1)


def test_golden_envelopes_split_into_what_was_written() -> None:
    """S-40, REC-6: byte for byte."""
    for line in (samples.GOLDEN / "envelopes.jsonl").read_bytes().splitlines():
        assert envelope.build(*envelope.split(line)) == line
