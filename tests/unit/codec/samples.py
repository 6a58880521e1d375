"""One sample of every stored format, as values and as bytes; the golden files hold the bytes.

A golden file changes only with the version of its layer [S-7]. To write them anew, after a deliberate change:

    PYTHONPATH=src:. python -m tests.unit.codec.samples
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.unit.codec import test_sidecar, test_snapshot
from topics.codec import control, envelope, frame, place, segment
from topics.codec.scan import FileInfo

GOLDEN = Path(__file__).parents[2] / "golden" / "codec"

TOPIC = 10
TS = 1700000000001
MASK = place.topic_mask(TOPIC)
SEGMENT_MASK = place.segment_mask(TOPIC, 1)
CONTEXT = frame.OpenContext(run=7, boot="6f1c2d3e-boot", shard=1, shards=4, ts=TS)

RECORDS: list[frame.Record] = [
    ("n1", "job:7", envelope.build(b'{"n":1}', b'{"k":"v"}')),
    (None, None, envelope.build(b"null")),
    ("", "", envelope.build(b'"\\u00e9 1.0 \xc3\xa9"')),
    ("dock-é", None, envelope.build(b'{"a":1,"m":{}}')),
    (None, "lot:✓", envelope.build(b"[1e3,12345678901234567890123456789]", b"{}")),
]

CONFIG = {"type": "queue", "ttl_ms": 0, "priority": None, "durability": "fsync", "durable": True, "from_2031": [1, "x"]}
ROUTER = {
    "op": 5,
    "inc": 4,
    "name": "r",
    "source": "a",
    "dest": "b",
    "source_id": 10,
    "dest_id": 11,
    "preserve_node": True,
    "preserve_tag": False,
    "create_dest": True,
    "allow_cycle": False,
    "guarantee": "exactly_once",
}

BODIES: list[control.Body | control.CheckpointMark] = [
    control.TopicCreate(name="kitchen/oven", epoch=3, cfg=CONFIG, config_version=2, base=900),
    control.TopicCreate(name="t", epoch=1, cfg={}),
    control.TopicDelete(name="t", epoch=1, delete_number=9),
    control.TopicDelete(name="t", epoch=1),
    control.RouterCreate(**ROUTER, selector=("Glob", "job:"), new=True, created_ms=TS, cursor=40, base=2**64 - 1),
    control.RouterCreate(**ROUTER, new=False, created_ms=TS),
    control.RouterDelete(op=6, name="r"),
    control.Delete(before_seq=40, bound=41, cap_floor=1, ttl_floor=1),
    control.Delete(match=("Eq", "job:7"), bound=5, cap_floor=1, ttl_floor=2, delete_number=3),
    control.Delete(seqs=(1, 300, 70000, 2**63), cap_floor=1, ttl_floor=1, kind=1),
    control.EvictWatermark(cap_floor=1, ttl_floor=257, earliest_seq=300),
    control.ConfigUpdate(name="t", cfg=CONFIG, config_version=4, cap_floor=1, ttl_floor=1, head_seq=65536),
    control.Lease(event=0, node="oven-2", lease_id=7 * 2**40 + 47, deadline_ms=TS, deliveries=1),
    control.Lease(event=1, node="oven-2", lease_id=1, ready_at_ms=TS),
    control.Lease(event=3, node="", lease_id=0),
    control.HeadWatermark(reserved=257),
    control.Gap(first=301, last=1000, reason=3),
    control.Gap(first=1, last=1, reason=1, hops=8),
    control.Dedupe(first=31, count=2, key="shift-3/0041"),
    control.Dedupe(first=31, count=2, producer="p", epoch=0, index=2**32),
    control.OpenMark(run=1, boot="b", shard=0, shards=1, file=1),
    control.OpenMark(run=2, boot="b", shard=0, shards=64, file=9, prev=(8, 67108864)),
    control.TopicsMark(n=4, part=0, parts=2, topics=(control.MarkRow(10, 9, 9, 1, 1, 1, 1, 700, 9, 2**64 - 1),)),
    control.RouterMark(routers=(control.RouterRow(4, "r", 40, 12, 52), control.RouterRow(5, "s", 0, 0, 0))),
    control.AttachMark(
        topic_id=10,
        dir="00ff-1",
        producer="job",
        epoch=1,
        first=10,
        count=5,
        ts=TS,
        cap_floor=1,
        segments=(control.AttachRow(10, 5, 400, 77),),
    ),
    control.ReadyMark(run=7),
    control.SyncMark(),
    control.CloseMark(run=7),
]


def appends() -> bytes:
    """A durable submission of five records."""
    return frame.encode_appends(RECORDS, TOPIC, 1, TS, durable=True)


def controls() -> bytes:
    """One submission with every control body, closed by a Pad."""
    frames = [frame.encode_control(body, TOPIC, TS, seq=3, more=True) for body in BODIES]
    return b"".join(frames) + frame.encode_pads(50)


def wal_file() -> bytes:
    """Open mark, a submission with a Dedupe behind its Appends, a flagged `sync` mark, a router's copy."""
    first = frame.FrameCodec().preamble(FileInfo(3, (2, 900), CONTEXT))
    chain = frame.encode_appends(RECORDS, TOPIC, 1, TS, more=True)
    dedupe = frame.encode_control(control.Dedupe(first=1, count=5, key="k"), TOPIC, TS)
    sync = bytearray(frame.encode_control(control.SyncMark(), 0, TS))
    frame.set_synced_prefix(sync)
    return first + chain + dedupe + bytes(sync) + frame.encode_appends(RECORDS[:1], TOPIC, 6, TS, hops=8)


def data_and_entries() -> tuple[bytes, bytes]:
    """The submission of `appends` as a segment."""
    rows = frame.scan_frames(appends()).rows
    return segment.reframe(appends(), rows["offset"].tolist(), MASK)


def data() -> bytes:
    """The `.data` file, its second record deleted."""
    raw = bytearray(data_and_entries()[0])
    raw[segment.scan_data(raw, MASK).rows["offset"][2] - 1] = segment.DELETE_BYTE
    return bytes(raw)


def idx() -> bytes:
    """A sealed `.idx`: the entries (the second one deleted), a deleted filler, two holes, the footer."""
    entries = np.frombuffer(data_and_entries()[1], segment.IDX).copy()
    entries["flags"][1] |= segment.DELETED
    raw = entries.tobytes() + segment.fillers(1, TS) + segment.fillers(2, TS + 1, reason=2, hops=3)
    return raw + segment.encode_footer(raw, SEGMENT_MASK)


def cold_idx() -> bytes:
    """The same `.idx` with its data in the cold tier, generation 2."""
    raw = idx()[: -segment.ENTRY_BYTES]
    return raw + segment.encode_footer(raw, SEGMENT_MASK, segment.COLD, 2)


def gap_idx() -> bytes:
    """A gap segment of 700 seqs lost in a crash."""
    return segment.encode_gap(700, TS, 3, place.segment_mask(TOPIC, 301), hops=1)


def envelopes() -> bytes:
    """The envelopes of the records, one per line."""
    return b"\n".join(record[2] for record in RECORDS) + b"\n"


FILES = {
    "wal-appends.bin": appends,
    "wal-controls.bin": controls,
    "wal-file.log": wal_file,
    "segment.data": data,
    "segment.idx": idx,
    "segment-cold.idx": cold_idx,
    "segment-gap.idx": gap_idx,
    "segment.tag": test_sidecar.golden,
    "snapshot.bin": test_snapshot.golden,
    "envelopes.jsonl": envelopes,
}

if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, encode in FILES.items():
        (GOLDEN / name).write_bytes(encode())
