"""FORMAT.md says what the code does: each of its hex examples is encoded and decoded here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import topics.codec
from topics.codec import control, envelope, frame, place, segment
from topics.codec.scan import FileInfo

DOC = Path(next(iter(topics.codec.__path__))) / "FORMAT.md"
TS = 1700000000001

BODIES: dict[str, control.Body | control.CheckpointMark] = {
    "TopicCreate": control.TopicCreate(name="jobs", epoch=1, cfg={"type": "queue"}),
    "TopicDelete": control.TopicDelete(name="jobs", epoch=1),
    "RouterCreate": control.RouterCreate(
        op=1,
        inc=1,
        name="r",
        source="a",
        dest="b",
        source_id=10,
        dest_id=11,
        preserve_node=True,
        preserve_tag=True,
        create_dest=False,
        allow_cycle=False,
        guarantee="at_least_once",
        selector=("Eq", "x"),
        new=True,
        created_ms=TS,
        cursor=0,
        base=0,
    ),
    "RouterDelete": control.RouterDelete(op=2, name="r"),
    "Delete": control.Delete(match=("Glob", "job:"), bound=5, cap_floor=1, ttl_floor=1),
    "EvictWatermark": control.EvictWatermark(cap_floor=1, ttl_floor=4, earliest_seq=4),
    "ConfigUpdate": control.ConfigUpdate(name="jobs", cfg={}, config_version=2, cap_floor=1, ttl_floor=1, head_seq=9),
    "Lease": control.Lease(event=0, node="oven-2", lease_id=47, deadline_ms=TS, deliveries=1),
    "HeadWatermark": control.HeadWatermark(reserved=257),
    "Gap": control.Gap(first=301, last=1000, reason=3),
    "Dedupe": control.Dedupe(first=31, count=2, key="shift-3/0041"),
    "open": control.OpenMark(run=2, boot="b", shard=0, shards=1, file=3, prev=(2, 900)),
    "mark": control.TopicsMark(n=4, part=0, parts=1, topics=(control.MarkRow(10, 9, 9, 1, 1, 1, 1, 700, 9, 77),)),
    "router": control.RouterMark(routers=(control.RouterRow(1, "r", 40, 12, 52),)),
    "attach": control.AttachMark(
        topic_id=10,
        dir="ff-1",
        producer="job",
        epoch=1,
        first=10,
        count=5,
        ts=TS,
        cap_floor=1,
        segments=(control.AttachRow(10, 5, 400, 77),),
    ),
    "ready": control.ReadyMark(run=2),
    "sync": control.SyncMark(),
    "close": control.CloseMark(run=2),
}


def append() -> bytes:
    return frame.encode_appends([("n1", "job:7", record())], 10, 1, TS, durable=True)


def record() -> bytes:
    return envelope.build(b'{"n":1}', b'{"k":"v"}')


def gap_frame() -> bytes:
    return frame.encode_control(BODIES["Gap"], 10, TS)


def preamble() -> bytes:
    return frame.FrameCodec().preamble(FileInfo(3, (2, 900), frame.OpenContext(2, "b", 0, 1, TS)))


def data() -> bytes:
    return segment.reframe(append(), [0], place.topic_mask(10))[0]


def entry() -> bytes:
    return segment.reframe(append(), [0], place.topic_mask(10))[1]


def sealed() -> bytes:
    return entry() + segment.encode_footer(entry(), place.segment_mask(10, 1))


def gap_segment() -> bytes:
    return segment.encode_gap(700, TS, 3, place.segment_mask(10, 301))


def scanned() -> bytes:
    return b"".join(segment.encode_scan(np.frombuffer(entry(), segment.IDX), [data()]))


def encoder(body: control.Body | control.CheckpointMark) -> Callable[[], bytes]:
    return lambda: control.encode_body(body)


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "envelope": record,
    "envelope without meta": lambda: envelope.build(b"null"),
    "append frame": append,
    "control frame": gap_frame,
    "pad frame": lambda: frame.encode_pads(46),
    "open mark": preamble,
    "data frame": data,
    "idx entry": entry,
    "deleted filler": lambda: segment.fillers(1, TS),
    "hole": lambda: segment.fillers(1, TS, 2),
    "sealed idx": sealed,
    "gap segment": gap_segment,
    "scan": scanned,
    **{f"body {name}": encoder(body) for name, body in BODIES.items()},
}


def blocks() -> dict[str, bytes]:
    found = re.findall(r"^```hex (.+)\n([0-9a-f\n]+)```$", DOC.read_text(), re.MULTILINE)
    assert len(dict(found)) == len(found)
    return {name: bytes.fromhex(text) for name, text in found}


def test_every_format_has_one_example() -> None:
    """A format without an example, or an example of nothing, is a gap in the document."""
    assert set(blocks()) == set(EXAMPLES)
    assert {type(body) for body in BODIES.values()} == set(control.TYPES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_code_encodes(name: str) -> None:
    """S-7: document, writer and test map one to one."""
    assert blocks()[name].hex() == EXAMPLES[name]().hex()


def test_the_examples_decode_to_what_the_document_says() -> None:
    """S-26, S-41, S-120, S-122, S-129."""
    doc = blocks()
    assert envelope.split(doc["envelope"]) == (b'{"n":1}', b'{"k":"v"}')
    assert envelope.split(doc["envelope without meta"]) == (b"null", None)
    assert frame.decode(doc["append frame"]) == (1, 7, 10, 1, TS, b"n1", b"job:7", doc["envelope"], 80)
    assert frame.decode(doc["control frame"])[:5] == (12, 0, 10, 0, TS)
    assert frame.decode(doc["pad frame"]).type == frame.PAD
    assert frame.decode(doc["open mark"]).data == doc["body open"]
    for name, body in BODIES.items():
        assert control.decode_body(control.TYPES[type(body)], doc[f"body {name}"]) == body
    found = segment.decode(doc["data frame"], 0, 1, place.topic_mask(10))
    assert found == (3, 1, TS, b"n1", b"job:7", doc["envelope"], False, 72)
    assert segment.decode_scan(doc["scan"], place.topic_mask(10)).seqs.tolist() == [1]
    assert segment.read_footer(doc["sealed idx"], place.segment_mask(10, 1)) == (segment.HOT, 0, 1)
    entries = np.frombuffer(doc["idx entry"] + doc["deleted filler"] + doc["hole"], segment.IDX)
    assert entries["len"].tolist() == [72, 0, 0]
    assert segment.ovh(entries).tolist() == [56, 0, 2]
    assert segment.read_gap(doc["gap segment"], place.segment_mask(10, 301)) == (700, TS, 3, 0)


def test_the_document_tells_the_limits_of_the_code() -> None:
    """Constants that a reader of the document relies on."""
    text = DOC.read_text()
    for number in (
        frame.FRAME_LEN_MIN,
        frame.FRAME_LEN_MAX,
        segment.FRAME_LEN_MIN,
        segment.FRAME_LEN_MAX,
        envelope.NESTING_MAX,
    ):
        assert str(number) in text
    assert f"0x{segment.DELETE_BYTE:X}" in text
