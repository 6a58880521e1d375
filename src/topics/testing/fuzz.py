"""Fuzzing the decoders: hostile bytes in, a verdict or a declared error out (13 T13, [W-91]).

A seeded mutator, not a coverage-guided one: it starts from valid bytes of every format and breaks them. Each target
declares what it may raise; anything else, a hang, or more than 256 MiB of memory is a violation.
"""

from __future__ import annotations

import random
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from topics.codec import control, envelope, frame, kernel, part, segment, sidecar, snapshot
from topics.codec.place import segment_mask, topic_mask
from topics.errors import RecordError, UnsupportedFormat
from topics.testing import parity
from topics.testing.subject import Violation
from topics.wal.record import Record, RecordCodec, decode_varint

MEMORY_MAX_BYTES = 256 << 20
HANG_S = 10
"""Of processor time: how long a machine lets it wait says nothing."""
BLOCK = 500
"""Inputs between two looks at memory and the alarm clock."""


class Target(NamedTuple):
    """A decoder, what it may raise, and valid inputs to start from."""

    name: str
    run: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    corpus: tuple[bytes, ...]
    make: Callable[[random.Random, tuple[bytes, ...]], bytes] | None = None
    """How inputs are made of them; broken by default."""


def _records() -> tuple[bytes, ...]:
    plain = [Record.put(b"key", b"value" * 9), Record.delete(b"gone"), Record.put_with_ttl(b"t", b"", 1 << 40)]
    packed = [Record.put(b"z", b"abc" * 40).with_compression(method) for method in ("lz4", "zstd")]
    return tuple(record.encode() for record in plain + packed)


def _frames() -> tuple[bytes, ...]:
    appends = frame.encode_appends(
        [("n1", "job:7", envelope.build(b'{"n":1}', b'{"k":"v"}')), (None, None, envelope.build(b"null"))],
        10,
        1,
        1700000000001,
    )
    bodies = [
        control.Gap(first=301, last=1000, reason=3),
        control.HeadWatermark(reserved=257),
        control.Dedupe(first=31, count=2, key="shift"),
    ]
    return (appends, *(frame.encode_control(body, 10, 1700000000002) for body in bodies))


def _scan(data: bytes, idx: bytes) -> bytes:
    return b"".join(segment.encode_scan(np.frombuffer(idx, segment.IDX), [data]))


def _uploaded() -> bytes:
    return part.upload([("n", "t", envelope.build(b"1")), (None, None, envelope.build(b'"x"', b"{}"))])


def _segment() -> tuple[bytes, bytes]:
    wal = _frames()[0]
    rows = frame.scan_frames(wal, 0, len(wal)).rows
    return segment.reframe(wal, rows["offset"].tolist(), topic_mask(10))


def _snapshot() -> bytes:
    header = snapshot.Header(
        id=1,
        ts=2,
        store="0" * 32,
        run=1,
        boot="b",
        clean=True,
        next_topic_id=11,
        next_epoch=2,
        next_router_op=1,
        ckpt=1,
        cold=None,
        wal=(snapshot.WalRow("", 3, 900), snapshot.WalRow("shard-01", 2, 0, 1)),
    )
    queue = snapshot.QueueState(
        cursor=2,
        dead_lettered=0,
        leases=(snapshot.LeaseRow(1, "n", 7, 9),),
        deliveries=(snapshot.DeliveryRow(1, 2),),
        delayed=(snapshot.DelayRow(5, 1),),
    )
    topic = snapshot.TopicItem(
        id=10,
        name="jobs",
        epoch=1,
        cfg={"type": "queue", "x": [1, {"y": None}]},
        config_version=1,
        base=1,
        head_seq=3,
        ckpt_seq=3,
        reserved=0,
        cap_floor=1,
        ttl_floor=1,
        delete_below=1,
        delete_number=0,
        deletes_recorded=0,
        last_write_ms=2,
        segments=(snapshot.SegmentRow(1, 3, 200, 1, 3, 90, 77),),
        keys=(snapshot.KeyRow("k", 1, 2, 3),),
        producers=(snapshot.ProducerRow("p", 1, 2, 3, 1, 5),),
        queue=queue,
    )
    return snapshot.encode(header, [topic], [])


def _signed_snapshot(body: bytes) -> bytes:
    """A snapshot around any body, so that mutants get past the checksum."""
    head = struct.pack("<4sIII", snapshot.MAGIC, snapshot.VERSION, len(body), 0)
    return head + struct.pack("<Q", xxh3_64_intdigest(head + body)) + body


def _signed_sidecar(raw: bytes, mask: int) -> bytes:
    """Bytes 0-15 and what follows byte 24 of a sidecar under their right checksum."""
    head, body = raw[:16], raw[16:]
    return head + struct.pack("<Q", xxh3_64_intdigest(head + body) ^ mask) + body


def targets() -> tuple[Target, ...]:
    """Every decoder of the product."""
    records, frames = _records(), _frames()
    data, idx = _segment()
    mask = topic_mask(10)
    footed = idx + segment.encode_footer(idx, segment_mask(10, 1))
    gap = segment.encode_gap(700, 1700000000004, 3, segment_mask(10, 301))
    bodies = tuple(frame.decode(one, 0).data for one in frames[1:])
    log = b"".join(records) + bytes(64)
    codec, frame_codec = RecordCodec(strict=True), frame.FrameCodec()
    joined = b"".join(frames) + bytes(64)
    snap, place = _snapshot(), segment_mask(10, 1)
    tag = sidecar.encode({b"job:12": [1], b"job:7": [0, 2], b"": [3]}, place)
    unsigned = tag[:16] + tag[24:]
    refused = (ValueError, UnsupportedFormat)
    return (
        Target("record", Record.decode, (RecordError,), records),
        Target("varint", lambda raw: decode_varint(raw, 0, len(raw)), (RecordError,), (b"\x7f", b"\xff" * 9 + b"\x01")),
        Target("log scan", lambda raw: codec.scan(memoryview(raw), 0, "last"), (), (log, *records)),
        Target("frame", lambda raw: frame.decode(raw, 0), (frame.NotAFrame,), frames),
        Target("frame scan", lambda raw: frame_codec.scan(memoryview(raw), 0, "last"), (), (joined, *frames)),
        Target("resync", lambda raw: frame.resync(raw, 0, len(raw)), (), (joined,)),
        Target("control", lambda raw: [_body(type, raw) for type in control.TYPES.values()], (), bodies),
        Target("envelope", envelope.split, (ValueError,), (envelope.build(b"[1]", b"{}"), envelope.build(b'"x"'))),
        Target("json", envelope.canonical, (ValueError,), (b'{"a": [1, 2.5e3, "\\u00e9"]}', b"[" * 50 + b"]" * 50)),
        Target("segment data", lambda raw: segment.scan_data(raw, mask, 0, len(raw)), (), (data,)),
        Target("scan", lambda raw: segment.decode_scan(raw, mask), (ValueError,), (_scan(data, idx),)),
        Target("uploaded frames", lambda raw: list(part.uploaded(raw)), (frame.NotAFrame,), (_uploaded(),)),
        Target("segment index", lambda raw: segment.read_footer(raw, segment_mask(10, 1)), (ValueError,), (footed,)),
        Target("gap segment", lambda raw: segment.read_gap(raw, segment_mask(10, 301)), (ValueError,), (gap, footed)),
        Target("snapshot", snapshot.decode, refused, (snap,)),
        Target("snapshot body", lambda raw: snapshot.decode(_signed_snapshot(raw)), refused, (snap[24:],)),
        Target("tag sidecar", lambda raw: sidecar.read(raw, place), refused, (tag,)),
        Target("tag sidecar body", lambda raw: sidecar.read(_signed_sidecar(raw, place), place), refused, (unsigned,)),
        *beside_the_kernel(),
    )


def beside_the_kernel() -> tuple[Target, ...]:
    """Both kernels, fed the same; none where there is one only."""
    if kernel.installed() is None:
        return ()
    found = parity.corpora()
    made = {"write body": parity.make_body}
    return tuple(Target(f"parity: {name}", run, (), corpus, made.get(name)) for name, (run, corpus) in found.items())


def _body(type: int, raw: bytes) -> object:
    try:
        return control.decode_body(type, raw)
    except ValueError:
        return None


_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)


def mutate(rng: random.Random, corpus: tuple[bytes, ...]) -> bytes:
    """One broken input: a valid one with a few of its bytes changed, moved, cut or joined."""
    raw = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        kind = rng.randrange(7)
        at = rng.randrange(len(raw) + 1)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(raw):
            raw[at] = rng.choice(_EDGES)
        elif kind == 2:
            del raw[at:]
        elif kind == 3:
            del raw[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            raw[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            raw[at : at + 8] = rng.choice(((1 << 64) - 1, 1 << 63, 1 << 32, 33554432, 42)).to_bytes(8, "little")
        else:
            raw += rng.choice(corpus)
    return bytes(raw)


def fuzz(target: Target, seed: int, execs: int) -> Iterator[int]:
    """Feed `execs` inputs; yields how many ran since the last time. Raises `Violation` with the input."""
    rng = random.Random(f"fuzz {target.name} {seed}")
    make = target.make or mutate
    before = peak_bytes()
    for start in range(0, execs, BLOCK):
        count = min(BLOCK, execs - start)
        with _deadline(f"{target.name}, seed {seed}: no answer for {HANG_S} s"):
            for _ in range(count):
                raw = make(rng, target.corpus)
                try:
                    target.run(raw)
                except target.declared:
                    continue
                except Exception as error:
                    raise Violation(f"{target.name}, seed {seed}: {error!r} for {raw.hex()}") from error
        if peak_bytes() - before > MEMORY_MAX_BYTES:
            raise Violation(f"{target.name}, seed {seed}: more than {MEMORY_MAX_BYTES} bytes of memory")
        yield count


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _deadline(message: str) -> Iterator[None]:
    def ring(number: int, stack: FrameType | None) -> None:
        raise Violation(message)

    before: Any = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
