"""Damaged bytes: every truncation and every changed byte gives a verdict, no other exception, no wrong record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codec import samples
from topics.codec import control, envelope, frame, segment
from topics.codec.frame import NotAFrame, Why
from topics.codec.scan import Place

CODEC = frame.FrameCodec()
PLACES: list[Place] = ["last", "inner", "beyond"]
MASK = samples.MASK


def changed(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Every byte with each bit turned, with 0x00 and with 0xFF."""
    for at, old in enumerate(raw):
        for new in {*(old ^ 1 << bit for bit in range(8)), 0x00, 0xFF} - {old}:
            yield at, raw[:at] + bytes([new]) + raw[at + 1 :]


def short_wal() -> bytes:
    """Open mark, a chain of two, a synced mark, one record."""
    first = CODEC.preamble(frame.FileInfo(1, None, samples.CONTEXT))
    chain = frame.encode_appends(samples.RECORDS[:2], 10, 1, samples.TS)
    sync = frame.encode_control(control.SyncMark(), 0, samples.TS, synced_prefix=True)
    return first + chain + sync + frame.encode_appends(samples.RECORDS[3:4], 10, 3, samples.TS)


WAL = short_wal()
ROWS = frame.scan_frames(WAL).rows
STARTS = ROWS["offset"].tolist()
SUBMISSIONS = [0, 1, 1, 3, 4]
"""Index of the first frame of the submission each frame belongs to."""


def test_every_truncation_of_a_wal_keeps_exactly_the_whole_frames() -> None:
    """S-26, 06 §5: with and without zeros behind the cut."""
    for cut in range(len(WAL)):
        whole = sum(start + size <= cut for start, size in zip(STARTS, ROWS["len"].tolist(), strict=True))
        scan = frame.scan_frames(WAL[:cut])
        assert scan.rows.tobytes() == ROWS[:whole].tobytes()
        assert (scan.stop, scan.why) == (STARTS[whole], Why.SHORT)
        at_end = cut in (STARTS[0], STARTS[1], STARTS[3], STARTS[4])
        for raw in (WAL[:cut], WAL[:cut] + bytes(300)):
            last = CODEC.scan(memoryview(raw), 0, "last")
            assert (last.end, last.verdict) == (STARTS[SUBMISSIONS[whole]], "clean" if at_end else "torn")
            assert CODEC.scan(memoryview(raw), 0, "inner").verdict == ("clean" if at_end else "corrupt")


def test_every_changed_byte_of_a_wal_stops_the_scan_at_its_frame() -> None:
    """S-26, 06 §5 situations 3 to 5, S-362 5: the frames in front count, the damaged one never does."""
    for at, raw in changed(WAL):
        hit = int(np.searchsorted(STARTS, at, "right")) - 1
        scan = frame.scan_frames(raw)
        assert scan.rows.tobytes() == ROWS[:hit].tobytes()
        assert scan.stop == STARTS[hit]
        assert scan.why is not Why.FORMAT
        with pytest.raises(NotAFrame):
            frame.decode(raw, STARTS[hit])
        last = CODEC.scan(memoryview(raw), 0, "last")
        if hit < 3:
            assert (last.end, last.verdict) == (STARTS[hit], "corrupt")
        else:
            assert (last.end, last.verdict) == (STARTS[SUBMISSIONS[hit]], "torn")
        assert CODEC.scan(memoryview(raw), 0, "inner")[::2] == (STARTS[hit], "corrupt")
        assert frame.resync(raw, scan.stop + 1)["offset"].tolist() == STARTS[hit + 1 :]


def test_a_signed_frame_with_any_changed_byte_is_a_frame_or_format() -> None:
    """S-26 steps 6 and 7: a right checksum over wrong content never raises and never lies about its length."""
    for start in STARTS:
        size = frame.decode(WAL, start).end - start
        raw = WAL[start : start + size]
        for at, mutant in changed(raw):
            if not 4 <= at < size - 8:
                continue
            buffer = bytearray(mutant)
            frame.set_synced_prefix(buffer)
            scan = frame.scan_frames(buffer)
            assert (scan.stop, scan.why) in ((size, Why.SHORT), (0, Why.FORMAT))
            assert CODEC.scan(memoryview(buffer), 0, "last").verdict in ("clean", "torn", "format")
            if len(scan.rows):
                assert frame.decode(buffer).end == size


@pytest.mark.parametrize("body", samples.BODIES, ids=lambda body: type(body).__name__)
def test_a_control_body_with_any_changed_byte_is_a_body_or_a_value_error(body: control.Body) -> None:
    """S-26 step 7."""
    kind = control.TYPES[type(body)]
    raw = control.encode_body(body)
    for mutant in [*(raw[:cut] for cut in range(len(raw))), *(text for _, text in changed(raw))]:
        try:
            control.decode_body(kind, mutant)
        except ValueError:
            continue


def test_every_truncation_and_changed_byte_of_a_data_file_stops_at_its_frame() -> None:
    """S-120, S-362 5 and 6: only the delete byte may change a frame that is still trusted."""
    data = segment.reframe(samples.appends(), frame.scan_frames(samples.appends()).rows["offset"].tolist(), MASK)[0]
    rows = segment.scan_data(data, MASK).rows
    starts = rows["offset"].tolist()
    ends = [start + size for start, size in zip(starts, rows["len"].tolist(), strict=True)]
    for cut in range(len(data)):
        whole = sum(end <= cut for end in ends)
        scan = segment.scan_data(data[:cut], MASK)
        assert (scan.rows.tobytes(), scan.stop) == (rows[:whole].tobytes(), starts[whole])
        assert segment.scan_data(data, MASK, 0, cut).rows.tobytes() == rows[:whole].tobytes()
    for at, raw in changed(data):
        hit = int(np.searchsorted(starts, at, "right")) - 1
        scan = segment.scan_data(raw, MASK)
        if at == ends[hit] - 1:
            assert scan.rows.tobytes() == rows.tobytes()
            continue
        assert (scan.rows.tobytes(), scan.stop) == (rows[:hit].tobytes(), starts[hit])
        with pytest.raises(NotAFrame):
            segment.decode(raw, starts[hit], hit + 1, MASK)


def footer_or_why(idx: bytes, mask: int) -> segment.Footer | Why | None:
    try:
        return segment.read_footer(idx, mask)
    except NotAFrame as refused:
        return refused.why


@pytest.mark.parametrize("name", ["segment.idx", "segment-cold.idx", "segment-gap.idx"])
def test_a_sealed_idx_with_any_change_never_verifies(name: str) -> None:
    """S-130: absent or damaged, never another footer."""
    raw = samples.FILES[name]()
    mask = samples.SEGMENT_MASK if name != "segment-gap.idx" else samples.place.segment_mask(samples.TOPIC, 301)
    assert segment.read_footer(raw, mask) is not None
    for mutant in [*(raw[:cut] for cut in range(len(raw))), *(text for _, text in changed(raw))]:
        assert footer_or_why(mutant, mask) in (None, Why.BAD)
        with pytest.raises(NotAFrame):
            segment.read_gap(mutant, mask)


def test_an_envelope_with_any_change_is_split_without_loss_or_refused() -> None:
    """S-40: whatever is accepted is built from its parts again."""
    for _, _, raw in samples.RECORDS:
        for mutant in [*(raw[:cut] for cut in range(len(raw))), *(text for _, text in changed(raw))]:
            assert 0 <= envelope.accounted_bytes(mutant) <= len(mutant)
            try:
                parts = envelope.split(mutant)
            except ValueError:
                continue
            assert envelope.build(*parts) == mutant


@given(st.binary(max_size=300), st.sampled_from(PLACES))
def test_any_bytes_get_a_verdict(raw: bytes, place: Place) -> None:
    """W-91: a codec never raises on hostile input."""
    scan = CODEC.scan(memoryview(raw), 0, place)
    assert 0 <= scan.end <= len(raw)
    assert scan.records == 0
    assert segment.scan_data(raw, MASK).stop == 0
    frame.resync(raw, 0)
    assert frame.length_agrees(1, 1, raw)


@given(
    st.lists(st.sampled_from([*STARTS, -1, -2]), max_size=8),
    st.binary(max_size=8),
    st.integers(0, 200),
    st.sampled_from(PLACES),
)
def test_any_mixture_of_frames_noise_and_zeros_gets_a_verdict(
    picks: list[int], noise: bytes, zeros: int, place: Place
) -> None:
    """06 §5: a clean or torn end lies behind whole submissions, and a second scan of what is kept is clean [S-60]."""
    parts = {-1: noise, -2: bytes(zeros)}
    parts |= {start: WAL[start : start + int(size)] for start, size in zip(STARTS, ROWS["len"], strict=True)}
    raw = b"".join(parts[pick] for pick in picks)
    scan = CODEC.scan(memoryview(raw), 0, place)
    assert 0 <= scan.end <= len(raw)
    if scan.verdict in ("clean", "torn"):
        again = CODEC.scan(memoryview(raw[: scan.end]), 0, place)
        assert again == (scan.end, scan.records, "clean", "")
