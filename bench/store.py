"""Stores for the benchmarks of the engine: 100-byte records under the product's defaults.

Ten million sealed records would take minutes to write through the engine. `sealed` lets the engine seal one segment
and writes the others after its pattern: the same records under the next seqs, frame by frame with their own
checksums, and a snapshot that lists them all. What comes out is what the engine would have left.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from bench.workload import SEED
from topics import paths
from topics.codec import segment, snapshot
from topics.codec.place import segment_mask, topic_mask
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.settings import SEGMENT_BYTES_MAX
from topics.storage.snapshot import SnapshotStore

TOPIC = "orders"
DATA_BYTES = 100
NEVER = NEVER_MS = 1 << 40
_SEQ_AT = 5
_SUM_BYTES = 9
"""At the end of a `.data` frame: checksum and delete byte."""


def records(count: int) -> list[dict[str, bytes]]:
    """Records whose JSON text has 100 bytes, as it would come out of a request; made before anything is timed."""
    source = random.Random(SEED)
    texts = [b'"%s"' % source.randbytes((DATA_BYTES - 2) // 2).hex().encode() for _ in range(256)]
    assert len(texts[0]) == DATA_BYTES
    return [{"data": texts[n % 256]} for n in range(count)]


def shared(dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """What several runs of a benchmark use, built by the first of them beside the directories of the runs."""
    made = dir.parent / name
    if not made.exists():
        building = dir.parent / f"{name}.building"
        building.mkdir()
        build(building)
        building.rename(made)
    return made


def killed(dir: Path, count: int) -> None:
    """The files of an engine that holds so many records in its WAL and none in segments, as a kill leaves them."""
    live = dir.with_name(f"{dir.name}.live")
    # Each new file asks for a checkpoint, which finds nothing that is due.
    config = EngineConfig(
        checkpoint_ms=NEVER_MS,
        checkpoint_records=NEVER,
        checkpoint_bytes=NEVER,
        segment_max_events=NEVER,
        segment_max_bytes=SEGMENT_BYTES_MAX,
        tail_records_max=NEVER,
        tail_bytes_max=NEVER,
        wal_retain_files=NEVER,
    )
    with Engine.open(str(live), config) as engine:
        engine.put_topic(TOPIC, {"durability": "disk"})
        given = records(1000)
        for _ in range(count // 1000):
            engine.append(TOPIC, given)
        shutil.copytree(live, dir, dirs_exist_ok=True)
    shutil.rmtree(live)


def copy(source: Path, to: Path) -> None:
    """Copied and synced before the time starts: dirty pages are not the engine's doing."""
    shutil.copytree(source, to, dirs_exist_ok=True)
    for path in to.rglob("*"):
        if path.is_file():
            _sync(path)


def sealed(dir: Path, count: int) -> None:
    """A cleanly closed store of one topic with so many sealed records: a multiple of what one segment takes."""
    per = EngineConfig().segment_max_events
    assert count % per == 0
    with Engine.open(str(dir), EngineConfig(checkpoint_ms=NEVER_MS)) as engine:
        engine.put_topic(TOPIC, {"durability": "disk"})
        given = records(1000)
        for _ in range(per // 1000):
            engine.append(TOPIC, given)
        engine.checkpoint(full=True)
    store = SnapshotStore(OsFs(), str(dir / paths.META_DIR))
    found = store.load(None)
    assert found is not None
    (topic,) = found.topics
    (row,) = topic.segments
    assert row.count == per
    assert row.flags == snapshot.SEALED
    rows = [row, *_more_segments(dir / paths.TOPICS_DIR / paths.topic_dir(topic.id), topic.id, row, count)]
    grown = replace(topic, head_seq=count, ckpt_seq=count, reserved=0, segments=tuple(rows))
    number = store.next_number()
    store.write(number, snapshot.encode(replace(found.header, id=number), [grown], []))


def _more_segments(dir: Path, topic_id: int, like: snapshot.SegmentRow, count: int) -> list[snapshot.SegmentRow]:
    data = bytearray((dir / paths.segment(like.first, "data")).read_bytes())
    idx = (dir / paths.segment(like.first, "idx")).read_bytes()[: -segment.ENTRY_BYTES]
    size = len(data) // like.count
    frames = np.frombuffer(data, np.uint8).reshape(like.count, size)
    mask = topic_mask(topic_id)
    rows = []
    for first in range(like.first + like.count, count + 1, like.count):
        _number(frames, first, mask)
        footer = segment.encode_footer(idx, segment_mask(topic_id, first))
        _write(dir / paths.segment(first, "data"), data)
        _write(dir / paths.segment(first, "idx"), idx + footer)
        rows.append(replace(like, first=first, idx_xxh3=struct.unpack("<Q", footer[-8:])[0]))
    return rows


def _number(frames: np.ndarray[tuple[int, int], np.dtype[np.uint8]], first: int, mask: int) -> None:
    """Give frames of one size the seqs from `first` on, and the checksums that belong to them."""
    n, size = frames.shape
    seqs = np.arange(first, first + n, dtype="<u8")
    frames[:, _SEQ_AT : _SEQ_AT + 8] = seqs.view(np.uint8).reshape(n, 8)
    view, digest = frames.reshape(-1).data, xxh3_64_intdigest
    sums = [digest(view[at + 4 : at + size - _SUM_BYTES]) ^ mask for at in range(0, n * size, size)]
    frames[:, size - _SUM_BYTES : size - 1] = np.array(sums, "<u8").view(np.uint8).reshape(n, 8)


def _write(path: Path, data: bytes | bytearray) -> None:
    path.write_bytes(data)
    _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
