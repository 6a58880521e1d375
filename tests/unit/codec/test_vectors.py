"""The published vectors of 06 §22: bytes that every implementation must agree on."""

from __future__ import annotations

import pytest
from xxhash import xxh3_64_intdigest

from topics.codec import control, envelope, frame, place, segment

TS = 1700000000000
APPEND = bytes.fromhex(
    "4c00000001070a0000000000000001000000000000000168e5cf8b010000020005001b0000006e316a6f623a37"
    "7b2264223a7b226e223a317d2c226d223a7b226b223a2276227d7df25802a942a9fa14"
)
DATA = bytes.fromhex(
    "440000000301000000000000000168e5cf8b010000020005001b0000006e316a6f623a37"
    "7b2264223a7b226e223a317d2c226d223a7b226b223a2276227d7dfa18272300d3ebc400"
)
ENTRY = bytes.fromhex("00000000480000000168e5cf8b01000003380000")
FOOTER = bytes.fromhex("5449583100000000010000009f349daa9c00d1fb")
GAP_SEGMENT = bytes.fromhex("bc020000000000000468e5cf8b010000080300005449584700000000010000002b2ccf992b2e223d")

CONTROL = [
    (
        control.Gap(first=301, last=1000, reason=3),
        4,
        False,
        "3b0000000c000a0000000000000000000000000000000468e5cf8b010000000000001100000084a17601a166cd012da174cd03e8a17203"
        "445fc194b29b5b5c",
    ),
    (
        control.Dedupe(first=31, count=2, key="shift-3/0041"),
        5,
        False,
        "430000000d000a0000000000000000000000000000000568e5cf8b010000000000001900000084a17601a1661fa16e02a16bac73686966"
        "742d332f3030343183320eb6a2c70ae9",
    ),
    (
        control.HeadWatermark(reserved=257),
        2,
        True,
        "330000000b040a0000000000000000000000000000000268e5cf8b010000000000000900000082a17601a168cd01015ef1c14ec992ebdf",
    ),
    (
        control.Delete(match=("Glob", "job:"), bound=5, cap_floor=1, ttl_floor=1),
        3,
        False,
        "4600000006000a0000000000000000000000000000000368e5cf8b010000000000001c00000085a17601a16d92a4476c6f62a46a6f623a"
        "a16805a2636601a2746601dfa3595f657dff6c",
    ),
]


def test_an_append_frame_is_the_published_bytes() -> None:
    """06 §22, S-40: 80 bytes, both ways."""
    text = envelope.build(b'{"n":1}', b'{"k":"v"}')
    assert frame.encode_appends([("n1", "job:7", text)], 10, 1, TS + 1, durable=True) == APPEND
    assert frame.decode(APPEND) == frame.Frame(1, 7, 10, 1, TS + 1, b"n1", b"job:7", text, 80)


def test_the_same_record_reframed_is_the_published_segment_frame_and_entry() -> None:
    """06 §22, S-121, S-135: frame, mask and `.idx` entry."""
    assert place.topic_mask(10) == 0xE6AD1BE9A8972875
    assert segment.reframe(APPEND, [0], place.topic_mask(10)) == (DATA, ENTRY)
    assert envelope.accounted_bytes(frame.decode(APPEND).data) == 16


def test_footer_and_gap_segment_are_the_published_bytes() -> None:
    """06 §22, S-129, S-135."""
    assert place.segment_mask(10, 1) == 0x2E1049A3F018C470
    assert segment.encode_footer(ENTRY, place.segment_mask(10, 1)) == FOOTER
    assert segment.read_footer(ENTRY + FOOTER, place.segment_mask(10, 1)) == (segment.HOT, 0, 1)
    assert segment.encode_gap(700, TS + 4, 3, place.segment_mask(10, 301)) == GAP_SEGMENT
    assert segment.read_gap(GAP_SEGMENT, place.segment_mask(10, 301)) == (700, TS + 4, 3, 0)


@pytest.mark.parametrize(("body", "ts", "durable", "raw"), CONTROL)
def test_control_frames_are_the_published_bytes(body: control.Body, ts: int, durable: bool, raw: str) -> None:
    """06 §22, S-41: both ways."""
    assert frame.encode_control(body, 10, TS + ts, durable=durable).hex() == raw
    decoded = frame.decode(bytes.fromhex(raw))
    assert control.decode_body(decoded.type, decoded.data) == body


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (1, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (2, [0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1]),
        (4, [0, 2, 3, 1, 0, 0, 3, 3, 2, 3, 1]),
        (8, [0, 6, 3, 5, 0, 4, 3, 7, 6, 7, 5]),
    ],
)
def test_topics_are_placed_on_the_published_shards(shards: int, expected: list[int]) -> None:
    """06 §22, S-70."""
    assert [place.shard_of(topic_id, shards) for topic_id in range(11)] == expected


def test_the_hash_is_the_published_one() -> None:
    """06 §22, S-6: XXH3-64 with seed 0."""
    assert xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert xxh3_64_intdigest((1).to_bytes(8, "little")) == 0x2FBC593564DB792E
