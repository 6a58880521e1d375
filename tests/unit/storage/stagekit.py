"""Staged frames, and the segments that a checkpoint makes of the same records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topics.codec import frame, part, segment
from topics.codec.envelope import build
from topics.codec.place import topic_mask
from topics.fs import Fs, close_quietly, ensure_dir, pwrite_all
from topics.storage.descriptor import Limits
from topics.storage.maps import MapCache
from topics.storage.segments import TopicSegments
from topics.storage.stamp import StagedChunk

TOPIC = 10
TS = 1_700_000_000_000


class Row(NamedTuple):
    """A record as it is staged."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None

    @property
    def envelope(self) -> bytes:
        return build(self.data, self.meta)


def rows(n: int, size: int = 10) -> list[Row]:
    """Records of all kinds."""
    found = []
    for at in range(n):
        tag = (None, "job:1", "job:2", "", "lot:é")[at % 5]
        node = (None, "n1", "")[at % 3]
        meta = b'{"k":%d}' % at if at % 4 == 0 else None
        found.append(Row(b'"record %d %s"' % (at, b"x" * (at * 7 % (size + 1))), tag, node, meta))
    return found


def frames(given: Sequence[Row]) -> bytes:
    """The records as a staged chunk."""
    return part.encode([(row.node, row.tag, row.envelope) for row in given])


def logged_frames(given: Sequence[Row], topic_id: int, first_seq: int, ts: int) -> bytes:
    """The records as the WAL has them."""
    return bytes(frame.encode_appends([(row.node, row.tag, row.envelope) for row in given], topic_id, first_seq, ts))


def put(fs: Fs, path: str, raw: bytes) -> StagedChunk:
    """A part file that holds one chunk."""
    ensure_dir(fs, path.rpartition("/")[0])
    file = fs.open(path, "create")
    pwrite_all(file, raw, 0)
    close_quietly(file)
    return StagedChunk(path, 0, len(raw), part.digest(raw))


def checkpointed(fs: Fs, dir: str, given: Sequence[Row], first_seq: int, ts: int, cuts: Sequence[int]) -> None:
    """The segments that a checkpoint writes, sealed behind each number of records in `cuts`."""
    ensure_dir(fs, dir)
    limits = Limits(max_events=10**9, max_bytes=2**31, max_age_ms=0)
    segments = TopicSegments(fs, dir, TOPIC, MapCache(fs, 8, False), limits)
    segments._next_seq = first_seq
    cycle = segments.begin()
    cycle.prepare()
    at = 0
    for count in cuts:
        seq = first_seq + at
        raw = logged_frames(given[at : at + count], TOPIC, seq, ts)
        offsets = frame.scan_frames(raw).rows["offset"].tolist()
        cycle.append(seq, *segment.reframe(raw, offsets, topic_mask(TOPIC), cycle.data_len))
        cycle.seal()
        at += count
    cycle.sync()
    segments.commit(cycle)


def listing(fs: Fs, dir: str) -> dict[str, bytes]:
    """Every file of a directory."""
    found = {}
    for name in sorted(fs.listdir(dir)):
        file = fs.open(f"{dir}/{name}", "r")
        found[name] = file.pread(file.size(), 0)
        close_quietly(file)
    return found


def seqs_of(raw: bytes, topic_id: int = TOPIC) -> list[int]:
    """The seqs of a `.data` file, every frame verified."""
    scan = segment.scan_data(raw, topic_mask(topic_id))
    assert scan.stop == len(raw)
    return [int(seq) for seq in scan.rows["seq"]]
