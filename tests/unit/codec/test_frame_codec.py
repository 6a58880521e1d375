"""FrameCodec: the verdicts of 06 §5, the open mark, and the length a later file vouches for."""

from __future__ import annotations

import pytest

from tests.unit.codec import samples
from topics.codec import control, frame
from topics.codec.scan import Codec, FileInfo, Place, Scan

CODEC: Codec = frame.FrameCodec()
PLACES: list[Place] = ["last", "inner", "beyond"]

OPEN = CODEC.preamble(FileInfo(3, (2, 900), samples.CONTEXT))
ONE = frame.encode_appends(samples.RECORDS[:1], 10, 1, samples.TS)
CHAIN = frame.encode_appends(samples.RECORDS, 10, 2, samples.TS)
SYNC = frame.encode_control(control.SyncMark(), 0, samples.TS, synced_prefix=True)
UNREADABLE = frame.encode_control(control.Gap(first=1, last=2, reason=1), 10, samples.TS).replace(
    b"\xa1v\x01", b"\xa1v\x02"
)


def judge(raw: bytes, place: Place = "last", start: int = 0) -> Scan:
    return CODEC.scan(memoryview(raw), start, place)


def broken(raw: bytes, at: int = 20) -> bytes:
    """The same bytes with one bit turned."""
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("zeros", [0, 1, 3, 4, 5, 200_000])
def test_whole_submissions_before_zeros_or_the_end_are_clean(place: Place, zeros: int) -> None:
    """06 §5 situation 1, any file."""
    raw = OPEN + ONE + CHAIN
    assert judge(raw + bytes(zeros), place) == (len(raw), 7, "clean", "")


@pytest.mark.parametrize("place", PLACES)
def test_a_prepared_file_is_clean_and_empty(place: Place) -> None:
    """S-20: all zero carries no information."""
    assert judge(bytes(4096), place) == judge(b"", place) == (0, 0, "clean", "")


@pytest.mark.parametrize("zeros", [0, 100])
def test_a_submission_without_its_last_frame_is_cut_whole(zeros: int) -> None:
    """06 §5 situation 2, S-241; below the tail file it is situation 5."""
    offsets = frame.scan_frames(CHAIN).rows["offset"].tolist()
    for cut in offsets[1:]:
        raw = OPEN + ONE + CHAIN[:cut]
        torn = judge(raw + bytes(zeros))
        assert torn[:3] == (len(OPEN + ONE), 2, "torn")
        assert judge(raw + bytes(zeros), "inner")[:3] == (len(raw), 2 + offsets.index(cut), "corrupt")
    assert judge(CHAIN[: offsets[2]])[:3] == (0, 0, "torn")


def test_damage_without_a_later_synced_frame_is_a_torn_tail() -> None:
    """06 §5 situation 3: cut at P, or at the start of the submission that contains P."""
    assert judge(OPEN + ONE + broken(ONE) + CHAIN)[:3] == (len(OPEN + ONE), 2, "torn")
    second = int(frame.scan_frames(CHAIN).rows["offset"][1])
    assert judge(OPEN + ONE + broken(CHAIN, second + 20) + ONE)[:3] == (len(OPEN + ONE), 2, "torn")
    assert judge(OPEN + ONE[:-1])[:3] == (len(OPEN), 1, "torn")
    assert judge(OPEN + bytes(512) + ONE)[:3] == (len(OPEN), 1, "torn")
    assert judge(OPEN + b"\x01")[:3] == (len(OPEN), 1, "torn")
    assert "5 valid frames beyond" in judge(OPEN + broken(ONE) + CHAIN).detail


@pytest.mark.parametrize("gap", [b"", bytes(512), b"\xff" * 77])
def test_damage_before_a_later_synced_frame_is_corruption(gap: bytes) -> None:
    """06 §5 situation 4, S-65: the detail names offset, frames and topics beyond."""
    raw = OPEN + ONE + (gap or broken(ONE)) + CHAIN + SYNC
    found = judge(raw)
    assert found[:3] == (len(OPEN + ONE), 2, "corrupt")
    assert f"offset {len(OPEN + ONE)}" in found.detail
    assert "6 valid frames beyond, of topics [0, 10]" in found.detail


def test_a_chain_cut_by_a_later_synced_frame_is_corruption() -> None:
    """06 §5 situation 4: P lies inside a submission."""
    second = int(frame.scan_frames(CHAIN).rows["offset"][1])
    assert judge(OPEN + broken(CHAIN, second + 20) + SYNC)[:3] == (len(OPEN) + second, 2, "corrupt")


@pytest.mark.parametrize("tail", [b"\x01", ONE[:-1], broken(ONE), bytes(512) + ONE])
def test_any_damage_below_the_tail_file_is_corruption(tail: bytes) -> None:
    """06 §5 situation 5."""
    assert judge(OPEN + ONE + tail, "inner")[:3] == (len(OPEN + ONE), 2, "corrupt")


@pytest.mark.parametrize("place", PLACES)
def test_an_intact_frame_that_cannot_be_read_is_format_everywhere(place: Place) -> None:
    """S-67: never truncated away."""
    body = bytearray(UNREADABLE)
    frame.set_synced_prefix(body)
    found = judge(OPEN + bytes(body) + ONE, place)
    assert found[:3] == (len(OPEN), 1, "format")
    assert f"offset {len(OPEN)}" in found.detail


def test_a_scan_may_start_at_a_later_submission() -> None:
    """S-63: offsets below the replay position are not examined."""
    raw = broken(OPEN) + ONE + CHAIN[:50]
    assert judge(raw, start=len(OPEN))[:3] == (len(OPEN + ONE), 1, "torn")
    assert judge(raw[: len(OPEN + ONE)], start=len(OPEN + ONE)) == (len(OPEN + ONE), 0, "clean", "")


def test_a_file_that_ends_before_the_replay_position_is_corrupt() -> None:
    """S-211: it held those bytes once."""
    assert judge(OPEN, start=len(OPEN) + 1)[:3] == (len(OPEN), 0, "corrupt")


def test_the_open_mark_tells_run_place_and_previous_file() -> None:
    """S-20, S-25, S-44."""
    found = frame.decode(OPEN)
    assert (found.type, found.flags, found.topic_id, found.ts) == (8, frame.SYNCED_PREFIX, 0, samples.TS)
    mark = control.OpenMark(run=7, boot="6f1c2d3e-boot", shard=1, shards=4, file=3, prev=(2, 900))
    assert control.decode_body(8, found.data) == mark
    first = frame.decode(CODEC.preamble(FileInfo(1, None, samples.CONTEXT)))
    assert b"prev" not in first.data


def test_a_file_is_complete_only_at_the_length_the_next_one_names() -> None:
    """S-68: where that is readable."""
    assert frame.length_agrees(2, 900, OPEN + ONE)
    assert not frame.length_agrees(2, 899, OPEN)
    assert not frame.length_agrees(2, 901, OPEN)
    for unreadable in (
        b"",
        broken(OPEN),
        OPEN[:-1],
        bytes(100),
        ONE,
        SYNC,
        CODEC.preamble(FileInfo(1, None, samples.CONTEXT)),
    ):
        assert frame.length_agrees(2, 899, unreadable)
    assert frame.length_agrees(1, 899, OPEN)
