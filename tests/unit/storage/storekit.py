"""A whole data directory put together by hand with the codecs, as path -> bytes: for readers that only look (06 §2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.storage import kit
from tests.unit.storage.segkit import frames_of
from topics import paths
from topics.codec import control, frame, segment, snapshot
from topics.codec.place import segment_mask, topic_mask
from topics.codec.snapshot import SegmentRow, TopicItem, WalRow
from topics.storage import tags
from topics.storage.reindex import data_end, stats
from topics.storage.segfile import footer_hash
from topics.testing import SimFs

STORE_ID = "0123456789abcdef0123456789abcdef"
TS = 1_700_000_000_000
Files = dict[str, bytes]


class Topic:
    """One topic's files and rows; segments are added in ascending order."""

    def __init__(self, id: int = 10, name: str = "orders", *, durability: str = "fsync") -> None:
        self.id = id
        self.name = name
        self.durability = durability
        self.files: Files = {}
        self.rows: list[SegmentRow] = []
        self.end = 0

    def path(self, first: int, kind: paths.SegmentKind, generation: int = 0) -> str:
        return f"topics/{paths.topic_dir(self.id)}/{paths.segment(first, kind, generation)}"

    def segment(
        self,
        n: int,
        *,
        sealed: bool = True,
        deleted: Iterable[int] = (),
        fillers: Iterable[int] = (),
        lost: Mapping[int, int] | None = None,
        generation: int = 0,
        magic: bytes = segment.HOT,
        size: int = 0,
        extra: int = 0,
    ) -> Topic:
        """The next `n` seqs as a segment; `extra` further ones lie behind the claimed part of an active one."""
        first, lost = self.end + 1, lost or {}
        absent = {*fillers, *lost}
        data, idx = b"", b""
        for seq in range(first, first + n + extra):
            if seq in absent:
                idx += segment.fillers(1, 1000 + seq, lost.get(seq, 0))
            else:
                more, entry = frames_of([seq], len(data), size=size, topic=self.id)
                data += more
                idx += entry
        entries = np.frombuffer(bytearray(idx), segment.IDX)
        raw = bytearray(data)
        for seq in deleted:
            at = seq - first
            entries["flags"][at] |= segment.DELETED
            raw[int(entries["offset"][at]) + int(entries["len"][at]) - 1] = segment.DELETE_BYTE
        claimed = entries[:n]
        if sealed:
            footer = segment.encode_footer(claimed.tobytes(), segment_mask(self.id, first), magic, generation)
            self.files[self.path(first, "idx")] = claimed.tobytes() + footer
            tag = tags.build_sidecar(data, segment.scan_data(data, topic_mask(self.id)).rows, self.id, first)
            if tag is not None:
                self.files[self.path(first, "tag")] = tag
            digest = footer_hash(footer)
        else:
            self.files[self.path(first, "idx")] = entries.tobytes()
            digest = segment.claim_xxh3(claimed)
        self.files[self.path(first, "data", generation)] = bytes(raw)
        found = stats(claimed)
        flags = (snapshot.SEALED if sealed else 0) | (snapshot.COLD if magic == segment.COLD else 0)
        self.rows.append(SegmentRow(first, n, data_end(claimed), flags, found.live, found.live_bytes, digest))
        self.end += n
        return self

    def gap(self, seqs: int, reason: int) -> Topic:
        """A gap segment over the next seqs."""
        first = self.end + 1
        raw = segment.encode_gap(seqs, 1000 + first, reason, segment_mask(self.id, first))
        self.files[self.path(first, "idx")] = raw
        self.rows.append(SegmentRow(first, seqs, 0, snapshot.SEALED | snapshot.GAP, 0, 0, footer_hash(raw)))
        self.end += seqs
        return self

    def item(self, **changed: Any) -> TopicItem:
        """The topic in a snapshot."""
        fields: dict[str, Any] = {
            "id": self.id, "name": self.name, "epoch": 1, "cfg": {"durability": self.durability, "ttl_ms": 0},
            "config_version": 1, "base": 1, "head_seq": self.end, "ckpt_seq": self.end, "reserved": 0, "cap_floor": 1,
            "ttl_floor": 1, "delete_below": 1, "delete_number": 0, "deletes_recorded": 0, "last_write_ms": TS,
            "segments": tuple(self.rows),
        }  # fmt: skip
        return TopicItem(**(fields | changed))


def snapshot_file(
    number: int, items: Iterable[TopicItem], wal: Iterable[WalRow] = (), *, store: str = STORE_ID, **changed: Any
) -> Files:
    """`meta/snapshot-N.bin`."""
    fields: dict[str, Any] = {
        "id": number, "ts": TS, "store": store, "run": 1, "boot": "boot", "clean": True, "next_topic_id": 100,
        "next_epoch": 100, "next_router_op": 1, "ckpt": 1, "cold": None, "wal": tuple(wal),
    }  # fmt: skip
    encoder = snapshot.Encoder(snapshot.Header(**(fields | changed)))
    encoder.add_topics(items)
    return {f"meta/{paths.snapshot(number)}": encoder.finish()}


def wal_files(parts: Mapping[int, bytes], *, current: int | None = None, shard: str = "") -> Files:
    """The files of a WAL group."""
    folder = f"wal/{shard}/" if shard else "wal/"
    found = {folder + paths.wal_file(number): data for number, data in parts.items()}
    if current is not None:
        found[f"{folder}CURRENT"] = f"{paths.wal_file(current)}\n".encode()
    return found


def base_files() -> Files:
    return {"meta/STORE": f"{STORE_ID}\n".encode(), ".topics.lock": b"pid=1\nboot=boot\nstarted=1\n"}


def closed_wal(run: int = 1) -> bytes:
    """One file of a run that ended in order."""
    ready, close = control.ReadyMark(run=run), control.CloseMark(run=run)
    return kit.log_file(1, kit.mark(ready), kit.mark(close, synced_prefix=True))


def store(*topics: Topic) -> Files:
    """A store that was closed in order: two snapshots, one WAL file, these topics."""
    files = base_files()
    wal = closed_wal()
    row = WalRow("", 1, len(wal))
    items = [topic.item() for topic in topics]
    files |= snapshot_file(1, items, [row]) | snapshot_file(2, items, [row])
    files |= wal_files({1: wal}, current=1)
    for topic in topics:
        files |= topic.files
    return files


def on_sim(files: Files, root: str = "store") -> SimFs:
    disk = SimFs(3)
    for name in ("meta", "wal", "topics"):
        disk.makedirs(f"{root}/{name}")
    disk.load({f"{root}/{path}": data for path, data in files.items()})
    return disk


def on_disk(files: Files, root: Path) -> Path:
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for name in ("meta", "wal", "topics"):
        (root / name).mkdir(exist_ok=True)
    return root


def flipped(files: Files, path: str, offset: int, mask: int = 1) -> Files:
    """The same files with one byte changed."""
    data = bytearray(files[path])
    data[offset] ^= mask
    return files | {path: bytes(data)}


def without(files: Files, *names: str) -> Files:
    return {path: data for path, data in files.items() if path not in names}


def topic_create(topic: Topic) -> bytes:
    """The frame that created a topic."""
    body = control.TopicCreate(name=topic.name, epoch=1, cfg={"durability": topic.durability})
    return frame.encode_control(body, topic.id, TS, durable=True)
